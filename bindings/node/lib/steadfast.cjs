'use strict'

const { CallError, OpenError, OperationError, TicketError, fromNative } = require('./errors.cjs')
const { InputRequired, toFailure } = require('./failures.cjs')
const { Runner, cancelled, onAbort, prompter } = require('./host-call.cjs')
const { KEEPS_RESULT, WAIT_FOR_APPROVAL, annotationFlags, choice, flagsOf, json, schemaOf } = require('./options.cjs')
const { ask, attempt, environment, expect, forget, native, number, operate, read } = require('./port.cjs')

const NOTHING = Object.freeze({})
const CREATE = Symbol('create')
/** The source of a failure that this module has found itself. */
const SOURCE = Symbol('source')

/** An order to run a tool. */
class RunStep {
  next = 'run'
  #engine
  #controller

  constructor(engine, { id, attempt, deadlineAtMs, run }) {
    this.#engine = engine
    this.id = id
    this.attempt = attempt
    if (deadlineAtMs !== undefined) this.deadlineAtMs = deadlineAtMs
    this.run = run
  }

  get signal() {
    if (!this.#controller) {
      const controller = new AbortController()
      this.#controller = controller
      watch(this.#engine, this, controller)
    }
    return this.#controller.signal
  }
}

/** Aborts when the engine ends the attempt. Does not keep the process running. */
function watch(engine, step, controller) {
  const to = number()
  const abort = (text) => {
    const { ok } = JSON.parse(text)
    if (ok === 'ended') return
    controller.abort(new OperationError('the result of this attempt is no longer wanted', { code: 'attempt_ended' }))
  }
  const text = attempt(() => engine.watch(to, step.id, step.attempt))
  if (text != null) return abort(text)
  const handler = (message) => {
    forget(to)
    abort(message)
  }
  expect(to, handler, { keepsRunning: false })
}

class Steadfast {
  #engine
  #closed
  /** What ends with a call that the host runs: listeners of signals, and prompts. */
  #ends = new Map()
  #readers = new Set()

  constructor(token, engine) {
    if (token !== CREATE) throw new TypeError('use open()')
    this.#engine = engine
    this.stateFile = engine.stateFile()
  }

  // ── Functions ──────────────────────────────────────────────────────────────────────────────────────────────────────

  guard(tool, fn, options = NOTHING) {
    const { namespace, key, encode, decode, toFailure: convert, annotations, inputSchema, approval, callIdScope, equalCalls, ...usual } =
      options
    const flags = flagsOf({ annotations, approval, callIdScope, equalCalls }) | KEEPS_RESULT
    const schema = schemaOf(inputSchema)
    const facts = { fn, flags, schema, encode, convert, approval }
    return (args, context) =>
      new Promise((resolve, reject) => {
        const { signal, ...own } = context ?? NOTHING
        const call = { tool, namespace, ...usual, key: keyOf(key, args), ...own, args }
        this.#drive(call, signal, facts, (answer, value, error) => {
          if (answer.next === 'own') resolve(value)
          else if (answer.result.error) reject(CallError.of(answer, error))
          else if (answer.result.fromCache) resolve((decode ?? itself)(answer.result.output?.content))
          else resolve(value)
        }, reject)
      })
  }

  call(call, fn, options = NOTHING) {
    return new Promise((resolve, reject) => {
      const { approval, inputSchema, toFailure: convert } = options
      const facts = { fn, flags: flagsOf(options), schema: schemaOf(inputSchema), convert, approval }
      this.#drive(call, options.signal, facts, resolve, reject)
    })
  }

  #drive(call, signal, { fn, flags, schema, encode, convert, approval }, onAnswer, reject) {
    if (signal?.aborted) throw cancelled(signal)
    const engine = this.#open()
    const text = json(call, 'the call')
    let last
    let lastError
    const runner = new Runner(engine, {
      functionOf: (order) => ({ fn, args: order.params ?? call.args ?? {} }),
      succeeded(value) {
        last = value
        const report = reportOf(value, encode)
        return report.text ?? this.failed(report.error)
      },
      failed(error) {
        lastError = error
        return failureReport(error, convert)
      },
      ask: prompter(engine, approval),
      onAnswer(answer) {
        end?.()
        if (answer.error) reject(fromNative(answer.error, lastError))
        else onAnswer(answer, last, lastError)
      },
    })
    const end = onAbort(signal, () => engine.cancelCall(runner.to))
    runner.handle(attempt(() => engine.call(runner.to, text, flags, schema)))
  }

  // ── Tools that the host runs ───────────────────────────────────────────────────────────────────────────────────────

  begin(call, options = NOTHING) {
    const { signal, approval } = options
    if (signal?.aborted) throw cancelled(signal)
    const engine = this.#open()
    const text = json(call, 'the call')
    const flags = flagsOf(options)
    const schema = schemaOf(options.inputSchema)
    const answerPrompt = prompter(engine, approval)
    const step = operate((to) => engine.begin(to, text, flags, schema), (message) => this.#step(message), {
      onWait: (to, reject) =>
        onAbort(signal, () => {
          environment.abandon(to)
          forget(to)
          reject(cancelled(signal))
        }),
      onMessage(message) {
        const isPrompt = message.prompt !== undefined || message.promptOver !== undefined
        if (isPrompt) answerPrompt?.(message)
        return isPrompt
      },
    })
    return signal ? this.#watchCaller(step, signal) : step
  }

  report(ticket, report) {
    const engine = this.#open()
    const text = json(wellFormed(report), 'the report', 'invalid_report')
    const { id, attempt: which } = ticketOf(ticket)
    return operate((to) => engine.report(to, id, which, text), (message) => this.#step(message, id))
  }

  heartbeat(ticket) {
    const { id, attempt: which } = ticketOf(ticket)
    const engine = this.#open()
    return read(attempt(() => engine.heartbeat(id, which))).ok
  }

  giveBack(ticket) {
    const { id, attempt: which } = ticketOf(ticket)
    return attempt(() => this.#open().giveBack(id, which))
  }

  cancel(ticket) {
    return attempt(() => this.#open().cancel(Number(ticket?.id)))
  }

  answered(call, answer, options = NOTHING) {
    const engine = this.#open()
    const [text, answerText] = [json(call, 'the call'), json(answer, 'the answer', 'invalid_report')]
    return read(attempt(() => engine.answered(text, annotationFlags(options.annotations), schemaOf(options.inputSchema), answerText))).ok
  }

  #step(message, id) {
    if (message.next === 'run') return new RunStep(this.#engine, message)
    if (id !== undefined) {
      this.#ends.get(id)?.()
      this.#ends.delete(id)
    }
    return message
  }

  /** Cancels a call when the signal of its caller aborts, until it has its answer. */
  #watchCaller(step, signal) {
    if (typeof step.then === 'function') return step.then((step) => this.#watchCaller(step, signal))
    if (step.next === 'run') {
      const { id } = step
      if (signal.aborted) this.cancel(step)
      else this.#ends.set(id, onAbort(signal, () => this.#closed || this.cancel({ id })))
    }
    return step
  }

  // ── Turns ──────────────────────────────────────────────────────────────────────────────────────────────────────────

  turn(plan, tools, options = NOTHING) {
    return new Promise((resolve, reject) => {
      const { signal, approval, ...caller } = options
      if (signal?.aborted) throw cancelled(signal)
      const engine = this.#open()
      const all = new Map(Object.entries(tools).map(([name, tool]) => [name, typeof tool === 'function' ? { run: tool } : tool]))
      const described = {}
      for (const [name, { annotations, inputSchema }] of all) {
        described[name] = { flags: annotationFlags(annotations), schema: schemaOf(inputSchema) }
      }
      const flags = choice(approval, 'approval', { refuse: 0, wait: WAIT_FOR_APPROVAL })
      const runner = new Runner(engine, {
        functionOf: ({ tool, params }) => ({ fn: all.get(tool).run, args: params }),
        succeeded(value) {
          const report = reportOf(value)
          return report.text ?? failureReport(report.error)
        },
        failed: (error) => failureReport(error),
        onAnswer(answer) {
          end?.()
          if (answer.error) reject(fromNative(answer.error))
          else resolve(answer.ok)
        },
      })
      const end = onAbort(signal, () => engine.cancelTurn(runner.to))
      const [planText, callerText] = [json(plan, 'the plan', 'invalid_plan'), json(caller, 'the options', 'invalid_option')]
      runner.handle(attempt(() => engine.turn(runner.to, planText, JSON.stringify(described), callerText, flags)))
    })
  }

  // ── Operators ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async api(method, path, body, { by = 'node' } = NOTHING) {
    const engine = this.#open()
    const text = body === undefined ? undefined : json(body, 'the body', 'invalid_option')
    const response = await ask((to) => engine.request(to, method, path, text, by))
    if (response.status < 400) return response.body
    const { code = 'unavailable', message = `status ${response.status}`, retryAfterMs } = response.body?.error ?? {}
    throw new OperationError(message, { code, retryAfterMs, status: response.status })
  }

  status() {
    return this.api('GET', '/v1/status')
  }

  async approvals({ tenant, session, tool } = NOTHING) {
    const all = []
    let after
    do {
      const page = await this.api('GET', `/v1/approvals${query({ tenant, session, tool, after })}`)
      all.push(...page.approvals)
      after = page.next
    } while (after != null)
    return all
  }

  approve(id, decision = 'once', { tenant, by } = NOTHING) {
    const body = typeof decision === 'string' ? { decision } : { decision: 'time', for: decision.for }
    return this.api('POST', `/v1/approvals/${encodeURIComponent(id)}${query({ tenant })}`, body, { by })
  }

  deny(id, options) {
    return this.approve(id, 'deny', options)
  }

  resetBreaker(key, { tenant, by } = NOTHING) {
    const name = native.breakerKey(String(key))
    return this.api('POST', `/v1/breakers/${encodeURIComponent(name)}${query({ tenant })}`, { to: 'reset' }, { by })
  }

  async resetGuard(session, { tenant, by } = NOTHING) {
    const { freed } = await this.api('POST', `/v1/guard/reset${query({ tenant })}`, { session }, { by })
    return { freed: freed.length }
  }

  resetTrust(tool, { tenant, by } = NOTHING) {
    return this.api('POST', `/v1/trust/${encodeURIComponent(tool)}/reset${query({ tenant })}`, undefined, { by })
  }

  async *events({ event, tool, tenant, signal } = NOTHING) {
    const engine = this.#open()
    const reader = number()
    if (signal?.aborted) return
    attempt(() => engine.openEvents(reader))
    let abandon
    const stop = () => abandon?.()
    const end = onAbort(signal, stop)
    this.#readers.add(stop)
    try {
      while (!signal?.aborted && !this.#closed) {
        const events = await nextEvents(engine, reader, (drop) => { abandon = drop })
        for (const one of events) if (fits(one, { event, tool, tenant })) yield one
      }
    } finally {
      end?.()
      this.#readers.delete(stop)
      engine.closeEvents(reader)
    }
  }

  metrics() {
    return ask((to) => this.#open().metrics(to))
  }

  async reconfigure(config) {
    await ask((to) => this.#open().reconfigure(to, String(config)))
  }

  inFlight() {
    return this.#engine.inFlight()
  }

  close({ graceMs = 5000 } = NOTHING) {
    if (!this.#closed) {
      this.#closed = ask((to) => this.#engine.close(to, graceMs))
      for (const stop of this.#readers) stop()
    }
    return this.#closed
  }

  async [Symbol.asyncDispose]() {
    await this.close()
  }

  #open() {
    if (this.#closed) throw new OperationError('this engine is closed; open it again', { code: 'closed' })
    return this.#engine
  }
}

/** Opens an engine, or joins the one that is open. */
async function open({ stateFile, config, configFile, environment: fromEnvironment, name, ifOpen } = NOTHING) {
  const options = {
    stateFile: stateFile ?? undefined, inMemory: stateFile === null, config, configFile, environment: fromEnvironment, name, ifOpen,
  }
  try {
    const number = await ask((to) => environment.open(to, json(options, 'the options', 'invalid_option')))
    return new Steadfast(CREATE, attempt(() => environment.engine(number)))
  } catch (error) {
    if (error instanceof OpenError) throw error
    throw new OpenError(error.message, { code: error.code ?? 'open_failed', cause: error })
  }
}

/** Returns the key of a call, which may be a number. */
function keyOf(key, args) {
  const value = key?.(args)
  return value === undefined || value === null ? undefined : String(value)
}

function itself(value) {
  return value
}

/** Returns the report of a result, or the error that keeps it from being JSON. */
function reportOf(value, encode) {
  try {
    return { text: `{"output":{"content":${JSON.stringify(encode ? encode(value) : value) ?? 'null'}}}` }
  } catch (cause) {
    const error = new TypeError(`the result of the tool cannot be written as JSON: ${cause?.message ?? cause}`, { cause })
    return { error: Object.assign(error, { [SOURCE]: { kind: 'bad_answer' } }) }
  }
}

/** Returns the report of an error. */
function failureReport(error, convert = toFailure) {
  try {
    if (InputRequired.is(error)) return JSON.stringify({ inputRequired: { content: error.question ?? null } })
    if (error?.[SOURCE]) return JSON.stringify({ failure: { message: error.message, source: error[SOURCE] } })
    return JSON.stringify(wellFormed({ failure: convert(error) }))
  } catch {
    // An error may be anything, also a trap for everyone who touches it.
    return '{"failure":{"message":"the tool threw an error that cannot be read"}}'
  }
}

/** Returns a report whose message is valid text. Programs cut texts anywhere, also within a character. */
function wellFormed(report) {
  const message = report?.failure?.message
  if (typeof message !== 'string' || message.isWellFormed()) return report
  return { ...report, failure: { ...report.failure, message: message.toWellFormed() } }
}

function ticketOf(ticket) {
  const { id, attempt } = ticket ?? NOTHING
  if (Number.isSafeInteger(id) && Number.isSafeInteger(attempt) && attempt > 0 && attempt < 2 ** 32) return { id, attempt }
  throw new TicketError('there is no such call: a ticket has the id and the attempt of a step', { code: 'no_such_call' })
}

/** Waits for the next events. `canAbandon` gets the function that ends the waiting. */
function nextEvents(engine, reader, canAbandon) {
  return new Promise((resolve, reject) => {
    const to = number()
    const answer = (text) => {
      try {
        resolve(read(text).ok)
      } catch (error) {
        if (error.code === 'closed') resolve([])
        else reject(error)
      }
    }
    const text = attempt(() => engine.nextEvents(to, reader))
    if (text != null) return answer(text)
    canAbandon(() => {
      environment.abandon(to)
      forget(to)
      resolve([])
    })
    const handler = (message) => {
      forget(to)
      answer(message)
    }
    expect(to, handler, { keepsRunning: false })
  })
}

function fits(one, { event, tool, tenant }) {
  if (one.event === 'missed') return true
  return (
    (event === undefined || one.event === event) &&
    (tool === undefined || `${one.toolNamespace}/${one.toolName}` === tool) &&
    (tenant === undefined || one.tenantId === tenant)
  )
}

/** Returns the query of a path, or nothing. */
function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null)
  return given.length > 0 ? `?${new URLSearchParams(given)}` : ''
}

module.exports = { Steadfast, open, keyOf }

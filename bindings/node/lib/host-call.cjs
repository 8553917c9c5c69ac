'use strict'

/** Calls whose tool is a function of this program. */

const { AsyncLocalStorage } = require('node:async_hooks')
const { SteadfastError, CallError, OperationError, fromNative } = require('./errors.cjs')
const { attempt, expect, forget, number } = require('./port.cjs')

/** The answer of the native part if the function succeeded here, and there is nothing more to say. */
const OWN = '{"next":"own"}'
const OWN_ANSWER = Object.freeze({ next: 'own' })

/** One attempt, as the function learns of it. */
class Attempt {
  #call
  #token
  #controller

  constructor(call, { token, attempt, run, deadlineAtMs }) {
    this.#call = call
    this.#token = token
    this.attempt = attempt
    this.run = run
    this.deadlineAtMs = deadlineAtMs
  }

  get signal() {
    this.#controller ??= new AbortController()
    return this.#controller.signal
  }

  progress() {
    this.#call.engine.progress(this.#token)
  }

  /** Tells the function that its result is no longer wanted. */
  abort(reason) {
    this.#controller ??= new AbortController()
    this.#controller.abort(reason)
  }
}

/** Runs the functions of one call or turn when the engine orders it. */
class Runner {
  #to
  #attempts = new Map()
  #inContext

  /** `functionOf` finds the function and the arguments of an order; `succeeded` and `failed` make reports. */
  constructor(engine, { functionOf, succeeded, failed, ask, onAnswer }) {
    this.engine = engine
    this.functionOf = functionOf
    this.succeeded = succeeded
    this.failed = failed
    this.ask = ask
    this.onAnswer = onAnswer
    this.#to = number()
  }

  get to() {
    return this.#to
  }

  /** Handles the answer of the native part, and waits for its messages if there is none. */
  handle(text) {
    if (text != null) this.#take(text)
    else this.#wait()
  }

  #wait() {
    if (this.#inContext) return
    // What runs later runs in the context in which the call was made.
    this.#inContext = AsyncLocalStorage.snapshot()
    expect(this.#to, (message) => this.#inContext(() => this.#take(message)))
  }

  /** Ends the waiting for messages. */
  close() {
    if (this.#inContext) forget(this.#to)
    for (const running of this.#attempts.values()) running.abort(attemptEnded())
    this.#attempts.clear()
  }

  #take(text) {
    const message = text === OWN ? OWN_ANSWER : JSON.parse(text)
    if (message.run) return this.#start(message.run)
    if (message.abort !== undefined) return this.#abort(message.abort)
    if (message.prompt !== undefined || message.promptOver !== undefined) {
      this.#wait()
      return this.ask?.(message)
    }
    this.close()
    this.onAnswer(message)
  }

  #start(order) {
    const running = new Attempt(this, order)
    this.#attempts.set(order.token, running)
    let result
    let isThenable
    try {
      const { fn, args } = this.functionOf(order)
      result = fn(args, running)
      isThenable = typeof result?.then === 'function'
    } catch (error) {
      return this.#settle(order.token, this.failed(error))
    }
    if (isThenable) {
      // The engine may end the attempt meanwhile.
      this.#wait()
      Promise.resolve(result).then(
        (value) => this.#settle(order.token, this.succeeded(value)),
        (error) => this.#settle(order.token, this.failed(error)),
      )
    } else {
      this.#settle(order.token, this.succeeded(result))
    }
  }

  #settle(token, report) {
    this.#attempts.delete(token)
    const text = attempt(() => this.engine.settle(this.#to, token, report))
    this.handle(text)
  }

  #abort(token) {
    const running = this.#attempts.get(token)
    running?.abort(attemptEnded())
  }
}

function attemptEnded() {
  return new OperationError('the result of this attempt is no longer wanted', { code: 'attempt_ended' })
}

/** Answers requests for approval with a function of the program. */
function prompter(engine, approval) {
  if (typeof approval !== 'function') return undefined
  const open = new Map()
  return ({ prompt, promptOver, request }) => {
    if (promptOver !== undefined) {
      open.get(promptOver)?.abort(attemptEnded())
      open.delete(promptOver)
      return
    }
    const controller = new AbortController()
    open.set(prompt, controller)
    const decide = (decision) => {
      if (!open.delete(prompt)) return
      const text = decision === undefined || decision === null ? undefined : (decision.for ?? decision)
      engine.decide(prompt, typeof text === 'string' ? text : undefined)
    }
    Promise.resolve()
      .then(() => approval(request, { signal: controller.signal }))
      .then(decide, () => decide(undefined))
  }
}

/** Returns the error of a call that its caller cancelled before it was made. */
function cancelled(signal) {
  return new OperationError('the call was cancelled before it was made', { code: 'cancelled', cause: signal.reason })
}

/** Calls `cancel` when the signal aborts. Returns a function that ends that. */
function onAbort(signal, cancel) {
  if (!signal) return undefined
  signal.addEventListener('abort', cancel, { once: true })
  return () => signal.removeEventListener('abort', cancel)
}

module.exports = { Runner, prompter, cancelled, onAbort, SteadfastError, CallError, fromNative }

/** Before a call: the engine decides if the tool may run. */

import type { Approval, ApprovalDecision, CallContext, CallOptions, RunStep, Steadfast, Step } from 'steadfast-node'
import { engineOf, messageOf } from './engine.js'
import { loadSeams, type HostSeams } from './host.js'
import type { Log } from './log.js'
import type { Settings } from './settings.js'
import { addCall, callKey, removeCall, runOf, type OpenCall, type Shared } from './shared.js'
import { giveUp, stopStuckRun } from './runs.js'
import { answerText, IN_FLIGHT } from './texts.js'
import { isPromise, TimeLimitError, within } from './time.js'
import { hostClass, isCarrier, isUniqueId, toolRef } from './tools.js'

/** The event that the host sends to trusted tool policies, as far as it is used here. */
export interface BeforeEvent {
  readonly toolName: string
  readonly params: Record<string, unknown>
  readonly toolKind?: string
  readonly runId?: string
  readonly toolCallId?: string
}

export interface ToolContext {
  readonly agentId?: string
  readonly sessionKey?: string
  readonly sessionId?: string
  readonly runId?: string
  readonly toolCallId?: string
  readonly abortSignal?: AbortSignal
}

/** The answer to the host: run the tool (`undefined`), block it, or ask for approval. */
export type Decision =
  | undefined
  | { block: true, blockReason: string }
  | { requireApproval: ApprovalRequest }

export interface ApprovalRequest {
  /** The plugin that asks. The host fills it in for hooks, and not for trusted tool policies. */
  pluginId: 'steadfast'
  title: string
  description: string
  severity: 'info' | 'warning' | 'critical'
  timeoutMs: number
  allowedDecisions: ('allow-once' | 'allow-always' | 'deny')[]
  onResolution(resolution: string): void
}

/** What the steps of one call need. */
export interface Context {
  readonly state: Shared
  /** The settings in force. */
  readonly settings: Settings
  readonly host: HostSeams
  readonly log: Log
}

/** Returns the engine, once everything is there that a call needs. */
export function readyEngine({ state, host, log }: Context): Steadfast | Promise<Steadfast> {
  const engine = engineOf(state, log)
  return host.loaded ? engine : loadSeams(host, log).then(() => engine)
}

/** Decides about a call before it runs. Never throws: the host would block the call with a text of its own. */
export function beforeCall(context: Context, event: BeforeEvent, from: ToolContext): Decision | Promise<Decision> {
  const { settings } = context
  if (!settings.enabled) return undefined
  try {
    const call = describe(context, event, from)
    if (call.stage.at === 'carrier') return undefined
    if (call.carrier) call.carrier.carries = true
    const engine = readyEngine(context)
    if (!isPromise(engine)) return decide(context, call, engine)
    const opened = engine.then(open => decide(context, call, open))
    return within(settings.hookTimeoutMs, opened).catch(error => unavailable(context, call, error))
  } catch (error) {
    return unavailable(context, undefined, error)
  }
}

/** Begins the call with the engine and translates its answer. */
function decide(context: Context, call: OpenCall, engine: Steadfast): Decision | Promise<Decision> {
  try {
    const { prompt, asked } = approvalPrompt(context, call)
    const step = engine.begin(call.call, { ...call.options, approval: prompt })
    if (!isPromise(step)) return settle(context, call, engine, step)
    if (followsOpenCall(context.state, call)) {
      // The host prepares all calls of a message before it runs the first, so this one must not wait for another.
      giveUp(call)
      step.catch(() => undefined)
      return follower(context, call)
    }
    const settled = step.then(step => settle(context, call, engine, step))
    call.stage = { at: 'beginning', begun: settled.catch(() => undefined) }
    const first = Promise.race([settled, asked])
    return within(context.settings.hookTimeoutMs, first).catch(error => unavailable(context, call, error))
  } catch (error) {
    return unavailable(context, call, error)
  }
}

/** Translates a step of the engine. */
function settle(context: Context, call: OpenCall, engine: Steadfast, step: Step): Decision {
  if (call.stage.at === 'unguarded') {
    // The answer came too late, and the call runs without it.
    if (step.next === 'run') engine.giveBack(step)
    return undefined
  }
  if (step.next === 'run') return started(context, call, engine, step)
  if (context.settings.mode !== 'enforce') return unguarded(call)
  const run = runOf(context.state, call.runId)
  if (step.verdict === 'tool_error_limit') {
    run.limit = true
    if (canReplace(context, call)) {
      // A blocked call cannot end the loop, the result of a call can. This one may run any number of times.
      call.stage = { at: 'replaced', answer: step }
      return undefined
    }
  }
  call.stage = { at: 'blocked', answer: step }
  context.log.info(`blocked ${call.toolName}: ${step.result.error?.code ?? 'it has run before'}`)
  return { block: true, blockReason: answerText(step) }
}

/** Returns true if a refused call may run all the same, so that its result, the refusal, ends the loop. */
function canReplace({ state, host }: Context, call: OpenCall): boolean {
  // The result of a carrier ends the loop for the calls that it carries.
  return state.receivesResults && !call.carrier && host.isReplaySafe?.(call.toolName, call.call.args) === true
}

function started(context: Context, call: OpenCall, engine: Steadfast, step: RunStep): Decision {
  call.stage = { at: 'running', step }
  if (!context.state.receivesResults) {
    // This process reports no results. The call was checked, and is not followed.
    engine.giveBack(step)
    removeCall(context.state, call)
    return undefined
  }
  step.signal.addEventListener('abort', () => stopStuckRun(context, call, step), { once: true })
  return undefined
}

/** Blocks a call that would have to wait for an equal one. */
function follower(context: Context, call: OpenCall): Decision {
  if (context.settings.mode !== 'enforce') return unguarded(call)
  call.stage = { at: 'blocked', answer: undefined }
  context.log.info(`blocked ${call.toolName}: an equal call is in flight`)
  return { block: true, blockReason: IN_FLIGHT }
}

function unguarded(call: OpenCall): undefined {
  call.stage = { at: 'unguarded' }
  return undefined
}

/** The engine did not decide: it is not there, is too slow, or cannot read the call. */
function unavailable(context: Context, call: OpenCall | undefined, error: unknown): Decision {
  const { settings, log } = context
  log.warn(`${call?.toolName ?? 'a tool'} is not guarded: ${messageOf(error)}`)
  if (call) {
    giveUp(call)
    unguarded(call)
  }
  if (settings.failMode === 'open' || settings.mode !== 'enforce') return undefined
  const reason = error instanceof TimeLimitError ? error.message : 'see the log of OpenClaw'
  return {
    block: true,
    blockReason: `The tool was not run: Steadfast could not check the call (${reason}), and its failMode is "closed".`,
  }
}

// ── The call ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function describe(context: Context, event: BeforeEvent, from: ToolContext): OpenCall {
  const { state } = context
  const toolCallId = event.toolCallId ?? from.toolCallId ?? `unnamed-${++state.unnamed}`
  const runId = from.runId ?? event.runId ?? from.sessionId ?? ''
  const key = callKey(runId, toolCallId)
  const abort = new AbortController()
  from.abortSignal?.addEventListener('abort', () => abort.abort(from.abortSignal?.reason), { once: true })
  const call: OpenCall = {
    key, toolCallId, runId,
    sessionId: from.sessionId,
    sessionKey: from.sessionKey,
    toolName: event.toolName,
    call: {
      ...toolRef(event.toolName),
      args: event.params,
      callId: callIdOf(runId, toolCallId),
      ...callerOf(state, from, runId),
    },
    options: callOptions(context, event, abort.signal),
    abort,
    carrier: carrierOf(state, runId, toolCallId),
    stage: isCarrier(event.toolName, event.toolKind) ? { at: 'carrier' } : { at: 'beginning', begun: Promise.resolve() },
    approvals: 0,
    pulse: undefined,
    remarks: [],
    reports: [],
    carries: false,
  }
  addCall(state, call)
  return call
}

/** Returns the id of a call for the engine: unique in its session, also if the model numbers its calls from 1 in each run. */
function callIdOf(runId: string, toolCallId: string): string {
  return isUniqueId(toolCallId) ? toolCallId : `${runId}/${toolCallId}`.slice(-LONGEST_ID)
}

/** The engine accepts no longer ids, in bytes. */
const LONGEST_ID = 256

/** Returns who makes a call, as far as the host says. */
export function callerOf(state: Shared, from: ToolContext, runId: string): CallContext {
  const caller = {
    session: from.sessionKey ?? from.sessionId,
    turn: runId,
    model: state.runs.get(runId)?.model,
    agent: from.agentId,
  }
  return Object.fromEntries(Object.entries(caller).filter(([, value]) => value !== undefined && value !== ''))
}

function callOptions({ settings, host }: Context, event: BeforeEvent, signal: AbortSignal): CallOptions {
  const effect = settings.toolClasses[event.toolName]
    ?? (host.isReplaySafe?.(event.toolName, event.params) ? 'read_only' : hostClass(event.toolName))
  return {
    signal,
    canRepeat: false,
    annotations: {
      ...(effect === 'read_only' ? { readOnlyHint: true } : {}),
      ...(effect === 'idempotent' ? { idempotentHint: true } : {}),
      ...(effect === 'mutating' ? { destructiveHint: true } : {}),
    },
    equalCalls: effect === 'mutating' ? 'join' : 'separate',
  }
}

/** Returns the open call that carries this one. */
function carrierOf(state: Shared, runId: string, toolCallId: string): OpenCall | undefined {
  if (!toolCallId.startsWith('tool_search_code:')) return undefined
  const carriers = [...state.calls.values()].filter(call => call.runId === runId && call.stage.at === 'carrier')
  return carriers.find(carrier => toolCallId.startsWith(`tool_search_code:${idPart(carrier.toolCallId)}:`))
    ?? carriers.at(-1)
}

/** Writes the id of a carrier as the host does in the ids of the calls that it carries. */
function idPart(toolCallId: string): string {
  return toolCallId.trim().replace(/[^A-Za-z0-9_.:-]+/g, '_').slice(0, 120)
}

/** Returns true if the engine lets this call wait for an equal one that this host runs. */
function followsOpenCall(state: Shared, call: OpenCall): boolean {
  const text = JSON.stringify(call.call.args)
  return [...state.calls.values()].some(other =>
    other !== call && other.stage.at === 'running' && other.toolName === call.toolName
    && other.call.session === call.call.session && JSON.stringify(other.call.args) === text)
}

// ── Approval ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Returns a prompt for the engine, and a promise of the request for the host. The host asks its users, and its answer
 * goes back to the engine, which waits for it with the call.
 */
function approvalPrompt(context: Context, call: OpenCall) {
  const { promise: asked, resolve: ask } = Promise.withResolvers<Decision>()
  const prompt = (request: Approval): Promise<ApprovalDecision | undefined> => {
    const { promise, resolve } = Promise.withResolvers<ApprovalDecision | undefined>()
    ask({ requireApproval: approvalRequest(context, call, request, resolve) })
    return promise
  }
  return { prompt, asked }
}

function approvalRequest(
  { settings, log }: Context, call: OpenCall, request: Approval,
  resolve: (decision: ApprovalDecision | undefined) => void,
): ApprovalRequest {
  const lines = [request.prompt.summary, ...request.prompt.warnings, request.shown ?? '']
  return {
    pluginId: 'steadfast',
    title: cut(`Run ${call.toolName}?`, 80),
    description: cut(lines.filter(line => line !== '').join('\n'), 512),
    severity: request.prompt.level === 'critical' ? 'critical' : 'warning',
    timeoutMs: settings.trust.approvalSeconds * 1000,
    allowedDecisions: ['allow-once', 'allow-always', 'deny'],
    onResolution(resolution) {
      log.info(`approval of ${call.toolName}: ${resolution}`)
      resolve(DECISIONS[resolution])
    },
  }
}

/** Decisions of the host's users. Without one, the request is kept for an operator. */
const DECISIONS: Readonly<Record<string, ApprovalDecision | undefined>> = {
  'allow-once': 'once',
  'allow-always': 'session',
  deny: 'deny',
}

function cut(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`
}

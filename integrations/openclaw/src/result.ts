/** After a call that ran: its outcome is reported, and the model sees its result with the remarks of the engine. */

import type { Answered, AnswerStep, Report, Steadfast, Step } from 'steadfast-node'
import type { Context } from './before.js'
import { applySettings, messageOf } from './engine.js'
import { loadSeams } from './host.js'
import { giveUp } from './runs.js'
import { record } from './settings.js'
import { callKey, runOf, type OpenCall } from './shared.js'
import { failedResult, isFailed, isFromGateway, isUnknownTool, resultText, withRemarks, type ToolResult } from './texts.js'
import { isPromise, within } from './time.js'
import { serverOf } from './tools.js'

/** The event that the host sends to result middleware, as far as it is used here. */
export interface ResultEvent {
  readonly toolCallId: string
  readonly toolName: string
  readonly args: Record<string, unknown>
  readonly isError?: boolean
  readonly result: ToolResult
}

export interface ResultContext {
  readonly sessionId?: string
  readonly sessionKey?: string
  readonly runId?: string
}

/** The answer to the host: another result, or `undefined` for the tool's own. */
export type Rewritten = { result: ToolResult } | undefined

/** Reports a result. Never throws: the host would withhold the result from the model. */
export async function afterResult(context: Context, event: ResultEvent, from: ResultContext): Promise<Rewritten> {
  if (!context.settings.enabled) return undefined
  try {
    return await rewrite(context, event, from)
  } catch (error) {
    context.log.warn(`the result of ${event.toolName} was not reported: ${messageOf(error)}`)
    return undefined
  }
}

async function rewrite(context: Context, event: ResultEvent, from: ResultContext): Promise<Rewritten> {
  const { state, settings, host, log } = context
  state.middlewareSeen = true
  if (!host.loaded) await loadSeams(host, log)
  const runId = from.runId ?? from.sessionId ?? ''
  const call = state.calls.get(callKey(runId, event.toolCallId))
  const engine = state.engine.open
  if (!call || !engine) return undefined
  noteGateway(context, event)
  const outcome: Outcome = { result: event.result, failed: isFailed(host, event.result, event.isError) }
  if (call.stage.at === 'carrier') {
    await within(settings.hookTimeoutMs, Promise.allSettled(call.reports))
    if (!call.carries) countUnguarded(context, engine, call, outcome)
    call.stage = { at: 'reported' }
  } else if (call.stage.at === 'replaced') {
    return replaced(call, call.stage.answer)
  } else {
    await report(context, engine, call, outcome)
  }
  if (settings.mode !== 'enforce') return undefined
  const { limit } = runOf(state, runId)
  if (call.remarks.length === 0 && !limit) return undefined
  const result = withRemarks(event.result, call.remarks)
  return { result: limit ? { ...result, terminate: true } : result }
}

/** What a call ended with. */
export interface Outcome {
  readonly result: ToolResult
  readonly failed: boolean
}

/** Reports the outcome of a call to the engine. The remarks of the engine go to the result that the model sees. */
export async function report(context: Context, engine: Steadfast, call: OpenCall, outcome: Outcome): Promise<void> {
  // The engine may still wait for the approval that the host has already got.
  if (call.stage.at === 'beginning') await within(context.settings.hookTimeoutMs, call.stage.begun)
  const { stage } = call
  if (stage.at === 'reported' || stage.at === 'blocked') return
  call.stage = { at: 'reported' }
  clearInterval(call.pulse)
  if (stage.at === 'unguarded') return countUnguarded(context, engine, call, outcome)
  if (stage.at !== 'running') return
  if (outcome.failed && context.host.failureKind?.(outcome.result) === 'cancelled') {
    engine.cancel(stage.step)
    return
  }
  try {
    const step = engine.report(stage.step, reportOf(call, outcome))
    const ended: Step = isPromise(step) ? await within(context.settings.hookTimeoutMs, step) : step
    if (ended.next === 'answer') note(context, call, ended)
    else giveUp(call)
  } catch (error) {
    if (!TICKET_CODES.includes((error as { code?: unknown }).code)) throw error
    context.log.info(`the result of ${call.toolName} came too late: ${messageOf(error)}`)
  }
}

/** The attempt has ended for the engine: it took too long, or was cancelled. */
const TICKET_CODES: readonly unknown[] = ['no_such_call', 'not_this_attempt']

/** Keeps the engine's remarks for the result of the call, or of the call that carries it. */
function note({ state }: Context, call: OpenCall, { remarks, verdict }: AnswerStep | Answered): void {
  const target = call.carrier ?? call
  target.remarks.push(...remarks)
  if (verdict === 'tool_error_limit') runOf(state, call.runId).limit = true
}

function reportOf(call: OpenCall, { result, failed }: Outcome): Report {
  const content = resultText(result)
  if (!failed) return { output: { content } }
  const kind = serverOf(call.toolName) === undefined ? 'tool' : 'is_error'
  return { failure: { message: content, source: { kind } } }
}

/** Counts a call that ran without the engine. */
function countUnguarded(context: Context, engine: Steadfast, call: OpenCall, outcome: Outcome): void {
  note(context, call, engine.answered(call.call, answerOf(outcome), { annotations: call.options.annotations ?? {} }))
}

function answerOf({ result, failed }: Outcome): Parameters<Steadfast['answered']>[1] {
  const content = resultText(result)
  if (failed && isUnknownTool(record(result.details).error)) return { kind: 'unknown_tool', message: content }
  return failed ? { kind: 'failed', failure: { message: content } } : { kind: 'succeeded', output: { content } }
}

/** Replaces the result of a refused call by the refusal, and ends the loop with it: the model answers its user next. */
function replaced(call: OpenCall, answer: AnswerStep): Rewritten {
  call.stage = { at: 'reported' }
  return { result: { ...failedResult(answer.result.error?.message ?? ''), terminate: true } }
}

/** Remembers a server that turns out to be behind the gateway, which then has all mechanisms but guard and watchdog. */
function noteGateway({ state, settings, log }: Context, event: ResultEvent): void {
  const server = serverOf(event.toolName)
  if (server === undefined || settings.gatewayServers.includes(server) || state.gatewayServers.has(server)) return
  if (!isFromGateway(event.result)) return
  state.gatewayServers.add(server)
  log.info(`the MCP server ${server} is behind the gateway`)
  applySettings(state, log)
}

/**
 * After every call, also one that never ran: the host refused its arguments, does not know its tool, or did not run it.
 *
 * This is the only seam that sees those calls. It cannot change what the model sees, so the model is warned by a message,
 * and a run that goes on regardless is ended.
 */

import type { Answered, HostAnswer, Steadfast } from 'steadfast-node'
import { callerOf, readyEngine, type Context, type ToolContext } from './before.js'
import { messageOf } from './engine.js'
import { report, type Outcome } from './result.js'
import { end, warn, type RunMember } from './runs.js'
import { record } from './settings.js'
import { callKey, removeCall, runOf, type OpenCall } from './shared.js'
import { isFailed, isUnknownTool, type ToolResult } from './texts.js'
import { isPromise, within } from './time.js'
import { toolRef } from './tools.js'

/** The event that the host sends after a call, as far as it is used here. */
export interface OutcomeEvent {
  readonly toolName: string
  readonly params: Record<string, unknown>
  readonly runId?: string
  readonly toolCallId?: string
  readonly result?: unknown
  readonly error?: string
}

/** Takes note of the outcome of a call. Never throws. */
export async function afterCall(context: Context, event: OutcomeEvent, from: ToolContext): Promise<void> {
  if (!context.settings.enabled) return
  try {
    await takeNote(context, event, from)
  } catch (error) {
    context.log.warn(`a call of ${event.toolName} was not counted: ${messageOf(error)}`)
  }
}

async function takeNote(context: Context, event: OutcomeEvent, from: ToolContext): Promise<void> {
  const { state, settings } = context
  const runId = from.runId ?? event.runId ?? from.sessionId ?? ''
  const call = state.calls.get(callKey(runId, event.toolCallId ?? from.toolCallId ?? ''))
  if (!call && state.endedRuns.has(runId)) return
  const opening = readyEngine(context)
  const engine = isPromise(opening) ? await within(settings.hookTimeoutMs, opening) : opening
  if (!call) return count(context, engine, event, { ...from, runId })
  if (call.stage.at === 'beginning') await within(settings.hookTimeoutMs, call.stage.begun)
  if (call.carrier && hasRun(event)) {
    // There is no middleware for carried calls. The remarks go to the result of the carrier, which comes later.
    const reported = report(context, engine, call, outcomeOf(context, event))
    call.carrier.reports.push(reported)
    await reported
  }
  removeCall(state, call)
  const { stage } = call
  if (stage.at === 'carrier' && !call.carries) return count(context, engine, event, { ...from, runId })
  if (stage.at === 'blocked') return escalate(context, call, stage.answer?.verdict === 'tool_error_limit')
  if (stage.at === 'running') await withoutResult(context, engine, call, event)
}

// ── Calls that never ran ─────────────────────────────────────────────────────────────────────────────────────────────

/** Counts a call that the engine was not asked about. */
function count(context: Context, engine: Steadfast, event: OutcomeEvent, from: ToolContext & { runId: string }): void {
  const answer = answerOf(event)
  if (!answer) return
  const { state } = context
  const answered = engine.answered({
    ...toolRef(event.toolName),
    args: record(event.params),
    ...callerOf(state, from, from.runId),
    ...(event.toolCallId === undefined ? {} : { callId: event.toolCallId }),
  }, answer)
  const member: RunMember = { runId: from.runId, sessionId: from.sessionId, toolName: event.toolName }
  act(context, member, answered, `${event.toolName} ${JSON.stringify(event.params)}`)
}

/** Does what the engine says about a call that never ran. */
function act(context: Context, member: RunMember, { verdict, remarks }: Answered, loop: string): void {
  if (verdict === 'tool_error_limit') {
    runOf(context.state, member.runId).limit = true
    end(context, member)
  } else if (verdict === 'loop_detected') {
    warn(context, member, loop, remarks.join('\n'))
  }
}

/** Translates what the host did with a call by itself. Its sentences are the only sign of the reason. */
function answerOf({ error, result }: OutcomeEvent): HostAnswer | undefined {
  if (error === undefined) return { kind: 'succeeded' }
  const { status } = record(record(result).details)
  if (status === 'skipped' || error === 'Operation aborted') return undefined
  if (/^Validation failed for tool "/.test(error)) return { kind: 'invalid_arguments', message: error }
  if (isUnknownTool(error)) return { kind: 'unknown_tool', message: error }
  if (status === 'blocked') return { kind: 'denied', message: error }
  return { kind: 'failed', failure: { message: error } }
}

/**
 * The engine gave its permission, and no middleware has seen a result. So the host did not run the tool, because another
 * plugin, an approval or a new message prevented it. Or this runtime of the host has no middleware.
 */
async function withoutResult(context: Context, engine: Steadfast, call: OpenCall, event: OutcomeEvent): Promise<void> {
  if (call.stage.at !== 'running') return
  const { state, log } = context
  const wasRun = event.error === undefined || (!state.middlewareSeen && hasRun(event))
  if (!wasRun) {
    log.info(`${event.toolName} was not run: another plugin, an approval or the host prevented it`)
    engine.giveBack(call.stage.step)
    return
  }
  log.once('this runtime of OpenClaw shows its results to no plugin: they are counted, and get no remarks')
  await report(context, engine, call, outcomeOf(context, event))
  if (runOf(state, call.runId).limit) end(context, call)
}

/** A call was blocked at the limit. The model gets one chance to answer its user, and then its run is ended. */
function escalate(context: Context, call: OpenCall, limit: boolean): void {
  // The result of a carrier ends the loop.
  if (!limit || call.carrier) return
  const run = runOf(context.state, call.runId)
  if (run.blockedAtLimit) end(context, call)
  run.blockedAtLimit = true
}

// ── Carried calls ────────────────────────────────────────────────────────────────────────────────────────────────────

function hasRun({ result }: OutcomeEvent): boolean {
  const { status } = record(record(result).details)
  return status !== 'blocked' && status !== 'skipped'
}

function outcomeOf({ host }: Context, { result, error }: OutcomeEvent): Outcome {
  const known = result as ToolResult | undefined
  const content = Array.isArray(known?.content) ? known.content : [{ type: 'text', text: error ?? '' }]
  const shown: ToolResult = { ...known, content }
  return { result: shown, failed: error !== undefined || isFailed(host, shown, undefined) }
}

/** Runs of agents: warning the model, ending a run, and freeing one that is stuck. */

import type { RunStep } from 'steadfast-node'
import type { Context } from './before.js'
import { messageOf } from './engine.js'
import type { Log } from './log.js'
import { endRun, removeCall, runOf, type OpenCall, type Shared } from './shared.js'

/** Warns the model with a message, once for each loop. */
export function warn({ state, settings, host, log }: Context, call: RunMember, loop: string, text: string): void {
  const run = runOf(state, call.runId)
  if (settings.mode !== 'enforce' || run.warnings.has(loop) || call.sessionId === undefined) return
  run.warnings.add(loop)
  const accepted = host.steer?.(call.sessionId, text) ?? false
  log.info(`${accepted ? 'warned' : 'could not warn'} the model that its calls of ${call.toolName} loop`)
}

/** Ends the run at the limit of failures. */
export function end({ state, settings, host, log }: Context, call: RunMember): void {
  const run = runOf(state, call.runId)
  if (settings.mode !== 'enforce' || run.aborted || call.sessionId === undefined) return
  run.aborted = true
  const accepted = host.abort?.(call.sessionId) ?? false
  log.warn(`${accepted ? 'ended' : 'could not end'} a run: too many of its tool calls have failed`)
}

/** A call of a run. */
export interface RunMember {
  readonly runId: string
  readonly sessionId: string | undefined
  readonly toolName: string
}

/** How long the host may take to end a stuck run before it is cleared by force. */
const SETTLE_MS = 5000

/** Ends the run of a call whose attempt is no longer wanted: its tool has hung for longer than its time limit. */
export function stopStuckRun({ settings, host, log }: Context, call: OpenCall, step: RunStep): void {
  if (call.stage.at !== 'running' || call.stage.step !== step) return
  const code = (step.signal.reason as { code?: string } | undefined)?.code
  // A call that its own caller cancelled is on its way out.
  if (code === 'cancelled' || call.abort.signal.aborted) return
  call.stage = { at: 'reported' }
  if (settings.mode !== 'enforce' || call.sessionId === undefined) return
  log.warn(`${call.toolName} has hung for longer than its time limit; its run is ended`)
  const run = {
    sessionId: call.sessionId,
    ...(call.sessionKey === undefined ? {} : { sessionKey: call.sessionKey }),
    settleMs: SETTLE_MS,
    forceClear: true,
    reason: `steadfast: ${call.toolName} has hung`,
  }
  host.abortAndDrain?.(run).catch(error => log.warn(`the run of ${call.toolName} did not end: ${messageOf(error)}`))
}

/** Cancels a call that has not begun to run. */
export function giveUp(call: OpenCall): void {
  call.abort.abort()
}

/** Forgets a run that has ended. Calls whose end the host has not reported are cancelled: what they did is not known. */
export function forgetRun({ state }: Pick<Context, 'state'>, runId: string): void {
  endRun(state, runId)
  for (const call of state.calls.values()) {
    if (call.runId !== runId) continue
    removeCall(state, call)
    if (call.stage.at === 'beginning' || call.stage.at === 'running') giveUp(call)
  }
}

/** Takes note that a call waits for approval, or no longer does. The wait is no sign that it is stuck. */
export function pauseWatchdog({ state, log }: Context, call: OpenCall, change: 1 | -1): void {
  call.approvals = Math.max(0, call.approvals + change)
  clearInterval(call.pulse)
  if (call.approvals === 0) return
  call.pulse = setInterval(() => extend(state, call, log), PULSE_MS)
  call.pulse.unref()
}

/** Takes note that the tool of a call still runs. */
export function extend(state: Shared, call: OpenCall, log: Log): void {
  if (call.stage.at !== 'running') return
  try {
    state.engine.open?.heartbeat(call.stage.step)
  } catch (error) {
    clearInterval(call.pulse)
    log.info(`${call.toolName} is no longer watched: ${messageOf(error)}`)
  }
}

/** Shorter than the shortest time limit that can be set. */
const PULSE_MS = 500

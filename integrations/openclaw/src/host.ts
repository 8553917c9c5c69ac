/**
 * Functions of the host that not every version has. They are imported before the first call. One that is missing costs a
 * line in the log, and what it is for.
 */

import type { Log } from './log.js'

/** What the host can do beyond its plugin API. */
export interface HostSeams {
  /** The import, once it has begun. */
  loading?: Promise<void>
  /** True once it has ended. */
  loaded?: boolean
  /** Adds a message to a run. The model gets it with the next request. */
  steer?: (sessionId: string, text: string) => boolean
  /** Ends a run. */
  abort?: (sessionId: string) => boolean
  /** Ends a run, also if its tool does not react. */
  abortAndDrain?: (run: StuckRun) => Promise<unknown>
  /** Returns true if the call may run any number of times. */
  isReplaySafe?: (toolName: string, args: unknown) => boolean
  /** Returns true if the result is that of a failed call. */
  isErrorResult?: (result: unknown) => boolean
  /** Returns how a call failed: `cancelled`, `timed_out`, `blocked`, `failed`. */
  failureKind?: (result: unknown) => string | undefined
}

/** The functions that may be missing. */
type SeamName = Exclude<keyof HostSeams, 'loading' | 'loaded'>

export interface StuckRun {
  readonly sessionId: string
  readonly sessionKey?: string
  readonly settleMs?: number
  readonly forceClear?: boolean
  readonly reason?: string
}

const RUNTIME = 'openclaw/plugin-sdk/agent-harness-runtime'
const HARNESS = 'openclaw/plugin-sdk/agent-harness'

/** Each function: its name in the host, the modules that may have it, and what is lost without it. */
const SEAMS: readonly { as: SeamName, name: string, loss: string }[] = [
  { as: 'steer', name: 'queueAgentHarnessMessage', loss: 'the model is not warned about loops of calls that never ran' },
  { as: 'abort', name: 'abortAgentHarnessRun', loss: 'a run is not ended at the limit of failures' },
  { as: 'abortAndDrain', name: 'abortAndDrainAgentHarnessRun', loss: 'the watchdog frees no stuck run' },
  { as: 'isReplaySafe', name: 'isReplaySafeToolCall', loss: 'calls are classified by the names of tools alone' },
  { as: 'isErrorResult', name: 'isToolResultError', loss: 'only results that are marked as errors count as failures' },
  { as: 'failureKind', name: 'resolveToolResultFailureKind', loss: 'cancelled calls count as failures' },
]

/** Fills in what this host has. */
export function loadSeams(seams: HostSeams, log: Log): Promise<void> {
  return seams.loading ??= importSeams(seams, log)
}

async function importSeams(seams: HostSeams, log: Log): Promise<void> {
  const modules = await Promise.all([RUNTIME, HARNESS].map(name => importOf(name)))
  for (const { as, name, loss } of SEAMS) {
    const found = modules.map(module => module[name]).find(value => typeof value === 'function')
    if (found) Object.assign(seams, { [as]: found })
    else log.once(`this version of OpenClaw has no ${name}: ${loss}`)
  }
  seams.loaded = true
}

async function importOf(name: string): Promise<Record<string, unknown>> {
  try {
    return await import(name) as Record<string, unknown>
  } catch {
    return {}
  }
}

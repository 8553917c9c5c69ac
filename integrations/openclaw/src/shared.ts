/**
 * State that all instances of this plugin in one thread share.
 *
 * The host calls `register()` several times in one process, each time in a fresh instance of the modules, and the
 * instance that sees the beginning of a call need not be the one that sees its end. So nothing is kept in module
 * variables: everything is in one object, under a symbol that all instances know.
 */

import type { AnswerStep, Call, CallOptions, RunStep, Steadfast } from 'steadfast-node'
import type { HostSeams } from './host.js'
import type { MetricsServer } from './metrics.js'
import type { Settings } from './settings.js'

/** The version of the shape of {@link Shared}. Raise it when a field changes its meaning. */
const SHAPE = 1

/** State of the plugin in this thread. Plain data, so that code of any instance can use it. */
export interface Shared {
  /** The settings in force, of the newest registration. */
  settings: Settings | undefined
  engine: EngineSlot
  /** Functions of the host, which are the same for all instances. */
  readonly host: HostSeams
  /** Calls between their beginning and their end, by {@link callKey}. */
  calls: Map<string, OpenCall>
  /** Runs of agents with a call, the newest last. */
  runs: Map<string, AgentRun>
  /** Runs that have ended. What the host still reports of them does not count. */
  endedRuns: Set<string>
  /** Names of MCP servers that turned out to be behind the gateway. */
  gatewayServers: Set<string>
  /** Messages that are logged once. */
  logged: Set<string>
  /** True once the host has registered this plugin for a gateway or an agent, where results are reported. */
  receivesResults: boolean
  /** True once a result came through the middleware. Some runtimes of the host have none. */
  middlewareSeen: boolean
  metrics: MetricsServer | undefined
  /** Number of calls with an id made by the plugin, because the host gave none. */
  unnamed: number
}

/** The engine, before, while and after it opens. */
export interface EngineSlot {
  /** The open engine, for callers that cannot wait. */
  open: Steadfast | undefined
  /** The newest attempt to open or reconfigure it. */
  opening: Promise<Steadfast> | undefined
  /** The state file and the settings text that it was opened with. */
  stateFile: string | null | undefined
  text: string | undefined
}

/** A tool call of the host that has begun and not ended. */
export interface OpenCall {
  readonly key: string
  readonly toolCallId: string
  readonly runId: string
  readonly sessionId: string | undefined
  readonly sessionKey: string | undefined
  /** The name of the tool, as the host has it. */
  readonly toolName: string
  readonly call: Call
  readonly options: CallOptions
  /** Cancels the call. */
  readonly abort: AbortController
  /** The call of a tool that carries this call: the call of Tool Search, or the code that made it. */
  readonly carrier: OpenCall | undefined
  stage: CallStage
  /** The number of its open requests for approval. While there is one, it is not stuck. */
  approvals: number
  pulse: NodeJS.Timeout | undefined
  /** Remarks of carried calls, for the result of the carrier. */
  remarks: string[]
  /** Reports of carried calls. */
  reports: Promise<unknown>[]
  /** True once the call carried another one. */
  carries: boolean
}

/** How far a call has got. */
export type CallStage =
  /** The engine has not answered yet. */
  | { readonly at: 'beginning', readonly begun: Promise<unknown> }
  /** The host may run the tool, and reports the outcome. */
  | { readonly at: 'running', readonly step: RunStep }
  /** Blocked, with this answer of the engine if it has one. */
  | { readonly at: 'blocked', readonly answer: AnswerStep | undefined }
  /** Refused, but run all the same: its result is replaced by the refusal, which ends the turn with an answer. */
  | { readonly at: 'replaced', readonly answer: AnswerStep }
  /** Runs without the engine, which was not available. */
  | { readonly at: 'unguarded' }
  /** Carries other calls, which are guarded in its place. */
  | { readonly at: 'carrier' }
  /** The outcome was reported. */
  | { readonly at: 'reported' }

/** A run of an agent: the answer to one message of its user, which is a turn. */
export interface AgentRun {
  /** The model of the newest model call, as `provider/model`. */
  model: string | undefined
  /** True once the limit of failures was reached: results end the loop from now on. */
  limit: boolean
  /** True once a call was blocked because of the limit, so that the model had a chance to answer. */
  blockedAtLimit: boolean
  aborted: boolean
  /** Loops that the model was warned about. */
  warnings: Set<string>
}

/** Returns the state that all instances share. */
export function shared(): Shared {
  const all = globalThis as { [symbol: symbol]: Shared | undefined }
  return all[Symbol.for(`dev.steadfast.openclaw/${SHAPE}`)] ??= {
    settings: undefined,
    host: {},
    engine: { open: undefined, opening: undefined, stateFile: undefined, text: undefined },
    calls: new Map(),
    runs: new Map(),
    endedRuns: new Set(),
    gatewayServers: new Set(),
    logged: new Set(),
    receivesResults: false,
    middlewareSeen: false,
    metrics: undefined,
    unnamed: 0,
  }
}

/** Returns the key of a call. Ids of calls are unique in their run; some models number them from 1 in every run. */
export function callKey(runId: string, toolCallId: string): string {
  return `${runId}\n${toolCallId}`
}

/** The maximum number of runs that are remembered. Only runs whose end the host did not report are ever that old. */
const MOST_RUNS = 1000

/** The maximum number of open calls. Only calls whose end the host did not report are ever that old. */
const MOST_CALLS = 10_000

/** Returns the run with this id. */
export function runOf(state: Shared, runId: string): AgentRun {
  const known = state.runs.get(runId)
  if (known) return known
  const run: AgentRun = { model: undefined, limit: false, blockedAtLimit: false, aborted: false, warnings: new Set() }
  state.runs.set(runId, run)
  dropOldest(state.runs, MOST_RUNS)
  return run
}

/** Takes note that a run has ended. */
export function endRun(state: Shared, runId: string): void {
  state.runs.delete(runId)
  state.endedRuns.add(runId)
  dropOldest(state.endedRuns, MOST_RUNS)
}

/** Adds an open call. */
export function addCall(state: Shared, call: OpenCall): void {
  state.calls.set(call.key, call)
  dropOldest(state.calls, MOST_CALLS)
}

/** Removes a call that has ended. */
export function removeCall(state: Shared, call: OpenCall): void {
  clearInterval(call.pulse)
  state.calls.delete(call.key)
}

function dropOldest(all: Map<string, unknown> | Set<string>, most: number): void {
  if (all.size <= most) return
  const oldest = all.keys().next()
  if (!oldest.done) all.delete(oldest.value)
}

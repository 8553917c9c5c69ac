/**
 * Steadfast runs between an agent and its tools and makes tool calls reliable: idempotency, retries, circuit breakers,
 * loop detection, approval, timeouts.
 *
 * A program opens one {@link Steadfast} and either wraps its functions ({@link Steadfast.guard}) or, if it runs its tools
 * itself, brackets each run with {@link Steadfast.begin} and {@link Steadfast.report}.
 */

// ── Values ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** A value that `JSON.stringify` accepts. A `BigInt` or a cycle is an {@link InvalidCallError}. */
export type JsonValue = unknown

/** Milliseconds since the epoch, as `Date.now()` returns them. */
export type TimestampMs = number

/** The stable code of an error in a result. Each has a page in `docs/errors`. */
export type Code =
  | 'invalid_envelope' | 'unsupported_version' | 'invalid_arguments' | 'unknown_tool' | 'idempotency_conflict'
  | 'in_flight' | 'circuit_open' | 'overloaded' | 'retry_exhausted' | 'timeout' | 'deadline_exceeded'
  | 'loop_detected' | 'tool_error_limit' | 'approval_required' | 'approval_denied' | 'tool_blocked' | 'cancelled'
  | 'stuck_call' | 'outcome_unknown' | 'dependency_failed' | 'result_not_kept' | 'result_too_large'
  | 'store_unavailable' | 'upstream_unavailable' | 'tool_error'

/** The status of a call. */
export type CallStatus = 'success' | 'error' | 'retriable_error' | 'retry_exhausted' | 'circuit_open' | 'timeout'

/** The output of a tool. */
export interface ToolOutput {
  /** The result. */
  content: JsonValue
  /** Metadata beside the result. */
  metadata?: JsonValue
}

/** The error of a failed call, and its meaning for the next call. */
export interface ErrorBody {
  code: Code
  /** The description of the error, with the next thing to do. Written for the model. */
  message: string
  /** True if the same call may succeed later. */
  retriable: boolean
  /** True if the state of this call is final. */
  terminal: boolean
  /** The state of the tool's circuit breaker, if it affected the call. */
  breakerState?: BreakerState
  /** The name of the rule that decided. */
  rule?: string
  /** Instructions for checking if the call took effect, if the outcome is unknown. */
  verify?: string
  /** The time after which a retry is useful. */
  retryAfterMs?: number
  /** The reason why the outcome is unknown, if it is. */
  observed?: 'no_answer' | 'error_answer' | 'connection_lost' | 'process_died' | (string & {})
  /** True if the attempt can no longer take effect, if the outcome is unknown. */
  ended?: boolean
}

/** The result of a call. A failed tool is a result like any other. */
export interface ResultEnvelope {
  requestId: string
  status: CallStatus
  /** True if the result is that of another call: a replay. */
  fromCache: boolean
  cache?: { matchedOn: 'inflight' | 'completed', ageMs: number, keyFingerprint: string }
  toolName: string
  durationMs: number
  /** The number of attempts for this call. A replay and a refusal made none. */
  attempts: number
  /** The output of the tool, if any. A failed tool may have one too. */
  output?: ToolOutput
  /** The error, if the call failed. */
  error?: ErrorBody
  retriedBy?: { attempt: number, delayMs: number, reasonCode: string, latencyMs: number }[]
  /** `false` if the result could not be recorded, so a duplicate may run again. */
  recorded?: boolean
  escalated?: boolean
  turn?: string
}

// ── Opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The options of {@link open}. */
export interface OpenOptions {
  /**
   * The path of the state file (SQLite), created if it does not exist. `null` keeps the state in memory. By default, the
   * configuration decides; its default is the state file of the user.
   */
  stateFile?: string | null
  /** Settings, in the TOML format of `steadfast.toml`. They are stronger than files and the environment. */
  config?: string
  /** The path of a configuration file. It is followed: changes apply while the program runs. */
  configFile?: string
  /**
   * True to also read the user's file, `steadfast.toml` in the working folder, and `STEADFAST_*` variables. By default,
   * nothing is read that is not named here.
   */
  environment?: boolean
  /**
   * A name for state in memory. Within one process, `open` with the same name returns the same engine. Without a name,
   * every `open` in memory is an engine of its own. State files need no name: their path is one.
   */
  name?: string
  /**
   * What happens if the engine of this state file is already open in this process with other settings:
   * `'refuse'` (default) throws {@link OpenError} with the code `already_open`, `'join'` uses it as it is,
   * `'reconfigure'` replaces its settings as {@link Steadfast.reconfigure} does.
   */
  ifOpen?: 'refuse' | 'join' | 'reconfigure'
}

/**
 * Opens an engine. One state file has one engine in a process: module instances, worker threads and hot-reloaded plugins
 * that open the same file share it. Each `open` needs a `close`; the last one ends the engine. An engine that is still
 * open when the process exits is flushed.
 *
 * @throws {OpenError} if the configuration has errors, or the store cannot be opened.
 */
export function open(options?: OpenOptions): Promise<Steadfast>

/** The version of the package. */
export const version: string

// ── Calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Facts about the caller and the conversation of a call. */
export interface CallContext {
  /** The idempotency key: calls with the same key are the same call. */
  key?: string
  /**
   * The id that the model or host gave to this call. A resend with the same id gets the same result. It is unique in its
   * session; see {@link CallOptions.callIdScope}.
   */
  callId?: string
  /** The session. Idempotency keys and loop guards belong to a session. Default: `default`. */
  session?: string
  /** The turn of the assistant. Failures are counted by turn. */
  turn?: string
  /** The model that made the call, for scores and the failure log. */
  model?: string
  /** The agent that made the call. */
  agent?: string
  /** The user or account. Default: `default`. */
  actor?: string
  /** The tenant whose data the call uses. Tenants share no records, circuit breakers or trust. */
  tenant?: string
  workspace?: string
  /** Links the call to other records of the host. */
  correlation?: string
  /** The host or service that the tool depends on. By default it is derived from the arguments. */
  domain?: string
  /** Tags for logs. */
  tags?: string[]
  /** W3C trace context. */
  traceparent?: string
  baggage?: Record<string, string>
  /** The timeout of one attempt. It can only lower that of the tool. */
  timeoutMs?: number
  /** The time at which the call ends at the latest. */
  deadlineAtMs?: TimestampMs
  /** The maximum number of attempts, including the first one. It can only lower that of the tool. */
  maxAttempts?: number
  /** True if running the call twice does no harm. */
  retrySafe?: boolean
  /** True to refuse the call when it cannot be recorded. */
  safetyCritical?: boolean
}

/** A call. */
export interface Call extends CallContext {
  /** The tool: `namespace/name`, or the name alone if `namespace` is given. */
  tool: string
  namespace?: string
  /** The arguments: an object. Default: `{}`. */
  args?: object
}

/** Facts about a call that concern how this host makes it. */
export interface CallOptions {
  /** Cancels the call when it aborts. */
  signal?: AbortSignal
  /** MCP annotations of the tool. Settings of the operator are stronger. */
  annotations?: { readOnlyHint?: boolean, destructiveHint?: boolean, idempotentHint?: boolean }
  /** The JSON Schema of the arguments. With it, a model that got them wrong gets an explanation. */
  inputSchema?: object
  /**
   * False if the host cannot run the tool again: the call has one attempt, and `report` neither waits nor orders another
   * run. Default: true. Only for {@link Steadfast.begin}.
   */
  canRepeat?: boolean
  /**
   * Where approval is required: a function asks a user while the call waits; `'wait'` waits for an operator; `'refuse'`
   * (default) refuses at once with `approval_required`, and keeps the request for an operator.
   */
  approval?: 'refuse' | 'wait' | ApprovalPrompt
  /** The scope in which `callId` is unique. Default: `'session'`. */
  callIdScope?: 'session' | 'actor'
  /**
   * The handling of equal calls without a key or call id: each runs (`'separate'`, default), or one that arrives while
   * another is in flight gets its result (`'join'`).
   */
  equalCalls?: 'separate' | 'join'
}

/**
 * Asks a user for approval. `signal` aborts when the decision is no longer needed: another one came first, or the time is
 * up. A rejected promise, or `undefined`, means that nobody could be asked.
 */
export type ApprovalPrompt =
  (request: Approval, context: { signal: AbortSignal }) => Promise<ApprovalDecision | undefined>

/** The next action of the host. */
export type Step = RunStep | AnswerStep

/** Permission to run the tool once. Report the outcome with {@link Steadfast.report}. */
export interface RunStep {
  readonly next: 'run'
  /** The id of the call, in this process. */
  readonly id: number
  /** The number of the attempt, from 1. */
  readonly attempt: number
  /** The time at which the attempt counts as lost, unless the host sends heartbeats. */
  readonly deadlineAtMs?: TimestampMs
  /** An id of the run for upstreams that deduplicate: the same for every attempt. */
  readonly run: string
  /**
   * Aborts when the attempt is no longer wanted: it timed out, or its caller cancelled. Its reason is a
   * {@link SteadfastError}. It is created when it is first read.
   */
  readonly signal: AbortSignal
}

/** The response to the call. There is nothing to run. */
export interface AnswerStep {
  readonly next: 'answer'
  readonly result: ResultEnvelope
  /**
   * Remarks of the loop guard for the model, one paragraph each. The message of an error contains them already. They are
   * for hosts that pass the tool's own output on unchanged.
   */
  readonly remarks: readonly string[]
  /**
   * The verdict of the loop guard, with this answer. `loop_detected`: the model repeats a call that fails.
   * `tool_error_limit`: too many failures in this turn; end it.
   */
  readonly verdict: Verdict
  /** False is a promise: the call had no effect. */
  readonly mayHaveRun: boolean
}

export type Verdict = 'none' | 'loop_detected' | 'tool_error_limit'

/** The attempt that a report is about: the {@link RunStep}, or its two numbers. */
export type Ticket = Pick<RunStep, 'id' | 'attempt'>

/** The outcome of an attempt: exactly one of the three. */
export type Report =
  | { output: ToolOutput, failure?: undefined, inputRequired?: undefined }
  | { failure: Failure, output?: undefined, inputRequired?: undefined }
  /** The tool requires input before it has any effect. The call ends, and is made again with the input. */
  | { inputRequired: ToolOutput, output?: undefined, failure?: undefined }

/** A failure of a tool. */
export interface Failure {
  message: string
  /** The source of the failure. Default: the tool itself. */
  source?: FailureSource
  /** The delay after which the other side asked to be called again. */
  retryAfterMs?: number
  /** The output of the failed tool, unchanged. */
  output?: ToolOutput
}

/** The source of a failure. It decides, with the message, if the call may be repeated. */
export type FailureSource =
  /** The tool returned or threw an error. */
  | { kind: 'tool' }
  | { kind: 'http', status: number }
  | { kind: 'json_rpc', code: number }
  /** A result that is marked as an error, as MCP servers do. */
  | { kind: 'is_error' }
  | { kind: 'transport', error: TransportError, /** True if any of the request may have arrived. */ written: boolean }
  | { kind: 'web_socket', code: number }
  | { kind: 'exit', code?: number, signal?: number }
  | { kind: 'timeout', afterMs: number }
  | { kind: 'bad_answer' }

export type TransportError =
  | 'connection_refused' | 'connection_reset' | 'connection_closed' | 'timed_out' | 'name_not_found' | 'unreachable'
  | 'tls' | 'other'

/** The outcome of a call that the host answered itself, without asking {@link Steadfast.begin}. */
export type HostAnswer =
  /** The host refused the arguments: they violate the tool's schema. */
  | { kind: 'invalid_arguments', message: string }
  /** The tool does not exist. */
  | { kind: 'unknown_tool', message: string }
  /** The host, its user or another plugin denied the call. */
  | { kind: 'denied', message: string }
  /** The tool ran, or the host failed to run it. */
  | { kind: 'failed', failure: Failure }
  | { kind: 'succeeded', output?: ToolOutput }

/** The verdict of the loop guard about a call that the host answered itself. */
export interface Answered {
  /** As in {@link AnswerStep}. */
  verdict: Verdict
  /** The text for the model, with remarks of the guard. It is the host's own message if there are none. */
  text: string
  /** Remarks of the guard alone, one paragraph each. */
  remarks: string[]
}

// ── Guarded functions ────────────────────────────────────────────────────────────────────────────────────────────────

/** What a guarded function learns about its attempt. */
export interface Attempt {
  /** The number of the attempt, from 1. */
  readonly attempt: number
  /** An id of the run: the same for every attempt. A good idempotency key for an upstream that takes one. */
  readonly run: string
  readonly deadlineAtMs?: TimestampMs
  /** Aborts when the result is no longer wanted. Pass it to `fetch`. */
  readonly signal: AbortSignal
  /** Extends the timeout of this attempt. */
  progress(): void
}

/** A tool: any function. What it throws becomes a {@link Failure} by {@link toFailure}. */
export type ToolFunction<Args extends object = any, Result = any> =
  (args: Args, attempt: Attempt) => Result | Promise<Result>

/** The options of {@link Steadfast.guard}. */
export interface GuardOptions<Args extends object = any, Result = any>
  extends Omit<CallContext, 'key' | 'callId'>, Omit<CallOptions, 'canRepeat' | 'signal'> {
  namespace?: string
  /** Returns the idempotency key of a call, from its arguments. */
  key?: (args: Args) => string | undefined
  /** Converts the result to what is stored for replays. Default: the result itself, as JSON. */
  encode?: (result: Result) => JsonValue
  /** Converts what is stored to the result of a replay. Default: the parsed JSON. */
  decode?: (stored: any) => Result
  /** Converts what the function threw to a failure. Default: {@link toFailure}. */
  toFailure?: (error: unknown) => Failure
}

/** A function with the reliability of Steadfast. `context` belongs to this call and is stronger than the options. */
export type Guarded<Args extends object = any, Result = any> =
  (args: Args, context?: CallContext & { signal?: AbortSignal }) => Promise<Result>

/**
 * Converts an error of a tool to a failure:
 * `AbortError` and `TimeoutError`; errors of `fetch` and Node with a `code` (`ECONNREFUSED`, `ECONNRESET`, `ETIMEDOUT`,
 * `ENOTFOUND` …), here or in their `cause`; errors with an HTTP `status` or `statusCode`, with `Retry-After` from their
 * headers; JSON-RPC errors. Any other error is one of the tool itself, with its message.
 */
export function toFailure(error: unknown): Failure

/** An error by which a tool describes its failure exactly. Calls are repeated on the strength of it. */
export class ToolFailure extends Error {
  constructor(message: string, options?: Omit<Failure, 'message'> & { cause?: unknown })
  readonly failure: Failure
}

// ── Turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Several calls that depend on each other. */
export interface TurnPlan {
  turnId?: string
  /** The time that the turn may take. */
  deadlineMs?: number
  parallelism?: number
  calls: TurnCall[]
}

/** A call of a plan. `{"$from": "<id>", "path": "<JSON Pointer>"}` in its arguments stands for output of another call. */
export interface TurnCall {
  id: string
  tool: string | { namespace: string, tool: string }
  params?: object
  dependsOn?: (string | { id: string, default?: JsonValue })[]
  required?: boolean
  alternatives?: (string | { tool: string | { namespace: string, tool: string }, params?: object })[]
  timeoutMs?: number
}

/** The tools of a turn, by `namespace/name`. */
export type TurnTools = Record<string, ToolFunction | TurnTool>

/** A tool of a turn with its details. */
export interface TurnTool {
  run: ToolFunction
  annotations?: CallOptions['annotations']
  inputSchema?: object
}

export interface TurnOptions extends Pick<CallContext,
  'session' | 'model' | 'agent' | 'actor' | 'tenant' | 'workspace' | 'correlation' | 'domain' | 'tags' | 'traceparent'
  | 'baggage'> {
  signal?: AbortSignal
  approval?: 'refuse' | 'wait'
}

/** The result of a turn. */
export interface TurnResult {
  turnId?: string
  traceId: string
  status: 'completed' | 'partial' | 'failed'
  endedBy: 'finished' | 'deadline' | 'cancel'
  escalated: boolean
  /** One sentence for the user. */
  summary: string
  /** The calls, in the order of the plan, in the form of `POST /v1/turns`. */
  calls: any[]
  startedAtMs: TimestampMs
  endedAtMs: TimestampMs
}

// ── Operators ────────────────────────────────────────────────────────────────────────────────────────────────────────

export type BreakerState = 'CLOSED' | 'OPEN' | 'HALF_OPEN' | 'FORCED_OPEN'

/** The status of the engine, as of `GET /v1/status`. */
export interface Status {
  version: string
  atMs: TimestampMs
  verdict: 'fine' | 'attention' | 'trouble'
  findings: { level: 'trouble' | 'attention', what: string, todo: string }[]
  switches: Record<string, 'off' | 'shadow' | 'enforce'>
  store: { kind: 'memory' | 'sqlite' | 'redis' | (string & {}), trouble?: string, recordsLost?: any }
  counts: Record<string, number>
  domains: any[]
  tenants: string[]
}

/** A pending approval, as of `GET /v1/approvals`. */
export interface Approval {
  id: number
  tool: { namespace: string, tool: string }
  /** The digest of the arguments. */
  arguments: string
  signature: string
  /** True if the tool is blocked, so that only an operator can approve. */
  blocked: boolean
  prompt: {
    state: string, reason: string, failures: number, window: string, recoveryHint: string, summary: string,
    warnings: string[], level: string, formatHint: string, domain?: string,
  }
  /** The arguments, redacted, as far as they may be shown. */
  shown?: string
  session?: string
  askers: number
  askedAt: TimestampMs
  lastAsked: TimestampMs
  expires: TimestampMs
}

/** `once`: this call. `session`: equal calls in this session. `for`: equal calls for a time (`30m`). `recover`: this call, and the tool recovers trust from now on. */
export type ApprovalDecision = 'once' | 'session' | 'recover' | 'deny' | { for: string }

/** Whose data an operation concerns, and who makes a change, for the audit log. */
export interface OperatorOptions {
  /** The tenant. By default, data of no tenant. */
  tenant?: string
  /** The name of the operator. Default: `node`. */
  by?: string
}

/** An event: a line of the log at its most verbose level, redacted. */
export interface SteadfastEvent {
  /** The name of the event, as in the log. `missed` if the reader was too slow. */
  event: string
  /** The time, as ISO text. */
  time?: string
  level?: 'error' | 'warn' | 'info' | 'debug'
  /** The number of missed events, if `event` is `missed`. */
  missed?: number
  [field: string]: unknown
}

export interface EventFilter {
  event?: string
  /** `namespace/name`. */
  tool?: string
  tenant?: string
  /** Ends the iterator. */
  signal?: AbortSignal
}

/** Result of {@link Steadfast.close}. */
export interface Closed {
  /** True if other users of the engine remain, so that it goes on. */
  shared: boolean
  /** The number of calls that had to be ended. */
  ended: number
  /** The number of store operations that did not complete. */
  lost: number
}

// ── The engine ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** An open engine. */
export class Steadfast implements AsyncDisposable {
  private constructor()

  /** The path of the state file, or `null` if the state is in memory or in Redis. */
  readonly stateFile: string | null

  /**
   * Returns a function that makes calls of this tool. It resolves with what `fn` returned, or with the recorded result of
   * the same call.
   *
   * Its promise rejects with {@link CallError}: the tool failed for good, the call was refused, or its outcome is unknown.
   * `cause` is what `fn` threw last.
   */
  guard<Args extends object, Result>(
    tool: string, fn: ToolFunction<Args, Result>, options?: GuardOptions<Args, Result>,
  ): Guarded<Args, Result>

  /** Makes one call of a function, and resolves with the whole result, also if it is an error. */
  call<Args extends object>(call: Call & { args?: Args }, fn: ToolFunction<Args>, options?: CallOptions): Promise<AnswerStep>

  /**
   * Begins a call whose tool the host runs. Returns the step itself if nothing has to wait, else a promise of it; `await`
   * fits both.
   *
   * @throws {InvalidCallError} if the call is not valid. It leaves no record.
   */
  begin(call: Call, options?: CallOptions): Step | Promise<Step>

  /**
   * Reports the outcome of an attempt. Returns the answer, or the order to run the tool again; the backoff has passed
   * then.
   *
   * @throws {TicketError} if there is no such call (`no_such_call`), or the attempt has ended (`not_this_attempt`).
   */
  report(ticket: Ticket, report: Report): Step | Promise<Step>

  /**
   * Reports that the tool still runs, which extends the timeout of the attempt. Returns false if the result is no longer
   * wanted: stop if that is safe, and report.
   *
   * @throws {TicketError}
   */
  heartbeat(ticket: Ticket): boolean

  /**
   * Gives an order back: the host had it and did not run the tool, for example because another plugin blocked the call.
   * It counts for nothing. Returns false if there is no such call or attempt.
   */
  giveBack(ticket: Ticket): boolean

  /** Cancels a call on behalf of its caller. Returns false if there is no such call. */
  cancel(ticket: Pick<Ticket, 'id'>): boolean

  /**
   * Counts a call that the host answered itself: for the loop guard, trust, scores and the failure log. Nothing is claimed
   * or run.
   */
  answered(call: Call, answer: HostAnswer, options?: Pick<CallOptions, 'annotations' | 'inputSchema'>): Answered

  /** Runs several calls that depend on each other, and resolves at the deadline of the plan at the latest. */
  turn(plan: TurnPlan, tools: TurnTools, options?: TurnOptions): Promise<TurnResult>

  /** Returns the status, with problems and pending decisions. */
  status(): Promise<Status>

  /** Returns the pending approvals, oldest first. */
  approvals(options?: Pick<OperatorOptions, 'tenant'> & { session?: string, tool?: string }): Promise<Approval[]>

  /** Approves a pending request. Default: once. */
  approve(id: number, decision?: ApprovalDecision, options?: OperatorOptions): Promise<{ granted: boolean }>

  /** Denies a pending request. */
  deny(id: number, options?: OperatorOptions): Promise<{ granted: boolean }>

  /**
   * Sends a request to the HTTP API of this engine, in this process, with the rights of an operator. Everything that the
   * reference of the HTTP API describes is available, such as `api('GET', '/v1/breakers')`.
   *
   * @throws {OperationError} with the code of the response, if it is an error.
   */
  api(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, body?: object, options?: Pick<OperatorOptions, 'by'>): Promise<any>

  /** Closes a circuit breaker and clears its counts. `key`: `namespace/name`, or `dependency:name`. */
  resetBreaker(key: string, options?: OperatorOptions): Promise<any>

  /** Releases a session that the loop guard stops. Without a session: calls without one. */
  resetGuard(session?: string, options?: OperatorOptions): Promise<{ freed: number }>

  /** Restores trust in a tool, as `namespace/name`. */
  resetTrust(tool: string, options?: OperatorOptions): Promise<{ changes: any[] }>

  /** Follows the events, redacted as in the log. `for await (const event of steadfast.events()) …` */
  events(filter?: EventFilter): AsyncIterableIterator<SteadfastEvent>

  /** Returns the metrics in the Prometheus format. */
  metrics(): Promise<string>

  /**
   * Replaces the settings that the program passed to {@link open}, for all calls from now on. All or nothing.
   *
   * @throws {OpenError} with `problems` if the text has errors; the settings in force stay.
   */
  reconfigure(config: string): Promise<void>

  /** Returns the number of calls in flight. */
  inFlight(): number

  /**
   * Ends the use of the engine. The last `close` accepts no more calls, waits for those in flight for `graceMs` (default
   * 5000), and flushes. Closing again does nothing.
   */
  close(options?: { graceMs?: number }): Promise<Closed>

  [Symbol.asyncDispose](): Promise<void>
}

// ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Any error of this package. `instanceof` works across module instances, as long as they share a thread. */
export class SteadfastError extends Error {
  /** A stable code: one of {@link Code}, or one that the subclass names. */
  readonly code: string
  /** The name of the rule that decided. */
  readonly rule?: string
  /** The time after which a retry is useful. */
  readonly retryAfterMs?: number
  /** Instructions for checking if the call took effect. */
  readonly verify?: string
}

/** A call without a successful result. */
export class CallError extends SteadfastError {
  readonly code: Code
  /** True if the same call may succeed later. */
  readonly retriable: boolean
  /** True if it is unknown whether the call took effect. `verify` says how to find out. */
  readonly outcomeUnknown: boolean
  /** False is a promise: nothing happened. */
  readonly mayHaveRun: boolean
  readonly attempts: number
  readonly result: ResultEnvelope
  readonly remarks: readonly string[]
}

/** A call or report that is not valid: a name, arguments that are not JSON, an unknown field. Nothing was done. */
export class InvalidCallError extends SteadfastError {
  readonly code: 'invalid_envelope' | 'invalid_arguments' | 'invalid_report' | 'invalid_plan' | 'invalid_option'
}

/** A ticket that is not valid: `no_such_call` or `not_this_attempt`. */
export class TicketError extends SteadfastError {
  readonly code: 'no_such_call' | 'not_this_attempt'
}

/** The engine could not be opened or reconfigured. */
export class OpenError extends SteadfastError {
  readonly code: 'invalid_configuration' | 'store_unusable' | 'already_open' | 'open_failed' | (string & {})
  /** All errors of a configuration, with their positions. */
  readonly problems?: readonly string[]
}

/**
 * The operation was not done: `closed`, `cancelled`, `store_unavailable`, `not_found`, `conflict`, `in_flight`,
 * `overloaded`. As the reason of a signal: `attempt_ended`.
 */
export class OperationError extends SteadfastError {
  /** The HTTP status, if the operation has one. */
  readonly status?: number
}

/** A bug of Steadfast (`internal`). The process and the engine go on. */
export class InternalError extends SteadfastError {
  readonly code: 'internal'
}

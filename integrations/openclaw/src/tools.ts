/** The host's own tools: their names for the engine, and what is known about them. */

/** The effect of running a tool twice. */
export type ToolClass = 'read_only' | 'idempotent' | 'mutating' | 'unknown'

/** The namespace of the host's own tools and those of its plugins. */
export const HOST_NAMESPACE = 'openclaw'

/** What is known about a tool of the host. */
interface HostTool {
  readonly class?: ToolClass
  /** It waits for a user or another agent, so a long silence is normal. */
  readonly waits?: true
  /** It has many targets. One that fails says nothing about the others, so the tool has no circuit breaker. */
  readonly manyTargets?: true
}

const READ_ONLY: HostTool = { class: 'read_only' }
const MUTATING: HostTool = { class: 'mutating' }

const HOST_TOOLS: Readonly<Record<string, HostTool>> = {
  agents_list: READ_ONLY,
  agents_wait: { waits: true },
  apply_patch: { class: 'mutating', manyTargets: true },
  ask_user: { class: 'mutating', waits: true },
  bash: { manyTargets: true },
  browser: { manyTargets: true },
  code_execution: { manyTargets: true },
  conversations_list: READ_ONLY,
  conversations_send: { class: 'mutating', manyTargets: true },
  conversations_turn: { class: 'mutating', manyTargets: true, waits: true },
  create_goal: MUTATING,
  edit: { class: 'mutating', manyTargets: true },
  exec: { manyTargets: true },
  find: READ_ONLY,
  get_goal: READ_ONLY,
  glob: READ_ONLY,
  grep: READ_ONLY,
  image_generate: MUTATING,
  ls: READ_ONLY,
  memory_get: READ_ONLY,
  memory_search: READ_ONLY,
  message: { class: 'mutating', manyTargets: true },
  music_generate: MUTATING,
  nodes: { manyTargets: true },
  pdf: { class: 'read_only', manyTargets: true },
  process: { manyTargets: true },
  read: { class: 'read_only', manyTargets: true },
  secrets: { waits: true },
  sessions_history: READ_ONLY,
  sessions_list: READ_ONLY,
  sessions_search: READ_ONLY,
  sessions_send: { class: 'mutating', manyTargets: true, waits: true },
  sessions_spawn: { class: 'mutating', waits: true },
  subagents: { waits: true },
  terminal: { manyTargets: true },
  tool_describe: READ_ONLY,
  tool_search: READ_ONLY,
  update_goal: { class: 'idempotent' },
  video_generate: MUTATING,
  view_image: { class: 'read_only', manyTargets: true },
  wait: { waits: true },
  web_fetch: { class: 'read_only', manyTargets: true },
  web_search: READ_ONLY,
  write: { class: 'idempotent', manyTargets: true },
  x_search: READ_ONLY,
}

/** Tools that make calls of other tools. Those are guarded, and not the carrier as well. */
const CARRIERS: ReadonlySet<string> = new Set(['tool_call', 'tool_search_code'])

/** Returns true if calls of this tool carry calls of other tools. */
export function isCarrier(toolName: string, toolKind: string | undefined): boolean {
  return CARRIERS.has(toolName) || toolKind === 'code_mode_exec'
}

/** Returns the name of a tool for the engine: tools of MCP servers are named as behind the gateway. */
export function toolRef(toolName: string): { namespace: string, tool: string } {
  const server = serverOf(toolName)
  return server === undefined
    ? { namespace: HOST_NAMESPACE, tool: toolName }
    : { namespace: server, tool: toolName.slice(server.length + SEPARATOR.length) }
}

/** Between the name of an MCP server and that of its tool. */
const SEPARATOR = '__'

/** Returns the MCP server of a tool. */
export function serverOf(toolName: string): string | undefined {
  const at = toolName.indexOf(SEPARATOR)
  return at > 0 && at + SEPARATOR.length < toolName.length ? toolName.slice(0, at) : undefined
}

/** Returns the class of a tool of the host, if it always has the same. */
export function hostClass(toolName: string): ToolClass | undefined {
  return HOST_TOOLS[toolName]?.class
}

/** Returns the tools that wait for a user or another agent. */
export function waitingTools(): string[] {
  return names(tool => tool.waits === true)
}

/** Returns the tools with many targets. */
export function toolsWithManyTargets(): string[] {
  return names(tool => tool.manyTargets === true)
}

function names(applies: (tool: HostTool) => boolean): string[] {
  return Object.entries(HOST_TOOLS).filter(([, tool]) => applies(tool)).map(([name]) => name)
}

/**
 * Returns true if the id of a call is not used for another call of the same conversation. Most models draw ids at
 * random. Some count: `call_1`, `functions.read:0`.
 */
export function isUniqueId(toolCallId: string): boolean {
  // A call that Tool Search carries: `tool_search_code:<id of the carrier>:<tool>:<number>`.
  const carried = /^tool_search_code:(.+):[^:]+:\d+$/.exec(toolCallId)
  const id = carried?.[1] ?? toolCallId
  return id.length >= SHORTEST_RANDOM_ID && !/[^A-Za-z0-9]\d{1,6}$/.test(id)
}

const SHORTEST_RANDOM_ID = 16

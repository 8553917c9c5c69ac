/** The settings of the plugin, and their translation to the configuration of the engine. */

import { homedir } from 'node:os'
import { basename, isAbsolute, join, resolve } from 'node:path'
import { HOST_NAMESPACE, serverOf, toolRef, toolsWithManyTargets, waitingTools, type ToolClass } from './tools.js'

export type Mode = 'off' | 'shadow' | 'enforce'

/** Complete settings. The manifest has their descriptions and the same defaults. */
export interface Settings {
  /** False: nothing is done. */
  readonly enabled: boolean
  readonly mode: Mode
  readonly maxIdenticalFailures: number
  readonly maxFailuresPerTurn: number
  readonly logPath: string
  /** The path of the state file. `null` keeps the state in memory. */
  readonly stateFile: string | null
  /** Classes by name of the tool, as the host has it. */
  readonly toolClasses: Readonly<Record<string, ToolClass>>
  readonly watchdog: {
    /** 0: none. */
    readonly seconds: number
    readonly tools: Readonly<Record<string, number>>
  }
  readonly breaker: { readonly mode: Mode | undefined }
  readonly trust: {
    readonly mode: Mode | undefined
    readonly approval: 'never' | 'escalated' | 'always'
    readonly dangerous: 'record' | 'ask'
    readonly approvalSeconds: number
  }
  readonly failMode: 'open' | 'closed'
  readonly hookTimeoutMs: number
  readonly gatewayServers: readonly string[]
  readonly metricsAddress: { readonly host: string, readonly port: number } | undefined
  readonly configFile: string | undefined
}

/** Facts about the host that settings depend on. */
export interface HostFacts {
  /** The folder where the host keeps its state. */
  readonly stateDir: string
  /** The MCP servers in the configuration of the host. */
  readonly mcpServers: Readonly<Record<string, unknown>>
  readonly environment: NodeJS.ProcessEnv
}

/** The name of the file with malformed and looping calls, in the folder of the plugin's state. */
const LOG_FILE = 'malformed-calls.jsonl'

/** Returns complete settings. The host has checked them against the schema in the manifest. */
export function readSettings(written: unknown, host: HostFacts): Settings {
  const from = record(written)
  const watchdog = record(from.watchdog)
  const trust = record(from.trust)
  const folder = join(host.stateDir, 'steadfast')
  return {
    enabled: from.enabled !== false && from.mode !== 'off' && !isOff(host.environment.TOOL_RELIABILITY_ENABLED),
    mode: mode(from.mode) ?? 'enforce',
    maxIdenticalFailures: atLeast(1, from.maxIdenticalFailures) ?? 2,
    maxFailuresPerTurn: atLeast(1, from.maxFailuresPerTurn) ?? 5,
    logPath: path(from.logPath) ?? join(folder, LOG_FILE),
    stateFile: from.stateFile === ':memory:' ? null : path(from.stateFile) ?? join(folder, 'state.db'),
    toolClasses: numbersOrNames(from.toolClasses, toolClass),
    watchdog: {
      seconds: atLeast(0, watchdog.seconds) ?? 600,
      tools: numbersOrNames(watchdog.tools, value => atLeast(0, value)),
    },
    breaker: { mode: mode(record(from.breaker).mode) },
    trust: {
      mode: mode(trust.mode),
      approval: oneOf(['never', 'escalated', 'always'] as const, trust.approval) ?? 'escalated',
      dangerous: oneOf(['record', 'ask'] as const, trust.dangerous) ?? 'ask',
      approvalSeconds: atLeast(1, trust.approvalSeconds) ?? 120,
    },
    failMode: oneOf(['open', 'closed'] as const, from.failMode) ?? 'open',
    hookTimeoutMs: atLeast(1, from.hookTimeoutMs) ?? 2000,
    gatewayServers: [...new Set([...texts(from.gatewayServers), ...serversBehindGateway(host.mcpServers)])],
    metricsAddress: address(from.metricsAddress),
    configFile: path(from.configFile),
  }
}

/** The settings that the older plugin tool-guard has in common with this one. */
const SHARED_SETTINGS = ['maxIdenticalFailures', 'maxFailuresPerTurn', 'logPath'] as const

/**
 * Adds settings of the older plugin tool-guard to those of this plugin, which are stronger. So its users keep their
 * limits.
 */
export function withOlderSettings(written: unknown, plugins: unknown): Record<string, unknown> {
  const older = record(record(record(record(plugins).entries)['tool-guard']).config)
  const taken = SHARED_SETTINGS.filter(name => older[name] !== undefined).map(name => [name, older[name]])
  return { ...Object.fromEntries(taken), ...record(written) }
}

/** `false`, `0`, `off` and `no` are equal, as for the other surfaces of Steadfast. */
function isOff(value: string | undefined): boolean {
  return value !== undefined && ['false', '0', 'off', 'no'].includes(value.trim().toLowerCase())
}

/** Returns the configuration of the engine, in the format of `steadfast.toml`. */
export function configText(settings: Settings, gatewayServers: Iterable<string>): string {
  const tools = new ToolTables()
  for (const name of toolsWithManyTargets()) tools.set(name, 'breaker.mode', text('off'))
  for (const name of waitingTools()) tools.set(name, 'timeout', text(LONGEST))
  for (const [name, effect] of Object.entries(settings.toolClasses)) tools.set(name, 'class', text(effect))
  for (const [name, seconds] of Object.entries(settings.watchdog.tools)) tools.set(name, 'timeout', limit(seconds))
  for (const server of new Set([...settings.gatewayServers, ...gatewayServers])) {
    // The gateway has these mechanisms itself, with retries and true replays.
    for (const mechanism of ['dedupe', 'breaker', 'trust']) {
      tools.set(`${server}__*`, `${mechanism}.mode`, text('off'))
    }
  }
  const { trust, breaker } = settings
  return [
    line('mode', text(settings.mode)),
    line('timeout', limit(settings.watchdog.seconds)),
    line('total_timeout', text(LONGEST)),
    line('approval', text(trust.approval)),
    line('dangerous', text(trust.dangerous)),
    // A little longer than the host waits, so that the host's answer counts.
    line('approval_timeout', text(`${trust.approvalSeconds + 5}s`)),
    line('guard.identical', settings.maxIdenticalFailures),
    line('guard.per_turn', settings.maxFailuresPerTurn),
    ...(trust.mode === undefined ? [] : [line('trust.mode', text(trust.mode))]),
    ...(breaker.mode === undefined ? [] : [line('breaker.mode', text(breaker.mode))]),
    line('metrics.namespace', text(HOST_NAMESPACE)),
    line('log.malformed_calls', text(settings.logPath)),
    ...tools.lines(),
  ].join('\n') + '\n'
}

/** The time limit of tools without a watchdog. */
const LONGEST = '24h'

function limit(seconds: number): string {
  return text(seconds === 0 ? LONGEST : `${seconds}s`)
}

/** Policies of tools. A table may be written only once. */
class ToolTables {
  readonly #tables = new Map<string, Map<string, string>>()

  /** Sets a value for a tool, by its name in the host. Later values replace earlier ones. */
  set(name: string, key: string, value: string): void {
    const { namespace, tool } = toolRef(name)
    const header = `${namespace}/${tool}`
    const table = this.#tables.get(header) ?? new Map<string, string>()
    table.set(key, value)
    this.#tables.set(header, table)
  }

  lines(): string[] {
    return [...this.#tables].flatMap(([tool, table]) =>
      ['', `[tools.${text(tool)}]`, ...[...table].map(([key, value]) => line(key, value))])
  }
}

function line(key: string, value: string | number): string {
  return `${key} = ${value}`
}

/** Returns a TOML string. Its escapes include those of JSON. */
function text(value: string): string {
  return JSON.stringify(value).replaceAll('\u007f', '\\u007f')
}

/** Returns the MCP servers that run `steadfast wrap` or `steadfast serve`. */
function serversBehindGateway(servers: HostFacts['mcpServers']): string[] {
  return Object.entries(servers).filter(([, server]) => isGateway(record(server))).map(([name]) => name)
}

function isGateway(server: Record<string, unknown>): boolean {
  const command = typeof server.command === 'string' ? server.command : ''
  const first = Array.isArray(server.args) ? server.args.find(arg => typeof arg === 'string' && !arg.startsWith('-')) : ''
  return /^steadfast(\.exe)?$/.test(basename(command)) && (first === 'wrap' || first === 'serve')
}

/** Returns true if an MCP server is behind the gateway. */
export function isBehindGateway(settings: Settings, found: ReadonlySet<string>, toolName: string): boolean {
  const server = serverOf(toolName)
  return server !== undefined && (settings.gatewayServers.includes(server) || found.has(server))
}

// ── Values ───────────────────────────────────────────────────────────────────────────────────────────────────────────

export function record(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value as Record<string, unknown> : {}
}

function oneOf<T extends string>(names: readonly T[], value: unknown): T | undefined {
  return names.find(name => name === value)
}

function mode(value: unknown): Mode | undefined {
  return oneOf(['off', 'shadow', 'enforce'], value)
}

function toolClass(value: unknown): ToolClass | undefined {
  return oneOf(['read_only', 'idempotent', 'mutating', 'unknown'], value)
}

function atLeast(least: number, value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) && value >= least ? Math.trunc(value) : undefined
}

function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter(item => typeof item === 'string') : []
}

function numbersOrNames<T>(value: unknown, read: (value: unknown) => T | undefined): Record<string, T> {
  const entries = Object.entries(record(value)).map(([name, written]) => [name, read(written)] as const)
  return Object.fromEntries(entries.filter((entry): entry is readonly [string, T & {}] => entry[1] !== undefined))
}

/** Returns an absolute path. `~` is the home folder. */
function path(value: unknown): string | undefined {
  if (typeof value !== 'string' || value === '') return undefined
  if (value === '~' || value.startsWith('~/')) return join(homedir(), value.slice(1))
  return isAbsolute(value) ? value : resolve(value)
}

function address(value: unknown): Settings['metricsAddress'] {
  const parts = typeof value === 'string' ? /^(?:\[([^\]]+)\]|([^:]*)):(\d{1,5})$/.exec(value) : null
  const port = Number(parts?.[3])
  return parts && port <= 65_535 ? { host: (parts[1] ?? parts[2]) || '127.0.0.1', port } : undefined
}

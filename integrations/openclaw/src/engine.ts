/** The engine: one for the process, opened at the first call, and changed when the settings change. */

import { mkdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Steadfast } from 'steadfast-node'
import type { Log } from './log.js'
import { configText } from './settings.js'
import type { Shared } from './shared.js'

/** Returns the open engine, or a promise of it. The promise rejects if the engine cannot be opened. */
export function engineOf(state: Shared, log: Log): Steadfast | Promise<Steadfast> {
  const { engine } = state
  return engine.open ?? engine.opening ?? reopen(state, log)
}

/**
 * Applies the settings in force: opens the engine, changes its configuration, or replaces it if the state file is another
 * one. If the settings have errors, the engine keeps those that it has.
 */
export function applySettings(state: Shared, log: Log): void {
  // The first call opens it. A process that only lists its plugins opens nothing.
  if (!state.engine.opening) return
  reopen(state, log).catch(error => log.warn(`the new settings are not in force: ${messageOf(error)}`))
}

function reopen(state: Shared, log: Log): Promise<Steadfast> {
  const { engine } = state
  const before = engine.opening
  // One after the other: each starts with what the one before has left.
  const opening = (async () => {
    await before?.catch(() => undefined)
    return await open(state, log)
  })()
  engine.opening = opening
  opening.catch(() => {
    // The next call tries again.
    if (engine.opening === opening) engine.opening = undefined
  })
  return opening
}

async function open(state: Shared, log: Log): Promise<Steadfast> {
  const { engine, settings } = state
  if (!settings) throw new Error('the plugin is not registered')
  const text = configText(settings, state.gatewayServers)
  if (engine.open && engine.stateFile === settings.stateFile) {
    if (engine.text !== text) await engine.open.reconfigure(text)
    engine.text = text
    return engine.open
  }
  const { open: openEngine } = await import('steadfast-node')
  await mkdir(dirname(settings.logPath), { recursive: true })
  if (settings.stateFile !== null) await mkdir(dirname(settings.stateFile), { recursive: true, mode: 0o700 })
  const opened = await openEngine({
    stateFile: settings.stateFile,
    name: 'openclaw',
    config: text,
    ifOpen: 'reconfigure',
    ...(settings.configFile === undefined ? {} : { configFile: settings.configFile }),
  })
  const replaced = engine.open
  Object.assign(engine, { open: opened, stateFile: settings.stateFile, text })
  log.info(`guards tool calls (mode ${settings.mode}, state ${settings.stateFile ?? 'in memory'})`)
  replaced?.close().catch(error => log.warn(`the former engine did not close: ${messageOf(error)}`))
  return opened
}

/** Returns the message of an error, with all problems of a configuration. */
export function messageOf(error: unknown): string {
  const problems = (error as { problems?: readonly string[] } | undefined)?.problems ?? []
  return [error instanceof Error ? error.message : String(error), ...problems].join('\n  ')
}

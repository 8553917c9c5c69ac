/** The OpenClaw plugin of Steadfast. */

import { definePluginEntry, type OpenClawPluginApi } from 'openclaw/plugin-sdk/plugin-entry'
import { beforeCall, readyEngine, type Context } from './before.js'
import { runCommand, USAGE } from './command.js'
import { applySettings, engineOf, messageOf } from './engine.js'
import { logTo } from './log.js'
import { applyMetrics, stopMetrics } from './metrics.js'
import { afterCall } from './outcome.js'
import { afterResult } from './result.js'
import { extend, forgetRun, pauseWatchdog } from './runs.js'
import { readSettings, record, withOlderSettings } from './settings.js'
import { runOf, shared } from './shared.js'

export default definePluginEntry({
  id: 'steadfast',
  name: 'Steadfast',
  description: 'Ends tool loops, prevents duplicate calls, and frees sessions from hung tools',
  register,
})

function register(api: OpenClawPluginApi): void {
  if (!ACTIVE_MODES.includes(api.registrationMode)) return
  const state = shared()
  const log = logTo(api.logger, state)
  const settings = readSettings(withOlderSettings(api.pluginConfig, record(api.config).plugins), {
    stateDir: api.runtime.state.resolveStateDir(process.env),
    mcpServers: record(record(record(api.config).mcp).servers),
    environment: process.env,
  })
  state.settings = settings
  // Without any registration, parameters and results are byte for byte as without the plugin.
  if (!settings.enabled) return stopMetrics(state)
  state.receivesResults ||= api.registrationMode === 'full'
  applySettings(state, log)
  // The host goes on using the middleware of an older instance. So settings are those of the newest one.
  registerSeams(api, { state, host: state.host, log, get settings() { return state.settings ?? settings } })
}

/** Ways in which the host registers a plugin whose hooks it then uses. */
const ACTIVE_MODES: readonly string[] = ['full', 'discovery', 'tool-discovery']

/** Registers everything that the host has. What it lacks costs one line in the log, and that feature. */
function registerSeams(api: OpenClawPluginApi, context: Context): void {
  const { state, log } = context
  const seam = (name: string, loss: string, add: () => void) => {
    try {
      add()
    } catch (error) {
      log.once(`this version of OpenClaw has no ${name} (${messageOf(error)}): ${loss}`)
    }
  }
  seam('trusted tool policies', 'no call is blocked before it runs', () => api.registerTrustedToolPolicy({
    id: 'steadfast',
    description: 'Blocks calls that loop, that run already, or whose tool is failing, and asks for approval',
    evaluate: (event, ctx) => beforeCall(context, event, ctx),
  }))
  seam('result middleware', 'results get no remarks', () => api.registerAgentToolResultMiddleware(
    async (event, ctx) => await afterResult(context, event, ctx) as Awaited<ReturnType<ResultMiddleware>>,
    { runtimes: ['openclaw', 'codex'] },
  ))
  seam('hooks', 'calls that never ran do not count, and the model is not named in the log', () => {
    api.on('after_tool_call', (event, ctx) => afterCall(context, event, ctx))
    api.on('model_call_started', ({ runId, provider, model }) => {
      // A run that failed may be tried again under its id.
      state.endedRuns.delete(runId)
      runOf(state, runId).model = `${provider}/${model}`
    })
    api.on('gateway_start', () => start(context))
    // The engine stays open: the host also stops an instance that it replaces while calls are in flight. What is not
    // written yet is written when the process ends.
    api.on('gateway_stop', () => stopMetrics(state))
  })
  seam('agent events', 'the watchdog does not know that a call waits for approval', () =>
    api.agent.events.registerAgentEventSubscription({
      id: 'steadfast',
      description: 'Follows the ends of runs, approvals, and the output of commands',
      streams: ['lifecycle', 'approval', 'command_output'],
      handle: event => follow(context, event),
    }))
  seam('commands', 'operators have no /steadfast', () => api.registerCommand({
    name: 'steadfast',
    description: 'Status, approvals and resets of Steadfast',
    acceptsArgs: true,
    requiredScopes: ['operator.admin'],
    handler: async ({ args, sessionKey, senderId }) => ({ text: await answer(context, args ?? '', sessionKey, senderId) }),
  }))
}

async function answer({ state, log }: Context, args: string, session?: string, sender?: string): Promise<string> {
  try {
    return await runCommand(await engineOf(state, log), args, { by: `openclaw:${sender ?? 'operator'}`, session })
  } catch (error) {
    return `${messageOf(error)}\n\n${USAGE}`
  }
}

type ResultMiddleware = Parameters<OpenClawPluginApi['registerAgentToolResultMiddleware']>[0]

async function start(context: Context): Promise<void> {
  const { state, log } = context
  applyMetrics(state, log)
  try {
    await readyEngine(context)
  } catch (error) {
    log.warn(`tool calls are not guarded: ${messageOf(error)}`)
  }
}

/** Follows an event of a run. */
function follow(context: Context, { runId, stream, data }: { runId: string, stream: string, data: unknown }): void {
  const { state, log } = context
  const { phase, toolCallId } = record(data)
  if (stream === 'lifecycle') {
    if (phase === 'end' || phase === 'error') forgetRun(context, runId)
    return
  }
  const call = [...state.calls.values()].find(call => call.runId === runId && call.toolCallId === toolCallId)
  if (!call) return
  if (stream === 'command_output') extend(state, call, log)
  else if (phase === 'requested') pauseWatchdog(context, call, 1)
  else if (phase === 'resolved') pauseWatchdog(context, call, -1)
}

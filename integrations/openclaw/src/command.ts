/** The command `/steadfast`, for operators: status, approvals and resets. */

import type { Steadfast } from 'steadfast-node'
import { toolRef } from './tools.js'

export const USAGE = [
  '/steadfast                    status',
  '/steadfast approvals          requests that wait for a decision',
  '/steadfast approve ID         let this call run once',
  '/steadfast deny ID            refuse it',
  '/steadfast reset loops        let this session call its tools again',
  '/steadfast reset breaker TOOL close the circuit breaker of a tool',
  '/steadfast reset trust TOOL   restore trust in a tool',
].join('\n')

/** The sender of a command. */
export interface Operator {
  readonly by: string
  readonly session: string | undefined
}

/** Runs the command, and returns the text for its sender. */
export async function runCommand(engine: Steadfast, written: string, { by, session }: Operator): Promise<string> {
  const [verb, ...words] = written.trim().split(/\s+/)
  switch (verb) {
    case '': case undefined: case 'status': return await status(engine)
    case 'approvals': return await approvals(engine)
    case 'approve': case 'deny': return await decide(engine, verb, words[0], by)
    case 'reset': return await reset(engine, words, { by, session })
    default: return USAGE
  }
}

async function status(engine: Steadfast): Promise<string> {
  const { verdict, findings } = await engine.status()
  const lines = findings.map(({ level, what, todo }) => `${level}: ${what}; ${todo}`)
  return [`${verdict}, ${engine.inFlight()} calls in flight`, ...lines].join('\n')
}

async function approvals(engine: Steadfast): Promise<string> {
  const pending = await engine.approvals()
  const lines = pending.map(({ id, tool, prompt, shown }) =>
    `${id}: ${tool.namespace}/${tool.tool}: ${prompt.summary}${shown === undefined ? '' : `\n   ${shown}`}`)
  return lines.length === 0 ? 'no request is pending' : lines.join('\n')
}

async function decide(engine: Steadfast, verb: 'approve' | 'deny', id: string | undefined, by: string): Promise<string> {
  if (id === undefined || !/^\d+$/.test(id)) return USAGE
  if (verb === 'deny') {
    await engine.deny(Number(id), { by })
    return `request ${id} is denied`
  }
  await engine.approve(Number(id), 'once', { by })
  return `request ${id} is approved: the next such call runs`
}

async function reset(engine: Steadfast, [what, tool]: string[], { by, session }: Operator): Promise<string> {
  if (what === 'loops') {
    const { freed } = await engine.resetGuard(session, { by })
    return freed === 0 ? 'this session is not stopped' : 'this session may call its tools again'
  }
  if (tool === undefined || (what !== 'breaker' && what !== 'trust')) return USAGE
  const name = fullName(tool)
  if (what === 'breaker') await engine.resetBreaker(name, { by })
  else await engine.resetTrust(name, { by })
  return what === 'breaker' ? `the circuit breaker of ${name} is closed` : `${name} is trusted again`
}

/** Returns a name for the engine: as it is, or made of the name in the host. */
function fullName(tool: string): string {
  if (tool.includes('/')) return tool
  const { namespace, tool: name } = toolRef(tool)
  return `${namespace}/${name}`
}

'use strict'

/** Steadfast for the client of the Model Context Protocol SDK, versions 1 and 2. */

const { CallError } = require('../lib/errors.cjs')
const { ToolFailure, toFailure } = require('../lib/failures.cjs')
const { keyOf } = require('../lib/steadfast.cjs')

/** Errors that the client makes itself, in version 2 and in version 1. */
const CLIENT_ERRORS = {
  NOT_CONNECTED: ['connection_closed', false],
  NOT_INITIALIZED: ['connection_closed', false],
  REQUEST_TIMEOUT: ['timed_out', true],
  CONNECTION_CLOSED: ['connection_closed', true],
  SEND_FAILED: ['connection_closed', true],
  [-32001]: ['timed_out', true],
  [-32000]: ['connection_closed', true],
}

/**
 * Returns a function like `client.callTool`. A call that fails for good or is refused gives a result with `isError`, whose
 * text is for the model. It throws if the client threw, with the error of the client as the cause.
 */
function guardCallTool(steadfast, client, { server, version = 2, tools = [], toolOptions = {}, ...context }) {
  const described = new Map(tools.map((tool) => [tool.name, tool]))
  return async (params, second, third) => {
    // In version 1, the second parameter is a schema.
    const requestOptions = version === 1 ? third : second
    const { key, ...own } = toolOptions[params.name] ?? {}
    const { annotations, inputSchema } = described.get(params.name) ?? {}
    const call = { ...context, namespace: server, tool: params.name, args: params.arguments ?? {}, key: keyOf(key, params.arguments) }
    let last
    let thrown
    const attempt = async (args, { signal }) => {
      thrown = undefined
      const options = { ...requestOptions, signal }
      try {
        const request = { ...params, arguments: args }
        last = await (version === 1 ? client.callTool(request, second, options) : client.callTool(request, options))
      } catch (error) {
        thrown = error
        throw error
      }
      if (last.isError) {
        throw new ToolFailure(textOf(last), { source: { kind: 'is_error' }, output: { content: last } })
      }
      return last
    }
    const options = { annotations, inputSchema, ...own, signal: requestOptions?.signal, toFailure: failureOf }
    const answer = await steadfast.call(call, attempt, options)
    const { result, remarks } = answer
    if (result.error && thrown) throw CallError.of(answer, thrown)
    if (result.error && !result.output) return errorResult(result.error.message)
    const output = result.fromCache || result.error ? result.output?.content : last
    const added = remarks.map((text) => ({ type: 'text', text }))
    return added.length > 0 ? { ...output, content: [...(output.content ?? []), ...added] } : output
  }
}

function failureOf(error) {
  // In version 1, an error of a client that is not connected has no code.
  const code = error?.message === 'Not connected' ? 'NOT_CONNECTED' : error?.code
  const known = Object.hasOwn(CLIENT_ERRORS, code) ? CLIENT_ERRORS[code] : undefined
  if (!known || error.status !== undefined) return toFailure(error)
  return { message: String(error.message), source: { kind: 'transport', error: known[0], written: known[1] } }
}

/** Returns the texts of a result. */
function textOf({ content = [] }) {
  const texts = content.filter(({ type }) => type === 'text').map(({ text }) => text)
  return texts.join('\n') || 'the tool returned an error'
}

function errorResult(text) {
  return { isError: true, content: [{ type: 'text', text }] }
}

module.exports = { guardCallTool }

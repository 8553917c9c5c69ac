'use strict'

/** Steadfast for the tools of LangChain.js agents: middleware for `wrapToolCall`. */

const { ToolFailure, InputRequired, toFailure } = require('../lib/failures.cjs')
const { keyOf } = require('../lib/steadfast.cjs')

/** JSON-RPC codes that prove that nothing ran. */
const UNKNOWN_TOOL = { kind: 'json_rpc', code: -32601 }
const INVALID_ARGUMENTS = { kind: 'json_rpc', code: -32602 }

/** Returns the function for `createMiddleware({ name, wrapToolCall })`. */
function wrapToolCall(steadfast, { ToolMessage, namespace = 'langchain', toolOptions = {}, ...context }) {
  return async (request, handler) => {
    const { toolCall, tool, runtime } = request
    const session = context.session ?? runtime?.configurable?.thread_id
    const { key, ...options } = toolOptions[toolCall.name] ?? {}
    const call = {
      ...context, session, namespace, tool: toolCall.name, args: toolCall.args ?? {}, key: keyOf(key, toolCall.args),
      // Some models number their calls anew in each conversation.
      callId: session === undefined ? undefined : toolCall.id,
    }
    let last
    let interrupt
    const attempt = async (args) => {
      last = undefined
      try {
        last = await handler({ ...request, toolCall: { ...toolCall, args } })
      } catch (error) {
        if (isInterrupt(error)) {
          interrupt = error
          throw new InputRequired(null)
        }
        throw error
      }
      if (last?.status === 'error') {
        const source = tool === undefined ? UNKNOWN_TOOL : undefined
        throw new ToolFailure(textOf(last.content), { source, output: { content: stored(last) } })
      }
      return stored(last)
    }
    const { result, remarks } = await steadfast.call(call, attempt, { signal: runtime?.signal, ...options, toFailure: failureOf })
    // A question to the user suspends the agent. The call is made again with the answer.
    if (interrupt) throw interrupt
    const message = (fields) => new ToolMessage({ name: toolCall.name, ...fields, tool_call_id: toolCall.id ?? '' })
    if (result.error) return message({ content: result.error.message, status: 'error' })
    if (!result.fromCache && remarks.length === 0) return last
    const { content, ...fields } = result.output?.content ?? { content: '' }
    return message({ ...fields, content: remarks.length > 0 ? [textOf(content), ...remarks].join('\n\n') : content })
  }
}

/** Returns what is stored of a tool message. A command is not stored: it changes the state of the agent only once. */
function stored(message) {
  const { content, artifact, name, status } = message ?? {}
  return { content: content ?? '', artifact, name, status }
}

function failureOf(error) {
  // LangGraph may wrap the error of the schema several times.
  for (let cause = error, depth = 0; cause && depth < 5; cause = cause.cause ?? cause.toolError, depth += 1) {
    if (cause.name === 'ToolInvocationError' || cause.name === 'ToolInputParsingException') {
      return { message: error.message, source: INVALID_ARGUMENTS }
    }
  }
  return toFailure(error)
}

function isInterrupt(error) {
  return error?.name === 'GraphInterrupt' || error?.name === 'NodeInterrupt'
}

function textOf(content) {
  return typeof content === 'string' ? content : JSON.stringify(content)
}

module.exports = { wrapToolCall }

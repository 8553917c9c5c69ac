'use strict'

/** Steadfast for the tools of the Vercel AI SDK, version 7. */

const { CallError } = require('../lib/errors.cjs')
const { toFailure } = require('../lib/failures.cjs')
const { keyOf } = require('../lib/steadfast.cjs')

/**
 * Returns the tools with the reliability of Steadfast, and what `generateText` and `streamText` take beside them:
 * `repairToolCall` counts calls that never ran, and `stopWhen` ends a run in which too many calls have failed.
 */
function guardTools(steadfast, tools, { namespace = 'ai', toolOptions = {}, ...context } = {}) {
  const run = { isOver: false }
  const callOf = (tool, args, callId) => ({
    ...context,
    namespace, tool, args,
    // Some models number their calls anew in each conversation.
    callId: context.session === undefined ? undefined : callId,
  })
  const guarded = Object.entries(tools).map(([name, tool]) => {
    if (typeof tool.execute !== 'function') return [name, tool]
    const { key, ...options } = toolOptions[name] ?? {}
    const execute = async (input, given) => {
      const call = { ...callOf(name, input ?? {}, given.toolCallId), key: keyOf(key, input) }
      let last
      let thrown
      const attempt = async (args, { signal }) => {
        try {
          last = await lastOf(tool.execute(args, { ...given, abortSignal: signal }))
          return last
        } catch (error) {
          thrown = error
          throw error
        }
      }
      const answer = await steadfast.call(call, attempt, { ...options, signal: given.abortSignal, toFailure })
      if (answer.verdict === 'tool_error_limit') run.isOver = true
      if (answer.result.error) throw CallError.of(answer, thrown)
      const output = answer.result.fromCache ? answer.result.output?.content : last
      // Other outputs than texts have no place for a remark.
      return answer.remarks.length > 0 && typeof output === 'string' ? [output, ...answer.remarks].join('\n\n') : output
    }
    return [name, { ...tool, execute }]
  })
  return {
    tools: Object.fromEntries(guarded),
    async repairToolCall({ toolCall, error }) {
      const kind = error.name === 'AI_NoSuchToolError' ? 'unknown_tool' : 'invalid_arguments'
      const call = callOf(toolCall.toolName, parsed(toolCall.input), toolCall.toolCallId)
      const { text, verdict } = steadfast.answered(call, { kind, message: error.message })
      if (verdict === 'tool_error_limit') run.isOver = true
      // The model reads the message of the error. There is nothing to repair.
      error.message = text
      return null
    },
    stopWhen: () => run.isOver,
  }
}

/** Returns the result of a tool. One that gives preliminary results gives its result last. */
async function lastOf(result) {
  const value = await result
  if (typeof value?.[Symbol.asyncIterator] !== 'function') return value
  let last
  for await (const part of value) last = part
  return last
}

/** Returns the arguments that the model wrote, or their text. */
function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

module.exports = { guardTools }

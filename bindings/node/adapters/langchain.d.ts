import type { CallContext, Steadfast } from '../index.js'
import type { ToolOptions } from './ai-sdk.js'

export interface WrapToolCallOptions extends Omit<CallContext, 'key' | 'callId'> {
  /** The class `ToolMessage` of `langchain`. */
  ToolMessage: new (fields: any) => any
  /** The namespace of the tools. Default: `langchain`. */
  namespace?: string
  /** Options by name of the tool. */
  toolOptions?: Record<string, ToolOptions>
}

/**
 * Returns the function for `createMiddleware({ name, wrapToolCall })`. The session is the `thread_id` of the agent, unless
 * it is given. Failures and refusals become tool messages with the status `error`, which the model reads.
 */
export function wrapToolCall(
  steadfast: Steadfast, options: WrapToolCallOptions,
): (request: any, handler: (request: any) => any) => Promise<any>

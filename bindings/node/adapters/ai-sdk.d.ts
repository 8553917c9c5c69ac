import type { Call, CallContext, CallOptions, Steadfast } from '../index.js'

/** The options of one tool. */
export interface ToolOptions extends Pick<CallOptions, 'annotations' | 'inputSchema' | 'approval' | 'equalCalls'> {
  /** Returns the idempotency key of a call, from its arguments. */
  key?: (input: any) => string | number | undefined
}

export interface GuardToolsOptions extends Omit<CallContext, 'key' | 'callId'> {
  /** The namespace of the tools. Default: `ai`. */
  namespace?: string
  /** Options by name of the tool. */
  toolOptions?: Record<string, ToolOptions>
}

/**
 * Guards the tools of the Vercel AI SDK. Make one for each conversation, with its `session`; then calls with the same id
 * are one call. Pass all three parts to `generateText` or `streamText`; combine `stopWhen` with your own conditions in an
 * array.
 *
 * A tool that gives preliminary results gives only its last one.
 */
export function guardTools<Tools extends Record<string, any>>(
  steadfast: Steadfast, tools: Tools, options?: GuardToolsOptions,
): {
  tools: Tools
  repairToolCall: (options: { toolCall: any, error: any }) => Promise<null>
  stopWhen: () => boolean
}

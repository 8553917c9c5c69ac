import type { CallContext, Steadfast } from '../index.js'
import type { ToolOptions } from './ai-sdk.js'

export interface GuardCallToolOptions extends Omit<CallContext, 'key' | 'callId'> {
  /** The name of the server: the namespace of its tools. */
  server: string
  /** The major version of the SDK. Default: 2. */
  version?: 1 | 2
  /** The tools of `client.listTools()`: their annotations say what may be repeated. */
  tools?: { name: string, annotations?: any, inputSchema?: any }[]
  /** Options by name of the tool. */
  toolOptions?: Record<string, ToolOptions>
}

/**
 * Returns a function like `client.callTool`. A call that fails for good or is refused gives a result with `isError`, whose
 * text is for the model. It throws a `CallError` if the client threw, with the error of the client as its `cause`.
 */
export function guardCallTool<Client extends { callTool: (...parameters: any[]) => Promise<any> }>(
  steadfast: Steadfast, client: Client, options: GuardCallToolOptions,
): Client['callTool']

/** Texts for the model, and the contents of results. Decisions and their reasons are texts of the engine. */

import type { AnswerStep } from 'steadfast-node'
import type { HostSeams } from './host.js'
import { record } from './settings.js'

/** A block of a result, as the host has it. */
export interface ContentBlock {
  readonly type: string
  readonly text?: string
}

/** A result of a tool, as the host has it. */
export interface ToolResult {
  readonly content: readonly ContentBlock[]
  readonly details?: unknown
  readonly terminate?: boolean
}

export const IN_FLIGHT =
  'An equal call is in flight. The tool runs once for both, and its result is in the response to that call.'

const RAN_BEFORE = 'This call was made before, and the tool was not run again. The result was:'

/** Returns the text of a blocked call. */
export function answerText({ result, remarks }: AnswerStep): string {
  if (result.error) return result.error.message
  const notes = remarks.length > 0 ? remarks : [RAN_BEFORE]
  const output = result.output?.content
  return [...notes, typeof output === 'string' ? output : JSON.stringify(output ?? null)].join('\n\n')
}

/** The host accepts no longer text in a block of a rewritten result. */
const LONGEST_TEXT = 100_000

/** The host accepts no more blocks. */
const MOST_BLOCKS = 200

/** Returns the text of a result: what a later equal call is shown in its place. */
export function resultText(result: ToolResult): string {
  const texts = result.content.map(block => block.text ?? `[${block.type}]`)
  return cut(texts.join('\n'))
}

/** Adds remarks to a result, in blocks of their own: the tool's own words stay as they are. */
export function withRemarks(result: ToolResult, remarks: readonly string[]): ToolResult {
  const blocks = remarks.map(remark => ({ type: 'text', text: cut(remark) }))
  return { ...result, content: [...result.content.slice(0, MOST_BLOCKS - blocks.length), ...blocks] }
}

/** Returns a failed result with this text. */
export function failedResult(text: string): ToolResult {
  return { content: [{ type: 'text', text: cut(text) }], details: { status: 'error' } }
}

function cut(text: string): string {
  return text.length <= LONGEST_TEXT ? text : `${text.slice(0, LONGEST_TEXT - 1)}…`
}

/** Returns true if a result is that of a failed call. */
export function isFailed(host: HostSeams, result: ToolResult, isError: boolean | undefined): boolean {
  return isError === true || (host.isErrorResult?.(result) ?? record(result.details).status === 'error')
}

/** Returns true if a result carries the mark of the gateway. */
export function isFromGateway(result: ToolResult): boolean {
  const marks = [result, record(result.details)].map(holder => record(record(holder)._meta)['dev.steadfast/result'])
  return marks.some(mark => mark !== undefined)
}

/** Returns true if an error of the host says that there is no such tool. */
export function isUnknownTool(error: unknown): boolean {
  return typeof error === 'string' && /^(Tool \S+ not found$|Unknown tool id: )/.test(error)
}

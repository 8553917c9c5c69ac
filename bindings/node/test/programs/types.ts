import { CallError, open, toFailure, type AnswerStep, type Step, type Steadfast } from 'steadfast-node'
import { guardTools } from 'steadfast-node/ai-sdk'
import { wrapToolCall } from 'steadfast-node/langchain'
import { guardCallTool } from 'steadfast-node/mcp'

async function program(): Promise<void> {
  await using steadfast: Steadfast = await open({ stateFile: null, config: 'mode = "enforce"' })
  const add = steadfast.guard('math/add', async ({ a, b }: { a: number, b: number }, { signal, attempt }) => {
    signal.throwIfAborted()
    return a + b + attempt
  }, { key: ({ a }) => String(a), annotations: { readOnlyHint: true } })
  const sum: number = await add({ a: 1, b: 2 }, { session: 's', signal: AbortSignal.timeout(1000) })
  // @ts-expect-error: an argument is missing
  await add({ a: sum })
  const step: Step = await steadfast.begin({ tool: 'bank/pay', args: { cents: 1 } }, { approval: async () => 'once' })
  if (step.next === 'run') {
    const next = await steadfast.report(step, { failure: toFailure(new Error('no')) })
    if (next.next === 'answer') console.log(next.result.error?.code, next.verdict)
  }
  const answer: AnswerStep = await steadfast.call({ tool: 'a/b' }, () => 1)
  console.log(answer.result.output?.content)
  for await (const event of steadfast.events({ tool: 'bank/pay' })) console.log(event.event, event.missed)
  const { calls } = await steadfast.turn({ calls: [{ id: 'a', tool: 'x/y' }] }, { 'x/y': () => 1 })
  console.log(calls.map(({ id, outcome }) => [id, outcome]))
  const { text } = steadfast.answered({ tool: 'a/b' }, { kind: 'invalid_arguments', message: 'no' })
  try {
    await add({ a: 1, b: 2 })
  } catch (error) {
    if (error instanceof CallError) console.log(error.code === 'circuit_open', error.retryAfterMs, error.verify, text)
  }
  guardTools(steadfast, { x: {} }).tools.x
  wrapToolCall(steadfast, { ToolMessage: class {} })
  guardCallTool(steadfast, { callTool: async (params: { name: string }) => params.name }, { server: 'bank' })
}

void program

// The adapters, with the real libraries. Only the models are scripted.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BaseChatModel } from '@langchain/core/language_models/chat_models'
import { Client as ClientV2, InMemoryTransport } from '@modelcontextprotocol/client'
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport as TransportV1 } from '@modelcontextprotocol/sdk/inMemory.js'
import { McpServer as ServerV1 } from '@modelcontextprotocol/sdk/server/mcp.js'
import { McpServer as ServerV2 } from '@modelcontextprotocol/server'
import { generateText, isStepCount, stepCountIs, tool as aiTool } from 'ai'
import { MockLanguageModelV4 } from 'ai/test'
import { AIMessage, ToolMessage, createAgent, createMiddleware, tool as langchainTool } from 'langchain'
import { z } from 'zod'
import { guardTools } from '../adapters/ai-sdk.cjs'
import { wrapToolCall } from '../adapters/langchain.cjs'
import { guardCallTool } from '../adapters/mcp.cjs'
import { QUICK, errorWith, memory } from './support.mjs'

const busy = () => errorWith('service unavailable', { status: 503 })

// ── Vercel AI SDK ────────────────────────────────────────────────────────────────────────────────────────────────────

/** A model that makes these calls, one in each step, and then ends. */
function scriptedModel(calls) {
  const prompts = []
  const model = new MockLanguageModelV4({
    doGenerate: async ({ prompt }) => {
      prompts.push(prompt)
      const call = calls[prompts.length - 1]
      const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }
      if (!call) return { content: [{ type: 'text', text: 'done' }], finishReason: { unified: 'stop' }, usage, warnings: [] }
      const [toolName, input, toolCallId = `call-${prompts.length}`] = call
      const content = [{ type: 'tool-call', toolCallId, toolName, input: typeof input === 'string' ? input : JSON.stringify(input) }]
      return { content, finishReason: { unified: 'tool-calls' }, usage, warnings: [] }
    },
  })
  /** Returns the tool outputs that the model got, in order. */
  const toolOutputs = () => prompts.at(-1).filter(({ role }) => role === 'tool').flatMap(({ content }) => content).map(({ output }) => output.value)
  return { model, prompts, toolOutputs }
}

async function generate(steadfast, tools, calls, options = {}) {
  const script = scriptedModel(calls)
  const guarded = guardTools(steadfast, tools, { session: 's', turn: 't', ...options })
  const { stopWhen, ...parts } = guarded
  const result = await generateText({ model: script.model, prompt: 'go', ...parts, stopWhen: [(isStepCount ?? stepCountIs)(40), stopWhen] })
  return { ...script, result }
}

test('AI SDK: a tool is retried, and the model gets its result', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const fetch = aiTool({
    inputSchema: z.object({ url: z.string() }),
    execute: async ({ url }, { toolCallId, abortSignal }) => {
      runs += 1
      assert.match(toolCallId, /call/)
      assert(abortSignal instanceof AbortSignal)
      if (runs === 1) throw busy()
      return { body: url }
    },
  })
  const { toolOutputs } = await generate(steadfast, { fetch }, [['fetch', { url: 'x' }]])
  assert.deepEqual(toolOutputs(), [{ body: 'x' }])
  assert.equal(runs, 2)
})

test('AI SDK: the same call id runs once, and another id runs again', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const pay = aiTool({ inputSchema: z.object({ cents: z.number() }), execute: async () => ({ number: (runs += 1) }) })
  const calls = [['pay', { cents: 1 }, 'a'], ['pay', { cents: 1 }, 'b']]
  const first = await generate(steadfast, { pay }, calls)
  const again = await generate(steadfast, { pay }, calls)
  assert.deepEqual(first.toolOutputs(), [{ number: 1 }, { number: 2 }])
  assert.deepEqual(again.toolOutputs(), first.toolOutputs())
  assert.equal(runs, 2)
})

test('AI SDK: the model reads the words of a failing tool, and a loop is not run', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const read = aiTool({ inputSchema: z.object({ path: z.string() }), execute: async () => { runs += 1; throw new Error('ENOENT: no such file') } })
  const { toolOutputs } = await generate(steadfast, { read }, [['read', { path: 'x' }], ['read', { path: 'x' }], ['read', { path: 'x' }]])
  assert.match(toolOutputs()[0], /no such file/)
  assert.match(toolOutputs()[1], /\[LOOP DETECTED\]/)
  assert.match(toolOutputs()[2], /\[LOOP DETECTED\]/)
  assert.equal(runs, 2)
})

test('AI SDK: read({}) that never runs is a loop as well, and ends the run at the limit', async (t) => {
  const steadfast = await memory(t)
  const read = aiTool({ inputSchema: z.object({ path: z.string() }), execute: async () => assert.fail('it ran') })
  const { toolOutputs, prompts } = await generate(steadfast, { read }, Array.from({ length: 40 }, () => ['read', {}]))
  assert.match(toolOutputs()[1], /\[LOOP DETECTED\]/)
  assert(prompts.length <= 6, `${prompts.length} model calls`)
})

test('AI SDK: an unknown tool and arguments that are no JSON count too', async (t) => {
  const steadfast = await memory(t)
  const read = aiTool({ inputSchema: z.object({ path: z.string() }), execute: async () => 'text' })
  const { toolOutputs } = await generate(steadfast, { read }, [['raed', { path: 'x' }], ['raed', { path: 'x' }], ['read', '{"path":'], ['read', { path: 'x' }]])
  assert.match(toolOutputs()[1], /\[LOOP DETECTED\]/)
  assert.equal(toolOutputs()[3], 'text')
})

test('AI SDK: a tool that gives preliminary results gives its last one, and tools without execute stay as they are', async (t) => {
  const steadfast = await memory(t)
  const stream = aiTool({ inputSchema: z.object({}), execute: async function* () { yield 'a'; yield 'ab' } })
  const client = aiTool({ inputSchema: z.object({}) })
  const { tools } = guardTools(steadfast, { stream, client })
  assert.equal(tools.client, client)
  const { toolOutputs } = await generate(steadfast, { stream }, [['stream', {}]])
  assert.deepEqual(toolOutputs(), ['ab'])
})

// ── LangChain.js ─────────────────────────────────────────────────────────────────────────────────────────────────────

class ScriptedChatModel extends BaseChatModel {
  constructor(calls) {
    super({})
    this.calls = calls
    this.prompts = []
  }

  _llmType() {
    return 'scripted'
  }

  bindTools() {
    return this
  }

  async _generate(messages) {
    this.prompts.push(messages)
    const call = this.calls[this.prompts.length - 1]
    const tool_calls = call ? [{ name: call[0], args: call[1], id: call[2] ?? `call-${this.prompts.length}`, type: 'tool_call' }] : []
    const message = new AIMessage({ content: call ? '' : 'done', tool_calls })
    return { generations: [{ text: '', message }] }
  }

  toolOutputs() {
    return this.prompts.at(-1).filter((message) => message.getType() === 'tool').map(({ content, status }) => ({ content, status }))
  }
}

async function runAgent(steadfast, tools, calls, { thread_id, ...options } = {}) {
  const model = new ScriptedChatModel(calls)
  const middleware = [createMiddleware({ name: 'Steadfast', wrapToolCall: wrapToolCall(steadfast, { ToolMessage, turn: 't', ...options }) })]
  const agent = createAgent({ model, tools, middleware })
  await agent.invoke({ messages: [{ role: 'user', content: 'go' }] }, { configurable: { thread_id }, recursionLimit: 100 })
  return model
}

test('LangChain: a tool is retried, and the model gets its result', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const fetch = langchainTool(async ({ url }) => {
    runs += 1
    if (runs === 1) throw busy()
    return `body of ${url}`
  }, { name: 'fetch', description: 'fetches', schema: z.object({ url: z.string() }) })
  const model = await runAgent(steadfast, [fetch], [['fetch', { url: 'x' }]])
  assert.equal(model.toolOutputs()[0].content, 'body of x')
  assert.equal(runs, 2)
})

test('LangChain: the same call of a thread runs once', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const pay = langchainTool(() => `receipt ${(runs += 1)}`, { name: 'pay', description: 'pays', schema: z.object({ cents: z.number() }) })
  const calls = [['pay', { cents: 1 }, 'a']]
  const first = await runAgent(steadfast, [pay], calls, { thread_id: 'x' })
  const again = await runAgent(steadfast, [pay], calls, { thread_id: 'x' })
  assert.equal(first.toolOutputs()[0].content, 'receipt 1')
  assert.equal(again.toolOutputs()[0].content, 'receipt 1')
  await runAgent(steadfast, [pay], calls, { thread_id: 'y' })
  assert.equal(runs, 2)
})

test('LangChain: failures, broken calls and unknown tools are messages for the model, and loops are not run', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const read = langchainTool(() => { runs += 1; throw new Error('no such file') }, { name: 'read', description: 'reads', schema: z.object({ path: z.string() }) })
  const failing = await runAgent(steadfast, [read], [['read', { path: 'x' }], ['read', { path: 'x' }], ['read', { path: 'x' }]])
  assert.match(failing.toolOutputs()[0].content, /no such file/)
  assert.equal(failing.toolOutputs()[0].status, 'error')
  assert.match(failing.toolOutputs()[1].content, /\[LOOP DETECTED\]/)
  assert.equal(runs, 2)
  const broken = await runAgent(steadfast, [read], [['read', {}], ['read', {}], ['read', {}]], { session: 'broken' })
  assert.match(broken.toolOutputs()[1].content, /\[LOOP DETECTED\]/)
  const unknown = await runAgent(steadfast, [read], [['raed', {}], ['raed', {}]], { session: 'unknown' })
  assert.match(unknown.toolOutputs()[0].content, /not a valid tool/)
  assert.match(unknown.toolOutputs()[1].content, /\[LOOP DETECTED\]/)
})

// ── Model Context Protocol ───────────────────────────────────────────────────────────────────────────────────────────

/** Connects a client to a server with one tool. */
async function connected(t, version, handler, annotations) {
  const [Client, Server, Transport] = version === 1 ? [ClientV1, ServerV1, TransportV1] : [ClientV2, ServerV2, InMemoryTransport]
  const server = new Server({ name: 'bank', version: '1' })
  server.registerTool('pay', { inputSchema: version === 1 ? { cents: z.number() } : z.object({ cents: z.number() }), annotations }, handler)
  const [clientSide, serverSide] = Transport.createLinkedPair()
  await server.connect(serverSide)
  const client = new Client({ name: 'test', version: '1' })
  await client.connect(clientSide)
  t.after(() => client.close())
  return client
}

for (const version of [1, 2]) {
  test(`MCP ${version}: the result of the server arrives as it is, and a replay is the same`, async (t) => {
    const steadfast = await memory(t)
    let runs = 0
    const client = await connected(t, version, async ({ cents }) => ({ content: [{ type: 'text', text: `paid ${cents}, ${(runs += 1)}` }] }))
    const callTool = guardCallTool(steadfast, client, { server: 'bank', version, toolOptions: { pay: { key: ({ cents }) => `invoice ${cents}` } } })
    const first = await callTool({ name: 'pay', arguments: { cents: 5 } })
    assert.equal(first.content[0].text, 'paid 5, 1')
    assert.deepEqual(await callTool({ name: 'pay', arguments: { cents: 5 } }), JSON.parse(JSON.stringify(first)))
    assert.equal(runs, 1)
  })

  test(`MCP ${version}: an error of the tool is its result, and a loop is not sent`, async (t) => {
    const steadfast = await memory(t)
    let runs = 0
    const client = await connected(t, version, async () => { runs += 1; return { isError: true, content: [{ type: 'text', text: 'no such account' }] } })
    const callTool = guardCallTool(steadfast, client, { server: 'bank', version, session: 's', turn: 't' })
    const call = () => callTool({ name: 'pay', arguments: { cents: 5 } })
    const first = await call()
    assert.equal(first.isError, true)
    assert.equal(first.content[0].text, 'no such account')
    const second = await call()
    assert.equal(second.content[0].text, 'no such account')
    assert.match(second.content[1].text, /\[LOOP DETECTED\]/)
    const third = await call()
    assert.equal(third.isError, true)
    assert.match(third.content[0].text, /\[LOOP DETECTED\]/)
    assert.equal(runs, 2)
  })

  test(`MCP ${version}: a lost connection is an unknown outcome unless the tool may run again`, async (t) => {
    for (const [annotations, isUnknown] of [[{ readOnlyHint: false, destructiveHint: true }, true], [{ readOnlyHint: true }, false]]) {
      const steadfast = await memory(t, `${QUICK}[trust]\nmode = "off"\n`)
      const client = await connected(t, version, async () => { await client.close(); return { content: [] } }, annotations)
      const { tools } = await client.listTools()
      const callTool = guardCallTool(steadfast, client, { server: 'bank', version, tools })
      const error = await callTool({ name: 'pay', arguments: { cents: 5 } }).catch((error) => error)
      assert.equal(error.name, 'CallError')
      assert.equal(error.outcomeUnknown, isUnknown)
      assert.equal(error.attempts > 1, !isUnknown)
      assert(error.cause instanceof Error)
    }
  })
}

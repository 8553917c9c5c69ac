import assert from 'node:assert/strict'
import { test } from 'node:test'
import { QUICK, errorWith, memory } from './support.mjs'

test('the status, the metrics and the lists of the HTTP API tell of the calls', async (t) => {
  const steadfast = await memory(t, `${QUICK}[metrics]\nnamespace = "shop"\n`)
  await steadfast.guard('web/fetch', () => 1)({ url: 'x' })
  const status = await steadfast.status()
  assert.equal(status.verdict, 'fine')
  assert.equal(status.store.kind, 'memory')
  assert.match(await steadfast.metrics(), /^shop_tool_calls_total\{tool="web\/fetch",status="success"/m)
  const score = await steadfast.api('GET', '/v1/tools/web%2Ffetch/score')
  assert.equal(score.samples, 1)
})

test('a breaker that an operator opens refuses until it is reset, and the audit log names the operator', async (t) => {
  const steadfast = await memory(t)
  await steadfast.api('POST', '/v1/breakers/tool:web:fetch', { to: 'open' }, { by: 'ann' })
  await assert.rejects(steadfast.guard('web/fetch', () => 1)({}), { code: 'circuit_open' })
  const { breaker } = await steadfast.resetBreaker('web/fetch', { by: 'bob' })
  assert.equal(breaker.state, 'CLOSED')
  assert.equal(await steadfast.guard('web/fetch', () => 1)({}), 1)
  await steadfast.resetBreaker('dependency:example.com')
  await assert.rejects(steadfast.resetBreaker('no breaker'), { name: 'OperationError' })
  const { audit } = await steadfast.api('GET', '/v1/audit')
  assert.deepEqual(new Set(audit.map(({ by }) => `${by.name} (${by.from})`)), new Set(['ann (library)', 'bob (library)', 'node (library)']))
})

test('trust is restored by a reset', async (t) => {
  const steadfast = await memory(t, '[retry]\nattempts = 1\n[trust]\ncount = 1\n[guard]\nmode = "off"\n[breaker]\nmode = "off"\n')
  const crash = steadfast.guard('lab/measure', () => { throw errorWith('down', { status: 500 }) }, { annotations: { readOnlyHint: true } })
  await assert.rejects(crash({ n: 1 }), { code: 'tool_error' })
  await assert.rejects(crash({ n: 1 }), { code: 'approval_required' })
  assert.equal((await steadfast.approvals()).length, 1)
  const { changes } = await steadfast.resetTrust('lab/measure')
  assert(changes > 0)
  await assert.rejects(crash({ n: 1 }), { code: 'tool_error' })
})

test('events follow the calls, filtered and redacted, until they are stopped', async (t) => {
  const steadfast = await memory(t)
  const events = []
  const controller = new AbortController()
  const following = (async () => {
    for await (const event of steadfast.events({ tool: 'web/fetch', signal: controller.signal })) {
      events.push(event)
      if (event.event === 'tool_call_attempt_end') controller.abort()
    }
  })()
  await steadfast.guard('web/other', () => 1)({})
  await steadfast.guard('web/fetch', () => { throw new Error('password=hunter2-and-more') })({}).catch(() => {})
  await following
  assert(events.length > 1)
  assert(events.every(({ toolName }) => toolName === 'fetch'))
  assert(!JSON.stringify(events).includes('hunter2'))
})

test('a follower may leave its loop, and a close ends the others', async (t) => {
  const steadfast = await memory(t)
  const first = (async () => { for await (const event of steadfast.events()) return event.event })()
  const last = (async () => { for await (const event of steadfast.events({ event: 'never' })) assert.fail(event) })()
  await steadfast.guard('a/b', () => 1)({})
  assert.match(await first, /^\w/)
  await steadfast.close()
  await last
})

test('new settings apply to the next call, all or nothing', async (t) => {
  const steadfast = await memory(t)
  const pay = steadfast.guard('bank/pay', () => 'paid')
  assert.equal(await pay({ n: 1 }), 'paid')
  await steadfast.reconfigure(`${QUICK}[tools."bank/pay"]\napproval = "always"\n`)
  await assert.rejects(pay({ n: 2 }), { code: 'approval_required' })
  const wrong = await steadfast.reconfigure('[retry]\nattempts = 0\n[tools."bank/pay"]\napproval = "never"\n').catch((error) => error)
  assert.equal(wrong.code, 'invalid_configuration')
  assert.equal(wrong.problems.length, 1)
  await assert.rejects(pay({ n: 3 }), { code: 'approval_required' })
  await steadfast.reconfigure('mode = "off"\n')
  assert.equal(await pay({ n: 4 }), 'paid')
})

test('in shadow mode, nothing is refused and every result is the own one', async (t) => {
  const steadfast = await memory(t, 'mode = "shadow"\n')
  let runs = 0
  const fail = steadfast.guard('disk/read', () => { runs += 1; throw new Error('Missing required parameter: path') }, { key: () => 'k' })
  for (const _ of [1, 2, 3]) await assert.rejects(fail({}), { name: 'CallError', code: 'invalid_arguments' })
  assert.equal(runs, 3)
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { aborted, errorWith, gate, memory } from './support.mjs'

test('a turn runs its calls in order of their dependencies, with parts of their results', async (t) => {
  const steadfast = await memory(t)
  const order = []
  const tools = {
    'web/find': ({ name }) => { order.push('find'); return { user: { id: 7, name } } },
    'bank/pay': { run: async ({ to, cents }) => { order.push('pay'); return { to, cents } }, annotations: { destructiveHint: true } },
  }
  const result = await steadfast.turn({
    calls: [
      { id: 'p', tool: 'bank/pay', params: { to: { $from: 'f', path: '/user/id' }, cents: 5 } },
      { id: 'f', tool: 'web/find', params: { name: 'ann' } },
    ],
  }, tools, { session: 's', model: 'm' })
  assert.equal(result.status, 'completed')
  assert.equal(result.endedBy, 'finished')
  assert.deepEqual(order, ['find', 'pay'])
  assert.deepEqual(result.calls[0].output, { to: 7, cents: 5 })
  assert.match(result.traceId, /^[0-9a-f]{32}$/)
})

test('a failed call fails what depends on it, and an alternative takes its place', async (t) => {
  const steadfast = await memory(t)
  const tools = {
    'web/a': () => { throw errorWith('gone', { status: 410 }) },
    'web/b': () => 'from b',
    'web/c': ({ v }) => v,
  }
  const plan = { calls: [
    { id: 'one', tool: 'web/a', alternatives: ['web/b'] },
    { id: 'two', tool: 'web/c', params: { v: { $from: 'one', path: '' } } },
    { id: 'three', tool: 'web/a' },
    { id: 'four', tool: 'web/c', dependsOn: ['three'] },
  ] }
  const { status, calls } = await steadfast.turn(plan, tools)
  assert.equal(status, 'partial')
  assert.equal(calls[1].output, 'from b')
  assert.equal(calls[3].code, 'dependency_failed')
})

test('a signal cancels a turn and what runs in it', async (t) => {
  const steadfast = await memory(t)
  const controller = new AbortController()
  const reason = gate()
  const tools = { 'web/hang': async (args, { signal }) => { controller.abort(); reason.resolve(await aborted(signal)); throw signal.reason } }
  const { endedBy } = await steadfast.turn({ calls: [{ id: 'a', tool: 'web/hang' }] }, tools, { signal: controller.signal })
  assert.equal(endedBy, 'cancel')
  await reason.promise
})

test('a turn that is submitted again does not run its finished calls again', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const tools = { 'bank/pay': () => { runs += 1; return runs } }
  const plan = { turnId: 't-1', calls: [{ id: 'a', tool: 'bank/pay' }] }
  assert.equal((await steadfast.turn(plan, tools)).calls[0].output, 1)
  assert.equal((await steadfast.turn(plan, tools)).calls[0].output, 1)
  assert.equal(runs, 1)
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { InvalidCallError, TicketError } from '../index.mjs'
import { QUICK, memory } from './support.mjs'

const DONE = { output: { content: 'done' } }
const BUSY = { failure: { message: 'busy', source: { kind: 'http', status: 503 } } }

test('begin orders a run, and report gives the answer', async (t) => {
  const steadfast = await memory(t)
  const step = await steadfast.begin({ tool: 'bank/pay', args: { cents: 1 }, key: 'k' })
  assert.equal(step.next, 'run')
  assert.equal(step.attempt, 1)
  assert.match(step.run, /\S/)
  assert(step.deadlineAtMs > Date.now())
  const { next, result, remarks } = await steadfast.report(step, { output: { content: { number: 7 }, metadata: { from: 'bank' } } })
  assert.equal(next, 'answer')
  assert.deepEqual(result.output, { content: { number: 7 }, metadata: { from: 'bank' } })
  assert.deepEqual(remarks, [])
  const again = await steadfast.begin({ tool: 'bank/pay', args: { cents: 1 }, key: 'k' })
  assert.equal(again.next, 'answer')
  assert.equal(again.result.fromCache, true)
})

test('a failure that may pass is another order, after the backoff', async (t) => {
  const steadfast = await memory(t)
  const first = await steadfast.begin({ tool: 'web/fetch' }, { annotations: { readOnlyHint: true } })
  const second = await steadfast.report(first, BUSY)
  assert.equal(second.next, 'run')
  assert.equal(second.attempt, 2)
  assert.equal(second.run, first.run)
  assert.equal((await steadfast.report(second, DONE)).result.attempts, 2)
})

test('a host that cannot run the tool again gets the answer at the first report', async (t) => {
  const steadfast = await memory(t)
  const step = await steadfast.begin({ tool: 'web/fetch' }, { annotations: { readOnlyHint: true }, canRepeat: false })
  const { next, result } = await steadfast.report(step, BUSY)
  assert.equal(next, 'answer')
  assert.equal(result.attempts, 1)
})

test('a call id is one dispatch: a resend gets the same answer', async (t) => {
  const steadfast = await memory(t)
  const call = { tool: 'bank/pay', args: { cents: 1 }, callId: 'call_1', session: 's' }
  await steadfast.report(await steadfast.begin(call), DONE)
  assert.equal((await steadfast.begin(call)).result.fromCache, true)
  const other = await steadfast.begin({ ...call, callId: 'call_2' })
  assert.equal(other.next, 'run')
  await steadfast.report(other, DONE)
})

test('a duplicate in flight waits for the run', async (t) => {
  const steadfast = await memory(t)
  const call = { tool: 'bank/pay', args: { cents: 1 }, key: 'k' }
  const step = await steadfast.begin(call)
  const waiting = steadfast.begin(call)
  assert.equal(typeof waiting.then, 'function')
  await steadfast.report(step, DONE)
  const { result } = await waiting
  assert.equal(result.fromCache, true)
  assert.equal(result.cache.matchedOn, 'inflight')
})

test('tickets that are unknown or used twice are typed errors', async (t) => {
  const steadfast = await memory(t)
  for (const ticket of [{ id: 99, attempt: 1 }, { id: -1, attempt: 1 }, { id: 1.5, attempt: 1 }, { id: 'x' }, {}, null, undefined]) {
    assert.throws(() => steadfast.report(ticket, DONE), { name: 'TicketError', code: 'no_such_call' })
    assert.throws(() => steadfast.heartbeat(ticket), TicketError)
    assert.equal(steadfast.cancel(ticket), false)
  }
  const step = await steadfast.begin({ tool: 'a/b' })
  assert.throws(() => steadfast.report({ ...step, attempt: 7 }, DONE), { code: 'not_this_attempt' })
  await steadfast.report(step, DONE)
  assert.throws(() => steadfast.report(step, DONE), TicketError)
})

test('reports that are not valid are typed errors, and the attempt goes on', async (t) => {
  const steadfast = await memory(t)
  const step = await steadfast.begin({ tool: 'a/b' })
  for (const report of [{}, { output: { content: 1 }, failure: { message: 'no' } }, { outputs: 1 }, undefined, 7, { failure: { message: 'x', source: { kind: 'http' } } }, { output: { content: 1n } }]) {
    assert.throws(() => steadfast.report(step, report), { name: 'InvalidCallError', code: 'invalid_report' })
  }
  assert.equal((await steadfast.report(step, DONE)).next, 'answer')
})

test('heartbeats say whether the result is still wanted, and cancel ends the call', async (t) => {
  const steadfast = await memory(t)
  const step = await steadfast.begin({ tool: 'a/b' })
  assert.equal(steadfast.heartbeat(step), true)
  assert.equal(steadfast.cancel(step), true)
})

test('a signal that is aborted begins no call', async (t) => {
  const steadfast = await memory(t)
  assert.throws(() => steadfast.begin({ tool: 'a/b' }, { signal: AbortSignal.abort() }), { code: 'cancelled' })
  assert.equal(steadfast.inFlight(), 0)
})

test('an abort ends a begin that waits, and the duplicate that it waited for goes on', async (t) => {
  const steadfast = await memory(t)
  const call = { tool: 'bank/pay', args: { cents: 1 }, key: 'k' }
  const step = await steadfast.begin(call)
  const controller = new AbortController()
  const waiting = steadfast.begin(call, { signal: controller.signal })
  controller.abort('enough')
  await assert.rejects(waiting, { code: 'cancelled', cause: 'enough' })
  assert.equal((await steadfast.report(step, DONE)).result.status, 'success')
})

test('an order that was given back counts for nothing, and the call may be begun again', async (t) => {
  const steadfast = await memory(t)
  const call = { tool: 'bank/pay', args: { cents: 1 }, key: 'k' }
  const step = await steadfast.begin(call)
  assert.equal(steadfast.giveBack(step), true)
  assert.equal(steadfast.giveBack({ id: 99, attempt: 1 }), false)
  const again = await steadfast.begin(call)
  assert.equal(again.next, 'run')
  await steadfast.report(again, DONE)
})

test('approval: the user is asked while begin waits', async (t) => {
  const steadfast = await memory(t, `${QUICK}[tools."bank/pay"]\napproval = "always"\n`)
  const decisions = ['deny', 'once']
  const approval = async () => decisions.pop()
  const step = await steadfast.begin({ tool: 'bank/pay', args: { cents: 1 } }, { approval })
  assert.equal(step.next, 'run')
  await steadfast.report(step, DONE)
  const refused = await steadfast.begin({ tool: 'bank/pay', args: { cents: 2 } }, { approval })
  assert.equal(refused.result.error.code, 'approval_denied')
})

test('a closed engine refuses with a typed error', async (t) => {
  const steadfast = await memory(t)
  await steadfast.close()
  assert.deepEqual(await steadfast.close(), { shared: false, ended: 0, lost: 0 })
  assert.throws(() => steadfast.begin({ tool: 'a/b' }), { name: 'OperationError', code: 'closed' })
  await assert.rejects(steadfast.guard('a/b', () => {})({}), { code: 'closed' })
  await assert.rejects(steadfast.status(), { code: 'closed' })
  assert.throws(() => steadfast.begin({ tool: 7 }), (error) => !(error instanceof InvalidCallError))
})

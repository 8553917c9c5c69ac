import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { test } from 'node:test'
import { CallError, InvalidCallError, OperationError, SteadfastError, ToolFailure } from '../index.mjs'
import { QUICK, aborted, errorWith, gate, memory } from './support.mjs'

test('a guarded function returns what the function returned, the value itself', async (t) => {
  const steadfast = await memory(t)
  const value = { at: new Date(), of: new Map([[1, 2]]) }
  const fetch = steadfast.guard('web/fetch', async () => value)
  assert.equal(await fetch({ url: 'https://example.com' }), value)
  const read = steadfast.guard('disk/read', () => value)
  assert.equal(await read({}), value, 'a function that is not async')
})

test('calls with the same key run once, and the replay returns the same as the fresh call', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const pay = steadfast.guard('bank/pay', async ({ cents }) => ({ number: (runs += 1), cents }), { key: ({ invoice }) => invoice })
  const paid = await pay({ invoice: 'i-1', cents: 100 })
  assert.deepEqual(await pay({ invoice: 'i-1', cents: 100 }), paid)
  assert.deepEqual(await pay({ invoice: 'i-2', cents: 100 }), { number: 2, cents: 100 })
  await assert.rejects(pay({ invoice: 'i-1', cents: 999 }), { name: 'CallError', code: 'idempotency_conflict', mayHaveRun: false })
  assert.equal(runs, 2)
})

test('calls with the same key that overlap run once', async (t) => {
  const steadfast = await memory(t)
  const { promise, resolve } = gate()
  let runs = 0
  const pay = steadfast.guard('bank/pay', () => { runs += 1; return promise }, { key: () => 'one' })
  const all = [pay({}), pay({}), pay({})]
  resolve({ number: 7 })
  assert.deepEqual(await Promise.all(all), [{ number: 7 }, { number: 7 }, { number: 7 }])
  assert.equal(runs, 1)
})

test('encode and decode make results replayable that are not JSON', async (t) => {
  const steadfast = await memory(t)
  const count = steadfast.guard('math/count', () => 10n, { key: () => 'k', encode: String, decode: BigInt })
  assert.equal(await count({}), 10n)
  assert.equal(await count({}), 10n)
})

test('undefined is a result, and its replay is null', async (t) => {
  const steadfast = await memory(t)
  const send = steadfast.guard('mail/send', async () => {}, { key: () => 'k' })
  assert.equal(await send({}), undefined)
  assert.equal(await send({}), null)
})

test('a transient failure is retried, with the number of the attempt and the same run', async (t) => {
  const steadfast = await memory(t)
  const recorded = []
  const fetch = steadfast.guard('web/fetch', async (args, { attempt, run }) => {
    recorded.push({ attempt, run })
    if (attempt < 3) throw errorWith('service unavailable', { status: 503 })
    return 'page'
  }, { annotations: { readOnlyHint: true } })
  assert.equal(await fetch({}), 'page')
  assert.deepEqual(recorded.map(({ attempt }) => attempt), [1, 2, 3])
  assert.equal(new Set(recorded.map(({ run }) => run)).size, 1)
})

test('a permanent failure is not retried, and the error carries that of the function', async (t) => {
  const steadfast = await memory(t)
  const cause = errorWith('no such user', { status: 404 })
  let runs = 0
  const find = steadfast.guard('crm/find', async () => { runs += 1; throw cause })
  const error = await find({}).catch((error) => error)
  assert(error instanceof CallError && error instanceof SteadfastError && error instanceof Error)
  assert(!(error instanceof OperationError))
  assert.equal(error.cause, cause)
  assert.equal(error.code, 'tool_error')
  assert.equal(error.attempts, 1)
  assert.equal(error.retriable, false)
  assert.match(error.rule, /\S/)
  assert.equal(error.result.status, 'error')
  assert.equal(runs, 1)
})

test('an unknown outcome of a tool that must not run twice is not retried, and says how to check', async (t) => {
  const steadfast = await memory(t, `${QUICK}[tools."bank/pay"]\nclass = "mutating"\nverify = "search the statement"\n`)
  let runs = 0
  const pay = steadfast.guard('bank/pay', async () => { runs += 1; throw errorWith('socket hang up', { code: 'ECONNRESET' }) })
  const error = await pay({ cents: 1 }).catch((error) => error)
  assert.equal(error.code, 'outcome_unknown')
  assert.equal(error.outcomeUnknown, true)
  assert.equal(error.mayHaveRun, true)
  assert.match(error.verify, /search the statement/)
  assert.equal(runs, 1)
})

test('a refused connection is retried also for a tool that must not run twice', async (t) => {
  const steadfast = await memory(t, `${QUICK}[tools."bank/pay"]\nclass = "mutating"\n`)
  let runs = 0
  const pay = steadfast.guard('bank/pay', async () => {
    runs += 1
    if (runs === 1) throw errorWith('fetch failed', { cause: errorWith('connect ECONNREFUSED', { code: 'ECONNREFUSED', syscall: 'connect' }) })
    return 'paid'
  })
  assert.equal(await pay({ cents: 1 }), 'paid')
  assert.equal(runs, 2)
})

test('a Retry-After that is longer than the limit ends the call, and the error has it', async (t) => {
  const steadfast = await memory(t)
  const fetch = steadfast.guard('web/fetch', async () => { throw errorWith('slow down', { status: 429, headers: { 'retry-after': '3600' } }) })
  const error = await fetch({}).catch((error) => error)
  assert.equal(error.retryAfterMs, 3_600_000)
})

test('an open breaker refuses without a run', async (t) => {
  const steadfast = await memory(t, '[retry]\nattempts = 1\n[breaker]\nconsecutive = 2\n[guard]\nmode = "off"\n')
  let runs = 0
  const fetch = steadfast.guard('web/fetch', async () => { runs += 1; throw errorWith('down', { status: 503 }) })
  for (const n of [1, 2]) await assert.rejects(fetch({ n }))
  const error = await fetch({ n: 3 }).catch((error) => error)
  assert.equal(error.code, 'circuit_open')
  assert.equal(error.mayHaveRun, false)
  assert(error.retryAfterMs > 0)
  assert.equal(runs, 2)
  await steadfast.resetBreaker('web/fetch')
  await assert.rejects(fetch({ n: 4 }), { code: 'upstream_unavailable' })
  assert.equal(runs, 3)
})

test('a function that takes too long is aborted, and its call ends', async (t) => {
  const steadfast = await memory(t, '[retry]\nattempts = 1\n')
  const reason = gate()
  const hang = steadfast.guard('web/hang', async (args, { signal }) => {
    reason.resolve(await aborted(signal))
    return new Promise(() => {})
  }, { timeoutMs: 1, annotations: { readOnlyHint: true } })
  await assert.rejects(hang({}), { name: 'CallError', code: 'timeout' })
  assert.equal((await reason.promise).code, 'attempt_ended')
})

test('the signal of the caller cancels the call and reaches the function', async (t) => {
  const steadfast = await memory(t)
  const controller = new AbortController()
  const reason = gate()
  const hang = steadfast.guard('web/hang', async (args, { signal }) => {
    controller.abort()
    reason.resolve(await aborted(signal))
    throw signal.reason
  }, { annotations: { readOnlyHint: true } })
  await assert.rejects(hang({}, { signal: controller.signal }), { code: 'cancelled' })
  await reason.promise
  let runs = 0
  const late = steadfast.guard('web/late', () => { runs += 1 })
  await assert.rejects(late({}, { signal: AbortSignal.abort('too late') }), { name: 'OperationError', code: 'cancelled', cause: 'too late' })
  assert.equal(runs, 0)
})

test('progress extends the timeout of an attempt', async (t) => {
  const steadfast = await memory(t)
  const work = steadfast.guard('lab/work', async (args, attempt) => {
    attempt.progress()
    assert.equal(typeof attempt.deadlineAtMs, 'number')
    return 'done'
  })
  assert.equal(await work({}), 'done')
})

test('every attempt runs in the async context of the caller', async (t) => {
  const steadfast = await memory(t)
  const storage = new AsyncLocalStorage()
  const recorded = []
  const fetch = steadfast.guard('web/fetch', async (args, { attempt }) => {
    recorded.push(storage.getStore())
    if (attempt === 1) throw errorWith('busy', { status: 503 })
  })
  await Promise.all([storage.run('a', () => fetch({ of: 'a' })), storage.run('b', () => fetch({ of: 'b' }))])
  assert.deepEqual(recorded.sort(), ['a', 'a', 'b', 'b'])
})

test('a tool may describe its failure itself', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const read = steadfast.guard('disk/read', async () => {
    runs += 1
    throw new ToolFailure('the disk sleeps', { source: { kind: 'transport', error: 'timed_out', written: false } })
  })
  await assert.rejects(read({}), { code: 'retry_exhausted' })
  assert.equal(runs, 4)
})

test('a result that is not JSON is a failure of the tool, which ran', async (t) => {
  const steadfast = await memory(t)
  const count = steadfast.guard('math/count', () => ({ big: 10n }))
  const error = await count({}).catch((error) => error)
  assert(error instanceof CallError)
  assert.equal(error.mayHaveRun, true)
  assert.match(error.message, /JSON/)
})

test('call resolves with the whole result, also if it is an error', async (t) => {
  const steadfast = await memory(t)
  const good = await steadfast.call({ tool: 'bank/pay', key: 'k', args: { cents: 1 } }, () => ({ number: 7 }))
  assert.deepEqual(good.result.output, { content: { number: 7 } })
  assert.equal(good.verdict, 'none')
  const again = await steadfast.call({ tool: 'bank/pay', key: 'k', args: { cents: 1 } }, () => assert.fail('it ran'))
  assert.equal(again.result.fromCache, true)
  assert.deepEqual(again.result.output, { content: { number: 7 } })
  const bad = await steadfast.call({ tool: 'bank/pay' }, () => { throw new Error('no money') })
  assert.equal(bad.result.error.code, 'tool_error')
})

test('a repeated failure with equal arguments is a loop, and the third call does not run', async (t) => {
  const steadfast = await memory(t)
  let runs = 0
  const fail = () => { runs += 1; throw new Error('Missing required parameter: path') }
  const call = () => steadfast.call({ tool: 'disk/read', session: 's', turn: 't' }, fail)
  await call()
  assert.equal((await call()).verdict, 'loop_detected')
  const third = await call()
  assert.equal(third.result.error.code, 'loop_detected')
  assert.equal(third.verdict, 'loop_detected')
  assert.equal(runs, 2)
  assert.deepEqual(await steadfast.resetGuard('s'), { freed: 1 })
  await call()
  assert.equal(runs, 3)
})

test('options that do not exist are errors of the program', async (t) => {
  const steadfast = await memory(t)
  assert.throws(() => steadfast.guard('a/b', () => {}, { approval: 'perhaps' }), InvalidCallError)
  await assert.rejects(steadfast.guard('no-namespace', () => {})({}), { name: 'InvalidCallError', code: 'invalid_envelope' })
  await assert.rejects(steadfast.guard('a/b', () => {}, { sesion: 's' })({}), /sesion is not a field/)
})

test('approval: a function of the program decides while the call waits', async (t) => {
  const steadfast = await memory(t, `${QUICK}[tools."bank/pay"]\napproval = "always"\n`)
  const requests = []
  const pay = steadfast.guard('bank/pay', () => 'paid', {
    approval: async (request, { signal }) => {
      requests.push(request)
      assert(signal instanceof AbortSignal)
      return requests.length === 1 ? 'once' : 'deny'
    },
  })
  assert.equal(await pay({ cents: 1 }), 'paid')
  await assert.rejects(pay({ cents: 2 }), { code: 'approval_denied', mayHaveRun: false })
  assert.deepEqual(requests[0].tool, { namespace: 'bank', tool: 'pay' })
  assert.match(requests[0].prompt.summary, /\S/)
})

test('approval: a function that fails means that no user could be asked', async (t) => {
  const steadfast = await memory(t, '[tools."bank/pay"]\napproval = "always"\napproval_timeout = "1ms"\n')
  const pay = steadfast.guard('bank/pay', () => 'paid', { approval: async () => { throw new Error('no user') } })
  await assert.rejects(pay({ cents: 1 }), { code: 'approval_required' })
})

test('approval: without a function the call is refused, and an operator may approve it before it is made again', async (t) => {
  const steadfast = await memory(t, `${QUICK}[tools."bank/pay"]\napproval = "always"\n`)
  const pay = steadfast.guard('bank/pay', () => 'paid')
  await assert.rejects(pay({ cents: 1 }), { code: 'approval_required', mayHaveRun: false })
  const [request] = await steadfast.approvals()
  assert.deepEqual(request.tool, { namespace: 'bank', tool: 'pay' })
  assert.deepEqual(await steadfast.approve(request.id), { granted: true })
  assert.equal(await pay({ cents: 1 }), 'paid')
  await assert.rejects(steadfast.deny(4711), { name: 'OperationError', code: 'not_found', status: 404 })
})

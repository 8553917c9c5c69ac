// Whatever a model or a host sends: a typed error or a defined result, and the process lives.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { InvalidCallError, OpenError, open } from '../index.mjs'
import { folder, memory } from './support.mjs'

const native = createRequire(import.meta.url)('../lib/native.cjs')
const DONE = { output: { content: 'done' } }

test('arguments with a BigInt or a cycle, or that throw, are typed errors', async (t) => {
  const steadfast = await memory(t)
  const cycle = {}
  cycle.self = cycle
  const angry = { toJSON() { throw new Error('not today') } }
  for (const args of [{ big: 1n }, cycle, angry, { get field() { throw new Error('no') } }]) {
    assert.throws(() => steadfast.begin({ tool: 'a/b', args }), (error) => {
      assert(error instanceof InvalidCallError)
      assert.equal(error.code, 'invalid_arguments')
      return true
    })
    await assert.rejects(steadfast.guard('a/b', () => assert.fail('it ran'))(args), { code: 'invalid_arguments' })
  }
})

test('arguments that are no object are typed errors, and none at all are an empty object', async (t) => {
  const steadfast = await memory(t)
  for (const args of [[1], 'text', 7, true]) {
    assert.throws(() => steadfast.begin({ tool: 'a/b', args }), { name: 'InvalidCallError', code: 'invalid_arguments' })
  }
  for (const args of [undefined, null, {}, () => {}, Symbol('s')]) {
    const step = await steadfast.begin({ tool: 'a/b', args })
    await steadfast.report(step, DONE)
  }
})

test('calls that are no calls are typed errors', async (t) => {
  const steadfast = await memory(t)
  for (const call of [undefined, null, 7, 'a/b', [], {}, { tool: '' }, { tool: 'a/' }, { tool: 7 }, { tool: 'a/b', session: '' }, { tool: 'a/b', session: 'x'.repeat(257) }, { tool: 'a/b', key: 'a\nb' }, { tool: 'a/b', tags: 'x' }, { tool: 'a/b', timeoutMs: 0 }, { tool: 'a/b', deadlineAtMs: 1.5 }]) {
    assert.throws(() => steadfast.begin(call), { name: 'InvalidCallError' }, JSON.stringify(call))
  }
})

test('half of a surrogate pair in arguments is a typed error, in a result it arrives as it was', async (t) => {
  const steadfast = await memory(t)
  assert.throws(() => steadfast.begin({ tool: 'a/b', args: { text: '\ud83d' } }), { name: 'InvalidCallError', message: /surrogate/ })
  assert.throws(() => steadfast.begin({ tool: 'a/b', session: '\udc00' }), InvalidCallError)
  const call = { tool: 'a/b', key: 'k' }
  const { result } = await steadfast.report(await steadfast.begin(call), { output: { content: 'cut \ud83d' } })
  assert.equal(result.output.content, 'cut \ud83d')
  assert.equal((await steadfast.begin(call)).result.output.content, 'cut \ud83d')
  await assert.rejects(steadfast.guard('a/c', () => { throw new Error('bad \ud83d') })({}), { name: 'CallError' })
})

test('two mebibytes of arguments and of a result are fine', async (t) => {
  const steadfast = await memory(t)
  const text = 'ä"\n'.repeat(1 << 20)
  const echo = steadfast.guard('a/echo', ({ text }) => text, { key: () => 'k' })
  assert.equal((await echo({ text })).length, text.length)
  assert.equal(await echo({ text }), text)
})

test('arguments that are too deep or too large are typed errors', async (t) => {
  const steadfast = await memory(t)
  let deep = {}
  for (let depth = 0; depth < 1000; depth += 1) deep = { deep }
  assert.throws(() => steadfast.begin({ tool: 'a/b', args: deep }), { name: 'InvalidCallError', code: 'invalid_envelope' })
  assert.throws(() => steadfast.begin({ tool: 'a/b', args: { text: 'x'.repeat(65 << 20) } }), InvalidCallError)
})

test('errors of tools may be anything', async (t) => {
  const steadfast = await memory(t, '[guard]\nmode = "off"\n[trust]\nmode = "off"\n[breaker]\nmode = "off"\n')
  const cycle = new Error('round')
  cycle.cause = cycle
  const hostile = new Proxy({}, { get() { throw new Error('hands off') } })
  for (const thrown of [undefined, null, 0, '', 'text', 1n, Symbol('s'), {}, [], () => {}, cycle, Object.create(null), new AggregateError([1, 2]), hostile]) {
    await assert.rejects(steadfast.guard('a/b', () => { throw thrown })({}), { name: 'CallError', code: 'tool_error' })
    await assert.rejects(steadfast.guard('a/b', async () => { throw thrown })({}), { name: 'CallError', code: 'tool_error' })
  }
  const thenable = { then(resolve) { resolve('good') } }
  assert.equal(await steadfast.guard('a/c', () => thenable)({}), 'good')
  const twice = { then(resolve, reject) { resolve('first'); resolve('second'); reject(new Error('third')) } }
  assert.equal(await steadfast.guard('a/c', () => twice)({}), 'first')
})

test('plans and options that are not valid are typed errors', async (t) => {
  const steadfast = await memory(t)
  for (const plan of [undefined, {}, { calls: [] }, { calls: [{ id: 'a' }] }, { calls: [{ id: 'a', tool: 'x/y', dependsOn: ['a'] }] }]) {
    await assert.rejects(steadfast.turn(plan, {}), { name: 'InvalidCallError', code: 'invalid_plan' })
  }
  const { status, calls } = await steadfast.turn({ calls: [{ id: 'a', tool: 'no/such' }] }, {})
  assert.equal(status, 'failed')
  assert.equal(calls.length, 1)
  await assert.rejects(steadfast.reconfigure('retry = 7'), { name: 'OpenError', code: 'invalid_configuration' })
  await assert.rejects(steadfast.api('GET', 'not a path'), { name: 'InvalidCallError' })
  await assert.rejects(steadfast.api('GET', '/v1/nothing'), { name: 'OperationError', status: 404 })
})

test('a configuration with errors names them all', async () => {
  const config = '[retry]\nattempts = 0\nbas = "1s"\n'
  const error = await open({ stateFile: null, config }).catch((error) => error)
  assert(error instanceof OpenError)
  assert.equal(error.code, 'invalid_configuration')
  assert.equal(error.problems.length, 2)
  assert.match(error.message, /bas/)
  await assert.rejects(open({ stateFile: null, configFile: '/no/such/file.toml' }), OpenError)
  await assert.rejects(open({ stateFile: 7 }), OpenError)
})

test('a state file that is no database, or in a place that cannot be written, is a typed error', async (t) => {
  const path = await folder(t)
  const stateFile = join(path, 'state.db')
  await writeFile(stateFile, 'this is a letter, and no database '.repeat(100))
  await assert.rejects(open({ stateFile }), { name: 'OpenError', code: 'store_unusable' })
  await assert.rejects(open({ stateFile: '/proc/no/such/state.db' }), OpenError)
  await assert.rejects(open({ stateFile: path }), OpenError)
})

test('a state file that is locked or damaged while it is in use never hangs a call', async (t) => {
  const path = await folder(t)
  const stateFile = join(path, 'state.db')
  const steadfast = await open({ stateFile })
  t.after(() => steadfast.close({ graceMs: 0 }))
  const pay = steadfast.guard('bank/pay', ({ n }) => n, { key: ({ n }) => n, annotations: { destructiveHint: true } })
  assert.equal(await pay({ n: 1 }), 1)
  const other = new DatabaseSync(stateFile)
  other.exec('BEGIN EXCLUSIVE')
  const locked = await pay({ n: 2 }).catch((error) => error)
  assert(locked === 2 || locked.code === 'store_unavailable', String(locked))
  other.exec('ROLLBACK')
  other.close()
  assert.equal(await pay({ n: 1 }), 1, 'the lock is gone')
  for (const name of ['state.db', 'state.db-wal']) await writeFile(join(path, name), 'noise '.repeat(10_000)).catch(() => {})
  for (const n of [3, 4]) {
    const damaged = await pay({ n }).catch((error) => error)
    assert(damaged === n || damaged.name === 'CallError', String(damaged))
  }
  assert.equal(typeof (await steadfast.status()).verdict, 'string')
})

test('a full disk is the fail mode of the policy, and the process lives', { skip: process.platform === 'win32' }, async (t) => {
  const path = await folder(t)
  // The largest file that this process may write. Without the signal, a longer one is an error like a full disk.
  const command = 'trap "" XFSZ; ulimit -f 2000; exec "$0" "$@"'
  const script = join(import.meta.dirname, 'programs', 'full-disk.mjs')
  const { stdout } = await promisify(execFile)('sh', ['-c', command, process.execPath, script, join(path, 'state.db')])
  const { outcomes, readOnly, store } = JSON.parse(stdout)
  assert(outcomes.includes('success'), String(outcomes))
  for (const outcome of outcomes) assert.match(outcome, /^(success|CallError store_unavailable)$/)
  assert.equal(readOnly, 'success')
  assert.match(store, /string|undefined/)
})

test('a panic in Rust is a typed error, and the engine goes on', { skip: native.panicHere === undefined && 'needs the test build' }, async (t) => {
  const steadfast = await memory(t)
  const { error } = JSON.parse(native.panicHere())
  assert.equal(error.kind, 'internal')
  assert.match(error.message, /on purpose/)
  assert.equal((await steadfast.begin({ tool: 'a/b' })).next, 'run')
})

test('functions that call the engine from inside a call, and thousands of calls at once, end', async (t) => {
  const steadfast = await memory(t, '[guard]\nmode = "off"\n')
  const inner = steadfast.guard('a/inner', async ({ n }) => n + 1)
  const outer = steadfast.guard('a/outer', async ({ n }) => inner({ n }))
  const all = await Promise.all(Array.from({ length: 2000 }, (_, n) => outer({ n })))
  assert.deepEqual(all, Array.from({ length: 2000 }, (_, n) => n + 1))
})

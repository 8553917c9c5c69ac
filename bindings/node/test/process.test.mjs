// The engine and its process: module instances, threads, other copies, the exit.

import assert from 'node:assert/strict'
import { copyFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { basename, join } from 'node:path'
import { test } from 'node:test'
import { Worker } from 'node:worker_threads'
import * as esm from '../index.mjs'
import { QUICK, folder, program } from './support.mjs'

const require = createRequire(import.meta.url)
const { platform } = require('../lib/platform.cjs')

/** Loads the package again, as a host does that clears its module cache. */
function freshInstance() {
  const base = join(import.meta.dirname, '..')
  for (const path of Object.keys(require.cache)) if (path.startsWith(base) && !path.includes('node_modules')) delete require.cache[path]
  return require('../index.cjs')
}

test('both entries of the package are one module', () => {
  assert.equal(require('../index.cjs').open, esm.open)
  assert.equal(esm.version, require('../package.json').version)
})

test('instances of the module share the engine of a state file, and the last close ends it', async (t) => {
  const stateFile = join(await folder(t), 'state.db')
  const [one, two, three] = [esm, freshInstance(), freshInstance()]
  assert.notEqual(one.open, two.open)
  const engines = await Promise.all([one, two, three].map(({ open }) => open({ stateFile, config: QUICK })))
  const call = { tool: 'bank/pay', args: { cents: 1 }, key: 'k' }
  const step = await engines[0].begin(call)
  const waiting = engines[1].begin(call)
  await engines[2].report(step, { output: { content: 'paid' } })
  assert.equal((await waiting).result.output.content, 'paid')
  const error = await engines[1].guard('a/b', () => { throw new Error('no') })({}).catch((error) => error)
  assert(error instanceof one.CallError && error instanceof three.SteadfastError, 'errors are known to all instances')
  assert(!(error instanceof one.OpenError))
  assert.equal((await engines[0].close()).shared, true)
  assert.equal((await engines[1].close()).shared, true)
  assert.equal((await engines[2].begin(call)).result.fromCache, true)
  assert.equal((await engines[2].close()).shared, false)
  const reopened = await one.open({ stateFile })
  assert.equal((await reopened.begin(call)).result.fromCache, true, 'the file has the result')
  await reopened.close()
})

test('other spellings of a path are the same file', async (t) => {
  const path = await folder(t)
  const [one, two] = [await esm.open({ stateFile: join(path, 'state.db') }), await esm.open({ stateFile: `${path}/../${basename(path)}/./state.db` })]
  assert.equal((await one.close()).shared, true)
  await two.close()
})

test('state in memory is shared by name', async () => {
  const [one, two] = [await esm.open({ stateFile: null, name: 'a' }), await esm.open({ stateFile: null, name: 'a' })]
  const other = await esm.open({ stateFile: null })
  const call = { tool: 'bank/pay', args: {}, key: 'k' }
  await one.report(await one.begin(call), { output: { content: 1 } })
  assert.equal((await two.begin(call)).next, 'answer')
  assert.equal((await other.begin(call)).next, 'run')
  for (const engine of [one, two, other]) await engine.close({ graceMs: 0 })
})

test('other settings for an open engine are refused, joined or applied', async (t) => {
  const stateFile = join(await folder(t), 'state.db')
  const one = await esm.open({ stateFile, config: QUICK })
  const config = '[tools."bank/pay"]\napproval = "always"\n'
  await assert.rejects(esm.open({ stateFile, config }), { name: 'OpenError', code: 'already_open' })
  const joined = await esm.open({ stateFile, config, ifOpen: 'join' })
  const call = { tool: 'bank/pay', args: { cents: 1 } }
  await one.report(await joined.begin(call), { output: { content: 1 } })
  const applied = await esm.open({ stateFile, config, ifOpen: 'reconfigure' })
  assert.equal((await one.begin({ ...call, args: { cents: 2 } })).result.error.code, 'approval_required')
  for (const engine of [one, joined, applied]) await engine.close()
})

test('a worker shares the engine, and its end takes nothing from others', async (t) => {
  const stateFile = join(await folder(t), 'state.db')
  const steadfast = await esm.open({ stateFile, config: QUICK })
  t.after(() => steadfast.close())
  const worker = new Worker(join(import.meta.dirname, 'programs', 'worker.mjs'), { workerData: { stateFile, config: QUICK } })
  const [message] = await new Promise((resolve, reject) => {
    worker.once('message', (...messages) => resolve(messages))
    worker.once('error', reject)
  })
  assert.equal(message, 'running')
  const waiting = steadfast.begin({ tool: 'bank/pay', args: { cents: 1 }, key: 'k' })
  await worker.terminate()
  const { result } = await waiting
  assert.equal(result.error.code, 'outcome_unknown', 'what ran in the worker is not known')
  const call = { tool: 'web/fetch', args: {} }
  assert.equal((await steadfast.report(await steadfast.begin(call), { output: { content: 1 } })).result.status, 'success')
})

test('a worker that loads the package first and ends does not take the library with it', async () => {
  const { code, stdout, stderr } = await program('worker-first.mjs')
  assert.equal(stderr, '')
  assert.equal(code, 0)
  assert.equal(stdout, 'worker ended\nanswer\n')
})

test('what is open at the exit is flushed', async (t) => {
  for (const exit of ['end', 'exit', 'throw']) {
    const stateFile = join(await folder(t), 'state.db')
    const { code } = await program('exit.mjs', { args: [stateFile, exit] })
    assert.equal(code, exit === 'end' ? 0 : exit === 'exit' ? 3 : 1, exit)
    const steadfast = await esm.open({ stateFile })
    const { breakers } = await steadfast.api('GET', '/v1/breakers')
    assert.deepEqual(breakers.map(({ key, state }) => [key, state]), [['tool:web:fetch', 'FORCED_OPEN']], exit)
    const { history } = { history: await steadfast.api('GET', '/v1/history') }
    assert.equal(history.calls.length, 1, exit)
    const step = await steadfast.begin({ tool: 'bank/pay', args: {}, key: 'k' })
    assert.equal(step.result?.error?.code ?? step.next, 'outcome_unknown', exit)
    await steadfast.close()
  }
})

test('a second copy of the addon in the same process', async (t) => {
  const path = await folder(t)
  const copy = join(path, `other.${platform()}.node`)
  await copyFile(join(import.meta.dirname, '..', `steadfast-node.${platform()}.node`), copy)
  const { code, stdout, stderr } = await program('second-copy.mjs', { args: [copy, join(path, 'state.db')] })
  assert.equal(stderr, '')
  assert.equal(code, 0)
  assert.deepEqual(JSON.parse(stdout), { refused: 'OpenError', memory: 'run' })
})

test('a program with nothing to do ends, also with an open engine, a follower and a watched signal', async () => {
  const { code, stdout } = await program('idle.mjs')
  assert.equal(code, 0)
  assert.equal(stdout, 'ready\n')
})

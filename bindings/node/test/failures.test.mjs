import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createServer } from 'node:net'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { ToolFailure, toFailure } from '../index.mjs'
import { errorWith } from './support.mjs'

const transport = (error, written) => ({ kind: 'transport', error, written })

test('errors become facts, and what is not known stays unsaid', () => {
  for (const [error, source] of [
    [new Error('no'), undefined],
    ['text', undefined],
    [undefined, undefined],
    [errorWith('x', { code: 'ECONNREFUSED' }), transport('connection_refused', false)],
    [errorWith('x', { code: 'ENOTFOUND' }), transport('name_not_found', false)],
    [errorWith('x', { code: 'ECONNRESET' }), transport('connection_reset', true)],
    [errorWith('x', { code: 'ECONNRESET', syscall: 'connect' }), transport('connection_reset', false)],
    [errorWith('x', { code: 'ETIMEDOUT' }), transport('timed_out', true)],
    [errorWith('x', { code: 'ETIMEDOUT', errors: [{ syscall: 'connect' }, { syscall: 'connect' }] }), transport('timed_out', false)],
    [errorWith('x', { code: 'EHOSTUNREACH', syscall: 'connect' }), transport('unreachable', false)],
    [errorWith('x', { code: 'UND_ERR_CONNECT_TIMEOUT' }), transport('timed_out', false)],
    [errorWith('x', { code: 'UND_ERR_SOCKET' }), transport('connection_closed', true)],
    [errorWith('x', { code: 'CERT_HAS_EXPIRED' }), transport('tls', false)],
    [new TypeError('fetch failed', { cause: errorWith('x', { code: 'ECONNREFUSED' }) }), transport('connection_refused', false)],
    [new DOMException('x', 'TimeoutError'), transport('timed_out', true)],
    [new DOMException('x', 'AbortError'), transport('connection_closed', true)],
    [errorWith('x', { status: 503 }), { kind: 'http', status: 503 }],
    [errorWith('x', { statusCode: 429 }), { kind: 'http', status: 429 }],
    [errorWith('x', { response: { status: 500 } }), { kind: 'http', status: 500 }],
    [errorWith('x', { status: 'error' }), undefined],
    [errorWith('x', { code: -32602 }), { kind: 'json_rpc', code: -32602 }],
    [errorWith('x', { code: 1 }), undefined],
    [errorWith('x', { code: 'ENOENT' }), undefined],
    [errorWith('x', { signal: 'SIGKILL' }), { kind: 'exit', signal: 9 }],
    [errorWith('x', { code: 'constructor' }), undefined],
  ]) {
    assert.deepEqual(toFailure(error).source, source, String(error?.code ?? error))
  }
})

test('Retry-After is read as seconds and as a date, from headers of every kind', () => {
  const after = (fields) => toFailure(errorWith('x', { status: 429, ...fields })).retryAfterMs
  assert.equal(after({ headers: { 'retry-after': '2' } }), 2000)
  assert.equal(after({ headers: new Headers({ 'Retry-After': '0.5' }) }), 500)
  assert.equal(after({ responseHeaders: { 'retry-after': '1' } }), 1000)
  assert.equal(after({ response: { status: 429, headers: { 'Retry-After': '3' } } }), 3000)
  assert.equal(after({ headers: { 'retry-after': 'Thu, 01 Jan 1970 00:00:00 GMT' } }), 0)
  assert.equal(after({ headers: { 'retry-after': 'soon' } }), undefined)
  assert.equal(after({}), undefined)
})

test('a message contains that of the cause, once', () => {
  assert.equal(toFailure(new TypeError('fetch failed', { cause: new Error('connect ECONNREFUSED') })).message, 'fetch failed: connect ECONNREFUSED')
  assert.equal(toFailure(new Error('a b', { cause: new Error('b') })).message, 'a b')
  assert.equal(toFailure(new Error('')).message, 'Error')
  assert.equal(toFailure(7n).message, '7')
})

test('a failure that a tool describes is taken as it is', () => {
  const failure = new ToolFailure('busy', { source: { kind: 'is_error' }, retryAfterMs: 5, output: { content: 1 } })
  assert.deepEqual(toFailure(failure), { message: 'busy', source: { kind: 'is_error' }, retryAfterMs: 5, output: { content: 1 } })
})

test('real errors of fetch and of child processes are known', async () => {
  // A port that was free a moment ago.
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const { port } = server.address()
  await new Promise((resolve) => server.close(resolve))
  const refused = await fetch(`http://127.0.0.1:${port}/`).catch((error) => error)
  assert.deepEqual(toFailure(refused).source, transport('connection_refused', false))
  const closing = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1')
  await new Promise((resolve) => closing.once('listening', resolve))
  const lost = await fetch(`http://127.0.0.1:${closing.address().port}/`).catch((error) => error)
  assert.equal(toFailure(lost).source.written, true)
  closing.close()
  const run = promisify(execFile)
  const exited = await run(process.execPath, ['-e', 'process.exit(3)']).catch((error) => error)
  assert.equal(toFailure(exited).source, undefined)
  const killed = await run(process.execPath, ['-e', 'process.kill(process.pid, "SIGKILL")']).catch((error) => error)
  assert.deepEqual(toFailure(killed).source, { kind: 'exit', signal: 9 })
})

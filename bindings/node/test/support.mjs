// What the tests share.

import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { open } from '../index.mjs'

/** Settings under which a retry waits for a moment only. */
export const QUICK = '[retry]\nbase = "1ms"\ncap = "2ms"\n'

/** Opens an engine in memory, which is closed at the end of the test. */
export async function memory(t, config = QUICK) {
  const steadfast = await open({ stateFile: null, config })
  t.after(() => steadfast.close({ graceMs: 0 }))
  return steadfast
}

/** Creates a folder, which is removed at the end of the test. */
export async function folder(t) {
  const path = await mkdtemp(join(tmpdir(), 'steadfast-node-'))
  t.after(() => rm(path, { recursive: true, force: true }))
  return path
}

/** Runs a program of `programs` to its end. Returns its exit code and its output. */
export function program(name, { args = [], env = {}, input } = {}) {
  const path = join(import.meta.dirname, 'programs', name)
  const child = spawn(process.execPath, [path, ...args], {
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env }, stdio: ['pipe', 'pipe', 'pipe'],
  })
  child.stdin.end(input)
  const out = { stdout: '', stderr: '' }
  for (const stream of ['stdout', 'stderr']) child[stream].setEncoding('utf8').on('data', (text) => { out[stream] += text })
  // Against hanging only.
  const guard = setTimeout(() => child.kill('SIGKILL'), 120_000)
  return new Promise((resolve) => {
    child.on('close', (code, signal) => {
      clearTimeout(guard)
      resolve({ code, signal, ...out })
    })
  })
}

/** Returns a promise with its resolving functions. */
export function gate() {
  return Promise.withResolvers()
}

/** Resolves when the signal aborts. */
export function aborted(signal) {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(signal.reason)
    else signal.addEventListener('abort', () => resolve(signal.reason), { once: true })
  })
}

/** An error with these fields. */
export function errorWith(message, fields) {
  return Object.assign(new Error(message), fields)
}

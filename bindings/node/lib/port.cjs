'use strict'

/** The messages between this thread and the native part. */

const { isMainThread } = require('node:worker_threads')
const native = require('./native.cjs')
const { fromNative, unexpected } = require('./errors.cjs')

/** What waits for a message, by the number that the native part knows. */
const waiting = new Map()
let last = 0

/** Keeps the process running while a call or an operation waits. Followers of events and signals do not. */
const presence = setInterval(() => {}, 0x7fffffff)
presence.unref()
let present = 0

const environment = new native.NativeEnvironment(() => {
  for (const message of environment.drain()) {
    const end = message.indexOf(':')
    waiting.get(Number(message.slice(0, end)))?.handler(message.slice(end + 1))
  }
})

// The end of the process waits for no thread: what is open is flushed here, once for all instances of this module. The
// end of a worker closes what only the worker used, in the native part.
const FLUSH = Symbol.for(`steadfast.flush:${native.copyId()}`)
if (isMainThread && !globalThis[FLUSH]) {
  globalThis[FLUSH] = true
  process.once('exit', () => native.flushAll())
}

/** Returns a new number. */
function number() {
  do last = last === 0xffffffff ? 1 : last + 1
  while (waiting.has(last))
  return last
}

/** Waits for messages to this number, until `forget`. */
function expect(to, handler, { keepsRunning = true } = {}) {
  waiting.set(to, { handler, keepsRunning })
  if (keepsRunning && (present += 1) === 1) presence.ref()
}

function forget(to) {
  const entry = waiting.get(to)
  if (waiting.delete(to) && entry.keepsRunning && (present -= 1) === 0) presence.unref()
}

/** Reads an answer that is `{"ok": …}`. Throws its error. */
function read(text) {
  const message = JSON.parse(text)
  if (message.error) throw fromNative(message.error)
  return message
}

/** Calls a function of the native part. What it throws is a bug. */
function attempt(work) {
  try {
    return work()
  } catch (cause) {
    throw unexpected(cause)
  }
}

/**
 * Runs an operation of the native part: `start(to)` returns its answer, or nothing if it has to wait. `convert` makes the
 * value of the answer; its errors are those of the operation. Returns the value, or a promise of it.
 *
 * `onWait(to, reject)` is called if it has to wait, and may return a function to call at the end. `onMessage` takes
 * messages that are not the answer.
 */
function operate(start, convert, { onWait, onMessage } = {}) {
  const to = number()
  const text = attempt(() => start(to))
  if (text != null) return convert(read(text))
  return new Promise((resolve, reject) => {
    const end = onWait?.(to, reject)
    expect(to, (text) => {
      const message = JSON.parse(text)
      if (onMessage?.(message)) return
      forget(to)
      end?.()
      try {
        if (message.error) throw fromNative(message.error)
        resolve(convert(message))
      } catch (error) {
        reject(error)
      }
    })
  })
}

/** Runs an operation whose answer is its value. Always returns a promise. */
async function ask(start) {
  return operate(start, ({ ok }) => ok)
}

module.exports = { native, environment, number, expect, forget, read, attempt, operate, ask }

'use strict'

/**
 * Converts what tools throw to failures. It states facts (which error of the connection, which status); what they mean
 * is decided by the engine.
 */

const { constants } = require('node:os')

const BRAND = Symbol.for('steadfast.tool-failure')

/** A failure that a tool describes itself. */
class ToolFailure extends Error {
  constructor(message, { source, retryAfterMs, output, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = 'ToolFailure'
    this.failure = { message: String(message), source, retryAfterMs, output }
    Object.defineProperty(this, BRAND, { value: true })
  }
}

const QUESTION = Symbol.for('steadfast.input-required')

/** What a tool throws that needs input before it has any effect. */
class InputRequired extends Error {
  constructor(question) {
    super('the tool needs input')
    this.name = 'InputRequired'
    this.question = question
    Object.defineProperty(this, QUESTION, { value: true })
  }

  /** Returns true for the error of any instance of this module. */
  static is(error) {
    return error?.[QUESTION] === true
  }
}

/** Errors of connections, and whether any of the request may have arrived. `undefined`: unless it failed to connect. */
const CODES = {
  ECONNREFUSED: ['connection_refused', false],
  ENOTFOUND: ['name_not_found', false],
  EAI_AGAIN: ['name_not_found', false],
  EHOSTUNREACH: ['unreachable'],
  ENETUNREACH: ['unreachable'],
  EHOSTDOWN: ['unreachable'],
  ENETDOWN: ['unreachable'],
  ECONNRESET: ['connection_reset'],
  EPIPE: ['connection_reset'],
  ECONNABORTED: ['connection_closed'],
  ETIMEDOUT: ['timed_out'],
  ESOCKETTIMEDOUT: ['timed_out', true],
  UND_ERR_CONNECT_TIMEOUT: ['timed_out', false],
  UND_ERR_HEADERS_TIMEOUT: ['timed_out', true],
  UND_ERR_BODY_TIMEOUT: ['timed_out', true],
  UND_ERR_SOCKET: ['connection_closed', true],
  UND_ERR_ABORTED: ['connection_closed', true],
  ERR_STREAM_PREMATURE_CLOSE: ['connection_closed', true],
  SELF_SIGNED_CERT_IN_CHAIN: ['tls', false],
  DEPTH_ZERO_SELF_SIGNED_CERT: ['tls', false],
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: ['tls', false],
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: ['tls', false],
}
const TLS = /^(ERR_TLS_|ERR_SSL_|CERT_)/
/** How deep the causes of an error are searched. */
const DEEPEST = 5

/** See `index.d.ts`. */
function toFailure(error) {
  if (error?.[BRAND]) return error.failure
  const message = messageOf(error)
  if (error === null || typeof error !== 'object') return { message }
  const status = statusOf(error)
  if (status !== undefined) return { message, source: { kind: 'http', status }, retryAfterMs: retryAfterOf(error) }
  for (let cause = error, depth = 0; isObject(cause) && depth < DEEPEST; cause = cause.cause, depth += 1) {
    const source = sourceOf(cause)
    if (source) return { message, source }
  }
  return { message }
}

/** Returns the message of an error, and of its causes where they say more. */
function messageOf(error) {
  if (!isObject(error)) return String(error)
  const texts = []
  for (let cause = error, depth = 0; isObject(cause) && depth < DEEPEST; cause = cause.cause, depth += 1) {
    const text = typeof cause.message === 'string' && cause.message !== '' ? cause.message : cause.name
    if (typeof text === 'string' && !texts.some((known) => known.includes(text))) texts.push(text)
  }
  return texts.length > 0 ? texts.join(': ') : String(error)
}

function sourceOf(error) {
  const { name, code, signal } = error
  if (name === 'TimeoutError') return { kind: 'transport', error: 'timed_out', written: true }
  if (name === 'AbortError') return { kind: 'transport', error: 'connection_closed', written: true }
  if (typeof code === 'string') {
    const known = Object.hasOwn(CODES, code) ? CODES[code] : TLS.test(code) ? ['tls', false] : undefined
    if (known) return { kind: 'transport', error: known[0], written: known[1] ?? !failedToConnect(error) }
  }
  // Codes of JSON-RPC are small negative numbers; a child process has its exit code there.
  if (Number.isInteger(code) && code <= -32000 && code >= -32768) return { kind: 'json_rpc', code }
  if (typeof signal === 'string' && Object.hasOwn(constants.signals, signal)) {
    return { kind: 'exit', signal: constants.signals[signal] }
  }
  return undefined
}

/** Returns true if the connection was never made. Several addresses fail together as one error with all `errors`. */
function failedToConnect(error) {
  const all = Array.isArray(error.errors) && error.errors.length > 0 ? error.errors : [error]
  return all.every((one) => one?.syscall === 'connect')
}

function statusOf(error) {
  const isStatus = (value) => Number.isInteger(value) && value >= 100 && value <= 599
  return [error.status, error.statusCode, error.response?.status, error.response?.statusCode].find(isStatus)
}

function retryAfterOf(error) {
  const all = [error.responseHeaders, error.headers, error.response?.headers]
  for (const headers of all) {
    const text = typeof headers?.get === 'function' ? headers.get('retry-after') : (headers?.['retry-after'] ?? headers?.['Retry-After'])
    const after = retryAfter(text)
    if (after !== undefined) return after
  }
  return undefined
}

/** Reads `Retry-After`: seconds, or a date. */
function retryAfter(text) {
  if (text === undefined || text === null || text === '') return undefined
  const seconds = Number(text)
  const wait = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(text) - Date.now()
  return Number.isFinite(wait) ? Math.max(0, Math.ceil(wait)) : undefined
}

function isObject(value) {
  return typeof value === 'object' && value !== null
}

module.exports = { toFailure, ToolFailure, InputRequired }

'use strict'

/** The errors of this package. The texts and codes come from the engine. */

const BRAND = Symbol.for('steadfast.error')

class SteadfastError extends Error {
  constructor(message, { code, cause, ...fields } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    Object.defineProperty(this, 'name', { value: new.target.name, configurable: true, writable: true })
    this.code = code
    for (const [field, value] of Object.entries(fields)) if (value !== undefined) this[field] = value
    // Which classes it belongs to, for other instances of this module.
    const names = []
    for (let type = new.target; type !== Error; type = Object.getPrototypeOf(type)) names.push(type.name)
    Object.defineProperty(this, BRAND, { value: names })
  }

  static [Symbol.hasInstance](value) {
    const names = value?.[BRAND]
    return Array.isArray(names) && names.includes(this.name)
  }
}

class CallError extends SteadfastError {
  /** Makes the error of an answer whose result is an error. */
  static of({ result, remarks, mayHaveRun }, cause) {
    const { code, message, rule, retryAfterMs, verify, retriable } = result.error
    return new CallError(message, {
      code, cause, rule, retryAfterMs, verify, retriable,
      outcomeUnknown: code === 'outcome_unknown' || code === 'stuck_call',
      mayHaveRun, attempts: result.attempts, result, remarks,
    })
  }
}

class InvalidCallError extends SteadfastError {}
class TicketError extends SteadfastError {}
class OpenError extends SteadfastError {}
class OperationError extends SteadfastError {}
class InternalError extends SteadfastError {}

const KINDS = {
  invalid: InvalidCallError, ticket: TicketError, open: OpenError, operation: OperationError, internal: InternalError,
}

/** Makes the error that the native part describes. */
function fromNative({ kind, code, message, problems, retryAfterMs }, cause) {
  return new KINDS[kind](message, { code, problems, retryAfterMs, cause })
}

/** Makes an error of something that the native part threw, which it does not do on purpose. */
function unexpected(cause) {
  return cause instanceof SteadfastError
    ? cause
    : new InternalError(`a bug of Steadfast interrupted this operation: ${cause?.message ?? cause}`, { code: 'internal', cause })
}

module.exports = {
  SteadfastError, CallError, InvalidCallError, TicketError, OpenError, OperationError, InternalError, fromNative,
  unexpected,
}

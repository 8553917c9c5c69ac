'use strict'

/** Options of calls, as the native part takes them: a text and some bits. */

const { InvalidCallError } = require('./errors.cjs')

const CANNOT_REPEAT = 1 << 6
const WAIT_FOR_APPROVAL = 1 << 7
const ASK_FOR_APPROVAL = 1 << 8
const CALL_ID_OF_ACTOR = 1 << 9
const JOIN_EQUAL_CALLS = 1 << 10
const KEEPS_RESULT = 1 << 11

/** Returns JSON. What is not JSON is an error of the program. */
function json(value, subject, code = 'invalid_arguments') {
  let text
  try {
    text = JSON.stringify(value)
  } catch (cause) {
    throw new InvalidCallError(`${subject} cannot be written as JSON: ${cause?.message ?? cause}`, { code, cause })
  }
  if (text === undefined) throw new InvalidCallError(`${subject} cannot be written as JSON`, { code })
  return text
}

function hint(value) {
  return value === true ? 1 : value === false ? 2 : 0
}

function annotationFlags(annotations) {
  if (!annotations) return 0
  const { readOnlyHint, destructiveHint, idempotentHint } = annotations
  return hint(readOnlyHint) | (hint(destructiveHint) << 2) | (hint(idempotentHint) << 4)
}

function choice(value, name, choices) {
  if (value === undefined) return 0
  if (Object.hasOwn(choices, value)) return choices[value]
  const known = Object.keys(choices).join(', ')
  throw new InvalidCallError(`${name} must be one of ${known}`, { code: 'invalid_option' })
}

/** Returns the bits of `CallOptions`. */
function flagsOf(options) {
  const { annotations, canRepeat, approval, callIdScope, equalCalls } = options
  return (
    annotationFlags(annotations) |
    (canRepeat === false ? CANNOT_REPEAT : 0) |
    (typeof approval === 'function'
      ? ASK_FOR_APPROVAL
      : choice(approval, 'approval', { refuse: 0, wait: WAIT_FOR_APPROVAL })) |
    choice(callIdScope, 'callIdScope', { session: 0, actor: CALL_ID_OF_ACTOR }) |
    choice(equalCalls, 'equalCalls', { separate: 0, join: JOIN_EQUAL_CALLS })
  )
}

/** The texts of schemas, by the objects that callers give again and again. */
const schemas = new WeakMap()

/** Returns the text of a schema. */
function schemaOf(schema) {
  if (schema === undefined || schema === null) return undefined
  let text = schemas.get(schema)
  if (text === undefined) {
    text = json(schema, 'inputSchema', 'invalid_option')
    schemas.set(schema, text)
  }
  return text
}

module.exports = { json, flagsOf, annotationFlags, schemaOf, choice, KEEPS_RESULT, WAIT_FOR_APPROVAL }

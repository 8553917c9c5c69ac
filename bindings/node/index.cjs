'use strict'

const { Steadfast, open } = require('./lib/steadfast.cjs')
const { toFailure, ToolFailure, InputRequired } = require('./lib/failures.cjs')
const {
  SteadfastError, CallError, InvalidCallError, TicketError, OpenError, OperationError, InternalError,
} = require('./lib/errors.cjs')
const { version } = require('./package.json')

module.exports = {
  Steadfast, open, version, toFailure, ToolFailure, InputRequired,
  SteadfastError, CallError, InvalidCallError, TicketError, OpenError, OperationError, InternalError,
}

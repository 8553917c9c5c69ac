import steadfast from './index.cjs'

export const {
  Steadfast, open, version, toFailure, ToolFailure, InputRequired,
  SteadfastError, CallError, InvalidCallError, TicketError, OpenError, OperationError, InternalError,
} = steadfast

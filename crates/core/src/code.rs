//! Stable error codes, and the status that each one has on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// The reason why a call did not succeed. Every code has a page in `docs/errors`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All codes, in the order of the contract.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the code as it is written on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// The envelope is not valid; the message gives the position.
    InvalidEnvelope = "invalid_envelope",
    /// The contract or payload version is not supported.
    UnsupportedVersion = "unsupported_version",
    /// The arguments violate the tool's own input schema.
    InvalidArguments = "invalid_arguments",
    /// The tool does not exist.
    UnknownTool = "unknown_tool",
    /// The idempotency key was used before with other parameters.
    IdempotencyConflict = "idempotency_conflict",
    /// The same call is in flight; its result will be available later.
    InFlight = "in_flight",
    /// The tool's circuit breaker is open.
    CircuitOpen = "circuit_open",
    /// A limit on concurrency, rate or open records has been reached.
    Overloaded = "overloaded",
    /// All attempts failed, or the retry budget is used up.
    RetryExhausted = "retry_exhausted",
    /// The tool did not answer in time.
    Timeout = "timeout",
    /// The caller's deadline has passed.
    DeadlineExceeded = "deadline_exceeded",
    /// The model repeats a call that fails in the same way.
    LoopDetected = "loop_detected",
    /// Too many failures in one turn.
    ToolErrorLimit = "tool_error_limit",
    /// The call needs approval, and no approver could be reached now.
    ApprovalRequired = "approval_required",
    /// The approval was denied.
    ApprovalDenied = "approval_denied",
    /// The tool is blocked until an operator resets it.
    ToolBlocked = "tool_blocked",
    /// The caller cancelled the call.
    Cancelled = "cancelled",
    /// The watchdog ended a call that was pending too long.
    StuckCall = "stuck_call",
    /// The outcome of the call is unknown: it may or may not have taken effect.
    OutcomeUnknown = "outcome_unknown",
    /// A dependency of the call failed.
    DependencyFailed = "dependency_failed",
    /// The call succeeded, but its result was too large to store.
    ResultNotKept = "result_not_kept",
    /// The tool answered, but its result is too large to be returned.
    ResultTooLarge = "result_too_large",
    /// The store is unavailable, and without it the call would not be safe.
    StoreUnavailable = "store_unavailable",
    /// The server of the tool is unavailable.
    UpstreamUnavailable = "upstream_unavailable",
    /// The tool itself returned an error.
    ToolError = "tool_error",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The status of a call in the result envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CallStatus {
    /// The tool returned a result.
    Success,
    /// The call failed, and the same call will fail again.
    Error,
    /// The call failed for now; the same call may succeed later.
    RetriableError,
    /// All allowed attempts failed.
    RetryExhausted,
    /// The circuit breaker refused the call.
    CircuitOpen,
    /// The call took too long.
    Timeout,
}

impl Code {
    /// Returns true if the code says that the outcome of the call is unknown.
    pub const fn is_unknown_outcome(self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::StuckCall)
    }

    /// Returns the status of the code. A code without a status of its own gets the one that says whether the same call
    /// may succeed later, so it always agrees with `retriable`.
    pub const fn status(self, retriable: bool) -> CallStatus {
        match self {
            Self::CircuitOpen => CallStatus::CircuitOpen,
            Self::Timeout | Self::StuckCall => CallStatus::Timeout,
            Self::RetryExhausted | Self::DeadlineExceeded => CallStatus::RetryExhausted,
            Self::InFlight
            | Self::Overloaded
            | Self::StoreUnavailable
            | Self::UpstreamUnavailable
            | Self::InvalidEnvelope
            | Self::UnsupportedVersion
            | Self::InvalidArguments
            | Self::UnknownTool
            | Self::IdempotencyConflict
            | Self::LoopDetected
            | Self::ToolErrorLimit
            | Self::ApprovalRequired
            | Self::ApprovalDenied
            | Self::ToolBlocked
            | Self::Cancelled
            | Self::OutcomeUnknown
            | Self::DependencyFailed
            | Self::ResultNotKept
            | Self::ResultTooLarge
            | Self::ToolError => {
                if retriable {
                    CallStatus::RetriableError
                } else {
                    CallStatus::Error
                }
            }
        }
    }

    /// Returns the HTTP status of the code. The code in the body is exact; the HTTP status is for programs that only
    /// see statuses.
    ///
    /// Statuses that many programs retry on their own (408, 429, 5xx) are used only if nothing ran, or if the policy
    /// allows a repeat. A call with an unknown outcome has to be settled first, which is a conflict (409). An error
    /// from the tool itself is an answer like any other (200).
    pub const fn http_status(self) -> u16 {
        match self {
            Self::ToolError => 200,
            Self::InvalidEnvelope | Self::UnsupportedVersion => 400,
            Self::LoopDetected | Self::ToolErrorLimit | Self::ApprovalDenied | Self::ToolBlocked => 403,
            Self::UnknownTool => 404,
            Self::InFlight
            | Self::ApprovalRequired
            | Self::Cancelled
            | Self::OutcomeUnknown
            | Self::StuckCall => 409,
            Self::ResultNotKept | Self::ResultTooLarge => 410,
            Self::InvalidArguments | Self::IdempotencyConflict => 422,
            Self::DependencyFailed => 424,
            Self::Overloaded => 429,
            Self::RetryExhausted | Self::UpstreamUnavailable => 502,
            Self::CircuitOpen | Self::StoreUnavailable => 503,
            Self::Timeout | Self::DeadlineExceeded => 504,
        }
    }

    /// Returns true if a call that ended with this code after so many attempts may have run, at least in part, now or
    /// earlier under the same key. False is a promise: nothing happened.
    pub const fn may_have_run(self, attempts: u32) -> bool {
        match self {
            Self::InvalidEnvelope
            | Self::UnsupportedVersion
            | Self::InvalidArguments
            | Self::UnknownTool
            | Self::IdempotencyConflict
            | Self::DependencyFailed => false,
            // A refusal may follow an earlier attempt of the same call.
            Self::CircuitOpen
            | Self::Overloaded
            | Self::LoopDetected
            | Self::ToolErrorLimit
            | Self::ApprovalRequired
            | Self::ApprovalDenied
            | Self::ToolBlocked
            | Self::UpstreamUnavailable => attempts > 0,
            // An earlier call with the same key cannot be looked up, or its record is lost.
            Self::StoreUnavailable => true,
            // A duplicate that waited for another run has these too, without an attempt of its own.
            Self::DeadlineExceeded
            | Self::Cancelled
            | Self::InFlight
            | Self::RetryExhausted
            | Self::Timeout
            | Self::StuckCall
            | Self::OutcomeUnknown
            | Self::ResultNotKept
            | Self::ResultTooLarge
            | Self::ToolError => true,
        }
    }

    /// Returns true if the code is a decision by Steadfast that says nothing about the tool. Such a response is never
    /// stored and never replayed to a duplicate.
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::CircuitOpen
            | Self::Overloaded
            | Self::LoopDetected
            | Self::ToolErrorLimit
            | Self::ApprovalRequired
            | Self::ApprovalDenied
            | Self::ToolBlocked
            | Self::Cancelled
            | Self::StoreUnavailable
            | Self::InFlight
            | Self::DeadlineExceeded
            | Self::IdempotencyConflict => true,
            Self::InvalidEnvelope
            | Self::UnsupportedVersion
            | Self::InvalidArguments
            | Self::UnknownTool
            | Self::RetryExhausted
            | Self::Timeout
            | Self::StuckCall
            | Self::OutcomeUnknown
            | Self::DependencyFailed
            | Self::ResultNotKept
            | Self::ResultTooLarge
            | Self::UpstreamUnavailable
            | Self::ToolError => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_text_on_the_wire() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{}\"", code.as_str()));
        }
        assert_eq!(Code::ALL.len(), 25);
    }

    #[test]
    fn a_retriable_error_is_retriable_and_an_error_is_not() {
        for code in Code::ALL {
            assert_ne!(code.status(false), CallStatus::RetriableError, "{code}");
            assert_ne!(code.status(true), CallStatus::Error, "{code}");
            assert_ne!(code.status(false), CallStatus::Success, "{code}");
        }
        assert_eq!(Code::UpstreamUnavailable.status(true), CallStatus::RetriableError);
        assert_eq!(Code::UpstreamUnavailable.status(false), CallStatus::Error, "a command that is not there");
    }

    #[test]
    fn an_outcome_that_must_not_be_repeated_has_no_status_that_programs_retry() {
        for code in [
            Code::OutcomeUnknown,
            Code::StuckCall,
            Code::ResultNotKept,
            Code::ResultTooLarge,
            Code::Cancelled,
            Code::ToolError,
        ] {
            assert!(code.http_status() < 500 && code.http_status() != 429, "{code}");
        }
        for code in Code::ALL {
            let is_soon = matches!(code.http_status(), 429 | 503);
            assert!(!is_soon || code.is_refusal(), "{code}: to be sent again soon, so we held it back");
        }
    }
}

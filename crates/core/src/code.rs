//! The stable codes of everything that is not a success, and the status each one carries on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Why a call did not succeed. Every code has a page in `docs/errors`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All of them, in the order of the contract.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The text on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// The envelope cannot be read; the message says where.
    InvalidEnvelope = "invalid_envelope",
    /// The contract or payload version is not one that we speak.
    UnsupportedVersion = "unsupported_version",
    /// The arguments break the tool's own input schema.
    InvalidArguments = "invalid_arguments",
    /// There is no such tool.
    UnknownTool = "unknown_tool",
    /// The key was used before with other parameters.
    IdempotencyConflict = "idempotency_conflict",
    /// The same call is running; its answer can be had later.
    InFlight = "in_flight",
    /// The tool's breaker is open.
    CircuitOpen = "circuit_open",
    /// A limit on concurrency, rate or open records is reached.
    Overloaded = "overloaded",
    /// All attempts failed, or the retry budget is used up.
    RetryExhausted = "retry_exhausted",
    /// The tool did not answer in time.
    Timeout = "timeout",
    /// The caller's deadline has passed.
    DeadlineExceeded = "deadline_exceeded",
    /// The model repeats a call that fails the same way.
    LoopDetected = "loop_detected",
    /// Too many failures in one turn.
    ToolErrorLimit = "tool_error_limit",
    /// A person has to approve the call first, and nobody could be asked now.
    ApprovalRequired = "approval_required",
    /// A person said no.
    ApprovalDenied = "approval_denied",
    /// The tool is blocked until an operator resets it.
    ToolBlocked = "tool_blocked",
    /// The caller withdrew the call.
    Cancelled = "cancelled",
    /// The watchdog gave up on a call that was pending too long.
    StuckCall = "stuck_call",
    /// The call may or may not have had its effect; nobody knows.
    OutcomeUnknown = "outcome_unknown",
    /// Something that the call depends on failed.
    DependencyFailed = "dependency_failed",
    /// The call is done, but its answer was too large to keep.
    ResultNotKept = "result_not_kept",
    /// The tool answered, and its answer is too large to be passed on.
    ResultTooLarge = "result_too_large",
    /// The store cannot be reached, and without it the call would not be safe.
    StoreUnavailable = "store_unavailable",
    /// The server behind the tool cannot be reached.
    UpstreamUnavailable = "upstream_unavailable",
    /// The tool itself said no.
    ToolError = "tool_error",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a call ended, as the result envelope says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Status {
    /// The tool answered.
    Success,
    /// It failed, and the same call will fail again.
    Error,
    /// It failed for now; the same call may succeed later.
    RetriableError,
    /// It was tried as often as allowed.
    RetryExhausted,
    /// The breaker refused it.
    CircuitOpen,
    /// It took too long.
    Timeout,
}

impl Code {
    /// Whether it says that nobody knows whether a call had its effect.
    pub const fn is_unknown_outcome(self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::StuckCall)
    }

    /// The status that goes with the code. Where the code has no status of its own, the status says whether the same call may
    /// succeed later, so it always agrees with `retriable`.
    pub const fn status(self, retriable: bool) -> Status {
        match self {
            Self::CircuitOpen => Status::CircuitOpen,
            Self::Timeout | Self::StuckCall => Status::Timeout,
            Self::RetryExhausted | Self::DeadlineExceeded => Status::RetryExhausted,
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
                    Status::RetriableError
                } else {
                    Status::Error
                }
            }
        }
    }

    /// The HTTP status that goes with the code. The code in the body says it exactly; this is for programs that see
    /// only statuses.
    ///
    /// What many of them repeat on their own (408, 429, 5xx) is said only where nothing ran, or where the policy finds a
    /// repeat harmless: a call whose outcome is unknown has to be settled first, which is a conflict (409). That a tool
    /// said no is an answer like any other (200).
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

    /// Whether it is ours to say, and says nothing about what the tool would answer. Never stored, never given to
    /// a later duplicate.
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
            assert_ne!(code.status(false), Status::RetriableError, "{code}");
            assert_ne!(code.status(true), Status::Error, "{code}");
            assert_ne!(code.status(false), Status::Success, "{code}");
        }
        assert_eq!(Code::UpstreamUnavailable.status(true), Status::RetriableError);
        assert_eq!(Code::UpstreamUnavailable.status(false), Status::Error, "a command that is not there");
    }

    #[test]
    fn what_may_have_had_its_effect_and_must_not_be_repeated_has_no_status_that_programs_repeat() {
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

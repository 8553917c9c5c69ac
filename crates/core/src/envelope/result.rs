//! The result envelope: the result of a call.

use serde::{Deserialize, Serialize};

use super::{CallEnvelope, EnvelopeError};
use crate::breaker;
use crate::code::{CallStatus, Code};
use crate::dedupe::UnknownOutcomeReason;
use crate::id::{RequestId, ToolName, TurnId};
use crate::large_result::ShortenedText;
use crate::output::ToolOutput;

/// The result of a call. A failed tool is a result like any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultEnvelope {
    /// Id of the request.
    pub request_id: RequestId,
    /// Final status of the call.
    pub status: CallStatus,
    /// True if the result is that of another call.
    pub from_cache: bool,
    /// Details of the other call, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheHit>,
    /// Name of the tool.
    pub tool_name: ToolName,
    /// Time from the arrival of the call to this response.
    pub duration_ms: u64,
    /// Number of attempts for this call.
    pub attempts: u32,
    /// Output of the tool, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ToolOutput>,
    /// Error, if there is no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
    /// Retries in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retried_by: Vec<RetryEntry>,
    /// `false` if the result could not be recorded, so a duplicate may run again. Absent if there was nothing to
    /// record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<bool>,
    /// True if the error handler of a turn requests a review by an operator. No call waits for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalated: bool,
    /// Turn of the call, reported or detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Location of the whole text of the output, if only its beginning and end are given here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened: Option<ShortenedText>,
}

/// The call whose result a duplicate received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CacheHit {
    /// State of the other call: in flight or completed.
    pub matched_on: CacheMatch,
    /// Age of the result.
    pub age_ms: u64,
    /// Fingerprint of the key that both calls have.
    pub key_fingerprint: String,
}

/// The state of the call that a duplicate found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CacheMatch {
    /// A call in flight. The duplicate waited for its result.
    Inflight,
    /// A completed call.
    Completed,
}

/// The error of a failed call, and its meaning for the next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// Stable error code. Each has a page in `docs/errors`.
    pub code: Code,
    /// Description of the error, with the next thing to do.
    pub message: String,
    /// True if the same call may succeed later.
    pub retriable: bool,
    /// True if the state of this call is final.
    pub terminal: bool,
    /// State of the tool's circuit breaker, if it affected the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker_state: Option<breaker::State>,
    /// Name of the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Instructions for checking if the call took effect, if the outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// Time after which a retry is useful.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Reason why the outcome is unknown, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<UnknownOutcomeReason>,
    /// True if the attempt can no longer take effect, if the outcome is unknown. A check proves nothing before that.
    #[serde(rename = "ended", default, skip_serializing_if = "Option::is_none")]
    pub is_final: Option<bool>,
}

impl From<&EnvelopeError> for ErrorBody {
    fn from(error: &EnvelopeError) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
            retriable: false,
            terminal: true,
            breaker_state: None,
            rule: None,
            verify: None,
            retry_after_ms: None,
            observed: None,
            is_final: None,
        }
    }
}

impl ResultEnvelope {
    /// Returns the response to a call that was refused before it was started.
    pub fn refused(call: &CallEnvelope, error: ErrorBody) -> Self {
        Self {
            request_id: call.request_id.clone(),
            status: error.code.status(error.retriable),
            from_cache: false,
            cache: None,
            tool_name: call.tool_name.clone(),
            duration_ms: 0,
            attempts: 0,
            output: None,
            error: Some(error),
            retried_by: Vec::new(),
            recorded: None,
            escalated: false,
            turn: call.target.turn_id.clone(),
            shortened: None,
        }
    }
}

impl ErrorBody {
    /// Returns a temporary refusal: the same call may succeed in a moment.
    pub fn temporary(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retriable: true,
            terminal: false,
            breaker_state: None,
            rule: None,
            verify: None,
            retry_after_ms: None,
            observed: None,
            is_final: None,
        }
    }
}

/// A retry: its reason and its cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetryEntry {
    /// Number of the failed attempt, starting at one.
    pub attempt: u32,
    /// Delay after the attempt.
    pub delay_ms: u64,
    /// Error code of the attempt.
    pub reason_code: String,
    /// Duration of the attempt.
    pub latency_ms: u64,
}

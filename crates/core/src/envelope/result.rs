//! The result envelope: what a call came to.

use serde::{Deserialize, Serialize};

use super::{CallEnvelope, EnvelopeError};
use crate::breaker;
use crate::code::{Code, Status};
use crate::dedupe::Observed;
use crate::id::{RequestId, ToolName, TurnId};
use crate::large_result::Shortened;
use crate::output::Output;

/// What a call came to. A failed tool is an answer like any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultEnvelope {
    /// The request that this answers.
    pub request_id: RequestId,
    /// How it ended.
    pub status: Status,
    /// Whether the answer is that of another call.
    pub from_cache: bool,
    /// Which one, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheHit>,
    /// The tool.
    pub tool_name: ToolName,
    /// From the arrival of the call to this answer.
    pub duration_ms: u64,
    /// How often the tool was tried for this call.
    pub attempts: u32,
    /// What the tool gave back, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Why there is no output, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
    /// The retries, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retried_by: Vec<Retried>,
    /// `false`: the answer could not be recorded, so a duplicate may run again. Absent where nothing was to be
    /// recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<bool>,
    /// Whether the error handler of a turn wants a person to look at it. Nothing waits for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalated: bool,
    /// The turn that the call was counted in, told or guessed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Where the whole text of the output is, if only its beginning and its end stand here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened: Option<Shortened>,
}

/// Whose answer a duplicate got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CacheHit {
    /// Whether the other call was running or had ended.
    pub matched_on: MatchedOn,
    /// How old the answer is.
    pub age_ms: u64,
    /// The key that both calls have, as a fingerprint.
    pub key_fingerprint: String,
}

/// What a duplicate found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MatchedOn {
    /// A call that was running; its answer was waited for.
    Inflight,
    /// A call that had ended.
    Completed,
}

/// Why a call did not succeed, and what that means for the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The stable code; each has a page in `docs/errors`.
    pub code: Code,
    /// The same in words, with the next thing to do.
    pub message: String,
    /// Whether the same call may succeed later.
    pub retriable: bool,
    /// Whether nothing more will come of this call.
    pub terminal: bool,
    /// The state of the tool's breaker, where it mattered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker_state: Option<breaker::State>,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// How to find out whether the call had its effect, where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// When it is worth trying again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Where nobody knows whether the call had its effect: what was observed of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// Where nobody knows whether the call had its effect: whether it can have none any more. Only then does looking prove
    /// anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<bool>,
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
            ended: None,
        }
    }
}

impl ResultEnvelope {
    /// The answer to a call that was turned away at the door, before it became one.
    pub fn turned_away(call: &CallEnvelope, error: ErrorBody) -> Self {
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
    /// A refusal that passes: the same call may succeed in a moment.
    pub fn for_now(code: Code, message: impl Into<String>) -> Self {
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
            ended: None,
        }
    }
}

/// One retry: why it was made, and what it cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Retried {
    /// The attempt that failed, counted from one.
    pub attempt: u32,
    /// The wait after it.
    pub delay_ms: u64,
    /// Why it failed.
    pub reason_code: String,
    /// How long it took.
    pub latency_ms: u64,
}

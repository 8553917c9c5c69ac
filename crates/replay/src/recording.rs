//! The recording of a call for replay: its request, all its events in order, and the results of its attempts. It has no
//! parameters, no outputs and no texts of the tool.

#[cfg(feature = "schema")]
use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::call::{
    ApprovalOutcome, AttemptReport, CallEvent, CallRequest, CallResult, OtherWaiters, Provenance,
    RecordedAttempt, ResultStage, StoreFault, WakeReason,
};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::dedupe::{AttemptRecord, ClaimVerdict, RenewVerdict, SaveVerdict, StartVerdict};
use steadfast_core::envelope::BreakerHint;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{AnnotationHints, CallPolicy, RepeatedSuccessPolicy};
use steadfast_json::RawJson;

/// A recorded call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// Its request. The number of the request is unique in the recording.
    pub request: CallRequest,
    /// The coarser circuit breaker that its caller requested.
    pub breaker: Option<BreakerHint>,
    /// The annotations of the tool from its server.
    pub annotations: AnnotationHints,
    /// True if it belonged to a turn that can be resubmitted.
    pub in_turn: bool,
    /// The seed of its jitter.
    pub seed: u64,
    /// Time at which it arrived.
    pub arrived: Timestamp,
    /// Time at which it ended.
    pub finished: Timestamp,
    /// The engine that ran it. The numbers of moments are ordered within one engine.
    pub engine: Arc<str>,
    /// All its events. Empty if an older version recorded it, or if there were too many.
    pub trail: Vec<RecordedEvent>,
    /// Its attempts.
    pub attempts: Vec<AttemptRecord>,
    /// The results of its attempts.
    pub outcomes: Vec<RecordedAttempt>,
    /// The result that its caller received.
    pub ending: RecordedResult,
}

/// The result of a call that its caller received, reduced to the fields that are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedResult {
    /// The status.
    pub status: CallStatus,
    /// The code of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The rule that decided its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// True if a stored result was replayed.
    pub replayed: bool,
    /// True if the tool asked for input.
    pub input_required: bool,
    /// Attempts made.
    pub attempts: usize,
}

impl RecordedResult {
    /// Returns the recorded form of a result, after this number of attempts.
    pub fn of(result: &CallResult, attempts: usize) -> Self {
        let failure = result.outcome.as_ref().err();
        Self {
            status: result.status(),
            code: failure.map(|failure| failure.code),
            rule: failure.and_then(|failure| failure.rule.as_ref().map(ToString::to_string)),
            replayed: matches!(result.provenance, Provenance::Replayed { .. }),
            input_required: result.stage == ResultStage::InputRequired,
            attempts,
        }
    }
}

/// The request of a call, without its key and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields of a request, by name")]
pub struct RecordedRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_elapsed_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_by_ms: Option<Timestamp>,
    #[serde(skip_serializing_if = "is_not")]
    pub waits_long: bool,
    #[serde(skip_serializing_if = "is_not")]
    pub run_by_host: bool,
    #[serde(rename = "hostInProcess", skip_serializing_if = "is_not")]
    pub is_host_in_process: bool,
    #[serde(rename = "endSeen", skip_serializing_if = "is_not")]
    pub is_end_visible: bool,
    #[serde(skip_serializing_if = "is_not")]
    pub expected_retry_safe: bool,
    #[serde(skip_serializing_if = "is_not")]
    pub safety_critical: bool,
    /// True if approval could be requested while the call waited.
    #[serde(skip_serializing_if = "is_not")]
    pub interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker_hint: Option<BreakerHint>,
    /// The source of the key for deduplication. None if the call was not deduplicated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_by: Option<steadfast_core::dedupe::RecordOrigin>,
    /// The index of equal arguments, as a digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// True if the caller gave the key.
    #[serde(skip_serializing_if = "is_not")]
    pub key_given: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computed_since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    #[serde(skip_serializing_if = "is_not")]
    pub in_turn: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_not(flag: &bool) -> bool {
    !*flag
}

/// An event of a call. Written as `[order, milliseconds after the arrival, event]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, RecordedEventKind)", into = "(u64, u64, RecordedEventKind)")]
pub struct RecordedEvent {
    /// Its position among all events of the machines of its engine.
    pub order: u64,
    /// Time of the event, in milliseconds after the arrival of the call.
    pub after_ms: u64,
    /// The event.
    pub kind: RecordedEventKind,
}

impl From<(u64, u64, RecordedEventKind)> for RecordedEvent {
    fn from((order, after_ms, kind): (u64, u64, RecordedEventKind)) -> Self {
        Self { order, after_ms, kind }
    }
}

impl From<RecordedEvent> for (u64, u64, RecordedEventKind) {
    fn from(moment: RecordedEvent) -> Self {
        (moment.order, moment.after_ms, moment.kind)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for RecordedEvent {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <(u64, u64, RecordedEventKind)>::json_schema(generator)
    }
}

/// The event of the call machine, with the part of its data that affects decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the events of a call with their verdicts, by name")]
pub enum RecordedEventKind {
    Came,
    // The store decided a claim.
    Mine,
    Follow,
    Busy,
    Replay,
    Unknown,
    Conflict,
    Nothing,
    Full,
    Closed,
    RecordsLost,
    // The call was woken.
    Time,
    Changed,
    LeaderRefused,
    // An approval request was answered.
    Granted,
    GrantedHere,
    Denied,
    Nobody,
    PutToCaller,
    // The store did something else.
    Spent,
    NotSpent,
    Started,
    NotStarted,
    Probed,
    Renewed,
    RenewedUnknown,
    RenewedLost,
    Saved,
    NotSaved,
    Released,
    StoreFailed,
    StoreUnanswered,
    // The tool responded.
    Ran,
    Progressed,
    Settled,
    // The driver of the call ended.
    DriverEnded,
    // The caller acted.
    Cancelled,
    CancelledByOne,
    Gone,
    OneGone,
}

impl RecordedEventKind {
    /// Returns the recorded form of an event.
    pub fn of(event: &CallEvent) -> Self {
        match event {
            CallEvent::Claimed(verdict) => Self::of_claim(verdict),
            CallEvent::Woke(WakeReason::Time) => Self::Time,
            CallEvent::Woke(WakeReason::Changed) => Self::Changed,
            CallEvent::Woke(WakeReason::LeaderRefused(_)) => Self::LeaderRefused,
            CallEvent::Answered(ApprovalOutcome::Granted(Some(_))) => Self::Granted,
            CallEvent::Answered(ApprovalOutcome::Granted(None)) => Self::GrantedHere,
            CallEvent::Answered(ApprovalOutcome::Denied) => Self::Denied,
            CallEvent::Answered(ApprovalOutcome::Unreachable) => Self::Nobody,
            CallEvent::Answered(ApprovalOutcome::PutToCaller(_)) => Self::PutToCaller,
            CallEvent::Spent(spend) if spend.may_run() => Self::Spent,
            CallEvent::Spent(_) => Self::NotSpent,
            CallEvent::Started(StartVerdict::Started) => Self::Started,
            CallEvent::Started(StartVerdict::Lost) => Self::NotStarted,
            CallEvent::Probed => Self::Probed,
            CallEvent::Ran(_) => Self::Ran,
            CallEvent::Progressed => Self::Progressed,
            CallEvent::Settled => Self::Settled,
            CallEvent::DriverEnds => Self::DriverEnded,
            CallEvent::Renewed { verdict: RenewVerdict::Renewed, .. } => Self::Renewed,
            CallEvent::Renewed { verdict: RenewVerdict::MarkedUnknown, .. } => Self::RenewedUnknown,
            CallEvent::Renewed { verdict: RenewVerdict::Lost, .. } => Self::RenewedLost,
            CallEvent::Saved(SaveVerdict::Saved(_)) => Self::Saved,
            CallEvent::Saved(SaveVerdict::FenceLost) => Self::NotSaved,
            CallEvent::Released => Self::Released,
            CallEvent::StoreFailed(StoreFault::NotDone) => Self::StoreFailed,
            CallEvent::StoreFailed(StoreFault::Unanswered) => Self::StoreUnanswered,
            CallEvent::Cancelled(OtherWaiters::None) => Self::Cancelled,
            CallEvent::Cancelled(OtherWaiters::Waiting) => Self::CancelledByOne,
            CallEvent::Disconnected(OtherWaiters::None) => Self::Gone,
            CallEvent::Disconnected(OtherWaiters::Waiting) => Self::OneGone,
        }
    }

    fn of_claim(verdict: &ClaimVerdict) -> Self {
        match verdict {
            ClaimVerdict::Acquired(_) => Self::Mine,
            ClaimVerdict::Follow(_) => Self::Follow,
            ClaimVerdict::Busy => Self::Busy,
            ClaimVerdict::Replay(_) => Self::Replay,
            ClaimVerdict::Unknown(_) => Self::Unknown,
            ClaimVerdict::Conflict => Self::Conflict,
            ClaimVerdict::Nothing => Self::Nothing,
            ClaimVerdict::Full => Self::Full,
            ClaimVerdict::StoreRecovering => Self::Closed,
            ClaimVerdict::RecordsLost => Self::RecordsLost,
        }
    }

    /// Returns true if it is the verdict of a store on a claim.
    pub(super) const fn is_claim(self) -> bool {
        matches!(
            self,
            Self::Mine
                | Self::Follow
                | Self::Busy
                | Self::Replay
                | Self::Unknown
                | Self::Conflict
                | Self::Nothing
                | Self::Full
                | Self::Closed
                | Self::RecordsLost
        )
    }
}

/// The events of a call while it is recorded.
#[derive(Clone, Debug, Default)]
pub struct EventTrail {
    moments: Vec<RecordedEvent>,
    /// True if there were more events than the limit. An incomplete list cannot be replayed.
    is_truncated: bool,
}

impl EventTrail {
    /// The maximum number of stored events of one call. A call without problems has four.
    pub const MOST: usize = 512;
    /// Progress events that follow each other more closely than this are merged.
    const THINNED_MS: u64 = 5000;

    /// Creates an empty list with room for the events of most calls.
    pub fn new() -> Self {
        Self { moments: Vec::with_capacity(6), is_truncated: false }
    }

    /// Adds an event.
    pub fn add(&mut self, moment: RecordedEvent) {
        if let [.., before, last] = self.moments.as_mut_slice()
            && moment.kind == RecordedEventKind::Progressed
            && (before.kind, last.kind) == (RecordedEventKind::Progressed, RecordedEventKind::Progressed)
            && moment.after_ms.saturating_sub(before.after_ms) < Self::THINNED_MS
        {
            *last = moment;
        } else if self.moments.len() < Self::MOST {
            self.moments.push(moment);
        } else {
            self.is_truncated = true;
        }
    }

    /// Returns all events, or none if there were too many.
    pub fn moments(&self) -> &[RecordedEvent] {
        if self.is_truncated { &[] } else { &self.moments }
    }
}

/// Returns the outcome of a recorded attempt for a machine that replays it. `number` makes results with unknown
/// contents differ.
pub(super) fn outcome_of(attempt: &RecordedAttempt, policy: &CallPolicy, number: u64) -> AttemptReport {
    match attempt {
        RecordedAttempt::Answered { size, concern, result } => {
            let largest = policy.dedupe.largest_output;
            let is_stored = usize::try_from(*size).is_ok_and(|size| size <= largest);
            let content = match (is_stored, result, policy.guard.repeated_success) {
                (false, _, _) => format!("\"{}\"", "x".repeat(largest)),
                (true, Some(result), _) => format!("\"{}\"", result.to_hex()),
                (true, None, RepeatedSuccessPolicy::Ignore) => "0".to_owned(),
                (true, None, RepeatedSuccessPolicy::Warn(_) | RepeatedSuccessPolicy::Refuse(_)) => {
                    number.to_string()
                }
            };
            let output = ToolOutput { content: RawJson::from_trusted(content), metadata: None };
            AttemptReport::Success { output, concern: *concern }
        }
        RecordedAttempt::InputRequired => AttemptReport::InputRequired { output: unknown_output() },
        RecordedAttempt::Failed(failed) => AttemptReport::Replayed(failed.clone()),
    }
}

/// Returns an output with unknown contents.
pub(super) fn unknown_output() -> ToolOutput {
    ToolOutput { content: RawJson::from_trusted("0"), metadata: None }
}

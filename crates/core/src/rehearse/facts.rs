//! The recording of a call for replay: its request, all its events in order, and the results of its attempts. It has no
//! parameters, no outputs and no texts of the tool.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::call::{
    Approval, CallResult, Event, Others, Outcome, Provenance, Request, Stage, StoreFault, Wake,
};
use crate::classify::{Classified, Fault, Mistake, Nature, Reach, Severity, Source, is_session_lost};
use crate::code::{Code, Status};
use crate::dedupe::{AttemptFact, ClaimVerdict, Observed, RenewVerdict, SaveVerdict, StartVerdict};
use crate::envelope::BreakerHint;
use crate::guard;
use crate::id::Digest;
use crate::millis;
use crate::output::{Output, RawJson};
use crate::policy::{Annotations, Policy, RepeatedSuccess};
use crate::redact;

/// A recorded call.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its request. The number of the request is unique in the recording.
    pub request: Request,
    /// The coarser circuit breaker that its caller requested.
    pub breaker: Option<BreakerHint>,
    /// The annotations of the tool from its server.
    pub annotations: Annotations,
    /// True if it belonged to a turn that can be resubmitted.
    pub in_turn: bool,
    /// The seed of its jitter.
    pub seed: u64,
    /// Time at which it arrived.
    pub arrived: Timestamp,
    /// Time at which it ended.
    pub ended: Timestamp,
    /// The engine that ran it. The numbers of moments are ordered within one engine.
    pub engine: Arc<str>,
    /// All its events. Empty if an older version recorded it, or if there were too many.
    pub trail: Vec<Moment>,
    /// Its attempts.
    pub attempts: Vec<AttemptFact>,
    /// The results of its attempts.
    pub outcomes: Vec<AttemptOutcome>,
    /// The result that its caller received.
    pub ending: Ending,
}

/// The result of a call that its caller received, reduced to the fields that are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// The status.
    pub status: Status,
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

impl Ending {
    /// Returns the recorded form of a result, after this number of attempts.
    pub fn of(result: &CallResult, attempts: usize) -> Self {
        let failure = result.ended.as_ref().err();
        Self {
            status: result.status(),
            code: failure.map(|failure| failure.code),
            rule: failure.and_then(|failure| failure.rule.as_ref().map(ToString::to_string)),
            replayed: matches!(result.provenance, Provenance::Replayed { .. }),
            input_required: result.stage == Stage::InputRequired,
            attempts,
        }
    }
}

/// The request of a call, without its key and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields of a request, by name")]
pub struct Asked {
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
    #[serde(skip_serializing_if = "is_not")]
    pub end_seen: bool,
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
    pub found_by: Option<crate::dedupe::Origin>,
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
#[serde(from = "(u64, u64, What)", into = "(u64, u64, What)")]
pub struct Moment {
    /// Its position among all events of the machines of its engine.
    pub order: u64,
    /// Time of the event, in milliseconds after the arrival of the call.
    pub after_ms: u64,
    /// The event.
    pub what: What,
}

impl From<(u64, u64, What)> for Moment {
    fn from((order, after_ms, what): (u64, u64, What)) -> Self {
        Self { order, after_ms, what }
    }
}

impl From<Moment> for (u64, u64, What) {
    fn from(moment: Moment) -> Self {
        (moment.order, moment.after_ms, moment.what)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <(u64, u64, What)>::json_schema(generator)
    }
}

/// The event of the call machine, with the part of its data that affects decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the events of a call with their verdicts, by name")]
pub enum What {
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

impl What {
    /// Returns the recorded form of an event.
    pub fn of(event: &Event) -> Self {
        match event {
            Event::Claimed(verdict) => Self::of_claim(verdict),
            Event::Woke(Wake::Time) => Self::Time,
            Event::Woke(Wake::Changed) => Self::Changed,
            Event::Woke(Wake::LeaderRefused(_)) => Self::LeaderRefused,
            Event::Answered(Approval::Granted(Some(_))) => Self::Granted,
            Event::Answered(Approval::Granted(None)) => Self::GrantedHere,
            Event::Answered(Approval::Denied) => Self::Denied,
            Event::Answered(Approval::Nobody) => Self::Nobody,
            Event::Answered(Approval::PutToCaller(_)) => Self::PutToCaller,
            Event::Spent(spend) if spend.may_run() => Self::Spent,
            Event::Spent(_) => Self::NotSpent,
            Event::Started(StartVerdict::Started) => Self::Started,
            Event::Started(StartVerdict::Lost) => Self::NotStarted,
            Event::Probed => Self::Probed,
            Event::Ran(_) => Self::Ran,
            Event::Progressed => Self::Progressed,
            Event::Settled => Self::Settled,
            Event::DriverEnds => Self::DriverEnded,
            Event::Renewed { verdict: RenewVerdict::Renewed, .. } => Self::Renewed,
            Event::Renewed { verdict: RenewVerdict::MarkedUnknown, .. } => Self::RenewedUnknown,
            Event::Renewed { verdict: RenewVerdict::Lost, .. } => Self::RenewedLost,
            Event::Saved(SaveVerdict::Saved(_)) => Self::Saved,
            Event::Saved(SaveVerdict::FenceLost) => Self::NotSaved,
            Event::Released => Self::Released,
            Event::StoreFailed(StoreFault::NotDone) => Self::StoreFailed,
            Event::StoreFailed(StoreFault::Unanswered) => Self::StoreUnanswered,
            Event::Cancelled(Others::None) => Self::Cancelled,
            Event::Cancelled(Others::Waiting) => Self::CancelledByOne,
            Event::Disconnected(Others::None) => Self::Gone,
            Event::Disconnected(Others::Waiting) => Self::OneGone,
        }
    }

    fn of_claim(verdict: &ClaimVerdict) -> Self {
        match verdict {
            ClaimVerdict::Mine(_) => Self::Mine,
            ClaimVerdict::Follow(_) => Self::Follow,
            ClaimVerdict::Busy => Self::Busy,
            ClaimVerdict::Replay(_) => Self::Replay,
            ClaimVerdict::Unknown(_) => Self::Unknown,
            ClaimVerdict::Conflict => Self::Conflict,
            ClaimVerdict::Nothing => Self::Nothing,
            ClaimVerdict::Full => Self::Full,
            ClaimVerdict::Closed => Self::Closed,
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
pub struct Trail {
    moments: Vec<Moment>,
    /// True if there were more events than the limit. An incomplete list cannot be replayed.
    too_much: bool,
}

impl Trail {
    /// The maximum number of stored events of one call. A call without problems has four.
    pub const MOST: usize = 512;
    /// Progress events that follow each other more closely than this are merged.
    const THINNED_MS: u64 = 5000;

    /// Creates an empty list with room for the events of most calls.
    pub fn new() -> Self {
        Self { moments: Vec::with_capacity(6), too_much: false }
    }

    /// Adds an event.
    pub fn add(&mut self, moment: Moment) {
        if let [.., before, last] = self.moments.as_mut_slice()
            && moment.what == What::Progressed
            && (before.what, last.what) == (What::Progressed, What::Progressed)
            && moment.after_ms.saturating_sub(before.after_ms) < Self::THINNED_MS
        {
            *last = moment;
        } else if self.moments.len() < Self::MOST {
            self.moments.push(moment);
        } else {
            self.too_much = true;
        }
    }

    /// Returns all events, or none if there were too many.
    pub fn moments(&self) -> &[Moment] {
        if self.too_much { &[] } else { &self.moments }
    }
}

/// The result of an attempt, reduced to the data that affects decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The tool responded.
    Answered {
        /// Size of the response in bytes.
        size: u64,
        /// The severity of a failure that the structure of the response shows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        concern: Option<Severity>,
        /// The digest of the response, if repeated successes are watched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Digest>,
    },
    /// The tool asked for input.
    InputRequired,
    /// The attempt failed.
    Failed(Box<FailedOutcome>),
}

/// The classification of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the verdict of the classifier, field by field")]
pub struct FailedOutcome {
    pub nature: Nature,
    pub reach: Reach,
    pub severity: Severity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistake: Option<Mistake>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    pub code: Code,
    pub rule: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Manner::is_plain")]
    pub manner: Manner,
    /// The observation about the attempt if its outcome is unknown. Absent in recordings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// A digest that is equal for errors that the loop guard treats as equal.
    pub error: String,
    /// The error message. Absent in recordings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// The kind of a failure, in addition to its classification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// No special kind.
    #[default]
    Plain,
    /// The attempt timed out.
    TimedOut,
    /// The server had lost the session.
    SessionLost,
    /// The host that was to run the tool was gone before it started.
    NotRun,
}

impl Manner {
    pub(crate) fn of(fault: &Fault) -> Self {
        if matches!(fault.source, Source::Timeout { .. }) {
            Self::TimedOut
        } else if is_session_lost(fault) {
            Self::SessionLost
        } else {
            Self::Plain
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

impl AttemptOutcome {
    /// Returns the recorded form of a success. The digest of the result is present if the loop guard asked for it.
    pub fn of_success(output: &Output, concern: Option<Severity>, result: Option<Digest>) -> Self {
        let size = u64::try_from(output.len()).unwrap_or(u64::MAX);
        Self::Answered { size, concern, result }
    }

    /// Returns the recorded form of a failure with this message of the tool. `words` is the part of the message to
    /// show.
    pub fn of_failure(
        classified: &Classified,
        manner: Manner,
        observed: Observed,
        message: &str,
        words: String,
    ) -> Self {
        let Classified { nature, reach, severity, mistake, retry_after, code, rule } = classified;
        Self::Failed(Box::new(FailedOutcome {
            nature: *nature,
            reach: *reach,
            severity: *severity,
            mistake: *mistake,
            retry_after_ms: retry_after.map(millis),
            code: *code,
            rule: rule.clone(),
            manner,
            observed: (*reach == Reach::Unknown).then_some(observed),
            error: guard::error_word(message),
            words: Some(words).filter(|words| !words.is_empty()),
        }))
    }

    /// Returns the result without secrets, and with at most `longest` bytes of the message.
    #[must_use]
    pub fn redacted(&self, longest: usize) -> Self {
        let mut outcome = self.clone();
        if let Self::Failed(failed) = &mut outcome {
            failed.words = failed.words.as_deref().map(|words| redact::excerpt(words, longest));
        }
        outcome
    }

    /// Returns the outcome for a machine that replays it. `number` makes results with unknown contents differ.
    pub(super) fn again(&self, policy: &Policy, number: u64) -> Outcome {
        match self {
            Self::Answered { size, concern, result } => {
                let largest = policy.dedupe.largest_output;
                let kept = usize::try_from(*size).is_ok_and(|size| size <= largest);
                let content = match (kept, result, policy.guard.repeated_success) {
                    (false, _, _) => format!("\"{}\"", "x".repeat(largest)),
                    (true, Some(result), _) => format!("\"{}\"", result.to_hex()),
                    (true, None, RepeatedSuccess::Ignore) => "0".to_owned(),
                    (true, None, RepeatedSuccess::Warn(_) | RepeatedSuccess::Refuse(_)) => number.to_string(),
                };
                let output = Output { content: RawJson::from_trusted(content), metadata: None };
                Outcome::Success { output, concern: *concern }
            }
            Self::InputRequired => Outcome::InputRequired { output: nothing() },
            Self::Failed(failed) => Outcome::Remembered(failed.clone()),
        }
    }
}

impl FailedOutcome {
    /// Returns the recorded classification.
    pub(crate) fn classified(&self) -> Classified {
        Classified {
            nature: self.nature,
            reach: self.reach,
            severity: self.severity,
            mistake: self.mistake,
            retry_after: self.retry_after_ms.map(Duration::from_millis),
            code: self.code,
            rule: self.rule.clone(),
        }
    }
}

/// Returns an output with unknown contents.
pub(super) fn nothing() -> Output {
    Output { content: RawJson::from_trusted("0"), metadata: None }
}

//! What is recorded of a call so that it can be replayed: what it asked for, everything that happened to it and in which
//! order, and how its attempts ended. No parameters, no answers, no words of the tool.

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

/// A call as it was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What it asked for. Its number tells it from all others of the recording.
    pub request: Request,
    /// The coarser breaker that its caller asked for.
    pub breaker: Option<BreakerHint>,
    /// What its server said of the tool.
    pub annotations: Annotations,
    /// Whether it belonged to a turn that may be submitted again.
    pub in_turn: bool,
    /// What decided its jitter.
    pub seed: u64,
    /// When it came.
    pub arrived: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// Whose engine it was: the numbers of moments are in order within one.
    pub engine: Arc<str>,
    /// Everything that happened to it. Nothing where an older version recorded it, or where it was too much.
    pub trail: Vec<Moment>,
    /// Its attempts.
    pub attempts: Vec<AttemptFact>,
    /// How they ended.
    pub outcomes: Vec<AttemptOutcome>,
    /// What its caller was told.
    pub ending: Ending,
}

/// What the caller of a call was told, as far as two answers are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// In one word.
    pub status: Status,
    /// The code of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The rule that decided its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Whether it got an earlier answer.
    pub replayed: bool,
    /// Whether the tool asked for input.
    pub input_required: bool,
    /// Attempts that were made.
    pub attempts: usize,
}

impl Ending {
    /// What is told with this result, after so many attempts.
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

/// What else than its key and its arguments a call asked for.
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
    /// Whether somebody could be asked while it waited.
    #[serde(skip_serializing_if = "is_not")]
    pub interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker_hint: Option<BreakerHint>,
    /// How its duplicates were found; nothing if they were not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_by: Option<crate::dedupe::Origin>,
    /// The index of equal arguments, as a fingerprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Whether somebody gave the key.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_not(flag: &bool) -> bool {
    !*flag
}

/// Something that happened to a call. Written as `[order, milliseconds after the arrival, what]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, What)", into = "(u64, u64, What)")]
pub struct Moment {
    /// Its place among everything that the machines of its engine were told.
    pub order: u64,
    /// When, in milliseconds after the arrival of the call.
    pub after_ms: u64,
    /// What.
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

/// What happened: the event of the machine, and of its data what decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the events of a call with their verdicts, by name")]
pub enum What {
    Came,
    // The store decided on a claim.
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
    // A person answered.
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
    // The tool.
    Ran,
    Progressed,
    Settled,
    // Whoever drove the call ended.
    DriverEnded,
    // The caller.
    Cancelled,
    CancelledByOne,
    Gone,
    OneGone,
}

impl What {
    /// What this event is.
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

    /// Whether a store said so to a claim.
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

/// The trail of a call while it is written.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    moments: Vec<Moment>,
    /// There was more than is kept: what is left could not be replayed.
    too_much: bool,
}

impl Trail {
    /// The most moments of one call that are kept. A call without trouble has four.
    pub const MOST: usize = 512;
    /// Signs of life that follow each other more closely than this are one.
    const THINNED_MS: u64 = 5000;

    /// Room for what most calls have.
    pub fn new() -> Self {
        Self { moments: Vec::with_capacity(6), too_much: false }
    }

    /// Something happened.
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

    /// All of it, or nothing.
    pub fn moments(&self) -> &[Moment] {
        if self.too_much { &[] } else { &self.moments }
    }
}

/// How an attempt ended, as far as anything was decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The tool answered.
    Answered {
        /// With so many bytes.
        size: u64,
        /// What their structure says about a failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        concern: Option<Severity>,
        /// What they are, where repeated successes were watched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Digest>,
    },
    /// The tool asked for input.
    InputRequired,
    /// It failed.
    Failed(Box<FailedOutcome>),
}

/// What was made of a failed attempt.
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
    /// What was observed of it, should its outcome be unknown. Those of older versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// The same word for errors that are the same to the guard.
    pub error: String,
    /// What was said of it. Those of older versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// What sets some failures apart, beside what the classifier made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// Nothing.
    #[default]
    Plain,
    /// Nothing was heard in time.
    TimedOut,
    /// The server had forgotten our session.
    SessionLost,
    /// Whoever was to run the tool was gone before it began.
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

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

impl AttemptOutcome {
    /// The tool answered with this, whose digest is known where the guard asked for it.
    pub fn of_success(output: &Output, concern: Option<Severity>, result: Option<Digest>) -> Self {
        let size = u64::try_from(output.len()).unwrap_or(u64::MAX);
        Self::Answered { size, concern, result }
    }

    /// This was made of its failure, of which the tool said so; `words` of it are shown.
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

    /// The same without secrets, and with no more than `longest` bytes of what was said.
    #[must_use]
    pub fn redacted(&self, longest: usize) -> Self {
        let mut outcome = self.clone();
        if let Self::Failed(failed) = &mut outcome {
            failed.words = failed.words.as_deref().map(|words| redact::excerpt(words, longest));
        }
        outcome
    }

    /// The same for a machine that replays it. `number` makes answers differ whose contents nobody knows.
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
    /// What the classifier had made of it.
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

/// An output of which nothing is known.
pub(super) fn nothing() -> Output {
    Output { content: RawJson::from_trusted("0"), metadata: None }
}

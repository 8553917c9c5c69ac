//! What is remembered of a call.
//!
//! ```text
//!            claim                     save done, save failed
//!   (none) ─────────▶ Inflight ───────────────────────────────▶ Done, Failed
//!      ▲                │  │                                        ▲
//!      └────────────────┘  │ the run may have happened,             │ late answer of the owner
//!           release        └───────────────▶ Unknown ───────────────┘
//!                            and must not twice
//! ```
//!
//! `Done` never returns to `Inflight` under the same owner; only a claim that the tables allow replaces it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::Rules;
use crate::Timestamp;
use crate::code::Code;
use crate::envelope::CallContext;
use crate::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolCallId, ToolRef};
use crate::key::Key;
use crate::output::Output;
use crate::policy::{AfterUnknown, Lifetimes};

/// A process on a machine, told apart from every other one that ever had its number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The machine and its boot: pids of another boot mean nothing.
    pub boot: Arc<str>,
    /// The process.
    pub pid: u32,
    /// When it started, in whatever unit the system counts; tells a reused pid apart.
    pub started: u64,
}

/// Whose claim it is. New for every claim, so it is the fence too: whoever is not the owner writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The process that made the claim.
    pub process: Process,
    /// The call within the process.
    pub call: u64,
    /// The claim within the call.
    pub claim: u32,
}

impl Owner {
    /// The token in one value, for places that only compare it.
    pub fn digest(&self) -> Digest {
        let Process { boot, pid, started } = &self.process;
        Digest::of(format!("{boot}\n{pid}\n{started}\n{}\n{}", self.call, self.claim).as_bytes())
    }
}

/// Names one run of a tool. It travels upstream where the caller gave no key, and survives take-over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Arc<str>);

/// How long a claim holds if its owner is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// As long as the record: nobody can tell when the owner is gone.
    Record,
    /// Until this moment, unless renewed.
    Until(Timestamp),
}

/// What the store knows about the owner of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSight {
    /// Its process lives, on this machine.
    Alive,
    /// Its process is gone.
    Gone,
    /// It is on another machine, or cannot be judged: time decides.
    Time,
}

/// Where a record is found, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Under a key that means intent.
    Explicit,
    /// Under the client's id of its dispatch.
    CallId,
    /// Under the id of its run: only the index finds it.
    Run,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// It runs, or is about to.
    Inflight,
    /// It succeeded. No output means that it was not kept: too large, or only known from an operator.
    Done(Option<Output>),
    /// It failed.
    Failed(Failure),
    /// It may have run. Stored as failed with `outcome_unknown`.
    Unknown(UnknownOutcome),
    /// It was cancelled. Never written by us; read and counted only.
    Cancelled,
}

/// What is known of an attempt whose outcome is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOutcome {
    /// From when on it can take no effect any more.
    pub settles: Settles,
    /// What was seen of it.
    pub observed: Observed,
    /// What was said about it: the status of an answer, why a connection was lost, how a process ended.
    pub words: Option<Arc<str>>,
    /// What the tool itself said, word for word.
    pub output: Option<Output>,
}

/// From when on an attempt can take no effect any more. Nothing that is said or found out before counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settles {
    /// Only its owner can say, and has not said so yet.
    WhenOwnerSays,
    /// From this moment on, by the time of the store: nobody can see its end.
    By(Timestamp),
    /// Its owner has seen its end.
    Settled,
}

impl Settles {
    /// Whether this replaces what was recorded. What was once announced is not put off: somebody may have been told.
    pub(super) fn knows_more_than(self, recorded: Self) -> bool {
        match (self, recorded) {
            (Self::Settled, Self::By(_) | Self::WhenOwnerSays) | (Self::By(_), Self::WhenOwnerSays) => true,
            (Self::By(said), Self::By(known)) => said < known,
            (Self::Settled | Self::By(_), Self::Settled) => false,
            (Self::WhenOwnerSays, _) => false,
        }
    }
}

/// What was observed of an attempt whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Observed {
    /// It was sent, and no answer came in time.
    NoAnswer,
    /// It was answered with an error that does not say whether it had its effect.
    ErrorAnswer,
    /// The connection was lost before the answer came.
    ConnectionLost,
    /// The process that ran it, or the one that waited for its answer, ended.
    ProcessDied,
}

impl Observed {
    /// The same in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NoAnswer => "no response arrived in time",
            Self::ErrorAnswer => "the tool returned an error",
            Self::ConnectionLost => {
                "the request was sent, and the connection was lost before a response arrived"
            }
            // It may be the process that was about to send it.
            Self::ProcessDied => "the process running the call ended before it responded",
        }
    }
}

impl UnknownOutcome {
    /// Nothing but this was seen, and it can take no effect any more.
    pub fn settled(observed: Observed) -> Self {
        Self { settles: Settles::Settled, observed, words: None, output: None }
    }

    /// Whether the attempt can take no effect any more.
    pub fn is_settled(&self, now: Timestamp) -> bool {
        match self.settles {
            Settles::WhenOwnerSays => false,
            Settles::By(at) => at <= now,
            Settles::Settled => true,
        }
    }
}

/// Why a call failed, as it is answered and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// What is wrong and what to do, for the model or a person.
    pub message: Cow<'static, str>,
    /// Whether the same call can succeed later.
    pub retriable: bool,
    /// Whether it never will.
    pub terminal: bool,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'static, str>>,
    /// How to find out whether the call had its effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Arc<str>>,
    /// When to come again.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "optional_millis",
        rename = "retryAfterMs"
    )]
    pub retry_after: Option<Duration>,
    /// What the tool itself said, word for word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
}

/// One attempt, as the record remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttemptFact {
    /// Its number within the call, from one. Zero in records of an older version.
    #[serde(default)]
    pub number: u32,
    /// When it started.
    #[serde(rename = "startedAtMs")]
    pub started: Timestamp,
    /// When it ended.
    #[serde(rename = "finishedAtMs")]
    pub finished: Timestamp,
    /// The code of its failure; nothing if it succeeded, and in records of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The rule that classified its failure; nothing if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'static, str>>,
    /// Whether the failure was transient.
    pub retriable: bool,
}

/// What is remembered of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it lives.
    pub key: Key,
    /// Who can find it there.
    pub origin: Origin,
    /// The index entry that was moved here by the claim.
    pub index: Option<Key>,
    /// The client's id of the dispatch that made the claim, if it had one.
    pub call_id: Option<Key>,
    /// The tool.
    pub tool: ToolRef,
    /// What became of it.
    pub state: RecordState,
    /// Whose it is.
    pub owner: Owner,
    /// Whether an attempt may have been sent.
    pub started: bool,
    /// Whether it may run again if nobody knows.
    pub retry_safe: bool,
    /// The canonical arguments; compared in every state.
    pub digest: Digest,
    /// The run, for the tool to recognise it.
    pub run: RunId,
    /// How long the claim holds.
    pub lease: Lease,
    /// Where the owner can see the end of an attempt: when it will have seen it at the latest.
    pub seen_end_by: Option<Timestamp>,
    /// When the answer now in the record reached a client.
    pub delivered: Option<Timestamp>,
    /// Grows with each write.
    pub version: u64,
    /// When the first call for it came.
    pub arrived: Timestamp,
    /// When it was first written.
    pub created: Timestamp,
    /// When it was last written.
    pub updated: Timestamp,
    /// When it is forgotten; nothing means not before someone settles it.
    pub expires: Option<Timestamp>,
    /// Who asked.
    pub request: RequestId,
    /// The model's id of the call.
    pub tool_call: Option<ToolCallId>,
    /// The caller's own words about it.
    pub context: Option<Arc<CallContext>>,
    /// The conversation.
    pub session: Option<SessionKey>,
    /// Who acts.
    pub actor: Option<ActorId>,
    /// Whose data it is.
    pub tenant: Option<TenantId>,
    /// The attempts so far; only the last [`Record::MOST_ATTEMPTS`] are kept.
    pub attempts: Vec<AttemptFact>,
}

/// Names the answer that was given, so that its arrival can be marked and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The record.
    pub key: Key,
    /// Its owner: a key that was released and claimed again carries another answer.
    pub owner: Owner,
    /// The version that carried the answer.
    pub version: u64,
}

/// How a run ended, as far as the record is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an answer; none if it is too large to keep.
    Done(Option<Output>),
    /// With a failure that is an answer.
    Failed(Failure),
    /// It may have had its effect.
    Unknown(UnknownEnding),
}

/// An outcome that is not known, as its owner records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEnding {
    /// From when on the attempt can take no effect any more.
    pub settles: SettlesIn,
    /// What was seen of it.
    pub observed: Observed,
    /// What was said about it.
    pub words: Option<Arc<str>>,
    /// What the tool itself said, word for word.
    pub output: Option<Output>,
}

impl UnknownEnding {
    /// Nothing but this was seen, and it can take no effect any more.
    pub fn settled(observed: Observed) -> Self {
        Self { settles: SettlesIn::Settled, observed, words: None, output: None }
    }
}

/// The same as [`Settles`], counted from the moment at which it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlesIn {
    /// The owner will say so.
    WhenOwnerSays,
    /// After so long.
    After(Duration),
    /// It has.
    Settled,
}

impl SettlesIn {
    pub(super) fn at(self, now: Timestamp) -> Settles {
        match self {
            Self::WhenOwnerSays => Settles::WhenOwnerSays,
            Self::After(span) => Settles::By(now + span),
            Self::Settled => Settles::Settled,
        }
    }
}

/// What a store has to write, in the same atomic operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Nothing.
    Nothing,
    /// This record under its key.
    Put {
        /// The record.
        record: Arc<Record>,
        /// Whether the index entry (if the record has one) is pointed at it.
        index: IndexMove,
        /// Records that this one replaces.
        remove: Vec<Key>,
    },
    /// Remove the record under this key, and the index entry if it points there.
    Remove {
        /// The record.
        key: Key,
        /// The index entry that may point to it.
        index: Option<Key>,
    },
}

/// What happens to the index entry of a record that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexMove {
    /// It stays as it is.
    Keep,
    /// It points to this record from now on.
    Point,
    /// It points to this record if it points to nothing.
    PointIfFree,
}

impl Record {
    /// Attempts remembered per record.
    pub const MOST_ATTEMPTS: usize = 16;

    /// Whether a run is going on or its outcome is open. Such a record is pinned: within its lifetime no cap, no
    /// sweep and no unqualified flush removes it.
    pub fn is_open(&self) -> bool {
        match self.state {
            RecordState::Inflight | RecordState::Unknown(_) => true,
            RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => false,
        }
    }

    /// Whether it is past its lifetime. A record that is treated as absent may be removed by anyone.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Whether its outcome is unknown as soon as its holder is gone, and nobody has recorded that yet.
    pub fn may_be_abandoned(&self) -> bool {
        match &self.state {
            RecordState::Inflight => !self.may_be_taken_over(),
            RecordState::Unknown(unknown) => unknown.settles == Settles::WhenOwnerSays,
            RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => false,
        }
    }

    /// Whether somebody else may run it once its holder is gone: nothing was sent, or it does no harm twice.
    pub fn may_be_taken_over(&self) -> bool {
        !self.started || self.retry_safe
    }

    /// Whether the claim still holds, given what the store knows about its owner.
    pub fn lease_holds(&self, sight: LeaseSight, now: Timestamp) -> bool {
        match (sight, self.lease) {
            (LeaseSight::Alive, _) | (LeaseSight::Time, Lease::Record) => true,
            (LeaseSight::Gone, _) => false,
            (LeaseSight::Time, Lease::Until(until)) => now < until,
        }
    }

    /// This record after its outcome became unknown.
    pub(super) fn now_unknown(&self, unknown: UnknownOutcome, rules: &Rules, now: Timestamp) -> Self {
        let hold = rules.after_unknown == AfterUnknown::Hold || self.expires.is_none();
        self.written(RecordState::Unknown(unknown), &rules.keep, hold, now)
    }

    /// The receipt of the answer now in the record.
    pub fn receipt(&self) -> Receipt {
        Receipt { key: self.key, owner: self.owner.clone(), version: self.version }
    }

    /// This record after one more write. Every write that changes the answer empties the delivery mark.
    pub(super) fn written(&self, state: RecordState, keep: &Lifetimes, hold: bool, now: Timestamp) -> Self {
        let expires = lifetime(&state, keep, hold).map(|life| now + life);
        Self { state, delivered: None, version: self.version + 1, updated: now, expires, ..self.clone() }
    }
}

/// How long a record in this state is kept; nothing means until someone settles it.
pub(super) fn lifetime(state: &RecordState, keep: &Lifetimes, hold: bool) -> Option<Duration> {
    match state {
        RecordState::Done(_) => Some(keep.done),
        RecordState::Failed(_) | RecordState::Cancelled => Some(keep.failed),
        RecordState::Inflight => Some(keep.open),
        RecordState::Unknown(_) => (!hold).then_some(keep.open),
    }
}

mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(crate::millis).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

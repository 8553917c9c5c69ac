//! The stored record of a call.
//!
//! ```text
//!            claim                     save done, save failed
//!   (none) ─────────▶ Inflight ───────────────────────────────▶ Done, Failed
//!      ▲                │  │                                        ▲
//!      └────────────────┘  │ the run may have happened,             │ late result from the owner
//!           release        └───────────────▶ Unknown ───────────────┘
//!                            and must not happen twice
//! ```
//!
//! `Done` never returns to `Inflight` under the same owner. Only a claim that the tables allow replaces it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::context::CallContext;
use super::rules::DedupeRules;
use crate::Timestamp;
use crate::code::Code;
use crate::id::{ActorId, Digest, RequestId, RunId, SessionKey, TenantId, ToolCallId, ToolRef};
use crate::key::RecordKey;
use crate::output::ToolOutput;
use crate::policy::{RecordLifetimes, UnknownOutcomePolicy};

/// A process on a machine. Distinct from every other process that had the same pid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The boot of the machine. Pids from another boot mean nothing.
    pub boot: Arc<str>,
    /// Id of the process.
    pub pid: u32,
    /// Start time in the unit of the operating system. Distinguishes processes that reuse a pid.
    pub started: u64,
}

/// The owner of a claim. New for every claim, so it is also the fencing token: only the owner may write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimOwner {
    /// Process that made the claim.
    pub process: ProcessIdentity,
    /// Number of the call within the process.
    pub call: u64,
    /// Number of the claim within the call.
    pub claim: u32,
}

impl ClaimOwner {
    /// Returns the token as a single value, for code that only compares it.
    pub fn digest(&self) -> Digest {
        let ProcessIdentity { boot, pid, started } = &self.process;
        Digest::of(format!("{boot}\n{pid}\n{started}\n{}\n{}", self.call, self.claim).as_bytes())
    }
}

/// The time for which a claim holds while its owner is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The claim holds as long as the record, because the store cannot detect that the owner is gone.
    Record,
    /// The claim holds until this time unless it is renewed.
    Until(Timestamp),
}

/// The store's knowledge about the owner of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwnerState {
    /// The owner's process is alive on this machine.
    Alive,
    /// The owner's process is gone.
    Gone,
    /// The owner is on another machine or cannot be checked, so the lease time decides.
    Time,
}

/// The kind of key under which a record is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecordOrigin {
    /// An explicit idempotency key.
    Explicit,
    /// The client's id of the dispatch.
    CallId,
    /// The id of the run. Only the index leads to this record.
    Run,
}

/// The state of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupeState {
    /// The call is running or about to run.
    Inflight,
    /// The call succeeded. `None` if its output was not stored: it was too large, or an operator reported the success.
    Done(Option<ToolOutput>),
    /// The call failed.
    Failed(CallFailure),
    /// The call may have run. Stored as failed with `outcome_unknown`.
    Unknown(UnknownOutcome),
    /// The call was cancelled. Steadfast never writes this state; it is only read and counted.
    Cancelled,
}

/// An attempt with an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOutcome {
    /// The time from which the attempt can no longer take effect.
    pub settles: SettleTime,
    /// The reason why the outcome is unknown.
    pub observed: UnknownOutcomeReason,
    /// Details: the status of a response, the reason for a lost connection, or the exit of a process.
    pub details: Option<Arc<str>>,
    /// The tool's own output, unchanged.
    pub output: Option<ToolOutput>,
}

/// The time from which an attempt can no longer take effect. Nothing reported or verified before that time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleTime {
    /// Only the owner can report it, and has not done so yet.
    WhenOwnerReports,
    /// From this time on, by the clock of the store. The end of the attempt cannot be observed.
    By(Timestamp),
    /// The owner has observed the end.
    Settled,
}

impl SettleTime {
    /// Returns true if this replaces the recorded value. A time that was announced is never moved later, because a
    /// caller may have acted on it.
    pub(super) fn is_more_precise_than(self, recorded: Self) -> bool {
        match (self, recorded) {
            (Self::Settled, Self::By(_) | Self::WhenOwnerReports) | (Self::By(_), Self::WhenOwnerReports) => {
                true
            }
            (Self::By(new), Self::By(known)) => new < known,
            (Self::Settled | Self::By(_), Self::Settled) => false,
            (Self::WhenOwnerReports, _) => false,
        }
    }
}

/// The reason why the outcome of an attempt is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnknownOutcomeReason {
    /// The attempt was sent, and no response came in time.
    NoAnswer,
    /// The response was an error that leaves open if the attempt took effect.
    ErrorAnswer,
    /// The connection was lost before the response came.
    ConnectionLost,
    /// The process that ran the attempt, or the one that waited for its response, ended.
    ProcessDied,
}

impl UnknownOutcomeReason {
    /// Returns a description in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NoAnswer => "no response arrived in time",
            Self::ErrorAnswer => "the tool returned an error",
            Self::ConnectionLost => {
                "the request was sent, and the connection was lost before a response arrived"
            }
            // It may be the process that was about to send the attempt.
            Self::ProcessDied => "the process running the call ended before it responded",
        }
    }
}

impl UnknownOutcome {
    /// Returns an outcome of which only this is known, and which can no longer change.
    pub fn settled(observed: UnknownOutcomeReason) -> Self {
        Self { settles: SettleTime::Settled, observed, details: None, output: None }
    }

    /// Returns true if the attempt can no longer take effect.
    pub fn is_settled(&self, now: Timestamp) -> bool {
        match self.settles {
            SettleTime::WhenOwnerReports => false,
            SettleTime::By(at) => at <= now,
            SettleTime::Settled => true,
        }
    }
}

/// The failure of a call, as returned to callers and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallFailure {
    /// Stable error code.
    pub code: Code,
    /// Description of the problem and its solution, for the model or a user.
    pub message: Cow<'static, str>,
    /// True if the same call can succeed later.
    pub retriable: bool,
    /// True if the same call will never succeed.
    pub terminal: bool,
    /// Name of the rule that classified the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'static, str>>,
    /// Instructions for checking if the call took effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Arc<str>>,
    /// Time to wait before the next try.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "optional_millis",
        rename = "retryAfterMs"
    )]
    pub retry_after: Option<Duration>,
    /// The tool's own output, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ToolOutput>,
}

/// One attempt as stored in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    /// Number of the attempt within the call, starting at one. Zero in records of an older version.
    #[serde(default)]
    pub number: u32,
    /// Start time.
    #[serde(rename = "startedAtMs")]
    pub started: Timestamp,
    /// End time.
    #[serde(rename = "finishedAtMs")]
    pub finished: Timestamp,
    /// Error code of the failure. Absent if the attempt succeeded, and in records of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Name of the rule that classified the failure. Absent if the attempt succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'static, str>>,
    /// True if the failure was transient.
    pub retriable: bool,
}

/// The record of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupeRecord {
    /// Key of the record.
    pub key: RecordKey,
    /// Kind of the key.
    pub origin: RecordOrigin,
    /// Index entry that the claim pointed at this record.
    pub index: Option<RecordKey>,
    /// Client's id of the dispatch that made the claim, if it had one.
    pub call_id: Option<RecordKey>,
    /// Tool of the call.
    pub tool: ToolRef,
    /// State of the call.
    pub state: DedupeState,
    /// Owner of the claim.
    pub owner: ClaimOwner,
    /// True if an attempt may have been sent.
    pub started: bool,
    /// True if the call may run again after an unknown outcome.
    pub retry_safe: bool,
    /// Digest of the canonical arguments. Compared in every state.
    pub digest: Digest,
    /// Id of the run, by which the tool can recognise it.
    pub run: RunId,
    /// Lease of the claim.
    pub lease: Lease,
    /// Latest time at which the owner will have observed the end of an attempt, if it can observe it.
    pub end_observed_by: Option<Timestamp>,
    /// Time at which the current result reached a client.
    pub delivered: Option<Timestamp>,
    /// Version of the record. Grows with each write.
    pub version: u64,
    /// Time at which the first call arrived.
    pub arrived: Timestamp,
    /// Time of the first write.
    pub created: Timestamp,
    /// Time of the last write.
    pub updated: Timestamp,
    /// Expiry time. `None` if the record stays until it is resolved.
    pub expires: Option<Timestamp>,
    /// Request that made the claim.
    pub request: RequestId,
    /// Model's id of the call.
    pub tool_call: Option<ToolCallId>,
    /// Context that the caller sent with the call.
    pub context: Option<Arc<CallContext>>,
    /// Session of the call.
    pub session: Option<SessionKey>,
    /// Actor that makes the call.
    pub actor: Option<ActorId>,
    /// Tenant whose data the call uses.
    pub tenant: Option<TenantId>,
    /// Attempts so far. Only the last [`DedupeRecord::MOST_ATTEMPTS`] are stored.
    pub attempts: Vec<AttemptRecord>,
}

/// The identity of one response, so that only its own delivery can be marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryReceipt {
    /// Key of the record.
    pub key: RecordKey,
    /// Owner of the record. A key that was released and claimed again holds another result.
    pub owner: ClaimOwner,
    /// Version of the record that held the result.
    pub version: u64,
}

/// The end of a run, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The run succeeded. `None` if the output is too large to store.
    Done(Option<ToolOutput>),
    /// The run failed, and the failure is a result.
    Failed(CallFailure),
    /// The run may have taken effect.
    Unknown(UnknownOutcomeReport),
}

/// An unknown outcome as its owner records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOutcomeReport {
    /// The time until the attempt can no longer take effect.
    pub settles: SettleDelay,
    /// The reason why the outcome is unknown.
    pub observed: UnknownOutcomeReason,
    /// Details of that reason.
    pub details: Option<Arc<str>>,
    /// The tool's own output, unchanged.
    pub output: Option<ToolOutput>,
}

impl UnknownOutcomeReport {
    /// Returns an outcome of which only this is known, and which can no longer change.
    pub fn settled(observed: UnknownOutcomeReason) -> Self {
        Self { settles: SettleDelay::Settled, observed, details: None, output: None }
    }
}

/// The same as [`SettleTime`], relative to the time of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleDelay {
    /// The owner will report it.
    WhenOwnerReports,
    /// The attempt settles after this time.
    After(Duration),
    /// The attempt has settled.
    Settled,
}

impl SettleDelay {
    pub(super) fn at(self, now: Timestamp) -> SettleTime {
        match self {
            Self::WhenOwnerReports => SettleTime::WhenOwnerReports,
            Self::After(span) => SettleTime::By(now + span),
            Self::Settled => SettleTime::Settled,
        }
    }
}

/// The write that a store applies in the same atomic operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordWrite {
    /// No write.
    Nothing,
    /// Store this record under its key.
    Put {
        /// The record.
        record: Arc<DedupeRecord>,
        /// Update of the record's index entry, if it has one.
        index: IndexUpdate,
        /// Records that this one replaces.
        remove: Vec<RecordKey>,
    },
    /// Remove the record with this key, and the index entry if it points to it.
    Remove {
        /// Key of the record.
        key: RecordKey,
        /// Index entry that may point to the record.
        index: Option<RecordKey>,
    },
}

/// The update of the index entry of a written record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexUpdate {
    /// The entry does not change.
    Keep,
    /// The entry points to this record from now on.
    Point,
    /// The entry points to this record if it was empty.
    PointIfFree,
}

impl DedupeRecord {
    /// Number of attempts stored per record.
    pub const MOST_ATTEMPTS: usize = 16;

    /// Returns true if a run is in flight or its outcome is unknown. Such a record is pinned: within its lifetime no
    /// cap, no sweep and no unqualified flush removes it.
    pub fn is_open(&self) -> bool {
        match self.state {
            DedupeState::Inflight | DedupeState::Unknown(_) => true,
            DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => false,
        }
    }

    /// Returns true if the record is past its lifetime. Any process may remove such a record.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Returns true if the outcome becomes unknown once the owner is gone, and that is not recorded yet.
    pub fn may_be_abandoned(&self) -> bool {
        match &self.state {
            DedupeState::Inflight => !self.may_be_taken_over(),
            DedupeState::Unknown(unknown) => unknown.settles == SettleTime::WhenOwnerReports,
            DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => false,
        }
    }

    /// Returns true if another owner may run the call once this owner is gone: nothing was sent, or running it twice
    /// does no harm.
    pub fn may_be_taken_over(&self) -> bool {
        !self.started || self.retry_safe
    }

    /// Returns true if the claim still holds, given the store's knowledge about its owner.
    pub fn lease_holds(&self, sight: LeaseOwnerState, now: Timestamp) -> bool {
        match (sight, self.lease) {
            (LeaseOwnerState::Alive, _) | (LeaseOwnerState::Time, Lease::Record) => true,
            (LeaseOwnerState::Gone, _) => false,
            (LeaseOwnerState::Time, Lease::Until(until)) => now < until,
        }
    }

    /// Returns this record with an unknown outcome.
    pub(super) fn with_unknown_outcome(
        &self,
        unknown: UnknownOutcome,
        rules: &DedupeRules,
        now: Timestamp,
    ) -> Self {
        let hold = rules.after_unknown == UnknownOutcomePolicy::Hold || self.expires.is_none();
        self.after_write(DedupeState::Unknown(unknown), &rules.keep, hold, now)
    }

    /// Returns the receipt of the current result.
    pub fn receipt(&self) -> DeliveryReceipt {
        DeliveryReceipt { key: self.key, owner: self.owner.clone(), version: self.version }
    }

    /// Returns this record after one more write. Every write that changes the result clears the delivery mark.
    pub(super) fn after_write(
        &self,
        state: DedupeState,
        keep: &RecordLifetimes,
        hold: bool,
        now: Timestamp,
    ) -> Self {
        let expires = lifetime(&state, keep, hold).map(|keep_time| now + keep_time);
        Self { state, delivered: None, version: self.version + 1, updated: now, expires, ..self.clone() }
    }
}

/// Returns the lifetime of a record in this state, or `None` if it stays until it is resolved.
pub(super) fn lifetime(state: &DedupeState, keep: &RecordLifetimes, hold: bool) -> Option<Duration> {
    match state {
        DedupeState::Done(_) => Some(keep.done),
        DedupeState::Failed(_) | DedupeState::Cancelled => Some(keep.failed),
        DedupeState::Inflight => Some(keep.open),
        DedupeState::Unknown(_) => (!hold).then_some(keep.open),
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

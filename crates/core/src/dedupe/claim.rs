//! Claims, the records that they find, and the verdicts on them. `claim_table.rs` decides them.

use std::sync::Arc;
use std::time::Duration;

use super::address::RecordAddress;
use super::context::CallContext;
use super::record::{
    CallFailure, ClaimOwner, DedupeRecord, DedupeState, DeliveryReceipt, LeaseOwnerState, RecordOrigin,
    RecordWrite, UnknownOutcomeReason,
};
use super::rules::DedupeRules;
use crate::Timestamp;
use crate::id::{ActorId, Digest, RequestId, RunId, SessionKey, TenantId, ToolCallId, ToolRef};
use crate::key::RecordKey;
use crate::output::ToolOutput;

/// The purpose of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimIntent {
    /// To run the call, if the table allows it. `started` means that the attempt follows at once.
    Take {
        /// Value that is written with the claim.
        started: bool,
    },
    /// To look for a result. Nothing is claimed.
    Look,
}

/// The history of the call: a first claim, or one after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRole {
    /// The first claim of the call.
    Fresh,
    /// A claim of a call that waited for a record and was woken.
    Waiter {
        /// Key of the record that it waited for.
        followed: RecordKey,
    },
}

/// A call that looks for its record and claims it if the table allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Keys of the record.
    pub address: RecordAddress,
    /// Purpose of the claim.
    pub intent: ClaimIntent,
    /// First claim, or claim after a wait.
    pub role: ClaimRole,
    /// Token of the claim.
    pub owner: ClaimOwner,
    /// Digest of the canonical arguments.
    pub digest: Digest,
    /// True if the call may run again after an unknown outcome.
    pub retry_safe: bool,
    /// True if the caller prefers a refusal to a wait, and wants a retriable failure to run again.
    pub best_effort: bool,
    /// Arrival time of the call, for display only.
    pub arrived: Timestamp,
    /// Time since the arrival. Clocks of two machines are never compared.
    pub age: Duration,
    /// Longest time after this claim until the driver has observed the end of an attempt, if it can observe it.
    pub end_observed_within: Option<Duration>,
    /// Id of the run, used if this is the first run.
    pub run: RunId,
    /// Settings of the table.
    pub rules: DedupeRules,
    /// Tool of the call.
    pub tool: ToolRef,
    /// Request that makes the claim.
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
}

impl Claim {
    /// Returns the claim for a client that waited for this record, lost its connection, and wants the result without
    /// calling again. Returns `None` if only a call can find out, because the run may be repeated.
    ///
    /// The claim takes nothing from other callers. If the record is gone by then, the claim may be granted, and must be
    /// released.
    pub fn to_await_result(
        record: &DedupeRecord,
        owner: ClaimOwner,
        rules: DedupeRules,
        now: Timestamp,
    ) -> Option<Self> {
        match record.state {
            DedupeState::Inflight if record.may_be_taken_over() => return None,
            DedupeState::Cancelled => return None,
            DedupeState::Inflight
            | DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_) => {}
        }
        let address = match (record.origin, record.index) {
            (RecordOrigin::Explicit, _) | (_, None) => RecordAddress::Explicit(record.key),
            (RecordOrigin::CallId, Some(index)) => RecordAddress::CallId { id: record.key, index },
            (RecordOrigin::Run, Some(index)) => RecordAddress::Keyless { run: record.key, index },
        };
        Some(Self {
            address,
            intent: ClaimIntent::Take { started: false },
            role: ClaimRole::Waiter { followed: record.key },
            owner,
            digest: record.digest,
            retry_safe: record.retry_safe,
            best_effort: false,
            arrived: now,
            age: Duration::ZERO,
            end_observed_within: None,
            run: record.run.clone(),
            rules,
            tool: record.tool.clone(),
            request: record.request.clone(),
            tool_call: record.tool_call.clone(),
            context: record.context.clone(),
            session: record.session.clone(),
            actor: record.actor.clone(),
            tenant: record.tenant.clone(),
        })
    }

    /// Returns true if the record with this key can decide the claim. The target of an index is not known before the
    /// lookup.
    pub fn may_find(&self, key: RecordKey) -> bool {
        match (self.address, self.role) {
            (RecordAddress::Explicit(own), ClaimRole::Fresh) => own == key,
            (RecordAddress::Explicit(_), ClaimRole::Waiter { .. })
            | (RecordAddress::CallId { .. } | RecordAddress::Keyless { .. }, _) => true,
        }
    }

    /// Returns true if this record is of the same tool and arguments.
    pub(super) fn is_same_call(&self, record: &DedupeRecord) -> bool {
        record.digest == self.digest && record.tool == self.tool
    }
}

/// The records that the store found for a claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoundRecords<'r> {
    /// Record that a waiter waited for.
    pub followed: Option<(&'r DedupeRecord, LeaseOwnerState)>,
    /// Record under [`RecordAddress::own`].
    pub own: Option<(&'r DedupeRecord, LeaseOwnerState)>,
    /// Record that the index points to.
    pub indexed: Option<(&'r DedupeRecord, LeaseOwnerState)>,
}

/// The verdict on a claim, and the write that belongs to it.
pub type ClaimDecision = DedupeDecision<ClaimVerdict>;

/// A verdict and the write that belongs to the same atomic operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupeDecision<V> {
    /// Verdict for the caller.
    pub verdict: V,
    /// Write for the store.
    pub write: RecordWrite,
}

impl<V> DedupeDecision<V> {
    pub(super) fn only(verdict: V) -> Self {
        Self { verdict, write: RecordWrite::Nothing }
    }
}

/// The verdict on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The call may run. This is its record.
    Acquired(Arc<DedupeRecord>),
    /// The call is in flight elsewhere. Wait for this record.
    Follow(RecordKey),
    /// The call is in flight elsewhere, and the caller does not want to wait.
    Busy,
    /// A stored result is replayed.
    Replay(Box<ReplayedResult>),
    /// The call may have run. The outcome is unknown.
    Unknown(Box<UnknownOutcomeStatus>),
    /// The key belongs to another call.
    Conflict,
    /// A lookup found no result.
    Nothing,
    /// The store is full of open records.
    Full,
    /// The store has just lost all records, and the tool must not run twice. Existing owners renew their claims first.
    StoreRecovering,
    /// The store has lost records, the loss is not accepted, and the earlier run of this call may be among them.
    RecordsLost,
}

/// An unknown outcome that a claim found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOutcomeStatus {
    /// State of the attempt: settled or not.
    pub end: SettleStatus,
    /// Reason why the outcome is unknown.
    pub observed: UnknownOutcomeReason,
    /// Details of that reason.
    pub details: Option<Arc<str>>,
    /// The tool's own output, unchanged.
    pub output: Option<ToolOutput>,
    /// Time until the same call runs again without a verification. `None` if it never runs again by itself.
    pub runs_in: Option<Duration>,
    /// Receipt of the record. Marks the delivery of a final response.
    pub receipt: DeliveryReceipt,
}

/// The state of an attempt with an unknown outcome: settled or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleStatus {
    /// The attempt can no longer take effect.
    Settled,
    /// The attempt may still take effect, for this long at most. `None` if only its owner can report the end.
    NotYet(Option<Duration>),
}

/// Facts that a process knows and the store does not know yet, or never learns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalKnowledge {
    /// Responses that have reached their callers.
    pub delivered: Vec<(DeliveryReceipt, Timestamp)>,
    /// Runs of this process whose responses were sent after the call was received.
    pub overlapped: Vec<ClaimOwner>,
    /// Runs whose responses were sent before the call was received, and could only be saved later.
    pub answered_unsaved: Vec<ClaimOwner>,
    /// Runs with an unknown outcome that the caller has verified since the final response.
    pub verified: Vec<ClaimOwner>,
}

/// A stored result that a claim found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedResult {
    /// Result of the call.
    pub answer: Result<Option<ToolOutput>, CallFailure>,
    /// Reason of the replay.
    pub reason: ReplayReason,
    /// Age of the result.
    pub age: Duration,
    /// Receipt that marks the delivery.
    pub receipt: DeliveryReceipt,
}

/// The reason why a result is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReason {
    /// The key or the dispatch is the same.
    SameKey,
    /// The arguments are equal, and the response never arrived.
    Undelivered,
    /// The arguments are equal, and the second call came before the first one got its response.
    DoubleDispatch,
    /// The call waited for the result.
    Waited,
}

//! The decision table for claims, lookups, and waiters that wake up.
//!
//! | found | explicit key | own call id | equal arguments only | waiter |
//! | --- | --- | --- | --- | --- |
//! | nothing | acquire | acquire | acquire | acquire |
//! | own token, `inflight` | acquire | acquire | acquire | acquire |
//! | `inflight`, lease holds | wait (`in_flight` under `bestEffort`) | wait | wait | wait |
//! | `inflight`, lease ended, not `started` | acquire | acquire | acquire | acquire |
//! | `inflight`, lease ended, `started`, `retry_safe` | take over | take over | take over | take over |
//! | `inflight`, lease ended, `started`, not `retry_safe` | write `unknown`, report it | same | same | same |
//! | `done`, not delivered | replay | replay | replay (10 min, then acquire) | result |
//! | `done`, delivered | replay | replay | acquire (calls that overlap: replay) | result |
//! | `failed` | by `cache_failures` | acquire | acquire | result |
//! | `unknown`, not settled | report *not yet* | same | same | same |
//! | `unknown`, settled, no final response delivered | report *final* | same | same | same |
//! | `unknown`, settled, final response delivered, then a verification read | report *final* | same | acquire (`hold`: report) | report *final* |
//! | `unknown`, settled, final response delivered 10 s ago or more | report *final* | same | acquire (`hold`: report) | report *final* |
//!
//! *Settled* means that the attempt can no longer take effect. Nothing reported or read before that counts. A response
//! *not yet* is never marked as delivered. A read that began before a final response arrived does not verify it.
//!
//! Finished results that a computed key finds and that were recorded before [`DedupeRules::computed_since`] are ignored.
//!
//! An explicit key with another digest is a conflict in every row, for waiters too, and nothing is written.
//!
//! A call id with other arguments finds nothing, because it is another call. If a call's own record failed, or lapsed
//! before its start, an equal run that is open or whose result is not delivered goes first. The third column then
//! decides.

use std::sync::Arc;
use std::time::Duration;

use super::record::{
    CallFailure, ClaimOwner, DedupeRecord, DedupeState, DeliveryReceipt, IndexUpdate, Lease, LeaseOwnerState,
    RecordOrigin, RecordWrite, RunId, SettleTime, UnknownOutcome, UnknownOutcomeReason, lifetime,
};
use crate::Timestamp;
use crate::envelope::CallContext;
use crate::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolCallId, ToolRef};
use crate::key::RecordKey;
use crate::output::ToolOutput;
use crate::policy::{CallPolicy, FailureReplayPolicy, RecordLifetimes, UnknownOutcomePolicy};

/// The keys under which a call finds its record and writes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordAddress {
    /// An explicit idempotency key.
    Explicit(RecordKey),
    /// The client's id of this dispatch, or else the index of equal arguments.
    CallId {
        /// Key of the call id.
        id: RecordKey,
        /// Computed key.
        index: RecordKey,
    },
    /// The index of equal arguments. The record is written under the id of the run.
    Keyless {
        /// Key of the run id.
        run: RecordKey,
        /// Computed key.
        index: RecordKey,
    },
}

impl RecordAddress {
    /// Returns the key under which the record of this call is written.
    pub fn own(&self) -> RecordKey {
        match *self {
            Self::Explicit(key) => key,
            Self::CallId { id, .. } => id,
            Self::Keyless { run, .. } => run,
        }
    }

    /// Returns the index of equal arguments, if the call uses it.
    pub fn index(&self) -> Option<RecordKey> {
        match *self {
            Self::Explicit(_) => None,
            Self::CallId { index, .. } | Self::Keyless { index, .. } => Some(index),
        }
    }

    /// Returns the same address in the key space of shadow mode.
    pub fn shadowed(&self) -> Self {
        match *self {
            Self::Explicit(key) => Self::Explicit(key.shadowed()),
            Self::CallId { id, index } => Self::CallId { id: id.shadowed(), index: index.shadowed() },
            Self::Keyless { run, index } => Self::Keyless { run: run.shadowed(), index: index.shadowed() },
        }
    }

    /// Returns the kind of key under which the record is stored.
    pub fn origin(&self) -> RecordOrigin {
        match self {
            Self::Explicit(_) => RecordOrigin::Explicit,
            Self::CallId { .. } => RecordOrigin::CallId,
            Self::Keyless { .. } => RecordOrigin::Run,
        }
    }

    fn call_id(&self) -> Option<RecordKey> {
        match *self {
            Self::CallId { id, .. } => Some(id),
            Self::Explicit(_) | Self::Keyless { .. } => None,
        }
    }
}

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

/// The settings that the table depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeRules {
    /// Failures that an explicit key replays.
    pub cache_failures: FailureReplayPolicy,
    /// Handling of equal arguments after an unknown outcome.
    pub after_unknown: UnknownOutcomePolicy,
    /// True if equal calls that overlap count as one call that was dispatched twice.
    pub double_dispatch: bool,
    /// Time for which an undelivered result is kept for equal arguments.
    pub undelivered: Duration,
    /// Time after the delivery of a final response before which equal arguments do not run, unless a verification read
    /// came first.
    pub after_telling: Duration,
    /// Time for which an attempt may still take effect if its end cannot be observed.
    pub linger: Duration,
    /// Time for which work may still take effect that a child process of Steadfast has handed on.
    pub settle: Duration,
    /// Lifetimes of records.
    pub keep: RecordLifetimes,
    /// Set for calls without an explicit key if duplicates were not detected for a while. Results from before this time
    /// are not replayed. Runs that were in flight then, and their waiters, are kept.
    pub computed_since: Option<Timestamp>,
}

impl From<&CallPolicy> for DedupeRules {
    fn from(policy: &CallPolicy) -> Self {
        let CallPolicy { dedupe, settling, .. } = policy;
        Self {
            cache_failures: dedupe.cache_failures,
            after_unknown: dedupe.after_unknown,
            double_dispatch: dedupe.double_dispatch,
            undelivered: dedupe.undelivered,
            after_telling: dedupe.after_telling,
            linger: settling.linger,
            settle: settling.after_child(),
            keep: dedupe.keep,
            computed_since: None,
        }
    }
}

/// The time that the leash of a child process takes to end its whole group when its owner is gone.
const LEASH: Duration = Duration::from_secs(5);

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
    pub seen_end_within: Option<Duration>,
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
            seen_end_within: None,
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

    fn is_same_call(&self, record: &DedupeRecord) -> bool {
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

/// Decides a claim. `known` holds the facts that only the caller's process knows.
pub fn decide_claim(
    claim: &Claim,
    found: FoundRecords<'_>,
    known: &LocalKnowledge,
    now: Timestamp,
) -> ClaimDecision {
    let Some((record, sight, column)) = pick(claim, found, now) else {
        return acquire(claim, None, found, now);
    };
    if !claim.is_same_call(record) {
        return DedupeDecision::only(ClaimVerdict::Conflict);
    }
    if record.owner == claim.owner && record.state == DedupeState::Inflight {
        return acquire(claim, Some(record), found, now);
    }
    let receipt = record.receipt();
    let known_here = known.delivered.iter().find(|(delivered, _)| *delivered == receipt).map(|(_, at)| *at);
    let delivered = record.delivered.or(known_here);
    match &record.state {
        DedupeState::Inflight if record.lease_holds(sight, now) => match column {
            ClaimColumn::Explicit if claim.best_effort => DedupeDecision::only(ClaimVerdict::Busy),
            ClaimColumn::Explicit | ClaimColumn::CallId | ClaimColumn::Equal | ClaimColumn::Waiter => {
                DedupeDecision::only(ClaimVerdict::Follow(record.key))
            }
        },
        DedupeState::Done(output) => match done_is_replayed(claim, record, column, delivered, known, now) {
            Some(reason) => replay(record, Ok(output.clone()), reason, now),
            None => acquire(claim, Some(record), found, now),
        },
        DedupeState::Failed(failure) => match failure_is_replayed(claim, failure, column) {
            Some(reason) => replay(record, Err(failure.clone()), reason, now),
            None => acquire(claim, Some(record), found, now),
        },
        DedupeState::Inflight | DedupeState::Unknown(_) => {
            let Some((unknown, is_new)) = unknown_outcome(record, sight, &claim.rules, now) else {
                // The owner is gone, and the call may run again.
                return acquire(claim, Some(record), found, now);
            };
            let is_waited = delivered.is_some_and(|at| now.since(at) >= claim.rules.after_telling);
            let is_verified = delivered.is_some() && known.verified.contains(&record.owner);
            match column {
                _ if is_new => record_unknown_outcome(claim, record, unknown, now),
                ClaimColumn::Equal
                    if unknown.is_settled(now)
                        && may_run_again(claim, record)
                        && (is_waited || is_verified) =>
                {
                    acquire(claim, Some(record), found, now)
                }
                ClaimColumn::Explicit | ClaimColumn::CallId | ClaimColumn::Equal | ClaimColumn::Waiter => {
                    DedupeDecision::only(report_unknown_outcome(claim, record, &unknown, delivered, now))
                }
            }
        }
        DedupeState::Cancelled => acquire(claim, Some(record), found, now),
    }
}

/// The columns of the decision table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimColumn {
    Explicit,
    CallId,
    Equal,
    Waiter,
}

/// Returns the record that decides the claim, and its column. A waiter looks at the record that it waited for. If that
/// record or its owner is gone, it looks at the replacement. So of all calls that wait for a claim, one runs and the
/// others keep waiting.
fn pick<'r>(
    claim: &Claim,
    found: FoundRecords<'r>,
    now: Timestamp,
) -> Option<(&'r DedupeRecord, LeaseOwnerState, ClaimColumn)> {
    type FoundRecord<'r> = Option<(&'r DedupeRecord, LeaseOwnerState)>;
    let explicit = claim.address.origin() == RecordOrigin::Explicit;
    // A repeated call id with other arguments is another call. It finds nothing of the first one.
    let fresh = |seen: FoundRecord<'r>| {
        seen.filter(|(record, _)| !record.is_expired(now) && (explicit || claim.is_same_call(record)))
    };
    let counts = |(record, _): &(&DedupeRecord, LeaseOwnerState)| {
        record.is_open() || claim.rules.computed_since.is_none_or(|since| record.updated >= since)
    };
    let own = fresh(found.own).filter(|seen| !explicit || counts(seen));
    let (indexed, followed) = (fresh(found.indexed).filter(counts), fresh(found.followed));
    // A record without an owner and without a result yields to an equal run that is open or has an undelivered result.
    let stands_back = |(record, sight): &(&DedupeRecord, LeaseOwnerState)| match record.state {
        DedupeState::Inflight => {
            record.owner != claim.owner && !record.lease_holds(*sight, now) && record.may_be_taken_over()
        }
        DedupeState::Failed(_) | DedupeState::Cancelled => true,
        DedupeState::Done(_) | DedupeState::Unknown(_) => false,
    };
    let (seen, column) = match claim.role {
        ClaimRole::Fresh if explicit => (own, ClaimColumn::Explicit),
        ClaimRole::Fresh => {
            let owing = indexed.filter(|(record, _)| has_open_result(record, &claim.rules, now));
            match (own, owing) {
                (Some(own), Some(owing)) if stands_back(&own) && own.0.key != owing.0.key => {
                    (Some(owing), ClaimColumn::Equal)
                }
                (Some(own), _) => (Some(own), ClaimColumn::CallId),
                (None, _) => (indexed, ClaimColumn::Equal),
            }
        }
        ClaimRole::Waiter { .. } => {
            let lapsed = |seen: &(&DedupeRecord, LeaseOwnerState)| {
                matches!(seen.0.state, DedupeState::Inflight) && stands_back(seen)
            };
            let left = followed.filter(lapsed);
            let holds = followed.filter(|seen| !lapsed(seen));
            (holds.or(own.filter(|seen| !lapsed(seen))).or(indexed).or(own).or(left), ClaimColumn::Waiter)
        }
    };
    seen.map(|(record, sight)| (record, sight, column))
}

fn done_is_replayed(
    claim: &Claim,
    record: &DedupeRecord,
    column: ClaimColumn,
    delivered: Option<Timestamp>,
    known: &LocalKnowledge,
    now: Timestamp,
) -> Option<ReplayReason> {
    match (column, delivered) {
        (ClaimColumn::Explicit | ClaimColumn::CallId, _) => Some(ReplayReason::SameKey),
        (ClaimColumn::Waiter, _) => Some(ReplayReason::Waited),
        (ClaimColumn::Equal, None) => {
            (now.since(record.updated) < claim.rules.undelivered).then_some(ReplayReason::Undelivered)
        }
        (ClaimColumn::Equal, Some(_)) => {
            let differing_ids = match (record.call_id, claim.address.call_id()) {
                (Some(theirs), Some(ours)) => theirs != ours,
                (None, _) | (_, None) => false,
            };
            let overlap = claim.rules.double_dispatch && overlaps(claim, record, known, now);
            (overlap && !differing_ids).then_some(ReplayReason::DoubleDispatch)
        }
    }
}

/// Returns true if the call arrived before the response in this record was sent. An engine knows that for the responses
/// that it sent itself. For all others, including those of another engine or process, the age of the call shows if it
/// arrived before the result was saved. Both times are taken from the clock of the store.
fn overlaps(claim: &Claim, record: &DedupeRecord, known: &LocalKnowledge, now: Timestamp) -> bool {
    let came_before_the_save = now.since(record.updated) < claim.age;
    known.overlapped.contains(&record.owner)
        // A response that could not be saved at once was sent before it was saved.
        || came_before_the_save && !known.answered_unsaved.contains(&record.owner)
}

fn failure_is_replayed(claim: &Claim, failure: &CallFailure, column: ClaimColumn) -> Option<ReplayReason> {
    match column {
        ClaimColumn::Waiter => Some(ReplayReason::Waited),
        ClaimColumn::CallId | ClaimColumn::Equal => None,
        ClaimColumn::Explicit => {
            let kept = match claim.rules.cache_failures {
                FailureReplayPolicy::None => false,
                FailureReplayPolicy::Terminal => failure.terminal,
                FailureReplayPolicy::All => !(claim.best_effort && failure.retriable),
            };
            kept.then_some(ReplayReason::SameKey)
        }
    }
}

/// Returns true if a call with equal arguments may ever run again without an operator who resolves the outcome.
fn may_run_again(claim: &Claim, record: &DedupeRecord) -> bool {
    // A record that never expires was saved under `hold`, whatever this caller asks for.
    record.expires.is_some()
        && match claim.rules.after_unknown {
            UnknownOutcomePolicy::Hold => false,
            UnknownOutcomePolicy::TellOnce => true,
        }
}

/// Returns the verdict that reports an unknown outcome.
fn report_unknown_outcome(
    claim: &Claim,
    record: &DedupeRecord,
    unknown: &UnknownOutcome,
    delivered: Option<Timestamp>,
    now: Timestamp,
) -> ClaimVerdict {
    let end = match unknown.settles {
        _ if unknown.is_settled(now) => SettleStatus::Settled,
        SettleTime::By(at) => SettleStatus::NotYet(Some(at.since(now))),
        SettleTime::WhenOwnerReports | SettleTime::Settled => SettleStatus::NotYet(None),
    };
    let by_itself = claim.address.index().is_some() && record.index.is_some() && may_run_again(claim, record);
    let waited = delivered.map_or(Duration::ZERO, |at| now.since(at));
    ClaimVerdict::Unknown(Box::new(UnknownOutcomeStatus {
        end,
        observed: unknown.observed,
        details: unknown.details.clone(),
        output: unknown.output.clone(),
        runs_in: by_itself.then(|| claim.rules.after_telling.saturating_sub(waited)),
        receipt: record.receipt(),
    }))
}

/// Returns true if equal calls still have to find this record: it is open, or its result has not been delivered.
fn has_open_result(record: &DedupeRecord, rules: &DedupeRules, now: Timestamp) -> bool {
    match record.state {
        DedupeState::Inflight | DedupeState::Unknown(_) => true,
        DedupeState::Done(_) => record.delivered.is_none() && now.since(record.updated) < rules.undelivered,
        DedupeState::Failed(_) | DedupeState::Cancelled => false,
    }
}

/// Returns the unknown outcome of a run, and true if the record does not contain it yet. Returns `None` if the outcome
/// is known, or if the run is in flight or may be repeated. The owner stays, so its late result still counts.
pub(super) fn unknown_outcome(
    record: &DedupeRecord,
    sight: LeaseOwnerState,
    rules: &DedupeRules,
    now: Timestamp,
) -> Option<(UnknownOutcome, bool)> {
    let is_held = record.lease_holds(sight, now);
    match &record.state {
        DedupeState::Inflight if is_held || record.may_be_taken_over() => None,
        DedupeState::Inflight => {
            let settles = estimate_settle_time(record, sight, rules, now);
            let observed = match sight {
                LeaseOwnerState::Gone => UnknownOutcomeReason::ProcessDied,
                // The owner was silent for one lease, and may be alive all the same.
                LeaseOwnerState::Alive | LeaseOwnerState::Time => UnknownOutcomeReason::NoAnswer,
            };
            Some((UnknownOutcome { settles, ..UnknownOutcome::settled(observed) }, true))
        }
        DedupeState::Unknown(unknown) if unknown.settles == SettleTime::WhenOwnerReports && !is_held => {
            let settles = estimate_settle_time(record, sight, rules, now);
            Some((UnknownOutcome { settles, ..unknown.clone() }, true))
        }
        DedupeState::Unknown(unknown) => Some((unknown.clone(), false)),
        DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => None,
    }
}

/// Returns the time at which an attempt settles if its owner can no longer report its end.
fn estimate_settle_time(
    record: &DedupeRecord,
    sight: LeaseOwnerState,
    rules: &DedupeRules,
    now: Timestamp,
) -> SettleTime {
    let DedupeRules { linger, settle, .. } = *rules;
    SettleTime::By(match (record.seen_end_by, sight) {
        (None, _) => now + linger,
        // The leash ends the rest of it.
        (Some(_), LeaseOwnerState::Gone) => now + LEASH + settle,
        // The owner may be alive, and has observed the end by then.
        (Some(by), LeaseOwnerState::Alive | LeaseOwnerState::Time) => by.max(now) + settle,
    })
}

/// Records that the outcome is unknown, and the time at which it settles. A lookup writes this too: the time has to
/// start, and the owner has to learn that no caller waits for it.
fn record_unknown_outcome(
    claim: &Claim,
    record: &DedupeRecord,
    unknown: UnknownOutcome,
    now: Timestamp,
) -> ClaimDecision {
    let written = record.with_unknown_outcome(unknown.clone(), &claim.rules, now);
    DedupeDecision {
        verdict: report_unknown_outcome(claim, &written, &unknown, None, now),
        write: RecordWrite::Put { record: Arc::new(written), index: IndexUpdate::Keep, remove: Vec::new() },
    }
}

fn replay(
    record: &DedupeRecord,
    answer: Result<Option<ToolOutput>, CallFailure>,
    reason: ReplayReason,
    now: Timestamp,
) -> ClaimDecision {
    let age = now.since(record.updated);
    let replay = ReplayedResult { answer, reason, age, receipt: record.receipt() };
    DedupeDecision::only(ClaimVerdict::Replay(Box::new(replay)))
}

/// Grants the claim: writes the record, points the index to it, and removes the record that only the index could find.
fn acquire(
    claim: &Claim,
    over: Option<&DedupeRecord>,
    found: FoundRecords<'_>,
    now: Timestamp,
) -> ClaimDecision {
    let ClaimIntent::Take { started } = claim.intent else {
        return DedupeDecision::only(ClaimVerdict::Nothing);
    };
    let again = over.filter(|record| record.owner == claim.owner);
    let taken = over.filter(|record| matches!(record.state, DedupeState::Inflight));
    // A run that only the index finds is taken over in place, so that its late owner fails the fencing check.
    let in_place = taken
        .filter(|record| record.origin == RecordOrigin::Run && claim.address.origin() == RecordOrigin::Run);
    let key = in_place.map_or(claim.address.own(), |record| record.key);
    let mut places =
        [found.own, found.indexed, found.followed].into_iter().flatten().map(|(record, _)| record);
    let before = places.find(|record| record.key == key);
    let record = DedupeRecord {
        key,
        origin: in_place.map_or(claim.address.origin(), |record| record.origin),
        index: claim.address.index(),
        call_id: claim.address.call_id(),
        tool: claim.tool.clone(),
        state: DedupeState::Inflight,
        owner: claim.owner.clone(),
        // A repeated claim may follow an attempt. A record that was started stays started.
        started: started || again.is_some_and(|record| record.started),
        retry_safe: claim.retry_safe,
        digest: claim.digest,
        run: taken.or(again).map_or_else(|| claim.run.clone(), |record| record.run.clone()),
        lease: Lease::Until(now + claim.rules.keep.lease),
        seen_end_by: claim.seen_end_within.map(|span| now + span),
        delivered: None,
        version: before.map_or(1, |record| record.version + 1),
        arrived: again.map_or(claim.arrived, |record| record.arrived),
        created: again.map_or(now, |record| record.created),
        updated: now,
        expires: lifetime(&DedupeState::Inflight, &claim.rules.keep, false).map(|life| now + life),
        request: claim.request.clone(),
        tool_call: claim.tool_call.clone(),
        context: claim.context.clone(),
        session: claim.session.clone(),
        actor: claim.actor.clone(),
        tenant: claim.tenant.clone(),
        attempts: again.map_or_else(Vec::new, |record| record.attempts.clone()),
    };
    // A record that was taken over is removed. Otherwise every waiter would take it over in turn. A record that only
    // the index could find is removed when the index points elsewhere.
    let passed = found.indexed.map(|(other, _)| other);
    let orphan =
        passed.filter(|other| other.origin == RecordOrigin::Run && other.key != key && !other.is_open());
    let replaced = over.filter(|old| old.key != key && (old.origin == RecordOrigin::Run || taken.is_some()));
    let mut remove: Vec<RecordKey> = [orphan, replaced].into_iter().flatten().map(|old| old.key).collect();
    remove.dedup();
    let record = Arc::new(record);
    DedupeDecision {
        verdict: ClaimVerdict::Acquired(Arc::clone(&record)),
        write: RecordWrite::Put { record, index: IndexUpdate::Point, remove },
    }
}

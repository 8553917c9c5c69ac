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

use super::claim::{
    Claim, ClaimDecision, ClaimIntent, ClaimRole, ClaimVerdict, DedupeDecision, FoundRecords, LocalKnowledge,
    ReplayReason, ReplayedResult, SettleStatus, UnknownOutcomeStatus,
};
use super::record::{
    CallFailure, DedupeRecord, DedupeState, IndexUpdate, Lease, LeaseOwnerState, RecordOrigin, RecordWrite,
    SettleTime, UnknownOutcome, lifetime,
};
use super::rules::DedupeRules;
use super::unknown_outcome::unknown_outcome;
use crate::Timestamp;
use crate::key::RecordKey;
use crate::output::ToolOutput;
use crate::policy::{FailureReplayPolicy, UnknownOutcomePolicy};

/// Decides a claim. `known` holds the facts that only the caller's process knows.
pub fn decide_claim(
    claim: &Claim,
    found: FoundRecords<'_>,
    known: &LocalKnowledge,
    now: Timestamp,
) -> ClaimDecision {
    let Some(((record, sight), column)) = pick(claim, found, now) else {
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

/// A record that was found, and what the store knows of its owner.
type FoundRecord<'r> = (&'r DedupeRecord, LeaseOwnerState);

/// Returns the record that decides the claim, and its column. The first of these that is there decides:
///
/// | claim | record | column |
/// | --- | --- | --- |
/// | first, with an explicit key | own | explicit |
/// | first, without one | indexed, if own [yields](yields_to) to it | equal |
/// | | own | call id |
/// | | indexed | equal |
/// | after a wait | followed, unless it [lapsed](is_lapsed) | waiter |
/// | | own, unless it lapsed | waiter |
/// | | indexed | waiter |
/// | | own | waiter |
/// | | followed | waiter |
///
/// So of all calls that wait for a claim, one runs and the others keep waiting.
fn pick<'r>(
    claim: &Claim,
    found: FoundRecords<'r>,
    now: Timestamp,
) -> Option<(FoundRecord<'r>, ClaimColumn)> {
    let FoundRecords { own, indexed, followed } = only_relevant(claim, found, now);
    match (claim.role, claim.address.origin()) {
        (ClaimRole::Fresh, RecordOrigin::Explicit) => Some((own?, ClaimColumn::Explicit)),
        (ClaimRole::Fresh, RecordOrigin::CallId | RecordOrigin::Run) => match (own, indexed) {
            (Some(own), Some(indexed)) if yields_to(claim, own, indexed, now) => {
                Some((indexed, ClaimColumn::Equal))
            }
            (Some(own), _) => Some((own, ClaimColumn::CallId)),
            (None, indexed) => Some((indexed?, ClaimColumn::Equal)),
        },
        (ClaimRole::Waiter { .. }, _) => {
            let unless_lapsed = |found: Option<_>| found.filter(|found| !is_lapsed(claim, *found, now));
            let in_order = [unless_lapsed(followed), unless_lapsed(own), indexed, own, followed];
            Some((in_order.into_iter().flatten().next()?, ClaimColumn::Waiter))
        }
    }
}

/// Returns the found records that may decide the claim. The others count as not found.
fn only_relevant<'r>(claim: &Claim, found: FoundRecords<'r>, now: Timestamp) -> FoundRecords<'r> {
    let explicit = claim.address.origin() == RecordOrigin::Explicit;
    // A repeated call id with other arguments is another call. It finds nothing of the first one.
    let fresh =
        |(record, _): &FoundRecord<'_>| !record.is_expired(now) && (explicit || claim.is_same_call(record));
    let counts = |(record, _): &FoundRecord<'_>| {
        record.is_open() || claim.rules.computed_since.is_none_or(|since| record.updated >= since)
    };
    FoundRecords {
        followed: found.followed.filter(fresh),
        own: found.own.filter(fresh).filter(|own| !explicit || counts(own)),
        indexed: found.indexed.filter(fresh).filter(counts),
    }
}

/// Returns true if a call's own record has neither an owner nor a result, and an equal run goes first: it is open, or
/// its result is not delivered.
fn yields_to(claim: &Claim, own: FoundRecord<'_>, equal: FoundRecord<'_>, now: Timestamp) -> bool {
    let has_nothing = match own.0.state {
        DedupeState::Failed(_) | DedupeState::Cancelled => true,
        DedupeState::Inflight => is_lapsed(claim, own, now),
        DedupeState::Done(_) | DedupeState::Unknown(_) => false,
    };
    has_nothing && own.0.key != equal.0.key && has_open_result(equal.0, &claim.rules, now)
}

/// Returns true if another owner of this run is gone, and the run may be taken over.
fn is_lapsed(claim: &Claim, (record, sight): FoundRecord<'_>, now: Timestamp) -> bool {
    matches!(record.state, DedupeState::Inflight)
        && record.owner != claim.owner
        && !record.lease_holds(sight, now)
        && record.may_be_taken_over()
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
                (Some(recorded), Some(requested)) => recorded != requested,
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
    let arrived_before_save = now.since(record.updated) < claim.age;
    known.overlapped.contains(&record.owner)
        // A response that could not be saved at once was sent before it was saved.
        || arrived_before_save && !known.answered_unsaved.contains(&record.owner)
}

fn failure_is_replayed(claim: &Claim, failure: &CallFailure, column: ClaimColumn) -> Option<ReplayReason> {
    match column {
        ClaimColumn::Waiter => Some(ReplayReason::Waited),
        ClaimColumn::CallId | ClaimColumn::Equal => None,
        ClaimColumn::Explicit => {
            let is_replayed = match claim.rules.cache_failures {
                FailureReplayPolicy::None => false,
                FailureReplayPolicy::Terminal => failure.terminal,
                FailureReplayPolicy::All => !(claim.best_effort && failure.retriable),
            };
            is_replayed.then_some(ReplayReason::SameKey)
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
        end_observed_by: claim.end_observed_within.map(|span| now + span),
        delivered: None,
        version: before.map_or(1, |record| record.version + 1),
        arrived: again.map_or(claim.arrived, |record| record.arrived),
        created: again.map_or(now, |record| record.created),
        updated: now,
        expires: lifetime(&DedupeState::Inflight, &claim.rules.keep, false).map(|keep_time| now + keep_time),
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

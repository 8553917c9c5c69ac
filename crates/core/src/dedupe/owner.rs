//! Operations that the owner of a record may perform. Each one compares the owner token, which is the fencing token.

use std::sync::Arc;
use std::time::Duration;

use super::claim::DedupeDecision;
use super::record::{
    AttemptRecord, ClaimOwner, DedupeRecord, DedupeState, DeliveryReceipt, IndexUpdate, Lease,
    LeaseOwnerState, RecordWrite, RunOutcome, SettleTime, UnknownOutcome, UnknownOutcomeReport,
};
use super::rules::DedupeRules;
use super::unknown_outcome::unknown_outcome;
use crate::Timestamp;
use crate::key::RecordKey;
use crate::policy::RecordLifetimes;

/// The result of marking a record as started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartVerdict {
    /// The attempt may begin.
    Started,
    /// The record is gone or has another owner. Claim again, as a waiter would.
    Lost,
}

/// Marks that an attempt may have been sent. Must come before the attempt.
pub fn decide_start(
    owner: &ClaimOwner,
    found: Option<&DedupeRecord>,
    now: Timestamp,
) -> DedupeDecision<StartVerdict> {
    let own_record =
        found.filter(|record| record.owner == *owner && matches!(record.state, DedupeState::Inflight));
    match own_record {
        None => DedupeDecision::only(StartVerdict::Lost),
        Some(record) if record.started => DedupeDecision::only(StartVerdict::Started),
        Some(record) => {
            // The claim counted from its own time.
            let end_observed_by = record.end_observed_by.map(|by| by + now.since(record.created));
            let version = record.version + 1;
            let started =
                DedupeRecord { started: true, version, updated: now, end_observed_by, ..record.clone() };
            DedupeDecision { verdict: StartVerdict::Started, write: put(started, IndexUpdate::Keep) }
        }
    }
}

/// The result of renewing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewVerdict {
    /// The lease is extended.
    Renewed,
    /// The lease had ended and the outcome was recorded as unknown. A running attempt continues, and its result still
    /// counts.
    MarkedUnknown,
    /// The record has another owner. A running attempt continues, but no other one starts.
    Lost,
}

/// The reason why a store has no record where an owner expects its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordAbsence {
    /// The record was removed, as the tables allow.
    Removed,
    /// The store has lost all records, and its marker is gone.
    StoreEmptied,
}

/// Extends the lease. If the store was emptied, the owner writes its claim again. If only the record was removed, it
/// does not: a renewal that was delayed on the network would bring back a call that ended long ago.
pub fn decide_renew(
    claimed: &DedupeRecord,
    keep: &RecordLifetimes,
    found: Option<&DedupeRecord>,
    absence: RecordAbsence,
    now: Timestamp,
) -> DedupeDecision<RenewVerdict> {
    let lease = Lease::Until(now + keep.lease);
    let expires = Some(now + keep.open);
    match found {
        None if absence == RecordAbsence::StoreEmptied => {
            let again = DedupeRecord {
                lease,
                expires,
                updated: now,
                version: fresh_version(claimed, now),
                ..claimed.clone()
            };
            DedupeDecision { verdict: RenewVerdict::Renewed, write: put(again, IndexUpdate::PointIfFree) }
        }
        None => DedupeDecision::only(RenewVerdict::Lost),
        Some(record) if record.owner != claimed.owner => DedupeDecision::only(RenewVerdict::Lost),
        Some(record) => match record.state {
            DedupeState::Inflight => {
                let renewed = DedupeRecord {
                    lease,
                    expires,
                    updated: now,
                    version: record.version + 1,
                    ..record.clone()
                };
                DedupeDecision { verdict: RenewVerdict::Renewed, write: put(renewed, IndexUpdate::Keep) }
            }
            DedupeState::Unknown(_) => DedupeDecision::only(RenewVerdict::MarkedUnknown),
            // The owner's own result is already there: the renewal was delayed on the network.
            DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => {
                DedupeDecision::only(RenewVerdict::Lost)
            }
        },
    }
}

/// A result to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveRequest {
    /// The record as it was claimed. Written again if the store has none.
    pub claimed: Arc<DedupeRecord>,
    /// End of the run.
    pub ending: RunOutcome,
    /// Attempts that were made.
    pub attempts: Vec<AttemptRecord>,
    /// Time at which the response reached its caller, if a failing store delayed the save until then.
    pub delivered: Option<Timestamp>,
    /// True if an unknown outcome stays until it is resolved.
    pub hold: bool,
    /// Lifetimes of records.
    pub keep: RecordLifetimes,
}

/// The result of saving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveVerdict {
    /// The result is in the record.
    Saved(DeliveryReceipt),
    /// The record has another owner. The caller still gets its response, marked as not recorded.
    FenceLost,
}

/// Saves a result if the fencing token matches. If there is no record, it writes one, because the result is valid all
/// the same.
///
/// `own` is the record under the key of the claim, and `indexed` is the one that its index points to. A claim whose
/// response was lost may have taken over another record in place, and only the index leads to it.
pub fn decide_save(
    save: &SaveRequest,
    own: Option<&DedupeRecord>,
    indexed: Option<&DedupeRecord>,
    now: Timestamp,
) -> DedupeDecision<SaveVerdict> {
    let claimed = &save.claimed;
    let found = own.or(indexed.filter(|record| record.owner == claimed.owner));
    let lost;
    let (base, index) = match found {
        None => {
            lost = DedupeRecord { version: fresh_version(claimed, now), ..(**claimed).clone() };
            (&lost, IndexUpdate::PointIfFree)
        }
        Some(record) if record.owner != claimed.owner => return DedupeDecision::only(SaveVerdict::FenceLost),
        Some(record) => match (&record.state, &save.ending) {
            (DedupeState::Inflight, _)
            | (DedupeState::Unknown(_), RunOutcome::Done(_) | RunOutcome::Failed(_)) => {
                (record, IndexUpdate::Keep)
            }
            // Of two times at which it settles, the more precise one counts.
            (DedupeState::Unknown(known), RunOutcome::Unknown(reported))
                if reported.settles.at(now).is_more_precise_than(known.settles) =>
            {
                (record, IndexUpdate::Keep)
            }
            (DedupeState::Done(_), RunOutcome::Done(_))
            | (DedupeState::Failed(_), RunOutcome::Failed(_))
            | (DedupeState::Unknown(_), RunOutcome::Unknown(_)) => {
                return DedupeDecision::only(SaveVerdict::Saved(record.receipt()));
            }
            (DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled, _) => {
                return DedupeDecision::only(SaveVerdict::FenceLost);
            }
        },
    };
    let state = match save.ending.clone() {
        RunOutcome::Done(output) => DedupeState::Done(output),
        RunOutcome::Failed(failure) => DedupeState::Failed(failure),
        RunOutcome::Unknown(UnknownOutcomeReport { settles, observed, details: words, output }) => {
            DedupeState::Unknown(UnknownOutcome {
                settles: settles.at(now),
                observed,
                details: words,
                output,
            })
        }
    };
    // A final response that has arrived stays final.
    let delivered_before = match &base.state {
        DedupeState::Unknown(unknown) if unknown.is_settled(now) => base.delivered,
        DedupeState::Unknown(_)
        | DedupeState::Inflight
        | DedupeState::Done(_)
        | DedupeState::Failed(_)
        | DedupeState::Cancelled => None,
    };
    let delivered_before = delivered_before.filter(|_| matches!(state, DedupeState::Unknown(_)));
    let skip = save.attempts.len().saturating_sub(DedupeRecord::MOST_ATTEMPTS);
    let attempts = save.attempts.iter().skip(skip).cloned().collect();
    let saved = DedupeRecord {
        started: true,
        attempts,
        delivered: save.delivered.or(delivered_before),
        ..base.after_write(state, &save.keep, save.hold, now)
    };
    DedupeDecision { verdict: SaveVerdict::Saved(saved.receipt()), write: put(saved, index) }
}

/// A claim to be released. If the response to the claim was lost, its key is not known and the index leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Key of the record, if it exists.
    pub key: RecordKey,
    /// Index entry that may point to the record.
    pub index: Option<RecordKey>,
    /// Owner of the claim.
    pub owner: ClaimOwner,
}

/// Releases the claim: the call never ran, or may run again. This also applies if others recorded it as unknown in the
/// meantime, because the owner knows better.
pub fn decide_release(
    release: &ReleaseRequest,
    own: Option<&DedupeRecord>,
    indexed: Option<&DedupeRecord>,
) -> RecordWrite {
    let own_record =
        [own, indexed].into_iter().flatten().find(|record| record.owner == release.owner && record.is_open());
    own_record
        .map_or(RecordWrite::Nothing, |record| RecordWrite::Remove { key: record.key, index: record.index })
}

/// Marks the response with this receipt as delivered. A record that has changed since does not change.
pub fn decide_delivered(
    receipt: &DeliveryReceipt,
    at: Timestamp,
    found: Option<&DedupeRecord>,
) -> RecordWrite {
    match found {
        Some(record)
            if record.receipt() == *receipt && record.delivered.is_none() && is_answer(&record.state, at) =>
        {
            put(
                DedupeRecord { delivered: Some(at), version: record.version + 1, ..record.clone() },
                IndexUpdate::Keep,
            )
        }
        Some(_) | None => RecordWrite::Nothing,
    }
}

/// Returns true if this state was a final response at that time. *Not yet* is not a final response.
fn is_answer(state: &DedupeState, at: Timestamp) -> bool {
    match state {
        DedupeState::Done(_) | DedupeState::Failed(_) => true,
        DedupeState::Unknown(unknown) => unknown.is_settled(at),
        DedupeState::Inflight | DedupeState::Cancelled => false,
    }
}

/// An operator's finding about a run with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The run took effect. Its result is lost.
    Ran,
    /// The run had no effect. The call may be repeated.
    DidNotRun,
}

/// A request to resolve an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolutionRequest {
    /// Key of the record.
    pub key: RecordKey,
    /// Finding about the run.
    pub resolution: Resolution,
    /// Owner of the run that the finding is about. A record of any other run does not change. `None` if an operator
    /// resolves the record, whatever run it holds.
    pub of: Option<ClaimOwner>,
    /// True if the run counts as not run only after its end was observed, and not only after its longest possible time.
    pub requires_observed_end: bool,
}

impl ResolutionRequest {
    /// Returns the request of an operator.
    pub fn by_operator(key: RecordKey, resolution: Resolution) -> Self {
        Self { key, resolution, of: None, requires_observed_end: false }
    }
}

/// The result of resolving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveVerdict {
    /// The record now holds the operator's finding.
    Resolved,
    /// The record has no unknown outcome.
    NotUnknown,
    /// The attempt may still take effect, for this long at most, so it cannot count as not run yet. `None` if only its
    /// owner can report the end.
    NotSettled(Option<Duration>),
}

/// Resolves an unknown outcome. This includes a run whose owner is gone and that has had no lookup since. Any other
/// record does not change, and the verdict reports it.
pub fn decide_resolve(
    resolve: &ResolutionRequest,
    found: Option<(&DedupeRecord, LeaseOwnerState)>,
    rules: &DedupeRules,
    now: Timestamp,
) -> DedupeDecision<ResolveVerdict> {
    let found = found.filter(|(record, _)| resolve.of.as_ref().is_none_or(|owner| record.owner == *owner));
    let Some((record, (unknown, is_new))) =
        found.and_then(|(record, sight)| Some((record, unknown_outcome(record, sight, rules, now)?)))
    else {
        return DedupeDecision::only(ResolveVerdict::NotUnknown);
    };
    let is_settled = match unknown.settles {
        SettleTime::By(_) if resolve.requires_observed_end => false,
        SettleTime::By(_) | SettleTime::WhenOwnerReports | SettleTime::Settled => unknown.is_settled(now),
    };
    let left = match (resolve.resolution, unknown.settles) {
        (Resolution::Ran, _) => {
            let ran = record.after_write(DedupeState::Done(None), &rules.keep, false, now);
            return DedupeDecision { verdict: ResolveVerdict::Resolved, write: put(ran, IndexUpdate::Keep) };
        }
        (Resolution::DidNotRun, _) if is_settled => {
            let write = RecordWrite::Remove { key: record.key, index: record.index };
            return DedupeDecision { verdict: ResolveVerdict::Resolved, write };
        }
        (Resolution::DidNotRun, SettleTime::By(at)) => Some(at.since(now)),
        (Resolution::DidNotRun, SettleTime::WhenOwnerReports | SettleTime::Settled) => None,
    };
    let write = if is_new {
        put(record.with_unknown_outcome(unknown, rules, now), IndexUpdate::Keep)
    } else {
        RecordWrite::Nothing
    };
    DedupeDecision { verdict: ResolveVerdict::NotSettled(left), write }
}

/// Records an unknown outcome for a run whose owner is gone and that has had no lookup since. The verdict is the new
/// record, or `None` if there is nothing to record.
pub fn decide_abandoned(
    found: Option<(&DedupeRecord, LeaseOwnerState)>,
    rules: &DedupeRules,
    now: Timestamp,
) -> DedupeDecision<Option<Arc<DedupeRecord>>> {
    let marked = found.filter(|(record, _)| !record.is_expired(now)).and_then(|(record, sight)| {
        let (unknown, is_new) = unknown_outcome(record, sight, rules, now)?;
        is_new.then(|| Arc::new(record.with_unknown_outcome(unknown, rules, now)))
    });
    match marked {
        Some(record) => DedupeDecision {
            verdict: Some(record.clone()),
            write: RecordWrite::Put { record, index: IndexUpdate::Keep, remove: Vec::new() },
        },
        None => DedupeDecision::only(None),
    }
}

/// Returns a version that this key never had. The earlier versions are unknown, and a delivery mark for one must not
/// match.
fn fresh_version(claimed: &DedupeRecord, now: Timestamp) -> u64 {
    now.as_millis().max(claimed.version.saturating_add(1))
}

fn put(record: DedupeRecord, index: IndexUpdate) -> RecordWrite {
    RecordWrite::Put { record: Arc::new(record), index, remove: Vec::new() }
}

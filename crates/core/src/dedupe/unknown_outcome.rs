//! The unknown outcome of a run whose owner no longer holds its lease, and the time at which it settles.

use std::time::Duration;

use super::record::{
    DedupeRecord, DedupeState, LeaseOwnerState, SettleTime, UnknownOutcome, UnknownOutcomeReason,
};
use super::rules::DedupeRules;
use crate::Timestamp;

/// The time that the leash of a child process takes to end its whole group when its owner is gone.
const LEASH: Duration = Duration::from_secs(5);

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
    SettleTime::By(match (record.end_observed_by, sight) {
        (None, _) => now + linger,
        // The leash ends the rest of it.
        (Some(_), LeaseOwnerState::Gone) => now + LEASH + settle,
        // The owner may be alive, and has observed the end by then.
        (Some(by), LeaseOwnerState::Alive | LeaseOwnerState::Time) => by.max(now) + settle,
    })
}

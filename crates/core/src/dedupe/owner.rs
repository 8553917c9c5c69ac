//! Operations that the owner of a record may perform. Each one compares the owner token, which is the fencing token.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Decided, Rules, unknown_outcome};
use super::record::{
    AttemptFact, Ending, IndexMove, Lease, LeaseSight, Owner, Receipt, Record, RecordState, Settles,
    UnknownEnding, UnknownOutcome, Write,
};
use crate::Timestamp;
use crate::key::Key;
use crate::policy::Lifetimes;

/// The result of marking a record as started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartVerdict {
    /// The attempt may begin.
    Started,
    /// The record is gone or has another owner. Claim again, as a waiter would.
    Lost,
}

/// Marks that an attempt may have been sent. Must come before the attempt.
pub fn decide_start(owner: &Owner, found: Option<&Record>, now: Timestamp) -> Decided<StartVerdict> {
    let mine = found.filter(|record| record.owner == *owner && matches!(record.state, RecordState::Inflight));
    match mine {
        None => Decided::only(StartVerdict::Lost),
        Some(record) if record.started => Decided::only(StartVerdict::Started),
        Some(record) => {
            // The claim counted from its own time.
            let seen_end_by = record.seen_end_by.map(|by| by + now.since(record.created));
            let version = record.version + 1;
            let started = Record { started: true, version, updated: now, seen_end_by, ..record.clone() };
            Decided { verdict: StartVerdict::Started, write: put(started, IndexMove::Keep) }
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
pub enum Absence {
    /// The record was removed, as the tables allow.
    Removed,
    /// The store has lost all records, and its marker is gone.
    StoreEmptied,
}

/// Extends the lease. If the store was emptied, the owner writes its claim again. If only the record was removed, it
/// does not: a renewal that was delayed on the network would bring back a call that ended long ago.
pub fn decide_renew(
    claimed: &Record,
    keep: &Lifetimes,
    found: Option<&Record>,
    absence: Absence,
    now: Timestamp,
) -> Decided<RenewVerdict> {
    let lease = Lease::Until(now + keep.lease);
    let expires = Some(now + keep.open);
    match found {
        None if absence == Absence::StoreEmptied => {
            let again = Record {
                lease,
                expires,
                updated: now,
                version: fresh_version(claimed, now),
                ..claimed.clone()
            };
            Decided { verdict: RenewVerdict::Renewed, write: put(again, IndexMove::PointIfFree) }
        }
        None => Decided::only(RenewVerdict::Lost),
        Some(record) if record.owner != claimed.owner => Decided::only(RenewVerdict::Lost),
        Some(record) => match record.state {
            RecordState::Inflight => {
                let renewed =
                    Record { lease, expires, updated: now, version: record.version + 1, ..record.clone() };
                Decided { verdict: RenewVerdict::Renewed, write: put(renewed, IndexMove::Keep) }
            }
            RecordState::Unknown(_) => Decided::only(RenewVerdict::MarkedUnknown),
            // The owner's own result is already there: the renewal was delayed on the network.
            RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => {
                Decided::only(RenewVerdict::Lost)
            }
        },
    }
}

/// A result to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// The record as it was claimed. Written again if the store has none.
    pub claimed: Arc<Record>,
    /// End of the run.
    pub ending: Ending,
    /// Attempts that were made.
    pub attempts: Vec<AttemptFact>,
    /// Time at which the response reached its caller, if a failing store delayed the save until then.
    pub delivered: Option<Timestamp>,
    /// True if an unknown outcome stays until it is resolved.
    pub hold: bool,
    /// Lifetimes of records.
    pub keep: Lifetimes,
}

/// The result of saving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveVerdict {
    /// The result is in the record.
    Saved(Receipt),
    /// The record has another owner. The caller still gets its response, marked as not recorded.
    FenceLost,
}

/// Saves a result if the fencing token matches. If there is no record, it writes one, because the result is valid all
/// the same.
///
/// `own` is the record under the key of the claim, and `indexed` is the one that its index points to. A claim whose
/// response was lost may have taken over another record in place, and only the index leads to it.
pub fn decide_save(
    save: &Save,
    own: Option<&Record>,
    indexed: Option<&Record>,
    now: Timestamp,
) -> Decided<SaveVerdict> {
    let claimed = &save.claimed;
    let found = own.or(indexed.filter(|record| record.owner == claimed.owner));
    let lost;
    let (base, index) = match found {
        None => {
            lost = Record { version: fresh_version(claimed, now), ..(**claimed).clone() };
            (&lost, IndexMove::PointIfFree)
        }
        Some(record) if record.owner != claimed.owner => return Decided::only(SaveVerdict::FenceLost),
        Some(record) => match (&record.state, &save.ending) {
            (RecordState::Inflight, _) | (RecordState::Unknown(_), Ending::Done(_) | Ending::Failed(_)) => {
                (record, IndexMove::Keep)
            }
            // Of two times at which it settles, the more precise one counts.
            (RecordState::Unknown(known), Ending::Unknown(said))
                if said.settles.at(now).knows_more_than(known.settles) =>
            {
                (record, IndexMove::Keep)
            }
            (RecordState::Done(_), Ending::Done(_))
            | (RecordState::Failed(_), Ending::Failed(_))
            | (RecordState::Unknown(_), Ending::Unknown(_)) => {
                return Decided::only(SaveVerdict::Saved(record.receipt()));
            }
            (RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled, _) => {
                return Decided::only(SaveVerdict::FenceLost);
            }
        },
    };
    let state = match save.ending.clone() {
        Ending::Done(output) => RecordState::Done(output),
        Ending::Failed(failure) => RecordState::Failed(failure),
        Ending::Unknown(UnknownEnding { settles, observed, words, output }) => {
            RecordState::Unknown(UnknownOutcome { settles: settles.at(now), observed, words, output })
        }
    };
    // A final response that has arrived stays final.
    let told_before = match &base.state {
        RecordState::Unknown(unknown) if unknown.is_settled(now) => base.delivered,
        RecordState::Unknown(_)
        | RecordState::Inflight
        | RecordState::Done(_)
        | RecordState::Failed(_)
        | RecordState::Cancelled => None,
    };
    let told_before = told_before.filter(|_| matches!(state, RecordState::Unknown(_)));
    let skip = save.attempts.len().saturating_sub(Record::MOST_ATTEMPTS);
    let attempts = save.attempts.iter().skip(skip).cloned().collect();
    let saved = Record {
        started: true,
        attempts,
        delivered: save.delivered.or(told_before),
        ..base.written(state, &save.keep, save.hold, now)
    };
    Decided { verdict: SaveVerdict::Saved(saved.receipt()), write: put(saved, index) }
}

/// A claim to be released. If the response to the claim was lost, its key is not known and the index leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Key of the record, if it exists.
    pub key: Key,
    /// Index entry that may point to the record.
    pub index: Option<Key>,
    /// Owner of the claim.
    pub owner: Owner,
}

/// Releases the claim: the call never ran, or may run again. This also applies if others recorded it as unknown in the
/// meantime, because the owner knows better.
pub fn decide_release(release: &Release, own: Option<&Record>, indexed: Option<&Record>) -> Write {
    let mine =
        [own, indexed].into_iter().flatten().find(|record| record.owner == release.owner && record.is_open());
    mine.map_or(Write::Nothing, |record| Write::Remove { key: record.key, index: record.index })
}

/// Marks the response with this receipt as delivered. A record that has changed since does not change.
pub fn decide_delivered(receipt: &Receipt, at: Timestamp, found: Option<&Record>) -> Write {
    match found {
        Some(record)
            if record.receipt() == *receipt && record.delivered.is_none() && is_answer(&record.state, at) =>
        {
            put(
                Record { delivered: Some(at), version: record.version + 1, ..record.clone() },
                IndexMove::Keep,
            )
        }
        Some(_) | None => Write::Nothing,
    }
}

/// Returns true if this state was a final response at that time. *Not yet* is not a final response.
fn is_answer(state: &RecordState, at: Timestamp) -> bool {
    match state {
        RecordState::Done(_) | RecordState::Failed(_) => true,
        RecordState::Unknown(unknown) => unknown.is_settled(at),
        RecordState::Inflight | RecordState::Cancelled => false,
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
pub struct Resolve {
    /// Key of the record.
    pub key: Key,
    /// Finding about the run.
    pub resolution: Resolution,
    /// Owner of the run that the finding is about. A record of any other run does not change. `None` if an operator
    /// resolves the record, whatever run it holds.
    pub of: Option<Owner>,
    /// True if the run counts as not run only after its end was observed, and not only after its longest possible time.
    pub needs_seen_end: bool,
}

impl Resolve {
    /// Returns the request of an operator.
    pub fn by_hand(key: Key, resolution: Resolution) -> Self {
        Self { key, resolution, of: None, needs_seen_end: false }
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
    resolve: &Resolve,
    found: Option<(&Record, LeaseSight)>,
    rules: &Rules,
    now: Timestamp,
) -> Decided<ResolveVerdict> {
    let found = found.filter(|(record, _)| resolve.of.as_ref().is_none_or(|owner| record.owner == *owner));
    let Some((record, (unknown, is_new))) =
        found.and_then(|(record, sight)| Some((record, unknown_outcome(record, sight, rules, now)?)))
    else {
        return Decided::only(ResolveVerdict::NotUnknown);
    };
    let is_settled = match unknown.settles {
        Settles::By(_) if resolve.needs_seen_end => false,
        Settles::By(_) | Settles::WhenOwnerSays | Settles::Settled => unknown.is_settled(now),
    };
    let left = match (resolve.resolution, unknown.settles) {
        (Resolution::Ran, _) => {
            let ran = record.written(RecordState::Done(None), &rules.keep, false, now);
            return Decided { verdict: ResolveVerdict::Resolved, write: put(ran, IndexMove::Keep) };
        }
        (Resolution::DidNotRun, _) if is_settled => {
            let write = Write::Remove { key: record.key, index: record.index };
            return Decided { verdict: ResolveVerdict::Resolved, write };
        }
        (Resolution::DidNotRun, Settles::By(at)) => Some(at.since(now)),
        (Resolution::DidNotRun, Settles::WhenOwnerSays | Settles::Settled) => None,
    };
    let write =
        if is_new { put(record.now_unknown(unknown, rules, now), IndexMove::Keep) } else { Write::Nothing };
    Decided { verdict: ResolveVerdict::NotSettled(left), write }
}

/// Records an unknown outcome for a run whose owner is gone and that has had no lookup since. The verdict is the new
/// record, or `None` if there is nothing to record.
pub fn decide_abandoned(
    found: Option<(&Record, LeaseSight)>,
    rules: &Rules,
    now: Timestamp,
) -> Decided<Option<Arc<Record>>> {
    let marked = found.filter(|(record, _)| !record.is_expired(now)).and_then(|(record, sight)| {
        let (unknown, is_new) = unknown_outcome(record, sight, rules, now)?;
        is_new.then(|| Arc::new(record.now_unknown(unknown, rules, now)))
    });
    match marked {
        Some(record) => Decided {
            verdict: Some(record.clone()),
            write: Write::Put { record, index: IndexMove::Keep, remove: Vec::new() },
        },
        None => Decided::only(None),
    }
}

/// Returns a version that this key never had. The earlier versions are unknown, and a delivery mark for one must not
/// match.
fn fresh_version(claimed: &Record, now: Timestamp) -> u64 {
    now.as_millis().max(claimed.version.saturating_add(1))
}

fn put(record: Record, index: IndexMove) -> Write {
    Write::Put { record: Arc::new(record), index, remove: Vec::new() }
}

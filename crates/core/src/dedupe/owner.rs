//! What the owner of a record may do to it. The owner token is compared every time; it is the fence.

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

/// What became of writing `started`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartVerdict {
    /// The attempt may begin.
    Started,
    /// The record is another's, or gone: look again, as a waiter would.
    Lost,
}

/// Marks that an attempt may have been sent. Comes before the attempt.
pub fn decide_start(owner: &Owner, found: Option<&Record>, now: Timestamp) -> Decided<StartVerdict> {
    let mine = found.filter(|record| record.owner == *owner && matches!(record.state, RecordState::Inflight));
    match mine {
        None => Decided::only(StartVerdict::Lost),
        Some(record) if record.started => Decided::only(StartVerdict::Started),
        Some(record) => {
            // The claim counted from its own moment.
            let seen_end_by = record.seen_end_by.map(|by| by + now.since(record.created));
            let version = record.version + 1;
            let started = Record { started: true, version, updated: now, seen_end_by, ..record.clone() };
            Decided { verdict: StartVerdict::Started, write: put(started, IndexMove::Keep) }
        }
    }
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewVerdict {
    /// The lease runs on.
    Renewed,
    /// The lease had ended and the outcome was declared unknown. A running attempt goes on; its answer still counts.
    MarkedUnknown,
    /// The record is another's. A running attempt goes on; no further one starts.
    Lost,
}

/// Why a store may have no record where a holder expects its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Somebody removed it, as the tables allow.
    Removed,
    /// The store has lost everything; its marker is gone.
    StoreEmptied,
}

/// Extends the lease. A holder that finds an emptied store writes its claim again. One that finds its record
/// removed does not: a renewal that was late on the wire would bring back what is long over.
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
            // Our own answer is there already: a renewal that was late on the wire.
            RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => {
                Decided::only(RenewVerdict::Lost)
            }
        },
    }
}

/// An answer on its way into the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// The record as it was claimed; written anew if the store has none.
    pub claimed: Arc<Record>,
    /// How the run ended.
    pub ending: Ending,
    /// The attempts that were made.
    pub attempts: Vec<AttemptFact>,
    /// When the answer reached its caller, if it was kept back by a failing store and did so meanwhile.
    pub delivered: Option<Timestamp>,
    /// Whether an unknown outcome stands until someone settles it.
    pub hold: bool,
    /// How long records are kept.
    pub keep: Lifetimes,
}

/// What became of saving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveVerdict {
    /// The answer is in the record.
    Saved(Receipt),
    /// The record is another's. The caller still gets its answer, marked as not recorded.
    FenceLost,
}

/// Saves an answer under the fence. One that finds no record writes it: the answer is true all the same.
///
/// `own` is the record under the key of the claim, `indexed` the one that its index points to: a claim whose
/// answer was lost may have taken over another record in place, and only the index knows where it is.
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
            // Of two that say when it is settled, the one that knows more counts.
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
    // A final answer that has arrived stays one.
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

/// A claim to give back. Where its answer was lost, nobody knows under which key it was written: the index tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Where the record is, or would be.
    pub key: Key,
    /// The index that may point to it.
    pub index: Option<Key>,
    /// Whose it is.
    pub owner: Owner,
}

/// Gives the claim back: it never ran, or may run again. Also where others declared it unknown meanwhile,
/// because the owner knows better.
pub fn decide_release(release: &Release, own: Option<&Record>, indexed: Option<&Record>) -> Write {
    let mine =
        [own, indexed].into_iter().flatten().find(|record| record.owner == release.owner && record.is_open());
    mine.map_or(Write::Nothing, |record| Write::Remove { key: record.key, index: record.index })
}

/// The answer that this receipt names has reached its caller. A record that has changed since is left alone.
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

/// Whether a caller who received this at that time has an answer. That it is not over yet is none.
fn is_answer(state: &RecordState, at: Timestamp) -> bool {
    match state {
        RecordState::Done(_) | RecordState::Failed(_) => true,
        RecordState::Unknown(unknown) => unknown.is_settled(at),
        RecordState::Inflight | RecordState::Cancelled => false,
    }
}

/// What an operator found out about a run whose outcome was unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It had its effect; the answer itself is lost.
    Ran,
    /// It did not; the call may be made again.
    DidNotRun,
}

/// An unknown outcome to be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// The record.
    pub key: Key,
    /// What was found out.
    pub resolution: Resolution,
    /// The run that this was found out about; any other that is there by now is left alone. Nothing where a person says it, who
    /// means whatever is there.
    pub of: Option<Owner>,
    /// Whether the end of that run must have been seen before it can count as not run, and not only be over by the time that
    /// it takes at most.
    pub needs_seen_end: bool,
}

impl Resolve {
    /// A person says it.
    pub fn by_hand(key: Key, resolution: Resolution) -> Self {
        Self { key, resolution, of: None, needs_seen_end: false }
    }
}

/// What became of resolving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveVerdict {
    /// It counts as the operator said.
    Resolved,
    /// There is no unknown outcome under this key.
    NotUnknown,
    /// The attempt may still take effect, for so long at most; nothing where only its owner can say. That it did not run
    /// cannot be known yet.
    NotSettled(Option<Duration>),
}

/// Resolves an unknown outcome, also one of a run whose holder is gone and of which nobody has asked since. Anything else is left
/// alone, which the verdict says.
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

/// Records that the outcome of a run is unknown whose holder is gone, where nobody has asked for it since. The verdict is the
/// record as it is then; nothing if there is nothing to record.
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

/// A version that this key has not had: what was there before is unknown, and a mark for it must miss.
fn fresh_version(claimed: &Record, now: Timestamp) -> u64 {
    now.as_millis().max(claimed.version.saturating_add(1))
}

fn put(record: Record, index: IndexMove) -> Write {
    Write::Put { record: Arc::new(record), index, remove: Vec::new() }
}

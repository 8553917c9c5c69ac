//! The tables of the store once more, written from their documentation: what each operation finds, what it gets, and what may
//! change with it.
//!
//! The core decides with its own code; here the same is stated in another way, row by row, and each operation of each world is
//! held against it. What an operation does not have to write stays as it is.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Absence, Address, Claim, ClaimVerdict, End, Ending, Intent, Known, Lease, LeaseSight, Owner, Receipt,
    Record, RecordState, Records, Release, RenewVerdict, ReplayReason, Resolution, ResolveVerdict, Role,
    Save, SaveVerdict, Settles, SettlesIn, StartVerdict,
};
use steadfast_core::key::Key;
use steadfast_core::policy::{AfterUnknown, CacheFailures, Lifetimes};

use crate::coverage::{Coverage, Table};
use crate::invariants::Broken;

/// What a claim should get.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Due {
    Mine,
    Follow(Key),
    Busy,
    Replay(Owner, ReplayReason),
    NotYet(Owner),
    Final(Owner),
    Conflict,
}

/// How a claim looks for its record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Explicit,
    CallId,
    Equal,
    Waiting,
}

impl By {
    fn column(self) -> &'static str {
        match self {
            Self::Explicit => "explicit key",
            Self::CallId => "own call id",
            Self::Equal => "equal arguments",
            Self::Waiting => "waiter",
        }
    }
}

/// Holds what happens in a store against the tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) coverage: Coverage,
    /// The first operation that was not as its table says.
    pub(crate) broken: Option<Broken>,
}

type Sight<'s> = &'s dyn Fn(&Owner) -> LeaseSight;

impl Tables {
    fn check(&mut self, holds: bool, how: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(("as the tables say", how()));
        }
    }

    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        known: &Known,
        sight: Sight<'_>,
        now: Timestamp,
        (before, after): (&Records, &Records),
        verdict: &ClaimVerdict,
    ) {
        let (row, column, due) = expected(claim, known, sight, now, before);
        self.coverage.count(Table::Claim, row, column);
        let got = match verdict {
            ClaimVerdict::Mine(_) | ClaimVerdict::Nothing => Due::Mine,
            ClaimVerdict::Follow(key) => Due::Follow(*key),
            ClaimVerdict::Busy => Due::Busy,
            ClaimVerdict::Replay(replay) => Due::Replay(replay.receipt.owner.clone(), replay.reason),
            ClaimVerdict::Unknown(unsettled) => match unsettled.end {
                End::Settled => Due::Final(unsettled.receipt.owner.clone()),
                End::NotYet(_) => Due::NotYet(unsettled.receipt.owner.clone()),
            },
            ClaimVerdict::Conflict => Due::Conflict,
            ClaimVerdict::Full | ClaimVerdict::Closed => return,
        };
        let looks = claim.intent == Intent::Look;
        self.check(
            got == due && matches!(verdict, ClaimVerdict::Nothing) == (looks && due == Due::Mine),
            || format!("a claim by {column} that found {row} should get {due:?} and got {verdict:?}"),
        );
        let moved = if let ClaimVerdict::Mine(given) = verdict { given.index } else { None };
        self.index_stays((before, after), moved);
        let changed = changes(before, after);
        match (&due, verdict) {
            (Due::Mine, ClaimVerdict::Mine(given)) => self.taken(claim, given, now, before, after),
            // That its outcome is unknown begins to count from here.
            (Due::NotYet(owner) | Due::Final(owner), _)
                if matches!(row, "in flight, lapsed, started" | "unknown, its owner is gone") =>
            {
                let marked = after.iter().find(|record| record.owner == *owner);
                let is_marked = marked.is_some_and(|record| {
                    let old = before.get(&record.key);
                    let by = old.map(|old| over_by(old, claim, sight, now));
                    record.delivered.is_none()
                        && by.is_some_and(|by| settles(record) == Settles::By(by))
                        && old.is_some_and(|old| old.version < record.version)
                });
                self.check(is_marked && changed.len() == 1, || {
                    format!("{row}: it should be marked as unknown, and nothing else written: {marked:?}")
                });
            }
            (Due::Mine, _)
            | (
                Due::Follow(_) | Due::Busy | Due::Replay(..) | Due::NotYet(_) | Due::Final(_) | Due::Conflict,
                _,
            ) => {
                self.check(changed.is_empty(), || format!("a claim that found {row} wrote {changed:?}"));
            }
        }
        self.told(claim, verdict, known, now, before);
    }

    /// An entry of the index leads where it led, as long as what it leads to is there. Only a claim moves its own.
    fn index_stays(&mut self, (before, after): (&Records, &Records), moved: Option<Key>) {
        for index in before.iter().filter_map(|record| record.index).filter(|index| Some(*index) != moved) {
            let led = before.indexed(Some(index)).map(|record| record.key);
            let leads = after.indexed(Some(index)).map(|record| record.key);
            let is_there = led.is_some_and(|key| after.get(&key).is_some());
            self.check(!is_there || leads == led, || {
                format!("the index led to {led:?}, which is there, and leads to {leads:?}")
            });
        }
    }

    /// The record of a call that may run.
    fn taken(&mut self, claim: &Claim, given: &Record, now: Timestamp, before: &Records, after: &Records) {
        let there = after.get(&given.key);
        self.check(there == Some(given), || format!("given {given:?}, and there is {there:?}"));
        let again = before.iter().find(|record| {
            record.owner == claim.owner && record.state == RecordState::Inflight && !has_expired(record, now)
        });
        let old = before.get(&given.key);
        let started =
            claim.intent == Intent::Take { started: true } || again.is_some_and(|record| record.started);
        let is_right = given.state == RecordState::Inflight
            && given.owner == claim.owner
            && given.digest == claim.digest
            && given.started == started
            && given.delivered.is_none()
            && given.retry_safe == claim.retry_safe
            && given.lease == Lease::Until(now + claim.rules.keep.lease)
            && given.expires == Some(now + claim.rules.keep.open)
            && given.seen_end_by == claim.seen_end_within.map(|span| now + span)
            && given.updated == now
            && given.request == claim.request
            && old.is_none_or(|old| old.version < given.version)
            && again.is_none_or(|again| (again.created, again.arrived) == (given.created, given.arrived))
            // Whoever goes on with a run that was in flight goes on under its name.
            && old.filter(|old| old.state == RecordState::Inflight && !has_expired(old, now)).is_none_or(|old| given.run == old.run);
        self.check(is_right, || format!("{claim:?} got {given:?}, where {old:?} was"));
        if let Some(index) = given.index {
            let leads = after.indexed(Some(index)).map(|record| record.key);
            self.check(leads == Some(given.key), || format!("the index of {given:?} leads to {leads:?}"));
        }
        // Nothing that others may still need goes.
        for gone in before.iter().filter(|record| after.get(&record.key).is_none()) {
            let needed = gone.is_open()
                && !has_expired(gone, now)
                && !is_lapsed(gone, now)
                && gone.digest != given.digest;
            self.check(!needed, || format!("a claim of other arguments removed {gone:?}"));
        }
        // Who held it before meets the fence, wherever its record was.
        let held = before
            .iter()
            .filter(|record| record.state == RecordState::Inflight && record.owner != claim.owner);
        for other in held.filter(|other| other.key == given.key) {
            let still = after.iter().find(|record| record.owner == other.owner);
            self.check(still.is_none(), || format!("{other:?} was taken over and is still there"));
        }
    }

    /// What is told of an unknown outcome is what the record says.
    fn told(
        &mut self,
        claim: &Claim,
        verdict: &ClaimVerdict,
        known: &Known,
        now: Timestamp,
        before: &Records,
    ) {
        match verdict {
            ClaimVerdict::Unknown(unsettled) => {
                let record = before.iter().find(|record| record.owner == unsettled.receipt.owner);
                let Some(record) = record else { return };
                let may = claim.address.index().is_some()
                    && record.index.is_some()
                    && claim.rules.after_unknown == AfterUnknown::TellOnce
                    && record.expires.is_some();
                let waited = delivered(record, known).map_or(Duration::ZERO, |at| now.since(at));
                let runs_in = may.then(|| claim.rules.after_telling.saturating_sub(waited));
                let is_marked =
                    !matches!(record.state, RecordState::Inflight) && unsettled.receipt == record.receipt();
                self.check(unsettled.runs_in == runs_in || !is_marked, || {
                    format!("{record:?}: it runs in {runs_in:?}, told was {:?}", unsettled.runs_in)
                });
                if let (RecordState::Unknown(unknown), Settles::By(at), End::NotYet(left)) =
                    (&record.state, settles(record), unsettled.end)
                {
                    self.check(left == Some(at.since(now)), || {
                        format!("{unknown:?} settles at {at:?}, told was {left:?}")
                    });
                }
            }
            ClaimVerdict::Replay(replay) => {
                let record = before.get(&replay.receipt.key);
                let answer = record.map(|record| match &record.state {
                    RecordState::Done(output) => replay.answer == Ok(output.clone()),
                    RecordState::Failed(failure) => replay.answer.as_ref() == Err(failure),
                    RecordState::Inflight | RecordState::Unknown(_) | RecordState::Cancelled => false,
                });
                let receipt = record.map(Record::receipt);
                let age = record.map(|record| now.since(record.updated));
                let is_right = answer == Some(true)
                    && receipt.as_ref() == Some(&replay.receipt)
                    && age == Some(replay.age);
                self.check(is_right, || format!("{record:?} is given again as {replay:?}"));
            }
            ClaimVerdict::Mine(_)
            | ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::Closed => {}
        }
    }

    pub(crate) fn save(
        &mut self,
        save: &Save,
        now: Timestamp,
        (before, after): (&Records, &Records),
        verdict: &SaveVerdict,
    ) {
        let claimed = &save.claimed;
        let column = match save.ending {
            Ending::Done(_) => "done",
            Ending::Failed(_) => "failed",
            Ending::Unknown(_) => "unknown",
        };
        let own = before.get(&claimed.key);
        let by_index = before.indexed(claimed.index).filter(|record| record.owner == claimed.owner);
        let found = own.or(by_index);
        // Whether it is saved, and whether something is written for that.
        let (row, saved, writes) = match found {
            None => ("nothing", true, true),
            Some(record) if record.owner != claimed.owner => ("another's", false, false),
            Some(record) if own.is_none() && record.state == RecordState::Inflight => {
                ("its own, by the index", true, true)
            }
            Some(record) => match (&record.state, &save.ending) {
                (RecordState::Inflight, _) => ("its own, in flight", true, true),
                (RecordState::Unknown(_), Ending::Done(_) | Ending::Failed(_)) => {
                    ("its own, unknown", true, true)
                }
                (RecordState::Unknown(_), Ending::Unknown(said)) => {
                    match says_more(settles(record), said.settles, now) {
                        true => ("its own, unknown", true, true),
                        false => ("its own, unknown, knows no more", true, false),
                    }
                }
                (RecordState::Done(_), ending) => ("its own, done", matches!(ending, Ending::Done(_)), false),
                (RecordState::Failed(_) | RecordState::Cancelled, ending) => {
                    ("its own, failed", matches!(ending, Ending::Failed(_)), false)
                }
            },
        };
        self.coverage.count(Table::Save, row, if row == "its own, by the index" { "" } else { column });
        self.check(matches!(verdict, SaveVerdict::Saved(_)) == saved, || {
            format!("saving {column} where it finds {row} got {verdict:?}")
        });
        let changed = changes(before, after);
        if !writes {
            self.check(changed.is_empty(), || {
                format!("saving {column} where it finds {row} wrote {changed:?}")
            });
            return;
        }
        let key = found.map_or(claimed.key, |record| record.key);
        let Some(there) = after.get(&key) else {
            return self.check(false, || format!("saving {column} where it finds {row} left nothing"));
        };
        let state = match (&save.ending, &there.state) {
            (Ending::Done(output), RecordState::Done(kept)) => output == kept,
            (Ending::Failed(failure), RecordState::Failed(kept)) => failure == kept,
            (Ending::Unknown(said), RecordState::Unknown(kept)) => {
                said.observed == kept.observed
                    && said.words == kept.words
                    && kept.settles
                        == match said.settles {
                            SettlesIn::WhenOwnerSays => Settles::WhenOwnerSays,
                            SettlesIn::After(span) => Settles::By(now + span),
                            SettlesIn::Settled => Settles::Settled,
                        }
            }
            _ => false,
        };
        let life = match save.ending {
            Ending::Done(_) => Some(save.keep.done),
            Ending::Failed(_) => Some(save.keep.failed),
            Ending::Unknown(_) => (!save.hold).then_some(save.keep.open),
        };
        // A final answer that has arrived stays delivered when its end is known better.
        let told = found
            .filter(|record| is_settled(record, now) && column == "unknown")
            .and_then(|record| record.delivered);
        let is_right = state
            && there.owner == claimed.owner
            && there.started
            && there.updated == now
            && there.expires == life.map(|life| now + life)
            && there.delivered == save.delivered.or(told)
            && there.version > found.map_or(claimed.version, |record| record.version)
            && *verdict == SaveVerdict::Saved(there.receipt())
            && there.attempts == save.attempts;
        self.check(is_right, || format!("{save:?} where {found:?} was left {there:?}"));
        self.check(changed.len() == 1, || format!("saving {column} where it finds {row} wrote {changed:?}"));
        let leads = |records: &Records| records.indexed(there.index).map(|record| record.key);
        let led = leads(before);
        let leads = leads(after);
        let is_right = match row {
            "nothing" => leads == there.index.and(led.or(Some(key))),
            _ => leads == led,
        };
        self.check(is_right, || format!("{row}: the index led to {led:?} and leads to {leads:?}"));
    }

    pub(crate) fn release(&mut self, release: &Release, (before, after): (&Records, &Records)) {
        let own = before.get(&release.key);
        let ours = |record: &&Record| record.owner == release.owner;
        let found = own.filter(ours).or(before.indexed(release.index).filter(ours));
        let (row, gone) = match found {
            Some(record) if record.is_open() => ("its own, open", Some(record.key)),
            Some(_) => ("its own, answered", None),
            None if own.is_some() => ("another's", None),
            None => ("nothing", None),
        };
        self.coverage.count(Table::Release, row, "");
        let changed = changes(before, after);
        self.check(changed == gone.into_iter().collect::<Vec<_>>(), || {
            format!("giving back {release:?} where it finds {row} changed {changed:?}")
        });
        let left = gone.and_then(|key| after.get(&key));
        self.check(left.is_none(), || format!("what was given back is still there: {left:?}"));
        self.index_stays((before, after), None);
    }

    pub(crate) fn renew(
        &mut self,
        (claimed, keep, absence): (&Record, &Lifetimes, Absence),
        now: Timestamp,
        (before, after): (&Records, &Records),
        verdict: RenewVerdict,
    ) {
        let (row, due, writes) = match before.get(&claimed.key) {
            None if absence == Absence::StoreEmptied => {
                ("nothing, the store was emptied", RenewVerdict::Renewed, true)
            }
            None => ("nothing", RenewVerdict::Lost, false),
            Some(record) if record.owner != claimed.owner => ("another's", RenewVerdict::Lost, false),
            Some(record) => match record.state {
                RecordState::Inflight => ("its own, in flight", RenewVerdict::Renewed, true),
                RecordState::Unknown(_) => ("its own, unknown", RenewVerdict::MarkedUnknown, false),
                RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => {
                    ("its own, answered", RenewVerdict::Lost, false)
                }
            },
        };
        self.coverage.count(Table::Renew, row, "");
        self.check(verdict == due, || format!("a renewal that finds {row} got {verdict:?}"));
        let changed = changes(before, after);
        self.check(changed.len() == usize::from(writes), || {
            format!("a renewal that finds {row} changed {changed:?}")
        });
        if !writes {
            return;
        }
        let is_right = after.get(&claimed.key).is_some_and(|there| {
            there.owner == claimed.owner
                && there.state == RecordState::Inflight
                && there.lease == Lease::Until(now + keep.lease)
                && there.expires == Some(now + keep.open)
                && there.started == before.get(&claimed.key).unwrap_or(claimed).started
                && there.version > before.get(&claimed.key).map_or(claimed.version, |old| old.version)
        });
        self.check(is_right, || format!("{claimed:?} was renewed as {:?}", after.get(&claimed.key)));
    }

    pub(crate) fn start(
        &mut self,
        (key, owner): (&Key, &Owner),
        now: Timestamp,
        (before, after): (&Records, &Records),
        verdict: StartVerdict,
    ) {
        let found = before.get(key);
        let (row, due) = match found {
            None => ("nothing", StartVerdict::Lost),
            Some(record) if record.owner != *owner => ("another's", StartVerdict::Lost),
            Some(record) if record.state != RecordState::Inflight => {
                ("its own, not in flight", StartVerdict::Lost)
            }
            Some(record) if record.started => ("its own, started", StartVerdict::Started),
            Some(_) => ("its own", StartVerdict::Started),
        };
        self.coverage.count(Table::Start, row, "");
        let changed = changes(before, after);
        self.check(verdict == due && changed.len() == usize::from(row == "its own"), || {
            format!("the mark of a start that finds {row} got {verdict:?} and changed {changed:?}")
        });
        if let (Some(old), Some(there), "its own") = (found, after.get(key), row) {
            let seen_end_by = old.seen_end_by.map(|by| by + now.since(old.created));
            let is_right = there.started
                && there.version > old.version
                && there.lease == old.lease
                && there.seen_end_by == seen_end_by
                && there.state == old.state;
            self.check(is_right, || format!("{old:?} was started as {there:?}"));
        }
    }

    pub(crate) fn delivered(
        &mut self,
        receipt: &Receipt,
        at: Timestamp,
        (before, after): (&Records, &Records),
    ) {
        let found = before.get(&receipt.key);
        let row = match found {
            None => "nothing",
            Some(record) if record.delivered.is_some() && record.owner == receipt.owner => "delivered before",
            Some(record) if record.receipt() != *receipt => "another answer",
            Some(record) => match record.state {
                RecordState::Done(_) | RecordState::Failed(_) => "the answer",
                RecordState::Unknown(_) if is_settled(record, at) => "the answer",
                RecordState::Unknown(_) | RecordState::Inflight | RecordState::Cancelled => "no answer",
            },
        };
        self.coverage.count(Table::Delivered, row, "");
        let changed = changes(before, after);
        self.check(changed.len() == usize::from(row == "the answer"), || {
            format!("the mark of a delivery that finds {row} changed {changed:?}")
        });
        if let (Some(old), Some(there), "the answer") = (found, after.get(&receipt.key), row) {
            let is_right =
                there.delivered == Some(at) && there.state == old.state && there.version > old.version;
            self.check(is_right, || format!("{old:?} was marked as delivered: {there:?}"));
        }
    }

    pub(crate) fn resolve(
        &mut self,
        (key, resolution): (&Key, Resolution),
        now: Timestamp,
        (before, after): (&Records, &Records),
        verdict: ResolveVerdict,
    ) {
        let column = match resolution {
            Resolution::Ran => "ran",
            Resolution::DidNotRun => "did not run",
        };
        let found = before.get(key);
        let row = match (found.map(|record| &record.state), verdict) {
            (None, _) => "nothing",
            (Some(RecordState::Unknown(_)), _) if found.is_some_and(|record| is_settled(record, now)) => {
                "settled"
            }
            (Some(RecordState::Unknown(_)), _)
            | (Some(RecordState::Inflight), ResolveVerdict::NotSettled(_)) => "not settled",
            // Its holder is gone.
            (Some(RecordState::Inflight), ResolveVerdict::Resolved) => "not settled",
            (Some(_), _) => "not unknown",
        };
        self.coverage.count(Table::Resolve, row, column);
        let due = match (row, resolution) {
            ("settled", _) | ("not settled", Resolution::Ran) => verdict == ResolveVerdict::Resolved,
            ("not settled", Resolution::DidNotRun) => matches!(verdict, ResolveVerdict::NotSettled(_)),
            _ => verdict == ResolveVerdict::NotUnknown,
        };
        self.check(due, || format!("{column}, of what is {row}, got {verdict:?}"));
        let there = after.get(key);
        let is_right = match (verdict, resolution) {
            (ResolveVerdict::Resolved, Resolution::DidNotRun) => there.is_none(),
            (ResolveVerdict::Resolved, Resolution::Ran) => {
                there.is_some_and(|there| there.state == RecordState::Done(None) && there.delivered.is_none())
            }
            (ResolveVerdict::NotUnknown, _) => changes(before, after).is_empty(),
            (ResolveVerdict::NotSettled(_), _) => there.is_some_and(Record::is_open),
        };
        self.check(is_right, || format!("{column}, of {found:?}, got {verdict:?} and left {there:?}"));
        self.index_stays((before, after), None);
    }
}

/// The row, the column, and what a claim should get.
fn expected(
    claim: &Claim,
    known: &Known,
    sight: Sight<'_>,
    now: Timestamp,
    before: &Records,
) -> (&'static str, &'static str, Due) {
    let Some((record, by)) = found(claim, sight, now, before) else { return ("nothing", "", Due::Mine) };
    if record.digest != claim.digest || record.tool != claim.tool {
        return ("nothing", "another call", Due::Conflict);
    }
    let column = by.column();
    let owner = record.owner.clone();
    let (row, due) = match &record.state {
        RecordState::Inflight if owner == claim.owner => ("own token, in flight", Due::Mine),
        RecordState::Inflight if holds(record, sight(&owner), now) => (
            "in flight, held",
            if by == By::Explicit && claim.best_effort { Due::Busy } else { Due::Follow(record.key) },
        ),
        RecordState::Inflight if !record.started => ("in flight, lapsed, not started", Due::Mine),
        RecordState::Inflight if record.retry_safe => ("in flight, lapsed, safe to repeat", Due::Mine),
        RecordState::Inflight => {
            let at = over_by(record, claim, sight, now);
            ("in flight, lapsed, started", if at > now { Due::NotYet(owner) } else { Due::Final(owner) })
        }
        RecordState::Done(_) => done(claim, record, by, known, now),
        RecordState::Failed(failure) => {
            let kept = match (by, claim.rules.cache_failures) {
                (By::Waiting, _) => true,
                (By::CallId | By::Equal, _) | (By::Explicit, CacheFailures::None) => false,
                (By::Explicit, CacheFailures::Terminal) => failure.terminal,
                (By::Explicit, CacheFailures::All) => !(claim.best_effort && failure.retriable),
            };
            match kept {
                true => ("failed, kept", Due::Replay(owner, again(by))),
                false => ("failed, not kept", Due::Mine),
            }
        }
        RecordState::Unknown(_) => unknown(claim, record, by, known, sight, now),
        RecordState::Cancelled => ("failed, not kept", Due::Mine),
    };
    (row, column, due)
}

fn again(by: By) -> ReplayReason {
    match by {
        By::Waiting => ReplayReason::Waited,
        By::Explicit | By::CallId | By::Equal => ReplayReason::SameKey,
    }
}

fn done(claim: &Claim, record: &Record, by: By, known: &Known, now: Timestamp) -> (&'static str, Due) {
    let owner = || record.owner.clone();
    let is_delivered = delivered(record, known).is_some();
    let row = if is_delivered { "done, delivered" } else { "done, not delivered" };
    if by != By::Equal {
        return (row, Due::Replay(owner(), again(by)));
    }
    if !is_delivered {
        return match now < record.updated + claim.rules.undelivered {
            true => (row, Due::Replay(owner(), ReplayReason::Undelivered)),
            false => ("done, not delivered for long", Due::Mine),
        };
    }
    let two_ids = matches!(claim.address, Address::CallId { id, .. } if record.call_id.is_some_and(|theirs| theirs != id));
    let handed_over_later = known.overlapped.contains(&record.owner);
    let handed_over_before = known.answered_unsaved.contains(&record.owner);
    let saved_later = claim.age > now.since(record.updated);
    let overlaps = handed_over_later || saved_later && !handed_over_before;
    match claim.rules.double_dispatch && overlaps && !two_ids {
        true if !handed_over_later => {
            ("done, delivered, overlaps by age", Due::Replay(owner(), ReplayReason::DoubleDispatch))
        }
        true => ("done, delivered, overlaps", Due::Replay(owner(), ReplayReason::DoubleDispatch)),
        false => (row, Due::Mine),
    }
}

fn unknown(
    claim: &Claim,
    record: &Record,
    by: By,
    known: &Known,
    sight: Sight<'_>,
    now: Timestamp,
) -> (&'static str, Due) {
    let owner = record.owner.clone();
    if settles(record) == Settles::WhenOwnerSays && !holds(record, sight(&owner), now) {
        let is_over = over_by(record, claim, sight, now) <= now;
        return ("unknown, its owner is gone", if is_over { Due::Final(owner) } else { Due::NotYet(owner) });
    }
    if !is_settled(record, now) {
        return ("unknown, not settled", Due::NotYet(owner));
    }
    let Some(told) = delivered(record, known) else {
        return ("unknown, settled, not told", Due::Final(owner));
    };
    let row = if known.verified.contains(&owner) {
        "unknown, settled, told and verified"
    } else if now >= told + claim.rules.after_telling {
        "unknown, settled, told and waited"
    } else {
        "unknown, settled, told"
    };
    let holds = claim.rules.after_unknown == AfterUnknown::Hold || record.expires.is_none();
    let runs = by == By::Equal && !holds && row != "unknown, settled, told";
    (row, if runs { Due::Mine } else { Due::Final(owner) })
}

/// The record that a claim is decided by, and how it was found.
fn found<'r>(
    claim: &Claim,
    sight: Sight<'_>,
    now: Timestamp,
    before: &'r Records,
) -> Option<(&'r Record, By)> {
    let fresh = |record: &&Record| record.expires.is_none_or(|expires| now < expires);
    let same = |record: &&Record| record.digest == claim.digest && record.tool == claim.tool;
    let get = |key: &Key| before.get(key).filter(fresh);
    let is_gone = |record: &Record| {
        record.state == RecordState::Inflight
            && record.owner != claim.owner
            && !holds(record, sight(&record.owner), now)
            && (!record.started || record.retry_safe)
    };
    match (claim.role, claim.address) {
        (Role::Fresh, Address::Explicit(key)) => get(&key).map(|record| (record, By::Explicit)),
        (Role::Fresh, Address::CallId { id: own, index } | Address::Keyless { run: own, index }) => {
            let own = get(&own).filter(same);
            let equal = before.indexed(Some(index)).filter(fresh).filter(same);
            // A dispatch that failed, or never started, stands back behind an equal run that is open or owes its answer.
            let open = equal.filter(|equal| match equal.state {
                RecordState::Inflight | RecordState::Unknown(_) => true,
                RecordState::Done(_) => {
                    equal.delivered.is_none() && now < equal.updated + claim.rules.undelivered
                }
                RecordState::Failed(_) | RecordState::Cancelled => false,
            });
            match (own, open) {
                (Some(own), Some(open))
                    if own.key != open.key
                        && (is_gone(own) || matches!(own.state, RecordState::Failed(_))) =>
                {
                    Some((open, By::Equal))
                }
                (Some(own), _) => Some((own, By::CallId)),
                (None, _) => equal.map(|equal| (equal, By::Equal)),
            }
        }
        (Role::Waiter { followed }, address) => {
            let is_explicit = matches!(address, Address::Explicit(_));
            let meant = |record: &&Record| is_explicit || same(record);
            let followed = get(&followed).filter(meant);
            let own = get(&address.own()).filter(meant);
            let equal = before.indexed(address.index()).filter(fresh).filter(meant);
            let held = |record: &&Record| !is_gone(record);
            let picked = followed.filter(held).or(own.filter(held)).or(equal).or(own).or(followed);
            picked.map(|record| (record, By::Waiting))
        }
    }
}

/// When an attempt is over whose owner does not say so any more: after the linger where nobody could see its end, when the leash
/// has ended its child, or when its owner would have seen the end.
fn over_by(record: &Record, claim: &Claim, sight: Sight<'_>, now: Timestamp) -> Timestamp {
    match (record.seen_end_by, sight(&record.owner)) {
        (None, _) => now + claim.rules.linger,
        (Some(_), LeaseSight::Gone) => now + Duration::from_secs(5) + claim.rules.settle,
        (Some(by), LeaseSight::Alive | LeaseSight::Time) => by.max(now) + claim.rules.settle,
    }
}

fn delivered(record: &Record, known: &Known) -> Option<Timestamp> {
    let here = known.delivered.iter().find(|(receipt, _)| *receipt == record.receipt()).map(|(_, at)| *at);
    record.delivered.or(here)
}

fn settles(record: &Record) -> Settles {
    match &record.state {
        RecordState::Unknown(unknown) => unknown.settles,
        RecordState::Inflight | RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => {
            Settles::WhenOwnerSays
        }
    }
}

fn is_settled(record: &Record, now: Timestamp) -> bool {
    match settles(record) {
        Settles::WhenOwnerSays => false,
        Settles::By(at) => now >= at,
        Settles::Settled => true,
    }
}

/// Whether the time that is said is better than the one that is known.
fn says_more(known: Settles, said: SettlesIn, now: Timestamp) -> bool {
    match (known, said) {
        (Settles::Settled, _) | (_, SettlesIn::WhenOwnerSays) => false,
        // What was once announced is not put off.
        (Settles::By(known), SettlesIn::After(span)) => now + span < known,
        (Settles::WhenOwnerSays, SettlesIn::After(_)) | (_, SettlesIn::Settled) => true,
    }
}

fn is_lapsed(record: &Record, now: Timestamp) -> bool {
    matches!(record.lease, Lease::Until(until) if until <= now)
}

/// The keys of records that are not what they were.
fn changes(before: &Records, after: &Records) -> Vec<Key> {
    let is_other = |one: &Record, other: Option<&Record>| other.is_none_or(|other| !std::ptr::eq(one, other));
    let mut keys: Vec<Key> = after
        .iter()
        .filter(|record| is_other(record, before.get(&record.key)))
        .map(|record| record.key)
        .collect();
    keys.extend(before.iter().filter(|record| after.get(&record.key).is_none()).map(|record| record.key));
    keys
}

/// Whether a claim holds: as long as its process is known to live, or until its lease ends where only time can tell.
pub(crate) fn holds(record: &Record, sight: LeaseSight, now: Timestamp) -> bool {
    match (sight, record.lease) {
        (LeaseSight::Alive, _) => true,
        (LeaseSight::Gone, _) => false,
        (LeaseSight::Time, Lease::Record) => true,
        (LeaseSight::Time, Lease::Until(until)) => until > now,
    }
}

fn has_expired(record: &Record, now: Timestamp) -> bool {
    matches!(record.expires, Some(at) if now >= at)
}

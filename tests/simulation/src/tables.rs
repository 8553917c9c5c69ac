//! The tables of the store once more, written from their documentation: the record that each operation finds, its
//! result, and the changes that it may make.
//!
//! The core decides with its own code. This module states the same in another way, row by row, and checks each
//! operation of each world against it. Everything that an operation does not have to write stays unchanged.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, DedupeState,
    DeliveryReceipt, Lease, LeaseOwnerState, LocalKnowledge, MemoryRecords, RecordAbsence, RecordAddress,
    RecordOrigin, ReleaseRequest, RenewVerdict, ReplayReason, Resolution, ResolutionRequest, ResolveVerdict,
    RunOutcome, SaveRequest, SaveVerdict, SettleDelay, SettleStatus, SettleTime, StartVerdict,
    UnknownOutcome, UnknownOutcomeReason, UnknownOutcomeReport, UnknownOutcomeStatus,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::{FailureReplayPolicy, RecordLifetimes, UnknownOutcomePolicy};

use crate::coverage::{CoverageTable, TableCoverage};
use crate::invariants::InvariantViolation;

/// The expected result of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectedClaim {
    Acquired,
    Follow(RecordKey),
    Busy,
    Replay(ClaimOwner, ReplayReason),
    NotYet(ClaimOwner),
    Final(ClaimOwner),
    Conflict,
}

/// The way in which a claim looks for its record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimLookup {
    Explicit,
    CallId,
    Equal,
    Waiting,
}

impl ClaimLookup {
    fn column(self) -> &'static str {
        match self {
            Self::Explicit => "explicit key",
            Self::CallId => "own call id",
            Self::Equal => "equal arguments",
            Self::Waiting => "waiter",
        }
    }
}

/// Compares the operations of a store with the tables.
#[derive(Debug, Default)]
pub(crate) struct StoreTableChecker {
    pub(crate) coverage: TableCoverage,
    /// The first operation that did not match its table.
    pub(crate) broken: Option<InvariantViolation>,
}

type LeaseSightFn<'s> = &'s dyn Fn(&ClaimOwner) -> LeaseOwnerState;

impl StoreTableChecker {
    fn check(&mut self, holds: bool, description: impl FnOnce() -> String) {
        self.check_promise("as the tables say", holds, description);
    }

    fn check_promise(&mut self, promise: &'static str, holds: bool, description: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some((promise, description()));
        }
    }

    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        known: &LocalKnowledge,
        sight: LeaseSightFn<'_>,
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
        verdict: &ClaimVerdict,
    ) {
        let picked = found(claim, sight, now, before);
        let (row, column, due) = expected(claim, picked, known, sight, now);
        self.coverage.count(CoverageTable::Claim, row, column);
        let got = match verdict {
            ClaimVerdict::Acquired(_) | ClaimVerdict::Nothing => ExpectedClaim::Acquired,
            ClaimVerdict::Follow(key) => ExpectedClaim::Follow(*key),
            ClaimVerdict::Busy => ExpectedClaim::Busy,
            ClaimVerdict::Replay(replay) => {
                ExpectedClaim::Replay(replay.receipt.owner.clone(), replay.reason)
            }
            ClaimVerdict::Unknown(unsettled) => match unsettled.end {
                SettleStatus::Settled => ExpectedClaim::Final(unsettled.receipt.owner.clone()),
                SettleStatus::NotYet(_) => ExpectedClaim::NotYet(unsettled.receipt.owner.clone()),
            },
            ClaimVerdict::Conflict => ExpectedClaim::Conflict,
            ClaimVerdict::Full | ClaimVerdict::StoreRecovering | ClaimVerdict::RecordsLost => return,
        };
        let is_lookup = claim.intent == ClaimIntent::Look;
        self.check(
            got == due
                && matches!(verdict, ClaimVerdict::Nothing) == (is_lookup && due == ExpectedClaim::Acquired),
            || format!("a claim by {column} that found {row} should get {due:?} and got {verdict:?}"),
        );
        let moved = if let ClaimVerdict::Acquired(given) = verdict { given.index } else { None };
        self.index_stays((before, after), moved);
        let changed = changes(before, after);
        match (&due, verdict) {
            (ExpectedClaim::Acquired, ClaimVerdict::Acquired(given)) => {
                self.taken(claim, picked.map(|(record, _)| record), given, now, (before, after));
            }
            // The time for the unknown outcome begins to count here.
            (ExpectedClaim::NotYet(owner) | ExpectedClaim::Final(owner), _)
                if matches!(row, "in flight, lapsed, started" | "unknown, its owner is gone") =>
            {
                let marked = picked.and_then(|(old, _)| after.get(&old.key));
                let due = picked.map(|(old, _)| marked_unknown(old, sight(owner), &claim.rules, now));
                self.check(marked == due.as_ref() && changed.len() == 1, || {
                    format!("{row}: it should be marked as {due:?}, and nothing else written: {marked:?}")
                });
            }
            (ExpectedClaim::Acquired, _)
            | (
                ExpectedClaim::Follow(_)
                | ExpectedClaim::Busy
                | ExpectedClaim::Replay(..)
                | ExpectedClaim::NotYet(_)
                | ExpectedClaim::Final(_)
                | ExpectedClaim::Conflict,
                _,
            ) => {
                self.check(changed.is_empty(), || format!("a claim that found {row} wrote {changed:?}"));
            }
        }
        self.check_response(claim, verdict, known, now, (before, after));
    }

    /// Checks that an entry of the index leads where it led, as long as its target exists. Only a claim moves its own
    /// entry.
    fn index_stays(&mut self, (before, after): (&MemoryRecords, &MemoryRecords), moved: Option<RecordKey>) {
        for index in before.iter().filter_map(|record| record.index).filter(|index| Some(*index) != moved) {
            let led = before.indexed(Some(index)).map(|record| record.key);
            let leads = after.indexed(Some(index)).map(|record| record.key);
            let is_there = led.is_some_and(|key| after.get(&key).is_some());
            self.check(!is_there || leads == led, || {
                format!("the index led to {led:?}, which is there, and leads to {leads:?}")
            });
        }
    }

    /// Checks the record of a call that may run, and the record that it replaces. `over` is the record that allowed it.
    fn taken(
        &mut self,
        claim: &Claim,
        over: Option<&DedupeRecord>,
        given: &DedupeRecord,
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
    ) {
        let there = after.get(&given.key);
        self.check(there == Some(given), || format!("given {given:?}, and there is {there:?}"));
        let again = over.filter(|record| record.owner == claim.owner);
        let continued = over.filter(|record| record.state == DedupeState::Inflight);
        // A record that only the index can find keeps its place when it is taken over, so that its late owner meets the
        // fence.
        let is_run = |record: &&DedupeRecord| record.origin == RecordOrigin::Run;
        let in_place =
            continued.filter(is_run).filter(|_| matches!(claim.address, RecordAddress::Keyless { .. }));
        let key = in_place.map_or(claim.address.own(), |record| record.key);
        let old = before.get(&key);
        let due = DedupeRecord {
            key,
            origin: match claim.address {
                RecordAddress::Explicit(_) => RecordOrigin::Explicit,
                RecordAddress::CallId { .. } => RecordOrigin::CallId,
                RecordAddress::Keyless { .. } => RecordOrigin::Run,
            },
            index: claim.address.index(),
            call_id: if let RecordAddress::CallId { id, .. } = claim.address { Some(id) } else { None },
            tool: claim.tool.clone(),
            state: DedupeState::Inflight,
            owner: claim.owner.clone(),
            started: claim.intent == ClaimIntent::Take { started: true }
                || again.is_some_and(|own| own.started),
            retry_safe: claim.retry_safe,
            digest: claim.digest,
            // A call that continues a run in flight keeps the id of that run.
            run: continued.map_or(&claim.run, |record| &record.run).clone(),
            lease: Lease::Until(now + claim.rules.keep.lease),
            end_observed_by: claim.end_observed_within.map(|span| now + span),
            delivered: None,
            version: old.map_or(1, |old| old.version + 1),
            arrived: again.map_or(claim.arrived, |own| own.arrived),
            created: again.map_or(now, |own| own.created),
            updated: now,
            expires: Some(now + claim.rules.keep.open),
            request: claim.request.clone(),
            tool_call: claim.tool_call.clone(),
            context: claim.context.clone(),
            session: claim.session.clone(),
            actor: claim.actor.clone(),
            tenant: claim.tenant.clone(),
            attempts: again.map_or_else(Vec::new, |own| own.attempts.clone()),
        };
        self.check(*given == due, || format!("{claim:?} got {given:?}, due is {due:?}, where {old:?} was"));
        if let Some(index) = given.index {
            let leads = after.indexed(Some(index)).map(|record| record.key);
            self.check(leads == Some(given.key), || format!("the index of {given:?} leads to {leads:?}"));
        }
        // The record that was taken over is removed, and so is one that only the index could find when the index moves
        // on.
        let passed =
            before.indexed(claim.address.index()).filter(|passed| is_run(passed) && !passed.is_open());
        let replaced = over.filter(|over| is_run(over) || continued.is_some());
        let mut due: Vec<RecordKey> = passed.into_iter().chain(replaced).map(|record| record.key).collect();
        due.push(key);
        due.sort_unstable();
        due.dedup();
        let mut changed = changes(before, after);
        changed.sort_unstable();
        self.check(changed == due, || format!("{claim:?} changed {changed:?}, due is {due:?}"));
    }

    /// Checks that the response matches the record.
    fn check_response(
        &mut self,
        claim: &Claim,
        verdict: &ClaimVerdict,
        known: &LocalKnowledge,
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
    ) {
        match verdict {
            ClaimVerdict::Unknown(unsettled) => {
                let record = after.get(&unsettled.receipt.key);
                let Some((record, DedupeState::Unknown(unknown))) =
                    record.map(|record| (record, &record.state))
                else {
                    return self.check(false, || format!("{unsettled:?} is given, and there is {record:?}"));
                };
                let may = claim.address.index().is_some()
                    && record.index.is_some()
                    && claim.rules.after_unknown == UnknownOutcomePolicy::TellOnce
                    && record.expires.is_some();
                // An outcome that has only now become unknown has reached no client.
                let is_old = before.get(&record.key).is_some_and(|old| std::ptr::eq(old, record));
                let delivered_at = delivered(record, known).filter(|_| is_old);
                let waited = delivered_at.map_or(Duration::ZERO, |at| now.since(at));
                let due = UnknownOutcomeStatus {
                    end: match settles(record) {
                        _ if is_settled(record, now) => SettleStatus::Settled,
                        SettleTime::By(at) => SettleStatus::NotYet(Some(at.since(now))),
                        SettleTime::WhenOwnerReports | SettleTime::Settled => SettleStatus::NotYet(None),
                    },
                    observed: unknown.observed,
                    details: unknown.details.clone(),
                    output: unknown.output.clone(),
                    runs_in: may.then(|| claim.rules.after_telling.saturating_sub(waited)),
                    receipt: record.receipt(),
                };
                self.check(**unsettled == due, || {
                    format!("{record:?} is given as {unsettled:?}, due is {due:?}")
                });
            }
            ClaimVerdict::Replay(replay) => {
                let record = before.get(&replay.receipt.key);
                let answer = record.map(|record| match &record.state {
                    DedupeState::Done(output) => replay.answer == Ok(output.clone()),
                    DedupeState::Failed(failure) => replay.answer.as_ref() == Err(failure),
                    DedupeState::Inflight | DedupeState::Unknown(_) | DedupeState::Cancelled => false,
                });
                let receipt = record.map(DedupeRecord::receipt);
                let age = record.map(|record| now.since(record.updated));
                let is_right = answer == Some(true)
                    && receipt.as_ref() == Some(&replay.receipt)
                    && age == Some(replay.age);
                self.check(is_right, || format!("{record:?} is given again as {replay:?}"));
            }
            ClaimVerdict::Acquired(_)
            | ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost => {}
        }
    }

    pub(crate) fn save(
        &mut self,
        save: &SaveRequest,
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
        verdict: &SaveVerdict,
    ) {
        let claimed = &save.claimed;
        let column = match save.ending {
            RunOutcome::Done(_) => "done",
            RunOutcome::Failed(_) => "failed",
            RunOutcome::Unknown(_) => "unknown",
        };
        let own = before.get(&claimed.key);
        let by_index = before.indexed(claimed.index).filter(|record| record.owner == claimed.owner);
        let found = own.or(by_index);
        // Whether the answer is saved, and whether anything is written for that.
        let (row, saved, writes) = match found {
            None => ("nothing", true, true),
            Some(record) if record.owner != claimed.owner => ("another's", false, false),
            Some(record) if own.is_none() && record.state == DedupeState::Inflight => {
                ("its own, by the index", true, true)
            }
            Some(record) => match (&record.state, &save.ending) {
                (DedupeState::Inflight, _) => ("its own, in flight", true, true),
                (DedupeState::Unknown(_), RunOutcome::Done(_) | RunOutcome::Failed(_)) => {
                    ("its own, unknown", true, true)
                }
                (DedupeState::Unknown(_), RunOutcome::Unknown(update)) => {
                    match is_more_precise(settles(record), update.settles, now) {
                        true => ("its own, unknown", true, true),
                        false => ("its own, unknown, knows no more", true, false),
                    }
                }
                (DedupeState::Done(_), ending) => {
                    ("its own, done", matches!(ending, RunOutcome::Done(_)), false)
                }
                (DedupeState::Failed(_), ending) => {
                    ("its own, failed", matches!(ending, RunOutcome::Failed(_)), false)
                }
                (DedupeState::Cancelled, _) => ("its own, failed", false, false),
            },
        };
        self.coverage.count(
            CoverageTable::Save,
            row,
            if row == "its own, by the index" { "" } else { column },
        );
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
        let state = match save.ending.clone() {
            RunOutcome::Done(output) => DedupeState::Done(output),
            RunOutcome::Failed(failure) => DedupeState::Failed(failure),
            RunOutcome::Unknown(UnknownOutcomeReport { settles, observed, details: words, output }) => {
                let settles = match settles {
                    SettleDelay::WhenOwnerReports => SettleTime::WhenOwnerReports,
                    SettleDelay::After(span) => SettleTime::By(now + span),
                    SettleDelay::Settled => SettleTime::Settled,
                };
                DedupeState::Unknown(UnknownOutcome { settles, observed, details: words, output })
            }
        };
        let generation = match save.ending {
            RunOutcome::Done(_) => Some(save.keep.done),
            RunOutcome::Failed(_) => Some(save.keep.failed),
            RunOutcome::Unknown(_) => (!save.hold).then_some(save.keep.open),
        };
        // A final answer that has arrived stays delivered when its end is known more precisely.
        let delivered_at = found
            .filter(|record| is_settled(record, now) && column == "unknown")
            .and_then(|record| record.delivered);
        let newest = save.attempts.len().saturating_sub(DedupeRecord::MOST_ATTEMPTS);
        let due = DedupeRecord {
            state,
            started: true,
            updated: now,
            expires: generation.map(|generation| now + generation),
            delivered: save.delivered.or(delivered_at),
            version: found.map_or(there.version, |record| record.version + 1),
            attempts: save.attempts[newest..].to_vec(),
            ..found.unwrap_or(claimed).clone()
        };
        let is_new = found.is_some() || there.version >= never_had(claimed, now);
        let is_right = *there == due && is_new && *verdict == SaveVerdict::Saved(there.receipt());
        self.check(is_right, || {
            format!("{save:?} where {found:?} was left {there:?}, due is {due:?}: {verdict:?}")
        });
        self.check(changed.len() == 1, || format!("saving {column} where it finds {row} wrote {changed:?}"));
        let leads = |records: &MemoryRecords| records.indexed(there.index).map(|record| record.key);
        let led = leads(before);
        let leads = leads(after);
        let is_right = match row {
            "nothing" => leads == there.index.and(led.or(Some(key))),
            _ => leads == led,
        };
        self.check(is_right, || format!("{row}: the index led to {led:?} and leads to {leads:?}"));
    }

    pub(crate) fn release(
        &mut self,
        release: &ReleaseRequest,
        (before, after): (&MemoryRecords, &MemoryRecords),
    ) {
        let own = before.get(&release.key);
        let is_own = |record: &&DedupeRecord| record.owner == release.owner;
        let found = own.filter(is_own).or(before.indexed(release.index).filter(is_own));
        let (row, removed) = match found {
            Some(record) if record.is_open() => ("its own, open", Some(record.key)),
            Some(_) => ("its own, answered", None),
            None if own.is_some() => ("another's", None),
            None => ("nothing", None),
        };
        self.coverage.count(CoverageTable::Release, row, "");
        let changed = changes(before, after);
        self.check(changed == removed.into_iter().collect::<Vec<_>>(), || {
            format!("giving back {release:?} where it finds {row} changed {changed:?}")
        });
        let left = removed.and_then(|key| after.get(&key));
        self.check(left.is_none(), || format!("what was given back is still there: {left:?}"));
        self.index_stays((before, after), None);
    }

    pub(crate) fn renew(
        &mut self,
        (claimed, keep, absence): (&DedupeRecord, &RecordLifetimes, RecordAbsence),
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
        verdict: RenewVerdict,
    ) {
        let (row, due, writes) = match before.get(&claimed.key) {
            None if absence == RecordAbsence::StoreEmptied => {
                ("nothing, the store was emptied", RenewVerdict::Renewed, true)
            }
            None => ("nothing", RenewVerdict::Lost, false),
            Some(record) if record.owner != claimed.owner => ("another's", RenewVerdict::Lost, false),
            Some(record) => match record.state {
                DedupeState::Inflight => ("its own, in flight", RenewVerdict::Renewed, true),
                DedupeState::Unknown(_) => ("its own, unknown", RenewVerdict::MarkedUnknown, false),
                DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => {
                    ("its own, answered", RenewVerdict::Lost, false)
                }
            },
        };
        self.coverage.count(CoverageTable::Renew, row, "");
        self.check(verdict == due, || format!("a renewal that finds {row} got {verdict:?}"));
        let changed = changes(before, after);
        self.check(changed.len() == usize::from(writes), || {
            format!("a renewal that finds {row} changed {changed:?}")
        });
        if !writes {
            return;
        }
        let old = before.get(&claimed.key);
        let due = DedupeRecord {
            lease: Lease::Until(now + keep.lease),
            expires: Some(now + keep.open),
            updated: now,
            version: old.map_or_else(|| never_had(claimed, now), |old| old.version + 1),
            ..old.unwrap_or(claimed).clone()
        };
        let there = after.get(&claimed.key);
        self.check(there == Some(&due), || format!("{claimed:?} was renewed as {there:?}, due is {due:?}"));
        let leads = |records: &MemoryRecords| records.indexed(claimed.index).map(|record| record.key);
        let (led, leads) = (leads(before), leads(after));
        let due = if old.is_none() { led.or(claimed.index.and(Some(claimed.key))) } else { led };
        self.check(leads == due, || format!("{row}: the index led to {led:?} and leads to {leads:?}"));
    }

    pub(crate) fn start(
        &mut self,
        (key, owner): (&RecordKey, &ClaimOwner),
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
        verdict: StartVerdict,
    ) {
        let found = before.get(key);
        let (row, due) = match found {
            None => ("nothing", StartVerdict::Lost),
            Some(record) if record.owner != *owner => ("another's", StartVerdict::Lost),
            Some(record) if record.state != DedupeState::Inflight => {
                ("its own, not in flight", StartVerdict::Lost)
            }
            Some(record) if record.started => ("its own, started", StartVerdict::Started),
            Some(_) => ("its own", StartVerdict::Started),
        };
        self.coverage.count(CoverageTable::Start, row, "");
        let changed = changes(before, after);
        self.check(verdict == due && changed.len() == usize::from(row == "its own"), || {
            format!("the mark of a start that finds {row} got {verdict:?} and changed {changed:?}")
        });
        if let (Some(old), Some(there), "its own") = (found, after.get(key), row) {
            let end_observed_by = old.end_observed_by.map(|by| by + now.since(old.created));
            let (version, updated) = (old.version + 1, now);
            let due = DedupeRecord { started: true, version, updated, end_observed_by, ..old.clone() };
            self.check(*there == due, || format!("{old:?} was started as {there:?}"));
        }
    }

    pub(crate) fn delivered(
        &mut self,
        receipt: &DeliveryReceipt,
        at: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
    ) {
        let found = before.get(&receipt.key);
        let row = match found {
            None => "nothing",
            Some(record) if record.delivered.is_some() && record.owner == receipt.owner => "delivered before",
            Some(record) if record.receipt() != *receipt => "another answer",
            Some(record) => match record.state {
                DedupeState::Done(_) | DedupeState::Failed(_) => "the answer",
                DedupeState::Unknown(_) if is_settled(record, at) => "the answer",
                DedupeState::Unknown(_) | DedupeState::Inflight | DedupeState::Cancelled => "no answer",
            },
        };
        self.coverage.count(CoverageTable::Delivered, row, "");
        let changed = changes(before, after);
        let is_right = changed.len() == usize::from(row == "the answer");
        self.check_promise("a mark belongs to one answer", is_right, || {
            format!("the mark of a delivery that finds {row} changed {changed:?}")
        });
        if let (Some(old), Some(there), "the answer") = (found, after.get(&receipt.key), row) {
            let due = DedupeRecord { delivered: Some(at), version: old.version + 1, ..old.clone() };
            self.check(*there == due, || format!("{old:?} was marked as delivered: {there:?}"));
        }
    }

    pub(crate) fn resolve(
        &mut self,
        (resolve, rules): (&ResolutionRequest, &DedupeRules),
        sight: LeaseSightFn<'_>,
        now: Timestamp,
        (before, after): (&MemoryRecords, &MemoryRecords),
        verdict: ResolveVerdict,
    ) {
        let ResolutionRequest { key, resolution, of, requires_observed_end } = resolve;
        let column = match resolution {
            Resolution::Ran => "ran",
            Resolution::DidNotRun => "did not run",
        };
        let there = before.get(key);
        let found = there.filter(|record| of.as_ref().is_none_or(|owner| record.owner == *owner));
        // The record as it is once its owner is known to be gone.
        let marked = found.map(|record| (record, sight(&record.owner))).and_then(|(record, sight)| {
            let is_lost = match &record.state {
                DedupeState::Inflight => record.started && !record.retry_safe,
                DedupeState::Unknown(unknown) => unknown.settles == SettleTime::WhenOwnerReports,
                DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => false,
            };
            (is_lost && !holds(record, sight, now)).then(|| marked_unknown(record, sight, rules, now))
        });
        let is_unknown = |record: &&DedupeRecord| matches!(record.state, DedupeState::Unknown(_));
        let stands = marked.as_ref().or(found.filter(is_unknown));
        let row = match stands {
            Some(record) if !is_settled(record, now) => "not settled",
            Some(record) if *requires_observed_end && settles(record) != SettleTime::Settled => {
                "over by its time, its end was not seen"
            }
            Some(_) => "settled",
            None if found.is_some() => "not unknown",
            None if there.is_some() => "another run",
            None => "nothing",
        };
        self.coverage.count(CoverageTable::Resolve, row, column);
        let ran = found.map(|record| DedupeRecord {
            state: DedupeState::Done(None),
            delivered: None,
            version: record.version + 1,
            updated: now,
            expires: Some(now + rules.keep.done),
            ..record.clone()
        });
        let (due, left) = match (stands, resolution) {
            (None, _) => (ResolveVerdict::NotUnknown, there.cloned()),
            (Some(_), Resolution::Ran) => (ResolveVerdict::Resolved, ran),
            (Some(_), Resolution::DidNotRun) if row == "settled" => (ResolveVerdict::Resolved, None),
            (Some(record), Resolution::DidNotRun) => {
                let span = if let SettleTime::By(at) = settles(record) { Some(at.since(now)) } else { None };
                (ResolveVerdict::NotSettled(span), Some(record.clone()))
            }
        };
        let there = after.get(key);
        self.check(verdict == due && there == left.as_ref(), || {
            format!("{resolve:?}, which found {row}, got {verdict:?} and left {there:?}; due is {due:?} and {left:?}")
        });
        let changed = changes(before, after);
        self.check(changed.is_empty() || changed == [*key], || {
            format!("{column}, of {key:?}, changed {changed:?}")
        });
        self.index_stays((before, after), None);
    }
}

/// Returns the row, the column, and the expected result of a claim.
fn expected(
    claim: &Claim,
    picked: Option<(&DedupeRecord, ClaimLookup)>,
    known: &LocalKnowledge,
    sight: LeaseSightFn<'_>,
    now: Timestamp,
) -> (&'static str, &'static str, ExpectedClaim) {
    let Some((record, by)) = picked else { return ("nothing", "", ExpectedClaim::Acquired) };
    if record.digest != claim.digest || record.tool != claim.tool {
        return ("nothing", "another call", ExpectedClaim::Conflict);
    }
    let column = by.column();
    let owner = record.owner.clone();
    let (row, due) = match &record.state {
        DedupeState::Inflight if owner == claim.owner => ("own token, in flight", ExpectedClaim::Acquired),
        DedupeState::Inflight if holds(record, sight(&owner), now) => (
            "in flight, held",
            if by == ClaimLookup::Explicit && claim.best_effort {
                ExpectedClaim::Busy
            } else {
                ExpectedClaim::Follow(record.key)
            },
        ),
        DedupeState::Inflight if !record.started => {
            ("in flight, lapsed, not started", ExpectedClaim::Acquired)
        }
        DedupeState::Inflight if record.retry_safe => {
            ("in flight, lapsed, safe to repeat", ExpectedClaim::Acquired)
        }
        DedupeState::Inflight => {
            let at = over_by(record, sight(&owner), &claim.rules, now);
            (
                "in flight, lapsed, started",
                if at > now { ExpectedClaim::NotYet(owner) } else { ExpectedClaim::Final(owner) },
            )
        }
        DedupeState::Done(_) => done(claim, record, by, known, now),
        DedupeState::Failed(failure) => {
            let is_replayed = match (by, claim.rules.cache_failures) {
                (ClaimLookup::Waiting, _) => true,
                (ClaimLookup::CallId | ClaimLookup::Equal, _)
                | (ClaimLookup::Explicit, FailureReplayPolicy::None) => false,
                (ClaimLookup::Explicit, FailureReplayPolicy::Terminal) => failure.terminal,
                (ClaimLookup::Explicit, FailureReplayPolicy::All) => {
                    !(claim.best_effort && failure.retriable)
                }
            };
            match is_replayed {
                true => ("failed, kept", ExpectedClaim::Replay(owner, again(by))),
                false => ("failed, not kept", ExpectedClaim::Acquired),
            }
        }
        DedupeState::Unknown(_) => unknown(claim, record, by, known, sight, now),
        DedupeState::Cancelled => ("failed, not kept", ExpectedClaim::Acquired),
    };
    (row, column, due)
}

fn again(by: ClaimLookup) -> ReplayReason {
    match by {
        ClaimLookup::Waiting => ReplayReason::Waited,
        ClaimLookup::Explicit | ClaimLookup::CallId | ClaimLookup::Equal => ReplayReason::SameKey,
    }
}

fn done(
    claim: &Claim,
    record: &DedupeRecord,
    by: ClaimLookup,
    known: &LocalKnowledge,
    now: Timestamp,
) -> (&'static str, ExpectedClaim) {
    let owner = || record.owner.clone();
    let is_delivered = delivered(record, known).is_some();
    let row = if is_delivered { "done, delivered" } else { "done, not delivered" };
    if by != ClaimLookup::Equal {
        return (row, ExpectedClaim::Replay(owner(), again(by)));
    }
    if !is_delivered {
        return match now < record.updated + claim.rules.undelivered {
            true => (row, ExpectedClaim::Replay(owner(), ReplayReason::Undelivered)),
            false => ("done, not delivered for long", ExpectedClaim::Acquired),
        };
    }
    let two_ids = matches!(claim.address, RecordAddress::CallId { id, .. } if record.call_id.is_some_and(|call_id| call_id != id));
    let handed_over_later = known.overlapped.contains(&record.owner);
    let handed_over_before = known.answered_unsaved.contains(&record.owner);
    let saved_later = claim.age > now.since(record.updated);
    let overlaps = handed_over_later || saved_later && !handed_over_before;
    match claim.rules.double_dispatch && overlaps && !two_ids {
        true if !handed_over_later => {
            ("done, delivered, overlaps by age", ExpectedClaim::Replay(owner(), ReplayReason::DoubleDispatch))
        }
        true => ("done, delivered, overlaps", ExpectedClaim::Replay(owner(), ReplayReason::DoubleDispatch)),
        false => (row, ExpectedClaim::Acquired),
    }
}

fn unknown(
    claim: &Claim,
    record: &DedupeRecord,
    by: ClaimLookup,
    known: &LocalKnowledge,
    sight: LeaseSightFn<'_>,
    now: Timestamp,
) -> (&'static str, ExpectedClaim) {
    let owner = record.owner.clone();
    if settles(record) == SettleTime::WhenOwnerReports && !holds(record, sight(&owner), now) {
        let is_over = over_by(record, sight(&owner), &claim.rules, now) <= now;
        return (
            "unknown, its owner is gone",
            if is_over { ExpectedClaim::Final(owner) } else { ExpectedClaim::NotYet(owner) },
        );
    }
    if !is_settled(record, now) {
        return ("unknown, not settled", ExpectedClaim::NotYet(owner));
    }
    let Some(delivered_at) = delivered(record, known) else {
        return ("unknown, settled, not told", ExpectedClaim::Final(owner));
    };
    let row = if known.verified.contains(&owner) {
        "unknown, settled, told and verified"
    } else if now >= delivered_at + claim.rules.after_telling {
        "unknown, settled, told and waited"
    } else {
        "unknown, settled, told"
    };
    let holds = claim.rules.after_unknown == UnknownOutcomePolicy::Hold || record.expires.is_none();
    let runs = by == ClaimLookup::Equal && !holds && row != "unknown, settled, told";
    (row, if runs { ExpectedClaim::Acquired } else { ExpectedClaim::Final(owner) })
}

/// Returns the record that decides a claim, and how it was found.
fn found<'r>(
    claim: &Claim,
    sight: LeaseSightFn<'_>,
    now: Timestamp,
    before: &'r MemoryRecords,
) -> Option<(&'r DedupeRecord, ClaimLookup)> {
    let fresh = |record: &&DedupeRecord| record.expires.is_none_or(|expires| now < expires);
    let same = |record: &&DedupeRecord| record.digest == claim.digest && record.tool == claim.tool;
    // Without an explicit key, answers from before deduplication was switched on again do not count.
    let counts = |record: &&DedupeRecord| {
        record.is_open() || claim.rules.computed_since.is_none_or(|since| since <= record.updated)
    };
    let get = |key: &RecordKey| before.get(key).filter(fresh);
    let is_gone = |record: &DedupeRecord| {
        record.state == DedupeState::Inflight
            && record.owner != claim.owner
            && !holds(record, sight(&record.owner), now)
            && (!record.started || record.retry_safe)
    };
    match (claim.role, claim.address) {
        (ClaimRole::Fresh, RecordAddress::Explicit(key)) => {
            get(&key).filter(counts).map(|record| (record, ClaimLookup::Explicit))
        }
        (
            ClaimRole::Fresh,
            RecordAddress::CallId { id: own, index } | RecordAddress::Keyless { run: own, index },
        ) => {
            let own = get(&own).filter(same);
            let equal = before.indexed(Some(index)).filter(fresh).filter(same).filter(counts);
            // A dispatch that failed or never started yields to an equal run that is open or whose answer is not
            // delivered.
            let open = equal.filter(|equal| match equal.state {
                DedupeState::Inflight | DedupeState::Unknown(_) => true,
                DedupeState::Done(_) => {
                    equal.delivered.is_none() && now < equal.updated + claim.rules.undelivered
                }
                DedupeState::Failed(_) | DedupeState::Cancelled => false,
            });
            match (own, open) {
                (Some(own), Some(open))
                    if own.key != open.key
                        && (is_gone(own)
                            || matches!(own.state, DedupeState::Failed(_) | DedupeState::Cancelled)) =>
                {
                    Some((open, ClaimLookup::Equal))
                }
                (Some(own), _) => Some((own, ClaimLookup::CallId)),
                (None, _) => equal.map(|equal| (equal, ClaimLookup::Equal)),
            }
        }
        (ClaimRole::Waiter { followed }, address) => {
            let is_explicit = matches!(address, RecordAddress::Explicit(_));
            let is_match = |record: &&DedupeRecord| is_explicit || same(record);
            let followed = get(&followed).filter(is_match);
            let own = get(&address.own()).filter(is_match).filter(|own| !is_explicit || counts(own));
            let equal = before.indexed(address.index()).filter(fresh).filter(is_match).filter(counts);
            let is_present = |record: &&DedupeRecord| !is_gone(record);
            let picked =
                followed.filter(is_present).or(own.filter(is_present)).or(equal).or(own).or(followed);
            picked.map(|record| (record, ClaimLookup::Waiting))
        }
    }
}

/// Returns the time at which the attempt of a vanished owner is over: after the linger if its end could not be
/// observed, when the leash has ended its child, or when its owner would have observed the end.
fn over_by(record: &DedupeRecord, sight: LeaseOwnerState, rules: &DedupeRules, now: Timestamp) -> Timestamp {
    match (record.end_observed_by, sight) {
        (None, _) => now + rules.linger,
        (Some(_), LeaseOwnerState::Gone) => now + Duration::from_secs(5) + rules.settle,
        (Some(by), LeaseOwnerState::Alive | LeaseOwnerState::Time) => by.max(now) + rules.settle,
    }
}

/// Returns the record of a run whose owner has vanished. Earlier observations stay.
fn marked_unknown(
    record: &DedupeRecord,
    sight: LeaseOwnerState,
    rules: &DedupeRules,
    now: Timestamp,
) -> DedupeRecord {
    let settles = SettleTime::By(over_by(record, sight, rules, now));
    let unknown = match &record.state {
        DedupeState::Unknown(unknown) => UnknownOutcome { settles, ..unknown.clone() },
        DedupeState::Inflight | DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => {
            let observed = if sight == LeaseOwnerState::Gone {
                UnknownOutcomeReason::ProcessDied
            } else {
                UnknownOutcomeReason::NoAnswer
            };
            UnknownOutcome { settles, observed, details: None, output: None }
        }
    };
    let is_held = rules.after_unknown == UnknownOutcomePolicy::Hold || record.expires.is_none();
    DedupeRecord {
        state: DedupeState::Unknown(unknown),
        delivered: None,
        version: record.version + 1,
        updated: now,
        expires: (!is_held).then(|| now + rules.keep.open),
        ..record.clone()
    }
}

/// Returns a version that no record under this key has had.
fn never_had(claimed: &DedupeRecord, now: Timestamp) -> u64 {
    now.as_millis().max(claimed.version + 1)
}

fn delivered(record: &DedupeRecord, known: &LocalKnowledge) -> Option<Timestamp> {
    let here = known.delivered.iter().find(|(receipt, _)| *receipt == record.receipt()).map(|(_, at)| *at);
    record.delivered.or(here)
}

fn settles(record: &DedupeRecord) -> SettleTime {
    match &record.state {
        DedupeState::Unknown(unknown) => unknown.settles,
        DedupeState::Inflight | DedupeState::Done(_) | DedupeState::Failed(_) | DedupeState::Cancelled => {
            SettleTime::WhenOwnerReports
        }
    }
}

fn is_settled(record: &DedupeRecord, now: Timestamp) -> bool {
    match settles(record) {
        SettleTime::WhenOwnerReports => false,
        SettleTime::By(at) => now >= at,
        SettleTime::Settled => true,
    }
}

/// Returns true if the new end is more precise than the known one.
fn is_more_precise(known: SettleTime, update: SettleDelay, now: Timestamp) -> bool {
    match (known, update) {
        (SettleTime::Settled, _) | (_, SettleDelay::WhenOwnerReports) => false,
        // An announced time is never moved to later.
        (SettleTime::By(known), SettleDelay::After(span)) => now + span < known,
        (SettleTime::WhenOwnerReports, SettleDelay::After(_)) | (_, SettleDelay::Settled) => true,
    }
}

/// Returns the keys of records that have changed.
fn changes(before: &MemoryRecords, after: &MemoryRecords) -> Vec<RecordKey> {
    let is_other = |one: &DedupeRecord, other: Option<&DedupeRecord>| {
        other.is_none_or(|other| !std::ptr::eq(one, other))
    };
    let mut keys: Vec<RecordKey> = after
        .iter()
        .filter(|record| is_other(record, before.get(&record.key)))
        .map(|record| record.key)
        .collect();
    keys.extend(before.iter().filter(|record| after.get(&record.key).is_none()).map(|record| record.key));
    keys
}

/// Returns true if a claim holds: as long as its process is known to live, or until its lease ends if only time can
/// tell.
pub(crate) fn holds(record: &DedupeRecord, sight: LeaseOwnerState, now: Timestamp) -> bool {
    match (sight, record.lease) {
        (LeaseOwnerState::Alive, _) => true,
        (LeaseOwnerState::Gone, _) => false,
        (LeaseOwnerState::Time, Lease::Record) => true,
        (LeaseOwnerState::Time, Lease::Until(until)) => until > now,
    }
}

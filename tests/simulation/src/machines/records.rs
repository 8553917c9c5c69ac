//! The records for deduplication, with requests in any order by any process. Every operation is compared with the
//! tables.

use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    AttemptRecord, CallFailure, Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord,
    DedupeRules, DedupeState, Delivery, DeliveryReceipt, DeliverySignal, IndexUpdate, LeaseOwnerState,
    LocalKnowledge, MarkerStatus, MarkerWatch, MemoryRecords, ProcessIdentity, RecordAbsence, RecordAddress,
    RecordWrite, ReleaseRequest, Resolution, ResolutionRequest, RunOutcome, SaveRequest, SaveVerdict,
    SettleDelay, StoreMarker, UnknownOutcomeReason, UnknownOutcomeReport,
};
use steadfast_core::id::{RequestId, RunId};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{FailureReplayPolicy, RecordLifetimes, UnknownOutcomePolicy};
use steadfast_json::RawJson;

use super::{MachineTrace, agree, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;
use crate::tables::StoreTableChecker;
use crate::transition::{digest, key, tool};

const PROMISE: &str = "as the tables say";
const PROCESSES: u64 = 3;

/// The store under test, and the knowledge of its users.
struct RecordsChecker {
    records: MemoryRecords,
    tables: StoreTableChecker,
    now: Timestamp,
    /// The store's knowledge about the owners of each process.
    sights: Vec<LeaseOwnerState>,
    keep: RecordLifetimes,
    /// Granted claims, each as its holder knows it.
    claimed: Vec<Arc<DedupeRecord>>,
    receipts: Vec<DeliveryReceipt>,
    calls: u64,
}

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    deliveries(rng)?;
    markers(rng)?;
    let span = |rng: &mut Rng| millis(*rng.pick(&[1, 500, 2_000, 20_000]));
    let mut store = RecordsChecker {
        records: MemoryRecords::default(),
        tables: StoreTableChecker::default(),
        now: Timestamp::from_millis(1_000_000),
        sights: (0..PROCESSES)
            .map(|_| *rng.pick(&[LeaseOwnerState::Alive, LeaseOwnerState::Gone, LeaseOwnerState::Time]))
            .collect(),
        keep: RecordLifetimes {
            done: span(rng) * 10,
            failed: span(rng) * 5,
            open: span(rng) * 10,
            lease: span(rng),
        },
        claimed: Vec::new(),
        receipts: Vec::new(),
        calls: 0,
    };
    let rules = rules(rng, store.keep);
    for _ in 0..70 {
        store.now = next_moment(rng, store.now, &store.moments());
        store.step(rng, &rules, machine_trace)?;
        if let Some(broken) = store.tables.broken.take() {
            return Err(broken);
        }
    }
    machine_trace.coverage.add(&store.tables.coverage);
    Ok(())
}

fn rules(rng: &mut Rng, keep: RecordLifetimes) -> DedupeRules {
    let span = |rng: &mut Rng| millis(*rng.pick(&[0, 1, 1_000, 10_000]));
    DedupeRules {
        cache_failures: *rng.pick(&[
            FailureReplayPolicy::Terminal,
            FailureReplayPolicy::All,
            FailureReplayPolicy::None,
        ]),
        after_unknown: *rng.pick(&[
            UnknownOutcomePolicy::TellOnce,
            UnknownOutcomePolicy::TellOnce,
            UnknownOutcomePolicy::Hold,
        ]),
        double_dispatch: rng.chance(70),
        undelivered: span(rng),
        after_telling: span(rng),
        linger: span(rng),
        settle: span(rng),
        keep,
        computed_since: None,
    }
}

impl RecordsChecker {
    /// Returns the times at which something ends.
    fn moments(&self) -> Vec<Timestamp> {
        self.records.iter().flat_map(ends_of).collect()
    }

    fn step(
        &mut self,
        rng: &mut Rng,
        rules: &DedupeRules,
        machine_trace: &mut MachineTrace,
    ) -> Result<(), InvariantViolation> {
        match rng.between(0, 19) {
            0..7 => self.claim(rng, rules, machine_trace),
            7 | 8 => self.save(rng, rules, machine_trace),
            9 | 10 => self.release(rng, machine_trace),
            11 => self.renew(rng, machine_trace),
            12 => self.start(rng, machine_trace),
            13 | 14 => self.deliver(rng, machine_trace),
            15 | 16 => self.resolve(rng, rules, machine_trace),
            17 => {
                let place = usize::try_from(rng.between(0, PROCESSES - 1)).unwrap_or(0);
                self.sights[place] =
                    *rng.pick(&[LeaseOwnerState::Alive, LeaseOwnerState::Gone, LeaseOwnerState::Time]);
                Ok(())
            }
            18 => self.sweep(),
            _ => {
                self.cancelled(rng);
                Ok(())
            }
        }
    }

    fn sight(sights: &[LeaseOwnerState]) -> impl Fn(&ClaimOwner) -> LeaseOwnerState {
        |owner| sights.get(owner.process.pid as usize).copied().unwrap_or(LeaseOwnerState::Time)
    }

    fn claim(
        &mut self,
        rng: &mut Rng,
        rules: &DedupeRules,
        machine_trace: &mut MachineTrace,
    ) -> Result<(), InvariantViolation> {
        let claim = self.a_claim(rng, rules);
        let known = self.known(rng);
        let before = self.records.clone();
        let sights = self.sights.clone();
        let sight = Self::sight(&sights);
        let verdict = self.records.claim(&claim, &known, &sight, self.now);
        machine_trace.log(|| format!("{}: {claim:?} knowing {known:?}: {verdict:?}", self.now.as_millis()));
        self.tables.claim(&claim, &known, &sight, self.now, (&before, &self.records), &verdict);
        self.woken(&before)?;
        match verdict {
            ClaimVerdict::Acquired(record) => self.claimed.push(record),
            ClaimVerdict::Replay(replay) => self.receipts.push(replay.receipt),
            ClaimVerdict::Unknown(unsettled) => self.receipts.push(unsettled.receipt),
            ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost => {}
        }
        Ok(())
    }

    fn a_claim(&mut self, rng: &mut Rng, rules: &DedupeRules) -> Claim {
        // A claim whose reply was lost is repeated, under the same token.
        let repeated = (rng.chance(10) && !self.claimed.is_empty()).then(|| rng.pick(&self.claimed).clone());
        let repeated = repeated.filter(|record| {
            self.records
                .get(&record.key)
                .is_none_or(|there| there.owner == record.owner && there.state == DedupeState::Inflight)
        });
        let arguments = if rng.chance(85) { 0 } else { 1 };
        let index = key(&format!("index {arguments}"));
        self.calls += 1;
        let number = self.calls;
        let address = match (&repeated, rng.between(0, 2)) {
            (Some(record), _) => address_of(record),
            (None, 0) => RecordAddress::Explicit(key(&format!("key {}", rng.between(0, 1)))),
            (None, 1) => RecordAddress::CallId { id: key(&format!("id {}", rng.between(0, 2))), index },
            (None, _) => RecordAddress::Keyless { run: key(&format!("run {number}")), index },
        };
        let role = match rng.chance(30) && repeated.is_none() {
            true => {
                let keys: Vec<RecordKey> = self.records.iter().map(|record| record.key).collect();
                let missing = key("nothing is here");
                ClaimRole::Waiter { followed: if keys.is_empty() { missing } else { *rng.pick(&keys) } }
            }
            false => ClaimRole::Fresh,
        };
        let owner = repeated.as_ref().map_or_else(|| an_owner(rng, number), |record| record.owner.clone());
        let mut other_tool = tool();
        other_tool.namespace = steadfast_core::id::Namespace::new("shop").expect("a name");
        Claim {
            address,
            intent: if rng.chance(15) {
                ClaimIntent::Look
            } else {
                ClaimIntent::Take { started: rng.chance(60) }
            },
            role,
            owner,
            digest: repeated.as_ref().map_or_else(|| digest(arguments), |record| record.digest),
            retry_safe: rng.chance(25),
            best_effort: rng.chance(20),
            arrived: self.now,
            age: millis(*rng.pick(&[0, 1, 600, 15_000])),
            end_observed_within: optional(rng, |rng| millis(rng.between(0, 3_000))),
            run: RunId(format!("run {number}").into()),
            rules: DedupeRules {
                computed_since: rng.chance(15).then(|| self.now.before(millis(rng.between(0, 2_000)))),
                ..*rules
            },
            tool: if rng.chance(97) { tool() } else { other_tool },
            request: RequestId::new(format!("request {number}")).expect("a short text"),
            tool_call: None,
            context: None,
            session: crate::system::session_of(usize::from(rng.chance(50))),
            actor: None,
            tenant: None,
        }
    }

    fn known(&self, rng: &mut Rng) -> LocalKnowledge {
        let owners: Vec<ClaimOwner> = self.records.iter().map(|record| record.owner.clone()).collect();
        let some = |rng: &mut Rng| owners.iter().filter(|_| rng.chance(25)).cloned().collect();
        let at = self.now.before(millis(*rng.pick(&[0, 1, 1_000, 10_000])));
        let current = self.records.iter().map(DedupeRecord::receipt);
        let receipts = self.receipts.iter().cloned().chain(current);
        LocalKnowledge {
            delivered: receipts.filter(|_| rng.chance(20)).map(|receipt| (receipt, at)).collect(),
            overlapped: some(rng),
            answered_unsaved: some(rng),
            verified: some(rng),
        }
    }

    fn save(
        &mut self,
        rng: &mut Rng,
        rules: &DedupeRules,
        machine_trace: &mut MachineTrace,
    ) -> Result<(), InvariantViolation> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let output =
            ToolOutput { content: RawJson::string(&format!("answer {}", rng.between(0, 1))), metadata: None };
        let ending = match rng.between(0, 4) {
            0 | 1 => RunOutcome::Done(rng.chance(80).then_some(output)),
            2 => RunOutcome::Failed(a_failure(rng)),
            _ => RunOutcome::Unknown(UnknownOutcomeReport {
                settles: *rng.pick(&[
                    SettleDelay::WhenOwnerReports,
                    SettleDelay::After(millis(1_000)),
                    SettleDelay::After(millis(5_000)),
                    SettleDelay::Settled,
                ]),
                observed: *rng.pick(&[
                    UnknownOutcomeReason::NoAnswer,
                    UnknownOutcomeReason::ErrorAnswer,
                    UnknownOutcomeReason::ConnectionLost,
                    UnknownOutcomeReason::ProcessDied,
                ]),
                details: optional(rng, |_| "no answer".into()),
                output: rng.chance(20).then_some(output),
            }),
        };
        let fact = |number| AttemptRecord {
            number,
            started: self.now,
            finished: self.now,
            code: None,
            rule: None,
            retriable: false,
        };
        let made = *rng.pick(&[0, 1, 2, 16, 17]);
        let mut claimed = rng.pick(&self.claimed).clone();
        // A holder whose reply was lost knows only the key under which it would have been written.
        let is_indexed =
            self.records.indexed(claimed.index).is_some_and(|record| record.owner == claimed.owner);
        if is_indexed && rng.chance(10) {
            claimed = Arc::new(DedupeRecord { key: key("another place"), ..(*claimed).clone() });
        }
        let save = SaveRequest {
            claimed,
            ending,
            attempts: (0..made).map(fact).collect(),
            delivered: rng.chance(10).then_some(self.now),
            hold: rng.chance(20),
            keep: rules.keep,
        };
        let before = self.records.clone();
        let verdict = self.records.save(&save, self.now);
        machine_trace.log(|| format!("{}: {save:?}: {verdict:?}", self.now.as_millis()));
        self.tables.save(&save, self.now, (&before, &self.records), &verdict);
        if let SaveVerdict::Saved(receipt) = verdict {
            self.receipts.push(receipt);
        }
        self.woken(&before)
    }

    fn release(&mut self, rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let record = rng.pick(&self.claimed);
        // A holder whose reply was lost knows only the key under which it would have been written.
        let key = if rng.chance(20) { key("another place") } else { record.key };
        let release = ReleaseRequest { key, index: record.index, owner: record.owner.clone() };
        let before = self.records.clone();
        self.records.release(&release);
        machine_trace.log(|| format!("{}: {release:?}", self.now.as_millis()));
        self.tables.release(&release, (&before, &self.records));
        self.woken(&before)
    }

    fn renew(&mut self, rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let record = rng.pick(&self.claimed).clone();
        let absence = if rng.chance(70) { RecordAbsence::Removed } else { RecordAbsence::StoreEmptied };
        let before = self.records.clone();
        let verdict = self.records.renew(&record, &self.keep, absence, self.now);
        machine_trace.log(|| format!("{}: renews {record:?}: {verdict:?}", self.now.as_millis()));
        self.tables.renew((&record, &self.keep, absence), self.now, (&before, &self.records), verdict);
        self.woken(&before)
    }

    fn start(&mut self, rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let record = rng.pick(&self.claimed).clone();
        let before = self.records.clone();
        let verdict = self.records.start(&record.key, &record.owner, self.now);
        machine_trace.log(|| format!("{}: starts {record:?}: {verdict:?}", self.now.as_millis()));
        self.tables.start((&record.key, &record.owner), self.now, (&before, &self.records), verdict);
        self.woken(&before)
    }

    fn deliver(&mut self, rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
        let current = self.records.iter().map(DedupeRecord::receipt);
        let receipts: Vec<DeliveryReceipt> = self.receipts.iter().cloned().chain(current).collect();
        if receipts.is_empty() {
            return Ok(());
        }
        let receipt = rng.pick(&receipts).clone();
        let at = self.now.before(millis(*rng.pick(&[0, 0, 1, 1_000])));
        let before = self.records.clone();
        self.records.mark_delivered(&receipt, at);
        machine_trace.log(|| format!("{}: {receipt:?} has arrived", self.now.as_millis()));
        self.tables.delivered(&receipt, at, (&before, &self.records));
        self.woken(&before)
    }

    fn resolve(
        &mut self,
        rng: &mut Rng,
        rules: &DedupeRules,
        machine_trace: &mut MachineTrace,
    ) -> Result<(), InvariantViolation> {
        let keys: Vec<RecordKey> =
            self.records.iter().map(|record| record.key).chain([key("nothing is here")]).collect();
        let key = *rng.pick(&keys);
        let resolution = *rng.pick(&[Resolution::Ran, Resolution::DidNotRun]);
        let before = self.records.clone();
        let sights = self.sights.clone();
        let sight = Self::sight(&sights);
        // An operator means whatever record is there; a call that looked it up means the run that it looked for.
        let there = before.get(&key).map(|record| record.owner.clone()).filter(|_| rng.chance(75));
        let of = optional(rng, |rng| there.unwrap_or_else(|| an_owner(rng, 0)));
        let resolve = ResolutionRequest { key, resolution, of, requires_observed_end: rng.chance(30) };
        let verdict = self.records.resolve(&resolve, rules, &sight, self.now);
        machine_trace.log(|| format!("{}: {resolve:?}: {verdict:?}", self.now.as_millis()));
        self.tables.resolve((&resolve, rules), &sight, self.now, (&before, &self.records), verdict);
        self.woken(&before)
    }

    fn sweep(&mut self) -> Result<(), InvariantViolation> {
        let before = self.records.clone();
        self.records.sweep(self.now);
        let stays = |record: &&DedupeRecord| record.expires.is_none_or(|at| at > self.now);
        let due: Vec<RecordKey> = before.iter().filter(stays).map(|record| record.key).collect();
        let left: Vec<RecordKey> = self.records.iter().map(|record| record.key).collect();
        agree(PROMISE, "a sweep leaves", &left, &due)?;
        for record in before.iter().filter(stays) {
            let leads = |records: &MemoryRecords| records.indexed(record.index).map(|record| record.key);
            let due = leads(&before).filter(|key| due.contains(key));
            agree(PROMISE, "after a sweep the index leads to", &leads(&self.records), &due)?;
        }
        agree(
            PROMISE,
            "how many",
            &(self.records.len(), self.records.is_empty()),
            &(due.len(), due.is_empty()),
        )
    }

    /// Writes a record as an older version left it: cancelled, or of an owner whose lease is unknown.
    fn cancelled(&mut self, rng: &mut Rng) {
        let keys: Vec<RecordKey> = self.records.iter().map(|record| record.key).collect();
        let Some(record) =
            (!keys.is_empty()).then(|| *rng.pick(&keys)).and_then(|key| self.records.get(&key))
        else {
            return;
        };
        let record = match rng.chance(50) {
            true => DedupeRecord { state: DedupeState::Cancelled, ..record.clone() },
            false => DedupeRecord { lease: steadfast_core::dedupe::Lease::Record, ..record.clone() },
        };
        self.records.apply(RecordWrite::Put {
            record: Arc::new(record),
            index: IndexUpdate::Keep,
            remove: Vec::new(),
        });
    }

    /// Checks that followers of a record that was written or removed are woken.
    fn woken(&self, before: &MemoryRecords) -> Result<(), InvariantViolation> {
        let is_same = |one: Option<&DedupeRecord>, other: Option<&DedupeRecord>| match (one, other) {
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            (None, None) => true,
            _ => false,
        };
        let keys = before.iter().chain(self.records.iter()).map(|record| record.key);
        let mut changed: Vec<RecordKey> =
            keys.filter(|key| !is_same(before.get(key), self.records.get(key))).collect();
        let mut reported = self.records.changed().to_vec();
        for keys in [&mut changed, &mut reported] {
            keys.sort_unstable();
            keys.dedup();
        }
        agree(PROMISE, "followers that are woken", &reported, &changed)
    }
}

/// Returns the times at which parts of a record end, or begin to count.
fn ends_of(record: &DedupeRecord) -> Vec<Timestamp> {
    let lease =
        if let steadfast_core::dedupe::Lease::Until(until) = record.lease { Some(until) } else { None };
    let settles = match &record.state {
        DedupeState::Unknown(unknown) => match unknown.settles {
            steadfast_core::dedupe::SettleTime::By(at) => Some(at),
            _ => None,
        },
        _ => None,
    };
    let deliveries = record.delivered.into_iter().flat_map(|at| [at + millis(1_000), at + millis(10_000)]);
    let done = [1_000, 10_000].map(|span| record.updated + millis(span));
    record.expires.into_iter().chain(lease).chain(settles).chain(deliveries).chain(done).collect()
}

fn address_of(record: &DedupeRecord) -> RecordAddress {
    match (record.call_id, record.index) {
        (Some(id), Some(index)) => RecordAddress::CallId { id, index },
        (None, Some(index)) => RecordAddress::Keyless { run: record.key, index },
        (_, None) => RecordAddress::Explicit(record.key),
    }
}

fn an_owner(rng: &mut Rng, call: u64) -> ClaimOwner {
    let pid = u32::try_from(rng.between(0, PROCESSES - 1)).unwrap_or(0);
    ClaimOwner { process: ProcessIdentity { boot: "boot".into(), pid, started: 0 }, call, claim: 1 }
}

fn a_failure(rng: &mut Rng) -> CallFailure {
    let terminal = rng.chance(50);
    CallFailure {
        code: Code::ToolError,
        message: "it failed".into(),
        retriable: !terminal,
        terminal,
        rule: None,
        verify: None,
        retry_after: None,
        output: None,
    }
}

/// Checks that an answer has arrived when its connection brings anything but a cancellation, or stays open for five
/// seconds.
fn deliveries(rng: &mut Rng) -> Result<(), InvariantViolation> {
    let written = Timestamp::from_millis(rng.between(0, 10_000));
    let delivery = Delivery::written(written);
    let open_for = *rng.pick(&[0, 1, 4_999, 5_000, 5_001]);
    let now = written + millis(open_for);
    let signal = *rng.pick(&[
        DeliverySignal::Message,
        DeliverySignal::CancelOfThisCall,
        DeliverySignal::StillOpen,
        DeliverySignal::Closed,
    ]);
    let due = match signal {
        DeliverySignal::Message => Some(true),
        DeliverySignal::CancelOfThisCall | DeliverySignal::Closed => Some(false),
        DeliverySignal::StillOpen => (open_for >= 5_000).then_some(true),
    };
    agree(PROMISE, "arrival", &delivery.has_arrived(signal, now), &due)?;
    agree(PROMISE, "when to look", &delivery.next_check(), &(written + millis(5_000)))
}

/// Checks that a process that knew another marker waits for one lease before it runs anything that must not run twice.
fn markers(rng: &mut Rng) -> Result<(), InvariantViolation> {
    let (mut watch, mut known, mut lost) = (MarkerWatch::default(), None, None);
    let lease = millis(rng.between(1, 1_000));
    let mut now = Timestamp::from_millis(1_000);
    for _ in 0..12 {
        let ends: Vec<Timestamp> = lost.into_iter().map(|at: Timestamp| at + lease).collect();
        now = next_moment(rng, now, &ends);
        let is_closed = lost.is_some_and(|at: Timestamp| at + lease > now);
        agree(PROMISE, "what is safe", &watch.admits(true, now), &true)?;
        agree(PROMISE, "what must not run twice", &watch.admits(false, now), &!is_closed)?;
        let due = if is_closed { RecordAbsence::StoreEmptied } else { RecordAbsence::Removed };
        agree(PROMISE, "a record that is gone", &watch.absence(now), &due)?;
        if rng.chance(50) {
            let found = rng.between(0, 1);
            let due = match known {
                None => MarkerStatus::First,
                Some(known) if known == found => MarkerStatus::Same,
                Some(_) => MarkerStatus::Emptied,
            };
            agree(PROMISE, "the marker", &watch.observe(StoreMarker(found), lease, now), &due)?;
            known = Some(found);
            if due == MarkerStatus::Emptied {
                lost = Some(now);
            }
        }
    }
    Ok(())
}

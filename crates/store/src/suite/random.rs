//! Random histories, compared step by step with the reference: [`Records`] of the core, which is the tables and a
//! map.
//!
//! Every verdict and every record must be the same. Both handles are used. With real time, spans are either zero or
//! longer than the case, so that no verdict depends on a millisecond, and times are not compared.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeState, DeliveryReceipt,
    Lease, LeaseOwnerState, LocalKnowledge, MemoryRecords, RecordAbsence, RecordAddress, RecordWrite,
    ReleaseRequest, Resolution, ResolutionRequest, ResolveVerdict, RunOutcome, SaveRequest, SaveVerdict,
    SettleDelay, SettleStatus, SettleTime, UnknownOutcomeReason, UnknownOutcomeReport,
};
use steadfast_core::id::{Digest, RunId, SessionKey};
use steadfast_core::key::{RecordKey, run_key};
use steadfast_core::policy::{FailureReplayPolicy, RecordLifetimes, UnknownOutcomePolicy};

use super::world::{
    FailurePermanence, LONG, SuiteWorld, call_id, done, explicit, failed, index, lifetimes, output, rules,
    save, tool,
};
use crate::selection::{FlushTarget, RecordFilter, RecordPage};

const STEPS: u64 = 150;

pub(super) async fn random_histories_match_the_reference(world: SuiteWorld) {
    for seed in 0..world.histories() {
        let mut history = RandomHistory::new(&world, seed);
        for step in 0..STEPS {
            history.step = step;
            history.step().await;
        }
        history.end().await;
    }
}

/// The same value from the store and from the reference. They differ in times if time is real.
#[derive(Clone, Debug)]
struct RealAndModel<T> {
    real: T,
    model: T,
}

struct RandomHistory<'w> {
    world: &'w SuiteWorld,
    model: MemoryRecords,
    random: SuiteRandom,
    seed: u64,
    step: u64,
    session: SessionKey,
    /// Claims so far, newest last.
    claims: Vec<Claim>,
    claimed: Vec<RealAndModel<DedupeRecord>>,
    receipts: Vec<RealAndModel<DeliveryReceipt>>,
    followed: Vec<RecordKey>,
    marks: Vec<(RealAndModel<DeliveryReceipt>, Timestamp)>,
    /// Log of the operations, to understand a failure.
    log: Vec<String>,
}

impl<'w> RandomHistory<'w> {
    fn new(world: &'w SuiteWorld, seed: u64) -> Self {
        Self {
            world,
            model: MemoryRecords::default(),
            random: SuiteRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed),
            seed,
            step: 0,
            session: SessionKey::new(format!("history {seed}")).unwrap(),
            claims: Vec::new(),
            claimed: Vec::new(),
            receipts: Vec::new(),
            followed: Vec::new(),
            marks: Vec::new(),
            log: Vec::new(),
        }
    }

    async fn step(&mut self) {
        match self.random.below(20) {
            0..8 => self.claim().await,
            8..11 => self.save().await,
            11 => self.release().await,
            12 => self.start().await,
            13 => self.renew().await,
            14..16 => self.deliver().await,
            16 => self.resolve().await,
            17 => self.flush().await,
            18 => self.end_a_process(),
            _ => self.pass().await,
        }
        self.compare_records().await;
    }

    /// Removes everything, so that any number of histories fit into a store.
    async fn end(self) {
        for record in self.model.iter() {
            self.world.flush(&FlushTarget::Key(record.key)).await.unwrap();
        }
    }

    async fn claim(&mut self) {
        let claim = match self.random.pick(&self.claims) {
            // The response was lost, and the claim is repeated.
            Some(again) if self.random.one_in(6) => again.clone(),
            Some(_) | None => self.fresh_claim(),
        };
        let marks: Vec<_> = self.marks.iter().filter(|_| !self.random.one_in(4)).cloned().collect();
        let (overlapped, verified) = (self.some_runs(), self.some_runs());
        let known = LocalKnowledge {
            delivered: Vec::new(),
            overlapped,
            answered_unsaved: verified.clone(),
            verified,
        };
        let of_store: Vec<_> = marks.iter().map(|(receipt, at)| (receipt.real.clone(), *at)).collect();
        let of_model: Vec<_> = marks.iter().map(|(receipt, at)| (receipt.model.clone(), *at)).collect();
        let of_store = LocalKnowledge { delivered: of_store, ..known.clone() };
        let of_model = LocalKnowledge { delivered: of_model, ..known };
        let (store, now) = (self.world.handle(self.random.next()), self.world.now());
        let verdict = store.claim(&claim, &of_store).await.unwrap();
        let sight = |owner: &ClaimOwner| self.world.sight(owner);
        let expected = self.model.claim(&claim, &of_model, sight, now);
        self.log.push(format!("{claim:?} knowing {of_model:?}: {expected:?}"));
        self.claims.push(claim);
        self.same(&self.timeless_verdict(&verdict), &self.timeless_verdict(&expected));
        match (verdict, expected) {
            (ClaimVerdict::Acquired(real), ClaimVerdict::Acquired(model)) => {
                self.claimed.push(RealAndModel {
                    real: Arc::unwrap_or_clone(real),
                    model: Arc::unwrap_or_clone(model),
                });
            }
            (ClaimVerdict::Follow(key), _) => self.followed.push(key),
            (ClaimVerdict::Replay(real), ClaimVerdict::Replay(model)) => {
                self.receipts.push(RealAndModel { real: real.receipt, model: model.receipt });
            }
            (ClaimVerdict::Unknown(real), ClaimVerdict::Unknown(model)) => {
                self.receipts.push(RealAndModel { real: real.receipt, model: model.receipt });
            }
            _ => {}
        }
    }

    /// Returns some of the recent runs, as a process may know them.
    fn some_runs(&mut self) -> Vec<ClaimOwner> {
        let recent = self.claimed.len().saturating_sub(4);
        let recent = self.claimed[recent..].iter().filter(|_| self.random.one_in(2));
        recent.map(|claimed| claimed.real.owner.clone()).collect()
    }

    /// Returns a span that does not depend on the speed of the machine.
    fn span(&mut self) -> Duration {
        match self.random.below(4) {
            0 => Duration::ZERO,
            1 if self.world.has_manual_clock() => 2 * self.world.moment(),
            _ => LONG,
        }
    }

    /// Few keys, ids and arguments, so that calls collide.
    fn fresh_claim(&mut self) -> Claim {
        let seed = self.seed;
        let mut rules = rules();
        rules.undelivered = self.span();
        rules.after_telling = self.span();
        rules.linger = self.span();
        rules.settle = self.span();
        rules.keep = RecordLifetimes { lease: self.span(), ..lifetimes() };
        if self.world.has_manual_clock() {
            // An open record must not end before it is checked.
            rules.keep.done = self.span().max(self.world.moment());
            rules.keep.open = self.span().max(self.world.moment());
        }
        let (age, end_observed_within) = (self.span(), self.span());
        let random = &mut self.random;
        let arguments = format!("history {seed} arguments {}", random.below(2));
        let mut owner = self.world.owner();
        if random.one_in(4) {
            owner.process = self.world.spawn();
        }
        let run = RunId(format!("run {} of {seed}", owner.call).into());
        let index = index(&arguments);
        let address = match random.below(3) {
            0 => explicit(&format!("history {seed} key {}", random.below(2))),
            1 => RecordAddress::CallId {
                id: call_id(&format!("history {seed} id {}", random.below(3))),
                index,
            },
            _ => RecordAddress::Keyless { run: run_key(index, &run), index },
        };
        let role = match random.pick(&self.followed) {
            Some(followed) if random.one_in(3) => ClaimRole::Waiter { followed: *followed },
            Some(_) | None => ClaimRole::Fresh,
        };
        rules.cache_failures = *random
            .pick(&[FailureReplayPolicy::None, FailureReplayPolicy::Terminal, FailureReplayPolicy::All])
            .unwrap();
        rules.after_unknown =
            if random.one_in(4) { UnknownOutcomePolicy::Hold } else { UnknownOutcomePolicy::TellOnce };
        rules.double_dispatch = !random.one_in(4);
        let intent = match random.below(5) {
            0 => ClaimIntent::Look,
            1 => ClaimIntent::Take { started: false },
            _ => ClaimIntent::Take { started: true },
        };
        Claim {
            address,
            role,
            rules,
            intent,
            run,
            digest: Digest::of(arguments.as_bytes()),
            retry_safe: random.one_in(2),
            best_effort: random.one_in(5),
            arrived: Timestamp::from_millis(1_000_000),
            age,
            end_observed_within: random.one_in(2).then_some(end_observed_within),
            tool: if random.one_in(8) { tool("refund") } else { tool("pay") },
            session: Some(self.session.clone()),
            owner,
            ..self.world.explicit("")
        }
    }

    /// Returns one of the claimed records, mostly a recent one, and sometimes with a foreign token.
    fn some_claimed(&mut self) -> Option<RealAndModel<DedupeRecord>> {
        let recent = self.claimed.len().saturating_sub(4);
        let some = if self.random.one_in(4) { &self.claimed[..] } else { &self.claimed[recent..] };
        let mut claimed = self.random.pick(some)?.clone();
        if self.random.one_in(6) {
            let stranger = self.world.owner();
            claimed.real.owner = stranger.clone();
            claimed.model.owner = stranger;
        }
        if self.random.one_in(10)
            && let Some(elsewhere) = self.random.pick(&self.claims)
        {
            // An owner that lost the response to its claim has another key.
            claimed.real.key = elsewhere.address.own();
            claimed.model.key = elsewhere.address.own();
        }
        Some(claimed)
    }

    async fn save(&mut self) {
        let Some(claimed) = self.some_claimed() else { return };
        if self.is_left_in_the_index(&claimed.model) {
            return;
        }
        let ending = match self.random.below(5) {
            0..2 => self.unknown(),
            2 => failed(if self.random.one_in(2) {
                FailurePermanence::ForGood
            } else {
                FailurePermanence::ForNow
            }),
            3 => RunOutcome::Done(None),
            _ => done("paid"),
        };
        let hold = self.random.one_in(4);
        let delivered = self.random.one_in(8).then_some(Timestamp::from_millis(1_000_000));
        let of = |record: &DedupeRecord| SaveRequest { hold, delivered, ..save(record, ending.clone()) };
        let (store, now) = (self.world.handle(self.random.next()), self.world.now());
        let verdict = store.save(&of(&claimed.real)).await.unwrap();
        let expected = self.model.save(&of(&claimed.model), now);
        self.log.push(format!("save {ending:?} as {:?}: {expected:?}", claimed.real.owner));
        match (verdict, expected) {
            (SaveVerdict::Saved(real), SaveVerdict::Saved(model)) => {
                self.same(&self.timeless_receipt(&real), &self.timeless_receipt(&model));
                self.receipts.push(RealAndModel { real, model });
            }
            (verdict, expected) => self.same(&verdict, &expected),
        }
    }

    /// Returns true if the record is gone, and its index entry points to the record of another call: a call id that
    /// was reused with other arguments. Some stores remove such an entry and some do not, so that a save finds it
    /// free or taken.
    fn is_left_in_the_index(&self, record: &DedupeRecord) -> bool {
        let other = self.model.indexed(record.index).filter(|other| other.index != record.index);
        other.is_some() && self.model.get(&record.key).is_none()
    }

    fn unknown(&mut self) -> RunOutcome {
        let settles = match self.random.below(3) {
            0 => SettleDelay::WhenOwnerReports,
            1 => SettleDelay::After(self.span()),
            _ => SettleDelay::Settled,
        };
        let observed = *self
            .random
            .pick(&[UnknownOutcomeReason::NoAnswer, UnknownOutcomeReason::ConnectionLost])
            .unwrap();
        let output = self.random.one_in(2).then(|| output("what it said"));
        let words = self.random.one_in(2).then(|| "how it was said".into());
        RunOutcome::Unknown(UnknownOutcomeReport { settles, observed, details: words, output })
    }

    async fn release(&mut self) {
        let Some(claimed) = self.some_claimed() else { return };
        let index = if self.random.one_in(4) { None } else { claimed.real.index };
        let release = ReleaseRequest { key: claimed.real.key, index, owner: claimed.real.owner };
        self.log.push(format!("{release:?}"));
        self.world.handle(self.random.next()).release(&release).await.unwrap();
        self.model.release(&release);
    }

    async fn start(&mut self) {
        let Some(claimed) = self.some_claimed() else { return };
        let (store, now) = (self.world.handle(self.random.next()), self.world.now());
        let verdict = store.start(claimed.real.key, &claimed.real.owner).await.unwrap();
        let expected = self.model.start(&claimed.model.key, &claimed.model.owner, now);
        self.log.push(format!("start as {:?}: {expected:?}", claimed.real.owner));
        self.same(&verdict, &expected);
    }

    async fn renew(&mut self) {
        let Some(claimed) = self.some_claimed() else { return };
        let (store, now) = (self.world.handle(self.random.next()), self.world.now());
        let verdict = store.renew(&claimed.real, &lifetimes()).await.unwrap();
        let expected = self.model.renew(&claimed.model, &lifetimes(), RecordAbsence::Removed, now);
        self.log.push(format!("renew as {:?}: {expected:?}", claimed.real.owner));
        self.same(&verdict, &expected);
    }

    async fn deliver(&mut self) {
        // Mostly a recent result.
        let recent = if self.random.one_in(3) { 0 } else { self.receipts.len().saturating_sub(2) };
        let Some(receipt) = self.random.pick(&self.receipts[recent..]).cloned() else { return };
        let at = self.world.now();
        // With real time, a span of zero ended long ago, and a long one is far from its end.
        let at = if self.world.has_manual_clock() { at } else { at + LONG / 2 };
        self.log.push(format!("delivered {:?}", receipt.model));
        if self.random.one_in(3) {
            // The process knows of the delivery, and the store gets it later, or never.
            self.marks.push((receipt, at));
            return;
        }
        self.world.handle(self.random.next()).delivered(&receipt.real, at).await.unwrap();
        self.model.mark_delivered(&receipt.model, at);
    }

    async fn resolve(&mut self) {
        let Some(RealAndModel { real, .. }) = self.random.pick(&self.receipts).cloned() else { return };
        let resolution = if self.random.one_in(2) { Resolution::Ran } else { Resolution::DidNotRun };
        let (store, now) = (self.world.handle(self.random.next()), self.world.now());
        let verdict =
            store.resolve(&ResolutionRequest::by_operator(real.key, resolution), &rules()).await.unwrap();
        let expected = self.model.resolve(
            &ResolutionRequest::by_operator(real.key, resolution),
            &rules(),
            |owner| self.world.sight(owner),
            now,
        );
        self.log.push(format!("{resolution:?} {:?}: {expected:?}", real.key));
        self.same(&self.timeless_resolution(verdict), &self.timeless_resolution(expected));
    }

    async fn flush(&mut self) {
        let Some(claim) = self.random.pick(&self.claims) else { return };
        let key = claim.address.own();
        if !self.random.one_in(4) {
            return;
        }
        self.log.push(format!("flush {key:?}"));
        let flushed = self.world.handle(self.random.next()).flush(&FlushTarget::Key(key)).await.unwrap();
        let found = self.model.get(&key).map(|record| record.index);
        self.same(&flushed, &u64::from(found.is_some()));
        if let Some(index) = found {
            self.model.apply(RecordWrite::Remove { key, index });
        }
    }

    fn end_a_process(&mut self) {
        let Some(claim) = self.random.pick(&self.claims) else { return };
        let process = claim.owner.process.clone();
        // The process of most owners stays alive.
        if self.world.ends_with_process() && process != self.world.owner().process {
            let owner = claim.owner.clone();
            if self.world.sight(&owner) == LeaseOwnerState::Alive {
                self.log.push(format!("the end of {process:?}"));
                self.world.kill(&process);
            }
        }
    }

    /// Advances the time, if it is manual, and sweeps now and then.
    async fn pass(&mut self) {
        if !self.world.has_manual_clock() {
            return;
        }
        self.world.pass(1).await;
        self.log.push("a moment passes".into());
        while self.world.sweep().await.unwrap().more {}
        self.model.sweep(self.world.now());
    }

    async fn compare_records(&mut self) {
        // Reading everything after every step is slow on a server.
        if !self.world.has_manual_clock() && !self.step.is_multiple_of(10) {
            return;
        }
        let selection = RecordFilter { session: Some(self.session.clone()), ..RecordFilter::default() };
        let store = self.world.handle(self.random.next());
        let page = RecordPage { after: None, limit: 10_000 };
        let records = store.records(&selection, page).await.unwrap();
        let records: Vec<_> = records.iter().map(|record| self.timeless(record)).collect();
        let expected: Vec<_> = self.model.iter().map(|record| self.timeless(record)).collect();
        self.same(&records, &expected);
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, found: &T, expected: &T) {
        if found != expected {
            let log = self.log.join("\n");
            panic!(
                "{log}\n\nhistory {}, step {}: the store says\n{found:#?}\nthe reference says\n{expected:#?}",
                self.seed, self.step
            );
        }
    }

    fn timeless_resolution(&self, verdict: ResolveVerdict) -> ResolveVerdict {
        match verdict {
            ResolveVerdict::NotSettled(left) if !self.world.has_manual_clock() => {
                ResolveVerdict::NotSettled(left.map(|_| Duration::ZERO))
            }
            ResolveVerdict::NotSettled(_) | ResolveVerdict::Resolved | ResolveVerdict::NotUnknown => verdict,
        }
    }

    fn timeless_verdict(&self, verdict: &ClaimVerdict) -> ClaimVerdict {
        match verdict {
            ClaimVerdict::Acquired(record) => ClaimVerdict::Acquired(Arc::new(self.timeless(record))),
            ClaimVerdict::Replay(replay) if !self.world.has_manual_clock() => {
                let mut replay = replay.clone();
                replay.age = Duration::ZERO;
                replay.receipt = self.timeless_receipt(&replay.receipt);
                ClaimVerdict::Replay(replay)
            }
            ClaimVerdict::Unknown(status) if !self.world.has_manual_clock() => {
                let mut status = status.clone();
                status.end = match status.end {
                    SettleStatus::Settled => SettleStatus::Settled,
                    SettleStatus::NotYet(left) => SettleStatus::NotYet(left.map(|_| Duration::ZERO)),
                };
                status.runs_in = status.runs_in.map(|_| Duration::ZERO);
                status.receipt = self.timeless_receipt(&status.receipt);
                ClaimVerdict::Unknown(status)
            }
            ClaimVerdict::Replay(_)
            | ClaimVerdict::Unknown(_)
            | ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost => verdict.clone(),
        }
    }

    /// Returns a record without the parts that depend on the millisecond.
    fn timeless(&self, record: &DedupeRecord) -> DedupeRecord {
        if self.world.has_manual_clock() {
            return record.clone();
        }
        DedupeRecord {
            lease: match record.lease {
                Lease::Record => Lease::Record,
                Lease::Until(_) => Lease::Until(Timestamp::ZERO),
            },
            end_observed_by: record.end_observed_by.map(|_| Timestamp::ZERO),
            state: timeless_state(&record.state),
            created: Timestamp::ZERO,
            updated: Timestamp::ZERO,
            expires: record.expires.map(|_| Timestamp::ZERO),
            version: self.timeless_version(record.version),
            ..record.clone()
        }
    }

    fn timeless_receipt(&self, receipt: &DeliveryReceipt) -> DeliveryReceipt {
        DeliveryReceipt { version: self.timeless_version(receipt.version), ..receipt.clone() }
    }

    /// A record that was lost starts again with a version made from the time.
    fn timeless_version(&self, version: u64) -> u64 {
        if self.world.has_manual_clock() { version } else { version.min(1_000_000) }
    }
}

fn timeless_state(state: &DedupeState) -> DedupeState {
    let mut state = state.clone();
    if let DedupeState::Unknown(unknown) = &mut state
        && let SettleTime::By(at) = &mut unknown.settles
    {
        *at = Timestamp::ZERO;
    }
    state
}

/// A random number generator that depends only on its seed (splitmix64).
struct SuiteRandom(u64);

impl SuiteRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let length = u64::try_from(of.len()).ok().filter(|length| *length > 0)?;
        of.get(usize::try_from(self.below(length)).ok()?)
    }
}

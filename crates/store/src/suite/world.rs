//! The vocabulary of the cases: calls, handles, and time.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    CallFailure, Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules,
    DeliveryReceipt, LeaseOwnerState, LocalKnowledge, ProcessIdentity, RecordAddress, ReleaseRequest,
    ReplayReason, RunOutcome, SaveRequest, SaveVerdict, SettleDelay, SettleStatus, UnknownOutcomeReason,
    UnknownOutcomeReport, UnknownOutcomeStatus,
};
use steadfast_core::id::{
    ActorId, Digest, Namespace, RequestId, RunId, SessionKey, TenantId, ToolName, ToolRef,
};
use steadfast_core::key::{KeyInputs, RecordKey, call_id_key, computed_key, explicit_key, run_key};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    DedupePolicy, FailureReplayPolicy, RecordLifetimes, ToolClass, UnknownOutcomePolicy,
};
use steadfast_json::RawJson;

use super::{LeaseModel, StoreFixture, TimeModel};
use crate::StateStore;

/// Longer than any case takes.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// Time limit for an event that must come. Only a store that never causes it reaches this limit, even on a slow
/// machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A store and its users.
pub(super) struct SuiteWorld {
    fixture: StoreFixture,
    /// The process of most callers.
    process: ProcessIdentity,
    dead: Mutex<BTreeSet<ProcessIdentity>>,
    calls: AtomicU64,
    spawned: AtomicU32,
}

/// The columns of the claim table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuiteColumn {
    Explicit,
    CallId,
    Equal,
    Waiter,
}

pub(super) const COLUMNS: [SuiteColumn; 4] =
    [SuiteColumn::Explicit, SuiteColumn::CallId, SuiteColumn::Equal, SuiteColumn::Waiter];

impl From<StoreFixture> for SuiteWorld {
    fn from(fixture: StoreFixture) -> Self {
        let process = match &fixture.leases {
            LeaseModel::Process(processes) => processes.spawn(),
            LeaseModel::Time => ProcessIdentity { boot: "somewhere".into(), pid: 1, started: 1 },
        };
        Self {
            fixture,
            process,
            dead: Mutex::default(),
            calls: AtomicU64::new(1),
            spawned: AtomicU32::new(2),
        }
    }
}

impl Deref for SuiteWorld {
    type Target = dyn StateStore;

    fn deref(&self) -> &Self::Target {
        &*self.fixture.store
    }
}

impl SuiteWorld {
    /// Returns the first handle.
    pub(super) fn first(&self) -> Arc<dyn StateStore> {
        Arc::clone(&self.fixture.store)
    }

    /// Returns the handle of the other process.
    pub(super) fn second(&self) -> Arc<dyn StateStore> {
        Arc::clone(self.fixture.second.as_ref().unwrap_or(&self.fixture.store))
    }

    /// Returns true if the second handle is another process.
    pub(super) fn is_shared(&self) -> bool {
        self.fixture.second.is_some()
    }

    /// Returns one of the two handles.
    pub(super) fn handle(&self, number: u64) -> Arc<dyn StateStore> {
        if number.is_multiple_of(2) { self.first() } else { self.second() }
    }

    pub(super) fn most(&self) -> Option<usize> {
        self.fixture.most
    }

    pub(super) fn histories(&self) -> u64 {
        self.fixture.histories
    }

    /// Returns true if a lease ends with the process of its owner.
    pub(super) fn ends_with_process(&self) -> bool {
        match self.fixture.leases {
            LeaseModel::Process(_) => true,
            LeaseModel::Time => false,
        }
    }

    /// Returns true if time is manual.
    pub(super) fn has_manual_clock(&self) -> bool {
        match self.fixture.time {
            TimeModel::Manual(_) => true,
            TimeModel::Real { .. } => false,
        }
    }

    /// Returns the unit of time.
    pub(super) fn moment(&self) -> Duration {
        match self.fixture.time {
            TimeModel::Manual(_) => Duration::from_secs(1),
            TimeModel::Real { moment } => moment,
        }
    }

    /// Lets at least this many moments pass. With real time it may be any number more: a case may rely on an expired
    /// time, and never on one that has not expired.
    pub(super) async fn pass(&self, moments: u32) {
        match &self.fixture.time {
            TimeModel::Manual(clock) => clock.advance(self.moment() * moments),
            TimeModel::Real { moment } => tokio::time::sleep(*moment * moments).await,
        }
    }

    /// Returns the state of an owner that the store must see.
    pub(super) fn sight(&self, owner: &ClaimOwner) -> LeaseOwnerState {
        match self.fixture.leases {
            LeaseModel::Process(_) if self.dead.lock().contains(&owner.process) => LeaseOwnerState::Gone,
            LeaseModel::Process(_) => LeaseOwnerState::Alive,
            LeaseModel::Time => LeaseOwnerState::Time,
        }
    }

    /// Starts a process without other callers.
    pub(super) fn spawn(&self) -> ProcessIdentity {
        match &self.fixture.leases {
            LeaseModel::Process(processes) => processes.spawn(),
            LeaseModel::Time => {
                let pid = self.spawned.fetch_add(1, Ordering::SeqCst);
                ProcessIdentity { boot: "elsewhere".into(), pid, started: 1 }
            }
        }
    }

    /// Kills a process.
    pub(super) fn kill(&self, process: &ProcessIdentity) {
        match &self.fixture.leases {
            LeaseModel::Process(processes) => {
                processes.kill(process);
                self.dead.lock().insert(process.clone());
            }
            LeaseModel::Time => {}
        }
    }

    /// Returns a new token.
    pub(super) fn owner(&self) -> ClaimOwner {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        ClaimOwner { process: self.process.clone(), call, claim: 1 }
    }

    /// Returns a claim for a new call.
    pub(super) fn claim(&self, address: RecordAddress, arguments: &str) -> Claim {
        let owner = self.owner();
        let run = RunId(format!("run-{}", owner.call).into());
        Claim {
            address,
            intent: ClaimIntent::Take { started: true },
            role: ClaimRole::Fresh,
            digest: Digest::of(arguments.as_bytes()),
            retry_safe: false,
            best_effort: false,
            arrived: self.now(),
            age: Duration::ZERO,
            end_observed_within: None,
            run,
            rules: rules(),
            tool: tool("pay"),
            request: RequestId::new(format!("request-{}", owner.call)).unwrap(),
            tool_call: None,
            context: None,
            session: Some(session()),
            actor: Some(ActorId::new("somebody").unwrap()),
            tenant: Some(TenantId::new("tenant").unwrap()),
            owner,
        }
    }

    /// Returns a claim with an explicit key.
    pub(super) fn explicit(&self, key: &str) -> Claim {
        self.claim(explicit(key), "arguments")
    }

    /// Returns a claim with a call id.
    pub(super) fn call_id(&self, id: &str, arguments: &str) -> Claim {
        self.claim(RecordAddress::CallId { id: call_id(id), index: index(arguments) }, arguments)
    }

    /// Returns a claim that is identified by its arguments only.
    pub(super) fn keyless(&self, arguments: &str) -> Claim {
        let claim = self.explicit("");
        let index = index(arguments);
        let address = RecordAddress::Keyless { run: run_key(index, &claim.run), index };
        Claim { address, digest: Digest::of(arguments.as_bytes()), ..claim }
    }

    /// Returns the first call of a column. The name separates the cases that share a store.
    pub(super) fn leader(&self, column: SuiteColumn, name: &str) -> Claim {
        let name = format!("{name} {column:?}");
        match column {
            SuiteColumn::Explicit => self.claim(explicit(&name), &name),
            SuiteColumn::CallId => self.call_id(&name, &name),
            SuiteColumn::Equal | SuiteColumn::Waiter => self.keyless(&name),
        }
    }

    /// Returns the call that follows the leader in this column.
    pub(super) fn duplicate(&self, column: SuiteColumn, name: &str, of: &DedupeRecord) -> Claim {
        let role = match column {
            SuiteColumn::Explicit | SuiteColumn::CallId | SuiteColumn::Equal => ClaimRole::Fresh,
            SuiteColumn::Waiter => ClaimRole::Waiter { followed: of.key },
        };
        Claim { role, ..self.leader(column, name) }
    }

    /// Claims through the first handle.
    pub(super) async fn ask(&self, claim: &Claim) -> ClaimVerdict {
        self.fixture.store.claim(claim, &LocalKnowledge::default()).await.unwrap()
    }

    /// Claims through the second handle, and returns the verdict as a word.
    pub(super) async fn verdict(&self, claim: &Claim) -> &'static str {
        self.verdict_with(&LocalKnowledge::default(), claim).await
    }

    /// Does the same for a process with this additional knowledge.
    pub(super) async fn verdict_with(&self, known: &LocalKnowledge, claim: &Claim) -> &'static str {
        word(&self.second().claim(claim, known).await.unwrap())
    }

    /// Claims a call whose outcome must be unknown.
    pub(super) async fn unknown_status(&self, claim: &Claim) -> UnknownOutcomeStatus {
        let verdict = self.ask(claim).await;
        let word = word(&verdict);
        let ClaimVerdict::Unknown(status) = verdict else {
            panic!("expected an unknown outcome, got {word}")
        };
        *status
    }

    /// Returns true if this can be the rest of a span that began with the last write: all of it with manual time,
    /// some of it with real time.
    pub(super) fn is_left(&self, left: Option<Duration>, of: Duration) -> bool {
        if self.has_manual_clock() { left == Some(of) } else { left.is_some_and(|left| left <= of) }
    }

    /// Claims a key that must be free.
    pub(super) async fn take(&self, claim: &Claim) -> DedupeRecord {
        acquired(self.ask(claim).await)
    }

    /// Claims a key that must be free, and lets the lease end.
    pub(super) async fn take_and_lapse(&self, claim: Claim) -> DedupeRecord {
        let mut claim = claim;
        if self.ends_with_process() {
            claim.owner.process = self.spawn();
        } else {
            claim.rules.keep.lease = Duration::ZERO;
        }
        let record = self.take(&claim).await;
        self.kill(&claim.owner.process);
        record
    }

    /// Claims a key that must be free, and saves a result.
    pub(super) async fn run(&self, claim: &Claim, ending: RunOutcome) -> (DedupeRecord, DeliveryReceipt) {
        let record = self.take(claim).await;
        let receipt = saved(self.save(&save(&record, ending)).await.unwrap());
        (self.found(record.key).await, receipt)
    }

    /// Returns a record that must exist.
    pub(super) async fn found(&self, key: RecordKey) -> DedupeRecord {
        self.second().record(key).await.unwrap().expect("there is a record")
    }

    /// Returns true if there is no record.
    pub(super) async fn is_absent(&self, key: RecordKey) -> bool {
        self.second().record(key).await.unwrap().is_none()
    }
}

/// Waits for an event that must come.
pub(super) async fn within<F: Future>(event: &str, future: F) -> F::Output {
    let outcome = tokio::time::timeout(TEST_TIMEOUT, future).await;
    outcome.unwrap_or_else(|_| panic!("{event}: nothing came within {TEST_TIMEOUT:?}"))
}

/// Returns a verdict as a word, as the table has it.
pub(super) fn word(verdict: &ClaimVerdict) -> &'static str {
    match verdict {
        ClaimVerdict::Acquired(_) => "mine",
        ClaimVerdict::Follow(_) => "follow",
        ClaimVerdict::Busy => "busy",
        ClaimVerdict::Replay(replay) => match replay.reason {
            ReplayReason::SameKey => "replay",
            ReplayReason::Undelivered => "replay undelivered",
            ReplayReason::DoubleDispatch => "replay double dispatch",
            ReplayReason::Waited => "answer",
        },
        ClaimVerdict::Unknown(status) => match status.end {
            SettleStatus::Settled => "tell final",
            SettleStatus::NotYet(_) => "tell not yet",
        },
        ClaimVerdict::Conflict => "conflict",
        ClaimVerdict::Nothing => "nothing",
        ClaimVerdict::Full => "full",
        ClaimVerdict::StoreRecovering => "closed",
        ClaimVerdict::RecordsLost => "records lost",
    }
}

pub(super) fn acquired(verdict: ClaimVerdict) -> DedupeRecord {
    let word = word(&verdict);
    let ClaimVerdict::Acquired(record) = verdict else { panic!("expected mine, got {word}") };
    Arc::unwrap_or_clone(record)
}

pub(super) fn saved(verdict: SaveVerdict) -> DeliveryReceipt {
    match verdict {
        SaveVerdict::Saved(receipt) => receipt,
        SaveVerdict::FenceLost => panic!("the fence is lost"),
    }
}

pub(super) fn save(claimed: &DedupeRecord, ending: RunOutcome) -> SaveRequest {
    SaveRequest {
        claimed: Arc::new(claimed.clone()),
        ending,
        attempts: Vec::new(),
        delivered: None,
        hold: false,
        keep: lifetimes(),
    }
}

pub(super) fn release(record: &DedupeRecord) -> ReleaseRequest {
    ReleaseRequest { key: record.key, index: record.index, owner: record.owner.clone() }
}

pub(super) fn done(text: &str) -> RunOutcome {
    RunOutcome::Done(Some(output(text)))
}

/// An unknown outcome with a partial output.
pub(super) fn unknown(settles: SettleDelay) -> RunOutcome {
    let output = Some(output("what it said"));
    let words = Some("how it was said".into());
    RunOutcome::Unknown(UnknownOutcomeReport {
        settles,
        observed: UnknownOutcomeReason::ErrorAnswer,
        details: words,
        output,
    })
}

/// An unknown outcome of an attempt that has ended.
pub(super) fn final_unknown() -> RunOutcome {
    unknown(SettleDelay::Settled)
}

pub(super) fn output(text: &str) -> ToolOutput {
    ToolOutput { content: RawJson::string(text), metadata: Some(RawJson::from_trusted(r#"{"a":[1,2]}"#)) }
}

pub(super) fn failed(kind: FailurePermanence) -> RunOutcome {
    RunOutcome::Failed(failure(kind))
}

/// The permanence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailurePermanence {
    ForGood,
    ForNow,
}

pub(super) fn failure(kind: FailurePermanence) -> CallFailure {
    CallFailure {
        code: Code::ToolError,
        message: "no".into(),
        retriable: kind == FailurePermanence::ForNow,
        terminal: kind == FailurePermanence::ForGood,
        rule: Some("a rule".into()),
        verify: Some("look".into()),
        retry_after: Some(Duration::from_millis(1500)),
        output: Some(output("what it said")),
    }
}

pub(super) fn lifetimes() -> RecordLifetimes {
    RecordLifetimes { done: LONG, failed: LONG, open: LONG, lease: LONG }
}

pub(super) fn rules() -> DedupeRules {
    DedupeRules {
        cache_failures: FailureReplayPolicy::Terminal,
        after_unknown: UnknownOutcomePolicy::TellOnce,
        double_dispatch: false,
        undelivered: LONG,
        after_telling: LONG,
        linger: LONG,
        settle: Duration::ZERO,
        keep: lifetimes(),
        computed_since: None,
    }
}

pub(super) fn tool(name: &str) -> ToolRef {
    ToolRef { namespace: Namespace::new("suite").unwrap(), tool: ToolName::new(name).unwrap() }
}

pub(super) fn session() -> SessionKey {
    SessionKey::new("conversation").unwrap()
}

pub(super) fn explicit(key: &str) -> RecordAddress {
    RecordAddress::Explicit(scoped(|scope| explicit_key(scope, key)))
}

pub(super) fn call_id(id: &str) -> RecordKey {
    scoped(|scope| call_id_key(scope, id, Digest::of(b"the arguments")))
}

/// Returns the computed key of these arguments.
pub(super) fn index(arguments: &str) -> RecordKey {
    let digest = Digest::of(arguments.as_bytes());
    scoped(|scope| computed_key(scope, digest, ToolClass::Mutating, &DedupePolicy::default()))
}

fn scoped(key: impl Fn(&KeyInputs<'_>) -> RecordKey) -> RecordKey {
    let (tool, session) = (tool("pay"), session());
    key(&KeyInputs {
        tool: &tool,
        tenant: None,
        workspace: None,
        session: Some(&session),
        actor: None,
        continuation: None,
    })
}

/// Returns a time that is neither now nor zero.
pub(super) fn long_after(now: Timestamp) -> Timestamp {
    now + LONG
}

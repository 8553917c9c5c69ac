//! Tests of the call state machine: one test for each guarantee.
//!
//! | file | subject |
//! | --- | --- |
//! | `table` | every state with every event |
//! | `intake` | from an envelope to a request, from a result to an envelope |
//! | `path` | refusals, duplicates, retries, time |
//! | `late` | starts, timers and callers that are too late |
//! | `store` | store failures, the fencing token, deferred writes |
//! | `cancel` | cancel, disconnect, timeout, attempts that can never answer |
//! | `settle` | unknown outcomes, from the cut to the end |
//! | `host` | hosts that run the tool themselves |
//! | `approval` | approvals |
//! | `input` | tools that ask for input first |
//! | `modes` | off and shadow |
//! | `answered` | calls that the host answered itself |
//! | `answers` | content of responses |
//! | `counts` | counting by guard, trust, breakers and notices |
//! | `requirements` | requirements that the core alone can show |

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it wants and fails at anything else")]

mod answered;
mod answers;
mod approval;
mod cancel;
mod counts;
mod host;
mod input;
mod intake;
mod late;
mod modes;
mod path;
mod probe;
mod requirements;
mod settle;
mod store;
mod table;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};

use steadfast_json::RawJson;

use super::claim::CLAIM_REPEATS;
use super::*;
use crate::Timestamp;
use crate::approval::{
    ApprovalChannel, ApprovalDecision, ApprovalLedger, ApprovalSubject, GrantId, Grantor, SpendVerdict,
};
use crate::breaker::{self, CircuitBreaker};
use crate::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use crate::code::Code;
use crate::dedupe::{
    CallFailure, Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeState,
    FoundRecords, IndexUpdate, LeaseOwnerState, LocalKnowledge, MemoryRecords, ProcessIdentity,
    RecordAbsence, RecordAddress, RecordWrite, ReleaseRequest, RenewVerdict, RunOutcome, SaveVerdict,
    SettleStatus, StartVerdict, UnknownOutcome, UnknownOutcomeReason, UnknownOutcomeStatus, decide_claim,
};
use crate::envelope::{CallEnvelope, ResultEnvelope, UnknownFieldPolicy};
use crate::guard::{GuardedCall, LoopGuard};
use crate::id::{ActorId, Digest, RunId, SessionKey, TurnId};
use crate::key::RecordKey;
use crate::limit::Limiter;
use crate::output::ToolOutput;
use crate::policy::{
    ApprovalTrigger, ArgumentCheck, CallPolicy, EnforcementMode, PolicyProfile, Ratio, StoreFailurePolicy,
    ToolClass,
};
use crate::retry::RetryBudget;
use crate::trust::{Escalation, TrustLedger, TrustRules, TrustSubject};

const START: Timestamp = Timestamp::from_millis(1_762_300_800_000);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A store of plain tables.
#[derive(Debug)]
struct CallTestStore {
    records: MemoryRecords,
    /// Liveness of the owners of records.
    sight: LeaseOwnerState,
    /// Facts that the process knows beside the records.
    known: LocalKnowledge,
    /// Failures of the next operations; `None` is a success. An unanswered operation takes effect all the same.
    faults: VecDeque<Option<StoreFault>>,
    writes: u32,
}

impl CallTestStore {
    fn claim(&mut self, claim: &Claim, now: Timestamp) -> ClaimVerdict {
        let sight = self.sight;
        let verdict = self.records.claim(claim, &self.known, |_| sight, now);
        self.count_writes();
        verdict
    }

    fn renew(&mut self, call: &Call, now: Timestamp) -> RenewVerdict {
        let claimed = call.record().expect("only a call with a record renews");
        let verdict = self.records.renew(claimed, &call.policy().dedupe.keep, RecordAbsence::Removed, now);
        self.count_writes();
        verdict
    }

    fn save(&mut self, save: &crate::dedupe::SaveRequest, now: Timestamp) -> SaveVerdict {
        let verdict = self.records.save(save, now);
        self.count_writes();
        verdict
    }

    fn release(&mut self, release: &ReleaseRequest) {
        self.records.release(release);
        self.count_writes();
    }

    fn count_writes(&mut self) {
        self.writes += u32::from(!self.records.changed().is_empty());
    }

    /// Returns the state of the only record.
    fn state(&self) -> &'static str {
        assert!(self.records.len() <= 1, "one record expected: {:?}", self.records);
        match self.records.iter().next().map(|record| &record.state) {
            None => "none",
            Some(DedupeState::Inflight) => "inflight",
            Some(DedupeState::Done(_)) => "done",
            Some(DedupeState::Failed(_)) => "failed",
            Some(DedupeState::Unknown(_)) => "unknown",
            Some(DedupeState::Cancelled) => "cancelled",
        }
    }

    /// Gives the record to another owner.
    fn steal(&mut self) {
        let stolen: Vec<DedupeRecord> = self.records.iter().cloned().collect();
        for mut record in stolen {
            record.owner.call = 99;
            self.records.apply(RecordWrite::Put {
                record: Arc::new(record),
                index: IndexUpdate::Keep,
                remove: Vec::new(),
            });
        }
    }
}

/// The environment of the calls of a test: the time, the store, the shared state machines.
struct CallTestWorld {
    now: Timestamp,
    store: CallTestStore,
    breaker: CircuitBreaker,
    dependency: Option<CircuitBreaker>,
    budget: RetryBudget,
    limiter: Limiter,
    dependency_limiter: Limiter,
    guard: LoopGuard,
    trust: TrustLedger,
    approvals: ApprovalLedger,
    notices: Vec<CallNotice>,
    /// Names of the steps that were returned.
    steps: Vec<&'static str>,
    /// Total number of attempts.
    runs: u32,
    calls: u64,
}

impl CallTestWorld {
    fn new() -> Self {
        Self {
            now: START,
            store: CallTestStore {
                records: MemoryRecords::default(),
                sight: LeaseOwnerState::Alive,
                known: LocalKnowledge::default(),
                faults: VecDeque::new(),
                writes: 0,
            },
            breaker: CircuitBreaker::default(),
            dependency: None,
            budget: RetryBudget::default(),
            limiter: Limiter::default(),
            dependency_limiter: Limiter::default(),
            guard: LoopGuard::default(),
            trust: TrustLedger::default(),
            approvals: ApprovalLedger::default(),
            notices: Vec::new(),
            steps: Vec::new(),
            runs: 0,
            calls: 0,
        }
    }

    fn shared<R>(
        &mut self,
        act: impl FnOnce(&mut CallMechanisms<'_>, Timestamp, &mut Vec<CallNotice>) -> R,
    ) -> R {
        let mut shared = CallMechanisms {
            breaker: &mut self.breaker,
            dependency: self.dependency.as_mut(),
            budget: &mut self.budget,
            limiter: &mut self.limiter,
            dependency_limiter: &mut self.dependency_limiter,
            guard: &mut self.guard,
            trust: &mut self.trust,
            approvals: &self.approvals,
        };
        act(&mut shared, self.now, &mut self.notices)
    }

    /// Starts a call and returns its first step, without a store.
    fn begin_only(&mut self, mut request: CallRequest, policy: &CallPolicy) -> (Call, NextStep) {
        self.calls += 1;
        request.number = self.calls;
        request.run = RunId(format!("run-{}", self.calls).into());
        if let Deduplication::Joined(RecordAddress::Keyless { run, .. }) = &mut request.duplicates {
            *run = RecordKey(Digest::of(request.run.0.as_bytes()));
        }
        let policy = Arc::new(policy.clone());
        let (call, step) =
            self.shared(|shared, now, notices| Call::begin(shared, request, policy, 7, now, notices));
        self.steps.push(name_of(&step));
        (call, step)
    }

    /// Sends an event and returns the next step, without a store.
    fn on_only(&mut self, call: &mut Call, event: CallEvent) -> Result<NextStep, CallMisuse> {
        let step = self.shared(|shared, now, notices| call.handle_event(shared, now, event, notices))?;
        self.steps.push(name_of(&step));
        Ok(step)
    }

    /// Starts a call and returns its first step that is not for the store.
    fn begin(&mut self, request: CallRequest, policy: &CallPolicy) -> (Call, NextStep) {
        let (mut call, step) = self.begin_only(request, policy);
        let step = self.serve(&mut call, step);
        (call, step)
    }

    /// Sends an event and returns the next step that is not for the store.
    fn on(&mut self, call: &mut Call, event: CallEvent) -> NextStep {
        let step = self.on_only(call, event).expect("the event belongs to the state");
        self.serve(call, step)
    }

    fn serve(&mut self, call: &mut Call, mut step: NextStep) -> NextStep {
        while let Some(event) = self.store_event(call, &step) {
            step = self.on_only(call, event).expect("the store answers what it was asked");
        }
        if let NextStep::Run(_) = step {
            self.runs += 1;
        }
        step
    }

    fn store_event(&mut self, call: &Call, step: &NextStep) -> Option<CallEvent> {
        let is_stores = matches!(
            step,
            NextStep::Claim(_)
                | NextStep::Spend { .. }
                | NextStep::Start { .. }
                | NextStep::Probe(_)
                | NextStep::Renew
                | NextStep::Save(_)
                | NextStep::Release(_)
        );
        let fault = if is_stores { self.store.faults.pop_front().flatten() } else { None };
        if fault == Some(StoreFault::NotDone) {
            return Some(CallEvent::StoreFailed(StoreFault::NotDone));
        }
        let now = self.now;
        let event = match step {
            NextStep::Claim(claim) => CallEvent::Claimed(self.store.claim(claim, now)),
            NextStep::Spend { grant, owner } => {
                CallEvent::Spent(self.approvals.spend(*grant, owner.digest(), now))
            }
            NextStep::Start { key, owner } => {
                let verdict = self.store.records.start(key, owner, now);
                self.store.count_writes();
                CallEvent::Started(verdict)
            }
            // The breaker is not shared in these tests, unless a test handles this step itself.
            NextStep::Probe(_) => CallEvent::Probed,
            NextStep::Renew => renewed(call, now, self.store.renew(call, now)),
            NextStep::Save(save) => CallEvent::Saved(self.store.save(save, now)),
            NextStep::Release(release) => {
                self.store.release(release);
                CallEvent::Released
            }
            NextStep::Follow(_)
            | NextStep::AwaitEnd(_)
            | NextStep::Ask(_)
            | NextStep::Run(_)
            | NextStep::Cut(_)
            | NextStep::Wait
            | NextStep::Answer { .. }
            | NextStep::CancelUpstream
            | NextStep::Stay
            | NextStep::Finish { .. } => {
                return None;
            }
        };
        Some(fault.map_or(event, CallEvent::StoreFailed))
    }

    /// Sends the verdict on a renewal that ran concurrently.
    fn renewed(&mut self, call: &mut Call, verdict: RenewVerdict) -> NextStep {
        let event = renewed(call, self.now, verdict);
        self.on(call, event)
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// Lets the time of the call pass: the tool is asked to stop, and a moment later its caller is answered.
    fn cut(&mut self, call: &mut Call) -> NextStep {
        assert_eq!(self.wake(call), NextStep::CancelUpstream);
        self.wake(call)
    }

    /// Advances to the time at which the call wants to be woken, and wakes it.
    fn wake(&mut self, call: &mut Call) -> NextStep {
        self.now = call.wake_at().expect("the call waits for a moment").max(self.now);
        self.on(call, CallEvent::Woke(WakeReason::Time))
    }

    /// Drives a call to its end. Each attempt has a duration and an outcome. After the end of the script the last one
    /// repeats.
    fn drive(
        &mut self,
        request: CallRequest,
        policy: &CallPolicy,
        script: &[(Duration, AttemptReport)],
    ) -> CallResult {
        let (mut call, mut step) = self.begin(request, policy);
        let mut script = script.iter();
        let mut last = None;
        loop {
            step = match step {
                NextStep::Run(_) => {
                    last = script.next().or(last);
                    let (took, outcome) = last.expect("the script has an attempt");
                    self.pass(*took);
                    self.on(&mut call, CallEvent::Ran(outcome.clone()))
                }
                NextStep::Wait | NextStep::AwaitEnd(_) => self.wake(&mut call),
                NextStep::Finish { result, .. } => return *result,
                other => panic!("not in a straight run: {other:?}"),
            };
        }
    }

    /// The same, from envelope to envelope.
    fn post(
        &mut self,
        envelope: &Json,
        policy: &CallPolicy,
        script: &[(Duration, AttemptReport)],
    ) -> ResultEnvelope {
        let request = from_envelope(envelope, policy);
        self.drive(request.clone(), policy, script).to_envelope(&request)
    }

    /// Marks the result as delivered to its client.
    fn deliver(&mut self, result: &CallResult) {
        if let Some(receipt) = &result.receipt {
            self.store.records.mark_delivered(receipt, self.now);
        }
    }

    fn blocked(&self, by: Code) -> bool {
        self.notices
            .iter()
            .any(|notice| matches!(notice, CallNotice::CallBlocked { code, .. } if *code == by))
    }

    fn has(&self, notice: &CallNotice) -> bool {
        self.notices.contains(notice)
    }

    fn count(&self, predicate: impl Fn(&CallNotice) -> bool) -> usize {
        self.notices.iter().filter(|notice| predicate(notice)).count()
    }

    fn breaker_state(&self, policy: &CallPolicy) -> breaker::State {
        self.breaker.state(&policy.breaker, self.now)
    }

    /// Grants a call once, in advance, as an operator.
    fn grant_once(&mut self, request: &CallRequest, policy: &CallPolicy) {
        self.grant(approval_subject(request), policy);
    }

    /// Grants a call of a blocked tool.
    fn grant_despite_block(&mut self, request: &CallRequest, policy: &CallPolicy) {
        self.grant(ApprovalSubject { blocked: true, ..approval_subject(request) }, policy);
    }

    fn grant(&mut self, subject: ApprovalSubject<'_>, policy: &CallPolicy) {
        let parked =
            self.approvals.ask(subject, &Escalation::routine(subject.tool), None, &policy.approval, self.now);
        self.approvals
            .decide(parked.id, ApprovalDecision::Once, Grantor::Operator, self.now)
            .expect("the request is open");
    }
}

fn approval_subject(request: &CallRequest) -> ApprovalSubject<'_> {
    ApprovalSubject {
        tool: &request.tool,
        arguments: request.digest,
        signature: &request.signature,
        session: request.session.as_ref(),
        blocked: false,
    }
}

fn name_of(step: &NextStep) -> &'static str {
    match step {
        NextStep::Claim(claim) => match claim.intent {
            ClaimIntent::Look => "Look",
            ClaimIntent::Take { started: true } => "Claim",
            ClaimIntent::Take { started: false } => "ClaimOnly",
        },
        NextStep::Follow(_) => "Follow",
        NextStep::AwaitEnd(_) => "AwaitEnd",
        NextStep::Ask(_) => "Ask",
        NextStep::Spend { .. } => "Spend",
        NextStep::Start { .. } => "Start",
        NextStep::Probe(_) => "Probe",
        NextStep::Renew => "Renew",
        NextStep::Run(_) => "Run",
        NextStep::Cut(_) => "Cut",
        NextStep::Wait => "Wait",
        NextStep::Save(_) => "Save",
        NextStep::Release(_) => "Release",
        NextStep::Answer { .. } => "Answer",
        NextStep::CancelUpstream => "CancelUpstream",
        NextStep::Stay => "Stay",
        NextStep::Finish { .. } => "Finish",
    }
}

// ---- calls ----

fn envelope() -> Json {
    json!({
        "contractVersion": "1.1",
        "requestId": "r-1",
        "toolName": "pay",
        "toolNamespace": "bank",
        "target": { "sessionKey": "s-1", "actorId": "bob" },
        "payload": { "version": "1.0", "params": { "to": "ann", "amount": 5 } },
    })
}

/// Returns the envelope with members merged in.
fn envelope_with(more: &Json) -> Json {
    fn merge(into: &mut Json, more: &Json) {
        match (into, more) {
            (Json::Object(into), Json::Object(more)) => {
                for (name, value) in more {
                    merge(into.entry(name.clone()).or_insert(Json::Null), value);
                }
            }
            (into, more) => *into = more.clone(),
        }
    }
    let mut envelope = envelope();
    merge(&mut envelope, more);
    envelope
}

fn keyed(key: &str) -> Json {
    envelope_with(&json!({ "payload": { "idempotencyKey": key } }))
}

fn process() -> ProcessIdentity {
    ProcessIdentity { boot: "boot".into(), pid: 1, started: 1 }
}

fn from_envelope(envelope: &Json, policy: &CallPolicy) -> CallRequest {
    from_envelope_on(envelope, policy, ApprovalChannel::Headless)
}

fn from_envelope_on(envelope: &Json, policy: &CallPolicy, channel: ApprovalChannel) -> CallRequest {
    let envelope = CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Keep).unwrap();
    let run = RunId("run".into());
    let process = process();
    CallRequest::from_envelope(&envelope, policy, IntakeContext { channel, ..intake(&process, &run) })
        .unwrap()
}

/// Returns the facts of a surface that knows nothing more.
fn intake<'a>(process: &'a ProcessIdentity, run: &'a RunId) -> IntakeContext<'a> {
    IntakeContext {
        process,
        number: 0,
        run,
        channel: ApprovalChannel::Headless,
        hook_key: None,
        in_turn: false,
        equal_calls: EqualCallPolicy::Separate,
        call_id: None,
        keys_of: CallerKeyScope::Conversation,
        waits: CallerPatience::MayGiveUp,
        continuation: None,
        trace: None,
        input_schema: None,
    }
}

/// Returns a call with the key `k`.
fn request(policy: &CallPolicy) -> CallRequest {
    from_envelope(&keyed("k"), policy)
}

/// Returns a call without an idempotency key, as the gateway makes it.
fn keyless(policy: &CallPolicy) -> CallRequest {
    let (run, index) = (RecordKey(Digest::of(b"run")), RecordKey(Digest::of(b"index")));
    CallRequest {
        duplicates: Deduplication::Joined(RecordAddress::Keyless { run, index }),
        ..from_envelope(&envelope(), policy)
    }
}

/// No jitter, so that times can be written down.
fn policy(class: ToolClass) -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(class);
    policy.retry.jitter = crate::policy::Jitter::None;
    policy
}

// ---- outcomes ----

fn paid() -> AttemptReport {
    AttemptReport::Success { output: answer("paid"), concern: None }
}

/// The tool asks for input first.
fn input_required() -> AttemptReport {
    AttemptReport::InputRequired { output: answer("which account?") }
}

fn answer(text: &str) -> ToolOutput {
    ToolOutput { content: RawJson::string(text), metadata: None }
}

fn fails(source: FaultSource) -> AttemptReport {
    AttemptReport::Failure { fault: AttemptFault::new(source, "it failed"), output: None }
}

fn http(status: u16) -> AttemptReport {
    fails(FaultSource::Http { status })
}

/// The attempt was never sent.
fn not_sent() -> AttemptReport {
    fails(FaultSource::Transport { error: TransportError::Unreachable, written: false })
}

/// Steadfast's own clock cut the attempt.
fn timed_out() -> AttemptReport {
    fails(FaultSource::Timeout { after: 30 * SECOND })
}

/// The upstream proved that it did not run, and said when to call again.
fn busy(wait: Duration) -> AttemptReport {
    let fault = AttemptFault {
        retry_after: Some(RetryAfter::Delay(wait)),
        ..AttemptFault::new(FaultSource::Http { status: 503 }, "busy")
    };
    AttemptReport::Failure { fault, output: None }
}

fn at_once(outcome: AttemptReport) -> Vec<(Duration, AttemptReport)> {
    vec![(Duration::ZERO, outcome)]
}

/// Returns the store's verdict on the lease of the current record.
fn renewed(call: &Call, sent: Timestamp, verdict: RenewVerdict) -> CallEvent {
    let owner = call.claimed_record().map_or_else(|| call.owner(), |record| record.owner.clone());
    CallEvent::Renewed { owner, sent, verdict }
}

// ---- results ----

fn finished(step: NextStep) -> CallResult {
    match step {
        NextStep::Finish { result, .. } => *result,
        other => panic!("the call should be over: {other:?}"),
    }
}

fn finished_with_deferred(step: NextStep) -> (CallResult, Vec<DeferredWrite>) {
    match step {
        NextStep::Finish { result, deferred } => (*result, deferred),
        other => panic!("the call should be over: {other:?}"),
    }
}

fn answered(step: NextStep) -> (CallResult, UpstreamSignal) {
    match step {
        NextStep::Answer { result, upstream } => (*result, upstream),
        other => panic!("the caller should be answered: {other:?}"),
    }
}

fn code(result: &CallResult) -> Option<Code> {
    result.outcome.as_ref().err().map(|failure| failure.code)
}

fn rule(result: &CallResult) -> &str {
    result.outcome.as_ref().err().and_then(|failure| failure.rule.as_deref()).unwrap_or_default()
}

fn message(result: &CallResult) -> &str {
    result.outcome.as_ref().err().map(|failure| &*failure.message).unwrap_or_default()
}

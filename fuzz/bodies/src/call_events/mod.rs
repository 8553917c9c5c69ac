//! Calls, and all events that a driver can send: in order, out of order, and without any request.
//!
//! The first bytes make a policy, a history and a request. Then each byte is an event. Most of them answer the pending
//! step of the machine, through a store made of the core's own tables; some are other events. When the bytes are used
//! up, a correct driver brings the call to its end.

mod setup;
mod store;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalDecision, ApprovalSubject, Grantor};
use steadfast_core::breaker::{BreakerVerdict, CircuitBreaker};
use steadfast_core::call::{
    AttemptReport, Call, CallEvent, CallMechanisms, CallMisuse, CallNotice, CallRequest, CallResult,
    DeferredWrite, NextStep, OtherWaiters, Provenance, RecordStatus, StoreFault, UpstreamSignal, WakeReason,
};
use steadfast_core::classify::{AttemptFault, Severity, classify};
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, LeaseOwnerState,
    ReleaseRequest, RunOutcome, SaveRequest,
};
use steadfast_core::guard::{self, GuardedCall, LoopGuard};
use steadfast_core::id::Digest;
use steadfast_core::limit::Limiter;
use steadfast_core::policy::{CallPolicy, EnforcementMode};
use steadfast_core::retry::RetryBudget;
use steadfast_core::trust::{self, FinishedOutcome, TrustLedger, TrustSubject};

use crate::draw::InputDraw;
use store::FuzzStore;

/// Checks that any order of events leads to a step or to a report of misuse, that a finished call stays finished, and
/// that the same events have the same results.
pub fn call_events(input: &[u8]) {
    let trace = FuzzWorld::live(input);
    assert_eq!(FuzzWorld::live(input), trace, "the same bytes had two results");
}

/// Maximum number of consecutive calls, which share their machines.
const MOST_CALLS: u64 = 4;
/// Maximum number of events made of bytes. More of them only take time.
const MOST_EVENTS: u32 = 200;
/// Maximum number of events until a correct driver ends a call. A call that needs more is in a loop. A call that waits
/// for the end of another run polls twice a second.
const WAY_HOME: u32 = 300;

struct FuzzWorld<'i> {
    draw: InputDraw<'i>,
    now: Timestamp,
    /// The store's knowledge about other processes.
    sight: LeaseOwnerState,
    store: FuzzStore,
    breaker: CircuitBreaker,
    dependency: Option<CircuitBreaker>,
    budget: RetryBudget,
    limiter: Limiter,
    dependency_limiter: Limiter,
    guard: LoopGuard,
    trust: TrustLedger,
    /// The record that another process claimed.
    rival_record: Option<Arc<DedupeRecord>>,
    rivals: u64,
    events: u32,
    trace: String,
}

/// A call and its driver's knowledge of it.
struct FuzzedCall {
    call: Call,
    /// The step that waits for an answer.
    pending: NextStep,
    attempts: u32,
    /// Start of the first attempt.
    first: Option<Timestamp>,
    runs: bool,
    cut: bool,
    answered: bool,
    /// True if the tool received a cancellation while its attempt goes on.
    cancelled_upstream: bool,
    /// True if that was because the time of the attempt was up.
    cut_upstream: bool,
    last_fault: Option<AttemptFault>,
    /// True if its outcome is unknown, so that the end of its attempt may stay unobserved.
    unknown: bool,
}

/// The relation of an event to the pending step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerIntent {
    Answer,
    Anything,
}

/// Prints the story when a failing input is run alone.
impl Drop for FuzzWorld<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.trace);
        }
    }
}

impl<'i> FuzzWorld<'i> {
    /// Runs an input. Returns all steps and notices as text.
    fn live(input: &'i [u8]) -> String {
        let mut draw = InputDraw::new(input);
        let policy = Arc::new(setup::policy(&mut draw));
        let start = draw.pick([1_000_000, 0, u64::MAX - 50_000_000]);
        let mut world = Self {
            now: Timestamp::from_millis(start),
            sight: draw.pick([LeaseOwnerState::Time, LeaseOwnerState::Gone, LeaseOwnerState::Alive]),
            store: FuzzStore::default(),
            breaker: CircuitBreaker::default(),
            dependency: draw.flag().then(CircuitBreaker::default),
            budget: RetryBudget::default(),
            limiter: Limiter::default(),
            dependency_limiter: Limiter::default(),
            guard: LoopGuard::default(),
            trust: TrustLedger::default(),
            rival_record: None,
            rivals: 0,
            events: 0,
            trace: String::new(),
            draw,
        };
        world.past(&policy);
        for number in 0..MOST_CALLS {
            let request = setup::request(&mut world.draw, number, world.now);
            world.call(request, &policy);
            assert_eq!(world.limiter.in_flight(), 0, "the call is over and its place is still taken");
            assert_eq!(
                world.dependency_limiter.in_flight(),
                0,
                "the call is over and its place is still taken"
            );
            if world.draw.rest().is_empty() {
                break;
            }
        }
        std::mem::take(&mut world.trace)
    }

    /// Makes a history of failures: of the tool, of the model, of the service.
    fn past(&mut self, policy: &CallPolicy) {
        let failures = self.draw.byte();
        let (tool, signature) = (setup::tool(), setup::signature());
        let subject = TrustSubject { tool: &tool, signature: &signature, domain: None };
        let rules = trust::TrustRules { signature: &policy.trust, domain: policy.domain_trust.as_ref() };
        for _ in 0..failures % 4 {
            let finished = FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: true };
            self.trust.record(rules, subject, finished, self.now);
        }
        for _ in 0..failures / 4 % 4 {
            let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
            self.guard.begin(&policy.guard, call, self.now);
            let ending = guard::GuardedResult::Failure { message: "no", mistake: None };
            self.guard.end(&policy.guard, call, ending, self.now);
        }
        for _ in 0..failures / 16 {
            if let Ok((ticket, _)) = self.breaker.admit(&policy.breaker, self.now) {
                self.breaker.record(
                    &policy.breaker,
                    ticket,
                    BreakerVerdict::Failure { took: Duration::ZERO },
                    self.now,
                );
            }
        }
    }

    /// Runs one call from its beginning to its end.
    fn call(&mut self, request: CallRequest, policy: &Arc<CallPolicy>) {
        let mut notices = Vec::new();
        let (now, seed) = (self.now, request.number);
        let (call, step) = Call::begin(&mut self.shared(), request, policy.clone(), seed, now, &mut notices);
        let mut driven = FuzzedCall {
            call,
            pending: NextStep::Stay,
            attempts: 0,
            first: None,
            runs: false,
            cut: false,
            answered: false,
            cancelled_upstream: false,
            cut_upstream: false,
            last_fault: None,
            unknown: false,
        };
        self.check_step(&mut driven, step, &notices);
        while !driven.call.is_finished() {
            self.events += 1;
            match self.draw.next().filter(|_| self.events <= MOST_EVENTS) {
                Some(byte) => self.apply_event(&mut driven, byte),
                None => self.finish_call(&mut driven),
            }
        }
        self.stays_finished(&mut driven);
    }

    fn apply_event(&mut self, driven: &mut FuzzedCall, byte: u8) {
        let span = [0, 1, 20, 500, 60_000, 120_000, 3_600_000];
        match span.get(usize::from(byte >> 3 & 7)) {
            Some(millis) => self.now = self.now + Duration::from_millis(*millis),
            None => self.now = self.now.max(driven.call.wake_at().unwrap_or(self.now)),
        }
        match byte & 7 {
            0..=4 => self.answer(driven),
            5 => {
                let owner = driven.call.claimed_record().map(|record| record.owner.clone());
                let event = setup::stray(&mut self.draw, owner, self.now);
                self.feed(driven, event, AnswerIntent::Anything);
            }
            6 => self.act_as_other_process(driven),
            _ => self.send_stray_event(driven),
        }
    }

    /// Answers the pending step.
    fn answer(&mut self, driven: &mut FuzzedCall) {
        let now = self.now;
        let event = match &driven.pending {
            NextStep::Follow(_) | NextStep::AwaitEnd(_) => {
                CallEvent::Woke(self.draw.pick([WakeReason::Changed, WakeReason::Time]))
            }
            NextStep::Ask(_) => CallEvent::Answered(setup::answer(&mut self.draw)),
            NextStep::Run(_) | NextStep::Cut(_) => CallEvent::Ran(setup::outcome(&mut self.draw)),
            NextStep::Wait if driven.call.is_settling() => self.settles(driven),
            NextStep::Wait
            | NextStep::Answer { .. }
            | NextStep::CancelUpstream
            | NextStep::Stay
            | NextStep::Finish { .. } => CallEvent::Woke(WakeReason::Time),
            NextStep::Claim(_)
            | NextStep::Spend { .. }
            | NextStep::Start { .. }
            | NextStep::Probe(_)
            | NextStep::Save(_)
            | NextStep::Release(_)
            | NextStep::Renew => {
                match self.draw.byte() % 6 {
                    3 => CallEvent::StoreFailed(StoreFault::NotDone),
                    4 => CallEvent::StoreFailed(StoreFault::Unanswered),
                    5 => {
                        // Done, and the reply is lost.
                        let _ = self.query_store(driven, now);
                        CallEvent::StoreFailed(StoreFault::Unanswered)
                    }
                    _ => self.query_store(driven, now),
                }
            }
        };
        self.feed(driven, event, AnswerIntent::Answer);
    }

    /// Returns an event of an attempt with an unknown outcome.
    fn settles(&mut self, driven: &FuzzedCall) -> CallEvent {
        match self.draw.byte() % 4 {
            1 if driven.runs => CallEvent::Ran(setup::outcome(&mut self.draw)),
            2 if driven.call.awaits_end() => CallEvent::Settled,
            3 => CallEvent::DriverEnds,
            _ => CallEvent::Woke(WakeReason::Time),
        }
    }

    /// Carries out the pending step in the store.
    fn query_store(&mut self, driven: &FuzzedCall, now: Timestamp) -> CallEvent {
        match &driven.pending {
            NextStep::Claim(claim) => CallEvent::Claimed(self.claim(claim)),
            NextStep::Spend { grant, owner } => CallEvent::Spent(self.store.spend(*grant, owner, now)),
            NextStep::Start { key, owner } => CallEvent::Started(self.store.start(key, owner, now)),
            NextStep::Probe(_) => {
                if self.draw.byte().is_multiple_of(2) {
                    // Another process was faster, with another state.
                    let mut there = CircuitBreaker::restore(&self.breaker.snapshot(), now);
                    there.force_open(None, now);
                    self.breaker.adopt(&there.snapshot(), now);
                }
                CallEvent::Probed
            }
            NextStep::Save(save) => CallEvent::Saved(self.store.save(save, now)),
            NextStep::Release(release) => {
                self.store.release(release);
                CallEvent::Released
            }
            NextStep::Renew => self.renewal(driven),
            NextStep::Follow(_)
            | NextStep::AwaitEnd(_)
            | NextStep::Ask(_)
            | NextStep::Run(_)
            | NextStep::Cut(_)
            | NextStep::Wait
            | NextStep::Answer { .. }
            | NextStep::CancelUpstream
            | NextStep::Stay
            | NextStep::Finish { .. } => unreachable!("not for the store: {:?}", driven.pending),
        }
    }

    fn renewal(&mut self, driven: &FuzzedCall) -> CallEvent {
        let keep = driven.call.policy().dedupe.keep;
        match driven.call.record() {
            Some(record) => CallEvent::Renewed {
                owner: record.owner.clone(),
                sent: self.now,
                verdict: self.store.renew(record, &keep, self.now),
            },
            None => CallEvent::StoreFailed(StoreFault::NotDone),
        }
    }

    fn claim(&mut self, claim: &Claim) -> ClaimVerdict {
        let others = self.sight;
        let sight = |owner: &ClaimOwner| match others {
            LeaseOwnerState::Time => LeaseOwnerState::Time,
            LeaseOwnerState::Alive | LeaseOwnerState::Gone if owner.process == setup::process(1) => {
                LeaseOwnerState::Alive
            }
            LeaseOwnerState::Alive | LeaseOwnerState::Gone => others,
        };
        self.store.claim(claim, sight, self.now)
    }

    /// Sends an event that a driver may send at any time.
    fn send_stray_event(&mut self, driven: &mut FuzzedCall) {
        let event = match self.draw.byte() % 6 {
            0 => CallEvent::Woke(WakeReason::Time),
            1 => CallEvent::Cancelled(OtherWaiters::None),
            2 => CallEvent::Cancelled(OtherWaiters::Waiting),
            3 => CallEvent::Disconnected(OtherWaiters::None),
            4 => CallEvent::Progressed,
            _ => match driven.call.record() {
                Some(_) => self.renewal(driven),
                None => return,
            },
        };
        self.feed(driven, event, AnswerIntent::Answer);
    }

    /// Acts as another process, or directly on the store.
    fn act_as_other_process(&mut self, driven: &FuzzedCall) {
        let keep = driven.call.policy().dedupe.keep;
        match self.draw.byte() % 7 {
            0 => self.rival_claims(driven),
            1 => {
                if let Some(claimed) = self.rival_record.clone() {
                    let ending = RunOutcome::Done(Some(setup::output()));
                    let save = SaveRequest {
                        claimed,
                        ending,
                        attempts: Vec::new(),
                        delivered: None,
                        hold: false,
                        keep,
                    };
                    let _ = self.store.save(&save, self.now);
                }
            }
            2 => {
                if let Some(record) = self.rival_record.take() {
                    let DedupeRecord { key, index, owner, .. } = &*record;
                    self.store.release(&ReleaseRequest { key: *key, index: *index, owner: owner.clone() });
                }
            }
            3 => self.store.empty(),
            4 => self.store.sweep(self.now),
            5 => self.store.deliver_all(self.now),
            _ => self.store.resolve_all(&DedupeRules::from(driven.call.policy()), self.now),
        }
    }

    fn rival_claims(&mut self, driven: &FuzzedCall) {
        let (request, policy) = (driven.call.request(), driven.call.policy());
        let Some(address) = request.address() else { return };
        self.rivals += 1;
        let claim = Claim {
            address,
            intent: ClaimIntent::Take { started: self.draw.flag() },
            role: ClaimRole::Fresh,
            owner: ClaimOwner { process: setup::process(2), call: self.rivals, claim: 1 },
            digest: request.digest,
            retry_safe: request.is_retry_safe(policy),
            best_effort: false,
            arrived: self.now,
            age: Duration::ZERO,
            end_observed_within: None,
            run: request.run.clone(),
            rules: DedupeRules::from(policy),
            tool: request.tool.clone(),
            request: request.id.clone(),
            tool_call: None,
            context: None,
            session: None,
            actor: None,
            tenant: None,
        };
        if let ClaimVerdict::Acquired(record) = self.claim(&claim) {
            self.rival_record = Some(record);
        }
    }

    /// Brings the call to its end, with a correct driver, a store that answers, and a tool that works.
    fn finish_call(&mut self, driven: &mut FuzzedCall) {
        for _ in 0..WAY_HOME {
            let event = match &driven.pending {
                NextStep::Claim(_)
                | NextStep::Spend { .. }
                | NextStep::Start { .. }
                | NextStep::Probe(_)
                | NextStep::Save(_)
                | NextStep::Release(_)
                | NextStep::Renew => self.query_store(driven, self.now),
                NextStep::Run(_) | NextStep::Cut(_) => {
                    CallEvent::Ran(AttemptReport::Success { output: setup::output(), concern: None })
                }
                NextStep::Follow(_)
                | NextStep::AwaitEnd(_)
                | NextStep::Ask(_)
                | NextStep::Wait
                | NextStep::Answer { .. }
                | NextStep::CancelUpstream
                | NextStep::Stay
                | NextStep::Finish { .. } => {
                    let at = driven.call.wake_at();
                    assert!(at.is_some(), "waits in {} for nothing", driven.call.state());
                    self.now = self.now.max(at.unwrap_or(self.now));
                    CallEvent::Woke(WakeReason::Time)
                }
            };
            self.feed(driven, event, AnswerIntent::Answer);
            if driven.call.is_finished() {
                return;
            }
        }
        unreachable!(
            "the call does not end: it is {} and waits for {:?}",
            driven.call.state(),
            driven.pending
        );
    }

    /// Feeds one event to the machine, and checks the properties that must hold after it.
    fn feed(&mut self, driven: &mut FuzzedCall, event: CallEvent, intent: AnswerIntent) {
        let now = self.now;
        // The machine is only formatted if misuse is possible, because that is slow.
        let wake_at = driven.call.wake_at();
        let before = (intent == AnswerIntent::Anything)
            .then(|| (driven.call.state(), wake_at, format!("{:?}", driven.call)));
        let ran = matches!(event, CallEvent::Ran(_));
        let settling = driven.call.is_settling();
        let is_gone = matches!(event, CallEvent::Settled) && driven.call.awaits_end();
        let owner = driven.call.claimed_record().map(|record| &record.owner);
        let foreign = matches!(&event, CallEvent::Renewed { owner: renewed, .. } if owner != Some(renewed));
        let fault = if let CallEvent::Ran(AttemptReport::Failure { fault, .. }) = &event {
            Some(fault.clone())
        } else {
            None
        };
        let timer = matches!(event, CallEvent::Woke(WakeReason::Time)) && wake_at.is_some_and(|at| at <= now);
        let mut notices = Vec::new();
        match driven.call.handle_event(&mut self.shared(), now, event, &mut notices) {
            Ok(step) => {
                if ran {
                    assert!(driven.runs || settling, "an answer was accepted without an attempt");
                    driven.runs = false;
                    driven.cut = false;
                    driven.last_fault = fault;
                }
                driven.runs &= !is_gone;
                if let (true, Some((_, _, before))) = (foreign, &before) {
                    assert_eq!(
                        format!("{:?}", driven.call),
                        *before,
                        "a renewal of another claim was heeded"
                    );
                }
                let idle = timer && step == NextStep::Stay;
                self.check_step(driven, step, &notices);
                let later = driven.call.wake_at().is_none_or(|at| at > now || now == Timestamp::MAX);
                assert!(!idle || later, "the timer fires again and again in {}", driven.call.state());
            }
            Err(CallMisuse { state, event }) => {
                assert!(before.is_some(), "{event} answers {:?} and is misuse in {state}", driven.pending);
                let after = (driven.call.state(), driven.call.wake_at(), format!("{:?}", driven.call));
                assert_eq!(Some(after), before, "{event} was misuse and changed the machine");
                assert_eq!(notices, [], "{event} was misuse and sent a notice");
            }
        }
    }

    /// Checks the properties of a step, whatever led to it.
    fn check_step(&mut self, driven: &mut FuzzedCall, step: NextStep, notices: &[CallNotice]) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.trace, "{} {} {step:?} {notices:?}", self.now, driven.call.state());
        assert_eq!(
            matches!(step, NextStep::Finish { .. }),
            driven.call.is_finished(),
            "the end and its step: {step:?}"
        );
        driven.unknown |= notices.iter().any(|notice| matches!(notice, CallNotice::OutcomeUnknown { .. }));
        match &step {
            NextStep::Run(run) => self.may_run(driven, run.attempt),
            NextStep::Cut(cut) => {
                assert!(driven.runs && !driven.cut, "cut what does not run, or a second time: {cut:?}");
                driven.cut = true;
            }
            NextStep::Answer { upstream, .. } => {
                assert!(!driven.answered, "the caller is answered a second time: {step:?}");
                driven.answered = true;
                if *upstream == UpstreamSignal::Cancel {
                    Self::cancels_upstream(driven);
                }
            }
            NextStep::CancelUpstream => Self::cancels_upstream(driven),
            NextStep::Finish { result, deferred } => {
                assert!(!driven.runs || driven.unknown, "the call ended and its attempt runs on: {step:?}");
                self.handle_end(driven, result, deferred);
            }
            NextStep::Follow(_) | NextStep::AwaitEnd(_) | NextStep::Ask(_) | NextStep::Wait => {
                assert!(driven.call.wake_at().is_some(), "waits for nothing: {step:?}");
            }
            NextStep::Claim(_)
            | NextStep::Spend { .. }
            | NextStep::Start { .. }
            | NextStep::Probe(_)
            | NextStep::Renew
            | NextStep::Save(_)
            | NextStep::Release(_)
            | NextStep::Stay => {}
        }
        let is_aside = matches!(step, NextStep::Stay | NextStep::Answer { .. } | NextStep::CancelUpstream);
        if !is_aside {
            driven.pending = step;
        } else if step != NextStep::Stay && matches!(driven.pending, NextStep::Save(_)) {
            // The unknown outcome is recorded now, and the call waits for the end of the attempt.
            driven.pending = NextStep::Wait;
        }
    }

    /// Checks that the tool receives cancellations only for a running attempt: one for its caller, one for the cut.
    fn cancels_upstream(driven: &mut FuzzedCall) {
        let is_cut = driven.call.is_settling();
        let is_notified = if is_cut { &mut driven.cut_upstream } else { &mut driven.cancelled_upstream };
        assert!(driven.runs && !driven.cut && !*is_notified, "a cancellation without a reason");
        *is_notified = true;
    }

    /// Checks that an attempt may start now.
    fn may_run(&mut self, driven: &mut FuzzedCall, attempt: u32) {
        let (request, policy) = (driven.call.request(), driven.call.policy());
        assert!(!driven.runs, "a second attempt beside the first");
        assert_eq!(attempt, driven.attempts + 1, "attempts are counted from one, each once");
        let most = policy.retry.attempts.get();
        assert!(attempt <= most, "attempt {attempt} of {most}");
        self.is_in_time(driven);
        assert!(!driven.cancelled_upstream, "another attempt after a cancellation");
        if let Some(fault) = &driven.last_fault {
            let reach = classify(fault, &policy.classify, self.now).reach;
            let safe = reach.proves_not_run() || request.is_retry_safe(policy);
            assert!(safe, "it may have run and must not twice: {fault:?}");
        }
        // In shadow mode the record protects nothing, and a start that could not be written delays nothing.
        if let Some(record) = driven.call.record().filter(|_| policy.modes.dedupe == EnforcementMode::Enforce)
        {
            assert!(
                self.store.started.contains(&record.owner),
                "runs before `started` is written: {record:?}"
            );
        }
        driven.attempts = attempt;
        driven.first.get_or_insert(self.now);
        driven.runs = true;
    }

    /// Checks that deadline and total time limit the start of an attempt, however late a timer fires or a store
    /// answers.
    fn is_in_time(&self, driven: &FuzzedCall) {
        let (limits, policy) = (driven.call.request().limits, driven.call.policy());
        // In shadow mode no call is delayed or refused.
        if policy.modes.is_pass_through() {
            return;
        }
        // A deadline at the end of time is none.
        let deadline = limits.deadline.filter(|deadline| *deadline < Timestamp::MAX);
        assert!(deadline.is_none_or(|deadline| self.now < deadline), "starts after its deadline");
        let spans = [policy.retry.total, policy.time.last_retry, limits.elapsed];
        if let (Some(first), Some(span)) = (driven.first, spans.into_iter().flatten().min()) {
            assert!(self.now <= first + span, "a retry that starts too late");
        }
    }

    /// Handles the end of a call: its answer, and its remaining work.
    fn handle_end(&mut self, driven: &FuzzedCall, result: &CallResult, deferred: &[DeferredWrite]) {
        assert_eq!(result.attempts, driven.attempts, "the attempts are counted wrong");
        // In shadow mode nothing counts as recorded, but deliveries are marked. Otherwise every equal call would look
        // like a resend.
        let shadow = driven.call.policy().modes.dedupe == EnforcementMode::Shadow;
        let (receipt, recorded) = (result.receipt.is_some(), result.recorded == RecordStatus::Yes);
        assert!(shadow || recorded || !receipt, "a receipt for what is not recorded: {result:?}");
        // An answer that comes too late, or only asks the caller to wait, does not count as delivered.
        let is_late = result.took > driven.call.policy().dedupe.late_after;
        assert!(
            shadow || receipt || !recorded || is_late || result.is_unknown_outcome(),
            "no receipt for what is recorded: {result:?}"
        );
        let fresh = result.provenance == Provenance::Fresh;
        assert!(!fresh || result.outcome.is_err() || driven.attempts > 0, "without attempt: {result:?}");
        if let Some(receipt) = result.receipt.as_ref().filter(|_| self.draw.flag()) {
            self.store.delivered(receipt, self.now);
        }
        for write in deferred {
            match write {
                DeferredWrite::Save(save) => drop(self.store.save(save, self.now)),
                DeferredWrite::Release(release) => self.store.release(release),
                DeferredWrite::GiveBack { grant, owner } => {
                    self.store.approvals.return_grant(*grant, owner.digest())
                }
                DeferredWrite::Park(ask) => {
                    let request = driven.call.request();
                    let subject = ApprovalSubject {
                        tool: &request.tool,
                        arguments: request.digest,
                        signature: &request.signature,
                        session: request.session.as_ref(),
                        blocked: ask.operator_only,
                    };
                    let policy = &driven.call.policy().approval;
                    let pending = self.store.approvals.ask(subject, &ask.escalation, None, policy, self.now);
                    let decision = self.draw.pick([
                        ApprovalDecision::Once,
                        ApprovalDecision::Session,
                        ApprovalDecision::Deny,
                    ]);
                    let _ = self.store.approvals.decide(pending.id, decision, Grantor::Operator, self.now);
                }
            }
        }
    }

    /// Checks that after the end every event is misuse.
    fn stays_finished(&mut self, driven: &mut FuzzedCall) {
        let now = self.now;
        for kind in 0..setup::STRAYS {
            let event = setup::stray(&mut InputDraw::new(&[kind]), None, now);
            let mut notices = Vec::new();
            let answer = driven.call.handle_event(&mut self.shared(), now, event, &mut notices);
            assert!(answer.is_err() && notices.is_empty(), "the call was over: {answer:?}");
        }
        assert!(driven.call.is_finished() && driven.call.wake_at().is_none());
    }

    fn shared(&mut self) -> CallMechanisms<'_> {
        CallMechanisms {
            breaker: &mut self.breaker,
            dependency: self.dependency.as_mut(),
            budget: &mut self.budget,
            limiter: &mut self.limiter,
            dependency_limiter: &mut self.dependency_limiter,
            guard: &mut self.guard,
            trust: &mut self.trust,
            approvals: &self.store.approvals,
        }
    }
}

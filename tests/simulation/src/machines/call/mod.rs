//! One call that receives any possible event. Each of its steps is compared with the path of a call.

mod reference;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{
    ApprovalChannel, ApprovalDecision, ApprovalLedger, DecisionEffect, GrantId, Grantor, SpendVerdict,
};
use steadfast_core::breaker::{BreakerVerdict, CircuitBreaker};
use steadfast_core::call::{
    self, ApprovalOutcome, AttemptEndVisibility, AttemptReport, Call, CallEvent, CallMechanisms, CallNotice,
    CallRequest, CallResult, CallerHints, CallerPatience, Deduplication, NextStep, OtherWaiters, Provenance,
    ResultStage, RunnerKind, StoreFault, UpstreamKey, WakeReason,
};
use steadfast_core::classify::signature::Signature;
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, Severity, TransportError};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    CallFailure, Claim, ClaimOwner, ClaimVerdict, DeliveryReceipt, FoundRecords, LocalKnowledge,
    ProcessIdentity, RecordAddress, RenewVerdict, ReplayReason, ReplayedResult, RunOutcome, SaveRequest,
    SaveVerdict, SettleStatus, StartVerdict, UnknownOutcomeReason, UnknownOutcomeStatus, decide_claim,
};
use steadfast_core::guard::{GuardedCall, LoopGuard};
use steadfast_core::id::{RequestId, RunId, TurnId};
use steadfast_core::limit::Limiter;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, ApprovalTrigger, ArgumentCheck, BudgetPolicy, CallPolicy, DangerousCommandPolicy,
    EffectLocation, EnforcementMode, FailureReplayPolicy, PolicyProfile, RateLimit, Ratio, SilencePolicy,
    StoreFailurePolicy, ToolClass, UnknownOutcomePolicy,
};
use steadfast_core::retry::{CallerLimits, RetryBudget};
use steadfast_core::trust::{
    Escalation, FinishedOutcome, NotifyChoice, TrustLedger, TrustRules, TrustSubject,
};
use steadfast_json::RawJson;

use self::reference::{
    ExpectedEnding, ExpectedFollowUp, ExpectedResponse, ExpectedSave, ExpectedStep, ReferenceCall,
    ReferenceMachines, of_failure,
};
use super::{MachineTrace, agree, few, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;
use crate::transition::{approval_subject, digest, key, tool};

const PROMISE: &str = "calls take their path";

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    for _ in 0..4 {
        one_call(rng, machine_trace)?;
    }
    Ok(())
}

fn one_call(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let mut now = Timestamp::from_millis(1_000_000);
    let policy = Arc::new(policy(rng));
    let request = request(rng, now);
    let mut machines = machines(rng, &request, &policy, now);
    let seed = rng.next();
    machine_trace.log(|| format!("{request:?} under {policy:?}"));
    let mut notices = Vec::new();
    let (mut reference, mut due) =
        ReferenceCall::begin(machines.clone(), request.clone(), policy.clone(), seed, now);
    let (mut call, mut step) =
        Call::begin(&mut machines.shared(), request.clone(), policy.clone(), seed, now, &mut notices);
    machine_trace.log(|| format!("{}: begins -> {step:?}", now.as_millis()));
    for _ in 0..60 {
        let got = as_due(&step);
        agree(PROMISE, call.state(), &got, &due)?;
        notices.iter().for_each(|notice| machine_trace.coverage.notice(notice));
        let got: Vec<CallNotice> = notices.drain(..).map(without_words).collect();
        let expected = std::mem::take(&mut reference.notices);
        agree(PROMISE, "what is told", &got, &expected.into_iter().map(without_words).collect())?;
        agree(PROMISE, "when it wakes", &call.wake_at(), &reference.wakes_at())?;
        let renews = reference.renews().map(|record| (record.key, record.owner.clone(), record.started));
        let got = call.record().map(|record| (record.key, record.owner.clone(), record.started));
        agree(PROMISE, "what it renews", &got, &renews)?;
        agree(PROMISE, "whether it waits for an end", &call.awaits_end(), &reference.awaits_end())?;
        agree(PROMISE, "whether it is over", &call.is_finished(), &reference.is_over())?;
        if reference.is_over() {
            break;
        }
        let moments: Vec<Timestamp> = reference
            .wakes_at()
            .into_iter()
            .chain(request.limits.deadline)
            .chain(request.limits.start_by)
            .collect();
        now = next_moment(rng, now, &moments);
        if rng.chance(5) {
            interfere(rng, &mut machines, &mut reference.machines, &request, now);
        }
        // A claim in transit already says that an attempt follows. A call that needs approval first claims again.
        if call.state() == "Claiming" && rng.chance(20) {
            for machines in [&mut machines, &mut reference.machines] {
                fails_trust(&mut machines.trust, &request, &policy, now);
            }
        }
        let event = event(rng, &call, &step, now);
        let before = call.state();
        machine_trace.coverage.event(before, &event);
        due = reference.on(&event, now);
        step = match call.handle_event(&mut machines.shared(), now, event.clone(), &mut notices) {
            Ok(step) => step,
            Err(misuse) => return Err((PROMISE, misuse.to_string())),
        };
        machine_trace.log(|| format!("{}: {before}: {event:?} -> {step:?}", now.as_millis()));
    }
    machines.are_as(&reference.machines)
}

impl ReferenceMachines {
    fn shared(&mut self) -> CallMechanisms<'_> {
        CallMechanisms {
            breaker: &mut self.breaker,
            dependency: self.dependency.as_mut(),
            budget: &mut self.budget,
            limiter: &mut self.limiter,
            dependency_limiter: &mut self.dependency_limiter,
            guard: &mut self.guard,
            trust: &mut self.trust,
            approvals: &self.approvals,
        }
    }

    /// Checks that both have received the same.
    fn are_as(&self, other: &Self) -> Result<(), InvariantViolation> {
        let inside =
            |machines: &Self| (machines.limiter.in_flight(), machines.dependency_limiter.in_flight());
        agree(PROMISE, "places", &inside(self), &inside(other))?;
        let text = |machines: &Self| {
            [
                format!("{:?} {:?}", machines.breaker, machines.dependency),
                format!("{:?}", machines.budget),
                format!("{:?} {:?}", machines.limiter, machines.dependency_limiter),
                without_marks(&format!("{:?}", machines.guard)),
                format!("{:?}", machines.trust),
            ]
        };
        let names = ["breakers", "the budget", "the limits", "the guard", "trust"];
        for ((name, one), other) in names.into_iter().zip(text(self)).zip(text(other)) {
            agree(PROMISE, name, &one, &other)?;
        }
        Ok(())
    }
}

/// Removes the errors that a guard has recorded. They are identified by their texts, which are left out here.
fn without_marks(text: &str) -> String {
    let mut parts = text.split("ErrorMark(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn without_words(notice: CallNotice) -> CallNotice {
    match notice {
        CallNotice::CallBlocked { code, breaker, .. } => {
            CallNotice::CallBlocked { code, retriable: false, breaker }
        }
        CallNotice::AttemptEnded { attempt, took, failure } => {
            let failure = failure.map(|failure| call::FailedAttempt { message: "".into(), ..failure });
            CallNotice::AttemptEnded { attempt, took, failure }
        }
        notice => notice,
    }
}

fn as_due(step: &NextStep) -> ExpectedStep {
    match step.clone() {
        NextStep::Claim(claim) => ExpectedStep::Claim(claim),
        NextStep::Follow(key) => ExpectedStep::Follow(key),
        NextStep::AwaitEnd(key) => ExpectedStep::AwaitEnd(key),
        NextStep::Ask(ask) => ExpectedStep::Ask { operator_only: ask.operator_only, until: ask.until },
        NextStep::Spend { grant, owner } => ExpectedStep::Spend(grant, owner),
        NextStep::Start { key, owner } => ExpectedStep::Start(key, owner),
        NextStep::Probe(scope) => ExpectedStep::Probe(scope),
        NextStep::Renew => ExpectedStep::Renew,
        NextStep::Run(run) => {
            ExpectedStep::Run { attempt: run.attempt, deadline: run.deadline, run: run.run.0.to_string() }
        }
        NextStep::Cut(cut) => ExpectedStep::Cut(cut),
        NextStep::Wait => ExpectedStep::Wait,
        NextStep::Save(save) => ExpectedStep::Save(as_saved(&save)),
        NextStep::Release(release) => ExpectedStep::Release(release),
        NextStep::Answer { result, upstream } => ExpectedStep::Answer(expected_response(&result), upstream),
        NextStep::CancelUpstream => ExpectedStep::CancelUpstream,
        NextStep::Stay => ExpectedStep::Stay,
        NextStep::Finish { result, deferred } => {
            let follow_ups = deferred.iter().map(|write| match write {
                call::DeferredWrite::Save(save) => ExpectedFollowUp::Save(as_saved(save)),
                call::DeferredWrite::Park(ask) => ExpectedFollowUp::Park { operator_only: ask.operator_only },
                call::DeferredWrite::Release(release) => ExpectedFollowUp::Release(release.clone()),
                call::DeferredWrite::GiveBack { grant, owner } => {
                    ExpectedFollowUp::GiveBack(*grant, owner.clone())
                }
            });
            ExpectedStep::Finish(expected_response(&result), follow_ups.collect())
        }
    }
}

fn as_saved(save: &SaveRequest) -> ExpectedSave {
    ExpectedSave {
        owner: save.claimed.owner.clone(),
        key: save.claimed.key,
        started: save.claimed.started,
        ending: match &save.ending {
            RunOutcome::Done(output) => ExpectedEnding::Done(output.clone()),
            RunOutcome::Failed(failure) => ExpectedEnding::Failed(of_failure(failure)),
            RunOutcome::Unknown(unknown) => {
                ExpectedEnding::Unknown(unknown.settles, unknown.observed, unknown.output.clone())
            }
        },
        attempts: save
            .attempts
            .iter()
            .map(|fact| (fact.number, fact.started, fact.finished, fact.code, fact.retriable))
            .collect(),
        hold: save.hold,
    }
}

fn expected_response(result: &CallResult) -> ExpectedResponse {
    ExpectedResponse {
        outcome: match &result.outcome {
            Ok(output) => Ok(Some(output.clone())),
            Err(failure) => Err(of_failure(failure)),
        },
        input_required: result.stage == ResultStage::InputRequired,
        replayed: match result.provenance {
            Provenance::Fresh => None,
            Provenance::Replayed { reason, .. } => Some(reason),
        },
        attempts: result.attempts,
        retries: result.retries.iter().map(|retry| (retry.attempt, retry.latency, retry.delay)).collect(),
        took: result.took,
        recorded: result.recorded,
        receipt: result.receipt.clone(),
        remarks: result.remarks.len(),
        breaker: result.breaker,
        unknown: result.unknown,
    }
}

// ---- draws ----

fn policy(rng: &mut Rng) -> CallPolicy {
    let class = *rng.pick(&[
        ToolClass::Mutating,
        ToolClass::Mutating,
        ToolClass::Unknown,
        ToolClass::Idempotent,
        ToolClass::ReadOnly,
    ]);
    let mut policy =
        rng.pick(&[PolicyProfile::Standard, PolicyProfile::Measured, PolicyProfile::Stepped]).policy(class);
    let span = |rng: &mut Rng| millis(*rng.pick(&[50, 500, 2_000, 20_000]));
    let mode = |rng: &mut Rng| if rng.chance(90) { EnforcementMode::Enforce } else { EnforcementMode::Off };
    policy.modes.dedupe = mode(rng);
    policy.modes.breaker = mode(rng);
    policy.modes.guard = mode(rng);
    policy.modes.trust = mode(rng);
    // At least one mechanism acts, so that limits and deadlines do.
    policy.modes.retry =
        if policy.modes.dedupe == EnforcementMode::Off { EnforcementMode::Enforce } else { mode(rng) };
    policy.repeat.ambiguous = *rng.pick(&[AmbiguousOutcomePolicy::Stop, AmbiguousOutcomePolicy::Retry]);
    (policy.repeat.retry_safe, policy.repeat.honours_key) = (rng.chance(20), rng.chance(20));
    (policy.time.attempt, policy.time.total) = (span(rng), span(rng) * 2);
    policy.time.last_retry = optional(rng, span);
    policy.time.answer_by = optional(rng, span);
    policy.time.silence = *rng.pick(&[SilencePolicy::Timeout, SilencePolicy::Stuck]);
    policy.retry.attempts = few(rng, 1, 4);
    policy.retry.total = optional(rng, span);
    policy.retry.budget = BudgetPolicy {
        share: Ratio::percent(0),
        floor_per_second: u32::try_from(rng.between(0, 3)).unwrap_or(0),
    };
    policy.dedupe.cache_failures =
        *rng.pick(&[FailureReplayPolicy::Terminal, FailureReplayPolicy::All, FailureReplayPolicy::None]);
    policy.dedupe.after_unknown = *rng.pick(&[
        UnknownOutcomePolicy::TellOnce,
        UnknownOutcomePolicy::TellOnce,
        UnknownOutcomePolicy::Hold,
    ]);
    policy.dedupe.late_after = span(rng);
    policy.dedupe.keep.lease = span(rng) * 3;
    policy.dedupe.on_store_failure = *rng.pick(&[StoreFailurePolicy::GoOn, StoreFailurePolicy::Refuse]);
    policy.dedupe.explicit_key_on_store_failure =
        *rng.pick(&[StoreFailurePolicy::GoOn, StoreFailurePolicy::Refuse]);
    policy.dedupe.largest_output = if rng.chance(80) { 1_000 } else { 4 };
    policy.settling.effects = *rng.pick(&[EffectLocation::Local, EffectLocation::Remote]);
    (policy.settling.linger, policy.settling.settle) = (span(rng), span(rng));
    (policy.settling.grace, policy.settling.drain) = (span(rng), span(rng));
    policy.breaker.consecutive = Some(few(rng, 1, 3));
    policy.breaker.cooldown.first = span(rng);
    policy.breaker.cooldown.cap = policy.breaker.cooldown.cap.max(policy.breaker.cooldown.first);
    policy.breaker.close_after = few(rng, 1, 2);
    policy.breaker.probe_lease = span(rng);
    let places = |rng: &mut Rng| rng.chance(30).then(|| few(rng, 1, 2));
    let rate =
        |rng: &mut Rng| rng.chance(30).then(|| RateLimit { attempts: few(rng, 1, 2), per: millis(1_000) });
    (policy.limits.concurrency, policy.limits.rate) = (places(rng), rate(rng));
    (policy.dependency_limits.concurrency, policy.dependency_limits.rate) = (places(rng), rate(rng));
    policy.guard.identical = few(rng, 1, 2);
    policy.guard.per_turn = few(rng, 1, 3);
    policy.trust.count = Some(few(rng, 1, 2));
    policy.trust.block_after = few(rng, 1, 2);
    (policy.trust.duration, policy.trust.cooldown) = (span(rng), span(rng));
    policy.approval.when = *rng.pick(&[
        ApprovalTrigger::Escalated,
        ApprovalTrigger::Escalated,
        ApprovalTrigger::Always,
        ApprovalTrigger::Never,
    ]);
    policy.approval.timeout = span(rng);
    policy.approval.dangerous = *rng.pick(&[DangerousCommandPolicy::Record, DangerousCommandPolicy::Ask]);
    policy.arguments = *rng.pick(&[ArgumentCheck::Assist, ArgumentCheck::Enforce]);
    policy
}

fn request(rng: &mut Rng, now: Timestamp) -> CallRequest {
    let run = RunId("run of this call".into());
    let index = key("index");
    let address = match rng.between(0, 2) {
        0 => RecordAddress::Explicit(key("explicit")),
        1 => RecordAddress::CallId { id: key("call id"), index },
        _ => RecordAddress::Keyless { run: key("run"), index },
    };
    let is_explicit = matches!(address, RecordAddress::Explicit(_));
    let span = |rng: &mut Rng| millis(*rng.pick(&[0, 50, 1_000, 10_000]));
    let mut limits = CallerLimits::default();
    if rng.chance(50) {
        limits = CallerLimits {
            attempts: rng.chance(30).then(|| u32::try_from(rng.between(0, 3)).unwrap_or(0)),
            elapsed: rng.chance(30).then(|| span(rng)),
            attempt: rng.chance(30).then(|| millis(rng.between(1, 3_000))),
            deadline: rng.chance(40).then(|| now + span(rng)),
            start_by: rng.chance(20).then(|| now + span(rng)),
        };
    }
    CallRequest {
        id: RequestId::new("request").expect("a short text"),
        tool: tool(),
        tool_call: None,
        context: None,
        session: crate::system::session_of(0),
        actor: None,
        tenant: None,
        turn: rng.chance(30).then(|| TurnId::new("turn").expect("a name")),
        trace: None,
        model: None,
        duplicates: match rng.between(0, 9) {
            0 => Deduplication::Allowed,
            1 => Deduplication::Refused(address),
            _ => Deduplication::Joined(address),
        },
        sent_key: if is_explicit { UpstreamKey::Given } else { UpstreamKey::Run },
        computed_since: rng.chance(10).then(|| now.before(millis(500))),
        in_turn: rng.chance(15),
        digest: digest(0),
        run,
        process: ProcessIdentity { boot: "boot".into(), pid: 1, started: 1 },
        number: 7,
        signature: Signature("signature".into()),
        domain: None,
        danger: rng.chance(8).then(|| "a shape".into()),
        invalid_arguments: rng.chance(4).then(|| "a problem".into()),
        limits,
        waits: *rng.pick(&[CallerPatience::MayGiveUp, CallerPatience::UntilDone]),
        run_by: if rng.chance(80) { RunnerKind::Driver } else { RunnerKind::Host },
        end: *rng.pick(&[AttemptEndVisibility::Hidden, AttemptEndVisibility::Visible]),
        reads: Arc::default(),
        hints: CallerHints { expected_retry_safe: rng.chance(20), safety_critical: rng.chance(10) },
        channel: *rng.pick(&[
            ApprovalChannel::Interactive,
            ApprovalChannel::Interactive,
            ApprovalChannel::Headless,
        ]),
    }
}

/// Draws machines that have a history.
fn machines(rng: &mut Rng, request: &CallRequest, policy: &CallPolicy, now: Timestamp) -> ReferenceMachines {
    let before = now.before(millis(rng.between(0, 3_000)));
    let mut machines = ReferenceMachines {
        breaker: CircuitBreaker::default(),
        dependency: optional(rng, |_| CircuitBreaker::default()),
        budget: RetryBudget::default(),
        limiter: Limiter::default(),
        dependency_limiter: Limiter::default(),
        guard: LoopGuard::default(),
        trust: TrustLedger::default(),
        approvals: ApprovalLedger::default(),
    };
    let dependency = machines.dependency.iter_mut();
    for breaker in std::iter::once(&mut machines.breaker).chain(dependency).filter(|_| rng.chance(20)) {
        fail(breaker, policy, before);
    }
    if rng.chance(20) {
        let _others = machines.limiter.try_acquire(&policy.limits, before);
        let _others = machines.dependency_limiter.try_acquire(&policy.dependency_limits, before);
    }
    let call = GuardedCall { tool: &request.tool, arguments: request.digest, turn: request.turn.as_ref() };
    if rng.chance(15) {
        let message = "it failed before";
        let ending = steadfast_core::guard::GuardedResult::Failure { message, mistake: None };
        drop(machines.guard.end(&policy.guard, call, ending, before));
    }
    for _ in 0..rng.between(0, 9) / 7 {
        fails_trust(&mut machines.trust, request, policy, before);
    }
    let is_blocked = rng.chance(8);
    if is_blocked {
        machines.trust.block_tool(&request.tool, "by hand", NotifyChoice::Yes, before);
    }
    if rng.chance(30) {
        let subject = approval_subject(request, is_blocked);
        let pending = machines.approvals.ask(
            subject,
            &Escalation::routine(&request.tool),
            None,
            &policy.approval,
            before,
        );
        let decision = *rng.pick(&[ApprovalDecision::Once, ApprovalDecision::Session]);
        let decided: Result<DecisionEffect, _> =
            machines.approvals.decide(pending.id, decision, Grantor::Operator, before);
        drop(decided);
    }
    machines
}

/// Feeds enough failures to open the breaker.
fn fail(breaker: &mut CircuitBreaker, policy: &CallPolicy, at: Timestamp) {
    for _ in 0..policy.breaker.consecutive.map_or(1, NonZeroU32::get) {
        if let Ok((ticket, _)) = breaker.admit(&policy.breaker, at) {
            breaker.record(&policy.breaker, ticket, BreakerVerdict::Failure { took: Duration::ZERO }, at);
        }
    }
}

fn fails_trust(trust: &mut TrustLedger, request: &CallRequest, policy: &CallPolicy, at: Timestamp) {
    let rules = TrustRules { signature: &policy.trust, domain: None };
    let subject = TrustSubject { tool: &request.tool, signature: &request.signature, domain: None };
    let finished = FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: true };
    trust.record(rules, subject, finished, at);
}

/// Lets other calls use the same machines meanwhile.
fn interfere(
    rng: &mut Rng,
    one: &mut ReferenceMachines,
    other: &mut ReferenceMachines,
    request: &CallRequest,
    now: Timestamp,
) {
    let action = rng.between(0, 5);
    for machines in [one, other] {
        match action {
            0 => drop(machines.trust.block_tool(&request.tool, "by hand", NotifyChoice::Yes, now)),
            1 => drop(machines.breaker.force_open(None, now)),
            2 => drop(machines.breaker.reset(now)),
            3 => drop(
                machines.dependency.as_mut().map(|breaker| breaker.force_open(Some(now + millis(100)), now)),
            ),
            4 => machines.limiter.release(),
            _ => drop(machines.trust.reset(steadfast_core::trust::TrustTarget::All, now)),
        }
    }
}

// ---- events ----

fn event(rng: &mut Rng, call: &Call, step: &NextStep, now: Timestamp) -> CallEvent {
    let owner = call.claimed_record().map(|record| record.owner.clone());
    // Few calls release their claim.
    let most = if call.state() == "GivingBack" { 9 } else { 39 };
    match rng.between(0, most) {
        0 => return CallEvent::Cancelled(*rng.pick(&[OtherWaiters::None, OtherWaiters::Waiting])),
        1 => return CallEvent::Disconnected(*rng.pick(&[OtherWaiters::None, OtherWaiters::Waiting])),
        // The reply to a renewal may be late and concern a claim that no longer exists.
        2 | 5 if call.state() != "Renewing" => {
            return renewed(rng, owner.unwrap_or_else(|| owner_of(9)), now);
        }
        3 => return CallEvent::Woke(if rng.chance(50) { WakeReason::Time } else { WakeReason::Changed }),
        4 => return CallEvent::Progressed,
        _ => {}
    }
    let fails = |rng: &mut Rng, event: CallEvent| {
        let fault = *rng.pick(&[StoreFault::NotDone, StoreFault::Unanswered]);
        if rng.chance(12) { CallEvent::StoreFailed(fault) } else { event }
    };
    match call.state() {
        "Looking" | "Claiming" => {
            let verdict = match step {
                NextStep::Claim(claim) => verdict(rng, claim, now),
                _ => ClaimVerdict::Nothing,
            };
            if rng.chance(if call.state() == "Claiming" { 25 } else { 10 }) {
                CallEvent::StoreFailed(*rng.pick(&[StoreFault::NotDone, StoreFault::Unanswered]))
            } else {
                CallEvent::Claimed(verdict)
            }
        }
        "Following" | "AwaitingEnd" => CallEvent::Woke(match rng.between(0, 5) {
            0 => WakeReason::LeaderRefused(Box::new(a_failure(Code::CircuitOpen))),
            1 | 2 => WakeReason::Changed,
            _ => WakeReason::Time,
        }),
        "AwaitingApproval" => match rng.between(0, 7) {
            0 => CallEvent::Answered(ApprovalOutcome::Denied),
            1 => CallEvent::Answered(ApprovalOutcome::Unreachable),
            2 => CallEvent::Answered(ApprovalOutcome::Granted(None)),
            3 => CallEvent::Answered(ApprovalOutcome::ReturnedToCaller(output("a question"))),
            4 => CallEvent::Woke(WakeReason::Time),
            _ => CallEvent::Answered(ApprovalOutcome::Granted(Some(GrantId(3)))),
        },
        "GivingBack" | "Releasing" => fails(rng, CallEvent::Released),
        "Spending" => {
            let spend = *rng.pick(&[
                SpendVerdict::Spent,
                SpendVerdict::Spent,
                SpendVerdict::AlreadyMine,
                SpendVerdict::Holds,
                SpendVerdict::Lost,
                SpendVerdict::Gone,
            ]);
            fails(rng, CallEvent::Spent(spend))
        }
        "Starting" => {
            let verdict = if rng.chance(85) { StartVerdict::Started } else { StartVerdict::Lost };
            fails(rng, CallEvent::Started(verdict))
        }
        "Probing" => fails(rng, CallEvent::Probed),
        "Attempting" => match rng.between(0, 9) {
            0 => CallEvent::Progressed,
            1..4 => CallEvent::Woke(WakeReason::Time),
            4 if rng.chance(20) => CallEvent::Settled,
            _ => CallEvent::Ran(outcome(rng)),
        },
        "BackingOff" => CallEvent::Woke(WakeReason::Time),
        "Renewing" => match owner {
            Some(owner) => {
                let event = renewed(rng, owner, now);
                fails(rng, event)
            }
            None => CallEvent::Woke(WakeReason::Time),
        },
        // Its child was observed to end after it had answered.
        "Saving" if rng.chance(5) => CallEvent::Settled,
        "Marking" | "Saving" => {
            let receipt = DeliveryReceipt { key: key("explicit"), owner: owner_of(1), version: 3 };
            let verdict = if rng.chance(90) { SaveVerdict::Saved(receipt) } else { SaveVerdict::FenceLost };
            fails(rng, CallEvent::Saved(verdict))
        }
        "Settling" => match rng.between(0, 9) {
            0 => CallEvent::Settled,
            1 if rng.chance(30) => CallEvent::DriverEnds,
            2 | 3 => CallEvent::Ran(outcome(rng)),
            _ => CallEvent::Woke(WakeReason::Time),
        },
        _ => CallEvent::Woke(WakeReason::Time),
    }
}

fn renewed(rng: &mut Rng, owner: ClaimOwner, now: Timestamp) -> CallEvent {
    let sent = now.before(millis(*rng.pick(&[0, 10, 1_000])));
    let verdict = *rng.pick(&[
        RenewVerdict::Renewed,
        RenewVerdict::Renewed,
        RenewVerdict::Renewed,
        RenewVerdict::MarkedUnknown,
        RenewVerdict::Lost,
    ]);
    let owner = if rng.chance(90) { owner } else { owner_of(9) };
    CallEvent::Renewed { owner, sent, verdict }
}

/// Returns another owner.
fn owner_of(call: u64) -> ClaimOwner {
    ClaimOwner { process: ProcessIdentity { boot: "boot".into(), pid: 2, started: 1 }, call, claim: 1 }
}

fn verdict(rng: &mut Rng, claim: &Claim, now: Timestamp) -> ClaimVerdict {
    let receipt = DeliveryReceipt { key: key("explicit"), owner: owner_of(1), version: 2 };
    let is_look = claim.intent == steadfast_core::dedupe::ClaimIntent::Look;
    let unknown = |rng: &mut Rng, receipt: DeliveryReceipt| {
        let left = millis(*rng.pick(&[1, 400, 600, 5_000]));
        ClaimVerdict::Unknown(Box::new(UnknownOutcomeStatus {
            end: *rng.pick(&[
                SettleStatus::Settled,
                SettleStatus::NotYet(None),
                SettleStatus::NotYet(Some(left)),
            ]),
            observed: UnknownOutcomeReason::NoAnswer,
            details: None,
            output: None,
            runs_in: optional(rng, |_| millis(700)),
            receipt,
        }))
    };
    match rng.between(0, 19) {
        0 | 1 => ClaimVerdict::Follow(receipt.key),
        2 => ClaimVerdict::Busy,
        3 | 4 => {
            let answer = match rng.between(0, 3) {
                0 => Err(a_failure(Code::ToolError)),
                1 => Ok(None),
                _ => Ok(Some(output("an answer"))),
            };
            let reason = *rng.pick(&[
                ReplayReason::SameKey,
                ReplayReason::Undelivered,
                ReplayReason::DoubleDispatch,
                ReplayReason::Waited,
            ]);
            ClaimVerdict::Replay(Box::new(ReplayedResult { answer, reason, age: millis(10), receipt }))
        }
        5..8 => unknown(rng, receipt),
        8 if !is_look => unknown(rng, DeliveryReceipt { owner: claim.owner.clone(), ..receipt }),
        9 => ClaimVerdict::Conflict,
        10 => {
            rng.pick(&[ClaimVerdict::Full, ClaimVerdict::StoreRecovering, ClaimVerdict::RecordsLost]).clone()
        }
        _ if is_look => ClaimVerdict::Nothing,
        _ => {
            let mut claim = claim.clone();
            if rng.chance(10) {
                claim.run = RunId("the run of another".into());
            }
            decide_claim(&claim, FoundRecords::default(), &LocalKnowledge::default(), now).verdict
        }
    }
}

fn outcome(rng: &mut Rng) -> AttemptReport {
    let failure = |source: FaultSource| AttemptReport::Failure {
        fault: AttemptFault::new(source, "words of the tool"),
        output: None,
    };
    match rng.between(0, 13) {
        0..4 => AttemptReport::Success {
            output: output("done"),
            concern: rng.chance(10).then_some(Severity::ServerError),
        },
        4 => AttemptReport::InputRequired { output: output("a question") },
        5 => AttemptReport::NotRun {
            fault: AttemptFault::new(
                FaultSource::Transport { error: TransportError::Other, written: false },
                "not run",
            ),
        },
        6 => failure(FaultSource::Transport {
            error: TransportError::ConnectionReset,
            written: rng.chance(70),
        }),
        7 => failure(FaultSource::Http { status: *rng.pick(&[400, 404, 408, 413, 429, 500, 503]) }),
        8 => {
            let wait = RetryAfter::Delay(millis(*rng.pick(&[0, 100, 1_000, 100_000])));
            let fault = AttemptFault {
                retry_after: Some(wait),
                ..AttemptFault::new(FaultSource::Http { status: 503 }, "later")
            };
            AttemptReport::Failure { fault, output: None }
        }
        9 => failure(FaultSource::Exit { code: Some(1), signal: None }),
        10 => failure(
            rng.pick(&[
                FaultSource::SessionLost,
                FaultSource::Panic,
                FaultSource::BadAnswer,
                FaultSource::TooLarge,
            ])
            .clone(),
        ),
        11 => failure(FaultSource::Timeout { after: millis(10) }),
        12 => AttemptReport::Failure {
            fault: AttemptFault::new(FaultSource::IsError, "it is not allowed"),
            output: Some(output("no")),
        },
        _ => AttemptReport::Failure {
            fault: AttemptFault::new(FaultSource::IsError, "Request timed out"),
            output: Some(output("late")),
        },
    }
}

fn output(text: &str) -> ToolOutput {
    ToolOutput { content: RawJson::string(text), metadata: None }
}

fn a_failure(code: Code) -> CallFailure {
    CallFailure {
        code,
        message: "it failed elsewhere".into(),
        retriable: true,
        terminal: false,
        rule: Some("a rule".into()),
        verify: None,
        retry_after: None,
        output: None,
    }
}

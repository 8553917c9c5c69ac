//! Approvals: their order with claim and start, and calls that get no decision.

use super::*;
use crate::classify::Severity;
use crate::dedupe::{DeliveryReceipt, ReplayReason, ReplayedResult};
use crate::policy::DangerousCommandPolicy;
use crate::trust::{TrustState, TrustTarget};

/// A policy that asks before every call.
fn always_requires_approval() -> CallPolicy {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    policy
}

fn interactive(policy: &CallPolicy, key: &str) -> CallRequest {
    from_envelope_on(&keyed(key), policy, ApprovalChannel::Interactive)
}

/// A tool that lost trust.
pub(super) fn escalated(world: &mut CallTestWorld, policy: &CallPolicy) {
    let request = request(policy);
    for _ in 0..3 {
        let subject = TrustSubject { tool: &request.tool, signature: &request.signature, domain: None };
        let finished =
            crate::trust::FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: true };
        world.trust.record(
            TrustRules { signature: &policy.trust, domain: None },
            subject,
            finished,
            world.now,
        );
    }
}

/// A tool that only an operator may allow.
pub(super) fn blocked(world: &mut CallTestWorld, policy: &CallPolicy) {
    let request = request(policy);
    let subject = TrustSubject { tool: &request.tool, signature: &request.signature, domain: None };
    let finished = crate::trust::FinishedOutcome::Failure { severity: Severity::Security, recoverable: true };
    world.trust.record(TrustRules { signature: &policy.trust, domain: None }, subject, finished, world.now);
}

#[test]
fn approval_comes_after_the_claim_so_that_duplicates_wait_for_one_decision() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    let (mut leader, step) = world.begin(interactive(&policy, "k"), &policy);
    let NextStep::Ask(ask) = &step else { panic!("{step:?}") };
    assert_eq!((ask.until, ask.operator_only), (START + 45 * SECOND, false));
    assert_eq!(world.store.records.iter().next().map(|record| record.started), Some(false));
    let (mut follower, step) = world.begin(interactive(&policy, "k"), &policy);
    assert_eq!(name_of(&step), "Follow");
    assert_eq!(name_of(&world.on(&mut leader, CallEvent::Answered(ApprovalOutcome::Granted(None)))), "Run");
    assert_eq!(world.steps, ["ClaimOnly", "Ask", "ClaimOnly", "Follow", "Start", "Run"]);
    finished(world.on(&mut leader, CallEvent::Ran(paid())));
    assert!(finished(world.on(&mut follower, CallEvent::Woke(WakeReason::Changed))).was_followed());
    assert_eq!(world.runs, 1);
    assert!(world.has(&CallNotice::ApprovalEnded { granted: true }));
}

#[test]
fn a_grant_is_spent_in_the_name_of_the_owner_before_the_start_is_written() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    world.grant_once(&request(&policy), &policy);
    let (call, step) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&step), "Run");
    assert_eq!(world.steps, ["ClaimOnly", "Spend", "Start", "Run"]);
    let owner = call.record().unwrap().owner.digest();
    assert_eq!(world.approvals.spend(GrantId(1), owner, world.now), SpendVerdict::AlreadyMine);
}

#[test]
fn a_grant_for_one_call_stays_spent_when_the_tool_was_called_and_refused() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    world.grant_once(&request(&policy), &policy);
    let (mut call, _) = world.begin(request(&policy), &policy);
    let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(http(413))));
    assert_eq!((code(&result), world.runs), (Some(Code::ToolError), 1));
    assert_eq!(deferred, vec![]);
    assert_eq!(code(&world.drive(request(&policy), &policy, &[])), Some(Code::ApprovalRequired));
}

#[test]
fn of_two_calls_with_one_grant_one_runs_and_the_other_requests_approval_again() {
    let policy = always_requires_approval();
    for channel in [ApprovalChannel::Headless, ApprovalChannel::Interactive] {
        let mut world = CallTestWorld::new();
        world.grant_once(&request(&policy), &policy);
        let (mut second, step) = world.begin_only(from_envelope_on(&keyed("b"), &policy, channel), &policy);
        let NextStep::Claim(claim) = step else { panic!("{step:?}") };
        let verdict = world.store.claim(&claim, world.now);
        let spend = world.on_only(&mut second, CallEvent::Claimed(verdict)).unwrap();
        assert_eq!(name_of(&spend), "Spend");
        let (_, step) = world.begin(from_envelope_on(&keyed("a"), &policy, channel), &policy);
        assert_eq!(name_of(&step), "Run");
        let step = world.serve(&mut second, spend);
        match channel {
            ApprovalChannel::Interactive => assert_eq!(name_of(&step), "Ask"),
            ApprovalChannel::Headless => {
                let (result, deferred) = finished_with_deferred(step);
                assert_eq!(code(&result), Some(Code::ApprovalRequired));
                assert!(matches!(&deferred[..], [DeferredWrite::Park(_)]), "{deferred:?}");
                assert_eq!(world.store.records.len(), 1, "its claim is released");
            }
        }
        assert_eq!(world.runs, 1);
    }
}

#[test]
fn without_an_approver_the_call_is_refused_at_once_and_parked() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    let (_, step) = world.begin(request(&policy), &policy);
    let (result, deferred) = finished_with_deferred(step);
    assert_eq!((code(&result), rule(&result)), (Some(Code::ApprovalRequired), "trust.escalated"));
    assert_eq!((world.steps.as_slice(), world.store.writes), (["Look", "Finish"].as_slice(), 0));
    let [DeferredWrite::Park(ask)] = &deferred[..] else { panic!("{deferred:?}") };
    assert!(!ask.operator_only);
    // When granted, the next such call passes.
    world.grant_once(&request(&policy), &policy);
    let (_, step) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&step), "Run");
}

/// An approval does not cover failures of the tool that become known after it.
#[test]
fn an_approval_from_before_the_block_does_not_let_the_tool_run() {
    let policy = always_requires_approval();
    for channel in [ApprovalChannel::Headless, ApprovalChannel::Interactive] {
        let mut world = CallTestWorld::new();
        let request = || from_envelope_on(&keyed("k"), &policy, channel);
        let (mut call, mut step) = match channel {
            ApprovalChannel::Headless => {
                world.grant_once(&request(), &policy);
                world.begin_only(request(), &policy)
            }
            ApprovalChannel::Interactive => {
                let (mut call, step) = world.begin(request(), &policy);
                assert_eq!(name_of(&step), "Ask");
                world.grant_once(&request(), &policy);
                let granted = CallEvent::Answered(ApprovalOutcome::Granted(Some(GrantId(1))));
                let step = world.on_only(&mut call, granted).unwrap();
                (call, step)
            }
        };
        while !matches!(step, NextStep::Start { .. }) {
            let event = world.store_event(&call, &step).expect("the store's business");
            step = world.on_only(&mut call, event).unwrap();
        }
        blocked(&mut world, &policy);
        let (result, deferred) = finished_with_deferred(world.serve(&mut call, step));
        assert_eq!((code(&result), world.runs), (Some(Code::ToolBlocked), 0), "{channel:?}");
        assert!(deferred.iter().any(|write| matches!(write, DeferredWrite::GiveBack { .. })), "{deferred:?}");
    }
}

/// A call of a blocked tool had an operator's grant, and another call spent it first. The operator restored the tool, so
/// the call asked again, and the client itself approved it. The tool was blocked again before the attempt: the client's
/// approval does not cover that, and the lost grant no longer does.
#[test]
fn a_lost_grant_for_a_blocked_tool_covers_no_later_block() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    let request = || interactive(&policy, "k");
    blocked(&mut world, &policy);
    world.grant_despite_block(&request(), &policy);
    let (mut call, mut step) = world.begin_only(request(), &policy);
    while !matches!(step, NextStep::Spend { .. }) {
        let event = world.store_event(&call, &step).expect("the store's business");
        step = world.on_only(&mut call, event).unwrap();
    }
    let other = ClaimOwner { process: process(), call: 99, claim: 1 };
    assert_eq!(world.approvals.spend(GrantId(1), other.digest(), world.now), SpendVerdict::Spent);
    let tool = request().tool;
    world.trust.reset(TrustTarget::Tool(&tool), world.now);
    let step = world.serve(&mut call, step);
    let NextStep::Ask(ask) = &step else { panic!("{step:?}") };
    assert!(!ask.operator_only);
    let mut step = world.on_only(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None))).unwrap();
    while !matches!(step, NextStep::Start { .. }) {
        let event = world.store_event(&call, &step).expect("the store's business");
        step = world.on_only(&mut call, event).unwrap();
    }
    world.pass(SECOND);
    blocked(&mut world, &policy);
    let result = finished(world.serve(&mut call, step));
    assert_eq!((code(&result), world.runs), (Some(Code::ToolBlocked), 0));
}

/// The claim was lost by then, or its state is unknown. In every case, nothing was done with the approval.
#[test]
fn an_approval_is_still_good_when_its_call_ends_without_an_attempt() {
    let policy = always_requires_approval();
    let owner = ClaimOwner { process: process(), call: 99, claim: 1 };
    let receipt = DeliveryReceipt { key: RecordKey(Digest::of(b"k")), owner, version: 2 };
    let answered = ReplayedResult {
        answer: Ok(Some(answer("paid"))),
        reason: ReplayReason::Waited,
        age: Duration::ZERO,
        receipt,
    };
    let ends = [
        ClaimVerdict::Replay(Box::new(answered)),
        ClaimVerdict::Conflict,
        ClaimVerdict::Full,
        ClaimVerdict::Busy,
    ];
    for end in ends {
        let mut world = CallTestWorld::new();
        let request = || from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Headless);
        world.grant_once(&request(), &policy);
        let (mut call, mut step) = world.begin_only(request(), &policy);
        while !matches!(step, NextStep::Start { .. }) {
            let event = world.store_event(&call, &step).expect("the store's business");
            step = world.on_only(&mut call, event).unwrap();
        }
        let step = world.on_only(&mut call, CallEvent::Started(StartVerdict::Lost)).unwrap();
        assert!(matches!(step, NextStep::Claim(_)), "it looks up its record: {step:?}");
        let event = end.clone();
        let (_, deferred) =
            finished_with_deferred(world.on_only(&mut call, CallEvent::Claimed(end)).unwrap());
        assert!(matches!(&deferred[..], [DeferredWrite::GiveBack { .. }]), "{event:?}: {deferred:?}");
    }
}

#[test]
fn a_denial_is_final_for_this_call_and_not_stored() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(interactive(&policy, "k"), &policy);
    let (result, deferred) =
        finished_with_deferred(world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Denied)));
    assert_eq!((code(&result), deferred), (Some(Code::ApprovalDenied), vec![]));
    assert_eq!((world.store.state(), world.runs), ("none", 0));
    assert!(world.has(&CallNotice::ApprovalEnded { granted: false }));
    let (_, step) = world.begin(interactive(&policy, "k"), &policy);
    assert_eq!(name_of(&step), "Ask", "the next call asks again");
}

/// A count of the calls that wait for approval includes these two.
#[test]
fn every_approval_that_is_reported_is_also_reported_to_end() {
    let policy = always_requires_approval();
    for end in [
        CallEvent::Answered(ApprovalOutcome::Granted(None)),
        CallEvent::Answered(ApprovalOutcome::Denied),
        CallEvent::Answered(ApprovalOutcome::Unreachable),
        CallEvent::Cancelled(OtherWaiters::None),
        CallEvent::Disconnected(OtherWaiters::None),
    ] {
        let mut world = CallTestWorld::new();
        let (mut call, step) = world.begin(interactive(&policy, "k"), &policy);
        assert_eq!(name_of(&step), "Ask");
        world.on(&mut call, end.clone());
        let requests = world.count(|notice| *notice == CallNotice::ApprovalRequested);
        let over = world.count(|notice| matches!(notice, CallNotice::ApprovalEnded { .. }));
        assert_eq!((requests, over), (1, 1), "{end:?}");
    }
}

#[test]
fn an_unanswered_question_is_parked_when_its_time_is_over_and_within_the_deadline() {
    let policy = always_requires_approval();
    for (deadline, until) in [(None, 45 * SECOND), (Some(10 * SECOND), 10 * SECOND)] {
        let mut request = interactive(&policy, "k");
        request.limits.deadline = deadline.map(|span| START + span);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request, &policy);
        assert_eq!(call.wake_at(), Some(START + until));
        world.pass(SECOND);
        assert_eq!(
            name_of(&world.on(&mut call, CallEvent::Woke(WakeReason::Time))),
            "Stay",
            "a timer that fires early"
        );
        let (result, deferred) = finished_with_deferred(world.wake(&mut call));
        assert_eq!((code(&result), world.store.state()), (Some(Code::ApprovalRequired), "none"));
        assert!(matches!(&deferred[..], [DeferredWrite::Park(_)]), "{deferred:?}");
    }
}

#[test]
fn a_follower_of_a_refused_leader_gets_that_refusal_and_in_another_process_claims_for_itself() {
    let policy = always_requires_approval();
    let mut world = CallTestWorld::new();
    let (mut leader, _) = world.begin(interactive(&policy, "k"), &policy);
    let (mut here, _) = world.begin(interactive(&policy, "k"), &policy);
    let (mut elsewhere, _) = world.begin(interactive(&policy, "k"), &policy);
    let refused = finished(world.on(&mut leader, CallEvent::Answered(ApprovalOutcome::Denied)));
    let refusal = Box::new(refused.outcome.unwrap_err());
    let result = finished(world.on(&mut here, CallEvent::Woke(WakeReason::LeaderRefused(refusal))));
    assert_eq!((code(&result), result.provenance), (Some(Code::ApprovalDenied), Provenance::Fresh));
    assert_eq!(name_of(&world.on(&mut elsewhere, CallEvent::Woke(WakeReason::Changed))), "Ask");
}

#[test]
fn a_tool_that_lost_trust_requires_approval_and_an_approval_overrides_the_escalation() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    escalated(&mut world, &policy);
    let (mut call, step) = world.begin(interactive(&policy, "k"), &policy);
    let NextStep::Ask(ask) = step else { panic!("{step:?}") };
    assert_eq!((ask.escalation.state, ask.escalation.failures), (TrustState::Escalated, 3));
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)))), "Run");

    let mut never = policy;
    never.approval.when = ApprovalTrigger::Never;
    let (_, step) = world.begin(request(&never), &never);
    assert_eq!(name_of(&step), "Follow", "no approval is requested with `never`");
}

#[test]
fn a_blocked_tool_is_for_operators_only() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let tool = request(&policy).tool;
    world.trust.block_tool(&tool, "an operator said so", crate::trust::NotifyChoice::No, world.now);
    let (_, step) = world.begin(interactive(&policy, "k"), &policy);
    let (result, deferred) = finished_with_deferred(step);
    assert_eq!(code(&result), Some(Code::ToolBlocked));
    let [DeferredWrite::Park(ask)] = &deferred[..] else { panic!("{deferred:?}") };
    assert!(ask.operator_only);
}

#[test]
fn a_dangerous_command_runs_and_then_blocks_its_tool_with_any_outcome() {
    let envelope =
        envelope_with(&json!({ "payload": { "idempotencyKey": "k", "params": { "command": "rm -rf /" } } }));
    for outcome in [paid(), http(400), timed_out()] {
        let policy = policy(ToolClass::Mutating);
        let mut world = CallTestWorld::new();
        world.post(&envelope, &policy, &at_once(outcome.clone()));
        assert_eq!(world.runs, 1);
        let next = world.post(&keyed("other"), &policy, &[]);
        assert_eq!(next.error.map(|error| error.code), Some(Code::ToolBlocked), "{outcome:?}");
    }
}

#[test]
fn a_dangerous_command_requires_approval_if_that_is_set() {
    let envelope =
        envelope_with(&json!({ "payload": { "idempotencyKey": "k", "params": { "command": "rm -rf /" } } }));
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.dangerous = DangerousCommandPolicy::Ask;
    let mut world = CallTestWorld::new();
    let (mut call, step) =
        world.begin(from_envelope_on(&envelope, &policy, ApprovalChannel::Interactive), &policy);
    let NextStep::Ask(ask) = step else { panic!("{step:?}") };
    assert!(ask.escalation.reason.contains("dangerous shape"), "{}", ask.escalation.reason);
    world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    finished(world.on(&mut call, CallEvent::Ran(paid())));
    let next = world.post(&keyed("other"), &policy, &at_once(paid()));
    assert_eq!(next.error, None, "an approved call blocks nothing");
    let (_, step) = world.begin(
        from_envelope(
            &envelope_with(&json!({ "payload": { "params": { "command": "rm -rf /" } } })),
            &policy,
        ),
        &policy,
    );
    assert_eq!(code(&finished(step)), Some(Code::ApprovalRequired));
}

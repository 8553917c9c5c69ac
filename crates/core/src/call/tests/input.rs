//! Tools that ask for input first: the question goes to the caller, and nothing of the call is kept.

use super::probe::open_until_now;
use super::*;
use crate::guard::GuardLayer;
use crate::policy::DangerousCommandPolicy;

/// Returns the same call with the input, as a surface sends it: with a key of its own.
fn next_round(policy: &CallPolicy) -> CallRequest {
    from_envelope(&keyed("k, second round"), policy)
}

#[test]
fn an_input_request_is_returned_to_its_caller_and_the_claim_is_released() {
    for class in [ToolClass::ReadOnly, ToolClass::Idempotent, ToolClass::Mutating, ToolClass::Unknown] {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        let result = world.drive(request(&policy), &policy, &at_once(input_required()));
        assert_eq!(result.outcome, Ok(answer("which account?")), "{class:?}");
        assert_eq!(
            (result.stage, result.recorded),
            (ResultStage::InputRequired, RecordStatus::NotAsked),
            "{class:?}"
        );
        assert_eq!(result.receipt, None, "nothing that could be delivered is stored");
        assert_eq!(world.steps, ["Claim", "Run", "Release", "Finish"], "{class:?}");
        assert_eq!(world.store.state(), "none", "{class:?}");
        assert_eq!(world.count(|notice| *notice == CallNotice::InputRequired), 1);
    }
}

#[test]
fn a_new_call_after_an_input_request_gets_it_again_and_the_next_round_runs_once() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    for _ in 0..2 {
        world.drive(request(&policy), &policy, &at_once(input_required()));
    }
    assert_eq!(world.runs, 2, "a question is never replayed");
    let first = world.drive(next_round(&policy), &policy, &at_once(paid()));
    let second = world.drive(next_round(&policy), &policy, &at_once(paid()));
    assert_eq!((first.stage, second.stage), (ResultStage::Final, ResultStage::Final));
    assert_eq!(world.runs, 3, "the deed is done once, and its answer is replayed");
    assert!(matches!(second.provenance, Provenance::Replayed { .. }));
}

#[test]
fn a_follower_of_a_run_that_requests_input_makes_its_own_claim() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut leader, _) = world.begin(request(&policy), &policy);
    let (mut follower, step) = world.begin(request(&policy), &policy);
    assert!(matches!(step, NextStep::Follow(_)));
    world.on(&mut leader, CallEvent::Ran(input_required()));
    let step = world.on(&mut follower, CallEvent::Woke(WakeReason::Changed));
    assert!(matches!(step, NextStep::Run(_)), "the question was the other's: {step:?}");
    let result = finished(world.on(&mut follower, CallEvent::Ran(input_required())));
    assert_eq!((result.stage, result.provenance), (ResultStage::InputRequired, Provenance::Fresh));
}

#[test]
fn a_question_is_a_good_answer_for_the_breaker() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    open_until_now(&mut world, &policy);
    for _ in 0..2 {
        world.drive(request(&policy), &policy, &at_once(input_required()));
    }
    assert_eq!(world.breaker_state(&policy), breaker::State::Closed, "two good probes close it");
}

#[test]
fn a_question_is_neither_a_success_nor_a_failure_for_the_guard() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let trips =
        |world: &CallTestWorld| world.count(|notice| matches!(notice, CallNotice::GuardTripped { .. }));
    for _ in 0..8 {
        let result = world.drive(request(&policy), &policy, &at_once(input_required()));
        assert_eq!(result.remarks, []);
    }
    assert_eq!(trips(&world), 0, "asking again and again is no loop of failures");
    // A failure before and one after it are two in a row, despite the question in between.
    let other = from_envelope(&keyed("other"), &policy);
    world.drive(from_envelope(&keyed("first"), &policy), &policy, &at_once(http(400)));
    world.drive(other, &policy, &at_once(input_required()));
    let third = world.drive(from_envelope(&keyed("third"), &policy), &policy, &at_once(http(400)));
    assert_eq!(third.remarks.iter().map(|remark| remark.layer).collect::<Vec<_>>(), [GuardLayer::Loop]);
}

#[test]
fn an_input_request_does_not_change_trust_even_for_a_dangerous_command() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.dangerous = DangerousCommandPolicy::Record;
    let mut world = CallTestWorld::new();
    let envelope = envelope_with(&json!({ "payload": { "params": { "command": "rm -rf /" } } }));
    let request = from_envelope(&envelope, &policy);
    assert!(request.danger.is_some(), "the command of this test is a dangerous one");
    world.drive(request.clone(), &policy, &at_once(input_required()));
    assert_eq!(world.count(|notice| matches!(notice, CallNotice::TrustChanged(_))), 0);
    world.drive(request, &policy, &at_once(paid()));
    assert_ne!(
        world.count(|notice| matches!(notice, CallNotice::TrustChanged(_))),
        0,
        "when it ran, it counts"
    );
}

/// The call was approved, and the tool asks for input first: the approver is not asked again.
#[test]
fn a_grant_for_one_call_is_returned_when_the_tool_only_requests_input() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    world.grant_once(&request(&policy), &policy);
    let (mut call, _) = world.begin(request(&policy), &policy);
    let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(input_required())));
    assert_eq!(result.stage, ResultStage::InputRequired);
    let [DeferredWrite::GiveBack { grant, owner }] = &deferred[..] else { panic!("{deferred:?}") };
    world.approvals.return_grant(*grant, Digest::of(b"another owner"));
    assert_eq!(code(&world.drive(next_round(&policy), &policy, &[])), Some(Code::ApprovalRequired));
    world.approvals.return_grant(*grant, owner.digest());
    let (mut call, _) = world.begin(next_round(&policy), &policy);
    let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(paid())));
    assert_eq!((result.stage, deferred), (ResultStage::Final, vec![]));
    assert_eq!(
        code(&world.drive(request(&policy), &policy, &[])),
        Some(Code::ApprovalRequired),
        "it is spent now"
    );
    assert_eq!(world.runs, 2);

    // If an earlier attempt may have done it, the grant stays spent.
    let mut policy = super::policy(ToolClass::Idempotent);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    world.grant_once(&request(&policy), &policy);
    let (mut call, _) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(http(502)))), "Wait");
    world.wake(&mut call);
    let (_, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(input_required())));
    assert_eq!(deferred, vec![]);
}

#[test]
fn an_input_request_that_comes_too_late_leaves_no_unknown_outcome() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    let (response, _) = answered(world.cut(&mut call));
    assert_eq!(code(&response), Some(Code::OutcomeUnknown));
    assert_eq!(world.store.state(), "unknown");
    finished(world.on(&mut call, CallEvent::Ran(input_required())));
    assert_eq!(world.store.state(), "none", "it has done nothing, so the next call may run");
}

#[test]
fn a_claim_that_cannot_be_released_is_released_later() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(input_required())));
    assert_eq!(result.stage, ResultStage::InputRequired);
    assert!(matches!(deferred.as_slice(), [DeferredWrite::Release(_)]), "{deferred:?}");
}

#[test]
fn an_approval_request_to_the_caller_leaves_no_claim() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    let (mut call, step) = world.begin(request, &policy);
    assert!(matches!(step, NextStep::Ask(_)), "{step:?}");
    let question = CallEvent::Answered(ApprovalOutcome::ReturnedToCaller(answer("may it run?")));
    let (result, deferred) = finished_with_deferred(world.on(&mut call, question));
    assert_eq!((result.outcome, result.stage), (Ok(answer("may it run?")), ResultStage::InputRequired));
    assert_eq!((world.store.state(), world.runs, deferred), ("none", 0, Vec::new()));
    assert!(world.has(&CallNotice::ApprovalEnded { granted: false }), "no approval is pending any more");
}

//! Calls that the host answered itself.

use super::*;
use crate::guard::GuardVerdict;

fn answer(world: &mut CallTestWorld, policy: &CallPolicy, answer: HostAnswer) -> (Call, CallResult) {
    let (request, policy) = (request(policy), Arc::new(policy.clone()));
    let (call, result) = world.shared(|shared, now, notices| {
        Call::count_host_answer(shared, request, policy, now, answer, notices)
    });
    assert!(call.is_finished());
    (call, *result)
}

fn invalid() -> HostAnswer {
    HostAnswer::InvalidArguments { message: "path: required".to_owned() }
}

fn failure(source: FaultSource) -> HostAnswer {
    HostAnswer::Failure { fault: AttemptFault::new(source, "it failed"), output: None }
}

#[test]
fn each_answer_of_a_host_has_its_code_and_counts_as_it_should() {
    let output = ToolOutput { content: RawJson::from_trusted("7"), metadata: None };
    let denied = || HostAnswer::Denied { message: "the user said no".to_owned() };
    let unknown = || HostAnswer::UnknownTool { message: "no tool raed".to_owned() };
    let lost = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
    for (given, code_of_answer, has_score, in_history) in [
        (HostAnswer::Output { output, concern: None }, None, true, 0),
        (failure(FaultSource::Tool), Some(Code::ToolError), true, 1),
        // Never "the outcome is unknown": the host was there and knows more than we do.
        (failure(lost), Some(Code::UpstreamUnavailable), true, 1),
        (invalid(), Some(Code::InvalidArguments), true, 1),
        (unknown(), Some(Code::UnknownTool), true, 1),
        (denied(), Some(Code::ApprovalDenied), false, 0),
    ] {
        let mut world = CallTestWorld::new();
        let (call, result) = answer(&mut world, &policy(ToolClass::Mutating), given.clone());
        assert_eq!(code(&result), code_of_answer, "{given:?}");
        assert_eq!(call.score_outcome().is_some(), has_score, "{given:?}");
        assert_eq!(world.trust.history(None).count(), in_history, "{given:?}");
        assert_eq!(call.failure_record(&result, world.now).is_some(), in_history == 1, "{given:?}");
        // It claims nothing, and no breaker counts it.
        assert_eq!((world.store.writes, world.breaker.counts().failures), (0, 0), "{given:?}");
        assert_eq!(world.limiter.in_flight(), 0, "{given:?}");
        assert!(matches!(world.notices.first(), Some(CallNotice::CallStarted { .. })), "{given:?}");
        assert!(matches!(world.notices.last(), Some(CallNotice::CallFinished { .. })), "{given:?}");
    }
}

#[test]
fn the_second_identical_answer_is_a_loop_and_the_next_call_is_refused() {
    for given in [invalid(), failure(FaultSource::Tool), HostAnswer::Denied { message: "no".to_owned() }] {
        let policy = policy(ToolClass::Mutating);
        let mut world = CallTestWorld::new();
        let (_, first) = answer(&mut world, &policy, given.clone());
        assert_eq!(first.guard_verdict(), GuardVerdict::None, "{given:?}");
        let (_, second) = answer(&mut world, &policy, given.clone());
        assert_eq!(second.guard_verdict(), GuardVerdict::LoopDetected, "{given:?}");
        let (_, step) = world.begin(request(&policy), &policy);
        let refused = finished(step);
        assert_eq!(
            (code(&refused), refused.guard_verdict()),
            (Some(Code::LoopDetected), GuardVerdict::LoopDetected),
            "{given:?}"
        );
    }
}

#[test]
fn a_success_between_two_failures_of_a_host_ends_the_loop() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    answer(&mut world, &policy, failure(FaultSource::Tool));
    let output = ToolOutput { content: RawJson::from_trusted("7"), metadata: None };
    answer(&mut world, &policy, HostAnswer::Output { output, concern: None });
    let (_, again) = answer(&mut world, &policy, failure(FaultSource::Tool));
    assert_eq!(again.guard_verdict(), GuardVerdict::None);
}

#[test]
fn with_every_mechanism_off_an_answer_counts_for_nothing() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes = crate::policy::MechanismModes::all(EnforcementMode::Off);
    let mut world = CallTestWorld::new();
    for _ in 0..3 {
        let (call, result) = answer(&mut world, &policy, invalid());
        assert_eq!((result.remarks.len(), call.score_outcome()), (0, None));
    }
    assert_eq!(world.trust.history(None).count(), 0);
}

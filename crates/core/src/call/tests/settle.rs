//! Unknown outcomes: recorded first, then returned, then settled.

use std::num::NonZeroU32;

use super::*;
use crate::policy::{EffectLocation, SettlingPolicy};

/// A tool in a child process whose effects do not outlive it.
fn child() -> CallPolicy {
    let mut policy = policy(ToolClass::Mutating).for_gateway();
    policy.settling.effects = EffectLocation::Local;
    policy
}

fn at_child(policy: &CallPolicy) -> CallRequest {
    CallRequest { end: AttemptEndVisibility::Visible, ..keyless(policy) }
}

fn died() -> AttemptReport {
    fails(FaultSource::Exit { code: None, signal: Some(9) })
}

fn is_error(words: &str) -> AttemptReport {
    AttemptReport::Failure {
        fault: AttemptFault::new(FaultSource::IsError, words),
        output: Some(answer(words)),
    }
}

fn failure(result: &CallResult) -> &CallFailure {
    result.outcome.as_ref().expect_err("the result is a failure")
}

/// The caller has checked since it got the response.
fn verify_all(world: &mut CallTestWorld) {
    world.store.known.verified = world.store.records.iter().map(|record| record.owner.clone()).collect();
}

#[test]
fn a_child_that_dies_gets_a_final_response_once_nothing_is_left_of_it() {
    let policy = child();
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    assert_eq!(world.on(&mut call, CallEvent::Ran(died())), NextStep::Wait, "its end is waited for");
    assert_eq!(world.store.state(), "unknown", "and recorded before that");
    assert!(call.awaits_end());
    world.pass(SECOND);
    let result = finished(world.on(&mut call, CallEvent::Settled));
    assert_eq!(
        (code(&result), failure(&result).retry_after),
        (Some(Code::OutcomeUnknown), Some(10 * SECOND))
    );
    assert!(result.receipt.is_some(), "this is final");
    assert!(failure(&result).message.contains("the process running the call ended before it responded"));
    assert!(failure(&result).message.contains("The call has ended"));
}

#[test]
fn work_that_a_child_may_have_handed_on_is_waited_for_as_well() {
    let mut policy = child();
    policy.settling.effects = EffectLocation::Remote;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(died()));
    assert_eq!(world.on(&mut call, CallEvent::Settled), NextStep::Wait);
    assert_eq!(call.wake_at(), Some(START + policy.settling.settle));
    let result = finished(world.wake(&mut call));
    assert!(result.receipt.is_some());
}

#[test]
fn an_obedient_caller_ends_with_its_work_done_once() {
    let policy = child();
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(died()));
    let first = finished(world.on(&mut call, CallEvent::Settled));
    // Before the caller has checked, it gets the same response, with the remaining time.
    world.deliver(&first);
    world.pass(4 * SECOND);
    let again = world.drive(at_child(&policy), &policy, &[]);
    assert_eq!((code(&again), failure(&again).retry_after), (Some(Code::OutcomeUnknown), Some(6 * SECOND)));
    verify_all(&mut world);
    let ran = world.drive(at_child(&policy), &policy, &at_once(paid()));
    assert!(ran.outcome.is_ok());
    assert_eq!(world.runs, 2, "the first of them had no effect, as the caller has seen");
}

#[test]
fn a_hung_child_is_cut_ended_and_reported() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    // Recorded before the tool is asked to stop, and both before the caller is answered.
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    assert_eq!(world.store.state(), "unknown");
    assert!(call.awaits_end());
    // The response to the cancellation is neither a result nor the end of the attempt.
    assert_eq!(world.on(&mut call, CallEvent::Ran(is_error("cancelled"))), NextStep::Wait);
    assert_eq!(world.store.state(), "unknown");
    world.pass(6 * SECOND);
    let result = finished(world.on(&mut call, CallEvent::Settled));
    assert_eq!(code(&result), Some(Code::StuckCall));
    assert!(result.receipt.is_some());
}

#[test]
fn a_caller_that_has_waited_for_long_is_answered_at_once_before_the_end() {
    let policy = child();
    let mut world = CallTestWorld::new();
    let mut request = at_child(&policy);
    request.waits = CallerPatience::UntilDone;
    let (mut call, _) = world.begin(request, &policy);
    let (result, _) = answered(world.cut(&mut call));
    let bound = policy.settling.child_stop_time();
    assert_eq!((failure(&result).retry_after, result.receipt.is_none()), (Some(bound), true));
    assert!(failure(&result).message.contains(&format!("in {} s", bound.as_secs())), "{}", message(&result));
    // A caller that calls again waits for the end, and then gets a final response.
    let (mut second, step) = world.begin(at_child(&policy), &policy);
    assert!(matches!(step, NextStep::AwaitEnd(_)), "{step:?}");
    world.pass(SECOND);
    finished(world.on(&mut call, CallEvent::Settled));
    let last = finished(world.on(&mut second, CallEvent::Woke(WakeReason::Changed)));
    assert!(last.receipt.is_some() && message(&last).contains("The call has ended"));
}

#[test]
fn a_success_counts_at_any_time() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    // While its caller waits for the end: it gets the result.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.wake(&mut call);
    let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
    assert_eq!((result.outcome, world.store.state()), (Ok(answer("paid")), "done"));
    // After the caller was answered: the next call gets it, as the result of the earlier one.
    let mut policy = policy.clone();
    policy.time.attempt = 30 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    answered(world.cut(&mut call));
    finished(world.on(&mut call, CallEvent::Ran(paid())));
    let again = world.drive(at_child(&policy), &policy, &[]);
    assert!(matches!(again.provenance, Provenance::Replayed { .. }));
    assert_eq!((world.runs, world.store.state()), (1, "done"));
}

#[test]
fn an_ambiguous_error_is_reported_as_ambiguous() {
    let policy = child();
    for words in ["Request timed out", "upstream returned 502 Bad Gateway", "connection reset by peer"] {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(at_child(&policy), &policy);
        assert_eq!(world.on(&mut call, CallEvent::Ran(is_error(words))), NextStep::Wait, "{words}");
        assert!(!call.awaits_end(), "a child that answers is not ended for that");
        let result = finished(world.wake(&mut call));
        assert_eq!(world.now, START + policy.settling.settle);
        assert_eq!(
            (code(&result), &failure(&result).output),
            (Some(Code::OutcomeUnknown), &Some(answer(words)))
        );
        let next = world.drive(at_child(&policy), &policy, &[]);
        assert_eq!((code(&next), &failure(&next).output), (Some(Code::OutcomeUnknown), &Some(answer(words))));
        assert_eq!(world.runs, 1, "{words}");
    }
}

#[test]
fn an_idempotent_call_that_answers_a_cut_is_retried() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.time.attempt = 10 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    assert!(matches!(world.wake(&mut call), NextStep::Cut(CutReason::Silent(_))));
    assert_eq!(
        name_of(&world.on(&mut call, CallEvent::Ran(is_error("cancelled")))),
        "Wait",
        "it is tried again"
    );
    assert_eq!(world.store.state(), "inflight", "nothing of that is kept");
}

#[test]
fn a_call_that_is_cut_although_it_reports_progress_is_not_run_again_because_it_answers_the_cut() {
    let policy = child();
    let mut world = CallTestWorld::new();
    let mut request = keyless(&policy);
    request.waits = CallerPatience::UntilDone;
    let (mut call, _) = world.begin(request, &policy);
    while world.now < START + policy.time.total {
        world.pass(60 * SECOND);
        if let NextStep::CancelUpstream = world.on(&mut call, CallEvent::Progressed) {
            break;
        }
    }
    answered(world.cut(&mut call));
    finished(world.on(&mut call, CallEvent::Ran(is_error("cancelled"))));
    assert_eq!(world.store.state(), "unknown");
    let next = world.drive(keyless(&policy), &policy, &[]);
    assert_eq!((code(&next), world.runs), (Some(Code::OutcomeUnknown), 1));
}

#[test]
fn an_answer_that_comes_late_does_not_count_as_delivered() {
    let mut policy = child();
    policy.time.answer_by = None;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.pass(policy.dedupe.late_after + MS);
    let late = finished(world.on(&mut call, CallEvent::Ran(paid())));
    assert!(late.outcome.is_ok() && late.receipt.is_none());
    let again = world.drive(keyless(&policy), &policy, &[]);
    assert!(matches!(again.provenance, Provenance::Replayed { .. }), "its caller may have gone before");
    world.deliver(&again);
    let repeated = world.drive(keyless(&policy), &policy, &at_once(paid()));
    assert_eq!((repeated.provenance, world.runs), (Provenance::Fresh, 2));
    // A host that ran the tool itself has its result, however long that took.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(CallRequest { run_by: RunnerKind::Host, ..keyless(&policy) }, &policy);
    world.pass(policy.dedupe.late_after + MS);
    assert!(finished(world.on(&mut call, CallEvent::Ran(paid()))).receipt.is_some());
}

#[test]
fn a_caller_s_own_limit_does_not_judge_the_tool() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        let mut request = request(&policy);
        request.limits.attempt = Some(20 * MS);
        request.limits.attempts = Some(1);
        let (mut call, _) = world.begin(request, &policy);
        match world.wake(&mut call) {
            NextStep::Cut(_) => drop(world.on(&mut call, CallEvent::Ran(timed_out()))),
            _ => drop(answered(world.wake(&mut call))),
        }
        assert_eq!(world.breaker.counts().failures, 0, "{class:?}");
        assert_eq!(world.trust.history(None).count(), 0, "{class:?}");
        assert!(call.score_outcome().is_none(), "{class:?}");
    }
}

#[test]
fn a_caller_s_deadline_does_not_judge_a_tool_that_shows_signs_of_life() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let mut policy = policy(class);
        policy.time.attempt = Duration::from_secs(10);
        let mut world = CallTestWorld::new();
        let mut request = request(&policy);
        request.limits.deadline = Some(world.now + Duration::from_secs(25));
        let (mut call, _) = world.begin(request, &policy);
        for _ in 0..3 {
            world.now = world.now + Duration::from_secs(8);
            world.on(&mut call, CallEvent::Progressed);
        }
        match world.wake(&mut call) {
            NextStep::Cut(cut) => {
                assert_eq!(cut, CutReason::Deadline);
                drop(world.on(&mut call, CallEvent::Ran(timed_out())));
            }
            early => drop(answered(early)),
        }
        assert_eq!(world.breaker.counts().failures, 0, "{class:?}");
        assert_eq!(world.trust.history(None).count(), 0, "{class:?}");
    }
}

#[test]
fn a_holder_and_the_store_have_the_same_time_for_the_observed_end() {
    let mut policy = child();
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let interactive = CallRequest { channel: ApprovalChannel::Interactive, ..at_child(&policy) };
    let (mut call, _) = world.begin(interactive, &policy);
    world.now = world.now + Duration::from_secs(600);
    world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    assert_eq!(call.state(), "Attempting");
    let key = call.record().unwrap().key;
    let stored = world.store.records.get(&key).unwrap();
    assert!(stored.end_observed_by.is_some_and(|by| by >= world.now + policy.time.total));
    assert_eq!(call.record().unwrap().end_observed_by, stored.end_observed_by);
}

#[test]
fn the_time_of_the_observed_end_does_not_depend_on_clock_differences() {
    let mut policy = child();
    policy.approval.when = ApprovalTrigger::Always;
    for (behind, ahead) in
        [(Duration::from_secs(300), Duration::ZERO), (Duration::ZERO, Duration::from_secs(300))]
    {
        let mut world = CallTestWorld::new();
        let interactive = CallRequest { channel: ApprovalChannel::Interactive, ..at_child(&policy) };
        let (mut call, _) = world.begin(interactive, &policy);
        // The store writes its own time.
        let record = Arc::make_mut(call.record.as_mut().unwrap());
        let shown = |at: Timestamp| at.before(behind) + ahead;
        record.created = shown(record.created);
        record.end_observed_by = record.end_observed_by.map(shown);
        world.now = world.now + Duration::from_secs(600);
        world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
        assert_eq!(call.state(), "Attempting");
        let known = call.record().unwrap().end_observed_by.unwrap();
        assert_eq!(known, shown(world.store.records.iter().next().unwrap().end_observed_by.unwrap()));
    }
}

#[test]
fn an_attempt_that_was_cut_before_it_could_be_sent_gives_its_places_back() {
    let mut policy = child();
    policy.limits.concurrency = Some(NonZeroU32::MIN);
    policy.dependency_limits.concurrency = Some(NonZeroU32::MIN);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    assert_eq!(call.state(), "Attempting");
    for _ in 0..3 {
        if !call.is_settling() {
            world.wake(&mut call);
        }
    }
    assert!(call.is_settling());
    world.on(&mut call, CallEvent::Ran(not_sent()));
    assert_eq!((world.limiter.in_flight(), world.dependency_limiter.in_flight()), (0, 0));
}

#[test]
fn an_attempt_whose_end_is_observed_after_the_cut_releases_its_slots() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    policy.limits.concurrency = Some(NonZeroU32::MIN);
    policy.dependency_limits.concurrency = Some(NonZeroU32::MIN);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    assert_eq!((world.limiter.in_flight(), world.dependency_limiter.in_flight()), (1, 1), "it still runs");
    world.on(&mut call, CallEvent::Settled);
    assert_eq!((world.limiter.in_flight(), world.dependency_limiter.in_flight()), (0, 0));
}

#[test]
fn a_driver_that_ends_leaves_the_rest_to_others() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.wake(&mut call);
    let result = finished(world.on(&mut call, CallEvent::DriverEnds));
    assert!(result.receipt.is_none());
    // Its process is gone, and with it the only observer of the end.
    world.store.sight = LeaseOwnerState::Gone;
    let (mut next, step) = world.begin(at_child(&policy), &policy);
    assert!(matches!(step, NextStep::AwaitEnd(_)), "{step:?}");
    let mut step = world.wake(&mut next);
    while let NextStep::AwaitEnd(_) = step {
        step = world.wake(&mut next);
    }
    assert!(finished(step).receipt.is_some(), "the leash has ended what was left");
}

/// The store was unavailable when the attempt was cut, and available when its process ended, which had not seen the
/// end. The record settles no sooner than if the process had died, however short the time for ends that cannot be seen.
#[test]
fn a_driver_that_ends_before_the_end_was_observed_does_not_record_it_as_observed() {
    for linger in [SECOND, 30 * SECOND] {
        let mut policy = child();
        policy.time.attempt = 5 * SECOND;
        (policy.settling.linger, policy.settling.effects) = (linger, EffectLocation::Remote);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(at_child(&policy), &policy);
        world.store.faults.push_back(Some(StoreFault::NotDone));
        assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
        let (_, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::DriverEnds));
        let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{deferred:?}") };
        world.store.save(save, world.now);
        let DedupeState::Unknown(unknown) = &world.store.records.iter().next().unwrap().state else {
            panic!()
        };
        // The child process may use its whole grace period, be drained and then be killed, and the work that it passed
        // on continues after that.
        let SettlingPolicy { grace, drain, settle, .. } = policy.settling;
        let over = world.now + linger.max(grace + drain + 10 * SECOND + settle);
        assert!(!unknown.is_settled(over.before(MS)), "{linger:?}: {unknown:?}");
        assert!(unknown.is_settled(over), "it ends by itself all the same: {unknown:?}");
    }
}

#[test]
fn an_unobserved_end_settles_by_time() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.wake(&mut call);
    // The child process cannot be ended: its caller is answered when its time is up, and the record settles by time.
    let (result, _) = answered(world.wake(&mut call));
    assert!(result.receipt.is_none());
    assert_eq!(world.wake(&mut call), NextStep::Wait);
    let DedupeState::Unknown(unknown) = &world.store.records.iter().next().unwrap().state else { panic!() };
    assert!(matches!(unknown.settles, crate::dedupe::SettleTime::By(_)), "{unknown:?}");
}

#[test]
fn an_end_that_was_missed_is_announced_by_time_also_where_an_error_answers_the_cut() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.wake(&mut call);
    world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None));
    // The process was frozen, and the first event after that is a response to its cut.
    world.pass(policy.settling.child_stop_time() + SECOND);
    world.on(&mut call, CallEvent::Ran(is_error("cancelled")));
    let DedupeState::Unknown(unknown) = &world.store.records.iter().next().unwrap().state else { panic!() };
    assert!(matches!(unknown.settles, crate::dedupe::SettleTime::By(_)), "{unknown:?}");
}

#[test]
fn a_call_cut_before_it_could_be_sent_is_reported_as_unsent_and_released() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    let unsent = FaultSource::Transport { error: TransportError::ConnectionClosed, written: false };
    let fault = AttemptFault::new(unsent, "its server was not ready");
    let result =
        finished(world.on(&mut call, CallEvent::Ran(AttemptReport::Failure { fault, output: None })));
    assert_eq!(code(&result), Some(Code::UpstreamUnavailable));
    assert_eq!(
        message(&result),
        "bank/pay was not called: its server was not ready. Nothing was sent. Call again later"
    );
    assert_eq!(world.store.state(), "none");
}

#[test]
fn a_call_is_not_reported_as_sent_while_it_may_still_be_unsent() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    // The end of a tool elsewhere takes longer than its caller waits.
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    let unsent = FaultSource::Transport { error: TransportError::ConnectionClosed, written: false };
    let fault = AttemptFault::new(unsent, "its server was not ready");
    let result =
        finished(world.on(&mut call, CallEvent::Ran(AttemptReport::Failure { fault, output: None })));
    assert!(message(&result).contains("Nothing was sent"), "{}", message(&result));
}

#[test]
fn a_caller_without_time_left_is_answered_before_the_end() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut first, _) = world.begin(at_child(&policy), &policy);
    world.wake(&mut first);
    assert_eq!(world.store.state(), "unknown");
    let mut limited = at_child(&policy);
    limited.limits.deadline = Some(world.now + 2 * SECOND);
    let (mut second, step) = world.begin(limited, &policy);
    assert!(matches!(step, NextStep::AwaitEnd(_)), "{step:?}");
    let mut step = world.wake(&mut second);
    while let NextStep::AwaitEnd(_) = step {
        step = world.wake(&mut second);
    }
    let result = finished(step);
    assert_eq!(code(&result), Some(Code::OutcomeUnknown));
    assert!(message(&result).contains("It may still take effect"), "{}", message(&result));
}

#[test]
fn an_unknown_outcome_that_the_store_could_not_take_is_recorded_as_soon_as_it_can() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    assert_eq!(world.store.state(), "inflight");
    let (response, _) = answered(world.wake(&mut call));
    assert_eq!(response.recorded, RecordStatus::No);
    assert_eq!(world.wake(&mut call), NextStep::Wait);
    assert_eq!(world.store.state(), "unknown");
    assert!(world.now <= START + policy.time.attempt + 2 * SECOND, "{:?}", world.now);
}

#[test]
fn a_record_that_has_another_owner_by_then_is_not_changed() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    drop(answered(world.wake(&mut call)));
    world.now = call.wake_at().unwrap();
    let step = world.on_only(&mut call, CallEvent::Woke(WakeReason::Time)).unwrap();
    assert_eq!(name_of(&step), "Save");
    // An operator has resolved it, and the call was made again.
    let step = world.on_only(&mut call, CallEvent::Saved(SaveVerdict::FenceLost)).unwrap();
    assert_eq!(step, NextStep::Wait);
}

#[test]
fn the_guard_does_not_count_repeats_at_the_announced_time() {
    let mut policy = child();
    (policy.modes.trust, policy.modes.breaker) = (EnforcementMode::Off, EnforcementMode::Off);
    let mut world = CallTestWorld::new();
    for round in 0..4 {
        let (mut call, step) = world.begin(at_child(&policy), &policy);
        assert_eq!(name_of(&step), "Run", "{round}: {step:?}");
        world.on(&mut call, CallEvent::Ran(died()));
        let result = finished(world.on(&mut call, CallEvent::Settled));
        assert_eq!((code(&result), result.remarks.len()), (Some(Code::OutcomeUnknown), 0));
        world.deliver(&result);
        world.pass(policy.dedupe.after_telling);
    }
}

#[test]
fn a_slot_is_released_when_the_call_can_no_longer_take_effect() {
    let mut policy = policy(ToolClass::Mutating);
    policy.limits.concurrency = std::num::NonZero::new(1);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.cut(&mut call);
    let other = || from_envelope(&keyed("another"), &policy);
    let (_, step) = world.begin(other(), &policy);
    assert_ne!(name_of(&step), "Run", "there is no room");
    world.pass(policy.settling.linger + SECOND);
    world.on(&mut call, CallEvent::Woke(WakeReason::Time));
    let (_, step) = world.begin(other(), &policy);
    assert_eq!(name_of(&step), "Run");
}

#[test]
fn a_response_to_a_cancellation_is_not_the_end() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
    finished(world.on(&mut call, CallEvent::Ran(is_error("connection reset by peer"))));
    let DedupeState::Unknown(unknown) = &world.store.records.iter().next().unwrap().state else { panic!() };
    assert_eq!(unknown.settles, crate::dedupe::SettleTime::By(world.now + policy.settling.linger));
}

#[test]
fn an_unrecorded_outcome_is_recorded_later_with_the_announced_time() {
    let mut policy = policy(ToolClass::Mutating);
    policy.settling.settle = 40 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    let step = world.on_only(&mut call, CallEvent::Ran(is_error("Request timed out"))).unwrap();
    assert_eq!(name_of(&step), "Save");
    let (result, deferred) =
        finished_with_deferred(world.on(&mut call, CallEvent::StoreFailed(StoreFault::NotDone)));
    assert_eq!(failure(&result).retry_after, Some(40 * SECOND));
    let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{deferred:?}") };
    let RunOutcome::Unknown(unknown) = &save.ending else { panic!("{save:?}") };
    assert_eq!(unknown.settles, crate::dedupe::SettleDelay::After(40 * SECOND));
}

#[test]
fn an_unavailable_store_does_not_keep_the_answer_from_the_caller() {
    let mut policy = child();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    world.wake(&mut call);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Settled));
    assert_eq!(result.recorded, RecordStatus::No);
    let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.save(save, world.now);
    assert_eq!(world.store.state(), "unknown");
}

#[test]
fn an_approval_is_returned_when_nothing_was_started() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    world.grant_once(&request(&policy), &policy);
    let (mut call, mut step) = world.begin_only(request(&policy), &policy);
    while !matches!(step, NextStep::Start { .. }) {
        let event = world.store_event(&call, &step).expect("the store's business");
        step = world.on_only(&mut call, event).unwrap();
    }
    // The breaker opens between the approval and the attempt.
    world.breaker.force_open(None, world.now);
    let step = world.serve(&mut call, step);
    let (result, deferred) = finished_with_deferred(step);
    assert_eq!((code(&result), world.runs), (Some(Code::CircuitOpen), 0));
    assert!(matches!(&deferred[..], [DeferredWrite::GiveBack { .. }]), "{deferred:?}");
}

#[test]
fn a_tool_that_is_blocked_during_an_approval_request_does_not_run_on_approval() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    let (mut call, step) = world.begin(request, &policy);
    assert!(matches!(step, NextStep::Ask(_)), "{step:?}");
    approval::blocked(&mut world, &policy);
    let step = world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    assert_eq!((code(&finished(step)), world.runs), (Some(Code::ToolBlocked), 0));
}

#[test]
fn a_leader_s_deadline_is_not_that_of_its_followers() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let mut late = request(&policy);
    late.limits.deadline = Some(START);
    let refused = world.drive(late, &policy, &[]);
    assert_eq!(code(&refused), Some(Code::DeadlineExceeded));
    assert!(refused.is_refused() && !refused.is_refused_for_all());
}

#[test]
fn the_record_keeps_the_last_attempts() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.retry.attempts = NonZeroU32::new(20).unwrap();
    policy.retry.backoff = crate::policy::Backoff::Constant(MS);
    policy.retry.total = None;
    policy.retry.budget.floor_per_second = 1000;
    policy.breaker.consecutive = None;
    policy.breaker.rate = None;
    let mut world = CallTestWorld::new();
    let mut script = vec![(MS, http(503)); 17];
    script.push((MS, paid()));
    world.drive(request(&policy), &policy, &script);
    let attempts = &world.store.records.iter().next().unwrap().attempts;
    assert_eq!(attempts.len(), DedupeRecord::MOST_ATTEMPTS);
    assert_eq!(
        attempts.last().map(|last| last.rule.is_none()),
        Some(true),
        "that of the answer is among them"
    );
}

#[test]
fn a_caller_that_cancels_before_the_end_is_observed_leaves_nothing_open() {
    // Nothing of the attempt is left to be seen.
    let policy = child();
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    assert_eq!(world.on(&mut call, CallEvent::Ran(is_error("Request timed out"))), NextStep::Wait);
    let result = finished(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    assert_eq!((code(&result), world.store.state()), (Some(Code::Cancelled), "unknown"));
    // The end is still to come.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(at_child(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(died()));
    answered(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    finished(world.on(&mut call, CallEvent::Settled));
    assert_eq!(world.store.state(), "unknown");
}

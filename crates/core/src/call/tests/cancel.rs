//! Cancel, disconnect, timeout, attempts that can never answer: the second table of the dedupe protocol, row by row.
//!
//! Columns: not started; started and safe to repeat; started and not safe to repeat.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CancelColumn {
    NotStarted,
    Safe,
    Unsafe,
}

const COLUMNS: [CancelColumn; 3] = [CancelColumn::NotStarted, CancelColumn::Safe, CancelColumn::Unsafe];

fn column(column: CancelColumn) -> (CallTestWorld, Call) {
    let mut policy = policy(match column {
        CancelColumn::Safe => ToolClass::Idempotent,
        CancelColumn::NotStarted | CancelColumn::Unsafe => ToolClass::Mutating,
    });
    policy.time.attempt = 10 * SECOND;
    if column == CancelColumn::NotStarted {
        policy.approval.when = ApprovalTrigger::Always;
    }
    let mut world = CallTestWorld::new();
    let (call, step) =
        world.begin(from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive), &policy);
    assert_eq!(name_of(&step), if column == CancelColumn::NotStarted { "Ask" } else { "Run" });
    (world, call)
}

fn open(world: &CallTestWorld) -> bool {
    !format!("{:?}", world.guard).contains("open: []")
}

#[test]
fn when_the_last_caller_disconnects_unstarted_calls_are_released_and_started_ones_continue() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let step = world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None));
        if at == CancelColumn::NotStarted {
            assert_eq!((code(&finished(step)), world.store.state()), (Some(Code::Cancelled), "none"));
            continue;
        }
        assert_eq!((name_of(&step), world.store.state()), ("Stay", "inflight"), "{at:?}");
        let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!((result.recorded, world.store.state()), (RecordStatus::Yes, "done"), "{at:?}");
        assert!(!open(&world), "{at:?}: the guard does not wait for it");
    }
}

#[test]
fn a_run_without_a_caller_is_still_retried_and_still_limited_in_time() {
    let (mut world, mut call) = column(CancelColumn::Safe);
    world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None));
    assert!(matches!(world.wake(&mut call), NextStep::Cut(CutReason::Silent(_))));
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(timed_out()))), "Wait");
    assert_eq!(name_of(&world.wake(&mut call)), "Run");
    assert!(finished(world.on(&mut call, CallEvent::Ran(paid()))).outcome.is_ok());
}

#[test]
fn when_the_last_caller_cancels_the_tool_is_cancelled_and_safe_runs_are_released() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let step = world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
        match at {
            CancelColumn::NotStarted => {
                assert_eq!((code(&finished(step)), world.store.state()), (Some(Code::Cancelled), "none"));
                assert_eq!(world.steps, ["ClaimOnly", "Ask", "Release", "Finish"]);
            }
            CancelColumn::Safe => {
                assert_eq!(step, NextStep::Cut(CutReason::Cancelled));
                let result = finished(world.on(&mut call, CallEvent::Ran(timed_out())));
                assert_eq!((code(&result), world.store.state()), (Some(Code::Cancelled), "none"));
                assert_eq!(world.breaker.counts().failures, 0, "a cancel says nothing about the tool");
            }
            CancelColumn::Unsafe => {
                let (result, upstream) = answered(step);
                assert_eq!((code(&result), upstream), (Some(Code::Cancelled), UpstreamSignal::Cancel));
                assert_eq!((result.receipt, world.store.state()), (None, "inflight"));
                // Its late answer is saved; duplicates follow it.
                let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
                assert_eq!((result.recorded, world.store.state()), (RecordStatus::Yes, "done"));
            }
        }
        assert!(!open(&world), "{at:?}: a call that is gone is not in flight for the guard");
    }
}

#[test]
fn an_answer_that_crosses_a_cancel_is_saved() {
    let (mut world, mut call) = column(CancelColumn::Safe);
    world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
    world.on(&mut call, CallEvent::Ran(paid()));
    assert_eq!(world.store.state(), "done");
}

#[test]
fn a_cancelled_run_that_never_answers_ends_as_unknown() {
    let (mut world, mut call) = column(CancelColumn::Unsafe);
    world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
    assert_eq!(call.wake_at(), Some(START + 10 * SECOND), "the limits of the tool hold");
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    assert_eq!(world.store.state(), "unknown");
    // An attempt that can no longer take effect holds no permits.
    assert_eq!(call.wake_at(), Some(START + 40 * SECOND));
    assert_eq!(world.wake(&mut call), NextStep::Wait);
    // Its result still counts, until its total time has passed.
    assert_eq!(call.wake_at(), Some(START + Duration::from_secs(1800)));
    finished(world.wake(&mut call));
    assert_eq!(world.store.state(), "unknown");
}

#[test]
fn a_response_to_a_cancellation_is_not_a_result() {
    let cancelled: fn(&mut CallTestWorld, &mut Call) -> NextStep =
        |world, call| world.on(call, CallEvent::Cancelled(OtherWaiters::None));
    let timed_out: fn(&mut CallTestWorld, &mut Call) -> NextStep = CallTestWorld::cut;
    for (name, leave) in [("cancelled", cancelled), ("timed out", timed_out)] {
        let (mut world, mut call) = column(CancelColumn::Unsafe);
        answered(leave(&mut world, &mut call));
        // It may be the tool's own error, or its response to the cancellation: they cannot be distinguished.
        finished(world.on(&mut call, CallEvent::Ran(http(400))));
        assert_eq!(world.store.state(), "unknown", "{name}");
        assert!(world.has(&CallNotice::OutcomeUnknown { of_earlier: None }), "{name}");
        let policy = call.policy().clone();
        let result = world.drive(request(&policy), &policy, &[]);
        assert_eq!((code(&result), world.runs), (Some(Code::OutcomeUnknown), 1), "{name}");
    }
}

#[test]
fn a_cancel_of_an_attempt_that_is_being_cut_has_no_second_effect() {
    for (others, expected) in [(OtherWaiters::None, "Finish"), (OtherWaiters::Waiting, "Wait")] {
        let (mut world, mut call) = column(CancelColumn::Safe);
        assert!(matches!(world.wake(&mut call), NextStep::Cut(CutReason::Silent(_))));
        for _ in 0..2 {
            assert_eq!(world.on(&mut call, CallEvent::Cancelled(others)), NextStep::Stay, "{others:?}");
        }
        // If a caller still waits, there is another attempt; otherwise this was the last one.
        let step = world.on(&mut call, CallEvent::Ran(timed_out()));
        assert_eq!((name_of(&step), world.runs), (expected, 1), "{others:?}");
        let state = if others == OtherWaiters::None { "none" } else { "inflight" };
        assert_eq!(world.store.state(), state, "{others:?}");
        assert!(!world.steps.contains(&"Answer"), "{others:?}: {:?}", world.steps);
    }
}

#[test]
fn a_caller_is_answered_once_and_the_tool_is_cancelled_with_the_last_caller() {
    let withdrawn: fn(&mut CallTestWorld, &mut Call) -> NextStep =
        |world, call| world.on(call, CallEvent::Cancelled(OtherWaiters::Waiting));
    let disconnected: fn(&mut CallTestWorld, &mut Call) -> NextStep =
        |world, call| world.on(call, CallEvent::Disconnected(OtherWaiters::Waiting));
    let unknown: fn(&mut CallTestWorld, &mut Call) -> NextStep = CallTestWorld::wake;
    for (name, leave, first) in [
        ("withdrawn", withdrawn, "Answer"),
        ("gone", disconnected, "Stay"),
        ("told that it runs", unknown, "Answer"),
    ] {
        let policy = policy(ToolClass::Mutating).for_gateway();
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(keyless(&policy), &policy);
        assert_eq!(name_of(&leave(&mut world, &mut call)), first, "{name}");
        assert_eq!(
            world.on(&mut call, CallEvent::Cancelled(OtherWaiters::Waiting)),
            NextStep::Stay,
            "{name}"
        );
        assert_eq!(
            world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)),
            NextStep::CancelUpstream,
            "{name}"
        );
        assert_eq!(
            world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)),
            NextStep::Stay,
            "{name}: once"
        );
        // The tool was asked to stop, so no new attempt starts.
        finished(world.on(&mut call, CallEvent::Ran(busy(Duration::ZERO))));
        assert_eq!((world.runs, world.store.state()), (1, "none"), "{name}");
    }
}

#[test]
fn nothing_further_starts_for_a_caller_that_cancelled() {
    // The tool was asked to stop and proves that it did not run: that is the end, not a reason for another attempt.
    let (mut world, mut call) = column(CancelColumn::Unsafe);
    world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
    finished(world.on(&mut call, CallEvent::Ran(busy(Duration::ZERO))));
    assert_eq!((world.runs, world.store.state()), (1, "none"));

    let (mut world, mut call) = column(CancelColumn::Unsafe);
    world.on(&mut call, CallEvent::Ran(busy(Duration::ZERO)));
    let result = finished(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    assert_eq!((code(&result), world.runs, world.store.state()), (Some(Code::Cancelled), 1, "none"));
}

#[test]
fn a_cancel_removes_one_caller_while_others_wait() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let (result, upstream) = answered(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::Waiting)));
        assert_eq!((code(&result), upstream), (Some(Code::Cancelled), UpstreamSignal::NoSignal), "{at:?}");
        assert_eq!(world.store.state(), "inflight");
        if at == CancelColumn::NotStarted {
            world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
        }
        finished(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!(world.store.state(), "done", "{at:?}");
    }
}

#[test]
fn a_follower_that_cancels_or_disconnects_affects_no_other_call() {
    for event in [CallEvent::Cancelled(OtherWaiters::None), CallEvent::Disconnected(OtherWaiters::Waiting)] {
        let (mut world, mut leader) = column(CancelColumn::Unsafe);
        let policy = leader.policy().clone();
        let (mut follower, step) = world.begin(request(&policy), &policy);
        assert_eq!(name_of(&step), "Follow");
        assert_eq!(code(&finished(world.on(&mut follower, event))), Some(Code::Cancelled));
        assert_eq!(world.store.state(), "inflight");
        finished(world.on(&mut leader, CallEvent::Ran(paid())));
        assert!(!open(&world));
    }
}

#[test]
fn a_caller_that_disconnects_before_the_attempt_leaves_no_record() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let interactive = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    let (mut call, _) = world.begin(interactive, &policy);
    world.on_only(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None))).unwrap();
    // The answer to the start is so late that the lease has to be renewed first.
    world.now = world.now + policy.dedupe.keep.lease;
    let step = world.on_only(&mut call, CallEvent::Started(StartVerdict::Started)).unwrap();
    assert_eq!((name_of(&step), call.state()), ("Renew", "Renewing"));
    let step = world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None));
    assert_eq!(code(&finished(step)), Some(Code::Cancelled));
    assert_eq!((world.store.state(), world.runs), ("none", 0));
}

#[test]
fn an_answer_without_a_caller_that_cannot_be_saved_is_saved_later() {
    for event in [CallEvent::Disconnected(OtherWaiters::None), CallEvent::Cancelled(OtherWaiters::None)] {
        let (mut world, mut call) = column(CancelColumn::Unsafe);
        world.on(&mut call, event.clone());
        world.store.faults.push_back(Some(StoreFault::NotDone));
        let (_, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(paid())));
        let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{event:?}: {deferred:?}") };
        world.store.save(save, world.now);
        assert_eq!(world.store.state(), "done", "{event:?}");
    }
}

#[test]
fn a_cancel_during_an_unanswered_claim_keeps_its_release() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, step) = world.begin_only(request(&policy), &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    let (_, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    world.store.claim(&claim, world.now);
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!(world.store.state(), "none");
    assert!(!open(&world));
}

#[test]
fn when_the_callers_time_is_up_it_is_answered_and_the_record_stays() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let step = world.wake(&mut call);
        match at {
            CancelColumn::NotStarted => {
                let (result, deferred) = finished_with_deferred(step);
                assert_eq!((code(&result), world.store.state()), (Some(Code::ApprovalRequired), "none"));
                assert!(matches!(&deferred[..], [DeferredWrite::Park(_)]), "{deferred:?}");
            }
            CancelColumn::Safe => {
                assert_eq!(step, NextStep::Cut(CutReason::Silent(10 * SECOND)));
                let step = world.on(&mut call, CallEvent::Ran(timed_out()));
                assert_eq!((name_of(&step), world.store.state()), ("Wait", "inflight"), "it is tried again");
            }
            CancelColumn::Unsafe => {
                assert_eq!(step, NextStep::CancelUpstream);
                let (result, _) = answered(world.wake(&mut call));
                assert_eq!((code(&result), rule(&result)), (Some(Code::OutcomeUnknown), "timeout"));
                assert_eq!(result.receipt, None, "what is not over yet never counts as delivered");
                assert_eq!(
                    world.steps[world.steps.len() - 3..],
                    ["Save", "CancelUpstream", "Answer"],
                    "recorded before the caller is answered"
                );
                assert_eq!(world.store.state(), "unknown");
                assert_eq!(
                    world.breaker.counts().in_a_row,
                    1,
                    "the breaker does not wait for the late answer"
                );
                // The late result is saved, and is not counted twice.
                let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
                assert_eq!((result.recorded, world.store.state()), (RecordStatus::Yes, "done"));
                assert_eq!(world.breaker.counts().in_a_row, 1);
            }
        }
    }
}

#[test]
fn an_attempt_that_can_never_answer_is_retried_if_safe_and_unknown_if_not() {
    let died = || fails(FaultSource::Exit { code: None, signal: Some(9) });
    let (mut world, mut call) = column(CancelColumn::Safe);
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(died()))), "Wait");
    for _ in 0..2 {
        world.wake(&mut call);
        world.on(&mut call, CallEvent::Ran(died()));
    }
    world.wake(&mut call);
    let result = finished(world.on(&mut call, CallEvent::Ran(died())));
    assert_eq!((code(&result), world.store.state()), (Some(Code::RetryExhausted), "none"));

    let (mut world, mut call) = column(CancelColumn::Unsafe);
    let result = finished(world.on(&mut call, CallEvent::Ran(died())));
    assert_eq!((code(&result), result.recorded), (Some(Code::OutcomeUnknown), RecordStatus::Yes));
    assert!(result.receipt.is_none(), "it is not over yet");
    assert_eq!(world.store.state(), "unknown");
    assert!(world.has(&CallNotice::OutcomeUnknown { of_earlier: None }));
}

#[test]
fn the_total_limit_ends_a_run_that_must_not_be_repeated_as_unknown() {
    let (mut world, mut call) = column(CancelColumn::Unsafe);
    for _ in 0..360 {
        world.pass(5 * SECOND);
        world.on(&mut call, CallEvent::Progressed);
    }
    let (result, _) = answered(world.cut(&mut call));
    assert_eq!((code(&result), world.store.state()), (Some(Code::OutcomeUnknown), "unknown"));
    assert_eq!(result.receipt, None);
}

#[test]
fn an_unknown_outcome_is_returned_again_until_it_was_delivered() {
    let (mut world, mut call) = column(CancelColumn::Unsafe);
    finished(world.on(&mut call, CallEvent::Ran(timed_out())));
    let policy = call.policy().clone();
    let result = world.drive(request(&policy), &policy, &[]);
    assert_eq!(code(&result), Some(Code::OutcomeUnknown));
    world.deliver(&result);
    world.pass(11 * SECOND);
    let again = world.drive(request(&policy), &policy, &[]);
    assert_eq!(code(&again), Some(Code::OutcomeUnknown), "an explicit key returns it until it is resolved");

    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    let first = finished(world.on(&mut call, CallEvent::Ran(timed_out())));
    assert_eq!(
        (first.outcome.as_ref().unwrap_err().retry_after, first.receipt.is_none()),
        (Some(30 * SECOND), true)
    );
    // A caller that calls again waits as long as that is useful, and gets the unknown outcome again or a final
    // response.
    world.pass(10 * SECOND);
    let second = world.drive(keyless(&policy), &policy, &[]);
    assert_eq!((code(&first), code(&second)), (Some(Code::OutcomeUnknown), Some(Code::OutcomeUnknown)));
    assert_eq!(world.now, START + 30 * SECOND, "it waited for the end");
    assert!(second.receipt.is_some(), "this is final");
    world.deliver(&second);
    world.pass(9 * SECOND);
    // Repeated responses about an earlier unknown outcome are not failures that a model repeats.
    for _ in 0..6 {
        assert_eq!(code(&world.drive(keyless(&policy), &policy, &[])), Some(Code::OutcomeUnknown));
    }
    assert_eq!(world.count(|notice| matches!(notice, CallNotice::GuardTripped { .. })), 0);
    world.pass(SECOND);
    assert!(
        world.drive(keyless(&policy), &policy, &at_once(paid())).outcome.is_ok(),
        "ten seconds after telling it runs"
    );
}

#[test]
fn a_dangerous_command_blocks_its_tool_although_it_was_cancelled() {
    for (class, guard) in [
        (ToolClass::Idempotent, EnforcementMode::Enforce),
        (ToolClass::Mutating, EnforcementMode::Enforce),
        (ToolClass::Idempotent, EnforcementMode::Shadow),
        (ToolClass::Idempotent, EnforcementMode::Off),
    ] {
        let mut policy = policy(class);
        policy.modes.guard = guard;
        let envelope = envelope_with(
            &json!({ "payload": { "idempotencyKey": "k", "params": { "command": "rm -rf /" } } }),
        );
        let mut world = CallTestWorld::new();
        let (mut call, step) = world.begin(from_envelope(&envelope, &policy), &policy);
        assert_eq!(name_of(&step), "Run");
        world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
        finished(world.on(&mut call, CallEvent::Ran(timed_out())));
        let (_, step) = world.begin(from_envelope(&keyed("other"), &policy), &policy);
        assert_eq!(code(&finished(step)), Some(Code::ToolBlocked), "{class:?}, guard {guard:?}");
    }
}

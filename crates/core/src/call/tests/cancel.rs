//! Cancel, disconnect, timeout, attempts that can never answer: the second table of the dedupe protocol, row by row.
//!
//! Columns: not started; started and safe to repeat; started and not safe to repeat.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    NotStarted,
    Safe,
    Unsafe,
}

const COLUMNS: [Column; 3] = [Column::NotStarted, Column::Safe, Column::Unsafe];

fn column(column: Column) -> (World, Call) {
    let mut policy = policy(match column {
        Column::Safe => ToolClass::Idempotent,
        Column::NotStarted | Column::Unsafe => ToolClass::Mutating,
    });
    policy.time.attempt = 10 * SECOND;
    if column == Column::NotStarted {
        policy.approval.when = AskWhen::Always;
    }
    let mut world = World::new();
    let (call, step) = world.begin(from_envelope_on(&keyed("k"), &policy, Channel::Interactive), &policy);
    assert_eq!(name_of(&step), if column == Column::NotStarted { "Ask" } else { "Run" });
    (world, call)
}

fn open(world: &World) -> bool {
    !format!("{:?}", world.guard).contains("open: []")
}

#[test]
fn when_the_last_caller_disconnects_what_has_not_started_is_released_and_the_rest_goes_on() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let step = world.on(&mut call, Event::Disconnected(Others::None));
        if at == Column::NotStarted {
            assert_eq!((code(&finished(step)), world.store.state()), (Some(Code::Cancelled), "none"));
            continue;
        }
        assert_eq!((name_of(&step), world.store.state()), ("Stay", "inflight"), "{at:?}");
        let result = finished(world.on(&mut call, Event::Ran(paid())));
        assert_eq!((result.recorded, world.store.state()), (Recorded::Yes, "done"), "{at:?}");
        assert!(!open(&world), "{at:?}: the guard does not wait for it");
    }
}

#[test]
fn a_run_without_a_caller_is_still_retried_and_still_limited_in_time() {
    let (mut world, mut call) = column(Column::Safe);
    world.on(&mut call, Event::Disconnected(Others::None));
    assert!(matches!(world.wake(&mut call), Step::Cut(Cut::Silent(_))));
    assert_eq!(name_of(&world.on(&mut call, Event::Ran(timed_out()))), "Wait");
    assert_eq!(name_of(&world.wake(&mut call)), "Run");
    assert!(finished(world.on(&mut call, Event::Ran(paid()))).ended.is_ok());
}

#[test]
fn when_the_last_caller_cancels_the_tool_is_cancelled_and_safe_runs_are_released() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let step = world.on(&mut call, Event::Cancelled(Others::None));
        match at {
            Column::NotStarted => {
                assert_eq!((code(&finished(step)), world.store.state()), (Some(Code::Cancelled), "none"));
                assert_eq!(world.steps, ["ClaimOnly", "Ask", "Release", "Finish"]);
            }
            Column::Safe => {
                assert_eq!(step, Step::Cut(Cut::Cancelled));
                let result = finished(world.on(&mut call, Event::Ran(timed_out())));
                assert_eq!((code(&result), world.store.state()), (Some(Code::Cancelled), "none"));
                assert_eq!(world.breaker.counts().failures, 0, "a cancel says nothing about the tool");
            }
            Column::Unsafe => {
                let (result, upstream) = answered(step);
                assert_eq!((code(&result), upstream), (Some(Code::Cancelled), Upstream::Cancel));
                assert_eq!((result.receipt, world.store.state()), (None, "inflight"));
                // Its late answer is saved; duplicates follow it.
                let result = finished(world.on(&mut call, Event::Ran(paid())));
                assert_eq!((result.recorded, world.store.state()), (Recorded::Yes, "done"));
            }
        }
        assert!(!open(&world), "{at:?}: a call that is gone is not in flight for the guard");
    }
}

#[test]
fn an_answer_that_crosses_a_cancel_is_saved() {
    let (mut world, mut call) = column(Column::Safe);
    world.on(&mut call, Event::Cancelled(Others::None));
    world.on(&mut call, Event::Ran(paid()));
    assert_eq!(world.store.state(), "done");
}

#[test]
fn a_cancelled_run_that_never_answers_ends_as_unknown() {
    let (mut world, mut call) = column(Column::Unsafe);
    world.on(&mut call, Event::Cancelled(Others::None));
    assert_eq!(call.wake_at(), Some(START + 10 * SECOND), "the limits of the tool hold");
    assert_eq!(world.wake(&mut call), Step::CancelUpstream);
    assert_eq!(world.store.state(), "unknown");
    // An attempt that can no longer take effect holds no permits.
    assert_eq!(call.wake_at(), Some(START + 40 * SECOND));
    assert_eq!(world.wake(&mut call), Step::Wait);
    // Its result still counts, until its total time has passed.
    assert_eq!(call.wake_at(), Some(START + Duration::from_secs(1800)));
    finished(world.wake(&mut call));
    assert_eq!(world.store.state(), "unknown");
}

#[test]
fn a_response_to_a_cancellation_is_not_a_result() {
    let cancelled: fn(&mut World, &mut Call) -> Step =
        |world, call| world.on(call, Event::Cancelled(Others::None));
    let timed_out: fn(&mut World, &mut Call) -> Step = World::cut;
    for (name, leave) in [("cancelled", cancelled), ("timed out", timed_out)] {
        let (mut world, mut call) = column(Column::Unsafe);
        answered(leave(&mut world, &mut call));
        // It may be the tool's own error, or its response to the cancellation: they cannot be distinguished.
        finished(world.on(&mut call, Event::Ran(http(400))));
        assert_eq!(world.store.state(), "unknown", "{name}");
        assert!(world.has(&Notice::OutcomeUnknown { of_earlier: None }), "{name}");
        let policy = call.policy().clone();
        let told = world.drive(request(&policy), &policy, &[]);
        assert_eq!((code(&told), world.runs), (Some(Code::OutcomeUnknown), 1), "{name}");
    }
}

#[test]
fn a_cancel_of_what_is_being_cut_ends_nothing_twice() {
    for (others, expected) in [(Others::None, "Finish"), (Others::Waiting, "Wait")] {
        let (mut world, mut call) = column(Column::Safe);
        assert!(matches!(world.wake(&mut call), Step::Cut(Cut::Silent(_))));
        for _ in 0..2 {
            assert_eq!(world.on(&mut call, Event::Cancelled(others)), Step::Stay, "{others:?}");
        }
        // If a caller still waits, there is another attempt; otherwise this was the last one.
        let step = world.on(&mut call, Event::Ran(timed_out()));
        assert_eq!((name_of(&step), world.runs), (expected, 1), "{others:?}");
        let state = if others == Others::None { "none" } else { "inflight" };
        assert_eq!(world.store.state(), state, "{others:?}");
        assert!(!world.steps.contains(&"Answer"), "{others:?}: {:?}", world.steps);
    }
}

#[test]
fn a_caller_is_answered_once_and_the_tool_is_cancelled_when_the_last_one_leaves() {
    let withdrawn: fn(&mut World, &mut Call) -> Step =
        |world, call| world.on(call, Event::Cancelled(Others::Waiting));
    let gone: fn(&mut World, &mut Call) -> Step =
        |world, call| world.on(call, Event::Disconnected(Others::Waiting));
    let told: fn(&mut World, &mut Call) -> Step = World::wake;
    for (name, leave, first) in
        [("withdrawn", withdrawn, "Answer"), ("gone", gone, "Stay"), ("told that it runs", told, "Answer")]
    {
        let policy = policy(ToolClass::Mutating).for_gateway();
        let mut world = World::new();
        let (mut call, _) = world.begin(keyless(&policy), &policy);
        assert_eq!(name_of(&leave(&mut world, &mut call)), first, "{name}");
        assert_eq!(world.on(&mut call, Event::Cancelled(Others::Waiting)), Step::Stay, "{name}");
        assert_eq!(world.on(&mut call, Event::Cancelled(Others::None)), Step::CancelUpstream, "{name}");
        assert_eq!(world.on(&mut call, Event::Cancelled(Others::None)), Step::Stay, "{name}: once");
        // The tool was asked to stop, so no new attempt starts.
        finished(world.on(&mut call, Event::Ran(busy(Duration::ZERO))));
        assert_eq!((world.runs, world.store.state()), (1, "none"), "{name}");
    }
}

#[test]
fn nothing_further_starts_for_a_caller_that_cancelled() {
    // The tool was asked to stop and proves that it did not run: that is the end, not a reason for another attempt.
    let (mut world, mut call) = column(Column::Unsafe);
    world.on(&mut call, Event::Cancelled(Others::None));
    finished(world.on(&mut call, Event::Ran(busy(Duration::ZERO))));
    assert_eq!((world.runs, world.store.state()), (1, "none"));

    let (mut world, mut call) = column(Column::Unsafe);
    world.on(&mut call, Event::Ran(busy(Duration::ZERO)));
    let result = finished(world.on(&mut call, Event::Cancelled(Others::None)));
    assert_eq!((code(&result), world.runs, world.store.state()), (Some(Code::Cancelled), 1, "none"));
}

#[test]
fn a_cancel_removes_one_caller_while_others_wait() {
    for at in COLUMNS {
        let (mut world, mut call) = column(at);
        let (result, upstream) = answered(world.on(&mut call, Event::Cancelled(Others::Waiting)));
        assert_eq!((code(&result), upstream), (Some(Code::Cancelled), Upstream::LeaveAlone), "{at:?}");
        assert_eq!(world.store.state(), "inflight");
        if at == Column::NotStarted {
            world.on(&mut call, Event::Answered(Approval::Granted(None)));
        }
        finished(world.on(&mut call, Event::Ran(paid())));
        assert_eq!(world.store.state(), "done", "{at:?}");
    }
}

#[test]
fn a_follower_that_cancels_or_leaves_takes_nothing_with_it() {
    for event in [Event::Cancelled(Others::None), Event::Disconnected(Others::Waiting)] {
        let (mut world, mut leader) = column(Column::Unsafe);
        let policy = leader.policy().clone();
        let (mut follower, step) = world.begin(request(&policy), &policy);
        assert_eq!(name_of(&step), "Follow");
        assert_eq!(code(&finished(world.on(&mut follower, event))), Some(Code::Cancelled));
        assert_eq!(world.store.state(), "inflight");
        finished(world.on(&mut leader, Event::Ran(paid())));
        assert!(!open(&world));
    }
}

#[test]
fn a_caller_that_leaves_before_the_attempt_leaves_no_record() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = AskWhen::Always;
    let mut world = World::new();
    let asked = from_envelope_on(&keyed("k"), &policy, Channel::Interactive);
    let (mut call, _) = world.begin(asked, &policy);
    world.on_only(&mut call, Event::Answered(Approval::Granted(None))).unwrap();
    // The answer to the start is so late that the lease has to be renewed first.
    world.now = world.now + policy.dedupe.keep.lease;
    let step = world.on_only(&mut call, Event::Started(StartVerdict::Started)).unwrap();
    assert_eq!((name_of(&step), call.state()), ("Renew", "Renewing"));
    let step = world.on(&mut call, Event::Disconnected(Others::None));
    assert_eq!(code(&finished(step)), Some(Code::Cancelled));
    assert_eq!((world.store.state(), world.runs), ("none", 0));
}

#[test]
fn an_answer_that_comes_without_a_caller_and_cannot_be_saved_is_kept() {
    for event in [Event::Disconnected(Others::None), Event::Cancelled(Others::None)] {
        let (mut world, mut call) = column(Column::Unsafe);
        world.on(&mut call, event.clone());
        world.store.faults.push_back(Some(StoreFault::NotDone));
        let (_, kept) = finished_keeping(world.on(&mut call, Event::Ran(paid())));
        let [Kept::Save(save)] = &kept[..] else { panic!("{event:?}: {kept:?}") };
        world.store.save(save, world.now);
        assert_eq!(world.store.state(), "done", "{event:?}");
    }
}

#[test]
fn a_cancel_during_an_unanswered_claim_keeps_its_release() {
    let policy = policy(ToolClass::Mutating);
    let mut world = World::new();
    let (mut call, step) = world.begin_only(request(&policy), &policy);
    let Step::Claim(claim) = step else { panic!("{step:?}") };
    let (_, kept) = finished_keeping(world.on(&mut call, Event::Cancelled(Others::None)));
    world.store.claim(&claim, world.now);
    let [Kept::Release(release)] = &kept[..] else { panic!("{kept:?}") };
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
            Column::NotStarted => {
                let (result, kept) = finished_keeping(step);
                assert_eq!((code(&result), world.store.state()), (Some(Code::ApprovalRequired), "none"));
                assert!(matches!(&kept[..], [Kept::Park(_)]), "{kept:?}");
            }
            Column::Safe => {
                assert_eq!(step, Step::Cut(Cut::Silent(10 * SECOND)));
                let step = world.on(&mut call, Event::Ran(timed_out()));
                assert_eq!((name_of(&step), world.store.state()), ("Wait", "inflight"), "it is tried again");
            }
            Column::Unsafe => {
                assert_eq!(step, Step::CancelUpstream);
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
                let result = finished(world.on(&mut call, Event::Ran(paid())));
                assert_eq!((result.recorded, world.store.state()), (Recorded::Yes, "done"));
                assert_eq!(world.breaker.counts().in_a_row, 1);
            }
        }
    }
}

#[test]
fn an_attempt_that_can_never_answer_is_retried_if_safe_and_unknown_if_not() {
    let died = || fails(Source::Exit { code: None, signal: Some(9) });
    let (mut world, mut call) = column(Column::Safe);
    assert_eq!(name_of(&world.on(&mut call, Event::Ran(died()))), "Wait");
    for _ in 0..2 {
        world.wake(&mut call);
        world.on(&mut call, Event::Ran(died()));
    }
    world.wake(&mut call);
    let result = finished(world.on(&mut call, Event::Ran(died())));
    assert_eq!((code(&result), world.store.state()), (Some(Code::RetryExhausted), "none"));

    let (mut world, mut call) = column(Column::Unsafe);
    let result = finished(world.on(&mut call, Event::Ran(died())));
    assert_eq!((code(&result), result.recorded), (Some(Code::OutcomeUnknown), Recorded::Yes));
    assert!(result.receipt.is_none(), "it is not over yet");
    assert_eq!(world.store.state(), "unknown");
    assert!(world.has(&Notice::OutcomeUnknown { of_earlier: None }));
}

#[test]
fn the_total_limit_ends_a_run_that_must_not_be_repeated_as_unknown() {
    let (mut world, mut call) = column(Column::Unsafe);
    for _ in 0..360 {
        world.pass(5 * SECOND);
        world.on(&mut call, Event::Progressed);
    }
    let (result, _) = answered(world.cut(&mut call));
    assert_eq!((code(&result), world.store.state()), (Some(Code::OutcomeUnknown), "unknown"));
    assert_eq!(result.receipt, None);
}

#[test]
fn an_unknown_outcome_is_returned_again_until_it_was_delivered() {
    let (mut world, mut call) = column(Column::Unsafe);
    finished(world.on(&mut call, Event::Ran(timed_out())));
    let policy = call.policy().clone();
    let told = world.drive(request(&policy), &policy, &[]);
    assert_eq!(code(&told), Some(Code::OutcomeUnknown));
    world.deliver(&told);
    world.pass(11 * SECOND);
    let again = world.drive(request(&policy), &policy, &[]);
    assert_eq!(code(&again), Some(Code::OutcomeUnknown), "an explicit key returns it until it is resolved");

    let mut world = World::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    let first = finished(world.on(&mut call, Event::Ran(timed_out())));
    assert_eq!(
        (first.ended.as_ref().unwrap_err().retry_after, first.receipt.is_none()),
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
    assert_eq!(world.count(|notice| matches!(notice, Notice::GuardTripped { .. })), 0);
    world.pass(SECOND);
    assert!(
        world.drive(keyless(&policy), &policy, &at_once(paid())).ended.is_ok(),
        "ten seconds after telling it runs"
    );
}

#[test]
fn a_dangerous_command_blocks_its_tool_although_it_was_cancelled() {
    for (class, guard) in [
        (ToolClass::Idempotent, Mode::Enforce),
        (ToolClass::Mutating, Mode::Enforce),
        (ToolClass::Idempotent, Mode::Shadow),
        (ToolClass::Idempotent, Mode::Off),
    ] {
        let mut policy = policy(class);
        policy.modes.guard = guard;
        let envelope = envelope_with(
            &json!({ "payload": { "idempotencyKey": "k", "params": { "command": "rm -rf /" } } }),
        );
        let mut world = World::new();
        let (mut call, step) = world.begin(from_envelope(&envelope, &policy), &policy);
        assert_eq!(name_of(&step), "Run");
        world.on(&mut call, Event::Cancelled(Others::None));
        finished(world.on(&mut call, Event::Ran(timed_out())));
        let (_, step) = world.begin(from_envelope(&keyed("other"), &policy), &policy);
        assert_eq!(code(&finished(step)), Some(Code::ToolBlocked), "{class:?}, guard {guard:?}");
    }
}

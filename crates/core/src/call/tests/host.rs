//! Hosts that run the tool themselves, and may be gone.

use super::*;

fn hosted(policy: &CallPolicy) -> CallRequest {
    CallRequest { run_by: RunnerKind::Host, ..request(policy) }
}

/// Returns the failures that breaker and trust have counted, and whether the call counts for the score of its tool.
fn counted(world: &CallTestWorld, call: &Call) -> (u32, usize, bool) {
    (world.breaker.counts().failures, world.trust.history(None).count(), call.score_outcome().is_some())
}

#[test]
fn a_silent_host_says_nothing_about_its_tool() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(hosted(&policy), &policy);
        // The host has started the tool, and then it dies.
        world.pass(policy.time.attempt / 2);
        world.on(&mut call, CallEvent::Progressed);
        let result = match world.wake(&mut call) {
            NextStep::Cut(cut) => {
                assert_eq!(cut, CutReason::Silent(policy.time.attempt * 3 / 2));
                finished(world.on(&mut call, CallEvent::Ran(timed_out())))
            }
            _ => answered(world.wake(&mut call)).0,
        };
        let expected = if class == ToolClass::Mutating { Code::OutcomeUnknown } else { Code::Timeout };
        assert_eq!(code(&result), Some(expected), "{class:?}: no host is left for another attempt");
        assert_eq!(counted(&world, &call), (0, 0, false), "{class:?}");
        if class == ToolClass::Mutating {
            // What the record still waits for ends as well.
            let ends = (0..100).any(|_| world.wake(&mut call) != NextStep::Wait);
            assert!(ends && call.is_finished());
            assert_eq!(counted(&world, &call), (0, 0, false));
        }
        assert_eq!(world.limiter.in_flight(), 0, "{class:?}");
    }
}

#[test]
fn a_host_that_never_showed_a_sign_of_life_may_be_gone_however_soon_its_time_is_up() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.time.total = policy.time.attempt / 2;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(hosted(&policy), &policy);
    assert_eq!(world.wake(&mut call), NextStep::Cut(CutReason::TooLong));
    finished(world.on(&mut call, CallEvent::Ran(timed_out())));
    assert_eq!(counted(&world, &call), (0, 0, false));
}

#[test]
fn a_tool_that_takes_too_long_counts_if_its_host_is_there_or_we_run_it() {
    for run_by in [RunnerKind::Host, RunnerKind::InProcessHost, RunnerKind::Driver] {
        let mut policy = policy(ToolClass::Idempotent);
        policy.retry.attempts = std::num::NonZeroU32::MIN;
        policy.time.total = policy.time.attempt * 2;
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(CallRequest { run_by, ..request(&policy) }, &policy);
        let signs = if run_by == RunnerKind::Host { 3 } else { 0 };
        for _ in 0..signs {
            world.pass(policy.time.attempt / 2);
            world.on(&mut call, CallEvent::Progressed);
        }
        assert!(matches!(world.wake(&mut call), NextStep::Cut(_)));
        finished(world.on(&mut call, CallEvent::Ran(timed_out())));
        assert_eq!(counted(&world, &call), (1, 1, true), "{run_by:?}");
    }
}

#[test]
fn a_report_of_a_host_after_a_cancellation_counts_like_any_other() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.retry.attempts = std::num::NonZeroU32::MIN;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(hosted(&policy), &policy);
    assert!(matches!(world.wake(&mut call), NextStep::Cut(_)));
    finished(world.on(&mut call, CallEvent::Ran(http(500))));
    assert_eq!(counted(&world, &call), (1, 1, true));
}

#[test]
fn an_order_that_never_reached_its_host_is_as_if_it_had_not_been() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        for _ in 0..2 {
            let (mut call, step) = world.begin(hosted(&policy), &policy);
            assert_eq!(name_of(&step), "Run", "{class:?}");
            let closed = FaultSource::Transport { error: TransportError::ConnectionClosed, written: false };
            let fault = AttemptFault::new(closed, "the host was gone");
            let result = finished(world.on(&mut call, CallEvent::Ran(AttemptReport::NotRun { fault })));
            assert_eq!((code(&result), world.store.state()), (Some(Code::Cancelled), "none"), "{class:?}");
            assert_eq!((counted(&world, &call), world.limiter.in_flight()), ((0, 0, false), 0), "{class:?}");
        }
    }
}

#[test]
fn a_probe_that_is_lost_with_its_host_makes_room_for_the_next_one() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.retry.attempts = std::num::NonZeroU32::MIN;
    (policy.modes.guard, policy.modes.trust) = (EnforcementMode::Off, EnforcementMode::Off);
    let mut world = CallTestWorld::new();
    for _ in 0..5 {
        world.drive(request(&policy), &policy, &at_once(http(500)));
    }
    assert_eq!(world.breaker.state(&policy.breaker, world.now), breaker::State::Open);
    world.pass(policy.breaker.cooldown.first);
    // Lost hosts do not close or reopen the breaker, however many there are.
    for _ in 0..7 {
        let (mut call, step) = world.begin(hosted(&policy), &policy);
        assert_eq!(name_of(&step), "Run");
        assert!(matches!(world.wake(&mut call), NextStep::Cut(_)));
        finished(world.on(&mut call, CallEvent::Ran(timed_out())));
        assert_eq!(world.breaker.state(&policy.breaker, world.now), breaker::State::HalfOpen);
    }
}

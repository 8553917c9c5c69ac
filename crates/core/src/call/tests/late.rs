//! Late events: a start after the deadline, a timer that fires late, a caller whose time is up.

use std::num::NonZeroU32;

use super::*;
use crate::retry::RetryStop;

/// A call whose caller allows it this much time.
fn within(policy: &CallPolicy, span: Duration) -> CallRequest {
    let mut request = request(policy);
    request.limits.deadline = Some(START + span);
    request
}

#[test]
fn a_first_attempt_does_not_start_after_the_deadline_however_slow_the_claim_was() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        let (mut call, step) = world.begin_only(within(&policy, SECOND), &policy);
        let NextStep::Claim(claim) = step else { panic!("{step:?}") };
        let verdict = world.store.claim(&claim, world.now);
        world.pass(SECOND);
        let result = finished(world.on(&mut call, CallEvent::Claimed(verdict)));
        assert_eq!((code(&result), rule(&result)), (Some(Code::DeadlineExceeded), "deadline"), "{class:?}");
        assert_eq!((world.runs, world.store.state()), (0, "none"), "{class:?}");
    }
}

#[test]
fn one_caller_s_deadline_does_not_stop_a_tool_that_others_wait_for() {
    for (outcome, state, expected) in
        [(paid(), "done", Ok(answer("paid"))), (http(400), "failed", Err(Code::ToolError))]
    {
        let policy = policy(ToolClass::Mutating);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(within(&policy, 2 * SECOND), &policy);
        let (mut other, step) = world.begin(request(&policy), &policy);
        assert_eq!(name_of(&step), "Follow");
        let (result, upstream) = answered(world.wake(&mut call));
        assert_eq!((code(&result), rule(&result)), (Some(Code::OutcomeUnknown), "deadline"));
        assert_eq!((upstream, world.store.state()), (UpstreamSignal::NoSignal, "inflight"));
        // The tool was not asked to stop, so its response is its result, even a failure.
        finished(world.on(&mut call, CallEvent::Ran(outcome)));
        assert_eq!(world.store.state(), state);
        let result = finished(world.on(&mut other, CallEvent::Woke(WakeReason::Changed)));
        assert_eq!(result.outcome.map_err(|failure| failure.code), expected);
    }
}

#[test]
fn a_deadline_cut_keeps_its_code_if_another_limit_also_stops_the_call() {
    let once: fn(&mut CallPolicy) = |policy| policy.retry.attempts = NonZeroU32::MIN;
    let nothing: fn(&mut CallPolicy) = |_| {};
    for (name, change, outcome) in [
        ("nothing else", nothing, timed_out()),
        ("no attempt is left", once, timed_out()),
        ("retries are off", |policy| policy.modes.retry = EnforcementMode::Off, timed_out()),
        ("retries are in shadow", |policy| policy.modes.retry = EnforcementMode::Shadow, timed_out()),
        (
            "it counts as stuck",
            |policy| policy.time.silence = crate::policy::SilencePolicy::Stuck,
            timed_out(),
        ),
        ("it was never sent", once, not_sent()),
    ] {
        let mut policy = policy(ToolClass::Idempotent);
        change(&mut policy);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(within(&policy, 2 * SECOND), &policy);
        assert_eq!(world.wake(&mut call), NextStep::Cut(CutReason::Deadline), "{name}");
        let result = finished(world.on(&mut call, CallEvent::Ran(outcome)));
        assert_eq!((code(&result), rule(&result)), (Some(Code::DeadlineExceeded), "deadline"), "{name}");
        assert_eq!(result.status(), crate::code::CallStatus::RetryExhausted, "{name}");
        assert_eq!((world.runs, world.store.state()), (1, "none"), "{name}");
    }
}

#[test]
fn a_timer_that_fires_late_starts_nothing_that_the_limits_forbid() {
    let total: fn(&mut CallPolicy, &mut CallRequest) = |_, _| {};
    for (name, limit, late, stop, expected) in [
        ("total time", total, 31 * SECOND, RetryStop::TotalTime, Code::RetryExhausted),
        (
            "the caller's time",
            |_, request| request.limits.elapsed = Some(2 * SECOND),
            3 * SECOND,
            RetryStop::TotalTime,
            Code::RetryExhausted,
        ),
        (
            "the gateway's last retry",
            |policy, _| {
                *policy = policy.clone().for_gateway();
                policy.retry.total = None;
            },
            46 * SECOND,
            RetryStop::TotalTime,
            Code::RetryExhausted,
        ),
        (
            "the limit of the whole call",
            |policy, _| {
                policy.retry.total = None;
                policy.time.total = 20 * SECOND;
            },
            20 * SECOND,
            RetryStop::TotalTime,
            Code::RetryExhausted,
        ),
        (
            "the deadline",
            |_, request| request.limits.deadline = Some(START + 5 * SECOND),
            5 * SECOND,
            RetryStop::Deadline,
            Code::DeadlineExceeded,
        ),
    ] {
        let mut policy = policy(ToolClass::Idempotent);
        let mut request = request(&policy);
        limit(&mut policy, &mut request);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request, &policy);
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(http(500)))), "Wait", "{name}");
        world.pass(late);
        let result = finished(world.wake(&mut call));
        assert_eq!(code(&result), Some(expected), "{name}");
        assert!(message(&result).ends_with("it failed"), "{name}: {}", message(&result));
        assert!(world.has(&CallNotice::RetryStopped { stop }), "{name}");
        assert_eq!((world.runs, world.store.state()), (1, "none"), "{name}");
    }
}

#[test]
fn a_renewal_that_takes_long_before_a_retry_is_as_late_as_a_timer() {
    for mode in [EnforcementMode::Enforce, EnforcementMode::Shadow] {
        for answers in [true, false] {
            let mut policy = policy(ToolClass::Idempotent);
            policy.modes.dedupe = mode;
            policy.dedupe.keep.lease = 100 * MS;
            let mut world = CallTestWorld::new();
            let (mut call, _) = world.begin(request(&policy), &policy);
            world.on(&mut call, CallEvent::Ran(http(500)));
            world.now = call.wake_at().unwrap();
            assert_eq!(world.on_only(&mut call, CallEvent::Woke(WakeReason::Time)), Ok(NextStep::Renew));
            let sent = world.now;
            world.pass(31 * SECOND);
            let event = if answers {
                renewed(&call, sent, RenewVerdict::Renewed)
            } else {
                CallEvent::StoreFailed(StoreFault::Unanswered)
            };
            finished(world.on(&mut call, event));
            assert_eq!(world.runs, 1, "{mode:?}, the store answers: {answers}");
        }
    }
}

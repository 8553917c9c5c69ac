//! Refusals, duplicates, retries, time, and determinism.

use std::num::NonZeroU32;

use super::*;
use crate::guard::{GuardLayer, GuardedResult};
use crate::policy::BudgetPolicy;
use crate::template::KeyTemplate;

// ---- refusals ----

/// Every reason to refuse a call without a wait: its name, its setup, the code.
#[expect(clippy::type_complexity, reason = "a table of a test")]
const REFUSALS: &[(&str, fn(&mut CallTestWorld, &mut CallRequest, &mut CallPolicy), Code)] = &[
    ("deadline", |_, request, _| request.limits.deadline = Some(START), Code::DeadlineExceeded),
    (
        "arguments",
        |_, request, policy| {
            policy.arguments = ArgumentCheck::Enforce;
            request.invalid_arguments = Some("\"to\" is missing".into());
        },
        Code::InvalidArguments,
    ),
    (
        "arguments that the key is made of",
        |_, request, policy| {
            policy.dedupe.key = Some(KeyTemplate::parse("{to}").unwrap().into());
            request.invalid_arguments = Some("\"to\" is missing".into());
        },
        Code::InvalidArguments,
    ),
    (
        "guard",
        |world, request, policy| {
            for _ in 0..2 {
                let call = GuardedCall { tool: &request.tool, arguments: request.digest, turn: None };
                world.guard.begin(&policy.guard, call, world.now);
                world.guard.end(
                    &policy.guard,
                    call,
                    GuardedResult::Failure { message: "no", mistake: None },
                    world.now,
                );
            }
        },
        Code::LoopDetected,
    ),
    (
        "breaker",
        |world, _, _| {
            world.breaker.force_open(None, world.now);
        },
        Code::CircuitOpen,
    ),
    (
        "dependency",
        |world, _, _| {
            let mut breaker = CircuitBreaker::default();
            breaker.force_open(None, world.now);
            world.dependency = Some(breaker);
        },
        Code::CircuitOpen,
    ),
    (
        "trust",
        |world, request, _| {
            world.trust.block_tool(&request.tool, "a test", crate::trust::NotifyChoice::No, world.now);
        },
        Code::ToolBlocked,
    ),
    ("approval", |_, _, policy| policy.approval.when = ApprovalTrigger::Always, Code::ApprovalRequired),
];

#[test]
fn a_refusal_follows_a_lookup_of_the_key_and_writes_nothing() {
    for (name, refuse, expected) in REFUSALS {
        let mut policy = policy(ToolClass::Mutating);
        let mut request = request(&policy);
        // No record: refused.
        let mut world = CallTestWorld::new();
        refuse(&mut world, &mut request, &mut policy);
        let (_, step) = world.begin(request.clone(), &policy);
        let result = finished(step);
        assert_eq!(code(&result), Some(*expected), "{name}");
        assert_eq!(
            (world.steps.as_slice(), world.store.writes),
            (["Look", "Finish"].as_slice(), 0),
            "{name}"
        );
        assert!(world.blocked(*expected), "{name}");

        // A result is stored: it is replayed, despite every reason against a run.
        let free = self::policy(ToolClass::Mutating);
        let mut world = CallTestWorld::new();
        world.drive(self::request(&free), &free, &at_once(paid()));
        refuse(&mut world, &mut request, &mut policy);
        let writes = world.store.writes;
        let (_, step) = world.begin(request.clone(), &policy);
        assert_eq!(finished(step).outcome, Ok(answer("paid")), "{name}");
        assert_eq!((world.store.writes, world.runs), (writes, 1), "{name}");

        // A run is in flight: the call waits for it and gets its result.
        let mut world = CallTestWorld::new();
        let (mut leader, _) = world.begin(self::request(&free), &free);
        refuse(&mut world, &mut request, &mut policy);
        let (mut call, step) = world.begin(request.clone(), &policy);
        assert_eq!(name_of(&step), "Follow", "{name}");
        finished(world.on(&mut leader, CallEvent::Ran(paid())));
        let result = finished(world.on(&mut call, CallEvent::Woke(WakeReason::Changed)));
        assert_eq!(result.outcome, Ok(answer("paid")), "{name}");
    }
}

#[test]
fn invalid_arguments_that_no_key_is_made_of_are_left_to_the_tool() {
    for check in [ArgumentCheck::Assist, ArgumentCheck::Off] {
        let mut policy = policy(ToolClass::Mutating);
        policy.arguments = check;
        let mut request = request(&policy);
        request.invalid_arguments = Some("\"to\" is missing".into());
        let mut world = CallTestWorld::new();
        let (_, step) = world.begin(request, &policy);
        assert!(matches!(step, NextStep::Run(_)), "{check:?}: {step:?}");
    }
}

#[test]
fn a_follower_with_a_withheld_refusal_is_refused_if_the_run_left_nothing() {
    for (name, refuse, expected) in REFUSALS {
        let mut policy = policy(ToolClass::Mutating);
        let free = policy.clone();
        let mut request = request(&policy);
        let mut world = CallTestWorld::new();
        let (mut leader, _) = world.begin(self::request(&free), &free);
        refuse(&mut world, &mut request, &mut policy);
        let (mut call, _) = world.begin(request.clone(), &policy);
        assert_eq!(call.state(), "Following", "{name}");
        // The in-flight call is proved not to have run, and its claim is gone.
        finished(world.on(&mut leader, CallEvent::Ran(http(413))));
        assert_eq!(world.store.state(), "none", "{name}");
        let result = finished(world.on(&mut call, CallEvent::Woke(WakeReason::Changed)));
        assert_eq!((code(&result), world.runs, world.store.state()), (Some(*expected), 1, "none"), "{name}");
        assert!(format!("{:?}", world.guard).contains("open: []"), "{name}: nothing is in flight any more");
    }
}

/// A turn leaves its calls at its deadline, and none of them may start then: neither a call whose claim took long nor a
/// retry.
#[test]
fn nothing_starts_after_the_callers_time_limit_and_a_running_attempt_continues() {
    let policy = policy(ToolClass::Mutating);
    let latest = START + Duration::from_secs(10);
    let mut request = request(&policy);
    request.limits.start_by = Some(latest);

    let mut world = CallTestWorld::new();
    let (mut call, step) = world.begin_only(request.clone(), &policy);
    assert_eq!(name_of(&step), "Claim");
    world.now = latest;
    let step = world.serve(&mut call, step);
    assert_eq!((code(&finished(step)), world.runs), (Some(Code::DeadlineExceeded), 0));
    assert_eq!(world.store.state(), "none");

    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request, &policy);
    assert!(call.wake_at().is_none_or(|at| at > latest), "it is not cut then");
    world.now = START + Duration::from_millis(9_999);
    let refused = AttemptFault::new(FaultSource::Http { status: 429 }, "slow down");
    let step = world.on(&mut call, CallEvent::Ran(AttemptReport::Failure { fault: refused, output: None }));
    assert_eq!(
        (code(&finished(step)), world.runs),
        (Some(Code::RetryExhausted), 1),
        "there is no time for a retry"
    );
}

#[test]
fn a_refusal_without_a_key_needs_no_lookup() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.breaker.force_open(None, world.now);
    let (_, step) = world.begin(from_envelope(&envelope(), &policy), &policy);
    assert_eq!(code(&finished(step)), Some(Code::CircuitOpen));
    assert_eq!(world.steps, ["Finish"]);
}

#[test]
fn a_refusal_after_the_claim_releases_it() {
    let mut policy = policy(ToolClass::Mutating);
    policy.limits.concurrency = NonZeroU32::new(1);
    let mut world = CallTestWorld::new();
    let (mut first, _) = world.begin(request(&policy), &policy);
    let (_, step) = world.begin(from_envelope(&keyed("other"), &policy), &policy);
    let result = finished(step);
    assert_eq!((code(&result), rule(&result)), (Some(Code::Overloaded), "limit.concurrency"));
    assert_eq!((world.store.records.len(), world.runs), (1, 1));
    finished(world.on(&mut first, CallEvent::Ran(paid())));
    assert!(world.post(&keyed("other"), &policy, &at_once(paid())).error.is_none(), "there is room again");
}

#[test]
fn refusals_are_never_replayed() {
    let mut policy = policy(ToolClass::Mutating);
    policy.dedupe.cache_failures = crate::policy::FailureReplayPolicy::All;
    policy.limits.concurrency = NonZeroU32::new(1);
    let mut world = CallTestWorld::new();
    world.limiter.try_acquire(&policy.limits, world.now).unwrap();
    assert_eq!(code(&world.drive(request(&policy), &policy, &[])), Some(Code::Overloaded));
    world.limiter.release();
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());
}

// ---- what may be retried (D4) ----

#[test]
fn the_step_after_a_failed_attempt_depends_on_class_reach_and_nature() {
    let certificate = || AttemptReport::Failure {
        fault: AttemptFault::new(
            FaultSource::Transport { error: TransportError::Tls, written: true },
            "certificate has expired",
        ),
        output: None,
    };
    let too_early = || http(425);
    // Fault, its reach and nature; the decision for a tool that is safe, for a mutating one, and for one of unknown
    // class with ambiguity set to retry, and set to stop.
    let rows = [
        ("not sent, transient", not_sent(), ["retry", "retry", "retry", "retry"]),
        ("refused, transient", http(429), ["retry", "retry", "retry", "retry"]),
        ("refused, permanent", http(413), ["release", "release", "release", "release"]),
        ("unknown, transient", http(500), ["retry", "unknown", "retry", "unknown"]),
        ("unknown, transient", timed_out(), ["retry", "unknown", "retry", "unknown"]),
        ("unknown, permanent", certificate(), ["release", "unknown", "release", "unknown"]),
        ("answered, transient", too_early(), ["retry", "save", "retry", "save"]),
        ("answered, permanent", http(400), ["save", "save", "save", "save"]),
    ];
    for (name, outcome, expected) in rows {
        let found = [
            (ToolClass::Idempotent, AmbiguousOutcomePolicy::Stop),
            (ToolClass::Mutating, AmbiguousOutcomePolicy::Retry),
            (ToolClass::Unknown, AmbiguousOutcomePolicy::Retry),
            (ToolClass::Unknown, AmbiguousOutcomePolicy::Stop),
        ]
        .map(|(class, ambiguous)| {
            let mut policy = policy(class);
            policy.repeat.ambiguous = ambiguous;
            leads_to(&policy, request(&policy), outcome.clone())
        });
        assert_eq!(found, expected, "{name}: {outcome:?}");
    }
}

use crate::policy::AmbiguousOutcomePolicy;

fn leads_to(policy: &CallPolicy, request: CallRequest, outcome: AttemptReport) -> &'static str {
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request, policy);
    match (world.on(&mut call, CallEvent::Ran(outcome)), world.store.state()) {
        (NextStep::Wait, "inflight") => "retry",
        // The tool answered: a waiting caller is answered when the work that it may have passed on is over.
        (NextStep::Wait, "unknown") => "unknown",
        (NextStep::Finish { result, .. }, "unknown") if code(&result) == Some(Code::OutcomeUnknown) => {
            "unknown"
        }
        (NextStep::Finish { .. }, "none") => "release",
        (NextStep::Finish { .. }, "failed") => "save",
        (step, state) => panic!("{step:?}, and the record is {state}"),
    }
}

#[test]
fn a_hint_that_a_retry_is_safe_counts_as_far_as_the_class_allows() {
    let hint = envelope_with(
        &json!({ "payload": { "idempotencyKey": "k", "callHints": { "expectedRetrySafe": true } } }),
    );
    let with = |class, change: fn(&mut CallPolicy)| {
        let mut policy = policy(class);
        policy.repeat.ambiguous = AmbiguousOutcomePolicy::Stop;
        change(&mut policy);
        policy
    };
    let nothing: fn(&mut CallPolicy) = |_| {};
    for (class, change, envelope, expected) in [
        (
            ToolClass::Mutating,
            (|policy| policy.repeat.retry_safe = true) as fn(&mut CallPolicy),
            keyed("k"),
            "retry",
        ),
        (ToolClass::Mutating, |policy| policy.repeat.honours_key = true, keyed("k"), "retry"),
        (ToolClass::Mutating, nothing, hint.clone(), "unknown"),
        (ToolClass::Unknown, nothing, hint, "retry"),
    ] {
        let policy = with(class, change);
        assert_eq!(leads_to(&policy, from_envelope(&envelope, &policy), http(500)), expected, "{class:?}");
    }
}

#[test]
fn a_tool_that_honours_keys_may_run_again_only_with_a_given_key() {
    let mut policy = policy(ToolClass::Mutating);
    policy.repeat.honours_key = true;
    let (id, index) = (RecordKey(Digest::of(b"id")), RecordKey(Digest::of(b"index")));
    let by_id = CallRequest {
        duplicates: Deduplication::Joined(RecordAddress::CallId { id, index }),
        ..from_envelope(&envelope(), &policy)
    };
    let by_arguments = envelope_with(&json!({ "transport": { "dedupeMode": "enforced" } }));
    for (name, request, expected) in [
        ("explicit", request(&policy), "retry"),
        // The id of the run is sent upstream, which the next call does not have.
        ("call id", by_id, "unknown"),
        ("keyless", keyless(&policy), "unknown"),
        ("computed", from_envelope(&by_arguments, &policy), "unknown"),
    ] {
        assert_eq!(leads_to(&policy, request, http(500)), expected, "{name}");
    }
}

#[test]
fn an_unknown_outcome_has_the_configured_verification() {
    let mut policy = policy(ToolClass::Mutating);
    policy.verify = Some("list the payments of today".into());
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &policy, &at_once(http(504)));
    let error = result.error.unwrap();
    assert_eq!((error.code, error.terminal), (Code::OutcomeUnknown, true));
    assert_eq!(error.verify.as_deref(), Some("list the payments of today"));
    assert!(error.message.contains("list the payments of today"), "{}", error.message);
}

// ---- when (D1, D3, D5) ----

#[test]
fn a_requested_retry_delay_is_respected() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(busy(7 * SECOND)));
    assert_eq!(call.wake_at(), Some(START + 7 * SECOND));
    assert!(world.has(&CallNotice::RetryScheduled { attempt: 2, at: START + 7 * SECOND }));
}

#[test]
fn a_wait_that_is_too_long_ends_the_call_and_is_passed_on() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(busy(90 * SECOND)));
    let failure = result.outcome.unwrap_err();
    assert_eq!((failure.code, failure.retry_after), (Code::RetryExhausted, Some(90 * SECOND)));

    let mut world = CallTestWorld::new();
    let mut request = request(&policy);
    request.limits.deadline = Some(START + 5 * SECOND);
    let result = world.drive(request, &policy, &at_once(busy(6 * SECOND)));
    assert_eq!(
        (code(&result), rule(&result), result.attempts),
        (Some(Code::DeadlineExceeded), "deadline", 1)
    );
}

#[test]
fn retries_of_a_dependency_are_limited_together() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.retry.budget = BudgetPolicy { share: Ratio::percent(0), floor_per_second: 2 };
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    assert_eq!(
        (code(&result), rule(&result), result.attempts),
        (Some(Code::RetryExhausted), "retry_budget", 3)
    );
    assert!(world.has(&CallNotice::RetryStopped { stop: crate::retry::RetryStop::Budget }));
}

#[test]
fn only_first_attempts_add_to_the_retry_budget() {
    let mut policy = policy(ToolClass::Idempotent);
    (policy.modes.breaker, policy.modes.guard) = (EnforcementMode::Off, EnforcementMode::Off);
    policy.retry.budget = BudgetPolicy { share: Ratio::percent(100), floor_per_second: 0 };
    let mut world = CallTestWorld::new();
    for call in 0..3 {
        let request = from_envelope(&keyed(&format!("k{call}")), &policy);
        let result = world.drive(request, &policy, &at_once(http(503)));
        assert_eq!((rule(&result), result.attempts), ("retry_budget", 2), "one retry for each call");
    }
}

#[test]
fn a_caller_lowers_the_limits_and_never_raises_them() {
    let policy = policy(ToolClass::Idempotent);
    let post = |transport: Json, hints: Json| {
        let envelope = envelope_with(
            &json!({ "transport": { "retryBudget": transport }, "payload": { "callHints": hints } }),
        );
        let mut world = CallTestWorld::new();
        world.post(&envelope, &policy, &[(SECOND, http(503))])
    };
    assert_eq!(post(json!({ "maxAttempts": 2 }), json!({})).attempts, 2);
    assert_eq!(post(json!({ "maxAttempts": 90, "maxElapsedMs": 900_000 }), json!({})).attempts, 4);
    assert_eq!(post(json!({ "maxElapsedMs": 500 }), json!({})).attempts, 1);

    let mut world = CallTestWorld::new();
    let hint = envelope_with(&json!({ "payload": { "callHints": { "timeoutMs": 90_000 } } }));
    let (call, _) = world.begin(from_envelope(&hint, &policy), &policy);
    assert_eq!(call.wake_at(), Some(START + 30 * SECOND));
    let hint = envelope_with(&json!({ "payload": { "callHints": { "timeoutMs": 5 } } }));
    let (call, _) = world.begin(from_envelope(&hint, &policy), &policy);
    assert_eq!(call.wake_at(), Some(START + 5 * MS));
}

#[test]
fn a_caller_that_allows_one_attempt_gets_the_failure_itself() {
    let policy = policy(ToolClass::Idempotent);
    let envelope = envelope_with(&json!({ "transport": { "retryBudget": { "maxAttempts": 1 } } }));
    let mut world = CallTestWorld::new();
    let result = world.post(&envelope, &policy, &at_once(http(503)));
    assert_eq!(result.error.map(|error| error.code), Some(Code::UpstreamUnavailable));
}

#[test]
fn a_server_that_lost_its_session_does_not_open_the_breaker() {
    let mut policy = policy(ToolClass::Mutating);
    policy.breaker.consecutive = NonZeroU32::new(2);
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &policy, &at_once(fails(FaultSource::SessionLost)));
    let error = result.error.unwrap();
    assert_eq!(error.code, Code::RetryExhausted, "it was tried as often as it may be: {error:?}");
    assert!(result.attempts > 2);
}

#[test]
fn a_breaker_that_opens_between_attempts_ends_the_call() {
    // By the call's own failures.
    let mut own = policy(ToolClass::Idempotent);
    own.breaker.consecutive = NonZeroU32::new(2);
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &own, &at_once(http(503)));
    assert_eq!(result.status, crate::code::CallStatus::RetryExhausted);
    let error = result.error.unwrap();
    assert_eq!((error.code, result.attempts), (Code::CircuitOpen, 2));
    assert_eq!(error.breaker_state, Some(breaker::State::Open));
    assert!(error.retry_after_ms.is_some(), "it says when to come again");
    assert_eq!(world.store.state(), "none");

    // By failures of other calls, during the wait.
    let policy = policy(ToolClass::Idempotent);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(503)));
    world.breaker.force_open(None, world.now);
    let result = finished(world.wake(&mut call)).to_envelope(call.request());
    assert_eq!(result.status, crate::code::CallStatus::RetryExhausted);
    assert_eq!(result.error.map(|error| error.code), Some(Code::CircuitOpen));
    assert_eq!((world.runs, world.store.state()), (1, "none"));
    let counted = world.trust.history(None).map(|entry| format!("{entry:?}")).collect::<Vec<_>>();
    assert!(
        counted.iter().any(|entry| entry.contains("ServerError")),
        "trust counts what the tool did: {counted:?}"
    );
}

#[test]
fn a_refusal_between_two_attempts_has_the_last_message_of_the_tool() {
    let held_back: fn(&mut CallTestWorld, &CallPolicy) = |world, _| {
        world.breaker.force_open(None, world.now);
    };
    let too_many: fn(&mut CallTestWorld, &CallPolicy) =
        |world, policy| world.limiter.try_acquire(&policy.limits, world.now).unwrap();
    for (happens, expected, reason) in [
        (
            held_back,
            Code::CircuitOpen,
            "failed once, and the circuit breaker of the tool is open now: it failed",
        ),
        (too_many, Code::Overloaded, "failed once, and a limit of the tool has been reached: it failed"),
    ] {
        let mut policy = policy(ToolClass::Idempotent);
        policy.limits.concurrency = NonZeroU32::new(1);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        let fault = AttemptFault::new(FaultSource::Http { status: 500 }, "it failed");
        let failed = AttemptReport::Failure { fault, output: Some(answer("out of paper")) };
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(failed))), "Wait");
        happens(&mut world, &policy);
        let result = finished(world.wake(&mut call));
        assert_eq!((code(&result), message(&result)), (Some(expected), reason));
        let failure = result.outcome.unwrap_err();
        assert_eq!((failure.output, failure.retriable), (Some(answer("out of paper")), true), "{expected:?}");
        assert_eq!((world.runs, world.store.state()), (1, "none"), "a refusal is not kept");
    }
}

#[test]
fn a_deadline_cuts_a_running_attempt() {
    let safe = policy(ToolClass::Idempotent);
    let mut call_of = request(&safe);
    call_of.limits.deadline = Some(START + 2 * SECOND);
    let mut world = CallTestWorld::new();
    let (mut call, step) = world.begin(call_of.clone(), &safe);
    assert!(matches!(step, NextStep::Run(run) if run.deadline == Some(START + 2 * SECOND)));
    assert_eq!(world.wake(&mut call), NextStep::Cut(CutReason::Deadline));
    let result = finished(world.on(&mut call, CallEvent::Ran(timed_out())));
    assert_eq!((code(&result), result.took), (Some(Code::DeadlineExceeded), 2 * SECOND));

    let mutating = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(call_of, &mutating);
    let (result, _) = answered(world.wake(&mut call));
    assert_eq!((code(&result), rule(&result)), (Some(Code::OutcomeUnknown), "deadline"));
}

// ---- the gateway ----

#[test]
fn at_the_gateway_a_long_call_is_answered_after_55_seconds_and_continues() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let policy = policy(class).for_gateway();
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(keyless(&policy), &policy);
        assert_eq!(call.wake_at(), Some(START + 55 * SECOND));
        // A caller that is known to wait longer is not answered before the end.
        let patient = CallRequest { waits: CallerPatience::UntilDone, ..keyless(&policy) };
        let (waiting, _) = CallTestWorld::new().begin(patient, &policy);
        assert_eq!(waiting.wake_at(), Some(START + policy.time.attempt));
        let (result, upstream) = answered(world.wake(&mut call));
        assert_eq!((code(&result), upstream), (Some(Code::InFlight), UpstreamSignal::NoSignal));
        assert_eq!((result.receipt, world.store.state()), (None, "inflight"));
        // Calling again waits for it and gets its result, although the first caller was answered before.
        let (mut again, step) = world.begin(keyless(&policy), &policy);
        assert_eq!(name_of(&step), "Follow");
        world.pass(10 * SECOND);
        let late = finished(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!(late.recorded, RecordStatus::Yes);
        let result = finished(world.on(&mut again, CallEvent::Woke(WakeReason::Changed)));
        assert_eq!(result.outcome, Ok(answer("paid")));
        // Undelivered, the result is stored for the next caller too.
        assert_eq!(world.drive(keyless(&policy), &policy, &[]).outcome, Ok(answer("paid")));
        assert_eq!(world.runs, 1);
    }
}

#[test]
fn at_the_gateway_a_follower_is_answered_in_time_too() {
    let policy = policy(ToolClass::Mutating).for_gateway();
    let mut world = CallTestWorld::new();
    world.begin(keyless(&policy), &policy);
    world.pass(20 * SECOND);
    let (mut follower, _) = world.begin(keyless(&policy), &policy);
    assert_eq!(follower.wake_at(), Some(START + 75 * SECOND));
    assert_eq!(code(&finished(world.wake(&mut follower))), Some(Code::InFlight));
}

#[test]
fn a_follower_waits_no_longer_than_its_own_caller_allows() {
    let policy = policy(ToolClass::Mutating);
    let minute = 60 * SECOND;
    for (elapsed, deadline, waits) in [
        (None, None, policy.time.total),
        (Some(minute), None, minute),
        (None, Some(minute), minute),
        (Some(2 * minute), Some(minute), minute),
        (Some(minute), Some(2 * minute), minute),
        (Some(2 * policy.time.total), None, policy.time.total),
    ] {
        let mut world = CallTestWorld::new();
        world.begin(keyless(&policy), &policy);
        world.pass(SECOND);
        let arrived = world.now;
        let mut request = keyless(&policy);
        (request.limits.elapsed, request.limits.deadline) = (elapsed, deadline.map(|span| arrived + span));
        let (mut follower, step) = world.begin(request, &policy);
        assert_eq!(name_of(&step), "Follow");
        assert_eq!(follower.wake_at(), Some(arrived + waits), "{elapsed:?} {deadline:?}");
        finished(world.wake(&mut follower));
    }
}

#[test]
fn at_the_gateway_no_retry_starts_after_45_seconds() {
    let mut policy = policy(ToolClass::Idempotent).for_gateway();
    policy.retry.total = None;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.pass(44_900 * MS);
    let result = finished(world.on(&mut call, CallEvent::Ran(http(503))));
    assert_eq!((code(&result), world.runs), (Some(Code::RetryExhausted), 1));
}

#[test]
fn a_call_without_sign_of_life_is_stuck_and_progress_pushes_that_back() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let mut policy = policy(class).for_gateway();
        policy.time.answer_by = None;
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(keyless(&policy), &policy);
        world.pass(200 * SECOND);
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Progressed)), "Stay");
        assert_eq!(call.wake_at(), Some(START + 500 * SECOND));
        world.pass(100 * SECOND);
        assert_eq!(
            name_of(&world.on(&mut call, CallEvent::Woke(WakeReason::Time))),
            "Stay",
            "a timer from before the progress"
        );
        let result = match (class, world.wake(&mut call)) {
            (ToolClass::Idempotent, NextStep::Cut(CutReason::Silent(_))) => {
                finished(world.on(&mut call, CallEvent::Ran(timed_out())))
            }
            (_, NextStep::CancelUpstream) => answered(world.wake(&mut call)).0,
            (_, step) => panic!("{class:?}: {step:?}"),
        };
        assert_eq!(code(&result), Some(Code::StuckCall), "{class:?}");
        assert_eq!(result.status(), crate::code::CallStatus::Timeout);
        assert_eq!(world.store.state(), if class == ToolClass::Mutating { "unknown" } else { "none" });
    }
}

// ---- duplicates ----

#[test]
fn an_equal_call_without_a_key_runs_again_once_its_answer_has_arrived() {
    let policy = policy(ToolClass::Mutating).for_gateway();
    let mut world = CallTestWorld::new();
    let first = world.drive(keyless(&policy), &policy, &at_once(paid()));
    world.pass(SECOND);
    let resent = world.drive(keyless(&policy), &policy, &[]);
    assert!(matches!(resent.provenance, Provenance::Replayed { .. }), "undelivered: {resent:?}");
    world.deliver(&first);
    let repeated = world.drive(keyless(&policy), &policy, &at_once(paid()));
    assert_eq!((repeated.provenance, world.runs), (Provenance::Fresh, 2));
}

#[test]
fn best_effort_returns_at_once_while_the_call_is_in_flight() {
    let policy = policy(ToolClass::Mutating);
    let envelope = envelope_with(
        &json!({ "payload": { "idempotencyKey": "k" }, "transport": { "dedupeMode": "bestEffort" } }),
    );
    let mut world = CallTestWorld::new();
    world.begin(from_envelope(&envelope, &policy), &policy);
    let second = world.post(&envelope, &policy, &[]);
    let error = second.error.unwrap();
    assert_eq!((second.status, error.code), (crate::code::CallStatus::RetriableError, Code::InFlight));
    assert_eq!(world.runs, 1);
}

#[test]
fn an_answer_that_is_too_large_is_done_all_the_same() {
    let mut policy = policy(ToolClass::Mutating);
    policy.dedupe.largest_output = 3;
    policy.verify = Some("list the payments".into());
    let mut world = CallTestWorld::new();
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());
    let again = world.drive(request(&policy), &policy, &[]);
    assert_eq!((code(&again), world.runs), (Some(Code::ResultNotKept), 1));
    assert_eq!(again.outcome.unwrap_err().verify.as_deref(), Some("list the payments"));
}

fn too_large() -> AttemptReport {
    let fault = AttemptFault::new(FaultSource::TooLarge, "it has 70 bytes, and at most 64 are taken");
    AttemptReport::Failure { fault, output: None }
}

/// A message of 70 MB was dropped, and its call was reported as still running for ever.
#[test]
fn an_answer_over_the_limit_is_reported_at_once_and_has_run() {
    for class in [ToolClass::Mutating, ToolClass::ReadOnly, ToolClass::Unknown] {
        let mut policy = policy(class);
        policy.verify = Some("list the payments".into());
        let mut world = CallTestWorld::new();
        let first = world.drive(request(&policy), &policy, &at_once(too_large()));
        let failure = first.outcome.as_ref().unwrap_err();
        assert_eq!((failure.code, failure.retriable), (Code::ResultTooLarge, false), "{class:?}");
        assert!(failure.message.contains("it has 70 bytes, and at most 64 are taken"), "{failure:?}");
        assert_eq!(failure.verify.as_deref(), Some("list the payments"));
        assert!(!first.is_unknown_outcome() && first.recorded == RecordStatus::Yes);
        assert_eq!(world.store.state(), "done", "{class:?}");
        world.pass(policy.dedupe.keep.failed + SECOND);
        let again = world.drive(request(&policy), &policy, &[]);
        assert_eq!((code(&again), world.runs), (Some(Code::ResultNotKept), 1), "{class:?}");
    }
}

#[test]
fn an_answer_over_the_limit_counts_after_a_cut_too() {
    let policy = policy(ToolClass::Mutating).for_gateway();
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.pass(policy.time.attempt);
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    assert_eq!(world.store.state(), "unknown");
    world.on(&mut call, CallEvent::Ran(too_large()));
    assert_eq!(world.store.state(), "done", "a response to a cancellation is never that large");
    let again = world.drive(request(&policy), &policy, &[]);
    assert_eq!((code(&again), world.runs), (Some(Code::ResultNotKept), 1));
}

#[test]
fn a_replayed_failure_counts_for_the_guard_and_the_model_gets_a_remark() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let first = world.post(&keyed("k"), &policy, &at_once(http(400)));
    let second = world.post(&keyed("k"), &policy, &[]);
    assert!(second.from_cache);
    assert!(!first.error.unwrap().message.contains("[LOOP DETECTED]"));
    assert!(second.error.unwrap().message.contains("\n[LOOP DETECTED]"));
}

/// The messages of refusals contain numbers that change; the code is stable.
#[test]
fn refusals_are_one_loop_for_the_guard_only_if_their_codes_are_the_same() {
    let mut policy = policy(ToolClass::Mutating);
    policy.limits.concurrency = NonZeroU32::new(1);
    let mut world = CallTestWorld::new();
    let refused = |world: &mut CallTestWorld| {
        let result = world.drive(request(&policy), &policy, &[]);
        (code(&result), result.remarks.iter().map(|remark| remark.layer).collect::<Vec<_>>())
    };
    world.limiter.try_acquire(&policy.limits, world.now).unwrap();
    assert_eq!(refused(&mut world), (Some(Code::Overloaded), vec![]));
    world.limiter.release();
    world.breaker.force_open(None, world.now);
    assert_eq!(refused(&mut world), (Some(Code::CircuitOpen), vec![]), "another reason");
    world.pass(SECOND);
    assert_eq!(refused(&mut world), (Some(Code::CircuitOpen), vec![GuardLayer::Loop]), "the same again");
}

// ---- determinism ----

#[test]
fn the_same_inputs_give_the_same_steps_and_notices_byte_for_byte() {
    let run_with_seed = |seed: u64| {
        let policy = PolicyProfile::Standard.policy(ToolClass::Idempotent);
        let mut world = CallTestWorld::new();
        let mut trace = String::new();
        for round in 0..3_u64 {
            let mut request = request(&policy);
            request.number = round;
            let arc = Arc::new(policy.clone());
            let (mut call, mut step) =
                world.shared(|shared, now, notices| Call::begin(shared, request, arc, seed, now, notices));
            let mut outcomes =
                [http(503), timed_out(), http(429), if round == 0 { http(400) } else { paid() }].into_iter();
            loop {
                trace.push_str(&format!("{step:?}\n{:?}\n", call.wake_at()));
                step = world.serve(&mut call, step);
                step = match step {
                    NextStep::Run(_) => {
                        world.pass(13 * MS);
                        world.on(&mut call, CallEvent::Ran(outcomes.next().unwrap()))
                    }
                    NextStep::Wait => world.wake(&mut call),
                    NextStep::Finish { .. } => break,
                    other => panic!("{other:?}"),
                };
            }
            trace.push_str(&format!("{step:?}\n"));
        }
        format!("{trace}{:?}{:?}", world.notices, world.store)
    };
    assert_eq!(run_with_seed(7), run_with_seed(7));
    assert_ne!(run_with_seed(7), run_with_seed(8), "the seed decides the waits");
}

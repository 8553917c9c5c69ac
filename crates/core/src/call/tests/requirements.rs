//! Requirements that the core alone can show, driven from envelope to envelope. Each test of the acceptance matrix also
//! checks the last column of its row: the part that must not change.

use super::*;
use crate::code::CallStatus;
use crate::envelope::{CacheMatch, ErrorBody};
use crate::id::TurnId;
use crate::policy::{Jitter, KeyConflictPolicy};

fn success(result: &ResultEnvelope) -> bool {
    result.status == CallStatus::Success && result.error.is_none()
}

fn error(result: &ResultEnvelope) -> Code {
    result.error.as_ref().map(|error| error.code).expect("it failed")
}

#[test]
fn tr_1_a_malformed_envelope_runs_nothing_records_nothing_and_is_final() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    for (field, value) in [("toolName", json!(null)), ("contractVersion", json!("9.9"))] {
        let mut envelope = keyed("k");
        envelope[field] = value;
        let wrong =
            CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Keep).unwrap_err();
        let body = ErrorBody::from(&wrong);
        assert!(body.terminal && !body.retriable, "{body:?}");
        assert!(body.message.contains(field), "{}", body.message);
    }
    assert_eq!((world.runs, world.store.records.len()), (0, 0));
    // A valid call still runs.
    let valid = world.post(&keyed("k"), &policy, &at_once(paid()));
    assert!(success(&valid) && valid.output == Some(answer("paid")));
}

#[test]
fn tr_2_a_duplicate_in_flight_waits_and_runs_nothing() {
    let policy = policy(ToolClass::Mutating);
    let enabled = envelope_with(
        &json!({ "payload": { "idempotencyKey": "k" }, "transport": { "dedupeMode": "enabled" } }),
    );
    let mut world = CallTestWorld::new();
    let (mut first, _) = world.begin(from_envelope(&enabled, &policy), &policy);
    world.pass(SECOND);
    let (mut second, step) = world.begin(from_envelope(&enabled, &policy), &policy);
    assert_eq!(name_of(&step), "Follow");
    world.pass(4 * SECOND);
    assert!(finished(world.on(&mut first, CallEvent::Ran(paid()))).outcome.is_ok());
    let result =
        finished(world.on(&mut second, CallEvent::Woke(WakeReason::Changed))).to_envelope(second.request());
    assert!(success(&result) && result.from_cache);
    assert_eq!(result.cache.unwrap().matched_on, CacheMatch::Inflight);
    assert_eq!((result.output, result.duration_ms, world.runs), (Some(answer("paid")), 4000, 1));

    // Where it is disabled, duplicates do not wait.
    let disabled = envelope_with(
        &json!({ "payload": { "idempotencyKey": "k" }, "transport": { "dedupeMode": "disabled" } }),
    );
    let mut world = CallTestWorld::new();
    for runs in 1..=2 {
        let (_, step) = world.begin(from_envelope(&disabled, &policy), &policy);
        assert_eq!((name_of(&step), world.runs), ("Run", runs));
    }
}

#[test]
fn tr_3_a_duplicate_after_completion_gets_the_recorded_answer() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let first = world.post(&keyed("k"), &policy, &at_once(paid()));
    let digest = world.store.records.iter().next().map(|record| record.digest);
    world.pass(3 * SECOND);
    let second = world.post(&keyed("k"), &policy, &[]);
    assert!(success(&first) && !first.from_cache);
    assert!(success(&second) && second.from_cache);
    let hit = second.cache.unwrap();
    assert_eq!((hit.matched_on, hit.age_ms), (CacheMatch::Completed, 3000));
    assert_eq!((second.output, second.attempts, world.runs), (first.output, 0, 1));
    // The digest of the payload is unchanged.
    assert_eq!(world.store.records.iter().next().map(|record| record.digest), digest);
    assert_eq!(digest, Some(request(&policy).digest));
    // Another session has its own call.
    let elsewhere =
        envelope_with(&json!({ "target": { "sessionKey": "s-2" }, "payload": { "idempotencyKey": "k" } }));
    assert!(!world.post(&elsewhere, &policy, &at_once(paid())).from_cache);
}

#[test]
fn tr_4_the_same_key_with_other_parameters_is_a_conflict_or_another_call() {
    let other = envelope_with(&json!({ "payload": { "idempotencyKey": "k", "params": { "to": "eve" } } }));
    let mut policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.post(&keyed("k"), &policy, &at_once(paid()));
    let conflict = world.post(&other, &policy, &[]);
    assert_eq!(
        (error(&conflict), conflict.status, world.runs),
        (Code::IdempotencyConflict, CallStatus::Error, 1)
    );
    assert!(conflict.error.unwrap().terminal);
    assert_eq!(world.count(|notice| *notice == CallNotice::KeyConflict), 1, "an alarm");
    // No unexpected collision: the first call still has its own result.
    assert_eq!(world.post(&keyed("k"), &policy, &[]).output, Some(answer("paid")));

    // The conflict is found in flight too, also by a call that waits.
    let mut world = CallTestWorld::new();
    let (_leader, _) = world.begin(request(&policy), &policy);
    assert_eq!(error(&world.post(&other, &policy, &[])), Code::IdempotencyConflict);

    policy.dedupe.conflict = KeyConflictPolicy::Separate;
    let mut world = CallTestWorld::new();
    world.post(&keyed("k"), &policy, &at_once(paid()));
    let other_report = AttemptReport::Success { output: answer("other"), concern: None };
    let separate = world.post(&other, &policy, &at_once(other_report));
    assert!(!separate.from_cache && separate.output == Some(answer("other")));
    assert_eq!(world.post(&keyed("k"), &policy, &[]).output, Some(answer("paid")));
    assert_eq!(world.post(&other, &policy, &[]).output, Some(answer("other")));
    assert_eq!(world.runs, 2);
}

#[test]
fn tr_5_two_timeouts_and_a_success_are_three_attempts_with_jittered_delays() {
    let policy = PolicyProfile::Standard.policy(ToolClass::Unknown);
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &policy, &[(MS, timed_out()), (MS, timed_out()), (MS, paid())]);
    assert!(success(&result));
    assert_eq!((result.attempts, world.runs), (3, 3));
    let waits: Vec<u64> = result.retried_by.iter().map(|retried| retried.delay_ms).collect();
    assert_eq!(waits.len(), 2);
    assert!(waits[0] <= 200 && waits[1] <= 400, "{waits:?}");
    assert!(result.retried_by.iter().all(|retried| retried.reason_code == "timeout"));
    // A stable tool is called once.
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &policy, &at_once(paid()));
    assert_eq!((result.attempts, result.retried_by.len(), world.runs), (1, 0, 1));
}

#[test]
fn tr_6_a_400_is_final_after_one_attempt() {
    let policy = policy(ToolClass::Unknown);
    let mut world = CallTestWorld::new();
    let output =
        ToolOutput { content: RawJson::from_trusted(r#"{"detail":"no such account"}"#), metadata: None };
    let fault = AttemptFault::new(FaultSource::Http { status: 400 }, "bad request");
    let refusal = AttemptReport::Failure { fault, output: Some(output.clone()) };
    let result = world.post(&keyed("k"), &policy, &at_once(refusal));
    let error = result.error.clone().unwrap();
    assert_eq!((result.status, result.attempts), (CallStatus::Error, 1));
    assert!(error.terminal && !error.retriable);
    // The message of the tool is unchanged.
    assert_eq!((error.message.as_str(), error.rule.as_deref()), ("bad request", Some("http.400")));
    assert_eq!(result.output, Some(output));
    assert_eq!(world.breaker.counts().failures, 0);
}

#[test]
fn tr_7_a_tool_that_always_fails_exhausts_its_attempts_in_bounded_time() {
    let policy = PolicyProfile::Standard.policy(ToolClass::Unknown);
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &policy, &at_once(http(503)));
    assert_eq!(
        (result.status, error(&result), result.attempts),
        (CallStatus::RetryExhausted, Code::RetryExhausted, 4)
    );
    assert_eq!(world.breaker.counts().in_a_row, 4, "the breaker sees each attempt");
    // No hanging and no unbounded wait.
    assert!(result.duration_ms <= 200 + 400 + 800, "{}", result.duration_ms);
    let slow = CallTestWorld::new().post(&keyed("k"), &policy, &[(20 * SECOND, http(503))]);
    assert!(slow.attempts == 2 && slow.duration_ms <= 50_000, "no attempt starts after 30 s: {slow:?}");
}

/// Fails so many calls, one attempt each.
fn fail(world: &mut CallTestWorld, policy: &CallPolicy, calls: usize) {
    for call in 0..calls {
        let envelope = envelope_with(&json!({
            "payload": { "params": { "n": call } },
            "transport": { "retryBudget": { "maxAttempts": 1 } },
        }));
        world.post(&envelope, policy, &at_once(http(503)));
    }
}

/// The guard and trust have their own tests; here they would act before the breaker does.
fn breaker_only(class: ToolClass) -> CallPolicy {
    let mut policy = policy(class);
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.trust = EnforcementMode::Off;
    policy
}

#[test]
fn tr_8_five_failing_mutations_open_the_breaker_and_the_next_call_fails_at_once() {
    let policy = breaker_only(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    fail(&mut world, &policy, 5);
    assert_eq!(world.breaker_state(&policy), breaker::State::Open);
    let writes = world.store.writes;
    let refused = world.post(&keyed("k"), &policy, &[]);
    assert_eq!((refused.status, error(&refused)), (CallStatus::CircuitOpen, Code::CircuitOpen));
    assert_eq!((refused.duration_ms, refused.attempts, world.runs, world.store.writes), (0, 0, 5, writes));
    assert_eq!(refused.error.and_then(|error| error.breaker_state), Some(breaker::State::Open));
    // A call that would succeed remains blocked until the cool-down is over.
    world.pass(14 * SECOND);
    assert_eq!(error(&world.post(&keyed("k"), &policy, &at_once(paid()))), Code::CircuitOpen);
    assert_eq!(world.runs, 5);
}

#[test]
fn tr_9_two_successful_probes_close_the_breaker() {
    let policy = breaker_only(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    fail(&mut world, &policy, 5);
    world.pass(15 * SECOND);
    let (mut probe, step) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&step), "Run");
    assert_eq!(world.breaker_state(&policy), breaker::State::HalfOpen);
    // One probe at a time.
    assert_eq!(error(&world.post(&keyed("other"), &policy, &[])), Code::CircuitOpen);
    finished(world.on(&mut probe, CallEvent::Ran(paid())));
    assert_eq!(world.breaker_state(&policy), breaker::State::HalfOpen);
    assert!(success(&world.post(&keyed("second"), &policy, &at_once(paid()))));
    assert_eq!(world.breaker_state(&policy), breaker::State::Closed);
    // Afterwards calls succeed at once, side by side.
    for key in ["a", "b"] {
        let (_, step) = world.begin(from_envelope(&keyed(key), &policy), &policy);
        assert_eq!(name_of(&step), "Run");
    }
    let result = world.post(&keyed("c"), &policy, &[(5 * MS, paid())]);
    assert_eq!((success(&result), result.duration_ms), (true, 5));
}

#[test]
fn tr_10_a_failing_probe_opens_the_breaker_again_with_a_new_cooldown() {
    let policy = breaker_only(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.post(&keyed("before"), &policy, &at_once(paid()));
    fail(&mut world, &policy, 5);
    world.pass(15 * SECOND);
    fail(&mut world, &policy, 1);
    assert_eq!(world.breaker_state(&policy), breaker::State::Open);
    world.pass(14_999 * MS);
    assert_eq!(error(&world.post(&keyed("k"), &policy, &[])), Code::CircuitOpen, "the timer started again");
    // Earlier results are still stored.
    assert!(world.post(&keyed("before"), &policy, &[]).from_cache);
    world.pass(MS);
    assert!(success(&world.post(&keyed("k"), &policy, &at_once(paid()))));
}

#[test]
fn tr_11_nothing_is_retried_against_an_open_breaker() {
    let mut policy = breaker_only(ToolClass::Idempotent);
    policy.retry.attempts = std::num::NonZeroU32::new(10).unwrap();
    let mut world = CallTestWorld::new();
    let result = world.post(&keyed("k"), &policy, &at_once(http(503)));
    assert_eq!(
        (result.status, error(&result), result.attempts),
        (CallStatus::RetryExhausted, Code::CircuitOpen, 5)
    );
    assert_eq!(world.breaker_state(&policy), breaker::State::Open);
    // No storm during a full outage: a hundred callers make no attempt at all.
    for call in 0..100 {
        assert_eq!(world.post(&keyed(&format!("k-{call}")), &policy, &at_once(http(503))).attempts, 0);
    }
    assert_eq!(world.runs, 5);
    // Half-open, the one probe may be retried only if the breaker lets it.
    world.pass(30 * SECOND);
    assert_eq!(world.post(&keyed("probe"), &policy, &at_once(http(503))).attempts, 1);
    assert_eq!(world.runs, 6);
}

#[test]
fn tr_15_no_output_and_no_record_of_the_machine_contains_the_arguments() {
    let policy = policy(ToolClass::Mutating);
    let secret = "sk-live-4242424242424242";
    let envelope = envelope_with(&json!({ "payload": {
        "idempotencyKey": secret,
        "params": { "token": secret, "url": format!("https://bob:{secret}@bank.example.com/v1?key={secret}"), "command": format!("curl -H {secret}") },
    } }));
    for outcome in [paid(), http(400), http(503), timed_out()] {
        let mut world = CallTestWorld::new();
        let (mut call, step) = world.begin(from_envelope(&envelope, &policy), &policy);
        let mut text = format!("{step:?}{call:?}");
        let step = world.on(&mut call, CallEvent::Ran(outcome));
        let replay = world.drive(from_envelope(&envelope, &policy), &policy, &at_once(paid()));
        text.push_str(&format!(
            "{step:?}{call:?}{replay:?}{:?}{:?}{:?}{:?}",
            world.notices, world.store, world.trust, world.guard
        ));
        text.extend(world.store.records.iter().map(DedupeRecord::to_json));
        assert!(!text.contains(secret), "{text}");
    }
    // The response of the tool reaches its caller unchanged.
    let report = AttemptReport::Success { output: answer(secret), concern: None };
    assert_eq!(CallTestWorld::new().post(&envelope, &policy, &at_once(report)).output, Some(answer(secret)));
}

// ---- seed 002, under the profile `measured` ----

fn measured() -> CallPolicy {
    let mut policy = PolicyProfile::Measured.policy(ToolClass::Idempotent);
    policy.modes.trust = EnforcementMode::Off;
    policy
}

#[test]
fn eh_2_1_waits_grow_from_start_to_start() {
    let mut policy = measured();
    policy.breaker.consecutive = None;
    for seed in 0..20_u64 {
        let mut world = CallTestWorld::new();
        let mut request = request(&policy);
        request.number = seed;
        let result = world.drive(request, &policy, &at_once(http(503)));
        let waits: Vec<u64> = result.retries.iter().map(|retried| crate::millis(retried.delay)).collect();
        assert_eq!(result.attempts, 5);
        for (wait, expected) in waits.iter().zip([100_u64, 200, 400, 800]) {
            assert!(wait.abs_diff(expected) <= expected / 10, "{waits:?}");
        }
        assert!(crate::millis(result.took).abs_diff(1500) <= 150, "{:?}", result.took);
    }
}

#[test]
fn eh_2_2_jitter_stays_within_a_tenth() {
    let mut policy = measured();
    policy.breaker.consecutive = None;
    policy.breaker.rate = None;
    policy.retry.backoff = crate::policy::Backoff::Constant(100 * MS);
    policy.retry.attempts = std::num::NonZeroU32::new(11).unwrap();
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    let mut waits: Vec<u64> = result.retries.iter().map(|retried| crate::millis(retried.delay)).collect();
    assert_eq!(waits.len(), 10);
    assert!(waits.iter().all(|wait| (90..=110).contains(wait)), "{waits:?}");
    assert!(waits.iter().sum::<u64>().abs_diff(1000) <= 50, "{waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() >= 8, "{waits:?}");
}

#[test]
fn eh_2_3_there_is_no_sixth_attempt() {
    let mut policy = measured();
    policy.breaker.consecutive = None;
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    assert_eq!((code(&result), world.runs), (Some(Code::RetryExhausted), 5));
}

#[test]
fn eh_2_4_total_time_stops_the_fifth_attempt() {
    let mut policy = measured();
    policy.retry.jitter = Jitter::None;
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &[(600 * MS, http(503))]);
    assert_eq!((code(&result), world.runs), (Some(Code::RetryExhausted), 4));
}

#[test]
fn eh_2_5_settings_of_a_tool_are_heeded() {
    let mut policy = measured();
    policy.retry.jitter = Jitter::None;
    policy.retry.attempts = std::num::NonZeroU32::new(3).unwrap();
    policy.retry.backoff = crate::policy::Backoff::Exponential {
        base: 50 * MS,
        factor: crate::policy::GrowthFactor::TWO,
        cap: 2000 * MS,
    };
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    let waits: Vec<Duration> = result.retries.iter().map(|retried| retried.delay).collect();
    assert_eq!((waits, world.runs), (vec![50 * MS, 100 * MS], 3));
}

#[test]
fn eh_7_1_of_ten_rapid_failures_the_first_five_are_attempts_and_the_rest_are_refused() {
    let policy = measured();
    let mut world = CallTestWorld::new();
    let first = world.post(&keyed("1"), &policy, &at_once(http(503)));
    assert_eq!((first.attempts, first.retried_by.len()), (5, 4), "failures 1 to 5 were retried");
    for call in 6..=10 {
        // Each in its own turn, or the guard would end the turn at its fifth failure.
        let turn = format!("turn-{call}");
        let envelope =
            envelope_with(&json!({ "target": { "turnId": turn }, "payload": { "params": { "n": call } } }));
        let result = world.post(&envelope, &policy, &at_once(http(503)));
        assert_eq!((result.status, result.attempts), (CallStatus::CircuitOpen, 0), "failure {call}");
    }
    assert_eq!((world.runs, world.breaker_state(&policy)), (5, breaker::State::Open));
}

#[test]
fn eh_7_2_after_mixed_errors_the_counter_is_one() {
    let policy = measured();
    let mut world = CallTestWorld::new();
    let first = world.post(&keyed("1"), &policy, &[(MS, timed_out()), (MS, paid())]);
    assert_eq!((success(&first), first.attempts), (true, 2), "the time-out is retried");
    let second = world.post(&keyed("2"), &policy, &at_once(http(422)));
    assert_eq!((error(&second), second.attempts), (Code::ToolError, 1), "invalid input is not");
    let (mut third, _) = world.begin(from_envelope(&keyed("3"), &policy), &policy);
    let step = world.on(&mut third, CallEvent::Ran(http(429)));
    assert_eq!(name_of(&step), "Wait", "the rate limit is");
    assert_eq!(world.breaker.counts().in_a_row, 1);
}

/// A client that traces gives every call its own root span, or one root span to all calls of a turn. Only the second
/// says anything about turns. With the first, the guard treated every call as a new turn and dropped the earlier
/// failures.
#[test]
fn tg_1_traces_that_no_two_calls_share_do_not_hide_a_loop() {
    let policy = policy(ToolClass::ReadOnly);
    let traced = |trace: &str, number: u32| {
        let envelope = envelope_with(&json!({ "payload": { "params": { "n": number } } }));
        CallRequest { trace: Some(TurnId::new(trace).unwrap()), ..from_envelope(&envelope, &policy) }
    };
    let mut world = CallTestWorld::new();
    let codes: Vec<_> = (0..12)
        .map(|call| {
            world.drive(
                traced(&format!("trace-{call}"), 1),
                &policy,
                &at_once(fails(FaultSource::JsonRpc { code: -32602 })),
            )
        })
        .map(|result| (result.outcome.unwrap_err().code, result.attempts))
        .collect();
    assert_eq!(world.runs, 2, "{codes:?}");
    assert!(
        codes[2..].iter().all(|(code, _)| matches!(code, Code::LoopDetected | Code::ToolErrorLimit)),
        "{codes:?}"
    );

    // A trace that calls share is a turn: it has its limit, and another trace starts again.
    let mut world = CallTestWorld::new();
    for (trace, numbers) in [("one", 0..7), ("two", 10..17)] {
        // The first call of a trace cannot be recognised as one of many.
        let limits = numbers
            .map(|number| world.drive(traced(trace, number), &policy, &at_once(http(400))))
            .position(|result| result.outcome.unwrap_err().code == Code::ToolErrorLimit);
        assert_eq!(limits, Some(6), "{trace}");
    }
}

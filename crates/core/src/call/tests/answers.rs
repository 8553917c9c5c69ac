//! Content of responses: messages, times, codes, and the conclusions that a caller may draw.

use std::num::NonZeroU32;

use super::*;
use crate::code::CallStatus;
use crate::dedupe::{DeliveryReceipt, ReplayReason, ReplayedResult, SettleDelay};
use crate::policy::RateLimit;

/// The same policy, without a record of its calls.
fn unrecorded(policy: &CallPolicy) -> CallPolicy {
    let mut policy = policy.clone();
    policy.modes.dedupe = EnforcementMode::Off;
    policy
}

fn ended_with(source: FaultSource, words: &str, output: Option<ToolOutput>) -> AttemptReport {
    AttemptReport::Failure { fault: AttemptFault::new(source, words), output }
}

fn failure(result: &CallResult) -> &CallFailure {
    result.outcome.as_ref().expect_err("it failed")
}

// ---- refusals ----

#[test]
fn a_refusal_has_a_retry_time() {
    let mut policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.breaker.force_open(Some(START + 7 * SECOND), START);
    let held_back = world.drive(request(&policy), &policy, &[]);
    assert_eq!(
        (code(&held_back), failure(&held_back).retry_after),
        (Some(Code::CircuitOpen), Some(7 * SECOND))
    );
    policy.limits.rate = Some(RateLimit { attempts: NonZeroU32::MIN, per: 60 * SECOND });
    let mut world = CallTestWorld::new();
    world.drive(from_envelope(&keyed("a"), &policy), &policy, &at_once(paid()));
    let too_often = world.drive(from_envelope(&keyed("b"), &policy), &policy, &[]);
    assert_eq!(
        (code(&too_often), failure(&too_often).retry_after),
        (Some(Code::Overloaded), Some(60 * SECOND))
    );
}

#[test]
fn only_a_call_without_an_attempt_is_a_refusal() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.breaker.force_open(None, world.now);
    let refused = world.drive(request(&policy), &policy, &[]);
    assert!(refused.is_refused() && refused.is_refused_for_all());
    let mut world = CallTestWorld::new();
    let failed = world.drive(request(&policy), &policy, &at_once(http(400)));
    assert!(!failed.is_refused(), "the tool said so: {failed:?}");
    let replayed = world.drive(request(&policy), &policy, &[]);
    assert_eq!((replayed.attempts, replayed.is_refused()), (0, false), "it did so before");
    assert!(!CallTestWorld::new().drive(request(&policy), &policy, &at_once(paid())).is_refused());
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin_only(request(&policy), &policy);
    let cancelled = finished(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    assert_eq!((code(&cancelled), cancelled.is_refused()), (Some(Code::Cancelled), false));
}

#[test]
fn a_refused_retry_reports_the_state_of_the_breaker() {
    let policy = policy(ToolClass::Idempotent);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(503)));
    world.breaker.force_open(None, world.now);
    let result = finished(world.wake(&mut call));
    assert_eq!(result.breaker, Some(breaker::State::ForcedOpen));
}

#[test]
fn a_tool_that_is_blocked_between_two_attempts_fails_with_its_last_message() {
    let policy = policy(ToolClass::Idempotent);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(503)));
    approval::blocked(&mut world, &policy);
    let (result, deferred) = finished_with_deferred(world.wake(&mut call));
    assert_eq!((code(&result), message(&result)), (Some(Code::ToolBlocked), "it failed"));
    assert_eq!((world.runs, deferred), (1, vec![]));
    assert!(!world.blocked(Code::ToolBlocked), "it ran");
    // Before the first attempt it is a refusal, and the request is kept for an operator.
    let mut policy = policy;
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    let (mut call, _) = world.begin(request, &policy);
    approval::blocked(&mut world, &policy);
    let step = world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    let (result, deferred) = finished_with_deferred(step);
    assert!(result.is_refused() && matches!(deferred[..], [DeferredWrite::Park(_)]), "{deferred:?}");
    assert!(world.blocked(Code::ToolBlocked));
}

// ---- retries and time ----

#[test]
fn nothing_is_waited_for_that_an_open_breaker_will_refuse() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.breaker.consecutive = NonZeroU32::new(2);
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    assert_eq!(code(&result), Some(Code::CircuitOpen));
    assert_eq!(world.steps, ["Claim", "Run", "Wait", "Run", "Release", "Finish"]);
}

#[test]
fn a_stored_failure_is_that_of_the_tool_and_not_of_the_breaker() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.breaker.consecutive = NonZeroU32::new(2);
    policy.dedupe.cache_failures = crate::policy::FailureReplayPolicy::All;
    let mut world = CallTestWorld::new();
    let first = world.drive(request(&policy), &policy, &at_once(http(503)));
    assert_eq!(code(&first), Some(Code::CircuitOpen));
    let again = world.drive(request(&policy), &policy, &[]);
    assert!(matches!(again.provenance, Provenance::Replayed { .. }));
    assert_eq!((code(&again), rule(&again)), (Some(Code::UpstreamUnavailable), "http.503"));
}

#[test]
fn a_tool_without_a_sign_of_life_is_stuck_even_without_retries() {
    let mut policy = policy(ToolClass::Idempotent).for_gateway();
    policy.time.answer_by = None;
    policy.modes.retry = EnforcementMode::Off;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    assert!(matches!(world.wake(&mut call), NextStep::Cut(CutReason::Silent(_))));
    let result = finished(world.on(&mut call, CallEvent::Ran(timed_out())));
    assert_eq!(code(&result), Some(Code::StuckCall));
    assert_eq!(
        message(&result),
        "the call gave no sign of life for too long and was ended: the tool did not answer in time"
    );
}

#[test]
fn a_call_over_its_total_time_has_an_unknown_outcome() {
    let mut policy = policy(ToolClass::Mutating).for_gateway();
    policy.time.answer_by = None;
    policy.time.total = policy.time.attempt;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    let (result, _) = answered(world.cut(&mut call));
    assert_eq!((code(&result), rule(&result)), (Some(Code::StuckCall), "watchdog"));
    let words = message(&result);
    let start =
        "the call ran for longer than it may and was cancelled; the outcome of this call is unknown: ";
    assert!(words.starts_with(start), "{words}");
}

#[test]
fn the_total_time_counts_from_the_first_attempt() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.time.total = 20 * SECOND;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.pass(5 * SECOND);
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(http(502)))), "Wait");
    let NextStep::Run(run) = world.wake(&mut call) else { panic!("{:?}", world.steps) };
    assert_eq!(run.deadline, Some(START + 20 * SECOND));
}

#[test]
fn a_caller_whose_deadline_passed_gets_the_state_of_its_call() {
    let mut policy = policy(ToolClass::Mutating);
    policy.verify = Some("list the payments".into());
    let mut limited = request(&policy);
    limited.limits.deadline = Some(START + 2 * SECOND);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(limited, &policy);
    let (result, _) = answered(world.wake(&mut call));
    assert_eq!(
        result.unknown,
        Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::NoAnswer, is_final: false })
    );
    assert_eq!(result.took, 2 * SECOND);
    assert_eq!(failure(&result).verify.as_deref(), Some("list the payments"));
    assert!(result.is_unknown_outcome());
    assert!(
        !world.drive(from_envelope(&keyed("b"), &policy), &policy, &at_once(paid())).is_unknown_outcome()
    );
}

#[test]
fn the_message_of_a_tool_is_passed_on_up_to_a_length() {
    let policy = policy(ToolClass::Mutating);
    for (length, passed_on) in [(8 << 10, 8 << 10), ((8 << 10) + 1, 8 << 10), (20 << 10, 8 << 10)] {
        let words = "x".repeat(length);
        let mut world = CallTestWorld::new();
        let outcome = ended_with(FaultSource::Http { status: 400 }, &words, None);
        let result = world.drive(request(&policy), &policy, &at_once(outcome));
        let mut expected = "x".repeat(passed_on);
        if length > passed_on {
            expected.push('…');
        }
        assert!(message(&result) == expected, "{length}: {}", message(&result).len());
    }
}

// ---- stored results ----

#[test]
fn a_keyless_caller_is_notified_that_its_answer_is_of_another_call() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.drive(keyless(&policy), &policy, &at_once(paid()));
    let again = world.drive(keyless(&policy), &policy, &[]);
    assert!(again.note.is_some_and(|note| note.contains("an earlier call with the same arguments")));
    assert_eq!(again.recorded, RecordStatus::Yes);
    assert_eq!(again.remarks().collect::<Vec<_>>(), again.note.into_iter().collect::<Vec<_>>());
    let mut world = CallTestWorld::new();
    let (mut leader, _) = world.begin(keyless(&policy), &policy);
    let (mut follower, _) = world.begin(keyless(&policy), &policy);
    finished(world.on(&mut leader, CallEvent::Ran(paid())));
    let followed = finished(world.on(&mut follower, CallEvent::Woke(WakeReason::Changed)));
    assert!(followed.note.is_some_and(|note| note.contains("the tool ran once for both")));
    // A caller that gave a key asked for exactly that.
    let mut world = CallTestWorld::new();
    world.drive(request(&policy), &policy, &at_once(paid()));
    let again = world.drive(request(&policy), &policy, &[]);
    assert_eq!((again.note, again.remarks().count()), (None, 0));
}

fn receipt() -> DeliveryReceipt {
    let key = RecordKey(Digest::of(b"k"));
    let owner = ClaimOwner { process: process(), call: 1, claim: 1 };
    DeliveryReceipt { key, owner, version: 3 }
}

fn unsettled(end: SettleStatus) -> ClaimVerdict {
    let (observed, receipt) = (UnknownOutcomeReason::ConnectionLost, receipt());
    ClaimVerdict::Unknown(Box::new(UnknownOutcomeStatus {
        end,
        observed,
        details: None,
        output: None,
        runs_in: None,
        receipt,
    }))
}

#[test]
fn a_query_for_a_record_returns_its_content() {
    let policy = policy(ToolClass::Mutating);
    let replay = ReplayedResult {
        answer: Ok(Some(answer("paid"))),
        reason: ReplayReason::Waited,
        age: SECOND,
        receipt: receipt(),
    };
    let response = CallResult::from_verdict(ClaimVerdict::Replay(Box::new(replay)), &policy).unwrap();
    assert_eq!((response.outcome.as_ref(), response.recorded), (Ok(&answer("paid")), RecordStatus::Yes));
    assert_eq!(response.receipt, Some(receipt()));
    for (end, is_final) in [
        (SettleStatus::Settled, true),
        (SettleStatus::NotYet(Some(SECOND)), false),
        (SettleStatus::NotYet(None), false),
    ] {
        let response = CallResult::from_verdict(unsettled(end), &policy).unwrap();
        assert!(response.is_unknown_outcome());
        assert_eq!(
            response.unknown,
            Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::ConnectionLost, is_final })
        );
        assert_eq!((response.recorded, response.receipt.is_some()), (RecordStatus::Yes, is_final));
    }
    assert_eq!(CallResult::from_verdict(ClaimVerdict::Follow(receipt().key), &policy), None, "it goes on");
}

#[test]
fn an_unknown_outcome_names_the_command_that_resolves_it() {
    let policy = policy(ToolClass::Mutating);
    let request = request(&policy);
    let message_of = |verdict| {
        let result = CallResult::from_verdict(verdict, &policy).unwrap();
        result.to_envelope(&request).error.unwrap().message
    };
    let command = format!("steadfast resolve {} --ran", receipt().key.fingerprint());
    assert!(message_of(unsettled(SettleStatus::Settled)).contains(&command));
    assert!(
        !message_of(unsettled(SettleStatus::NotYet(None))).contains("steadfast resolve"),
        "it cannot be known yet"
    );
    let failed = ReplayedResult {
        answer: Err(messages::conflict()),
        reason: ReplayReason::SameKey,
        age: SECOND,
        receipt: receipt(),
    };
    assert!(!message_of(ClaimVerdict::Replay(Box::new(failed))).contains("steadfast resolve"));
}

#[test]
fn an_envelope_names_the_turn_that_its_call_was_made_in() {
    let policy = policy(ToolClass::Mutating);
    let request = CallRequest { turn: Some(TurnId::new("t-1").unwrap()), ..request(&policy) };
    let result = CallTestWorld::new().drive(request.clone(), &policy, &at_once(paid()));
    assert_eq!(result.to_envelope(&request).turn, request.turn);
}

// ---- unknown outcomes ----

#[test]
fn an_unrecorded_unknown_outcome_has_its_observation_and_a_way_to_verify() {
    let mut policy = unrecorded(&policy(ToolClass::Mutating));
    policy.verify = Some("list the payments".into());
    let reset = FaultSource::Transport { error: TransportError::ConnectionClosed, written: true };
    let result =
        CallTestWorld::new().drive(request(&policy), &policy, &at_once(ended_with(reset, "reset", None)));
    assert_eq!(
        result.unknown,
        Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::ConnectionLost, is_final: false })
    );
    assert_eq!(failure(&result).verify.as_deref(), Some("list the payments"));
    assert!(message(&result).contains("(reset)"), "{}", message(&result));
    // The tool's own message is passed on unchanged.
    let output = Some(answer("Request timed out"));
    let outcome = ended_with(FaultSource::IsError, "Request timed out", output.clone());
    let result = CallTestWorld::new().drive(request(&policy), &policy, &at_once(outcome));
    assert_eq!((code(&result), &failure(&result).output), (Some(Code::OutcomeUnknown), &output));
    assert!(!message(&result).contains("(Request timed out)"), "{}", message(&result));
    // A clear answer leaves nothing unknown.
    let result = CallTestWorld::new().drive(request(&policy), &policy, &at_once(http(400)));
    assert_eq!(result.unknown, None);
}

#[test]
fn the_message_of_an_unknown_outcome_names_the_status_once() {
    let policy = policy(ToolClass::Mutating);
    for (words, details) in
        [("bad gateway", Some("HTTP 502: bad gateway")), ("502 Bad Gateway", Some("502 Bad Gateway"))]
    {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        world.on(&mut call, CallEvent::Ran(ended_with(FaultSource::Http { status: 502 }, words, None)));
        let record = world.store.records.iter().next().unwrap();
        let DedupeState::Unknown(unknown) = &record.state else { panic!("{record:?}") };
        assert_eq!(unknown.details.as_deref(), details);
    }
}

#[test]
fn a_call_has_a_retry_time_only_if_it_runs_again() {
    use crate::policy::UnknownOutcomePolicy::{Hold, TellOnce};
    for (explicit, critical, after_unknown, again) in [
        (false, false, TellOnce, Some(10 * SECOND)),
        (false, true, TellOnce, None),
        (false, false, Hold, None),
        (true, false, TellOnce, None),
    ] {
        let mut policy = policy(ToolClass::Mutating);
        policy.dedupe.after_unknown = after_unknown;
        let mut request = if explicit { request(&policy) } else { keyless(&policy) };
        request.hints.safety_critical = critical;
        let mut world = CallTestWorld::new();
        let outcome = ended_with(FaultSource::IsError, "Request timed out", None);
        let result = world.drive(request, &policy, &at_once(outcome));
        assert_eq!(
            result.unknown,
            Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::ErrorAnswer, is_final: true })
        );
        assert_eq!(failure(&result).retry_after, again, "{explicit} {critical} {after_unknown:?}");
        let is_held = world.store.records.iter().next().unwrap().expires.is_none();
        assert_eq!(is_held, critical || after_unknown == Hold, "{critical} {after_unknown:?}");
    }
}

#[test]
fn a_caller_is_answered_a_moment_after_the_tool_was_cancelled() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    let stopped = world.now;
    assert_eq!(
        name_of(&world.on(&mut call, CallEvent::Woke(WakeReason::Time))),
        "Wait",
        "it may still be unsent"
    );
    answered(world.wake(&mut call));
    assert_eq!(world.now, stopped + 100 * MS);
}

#[test]
fn a_call_that_has_recorded_its_unknown_outcome_is_not_woken_to_record_it_again() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    world.wake(&mut call);
    answered(world.wake(&mut call));
    assert!(call.is_settling() && !call.is_recorded_as_unknown());
    assert_eq!(world.wake(&mut call), NextStep::Wait);
    assert!(call.is_settling() && call.is_recorded_as_unknown());
    assert!(call.wake_at().is_none_or(|at| at > world.now), "{:?}", call.wake_at());
}

#[test]
fn an_unknown_outcome_that_is_settled_when_it_can_be_recorded_is_recorded_as_that() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.store.faults.push_back(Some(StoreFault::NotDone));
    let outcome = ended_with(FaultSource::IsError, "Request timed out", None);
    assert_eq!(world.on(&mut call, CallEvent::Ran(outcome)), NextStep::Wait);
    let (result, deferred) = finished_with_deferred(world.wake(&mut call));
    assert_eq!(result.recorded, RecordStatus::No);
    let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{deferred:?}") };
    let RunOutcome::Unknown(ending) = &save.ending else { panic!("{save:?}") };
    assert_eq!(ending.settles, SettleDelay::Settled);
}

#[test]
fn a_disconnected_caller_is_not_awaited() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    let outcome = ended_with(FaultSource::IsError, "Request timed out", None);
    assert_eq!(world.on(&mut call, CallEvent::Ran(outcome)), NextStep::Wait);
    finished(world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None)));
    assert_eq!((world.now, world.store.state()), (START, "unknown"));
}

#[test]
fn an_answer_counts_as_delivered_up_to_the_moment_from_which_it_is_late() {
    let mut policy = policy(ToolClass::Mutating);
    policy.time.answer_by = None;
    for (span, counts) in [(policy.dedupe.late_after, true), (policy.dedupe.late_after + MS, false)] {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(keyless(&policy), &policy);
        world.pass(span);
        let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!(result.receipt.is_some(), counts, "{span:?}");
    }
}

// ---- off and shadow ----

#[test]
fn dedupe_in_shadow_keeps_an_unknown_outcome_and_waits_for_nothing() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.dedupe = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(timed_out()));
    assert_eq!((code(&result), world.now), (Some(Code::OutcomeUnknown), START));
    assert_eq!(
        (world.store.state(), world.steps.as_slice()),
        ("unknown", ["Claim", "Run", "Save", "Finish"].as_slice())
    );
    assert!(world.has(&CallNotice::OutcomeUnknown { of_earlier: None }));
    assert!(
        message(&result).ends_with("before you repeat the call"),
        "the effect of the next call is not known"
    );
}

#[test]
fn retry_in_shadow_reports_the_failure_of_enforce() {
    let shadow_counts = |attempts, deadline| {
        let mut policy = policy(ToolClass::Idempotent);
        policy.modes.retry = EnforcementMode::Shadow;
        policy.retry.attempts = attempts;
        let mut request = request(&policy);
        request.limits.deadline = deadline;
        let mut world = CallTestWorld::new();
        let result = world.drive(request, &policy, &at_once(http(503)));
        assert_eq!(result.status(), CallStatus::RetriableError, "{result:?}");
        let is_deadline_failure = |notice: &CallNotice| {
            matches!(notice, CallNotice::Shadowed(ShadowDecision::Failed(Code::DeadlineExceeded)))
        };
        let all = world.count(|notice| matches!(notice, CallNotice::Shadowed(_)));
        (world.count(is_deadline_failure), all)
    };
    let three = NonZeroU32::new(3).unwrap();
    assert_eq!(shadow_counts(three, Some(START + 10 * MS)), (1, 1));
    assert_eq!(shadow_counts(NonZeroU32::MIN, None), (0, 0), "there would have been no other response");
}

#[test]
fn a_store_failure_is_reported_as_a_refusal_only_if_shadow_mode_hides_one() {
    for (mode, class, expected) in [
        (EnforcementMode::Enforce, ToolClass::Mutating, 0),
        (EnforcementMode::Shadow, ToolClass::Idempotent, 0),
        (EnforcementMode::Shadow, ToolClass::Mutating, 1),
    ] {
        let mut policy = policy(class);
        policy.modes.dedupe = mode;
        policy.dedupe.explicit_key_on_store_failure = StoreFailurePolicy::GoOn;
        let mut world = CallTestWorld::new();
        world.store.faults = [Some(StoreFault::NotDone); 3].into();
        world.drive(request(&policy), &policy, &at_once(paid()));
        let count = world.count(|notice| matches!(notice, CallNotice::Shadowed(_)));
        assert_eq!(count, expected, "{mode:?} {class:?}");
    }
}

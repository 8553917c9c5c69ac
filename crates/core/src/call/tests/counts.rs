//! Counting of a call by guard, trust, breaker, attempts and notices.

use std::num::NonZeroU32;

use super::*;
use crate::call::{RecordedAttempt, RecordedFailureKind};
use crate::classify::FaultNature;
use crate::guard::{GuardLayer, GuardedResult};
use crate::policy::{RateLimit, RepeatedSuccessPolicy};
use crate::trust::TrustState;

/// Returns the state of a guard after exactly these events, all of them now.
fn guard_after(
    world: &CallTestWorld,
    request: &CallRequest,
    policy: &CallPolicy,
    events: &[GuardTestEvent],
) -> String {
    let mut guard = LoopGuard::default();
    let call = GuardedCall { tool: &request.tool, arguments: request.digest, turn: None };
    for event in events {
        match event {
            GuardTestEvent::Begin(at) => guard.begin(&policy.guard, call, *at),
            GuardTestEvent::Abandon => guard.abandon(&policy.guard, call, world.now),
            GuardTestEvent::Failure(message) => {
                guard.end(&policy.guard, call, GuardedResult::Failure { message, mistake: None }, world.now);
            }
        }
    }
    format!("{guard:?}")
}

enum GuardTestEvent {
    Begin(Timestamp),
    Abandon,
    Failure(&'static str),
}

fn guard_of(world: &CallTestWorld) -> String {
    format!("{:?}", world.guard)
}

fn layers(result: &CallResult) -> Vec<GuardLayer> {
    result.remarks.iter().map(|remark| remark.layer).collect()
}

// ---- the guard ----

#[test]
fn the_guard_counts_a_call_when_it_begins_and_once() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    let begin = GuardTestEvent::Begin(START);
    assert_eq!(guard_of(&world), guard_after(&world, call.request(), &policy, &[begin]));
    world.pass(SECOND);
    world.on(&mut call, CallEvent::Ran(http(400)));
    let all = [GuardTestEvent::Begin(START), GuardTestEvent::Failure("it failed")];
    assert_eq!(guard_of(&world), guard_after(&world, call.request(), &policy, &all));
}

#[test]
fn a_tool_that_requests_input_is_not_counted_by_the_guard() {
    let mut policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    finished(world.on(&mut call, CallEvent::Ran(input_required())));
    let all = [GuardTestEvent::Begin(START), GuardTestEvent::Abandon];
    assert_eq!(guard_of(&world), guard_after(&world, call.request(), &policy, &all));
    policy.modes.guard = EnforcementMode::Off;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    finished(world.on(&mut call, CallEvent::Ran(input_required())));
    assert_eq!(guard_of(&world), guard_after(&world, call.request(), &policy, &[]));
}

#[test]
fn an_undelivered_response_does_not_count_for_the_guard() {
    let policy = policy(ToolClass::Mutating).for_gateway();
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    answered(world.wake(&mut call));
    finished(world.on(&mut call, CallEvent::Ran(http(400))));
    let all = [GuardTestEvent::Begin(START), GuardTestEvent::Abandon];
    assert_eq!(guard_of(&world), guard_after(&world, call.request(), &policy, &all));
}

#[test]
fn a_call_of_a_turn_that_is_submitted_again_counts_once_unless_it_was_waited_for() {
    let policy = policy(ToolClass::Mutating);
    let in_turn = || CallRequest { in_turn: true, ..request(&policy) };
    let mut world = CallTestWorld::new();
    world.drive(in_turn(), &policy, &at_once(http(400)));
    let again = world.drive(in_turn(), &policy, &[]);
    assert!(matches!(again.provenance, Provenance::Replayed { .. }));
    assert_eq!(layers(&again), [], "the remark was returned before");
    let mut world = CallTestWorld::new();
    let (mut leader, _) = world.begin(in_turn(), &policy);
    let (mut follower, _) = world.begin(in_turn(), &policy);
    finished(world.on(&mut leader, CallEvent::Ran(http(400))));
    let followed = finished(world.on(&mut follower, CallEvent::Woke(WakeReason::Changed)));
    assert_eq!(layers(&followed), [GuardLayer::Loop], "the remark is returned for the first time");
}

#[test]
fn the_same_answer_again_and_again_counts_also_where_it_is_replayed() {
    let mut policy = policy(ToolClass::Mutating);
    policy.guard.repeated_success = RepeatedSuccessPolicy::Warn(NonZeroU32::new(2).unwrap());
    let mut world = CallTestWorld::new();
    assert_eq!(layers(&world.drive(request(&policy), &policy, &at_once(paid()))), []);
    let again = world.drive(request(&policy), &policy, &[]);
    assert_eq!((world.runs, layers(&again)), (1, vec![GuardLayer::RepeatedSuccess]));
}

#[test]
fn failures_of_a_tool_differ_by_message_and_refusals_by_code() {
    let policy_of = |attempts| {
        let mut policy = policy(ToolClass::Mutating);
        policy.limits.rate =
            Some(RateLimit { attempts: NonZeroU32::new(attempts).unwrap(), per: 60 * SECOND });
        policy.limits.concurrency = NonZeroU32::new(1);
        policy
    };
    let mut world = CallTestWorld::new();
    let policy = policy_of(100);
    for words in ["there is no such account", "the amount is missing"] {
        let fault = AttemptFault::new(FaultSource::Http { status: 400 }, words);
        let outcome = AttemptReport::Failure { fault, output: None };
        let request = from_envelope(&keyed(words), &policy);
        assert_eq!(layers(&world.drive(request, &policy, &at_once(outcome))), [], "{words}");
    }
    let mut world = CallTestWorld::new();
    let policy = policy_of(1);
    world.limiter.try_acquire(&policy.limits, world.now).unwrap();
    world.limiter.release();
    let often = world.drive(request(&policy), &policy, &[]);
    assert_eq!((rule(&often), layers(&often)), ("limit.rate", vec![]));
    world.pass(60 * SECOND);
    world.limiter.try_acquire(&policy.limits, world.now).unwrap();
    let crowded = world.drive(request(&policy), &policy, &[]);
    assert_eq!((rule(&crowded), layers(&crowded)), ("limit.concurrency", vec![GuardLayer::Loop]));
}

#[test]
fn a_refusal_with_a_retry_time_has_no_advice_against_retries() {
    let mut policy = policy(ToolClass::Mutating);
    policy.limits.rate = Some(RateLimit { attempts: NonZeroU32::MIN, per: 60 * SECOND });
    let mut world = CallTestWorld::new();
    world.limiter.try_acquire(&policy.limits, world.now).unwrap();
    world.limiter.release();
    for trips in [0, 1] {
        let refused = world.drive(request(&policy), &policy, &[]);
        assert!(refused.outcome.as_ref().is_err_and(|failure| failure.retry_after.is_some()));
        assert_eq!(layers(&refused), []);
        let tripped = world.count(|notice| matches!(notice, CallNotice::GuardTripped { .. }));
        assert_eq!(tripped, trips, "the guard has seen it all the same");
    }
}

#[test]
fn without_the_guard_a_trace_is_not_a_turn() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.guard = EnforcementMode::Off;
    let mut world = CallTestWorld::new();
    for _ in 0..2 {
        let trace = Some(TurnId::new("t").unwrap());
        let (call, _) = world.begin(CallRequest { trace, ..request(&policy) }, &policy);
        assert_eq!(call.request().turn, None);
    }
    assert_eq!(guard_of(&world), guard_of(&CallTestWorld::new()));
}

// ---- trust ----

#[test]
fn a_dangerous_command_that_never_ran_costs_no_trust() {
    let policy = policy(ToolClass::Mutating);
    let envelope =
        envelope_with(&json!({ "payload": { "idempotencyKey": "k", "params": { "command": "rm -rf /" } } }));
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin_only(from_envelope(&envelope, &policy), &policy);
    finished(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    assert_eq!(world.trust.history(None).count(), 0);
    // Neither with trust off, if the tool did run.
    let mut off = policy;
    off.modes.trust = EnforcementMode::Off;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(from_envelope(&envelope, &off), &off);
    world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
    world.on(&mut call, CallEvent::Ran(timed_out()));
    assert_eq!(world.trust.history(None).count(), 0);
}

/// Counting them as defiance would block a tool that is only unavailable.
#[test]
fn failures_of_calls_in_flight_at_the_loss_of_trust_do_not_block_the_tool() {
    let mut policy = policy(ToolClass::Idempotent);
    (policy.modes.breaker, policy.modes.guard, policy.modes.retry) =
        (EnforcementMode::Off, EnforcementMode::Off, EnforcementMode::Off);
    let mut world = CallTestWorld::new();
    let calls: Vec<_> = (0..20)
        .map(|number| world.begin(from_envelope(&keyed(&number.to_string()), &policy), &policy).0)
        .collect();
    world.pass(SECOND);
    for mut call in calls {
        world.on(&mut call, CallEvent::Ran(http(500)));
    }
    let status = world.trust.status(|_, _| policy.trust.clone(), world.now);
    assert_eq!(status.iter().map(|one| one.standing.state).collect::<Vec<_>>(), [TrustState::Escalated]);
}

#[test]
fn a_spent_approval_applies_to_the_repeated_claim() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    world.grant_once(&request(&policy), &policy);
    let (mut call, step) = world.begin_only(request(&policy), &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    let verdict = world.store.claim(&claim, world.now);
    let step = world.on_only(&mut call, CallEvent::Claimed(verdict)).unwrap();
    let NextStep::Spend { grant, owner } = step else { panic!("{step:?}") };
    let spent = world.approvals.spend(grant, owner.digest(), world.now);
    // The record is gone when the start is written.
    let record = call.claimed_record().unwrap();
    let removal = RecordWrite::Remove { key: record.key, index: record.index };
    world.store.records.apply(removal);
    let step = world.on(&mut call, CallEvent::Spent(spent));
    assert_eq!(name_of(&step), "Run");
    assert_eq!(world.steps, ["ClaimOnly", "Spend", "Start", "ClaimOnly", "Start", "Run"]);
    let again = call.claimed_record().unwrap().owner.clone();
    assert_eq!((owner.claim, again.claim), (1, 2), "each claim has a token of its own");
}

// ---- breakers ----

#[test]
fn a_breaker_change_is_reported_and_a_probe_only_if_there_was_one() {
    let mut policy = policy(ToolClass::Mutating);
    policy.breaker.consecutive = NonZeroU32::new(1);
    let changes =
        |world: &CallTestWorld| world.count(|notice| matches!(notice, CallNotice::BreakerChanged { .. }));
    let moves = |world: &CallTestWorld| world.count(|notice| matches!(notice, CallNotice::ProbeMoved { .. }));
    let mut world = CallTestWorld::new();
    world.drive(from_envelope(&keyed("a"), &policy), &policy, &at_once(paid()));
    assert_eq!((changes(&world), moves(&world)), (0, 0));
    world.drive(from_envelope(&keyed("b"), &policy), &policy, &at_once(http(503)));
    assert_eq!((changes(&world), moves(&world)), (1, 0));
}

// ---- attempts ----

#[test]
fn a_failed_attempt_is_reported_with_the_message_of_the_tool() {
    let policy = policy(ToolClass::Idempotent);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(503)));
    world.wake(&mut call);
    world.on(&mut call, CallEvent::Ran(http(400)));
    let failures: Vec<_> = world
        .notices
        .iter()
        .filter_map(|notice| match notice {
            CallNotice::AttemptEnded { failure: Some(failure), .. } => {
                Some((&*failure.message, failure.nature))
            }
            _ => None,
        })
        .collect();
    assert_eq!(failures, [("it failed", FaultNature::Transient), ("it failed", FaultNature::Permanent)]);
    let retriable: Vec<bool> = call.attempts().iter().map(|fact| fact.retriable).collect();
    assert_eq!(retriable, [true, false]);
}

#[test]
fn a_cut_attempt_has_ended_when_its_end_was_observed() {
    let mut policy = policy(ToolClass::Mutating).for_gateway();
    policy.time.attempt = 5 * SECOND;
    let mut world = CallTestWorld::new();
    let request = CallRequest { end: AttemptEndVisibility::Visible, ..keyless(&policy) };
    let (mut call, _) = world.begin(request, &policy);
    world.wake(&mut call);
    let ended_attempts =
        |world: &CallTestWorld| world.count(|notice| matches!(notice, CallNotice::AttemptEnded { .. }));
    assert_eq!((ended_attempts(&world), call.attempts().len()), (0, 0));
    world.on(&mut call, CallEvent::Settled);
    assert_eq!((ended_attempts(&world), call.attempts().len(), call.outcomes().len()), (1, 1, 1));
}

#[test]
fn of_many_attempts_the_first_are_stored_for_a_replay_and_the_last_for_the_record() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.retry.attempts = NonZeroU32::new(20).unwrap();
    policy.retry.backoff = crate::policy::Backoff::Constant(MS);
    policy.retry.total = None;
    policy.retry.budget.floor_per_second = 1000;
    policy.breaker.consecutive = None;
    policy.breaker.rate = None;
    let mut world = CallTestWorld::new();
    let (mut call, mut step) = world.begin(request(&policy), &policy);
    for _ in 0..20 {
        if name_of(&step) == "Wait" {
            step = world.wake(&mut call);
        }
        assert_eq!(name_of(&step), "Run");
        step = world.on(&mut call, CallEvent::Ran(http(503)));
    }
    let result = finished(step);
    assert_eq!((result.attempts, result.retries.len()), (20, DedupeRecord::MOST_ATTEMPTS));
    assert_eq!(call.outcomes().len(), DedupeRecord::MOST_ATTEMPTS);
    assert_eq!(call.attempts().len(), DedupeRecord::MOST_ATTEMPTS);
    assert!(call.attempts().first().unwrap().started > START, "the first ones are forgotten");
}

#[test]
fn the_accessors_of_a_call_return_its_inputs() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.pass(SECOND);
    let (mut call, _) = world.begin(request(&policy), &policy);
    assert_eq!((call.seed(), call.arrived()), (7, START + SECOND));
    assert!(!call.is_settling() && !call.is_recorded_as_unknown() && !call.awaits_end());
    assert_eq!(call.claimed_record().map(|record| &record.run), Some(&call.request().run));
    assert!(!world.has(&CallNotice::TookOver), "there was no owner before");
    assert!(call.attempts().is_empty() && call.outcomes().is_empty());
    world.on(&mut call, CallEvent::Ran(paid()));
    assert!(matches!(call.outcomes(), [RecordedAttempt::Answered { .. }]));
    assert_eq!(call.attempts().len(), 1);
}

#[test]
fn an_attempt_that_could_not_be_sent_is_replayed_as_that() {
    let policy = policy(ToolClass::Mutating);
    let after = |run_by, outcome: AttemptReport| {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(CallRequest { run_by, ..keyless(&policy) }, &policy);
        assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
        let step = world.on(&mut call, CallEvent::Ran(outcome));
        (step, call.outcomes().to_vec(), world.store.state())
    };
    let (step, outcomes, state) = after(RunnerKind::Driver, not_sent());
    let result = finished(step);
    assert_eq!((code(&result), state), (Some(Code::UpstreamUnavailable), "none"));
    let [RecordedAttempt::Failed(failed)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(failed.manner, RecordedFailureKind::NotRun);
    let (step, again, state) = after(RunnerKind::Driver, AttemptReport::Replayed(failed.clone()));
    assert_eq!((code(&finished(step)), state), (code(&result), "none"));
    assert!(
        matches!(&again[..], [RecordedAttempt::Failed(again)] if again.manner == RecordedFailureKind::NotRun),
        "{again:?}"
    );
    // An attempt without a response in time may have been sent. A host reports itself if it did not run a tool.
    let mut silent = failed.clone();
    silent.manner = RecordedFailureKind::TimedOut;
    assert_eq!(after(RunnerKind::Driver, AttemptReport::Replayed(silent)).2, "unknown");
    assert_eq!(after(RunnerKind::Host, AttemptReport::Replayed(failed.clone())).2, "unknown");
}

#[test]
fn a_fence_lost_with_an_unknown_outcome_is_reported_once() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(keyless(&policy), &policy);
    world.store.steal();
    assert_eq!(world.wake(&mut call), NextStep::CancelUpstream);
    assert_eq!(world.count(|notice| *notice == CallNotice::FenceLost), 1);
    answered(world.wake(&mut call));
    assert_eq!(world.wake(&mut call), NextStep::Wait);
    finished(world.wake(&mut call));
    assert_eq!(world.count(|notice| *notice == CallNotice::FenceLost), 1);
}

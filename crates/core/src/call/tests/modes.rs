//! Modes: off does nothing at all; shadow decides, reports it once, and changes nothing.

use super::*;
use crate::guard::GuardedResult;
use crate::policy::MechanismModes;

/// A world in which everything is a reason against the call: the breaker is open, the tool is blocked, the model
/// repeats itself.
fn adverse(policy: &CallPolicy) -> CallTestWorld {
    let mut world = CallTestWorld::new();
    world.breaker.force_open(None, world.now);
    let request = request(policy);
    world.trust.block_tool(&request.tool, "a test", crate::trust::NotifyChoice::No, world.now);
    looping(&mut world, &request, policy);
    world
}

fn looping(world: &mut CallTestWorld, request: &CallRequest, policy: &CallPolicy) {
    for _ in 0..3 {
        let call = GuardedCall { tool: &request.tool, arguments: request.digest, turn: None };
        world.guard.begin(&policy.guard, call, world.now);
        world.guard.end(
            &policy.guard,
            call,
            GuardedResult::Failure { message: "no", mistake: None },
            world.now,
        );
    }
}

fn shadow_decisions(world: &CallTestWorld) -> Vec<ShadowDecision> {
    let shadow_decision = |notice: &CallNotice| match notice {
        CallNotice::Shadowed(shadowed) => Some(*shadowed),
        _ => None,
    };
    world.notices.iter().filter_map(shadow_decision).collect()
}

#[test]
fn off_makes_changes_delays_refuses_records_and_retries_nothing() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        for outcome in [paid(), http(400), http(503), timed_out(), not_sent()] {
            let mut policy = policy(class);
            policy.modes = MechanismModes::all(EnforcementMode::Off);
            policy.limits.concurrency = std::num::NonZeroU32::new(1);
            policy.arguments = ArgumentCheck::Enforce;
            let mut world = adverse(&policy);
            world.limiter.try_acquire(&policy.limits, world.now).unwrap();
            let before = format!("{:?}{:?}{:?}{:?}", world.breaker, world.guard, world.trust, world.limiter);
            let mut request = request(&policy);
            request.limits.deadline = Some(START);
            request.invalid_arguments = Some("all wrong".into());
            let (mut call, step) = world.begin(request, &policy);
            assert!(matches!(&step, NextStep::Run(run) if run.deadline.is_none()), "{step:?}");
            assert_eq!(call.wake_at(), None, "there is no limit of time");
            world.pass(Duration::from_secs(86_400));
            let (result, deferred) =
                finished_with_deferred(world.on(&mut call, CallEvent::Ran(outcome.clone())));
            match (&result.outcome, outcome) {
                (Ok(output), AttemptReport::Success { .. }) => assert_eq!(*output, answer("paid")),
                (Err(failure), AttemptReport::Failure { fault, .. }) => {
                    assert_eq!(failure.message, fault.message, "{class:?}: the tool's own words");
                    assert_ne!(failure.code, Code::OutcomeUnknown, "{class:?}");
                }
                (actual, outcome) => panic!("{outcome:?} became {actual:?}"),
            }
            assert_eq!(
                (result.attempts, result.recorded, result.remarks),
                (1, RecordStatus::NotAsked, vec![])
            );
            assert_eq!((world.store.writes, deferred), (0, vec![]));
            assert_eq!(
                format!("{:?}{:?}{:?}{:?}", world.breaker, world.guard, world.trust, world.limiter),
                before
            );
            assert_eq!(shadow_decisions(&world), []);
        }
    }
}

#[test]
fn dedupe_in_shadow_runs_duplicates_and_records_apart() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.dedupe = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    let first = world.drive(request(&policy), &policy, &at_once(paid()));
    assert_eq!(shadow_decisions(&world), []);
    let second = world.drive(request(&policy), &policy, &at_once(paid()));
    assert_eq!((world.runs, shadow_decisions(&world)), (2, vec![ShadowDecision::Duplicate]));
    for result in [&first, &second] {
        let envelope = result.to_envelope(&request(&policy));
        assert_eq!((envelope.from_cache, envelope.recorded), (false, None), "nothing is promised");
    }
    let address = request(&policy).address().unwrap();
    assert_eq!(
        world.store.records.iter().map(|record| record.key).collect::<Vec<_>>(),
        [address.shadowed().own()]
    );
    // A call in enforce mode does not find it.
    policy.modes.dedupe = EnforcementMode::Enforce;
    assert!(!world.post(&keyed("k"), &policy, &at_once(paid())).from_cache);
    assert_eq!(world.runs, 3);
}

#[test]
fn dedupe_in_shadow_lets_a_failing_store_and_a_lost_fence_change_nothing() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.dedupe = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    world.store.faults = [Some(StoreFault::Unanswered), Some(StoreFault::NotDone)].into();
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());

    let mut world = CallTestWorld::new();
    world.store.faults = [None, Some(StoreFault::NotDone)].into();
    let result = world.drive(request(&policy), &policy, &at_once(paid()));
    assert_eq!((result.outcome.is_ok(), result.recorded), (true, RecordStatus::NotAsked));

    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.renewed(&mut call, RenewVerdict::Lost);
    assert_eq!(
        name_of(&world.on(&mut call, CallEvent::Ran(not_sent()))),
        "Wait",
        "it is retried all the same"
    );
    assert_eq!(name_of(&world.wake(&mut call)), "Run");

    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let (mut call, _) =
        world.begin(from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive), &policy);
    world.store.faults = [Some(StoreFault::NotDone)].into();
    let step = world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    assert_eq!(name_of(&step), "Run", "a start that could not be written refuses nothing");
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::StoreUnavailable)]);
}

#[test]
fn retry_in_shadow_makes_one_attempt() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes.retry = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    assert_eq!((result.attempts, code(&result)), (1, Some(Code::UpstreamUnavailable)));
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Retried]);
}

#[test]
fn the_breaker_in_shadow_refuses_no_call() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes.breaker = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    world.breaker.force_open(None, world.now);
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::CircuitOpen)]);
}

#[test]
fn the_guard_in_shadow_refuses_no_call_and_adds_nothing() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes.guard = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    looping(&mut world, &request(&policy), &policy);
    let result = world.drive(request(&policy), &policy, &at_once(http(400)));
    assert_eq!((code(&result), result.remarks), (Some(Code::ToolError), vec![]));
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::LoopDetected)]);
}

#[test]
fn trust_in_shadow_requests_no_approval() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes.trust = EnforcementMode::Shadow;
    policy.approval.when = ApprovalTrigger::Always;
    for (channel, shadowed) in [
        (ApprovalChannel::Interactive, ShadowDecision::ApprovalRequested),
        (ApprovalChannel::Headless, ShadowDecision::Refused(Code::ApprovalRequired)),
    ] {
        let mut world = CallTestWorld::new();
        let request = from_envelope_on(&keyed("k"), &policy, channel);
        assert!(world.drive(request, &policy, &at_once(paid())).outcome.is_ok());
        assert_eq!(shadow_decisions(&world), [shadowed]);
    }
}

#[test]
fn only_the_first_of_many_shadow_decisions_is_reported() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let mut world = adverse(&policy);
    let result = world.drive(request(&policy), &policy, &at_once(http(503)));
    assert_eq!((result.attempts, code(&result)), (1, Some(Code::UpstreamUnavailable)));
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::LoopDetected)]);
}

#[test]
fn dedupe_in_shadow_drops_a_record_that_is_another_s_or_was_declared_unknown() {
    for verdict in [RenewVerdict::Lost, RenewVerdict::MarkedUnknown] {
        let mut policy = policy(ToolClass::Mutating);
        policy.modes.dedupe = EnforcementMode::Shadow;
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        assert_eq!(world.renewed(&mut call, verdict), NextStep::Stay);
        assert_eq!(call.claimed_record(), None, "{verdict:?}: there is nothing to renew and nothing to save");
        assert!(!world.has(&CallNotice::FenceLost), "{verdict:?}: no call relied on it");
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(not_sent()))), "Wait");
        assert_eq!(name_of(&world.wake(&mut call)), "Run", "{verdict:?}: it is retried all the same");
        let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!((result.outcome.is_ok(), result.recorded), (true, RecordStatus::NotAsked), "{verdict:?}");
        assert_eq!(world.steps, ["Claim", "Run", "Stay", "Wait", "Run", "Finish"], "{verdict:?}");
    }
}

#[test]
fn a_remark_of_the_guard_in_shadow_is_reported() {
    use crate::guard::GuardLayer;
    for (mode, shadowed, tripped) in [
        (EnforcementMode::Enforce, vec![], 1),
        (EnforcementMode::Shadow, vec![ShadowDecision::GuardRemark(GuardLayer::Loop)], 0),
    ] {
        let mut policy = policy(ToolClass::Mutating);
        policy.modes.guard = mode;
        let mut world = CallTestWorld::new();
        world.drive(from_envelope(&keyed("k"), &policy), &policy, &at_once(http(400)));
        assert_eq!(shadow_decisions(&world), [], "{mode:?}: a first failure is nothing to speak of");
        let second = world.drive(from_envelope(&keyed("l"), &policy), &policy, &at_once(http(400)));
        assert_eq!(second.remarks.len(), tripped, "{mode:?}");
        assert_eq!(shadow_decisions(&world), shadowed, "{mode:?}");
        let trips = world.count(|notice| matches!(notice, CallNotice::GuardTripped { .. }));
        assert_eq!(trips, tripped, "{mode:?}: the guard acted");
    }
}

#[test]
fn dedupe_in_shadow_reports_the_result_of_an_enforced_claim() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let mut world = CallTestWorld::new();
    world.store.faults = [Some(StoreFault::NotDone); 3].into();
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::StoreUnavailable)]);

    let mut world = CallTestWorld::new();
    world.drive(from_envelope(&keyed("k"), &policy), &policy, &at_once(paid()));
    let mut other = from_envelope(&keyed("k"), &policy);
    other.digest = Digest::of(b"other arguments");
    world.drive(other, &policy, &at_once(paid()));
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::IdempotencyConflict)]);
}

#[test]
fn dedupe_in_shadow_is_not_blocked_by_a_closed_store() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.dedupe = EnforcementMode::Shadow;
    for (verdict, code) in [
        (ClaimVerdict::Full, Code::Overloaded),
        (ClaimVerdict::StoreRecovering, Code::StoreUnavailable),
        (ClaimVerdict::RecordsLost, Code::StoreUnavailable),
    ] {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin_only(request(&policy), &policy);
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Claimed(verdict))), "Run", "{code}");
        assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(code)]);
    }
}

#[test]
fn a_withheld_refusal_is_reported_before_a_store_failure() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let mut world = CallTestWorld::new();
    looping(&mut world, &request(&policy), &policy);
    world.store.faults = [Some(StoreFault::NotDone); 3].into();
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::LoopDetected)]);
}

#[test]
fn dedupe_in_shadow_never_reuses_the_run_id_of_a_dead_owner() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes.dedupe = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    let (first, _) = world.begin(request(&policy), &policy);
    world.store.sight = LeaseOwnerState::Gone;
    let (second, step) = world.begin(request(&policy), &policy);
    let NextStep::Run(run) = step else { panic!("{step:?}") };
    assert!(world.has(&CallNotice::TookOver) && run.run != first.request().run, "{run:?}");
    assert_eq!(run.run, second.request().run, "the tool gets the same as without Steadfast");
}

#[test]
fn dedupe_in_shadow_never_answers_that_the_call_still_runs() {
    for modes in [
        MechanismModes::all(EnforcementMode::Shadow),
        MechanismModes { dedupe: EnforcementMode::Shadow, ..MechanismModes::all(EnforcementMode::Enforce) },
    ] {
        let mut policy = policy(ToolClass::Mutating);
        policy.modes = modes;
        policy.time.answer_by = Some(policy.time.attempt / 2);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        assert_eq!(world.wake(&mut call), NextStep::Stay, "{modes:?}");
        assert_eq!(
            (world.now, shadow_decisions(&world)),
            (START + policy.time.attempt / 2, vec![ShadowDecision::Failed(Code::InFlight)])
        );
        assert!(call.wake_at().is_none_or(|at| at > world.now), "{modes:?}: it is reported once");
        assert!(
            finished(world.on(&mut call, CallEvent::Ran(paid()))).outcome.is_ok(),
            "{modes:?}: the tool's answer"
        );
    }
}

#[test]
fn dedupe_in_shadow_releases_only_its_own_claim() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.dedupe = EnforcementMode::Shadow;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin_only(request(&policy), &policy);
    let (_, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None)));
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    let address = request(&policy).address().unwrap();
    assert_eq!(release.key, address.shadowed().own(), "a record that is enforced is not touched");
}

#[test]
fn dedupe_in_shadow_retries_although_its_lease_cannot_be_renewed() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes.dedupe = EnforcementMode::Shadow;
    policy.dedupe.keep.lease = Duration::from_millis(150);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(500)));
    world.now = call.wake_at().unwrap();
    assert_eq!(world.on_only(&mut call, CallEvent::Woke(WakeReason::Time)), Ok(NextStep::Renew));
    assert_eq!(name_of(&world.on(&mut call, CallEvent::StoreFailed(StoreFault::NotDone))), "Run");
}

#[test]
fn in_shadow_a_trace_is_a_turn_for_the_guard_alone() {
    for (mode, shown) in [(EnforcementMode::Shadow, None), (EnforcementMode::Enforce, Some("t"))] {
        let mut policy = policy(ToolClass::Idempotent);
        policy.modes = MechanismModes::all(mode);
        let mut world = CallTestWorld::new();
        for (number, expected) in [None, shown].into_iter().enumerate() {
            let mut request = request(&policy);
            request.trace = Some(TurnId::new("t").unwrap());
            let (call, _) = world.begin(request, &policy);
            let turn = call.request().turn.as_ref().map(|turn| turn.as_str());
            assert_eq!(turn, expected, "{mode:?}: call {number}");
        }
    }
}

#[test]
fn in_shadow_nothing_is_ended_and_nothing_is_held_back_for_want_of_a_place() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    policy.limits.concurrency = std::num::NonZeroU32::new(1);
    let mut world = CallTestWorld::new();
    let (mut first, step) = world.begin(from_envelope(&keyed("k"), &policy), &policy);
    assert!(matches!(&step, NextStep::Run(run) if run.deadline.is_none()), "{step:?}");
    let (mut second, step) = world.begin(from_envelope(&keyed("l"), &policy), &policy);
    assert_eq!(name_of(&step), "Run");
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::Overloaded)]);
    world.pass(policy.time.attempt);
    assert_eq!(world.on(&mut first, CallEvent::Woke(WakeReason::Time)), NextStep::Stay);
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::Overloaded), ShadowDecision::Cut]);
    assert_eq!(first.wake_at(), None, "it is reported once");
    for call in [&mut first, &mut second] {
        assert_eq!(name_of(&world.on(call, CallEvent::Ran(paid()))), "Finish");
    }
    assert_eq!(world.limiter.in_flight(), 0, "only places that were taken are given back");
}

#[test]
fn in_shadow_an_abandoned_call_is_ended_as_in_enforce() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    for times_out_first in [true, false] {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        if times_out_first {
            assert_eq!(world.wake(&mut call), NextStep::Stay, "a caller waits");
            assert_eq!((call.wake_at(), shadow_decisions(&world)), (None, vec![ShadowDecision::Cut]));
        }
        world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None));
        assert_eq!(
            world.wake(&mut call),
            NextStep::Cut(CutReason::Silent(policy.time.attempt)),
            "{times_out_first}"
        );
        finished(world.on(&mut call, CallEvent::Ran(timed_out())));
        assert_eq!(world.limiter.in_flight(), 0, "{times_out_first}: its place is free");
    }
}

#[test]
fn with_everything_off_a_call_is_cut_when_its_caller_disconnects() {
    for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
        let mut policy = policy(class);
        policy.modes = MechanismModes::all(EnforcementMode::Off);
        let mut world = CallTestWorld::new();
        let (mut call, step) = world.begin(request(&policy), &policy);
        assert_eq!((name_of(&step), call.wake_at()), ("Run", None), "nothing else would end it");
        assert_eq!(
            world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None)),
            NextStep::Cut(CutReason::Cancelled)
        );
        assert_eq!(code(&finished(world.on(&mut call, CallEvent::Ran(timed_out())))), Some(Code::Cancelled));

        // With any mechanism on, a disconnect does not end an attempt that has started.
        policy.modes.guard = EnforcementMode::Shadow;
        let (mut call, _) = world.begin(request(&policy), &policy);
        assert_eq!(world.on(&mut call, CallEvent::Disconnected(OtherWaiters::None)), NextStep::Stay);
    }
}

#[test]
fn the_guard_in_shadow_counts_results_of_the_tool_and_not_its_own_refusals() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.modes =
        MechanismModes { guard: EnforcementMode::Shadow, ..MechanismModes::all(EnforcementMode::Off) };
    let mut world = CallTestWorld::new();
    looping(&mut world, &request(&policy), &policy);
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok());
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Refused(Code::LoopDetected)]);
    policy.modes.guard = EnforcementMode::Enforce;
    assert!(world.drive(request(&policy), &policy, &at_once(paid())).outcome.is_ok(), "it has worked since");
}

#[test]
fn a_withheld_refusal_is_checked_again_after_a_wait() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes.guard = EnforcementMode::Shadow;
    policy.retry.attempts = std::num::NonZeroU32::MIN;
    for still_loops in [true, false] {
        let mut world = CallTestWorld::new();
        let (mut first, _) = world.begin(request(&policy), &policy);
        looping(&mut world, &request(&policy), &policy);
        let (mut second, step) = world.begin(request(&policy), &policy);
        assert_eq!(name_of(&step), "Follow");
        world.on(&mut first, CallEvent::Ran(not_sent()));
        world.notices.clear();
        if !still_loops {
            world.guard.reset(world.now);
        }
        assert_eq!(name_of(&world.on(&mut second, CallEvent::Woke(WakeReason::Changed))), "Run");
        let expected = still_loops.then_some(ShadowDecision::Refused(Code::LoopDetected));
        assert_eq!(shadow_decisions(&world), expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn in_shadow_a_host_that_is_silent_when_its_call_has_had_all_its_time_is_given_up() {
    let mut policy = policy(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let mut world = CallTestWorld::new();
    let hosted = CallRequest { run_by: RunnerKind::Host, ..request(&policy) };
    let (mut call, _) = world.begin(hosted, &policy);
    assert_eq!(world.wake(&mut call), NextStep::Stay);
    assert_eq!(shadow_decisions(&world), [ShadowDecision::Cut]);
    assert_eq!(call.wake_at(), Some(START + policy.time.total));
    world.now = START + policy.time.total;
    world.on(&mut call, CallEvent::Progressed);
    assert_eq!(world.on(&mut call, CallEvent::Woke(WakeReason::Time)), NextStep::Stay, "it lives");
    assert_eq!(call.wake_at(), Some(world.now + policy.time.attempt));
    assert_eq!(world.wake(&mut call), NextStep::Cut(CutReason::TooLong));
}

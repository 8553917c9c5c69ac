//! One probe for all processes that share a breaker: it is recorded in the store before it is sent.

use super::*;
use crate::breaker::{BreakerVerdict, State as Circuit};
use crate::policy::RateLimit;

/// Opens the breaker so long ago that the next call is its probe.
pub(super) fn open_until_now(world: &mut CallTestWorld, policy: &CallPolicy) {
    let mut breaker = std::mem::replace(&mut world.breaker, CircuitBreaker::numbered_from(1_000));
    open(&mut breaker, policy, world.now);
    world.breaker = breaker;
    world.pass(policy.breaker.cooldown.first);
}

fn open(breaker: &mut CircuitBreaker, policy: &CallPolicy, now: Timestamp) {
    while breaker.state(&policy.breaker, now) == Circuit::Closed {
        let (ticket, _) = breaker.admit(&policy.breaker, now).unwrap();
        breaker.record(&policy.breaker, ticket, BreakerVerdict::Failure { took: Duration::ZERO }, now);
    }
}

/// Returns a call that waits until its probe is recorded.
fn probing(world: &mut CallTestWorld, policy: &CallPolicy) -> Call {
    let (mut call, step) = world.begin_only(request(policy), policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    let verdict = world.store.claim(&claim, world.now);
    let step = world.on_only(&mut call, CallEvent::Claimed(verdict)).unwrap();
    assert_eq!(step, NextStep::Probe(BreakerScope::Tool));
    call
}

/// Another process with the same breaker: it has read the stored breaker, and takes the probe.
fn taken_elsewhere(world: &CallTestWorld, policy: &CallPolicy) -> CircuitBreaker {
    let mut there = CircuitBreaker::numbered_from(2_000);
    open(&mut there, policy, START);
    let (_probe, _) = there.admit(&policy.breaker, world.now).unwrap();
    there
}

#[test]
fn a_probe_is_recorded_in_the_store_before_it_is_sent() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    assert!(matches!(world.on_only(&mut call, CallEvent::Probed).unwrap(), NextStep::Run(_)));
}

#[test]
fn a_probe_that_another_process_won_is_not_made() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    world.breaker.adopt(&taken_elsewhere(&world, &policy).snapshot(), world.now);
    let step = world.on(&mut call, CallEvent::Probed);
    let NextStep::Finish { result, .. } = step else { panic!("{step:?}") };
    assert_eq!(result.outcome.unwrap_err().code, Code::CircuitOpen);
    assert_eq!((world.runs, world.limiter.in_flight(), world.dependency_limiter.in_flight()), (0, 0, 0));
    assert!(world.store.records.is_empty(), "the claim is given back");
}

#[test]
fn if_the_store_is_unavailable_each_process_probes_for_itself() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    let step = world.on_only(&mut call, CallEvent::StoreFailed(StoreFault::Unanswered)).unwrap();
    assert!(matches!(step, NextStep::Run(_)));
}

#[test]
fn a_probe_whose_caller_left_returns_its_place_and_reports_it() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    world.on(&mut call, CallEvent::Cancelled(OtherWaiters::None));
    assert!(world.notices.contains(&CallNotice::ProbeMoved { scope: BreakerScope::Tool }));
    assert_eq!((world.limiter.in_flight(), world.dependency_limiter.in_flight()), (0, 0));
    assert!(world.breaker.admit(&policy.breaker, world.now).unwrap().0.is_probe());
}

#[test]
fn a_probe_whose_deadline_passed_during_the_store_request_is_not_made() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    let mut late = request(&policy);
    late.limits.deadline = Some(world.now + SECOND);
    let (mut call, step) = world.begin_only(late, &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    let verdict = world.store.claim(&claim, world.now);
    world.on_only(&mut call, CallEvent::Claimed(verdict)).unwrap();
    world.pass(SECOND);
    let step = world.on(&mut call, CallEvent::Probed);
    let NextStep::Finish { result, .. } = step else { panic!("{step:?}") };
    assert_eq!(result.outcome.unwrap_err().code, Code::DeadlineExceeded);
    assert!(world.breaker.admit(&policy.breaker, world.now).unwrap().0.is_probe(), "the place is free");
}

#[test]
fn a_call_can_be_the_probe_of_both_its_breakers() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    let mut coarser = CircuitBreaker::default();
    open(&mut coarser, &policy, world.now);
    world.dependency = Some(coarser);
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    let step = world.on_only(&mut call, CallEvent::Probed).unwrap();
    assert_eq!(step, NextStep::Probe(BreakerScope::Dependency));
    assert!(matches!(world.on_only(&mut call, CallEvent::Probed).unwrap(), NextStep::Run(_)));
}

#[test]
fn a_probe_that_the_coarser_breaker_refuses_leaves_its_slot_to_the_next_call() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    world.dependency = Some(CircuitBreaker::default());
    open_until_now(&mut world, &policy);
    let (mut call, step) = world.begin_only(request(&policy), &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    let verdict = world.store.claim(&claim, world.now);
    // An operator stops calls to the dependency while the claim is made.
    world.dependency.as_mut().unwrap().force_open(None, world.now);
    let result = finished(world.on(&mut call, CallEvent::Claimed(verdict)));
    assert_eq!(code(&result), Some(Code::CircuitOpen));
    assert!(world.breaker.admit(&policy.breaker, world.now).unwrap().0.is_probe(), "the place is free");
}

#[test]
fn a_breaker_in_shadow_requests_no_probe() {
    let (mut world, mut policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    policy.modes.breaker = EnforcementMode::Shadow;
    let (_, step) = world.begin(request(&policy), &policy);
    assert!(matches!(step, NextStep::Run(_)));
    assert!(!world.steps.contains(&"Probe"));
}

#[test]
fn a_long_probe_with_progress_reports_that_it_keeps_its_place() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    world.on(&mut call, CallEvent::Probed);
    let mut moved = 0;
    for _ in 0..8 {
        world.pass(policy.breaker.probe_lease / 6);
        world.notices.clear();
        world.on(&mut call, CallEvent::Progressed);
        moved += usize::from(world.notices.contains(&CallNotice::ProbeMoved { scope: BreakerScope::Tool }));
    }
    assert_eq!(moved, 4, "each third of its lease, and not with every sign of life");
    let mut elsewhere = CircuitBreaker::numbered_from(2_000);
    elsewhere.adopt(&world.breaker.snapshot(), world.now);
    assert!(elsewhere.check(&policy.breaker, world.now).is_err());
}

#[test]
fn a_probe_that_decides_nothing_reports_its_place_as_free() {
    let (mut world, policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    assert_eq!(policy.breaker.close_after.get(), 2);
    open_until_now(&mut world, &policy);
    let mut call = probing(&mut world, &policy);
    world.on(&mut call, CallEvent::Probed);
    world.on(&mut call, CallEvent::Ran(paid()));
    assert!(world.notices.contains(&CallNotice::ProbeMoved { scope: BreakerScope::Tool }));
    let mut elsewhere = CircuitBreaker::numbered_from(2_000);
    elsewhere.adopt(&world.breaker.snapshot(), world.now);
    let (second, _) = elsewhere.admit(&policy.breaker, world.now).unwrap();
    let closed =
        elsewhere.record(&policy.breaker, second, BreakerVerdict::Success { took: SECOND }, world.now);
    assert_eq!(closed.unwrap().to, Circuit::Closed, "the two good probes count together");
}

#[test]
fn a_dependency_that_is_at_its_limit_refuses_at_once_and_costs_the_tool_nothing() {
    let (mut world, mut policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
    policy.dependency_limits.concurrency = std::num::NonZeroU32::new(1);
    world.dependency_limiter.try_acquire(&policy.dependency_limits, world.now).unwrap();
    let (_, step) = world.begin(request(&policy), &policy);
    let NextStep::Finish { result, .. } = step else { panic!("{step:?}") };
    let failure = result.outcome.unwrap_err();
    assert_eq!(
        (failure.code, failure.rule.as_deref()),
        (Code::Overloaded, Some("limit.dependency_concurrency"))
    );
    assert_eq!((world.runs, world.limiter.in_flight()), (0, 0));
    world.dependency_limiter.release();
    let (_, step) = world.begin(request(&policy), &policy);
    assert!(matches!(step, NextStep::Run(_)));
    assert_eq!((world.limiter.in_flight(), world.dependency_limiter.in_flight()), (1, 1));
}

#[test]
fn a_probe_that_is_not_made_uses_up_no_rate_of_its_tool_or_its_dependency() {
    type PreventionFn = fn(&mut CallTestWorld, &mut Call, &CallPolicy) -> NextStep;
    let ways: [PreventionFn; 2] = [
        |world, call, _| world.on(call, CallEvent::Cancelled(OtherWaiters::None)),
        |world, call, policy| {
            world.breaker.adopt(&taken_elsewhere(world, policy).snapshot(), world.now);
            world.on(call, CallEvent::Probed)
        },
    ];
    for prevent in ways {
        let (mut world, mut policy) = (CallTestWorld::new(), policy(ToolClass::Mutating));
        let once = RateLimit { attempts: std::num::NonZeroU32::MIN, per: Duration::from_secs(3600) };
        (policy.limits.rate, policy.dependency_limits.rate) = (Some(once), Some(once));
        open_until_now(&mut world, &policy);
        let mut call = probing(&mut world, &policy);
        finished(prevent(&mut world, &mut call, &policy));
        assert_eq!(world.limiter.try_acquire(&policy.limits, world.now), Ok(()));
        assert_eq!(world.dependency_limiter.try_acquire(&policy.dependency_limits, world.now), Ok(()));
    }
}

//! Tests of exact limits of time and number, and of the view of a breaker.

use super::*;
use crate::policy::RateRule;

fn half() -> RateRule {
    RateRule { threshold: Ratio::percent(50), last: count(4), at_least: count(4) }
}

#[test]
fn a_refusal_names_its_rule() {
    let rules =
        [BreakerRefusalCause::Failures, BreakerRefusalCause::Operator, BreakerRefusalCause::Configuration]
            .map(BreakerRefusalCause::rule);
    assert_eq!(rules, ["breaker", "breaker.forced_by_hand", "breaker.forced_by_configuration"]);
}

#[test]
fn a_response_is_slow_above_the_limit_and_only_slow_ones_count() {
    let slower_than = Duration::from_secs(1);
    let slow = Some(SlowRule { slower_than, rate: half() });
    let policy = BreakerPolicy { consecutive: None, rate: None, slow, ..measured() };
    let took = |took| BreakerVerdict::Success { took };
    let above = slower_than + Duration::from_millis(1);
    let mut breaker = CircuitBreaker::default();
    for verdict in [took(above), took(slower_than), OK, OK] {
        assert_eq!(breaker.attempt(&policy, verdict, at(0)), None);
    }
    assert_eq!(breaker.counts().slow, 1);
    // The first one leaves the range of the rule, and two of four are slow.
    assert_eq!(breaker.attempt(&policy, took(above), at(0)), None);
    let change = breaker.attempt(&policy, took(above), at(0));
    assert_eq!(change.map(|change| change.reason), Some(TransitionReason::Slow));
}

#[test]
fn a_threshold_of_zero_opens_at_the_first_failure_and_not_before() {
    let rule = RateRule { threshold: Ratio::percent(0), last: count(4), at_least: count(1) };
    let slow = Some(SlowRule { slower_than: Duration::ZERO, rate: half() });
    let policy = BreakerPolicy { consecutive: None, rate: Some(rule), slow, ..measured() };
    let mut breaker = CircuitBreaker::default();
    assert_eq!(breaker.attempt(&policy, OK, at(0)), None, "slow, and nothing has failed");
    let change = breaker.attempt(&policy, BAD, at(0));
    assert_eq!(change.map(|change| change.reason), Some(TransitionReason::Rate));
}

#[test]
fn nothing_is_counted_while_the_configuration_forces_it_open() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    let forced = BreakerPolicy { forced_open: true, ..measured() };
    for _ in 0..5 {
        let (ticket, _) = breaker.admit(&policy, at(0)).unwrap();
        assert_eq!(breaker.record(&forced, ticket, BAD, at(0)), None);
    }
    assert_eq!((breaker.counts().calls, breaker.state(&policy, at(0))), (0, State::Closed));
    let shared = SharedBreaker::default();
    assert_eq!(shared.check(&policy, at(0)), Ok(()));
    assert_eq!(shared.check(&forced, at(0)).unwrap_err().by, BreakerRefusalCause::Configuration);
    // The first one is counted under the lock, the second beside it, the third not at all.
    for by in [&policy, &policy, &forced] {
        shared.admit(&policy, at(0)).unwrap().0.record(by, OK, at(0));
    }
    assert_eq!(shared.with(|breaker| breaker.counts().calls), 2);
}

#[test]
fn probe_numbers_stay_below_the_stored_maximum() {
    for first in [0, 7, BreakerSnapshot::LAST_EPOCH, u64::MAX] {
        let breaker = CircuitBreaker::numbered_from(first);
        assert!(breaker.probes < BreakerSnapshot::LAST_EPOCH / 2, "{first}: {}", breaker.probes);
    }
    assert_eq!(CircuitBreaker::numbered_from(7).probes, 7);
}

#[test]
fn a_change_by_an_operator_is_numbered_by_its_second() {
    let mut breaker = CircuitBreaker::default();
    assert!(!breaker.is_forced_by_operator());
    breaker.force_open(Some(at(90)), at(60));
    assert!(breaker.is_forced_by_operator());
    let snapshot = breaker.snapshot();
    assert_eq!(snapshot.epoch(), 60 * BreakerSnapshot::OPERATOR_EPOCH_STEP);
    assert_eq!((snapshot.state(), snapshot.until()), (State::ForcedOpen, Some(at(90))));
    breaker.force_open(None, at(60));
    assert_eq!(
        (breaker.epoch(), breaker.snapshot().until()),
        (61 * BreakerSnapshot::OPERATOR_EPOCH_STEP, None)
    );
    breaker.reset(at(60));
    assert!(!breaker.is_forced_by_operator());
}

#[test]
fn a_cooldown_that_grows_from_zero_stays_zero() {
    let growth = GrowthFactor::new(1000.0).unwrap();
    let none = BreakerCooldown { first: Duration::ZERO, growth, cap: Duration::from_secs(60) };
    for reopened in [0, 1, 1000, u32::MAX] {
        assert_eq!(cooldown(&none, reopened), Duration::ZERO, "{reopened}");
    }
}

// ---- stored ----

fn stored(breaker: &CircuitBreaker) -> serde_json::Value {
    serde_json::to_value(breaker.snapshot()).unwrap()
}

fn read(stored: serde_json::Value) -> Result<BreakerSnapshot, serde_json::Error> {
    serde_json::from_value(stored)
}

#[test]
fn the_last_epoch_is_accepted_and_none_beyond_it() {
    assert_eq!(BreakerSnapshot::LAST_EPOCH, 9_007_199_254_740_991, "what every reader of JSON keeps");
    let mut value = stored(&in_state(State::Open));
    value["epoch"] = BreakerSnapshot::LAST_EPOCH.into();
    assert_eq!(read(value.clone()).map(|snapshot| snapshot.epoch()).unwrap(), BreakerSnapshot::LAST_EPOCH);
    value["epoch"] = (BreakerSnapshot::LAST_EPOCH + 1).into();
    assert!(read(value).is_err());
}

#[test]
fn only_a_half_open_breaker_has_a_probe_and_only_a_forced_one_an_end() {
    let mut half_open = in_state(State::HalfOpen);
    let (_probe, _) = half_open.admit(&measured(), at(30)).unwrap();
    let mut forced = CircuitBreaker::default();
    forced.force_open(Some(at(90)), at(0));
    let (trial, until) = (stored(&half_open)["trial"].clone(), stored(&forced)["until"].clone());
    assert!(trial.is_object() && until.is_number());
    for state in STATES {
        let mut value = stored(&in_state(state));
        (value["trial"], value["until"]) = (trial.clone(), until.clone());
        let snapshot = read(value).unwrap();
        assert_eq!(snapshot.until().is_some(), state == State::ForcedOpen, "{state:?}");
        let written = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(written.get("trial").is_some(), state == State::HalfOpen, "{state:?}");
    }
}

#[test]
fn the_loser_of_a_race_adopts_the_stored_snapshot() {
    let opened = |second| {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..5 {
            breaker.attempt(&measured(), BAD, at(second));
        }
        breaker
    };
    let (first, mut second) = (opened(1), opened(2));
    assert_eq!(second.adopt(&first.snapshot(), at(3)), None, "both are open");
    assert_eq!(second.snapshot(), first.snapshot());
    // The same number, and another state.
    let mut closed = opened(1);
    closed.epoch = 0;
    closed.change(BreakerPhase::Closed, TransitionReason::Reset, at(1));
    assert_eq!(closed.epoch(), first.epoch());
    let change = closed.adopt(&first.snapshot(), at(3)).unwrap();
    assert_eq!((change.from, change.to), (State::Closed, State::Open));
    assert_eq!(closed.snapshot(), first.snapshot());
}

#[test]
fn a_moved_probe_does_not_change_the_state() {
    let (mut here, mut there) = (in_state(State::HalfOpen), in_state(State::HalfOpen));
    there.probes = 1000;
    let (ticket, _) = there.admit(&measured(), at(30)).unwrap();
    there.confirm_probe(&ticket);
    // Written by a version that stores no changes.
    let mut value = stored(&there);
    value.as_object_mut().unwrap().remove("changes");
    let before = here.view(&measured(), at(30)).changes;
    assert_eq!(here.adopt(&read(value).unwrap(), at(30)), None);
    assert!(here.view(&measured(), at(30)).probing, "the place is taken");
    assert_eq!(here.view(&measured(), at(30)).changes, before);
}

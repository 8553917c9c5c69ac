mod limits;
mod model;
mod shared;

use std::num::NonZeroU32;

use super::*;
use crate::policy::{GrowthFactor, PolicyProfile, Ratio, SlowRule, ToolClass};

const OK: BreakerVerdict = BreakerVerdict::Success { took: Duration::from_millis(5) };
const BAD: BreakerVerdict = BreakerVerdict::Failure { took: Duration::from_millis(5) };

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn count(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

fn measured() -> BreakerPolicy {
    PolicyProfile::Measured.policy(ToolClass::Unknown).breaker
}

fn standard(class: ToolClass) -> BreakerPolicy {
    PolicyProfile::Standard.policy(class).breaker
}

impl CircuitBreaker {
    /// Makes one attempt that is admitted and recorded at once.
    fn attempt(
        &mut self,
        policy: &BreakerPolicy,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        self.attempt_if_admitted(policy, verdict, now).expect("admitted")
    }

    fn attempt_if_admitted(
        &mut self,
        policy: &BreakerPolicy,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<Option<BreakerTransition>> {
        let (ticket, _) = self.admit(policy, now).ok()?;
        Some(self.record(policy, ticket, verdict, now))
    }
}

/// Returns a breaker in a state at second 0 (half-open: at second 30, its slot free), under `measured`.
fn in_state(state: State) -> CircuitBreaker {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    match state {
        State::Closed => {}
        State::ForcedOpen => _ = breaker.force_open(None, at(0)),
        State::Open | State::HalfOpen => {
            for _ in 0..5 {
                breaker.attempt(&policy, BAD, at(0));
            }
        }
    }
    if state == State::HalfOpen {
        let (ticket, _) = breaker.admit(&policy, at(30)).unwrap();
        breaker.release(ticket);
    }
    breaker
}

const STATES: [State; 4] = [State::Closed, State::Open, State::HalfOpen, State::ForcedOpen];

// ---- every state with every event -------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
enum BreakerTestEvent {
    CallEarly,
    CallLate,
    Success,
    Failure,
    FifthFailure,
    Neutral,
    Cancelled,
    Lease,
    LateFailure,
    Force,
    Reset,
    ForcedByPolicy,
    Restart,
    AdoptNewer,
    AdoptOlder,
}

/// Returns the state after the event, and the reason for the change. `None` if the event cannot happen because no call
/// is admitted in that state.
fn after(state: State, event: BreakerTestEvent) -> Option<(State, Option<TransitionReason>)> {
    let (policy, now) = (measured(), at(31));
    let mut breaker = in_state(state);
    // Open has to stay open for events that do not concern the cool-down.
    let soon = if state == State::Open { at(29) } else { now };
    let change = match event {
        BreakerTestEvent::CallEarly => breaker.admit(&policy, soon).ok()?.1,
        BreakerTestEvent::CallLate => {
            let change = breaker.admit(&policy, now).ok()?.1;
            return Some((breaker.state(&policy, now), change.map(|change| change.reason)));
        }
        BreakerTestEvent::Success => breaker.attempt_if_admitted(&policy, OK, soon)?,
        BreakerTestEvent::Failure => breaker.attempt_if_admitted(&policy, BAD, soon)?,
        BreakerTestEvent::Neutral => breaker.attempt_if_admitted(&policy, BreakerVerdict::Neutral, soon)?,
        BreakerTestEvent::FifthFailure => {
            if state == State::Closed {
                (0..4).for_each(|_| _ = breaker.attempt(&policy, BAD, soon));
            }
            breaker.attempt_if_admitted(&policy, BAD, soon)?
        }
        BreakerTestEvent::Cancelled => {
            let (ticket, _) = breaker.admit(&policy, soon).ok()?;
            breaker.release(ticket);
            None
        }
        BreakerTestEvent::Lease => {
            let (_silent, _) = breaker.admit(&policy, soon).ok()?;
            breaker.admit(&policy, soon + policy.probe_lease).expect("the place is free again").1
        }
        BreakerTestEvent::LateFailure => {
            breaker.record(&policy, BreakerTicket { epoch: u64::MAX, probe: None }, BAD, soon)
        }
        BreakerTestEvent::Force => breaker.force_open(None, soon),
        BreakerTestEvent::Reset => breaker.reset(soon),
        BreakerTestEvent::ForcedByPolicy => {
            let forced = BreakerPolicy { forced_open: true, ..policy };
            assert_eq!(
                breaker.admit(&forced, soon).unwrap_err(),
                BreakerRefusal {
                    state: State::ForcedOpen,
                    retry_at: None,
                    by: BreakerRefusalCause::Configuration
                }
            );
            assert_eq!(breaker.state(&forced, soon), State::ForcedOpen);
            None
        }
        BreakerTestEvent::Restart => {
            breaker = CircuitBreaker::restore(&breaker.snapshot(), soon);
            None
        }
        BreakerTestEvent::AdoptNewer => {
            let mut elsewhere = breaker.clone();
            elsewhere.reset(soon);
            elsewhere.force_open(None, soon);
            breaker.adopt(&elsewhere.snapshot(), soon)
        }
        BreakerTestEvent::AdoptOlder => breaker.adopt(&CircuitBreaker::default().snapshot(), soon),
    };
    Some((breaker.state(&policy, soon), change.map(|change| change.reason)))
}

#[test]
fn every_state_handles_every_event_as_in_the_diagram() {
    use State::{Closed, ForcedOpen, HalfOpen, Open};
    let same = |state| Some((state, None));
    let to = |state, reason| Some((state, Some(reason)));
    #[rustfmt::skip]
    let table = [
        // event                  closed                             open                          half-open                             forced open
        (BreakerTestEvent::CallEarly,      [same(Closed),                     None,                         same(HalfOpen),                       None]),
        (BreakerTestEvent::CallLate,       [same(Closed),                     to(HalfOpen, TransitionReason::CooledDown), same(HalfOpen),                   None]),
        (BreakerTestEvent::Success,        [same(Closed),                     None,                         to(Closed, TransitionReason::ProbesSucceeded),  None]),
        (BreakerTestEvent::Failure,        [same(Closed),                     None,                         to(Open, TransitionReason::ProbeFailed),        None]),
        (BreakerTestEvent::FifthFailure,   [to(Open, TransitionReason::Consecutive),    None,                         to(Open, TransitionReason::ProbeFailed),        None]),
        (BreakerTestEvent::Neutral,        [same(Closed),                     None,                         same(HalfOpen),                       None]),
        (BreakerTestEvent::Cancelled,      [same(Closed),                     None,                         same(HalfOpen),                       None]),
        (BreakerTestEvent::Lease,          [same(Closed),                     None,                         same(HalfOpen),                       None]),
        (BreakerTestEvent::LateFailure,    [same(Closed),                     same(Open),                   same(HalfOpen),                       same(ForcedOpen)]),
        (BreakerTestEvent::Force,          [to(ForcedOpen, TransitionReason::Forced),   to(ForcedOpen, TransitionReason::Forced), to(ForcedOpen, TransitionReason::Forced),     same(ForcedOpen)]),
        (BreakerTestEvent::Reset,          [same(Closed),                     to(Closed, TransitionReason::Reset),    to(Closed, TransitionReason::Reset),            to(Closed, TransitionReason::Reset)]),
        (BreakerTestEvent::ForcedByPolicy, [same(Closed),                     same(Open),                   same(HalfOpen),                       same(ForcedOpen)]),
        (BreakerTestEvent::Restart,        [same(Closed),                     same(Open),                   same(HalfOpen),                       same(ForcedOpen)]),
        (BreakerTestEvent::AdoptNewer,     [to(ForcedOpen, TransitionReason::Forced),   to(ForcedOpen, TransitionReason::Forced), to(ForcedOpen, TransitionReason::Forced),     same(ForcedOpen)]),
        (BreakerTestEvent::AdoptOlder,     [same(Closed),                     same(Open),                   same(HalfOpen),                       same(ForcedOpen)]),
    ];
    for (event, row) in table {
        for (state, expected) in STATES.into_iter().zip(row) {
            let actual = after(state, event);
            assert_eq!(actual, expected, "{event:?} in {state:?}");
        }
    }
}

#[test]
fn a_result_of_any_older_epoch_changes_nothing() {
    let policy = measured();
    for state in STATES {
        for verdict in [OK, BAD, BreakerVerdict::Neutral] {
            let mut breaker = in_state(State::Closed);
            let tickets: Vec<BreakerTicket> =
                (0..10).map(|_| breaker.admit(&policy, at(0)).unwrap().0).collect();
            // Reset starts an epoch too, so the state is reached again without the tickets' knowledge.
            breaker.reset(at(0));
            let fresh = in_state(state).snapshot();
            let fresh = BreakerSnapshot::from_parts(breaker.epoch() + 1, &fresh);
            breaker.adopt(&fresh, at(31));
            let before = (breaker.snapshot(), breaker.counts());
            for ticket in tickets {
                assert_eq!(breaker.record(&policy, ticket, verdict, at(31)), None);
            }
            assert_eq!((breaker.snapshot(), breaker.counts()), before, "{verdict:?} in {state:?}");
        }
    }
}

// ---- seed 002 under `measured` ----------------------------------------------------------------------

#[test]
fn eh_3_1_opens_after_five_failures() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    for second in 1..5 {
        assert_eq!(breaker.attempt(&policy, BAD, at(second)), None);
        assert_eq!(breaker.state(&policy, at(second)), State::Closed);
    }
    let change = breaker.attempt(&policy, BAD, at(5));
    let opened = BreakerTransition {
        from: State::Closed,
        to: State::Open,
        reason: TransitionReason::Consecutive,
        at: at(5),
    };
    assert_eq!(change, Some(opened));
    let refused =
        BreakerRefusal { state: State::Open, retry_at: Some(at(35)), by: BreakerRefusalCause::Failures };
    assert_eq!(breaker.check(&policy, at(5)), Err(refused));
    assert_eq!(breaker.admit(&policy, at(5)).unwrap_err(), refused);
}

#[test]
fn eh_3_2_half_opens_after_the_cooldown_for_exactly_one_attempt() {
    let policy = measured();
    let mut breaker = in_state(State::Open);
    for second in [0, 15, 29] {
        assert_eq!(breaker.admit(&policy, at(second)).unwrap_err().state, State::Open);
    }
    assert_eq!(breaker.state(&policy, at(30)), State::HalfOpen, "a query alone sees it");
    let (probe, change) = breaker.admit(&policy, at(30)).unwrap();
    assert_eq!(change.unwrap().reason, TransitionReason::CooledDown);
    assert!(probe.is_probe());
    for _ in 0..100 {
        assert_eq!(breaker.admit(&policy, at(31)).unwrap_err().state, State::HalfOpen);
    }
    let mut failing = breaker.clone();
    let same_probe = BreakerTicket { epoch: probe.epoch, probe: probe.probe };
    assert_eq!(breaker.record(&policy, probe, OK, at(32)).unwrap().to, State::Closed);

    assert_eq!(failing.record(&policy, same_probe, BAD, at(32)).unwrap().to, State::Open);
    assert_eq!(failing.check(&policy, at(61)).unwrap_err().retry_at, Some(at(62)), "a fresh cool-down");
    assert_eq!(failing.state(&policy, at(62)), State::HalfOpen);
}

#[test]
fn eh_3_3_closes_after_success_in_half_open_and_counts_from_nothing() {
    let policy = measured();
    let mut breaker = in_state(State::HalfOpen);
    assert_eq!(breaker.attempt(&policy, OK, at(31)).unwrap().reason, TransitionReason::ProbesSucceeded);
    assert_eq!(breaker.counts(), BreakerCounts::default());
    for _ in 0..4 {
        assert_eq!(breaker.attempt(&policy, BAD, at(32)), None);
    }
    assert_eq!(breaker.attempt(&policy, BAD, at(32)).unwrap().reason, TransitionReason::Consecutive);
}

#[test]
fn eh_3_4_permanent_errors_do_not_count() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    for second in 0..5 {
        assert_eq!(breaker.attempt(&policy, BreakerVerdict::Neutral, at(second)), None);
    }
    assert_eq!(breaker.state(&policy, at(5)), State::Closed);
    assert_eq!(breaker.counts(), BreakerCounts::default());
}

#[test]
fn eh_3_5_transient_errors_count() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    for failures in 1..5 {
        breaker.attempt(&policy, BAD, at(0));
        assert_eq!(breaker.counts().in_a_row, failures);
    }
    breaker.attempt(&policy, BAD, at(0));
    assert_eq!(breaker.state(&policy, at(0)), State::Open);
}

#[test]
fn eh_7_1_of_ten_rapid_failures_the_last_five_are_refused() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    let admitted = (0..10)
        .filter(|_| {
            let ticket = breaker.admit(&policy, at(0)).ok();
            ticket.map(|(ticket, _)| breaker.record(&policy, ticket, BAD, at(0))).is_some()
        })
        .count();
    assert_eq!(admitted, 5);
    assert_eq!(breaker.state(&policy, at(0)), State::Open);
}

#[test]
fn eh_7_2_after_mixed_errors_the_counter_is_one() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    // Error 1 is retried with success, error 2 is permanent, error 3 is transient.
    for (verdict, counter) in [(BAD, 1), (OK, 0), (BreakerVerdict::Neutral, 0), (BAD, 1)] {
        breaker.attempt(&policy, verdict, at(0));
        assert_eq!(breaker.counts().in_a_row, counter);
    }
}

// ---- seed 000 under `standard` ----------------------------------------------------------------------

#[test]
fn tr_8_five_failing_mutations_open_it_and_a_late_success_does_not_close_it() {
    let (policy, mut breaker) = (standard(ToolClass::Mutating), CircuitBreaker::default());
    let (slow_success, _) = breaker.admit(&policy, at(0)).unwrap();
    for _ in 0..5 {
        breaker.attempt(&policy, BAD, at(1));
    }
    assert_eq!(breaker.admit(&policy, at(2)).unwrap_err().state, State::Open);
    assert_eq!(breaker.record(&policy, slow_success, OK, at(3)), None);
    assert_eq!(breaker.admit(&policy, at(4)).unwrap_err().retry_at, Some(at(16)));
}

#[test]
fn tr_9_two_good_probes_close_it() {
    let (policy, mut breaker) = (standard(ToolClass::Unknown), in_state(State::Open));
    assert_eq!(breaker.attempt(&policy, OK, at(30)), None);
    assert_eq!(breaker.state(&policy, at(30)), State::HalfOpen);
    let change = breaker.attempt(&policy, OK, at(31)).unwrap();
    assert_eq!((change.from, change.to), (State::HalfOpen, State::Closed));
    assert!((0..50).all(|_| breaker.attempt(&policy, OK, at(32)).is_none()));
}

#[test]
fn tr_10_a_failing_probe_opens_it_again_with_a_new_cooldown() {
    let (policy, mut breaker) = (standard(ToolClass::Unknown), in_state(State::Open));
    assert_eq!(breaker.attempt(&policy, OK, at(30)), None);
    let change = breaker.attempt(&policy, BAD, at(40)).unwrap();
    assert_eq!((change.to, change.reason), (State::Open, TransitionReason::ProbeFailed));
    assert_eq!(breaker.check(&policy, at(69)).unwrap_err().retry_at, Some(at(70)));
    // A successful probe from before does not count for the next cycle.
    assert_eq!(breaker.attempt(&policy, OK, at(70)), None);
    assert!(breaker.attempt(&policy, OK, at(71)).is_some());
}

// ---- reasons to open --------------------------------------------------------------------------------

#[test]
fn half_of_the_last_twenty_open_it_once_there_are_ten() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    for _ in 0..4 {
        assert!(
            breaker.attempt(&policy, OK, at(0)).is_none() && breaker.attempt(&policy, BAD, at(0)).is_none()
        );
    }
    assert_eq!(breaker.attempt(&policy, OK, at(0)), None, "nine say nothing");
    assert_eq!(breaker.attempt(&policy, BAD, at(0)).unwrap().reason, TransitionReason::Rate);
}

#[test]
fn a_long_good_past_does_not_delay_opening() {
    let policy = BreakerPolicy { consecutive: None, ..measured() };
    let mut breaker = CircuitBreaker::default();
    for _ in 0..10_000 {
        breaker.attempt(&policy, OK, at(0));
    }
    let needed = 1 + (0..20).take_while(|_| breaker.attempt(&policy, BAD, at(0)).is_none()).count();
    assert_eq!(needed, 10);
}

#[test]
fn a_run_of_failures_must_lie_within_the_window() {
    let (policy, mut breaker) = (BreakerPolicy { rate: None, ..measured() }, CircuitBreaker::default());
    // One failure every 31 s: never five within 120 s, although there is no success between them.
    assert!((0..100).all(|turn| breaker.attempt(&policy, BAD, at(31 * turn)).is_none()));
    assert_eq!(breaker.counts().in_a_row, 4);
    // Every 30 s: the fifth is exactly at the edge, which is not older than the window.
    let mut breaker = CircuitBreaker::default();
    assert_eq!((0..5).filter(|turn| breaker.attempt(&policy, BAD, at(30 * turn)).is_some()).count(), 1);
}

#[test]
fn slow_answers_open_it_and_a_slow_probe_opens_it_again() {
    let rate = RateRule { threshold: Ratio::percent(50), last: count(4), at_least: count(4) };
    let slow = Some(SlowRule { slower_than: Duration::from_secs(10), rate });
    let policy = BreakerPolicy { slow, consecutive: None, rate: None, ..measured() };
    let sluggish = BreakerVerdict::Success { took: Duration::from_secs(11) };
    let just_in_time = BreakerVerdict::Success { took: Duration::from_secs(10) };
    let mut breaker = CircuitBreaker::default();
    for verdict in [sluggish, just_in_time, just_in_time] {
        assert_eq!(breaker.attempt(&policy, verdict, at(0)), None);
    }
    assert_eq!(breaker.attempt(&policy, sluggish, at(0)).unwrap().reason, TransitionReason::Slow);
    assert_eq!(breaker.attempt(&policy, sluggish, at(30)).unwrap().reason, TransitionReason::Slow);
    assert_eq!(breaker.attempt(&policy, OK, at(60)).unwrap().to, State::Closed);
}

#[test]
fn a_reload_that_changes_the_rules_takes_effect_at_once() {
    let (policy, mut breaker) = (measured(), CircuitBreaker::default());
    for _ in 0..3 {
        breaker.attempt(&policy, BAD, at(0));
    }
    let strict = BreakerPolicy { consecutive: Some(count(4)), rate: None, ..policy };
    assert_eq!(breaker.attempt(&strict, BAD, at(1)).unwrap().reason, TransitionReason::Consecutive);
    let patient = BreakerPolicy { cooldown: BreakerCooldown::constant(Duration::from_secs(90)), ..policy };
    assert_eq!(breaker.check(&patient, at(60)).unwrap_err().retry_at, Some(at(91)));
    let silent = BreakerPolicy { consecutive: None, rate: None, slow: None, ..policy };
    let mut breaker = CircuitBreaker::default();
    assert!((0..100).all(|_| breaker.attempt(&silent, BAD, at(0)).is_none()));
}

#[test]
fn rules_over_more_calls_than_are_recorded_still_apply() {
    let rate = RateRule { threshold: Ratio::percent(100), last: count(u32::MAX), at_least: count(u32::MAX) };
    let policy = BreakerPolicy { consecutive: None, rate: Some(rate), ..measured() };
    let mut breaker = CircuitBreaker::default();
    assert!((1..RateRule::MOST).all(|_| breaker.attempt(&policy, BAD, at(0)).is_none()));
    assert_eq!(breaker.attempt(&policy, BAD, at(0)).unwrap().reason, TransitionReason::Rate);
    // Tools that never fail do not reach a share of zero.
    let rate = RateRule { threshold: Ratio::percent(0), last: count(5), at_least: count(1) };
    let policy = BreakerPolicy { consecutive: None, rate: Some(rate), ..measured() };
    let mut breaker = CircuitBreaker::default();
    assert!((0..20).all(|_| breaker.attempt(&policy, OK, at(0)).is_none()));
}

// ---- probes -----------------------------------------------------------------------------------------

#[test]
fn five_answered_neutral_probes_in_a_row_close_it() {
    let policy = standard(ToolClass::Unknown);
    let mut breaker = in_state(State::HalfOpen);
    for _ in 0..4 {
        assert_eq!(breaker.attempt(&policy, BreakerVerdict::Neutral, at(31)), None);
    }
    // Cancelled probes were not answered. A success restarts the row.
    for _ in 0..10 {
        let (ticket, _) = breaker.admit(&policy, at(31)).unwrap();
        breaker.release(ticket);
    }
    assert_eq!(breaker.attempt(&policy, OK, at(31)), None);
    for _ in 0..4 {
        assert_eq!(breaker.attempt(&policy, BreakerVerdict::Neutral, at(31)), None);
    }
    let mut by_answers = breaker.clone();
    assert_eq!(
        by_answers.attempt(&policy, BreakerVerdict::Neutral, at(31)).unwrap().reason,
        TransitionReason::ProbesAnswered
    );
    // Neutral results do not interrupt the row of successes.
    assert_eq!(breaker.attempt(&policy, OK, at(31)).unwrap().reason, TransitionReason::ProbesSucceeded);
}

#[test]
fn a_silent_probe_loses_its_slot_and_its_late_result_is_ignored() {
    let policy = measured();
    let mut breaker = in_state(State::HalfOpen);
    let (silent, _) = breaker.admit(&policy, at(31)).unwrap();
    assert_eq!(breaker.check(&policy, at(150)).unwrap_err().retry_at, Some(at(151)));
    let (second, _) = breaker.admit(&policy, at(151)).unwrap();
    for verdict in [BAD, OK] {
        let again = BreakerTicket { epoch: silent.epoch, probe: silent.probe };
        assert_eq!(breaker.record(&policy, again, verdict, at(152)), None);
        assert_eq!(
            breaker.check(&policy, at(152)).unwrap_err().state,
            State::HalfOpen,
            "the second is still out"
        );
    }
    breaker.release(silent);
    assert!(breaker.check(&policy, at(152)).is_err(), "a lapsed ticket frees nobody else's place");
    assert_eq!(breaker.record(&policy, second, OK, at(153)).unwrap().to, State::Closed);
}

#[test]
fn a_ticket_ends_with_its_lease_even_if_the_slot_is_free() {
    let policy = measured();
    let mut breaker = in_state(State::HalfOpen);
    let (late, _) = breaker.admit(&policy, at(31)).unwrap();
    assert_eq!(breaker.record(&policy, late, OK, at(151)), None);
    assert_eq!(breaker.state(&policy, at(151)), State::HalfOpen);
    assert!(breaker.check(&policy, at(151)).is_ok());
}

#[test]
fn a_long_probe_that_is_renewed_keeps_its_slot() {
    let policy = measured();
    let mut breaker = in_state(State::HalfOpen);
    let (long, _) = breaker.admit(&policy, at(31)).unwrap();
    for second in [100, 200, 300] {
        assert_ne!(breaker.renew(&policy, &long, at(second)), TicketRenewal::Lost);
        assert!(breaker.check(&policy, at(second + 50)).is_err());
    }
    assert_eq!(breaker.renew(&policy, &long, at(500)), TicketRenewal::Lost, "too late");
    let (other, _) = breaker.admit(&policy, at(500)).unwrap();
    assert_eq!(breaker.renew(&policy, &long, at(501)), TicketRenewal::Lost, "not its place any more");
    assert!(
        breaker.record(&policy, long, OK, at(501)).is_none()
            && breaker.record(&policy, other, OK, at(502)).is_some()
    );
}

#[test]
fn a_growing_cooldown_stops_at_its_cap_and_restarts_after_closing() {
    let cooldown = BreakerCooldown {
        first: Duration::from_secs(10),
        growth: GrowthFactor::TWO,
        cap: Duration::from_secs(60),
    };
    let policy = BreakerPolicy { cooldown, ..measured() };
    let mut breaker = in_state(State::Open);
    let mut now = at(0);
    for seconds in [10, 20, 40, 60, 60] {
        let until = breaker.check(&policy, now).unwrap_err().retry_at.unwrap();
        assert_eq!(until.since(now), Duration::from_secs(seconds));
        now = until;
        breaker.attempt(&policy, BAD, now);
    }
    now = now + Duration::from_secs(60);
    assert_eq!(breaker.attempt(&policy, OK, now).unwrap().to, State::Closed);
    for _ in 0..5 {
        breaker.attempt(&policy, BAD, now);
    }
    assert_eq!(breaker.check(&policy, now).unwrap_err().retry_at, Some(now + Duration::from_secs(10)));
    let endless =
        BreakerCooldown { growth: GrowthFactor::new(1000.0).unwrap(), cap: Duration::MAX, ..cooldown };
    assert_eq!(super::cooldown(&endless, u32::MAX), Duration::MAX);
    let nothing = BreakerCooldown { first: Duration::ZERO, ..endless };
    assert_eq!(super::cooldown(&nothing, u32::MAX), Duration::ZERO);
}

// ---- clocks -----------------------------------------------------------------------------------------

#[test]
fn a_clock_that_steps_back_costs_at_most_one_more_cooldown() {
    let policy = measured();
    let mut breaker = CircuitBreaker::default();
    for _ in 0..5 {
        breaker.attempt(&policy, BAD, at(1_000_000));
    }
    assert_eq!(breaker.admit(&policy, at(100)).unwrap_err().retry_at, Some(at(130)));
    let (probe, _) = breaker.admit(&policy, at(130)).unwrap();
    assert!(breaker.admit(&policy, at(50)).is_err(), "still one probe");
    let (second, _) = breaker.admit(&policy, at(170)).unwrap();
    assert_eq!(breaker.record(&policy, probe, OK, at(171)), None);
    assert!(breaker.record(&policy, second, OK, at(171)).is_some());
}

#[test]
fn a_clock_that_jumps_ahead_drops_old_outcomes() {
    let policy = measured();
    let mut breaker = CircuitBreaker::default();
    for _ in 0..4 {
        breaker.attempt(&policy, BAD, at(0));
    }
    assert_eq!(breaker.attempt(&policy, BAD, Timestamp::MAX), None);
    assert_eq!(breaker.counts().in_a_row, 1);
    let mut breaker = in_state(State::Open);
    assert!(breaker.admit(&policy, Timestamp::MAX).unwrap().0.is_probe());
}

// ---- by an operator and by configuration -------------------------------------------------------------

#[test]
fn a_breaker_forced_open_by_configuration_stays_open_and_counts_nothing() {
    let policy = measured();
    let forced = BreakerPolicy { forced_open: true, ..policy };
    let mut breaker = in_state(State::HalfOpen);
    let (probe, _) = breaker.admit(&policy, at(31)).unwrap();
    assert_eq!(breaker.record(&forced, probe, BAD, at(32)), None);
    breaker.reset(at(33));
    assert_eq!(
        breaker.check(&forced, at(33)).unwrap_err(),
        BreakerRefusal { state: State::ForcedOpen, retry_at: None, by: BreakerRefusalCause::Configuration }
    );
    assert_eq!(breaker.check(&policy, at(33)), Ok(()), "lifted, the reset shows");
}

#[test]
fn a_breaker_forced_open_stays_open_until_its_time_and_then_probes_once() {
    let policy = measured();
    for state in STATES {
        let mut breaker = in_state(state);
        breaker.force_open(Some(at(600)), at(40));
        let refused = BreakerRefusal {
            state: State::ForcedOpen,
            retry_at: Some(at(600)),
            by: BreakerRefusalCause::Operator,
        };
        assert_eq!(breaker.admit(&policy, at(599)).unwrap_err(), refused, "{state:?}");
        assert_eq!(breaker.state(&policy, at(600)), State::HalfOpen);
        let (probe, change) = breaker.admit(&policy, at(600)).unwrap();
        assert_eq!(change.map(|change| (change.from, change.to)), Some((State::ForcedOpen, State::HalfOpen)));
        assert!(probe.is_probe());
        assert_eq!(breaker.admit(&policy, at(600)).unwrap_err().state, State::HalfOpen);
        assert_eq!(breaker.record(&policy, probe, OK, at(601)).unwrap().to, State::Closed);
    }
}

#[test]
fn an_operator_may_change_how_long_it_is_forced_open() {
    let policy = measured();
    let mut breaker = CircuitBreaker::default();
    breaker.force_open(Some(at(60)), at(0));
    assert_eq!(breaker.force_open(Some(at(60)), at(1)), None, "nothing changes");
    assert!(breaker.force_open(None, at(2)).is_some());
    assert_eq!(breaker.check(&policy, at(1_000_000)).unwrap_err().retry_at, None);
    assert!(breaker.force_open(Some(at(90)), at(3)).is_some());
    assert_eq!(breaker.check(&policy, at(90)), Ok(()));
}

#[test]
fn its_last_changes_are_recorded_bounded_and_part_of_the_snapshot() {
    let policy = measured();
    let mut breaker = in_state(State::Open);
    for round in 0..40 {
        breaker.force_open(None, at(50 + round));
        breaker.reset(at(50 + round));
    }
    let changes = breaker.view(&policy, at(200)).changes;
    assert_eq!(changes.len(), MOST_CHANGES);
    assert_eq!(
        changes.last().map(|last| (last.to, last.reason)),
        Some((State::Closed, TransitionReason::Reset))
    );
    assert!(changes.is_sorted_by_key(|change| change.at));
    let stored: BreakerSnapshot =
        serde_json::from_str(&serde_json::to_string(&breaker.snapshot()).unwrap()).unwrap();
    assert_eq!(CircuitBreaker::restore(&stored, at(200)).view(&policy, at(200)).changes, changes);
    let mut elsewhere = in_state(State::HalfOpen);
    elsewhere.adopt(&stored, at(200));
    assert_eq!(elsewhere.view(&policy, at(200)).changes, changes);
}

#[test]
fn a_view_shows_why_it_opened_and_when_the_next_probe_is_due() {
    let policy = measured();
    let mut breaker = CircuitBreaker::default();
    let tickets: Vec<_> = (0..3).map(|_| breaker.admit(&policy, at(0)).unwrap().0).collect();
    for (ticket, verdict) in tickets.into_iter().zip([OK, BAD, BAD]) {
        breaker.record(&policy, ticket, verdict, at(0));
    }
    let closed = breaker.view(&policy, at(1));
    assert_eq!((closed.state, closed.successes, closed.failures, closed.in_a_row), (State::Closed, 1, 2, 2));
    assert_eq!((closed.opened_by, closed.next_probe_at, closed.since), (None, None, None));

    let mut breaker = in_state(State::Open);
    assert_eq!(breaker.view(&policy, at(1)).next_probe_at, Some(at(30)));
    let (probe, _) = breaker.admit(&policy, at(30)).unwrap();
    assert!(breaker.view(&policy, at(30)).probing);
    breaker.record(&policy, probe, BAD, at(31));
    let again = breaker.view(&policy, at(32));
    assert_eq!(
        (again.state, again.since, again.reason),
        (State::Open, Some(at(31)), Some(TransitionReason::ProbeFailed))
    );
    assert_eq!(again.opened_by, Some(TransitionReason::Consecutive), "what stands behind the probe");
    assert_eq!((again.forced, again.policy.consecutive), (None, Some(5)));

    breaker.force_open(Some(at(90)), at(40));
    let forced = breaker.view(&policy, at(41));
    assert_eq!((forced.opened_by, forced.next_probe_at), (Some(TransitionReason::Forced), Some(at(90))));
    assert_eq!(forced.forced, Some(ForcedOpenCause::Hand { until: Some(at(90)) }));
    let by_policy = BreakerPolicy { forced_open: true, ..policy };
    assert_eq!(breaker.view(&by_policy, at(41)).forced, Some(ForcedOpenCause::Configuration));
}

#[test]
fn reset_of_a_closed_breaker_also_ignores_attempts_in_flight() {
    let policy = measured();
    let mut breaker = CircuitBreaker::default();
    let under_way: Vec<_> = (0..5).map(|_| breaker.admit(&policy, at(0)).unwrap().0).collect();
    assert_eq!(breaker.reset(at(1)), None);
    for ticket in under_way {
        breaker.record(&policy, ticket, BAD, at(2));
    }
    assert_eq!((breaker.state(&policy, at(2)), breaker.counts()), (State::Closed, BreakerCounts::default()));
}

#[test]
fn a_later_change_by_an_operator_overrides_an_earlier_unknown_one() {
    let (mut remembers, mut newcomer) = (CircuitBreaker::default(), CircuitBreaker::default());
    remembers.force_open(None, at(0));
    remembers.reset(at(1));
    newcomer.force_open(None, at(300));
    assert!(newcomer.snapshot().replaces(&remembers.snapshot()));
    assert!(!remembers.snapshot().replaces(&newcomer.snapshot()));
}

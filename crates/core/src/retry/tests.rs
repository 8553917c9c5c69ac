use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::policy::{GrowthFactor, PolicyProfile, Ratio, ToolClass};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn retry_of(profile: PolicyProfile) -> RetryPolicy {
    profile.policy(ToolClass::Unknown).retry
}

fn schedule(policy: &RetryPolicy, seed: u64) -> RetrySchedule {
    RetrySchedule::new(policy, &CallerLimits::default(), None, seed, at(0))
}

/// Returns the times at which attempts start if each fails after `took`, and the reason for the end.
fn starts(policy: &RetryPolicy, mut schedule: RetrySchedule, took: u64) -> (Vec<u64>, RetryStop) {
    let mut starts = vec![0];
    loop {
        let started = at(*starts.last().unwrap());
        match schedule.next(policy, started, None, started + ms(took)) {
            Ok(start) => starts.push(start.as_millis()),
            Err(stop) => return (starts, stop),
        }
    }
}

fn waits(starts: &[u64]) -> Vec<u64> {
    starts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn eh_2_1_exponential_waits_are_right_from_start_to_start() {
    let policy = retry_of(PolicyProfile::Measured);
    for seed in 0..200 {
        // Each attempt takes a while, and delays are still counted from start to start.
        let (starts, stop) = starts(&policy, schedule(&policy, seed), 20);
        assert_eq!((starts.len(), stop), (5, RetryStop::Attempts));
        for (wait, expected) in waits(&starts).into_iter().zip([100, 200, 400, 800]) {
            assert!(
                wait.abs_diff(expected) <= expected / 10,
                "{wait} is not {expected} give or take a tenth"
            );
        }
        assert!(starts[4].abs_diff(1500) <= 150);
    }
}

#[test]
fn eh_2_2_jitter_is_applied_for_every_seed() {
    let policy = RetryPolicy {
        attempts: NonZeroU32::new(11).unwrap(),
        backoff: Backoff::Constant(ms(100)),
        total: None,
        ..retry_of(PolicyProfile::Measured)
    };
    for seed in 0..2000 {
        let mut waits = waits(&starts(&policy, schedule(&policy, seed), 0).0);
        assert_eq!(waits.len(), 10);
        assert!(waits.iter().all(|wait| (90..=110).contains(wait)), "{waits:?}");
        let sum: u64 = waits.iter().sum();
        assert!((950..=1050).contains(&sum), "the mean is 100 give or take 5: {waits:?}");
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() >= 8, "at least 80 % are different: {waits:?}");
    }
}

#[test]
fn eh_2_3_there_is_no_sixth_attempt() {
    let policy = RetryPolicy { total: None, ..retry_of(PolicyProfile::Measured) };
    let mut schedule = schedule(&policy, 1);
    for attempt in 2..=5 {
        assert!(schedule.next(&policy, at(0), None, at(0)).is_ok());
        assert_eq!(schedule.attempts(), attempt);
    }
    for _ in 0..3 {
        assert_eq!(schedule.next(&policy, at(0), None, at(0)), Err(RetryStop::Attempts));
    }
    assert_eq!(schedule.attempts(), 5);
}

#[test]
fn eh_2_4_total_time_stops_the_fifth_attempt() {
    let policy = retry_of(PolicyProfile::Measured);
    for seed in 0..50 {
        let (starts, stop) = starts(&policy, schedule(&policy, seed), 600);
        assert_eq!(starts, [0, 600, 1200, 1800]);
        assert_eq!(stop, RetryStop::TotalTime);
    }
}

#[test]
fn eh_2_5_settings_of_a_tool_are_heeded() {
    let policy = RetryPolicy {
        attempts: NonZeroU32::new(3).unwrap(),
        backoff: Backoff::Exponential { base: ms(50), factor: GrowthFactor::TWO, cap: ms(2000) },
        jitter: Jitter::None,
        ..retry_of(PolicyProfile::Measured)
    };
    assert_eq!(starts(&policy, schedule(&policy, 1), 0), (vec![0, 50, 150], RetryStop::Attempts));
}

#[test]
fn tr_5_two_failures_then_a_success_are_three_attempts() {
    let policy = retry_of(PolicyProfile::Standard);
    let mut schedule = schedule(&policy, 7);
    assert_eq!(schedule.attempts(), 1, "a call that succeeds at once makes one");
    let second = schedule.next(&policy, at(0), None, at(10)).unwrap();
    assert!((10..=210).contains(&second.as_millis()));
    let third = schedule.next(&policy, second, None, second + ms(10)).unwrap();
    assert!((10..=410).contains(&millis(third.since(second))));
    assert_eq!(schedule.attempts(), 3);
}

#[test]
fn tr_7_attempts_are_capped_and_waits_bounded() {
    let policy = retry_of(PolicyProfile::Standard);
    for seed in 0..200 {
        let (starts, stop) = starts(&policy, schedule(&policy, seed), 5);
        assert_eq!((starts.len(), stop), (4, RetryStop::Attempts));
        assert!(*starts.last().unwrap() <= 200 + 400 + 800 + 15);
    }
}

#[test]
fn full_jitter_uses_the_whole_range_and_differs_between_calls() {
    let policy = RetryPolicy { backoff: Backoff::Constant(ms(9)), ..retry_of(PolicyProfile::Standard) };
    let mut counts = [0_u32; 10];
    for seed in 0..2000 {
        let first = schedule(&policy, seed).next(&policy, at(0), None, at(0)).unwrap();
        counts[usize::try_from(first.as_millis()).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (140..=260).contains(count)), "about 200 each: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_waits() {
    let policy = retry_of(PolicyProfile::Standard);
    let with = |seed| starts(&policy, schedule(&policy, seed), 0).0;
    assert_eq!(with(42), with(42));
    assert_ne!(with(42), with(43));
    // Stored in audit records: the generator must not change unnoticed. First value of SplitMix64 from 0.
    assert_eq!(JitterSequence::new(0).0, 0xE220_A839_7B1D_CDAF);
    assert_eq!(with(42), [0, 149, 293, 1076]);
}

#[test]
fn a_list_repeats_its_last_wait() {
    let policy = RetryPolicy { attempts: NonZeroU32::new(6).unwrap(), ..retry_of(PolicyProfile::Stepped) };
    assert_eq!(waits(&starts(&policy, schedule(&policy, 1), 0).0), [100, 500, 2000, 2000, 2000]);
    let backoff = Backoff::List { first: ms(7), rest: Vec::new() };
    let policy = RetryPolicy { backoff, ..policy };
    assert_eq!(waits(&starts(&policy, schedule(&policy, 1), 3).0), [10; 5], "counted from the end of each");
}

#[test]
fn a_requested_delay_applies_if_it_is_longer() {
    let policy = RetryPolicy { jitter: Jitter::None, ..retry_of(PolicyProfile::Stepped) };
    for (requested, start) in [(0, 1100), (99, 1100), (101, 1101), (60_000, 61_000)] {
        let next = schedule(&policy, 1).next(&policy, at(400), Some(ms(requested)), at(1000));
        assert_eq!(next, Ok(at(start)));
    }
    let next = schedule(&policy, 1).next(&policy, at(400), Some(ms(60_001)), at(1000));
    assert_eq!(next, Err(RetryStop::RetryAfter(ms(60_001))));
    // Counted from the start, the delay of the policy may be over already. The delay requested by the upstream is not.
    let policy = RetryPolicy { counted_from: DelayOrigin::AttemptStart, ..policy };
    assert_eq!(schedule(&policy, 1).next(&policy, at(400), None, at(1000)), Ok(at(1000)));
    assert_eq!(schedule(&policy, 1).next(&policy, at(400), Some(ms(30)), at(1000)), Ok(at(1030)));
}

#[test]
fn limits_of_time_stop_the_start_of_an_attempt() {
    let policy = RetryPolicy {
        backoff: Backoff::Constant(ms(100)),
        jitter: Jitter::None,
        ..retry_of(PolicyProfile::Standard)
    };
    let caller = |deadline: u64| CallerLimits { deadline: Some(at(deadline)), ..CallerLimits::default() };
    let next = |caller: CallerLimits, last_retry, retry_after| {
        RetrySchedule::new(&policy, &caller, last_retry, 1, at(0)).next(&policy, at(0), retry_after, at(50))
    };
    assert_eq!(next(caller(151), None, None), Ok(at(150)));
    assert_eq!(next(caller(150), None, None), Err(RetryStop::Deadline), "no time would be left for it");
    assert_eq!(
        next(caller(1000), None, Some(ms(2000))),
        Err(RetryStop::Deadline),
        "what was asked for is past it"
    );
    assert_eq!(next(CallerLimits::default(), Some(ms(150)), None), Ok(at(150)));
    assert_eq!(next(CallerLimits::default(), Some(ms(149)), None), Err(RetryStop::TotalTime));
    assert_eq!(
        next(caller(100), Some(ms(140)), None),
        Err(RetryStop::Deadline),
        "the earlier limit is the reason"
    );
    assert_eq!(next(caller(140), Some(ms(100)), None), Err(RetryStop::TotalTime));
    let start_by = |moment| CallerLimits { start_by: Some(at(moment)), ..CallerLimits::default() };
    assert_eq!(next(start_by(151), None, None), Ok(at(150)));
    assert_eq!(
        next(start_by(150), None, None),
        Err(RetryStop::TotalTime),
        "it would start at that very moment"
    );
}

#[test]
fn a_caller_may_only_lower_the_limits_of_the_policy() {
    let policy = RetryPolicy {
        backoff: Backoff::Constant(ms(100)),
        jitter: Jitter::None,
        ..retry_of(PolicyProfile::Standard)
    };
    for (requested, most) in
        [(None, 4), (Some(0), 1), (Some(1), 1), (Some(3), 3), (Some(4), 4), (Some(u32::MAX), 4)]
    {
        let caller = CallerLimits { attempts: requested, ..CallerLimits::default() };
        let schedule = RetrySchedule::new(&policy, &caller, None, 1, at(0));
        assert_eq!(schedule.most(), most);
        assert_eq!(starts(&policy, schedule, 0).0.len(), most as usize);
    }
    for (requested, attempts) in [(ms(150), 2), (Duration::MAX, 4)] {
        let caller = CallerLimits { elapsed: Some(requested), ..CallerLimits::default() };
        assert_eq!(
            starts(&policy, RetrySchedule::new(&policy, &caller, None, 1, at(0)), 0).0.len(),
            attempts
        );
    }
}

#[test]
fn a_call_without_a_deadline_is_stopped_by_none_not_even_at_the_end_of_time() {
    let policy = RetryPolicy { total: None, ..retry_of(PolicyProfile::Measured) };
    let mut schedule = RetrySchedule::new(&policy, &CallerLimits::default(), None, 1, Timestamp::MAX);
    assert_eq!(schedule.next(&policy, Timestamp::MAX, None, Timestamp::MAX), Ok(Timestamp::MAX));
    assert_eq!(schedule.may_start(Timestamp::MAX), Ok(()));
}

#[test]
fn a_scheduled_attempt_may_start_up_to_its_limits() {
    let policy = RetryPolicy { total: Some(ms(500)), ..retry_of(PolicyProfile::Measured) };
    let limited = |deadline: Option<u64>| {
        let caller = CallerLimits { deadline: deadline.map(at), ..CallerLimits::default() };
        RetrySchedule::new(&policy, &caller, None, 1, at(0))
    };
    let total = limited(None);
    assert_eq!((total.may_start(at(500)), total.may_start(at(501))), (Ok(()), Err(RetryStop::TotalTime)));
    let deadline = limited(Some(300));
    assert_eq!(
        (deadline.may_start(at(299)), deadline.may_start(at(300))),
        (Ok(()), Err(RetryStop::Deadline))
    );
    // Of two limits at the same time the policy's own is named.
    let policy = RetryPolicy { backoff: Backoff::Constant(ms(600)), jitter: Jitter::None, ..policy };
    let mut both = limited(Some(500));
    assert_eq!(both.next(&policy, at(0), None, at(0)), Err(RetryStop::TotalTime));
}

#[test]
fn a_wait_of_nothing_stays_nothing_however_often_it_grows() {
    let factor = GrowthFactor::new(1000.0).unwrap();
    let backoff = Backoff::Exponential { base: Duration::ZERO, factor, cap: ms(2000) };
    for retry in [1, 2, 1000, u32::MAX] {
        assert_eq!(wait(&backoff, retry), Duration::ZERO, "{retry}");
    }
}

fn any_span() -> impl Strategy<Value = Duration> {
    prop_oneof![8 => (0_u64..5000).prop_map(ms), 1 => Just(Duration::MAX), 1 => any::<u64>().prop_map(ms)]
}

fn any_backoff() -> impl Strategy<Value = Backoff> {
    prop_oneof![
        (any_span(), 1.0_f64..=1000.0, any_span()).prop_map(|(base, factor, cap)| Backoff::Exponential {
            base,
            factor: GrowthFactor::new(factor).unwrap(),
            cap
        }),
        (any_span(), prop::collection::vec(any_span(), 0..4))
            .prop_map(|(first, rest)| Backoff::List { first, rest }),
        any_span().prop_map(Backoff::Constant),
    ]
}

fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::Full),
        Just(Jitter::None),
        (0.0_f64..=1.0).prop_map(|share| Jitter::Proportional(Ratio::new(share).unwrap())),
    ]
}

proptest! {
    #[test]
    fn a_wait_stays_within_its_cap_and_its_share(
        backoff in any_backoff(), jitter in any_jitter(), retry in 1_u32..=u32::MAX, seed: u64,
    ) {
        let plain = wait(&backoff, retry);
        if let Backoff::Exponential { cap, .. } = backoff {
            prop_assert!(plain <= cap);
        }
        let spread = millis(JitterSequence::new(seed).over(plain, jitter));
        let (plain_ms, exact) = (millis(plain), plain.as_secs_f64() * 1000.0);
        match jitter {
            Jitter::None => prop_assert_eq!(spread, plain_ms),
            Jitter::Full => prop_assert!(spread <= plain_ms),
            Jitter::Proportional(share) => {
                let off = spread.abs_diff(plain_ms) as f64;
                prop_assert!(off <= share.get() * exact * 1.000_001 + 1e-6, "{} off {}", off, plain_ms);
            }
        }
    }

    #[test]
    fn no_attempt_starts_too_late_or_too_often(
        backoff in any_backoff(),
        jitter in any_jitter(),
        attempts in 1_u32..8,
        caller in (prop::option::of(0_u32..10), prop::option::of(any_span()), prop::option::of(0_u64..20_000)),
        limits in (prop::option::of(any_span()), prop::option::of(any_span())),
        from_start: bool,
        failures in prop::collection::vec((0_u64..2000, prop::option::of(any_span())), 0..10),
        seed: u64,
    ) {
        let policy = RetryPolicy {
            attempts: NonZeroU32::new(attempts).unwrap(),
            backoff,
            jitter,
            total: limits.0,
            counted_from: if from_start { DelayOrigin::AttemptStart } else { DelayOrigin::AttemptEnd },
            ..retry_of(PolicyProfile::Standard)
        };
        let caller = CallerLimits { attempts: caller.0, elapsed: caller.1, attempt: None, deadline: caller.2.map(at), start_by: None };
        let first = at(1000);
        let mut schedule = RetrySchedule::new(&policy, &caller, limits.1, seed, first);
        let mut started = first;
        for (took, retry_after) in failures {
            let now = started + ms(took);
            match schedule.next(&policy, started, retry_after, now) {
                Ok(start) => {
                    prop_assert!(start >= now + retry_after.unwrap_or_default());
                    for limit in [limits.0, limits.1, caller.elapsed].into_iter().flatten() {
                        prop_assert!(start <= first + limit);
                    }
                    prop_assert!(caller.deadline.is_none_or(|deadline| start < deadline));
                    started = start;
                }
                Err(_) => prop_assert!(schedule.clone().next(&policy, started, Some(Duration::MAX), now).is_err()),
            }
            prop_assert!(schedule.attempts() <= attempts);
            prop_assert!(schedule.attempts() <= caller.attempts.map_or(attempts, |requested| requested.max(1)));
        }
    }
}

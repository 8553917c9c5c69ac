use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn budget(crashes: u32) -> RestartPolicy {
    RestartPolicy { crashes: NonZeroU32::new(crashes).unwrap(), ..RestartPolicy::default() }
}

const SINCE: Timestamp = Timestamp::from_millis(1_000);
const LATER: Timestamp = Timestamp::from_millis(5_000);
const BEFORE: Timestamp = Timestamp::from_millis(4_999);
const DOWN: DownPeriod = DownPeriod { until: LATER, reason: DownReason::CannotStart };

fn tracker_in(standing: ServerState) -> RestartTracker {
    RestartTracker { standing, ..RestartTracker::new(7) }
}

/// Every state of a server.
fn all() -> [ServerState; 5] {
    [
        ServerState::Idle,
        ServerState::Starting { since: SINCE },
        ServerState::Up { since: SINCE },
        ServerState::BackingOff { until: LATER },
        ServerState::Down(DOWN),
    ]
}

#[test]
fn every_state_answers_every_request() {
    let starting = ServerState::Starting { since: BEFORE };
    let answers = [
        (StartDecision::Start, starting),
        (StartDecision::WaitForStart, ServerState::Starting { since: SINCE }),
        (StartDecision::Use, ServerState::Up { since: SINCE }),
        (StartDecision::WaitUntil(LATER), ServerState::BackingOff { until: LATER }),
        (StartDecision::Refuse(DOWN), ServerState::Down(DOWN)),
    ];
    for (standing, (decision, after)) in all().into_iter().zip(answers) {
        let mut restarts = tracker_in(standing);
        assert_eq!((restarts.request_start(BEFORE), restarts.state()), (decision, after), "{standing:?}");
    }
    for standing in [ServerState::BackingOff { until: LATER }, ServerState::Down(DOWN)] {
        let mut restarts = tracker_in(standing);
        assert_eq!(restarts.request_start(LATER), StartDecision::Start, "{standing:?} is over");
        assert_eq!(restarts.request_start(LATER), StartDecision::WaitForStart, "one start for all who ask");
    }
}

#[test]
fn only_a_starting_server_becomes_ready() {
    for standing in all() {
        let mut restarts = tracker_in(standing);
        restarts.record_ready(LATER);
        let expected = match standing {
            ServerState::Starting { .. } => ServerState::Up { since: LATER },
            ServerState::Idle
            | ServerState::Up { .. }
            | ServerState::BackingOff { .. }
            | ServerState::Down(_) => standing,
        };
        assert_eq!(restarts.state(), expected);
    }
}

#[test]
fn every_state_handles_every_exit() {
    let policy = RestartPolicy { first_wait: Duration::ZERO, ..RestartPolicy::default() };
    let soon = ServerState::BackingOff { until: LATER };
    let down =
        ServerState::Down(DownPeriod { until: LATER + policy.window, reason: DownReason::CannotStart });
    // In the order of `all`.
    let table = [
        (ServerExit::Crashed, [all()[0], soon, soon, all()[3], all()[4]]),
        (ServerExit::CannotStart, [all()[0], down, down, all()[3], all()[4]]),
        (
            ServerExit::Stopped,
            [ServerState::Idle, ServerState::Idle, ServerState::Idle, ServerState::Idle, all()[4]],
        ),
    ];
    for (death, expected) in table {
        for (standing, expected) in all().into_iter().zip(expected) {
            let mut restarts = tracker_in(standing);
            assert_eq!(restarts.record_exit(&policy, death, LATER), expected, "{standing:?}, {death:?}");
            assert_eq!(restarts.state(), expected);
        }
    }
}

#[test]
fn a_reset_ends_backoffs_and_rests_and_does_not_stop_running_servers() {
    for standing in all() {
        let mut restarts = tracker_in(standing);
        restarts.reset();
        let expected = match standing {
            ServerState::BackingOff { .. } | ServerState::Down(_) => ServerState::Idle,
            ServerState::Idle | ServerState::Starting { .. } | ServerState::Up { .. } => standing,
        };
        assert_eq!(restarts.state(), expected);
    }
}

/// Starts the server whenever it may start, lets it crash at once, and returns the waits until it is down.
fn waits_until_down(
    restarts: &mut RestartTracker,
    policy: &RestartPolicy,
    mut now: Timestamp,
) -> (Vec<u64>, DownPeriod) {
    let mut waits = Vec::new();
    assert_eq!(restarts.request_start(now), StartDecision::Start);
    loop {
        match restarts.record_exit(policy, ServerExit::Crashed, now) {
            ServerState::BackingOff { until } => {
                waits.push(until.since(now).as_millis().try_into().unwrap());
                now = until;
                assert_eq!(restarts.request_start(now), StartDecision::Start);
            }
            ServerState::Down(down) => return (waits, down),
            other @ (ServerState::Idle | ServerState::Starting { .. } | ServerState::Up { .. }) => {
                panic!("{other:?}")
            }
        }
    }
}

#[test]
fn waits_double_between_half_and_whole_and_the_fifth_death_is_the_last() {
    let policy = RestartPolicy::default();
    let mut last_waits = Vec::new();
    for seed in 0..100 {
        let (waits, down) = waits_until_down(&mut RestartTracker::new(seed), &policy, at(0));
        assert_eq!(waits.len(), 4);
        for (wait, whole) in waits.iter().zip([100, 200, 400, 800]) {
            assert!((whole / 2..=whole).contains(wait), "{wait} of {whole}");
        }
        assert_eq!(down.reason, DownReason::Crashes { count: 5, within: policy.window });
        assert_eq!(down.until, at(waits.iter().sum()) + policy.window);
        last_waits.push(waits[3]);
    }
    last_waits.sort_unstable();
    last_waits.dedup();
    assert!(last_waits.len() > 50, "seeds spread the waits");
}

#[test]
fn no_wait_is_longer_than_the_longest() {
    let (waits, _) = waits_until_down(&mut RestartTracker::new(1), &budget(12), at(0));
    assert!(waits.iter().all(|wait| *wait <= 10_000) && waits[10] >= 5_000, "{waits:?}");
}

#[test]
fn a_trial_that_dies_rests_twice_as_long_up_to_a_limit() {
    let policy = RestartPolicy::default();
    let mut restarts = RestartTracker::new(3);
    let (_, mut down) = waits_until_down(&mut restarts, &policy, at(0));
    for minutes in [2, 4, 8, 15, 15, 15] {
        let now = down.until;
        assert_eq!(
            restarts.request_start(Timestamp::from_millis(now.as_millis() - 1)),
            StartDecision::Refuse(down)
        );
        let (waits, next) = waits_until_down(&mut restarts, &policy, now);
        assert_eq!((waits.len(), next.reason), (0, DownReason::Relapse));
        assert_eq!(next.until, now + Duration::from_secs(minutes * 60));
        down = next;
    }
}

#[test]
fn a_healthy_period_resets_the_backoff_and_no_crash_in_the_window() {
    let policy = RestartPolicy { well_after: Duration::from_secs(5), ..budget(3) };
    let mut restarts = RestartTracker::new(3);
    let mut now = at(0);
    for death in 1..=2 {
        let _ = restarts.request_start(now);
        restarts.record_ready(now);
        now = now + policy.well_after;
        let ServerState::BackingOff { until } = restarts.record_exit(&policy, ServerExit::Crashed, now)
        else {
            panic!("death {death} is within the budget");
        };
        assert!(until.since(now) <= policy.first_wait);
        now = until;
    }
    let _ = restarts.request_start(now);
    restarts.record_ready(now);
    let after = restarts.record_exit(&policy, ServerExit::Crashed, now + policy.well_after);
    assert!(matches!(after, ServerState::Down(_)), "the third death in a minute: {after:?}");
}

#[test]
fn a_trial_that_was_well_ends_the_trial() {
    let policy = RestartPolicy::default();
    let mut restarts = RestartTracker::new(3);
    let (_, down) = waits_until_down(&mut restarts, &policy, at(0));
    assert_eq!(restarts.request_start(down.until), StartDecision::Start);
    restarts.record_ready(down.until);
    let now = down.until + policy.well_after;
    let after = restarts.record_exit(&policy, ServerExit::Crashed, now);
    let ServerState::BackingOff { until } = after else { panic!("{after:?}") };
    assert!(until.since(now) <= policy.first_wait);
}

#[test]
fn a_reset_gives_the_whole_budget_again() {
    let policy = RestartPolicy::default();
    let mut restarts = RestartTracker::new(3);
    let (first, down) = waits_until_down(&mut restarts, &policy, at(0));
    restarts.reset();
    let (second, again) = waits_until_down(&mut restarts, &policy, at(10_000));
    assert_eq!((first.len(), second.len()), (4, 4));
    assert_eq!(again.reason, down.reason);
}

#[test]
fn deaths_that_are_far_apart_never_take_it_down() {
    let (policy, mut restarts, mut now) = (RestartPolicy::default(), RestartTracker::new(3), at(0));
    for _ in 0..50 {
        assert_eq!(restarts.request_start(now), StartDecision::Start);
        assert!(matches!(
            restarts.record_exit(&policy, ServerExit::Crashed, now),
            ServerState::BackingOff { .. }
        ));
        now = now + Duration::from_secs(16);
    }
}

#[test]
fn a_server_that_is_down_has_a_reason_an_end_time_and_advice() {
    let down = |because| DownPeriod { until: at(60_000), reason: because }.to_string();
    let rest = "; the first call after 1970-01-01T00:01:00.000Z starts it again, or a reset at once";
    let crashes = DownReason::Crashes { count: 5, within: Duration::from_secs(60) };
    assert_eq!(down(crashes), format!("it crashed 5 times within 60s{rest}"));
    assert_eq!(down(DownReason::Relapse), format!("it crashed again after a pause{rest}"));
    assert_eq!(down(DownReason::CannotStart), format!("it could not be started{rest}"));
}

#[test]
fn numbers_that_make_no_sense_do_no_harm() {
    let endless = RestartPolicy {
        crashes: NonZeroU32::MAX,
        window: Duration::MAX,
        first_wait: Duration::MAX,
        longest_wait: Duration::MAX,
        well_after: Duration::ZERO,
        longest_rest: Duration::ZERO,
    };
    let mut restarts = RestartTracker::new(0);
    assert_eq!(restarts.request_start(at(0)), StartDecision::Start);
    assert!(matches!(
        restarts.record_exit(&endless, ServerExit::Crashed, at(0)),
        ServerState::BackingOff { .. }
    ));
    let now = Timestamp::MAX;
    for _ in 0..2 * MAX_CRASHES {
        let _ = restarts.request_start(now);
        let _ = restarts.record_exit(&endless, ServerExit::Crashed, now);
        assert!(restarts.crashes.len() < usize::try_from(MAX_CRASHES).unwrap());
    }
}

/// An event of a server. The time since the last event comes with it.
#[derive(Clone, Copy, Debug)]
enum RestartTestEvent {
    StartRequested,
    Ready,
    Died(ServerExit),
}

fn happens() -> impl Strategy<Value = (RestartTestEvent, u64)> {
    let event = prop_oneof![
        4 => Just(RestartTestEvent::StartRequested),
        2 => Just(RestartTestEvent::Ready),
        4 => Just(RestartTestEvent::Died(ServerExit::Crashed)),
        1 => Just(RestartTestEvent::Died(ServerExit::CannotStart)),
    ];
    (event, prop_oneof![4 => 0_u64..300, 1 => 0_u64..20_000, 1 => 0_u64..200_000])
}

proptest! {
    #[test]
    fn no_window_has_more_starts_than_the_budget_and_no_wait_exceeds_the_longest(
        crashes in 1_u32..7,
        well_after in 0_u64..90_000,
        seed: u64,
        events in prop::collection::vec(happens(), 1..300),
    ) {
        let policy = RestartPolicy { well_after: Duration::from_millis(well_after), ..budget(crashes) };
        let (mut restarts, mut now, mut starts) = (RestartTracker::new(seed), at(0), Vec::new());
        for (event, gap) in events {
            now = now + Duration::from_millis(gap);
            match event {
                RestartTestEvent::StartRequested => if restarts.request_start(now) == StartDecision::Start {
                    starts.push(now);
                },
                RestartTestEvent::Ready => restarts.record_ready(now),
                RestartTestEvent::Died(death) => match restarts.record_exit(&policy, death, now) {
                    ServerState::BackingOff { until } => prop_assert!(until.since(now) <= policy.longest_wait),
                    ServerState::Down(down) => prop_assert!(down.until.since(now) <= policy.longest_rest),
                    ServerState::Idle | ServerState::Starting { .. } | ServerState::Up { .. } => {}
                },
            }
            prop_assert!(restarts.crashes.len() < usize::try_from(crashes).unwrap());
        }
        for (index, from) in starts.iter().enumerate() {
            let within = starts[index..].iter().filter(|start| start.since(*from) < policy.window).count();
            prop_assert!(within <= usize::try_from(crashes).unwrap(), "{within} starts in a window of {crashes}");
        }
    }
}

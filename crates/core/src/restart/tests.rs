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
const DOWN: Down = Down { until: LATER, because: Because::CannotStart };

fn standing_as(standing: Standing) -> Restarts {
    Restarts { standing, ..Restarts::new(7) }
}

/// Every state of a server.
fn all() -> [Standing; 5] {
    [
        Standing::Idle,
        Standing::Starting { since: SINCE },
        Standing::Up { since: SINCE },
        Standing::BackingOff { until: LATER },
        Standing::Down(DOWN),
    ]
}

#[test]
fn every_state_answers_every_request() {
    let starting = Standing::Starting { since: BEFORE };
    let answers = [
        (Decision::Start, starting),
        (Decision::WaitForStart, Standing::Starting { since: SINCE }),
        (Decision::Use, Standing::Up { since: SINCE }),
        (Decision::WaitUntil(LATER), Standing::BackingOff { until: LATER }),
        (Decision::Refuse(DOWN), Standing::Down(DOWN)),
    ];
    for (standing, (decision, after)) in all().into_iter().zip(answers) {
        let mut restarts = standing_as(standing);
        assert_eq!((restarts.asked(BEFORE), restarts.standing()), (decision, after), "{standing:?}");
    }
    for standing in [Standing::BackingOff { until: LATER }, Standing::Down(DOWN)] {
        let mut restarts = standing_as(standing);
        assert_eq!(restarts.asked(LATER), Decision::Start, "{standing:?} is over");
        assert_eq!(restarts.asked(LATER), Decision::WaitForStart, "one start for all who ask");
    }
}

#[test]
fn only_what_is_on_its_way_becomes_ready() {
    for standing in all() {
        let mut restarts = standing_as(standing);
        restarts.ready(LATER);
        let wanted = match standing {
            Standing::Starting { .. } => Standing::Up { since: LATER },
            Standing::Idle | Standing::Up { .. } | Standing::BackingOff { .. } | Standing::Down(_) => {
                standing
            }
        };
        assert_eq!(restarts.standing(), wanted);
    }
}

#[test]
fn every_standing_takes_every_death() {
    let policy = RestartPolicy { first_wait: Duration::ZERO, ..RestartPolicy::default() };
    let soon = Standing::BackingOff { until: LATER };
    let down = Standing::Down(Down { until: LATER + policy.window, because: Because::CannotStart });
    // In the order of `all`.
    let table = [
        (Death::Crashed, [all()[0], soon, soon, all()[3], all()[4]]),
        (Death::CannotStart, [all()[0], down, down, all()[3], all()[4]]),
        (Death::Stopped, [Standing::Idle, Standing::Idle, Standing::Idle, Standing::Idle, all()[4]]),
    ];
    for (death, wanted) in table {
        for (standing, wanted) in all().into_iter().zip(wanted) {
            let mut restarts = standing_as(standing);
            assert_eq!(restarts.died(&policy, death, LATER), wanted, "{standing:?}, {death:?}");
            assert_eq!(restarts.standing(), wanted);
        }
    }
}

#[test]
fn a_reset_ends_waits_and_rests_and_leaves_what_runs() {
    for standing in all() {
        let mut restarts = standing_as(standing);
        restarts.reset();
        let wanted = match standing {
            Standing::BackingOff { .. } | Standing::Down(_) => Standing::Idle,
            Standing::Idle | Standing::Starting { .. } | Standing::Up { .. } => standing,
        };
        assert_eq!(restarts.standing(), wanted);
    }
}

/// Starts the server whenever it may start, lets it crash at once, and returns the waits until it is down.
fn waits_until_down(restarts: &mut Restarts, policy: &RestartPolicy, mut now: Timestamp) -> (Vec<u64>, Down) {
    let mut waits = Vec::new();
    assert_eq!(restarts.asked(now), Decision::Start);
    loop {
        match restarts.died(policy, Death::Crashed, now) {
            Standing::BackingOff { until } => {
                waits.push(until.since(now).as_millis().try_into().unwrap());
                now = until;
                assert_eq!(restarts.asked(now), Decision::Start);
            }
            Standing::Down(down) => return (waits, down),
            other @ (Standing::Idle | Standing::Starting { .. } | Standing::Up { .. }) => panic!("{other:?}"),
        }
    }
}

#[test]
fn waits_double_between_half_and_whole_and_the_fifth_death_is_the_last() {
    let policy = RestartPolicy::default();
    let mut seen = Vec::new();
    for seed in 0..100 {
        let (waits, down) = waits_until_down(&mut Restarts::new(seed), &policy, at(0));
        assert_eq!(waits.len(), 4);
        for (wait, whole) in waits.iter().zip([100, 200, 400, 800]) {
            assert!((whole / 2..=whole).contains(wait), "{wait} of {whole}");
        }
        assert_eq!(down.because, Because::Crashes { count: 5, within: policy.window });
        assert_eq!(down.until, at(waits.iter().sum()) + policy.window);
        seen.push(waits[3]);
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 50, "seeds spread the waits");
}

#[test]
fn no_wait_is_longer_than_the_longest() {
    let (waits, _) = waits_until_down(&mut Restarts::new(1), &budget(12), at(0));
    assert!(waits.iter().all(|wait| *wait <= 10_000) && waits[10] >= 5_000, "{waits:?}");
}

#[test]
fn a_trial_that_dies_rests_twice_as_long_up_to_a_limit() {
    let policy = RestartPolicy::default();
    let mut restarts = Restarts::new(3);
    let (_, mut down) = waits_until_down(&mut restarts, &policy, at(0));
    for minutes in [2, 4, 8, 15, 15, 15] {
        let now = down.until;
        assert_eq!(restarts.asked(Timestamp::from_millis(now.as_millis() - 1)), Decision::Refuse(down));
        let (waits, next) = waits_until_down(&mut restarts, &policy, now);
        assert_eq!((waits.len(), next.because), (0, Because::Relapse));
        assert_eq!(next.until, now + Duration::from_secs(minutes * 60));
        down = next;
    }
}

#[test]
fn having_been_well_makes_the_waits_short_again_but_forgets_no_death_in_the_window() {
    let policy = RestartPolicy { well_after: Duration::from_secs(5), ..budget(3) };
    let mut restarts = Restarts::new(3);
    let mut now = at(0);
    for death in 1..=2 {
        let _ = restarts.asked(now);
        restarts.ready(now);
        now = now + policy.well_after;
        let Standing::BackingOff { until } = restarts.died(&policy, Death::Crashed, now) else {
            panic!("death {death} is within the budget");
        };
        assert!(until.since(now) <= policy.first_wait);
        now = until;
    }
    let _ = restarts.asked(now);
    restarts.ready(now);
    let after = restarts.died(&policy, Death::Crashed, now + policy.well_after);
    assert!(matches!(after, Standing::Down(_)), "the third death in a minute: {after:?}");
}

#[test]
fn a_trial_that_was_well_ends_the_trial() {
    let policy = RestartPolicy::default();
    let mut restarts = Restarts::new(3);
    let (_, down) = waits_until_down(&mut restarts, &policy, at(0));
    assert_eq!(restarts.asked(down.until), Decision::Start);
    restarts.ready(down.until);
    let now = down.until + policy.well_after;
    let after = restarts.died(&policy, Death::Crashed, now);
    let Standing::BackingOff { until } = after else { panic!("{after:?}") };
    assert!(until.since(now) <= policy.first_wait);
}

#[test]
fn a_reset_gives_the_whole_budget_again() {
    let policy = RestartPolicy::default();
    let mut restarts = Restarts::new(3);
    let (first, down) = waits_until_down(&mut restarts, &policy, at(0));
    restarts.reset();
    let (second, again) = waits_until_down(&mut restarts, &policy, at(10_000));
    assert_eq!((first.len(), second.len()), (4, 4));
    assert_eq!(again.because, down.because);
}

#[test]
fn deaths_that_are_far_apart_never_take_it_down() {
    let (policy, mut restarts, mut now) = (RestartPolicy::default(), Restarts::new(3), at(0));
    for _ in 0..50 {
        assert_eq!(restarts.asked(now), Decision::Start);
        assert!(matches!(restarts.died(&policy, Death::Crashed, now), Standing::BackingOff { .. }));
        now = now + Duration::from_secs(16);
    }
}

#[test]
fn a_server_that_is_down_says_why_until_when_and_what_to_do() {
    let down = |because| Down { until: at(60_000), because }.to_string();
    let rest = "; the first call after 1970-01-01T00:01:00.000Z starts it again, or a reset at once";
    let crashes = Because::Crashes { count: 5, within: Duration::from_secs(60) };
    assert_eq!(down(crashes), format!("it crashed 5 times within 60s{rest}"));
    assert_eq!(down(Because::Relapse), format!("it crashed again after a pause{rest}"));
    assert_eq!(down(Because::CannotStart), format!("it could not be started{rest}"));
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
    let mut restarts = Restarts::new(0);
    assert_eq!(restarts.asked(at(0)), Decision::Start);
    assert!(matches!(restarts.died(&endless, Death::Crashed, at(0)), Standing::BackingOff { .. }));
    let now = Timestamp::MAX;
    for _ in 0..2 * MAX_CRASHES {
        let _ = restarts.asked(now);
        let _ = restarts.died(&endless, Death::Crashed, now);
        assert!(restarts.crashes.len() < usize::try_from(MAX_CRASHES).unwrap());
    }
}

/// An event of a server. The time since the last event comes with it.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Asked,
    Ready,
    Died(Death),
}

fn happens() -> impl Strategy<Value = (Happens, u64)> {
    let what = prop_oneof![
        4 => Just(Happens::Asked),
        2 => Just(Happens::Ready),
        4 => Just(Happens::Died(Death::Crashed)),
        1 => Just(Happens::Died(Death::CannotStart)),
    ];
    (what, prop_oneof![4 => 0_u64..300, 1 => 0_u64..20_000, 1 => 0_u64..200_000])
}

proptest! {
    #[test]
    fn no_window_sees_more_starts_than_the_budget_and_no_wait_is_too_long(
        crashes in 1_u32..7,
        well_after in 0_u64..90_000,
        seed: u64,
        story in prop::collection::vec(happens(), 1..300),
    ) {
        let policy = RestartPolicy { well_after: Duration::from_millis(well_after), ..budget(crashes) };
        let (mut restarts, mut now, mut starts) = (Restarts::new(seed), at(0), Vec::new());
        for (what, gap) in story {
            now = now + Duration::from_millis(gap);
            match what {
                Happens::Asked => if restarts.asked(now) == Decision::Start {
                    starts.push(now);
                },
                Happens::Ready => restarts.ready(now),
                Happens::Died(death) => match restarts.died(&policy, death, now) {
                    Standing::BackingOff { until } => prop_assert!(until.since(now) <= policy.longest_wait),
                    Standing::Down(down) => prop_assert!(down.until.since(now) <= policy.longest_rest),
                    Standing::Idle | Standing::Starting { .. } | Standing::Up { .. } => {}
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

//! The amount of work of tests with repetitions.

use std::env;

/// The kind of run that a test is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestEffort {
    /// The whole test is repeated in many rounds, so each run does little.
    Stress {
        /// The number of the round, from 0.
        round: usize,
    },
    /// `cargo xtask test`.
    Normal,
    /// `cargo xtask test --long`.
    Long,
}

impl TestEffort {
    /// Returns the kind of run that `cargo xtask` set.
    pub fn of_this_run() -> Self {
        match (env::var("STRESS_TESTS"), env::var_os("LONG_TESTS")) {
            (Ok(round), _) => Self::Stress { round: round.parse().expect("STRESS_TESTS is a number") },
            (Err(_), Some(_)) => Self::Long,
            (Err(_), None) => Self::Normal,
        }
    }

    /// Returns the amount of work for this kind of run.
    pub fn pick<T>(self, stress: T, normal: T, long: T) -> T {
        match self {
            Self::Stress { .. } => stress,
            Self::Normal => normal,
            Self::Long => long,
        }
    }

    /// Returns the cases that a test goes through: all of them, or under stress one, which is another one in each round.
    /// Where there are more cases than rounds, each round has several.
    ///
    /// A test with two lists passes their pairs, unless the lengths have no common divisor. If it passed one list and
    /// then the other, both would advance together, and some pairs would never come up.
    pub fn cases<T>(self, all: Vec<T>) -> Vec<T> {
        let Self::Stress { round } = self else { return all };
        let shares = all.len().clamp(1, STRESS_ROUNDS);
        all.into_iter().skip(round % shares).step_by(shares).collect()
    }
}

/// The number of rounds after which every case has had its turn: that of `cargo xtask suite --stress`.
const STRESS_ROUNDS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_stress_each_round_has_one_case_and_all_rounds_have_all() {
        let all = vec!["a", "b", "c"];
        let of_round = |round| TestEffort::Stress { round }.cases(all.clone());
        assert_eq!([of_round(0), of_round(1), of_round(2), of_round(3)].concat(), ["a", "b", "c", "a"]);
        assert_eq!(TestEffort::Normal.cases(all.clone()), all);
        assert!(TestEffort::Stress { round: 7 }.cases(Vec::<u8>::new()).is_empty());
    }

    #[test]
    fn under_stress_more_cases_than_rounds_are_spread_over_all_rounds() {
        let all: Vec<usize> = (0..48).collect();
        let rounds: Vec<_> =
            (0..STRESS_ROUNDS).map(|round| TestEffort::Stress { round }.cases(all.clone())).collect();
        assert!(rounds.iter().all(|cases| (2..=3).contains(&cases.len())), "{rounds:?}");
        let mut covered = rounds.concat();
        covered.sort_unstable();
        assert_eq!(covered, all);
    }
}

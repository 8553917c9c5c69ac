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
    pub fn cases<T>(self, mut all: Vec<T>) -> Vec<T> {
        match self {
            Self::Stress { round } if !all.is_empty() => vec![all.swap_remove(round % all.len())],
            Self::Stress { .. } | Self::Normal | Self::Long => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_stress_each_round_has_one_case_and_all_rounds_have_all() {
        let all = vec!["a", "b", "c"];
        let of_round = |round| TestEffort::Stress { round }.cases(all.clone());
        assert_eq!([of_round(0), of_round(1), of_round(2), of_round(3)].concat(), ["a", "b", "c", "a"]);
        assert_eq!(TestEffort::Normal.cases(all.clone()), all);
    }
}

//! The amount of work of tests with repetitions.

use std::env;

/// The kind of run that a test is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestEffort {
    /// The whole test is repeated many times, so each run does little.
    Stress,
    /// `cargo xtask test`.
    Normal,
    /// `cargo xtask test --long`.
    Long,
}

impl TestEffort {
    /// Returns the kind of run that `cargo xtask` set.
    pub fn of_this_run() -> Self {
        match (env::var_os("STRESS_TESTS"), env::var_os("LONG_TESTS")) {
            (Some(_), _) => Self::Stress,
            (None, Some(_)) => Self::Long,
            (None, None) => Self::Normal,
        }
    }

    /// Returns the amount of work for this kind of run.
    pub fn pick<T>(self, stress: T, normal: T, long: T) -> T {
        match self {
            Self::Stress => stress,
            Self::Normal => normal,
            Self::Long => long,
        }
    }
}

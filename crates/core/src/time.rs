//! Time as the core sees it: a number that comes in, never a clock that is asked.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch. The caller never lets it go backwards within one process;
/// every subtraction saturates, so that a clock that does jump back cannot turn into a huge span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timestamp(u64);

impl Timestamp {
    /// The first moment there is; what a fresh simulation starts from.
    pub const ZERO: Self = Self(0);
    /// Later than anything; stands for "no limit" where two limits are compared.
    pub const MAX: Self = Self(u64::MAX);

    /// A moment given in milliseconds since the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this moment is; nothing if it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This moment moved back, stopping at the epoch.
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }
}

/// ISO 8601 in UTC with milliseconds, the form that traces and logs carry.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (year, month, day) = civil_date(seconds / 86_400);
        let of_day = seconds % 86_400;
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", self.0 % 1000)
    }
}

/// A span in whole milliseconds, saturating; the unit of everything on the wire.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Days since the epoch as year, month and day of the proleptic Gregorian calendar.
///
/// Eras of 400 years have a fixed number of days; within one, March-based years put the leap day
/// last, so that month lengths follow a straight line.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_print_as_iso_with_milliseconds() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_762_338_645_007, "2025-11-05T10:30:45.007Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let early = Timestamp::from_millis(5);
        assert_eq!(early.since(Timestamp::from_millis(9)), Duration::ZERO);
        assert_eq!(early.before(Duration::from_secs(1)), Timestamp::ZERO);
        assert_eq!(early + Duration::MAX, Timestamp::MAX);
    }
}

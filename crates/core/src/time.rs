//! Time in the core: an input, never read from a clock.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch. The caller never lets it go backwards within one process. Every subtraction
/// saturates, so a clock that does jump back cannot produce a huge duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch: the start of a fresh simulation.
    pub const ZERO: Self = Self(0);
    /// Later than any other timestamp. Stands for "no limit" when limits are compared.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the timestamp of a number of milliseconds since the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Parses ISO 8601: a date, `T` or a space, a time with or without a fraction, and an offset. A text without an
    /// offset is UTC. Fractions beyond milliseconds are cut off. Dates before the epoch are not valid.
    pub fn parse_iso(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let rest = rest.strip_prefix(['T', 't', ' '])?;
        let end = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
        let (time, offset) = rest.split_at_checked(end)?;
        let (time, fraction) = time.split_once(['.', ',']).unwrap_or((time, "0"));
        let [hour, minute, second] = if time.len() == 5 {
            numbers(&format!("{time}:00"), ':', [2, 2, 2])?
        } else {
            numbers(time, ':', [2, 2, 2])?
        };
        let days_of_month = match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        let fraction_ok = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
        if year < 1970
            || !(1..=days_of_month).contains(&day)
            || hour > 23
            || minute > 59
            || second > 60
            || !fraction_ok
        {
            return None;
        }
        let thousandths =
            fraction.bytes().chain(*b"000").take(3).fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        let seconds = seconds.checked_add_signed(-offset_seconds(offset)?)?;
        Some(Self(seconds * 1000 + thousandths))
    }

    /// Returns the milliseconds since the epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if this timestamp is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns the timestamp moved back, but not before the epoch.
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

/// Formats as ISO 8601 in UTC with milliseconds, the format of traces and logs.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (year, month, day) = civil_date(seconds / 86_400);
        let of_day = seconds % 86_400;
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", self.0 % 1000)
    }
}

/// Returns a duration in whole milliseconds, saturating: the unit on the wire.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Converts days since the epoch into year, month and day of the proleptic Gregorian calendar.
///
/// Eras of 400 years have a fixed number of days. Within one, years that start in March put the leap day last, so that
/// month lengths follow a straight line.
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

/// Inverse of [`civil_date`], for dates from the epoch on.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let year_of_era = year % 400;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    year / 400 * 146_097 + day_of_era - 719_468
}

/// Parses three numbers with exactly so many digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut found = [0; 3];
    for (number, digits) in found.iter_mut().zip(digits) {
        let part = parts.next()?;
        let sound = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = part.parse().ok().filter(|_| sound)?;
    }
    parts.next().is_none().then_some(found)
}

/// Parses an offset: `Z`, `+02:00`, `+0200`, `+02`, or an empty text.
fn offset_seconds(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes().first() {
        None | Some(b'Z' | b'z') if text.len() <= 1 => return Some(0),
        Some(b'+') => (1, text.get(1..)?),
        Some(b'-') => (-1, text.get(1..)?),
        _ => return None,
    };
    let (hours, minutes) = match digits.len() {
        2 => (digits, "00"),
        4 => digits.split_at_checked(2)?,
        5 => digits.split_once(':')?,
        _ => return None,
    };
    let [hours, minutes, _] = numbers(&format!("{hours}:{minutes}:00"), ':', [2, 2, 2])?;
    let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
    (hours <= 23 && minutes <= 59).then_some(sign * seconds)
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
    fn iso_texts_are_read_in_every_form_that_python_writes() {
        for (text, printed) in [
            ("2025-11-05T10:30:45.007Z", "2025-11-05T10:30:45.007Z"),
            ("2025-11-05T10:30:45.007123+00:00", "2025-11-05T10:30:45.007Z"),
            ("2025-11-05 10:30:45.5", "2025-11-05T10:30:45.500Z"),
            ("2025-11-05T10:30", "2025-11-05T10:30:00.000Z"),
            ("2024-02-29T00:00:00+02:00", "2024-02-28T22:00:00.000Z"),
            ("2025-12-31T23:30:00-0530", "2026-01-01T05:00:00.000Z"),
            ("2100-02-28T23:59:59.999Z", "2100-02-28T23:59:59.999Z"),
        ] {
            assert_eq!(
                Timestamp::parse_iso(text).map(|at| at.to_string()).as_deref(),
                Some(printed),
                "{text}"
            );
        }
        for text in [
            "",
            "yesterday",
            "2025-11-05",
            "2025-02-29T00:00:00",
            "2025-13-01T00:00:00",
            "2025-11-05T24:00:00",
            "2025-11-05T10:30:45.",
            "2025-11-05T10:30:45+1",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2025-11-05T10:30:45ZZ",
            "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}",
        ] {
            assert_eq!(Timestamp::parse_iso(text), None, "{text}");
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

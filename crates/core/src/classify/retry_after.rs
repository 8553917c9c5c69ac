//! The retry time that the other side asked for: `Retry-After` in its three spellings.

use std::time::{Duration, UNIX_EPOCH};

use super::RetryAfter;
use crate::{Timestamp, millis};

/// The longest retry delay. It only keeps arithmetic and responses within reason.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

impl RetryAfter {
    /// Parses the value of a `Retry-After` header: seconds (some servers send fractions) or an HTTP date.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim();
        if let Some(delay) = decimal(value, 1.0) {
            return Some(Self::Delay(delay));
        }
        let at = httpdate::parse_http_date(value).ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self::At(Timestamp::from_millis(millis(at))))
    }

    /// Parses the value of a `retry-after-ms` header.
    pub fn parse_ms(value: &str) -> Option<Self> {
        decimal(value.trim(), 0.001).map(Self::Delay)
    }

    /// Combines the two headers. The one in milliseconds is more exact.
    pub fn from_headers(retry_after: Option<&str>, retry_after_ms: Option<&str>) -> Option<Self> {
        retry_after_ms.and_then(Self::parse_ms).or_else(|| retry_after.and_then(Self::parse))
    }

    /// Returns the delay from now, or `None` if the time has passed.
    pub fn resolve(self, now: Timestamp) -> Option<Duration> {
        match self {
            Self::Delay(delay) => Some(delay.min(LONGEST)),
            Self::At(at) if at <= now => None,
            Self::At(at) => Some(at.since(now).min(LONGEST)),
        }
    }
}

/// Parses a plain decimal number of a unit. Signs, exponents and names like `inf` are not valid in these headers.
fn decimal(value: &str, unit_in_seconds: f64) -> Option<Duration> {
    let plain = value.starts_with(|first: char| first.is_ascii_digit())
        && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = plain.then(|| value.parse().ok()).flatten()?;
    Some(Duration::try_from_secs_f64(number * unit_in_seconds).unwrap_or(LONGEST).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_in_all_its_spellings() {
        let now = Timestamp::from_millis(1_445_412_470_000);
        let seconds = |number| Some(Duration::from_secs(number));
        for (header, ms, wait) in [
            (Some("120"), None, seconds(120)),
            (Some(" 0 "), None, seconds(0)),
            (Some("1.5"), None, Some(Duration::from_millis(1500))),
            (Some("Wed, 21 Oct 2015 07:28:00 GMT"), None, seconds(10)),
            (Some("Wednesday, 21-Oct-15 07:28:00 GMT"), None, seconds(10)),
            (Some("Wed Oct 21 07:28:00 2015"), None, seconds(10)),
            (Some("Wed, 21 Oct 2015 07:27:50 GMT"), None, None),
            (Some("Wed, 21 Oct 1015 07:27:50 GMT"), None, None),
            (Some("5"), Some("250"), Some(Duration::from_millis(250))),
            (Some("5"), Some("soon"), seconds(5)),
            (None, Some("1000"), seconds(1)),
            (Some("-5"), None, None),
            (Some("1e9"), None, None),
            (Some("inf"), None, None),
            (Some("1.2.3"), None, None),
            (Some(""), None, None),
            (Some("tomorrow"), None, None),
            (None, None, None),
        ] {
            let read = RetryAfter::from_headers(header, ms).and_then(|requested| requested.resolve(now));
            assert_eq!(read, wait, "{header:?} {ms:?}");
        }
    }

    #[test]
    fn an_absurd_wait_is_bounded() {
        let endless = "9".repeat(400);
        for requested in [
            RetryAfter::parse(&endless),
            RetryAfter::parse_ms(&endless),
            Some(RetryAfter::Delay(Duration::MAX)),
            Some(RetryAfter::At(Timestamp::MAX)),
        ] {
            assert_eq!(requested.and_then(|requested| requested.resolve(Timestamp::ZERO)), Some(LONGEST));
        }
    }
}

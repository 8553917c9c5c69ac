//! Timestamps in the form used by traces: the text that `Timestamp` prints, and back.

use serde::{Deserialize, Deserializer, Serializer};

use steadfast_core::Timestamp;

/// Writes a timestamp as ISO 8601 with milliseconds.
pub fn serialize<S: Serializer>(moment: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(moment)
}

/// Reads a timestamp in the same form.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| serde::de::Error::custom("expected a moment like 2025-11-05T10:30:45.007Z"))
}

/// Parses the text that `Timestamp` prints, and nothing else. The text is parsed, printed and compared, so that dates
/// like 31 June are refused.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = time.split_once('.')?;
    let mut clock = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let within = ((hour.checked_mul(60)?.checked_add(minute)?).checked_mul(60)?.checked_add(second)?)
        .checked_mul(1000)?
        .checked_add(fraction.parse().ok()?)?;
    let days = days_since_epoch(year, month, day)?;
    let moment = Timestamp::from_millis(days.checked_mul(86_400_000)?.checked_add(within)?);
    (moment.to_string() == text).then_some(moment)
}

/// Years that begin in March put the leap day last.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(1970..=1_000_000_000).contains(&year) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let march_month = (month + 9) % 12;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * march_month + 2) / 5 + day - 1;
    days.checked_sub(719_468)
}

/// The same for an optional timestamp.
pub mod option {
    use super::{Deserialize, Deserializer, Serializer, Timestamp, parse};

    /// Writes a timestamp, or null.
    pub fn serialize<S: Serializer>(moment: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match moment {
            Some(moment) => super::serialize(moment, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a timestamp, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        let text = <Option<std::borrow::Cow<'de, str>>>::deserialize(deserializer)?;
        text.map(|text| parse(&text).ok_or_else(|| serde::de::Error::custom("expected an ISO moment")))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_printed_form_of_a_timestamp_is_parsed() {
        for text in [
            "2025-02-29T00:00:00.000Z",
            "2025-06-31T00:00:00.000Z",
            "2025-11-05T24:00:00.000Z",
            "2025-11-05T10:60:00.000Z",
            "2025-11-05T10:30:45Z",
            "2025-11-05T10:30:45.7Z",
            "2025-11-05 10:30:45.007Z",
            "2025-11-05T10:30:45.007+00:00",
            "2025-11-05-01T10:30:45.007Z",
            "+2025-11-05T10:30:45.007Z",
            "1969-12-31T23:59:59.999Z",
            "0000-01-01T00:00:00.000Z",
            "99999999999999999999-01-01T00:00:00.000Z",
            "18446744073709551615-01-01T00:00:00.000Z",
            "2025-18446744073709551615-05T10:30:45.007Z",
            "2025-11-18446744073709551615T10:30:45.007Z",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_moment_comes_back(millis in 0..4_000_000_000_000_000_u64) {
            let moment = Timestamp::from_millis(millis);
            prop_assert_eq!(parse(&moment.to_string()), Some(moment));
        }
    }
}

//! Parsing of trust data in the variants that hosts write.

use std::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, Unexpected, Visitor};

use crate::Timestamp;
use crate::id::{Namespace, ToolRef};

/// Reads a time in milliseconds since the epoch, or as an ISO 8601 text. A text without an offset is UTC.
pub(super) fn moment<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    struct TimestampVisitor;

    impl Visitor<'_> for TimestampVisitor {
        type Value = Timestamp;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("milliseconds since 1970 or an ISO 8601 date and time")
        }

        fn visit_u64<E: Error>(self, millis: u64) -> Result<Timestamp, E> {
            Ok(Timestamp::from_millis(millis))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Timestamp, E> {
            Timestamp::parse_iso(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    from.deserialize_any(TimestampVisitor)
}

/// Reads an optional time. It may be missing or null.
pub(super) fn optional_moment<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    #[derive(serde::Deserialize)]
    struct OptionalTimestamp(#[serde(deserialize_with = "moment")] Timestamp);

    Ok(Option::<OptionalTimestamp>::deserialize(from)?.map(|OptionalTimestamp(at)| at))
}

/// Reads a count that may be weighted. A fraction of a failure counts as one.
pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let number = f64::deserialize(from)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "such a cast saturates, and so does the count"
    )]
    Ok(number.ceil() as u32)
}

/// Reads an enum value, also in the form that Python prints: `TrustState.ESCALATED`.
pub(super) fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    let name = match text.rsplit_once('.') {
        Some((_, member)) => member.to_ascii_lowercase(),
        None => text,
    };
    let word: StringDeserializer<D::Error> = name.into_deserializer();
    T::deserialize(word)
}

/// Reads a plugin. A host that does not know it may leave it empty.
pub(super) fn plugin<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Namespace>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let named = text.filter(|text| !text.is_empty() && text != ToolRef::ANY_NAMESPACE);
    named.map(Namespace::new).transpose().map_err(D::Error::custom)
}

/// Reads a plugin, or the wildcard.
pub(super) fn plugin_or_any<'de, D: Deserializer<'de>>(from: D) -> Result<Namespace, D::Error> {
    Ok(plugin(from)?.unwrap_or_else(any_plugin))
}

/// Returns the wildcard for any plugin.
pub(super) fn any_plugin() -> Namespace {
    Namespace::any()
}

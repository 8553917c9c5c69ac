//! The id of a request, in its original spelling.

use std::fmt;

use bytes::Bytes;
use steadfast_json::scan;

use crate::json_text::JsonText;

/// The id of a request: a string or a number. It keeps its text, so that the response repeats the exact spelling.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RpcId(Bytes);

impl RpcId {
    /// Creates a numeric id.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// Creates a string id.
    pub fn string(text: &str) -> Self {
        Self(JsonText::string(text).into_bytes())
    }

    /// Parses an id from its [text](Self::as_str).
    pub fn parse(text: &str) -> Option<Self> {
        let is_one = text.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit());
        let json = JsonText::parse(text.to_owned()).ok().filter(|_| is_one)?;
        Some(Self(json.into_bytes()))
    }

    /// Creates an id from a part of a message that is known to be one.
    pub(super) fn known(text: Bytes) -> Self {
        Self(text)
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the JSON text as a value that can be spliced into other messages.
    pub fn to_json(&self) -> JsonText {
        JsonText::known(self.0.clone())
    }

    /// Returns true if a text is this id, perhaps in another spelling.
    pub fn is(&self, text: &str) -> bool {
        let own = self.as_str();
        own == text
            || match (scan::string(own), scan::string(text)) {
                (Some(own), Some(other)) => own == other,
                (None, None) => whole(own).is_some_and(|number| whole(text) == Some(number)),
                (Some(_), None) | (None, Some(_)) => false,
            }
    }

    /// Returns the whole number that the id means, if it is one. Ids that this process sent come back as `7`, and
    /// from some servers as `7.0`, `1e+06` or `"7"`.
    pub fn as_u64(&self) -> Option<u64> {
        match scan::string(self.as_str()) {
            Some(text) => text.parse().ok(),
            None => whole(self.as_str()),
        }
    }
}

impl fmt::Debug for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the number if it is whole, and exact in every JSON reader.
fn whole(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number: f64 = text.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and within the range")]
    (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_was_written_down_is_the_same_again() {
        for text in ["7", "-1", "1e3", "\"a b\"", "\"7\""] {
            assert_eq!(RpcId::parse(text).unwrap().as_str(), text);
        }
        for text in ["", "null", "{}", "[1]", "7 8", "\"a", "true"] {
            assert_eq!(RpcId::parse(text), None, "{text}");
        }
    }
}

//! Converts the output of tools into response content and fault messages.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use steadfast_json::RawJson;
use steadfast_redact::{MASK, Redacted, is_secret_name};

/// Returns output as response content: JSON unchanged, empty output as `null`, anything else as text.
pub(crate) fn content(output: &[u8]) -> RawJson {
    let trimmed = output.trim_ascii();
    if trimmed.is_empty() {
        return RawJson::from_trusted("null");
    }
    match std::str::from_utf8(trimmed) {
        Ok(text) if serde_json::from_str::<&RawValue>(text).is_ok() => RawJson::from_trusted(text),
        Ok(_) | Err(_) => RawJson::string(&String::from_utf8_lossy(output)),
    }
}

/// Returns the beginning of a tool's output, on one line and without its secrets.
pub(crate) fn excerpt(text: &str, secrets: &Secrets) -> String {
    let window: String = text.chars().take(WINDOW).collect();
    let masked = secrets.masked(&window);
    let mut short = String::new();
    for word in masked.split_whitespace() {
        if !short.is_empty() {
            short.push(' ');
        }
        short.push_str(word);
    }
    match short.char_indices().nth(LONGEST_EXCERPT) {
        None => short,
        Some((end, _)) => {
            short.truncate(end);
            short.push('…');
            short
        }
    }
}

/// Maximum length of an excerpt, in characters. More of an error page is rarely useful, and a model pays for each
/// character.
const LONGEST_EXCERPT: usize = 500;
/// Number of characters that are read for it. White space is not shown, and secrets are masked before the text is cut.
const WINDOW: usize = 16 * LONGEST_EXCERPT;

/// Secrets of a tool that must not appear in its output: servers repeat headers in their errors, and programs repeat
/// variables. The central redaction recognizes secrets by their form. Only this module knows the exact values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(Vec<Redacted<String>>);

impl Secrets {
    /// Returns the values whose names mark them as secrets.
    pub(crate) fn among(given: &BTreeMap<String, Redacted<String>>) -> Self {
        let secret = given.iter().filter(|(name, _)| is_secret_name(name)).map(|(_, value)| value.expose());
        // `Bearer abc` may be repeated as a whole, or without its first word.
        let parts = secret.flat_map(|value| std::iter::once(value.trim()).chain(value.split_whitespace()));
        let mut parts: Vec<&str> = parts.filter(|part| part.len() >= SHORTEST).collect();
        // Longest first, so that a part is not masked within a whole secret.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        parts.dedup();
        Self(parts.into_iter().map(|part| Redacted::new(part.to_owned())).collect())
    }

    pub(crate) fn masked(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose().as_str(), MASK))
    }
}

/// A shorter secret occurs in many texts by chance, and masking it would reveal its position.
const SHORTEST: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_output_is_unchanged_and_other_output_is_text() {
        for (output, content_is) in [
            (&b""[..], "null"),
            (b" \r\n", "null"),
            (b" {\"n\": 1.0}\n", "{\"n\": 1.0}"),
            (b"12345678901234567890123", "12345678901234567890123"),
            (b"null", "null"),
            (b"5 km\n", "\"5 km\\n\""),
            (b"{\"n\": 1", "\"{\\\"n\\\": 1\""),
            (b"{} {}", "\"{} {}\""),
            (b"a\xffb", "\"a\u{fffd}b\""),
        ] {
            assert_eq!(content(output).as_str(), content_is, "{output:?}");
        }
    }

    #[test]
    fn an_excerpt_is_short_one_line_and_without_secrets() {
        let given = BTreeMap::from([
            ("Authorization".to_owned(), Redacted::new("Bearer hunter2hunter2".to_owned())),
            ("Accept".to_owned(), Redacted::new("application/json".to_owned())),
        ]);
        let secrets = Secrets::among(&given);
        assert_eq!(
            excerpt(
                "you  sent\n\"Bearer hunter2hunter2\",\tor hunter2hunter2 and application/json",
                &secrets
            ),
            format!("you sent \"{MASK}\", or {MASK} and application/json")
        );
        let long = format!("{}hunter2hunter2", "ä".repeat(LONGEST_EXCERPT - 4));
        let cut = excerpt(&long, &secrets);
        assert!(!cut.contains("hunter") && cut.ends_with('…'), "{cut}");
        assert_eq!(cut.chars().count(), LONGEST_EXCERPT + 1);
        assert!(!format!("{secrets:?}").contains("hunter2"));
    }
}

//! Redaction of secrets in every text that leaves Steadfast.
//!
//! Everything that leaves (logs, metrics, traces, history, dashboard responses, messages) goes through [`text`], and
//! arguments leave only as a [`summary`]. Secrets are detected in three places:
//!
//! | where | secrets |
//! | --- | --- |
//! | `names` | the value of a field, variable, flag, header or query parameter with a secret name |
//! | `shapes` | known token shapes (`ghp_…`, `sk-…`, JWT, …) and strings that look random |
//! | `shapes` | numbers of payment cards, by their check digit |
//! | `scan` | credentials in URLs, `Bearer` and `Basic`, private key blocks, and the places in a text where each of the above may appear |
//!
//! A text that is JSON as a whole is parsed and rewritten as JSON (`structure`), so it stays valid and no escape can
//! hide a secret. Any other text is scanned once from left to right. Both take linear time for every text, and doing it
//! twice changes nothing.
//!
//! Control characters for writing direction and terminals, which make a line look different from its content, are
//! written as `\u202e`.
//!
//! In doubt, a value is masked: a message with too little information is better than one with too much.

mod names;
mod scan;
mod shapes;
mod structure;

use std::borrow::Cow;
use std::fmt;

use steadfast_json::{JsonDocument, JsonLimits, JsonValue, RawJson};

pub use names::is_secret_name;

/// The text that replaces a secret.
pub const MASK: &str = "[redacted]";

/// The maximum size of a [`summary`] in bytes.
pub const MAX_SUMMARY_BYTES: usize = 1024;

/// Returns the text without its secrets. The output is at most a small multiple of the input.
pub fn text(text: &str) -> Cow<'_, str> {
    within(text, None, MAX_NESTED_TEXTS)
}

/// Returns the beginning of a text without its secrets, cut to `max_bytes`. A cut is marked with `…`.
///
/// Of a huge text, only the part that can be shown is scanned.
pub fn excerpt(long: &str, max_bytes: usize) -> String {
    // A secret that begins within the excerpt shows at least this much of itself, which is enough for every rule to
    // detect it.
    let window = up_to(long, max_bytes.saturating_mul(4).saturating_add(MIN_WINDOW));
    let redacted = text(window);
    if redacted.len() <= max_bytes && window.len() == long.len() {
        return redacted.into_owned();
    }
    let mut cut = up_to(&redacted, max_bytes.saturating_sub(ELLIPSIS.len()));
    // Half a mask would look like half a secret.
    if let Some(start) = cut.rfind('[')
        && cut.len() < start + MASK.len()
        && redacted.get(start..).is_some_and(|rest| rest.starts_with(MASK))
    {
        cut = up_to(cut, start);
    }
    format!("{cut}{ELLIPSIS}")
}

/// Returns a JSON response of Steadfast with secrets removed from the names of tools, requests and sessions. Callers
/// choose these names, and they may contain secrets. Everything else stays unchanged.
pub fn response(json: &str) -> Cow<'_, str> {
    let limits = JsonLimits { bytes: usize::MAX, depth: JsonLimits::ENVELOPE.depth };
    let redacted =
        JsonDocument::parse(json.as_bytes(), limits).ok().and_then(|read| structure::response(read.root()));
    redacted.map_or(Cow::Borrowed(json), Cow::Owned)
}

/// Returns a summary of the arguments of a call: their shape and their harmless beginnings, as JSON of at most
/// [`MAX_SUMMARY_BYTES`].
pub fn summary(params: JsonValue<'_>) -> RawJson {
    RawJson::from_trusted(structure::summary(params, MAX_SUMMARY_BYTES))
}

/// A secret that has to be kept in memory. It can be used, but neither `Debug` nor `Display` shows it, and it cannot be
/// serialised.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Wraps a secret.
    pub const fn new(secret: T) -> Self {
        Self(secret)
    }

    /// Returns the secret. The caller is responsible for where it goes.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Redacted<T> {
    fn from(secret: T) -> Self {
        Self(secret)
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Redacts a text that may be JSON, or a string inside JSON that is JSON again.
fn within<'t>(text: &'t str, label: Option<&str>, nested_texts: u8) -> Cow<'t, str> {
    let Some(deeper) = nested_texts.checked_sub(1) else {
        return scan::scan(text, label);
    };
    if let Some(redacted) = as_json(text, deeper) {
        return redacted;
    }
    let Cow::Owned(scanned) = scan::scan(text, label) else {
        return Cow::Borrowed(text);
    };
    // A mask can replace exactly the part that kept the text from being JSON. In that case it is parsed as JSON now,
    // and not only when it is redacted a second time.
    match as_json(&scanned, deeper) {
        Some(Cow::Owned(redacted)) => Cow::Owned(redacted),
        Some(Cow::Borrowed(_)) | None => Cow::Owned(scanned),
    }
}

fn as_json(text: &str, nested_texts: u8) -> Option<Cow<'_, str>> {
    let trimmed = text.trim_matches([' ', '\t', '\r', '\n']);
    let could_be = [('{', '}'), ('[', ']'), ('"', '"')]
        .iter()
        .any(|(open, close)| trimmed.starts_with(*open) && trimmed.ends_with(*close));
    if !could_be || trimmed == MASK {
        return None;
    }
    let limits = JsonLimits { bytes: usize::MAX, depth: JsonLimits::PARAMS.depth };
    let document = JsonDocument::parse(text.as_bytes(), limits).ok()?;
    Some(structure::redact(document.root(), nested_texts).map_or(Cow::Borrowed(text), Cow::Owned))
}

/// Returns the longest beginning of a text that fits, cut between characters.
fn up_to(text: &str, max_bytes: usize) -> &str {
    let mut end = max_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

const ELLIPSIS: &str = "…";

/// The number of times that a string inside JSON is parsed as JSON again. Deeper ones are scanned as text.
const MAX_NESTED_TEXTS: u8 = 3;

/// The number of bytes that are scanned beyond four times the length of an excerpt.
const MIN_WINDOW: usize = 256;

#[cfg(test)]
mod tests;

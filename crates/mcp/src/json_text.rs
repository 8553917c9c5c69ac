//! JSON values of messages.
//!
//! A message is read with the scanner of `steadfast-json`, which keeps nothing. It is strict about the names on the levels
//! that decide where a message goes.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use steadfast_json::scan::{self, DEPTH, JsonProblem, JsonScanner, JsonSyntaxError};

/// A well-formed JSON value as text.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(Bytes);

impl JsonText {
    /// Parses a text as one value.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, JsonSyntaxError> {
        let text = text.into();
        if let Err(error) = std::str::from_utf8(&text) {
            return Err(JsonSyntaxError { at: error.valid_up_to(), problem: JsonProblem::NotUtf8 });
        }
        let mut skim = JsonScanner::new(&text);
        // Leaves levels for the message and the parameters that will contain the value.
        skim.value(DEPTH - ROUTED_LEVELS)?;
        skim.end()?;
        Ok(Self(text))
    }

    /// Creates a string.
    pub fn string(text: &str) -> Self {
        let mut json = String::with_capacity(text.len() + 2);
        scan::write_string(&mut json, text);
        Self(json.into())
    }

    /// Creates a whole number.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// Creates a value from a part of a text that was already read as JSON.
    pub(crate) fn known(text: Bytes) -> Self {
        Self(text)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the text without copying it.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Number of containers of a message that are read by name: the message, its parameters, their `_meta`.
pub(crate) const ROUTED_LEVELS: usize = 3;

/// Scans the members of an object, or any other value. `member` is called after each name, and must scan the
/// value.
pub(crate) fn routed<'t>(
    skim: &mut JsonScanner<'t>,
    room: usize,
    mut member: impl FnMut(&mut JsonScanner<'t>, &str) -> Result<(), JsonSyntaxError>,
) -> Result<Range<usize>, JsonSyntaxError> {
    skim.space();
    let start = skim.at;
    if skim.peek() != Some(b'{') {
        return skim.value(room);
    }
    skim.at += 1;
    skim.space();
    let mut names: Vec<(Cow<'t, str>, usize)> = Vec::new();
    if skim.peek() == Some(b'}') {
        skim.at += 1;
        return Ok(start..skim.at);
    }
    loop {
        let at = skim.name()?;
        let spelled = skim.text_at(at.clone());
        let name = spelled.and_then(scan::string).unwrap_or_default();
        member(skim, &name)?;
        names.push((name, at.start));
        skim.space();
        match skim.peek() {
            Some(b',') => {
                skim.at += 1;
                skim.space();
            }
            Some(b'}') => break,
            _ => return Err(skim.expected("`,` or `}`")),
        }
    }
    skim.at += 1;
    match twice(&mut names) {
        None => Ok(start..skim.at),
        Some((name, at)) => Err(JsonSyntaxError { at, problem: JsonProblem::DuplicateName(name) }),
    }
}

/// Returns the first repeated name, and the place of its second occurrence.
///
/// Some readers ignore the case of names. For them, `Method` repeats `method`. So the names used for routing are
/// compared without case.
fn twice(names: &mut [(Cow<'_, str>, usize)]) -> Option<(Box<str>, usize)> {
    let folded = |name: &str| match name.to_ascii_lowercase() {
        lower if ROUTED.contains(&lower.as_str()) => lower,
        _ => name.to_owned(),
    };
    if names.len() <= FEW {
        let mut rest = &names[..];
        while let [(name, _), others @ ..] = rest {
            let same = |other: &str| {
                other == name
                    || other.len() == name.len() && other.eq_ignore_ascii_case(name) && {
                        ROUTED.iter().any(|routed| routed.eq_ignore_ascii_case(name))
                    }
            };
            if let Some((again, at)) = others.iter().find(|(other, _)| same(other)) {
                return Some((again.as_ref().into(), *at));
            }
            rest = others;
        }
        return None;
    }
    // Sorting avoids a quadratic comparison for an object with a hundred thousand names.
    let mut sorted: Vec<(String, usize)> = names.iter().map(|(name, at)| (folded(name), *at)).collect();
    sorted.sort_unstable();
    let again = sorted.iter().zip(sorted.iter().skip(1)).find(|(a, b)| a.0 == b.0)?.1;
    Some((again.0.as_str().into(), again.1))
}

/// Up to this many names are compared pairwise.
const FEW: usize = 12;

/// Names that decide the routing and the handling of a message.
const ROUTED: [&str; 12] = [
    "jsonrpc",
    "id",
    "method",
    "params",
    "result",
    "error",
    "name",
    "uri",
    "arguments",
    "_meta",
    "requestid",
    "progresstoken",
];

#[cfg(test)]
mod tests;

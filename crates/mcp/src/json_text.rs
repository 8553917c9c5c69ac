//! Raw JSON: checks that a text is well formed and finds its members, without building a tree.
//!
//! The core's reader makes a table of every value, and refuses input that two readers could understand differently. A
//! gateway that only passes on a result must do neither. A result of 50 MiB would need a table of its own size. And
//! some servers send texts that were cut within a surrogate pair, or repeat a name deep inside. So this reader walks
//! over a text once and keeps nothing. It is strict only about the grammar (RFC 8259), the depth, and the names on
//! the given levels. Values that matter for a decision (arguments for an idempotency key) are then read by the core.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use steadfast_json::{JsonDocument, JsonLimits};

/// The deepest nesting of containers. Many readers (including serde's) have the same limit, so nothing that the other
/// side could read is refused.
pub const DEPTH: usize = 128;

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
        write_string(&mut json, text);
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

/// Returns the members of a well-formed object, or none for any other value.
pub fn members(object: &str) -> RawJsonMembers<'_> {
    let mut skim = JsonScanner::new(object.as_bytes());
    skim.space();
    let is_object = skim.peek() == Some(b'{');
    skim.at += 1;
    skim.space();
    RawJsonMembers { text: object, skim, done: !is_object }
}

/// Returns the value of the first member with this name, if the text is an object that has one.
pub fn get<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    members(object).find(|member| member.name == name).and_then(|member| object.get(member.value))
}

/// Returns the value of a JSON string, or `None` for any other text. Half a surrogate pair becomes the replacement
/// character.
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    if let Ok(document) = JsonDocument::parse(value.as_bytes(), JsonLimits { bytes: usize::MAX, depth: 1 }) {
        return document.root().as_str().map(|text| Cow::Owned(text.into_owned()));
    }
    Some(Cow::Owned(lossy(inner)))
}

/// A member of an object.
#[derive(Clone, Debug)]
pub struct RawJsonMember<'t> {
    /// The name, with its escapes resolved.
    pub name: Cow<'t, str>,
    /// Place of the name, including its quotes.
    pub name_at: Range<usize>,
    /// Place of the value.
    pub value: Range<usize>,
}

/// The members of an object, in their order in the text.
#[derive(Clone, Debug)]
pub struct RawJsonMembers<'t> {
    text: &'t str,
    skim: JsonScanner<'t>,
    done: bool,
}

impl<'t> Iterator for RawJsonMembers<'t> {
    type Item = RawJsonMember<'t>;

    fn next(&mut self) -> Option<RawJsonMember<'t>> {
        if self.done || self.skim.peek() != Some(b'"') {
            return None;
        }
        let name_at = self.skim.name().ok()?;
        let name = string(self.text.get(name_at.clone())?)?;
        let value = self.skim.value(DEPTH).ok()?;
        self.skim.space();
        self.done = self.skim.peek() != Some(b',');
        self.skim.at += 1;
        self.skim.space();
        Some(RawJsonMember { name, name_at, value })
    }
}

/// Writes a string as JSON.
pub(crate) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '\\' | '\u{0}'..='\u{1f}')) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = special.chars();
        match chars.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some(other) => out.push_str(&format!("\\u{:04x}", u32::from(other))),
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// A JSON error, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at}")]
pub struct JsonSyntaxError {
    /// The byte at which reading stopped.
    pub at: usize,
    /// The problem at this byte.
    pub problem: JsonProblem,
}

/// A problem in a text that must be JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonProblem {
    /// The text is not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// The text is not JSON. Contains what was expected instead.
    #[error("expected {0}")]
    NotJson(&'static str),
    /// The containers are nested too deep.
    #[error("nested more than {DEPTH} levels deep")]
    TooDeep,
    /// A name is repeated on a routed level.
    #[error("the name {0:?} is repeated")]
    Twice(Box<str>),
}

/// Number of containers of a message that are read by name: the message, its parameters, their `_meta`.
pub(crate) const ROUTED_LEVELS: usize = 3;

/// A scanner over a JSON text.
#[derive(Clone, Debug)]
pub(crate) struct JsonScanner<'t> {
    text: &'t [u8],
    pub(crate) at: usize,
    /// True if a line break was found between two tokens.
    pub(crate) breaks: bool,
}

impl<'t> JsonScanner<'t> {
    pub(crate) fn new(text: &'t [u8]) -> Self {
        Self { text, at: 0, breaks: false }
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub(crate) fn space(&mut self) {
        while let Some(byte @ (b' ' | b'\n' | b'\r' | b'\t')) = self.peek() {
            self.breaks |= matches!(byte, b'\n' | b'\r');
            self.at += 1;
        }
    }

    /// Checks that only white space follows.
    pub(crate) fn end(&mut self) -> Result<(), JsonSyntaxError> {
        self.space();
        if self.at >= self.text.len() { Ok(()) } else { Err(self.expected("nothing after the value")) }
    }

    /// Scans the members of an object, or any other value. `member` is called after each name, and must scan the
    /// value.
    pub(crate) fn routed(
        &mut self,
        room: usize,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), JsonSyntaxError>,
    ) -> Result<Range<usize>, JsonSyntaxError> {
        self.space();
        let start = self.at;
        if self.peek() != Some(b'{') {
            return self.value(room);
        }
        self.at += 1;
        self.space();
        let mut names: Vec<(Cow<'t, str>, usize)> = Vec::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(start..self.at);
        }
        loop {
            let at = self.name()?;
            let spelled = self.text.get(at.clone()).and_then(|name| std::str::from_utf8(name).ok());
            let name = spelled.and_then(string).unwrap_or_default();
            member(self, &name)?;
            names.push((name, at.start));
            self.space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                }
                Some(b'}') => break,
                _ => return Err(self.expected("`,` or `}`")),
            }
        }
        self.at += 1;
        match twice(&mut names) {
            None => Ok(start..self.at),
            Some((name, at)) => Err(JsonSyntaxError { at, problem: JsonProblem::Twice(name) }),
        }
    }

    /// Scans any value and returns its place.
    pub(crate) fn value(&mut self, room: usize) -> Result<Range<usize>, JsonSyntaxError> {
        self.space();
        let start = self.at;
        // One bit for each open container, set for objects.
        let (mut open, mut depth) = (0_u128, 0_usize);
        let room = room.min(DEPTH);
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(bracket @ (b'{' | b'[')) => {
                    if depth >= room {
                        return Err(JsonSyntaxError { at: self.at, problem: JsonProblem::TooDeep });
                    }
                    let is_object = bracket == b'{';
                    (open, depth) = (open << 1 | u128::from(is_object), depth + 1);
                    self.at += 1;
                    self.space();
                    match (is_object, self.peek()) {
                        (true, Some(b'}')) | (false, Some(b']')) => {
                            (open, depth) = (open >> 1, depth - 1);
                            self.at += 1;
                        }
                        (true, _) => {
                            self.name()?;
                            continue;
                        }
                        (false, _) => continue,
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.expected("a value")),
            }
            loop {
                if depth == 0 {
                    return Ok(start..self.at);
                }
                self.space();
                let is_object = open & 1 == 1;
                match (is_object, self.peek()) {
                    (true, Some(b'}')) | (false, Some(b']')) => {
                        (open, depth) = (open >> 1, depth - 1);
                        self.at += 1;
                    }
                    (true, Some(b',')) => {
                        self.at += 1;
                        self.space();
                        self.name()?;
                        break;
                    }
                    (false, Some(b',')) => {
                        self.at += 1;
                        break;
                    }
                    (true, _) => return Err(self.expected("`,` or `}`")),
                    (false, _) => return Err(self.expected("`,` or `]`")),
                }
            }
        }
    }

    /// Scans the name of a member and the colon after it. Returns the place of the name.
    fn name(&mut self) -> Result<Range<usize>, JsonSyntaxError> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a name in quotes"));
        }
        let at = self.string()?;
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.expected("`:`"));
        }
        self.at += 1;
        Ok(at)
    }

    fn string(&mut self) -> Result<Range<usize>, JsonSyntaxError> {
        let start = self.at;
        self.at += 1;
        loop {
            self.plain();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            let digits = self.text.get(self.at + 1..self.at + 5).unwrap_or_default();
                            if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
                                return Err(self.expected("four hex digits after \\u"));
                            }
                            self.at += 5;
                        }
                        _ => return Err(self.expected("one of \" \\ / b f n r t u after a backslash")),
                    }
                }
                Some(_) => return Err(self.expected("no control character in a string")),
                None => return Err(self.expected("the end of a string")),
            }
        }
    }

    fn number(&mut self) -> Result<(), JsonSyntaxError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.at;
        let leads_with_zero = self.peek() == Some(b'0');
        self.digits()?;
        if leads_with_zero && self.at > whole + 1 {
            return Err(JsonSyntaxError {
                at: whole,
                problem: JsonProblem::NotJson("a number without a leading zero"),
            });
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonSyntaxError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.expected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonSyntaxError> {
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Advances to the next quote, backslash or control character, eight bytes at a time.
    fn plain(&mut self) {
        while let Some(word) = self.text.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let special = special_bytes(u64::from_le_bytes(*word));
            if special != 0 {
                self.at += special.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
        while self.peek().is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
            self.at += 1;
        }
    }

    #[cold]
    fn expected(&self, what: &'static str) -> JsonSyntaxError {
        JsonSyntaxError { at: self.at, problem: JsonProblem::NotJson(what) }
    }
}

/// Returns the high bit of each byte that ends a plain run. Bytes after the first marked one may be marked wrongly.
fn special_bytes(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let quote = word ^ (EACH * b'"' as u64);
    let backslash = word ^ (EACH * b'\\' as u64);
    let found = (quote.wrapping_sub(EACH) & !quote)
        | (backslash.wrapping_sub(EACH) & !backslash)
        | (word.wrapping_sub(EACH * 0x20) & !word);
    found & (EACH * 0x80)
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

/// Decodes a string whose escapes are valid one by one, but not as surrogate pairs.
fn lossy(inner: &str) -> String {
    let mut units: Vec<u16> = Vec::new();
    let mut rest = inner;
    while let Some((before, after)) = rest.split_once('\\') {
        units.extend(before.encode_utf16());
        let (unit, length) = match after.as_bytes() {
            [b'u', digits @ ..] => {
                let digits = digits.first_chunk::<4>().and_then(|four| std::str::from_utf8(four).ok());
                (digits.and_then(|four| u16::from_str_radix(four, 16).ok()).unwrap_or(0xfffd), 5)
            }
            [b'b', ..] => (8, 1),
            [b'f', ..] => (12, 1),
            [b'n', ..] => (10, 1),
            [b'r', ..] => (13, 1),
            [b't', ..] => (9, 1),
            [other, ..] => (u16::from(*other), 1),
            [] => break,
        };
        units.push(unit);
        rest = after.get(length..).unwrap_or_default();
    }
    units.extend(rest.encode_utf16());
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests;

//! Well-formed JSON without a tree.
//!
//! [`JsonDocument`] makes a table of every value, and refuses input that two readers could understand differently. A
//! gateway that only passes on a result must do neither. A result of 50 MiB would need a table of its own size. And
//! some servers send texts that were cut within a surrogate pair, or repeat a name deep inside. So this scanner walks
//! over a text once and keeps nothing. It is strict only about the grammar (RFC 8259) and the depth. Values that matter
//! for a decision (arguments for an idempotency key) are then read as a [`JsonDocument`].

use std::borrow::Cow;
use std::ops::Range;

use crate::{JsonDocument, JsonLimits};

/// The deepest nesting of containers. Many readers (including serde's) have the same limit, so nothing that the other
/// side could read is refused.
pub const DEPTH: usize = 128;

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

/// Writes a string as JSON. Unlike [`RawJson::string`](crate::RawJson::string), it writes U+0008 and U+000C as `\\u0008` and
/// `\\u000c`.
pub fn write_string(out: &mut String, text: &str) {
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
    /// A name is repeated where names must differ.
    #[error("the name {0:?} is repeated")]
    DuplicateName(Box<str>),
}

/// A scanner over a JSON text.
#[derive(Clone, Debug)]
pub struct JsonScanner<'t> {
    text: &'t [u8],
    /// Place of the next byte.
    pub at: usize,
    /// True if a line break was found between two tokens.
    pub breaks: bool,
}

impl<'t> JsonScanner<'t> {
    /// Creates a scanner at the start of a text.
    pub fn new(text: &'t [u8]) -> Self {
        Self { text, at: 0, breaks: false }
    }

    /// Returns the next byte.
    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Advances over white space.
    pub fn space(&mut self) {
        while let Some(byte @ (b' ' | b'\n' | b'\r' | b'\t')) = self.peek() {
            self.breaks |= matches!(byte, b'\n' | b'\r');
            self.at += 1;
        }
    }

    /// Returns the text at a place.
    pub fn text_at(&self, place: Range<usize>) -> Option<&'t str> {
        self.text.get(place).and_then(|part| std::str::from_utf8(part).ok())
    }

    /// Checks that only white space follows.
    pub fn end(&mut self) -> Result<(), JsonSyntaxError> {
        self.space();
        if self.at >= self.text.len() { Ok(()) } else { Err(self.expected("nothing after the value")) }
    }

    /// Scans any value and returns its place.
    pub fn value(&mut self, room: usize) -> Result<Range<usize>, JsonSyntaxError> {
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
    pub fn name(&mut self) -> Result<Range<usize>, JsonSyntaxError> {
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

    /// Returns the error that something else was expected here.
    #[cold]
    pub fn expected(&self, item: &'static str) -> JsonSyntaxError {
        JsonSyntaxError { at: self.at, problem: JsonProblem::NotJson(item) }
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

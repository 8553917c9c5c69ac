//! A look at JSON that stays text: is it well formed, and where do its members stand.
//!
//! The core's reader makes a table of every value and refuses what two readers could understand differently. A gateway
//! that only passes a result on must not do either: a result of 50 MiB would cost a table of its own size, and servers
//! do send texts that were cut within a surrogate pair, or repeat a name deep inside. So this one walks over a text
//! once, keeps nothing, and is strict only about the grammar (RFC 8259), the depth and the names on the levels that it is
//! told to look at. What is read for a decision (arguments for a key) is read by the core afterwards.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use steadfast_core::json::{Document, Limits};

/// How deep containers may stand within each other. Many readers (serde's among them) stop there too, so nothing that
/// the other side could read is lost.
pub const DEPTH: usize = 128;

/// A JSON value as text, known to be well formed.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

impl RawJson {
    /// Takes a text that should be one value.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, Wrong> {
        let text = text.into();
        if let Err(error) = std::str::from_utf8(&text) {
            return Err(Wrong { at: error.valid_up_to(), problem: Problem::NotUtf8 });
        }
        let mut skim = Skim::new(&text);
        // Room for the object and the parameters that it will be put into.
        skim.value(DEPTH - ROUTED_LEVELS)?;
        skim.end()?;
        Ok(Self(text))
    }

    /// A string.
    pub fn string(text: &str) -> Self {
        let mut json = String::with_capacity(text.len() + 2);
        write_string(&mut json, text);
        Self(json.into())
    }

    /// A whole number.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// A piece of a text that was read as JSON before.
    pub(crate) fn known(text: Bytes) -> Self {
        Self(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Its text, without copying it.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The members of an object that is known to be well formed; of anything else there are none.
pub fn members(object: &str) -> Members<'_> {
    let mut skim = Skim::new(object.as_bytes());
    skim.space();
    let is_object = skim.peek() == Some(b'{');
    skim.at += 1;
    skim.space();
    Members { text: object, skim, done: !is_object }
}

/// The value of the first member of this name, if the text is an object that has one.
pub fn get<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    members(object).find(|member| member.name == name).and_then(|member| object.get(member.value))
}

/// What a string means, if the text is one. Half of a surrogate pair means the replacement character.
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    if let Ok(document) = Document::parse(value.as_bytes(), Limits { bytes: usize::MAX, depth: 1 }) {
        return document.root().as_str().map(|text| Cow::Owned(text.into_owned()));
    }
    Some(Cow::Owned(lossy(inner)))
}

/// A member of an object.
#[derive(Clone, Debug)]
pub struct Member<'t> {
    /// Its name, escapes resolved.
    pub name: Cow<'t, str>,
    /// Where its name stands, with its quotes.
    pub name_at: Range<usize>,
    /// Where its value stands.
    pub value: Range<usize>,
}

/// The members of an object, in the order of the text.
#[derive(Clone, Debug)]
pub struct Members<'t> {
    text: &'t str,
    skim: Skim<'t>,
    done: bool,
}

impl<'t> Iterator for Members<'t> {
    type Item = Member<'t>;

    fn next(&mut self) -> Option<Member<'t>> {
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
        Some(Member { name, name_at, value })
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

/// What is wrong with a text, and at which byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The byte at which reading stopped.
    pub at: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong with a text that should be JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It is not UTF-8.
    NotUtf8,
    /// It is not JSON: what was expected instead.
    NotJson(&'static str),
    /// Containers stand too deep within each other.
    TooDeep,
    /// A name stands twice where it is routed by.
    Twice(Box<str>),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::NotUtf8 => write!(f, "not UTF-8 at byte {}", self.at),
            Problem::NotJson(expected) => write!(f, "expected {expected} at byte {}", self.at),
            Problem::TooDeep => {
                write!(f, "more than {DEPTH} containers within each other at byte {}", self.at)
            }
            Problem::Twice(name) => write!(f, "the name {name:?} stands twice, at byte {}", self.at),
        }
    }
}

impl std::error::Error for Wrong {}

/// How many containers of a message are walked through by name: the message, its parameters, their `_meta`.
pub(crate) const ROUTED_LEVELS: usize = 3;

/// A walk over a text.
#[derive(Clone, Debug)]
pub(crate) struct Skim<'t> {
    text: &'t [u8],
    pub(crate) at: usize,
    /// Whether a line break stood between two tokens so far.
    pub(crate) breaks: bool,
}

impl<'t> Skim<'t> {
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

    /// Nothing but white space may follow.
    pub(crate) fn end(&mut self) -> Result<(), Wrong> {
        self.space();
        if self.at >= self.text.len() { Ok(()) } else { Err(self.expected("nothing after the value")) }
    }

    /// Walks over the members of an object, or over any other value. `member` is called behind each name, and walks over
    /// the value.
    pub(crate) fn routed(
        &mut self,
        room: usize,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), Wrong>,
    ) -> Result<Range<usize>, Wrong> {
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
            Some((name, at)) => Err(Wrong { at, problem: Problem::Twice(name) }),
        }
    }

    /// Walks over a value, whatever it is, and says where it stood.
    pub(crate) fn value(&mut self, room: usize) -> Result<Range<usize>, Wrong> {
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
                        return Err(Wrong { at: self.at, problem: Problem::TooDeep });
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

    /// A member's name and the colon behind it; says where the name stood.
    fn name(&mut self) -> Result<Range<usize>, Wrong> {
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

    fn string(&mut self) -> Result<Range<usize>, Wrong> {
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

    fn number(&mut self) -> Result<(), Wrong> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.at;
        let leads_with_zero = self.peek() == Some(b'0');
        self.digits()?;
        if leads_with_zero && self.at > whole + 1 {
            return Err(Wrong { at: whole, problem: Problem::NotJson("a number without a needless zero") });
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

    fn digits(&mut self) -> Result<(), Wrong> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.expected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Wrong> {
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Goes to the next quote, backslash or control character, eight bytes at a time.
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
    fn expected(&self, what: &'static str) -> Wrong {
        Wrong { at: self.at, problem: Problem::NotJson(what) }
    }
}

/// The high bit of each byte that ends a plain run. Bytes behind the first marked one may be marked wrongly.
fn special_bytes(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let quote = word ^ (EACH * b'"' as u64);
    let backslash = word ^ (EACH * b'\\' as u64);
    let found = (quote.wrapping_sub(EACH) & !quote)
        | (backslash.wrapping_sub(EACH) & !backslash)
        | (word.wrapping_sub(EACH * 0x20) & !word);
    found & (EACH * 0x80)
}

/// A name that stands twice, and where the second one stands.
///
/// Some readers do not mind the case of names; to them `Method` after `method` is another method. Names by which we
/// route are therefore compared without it.
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
    // Sorting keeps an object of a hundred thousand names from being compared each with each.
    let mut sorted: Vec<(String, usize)> = names.iter().map(|(name, at)| (folded(name), *at)).collect();
    sorted.sort_unstable();
    let again = sorted.iter().zip(sorted.iter().skip(1)).find(|(a, b)| a.0 == b.0)?.1;
    Some((again.0.as_str().into(), again.1))
}

/// Up to this many names are compared each with each.
const FEW: usize = 12;

/// Names that decide where a message goes and what becomes of it.
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

/// The meaning of a string whose escapes are well formed one by one but not as pairs.
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

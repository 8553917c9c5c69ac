//! A JSON reader that preserves the text: values are parsed once, kept as text, and never printed again.
//!
//! A document is one flat table of nodes over its text. There are two reasons for a reader of its own. Keys are
//! computed from every digit of a number (a common reader rounds to a double). And every call is parsed (a tree with a
//! map and a string for each value costs more than the rest of the core). Strings and names are borrowed unless they
//! have escapes.
//!
//! It is strict, because two readers that parse one text differently can turn a checked call into another call when it
//! runs: RFC 8259 to the letter, names unique within their object (also when spelled with different escapes),
//! surrogates paired, depth and size limited. Every error has its position.
//!
//! Texts that are only passed on are read with [`scan`], which keeps nothing.

mod parser;
mod raw;
pub mod scan;
#[cfg(any(test, feature = "proptest"))]
pub mod strategy;
#[cfg(test)]
mod tests;
mod text;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use self::parser::JsonNode;

pub use self::parser::NodeShape;
pub use self::raw::RawJson;
pub use self::text::{DecodedChars, InvalidEscape, escape};

/// Limits of the JSON reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Size of the text in bytes, at most 4 GiB.
    pub bytes: usize,
    /// Nesting depth.
    pub depth: usize,
}

impl JsonLimits {
    /// The limits of an envelope: 1 MiB, depth 64.
    pub const ENVELOPE: Self = Self { bytes: 1 << 20, depth: 64 };
    /// The limits of parameters in an envelope built by a surface. The surface has checked the size and the depth of
    /// its messages already, and a tool that writes files takes long ones.
    pub const PARAMS: Self = Self { bytes: 64 << 20, depth: 128 };
}

/// A JSON error with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {offset}")]
pub struct JsonError {
    /// The byte offset at which reading stopped.
    pub offset: usize,
    /// The error, as text.
    pub problem: Cow<'static, str>,
}

impl JsonError {
    /// Returns the position of the error for an editor. `text` is the text that was read.
    pub fn position(&self, text: &[u8]) -> TextPosition {
        let before = text.get(..self.offset).unwrap_or(text);
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let is_character_start = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
        TextPosition {
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + before.iter().skip(line_start).filter(is_character_start).count(),
        }
    }
}

/// A position in a text, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// The line.
    pub line: usize,
    /// The character within the line.
    pub column: usize,
}

/// A parsed JSON text.
#[derive(Clone, Debug)]
pub struct JsonDocument<'t> {
    text: &'t str,
    nodes: Vec<JsonNode>,
}

impl<'t> JsonDocument<'t> {
    /// Parses a text.
    pub fn parse(text: &'t [u8], limits: JsonLimits) -> Result<Self, JsonError> {
        let most = limits.bytes.min(parser::MOST_BYTES);
        if text.len() > most {
            let problem = format!("the text is {} bytes long, at most {most} are allowed", text.len());
            return Err(JsonError { offset: most, problem: problem.into() });
        }
        let text = std::str::from_utf8(text).map_err(|error| JsonError {
            offset: error.valid_up_to(),
            problem: "the text is not valid UTF-8".into(),
        })?;
        Ok(Self { text, nodes: parser::read(text, limits.depth)? })
    }

    /// Returns the root value.
    pub fn root(&self) -> JsonValue<'_> {
        JsonValue { document: self, index: 0 }
    }

    /// Returns the text.
    pub fn text(&self) -> &'t str {
        self.text
    }
}

/// One value within a document.
#[derive(Clone, Copy)]
pub struct JsonValue<'d> {
    document: &'d JsonDocument<'d>,
    index: usize,
}

/// The kind of a value, with its content.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants are JSON's own")]
pub enum JsonKind<'d> {
    Null,
    Bool(bool),
    /// The number, as it is in the text.
    Number(&'d str),
    /// The string, with its escapes resolved.
    String(Cow<'d, str>),
    Array(JsonItems<'d>),
    Object(JsonMembers<'d>),
}

impl JsonKind<'_> {
    /// Returns the kind for a message: "a string", "an object".
    pub const fn describe(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

impl<'d> JsonValue<'d> {
    /// Returns the kind of the value.
    pub fn kind(self) -> JsonKind<'d> {
        let node = self.node();
        match node.shape {
            NodeShape::Null => JsonKind::Null,
            NodeShape::True => JsonKind::Bool(true),
            NodeShape::False => JsonKind::Bool(false),
            NodeShape::Number => JsonKind::Number(self.raw()),
            NodeShape::Plain => JsonKind::String(Cow::Borrowed(self.inner())),
            NodeShape::Escaped => JsonKind::String(text::unescape(self.inner())),
            NodeShape::Array => JsonKind::Array(JsonItems(self.children())),
            NodeShape::Object => JsonKind::Object(JsonMembers(self.children())),
        }
    }

    /// Returns the text of the value, as it is in the document.
    pub fn raw(self) -> &'d str {
        self.document.text.get(self.span()).unwrap_or_default()
    }

    /// Returns the byte range of the value in the document.
    pub fn span(self) -> Range<usize> {
        let node = self.node();
        node.start as usize..node.end as usize
    }

    /// Returns the member of this name, if the value is an object that has one.
    pub fn get(self, name: &str) -> Option<JsonValue<'d>> {
        self.entries()?.find(|(own, _)| own.is(name)).map(|(_, value)| value)
    }

    /// Returns the item at this index, if the value is an array that is long enough.
    pub fn item(self, place: usize) -> Option<JsonValue<'d>> {
        self.items()?.nth(place)
    }

    /// Returns the value at a JSON Pointer (RFC 6901). The empty pointer is the value itself.
    pub fn pointer(self, pointer: &str) -> Option<JsonValue<'d>> {
        if pointer.is_empty() {
            return Some(self);
        }
        let steps = pointer.strip_prefix('/')?;
        steps.split('/').try_fold(self, |value, step| match value.node().shape {
            NodeShape::Object => value.get(&pointer_name(step)?),
            NodeShape::Array => value.item(pointer_place(step)?),
            NodeShape::Null
            | NodeShape::True
            | NodeShape::False
            | NodeShape::Number
            | NodeShape::Plain
            | NodeShape::Escaped => None,
        })
    }

    /// Returns the text, if the value is a string.
    pub fn as_str(self) -> Option<Cow<'d, str>> {
        match self.kind() {
            JsonKind::String(text) => Some(text),
            JsonKind::Null
            | JsonKind::Bool(_)
            | JsonKind::Number(_)
            | JsonKind::Array(_)
            | JsonKind::Object(_) => None,
        }
    }

    /// Returns the number as it is in the text, if the value is one.
    pub fn as_number(self) -> Option<&'d str> {
        (self.node().shape == NodeShape::Number).then(|| self.raw())
    }

    /// Returns the number, if it is an integer that fits: `23`, and `23.0` and `2.3e1`, which mean the same.
    pub fn as_u64(self) -> Option<u64> {
        let number = self.as_number()?;
        number.parse().ok().or_else(|| whole_number(number))
    }

    /// Returns the nearest double, if the value is a number in the range of a double.
    pub fn as_f64(self) -> Option<f64> {
        self.as_number()?.parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// Returns the boolean, if the value is one.
    pub fn as_bool(self) -> Option<bool> {
        match self.kind() {
            JsonKind::Bool(truth) => Some(truth),
            JsonKind::Null
            | JsonKind::Number(_)
            | JsonKind::String(_)
            | JsonKind::Array(_)
            | JsonKind::Object(_) => None,
        }
    }

    /// Returns true if the value is `null`.
    pub fn is_null(self) -> bool {
        self.node().shape == NodeShape::Null
    }

    /// Returns true if the value is an object.
    pub fn is_object(self) -> bool {
        self.node().shape == NodeShape::Object
    }

    /// Returns the items, if the value is an array.
    pub fn items(self) -> Option<JsonItems<'d>> {
        (self.node().shape == NodeShape::Array).then(|| JsonItems(self.children()))
    }

    /// Returns the members, if the value is an object.
    pub fn members(self) -> Option<JsonMembers<'d>> {
        self.entries().map(|entries| JsonMembers(entries.0))
    }

    /// Returns the members with their names as spelled in the text, if the value is an object.
    pub fn entries(self) -> Option<JsonEntries<'d>> {
        self.is_object().then(|| JsonEntries(self.children()))
    }

    /// Returns the index of the value in the table of its document, for callers that store indexes.
    pub fn place(self) -> usize {
        self.index
    }

    /// Returns another value of the same document by its index.
    pub fn at(self, place: usize) -> Self {
        Self { index: place, ..self }
    }

    /// Returns the index after everything inside the value.
    pub fn place_after(self) -> usize {
        self.node().after as usize
    }

    /// Returns the spelling of a string or a name.
    pub fn spelling(self) -> NameSpelling<'d> {
        match self.shape() == NodeShape::Escaped {
            true => NameSpelling::Escaped(self.inner()),
            false => NameSpelling::Plain(self.inner()),
        }
    }

    /// Returns the shape of the value, without its content.
    pub fn shape(self) -> NodeShape {
        self.node().shape
    }

    /// Returns the text between the quotes, with escapes unresolved. Only for strings.
    pub fn inner(self) -> &'d str {
        let Range { start, end } = self.span();
        self.document.text.get(start.saturating_add(1)..end.saturating_sub(1)).unwrap_or_default()
    }

    fn node(self) -> JsonNode {
        // The index comes from the table itself, so there is always a node.
        self.document.nodes.get(self.index).copied().unwrap_or(JsonNode::MISSING)
    }

    fn children(self) -> JsonChildren<'d> {
        JsonChildren { document: self.document, next: self.index + 1, end: self.place_after() }
    }
}

impl fmt::Debug for JsonValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.raw())
    }
}

/// The items of an array, in order.
#[derive(Clone, Debug)]
pub struct JsonItems<'d>(JsonChildren<'d>);

impl<'d> Iterator for JsonItems<'d> {
    type Item = JsonValue<'d>;
    fn next(&mut self) -> Option<JsonValue<'d>> {
        self.0.next()
    }
}

/// The members of an object, in the order of the text.
#[derive(Clone, Debug)]
pub struct JsonMembers<'d>(JsonChildren<'d>);

impl<'d> Iterator for JsonMembers<'d> {
    type Item = (Cow<'d, str>, JsonValue<'d>);
    fn next(&mut self) -> Option<(Cow<'d, str>, JsonValue<'d>)> {
        let (name, value) = (self.0.next()?, self.0.next()?);
        Some((name.as_str()?, value))
    }
}

/// The name of a member, as spelled in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameSpelling<'d> {
    /// Without escapes.
    Plain(&'d str),
    /// With escapes, not resolved.
    Escaped(&'d str),
}

impl<'d> NameSpelling<'d> {
    /// Returns the characters with escapes resolved.
    pub fn decoded(self) -> DecodedChars<'d> {
        match self {
            // Without backslashes there is nothing to resolve.
            Self::Plain(own) | Self::Escaped(own) => DecodedChars::new(own),
        }
    }

    /// Returns true if this is a spelling of that name.
    pub fn is(self, name: &str) -> bool {
        match self {
            Self::Plain(own) => own == name,
            Self::Escaped(_) => self.decoded().eq(name.chars()),
        }
    }
}

/// The members of an object like [`JsonMembers`], without the cost of resolving escapes.
#[derive(Clone, Debug)]
pub struct JsonEntries<'d>(JsonChildren<'d>);

impl<'d> Iterator for JsonEntries<'d> {
    type Item = (NameSpelling<'d>, JsonValue<'d>);
    fn next(&mut self) -> Option<(NameSpelling<'d>, JsonValue<'d>)> {
        let (name, value) = (self.0.next()?, self.0.next()?);
        Some((name.spelling(), value))
    }
}

/// The nodes directly below a node: the items of an array, or alternately the names and values of an object.
#[derive(Clone)]
struct JsonChildren<'d> {
    document: &'d JsonDocument<'d>,
    next: usize,
    end: usize,
}

impl<'d> Iterator for JsonChildren<'d> {
    type Item = JsonValue<'d>;
    fn next(&mut self) -> Option<JsonValue<'d>> {
        if self.next >= self.end {
            return None;
        }
        let value = JsonValue { document: self.document, index: self.next };
        self.next = value.place_after();
        Some(value)
    }
}

impl fmt::Debug for JsonChildren<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// Returns a number with a fraction, an exponent or a sign as an integer, if it is one and fits.
fn whole_number(text: &str) -> Option<u64> {
    if let Some((whole, fraction)) = text.split_once('.')
        && fraction.bytes().all(|digit| digit == b'0')
    {
        // Parsed from the digits, because a double would lose some.
        return whole.parse().ok().or_else(|| (whole == "-0").then_some(0));
    }
    let number: f64 = text.parse().ok()?;
    // 2^64 is the first value that does not fit. Below it, an integral double is exactly one integer.
    let fits = number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was checked to fit")]
    fits.then_some(number as u64)
}

/// Returns the member name in one step of a pointer, if it is well formed.
fn pointer_name(step: &str) -> Option<Cow<'_, str>> {
    if !step.contains('~') {
        return Some(Cow::Borrowed(step));
    }
    let mut parts = step.split('~');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let rest = match (part.strip_prefix('0'), part.strip_prefix('1')) {
            (Some(rest), _) => {
                name.push('~');
                rest
            }
            (None, Some(rest)) => {
                name.push('/');
                rest
            }
            (None, None) => return None,
        };
        name.push_str(rest);
    }
    Some(Cow::Owned(name))
}

/// Returns the array index in one step of a pointer: digits without leading zeros.
fn pointer_place(step: &str) -> Option<usize> {
    let is_plain = step.bytes().all(|byte| byte.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
    is_plain.then(|| step.parse().ok()).flatten()
}

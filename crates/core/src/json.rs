//! JSON as it came: read once, kept as text, never printed again.
//!
//! A document is one flat table of nodes over the text it was read from. Two things ask for a reader of our
//! own: what a key is computed from must keep every digit of a number (a common reader rounds to a double),
//! and it is read on the way of every call (a tree with a map and a string for each value costs more than
//! everything else that the core does). Strings and names are borrowed unless they have escapes.
//!
//! It is strict, because two readers that understand one text differently are how a call that was checked
//! becomes another call when it runs: RFC 8259 to the letter, names unique within their object (also when
//! spelled with different escapes), surrogates paired, depth and size limited. Every mistake says where it
//! is.

mod read;
#[cfg(test)]
pub(crate) mod tests;
mod text;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use self::read::Node;
pub(crate) use self::read::Shape;
use self::text::Decoded;
pub(crate) use self::text::escape;

/// How much JSON is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of text; at most 4 GiB whatever is set.
    pub bytes: usize,
    /// Containers within containers.
    pub depth: usize,
}

impl Limits {
    /// What an envelope may be: 1 MiB, 64 deep.
    pub const ENVELOPE: Self = Self { bytes: 1 << 20, depth: 64 };
    /// For the parameters of an envelope that a surface made itself: how long and how deep its messages may be it has seen to
    /// already, and a tool that writes files takes long ones.
    pub const PARAMS: Self = Self { bytes: 64 << 20, depth: 128 };
}

/// What is wrong with a text that should be JSON, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// The byte at which reading stopped.
    pub offset: usize,
    /// What is wrong there, in words.
    pub problem: Cow<'static, str>,
}

impl JsonError {
    /// The mistake's place as an editor shows it; `text` is what was read.
    pub fn position(&self, text: &[u8]) -> Position {
        let before = text.get(..self.offset).unwrap_or(text);
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let is_character_start = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
        Position {
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + before.iter().skip(line_start).filter(is_character_start).count(),
        }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.problem, self.offset)
    }
}

impl std::error::Error for JsonError {}

/// A place in a text, both counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character within the line.
    pub column: usize,
}

/// A text that was read as JSON.
#[derive(Clone, Debug)]
pub struct Document<'t> {
    text: &'t str,
    nodes: Vec<Node>,
}

impl<'t> Document<'t> {
    /// Reads a text.
    pub fn parse(text: &'t [u8], limits: Limits) -> Result<Self, JsonError> {
        let most = limits.bytes.min(read::MOST_BYTES);
        if text.len() > most {
            let problem = format!("the text is {} bytes long, at most {most} are allowed", text.len());
            return Err(JsonError { offset: most, problem: problem.into() });
        }
        let text = std::str::from_utf8(text).map_err(|error| JsonError {
            offset: error.valid_up_to(),
            problem: "the text is not valid UTF-8".into(),
        })?;
        Ok(Self { text, nodes: read::read(text, limits.depth)? })
    }

    /// The whole of it.
    pub fn root(&self) -> Value<'_> {
        Value { document: self, index: 0 }
    }

    /// The text that it was read from.
    pub fn text(&self) -> &'t str {
        self.text
    }
}

/// One value within a document.
#[derive(Clone, Copy)]
pub struct Value<'d> {
    document: &'d Document<'d>,
    index: usize,
}

/// What a value is.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants are JSON's own")]
pub enum Kind<'d> {
    Null,
    Bool(bool),
    /// As it stands in the text.
    Number(&'d str),
    /// With its escapes resolved.
    String(Cow<'d, str>),
    Array(Items<'d>),
    Object(Members<'d>),
}

impl Kind<'_> {
    /// What to call it in a message: "a string", "an object".
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

impl<'d> Value<'d> {
    /// What it is.
    pub fn kind(self) -> Kind<'d> {
        let node = self.node();
        match node.shape {
            Shape::Null => Kind::Null,
            Shape::True => Kind::Bool(true),
            Shape::False => Kind::Bool(false),
            Shape::Number => Kind::Number(self.raw()),
            Shape::Plain => Kind::String(Cow::Borrowed(self.inner())),
            Shape::Escaped => Kind::String(text::unescape(self.inner())),
            Shape::Array => Kind::Array(Items(self.children())),
            Shape::Object => Kind::Object(Members(self.children())),
        }
    }

    /// Its text, as it stands in the document.
    pub fn raw(self) -> &'d str {
        self.document.text.get(self.span()).unwrap_or_default()
    }

    /// Where its text stands in the document, in bytes.
    pub fn span(self) -> Range<usize> {
        let node = self.node();
        node.start as usize..node.end as usize
    }

    /// The member of this name, if it is an object that has one.
    pub fn get(self, name: &str) -> Option<Value<'d>> {
        self.entries()?.find(|(own, _)| own.is(name)).map(|(_, value)| value)
    }

    /// The value at this place, counted from zero, if it is an array that is long enough.
    pub fn item(self, place: usize) -> Option<Value<'d>> {
        self.items()?.nth(place)
    }

    /// The value that a JSON Pointer (RFC 6901) leads to; the empty pointer leads to the value itself.
    pub fn pointer(self, pointer: &str) -> Option<Value<'d>> {
        if pointer.is_empty() {
            return Some(self);
        }
        let steps = pointer.strip_prefix('/')?;
        steps.split('/').try_fold(self, |value, step| match value.node().shape {
            Shape::Object => value.get(&pointer_name(step)?),
            Shape::Array => value.item(pointer_place(step)?),
            Shape::Null | Shape::True | Shape::False | Shape::Number | Shape::Plain | Shape::Escaped => None,
        })
    }

    /// The text, if it is a string.
    pub fn as_str(self) -> Option<Cow<'d, str>> {
        match self.kind() {
            Kind::String(text) => Some(text),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Array(_) | Kind::Object(_) => None,
        }
    }

    /// The number as it stands in the text, if it is one.
    pub fn as_number(self) -> Option<&'d str> {
        (self.node().shape == Shape::Number).then(|| self.raw())
    }

    /// The number, if it is a whole one that fits: `23`, and `23.0` and `2.3e1`, which mean the same.
    pub fn as_u64(self) -> Option<u64> {
        let number = self.as_number()?;
        number.parse().ok().or_else(|| whole_number(number))
    }

    /// The double nearest to the number, if it is one and a double can be near to it.
    pub fn as_f64(self) -> Option<f64> {
        self.as_number()?.parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// The truth value, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        match self.kind() {
            Kind::Bool(truth) => Some(truth),
            Kind::Null | Kind::Number(_) | Kind::String(_) | Kind::Array(_) | Kind::Object(_) => None,
        }
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        self.node().shape == Shape::Null
    }

    /// Whether it is an object.
    pub fn is_object(self) -> bool {
        self.node().shape == Shape::Object
    }

    /// Its values, if it is an array.
    pub fn items(self) -> Option<Items<'d>> {
        (self.node().shape == Shape::Array).then(|| Items(self.children()))
    }

    /// Its members, if it is an object.
    pub fn members(self) -> Option<Members<'d>> {
        self.entries().map(|entries| Members(entries.0))
    }

    /// Its members with their names still in the spelling of the text, if it is an object.
    pub(crate) fn entries(self) -> Option<Entries<'d>> {
        self.is_object().then(|| Entries(self.children()))
    }

    /// Its place in the table of its document; for those who keep places rather than values.
    pub(crate) fn place(self) -> usize {
        self.index
    }

    /// Another value of the same document.
    pub(crate) fn at(self, place: usize) -> Self {
        Self { index: place, ..self }
    }

    /// The place behind everything that is in it.
    pub(crate) fn place_after(self) -> usize {
        self.node().after as usize
    }

    /// How a string (or a name) is spelled.
    pub(crate) fn spelling(self) -> Spelling<'d> {
        match self.shape() == Shape::Escaped {
            true => Spelling::Escaped(self.inner()),
            false => Spelling::Plain(self.inner()),
        }
    }

    /// What it is, without looking into it.
    pub(crate) fn shape(self) -> Shape {
        self.node().shape
    }

    /// The text between the quotes, escapes not resolved. Only for strings.
    pub(crate) fn inner(self) -> &'d str {
        let Range { start, end } = self.span();
        self.document.text.get(start.saturating_add(1)..end.saturating_sub(1)).unwrap_or_default()
    }

    fn node(self) -> Node {
        // The index comes from the table itself, so there is always a node.
        self.document.nodes.get(self.index).copied().unwrap_or(Node::NOTHING)
    }

    fn children(self) -> Children<'d> {
        Children { document: self.document, next: self.index + 1, end: self.place_after() }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.raw())
    }
}

/// The values of an array, in order.
#[derive(Clone, Debug)]
pub struct Items<'d>(Children<'d>);

impl<'d> Iterator for Items<'d> {
    type Item = Value<'d>;
    fn next(&mut self) -> Option<Value<'d>> {
        self.0.next()
    }
}

/// The members of an object, in the order of the text.
#[derive(Clone, Debug)]
pub struct Members<'d>(Children<'d>);

impl<'d> Iterator for Members<'d> {
    type Item = (Cow<'d, str>, Value<'d>);
    fn next(&mut self) -> Option<(Cow<'d, str>, Value<'d>)> {
        let (name, value) = (self.0.next()?, self.0.next()?);
        Some((name.as_str()?, value))
    }
}

/// A member's name as it is spelled in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling<'d> {
    /// Without escapes.
    Plain(&'d str),
    /// With escapes, not resolved.
    Escaped(&'d str),
}

impl<'d> Spelling<'d> {
    /// The characters that it means.
    pub(crate) fn decoded(self) -> Decoded<'d> {
        match self {
            // Without backslashes there is nothing to resolve.
            Self::Plain(own) | Self::Escaped(own) => Decoded::new(own),
        }
    }

    /// Whether this is how someone may spell that name.
    pub(crate) fn is(self, name: &str) -> bool {
        match self {
            Self::Plain(own) => own == name,
            Self::Escaped(_) => self.decoded().eq(name.chars()),
        }
    }
}

/// Like [`Members`], for those who must not pay for resolving escapes.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'d>(Children<'d>);

impl<'d> Iterator for Entries<'d> {
    type Item = (Spelling<'d>, Value<'d>);
    fn next(&mut self) -> Option<(Spelling<'d>, Value<'d>)> {
        let (name, value) = (self.0.next()?, self.0.next()?);
        Some((name.spelling(), value))
    }
}

/// The nodes directly below one: the values of an array; names and values of an object by turns.
#[derive(Clone)]
struct Children<'d> {
    document: &'d Document<'d>,
    next: usize,
    end: usize,
}

impl<'d> Iterator for Children<'d> {
    type Item = Value<'d>;
    fn next(&mut self) -> Option<Value<'d>> {
        if self.next >= self.end {
            return None;
        }
        let value = Value { document: self.document, index: self.next };
        self.next = value.place_after();
        Some(value)
    }
}

impl fmt::Debug for Children<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// A number with a fraction, an exponent or a sign, if it is whole and fits.
fn whole_number(text: &str) -> Option<u64> {
    if let Some((whole, fraction)) = text.split_once('.')
        && fraction.bytes().all(|digit| digit == b'0')
    {
        // Every digit counts, which a double could not keep.
        return whole.parse().ok().or_else(|| (whole == "-0").then_some(0));
    }
    let number: f64 = text.parse().ok()?;
    // 2^64 is the first that does not fit; below it, a whole double is exactly one number.
    let fits = number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was checked to fit")]
    fits.then_some(number as u64)
}

/// The name that one step of a pointer means, if it is well formed.
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

/// The place that one step of a pointer means: digits without needless zeros.
fn pointer_place(step: &str) -> Option<usize> {
    let is_plain = step.bytes().all(|byte| byte.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
    is_plain.then(|| step.parse().ok()).flatten()
}

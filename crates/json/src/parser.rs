//! The parser: one pass over the text, one node for each name and value, no recursion.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::JsonError;
use super::text::{DecodedChars, escape};

/// Maximum size of a text, because nodes store offsets as 32 bits.
pub(super) const MOST_BYTES: usize = (u32::MAX - 1) as usize;

/// A node: a name or a value. The nodes of a container follow it in the table, a name always right before its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonNode {
    /// Offset of the start of its text.
    pub(super) start: u32,
    /// Offset of the end of its text.
    pub(super) end: u32,
    /// Index in the table after everything inside it. While a container is being read, the index of its parent.
    pub(super) after: u32,
    pub(super) shape: NodeShape,
}

impl JsonNode {
    /// The node of an index that is not in the table.
    pub(super) const MISSING: Self = Self { start: 0, end: 0, after: u32::MAX, shape: NodeShape::Null };
}

/// The shape of a node, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are JSON's own")]
pub enum NodeShape {
    Null,
    True,
    False,
    Number,
    /// A string without escapes.
    Plain,
    /// A string with escapes.
    Escaped,
    Array,
    Object,
}

/// Parses a text into a table of nodes.
pub(super) fn read(text: &str, depth: usize) -> Result<Vec<JsonNode>, JsonError> {
    // An estimate that suits arguments of calls. A long text may well be one long string.
    let nodes = Vec::with_capacity((text.len() / 8 + 1).min(1024));
    let names = Vec::with_capacity(FEW);
    let mut reader = JsonParser { text, at: 0, nodes, around: OUTSIDE, room: depth, depth, names };
    reader.document()?;
    Ok(reader.nodes)
}

/// The index that means "no container".
const OUTSIDE: u32 = u32::MAX;

/// Up to this number of names are compared pairwise. More are sorted first.
const FEW: usize = 8;

struct JsonParser<'t> {
    text: &'t str,
    at: usize,
    nodes: Vec<JsonNode>,
    /// The innermost open container. Its parents are linked through `after`.
    around: u32,
    /// Number of further levels that may be opened.
    room: usize,
    depth: usize,
    /// A buffer reused for each object, so that the check of names does not allocate.
    names: Vec<JsonNode>,
}

/// The content after the opening bracket of a container.
enum ContainerOpening {
    /// The closing bracket, which was read too.
    Empty,
    /// The first value (after its name, which was read too).
    Filled,
}

impl JsonParser<'_> {
    fn document(&mut self) -> Result<(), JsonError> {
        loop {
            self.skip_space();
            match self.peek() {
                Some(b'"') => self.string()?,
                Some(b'{') => match self.open(NodeShape::Object)? {
                    ContainerOpening::Filled => continue,
                    ContainerOpening::Empty => {}
                },
                Some(b'[') => match self.open(NodeShape::Array)? {
                    ContainerOpening::Filled => continue,
                    ContainerOpening::Empty => {}
                },
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word("true", NodeShape::True)?,
                Some(b'f') => self.word("false", NodeShape::False)?,
                Some(b'n') => self.word("null", NodeShape::Null)?,
                _ => return Err(self.expected("a value")),
            }
            if !self.find_next_value()? {
                return Ok(());
            }
        }
    }

    /// Continues after a value: closes ended containers and goes to the next value, if there is one.
    fn find_next_value(&mut self) -> Result<bool, JsonError> {
        loop {
            self.skip_space();
            let shape = self.nodes.get(self.around as usize).map(|node| node.shape);
            match (shape, self.peek()) {
                (None, None) => return Ok(false),
                (None, Some(_)) => return Err(self.expected("nothing after the value")),
                (Some(NodeShape::Object), Some(b',')) => {
                    self.at += 1;
                    self.skip_space();
                    self.name()?;
                    return Ok(true);
                }
                (Some(NodeShape::Object), Some(b'}')) => self.close_object()?,
                (Some(NodeShape::Object), _) => return Err(self.expected("`,` or `}`")),
                (Some(_), Some(b',')) => {
                    self.at += 1;
                    return Ok(true);
                }
                (Some(_), Some(b']')) => self.close(),
                (Some(_), _) => return Err(self.expected("`,` or `]`")),
            }
        }
    }

    fn open(&mut self, shape: NodeShape) -> Result<ContainerOpening, JsonError> {
        if self.room == 0 {
            return Err(self.wrong(format!("nested more than {} levels deep", self.depth)));
        }
        self.room -= 1;
        let index = place(self.nodes.len());
        self.nodes.push(JsonNode { start: place(self.at), end: 0, after: self.around, shape });
        self.around = index;
        self.at += 1;
        self.skip_space();
        match (shape, self.peek()) {
            (NodeShape::Object, Some(b'}')) | (NodeShape::Array, Some(b']')) => {
                self.close();
                Ok(ContainerOpening::Empty)
            }
            (NodeShape::Object, _) => self.name().map(|()| ContainerOpening::Filled),
            _ => Ok(ContainerOpening::Filled),
        }
    }

    fn close(&mut self) {
        self.at += 1;
        self.room += 1;
        let after = place(self.nodes.len());
        if let Some(node) = self.nodes.get_mut(self.around as usize) {
            self.around = std::mem::replace(&mut node.after, after);
            node.end = place(self.at);
        }
    }

    fn close_object(&mut self) -> Result<(), JsonError> {
        self.names.clear();
        let mut next = self.around as usize + 1;
        while let (Some(name), Some(value)) = (self.nodes.get(next), self.nodes.get(next + 1)) {
            self.names.push(*name);
            next = value.after as usize;
        }
        if let Some(again) = first_repeated(self.text, &mut self.names) {
            let name: String = DecodedChars::new(inner(self.text, again)).take(64).collect();
            let problem = format!("duplicate name {name:?} in one object");
            return Err(JsonError { offset: again.start as usize, problem: problem.into() });
        }
        self.close();
        Ok(())
    }

    /// Reads the name of a member and the colon after it.
    fn name(&mut self) -> Result<(), JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a name in quotes"));
        }
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.expected("`:`"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        let mut shape = NodeShape::Plain;
        self.at += 1;
        loop {
            self.skip_plain();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.push(start, shape);
                    return Ok(());
                }
                Some(b'\\') => {
                    shape = NodeShape::Escaped;
                    let content_start = self.at + 1;
                    let rest = self.text.as_bytes().get(content_start..).unwrap_or_default();
                    let (_, length) = escape(rest).map_err(|bad| JsonError {
                        offset: content_start + bad.offset,
                        problem: bad.problem.into(),
                    })?;
                    self.at = content_start + length;
                }
                Some(_) => return Err(self.wrong("a control character in a string must be escaped")),
                None => return Err(self.wrong(format!("the string that begins at byte {start} has no end"))),
            }
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let leads_with_zero = self.peek() == Some(b'0');
        let whole = self.at;
        self.digits()?;
        if leads_with_zero && self.at > whole + 1 {
            return Err(JsonError { offset: whole, problem: "a number must not have leading zeros".into() });
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
        self.push(start, NodeShape::Number);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.expected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &str, shape: NodeShape) -> Result<(), JsonError> {
        let start = self.at;
        if !self.text.as_bytes().get(start..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            return Err(self.wrong(format!("expected `{word}`")));
        }
        self.at += word.len();
        self.push(start, shape);
        Ok(())
    }

    fn push(&mut self, start: usize, shape: NodeShape) {
        let after = place(self.nodes.len() + 1);
        self.nodes.push(JsonNode { start: place(start), end: place(self.at), after, shape });
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Goes to the next quote, backslash or control character, eight bytes at a time.
    fn skip_plain(&mut self) {
        while let Some(word) = self.text.as_bytes().get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
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
    fn expected(&self, item: &str) -> JsonError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => self.wrong(format!("expected {item}, found {found:?}")),
            None => self.wrong(format!("expected {item}, found the end of the text")),
        }
    }

    #[cold]
    fn wrong(&self, problem: impl Into<Cow<'static, str>>) -> JsonError {
        JsonError { offset: self.at, problem: problem.into() }
    }
}

/// Converts an offset or an index. The limit on bytes keeps both within 32 bits.
fn place(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
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

/// Returns the first duplicate name, if there is one.
fn first_repeated(text: &str, names: &mut [JsonNode]) -> Option<JsonNode> {
    if names.len() <= FEW {
        let mut rest = &names[..];
        let mut found = None;
        while let [name, others @ ..] = rest {
            let again = others.iter().find(|other| is_same(text, *name, **other)).copied();
            found = earlier(found, again);
            rest = others;
        }
        return found;
    }
    // Sorting avoids a pairwise comparison of a hundred thousand names.
    if names.iter().all(|name| name.shape == NodeShape::Plain) {
        names.sort_unstable_by(|a, b| inner(text, *a).cmp(inner(text, *b)).then(a.start.cmp(&b.start)));
    } else {
        names.sort_unstable_by(|a, b| compare_decoded(text, *a, *b).then(a.start.cmp(&b.start)));
    }
    let pairs = names.iter().zip(names.iter().skip(1));
    pairs
        .filter(|(a, b)| is_same(text, **a, **b))
        .fold(None, |found, (_, again)| earlier(found, Some(*again)))
}

fn earlier(a: Option<JsonNode>, b: Option<JsonNode>) -> Option<JsonNode> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.start <= b.start { a } else { b }),
        (a, b) => a.or(b),
    }
}

fn is_same(text: &str, a: JsonNode, b: JsonNode) -> bool {
    if a.shape == NodeShape::Plain && b.shape == NodeShape::Plain {
        return a.end - a.start == b.end - b.start && inner(text, a) == inner(text, b);
    }
    compare_decoded(text, a, b) == Ordering::Equal
}

fn compare_decoded(text: &str, a: JsonNode, b: JsonNode) -> Ordering {
    DecodedChars::new(inner(text, a)).cmp(DecodedChars::new(inner(text, b)))
}

/// Returns the text between the quotes.
fn inner(text: &str, name: JsonNode) -> &str {
    text.get(name.start as usize + 1..(name.end as usize).saturating_sub(1)).unwrap_or_default()
}

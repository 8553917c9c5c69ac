//! The values of a configuration, with their byte positions.
//!
//! Two formats (`json`, `toml`) give the same tree, so changes are decided in one place. The text is changed at exactly
//! these bytes. It is never printed from the tree: comments, order and white space of the author are kept.

use std::ops::Range;

use steadfast_json::{JsonError, TextPosition};

/// A value with its position.
#[derive(Debug)]
pub(super) struct SpannedNode {
    pub(super) span: Range<usize>,
    pub(super) value: SpannedValue,
}

/// The part of a value that is needed to find servers.
#[derive(Debug)]
pub(super) enum SpannedValue {
    Text(String),
    List(Vec<SpannedNode>),
    Table(Vec<TableMember>),
    /// Any other value, described in words.
    Other(&'static str),
}

#[derive(Debug)]
pub(super) struct TableMember {
    pub(super) name: String,
    pub(super) name_span: Range<usize>,
    pub(super) node: SpannedNode,
}

/// An error in a text, with its byte position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) offset: usize,
    pub(super) message: String,
}

impl SyntaxError {
    pub(super) fn new(offset: usize, message: impl Into<String>) -> Self {
        Self { offset, message: message.into() }
    }

    /// Returns its position as an editor shows it. The line itself is not shown, because it may hold a secret.
    pub(super) fn position(&self, text: &str) -> TextPosition {
        let at = JsonError { offset: self.offset, problem: "".into() };
        at.position(text.as_bytes())
    }
}

impl SpannedNode {
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            SpannedValue::Text(text) => Some(text),
            SpannedValue::List(_) | SpannedValue::Table(_) | SpannedValue::Other(_) => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        match &self.value {
            SpannedValue::List(items) => Some(items),
            SpannedValue::Text(_) | SpannedValue::Table(_) | SpannedValue::Other(_) => None,
        }
    }

    pub(super) fn members(&self) -> Option<&[TableMember]> {
        match &self.value {
            SpannedValue::Table(members) => Some(members),
            SpannedValue::Text(_) | SpannedValue::List(_) | SpannedValue::Other(_) => None,
        }
    }

    pub(super) fn describe(&self) -> &'static str {
        match &self.value {
            SpannedValue::Text(_) => "a text",
            SpannedValue::List(_) => "a list",
            SpannedValue::Table(_) => "a table",
            SpannedValue::Other(kind) => kind,
        }
    }
}

/// Returns the member with this name. Parsers disagree about which of two counts, so a duplicate is an error.
pub(super) fn member<'m>(
    members: &'m [TableMember],
    name: &str,
) -> Result<Option<&'m TableMember>, SyntaxError> {
    let mut named = members.iter().filter(|member| member.name == name);
    let found = named.next();
    match named.next() {
        None => Ok(found),
        Some(again) => Err(SyntaxError::new(again.name_span.start, format!("`{name}` occurs twice"))),
    }
}

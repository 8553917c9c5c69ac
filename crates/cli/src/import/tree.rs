//! The values of a configuration, with their byte positions.
//!
//! Two formats (`json`, `toml`) give the same tree, so changes are decided in one place. The text is changed at exactly
//! these bytes. It is never printed from the tree: comments, order and white space of the author are kept.

use std::ops::Range;

use steadfast_core::json::{JsonError, Position};

/// A value with its position.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) span: Range<usize>,
    pub(super) value: Value,
}

/// The part of a value that is needed to find servers.
#[derive(Debug)]
pub(super) enum Value {
    Text(String),
    List(Vec<Node>),
    Table(Vec<Member>),
    /// Any other value, described in words.
    Other(&'static str),
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) name_span: Range<usize>,
    pub(super) node: Node,
}

/// An error in a text, with its byte position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) offset: usize,
    pub(super) what: String,
}

impl Mistake {
    pub(super) fn new(offset: usize, what: impl Into<String>) -> Self {
        Self { offset, what: what.into() }
    }

    /// Returns its position as an editor shows it. The line itself is not shown, because it may hold a secret.
    pub(super) fn position(&self, text: &str) -> Position {
        let at = JsonError { offset: self.offset, problem: "".into() };
        at.position(text.as_bytes())
    }
}

impl Node {
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::List(_) | Value::Table(_) | Value::Other(_) => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        match &self.value {
            Value::List(items) => Some(items),
            Value::Text(_) | Value::Table(_) | Value::Other(_) => None,
        }
    }

    pub(super) fn members(&self) -> Option<&[Member]> {
        match &self.value {
            Value::Table(members) => Some(members),
            Value::Text(_) | Value::List(_) | Value::Other(_) => None,
        }
    }

    pub(super) fn describe(&self) -> &'static str {
        match &self.value {
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(what) => what,
        }
    }
}

/// Returns the member with this name. Parsers disagree about which of two counts, so a duplicate is an error.
pub(super) fn member<'m>(members: &'m [Member], name: &str) -> Result<Option<&'m Member>, Mistake> {
    let mut named = members.iter().filter(|member| member.name == name);
    let found = named.next();
    match named.next() {
        None => Ok(found),
        Some(again) => Err(Mistake::new(again.name_span.start, format!("`{name}` is written twice"))),
    }
}

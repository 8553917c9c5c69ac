//! A second reader of JSON, with which the core's reader is compared: serde_json one level at a time, with the core's
//! additional rules in their simplest form.
//!
//! One level at a time, because `serde_json::Value` would refuse huge numbers and drop duplicate names.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON value as a tree. Numbers keep their text, and members their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Number(String),
    String(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Reads a text. `None` if it is not JSON, too deep, or repeats a name.
pub(crate) fn read(text: &[u8], depth: usize) -> Option<Tree> {
    let text = str::from_utf8(text).ok()?;
    tree(serde_json::from_str(text).ok()?, depth)
}

/// Returns the nesting depth of containers.
pub(crate) fn depth(tree: &Tree) -> usize {
    match tree {
        Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::String(_) => 0,
        Tree::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Tree::Object(members) => 1 + members.iter().map(|(_, value)| depth(value)).max().unwrap_or(0),
    }
}

fn tree(value: &RawValue, room: usize) -> Option<Tree> {
    let text = value.get();
    Some(match text.bytes().next()? {
        b'n' => Tree::Null,
        b't' => Tree::Bool(true),
        b'f' => Tree::Bool(false),
        // Only here are escapes resolved, and lone surrogates refused.
        b'"' => Tree::String(serde_json::from_str(text).ok()?),
        b'[' => {
            let room = room.checked_sub(1)?;
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Tree::Array(items.into_iter().map(|item| tree(item, room)).collect::<Option<_>>()?)
        }
        b'{' => {
            let room = room.checked_sub(1)?;
            let Members(members) = serde_json::from_str(text).ok()?;
            let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            if names.len() < members.len() {
                return None;
            }
            let read = members.into_iter().map(|(name, member)| Some((name, tree(member, room)?)));
            Tree::Object(read.collect::<Option<_>>()?)
        }
        _ => Tree::Number(text.to_owned()),
    })
}

struct Members<'t>(Vec<(String, &'t RawValue)>);

impl<'t> Deserialize<'t> for Members<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'t> Visitor<'t> for All {
            type Value = Members<'t>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

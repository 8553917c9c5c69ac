//! A second reader of JSON, with which the core's reader is compared: serde_json one level at a time, with the core's
//! additional rules in their simplest form.
//!
//! One level at a time, because `serde_json::Value` would refuse huge numbers and drop duplicate names.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON value as a tree. Numbers keep their text, and members their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonTree {
    Null,
    Bool(bool),
    Number(String),
    String(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Reads a text. `None` if it is not JSON, too deep, or repeats a name.
pub(crate) fn read(text: &[u8], depth: usize) -> Option<JsonTree> {
    let text = str::from_utf8(text).ok()?;
    tree(serde_json::from_str(text).ok()?, depth)
}

/// Returns the nesting depth of containers.
pub(crate) fn depth(tree: &JsonTree) -> usize {
    match tree {
        JsonTree::Null | JsonTree::Bool(_) | JsonTree::Number(_) | JsonTree::String(_) => 0,
        JsonTree::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        JsonTree::Object(members) => 1 + members.iter().map(|(_, value)| depth(value)).max().unwrap_or(0),
    }
}

fn tree(value: &RawValue, room: usize) -> Option<JsonTree> {
    let text = value.get();
    Some(match text.bytes().next()? {
        b'n' => JsonTree::Null,
        b't' => JsonTree::Bool(true),
        b'f' => JsonTree::Bool(false),
        // Only here are escapes resolved, and lone surrogates refused.
        b'"' => JsonTree::String(serde_json::from_str(text).ok()?),
        b'[' => {
            let room = room.checked_sub(1)?;
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            JsonTree::Array(items.into_iter().map(|item| tree(item, room)).collect::<Option<_>>()?)
        }
        b'{' => {
            let room = room.checked_sub(1)?;
            let TreeMembers(members) = serde_json::from_str(text).ok()?;
            let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            if names.len() < members.len() {
                return None;
            }
            let read = members.into_iter().map(|(name, member)| Some((name, tree(member, room)?)));
            JsonTree::Object(read.collect::<Option<_>>()?)
        }
        _ => JsonTree::Number(text.to_owned()),
    })
}

struct TreeMembers<'t>(Vec<(String, &'t RawValue)>);

impl<'t> Deserialize<'t> for TreeMembers<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'t> Visitor<'t> for MembersVisitor {
            type Value = TreeMembers<'t>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(TreeMembers(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

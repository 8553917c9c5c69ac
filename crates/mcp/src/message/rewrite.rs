//! Rewriting of a message by splicing: everything else is preserved byte for byte.

use std::ops::Range;

use bytes::Bytes;
use steadfast_json::scan;

use super::{MessageSpan, MessageSpans, RpcId, RpcMessage, locate};
use crate::json_text::JsonText;

/// Changes to a message. [`MessageRewrite::finish`] makes all of them at once.
#[derive(Clone, Debug)]
pub struct MessageRewrite<'m> {
    message: &'m RpcMessage,
    id: Option<RpcId>,
    params: Vec<(String, JsonText)>,
    meta: Vec<(String, Option<JsonText>)>,
}

impl<'m> MessageRewrite<'m> {
    pub(super) fn new(message: &'m RpcMessage) -> Self {
        Self { message, id: None, params: Vec::new(), meta: Vec::new() }
    }

    /// Replaces the id. A message without one stays without one.
    pub fn id(mut self, id: &RpcId) -> Self {
        self.id = Some(id.clone());
        self
    }

    /// Replaces the name in the parameters: the tool or prompt.
    pub fn name(self, name: &str) -> Self {
        self.param("name", JsonText::string(name))
    }

    /// Sets one member of the parameters, in its place or else as the first one. For `_meta` use [`MessageRewrite::meta`].
    pub fn param(mut self, name: &str, value: JsonText) -> Self {
        self.params.retain(|(other, _)| other != name);
        self.params.push((name.to_owned(), value));
        self
    }

    /// Sets one member of `_meta` (of a response: of the `_meta` in its result), in its place or else as the last
    /// one. An error has no `_meta`.
    pub fn meta(mut self, name: &str, value: JsonText) -> Self {
        self.meta.retain(|(other, _)| other != name);
        self.meta.push((name.to_owned(), Some(value)));
        self
    }

    /// Removes one member of `_meta`.
    pub fn without_meta(mut self, name: &str) -> Self {
        self.meta.retain(|(other, _)| other != name);
        self.meta.push((name.to_owned(), None));
        self
    }

    /// Returns the changed message.
    pub fn finish(self) -> RpcMessage {
        let message = self.message;
        let mut edits = self.edits();
        if edits.is_empty() {
            return message.clone();
        }
        edits.sort_by_key(|edit| edit.at.start);
        let text = spliced(&message.text, &edits);
        // Inserted text may have its own line breaks. The search is cheap beside the copy.
        let breaks = message.breaks || edits.iter().any(|edit| edit.with.contains(['\n', '\r']));
        // The places inside replaced text are unknown, so they are found again.
        let places = match edits.iter().any(|edit| edit.changes_offsets) {
            false => message.places.after(&edits),
            true => locate(&text).map(|(places, _)| places).unwrap_or_default(),
        };
        RpcMessage { text, places, shape: message.shape, spelled: message.spelled.clone(), breaks }
    }

    fn edits(&self) -> Vec<TextEdit> {
        let places = &self.message.places;
        let mut edits = Vec::new();
        if let (Some(id), Some(place)) = (&self.id, places.id) {
            edits.push(TextEdit { at: place.range(), with: id.as_str().to_owned(), changes_offsets: false });
        }
        // Members that an object is missing are inserted at its start, all in one piece.
        let mut first = String::new();
        for (name, value) in &self.params {
            match self.place_of_param(name) {
                Some(at) => {
                    edits.push(TextEdit { at, with: value.as_str().to_owned(), changes_offsets: false })
                }
                None => push_member(&mut first, name, value.as_str()),
            }
        }
        if !self.meta.is_empty() {
            match places.meta {
                Some(place) => {
                    if let Some(with) = meta_with(self.message.at(place), &self.meta) {
                        edits.push(TextEdit { at: place.range(), with, changes_offsets: true });
                    }
                }
                None => {
                    if let Some(with) = meta_with("{}", &self.meta) {
                        push_member(&mut first, "_meta", &with);
                    }
                }
            }
        }
        if !first.is_empty() {
            edits.extend(self.insertion(first));
        }
        edits
    }

    fn place_of_param(&self, name: &str) -> Option<Range<usize>> {
        let places = &self.message.places;
        let params = places.params?;
        if name == "name" {
            return places.name.map(MessageSpan::range);
        }
        let start = params.start as usize;
        let member = scan::members(self.message.at(params)).find(|member| member.name == name)?;
        Some(start + member.value.start..start + member.value.end)
    }

    /// Inserts members before those of the parameters or, in a response, of the result.
    fn insertion(&self, mut members: String) -> Option<TextEdit> {
        let places = &self.message.places;
        let edit = |at, with| Some(TextEdit { at, with, changes_offsets: true });
        let Some(place) = places.params.or(places.result) else {
            let insert_at = places.method?.end as usize;
            return edit(insert_at..insert_at, format!(",\"params\":{{{members}}}"));
        };
        let own = self.message.at(place);
        match own.strip_prefix('{').map(|inside| inside.trim_start().starts_with('}')) {
            Some(true) => {}
            Some(false) => members.push(','),
            None if own == "null" && places.params.is_some() => {
                return edit(place.range(), format!("{{{members}}}"));
            }
            // Parameters that are a list, or a result that is not an object, cannot have members.
            None => return None,
        }
        let inside = place.start as usize + 1;
        edit(inside..inside, members)
    }
}

/// The replacement of one part of the text.
#[derive(Clone, Debug)]
struct TextEdit {
    at: Range<usize>,
    with: String,
    /// True if there are routed fields in the replaced part.
    changes_offsets: bool,
}

fn spliced(text: &Bytes, edits: &[TextEdit]) -> Bytes {
    let added: usize = edits.iter().map(|edit| edit.with.len()).sum();
    let mut out = Vec::with_capacity(text.len() + added);
    let mut from = 0;
    for edit in edits {
        out.extend_from_slice(text.get(from..edit.at.start).unwrap_or_default());
        out.extend_from_slice(edit.with.as_bytes());
        from = edit.at.end;
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default());
    out.into()
}

impl MessageSpans {
    /// Returns the places after these edits, none of which may contain a place.
    fn after(self, edits: &[TextEdit]) -> Self {
        let moved = |place: Option<MessageSpan>| place.map(|place| place.after(edits));
        Self {
            version: moved(self.version),
            id: moved(self.id),
            method: moved(self.method),
            params: moved(self.params),
            result: moved(self.result),
            error: moved(self.error),
            name: moved(self.name),
            arguments: moved(self.arguments),
            meta: moved(self.meta),
            token: moved(self.token),
        }
    }
}

impl MessageSpan {
    fn after(self, edits: &[TextEdit]) -> Self {
        let Range { start, end } = self.range();
        let (mut new_start, mut new_end) = (start, end);
        for edit in edits {
            // An edit that ends before a point moves that point.
            if edit.at.end <= start {
                new_start = new_start + edit.with.len() - edit.at.len();
            }
            if edit.at.end <= end {
                new_end = new_end + edit.with.len() - edit.at.len();
            }
        }
        Self::new(new_start..new_end)
    }
}

/// Returns an object with some members set and others removed, if that changes it. Everything else in it is
/// preserved, including white space.
fn meta_with(object: &str, changes: &[(String, Option<JsonText>)]) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut missing: Vec<&(String, Option<JsonText>)> = changes.iter().collect();
    let mut from = 1;
    let mut members = scan::members(object).peekable();
    while let Some(member) = members.next() {
        // From after the last comma to before the next one, or to the closing brace.
        let to = match members.peek() {
            Some(next) => object.get(..next.name_at.start).and_then(|before| before.rfind(',')),
            None => object.rfind('}'),
        };
        let to = to.unwrap_or(member.value.end);
        let piece = |range: Range<usize>| object.get(range).unwrap_or_default();
        let change = missing.iter().position(|(name, _)| *name == member.name);
        match change.map(|at| missing.swap_remove(at)) {
            None => parts.push(piece(from..to).to_owned()),
            Some((_, None)) => {}
            Some((_, Some(value))) => parts.push(format!(
                "{}{}{}",
                piece(from..member.value.start),
                value.as_str(),
                piece(member.value.end..to)
            )),
        }
        from = to + 1;
    }
    // An object without members keeps its white space.
    let inside = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let space = inside.filter(|inside| inside.trim_ascii().is_empty()).unwrap_or_default();
    let is_changed = missing.len() < changes.len();
    let added = changes.iter().filter(|(name, _)| missing.iter().any(|(other, _)| other == name));
    let before = parts.len();
    for (name, value) in added {
        if let Some(value) = value {
            let mut part = String::new();
            push_member(&mut part, name, value.as_str());
            parts.push(part);
        }
    }
    (is_changed || parts.len() > before).then(|| format!("{{{}{space}}}", parts.join(",")))
}

fn push_member(out: &mut String, name: &str, value: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    scan::write_string(out, name);
    out.push(':');
    out.push_str(value);
}

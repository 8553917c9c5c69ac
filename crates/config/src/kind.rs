//! Types of setting values: counts, durations, sizes, shares, words, texts.
//!
//! A kind reads a value, shows it as it would be written, and describes itself for messages, for the
//! reference page and for the JSON Schema. A value that does not fit is refused with an example of one that does.

mod numbers;
mod texts;

use std::sync::Arc;

use serde_json::{Value as Json, json};

pub use numbers::parse_span;
pub(crate) use numbers::{Count, DurationKind, Growth, Number, RateKind, ShareKind, Size, show_span};
pub use texts::listen_address;
pub(crate) use texts::{
    ExpandedText, FilePath, MapKind, NameKind, PlainText, SecretMap, Socket, Text, Url, expanded,
};

use crate::diagnostics::nearest;
use crate::node::{ConfigNode, RawNode, shortened};
use crate::read_context::ReadContext;

/// The written form of a value of type `T`.
pub(crate) trait SettingKind<T>: Send + Sync {
    /// Returns the value, or reports a problem and returns `None`.
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<T>;
    /// Returns the value as it would be written.
    fn show(&self, value: &T) -> String;
    /// Describes the accepted values in words: "a whole number from 1 to 100".
    fn takes(&self) -> String;
    /// Returns the JSON Schema of the values.
    fn schema(&self) -> Json;
    /// Returns true if a variable or a flag can hold a value.
    fn is_scalar(&self) -> bool {
        true
    }
}

/// A boolean.
pub(crate) struct BoolKind;

impl SettingKind<bool> for BoolKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<bool> {
        let truth = match &node.raw {
            RawNode::Boolean(truth) => Some(*truth),
            RawNode::Loose(text) => truth_of(text),
            RawNode::Integer(_)
            | RawNode::Float(_)
            | RawNode::String(_)
            | RawNode::Foreign(_)
            | RawNode::Array(_)
            | RawNode::Table(_) => None,
        };
        if truth.is_none() {
            let help = format!("write {} or `false`, without quotes", cx.with("true"));
            cx.wrong(node, &self.takes(), help);
        }
        truth
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }

    fn takes(&self) -> String {
        "true or false".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "boolean" })
    }
}

/// Parses a boolean as users write it in variables.
pub(crate) fn truth_of(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

/// One of several words.
pub(crate) struct WordKind<T: 'static>(pub(crate) &'static [(&'static str, T)]);

impl<T: Clone + PartialEq + Send + Sync> SettingKind<T> for WordKind<T> {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<T> {
        let word = node.text();
        let found = word.and_then(|word| self.0.iter().find(|(name, _)| *name == word));
        if found.is_none() {
            let names = self.0.iter().map(|(name, _)| *name);
            let help = match word.and_then(|word| nearest(word, names)) {
                Some(suggestion) => format!("did you mean {suggestion:?}?"),
                None if self.are_many() => self.takes(),
                None => format!("write for example {}", cx.with(format!("{:?}", self.first()))),
            };
            match self.are_many() {
                true => cx.wrong(node, "another word", help),
                false => cx.wrong(node, &self.takes(), help),
            }
        }
        found.map(|(_, value)| value.clone())
    }

    fn show(&self, value: &T) -> String {
        let name = self.0.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name);
        format!("{name:?}")
    }

    fn takes(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|(name, _)| format!("{name:?}")).collect();
        match names.as_slice() {
            [first, second] => format!("{first} or {second}"),
            _ => format!("one of {}", names.join(", ")),
        }
    }

    fn schema(&self) -> Json {
        json!({ "enum": self.0.iter().map(|(name, _)| *name).collect::<Vec<_>>() })
    }
}

impl<T> WordKind<T> {
    /// Returns true if there are too many words to list them in a sentence about something else.
    fn are_many(&self) -> bool {
        self.0.len() > 6
    }

    fn first(&self) -> &'static str {
        self.0.first().map_or("", |(name, _)| name)
    }
}

/// A value, or `"none"` for no value.
pub(crate) struct OptionalKind<K>(pub(crate) K);

impl<T: Send + Sync, K: SettingKind<T>> SettingKind<Option<T>> for OptionalKind<K> {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Option<T>> {
        if node.text() == Some("none") {
            return Some(None);
        }
        self.0.read(node, cx).map(Some)
    }

    fn show(&self, value: &Option<T>) -> String {
        value.as_ref().map_or_else(|| "\"none\"".to_owned(), |value| self.0.show(value))
    }

    fn takes(&self) -> String {
        format!("{}, or \"none\"", self.0.takes())
    }

    fn schema(&self) -> Json {
        json!({ "anyOf": [{ "const": "none" }, self.0.schema()] })
    }

    fn is_scalar(&self) -> bool {
        self.0.is_scalar()
    }
}

/// A list. It replaces the list of a less specific rule as a whole.
pub(crate) struct ListKind<K> {
    pub(crate) item: K,
    pub(crate) least: usize,
    pub(crate) most: usize,
}

impl<T: Send + Sync, K: SettingKind<T>> SettingKind<Arc<[T]>> for ListKind<K> {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Arc<[T]>> {
        let Some(items) = node.items() else {
            // A list that is written as one text is most often a command line.
            let words: Vec<String> = node
                .text()
                .unwrap_or("…")
                .split_whitespace()
                .map(|word| format!("{:?}", shortened(word)))
                .collect();
            cx.wrong(
                node,
                "a list",
                format!("put it into brackets: {}", cx.with(format!("[{}]", words.join(", ")))),
            );
            return None;
        };
        if items.len() < self.least || items.len() > self.most {
            let takes = format!("{} to {} items", self.least, self.most);
            let message = format!("`{}` takes {takes}, not {}", cx.name, items.len());
            cx.refuse(&node.place, message, "shorten or fill the list");
            return None;
        }
        let count = items.len();
        let read: Vec<T> = items.iter().filter_map(|item| self.item.read(item, cx)).collect();
        (read.len() == count).then(|| read.into())
    }

    fn show(&self, value: &Arc<[T]>) -> String {
        format!("[{}]", value.iter().map(|item| self.item.show(item)).collect::<Vec<_>>().join(", "))
    }

    fn takes(&self) -> String {
        format!("a list; each item is {}", self.item.takes())
    }

    fn schema(&self) -> Json {
        json!({ "type": "array", "items": self.item.schema(), "minItems": self.least, "maxItems": self.most })
    }

    fn is_scalar(&self) -> bool {
        self.item.is_scalar()
    }
}

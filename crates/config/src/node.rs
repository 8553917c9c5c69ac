//! Written values before they are interpreted: one tree for TOML, JSON, variables and flags.
//!
//! Every key and every value has its place. The tables of settings (`setting`) read the tree, so all formats get
//! the same checks and the same messages.

use std::sync::Arc;

use jsonc_parser::ast;
use jsonc_parser::common::{Range, Ranged as _};
use steadfast_core::json::{Document, Kind, Limits, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostics::Problem;
use crate::json5::{self, MOST_DEPTH, NotJson5};
use crate::place::{Place, SourceText};

/// Maximum size of a file.
pub(crate) const LARGEST_FILE: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) raw: Raw,
    pub(crate) place: Place,
}

#[derive(Clone, Debug)]
pub(crate) enum Raw {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    String(String),
    /// A variable or flag: text that may mean any scalar, or a list with commas.
    Loose(String),
    /// A value that no setting takes: a date, null, a number out of range.
    Foreign(&'static str),
    Array(Vec<Node>),
    Table(Table),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table(pub(crate) Vec<Entry>);

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_place: Place,
    pub(crate) node: Node,
}

impl Node {
    pub(crate) fn new(raw: Raw, place: &Place) -> Self {
        Self { raw, place: place.clone() }
    }

    /// Describes the value for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.raw {
            Raw::Boolean(truth) => format!("{truth}"),
            Raw::Integer(number) => format!("the number {number}"),
            Raw::Float(number) => format!("the number {number}"),
            Raw::String(text) | Raw::Loose(text) => format!("{:?}", shortened(text)),
            Raw::Foreign(what) => (*what).to_owned(),
            Raw::Array(_) => "a list".to_owned(),
            Raw::Table(_) => "a table".to_owned(),
        }
    }

    /// Returns the text, if the value is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.raw {
            Raw::String(text) | Raw::Loose(text) => Some(text),
            Raw::Boolean(_)
            | Raw::Integer(_)
            | Raw::Float(_)
            | Raw::Foreign(_)
            | Raw::Array(_)
            | Raw::Table(_) => None,
        }
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.raw {
            Raw::Table(table) => Some(table),
            Raw::Boolean(_)
            | Raw::Integer(_)
            | Raw::Float(_)
            | Raw::String(_)
            | Raw::Loose(_)
            | Raw::Foreign(_)
            | Raw::Array(_) => None,
        }
    }

    /// Returns the items of a list. Loose text is a list with commas.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        match &self.raw {
            Raw::Array(items) => Some(items.clone()),
            Raw::Loose(text) => Some(
                text.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(|item| Self::new(Raw::Loose(item.to_owned()), &self.place))
                    .collect(),
            ),
            Raw::Boolean(_)
            | Raw::Integer(_)
            | Raw::Float(_)
            | Raw::String(_)
            | Raw::Foreign(_)
            | Raw::Table(_) => None,
        }
    }
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    /// Inserts a value at a path of tables. Missing tables are created.
    pub(crate) fn insert(&mut self, path: &[&str], node: Node) {
        let Some((first, rest)) = path.split_first() else { return };
        let at = match self.0.iter().position(|entry| entry.key == *first) {
            Some(at) => at,
            None => {
                let raw = Raw::Table(Self::default());
                self.0.push(Entry {
                    key: (*first).to_owned(),
                    key_place: node.place.clone(),
                    node: Node::new(raw, &node.place),
                });
                self.0.len() - 1
            }
        };
        let Some(entry) = self.0.get_mut(at) else { return };
        match (&mut entry.node.raw, rest) {
            (_, []) => {
                entry.key_place = node.place.clone();
                entry.node = node;
            }
            (Raw::Table(table), rest) => table.insert(rest, node),
            (_, _) => {}
        }
    }
}

/// Parses a TOML text. Returns the tree and all syntax errors.
pub(crate) fn read_toml(source: &Arc<SourceText>) -> (Table, Vec<Problem>) {
    let (root, errors) = DeTable::parse_recoverable(&source.text);
    let problems = errors
        .into_iter()
        .map(|error| {
            let span = error.span().unwrap_or_default();
            let what = format!("this is not TOML: {}", error.message());
            Problem::new(&Place::File(source.clone(), span), what)
                .help("a setting is written as `name = value`, a text in quotes, a section as `[name]`")
        })
        .collect();
    (toml_table(source, root.get_ref()), problems)
}

fn toml_table(source: &Arc<SourceText>, table: &DeTable<'_>) -> Table {
    let entries = table.iter().map(|(key, value)| Entry {
        key: key.get_ref().to_string(),
        key_place: Place::File(source.clone(), key.span()),
        node: toml_node(source, value),
    });
    Table(entries.collect())
}

fn toml_node(source: &Arc<SourceText>, value: &Spanned<DeValue<'_>>) -> Node {
    let raw = match value.get_ref() {
        DeValue::String(text) => Raw::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Raw::Integer(number),
            Err(_) => Raw::Foreign("a number with too many digits"),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Raw::Float(number),
            Ok(_) | Err(_) => Raw::Foreign("a number without bounds"),
        },
        DeValue::Boolean(truth) => Raw::Boolean(*truth),
        DeValue::Datetime(_) => Raw::Foreign("a date"),
        DeValue::Array(items) => Raw::Array(items.iter().map(|item| toml_node(source, item)).collect()),
        DeValue::Table(table) => Raw::Table(toml_table(source, table)),
    };
    Node { raw, place: Place::File(source.clone(), value.span()) }
}

/// Parses a JSON text. The place of a key is that of its value. Text that is not JSON is read as JSON5, as OpenClaw
/// and editors allow it: comments, trailing commas, names without quotes, and so on.
pub(crate) fn read_json(source: &Arc<SourceText>) -> Result<Node, Problem> {
    let limits = Limits { bytes: LARGEST_FILE, depth: MOST_DEPTH };
    match Document::parse(source.text.as_bytes(), limits) {
        Ok(document) => Ok(json_node(source, document.root())),
        Err(_) => read_json5(source),
    }
}

fn read_json5(source: &Arc<SourceText>) -> Result<Node, Problem> {
    match json5::parse(&source.text) {
        Ok(root) => json5_node(source, &root, MOST_DEPTH),
        Err(NotJson5 { at, what }) => {
            let help = "names and texts are separated by `:`, entries by `,`; comments and a comma at the end are fine";
            let place = Place::File(source.clone(), at);
            Err(Problem::new(&place, format!("this is not JSON5: {what}")).help(help))
        }
    }
}

fn json5_node(source: &Arc<SourceText>, value: &ast::Value<'_>, depth: usize) -> Result<Node, Problem> {
    let at = |range: Range| Place::File(source.clone(), range.start..range.end);
    let place = at(value.range());
    let Some(within) = depth.checked_sub(1) else {
        return Err(Problem::new(&place, "it is nested too deeply").help("write it with fewer levels"));
    };
    let raw = match value {
        ast::Value::StringLit(text) => Raw::String(text.value.to_string()),
        ast::Value::NumberLit(number) => json5_number(number.value),
        ast::Value::BooleanLit(truth) => Raw::Boolean(truth.value),
        ast::Value::NullKeyword(_) => Raw::Foreign("null"),
        ast::Value::Array(list) => {
            let items = list.elements.iter().map(|item| json5_node(source, item, within));
            Raw::Array(items.collect::<Result<_, _>>()?)
        }
        ast::Value::Object(object) => {
            let mut entries: Vec<Entry> = Vec::new();
            for member in &object.properties {
                let key = member.name.as_str().to_owned();
                if entries.iter().any(|entry| entry.key == key) {
                    let what = format!("`{}` is there twice", shortened(&key));
                    return Err(Problem::new(&at(member.range), what).help("leave one of them out"));
                }
                let node = json5_node(source, &member.value, within)?;
                entries.push(Entry { key, key_place: node.place.clone(), node });
            }
            Raw::Table(Table(entries))
        }
    };
    Ok(Node { raw, place })
}

fn json5_number(text: &str) -> Raw {
    match json5::number(text) {
        Some(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Raw::Integer(number),
            (None, Some(number)) if number.is_finite() => Raw::Float(number),
            (None, _) => Raw::Foreign("a number without bounds"),
        },
        None => Raw::Foreign("a number without bounds"),
    }
}

fn json_node(source: &Arc<SourceText>, value: Value<'_>) -> Node {
    let place = Place::File(source.clone(), value.span());
    let raw = match value.kind() {
        Kind::Null => Raw::Foreign("null"),
        Kind::Bool(truth) => Raw::Boolean(truth),
        Kind::Number(number) => match (number.parse::<i64>(), value.as_f64()) {
            (Ok(number), _) => Raw::Integer(number),
            (Err(_), Some(number)) => Raw::Float(number),
            (Err(_), None) => Raw::Foreign("a number without bounds"),
        },
        Kind::String(text) => Raw::String(text.into_owned()),
        Kind::Array(items) => Raw::Array(items.map(|item| json_node(source, item)).collect()),
        Kind::Object(members) => Raw::Table(Table(
            members
                .map(|(key, value)| {
                    let node = json_node(source, value);
                    Entry { key: key.into_owned(), key_place: node.place.clone(), node }
                })
                .collect(),
        )),
    };
    Node { raw, place }
}

/// Returns a text shortened so that it fits into a sentence.
pub(crate) fn shortened(text: &str) -> String {
    steadfast_core::redact::excerpt(text, 60)
}

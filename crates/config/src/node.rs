//! Written values before they are interpreted: one tree for TOML, JSON, variables and flags.
//!
//! Every key and every value has its place. The tables of settings (`setting`) read the tree, so all formats get
//! the same checks and the same messages.

use std::sync::Arc;

use jsonc_parser::ast;
use jsonc_parser::common::{Range, Ranged as _};
use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostics::ConfigProblem;
use crate::json5::{self, Json5Error, MOST_DEPTH};
use crate::location::{SourceLocation, SourceText};

/// Maximum size of a file.
pub(crate) const LARGEST_FILE: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct ConfigNode {
    pub(crate) raw: RawNode,
    pub(crate) place: SourceLocation,
}

#[derive(Clone, Debug)]
pub(crate) enum RawNode {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    String(String),
    /// A variable or flag: text that may mean any scalar, or a list with commas.
    Loose(String),
    /// A value that no setting takes: a date, null, a number out of range.
    Foreign(&'static str),
    Array(Vec<ConfigNode>),
    Table(ConfigTable),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigTable(pub(crate) Vec<TableEntry>);

#[derive(Clone, Debug)]
pub(crate) struct TableEntry {
    pub(crate) key: String,
    pub(crate) key_place: SourceLocation,
    pub(crate) node: ConfigNode,
}

impl ConfigNode {
    pub(crate) fn new(raw: RawNode, place: &SourceLocation) -> Self {
        Self { raw, place: place.clone() }
    }

    /// Describes the value for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.raw {
            RawNode::Boolean(truth) => format!("{truth}"),
            RawNode::Integer(number) => format!("the number {number}"),
            RawNode::Float(number) => format!("the number {number}"),
            RawNode::String(text) | RawNode::Loose(text) => format!("{:?}", shortened(text)),
            RawNode::Foreign(kind) => (*kind).to_owned(),
            RawNode::Array(_) => "a list".to_owned(),
            RawNode::Table(_) => "a table".to_owned(),
        }
    }

    /// Returns the text, if the value is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.raw {
            RawNode::String(text) | RawNode::Loose(text) => Some(text),
            RawNode::Boolean(_)
            | RawNode::Integer(_)
            | RawNode::Float(_)
            | RawNode::Foreign(_)
            | RawNode::Array(_)
            | RawNode::Table(_) => None,
        }
    }

    pub(crate) fn table(&self) -> Option<&ConfigTable> {
        match &self.raw {
            RawNode::Table(table) => Some(table),
            RawNode::Boolean(_)
            | RawNode::Integer(_)
            | RawNode::Float(_)
            | RawNode::String(_)
            | RawNode::Loose(_)
            | RawNode::Foreign(_)
            | RawNode::Array(_) => None,
        }
    }

    /// Returns the items of a list. Loose text is a list with commas.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        match &self.raw {
            RawNode::Array(items) => Some(items.clone()),
            RawNode::Loose(text) => Some(
                text.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(|item| Self::new(RawNode::Loose(item.to_owned()), &self.place))
                    .collect(),
            ),
            RawNode::Boolean(_)
            | RawNode::Integer(_)
            | RawNode::Float(_)
            | RawNode::String(_)
            | RawNode::Foreign(_)
            | RawNode::Table(_) => None,
        }
    }
}

impl ConfigTable {
    pub(crate) fn get(&self, key: &str) -> Option<&TableEntry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    /// Inserts a value at a path of tables. Missing tables are created.
    pub(crate) fn insert(&mut self, path: &[&str], node: ConfigNode) {
        let Some((first, rest)) = path.split_first() else { return };
        let at = match self.0.iter().position(|entry| entry.key == *first) {
            Some(at) => at,
            None => {
                let raw = RawNode::Table(Self::default());
                self.0.push(TableEntry {
                    key: (*first).to_owned(),
                    key_place: node.place.clone(),
                    node: ConfigNode::new(raw, &node.place),
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
            (RawNode::Table(table), rest) => table.insert(rest, node),
            (_, _) => {}
        }
    }
}

/// Parses a TOML text. Returns the tree and all syntax errors.
pub(crate) fn read_toml(source: &Arc<SourceText>) -> (ConfigTable, Vec<ConfigProblem>) {
    let (root, errors) = DeTable::parse_recoverable(&source.text);
    let problems = errors
        .into_iter()
        .map(|error| {
            let span = error.span().unwrap_or_default();
            let message = format!("this is not TOML: {}", error.message());
            ConfigProblem::new(&SourceLocation::File(source.clone(), span), message)
                .help("a setting is written as `name = value`, a text in quotes, a section as `[name]`")
        })
        .collect();
    (toml_table(source, root.get_ref()), problems)
}

fn toml_table(source: &Arc<SourceText>, table: &DeTable<'_>) -> ConfigTable {
    let entries = table.iter().map(|(key, value)| TableEntry {
        key: key.get_ref().to_string(),
        key_place: SourceLocation::File(source.clone(), key.span()),
        node: toml_node(source, value),
    });
    ConfigTable(entries.collect())
}

fn toml_node(source: &Arc<SourceText>, value: &Spanned<DeValue<'_>>) -> ConfigNode {
    let raw = match value.get_ref() {
        DeValue::String(text) => RawNode::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => RawNode::Integer(number),
            Err(_) => RawNode::Foreign("a number with too many digits"),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => RawNode::Float(number),
            Ok(_) | Err(_) => RawNode::Foreign("a number without bounds"),
        },
        DeValue::Boolean(truth) => RawNode::Boolean(*truth),
        DeValue::Datetime(_) => RawNode::Foreign("a date"),
        DeValue::Array(items) => RawNode::Array(items.iter().map(|item| toml_node(source, item)).collect()),
        DeValue::Table(table) => RawNode::Table(toml_table(source, table)),
    };
    ConfigNode { raw, place: SourceLocation::File(source.clone(), value.span()) }
}

/// Parses a JSON text. The place of a key is that of its value. Text that is not JSON is read as JSON5, as OpenClaw
/// and editors allow it: comments, trailing commas, names without quotes, and so on.
pub(crate) fn read_json(source: &Arc<SourceText>) -> Result<ConfigNode, ConfigProblem> {
    let limits = JsonLimits { bytes: LARGEST_FILE, depth: MOST_DEPTH };
    match JsonDocument::parse(source.text.as_bytes(), limits) {
        Ok(document) => Ok(json_node(source, document.root())),
        Err(_) => read_json5(source),
    }
}

fn read_json5(source: &Arc<SourceText>) -> Result<ConfigNode, ConfigProblem> {
    match json5::parse(&source.text) {
        Ok(root) => json5_node(source, &root, MOST_DEPTH),
        Err(Json5Error { at, message }) => {
            let help = "names and texts are separated by `:`, entries by `,`; comments and a comma at the end are fine";
            let place = SourceLocation::File(source.clone(), at);
            Err(ConfigProblem::new(&place, format!("this is not JSON5: {message}")).help(help))
        }
    }
}

fn json5_node(
    source: &Arc<SourceText>,
    value: &ast::Value<'_>,
    depth: usize,
) -> Result<ConfigNode, ConfigProblem> {
    let at = |range: Range| SourceLocation::File(source.clone(), range.start..range.end);
    let place = at(value.range());
    let Some(within) = depth.checked_sub(1) else {
        return Err(ConfigProblem::new(&place, "it is nested too deeply").help("write it with fewer levels"));
    };
    let raw = match value {
        ast::Value::StringLit(text) => RawNode::String(text.value.to_string()),
        ast::Value::NumberLit(number) => json5_number(number.value),
        ast::Value::BooleanLit(truth) => RawNode::Boolean(truth.value),
        ast::Value::NullKeyword(_) => RawNode::Foreign("null"),
        ast::Value::Array(list) => {
            let items = list.elements.iter().map(|item| json5_node(source, item, within));
            RawNode::Array(items.collect::<Result<_, _>>()?)
        }
        ast::Value::Object(object) => {
            let mut entries: Vec<TableEntry> = Vec::new();
            for member in &object.properties {
                let key = member.name.as_str().to_owned();
                if entries.iter().any(|entry| entry.key == key) {
                    let message = format!("`{}` is there twice", shortened(&key));
                    return Err(ConfigProblem::new(&at(member.range), message).help("leave one of them out"));
                }
                let node = json5_node(source, &member.value, within)?;
                entries.push(TableEntry { key, key_place: node.place.clone(), node });
            }
            RawNode::Table(ConfigTable(entries))
        }
    };
    Ok(ConfigNode { raw, place })
}

fn json5_number(text: &str) -> RawNode {
    match json5::number(text) {
        Some(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => RawNode::Integer(number),
            (None, Some(number)) if number.is_finite() => RawNode::Float(number),
            (None, _) => RawNode::Foreign("a number without bounds"),
        },
        None => RawNode::Foreign("a number without bounds"),
    }
}

fn json_node(source: &Arc<SourceText>, value: JsonValue<'_>) -> ConfigNode {
    let place = SourceLocation::File(source.clone(), value.span());
    let raw = match value.kind() {
        JsonKind::Null => RawNode::Foreign("null"),
        JsonKind::Bool(truth) => RawNode::Boolean(truth),
        JsonKind::Number(number) => match (number.parse::<i64>(), value.as_f64()) {
            (Ok(number), _) => RawNode::Integer(number),
            (Err(_), Some(number)) => RawNode::Float(number),
            (Err(_), None) => RawNode::Foreign("a number without bounds"),
        },
        JsonKind::String(text) => RawNode::String(text.into_owned()),
        JsonKind::Array(items) => RawNode::Array(items.map(|item| json_node(source, item)).collect()),
        JsonKind::Object(members) => RawNode::Table(ConfigTable(
            members
                .map(|(key, value)| {
                    let node = json_node(source, value);
                    TableEntry { key: key.into_owned(), key_place: node.place.clone(), node }
                })
                .collect(),
        )),
    };
    ConfigNode { raw, place }
}

/// Returns a text shortened so that it fits into a sentence.
pub(crate) fn shortened(text: &str) -> String {
    steadfast_redact::excerpt(text, 60)
}

//! Imports configuration files of other programs.
//!
//! Each file is translated into the same tree that `steadfast.toml` is read into, with the positions of the original.
//! So it gets the same checks, and an error is shown in the line where it was made. Plain sentences report what was
//! mapped, and what was left out and why.

mod manifest;
mod openclaw;
mod reliability;
mod servers;

use std::sync::Arc;

use crate::diagnostics::{ConfigProblem, nearest};
use crate::location::{SourceLocation, SourceText};
use crate::node::{ConfigNode, ConfigTable, RawNode, read_json};

/// The result of importing a foreign file.
pub(crate) struct ImportedConfig {
    pub(crate) table: ConfigTable,
    pub(crate) notes: Vec<String>,
    pub(crate) problems: Vec<ConfigProblem>,
}

/// Reads a file of any supported kind.
pub(crate) fn read(source: &Arc<SourceText>) -> Result<ImportedConfig, ConfigProblem> {
    let root = read_json(source)?;
    let Some(table) = root.table() else {
        return Err(unknown(&root.place));
    };
    let mut import = FileImport {
        name: source.name.clone(),
        out: ConfigTable::default(),
        notes: Vec::new(),
        problems: Vec::new(),
    };
    let mut known = false;
    for (is_it, translate) in [
        (
            reliability::is_it as fn(&ConfigTable) -> bool,
            reliability::translate as fn(&ConfigTable, &mut FileImport),
        ),
        (openclaw::is_it, openclaw::translate),
        (manifest::is_it, manifest::translate),
        (servers::is_it, servers::translate),
    ] {
        if is_it(table) {
            known = true;
            translate(table, &mut import);
        }
    }
    if !known {
        return Err(unknown(&root.place));
    }
    Ok(ImportedConfig { table: import.out, notes: import.notes, problems: import.problems })
}

fn unknown(place: &SourceLocation) -> ConfigProblem {
    ConfigProblem::new(place, "this JSON file has no supported format").help(
        "supported are escalation rules (`default_rule`, `tool_rules`, …), `gateway.toolCallRetry`, tool manifests \
         (`timeout_ms`, `retry_policy`, `classification`) and `mcpServers`; write everything else in TOML",
    )
}

/// A file while it is being translated.
struct FileImport {
    /// Name of the file.
    name: String,
    out: ConfigTable,
    notes: Vec<String>,
    problems: Vec<ConfigProblem>,
}

impl FileImport {
    /// Puts a value under the name of a setting.
    fn set(&mut self, path: &[&str], raw: RawNode, place: &SourceLocation) {
        self.out.insert(path, ConfigNode::new(raw, place));
    }

    /// Puts an unchanged value under the name of a setting.
    fn pass(&mut self, path: &[&str], node: &ConfigNode) {
        self.out.insert(path, node.clone());
    }

    /// Puts a number under the name of a setting, with the unit that its own name had.
    fn pass_span(&mut self, path: &[&str], node: &ConfigNode, name: &str, unit: &str) {
        match span(node, unit) {
            Some(text) => self.set(path, RawNode::String(text), &node.place),
            None => self.refuse(node, name, "a whole number that is not negative"),
        }
    }

    fn refuse(&mut self, node: &ConfigNode, name: &str, takes: &str) {
        let message = format!("`{name}` takes {takes}, not {}", node.describe());
        self.problems.push(ConfigProblem::new(&node.place, message).help(format!("write {takes}")));
    }

    fn note(&mut self, place: &SourceLocation, text: impl AsRef<str>) {
        self.notes.push(format!("{}: {}", place.written(), text.as_ref()));
    }

    /// Notes a name that the format does not have. Other programs may add to their files, so this is not an error.
    fn ignore(&mut self, place: &SourceLocation, key: &str, known: &[&str]) {
        let suggestion = nearest(key, known.iter().copied()).map(|name| format!("; did you mean `{name}`?"));
        self.note(place, format!("`{key}` is unknown and was ignored{}", suggestion.unwrap_or_default()));
    }
}

/// Returns a number with a unit.
fn span(node: &ConfigNode, unit: &str) -> Option<String> {
    match &node.raw {
        RawNode::Integer(number) if *number >= 0 => Some(format!("{number}{unit}")),
        RawNode::Integer(_)
        | RawNode::Boolean(_)
        | RawNode::Float(_)
        | RawNode::String(_)
        | RawNode::Loose(_)
        | RawNode::Foreign(_)
        | RawNode::Array(_)
        | RawNode::Table(_) => None,
    }
}

//! Files of others: what they say, in our words, and what was made of them.
//!
//! Each is turned into the same tree that our own file is read into, with the places of the original. So it
//! gets the same checks, and a mistake is shown in the line where it was made. What was mapped, and what was
//! left out and why, is told in plain sentences.

mod manifest;
mod openclaw;
mod reliability;
mod servers;

use std::sync::Arc;

use crate::diagnostics::{Problem, nearest};
use crate::node::{Node, Raw, Table, read_json};
use crate::place::{Place, SourceText};

/// What a file of others became.
pub(crate) struct Imported {
    pub(crate) table: Table,
    pub(crate) notes: Vec<String>,
    pub(crate) problems: Vec<Problem>,
}

/// Reads a file of whichever kind it is.
pub(crate) fn read(source: &Arc<SourceText>) -> Result<Imported, Problem> {
    let root = read_json(source)?;
    let Some(table) = root.table() else {
        return Err(unknown(&root.place));
    };
    let mut import =
        Import { name: source.name.clone(), out: Table::default(), notes: Vec::new(), problems: Vec::new() };
    let mut known = false;
    for (is_it, translate) in [
        (reliability::is_it as fn(&Table) -> bool, reliability::translate as fn(&Table, &mut Import)),
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
    Ok(Imported { table: import.out, notes: import.notes, problems: import.problems })
}

fn unknown(place: &Place) -> Problem {
    Problem::new(place, "this JSON file is none that we understand").help(
        "we read escalation rules (`default_rule`, `tool_rules`, …), `gateway.toolCallRetry`, tool manifests \
         (`timeout_ms`, `retry_policy`, `classification`) and `mcpServers`; everything else is written in TOML",
    )
}

/// A file while it is being translated.
struct Import {
    /// How the file is called.
    name: String,
    out: Table,
    notes: Vec<String>,
    problems: Vec<Problem>,
}

impl Import {
    /// Puts a value under one of our names.
    fn set(&mut self, path: &[&str], raw: Raw, place: &Place) {
        self.out.insert(path, Node::new(raw, place));
    }

    /// Puts a value under one of our names as it is.
    fn pass(&mut self, path: &[&str], node: &Node) {
        self.out.insert(path, node.clone());
    }

    /// Puts a number under one of our names, with the unit that its own name had.
    fn pass_span(&mut self, path: &[&str], node: &Node, name: &str, unit: &str) {
        match span(node, unit) {
            Some(text) => self.set(path, Raw::String(text), &node.place),
            None => self.refuse(node, name, "a whole number that is not negative"),
        }
    }

    fn refuse(&mut self, node: &Node, name: &str, takes: &str) {
        let what = format!("`{name}` takes {takes}, not {}", node.describe());
        self.problems.push(Problem::new(&node.place, what).help(format!("write {takes}")));
    }

    fn note(&mut self, place: &Place, text: impl AsRef<str>) {
        self.notes.push(format!("{}: {}", place.written(), text.as_ref()));
    }

    /// A name that the format does not have. Others may add to their files what they like, so this is no error.
    fn ignore(&mut self, place: &Place, key: &str, known: &[&str]) {
        let meant = nearest(key, known.iter().copied()).map(|name| format!("; did you mean `{name}`?"));
        self.note(place, format!("`{key}` is not known and was left out{}", meant.unwrap_or_default()));
    }
}

/// A number with a unit.
fn span(node: &Node, unit: &str) -> Option<String> {
    match &node.raw {
        Raw::Integer(number) if *number >= 0 => Some(format!("{number}{unit}")),
        Raw::Integer(_)
        | Raw::Boolean(_)
        | Raw::Float(_)
        | Raw::String(_)
        | Raw::Loose(_)
        | Raw::Foreign(_)
        | Raw::Array(_)
        | Raw::Table(_) => None,
    }
}

//! Tool manifests with a retry policy (seed 002): `timeout_ms`, `retry_policy` and `classification`.
//!
//! `classification` says which errors of the tool are permanent or transient and overrides the built-in rules. Each
//! entry is an HTTP status or a part of the message, with one of the two words.

use super::FileImport;
use crate::location::SourceLocation;
use crate::node::{ConfigNode, ConfigTable, RawNode, TableEntry};

const FIELDS: [&str; 6] =
    ["initial_delay_ms", "max_delay_ms", "multiplier", "jitter_percent", "max_attempts", "max_total_time_ms"];
const NAMES: [&str; 4] = ["id", "name", "tool_id", "tool_name"];

pub(super) fn is_it(root: &ConfigTable) -> bool {
    manifests(root).iter().any(|table| {
        ["timeout_ms", "retry_policy", "classification"].iter().any(|key| table.get(key).is_some())
    })
}

/// Returns the manifest itself, the one within `tool`, or those in a list `tools`.
fn manifests(root: &ConfigTable) -> Vec<&ConfigTable> {
    let within = |key: &str| root.get(key).map(|entry| &entry.node);
    if let Some(tool) = within("tool").and_then(ConfigNode::table) {
        return vec![tool];
    }
    if let Some(RawNode::Array(tools)) = within("tools").map(|node| &node.raw) {
        return tools.iter().filter_map(ConfigNode::table).collect();
    }
    vec![root]
}

pub(super) fn translate(root: &ConfigTable, import: &mut FileImport) {
    for table in manifests(root) {
        let named = NAMES.iter().find_map(|key| table.get(key)?.node.text());
        let own = named.map(str::to_owned).unwrap_or_else(|| stem(&import.name));
        manifest(&own, table, import);
    }
    let name = import.name.clone();
    import.notes.push(format!(
        "{name}: values that a manifest omits come from the profile; those of its own documentation are \
         `profile = \"measured\"`"
    ));
}

/// Returns the name of a manifest without a name: that of its file.
fn stem(path: &str) -> String {
    let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).to_owned()
}

fn manifest(tool: &str, table: &ConfigTable, import: &mut FileImport) {
    for TableEntry { key, node, .. } in &table.0 {
        match key.as_str() {
            "timeout_ms" => {
                import.pass_span(&["tools", tool, "timeout"], node, key, "ms");
                import.note(&node.place, format!("`timeout_ms` is `timeout` of `[tools.{tool:?}]`"));
            }
            "retry_policy" => retry(tool, node, import),
            "classification" => classification(tool, node, import),
            key if NAMES.contains(&key) => {}
            _ => import.note(
                &node.place,
                format!("`{key}` of the manifest is not about reliability and was ignored"),
            ),
        }
    }
}

fn retry(tool: &str, node: &ConfigNode, import: &mut FileImport) {
    let Some(table) = node.table() else {
        return import.refuse(node, "retry_policy", "a table");
    };
    import.note(&node.place, format!("`retry_policy` is `[tools.{tool:?}.retry]`"));
    for TableEntry { key, node, .. } in &table.0 {
        let at = |name: &'static str| ["tools", tool, "retry", name];
        match key.as_str() {
            "initial_delay_ms" => import.pass_span(&at("base"), node, key, "ms"),
            "max_delay_ms" => import.pass_span(&at("cap"), node, key, "ms"),
            "multiplier" => import.pass(&at("factor"), node),
            "jitter_percent" => jitter(&at("jitter"), node, import),
            "max_attempts" => import.pass(&at("attempts"), node),
            "max_total_time_ms" => import.pass_span(&at("total"), node, key, "ms"),
            "strategy" if node.text() == Some("exponential_backoff") => {}
            "strategy" => import.note(
                &node.place,
                "the only strategy that is understood is `exponential_backoff`; that is used",
            ),
            _ => import.ignore(&node.place, key, &FIELDS),
        }
    }
}

/// Imports a classification: `{ "503": "permanent", "quota exceeded": "transient" }`.
fn classification(tool: &str, node: &ConfigNode, import: &mut FileImport) {
    let Some(table) = node.table() else {
        return import.refuse(
            node,
            "classification",
            "a table of errors and `\"permanent\"` or `\"transient\"`",
        );
    };
    import.note(&node.place, format!("`classification` is `rules` of `[tools.{tool:?}.classify]`"));
    let mut rules = Vec::new();
    for TableEntry { key, key_place, node } in &table.0 {
        let when = match key.parse::<i64>() {
            Ok(status) => ("status", RawNode::Integer(status)),
            Err(_) => ("text", RawNode::String(format!(".*{}", literally(key)))),
        };
        let entry = |(key, raw): (&str, RawNode), place: &SourceLocation| TableEntry {
            key: key.to_owned(),
            key_place: key_place.clone(),
            node: ConfigNode::new(raw, place),
        };
        let rule =
            ConfigTable(vec![entry(when, key_place), entry(("nature", node.raw.clone()), &node.place)]);
        rules.push(ConfigNode::new(RawNode::Table(rule), key_place));
    }
    import.set(&["tools", tool, "classify", "rules"], RawNode::Array(rules), &node.place);
}

/// Returns a regular expression that matches exactly this text.
fn literally(text: &str) -> String {
    let mut pattern = String::new();
    for sign in text.chars() {
        if sign.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(sign);
    }
    pattern
}

fn jitter(path: &[&str], node: &ConfigNode, import: &mut FileImport) {
    let percent = match &node.raw {
        RawNode::Integer(percent) => i32::try_from(*percent).ok().map(f64::from),
        RawNode::Float(percent) => Some(*percent),
        RawNode::Boolean(_)
        | RawNode::String(_)
        | RawNode::Loose(_)
        | RawNode::Foreign(_)
        | RawNode::Array(_)
        | RawNode::Table(_) => None,
    };
    match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
        Some(percent) => import.set(path, RawNode::Float(percent / 100.0), &node.place),
        None => import.refuse(node, "jitter_percent", "a number from 0 to 100"),
    }
}

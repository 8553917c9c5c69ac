//! Imports the `mcpServers` from the files of MCP clients.

use super::FileImport;
use crate::node::{ConfigNode, ConfigTable, RawNode, TableEntry};

const FIELDS: [&str; 7] = ["command", "args", "env", "cwd", "url", "headers", "type"];

pub(super) fn is_it(root: &ConfigTable) -> bool {
    root.get("mcpServers").is_some()
}

pub(super) fn translate(root: &ConfigTable, import: &mut FileImport) {
    let Some(entry) = root.get("mcpServers") else { return };
    let Some(servers) = entry.node.table() else {
        return import.refuse(&entry.node, "mcpServers", "a table of servers by name");
    };
    for TableEntry { key: name, node, .. } in &servers.0 {
        match node.table() {
            Some(table) => server(name, node, table, import),
            None => import.refuse(node, name, "a table with a `command` or a `url`"),
        }
    }
}

fn server(name: &str, node: &ConfigNode, table: &ConfigTable, import: &mut FileImport) {
    import.note(&node.place, format!("the server `{name}` is `[servers.{name}]`"));
    for TableEntry { key, node, .. } in &table.0 {
        match key.as_str() {
            "command" => command(name, node, table, import),
            "args" | "type" => {}
            "env" | "cwd" | "url" | "headers" => import.pass(&["servers", name, key], node),
            _ => import.ignore(&node.place, key, &FIELDS),
        }
    }
}

/// Joins a program and its separate list of arguments into one list.
fn command(name: &str, program: &ConfigNode, table: &ConfigTable, import: &mut FileImport) {
    let mut words = vec![program.clone()];
    if let Some(args) = table.get("args") {
        match &args.node.raw {
            RawNode::Array(args) => words.extend(args.iter().cloned()),
            RawNode::Boolean(_)
            | RawNode::Integer(_)
            | RawNode::Float(_)
            | RawNode::String(_)
            | RawNode::Loose(_)
            | RawNode::Foreign(_)
            | RawNode::Table(_) => import.refuse(&args.node, "args", "a list of texts"),
        }
    }
    import.set(&["servers", name, "command"], RawNode::Array(words), &program.place);
}

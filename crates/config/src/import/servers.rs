//! Imports the `mcpServers` from the files of MCP clients.

use super::Import;
use crate::node::{Entry, Node, Raw, Table};

const FIELDS: [&str; 7] = ["command", "args", "env", "cwd", "url", "headers", "type"];

pub(super) fn is_it(root: &Table) -> bool {
    root.get("mcpServers").is_some()
}

pub(super) fn translate(root: &Table, import: &mut Import) {
    let Some(entry) = root.get("mcpServers") else { return };
    let Some(servers) = entry.node.table() else {
        return import.refuse(&entry.node, "mcpServers", "a table of servers by name");
    };
    for Entry { key: name, node, .. } in &servers.0 {
        match node.table() {
            Some(table) => server(name, node, table, import),
            None => import.refuse(node, name, "a table with a `command` or a `url`"),
        }
    }
}

fn server(name: &str, node: &Node, table: &Table, import: &mut Import) {
    import.note(&node.place, format!("the server `{name}` is `[servers.{name}]`"));
    for Entry { key, node, .. } in &table.0 {
        match key.as_str() {
            "command" => command(name, node, table, import),
            "args" | "type" => {}
            "env" | "cwd" | "url" | "headers" => import.pass(&["servers", name, key], node),
            _ => import.ignore(&node.place, key, &FIELDS),
        }
    }
}

/// Joins a program and its separate list of arguments into one list.
fn command(name: &str, program: &Node, table: &Table, import: &mut Import) {
    let mut words = vec![program.clone()];
    if let Some(args) = table.get("args") {
        match &args.node.raw {
            Raw::Array(args) => words.extend(args.iter().cloned()),
            Raw::Boolean(_)
            | Raw::Integer(_)
            | Raw::Float(_)
            | Raw::String(_)
            | Raw::Loose(_)
            | Raw::Foreign(_)
            | Raw::Table(_) => import.refuse(&args.node, "args", "a list of texts"),
        }
    }
    import.set(&["servers", name, "command"], Raw::Array(words), &program.place);
}

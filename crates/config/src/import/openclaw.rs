//! The blocks of OpenClaw's configuration that concern tool calls: retries of its gateway (seed 003),
//! `gateway.toolCallRetry`, and the loop guard of its plugin (seed 001), `plugins.entries.tool-guard.config`.

use super::{FileImport, span};
use crate::location::SourceLocation;
use crate::node::{ConfigNode, ConfigTable, RawNode, TableEntry};

const FIELDS: [&str; 4] = ["enabled", "maxAttempts", "backoffMs", "transientPatterns"];

const GUARD_FIELDS: [&str; 4] = ["enabled", "logPath", "maxFailuresPerTurn", "maxIdenticalFailures"];

pub(super) fn is_it(root: &ConfigTable) -> bool {
    retry_block(root).is_some() || guard_block(root).is_some()
}

fn retry_block(root: &ConfigTable) -> Option<&TableEntry> {
    root.get("gateway")?.node.table()?.get("toolCallRetry")
}

fn guard_block(root: &ConfigTable) -> Option<&TableEntry> {
    let entries = root.get("plugins")?.node.table()?.get("entries")?.node.table()?;
    entries.get("tool-guard")?.node.table()?.get("config")
}

pub(super) fn translate(root: &ConfigTable, import: &mut FileImport) {
    if let Some(entry) = retry_block(root) {
        translate_retries(&entry.node, import);
    }
    if let Some(entry) = guard_block(root) {
        translate_guard(&entry.node, import);
    }
    let understood = ["gateway", "plugins", "mcpServers"];
    if root.0.iter().any(|entry| !understood.contains(&&*entry.key)) {
        let name = import.name.clone();
        import.notes.push(format!("{name}: everything else in it belongs to OpenClaw and was ignored"));
    }
}

fn translate_retries(node: &ConfigNode, import: &mut FileImport) {
    let place = &node.place;
    let Some(table) = node.table() else {
        return import.refuse(node, "gateway.toolCallRetry", "a table");
    };
    // The format's own defaults are those of the profile `stepped`. Omitted fields have them.
    import.set(&["retry", "attempts"], RawNode::Integer(3), place);
    import.set(&["retry", "waits"], waits(&[100, 500, 2000], place), place);
    import.set(&["retry", "jitter"], RawNode::String("none".to_owned()), place);
    import.set(&["retry", "total"], RawNode::String("none".to_owned()), place);
    import.note(
        place,
        "`gateway.toolCallRetry` is `[retry]`: its waits one by one, without jitter and total limit",
    );
    for TableEntry { key, node, .. } in &table.0 {
        match key.as_str() {
            "enabled" => enabled(node, "retry", import),
            "maxAttempts" => import.pass(&["retry", "attempts"], node),
            "backoffMs" => backoff(node, import),
            "transientPatterns" => patterns(node, import),
            _ => import.ignore(&node.place, key, &FIELDS),
        }
    }
}

/// Translates the settings of the loop guard. Its defaults are those of `[guard]`.
fn translate_guard(node: &ConfigNode, import: &mut FileImport) {
    let Some(table) = node.table() else {
        return import.refuse(node, "plugins.entries.tool-guard.config", "a table");
    };
    import.note(
        &node.place,
        "the settings of the plugin `tool-guard` are `[guard]`, and `logPath` is `log.malformed_calls`",
    );
    for TableEntry { key, node, .. } in &table.0 {
        match key.as_str() {
            "enabled" => enabled(node, "guard", import),
            "maxIdenticalFailures" => import.pass(&["guard", "identical"], node),
            "maxFailuresPerTurn" => import.pass(&["guard", "per_turn"], node),
            "logPath" => import.pass(&["log", "malformed_calls"], node),
            _ => import.ignore(&node.place, key, &GUARD_FIELDS),
        }
    }
}

/// Translates the switch of a mechanism.
fn enabled(node: &ConfigNode, mechanism: &str, import: &mut FileImport) {
    match &node.raw {
        RawNode::Boolean(true) => {}
        RawNode::Boolean(false) => {
            import.set(&[mechanism, "mode"], RawNode::String("off".to_owned()), &node.place);
            import.note(&node.place, format!("`enabled = false` is `{mechanism}.mode = \"off\"`"));
        }
        RawNode::Integer(_)
        | RawNode::Float(_)
        | RawNode::String(_)
        | RawNode::Loose(_)
        | RawNode::Foreign(_)
        | RawNode::Array(_)
        | RawNode::Table(_) => import.refuse(node, "enabled", "true or false"),
    }
}

fn backoff(node: &ConfigNode, import: &mut FileImport) {
    let spans: Option<Vec<ConfigNode>> = node.items().and_then(|items| {
        items
            .iter()
            .map(|item| span(item, "ms").map(|text| ConfigNode::new(RawNode::String(text), &item.place)))
            .collect()
    });
    match spans {
        Some(spans) => import.set(&["retry", "waits"], RawNode::Array(spans), &node.place),
        None => import.refuse(node, "backoffMs", "a list of whole numbers"),
    }
}

fn waits(millis: &[u32], place: &SourceLocation) -> RawNode {
    RawNode::Array(
        millis.iter().map(|ms| ConfigNode::new(RawNode::String(format!("{ms}ms")), place)).collect(),
    )
}

/// Turns each pattern into a rule that searches the message. The built-in rules stay in use: they cover the purpose of
/// these patterns, and more.
fn patterns(node: &ConfigNode, import: &mut FileImport) {
    let texts: Option<Vec<(String, SourceLocation)>> = node.items().and_then(|items| {
        items.iter().map(|item| Some((item.text()?.to_owned(), item.place.clone()))).collect()
    });
    let Some(texts) = texts else {
        return import.refuse(node, "transientPatterns", "a list of regular expressions");
    };
    let rules = texts.iter().enumerate().map(|(at, (text, place))| {
        let mut rule = ConfigTable::default();
        let mut put =
            |key: &str, value: String| rule.insert(&[key], ConfigNode::new(RawNode::String(value), place));
        put("name", format!("toolCallRetry.{at}"));
        put("text", format!("(?:.*)(?:{text})"));
        put("nature", "transient".to_owned());
        ConfigNode::new(RawNode::Table(rule), place)
    });
    import.set(&["classify", "rules"], RawNode::Array(rules.collect()), &node.place);
    import.note(
        &node.place,
        "`transientPatterns` are `[[classify.rules]]`; errors that none of them matches are judged by the \
         built-in rules",
    );
    for (text, place) in &texts {
        if text.contains("101[26]") {
            import.note(
                place,
                "this pattern matches the close codes 1012 and 1016; 1006, which was probably meant, is transient \
                 by the built-in rules",
            );
        }
    }
}

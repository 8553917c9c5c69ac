//! Escalation rules in JSON, in the format of jaato's reliability plugin (seed 004).
//!
//! In that format a rule is complete: an omitted field has the plugin's default, not the value of a more general rule.
//! Rules of Steadfast are joined setting by setting, so each rule is written out in full here.

use steadfast_core::policy::TrustRule;

use super::FileImport;
use crate::kind::show_span;
use crate::location::SourceLocation;
use crate::node::{ConfigNode, ConfigTable, RawNode};

const RULES: [&str; 4] = ["default_rule", "plugin_rules", "tool_rules", "domain_rules"];
const WHOLE: [&str; 4] =
    ["enable_auto_recovery", "persist_across_sessions", "max_history_entries", "notify_user"];
/// Fields of the plugin's state, which the same file can hold.
const STATE: [&str; 7] =
    ["version", "tool_states", "failure_history", "domain_stats", "last_updated", "created", "max_history"];
const FIELDS: [&str; 10] = [
    "count_threshold",
    "consecutive_threshold",
    "rate_threshold",
    "window_seconds",
    "severity_filter",
    "escalation_duration_seconds",
    "notify_user",
    "cooldown_seconds",
    "success_count_to_recover",
    "expected_failure_rate",
];

pub(super) fn is_it(root: &ConfigTable) -> bool {
    RULES.iter().chain(&WHOLE).any(|name| root.get(name).is_some())
}

pub(super) fn translate(root: &ConfigTable, import: &mut FileImport) {
    let absent = match root.get("notify_user") {
        Some(_) => AbsentFieldDefault::IsBuiltInExcept("notify_user"),
        None => AbsentFieldDefault::IsBuiltInExcept(""),
    };
    for entry in &root.0 {
        let (key, node) = (entry.key.as_str(), &entry.node);
        match key {
            "default_rule" => {
                rule(&[], key, node, AbsentFieldDefault::IsUnset, import);
                import.note(&node.place, "`default_rule` is the trust of everything (`[trust]`)");
            }
            "plugin_rules" => {
                each(key, node, absent, import, |name| vec!["tools".to_owned(), format!("{name}/*")])
            }
            "tool_rules" => each(key, node, absent, import, |name| vec!["tools".to_owned(), name.to_owned()]),
            "domain_rules" => {
                each(key, node, absent, import, |name| vec!["domains".to_owned(), name.to_owned()])
            }
            "enable_auto_recovery" => match &node.raw {
                RawNode::Boolean(auto) => {
                    let word = if *auto { "auto" } else { "ask" };
                    import.set(&["trust", "recovery"], RawNode::String(word.to_owned()), &node.place);
                    import
                        .note(&node.place, format!("`enable_auto_recovery` is `trust.recovery = {word:?}`"));
                }
                RawNode::Integer(_)
                | RawNode::Float(_)
                | RawNode::String(_)
                | RawNode::Loose(_)
                | RawNode::Foreign(_)
                | RawNode::Array(_)
                | RawNode::Table(_) => import.refuse(node, key, "true or false"),
            },
            "persist_across_sessions" => pass(&["trust_state", "persist"], key, node, import),
            "max_history_entries" => pass(&["trust_state", "entries"], key, node, import),
            "notify_user" => pass(&["trust", "notify"], key, node, import),
            _ if STATE.contains(&key) => {
                import.note(&node.place, format!("`{key}` is state, not configuration, and was ignored"));
            }
            _ => import.ignore(&node.place, key, &[RULES, WHOLE].concat()),
        }
    }
}

fn pass(path: &[&str], key: &str, node: &ConfigNode, import: &mut FileImport) {
    import.pass(path, node);
    import.note(&node.place, format!("`{key}` is `{}`", path.join(".")));
}

/// Meaning of an absent field.
#[derive(Clone, Copy)]
enum AbsentFieldDefault {
    /// The setting stays unset: a value from elsewhere or the built-in default applies.
    IsUnset,
    /// The built-in default applies whatever is written elsewhere, except for this setting, which the file sets for
    /// all.
    IsBuiltInExcept(&'static str),
}

fn each(
    key: &str,
    node: &ConfigNode,
    absent: AbsentFieldDefault,
    import: &mut FileImport,
    path: impl Fn(&str) -> Vec<String>,
) {
    let Some(table) = node.table() else {
        return import.refuse(node, key, "a table of rules by name");
    };
    for entry in &table.0 {
        let path = path(&entry.key);
        let title = format!("{key}.{}", entry.key);
        let target: Vec<&str> = path.iter().map(String::as_str).collect();
        rule(&target, &title, &entry.node, absent, import);
        let section = format!("[{}.{:?}.trust]", target.first().unwrap_or(&""), target.get(1).unwrap_or(&""));
        import.note(&entry.node.place, format!("`{title}` is `{section}`"));
    }
}

fn rule(
    target: &[&str],
    title: &str,
    node: &ConfigNode,
    absent: AbsentFieldDefault,
    import: &mut FileImport,
) {
    let Some(table) = node.table() else {
        return import.refuse(node, title, "a rule with names and values");
    };
    let at = |name: &'static str| [target, &["trust", name]].concat();
    for entry in &table.0 {
        let (key, value) = (entry.key.as_str(), &entry.node);
        // The plugin treats null as absent, too.
        if matches!(value.raw, RawNode::Foreign("null")) {
            continue;
        }
        match key {
            "count_threshold" => import.pass(&at("count"), value),
            "consecutive_threshold" => import.pass(&at("consecutive"), value),
            "rate_threshold" => import.pass(&at("rate"), value),
            "window_seconds" => import.pass_span(&at("window"), value, key, "s"),
            "severity_filter" => import.pass(&at("severities"), value),
            "escalation_duration_seconds" => import.pass_span(&at("duration"), value, key, "s"),
            "notify_user" => import.pass(&at("notify"), value),
            "cooldown_seconds" => import.pass_span(&at("cooldown"), value, key, "s"),
            "success_count_to_recover" => import.pass(&at("successes_to_recover"), value),
            "expected_failure_rate" => import.pass(&at("expected_failure_rate"), value),
            _ => import.ignore(&value.place, key, &FIELDS),
        }
    }
    let has =
        |name: &str| table.get(name).is_some_and(|entry| !matches!(entry.node.raw, RawNode::Foreign("null")));
    thresholds(&at, title, &has, absent, &node.place, import);
    if let AbsentFieldDefault::IsBuiltInExcept(other) = absent {
        fill(&at, &|name: &str| name == other || has(name), &node.place, import);
    }
}

/// Returns the thresholds of a rule. A rule that names a threshold has only those that it names. A rule that names
/// none has the built-in count, because a rule that can never hold is hardly intended.
fn thresholds<'n>(
    at: &impl Fn(&'static str) -> Vec<&'n str>,
    title: &str,
    has: &impl Fn(&str) -> bool,
    absent: AbsentFieldDefault,
    place: &SourceLocation,
    import: &mut FileImport,
) {
    let all =
        [("count_threshold", "count"), ("consecutive_threshold", "consecutive"), ("rate_threshold", "rate")];
    if all.iter().any(|(foreign, _)| has(foreign)) {
        for (_, setting) in all.iter().filter(|(foreign, _)| !has(foreign)) {
            import.set(&at(setting), RawNode::String("none".to_owned()), place);
        }
        return;
    }
    let count = TrustRule::default().count.map_or(0, std::num::NonZeroU32::get);
    if let AbsentFieldDefault::IsBuiltInExcept(_) = absent {
        import.set(&at("count"), RawNode::Integer(i64::from(count)), place);
        for setting in ["consecutive", "rate"] {
            import.set(&at(setting), RawNode::String("none".to_owned()), place);
        }
    }
    import.note(place, format!("`{title}` names no threshold; it counts {count} failures"));
}

fn fill<'n>(
    at: &impl Fn(&'static str) -> Vec<&'n str>,
    has: &impl Fn(&str) -> bool,
    place: &SourceLocation,
    import: &mut FileImport,
) {
    let rule = TrustRule::default();
    let span = |span| RawNode::String(show_span(span));
    let severities = ["server_error", "crash", "timeout", "corruption"];
    let severities = severities.map(|name| ConfigNode::new(RawNode::String(name.to_owned()), place));
    for (foreign, setting, value) in [
        ("window_seconds", "window", span(rule.window)),
        ("severity_filter", "severities", RawNode::Array(severities.to_vec())),
        ("escalation_duration_seconds", "duration", span(rule.duration)),
        ("notify_user", "notify", RawNode::Boolean(rule.notify)),
        ("cooldown_seconds", "cooldown", span(rule.cooldown)),
        (
            "success_count_to_recover",
            "successes_to_recover",
            RawNode::Integer(i64::from(rule.successes_to_recover.get())),
        ),
        ("expected_failure_rate", "expected_failure_rate", RawNode::Float(rule.expected_failure_rate.get())),
    ] {
        if !has(foreign) {
            import.set(&at(setting), value, place);
        }
    }
}

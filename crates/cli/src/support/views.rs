//! Formats API responses as text. Fields are read by name, so that a newer gateway may send more.

use std::time::Duration;

use serde_json::Value;
use steadfast::call::id::TenantId;
use steadfast::config::nearest;

use crate::support::failure::CommandFailure;
use crate::support::output::{self, TextStyle, TextTable};
use crate::support::target::{ApiRequest, OperatorConnection};

/// Returns the text at this path without control characters, or an empty text if there is none.
pub(crate) fn text(value: &Value, place: &str) -> String {
    value.pointer(place).and_then(Value::as_str).map(output::clean).unwrap_or_default()
}

/// Returns the number at this path.
pub(crate) fn number(value: &Value, place: &str) -> u64 {
    value.pointer(place).and_then(Value::as_u64).unwrap_or_default()
}

/// Returns the list at this path.
pub(crate) fn list<'v>(value: &'v Value, place: &str) -> &'v [Value] {
    value.pointer(place).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Formats the name of a tool.
pub(crate) fn tool(value: &Value) -> String {
    let part = |place: &str| text(value, place);
    match (part("/namespace"), part("/tool")) {
        (namespace, tool) if tool.is_empty() => namespace,
        (namespace, tool) => format!("{namespace}/{tool}"),
    }
}

/// Formats the time since then. Returns an empty text if there is no time.
pub(crate) fn age(value: &Value, place: &str, now: u64) -> String {
    let at = value.pointer(place).and_then(Value::as_u64);
    at.map(|at| format!("{} ago", output::span(Duration::from_millis(now.saturating_sub(at)))))
        .unwrap_or_default()
}

/// Formats the time until then.
pub(crate) fn until(value: &Value, place: &str, now: u64) -> Option<String> {
    let at = value.pointer(place)?.as_u64()?;
    Some(match at.checked_sub(now) {
        Some(left) if left > 0 => format!("in {}", output::span(Duration::from_millis(left))),
        Some(_) | None => "now".to_owned(),
    })
}

fn plain(text: impl Into<String>) -> (TextStyle, String) {
    (TextStyle::Plain, text.into())
}

/// Returns a cell with the tenant of a row. It is empty if the row has none.
pub(crate) fn tenant(row: &Value) -> (TextStyle, String) {
    plain(text(row, "/tenant"))
}

/// Returns the option that names the tenant of a row, if it belongs to one.
pub(crate) fn tenant_flag(row: &Value) -> Option<String> {
    TenantId::new(row.get("tenant")?.as_str()?).ok().map(|tenant| tenant.flag())
}

/// Head of the column of [`tenant`]. It is left out if no row belongs to a tenant.
pub(crate) const TENANT: &str = "TENANT";

/// Returns a table of requests that wait for approval.
pub(crate) fn approvals(response: &Value, now: u64) -> TextTable {
    let mut table = TextTable::new(&["ID", TENANT, "TOOL", "ASKED", "CALLS", "WHY", "ARGUMENTS"]);
    for one in list(response, "/approvals") {
        let is_blocked = one.get("blocked").and_then(Value::as_bool).unwrap_or_default();
        let reason = text(one, "/prompt/reason");
        let reason_cell =
            if is_blocked { (TextStyle::Bad, format!("blocked: {reason}")) } else { plain(reason) };
        table.row([
            (TextStyle::Bold, number(one, "/id").to_string()),
            tenant(one),
            plain(one.get("tool").map(tool).unwrap_or_default()),
            plain(age(one, "/lastAsked", now)),
            plain(number(one, "/askers").to_string()),
            reason_cell,
            (TextStyle::Dim, text(one, "/shown")),
        ]);
    }
    table.unless_empty(TENANT)
}

/// Returns a table of breakers, with open ones first.
pub(crate) fn breakers(response: &Value, now: u64, which: impl Fn(&Value) -> bool) -> TextTable {
    let mut table = TextTable::new(&["KEY", TENANT, "STATE", "SINCE", "FAILED", "WHY", "NEXT PROBE"]);
    let mut chosen: Vec<_> = list(response, "/breakers").iter().filter(|breaker| which(breaker)).collect();
    chosen.sort_by_key(|breaker| !is_open(breaker));
    for breaker in chosen {
        let state = text(breaker, "/state");
        let style = match &*state {
            "CLOSED" => TextStyle::Good,
            "HALF_OPEN" => TextStyle::Warn,
            _ => TextStyle::Bad,
        };
        let watched = if text(breaker, "/mode") == "enforce" { "" } else { " (ignored by the mode)" };
        let (failed, good) = (number(breaker, "/failures"), number(breaker, "/successes"));
        table.row([
            (TextStyle::Bold, text(breaker, "/key")),
            tenant(breaker),
            (style, format!("{}{watched}", state.to_lowercase().replace('_', " "))),
            plain(age(breaker, "/since", now)),
            plain(if failed + good > 0 { format!("{failed} of {}", failed + good) } else { String::new() }),
            plain(open_reason(breaker, now)),
            plain(until(breaker, "/nextProbeAt", now).unwrap_or_default()),
        ]);
    }
    table.unless_empty(TENANT)
}

/// Returns true if calls are refused, or pass only as probes.
pub(crate) fn is_open(breaker: &Value) -> bool {
    text(breaker, "/state") != "CLOSED"
}

fn open_reason(breaker: &Value, now: u64) -> String {
    match (&*text(breaker, "/forced/by"), until(breaker, "/forced/until", now)) {
        ("hand", Some(end)) => return format!("by an operator, ends {end}"),
        ("hand", None) => return "by an operator, until it is reset".to_owned(),
        ("configuration", _) => return "by the configuration".to_owned(),
        _ => {}
    }
    if !is_open(breaker) {
        return String::new();
    }
    match &*text(breaker, "/openedBy") {
        "consecutive" => match number(breaker, "/inARow") {
            // Another process opened it, or it was opened before a restart: counts are not stored.
            0 => "it kept failing".to_owned(),
            1 => "1 failure".to_owned(),
            failures => format!("{failures} failures in a row"),
        },
        "rate" => "too many calls fail".to_owned(),
        "slow" => "answers are too slow".to_owned(),
        "probe_failed" => "the probe failed".to_owned(),
        other => other.replace('_', " "),
    }
}

/// Returns a table of everything that is not simply trusted.
pub(crate) fn trust(response: &Value, now: u64) -> TextTable {
    let mut table = TextTable::new(&["WHO", TENANT, "STATE", "SINCE", "WHY", "ENDS"]);
    for one in list(response, "/trust") {
        let state = text(one, "/state");
        let style = match &*state {
            "blocked" => TextStyle::Bad,
            "escalated" => TextStyle::Warn,
            _ => TextStyle::Plain,
        };
        let subject = match (text(one, "/pluginName"), text(one, "/toolName"), text(one, "/signature")) {
            (_, tool, _) if tool.is_empty() => text(one, "/domain"),
            (namespace, tool, signature) if signature.is_empty() => format!("{namespace}/{tool}"),
            (_, _, signature) => signature,
        };
        let since = ["/recoveryStarted", "/escalatedAt", "/lastFailure"].map(|place| age(one, place, now));
        let since = since.into_iter().find(|since| !since.is_empty()).unwrap_or_default();
        let reason = text(one, "/escalationReason");
        let ends = recovery_text(one, &state, now);
        let cells = [
            (TextStyle::Bold, subject),
            tenant(one),
            (style, state),
            plain(since),
            plain(reason),
            plain(ends),
        ];
        table.row(cells);
    }
    table.unless_empty(TENANT)
}

/// Describes how the tool becomes trusted again.
fn recovery_text(one: &Value, state: &str, now: u64) -> String {
    let (successes, needed) = (number(one, "/successesSinceRecovery"), number(one, "/successesNeeded"));
    match state {
        "blocked" => "with `steadfast reset`".to_owned(),
        "recovering" => format!("{successes} of {needed} successes"),
        _ if one.get("waitsForApproval") == Some(&Value::Bool(true)) => "with `steadfast recover`".to_owned(),
        _ => until(one, "/recoversAt", now).unwrap_or_default(),
    }
}

/// Returns a table of hosts and servers to which calls failed.
pub(crate) fn domains(status: &Value, now: u64) -> TextTable {
    let mut table = TextTable::new(&["DOMAIN", TENANT, "FAILED", "LAST FAILURE", "TRUST"]);
    for one in list(status, "/domains") {
        let (failed, good) = (number(one, "/failures"), number(one, "/successes"));
        let trust = text(one, "/trust");
        table.row([
            (TextStyle::Bold, text(one, "/domain")),
            tenant(one),
            plain(format!("{failed} of {}", failed + good)),
            plain(age(one, "/lastFailureAtMs", now)),
            if trust == "trusted" { plain(trust) } else { (TextStyle::Warn, trust) },
        ]);
    }
    table.unless_empty(TENANT)
}

/// Returns a table of sessions that the loop guard stopped.
pub(crate) fn stopped(response: &Value, now: u64) -> TextTable {
    let mut table = TextTable::new(&["CONVERSATION", TENANT, "TOOL", "WHY", "SINCE", "ENDS"]);
    for one in list(response, "/stopped") {
        let reason = match &*text(one, "/layer") {
            "loop" => format!("failed {} times the same way", number(one, "/count")),
            "turn_limit" => format!("{} failures in one turn", number(one, "/count")),
            "repeated_success" => format!("the same success {} times", number(one, "/count")),
            other => other.replace('_', " "),
        };
        let session = text(one, "/session");
        table.row([
            (TextStyle::Bold, if session.is_empty() { "(none)".to_owned() } else { session }),
            tenant(one),
            plain(one.get("tool").map_or_else(|| "all".to_owned(), tool)),
            (TextStyle::Warn, reason),
            plain(age(one, "/since", now)),
            plain(until(one, "/until", now).unwrap_or_else(|| "with the turn".to_owned())),
        ]);
    }
    table.unless_empty(TENANT)
}

/// Returns all known tools.
pub(crate) async fn known_tools(
    reach: &OperatorConnection,
    tenant: Option<&str>,
) -> Result<Vec<String>, CommandFailure> {
    let tools = reach.fetch_all(ApiRequest::get("/v1/tools").with("tenant", tenant)).await?;
    let trust = reach.fetch_all(ApiRequest::get("/v1/trust").with("tenant", tenant)).await?;
    let of_trust = list(&trust, "/trust").iter().filter_map(|one| {
        let (namespace, tool) = (text(one, "/pluginName"), text(one, "/toolName"));
        (!tool.is_empty()).then(|| format!("{namespace}/{tool}"))
    });
    let mut known: Vec<_> =
        list(&tools, "/tools").iter().filter_map(|one| one.get("tool")).map(tool).chain(of_trust).collect();
    known.sort();
    known.dedup();
    Ok(known)
}

/// Returns the name that was probably meant, by its whole or by the part after the server.
pub(crate) fn nearest_name<'n>(written: &str, known: &'n [String]) -> Option<&'n str> {
    if known.iter().any(|name| name == written) {
        return None;
    }
    if written.contains('/') {
        return nearest(written, known.iter().map(String::as_str));
    }
    let short = |name: &'n String| name.split_once('/').map_or(name.as_str(), |(_, tool)| tool);
    if known.iter().any(|name| short(name) == written) {
        return None;
    }
    let found = nearest(written, known.iter().map(short))?;
    known.iter().find(|name| short(name) == found).map(String::as_str)
}

//! `steadfast unknown`: the calls with an unknown outcome, and the commands that resolve them.

use clap::Args;
use serde_json::{Value, json};

use crate::approvals::Whose;
use crate::failure::Failure;
use crate::output::{self, Look, Paint, Table};
use crate::reach::{self, Ask, Need, Ways};
use crate::resolve::{NAME, observed};
use crate::seen::TENANT;
use crate::{now, seen};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    whose: Whose,
}

/// Runs `steadfast unknown`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let ask = Ask::get("/v1/records").with("open", Some("true"));
    let ask = ask.with("tenant", options.whose.tenant.as_deref());
    let open = reach::with(&options.ways, Need::WhatIsThere, async |reach| Ok(reach.ask_all(ask).await?))?;
    let is_unknown = |record: &&Value| seen::text(record, "/state") == "unknown";
    let mut unknown: Vec<_> = seen::list(&open, "/records").iter().filter(is_unknown).collect();
    unknown.sort_by_key(|record| seen::number(record, "/arrivedAtMs"));
    if options.ways.json {
        let rows: Vec<_> = unknown.iter().map(|record| with_commands(record)).collect();
        output::say_json(&json!({ "unknown": rows }));
        return Ok(());
    }
    if unknown.is_empty() {
        output::say("no call has an unknown outcome");
        return Ok(());
    }
    let mut table = Table::new(&["CALL", TENANT, "TOOL", "SINCE", "OBSERVED", "CAN BE CHECKED"]);
    for record in &unknown {
        let is_settled = record.get("settled") == Some(&Value::Bool(true));
        let from = seen::until(record, "/settlesByMs", now().as_millis());
        let plain = |text: String| (Look::Plain, text);
        table.row([
            (Look::Bold, name(record)),
            seen::tenant(record),
            plain(record.get("tool").map(seen::tool).unwrap_or_default()),
            plain(seen::ago(record, "/arrivedAtMs", now().as_millis())),
            plain(observed(record).unwrap_or_default().to_owned()),
            plain(if is_settled { "now".to_owned() } else { from.unwrap_or_else(|| "not yet".to_owned()) }),
        ]);
    }
    output::say(&table.unless_empty(TENANT).draw(Paint::of_stdout(), 0));
    output::say("");
    output::say("Find out whether each call ran, and then resolve it:");
    for record in &unknown {
        let tool = record.get("tool").map(seen::tool).unwrap_or_default();
        let (ran, did_not_run) = (command(record, "ran"), command(record, "did-not-run"));
        output::say(&format!("  {tool}: `{ran}` or `{did_not_run}`"));
    }
    Ok(())
}

/// Returns the short name of a call.
fn name(record: &Value) -> String {
    let key = seen::text(record, "/key");
    key.get(..NAME).unwrap_or(&key).to_owned()
}

/// Returns the command with which an operator resolves the call.
fn command(record: &Value, outcome: &str) -> String {
    format!("steadfast resolve {} --{outcome}", name(record))
}

fn with_commands(record: &Value) -> Value {
    let mut record = record.clone();
    let resolve = json!({ "ran": command(&record, "ran"), "didNotRun": command(&record, "did-not-run") });
    if let Some(record) = record.as_object_mut() {
        record.insert("resolve".to_owned(), resolve);
    }
    record
}

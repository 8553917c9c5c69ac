//! `steadfast unknown`: the calls with an unknown outcome, and the commands that resolve them.

use clap::Args;
use serde_json::{Value, json};

use crate::commands::approvals::TenantOptions;
use crate::commands::resolve::{NAME, observed};
use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, TextStyle, TextTable};
use crate::support::setup::now;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose};
use crate::support::views;
use crate::support::views::TENANT;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
}

/// Runs `steadfast unknown`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let ask = ApiRequest::get("/v1/records").with("open", Some("true"));
    let ask = ask.with("tenant", options.scope.tenant.as_deref());
    let open = target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| {
        Ok(reach.fetch_all(ask).await?)
    })?;
    let is_unknown = |record: &&Value| views::text(record, "/state") == "unknown";
    let mut unknown: Vec<_> = views::list(&open, "/records").iter().filter(is_unknown).collect();
    unknown.sort_by_key(|record| views::number(record, "/arrivedAtMs"));
    if options.connection.json {
        let rows: Vec<_> = unknown.iter().map(|record| with_commands(record)).collect();
        output::print_json(&json!({ "unknown": rows }));
        return Ok(());
    }
    if unknown.is_empty() {
        output::print_data("no call has an unknown outcome");
        return Ok(());
    }
    let mut table = TextTable::new(&["CALL", TENANT, "TOOL", "SINCE", "OBSERVED", "CAN BE CHECKED"]);
    for record in &unknown {
        let is_settled = record.get("settled") == Some(&Value::Bool(true));
        let from = views::until(record, "/settlesByMs", now().as_millis());
        let plain = |text: String| (TextStyle::Plain, text);
        table.row([
            (TextStyle::Bold, name(record)),
            views::tenant(record),
            plain(record.get("tool").map(views::tool).unwrap_or_default()),
            plain(views::age(record, "/arrivedAtMs", now().as_millis())),
            plain(observed(record).unwrap_or_default().to_owned()),
            plain(if is_settled { "now".to_owned() } else { from.unwrap_or_else(|| "not yet".to_owned()) }),
        ]);
    }
    output::print_data(&table.unless_empty(TENANT).draw(ColourPainter::of_stdout(), 0));
    output::print_data("");
    output::print_data("Find out whether each call ran, and then resolve it:");
    for record in &unknown {
        let tool = record.get("tool").map(views::tool).unwrap_or_default();
        let (ran, did_not_run) = (command(record, "ran"), command(record, "did-not-run"));
        output::print_data(&format!("  {tool}: `{ran}` or `{did_not_run}`"));
    }
    Ok(())
}

/// Returns the short name of a call.
fn name(record: &Value) -> String {
    let key = views::text(record, "/key");
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

//! `steadfast failures [TOOL]`: lists failed calls of tools.

use clap::Args;
use serde_json::Value;

use crate::approvals::Whose;
use crate::failure::Failure;
use crate::output::{self, Look, Paint, Table};
use crate::reach::{self, Ask, Need, Ways};
use crate::seen::TENANT;
use crate::{now, seen};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only failures of this tool: `server/tool`.
    tool: Option<String>,
    /// Number of failures to show, newest first.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: u16,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    whose: Whose,
}

/// Runs `steadfast failures`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let ask = Ask::get("/v1/failures").with("tool", options.tool.as_deref());
    let ask = ask.with("tenant", options.whose.tenant.as_deref());
    let ask = ask.with("limit", Some(&options.limit.to_string()));
    let told = reach::with(&options.ways, Need::WhatIsThere, async |reach| Ok(reach.ask(ask).await?))?;
    if options.ways.json {
        output::say_json(&told);
        return Ok(());
    }
    let failures = seen::list(&told, "/failures");
    if failures.is_empty() {
        output::say(&match &options.tool {
            Some(tool) => format!("no call of {tool} has failed"),
            None => "no call has failed".to_owned(),
        });
        return Ok(());
    }
    let mut table =
        Table::new(&["WHEN", TENANT, "TOOL", "SEVERITY", "TYPE", "HTTP", "RETRIES", "MESSAGE", "CONTEXT"]);
    for failure in failures {
        let plain = |text: String| (Look::Plain, text);
        table.row([
            plain(seen::ago(failure, "/atMs", now().as_millis())),
            seen::tenant(failure),
            (Look::Bold, failure.get("tool").map(seen::tool).unwrap_or_default()),
            plain(seen::text(failure, "/severity")),
            plain(seen::text(failure, "/errorType")),
            plain(failure.get("httpStatus").map(ToString::to_string).unwrap_or_default()),
            plain(seen::number(failure, "/retries").to_string()),
            plain(first_line(failure)),
            (Look::Dim, facts(failure)),
        ]);
    }
    let columns = [TENANT, "TYPE", "HTTP", "CONTEXT"];
    let table = columns.into_iter().fold(table, Table::unless_empty);
    output::say(&table.draw(Paint::of_stdout(), 0));
    Ok(())
}

/// Returns a summary of the call's arguments, and the context that the host reported.
fn facts(failure: &Value) -> String {
    let fields =
        ["/argumentSummary", "/context"].into_iter().filter_map(|place| failure.pointer(place)?.as_object());
    let written = |(name, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{}={}", output::clean(name), output::clean(&value))
    };
    fields.flatten().map(written).collect::<Vec<_>>().join(" ")
}

/// Returns the part of the message that fits into a line.
fn first_line(failure: &Value) -> String {
    const LONGEST: usize = 100;
    let message = seen::text(failure, "/message");
    let line = message.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(line)),
        None => line.to_owned(),
    }
}

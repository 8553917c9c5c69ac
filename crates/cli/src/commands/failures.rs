//! `steadfast failures [TOOL]`: lists failed calls of tools.

use clap::Args;
use serde_json::Value;

use crate::commands::approvals::TenantOptions;
use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, TextStyle, TextTable};
use crate::support::setup::now;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose};
use crate::support::views;
use crate::support::views::TENANT;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only failures of this tool: `server/tool`.
    tool: Option<String>,
    /// Number of failures to show, newest first.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: u16,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
}

/// Runs `steadfast failures`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let ask = ApiRequest::get("/v1/failures").with("tool", options.tool.as_deref());
    let ask = ask.with("tenant", options.scope.tenant.as_deref());
    let ask = ask.with("limit", Some(&options.limit.to_string()));
    let response = target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| {
        Ok(reach.send(ask).await?)
    })?;
    if options.connection.json {
        output::print_json(&response);
        return Ok(());
    }
    let failures = views::list(&response, "/failures");
    if failures.is_empty() {
        output::print_data(&match &options.tool {
            Some(tool) => format!("no call of {tool} has failed"),
            None => "no call has failed".to_owned(),
        });
        return Ok(());
    }
    let mut table = TextTable::new(&[
        "WHEN", TENANT, "TOOL", "SEVERITY", "TYPE", "HTTP", "RETRIES", "MESSAGE", "CONTEXT",
    ]);
    for failure in failures {
        let plain = |text: String| (TextStyle::Plain, text);
        table.row([
            plain(views::age(failure, "/atMs", now().as_millis())),
            views::tenant(failure),
            (TextStyle::Bold, failure.get("tool").map(views::tool).unwrap_or_default()),
            plain(views::text(failure, "/severity")),
            plain(views::text(failure, "/errorType")),
            plain(failure.get("httpStatus").map(ToString::to_string).unwrap_or_default()),
            plain(views::number(failure, "/retries").to_string()),
            plain(first_line(failure)),
            (TextStyle::Dim, facts(failure)),
        ]);
    }
    let columns = [TENANT, "TYPE", "HTTP", "CONTEXT"];
    let table = columns.into_iter().fold(table, TextTable::unless_empty);
    output::print_data(&table.draw(ColourPainter::of_stdout(), 0));
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
    let message = views::text(failure, "/message");
    let line = message.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(line)),
        None => line.to_owned(),
    }
}

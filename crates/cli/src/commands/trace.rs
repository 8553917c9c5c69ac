//! `steadfast trace`: the events of a turn, and the list of turns.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::Timestamp;
use steadfast_api::queries::{TraceView, TurnView};
use steadfast_core::millis;

use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, TextStyle, TextTable};
use crate::support::setup::now;
use crate::support::target::{
    self, ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection, RequestError, encoded,
};
use crate::support::views;
use crate::support::waterfall::{self, Canvas};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The turn, by its trace id or by the name from its plan (the newest of that name). Without it the newest turns
    /// are listed.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Print JSON lines: one for the turn, each span and each event.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,
    /// Number of turns to list.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, conflicts_with = "id")]
    lines: usize,
}

/// Runs `steadfast trace`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| match &options.id {
        Some(id) => show(options, reach, id).await,
        None => list(options, reach).await,
    })
}

async fn show(options: &Options, reach: &OperatorConnection, id: &str) -> Result<(), CommandFailure> {
    let response = match fetch_trace(reach, id).await {
        Err(refused) if refused.is(StatusCode::NOT_FOUND) => {
            return Err(CommandFailure::Environment(format!(
                "{}\n`steadfast trace` lists the newest, and `steadfast tail` shows calls",
                refused.message()
            )));
        }
        response => response?,
    };
    if options.connection.json {
        output::print_json(&response);
    } else if options.jsonl {
        // Stops when the output is closed.
        lines(&response).iter().all(output::print_json_line);
    } else {
        let trace = read(&response).ok_or_else(unreadable)?;
        let columns = output::size().map_or(DEFAULT_WIDTH, |(columns, _)| columns);
        output::print_data(&waterfall::draw(
            &trace,
            Canvas { columns, now: now(), paint: ColourPainter::of_stdout() },
        ));
    }
    Ok(())
}

/// Width of the drawing if the output is not a terminal.
const DEFAULT_WIDTH: usize = 100;

/// Returns the stored trace of a turn, as `GET /v1/traces/{id}` returns it.
async fn fetch_trace(reach: &OperatorConnection, id: &str) -> Result<Value, RequestError> {
    reach.send(ApiRequest::get(&format!("/v1/traces/{}", encoded(id)))).await
}

/// Returns the parsed trace, or `None` if there is none.
pub(crate) async fn find(reach: &OperatorConnection, id: &str) -> Result<Option<TraceView>, CommandFailure> {
    match fetch_trace(reach, id).await {
        Ok(response) => read(&response).map(Some).ok_or_else(unreadable),
        Err(refused) if refused.is(StatusCode::NOT_FOUND) => Ok(None),
        Err(refused) => Err(refused.into()),
    }
}

fn unreadable() -> CommandFailure {
    CommandFailure::Environment("the trace cannot be read".to_owned())
}

/// Parses a trace. Fields of a newer gateway that are not known are left out.
pub(crate) fn read(response: &Value) -> Option<TraceView> {
    let turn = serde_json::from_value(response.get("turn")?.clone()).ok()?;
    let spans =
        views::list(response, "/spans").iter().filter_map(|span| serde_json::from_value(span.clone()).ok());
    let events = views::list(response, "/events")
        .iter()
        .filter_map(|event| serde_json::from_value(event.clone()).ok());
    Some(TraceView { turn, spans: spans.collect(), events: events.collect() })
}

/// Returns the lines of `GET /v1/traces/{id}` in the format of JSON lines.
fn lines(response: &Value) -> Vec<Value> {
    let mut lines: Vec<_> = response.get("turn").map(|turn| json!({ "turn": turn })).into_iter().collect();
    lines.extend(views::list(response, "/spans").iter().map(|span| json!({ "span": span })));
    lines.extend(views::list(response, "/events").iter().map(|event| json!({ "event": event })));
    lines
}

async fn list(options: &Options, reach: &OperatorConnection) -> Result<(), CommandFailure> {
    let count = options.lines.max(1);
    let ask = |after: Option<&str>, found: usize| {
        let limit = (count - found).min(MOST).to_string();
        ApiRequest::get("/v1/traces").with("limit", Some(&limit)).with("after", after)
    };
    let mut whole = reach.send(ask(None, 0)).await?;
    // A page may be short, and there may be more after it.
    while let Some(next) = whole.get("next").and_then(Value::as_str).map(str::to_owned) {
        let found = views::list(&whole, "/turns").len();
        if found >= count {
            break;
        }
        let page = reach.send(ask(Some(&next), found)).await?;
        target::add_page(&mut whole, page);
    }
    if options.connection.json {
        output::print_json(&whole);
        return Ok(());
    }
    let turns = views::list(&whole, "/turns");
    if options.jsonl {
        turns.iter().map(|turn| json!({ "turn": turn })).all(|line| output::print_json_line(&line));
        return Ok(());
    }
    if turns.is_empty() {
        output::print_message("no turn was submitted yet");
        return Ok(());
    }
    let heads: Vec<TurnView> =
        turns.iter().filter_map(|turn| serde_json::from_value(turn.clone()).ok()).collect();
    output::print_data(&table(&heads, now()).draw(ColourPainter::of_stdout(), 0));
    Ok(())
}

/// Maximum number of turns in one response.
const MOST: usize = 1000;

fn table(heads: &[TurnView], now: Timestamp) -> TextTable {
    let mut table = TextTable::new(&["BEGAN", "TURN", "ENDED", "CALLS", "TOOK", "SUMMARY"]);
    for head in heads {
        let age = output::span(Duration::from_millis(millis(now.since(head.started_at_ms))));
        let (style, sign, word) = waterfall::turn_state(head);
        let took =
            head.ended_at_ms.map(|end| waterfall::format_duration(millis(end.since(head.started_at_ms))));
        let attention = if head.escalated { " (needs attention)" } else { "" };
        table.row([
            (TextStyle::Plain, format!("{age} ago")),
            (TextStyle::Bold, waterfall::name(head)),
            (style, format!("{sign} {word}{attention}")),
            (TextStyle::Plain, head.calls.to_string()),
            (TextStyle::Plain, took.unwrap_or_default()),
            (TextStyle::Dim, head.summary.clone().unwrap_or_default()),
        ]);
    }
    table
}

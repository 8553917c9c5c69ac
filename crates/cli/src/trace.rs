//! `steadfast trace`: the events of a turn, and the list of turns.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::Timestamp;
use steadfast_api::look::{TraceView, TurnView};
use steadfast_core::millis;

use crate::failure::Failure;
use crate::output::{self, Look, Paint, Table};
use crate::reach::{self, Ask, Need, Reach, Refused, Ways, encoded};
use crate::waterfall::{self, Canvas};
use crate::{now, seen};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The turn, by its trace id or by the name from its plan (the newest of that name). Without it the newest turns
    /// are listed.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    #[command(flatten)]
    ways: Ways,
    /// Print JSON lines: one for the turn, each span and each event.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,
    /// Number of turns to list.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, conflicts_with = "id")]
    lines: usize,
}

/// Runs `steadfast trace`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    reach::with(&options.ways, Need::WhatIsThere, async |reach| match &options.id {
        Some(id) => show(options, reach, id).await,
        None => list(options, reach).await,
    })
}

async fn show(options: &Options, reach: &Reach, id: &str) -> Result<(), Failure> {
    let told = match story(reach, id).await {
        Err(refused) if refused.is(StatusCode::NOT_FOUND) => {
            return Err(Failure::World(format!(
                "{}\n`steadfast trace` lists the newest, and `steadfast tail` shows calls",
                refused.message()
            )));
        }
        told => told?,
    };
    if options.ways.json {
        output::say_json(&told);
    } else if options.jsonl {
        // Stops when the output is closed.
        lines(&told).iter().all(output::say_json_line);
    } else {
        let story = read(&told).ok_or_else(unreadable)?;
        let columns = output::size().map_or(UNSEEN, |(columns, _)| columns);
        output::say(&waterfall::draw(&story, Canvas { columns, now: now(), paint: Paint::of_stdout() }));
    }
    Ok(())
}

/// Width of the drawing if the output is not a terminal.
const UNSEEN: usize = 100;

/// Returns the stored trace of a turn, as `GET /v1/traces/{id}` returns it.
async fn story(reach: &Reach, id: &str) -> Result<Value, Refused> {
    reach.ask(Ask::get(&format!("/v1/traces/{}", encoded(id)))).await
}

/// Returns the parsed trace, or `None` if there is none.
pub(crate) async fn find(reach: &Reach, id: &str) -> Result<Option<TraceView>, Failure> {
    match story(reach, id).await {
        Ok(told) => read(&told).map(Some).ok_or_else(unreadable),
        Err(refused) if refused.is(StatusCode::NOT_FOUND) => Ok(None),
        Err(refused) => Err(refused.into()),
    }
}

fn unreadable() -> Failure {
    Failure::World("the trace cannot be read".to_owned())
}

/// Parses a trace. Fields of a newer gateway that are not known are left out.
pub(crate) fn read(told: &Value) -> Option<TraceView> {
    let turn = serde_json::from_value(told.get("turn")?.clone()).ok()?;
    let spans =
        seen::list(told, "/spans").iter().filter_map(|span| serde_json::from_value(span.clone()).ok());
    let events =
        seen::list(told, "/events").iter().filter_map(|event| serde_json::from_value(event.clone()).ok());
    Some(TraceView { turn, spans: spans.collect(), events: events.collect() })
}

/// Returns the lines of `GET /v1/traces/{id}` in the format of JSON lines.
fn lines(told: &Value) -> Vec<Value> {
    let mut lines: Vec<_> = told.get("turn").map(|turn| json!({ "turn": turn })).into_iter().collect();
    lines.extend(seen::list(told, "/spans").iter().map(|span| json!({ "span": span })));
    lines.extend(seen::list(told, "/events").iter().map(|event| json!({ "event": event })));
    lines
}

async fn list(options: &Options, reach: &Reach) -> Result<(), Failure> {
    let wanted = options.lines.max(1);
    let ask = |after: Option<&str>, found: usize| {
        let limit = (wanted - found).min(MOST).to_string();
        Ask::get("/v1/traces").with("limit", Some(&limit)).with("after", after)
    };
    let mut whole = reach.ask(ask(None, 0)).await?;
    // A page may be short, and there may be more after it.
    while let Some(next) = whole.get("next").and_then(Value::as_str).map(str::to_owned) {
        let found = seen::list(&whole, "/turns").len();
        if found >= wanted {
            break;
        }
        let page = reach.ask(ask(Some(&next), found)).await?;
        reach::add_page(&mut whole, page);
    }
    if options.ways.json {
        output::say_json(&whole);
        return Ok(());
    }
    let turns = seen::list(&whole, "/turns");
    if options.jsonl {
        turns.iter().map(|turn| json!({ "turn": turn })).all(|line| output::say_json_line(&line));
        return Ok(());
    }
    if turns.is_empty() {
        output::remark("no turn was submitted yet");
        return Ok(());
    }
    let heads: Vec<TurnView> =
        turns.iter().filter_map(|turn| serde_json::from_value(turn.clone()).ok()).collect();
    output::say(&table(&heads, now()).draw(Paint::of_stdout(), 0));
    Ok(())
}

/// Maximum number of turns in one response.
const MOST: usize = 1000;

fn table(heads: &[TurnView], now: Timestamp) -> Table {
    let mut table = Table::new(&["BEGAN", "TURN", "ENDED", "CALLS", "TOOK", "SUMMARY"]);
    for head in heads {
        let ago = output::span(Duration::from_millis(millis(now.since(head.started_at_ms))));
        let (look, sign, word) = waterfall::ended(head);
        let took = head.ended_at_ms.map(|ended| waterfall::lasted(millis(ended.since(head.started_at_ms))));
        let attention = if head.escalated { " (needs attention)" } else { "" };
        table.row([
            (Look::Plain, format!("{ago} ago")),
            (Look::Bold, waterfall::name(head)),
            (look, format!("{sign} {word}{attention}")),
            (Look::Plain, head.calls.to_string()),
            (Look::Plain, took.unwrap_or_default()),
            (Look::Dim, head.summary.clone().unwrap_or_default()),
        ]);
    }
    table
}

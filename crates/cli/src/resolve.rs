//! `steadfast resolve`: somebody found out whether a call ran.

use clap::Args;
use serde_json::json;
use steadfast::{Engine, Page, Selection};
use steadfast_core::dedupe::{Record, RecordState, Resolution};

use crate::failure::Failure;
use crate::output;
use crate::sources::Chosen;
use crate::state::{by_operator, engine, runtime};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: Chosen,
    /// The call, as the answer names it that says that its outcome is unknown: twelve digits, or as many as are needed.
    #[arg(value_name = "KEY")]
    key: String,
    /// It ran: it is never run again under its key, and its result is lost.
    #[arg(long, conflicts_with = "did_not_run", required_unless_present = "did_not_run")]
    ran: bool,
    /// It did not run: the next such call does.
    #[arg(long)]
    did_not_run: bool,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

/// `steadfast resolve`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let resolution = if options.ran { Resolution::Ran } else { Resolution::DidNotRun };
    let record = runtime()?.block_on(settle(options, resolution))?;
    if options.json {
        output::say_json(&json!({
            "key": record.key.fingerprint(),
            "tool": record.tool.to_string(),
            "ran": resolution == Resolution::Ran,
        }));
        return Ok(());
    }
    output::say(&match resolution {
        Resolution::Ran => {
            format!("settled: the call of {} ran; it is not run again, and its result is lost", record.tool)
        }
        Resolution::DidNotRun => {
            format!("settled: the call of {} did not run; the next such call does", record.tool)
        }
    });
    Ok(())
}

async fn settle(options: &Options, resolution: Resolution) -> Result<Record, Failure> {
    let engine = engine(&options.chosen).await?;
    let record = find(&engine, &options.key).await?;
    match engine.resolve(record.key, resolution, &by_operator()).await {
        Ok(true) => Ok(record),
        Ok(false) => Err(unknown_no_more(&options.key)),
        Err(error) => Err(Failure::World(format!("the store did not take it: {error}"))),
    }
}

/// The record that is meant, if there is one and only one.
async fn find(engine: &Engine, key: &str) -> Result<Record, Failure> {
    let given = key.to_ascii_lowercase();
    if given.is_empty() || !given.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Failure::Usage(format!(
            "`{key}` is no name of a call: copy the twelve digits of the answer that says `outcome_unknown`"
        )));
    }
    let selection = Selection { open: true, ..Selection::default() };
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = engine.records(&selection, Page { after, limit: PAGE }).await;
        let page = page.map_err(|error| Failure::World(format!("the store cannot be read: {error}")))?;
        after = page.last().map(|record| record.key);
        let is_last = page.len() < PAGE;
        found.extend(page.into_iter().filter(|record| record.key.0.to_hex().starts_with(&given)));
        if is_last {
            break;
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(record), true) if matches!(record.state, RecordState::Unknown) => Ok(record),
        (Some(record), true) => Err(Failure::World(format!(
            "the call of {} is still under way: wait until it has ended",
            record.tool
        ))),
        (Some(_), false) => {
            Err(Failure::Usage(format!("more than one call begins with `{key}`: give more of its digits")))
        }
        (None, _) => Err(unknown_no_more(key)),
    }
}

fn unknown_no_more(key: &str) -> Failure {
    Failure::World(format!(
        "there is no call `{key}` whose outcome is unknown: it was settled, it was answered late, or it is in another store (`steadfast check` says which one is used here)"
    ))
}

/// How many records are read at once.
const PAGE: usize = 1000;

//! `steadfast approvals`, `approve` and `deny`: a person's answer to calls that need one.
//!
//! They work on the store, so that it does not matter whether a gateway runs. One that does hears of it at once, and a call
//! that waits goes on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use steadfast::approval::{Decided, Decision, Grantor, NotDecided, Parked, ParkedId};
use steadfast::{AnswerError, Timestamp, parse_span};
use steadfast_core::millis;

use crate::failure::Failure;
use crate::output;
use crate::sources::Chosen;
use crate::state::{by_operator, engine, runtime};

#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    chosen: Chosen,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Approve {
    #[command(flatten)]
    chosen: Chosen,
    /// The request, as `steadfast approvals` numbers it.
    id: u64,
    /// One call with exactly these arguments; so it is without any of the three.
    #[arg(long, conflicts_with_all = ["session", "span"])]
    once: bool,
    /// All such calls of the same conversation, for a day at the longest.
    #[arg(long, conflicts_with = "span")]
    session: bool,
    /// All such calls for so long: `30m`, `8h`.
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<String>,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Deny {
    #[command(flatten)]
    chosen: Chosen,
    /// The request, as `steadfast approvals` numbers it.
    id: u64,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

/// `steadfast approvals`.
pub(crate) fn list(options: &List) -> Result<(), Failure> {
    let waiting =
        runtime()?.block_on(async { Ok::<_, Failure>(engine(&options.chosen).await?.approvals(None)) })?;
    if options.json {
        let all: Vec<_> = waiting.iter().map(|(id, parked)| to_json(*id, parked)).collect();
        output::say_json(&json!({ "approvals": all }));
    } else if waiting.is_empty() {
        output::say("nothing waits for approval");
    } else {
        output::say(&table(&waiting, now()));
        output::remark("answer with `steadfast approve ID` or `steadfast deny ID`");
    }
    Ok(())
}

/// `steadfast approve`.
pub(crate) fn approve(options: &Approve) -> Result<(), Failure> {
    let decision = match &options.span {
        Some(span) => Decision::Time { until: now() + length(span)? },
        None if options.session => Decision::Session,
        None => Decision::Once,
    };
    let parked = answer(&options.chosen, options.id, decision)?;
    let tool = &parked.tool;
    let said = match decision {
        Decision::Once => format!("approved: one call of {tool} with exactly these arguments"),
        Decision::Session if parked.session.is_none() => {
            format!(
                "approved: one call of {tool}; it belongs to no conversation that more could be allowed for"
            )
        }
        Decision::Session => format!("approved: calls of {} in the same conversation", parked.signature.0),
        Decision::Time { .. } => {
            let span = options.span.as_deref().unwrap_or_default();
            format!("approved: calls of {} for {span}", parked.signature.0)
        }
        Decision::Deny => format!("denied: the call of {tool}"),
    };
    tell(options.json, options.id, "approved", &said);
    Ok(())
}

/// `steadfast deny`.
pub(crate) fn deny(options: &Deny) -> Result<(), Failure> {
    let parked = answer(&options.chosen, options.id, Decision::Deny)?;
    tell(options.json, options.id, "denied", &format!("denied: the call of {}", parked.tool));
    Ok(())
}

fn tell(as_json: bool, id: u64, answer: &str, said: &str) {
    if as_json {
        output::say_json(&json!({ "id": id, "answer": answer }));
    } else {
        output::say(said);
    }
}

/// Answers a request; gives what it was about.
fn answer(chosen: &Chosen, id: u64, decision: Decision) -> Result<Parked, Failure> {
    runtime()?.block_on(async {
        let engine = engine(chosen).await?;
        let gone = || {
            Failure::World(format!(
                "there is no request {id} any more: it was answered, or it has expired. `steadfast approvals` shows what waits"
            ))
        };
        let waiting = engine.approvals(None);
        let (_, parked) = waiting.into_iter().find(|(other, _)| other.0 == id).ok_or_else(gone)?;
        match engine.decide(None, ParkedId(id), decision, Grantor::Operator, &by_operator()).await {
            Ok(Decided::Granted { .. } | Decided::Denied) => Ok(parked),
            Err(AnswerError::NotDecided(NotDecided::Gone)) => Err(gone()),
            Err(error) => Err(Failure::World(error.to_string())),
        }
    })
}

fn length(text: &str) -> Result<Duration, Failure> {
    let span = parse_span(text).filter(|span| !span.is_zero() && *span <= LONGEST);
    span.ok_or_else(|| {
        Failure::Usage(format!(
            "`--for {text}` is no time that a grant can last: write 30m, 8h, 2d; at most 365d"
        ))
    })
}

/// The longest that is granted at once.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

fn to_json(id: ParkedId, parked: &Parked) -> Value {
    json!({
        "id": id.0,
        "tool": parked.tool.to_string(),
        "signature": &*parked.signature.0,
        "session": parked.session.as_ref().map(|session| session.as_str()),
        "operatorOnly": parked.blocked,
        "arguments": parked.shown.as_deref(),
        "summary": parked.prompt.summary,
        "warnings": parked.prompt.warnings,
        "level": parked.prompt.level,
        "reason": parked.prompt.reason,
        "failures": parked.prompt.failures,
        "window": parked.prompt.window,
        "recoveryHint": parked.prompt.recovery_hint,
        "calls": parked.askers,
        "askedAtMs": parked.asked_at.as_millis(),
        "lastAskedAtMs": parked.last_asked.as_millis(),
        "expiresAtMs": parked.expires.as_millis(),
    })
}

/// The requests as lines, one each.
fn table(waiting: &[(ParkedId, Parked)], now: Timestamp) -> String {
    let mut rows = vec![["ID", "TOOL", "ASKED", "CALLS", "WHY", "ARGUMENTS"].map(str::to_owned)];
    rows.extend(waiting.iter().map(|(id, parked)| {
        let why = if parked.blocked {
            format!("blocked: {}", parked.prompt.reason)
        } else {
            parked.prompt.reason.clone()
        };
        [
            id.0.to_string(),
            parked.tool.to_string(),
            format!("{} ago", ago(now.since(parked.last_asked))),
            parked.askers.to_string(),
            short(&why),
            short(parked.shown.as_deref().unwrap_or_default()),
        ]
    }));
    let widths: Vec<usize> = (0..6)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// As much as fits a line, without anything that would break it.
fn short(text: &str) -> String {
    let line: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    match line.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The widest that a cell of free text gets.
const WIDEST: usize = 60;

fn ago(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn now() -> Timestamp {
    Timestamp::from_millis(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

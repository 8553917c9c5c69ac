//! `steadfast resolve`: an operator reports the real outcome of a call.

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use crate::support::failure::CommandFailure;
use crate::support::output;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection};
use crate::support::views;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// The call, as named in the response that reports the unknown outcome: twelve digits, or a unique prefix.
    #[arg(value_name = "KEY")]
    key: String,
    #[command(flatten)]
    outcome: OutcomeOptions,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct OutcomeOptions {
    /// It ran. It is never run again under its key, and its result is lost.
    #[arg(long)]
    ran: bool,
    /// It did not run. The next such call runs.
    #[arg(long)]
    did_not_run: bool,
}

/// Runs `steadfast resolve`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let record = target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| {
        let record = find(reach, &options.key, RecordSelection::Open)
            .await?
            .ok_or_else(|| not_unknown(&options.key))?;
        let tool = record.get("tool").map(views::tool).unwrap_or_default();
        if views::text(&record, "/state") != "unknown" {
            return Err(CommandFailure::Environment(format!(
                "the call of {tool} is still in flight: wait until it has ended"
            )));
        }
        let path = format!("/v1/records/{}/resolve", views::text(&record, "/key"));
        match reach.send(ApiRequest::post(&path, Some(json!({ "ran": options.outcome.ran })))).await {
            Ok(_) => Ok(record),
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => Err(not_unknown(&options.key)),
            Err(refused) if refused.is(StatusCode::CONFLICT) => {
                let observed = observed(&record).map(|text| format!(" ({text})")).unwrap_or_default();
                Err(CommandFailure::Environment(format!(
                    "cannot resolve the call of {tool}{observed}: {}",
                    refused.message()
                )))
            }
            Err(refused) => Err(refused.into()),
        }
    })?;
    let tool = record.get("tool").map(views::tool).unwrap_or_default();
    if options.connection.json {
        let key = views::text(&record, "/key");
        let name = key.get(..NAME).unwrap_or_default();
        output::print_json(&json!({ "key": name, "tool": tool, "ran": options.outcome.ran }));
    } else if options.outcome.ran {
        output::print_plain(&format!(
            "resolved: the call of {tool} ran; it is not run again, and its result is lost"
        ));
    } else {
        output::print_plain(&format!("resolved: the call of {tool} did not run; the next such call does"));
    }
    Ok(())
}

/// Length of the short key in responses, and of a whole key, in digits.
pub(crate) const NAME: usize = 12;
const WHOLE: usize = 64;

/// Set of records that are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordSelection {
    /// Records that are in flight or have an unknown outcome.
    Open,
    All,
}

/// Returns the record whose key begins with these digits, if exactly one does.
pub(crate) async fn find(
    reach: &OperatorConnection,
    digits: &str,
    only: RecordSelection,
) -> Result<Option<Value>, CommandFailure> {
    let given = digits.to_ascii_lowercase();
    if given.is_empty() || given.len() > WHOLE || !given.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(CommandFailure::Usage(format!(
            "`{digits}` is not a valid call: copy the twelve digits of the response with `outcome_unknown`"
        )));
    }
    // Records come in the order of their keys, so those with the same prefix are adjacent.
    let mut ask = ApiRequest::get("/v1/records").with("limit", Some("2"));
    if only == RecordSelection::Open {
        ask = ask.with("open", Some("true"));
    }
    if let Some(before) = before(&given) {
        ask = ask.with("after", Some(&before));
    }
    let page = reach.send(ask).await?;
    let mut found =
        views::list(&page, "/records").iter().filter(|one| views::text(one, "/key").starts_with(&given));
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => Err(CommandFailure::Usage(format!(
            "more than one call begins with `{digits}`: enter more digits"
        ))),
        (one, _) => Ok(one.cloned()),
    }
}

/// Returns the last key before all keys that begin with these digits, or `None` if there is none.
fn before(digits: &str) -> Option<String> {
    let mut key: Vec<u8> = format!("{digits:0<WHOLE$}").into_bytes();
    for digit in key.iter_mut().rev() {
        match *digit {
            b'0' => *digit = b'f',
            b'a' => {
                *digit = b'9';
                return String::from_utf8(key).ok();
            }
            _ => {
                *digit -= 1;
                return String::from_utf8(key).ok();
            }
        }
    }
    None
}

/// Describes what was observed of the call.
pub(crate) fn observed(record: &Value) -> Option<&'static str> {
    match record.get("observed")?.as_str()? {
        "no_answer" => Some("no response arrived in time"),
        "error_answer" => Some("the tool returned an error"),
        "connection_lost" => Some("the connection was lost"),
        "process_died" => Some("the process that ran it ended"),
        _ => None,
    }
}

fn not_unknown(key: &str) -> CommandFailure {
    CommandFailure::Environment(format!(
        "there is no call `{key}` with an unknown outcome: it was resolved, its response arrived late, or it is in another store (`steadfast check` shows the store in use)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_before_is_the_one_before() {
        for (digits, start) in [("a1", "a0ff"), ("a", "9fff"), ("10", "0fff"), ("9b0", "9aff"), ("f", "efff")]
        {
            let before = before(digits).unwrap();
            assert!(before.starts_with(start) && before.len() == WHOLE, "{digits}: {before}");
            assert!(before.as_str() < digits);
        }
        assert_eq!(before("000"), None);
        assert_eq!(before(&format!("{:0>63}1", "")), Some("0".repeat(64)));
    }
}

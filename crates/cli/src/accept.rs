//! `steadfast state accept`: an operator accepts that records are lost, and lets calls run again.

use clap::Subcommand;
use serde_json::Value;

use crate::failure::Failure;
use crate::output;
use crate::reach::{self, Ask, Need, Ways};
use crate::seen;

/// Commands for the state as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum State {
    /// Accepts that committed records are lost: calls with an idempotency key run again, including calls that already
    /// ran.
    Accept(Ways),
}

/// Runs `steadfast state accept`.
pub(crate) fn run(State::Accept(ways): &State) -> Result<(), Failure> {
    let answer = reach::with(ways, Need::WhatIsThere, async |reach| {
        Ok(reach.ask(Ask::post("/v1/state/accept", None)).await?)
    })?;
    if ways.json {
        output::say_json(&answer);
    } else if answer.get("accepted").is_none_or(Value::is_null) {
        output::say("no record was lost: there is nothing to accept");
    } else {
        let commits = seen::number(&answer, "/accepted/commits");
        let what = if commits > 0 {
            format!("{commits} commits or more are lost")
        } else {
            "records are lost".to_owned()
        };
        output::say(&format!("accepted that {what}: calls with an idempotency key run again"));
    }
    Ok(())
}

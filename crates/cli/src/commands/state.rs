//! `steadfast state accept`: an operator accepts that records are lost, and lets calls run again.

use clap::Subcommand;
use serde_json::Value;

use crate::support::failure::CommandFailure;
use crate::support::output;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose};
use crate::support::views;

/// Commands for the state as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Accept that committed records are lost: calls with an idempotency key run again, including calls that already
    /// ran.
    Accept(ConnectionOptions),
}

/// Runs `steadfast state accept`.
pub(crate) fn run(StateCommand::Accept(connection): &StateCommand) -> Result<(), CommandFailure> {
    let answer = target::with(connection, ConnectionPurpose::ExistingState, async |reach| {
        Ok(reach.send(ApiRequest::post("/v1/state/accept", None)).await?)
    })?;
    if connection.json {
        output::print_json(&answer);
    } else if answer.get("accepted").is_none_or(Value::is_null) {
        output::print_data("no record was lost: there is nothing to accept");
    } else {
        let commits = views::number(&answer, "/accepted/commits");
        let loss = if commits > 0 {
            format!("{commits} commits or more are lost")
        } else {
            "records are lost".to_owned()
        };
        output::print_data(&format!("accepted that {loss}: calls with an idempotency key run again"));
    }
    Ok(())
}

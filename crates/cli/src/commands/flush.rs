//! `steadfast flush`: deletes stored calls, so that they run again when repeated.

use clap::{ArgGroup, Args};

use crate::commands::resolve::{RecordSelection, find};
use crate::support::failure::CommandFailure;
use crate::support::output;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose};
use crate::support::views;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["key", "tool", "session", "tenant"]))]
pub(crate) struct Options {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// This call, whatever its outcome: the digits of its key, or a unique prefix.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["tool", "session", "tenant"])]
    key: Option<String>,
    /// The finished calls of this tool: SERVER/TOOL.
    #[arg(long, value_name = "SERVER/TOOL")]
    tool: Option<String>,
    /// The finished calls of this session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// The finished calls of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

/// Runs `steadfast flush`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let Options { connection, key, tool, session, tenant } = options;
    let (removed, suggestion) = target::with(connection, ConnectionPurpose::ExistingState, async |reach| {
        let key = match key {
            None => None,
            Some(digits) => {
                let record = find(reach, digits, RecordSelection::All).await?;
                let none = || {
                    CommandFailure::Environment(format!(
                        "there is no call `{digits}`: `--tool`, `--session` and `--tenant` delete many at once"
                    ))
                };
                Some(views::text(&record.ok_or_else(none)?, "/key"))
            }
        };
        let ask = ApiRequest::delete("/v1/records")
            .with("key", key.as_deref())
            .with("tool", tool.as_deref())
            .with("session", session.as_deref())
            .with("tenant", tenant.as_deref());
        let removed = reach.send(ask).await?;
        let suggestion = match tool {
            Some(tool) if views::number(&removed, "/forgotten") == 0 => {
                let known = views::known_tools(reach, tenant.as_deref()).await?;
                views::nearest_name(tool, &known).map(str::to_owned)
            }
            Some(_) | None => None,
        };
        Ok((removed, suggestion))
    })?;
    if connection.json {
        output::print_json(&removed);
    } else {
        output::print_data(&match views::number(&removed, "/forgotten") {
            0 => "no matching records".to_owned(),
            1 => "1 record deleted: the call runs again when it is repeated".to_owned(),
            count => format!("{count} records deleted: the calls run again when they are repeated"),
        });
    }
    if let Some(suggestion) = suggestion {
        output::print_message(&format!("note: did you mean `{suggestion}`?"));
    }
    Ok(())
}

//! `steadfast flush`: deletes stored calls, so that they run again when repeated.

use clap::{ArgGroup, Args};

use crate::failure::Failure;
use crate::output;
use crate::reach::{self, Ask, Need, Ways};
use crate::resolve::{Only, find};
use crate::seen;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["key", "tool", "session", "tenant"]))]
pub(crate) struct Options {
    #[command(flatten)]
    ways: Ways,
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
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let Options { ways, key, tool, session, tenant } = options;
    let (removed, meant) = reach::with(ways, Need::WhatIsThere, async |reach| {
        let key = match key {
            None => None,
            Some(digits) => {
                let record = find(reach, digits, Only::All).await?;
                let none = || {
                    Failure::World(format!(
                        "there is no call `{digits}`: `--tool`, `--session` and `--tenant` delete many at once"
                    ))
                };
                Some(seen::text(&record.ok_or_else(none)?, "/key"))
            }
        };
        let ask = Ask::delete("/v1/records")
            .with("key", key.as_deref())
            .with("tool", tool.as_deref())
            .with("session", session.as_deref())
            .with("tenant", tenant.as_deref());
        let removed = reach.ask(ask).await?;
        let meant = match tool {
            Some(tool) if seen::number(&removed, "/forgotten") == 0 => {
                let known = seen::known_tools(reach, tenant.as_deref()).await?;
                seen::meant(tool, &known).map(str::to_owned)
            }
            Some(_) | None => None,
        };
        Ok((removed, meant))
    })?;
    if ways.json {
        output::say_json(&removed);
    } else {
        output::say(&match seen::number(&removed, "/forgotten") {
            0 => "there was nothing to forget".to_owned(),
            1 => "1 call is forgotten: it runs when it comes again".to_owned(),
            count => format!("{count} calls are forgotten: they run when they come again"),
        });
    }
    if let Some(meant) = meant {
        output::remark(&format!("note: did you mean `{meant}`?"));
    }
    Ok(())
}

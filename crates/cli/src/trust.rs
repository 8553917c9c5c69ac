//! `steadfast reset` and `steadfast recover`: the ways back for a tool that has lost trust.

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use crate::approvals::Whose;
use crate::failure::Failure;
use crate::output;
use crate::reach::{self, Ask, Need, Ways, encoded};
use crate::seen;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    whose: Whose,
    /// The tool, as SERVER/TOOL or its name alone; or `domain:HOST`.
    #[arg(required_unless_present = "all")]
    tool: Option<String>,
    /// All tools.
    #[arg(long, conflicts_with = "tool")]
    all: bool,
}

/// `steadfast reset`.
pub(crate) fn reset(options: &Options) -> Result<(), Failure> {
    let changed = change(options, "reset")?;
    if options.ways.json {
        output::say_json(&json!({ "reset": changed.tools, "changes": changed.changes }));
    } else if options.all {
        output::say("forgiven: everything");
    } else if changed.is_known {
        output::say_words(&format!("forgiven: {}", changed.whom(options)));
    } else {
        output::say_words(&format!("nothing counts against {}", options.wanted()));
    }
    changed.remark();
    Ok(())
}

/// `steadfast recover`.
pub(crate) fn recover(options: &Options) -> Result<(), Failure> {
    let changed = change(options, "recover")?;
    if options.ways.json {
        output::say_json(&json!({ "recovering": changed.tools, "changes": changed.changes }));
    } else if changed.changes == 0 {
        output::say_words(&match &options.tool {
            Some(tool) => format!("{tool} is not escalated"),
            None => "nothing is escalated".to_owned(),
        });
    } else if options.all {
        output::say("recovering: everything that was escalated");
    } else {
        output::say_words(&format!("recovering: {}", changed.whom(options)));
    }
    changed.remark();
    Ok(())
}

impl Options {
    fn wanted(&self) -> &str {
        self.tool.as_deref().filter(|_| !self.all).unwrap_or("*")
    }
}

struct Changed {
    /// Whether a tool or domain of this name was found.
    is_known: bool,
    tools: Vec<String>,
    changes: u64,
    /// If none was found: the tool with the most similar name.
    meant: Option<String>,
}

impl Changed {
    fn whom(&self, options: &Options) -> String {
        if self.tools.is_empty() { options.wanted().to_owned() } else { self.tools.join(", ") }
    }

    fn remark(&self) {
        if let Some(meant) = &self.meant {
            output::remark(&format!("note: did you mean `{meant}`?"));
        }
    }
}

fn change(options: &Options, verb: &str) -> Result<Changed, Failure> {
    let (tenant, wanted) = (options.whose.tenant.as_deref(), options.wanted());
    let path = format!("/v1/trust/{}/{verb}", encoded(wanted));
    reach::with(&options.ways, Need::WhatIsThere, async |reach| {
        match reach.ask(Ask::post(&path, None).with("tenant", tenant)).await {
            Ok(changed) => {
                let tools = seen::list(&changed, "/tools").iter().filter_map(Value::as_str);
                let tools = tools.map(str::to_owned).collect();
                let changes = seen::number(&changed, "/changes");
                Ok(Changed { is_known: true, tools, changes, meant: None })
            }
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => {
                let known = seen::known_tools(reach, tenant).await?;
                let meant = seen::meant(wanted, &known).map(str::to_owned);
                Ok(Changed { is_known: false, tools: Vec::new(), changes: 0, meant })
            }
            Err(refused) => Err(refused.into()),
        }
    })
}

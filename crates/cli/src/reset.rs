//! `steadfast reset`: a tool is forgiven what counts against it.

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
    /// The tool, as SERVER/TOOL or its name alone.
    #[arg(required_unless_present = "all")]
    tool: Option<String>,
    /// Forgives everything.
    #[arg(long, conflicts_with = "tool")]
    all: bool,
}

/// `steadfast reset`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let tenant = options.whose.tenant.as_deref();
    let wanted = options.tool.as_deref().filter(|_| !options.all).unwrap_or("*");
    let path = format!("/v1/trust/{}/reset", encoded(wanted));
    let (forgiven, meant) = reach::with(&options.ways, Need::WhatIsThere, async |reach| {
        match reach.ask(Ask::post(&path, None).with("tenant", tenant)).await {
            Ok(forgiven) => Ok((forgiven, None)),
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => {
                let known = seen::known_tools(reach, tenant).await?;
                Ok((json!({ "tools": [], "changes": 0 }), seen::meant(wanted, &known).map(str::to_owned)))
            }
            Err(refused) => Err(refused.into()),
        }
    })?;
    let tools: Vec<_> = seen::list(&forgiven, "/tools").iter().filter_map(Value::as_str).collect();
    if options.ways.json {
        output::say_json(&json!({ "reset": tools, "changes": seen::number(&forgiven, "/changes") }));
    } else if options.all {
        output::say("forgiven: everything");
    } else if tools.is_empty() {
        output::say_words(&format!("nothing counts against {wanted}"));
    } else {
        output::say_words(&format!("forgiven: {}", tools.join(", ")));
    }
    if let Some(meant) = meant {
        output::remark(&format!("note: did you mean `{meant}`?"));
    }
    Ok(())
}

//! `steadfast reset` and `steadfast recover`: restore trust in a tool.

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use crate::approvals::Whose;
use crate::failure::Failure;
use crate::output;
use crate::reach::{self, Ask, Need, Reach, Ways, encoded};
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
    /// All tools. Without `--tenant`, those of every tenant.
    #[arg(long, conflicts_with = "tool")]
    all: bool,
}

/// Runs `steadfast reset`.
pub(crate) fn reset(options: &Options) -> Result<(), Failure> {
    let changed = change(options, "reset")?;
    if options.ways.json {
        output::say_json(&json!({ "reset": changed.tools, "changes": changed.changes }));
    } else if options.all {
        output::say("trust restored: everything");
    } else if changed.is_known {
        output::say_words(&format!("trust restored: {}", changed.whom(options)));
    } else {
        output::say_words(&format!("nothing to restore for {}", options.wanted()));
    }
    changed.remark();
    Ok(())
}

/// Runs `steadfast recover`.
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
    /// True if a tool or domain with this name was found.
    is_known: bool,
    tools: Vec<String>,
    changes: u64,
    /// Name that was probably meant, if none was found.
    hint: Option<String>,
}

impl Changed {
    fn whom(&self, options: &Options) -> String {
        if self.tools.is_empty() { options.wanted().to_owned() } else { self.tools.join(", ") }
    }

    fn remark(&self) {
        if let Some(hint) = &self.hint {
            output::remark(&format!("note: {hint}"));
        }
    }
}

fn change(options: &Options, verb: &str) -> Result<Changed, Failure> {
    let (tenant, wanted) = (options.whose.tenant.as_deref(), options.wanted());
    let path = format!("/v1/trust/{}/{verb}", encoded(wanted));
    reach::with(&options.ways, Need::WhatIsThere, async |reach| {
        let tenants = match options.all {
            true => reach.tenants(tenant).await?,
            false => vec![tenant.map(str::to_owned)],
        };
        let mut all = Changed { is_known: false, tools: Vec::new(), changes: 0, hint: None };
        for tenant in &tenants {
            match reach.ask(Ask::post(&path, None).with("tenant", tenant.as_deref())).await {
                Ok(changed) => {
                    all.is_known = true;
                    all.tools.extend(
                        seen::list(&changed, "/tools").iter().filter_map(Value::as_str).map(str::to_owned),
                    );
                    all.changes += seen::number(&changed, "/changes");
                }
                Err(refused) if refused.is(StatusCode::NOT_FOUND) => {
                    all.hint = hint(reach, tenant.as_deref(), wanted).await?;
                }
                Err(refused) => return Err(refused.into()),
            }
        }
        Ok(all)
    })
}

/// Suggests the tenant or name that was probably meant when this tenant does not have it.
async fn hint(reach: &Reach, tenant: Option<&str>, wanted: &str) -> Result<Option<String>, Failure> {
    if tenant.is_none() {
        let trust = reach.ask_each(Ask::get("/v1/trust"), &reach.tenants(None).await?).await?;
        let is_it = |one: &&Value| {
            let (namespace, tool) = (seen::text(one, "/pluginName"), seen::text(one, "/toolName"));
            [tool.clone(), format!("{namespace}/{tool}"), format!("domain:{}", seen::text(one, "/domain"))]
                .iter()
                .any(|name| name == wanted)
        };
        let of_it = seen::list(&trust, "/trust").iter().filter(is_it);
        if let Some(other) = of_it.filter_map(seen::tenant_flag).next() {
            return Ok(Some(format!("it has lost trust for a tenant: add `{other}`")));
        }
    }
    let known = seen::known_tools(reach, tenant).await?;
    Ok(seen::meant(wanted, &known).map(|meant| format!("did you mean `{meant}`?")))
}

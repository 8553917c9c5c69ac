//! `steadfast reset` and `steadfast recover`: restore trust in a tool.

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use crate::commands::approvals::TenantOptions;
use crate::support::failure::CommandFailure;
use crate::support::output;
use crate::support::target::{
    self, ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection, encoded,
};
use crate::support::views;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
    /// The tool, as SERVER/TOOL or its name alone; or `domain:HOST`.
    #[arg(required_unless_present = "all")]
    tool: Option<String>,
    /// All tools. Without `--tenant`, those of every tenant.
    #[arg(long, conflicts_with = "tool")]
    all: bool,
}

/// Runs `steadfast reset`.
pub(crate) fn reset(options: &Options) -> Result<(), CommandFailure> {
    let changed = change(options, "reset")?;
    if options.connection.json {
        output::print_json(&json!({ "reset": changed.tools, "changes": changed.changes }));
    } else if options.all {
        output::print_data("trust restored: everything");
    } else if changed.is_known {
        output::print_plain(&format!("trust restored: {}", changed.subject(options)));
    } else {
        output::print_plain(&format!("nothing to restore for {}", options.selector()));
    }
    changed.remark();
    Ok(())
}

/// Runs `steadfast recover`.
pub(crate) fn recover(options: &Options) -> Result<(), CommandFailure> {
    let changed = change(options, "recover")?;
    if options.connection.json {
        output::print_json(&json!({ "recovering": changed.tools, "changes": changed.changes }));
    } else if changed.changes == 0 {
        output::print_plain(&match &options.tool {
            Some(tool) => format!("{tool} is not escalated"),
            None => "nothing is escalated".to_owned(),
        });
    } else if options.all {
        output::print_data("recovering: everything that was escalated");
    } else {
        output::print_plain(&format!("recovering: {}", changed.subject(options)));
    }
    changed.remark();
    Ok(())
}

impl Options {
    fn selector(&self) -> &str {
        self.tool.as_deref().filter(|_| !self.all).unwrap_or("*")
    }
}

struct TrustChangeResult {
    /// True if a tool or domain with this name was found.
    is_known: bool,
    tools: Vec<String>,
    changes: u64,
    /// Name that was probably meant, if none was found.
    hint: Option<String>,
}

impl TrustChangeResult {
    fn subject(&self, options: &Options) -> String {
        if self.tools.is_empty() { options.selector().to_owned() } else { self.tools.join(", ") }
    }

    fn remark(&self) {
        if let Some(hint) = &self.hint {
            output::print_message(&format!("note: {hint}"));
        }
    }
}

fn change(options: &Options, verb: &str) -> Result<TrustChangeResult, CommandFailure> {
    let (tenant, selector) = (options.scope.tenant.as_deref(), options.selector());
    let path = format!("/v1/trust/{}/{verb}", encoded(selector));
    target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| {
        let tenants = match options.all {
            true => reach.tenants(tenant).await?,
            false => vec![tenant.map(str::to_owned)],
        };
        let mut all = TrustChangeResult { is_known: false, tools: Vec::new(), changes: 0, hint: None };
        for tenant in &tenants {
            match reach.send(ApiRequest::post(&path, None).with("tenant", tenant.as_deref())).await {
                Ok(changed) => {
                    all.is_known = true;
                    all.tools.extend(
                        views::list(&changed, "/tools").iter().filter_map(Value::as_str).map(str::to_owned),
                    );
                    all.changes += views::number(&changed, "/changes");
                }
                Err(refused) if refused.is(StatusCode::NOT_FOUND) => {
                    all.hint = hint(reach, tenant.as_deref(), selector).await?;
                }
                Err(refused) => return Err(refused.into()),
            }
        }
        Ok(all)
    })
}

/// Suggests the tenant or name that was probably meant when this tenant does not have it.
async fn hint(
    reach: &OperatorConnection,
    tenant: Option<&str>,
    selector: &str,
) -> Result<Option<String>, CommandFailure> {
    if tenant.is_none() {
        let trust =
            reach.fetch_for_tenants(ApiRequest::get("/v1/trust"), &reach.tenants(None).await?).await?;
        let is_it = |one: &&Value| {
            let (namespace, tool) = (views::text(one, "/pluginName"), views::text(one, "/toolName"));
            [tool.clone(), format!("{namespace}/{tool}"), format!("domain:{}", views::text(one, "/domain"))]
                .iter()
                .any(|name| name == selector)
        };
        let of_it = views::list(&trust, "/trust").iter().filter(is_it);
        if let Some(other) = of_it.filter_map(views::tenant_flag).next() {
            return Ok(Some(format!("it has lost trust for a tenant: add `{other}`")));
        }
    }
    let known = views::known_tools(reach, tenant).await?;
    Ok(views::nearest_name(selector, &known).map(|suggestion| format!("did you mean `{suggestion}`?")))
}

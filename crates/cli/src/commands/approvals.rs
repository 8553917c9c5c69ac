//! `steadfast approvals`, `approve` and `deny`: decisions of an operator about calls that wait for approval.
//!
//! The commands work with and without a running gateway. A running gateway sees the decision at once and continues the
//! call that waits.

use std::time::Duration;

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::config::parse_span;

use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter};
use crate::support::setup::now;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection};
use crate::support::views;

#[derive(Args, Debug)]
pub(crate) struct ApprovalListOptions {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
}

/// Tenant that a command is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct TenantOptions {
    /// The tenant. Without it, lists show those of every tenant, `--all` means every tenant, and a single change is
    /// about data that belongs to no tenant.
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ApproveOptions {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
    /// The id of the request, as shown by `steadfast approvals`.
    id: u64,
    /// Approve one call with exactly these arguments. This is the default.
    #[arg(long, conflicts_with_all = ["session", "span", "recover"])]
    once: bool,
    /// Approve all such calls of the same session, for at most a day.
    #[arg(long, conflicts_with_all = ["span", "recover"])]
    session: bool,
    /// Approve all such calls for this long: `30m`, `8h`.
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "recover")]
    span: Option<String>,
    /// Approve one call, and start the recovery of trust in its tool.
    #[arg(long)]
    recover: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DenyOptions {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
    /// The id of the request, as shown by `steadfast approvals`.
    id: u64,
}

/// Runs `steadfast approvals`.
pub(crate) fn list(options: &ApprovalListOptions) -> Result<(), CommandFailure> {
    let waiting = target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| {
        pending_requests(reach, options.scope.tenant.as_deref()).await
    })?;
    if options.connection.json {
        output::print_json(&waiting);
        return Ok(());
    }
    let table = views::approvals(&waiting, now().as_millis());
    if table.is_empty() {
        output::print_data("nothing waits for approval");
    } else {
        output::print_data(&table.draw(ColourPainter::of_stdout(), 0));
        let is_of_tenant = |one: &Value| one.get("tenant").is_some();
        let tenant_hint = match views::list(&waiting, "/approvals").iter().any(is_of_tenant) {
            true => ", with `--tenant NAME` where the list names a tenant",
            false => "",
        };
        output::print_message(&format!(
            "decide with `steadfast approve ID` or `steadfast deny ID`{tenant_hint}"
        ));
    }
    Ok(())
}

/// Returns the requests of this tenant, or of all.
async fn pending_requests(reach: &OperatorConnection, tenant: Option<&str>) -> Result<Value, CommandFailure> {
    let tenants = reach.tenants(tenant).await?;
    Ok(reach.fetch_for_tenants(ApiRequest::get("/v1/approvals"), &tenants).await?)
}

/// Runs `steadfast approve`.
pub(crate) fn approve(options: &ApproveOptions) -> Result<(), CommandFailure> {
    let decision = match &options.span {
        Some(span) => {
            parse_duration(span, "grant")?;
            json!({ "decision": "time", "for": span })
        }
        None if options.recover => json!({ "decision": "recover" }),
        None if options.session => json!({ "decision": "session" }),
        None => json!({ "decision": "once" }),
    };
    let request = answer(&options.connection, &options.scope, options.id, decision)?;
    let tool = request.get("tool").map(views::tool).unwrap_or_default();
    let such = views::text(&request, "/signature");
    let message = match &options.span {
        Some(span) => format!("approved: calls of {such} for {span}"),
        None if options.session && request.get("session").is_none_or(Value::is_null) => {
            format!("approved: one call of {tool}; it has no session for which more calls could be approved")
        }
        None if options.session => format!("approved: calls of {such} in the same session"),
        None if options.recover => format!("approved: one call of {tool}; it is recovering"),
        None => format!("approved: one call of {tool} with exactly these arguments"),
    };
    print_decision(options.connection.json, options.id, "approved", &message);
    Ok(())
}

/// Runs `steadfast deny`.
pub(crate) fn deny(options: &DenyOptions) -> Result<(), CommandFailure> {
    let request = answer(&options.connection, &options.scope, options.id, json!({ "decision": "deny" }))?;
    let tool = request.get("tool").map(views::tool).unwrap_or_default();
    print_decision(options.connection.json, options.id, "denied", &format!("denied: the call of {tool}"));
    Ok(())
}

fn print_decision(as_json: bool, id: u64, answer: &str, message: &str) {
    if as_json {
        output::print_json(&json!({ "id": id, "answer": answer }));
    } else {
        output::print_data(message);
    }
}

/// Decides a request. Returns the request.
fn answer(
    connection: &ConnectionOptions,
    scope: &TenantOptions,
    id: u64,
    decision: Value,
) -> Result<Value, CommandFailure> {
    let tenant = scope.tenant.as_deref();
    let not_found = || {
        CommandFailure::Environment(format!(
            "no pending request has the id {id}: it was decided, it has expired, or it never existed. Run `steadfast approvals` to list pending requests"
        ))
    };
    target::with(connection, ConnectionPurpose::ExistingState, async |reach| {
        let waiting = pending_requests(reach, tenant).await?;
        let mut of_id =
            views::list(&waiting, "/approvals").iter().filter(|one| views::number(one, "/id") == id);
        let is_of_same_tenant = |one: &&Value| one.get("tenant").and_then(Value::as_str) == tenant;
        let request = of_id.clone().find(is_of_same_tenant);
        let Some(request) = request else {
            return Err(match of_id.find_map(views::tenant_flag) {
                Some(other) => {
                    CommandFailure::Usage(format!("request {id} belongs to a tenant: add `{other}`"))
                }
                None => not_found(),
            });
        };
        let ask = ApiRequest::post(&format!("/v1/approvals/{id}"), Some(decision)).with("tenant", tenant);
        match reach.send(ask).await {
            Ok(_) => Ok(request.clone()),
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => Err(not_found()),
            Err(refused) => Err(refused.into()),
        }
    })
}

/// Parses a duration from the command line.
pub(crate) fn parse_duration(text: &str, subject: &str) -> Result<Duration, CommandFailure> {
    let span = parse_span(text).filter(|span| !span.is_zero() && *span <= LONGEST);
    span.ok_or_else(|| {
        CommandFailure::Usage(format!(
            "`--for {text}` is not a valid duration of a {subject}: write 30m, 8h, 2d; at most 365d"
        ))
    })
}

/// Maximum duration.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

//! `steadfast approvals`, `approve` and `deny`: decisions of an operator about calls that wait for approval.
//!
//! The commands work with and without a running gateway. A running gateway sees the decision at once and continues the
//! call that waits.

use std::time::Duration;

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::parse_span;

use crate::failure::Failure;
use crate::output::{self, Paint};
use crate::reach::{self, Ask, Need, Reach, Ways};
use crate::{now, seen};

#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    whose: Whose,
}

/// Tenant that a command is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct Whose {
    /// The tenant. Without it, lists show those of every tenant, `--all` means every tenant, and a single change is
    /// about data that belongs to no tenant.
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Approve {
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    whose: Whose,
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
pub(crate) struct Deny {
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    whose: Whose,
    /// The id of the request, as shown by `steadfast approvals`.
    id: u64,
}

/// Runs `steadfast approvals`.
pub(crate) fn list(options: &List) -> Result<(), Failure> {
    let waiting = reach::with(&options.ways, Need::WhatIsThere, async |reach| {
        waiting(reach, options.whose.tenant.as_deref()).await
    })?;
    if options.ways.json {
        output::say_json(&waiting);
        return Ok(());
    }
    let table = seen::approvals(&waiting, now().as_millis());
    if table.is_empty() {
        output::say("nothing waits for approval");
    } else {
        output::say(&table.draw(Paint::of_stdout(), 0));
        let is_of_tenant = |one: &Value| one.get("tenant").is_some();
        let whose = match seen::list(&waiting, "/approvals").iter().any(is_of_tenant) {
            true => ", with `--tenant NAME` where the list names a tenant",
            false => "",
        };
        output::remark(&format!("decide with `steadfast approve ID` or `steadfast deny ID`{whose}"));
    }
    Ok(())
}

/// Returns the requests of this tenant, or of all.
async fn waiting(reach: &Reach, tenant: Option<&str>) -> Result<Value, Failure> {
    let tenants = reach.tenants(tenant).await?;
    Ok(reach.ask_each(Ask::get("/v1/approvals"), &tenants).await?)
}

/// Runs `steadfast approve`.
pub(crate) fn approve(options: &Approve) -> Result<(), Failure> {
    let decision = match &options.span {
        Some(span) => {
            length(span, "grant")?;
            json!({ "decision": "time", "for": span })
        }
        None if options.recover => json!({ "decision": "recover" }),
        None if options.session => json!({ "decision": "session" }),
        None => json!({ "decision": "once" }),
    };
    let request = answer(&options.ways, &options.whose, options.id, decision)?;
    let tool = request.get("tool").map(seen::tool).unwrap_or_default();
    let such = seen::text(&request, "/signature");
    let said = match &options.span {
        Some(span) => format!("approved: calls of {such} for {span}"),
        None if options.session && request.get("session").is_none_or(Value::is_null) => {
            format!("approved: one call of {tool}; it has no session for which more calls could be approved")
        }
        None if options.session => format!("approved: calls of {such} in the same session"),
        None if options.recover => format!("approved: one call of {tool}; it is recovering"),
        None => format!("approved: one call of {tool} with exactly these arguments"),
    };
    tell(options.ways.json, options.id, "approved", &said);
    Ok(())
}

/// Runs `steadfast deny`.
pub(crate) fn deny(options: &Deny) -> Result<(), Failure> {
    let request = answer(&options.ways, &options.whose, options.id, json!({ "decision": "deny" }))?;
    let tool = request.get("tool").map(seen::tool).unwrap_or_default();
    tell(options.ways.json, options.id, "denied", &format!("denied: the call of {tool}"));
    Ok(())
}

fn tell(as_json: bool, id: u64, answer: &str, said: &str) {
    if as_json {
        output::say_json(&json!({ "id": id, "answer": answer }));
    } else {
        output::say(said);
    }
}

/// Decides a request. Returns the request.
fn answer(ways: &Ways, whose: &Whose, id: u64, decision: Value) -> Result<Value, Failure> {
    let tenant = whose.tenant.as_deref();
    let gone = || {
        Failure::World(format!(
            "there is no request {id} any more: it was decided, or it has expired. Run `steadfast approvals` to list pending requests"
        ))
    };
    reach::with(ways, Need::WhatIsThere, async |reach| {
        let waiting = waiting(reach, tenant).await?;
        let mut of_id =
            seen::list(&waiting, "/approvals").iter().filter(|one| seen::number(one, "/id") == id);
        let is_asked = |one: &&Value| one.get("tenant").and_then(Value::as_str) == tenant;
        let request = of_id.clone().find(is_asked);
        let Some(request) = request else {
            return Err(match of_id.find_map(seen::tenant_flag) {
                Some(other) => Failure::Usage(format!("request {id} belongs to a tenant: add `{other}`")),
                None => gone(),
            });
        };
        let ask = Ask::post(&format!("/v1/approvals/{id}"), Some(decision)).with("tenant", tenant);
        match reach.ask(ask).await {
            Ok(_) => Ok(request.clone()),
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => Err(gone()),
            Err(refused) => Err(refused.into()),
        }
    })
}

/// Parses a duration from the command line.
pub(crate) fn length(text: &str, what: &str) -> Result<Duration, Failure> {
    let span = parse_span(text).filter(|span| !span.is_zero() && *span <= LONGEST);
    span.ok_or_else(|| {
        Failure::Usage(format!(
            "`--for {text}` is not a valid duration of a {what}: write 30m, 8h, 2d; at most 365d"
        ))
    })
}

/// Maximum duration.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

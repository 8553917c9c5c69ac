//! `steadfast breaker`: lists circuit breakers, and opens or resets them.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use steadfast::admin::BreakerKey;
use steadfast::call::id::{Namespace, ToolName, ToolRef};
use steadfast::config::nearest;

use crate::commands::approvals::{TenantOptions, parse_duration};
use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter};
use crate::support::setup::now;
use crate::support::target::{
    self, ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection, RequestError, encoded,
};
use crate::support::views;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    subcommand: Option<BreakerSubcommand>,
    #[command(flatten)]
    list: BreakerListOptions,
}

#[derive(Debug, Subcommand)]
enum BreakerSubcommand {
    /// List circuit breakers. This is the default.
    List(BreakerListOptions),
    /// Open a breaker: calls of the tool are refused until the time is over or the breaker is reset.
    Open(BreakerOpenOptions),
    /// Reset a breaker: calls pass again, and its counts are cleared.
    Reset(BreakerResetOptions),
}

#[derive(Args, Debug)]
struct BreakerListOptions {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
}

#[derive(Args, Debug)]
struct BreakerOpenOptions {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
    #[command(flatten)]
    which: BreakerSelection,
    /// Time for which the breaker stays open: `30m`, `8h`. Then one call passes as a probe.
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<String>,
}

#[derive(Args, Debug)]
struct BreakerResetOptions {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    scope: TenantOptions,
    #[command(flatten)]
    which: BreakerSelection,
}

#[derive(Args, Debug)]
struct BreakerSelection {
    /// The breaker: SERVER/TOOL, or a key from the list.
    #[arg(value_name = "KEY", required_unless_present = "all")]
    key: Option<String>,
    /// All breakers, including those of tools that were not called yet. Without `--tenant`, those of every known
    /// tenant.
    #[arg(long, conflicts_with = "key")]
    all: bool,
}

/// Runs `steadfast breaker`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    match &options.subcommand {
        None => list(&options.list),
        Some(BreakerSubcommand::List(list_options)) => list(list_options),
        Some(BreakerSubcommand::Open(open)) => {
            if let Some(span) = &open.span {
                parse_duration(span, "breaker")?;
            }
            let turn = match &open.span {
                Some(span) => json!({ "to": "open", "for": span }),
                None => json!({ "to": "open" }),
            };
            let description = match &open.span {
                Some(span) => {
                    format!("open for {span}: calls are refused, and then one call passes as a probe")
                }
                None => "open: calls are refused until `steadfast breaker reset`".to_owned(),
            };
            let changes = change_breakers(&open.connection, &open.scope, &open.which, &turn)?;
            print_results(&open.connection, &open.which, &changes, |_| &description)
        }
        Some(BreakerSubcommand::Reset(reset)) => {
            let changes =
                change_breakers(&reset.connection, &reset.scope, &reset.which, &json!({ "to": "reset" }))?;
            print_results(&reset.connection, &reset.which, &changes, |one| {
                match views::text(one, "/breaker/forced/by") == "configuration" {
                    true => "reset, but the configuration keeps it open",
                    false => "closed: calls pass",
                }
            })
        }
    }
}

fn list(options: &BreakerListOptions) -> Result<(), CommandFailure> {
    let breakers = target::with(&options.connection, ConnectionPurpose::ExistingState, async |reach| {
        let tenants = reach.tenants(options.scope.tenant.as_deref()).await?;
        Ok(reach.fetch_for_tenants(ApiRequest::get("/v1/breakers"), &tenants).await?)
    })?;
    if options.connection.json {
        output::print_json(&breakers);
        return Ok(());
    }
    let table = views::breakers(&breakers, now().as_millis(), |_| true);
    if table.is_empty() {
        output::print_data("nothing has been called yet, so there is no breaker");
    } else {
        output::print_data(&table.draw(ColourPainter::of_stdout(), 0));
    }
    Ok(())
}

/// Result of changing one breaker.
struct BreakerChangeResult {
    key: String,
    tenant: Option<String>,
    /// The breaker's state after the change, or the reason why it could not be changed.
    result: Result<Value, RequestError>,
}

/// Changes breakers and returns the result of each. A failure does not stop the others.
fn change_breakers(
    connection: &ConnectionOptions,
    scope: &TenantOptions,
    which: &BreakerSelection,
    turn: &Value,
) -> Result<Vec<BreakerChangeResult>, CommandFailure> {
    let tenant = scope.tenant.as_deref();
    // No state is created for an invalid key.
    let need = match which.key.as_deref().and_then(key) {
        Some(_) => ConnectionPurpose::FutureCalls,
        None => ConnectionPurpose::ExistingState,
    };
    target::with(connection, need, async |reach| {
        let mut targets = Vec::new();
        match &which.key {
            Some(written) => targets.push((tenant.map(str::to_owned), named(reach, tenant, written).await?)),
            None => {
                for tenant in reach.tenants(tenant).await? {
                    let keys = all(reach, tenant.as_deref()).await?;
                    targets.extend(keys.into_iter().map(|key| (tenant.clone(), key)));
                }
            }
        }
        let mut changes = Vec::new();
        for (tenant, key) in targets {
            let ask = ApiRequest::post(&format!("/v1/breakers/{}", encoded(&key)), Some(turn.clone()));
            let result = reach.send(ask.with("tenant", tenant.as_deref())).await;
            changes.push(BreakerChangeResult { key, tenant, result });
        }
        Ok(changes)
    })
}

/// Returns the keys of all breakers of a tenant, and those of all known tools.
async fn all(reach: &OperatorConnection, tenant: Option<&str>) -> Result<Vec<String>, CommandFailure> {
    let breakers = reach.fetch_all(ApiRequest::get("/v1/breakers").with("tenant", tenant)).await?;
    let tools = views::known_tools(reach, tenant).await?;
    let mut keys: Vec<_> =
        views::list(&breakers, "/breakers").iter().map(|one| views::text(one, "/key")).collect();
    keys.extend(tools.iter().filter_map(|tool| key(tool)));
    keys.sort();
    keys.dedup();
    Ok(keys)
}

/// Returns this key, or the key of the tool that it names.
fn key(written: &str) -> Option<String> {
    let as_tool = || {
        let (namespace, tool) = written.split_once('/')?;
        let (namespace, tool) = (Namespace::new(namespace).ok()?, ToolName::new(tool).ok()?);
        Some(BreakerKey::Tool(ToolRef { namespace, tool }))
    };
    written.parse().ok().or_else(as_tool).map(|key: BreakerKey| key.to_string())
}

/// Returns the breaker that was named. An unknown name may be a tool that was not called yet. A name similar to a
/// known one is more likely a typo.
async fn named(
    reach: &OperatorConnection,
    tenant: Option<&str>,
    written: &str,
) -> Result<String, CommandFailure> {
    let breakers = reach.fetch_all(ApiRequest::get("/v1/breakers").with("tenant", tenant)).await?;
    let keys: Vec<_> =
        views::list(&breakers, "/breakers").iter().map(|one| views::text(one, "/key")).collect();
    if keys.iter().any(|key| key == written) {
        return Ok(written.to_owned());
    }
    let (key, is_whole) = (key(written), written.parse::<BreakerKey>().is_ok());
    if let Some(key) = key.as_ref().filter(|key| keys.contains(key)) {
        return Ok(key.clone());
    }
    let tools = views::known_tools(reach, tenant).await?;
    let suggestion = views::nearest_name(written, &tools).map(str::to_owned);
    let suggestion =
        suggestion.or_else(|| nearest(written, keys.iter().map(String::as_str)).map(str::to_owned));
    let is_known_tool = tools.iter().any(|tool| tool == written);
    match (key, suggestion) {
        (Some(key), _) if is_known_tool => Ok(key),
        (None, Some(suggestion)) => Err(CommandFailure::Usage(format!(
            "there is no breaker `{written}`: did you mean `{suggestion}`?"
        ))),
        (Some(key), Some(suggestion)) if !is_whole => Err(CommandFailure::Usage(format!(
            "`{written}` is unknown: did you mean `{suggestion}`? If it is correct, write `{key}`"
        ))),
        (None, None) => Err(CommandFailure::Usage(format!(
            "`{written}` is not the name of a breaker: write SERVER/TOOL, or a key as `steadfast breaker` lists it"
        ))),
        (Some(key), _) => {
            output::print_message(&format!("note: {written} is not known yet"));
            Ok(key)
        }
    }
}

fn print_results<'s>(
    connection: &ConnectionOptions,
    which: &BreakerSelection,
    changes: &[BreakerChangeResult],
    describe: impl Fn(&Value) -> &'s str,
) -> Result<(), CommandFailure> {
    if let (false, [BreakerChangeResult { result: Err(refused), .. }]) = (which.all, changes) {
        return Err(refused.clone().into());
    }
    let turned = || changes.iter().filter_map(|one| Some((one, one.result.as_ref().ok()?)));
    let failed: Vec<_> =
        changes.iter().filter_map(|one| Some((one, one.result.as_ref().err()?.message()))).collect();
    if connection.json {
        match (which.all, changes) {
            (false, [BreakerChangeResult { result: Ok(one), .. }]) => output::print_json(one),
            _ => {
                let failed = failed
                    .iter()
                    .map(|(one, reason)| json!({ "key": one.key, "tenant": one.tenant, "message": reason }));
                let turned = turned().map(|(one, result)| one.json(result));
                let (turned, failed): (Vec<_>, Vec<_>) = (turned.collect(), failed.collect());
                output::print_json(&json!({ "steered": turned, "failed": failed }));
            }
        }
    } else {
        if changes.is_empty() {
            output::print_data("nothing has been called yet, and no tool is known");
        }
        for (one, result) in turned() {
            output::print_plain(&format!("{}{} is {}", one.key, one.tenant_suffix(), describe(result)));
        }
        if turned().any(|(_, result)| views::text(result, "/reach") == "only_here") {
            output::print_message(
                "note: the change could not be stored; other processes see it when the store is available again",
            );
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let reasons: Vec<_> = failed
        .iter()
        .map(|(one, reason)| format!("  {}{}: {reason}", one.key, one.tenant_suffix()))
        .collect();
    Err(CommandFailure::Environment(format!(
        "{} of {} breakers were not changed:\n{}",
        failed.len(),
        changes.len(),
        reasons.join("\n")
    )))
}

impl BreakerChangeResult {
    fn tenant_suffix(&self) -> String {
        self.tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default()
    }

    /// Returns its current state, with its tenant.
    fn json(&self, result: &Value) -> Value {
        let mut result = result.clone();
        if let (Some(result), Some(tenant)) = (result.as_object_mut(), &self.tenant) {
            result.insert("tenant".to_owned(), tenant.as_str().into());
        }
        result
    }
}

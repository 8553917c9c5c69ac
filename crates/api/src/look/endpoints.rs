//! The endpoints for queries.

use axum::extract::State as Shared;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use steadfast_executor::Series;

use crate::access::Who;
use crate::answer::{accepts, shown, whole};
use crate::asked::{Asked, Named};
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::{Answered, State, look};

/// The endpoints for queries.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/status",
            "status",
            "Returns a summary of the state, with all problems",
            Who::Looker,
            status,
        )
        .gives::<look::Status>("the summary"),
        Endpoint::new(
            Method::GET,
            "/v1/breakers",
            "breakers",
            "Lists circuit breakers",
            Who::Looker,
            breakers,
        )
        .asks::<look::BreakersAsked>()
        .gives::<look::Breakers>("a page of circuit breakers"),
        Endpoint::new(
            Method::GET,
            "/v1/trust",
            "trust",
            "Lists tools that have lost trust, with the reason",
            Who::Looker,
            trust,
        )
        .asks::<look::TrustAsked>()
        .gives::<look::Trust>("a page of entries without full trust"),
        Endpoint::new(
            Method::GET,
            "/v1/domains",
            "domains",
            "Lists hosts and servers with the results of their calls",
            Who::Looker,
            domains,
        )
        .asks::<look::DomainsAsked>()
        .gives::<look::Domains>("a page of them, in the order of their names"),
        Endpoint::new(
            Method::GET,
            "/v1/models",
            "models",
            "Lists scores of models with tools",
            Who::Looker,
            models,
        )
        .asks::<look::ModelsAsked>()
        .gives::<look::Models>("a page of scores, in the order of models and tools"),
        Endpoint::new(
            Method::GET,
            "/v1/approvals",
            "approvals",
            "Lists pending approvals",
            Who::Looker,
            approvals,
        )
        .asks::<look::ApprovalsAsked>()
        .gives::<look::Approvals>("a page of pending approvals"),
        Endpoint::new(
            Method::GET,
            "/v1/guard",
            "guard",
            "Lists stopped sessions and trips of the loop guard",
            Who::Looker,
            guard,
        )
        .asks::<look::GuardAsked>()
        .gives::<look::Guard>("a page of stopped sessions and recent trips"),
        Endpoint::new(
            Method::GET,
            "/v1/tools",
            "tools",
            "Lists tools with their state and score",
            Who::Looker,
            tools,
        )
        .asks::<look::ToolsAsked>()
        .gives::<look::Tools>("a page of them, in the order of their names"),
        Endpoint::new(
            Method::GET,
            "/v1/failures",
            "failures",
            "Lists failures of tools, newest first",
            Who::Looker,
            failures,
        )
        .asks::<look::FailuresAsked>()
        .gives::<look::Failures>("a page of matching entries")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/failures",
            "toolFailures",
            "Lists failures of one tool, newest first",
            Who::Looker,
            tool_failures,
        )
        .asks::<look::ToolFailuresAsked>()
        .gives::<look::Failures>("a page of them")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/annotations",
            "toolAnnotations",
            "Returns the annotations of a tool that its server sent last",
            Who::Looker,
            tool_annotations,
        )
        .gives::<look::ToolAnnotations>("the annotations, with the time at which they were received")
        .reads_the_store(),
        Endpoint::new(Method::GET, "/v1/audit", "audit", "Lists changes by operators", Who::Admin, audit)
            .asks::<look::AuditAsked>()
            .gives::<look::Audit>("a page of the audit log, newest first")
            .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/records",
            "records",
            "Lists stored records of calls",
            Who::Looker,
            records,
        )
        .asks::<look::RecordsAsked>()
        .gives::<look::Records>("a page of records")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/history",
            "history",
            "Lists finished calls, newest first",
            Who::Looker,
            history,
        )
        .asks::<look::HistoryAsked>()
        .gives::<look::History>("a page of matching entries")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/servers",
            "servers",
            "Lists servers with their restarts and last stderr lines",
            Who::Looker,
            servers,
        )
        .asks::<look::ServersAsked>()
        .gives::<look::Servers>("a page of the configured servers"),
        Endpoint::new(
            Method::GET,
            "/v1/sessions",
            "sessions",
            "Lists connected clients",
            Who::Looker,
            sessions,
        )
        .asks::<look::SessionsAsked>()
        .gives::<look::Sessions>("a page of them"),
        Endpoint::new(
            Method::GET,
            "/v1/history/{id}",
            "story",
            "Returns the calls of one request, step by step",
            Who::Looker,
            story,
        )
        .gives::<look::Story>("the calls with their steps")
        .reads_the_store(),
        Endpoint::new(Method::GET, "/v1/running", "running", "Lists calls in flight", Who::Looker, running)
            .asks::<look::RunningAsked>()
            .gives::<look::Running>("a page of calls, newest first, with their steps so far"),
        Endpoint::new(
            Method::GET,
            "/v1/series",
            "series",
            "Returns statistics of calls by minute",
            Who::Looker,
            series,
        )
        .gives::<Series>("the last hour, and the totals since the start"),
        Endpoint::new(Method::GET, "/v1/traces", "turns", "Lists turns, newest first", Who::Looker, traces)
            .asks::<look::TracesAsked>()
            .gives::<look::Traces>("a page of matching entries")
            .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/traces/{id}",
            "trace",
            "Returns the trace of a turn, by its trace id or its name",
            Who::Looker,
            trace,
        )
        .heeds("Accept", "`application/jsonl` for a line of JSON per span and event")
        .gives::<look::TraceView>("the turn with its spans and events")
        .gives_text("the spans and events as lines of JSON", JSON_LINES)
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/config",
            "config",
            "Lists settings with their sources",
            Who::Looker,
            config,
        )
        .asks::<look::SettingsAsked>()
        .gives::<look::Settings>("a page of the settings, without secrets"),
        Endpoint::new(
            Method::GET,
            "/metrics",
            "metrics",
            "Returns metrics in the OpenMetrics format",
            Who::Looker,
            metrics,
        )
        .gives_text("the metrics", METRICS),
        Endpoint::new(
            Method::GET,
            "/healthz",
            "healthz",
            "Checks that the process answers",
            Who::Anyone,
            healthz,
        )
        .gives::<look::Health>("the process answers"),
        Endpoint::new(
            Method::GET,
            "/readyz",
            "readyz",
            "Checks that calls can be handled: the store answers and has lost no records",
            Who::Anyone,
            readyz,
        )
        .gives::<look::Health>("calls can be handled")
        .reads_the_store(),
    ]
}

const JSON_LINES: &str = "application/jsonl";
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

async fn status(Shared(State(inner)): Shared<State>) -> Response {
    shown(StatusCode::OK, &look::status(&inner.steadfast, &inner.around).await)
}

async fn breakers(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::BreakersAsked>) -> Answered {
    listed(look::breakers(inner.steadfast.engine(), &asked).await)
}

async fn trust(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::TrustAsked>) -> Answered {
    listed(look::trust(inner.steadfast.engine(), &asked))
}

async fn domains(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::DomainsAsked>) -> Answered {
    listed(look::domains(inner.steadfast.engine(), &asked))
}

async fn models(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::ModelsAsked>) -> Answered {
    listed(look::models(inner.steadfast.engine(), &asked))
}

async fn approvals(
    Shared(State(inner)): Shared<State>,
    Asked(asked): Asked<look::ApprovalsAsked>,
) -> Answered {
    listed(look::approvals(inner.steadfast.engine(), &asked))
}

async fn guard(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::GuardAsked>) -> Answered {
    listed(look::guard(inner.steadfast.engine(), &asked))
}

async fn tools(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::ToolsAsked>) -> Answered {
    listed(look::tools(inner.steadfast.engine(), &*inner.around.tools, &asked).await)
}

/// Builds the response with a page, or the error for an invalid query.
fn listed(page: Result<impl Serialize, String>) -> Answered {
    Ok(shown(StatusCode::OK, &page.map_err(Problem::misread)?))
}

async fn audit(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::AuditAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
    Ok(shown(StatusCode::OK, &look::audit(inner.steadfast.engine(), &wanted).await?))
}

async fn failures(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::FailuresAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
    Ok(shown(StatusCode::OK, &look::failures(inner.steadfast.engine(), &wanted).await?))
}

async fn tool_failures(
    Shared(State(inner)): Shared<State>,
    Named(name): Named,
    Asked(asked): Asked<look::ToolFailuresAsked>,
) -> Answered {
    let tool = look::tool(&name).map_err(|why| Problem::no_such("tool", &name).because(&why))?;
    let wanted = asked.of(tool.clone()).read().map_err(Problem::misread)?;
    let engine = inner.steadfast.engine();
    let failures = look::failures(engine, &wanted).await?;
    if failures.failures.is_empty() && !look::is_known(engine, &*inner.around.tools, &tool).await {
        return Err(Problem::no_such("tool", &name)
            .because(&"it was never called here, and no server that has been used lists it"));
    }
    Ok(shown(StatusCode::OK, &failures))
}

async fn tool_annotations(Shared(State(inner)): Shared<State>, Named(name): Named) -> Answered {
    let tool = look::tool(&name).map_err(|why| Problem::no_such("tool", &name).because(&why))?;
    match look::annotations(inner.steadfast.engine(), tool).await? {
        Some(seen) => Ok(shown(StatusCode::OK, &seen)),
        None => Err(Problem::no_such("record of the annotations of the tool", &name)),
    }
}

async fn records(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::RecordsAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
    Ok(shown(StatusCode::OK, &look::records(inner.steadfast.engine(), &wanted).await?))
}

async fn history(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::HistoryAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
    Ok(shown(StatusCode::OK, &look::history(&**inner.steadfast.store(), &wanted).await?))
}

async fn story(Shared(State(inner)): Shared<State>, Named(id): Named) -> Answered {
    match look::story(&inner.steadfast, &id).await? {
        Some(story) => Ok(shown(StatusCode::OK, &story)),
        None => Err(Problem::no_such("call with the request id", &id)),
    }
}

async fn running(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::RunningAsked>) -> Answered {
    listed(look::running(&inner.steadfast, &asked))
}

async fn series(Shared(State(inner)): Shared<State>) -> Response {
    shown(StatusCode::OK, &look::series(&inner.steadfast))
}

async fn traces(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::TracesAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
    Ok(shown(StatusCode::OK, &look::traces(inner.steadfast.engine(), &wanted).await?))
}

async fn trace(Shared(State(inner)): Shared<State>, headers: HeaderMap, Named(id): Named) -> Answered {
    match inner.steadfast.engine().story(&id).await?.map(look::TraceView::from) {
        Some(story) if accepts(&headers, JSON_LINES) => {
            Ok(whole(StatusCode::OK, JSON_LINES, look::lines(&story)))
        }
        Some(story) => Ok(shown(StatusCode::OK, &story)),
        None => Err(Problem::no_such("turn with the trace or name", &id)),
    }
}

async fn config(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::SettingsAsked>) -> Answered {
    listed(look::settings(&inner.steadfast.config(), &asked))
}

async fn servers(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::ServersAsked>) -> Answered {
    listed(look::servers(&inner.around, &asked))
}

async fn sessions(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::SessionsAsked>) -> Answered {
    listed(look::sessions(&inner.around, &asked))
}

async fn metrics(Shared(State(inner)): Shared<State>) -> Response {
    whole(StatusCode::OK, METRICS, inner.steadfast.metrics().await)
}

async fn healthz() -> Response {
    shown(StatusCode::OK, &look::Health { ok: true })
}

async fn readyz(Shared(State(inner)): Shared<State>) -> Answered {
    inner.steadfast.check_store().await?;
    if let Some(loss) = inner.steadfast.record_loss().await? {
        return Err(Problem::records_lost(&loss));
    }
    Ok(shown(StatusCode::OK, &look::Health { ok: true }))
}

//! The endpoints for queries.

use axum::extract::State as Shared;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use steadfast_executor::CallSeries;

use crate::access::Permission;
use crate::encoding::{accepts, shown, whole};
use crate::endpoint::Endpoint;
use crate::extractors::{PathParam, QueryParams};
use crate::problem::ApiProblem;
use crate::{HandlerResult, State, queries};

/// The endpoints for queries.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/status",
            "status",
            "Returns a summary of the state, with all problems",
            Permission::Viewer,
            status,
        )
        .gives::<queries::SystemStatus>("the summary"),
        Endpoint::new(
            Method::GET,
            "/v1/breakers",
            "breakers",
            "Lists circuit breakers",
            Permission::Viewer,
            breakers,
        )
        .takes_query::<queries::BreakersQuery>()
        .gives::<queries::Breakers>("a page of circuit breakers"),
        Endpoint::new(
            Method::GET,
            "/v1/trust",
            "trust",
            "Lists tools that have lost trust, with the reason",
            Permission::Viewer,
            trust,
        )
        .takes_query::<queries::TrustQuery>()
        .gives::<queries::Trust>("a page of entries without full trust"),
        Endpoint::new(
            Method::GET,
            "/v1/domains",
            "domains",
            "Lists hosts and servers with the results of their calls",
            Permission::Viewer,
            domains,
        )
        .takes_query::<queries::DomainsQuery>()
        .gives::<queries::Domains>("a page of them, in the order of their names"),
        Endpoint::new(
            Method::GET,
            "/v1/models",
            "models",
            "Lists scores of models with tools",
            Permission::Viewer,
            models,
        )
        .takes_query::<queries::ModelsQuery>()
        .gives::<queries::Models>("a page of scores, in the order of models and tools"),
        Endpoint::new(
            Method::GET,
            "/v1/approvals",
            "approvals",
            "Lists pending approvals",
            Permission::Viewer,
            approvals,
        )
        .takes_query::<queries::ApprovalsQuery>()
        .gives::<queries::Approvals>("a page of pending approvals"),
        Endpoint::new(
            Method::GET,
            "/v1/guard",
            "guard",
            "Lists stopped sessions and trips of the loop guard",
            Permission::Viewer,
            guard,
        )
        .takes_query::<queries::GuardQuery>()
        .gives::<queries::GuardActivity>("a page of stopped sessions and recent trips"),
        Endpoint::new(
            Method::GET,
            "/v1/tools",
            "tools",
            "Lists tools with their state and score",
            Permission::Viewer,
            tools,
        )
        .takes_query::<queries::ToolsQuery>()
        .gives::<queries::ToolPage>("a page of them, in the order of their names"),
        Endpoint::new(
            Method::GET,
            "/v1/failures",
            "failures",
            "Lists failures of tools, newest first",
            Permission::Viewer,
            failures,
        )
        .takes_query::<queries::FailuresQuery>()
        .gives::<queries::Failures>("a page of matching entries")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/failures",
            "toolFailures",
            "Lists failures of one tool, newest first",
            Permission::Viewer,
            tool_failures,
        )
        .takes_query::<queries::ToolFailuresQuery>()
        .gives::<queries::Failures>("a page of them")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/annotations",
            "toolAnnotations",
            "Returns the annotations of a tool that its server sent last",
            Permission::Viewer,
            tool_annotations,
        )
        .gives::<queries::ToolAnnotations>("the annotations, with the time at which they were received")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/audit",
            "audit",
            "Lists changes by operators",
            Permission::Admin,
            audit,
        )
        .takes_query::<queries::AuditLogQuery>()
        .gives::<queries::Audit>("a page of the audit log, newest first")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/records",
            "records",
            "Lists stored records of calls",
            Permission::Viewer,
            records,
        )
        .takes_query::<queries::RecordsQuery>()
        .gives::<queries::Records>("a page of records")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/history",
            "history",
            "Lists finished calls, newest first",
            Permission::Viewer,
            history,
        )
        .takes_query::<queries::HistoryQuery>()
        .gives::<queries::History>("a page of matching entries")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/servers",
            "servers",
            "Lists servers with their restarts and last stderr lines",
            Permission::Viewer,
            servers,
        )
        .takes_query::<queries::ServersQuery>()
        .gives::<queries::ServerPage>("a page of the configured servers"),
        Endpoint::new(
            Method::GET,
            "/v1/sessions",
            "sessions",
            "Lists connected clients",
            Permission::Viewer,
            sessions,
        )
        .takes_query::<queries::SessionsQuery>()
        .gives::<queries::SessionPage>("a page of them"),
        Endpoint::new(
            Method::GET,
            "/v1/history/{id}",
            "story",
            "Returns the calls of one request, step by step",
            Permission::Viewer,
            request_history,
        )
        .gives::<queries::RequestHistory>("the calls with their steps")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/running",
            "running",
            "Lists calls in flight",
            Permission::Viewer,
            running,
        )
        .takes_query::<queries::RunningCallsQuery>()
        .gives::<queries::RunningCalls>("a page of calls, newest first, with their steps so far"),
        Endpoint::new(
            Method::GET,
            "/v1/series",
            "series",
            "Returns statistics of calls by minute",
            Permission::Viewer,
            series,
        )
        .gives::<CallSeries>("the last hour, and the totals since the start"),
        Endpoint::new(
            Method::GET,
            "/v1/traces",
            "turns",
            "Lists turns, newest first",
            Permission::Viewer,
            traces,
        )
        .takes_query::<queries::TracesQuery>()
        .gives::<queries::Traces>("a page of matching entries")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/traces/{id}",
            "trace",
            "Returns the trace of a turn, by its trace id or its name",
            Permission::Viewer,
            trace,
        )
        .reads_header("Accept", "`application/jsonl` for a line of JSON per span and event")
        .gives::<queries::TraceView>("the turn with its spans and events")
        .gives_text("the spans and events as lines of JSON", JSON_LINES)
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/config",
            "config",
            "Lists settings with their sources",
            Permission::Viewer,
            config,
        )
        .takes_query::<queries::SettingsQuery>()
        .gives::<queries::Settings>("a page of the settings, without secrets"),
        Endpoint::new(
            Method::GET,
            "/metrics",
            "metrics",
            "Returns metrics in the OpenMetrics format",
            Permission::Viewer,
            metrics,
        )
        .gives_text("the metrics", METRICS),
        Endpoint::new(
            Method::GET,
            "/healthz",
            "healthz",
            "Checks that the process answers",
            Permission::Anyone,
            healthz,
        )
        .gives::<queries::HealthResponse>("the process answers"),
        Endpoint::new(
            Method::GET,
            "/readyz",
            "readyz",
            "Checks that calls can be handled: the store answers and has lost no records",
            Permission::Anyone,
            readyz,
        )
        .gives::<queries::HealthResponse>("calls can be handled")
        .reads_the_store(),
    ]
}

const JSON_LINES: &str = "application/jsonl";
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

async fn status(Shared(State(inner)): Shared<State>) -> Response {
    shown(StatusCode::OK, &queries::status(&inner.steadfast, &inner.gateway).await)
}

async fn breakers(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::BreakersQuery>,
) -> HandlerResult {
    listed(queries::breakers(inner.steadfast.engine(), &query).await)
}

async fn trust(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::TrustQuery>,
) -> HandlerResult {
    listed(queries::trust(inner.steadfast.engine(), &query))
}

async fn domains(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::DomainsQuery>,
) -> HandlerResult {
    listed(queries::domains(inner.steadfast.engine(), &query))
}

async fn models(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::ModelsQuery>,
) -> HandlerResult {
    listed(queries::models(inner.steadfast.engine(), &query))
}

async fn approvals(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::ApprovalsQuery>,
) -> HandlerResult {
    listed(queries::approvals(inner.steadfast.engine(), &query))
}

async fn guard(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::GuardQuery>,
) -> HandlerResult {
    listed(queries::guard(inner.steadfast.engine(), &query))
}

async fn tools(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::ToolsQuery>,
) -> HandlerResult {
    listed(queries::tools(inner.steadfast.engine(), &*inner.gateway.tools, &query).await)
}

/// Builds the response with a page, or the error for an invalid query.
fn listed(page: Result<impl Serialize, String>) -> HandlerResult {
    Ok(shown(StatusCode::OK, &page.map_err(ApiProblem::misread)?))
}

async fn audit(
    Shared(State(inner)): Shared<State>,
    QueryParams(params): QueryParams<queries::AuditLogQuery>,
) -> HandlerResult {
    let query = params.read().map_err(ApiProblem::misread)?;
    Ok(shown(StatusCode::OK, &queries::audit(inner.steadfast.engine(), &query).await?))
}

async fn failures(
    Shared(State(inner)): Shared<State>,
    QueryParams(params): QueryParams<queries::FailuresQuery>,
) -> HandlerResult {
    let query = params.read().map_err(ApiProblem::misread)?;
    Ok(shown(StatusCode::OK, &queries::failures(inner.steadfast.engine(), &query).await?))
}

async fn tool_failures(
    Shared(State(inner)): Shared<State>,
    PathParam(name): PathParam,
    QueryParams(params): QueryParams<queries::ToolFailuresQuery>,
) -> HandlerResult {
    let tool = queries::tool(&name).map_err(|reason| ApiProblem::no_such("tool", &name).because(&reason))?;
    let query = params.of(tool.clone()).read().map_err(ApiProblem::misread)?;
    let engine = inner.steadfast.engine();
    let failures = queries::failures(engine, &query).await?;
    if failures.failures.is_empty() && !queries::is_known(engine, &*inner.gateway.tools, &tool).await {
        return Err(ApiProblem::no_such("tool", &name)
            .because(&"it was never called here, and no server that has been used lists it"));
    }
    Ok(shown(StatusCode::OK, &failures))
}

async fn tool_annotations(Shared(State(inner)): Shared<State>, PathParam(name): PathParam) -> HandlerResult {
    let tool = queries::tool(&name).map_err(|reason| ApiProblem::no_such("tool", &name).because(&reason))?;
    match queries::annotations(inner.steadfast.engine(), tool).await? {
        Some(record) => Ok(shown(StatusCode::OK, &record)),
        None => Err(ApiProblem::no_such("record of the annotations of the tool", &name)),
    }
}

async fn records(
    Shared(State(inner)): Shared<State>,
    QueryParams(params): QueryParams<queries::RecordsQuery>,
) -> HandlerResult {
    let query = params.read().map_err(ApiProblem::misread)?;
    Ok(shown(StatusCode::OK, &queries::records(inner.steadfast.engine(), &query).await?))
}

async fn history(
    Shared(State(inner)): Shared<State>,
    QueryParams(params): QueryParams<queries::HistoryQuery>,
) -> HandlerResult {
    let query = params.read().map_err(ApiProblem::misread)?;
    Ok(shown(StatusCode::OK, &queries::history(&**inner.steadfast.store(), &query).await?))
}

async fn request_history(Shared(State(inner)): Shared<State>, PathParam(id): PathParam) -> HandlerResult {
    match queries::request_history(&inner.steadfast, &id).await? {
        Some(request_history) => Ok(shown(StatusCode::OK, &request_history)),
        None => Err(ApiProblem::no_such("call with the request id", &id)),
    }
}

async fn running(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::RunningCallsQuery>,
) -> HandlerResult {
    listed(queries::running(&inner.steadfast, &query))
}

async fn series(Shared(State(inner)): Shared<State>) -> Response {
    shown(StatusCode::OK, &queries::series(&inner.steadfast))
}

async fn traces(
    Shared(State(inner)): Shared<State>,
    QueryParams(params): QueryParams<queries::TracesQuery>,
) -> HandlerResult {
    let query = params.read().map_err(ApiProblem::misread)?;
    Ok(shown(StatusCode::OK, &queries::traces(inner.steadfast.engine(), &query).await?))
}

async fn trace(
    Shared(State(inner)): Shared<State>,
    headers: HeaderMap,
    PathParam(id): PathParam,
) -> HandlerResult {
    match inner.steadfast.engine().turn_trace(&id).await?.map(queries::TraceView::from) {
        Some(trace) if accepts(&headers, JSON_LINES) => {
            Ok(whole(StatusCode::OK, JSON_LINES, queries::lines(&trace)))
        }
        Some(trace) => Ok(shown(StatusCode::OK, &trace)),
        None => Err(ApiProblem::no_such("turn with the trace or name", &id)),
    }
}

async fn config(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::SettingsQuery>,
) -> HandlerResult {
    listed(queries::settings(&inner.steadfast.config(), &query))
}

async fn servers(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::ServersQuery>,
) -> HandlerResult {
    listed(queries::servers(&inner.gateway, &query))
}

async fn sessions(
    Shared(State(inner)): Shared<State>,
    QueryParams(query): QueryParams<queries::SessionsQuery>,
) -> HandlerResult {
    listed(queries::sessions(&inner.gateway, &query))
}

async fn metrics(Shared(State(inner)): Shared<State>) -> Response {
    whole(StatusCode::OK, METRICS, inner.steadfast.metrics().await)
}

async fn healthz() -> Response {
    shown(StatusCode::OK, &queries::HealthResponse { ok: true })
}

async fn readyz(Shared(State(inner)): Shared<State>) -> HandlerResult {
    inner.steadfast.check_store().await?;
    if let Some(loss) = inner.steadfast.record_loss().await? {
        return Err(ApiProblem::records_lost(&loss));
    }
    Ok(shown(StatusCode::OK, &queries::HealthResponse { ok: true }))
}

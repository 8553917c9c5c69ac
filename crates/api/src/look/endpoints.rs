//! What can be asked for of what there is to see.

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

/// What a person can see.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/status",
            "status",
            "Whether anything is wrong, in one look",
            Who::Looker,
            status,
        )
        .gives::<look::Status>("how things stand"),
        Endpoint::new(Method::GET, "/v1/breakers", "breakers", "How breakers stand", Who::Looker, breakers)
            .asks::<look::BreakersAsked>()
            .gives::<look::Breakers>("a page of those that anything is known of"),
        Endpoint::new(
            Method::GET,
            "/v1/trust",
            "trust",
            "Tools that have lost trust, and why",
            Who::Looker,
            trust,
        )
        .asks::<look::TrustAsked>()
        .gives::<look::Trust>("a page of those that are not simply trusted"),
        Endpoint::new(
            Method::GET,
            "/v1/domains",
            "domains",
            "How calls to each host and server went",
            Who::Looker,
            domains,
        )
        .asks::<look::DomainsAsked>()
        .gives::<look::Domains>("a page of them, in the order of their names"),
        Endpoint::new(
            Method::GET,
            "/v1/models",
            "models",
            "How well models do with tools",
            Who::Looker,
            models,
        )
        .asks::<look::ModelsAsked>()
        .gives::<look::Models>("a page of scores, in the order of models and tools"),
        Endpoint::new(
            Method::GET,
            "/v1/approvals",
            "approvals",
            "What waits for a person's answer",
            Who::Looker,
            approvals,
        )
        .asks::<look::ApprovalsAsked>()
        .gives::<look::Approvals>("a page of the requests that wait"),
        Endpoint::new(Method::GET, "/v1/guard", "guard", "Whom the guard stops, and why", Who::Looker, guard)
            .asks::<look::GuardAsked>()
            .gives::<look::Guard>("who is stopped, and what the guard last did"),
        Endpoint::new(
            Method::GET,
            "/v1/tools",
            "tools",
            "The tools that can be called or were, and how they do",
            Who::Looker,
            tools,
        )
        .asks::<look::ToolsAsked>()
        .gives::<look::Tools>("a page of them, in the order of their names"),
        Endpoint::new(
            Method::GET,
            "/v1/failures",
            "failures",
            "How calls of tools failed, the newest first",
            Who::Looker,
            failures,
        )
        .asks::<look::FailuresAsked>()
        .gives::<look::Failures>("a page of those that fit")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/failures",
            "toolFailures",
            "How calls of one tool failed, the newest first",
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
            "The annotations of a tool that its server sent last",
            Who::Looker,
            tool_annotations,
        )
        .gives::<look::ToolAnnotations>("the annotations, and when they were seen")
        .reads_the_store(),
        Endpoint::new(Method::GET, "/v1/audit", "audit", "What people changed by hand", Who::Admin, audit)
            .asks::<look::AuditAsked>()
            .gives::<look::Audit>("a page of it, the newest first")
            .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/records",
            "records",
            "What is remembered of calls",
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
            "What became of calls, the newest first",
            Who::Looker,
            history,
        )
        .asks::<look::HistoryAsked>()
        .gives::<look::History>("a page of those that fit")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/servers",
            "servers",
            "The servers, their restarts and what they last wrote to stderr",
            Who::Looker,
            servers,
        )
        .asks::<look::ServersAsked>()
        .gives::<look::Servers>("a page of those of the configuration"),
        Endpoint::new(
            Method::GET,
            "/v1/sessions",
            "sessions",
            "The clients that are connected",
            Who::Looker,
            sessions,
        )
        .asks::<look::SessionsAsked>()
        .gives::<look::Sessions>("a page of them"),
        Endpoint::new(
            Method::GET,
            "/v1/history/{id}",
            "story",
            "What happened to the calls under one request, step by step",
            Who::Looker,
            story,
        )
        .gives::<look::Story>("what became of them, and how")
        .reads_the_store(),
        Endpoint::new(Method::GET, "/v1/running", "running", "Calls that run now", Who::Looker, running)
            .asks::<look::RunningAsked>()
            .gives::<look::Running>("a page of them, the newest first, as far as they have come"),
        Endpoint::new(
            Method::GET,
            "/v1/series",
            "series",
            "What became of calls, minute by minute",
            Who::Looker,
            series,
        )
        .gives::<Series>("the last hour, and all since the start"),
        Endpoint::new(
            Method::GET,
            "/v1/traces",
            "turns",
            "Turns, those first that began last",
            Who::Looker,
            traces,
        )
        .asks::<look::TracesAsked>()
        .gives::<look::Traces>("a page of those that fit")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/traces/{id}",
            "trace",
            "What happened in a turn, by its trace or its name",
            Who::Looker,
            trace,
        )
        .heeds("Accept", "`application/jsonl` for one line of JSON for each span and event")
        .gives::<look::TraceView>("the turn, its calls as stretches of time, and what happened, in order")
        .gives_text("the same line by line", JSON_LINES)
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/config",
            "config",
            "The settings, and where each comes from",
            Who::Looker,
            config,
        )
        .asks::<look::SettingsAsked>()
        .gives::<look::Settings>("a page of the settings, without secrets"),
        Endpoint::new(
            Method::GET,
            "/metrics",
            "metrics",
            "Metrics as Prometheus reads them",
            Who::Looker,
            metrics,
        )
        .gives_text("the metrics", METRICS),
        Endpoint::new(
            Method::GET,
            "/healthz",
            "healthz",
            "Whether this process answers at all",
            Who::Anyone,
            healthz,
        )
        .gives::<look::Health>("it does"),
        Endpoint::new(
            Method::GET,
            "/readyz",
            "readyz",
            "Whether calls can be taken: the store answers, and has lost no records",
            Who::Anyone,
            readyz,
        )
        .gives::<look::Health>("they can")
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

/// A page, or what was wrong with the question.
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

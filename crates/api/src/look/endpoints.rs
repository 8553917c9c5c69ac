//! What can be asked for of what there is to see.

use axum::extract::State as Shared;
use axum::response::Response;
use http::{Method, StatusCode};
use steadfast_executor::{GuardView, Series};

use crate::access::Who;
use crate::answer::{json, whole};
use crate::asked::{Asked, Named};
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::steer::Whose;
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
            .asks::<Whose>()
            .gives::<look::Breakers>("all that anything is known of"),
        Endpoint::new(
            Method::GET,
            "/v1/trust",
            "trust",
            "Tools that have lost trust, and why",
            Who::Looker,
            trust,
        )
        .asks::<Whose>()
        .gives::<look::Trust>("those that are not simply trusted"),
        Endpoint::new(
            Method::GET,
            "/v1/approvals",
            "approvals",
            "What waits for a person's answer",
            Who::Looker,
            approvals,
        )
        .asks::<Whose>()
        .gives::<look::Approvals>("the requests that wait"),
        Endpoint::new(Method::GET, "/v1/guard", "guard", "Whom the guard stops, and why", Who::Looker, guard)
            .asks::<Whose>()
            .gives::<GuardView>("who is stopped, and what the guard last did"),
        Endpoint::new(
            Method::GET,
            "/v1/tools",
            "tools",
            "The tools that were called, and how they do",
            Who::Looker,
            tools,
        )
        .asks::<Whose>()
        .gives::<look::Tools>("in the order of their names"),
        Endpoint::new(Method::GET, "/v1/audit", "audit", "What people changed by hand", Who::Admin, audit)
            .asks::<look::AuditAsked>()
            .gives::<look::Audit>("the newest first")
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
        .gives::<look::History>("the newest that fit")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/servers",
            "servers",
            "The servers, their restarts and what they last wrote to stderr",
            Who::Looker,
            servers,
        )
        .gives::<look::Servers>("all of the configuration"),
        Endpoint::new(
            Method::GET,
            "/v1/sessions",
            "sessions",
            "The clients that are connected",
            Who::Looker,
            sessions,
        )
        .gives::<look::Sessions>("those first that spoke last"),
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
            .gives::<look::Running>("the newest first, as far as they have come"),
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
            "/v1/config",
            "config",
            "The settings, and where each comes from",
            Who::Looker,
            config,
        )
        .gives::<look::Settings>("the settings without secrets"),
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
            "Whether calls can be taken: the store answers",
            Who::Anyone,
            readyz,
        )
        .gives::<look::Health>("they can")
        .reads_the_store(),
    ]
}

const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

async fn status(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &look::status(&inner.steadfast).await)
}

async fn breakers(Shared(State(inner)): Shared<State>, Asked(whose): Asked<Whose>) -> Answered {
    let tenant = whose.read()?;
    Ok(json(StatusCode::OK, &look::breakers(inner.steadfast.engine(), tenant.as_ref()).await))
}

async fn trust(Shared(State(inner)): Shared<State>, Asked(whose): Asked<Whose>) -> Answered {
    Ok(json(StatusCode::OK, &look::trust(inner.steadfast.engine(), whose.read()?.as_ref())))
}

async fn approvals(Shared(State(inner)): Shared<State>, Asked(whose): Asked<Whose>) -> Answered {
    Ok(json(StatusCode::OK, &look::approvals(inner.steadfast.engine(), whose.read()?.as_ref())))
}

async fn guard(Shared(State(inner)): Shared<State>, Asked(whose): Asked<Whose>) -> Answered {
    Ok(json(StatusCode::OK, &inner.steadfast.engine().guard(whose.read()?.as_ref())))
}

async fn tools(Shared(State(inner)): Shared<State>, Asked(whose): Asked<Whose>) -> Answered {
    let tenant = whose.read()?;
    Ok(json(StatusCode::OK, &look::tools(inner.steadfast.engine(), tenant.as_ref()).await))
}

async fn audit(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::AuditAsked>) -> Answered {
    let limit = asked.read().map_err(Problem::bad_request)?;
    Ok(json(StatusCode::OK, &look::audit(inner.steadfast.engine(), limit).await?))
}

async fn records(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::RecordsAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::bad_request)?;
    Ok(json(StatusCode::OK, &look::records(inner.steadfast.engine(), &wanted).await?))
}

async fn history(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::HistoryAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::bad_request)?;
    Ok(json(StatusCode::OK, &look::history(&**inner.steadfast.store(), &wanted).await?))
}

async fn story(Shared(State(inner)): Shared<State>, Named(id): Named) -> Answered {
    match look::story(&inner.steadfast, &id).await? {
        Some(story) => Ok(json(StatusCode::OK, &story)),
        None => Err(Problem::no_such("call under this request")),
    }
}

async fn running(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &look::running(&inner.steadfast))
}

async fn series(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &look::series(&inner.steadfast))
}

async fn config(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &look::settings(&inner.steadfast.config()))
}

async fn servers(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &look::servers(&inner.around))
}

async fn sessions(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &look::sessions(&inner.around))
}

async fn metrics(Shared(State(inner)): Shared<State>) -> Response {
    whole(StatusCode::OK, METRICS, inner.steadfast.metrics().await)
}

async fn healthz() -> Response {
    json(StatusCode::OK, &look::Health { ok: true })
}

async fn readyz(Shared(State(inner)): Shared<State>) -> Answered {
    look::reach(&**inner.steadfast.store()).await?;
    Ok(json(StatusCode::OK, &look::Health { ok: true }))
}

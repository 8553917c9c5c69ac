//! Steadfast over plain HTTP, beside the MCP endpoints and in the same process: what there is to see and to
//! steer, for programs and for people.
//!
//! | file | what it does |
//! | --- | --- |
//! | `endpoint` | the rows that say what can be asked for, by whom, and what is answered |
//! | `openapi` | the document that is made of them |
//! | `access` | who may ask |
//! | `look` | what there is to see, as one finds it over HTTP and with the command line |
//! | `page` | the page for the person who runs it, which shows and steers by the same answers |
//! | `steer` | what a person changes while it runs |
//! | `problem`, `answer` | how things are said |

mod access;
mod answer;
mod endpoint;
pub mod look;
mod openapi;
mod page;
mod problem;
pub mod steer;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State as Shared};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use steadfast::{Steadfast, Switches};
use steadfast_executor::{GuardView, Series, Steered};
use tower::ServiceExt as _;

pub use access::{Access, AdminToken};
pub use problem::{ProblemBody, Wrong};

use crate::access::Who;
use crate::answer::{Asked, json, whole};
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::steer::Whose;

/// The API of one running engine. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Api {
    router: Router,
}

/// What every answer is made from.
#[derive(Clone)]
pub(crate) struct State(Arc<Inner>);

struct Inner {
    steadfast: Steadfast,
    access: Access,
    document: Value,
}

impl Api {
    /// The API of this engine for whoever has access.
    pub fn new(steadfast: Steadfast, access: Access) -> Self {
        let endpoints = endpoints();
        let state = State(Arc::new(Inner { steadfast, access, document: openapi::document(&endpoints) }));
        let mut router = Router::new();
        for Endpoint { path, who, route, .. } in endpoints {
            let guard = from_fn_with_state((state.clone(), who), admit);
            router = router.route(path, route.layer(guard));
        }
        let guard = from_fn_with_state((state.clone(), Who::Anyone), admit);
        let router = router
            .merge(page::routes().layer(guard))
            .fallback(async || Problem::no_such("page of this name"))
            .method_not_allowed_fallback(async || {
                Problem::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "method_not_allowed",
                    "this is asked for by another method",
                )
            })
            .with_state(state);
        Self { router }
    }

    /// Answers a request.
    pub async fn respond<B>(&self, request: http::Request<B>) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let answered: Result<_, Infallible> = self.router.clone().oneshot(request.map(Body::new)).await;
        match answered {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Lets in who may come in.
async fn admit(Shared((state, who)): Shared<(State, Who)>, request: Request, next: Next) -> Response {
    let caller = state.0.access.caller(request.uri(), request.headers());
    match caller.and_then(|caller| who.admits(&caller)) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Everything that can be asked for.
fn endpoints() -> Vec<Endpoint> {
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
            Method::POST,
            "/v1/breakers/{key}",
            "steerBreaker",
            "Opens or resets one",
            Who::Admin,
            steer::breaker,
        )
        .asks::<Whose>()
        .takes::<steer::Turn>()
        .gives::<Steered>("how it stands now"),
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
            Method::POST,
            "/v1/trust/{key}/reset",
            "resetTrust",
            "Forgives a tool",
            Who::Admin,
            steer::trust,
        )
        .asks::<Whose>()
        .gives::<steer::Forgiven>("it is trusted again")
        .reads_the_store(),
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
        Endpoint::new(
            Method::POST,
            "/v1/approvals/{id}",
            "answerApproval",
            "Answers one",
            Who::Admin,
            steer::approve,
        )
        .asks::<Whose>()
        .takes::<steer::Answer>()
        .gives::<steer::Answering>("it is answered")
        .or_conflict()
        .reads_the_store(),
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
        Endpoint::new(Method::DELETE, "/v1/records", "flush", "Forgets records", Who::Admin, steer::flush)
            .asks::<steer::Forgotten>()
            .gives::<steer::Removed>("they are forgotten")
            .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/records/{key}/resolve",
            "resolve",
            "Settles an unknown outcome",
            Who::Admin,
            steer::resolve,
        )
        .takes::<steer::Settle>()
        .gives::<steer::Settled>("it is settled")
        .reads_the_store(),
        Endpoint::new(
            Method::PUT,
            "/v1/switches",
            "switch",
            "Turns switches, until we are started again",
            Who::Admin,
            steer::switches,
        )
        .takes::<steer::Switching>()
        .gives::<Switches>("how they stand now"),
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
        Endpoint::new(Method::GET, "/openapi.json", "openapi", "This document", Who::Anyone, document)
            .gives::<serde_json::Map<String, Value>>("OpenAPI 3.1"),
    ]
}

const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) type Answered = Result<Response, Problem>;

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

async fn story(Shared(State(inner)): Shared<State>, Path(id): Path<String>) -> Answered {
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

async fn document(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &inner.document)
}

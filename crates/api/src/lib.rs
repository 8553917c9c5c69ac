//! Steadfast over plain HTTP, beside the MCP endpoints and in the same process: what there is to see and to
//! steer, for programs and for people.
//!
//! | file | what it does |
//! | --- | --- |
//! | `endpoint` | the rows that say what can be asked for, by whom, and what is answered |
//! | `openapi` | the document that is made of them |
//! | `access` | who may ask |
//! | `calls` | calls of tools, and of those that hosts run themselves |
//! | `shelf` | where the tools are |
//! | `reports` | what hosts say of tools that they ran without us |
//! | `events` | what happens, as it happens |
//! | `look` | what there is to see, as one finds it over HTTP and with the command line |
//! | `page` | the page for the person who runs it, which shows and steers by the same answers |
//! | `steer` | what a person changes while it runs |
//! | `asked` | how what was asked is read |
//! | `problem`, `answer` | how things are said |

mod access;
mod answer;
mod asked;
pub mod calls;
mod endpoint;
mod events;
pub mod look;
mod openapi;
mod page;
mod problem;
pub mod reports;
mod shelf;
pub mod steer;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use steadfast::{Steadfast, Switches};
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_executor::{GuardView, Series, Steered, ToolScore};
use steadfast_gateway::{Configured, Listener};
use steadfast_mcp::delivery::Link;
use tower::ServiceExt as _;

pub use access::{Access, AdminToken, Reach};
pub use events::EventsAsked;
pub use problem::{ProblemBody, Wrong};
pub use shelf::{Found, Run, Shelf, Shelves};

use crate::access::Who;
use crate::answer::{EVENTS, json, whole};
use crate::asked::{Asked, Named};
use crate::calls::Seal;
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::steer::Whose;

/// The API of one running engine. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Api {
    router: Router,
}

/// What a gateway has besides its engine.
#[derive(Clone)]
pub struct Around {
    /// What can be called.
    pub tools: Arc<dyn Shelf>,
    /// The servers that it stands in front of, each once.
    pub servers: Vec<Configured>,
    /// Where its clients come in.
    pub listeners: Vec<Arc<Listener>>,
}

impl Default for Around {
    /// Nothing.
    fn default() -> Self {
        Self { tools: Arc::new(Shelves::default()), servers: Vec::new(), listeners: Vec::new() }
    }
}

/// What every answer is made from.
#[derive(Clone)]
pub(crate) struct State(Arc<Inner>);

struct Inner {
    steadfast: Steadfast,
    access: Access,
    around: Around,
    seal: Option<Seal>,
    document: Value,
}

impl Api {
    /// The API of this engine for whoever has access, without tools to call.
    pub fn new(steadfast: Steadfast, access: Access) -> Self {
        Self::within(steadfast, access, Around::default())
    }

    /// The same with these tools.
    pub fn with_tools(steadfast: Steadfast, access: Access, tools: Arc<dyn Shelf>) -> Self {
        Self::within(steadfast, access, Around { tools, ..Around::default() })
    }

    /// The same with all that a gateway has.
    pub fn within(steadfast: Steadfast, access: Access, around: Around) -> Self {
        let endpoints = endpoints();
        let document = openapi::document(&endpoints);
        let state = State(Arc::new(Inner { steadfast, access, around, seal: Seal::new(), document }));
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

    /// Answers a request. Where its extensions have the [`Link`] of its connection, answers count as delivered when that
    /// says so; otherwise when their bodies were taken.
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

/// Lets in who may come in, and notes who it is. Whoever sends something over a connection has what came over it before.
async fn admit(Shared((state, who)): Shared<(State, Who)>, mut request: Request, next: Next) -> Response {
    if let Some(link) = request.extensions().get::<Link>() {
        link.heard_something();
    }
    let caller = state.0.access.caller(request.uri(), request.headers());
    match caller.and_then(|caller| who.admits(&caller).map(|()| caller)) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Everything that can be asked for.
fn endpoints() -> Vec<Endpoint> {
    let mut all = calls_and_reports();
    all.extend(looking_and_steering());
    all
}

/// What agents ask for.
fn calls_and_reports() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/calls",
            "call",
            "Runs a tool as often as it should be run",
            Who::Caller,
            calls::call,
        )
        .asks::<calls::CallAsked>()
        .heeds("Idempotency-Key", KEY)
        .heeds("Accept", "`text/event-stream` for events: `attempt`, `progress`, and at the end `result`")
        .takes::<CallEnvelope>()
        .gives_what_came_of_a_call::<ResultEnvelope>()
        .gives_text("the call as events", EVENTS),
        Endpoint::new(
            Method::POST,
            "/v1/calls/begin",
            "beginCall",
            "Asks whether a tool of the host's may run",
            Who::Caller,
            calls::begin,
        )
        .asks::<calls::CallAsked>()
        .heeds("Idempotency-Key", KEY)
        .takes::<CallEnvelope>()
        .gives_what_came_of_a_call::<calls::Next>()
        .or_unavailable(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/report",
            "reportCall",
            "Tells what came of an attempt",
            Who::Caller,
            calls::report,
        )
        .takes::<calls::HostReport>()
        .gives_what_came_of_a_call::<calls::Next>()
        .or_unavailable()
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/heartbeat",
            "heartbeat",
            "Shows that an attempt is still at work",
            Who::Caller,
            calls::heartbeat,
        )
        .takes::<calls::Beat>()
        .gives::<calls::Beating>("it counts")
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/cancel",
            "cancelCall",
            "Withdraws a call",
            Who::Caller,
            calls::cancel,
        )
        .gives::<calls::Withdrawn>("it is withdrawn"),
        Endpoint::new(
            Method::POST,
            "/v1/failures",
            "reportFailure",
            "Reports that a tool failed which the host ran without us",
            Who::Caller,
            reports::failure,
        )
        .asks::<Whose>()
        .takes::<reports::FailureReport>()
        .gives::<reports::Taken>("it counts"),
        Endpoint::new(
            Method::POST,
            "/v1/successes",
            "reportSuccess",
            "Reports that such a tool worked",
            Who::Caller,
            reports::success,
        )
        .asks::<Whose>()
        .takes::<reports::SuccessReport>()
        .gives::<reports::Taken>("it counts"),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/score",
            "score",
            "How well a tool does, for an agent that has to choose one",
            Who::Caller,
            reports::score,
        )
        .asks::<Whose>()
        .gives::<ToolScore>("how well it does"),
    ]
}

/// What people ask for.
fn looking_and_steering() -> Vec<Endpoint> {
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
            Method::POST,
            "/v1/guard/reset",
            "resetGuard",
            "Sets a conversation free that the guard stops",
            Who::Admin,
            steer::guard,
        )
        .asks::<Whose>()
        .takes::<steer::Freeing>()
        .gives::<steer::Freed>("it is free")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/debug/tool-reliability",
            "debugToolReliability",
            "The same by one name: holds a breaker open, resets one, forgets records",
            Who::Admin,
            steer::debug,
        )
        .asks::<Whose>()
        .takes::<steer::Debug>()
        .gives::<steer::Debugged>("it is done")
        .reads_the_store(),
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
            "/v1/events",
            "events",
            "What happens, as it happens",
            Who::Looker,
            events::events,
        )
        .asks::<EventsAsked>()
        .gives_text("server-sent events, until you hang up", EVENTS),
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

const KEY: &str = "the same as `payload.idempotencyKey`: same key, same call";
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
    let limit = asked.read().map_err(Problem::misread)?;
    Ok(json(StatusCode::OK, &look::audit(inner.steadfast.engine(), limit).await?))
}

async fn records(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::RecordsAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
    Ok(json(StatusCode::OK, &look::records(inner.steadfast.engine(), &wanted).await?))
}

async fn history(Shared(State(inner)): Shared<State>, Asked(asked): Asked<look::HistoryAsked>) -> Answered {
    let wanted = asked.read().map_err(Problem::misread)?;
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

async fn document(Shared(State(inner)): Shared<State>) -> Response {
    json(StatusCode::OK, &inner.document)
}

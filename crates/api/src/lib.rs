//! Steadfast over plain HTTP, beside the MCP endpoints and in the same process: what there is to see and to
//! steer, for programs and for people.
//!
//! | file | what it does |
//! | --- | --- |
//! | `endpoint` | what a row is: what can be asked for, by whom, and what is answered; the rows stand beside their handlers |
//! | `openapi` | the document that is made of them |
//! | `access` | who may ask |
//! | `calls` | calls of tools, and of those that hosts run themselves |
//! | `turns` | several calls that depend on each other |
//! | `results` | texts of results that were too long for their callers |
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
mod results;
pub mod steer;
mod turns;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State as Shared};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use serde_json::Value;
use steadfast::Steadfast;
use steadfast_core::large_result::KeptBounds;
use steadfast_executor::{Shelf, Shelves};
use steadfast_gateway::{Configured, LargeResults, Listener};
use steadfast_mcp::delivery::Link;
use steadfast_mcp::http::front::{EventStreams, is_encoded};
use tower::ServiceExt as _;

pub use access::{Access, Reach};
/// The bodies of answers.
pub use axum::body::Body as ResponseBody;
pub use events::EventsAsked;
pub use problem::{ProblemBody, Wrong};
pub use steadfast_mcp::http::front::AdminToken;

use crate::access::{Caller, Who};
use crate::calls::Seal;
use crate::endpoint::Endpoint;
use crate::problem::Problem;

/// The API of one running engine. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Api {
    router: Router,
    access: Access,
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
    /// Texts of results that are longer than callers are to be given.
    pub large_results: Arc<LargeResults>,
    /// The event streams that are followed, over MCP and here.
    pub streams: EventStreams,
}

impl Default for Around {
    /// Nothing.
    fn default() -> Self {
        let large_results = LargeResults::new(KeptBounds { keep: Duration::ZERO, entries: 0, bytes: 0 });
        Self {
            tools: Arc::new(Shelves::default()),
            servers: Vec::new(),
            listeners: Vec::new(),
            large_results,
            streams: EventStreams::default(),
        }
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

    /// The same with all that a gateway has.
    pub fn within(steadfast: Steadfast, access: Access, around: Around) -> Self {
        let endpoints = endpoints();
        let document = openapi::document(&endpoints);
        let own_access = access.clone();
        let state = State(Arc::new(Inner { steadfast, access, around, seal: Seal::new(), document }));
        let mut paths: BTreeMap<&'static str, (MethodRouter<State>, Vec<Method>)> = BTreeMap::new();
        for endpoint in endpoints {
            let guard = EndpointGuard::of(&endpoint, &state);
            let Endpoint { path, method, route, .. } = endpoint;
            let (routes, allow) = paths.entry(path).or_default();
            *routes = std::mem::take(routes).merge(route.layer(from_fn_with_state(guard, admit)));
            allow.extend(if method == Method::GET { vec![Method::GET, Method::HEAD] } else { vec![method] });
        }
        let mut router = Router::new();
        for (path, (routes, allow)) in paths {
            let wrong_method =
                async move |method: Method, uri: Uri| Problem::wrong_method(&method, uri.path(), &allow);
            router = router.route(path, routes.fallback(wrong_method));
        }
        let guard = EndpointGuard {
            state: state.clone(),
            who: Who::Anyone,
            name: "".into(),
            takes_body: false,
            query: None,
        };
        let router = router
            .merge(page::routes().layer(from_fn_with_state(guard, admit)))
            .fallback(async |uri: Uri| Problem::no_such_path(uri.path()))
            .method_not_allowed_fallback(async |method: Method, uri: Uri| {
                Problem::wrong_method(&method, uri.path(), &[Method::GET, Method::HEAD])
            })
            .with_state(state);
        Self { router, access: own_access }
    }

    /// Returns true if a request asks for health, or for what an operator or a viewer sees and an operator changes. A gateway
    /// answers it even where it has no room for calls. Calls and event streams are not among them: they keep their connection.
    pub fn is_essential<B>(&self, request: &http::Request<B>) -> bool {
        const LASTING: [&str; 2] = ["/v1/calls", "/v1/turns"];
        let path = request.uri().path();
        if path == "/healthz" || path == "/readyz" {
            return true;
        }
        let is_lasting =
            path == "/v1/events" || (request.method() == Method::POST && LASTING.contains(&path));
        !is_lasting && self.access.is_operating(request.uri(), request.headers())
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

/// The checks that are made before the handler of an endpoint runs.
#[derive(Clone)]
struct EndpointGuard {
    state: State,
    who: Who,
    /// Its method and path.
    name: Arc<str>,
    /// True if the endpoint reads a request body.
    takes_body: bool,
    /// The query parameters that it takes; nothing where they are not looked at.
    query: Option<Arc<[String]>>,
}

impl EndpointGuard {
    fn of(endpoint: &Endpoint, state: &State) -> Self {
        Self {
            state: state.clone(),
            who: endpoint.who,
            name: format!("{} {}", endpoint.method, endpoint.path).into(),
            takes_body: endpoint.takes.is_some(),
            query: Some(openapi::query_names(endpoint).into()),
        }
    }

    /// Refuses a body with a content coding: it would be read as if it had none.
    fn check_encoding(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.takes_body && is_encoded(headers) { Err(Problem::encoded()) } else { Ok(()) }
    }

    /// Refuses parameters that the endpoint does not take: one that is misspelled would be passed over otherwise.
    fn check_query(&self, uri: &Uri) -> Result<(), Problem> {
        let Some(known) = &self.query else { return Ok(()) };
        let Ok(Query(given)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else { return Ok(()) };
        let unknown: Vec<&str> = given
            .iter()
            .map(|(name, _)| &**name)
            .filter(|name| !known.iter().any(|known| known == name))
            .collect();
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(Problem::unknown_parameters(&unknown, &self.name, known))
        }
    }
}

/// Lets in who may come in, and notes who it is. Whoever sends something over a connection has what came over it before.
async fn admit(Shared(guard): Shared<EndpointGuard>, mut request: Request, next: Next) -> Response {
    if let Some(link) = request.extensions().get::<Link>() {
        link.heard_something();
    }
    let access = &guard.state.0.access;
    let admitted = access
        .admit(guard.who, request.uri(), request.headers())
        .and_then(|caller| guard.check_query(request.uri()).map(|()| caller))
        .and_then(|caller| guard.check_encoding(request.headers()).map(|()| caller));
    match admitted {
        Ok(caller) => {
            if caller != Caller::Stranger
                && let Some(link) = request.extensions().get::<Link>()
            {
                link.admit();
            }
            request.extensions_mut().insert(access.sender(&caller));
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Everything that can be asked for.
fn endpoints() -> Vec<Endpoint> {
    [
        calls::endpoints(),
        turns::endpoints(),
        results::endpoints(),
        reports::endpoints(),
        look::endpoints(),
        events::endpoints(),
        steer::endpoints(),
        openapi::endpoints(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(crate) type Answered = Result<Response, Problem>;

//! The HTTP API of Steadfast, in the same process as the MCP endpoints, and the dashboard.
//!
//! | module | purpose |
//! | --- | --- |
//! | `endpoint` | descriptions of endpoints, which stand beside their handlers |
//! | `openapi` | the OpenAPI document made from them |
//! | `access` | authorization |
//! | `calls` | calls of tools, including tools that the host runs |
//! | `turns` | several calls that depend on each other |
//! | `results` | texts of large results |
//! | `reports` | reports of hosts about tools that they ran without Steadfast |
//! | `events` | live events |
//! | `queries` | queries for operators, shared with the command line |
//! | `page` | the dashboard, which uses the same endpoints |
//! | `admin` | changes by operators |
//! | `extractors` | parsing of requests |
//! | `problem`, `encoding` | error responses, and encoding of responses |

mod access;
pub mod admin;
pub mod calls;
mod encoding;
mod endpoint;
mod events;
mod extractors;
mod openapi;
mod page;
mod problem;
pub mod queries;
pub mod reports;
mod results;
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
use steadfast_core::large_result::LargeResultBounds;
use steadfast_executor::{ToolRegistries, ToolRegistry};
use steadfast_gateway::{ConfiguredServer, LargeResults, Listener};
use steadfast_mcp::delivery::DeliveryLink;
use steadfast_mcp::http::server::{EventStreamLimiter, is_encoded};
use tower::ServiceExt as _;

pub use access::{AccessRules, NetworkReach};
/// The type of response bodies.
pub use axum::body::Body as ResponseBody;
pub use events::EventsQuery;
pub use problem::{ErrorResponse, ProblemBody};
pub use steadfast_mcp::http::server::AdminToken;

use crate::access::{Permission, Requester};
use crate::calls::CallIdSeal;
use crate::endpoint::Endpoint;
use crate::problem::ApiProblem;

/// The API of one running engine. Clones are cheap and share it.
#[derive(Clone)]
pub struct Api {
    router: Router,
    access: AccessRules,
}

/// The parts of a gateway besides its engine.
#[derive(Clone)]
pub struct GatewayParts {
    /// The tools that can be called.
    pub tools: Arc<dyn ToolRegistry>,
    /// The upstream servers, each once.
    pub servers: Vec<ConfiguredServer>,
    /// The MCP listeners of its clients.
    pub listeners: Vec<Arc<Listener>>,
    /// Stores result texts that exceed the limit of their tool.
    pub large_results: Arc<LargeResults>,
    /// The open event streams, over MCP and in this API.
    pub streams: EventStreamLimiter,
}

impl Default for GatewayParts {
    /// Returns a gateway without tools, servers and listeners.
    fn default() -> Self {
        let large_results =
            LargeResults::new(LargeResultBounds { keep: Duration::ZERO, entries: 0, bytes: 0 });
        Self {
            tools: Arc::new(ToolRegistries::default()),
            servers: Vec::new(),
            listeners: Vec::new(),
            large_results,
            streams: EventStreamLimiter::default(),
        }
    }
}

/// The state of all handlers.
#[derive(Clone)]
pub(crate) struct State(Arc<ApiState>);

struct ApiState {
    steadfast: Steadfast,
    access: AccessRules,
    gateway: GatewayParts,
    seal: Option<CallIdSeal>,
    document: Value,
}

impl Api {
    /// Creates the API of this engine, without tools to call.
    pub fn new(steadfast: Steadfast, access: AccessRules) -> Self {
        Self::with_gateway(steadfast, access, GatewayParts::default())
    }

    /// Creates the API with all parts of a gateway.
    pub fn with_gateway(steadfast: Steadfast, access: AccessRules, gateway: GatewayParts) -> Self {
        let endpoints = endpoints();
        let document = openapi::document(&endpoints);
        let own_access = access.clone();
        let state =
            State(Arc::new(ApiState { steadfast, access, gateway, seal: CallIdSeal::new(), document }));
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
                async move |method: Method, uri: Uri| ApiProblem::wrong_method(&method, uri.path(), &allow);
            router = router.route(path, routes.fallback(wrong_method));
        }
        let guard = EndpointGuard {
            state: state.clone(),
            permission: Permission::Anyone,
            name: "".into(),
            takes_body: false,
            query: None,
        };
        let router = router
            .merge(page::routes().layer(from_fn_with_state(guard, admit)))
            .fallback(async |uri: Uri| ApiProblem::no_such_path(uri.path()))
            .method_not_allowed_fallback(async |method: Method, uri: Uri| {
                ApiProblem::wrong_method(&method, uri.path(), &[Method::GET, Method::HEAD])
            })
            .with_state(state);
        Self { router, access: own_access }
    }

    /// Returns true if a request asks for health, or if it reads or changes the state with the admin token or that of a
    /// viewer. A gateway handles it even if it has no room for calls. Calls and event streams are excluded, because
    /// they keep their connection.
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

    /// Handles a request. If its extensions contain the [`DeliveryLink`] of its connection, responses count as delivered when
    /// that confirms it; otherwise when their bodies were taken.
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
    permission: Permission,
    /// The method and the path.
    name: Arc<str>,
    /// True if the endpoint reads a request body.
    takes_body: bool,
    /// The query parameters of the endpoint. `None` if they are not checked.
    query: Option<Arc<[String]>>,
}

impl EndpointGuard {
    fn of(endpoint: &Endpoint, state: &State) -> Self {
        Self {
            state: state.clone(),
            permission: endpoint.permission,
            name: format!("{} {}", endpoint.method, endpoint.path).into(),
            takes_body: endpoint.takes.is_some(),
            query: Some(openapi::query_names(endpoint).into()),
        }
    }

    /// Refuses a body with a content coding: it would be read as if it had none.
    fn check_encoding(&self, headers: &HeaderMap) -> Result<(), ApiProblem> {
        if self.takes_body && is_encoded(headers) { Err(ApiProblem::encoded()) } else { Ok(()) }
    }

    /// Refuses unknown query parameters: a misspelled one would be ignored otherwise.
    fn check_query(&self, uri: &Uri) -> Result<(), ApiProblem> {
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
            Err(ApiProblem::unknown_parameters(&unknown, &self.name, known))
        }
    }
}

/// Authorizes a request and records the requester. A request also confirms the delivery of earlier responses on its
/// connection.
async fn admit(Shared(guard): Shared<EndpointGuard>, mut request: Request, next: Next) -> Response {
    if let Some(link) = request.extensions().get::<DeliveryLink>() {
        link.record_input();
    }
    let access = &guard.state.0.access;
    let admitted = access
        .admit(guard.permission, request.uri(), request.headers())
        .and_then(|caller| guard.check_query(request.uri()).map(|()| caller))
        .and_then(|caller| guard.check_encoding(request.headers()).map(|()| caller));
    match admitted {
        Ok(caller) => {
            if caller != Requester::Unauthenticated
                && let Some(link) = request.extensions().get::<DeliveryLink>()
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

/// Returns all endpoints.
fn endpoints() -> Vec<Endpoint> {
    [
        calls::endpoints(),
        turns::endpoints(),
        results::endpoints(),
        reports::endpoints(),
        queries::endpoints(),
        events::endpoints(),
        admin::endpoints(),
        openapi::endpoints(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(crate) type HandlerResult = Result<Response, ApiProblem>;

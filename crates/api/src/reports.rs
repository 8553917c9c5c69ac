//! Reports of hosts about tools that they ran without Steadfast, and scores of tools.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State as Shared};
use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::classify::Severity;
use steadfast_core::classify::signature::Signature;
use steadfast_core::id::{Domain, ModelId, Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::report::{ReportKind, ToolReport};
use steadfast_core::trust::{TrustChange, TrustScope, TrustState};
use steadfast_executor::ToolScore;
use steadfast_json::JsonLimits;

use crate::access::{Permission, Requester, bound_tenant};
use crate::admin::TenantQuery;
use crate::encoding::json;
use crate::endpoint::Endpoint;
use crate::extractors::{PathParam, QueryParams, body};
use crate::problem::ApiProblem;
use crate::queries::view;
use crate::{ApiState, HandlerResult, State, queries};

/// The endpoints for reports and scores.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/failures",
            "reportFailure",
            "Reports a failure of a tool that the host ran itself",
            Permission::Caller,
            failure,
        )
        .takes_query::<TenantQuery>()
        .takes::<FailureReport>()
        .gives::<ReportResponse>("the report is recorded"),
        Endpoint::new(
            Method::POST,
            "/v1/successes",
            "reportSuccess",
            "Reports a success of a tool that the host ran itself",
            Permission::Caller,
            success,
        )
        .takes_query::<TenantQuery>()
        .takes::<SuccessReport>()
        .gives::<ReportResponse>("the report is recorded"),
        Endpoint::new(
            Method::DELETE,
            "/v1/sessions/{key}",
            "endSession",
            "Ends a session and its approvals",
            Permission::Caller,
            end_session,
        )
        .names::<SessionKey>()
        .takes_query::<TenantQuery>()
        .gives::<SessionEndResponse>("the session has ended")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/score",
            "score",
            "Returns the score of a tool, for an agent that chooses between tools",
            Permission::Caller,
            score,
        )
        .takes_query::<ScoreQuery>()
        .gives::<ToolScore>("the score"),
    ]
}

/// The response to the end of a session.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SessionEndResponse {
    /// The session key.
    pub session: SessionKey,
}

/// `DELETE /v1/sessions/{key}`.
pub(crate) async fn end_session(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    PathParam(key): PathParam,
    QueryParams(query): QueryParams<TenantQuery>,
) -> HandlerResult {
    let tenant = bound_tenant(&caller, query.read()?)?;
    let session =
        SessionKey::new(&key).map_err(|reason| ApiProblem::misread(format!("the session {reason}")))?;
    inner.steadfast.engine().end_session(tenant.as_ref(), &session).await?;
    Ok(json(StatusCode::OK, &SessionEndResponse { session }))
}

/// A report about a failed call.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "only describes the schema; the core reads reports and returns all errors at once"
)]
pub struct FailureReport {
    /// The tool.
    tool_name: ToolName,
    /// The namespace of the tool. The default is its service, or else `host`.
    plugin_name: Option<Namespace>,
    /// The error: a text, an object with an `error`, an exception with its `type` and `message`, or any other object.
    #[schemars(schema_with = "error_schema")]
    error: serde_json::Value,
    /// The severity. By default it is derived from the error.
    severity: Option<Severity>,
    /// The HTTP status, if there was a response.
    #[schemars(range(min = 100, max = 599))]
    http_status: Option<u16>,
    /// The host that the tool depends on. By default it is derived from the arguments.
    domain: Option<Domain>,
    /// The server or service behind the tool.
    service: Option<Domain>,
    /// The arguments. Only the target that they name is stored.
    arguments: Option<serde_json::Map<String, serde_json::Value>>,
    /// Other details. They are stored with the failure, redacted and cut to 1 KiB.
    context: Option<serde_json::Map<String, serde_json::Value>>,
    /// True if trust can recover over time; false if only an operator can restore it.
    recoverable: Option<bool>,
    /// The model that made the call.
    model_id: Option<ModelId>,
    /// The duration of the call, in milliseconds.
    duration_ms: Option<u64>,
}

fn error_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string", "minLength": 1 },
        { "type": "object", "minProperties": 1 },
    ] })
}

/// A report about a successful call.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "as above")]
pub struct SuccessReport {
    /// The tool.
    tool_name: ToolName,
    /// The namespace of the tool. The default is its service, or else `host`.
    plugin_name: Option<Namespace>,
    /// The host that the tool depends on. By default it is derived from the arguments.
    domain: Option<Domain>,
    /// The server or service behind the tool.
    service: Option<Domain>,
    /// The arguments. Only the target that they name is stored.
    arguments: Option<serde_json::Map<String, serde_json::Value>>,
    /// Other details. They are not stored.
    context: Option<serde_json::Map<String, serde_json::Value>>,
    /// The model that made the call.
    model_id: Option<ModelId>,
    /// The duration of the call, in milliseconds.
    duration_ms: Option<u64>,
}

/// Query parameters of a score.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoreQuery {
    /// The tenant whose calls count. By default, calls of no tenant.
    #[schemars(with = "Option<TenantId>")]
    tenant: Option<String>,
    /// The model whose calls count, including its own errors. By default, the score of the tool for all models.
    #[schemars(with = "Option<ModelId>")]
    model: Option<String>,
}

/// The response to a report.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReportResponse {
    /// The changes of trust, mostly none.
    pub changes: Vec<TrustChangeView>,
}

view! {
    /// A change of trust.
    TrustChangeView of TrustChange {
        /// The name of the tool, signature or domain.
        subject: Arc<str>,
        /// The kind of subject.
        scope: TrustScope,
        /// The state before.
        from: TrustState,
        /// The state after.
        to: TrustState,
        /// The reason.
        reason: String,
        /// Counted failures since trust began to drop.
        failures: u32,
        /// Successes that restore trust.
        successes_needed: u32,
        /// True if a notification is sent. The start of a recovery only changes metrics.
        notify: bool,
        /// Time of the change.
        at: Timestamp,
    } {
        /// The tool. For a domain, the tool whose call caused the change, if a call did.
        tool: ToolRef,
        /// The signature, if the change concerns a call or a signature.
        signature: Signature,
        /// The host or server, if known.
        domain: Domain,
        /// Time at which an escalation ends at the earliest. Absent if only an operator can end it, or if there is
        /// none.
        until: Timestamp,
    }
}

/// `POST /v1/failures`.
pub(crate) async fn failure(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    QueryParams(query): QueryParams<TenantQuery>,
    request: Request,
) -> HandlerResult {
    take(&inner, &caller, query, request.into_body(), ReportKind::Failure).await
}

/// `POST /v1/successes`.
pub(crate) async fn success(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    QueryParams(query): QueryParams<TenantQuery>,
    request: Request,
) -> HandlerResult {
    take(&inner, &caller, query, request.into_body(), ReportKind::Success).await
}

async fn take(
    inner: &ApiState,
    caller: &Requester,
    query: TenantQuery,
    content: Body,
    kind: ReportKind,
) -> HandlerResult {
    let tenant = bound_tenant(caller, query.read()?)?;
    let text = body(content, JsonLimits::ENVELOPE.bytes).await?;
    let report =
        ToolReport::parse(&text, kind).map_err(|reason| ApiProblem::bad_request(reason.to_string()))?;
    check_report_target(inner, caller, &report.tool, [&report.domain, &report.service])?;
    let changes = inner.steadfast.engine().record_report(tenant.as_ref(), &report);
    let changes = changes.into_iter().map(TrustChangeView::from).collect();
    Ok(json(StatusCode::OK, &ReportResponse { changes }))
}

/// Refuses a client's report about a tool or server that runs here, or about a host that one of them uses. Such a
/// report could take trust from tools that others use, or restore trust in a tool that the client broke. Any other host
/// may be reported on.
pub(crate) fn check_report_target(
    inner: &ApiState,
    caller: &Requester,
    tool: &ToolRef,
    depends_on: [&Option<Domain>; 2],
) -> Result<(), ApiProblem> {
    let is_upstream = |namespace: &Namespace| inner.gateway.tools.runs(namespace);
    let config = inner.steadfast.config();
    let named = |domain: &Domain| {
        Namespace::new(domain.as_str()).is_ok_and(|server| is_upstream(&server)) || config.is_own_host(domain)
    };
    let reason = match caller {
        Requester::Admin => return Ok(()),
        Requester::Client(_) | Requester::Viewer(_) | Requester::Local | Requester::Unauthenticated => {
            if is_upstream(&tool.namespace) {
                format!(
                    "{tool} runs in this gateway, which observes its calls itself: call it with POST /v1/calls"
                )
            } else if let Some(server) = depends_on.into_iter().flatten().find(|domain| named(domain)) {
                format!(
                    "a tool or server at {server} runs in this gateway, which observes its calls itself: omit it"
                )
            } else {
                return Ok(());
            }
        }
    };
    Err(ApiProblem::forbidden(format!("{reason}. Only the admin can report on it")))
}

/// `GET /v1/tools/{name}/score`. The name is `namespace/tool`, as one path segment with the slash encoded.
pub(crate) async fn score(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    PathParam(name): PathParam,
    QueryParams(query): QueryParams<ScoreQuery>,
) -> HandlerResult {
    let tenant = bound_tenant(&caller, TenantQuery::of(query.tenant).read()?)?;
    let tool = queries::tool(&name).map_err(|reason| ApiProblem::no_such("tool", &name).because(&reason))?;
    let model = query.model.map(ModelId::new).transpose();
    let model = model.map_err(|reason| ApiProblem::bad_request(format!("model: {reason}")))?;
    let engine = inner.steadfast.engine();
    let score = match &model {
        Some(model) => engine.admin().model_score(tenant.as_ref(), model, &tool).ok_or_else(|| {
            ApiProblem::no_such("score of the model", model.as_str())
                .because(&format!("it has made no call of {tool}"))
        }),
        None => engine.admin().score(tenant.as_ref(), &tool).ok_or_else(|| {
            ApiProblem::no_such("score of the tool", &name).because(&"no call of it has ended yet")
        }),
    };
    Ok(json(StatusCode::OK, &score?))
}

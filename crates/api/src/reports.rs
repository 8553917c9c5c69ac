//! What hosts say of tools that they ran without us, and how well tools do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State as Shared};
use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::classify::Severity;
use steadfast_core::id::{Domain, ModelId, Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::json::Limits;
use steadfast_core::report::{ReportKind, ToolReport};
use steadfast_core::trust::{Scope, Signature, TrustChange, TrustState};
use steadfast_executor::ToolScore;

use crate::access::{Caller, Who};
use crate::answer::json;
use crate::asked::{Asked, Named, body};
use crate::calls::bound_tenant;
use crate::endpoint::Endpoint;
use crate::look::view;
use crate::problem::Problem;
use crate::steer::Whose;
use crate::{Answered, Inner, State, look};

/// What hosts say, and ask for.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/failures",
            "reportFailure",
            "Reports that a tool failed which the host ran without us",
            Who::Caller,
            failure,
        )
        .asks::<Whose>()
        .takes::<FailureReport>()
        .gives::<Taken>("it counts"),
        Endpoint::new(
            Method::POST,
            "/v1/successes",
            "reportSuccess",
            "Reports that such a tool worked",
            Who::Caller,
            success,
        )
        .asks::<Whose>()
        .takes::<SuccessReport>()
        .gives::<Taken>("it counts"),
        Endpoint::new(
            Method::DELETE,
            "/v1/sessions/{key}",
            "endSession",
            "Says that a session is over: what was approved for it ends",
            Who::Caller,
            end_session,
        )
        .names::<SessionKey>()
        .asks::<Whose>()
        .gives::<Ended>("it is over")
        .reads_the_store(),
        Endpoint::new(
            Method::GET,
            "/v1/tools/{name}/score",
            "score",
            "How well a tool does, for an agent that has to choose one",
            Who::Caller,
            score,
        )
        .asks::<ScoreAsked>()
        .gives::<ToolScore>("how well it does"),
    ]
}

/// That a session is over.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Ended {
    /// Which one.
    pub session: SessionKey,
}

/// `DELETE /v1/sessions/{key}`.
pub(crate) async fn end_session(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Caller>,
    Named(key): Named,
    Asked(whose): Asked<Whose>,
) -> Answered {
    let tenant = bound_tenant(&caller, whose.read()?)?;
    let session = SessionKey::new(&key).map_err(|why| Problem::misread(format!("the session {why}")))?;
    inner.steadfast.engine().end_session(tenant.as_ref(), &session).await?;
    Ok(json(StatusCode::OK, &Ended { session }))
}

/// A tool failed.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "described here and read by the core, which says everything that is wrong at once"
)]
pub struct FailureReport {
    /// The tool.
    tool_name: ToolName,
    /// The group that it belongs to; without one its service, else `host`.
    plugin_name: Option<Namespace>,
    /// A text, an object with an `error`, an exception with its `type` and `message`, or any other object.
    #[schemars(schema_with = "error_schema")]
    error: serde_json::Value,
    /// How bad it is; otherwise that is found out.
    severity: Option<Severity>,
    /// The status of the HTTP answer, where there was one.
    #[schemars(range(min = 100, max = 599))]
    http_status: Option<u16>,
    /// The host that it depends on; otherwise as its arguments say.
    domain: Option<Domain>,
    /// The server or service behind it.
    service: Option<Domain>,
    /// Its arguments: only what they depend on is kept.
    arguments: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whatever else there is to say. It is kept with the failure, without secrets and cut to 1 KiB.
    context: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whether time can heal it; otherwise only a person.
    recoverable: Option<bool>,
    /// The model that asked for it.
    model_id: Option<ModelId>,
    /// How long it took.
    duration_ms: Option<u64>,
}

fn error_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string", "minLength": 1 },
        { "type": "object", "minProperties": 1 },
    ] })
}

/// A tool worked.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "as above")]
pub struct SuccessReport {
    /// The tool.
    tool_name: ToolName,
    /// The group that it belongs to; without one its service, else `host`.
    plugin_name: Option<Namespace>,
    /// The host that it depends on; otherwise as its arguments say.
    domain: Option<Domain>,
    /// The server or service behind it.
    service: Option<Domain>,
    /// Its arguments: only what they depend on is kept.
    arguments: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whatever else there is to say; nothing of it is kept.
    context: Option<serde_json::Map<String, serde_json::Value>>,
    /// The model that asked for it.
    model_id: Option<ModelId>,
    /// How long it took.
    duration_ms: Option<u64>,
}

/// Which score is asked for.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoreAsked {
    /// As this tenant uses the tool; otherwise as those do who belong to none.
    #[schemars(with = "Option<TenantId>")]
    tenant: Option<String>,
    /// The score of this model with the tool, in which its mistakes count; otherwise the score of the tool.
    #[schemars(with = "Option<ModelId>")]
    model: Option<String>,
}

/// What a report changed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Taken {
    /// Who is trusted more or less by it. Mostly nobody.
    pub changes: Vec<TrustChangeView>,
}

view! {
    /// A change of trust.
    TrustChangeView of TrustChange {
        /// The text of the tool, signature or domain that it is about.
        subject: Arc<str>,
        /// Which of these it is.
        scope: Scope,
        /// The state before.
        from: TrustState,
        /// The state after.
        to: TrustState,
        /// Why.
        reason: String,
        /// Failures counted since the trouble began.
        failures: u32,
        /// Successes that earn trust back after that.
        successes_needed: u32,
        /// Whether a notification is sent. Beginning to recover is for metrics only.
        notify: bool,
        /// When.
        at: Timestamp,
    } {
        /// The tool; for a domain the one whose call brought the change, if a call did.
        tool: ToolRef,
        /// The signature, if a call or a signature's account is meant.
        signature: Signature,
        /// The host or server, where one is known.
        domain: Domain,
        /// When an escalation ends at the earliest; nothing if only a person can end it or nothing is escalated.
        until: Timestamp,
    }
}

/// `POST /v1/failures`.
pub(crate) async fn failure(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Caller>,
    Asked(whose): Asked<Whose>,
    request: Request,
) -> Answered {
    take(&inner, &caller, whose, request.into_body(), ReportKind::Failure).await
}

/// `POST /v1/successes`.
pub(crate) async fn success(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Caller>,
    Asked(whose): Asked<Whose>,
    request: Request,
) -> Answered {
    take(&inner, &caller, whose, request.into_body(), ReportKind::Success).await
}

async fn take(inner: &Inner, caller: &Caller, whose: Whose, content: Body, kind: ReportKind) -> Answered {
    let tenant = bound_tenant(caller, whose.read()?)?;
    let text = body(content, Limits::ENVELOPE.bytes).await?;
    let report = ToolReport::parse(&text, kind).map_err(|why| Problem::bad_request(why.to_string()))?;
    is_for_a_host_to_say(inner, caller, &report.tool, [&report.domain, &report.service])?;
    let changes = inner.steadfast.engine().take_report(tenant.as_ref(), &report);
    let changes = changes.into_iter().map(TrustChangeView::from).collect();
    Ok(json(StatusCode::OK, &Taken { changes }))
}

/// Refuses to hear from a client how a tool does that is run here, or a server that is here, or a host that either is at: it could
/// take the trust from what others use, or give it back to what it broke. Every other host is for everybody to say.
pub(crate) fn is_for_a_host_to_say(
    inner: &Inner,
    caller: &Caller,
    tool: &ToolRef,
    depends_on: [&Option<Domain>; 2],
) -> Result<(), Problem> {
    let is_ours = |namespace: &Namespace| inner.around.tools.runs(namespace);
    let config = inner.steadfast.config();
    let named = |domain: &Domain| {
        Namespace::new(domain.as_str()).is_ok_and(|server| is_ours(&server)) || config.is_own_host(domain)
    };
    let why = match caller {
        Caller::Admin => return Ok(()),
        Caller::Client(_) | Caller::Viewer(_) | Caller::Local | Caller::Stranger => {
            if is_ours(&tool.namespace) {
                format!("{tool} is run here, where it is seen how it does: call it with POST /v1/calls")
            } else if let Some(server) = depends_on.into_iter().flatten().find(|domain| named(domain)) {
                format!(
                    "a tool or server at {server} is run here, where it is seen how it does: leave it out"
                )
            } else {
                return Ok(());
            }
        }
    };
    Err(Problem::forbidden(format!("{why}. Only the admin can report on it")))
}

/// `GET /v1/tools/{name}/score`; the name is `namespace/tool`, as one part of the path with the slash encoded.
pub(crate) async fn score(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
    Asked(asked): Asked<ScoreAsked>,
) -> Answered {
    let tenant = bound_tenant(&caller, Whose::of(asked.tenant).read()?)?;
    let tool = look::tool(&name).map_err(|why| Problem::no_such("tool", &name).because(&why))?;
    let model = asked.model.map(ModelId::new).transpose();
    let model = model.map_err(|why| Problem::bad_request(format!("model: {why}")))?;
    let engine = inner.steadfast.engine();
    let score = match &model {
        Some(model) => engine.model_score(tenant.as_ref(), model, &tool).ok_or_else(|| {
            Problem::no_such("score of the model", model.as_str())
                .because(&format!("it has made no call of {tool}"))
        }),
        None => engine.score(tenant.as_ref(), &tool).ok_or_else(|| {
            Problem::no_such("score of the tool", &name).because(&"no call of it has ended yet")
        }),
    };
    Ok(json(StatusCode::OK, &score?))
}

//! Changes by operators. Each change is written to the audit log, with the operator who made it.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::{FromRequestParts, State as Shared};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use steadfast::Engine;
use steadfast::admin::ApprovalError;
use steadfast::admin::approval::{ApprovalDecision, DecisionEffect, Grantor, ParkedRequestId};
use steadfast::admin::guard::ActiveRefusal;
use steadfast::config::{SwitchChange, Switches, parse_span};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{RecordLoss, Resolution, ResolveVerdict};
use steadfast_core::id::{Digest, Domain, SessionKey, TenantId, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::EnforcementMode;
use steadfast_core::trust::{TrustScope, TrustStatus, TrustTarget};
use steadfast_executor::{
    AuditAction, AuditChange, BreakerChange, BreakerKey, BreakerOverride, OperatorIdentity, OperatorSurface,
};
use steadfast_store::{FlushTarget, RecordFilter};

use crate::access::Permission;
use crate::encoding::shown;
use crate::endpoint::Endpoint;
use crate::extractors::{JsonBody, PathParam, QueryParams};
use crate::problem::ApiProblem;
use crate::queries::{self, NamedTool};
use crate::{HandlerResult, State};

/// The endpoints for changes. Each change is written to the audit log, with the operator and the surface.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let signed = |endpoint: Endpoint| {
        endpoint.reads_header(OPERATOR, OPERATOR_HELP).reads_header(SURFACE, SURFACE_HELP)
    };
    rows().into_iter().map(signed).collect()
}

fn rows() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/breakers/{key}",
            "steerBreaker",
            "Forces a circuit breaker open, or resets it",
            Permission::Admin,
            breaker,
        )
        .takes_query::<TenantQuery>()
        .takes::<BreakerCommand>()
        .gives::<BreakerChange>("the new state"),
        Endpoint::new(
            Method::POST,
            "/v1/trust/{key}/reset",
            "resetTrust",
            "Restores trust in a tool",
            Permission::Admin,
            trust,
        )
        .takes_query::<TenantQuery>()
        .gives::<TrustChangeResponse>("trust is restored")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/trust/{key}/recover",
            "approveRecovery",
            "Lets a tool recover trust",
            Permission::Admin,
            recover,
        )
        .takes_query::<TenantQuery>()
        .gives::<TrustChangeResponse>(
            "it runs without approval, and is trusted after enough successful calls",
        )
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/approvals/{id}",
            "answerApproval",
            "Answers an approval request",
            Permission::Admin,
            approve,
        )
        .takes_query::<TenantQuery>()
        .takes::<ApprovalAnswer>()
        .gives::<ApprovalAnswerResponse>("the request is answered")
        .or_conflict()
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/guard/reset",
            "resetGuard",
            "Releases a session that the loop guard stops",
            Permission::Admin,
            guard,
        )
        .takes_query::<TenantQuery>()
        .takes::<GuardResetRequest>()
        .gives::<GuardResetResponse>("the session is released")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/debug/tool-reliability",
            "debugToolReliability",
            "Opens or resets a circuit breaker, or deletes records, in one endpoint",
            Permission::Admin,
            debug,
        )
        .takes_query::<TenantQuery>()
        .takes::<DebugAction>()
        .gives::<DebugResult>("the action is done")
        .reads_the_store(),
        Endpoint::new(Method::DELETE, "/v1/records", "flush", "Deletes records", Permission::Admin, flush)
            .takes_query::<FlushQuery>()
            .gives::<FlushResponse>("the records are deleted")
            .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/state/accept",
            "acceptLoss",
            "Accepts a loss of records, so that calls with an idempotency key run again",
            Permission::Admin,
            accept_loss,
        )
        .gives::<AcceptedLoss>("the accepted loss, if there was one")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/records/{key}/resolve",
            "resolve",
            "Resolves an unknown outcome",
            Permission::Admin,
            resolve,
        )
        .takes::<ResolveRequest>()
        .gives::<ResolveResponse>("the outcome is resolved")
        .or_conflict()
        .reads_the_store(),
        Endpoint::new(
            Method::PUT,
            "/v1/switches",
            "switch",
            "Sets switches until the gateway restarts",
            Permission::Admin,
            switches,
        )
        .takes::<SwitchChanges>()
        .gives::<Switches>("the new state"),
    ]
}

/// The operator who makes a change: the holder of the admin token, with the name in the request.
pub(crate) struct AdminOperator(OperatorIdentity);

impl<S: Send + Sync> FromRequestParts<S> for AdminOperator {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        // A caller in this process sets its operator itself; no request from outside can set this extension.
        if let Some(by) = parts.extensions.get::<OperatorIdentity>() {
            return Ok(Self(by.clone()));
        }
        let name = named(&parts.headers).unwrap_or("admin");
        Ok(Self(OperatorIdentity::new(name, surface(&parts.headers))))
    }
}

/// Returns the surface of Steadfast that the request names. No decision depends on it.
fn surface(headers: &HeaderMap) -> OperatorSurface {
    match headers.get(SURFACE).map(HeaderValue::as_bytes) {
        Some(b"cli") => OperatorSurface::Cli,
        Some(b"dashboard") => OperatorSurface::Dashboard,
        Some(_) | None => OperatorSurface::Http,
    }
}

/// The header with the name of the operator.
const OPERATOR: &str = "X-Operator";
const OPERATOR_HELP: &str = "your name, for the audit log; the default is `admin`";
/// The header in which the command line and the dashboard name themselves.
const SURFACE: &str = "Steadfast-Surface";
const SURFACE_HELP: &str = "`cli` or `dashboard`, for the audit log";

fn named(headers: &HeaderMap) -> Option<&str> {
    headers.get(OPERATOR)?.to_str().ok().filter(|name| !name.trim().is_empty())
}

/// The tenant of a request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantQuery {
    /// The tenant. By default, data of no tenant.
    #[schemars(with = "Option<TenantId>")]
    tenant: Option<String>,
}

impl TenantQuery {
    /// Creates the parameter from a name.
    pub(crate) const fn of(tenant: Option<String>) -> Self {
        Self { tenant }
    }

    /// Parses the tenant.
    pub(crate) fn read(self) -> Result<Option<TenantId>, ApiProblem> {
        let tenant = self.tenant.map(TenantId::new).transpose();
        tenant.map_err(|reason| ApiProblem::bad_request(format!("tenant: {reason}")))
    }
}

/// The decision about an approval request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "decision", rename_all = "snake_case", deny_unknown_fields)]
pub enum ApprovalAnswer {
    /// Approve this call.
    Once {},
    /// Approve equal calls in this session.
    Session {},
    /// Approve equal calls for this time.
    Time {
        /// The duration: `30m`, `8h`.
        #[serde(rename = "for")]
        #[schemars(with = "DurationText")]
        span: String,
    },
    /// Approve this call, and let the tool recover trust from now on.
    Recover {},
    /// Deny this call.
    Deny {},
}

/// A duration as text: `30m`, `8h`.
struct DurationText;

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{1,11}(ms|s|m|h|d)$" })
    }
}

/// The response to a decision.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ApprovalAnswerResponse {
    /// True if such calls may run now.
    pub granted: bool,
}

pub(crate) async fn approve(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    PathParam(id): PathParam,
    QueryParams(query): QueryParams<TenantQuery>,
    JsonBody(answer): JsonBody<ApprovalAnswer>,
) -> HandlerResult {
    let engine = inner.steadfast.engine();
    let tenant = query.read()?;
    let number = id.parse().map(ParkedRequestId).map_err(|_| ApiProblem::no_such("pending approval", &id))?;
    let decision = match answer {
        ApprovalAnswer::Once {} => ApprovalDecision::Once,
        ApprovalAnswer::Session {} => ApprovalDecision::Session,
        ApprovalAnswer::Recover {} => ApprovalDecision::Recover,
        ApprovalAnswer::Deny {} => ApprovalDecision::Deny,
        ApprovalAnswer::Time { span } => ApprovalDecision::Time { until: end_of(&span, engine)? },
    };
    match engine.admin().decide(tenant.as_ref(), number, decision, Grantor::Operator, &by).await {
        Ok(decided) => {
            let granted = matches!(decided, DecisionEffect::Granted { .. });
            Ok(shown(StatusCode::OK, &ApprovalAnswerResponse { granted }))
        }
        Err(ApprovalError::Store(error)) => Err(error.into()),
        Err(ApprovalError::NotDecided(reason)) if reason.is_gone() => Err(ApiProblem::not_found(format!(
            "there is no pending approval `{}`: it was answered, has expired, or was dropped for newer ones",
            number.0
        ))),
        Err(ApprovalError::NotDecided(reason)) => {
            Err(ApiProblem::new(StatusCode::CONFLICT, "conflict", reason.to_string()))
        }
    }
}

/// A change of a circuit breaker.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "to", rename_all = "snake_case", deny_unknown_fields)]
pub enum BreakerCommand {
    /// Force it open, for this time or until it is reset.
    Open {
        /// The duration: `30m`, `8h`.
        #[serde(rename = "for")]
        #[schemars(with = "Option<DurationText>")]
        span: Option<String>,
    },
    /// Close it and reset its counts.
    Reset {},
}

pub(crate) async fn breaker(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    PathParam(key): PathParam,
    QueryParams(query): QueryParams<TenantQuery>,
    JsonBody(turn): JsonBody<BreakerCommand>,
) -> HandlerResult {
    let key: BreakerKey =
        key.parse().map_err(|reason| ApiProblem::no_such("breaker", &key).because(&reason))?;
    let breaker_view = turned(inner.steadfast.engine(), query.read()?.as_ref(), &key, turn, &by).await?;
    Ok(shown(StatusCode::OK, &breaker_view))
}

async fn turned(
    engine: &Engine,
    tenant: Option<&TenantId>,
    key: &BreakerKey,
    turn: BreakerCommand,
    by: &OperatorIdentity,
) -> Result<BreakerChange, ApiProblem> {
    let change = match turn {
        BreakerCommand::Reset {} => BreakerOverride::Reset,
        BreakerCommand::Open { span: None } => BreakerOverride::Open { until: None },
        BreakerCommand::Open { span: Some(span) } => {
            BreakerOverride::Open { until: Some(end_of(&span, engine)?) }
        }
    };
    Ok(engine.admin().update_breaker(tenant, key, change, by).await)
}

/// The maximum number of digits in a duration, so that it fits in every unit.
const LONGEST_NUMBER: usize = 11;

/// Returns the time at which a duration from now ends.
fn end_of(span: &str, engine: &Engine) -> Result<Timestamp, ApiProblem> {
    let wrong = || ApiProblem::misread(format!("for: `{span}` is not a valid duration, such as 30m or 8h"));
    let is_short = span.bytes().take_while(u8::is_ascii_digit).count() <= LONGEST_NUMBER;
    let length = parse_span(span).filter(|_| is_short && !span.contains(' ')).ok_or_else(wrong)?;
    Ok(engine.now() + length)
}

/// A session to release from the loop guard.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardResetRequest {
    /// The session key. Without it, calls of no session.
    session: Option<SessionKey>,
}

/// The loops that are no longer stopped.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GuardResetResponse {
    /// The former state of each.
    pub freed: Vec<ActiveRefusal>,
}

pub(crate) async fn guard(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    QueryParams(query): QueryParams<TenantQuery>,
    JsonBody(GuardResetRequest { session }): JsonBody<GuardResetRequest>,
) -> HandlerResult {
    let tenant = query.read()?;
    let freed = inner.steadfast.engine().admin().reset_guard(tenant.as_ref(), session.as_ref(), &by).await?;
    Ok(shown(StatusCode::OK, &GuardResetResponse { freed }))
}

/// An action on the reliability of tools.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum DebugAction {
    /// Force the circuit breaker of a tool open, for this time or until it is reset.
    ForceOpen {
        /// The tool: `namespace/tool`.
        #[schemars(with = "NamedTool")]
        tool: String,
        /// The duration: `30m`, `8h`.
        #[serde(rename = "for")]
        #[schemars(with = "Option<DurationText>")]
        span: Option<String>,
    },
    /// Reset the circuit breaker of a tool.
    Reset {
        /// The tool: `namespace/tool`.
        #[schemars(with = "NamedTool")]
        tool: String,
    },
    /// Delete records: one by its key, for any tenant, or the finished ones of a tool or session.
    #[schemars(extend("anyOf" = [
        { "required": ["key"], "properties": {
            "key": { "type": "string" }, "tool": { "type": "null" }, "session": { "type": "null" },
        } },
        { "required": ["tool"], "properties": { "tool": { "type": "string" }, "key": { "type": "null" } } },
        { "required": ["session"], "properties": { "session": { "type": "string" }, "key": { "type": "null" } } },
    ]))]
    Flush {
        /// The record with this key, in any state.
        #[schemars(with = "Option<Digest>")]
        key: Option<String>,
        /// The finished records of this tool: `namespace/tool`.
        #[schemars(with = "Option<NamedTool>")]
        tool: Option<String>,
        /// The finished records of this session.
        #[schemars(with = "Option<SessionKey>")]
        session: Option<String>,
    },
}

/// The result of the action.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DebugResult {
    /// The new state of the circuit breaker.
    Breaker(Box<BreakerChange>),
    /// The number of deleted records.
    Forgotten(u64),
}

pub(crate) async fn debug(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    QueryParams(query): QueryParams<TenantQuery>,
    JsonBody(debug): JsonBody<DebugAction>,
) -> HandlerResult {
    let engine = inner.steadfast.engine();
    let breaker = async |tool: &str, tenant: TenantQuery, turn| -> Result<DebugResult, ApiProblem> {
        let key = BreakerKey::Tool(queries::tool(tool).map_err(ApiProblem::misread)?);
        let breaker_view = turned(engine, tenant.read()?.as_ref(), &key, turn, &by).await?;
        Ok(DebugResult::Breaker(Box::new(breaker_view)))
    };
    let done = match debug {
        DebugAction::ForceOpen { tool, span } => breaker(&tool, query, BreakerCommand::Open { span }).await?,
        DebugAction::Reset { tool } => breaker(&tool, query, BreakerCommand::Reset {}).await?,
        DebugAction::Flush { key: None, tool: None, session: None } => {
            return Err(ApiProblem::bad_request("specify key, tool or session"));
        }
        DebugAction::Flush { key, tool, session } => {
            // A key identifies its record without a tenant.
            let tenant = if key.is_some() { None } else { query.tenant };
            let which = FlushQuery { key, tool, session, tenant };
            DebugResult::Forgotten(engine.admin().flush(&which.read()?, &by).await?)
        }
    };
    Ok(shown(StatusCode::OK, &done))
}

/// The response to a change of trust.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TrustChangeResponse {
    /// The tools that were changed. Empty for a domain and for `*`.
    pub tools: Vec<String>,
    /// The number of tools, signatures and domains whose trust has changed.
    pub changes: usize,
}

pub(crate) async fn trust(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    PathParam(key): PathParam,
    QueryParams(query): QueryParams<TenantQuery>,
) -> HandlerResult {
    let (engine, tenant) = (inner.steadfast.engine(), query.read()?);
    let selection = TrustSelection::by(engine, tenant.as_ref(), &key)?;
    let mut changes = 0;
    for target in selection.targets() {
        changes += engine.admin().reset_trust(tenant.as_ref(), target, &by).await?.len();
    }
    Ok(shown(StatusCode::OK, &TrustChangeResponse { tools: selection.tools(), changes }))
}

/// The target of a request: `namespace/tool` (with the slash encoded), `domain:HOST`, or `*` for everything.
enum TrustSelection {
    Tools(Vec<ToolRef>),
    Domain(Domain),
    Everything,
}

impl TrustSelection {
    fn by(engine: &Engine, tenant: Option<&TenantId>, key: &str) -> Result<Self, ApiProblem> {
        let unknown = || ApiProblem::no_such("tool or domain with failures that count", key);
        if key == "*" {
            return Ok(Self::Everything);
        }
        if let Some(name) = key.strip_prefix("domain:") {
            let is_it = |one: &TrustStatus| {
                one.standing.scope == TrustScope::Domain
                    && one.standing.domain.as_ref().is_some_and(|domain| domain.as_str() == name)
            };
            let found = engine.admin().trust(tenant).into_iter().find(is_it);
            return found.and_then(|one| one.standing.domain).map(Self::Domain).ok_or_else(unknown);
        }
        let known = engine.admin().tools_with_trust_history(tenant, key);
        if known.is_empty() { Err(unknown()) } else { Ok(Self::Tools(known)) }
    }

    fn targets(&self) -> Vec<TrustTarget<'_>> {
        match self {
            Self::Tools(tools) => tools.iter().map(TrustTarget::Tool).collect(),
            Self::Domain(domain) => vec![TrustTarget::Domain(domain)],
            Self::Everything => vec![TrustTarget::All],
        }
    }

    fn tools(&self) -> Vec<String> {
        match self {
            Self::Tools(tools) => tools.iter().map(ToString::to_string).collect(),
            Self::Domain(_) | Self::Everything => Vec::new(),
        }
    }
}

pub(crate) async fn recover(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    PathParam(key): PathParam,
    QueryParams(query): QueryParams<TenantQuery>,
) -> HandlerResult {
    let (engine, tenant) = (inner.steadfast.engine(), query.read()?);
    let selection = TrustSelection::by(engine, tenant.as_ref(), &key)?;
    let mut changes = 0;
    for target in selection.targets() {
        changes += engine.admin().approve_recovery(tenant.as_ref(), target, &by).await?.len();
    }
    if changes == 0 && !matches!(selection, TrustSelection::Everything) {
        return Err(ApiProblem::no_such("escalated tool or domain", &key));
    }
    Ok(shown(StatusCode::OK, &TrustChangeResponse { tools: selection.tools(), changes }))
}

/// The records to delete: one by its key, or the finished ones that match all other parameters.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    { "required": ["key"], "maxProperties": 1 },
    { "minProperties": 1, "properties": { "key": false } },
]))]
pub struct FlushQuery {
    /// The record with this key, in any state.
    #[schemars(with = "Option<Digest>")]
    key: Option<String>,
    /// The finished records of this tool: `namespace/tool`.
    #[schemars(with = "Option<NamedTool>")]
    tool: Option<String>,
    /// The finished records of this session.
    #[schemars(with = "Option<SessionKey>")]
    session: Option<String>,
    /// The finished records of this tenant.
    #[schemars(with = "Option<TenantId>")]
    tenant: Option<String>,
}

/// The response to a deletion of records.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct FlushResponse {
    /// The number of deleted records.
    pub forgotten: u64,
}

pub(crate) async fn flush(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    QueryParams(which): QueryParams<FlushQuery>,
) -> HandlerResult {
    let forgotten = inner.steadfast.engine().admin().flush(&which.read()?, &by).await?;
    Ok(shown(StatusCode::OK, &FlushResponse { forgotten }))
}

impl FlushQuery {
    /// Returns the selection, or the error.
    fn read(self) -> Result<FlushTarget, ApiProblem> {
        let bad = |reason: String| ApiProblem::misread(reason);
        match self {
            Self { key: Some(key), tool: None, session: None, tenant: None } => {
                Ok(FlushTarget::Key(read_key(&key).map_err(bad)?))
            }
            Self { key: None, tool: None, session: None, tenant: None } => {
                Err(bad("specify key=, tool=, session= or tenant=".to_owned()))
            }
            Self { key: None, tool, session, tenant } => Ok(FlushTarget::Finished(RecordFilter {
                tool: tool.as_deref().map(queries::tool).transpose().map_err(bad)?,
                session: session
                    .map(SessionKey::new)
                    .transpose()
                    .map_err(|reason| bad(format!("session: {reason}")))?,
                tenant: tenant
                    .map(TenantId::new)
                    .transpose()
                    .map_err(|reason| bad(format!("tenant: {reason}")))?,
                open: false,
            })),
            Self { key: Some(_), .. } => Err(bad("key= cannot be combined with other parameters".to_owned())),
        }
    }
}

/// The response to accepting a loss of records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AcceptedLoss {
    /// The accepted loss. `null` if no record was lost.
    pub accepted: Option<RecordLoss>,
}

pub(crate) async fn accept_loss(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
) -> HandlerResult {
    let accepted = inner.steadfast.engine().admin().accept_loss(&by).await?;
    Ok(shown(StatusCode::OK, &AcceptedLoss { accepted }))
}

/// The resolution of an unknown outcome.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// True if the call took effect.
    ran: bool,
}

/// The response to a resolution.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ResolveResponse {
    /// Always true. A failed request returns an error instead.
    pub resolved: bool,
}

pub(crate) async fn resolve(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    PathParam(key): PathParam,
    JsonBody(ResolveRequest { ran }): JsonBody<ResolveRequest>,
) -> HandlerResult {
    let name = key;
    let key = read_key(&name).map_err(|reason| ApiProblem::no_such("record", &name).because(&reason))?;
    let resolution = if ran { Resolution::Ran } else { Resolution::DidNotRun };
    match inner.steadfast.engine().admin().resolve(key, resolution, &by).await? {
        ResolveVerdict::Resolved => Ok(shown(StatusCode::OK, &ResolveResponse { resolved: true })),
        ResolveVerdict::NotUnknown => Err(ApiProblem::no_such("record with an unknown outcome", &name)),
        ResolveVerdict::NotSettled(left) => Err(not_settled(left)),
    }
}

/// Builds the error for a call that cannot be resolved as not run yet.
fn not_settled(left: Option<Duration>) -> ApiProblem {
    let problem = |when: &str| {
        let message =
            format!("the call may still take effect, so it cannot count as not run yet; try again {when}");
        ApiProblem::new(StatusCode::CONFLICT, "not_settled", message)
    };
    match left {
        Some(left) => problem(&format!("in {} s", left.as_millis().div_ceil(1000))).after(left),
        None => problem(
            "once its server process has answered or ended: `GET /v1/records` shows it as settled then",
        ),
    }
}

fn read_key(text: &str) -> Result<RecordKey, String> {
    let digest = Digest::from_hex(text);
    digest.map(RecordKey).ok_or_else(|| "a key is 64 hexadecimal digits".to_owned())
}

/// The switches to change. Absent ones keep their value.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the mechanisms, by name")]
pub struct SwitchChanges {
    /// All mechanisms.
    pub all: Option<EnforcementMode>,
    pub dedupe: Option<EnforcementMode>,
    pub retry: Option<EnforcementMode>,
    pub breaker: Option<EnforcementMode>,
    pub guard: Option<EnforcementMode>,
    pub trust: Option<EnforcementMode>,
    /// True to compute keys for calls without one.
    pub derive: Option<bool>,
}

pub(crate) async fn switches(
    Shared(State(inner)): Shared<State>,
    AdminOperator(by): AdminOperator,
    JsonBody(changes): JsonBody<SwitchChanges>,
) -> Response {
    let steadfast = &inner.steadfast;
    let SwitchChange { before, after } = steadfast.switch(|before| Switches {
        all: changes.all.unwrap_or(before.all),
        dedupe: changes.dedupe.unwrap_or(before.dedupe),
        retry: changes.retry.unwrap_or(before.retry),
        breaker: changes.breaker.unwrap_or(before.breaker),
        guard: changes.guard.unwrap_or(before.guard),
        trust: changes.trust.unwrap_or(before.trust),
        derive: changes.derive.unwrap_or(before.derive),
    });
    let words = |switches: Switches| serde_json::to_string(&switches).ok();
    let done = AuditChange {
        deed: AuditAction::Switched,
        tenant: None,
        on: "switches".to_owned(),
        before: words(before),
        after: words(after),
    };
    steadfast.engine().admin().audited(&by, done).await;
    shown(StatusCode::OK, &after)
}

//! What a person changes while it runs. Every change is in the audit, with who made it.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::{FromRequestParts, State as Shared};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use steadfast::approval::{Decided, Decision, Grantor, ParkedId};
use steadfast::guard::Stopped;
use steadfast::{AnswerError, Engine, Switched, Switches, parse_span};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{RecordLoss, Resolution, ResolveVerdict};
use steadfast_core::id::{Digest, Domain, SessionKey, TenantId, ToolRef};
use steadfast_core::key::Key;
use steadfast_core::policy::Mode;
use steadfast_core::trust::{Scope, Target, TrustStatus};
use steadfast_executor::{BreakerKey, By, Deed, Done, Steer, Steered, Surface};
use steadfast_store::{Flush, Selection};

use crate::access::Who;
use crate::answer::shown;
use crate::asked::{Asked, Named, Said};
use crate::endpoint::Endpoint;
use crate::look::{self, NamedTool};
use crate::problem::Problem;
use crate::{Answered, State};

/// What a person can change. All of it is in the audit, with who and from where.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let signed = |endpoint: Endpoint| endpoint.heeds(OPERATOR, WHO).heeds(SURFACE, WHERE);
    rows().into_iter().map(signed).collect()
}

fn rows() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/breakers/{key}",
            "steerBreaker",
            "Opens or resets one",
            Who::Admin,
            breaker,
        )
        .asks::<Whose>()
        .takes::<Turn>()
        .gives::<Steered>("how it stands now"),
        Endpoint::new(
            Method::POST,
            "/v1/trust/{key}/reset",
            "resetTrust",
            "Forgives a tool",
            Who::Admin,
            trust,
        )
        .asks::<Whose>()
        .gives::<TrustChanged>("it is trusted again")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/trust/{key}/recover",
            "approveRecovery",
            "Lets a tool earn its trust back",
            Who::Admin,
            recover,
        )
        .asks::<Whose>()
        .gives::<TrustChanged>("it runs without approval, and is trusted after enough successes")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/approvals/{id}",
            "answerApproval",
            "Answers one",
            Who::Admin,
            approve,
        )
        .asks::<Whose>()
        .takes::<Answer>()
        .gives::<Answering>("it is answered")
        .or_conflict()
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/guard/reset",
            "resetGuard",
            "Sets a conversation free that the guard stops",
            Who::Admin,
            guard,
        )
        .asks::<Whose>()
        .takes::<Freeing>()
        .gives::<Freed>("it is free")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/debug/tool-reliability",
            "debugToolReliability",
            "The same by one name: holds a breaker open, resets one, forgets records",
            Who::Admin,
            debug,
        )
        .asks::<Whose>()
        .takes::<Debug>()
        .gives::<Debugged>("it is done")
        .reads_the_store(),
        Endpoint::new(Method::DELETE, "/v1/records", "flush", "Forgets records", Who::Admin, flush)
            .asks::<Forgotten>()
            .gives::<Removed>("they are forgotten")
            .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/state/accept",
            "acceptLoss",
            "Accepts that records are lost, so that calls with a key run again",
            Who::Admin,
            accept_loss,
        )
        .gives::<AcceptedLoss>("the loss that is accepted, if there was one")
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/records/{key}/resolve",
            "resolve",
            "Resolves an unknown outcome",
            Who::Admin,
            resolve,
        )
        .takes::<ResolveRequest>()
        .gives::<ResolveResponse>("it counts as you say")
        .or_conflict()
        .reads_the_store(),
        Endpoint::new(
            Method::PUT,
            "/v1/switches",
            "switch",
            "Turns switches, until we are started again",
            Who::Admin,
            switches,
        )
        .takes::<Switching>()
        .gives::<Switches>("how they stand now"),
    ]
}

/// Who steers: whoever has the admin token, by the name that they give.
pub(crate) struct Admin(By);

impl<S: Send + Sync> FromRequestParts<S> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Whoever asks within this process says itself who it is; no request from outside can bring that.
        if let Some(by) = parts.extensions.get::<By>() {
            return Ok(Self(by.clone()));
        }
        let name = named(&parts.headers).unwrap_or("admin");
        Ok(Self(By::new(name, surface(&parts.headers))))
    }
}

/// Which of our own surfaces asks, as it says itself. Nothing is decided by it.
fn surface(headers: &HeaderMap) -> Surface {
    match headers.get(SURFACE).map(HeaderValue::as_bytes) {
        Some(b"cli") => Surface::Cli,
        Some(b"dashboard") => Surface::Dashboard,
        Some(_) | None => Surface::Http,
    }
}

/// The header in which a person says who they are.
const OPERATOR: &str = "X-Operator";
const WHO: &str = "your name, for the audit; `admin` without it";
/// The header in which the command line and the page say what they are.
const SURFACE: &str = "Steadfast-Surface";
const WHERE: &str = "`cli` or `dashboard`, where it is one of ours that asks, for the audit";

fn named(headers: &HeaderMap) -> Option<&str> {
    headers.get(OPERATOR)?.to_str().ok().filter(|name| !name.trim().is_empty())
}

/// Whose data it is about.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Whose {
    /// That of this tenant; otherwise what belongs to none.
    #[schemars(with = "Option<TenantId>")]
    tenant: Option<String>,
}

impl Whose {
    /// The tenant of this name.
    pub(crate) const fn of(tenant: Option<String>) -> Self {
        Self { tenant }
    }

    /// The tenant, if one is named.
    pub(crate) fn read(self) -> Result<Option<TenantId>, Problem> {
        let tenant = self.tenant.map(TenantId::new).transpose();
        tenant.map_err(|why| Problem::bad_request(format!("tenant: {why}")))
    }
}

/// A person's answer to a request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "decision", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// This call may run.
    Once {},
    /// Such calls may run in this conversation.
    Session {},
    /// Such calls may run for so long.
    Time {
        /// `30m`, `8h`.
        #[serde(rename = "for")]
        #[schemars(with = "Span")]
        span: String,
    },
    /// This call may run, and the tool that asks may earn its trust back from now on.
    Recover {},
    /// It may not run.
    Deny {},
}

/// A length of time as it is written: `30m`, `8h`.
struct Span;

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{1,11}(ms|s|m|h|d)$" })
    }
}

/// What came of an answer.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Answering {
    /// Whether such calls may run now.
    pub granted: bool,
}

pub(crate) async fn approve(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Named(id): Named,
    Asked(whose): Asked<Whose>,
    Said(answer): Said<Answer>,
) -> Answered {
    let engine = inner.steadfast.engine();
    let tenant = whose.read()?;
    let number = id.parse().map(ParkedId).map_err(|_| Problem::no_such("pending approval", &id))?;
    let decision = match answer {
        Answer::Once {} => Decision::Once,
        Answer::Session {} => Decision::Session,
        Answer::Recover {} => Decision::Recover,
        Answer::Deny {} => Decision::Deny,
        Answer::Time { span } => Decision::Time { until: end_of(&span, engine)? },
    };
    match engine.decide(tenant.as_ref(), number, decision, Grantor::Operator, &by).await {
        Ok(decided) => {
            let granted = matches!(decided, Decided::Granted { .. });
            Ok(shown(StatusCode::OK, &Answering { granted }))
        }
        Err(AnswerError::Store(error)) => Err(error.into()),
        Err(AnswerError::NotDecided(why)) if why.is_gone() => Err(Problem::not_found(format!(
            "there is no pending approval `{}`: it was answered, it has expired, or it made room for newer ones",
            number.0
        ))),
        Err(AnswerError::NotDecided(why)) => {
            Err(Problem::new(StatusCode::CONFLICT, "conflict", why.to_string()))
        }
    }
}

/// What a breaker shall do.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "to", rename_all = "snake_case", deny_unknown_fields)]
pub enum Turn {
    /// Refuse every call, for so long or until it is reset.
    Open {
        /// `30m`, `8h`.
        #[serde(rename = "for")]
        #[schemars(with = "Option<Span>")]
        span: Option<String>,
    },
    /// Let calls through, and forget what was counted.
    Reset {},
}

pub(crate) async fn breaker(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Named(key): Named,
    Asked(whose): Asked<Whose>,
    Said(turn): Said<Turn>,
) -> Answered {
    let key: BreakerKey = key.parse().map_err(|why| Problem::no_such("breaker", &key).because(&why))?;
    let steered = turned(inner.steadfast.engine(), whose.read()?.as_ref(), &key, turn, &by).await?;
    Ok(shown(StatusCode::OK, &steered))
}

async fn turned(
    engine: &Engine,
    tenant: Option<&TenantId>,
    key: &BreakerKey,
    turn: Turn,
    by: &By,
) -> Result<Steered, Problem> {
    let steer = match turn {
        Turn::Reset {} => Steer::Reset,
        Turn::Open { span: None } => Steer::Open { until: None },
        Turn::Open { span: Some(span) } => Steer::Open { until: Some(end_of(&span, engine)?) },
    };
    Ok(engine.steer_breaker(tenant, key, steer, by).await)
}

/// The most digits of a span, so that all of them fit in every unit.
const LONGEST_NUMBER: usize = 11;

/// When a span ends that begins now.
fn end_of(span: &str, engine: &Engine) -> Result<Timestamp, Problem> {
    let wrong = || Problem::misread(format!("for: `{span}` is no length of time, such as 30m or 8h"));
    let is_short = span.bytes().take_while(u8::is_ascii_digit).count() <= LONGEST_NUMBER;
    let length = parse_span(span).filter(|_| is_short && !span.contains(' ')).ok_or_else(wrong)?;
    Ok(engine.now() + length)
}

/// A conversation that is set free.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Freeing {
    /// Which one; nothing for the calls that belong to none.
    session: Option<SessionKey>,
}

/// What was stopped in a conversation and is not any more.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Freed {
    /// Each as it stood.
    pub freed: Vec<Stopped>,
}

pub(crate) async fn guard(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Asked(whose): Asked<Whose>,
    Said(Freeing { session }): Said<Freeing>,
) -> Answered {
    let tenant = whose.read()?;
    let freed = inner.steadfast.engine().reset_guard(tenant.as_ref(), session.as_ref(), &by).await?;
    Ok(shown(StatusCode::OK, &Freed { freed }))
}

/// What is to be done about the reliability of tools.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Debug {
    /// Refuse every call of a tool, for so long or until it is reset.
    ForceOpen {
        /// `namespace/tool`.
        #[schemars(with = "NamedTool")]
        tool: String,
        /// `30m`, `8h`.
        #[serde(rename = "for")]
        #[schemars(with = "Option<Span>")]
        span: Option<String>,
    },
    /// Let the calls of a tool through again.
    Reset {
        /// `namespace/tool`.
        #[schemars(with = "NamedTool")]
        tool: String,
    },
    /// Forget records: of a key, which names one whosever it is, or the finished ones of a tool or conversation.
    #[schemars(extend("anyOf" = [
        { "required": ["key"], "properties": {
            "key": { "type": "string" }, "tool": { "type": "null" }, "session": { "type": "null" },
        } },
        { "required": ["tool"], "properties": { "tool": { "type": "string" }, "key": { "type": "null" } } },
        { "required": ["session"], "properties": { "session": { "type": "string" }, "key": { "type": "null" } } },
    ]))]
    Flush {
        /// This one, whatever became of it.
        #[schemars(with = "Option<Digest>")]
        key: Option<String>,
        /// The finished ones of this tool: `namespace/tool`.
        #[schemars(with = "Option<NamedTool>")]
        tool: Option<String>,
        /// The finished ones of this conversation.
        #[schemars(with = "Option<SessionKey>")]
        session: Option<String>,
    },
}

/// What was done.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Debugged {
    /// How the breaker stands now.
    Breaker(Box<Steered>),
    /// How many records were forgotten.
    Forgotten(u64),
}

pub(crate) async fn debug(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Asked(whose): Asked<Whose>,
    Said(debug): Said<Debug>,
) -> Answered {
    let engine = inner.steadfast.engine();
    let breaker = async |tool: &str, tenant: Whose, turn| -> Result<Debugged, Problem> {
        let key = BreakerKey::Tool(look::tool(tool).map_err(Problem::misread)?);
        let steered = turned(engine, tenant.read()?.as_ref(), &key, turn, &by).await?;
        Ok(Debugged::Breaker(Box::new(steered)))
    };
    let done = match debug {
        Debug::ForceOpen { tool, span } => breaker(&tool, whose, Turn::Open { span }).await?,
        Debug::Reset { tool } => breaker(&tool, whose, Turn::Reset {}).await?,
        Debug::Flush { key: None, tool: None, session: None } => {
            return Err(Problem::bad_request("say which: key, tool or session"));
        }
        Debug::Flush { key, tool, session } => {
            // A key names its record, whosever it is.
            let tenant = if key.is_some() { None } else { whose.tenant };
            let which = Forgotten { key, tool, session, tenant };
            Debugged::Forgotten(engine.flush(&which.read()?, &by).await?)
        }
    };
    Ok(shown(StatusCode::OK, &done))
}

/// What was changed in the trust of tools.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TrustChanged {
    /// The tools that were changed. Empty for a domain and for `*`.
    pub tools: Vec<String>,
    /// The number of tools, signatures and domains whose trust has changed.
    pub changes: usize,
}

pub(crate) async fn trust(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Named(key): Named,
    Asked(whose): Asked<Whose>,
) -> Answered {
    let (engine, tenant) = (inner.steadfast.engine(), whose.read()?);
    let meant = Meant::by(engine, tenant.as_ref(), &key)?;
    let mut changes = 0;
    for target in meant.targets() {
        changes += engine.reset_trust(tenant.as_ref(), target, &by).await?.len();
    }
    Ok(shown(StatusCode::OK, &TrustChanged { tools: meant.tools(), changes }))
}

/// The target of a request: `namespace/tool` (with the slash encoded), `domain:HOST`, or `*` for everything.
enum Meant {
    Tools(Vec<ToolRef>),
    Domain(Domain),
    Everything,
}

impl Meant {
    fn by(engine: &Engine, tenant: Option<&TenantId>, key: &str) -> Result<Self, Problem> {
        let unknown = || Problem::no_such("tool or domain with failures that count", key);
        if key == "*" {
            return Ok(Self::Everything);
        }
        if let Some(name) = key.strip_prefix("domain:") {
            let is_it = |one: &TrustStatus| {
                one.standing.scope == Scope::Domain
                    && one.standing.domain.as_ref().is_some_and(|domain| domain.as_str() == name)
            };
            let found = engine.trust(tenant).into_iter().find(is_it);
            return found.and_then(|one| one.standing.domain).map(Self::Domain).ok_or_else(unknown);
        }
        let known = engine.tools_with_a_past(tenant, key);
        if known.is_empty() { Err(unknown()) } else { Ok(Self::Tools(known)) }
    }

    fn targets(&self) -> Vec<Target<'_>> {
        match self {
            Self::Tools(tools) => tools.iter().map(Target::Tool).collect(),
            Self::Domain(domain) => vec![Target::Domain(domain)],
            Self::Everything => vec![Target::All],
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
    Admin(by): Admin,
    Named(key): Named,
    Asked(whose): Asked<Whose>,
) -> Answered {
    let (engine, tenant) = (inner.steadfast.engine(), whose.read()?);
    let meant = Meant::by(engine, tenant.as_ref(), &key)?;
    let mut changes = 0;
    for target in meant.targets() {
        changes += engine.approve_recovery(tenant.as_ref(), target, &by).await?.len();
    }
    if changes == 0 && !matches!(meant, Meant::Everything) {
        return Err(Problem::no_such("escalated tool or domain", &key));
    }
    Ok(shown(StatusCode::OK, &TrustChanged { tools: meant.tools(), changes }))
}

/// Which records are forgotten: one by its key, or the finished ones that fit everything else that is named.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    { "required": ["key"], "maxProperties": 1 },
    { "minProperties": 1, "properties": { "key": false } },
]))]
pub struct Forgotten {
    /// This one, whatever became of it.
    #[schemars(with = "Option<Digest>")]
    key: Option<String>,
    /// The finished ones of this tool: `namespace/tool`.
    #[schemars(with = "Option<NamedTool>")]
    tool: Option<String>,
    /// The finished ones of this conversation.
    #[schemars(with = "Option<SessionKey>")]
    session: Option<String>,
    /// The finished ones of this tenant.
    #[schemars(with = "Option<TenantId>")]
    tenant: Option<String>,
}

/// How many records were forgotten.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Removed {
    /// So many.
    pub forgotten: u64,
}

pub(crate) async fn flush(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Asked(which): Asked<Forgotten>,
) -> Answered {
    let forgotten = inner.steadfast.engine().flush(&which.read()?, &by).await?;
    Ok(shown(StatusCode::OK, &Removed { forgotten }))
}

impl Forgotten {
    /// What is meant, or what is wrong with it.
    fn read(self) -> Result<Flush, Problem> {
        let bad = |why: String| Problem::misread(why);
        match self {
            Self { key: Some(key), tool: None, session: None, tenant: None } => {
                Ok(Flush::Key(read_key(&key).map_err(bad)?))
            }
            Self { key: None, tool: None, session: None, tenant: None } => {
                Err(bad("say which: key=, tool=, session= or tenant=".to_owned()))
            }
            Self { key: None, tool, session, tenant } => Ok(Flush::Finished(Selection {
                tool: tool.as_deref().map(look::tool).transpose().map_err(bad)?,
                session: session
                    .map(SessionKey::new)
                    .transpose()
                    .map_err(|why| bad(format!("session: {why}")))?,
                tenant: tenant.map(TenantId::new).transpose().map_err(|why| bad(format!("tenant: {why}")))?,
                open: false,
            })),
            Self { key: Some(_), .. } => Err(bad("key= stands alone".to_owned())),
        }
    }
}

/// A loss of records that is accepted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AcceptedLoss {
    /// The loss; nothing where no record was lost.
    pub accepted: Option<RecordLoss>,
}

pub(crate) async fn accept_loss(Shared(State(inner)): Shared<State>, Admin(by): Admin) -> Answered {
    let accepted = inner.steadfast.engine().accept_loss(&by).await?;
    Ok(shown(StatusCode::OK, &AcceptedLoss { accepted }))
}

/// What is known of a call whose outcome is not.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// Whether it had its effect.
    ran: bool,
}

/// That an unknown outcome is resolved.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ResolveResponse {
    /// Always true: otherwise there is another answer.
    pub resolved: bool,
}

pub(crate) async fn resolve(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Named(key): Named,
    Said(ResolveRequest { ran }): Said<ResolveRequest>,
) -> Answered {
    let name = key;
    let key = read_key(&name).map_err(|why| Problem::no_such("record", &name).because(&why))?;
    let resolution = if ran { Resolution::Ran } else { Resolution::DidNotRun };
    match inner.steadfast.engine().resolve(key, resolution, &by).await? {
        ResolveVerdict::Resolved => Ok(shown(StatusCode::OK, &ResolveResponse { resolved: true })),
        ResolveVerdict::NotUnknown => Err(Problem::no_such("record with an unknown outcome", &name)),
        ResolveVerdict::NotSettled(left) => Err(not_settled(left)),
    }
}

/// The call cannot count as not run yet.
fn not_settled(left: Option<Duration>) -> Problem {
    let problem = |when: &str| {
        let message =
            format!("the call may still take effect, so it cannot count as not run yet; try again {when}");
        Problem::new(StatusCode::CONFLICT, "not_settled", message)
    };
    match left {
        Some(left) => problem(&format!("in {} s", left.as_millis().div_ceil(1000))).after(left),
        None => problem(
            "once its server process has answered or ended: `GET /v1/records` shows it as settled then",
        ),
    }
}

fn read_key(text: &str) -> Result<Key, String> {
    let digest = Digest::from_hex(text);
    digest.map(Key).ok_or_else(|| "a key is 64 hexadecimal digits".to_owned())
}

/// Switches to turn; those that are not named stay.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the mechanisms, by name")]
pub struct Switching {
    /// Everything together.
    pub all: Option<Mode>,
    pub dedupe: Option<Mode>,
    pub retry: Option<Mode>,
    pub breaker: Option<Mode>,
    pub guard: Option<Mode>,
    pub trust: Option<Mode>,
    /// Whether keys are computed for calls that bring none.
    pub derive: Option<bool>,
}

pub(crate) async fn switches(
    Shared(State(inner)): Shared<State>,
    Admin(by): Admin,
    Said(wanted): Said<Switching>,
) -> Response {
    let steadfast = &inner.steadfast;
    let Switched { before, after } = steadfast.switch(|before| Switches {
        all: wanted.all.unwrap_or(before.all),
        dedupe: wanted.dedupe.unwrap_or(before.dedupe),
        retry: wanted.retry.unwrap_or(before.retry),
        breaker: wanted.breaker.unwrap_or(before.breaker),
        guard: wanted.guard.unwrap_or(before.guard),
        trust: wanted.trust.unwrap_or(before.trust),
        derive: wanted.derive.unwrap_or(before.derive),
    });
    let words = |switches: Switches| serde_json::to_string(&switches).ok();
    let done = Done {
        deed: Deed::Switched,
        tenant: None,
        on: "switches".to_owned(),
        before: words(before),
        after: words(after),
    };
    steadfast.engine().audited(&by, done).await;
    shown(StatusCode::OK, &after)
}

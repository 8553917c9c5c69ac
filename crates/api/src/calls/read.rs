//! From a request to an envelope that its caller may send.

use axum::extract::{FromRequestParts as _, Request};
use http::{HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use steadfast::Engine;
use steadfast_core::envelope::{CallEnvelope, IdempotencyKey, UnknownFields};
use steadfast_core::id::TenantId;
use steadfast_core::json::Limits;
use steadfast_mcp::delivery::Link;

use crate::access::Caller;
use crate::asked::{Asked, body};
use crate::problem::Problem;

/// The header that carries the caller's key, both ways.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// How an envelope is read.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallAsked {
    /// Whether fields that we do not know are mistakes; otherwise they are passed over.
    strict: Option<bool>,
}

/// What is known of a request beside its envelope.
pub(super) struct Wanted {
    pub(super) caller: Caller,
    pub(super) headers: HeaderMap,
    /// The connection, where we know it.
    pub(super) link: Option<Link>,
    /// The key that is used, as it goes back.
    pub(super) key: Option<HeaderValue>,
}

/// The call that a request asks for.
pub(super) async fn call(engine: &Engine, request: Request) -> Result<(Wanted, CallEnvelope), Problem> {
    let (mut parts, content) = request.into_parts();
    let Asked(asked) = Asked::<CallAsked>::from_request_parts(&mut parts, &()).await?;
    let text = body(content, Limits::ENVELOPE.bytes).await?;
    let unknown = match asked.strict {
        Some(true) => UnknownFields::Refuse,
        Some(false) | None => UnknownFields::Keep,
    };
    let mut envelope = engine
        .read(&text, unknown)
        .map_err(|error| Problem::bad(error.code().as_str(), error.to_string()))?;
    let caller = parts.extensions.remove::<Caller>().unwrap_or(Caller::Stranger);
    is_own(&caller, &envelope)?;
    take_key(&parts.headers, &mut envelope)?;
    let key = envelope.payload.idempotency_key.as_ref();
    // A key that no header can carry came in the envelope, and its caller has it there.
    let key = key.and_then(|key| HeaderValue::from_str(key.as_str()).ok());
    let link = parts.extensions.remove::<Link>();
    Ok((Wanted { caller, headers: parts.headers, link, key }, envelope))
}

/// The key may stand in the header, in the envelope, or in both if it is the same.
fn take_key(headers: &HeaderMap, envelope: &mut CallEnvelope) -> Result<(), Problem> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(header) = given.next() else { return Ok(()) };
    let wrong = |why: &str| Problem::bad_request(format!("Idempotency-Key: {why}"));
    if given.next().is_some() {
        return Err(wrong("it is given more than once"));
    }
    let text = header.to_str().map_err(|_| wrong("it must be of ASCII letters and signs"))?;
    let key = IdempotencyKey::new(text).map_err(|why| wrong(&why.to_string()))?;
    match &envelope.payload.idempotency_key {
        Some(other) if *other != key => {
            Err(wrong("payload.idempotencyKey is another one; give one of the two, or the same twice"))
        }
        Some(_) | None => {
            envelope.payload.idempotency_key = Some(key);
            Ok(())
        }
    }
}

/// Where callers are known by their token, that says who they are: an envelope that names another is refused.
fn is_own(caller: &Caller, envelope: &CallEnvelope) -> Result<(), Problem> {
    let Caller::Client(principal) = caller else { return Ok(()) };
    let (target, own) = (&envelope.target, principal.as_str());
    if target.actor_id.as_str() != own {
        return Err(Problem::forbidden(format!(
            "target.actorId: the token is that of `{own}`, and the envelope names another; write `{own}`"
        )));
    }
    bound_tenant(caller, target.tenant_id.clone()).map(drop)
}

/// Whose data a caller may speak of: the tokens of clients are of no tenant.
pub(crate) fn bound_tenant(caller: &Caller, wanted: Option<TenantId>) -> Result<Option<TenantId>, Problem> {
    match (caller, wanted) {
        (Caller::Client(_), Some(_)) => {
            Err(Problem::forbidden("the token is that of no tenant, and a tenant is named; leave it out"))
        }
        (_, wanted) => Ok(wanted),
    }
}

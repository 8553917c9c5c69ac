//! From a request to an envelope that its caller may send.

use std::borrow::Cow;

use axum::extract::{FromRequestParts as _, Request};
use http::{HeaderMap, HeaderValue};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use steadfast::Engine;
use steadfast_core::envelope::{CallEnvelope, IdempotencyKey, Target, UnknownFields};
use steadfast_core::id::TenantId;
use steadfast_core::json::Limits;
use steadfast_mcp::delivery::Link;
use steadfast_mcp::http::front::Principal;

use crate::access::{Caller, Sender};
use crate::asked::{Asked, body};
use crate::problem::Problem;

/// The header that carries the caller's key, both ways.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A key as a header can carry it.
pub(super) struct HeaderKey;

impl JsonSchema for HeaderKey {
    fn schema_name() -> Cow<'static, str> {
        "HeaderKey".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // White space around the value of a header does not belong to it.
        json_schema!({ "type": "string", "pattern": "^[!-~]([ -~]{0,254}[!-~])?$" })
    }
}

/// How an envelope is read.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallAsked {
    /// Whether fields that we do not know are mistakes, answered with 422; otherwise they are passed over.
    strict: Option<bool>,
}

impl CallAsked {
    pub(crate) fn unknown_fields(self) -> UnknownFields {
        match self.strict {
            Some(true) => UnknownFields::Refuse,
            Some(false) | None => UnknownFields::Keep,
        }
    }
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
    let caller = parts.extensions.remove::<Caller>().unwrap_or(Caller::Stranger);
    let Sender(sender) = parts.extensions.remove::<Sender>().unwrap_or_default();
    let mut envelope = engine
        .read_from(&text, asked.unknown_fields(), sender.as_ref())
        .map_err(|error| Problem::wrong_envelope(&error))?;
    make_own(&caller, &mut envelope.target)?;
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
            let why = "Idempotency-Key: payload.idempotencyKey is another one; give one of the two, or the same twice";
            Err(Problem::contradiction("bad_request", why))
        }
        Some(_) | None => {
            envelope.payload.idempotency_key = Some(key);
            Ok(())
        }
    }
}

/// Where callers are known by their token, that says who they are: an envelope that names another is refused.
pub(crate) fn make_own(caller: &Caller, target: &mut Target) -> Result<(), Problem> {
    target.tenant_id = bound_tenant(caller, target.tenant_id.take())?;
    match caller {
        Caller::Client(Principal { actor, .. }) if target.actor_id != *actor => {
            Err(Problem::forbidden(format!(
                "target.actorId: the token is that of `{actor}`, and the envelope names another; leave it out"
            )))
        }
        Caller::Client(_) | Caller::Admin | Caller::Viewer(_) | Caller::Local | Caller::Stranger => Ok(()),
    }
}

/// Whose data a caller speaks of: a client of that which its token is bound to.
pub(crate) fn bound_tenant(caller: &Caller, wanted: Option<TenantId>) -> Result<Option<TenantId>, Problem> {
    let Caller::Client(Principal { tenant: own, .. }) = caller else { return Ok(wanted) };
    match (own, wanted) {
        (_, None) => Ok(own.clone()),
        (Some(own), Some(wanted)) if *own == wanted => Ok(Some(wanted)),
        (Some(own), Some(_)) => Err(Problem::forbidden(format!(
            "the token is that of the tenant `{own}`, and another one is named; leave it out"
        ))),
        (None, Some(_)) => {
            Err(Problem::forbidden("the token is that of no tenant, and a tenant is named; leave it out"))
        }
    }
}

//! Reads and authorizes the envelope in a request.

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

/// The header with the idempotency key, in requests and responses.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// An idempotency key in a header.
pub(super) struct HeaderKey;

impl JsonSchema for HeaderKey {
    fn schema_name() -> Cow<'static, str> {
        "HeaderKey".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // White space around the value of a header is not part of it.
        json_schema!({ "type": "string", "pattern": "^[!-~]([ -~]{0,254}[!-~])?$" })
    }
}

/// Query parameters for reading an envelope.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallAsked {
    /// If true, unknown fields are refused with 422. By default they are ignored.
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

/// The parts of a request besides its envelope.
pub(super) struct Wanted {
    pub(super) caller: Caller,
    pub(super) headers: HeaderMap,
    /// The connection, if it is known.
    pub(super) link: Option<Link>,
    /// The idempotency key for the response header.
    pub(super) key: Option<HeaderValue>,
}

/// Reads the call of a request.
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
    // A key that is not valid in a header came in the envelope, where its caller has it.
    let key = key.and_then(|key| HeaderValue::from_str(key.as_str()).ok());
    let link = parts.extensions.remove::<Link>();
    Ok((Wanted { caller, headers: parts.headers, link, key }, envelope))
}

/// Takes the idempotency key from the header, the envelope, or both if they are equal.
fn take_key(headers: &HeaderMap, envelope: &mut CallEnvelope) -> Result<(), Problem> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(header) = given.next() else { return Ok(()) };
    let wrong = |why: &str| Problem::bad_request(format!("Idempotency-Key: {why}"));
    if given.next().is_some() {
        return Err(wrong("the header occurs more than once"));
    }
    let text = header.to_str().map_err(|_| wrong("it must consist of printable ASCII characters"))?;
    let key = IdempotencyKey::new(text).map_err(|why| wrong(&why.to_string()))?;
    match &envelope.payload.idempotency_key {
        Some(other) if *other != key => {
            let why = "Idempotency-Key: payload.idempotencyKey is different; send only one of them, or the same key in both";
            Err(Problem::contradiction("bad_request", why))
        }
        Some(_) | None => {
            envelope.payload.idempotency_key = Some(key);
            Ok(())
        }
    }
}

/// Sets the identity of a caller with a token. Refuses an envelope with a different one.
pub(crate) fn make_own(caller: &Caller, target: &mut Target) -> Result<(), Problem> {
    target.tenant_id = bound_tenant(caller, target.tenant_id.take())?;
    match caller {
        Caller::Client(Principal { actor, .. }) if target.actor_id != *actor => {
            Err(Problem::forbidden(format!(
                "target.actorId: the token belongs to `{actor}`, but the envelope names another actor; omit it"
            )))
        }
        Caller::Client(_) | Caller::Admin | Caller::Viewer(_) | Caller::Local | Caller::Stranger => Ok(()),
    }
}

/// Returns the tenant of a request: for a client, the tenant of its token.
pub(crate) fn bound_tenant(caller: &Caller, wanted: Option<TenantId>) -> Result<Option<TenantId>, Problem> {
    let Caller::Client(Principal { tenant: own, .. }) = caller else { return Ok(wanted) };
    match (own, wanted) {
        (_, None) => Ok(own.clone()),
        (Some(own), Some(wanted)) if *own == wanted => Ok(Some(wanted)),
        (Some(own), Some(_)) => Err(Problem::forbidden(format!(
            "the token belongs to the tenant `{own}`, but the request names another one; omit it"
        ))),
        (None, Some(_)) => {
            Err(Problem::forbidden("the token belongs to no tenant, but the request names one; omit it"))
        }
    }
}

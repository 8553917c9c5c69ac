//! Reads and authorizes the envelope in a request.

use std::borrow::Cow;

use axum::body::Bytes;
use axum::extract::{FromRequestParts as _, Request};
use http::{HeaderMap, HeaderValue};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use steadfast::Engine;
use steadfast_core::envelope::{CallEnvelope, CallerIdentity, IdempotencyKey, UnknownFieldPolicy};
use steadfast_json::JsonLimits;
use steadfast_mcp::delivery::DeliveryLink;
use steadfast_mcp::http::server::Principal;

use crate::access::{DefaultActor, Requester, bound_tenant};
use crate::extractors::{QueryParams, body};
use crate::problem::ApiProblem;

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
pub struct CallQuery {
    /// If true, unknown fields are refused with 422. By default they are ignored.
    strict: Option<bool>,
}

impl CallQuery {
    pub(crate) fn unknown_fields(self) -> UnknownFieldPolicy {
        match self.strict {
            Some(true) => UnknownFieldPolicy::Refuse,
            Some(false) | None => UnknownFieldPolicy::Keep,
        }
    }
}

/// The parts of a request besides its envelope.
pub(super) struct CallRequestParts {
    pub(super) caller: Requester,
    pub(super) headers: HeaderMap,
    /// The connection, if it is known.
    pub(super) link: Option<DeliveryLink>,
    /// The idempotency key for the response header.
    pub(super) key: Option<HeaderValue>,
}

/// Reads the call of a request.
pub(super) async fn call(
    engine: &Engine,
    request: Request,
) -> Result<(CallRequestParts, CallEnvelope), ApiProblem> {
    let (request, envelope, ()) =
        call_within(engine, request, JsonLimits::ENVELOPE.bytes, |text| Ok((text, ()))).await?;
    Ok((request, envelope))
}

/// Reads the call of a request whose body has more than the envelope. `split` returns the text of the envelope, and the
/// rest.
pub(super) async fn call_within<T>(
    engine: &Engine,
    request: Request,
    longest: usize,
    split: impl FnOnce(Bytes) -> Result<(Bytes, T), ApiProblem>,
) -> Result<(CallRequestParts, CallEnvelope, T), ApiProblem> {
    let (mut parts, content) = request.into_parts();
    let QueryParams(query) = QueryParams::<CallQuery>::from_request_parts(&mut parts, &()).await?;
    let (text, rest) = split(body(content, longest).await?)?;
    let caller = parts.extensions.remove::<Requester>().unwrap_or(Requester::Stranger);
    let DefaultActor(sender) = parts.extensions.remove::<DefaultActor>().unwrap_or_default();
    let mut envelope = engine
        .read_from(&text, query.unknown_fields(), sender.as_ref())
        .map_err(|error| ApiProblem::wrong_envelope(&error))?;
    apply_identity(&caller, &mut envelope.target)?;
    take_key(&parts.headers, &mut envelope)?;
    let key = envelope.payload.idempotency_key.as_ref();
    // A key that is not valid in a header came in the envelope, where its caller has it.
    let key = key.and_then(|key| HeaderValue::from_str(key.as_str()).ok());
    let link = parts.extensions.remove::<DeliveryLink>();
    Ok((CallRequestParts { caller, headers: parts.headers, link, key }, envelope, rest))
}

/// Takes the idempotency key from the header, the envelope, or both if they are equal.
fn take_key(headers: &HeaderMap, envelope: &mut CallEnvelope) -> Result<(), ApiProblem> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(header) = given.next() else { return Ok(()) };
    let wrong = |reason: &str| ApiProblem::bad_request(format!("Idempotency-Key: {reason}"));
    if given.next().is_some() {
        return Err(wrong("the header occurs more than once"));
    }
    let text = header.to_str().map_err(|_| wrong("it must consist of printable ASCII characters"))?;
    let key = IdempotencyKey::new(text).map_err(|reason| wrong(&reason.to_string()))?;
    match &envelope.payload.idempotency_key {
        Some(other) if *other != key => {
            let reason = "Idempotency-Key: payload.idempotencyKey is different; send only one of them, or the same key in both";
            Err(ApiProblem::contradiction("bad_request", reason))
        }
        Some(_) | None => {
            envelope.payload.idempotency_key = Some(key);
            Ok(())
        }
    }
}

/// Sets the identity of a caller with a token. Refuses an envelope with a different one.
pub(crate) fn apply_identity(caller: &Requester, target: &mut CallerIdentity) -> Result<(), ApiProblem> {
    target.tenant_id = bound_tenant(caller, target.tenant_id.take())?;
    match caller {
        Requester::Client(Principal { actor, .. }) if target.actor_id != *actor => {
            Err(ApiProblem::forbidden(format!(
                "target.actorId: the token belongs to `{actor}`, but the envelope names another actor; omit it"
            )))
        }
        Requester::Client(_)
        | Requester::Admin
        | Requester::Viewer(_)
        | Requester::Local
        | Requester::Stranger => Ok(()),
    }
}

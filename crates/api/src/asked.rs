//! How what was asked is read: the path, what stands behind the `?`, the body.

use std::error::Error as _;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::StatusCode;
use http::request::Parts;
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use steadfast_mcp::http::front::within;

use crate::problem::Problem;

/// The most bytes of what people say.
const LONGEST: usize = 64 << 10;
/// How long a body may take on its way. Whoever never ends it would keep a connection from others.
const PATIENCE: Duration = Duration::from_secs(30);

/// The one thing that a path names.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = named.map_err(|why| Problem::misread(format!("the path: {}", why.body_text())))?;
        Ok(Self(name))
    }
}

/// What stands behind the `?`, read as this.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Query(asked) = Query::<T>::try_from_uri(&parts.uri)
            .map_err(|why| Problem::misread(format!("the query cannot be read: {}", why.body_text())))?;
        Ok(Self(asked))
    }
}

/// A body in JSON, read as this.
pub(crate) struct Said<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Said<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let text = body(request.into_body(), LONGEST).await?;
        let said = serde_json::from_slice(&text);
        Ok(Self(said.map_err(|error| Problem::misread(format!("the body cannot be read: {error}")))?))
    }
}

/// The whole of a body, if it is not too long and comes in time.
pub(crate) async fn body(body: Body, longest: usize) -> Result<Bytes, Problem> {
    let too_large = || {
        let message = format!("the body is longer than {longest} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    };
    // Whoever says beforehand that it is too long is not waited for.
    if usize::try_from(body.size_hint().lower()).ok().is_none_or(|told| told > longest) {
        return Err(too_large());
    }
    let Some(read) = within(PATIENCE, to_bytes(body, longest)).await else {
        let message = format!("the body did not end within {} s", PATIENCE.as_secs());
        return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message));
    };
    read.map_err(|why| match why.source() {
        Some(source) if source.is::<LengthLimitError>() => too_large(),
        Some(_) | None => Problem::bad_request("the body was cut off, or is not what its headers say"),
    })
}

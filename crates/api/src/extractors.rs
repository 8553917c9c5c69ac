//! Parsing of requests: path, query and body.

use std::error::Error as _;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::StatusCode;
use http::request::Parts;
use http_body_util::LengthLimitError;
use serde::Deserializer;
use serde::de::{self, DeserializeOwned, Unexpected, Visitor};
use steadfast_mcp::http::server::within;

use crate::problem::ApiProblem;

/// The maximum size of a request body, in bytes.
const LONGEST: usize = 64 << 10;
/// The time limit for a request body. A client that never ends its body would occupy a connection.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The parameter of a path.
pub(crate) struct PathParam(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathParam {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        let named = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) =
            named.map_err(|rejection| ApiProblem::misread(format!("the path: {}", rejection.body_text())))?;
        Ok(Self(name))
    }
}

/// The parsed query of a request.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        let Query(query) = Query::<T>::try_from_uri(&parts.uri).map_err(|rejection| {
            ApiProblem::misread(format!("the query cannot be read: {}", rejection.body_text()))
        })?;
        Ok(Self(query))
    }
}

/// The parsed JSON body of a request.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiProblem> {
        let text = body(request.into_body(), LONGEST).await?;
        let parsed = serde_json::from_slice(&text);
        Ok(Self(parsed.map_err(|error| ApiProblem::misread(format!("the body cannot be read: {error}")))?))
    }
}

/// Reads a whole number in any notation: `23.0` is the same as `23`, as in JSON Schema.
pub(crate) fn whole<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<i128>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(WholeNumberVisitor(PhantomData))
}

/// Like [`whole`], for an optional number.
pub(crate) fn whole_or_none<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<i128>,
    D: Deserializer<'de>,
{
    struct OptionalWholeVisitor<T>(PhantomData<T>);
    impl<'de, T: TryFrom<i128>> Visitor<'de> for OptionalWholeVisitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number or null")
        }

        fn visit_none<E: de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
            whole(deserializer).map(Some)
        }
    }
    deserializer.deserialize_option(OptionalWholeVisitor(PhantomData))
}

struct WholeNumberVisitor<T>(PhantomData<T>);

impl<T: TryFrom<i128>> WholeNumberVisitor<T> {
    fn fit<E: de::Error>(number: i128) -> Result<T, E> {
        let too_far = |_| E::custom(format!("the number {number} is out of range"));
        T::try_from(number).map_err(too_far)
    }
}

impl<T: TryFrom<i128>> Visitor<'_> for WholeNumberVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        Self::fit(number.into())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        Self::fit(number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        // Far beyond every type that is asked for, and exact as a whole number.
        if number.fract() != 0.0 || number.abs() > 1e30 {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and was checked to fit")]
        Self::fit(number as i128)
    }
}

/// Reads a body within a size and a time limit.
pub(crate) async fn body(body: Body, longest: usize) -> Result<Bytes, ApiProblem> {
    let too_large = || {
        let message = format!("the body is longer than {longest} bytes");
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    };
    // A declared size above the limit is refused at once.
    if usize::try_from(body.size_hint().lower()).ok().is_none_or(|declared| declared > longest) {
        return Err(too_large());
    }
    let Some(read) = within(BODY_TIMEOUT, to_bytes(body, longest)).await else {
        let message = format!("the body did not end within {} s", BODY_TIMEOUT.as_secs());
        return Err(ApiProblem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message));
    };
    read.map_err(|error| match error.source() {
        Some(source) if source.is::<LengthLimitError>() => too_large(),
        Some(_) | None => ApiProblem::bad_request("the body was cut off, or is not what its headers say"),
    })
}

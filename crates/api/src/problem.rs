//! Answers that say what is wrong with a request.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{StoreError, redact};

use crate::answer::json;

/// What is answered instead of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    error: ProblemBody,
}

/// An error as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProblemBody {
    /// A stable word for programs.
    pub code: Cow<'static, str>,
    /// What is wrong and what to do, for people.
    pub message: String,
}

/// The body of every answer that is an error of the request itself.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Wrong {
    /// The error.
    pub error: ProblemBody,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, error: ProblemBody { code: code.into(), message: message.into() } }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::bad("bad_request", message)
    }

    /// The same where it names what was given, which may be a secret in the wrong place.
    pub(crate) fn misread(message: impl AsRef<str>) -> Self {
        Self::bad_request(redact::text(message.as_ref()).into_owned())
    }

    /// The request cannot be understood, and there is a word for why.
    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn no_such(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what}"))
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    #[cfg(test)]
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = json(status, &Wrong { error: self.error });
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
        }
        response
    }
}

//! HTTP-level refusals: a status with a JSON-RPC error.

use std::time::Duration;

use http::StatusCode;

use super::streams::TooManyStreams;
use crate::json_text::JsonText;
use crate::message::{InvalidMessage, RpcId, RpcMessage, code};

/// A request that is refused with an HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRefusal {
    /// The status.
    pub status: StatusCode,
    /// The JSON-RPC error in the body.
    pub error: Box<RpcMessage>,
    /// Value of `Retry-After`, if a retry can help.
    pub retry_after: Option<Duration>,
}

impl HttpRefusal {
    /// Creates a refusal from a JSON-RPC error and a status.
    pub fn new(status: StatusCode, error: RpcMessage) -> Self {
        Self { status, error: Box::new(error), retry_after: None }
    }

    /// The session is not known, or no longer known: the client must start a new one.
    pub fn unknown_session(id: Option<&RpcId>) -> Self {
        let text = "session not found: send initialize without a session id to start a new one";
        Self::new(StatusCode::NOT_FOUND, RpcMessage::error_response(id, code::INVALID_REQUEST, text, None))
    }

    /// The server is overloaded.
    pub fn overloaded(id: Option<&RpcId>, retry_after: Duration) -> Self {
        let error = RpcMessage::error_response(id, code::INTERNAL_ERROR, "overloaded: try again later", None);
        Self { retry_after: Some(retry_after), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error) }
    }

    /// Every connection has a request in flight.
    pub fn no_connection() -> Self {
        let text = "overloaded: connection limit reached; try again later";
        let error = RpcMessage::error_response(None, code::INTERNAL_ERROR, text, None);
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error)
    }

    /// The caller has reached the limit of event streams.
    pub(super) fn too_many_streams(id: Option<&RpcId>, limit: TooManyStreams) -> Self {
        let error = RpcMessage::error_response(id, code::INTERNAL_ERROR, &limit.message(), None);
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, error);
        Self { retry_after: Some(TooManyStreams::RETRY_AFTER_DELAY), ..refusal }
    }

    pub(super) fn invalid(status: StatusCode, text: &str) -> Self {
        Self::new(status, RpcMessage::error_response(None, code::INVALID_REQUEST, text, None))
    }

    pub(super) fn bad_request(message: &RpcMessage, code: i64, text: &str, data: Option<&JsonText>) -> Self {
        let id = message.id().filter(|_| message.is_request());
        Self::new(StatusCode::BAD_REQUEST, RpcMessage::error_response(id.as_ref(), code, text, data))
    }

    pub(super) fn unreadable(error: &InvalidMessage) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.answer())
    }

    /// Names the one of several things that the refusal is about.
    pub(super) fn about(mut self, subject: &str) -> Self {
        let data = JsonText::string(subject);
        let text = self.error.error_text().unwrap_or_default().into_owned();
        *self.error = RpcMessage::error_response(None, code::INVALID_REQUEST, &text, Some(&data));
        self
    }
}

/// Returns the status of a final response that is sent as JSON. In the modern era some errors have a status of their
/// own.
pub(super) fn status_of(response: &RpcMessage) -> StatusCode {
    match response.error_code() {
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        Some(_) | None => StatusCode::OK,
    }
}

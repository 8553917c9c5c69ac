//! How answers are written.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// An answer in JSON. What is told here changes all the time, so nobody may keep it.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(text) => whole(status, "application/json", text),
        Err(error) => whole(
            StatusCode::INTERNAL_SERVER_ERROR,
            "text/plain; charset=utf-8",
            format!("the answer cannot be written as JSON: {error}"),
        ),
    }
}

/// The media type of server-sent events.
pub(crate) const EVENTS: &str = "text/event-stream";
/// How long a stream of them may be silent: whoever stands between must not take the connection for dead.
pub(crate) const SILENT: Duration = Duration::from_secs(15);

/// An answer of this type.
pub(crate) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

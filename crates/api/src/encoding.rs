//! Encoding of responses.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use steadfast::call::redact;

/// Builds a JSON response. It must not be cached, because the state changes all the time.
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

/// Builds a JSON response for operators: secrets in names that callers chose are redacted.
pub(crate) fn shown(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(text) => whole(status, "application/json", redact::response(&text).into_owned()),
        Err(_) => json(status, body),
    }
}

/// The media type of server-sent events.
pub(crate) const EVENTS: &str = "text/event-stream";
/// The interval of keep-alive comments in a stream, so that proxies do not close it.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Builds a response of this media type.
pub(crate) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// Builds one event. A text with line breaks is written as several `data` lines.
pub(crate) fn event(name: &str, content: &impl Serialize) -> Bytes {
    let text = serde_json::to_string(content).unwrap_or_else(|_| "null".to_owned());
    let mut event = format!("event: {name}\n");
    for line in text.split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event.into()
}

/// Returns true if the client accepts this media type.
pub(crate) fn accepts(headers: &HeaderMap, form: &str) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == form))
}

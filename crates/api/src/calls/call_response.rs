//! The response for the result of a call: status, headers and body, and its delivery.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use serde::Serialize;
use steadfast::call::DeliveryHandle;
use steadfast::{CallResponse, Engine};
use steadfast_core::code::Code;
use steadfast_core::envelope::ResultEnvelope;
use steadfast_mcp::delivery::{DeliveryCallback, DeliveryLink, DeliveryTracker, GRACE};

use super::call_request::{CallRequestParts, IDEMPOTENCY_KEY};
use crate::encoding::json;

/// Builds the response to a call.
pub(super) fn answer(engine: &Engine, called: CallResponse, request: CallRequestParts) -> Response {
    let CallResponse { result, delivery: arrival, .. } = called;
    answered_with(&result, &result, ResultDelivery::new(engine, request.link, arrival), request.key)
}

/// Builds a response with this body for the result of a call.
pub(super) fn answered_with(
    result: &ResultEnvelope,
    content: &impl Serialize,
    delivery: ResultDelivery,
    key: Option<HeaderValue>,
) -> Response {
    let mut response = json(status(result), content).map(|body| Body::new(DeliveryBody { body, delivery }));
    let headers = response.headers_mut();
    if let Some(key) = key {
        headers.insert(IDEMPOTENCY_KEY, key);
    }
    if let Some(seconds) = retry_after(result) {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// Returns the HTTP status of a result. A deadline that passed before any attempt is a conflict and no server error,
/// because the caller gave too little time.
fn status(result: &ResultEnvelope) -> StatusCode {
    let status = result.error.as_ref().map(|error| {
        let is_too_late = error.code == Code::DeadlineExceeded && result.attempts == 0;
        if is_too_late { StatusCode::CONFLICT.as_u16() } else { error.code.http_status() }
    });
    status.map_or(StatusCode::OK, |status| {
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    })
}

/// Returns the value of `Retry-After`, in seconds.
fn retry_after(result: &ResultEnvelope) -> Option<u64> {
    let error = result.error.as_ref()?;
    match (error.retry_after_ms, error.code) {
        (Some(ms), _) => Some(ms.div_ceil(1000)),
        (None, Code::Overloaded | Code::StoreUnavailable) => Some(SHORT_DELAY_SECS),
        // The breaker was forced open, for an unknown time.
        (None, Code::CircuitOpen) => Some(LONG_DELAY_SECS),
        (None, _) => None,
    }
}

const SHORT_DELAY_SECS: u64 = 1;
const LONG_DELAY_SECS: u64 = 30;

/// Tracks the delivery of a response. It counts as delivered after the body was written and the connection confirmed
/// it.
pub(super) struct ResultDelivery {
    engine: Engine,
    link: Option<DeliveryLink>,
    arrival: Option<DeliveryHandle>,
}

impl ResultDelivery {
    pub(super) fn new(engine: &Engine, link: Option<DeliveryLink>, arrival: Option<DeliveryHandle>) -> Self {
        Self { engine: engine.clone(), link, arrival }
    }

    /// Sets the record that is marked as delivered.
    pub(super) fn carry(&mut self, arrival: Option<DeliveryHandle>) {
        self.arrival = arrival;
    }

    /// Records that the whole body was handed to the connection. For an unknown connection that counts as delivery.
    pub(super) fn record_handover(&mut self) {
        let Some(arrival) = self.arrival.take() else { return };
        let engine = self.engine.clone();
        let arrived: DeliveryCallback = Box::new(move || engine.mark_delivered(arrival));
        match &self.link {
            None => arrived(),
            Some(link) => {
                let (tracker, delivery) = DeliveryTracker::with_callback(None, Some(arrived));
                link.record_handed_over(tracker);
                tokio::spawn(delivery.settled_with_callback(GRACE));
            }
        }
    }
}

/// A body that detects when it was handed over.
struct DeliveryBody {
    body: Body,
    delivery: ResultDelivery,
}

impl http_body::Body for DeliveryBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() && self.body.is_end_stream() {
            self.delivery.record_handover();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::envelope::{CallEnvelope, ErrorBody, UnknownFieldPolicy};

    use super::*;

    fn failed(code: Code, retry_after_ms: Option<u64>) -> ResultEnvelope {
        let call = br#"{
            "contractVersion": "1.1", "requestId": "r-1", "toolName": "pay", "toolNamespace": "bank",
            "target": { "sessionKey": "s-1", "actorId": "ann" }, "payload": { "version": "1.0", "params": {} }
        }"#;
        let call = CallEnvelope::parse(call, UnknownFieldPolicy::Refuse).unwrap();
        ResultEnvelope::refused(&call, ErrorBody { retry_after_ms, ..ErrorBody::temporary(code, "no") })
    }

    #[test]
    fn temporary_errors_have_a_retry_delay() {
        for code in Code::ALL.iter().copied() {
            let result = failed(code, None);
            // No attempt was made: the caller's deadline had passed, and no component failed.
            let expected = if code == Code::DeadlineExceeded { 409 } else { code.http_status() };
            assert_eq!(status(&result).as_u16(), expected, "{code}");
            let is_soon = matches!(code.http_status(), 429 | 503);
            assert_eq!(retry_after(&result).is_some(), is_soon, "{code}");
            assert_eq!(retry_after(&failed(code, Some(1001))), Some(2), "{code}: rounded up");
        }
    }
}

//! The responder: how the layer above responds to a request.

use std::sync::Arc;

use http::StatusCode;

use super::pipe::{MessagePipe, StreamSendError};
use super::refusal::HttpRefusal;
use super::session::{ResponseSession, SessionStreams};
use crate::delivery::{DeliveryCallback, PendingDelivery};
use crate::message::{RpcId, RpcMessage, code};

/// Responds to one request: any number of messages, then one final response.
///
/// The first item decides the form. A final response alone is sent as one JSON text, anything else opens a stream. If
/// a responder is dropped without a response, the request gets an internal error.
#[derive(Debug)]
pub struct Responder {
    pipe: Arc<MessagePipe>,
    id: RpcId,
    session: Arc<ResponseSession>,
}

impl Responder {
    pub(super) fn new(pipe: Arc<MessagePipe>, id: RpcId, session: Arc<ResponseSession>) -> Self {
        Self { pipe, id, session }
    }

    /// Returns the id of the request.
    pub fn id(&self) -> &RpcId {
        &self.id
    }

    /// Assigns a session to the client. Must be called before anything is sent, because the headers of the response
    /// carry the session.
    pub fn open_session(&self, session: &Arc<SessionStreams>) {
        self.session.set(Arc::clone(session));
    }

    /// Sends a message that belongs to this request, such as progress, or a request of the server.
    pub fn send(&self, message: RpcMessage) -> Result<(), StreamSendError> {
        self.pipe.send(message)
    }

    /// Returns a second sender for messages that belong to this request.
    pub fn notifier(&self) -> Notifier {
        Notifier(Arc::clone(&self.pipe))
    }

    /// Sends the final response. Returns a [`PendingDelivery`] that waits for its arrival.
    pub fn finish(self, response: RpcMessage) -> PendingDelivery {
        self.pipe.finish(response, None)
    }

    /// Does the same, and calls `arrived` as soon as the delivery is known.
    pub fn finish_with_callback(
        self,
        response: RpcMessage,
        arrived: Option<DeliveryCallback>,
    ) -> PendingDelivery {
        self.pipe.finish(response, arrived)
    }

    /// Refuses the request with an HTTP status. After a first message it is too late for a status. Then the error
    /// ends the stream.
    pub fn refuse(self, refusal: HttpRefusal) {
        self.pipe.refuse(refusal);
    }

    /// Returns true if no client waits for the response now. In the modern era this cancels the request. In the
    /// legacy era the client may resume the stream.
    pub fn is_gone(&self) -> bool {
        !self.pipe.is_attached()
    }

    /// Waits until no client waits for the response.
    pub async fn closed(&self) {
        self.pipe.detached().await;
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.pipe.has_ended() {
            return;
        }
        let text = "the request ended without a response";
        let error = RpcMessage::error_response(Some(&self.id), code::INTERNAL_ERROR, text, None);
        self.pipe.refuse(HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, error));
    }
}

/// Sends messages on one stream: the stream of a request, beside its [`Responder`], or a stream that listens.
#[derive(Clone, Debug)]
pub struct Notifier(pub(super) Arc<MessagePipe>);

impl Notifier {
    /// Sends a message.
    pub fn send(&self, message: RpcMessage) -> Result<(), StreamSendError> {
        self.0.send(message)
    }

    /// Sends the response to a request whose own stream is gone, on a stream that listens. Calls `arrived` as soon as
    /// the delivery is known.
    pub fn answer(
        &self,
        response: RpcMessage,
        arrived: Option<DeliveryCallback>,
    ) -> Result<PendingDelivery, StreamSendError> {
        self.0.answer(response, arrived)
    }

    /// Returns true if no client reads the stream now.
    pub fn is_gone(&self) -> bool {
        !self.0.is_attached()
    }

    /// Waits until no client reads the stream.
    pub async fn closed(&self) {
        self.0.detached().await;
    }
}

//! The hand with which a request is answered.

use std::sync::Arc;

use http::StatusCode;

use super::pipe::Pipe;
use super::refusal::Refusal;
use super::session::Session;
use crate::delivery::{Arrived, Delivery};
use crate::message::{Id, Message, code};

/// Answers one request: any number of messages, then one final answer.
///
/// What comes first decides how it is told: a final answer alone is one JSON text, anything else opens a stream. A
/// request whose responder is dropped without an answer gets an internal error.
#[derive(Debug)]
pub struct Responder {
    pipe: Arc<Pipe>,
    id: Id,
}

impl Responder {
    pub(super) fn new(pipe: Arc<Pipe>, id: Id) -> Self {
        Self { pipe, id }
    }

    /// The id of the request.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Tells the client that it is in this session from now on. To be said before anything else is: the answer's headers
    /// carry it.
    pub fn open_session(&self, session: &Arc<Session>) {
        self.pipe.set_session(Arc::clone(session));
    }

    /// Sends a message that belongs to this request, such as progress, or a request of the server's own.
    pub fn send(&self, message: Message) -> Result<(), Unsent> {
        self.pipe.send(message)
    }

    /// Another way to send messages that belong to this request.
    pub fn notifier(&self) -> Notifier {
        Notifier(Arc::clone(&self.pipe))
    }

    /// Gives the final answer, and says how to learn whether it arrived.
    pub fn finish(self, response: Message) -> Delivery {
        self.pipe.finish(response, None)
    }

    /// The same; `arrived` is done as soon as it is known that it did.
    pub fn finish_telling(self, response: Message, arrived: Option<Arrived>) -> Delivery {
        self.pipe.finish(response, arrived)
    }

    /// Refuses the request by an HTTP status. After a first message it is too late for a status; the error ends the
    /// stream instead.
    pub fn refuse(self, refusal: Refusal) {
        self.pipe.refuse(refusal);
    }

    /// Whether nobody waits for the answer at this moment. In the modern era that means that the request is cancelled; in
    /// the older one the client may come back to the stream.
    pub fn is_gone(&self) -> bool {
        !self.pipe.is_attached()
    }

    /// Waits until nobody waits for the answer.
    pub async fn gone(&self) {
        self.pipe.detached().await;
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.pipe.has_ended() {
            return;
        }
        let text = "the request was given up without an answer";
        let error = Message::error_response(Some(&self.id), code::INTERNAL_ERROR, text, None);
        self.pipe.refuse(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error));
    }
}

/// Sends messages on one stream: that of a request, beside its [`Responder`], or one that listens.
#[derive(Clone, Debug)]
pub struct Notifier(pub(super) Arc<Pipe>);

impl Notifier {
    /// Sends a message.
    pub fn send(&self, message: Message) -> Result<(), Unsent> {
        self.0.send(message)
    }

    /// Gives the answer to a request whose own stream is not known any more, on one that listens, and says how to learn
    /// whether it arrived; `arrived` is done as soon as it is known that it did.
    pub fn answer(&self, response: Message, arrived: Option<Arrived>) -> Result<Delivery, Unsent> {
        self.0.answer(response, arrived)
    }

    /// Whether nobody reads the stream at this moment.
    pub fn is_gone(&self) -> bool {
        !self.0.is_attached()
    }

    /// Waits until nobody waits for the answer.
    pub async fn gone(&self) {
        self.0.detached().await;
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The client reads too slowly; what waits for it is as much as may.
    Full,
    /// The client is gone and cannot come back to this stream.
    Gone,
    /// The stream has ended.
    Ended,
}

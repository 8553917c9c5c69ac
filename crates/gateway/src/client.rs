//! Connections to a client: a line, the streams of a session, or only the responses to single requests.

use std::sync::Arc;

use steadfast_mcp::delivery::{Arrived, Delivery};
use steadfast_mcp::http::Era;
use steadfast_mcp::http::front::{self, Notifier, Responder};
use steadfast_mcp::lines::LineSender;
use steadfast_mcp::message::Message;

use crate::joined::Joined;

/// The connection to a client, for messages that belong to no request.
#[derive(Debug)]
pub(crate) enum Client {
    /// One line carries everything.
    Line(LineSender),
    /// The streams of a session in the legacy era.
    Streams(Arc<front::Session>),
    /// The client receives responses only.
    Answers,
}

impl Client {
    /// Sends a message. Nothing happens if the client is gone; the end of the connection is detected elsewhere.
    pub(crate) async fn say(&self, message: &Message) {
        match self {
            Self::Line(line) => _ = line.send(message).await,
            Self::Streams(session) => _ = session.push(message.clone()),
            Self::Answers => {}
        }
    }
}

/// The channel for the response to one request.
#[derive(Debug)]
pub(crate) enum Reply {
    Line(LineSender),
    Http(Responder, Era),
}

impl Reply {
    /// Sends the response. Returns the handle that reports its delivery, or `None` if delivery certainly failed.
    pub(crate) async fn answer(self, response: &Message) -> Option<Delivery> {
        self.answer_telling(response, None).await
    }

    /// Like [`Self::answer`], and completes `arrived` as soon as delivery is confirmed.
    pub(crate) async fn answer_telling(
        self,
        response: &Message,
        arrived: Option<Arrived>,
    ) -> Option<Delivery> {
        match self {
            Self::Line(line) => line.answer_telling(response, arrived).await.ok(),
            Self::Http(responder, _) => Some(responder.finish_telling(response.clone(), arrived)),
        }
    }

    /// Returns the channel for other messages that belong to this request.
    pub(crate) fn voice(&self) -> Voice {
        match self {
            Self::Line(line) => Voice::Line(line.clone()),
            Self::Http(responder, era) => Voice::Http(responder.notifier(), *era),
        }
    }
}

/// The channel for messages that belong to one request, other than its response.
#[derive(Clone, Debug)]
pub(crate) enum Voice {
    Line(LineSender),
    Http(Notifier, Era),
    /// One of several servers that got the same request and whose messages are merged.
    Joined(Arc<Joined>, usize),
    /// The request is the gateway's own, and messages for it are dropped.
    Nobody,
}

impl Voice {
    /// Sends a message that the client can do without: a client that reads too slowly misses it.
    pub(crate) fn mention(&self, message: Message) {
        match self {
            Self::Line(line) => _ = line.try_send(&message),
            Self::Http(notifier, _) => _ = notifier.send(message),
            Self::Joined(joined, at) => joined.mention(*at, message),
            Self::Nobody => {}
        }
    }

    /// Sends a message. On a line, waits for room.
    pub(crate) async fn say(&self, message: &Message) {
        match self {
            Self::Line(line) => _ = line.send(message).await,
            Self::Http(notifier, _) => _ = notifier.send(message.clone()),
            Self::Joined(joined, at) => joined.mention(*at, message.clone()),
            Self::Nobody => {}
        }
    }

    /// Completes when the client has closed the connection of the request, which cancels it in the modern era.
    pub(crate) async fn withdrawn(&self) {
        match self {
            Self::Http(notifier, Era::Modern) => notifier.gone().await,
            Self::Joined(joined, _) => Box::pin(joined.voice().withdrawn()).await,
            Self::Http(_, Era::Legacy) | Self::Line(_) | Self::Nobody => std::future::pending().await,
        }
    }
}

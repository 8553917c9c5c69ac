//! The ways to a client: one line, the streams of a session, or nothing but the answers to what it asked.

use std::sync::Arc;

use steadfast_mcp::delivery::{Arrived, Delivery};
use steadfast_mcp::http::Era;
use steadfast_mcp::http::front::{self, Notifier, Responder};
use steadfast_mcp::lines::LineSender;
use steadfast_mcp::message::Message;

use crate::joined::Joined;

/// The way to a client, for what belongs to no request.
#[derive(Debug)]
pub(crate) enum Client {
    /// Everything goes over one line.
    Line(LineSender),
    /// Streams of a session, in the older era.
    Streams(Arc<front::Session>),
    /// It hears answers, and nothing else.
    Answers,
}

impl Client {
    /// Says something. A client that is gone hears nothing more; its end is noticed elsewhere.
    pub(crate) async fn say(&self, message: &Message) {
        match self {
            Self::Line(line) => _ = line.send(message).await,
            Self::Streams(session) => _ = session.push(message.clone()),
            Self::Answers => {}
        }
    }
}

/// The way to answer one request.
#[derive(Debug)]
pub(crate) enum Reply {
    Line(LineSender),
    Http(Responder, Era),
}

impl Reply {
    /// Gives the answer, and says how to learn whether it arrived; nothing if it certainly did not.
    pub(crate) async fn answer(self, response: &Message) -> Option<Delivery> {
        self.answer_telling(response, None).await
    }

    /// The same; `arrived` is done as soon as it is known that it did.
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

    /// The way for what belongs to this request besides its answer.
    pub(crate) fn voice(&self) -> Voice {
        match self {
            Self::Line(line) => Voice::Line(line.clone()),
            Self::Http(responder, era) => Voice::Http(responder.notifier(), *era),
        }
    }
}

/// The way for what belongs to one request besides its answer.
#[derive(Clone, Debug)]
pub(crate) enum Voice {
    Line(LineSender),
    Http(Notifier, Era),
    /// One of several servers that were asked the same, in whose names the client hears one.
    Joined(Arc<Joined>, usize),
    /// The request is our own, and nobody hears of it.
    Nobody,
}

impl Voice {
    /// Says something that the client can do without: one that reads too slowly misses it.
    pub(crate) fn mention(&self, message: Message) {
        match self {
            Self::Line(line) => _ = line.try_send(&message),
            Self::Http(notifier, _) => _ = notifier.send(message),
            Self::Joined(joined, at) => joined.mention(*at, message),
            Self::Nobody => {}
        }
    }

    /// Says something, and waits for room where there is a line.
    pub(crate) async fn say(&self, message: &Message) {
        match self {
            Self::Line(line) => _ = line.send(message).await,
            Self::Http(notifier, _) => _ = notifier.send(message.clone()),
            Self::Joined(joined, at) => joined.mention(*at, message.clone()),
            Self::Nobody => {}
        }
    }

    /// Comes back when the client has withdrawn the request by going away, which is how it does that in the modern era.
    pub(crate) async fn withdrawn(&self) {
        match self {
            Self::Http(notifier, Era::Modern) => notifier.gone().await,
            Self::Joined(joined, _) => Box::pin(joined.voice().withdrawn()).await,
            Self::Http(_, Era::Legacy) | Self::Line(_) | Self::Nobody => std::future::pending().await,
        }
    }
}

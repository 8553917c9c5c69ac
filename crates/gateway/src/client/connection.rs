//! Connections to a client, and channels for responses: a line, the streams of a session, or only the responses to single
//! requests.

use std::sync::Arc;

use steadfast_mcp::delivery::{DeliveryCallback, PendingDelivery};
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::http::server::{self, Responder};
use steadfast_mcp::lines::LineSender;
use steadfast_mcp::message::RpcMessage;

use crate::client::request_channel::RequestChannel;

/// The connection to a client, for messages that belong to no request.
#[derive(Debug)]
pub(crate) enum ClientConnection {
    /// One line carries everything.
    Line(LineSender),
    /// The streams of a session in the legacy era.
    Streams(Arc<server::SessionStreams>),
    /// The client receives responses only.
    Answers,
}

impl ClientConnection {
    /// Sends a message. Nothing happens if the client is gone; the end of the connection is detected elsewhere.
    pub(crate) async fn send(&self, message: &RpcMessage) {
        match self {
            Self::Line(line) => _ = line.send(message).await,
            Self::Streams(session) => _ = session.push(message.clone()),
            Self::Answers => {}
        }
    }
}

/// The channel for the response to one request.
#[derive(Debug)]
pub(crate) enum ResponseChannel {
    Line(LineSender),
    Http(Responder, ProtocolEra),
}

impl ResponseChannel {
    /// Sends the response. Returns the handle that reports its delivery, or `None` if delivery certainly failed.
    pub(crate) async fn answer(self, response: &RpcMessage) -> Option<PendingDelivery> {
        self.answer_with_receipt(response, None).await
    }

    /// Like [`Self::answer`], and completes `arrived` as soon as delivery is confirmed.
    pub(crate) async fn answer_with_receipt(
        self,
        response: &RpcMessage,
        arrived: Option<DeliveryCallback>,
    ) -> Option<PendingDelivery> {
        match self {
            Self::Line(line) => line.send_response(response, arrived).await.ok(),
            Self::Http(responder, _) => Some(responder.finish_with_callback(response.clone(), arrived)),
        }
    }

    /// Returns the channel for other messages that belong to this request.
    pub(crate) fn channel(&self) -> RequestChannel {
        match self {
            Self::Line(line) => RequestChannel::Line(line.clone()),
            Self::Http(responder, era) => RequestChannel::Http(responder.notifier(), *era),
        }
    }
}

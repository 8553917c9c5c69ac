//! A stream of messages from a server.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::failure::UpstreamFailure;
use super::pool::PooledConnection;
use crate::long_text::LongText;
use crate::message::{InvalidMessage, RpcMessage};
use crate::sse::{SseItem, SseParser};

/// One item of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// A message.
    Message(RpcMessage),
    /// An event without a valid message. The stream continues.
    NotAMessage {
        /// The data of the event.
        data: Bytes,
        /// The reason why it is not a message.
        error: InvalidMessage,
    },
    /// An event that was too long, and was skipped. The stream continues.
    TooLong(LongText),
}

/// A stream of messages from a server. Dropping it closes the connection, which cancels the request in the modern
/// era.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    used: Option<(PooledConnection, Option<Duration>)>,
    parser: SseParser,
    is_finished: bool,
}

impl EventStream {
    pub(super) fn new(
        body: Incoming,
        used: PooledConnection,
        keep_alive: Option<Duration>,
        longest: usize,
    ) -> Self {
        Self { body, used: Some((used, keep_alive)), parser: SseParser::new(longest), is_finished: false }
    }

    /// Returns the next item, `None` when the server has ended the stream, or an error once if the stream broke.
    ///
    /// This method is cancel safe: no item is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<StreamItem, UpstreamFailure>> {
        loop {
            while let Some(item) = self.parser.next_item() {
                match item {
                    SseItem::TooLong(long) => return Some(Ok(StreamItem::TooLong(long))),
                    // MCP uses no other types. The old SSE transport begins with a type of its own.
                    SseItem::Event(event) if event.kind.as_deref().is_some_and(|kind| kind != "message") => {}
                    SseItem::Event(event) => {
                        return Some(Ok(match RpcMessage::parse(event.data.clone(), usize::MAX) {
                            Ok(message) => StreamItem::Message(message),
                            Err(error) => StreamItem::NotAMessage { data: event.data, error },
                        }));
                    }
                }
            }
            if self.is_finished {
                return None;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.parser.push(&data);
                    }
                }
                Some(Err(error)) => {
                    (self.is_finished, self.used) = (true, None);
                    return Some(Err(UpstreamFailure::lost(&error)));
                }
                None => {
                    self.is_finished = true;
                    if let Some((used, keep_alive)) = self.used.take() {
                        used.done(keep_alive);
                    }
                }
            }
        }
    }

    /// Returns the id of the last event that had one. In the legacy era, the stream can be resumed after this event.
    pub fn last_event_id(&self) -> Option<&str> {
        self.parser.last_id()
    }

    /// Returns how long the server wants the client to wait before it resumes the stream.
    pub fn retry(&self) -> Option<Duration> {
        self.parser.retry()
    }
}

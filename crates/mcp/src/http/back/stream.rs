//! A stream of messages from a server.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::failure::Failure;
use super::pool::Used;
use crate::long::LongText;
use crate::message::{Message, Unreadable};
use crate::sse::{Item, Parser};

/// What a stream brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// An event that is none. The stream goes on.
    NotAMessage {
        /// Its data.
        data: Bytes,
        /// What is wrong with it.
        why: Unreadable,
    },
    /// An event that was too long, and was skipped. The stream goes on.
    TooLong(LongText),
}

/// Messages as they come. Dropping it closes the connection, which in the modern era cancels the request.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    used: Option<(Used, Option<Duration>)>,
    parser: Parser,
    ended: bool,
}

impl EventStream {
    pub(super) fn new(body: Incoming, used: Used, kept: Option<Duration>, longest: usize) -> Self {
        Self { body, used: Some((used, kept)), parser: Parser::new(longest), ended: false }
    }

    /// The next thing that came; `None` when the server has ended the stream, an error once if it broke.
    ///
    /// Nothing is lost if the future is dropped before it is done.
    pub async fn next(&mut self) -> Option<Result<Received, Failure>> {
        loop {
            while let Some(item) = self.parser.next_item() {
                match item {
                    Item::TooLong(long) => return Some(Ok(Received::TooLong(long))),
                    // Other types are not MCP's; the old transport begins with one of its own.
                    Item::Event(event) if event.kind.as_deref().is_some_and(|kind| kind != "message") => {}
                    Item::Event(event) => {
                        return Some(Ok(match Message::parse(event.data.clone(), usize::MAX) {
                            Ok(message) => Received::Message(message),
                            Err(why) => Received::NotAMessage { data: event.data, why },
                        }));
                    }
                }
            }
            if self.ended {
                return None;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.parser.push(&data);
                    }
                }
                Some(Err(error)) => {
                    (self.ended, self.used) = (true, None);
                    return Some(Err(Failure::lost(&error)));
                }
                None => {
                    self.ended = true;
                    if let Some((used, kept)) = self.used.take() {
                        used.done(kept);
                    }
                }
            }
        }
    }

    /// The last event that had an id: behind it the stream can be resumed, in the older era.
    pub fn last_event_id(&self) -> Option<&str> {
        self.parser.last_id()
    }

    /// How long the server wants to be left alone before the stream is resumed.
    pub fn retry(&self) -> Option<Duration> {
        self.parser.retry()
    }
}

//! The streams of a session of the legacy era: resumable streams, listening streams, and messages that wait for one.
//!
//! The layer above decides which sessions exist, who owns them, and how long they live. It keeps one of these for
//! each session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::pipe::{MessagePipe, PipeAttachment, StreamLimits, StreamSendError};
use crate::message::RpcMessage;

/// A session id: visible ASCII, at most 256 characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct McpSessionId(Box<str>);

impl McpSessionId {
    /// Parses a session id.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A client that knows the id can use the session, so logs must not contain all of it.
impl fmt::Debug for McpSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.0.get(..self.0.len().min(6)).unwrap_or_default())
    }
}

/// The streams of one session.
#[derive(Debug)]
pub struct SessionStreams {
    id: McpSessionId,
    state: Mutex<State>,
    limits: StreamLimits,
}

#[derive(Debug, Default)]
struct State {
    next_stream: u64,
    /// Streams that can be resumed by their number, oldest first. Includes the listening ones.
    streams: VecDeque<NumberedStream>,
    /// Messages that wait for a listening stream.
    pending: VecDeque<RpcMessage>,
    pending_bytes: usize,
    closed: bool,
}

#[derive(Debug)]
struct NumberedStream {
    number: u64,
    listens: bool,
    pipe: Arc<MessagePipe>,
}

/// The result of pushing a message that belongs to no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The message was sent on a listening stream.
    Sent,
    /// No stream listens. The message waits for one.
    Queued,
}

/// Remembered streams of a session. More than any client has open at a time.
const MOST_STREAMS: usize = 128;
/// Messages that wait for a listening stream, and their total bytes.
const MOST_PENDING: usize = 64;
const MOST_PENDING_BYTES: usize = 256 << 10;
/// Total bytes in the finished streams of a session. Beyond it, the oldest streams are dropped.
const MOST_BYTES: usize = 4 << 20;

impl SessionStreams {
    /// Creates a session with this id.
    pub fn new(id: McpSessionId, limits: StreamLimits) -> Arc<Self> {
        Arc::new(Self { id, state: Mutex::default(), limits })
    }

    /// Creates a session that existed before, and whose streams are not known here. New streams get numbers that no
    /// earlier stream had, so that a client that resumes an earlier stream cannot get another one.
    pub fn restored(id: McpSessionId, limits: StreamLimits) -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next_stream = u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2);
        Arc::new(Self { id, state: Mutex::new(State { next_stream, ..State::default() }), limits })
    }

    /// Returns the id.
    pub fn id(&self) -> &McpSessionId {
        &self.id
    }

    /// Sends a message that belongs to no request: on the newest listening stream, or else when a stream begins to
    /// listen.
    pub fn push(&self, message: RpcMessage) -> Result<PushOutcome, StreamSendError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(StreamSendError::Ended);
        }
        let listening = state.streams.iter().rev().find(|stream| stream.listens && stream.pipe.is_attached());
        if let Some(stream) = listening {
            return stream.pipe.send(message).map(|()| PushOutcome::Sent);
        }
        let length = message.bytes().len();
        if state.pending.len() >= MOST_PENDING || state.pending_bytes + length > MOST_PENDING_BYTES {
            return Err(StreamSendError::Full);
        }
        state.pending_bytes += length;
        state.pending.push_back(message);
        Ok(PushOutcome::Queued)
    }

    /// Returns true if a stream listens for messages that belong to no request.
    pub fn is_listening(&self) -> bool {
        self.state.lock().streams.iter().any(|stream| stream.listens && stream.pipe.is_attached())
    }

    /// Ends all streams. Later messages are refused.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        (state.pending, state.pending_bytes) = (VecDeque::new(), 0);
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        for stream in streams {
            stream.pipe.end();
        }
    }

    /// Remembers the stream of a response, so that it can be resumed. Returns its number.
    pub(super) fn remember(&self, pipe: &Arc<MessagePipe>) -> u64 {
        pipe.make_resumable();
        self.add(Arc::clone(pipe), false)
    }

    /// Creates a listening stream. Returns it with its number.
    pub(super) fn listen(&self) -> (PipeAttachment, u64) {
        let pipe = MessagePipe::new(self.limits);
        pipe.make_resumable();
        let attached = pipe.attach(None);
        let number = self.add(pipe, true);
        self.send_pending(attached.pipe());
        (attached, number)
    }

    /// Resumes a stream after the last event that the client has seen.
    pub(super) fn resume(&self, last: &StreamEventId) -> Option<PipeAttachment> {
        let (pipe, listens) = {
            let state = self.state.lock();
            let found = state.streams.iter().find(|stream| stream.number == last.stream)?;
            (Arc::clone(&found.pipe), found.listens)
        };
        let attached = pipe.attach(Some(last.event));
        if listens {
            self.send_pending(&pipe);
        }
        Some(attached)
    }

    fn send_pending(&self, pipe: &MessagePipe) {
        let mut state = self.state.lock();
        state.pending_bytes = 0;
        for message in std::mem::take(&mut state.pending) {
            // A stream holds at least as much as the pending messages.
            let _ = pipe.send(message);
        }
    }

    fn add(&self, pipe: Arc<MessagePipe>, listens: bool) -> u64 {
        let mut state = self.state.lock();
        let number = state.next_stream;
        state.next_stream += 1;
        if state.closed {
            pipe.end();
            return number;
        }
        state.streams.push_back(NumberedStream { number, listens, pipe });
        let mut total_bytes: usize = state.streams.iter().map(|stream| stream.pipe.bytes()).sum();
        // The oldest finished streams are dropped first. If there are too many streams, the oldest is dropped: it
        // ends normally, but it can no longer be resumed.
        while state.streams.len() > MOST_STREAMS || total_bytes > MOST_BYTES {
            let over = state.streams.len() > MOST_STREAMS;
            let rest = state.streams.len() - 1;
            let done =
                state.streams.iter().take(rest).position(|stream| {
                    stream.pipe.has_ended() || (stream.listens && !stream.pipe.is_attached())
                });
            let Some(at) = done.or(over.then_some(0)) else { break };
            if let Some(dropped) = state.streams.remove(at) {
                total_bytes = total_bytes.saturating_sub(dropped.pipe.bytes());
            }
        }
        number
    }
}

/// The session that the response to a request names to the client.
#[derive(Debug)]
pub(super) struct ResponseSession(Mutex<Option<Arc<SessionStreams>>>);

impl ResponseSession {
    pub(super) fn new(session: Option<Arc<SessionStreams>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(session)))
    }

    pub(super) fn get(&self) -> Option<Arc<SessionStreams>> {
        self.0.lock().clone()
    }

    pub(super) fn set(&self, session: Arc<SessionStreams>) {
        *self.0.lock() = Some(session);
    }
}

/// The id of an event within its session: the number of the stream, and the number of the event in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamEventId {
    pub(super) stream: u64,
    pub(super) event: u64,
}

impl StreamEventId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (stream, event) = text.trim().split_once('-')?;
        Some(Self { stream: stream.parse().ok()?, event: event.parse().ok()? })
    }
}

impl fmt::Display for StreamEventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.event)
    }
}

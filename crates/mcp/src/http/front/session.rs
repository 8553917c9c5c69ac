//! A session of the older era, as far as streams are concerned: those that can be resumed, those that listen, and what
//! waits for one to listen.
//!
//! Which sessions exist, whose they are and how long they live is decided above; whoever keeps a session keeps one of these.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::Unsent;
use super::pipe::{Attached, Pipe, StreamLimits};
use crate::message::Message;

/// The name of a session: visible ASCII, at most 256 characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Box<str>);

impl SessionId {
    /// Takes a text that should be one.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who knows the name of a session can speak in it, so logs must not have it in full.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.0.get(..self.0.len().min(6)).unwrap_or_default())
    }
}

/// The streams of one session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    state: Mutex<State>,
    limits: StreamLimits,
}

#[derive(Debug, Default)]
struct State {
    next_stream: u64,
    /// Streams that can be resumed by their number, oldest first; those that listen are among them.
    streams: VecDeque<Numbered>,
    /// Messages that wait for a stream that listens.
    pending: VecDeque<Message>,
    pending_bytes: usize,
    closed: bool,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    listens: bool,
    pipe: Arc<Pipe>,
}

/// What became of a message for no request in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It goes out on a stream that listens.
    Sent,
    /// Nobody listens; it waits for one.
    Kept,
}

/// Streams of a session that are remembered. More than any client has open at a time.
const MOST_STREAMS: usize = 128;
/// Messages that wait for a stream that listens, and their bytes.
const MOST_PENDING: usize = 64;
const MOST_PENDING_BYTES: usize = 256 << 10;
/// What all streams of a session may hold when they are done. Beyond it the oldest are forgotten.
const MOST_BYTES: usize = 4 << 20;

impl Session {
    /// A session of this name.
    pub fn new(id: SessionId, limits: StreamLimits) -> Arc<Self> {
        Arc::new(Self { id, state: Mutex::default(), limits })
    }

    /// The same for a session that others had before, whose streams are not known here. Those that are made now get numbers
    /// that none of them had, so that nobody who comes back to one of them is given another.
    pub fn again(id: SessionId, limits: StreamLimits) -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next_stream = u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2);
        Arc::new(Self { id, state: Mutex::new(State { next_stream, ..State::default() }), limits })
    }

    /// Its name.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Sends a message that belongs to no request: on the stream that began to listen last, else when one does.
    pub fn push(&self, message: Message) -> Result<Pushed, Unsent> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Unsent::Ended);
        }
        let listening = state.streams.iter().rev().find(|stream| stream.listens && stream.pipe.is_attached());
        if let Some(stream) = listening {
            return stream.pipe.send(message).map(|()| Pushed::Sent);
        }
        let length = message.bytes().len();
        if state.pending.len() >= MOST_PENDING || state.pending_bytes + length > MOST_PENDING_BYTES {
            return Err(Unsent::Full);
        }
        state.pending_bytes += length;
        state.pending.push_back(message);
        Ok(Pushed::Kept)
    }

    /// Whether a stream listens for messages that belong to no request.
    pub fn is_listening(&self) -> bool {
        self.state.lock().streams.iter().any(|stream| stream.listens && stream.pipe.is_attached())
    }

    /// Ends all its streams. What comes afterwards is refused.
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

    /// Remembers the stream of an answer, so that it can be resumed; gives its number.
    pub(super) fn remember(&self, pipe: &Arc<Pipe>) -> u64 {
        pipe.make_resumable();
        self.add(Arc::clone(pipe), false)
    }

    /// A new stream that listens, and its number.
    pub(super) fn listen(&self) -> (Attached, u64) {
        let pipe = Pipe::new(self.limits, None);
        pipe.make_resumable();
        let attached = pipe.attach(None);
        let number = self.add(pipe, true);
        self.send_pending(attached.pipe());
        (attached, number)
    }

    /// Goes on with a stream behind the last event that the client has seen of it.
    pub(super) fn resume(&self, last: &EventId) -> Option<Attached> {
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

    fn send_pending(&self, pipe: &Pipe) {
        let mut state = self.state.lock();
        state.pending_bytes = 0;
        for message in std::mem::take(&mut state.pending) {
            // A stream takes at least as much as may be pending.
            let _ = pipe.send(message);
        }
    }

    fn add(&self, pipe: Arc<Pipe>, listens: bool) -> u64 {
        let mut state = self.state.lock();
        let number = state.next_stream;
        state.next_stream += 1;
        if state.closed {
            pipe.end();
            return number;
        }
        state.streams.push_back(Numbered { number, listens, pipe });
        let mut held: usize = state.streams.iter().map(|stream| stream.pipe.bytes()).sum();
        // The oldest that are done go first; of too many, simply the oldest: they end like any other, and only cannot be
        // resumed any more.
        while state.streams.len() > MOST_STREAMS || held > MOST_BYTES {
            let over = state.streams.len() > MOST_STREAMS;
            let rest = state.streams.len() - 1;
            let done =
                state.streams.iter().take(rest).position(|stream| {
                    stream.pipe.has_ended() || (stream.listens && !stream.pipe.is_attached())
                });
            let Some(at) = done.or(over.then_some(0)) else { break };
            if let Some(gone) = state.streams.remove(at) {
                held = held.saturating_sub(gone.pipe.bytes());
            }
        }
        number
    }
}

/// The name of an event within its session: which stream, which event of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventId {
    pub(super) stream: u64,
    pub(super) event: u64,
}

impl EventId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (stream, event) = text.trim().split_once('-')?;
        Some(Self { stream: stream.parse().ok()?, event: event.parse().ok()? })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.event)
    }
}

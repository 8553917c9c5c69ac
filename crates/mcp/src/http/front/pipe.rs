//! One stream of messages to a client: from whoever answers to whichever connection carries it.
//!
//! ```text
//!   send, finish ──▶ waiting ──▶ taken by the connection ──▶ kept for a while, if the stream can be resumed
//! ```
//!
//! Sending never waits: a client that does not read fills its own stream and nothing else. At any time at most one
//! connection reads; a newer one takes over from an older one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Unsent;
use super::refusal::Refusal;
use super::session::Session;
use crate::delivery::{Arrived, Delivery, Tracker};
use crate::message::Message;

/// How much one stream may hold.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// Messages that wait for a connection to take them.
    pub waiting_messages: usize,
    /// Their bytes.
    pub waiting_bytes: usize,
    /// Messages that were taken and are kept in case that they did not arrive, in streams that can be resumed.
    pub kept_messages: usize,
    /// Their bytes.
    pub kept_bytes: usize,
}

impl Default for StreamLimits {
    /// A megabyte waiting, and a quarter of one to look back on.
    fn default() -> Self {
        Self { waiting_messages: 512, waiting_bytes: 1 << 20, kept_messages: 128, kept_bytes: 256 << 10 }
    }
}

/// A stream. Shared by who sends, the connection that reads, and the session that remembers it.
#[derive(Debug)]
pub(super) struct Pipe {
    state: Mutex<State>,
    /// Whether a connection reads.
    attached: watch::Sender<bool>,
    limits: StreamLimits,
}

#[derive(Debug)]
struct State {
    /// Taken ones first, as far as they are kept.
    events: VecDeque<Event>,
    /// How many of them were taken.
    taken: usize,
    taken_bytes: usize,
    waiting_bytes: usize,
    next_number: u64,
    /// Whether it is told as a stream of events: it has messages before the answer, or took long.
    streams: bool,
    /// Whether what was taken is kept.
    resumable: bool,
    /// Which connection reads: counts up with each.
    reader: u64,
    end: End,
    /// The session that the answer tells the client about.
    session: Option<Arc<Session>>,
    waker: Option<Waker>,
}

#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Its place in the stream, from one.
    pub(super) number: u64,
    pub(super) message: Message,
    /// Set for answers.
    pub(super) tracker: Option<Tracker>,
    pub(super) behind: Behind,
}

/// What comes behind an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// More may come.
    More,
    /// It is the last one.
    Nothing,
}

#[derive(Clone, Debug)]
enum End {
    /// More may come.
    Open,
    /// What is there is all.
    Done,
    /// There is no stream, but a refusal.
    Refused(Refusal),
}

/// What a stream begins with, and so how it is told over HTTP.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is looked at once, and a box would be one for each answer")]
pub(super) enum First {
    /// The final answer at once.
    Answer(Event),
    /// Something else comes before it.
    Stream,
    /// A refusal.
    Refused(Refusal),
    /// It ended without an answer.
    Nothing,
}

impl Pipe {
    pub(super) fn new(limits: StreamLimits, session: Option<Arc<Session>>) -> Arc<Self> {
        let state = State {
            events: VecDeque::new(),
            taken: 0,
            taken_bytes: 0,
            waiting_bytes: 0,
            next_number: 1,
            streams: false,
            resumable: false,
            reader: 0,
            end: End::Open,
            session,
            waker: None,
        };
        Arc::new(Self { state: Mutex::new(state), attached: watch::Sender::new(false), limits })
    }

    /// Takes a message that is not the last one.
    pub(super) fn send(&self, message: Message) -> Result<(), Unsent> {
        self.take_one(message, None)
    }

    /// Takes the answer to a request that another stream was for; more may come behind it.
    pub(super) fn answer(&self, message: Message, arrived: Option<Arrived>) -> Result<Delivery, Unsent> {
        let (tracker, delivery) = Tracker::telling(message.id(), arrived);
        self.take_one(message, Some(tracker)).map(|()| delivery)
    }

    fn take_one(&self, message: Message, tracker: Option<Tracker>) -> Result<(), Unsent> {
        let mut state = self.state.lock();
        if !matches!(state.end, End::Open) {
            return Err(Unsent::Ended);
        }
        if !*self.attached.borrow() && !state.resumable {
            return Err(Unsent::Gone);
        }
        let length = message.bytes().len();
        let waiting = state.events.len() - state.taken;
        // A single long message always fits: there is no other way to bring it.
        let is_full = waiting >= self.limits.waiting_messages
            || (waiting > 0 && state.waiting_bytes + length > self.limits.waiting_bytes);
        if is_full {
            return Err(Unsent::Full);
        }
        state.streams = true;
        let waker = state.push(message, tracker, Behind::More);
        drop(state);
        wake(waker);
        Ok(())
    }

    /// Takes the final answer. It is taken however full the stream is: there is one for each request.
    pub(super) fn finish(&self, message: Message, arrived: Option<Arrived>) -> Delivery {
        let (tracker, delivery) = Tracker::telling(message.id(), arrived);
        let mut state = self.state.lock();
        // A stream that nobody reads and nobody can resume drops it, and the delivery says so.
        let is_lost = !matches!(state.end, End::Open) || (!*self.attached.borrow() && !state.resumable);
        let waker = match is_lost {
            true => state.waker.take(),
            false => state.push(message, Some(tracker), Behind::Nothing),
        };
        if matches!(state.end, End::Open) {
            state.end = End::Done;
        }
        drop(state);
        wake(waker);
        delivery
    }

    /// Ends it without more.
    pub(super) fn end(&self) {
        self.end_with(|_| End::Done);
    }

    /// Ends it with a refusal. Where a stream has begun it is too late for a status; there the error is the last message.
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.end_with(|state| {
            if !state.streams {
                return End::Refused(refusal);
            }
            state.push(*refusal.error, None, Behind::Nothing);
            End::Done
        });
    }

    fn end_with(&self, end: impl FnOnce(&mut State) -> End) {
        let mut state = self.state.lock();
        if !matches!(state.end, End::Open) {
            return;
        }
        let waker = state.waker.take();
        state.end = end(&mut state);
        drop(state);
        wake(waker);
    }

    /// The session that the answer will name.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.state.lock().session.clone()
    }

    pub(super) fn set_session(&self, session: Arc<Session>) {
        self.state.lock().session = Some(session);
    }

    /// From now on it is told as a stream of events, unless it was refused before.
    pub(super) fn begin_stream(&self) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if let End::Refused(refusal) = &state.end {
            return Err(refusal.clone());
        }
        state.streams = true;
        Ok(())
    }

    /// From now on it can be resumed.
    pub(super) fn make_resumable(&self) {
        let mut state = self.state.lock();
        (state.streams, state.resumable) = (true, true);
    }

    /// Whether nothing more will come into it.
    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.state.lock().end, End::Open)
    }

    /// The bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        let state = self.state.lock();
        state.taken_bytes + state.waiting_bytes
    }

    pub(super) fn is_attached(&self) -> bool {
        *self.attached.borrow()
    }

    /// Waits until no connection reads.
    pub(super) async fn detached(&self) {
        let mut attached = self.attached.subscribe();
        // The sender lives in `self`, so this ends by the value only.
        let _ = attached.wait_for(|attached| !attached).await;
    }

    /// A connection begins to read where the last one stopped, or behind the event of this number.
    pub(super) fn attach(self: &Arc<Self>, behind: Option<u64>) -> Attached {
        let mut state = self.state.lock();
        state.reader += 1;
        if let Some(behind) = behind {
            state.rewind(behind);
        }
        let reader = state.reader;
        let waker = state.waker.take();
        self.attached.send_replace(true);
        drop(state);
        // Whoever read before finds out that it is not the reader any more.
        wake(waker);
        Attached { pipe: Arc::clone(self), reader }
    }

    /// Waits for the first thing that comes.
    fn poll_first(&self, reader: u64, cx: &mut Context<'_>) -> Poll<First> {
        let mut state = self.state.lock();
        if let End::Refused(refusal) = &state.end {
            return Poll::Ready(First::Refused(refusal.clone()));
        }
        match state.events.front() {
            Some(event) if event.tracker.is_some() && event.behind == Behind::Nothing => {
                match state.take(&self.limits) {
                    Some(event) => Poll::Ready(First::Answer(event)),
                    None => Poll::Ready(First::Nothing),
                }
            }
            Some(_) => Poll::Ready(First::Stream),
            None if matches!(state.end, End::Done) || state.reader != reader => Poll::Ready(First::Nothing),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.state.lock();
        if state.reader != reader {
            return Poll::Ready(None);
        }
        match state.take(&self.limits) {
            Some(event) => Poll::Ready(Some(event)),
            None if matches!(state.end, End::Open) => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }

    fn detach(&self, reader: u64) {
        let mut state = self.state.lock();
        if state.reader != reader {
            return;
        }
        state.waker = None;
        self.attached.send_replace(false);
        if !state.resumable {
            // Nobody can ever read it; its trackers must not say otherwise.
            let events = std::mem::take(&mut state.events);
            (state.taken, state.taken_bytes, state.waiting_bytes) = (0, 0, 0);
            drop(state);
            drop(events);
        }
    }
}

impl State {
    fn push(&mut self, message: Message, tracker: Option<Tracker>, behind: Behind) -> Option<Waker> {
        self.waiting_bytes += message.bytes().len();
        self.events.push_back(Event { number: self.next_number, message, tracker, behind });
        self.next_number += 1;
        self.waker.take()
    }

    /// Hands out the next one that waits, and keeps it if the stream can be resumed.
    fn take(&mut self, limits: &StreamLimits) -> Option<Event> {
        let event = self.events.get(self.taken)?.clone();
        self.taken += 1;
        self.waiting_bytes -= event.message.bytes().len();
        self.taken_bytes += event.message.bytes().len();
        let (messages, bytes) =
            if self.resumable { (limits.kept_messages, limits.kept_bytes) } else { (0, 0) };
        // The last one taken stays in a stream that can be resumed, however long it is: it may be the answer.
        while self.taken > usize::from(self.resumable) && (self.taken > messages || self.taken_bytes > bytes)
        {
            let Some(oldest) = self.events.pop_front() else { break };
            self.taken -= 1;
            self.taken_bytes -= oldest.message.bytes().len();
        }
        Some(event)
    }

    /// What stands behind this number waits again, as far as it is still there.
    fn rewind(&mut self, behind: u64) {
        while let Some(last) = self.taken.checked_sub(1)
            && let Some(event) = self.events.get(last)
            && event.number > behind
        {
            let length = event.message.bytes().len();
            (self.taken, self.taken_bytes) = (last, self.taken_bytes - length);
            self.waiting_bytes += length;
        }
        // And what the client says it has, it has.
        while let Some(event) = self.events.get(self.taken)
            && event.number <= behind
        {
            let length = event.message.bytes().len();
            (self.taken, self.waiting_bytes) = (self.taken + 1, self.waiting_bytes - length);
            self.taken_bytes += length;
        }
    }
}

/// One connection's hold on a stream. Dropping it lets go.
#[derive(Debug)]
pub(super) struct Attached {
    pipe: Arc<Pipe>,
    reader: u64,
}

impl Attached {
    pub(super) fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }

    pub(super) async fn first(&self) -> First {
        std::future::poll_fn(|cx| self.pipe.poll_first(self.reader, cx)).await
    }

    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.pipe.poll_next(self.reader, cx)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.pipe.detach(self.reader);
    }
}

/// The data of an event: the message on one line.
pub(super) fn data_of(event: &Event) -> Bytes {
    event.message.one_line()
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

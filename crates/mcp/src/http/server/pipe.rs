//! One stream of messages to a client, from the sender to the connection that currently carries it.
//!
//! ```text
//!   send, finish ──▶ waiting ──▶ taken by the connection ──▶ kept for a while, if the stream can be resumed
//! ```
//!
//! Sending never waits: a client that does not read fills its own stream and nothing else. At any time at most one
//! connection reads. A newer one takes over from an older one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::refusal::HttpRefusal;
use crate::delivery::{DeliveryCallback, DeliveryTracker, PendingDelivery};
use crate::message::RpcMessage;

/// Limits of one stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// Messages that wait to be taken by a connection.
    pub waiting_messages: usize,
    /// Total bytes of these messages.
    pub waiting_bytes: usize,
    /// Messages that are kept after they were taken, in case they did not arrive. Only in streams that can be
    /// resumed.
    pub kept_messages: usize,
    /// Total bytes of these messages.
    pub kept_bytes: usize,
}

impl Default for StreamLimits {
    /// 1 MiB waiting, and 256 KiB for resumption.
    fn default() -> Self {
        Self { waiting_messages: 512, waiting_bytes: 1 << 20, kept_messages: 128, kept_bytes: 256 << 10 }
    }
}

/// The reason why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamSendError {
    /// The buffer is full because the client reads too slowly.
    Full,
    /// The client is gone and cannot resume this stream.
    Gone,
    /// The stream has ended.
    Ended,
}

/// A stream, shared by its sender, the connection that reads it, and the session that remembers it.
#[derive(Debug)]
pub(super) struct MessagePipe {
    state: Mutex<State>,
    /// True while a connection reads the stream.
    attached: watch::Sender<bool>,
    limits: StreamLimits,
}

#[derive(Debug)]
struct State {
    /// Events that were taken and are kept come first.
    events: VecDeque<PipeEvent>,
    /// Number of events that were taken.
    taken: usize,
    taken_bytes: usize,
    waiting_bytes: usize,
    next_number: u64,
    /// True if the response is a stream of events, because it has messages before the final response, or took long.
    streams: bool,
    /// True if events are kept after they were taken.
    resumable: bool,
    /// Number of the connection that reads. Incremented for each connection.
    reader: u64,
    end: PipeEnd,
    waker: Option<Waker>,
}

#[derive(Clone, Debug)]
pub(super) struct PipeEvent {
    /// Position in the stream, counted from one.
    pub(super) number: u64,
    pub(super) message: RpcMessage,
    /// Set for responses.
    pub(super) tracker: Option<DeliveryTracker>,
    pub(super) position: StreamPosition,
}

/// Position of an event relative to the end of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamPosition {
    /// More events may follow.
    More,
    /// The event is the last one.
    Last,
}

#[derive(Clone, Debug)]
enum PipeEnd {
    /// More events may follow.
    Open,
    /// The stream is complete.
    Done,
    /// The request was refused.
    Refused(HttpRefusal),
}

/// First item of a stream. It decides the form of the HTTP response.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is used once, and a box would be an allocation for each response"
)]
pub(super) enum FirstItem {
    /// The final response.
    Answer(PipeEvent),
    /// A message before the final response.
    Stream,
    /// A refusal.
    Refused(HttpRefusal),
    /// The stream ended without a response.
    Nothing,
}

impl MessagePipe {
    pub(super) fn new(limits: StreamLimits) -> Arc<Self> {
        let state = State {
            events: VecDeque::new(),
            taken: 0,
            taken_bytes: 0,
            waiting_bytes: 0,
            next_number: 1,
            streams: false,
            resumable: false,
            reader: 0,
            end: PipeEnd::Open,
            waker: None,
        };
        Arc::new(Self { state: Mutex::new(state), attached: watch::Sender::new(false), limits })
    }

    /// Adds a message that is not the last one.
    pub(super) fn send(&self, message: RpcMessage) -> Result<(), StreamSendError> {
        self.take_one(message, None)
    }

    /// Adds the response to a request that belonged to another stream. More messages may follow.
    pub(super) fn answer(
        &self,
        message: RpcMessage,
        arrived: Option<DeliveryCallback>,
    ) -> Result<PendingDelivery, StreamSendError> {
        let (tracker, delivery) = DeliveryTracker::with_callback(message.id(), arrived);
        self.take_one(message, Some(tracker)).map(|()| delivery)
    }

    fn take_one(&self, message: RpcMessage, tracker: Option<DeliveryTracker>) -> Result<(), StreamSendError> {
        let mut state = self.state.lock();
        if !matches!(state.end, PipeEnd::Open) {
            return Err(StreamSendError::Ended);
        }
        if !*self.attached.borrow() && !state.resumable {
            return Err(StreamSendError::Gone);
        }
        let length = message.bytes().len();
        let waiting = state.events.len() - state.taken;
        // A single long message always fits, because there is no other way to send it.
        let is_full = waiting >= self.limits.waiting_messages
            || (waiting > 0 && state.waiting_bytes + length > self.limits.waiting_bytes);
        if is_full {
            return Err(StreamSendError::Full);
        }
        state.streams = true;
        let waker = state.push(message, tracker, StreamPosition::More);
        drop(state);
        wake(waker);
        Ok(())
    }

    /// Adds the final response, even if the stream is full: each request has exactly one.
    pub(super) fn finish(&self, message: RpcMessage, arrived: Option<DeliveryCallback>) -> PendingDelivery {
        let (tracker, delivery) = DeliveryTracker::with_callback(message.id(), arrived);
        let mut state = self.state.lock();
        // If no connection reads the stream and none can resume it, the response is dropped, and the delivery reports
        // it as lost.
        let is_lost = !matches!(state.end, PipeEnd::Open) || (!*self.attached.borrow() && !state.resumable);
        let waker = match is_lost {
            true => state.waker.take(),
            false => state.push(message, Some(tracker), StreamPosition::Last),
        };
        if matches!(state.end, PipeEnd::Open) {
            state.end = PipeEnd::Done;
        }
        drop(state);
        wake(waker);
        delivery
    }

    /// Ends the stream without another message.
    pub(super) fn end(&self) {
        self.end_with(|_| PipeEnd::Done);
    }

    /// Ends the stream with a refusal. If the stream has begun, it is too late for a status, and the error is the
    /// last message.
    pub(super) fn refuse(&self, refusal: HttpRefusal) {
        self.end_with(|state| {
            if !state.streams {
                return PipeEnd::Refused(refusal);
            }
            state.push(*refusal.error, None, StreamPosition::Last);
            PipeEnd::Done
        });
    }

    fn end_with(&self, end: impl FnOnce(&mut State) -> PipeEnd) {
        let mut state = self.state.lock();
        if !matches!(state.end, PipeEnd::Open) {
            return;
        }
        let waker = state.waker.take();
        state.end = end(&mut state);
        drop(state);
        wake(waker);
    }

    /// Makes the response a stream of events, unless it was refused before.
    pub(super) fn begin_stream(&self) -> Result<(), HttpRefusal> {
        let mut state = self.state.lock();
        if let PipeEnd::Refused(refusal) = &state.end {
            return Err(refusal.clone());
        }
        state.streams = true;
        Ok(())
    }

    /// Makes the stream resumable.
    pub(super) fn make_resumable(&self) {
        let mut state = self.state.lock();
        (state.streams, state.resumable) = (true, true);
    }

    /// Returns true if nothing more will be added.
    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.state.lock().end, PipeEnd::Open)
    }

    /// Returns the number of bytes that the stream holds.
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
        // The sender lives in `self`, so only the value ends this wait.
        let _ = attached.wait_for(|attached| !attached).await;
    }

    /// Attaches a connection, which continues where the last one stopped, or after the event with this number.
    pub(super) fn attach(self: &Arc<Self>, last_seen: Option<u64>) -> PipeAttachment {
        let mut state = self.state.lock();
        state.reader += 1;
        if let Some(last_seen) = last_seen {
            state.rewind(last_seen);
        }
        let reader = state.reader;
        let waker = state.waker.take();
        self.attached.send_replace(true);
        drop(state);
        // The previous reader detects that it was replaced.
        wake(waker);
        PipeAttachment { pipe: Arc::clone(self), reader }
    }

    /// Waits for the first item.
    fn poll_first(&self, reader: u64, cx: &mut Context<'_>) -> Poll<FirstItem> {
        let mut state = self.state.lock();
        if let PipeEnd::Refused(refusal) = &state.end {
            return Poll::Ready(FirstItem::Refused(refusal.clone()));
        }
        match state.events.front() {
            Some(event) if event.tracker.is_some() && event.position == StreamPosition::Last => {
                match state.take(&self.limits) {
                    Some(event) => Poll::Ready(FirstItem::Answer(event)),
                    None => Poll::Ready(FirstItem::Nothing),
                }
            }
            Some(_) => Poll::Ready(FirstItem::Stream),
            None if matches!(state.end, PipeEnd::Done) || state.reader != reader => {
                Poll::Ready(FirstItem::Nothing)
            }
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<PipeEvent>> {
        let mut state = self.state.lock();
        if state.reader != reader {
            return Poll::Ready(None);
        }
        match state.take(&self.limits) {
            Some(event) => Poll::Ready(Some(event)),
            None if matches!(state.end, PipeEnd::Open) => {
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
            // The response can never be read. Its trackers must report it as lost.
            let events = std::mem::take(&mut state.events);
            (state.taken, state.taken_bytes, state.waiting_bytes) = (0, 0, 0);
            drop(state);
            drop(events);
        }
    }
}

impl State {
    fn push(
        &mut self,
        message: RpcMessage,
        tracker: Option<DeliveryTracker>,
        position: StreamPosition,
    ) -> Option<Waker> {
        self.waiting_bytes += message.bytes().len();
        self.events.push_back(PipeEvent { number: self.next_number, message, tracker, position });
        self.next_number += 1;
        self.waker.take()
    }

    /// Takes the next waiting event, and keeps it if the stream can be resumed.
    fn take(&mut self, limits: &StreamLimits) -> Option<PipeEvent> {
        let event = self.events.get(self.taken)?.clone();
        self.taken += 1;
        self.waiting_bytes -= event.message.bytes().len();
        self.taken_bytes += event.message.bytes().len();
        let (messages, bytes) =
            if self.resumable { (limits.kept_messages, limits.kept_bytes) } else { (0, 0) };
        // In a resumable stream, the last event taken is kept whatever its length: it may be the response.
        while self.taken > usize::from(self.resumable) && (self.taken > messages || self.taken_bytes > bytes)
        {
            let Some(oldest) = self.events.pop_front() else { break };
            self.taken -= 1;
            self.taken_bytes -= oldest.message.bytes().len();
        }
        Some(event)
    }

    /// Returns the events after this number to the waiting ones, as far as they are still kept.
    fn rewind(&mut self, last_seen: u64) {
        while let Some(last) = self.taken.checked_sub(1)
            && let Some(event) = self.events.get(last)
            && event.number > last_seen
        {
            let length = event.message.bytes().len();
            (self.taken, self.taken_bytes) = (last, self.taken_bytes - length);
            self.waiting_bytes += length;
        }
        // Events that the client has seen need no resending.
        while let Some(event) = self.events.get(self.taken)
            && event.number <= last_seen
        {
            let length = event.message.bytes().len();
            (self.taken, self.waiting_bytes) = (self.taken + 1, self.waiting_bytes - length);
            self.taken_bytes += length;
        }
    }
}

/// The attachment of one connection to a stream. Dropping it detaches the connection.
#[derive(Debug)]
pub(super) struct PipeAttachment {
    pipe: Arc<MessagePipe>,
    reader: u64,
}

impl PipeAttachment {
    pub(super) fn pipe(&self) -> &Arc<MessagePipe> {
        &self.pipe
    }

    pub(super) async fn first(&self) -> FirstItem {
        std::future::poll_fn(|cx| self.pipe.poll_first(self.reader, cx)).await
    }

    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<PipeEvent>> {
        self.pipe.poll_next(self.reader, cx)
    }
}

impl Drop for PipeAttachment {
    fn drop(&mut self) {
        self.pipe.detach(self.reader);
    }
}

/// Returns the data of an event: the message on one line.
pub(super) fn data_of(event: &PipeEvent) -> Bytes {
    event.message.one_line()
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

//! Response bodies: empty, one JSON text, or a stream of events.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::pipe::{PipeAttachment, StreamPosition, data_of};
use super::session::StreamEventId;
use super::streams::StreamPermit;
use crate::delivery::{DeliveryLink, DeliveryTracker};
use crate::sse;

/// The body of a response.
#[derive(Debug)]
pub struct EndpointBody {
    content: EndpointBodyContent,
    /// The permit of an event stream, held as long as the stream lasts.
    _counted: Option<StreamPermit>,
}

#[derive(Debug)]
enum EndpointBodyContent {
    Whole { data: Option<Bytes>, tracker: Option<DeliveryTracker>, link: DeliveryLink },
    Events(Box<EventBody>),
}

impl EndpointBody {
    pub(super) fn whole(data: Bytes, tracker: Option<DeliveryTracker>, link: &DeliveryLink) -> Self {
        let data = (!data.is_empty()).then_some(data);
        Self { content: EndpointBodyContent::Whole { data, tracker, link: link.clone() }, _counted: None }
    }

    pub(super) fn events(events: EventBody) -> Self {
        Self { content: EndpointBodyContent::Events(Box::new(events)), _counted: None }
    }

    /// Holds the permit of a stream for as long as the body lasts.
    pub(super) fn counted(self, counted: Option<StreamPermit>) -> Self {
        Self { _counted: counted, ..self }
    }
}

/// A stream of events on its way to a client.
#[derive(Debug)]
pub(super) struct EventBody {
    source: PipeAttachment,
    link: DeliveryLink,
    /// The number of the stream, if its events have ids.
    number: Option<u64>,
    /// Bytes that are sent before everything else.
    prelude: Option<Bytes>,
    /// The retry time, sent with the first event.
    retry: Option<Duration>,
    keep_alive: Duration,
    timer: Pin<Box<Sleep>>,
    is_finished: bool,
}

/// Settings shared by all streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamTiming {
    /// Time that a client must wait before it resumes.
    pub(super) retry: Duration,
    /// Interval at which a comment is sent while there are no messages.
    pub(super) keep_alive: Duration,
}

impl EventBody {
    /// Creates a stream that cannot be resumed.
    pub(super) fn plain(source: PipeAttachment, link: DeliveryLink, manner: StreamTiming) -> Self {
        let timer = Box::pin(tokio::time::sleep(manner.keep_alive));
        let keep_alive = manner.keep_alive;
        Self { source, link, number: None, prelude: None, retry: None, keep_alive, timer, is_finished: false }
    }

    /// Creates a stream that can be resumed.
    pub(super) fn numbered(
        source: PipeAttachment,
        link: DeliveryLink,
        manner: StreamTiming,
        number: u64,
    ) -> Self {
        Self { number: Some(number), retry: Some(manner.retry), ..Self::plain(source, link, manner) }
    }

    /// Starts the stream with an event without data, so that the client can resume before the first message. Only for
    /// clients that support this. Others see a malformed message.
    pub(super) fn primed(mut self) -> Self {
        if let Some(stream) = self.number {
            let mut prelude = BytesMut::new();
            let id = StreamEventId { stream, event: 0 }.to_string();
            sse::write_event(&mut prelude, Some(&id), self.retry.take(), b"");
            self.prelude = Some(prelude.freeze());
        }
        self
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(prelude) = self.prelude.take() {
            return Poll::Ready(Some(prelude));
        }
        let mut out = BytesMut::new();
        while !self.is_finished && out.len() < FRAME {
            match self.source.poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    let id =
                        self.number.map(|stream| StreamEventId { stream, event: event.number }.to_string());
                    sse::write_event(&mut out, id.as_deref(), self.retry.take(), &data_of(&event));
                    if let Some(tracker) = event.tracker {
                        self.link.record_handed_over(tracker);
                        self.is_finished = event.position == StreamPosition::Last;
                    }
                }
                Poll::Ready(None) => self.is_finished = true,
                Poll::Pending => break,
            }
        }
        if !out.is_empty() {
            self.timer.as_mut().reset(Instant::now() + self.keep_alive);
            return Poll::Ready(Some(out.freeze()));
        }
        if self.is_finished {
            return Poll::Ready(None);
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                self.timer.as_mut().reset(Instant::now() + self.keep_alive);
                // The new timer must be polled, or it never wakes this task.
                let _ = self.timer.as_mut().poll(cx);
                Poll::Ready(Some(Bytes::from_static(sse::KEEP_ALIVE)))
            }
        }
    }
}

/// Approximate size of one frame.
const FRAME: usize = 64 << 10;

impl Body for EndpointBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.content {
            EndpointBodyContent::Whole { data, tracker, link } => {
                if let Some(tracker) = tracker.take() {
                    link.record_handed_over(tracker);
                }
                Poll::Ready(data.take().map(|data| Ok(Frame::data(data))))
            }
            EndpointBodyContent::Events(events) => {
                events.poll(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            EndpointBodyContent::Whole { data, .. } => data.is_none(),
            EndpointBodyContent::Events(events) => events.is_finished && events.prelude.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            EndpointBodyContent::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, Bytes::len) as u64)
            }
            EndpointBodyContent::Events(_) => SizeHint::default(),
        }
    }
}

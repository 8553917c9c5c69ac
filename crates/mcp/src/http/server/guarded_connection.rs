//! A guarded connection: reports writes and its end to its link, and enforces timeouts against slow clients.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::delivery::{DeliveryLink, GRACE};

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    /// From the first byte (of a new connection: from its beginning) to the end of a request's head.
    pub(super) head: Duration,
    /// Between two requests.
    pub(super) idle: Duration,
    /// For taking any byte that is ready to be sent.
    pub(super) write: Duration,
}

/// The activity of a connection with regard to its requests.
#[derive(Clone, Debug)]
pub(super) struct ConnectionActivity(Arc<ConnectionActivityState>);

#[derive(Debug)]
struct ConnectionActivityState {
    now: AtomicU8,
    /// Time since which no request is being answered. Empty while one is.
    waits_since: Mutex<Option<Instant>>,
    /// Another connection needs the slot of this one, so it ends unless a request has arrived on it.
    is_evicted: AtomicBool,
    /// True while a part of a response may not be with the operating system yet.
    is_writing: AtomicBool,
    /// Wakes the reader, because a timer was started for it.
    reader: Mutex<Option<Waker>>,
}

const HEAD: u8 = 0;
const BUSY: u8 = 1;
const IDLE: u8 = 2;
/// Only the reason of a timer, not an activity of a connection.
const EVICTED: u8 = 3;

impl ConnectionActivity {
    pub(super) fn new() -> Self {
        Self(Arc::new(ConnectionActivityState {
            now: AtomicU8::new(HEAD),
            waits_since: Mutex::new(Some(Instant::now())),
            is_evicted: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
            reader: Mutex::new(None),
        }))
    }

    /// Records that the head of a request was read. From here on the connection keeps its slot until the response.
    pub(super) fn busy(&self) {
        self.0.now.store(BUSY, Ordering::Relaxed);
        *self.0.waits_since.lock() = None;
        self.0.is_evicted.store(false, Ordering::Relaxed);
    }

    /// Records that the response was given.
    pub(super) fn idle(&self) {
        self.0.now.store(IDLE, Ordering::Relaxed);
        *self.0.waits_since.lock() = Some(Instant::now());
        self.wake_reader();
    }

    /// Returns the time since which the connection has no request in flight, so that it can be closed without harm.
    /// Returns `None` while a request is being answered or its response is being written.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        let since = *self.0.waits_since.lock();
        since.filter(|_| !self.is_writing() && !self.is_evicted())
    }

    /// Ends the connection, unless a whole request arrives on it before the eviction is noticed.
    pub(super) fn evict(&self) {
        self.0.is_evicted.store(true, Ordering::Relaxed);
        self.wake_reader();
    }

    /// Returns true if the connection ends because another one needs its slot.
    pub(super) fn is_evicted(&self) -> bool {
        self.0.is_evicted.load(Ordering::Relaxed)
    }

    /// Returns true if a part of a response may not have been handed to the operating system yet.
    pub(super) fn is_writing(&self) -> bool {
        self.0.is_writing.load(Ordering::Relaxed)
    }

    /// Returns true if the client has sent at most a part of its request.
    pub(super) fn is_in_head(&self) -> bool {
        self.get() == HEAD
    }

    /// Waits until another connection needs the slot of this one.
    pub(super) async fn evicted(&self) {
        std::future::poll_fn(|cx| {
            self.watch(cx);
            if self.is_evicted() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn watch(&self, cx: &Context<'_>) {
        let mut reader = self.0.reader.lock();
        match &mut *reader {
            Some(reader) => reader.clone_from(cx.waker()),
            None => *reader = Some(cx.waker().clone()),
        }
    }

    fn wake_reader(&self) {
        let reader = self.0.reader.lock().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn get(&self) -> u8 {
        self.0.now.load(Ordering::Relaxed)
    }
}

/// A guarded connection. A single task polls all of it, so no change is missed.
#[derive(Debug)]
pub(super) struct GuardedConnection<C> {
    inner: C,
    link: DeliveryLink,
    activity: ConnectionActivity,
    patience: ConnectionTimeouts,
    reading: ConnectionTimer,
    writing: ConnectionTimer,
}

impl<C> GuardedConnection<C> {
    pub(super) fn new(
        inner: C,
        link: DeliveryLink,
        activity: ConnectionActivity,
        patience: ConnectionTimeouts,
    ) -> Self {
        Self {
            inner,
            link,
            activity,
            patience,
            reading: ConnectionTimer::default(),
            writing: ConnectionTimer::default(),
        }
    }

    /// Closes the link after an error. The error is returned only once: later calls see a connection that seems to
    /// have ended normally.
    fn close_on_error<T>(&self, done: &io::Result<T>) {
        if done.is_err() {
            self.link.close();
        }
    }

    /// Runs the write timeout while a write is blocked.
    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(written) => {
                self.close_on_error(&written);
                self.writing.stop();
                Poll::Ready(written)
            }
            Poll::Pending => {
                self.writing.run(BUSY, self.patience.write);
                self.writing.poll(cx).map(Err)
            }
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for GuardedConnection<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.inner).poll_read(cx, buffer) {
            self.close_on_error(&read);
            if buffer.filled().len() > before && self.activity.get() == IDLE {
                self.activity.0.now.store(HEAD, Ordering::Relaxed);
            }
            return Poll::Ready(read);
        }
        self.activity.watch(cx);
        let doing = self.activity.get();
        match doing {
            BUSY => {
                self.reading.stop();
                return Poll::Pending;
            }
            // Input that arrived before is still read, and responses are written to their end.
            _ if self.activity.is_evicted() && !self.activity.is_writing() => {
                self.reading.run(EVICTED, Duration::ZERO);
            }
            HEAD => {
                let patience = self.patience.head;
                self.reading.run(doing, patience);
            }
            _ => {
                let patience = self.patience.idle;
                self.reading.run(doing, patience);
            }
        }
        self.reading.poll(cx).map(Err)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for GuardedConnection<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.activity.0.is_writing.store(true, Ordering::Relaxed);
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.activity.0.is_writing.store(true, Ordering::Relaxed);
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            // A successful flush means that everything before it is written.
            self.link.record_flush();
            self.activity.0.is_writing.store(false, Ordering::Relaxed);
        }
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        if let Poll::Ready(closed) = &closed {
            self.close_on_error(closed);
        }
        closed
    }
}

/// Detects, after the last response on a connection, if its client has read all of it.
///
/// A client that is done closes the connection. That alone proves nothing: it may have given up before it read the
/// response. But a client that closes a connection with unread data, or before more data comes in, resets it, and it
/// acknowledges the end of the stream only after everything before. So both sides must end without a reset.
pub(super) async fn confirm_delivery(mut stream: TcpStream, link: &DeliveryLink) {
    if !link.is_in_doubt() {
        return;
    }
    let closing = async {
        stream.shutdown().await?;
        while stream.read(&mut [0; 512]).await? > 0 {}
        let mut pause = Duration::from_millis(1);
        // Once a connection has ended on both sides, it has no peer address.
        while stream.peer_addr().is_ok() {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        stream.take_error()?.map_or(Ok(()), Err)
    };
    if let Some(Ok(())) = within(GRACE, closing).await {
        link.record_client_close();
    }
}

/// Grace period after a timeout, for input that arrived in time.
///
/// A process that was frozen (stopped, starved, or on a laptop that slept) wakes up with an expired timeout before it
/// knows which bytes have arrived meanwhile. The runtime polls for input each time before it fires a timer, so one
/// more short wait is enough. Without it, a request that had arrived in full would get a closed connection.
const READ_GRACE: Duration = Duration::from_millis(10);

/// Waits for the future until the limit, and a moment longer for input that arrived in time while the process was
/// frozen.
pub async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for limit in [limit, READ_GRACE] {
        if let Ok(done) = tokio::time::timeout(limit, future.as_mut()).await {
            return Some(done);
        }
    }
    None
}

/// A timer that runs for one reason at a time.
#[derive(Debug, Default)]
struct ConnectionTimer {
    reason: Option<u8>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// True once the time has passed, during the grace period for earlier input.
    is_final_read: bool,
}

impl ConnectionTimer {
    /// Starts the timer for this reason, unless it already runs for it.
    fn run(&mut self, reason: u8, patience: Duration) {
        if self.reason.replace(reason) == Some(reason) {
            return;
        }
        self.is_final_read = false;
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(Instant::now() + patience),
            None => self.sleep = Some(Box::pin(tokio::time::sleep(patience))),
        }
    }

    fn stop(&mut self) {
        self.reason = None;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(sleep) = &mut self.sleep else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        if !self.is_final_read {
            self.is_final_read = true;
            sleep.as_mut().reset(Instant::now() + READ_GRACE);
            ready!(sleep.as_mut().poll(cx));
        }
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(150),
        write: Duration::from_secs(30),
    };

    /// A connection of a process that was frozen: its input becomes known only after this number of polls.
    struct FrozenConnection {
        early_checks: usize,
        arrived: VecDeque<u8>,
    }

    impl AsyncRead for FrozenConnection {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Some(left) = self.early_checks.checked_sub(1) else {
                buffer.put_slice(self.arrived.make_contiguous());
                return Poll::Ready(Ok(()));
            };
            self.early_checks = left;
            Poll::Pending
        }
    }

    fn guarded(early_checks: usize) -> GuardedConnection<FrozenConnection> {
        let inner = FrozenConnection { early_checks, arrived: b"POST".iter().copied().collect() };
        GuardedConnection::new(inner, DeliveryLink::new(), ConnectionActivity::new(), TIMEOUTS)
    }

    /// Regression: at load 10, a client sent its first request in full, and its connection was reset.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_arrived_while_the_process_was_frozen_is_read_and_not_reset() {
        // Neither the first poll nor the one after the timer finds any input.
        let mut connection = guarded(2);
        let mut read = [0; 8];
        assert_eq!(connection.read(&mut read).await.unwrap(), 4);
        assert!(connection.link.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_arrives_ends_the_connection() {
        let mut connection = guarded(usize::MAX);
        let error = connection.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn only_input_from_before_a_timeout_counts() {
        let polls = std::cell::Cell::new(0);
        let known_at = |times| {
            polls.set(0);
            let polls = &polls;
            std::future::poll_fn(move |_| {
                polls.set(polls.get() + 1);
                if polls.get() >= times { Poll::Ready(()) } else { Poll::Pending }
            })
        };
        assert_eq!(within(TIMEOUTS.head, known_at(3)).await, Some(()));
        assert_eq!(within(TIMEOUTS.head, std::future::pending::<()>()).await, None);
    }
}

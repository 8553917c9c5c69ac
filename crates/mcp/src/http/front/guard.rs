//! A connection that is watched: it tells its link what was written and when it ended, and it cuts a client that is too slow.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::delivery::{GRACE, Link};

/// How long a connection may take for what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From its first byte (of a new connection: from its beginning) to the end of a request's head.
    pub(super) head: Duration,
    /// Between two requests.
    pub(super) idle: Duration,
    /// For taking any byte that we have for it.
    pub(super) write: Duration,
}

/// What a connection is doing, as far as its requests are concerned.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Doing>);

#[derive(Debug)]
struct Doing {
    now: AtomicU8,
    /// Waits for bytes while no time runs; has to be called when one begins to.
    reader: Mutex<Option<Waker>>,
}

const HEAD: u8 = 0;
const BUSY: u8 = 1;
const IDLE: u8 = 2;

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Doing { now: AtomicU8::new(HEAD), reader: Mutex::new(None) }))
    }

    /// The head of a request was read.
    pub(super) fn busy(&self) {
        self.0.now.store(BUSY, Ordering::Relaxed);
    }

    /// The answer was given.
    pub(super) fn idle(&self) {
        self.0.now.store(IDLE, Ordering::Relaxed);
        let reader = self.0.reader.lock().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn get(&self) -> u8 {
        self.0.now.load(Ordering::Relaxed)
    }
}

/// A watched connection. All of it is polled by one task, so what it does never changes unseen.
#[derive(Debug)]
pub(super) struct Guarded<C> {
    inner: C,
    link: Link,
    activity: Activity,
    patience: Patience,
    reading: Timer,
    writing: Timer,
}

impl<C> Guarded<C> {
    pub(super) fn new(inner: C, link: Link, activity: Activity, patience: Patience) -> Self {
        Self { inner, link, activity, patience, reading: Timer::default(), writing: Timer::default() }
    }

    /// A connection on which anything fails is over. An error is told once: who asks again finds a connection that looks as
    /// if it had ended well.
    fn heed<T>(&self, done: &io::Result<T>) {
        if done.is_err() {
            self.link.close();
        }
    }

    /// Whatever was to be written: as long as it cannot be, the time runs.
    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(written) => {
                self.heed(&written);
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

impl<C: AsyncRead + Unpin> AsyncRead for Guarded<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.inner).poll_read(cx, buffer) {
            self.heed(&read);
            if buffer.filled().len() > before && self.activity.get() == IDLE {
                self.activity.0.now.store(HEAD, Ordering::Relaxed);
            }
            return Poll::Ready(read);
        }
        let doing = self.activity.get();
        match doing {
            BUSY => {
                self.reading.stop();
                *self.activity.0.reader.lock() = Some(cx.waker().clone());
                return Poll::Pending;
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

impl<C: AsyncWrite + Unpin> AsyncWrite for Guarded<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            // Whoever flushes has written everything that it had before.
            self.link.flushed();
        }
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        if let Poll::Ready(shut) = &shut {
            self.heed(shut);
        }
        shut
    }
}

/// After the last answer on a connection: finds out whether its client took all of it.
///
/// A client that has what it wants ends the connection. That alone proves nothing: it may have given up while the answer was
/// on its way. But whoever closes a connection on which something lies unread, or comes in later, resets it, and our own
/// end is acknowledged only behind everything that came before it. So both sides have to end, and nothing may be reset.
pub(super) async fn part(mut stream: TcpStream, link: &Link) {
    if !link.is_in_doubt() {
        return;
    }
    let parting = async {
        stream.shutdown().await?;
        while stream.read(&mut [0; 512]).await? > 0 {}
        let mut pause = Duration::from_millis(1);
        // A connection that is over on both sides has nobody at its other end any more.
        while stream.peer_addr().is_ok() {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        stream.take_error()?.map_or(Ok(()), Err)
    };
    if let Ok(Ok(())) = tokio::time::timeout(GRACE, parting).await {
        link.taken();
    }
}

/// A time that runs for one reason at a time.
#[derive(Debug, Default)]
struct Timer {
    reason: Option<u8>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Lets it run for this reason; it goes on if it already does.
    fn run(&mut self, reason: u8, patience: Duration) {
        if self.reason.replace(reason) == Some(reason) {
            return;
        }
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(Instant::now() + patience),
            None => self.sleep = Some(Box::pin(tokio::time::sleep(patience))),
        }
    }

    fn stop(&mut self) {
        self.reason = None;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| io::ErrorKind::TimedOut.into()),
            None => Poll::Pending,
        }
    }
}

//! A pool of connections to one server, kept for a moment between two requests.
//!
//! If a server closes a connection just as it is reused, it is unknown if the server got the request, and a call with
//! side effects cannot be repeated. So connections are kept for less time than servers usually keep them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::connect::UpstreamAddress;
use super::failure::UpstreamFailure;

#[derive(Debug)]
pub(super) struct HttpConnectionPool {
    address: UpstreamAddress,
    limits: ConnectionPoolLimits,
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

/// Limits of a connection pool.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPoolLimits {
    /// Open connections, including streams. A message waits for a free one as long as for connecting.
    pub connections: usize,
    /// Idle connections that are kept.
    pub idle: usize,
    /// Time that an idle connection is kept. Common servers close after 5 s.
    pub idle_time: Duration,
    /// The timeout for connecting.
    pub connect: Duration,
    /// The longest head of a response, in bytes.
    pub head_bytes: usize,
}

impl Default for ConnectionPoolLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            idle: 16,
            idle_time: Duration::from_secs(4),
            connect: Duration::from_secs(5),
            head_bytes: 64 << 10,
        }
    }
}

/// Records if a part of a request may have been sent, for callers that drop the request half-way.
#[derive(Clone, Debug, Default)]
pub struct RequestProgress(Arc<AtomicBool>);

impl RequestProgress {
    /// Returns true if a part of the request may have been sent.
    pub fn is_sent(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, sent: bool) {
        self.0.store(sent, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct State {
    /// Idle connections; the most recently used one is last.
    idle: Vec<IdleConnection>,
    /// True while a task closes idle connections whose time has passed.
    is_swept: bool,
}

#[derive(Debug)]
struct IdleConnection {
    sender: SendRequest<Full<Bytes>>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

/// A connection in use. It is closed if it is dropped before its response was read to the end.
#[derive(Debug)]
pub(super) struct PooledConnection {
    sender: SendRequest<Full<Bytes>>,
    place: OwnedSemaphorePermit,
    pool: Arc<HttpConnectionPool>,
}

impl HttpConnectionPool {
    pub(super) fn new(address: UpstreamAddress, limits: ConnectionPoolLimits) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { address, limits, places, state: Mutex::default() })
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
    ) -> Result<(http::Response<Incoming>, PooledConnection), UpstreamFailure> {
        self.send_with_progress(request, &RequestProgress::default()).await
    }

    /// Does the same, and records if a part of the request may have been sent, for callers that drop the future.
    pub(super) async fn send_with_progress(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
        under_way: &RequestProgress,
    ) -> Result<(http::Response<Incoming>, PooledConnection), UpstreamFailure> {
        loop {
            let (mut used, is_fresh) = match self.idle() {
                Some(used) => (used, false),
                None => (self.connect().await?, true),
            };
            under_way.set(true);
            match used.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, used)),
                // A connection that closed while idle returns the request untouched, so another connection may take
                // it.
                Err(mut error) => match (error.take_message(), is_fresh) {
                    (Some(unsent), false) => {
                        under_way.set(false);
                        request = unsent;
                    }
                    (Some(_), true) => {
                        let closed = io::Error::from(io::ErrorKind::NotConnected);
                        return Err(UpstreamFailure::not_sent(&closed));
                    }
                    (None, _) => return Err(UpstreamFailure::lost(error.error())),
                },
            }
        }
    }

    fn idle(self: &Arc<Self>) -> Option<PooledConnection> {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.idle.retain(|idle| idle.until > now && idle.sender.is_ready());
        let idle = state.idle.pop()?;
        Some(PooledConnection { sender: idle.sender, place: idle._place, pool: Arc::clone(self) })
    }

    async fn connect(self: &Arc<Self>) -> Result<PooledConnection, UpstreamFailure> {
        let waiting = Arc::clone(&self.places).acquire_owned();
        let place = match tokio::time::timeout(self.limits.connect, waiting).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) | Err(_) => {
                let text = "all connections to this server are in use";
                return Err(UpstreamFailure::not_sent(&io::Error::new(io::ErrorKind::TimedOut, text)));
            }
        };
        let stream = self
            .address
            .connect(self.limits.connect)
            .await
            .map_err(|error| UpstreamFailure::not_sent(&error))?;
        let mut builder = Builder::new();
        builder.max_buf_size(self.limits.head_bytes.max(8 << 10));
        let not_sent = |error: hyper::Error| UpstreamFailure::not_sent(&io::Error::other(error.to_string()));
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(not_sent)?;
        // Ends with the connection, which ends with its sender and the response in progress.
        tokio::spawn(connection);
        sender.ready().await.map_err(not_sent)?;
        Ok(PooledConnection { sender, place, pool: Arc::clone(self) })
    }

    fn keep(self: &Arc<Self>, used: PooledConnection, hint: Option<Duration>) {
        let time = hint.map_or(self.limits.idle_time, |hint| hint.min(self.limits.idle_time));
        let mut state = self.state.lock();
        if state.idle.len() >= self.limits.idle || time.is_zero() {
            return;
        }
        state.idle.push(IdleConnection {
            sender: used.sender,
            until: Instant::now() + time,
            _place: used.place,
        });
        if !std::mem::replace(&mut state.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self), self.limits.idle_time));
        }
    }
}

/// Closes idle connections whose time has passed, until there are none.
async fn sweep(pool: std::sync::Weak<HttpConnectionPool>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.state.lock();
        let now = Instant::now();
        state.idle.retain(|idle| idle.until > now && !idle.sender.is_closed());
        if state.idle.is_empty() {
            state.is_swept = false;
            return;
        }
    }
}

impl PooledConnection {
    /// Returns the connection to the pool after its response was read to the end. `hint` is how long the server keeps
    /// it.
    pub(super) fn done(self, hint: Option<Duration>) {
        let pool = Arc::clone(&self.pool);
        if self.sender.is_closed() {
            return;
        }
        if self.sender.is_ready() {
            return pool.keep(self, hint);
        }
        // The end of the response is known here a moment before the connection knows it.
        tokio::spawn(async move {
            let mut used = self;
            if used.sender.ready().await.is_ok() {
                pool.keep(used, hint);
            }
        });
    }
}

impl std::fmt::Debug for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address")
    }
}

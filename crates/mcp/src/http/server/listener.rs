//! A small HTTP/1.1 server for endpoints. It accepts connections, and detects the end of each one.
//!
//! The `connections` module assigns the connection slots. A connection that loses its slot before it sent a request,
//! and a request without a slot, are answered with 503 and `Retry-After`.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connections::{ConnectionSlot, Connections};
use super::guarded_connection::{self, ConnectionActivity, ConnectionTimeouts, GuardedConnection};
use crate::delivery::DeliveryLink;

/// The body of an incoming request.
pub type RequestBody = Incoming;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionPeer {
    /// The connection.
    pub link: DeliveryLink,
    /// The remote address.
    pub address: Option<SocketAddr>,
}

/// A service that answers the requests of a listener. Functions of a request and a peer are services without
/// essential requests.
pub trait HttpService: Send + Sync + 'static {
    /// The bodies of its answers.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;

    /// Answers a request.
    fn respond(
        &self,
        request: Request<Incoming>,
        peer: ConnectionPeer,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Returns true if the request is answered even if every connection has a request in flight. Such requests must
    /// be short: health checks, and operator requests.
    fn is_essential(&self, request: &Request<Incoming>) -> bool {
        let _ = request;
        false
    }

    /// Returns the JSON body for a request that is refused because every connection has a request in flight.
    fn overloaded(&self, request: &Request<Incoming>) -> Bytes {
        let _ = request;
        OVERLOADED
    }
}

impl<S, R, B> HttpService for S
where
    S: Fn(Request<Incoming>, ConnectionPeer) -> R + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Body = B;

    fn respond(
        &self,
        request: Request<Incoming>,
        peer: ConnectionPeer,
    ) -> impl Future<Output = Response<B>> + Send + 'static {
        self(request, peer)
    }
}

/// The JSON body with which the HTTP API refuses a request because every connection has a request in flight.
pub const OVERLOADED: Bytes = Bytes::from_static(
    br#"{"error":{"code":"overloaded","message":"connection limit reached; try again later","retryAfterMs":1000}}"#,
);
/// The value of `Retry-After`.
const RETRY_AFTER_DELAY: Duration = Duration::from_secs(1);

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Open connections. One more takes the slot of a connection without a request. If all have a request in flight,
    /// it is answered with 503, unless its request is essential. Each connection may need as much memory as the
    /// longest message.
    pub connections: usize,
    /// Connections beyond them, for essential requests and for refusals.
    pub reserve: usize,
    /// Connections from one remote address without an authenticated request. One more takes the slot of the oldest of
    /// them.
    pub unauthenticated_per_address: usize,
    /// Longest head of a request, in bytes.
    pub head_bytes: usize,
    /// Most headers of a request.
    pub headers: usize,
    /// Timeout for the head of a request.
    pub head_time: Duration,
    /// Time that a connection may be idle between two requests. Clients keep connections for up to 90 s. If the
    /// server closes a connection earlier than its client, the client's next request fails.
    pub idle: Duration,
    /// Time that a client may take no bytes.
    pub write_stall: Duration,
    /// Time that sent data may stay unacknowledged. Below [`crate::delivery::GRACE`], so that a dead connection does
    /// not count as open.
    pub unacknowledged: Duration,
    /// Time that connections have to end when the listener stops.
    pub stop: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            reserve: 64,
            unauthenticated_per_address: 128,
            head_bytes: 64 << 10,
            headers: 100,
            head_time: Duration::from_secs(10),
            idle: Duration::from_secs(150),
            write_stall: Duration::from_secs(30),
            unacknowledged: Duration::from_secs(4),
            stop: Duration::from_secs(5),
        }
    }
}

/// Serves until the stop signal, and then until every connection has ended.
pub async fn serve<S: HttpService>(
    listener: TcpListener,
    limits: ListenerLimits,
    service: S,
    stop: CancellationToken,
) {
    let service = Arc::new(service);
    let connections =
        Connections::new(limits.connections, limits.reserve, limits.unauthenticated_per_address);
    let tasks = TaskTracker::new();
    // Closes the remaining connections after the time for stopping, and also if this future is dropped.
    let cut = CancellationToken::new();
    let _cut = cut.clone().drop_guard();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        let Some((stream, address)) = accepted else { continue };
        let (link, activity) = (DeliveryLink::new(), ConnectionActivity::new());
        let slot = connections.add(address.ip(), &activity, &link);
        let connection = HttpConnection { stream, address, link, activity, slot };
        let (service, stop, cut) = (Arc::clone(&service), stop.clone(), cut.clone());
        tasks.spawn(async move {
            let _ = cut.run_until_cancelled(connection.serve(limits, service, stop)).await;
        });
    }
    drop(listener);
    tasks.close();
    let _ = tokio::time::timeout(limits.stop, tasks.wait()).await;
    cut.cancel();
    tasks.wait().await;
}

async fn accept(listener: &TcpListener, connections: &Connections) -> Option<(TcpStream, SocketAddr)> {
    connections.wait_for_slot().await;
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(_) => {
            // Most likely, no file descriptors are left. Connections that end free some.
            connections.evict_one();
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

/// An accepted connection.
struct HttpConnection {
    stream: TcpStream,
    address: SocketAddr,
    link: DeliveryLink,
    activity: ConnectionActivity,
    slot: ConnectionSlot,
}

impl HttpConnection {
    async fn serve<S: HttpService>(self, limits: ListenerLimits, service: Arc<S>, stop: CancellationToken) {
        let Self { mut stream, address, link, activity, slot } = self;
        configure(&stream, &limits);
        let patience =
            ConnectionTimeouts { head: limits.head_time, idle: limits.idle, write: limits.write_stall };
        let _closing = LinkCloser(link.clone());
        let guarded = GuardedConnection::new(&mut stream, link.clone(), activity.clone(), patience);
        let peer = ConnectionPeer { link, address: Some(address) };
        let is_refused = AtomicBool::new(false);
        let answering = service_fn(|request| {
            activity.busy();
            let is_reserved = slot.is_in_reserve();
            let refusal = if length_of_head(&request) > limits.head_bytes {
                Some(too_long())
            } else if is_reserved && !service.is_essential(&request) {
                is_refused.store(true, Ordering::Relaxed);
                Some(overloaded(service.overloaded(&request)))
            } else {
                None
            };
            let answer = match refusal {
                None => Ok(service.respond(request, peer.clone())),
                Some(refusal) => Err(refusal),
            };
            let activity = activity.clone();
            async move {
                let mut answer = match answer {
                    Ok(answer) => answer.await.map(ActivityBodyContent::OfService),
                    Err(refusal) => refusal.map(ActivityBodyContent::Whole),
                };
                if is_reserved {
                    // The next request on this connection may not be essential.
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer.map(|content| ActivityBody { content, activity }))
            }
        });
        let mut builder = http1::Builder::new();
        // The number of bytes to read before the head must have ended. A single read may return more, so the length
        // is checked again.
        builder.max_headers(limits.headers).max_buf_size(limits.head_bytes.max(8 << 10)).keep_alive(true);
        {
            let mut connection = pin!(builder.serve_connection(TokioIo::new(guarded), answering));
            tokio::select! {
                _ = connection.as_mut() => {}
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        }
        if activity.is_evicted() && activity.is_in_head() && !activity.is_writing() {
            let _ = stream.write_all(&evicted()).await;
        } else if is_refused.into_inner() {
            let _ = tokio::time::timeout(LINGER, linger(&mut stream, &activity)).await;
        }
        guarded_connection::confirm_delivery(stream, &peer.link).await;
    }
}

/// Time for which the rest of a refused request is read, so that its client can read the response.
const LINGER: Duration = Duration::from_secs(1);

/// Reads and discards the remaining input. Closing a connection with unread input resets it, and the response is
/// lost.
async fn linger(stream: &mut TcpStream, activity: &ConnectionActivity) -> io::Result<()> {
    stream.shutdown().await?;
    let mut scrap = [0; 4 << 10];
    loop {
        tokio::select! {
            () = activity.evicted() => return Ok(()),
            read = stream.read(&mut scrap) => if read? == 0 { return Ok(()) },
        }
    }
}

/// Sets the options of an accepted connection.
fn configure(stream: &TcpStream, limits: &ListenerLimits) {
    // Without this, a small response waits for an acknowledgement that the client delays.
    let _ = stream.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(limits.unacknowledged));
}

/// Closes a link when its connection ends, in any way.
struct LinkCloser(DeliveryLink);

impl Drop for LinkCloser {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Returns the length of everything before the body, as it is usually written.
fn length_of_head<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(1, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + " HTTP/1.1\r\n".len() + 1;
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    headers.fold(line, usize::saturating_add).saturating_add(2)
}

/// Returns the response to a request whose head is too long. The rest of the request is not read.
fn too_long() -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Returns the answer to a request that is refused because every connection has a request in flight.
fn overloaded(text: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(text);
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_DELAY.as_secs()));
    answer
}

/// Returns the same response as bytes, for a connection on which no complete request has arrived.
fn evicted() -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: {}\r\n\
         connection: close\r\n\r\n",
        OVERLOADED.len(),
        RETRY_AFTER_DELAY.as_secs()
    );
    [head.as_bytes(), &OVERLOADED].concat()
}

/// A body that reports its end.
struct ActivityBody<B> {
    content: ActivityBodyContent<B>,
    activity: ConnectionActivity,
}

enum ActivityBodyContent<B> {
    OfService(B),
    Whole(Bytes),
}

impl<B> Drop for ActivityBody<B> {
    fn drop(&mut self) {
        self.activity.idle();
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ActivityBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.get_mut().content {
            ActivityBodyContent::OfService(body) => Pin::new(body).poll_frame(cx),
            ActivityBodyContent::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            ActivityBodyContent::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            ActivityBodyContent::OfService(body) => body.is_end_stream(),
            ActivityBodyContent::Whole(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            ActivityBodyContent::OfService(body) => body.size_hint(),
            ActivityBodyContent::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_responses_are_sent_at_once_and_unacknowledged_ones_end_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let limits = ListenerLimits::default();
        configure(&stream, &limits);
        assert!(stream.nodelay().unwrap());
        #[cfg(any(target_os = "linux", target_os = "android"))]
        assert_eq!(socket2::SockRef::from(&stream).tcp_user_timeout().unwrap(), Some(limits.unacknowledged));
    }
}

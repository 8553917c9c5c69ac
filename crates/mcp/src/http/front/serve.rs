//! A lean place for endpoints: accepts connections, speaks HTTP/1.1 on them, and knows when each one is gone.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guard::{self, Activity, Guarded, Patience};
use crate::delivery::Link;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The connection.
    pub link: Link,
    /// Where it comes from.
    pub address: Option<SocketAddr>,
}

/// How much a listener bears, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Connections at a time; more wait to be accepted. Each may cost a message's length of memory.
    pub connections: usize,
    /// The bytes of a request's head.
    pub head_bytes: usize,
    /// The headers of a request.
    pub headers: usize,
    /// How long a request's head may take.
    pub head_time: Duration,
    /// How long a connection may rest between two requests. Clients keep connections for up to 90 s; a server that closes
    /// before they do makes their next request fail.
    pub idle: Duration,
    /// How long a client may take no bytes.
    pub write_stall: Duration,
    /// How long what was sent may stay unacknowledged. Below [`crate::delivery::GRACE`], so that a connection that is dead
    /// does not look open.
    pub unacknowledged: Duration,
    /// How long connections may take to end when the listener stops.
    pub stop: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
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

/// Serves until it is told to stop and every connection has ended.
pub async fn serve<S, R, B>(listener: TcpListener, limits: ServeLimits, service: S, stop: CancellationToken)
where
    S: Fn(Request<Incoming>, Peer) -> R + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = Arc::new(service);
    let room = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let tasks = TaskTracker::new();
    // Ends what is left when the time for ending is over, also when this future is dropped.
    let cut = CancellationToken::new();
    let _cut = cut.clone().drop_guard();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, address, place)) = accepted else { continue };
        let (service, stop, cut) = (Arc::clone(&service), stop.clone(), cut.clone());
        tasks.spawn(async move {
            let connection = connection(stream, address, limits, service, stop);
            let _ = cut.run_until_cancelled(connection).await;
            drop(place);
        });
    }
    drop(listener);
    tasks.close();
    let _ = tokio::time::timeout(limits.stop, tasks.wait()).await;
    cut.cancel();
    tasks.wait().await;
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, address)) => Some((stream, address, place)),
        Err(_) => {
            // No handles left, most likely: the ones that end give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn connection<S, R, B>(
    mut stream: TcpStream,
    address: SocketAddr,
    limits: ServeLimits,
    service: Arc<S>,
    stop: CancellationToken,
) where
    S: Fn(Request<Incoming>, Peer) -> R,
    R: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    configure(&stream, &limits);
    let (link, activity) = (Link::new(), Activity::new());
    let patience = Patience { head: limits.head_time, idle: limits.idle, write: limits.write_stall };
    let _closing = Closing(link.clone());
    let guarded = Guarded::new(&mut stream, link.clone(), activity.clone(), patience);
    let peer = Peer { link, address: Some(address) };
    let answering = service_fn(|request| {
        activity.busy();
        let fits = length_of_head(&request) <= limits.head_bytes;
        let (answer, activity) = (fits.then(|| service(request, peer.clone())), activity.clone());
        async move {
            let answer = match answer {
                Some(answer) => answer.await.map(Some),
                None => too_long(),
            };
            Ok::<_, Infallible>(answer.map(|body| Answering { body, activity }))
        }
    });
    let mut builder = http1::Builder::new();
    // How much is read before a head must have ended. What comes in one piece may be more than that, so its length is looked
    // at again.
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
    guard::part(stream, &peer.link).await;
}

/// Sets the options of an accepted connection.
fn configure(stream: &TcpStream, limits: &ServeLimits) {
    // Without this a small answer waits for an acknowledgement that the client delays.
    let _ = stream.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(limits.unacknowledged));
}

/// Closes a link with the connection that it is, however that ends.
struct Closing(Link);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The length of what stands before the body, as it is usually written.
fn length_of_head<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(1, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + " HTTP/1.1\r\n".len() + 1;
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    headers.fold(line, usize::saturating_add).saturating_add(2)
}

/// What such a request is told that says too much before it begins. Nobody reads the rest of it.
fn too_long<B>() -> Response<Option<B>> {
    let mut answer = Response::new(None);
    *answer.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// A body that tells when it is over; nothing, if it is over from the beginning.
struct Answering<B> {
    body: Option<B>,
    activity: Activity,
}

impl<B> Drop for Answering<B> {
    fn drop(&mut self) {
        self.activity.idle();
    }
}

impl<B: Body + Unpin> Body for Answering<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match &mut self.get_mut().body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), B::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_answers_are_sent_at_once_and_unacknowledged_ones_end_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let limits = ServeLimits::default();
        configure(&stream, &limits);
        assert!(stream.nodelay().unwrap());
        #[cfg(any(target_os = "linux", target_os = "android"))]
        assert_eq!(socket2::SockRef::from(&stream).tcp_user_timeout().unwrap(), Some(limits.unacknowledged));
    }
}

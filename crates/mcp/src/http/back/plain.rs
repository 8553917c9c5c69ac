//! Requests that are not MCP's, over the same connections: for tools that are plain HTTP.
//!
//! How far a request got matters for them as much as for a message ([`Failure`]), and so does everything that the pool does
//! about connections that close while they are kept. Redirects are answers like any other, and nobody follows them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::connect::{Address, BadUrl};
use super::failure::Failure;
use super::pool::{Pool, Used};
use super::{MOST_OF_AN_ERROR, Read, Settings, TIME_FOR_AN_ERROR, kept, read};
use crate::sse::{Event, Item, Parser};

/// Scheme, host and port that requests go to. Copies share its connections.
#[derive(Clone, Debug)]
pub struct Origin {
    pool: Arc<Pool>,
    host: HeaderValue,
    longest: usize,
}

/// A request to an origin.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub target: Uri,
    /// Its headers, but for `Host`.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Replied {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body. That of an answer which is no success is only worth so much: nothing if it is long or slow.
    pub body: Bytes,
}

/// Whether some of a request may have been sent: for whoever drops it half way.
#[derive(Clone, Debug, Default)]
pub struct UnderWay(Arc<AtomicBool>);

impl UnderWay {
    /// Whether some of it may have been.
    pub fn is_sent(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, sent: bool) {
        self.0.store(sent, Ordering::Release);
    }
}

impl Origin {
    /// The origin of this URL; its path and query do not matter. Nothing is connected yet.
    pub fn new(url: &str, settings: Settings) -> Result<Self, BadUrl> {
        let url: Uri = url.parse().map_err(|_| BadUrl::NotHttp)?;
        let authority = url.authority().ok_or(BadUrl::NotHttp)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| BadUrl::NotHttp)?;
        let address = Address::of(&url, settings.tls)?;
        Ok(Self { pool: Pool::new(address, settings.pool), host, longest: settings.message_bytes })
    }

    /// Sends a request and reads its answer. Dropping the future closes the connection; `under_way` says what may have been
    /// sent until then.
    pub async fn send(&self, asked: Asked, under_way: &UnderWay) -> Result<Replied, Failure> {
        let request = self.request(asked);
        let (response, used) = self.pool.send_noting(request, under_way).await?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        if !status.is_success() {
            return Ok(unsuccessful(status, headers, body, used).await);
        }
        match read(body, self.longest).await? {
            Read::Whole(body) => {
                used.done(kept(&headers));
                Ok(Replied { status, headers, body })
            }
            Read::TooLong(told) => Err(Failure::TooLarge { told, limit: self.longest }),
        }
    }

    /// Sends a request whose answer is a stream of server-sent events; any other answer is given as it is.
    pub async fn follow(&self, asked: Asked) -> Result<Result<EventFlow, Replied>, Failure> {
        let (response, used) = self.pool.send(self.request(asked)).await?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if status.is_success() && kind.starts_with("text/event-stream") {
            return Ok(Ok(EventFlow { body, parser: Parser::new(self.longest), _used: used }));
        }
        Ok(Err(unsuccessful(status, headers, body, used).await))
    }

    fn request(&self, asked: Asked) -> Request<Full<Bytes>> {
        let Asked { method, target, headers, body } = asked;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = target;
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, self.host.clone());
        request
    }
}

/// An answer that is not what was asked for. What the status says is enough to go on with; its words are not waited for long.
async fn unsuccessful(status: StatusCode, headers: HeaderMap, body: Incoming, used: Used) -> Replied {
    let said = tokio::time::timeout(TIME_FOR_AN_ERROR, read(body, MOST_OF_AN_ERROR)).await;
    let body = match said {
        Ok(Ok(Read::Whole(said))) => {
            used.done(kept(&headers));
            said
        }
        Ok(Ok(Read::TooLong(_)) | Err(_)) | Err(_) => Bytes::new(),
    };
    Replied { status, headers, body }
}

/// Events as they come, of whatever kind. Dropping it closes the connection.
#[derive(Debug)]
pub struct EventFlow {
    body: Incoming,
    parser: Parser,
    _used: Used,
}

impl EventFlow {
    /// The next event; `None` when the server has ended the stream. One that is too long is passed over.
    ///
    /// Nothing is lost if the future is dropped before it is done.
    pub async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            match self.parser.next_item() {
                Some(Item::Event(event)) => return Some(Ok(event)),
                Some(Item::TooLong(_)) => continue,
                None => {}
            }
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.parser.push(&data);
                    }
                }
                Err(error) => return Some(Err(Failure::lost(&error))),
            }
        }
    }

    /// The id of the last event that had one.
    pub fn last_id(&self) -> Option<&str> {
        self.parser.last_id()
    }
}

//! Plain HTTP requests over the same connections, for tools that are not MCP servers.
//!
//! These requests need the same report of how far they got ([`Failure`]), and the same handling of pooled connections
//! that close. Redirects are returned like any other response, and not followed.

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

/// An HTTP origin: scheme, host and port. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Origin {
    pool: Arc<Pool>,
    host: HeaderValue,
    longest: usize,
}

/// A request to an origin.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: Uri,
    /// The headers, except `Host`.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// A response with any status.
#[derive(Clone, Debug)]
pub struct Replied {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body. For a status that is not a success, the body is empty if it is long or slow.
    pub body: Bytes,
}

/// Records if a part of a request may have been sent, for callers that drop the request half-way.
#[derive(Clone, Debug, Default)]
pub struct UnderWay(Arc<AtomicBool>);

impl UnderWay {
    /// Returns true if a part of the request may have been sent.
    pub fn is_sent(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, sent: bool) {
        self.0.store(sent, Ordering::Release);
    }
}

impl Origin {
    /// Creates a client for the origin of this URL, without connecting. Path and query are ignored.
    pub fn new(url: &str, settings: Settings) -> Result<Self, BadUrl> {
        let url: Uri = url.parse().map_err(|_| BadUrl::NotHttp)?;
        let authority = url.authority().ok_or(BadUrl::NotHttp)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| BadUrl::NotHttp)?;
        let address = Address::of(&url, settings.tls)?;
        Ok(Self { pool: Pool::new(address, settings.pool), host, longest: settings.message_bytes })
    }

    /// Sends a request and reads the response. Dropping the future closes the connection. `under_way` then shows if a
    /// part of the request may have been sent.
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

    /// Sends a request whose response is a stream of server-sent events. Returns any other response as it is.
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

/// Reads a response that is not a success. The status is enough to continue, so there is only a short wait for the
/// body.
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

/// A stream of server-sent events of any type. Dropping it closes the connection.
#[derive(Debug)]
pub struct EventFlow {
    body: Incoming,
    parser: Parser,
    _used: Used,
}

impl EventFlow {
    /// Returns the next event, or `None` when the server has ended the stream. Skips events that are too long.
    ///
    /// This method is cancel safe: no event is lost if the future is dropped.
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

    /// Returns the id of the last event that had one.
    pub fn last_id(&self) -> Option<&str> {
        self.parser.last_id()
    }
}

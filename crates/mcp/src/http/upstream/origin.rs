//! Plain HTTP requests over the same connections, for tools that are not MCP servers.
//!
//! These requests need the same report of how far they got ([`UpstreamFailure`]), and the same handling of pooled connections
//! that close. Redirects are returned like any other response, and not followed.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::connect::{InvalidServerUrl, UpstreamAddress};
use super::failure::UpstreamFailure;
use super::pool::{HttpConnectionPool, PooledConnection, RequestProgress};
use super::{BodyOutcome, HttpUpstreamSettings, MOST_OF_AN_ERROR, TIME_FOR_AN_ERROR, keep_alive, read};
use crate::sse::{SseEvent, SseItem, SseParser};

/// An HTTP origin: scheme, host and port. Clones share its connections.
#[derive(Clone, Debug)]
pub struct HttpOrigin {
    pool: Arc<HttpConnectionPool>,
    host: HeaderValue,
    longest: usize,
}

/// A request to an origin.
#[derive(Clone, Debug)]
pub struct OriginRequest {
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
pub struct OriginResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body. For a status that is not a success, the body is empty if it is long or slow.
    pub body: Bytes,
}

impl HttpOrigin {
    /// Creates a client for the origin of this URL, without connecting. Path and query are ignored.
    pub fn new(url: &str, settings: HttpUpstreamSettings) -> Result<Self, InvalidServerUrl> {
        let url: Uri = url.parse().map_err(|_| InvalidServerUrl::NotHttp)?;
        let authority = url.authority().ok_or(InvalidServerUrl::NotHttp)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidServerUrl::NotHttp)?;
        let address = UpstreamAddress::of(&url, settings.tls)?;
        Ok(Self {
            pool: HttpConnectionPool::new(address, settings.pool),
            host,
            longest: settings.message_bytes,
        })
    }

    /// Sends a request and reads the response. Dropping the future closes the connection. `under_way` then shows if a
    /// part of the request may have been sent.
    pub async fn send(
        &self,
        request: OriginRequest,
        under_way: &RequestProgress,
    ) -> Result<OriginResponse, UpstreamFailure> {
        let request = self.request(request);
        let (response, used) = self.pool.send_with_progress(request, under_way).await?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        if !status.is_success() {
            return Ok(unsuccessful(status, headers, body, used).await);
        }
        match read(body, self.longest).await? {
            BodyOutcome::Whole(body) => {
                used.done(keep_alive(&headers));
                Ok(OriginResponse { status, headers, body })
            }
            BodyOutcome::TooLong(announced) => {
                Err(UpstreamFailure::TooLarge { announced, limit: self.longest })
            }
        }
    }

    /// Sends a request whose response is a stream of server-sent events. Returns any other response as it is.
    pub async fn follow(
        &self,
        request: OriginRequest,
    ) -> Result<Result<SseStream, OriginResponse>, UpstreamFailure> {
        let (response, used) = self.pool.send(self.request(request)).await?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if status.is_success() && kind.starts_with("text/event-stream") {
            return Ok(Ok(SseStream { body, parser: SseParser::new(self.longest), _used: used }));
        }
        Ok(Err(unsuccessful(status, headers, body, used).await))
    }

    fn request(&self, request: OriginRequest) -> Request<Full<Bytes>> {
        let OriginRequest { method, target, headers, body } = request;
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
async fn unsuccessful(
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    used: PooledConnection,
) -> OriginResponse {
    let outcome = tokio::time::timeout(TIME_FOR_AN_ERROR, read(body, MOST_OF_AN_ERROR)).await;
    let body = match outcome {
        Ok(Ok(BodyOutcome::Whole(body))) => {
            used.done(keep_alive(&headers));
            body
        }
        Ok(Ok(BodyOutcome::TooLong(_)) | Err(_)) | Err(_) => Bytes::new(),
    };
    OriginResponse { status, headers, body }
}

/// A stream of server-sent events of any type. Dropping it closes the connection.
#[derive(Debug)]
pub struct SseStream {
    body: Incoming,
    parser: SseParser,
    _used: PooledConnection,
}

impl SseStream {
    /// Returns the next event, or `None` when the server has ended the stream. Skips events that are too long.
    ///
    /// This method is cancel safe: no event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<SseEvent, UpstreamFailure>> {
        loop {
            match self.parser.next_item() {
                Some(SseItem::Event(event)) => return Some(Ok(event)),
                Some(SseItem::TooLong(_)) => continue,
                None => {}
            }
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.parser.push(&data);
                    }
                }
                Err(error) => return Some(Err(UpstreamFailure::lost(&error))),
            }
        }
    }

    /// Returns the id of the last event that had one.
    pub fn last_id(&self) -> Option<&str> {
        self.parser.last_id()
    }
}

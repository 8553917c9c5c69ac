//! The client side of streamable HTTP, for both eras of the protocol.
//!
//! A [`HttpUpstream`] is one URL. [`HttpUpstream::post`] sends a message. The response is empty, one message, or a stream. The
//! legacy era can also listen ([`HttpUpstream::listen`]), resume streams, and end its session ([`HttpUpstream::end`]). A
//! [`UpstreamFailure`] records how far the message got. Only a message that was certainly not sent is retried here, on a
//! fresh connection. There is a timeout for connecting, but none for a response: the layer above limits the duration
//! of a call, and ends it by dropping the future. Requests outside MCP use an [`HttpOrigin`].

mod connect;
mod failure;
mod origin;
mod pool;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use rustls::ClientConfig;
use steadfast_core::classify::RetryAfter;

pub use self::connect::InvalidServerUrl;
use self::connect::UpstreamAddress;
pub use self::failure::{UpstreamFailure, too_large};
pub use self::origin::{HttpOrigin, OriginRequest, OriginResponse, SseStream};
pub use self::pool::{ConnectionPoolLimits, RequestProgress};
use self::pool::{HttpConnectionPool, PooledConnection};
pub use self::stream::{EventStream, StreamItem};
use super::{
    LAST_EVENT_ID, MCP_METHOD, MCP_NAME, MCP_PROTOCOL_VERSION, MCP_SESSION_ID, ProtocolEra, encode_value,
    name_source,
};
use crate::message::{RpcMessage, code};

/// Settings for the connections to a server.
#[derive(Clone, Debug)]
pub struct HttpUpstreamSettings {
    /// The longest message that is accepted.
    pub message_bytes: usize,
    /// The limits of the connection pool.
    pub pool: ConnectionPoolLimits,
    /// Replaces the root certificates of this machine.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Default for HttpUpstreamSettings {
    fn default() -> Self {
        Self { message_bytes: crate::lines::LONGEST_LINE, pool: ConnectionPoolLimits::default(), tls: None }
    }
}

/// The headers that accompany each message to a server.
#[derive(Clone, Debug, Default)]
pub struct MessageContext {
    /// The protocol version, if one was negotiated.
    pub version: Option<Box<str>>,
    /// The session, in the legacy era.
    pub session: Option<Box<str>>,
    /// All other headers: authorization, `Idempotency-Key`, `Mcp-Param-…`.
    pub headers: HeaderMap,
}

/// The response of a server to a message.
#[derive(Debug)]
pub struct UpstreamResponse {
    /// The session that the response opened.
    pub session: Option<Box<str>>,
    /// The content.
    pub content: UpstreamContent,
}

/// The content of a response.
#[derive(Debug)]
pub enum UpstreamContent {
    /// Nothing: a notification or a response was accepted.
    Accepted,
    /// One message.
    One(RpcMessage),
    /// A stream of any number of messages.
    Stream(EventStream),
}

/// A server at a URL. Clones share its connections.
#[derive(Clone, Debug)]
pub struct HttpUpstream {
    pool: Arc<HttpConnectionPool>,
    path: Uri,
    host: HeaderValue,
    message_bytes: usize,
}

impl HttpUpstream {
    /// Creates a client for the server at this URL, without connecting.
    pub fn new(url: &str, settings: HttpUpstreamSettings) -> Result<Self, InvalidServerUrl> {
        let url: Uri = url.parse().map_err(|_| InvalidServerUrl::NotHttp)?;
        let address = UpstreamAddress::of(&url, settings.tls)?;
        let authority = url.authority().ok_or(InvalidServerUrl::NotHttp)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidServerUrl::NotHttp)?;
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse().map_err(|_| InvalidServerUrl::NotHttp)?;
        Ok(Self {
            pool: HttpConnectionPool::new(address, settings.pool),
            path,
            host,
            message_bytes: settings.message_bytes,
        })
    }

    /// Sends a message. Dropping the future closes the connection, which cancels a request in the modern era.
    pub async fn post(
        &self,
        message: &RpcMessage,
        context: &MessageContext,
    ) -> Result<UpstreamResponse, UpstreamFailure> {
        let mut request = self.request(Method::POST, context, Full::new(message.bytes().clone()));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let is_modern = context
            .version
            .as_deref()
            .is_some_and(|version| ProtocolEra::of(version) != Some(ProtocolEra::Legacy));
        if let Some(method) = message.method().filter(|_| is_modern) {
            headers.insert(MCP_METHOD, encode_value(method));
            if let Some(name) = name_source(method).and_then(|source| message.param_text(source)) {
                headers.insert(MCP_NAME, encode_value(&name));
            }
        }
        let (response, used) = self.pool.send(request).await?;
        let response = success(response, context).await?;
        let header = response.headers().get(MCP_SESSION_ID).and_then(|value| value.to_str().ok());
        let session = header.filter(|session| !session.is_empty()).map(Into::into);
        let content = self.content(response, used).await?;
        Ok(UpstreamResponse { session, content })
    }

    /// Listens for messages of a session that belong to no request, or resumes a stream after the last event.
    pub async fn listen(
        &self,
        context: &MessageContext,
        last_event: Option<&str>,
    ) -> Result<EventStream, UpstreamFailure> {
        let mut request = self.request(Method::GET, context, Full::default());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(last) = last_event.and_then(|last| HeaderValue::from_str(last).ok()) {
            request.headers_mut().insert(LAST_EVENT_ID, last);
        }
        let (response, used) = self.pool.send(request).await?;
        let response = success(response, context).await?;
        match self.content(response, used).await? {
            UpstreamContent::Stream(stream) => Ok(stream),
            UpstreamContent::Accepted | UpstreamContent::One(_) => {
                Err(UpstreamFailure::BadAnswer { text: "the server did not open a stream".into() })
            }
        }
    }

    /// Reports to the server that a session is no longer used.
    pub async fn end(&self, context: &MessageContext) -> Result<(), UpstreamFailure> {
        let request = self.request(Method::DELETE, context, Full::default());
        let (response, used) = self.pool.send(request).await?;
        let response = success(response, context).await?;
        let keep_alive = keep_alive(response.headers());
        if let Ok(BodyOutcome::Whole(_)) = read(response.into_body(), MOST_OF_AN_ERROR).await {
            used.done(keep_alive);
        }
        Ok(())
    }

    fn request(&self, method: Method, context: &MessageContext, body: Full<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        *headers = context.headers.clone();
        headers.insert(HOST, self.host.clone());
        let named = [(MCP_PROTOCOL_VERSION, &context.version), (MCP_SESSION_ID, &context.session)];
        for (name, value) in named {
            if let Some(value) = value.as_ref().and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(name, value);
            }
        }
        request
    }

    async fn content(
        &self,
        response: Response<Incoming>,
        used: PooledConnection,
    ) -> Result<UpstreamContent, UpstreamFailure> {
        let (parts, body) = response.into_parts();
        let keep_alive = keep_alive(&parts.headers);
        let kind = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind == "text/event-stream" {
            return Ok(UpstreamContent::Stream(EventStream::new(body, used, keep_alive, self.message_bytes)));
        }
        let text = match read(body, self.message_bytes).await? {
            BodyOutcome::Whole(text) => text,
            BodyOutcome::TooLong(announced) => {
                return Err(UpstreamFailure::TooLarge { announced, limit: self.message_bytes });
            }
        };
        used.done(keep_alive);
        if text.trim_ascii().is_empty() {
            return Ok(UpstreamContent::Accepted);
        }
        if kind != "application/json" {
            // Some servers send a body with a 202. It is ignored.
            return match parts.status {
                StatusCode::ACCEPTED => Ok(UpstreamContent::Accepted),
                _ => Err(UpstreamFailure::BadAnswer {
                    text: format!("the response has the content type {kind:?}"),
                }),
            };
        }
        match RpcMessage::parse(text, self.message_bytes) {
            Ok(message) => Ok(UpstreamContent::One(message)),
            Err(_) if parts.status == StatusCode::ACCEPTED => Ok(UpstreamContent::Accepted),
            Err(error) => Err(UpstreamFailure::BadAnswer { text: error.to_string() }),
        }
    }
}

/// Returns the response if it is a success, else the failure. The connection of a failure is not reused.
async fn success(
    response: Response<Incoming>,
    context: &MessageContext,
) -> Result<Response<Incoming>, UpstreamFailure> {
    if response.status().is_success() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    // The status is enough to continue, so there is only a short wait for the body.
    let body = tokio::time::timeout(TIME_FOR_AN_ERROR, read(body, MOST_OF_AN_ERROR)).await;
    let body = match body {
        Ok(Ok(BodyOutcome::Whole(body))) => body,
        Ok(Ok(BodyOutcome::TooLong(_)) | Err(_)) | Err(_) => Bytes::new(),
    };
    let error =
        RpcMessage::parse(body.clone(), MOST_OF_AN_ERROR).ok().filter(|message| message.error().is_some());
    let is_method = error.as_ref().and_then(RpcMessage::error_code) == Some(code::METHOD_NOT_FOUND);
    if parts.status == StatusCode::NOT_FOUND && context.session.is_some() && !is_method {
        return Err(UpstreamFailure::SessionLost);
    }
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let retry_after = RetryAfter::from_headers(header(RETRY_AFTER.as_str()), header("retry-after-ms"));
    let text = String::from_utf8_lossy(&body).chars().take(MOST_WORDS).collect();
    Err(UpstreamFailure::Status {
        status: parts.status.as_u16(),
        retry_after,
        error: error.map(Box::new),
        text,
    })
}

const MOST_OF_AN_ERROR: usize = 256 << 10;
const MOST_WORDS: usize = 1024;
const TIME_FOR_AN_ERROR: Duration = Duration::from_secs(5);

enum BodyOutcome {
    Whole(Bytes),
    /// The body is longer than the limit. Contains its length if the server announced it.
    TooLong(Option<u64>),
}

async fn read(mut body: Incoming, most: usize) -> Result<BodyOutcome, UpstreamFailure> {
    let announced = body.size_hint().exact();
    if announced.is_some_and(|announced| announced > most as u64) {
        return Ok(BodyOutcome::TooLong(announced));
    }
    let mut all = Bytes::new();
    let mut more: Option<BytesMut> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| UpstreamFailure::lost(&error))?.into_data() else { continue };
        if more.as_ref().map_or(all.len(), BytesMut::len) + data.len() > most {
            return Ok(BodyOutcome::TooLong(announced));
        }
        match &mut more {
            // A short response comes in one piece, and is not copied.
            None if all.is_empty() => all = data,
            None => more = Some([&all[..], &data[..]].concat()[..].into()),
            Some(more) => more.extend_from_slice(&data),
        }
    }
    Ok(BodyOutcome::Whole(more.map_or(all, BytesMut::freeze)))
}

/// Returns how long the server keeps the connection according to its headers, minus the time that a request takes to
/// arrive.
fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let hint = headers.get("keep-alive")?.to_str().ok()?;
    let seconds = hint.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    Some(Duration::from_secs(seconds.trim().parse::<u64>().ok()?.saturating_sub(1)))
}

//! The server side of streamable HTTP, for both eras of the protocol.
//!
//! An [`HttpEndpoint`] turns HTTP requests into messages for the layer above, which is a [`EndpointHandler`], and its responses
//! into HTTP responses. It implements the rules of the transport (admission, headers, statuses, streams) and does not
//! interpret the messages. It can be mounted in any server of [`http`] requests. [`serve`] is a small one.
//!
//! **Delivery.** [`Responder::finish`] returns a [`crate::delivery::PendingDelivery`]. A response is *written* when the
//! connection has handed all its bytes to the operating system. It is *delivered* when that connection then brings
//! another message (other than a cancellation of that call), or is still open after a grace period. A [`DeliveryLink`] tracks
//! the client side of a connection: [`serve`] creates one for each connection, and reports every flush and the end to
//! it.
//!
//! **Slow clients** harm only themselves: sending never waits, and streams are bounded. A connection is closed if it
//! takes no bytes for a while, or does not complete a request that it began.

mod admission;
mod body;
mod connections;
mod era;
mod guarded_connection;
mod listener;
mod pipe;
mod refusal;
mod responder;
mod session;
mod streams;
mod token;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;

pub use self::admission::{AdmissionError, AllowedHosts, ENCODED, bearer, is_encoded, target_host};
pub use self::body::EndpointBody;
use self::body::{EventBody, StreamTiming};
use self::era::MessageVersion;
pub use self::guarded_connection::within;
pub use self::listener::{ConnectionPeer, HttpService, ListenerLimits, OVERLOADED, RequestBody, serve};
use self::pipe::{FirstItem, MessagePipe, PipeAttachment};
pub use self::pipe::{StreamLimits, StreamSendError};
pub use self::refusal::HttpRefusal;
pub use self::responder::{Notifier, Responder};
pub use self::session::{McpSessionId, PushOutcome, SessionStreams};
use self::session::{ResponseSession, StreamEventId};
pub use self::streams::{EventStreamLimiter, StreamFollower, StreamPermit, TooManyStreams};
pub use self::token::{AdminToken, BearerTokens, Principal, TokenHolder};
use super::{LAST_EVENT_ID, MCP_SESSION_ID, ProtocolEra};
use crate::delivery::DeliveryLink;
use crate::message::{RpcId, RpcMessage, RpcMessageKind, code};

/// The layer above an endpoint.
pub trait EndpointHandler: Send + Sync + 'static {
    /// Returns the principal for this bearer token (or none), or the reason for not admitting it. Compare in constant
    /// time, as [`BearerTokens`] does.
    fn admit(&self, bearer: Option<&[u8]>) -> Result<Principal, AdmissionError>;

    /// Returns the supported protocol versions, for clients that request another one.
    fn versions(&self) -> Vec<String>;

    /// Returns the session with this name, if it exists and this principal may use it.
    fn session(
        &self,
        id: &McpSessionId,
        principal: &Principal,
    ) -> impl Future<Output = Option<Arc<SessionStreams>>> + Send;

    /// Handles an incoming message. This must not block: take the [`Responder`] to respond later. For a notification
    /// or a response, the return value is the immediate reply.
    fn message(&self, incoming: IncomingMessage) -> Result<(), HttpRefusal>;

    /// Handles a client that listens for messages of its session that belong to no request. The stream is already
    /// open.
    fn listening(&self, listening: ListenRequest);

    /// Handles a client that ends its session. Afterwards the session must not be found.
    fn end(&self, session: Arc<SessionStreams>, caller: HttpCaller) -> impl Future<Output = ()> + Send;
}

/// A message from a client.
#[derive(Debug)]
pub struct IncomingMessage {
    /// The message.
    pub message: RpcMessage,
    /// The sender.
    pub caller: HttpCaller,
    /// The era of the message.
    pub era: ProtocolEra,
    /// The version that the client named in its headers. It is a known one.
    pub version: Option<Box<str>>,
    /// The session. In the legacy era only an `initialize` comes without one. In the modern era there is none.
    pub session: Option<Arc<SessionStreams>>,
    /// For a request: its responder.
    pub responder: Option<Responder>,
}

/// A client that listens.
#[derive(Debug)]
pub struct ListenRequest {
    /// The session whose messages it listens for.
    pub session: Arc<SessionStreams>,
    /// The caller.
    pub caller: HttpCaller,
    /// The state of the stream: new or resumed.
    pub resumed: StreamResumption,
    /// A sender for messages on this very stream.
    pub stream: Notifier,
}

/// The state of a stream at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamResumption {
    /// A new stream.
    Fresh,
    /// A resumed stream, which continues after the last event that the client has seen.
    Yes,
    /// A new stream, although the client asked to resume one: the stream of that event is not known. It is not known
    /// either which events the client missed.
    Unknown(Box<str>),
}

/// The caller of a request, and its connection.
#[derive(Clone, Debug)]
pub struct HttpCaller {
    /// The principal as which it was admitted.
    pub principal: Principal,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The remote address.
    pub address: Option<SocketAddr>,
    /// The connection.
    pub link: DeliveryLink,
}

/// Settings of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// Allowed host names and origins.
    pub names: AllowedHosts,
    /// The longest message. A higher value costs memory for each client that sends one.
    pub body_bytes: usize,
    /// Time limit for a client to send a message.
    pub body_time: Duration,
    /// Time without any message after which a response becomes a stream, so that the connection can be kept alive.
    pub quiet: Duration,
    /// Interval at which a stream without messages sends a comment.
    pub keep_alive: Duration,
    /// Time that a client must wait before it resumes a stream.
    pub retry: Duration,
    /// Limits of one stream.
    pub stream: StreamLimits,
    /// Streams on which clients listen, shared with other endpoints.
    pub streams: EventStreamLimiter,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            names: AllowedHosts::default(),
            // Enough for arguments of calls, and for pictures that a server requested from a client.
            body_bytes: 16 << 20,
            body_time: Duration::from_secs(30),
            quiet: Duration::from_secs(10),
            // Below the 30 s after which common proxies close a connection.
            keep_alive: Duration::from_secs(15),
            retry: Duration::from_secs(1),
            stream: StreamLimits::default(),
            streams: EventStreamLimiter::default(),
        }
    }
}

/// An HTTP endpoint of MCP.
#[derive(Debug)]
pub struct HttpEndpoint<F> {
    front: Arc<F>,
    settings: EndpointSettings,
}

impl<F: EndpointHandler> HttpEndpoint<F> {
    /// Creates an endpoint in front of this layer.
    pub fn new(front: Arc<F>, settings: EndpointSettings) -> Self {
        Self { front, settings }
    }

    /// Responds to a request from this peer. The caller of this method has already matched the path.
    pub async fn respond<B>(&self, request: Request<B>, peer: ConnectionPeer) -> Response<EndpointBody>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        let link = peer.link.clone();
        match self.handle(request, peer).await {
            Ok(response) => response,
            Err(refusal) => refused(&refusal, &link),
        }
    }

    async fn handle<B>(
        &self,
        request: Request<B>,
        peer: ConnectionPeer,
    ) -> Result<Response<EndpointBody>, HttpRefusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        let (parts, body) = request.into_parts();
        admission::host_and_origin(&parts.uri, &parts.headers, &self.settings.names)?;
        let admitted = self.front.admit(bearer(&parts.headers));
        let principal = admitted.map_err(|refusal| HttpRefusal::invalid(refusal.status, refusal.text))?;
        peer.link.admit();
        let caller = HttpCaller { principal, headers: parts.headers, address: peer.address, link: peer.link };
        match parts.method {
            Method::POST => self.post(caller, body).await,
            Method::GET => self.get(caller).await,
            Method::DELETE => self.delete(caller).await,
            _ => {
                Err(HttpRefusal::invalid(StatusCode::METHOD_NOT_ALLOWED, "this method is not supported here"))
            }
        }
    }

    async fn post<B>(&self, caller: HttpCaller, body: B) -> Result<Response<EndpointBody>, HttpRefusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        admission::content_is_json(&caller.headers)?;
        admission::content_is_not_encoded(&caller.headers)?;
        let text = self.read(&caller.headers, body).await?;
        let message = RpcMessage::parse(text, self.settings.body_bytes)
            .map_err(|error| HttpRefusal::unreadable(&error))?;
        caller.link.record_message(&message);
        if message.is_request() {
            admission::accepts(&caller.headers, &["application/json", "text/event-stream"])?;
        }
        let MessageVersion { era, version } =
            era::of_message(&caller.headers, &message, &self.front.versions())?;
        let session = match era {
            ProtocolEra::Modern => None,
            ProtocolEra::Legacy if message.method() == Some("initialize") => None,
            ProtocolEra::Legacy => Some(self.session(&caller, Some(&message)).await?),
        };
        let RpcMessageKind::Request { id, .. } = message.kind() else {
            let link = caller.link.clone();
            self.front.message(IncomingMessage {
                message,
                caller,
                era,
                version,
                session,
                responder: None,
            })?;
            return Ok(bare(StatusCode::ACCEPTED, &link));
        };
        let listens = message.method() == Some("subscriptions/listen");
        let counted = if listens { Some(self.permit_stream(&caller, Some(&id))?) } else { None };
        let pipe = MessagePipe::new(self.settings.stream);
        // From here on the stream detects the end of the connection, because this future is then dropped.
        let attached = pipe.attach(None);
        let link = caller.link.clone();
        // The version that an `initialize` requests is in its body. Clients of the newest one accept events without
        // data.
        let is_primed = [version.as_deref(), message.param_text("protocolVersion").as_deref()]
            .contains(&Some(super::LEGACY[0]));
        let named = ResponseSession::new(session.clone());
        let responder = Some(Responder::new(pipe, id, Arc::clone(&named)));
        self.front.message(IncomingMessage { message, caller, era, version, session, responder })?;
        let answer = self.answer(attached, &named, era, is_primed, link).await?;
        Ok(answer.map(|body| body.counted(counted)))
    }

    /// Takes a permit for one more stream on which this caller listens.
    fn permit_stream(&self, caller: &HttpCaller, id: Option<&RpcId>) -> Result<StreamPermit, HttpRefusal> {
        let follower = StreamFollower::Client(caller.principal.clone());
        self.settings.streams.open(follower).map_err(|error| HttpRefusal::too_many_streams(id, error))
    }

    /// Waits for the first item of the stream, and responds in the form that fits it.
    async fn answer(
        &self,
        attached: PipeAttachment,
        named: &ResponseSession,
        era: ProtocolEra,
        is_primed: bool,
        link: DeliveryLink,
    ) -> Result<Response<EndpointBody>, HttpRefusal> {
        let first = match tokio::time::timeout(self.settings.quiet, attached.first()).await {
            Ok(first) => first,
            Err(_) => FirstItem::Stream,
        };
        let session = named.get().filter(|_| era == ProtocolEra::Legacy);
        let mut response = match first {
            FirstItem::Refused(refusal) => return Err(refusal),
            FirstItem::Nothing => {
                return Err(HttpRefusal::invalid(StatusCode::INTERNAL_SERVER_ERROR, "no response was given"));
            }
            FirstItem::Answer(event) => {
                let status = match era {
                    ProtocolEra::Legacy => StatusCode::OK,
                    ProtocolEra::Modern => refusal::status_of(&event.message),
                };
                json(status, event.message.bytes().clone(), event.tracker, &link)
            }
            FirstItem::Stream => {
                attached.pipe().begin_stream()?;
                let events = match &session {
                    None => EventBody::plain(attached, link, self.manner()),
                    Some(session) => {
                        let number = session.remember(attached.pipe());
                        let events = EventBody::numbered(attached, link, self.manner(), number);
                        if is_primed { events.primed() } else { events }
                    }
                };
                stream(events)
            }
        };
        if let Some(value) = session.and_then(|session| HeaderValue::from_str(session.id().as_str()).ok()) {
            response.headers_mut().insert(MCP_SESSION_ID, value);
        }
        Ok(response)
    }

    async fn get(&self, caller: HttpCaller) -> Result<Response<EndpointBody>, HttpRefusal> {
        let spoken = era::of_bodiless(&caller.headers)?;
        admission::accepts(&caller.headers, &["text/event-stream"])?;
        let session = self.session(&caller, None).await?;
        let counted = self.permit_stream(&caller, None)?;
        caller.link.record_input();
        let last = caller.headers.get(LAST_EVENT_ID).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let parsed = last.as_deref().and_then(StreamEventId::parse);
        let resumed = parsed.and_then(|last| Some((session.resume(&last)?, last.stream)));
        let (attached, number, resumption) = match (resumed, last) {
            (Some((attached, number)), _) => (attached, number, StreamResumption::Yes),
            (None, Some(last)) => {
                let (attached, number) = session.listen();
                (
                    attached,
                    number,
                    StreamResumption::Unknown(last.chars().take(256).collect::<String>().into()),
                )
            }
            (None, None) => {
                let (attached, number) = session.listen();
                (attached, number, StreamResumption::Fresh)
            }
        };
        let stream_of = Notifier(Arc::clone(attached.pipe()));
        let mut events = EventBody::numbered(attached, caller.link.clone(), self.manner(), number);
        if resumption != StreamResumption::Yes && spoken.version.as_deref() == Some(super::LEGACY[0]) {
            events = events.primed();
        }
        self.front.listening(ListenRequest { session, caller, resumed: resumption, stream: stream_of });
        Ok(stream(events).map(|body| body.counted(Some(counted))))
    }

    async fn delete(&self, caller: HttpCaller) -> Result<Response<EndpointBody>, HttpRefusal> {
        era::of_bodiless(&caller.headers)?;
        let session = self.session(&caller, None).await?;
        caller.link.record_input();
        let link = caller.link.clone();
        session.close();
        self.front.end(session, caller).await;
        Ok(bare(StatusCode::NO_CONTENT, &link))
    }

    async fn session(
        &self,
        caller: &HttpCaller,
        message: Option<&RpcMessage>,
    ) -> Result<Arc<SessionStreams>, HttpRefusal> {
        let id = message.filter(|message| message.is_request()).and_then(RpcMessage::id);
        let Some(value) = caller.headers.get(MCP_SESSION_ID) else {
            let text = "the header Mcp-Session-Id is missing: start with initialize";
            let error = RpcMessage::error_response(id.as_ref(), code::INVALID_REQUEST, text, None);
            return Err(HttpRefusal::new(StatusCode::BAD_REQUEST, error));
        };
        let named = value.to_str().ok().and_then(McpSessionId::new);
        let found = match &named {
            Some(named) => self.front.session(named, &caller.principal).await,
            None => None,
        };
        found.ok_or_else(|| HttpRefusal::unknown_session(id.as_ref()))
    }

    /// Reads the body, within the limits of size and time.
    async fn read<B>(&self, headers: &HeaderMap, body: B) -> Result<Bytes, HttpRefusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        let most = self.settings.body_bytes;
        let too_large = || {
            HttpRefusal::invalid(
                StatusCode::PAYLOAD_TOO_LARGE,
                &format!("a message may have at most {most} bytes"),
            )
        };
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|announced| announced > most) {
            return Err(too_large());
        }
        let reading = async {
            let mut body = std::pin::pin!(body);
            let mut all = Bytes::new();
            let mut more: Option<BytesMut> = None;
            while let Some(frame) = body.as_mut().frame().await {
                let broken = |_| {
                    HttpRefusal::invalid(StatusCode::BAD_REQUEST, "the body could not be read completely")
                };
                let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
                let length = more.as_ref().map_or(all.len(), BytesMut::len);
                if length + data.len() > most {
                    return Err(too_large());
                }
                match &mut more {
                    // A short body comes in one piece, and is not copied.
                    None if all.is_empty() => all = data,
                    None => more = Some([&all[..], &data[..]].concat()[..].into()),
                    Some(more) => more.extend_from_slice(&data),
                }
            }
            Ok(more.map_or(all, BytesMut::freeze))
        };
        match within(self.settings.body_time, reading).await {
            Some(read) => read,
            None => Err(HttpRefusal::invalid(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
        }
    }

    fn manner(&self) -> StreamTiming {
        StreamTiming { retry: self.settings.retry, keep_alive: self.settings.keep_alive }
    }
}

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

fn bare(status: StatusCode, link: &DeliveryLink) -> Response<EndpointBody> {
    let mut response = Response::new(EndpointBody::whole(Bytes::new(), None, link));
    *response.status_mut() = status;
    response
}

fn json(
    status: StatusCode,
    text: Bytes,
    tracker: Option<crate::delivery::DeliveryTracker>,
    link: &DeliveryLink,
) -> Response<EndpointBody> {
    let mut response = Response::new(EndpointBody::whole(text, tracker, link));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn stream(events: EventBody) -> Response<EndpointBody> {
    let mut response = Response::new(EndpointBody::events(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

fn refused(refusal: &HttpRefusal, link: &DeliveryLink) -> Response<EndpointBody> {
    let mut response = json(refusal.status, refusal.error.bytes().clone(), None, link);
    let headers = response.headers_mut();
    match refusal.status {
        StatusCode::METHOD_NOT_ALLOWED => {
            headers.insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
        }
        StatusCode::UNAUTHORIZED => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        _ => {}
    }
    if let Some(wait) = refusal.retry_after {
        // Whole seconds, rounded up.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

//! The server side of streamable HTTP, for both eras of the protocol.
//!
//! An [`Endpoint`] turns HTTP requests into messages for the layer above, which is a [`Front`], and what that says into
//! HTTP answers. It knows the transport's rules (who may ask, which headers, which status, which stream) and none of
//! the messages' meaning. It can be mounted wherever requests of [`http`] come from; [`serve`] is a lean place for it.
//!
//! **Delivery.** [`Responder::finish`] gives a [`crate::delivery::Delivery`]. An answer is *written* when the connection
//! handed all its bytes to the operating system, and *delivered* when that connection then brings another message (other than
//! a cancel of that call) or is still open after a grace time. The client side of a connection is followed by its
//! [`Link`]: [`serve`] makes one for each, tells it of every flush and of the end.
//!
//! **Slow clients** harm only themselves: sending never waits, streams are bounded, and a connection that takes no bytes
//! for a while, or brings none of a request that it began, is cut.

mod answer;
mod body;
mod checks;
mod connections;
mod era;
mod guard;
mod pipe;
mod refusal;
mod serve;
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

pub use self::answer::{Notifier, Responder, Unsent};
pub use self::body::AnswerBody;
use self::body::{Events, Manner};
pub use self::checks::{ENCODED, Names, NotAdmitted, bearer, is_encoded, target_host};
use self::era::Spoken;
pub use self::guard::within;
pub use self::pipe::StreamLimits;
use self::pipe::{Attached, First, Pipe};
pub use self::refusal::Refusal;
pub use self::serve::{HttpService, OVERLOADED, Peer, RequestBody, ServeLimits, serve};
use self::session::EventId;
pub use self::session::{Pushed, Session, SessionId};
pub use self::streams::{EventStreams, Follower, StreamPermit, TooManyStreams};
pub use self::token::{AdminToken, Holder, Principal, Tokens};
use super::{Era, LAST_EVENT_ID, MCP_SESSION_ID};
use crate::delivery::Link;
use crate::message::{Id, Kind, Message, code};

/// The layer above.
pub trait Front: Send + Sync + 'static {
    /// As whom this bearer token (or none) may ask here, or why not. Compare in constant time: [`Tokens`] does.
    fn admit(&self, bearer: Option<&[u8]>) -> Result<Principal, NotAdmitted>;

    /// The versions of the protocol that are spoken here, for clients that ask for another one.
    fn versions(&self) -> Vec<String>;

    /// The session of this name, if it exists and this principal may speak in it.
    fn session(
        &self,
        id: &SessionId,
        principal: &Principal,
    ) -> impl Future<Output = Option<Arc<Session>>> + Send;

    /// A message came in. This must not block: whoever answers takes the [`Responder`] along. The client of a notification
    /// or a response is told at once whether it was accepted.
    fn message(&self, incoming: Incoming) -> Result<(), Refusal>;

    /// A client listens for messages of its session that belong to no request; the stream is open already.
    fn listening(&self, listening: Listening);

    /// A client says that it will not use its session any more. Afterwards it must not be found.
    fn end(&self, session: Arc<Session>, caller: Caller) -> impl Future<Output = ()> + Send;
}

/// A message of a client.
#[derive(Debug)]
pub struct Incoming {
    /// The message.
    pub message: Message,
    /// Who sent it.
    pub caller: Caller,
    /// How it is spoken.
    pub era: Era,
    /// The version that the client named in its headers, which is one that we know.
    pub version: Option<Box<str>>,
    /// Its session. In the older era only an `initialize` comes without one; in the modern one there is none.
    pub session: Option<Arc<Session>>,
    /// For a request: the way to answer it.
    pub responder: Option<Responder>,
}

/// A client that listens.
#[derive(Debug)]
pub struct Listening {
    /// For whose messages.
    pub session: Arc<Session>,
    /// Who it is.
    pub caller: Caller,
    /// Whether it goes on with a stream.
    pub resumed: Resumed,
    /// The way to send something on the very stream that it listens on.
    pub stream: Notifier,
}

/// Whether a client goes on with a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It did not ask to.
    Fresh,
    /// It does, behind the last event that it has seen.
    Yes,
    /// It asked to, but the stream of that event is not known; it listens on a new one. What it missed is not known either.
    Unknown(Box<str>),
}

/// Who sent a request, and how.
#[derive(Clone, Debug)]
pub struct Caller {
    /// As whom it was admitted.
    pub principal: Principal,
    /// Its headers.
    pub headers: HeaderMap,
    /// Where it comes from.
    pub address: Option<SocketAddr>,
    /// The connection.
    pub link: Link,
}

/// How an endpoint behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names under which it may be asked for.
    pub names: Names,
    /// The longest message. Higher costs memory for each client that sends one.
    pub body_bytes: usize,
    /// How long a client may take to send one.
    pub body_time: Duration,
    /// After so long without a word an answer becomes a stream, so that the connection can be kept alive.
    pub quiet: Duration,
    /// How often a stream without messages sends a comment.
    pub keep_alive: Duration,
    /// How long a client shall wait before it resumes a stream.
    pub retry: Duration,
    /// How much a stream may hold.
    pub stream: StreamLimits,
    /// The streams on which clients listen, also those of other endpoints.
    pub streams: EventStreams,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            names: Names::default(),
            // Arguments of calls, and pictures that a client was asked for.
            body_bytes: 16 << 20,
            body_time: Duration::from_secs(30),
            quiet: Duration::from_secs(10),
            // Below the half minute after which common proxies lose patience.
            keep_alive: Duration::from_secs(15),
            retry: Duration::from_secs(1),
            stream: StreamLimits::default(),
            streams: EventStreams::default(),
        }
    }
}

/// One place at which MCP is spoken over HTTP.
#[derive(Debug)]
pub struct Endpoint<F> {
    front: Arc<F>,
    settings: Settings,
}

impl<F: Front> Endpoint<F> {
    /// An endpoint in front of this layer.
    pub fn new(front: Arc<F>, settings: Settings) -> Self {
        Self { front, settings }
    }

    /// Answers a request that came over the connection of this peer. Its path was looked at by whoever calls this.
    pub async fn respond<B>(&self, request: Request<B>, peer: Peer) -> Response<AnswerBody>
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

    async fn handle<B>(&self, request: Request<B>, peer: Peer) -> Result<Response<AnswerBody>, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        let (parts, body) = request.into_parts();
        checks::host_and_origin(&parts.uri, &parts.headers, &self.settings.names)?;
        let admitted = self.front.admit(bearer(&parts.headers));
        let principal = admitted.map_err(|why| Refusal::invalid(why.status, why.text))?;
        peer.link.admit();
        let caller = Caller { principal, headers: parts.headers, address: peer.address, link: peer.link };
        match parts.method {
            Method::POST => self.post(caller, body).await,
            Method::GET => self.get(caller).await,
            Method::DELETE => self.delete(caller).await,
            _ => Err(Refusal::invalid(StatusCode::METHOD_NOT_ALLOWED, "this method is not supported here")),
        }
    }

    async fn post<B>(&self, caller: Caller, body: B) -> Result<Response<AnswerBody>, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        checks::content_is_json(&caller.headers)?;
        checks::content_is_not_encoded(&caller.headers)?;
        let text = self.read(&caller.headers, body).await?;
        let message =
            Message::parse(text, self.settings.body_bytes).map_err(|why| Refusal::unreadable(&why))?;
        caller.link.heard(&message);
        if message.is_request() {
            checks::accepts(&caller.headers, &["application/json", "text/event-stream"])?;
        }
        let Spoken { era, version } = era::of_message(&caller.headers, &message, &self.front.versions())?;
        let session = match era {
            Era::Modern => None,
            Era::Legacy if message.method() == Some("initialize") => None,
            Era::Legacy => Some(self.session(&caller, Some(&message)).await?),
        };
        let Kind::Request { id, .. } = message.kind() else {
            let link = caller.link.clone();
            self.front.message(Incoming { message, caller, era, version, session, responder: None })?;
            return Ok(bare(StatusCode::ACCEPTED, &link));
        };
        let listens = message.method() == Some("subscriptions/listen");
        let counted = if listens { Some(self.permit_stream(&caller, Some(&id))?) } else { None };
        let pipe = Pipe::new(self.settings.stream, session.clone());
        // From here on the stream knows when the connection is gone: dropping this future tells it.
        let attached = pipe.attach(None);
        let link = caller.link.clone();
        // The version that an `initialize` asks for is in its body; clients of the newest one know events without data.
        let is_primed = [version.as_deref(), message.param_text("protocolVersion").as_deref()]
            .contains(&Some(super::LEGACY[0]));
        let responder = Some(Responder::new(pipe, id));
        self.front.message(Incoming { message, caller, era, version, session, responder })?;
        let answer = self.answer(attached, era, is_primed, link).await?;
        Ok(answer.map(|body| body.counted(counted)))
    }

    /// Counts one more stream on which this caller listens.
    fn permit_stream(&self, caller: &Caller, id: Option<&Id>) -> Result<StreamPermit, Refusal> {
        let follower = Follower::Client(caller.principal.clone());
        self.settings.streams.open(follower).map_err(|why| Refusal::too_many_streams(id, why))
    }

    /// Waits for the beginning of an answer and tells it accordingly.
    async fn answer(
        &self,
        attached: Attached,
        era: Era,
        is_primed: bool,
        link: Link,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let first = match tokio::time::timeout(self.settings.quiet, attached.first()).await {
            Ok(first) => first,
            Err(_) => First::Stream,
        };
        let session = attached.pipe().session().filter(|_| era == Era::Legacy);
        let mut response = match first {
            First::Refused(refusal) => return Err(refusal),
            First::Nothing => {
                return Err(Refusal::invalid(StatusCode::INTERNAL_SERVER_ERROR, "no answer was given"));
            }
            First::Answer(event) => {
                let status = match era {
                    Era::Legacy => StatusCode::OK,
                    Era::Modern => refusal::status_of(&event.message),
                };
                json(status, event.message.bytes().clone(), event.tracker, &link)
            }
            First::Stream => {
                attached.pipe().begin_stream()?;
                let events = match &session {
                    None => Events::plain(attached, link, self.manner()),
                    Some(session) => {
                        let number = session.remember(attached.pipe());
                        let events = Events::numbered(attached, link, self.manner(), number);
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

    async fn get(&self, caller: Caller) -> Result<Response<AnswerBody>, Refusal> {
        let spoken = era::of_bodiless(&caller.headers)?;
        checks::accepts(&caller.headers, &["text/event-stream"])?;
        let session = self.session(&caller, None).await?;
        let counted = self.permit_stream(&caller, None)?;
        caller.link.heard_something();
        let last = caller.headers.get(LAST_EVENT_ID).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let parsed = last.as_deref().and_then(EventId::parse);
        let resumed = parsed.and_then(|last| Some((session.resume(&last)?, last.stream)));
        let (attached, number, how) = match (resumed, last) {
            (Some((attached, number)), _) => (attached, number, Resumed::Yes),
            (None, Some(last)) => {
                let (attached, number) = session.listen();
                (attached, number, Resumed::Unknown(last.chars().take(256).collect::<String>().into()))
            }
            (None, None) => {
                let (attached, number) = session.listen();
                (attached, number, Resumed::Fresh)
            }
        };
        let stream_of = Notifier(Arc::clone(attached.pipe()));
        let mut events = Events::numbered(attached, caller.link.clone(), self.manner(), number);
        if how != Resumed::Yes && spoken.version.as_deref() == Some(super::LEGACY[0]) {
            events = events.primed();
        }
        self.front.listening(Listening { session, caller, resumed: how, stream: stream_of });
        Ok(stream(events).map(|body| body.counted(Some(counted))))
    }

    async fn delete(&self, caller: Caller) -> Result<Response<AnswerBody>, Refusal> {
        era::of_bodiless(&caller.headers)?;
        let session = self.session(&caller, None).await?;
        caller.link.heard_something();
        let link = caller.link.clone();
        session.close();
        self.front.end(session, caller).await;
        Ok(bare(StatusCode::NO_CONTENT, &link))
    }

    async fn session(&self, caller: &Caller, message: Option<&Message>) -> Result<Arc<Session>, Refusal> {
        let id = message.filter(|message| message.is_request()).and_then(Message::id);
        let Some(value) = caller.headers.get(MCP_SESSION_ID) else {
            let text = "the header Mcp-Session-Id is missing: begin with initialize";
            let error = Message::error_response(id.as_ref(), code::INVALID_REQUEST, text, None);
            return Err(Refusal::new(StatusCode::BAD_REQUEST, error));
        };
        let named = value.to_str().ok().and_then(SessionId::new);
        let found = match &named {
            Some(named) => self.front.session(named, &caller.principal).await,
            None => None,
        };
        found.ok_or_else(|| Refusal::unknown_session(id.as_ref()))
    }

    /// The body, as far as it is short enough and comes soon enough.
    async fn read<B>(&self, headers: &HeaderMap, body: B) -> Result<Bytes, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error,
    {
        let most = self.settings.body_bytes;
        let too_large = || {
            Refusal::invalid(
                StatusCode::PAYLOAD_TOO_LARGE,
                &format!("a message may have at most {most} bytes"),
            )
        };
        let told = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if told.is_some_and(|told| told > most) {
            return Err(too_large());
        }
        let reading = async {
            let mut body = std::pin::pin!(body);
            let mut all = Bytes::new();
            let mut more: Option<BytesMut> = None;
            while let Some(frame) = body.as_mut().frame().await {
                let broken =
                    |_| Refusal::invalid(StatusCode::BAD_REQUEST, "the body could not be read to its end");
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
            None => Err(Refusal::invalid(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
        }
    }

    fn manner(&self) -> Manner {
        Manner { retry: self.settings.retry, keep_alive: self.settings.keep_alive }
    }
}

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

fn bare(status: StatusCode, link: &Link) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::whole(Bytes::new(), None, link));
    *response.status_mut() = status;
    response
}

fn json(
    status: StatusCode,
    text: Bytes,
    tracker: Option<crate::delivery::Tracker>,
    link: &Link,
) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::whole(text, tracker, link));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn stream(events: Events) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::events(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

fn refused(refusal: &Refusal, link: &Link) -> Response<AnswerBody> {
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
        // Whole seconds, and never too few.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

//! An upstream server: requests and responses, and recovery after it dies or loses its session.
//!
//! A response goes to the task that sent the request. Any other message goes to the owner of the server before the next
//! message is read, so that the order is kept. If client and server are of different protocol eras, `bridge`
//! translates.

mod bridge;
mod child;
mod handshake;
mod listing;
mod pending;
mod remote;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use steadfast_core::breaker::{Breaker, SharedBreaker};
use steadfast_core::call::AttemptEnd;
use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::id::Namespace;
use steadfast_core::policy::SettlingPolicy;
use steadfast_core::server_name::ServerFailure;
use steadfast_mcp::http::back::{self, too_large};
use steadfast_mcp::lines::LONGEST_LINE;
use steadfast_mcp::long::{LongMessage, LongText};
use steadfast_mcp::message::{Id, Kind, Message, Unreadable, code};
use steadfast_mcp::raw::{self, RawJson};
use steadfast_process::{Incarnations, Supervisor};

use self::bridge::Bridge;
pub(crate) use self::bridge::is_held;
use self::child::Child;
pub(crate) use self::handshake::{Handshake, Wished, Written, initialized};
pub(crate) use self::listing::{LATELY, LISTED, meta_of};
use self::pending::{Ears, Pending};
pub(crate) use self::pending::{Hear, Place, Sent};
use self::remote::Remote;
use crate::catalog::Catalog;
use crate::health::Reporter;
use crate::look::{InstanceState, InstanceView};

/// The backend of a server.
pub enum Backend {
    /// A child process.
    Child(Supervisor, Incarnations),
    /// A remote server, which gets these headers with every message.
    Remote(back::Server, http::HeaderMap),
}

/// A server and the connection to it.
pub(crate) struct Server {
    pub(crate) name: Namespace,
    pub(crate) handshake: Handshake,
    /// Its known tools. They outlive the server.
    pub(crate) catalog: Arc<Catalog>,
    /// The circuit breaker for requests other than calls. Tools have breakers of their own.
    pub(crate) breaker: SharedBreaker,
    /// Records if the server works.
    reporter: Reporter,
    bridge: Bridge,
    pending: Arc<Pending>,
    owner: OnceLock<Arc<dyn Owner>>,
    way: Way,
}

enum Way {
    Child(Child),
    Remote(Box<Remote>),
}

/// The generation of a server: 1 for the first process or session, and one more after each recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Life(u64);

impl Life {
    /// No generation. A request that waits for no server does not end with one.
    const NONE: Self = Self(0);
}

/// The owner of a server, which receives its notifications and requests. It must not keep the server alive.
pub(crate) trait Owner: Send + Sync + 'static {
    /// Handles an event. The server is not read before this returns.
    fn heard(&self, event: FromServer) -> BoxFuture<'_, ()>;
}

/// An event that a server starts by itself.
#[derive(Clone, Debug)]
pub(crate) enum FromServer {
    /// A notification.
    Told(Message),
    /// A request to the client. The answer goes to this generation.
    Asked(Life, Message),
    /// This generation has ended, and its requests with it.
    Died(Life),
    /// The server is back after it had died. It may have lost its state.
    Recovered(Recovery),
}

/// The recovery of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// True if its tools have changed.
    pub(crate) tools_changed: bool,
}

/// The time limit of the handshake. The first start of a server that has to be downloaded is slow.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(120);

/// The time limit for sending a notification.
const TOLD: Duration = Duration::from_secs(10);

impl Server {
    /// Creates a server that is started or connected on demand and then gets the state of this handshake.
    /// [`Self::keep`] must run for that.
    pub(crate) fn new(reporter: Reporter, backend: Backend, handshake: Handshake) -> (Arc<Self>, Keeping) {
        let (way, incarnations) = match backend {
            Backend::Child(supervisor, incarnations) => {
                (Way::Child(Child::new(supervisor)), Some(incarnations))
            }
            Backend::Remote(server, headers) => {
                (Way::Remote(Box::new(Remote::new(server, headers, handshake.has_begun()))), None)
            }
        };
        let (catalog, bridge, pending) = (Arc::default(), Bridge::default(), Arc::default());
        let (breaker, owner) = (SharedBreaker::new(Breaker::default()), OnceLock::new());
        let name = reporter.name.clone();
        let server =
            Arc::new(Self { name, handshake, catalog, breaker, reporter, bridge, pending, owner, way });
        (server, Keeping(incarnations))
    }

    /// Returns its state.
    pub(crate) fn look(&self) -> InstanceView {
        let tools = self.catalog.len();
        match &self.way {
            Way::Child(child) => child.look(tools),
            Way::Remote(_) => InstanceView {
                state: InstanceState::Elsewhere,
                restarts: 0,
                last_end: None,
                stderr: Vec::new(),
                tools,
            },
        }
    }

    /// Returns its last failure if it is down because of that.
    pub(crate) fn failure(&self) -> Option<ServerFailure> {
        match &self.way {
            Way::Child(child) => child.failure(),
            Way::Remote(_) => None,
        }
    }

    /// Runs the server and sends its events to the owner.
    pub(crate) async fn keep(self: Arc<Self>, keeping: Keeping, owner: Arc<dyn Owner>) {
        let _ = self.owner.set(owner);
        match (&self.way, keeping) {
            (Way::Child(child), Keeping(Some(incarnations))) => child.keep(&self, incarnations).await,
            (Way::Child(_) | Way::Remote(_), Keeping(_)) => std::future::pending().await,
        }
    }

    /// Waits until the server is ready, and sends a request. The answer is awaited separately: a request that was sent
    /// may have an effect, one that was not sent cannot.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: &Message,
        hear: Option<Hear>,
    ) -> Result<Place, Fault> {
        bridge::send(self, request, hear).await
    }

    /// Sends the first request of a client, which makes the server ready.
    pub(crate) async fn send_first(self: &Arc<Self>, request: &Message) -> Result<Place, Fault> {
        bridge::send_first(self, request).await
    }

    /// Sends a notification to a server that is running. Otherwise does nothing.
    pub(crate) async fn tell(self: &Arc<Self>, notification: &Message) {
        if let Some(notification) = bridge::told(self, notification) {
            self.pass_told(&notification).await;
        }
    }

    /// Waits until the server is ready.
    async fn awake(self: &Arc<Self>) -> Result<(), Fault> {
        match &self.way {
            Way::Child(child) => child.awake().await,
            Way::Remote(remote) => remote.mend(self).await,
        }
    }

    /// Waits until a request can be sent. If the era is unknown, the first request makes the server ready.
    pub(crate) async fn may_be_asked(self: &Arc<Self>) -> Result<(), Fault> {
        match self.bridge.is_known() || self.handshake.initialize().is_some() {
            true => self.awake().await,
            false => Ok(()),
        }
    }

    /// Sends a request without translation.
    async fn pass(self: &Arc<Self>, request: &Message, ears: Ears) -> Result<Place, Fault> {
        match &self.way {
            Way::Child(child) => child.send(self, request, ears).await,
            Way::Remote(remote) => remote.send(self, request, ears).await,
        }
    }

    /// Sends a request without translation to a server that is not ready yet.
    async fn pass_first(self: &Arc<Self>, request: &Message) -> Result<Place, Fault> {
        match &self.way {
            Way::Child(child) => child.send_first(self, request).await,
            Way::Remote(remote) => remote.send_first(self, request),
        }
    }

    /// Sends a notification without translation.
    async fn pass_told(self: &Arc<Self>, notification: &Message) {
        match &self.way {
            Way::Child(child) => child.tell(notification).await,
            Way::Remote(remote) => remote.tell(self, notification).await,
        }
    }

    /// Cancels a request at the server. The answer may still arrive.
    pub(crate) fn withdraw(self: &Arc<Self>, place: &Place) -> impl Future<Output = ()> + Send + use<> {
        self.pending.withdraw(place.number);
        // A request that was sent on behalf of this one is cancelled too.
        self.pending.withdraw(place.sent_as());
        let is_done = match &self.way {
            Way::Remote(remote) => remote.is_withdrawn_by_leaving(place),
            Way::Child(_) => false,
        };
        let told = (!is_done).then(|| cancel(&place.id(), "the request was cancelled"));
        let server = self.clone();
        async move {
            if let Some(told) = told {
                server.tell(&told).await;
            }
        }
    }

    /// Returns the visibility of the end of an attempt.
    pub(crate) fn sees_end(&self) -> AttemptEnd {
        match &self.way {
            Way::Child(_) => AttemptEnd::Seen,
            Way::Remote(_) => AttemptEnd::Unseen,
        }
    }

    /// Ends the generation in which a request with unknown outcome hangs. Returns when nothing of it is left and its
    /// output was read to its end.
    pub(crate) async fn end(self: &Arc<Self>, sent: Sent, settling: SettlingPolicy) {
        match &self.way {
            Way::Child(child) => {
                let life = match sent.life() {
                    // The request was answered by the gateway or went to the current generation.
                    Life::NONE => child.life(),
                    life => life,
                };
                child.end(self, life, settling).await;
            }
            Way::Remote(_) => std::future::pending().await,
        }
    }

    /// Answers a request of this generation.
    pub(crate) async fn answer(self: &Arc<Self>, asked_by: Life, answer: &Message) {
        if asked_by == Life::NONE {
            return self.bridge.answered(answer);
        }
        match &self.way {
            Way::Child(child) => child.answer(asked_by, answer).await,
            Way::Remote(remote) => remote.answer(self, asked_by, answer).await,
        }
    }

    /// Marks the server as ready after its handshake.
    pub(crate) async fn is_ready(&self) {
        match &self.way {
            Way::Child(child) => child.is_ready().await,
            Way::Remote(_) => {}
        }
    }

    /// Stops the server and waits until nothing of it is left.
    pub(crate) async fn stop(&self) {
        self.bridge.stop();
        match &self.way {
            Way::Child(child) => child.stop().await,
            Way::Remote(remote) => remote.stop().await,
        }
    }

    /// Registers a request and returns it with our own id and progress token.
    fn enter(&self, life: Life, request: &Message, ears: Ears) -> (Place, Message) {
        let place = self.pending.enter(life, ears);
        let mut sent = request.rewrite().id(&place.id());
        if request.progress_token().is_some() {
            sent = sent.meta("progressToken", place.id().to_json());
        }
        (place, sent.finish())
    }

    /// Routes a message of the server, perhaps from the stream of the request with this number: to the task that waits
    /// for it, or else to the owner.
    async fn received(self: &Arc<Self>, life: Life, message: Message, on: Option<u64>) {
        let event = match message.kind() {
            Kind::Result { id } | Kind::Error { id: Some(id) } => {
                self.pending.answered(life, &id, message);
                return;
            }
            Kind::Error { id: None } => {
                let why = message.error_text().unwrap_or_default();
                tracing::warn!(event = "server.error", server = %self.name, %why);
                return;
            }
            Kind::Notification { .. } if self.pending.heard(life, &message) => return,
            Kind::Notification { .. } => FromServer::Told(message),
            Kind::Request { .. } => FromServer::Asked(life, message),
        };
        if let Some(event) = bridge::heard(self, event, (life, on)).await {
            self.heard(event).await;
        }
    }

    /// Handles a malformed message. If it was the answer to a request, that request fails.
    fn answered_badly(&self, line: &[u8], why: &Unreadable) {
        let is_answer = std::str::from_utf8(line).is_ok_and(|line| raw::get(line, "method").is_none());
        if let Some(number) = why.id.as_ref().and_then(Id::as_u64).filter(|_| is_answer) {
            self.pending.failed(number, Fault::new(Source::BadAnswer, why.to_string()));
        }
    }

    /// Handles a message that is too long to be passed on, perhaps from the stream of the request with this number. A
    /// request that it answers fails with the reason.
    fn handle_overlong(&self, life: Life, said: &LongText, on: Option<u64>) -> OverlongMessage {
        let bytes = said.bytes();
        let why = too_large(Some(bytes), LONGEST_LINE);
        let message = said.message();
        let number = match &message {
            LongMessage::Response(id) => id.as_u64(),
            // No other request can be meant.
            LongMessage::Unclear => on.or_else(|| self.pending.only(life)),
            LongMessage::Request(_) | LongMessage::Notification | LongMessage::NotAMessage => None,
        };
        let answers = number.filter(|number| {
            let fault = Fault::new(Source::TooLarge, why.clone());
            self.pending.failed_at(life, *number, fault)
        });
        let is_answer = answers.is_some();
        tracing::warn!(event = "server.line_too_long", server = %self.name, bytes, is_answer);
        let refusal = match &message {
            LongMessage::Request(id) => {
                let why = format!("the request is too long: {why}");
                Some(Message::error_response(Some(id), code::INVALID_REQUEST, &why, None))
            }
            LongMessage::Response(_)
            | LongMessage::Notification
            | LongMessage::Unclear
            | LongMessage::NotAMessage => None,
        };
        OverlongMessage { answers, refusal }
    }

    fn remote(&self) -> Option<&Remote> {
        match &self.way {
            Way::Child(_) => None,
            Way::Remote(remote) => Some(remote),
        }
    }

    async fn heard(&self, event: FromServer) {
        let event = self.bridge.recovered(event);
        if let Some(owner) = self.owner.get() {
            owner.heard(event).await;
        }
    }
}

/// A message of a server that is too long to be passed on.
struct OverlongMessage {
    /// The pending request that it answered.
    answers: Option<u64>,
    /// The answer to its server, if it was a request.
    refusal: Option<Message>,
}

/// The processes of a server, for [`Server::keep`].
pub(crate) struct Keeping(Option<Incarnations>);

/// Returns a fault for a request that was not sent.
pub(crate) fn gone(why: &str) -> Fault {
    Fault::new(Source::Transport { error: Transport::ConnectionClosed, written: false }, why)
}

/// Returns the notification that cancels a request.
pub(crate) fn cancel(id: &Id, why: &str) -> Message {
    let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, RawJson::string(why).as_str());
    Message::notification("notifications/cancelled", RawJson::parse(params).ok().as_ref())
}

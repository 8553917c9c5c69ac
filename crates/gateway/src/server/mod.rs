//! A server behind us, as those see it who want something of it: requests go in, answers come out, and when it dies or
//! forgets us it is made what it was.
//!
//! Answers go to whoever asked; all else goes to the one who owns the server, and is with it before the next message is
//! read: nothing overtakes it. Where client and server are of two eras of the protocol, `bridge` stands between them.

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

/// How a server is reached.
pub enum Backend {
    /// It is a child of ours.
    Child(Supervisor, Incarnations),
    /// It is somewhere else, and is sent these headers with every message.
    Remote(back::Server, http::HeaderMap),
}

/// A server and the way to it.
pub(crate) struct Server {
    pub(crate) name: Namespace,
    pub(crate) handshake: Handshake,
    /// What it said of its tools: known longer than it is there itself.
    pub(crate) catalog: Arc<Catalog>,
    /// Judges it by what it is asked beside calls, whose tools have breakers of their own.
    pub(crate) breaker: SharedBreaker,
    /// Hears whether it works.
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

/// Which life of a server: one for the first, and one more each time it came back as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Life(u64);

impl Life {
    /// None that a server has: what waits for nobody in particular does not end with anybody.
    const NONE: Self = Self(0);
}

/// Whoever owns a server hears what it does without being asked. It must not keep the server.
pub(crate) trait Owner: Send + Sync + 'static {
    /// The server is not listened to before this has come back.
    fn heard(&self, event: FromServer) -> BoxFuture<'_, ()>;
}

/// What a server does without being asked.
#[derive(Clone, Debug)]
pub(crate) enum FromServer {
    /// It tells something.
    Told(Message),
    /// It wants something of a client; the answer goes to this life of it.
    Asked(Life, Message),
    /// This life is over, and with it what it wanted.
    Died(Life),
    /// It is back after it had died. What it knew may be gone.
    Recovered(Recovery),
}

/// How a server came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Whether its tools are others than before.
    pub(crate) tools_changed: bool,
}

/// How long a server may take to answer the handshake: the first start of one that has to be fetched takes long.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(120);

/// How long a server may take to take what it is told.
const TOLD: Duration = Duration::from_secs(10);

impl Server {
    /// A server that is started or connected to when it is wanted, and then told what it was told before. What keeps it
    /// must run for that.
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

    /// How it stands.
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

    /// How it failed, if it is down because of that.
    pub(crate) fn failure(&self) -> Option<ServerFailure> {
        match &self.way {
            Way::Child(child) => child.failure(),
            Way::Remote(_) => None,
        }
    }

    /// Keeps it, and tells its owner what it does by itself.
    pub(crate) async fn keep(self: Arc<Self>, keeping: Keeping, owner: Arc<dyn Owner>) {
        let _ = self.owner.set(owner);
        match (&self.way, keeping) {
            (Way::Child(child), Keeping(Some(incarnations))) => child.keep(&self, incarnations).await,
            (Way::Child(_) | Way::Remote(_), Keeping(_)) => std::future::pending().await,
        }
    }

    /// Sends a request to a server that is ready, and waits for one to become so. The answer is waited for apart: what
    /// was sent may have its effect, what was not cannot.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: &Message,
        hear: Option<Hear>,
    ) -> Result<Place, Fault> {
        bridge::send(self, request, hear).await
    }

    /// The same for the first words of a client, which make a server ready.
    pub(crate) async fn send_first(self: &Arc<Self>, request: &Message) -> Result<Place, Fault> {
        bridge::send_first(self, request).await
    }

    /// Tells a server that runs something; one that does not has nothing to be told.
    pub(crate) async fn tell(self: &Arc<Self>, notification: &Message) {
        if let Some(notification) = bridge::told(self, notification) {
            self.pass_told(&notification).await;
        }
    }

    /// Waits until it is ready.
    async fn awake(self: &Arc<Self>) -> Result<(), Fault> {
        match &self.way {
            Way::Child(child) => child.awake().await,
            Way::Remote(remote) => remote.mend(self).await,
        }
    }

    /// Waits until a request can be sent. One whose era is not known yet is made ready by the first of them.
    pub(crate) async fn may_be_asked(self: &Arc<Self>) -> Result<(), Fault> {
        match self.bridge.is_known() || self.handshake.initialize().is_some() {
            true => self.awake().await,
            false => Ok(()),
        }
    }

    /// Sends a request as it is.
    async fn pass(self: &Arc<Self>, request: &Message, ears: Ears) -> Result<Place, Fault> {
        match &self.way {
            Way::Child(child) => child.send(self, request, ears).await,
            Way::Remote(remote) => remote.send(self, request, ears).await,
        }
    }

    /// The same to a server that is not ready yet.
    async fn pass_first(self: &Arc<Self>, request: &Message) -> Result<Place, Fault> {
        match &self.way {
            Way::Child(child) => child.send_first(self, request).await,
            Way::Remote(remote) => remote.send_first(self, request),
        }
    }

    /// Tells something as it is.
    async fn pass_told(self: &Arc<Self>, notification: &Message) {
        match &self.way {
            Way::Child(child) => child.tell(notification).await,
            Way::Remote(remote) => remote.tell(self, notification).await,
        }
    }

    /// Lets it know that the answer to a request is not wanted any more. It may still come.
    pub(crate) fn withdraw(self: &Arc<Self>, place: &Place) -> impl Future<Output = ()> + Send + use<> {
        self.pending.withdraw(place.number);
        // Where the server knows it by another number, that one is not wanted either.
        self.pending.withdraw(place.sent_as());
        let is_done = match &self.way {
            Way::Remote(remote) => remote.is_withdrawn_by_leaving(place),
            Way::Child(_) => false,
        };
        let told = (!is_done).then(|| cancel(&place.id(), "the answer is not wanted any more"));
        let server = self.clone();
        async move {
            if let Some(told) = told {
                server.tell(&told).await;
            }
        }
    }

    /// Whether the end of what it does can be seen.
    pub(crate) fn sees_end(&self) -> AttemptEnd {
        match &self.way {
            Way::Child(_) => AttemptEnd::Seen,
            Way::Remote(_) => AttemptEnd::Unseen,
        }
    }

    /// Ends the life of it that a request went to which hangs and whose outcome is unknown: comes back when nothing is left of
    /// it, and everything that it said was heard.
    pub(crate) async fn end(self: &Arc<Self>, sent: Sent, settling: SettlingPolicy) {
        match &self.way {
            Way::Child(child) => {
                let life = match sent.life() {
                    // It was answered without the server, or by what is there now.
                    Life::NONE => child.life(),
                    life => life,
                };
                child.end(self, life, settling).await;
            }
            Way::Remote(_) => std::future::pending().await,
        }
    }

    /// Answers what this life of it asked.
    pub(crate) async fn answer(self: &Arc<Self>, asked_by: Life, answer: &Message) {
        if asked_by == Life::NONE {
            return self.bridge.answered(answer);
        }
        match &self.way {
            Way::Child(child) => child.answer(asked_by, answer).await,
            Way::Remote(remote) => remote.answer(self, asked_by, answer).await,
        }
    }

    /// The server is ready: its client's handshake has been answered.
    pub(crate) async fn is_ready(&self) {
        match &self.way {
            Way::Child(child) => child.is_ready().await,
            Way::Remote(_) => {}
        }
    }

    /// Stops it and waits until nothing of it is left.
    pub(crate) async fn stop(&self) {
        self.bridge.stop();
        match &self.way {
            Way::Child(child) => child.stop().await,
            Way::Remote(remote) => remote.stop().await,
        }
    }

    /// A place for a request, and the request as it goes out: under our own id and token.
    fn enter(&self, life: Life, request: &Message, ears: Ears) -> (Place, Message) {
        let place = self.pending.enter(life, ears);
        let mut sent = request.rewrite().id(&place.id());
        if request.progress_token().is_some() {
            sent = sent.meta("progressToken", place.id().to_json());
        }
        (place, sent.finish())
    }

    /// A message of the server, perhaps on the stream of the request of this number: to whoever asked for it, else to the
    /// owner.
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

    /// A server wrote something that cannot be passed on. If it was to answer a request there will be no other answer.
    fn answered_badly(&self, line: &[u8], why: &Unreadable) {
        let is_answer = std::str::from_utf8(line).is_ok_and(|line| raw::get(line, "method").is_none());
        if let Some(number) = why.id.as_ref().and_then(Id::as_u64).filter(|_| is_answer) {
            self.pending.failed(number, Fault::new(Source::BadAnswer, why.to_string()));
        }
    }

    /// Handles a message that is too long to be passed on, perhaps on the stream of the request of this number. A request that it
    /// answers fails with the reason.
    fn handle_overlong(&self, life: Life, said: &LongText, on: Option<u64>) -> OverlongMessage {
        let bytes = said.bytes();
        let why = too_large(Some(bytes), LONGEST_LINE);
        let message = said.message();
        let number = match &message {
            LongMessage::Response(id) => id.as_u64(),
            // Nobody else can be meant.
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

/// What is needed to keep a server.
pub(crate) struct Keeping(Option<Incarnations>);

/// Nothing of it was written.
pub(crate) fn gone(why: &str) -> Fault {
    Fault::new(Source::Transport { error: Transport::ConnectionClosed, written: false }, why)
}

/// Tells that the answer to a request is not wanted any more.
pub(crate) fn cancel(id: &Id, why: &str) -> Message {
    let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, RawJson::string(why).as_str());
    Message::notification("notifications/cancelled", RawJson::parse(params).ok().as_ref())
}

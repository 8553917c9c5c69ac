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
mod receivers;
mod remote;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use steadfast_core::breaker::{CircuitBreaker, SharedBreaker};
use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::id::Namespace;
use steadfast_core::policy::SettlingPolicy;
use steadfast_core::server_name::ServerFailure;
use steadfast_json::scan;
use steadfast_mcp::http::upstream::{self, too_large};
use steadfast_mcp::lines::LONGEST_LINE;
use steadfast_mcp::long_text::{LongMessage, LongText};
use steadfast_mcp::message::{InvalidMessage, RpcId, RpcMessage, RpcMessageKind, code};
use steadfast_process::{IncarnationReceiver, Supervisor};

use self::bridge::EraBridge;
pub(crate) use self::bridge::is_held;
use self::child::ChildConnection;
pub(crate) use self::handshake::{Handshake, StoredHandshake, UpstreamPreferences, initialized};
pub(crate) use self::listing::{LIST_BACKOFF, LIST_TIMEOUT, meta_of};
use self::pending::PendingRequests;
pub(crate) use self::pending::{PendingRequest, SentRequest};
pub(crate) use self::receivers::NotificationHandler;
use self::receivers::NotificationReceivers;
use self::remote::RemoteConnection;
use crate::protocol::cancel;
use crate::servers::catalog::ToolCatalog;
use crate::servers::health::HealthReporter;
use crate::servers::views::{InstanceState, InstanceView};

/// The backend of a server.
pub enum Backend {
    /// A child process.
    Child(Supervisor, IncarnationReceiver),
    /// A remote server, which gets these headers with every message.
    Remote(upstream::HttpUpstream, http::HeaderMap),
}

/// A server and the connection to it.
pub(crate) struct UpstreamServer {
    pub(crate) name: Namespace,
    pub(crate) handshake: Handshake,
    /// Its known tools. They outlive the server.
    pub(crate) catalog: Arc<ToolCatalog>,
    /// The circuit breaker for requests other than calls. Tools have breakers of their own.
    pub(crate) breaker: SharedBreaker,
    /// Records if the server works.
    reporter: HealthReporter,
    bridge: EraBridge,
    pending: Arc<PendingRequests>,
    owner: OnceLock<Arc<dyn ServerOwner>>,
    connection: ServerConnection,
}

enum ServerConnection {
    Child(ChildConnection),
    Remote(Box<RemoteConnection>),
}

/// The generation of a server: 1 for the first process or session, and one more after each recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(u64);

impl Generation {
    /// No generation. A request that waits for no server does not end with one.
    const NONE: Self = Self(0);
}

/// The owner of a server, which receives its notifications and requests. It must not keep the server alive.
pub(crate) trait ServerOwner: Send + Sync + 'static {
    /// Handles an event. The server is not read before this returns.
    fn handle_event(&self, event: ServerEvent) -> BoxFuture<'_, ()>;
}

/// An event that a server starts by itself.
#[derive(Clone, Debug)]
pub(crate) enum ServerEvent {
    /// A notification.
    Notification(RpcMessage),
    /// A request to the client. The answer goes to this generation.
    Request(Generation, RpcMessage),
    /// This generation has ended, and its requests with it.
    Died(Generation),
    /// The server is back after it had died. It may have lost its state.
    Recovered(ServerRecovery),
}

/// The recovery of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerRecovery {
    /// True if its tools have changed.
    pub(crate) tools_changed: bool,
}

/// The time limit of the handshake. The first start of a server that has to be downloaded is slow.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(120);

/// The time limit for sending a notification.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

impl UpstreamServer {
    /// Creates a server that is started or connected on demand and then gets the state of this handshake.
    /// [`Self::keep`] must run for that.
    pub(crate) fn new(
        reporter: HealthReporter,
        backend: Backend,
        handshake: Handshake,
    ) -> (Arc<Self>, ServerProcesses) {
        let (connection, incarnations) = match backend {
            Backend::Child(supervisor, incarnations) => {
                (ServerConnection::Child(ChildConnection::new(supervisor)), Some(incarnations))
            }
            Backend::Remote(server, headers) => (
                ServerConnection::Remote(Box::new(RemoteConnection::new(
                    server,
                    headers,
                    handshake.has_started(),
                ))),
                None,
            ),
        };
        let (catalog, bridge, pending) = (Arc::default(), EraBridge::default(), Arc::default());
        let (breaker, owner) = (SharedBreaker::new(CircuitBreaker::default()), OnceLock::new());
        let name = reporter.name.clone();
        let server = Arc::new(Self {
            name,
            handshake,
            catalog,
            breaker,
            reporter,
            bridge,
            pending,
            owner,
            connection,
        });
        (server, ServerProcesses(incarnations))
    }

    /// Returns its state.
    pub(crate) fn instance_view(&self) -> InstanceView {
        let tools = self.catalog.len();
        match &self.connection {
            ServerConnection::Child(child) => child.instance_view(tools),
            ServerConnection::Remote(_) => InstanceView {
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
        match &self.connection {
            ServerConnection::Child(child) => child.failure(),
            ServerConnection::Remote(_) => None,
        }
    }

    /// Runs the server and sends its events to the owner.
    pub(crate) async fn keep(self: Arc<Self>, processes: ServerProcesses, owner: Arc<dyn ServerOwner>) {
        let _ = self.owner.set(owner);
        match (&self.connection, processes) {
            (ServerConnection::Child(child), ServerProcesses(Some(incarnations))) => {
                child.keep(&self, incarnations).await
            }
            (ServerConnection::Child(_) | ServerConnection::Remote(_), ServerProcesses(_)) => {
                std::future::pending().await
            }
        }
    }

    /// Waits until the server is ready, and sends a request. The answer is awaited separately: a request that was sent
    /// may have an effect, one that was not sent cannot.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: &RpcMessage,
        on_notification: Option<NotificationHandler>,
    ) -> Result<PendingRequest, AttemptFault> {
        bridge::send(self, request, on_notification).await
    }

    /// Sends the first request of a client, which makes the server ready.
    pub(crate) async fn send_first(
        self: &Arc<Self>,
        request: &RpcMessage,
    ) -> Result<PendingRequest, AttemptFault> {
        bridge::send_first(self, request).await
    }

    /// Sends a notification to a server that is running. Otherwise does nothing.
    pub(crate) async fn notify(self: &Arc<Self>, notification: &RpcMessage) {
        if let Some(notification) = bridge::translate_notification(self, notification) {
            self.pass_notification(&notification).await;
        }
    }

    /// Waits until the server is ready.
    async fn wait_until_ready(self: &Arc<Self>) -> Result<(), AttemptFault> {
        match &self.connection {
            ServerConnection::Child(child) => child.awake().await,
            ServerConnection::Remote(remote) => remote.restore_session(self).await,
        }
    }

    /// Waits until a request can be sent. If the era is unknown, the first request makes the server ready.
    pub(crate) async fn wait_until_sendable(self: &Arc<Self>) -> Result<(), AttemptFault> {
        match self.bridge.is_known() || self.handshake.initialize().is_some() {
            true => self.wait_until_ready().await,
            false => Ok(()),
        }
    }

    /// Sends a request without translation.
    async fn pass(
        self: &Arc<Self>,
        request: &RpcMessage,
        receivers: NotificationReceivers,
    ) -> Result<PendingRequest, AttemptFault> {
        match &self.connection {
            ServerConnection::Child(child) => child.send(self, request, receivers).await,
            ServerConnection::Remote(remote) => remote.send(self, request, receivers).await,
        }
    }

    /// Sends a request without translation to a server that is not ready yet.
    async fn pass_first(self: &Arc<Self>, request: &RpcMessage) -> Result<PendingRequest, AttemptFault> {
        match &self.connection {
            ServerConnection::Child(child) => child.send_first(self, request).await,
            ServerConnection::Remote(remote) => remote.send_first(self, request),
        }
    }

    /// Sends a notification without translation.
    async fn pass_notification(self: &Arc<Self>, notification: &RpcMessage) {
        match &self.connection {
            ServerConnection::Child(child) => child.notify(notification).await,
            ServerConnection::Remote(remote) => remote.notify(self, notification).await,
        }
    }

    /// Cancels a request at the server. The answer may still arrive.
    pub(crate) fn cancel_at_server(
        self: &Arc<Self>,
        place: &PendingRequest,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.pending.cancel_at_server(place.number);
        // A request that was sent on behalf of this one is cancelled too.
        self.pending.cancel_at_server(place.sent_as());
        let is_done = match &self.connection {
            ServerConnection::Remote(remote) => remote.is_cancelled_by_disconnect(place),
            ServerConnection::Child(_) => false,
        };
        let cancellation = (!is_done).then(|| cancel(&place.id(), "the request was cancelled"));
        let server = self.clone();
        async move {
            if let Some(cancellation) = cancellation {
                server.notify(&cancellation).await;
            }
        }
    }

    /// Returns the visibility of the end of an attempt.
    pub(crate) fn end_visibility(&self) -> AttemptEndVisibility {
        match &self.connection {
            ServerConnection::Child(_) => AttemptEndVisibility::Visible,
            ServerConnection::Remote(_) => AttemptEndVisibility::Hidden,
        }
    }

    /// Ends the generation in which a request with unknown outcome hangs. Returns when nothing of it is left and its
    /// output was read to its end.
    pub(crate) async fn end(self: &Arc<Self>, sent: SentRequest, settling: SettlingPolicy) {
        match &self.connection {
            ServerConnection::Child(child) => {
                let generation = match sent.generation() {
                    // The request was answered by the gateway or went to the current generation.
                    Generation::NONE => child.generation(),
                    generation => generation,
                };
                child.end(self, generation, settling).await;
            }
            ServerConnection::Remote(_) => std::future::pending().await,
        }
    }

    /// Answers a request of this generation.
    pub(crate) async fn answer(self: &Arc<Self>, requested_by: Generation, answer: &RpcMessage) {
        if requested_by == Generation::NONE {
            return self.bridge.answered(answer);
        }
        match &self.connection {
            ServerConnection::Child(child) => child.answer(requested_by, answer).await,
            ServerConnection::Remote(remote) => remote.answer(self, requested_by, answer).await,
        }
    }

    /// Marks the server as ready after its handshake.
    pub(crate) async fn mark_ready(&self) {
        match &self.connection {
            ServerConnection::Child(child) => child.is_ready().await,
            ServerConnection::Remote(_) => {}
        }
    }

    /// Stops the server and waits until nothing of it is left.
    pub(crate) async fn stop(&self) {
        self.bridge.stop();
        match &self.connection {
            ServerConnection::Child(child) => child.stop().await,
            ServerConnection::Remote(remote) => remote.stop().await,
        }
    }

    /// Registers a request and returns it with our own id and progress token.
    fn enter(
        &self,
        generation: Generation,
        request: &RpcMessage,
        receivers: NotificationReceivers,
    ) -> (PendingRequest, RpcMessage) {
        let place = self.pending.enter(generation, receivers);
        let mut sent = request.rewrite().id(&place.id());
        if request.progress_token().is_some() {
            sent = sent.meta("progressToken", place.id().to_json());
        }
        (place, sent.finish())
    }

    /// Routes a message of the server, perhaps from the stream of the request with this number: to the task that waits
    /// for it, or else to the owner.
    async fn received(self: &Arc<Self>, generation: Generation, message: RpcMessage, on: Option<u64>) {
        let event = match message.kind() {
            RpcMessageKind::Result { id } | RpcMessageKind::Error { id: Some(id) } => {
                self.pending.complete(generation, &id, message);
                return;
            }
            RpcMessageKind::Error { id: None } => {
                let reason = message.error_text().unwrap_or_default();
                tracing::warn!(event = "server.error", server = %self.name, "why" = %reason);
                return;
            }
            RpcMessageKind::Notification { .. }
                if self.pending.deliver_notification(generation, &message) =>
            {
                return;
            }
            RpcMessageKind::Notification { .. } => ServerEvent::Notification(message),
            RpcMessageKind::Request { .. } => ServerEvent::Request(generation, message),
        };
        if let Some(event) = bridge::translate_event(self, event, (generation, on)).await {
            self.notify_owner(event).await;
        }
    }

    /// Handles a malformed message. If it was the answer to a request, that request fails.
    fn handle_malformed(&self, line: &[u8], error: &InvalidMessage) {
        let is_answer = std::str::from_utf8(line).is_ok_and(|line| scan::get(line, "method").is_none());
        if let Some(number) = error.id.as_ref().and_then(RpcId::as_u64).filter(|_| is_answer) {
            self.pending.fail(number, AttemptFault::new(FaultSource::BadAnswer, error.to_string()));
        }
    }

    /// Handles a message that is too long to be passed on, perhaps from the stream of the request with this number. A
    /// request that it answers fails with the reason.
    fn handle_overlong(&self, generation: Generation, long: &LongText, on: Option<u64>) -> OverlongMessage {
        let bytes = long.bytes();
        let reason = too_large(Some(bytes), LONGEST_LINE);
        let message = long.message();
        let number = match &message {
            LongMessage::Response(id) => id.as_u64(),
            // No other request can be meant.
            LongMessage::Unclear => on.or_else(|| self.pending.only(generation)),
            LongMessage::Request(_) | LongMessage::Notification | LongMessage::NotAMessage => None,
        };
        let answers = number.filter(|number| {
            let fault = AttemptFault::new(FaultSource::TooLarge, reason.clone());
            self.pending.fail_at(generation, *number, fault)
        });
        let is_answer = answers.is_some();
        tracing::warn!(event = "server.line_too_long", server = %self.name, bytes, is_answer);
        let refusal = match &message {
            LongMessage::Request(id) => {
                let reason = format!("the request is too long: {reason}");
                Some(RpcMessage::error_response(Some(id), code::INVALID_REQUEST, &reason, None))
            }
            LongMessage::Response(_)
            | LongMessage::Notification
            | LongMessage::Unclear
            | LongMessage::NotAMessage => None,
        };
        OverlongMessage { answers, refusal }
    }

    fn remote(&self) -> Option<&RemoteConnection> {
        match &self.connection {
            ServerConnection::Child(_) => None,
            ServerConnection::Remote(remote) => Some(remote),
        }
    }

    async fn notify_owner(&self, event: ServerEvent) {
        let event = self.bridge.recovered(event);
        if let Some(owner) = self.owner.get() {
            owner.handle_event(event).await;
        }
    }
}

/// A message of a server that is too long to be passed on.
struct OverlongMessage {
    /// The pending request that it answered.
    answers: Option<u64>,
    /// The answer to its server, if it was a request.
    refusal: Option<RpcMessage>,
}

/// The processes of a server, for [`UpstreamServer::keep`].
pub(crate) struct ServerProcesses(Option<IncarnationReceiver>);

/// Returns a fault for a request that was not sent.
pub(crate) fn not_sent(reason: &str) -> AttemptFault {
    AttemptFault::new(
        FaultSource::Transport { error: TransportError::ConnectionClosed, written: false },
        reason,
    )
}

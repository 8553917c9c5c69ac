//! The session of one client and its servers: routing of all messages between them.
//!
//! `tools/call` goes through the engine. Every other request is passed on with a timeout, and is retried if it is safe
//! to repeat. Requests of servers to the client get new ids, so that requests of several servers, or of a restarted
//! one, are not mixed up.

mod calls;
mod client_settings;
mod multi_server;
mod notifications;
mod redelivery;
mod requests;
mod result_pages;
mod server_events;
pub(crate) mod store;
mod tool_registry;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::HeaderMap;
use parking_lot::Mutex;
use steadfast_executor::{CallCanceller, Engine};
use steadfast_mcp::delivery::{GRACE, PendingDelivery};
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, RpcMessageKind};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::client_settings::SessionSettings;
use self::notifications::LogSubscription;
pub(crate) use self::redelivery::ResumedClient;
use self::redelivery::UndeliveredAnswers;
use self::server_events::SessionEventHandler;
use self::store::SessionStore;
use crate::builtin_tools::BuiltinTools;
use crate::calls::approval::ElicitationRequests;
use crate::calls::large_results::LargeResults;
use crate::calls::request_name::next_request_number;
use crate::client::connection::{ClientConnection, ResponseChannel};
use crate::client::identity::ClientIdentity;
use crate::client::request_channel::RequestChannel;
use crate::json_parts::json;
use crate::servers::backing::BackingServer;
use crate::servers::outbox::{EnqueueResult, OutboxMessage};
use crate::servers::routing::SessionServers;
use crate::servers::upstream::{Generation, ServerProcesses};

/// A client and its servers.
pub(crate) struct GatewaySession {
    engine: Engine,
    servers: SessionServers,
    client: ClientConnection,
    connection: ClientIdentity,
    /// The built-in tools that the client sees.
    own_tools: BuiltinTools,
    /// Stores result texts that exceed the limit of their tool.
    large: Arc<LargeResults>,
    /// True once the client knows that there are resources.
    has_resources: AtomicBool,
    /// Stores the handshakes of the client, if the session can survive a restart.
    memory: Option<SessionStore>,
    /// The requests that the client waits for, by our own numbers: clients that share a session may use equal ids.
    running: Mutex<BTreeMap<u64, ActiveRequest>>,
    /// The answered calls, until the delivery of the answer is known.
    answered: Mutex<BTreeMap<u64, AnsweredCall>>,
    /// The requests of servers to the client, by our own numbers.
    server_requests: Mutex<HashMap<u64, ServerRequest>>,
    /// The gateway's own requests to the client.
    questions: Arc<ElicitationRequests>,
    /// True once the client has sent `initialized`.
    is_ready: AtomicBool,
    /// The log level of the client.
    logging: Mutex<Option<LogSubscription>>,
    /// The client's settings at shared servers.
    settings: SessionSettings,
    next: AtomicU64,
    /// The tasks that were started for the client.
    tasks: TaskTracker,
    /// Limits the lists that are still awaited after their client was answered.
    late: Arc<Semaphore>,
    /// Cancelled when the client is gone. Its calls run to their end.
    disconnected: CancellationToken,
    /// The number of tasks that only wait for the delivery of an answer.
    awaiting_delivery: AtomicUsize,
    /// Undelivered answers that are being sent again.
    missed: UndeliveredAnswers,
}

/// A message of a client.
#[derive(Debug)]
pub(crate) struct ClientMessage {
    pub(crate) message: RpcMessage,
    /// The channel for the response, if it is a request.
    pub(crate) reply: Option<ResponseChannel>,
    /// The HTTP headers of the message.
    pub(crate) headers: HeaderMap,
    /// The sender, if several principals share the session.
    pub(crate) from: Option<ClientIdentity>,
}

/// A request that the client waits for.
struct ActiveRequest {
    id: RpcId,
    channel: RequestChannel,
    /// The server of the request, if it is for a single one.
    at: Option<usize>,
    kind: RequestKind,
}

/// A call whose answer may not be delivered yet.
struct AnsweredCall {
    id: RpcId,
    /// True if the client has cancelled the call in the meantime. It then ignores the answer.
    is_cancelled: Arc<AtomicBool>,
}

/// A request of a server to the client.
struct ServerRequest {
    at: usize,
    by: Generation,
    /// The server's own id.
    id: RpcId,
}

enum RequestKind {
    Call(CallCanceller),
    Other(Arc<Notify>),
}

/// The maximum number of pending requests of a client.
const MOST_RUNNING: usize = 1024;
/// The time for which a client that has left still gets answers.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// The maximum number of list requests that are still awaited after their client was answered.
const MOST_LATE: usize = 16;
/// The maximum number of pending requests of servers to the client.
const MOST_OPEN_REQUESTS: usize = 1024;

/// Codes of the gateway's own errors, outside the ranges that JSON-RPC and MCP reserve.
mod error_codes {
    /// The server did not answer in time.
    pub(super) const TIMED_OUT: i64 = -31_001;
    /// The client has too many pending requests.
    pub(super) const OVERLOADED: i64 = -31_003;
    /// The server is unavailable or refused the request: it did nothing.
    pub(super) const UNAVAILABLE: i64 = -31_002;
    /// The connection was lost before the answer: the outcome is unknown.
    pub(super) const LOST: i64 = -31_004;
}

impl GatewaySession {
    pub(crate) fn new(
        engine: Engine,
        servers: Vec<BackingServer>,
        client: ClientConnection,
        connection: ClientIdentity,
        own_tools: BuiltinTools,
        large: Arc<LargeResults>,
        memory: Option<SessionStore>,
    ) -> Arc<Self> {
        let session = Arc::new(Self {
            engine,
            servers: SessionServers::new(servers),
            client,
            connection,
            own_tools,
            large,
            has_resources: AtomicBool::new(false),
            memory,
            running: Mutex::default(),
            answered: Mutex::default(),
            server_requests: Mutex::default(),
            questions: Arc::default(),
            is_ready: AtomicBool::new(false),
            logging: Mutex::default(),
            settings: SessionSettings::default(),
            next: AtomicU64::new(1),
            tasks: TaskTracker::new(),
            late: Arc::new(Semaphore::new(MOST_LATE)),
            disconnected: CancellationToken::new(),
            awaiting_delivery: AtomicUsize::new(0),
            missed: UndeliveredAnswers::since(next_request_number()),
        });
        for (at, behind) in session.servers.iter().enumerate() {
            if let Some(shared) = &behind.shared {
                shared.join(&session, at);
            }
        }
        session
    }

    /// Runs the servers that only this client uses, each in a task.
    pub(crate) fn run_servers(
        self: &Arc<Self>,
        processes: Vec<Option<ServerProcesses>>,
    ) -> Vec<JoinHandle<()>> {
        let alone = self.servers.iter().zip(processes).enumerate();
        let tasks = alone.filter_map(|(at, (behind, processes))| {
            let handler = Arc::new(SessionEventHandler { session: Arc::downgrade(self), at });
            Some(tokio::spawn(behind.server.clone().keep(processes?, handler)))
        });
        tasks.collect()
    }

    /// Ends the session after the client has left. Waits until its calls have ended, because their results are stored,
    /// or until `stop`. Everything else is cancelled.
    pub(crate) async fn finish(&self, stop: &CancellationToken) {
        self.disconnected.cancel();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Completes when the client no longer reads answers. That is some time after it has left, because some clients
    /// write their requests, close the line, and read on.
    async fn wait_until_disconnected(&self) {
        self.disconnected.cancelled().await;
        tokio::time::sleep(ANSWER_GRACE).await;
    }

    pub(crate) const fn connection(&self) -> &ClientIdentity {
        &self.connection
    }

    /// Returns the number of requests that the client waits for.
    pub(crate) fn waiting(&self) -> usize {
        self.running.lock().len()
    }

    /// Returns true if the client waits for anything. An undelivered answer does not count, since the client may never
    /// return for it.
    pub(crate) fn is_busy(&self) -> bool {
        self.tasks.len() > self.awaiting_delivery.load(Ordering::Relaxed)
    }

    /// Keeps the session busy, like a pending request.
    #[cfg(test)]
    pub(crate) fn busy(&self) -> tokio_util::task::task_tracker::TaskTrackerToken {
        self.tasks.token()
    }

    /// Returns true if a server ever answered this client.
    pub(crate) fn has_started(&self) -> bool {
        self.servers.iter().any(|behind| behind.server.handshake.has_started())
    }

    /// Deletes the stored session after the client ended it or was idle for long.
    pub(crate) async fn forget(&self) {
        if let Some(memory) = &self.memory {
            memory.forget().await;
        }
        if let Some(session) = &self.connection.session {
            // If this fails, the approvals of the session expire within a day.
            let _ = self.engine.end_session(self.connection.tenant.as_ref(), session).await;
        }
    }

    /// Ends the servers of this client, except for shared ones.
    pub(crate) async fn stop(&self) {
        let ending = self.servers.iter().enumerate().map(|(at, behind)| async move {
            match &behind.shared {
                Some(shared) => {
                    self.give_up(at, behind, shared).await;
                    shared.leave(self);
                }
                None => behind.server.stop().await,
            }
        });
        join_all(ending).await;
    }

    /// Takes a message of the client. Returns before the message is answered. Must be called in the order of the
    /// messages.
    pub(crate) async fn take(self: &Arc<Self>, incoming: ClientMessage) {
        let ClientMessage { message, reply, headers, from } = incoming;
        let reply = match reply {
            Some(reply) if self.running.lock().len() >= MOST_RUNNING => {
                let reason = "this client has too many pending requests; wait for some responses first";
                let refusal =
                    RpcMessage::error_response(message.id().as_ref(), error_codes::OVERLOADED, reason, None);
                reply.answer(&refusal).await;
                return;
            }
            reply => reply,
        };
        match (message.kind(), reply) {
            // Legacy only. In the modern era the server answers as for any unknown method.
            (RpcMessageKind::Request { id, method: "ping" }, Some(reply))
                if ProtocolEra::of_request(&message) == ProtocolEra::Legacy =>
            {
                reply.answer(&RpcMessage::result_response(&id, &empty())).await;
            }
            (RpcMessageKind::Request { id, method: "tools/call" }, Some(reply)) => {
                self.call(id, message, reply, &headers, from.as_ref().unwrap_or(&self.connection));
            }
            (RpcMessageKind::Request { id, .. }, Some(reply)) => {
                let answer = self.stored_result(&id, &message, from.as_ref().unwrap_or(&self.connection));
                if let Some(answer) = answer {
                    self.tasks.spawn(async move { _ = reply.answer(&answer).await });
                    return;
                }
                let route = self.servers.route(&message);
                self.pass_on(id, message, route, reply);
            }
            // Without a channel the response could not be sent.
            (RpcMessageKind::Request { .. }, None) => {}
            (RpcMessageKind::Notification { method: "notifications/cancelled" }, _) => {
                self.cancelled(&message)
            }
            (RpcMessageKind::Notification { .. }, _) => self.broadcast_notification(&message),
            (RpcMessageKind::Result { id } | RpcMessageKind::Error { id: Some(id) }, _) => {
                if self.questions.answered(&id, &message) {
                    return;
                }
                let server_request =
                    id.as_u64().and_then(|number| self.server_requests.lock().remove(&number));
                if let Some(ServerRequest { at, by, id }) = server_request {
                    self.put(at, OutboxMessage::Answer(by, message.rewrite().id(&id).finish()));
                }
            }
            (RpcMessageKind::Error { id: None }, _) => {}
        }
    }

    /// Sends a notification of the client to all servers.
    fn broadcast_notification(self: &Arc<Self>, notification: &RpcMessage) {
        if notification.method() == Some("notifications/initialized") {
            self.is_ready.store(true, Ordering::Relaxed);
        }
        for at in 0..self.servers.len() {
            self.put(at, OutboxMessage::Notification(notification.clone()));
        }
    }

    /// Queues a message for a server, after earlier ones. Only requests to the same server wait for it.
    fn put(self: &Arc<Self>, at: usize, entry: OutboxMessage) {
        let Some(behind) = self.servers.get(at) else { return };
        match behind.outbox.put(entry) {
            EnqueueResult::StartSender => self.spawn(|session| async move {
                tokio::select! {
                    () = session.send_queued(at) => {}
                    () = session.wait_until_disconnected() => {}
                }
            }),
            EnqueueResult::Waits => {}
            EnqueueResult::Full => {
                let reason = "it does not read the messages of its client; some were dropped";
                tracing::warn!(event = "server.deaf", server = %behind.server.name, "why" = reason);
            }
        }
    }

    async fn send_queued(&self, at: usize) {
        let Some(behind) = self.servers.get(at) else { return };
        while let Some(entry) = behind.outbox.next() {
            match entry {
                OutboxMessage::Notification(notification) => self.notify_server(behind, &notification).await,
                OutboxMessage::Answer(by, answer) => behind.server.answer(by, &answer).await,
            }
            behind.outbox.mark_sent();
        }
    }

    async fn notify_server(&self, behind: &BackingServer, notification: &RpcMessage) {
        if behind.shared.as_ref().is_none_or(|shared| shared.is_needed(notification)) {
            behind.server.notify(notification).await;
        }
    }

    /// Cancels a request of the client.
    fn cancelled(&self, notification: &RpcMessage) {
        let Some(text) = notification.param("requestId") else { return };
        let mut running = self.running.lock();
        let Some(number) = running.iter().find(|(_, one)| one.id.is(text)).map(|(number, _)| *number) else {
            let answered = self.answered.lock();
            let crossed = answered.values().filter(|one| one.id.is(text));
            return crossed.for_each(|one| one.is_cancelled.store(true, Ordering::Relaxed));
        };
        match running.remove(&number).map(|one| one.kind) {
            Some(RequestKind::Call(canceller)) => canceller.cancel(),
            Some(RequestKind::Other(cancellation)) => cancellation.notify_one(),
            None => {}
        }
    }

    /// Registers a request that the client waits for. Returns its number.
    fn begin(&self, id: &RpcId, at: Option<usize>, channel: RequestChannel, kind: RequestKind) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().insert(number, ActiveRequest { id: id.clone(), channel, at, kind });
        number
    }

    /// Removes a request. Returns true if the client still waited for it.
    fn end(&self, number: u64) -> bool {
        self.running.lock().remove(&number).is_some()
    }

    /// Returns the servers.
    pub(crate) fn servers(&self) -> &SessionServers {
        &self.servers
    }

    fn refuse(&self, id: &RpcId, code: i64, reason: &str, reply: ResponseChannel) {
        let refusal = RpcMessage::error_response(Some(id), code, reason, None);
        self.tasks.spawn(async move { _ = reply.answer(&refusal).await });
    }

    /// Spawns work that ends when the client leaves.
    fn spawn_while_there<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) {
        let working = work(self.clone());
        self.tasks.spawn(self.disconnected.clone().run_until_cancelled_owned(working));
    }

    /// Waits until the delivery of an answer is confirmed or has failed.
    async fn await_delivery(&self, delivery: PendingDelivery) {
        self.awaiting_delivery.fetch_add(1, Ordering::Relaxed);
        delivery.settled_with_callback(GRACE).await;
        self.awaiting_delivery.fetch_sub(1, Ordering::Relaxed);
    }

    /// Spawns work for the client that does not end with its connection.
    fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        self.tasks.spawn(work(self.clone()));
    }
}

fn empty() -> JsonText {
    json("{}")
}

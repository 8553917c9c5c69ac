//! The session of one client and its servers: routing of all messages between them.
//!
//! `tools/call` goes through the engine. Every other request is passed on with a timeout, and is retried if it is safe
//! to repeat. Requests of servers to the client get new ids, so that requests of several servers, or of a restarted
//! one, are not mixed up.

mod client_settings;
mod multi_server;
mod notifications;
mod redelivery;
mod requests;
mod result_pages;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use http::HeaderMap;
use parking_lot::Mutex;
use steadfast_core::call::{CallerKeyScope, CallerPatience};
use steadfast_core::id::{Namespace, ToolName};
use steadfast_executor::{CallCanceller, CallOptions, CallResponse, Engine, TurnOptions};
use steadfast_mcp::delivery::{DeliveryCallback, GRACE, PendingDelivery};
use steadfast_mcp::http::{ProtocolEra, header_params};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, RpcMessageKind, code};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::client_settings::SessionSettings;
use self::notifications::{CallNotifications, LogSubscription};
pub(crate) use self::redelivery::ResumedClient;
use self::redelivery::UndeliveredAnswers;
use crate::approval::{self, ConversationStatus, Elicitation, ElicitationRequests, ReturnedDecision};
use crate::call::{UpstreamTool, control, envelope, next_request, next_request_number, target, trace};
use crate::client::{ClientConnection, RequestChannel, ResponseChannel};
use crate::identity::{ClientIdentity, RequestContext};
use crate::json_parts::json;
use crate::large_results::LargeResults;
use crate::outbox::{EnqueueResult, OutboxMessage};
use crate::reliability::{self, BuiltinTools};
use crate::request_notifications::RequestNotifications;
use crate::responses;
use crate::server::{Generation, ServerEvent, ServerOwner, ServerProcesses, cancel};
use crate::servers::{BackingServer, Route, SessionServers};
use crate::session_store::SessionStore;
use crate::turn::{self, ClientPatience};

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
    asked: Mutex<HashMap<u64, ServerRequest>>,
    /// The gateway's own requests to the client.
    questions: Arc<ElicitationRequests>,
    /// True once the client has sent `initialized`.
    is_ready: AtomicBool,
    /// The log level of the client.
    logging: Mutex<Option<LogSubscription>>,
    /// The client's settings at shared servers.
    wishes: SessionSettings,
    next: AtomicU64,
    /// The tasks that were started for the client.
    tasks: TaskTracker,
    /// Limits the lists that are still awaited after their client was answered.
    late: Arc<Semaphore>,
    /// Cancelled when the client is gone. Its calls run to their end.
    left: CancellationToken,
    /// The number of tasks that only wait for the delivery of an answer.
    unheard: AtomicUsize,
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
    voice: RequestChannel,
    /// The server of the request, if it is for a single one.
    at: Option<usize>,
    what: RequestKind,
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
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// The maximum number of list requests that are still awaited after their client was answered.
const MOST_LATE: usize = 16;
/// The maximum number of pending requests of servers to the client.
const MOST_ASKED: usize = 1024;

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
            asked: Mutex::default(),
            questions: Arc::default(),
            is_ready: AtomicBool::new(false),
            logging: Mutex::default(),
            wishes: SessionSettings::default(),
            next: AtomicU64::new(1),
            tasks: TaskTracker::new(),
            late: Arc::new(Semaphore::new(MOST_LATE)),
            left: CancellationToken::new(),
            unheard: AtomicUsize::new(0),
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
    pub(crate) fn keep_servers(
        self: &Arc<Self>,
        keeping: Vec<Option<ServerProcesses>>,
    ) -> Vec<JoinHandle<()>> {
        let alone = self.servers.iter().zip(keeping).enumerate();
        let kept = alone.filter_map(|(at, (behind, keeping))| {
            let hearing = Arc::new(SessionEventHandler { session: Arc::downgrade(self), at });
            Some(tokio::spawn(behind.server.clone().keep(keeping?, hearing)))
        });
        kept.collect()
    }

    /// Ends the session after the client has left. Waits until its calls have ended, because their results are stored,
    /// or until `stop`. Everything else is cancelled.
    pub(crate) async fn finish(&self, stop: &CancellationToken) {
        self.left.cancel();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Completes when the client no longer reads answers. That is some time after it has left, because some clients
    /// write their requests, close the line, and read on.
    async fn wait_until_left(&self) {
        self.left.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
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
        self.tasks.len() > self.unheard.load(Ordering::Relaxed)
    }

    /// Keeps the session busy, like a pending request.
    #[cfg(test)]
    pub(crate) fn busy(&self) -> tokio_util::task::task_tracker::TaskTrackerToken {
        self.tasks.token()
    }

    /// Returns true if a server ever answered this client.
    pub(crate) fn has_begun(&self) -> bool {
        self.servers.iter().any(|behind| behind.server.handshake.has_begun())
    }

    /// Returns the number of this client's calls at a server.
    pub(crate) fn calls_at(&self, at: usize) -> usize {
        let running = self.running.lock();
        running.values().filter(|one| one.at == Some(at) && matches!(one.what, RequestKind::Call(_))).count()
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
                let why = "this client has too many pending requests; wait for some responses first";
                let refusal =
                    RpcMessage::error_response(message.id().as_ref(), error_codes::OVERLOADED, why, None);
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
                let answer = self.kept_result(&id, &message, from.as_ref().unwrap_or(&self.connection));
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
            (RpcMessageKind::Notification { .. }, _) => self.told(&message),
            (RpcMessageKind::Result { id } | RpcMessageKind::Error { id: Some(id) }, _) => {
                if self.questions.answered(&id, &message) {
                    return;
                }
                let asked = id.as_u64().and_then(|number| self.asked.lock().remove(&number));
                if let Some(ServerRequest { at, by, id }) = asked {
                    self.put(at, OutboxMessage::Answer(by, message.rewrite().id(&id).finish()));
                }
            }
            (RpcMessageKind::Error { id: None }, _) => {}
        }
    }

    /// Sends a notification of the client to all servers.
    fn told(self: &Arc<Self>, notification: &RpcMessage) {
        if notification.method() == Some("notifications/initialized") {
            self.is_ready.store(true, Ordering::Relaxed);
        }
        for at in 0..self.servers.len() {
            self.put(at, OutboxMessage::Notification(notification.clone()));
        }
    }

    /// Queues a message for a server, after earlier ones. Only requests to the same server wait for it.
    fn put(self: &Arc<Self>, at: usize, word: OutboxMessage) {
        let Some(behind) = self.servers.get(at) else { return };
        match behind.outbox.put(word) {
            EnqueueResult::SenderNeeded => self.spawn(|session| async move {
                tokio::select! {
                    () = session.send_queued(at) => {}
                    () = session.wait_until_left() => {}
                }
            }),
            EnqueueResult::Waits => {}
            EnqueueResult::Full => {
                let why = "it does not read the messages of its client; some are lost";
                tracing::warn!(event = "server.deaf", server = %behind.server.name, why);
            }
        }
    }

    async fn send_queued(&self, at: usize) {
        let Some(behind) = self.servers.get(at) else { return };
        while let Some(word) = behind.outbox.next() {
            match word {
                OutboxMessage::Notification(notification) => self.tell(behind, &notification).await,
                OutboxMessage::Answer(by, answer) => behind.server.answer(by, &answer).await,
            }
            behind.outbox.mark_sent();
        }
    }

    async fn tell(&self, behind: &BackingServer, notification: &RpcMessage) {
        if behind.shared.as_ref().is_none_or(|shared| shared.is_needed(notification)) {
            behind.server.notify(notification).await;
        }
    }

    /// Forwards a request of a server to the client.
    async fn asked(&self, at: usize, by: Generation, request: &RpcMessage) {
        let Some(id) = request.id() else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let has_room = {
            let mut asked = self.asked.lock();
            let has_room = asked.len() < MOST_ASKED;
            if has_room {
                asked.insert(number, ServerRequest { at, by, id: id.clone() });
            }
            has_room
        };
        if !has_room {
            let why = "too many questions wait for the client";
            let refusal = RpcMessage::error_response(Some(&id), code::INTERNAL_ERROR, why, None);
            if let Some(behind) = self.servers.get(at) {
                behind.server.answer(by, &refusal).await;
            }
            return;
        }
        self.say(at, &request.rewrite().id(&RpcId::number(number)).finish()).await;
    }

    /// Sends a message of a server to the client. With exactly one request in flight it most likely belongs to that,
    /// and a client without an open stream receives it there.
    async fn say(&self, at: usize, message: &RpcMessage) {
        let voice = match &self.client {
            ClientConnection::Line(_) => None,
            ClientConnection::Streams(_) | ClientConnection::Answers => {
                let running = self.running.lock();
                let of_server = running.values().filter(|one| one.at.is_none_or(|of| of == at));
                let mut voices = of_server.map(|running| &running.voice);
                voices.next().filter(|_| voices.next().is_none()).cloned()
            }
        };
        match voice {
            Some(voice) => voice.send(message).await,
            None => self.client.send(message).await,
        }
    }

    /// Translates the cancellation of a server request into the client's id. Returns `None` if the request was already
    /// answered.
    fn withdrawn(&self, at: usize, notification: &RpcMessage) -> Option<RpcMessage> {
        let text = notification.param("requestId")?;
        let mut asked = self.asked.lock();
        let is_meant = |question: &ServerRequest| question.at == at && question.id.is(text);
        let number = asked.iter().find(|(_, question)| is_meant(question)).map(|(number, _)| *number)?;
        asked.remove(&number);
        Some(notification.rewrite().param("requestId", RpcId::number(number).to_json()).finish())
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
        match running.remove(&number).map(|one| one.what) {
            Some(RequestKind::Call(canceller)) => canceller.cancel(),
            Some(RequestKind::Other(withdrawn)) => withdrawn.notify_one(),
            None => {}
        }
    }

    /// Registers a request that the client waits for. Returns its number.
    fn begin(&self, id: &RpcId, at: Option<usize>, voice: RequestChannel, what: RequestKind) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().insert(number, ActiveRequest { id: id.clone(), voice, at, what });
        number
    }

    /// Removes a request. Returns true if the client still waited for it.
    fn end(&self, number: u64) -> bool {
        self.running.lock().remove(&number).is_some()
    }

    // ---- calls ----

    fn call(
        self: &Arc<Self>,
        id: RpcId,
        request: RpcMessage,
        reply: ResponseChannel,
        headers: &HeaderMap,
        from: &ClientIdentity,
    ) {
        let (request, brought) = approval::unwrapped(request);
        let said = match RequestContext::by(&request, from, headers) {
            Ok(said) => said,
            Err(why) => {
                let why = format!("the idempotency key is not valid: {why}");
                return self.refuse(&id, code::INVALID_PARAMS, &why, reply);
            }
        };
        let called = request.name().unwrap_or_default().into_owned();
        if self.own_tools.reliability && reliability::is_ours(&called) {
            return self.call_own(id, &called, &request, (said, from.clone(), brought), reply);
        }
        if self.own_tools.turns && called == turn::RUN_TURN {
            return self.run_turn(id, &request, reply, said, from);
        }
        let (at, plain) = match self.servers.named(&called) {
            Some((at, plain)) => (Some(at), plain),
            None => (None, &*called),
        };
        let request = if plain == called { request } else { request.rewrite().name(plain).finish() };
        let name = ToolName::new(plain).ok();
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let (Some(name), true) = (name, arguments.starts_with('{')) else {
            // No tool has such a name or takes such arguments: the server reports the error in its own words.
            let route = match at {
                Some(at) => Route::To(at, request.clone()),
                None => Route::Unknown(unknown_tool(&called)),
            };
            return self.pass_on(id, request, route, reply);
        };
        let behind = at.and_then(|at| self.servers.get(at));
        let server = behind.map(|behind| behind.server.clone());
        let tool = server.as_ref().and_then(|server| server.catalog.tool(name.as_str()));
        let schema = tool.as_ref().and_then(|tool| tool.input_schema.as_ref());
        // Only HTTP servers see the headers, so the gateway has to compare them.
        if let (ResponseChannel::Http(_, ProtocolEra::Modern), Some(schema)) = (&reply, schema)
            && let Err(why) = header_params::check_headers(schema.as_str(), &arguments, headers)
        {
            return self.refuse(&id, code::HEADER_MISMATCH, &why, reply);
        }
        let voice = reply.voice();
        let news = RequestNotifications::of(&request, &voice);
        let era = ProtocolEra::of_request(&request);
        let conversation =
            if said.session.is_some() { ConversationStatus::Known } else { ConversationStatus::Unknown };
        let elicits = || self.servers.iter().any(|behind| behind.server.handshake.elicits());
        let asker = Elicitation::of(&request, era, elicits, &self.questions, &voice, conversation, brought);
        let options = CallOptions {
            channel: approval::channel(asker.as_ref()),
            prompter: asker,
            tool,
            equal_calls: said.equal_calls(),
            call_id: said.call_id.clone(),
            key_scope: CallerKeyScope::Actor,
            // A client that gets progress does not give up.
            waits: match &news {
                Some(news) if news.sends_progress() => CallerPatience::UntilDone,
                Some(_) | None => CallerPatience::MayGiveUp,
            },
            continuation: said.continuation,
            trace: said.trace.clone(),
            reads: behind.map(BackingServer::reads).unwrap_or_default(),
            registry: Some(Arc::new(turn::SessionToolRegistry(self.clone()))),
            ..CallOptions::default()
        };
        let namespace = server.as_ref().map_or_else(unknown_namespace, |server| server.name.clone());
        // Only a client with streams can return for an undelivered answer.
        let own_id = matches!(self.client, ClientConnection::Streams(_)).then_some(&id);
        let envelope = envelope(next_request(own_id), &namespace, name, arguments, said, from);
        let of_call = if era == ProtocolEra::Modern { CallNotifications::of(self, &request) } else { None };
        let request_id = envelope.request_id.clone();
        // A call of an unknown tool goes through the engine too, so that the loop guard can stop repeated ones.
        let upstream = match behind {
            Some(behind) => UpstreamTool::at(behind, request, news.clone()),
            None => UpstreamTool::nowhere(unknown_tool(&called)),
        };
        let reader = from.reader();
        let mut calling = self.engine.call_with(envelope, upstream, options);
        let canceller = calling.canceller();
        let number = self.begin(&id, at, voice.clone(), RequestKind::Call(canceller.clone()));
        self.spawn(|session| async move {
            let keeping = async {
                match &news {
                    Some(news) => news.keep_alive().await,
                    None => std::future::pending().await,
                }
            };
            let mut called = tokio::select! {
                // The call first: it must begin before the others are polled.
                biased;
                called = &mut calling => called,
                never = keeping => match never {},
                () = voice.cancelled() => {
                    canceller.cancel();
                    calling.await
                }
                () = session.wait_until_left() => {
                    // With all mechanisms off nothing is stored, and the call would never end while it is awaited.
                    if calling.is_bypassed() {
                        session.end(number);
                        return;
                    }
                    calling.await
                }
            };
            match of_call {
                Some(of_call) => of_call.tell(&request_id, &voice),
                None => session.notify_all().await,
            }
            // Registered first: a cancellation finds the call either here or there.
            let is_cancelled = Arc::new(AtomicBool::new(false));
            let answered = AnsweredCall { id: id.clone(), is_cancelled: is_cancelled.clone() };
            session.answered.lock().insert(number, answered);
            // A client that cancelled the call gets no answer.
            if session.end(number) {
                if let (Some(at), Some(output)) = (at, &called.result.output) {
                    session.servers.learn_task(at, output.content.as_str());
                }
                session.shorten(&mut called, &reader).await;
                session.answer_call(&id, era, called, is_cancelled, reply).await;
            }
            session.answered.lock().remove(&number);
        });
    }

    /// Runs a built-in tool for trust.
    fn call_own(
        self: &Arc<Self>,
        id: RpcId,
        name: &str,
        request: &RpcMessage,
        (said, from, brought): (RequestContext, ClientIdentity, Option<ReturnedDecision>),
        reply: ResponseChannel,
    ) {
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let (name, era) = (name.to_owned(), ProtocolEra::of_request(request));
        let voice = reply.voice();
        let elicits = || self.servers.iter().any(|behind| behind.server.handshake.elicits());
        // An approval is valid for one call, in any session.
        let conversation = ConversationStatus::Unknown;
        let asker = Elicitation::of(request, era, elicits, &self.questions, &voice, conversation, brought);
        let withdrawn = Arc::new(Notify::new());
        let number = self.begin(&id, None, voice.clone(), RequestKind::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let called = reliability::TrustToolCall {
                engine: &session.engine,
                tenant: from.tenant.as_ref(),
                session: said.session.as_ref(),
                asker,
            };
            let answered = tokio::select! {
                answered = called.call(&name, &arguments) => answered,
                () = withdrawn.notified() => return,
                () = voice.cancelled() => {
                    session.end(number);
                    return;
                }
                () = session.wait_until_left() => {
                    session.end(number);
                    return;
                }
            };
            session.end(number);
            let result = match answered {
                reliability::TrustToolResponse::Result(result) => responses::of_era(result, era),
                reliability::TrustToolResponse::Question(question) => question,
            };
            reply.answer(&RpcMessage::result_response(&id, &result)).await;
        });
    }

    /// Runs the built-in tool that makes several calls.
    fn run_turn(
        self: &Arc<Self>,
        id: RpcId,
        request: &RpcMessage,
        reply: ResponseChannel,
        said: RequestContext,
        from: &ClientIdentity,
    ) {
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let era = ProtocolEra::of_request(request);
        let voice = reply.voice();
        let news = RequestNotifications::of(request, &voice).filter(|news| news.sends_progress());
        let patience = if news.is_some() { ClientPatience::Long } else { ClientPatience::Short };
        let plan = match turn::plan(&arguments, &self.servers, patience) {
            Ok(plan) => Arc::new(plan),
            Err(errors) => {
                let answer =
                    RpcMessage::result_response(&id, &responses::of_era(turn::mistakes(&errors), era));
                self.tasks.spawn(async move { _ = reply.answer(&answer).await });
                return;
            }
        };
        let options = TurnOptions {
            control: control(&said),
            trace: trace(&said),
            key_scope: CallerKeyScope::Actor,
            ..TurnOptions::of(target(&said, from))
        };
        let reader = from.reader();
        let withdrawn = Arc::new(Notify::new());
        let number = self.begin(&id, None, voice.clone(), RequestKind::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let stop = options.cancelled.clone();
            let mut turning = Box::pin(session.engine.turn(
                plan,
                Arc::new(turn::SessionToolRegistry(session.clone())),
                options,
            ));
            let keeping = async {
                match &news {
                    Some(news) => news.keep_alive().await,
                    None => std::future::pending().await,
                }
            };
            let mut turned = tokio::select! {
                biased;
                turned = &mut turning => turned,
                never = keeping => match never {},
                () = withdrawn.notified() => {
                    stop.cancel();
                    turning.await
                }
                () = voice.cancelled() => {
                    stop.cancel();
                    turning.await
                }
                // No call starts without a client: calls in flight run to their end.
                () = session.wait_until_left() => {
                    session.end(number);
                    return;
                }
            };
            session.notify_all().await;
            if session.end(number) {
                if let Ok(turned) = &mut turned {
                    session.shorten_turn(turned, &reader).await;
                }
                let answer = RpcMessage::result_response(&id, &responses::of_era(turn::answer(&turned), era));
                reply.answer(&answer).await;
            }
        });
    }

    /// Returns the servers.
    pub(crate) fn servers(&self) -> &SessionServers {
        &self.servers
    }

    fn refuse(&self, id: &RpcId, code: i64, why: &str, reply: ResponseChannel) {
        let refusal = RpcMessage::error_response(Some(id), code, why, None);
        self.tasks.spawn(async move { _ = reply.answer(&refusal).await });
    }

    /// Sends the answer to a call. A client ignores the answer to a call that it has cancelled. Such an answer never
    /// counts as delivered, so that an equal call gets it instead of running again.
    async fn answer_call(
        &self,
        id: &RpcId,
        era: ProtocolEra,
        called: CallResponse,
        is_cancelled: Arc<AtomicBool>,
        reply: ResponseChannel,
    ) {
        let response = responses::response(id, era, &called);
        let Some(arrival) = called.delivery else {
            let _ = reply.answer(&response).await;
            return;
        };
        let engine = self.engine.clone();
        // Recorded before the message that confirms it is processed: an equal call after the answer is a new one.
        let arrived: DeliveryCallback = Box::new(move || {
            if !is_cancelled.load(Ordering::Relaxed) {
                engine.mark_delivered(arrival);
            }
        });
        if let Some(delivery) = reply.answer_with_receipt(&response, Some(arrived)).await {
            self.await_delivery(delivery).await;
        }
    }

    /// Spawns work that ends when the client leaves.
    fn spawn_while_there<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) {
        let working = work(self.clone());
        self.tasks.spawn(self.left.clone().run_until_cancelled_owned(working));
    }

    /// Waits until the delivery of an answer is confirmed or has failed.
    async fn await_delivery(&self, delivery: PendingDelivery) {
        self.unheard.fetch_add(1, Ordering::Relaxed);
        delivery.settled_with_callback(GRACE).await;
        self.unheard.fetch_sub(1, Ordering::Relaxed);
    }

    /// Spawns work for the client that does not end with its connection.
    fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        self.tasks.spawn(work(self.clone()));
    }
}

/// Handles events of one server of a session, without keeping either alive.
struct SessionEventHandler {
    session: Weak<GatewaySession>,
    at: usize,
}

impl ServerOwner for SessionEventHandler {
    fn handle_event(&self, event: ServerEvent) -> BoxFuture<'_, ()> {
        async {
            if let Some(session) = self.session.upgrade() {
                session.take_from_server(self.at, event).await;
            }
        }
        .boxed()
    }
}

impl GatewaySession {
    /// Handles an event of a server.
    pub(crate) async fn take_from_server(&self, at: usize, event: ServerEvent) {
        match event {
            ServerEvent::Notification(message) if message.method() == Some("notifications/cancelled") => {
                if let Some(message) = self.withdrawn(at, &message) {
                    self.say(at, &message).await;
                }
            }
            ServerEvent::Notification(message) => self.say(at, &message).await,
            ServerEvent::Request(by, message) => self.asked(at, by, &message).await,
            ServerEvent::Died(life) => {
                let gone: Vec<u64> = {
                    let mut asked = self.asked.lock();
                    let is_over = |question: &ServerRequest| question.at == at && question.by == life;
                    let gone =
                        asked.iter().filter(|(_, question)| is_over(question)).map(|(id, _)| *id).collect();
                    asked.retain(|_, question| !is_over(question));
                    gone
                };
                for id in gone {
                    self.say(at, &cancel(&RpcId::number(id), "the server that asked has ended")).await;
                }
            }
            ServerEvent::Recovered(recovery) => {
                let Some(behind) = self.servers.get(at) else { return };
                tracing::warn!(
                    event = "server.recovered",
                    server = %behind.server.name,
                    "the server was restarted; its state in memory may be lost"
                );
                if behind.was_missed() {
                    // The client lists the tools again, which failed while the server was down.
                    behind.server.breaker.with(|breaker| breaker.reset(self.engine.now()));
                    self.lists_changed(at).await;
                } else if recovery.tools_changed {
                    self.say(at, &RpcMessage::notification("notifications/tools/list_changed", None)).await;
                }
            }
        }
    }
}

/// The error message that the MCP SDKs use.
fn unknown_tool(name: &str) -> String {
    format!("Unknown tool: {name}")
}

/// The namespace of tools that no server has.
#[expect(clippy::expect_used, reason = "a constant that is a namespace")]
fn unknown_namespace() -> Namespace {
    Namespace::new("nobody").expect("it is short and printable")
}

fn empty() -> JsonText {
    json("{}")
}

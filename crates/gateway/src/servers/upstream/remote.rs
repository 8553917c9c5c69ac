//! A server over streamable HTTP: its session, and a new session after the server has lost it.
//!
//! Each request is a task that posts it and reads the response. In the legacy era, a separate stream brings messages
//! that belong to no request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError, is_session_lost};
use steadfast_json::scan;
use steadfast_mcp::http::upstream::{
    self, EventStream, MessageContext, StreamItem, UpstreamContent, UpstreamFailure,
};
use steadfast_mcp::http::{META_VERSION, ProtocolEra, header_params};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::RpcMessage;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::{
    Generation, HANDSHAKE, NotificationReceivers, OverlongMessage, PendingRequest, SEND_TIMEOUT, ServerEvent,
    ServerRecovery, UpstreamServer, not_sent,
};

/// The connection to a remote server.
pub(super) struct RemoteConnection {
    server: upstream::HttpUpstream,
    headers: HeaderMap,
    state: Mutex<State>,
    /// Locked while a new session is created, so that there is one for all requests.
    restoring: tokio::sync::Mutex<()>,
}

struct State {
    generation: Generation,
    standing: RemoteSessionState,
    /// The protocol version of the legacy handshake.
    version: Option<Box<str>>,
    session: Option<Box<str>>,
    /// The task that reads messages that belong to no request.
    listening: Option<AbortHandle>,
}

/// The state of the session at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemoteSessionState {
    /// There was no handshake. In the modern era there is none.
    Fresh,
    /// The server knows our session.
    Known,
    /// The server has lost our session.
    Forgotten,
}

/// The answer that a stream is read for.
struct AwaitedAnswer<'a> {
    number: Option<u64>,
    /// The session id that came with it, if it is the answer to the handshake.
    first: Option<&'a Option<Box<str>>>,
}

/// The delay before the stream is opened again, if the server sets none.
const REOPEN_DELAY: Duration = Duration::from_secs(1);
/// The maximum number of times in a row that a broken stream is resumed.
const MOST_RESUMED: u32 = 5;

impl RemoteConnection {
    /// Creates the connection. A server that an earlier process used does not know our session.
    pub(super) fn new(server: upstream::HttpUpstream, headers: HeaderMap, was_known: bool) -> Self {
        let standing = if was_known { RemoteSessionState::Forgotten } else { RemoteSessionState::Fresh };
        let state =
            State { generation: Generation(1), standing, version: None, session: None, listening: None };
        Self { server, headers, state: Mutex::new(state), restoring: tokio::sync::Mutex::default() }
    }

    pub(super) async fn send(
        &self,
        server: &Arc<UpstreamServer>,
        request: &RpcMessage,
        receivers: NotificationReceivers,
    ) -> Result<PendingRequest, AttemptFault> {
        self.restore_session(server).await?;
        Ok(self.post(server, request, receivers))
    }

    pub(super) fn send_first(
        &self,
        server: &Arc<UpstreamServer>,
        request: &RpcMessage,
    ) -> Result<PendingRequest, AttemptFault> {
        Ok(self.post(server, request, NotificationReceivers::default()))
    }

    pub(super) async fn notify(&self, server: &Arc<UpstreamServer>, notification: &RpcMessage) {
        let context = self.context(server, notification);
        match timeout(SEND_TIMEOUT, self.server.post(notification, &context)).await {
            // After a timeout it may still have been received.
            outcome @ (Ok(Ok(_)) | Err(_)) => {
                if outcome.is_ok() {
                    server.reporter.record_success();
                }
                if notification.method() == Some("notifications/initialized") {
                    self.listen(server).await;
                }
            }
            Ok(Err(failure)) => self.failed(server, &failure, &context),
        }
    }

    pub(super) async fn answer(
        &self,
        server: &Arc<UpstreamServer>,
        requested_by: Generation,
        answer: &RpcMessage,
    ) {
        if self.state.lock().generation == requested_by {
            self.notify(server, answer).await;
        }
    }

    /// Cancels the request by closing its connection, if this server expects that. Returns true if it did.
    pub(super) fn is_cancelled_by_disconnect(&self, place: &PendingRequest) -> bool {
        let leaves = self.state.lock().standing == RemoteSessionState::Fresh;
        if leaves {
            place.abandon(lost("the request was cancelled"));
        }
        leaves
    }

    pub(super) async fn stop(&self) {
        let context = self.context_of_session();
        let known = {
            let mut state = self.state.lock();
            if let Some(listening) = state.listening.take() {
                listening.abort();
            }
            std::mem::replace(&mut state.standing, RemoteSessionState::Fresh) == RemoteSessionState::Known
        };
        if known && context.session.is_some() {
            let _ = timeout(END_TIMEOUT, self.server.end(&context)).await;
        }
    }

    fn post(
        &self,
        server: &Arc<UpstreamServer>,
        request: &RpcMessage,
        receivers: NotificationReceivers,
    ) -> PendingRequest {
        let context = self.context(server, request);
        let generation = self.state.lock().generation;
        let (place, sent) = server.enter(generation, request, receivers);
        let (server, number) = (server.clone(), place.number);
        let fetching = tokio::spawn(async move {
            let Some(remote) = server.remote() else { return };
            let fetched = remote.fetch(&server, generation, &sent, context).await;
            // A request that is still pending got an answer to a different one.
            let none =
                || AttemptFault::new(FaultSource::BadAnswer, "the server answered a different request");
            server.pending.fail(number, fetched.err().unwrap_or_else(none));
        });
        place.fetched_by(fetching.abort_handle())
    }

    /// Posts a request and routes the messages of the response.
    async fn fetch(
        &self,
        server: &Arc<UpstreamServer>,
        generation: Generation,
        sent: &RpcMessage,
        context: MessageContext,
    ) -> Result<(), AttemptFault> {
        let on = sent.id().and_then(|id| id.as_u64());
        let answer = match self.server.post(sent, &context).await {
            Ok(answer) => {
                server.reporter.record_success();
                answer
            }
            Err(failure) => {
                self.failed(server, &failure, &context);
                let response = error_response(&failure, sent).ok_or_else(|| failure.fault())?;
                server.received(generation, response, on).await;
                return Ok(());
            }
        };
        let is_first = sent.method() == Some("initialize");
        match answer.content {
            UpstreamContent::Accepted => Err(AttemptFault::new(
                FaultSource::BadAnswer,
                "the server accepted the request and did not answer it",
            )),
            UpstreamContent::One(message) => {
                if is_first {
                    self.agreed(&message, answer.session);
                }
                self.refused(&message, &context);
                server.received(generation, message, on).await;
                Ok(())
            }
            UpstreamContent::Stream(mut stream) => {
                let mut resumed = 0;
                loop {
                    let awaited =
                        AwaitedAnswer { number: number_of(sent), first: is_first.then_some(&answer.session) };
                    match self.read(server, (generation, on), &mut stream, Some(awaited)).await {
                        StreamEnd::Answered => {
                            // After reading to the end, the connection can be reused.
                            tokio::spawn(async move { timeout(REOPEN_DELAY, stream.next()).await });
                            return Ok(());
                        }
                        StreamEnd::Over => {}
                    }
                    let Some(last) = stream.last_event_id().map(str::to_owned) else {
                        return Err(lost("the stream ended before the answer"));
                    };
                    if resumed == MOST_RESUMED {
                        return Err(lost("the stream ended repeatedly before the answer"));
                    }
                    resumed += 1;
                    tokio::time::sleep(stream.retry().unwrap_or(REOPEN_DELAY)).await;
                    stream = self.server.listen(&context, Some(&last)).await.map_err(|failure| {
                        self.failed(server, &failure, &context);
                        // The first attempt may have taken effect, so the outcome is unknown after any later failure.
                        lost(&failure.to_string())
                    })?;
                }
            }
        }
    }

    /// Reads a stream to its end or to the awaited answer. Its messages belong to the request of the stream.
    async fn read(
        &self,
        server: &Arc<UpstreamServer>,
        (generation, on): (Generation, Option<u64>),
        stream: &mut EventStream,
        awaited: Option<AwaitedAnswer<'_>>,
    ) -> StreamEnd {
        while let Some(received) = stream.next().await {
            match received {
                Ok(StreamItem::Message(message)) => {
                    // An answer to another request does not end the stream.
                    let answered = awaited
                        .as_ref()
                        .filter(|one| message.is_response() && number_of(&message) == one.number);
                    let is_answer = answered.is_some();
                    if let Some(session) = answered.and_then(|one| one.first) {
                        self.agreed(&message, session.clone());
                    }
                    server.received(generation, message, on).await;
                    if is_answer {
                        return StreamEnd::Answered;
                    }
                }
                Ok(StreamItem::NotAMessage { data, error }) => {
                    server.handle_malformed(&data, &error);
                    tracing::warn!(event = "server.garbage", server = %server.name, "why" = %error);
                }
                Ok(StreamItem::TooLong(long)) => {
                    let OverlongMessage { answers, refusal } = server.handle_overlong(generation, &long, on);
                    if let Some(refusal) = refusal {
                        let context = self.context(server, &refusal);
                        let _ = timeout(SEND_TIMEOUT, self.server.post(&refusal, &context)).await;
                    }
                    if answers.is_some() && awaited.as_ref().is_some_and(|one| one.number == answers) {
                        return StreamEnd::Answered;
                    }
                }
                Err(_) => return StreamEnd::Over,
            }
        }
        StreamEnd::Over
    }

    /// Stores the result of the legacy handshake.
    fn agreed(&self, response: &RpcMessage, session: Option<Box<str>>) {
        let version = response.result().and_then(|result| scan::get(result, "protocolVersion"));
        let Some(version) = version.and_then(scan::string) else { return };
        let mut state = self.state.lock();
        state.version = Some(version.into());
        state.session = session;
        state.standing = RemoteSessionState::Known;
    }

    fn failed(&self, server: &UpstreamServer, failure: &UpstreamFailure, context: &MessageContext) {
        match failure {
            UpstreamFailure::NotSent { .. } | UpstreamFailure::Lost { .. } => {
                server.reporter.record_failure(&failure.to_string())
            }
            // Any response shows that the server can be reached.
            UpstreamFailure::SessionLost
            | UpstreamFailure::Status { .. }
            | UpstreamFailure::BadAnswer { .. }
            | UpstreamFailure::TooLarge { .. } => {
                server.reporter.record_success();
            }
        }
        self.faulted(&failure.fault(), context);
    }

    /// Checks an error response: some servers report a lost session in this way.
    fn refused(&self, response: &RpcMessage, context: &MessageContext) {
        if let Some(code) = response.error_code() {
            let text = response.error_text().unwrap_or_default();
            self.faulted(&AttemptFault::new(FaultSource::JsonRpc { code }, text), context);
        }
    }

    fn faulted(&self, fault: &AttemptFault, context: &MessageContext) {
        let mut state = self.state.lock();
        // A session that was replaced in the meantime is ignored.
        let is_current = state.standing == RemoteSessionState::Known && state.session == context.session;
        if is_current && is_session_lost(fault) {
            state.standing = RemoteSessionState::Forgotten;
        }
    }

    /// Returns the HTTP context of a message. Modern messages state their version themselves.
    fn context(&self, server: &UpstreamServer, message: &RpcMessage) -> MessageContext {
        let mut context = match (message.method(), message.meta_text(META_VERSION)) {
            (_, Some(version)) if ProtocolEra::of(&version) != Some(ProtocolEra::Legacy) => {
                let mut headers = self.headers.clone();
                headers.extend(repeated(server, message));
                MessageContext { version: Some(version.into()), session: None, headers }
            }
            (Some("initialize"), _) => {
                MessageContext { headers: self.headers.clone(), ..MessageContext::default() }
            }
            _ => self.context_of_session(),
        };
        if let Some(key) = message.meta_text("dev.steadfast/idempotency-key")
            && let Ok(key) = HeaderValue::from_str(&key)
        {
            context.headers.insert("idempotency-key", key);
        }
        context
    }

    fn context_of_session(&self) -> MessageContext {
        let state = self.state.lock();
        MessageContext {
            version: state.version.clone(),
            session: state.session.clone(),
            headers: self.headers.clone(),
        }
    }

    /// Creates a new session if the server has lost the old one. If that fails, the request that needs the session was not
    /// sent, whatever happened to the handshake.
    pub(super) async fn restore_session(&self, server: &Arc<UpstreamServer>) -> Result<(), AttemptFault> {
        self.repeat_handshake(server)
            .await
            .map_err(|fault| AttemptFault { retry_after: fault.retry_after, ..not_sent(&fault.message) })
    }

    async fn repeat_handshake(&self, server: &Arc<UpstreamServer>) -> Result<(), AttemptFault> {
        if self.state.lock().standing != RemoteSessionState::Forgotten {
            return Ok(());
        }
        let _guard = self.restoring.lock().await;
        let before = {
            let mut state = self.state.lock();
            if state.standing != RemoteSessionState::Forgotten {
                return Ok(());
            }
            if let Some(listening) = state.listening.take() {
                listening.abort();
            }
            let before = state.generation;
            state.generation = Generation(before.0 + 1);
            before
        };
        server.notify_owner(ServerEvent::Died(before)).await;
        if !server.handshake.has_started() {
            return Ok(());
        }
        let handshake = server.repeat(
            |request| async { Ok(self.post(server, &{ request }, NotificationReceivers::default())) }.boxed(),
            |notification| async { self.notify(server, &{ notification }).await }.boxed(),
        );
        match timeout(HANDSHAKE, handshake).await {
            Ok(result) => result?,
            Err(_) => return Err(not_sent("the server did not answer the handshake in time")),
        }
        if server.is_modern() {
            // A modern server has no session to lose.
            self.state.lock().standing = RemoteSessionState::Fresh;
        }
        let tools_changed = server
            .handshake
            .tools_changed(|list| async move {
                Ok(self.post(server, &server.to_server_era(list), NotificationReceivers::default()))
            })
            .await;
        server.notify_owner(ServerEvent::Recovered(ServerRecovery { tools_changed })).await;
        Ok(())
    }

    /// Opens the stream for messages that belong to no request, if the server has one. Waits until it is open: some
    /// servers send requests to their client on it during a call, and lose them if it is not open.
    async fn listen(&self, server: &Arc<UpstreamServer>) {
        let generation = self.state.lock().generation;
        let context = self.context_of_session();
        let server = Arc::downgrade(server);
        let (opening, opened) = oneshot::channel::<()>();
        let listening = tokio::spawn(async move {
            let (mut last, mut opening): (Option<String>, _) = (None, Some(opening));
            loop {
                let Some(server) = server.upgrade() else { return };
                let Some(remote) = server.remote() else { return };
                let stream = remote.server.listen(&context, last.as_deref()).await;
                drop(opening.take());
                let pause = match stream {
                    Ok(mut stream) => {
                        server.reporter.record_success();
                        let _ = remote.read(&server, (generation, None), &mut stream, None).await;
                        last = stream.last_event_id().map(str::to_owned).or(last);
                        stream.retry().unwrap_or(REOPEN_DELAY)
                    }
                    Err(failure @ (UpstreamFailure::NotSent { .. } | UpstreamFailure::Lost { .. })) => {
                        tracing::debug!(event = "server.listen", server = %server.name, "why" = %failure);
                        server.reporter.record_failure(&failure.to_string());
                        REOPEN_DELAY
                    }
                    // The server has no such stream, or has lost the session.
                    Err(failure) => return remote.failed(&server, &failure, &context),
                };
                drop(server);
                tokio::time::sleep(pause).await;
            }
        });
        let before = self.state.lock().listening.replace(listening.abort_handle());
        if let Some(before) = before {
            before.abort();
        }
        // Some servers send no response headers before the first message.
        let _ = timeout(OPENING, opened).await;
    }
}

/// The maximum wait for the stream of messages that belong to no request.
const OPENING: Duration = Duration::from_millis(500);

/// The time limit for ending the session.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the number in the id of a message.
fn number_of(message: &RpcMessage) -> Option<u64> {
    message.id().and_then(|id| id.as_u64())
}

enum StreamEnd {
    Answered,
    Over,
}

/// Returns the headers that repeat arguments of a call, if the schema of its tool is known.
fn repeated(server: &UpstreamServer, message: &RpcMessage) -> Vec<(HeaderName, HeaderValue)> {
    let tool = message.name().filter(|_| message.method() == Some("tools/call"));
    let tool = tool.and_then(|name| server.catalog.tool(&name));
    let schema = tool.as_ref().and_then(|tool| tool.input_schema.as_ref());
    match (schema, message.arguments()) {
        (Some(schema), Some(arguments)) => header_params::headers_for(schema.as_str(), arguments.as_str()),
        _ => Vec::new(),
    }
}

/// Returns the server's own error from a response with an error status, as the modern era requires for many errors. It
/// answers this request, whatever id it has.
fn error_response(failure: &UpstreamFailure, to: &RpcMessage) -> Option<RpcMessage> {
    let fault = failure.fault();
    match (failure, &fault.source) {
        (UpstreamFailure::Status { error: Some(error), .. }, FaultSource::JsonRpc { code })
            if !is_session_lost(&fault) =>
        {
            let (id, had_one) = (to.id()?, error.id().is_some());
            let data = error.error().and_then(|error| scan::get(error, "data"));
            let data = data.and_then(|data| JsonText::parse(data.to_owned()).ok());
            Some(match had_one {
                true => error.rewrite().id(&id).finish(),
                false => RpcMessage::error_response(Some(&id), *code, &fault.message, data.as_ref()),
            })
        }
        _ => None,
    }
}

/// Returns a fault for a request that was sent and may have taken effect.
fn lost(reason: &str) -> AttemptFault {
    AttemptFault::new(
        FaultSource::Transport { error: TransportError::ConnectionClosed, written: true },
        reason,
    )
}

impl Drop for RemoteConnection {
    fn drop(&mut self) {
        if let Some(listening) = self.state.get_mut().listening.take() {
            listening.abort();
        }
    }
}

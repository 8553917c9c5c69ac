//! A server that is reached over streamable HTTP: its session, and how it gets another one when it has forgotten it.
//!
//! Each request is a task that posts it and reads what comes back. In the older era a stream beside them brings what belongs
//! to no request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use steadfast_core::classify::{Fault, Source, Transport, is_session_lost};
use steadfast_mcp::http::back::{self, Content, Context, EventStream, Failure, Received};
use steadfast_mcp::http::{Era, META_VERSION, param};
use steadfast_mcp::message::Message;
use steadfast_mcp::raw::{self, RawJson};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::{Ears, FromServer, HANDSHAKE, Life, OverlongMessage, Place, Recovery, Server, TOLD, gone};

/// The way to a server elsewhere.
pub(super) struct Remote {
    server: back::Server,
    headers: HeaderMap,
    state: Mutex<State>,
    /// Held by whoever makes a new session, so that one is made for all.
    mending: tokio::sync::Mutex<()>,
}

struct State {
    life: Life,
    standing: Standing,
    /// As both sides agreed at the handshake of the older era.
    version: Option<Box<str>>,
    session: Option<Box<str>>,
    /// What listens for messages that belong to no request.
    listening: Option<AbortHandle>,
}

/// How we stand with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// There was no handshake, and in the modern era there is none.
    Fresh,
    /// It knows our session.
    Known,
    /// It has forgotten our session.
    Forgotten,
}

/// The answer that a stream is for.
struct Awaited<'a> {
    number: Option<u64>,
    /// The session that came with it, where it is the answer to the handshake.
    first: Option<&'a Option<Box<str>>>,
}

/// How long to wait before listening again where the server does not say.
const AGAIN: Duration = Duration::from_secs(1);
/// A stream that breaks so often in a row is not resumed again.
const MOST_RESUMED: u32 = 5;

impl Remote {
    /// One that was spoken with before, by another process of ours, does not know us any more.
    pub(super) fn new(server: back::Server, headers: HeaderMap, was_known: bool) -> Self {
        let standing = if was_known { Standing::Forgotten } else { Standing::Fresh };
        let state = State { life: Life(1), standing, version: None, session: None, listening: None };
        Self { server, headers, state: Mutex::new(state), mending: tokio::sync::Mutex::default() }
    }

    pub(super) async fn send(
        &self,
        server: &Arc<Server>,
        request: &Message,
        ears: Ears,
    ) -> Result<Place, Fault> {
        self.mend(server).await?;
        Ok(self.post(server, request, ears))
    }

    pub(super) fn send_first(&self, server: &Arc<Server>, request: &Message) -> Result<Place, Fault> {
        Ok(self.post(server, request, Ears::default()))
    }

    pub(super) async fn tell(&self, server: &Arc<Server>, notification: &Message) {
        let context = self.context(server, notification);
        match timeout(TOLD, self.server.post(notification, &context)).await {
            // One that takes long may have heard it all the same.
            told @ (Ok(Ok(_)) | Err(_)) => {
                if told.is_ok() {
                    server.reporter.works();
                }
                if notification.method() == Some("notifications/initialized") {
                    self.listen(server).await;
                }
            }
            Ok(Err(failure)) => self.failed(server, &failure, &context),
        }
    }

    pub(super) async fn answer(&self, server: &Arc<Server>, asked_by: Life, answer: &Message) {
        if self.state.lock().life == asked_by {
            self.tell(server, answer).await;
        }
    }

    /// Whether leaving is how the request at this place is withdrawn; then it is done.
    pub(super) fn is_withdrawn_by_leaving(&self, place: &Place) -> bool {
        let leaves = self.state.lock().standing == Standing::Fresh;
        if leaves {
            place.leave(lost("the request was withdrawn"));
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
            std::mem::replace(&mut state.standing, Standing::Fresh) == Standing::Known
        };
        if known && context.session.is_some() {
            let _ = timeout(FAREWELL, self.server.end(&context)).await;
        }
    }

    fn post(&self, server: &Arc<Server>, request: &Message, ears: Ears) -> Place {
        let context = self.context(server, request);
        let life = self.state.lock().life;
        let (place, sent) = server.enter(life, request, ears);
        let (server, number) = (server.clone(), place.number);
        let fetching = tokio::spawn(async move {
            let Some(remote) = server.remote() else { return };
            let fetched = remote.fetch(&server, life, &sent, context).await;
            // Whoever still waits was given an answer to something else.
            let none =
                || Fault::new(Source::BadAnswer, "the server answered something else than it was asked");
            server.pending.failed(number, fetched.err().unwrap_or_else(none));
        });
        place.fetched_by(fetching.abort_handle())
    }

    /// Posts a request, and brings what comes back to where it belongs.
    async fn fetch(
        &self,
        server: &Arc<Server>,
        life: Life,
        sent: &Message,
        context: Context,
    ) -> Result<(), Fault> {
        let on = sent.id().and_then(|id| id.as_u64());
        let answer = match self.server.post(sent, &context).await {
            Ok(answer) => {
                server.reporter.works();
                answer
            }
            Err(failure) => {
                self.failed(server, &failure, &context);
                let said = said(&failure, sent).ok_or_else(|| failure.fault())?;
                server.received(life, said, on).await;
                return Ok(());
            }
        };
        let is_first = sent.method() == Some("initialize");
        match answer.content {
            Content::Accepted => Err(Fault::new(Source::BadAnswer, "the server gave no answer to a request")),
            Content::One(message) => {
                if is_first {
                    self.agreed(&message, answer.session);
                }
                self.refused(&message, &context);
                server.received(life, message, on).await;
                Ok(())
            }
            Content::Stream(mut stream) => {
                let mut resumed = 0;
                loop {
                    let awaited =
                        Awaited { number: number_of(sent), first: is_first.then_some(&answer.session) };
                    match self.read(server, (life, on), &mut stream, Some(awaited)).await {
                        Ended::Answered => {
                            // Read to its end, its connection can be used again.
                            tokio::spawn(async move { timeout(AGAIN, stream.next()).await });
                            return Ok(());
                        }
                        Ended::Over => {}
                    }
                    let Some(last) = stream.last_event_id().map(str::to_owned) else {
                        return Err(lost("the stream ended before the answer"));
                    };
                    if resumed == MOST_RESUMED {
                        return Err(lost("the stream ended again and again before the answer"));
                    }
                    resumed += 1;
                    tokio::time::sleep(stream.retry().unwrap_or(AGAIN)).await;
                    stream = self.server.listen(&context, Some(&last)).await.map_err(|failure| {
                        self.failed(server, &failure, &context);
                        // What was sent first may have had its effect, whatever is wrong now.
                        lost(&failure.to_string())
                    })?;
                }
            }
        }
    }

    /// Reads a stream to its end or to the answer that it is for. What comes on it belongs to the request that it is of.
    async fn read(
        &self,
        server: &Arc<Server>,
        (life, on): (Life, Option<u64>),
        stream: &mut EventStream,
        awaited: Option<Awaited<'_>>,
    ) -> Ended {
        while let Some(received) = stream.next().await {
            match received {
                Ok(Received::Message(message)) => {
                    // An answer to nobody is not the one that the stream is for.
                    let answered = awaited
                        .as_ref()
                        .filter(|one| message.is_response() && number_of(&message) == one.number);
                    let is_answer = answered.is_some();
                    if let Some(session) = answered.and_then(|one| one.first) {
                        self.agreed(&message, session.clone());
                    }
                    server.received(life, message, on).await;
                    if is_answer {
                        return Ended::Answered;
                    }
                }
                Ok(Received::NotAMessage { data, why }) => {
                    server.answered_badly(&data, &why);
                    tracing::warn!(event = "server.garbage", server = %server.name, %why);
                }
                Ok(Received::TooLong(said)) => {
                    let OverlongMessage { answers, refusal } = server.handle_overlong(life, &said, on);
                    if let Some(refusal) = refusal {
                        let context = self.context(server, &refusal);
                        let _ = timeout(TOLD, self.server.post(&refusal, &context)).await;
                    }
                    if answers.is_some() && awaited.as_ref().is_some_and(|one| one.number == answers) {
                        return Ended::Answered;
                    }
                }
                Err(_) => return Ended::Over,
            }
        }
        Ended::Over
    }

    /// The handshake of the older era is answered.
    fn agreed(&self, response: &Message, session: Option<Box<str>>) {
        let version = response.result().and_then(|result| raw::get(result, "protocolVersion"));
        let Some(version) = version.and_then(raw::string) else { return };
        let mut state = self.state.lock();
        state.version = Some(version.into());
        state.session = session;
        state.standing = Standing::Known;
    }

    fn failed(&self, server: &Server, failure: &Failure, context: &Context) {
        match failure {
            Failure::NotSent { .. } | Failure::Lost { .. } => server.reporter.fails(&failure.to_string()),
            // Whatever it says, it can be reached.
            Failure::SessionLost
            | Failure::Status { .. }
            | Failure::BadAnswer { .. }
            | Failure::TooLarge { .. } => {
                server.reporter.works();
            }
        }
        self.faulted(&failure.fault(), context);
    }

    /// Some servers say it in an answer of their own.
    fn refused(&self, response: &Message, context: &Context) {
        if let Some(code) = response.error_code() {
            let text = response.error_text().unwrap_or_default();
            self.faulted(&Fault::new(Source::JsonRpc { code }, text), context);
        }
    }

    fn faulted(&self, fault: &Fault, context: &Context) {
        let mut state = self.state.lock();
        // A session that was replaced meanwhile was forgotten by us first.
        let is_ours = state.standing == Standing::Known && state.session == context.session;
        if is_ours && is_session_lost(fault) {
            state.standing = Standing::Forgotten;
        }
    }

    /// What goes with a message. Those of the modern era say themselves which version they are of.
    fn context(&self, server: &Server, message: &Message) -> Context {
        let mut context = match (message.method(), message.meta_text(META_VERSION)) {
            (_, Some(version)) if Era::of(&version) != Some(Era::Legacy) => {
                let mut headers = self.headers.clone();
                headers.extend(repeated(server, message));
                Context { version: Some(version.into()), session: None, headers }
            }
            (Some("initialize"), _) => Context { headers: self.headers.clone(), ..Context::default() },
            _ => self.context_of_session(),
        };
        if let Some(key) = message.meta_text("dev.steadfast/idempotency-key")
            && let Ok(key) = HeaderValue::from_str(&key)
        {
            context.headers.insert("idempotency-key", key);
        }
        context
    }

    fn context_of_session(&self) -> Context {
        let state = self.state.lock();
        Context {
            version: state.version.clone(),
            session: state.session.clone(),
            headers: self.headers.clone(),
        }
    }

    /// Makes a new session where the server has forgotten ours. What was to be sent in it has not been sent where that
    /// fails, whatever became of the words that were to make it.
    pub(super) async fn mend(&self, server: &Arc<Server>) -> Result<(), Fault> {
        self.shake_hands_again(server)
            .await
            .map_err(|fault| Fault { retry_after: fault.retry_after, ..gone(&fault.message) })
    }

    async fn shake_hands_again(&self, server: &Arc<Server>) -> Result<(), Fault> {
        if self.state.lock().standing != Standing::Forgotten {
            return Ok(());
        }
        let _mending = self.mending.lock().await;
        let before = {
            let mut state = self.state.lock();
            if state.standing != Standing::Forgotten {
                return Ok(());
            }
            if let Some(listening) = state.listening.take() {
                listening.abort();
            }
            let before = state.life;
            state.life = Life(before.0 + 1);
            before
        };
        server.heard(FromServer::Died(before)).await;
        if !server.handshake.has_begun() {
            return Ok(());
        }
        let said = server.repeat(
            |request| async { Ok(self.post(server, &{ request }, Ears::default())) }.boxed(),
            |notification| async { self.tell(server, &{ notification }).await }.boxed(),
        );
        match timeout(HANDSHAKE, said).await {
            Ok(said) => said?,
            Err(_) => return Err(gone("the server did not answer the handshake in time")),
        }
        if server.is_modern() {
            // It never knew a session, and will not forget one.
            self.state.lock().standing = Standing::Fresh;
        }
        let tools_changed = server
            .handshake
            .tools_changed(
                |list| async move { Ok(self.post(server, &server.dressed(list), Ears::default())) },
            )
            .await;
        server.heard(FromServer::Recovered(Recovery { tools_changed })).await;
        Ok(())
    }

    /// Listens for what belongs to no request, as long as the server lets us. Comes back when it hears us listen: there are
    /// servers that ask their client on this stream while a call runs, and lose the question if nobody is there.
    async fn listen(&self, server: &Arc<Server>) {
        let life = self.state.lock().life;
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
                        server.reporter.works();
                        let _ = remote.read(&server, (life, None), &mut stream, None).await;
                        last = stream.last_event_id().map(str::to_owned).or(last);
                        stream.retry().unwrap_or(AGAIN)
                    }
                    Err(failure @ (Failure::NotSent { .. } | Failure::Lost { .. })) => {
                        tracing::debug!(event = "server.listen", server = %server.name, why = %failure);
                        server.reporter.fails(&failure.to_string());
                        AGAIN
                    }
                    // It does not have such a stream, or does not know us any more.
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
        // Some servers say nothing before they have something to say.
        let _ = timeout(OPENING, opened).await;
    }
}

/// How long opening the stream for what belongs to no request is waited for.
const OPENING: Duration = Duration::from_millis(500);

/// How long taking leave may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// How the reading of a stream came to its end.
/// The number of ours that a message bears.
fn number_of(message: &Message) -> Option<u64> {
    message.id().and_then(|id| id.as_u64())
}

enum Ended {
    Answered,
    Over,
}

/// The headers that repeat arguments of a call, as far as the schema of its tool is known.
fn repeated(server: &Server, message: &Message) -> Vec<(HeaderName, HeaderValue)> {
    let tool = message.name().filter(|_| message.method() == Some("tools/call"));
    let tool = tool.and_then(|name| server.catalog.tool(&name));
    let schema = tool.as_ref().and_then(|tool| tool.input_schema.as_ref());
    match (schema, message.arguments()) {
        (Some(schema), Some(arguments)) => param::repeated(schema.as_str(), arguments.as_str()),
        _ => Vec::new(),
    }
}

/// The answer of the server itself behind a status that is not a success, which the modern era wants for many of them.
/// Whichever id it has, it came for this request.
fn said(failure: &Failure, to: &Message) -> Option<Message> {
    let fault = failure.fault();
    match (failure, &fault.source) {
        (Failure::Status { error: Some(error), .. }, Source::JsonRpc { code })
            if !is_session_lost(&fault) =>
        {
            let (id, had_one) = (to.id()?, error.id().is_some());
            let data = error.error().and_then(|error| raw::get(error, "data"));
            let data = data.and_then(|data| RawJson::parse(data.to_owned()).ok());
            Some(match had_one {
                true => error.rewrite().id(&id).finish(),
                false => Message::error_response(Some(&id), *code, &fault.message, data.as_ref()),
            })
        }
        _ => None,
    }
}

/// It was sent, and may have had its effect.
fn lost(why: &str) -> Fault {
    Fault::new(Source::Transport { error: Transport::ConnectionClosed, written: true }, why)
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(listening) = self.state.get_mut().listening.take() {
            listening.abort();
        }
    }
}

//! One client and the server behind it: which message goes where.
//!
//! `tools/call` goes down the path of the engine. Every other request is passed on with a time-out, and once more where
//! asking twice does no harm. What the server asks its client is numbered anew, so that the questions of a server that was
//! started again are not taken for those of the one before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use parking_lot::Mutex;
use steadfast_core::approval::Channel;
use steadfast_core::call::{KeysOf, Waits};
use steadfast_core::classify::{Fault, Source};
use steadfast_core::id::ToolName;
use steadfast_executor::{CallOptions, Called, Canceller, Engine};
use steadfast_mcp::delivery::GRACE;
use steadfast_mcp::http::{Era, META_VERSION, param};
use steadfast_mcp::message::{Id, Kind, Message, code};
use steadfast_mcp::raw::RawJson;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{Upstream, envelope};
use crate::client::{Client, Reply, Voice};
use crate::made;
use crate::memory::Memory;
use crate::news::News;
use crate::server::{FromServer, Life, Owner, Server, cancel};
use crate::who::{Connection, Said};

/// A client and its server.
pub(crate) struct Session {
    engine: Engine,
    server: Arc<Server>,
    client: Client,
    connection: Connection,
    /// Where it is kept what the client agreed on with the server, if it is to outlive us.
    memory: Option<Memory>,
    /// What the client waits for, by numbers of our own: clients that share a session have ids of their own.
    running: Mutex<BTreeMap<u64, Running>>,
    /// What the server asked, by the numbers that we gave it.
    asked: Mutex<HashMap<u64, (Life, Id)>>,
    next: AtomicU64,
    tasks: TaskTracker,
}

/// A message of a client.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) message: Message,
    /// The way to answer it, if it is a request.
    pub(crate) reply: Option<Reply>,
    /// The headers that it came with, over HTTP.
    pub(crate) headers: HeaderMap,
    /// Who sent it, where several share the session.
    pub(crate) from: Option<Connection>,
}

/// A request that the client waits for.
struct Running {
    id: Id,
    voice: Voice,
    what: What,
}

enum What {
    Call(Canceller),
    Other(Arc<Notify>),
}

/// How long a request that is no call may take.
const REQUEST: Duration = Duration::from_secs(300);
/// How often a request is sent that does no harm twice.
const TRIES: u32 = 3;
/// The most requests of a client that wait for their answers.
const MOST_RUNNING: usize = 1024;
/// The most questions of a server that wait for their client.
const MOST_ASKED: usize = 1024;

/// Codes of errors that we answer ourselves, outside the range that JSON-RPC and MCP keep for themselves.
mod own {
    /// The server did not answer in time.
    pub(super) const TIMED_OUT: i64 = -31_001;
    /// The client wants too much at once.
    pub(super) const OVERLOADED: i64 = -31_003;
    /// The server is not there.
    pub(super) const UNAVAILABLE: i64 = -31_002;
}

impl Session {
    pub(crate) fn new(
        engine: Engine,
        server: Arc<Server>,
        client: Client,
        connection: Connection,
        memory: Option<Memory>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            server,
            client,
            connection,
            memory,
            running: Mutex::default(),
            asked: Mutex::default(),
            next: AtomicU64::new(1),
            tasks: TaskTracker::new(),
        })
    }

    /// Waits until what the client began is over, or until `stop`; then takes no more of it.
    pub(crate) async fn finish(&self, stop: &CancellationToken) {
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Whether the client waits for anything.
    pub(crate) fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Whether the server ever answered this client.
    pub(crate) fn has_begun(&self) -> bool {
        self.server.handshake.has_begun()
    }

    /// The client has said that it will not come back, or did not for long.
    pub(crate) async fn forget(&self) {
        if let Some(memory) = &self.memory {
            memory.forget().await;
        }
    }

    /// Ends the server behind this client.
    pub(crate) async fn stop(&self) {
        self.server.stop().await;
    }

    /// A message of the client. Comes back before it is answered, and in the order in which messages came.
    pub(crate) async fn take(self: &Arc<Self>, incoming: Incoming) {
        let Incoming { message, reply, headers, from } = incoming;
        let reply = match reply {
            Some(reply) if self.running.lock().len() >= MOST_RUNNING => {
                let why = "too many requests of this client are waiting; let some be answered first";
                let refusal = Message::error_response(message.id().as_ref(), own::OVERLOADED, why, None);
                reply.answer(&refusal).await;
                return;
            }
            reply => reply,
        };
        match (message.kind(), reply) {
            // The newer era has none; there the server says what it says to any method that it does not know.
            (Kind::Request { id, method: "ping" }, Some(reply)) if era_of(&message) == Era::Legacy => {
                reply.answer(&Message::result_response(&id, &empty())).await;
            }
            (Kind::Request { id, method: "tools/call" }, Some(reply)) => {
                self.call(id, message, reply, &headers, from.as_ref().unwrap_or(&self.connection));
            }
            (Kind::Request { id, .. }, Some(reply)) => self.pass_on(id, message, reply),
            // Nobody could hear the answer.
            (Kind::Request { .. }, None) => {}
            (Kind::Notification { method: "notifications/cancelled" }, _) => self.cancelled(&message),
            (Kind::Notification { .. }, _) => self.server.tell(&message).await,
            (Kind::Result { id } | Kind::Error { id: Some(id) }, _) => {
                let asked = id.as_u64().and_then(|number| self.asked.lock().remove(&number));
                if let Some((by, original)) = asked {
                    self.server.answer(by, &message.rewrite().id(&original).finish()).await;
                }
            }
            (Kind::Error { id: None }, _) => {}
        }
    }

    /// A server wants something of its client.
    async fn asked(&self, by: Life, request: &Message) {
        let Some(original) = request.id() else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let has_room = {
            let mut asked = self.asked.lock();
            let has_room = asked.len() < MOST_ASKED;
            if has_room {
                asked.insert(number, (by, original.clone()));
            }
            has_room
        };
        if !has_room {
            let why = "too many questions wait for the client";
            let refusal = Message::error_response(Some(&original), code::INTERNAL_ERROR, why, None);
            return self.server.answer(by, &refusal).await;
        }
        self.say(&request.rewrite().id(&Id::number(number)).finish()).await;
    }

    /// Says what the server said by itself. Where exactly one request is under way it belongs to that, most likely, and a
    /// client that does not listen otherwise hears it there.
    async fn say(&self, message: &Message) {
        let voice = match &self.client {
            Client::Line(_) => None,
            Client::Streams(_) | Client::Answers => {
                let running = self.running.lock();
                let mut voices = running.values().map(|running| &running.voice);
                voices.next().filter(|_| voices.next().is_none()).cloned()
            }
        };
        match voice {
            Some(voice) => voice.say(message).await,
            None => self.client.say(message).await,
        }
    }

    /// A server does not want an answer any more: the same under the number by which its client knows the question. Of a
    /// question that was answered there is nothing to tell.
    fn withdrawn(&self, notification: &Message) -> Option<Message> {
        let text = notification.param("requestId")?;
        let mut asked = self.asked.lock();
        let number = asked.iter().find(|(_, (_, original))| original.is(text)).map(|(number, _)| *number)?;
        asked.remove(&number);
        Some(notification.rewrite().param("requestId", Id::number(number).to_json()).finish())
    }

    /// The client does not want an answer any more.
    fn cancelled(&self, notification: &Message) {
        let Some(text) = notification.param("requestId") else { return };
        let mut running = self.running.lock();
        let Some(number) = running.iter().find(|(_, one)| one.id.is(text)).map(|(number, _)| *number) else {
            return;
        };
        match running.remove(&number).map(|one| one.what) {
            Some(What::Call(canceller)) => canceller.cancel(),
            Some(What::Other(withdrawn)) => withdrawn.notify_one(),
            None => {}
        }
    }

    /// Notes that the client waits for this; gives the number that it is noted under.
    fn begin(&self, id: &Id, voice: Voice, what: What) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().insert(number, Running { id: id.clone(), voice, what });
        number
    }

    /// Whether the client still waits for this; it does not after this.
    fn end(&self, number: u64) -> bool {
        self.running.lock().remove(&number).is_some()
    }

    // ---- calls ----

    fn call(self: &Arc<Self>, id: Id, request: Message, reply: Reply, headers: &HeaderMap, from: &Connection) {
        let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
        let said = match Said::by(&request, from, key) {
            Ok(said) => said,
            Err(why) => {
                let why = format!("the idempotency key cannot be used: {why}");
                return self.refuse(&id, code::INVALID_PARAMS, &why, reply);
            }
        };
        let name = request.name().and_then(|name| ToolName::new(name).ok());
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let (Some(name), true) = (name, arguments.starts_with('{')) else {
            // No tool has such a name, and none takes such arguments: the server says so in its own words.
            return self.pass_on(id, request, reply);
        };
        let tool = self.server.catalog.tool(name.as_str());
        let schema = tool.as_ref().and_then(|tool| tool.input_schema.as_ref());
        // A server that is not reached over HTTP never sees the headers, so this is for us to see.
        if let (Reply::Http(_, Era::Modern), Some(schema)) = (&reply, schema)
            && let Err(why) = param::agree(schema.as_str(), &arguments, headers)
        {
            return self.refuse(&id, code::HEADER_MISMATCH, &why, reply);
        }
        let voice = reply.voice();
        let news = News::of(&request, &voice);
        let options = CallOptions {
            channel: Channel::Headless,
            tool,
            equal_calls: said.equal_calls(),
            call_id: said.call_id.clone(),
            keys_of: KeysOf::Actor,
            // Whoever hears of progress does not give up.
            waits: if news.is_some() { Waits::AsLongAsItTakes } else { Waits::NotForLong },
            continuation: said.continuation,
        };
        let envelope = envelope(&self.server.name, name, arguments, said, from);
        let era = era_of(&request);
        let upstream = Upstream::new(self.server.clone(), request, news.clone());
        let mut calling = self.engine.call_with(envelope, upstream, options);
        let canceller = calling.canceller();
        let number = self.begin(&id, voice.clone(), What::Call(canceller.clone()));
        self.spawn(|session| async move {
            let keeping = async {
                match &news {
                    Some(news) => news.keep_alive().await,
                    None => std::future::pending().await,
                }
            };
            let called = tokio::select! {
                called = &mut calling => called,
                never = keeping => match never {},
                () = voice.withdrawn() => {
                    canceller.cancel();
                    calling.await
                }
            };
            // Who withdrew a call does not want to hear of it again.
            if session.end(number) {
                session.answer_call(&id, era, called, reply).await;
            }
        });
    }

    fn refuse(&self, id: &Id, code: i64, why: &str, reply: Reply) {
        let refusal = Message::error_response(Some(id), code, why, None);
        self.tasks.spawn(async move { _ = reply.answer(&refusal).await });
    }

    async fn answer_call(&self, id: &Id, era: Era, called: Called, reply: Reply) {
        let response = made::response(id, era, &called);
        let Some(delivery) = reply.answer(&response).await else { return };
        if let Some(arrival) = called.arrival {
            let engine = self.engine.clone();
            // Known before the message is acted on that shows it: an equal call after the answer is a new one.
            delivery.settled_telling(GRACE, move || engine.delivered(arrival)).await;
        }
    }

    // ---- other requests ----

    fn pass_on(self: &Arc<Self>, id: Id, request: Message, reply: Reply) {
        let (withdrawn, voice) = (Arc::new(Notify::new()), reply.voice());
        let number = self.begin(&id, voice.clone(), What::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let answered = tokio::select! {
                answered = session.ask_server(&id, &request, &voice) => answered,
                () = withdrawn.notified() => return,
                () = voice.withdrawn() => {
                    session.end(number);
                    return;
                }
            };
            session.end(number);
            reply.answer(&answered).await;
        });
    }

    async fn ask_server(&self, id: &Id, request: &Message, voice: &Voice) -> Message {
        let method = request.method().unwrap_or_default();
        let tries = if is_harmless(method) { TRIES } else { 1 };
        let mut tried = 1;
        loop {
            match tokio::time::timeout(patience(method), self.exchange(request, voice)).await {
                Ok(Ok(answer)) => {
                    if self.server.handshake.answered(request, &answer)
                        && let Some(memory) = &self.memory
                    {
                        memory.keep(&self.server.handshake).await;
                    }
                    match method {
                        "initialize" if answer.result().is_some() => self.server.is_ready().await,
                        "tools/list" => self.server.catalog.learn(request, &answer),
                        _ => {}
                    }
                    return answer.rewrite().id(id).finish();
                }
                Ok(Err(fault)) if tried < tries && is_worth_a_try(&fault) => tried += 1,
                Ok(Err(fault)) => {
                    return Message::error_response(Some(id), own::UNAVAILABLE, &fault.message, None);
                }
                Err(_) => {
                    let why = "the server did not answer in time";
                    return Message::error_response(Some(id), own::TIMED_OUT, why, None);
                }
            }
        }
    }

    async fn exchange(&self, request: &Message, voice: &Voice) -> Result<Message, Fault> {
        let mut place = match request.method() {
            Some("initialize") => self.server.send_first(request).await?,
            _ => {
                self.server.handshake.spoke();
                let hear = News::of(request, voice).map(|news| news.hear(|| {}));
                self.server.send(request, hear).await?
            }
        };
        let withdrawal = Withdrawal { server: &self.server, id: Some(place.id()), tasks: &self.tasks };
        let answer = place.answer().await;
        withdrawal.was_answered();
        answer
    }

    /// Work on behalf of the client, which does not end with its line.
    fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        self.tasks.spawn(work(self.clone()));
    }
}

impl Owner for Session {
    fn heard(&self, event: FromServer) -> BoxFuture<'_, ()> {
        self.take_from_server(event).boxed()
    }
}

impl Session {
    async fn take_from_server(&self, event: FromServer) {
        match event {
            FromServer::Told(message) if message.method() == Some("notifications/cancelled") => {
                if let Some(message) = self.withdrawn(&message) {
                    self.say(&message).await;
                }
            }
            FromServer::Told(message) => self.say(&message).await,
            FromServer::Asked(by, message) => self.asked(by, &message).await,
            FromServer::Died(number) => {
                let gone: Vec<u64> = {
                    let mut asked = self.asked.lock();
                    let gone: Vec<_> =
                        asked.iter().filter(|(_, (by, _))| *by == number).map(|(id, _)| *id).collect();
                    asked.retain(|_, (by, _)| *by != number);
                    gone
                };
                for id in gone {
                    self.say(&cancel(&Id::number(id), "the server that asked has ended")).await;
                }
            }
            FromServer::Recovered(recovery) => {
                tracing::warn!(
                    event = "server.recovered",
                    server = %self.server.name,
                    "the server was started again; what it kept in memory may be gone"
                );
                if recovery.tools_changed {
                    self.say(&Message::notification("notifications/tools/list_changed", None)).await;
                }
            }
        }
    }
}

/// Tells the server that an answer is not wanted any more, unless it came.
struct Withdrawal<'a> {
    server: &'a Arc<Server>,
    id: Option<Id>,
    tasks: &'a TaskTracker,
}

impl Withdrawal<'_> {
    fn was_answered(mut self) {
        self.id = None;
    }
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let server = self.server.clone();
            self.tasks.spawn(async move { server.tell(&cancel(&id, "no longer wanted")).await });
        }
    }
}

fn empty() -> RawJson {
    RawJson::parse("{}").unwrap_or_else(|_| RawJson::string(""))
}

/// The era that a request is of: in the modern one each of them says so.
fn era_of(request: &Message) -> Era {
    if request.meta_member(META_VERSION).is_some() { Era::Modern } else { Era::Legacy }
}

/// How long a request may take. One that listens lasts as long as its client wants it to.
fn patience(method: &str) -> Duration {
    if method == "subscriptions/listen" { Duration::MAX } else { REQUEST }
}

/// Whether asking twice is as good as asking once.
fn is_harmless(method: &str) -> bool {
    matches!(
        method,
        "initialize"
            | "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete"
            | "server/discover"
    )
}

/// Whether the server may be there the next time.
fn is_worth_a_try(fault: &Fault) -> bool {
    match fault.source {
        Source::Transport { .. } | Source::Exit { .. } => true,
        Source::Http { .. }
        | Source::JsonRpc { .. }
        | Source::SessionLost
        | Source::IsError
        | Source::Tool
        | Source::WebSocket { .. }
        | Source::Timeout { .. }
        | Source::Panic
        | Source::BadAnswer => false,
    }
}

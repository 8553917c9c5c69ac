//! One client and the servers behind it: which message goes where.
//!
//! `tools/call` goes down the path of the engine. Every other request is passed on with a time-out, and once more where
//! asking twice does no harm. What a server asks its client is numbered anew, so that the questions of several servers, or
//! of one that was started again, are not taken for each other's.

mod asking;
mod large;
mod missed;
mod notifying;
mod several;
mod wishes;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use http::HeaderMap;
use parking_lot::Mutex;
use steadfast_core::call::{KeysOf, Waits};
use steadfast_core::id::{Namespace, ToolName};
use steadfast_executor::{CallOptions, Called, Canceller, Engine, TurnOptions};
use steadfast_mcp::delivery::{Arrived, Delivery, GRACE};
use steadfast_mcp::http::{Era, param};
use steadfast_mcp::message::{Id, Kind, Message, code};
use steadfast_mcp::raw::RawJson;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::missed::Missed;
pub(crate) use self::missed::Returned;
use self::notifying::{Logging, OfCall};
use self::wishes::Wishes;
use crate::approval::{self, Brought, Conversation, Elicitation, Questions};
use crate::call::{Upstream, control, envelope, named_so_far, next_request, target, trace};
use crate::client::{Client, Reply, Voice};
use crate::large_results::LargeResults;
use crate::made;
use crate::memory::Memory;
use crate::news::News;
use crate::outbox::{Put, Word};
use crate::pieces::json;
use crate::reliability::{self, OwnTools};
use crate::server::{FromServer, Keeping, Life, Owner, cancel};
use crate::servers::{Behind, Route, Servers};
use crate::turn::{self, Patience};
use crate::who::{Connection, Said};

/// A client and its servers.
pub(crate) struct Session {
    engine: Engine,
    servers: Servers,
    client: Client,
    connection: Connection,
    /// The tools of our own that the client sees.
    own_tools: OwnTools,
    /// Texts of results that are longer than the client is to be given.
    large: Arc<LargeResults>,
    /// True once the client was told that there are resources.
    has_resources: AtomicBool,
    /// Where it is kept what the client agreed on with the server, if it is to outlive us.
    memory: Option<Memory>,
    /// What the client waits for, by numbers of our own: clients that share a session have ids of their own.
    running: Mutex<BTreeMap<u64, Running>>,
    /// What was answered, until it is known whether the answer has arrived.
    answered: Mutex<BTreeMap<u64, Answered>>,
    /// What servers asked, by the numbers that we gave it.
    asked: Mutex<HashMap<u64, Question>>,
    /// What we asked the client ourselves.
    questions: Arc<Questions>,
    /// Whether the client has said that it is ready.
    is_ready: AtomicBool,
    /// How much the client wants to hear of what is logged.
    logging: Mutex<Option<Logging>>,
    /// What the client wants of servers that others use too.
    wishes: Wishes,
    next: AtomicU64,
    /// What was begun for the client.
    tasks: TaskTracker,
    /// Room for lists that are late.
    late: Arc<Semaphore>,
    /// The client is gone, and what it began comes to its end.
    left: CancellationToken,
    /// How much of that only waits to hear whether an answer has arrived.
    unheard: AtomicUsize,
    /// Answers that never arrived and are on their way again.
    missed: Missed,
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
    /// Which server it is for, if it is for one.
    at: Option<usize>,
    what: What,
}

/// A call whose answer may still be on its way.
struct Answered {
    id: Id,
    /// The client has cancelled the call meanwhile: it does not look at the answer.
    is_cancelled: Arc<AtomicBool>,
}

/// What a server wants of the client.
struct Question {
    at: usize,
    by: Life,
    /// The server's own name for it.
    id: Id,
}

enum What {
    Call(Canceller),
    Other(Arc<Notify>),
}

/// The most requests of a client that wait for their answers.
const MOST_RUNNING: usize = 1024;
/// How long a client that has left is still answered.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// The most requests for lists that are still waited for after their client was answered.
const MOST_LATE: usize = 16;
/// The most questions of a server that wait for their client.
const MOST_ASKED: usize = 1024;

/// Codes of errors that we answer ourselves, outside the range that JSON-RPC and MCP keep for themselves.
mod own {
    /// The server did not answer in time.
    pub(super) const TIMED_OUT: i64 = -31_001;
    /// The client wants too much at once.
    pub(super) const OVERLOADED: i64 = -31_003;
    /// The server is not there, or would not have it: it did nothing.
    pub(super) const UNAVAILABLE: i64 = -31_002;
    /// The server was lost before it answered: it may have done it.
    pub(super) const LOST: i64 = -31_004;
}

impl Session {
    pub(crate) fn new(
        engine: Engine,
        servers: Vec<Behind>,
        client: Client,
        connection: Connection,
        own_tools: OwnTools,
        large: Arc<LargeResults>,
        memory: Option<Memory>,
    ) -> Arc<Self> {
        let session = Arc::new(Self {
            engine,
            servers: Servers::new(servers),
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
            wishes: Wishes::default(),
            next: AtomicU64::new(1),
            tasks: TaskTracker::new(),
            late: Arc::new(Semaphore::new(MOST_LATE)),
            left: CancellationToken::new(),
            unheard: AtomicUsize::new(0),
            missed: Missed::since(named_so_far()),
        });
        for (at, behind) in session.servers.iter().enumerate() {
            if let Some(shared) = &behind.shared {
                shared.join(&session, at);
            }
        }
        session
    }

    /// Keeps the servers that are this client's alone, each in a task.
    pub(crate) fn keep_servers(self: &Arc<Self>, keeping: Vec<Option<Keeping>>) -> Vec<JoinHandle<()>> {
        let alone = self.servers.iter().zip(keeping).enumerate();
        let kept = alone.filter_map(|(at, (behind, keeping))| {
            let hearing = Arc::new(Hearing { session: Arc::downgrade(self), at });
            Some(tokio::spawn(behind.server.clone().keep(keeping?, hearing)))
        });
        kept.collect()
    }

    /// The client is gone. Waits until the calls that it began are over, whose results are kept, or until `stop`. Of all else
    /// nobody wants to hear any more.
    pub(crate) async fn finish(&self, stop: &CancellationToken) {
        self.left.cancel();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Comes back when nobody hears an answer any more: a while after the client has left, because there are some that
    /// write what they have to say, close their line, and read on.
    async fn is_left(&self) {
        self.left.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    }

    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// How many requests its client waits for.
    pub(crate) fn waiting(&self) -> usize {
        self.running.lock().len()
    }

    /// Whether the client waits for anything. An answer that got lost is nothing that it waits for: it may never come back
    /// for it.
    pub(crate) fn is_busy(&self) -> bool {
        self.tasks.len() > self.unheard.load(Ordering::Relaxed)
    }

    /// Keeps it busy, as somebody would who waits for something.
    #[cfg(test)]
    pub(crate) fn busy(&self) -> tokio_util::task::task_tracker::TaskTrackerToken {
        self.tasks.token()
    }

    /// Whether a server ever answered this client.
    pub(crate) fn has_begun(&self) -> bool {
        self.servers.iter().any(|behind| behind.server.handshake.has_begun())
    }

    /// How many calls of this client the server at this place has.
    pub(crate) fn calls_at(&self, at: usize) -> usize {
        let running = self.running.lock();
        running.values().filter(|one| one.at == Some(at) && matches!(one.what, What::Call(_))).count()
    }

    /// The client has said that it will not come back, or did not for long.
    pub(crate) async fn forget(&self) {
        if let Some(memory) = &self.memory {
            memory.forget().await;
        }
        if let Some(session) = &self.connection.session {
            // It holds for a day at the longest, where it cannot be ended now.
            let _ = self.engine.end_session(self.connection.tenant.as_ref(), session).await;
        }
    }

    /// Ends the servers behind this client, but for those that others use too.
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
            (Kind::Request { id, method: "ping" }, Some(reply))
                if Era::of_request(&message) == Era::Legacy =>
            {
                reply.answer(&Message::result_response(&id, &empty())).await;
            }
            (Kind::Request { id, method: "tools/call" }, Some(reply)) => {
                self.call(id, message, reply, &headers, from.as_ref().unwrap_or(&self.connection));
            }
            (Kind::Request { id, .. }, Some(reply)) => {
                let answer = self.kept_result(&id, &message, from.as_ref().unwrap_or(&self.connection));
                if let Some(answer) = answer {
                    self.tasks.spawn(async move { _ = reply.answer(&answer).await });
                    return;
                }
                let route = self.servers.route(&message);
                self.pass_on(id, message, route, reply);
            }
            // Nobody could hear the answer.
            (Kind::Request { .. }, None) => {}
            (Kind::Notification { method: "notifications/cancelled" }, _) => self.cancelled(&message),
            (Kind::Notification { .. }, _) => self.told(&message),
            (Kind::Result { id } | Kind::Error { id: Some(id) }, _) => {
                if self.questions.answered(&id, &message) {
                    return;
                }
                let asked = id.as_u64().and_then(|number| self.asked.lock().remove(&number));
                if let Some(Question { at, by, id }) = asked {
                    self.put(at, Word::Answer(by, message.rewrite().id(&id).finish()));
                }
            }
            (Kind::Error { id: None }, _) => {}
        }
    }

    /// The client tells its servers something.
    fn told(self: &Arc<Self>, notification: &Message) {
        if notification.method() == Some("notifications/initialized") {
            self.is_ready.store(true, Ordering::Relaxed);
        }
        for at in 0..self.servers.len() {
            self.put(at, Word::Told(notification.clone()));
        }
    }

    /// Says something to a server, behind what was said to it before. Nothing waits for that but what is asked of it.
    fn put(self: &Arc<Self>, at: usize, word: Word) {
        let Some(behind) = self.servers.get(at) else { return };
        match behind.outbox.put(word) {
            Put::ToBeSaid => self.spawn(|session| async move {
                tokio::select! {
                    () = session.say_all(at) => {}
                    () = session.is_left() => {}
                }
            }),
            Put::Waits => {}
            Put::Full => {
                let why = "it does not take what its client says, some of which is lost";
                tracing::warn!(event = "server.deaf", server = %behind.server.name, why);
            }
        }
    }

    async fn say_all(&self, at: usize) {
        let Some(behind) = self.servers.get(at) else { return };
        while let Some(word) = behind.outbox.next() {
            match word {
                Word::Told(notification) => self.tell(behind, &notification).await,
                Word::Answer(by, answer) => behind.server.answer(by, &answer).await,
            }
            behind.outbox.said();
        }
    }

    async fn tell(&self, behind: &Behind, notification: &Message) {
        if behind.shared.as_ref().is_none_or(|shared| shared.is_news(notification)) {
            behind.server.tell(notification).await;
        }
    }

    /// A server wants something of its client.
    async fn asked(&self, at: usize, by: Life, request: &Message) {
        let Some(id) = request.id() else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let has_room = {
            let mut asked = self.asked.lock();
            let has_room = asked.len() < MOST_ASKED;
            if has_room {
                asked.insert(number, Question { at, by, id: id.clone() });
            }
            has_room
        };
        if !has_room {
            let why = "too many questions wait for the client";
            let refusal = Message::error_response(Some(&id), code::INTERNAL_ERROR, why, None);
            if let Some(behind) = self.servers.get(at) {
                behind.server.answer(by, &refusal).await;
            }
            return;
        }
        self.say(at, &request.rewrite().id(&Id::number(number)).finish()).await;
    }

    /// Says what a server said by itself. Where exactly one request is under way it belongs to that, most likely, and a
    /// client that does not listen otherwise hears it there.
    async fn say(&self, at: usize, message: &Message) {
        let voice = match &self.client {
            Client::Line(_) => None,
            Client::Streams(_) | Client::Answers => {
                let running = self.running.lock();
                let of_server = running.values().filter(|one| one.at.is_none_or(|of| of == at));
                let mut voices = of_server.map(|running| &running.voice);
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
    fn withdrawn(&self, at: usize, notification: &Message) -> Option<Message> {
        let text = notification.param("requestId")?;
        let mut asked = self.asked.lock();
        let is_meant = |question: &Question| question.at == at && question.id.is(text);
        let number = asked.iter().find(|(_, question)| is_meant(question)).map(|(number, _)| *number)?;
        asked.remove(&number);
        Some(notification.rewrite().param("requestId", Id::number(number).to_json()).finish())
    }

    /// The client does not want an answer any more.
    fn cancelled(&self, notification: &Message) {
        let Some(text) = notification.param("requestId") else { return };
        let mut running = self.running.lock();
        let Some(number) = running.iter().find(|(_, one)| one.id.is(text)).map(|(number, _)| *number) else {
            let answered = self.answered.lock();
            let crossed = answered.values().filter(|one| one.id.is(text));
            return crossed.for_each(|one| one.is_cancelled.store(true, Ordering::Relaxed));
        };
        match running.remove(&number).map(|one| one.what) {
            Some(What::Call(canceller)) => canceller.cancel(),
            Some(What::Other(withdrawn)) => withdrawn.notify_one(),
            None => {}
        }
    }

    /// Notes that the client waits for this; gives the number that it is noted under.
    fn begin(&self, id: &Id, at: Option<usize>, voice: Voice, what: What) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().insert(number, Running { id: id.clone(), voice, at, what });
        number
    }

    /// Whether the client still waits for this; it does not after this.
    fn end(&self, number: u64) -> bool {
        self.running.lock().remove(&number).is_some()
    }

    // ---- calls ----

    fn call(
        self: &Arc<Self>,
        id: Id,
        request: Message,
        reply: Reply,
        headers: &HeaderMap,
        from: &Connection,
    ) {
        let (request, brought) = approval::unwrapped(request);
        let said = match Said::by(&request, from, headers) {
            Ok(said) => said,
            Err(why) => {
                let why = format!("the idempotency key cannot be used: {why}");
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
            // No tool has such a name, and none takes such arguments: the server says so in its own words.
            let route = match at {
                Some(at) => Route::To(at, request.clone()),
                None => Route::Nobody(unknown_tool(&called)),
            };
            return self.pass_on(id, request, route, reply);
        };
        let behind = at.and_then(|at| self.servers.get(at));
        let server = behind.map(|behind| behind.server.clone());
        let tool = server.as_ref().and_then(|server| server.catalog.tool(name.as_str()));
        let schema = tool.as_ref().and_then(|tool| tool.input_schema.as_ref());
        // A server that is not reached over HTTP never sees the headers, so this is for us to see.
        if let (Reply::Http(_, Era::Modern), Some(schema)) = (&reply, schema)
            && let Err(why) = param::agree(schema.as_str(), &arguments, headers)
        {
            return self.refuse(&id, code::HEADER_MISMATCH, &why, reply);
        }
        let voice = reply.voice();
        let news = News::of(&request, &voice);
        let era = Era::of_request(&request);
        let conversation = if said.session.is_some() { Conversation::Known } else { Conversation::Unknown };
        let elicits = || self.servers.iter().any(|behind| behind.server.handshake.elicits());
        let asker = Elicitation::of(&request, era, elicits, &self.questions, &voice, conversation, brought);
        let options = CallOptions {
            channel: approval::channel(asker.as_ref()),
            asker,
            tool,
            equal_calls: said.equal_calls(),
            call_id: said.call_id.clone(),
            keys_of: KeysOf::Actor,
            // Whoever hears of progress does not give up.
            waits: match &news {
                Some(news) if news.tells_progress() => Waits::AsLongAsItTakes,
                Some(_) | None => Waits::NotForLong,
            },
            continuation: said.continuation,
            trace: said.trace.clone(),
            reads: behind.map(Behind::reads).unwrap_or_default(),
            shelf: Some(Arc::new(turn::Tools(self.clone()))),
            ..CallOptions::default()
        };
        let namespace = server.as_ref().map_or_else(nobody, |server| server.name.clone());
        // Only a client with streams can come back for an answer that it did not get.
        let own_id = matches!(self.client, Client::Streams(_)).then_some(&id);
        let envelope = envelope(next_request(own_id), &namespace, name, arguments, said, from);
        let of_call = if era == Era::Modern { OfCall::of(self, &request) } else { None };
        let request_id = envelope.request_id.clone();
        // A tool that nobody has is called all the same: a model that insists on it is told to stop.
        let upstream = match behind {
            Some(behind) => Upstream::at(behind, request, news.clone()),
            None => Upstream::nowhere(unknown_tool(&called)),
        };
        let reader = from.reader();
        let mut calling = self.engine.call_with(envelope, upstream, options);
        let canceller = calling.canceller();
        let number = self.begin(&id, at, voice.clone(), What::Call(canceller.clone()));
        self.spawn(|session| async move {
            let keeping = async {
                match &news {
                    Some(news) => news.keep_alive().await,
                    None => std::future::pending().await,
                }
            };
            let mut called = tokio::select! {
                // The call itself first: it has begun when the others are asked.
                biased;
                called = &mut calling => called,
                never = keeping => match never {},
                () = voice.withdrawn() => {
                    canceller.cancel();
                    calling.await
                }
                () = session.is_left() => {
                    // Of a call that we leave alone nothing is kept, and nothing of ours ends it while somebody waits for it.
                    if calling.is_left_alone() {
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
            // Noted first: a cancel finds it here when it does not find it there.
            let is_cancelled = Arc::new(AtomicBool::new(false));
            let answered = Answered { id: id.clone(), is_cancelled: is_cancelled.clone() };
            session.answered.lock().insert(number, answered);
            // Who withdrew a call does not want to hear of it again.
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

    /// A call of a tool of our own: how the others stand.
    fn call_own(
        self: &Arc<Self>,
        id: Id,
        name: &str,
        request: &Message,
        (said, from, brought): (Said, Connection, Option<Brought>),
        reply: Reply,
    ) {
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let (name, era) = (name.to_owned(), Era::of_request(request));
        let voice = reply.voice();
        let elicits = || self.servers.iter().any(|behind| behind.server.handshake.elicits());
        // What is allowed is allowed once, whatever the conversation.
        let conversation = Conversation::Unknown;
        let asker = Elicitation::of(request, era, elicits, &self.questions, &voice, conversation, brought);
        let withdrawn = Arc::new(Notify::new());
        let number = self.begin(&id, None, voice.clone(), What::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let called = reliability::Called {
                engine: &session.engine,
                tenant: from.tenant.as_ref(),
                session: said.session.as_ref(),
                asker,
            };
            let answered = tokio::select! {
                answered = called.call(&name, &arguments) => answered,
                () = withdrawn.notified() => return,
                () = voice.withdrawn() => {
                    session.end(number);
                    return;
                }
                () = session.is_left() => {
                    session.end(number);
                    return;
                }
            };
            session.end(number);
            let result = match answered {
                reliability::Answered::Result(result) => made::of_era(result, era),
                reliability::Answered::Question(question) => question,
            };
            reply.answer(&Message::result_response(&id, &result)).await;
        });
    }

    /// A call of the tool of our own that makes several.
    fn run_turn(self: &Arc<Self>, id: Id, request: &Message, reply: Reply, said: Said, from: &Connection) {
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let era = Era::of_request(request);
        let voice = reply.voice();
        let news = News::of(request, &voice).filter(|news| news.tells_progress());
        let patience = if news.is_some() { Patience::Long } else { Patience::Short };
        let plan = match turn::plan(&arguments, &self.servers, patience) {
            Ok(plan) => Arc::new(plan),
            Err(errors) => {
                let answer = Message::result_response(&id, &made::of_era(turn::mistakes(&errors), era));
                self.tasks.spawn(async move { _ = reply.answer(&answer).await });
                return;
            }
        };
        let options = TurnOptions {
            control: control(&said),
            trace: trace(&said),
            keys_of: KeysOf::Actor,
            ..TurnOptions::of(target(&said, from))
        };
        let reader = from.reader();
        let withdrawn = Arc::new(Notify::new());
        let number = self.begin(&id, None, voice.clone(), What::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let stop = options.withdrawn.clone();
            let mut turning =
                Box::pin(session.engine.turn(plan, Arc::new(turn::Tools(session.clone())), options));
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
                () = voice.withdrawn() => {
                    stop.cancel();
                    turning.await
                }
                // Nothing runs unattended: what runs comes to its end, nothing else begins.
                () = session.is_left() => {
                    session.end(number);
                    return;
                }
            };
            session.notify_all().await;
            if session.end(number) {
                if let Ok(turned) = &mut turned {
                    session.shorten_turn(turned, &reader).await;
                }
                let answer = Message::result_response(&id, &made::of_era(turn::answer(&turned), era));
                reply.answer(&answer).await;
            }
        });
    }

    /// The servers behind it.
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    fn refuse(&self, id: &Id, code: i64, why: &str, reply: Reply) {
        let refusal = Message::error_response(Some(id), code, why, None);
        self.tasks.spawn(async move { _ = reply.answer(&refusal).await });
    }

    /// A client ignores the answer to a call that it has cancelled. Such an answer never counts as delivered, so that an equal
    /// call gets it instead of running again.
    async fn answer_call(
        &self,
        id: &Id,
        era: Era,
        called: Called,
        is_cancelled: Arc<AtomicBool>,
        reply: Reply,
    ) {
        let response = made::response(id, era, &called);
        let Some(arrival) = called.arrival else {
            let _ = reply.answer(&response).await;
            return;
        };
        let engine = self.engine.clone();
        // Known before the message is acted on that shows it: an equal call after the answer is a new one.
        let arrived: Arrived = Box::new(move || {
            if !is_cancelled.load(Ordering::Relaxed) {
                engine.delivered(arrival);
            }
        });
        if let Some(delivery) = reply.answer_telling(&response, Some(arrived)).await {
            self.hear_of(delivery).await;
        }
    }

    /// Work that ends when the client leaves.
    fn spawn_while_there<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) {
        let working = work(self.clone());
        self.tasks.spawn(self.left.clone().run_until_cancelled_owned(working));
    }

    /// Waits until it is known whether an answer has arrived, or that it never will.
    async fn hear_of(&self, delivery: Delivery) {
        self.unheard.fetch_add(1, Ordering::Relaxed);
        delivery.settled_telling(GRACE).await;
        self.unheard.fetch_sub(1, Ordering::Relaxed);
    }

    /// Work on behalf of the client, which does not end with its line.
    fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        self.tasks.spawn(work(self.clone()));
    }
}

/// Hears one of the servers of a session, without keeping either.
struct Hearing {
    session: Weak<Session>,
    at: usize,
}

impl Owner for Hearing {
    fn heard(&self, event: FromServer) -> BoxFuture<'_, ()> {
        async {
            if let Some(session) = self.session.upgrade() {
                session.take_from_server(self.at, event).await;
            }
        }
        .boxed()
    }
}

impl Session {
    /// The server at this place did something by itself.
    pub(crate) async fn take_from_server(&self, at: usize, event: FromServer) {
        match event {
            FromServer::Told(message) if message.method() == Some("notifications/cancelled") => {
                if let Some(message) = self.withdrawn(at, &message) {
                    self.say(at, &message).await;
                }
            }
            FromServer::Told(message) => self.say(at, &message).await,
            FromServer::Asked(by, message) => self.asked(at, by, &message).await,
            FromServer::Died(life) => {
                let gone: Vec<u64> = {
                    let mut asked = self.asked.lock();
                    let is_over = |question: &Question| question.at == at && question.by == life;
                    let gone =
                        asked.iter().filter(|(_, question)| is_over(question)).map(|(id, _)| *id).collect();
                    asked.retain(|_, question| !is_over(question));
                    gone
                };
                for id in gone {
                    self.say(at, &cancel(&Id::number(id), "the server that asked has ended")).await;
                }
            }
            FromServer::Recovered(recovery) => {
                let Some(behind) = self.servers.get(at) else { return };
                tracing::warn!(
                    event = "server.recovered",
                    server = %behind.server.name,
                    "the server was started again; what it kept in memory may be gone"
                );
                if behind.was_missed() {
                    // Its client lists again what it has, which was refused as long as it was not there.
                    behind.server.breaker.with(|breaker| breaker.reset(self.engine.now()));
                    self.lists_changed(at).await;
                } else if recovery.tools_changed {
                    self.say(at, &Message::notification("notifications/tools/list_changed", None)).await;
                }
            }
        }
    }
}

/// As the SDKs say it.
fn unknown_tool(name: &str) -> String {
    format!("Unknown tool: {name}")
}

/// The namespace of tools that no server has.
#[expect(clippy::expect_used, reason = "a constant that is a namespace")]
fn nobody() -> Namespace {
    Namespace::new("nobody").expect("it is short and printable")
}

fn empty() -> RawJson {
    json("{}")
}

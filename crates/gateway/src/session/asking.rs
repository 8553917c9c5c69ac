//! Requests that are no calls: to the server that they are for, or to several of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use steadfast_core::breaker::{Permit, Verdict};
use steadfast_core::classify::{Fault, Source, classify, is_session_lost};
use steadfast_core::id::ToolName;
use steadfast_core::policy::{Mode, Policy};
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::wishes::Watch;
use super::{Session, What, empty, own};
use crate::call::{envelope_of, requests};
use crate::client::{Reply, Voice};
use crate::memory::Agreements;
use crate::merge::{self, List, Part};
use crate::news::News;
use crate::server::{HANDSHAKE, Place, Server, initialized};
use crate::servers::{Behind, Joining, Route};
use crate::shared::Shared;

/// How long a request that is no call may take.
pub(super) const REQUEST: Duration = Duration::from_secs(300);
/// How often a request is sent that does no harm twice.
const TRIES: u32 = 3;
/// How long a server may take to hear that a client is gone.
const FAREWELL: Duration = Duration::from_secs(2);

impl Session {
    pub(super) fn pass_on(self: &Arc<Self>, id: Id, request: Message, route: Route, reply: Reply) {
        let (withdrawn, voice) = (Arc::new(Notify::new()), reply.voice());
        let at = match &route {
            Route::To(at, _) => Some(*at),
            Route::All(_) | Route::Whoever | Route::Nobody(_) => None,
        };
        let number = self.begin(&id, at, voice.clone(), What::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let left = async {
                match request.method() {
                    // Of what it listened for it hears nothing any more.
                    Some("subscriptions/listen") => session.left.cancelled().await,
                    _ => session.is_left().await,
                }
            };
            let answered = tokio::select! {
                answered = session.ask(&id, &request, route, &voice) => {
                    session.note_resources(&request, &answered);
                    let answered = session.with_own_tools(&id, &request, answered);
                    session.with_logging(&id, &request, answered)
                }
                () = withdrawn.notified() => return,
                () = voice.withdrawn() => {
                    session.end(number);
                    return;
                }
                () = left => {
                    session.end(number);
                    return;
                }
            };
            session.end(number);
            reply.answer(&answered).await;
        });
    }

    /// A list of tools with our own at its end, where they are offered.
    fn with_own_tools(&self, id: &Id, request: &Message, answered: Message) -> Message {
        let is_end = |result: &&str| raw::get(result, "nextCursor").is_none();
        let list = request.method().and_then(List::of).filter(|list| list.member == "tools");
        let result = answered.result().filter(is_end);
        let own = self.own_tools.definitions();
        let (Some(list), Some(result), false) = (list, result, own.is_empty()) else {
            return answered;
        };
        let own = format!(r#"{{"tools":[{}]}}"#, own.join(","));
        let part = |result| Part { server: "", prefix: None, result };
        Message::result_response(id, &merge::lists(list, &[part(result), part(&own)]))
    }

    async fn ask(self: &Arc<Self>, id: &Id, request: &Message, route: Route, voice: &Voice) -> Message {
        match route {
            Route::To(at, request) => self.ask_server(at, id, &request, voice).await,
            Route::All(Joining::Handshake) => self.introduce(id, request, voice).await,
            Route::All(Joining::List(list)) => self.ask_for_lists(id, request, list, voice).await,
            Route::All(Joining::Any) => self.ask_any(id, request, voice).await,
            Route::All(Joining::Listening) => self.listen(id, request, voice).await,
            Route::Whoever => self.ask_whoever(id, request, voice).await,
            Route::Nobody(why) => Message::error_response(Some(id), code::INVALID_PARAMS, &why, None),
        }
    }

    /// What the server at this place says to a request.
    pub(super) async fn ask_server(&self, at: usize, id: &Id, request: &Message, voice: &Voice) -> Message {
        let Some(behind) = self.servers.get(at) else { return unknown_method(id) };
        match (&behind.shared, request.method()) {
            (Some(shared), Some("initialize")) => {
                let introduced = shared.introduce(request).await;
                self.keep().await;
                match introduced {
                    Ok(result) => Message::result_response(id, result),
                    Err(fault) => own_error(id, own::UNAVAILABLE, &fault.message),
                }
            }
            (Some(shared), Some("resources/subscribe")) => {
                let (Some(uri), Some(params)) = (request.param_text("uri"), request.params_json()) else {
                    return self.ask_alone(behind, id, request, voice).await;
                };
                // Noted first: whoever stops watching meanwhile must not end it for this one.
                match self.wishes.watch(at, &uri, params) {
                    Watch::Already => return self.ask_alone(behind, id, request, voice).await,
                    Watch::New if shared.watch(&uri) => {}
                    Watch::New | Watch::TooMuch => {
                        self.wishes.unwatch(at, &uri);
                        return own_error(id, own::OVERLOADED, "more is watched already than may be");
                    }
                }
                let answer = self.ask_alone(behind, id, request, voice).await;
                if !is_good(&answer) && self.wishes.unwatch(at, &uri) {
                    shared.unwatch(&uri);
                }
                answer
            }
            (Some(shared), Some("resources/unsubscribe")) => {
                let uri = request.param_text("uri").unwrap_or_default();
                match self.wishes.unwatch(at, &uri) && !shared.unwatch(&uri) {
                    true => {
                        self.keep().await;
                        Message::result_response(id, &empty())
                    }
                    false => self.ask_alone(behind, id, request, voice).await,
                }
            }
            (Some(_), Some("logging/setLevel")) => {
                let before = self.wishes.level(at, request.params_json());
                let answer = self.ask_alone(behind, id, request, voice).await;
                if !is_good(&answer) {
                    self.wishes.level(at, before);
                }
                answer
            }
            (Some(_) | None, _) => self.ask_alone(behind, id, request, voice).await,
        }
    }

    /// Goes on where another process of ours ended: the servers that are shared hear of this client, which will not
    /// introduce itself again, and of what it wanted of them. Its own servers are told when they start.
    pub(crate) async fn recall(&self, agreements: &Agreements) {
        self.is_ready.store(true, Ordering::Relaxed);
        let recalling = self.servers.iter().enumerate().map(|(at, behind)| async move {
            let told = agreements.get(behind.server.name.as_str());
            let (Some(shared), Some(told)) = (&behind.shared, told) else { return };
            // What cannot be said now is not forgotten: it is kept for another time.
            let mut wished = told.wished();
            wished.watched.retain(|uri, _| shared.watch(uri));
            self.wishes.restore(at, wished.clone());
            let Some(request) = told.initialize() else { return };
            // One that fails now is asked again with the next request.
            let introduced = shared.introduce(&request).await.is_ok();
            self.tell(behind, &initialized()).await;
            if introduced {
                let saying = async {
                    for request in wished.requests() {
                        self.ask_alone(behind, &Id::number(0), &request, &Voice::Nobody).await;
                    }
                };
                let _ = timeout(HANDSHAKE, saying).await;
            }
        });
        join_all(recalling).await;
    }

    /// This client wants nothing more of a server that others use too.
    pub(super) async fn give_up(&self, at: usize, behind: &Behind, shared: &Shared) {
        let mut wished = self.wishes.give_up(at);
        wished.watched.retain(|uri, _| shared.unwatch(uri));
        let server = &behind.server;
        for uri in wished.watched.keys() {
            server.handshake.unwatched(uri);
        }
        let saying = async {
            for (uri, params) in &wished.watched {
                // Whoever began to watch it meanwhile goes on doing so.
                if !shared.is_watched(uri) {
                    let request = Message::request(&Id::number(0), "resources/unsubscribe", Some(params));
                    let _ = self.exchange(behind, &request, &Voice::Nobody).await;
                }
            }
        };
        let _ = timeout(FAREWELL, saying).await;
    }

    async fn ask_alone(&self, behind: &Behind, id: &Id, request: &Message, voice: &Voice) -> Message {
        let server = &behind.server;
        let method = request.method().unwrap_or_default();
        let policy = match self.engine.policy_of(&envelope_of(&server.name, requests(), &self.connection)) {
            Ok(policy) => policy,
            Err(error) => return own_error(id, code::INTERNAL_ERROR, &error.to_string()),
        };
        let left_alone = policy.modes.leave_alone();
        let tries = if is_harmless(method) && !left_alone { TRIES } else { 1 };
        let limit = if left_alone { Duration::MAX } else { patience(method) };
        let (mut tried, mut may_forget) = (1, !left_alone);
        loop {
            let judged = match self.judging(server, &policy, method) {
                Ok(judged) => judged,
                Err(refusal) => return own_error(id, own::UNAVAILABLE, &refusal),
            };
            let began = self.engine.now();
            let exchanged = timeout(limit, self.exchange(behind, request, voice)).await;
            if let Some(permit) = judged {
                let now = self.engine.now();
                let took = now.since(began);
                let verdict = match &exchanged {
                    Ok(Ok(answer)) if is_good(answer) => Verdict::Success { took },
                    // It is there, and says no.
                    Ok(Ok(_)) => Verdict::Neutral,
                    // It is there, and wants another session first. If it gives none, that is what counts.
                    Ok(Err(fault)) if is_session_lost(fault) => Verdict::Neutral,
                    Ok(Err(_)) | Err(_) => Verdict::Failure { took },
                };
                permit.record(&policy.breaker, verdict, now);
            }
            match exchanged {
                Ok(Ok(answer)) => {
                    if server.handshake.answered(request, &answer) {
                        self.keep().await;
                    }
                    match method {
                        "initialize" if answer.result().is_some() => server.is_ready().await,
                        "tools/list" if server.catalog.learn(request, &answer) => self.register_tools(server),
                        _ => {}
                    }
                    return answer.rewrite().id(id).finish();
                }
                // It has not looked at what it was asked: asking again in another session does no harm.
                Ok(Err(fault)) if may_forget && is_session_lost(&fault) => may_forget = false,
                Ok(Err(fault)) if tried < tries && is_worth_a_try(&fault) => tried += 1,
                Ok(Err(fault)) => {
                    let reach = classify(&fault, &policy.classify, self.engine.now()).reach;
                    let code = if reach.proves_not_run() { own::UNAVAILABLE } else { own::LOST };
                    return own_error(id, code, &fault.message);
                }
                Err(_) => return timed_out(id),
            }
        }
    }

    /// Keeps what a server said of its tools, for those who look.
    fn register_tools(&self, server: &Server) {
        let tools = server.catalog.tools().into_iter();
        let tools = tools.filter_map(|(name, annotations)| Some((ToolName::new(name).ok()?, annotations)));
        self.engine.register_tools(server.name.clone(), tools.collect());
    }

    /// Leave to ask a server that does not fail all the time; or what is said instead.
    fn judging<'s>(
        &self,
        server: &'s Server,
        policy: &Policy,
        method: &str,
    ) -> Result<Option<Permit<'s>>, String> {
        // One that listens is not answered for hours, and says nothing about the server by that.
        let is_judged = policy.modes.breaker == Mode::Enforce && method != "subscriptions/listen";
        if !is_judged {
            return Ok(None);
        }
        let now = self.engine.now();
        match server.breaker.admit(&policy.breaker, now) {
            Ok((permit, _)) => Ok(Some(permit)),
            Err(refused) => {
                let wait = refused.retry_at.map(|at| at.since(now).as_millis().div_ceil(1000));
                let when = wait.map_or_else(String::new, |seconds| format!("; try again in {seconds} s"));
                Err(format!("the server keeps failing and is left alone for a while{when}"))
            }
        }
    }

    /// Keeps what the client agreed on with its servers, where that is to outlive us.
    async fn keep(&self) {
        let Some(memory) = &self.memory else { return };
        let told = self.servers.iter().enumerate().map(|(at, behind)| {
            let handshake = &behind.server.handshake;
            let written = match &behind.shared {
                // What the others want is theirs to remember.
                Some(_) => handshake.written_for(self.wishes.of(at)),
                None => handshake.written(),
            };
            (behind.server.name.as_str().to_owned(), written)
        });
        memory.keep(told.collect()).await;
    }

    async fn exchange(&self, behind: &Behind, request: &Message, voice: &Voice) -> Result<Message, Fault> {
        let server = &behind.server;
        behind.outbox.is_behind().await;
        let place = match request.method() {
            Some("initialize") => server.send_first(request).await?,
            _ => {
                server.handshake.spoke();
                let hear = News::of(request, voice).map(|news| news.hear(|| {}));
                server.send(request, hear).await?
            }
        };
        let mut asked = Asked { server, place, is_answered: false, tasks: &self.tasks };
        let answer = asked.place.answer().await;
        asked.is_answered = true;
        answer
    }
}

/// A request that a server has. It is withdrawn when nobody wants the answer any more.
struct Asked<'a> {
    server: &'a Arc<Server>,
    place: Place,
    is_answered: bool,
    tasks: &'a TaskTracker,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.tasks.spawn(self.server.withdraw(&self.place));
        }
    }
}

pub(super) fn is_good(answer: &Message) -> bool {
    answer.result().is_some()
}

pub(super) fn own_error(id: &Id, code: i64, why: &str) -> Message {
    Message::error_response(Some(id), code, why, None)
}

pub(super) fn timed_out(id: &Id) -> Message {
    own_error(id, own::TIMED_OUT, "the server did not answer in time")
}

pub(super) fn unknown_method(id: &Id) -> Message {
    own_error(id, code::METHOD_NOT_FOUND, "no server here knows this method")
}

/// How long a request may take. One that listens lasts as long as its client wants it to.
fn patience(method: &str) -> Duration {
    if method == "subscriptions/listen" { Duration::MAX } else { REQUEST }
}

/// Whether asking twice is as good as asking once.
pub(super) fn is_harmless(method: &str) -> bool {
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
        | Source::BadAnswer
        | Source::TooLarge => false,
    }
}

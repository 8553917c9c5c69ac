//! Requests that are no calls: to the server that they are for, or to all, whose answers become one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use steadfast_core::breaker::{Permit, SharedBreaker, Verdict};
use steadfast_core::classify::{Fault, Source, is_session_lost};
use steadfast_core::policy::{Mode, Policy};
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::wishes::Watch;
use super::{Session, What, empty, own};
use crate::call::envelope_of;
use crate::client::{Reply, Voice};
use crate::memory::Agreements;
use crate::merge::{self, List, Part};
use crate::news::News;
use crate::pieces::json;
use crate::reliability;
use crate::server::{HANDSHAKE, Server, cancel, initialized};
use crate::servers::{Behind, Joining, Route};
use crate::shared::Shared;

/// How long a request that is no call may take.
const REQUEST: Duration = Duration::from_secs(300);
/// How often a request is sent that does no harm twice.
const TRIES: u32 = 3;
/// How long the servers of a client are waited for before those answer that are there.
const FIRST_WORDS: Duration = Duration::from_secs(20);
/// How long one of several servers may take to list what it has.
const LIST: Duration = Duration::from_secs(15);
/// How long a server may take to hear that a client is gone.
const FAREWELL: Duration = Duration::from_secs(2);
/// The most pages of a list that are put together.
const MOST_PAGES: usize = 100;

impl Session {
    pub(super) fn pass_on(self: &Arc<Self>, id: Id, request: Message, route: Route, reply: Reply) {
        let (withdrawn, voice) = (Arc::new(Notify::new()), reply.voice());
        let at = match &route {
            Route::To(at, _) => Some(*at),
            Route::All(_) | Route::Whoever | Route::Nobody(_) => None,
        };
        let number = self.begin(&id, at, voice.clone(), What::Other(withdrawn.clone()));
        self.spawn(|session| async move {
            let answered = tokio::select! {
                answered = session.ask(&id, &request, route, &voice) => session.with_own_tools(&id, &request, answered),
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

    /// A list of tools with our own at its end, where they are offered.
    fn with_own_tools(&self, id: &Id, request: &Message, answered: Message) -> Message {
        let is_end = |result: &&str| raw::get(result, "nextCursor").is_none();
        let list = request.method().and_then(List::of).filter(|list| list.member == "tools");
        let result = answered.result().filter(is_end);
        let (Some(list), Some(result), true) = (list, result, self.own_tools.is_some()) else {
            return answered;
        };
        let own = format!(r#"{{"tools":[{}]}}"#, reliability::definitions().join(","));
        let part = |result| Part { server: "", prefix: None, result };
        Message::result_response(id, &merge::lists(list, &[part(result), part(&own)]))
    }

    async fn ask(self: &Arc<Self>, id: &Id, request: &Message, route: Route, voice: &Voice) -> Message {
        match route {
            Route::To(at, request) => self.ask_server(at, id, &request, voice).await,
            Route::All(Joining::Handshake) => self.introduce(id, request, voice).await,
            Route::All(Joining::List(list)) => self.ask_for_lists(id, request, list, voice).await,
            Route::All(Joining::Any) => {
                let asking = (0..self.servers.len()).map(|at| self.ask_server(at, id, request, voice));
                let answers = join_all(asking).await;
                let good = answers.iter().find(|answer| answer.result().is_some()).cloned();
                good.or_else(|| answers.into_iter().next()).unwrap_or_else(|| unknown_method(id))
            }
            Route::Whoever => {
                let mut answer = unknown_method(id);
                for at in 0..self.servers.len() {
                    answer = self.ask_server(at, id, request, voice).await;
                    if answer.result().is_some() {
                        if let Some(uri) = request.param_text("uri") {
                            self.servers.learn(at, uri);
                        }
                        break;
                    }
                }
                answer
            }
            Route::Nobody(why) => Message::error_response(Some(id), code::INVALID_PARAMS, &why, None),
        }
    }

    /// The handshake of several servers. Those that take long come later: nobody waits for the slowest.
    async fn introduce(self: &Arc<Self>, id: &Id, request: &Message, voice: &Voice) -> Message {
        let mut asking = JoinSet::new();
        for at in 0..self.servers.len() {
            let (session, id, request, voice) = (self.clone(), id.clone(), request.clone(), voice.clone());
            asking.spawn(async move { (at, session.ask_server(at, &id, &request, &voice).await) });
        }
        let mut answers = BTreeMap::new();
        let patience = tokio::time::sleep(FIRST_WORDS);
        tokio::pin!(patience);
        loop {
            let next = tokio::select! {
                next = asking.join_next() => next,
                () = &mut patience, if answers.values().any(is_good) => break,
            };
            match next {
                Some(Ok((at, answer))) => _ = answers.insert(at, answer),
                Some(Err(_)) => {}
                None => break,
            }
        }
        let mut failed = None;
        answers.retain(|at, answer| {
            let is_good = is_good(answer);
            if !is_good {
                self.is_missed(*at, request, answer.error_text().as_deref());
                failed.get_or_insert_with(|| answer.clone());
            }
            is_good
        });
        if !asking.is_empty() {
            self.spawn(|session| async move { session.take_late(asking).await });
        }
        let parts = self.parts(&answers);
        match parts.is_empty() {
            false => Message::result_response(id, &merge::handshakes(&parts)),
            true => failed.unwrap_or_else(|| unknown_method(id)),
        }
    }

    /// Servers that were not there when the client was answered; it learns of them when they are.
    async fn take_late(&self, mut asking: JoinSet<(usize, Message)>) {
        while let Some(late) = asking.join_next().await {
            let Ok((at, answer)) = late else { continue };
            let Some(behind) = self.servers.get(at).filter(|_| is_good(&answer)) else { continue };
            if self.is_ready.load(Ordering::Relaxed) {
                self.tell(behind, &initialized()).await;
            }
            self.lists_changed(at).await;
        }
    }

    /// A server is not among those that the client hears of. It is told what the others were when it comes.
    fn is_missed(&self, at: usize, request: &Message, why: Option<&str>) {
        let Some(behind) = self.servers.get(at) else { return };
        let server = &behind.server;
        tracing::warn!(event = "server.missing", server = %server.name, why);
        behind.is_missed();
        if request.method() == Some("initialize") {
            server.handshake.intend(request);
        }
    }

    async fn ask_for_lists(&self, id: &Id, request: &Message, list: List, voice: &Voice) -> Message {
        let asking = (0..self.servers.len()).map(|at| async move {
            let pages = timeout(LIST, self.pages(at, id, request, list, voice)).await;
            let timed_out = || own_error(id, own::TIMED_OUT, "the server did not answer in time");
            (at, pages.unwrap_or_else(|_| timed_out()))
        });
        let mut answers: BTreeMap<usize, Message> = join_all(asking).await.into_iter().collect();
        let first = answers.values().next().cloned();
        answers.retain(|at, answer| match answer.result() {
            Some(result) => {
                self.servers.learn_list(*at, list, result);
                true
            }
            None => {
                // One that has no such list says that it does not know the method, and is not missed.
                if answer.error_code() != Some(code::METHOD_NOT_FOUND) {
                    self.is_missed(*at, request, answer.error_text().as_deref());
                }
                false
            }
        });
        let parts = self.parts(&answers);
        match parts.is_empty() {
            false => Message::result_response(id, &merge::lists(list, &parts)),
            true => first.unwrap_or_else(|| unknown_method(id)),
        }
    }

    /// All pages of a list of one server, as if they were one.
    async fn pages(&self, at: usize, id: &Id, request: &Message, list: List, voice: &Voice) -> Message {
        let mut pages: Vec<Message> = Vec::new();
        let mut asked = request.clone();
        for _ in 0..MOST_PAGES {
            let answer = self.ask_server(at, id, &asked, voice).await;
            let next = answer.result().and_then(|result| raw::get(result, "nextCursor")).map(json);
            let failed = answer.result().is_none();
            pages.push(answer);
            match next {
                Some(cursor) if !failed => asked = request.rewrite().param("cursor", cursor).finish(),
                Some(_) | None => break,
            }
        }
        if let [one] = &*pages {
            return one.clone();
        }
        let parts: Vec<Part<'_>> = pages
            .iter()
            .filter_map(|page| Some(Part { server: "", prefix: None, result: page.result()? }))
            .collect();
        Message::result_response(id, &merge::lists(list, &parts))
    }

    fn parts<'a>(&'a self, answers: &'a BTreeMap<usize, Message>) -> Vec<Part<'a>> {
        let part = |(at, answer): (&usize, &'a Message)| {
            let behind = self.servers.get(*at)?;
            let (server, prefix) = (behind.server.name.as_str(), behind.prefix.as_deref());
            Some(Part { server, prefix, result: answer.result()? })
        };
        answers.iter().filter_map(part).collect()
    }

    /// What the server at this place says to a request.
    async fn ask_server(&self, at: usize, id: &Id, request: &Message, voice: &Voice) -> Message {
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
    pub(super) async fn give_up(&self, at: usize, shared: &Shared) {
        let mut wished = self.wishes.give_up(at);
        wished.watched.retain(|uri, _| shared.unwatch(uri));
        let server = &shared.server;
        for uri in wished.watched.keys() {
            server.handshake.unwatched(uri);
        }
        let saying = async {
            for (uri, params) in &wished.watched {
                // Whoever began to watch it meanwhile goes on doing so.
                if !shared.is_watched(uri) {
                    let request = Message::request(&Id::number(0), "resources/unsubscribe", Some(params));
                    let _ = self.exchange(server, &request, &Voice::Nobody).await;
                }
            }
        };
        let _ = timeout(FAREWELL, saying).await;
    }

    async fn ask_alone(&self, behind: &Behind, id: &Id, request: &Message, voice: &Voice) -> Message {
        let server = &behind.server;
        let method = request.method().unwrap_or_default();
        let policy = match self.engine.policy_of(&envelope_of(&server.name, &self.connection)) {
            Ok(policy) => policy,
            Err(error) => return own_error(id, code::INTERNAL_ERROR, &error.to_string()),
        };
        let is_off = policy.modes.are_off();
        let tries = if is_harmless(method) && !is_off { TRIES } else { 1 };
        let limit = if is_off { Duration::MAX } else { patience(method) };
        let (mut tried, mut may_forget) = (1, !is_off);
        loop {
            let judged = match self.judging(server, &policy, method) {
                Ok(judged) => judged,
                Err(refusal) => return own_error(id, own::UNAVAILABLE, &refusal),
            };
            let began = self.engine.now();
            let exchanged = timeout(limit, self.exchange(server, request, voice)).await;
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
                        "tools/list" => server.catalog.learn(request, &answer),
                        _ => {}
                    }
                    return answer.rewrite().id(id).finish();
                }
                // It has not looked at what it was asked: asking again in another session does no harm.
                Ok(Err(fault)) if may_forget && is_session_lost(&fault) => may_forget = false,
                Ok(Err(fault)) if tried < tries && is_worth_a_try(&fault) => tried += 1,
                Ok(Err(fault)) => return own_error(id, own::UNAVAILABLE, &fault.message),
                Err(_) => return own_error(id, own::TIMED_OUT, "the server did not answer in time"),
            }
        }
    }

    /// Leave to ask a server that does not fail all the time; or what is said instead.
    fn judging<'s>(
        &self,
        server: &'s Server,
        policy: &Policy,
        method: &str,
    ) -> Result<Option<Permit<&'s SharedBreaker>>, String> {
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

    async fn exchange(
        &self,
        server: &Arc<Server>,
        request: &Message,
        voice: &Voice,
    ) -> Result<Message, Fault> {
        let mut place = match request.method() {
            Some("initialize") => server.send_first(request).await?,
            _ => {
                server.handshake.spoke();
                let hear = News::of(request, voice).map(|news| news.hear(|| {}));
                server.send(request, hear).await?
            }
        };
        let withdrawal = Withdrawal { server, id: Some(place.id()), tasks: &self.tasks };
        let answer = place.answer().await;
        withdrawal.was_answered();
        answer
    }

    /// The client learns that a server has come of which it had not heard.
    pub(super) async fn lists_changed(&self, at: usize) {
        for list in ["tools", "prompts", "resources"] {
            let method = format!("notifications/{list}/list_changed");
            self.say(at, &Message::notification(&method, None)).await;
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

fn is_good(answer: &Message) -> bool {
    answer.result().is_some()
}

fn own_error(id: &Id, code: i64, why: &str) -> Message {
    Message::error_response(Some(id), code, why, None)
}

fn unknown_method(id: &Id) -> Message {
    own_error(id, code::METHOD_NOT_FOUND, "no server here knows this method")
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

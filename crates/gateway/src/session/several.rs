//! Requests that are for several servers: each is asked, and what they say becomes one answer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::asking::{REQUEST, is_good, is_harmless, timed_out, unknown_method};
use super::{Session, own};
use crate::client::Voice;
use crate::joined::Joined;
use crate::merge::{self, List, Part};
use crate::pieces::json;
use crate::server::initialized;

/// How long the servers of a client are waited for before those answer that are there.
const FIRST_WORDS: Duration = Duration::from_secs(20);
/// How long one of several servers may take to list what it has, or to say what all are asked.
const LIST: Duration = Duration::from_secs(15);
/// The most pages of a list that are put together.
const MOST_PAGES: usize = 100;

impl Session {
    /// The handshake of several servers. Those that take long come later: nobody waits for the slowest.
    pub(super) async fn introduce(self: &Arc<Self>, id: &Id, request: &Message, voice: &Voice) -> Message {
        let any_is_good = |answers: &BTreeMap<usize, Message>| answers.values().any(is_good);
        let (mut answers, late) =
            self.ask_all(FIRST_WORDS, any_is_good, self.asking(id, request, voice)).await;
        let mut failed = None;
        answers.retain(|at, answer| {
            let is_good = is_good(answer);
            if !is_good {
                self.is_missed(*at, request, answer.error_text().as_deref());
                failed.get_or_insert_with(|| answer.clone());
            }
            is_good
        });
        if !late.is_empty() {
            self.spawn_while_there(|session| async move { session.take_late(late).await });
        }
        let parts = self.parts(&answers);
        match parts.is_empty() {
            false => Message::result_response(id, &merge::handshakes(&parts)),
            true => failed.unwrap_or_else(|| unknown_method(id)),
        }
    }

    /// Servers that were not there when the client was answered; it learns of them when they are.
    async fn take_late(&self, mut late: Late) {
        while let Some(late) = late.join_next().await {
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

    pub(super) async fn ask_for_lists(
        self: &Arc<Self>,
        id: &Id,
        request: &Message,
        list: List,
        voice: &Voice,
    ) -> Message {
        let asked = (id.clone(), request.clone(), voice.clone());
        let (mut answers, late) = self
            .ask_all(
                LIST,
                |_| true,
                move |session, at| {
                    let (id, request, voice) = asked.clone();
                    async move { session.pages(at, &id, &request, list, &voice).await }
                },
            )
            .await;
        self.wait_for_late(late, Some(list));
        for (at, behind) in self.servers.iter().enumerate() {
            match answers.entry(at) {
                Entry::Occupied(answer) if is_good(answer.get()) => behind.came_in_time(list),
                Entry::Occupied(_) => {}
                // One that is always slow is not left out for ever.
                Entry::Vacant(none) => {
                    none.insert(behind.last_late(list).unwrap_or_else(|| timed_out(id)));
                }
            }
        }
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
        loop {
            let answer = self.ask_server(at, id, &asked, voice).await;
            // A part of a list looks like a whole one, so without one of its pages there is none.
            let Some(result) = answer.result() else { return answer };
            let next = raw::get(result, "nextCursor").map(json);
            pages.push(answer);
            match next {
                Some(_) if pages.len() == MOST_PAGES => {
                    let server = self.servers.get(at).map(|behind| behind.server.name.as_str());
                    tracing::warn!(event = "server.list_cut", server, list = list.member, pages = MOST_PAGES);
                    break;
                }
                Some(cursor) => asked = request.rewrite().param("cursor", cursor).finish(),
                None => break,
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

    /// All of them, and any answer will do. Nobody waits long for the slowest, which hears it all the same.
    pub(super) async fn ask_any(self: &Arc<Self>, id: &Id, request: &Message, voice: &Voice) -> Message {
        let (answers, late) = self.ask_all(LIST, |_| true, self.asking(id, request, voice)).await;
        self.wait_for_late(late, None);
        let good = answers.values().find(|answer| is_good(answer)).or_else(|| answers.values().next());
        good.cloned().unwrap_or_else(|| timed_out(id))
    }

    /// Listens at all of them, as long as one lets us.
    pub(super) async fn listen(&self, id: &Id, request: &Message, voice: &Voice) -> Message {
        let joined = Joined::new(voice.clone(), self.servers.len());
        let listening = (0..self.servers.len()).map(|at| {
            let (voice, joined) = (Voice::Joined(joined.clone(), at), &joined);
            async move {
                let answer = self.ask_server(at, id, request, &voice).await;
                joined.is_over(at);
                answer
            }
        });
        let mut listening = pin!(join_all(listening));
        let answers = match timeout(LIST, &mut listening).await {
            Ok(answers) => answers,
            Err(_) => {
                joined.is_due();
                listening.await
            }
        };
        let good = answers.iter().find(|answer| is_good(answer)).cloned();
        good.or_else(|| answers.into_iter().next()).unwrap_or_else(|| unknown_method(id))
    }

    /// One after the other, as long as they say that they know nothing of it.
    pub(super) async fn ask_whoever(&self, id: &Id, request: &Message, voice: &Voice) -> Message {
        let method = request.method().unwrap_or_default();
        let (mut nobodys, mut perhaps) = (unknown_method(id), None);
        for at in 0..self.servers.len() {
            let answer = self.ask_server(at, id, request, voice).await;
            match Refusal::of(method, &answer) {
                None => {
                    if let Some(uri) = request.param_text("uri") {
                        self.servers.learn(at, uri);
                    }
                    return answer;
                }
                Some(Refusal::NotMine) => nobodys = answer,
                Some(Refusal::Harmless) => perhaps = perhaps.or(Some(answer)),
                Some(Refusal::Final) => return answer,
            }
        }
        perhaps.unwrap_or(nobodys)
    }

    /// Asks all servers at once. Comes back when all have answered, or after this time if that is enough; the others go on.
    async fn ask_all<F>(
        self: &Arc<Self>,
        patience: Duration,
        is_enough: impl Fn(&BTreeMap<usize, Message>) -> bool,
        ask: impl Fn(Arc<Self>, usize) -> F,
    ) -> (BTreeMap<usize, Message>, Late)
    where
        F: Future<Output = Message> + Send + 'static,
    {
        let mut asking = JoinSet::new();
        for at in 0..self.servers.len() {
            let answer = ask(self.clone(), at);
            asking.spawn(async move { (at, answer.await) });
        }
        let mut answers = BTreeMap::new();
        let mut patience = pin!(tokio::time::sleep(patience));
        loop {
            let next = tokio::select! {
                next = asking.join_next() => next,
                () = &mut patience, if is_enough(&answers) => break,
            };
            match next {
                Some(Ok((at, answer))) => _ = answers.insert(at, answer),
                Some(Err(_)) => {}
                None => break,
            }
        }
        (answers, asking)
    }

    /// How each of them is asked the same.
    fn asking(
        &self,
        id: &Id,
        request: &Message,
        voice: &Voice,
    ) -> impl Fn(Arc<Self>, usize) -> BoxFuture<'static, Message> + use<> {
        let (id, request, voice) = (id.clone(), request.clone(), voice.clone());
        move |session, at| {
            let (id, request, voice) = (id.clone(), request.clone(), voice.clone());
            async move { session.ask_server(at, &id, &request, &voice).await }.boxed()
        }
    }

    /// Lets those go on who are not done when the client is answered. Of a list that it did not get it hears then.
    fn wait_for_late(self: &Arc<Self>, mut late: Late, list: Option<List>) {
        let Some(room) = self.late.clone().try_acquire_owned().ok().filter(|_| !late.is_empty()) else {
            return;
        };
        self.spawn_while_there(|session| async move {
            let _room = room;
            let coming = async {
                while let Some(came) = late.join_next().await {
                    if let (Ok((at, answer)), Some(list)) = (came, list) {
                        session.list_came_late(at, list, answer).await;
                    }
                }
            };
            let _ = timeout(REQUEST, coming).await;
        });
    }

    async fn list_came_late(&self, at: usize, list: List, answer: Message) {
        let Some((behind, result)) = self.servers.get(at).zip(answer.result()) else { return };
        self.servers.learn_list(at, list, result);
        if behind.came_late(list, answer)
            && let Some(what) = list.told_as()
        {
            self.list_changed(at, what).await;
        }
    }

    /// The client learns that a server has come of which it had not heard.
    pub(super) async fn lists_changed(&self, at: usize) {
        for list in ["tools", "prompts", "resources"] {
            self.list_changed(at, list).await;
        }
    }

    async fn list_changed(&self, at: usize, list: &str) {
        let method = format!("notifications/{list}/list_changed");
        self.say(at, &Message::notification(&method, None)).await;
    }
}

/// Servers that are still to answer.
type Late = JoinSet<(usize, Message)>;

/// What an error of one server means for the others, where it is not known whose something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It knows nothing of it.
    NotMine,
    /// It may be the one that is meant; but it has done nothing that would be done twice.
    Harmless,
    /// This is the answer: it is its own, or nobody knows what it has done.
    Final,
}

impl Refusal {
    /// Nothing if the answer is a good one.
    fn of(method: &str, answer: &Message) -> Option<Self> {
        if is_good(answer) {
            return None;
        }
        let names = method.starts_with("resources/") || method.starts_with("tasks/");
        Some(match answer.error_code() {
            Some(code::METHOD_NOT_FOUND) => Self::NotMine,
            // There is no such resource or task.
            Some(code::INVALID_PARAMS | RESOURCE_NOT_FOUND) if names => Self::NotMine,
            Some(own::UNAVAILABLE) => Self::Harmless,
            // Many say in their own way that they do not have it.
            Some(_) | None if is_harmless(method) => Self::Harmless,
            Some(_) | None => Self::Final,
        })
    }
}

/// As the older era says that there is no such resource.
const RESOURCE_NOT_FOUND: i64 = -32_002;

#[cfg(test)]
mod tests {
    use super::super::asking::own_error;
    use super::super::empty;
    use super::*;

    #[test]
    fn only_who_knows_nothing_of_it_or_did_nothing_leaves_it_to_the_next() {
        let refusal = |method: &str, code| Refusal::of(method, &own_error(&Id::number(1), code, "no"));
        let (unknown, broken) = (code::METHOD_NOT_FOUND, code::INTERNAL_ERROR);
        for (method, code, meaning) in [
            ("vendor/do", unknown, Refusal::NotMine),
            ("vendor/do", code::INVALID_PARAMS, Refusal::Final),
            ("vendor/do", broken, Refusal::Final),
            ("vendor/do", own::TIMED_OUT, Refusal::Final),
            ("vendor/do", own::LOST, Refusal::Final),
            ("vendor/do", own::UNAVAILABLE, Refusal::Harmless),
            ("tasks/update", code::INVALID_PARAMS, Refusal::NotMine),
            ("tasks/update", broken, Refusal::Final),
            ("resources/subscribe", RESOURCE_NOT_FOUND, Refusal::NotMine),
            ("resources/subscribe", 0, Refusal::Final),
            ("resources/read", RESOURCE_NOT_FOUND, Refusal::NotMine),
            ("resources/read", broken, Refusal::Harmless),
            ("resources/read", own::TIMED_OUT, Refusal::Harmless),
        ] {
            assert_eq!(refusal(method, code), Some(meaning), "{method} {code}");
        }
        assert_eq!(Refusal::of("vendor/do", &Message::result_response(&Id::number(1), &empty())), None);
    }
}

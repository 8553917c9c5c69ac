//! Requests to several servers, with merged answers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use steadfast_json::scan;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::requests::{REQUEST, is_good, is_harmless, timed_out, unknown_method};
use super::{GatewaySession, error_codes};
use crate::client::request_channel::MergedChannel;
use crate::client::request_channel::RequestChannel;
use crate::json_parts::json;
use crate::servers::merge::{self, MergedListKind, ServerResult};
use crate::servers::upstream::initialized;

/// The wait for the servers of a client in the handshake, before the answers so far are merged.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(20);
/// The wait for the list or the answer of one of several servers.
const LIST: Duration = Duration::from_secs(15);
/// The maximum number of pages of a list that are merged.
const MOST_PAGES: usize = 100;

impl GatewaySession {
    /// Runs the handshake with several servers. Slow ones join later, so that the client does not wait for them.
    pub(super) async fn introduce(
        self: &Arc<Self>,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let any_is_good = |answers: &BTreeMap<usize, RpcMessage>| answers.values().any(is_good);
        let (mut answers, late) =
            self.ask_all(HANDSHAKE_WAIT, any_is_good, self.asking(id, request, channel)).await;
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
            false => RpcMessage::result_response(id, &merge::handshakes(&parts)),
            true => failed.unwrap_or_else(|| unknown_method(id)),
        }
    }

    /// Adds servers that answer after the client did its handshake, and notifies the client.
    async fn take_late(&self, mut late: LateAnswers) {
        while let Some(late) = late.join_next().await {
            let Ok((at, answer)) = late else { continue };
            let Some(behind) = self.servers.get(at).filter(|_| is_good(&answer)) else { continue };
            if self.is_ready.load(Ordering::Relaxed) {
                self.notify_server(behind, &initialized()).await;
            }
            self.lists_changed(at).await;
        }
    }

    /// Records that a server is missing in a response. It gets the handshake later, like the others.
    fn is_missed(&self, at: usize, request: &RpcMessage, reason: Option<&str>) {
        let Some(behind) = self.servers.get(at) else { return };
        let server = &behind.server;
        tracing::warn!(event = "server.missing", server = %server.name, "why" = reason);
        behind.is_missed();
        if request.method() == Some("initialize") {
            server.handshake.intend(request);
        }
    }

    pub(super) async fn ask_for_lists(
        self: &Arc<Self>,
        id: &RpcId,
        request: &RpcMessage,
        list: MergedListKind,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let context = (id.clone(), request.clone(), channel.clone());
        let (mut answers, late) = self
            .ask_all(
                LIST,
                |_| true,
                move |session, at| {
                    let (id, request, channel) = context.clone();
                    async move { session.pages(at, &id, &request, list, &channel).await }
                },
            )
            .await;
        self.wait_for_late(late, Some(list));
        for (at, behind) in self.servers.iter().enumerate() {
            match answers.entry(at) {
                Entry::Occupied(answer) if is_good(answer.get()) => behind.clear_late(list),
                Entry::Occupied(_) => {}
                // A server that is always slow contributes its last list.
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
                // A server without such a list does not know the method, and does not count as missing.
                if answer.error_code() != Some(code::METHOD_NOT_FOUND) {
                    self.is_missed(*at, request, answer.error_text().as_deref());
                }
                false
            }
        });
        let parts = self.parts(&answers);
        match parts.is_empty() {
            false => RpcMessage::result_response(id, &merge::lists(list, &parts)),
            true => first.unwrap_or_else(|| unknown_method(id)),
        }
    }

    /// Returns all pages of a list of one server as a single one.
    async fn pages(
        &self,
        at: usize,
        id: &RpcId,
        request: &RpcMessage,
        list: MergedListKind,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let mut pages: Vec<RpcMessage> = Vec::new();
        let mut page_request = request.clone();
        loop {
            let answer = self.ask_server(at, id, &page_request, channel).await;
            // A partial list looks like a whole one, so a failed page fails the list.
            let Some(result) = answer.result() else { return answer };
            let next = scan::get(result, "nextCursor").map(json);
            pages.push(answer);
            match next {
                Some(_) if pages.len() == MOST_PAGES => {
                    let server = self.servers.get(at).map(|behind| behind.server.name.as_str());
                    tracing::warn!(event = "server.list_cut", server, list = list.member, pages = MOST_PAGES);
                    break;
                }
                Some(cursor) => page_request = request.rewrite().param("cursor", cursor).finish(),
                None => break,
            }
        }
        if let [one] = &*pages {
            return one.clone();
        }
        let parts: Vec<ServerResult<'_>> = pages
            .iter()
            .filter_map(|page| Some(ServerResult { server: "", prefix: None, result: page.result()? }))
            .collect();
        RpcMessage::result_response(id, &merge::lists(list, &parts))
    }

    fn parts<'a>(&'a self, answers: &'a BTreeMap<usize, RpcMessage>) -> Vec<ServerResult<'a>> {
        let part = |(at, answer): (&usize, &'a RpcMessage)| {
            let behind = self.servers.get(*at)?;
            let (server, prefix) = (behind.server.name.as_str(), behind.prefix.as_deref());
            Some(ServerResult { server, prefix, result: answer.result()? })
        };
        answers.iter().filter_map(part).collect()
    }

    /// Sends a request to all servers and returns any answer. Slow ones get it too, but are not waited for.
    pub(super) async fn ask_any(
        self: &Arc<Self>,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let (answers, late) = self.ask_all(LIST, |_| true, self.asking(id, request, channel)).await;
        self.wait_for_late(late, None);
        let good = answers.values().find(|answer| is_good(answer)).or_else(|| answers.values().next());
        good.cloned().unwrap_or_else(|| timed_out(id))
    }

    /// Subscribes at all servers, until all subscriptions have ended.
    pub(super) async fn listen(
        &self,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let joined = MergedChannel::new(channel.clone(), self.servers.len());
        let listening = (0..self.servers.len()).map(|at| {
            let (channel, joined) = (RequestChannel::Joined(joined.clone(), at), &joined);
            async move {
                let answer = self.ask_server(at, id, request, &channel).await;
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

    /// Asks one server after the other, until one knows the subject of the request.
    pub(super) async fn ask_each_in_turn(
        &self,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let method = request.method().unwrap_or_default();
        let (mut not_found, mut harmless) = (unknown_method(id), None);
        for at in 0..self.servers.len() {
            let answer = self.ask_server(at, id, request, channel).await;
            match ServerRefusal::of(method, &answer) {
                None => {
                    if let Some(uri) = request.param_text("uri") {
                        self.servers.learn(at, uri);
                    }
                    return answer;
                }
                Some(ServerRefusal::UnknownTarget) => not_found = answer,
                Some(ServerRefusal::Harmless) => harmless = harmless.or(Some(answer)),
                Some(ServerRefusal::Final) => return answer,
            }
        }
        harmless.unwrap_or(not_found)
    }

    /// Sends a request to all servers. Returns when all have answered, or after this time if the answers are enough.
    /// The remaining requests go on.
    async fn ask_all<F>(
        self: &Arc<Self>,
        patience: Duration,
        is_enough: impl Fn(&BTreeMap<usize, RpcMessage>) -> bool,
        ask: impl Fn(Arc<Self>, usize) -> F,
    ) -> (BTreeMap<usize, RpcMessage>, LateAnswers)
    where
        F: Future<Output = RpcMessage> + Send + 'static,
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

    /// Returns a function that sends the same request to each server.
    fn asking(
        &self,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> impl Fn(Arc<Self>, usize) -> BoxFuture<'static, RpcMessage> + use<> {
        let (id, request, channel) = (id.clone(), request.clone(), channel.clone());
        move |session, at| {
            let (id, request, channel) = (id.clone(), request.clone(), channel.clone());
            async move { session.ask_server(at, &id, &request, &channel).await }.boxed()
        }
    }

    /// Waits in the background for slow servers after the client was answered. The client is notified of late lists.
    fn wait_for_late(self: &Arc<Self>, mut late: LateAnswers, list: Option<MergedListKind>) {
        let Some(room) = self.late.clone().try_acquire_owned().ok().filter(|_| !late.is_empty()) else {
            return;
        };
        self.spawn_while_there(|session| async move {
            let _room = room;
            let remaining = async {
                while let Some(finished) = late.join_next().await {
                    if let (Ok((at, answer)), Some(list)) = (finished, list) {
                        session.handle_late_list(at, list, answer).await;
                    }
                }
            };
            let _ = timeout(REQUEST, remaining).await;
        });
    }

    async fn handle_late_list(&self, at: usize, list: MergedListKind, answer: RpcMessage) {
        let Some((behind, result)) = self.servers.get(at).zip(answer.result()) else { return };
        self.servers.learn_list(at, list, result);
        if behind.store_late(list, answer)
            && let Some(notification) = list.changed_notification()
        {
            self.list_changed(at, notification).await;
        }
    }

    /// Notifies the client that all lists have changed, because a server joined.
    pub(super) async fn lists_changed(&self, at: usize) {
        for list in ["tools", "prompts", "resources"] {
            self.list_changed(at, list).await;
        }
    }

    async fn list_changed(&self, at: usize, list: &str) {
        let method = format!("notifications/{list}/list_changed");
        self.send_to_client(at, &RpcMessage::notification(&method, None)).await;
    }
}

/// Servers that have not answered yet.
type LateAnswers = JoinSet<(usize, RpcMessage)>;

/// The meaning of a server's error for the request to the other servers, if the owner of the subject is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerRefusal {
    /// The server does not know the subject.
    UnknownTarget,
    /// The server may own the subject, but it did nothing that could happen twice.
    Harmless,
    /// The error is the answer: it is the server's own, or the outcome is unknown.
    Final,
}

impl ServerRefusal {
    /// Returns `None` for a successful answer.
    fn of(method: &str, answer: &RpcMessage) -> Option<Self> {
        if is_good(answer) {
            return None;
        }
        let names = method.starts_with("resources/") || method.starts_with("tasks/");
        Some(match answer.error_code() {
            Some(code::METHOD_NOT_FOUND) => Self::UnknownTarget,
            // The resource or task does not exist at this server.
            Some(code::INVALID_PARAMS | RESOURCE_NOT_FOUND) if names => Self::UnknownTarget,
            Some(error_codes::UNAVAILABLE) => Self::Harmless,
            // Many servers report an unknown subject with errors of their own.
            Some(_) | None if is_harmless(method) => Self::Harmless,
            Some(_) | None => Self::Final,
        })
    }
}

/// The error code for an unknown resource in the legacy era.
const RESOURCE_NOT_FOUND: i64 = -32_002;

#[cfg(test)]
mod tests {
    use super::super::empty;
    use super::super::requests::own_error;
    use super::*;

    #[test]
    fn a_request_goes_to_the_next_server_only_if_the_last_one_did_nothing() {
        let refusal =
            |method: &str, code| ServerRefusal::of(method, &own_error(&RpcId::number(1), code, "no"));
        let (unknown, broken) = (code::METHOD_NOT_FOUND, code::INTERNAL_ERROR);
        for (method, code, meaning) in [
            ("vendor/do", unknown, ServerRefusal::UnknownTarget),
            ("vendor/do", code::INVALID_PARAMS, ServerRefusal::Final),
            ("vendor/do", broken, ServerRefusal::Final),
            ("vendor/do", error_codes::TIMED_OUT, ServerRefusal::Final),
            ("vendor/do", error_codes::LOST, ServerRefusal::Final),
            ("vendor/do", error_codes::UNAVAILABLE, ServerRefusal::Harmless),
            ("tasks/update", code::INVALID_PARAMS, ServerRefusal::UnknownTarget),
            ("tasks/update", broken, ServerRefusal::Final),
            ("resources/subscribe", RESOURCE_NOT_FOUND, ServerRefusal::UnknownTarget),
            ("resources/subscribe", 0, ServerRefusal::Final),
            ("resources/read", RESOURCE_NOT_FOUND, ServerRefusal::UnknownTarget),
            ("resources/read", broken, ServerRefusal::Harmless),
            ("resources/read", error_codes::TIMED_OUT, ServerRefusal::Harmless),
        ] {
            assert_eq!(refusal(method, code), Some(meaning), "{method} {code}");
        }
        assert_eq!(
            ServerRefusal::of("vendor/do", &RpcMessage::result_response(&RpcId::number(1), &empty())),
            None
        );
    }
}

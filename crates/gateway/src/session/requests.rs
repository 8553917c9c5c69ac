//! Requests other than calls: to one server, or to several of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use steadfast_core::breaker::{BreakerPermit, BreakerVerdict};
use steadfast_core::classify::{AttemptFault, FaultSource, classify, is_session_lost};
use steadfast_core::id::ToolName;
use steadfast_core::policy::{CallPolicy, EnforcementMode};
use steadfast_json::scan;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::client_settings::WatchResult;
use super::{GatewaySession, RequestKind, empty, error_codes};
use crate::calls::envelope::{envelope_of, requests};
use crate::client::connection::ResponseChannel;
use crate::client::request_channel::RequestChannel;
use crate::client::request_notifications::RequestNotifications;
use crate::servers::backing::BackingServer;
use crate::servers::merge::{self, MergedListKind, ServerResult};
use crate::servers::routing::{MergeMethod, Route};
use crate::servers::shared::SharedServer;
use crate::servers::upstream::{HANDSHAKE, PendingRequest, UpstreamServer, initialized};
use crate::session::store::SessionHandshakes;

/// The time limit of a request that is not a call.
pub(super) const REQUEST: Duration = Duration::from_secs(300);
/// The maximum number of attempts for a request that is safe to repeat.
const ATTEMPTS: u32 = 3;
/// The time limit for unsubscribing on behalf of a client that has left.
const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

impl GatewaySession {
    pub(super) fn pass_on(
        self: &Arc<Self>,
        id: RpcId,
        request: RpcMessage,
        route: Route,
        reply: ResponseChannel,
    ) {
        let (cancellation, channel) = (Arc::new(Notify::new()), reply.channel());
        let at = match &route {
            Route::To(at, _) => Some(*at),
            Route::All(_) | Route::EachInTurn | Route::Unknown(_) => None,
        };
        let number = self.begin(&id, at, channel.clone(), RequestKind::Other(cancellation.clone()));
        self.spawn(|session| async move {
            let disconnected = async {
                match request.method() {
                    // A client that has left gets no more notifications.
                    Some("subscriptions/listen") => session.disconnected.cancelled().await,
                    _ => session.wait_until_disconnected().await,
                }
            };
            let answered = tokio::select! {
                answered = session.ask(&id, &request, route, &channel) => {
                    session.note_resources(&request, &answered);
                    let answered = session.with_own_tools(&id, &request, answered);
                    session.with_logging(&id, &request, answered)
                }
                () = cancellation.notified() => return,
                () = channel.cancelled() => {
                    session.end(number);
                    return;
                }
                () = disconnected => {
                    session.end(number);
                    return;
                }
            };
            session.end(number);
            reply.answer(&answered).await;
        });
    }

    /// Appends the built-in tools to a tool list.
    fn with_own_tools(&self, id: &RpcId, request: &RpcMessage, answered: RpcMessage) -> RpcMessage {
        let is_end = |result: &&str| scan::get(result, "nextCursor").is_none();
        let list = request.method().and_then(MergedListKind::of).filter(|list| list.member == "tools");
        let result = answered.result().filter(is_end);
        let own = self.own_tools.definitions();
        let (Some(list), Some(result), false) = (list, result, own.is_empty()) else {
            return answered;
        };
        let own = format!(r#"{{"tools":[{}]}}"#, own.join(","));
        let part = |result| ServerResult { server: "", prefix: None, result };
        RpcMessage::result_response(id, &merge::lists(list, &[part(result), part(&own)]))
    }

    async fn ask(
        self: &Arc<Self>,
        id: &RpcId,
        request: &RpcMessage,
        route: Route,
        channel: &RequestChannel,
    ) -> RpcMessage {
        match route {
            Route::To(at, request) => self.ask_server(at, id, &request, channel).await,
            Route::All(MergeMethod::Handshake) => self.introduce(id, request, channel).await,
            Route::All(MergeMethod::List(list)) => self.ask_for_lists(id, request, list, channel).await,
            Route::All(MergeMethod::Any) => self.ask_any(id, request, channel).await,
            Route::All(MergeMethod::Listening) => self.listen(id, request, channel).await,
            Route::EachInTurn => self.ask_each_in_turn(id, request, channel).await,
            Route::Unknown(reason) => {
                RpcMessage::error_response(Some(id), code::INVALID_PARAMS, &reason, None)
            }
        }
    }

    /// Returns the response of a server.
    pub(super) async fn ask_server(
        &self,
        at: usize,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let Some(behind) = self.servers.get(at) else { return unknown_method(id) };
        match (&behind.shared, request.method()) {
            (Some(shared), Some("initialize")) => {
                let introduced = shared.introduce(request).await;
                self.keep().await;
                match introduced {
                    Ok(result) => RpcMessage::result_response(id, result),
                    Err(fault) => own_error(id, error_codes::UNAVAILABLE, &fault.message),
                }
            }
            (Some(shared), Some("resources/subscribe")) => {
                let (Some(uri), Some(params)) = (request.param_text("uri"), request.params_json()) else {
                    return self.ask_alone(behind, id, request, channel).await;
                };
                // Recorded first, so that another client that unsubscribes does not end it for this one.
                match self.settings.watch(at, &uri, params) {
                    WatchResult::Already => return self.ask_alone(behind, id, request, channel).await,
                    WatchResult::New if shared.watch(&uri) => {}
                    WatchResult::New | WatchResult::TooMuch => {
                        self.settings.unwatch(at, &uri);
                        return own_error(
                            id,
                            error_codes::OVERLOADED,
                            "the limit of resource subscriptions is reached",
                        );
                    }
                }
                let answer = self.ask_alone(behind, id, request, channel).await;
                if !is_good(&answer) && self.settings.unwatch(at, &uri) {
                    shared.unwatch(&uri);
                }
                answer
            }
            (Some(shared), Some("resources/unsubscribe")) => {
                let uri = request.param_text("uri").unwrap_or_default();
                match self.settings.unwatch(at, &uri) && !shared.unwatch(&uri) {
                    true => {
                        self.keep().await;
                        RpcMessage::result_response(id, &empty())
                    }
                    false => self.ask_alone(behind, id, request, channel).await,
                }
            }
            (Some(_), Some("logging/setLevel")) => {
                let before = self.settings.level(at, request.params_json());
                let answer = self.ask_alone(behind, id, request, channel).await;
                if !is_good(&answer) {
                    self.settings.level(at, before);
                }
                answer
            }
            (Some(_) | None, _) => self.ask_alone(behind, id, request, channel).await,
        }
    }

    /// Restores a session of an earlier process. Shared servers get the introduction of this client, which will not
    /// send it again, and its settings. Its own servers get them when they start.
    pub(crate) async fn recall(&self, agreements: &SessionHandshakes) {
        self.is_ready.store(true, Ordering::Relaxed);
        let recalling = self.servers.iter().enumerate().map(|(at, behind)| async move {
            let stored = agreements.get(behind.server.name.as_str());
            let (Some(shared), Some(stored)) = (&behind.shared, stored) else { return };
            // Settings that cannot be applied now stay stored.
            let mut preferences = stored.preferences();
            preferences.watched.retain(|uri, _| shared.watch(uri));
            self.settings.restore(at, preferences.clone());
            let Some(request) = stored.initialize() else { return };
            // After a failure, the next request introduces the client again.
            let introduced = shared.introduce(&request).await.is_ok();
            self.notify_server(behind, &initialized()).await;
            if introduced {
                let restoring = async {
                    for request in preferences.requests() {
                        self.ask_alone(behind, &RpcId::number(0), &request, &RequestChannel::Discarded).await;
                    }
                };
                let _ = timeout(HANDSHAKE, restoring).await;
            }
        });
        join_all(recalling).await;
    }

    /// Removes this client's settings from a shared server.
    pub(super) async fn give_up(&self, at: usize, behind: &BackingServer, shared: &SharedServer) {
        let mut preferences = self.settings.give_up(at);
        preferences.watched.retain(|uri, _| shared.unwatch(uri));
        let server = &behind.server;
        for uri in preferences.watched.keys() {
            server.handshake.unwatched(uri);
        }
        let unsubscribing = async {
            for (uri, params) in &preferences.watched {
                // Another client may have subscribed in the meantime.
                if !shared.is_watched(uri) {
                    let request =
                        RpcMessage::request(&RpcId::number(0), "resources/unsubscribe", Some(params));
                    let _ = self.exchange(behind, &request, &RequestChannel::Discarded).await;
                }
            }
        };
        let _ = timeout(UNSUBSCRIBE_TIMEOUT, unsubscribing).await;
    }

    async fn ask_alone(
        &self,
        behind: &BackingServer,
        id: &RpcId,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> RpcMessage {
        let server = &behind.server;
        let method = request.method().unwrap_or_default();
        let policy = match self.engine.policy_of(&envelope_of(&server.name, requests(), &self.connection)) {
            Ok(policy) => policy,
            Err(error) => return own_error(id, code::INTERNAL_ERROR, &error.to_string()),
        };
        let left_alone = policy.modes.is_pass_through();
        let attempts = if is_harmless(method) && !left_alone { ATTEMPTS } else { 1 };
        let limit = if left_alone { Duration::MAX } else { patience(method) };
        let (mut attempt, mut may_forget) = (1, !left_alone);
        loop {
            let admission = match self.admit_request(server, &policy, method) {
                Ok(admission) => admission,
                Err(refusal) => return own_error(id, error_codes::UNAVAILABLE, &refusal),
            };
            let began = self.engine.now();
            let exchanged = timeout(limit, self.exchange(behind, request, channel)).await;
            if let Some(permit) = admission {
                let now = self.engine.now();
                let took = now.since(began);
                let verdict = match &exchanged {
                    Ok(Ok(answer)) if is_good(answer) => BreakerVerdict::Success { took },
                    // The server works and refused.
                    Ok(Ok(_)) => BreakerVerdict::Neutral,
                    // The server works and requires a new session. If it creates none, that counts as the failure.
                    Ok(Err(fault)) if is_session_lost(fault) => BreakerVerdict::Neutral,
                    Ok(Err(_)) | Err(_) => BreakerVerdict::Failure { took },
                };
                permit.record(&policy.breaker, verdict, now);
            }
            match exchanged {
                Ok(Ok(answer)) => {
                    if server.handshake.answered(request, &answer) {
                        self.keep().await;
                    }
                    match method {
                        "initialize" if answer.result().is_some() => server.mark_ready().await,
                        "tools/list" if server.catalog.learn(request, &answer) => self.register_tools(server),
                        _ => {}
                    }
                    return answer.rewrite().id(id).finish();
                }
                // The server did not process the request, so repeating it in a new session is safe.
                Ok(Err(fault)) if may_forget && is_session_lost(&fault) => may_forget = false,
                Ok(Err(fault)) if attempt < attempts && is_worth_a_try(&fault) => attempt += 1,
                Ok(Err(fault)) => {
                    let reach = classify(&fault, &policy.classify, self.engine.now()).reach;
                    let code =
                        if reach.proves_not_run() { error_codes::UNAVAILABLE } else { error_codes::LOST };
                    return own_error(id, code, &fault.message);
                }
                Err(_) => return timed_out(id),
            }
        }
    }

    /// Publishes the known tools of a server for operators.
    fn register_tools(&self, server: &UpstreamServer) {
        let tools = server.catalog.tools().into_iter();
        let tools = tools.filter_map(|(name, annotations)| Some((ToolName::new(name).ok()?, annotations)));
        self.engine.register_tools(server.name.clone(), tools.collect());
    }

    /// Returns a permit of the server's circuit breaker, or the error if it is open.
    fn admit_request<'s>(
        &self,
        server: &'s UpstreamServer,
        policy: &CallPolicy,
        method: &str,
    ) -> Result<Option<BreakerPermit<'s>>, String> {
        // A subscription is open for hours and shows nothing about the health of the server.
        let is_counted = policy.modes.breaker == EnforcementMode::Enforce && method != "subscriptions/listen";
        if !is_counted {
            return Ok(None);
        }
        let now = self.engine.now();
        match server.breaker.admit(&policy.breaker, now) {
            Ok((permit, _)) => Ok(Some(permit)),
            Err(refused) => {
                let wait = refused.retry_at.map(|at| at.since(now).as_millis().div_ceil(1000));
                let when = wait.map_or_else(String::new, |seconds| format!("; try again in {seconds} s"));
                Err(format!("the server keeps failing and its circuit breaker is open{when}"))
            }
        }
    }

    /// Stores the handshakes of the client, if the session can survive a restart.
    async fn keep(&self) {
        let Some(memory) = &self.memory else { return };
        let handshakes = self.servers.iter().enumerate().map(|(at, behind)| {
            let handshake = &behind.server.handshake;
            let written = match &behind.shared {
                // Other clients store their own settings.
                Some(_) => handshake.written_for(self.settings.of(at)),
                None => handshake.written(),
            };
            (behind.server.name.as_str().to_owned(), written)
        });
        memory.keep(handshakes.collect()).await;
    }

    async fn exchange(
        &self,
        behind: &BackingServer,
        request: &RpcMessage,
        channel: &RequestChannel,
    ) -> Result<RpcMessage, AttemptFault> {
        let server = &behind.server;
        behind.outbox.wait_for_earlier().await;
        let place = match request.method() {
            Some("initialize") => server.send_first(request).await?,
            _ => {
                server.handshake.mark_started();
                let on_notification = RequestNotifications::of(request, channel)
                    .map(|notifications| notifications.into_handler(|| {}));
                server.send(request, on_notification).await?
            }
        };
        let mut upstream_request = UpstreamRequest { server, place, is_answered: false, tasks: &self.tasks };
        let answer = upstream_request.place.answer().await;
        upstream_request.is_answered = true;
        answer
    }
}

/// A request at a server. It is cancelled on drop, unless it was answered.
struct UpstreamRequest<'a> {
    server: &'a Arc<UpstreamServer>,
    place: PendingRequest,
    is_answered: bool,
    tasks: &'a TaskTracker,
}

impl Drop for UpstreamRequest<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.tasks.spawn(self.server.cancel_at_server(&self.place));
        }
    }
}

pub(super) fn is_good(answer: &RpcMessage) -> bool {
    answer.result().is_some()
}

pub(super) fn own_error(id: &RpcId, code: i64, message: &str) -> RpcMessage {
    RpcMessage::error_response(Some(id), code, message, None)
}

pub(super) fn timed_out(id: &RpcId) -> RpcMessage {
    own_error(id, error_codes::TIMED_OUT, "the server did not answer in time")
}

pub(super) fn unknown_method(id: &RpcId) -> RpcMessage {
    own_error(id, code::METHOD_NOT_FOUND, "no server supports this method")
}

/// Returns the time limit of a request. A subscription has none.
fn patience(method: &str) -> Duration {
    if method == "subscriptions/listen" { Duration::MAX } else { REQUEST }
}

/// Returns true if a request is safe to repeat.
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

/// Returns true if the server may be reachable at the next attempt.
fn is_worth_a_try(fault: &AttemptFault) -> bool {
    match fault.source {
        FaultSource::Transport { .. } | FaultSource::Exit { .. } => true,
        FaultSource::Http { .. }
        | FaultSource::JsonRpc { .. }
        | FaultSource::SessionLost
        | FaultSource::IsError
        | FaultSource::Tool
        | FaultSource::WebSocket { .. }
        | FaultSource::Timeout { .. }
        | FaultSource::Panic
        | FaultSource::BadAnswer
        | FaultSource::TooLarge => false,
    }
}

//! A modern client and a legacy server. The server gets the client's introduction once, in the handshake. Its
//! notifications and requests are assigned to the client's requests that they belong to.

mod held_calls;
mod messages;
mod subscriptions;

use std::sync::Arc;

use steadfast_core::classify::AttemptFault;
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};
use tokio::time::timeout;

use self::held_calls::HeldCalls;
pub(crate) use self::held_calls::is_held;
use self::messages::LegacyServerInfo;
pub(super) use self::messages::initialize;
use self::subscriptions::ClientSubscriptions;
use super::json_edits::{check_client_support, may_ask, no_method, nothing};
use super::{Generation, NotificationHandler, NotificationReceivers, PendingRequest, UpstreamServer, no_id};
use crate::json_parts::object;
use crate::protocol::LOG_LEVEL;
use crate::servers::upstream::HANDSHAKE;
use crate::servers::upstream::receivers::{HoldEvent, LogSeverity, RunningRequest};

/// A legacy server behind modern clients.
pub(super) struct LegacyBridge {
    about: LegacyServerInfo,
    /// The current log level of the server, as set by the gateway.
    level: tokio::sync::Mutex<Option<LogSeverity>>,
    held_calls: HeldCalls,
    listeners: Arc<ClientSubscriptions>,
}

impl LegacyBridge {
    /// Creates the bridge to a server from its answer to the handshake.
    pub(super) fn agreed(answer: &RpcMessage) -> Option<Self> {
        Some(Self {
            about: LegacyServerInfo::of(answer.result()?),
            level: tokio::sync::Mutex::default(),
            held_calls: HeldCalls::default(),
            listeners: Arc::default(),
        })
    }

    /// Notifies subscribers of changed tools.
    pub(super) fn tools_changed(&self) {
        self.listeners.notify(&RpcMessage::notification("notifications/tools/list_changed", None));
    }

    pub(super) fn stop(&self) {
        self.held_calls.stop();
    }

    /// Sets the log level of the server to the most verbose one that requests in flight want. A failure is not retried,
    /// because the request itself matters more.
    async fn log_for(&self, server: &Arc<UpstreamServer>, request: &RpcMessage) {
        let Some(requested) = request.meta_text(LOG_LEVEL).and_then(|text| LogSeverity::of(&text)) else {
            return;
        };
        if !self.about.has("logging") {
            return;
        }
        let mut level = self.level.lock().await;
        let others = server.pending.all_running();
        let others = others.iter().filter_map(|running| running.level());
        let most = others.chain([requested]).min().unwrap_or(requested);
        if *level == Some(most) {
            return;
        }
        *level = Some(most);
        let name = JsonText::string(most.name());
        let params = object([("level", name.as_str())]);
        let request = RpcMessage::request(&no_id(), "logging/setLevel", Some(&params));
        let exchange =
            async { server.pass(&request, NotificationReceivers::default()).await?.answer().await };
        if let Ok(Ok(answer)) = timeout(HANDSHAKE, exchange).await {
            server.handshake.answered(&request, &answer);
        }
    }
}

/// Sends a request of a modern client.
pub(super) async fn send(
    server: &Arc<UpstreamServer>,
    bridge: &Arc<LegacyBridge>,
    request: &RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> Result<PendingRequest, AttemptFault> {
    let method = request.method().unwrap_or_default();
    match method {
        "server/discover" => return Ok(server.answered(bridge.about.discovered())),
        "subscriptions/listen" => {
            return Ok(subscriptions::listen(server, bridge, request, on_notification).await);
        }
        _ if messages::is_only_older(method) => return Ok(server.answered(no_method(method))),
        _ if may_ask(method) && request.param("requestState").is_some() => {
            return Ok(held_calls::resume(server, bridge, request, on_notification).await);
        }
        _ => bridge.log_for(server, request).await,
    }
    if may_ask(method) {
        return held_calls::call(server, bridge, request, on_notification).await;
    }
    let running =
        RunningRequest::new(request, messages::capabilities(request), on_notification.clone(), None);
    let receivers = NotificationReceivers { on_notification, running: Some(running) };
    let place = server.pass(&messages::request(request), receivers).await?;
    let (bridge, method) = (bridge.clone(), method.to_owned());
    Ok(place.with_conversion(move |answer| bridge.about.answer(&method, &answer)))
}

/// Routes a notification of the server. Returns it if the client's connection gets it unchanged.
pub(super) fn route_notification(
    server: &Arc<UpstreamServer>,
    bridge: &LegacyBridge,
    message: RpcMessage,
    (generation, on): (Generation, Option<u64>),
) -> Option<RpcMessage> {
    match message.method() {
        Some("notifications/message") => {
            let level = LogSeverity::of(&message.param_text("level")?)?;
            let running = server.pending.running(generation, on);
            let mut log_receivers = running.iter().filter_map(|running| running.log_receiver(level));
            match (log_receivers.next()?, log_receivers.next()) {
                (on_notification, None) => on_notification(&message),
                // Its request cannot be determined. On a line all requests share one receiver.
                (_, Some(_)) => return Some(message),
            }
            None
        }
        // The server cancels its own request.
        Some("notifications/cancelled") => {
            let request_id = message.param("requestId")?;
            for running in server.pending.running(generation, None) {
                if let Some(events) = &running.events {
                    let _ = events.try_send(HoldEvent::InputCancelled(request_id.to_owned()));
                }
            }
            None
        }
        // Modern clients do not get these, or only through subscriptions.
        Some(
            "notifications/progress" | "notifications/elicitation/complete" | "notifications/tasks/status",
        ) => None,
        _ => (!bridge.listeners.notify(&message)).then_some(message),
    }
}

/// Routes a request of the server to the only call that it can belong to.
pub(super) async fn route_request(
    server: &Arc<UpstreamServer>,
    request: &RpcMessage,
    (generation, on): (Generation, Option<u64>),
) {
    let Some(id) = request.id() else { return };
    let refused = match request.method() {
        Some("ping") => return server.answer(generation, &nothing().rewrite().id(&id).finish()).await,
        method => for_one_call(server, method.unwrap_or_default(), request, (generation, on)),
    };
    if let Err((code, reason)) = refused {
        tracing::debug!(event = "bridge.refused", server = %server.name, "why" = reason);
        server.answer(generation, &RpcMessage::error_response(Some(&id), code, &reason, None)).await;
    }
}

fn for_one_call(
    server: &UpstreamServer,
    method: &str,
    request: &RpcMessage,
    (generation, on): (Generation, Option<u64>),
) -> Result<(), (i64, String)> {
    let running = server.pending.running(generation, on);
    let mut calls = running.iter().filter_map(|running| Some((running, running.events.as_ref()?)));
    let (Some((running, events)), None) = (calls.next(), calls.next()) else {
        let reason = "a request can reach the client only while exactly one of its calls runs";
        return Err((code::INVALID_REQUEST, reason.to_owned()));
    };
    let capabilities = running.capabilities.lock().clone();
    check_client_support(capabilities.as_str(), method, request.params())
        .map_err(|reason| (code::METHOD_NOT_FOUND, reason))?;
    events
        .try_send(HoldEvent::InputRequested(generation, request.clone()))
        .map_err(|_| (code::INTERNAL_ERROR, "too many requests wait for the client".to_owned()))
}

/// Returns true if two requests are for the same call. A held call continues only with an equal request.
fn is_same(one: &RpcMessage, other: &RpcMessage) -> bool {
    let read = |message: &RpcMessage, name| {
        let text: Option<&str> = message.param(name);
        text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
    };
    let same = |name| read(one, name) == read(other, name);
    one.method() == other.method() && ["name", "uri", "arguments"].into_iter().all(same)
}

/// Returns the member of an object if it is an object itself.
fn inner<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    scan::get(object, name).filter(|value| value.starts_with('{'))
}

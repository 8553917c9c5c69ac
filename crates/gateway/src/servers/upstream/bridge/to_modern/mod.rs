//! A legacy client and a modern server. The client's introduction is sent with every request, and input that the server
//! requests is requested from the client while its call waits.

mod messages;
mod rounds;
mod subscription;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use steadfast_core::classify::AttemptFault;
use steadfast_json::scan;
use steadfast_mcp::http::{LEGACY, META_VERSION, MODERN};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::oneshot;

use self::messages::{LEVELS, LegacyClientInfo, ModernServerInfo};
use self::subscription::UpstreamSubscription;
use super::json_edits::{may_ask, nothing, strings, with_none};
use super::{Generation, NotificationHandler, PendingRequest, ServerEvent, UpstreamServer, no_id};
use crate::servers::upstream::ServerConnection;

/// A modern server behind a legacy client.
pub(super) struct ModernBridge {
    about: ModernServerInfo,
    /// The open requests to the client, by number.
    open_requests: Arc<Mutex<HashMap<u64, oneshot::Sender<RpcMessage>>>>,
    next: AtomicU64,
    listening: UpstreamSubscription,
}

/// The maximum number of open requests to the client.
const MOST_OPEN_REQUESTS: usize = 1024;

impl ModernBridge {
    /// Creates the bridge to a server from its answer to `server/discover`, if it is of the modern era.
    pub(super) fn discovered(answer: Result<RpcMessage, AttemptFault>) -> Option<Self> {
        let answer = answer.ok().filter(is_modern_result)?;
        Some(Self {
            about: ModernServerInfo::of(answer.result()?),
            open_requests: Arc::default(),
            next: AtomicU64::new(1),
            listening: UpstreamSubscription::default(),
        })
    }

    /// Returns the answer to the client's handshake.
    pub(super) fn initialized(&self, request: &RpcMessage, name: &str) -> RpcMessage {
        self.about.initialized(request, name)
    }

    /// Subscribes to the notifications that a legacy client gets without asking.
    pub(super) fn listen(self: &Arc<Self>, server: &Arc<UpstreamServer>) {
        self.listening.set_filter(server, self.about.filter(&server.handshake.watched()));
    }

    /// Takes the client's answer to a request.
    pub(super) fn answered(&self, answer: &RpcMessage) {
        let number = answer.id().and_then(|id| id.as_u64());
        let waiting = number.and_then(|number| self.open_requests.lock().remove(&number));
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer.clone());
        }
    }

    pub(super) fn stop(&self) {
        self.listening.stop();
    }

    /// Sends a request to the client. Dropping the returned value cancels it.
    async fn ask(
        &self,
        server: &Arc<UpstreamServer>,
        method: &str,
        params: Option<&JsonText>,
    ) -> Option<ClientRequest> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        {
            let mut open_requests = self.open_requests.lock();
            if open_requests.len() >= MOST_OPEN_REQUESTS {
                return None;
            }
            open_requests.insert(number, sender);
        }
        let question = ClientRequest {
            number,
            answer,
            open_requests: self.open_requests.clone(),
            server: server.clone(),
        };
        let request = RpcMessage::request(&RpcId::number(number), method, params);
        server.notify_owner(ServerEvent::Request(Generation::NONE, request)).await;
        Some(question)
    }
}

/// An open request to the client.
struct ClientRequest {
    number: u64,
    answer: oneshot::Receiver<RpcMessage>,
    open_requests: Arc<Mutex<HashMap<u64, oneshot::Sender<RpcMessage>>>>,
    server: Arc<UpstreamServer>,
}

impl Drop for ClientRequest {
    fn drop(&mut self) {
        let was_open = self.open_requests.lock().remove(&self.number).is_some();
        if let (true, Ok(runtime)) = (was_open, tokio::runtime::Handle::try_current()) {
            let reason = "the call that requested this has ended";
            let (server, cancellation) =
                (self.server.clone(), crate::protocol::cancel(&RpcId::number(self.number), reason));
            runtime.spawn(async move { server.notify_owner(ServerEvent::Notification(cancellation)).await });
        }
    }
}

/// Sends a request of a legacy client.
pub(super) async fn send(
    server: &Arc<UpstreamServer>,
    bridge: &Arc<ModernBridge>,
    request: &RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> Result<PendingRequest, AttemptFault> {
    let method = request.method().unwrap_or_default();
    match method {
        // Recorded by the caller, and sent with each request.
        "logging/setLevel" => {
            let level = request.param_text("level");
            return Ok(server.answered(match level {
                Some(level) if LEVELS.contains(&&*level) => nothing(),
                Some(_) | None => refusal("unknown log level"),
            }));
        }
        "resources/subscribe" | "resources/unsubscribe" => {
            if request.param_text("uri").is_none() {
                return Ok(server.answered(refusal("the request names no resource")));
            }
            server.handshake.answered(request, &nothing());
            bridge.listen(server);
            return Ok(server.answered(nothing()));
        }
        _ => {}
    }
    let prepared = with_client_info(server, request);
    if may_ask(method) {
        return rounds::call(server, bridge, prepared, on_notification).await;
    }
    let place = server.pass(&prepared, on_notification.into()).await?;
    Ok(place.with_conversion(|answer| with_none(&answer, "resultType")))
}

/// Translates a request into the modern era.
pub(super) fn with_client_info(server: &UpstreamServer, request: &RpcMessage) -> RpcMessage {
    let client = LegacyClientInfo::of(server.handshake.initialize().as_ref());
    client.with_client_info(request, server.handshake.log_level())
}

/// Translates a notification into the modern era. Returns `None` if that era does not have it.
pub(super) fn translate_notification(
    server: &Arc<UpstreamServer>,
    bridge: &Arc<ModernBridge>,
    notification: &RpcMessage,
) -> Option<RpcMessage> {
    match (notification.method(), &server.connection) {
        (Some("notifications/initialized"), _) => {
            bridge.listen(server);
            None
        }
        (Some("notifications/roots/list_changed" | "notifications/progress"), _) => None,
        // Closing the connection has cancelled the request.
        (Some("notifications/cancelled"), ServerConnection::Remote(_)) => None,
        (Some("notifications/cancelled"), ServerConnection::Child(_)) => Some(notification.clone()),
        _ => Some(notification.rewrite().meta(META_VERSION, JsonText::string(MODERN)).finish()),
    }
}

fn refusal(reason: &str) -> RpcMessage {
    RpcMessage::error_response(Some(&no_id()), code::INVALID_PARAMS, reason, None)
}

/// Returns true if an answer to `server/discover` lists a version of the modern era.
pub(super) fn is_modern_result(answer: &RpcMessage) -> bool {
    let versions = answer.result().and_then(|result| scan::get(result, "supportedVersions"));
    versions.is_some_and(includes_modern)
}

/// Returns true if a list of versions contains one of the modern era.
pub(super) fn includes_modern(versions: &str) -> bool {
    strings(versions).iter().any(|version| !LEGACY.contains(&version.as_str()))
}

//! Translation between the two protocol eras: each client sees a server of its own era.
//!
//! The client's era is tried first, so that messages of one era pass unchanged. The other era is used only for a server
//! that does not support the client's. The detected era is stored for the lifetime of the [`UpstreamServer`].
//!
//! | module | purpose |
//! | --- | --- |
//! | `era_detection` | detects the era of a server from its answers |
//! | `json_edits` | adds and removes members of JSON objects |
//! | `to_legacy/` | a modern client and a legacy server: calls are held while the client provides input |
//! | `to_modern/` | a legacy client and a modern server: a call takes several rounds, with the client's input between them |

mod era_detection;
mod json_edits;
mod to_legacy;
mod to_modern;

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use steadfast_core::classify::AttemptFault;
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::message::{RpcId, RpcMessage};

use self::to_legacy::LegacyBridge;
pub(crate) use self::to_legacy::is_held;
use self::to_modern::ModernBridge;
use super::handshake::initialized;
use super::receivers::NotificationReceivers;
use super::{Generation, NotificationHandler, PendingRequest, ServerEvent, ServerRecovery, UpstreamServer};

/// The translation for one server.
#[derive(Default)]
pub(super) struct EraBridge {
    found: Mutex<Option<DetectedEra>>,
    /// Locked during detection, so that it happens once.
    finding: tokio::sync::Mutex<()>,
}

/// The detected era of a server.
#[derive(Clone)]
enum DetectedEra {
    /// The era of its client.
    Same(ProtocolEra),
    /// The legacy era, with a modern client: the gateway runs the handshake.
    ToLegacy(Arc<LegacyBridge>),
    /// The modern era, with a legacy client: the gateway answers the handshake.
    ToModern(Arc<ModernBridge>),
}

impl EraBridge {
    fn found(&self) -> Option<DetectedEra> {
        self.found.lock().clone()
    }

    /// Returns true if the era of the server is known.
    pub(super) fn is_known(&self) -> bool {
        self.found.lock().is_some()
    }

    fn set(&self, found: DetectedEra) {
        *self.found.lock() = Some(found);
    }

    /// Takes the client's answer to a request that the gateway made for a modern server.
    pub(super) fn answered(&self, answer: &RpcMessage) {
        if let Some(DetectedEra::ToModern(bridge)) = self.found() {
            bridge.answered(answer);
        }
    }

    /// Adapts the recovery of a server with changed tools: a modern client gets the change through its subscription.
    pub(super) fn recovered(&self, event: ServerEvent) -> ServerEvent {
        match (event, self.found()) {
            (
                ServerEvent::Recovered(ServerRecovery { tools_changed: true }),
                Some(DetectedEra::ToLegacy(bridge)),
            ) => {
                bridge.tools_changed();
                ServerEvent::Recovered(ServerRecovery { tools_changed: false })
            }
            (event, _) => event,
        }
    }

    /// Stops background work.
    pub(super) fn stop(&self) {
        match self.found() {
            Some(DetectedEra::ToLegacy(bridge)) => bridge.stop(),
            Some(DetectedEra::ToModern(bridge)) => bridge.stop(),
            Some(DetectedEra::Same(_)) | None => {}
        }
    }
}

/// Sends a request in the era of the server. Rare branches are boxed, so that the future of an ordinary call stays
/// small.
pub(super) async fn send(
    server: &Arc<UpstreamServer>,
    request: &RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> Result<PendingRequest, AttemptFault> {
    let mut found = server.bridge.found();
    if found.is_none() && ProtocolEra::of_request(request) == ProtocolEra::Modern {
        match Box::pin(era_detection::first(server, request)).await? {
            era_detection::FirstRequest::Answered(place) => return Ok(place),
            era_detection::FirstRequest::NotYet => found = server.bridge.found(),
        }
    }
    if found.is_none() && server.handshake.initialize().is_some() {
        // An earlier process had detected the era; repeating the handshake detects it again.
        Box::pin(server.wait_until_ready()).await?;
        found = server.bridge.found();
    }
    match (ProtocolEra::of_request(request), found) {
        (ProtocolEra::Modern, Some(DetectedEra::ToLegacy(bridge))) => {
            Box::pin(to_legacy::send(server, &bridge, request, on_notification)).await
        }
        (ProtocolEra::Legacy, Some(DetectedEra::ToModern(bridge))) => {
            Box::pin(to_modern::send(server, &bridge, request, on_notification)).await
        }
        (ProtocolEra::Modern, Some(DetectedEra::Same(_) | DetectedEra::ToModern(_)) | None)
        | (ProtocolEra::Legacy, Some(DetectedEra::Same(_) | DetectedEra::ToLegacy(_)) | None) => {
            server.pass(request, on_notification.into()).await
        }
    }
}

/// Sends the first request of a legacy client.
pub(super) async fn send_first(
    server: &Arc<UpstreamServer>,
    request: &RpcMessage,
) -> Result<PendingRequest, AttemptFault> {
    let answer = match server.bridge.found() {
        // A modern request: the modern era has no `initialize`.
        Some(DetectedEra::ToLegacy(_)) if ProtocolEra::of_request(request) == ProtocolEra::Modern => {
            Ok(json_edits::no_method("initialize"))
        }
        _ if ProtocolEra::of_request(request) == ProtocolEra::Modern => {
            return server.pass_first(request).await;
        }
        Some(DetectedEra::ToModern(bridge)) => Ok(bridge.initialized(request, server.name.as_str())),
        Some(DetectedEra::Same(_) | DetectedEra::ToLegacy(_)) | None => {
            era_detection::initialize(server, request).await
        }
    };
    Ok(server.pending.answered_with(answer))
}

/// Translates a notification of the client. Returns `None` if the server's era does not have it.
pub(super) fn translate_notification(
    server: &Arc<UpstreamServer>,
    notification: &RpcMessage,
) -> Option<RpcMessage> {
    match server.bridge.found() {
        Some(DetectedEra::ToModern(bridge)) => {
            to_modern::translate_notification(server, &bridge, notification)
        }
        Some(DetectedEra::Same(_) | DetectedEra::ToLegacy(_)) | None => Some(notification.clone()),
    }
}

/// Translates an event of a server, perhaps from the stream of a request. Returns the part for the owner.
pub(super) fn translate_event(
    server: &Arc<UpstreamServer>,
    event: ServerEvent,
    from: (Generation, Option<u64>),
) -> BoxFuture<'_, Option<ServerEvent>> {
    async move {
        match (server.bridge.found(), event) {
            (Some(DetectedEra::ToLegacy(bridge)), ServerEvent::Notification(message)) => {
                to_legacy::route_notification(server, &bridge, message, from).map(ServerEvent::Notification)
            }
            (Some(DetectedEra::ToLegacy(_)), ServerEvent::Request(_, message)) => {
                to_legacy::route_request(server, &message, from).await;
                None
            }
            (_, event) => Some(event),
        }
    }
    .boxed()
}

impl UpstreamServer {
    /// Repeats the client's handshake and settings to a restarted server.
    pub(super) async fn repeat<'a>(
        self: &Arc<Self>,
        ask: impl Fn(RpcMessage) -> BoxFuture<'a, Result<PendingRequest, AttemptFault>> + Send + Sync,
        notify: impl Fn(RpcMessage) -> BoxFuture<'a, ()> + Send + Sync,
    ) -> Result<(), AttemptFault> {
        if self.is_modern() {
            return Ok(());
        }
        let Some(words) = self.handshake.words() else { return Ok(()) };
        for request in words.requests {
            let answer = ask(request.clone()).await?.answer().await?;
            if request.method() != Some("initialize") {
                continue;
            }
            if answer.result().is_some() {
                if self.bridge.found().is_none() {
                    self.bridge.set(DetectedEra::Same(ProtocolEra::Legacy));
                }
                notify(initialized()).await;
            } else if self.bridge.found().is_none() {
                // An earlier process had found that the server is modern and needs no handshake.
                let discovered = ask(era_detection::discover(&request)).await?.answer().await;
                if let Some(bridge) = ModernBridge::discovered(discovered) {
                    let bridge = Arc::new(bridge);
                    self.bridge.set(DetectedEra::ToModern(bridge.clone()));
                    bridge.listen(self);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns true if the server is known to be of the modern era.
    pub(super) fn is_modern(&self) -> bool {
        matches!(self.bridge.found(), Some(DetectedEra::ToModern(_) | DetectedEra::Same(ProtocolEra::Modern)))
    }

    /// Translates a request of the gateway into the era of the server.
    pub(super) fn to_server_era(&self, request: RpcMessage) -> RpcMessage {
        match self.bridge.found() {
            Some(DetectedEra::ToModern(_)) => to_modern::with_client_info(self, &request),
            Some(DetectedEra::Same(_) | DetectedEra::ToLegacy(_)) | None => request,
        }
    }

    /// Returns a pending request that the gateway answers itself.
    fn answered(self: &Arc<Self>, answer: RpcMessage) -> PendingRequest {
        self.pending.answered_with(Ok(answer))
    }
}

/// Returns the placeholder id of messages whose id is replaced before they are sent.
fn no_id() -> RpcId {
    RpcId::number(0)
}

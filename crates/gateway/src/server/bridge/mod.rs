//! Translation between the two protocol eras: each client sees a server of its own era.
//!
//! The client's era is tried first, so that messages of one era pass unchanged. The other era is used only for a server
//! that does not support the client's. The detected era is stored for the lifetime of the [`Server`].
//!
//! | module | purpose |
//! | --- | --- |
//! | `era_detection` | detects the era of a server from its answers |
//! | `json_edits` | adds and removes members of JSON objects |
//! | `to_legacy/` | a modern client and a legacy server: calls are held while the client provides input |
//! | `to_modern/` | a legacy client and a modern server: a call takes several rounds, with the client's input between them |

mod find;
mod to_legacy;
mod to_modern;
mod words;

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use steadfast_core::classify::Fault;
use steadfast_mcp::http::Era;
use steadfast_mcp::message::{Id, Message};

pub(super) use self::to_legacy::Running;
use self::to_legacy::ToLegacy;
pub(crate) use self::to_legacy::is_held;
use self::to_modern::ToModern;
use super::handshake::initialized;
use super::pending::Ears;
use super::{FromServer, Hear, Life, Place, Recovery, Server};

/// The translation for one server.
#[derive(Default)]
pub(super) struct Bridge {
    found: Mutex<Option<Found>>,
    /// Locked during detection, so that it happens once.
    finding: tokio::sync::Mutex<()>,
}

/// The detected era of a server.
#[derive(Clone)]
enum Found {
    /// The era of its client.
    Same(Era),
    /// The legacy era, with a modern client: the gateway runs the handshake.
    ToLegacy(Arc<ToLegacy>),
    /// The modern era, with a legacy client: the gateway answers the handshake.
    ToModern(Arc<ToModern>),
}

impl Bridge {
    fn found(&self) -> Option<Found> {
        self.found.lock().clone()
    }

    /// Returns true if the era of the server is known.
    pub(super) fn is_known(&self) -> bool {
        self.found.lock().is_some()
    }

    fn set(&self, found: Found) {
        *self.found.lock() = Some(found);
    }

    /// Takes the client's answer to a request that the gateway made for a modern server.
    pub(super) fn answered(&self, answer: &Message) {
        if let Some(Found::ToModern(bridge)) = self.found() {
            bridge.answered(answer);
        }
    }

    /// Adapts the recovery of a server with changed tools: a modern client gets the change through its subscription.
    pub(super) fn recovered(&self, event: FromServer) -> FromServer {
        match (event, self.found()) {
            (FromServer::Recovered(Recovery { tools_changed: true }), Some(Found::ToLegacy(bridge))) => {
                bridge.tools_changed();
                FromServer::Recovered(Recovery { tools_changed: false })
            }
            (event, _) => event,
        }
    }

    /// Stops background work.
    pub(super) fn stop(&self) {
        match self.found() {
            Some(Found::ToLegacy(bridge)) => bridge.stop(),
            Some(Found::ToModern(bridge)) => bridge.stop(),
            Some(Found::Same(_)) | None => {}
        }
    }
}

/// Sends a request in the era of the server. Rare branches are boxed, so that the future of an ordinary call stays
/// small.
pub(super) async fn send(
    server: &Arc<Server>,
    request: &Message,
    hear: Option<Hear>,
) -> Result<Place, Fault> {
    let mut found = server.bridge.found();
    if found.is_none() && Era::of_request(request) == Era::Modern {
        match Box::pin(find::first(server, request)).await? {
            find::First::Answered(place) => return Ok(place),
            find::First::NotYet => found = server.bridge.found(),
        }
    }
    if found.is_none() && server.handshake.initialize().is_some() {
        // An earlier process had detected the era; repeating the handshake detects it again.
        Box::pin(server.awake()).await?;
        found = server.bridge.found();
    }
    match (Era::of_request(request), found) {
        (Era::Modern, Some(Found::ToLegacy(bridge))) => {
            Box::pin(to_legacy::send(server, &bridge, request, hear)).await
        }
        (Era::Legacy, Some(Found::ToModern(bridge))) => {
            Box::pin(to_modern::send(server, &bridge, request, hear)).await
        }
        (Era::Modern, Some(Found::Same(_) | Found::ToModern(_)) | None)
        | (Era::Legacy, Some(Found::Same(_) | Found::ToLegacy(_)) | None) => {
            server.pass(request, hear.into()).await
        }
    }
}

/// Sends the first request of a legacy client.
pub(super) async fn send_first(server: &Arc<Server>, request: &Message) -> Result<Place, Fault> {
    let answer = match server.bridge.found() {
        // A modern request: the modern era has no `initialize`.
        Some(Found::ToLegacy(_)) if Era::of_request(request) == Era::Modern => {
            Ok(words::no_method("initialize"))
        }
        _ if Era::of_request(request) == Era::Modern => return server.pass_first(request).await,
        Some(Found::ToModern(bridge)) => Ok(bridge.initialized(request, server.name.as_str())),
        Some(Found::Same(_) | Found::ToLegacy(_)) | None => find::initialize(server, request).await,
    };
    Ok(server.pending.answered_with(answer))
}

/// Translates a notification of the client. Returns `None` if the server's era does not have it.
pub(super) fn told(server: &Arc<Server>, notification: &Message) -> Option<Message> {
    match server.bridge.found() {
        Some(Found::ToModern(bridge)) => to_modern::told(server, &bridge, notification),
        Some(Found::Same(_) | Found::ToLegacy(_)) | None => Some(notification.clone()),
    }
}

/// Translates an event of a server, perhaps from the stream of a request. Returns the part for the owner.
pub(super) fn heard(
    server: &Arc<Server>,
    event: FromServer,
    from: (Life, Option<u64>),
) -> BoxFuture<'_, Option<FromServer>> {
    async move {
        match (server.bridge.found(), event) {
            (Some(Found::ToLegacy(bridge)), FromServer::Told(message)) => {
                to_legacy::told(server, &bridge, message, from).map(FromServer::Told)
            }
            (Some(Found::ToLegacy(_)), FromServer::Asked(_, message)) => {
                to_legacy::asked(server, &message, from).await;
                None
            }
            (_, event) => Some(event),
        }
    }
    .boxed()
}

impl Server {
    /// Repeats the client's handshake and settings to a restarted server.
    pub(super) async fn repeat<'a>(
        self: &Arc<Self>,
        ask: impl Fn(Message) -> BoxFuture<'a, Result<Place, Fault>> + Send + Sync,
        tell: impl Fn(Message) -> BoxFuture<'a, ()> + Send + Sync,
    ) -> Result<(), Fault> {
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
                    self.bridge.set(Found::Same(Era::Legacy));
                }
                tell(initialized()).await;
            } else if self.bridge.found().is_none() {
                // An earlier process had found that the server is modern and needs no handshake.
                let discovered = ask(find::discover(&request)).await?.answer().await;
                if let Some(bridge) = ToModern::discovered(discovered) {
                    let bridge = Arc::new(bridge);
                    self.bridge.set(Found::ToModern(bridge.clone()));
                    bridge.listen(self);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns true if the server is known to be of the modern era.
    pub(super) fn is_modern(&self) -> bool {
        matches!(self.bridge.found(), Some(Found::ToModern(_) | Found::Same(Era::Modern)))
    }

    /// Translates a request of the gateway into the era of the server.
    pub(super) fn dressed(&self, request: Message) -> Message {
        match self.bridge.found() {
            Some(Found::ToModern(_)) => to_modern::dressed(self, &request),
            Some(Found::Same(_) | Found::ToLegacy(_)) | None => request,
        }
    }

    /// Returns a pending request that the gateway answers itself.
    fn answered(self: &Arc<Self>, answer: Message) -> Place {
        self.pending.answered_with(Ok(answer))
    }
}

/// Returns the placeholder id of messages whose id is replaced before they are sent.
fn no_id() -> Id {
    Id::number(0)
}

//! Between the two eras of the protocol: a server is to its client one of the client's own era.
//!
//! The client's era is tried first, so that what is of one era goes on as it came. Only a server that cannot speak it is
//! spoken with in the other one, and what is found out about it is kept as long as the [`Server`] is.
//!
//! | file | what it does |
//! | --- | --- |
//! | `find` | which era a server is of, from what it answers |
//! | `words` | objects with members added or left out |
//! | `to_legacy/` | a client that needs no handshake, and a server that does: calls that are held while the client is asked |
//! | `to_modern/` | the other way round: calls in rounds, with the questions between them |

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

/// How a server is spoken with.
#[derive(Default)]
pub(super) struct Bridge {
    found: Mutex<Option<Found>>,
    /// Held by whoever finds it out, so that one does for all.
    finding: tokio::sync::Mutex<()>,
}

/// What was found out about a server.
#[derive(Clone)]
enum Found {
    /// It is of the era of its client.
    Same(Era),
    /// It wants a handshake, which its client does not know.
    ToLegacy(Arc<ToLegacy>),
    /// It knows no handshake, which its client wants.
    ToModern(Arc<ToModern>),
}

impl Bridge {
    fn found(&self) -> Option<Found> {
        self.found.lock().clone()
    }

    /// Whether it is known of which era the server is.
    pub(super) fn is_known(&self) -> bool {
        self.found.lock().is_some()
    }

    fn set(&self, found: Found) {
        *self.found.lock() = Some(found);
    }

    /// The client has answered what it was asked on behalf of a server that asks nobody.
    pub(super) fn answered(&self, answer: &Message) {
        if let Some(Found::ToModern(bridge)) = self.found() {
            bridge.answered(answer);
        }
    }

    /// A server that came back with other tools: a client that does not know such news hears it where it listens.
    pub(super) fn recovered(&self, event: FromServer) -> FromServer {
        match (event, self.found()) {
            (FromServer::Recovered(Recovery { tools_changed: true }), Some(Found::ToLegacy(bridge))) => {
                bridge.tools_changed();
                FromServer::Recovered(Recovery { tools_changed: false })
            }
            (event, _) => event,
        }
    }

    /// Ends what is under way by itself.
    pub(super) fn stop(&self) {
        match self.found() {
            Some(Found::ToLegacy(bridge)) => bridge.stop(),
            Some(Found::ToModern(bridge)) => bridge.stop(),
            Some(Found::Same(_)) | None => {}
        }
    }
}

/// Sends a request in words that the server understands. What is seldom done is boxed: otherwise every call would carry the
/// room for it.
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
        // Another process of ours had found out; while the server is told again what it was told, so do we.
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

/// Sends the first words of a client of the older era.
pub(super) async fn send_first(server: &Arc<Server>, request: &Message) -> Result<Place, Fault> {
    let answer = match server.bridge.found() {
        // There is no such thing in the modern era, which this request is of: the server says so.
        Some(Found::ToLegacy(_)) if Era::of_request(request) == Era::Modern => {
            Ok(words::no_method("initialize"))
        }
        _ if Era::of_request(request) == Era::Modern => return server.pass_first(request).await,
        Some(Found::ToModern(bridge)) => Ok(bridge.initialized(request, server.name.as_str())),
        Some(Found::Same(_) | Found::ToLegacy(_)) | None => find::initialize(server, request).await,
    };
    Ok(server.pending.answered_with(answer))
}

/// A notification of the client as the server knows it, if it does.
pub(super) fn told(server: &Arc<Server>, notification: &Message) -> Option<Message> {
    match server.bridge.found() {
        Some(Found::ToModern(bridge)) => to_modern::told(server, &bridge, notification),
        Some(Found::Same(_) | Found::ToLegacy(_)) | None => Some(notification.clone()),
    }
}

/// What a server did by itself, perhaps on the stream of a request: gives back what is for its owner.
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
    /// Tells a server that came back what it was told before.
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
                // Told by another process of ours, which had found out that the server has to be told nothing.
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

    /// Whether it is of the modern era, as far as is known.
    pub(super) fn is_modern(&self) -> bool {
        matches!(self.bridge.found(), Some(Found::ToModern(_) | Found::Same(Era::Modern)))
    }

    /// A request of ours as the server wants it.
    pub(super) fn dressed(&self, request: Message) -> Message {
        match self.bridge.found() {
            Some(Found::ToModern(_)) => to_modern::dressed(self, &request),
            Some(Found::Same(_) | Found::ToLegacy(_)) | None => request,
        }
    }

    /// The place of a request that is answered by us.
    fn answered(self: &Arc<Self>, answer: Message) -> Place {
        self.pending.answered_with(Ok(answer))
    }
}

/// The id of requests and answers that get another one before they go anywhere.
fn no_id() -> Id {
    Id::number(0)
}

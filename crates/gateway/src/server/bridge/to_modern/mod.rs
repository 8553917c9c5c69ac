//! A legacy client and a modern server. The client's introduction is sent with every request, and input that the server
//! requests is requested from the client while its call waits.

mod listen;
mod rounds;
mod words;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use steadfast_core::classify::Fault;
use steadfast_mcp::http::{META_VERSION, MODERN};
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw::RawJson;
use tokio::sync::oneshot;

use self::listen::Listening;
use self::words::{About, Client, LEVELS};
use super::find::is_modern_result;
use super::words::{may_ask, nothing, with_none};
use super::{FromServer, Hear, Life, Place, Server, no_id};
use crate::server::Way;

/// A modern server behind a legacy client.
pub(super) struct ToModern {
    about: About,
    /// The open requests to the client, by number.
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>,
    next: AtomicU64,
    listening: Listening,
}

/// The maximum number of open requests to the client.
const MOST_ASKED: usize = 1024;

impl ToModern {
    /// Creates the bridge to a server from its answer to `server/discover`, if it is of the modern era.
    pub(super) fn discovered(answer: Result<Message, Fault>) -> Option<Self> {
        let answer = answer.ok().filter(is_modern_result)?;
        Some(Self {
            about: About::of(answer.result()?),
            asked: Arc::default(),
            next: AtomicU64::new(1),
            listening: Listening::default(),
        })
    }

    /// Returns the answer to the client's handshake.
    pub(super) fn initialized(&self, request: &Message, name: &str) -> Message {
        self.about.initialized(request, name)
    }

    /// Subscribes to the notifications that a legacy client gets without asking.
    pub(super) fn listen(self: &Arc<Self>, server: &Arc<Server>) {
        self.listening.wants(server, self.about.filter(&server.handshake.watched()));
    }

    /// Takes the client's answer to a request.
    pub(super) fn answered(&self, answer: &Message) {
        let number = answer.id().and_then(|id| id.as_u64());
        let waiting = number.and_then(|number| self.asked.lock().remove(&number));
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer.clone());
        }
    }

    pub(super) fn stop(&self) {
        self.listening.stop();
    }

    /// Sends a request to the client. Dropping the returned value cancels it.
    async fn ask(&self, server: &Arc<Server>, method: &str, params: Option<&RawJson>) -> Option<Question> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        {
            let mut asked = self.asked.lock();
            if asked.len() >= MOST_ASKED {
                return None;
            }
            asked.insert(number, sender);
        }
        let question = Question { number, answer, asked: self.asked.clone(), server: server.clone() };
        let request = Message::request(&Id::number(number), method, params);
        server.heard(FromServer::Asked(Life::NONE, request)).await;
        Some(question)
    }
}

/// An open request to the client.
struct Question {
    number: u64,
    answer: oneshot::Receiver<Message>,
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>,
    server: Arc<Server>,
}

impl Drop for Question {
    fn drop(&mut self) {
        let was_open = self.asked.lock().remove(&self.number).is_some();
        if let (true, Ok(runtime)) = (was_open, tokio::runtime::Handle::try_current()) {
            let why = "the call that requested this has ended";
            let (server, told) = (self.server.clone(), crate::server::cancel(&Id::number(self.number), why));
            runtime.spawn(async move { server.heard(FromServer::Told(told)).await });
        }
    }
}

/// Sends a request of a legacy client.
pub(super) async fn send(
    server: &Arc<Server>,
    bridge: &Arc<ToModern>,
    request: &Message,
    hear: Option<Hear>,
) -> Result<Place, Fault> {
    let method = request.method().unwrap_or_default();
    match method {
        // Recorded by the caller, and sent with each request.
        "logging/setLevel" => {
            let level = request.param_text("level");
            return Ok(server.answered(match level {
                Some(level) if LEVELS.contains(&&*level) => nothing(),
                Some(_) | None => refusal("there is no such level"),
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
    let dressed = dressed(server, request);
    if may_ask(method) {
        return rounds::call(server, bridge, dressed, hear).await;
    }
    let place = server.pass(&dressed, hear.into()).await?;
    Ok(place.turned(|answer| with_none(&answer, "resultType")))
}

/// Translates a request into the modern era.
pub(super) fn dressed(server: &Server, request: &Message) -> Message {
    let client = Client::of(server.handshake.initialize().as_ref());
    client.dressed(request, server.handshake.log_level())
}

/// Translates a notification into the modern era. Returns `None` if that era does not have it.
pub(super) fn told(server: &Arc<Server>, bridge: &Arc<ToModern>, notification: &Message) -> Option<Message> {
    match (notification.method(), &server.way) {
        (Some("notifications/initialized"), _) => {
            bridge.listen(server);
            None
        }
        (Some("notifications/roots/list_changed" | "notifications/progress"), _) => None,
        // Closing the connection has cancelled the request.
        (Some("notifications/cancelled"), Way::Remote(_)) => None,
        (Some("notifications/cancelled"), Way::Child(_)) => Some(notification.clone()),
        _ => Some(notification.rewrite().meta(META_VERSION, RawJson::string(MODERN)).finish()),
    }
}

fn refusal(why: &str) -> Message {
    Message::error_response(Some(&no_id()), code::INVALID_PARAMS, why, None)
}

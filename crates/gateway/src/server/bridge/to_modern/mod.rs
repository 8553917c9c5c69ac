//! A client of the older era and a server of the modern one: what the client says once goes with every request, and what the
//! server wants to know before it goes on is asked of the client while the client waits.

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

/// A server of the modern era behind a client of the older one.
pub(super) struct ToModern {
    about: About,
    /// What the client is asked, by numbers of ours.
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>,
    next: AtomicU64,
    listening: Listening,
}

/// The most questions that wait for the client.
const MOST_ASKED: usize = 1024;

impl ToModern {
    /// A server that answered so to `server/discover`, if it is of the modern era.
    pub(super) fn discovered(answer: Result<Message, Fault>) -> Option<Self> {
        let answer = answer.ok().filter(is_modern_result)?;
        Some(Self {
            about: About::of(answer.result()?),
            asked: Arc::default(),
            next: AtomicU64::new(1),
            listening: Listening::default(),
        })
    }

    /// The answer to the client's handshake.
    pub(super) fn initialized(&self, request: &Message, name: &str) -> Message {
        self.about.initialized(request, name)
    }

    /// Listens for what the client would hear without asking for it.
    pub(super) fn listen(self: &Arc<Self>, server: &Arc<Server>) {
        self.listening.wants(server, self.about.filter(&server.handshake.watched()));
    }

    /// The client has answered a question.
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

    /// Asks the client. Whoever drops this does not want the answer any more.
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

/// Something that the client was asked.
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
            let why = "the call that asked this is over";
            let (server, told) = (self.server.clone(), crate::server::cancel(&Id::number(self.number), why));
            runtime.spawn(async move { server.heard(FromServer::Told(told)).await });
        }
    }
}

/// Sends a request of a client of the older era.
pub(super) async fn send(
    server: &Arc<Server>,
    bridge: &Arc<ToModern>,
    request: &Message,
    hear: Option<Hear>,
) -> Result<Place, Fault> {
    let method = request.method().unwrap_or_default();
    match method {
        // Remembered by whoever passed it on, and sent with each request.
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

/// A request as the modern era wants it.
pub(super) fn dressed(server: &Server, request: &Message) -> Message {
    let client = Client::of(server.handshake.initialize().as_ref());
    client.dressed(request, server.handshake.log_level())
}

/// A notification as the modern era has it, if it does.
pub(super) fn told(server: &Arc<Server>, bridge: &Arc<ToModern>, notification: &Message) -> Option<Message> {
    match (notification.method(), &server.way) {
        (Some("notifications/initialized"), _) => {
            bridge.listen(server);
            None
        }
        (Some("notifications/roots/list_changed" | "notifications/progress"), _) => None,
        // Whoever leaves has withdrawn the request.
        (Some("notifications/cancelled"), Way::Remote(_)) => None,
        (Some("notifications/cancelled"), Way::Child(_)) => Some(notification.clone()),
        _ => Some(notification.rewrite().meta(META_VERSION, RawJson::string(MODERN)).finish()),
    }
}

fn refusal(why: &str) -> Message {
    Message::error_response(Some(&no_id()), code::INVALID_PARAMS, why, None)
}

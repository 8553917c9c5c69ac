//! A modern client and a legacy server. The server gets the client's introduction once, in the handshake. Its
//! notifications and requests are assigned to the client's requests that they belong to.

mod held;
mod listen;
mod words;

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::classify::Fault;
use steadfast_mcp::message::{Message, code};
use steadfast_mcp::raw::{self, RawJson};
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) use self::held::is_held;
use self::held::{Held, Said};
use self::listen::Listeners;
pub(super) use self::words::initialize;
use self::words::{About, Level};
use super::words::{can_be_asked, may_ask, no_method, nothing};
use super::{Ears, Hear, Life, Place, Server, no_id};
use crate::news::LOG_LEVEL;
use crate::pieces::{json, object};
use crate::server::HANDSHAKE;

/// A legacy server behind modern clients.
pub(super) struct ToLegacy {
    about: About,
    /// The current log level of the server, as set by the gateway.
    level: tokio::sync::Mutex<Option<Level>>,
    held: Held,
    listeners: Arc<Listeners>,
}

/// A request in flight at the server, with the state for messages of the server that do not name it.
pub(crate) struct Running {
    /// The lowest log level that it wants, and the receiver of log messages.
    log: Mutex<Option<(Level, Hear)>>,
    /// The capabilities of its client.
    capabilities: Mutex<RawJson>,
    /// The task that holds the call, if its client can be asked for input.
    said: Option<mpsc::Sender<Said>>,
}

impl ToLegacy {
    /// Creates the bridge to a server from its answer to the handshake.
    pub(super) fn agreed(answer: &Message) -> Option<Self> {
        Some(Self {
            about: About::of(answer.result()?),
            level: tokio::sync::Mutex::default(),
            held: Held::default(),
            listeners: Arc::default(),
        })
    }

    /// Notifies subscribers of changed tools.
    pub(super) fn tools_changed(&self) {
        self.listeners.tell(&Message::notification("notifications/tools/list_changed", None));
    }

    pub(super) fn stop(&self) {
        self.held.stop();
    }

    /// Sets the log level of the server to the most verbose one that requests in flight want. A failure is not retried,
    /// because the request itself matters more.
    async fn log_for(&self, server: &Arc<Server>, request: &Message) {
        let Some(wanted) = request.meta_text(LOG_LEVEL).and_then(|text| Level::of(&text)) else { return };
        if !self.about.has("logging") {
            return;
        }
        let mut level = self.level.lock().await;
        let others = server.pending.all_running();
        let others = others.iter().filter_map(|running| running.level());
        let most = others.chain([wanted]).min().unwrap_or(wanted);
        if *level == Some(most) {
            return;
        }
        *level = Some(most);
        let name = RawJson::string(most.name());
        let params = object([("level", name.as_str())]);
        let request = Message::request(&no_id(), "logging/setLevel", Some(&params));
        let asked = async { server.pass(&request, Ears::default()).await?.answer().await };
        if let Ok(Ok(answer)) = timeout(HANDSHAKE, asked).await {
            server.handshake.answered(&request, &answer);
        }
    }
}

impl Running {
    fn new(request: &Message, hear: Option<Hear>, said: Option<mpsc::Sender<Said>>) -> Arc<Self> {
        let running = Self { log: Mutex::default(), capabilities: Mutex::new(json("{}")), said };
        running.goes_on(request, hear);
        Arc::new(running)
    }

    /// Attaches a new request of the client to the running call.
    fn goes_on(&self, request: &Message, hear: Option<Hear>) {
        let level = request.meta_text(LOG_LEVEL).and_then(|text| Level::of(&text));
        *self.log.lock() = level.zip(hear);
        *self.capabilities.lock() = words::capabilities(request);
    }

    fn level(&self) -> Option<Level> {
        self.log.lock().as_ref().map(|(level, _)| *level)
    }

    /// Returns the receiver of a log message of this level.
    fn hears(&self, logged: Level) -> Option<Hear> {
        self.log.lock().as_ref().filter(|(level, _)| *level <= logged).map(|(_, hear)| hear.clone())
    }
}

/// Sends a request of a modern client.
pub(super) async fn send(
    server: &Arc<Server>,
    bridge: &Arc<ToLegacy>,
    request: &Message,
    hear: Option<Hear>,
) -> Result<Place, Fault> {
    let method = request.method().unwrap_or_default();
    match method {
        "server/discover" => return Ok(server.answered(bridge.about.discovered())),
        "subscriptions/listen" => return Ok(listen::listen(server, bridge, request, hear).await),
        _ if words::is_only_older(method) => return Ok(server.answered(no_method(method))),
        _ if may_ask(method) && request.param("requestState").is_some() => {
            return Ok(held::go_on(server, bridge, request, hear).await);
        }
        _ => bridge.log_for(server, request).await,
    }
    if may_ask(method) {
        return held::call(server, bridge, request, hear).await;
    }
    let running = Running::new(request, hear.clone(), None);
    let ears = Ears { hear, running: Some(running) };
    let place = server.pass(&words::request(request), ears).await?;
    let (bridge, method) = (bridge.clone(), method.to_owned());
    Ok(place.turned(move |answer| bridge.about.answer(&method, &answer)))
}

/// Routes a notification of the server. Returns it if the client's connection gets it unchanged.
pub(super) fn told(
    server: &Arc<Server>,
    bridge: &ToLegacy,
    message: Message,
    (life, on): (Life, Option<u64>),
) -> Option<Message> {
    match message.method() {
        Some("notifications/message") => {
            let level = Level::of(&message.param_text("level")?)?;
            let running = server.pending.running(life, on);
            let mut hearing = running.iter().filter_map(|running| running.hears(level));
            match (hearing.next()?, hearing.next()) {
                (hear, None) => hear(&message),
                // Its request cannot be determined. On a line all requests share one receiver.
                (_, Some(_)) => return Some(message),
            }
            None
        }
        // The server cancels its own request.
        Some("notifications/cancelled") => {
            let asked = message.param("requestId")?;
            for running in server.pending.running(life, None) {
                if let Some(said) = &running.said {
                    let _ = said.try_send(Said::Withdrawn(asked.to_owned()));
                }
            }
            None
        }
        // Modern clients do not get these, or only through subscriptions.
        Some(
            "notifications/progress" | "notifications/elicitation/complete" | "notifications/tasks/status",
        ) => None,
        _ => (!bridge.listeners.tell(&message)).then_some(message),
    }
}

/// Routes a request of the server to the only call that it can belong to.
pub(super) async fn asked(server: &Arc<Server>, request: &Message, (life, on): (Life, Option<u64>)) {
    let Some(id) = request.id() else { return };
    let refused = match request.method() {
        Some("ping") => return server.answer(life, &nothing().rewrite().id(&id).finish()).await,
        method => for_one_call(server, method.unwrap_or_default(), request, (life, on)),
    };
    if let Err((code, why)) = refused {
        tracing::debug!(event = "bridge.refused", server = %server.name, why);
        server.answer(life, &Message::error_response(Some(&id), code, &why, None)).await;
    }
}

fn for_one_call(
    server: &Server,
    method: &str,
    request: &Message,
    (life, on): (Life, Option<u64>),
) -> Result<(), (i64, String)> {
    let running = server.pending.running(life, on);
    let mut calls = running.iter().filter_map(|running| Some((running, running.said.as_ref()?)));
    let (Some((running, said)), None) = (calls.next(), calls.next()) else {
        let why = "the client can only be asked while exactly one call of it runs";
        return Err((code::INVALID_REQUEST, why.to_owned()));
    };
    let capabilities = running.capabilities.lock().clone();
    can_be_asked(capabilities.as_str(), method, request.params())
        .map_err(|why| (code::METHOD_NOT_FOUND, why))?;
    said.try_send(Said::Asked(life, request.clone()))
        .map_err(|_| (code::INTERNAL_ERROR, "too many questions wait for the client".to_owned()))
}

/// Returns true if two requests are for the same call. A held call continues only with an equal request.
fn is_same(one: &Message, other: &Message) -> bool {
    let read = |message: &Message, name| {
        let text: Option<&str> = message.param(name);
        text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
    };
    let same = |name| read(one, name) == read(other, name);
    one.method() == other.method() && ["name", "uri", "arguments"].into_iter().all(same)
}

/// Returns the member of an object if it is an object itself.
fn inner<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    raw::get(object, name).filter(|value| value.starts_with('{'))
}

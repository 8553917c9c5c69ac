//! A client of the modern era and a server of the older one: the server is told once what the client says with each request,
//! and what it says and asks by itself is brought to the request that it belongs to.

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

/// A server of the older era behind clients of the modern one.
pub(super) struct ToLegacy {
    about: About,
    /// How much the server logs at present, as far as we told it.
    level: tokio::sync::Mutex<Option<Level>>,
    held: Held,
    listeners: Arc<Listeners>,
}

/// A request that runs at the server, as far as the server may say or ask something that does not name it.
pub(crate) struct Running {
    /// How much it wants to hear of what is logged.
    log: Mutex<Option<(Level, Hear)>>,
    /// What its client can be asked.
    capabilities: Mutex<RawJson>,
    /// Where it is waited for, if it can be asked anything.
    said: Option<mpsc::Sender<Said>>,
}

impl ToLegacy {
    /// A server that answered the handshake so.
    pub(super) fn agreed(answer: &Message) -> Option<Self> {
        Some(Self {
            about: About::of(answer.result()?),
            level: tokio::sync::Mutex::default(),
            held: Held::default(),
            listeners: Arc::default(),
        })
    }

    /// Tells those who listen that the server has other tools.
    pub(super) fn tools_changed(&self) {
        self.listeners.tell(&Message::notification("notifications/tools/list_changed", None));
    }

    pub(super) fn stop(&self) {
        self.held.stop();
    }

    /// Makes the server log as much as those want to hear who wait for it. A server that does not want to is not asked again
    /// and again: the request is what matters.
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

    /// It is waited for by this request now.
    fn goes_on(&self, request: &Message, hear: Option<Hear>) {
        let level = request.meta_text(LOG_LEVEL).and_then(|text| Level::of(&text));
        *self.log.lock() = level.zip(hear);
        *self.capabilities.lock() = words::capabilities(request);
    }

    fn level(&self) -> Option<Level> {
        self.log.lock().as_ref().map(|(level, _)| *level)
    }

    /// Who hears of something that is logged at this level.
    fn hears(&self, logged: Level) -> Option<Hear> {
        self.log.lock().as_ref().filter(|(level, _)| *level <= logged).map(|(_, hear)| hear.clone())
    }
}

/// Sends a request of a client of the modern era.
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

/// Something that the server tells; gives back what the client knows too.
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
                // Whose it is cannot be told; on a line all hear the same.
                (_, Some(_)) => return Some(message),
            }
            None
        }
        // It does not want the answer any more to what it asked.
        Some("notifications/cancelled") => {
            let asked = message.param("requestId")?;
            for running in server.pending.running(life, None) {
                if let Some(said) = &running.said {
                    let _ = said.try_send(Said::Withdrawn(asked.to_owned()));
                }
            }
            None
        }
        // Nobody listens for these in the modern era, or only those who said so.
        Some(
            "notifications/progress" | "notifications/elicitation/complete" | "notifications/tasks/status",
        ) => None,
        _ => (!bridge.listeners.tell(&message)).then_some(message),
    }
}

/// The server asks its client something: the client of the one call that it can be for.
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

/// Whether two requests are for the same: a call goes on only as what it began as.
fn is_same(one: &Message, other: &Message) -> bool {
    let read = |message: &Message, name| {
        let text: Option<&str> = message.param(name);
        text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
    };
    let same = |name| read(one, name) == read(other, name);
    one.method() == other.method() && ["name", "uri", "arguments"].into_iter().all(same)
}

/// The member of an object that is an object.
fn inner<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    raw::get(object, name).filter(|value| value.starts_with('{'))
}

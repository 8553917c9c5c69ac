//! The state that a restarted server has to be given again: the introduction of its client, its log level and its
//! subscriptions.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use steadfast_core::classify::AttemptFault;
use steadfast_core::id::Digest;
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage};
use tokio::time::timeout;

use super::{HANDSHAKE, PendingRequest};

/// The state that the client has set at the server so far.
#[derive(Debug, Default)]
pub(crate) struct Handshake(Mutex<HandshakeState>);

#[derive(Clone, Debug, Default)]
struct HandshakeState {
    /// The parameters of `initialize`. `None` in the modern era.
    initialize: Option<JsonText>,
    /// True if the client has sent anything. Before that there is nothing to repeat.
    is_started: bool,
    /// The combined settings of all clients.
    preferences: UpstreamPreferences,
    /// The digest of the last tool list, first page only.
    tools: Option<Digest>,
}

/// The messages for a new incarnation, in order.
pub(super) struct HandshakeMessages {
    pub(super) requests: Vec<RpcMessage>,
}

/// The settings of a server: the parameters of the requests that set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpstreamPreferences {
    /// The parameters of `logging/setLevel`.
    pub(crate) log_level: Option<JsonText>,
    /// The parameters of `resources/subscribe`, by resource.
    pub(crate) watched: BTreeMap<String, JsonText>,
}

/// The maximum number of subscriptions that are repeated.
const MOST_WATCHED: usize = 4096;

/// The handshake with a server, as stored.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct StoredHandshake {
    initialize: Option<Box<RawValue>>,
    log_level: Option<Box<RawValue>>,
    watched: BTreeMap<String, Box<RawValue>>,
}

impl StoredHandshake {
    /// Returns the `initialize` request of the client.
    pub(crate) fn initialize(&self) -> Option<RpcMessage> {
        let params = raw_json(self.initialize.as_deref()?)?;
        Some(RpcMessage::request(&RpcId::number(0), "initialize", Some(&params)))
    }

    /// Returns the settings of the client.
    pub(crate) fn preferences(&self) -> UpstreamPreferences {
        let watched = self.watched.iter().filter_map(|(uri, params)| Some((uri.clone(), raw_json(params)?)));
        UpstreamPreferences {
            log_level: self.log_level.as_deref().and_then(raw_json),
            watched: watched.collect(),
        }
    }
}

impl UpstreamPreferences {
    /// Returns the requests that apply these settings.
    pub(crate) fn requests(&self) -> impl Iterator<Item = RpcMessage> {
        let request =
            |method, params: &JsonText| RpcMessage::request(&RpcId::number(0), method, Some(params));
        let log_level = self.log_level.iter().map(move |params| request("logging/setLevel", params));
        log_level.chain(self.watched.values().map(move |params| request("resources/subscribe", params)))
    }
}

impl Handshake {
    /// Restores the handshake of an earlier process.
    pub(crate) fn restored(written: StoredHandshake) -> Self {
        let initialize = written.initialize.as_deref().and_then(raw_json);
        Self(Mutex::new(HandshakeState {
            initialize,
            is_started: true,
            preferences: written.preferences(),
            tools: None,
        }))
    }

    /// Returns the handshake in its stored form.
    pub(crate) fn written(&self) -> StoredHandshake {
        let preferences = self.0.lock().preferences.clone();
        self.written_for(preferences)
    }

    /// Returns the stored form for one client of a shared server, with its own settings.
    pub(crate) fn written_for(&self, preferences: UpstreamPreferences) -> StoredHandshake {
        let UpstreamPreferences { log_level, watched } = preferences;
        let initialize = self.initialize();
        let raw = |value: JsonText| RawValue::from_string(value.as_str().to_owned()).ok();
        StoredHandshake {
            initialize: initialize.and_then(raw),
            log_level: log_level.and_then(raw),
            watched: watched.into_iter().filter_map(|(uri, params)| Some((uri, raw(params)?))).collect(),
        }
    }

    /// Removes a subscription, so that it is not repeated.
    pub(crate) fn unwatched(&self, uri: &str) {
        self.0.lock().preferences.watched.remove(uri);
    }

    /// Returns true if there is anything to repeat.
    pub(crate) fn has_started(&self) -> bool {
        self.0.lock().is_started
    }

    /// Returns true if the client declared support for form elicitation.
    pub(crate) fn elicits(&self) -> bool {
        let state = self.0.lock();
        let params = state.initialize.as_ref().map(JsonText::as_str);
        params.and_then(|params| scan::get(params, "capabilities")).is_some_and(crate::protocol::elicits)
    }

    /// Records that a client of the modern era sent something.
    pub(crate) fn mark_started(&self) {
        self.0.lock().is_started = true;
    }

    /// Stores the `initialize` request for a server that is not reachable yet.
    pub(crate) fn intend(&self, initialize: &RpcMessage) {
        let mut state = self.0.lock();
        if state.initialize.is_none() {
            state.initialize = initialize.params_json();
            state.is_started = true;
        }
    }

    /// Returns the client's introduction in the legacy era.
    pub(super) fn initialize(&self) -> Option<JsonText> {
        self.0.lock().initialize.clone()
    }

    /// Returns the log level of a legacy client.
    pub(super) fn log_level(&self) -> Option<JsonText> {
        let state = self.0.lock();
        let level =
            state.preferences.log_level.as_ref().and_then(|params| scan::get(params.as_str(), "level"));
        level.and_then(|level| JsonText::parse(level.to_owned()).ok())
    }

    /// Returns the resources that a legacy client watches.
    pub(super) fn watched(&self) -> Vec<String> {
        self.0.lock().preferences.watched.keys().cloned().collect()
    }

    /// Records a successful answer of the server if it has to be repeated. Returns true if the state changed.
    pub(crate) fn answered(&self, request: &RpcMessage, response: &RpcMessage) -> bool {
        let (Some(method), Some(result)) = (request.method(), response.result()) else { return false };
        let params = || request.params_json();
        let mut state = self.0.lock();
        state.is_started = true;
        match method {
            "initialize" => state.initialize = params(),
            "logging/setLevel" => state.preferences.log_level = params(),
            "resources/subscribe" => {
                if let (Some(uri), Some(params)) = (request.param_text("uri"), params())
                    && state.preferences.watched.len() < MOST_WATCHED
                {
                    state.preferences.watched.insert(uri.into_owned(), params);
                }
            }
            "resources/unsubscribe" => {
                if let Some(uri) = request.param_text("uri") {
                    state.preferences.watched.remove(&*uri);
                }
            }
            "tools/list" if request.param("cursor").is_none() => {
                state.tools = tools(result);
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Returns the messages for a new incarnation, or `None` before any client sent something.
    pub(super) fn words(&self) -> Option<HandshakeMessages> {
        let state = self.0.lock();
        if !state.is_started {
            return None;
        }
        // The ids are assigned when they are sent.
        let request =
            |method, params: &JsonText| RpcMessage::request(&RpcId::number(0), method, Some(params));
        let initialize = state.initialize.iter().map(|params| request("initialize", params));
        Some(HandshakeMessages { requests: initialize.chain(state.preferences.requests()).collect() })
    }

    /// Returns true if a restarted server has other tools than those that its client knows.
    pub(super) async fn tools_changed<F>(&self, ask: impl FnOnce(RpcMessage) -> F) -> bool
    where
        F: Future<Output = Result<PendingRequest, AttemptFault>>,
    {
        let Some(known) = self.0.lock().tools else { return false };
        let listed = async {
            let mut place = ask(RpcMessage::request(&RpcId::number(0), "tools/list", None)).await.ok()?;
            place.answer().await.ok()
        };
        match timeout(HANDSHAKE, listed).await {
            Ok(Some(answer)) => answer.result().and_then(tools).is_some_and(|tools| tools != known),
            Ok(None) | Err(_) => false,
        }
    }
}

fn raw_json(value: &RawValue) -> Option<JsonText> {
    JsonText::parse(value.get().to_owned()).ok()
}

fn tools(result: &str) -> Option<Digest> {
    scan::get(result, "tools").map(|tools| Digest::of(tools.as_bytes()))
}

/// Returns the notification of a client that is ready.
pub(crate) fn initialized() -> RpcMessage {
    RpcMessage::notification("notifications/initialized", None)
}

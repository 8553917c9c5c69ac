//! Subscriptions of modern clients. A legacy server sends all notifications to its one client, once it was asked to
//! watch a resource. The gateway distributes them to the subscriptions that asked for them, with the id of each
//! subscription request.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_mcp::message::{Message, code};
use steadfast_mcp::raw::{self, RawJson};
use tokio::time::timeout;

use super::super::words::{list, strings};
use super::ToLegacy;
use crate::pieces::object;
use crate::server::bridge::no_id;
use crate::server::pending::Ears;
use crate::server::{HANDSHAKE, Hear, Life, Place, Server};

/// All subscriptions by request number.
#[derive(Default)]
pub(super) struct Listeners(Mutex<BTreeMap<u64, Listening>>);

struct Listening {
    hear: Hear,
    wants: Wants,
}

/// The filter of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wants {
    tools: bool,
    prompts: bool,
    resources: bool,
    watched: Vec<String>,
}

/// The maximum number of subscriptions.
const MOST_LISTENING: usize = 1024;
/// The maximum number of watched resources of one subscription.
const MOST_WATCHED: usize = 1024;

/// Starts a subscription. Its request has no response until it ends.
pub(super) async fn listen(
    server: &Arc<Server>,
    bridge: &ToLegacy,
    request: &Message,
    hear: Option<Hear>,
) -> Place {
    let filter = request.param("notifications").filter(|filter| filter.starts_with('{'));
    let (Some(filter), Some(hear)) = (filter, hear) else {
        return refused(server, code::INVALID_PARAMS, "the request has no notification filter");
    };
    if bridge.listeners.0.lock().len() >= MOST_LISTENING {
        return refused(server, code::INTERNAL_ERROR, "the limit of subscriptions is reached");
    }
    let has = |capability, part| bridge.about.has_within(capability, part);
    let asked = Wants::of(filter);
    let wants = Wants {
        tools: asked.tools && has("tools", "listChanged"),
        prompts: asked.prompts && has("prompts", "listChanged"),
        resources: asked.resources && has("resources", "listChanged"),
        watched: if has("resources", "subscribe") { asked.watched } else { Vec::new() },
    };
    let place = server.pending.enter(Life::NONE, Ears::default());
    let number = place.number;
    // Events during the acknowledgement may be missed: the client has no guarantee for them yet.
    let watched = watch(server, &bridge.listeners, wants.watched).await;
    let wants = Wants { watched, ..wants };
    hear(&wants.acknowledged());
    bridge.listeners.0.lock().insert(number, Listening { hear, wants });
    let until = Until { number, listeners: bridge.listeners.clone(), server: Arc::downgrade(server) };
    place.turned(move |answer| {
        drop(until);
        answer
    })
}

/// Subscribes to resources at the server. Returns those that the server accepted.
async fn watch(server: &Arc<Server>, listeners: &Listeners, uris: Vec<String>) -> Vec<String> {
    let mut watched = Vec::new();
    for uri in uris.into_iter().take(MOST_WATCHED) {
        if listeners.is_watched(&uri) || asked(server, "resources/subscribe", &uri).await {
            watched.push(uri);
        }
    }
    watched
}

/// Sends a subscription request for a resource. Returns true if the server accepted it.
async fn asked(server: &Arc<Server>, method: &str, uri: &str) -> bool {
    let uri = RawJson::string(uri);
    let params = object([("uri", uri.as_str())]);
    let request = Message::request(&no_id(), method, Some(&params));
    let asked = async { server.pass(&request, Ears::default()).await?.answer().await };
    match timeout(HANDSHAKE, asked).await {
        Ok(Ok(answer)) => server.handshake.answered(&request, &answer),
        Ok(Err(_)) | Err(_) => false,
    }
}

fn refused(server: &Arc<Server>, code: i64, why: &str) -> Place {
    server.answered(Message::error_response(Some(&no_id()), code, why, None))
}

impl Listeners {
    /// Sends a notification to its subscribers. Returns false if it is not one that clients subscribe to.
    pub(super) fn tell(&self, message: &Message) -> bool {
        let method = message.method().unwrap_or_default();
        let uri = message.param_text("uri").unwrap_or_default();
        let is_wanted: &dyn Fn(&Wants) -> bool = match method {
            "notifications/tools/list_changed" => &|wants| wants.tools,
            "notifications/prompts/list_changed" => &|wants| wants.prompts,
            "notifications/resources/list_changed" => &|wants| wants.resources,
            // The updated resource may be a part of a watched one.
            "notifications/resources/updated" => {
                &|wants| wants.watched.iter().any(|watched| uri.starts_with(watched.as_str()))
            }
            _ => return false,
        };
        let hearing: Vec<Hear> = {
            let listeners = self.0.lock();
            listeners.values().filter(|one| is_wanted(&one.wants)).map(|one| one.hear.clone()).collect()
        };
        for hear in hearing {
            hear(message);
        }
        true
    }

    fn is_watched(&self, uri: &str) -> bool {
        self.0.lock().values().any(|one| one.wants.watched.iter().any(|watched| watched == uri))
    }
}

impl Wants {
    fn of(filter: &str) -> Self {
        let is = |name| raw::get(filter, name) == Some("true");
        Self {
            tools: is("toolsListChanged"),
            prompts: is("promptsListChanged"),
            resources: is("resourcesListChanged"),
            watched: raw::get(filter, "resourceSubscriptions").map(strings).unwrap_or_default(),
        }
    }

    fn acknowledged(&self) -> Message {
        let flags = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        let flags = flags.into_iter().filter(|(_, is)| *is).map(|(name, _)| (name, "true"));
        let watched = list(&self.watched);
        let watched = (!self.watched.is_empty()).then_some(("resourceSubscriptions", watched.as_str()));
        let filter = object(flags.chain(watched));
        let params = object([("notifications", filter.as_str())]);
        Message::notification("notifications/subscriptions/acknowledged", Some(&params))
    }
}

/// Ends the subscription on drop.
struct Until {
    number: u64,
    listeners: Arc<Listeners>,
    server: Weak<Server>,
}

impl Drop for Until {
    fn drop(&mut self) {
        let gone = self.listeners.0.lock().remove(&self.number);
        let unwatched: Vec<String> = gone.map(|gone| gone.wants.watched).unwrap_or_default();
        let unwatched: Vec<_> = unwatched.into_iter().filter(|uri| !self.listeners.is_watched(uri)).collect();
        let (Some(server), Ok(runtime)) = (self.server.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        if !unwatched.is_empty() {
            runtime.spawn(async move {
                for uri in unwatched {
                    asked(&server, "resources/unsubscribe", &uri).await;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Message {
        Message::parse(text.to_owned(), usize::MAX).unwrap()
    }

    #[test]
    fn each_subscription_gets_only_its_own_notifications() {
        let heard: Arc<Mutex<Vec<(u64, String)>>> = Arc::default();
        let listeners = Listeners::default();
        for (number, filter) in [
            (1, r#"{"toolsListChanged":true,"promptsListChanged":false}"#),
            (2, r#"{"resourceSubscriptions":["a://b"],"toolsListChanged":true}"#),
            (3, "{}"),
        ] {
            let heard = heard.clone();
            let hear: Hear = Arc::new(move |message: &Message| {
                heard.lock().push((number, message.method().unwrap().to_owned()));
            });
            listeners.0.lock().insert(number, Listening { hear, wants: Wants::of(filter) });
        }
        let tell = |text: &str| {
            assert!(listeners.tell(&parsed(text)));
            heard.lock().drain(..).map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(tell(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#), [1, 2]);
        assert_eq!(tell(r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#), [0; 0]);
        let updated = |uri: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
            )
        };
        assert_eq!(tell(&updated("a://b")), [2]);
        assert_eq!(tell(&updated("a://b/c")), [2]);
        assert_eq!(tell(&updated("a://c")), [0; 0]);
        assert!(!listeners.tell(&parsed(r#"{"jsonrpc":"2.0","method":"vendor/news"}"#)));
    }

    #[test]
    fn the_acknowledgement_lists_the_delivered_notifications() {
        let wants = Wants::of(r#"{"toolsListChanged":true,"resourceSubscriptions":["a://b",7],"other":1}"#);
        assert_eq!(wants.watched, ["a://b"]);
        let told = wants.acknowledged();
        assert_eq!(
            told.param("notifications"),
            Some(r#"{"toolsListChanged":true,"resourceSubscriptions":["a://b"]}"#)
        );
        let none = Wants::of("{}").acknowledged();
        assert_eq!(none.param("notifications"), Some("{}"));
    }
}

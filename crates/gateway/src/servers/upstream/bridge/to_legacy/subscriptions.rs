//! Subscriptions of modern clients. A legacy server sends all notifications to its one client, once it was asked to
//! watch a resource. The gateway distributes them to the subscriptions that asked for them, with the id of each
//! subscription request.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};
use tokio::time::timeout;

use super::super::json_edits::{list, strings};
use super::LegacyBridge;
use crate::json_parts::object;
use crate::servers::upstream::bridge::no_id;
use crate::servers::upstream::receivers::NotificationReceivers;
use crate::servers::upstream::{Generation, HANDSHAKE, NotificationHandler, PendingRequest, UpstreamServer};

/// All subscriptions by request number.
#[derive(Default)]
pub(super) struct ClientSubscriptions(Mutex<BTreeMap<u64, ClientSubscription>>);

struct ClientSubscription {
    on_notification: NotificationHandler,
    filter: SubscriptionFilter,
}

/// The filter of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SubscriptionFilter {
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
    server: &Arc<UpstreamServer>,
    bridge: &LegacyBridge,
    request: &RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> PendingRequest {
    let filter = request.param("notifications").filter(|filter| filter.starts_with('{'));
    let (Some(filter), Some(on_notification)) = (filter, on_notification) else {
        return refused(server, code::INVALID_PARAMS, "the request has no notification filter");
    };
    if bridge.listeners.0.lock().len() >= MOST_LISTENING {
        return refused(server, code::INTERNAL_ERROR, "the limit of subscriptions is reached");
    }
    let has = |capability, part| bridge.about.has_within(capability, part);
    let requested = SubscriptionFilter::of(filter);
    let accepted = SubscriptionFilter {
        tools: requested.tools && has("tools", "listChanged"),
        prompts: requested.prompts && has("prompts", "listChanged"),
        resources: requested.resources && has("resources", "listChanged"),
        watched: if has("resources", "subscribe") { requested.watched } else { Vec::new() },
    };
    let place = server.pending.enter(Generation::NONE, NotificationReceivers::default());
    let number = place.number;
    // Events during the acknowledgement may be missed: the client has no guarantee for them yet.
    let watched = watch(server, &bridge.listeners, accepted.watched).await;
    let accepted = SubscriptionFilter { watched, ..accepted };
    on_notification(&accepted.acknowledged());
    bridge.listeners.0.lock().insert(number, ClientSubscription { on_notification, filter: accepted });
    let until =
        SubscriptionGuard { number, listeners: bridge.listeners.clone(), server: Arc::downgrade(server) };
    place.with_conversion(move |answer| {
        drop(until);
        answer
    })
}

/// Subscribes to resources at the server. Returns those that the server accepted.
async fn watch(
    server: &Arc<UpstreamServer>,
    listeners: &ClientSubscriptions,
    uris: Vec<String>,
) -> Vec<String> {
    let mut watched = Vec::new();
    for uri in uris.into_iter().take(MOST_WATCHED) {
        if listeners.is_watched(&uri) || request_subscription(server, "resources/subscribe", &uri).await {
            watched.push(uri);
        }
    }
    watched
}

/// Sends a subscription request for a resource. Returns true if the server accepted it.
async fn request_subscription(server: &Arc<UpstreamServer>, method: &str, uri: &str) -> bool {
    let uri = JsonText::string(uri);
    let params = object([("uri", uri.as_str())]);
    let request = RpcMessage::request(&no_id(), method, Some(&params));
    let exchange = async { server.pass(&request, NotificationReceivers::default()).await?.answer().await };
    match timeout(HANDSHAKE, exchange).await {
        Ok(Ok(answer)) => server.handshake.answered(&request, &answer),
        Ok(Err(_)) | Err(_) => false,
    }
}

fn refused(server: &Arc<UpstreamServer>, code: i64, reason: &str) -> PendingRequest {
    server.answered(RpcMessage::error_response(Some(&no_id()), code, reason, None))
}

impl ClientSubscriptions {
    /// Sends a notification to its subscribers. Returns false if it is not one that clients subscribe to.
    pub(super) fn notify(&self, message: &RpcMessage) -> bool {
        let method = message.method().unwrap_or_default();
        let uri = message.param_text("uri").unwrap_or_default();
        let is_wanted: &dyn Fn(&SubscriptionFilter) -> bool = match method {
            "notifications/tools/list_changed" => &|filter| filter.tools,
            "notifications/prompts/list_changed" => &|filter| filter.prompts,
            "notifications/resources/list_changed" => &|filter| filter.resources,
            // The updated resource may be a part of a watched one.
            "notifications/resources/updated" => {
                &|filter| filter.watched.iter().any(|watched| uri.starts_with(watched.as_str()))
            }
            _ => return false,
        };
        let handlers: Vec<NotificationHandler> = {
            let listeners = self.0.lock();
            listeners
                .values()
                .filter(|one| is_wanted(&one.filter))
                .map(|one| one.on_notification.clone())
                .collect()
        };
        for on_notification in handlers {
            on_notification(message);
        }
        true
    }

    fn is_watched(&self, uri: &str) -> bool {
        self.0.lock().values().any(|one| one.filter.watched.iter().any(|watched| watched == uri))
    }
}

impl SubscriptionFilter {
    fn of(filter: &str) -> Self {
        let is = |name| scan::get(filter, name) == Some("true");
        Self {
            tools: is("toolsListChanged"),
            prompts: is("promptsListChanged"),
            resources: is("resourcesListChanged"),
            watched: scan::get(filter, "resourceSubscriptions").map(strings).unwrap_or_default(),
        }
    }

    fn acknowledged(&self) -> RpcMessage {
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
        RpcMessage::notification("notifications/subscriptions/acknowledged", Some(&params))
    }
}

/// Ends the subscription on drop.
struct SubscriptionGuard {
    number: u64,
    listeners: Arc<ClientSubscriptions>,
    server: Weak<UpstreamServer>,
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        let removed = self.listeners.0.lock().remove(&self.number);
        let unwatched: Vec<String> = removed.map(|removed| removed.filter.watched).unwrap_or_default();
        let unwatched: Vec<_> = unwatched.into_iter().filter(|uri| !self.listeners.is_watched(uri)).collect();
        let (Some(server), Ok(runtime)) = (self.server.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        if !unwatched.is_empty() {
            runtime.spawn(async move {
                for uri in unwatched {
                    request_subscription(&server, "resources/unsubscribe", &uri).await;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RpcMessage {
        RpcMessage::parse(text.to_owned(), usize::MAX).unwrap()
    }

    #[test]
    fn each_subscription_gets_only_its_own_notifications() {
        let received: Arc<Mutex<Vec<(u64, String)>>> = Arc::default();
        let listeners = ClientSubscriptions::default();
        for (number, filter) in [
            (1, r#"{"toolsListChanged":true,"promptsListChanged":false}"#),
            (2, r#"{"resourceSubscriptions":["a://b"],"toolsListChanged":true}"#),
            (3, "{}"),
        ] {
            let received = received.clone();
            let on_notification: NotificationHandler = Arc::new(move |message: &RpcMessage| {
                received.lock().push((number, message.method().unwrap().to_owned()));
            });
            listeners.0.lock().insert(
                number,
                ClientSubscription { on_notification, filter: SubscriptionFilter::of(filter) },
            );
        }
        let notify = |text: &str| {
            assert!(listeners.notify(&parsed(text)));
            received.lock().drain(..).map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(notify(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#), [1, 2]);
        assert_eq!(notify(r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#), [0; 0]);
        let updated = |uri: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
            )
        };
        assert_eq!(notify(&updated("a://b")), [2]);
        assert_eq!(notify(&updated("a://b/c")), [2]);
        assert_eq!(notify(&updated("a://c")), [0; 0]);
        assert!(!listeners.notify(&parsed(r#"{"jsonrpc":"2.0","method":"vendor/news"}"#)));
    }

    #[test]
    fn the_acknowledgement_lists_the_delivered_notifications() {
        let filter = SubscriptionFilter::of(
            r#"{"toolsListChanged":true,"resourceSubscriptions":["a://b",7],"other":1}"#,
        );
        assert_eq!(filter.watched, ["a://b"]);
        let acknowledgement = filter.acknowledged();
        assert_eq!(
            acknowledgement.param("notifications"),
            Some(r#"{"toolsListChanged":true,"resourceSubscriptions":["a://b"]}"#)
        );
        let none = SubscriptionFilter::of("{}").acknowledged();
        assert_eq!(none.param("notifications"), Some("{}"));
    }
}

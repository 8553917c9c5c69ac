//! The subscription of the gateway at a modern server, on behalf of a legacy client that gets notifications without
//! asking. It exists while there is something to receive, and is renewed after a failure.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::with_client_info;
use crate::json_parts::object;
use crate::protocol::SUBSCRIPTION;
use crate::servers::upstream::bridge::no_id;
use crate::servers::upstream::{NotificationHandler, PendingRequest, ServerEvent, UpstreamServer};

/// The current subscription.
#[derive(Default)]
pub(super) struct UpstreamSubscription(Mutex<Option<(watch::Sender<Option<JsonText>>, AbortHandle)>>);

/// The first and the longest delay before a new subscription.
const RESUBSCRIBE_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The maximum number of unprocessed notifications. Further ones are dropped, as for a slow client.
const NOTIFICATION_CAPACITY: usize = 256;

impl UpstreamSubscription {
    /// Changes the filter of the subscription.
    pub(super) fn set_filter(&self, server: &Arc<UpstreamServer>, filter: Option<JsonText>) {
        let mut listening = self.0.lock();
        match &*listening {
            Some((filters, _)) => {
                filters.send_if_modified(|now| std::mem::replace(now, filter.clone()) != filter);
            }
            None => {
                let (sender, filters) = watch::channel(filter);
                let task = tokio::spawn(listen(Arc::downgrade(server), filters));
                *listening = Some((sender, task.abort_handle()));
            }
        }
    }

    pub(super) fn stop(&self) {
        if let Some((_, task)) = self.0.lock().take() {
            task.abort();
        }
    }
}

impl Drop for UpstreamSubscription {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn listen(server: Weak<UpstreamServer>, mut filters: watch::Receiver<Option<JsonText>>) {
    let (mut before, mut pause) = (None, RESUBSCRIBE_DELAYS.0);
    loop {
        let filter = filters.borrow_and_update().clone();
        let Some(opening) = server.upgrade() else { return };
        let (sender, notifications) = mpsc::channel(NOTIFICATION_CAPACITY);
        let on_notification: NotificationHandler =
            Arc::new(move |message: &RpcMessage| _ = sender.try_send(message.clone()));
        let now = match &filter {
            Some(filter) => opening.pass(&request(&opening, filter), Some(on_notification).into()).await.ok(),
            None => None,
        };
        // The new subscription starts before the old one ends, so that no notification is missed.
        if let Some(before) = before.take() {
            opening.cancel_at_server(&before).await;
        }
        drop(opening);
        let end = match (now, filter) {
            (Some(place), _) => forward_until_end(&server, place, notifications, &mut filters).await,
            (None, Some(_)) => SubscriptionEnd::Lost,
            (None, None) => match filters.changed().await {
                Ok(()) => SubscriptionEnd::Changed(None),
                Err(_) => return,
            },
        };
        match end {
            SubscriptionEnd::Changed(place) => (before, pause) = (place, RESUBSCRIBE_DELAYS.0),
            SubscriptionEnd::Refused => return,
            SubscriptionEnd::Lost => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RESUBSCRIBE_DELAYS.1);
            }
        }
    }
}

enum SubscriptionEnd {
    /// The filter has changed.
    Changed(Option<PendingRequest>),
    /// The server does not support it.
    Refused,
    /// The server is gone or has ended the subscription.
    Lost,
}

/// Forwards notifications until the subscription ends.
async fn forward_until_end(
    server: &Weak<UpstreamServer>,
    mut place: PendingRequest,
    mut notifications: mpsc::Receiver<RpcMessage>,
    filters: &mut watch::Receiver<Option<JsonText>>,
) -> SubscriptionEnd {
    loop {
        tokio::select! {
            // Notifications before the end are forwarded first.
            biased;
            Some(message) = notifications.recv() => {
                let Some(server) = server.upgrade() else { return SubscriptionEnd::Refused };
                if message.method() != Some("notifications/subscriptions/acknowledged") {
                    let bare = message.rewrite().without_meta(SUBSCRIPTION).finish();
                    server.notify_owner(ServerEvent::Notification(bare)).await;
                }
            }
            answer = place.answer() => return match answer.map(|answer| answer.error_code()) {
                Ok(Some(code::METHOD_NOT_FOUND | code::INVALID_PARAMS)) => SubscriptionEnd::Refused,
                Ok(_) | Err(_) => SubscriptionEnd::Lost,
            },
            changed = filters.changed() => return match changed {
                Ok(()) => SubscriptionEnd::Changed(Some(place)),
                Err(_) => SubscriptionEnd::Refused,
            },
        }
    }
}

fn request(server: &UpstreamServer, filter: &JsonText) -> RpcMessage {
    let params = object([("notifications", filter.as_str())]);
    with_client_info(server, &RpcMessage::request(&no_id(), "subscriptions/listen", Some(&params)))
}

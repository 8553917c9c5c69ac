//! The subscription of the gateway at a modern server, on behalf of a legacy client that gets notifications without
//! asking. It exists while there is something to receive, and is renewed after a failure.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_mcp::message::{Message, code};
use steadfast_mcp::raw::RawJson;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::dressed;
use crate::news::SUBSCRIPTION;
use crate::pieces::object;
use crate::server::bridge::no_id;
use crate::server::{FromServer, Hear, Place, Server};

/// The current subscription.
#[derive(Default)]
pub(super) struct Listening(Mutex<Option<(watch::Sender<Option<RawJson>>, AbortHandle)>>);

/// The first and the longest delay before a new subscription.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The maximum number of unprocessed notifications. Further ones are dropped, as for a slow client.
const NEWS: usize = 256;

impl Listening {
    /// Changes the filter of the subscription.
    pub(super) fn wants(&self, server: &Arc<Server>, filter: Option<RawJson>) {
        let mut listening = self.0.lock();
        match &*listening {
            Some((wanted, _)) => {
                wanted.send_if_modified(|now| std::mem::replace(now, filter.clone()) != filter);
            }
            None => {
                let (sender, wanted) = watch::channel(filter);
                let task = tokio::spawn(listen(Arc::downgrade(server), wanted));
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

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn listen(server: Weak<Server>, mut wanted: watch::Receiver<Option<RawJson>>) {
    let (mut before, mut pause) = (None, AGAIN.0);
    loop {
        let filter = wanted.borrow_and_update().clone();
        let Some(opening) = server.upgrade() else { return };
        let (sender, news) = mpsc::channel(NEWS);
        let hear: Hear = Arc::new(move |message: &Message| _ = sender.try_send(message.clone()));
        let now = match &filter {
            Some(filter) => opening.pass(&request(&opening, filter), Some(hear).into()).await.ok(),
            None => None,
        };
        // The new subscription starts before the old one ends, so that no notification is missed.
        if let Some(before) = before.take() {
            opening.withdraw(&before).await;
        }
        drop(opening);
        let ended = match (now, filter) {
            (Some(place), _) => hear_out(&server, place, news, &mut wanted).await,
            (None, Some(_)) => Ended::Lost,
            (None, None) => match wanted.changed().await {
                Ok(()) => Ended::Changed(None),
                Err(_) => return,
            },
        };
        match ended {
            Ended::Changed(place) => (before, pause) = (place, AGAIN.0),
            Ended::Refused => return,
            Ended::Lost => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN.1);
            }
        }
    }
}

enum Ended {
    /// The filter has changed.
    Changed(Option<Place>),
    /// The server does not support it.
    Refused,
    /// The server is gone or has ended the subscription.
    Lost,
}

/// Forwards notifications until the subscription ends.
async fn hear_out(
    server: &Weak<Server>,
    mut place: Place,
    mut news: mpsc::Receiver<Message>,
    wanted: &mut watch::Receiver<Option<RawJson>>,
) -> Ended {
    loop {
        tokio::select! {
            // Notifications before the end are forwarded first.
            biased;
            Some(message) = news.recv() => {
                let Some(server) = server.upgrade() else { return Ended::Refused };
                if message.method() != Some("notifications/subscriptions/acknowledged") {
                    let bare = message.rewrite().without_meta(SUBSCRIPTION).finish();
                    server.heard(FromServer::Told(bare)).await;
                }
            }
            answer = place.answer() => return match answer.map(|answer| answer.error_code()) {
                Ok(Some(code::METHOD_NOT_FOUND | code::INVALID_PARAMS)) => Ended::Refused,
                Ok(_) | Err(_) => Ended::Lost,
            },
            changed = wanted.changed() => return match changed {
                Ok(()) => Ended::Changed(Some(place)),
                Err(_) => Ended::Refused,
            },
        }
    }
}

fn request(server: &Server, filter: &RawJson) -> Message {
    let params = object([("notifications", filter.as_str())]);
    dressed(server, &Message::request(&no_id(), "subscriptions/listen", Some(&params)))
}

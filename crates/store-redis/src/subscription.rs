//! Waiting for records: one subscription per process, and one watcher per record for any number of followers.
//!
//! A watcher subscribes, reads the record, and then sleeps until a message arrives, the lease expires, or the polling
//! interval has passed. A message can be lost, so polling with jitter is the fallback. The end of a record is
//! published on a channel with its own name. So a process receives only messages that it waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::Value;
use redis::aio::{PubSubSink, PubSubStream};
use steadfast_core::dedupe::Lease;
use steadfast_core::key::RecordKey;
use steadfast_store::{DocumentKind, DocumentName, StoreError, StoreEvent};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::health::HealthPart;
use crate::link::{CommandTarget, RedisLink};
use crate::names::{KeyDistrict, KeyNames};
use crate::value::RecordHead;
use crate::{RedisInner, random};

/// The most followed records. Further followers poll.
const MOST_WATCHED: usize = 65_536;
/// The most queued requests for the subscription.
const REQUEST_CAPACITY: usize = 1024;
/// The approximate interval before the first poll, and the longest interval.
const POLLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// A subscription without input for this long gets a ping.
const PING_AFTER: Duration = Duration::from_secs(10);
/// Timeout of the subscription, unless the command timeout is longer.
const ANSWER: Duration = Duration::from_secs(2);
/// Pause before a new attempt to subscribe.
const PAUSE: Duration = Duration::from_millis(250);

/// The subscription, with the followed records.
#[derive(Debug)]
pub(crate) struct RedisSubscription {
    watched: Arc<WatchedRecords>,
    requests: mpsc::Sender<SubscriptionRequest>,
    ready: watch::Receiver<Option<Result<(), StoreError>>>,
}

type WatchedRecords = Mutex<HashMap<RecordKey, WatchedRecord>>;

#[derive(Debug)]
struct WatchedRecord {
    /// Dropped at the end, which wakes all followers.
    settled: Arc<watch::Sender<()>>,
    /// Notified by a message on the channel.
    notified: Arc<Notify>,
}

#[derive(Debug)]
enum SubscriptionRequest {
    /// Subscribes to this record. The sender is dropped once that is done, or cannot be done for now.
    Listen(RecordKey, oneshot::Sender<()>),
    /// Unsubscribes from this record.
    Leave(RecordKey),
}

impl RedisSubscription {
    pub(crate) fn new(
        link: Arc<RedisLink>,
        names: KeyNames,
        instance: String,
        events: broadcast::Sender<StoreEvent>,
    ) -> Self {
        let watched = Arc::new(WatchedRecords::default());
        let (requests, received) = mpsc::channel(REQUEST_CAPACITY);
        let (announce, ready) = watch::channel(None);
        let listener = SubscriptionListener {
            link,
            names,
            instance,
            events,
            watched: Arc::clone(&watched),
            requests: received,
        };
        tokio::spawn(listener.run(announce));
        Self { watched, requests, ready }
    }

    /// Returns when the first subscription is active, or with the reason why it is not.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        let mut ready = self.ready.clone();
        let result = match ready.wait_for(Option::is_some).await {
            Ok(ready) => ready.clone(),
            // The listener ends only with the store.
            Err(_) => None,
        };
        result.unwrap_or(Ok(()))
    }
}

impl RedisInner {
    /// Waits until the record has no owner.
    pub(crate) async fn settled(self: &Arc<Self>, key: RecordKey) {
        let follower = {
            let mut watched = self.subscription.watched.lock();
            match watched.get(&key) {
                Some(wait) => Some(wait.settled.subscribe()),
                None if watched.len() >= MOST_WATCHED => None,
                None => {
                    let (settled, follower) = watch::channel(());
                    let (settled, notify) = (Arc::new(settled), Arc::new(Notify::new()));
                    watched.insert(
                        key,
                        WatchedRecord { settled: Arc::clone(&settled), notified: Arc::clone(&notify) },
                    );
                    tokio::spawn(Arc::clone(self).watch(key, settled, notify));
                    Some(follower)
                }
            }
        };
        match follower {
            // Nothing is ever sent. This returns when the sender is dropped.
            Some(mut follower) => drop(follower.changed().await),
            None => self.wait(key, &Notify::new()).await,
        }
    }

    /// Waits for all followers, and ends when the record is settled or they have all gone.
    async fn watch(self: Arc<Self>, key: RecordKey, settled: Arc<watch::Sender<()>>, notify: Arc<Notify>) {
        let (sender, listening) = oneshot::channel();
        if self.subscription.requests.send(SubscriptionRequest::Listen(key, sender)).await.is_ok() {
            // An error means that it is done. Without a subscription, polling is used.
            let _ = timeout(PAUSE, listening).await;
        }
        loop {
            let over = tokio::select! {
                () = self.wait(key, &notify) => true,
                () = settled.closed() => false,
            };
            let mut watched = self.subscription.watched.lock();
            // A new follower may have come while the last one left.
            if over || settled.receiver_count() == 0 {
                watched.remove(&key);
                break;
            }
        }
        drop(settled);
        let _ = self.subscription.requests.send(SubscriptionRequest::Leave(key)).await;
    }

    async fn wait(self: &Arc<Self>, key: RecordKey, notify: &Notify) {
        let mut pause = POLLS.0;
        while let Some(left) = self.holds(key).await {
            tokio::select! {
                () = notify.notified() => return,
                () = sleep(left.min(random::around(pause))) => {}
            }
            pause = (pause * 2).min(POLLS.1);
        }
    }

    /// Returns how long the record is still held, or `None` if it is not, or if this is unknown.
    async fn holds(self: &Arc<Self>, key: RecordKey) -> Option<Duration> {
        let mut command = redis::cmd("GETRANGE");
        command.arg(self.names.record(&key)).arg(0).arg(RecordHead::LENGTH - 1);
        let Ok(Value::BulkString(value)) =
            self.ask(&command, CommandTarget::Keys).await.map(|reply| reply.value)
        else {
            return None;
        };
        match RecordHead::read(&value)?.holds? {
            Lease::Record => Some(Duration::MAX),
            Lease::Until(until) => {
                let now = self.clock(KeyDistrict::of(&key)).now(Instant::now()).unwrap_or_else(|| self.now());
                // One millisecond more, so that the estimate has passed it too.
                Some(until.since(now))
                    .filter(|left| !left.is_zero())
                    .map(|left| left + Duration::from_millis(1))
            }
        }
    }
}

/// Runs the subscription.
struct SubscriptionListener {
    link: Arc<RedisLink>,
    names: KeyNames,
    instance: String,
    events: broadcast::Sender<StoreEvent>,
    watched: Arc<WatchedRecords>,
    requests: mpsc::Receiver<SubscriptionRequest>,
}

/// The reason why listening ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenEnd {
    /// The subscription broke.
    Broken,
    /// The store was dropped.
    Over,
}

impl SubscriptionListener {
    async fn run(mut self, announce: watch::Sender<Option<Result<(), StoreError>>>) {
        for attempt in 0_usize.. {
            match self.subscribed(attempt).await {
                Ok((sink, stream)) => {
                    announce.send_replace(Some(Ok(())));
                    self.link.health().mark_working(HealthPart::Subscription);
                    if self.listen(sink, stream).await == ListenEnd::Over {
                        return;
                    }
                    self.link
                        .health()
                        .mark_broken(HealthPart::Subscription, "the subscription to redis broke");
                }
                Err(error) => {
                    let reason = error.to_string();
                    announce.send_if_modified(|known| {
                        let first = known.is_none();
                        if first {
                            *known = Some(Err(error));
                        }
                        first
                    });
                    self.link.health().mark_broken(HealthPart::Subscription, reason);
                }
            }
            if self.rest().await == ListenEnd::Over {
                return;
            }
        }
    }

    /// Subscribes to changes of documents and to all followed records.
    async fn subscribed(&self, attempt: usize) -> Result<(PubSubSink, PubSubStream), StoreError> {
        let (mut sink, stream) = self.link.listen(attempt).await?.split();
        let mut channels = vec![self.names.changes()];
        channels.extend(self.watched.lock().keys().map(|key| self.names.record(key)));
        self.subscribe(&mut sink, &channels).await?;
        Ok((sink, stream))
    }

    async fn listen(&mut self, mut sink: PubSubSink, mut stream: PubSubStream) -> ListenEnd {
        loop {
            let mut pending = Vec::new();
            tokio::select! {
                count = self.requests.recv_many(&mut pending, REQUEST_CAPACITY) => {
                    if count == 0 {
                        return ListenEnd::Over;
                    }
                    if self.grant(&mut sink, pending).await.is_err() {
                        return ListenEnd::Broken;
                    }
                }
                message = stream.next() => match message {
                    Some(message) => self.dispatch(message.get_channel_name(), message.get_payload_bytes()),
                    None => return ListenEnd::Broken,
                },
                () = sleep(PING_AFTER) => {
                    if !matches!(timeout(self.patience(), sink.ping::<Value>()).await, Ok(Ok(_))) {
                        return ListenEnd::Broken;
                    }
                }
            }
        }
    }

    /// Handles requests while there is no subscription: followers need not wait for it, because they poll.
    async fn rest(&mut self) -> ListenEnd {
        let pause = sleep(random::around(PAUSE));
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return ListenEnd::Broken,
                request = self.requests.recv() => match request {
                    Some(SubscriptionRequest::Listen(..) | SubscriptionRequest::Leave(_)) => {}
                    None => return ListenEnd::Over,
                },
            }
        }
    }

    async fn grant(
        &self,
        sink: &mut PubSubSink,
        requests: Vec<SubscriptionRequest>,
    ) -> Result<(), StoreError> {
        let (mut added, mut removed, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            match request {
                SubscriptionRequest::Listen(key, sender) => {
                    added.push(self.names.record(&key));
                    senders.push(sender);
                }
                SubscriptionRequest::Leave(key) => removed.push(key),
            }
        }
        if !added.is_empty() {
            self.subscribe(sink, &added).await?;
        }
        drop(senders);
        let removed: Vec<String> = {
            let watched = self.watched.lock();
            // A new follower may have come meanwhile.
            removed
                .iter()
                .filter(|key| !watched.contains_key(key))
                .map(|key| self.names.record(key))
                .collect()
        };
        if !removed.is_empty() {
            answered(timeout(self.patience(), sink.unsubscribe(&removed)).await)?;
        }
        Ok(())
    }

    async fn subscribe(&self, sink: &mut PubSubSink, channels: &[String]) -> Result<(), StoreError> {
        answered(timeout(self.patience(), sink.subscribe(channels)).await)
    }

    /// Returns the timeout of the subscription.
    fn patience(&self) -> Duration {
        self.link.command_timeout().max(ANSWER)
    }

    fn dispatch(&self, channel: &str, message: &[u8]) {
        if let Some(key) = self.names.key_of(channel.as_bytes()) {
            if let Some(wait) = self.watched.lock().get(&key) {
                wait.notified.notify_one();
            }
        } else if let Some(name) = self.changed(message) {
            // There may be no receivers.
            let _ = self.events.send(StoreEvent::DocumentChanged(name));
        }
    }

    /// Returns the document that another process has changed.
    fn changed(&self, message: &[u8]) -> Option<DocumentName> {
        let (instance, name) = std::str::from_utf8(message).ok()?.split_once(' ')?;
        let (kind, id) = name.split_once('/')?;
        let kind = DocumentKind::from_name(kind)?;
        (instance != self.instance).then(|| DocumentName { kind, id: id.into() })
    }
}

fn answered<E>(result: Result<redis::RedisResult<()>, E>) -> Result<(), StoreError> {
    let timed_out = |_| Err(redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
    result.unwrap_or_else(timed_out).map_err(|error| {
        crate::fault::store_error(&error, crate::fault::CommandStage::Connecting, "the subscription")
    })
}

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
use steadfast_core::key::Key;
use steadfast_store::{DocumentKind, DocumentName, News, StoreError};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::health::Part;
use crate::link::{Link, Way};
use crate::names::{District, Names};
use crate::value::Head;
use crate::{Inner, random};

/// The most followed records. Further followers poll.
const MOST_WATCHED: usize = 65_536;
/// The most queued requests for the subscription.
const WISHES: usize = 1024;
/// The approximate interval before the first poll, and the longest interval.
const POLLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// A subscription without input for this long gets a ping.
const SILENCE: Duration = Duration::from_secs(10);
/// Timeout of the subscription, unless the command timeout is longer.
const ANSWER: Duration = Duration::from_secs(2);
/// Pause before a new attempt to subscribe.
const PAUSE: Duration = Duration::from_millis(250);

/// The subscription, with the followed records.
#[derive(Debug)]
pub(crate) struct Ears {
    watched: Arc<Watched>,
    wishes: mpsc::Sender<Wish>,
    ready: watch::Receiver<Option<Result<(), StoreError>>>,
}

type Watched = Mutex<HashMap<Key, Wait>>;

#[derive(Debug)]
struct Wait {
    /// Dropped at the end, which wakes all followers.
    settled: Arc<watch::Sender<()>>,
    /// Notified by a message on the channel.
    told: Arc<Notify>,
}

#[derive(Debug)]
enum Wish {
    /// Subscribes to this record. The sender is dropped once that is done, or cannot be done for now.
    Listen(Key, oneshot::Sender<()>),
    /// Unsubscribes from this record.
    Leave(Key),
}

impl Ears {
    pub(crate) fn new(
        link: Arc<Link>,
        names: Names,
        instance: String,
        news: broadcast::Sender<News>,
    ) -> Self {
        let watched = Arc::new(Watched::default());
        let (wishes, received) = mpsc::channel(WISHES);
        let (announce, ready) = watch::channel(None);
        let listener =
            Listener { link, names, instance, news, watched: Arc::clone(&watched), wishes: received };
        tokio::spawn(listener.run(announce));
        Self { watched, wishes, ready }
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

impl Inner {
    /// Waits until the record has no owner any more.
    pub(crate) async fn settled(self: &Arc<Self>, key: Key) {
        let follower = {
            let mut watched = self.ears.watched.lock();
            match watched.get(&key) {
                Some(wait) => Some(wait.settled.subscribe()),
                None if watched.len() >= MOST_WATCHED => None,
                None => {
                    let (settled, follower) = watch::channel(());
                    let (settled, told) = (Arc::new(settled), Arc::new(Notify::new()));
                    watched.insert(key, Wait { settled: Arc::clone(&settled), told: Arc::clone(&told) });
                    tokio::spawn(Arc::clone(self).watch(key, settled, told));
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
    async fn watch(self: Arc<Self>, key: Key, settled: Arc<watch::Sender<()>>, told: Arc<Notify>) {
        let (sender, listening) = oneshot::channel();
        if self.ears.wishes.send(Wish::Listen(key, sender)).await.is_ok() {
            // An error means that it is done. Without a subscription, polling is used.
            let _ = timeout(PAUSE, listening).await;
        }
        loop {
            let over = tokio::select! {
                () = self.wait(key, &told) => true,
                () = settled.closed() => false,
            };
            let mut watched = self.ears.watched.lock();
            // A new follower may have come while the last one left.
            if over || settled.receiver_count() == 0 {
                watched.remove(&key);
                break;
            }
        }
        drop(settled);
        let _ = self.ears.wishes.send(Wish::Leave(key)).await;
    }

    async fn wait(self: &Arc<Self>, key: Key, told: &Notify) {
        let mut pause = POLLS.0;
        while let Some(left) = self.holds(key).await {
            tokio::select! {
                () = told.notified() => return,
                () = sleep(left.min(random::around(pause))) => {}
            }
            pause = (pause * 2).min(POLLS.1);
        }
    }

    /// Returns how long the record is still held, or `None` if it is not, or if this is unknown.
    async fn holds(self: &Arc<Self>, key: Key) -> Option<Duration> {
        let mut command = redis::cmd("GETRANGE");
        command.arg(self.names.record(&key)).arg(0).arg(Head::LENGTH - 1);
        let Ok(Value::BulkString(value)) = self.ask(&command, Way::Keys).await.map(|reply| reply.value)
        else {
            return None;
        };
        match Head::read(&value)?.holds? {
            Lease::Record => Some(Duration::MAX),
            Lease::Until(until) => {
                let now = self.clock(District::of(&key)).now(Instant::now()).unwrap_or_else(|| self.now());
                // One millisecond more, so that the estimate has passed it too.
                Some(until.since(now))
                    .filter(|left| !left.is_zero())
                    .map(|left| left + Duration::from_millis(1))
            }
        }
    }
}

/// Runs the subscription.
struct Listener {
    link: Arc<Link>,
    names: Names,
    instance: String,
    news: broadcast::Sender<News>,
    watched: Arc<Watched>,
    wishes: mpsc::Receiver<Wish>,
}

/// The reason why listening ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The subscription broke.
    Broken,
    /// The store was dropped.
    Over,
}

impl Listener {
    async fn run(mut self, announce: watch::Sender<Option<Result<(), StoreError>>>) {
        for attempt in 0_usize.. {
            match self.subscribed(attempt).await {
                Ok((sink, stream)) => {
                    announce.send_replace(Some(Ok(())));
                    self.link.health().works(Part::Ears);
                    if self.listen(sink, stream).await == Ended::Over {
                        return;
                    }
                    self.link.health().broke(Part::Ears, "the subscription to redis broke");
                }
                Err(error) => {
                    let why = error.to_string();
                    announce.send_if_modified(|known| {
                        let first = known.is_none();
                        if first {
                            *known = Some(Err(error));
                        }
                        first
                    });
                    self.link.health().broke(Part::Ears, why);
                }
            }
            if self.rest().await == Ended::Over {
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

    async fn listen(&mut self, mut sink: PubSubSink, mut stream: PubSubStream) -> Ended {
        loop {
            let mut wished = Vec::new();
            tokio::select! {
                count = self.wishes.recv_many(&mut wished, WISHES) => {
                    if count == 0 {
                        return Ended::Over;
                    }
                    if self.grant(&mut sink, wished).await.is_err() {
                        return Ended::Broken;
                    }
                }
                message = stream.next() => match message {
                    Some(message) => self.hear(message.get_channel_name(), message.get_payload_bytes()),
                    None => return Ended::Broken,
                },
                () = sleep(SILENCE) => {
                    if !matches!(timeout(self.patience(), sink.ping::<Value>()).await, Ok(Ok(_))) {
                        return Ended::Broken;
                    }
                }
            }
        }
    }

    /// Handles requests while there is no subscription: followers need not wait for it, because they poll.
    async fn rest(&mut self) -> Ended {
        let pause = sleep(random::around(PAUSE));
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return Ended::Broken,
                wish = self.wishes.recv() => match wish {
                    Some(Wish::Listen(..) | Wish::Leave(_)) => {}
                    None => return Ended::Over,
                },
            }
        }
    }

    async fn grant(&self, sink: &mut PubSubSink, wishes: Vec<Wish>) -> Result<(), StoreError> {
        let (mut come, mut go, mut asked) = (Vec::new(), Vec::new(), Vec::new());
        for wish in wishes {
            match wish {
                Wish::Listen(key, sender) => {
                    come.push(self.names.record(&key));
                    asked.push(sender);
                }
                Wish::Leave(key) => go.push(key),
            }
        }
        if !come.is_empty() {
            self.subscribe(sink, &come).await?;
        }
        drop(asked);
        let go: Vec<String> = {
            let watched = self.watched.lock();
            // A new follower may have come meanwhile.
            go.iter().filter(|key| !watched.contains_key(key)).map(|key| self.names.record(key)).collect()
        };
        if !go.is_empty() {
            answered(timeout(self.patience(), sink.unsubscribe(&go)).await)?;
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

    fn hear(&self, channel: &str, message: &[u8]) {
        if let Some(key) = self.names.key_of(channel.as_bytes()) {
            if let Some(wait) = self.watched.lock().get(&key) {
                wait.told.notify_one();
            }
        } else if let Some(name) = self.changed(message) {
            // There may be no receivers.
            let _ = self.news.send(News::DocumentChanged(name));
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
        crate::fault::store_error(&error, crate::fault::Stage::Connecting, "the subscription")
    })
}

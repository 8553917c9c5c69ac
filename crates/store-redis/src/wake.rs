//! Waiting for others: one subscription per process, and one watcher per record however many follow it.
//!
//! A watcher subscribes, looks for itself, and then sleeps until it is told, the lease ends, or a while has passed: a
//! message can be lost, and a poll with jitter makes up for it. Records tell their end on a channel of their own name,
//! so a process hears of nothing that nobody here waits for.

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

/// Records that are followed at the same time; whoever comes then polls for itself.
const MOST_WATCHED: usize = 65_536;
/// Wishes that wait for the subscription.
const WISHES: usize = 1024;
/// The first poll comes after about this, the later ones after up to the other.
const POLLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// A subscription on which nothing was heard for so long is asked whether it lives.
const SILENCE: Duration = Duration::from_secs(10);
/// How long the subscription may take to answer, if a command may not take longer.
const ANSWER: Duration = Duration::from_secs(2);
/// The pause before it is made again.
const PAUSE: Duration = Duration::from_millis(250);

/// What is listened for.
#[derive(Debug)]
pub(crate) struct Ears {
    watched: Arc<Watched>,
    wishes: mpsc::Sender<Wish>,
    ready: watch::Receiver<Option<Result<(), StoreError>>>,
}

type Watched = Mutex<HashMap<Key, Wait>>;

#[derive(Debug)]
struct Wait {
    /// Dropped when it is over, which wakes all who follow.
    settled: Arc<watch::Sender<()>>,
    /// The channel has spoken.
    told: Arc<Notify>,
}

#[derive(Debug)]
enum Wish {
    /// To hear of this record. The sender is dropped when that is so, or will not be for now.
    Listen(Key, oneshot::Sender<()>),
    /// Not to any more.
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

    /// Comes back when the first subscription stands, or with the reason why not.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        let mut ready = self.ready.clone();
        let result = match ready.wait_for(Option::is_some).await {
            Ok(ready) => ready.clone(),
            // The listener ends with the store only.
            Err(_) => None,
        };
        result.unwrap_or(Ok(()))
    }
}

impl Inner {
    /// Waits until nobody holds the record any more.
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
            // Nothing is ever sent: it comes back when the sender is gone.
            Some(mut follower) => drop(follower.changed().await),
            None => self.wait(key, &Notify::new()).await,
        }
    }

    /// Waits on behalf of all who follow, and ends when they are woken or have all gone.
    async fn watch(self: Arc<Self>, key: Key, settled: Arc<watch::Sender<()>>, told: Arc<Notify>) {
        let (sender, listening) = oneshot::channel();
        if self.ears.wishes.send(Wish::Listen(key, sender)).await.is_ok() {
            // An error is the sign. Where the subscription is being made again, polling has to do.
            let _ = timeout(PAUSE, listening).await;
        }
        loop {
            let over = tokio::select! {
                () = self.wait(key, &told) => true,
                () = settled.closed() => false,
            };
            let mut watched = self.ears.watched.lock();
            // Somebody may have come while the last one went.
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

    /// How long a record is still held; nothing if it is not, or if nobody can say.
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
                // A millisecond more, so that the estimate has passed it too.
                Some(until.since(now))
                    .filter(|left| !left.is_zero())
                    .map(|left| left + Duration::from_millis(1))
            }
        }
    }
}

/// Keeps the subscription.
struct Listener {
    link: Arc<Link>,
    names: Names,
    instance: String,
    news: broadcast::Sender<News>,
    watched: Arc<Watched>,
    wishes: mpsc::Receiver<Wish>,
}

/// Why listening ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The subscription broke.
    Broken,
    /// The store is gone.
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

    /// A subscription to changes of documents and to everything that somebody waits for.
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

    /// While there is no subscription nobody has to wait for it: they poll.
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
            // Somebody else may have begun to wait for it meanwhile.
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

    /// How long the subscription may take to answer.
    fn patience(&self) -> Duration {
        self.link.command_timeout().max(ANSWER)
    }

    fn hear(&self, channel: &str, message: &[u8]) {
        if let Some(key) = self.names.key_of(channel.as_bytes()) {
            if let Some(wait) = self.watched.lock().get(&key) {
                wait.told.notify_one();
            }
        } else if let Some(name) = self.changed(message) {
            // Nobody has to listen.
            let _ = self.news.send(News::DocumentChanged(name));
        }
    }

    /// The document that another process says it has changed.
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

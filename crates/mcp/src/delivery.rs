//! Delivery of final responses: detects if a response has reached its client.
//!
//! A call is over only when its client has the response. A response that could not be delivered is kept until the
//! call is sent again.
//!
//! A response counts as delivered if it was handed to the operating system, and after that the connection
//!
//! - brought another message (other than a cancellation of that call), or
//! - stayed open for a grace period, or
//! - was closed by a client that had read every byte.
//!
//! A connection that ends in any other way has lost the response. If the stream can be resumed, another connection
//! may carry the response later. A client may also cancel a call after its response arrived, perhaps on another
//! connection. The session handles that.
//!
//! A [`Link`] is one connection. The writer of a response holds its [`Tracker`]. The task that waits for the delivery
//! holds the [`Delivery`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::message::{Id, Message};

/// Time that a connection must stay open after the write for the response to count as delivered (DESIGN, D10).
pub const GRACE: Duration = Duration::from_secs(5);

/// The final state of a response's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The response has reached the client.
    Delivered(Proof),
    /// The response was lost: no client has it.
    Lost,
}

/// The evidence that a response was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The connection that carried the response brought another message.
    Heard,
    /// The connection that carried the response was still open after the grace period.
    StillOpen,
    /// The client closed the connection that carried the response, after it had read every byte.
    Taken,
}

/// Waits until it is known if one response was delivered. Dropping it has no effect.
#[derive(Debug)]
pub struct Delivery {
    stage: watch::Receiver<Stage>,
    news: News,
}

impl Delivery {
    /// Does the same as [`Delivery::settled`], and also calls the delivery callback.
    pub async fn settled_telling(self, grace: Duration) -> Fate {
        let news = self.news.clone();
        let fate = self.settled(grace).await;
        match fate {
            Fate::Delivered(_) => news.tell(),
            Fate::Lost => {}
        }
        fate
    }

    /// Returns the final state, at the latest `grace` after the last write. A resumable stream ends only with its
    /// session: until then, the response can still be fetched, so this keeps waiting.
    pub async fn settled(mut self, grace: Duration) -> Fate {
        loop {
            let stage = self.stage.borrow_and_update().clone();
            match stage {
                Stage::Waiting => {
                    if self.stage.changed().await.is_err() {
                        return Fate::Lost;
                    }
                }
                Stage::Known(proof) => return Fate::Delivered(proof),
                Stage::Written { link, at } => {
                    tokio::select! {
                        biased;
                        // Delivered, or written again on another connection.
                        Ok(()) = self.stage.changed() => {}
                        () = link.closed() => {
                            // The connection broke after the write. Only another connection can carry the response
                            // now.
                            if self.stage.changed().await.is_err() {
                                return Fate::Lost;
                            }
                        }
                        () = tokio::time::sleep_until(at + grace) => return Fate::Delivered(Proof::StillOpen),
                    }
                }
            }
        }
    }

    /// Waits until the response was written for the first time. Returns false if it never will be.
    pub async fn written(&mut self) -> bool {
        self.stage.wait_for(|stage| !matches!(stage, Stage::Waiting)).await.is_ok()
    }
}

/// Tracks one response on its way to the client. If the last copy is dropped before the write, the response is lost.
#[derive(Clone, Debug)]
pub struct Tracker {
    id: Option<Id>,
    stage: watch::Sender<Stage>,
    news: News,
}

impl Tracker {
    /// Creates a tracker for the response to the request with this id.
    pub fn new(id: Option<Id>) -> (Self, Delivery) {
        Self::telling(id, None)
    }

    /// Does the same as [`Tracker::new`], with a delivery callback. The callback runs as soon as the delivery is
    /// known. If a message proves the delivery, the callback runs before that message is passed on, because the
    /// message may repeat the same call. So the callback must be given before the response is sent.
    pub fn telling(id: Option<Id>, arrived: Option<Arrived>) -> (Self, Delivery) {
        let (stage, seen) = watch::channel(Stage::Waiting);
        let news = News(Arc::new(Mutex::new(arrived)));
        (Self { id, stage, news: news.clone() }, Delivery { stage: seen, news })
    }

    fn arrived(&self, proof: Proof) {
        self.stage.send_replace(Stage::Known(proof));
        self.news.tell();
    }
}

/// A callback that runs when a response was delivered.
pub type Arrived = Box<dyn FnOnce() + Send>;

/// A delivery callback that runs at most once.
#[derive(Clone)]
struct News(Arc<Mutex<Option<Arrived>>>);

impl News {
    fn tell(&self) {
        let arrived = self.0.lock().take();
        if let Some(arrived) = arrived {
            arrived();
        }
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("News").field(&self.0.lock().is_some()).finish()
    }
}

#[derive(Clone, Debug)]
enum Stage {
    Waiting,
    Written { link: Link, at: Instant },
    Known(Proof),
}

/// The delivery state of one connection. Clones share it.
///
/// The reader of the connection must call [`Link::close`] at its end. The HTTP server of this crate does so. For
/// lines, the reader of the lines must do it.
#[derive(Clone, Debug)]
pub struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    open: watch::Sender<bool>,
    /// True while the writer has responses that are not known to be with the operating system.
    writing: watch::Sender<bool>,
    /// True once a request on this connection was admitted.
    admitted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Handed to the writer, but not to the operating system.
    handed: Vec<Tracker>,
    /// Written, with no message received since.
    written: VecDeque<Tracker>,
}

/// Number of written responses of one connection for which the next message counts. Older ones count as delivered by
/// time only.
const MOST_WRITTEN: usize = 256;

/// Longest time that an incoming message waits for a concurrent write to end. A write takes microseconds, unless the
/// client does not read. On a busy machine, the writer may have to wait before it can record the write.
const WRITING: Duration = Duration::from_millis(250);

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// Creates the state of an open connection.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            open: watch::Sender::new(true),
            writing: watch::Sender::new(false),
            admitted: AtomicBool::new(false),
        }))
    }

    /// Marks the connection as authenticated: a request on it was admitted.
    pub fn admit(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }

    /// Returns true if a request on this connection was admitted.
    pub fn is_admitted(&self) -> bool {
        self.0.admitted.load(Ordering::Relaxed)
    }

    /// Records that a response was put into the buffers of this connection. The next [`Link::flushed`] confirms the
    /// write.
    pub fn handed(&self, tracker: Tracker) {
        self.0.state.lock().handed.push(tracker);
        self.0.writing.send_replace(true);
    }

    /// Records that everything handed over so far is with the operating system.
    pub fn flushed(&self) {
        let mut state = self.0.state.lock();
        if state.handed.is_empty() {
            return;
        }
        let at = Instant::now();
        let handed = std::mem::take(&mut state.handed);
        self.0.writing.send_replace(false);
        if !self.is_open() {
            // The connection is already closed, so no later event can prove the delivery.
            drop(state);
            return;
        }
        for tracker in handed {
            tracker.stage.send_replace(Stage::Written { link: self.clone(), at });
            if state.written.len() >= MOST_WRITTEN {
                state.written.pop_front();
            }
            state.written.push_back(tracker);
        }
    }

    /// Does the same as [`Link::heard`], for a connection that is read and written by different tasks. A fast client
    /// can read a response and send its next message before the writer has recorded the write. So this waits for the
    /// writer, but only for a short time, because a client may not read at all.
    pub async fn heard_beside_writing(&self, message: &Message) {
        let mut writing = self.0.writing.subscribe();
        let _ = tokio::time::timeout(WRITING, writing.wait_for(|writing| !writing)).await;
        self.heard(message);
    }

    /// Records a message from the client: everything written before has arrived, except a response that the message
    /// cancels.
    pub fn heard(&self, message: &Message) {
        let mut heard = Vec::new();
        self.0.state.lock().written.retain(|tracker| {
            let is_cancel = tracker.id.as_ref().is_some_and(|id| message.cancels(id));
            if !is_cancel {
                heard.push(tracker.clone());
            }
            is_cancel
        });
        heard.iter().for_each(|tracker| tracker.arrived(Proof::Heard));
    }

    /// Records other input from the client, such as a request for a stream.
    pub fn heard_something(&self) {
        let heard = std::mem::take(&mut self.0.state.lock().written);
        heard.iter().for_each(|tracker| tracker.arrived(Proof::Heard));
    }

    /// Records that the client closed the connection after it had read everything.
    pub fn taken(&self) {
        let taken = std::mem::take(&mut self.0.state.lock().written);
        taken.iter().for_each(|tracker| tracker.arrived(Proof::Taken));
    }

    /// Returns true if a response was written and its delivery is not known yet.
    pub fn is_in_doubt(&self) -> bool {
        !self.0.state.lock().written.is_empty()
    }

    /// Records that the connection has ended.
    pub fn close(&self) {
        self.0.open.send_replace(false);
        self.0.writing.send_replace(false);
        let state = std::mem::take(&mut *self.0.state.lock());
        // Trackers without other owners are dropped here, outside the lock.
        drop(state);
    }

    /// Returns true if the connection is open, as far as it is known.
    pub fn is_open(&self) -> bool {
        *self.0.open.borrow()
    }

    /// Waits for the end of the connection.
    pub async fn closed(&self) {
        let mut open = self.0.open.subscribe();
        // The sender lives in `self`, so only the value ends this wait.
        let _ = open.wait_for(|open| !open).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::parse(text.to_owned(), 1000).unwrap()
    }

    fn answer(link: &Link) -> Delivery {
        let (tracker, delivery) = Tracker::new(Some(Id::number(7)));
        link.handed(tracker);
        link.flushed();
        delivery
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_delivered_when_its_client_read_all_of_it_and_closed() {
        let link = Link::new();
        let delivery = answer(&link);
        link.taken();
        link.close();
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Taken));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_delivered_when_its_connection_brings_another_message() {
        let link = Link::new();
        let delivery = answer(&link);
        link.heard(&message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#));
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Heard));
    }

    /// If the callback came later, the next call would count as a repetition of a call whose response was lost, and
    /// would get that response instead of running.
    #[tokio::test(start_paused = true)]
    async fn a_delivery_is_recorded_before_the_message_that_proves_it_is_handled() {
        let link = Link::new();
        let told = Arc::new(Mutex::new(0));
        let answer = || {
            let told = told.clone();
            let arrived: Arrived = Box::new(move || *told.lock() += 1);
            let (tracker, delivery) = Tracker::telling(Some(Id::number(7)), Some(arrived));
            link.handed(tracker);
            link.flushed();
            delivery
        };
        let first = answer();
        link.heard(&message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#));
        assert_eq!(*told.lock(), 1, "at once, whoever waits for it or not");
        assert_eq!(first.settled_telling(GRACE).await, Fate::Delivered(Proof::Heard));
        assert_eq!(*told.lock(), 1, "and once");
        // Delivered by time alone, and lost.
        assert_eq!(answer().settled_telling(GRACE).await, Fate::Delivered(Proof::StillOpen));
        assert_eq!(*told.lock(), 2);
        let lost = answer();
        link.close();
        assert_eq!(lost.settled_telling(GRACE).await, Fate::Lost);
        assert_eq!(*told.lock(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_before_the_write_is_recorded_proves_delivery() {
        let link = Link::new();
        let (tracker, delivery) = Tracker::new(Some(Id::number(7)));
        link.handed(tracker);
        let ping = message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#);
        tokio::join!(link.heard_beside_writing(&ping), async { link.flushed() });
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Heard));
        // A client that does not read delays others only for a short time, and proves nothing.
        let (tracker, delivery) = Tracker::new(Some(Id::number(7)));
        link.handed(tracker);
        let began = Instant::now();
        link.heard_beside_writing(&ping).await;
        assert_eq!(began.elapsed(), WRITING);
        link.close();
        assert_eq!(delivery.settled(GRACE).await, Fate::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_of_the_call_itself_proves_nothing_and_of_another_call_does() {
        let link = Link::new();
        let delivery = answer(&link);
        let cancel = |id: &str| {
            message(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            ))
        };
        link.heard(&cancel("7"));
        link.close();
        assert_eq!(delivery.settled(GRACE).await, Fate::Lost);
        let link = Link::new();
        let delivery = answer(&link);
        link.heard(&cancel("9"));
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Heard));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_delivered_when_the_connection_is_open_five_seconds_after_the_write() {
        let link = Link::new();
        let (tracker, delivery) = Tracker::new(None);
        let start = Instant::now();
        link.handed(tracker);
        let (fate, ()) = tokio::join!(delivery.settled(GRACE), async {
            tokio::time::advance(Duration::from_secs(60)).await;
            link.flushed();
        });
        assert_eq!(fate, Fate::Delivered(Proof::StillOpen));
        assert_eq!(start.elapsed().as_secs(), 65, "counted from the write");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_lost_with_a_connection_that_breaks_too_early_or_before_the_write() {
        let link = Link::new();
        let delivery = answer(&link);
        tokio::time::advance(Duration::from_millis(4900)).await;
        link.close();
        assert_eq!(delivery.settled(GRACE).await, Fate::Lost);
        let link = Link::new();
        let (tracker, mut delivery) = Tracker::new(None);
        link.handed(tracker);
        link.close();
        assert!(!delivery.written().await);
        assert_eq!(delivery.settled(GRACE).await, Fate::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resumable_response_can_be_delivered_on_another_connection() {
        let (first, second) = (Link::new(), Link::new());
        let (tracker, delivery) = Tracker::new(None);
        first.handed(tracker.clone());
        first.flushed();
        let waiting = tokio::spawn(delivery.settled(GRACE));
        first.close();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it can still be fetched");
        second.handed(tracker);
        second.flushed();
        second.heard_something();
        assert_eq!(waiting.await.unwrap(), Fate::Delivered(Proof::Heard));
    }

    #[tokio::test(start_paused = true)]
    async fn pending_deliveries_of_a_connection_are_bounded_and_older_ones_are_decided_by_time() {
        let link = Link::new();
        let mut deliveries: VecDeque<_> = (0..MOST_WRITTEN + 1).map(|_| answer(&link)).collect();
        assert_eq!(link.0.state.lock().written.len(), MOST_WRITTEN);
        link.heard_something();
        let (oldest, newest) = (deliveries.pop_front().unwrap(), deliveries.pop_back().unwrap());
        assert_eq!(newest.settled(GRACE).await, Fate::Delivered(Proof::Heard));
        assert_eq!(oldest.settled(GRACE).await, Fate::Delivered(Proof::StillOpen));
    }
}

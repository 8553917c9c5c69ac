//! Whether a final answer has arrived.
//!
//! A call that was answered is over only when its client has the answer: one that could not be delivered waits for the
//! call to be issued again. What can be known is this: the answer was handed to the operating system, and then the
//! connection brought another message (other than a cancel of that very call), or stayed open for a while, or was ended
//! by a client that had taken all of it. A connection that ends in another way before that has lost the answer; where
//! the stream can be resumed, another one may carry it later. Whether the client still wants what has arrived is for the
//! session to know: a cancel may come on another connection.
//!
//! A [`Link`] is one connection. Whoever writes an answer holds its [`Tracker`]; whoever wants to know holds the
//! [`Delivery`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::message::{Id, Message};

/// How long a connection must stay open after the write for the answer to count as delivered (DESIGN, D10).
pub const GRACE: Duration = Duration::from_secs(5);

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has arrived.
    Delivered(Proof),
    /// Nobody has it.
    Lost,
}

/// Why an answer counts as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The connection that carried it brought another message.
    Heard,
    /// The connection that carried it was still open after the grace time.
    StillOpen,
    /// The connection that carried it was ended by its client, who had taken every byte.
    Taken,
}

/// Waits for what becomes of one answer. Dropping it changes nothing.
#[derive(Debug)]
pub struct Delivery {
    stage: watch::Receiver<Stage>,
    news: News,
}

impl Delivery {
    /// The same as [`Delivery::settled`], and tells whoever wants to hear of the arrival.
    pub async fn settled_telling(self, grace: Duration) -> Fate {
        let news = self.news.clone();
        let fate = self.settled(grace).await;
        match fate {
            Fate::Delivered(_) => news.tell(),
            Fate::Lost => {}
        }
        fate
    }

    /// What became of the answer, known at the latest `grace` after its last write. It lasts as long as the answer can
    /// still be fetched: a stream that can be resumed is given up when its session is.
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
                        // Heard, or written once more on another connection.
                        Ok(()) = self.stage.changed() => {}
                        () = link.closed() => {
                            // Written on a connection that broke: only another one can carry it now.
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

    /// Waits until the answer was written for the first time; false if it never will be.
    pub async fn written(&mut self) -> bool {
        self.stage.wait_for(|stage| !matches!(stage, Stage::Waiting)).await.is_ok()
    }
}

/// Follows one answer on its way out. When the last copy is dropped before the answer was written, it is lost.
#[derive(Clone, Debug)]
pub struct Tracker {
    id: Option<Id>,
    stage: watch::Sender<Stage>,
    news: News,
}

impl Tracker {
    /// For the answer to the request of this id.
    pub fn new(id: Option<Id>) -> (Self, Delivery) {
        Self::telling(id, None)
    }

    /// The same; `arrived` is done the moment the arrival is known: when a message proves it, before anybody gets to see that
    /// message. Whoever reads it may already be asked for the same once more, so it has to be said before the answer goes
    /// out what is to be done then.
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

/// What is to be done when an answer has arrived.
pub type Arrived = Box<dyn FnOnce() + Send>;

/// The same, once.
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

/// One connection, as far as deliveries are concerned. Copies are the same connection.
///
/// Whoever notices that the connection has ended must [`Link::close`] it; the HTTP server of this crate does, and for lines
/// whoever reads them does at their end.
#[derive(Clone, Debug)]
pub struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    open: watch::Sender<bool>,
    /// Whether an answer is with whoever writes, and not yet with the operating system as far as we were told.
    writing: watch::Sender<bool>,
    /// True once a request that came over it was admitted.
    admitted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Handed to whoever writes, not yet to the operating system.
    handed: Vec<Tracker>,
    /// Written, and nothing was heard since.
    written: VecDeque<Tracker>,
}

/// So many written answers of one connection are watched for a next message; of older ones, only the time tells.
const MOST_WRITTEN: usize = 256;

/// How long a message waits for the end of a write beside it. A write takes microseconds, unless the client does not read;
/// but whoever wrote may have to wait for its turn before it can say so, on a machine with much to do.
const WRITING: Duration = Duration::from_millis(250);

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// A connection that is open.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            open: watch::Sender::new(true),
            writing: watch::Sender::new(false),
            admitted: AtomicBool::new(false),
        }))
    }

    /// Marks the connection as authenticated: a request that came over it was admitted.
    pub fn admit(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }

    /// Returns true if a request that came over the connection was admitted.
    pub fn is_admitted(&self) -> bool {
        self.0.admitted.load(Ordering::Relaxed)
    }

    /// An answer goes into the buffers of this connection; the next [`Link::flushed`] will have written it.
    pub fn handed(&self, tracker: Tracker) {
        self.0.state.lock().handed.push(tracker);
        self.0.writing.send_replace(true);
    }

    /// All that was handed over so far is with the operating system.
    pub fn flushed(&self) {
        let mut state = self.0.state.lock();
        if state.handed.is_empty() {
            return;
        }
        let at = Instant::now();
        let handed = std::mem::take(&mut state.handed);
        self.0.writing.send_replace(false);
        if !self.is_open() {
            // Written to somebody who has gone: nothing will tell of it any more.
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

    /// The same as [`Link::heard`] where one task reads and another writes. A client that is quick has read an answer and
    /// sent its next message before whoever wrote the answer gets to say so; they are waited for, but not for a client
    /// that does not read.
    pub async fn heard_beside_writing(&self, message: &Message) {
        let mut writing = self.0.writing.subscribe();
        let _ = tokio::time::timeout(WRITING, writing.wait_for(|writing| !writing)).await;
        self.heard(message);
    }

    /// The connection brought a message: what was written before it has arrived, unless it cancels that very call.
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

    /// The connection brought something that is no message, such as the request for a stream.
    pub fn heard_something(&self) {
        let heard = std::mem::take(&mut self.0.state.lock().written);
        heard.iter().for_each(|tracker| tracker.arrived(Proof::Heard));
    }

    /// The client has ended the connection after it had taken all that was written.
    pub fn taken(&self) {
        let taken = std::mem::take(&mut self.0.state.lock().written);
        taken.iter().for_each(|tracker| tracker.arrived(Proof::Taken));
    }

    /// Whether an answer was written of which nobody knows whether it has arrived.
    pub fn is_in_doubt(&self) -> bool {
        !self.0.state.lock().written.is_empty()
    }

    /// The connection has ended.
    pub fn close(&self) {
        self.0.open.send_replace(false);
        self.0.writing.send_replace(false);
        let state = std::mem::take(&mut *self.0.state.lock());
        // Trackers that nobody else holds end here, outside the lock.
        drop(state);
    }

    /// Whether the connection is still open, as far as we know.
    pub fn is_open(&self) -> bool {
        *self.0.open.borrow()
    }

    /// Waits for the end of the connection.
    pub async fn closed(&self) {
        let mut open = self.0.open.subscribe();
        // The sender lives in `self`, so this ends by the value only.
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
    async fn an_answer_has_arrived_when_its_client_took_all_of_it_and_went() {
        let link = Link::new();
        let delivery = answer(&link);
        link.taken();
        link.close();
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Taken));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_arrived_when_its_connection_brings_another_message() {
        let link = Link::new();
        let delivery = answer(&link);
        link.heard(&message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#));
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Heard));
    }

    /// Told later, the next call would be taken for one whose answer got lost, and given that answer instead of running.
    #[tokio::test(start_paused = true)]
    async fn an_arrival_is_told_before_the_message_that_proves_it_can_be_acted_on() {
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
        // By time alone, and not at all.
        assert_eq!(answer().settled_telling(GRACE).await, Fate::Delivered(Proof::StillOpen));
        assert_eq!(*told.lock(), 2);
        let lost = answer();
        link.close();
        assert_eq!(lost.settled_telling(GRACE).await, Fate::Lost);
        assert_eq!(*told.lock(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_before_the_writer_has_said_so_proves_what_was_written() {
        let link = Link::new();
        let (tracker, delivery) = Tracker::new(Some(Id::number(7)));
        link.handed(tracker);
        let ping = message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#);
        tokio::join!(link.heard_beside_writing(&ping), async { link.flushed() });
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Heard));
        // Somebody who does not read holds nobody up for long, and proves nothing.
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
    async fn an_answer_has_arrived_when_the_connection_is_open_five_seconds_after_the_write() {
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
    async fn an_answer_is_lost_with_a_connection_that_breaks_too_early_or_before_the_write() {
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
    async fn an_answer_that_is_kept_to_be_resumed_can_arrive_on_another_connection() {
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
    async fn what_a_connection_remembers_is_bounded_and_the_rest_is_told_by_time() {
        let link = Link::new();
        let mut deliveries: VecDeque<_> = (0..MOST_WRITTEN + 1).map(|_| answer(&link)).collect();
        assert_eq!(link.0.state.lock().written.len(), MOST_WRITTEN);
        link.heard_something();
        let (oldest, newest) = (deliveries.pop_front().unwrap(), deliveries.pop_back().unwrap());
        assert_eq!(newest.settled(GRACE).await, Fate::Delivered(Proof::Heard));
        assert_eq!(oldest.settled(GRACE).await, Fate::Delivered(Proof::StillOpen));
    }
}

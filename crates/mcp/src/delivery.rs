//! Whether a final answer has arrived.
//!
//! A call that was answered is over only when its client has the answer: one that could not be delivered waits for the
//! call to be issued again. What can be known is this: the answer was handed to the operating system, and then the
//! connection brought another message (other than a cancel of that very call), or stayed open for a while. A connection
//! that ends before that has lost the answer; where the stream can be resumed, another one may carry it later.
//!
//! A [`Link`] is one connection. Whoever writes an answer holds its [`Tracker`]; whoever wants to know holds the
//! [`Delivery`].

use std::collections::VecDeque;
use std::sync::Arc;
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
}

/// Waits for what becomes of one answer. Dropping it changes nothing.
#[derive(Debug)]
pub struct Delivery(watch::Receiver<Stage>);

impl Delivery {
    /// What became of the answer, known at the latest `grace` after its last write. It lasts as long as the answer can
    /// still be fetched: a stream that can be resumed is given up when its session is.
    pub async fn settled(mut self, grace: Duration) -> Fate {
        loop {
            let stage = self.0.borrow_and_update().clone();
            match stage {
                Stage::Waiting => {
                    if self.0.changed().await.is_err() {
                        return Fate::Lost;
                    }
                }
                Stage::Heard => return Fate::Delivered(Proof::Heard),
                Stage::Written { link, at } => {
                    tokio::select! {
                        biased;
                        // Heard, or written once more on another connection.
                        Ok(()) = self.0.changed() => {}
                        () = link.closed() => {
                            // Written on a connection that broke: only another one can carry it now.
                            if self.0.changed().await.is_err() {
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
        self.0.wait_for(|stage| !matches!(stage, Stage::Waiting)).await.is_ok()
    }
}

/// Follows one answer on its way out. When the last copy is dropped before the answer was written, it is lost.
#[derive(Clone, Debug)]
pub struct Tracker {
    id: Option<Id>,
    stage: watch::Sender<Stage>,
}

impl Tracker {
    /// For the answer to the request of this id.
    pub fn new(id: Option<Id>) -> (Self, Delivery) {
        let (stage, seen) = watch::channel(Stage::Waiting);
        (Self { id, stage }, Delivery(seen))
    }
}

#[derive(Clone, Debug)]
enum Stage {
    Waiting,
    Written { link: Link, at: Instant },
    Heard,
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

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// A connection that is open.
    pub fn new() -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), open: watch::Sender::new(true) }))
    }

    /// An answer goes into the buffers of this connection; the next [`Link::flushed`] will have written it.
    pub fn handed(&self, tracker: Tracker) {
        self.0.state.lock().handed.push(tracker);
    }

    /// All that was handed over so far is with the operating system.
    pub fn flushed(&self) {
        let mut state = self.0.state.lock();
        if state.handed.is_empty() {
            return;
        }
        let at = Instant::now();
        let handed = std::mem::take(&mut state.handed);
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

    /// The connection brought a message: what was written before it has arrived, unless it cancels that very call.
    pub fn heard(&self, message: &Message) {
        let mut state = self.0.state.lock();
        state.written.retain(|tracker| {
            let is_cancel = tracker.id.as_ref().is_some_and(|id| message.cancels(id));
            if !is_cancel {
                tracker.stage.send_replace(Stage::Heard);
            }
            is_cancel
        });
    }

    /// The connection brought something that is no message, such as the request for a stream.
    pub fn heard_something(&self) {
        for tracker in self.0.state.lock().written.drain(..) {
            tracker.stage.send_replace(Stage::Heard);
        }
    }

    /// The connection has ended.
    pub fn close(&self) {
        self.0.open.send_replace(false);
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
    async fn an_answer_has_arrived_when_its_connection_brings_another_message() {
        let link = Link::new();
        let delivery = answer(&link);
        link.heard(&message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#));
        assert_eq!(delivery.settled(GRACE).await, Fate::Delivered(Proof::Heard));
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

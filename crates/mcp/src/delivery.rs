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
//! A [`DeliveryLink`] is one connection. The writer of a response holds its [`DeliveryTracker`]. The task that waits for the delivery
//! holds the [`PendingDelivery`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::message::{RpcId, RpcMessage};

/// Time that a connection must stay open after the write for the response to count as delivered (DESIGN, D10).
pub const GRACE: Duration = Duration::from_secs(5);

/// The final state of a response's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The response has reached the client.
    Delivered(DeliveryProof),
    /// The response was lost: no client has it.
    Lost,
}

/// The evidence that a response was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryProof {
    /// The connection that carried the response brought another message.
    NextMessage,
    /// The connection that carried the response was still open after the grace period.
    StillOpen,
    /// The client closed the connection that carried the response, after it had read every byte.
    ClosedByClient,
}

/// Waits until it is known if one response was delivered. Dropping it has no effect.
#[derive(Debug)]
pub struct PendingDelivery {
    stage: watch::Receiver<DeliveryStage>,
    callback: SharedDeliveryCallback,
}

impl PendingDelivery {
    /// Does the same as [`PendingDelivery::settled`], and also calls the delivery callback.
    pub async fn settled_with_callback(self, grace: Duration) -> DeliveryOutcome {
        let callback = self.callback.clone();
        let fate = self.settled(grace).await;
        match fate {
            DeliveryOutcome::Delivered(_) => callback.run_once(),
            DeliveryOutcome::Lost => {}
        }
        fate
    }

    /// Returns the final state, at the latest `grace` after the last write. A resumable stream ends only with its
    /// session: until then, the response can still be fetched, so this keeps waiting.
    pub async fn settled(mut self, grace: Duration) -> DeliveryOutcome {
        loop {
            let stage = self.stage.borrow_and_update().clone();
            match stage {
                DeliveryStage::Waiting => {
                    if self.stage.changed().await.is_err() {
                        return DeliveryOutcome::Lost;
                    }
                }
                DeliveryStage::Known(proof) => return DeliveryOutcome::Delivered(proof),
                DeliveryStage::Written { link, at } => {
                    tokio::select! {
                        biased;
                        // Delivered, or written again on another connection.
                        Ok(()) = self.stage.changed() => {}
                        () = link.closed() => {
                            // The connection broke after the write. Only another connection can carry the response
                            // now.
                            if self.stage.changed().await.is_err() {
                                return DeliveryOutcome::Lost;
                            }
                        }
                        () = tokio::time::sleep_until(at + grace) => return DeliveryOutcome::Delivered(DeliveryProof::StillOpen),
                    }
                }
            }
        }
    }

    /// Waits until the response was written for the first time. Returns false if it never will be.
    pub async fn written(&mut self) -> bool {
        self.stage.wait_for(|stage| !matches!(stage, DeliveryStage::Waiting)).await.is_ok()
    }
}

/// Tracks one response on its way to the client. If the last copy is dropped before the write, the response is lost.
#[derive(Clone, Debug)]
pub struct DeliveryTracker {
    id: Option<RpcId>,
    stage: watch::Sender<DeliveryStage>,
    callback: SharedDeliveryCallback,
}

impl DeliveryTracker {
    /// Creates a tracker for the response to the request with this id.
    pub fn new(id: Option<RpcId>) -> (Self, PendingDelivery) {
        Self::with_callback(id, None)
    }

    /// Does the same as [`DeliveryTracker::new`], with a delivery callback. The callback runs as soon as the delivery is
    /// known. If a message proves the delivery, the callback runs before that message is passed on, because the
    /// message may repeat the same call. So the callback must be given before the response is sent.
    pub fn with_callback(id: Option<RpcId>, arrived: Option<DeliveryCallback>) -> (Self, PendingDelivery) {
        let (stage, stages) = watch::channel(DeliveryStage::Waiting);
        let callback = SharedDeliveryCallback(Arc::new(Mutex::new(arrived)));
        (Self { id, stage, callback: callback.clone() }, PendingDelivery { stage: stages, callback })
    }

    fn arrived(&self, proof: DeliveryProof) {
        self.stage.send_replace(DeliveryStage::Known(proof));
        self.callback.run_once();
    }
}

/// A callback that runs when a response was delivered.
pub type DeliveryCallback = Box<dyn FnOnce() + Send>;

/// A delivery callback that runs at most once.
#[derive(Clone)]
struct SharedDeliveryCallback(Arc<Mutex<Option<DeliveryCallback>>>);

impl SharedDeliveryCallback {
    fn run_once(&self) {
        let arrived = self.0.lock().take();
        if let Some(arrived) = arrived {
            arrived();
        }
    }
}

impl fmt::Debug for SharedDeliveryCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("News").field(&self.0.lock().is_some()).finish()
    }
}

#[derive(Clone, Debug)]
enum DeliveryStage {
    Waiting,
    Written { link: DeliveryLink, at: Instant },
    Known(DeliveryProof),
}

/// The delivery state of one connection. Clones share it.
///
/// The reader of the connection must call [`DeliveryLink::close`] at its end. The HTTP server of this crate does so. For
/// lines, the reader of the lines must do it.
#[derive(Clone, Debug)]
pub struct DeliveryLink(Arc<DeliveryLinkInner>);

#[derive(Debug)]
struct DeliveryLinkInner {
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
    handed: Vec<DeliveryTracker>,
    /// Written, with no message received since.
    written: VecDeque<DeliveryTracker>,
}

/// Number of written responses of one connection for which the next message counts. Older ones count as delivered by
/// time only.
const MOST_WRITTEN: usize = 256;

/// Longest time that an incoming message waits for a concurrent write to end. A write takes microseconds, unless the
/// client does not read. On a busy machine, the writer may have to wait before it can record the write.
const WRITING: Duration = Duration::from_millis(250);

impl Default for DeliveryLink {
    fn default() -> Self {
        Self::new()
    }
}

impl DeliveryLink {
    /// Creates the state of an open connection.
    pub fn new() -> Self {
        Self(Arc::new(DeliveryLinkInner {
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

    /// Records that a response was put into the buffers of this connection. The next [`DeliveryLink::record_flush`] confirms the
    /// write.
    pub fn record_handed_over(&self, tracker: DeliveryTracker) {
        self.0.state.lock().handed.push(tracker);
        self.0.writing.send_replace(true);
    }

    /// Records that everything handed over so far is with the operating system.
    pub fn record_flush(&self) {
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
            tracker.stage.send_replace(DeliveryStage::Written { link: self.clone(), at });
            if state.written.len() >= MOST_WRITTEN {
                state.written.pop_front();
            }
            state.written.push_back(tracker);
        }
    }

    /// Does the same as [`DeliveryLink::record_message`], for a connection that is read and written by different tasks. A fast client
    /// can read a response and send its next message before the writer has recorded the write. So this waits for the
    /// writer, but only for a short time, because a client may not read at all.
    pub async fn record_message_after_write(&self, message: &RpcMessage) {
        let mut writing = self.0.writing.subscribe();
        let _ = tokio::time::timeout(WRITING, writing.wait_for(|writing| !writing)).await;
        self.record_message(message);
    }

    /// Records a message from the client: everything written before has arrived, except a response that the message
    /// cancels.
    pub fn record_message(&self, message: &RpcMessage) {
        let mut proven = Vec::new();
        self.0.state.lock().written.retain(|tracker| {
            let is_cancel = tracker.id.as_ref().is_some_and(|id| message.cancels(id));
            if !is_cancel {
                proven.push(tracker.clone());
            }
            is_cancel
        });
        proven.iter().for_each(|tracker| tracker.arrived(DeliveryProof::NextMessage));
    }

    /// Records other input from the client, such as a request for a stream.
    pub fn record_input(&self) {
        let proven = std::mem::take(&mut self.0.state.lock().written);
        proven.iter().for_each(|tracker| tracker.arrived(DeliveryProof::NextMessage));
    }

    /// Records that the client closed the connection after it had read everything.
    pub fn record_client_close(&self) {
        let taken = std::mem::take(&mut self.0.state.lock().written);
        taken.iter().for_each(|tracker| tracker.arrived(DeliveryProof::ClosedByClient));
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

    fn message(text: &str) -> RpcMessage {
        RpcMessage::parse(text.to_owned(), 1000).unwrap()
    }

    fn answer(link: &DeliveryLink) -> PendingDelivery {
        let (tracker, delivery) = DeliveryTracker::new(Some(RpcId::number(7)));
        link.record_handed_over(tracker);
        link.record_flush();
        delivery
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_delivered_when_its_client_read_all_of_it_and_closed() {
        let link = DeliveryLink::new();
        let delivery = answer(&link);
        link.record_client_close();
        link.close();
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::ClosedByClient));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_delivered_when_its_connection_brings_another_message() {
        let link = DeliveryLink::new();
        let delivery = answer(&link);
        link.record_message(&message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#));
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
    }

    /// If the callback came later, the next call would count as a repetition of a call whose response was lost, and
    /// would get that response instead of running.
    #[tokio::test(start_paused = true)]
    async fn a_delivery_is_recorded_before_the_message_that_proves_it_is_handled() {
        let link = DeliveryLink::new();
        let calls = Arc::new(Mutex::new(0));
        let answer = || {
            let calls = calls.clone();
            let arrived: DeliveryCallback = Box::new(move || *calls.lock() += 1);
            let (tracker, delivery) = DeliveryTracker::with_callback(Some(RpcId::number(7)), Some(arrived));
            link.record_handed_over(tracker);
            link.record_flush();
            delivery
        };
        let first = answer();
        link.record_message(&message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#));
        assert_eq!(*calls.lock(), 1, "at once, whoever waits for it or not");
        assert_eq!(
            first.settled_with_callback(GRACE).await,
            DeliveryOutcome::Delivered(DeliveryProof::NextMessage)
        );
        assert_eq!(*calls.lock(), 1, "and once");
        // Delivered by time alone, and lost.
        assert_eq!(
            answer().settled_with_callback(GRACE).await,
            DeliveryOutcome::Delivered(DeliveryProof::StillOpen)
        );
        assert_eq!(*calls.lock(), 2);
        let lost = answer();
        link.close();
        assert_eq!(lost.settled_with_callback(GRACE).await, DeliveryOutcome::Lost);
        assert_eq!(*calls.lock(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_before_the_write_is_recorded_proves_delivery() {
        let link = DeliveryLink::new();
        let (tracker, delivery) = DeliveryTracker::new(Some(RpcId::number(7)));
        link.record_handed_over(tracker);
        let ping = message(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#);
        tokio::join!(link.record_message_after_write(&ping), async { link.record_flush() });
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
        // A client that does not read delays others only for a short time, and proves nothing.
        let (tracker, delivery) = DeliveryTracker::new(Some(RpcId::number(7)));
        link.record_handed_over(tracker);
        let began = Instant::now();
        link.record_message_after_write(&ping).await;
        assert_eq!(began.elapsed(), WRITING);
        link.close();
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_of_the_call_itself_proves_nothing_and_of_another_call_does() {
        let link = DeliveryLink::new();
        let delivery = answer(&link);
        let cancel = |id: &str| {
            message(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            ))
        };
        link.record_message(&cancel("7"));
        link.close();
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
        let link = DeliveryLink::new();
        let delivery = answer(&link);
        link.record_message(&cancel("9"));
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_delivered_when_the_connection_is_open_five_seconds_after_the_write() {
        let link = DeliveryLink::new();
        let (tracker, delivery) = DeliveryTracker::new(None);
        let start = Instant::now();
        link.record_handed_over(tracker);
        let (fate, ()) = tokio::join!(delivery.settled(GRACE), async {
            tokio::time::advance(Duration::from_secs(60)).await;
            link.record_flush();
        });
        assert_eq!(fate, DeliveryOutcome::Delivered(DeliveryProof::StillOpen));
        assert_eq!(start.elapsed().as_secs(), 65, "counted from the write");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_lost_with_a_connection_that_breaks_too_early_or_before_the_write() {
        let link = DeliveryLink::new();
        let delivery = answer(&link);
        tokio::time::advance(Duration::from_millis(4900)).await;
        link.close();
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
        let link = DeliveryLink::new();
        let (tracker, mut delivery) = DeliveryTracker::new(None);
        link.record_handed_over(tracker);
        link.close();
        assert!(!delivery.written().await);
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resumable_response_can_be_delivered_on_another_connection() {
        let (first, second) = (DeliveryLink::new(), DeliveryLink::new());
        let (tracker, delivery) = DeliveryTracker::new(None);
        first.record_handed_over(tracker.clone());
        first.record_flush();
        let waiting = tokio::spawn(delivery.settled(GRACE));
        first.close();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it can still be fetched");
        second.record_handed_over(tracker);
        second.record_flush();
        second.record_input();
        assert_eq!(waiting.await.unwrap(), DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
    }

    #[tokio::test(start_paused = true)]
    async fn pending_deliveries_of_a_connection_are_bounded_and_older_ones_are_decided_by_time() {
        let link = DeliveryLink::new();
        let mut deliveries: VecDeque<_> = (0..MOST_WRITTEN + 1).map(|_| answer(&link)).collect();
        assert_eq!(link.0.state.lock().written.len(), MOST_WRITTEN);
        link.record_input();
        let (oldest, newest) = (deliveries.pop_front().unwrap(), deliveries.pop_back().unwrap());
        assert_eq!(newest.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
        assert_eq!(oldest.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::StillOpen));
    }
}

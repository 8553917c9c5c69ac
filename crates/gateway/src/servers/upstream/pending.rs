//! Requests that wait for the answer of a server, by the ids that the gateway assigned.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use steadfast_core::classify::AttemptFault;
use steadfast_mcp::lines::ReadPossibility;
use steadfast_mcp::message::{RpcId, RpcMessage};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::Generation;
use super::receivers::{NotificationHandler, NotificationReceivers, RunningRequest};
use crate::protocol::SUBSCRIPTION;

/// Converts an answer for the task that waits for it.
type AnswerConversion = Box<dyn FnOnce(RpcMessage) -> RpcMessage + Send + Sync>;

/// All pending requests.
#[derive(Default)]
pub(crate) struct PendingRequests {
    waiting: Mutex<HashMap<u64, PendingEntry>>,
    next: AtomicU64,
    /// Notified when a request is no longer pending.
    removed: Notify,
}

struct PendingEntry {
    at: Generation,
    answer: oneshot::Sender<Result<RpcMessage, AttemptFault>>,
    receivers: NotificationReceivers,
    /// Shows if the server can have read the request, where that is known.
    taken: Option<ReadPossibility>,
    /// True if the request was cancelled at the server.
    is_cancelled: bool,
}

/// A pending request. Dropping it abandons the request: a later answer is ignored.
pub(crate) struct PendingRequest {
    pub(crate) number: u64,
    /// The generation of the server that it was sent to.
    pub(crate) at: Generation,
    answer: oneshot::Receiver<Result<RpcMessage, AttemptFault>>,
    pending: Arc<PendingRequests>,
    /// The task that fetches the answer. It is aborted on drop, unless it has the answer.
    fetching: Option<AbortHandle>,
    /// The request at the server, if that has another number.
    sent_as: Option<Arc<SentRequestNumber>>,
    turn: Option<AnswerConversion>,
}

/// The number of a request that is sent on behalf of another one, perhaps several times.
pub(super) struct SentRequestNumber {
    number: AtomicU64,
    at: AtomicU64,
}

impl SentRequestNumber {
    pub(super) fn of(place: &PendingRequest) -> Arc<Self> {
        Arc::new(Self { number: AtomicU64::new(place.number), at: AtomicU64::new(place.at.0) })
    }

    /// Records that it was sent again.
    pub(super) fn is_now(&self, place: &PendingRequest) {
        self.number.store(place.number, Ordering::Relaxed);
        self.at.store(place.at.0, Ordering::Relaxed);
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }
}

/// Identifies a request that was sent, while it may have to be ended.
#[derive(Clone)]
pub(crate) struct SentRequest {
    at: Generation,
    sent_as: Option<Arc<SentRequestNumber>>,
}

impl SentRequest {
    /// Returns the generation of the last send.
    pub(super) fn generation(&self) -> Generation {
        self.sent_as.as_ref().map_or(self.at, |sent_as| Generation(sent_as.at.load(Ordering::Relaxed)))
    }
}

impl PendingRequests {
    /// Registers a request to this generation.
    pub(super) fn enter(
        self: &Arc<Self>,
        at: Generation,
        receivers: NotificationReceivers,
    ) -> PendingRequest {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        self.waiting
            .lock()
            .insert(number, PendingEntry { at, answer: sender, receivers, taken: None, is_cancelled: false });
        PendingRequest {
            number,
            at,
            answer,
            pending: Arc::clone(self),
            fetching: None,
            sent_as: None,
            turn: None,
        }
    }

    /// Returns a pending request that has its answer.
    pub(super) fn answered_with(
        self: &Arc<Self>,
        answer: Result<RpcMessage, AttemptFault>,
    ) -> PendingRequest {
        let place = self.enter(Generation::NONE, NotificationReceivers::default());
        self.settle(place.number, answer);
        place
    }

    /// Completes a request with its answer. Returns true if a task waited for it.
    pub(crate) fn complete(&self, at: Generation, id: &RpcId, answer: RpcMessage) -> bool {
        let Some(number) = id.as_u64() else { return false };
        let mut waiting = self.waiting.lock();
        // An old generation cannot answer a request to a newer one.
        if waiting.get(&number).is_none_or(|place| place.at != at) {
            return false;
        }
        let place = waiting.remove(&number);
        drop(waiting);
        self.removed.notify_waiters();
        place.is_some_and(|place| place.answer.send(Ok(answer)).is_ok())
    }

    /// Delivers a notification to the request that it names by progress token or subscription id. Returns true if there
    /// is one.
    pub(crate) fn deliver_notification(&self, at: Generation, message: &RpcMessage) -> bool {
        let name = match message.method() {
            Some("notifications/progress") => message.param("progressToken"),
            _ => message.meta_member(SUBSCRIPTION),
        };
        let number = name.and_then(|name| name.parse().ok());
        let handler = number.and_then(|number: u64| {
            let waiting = self.waiting.lock();
            waiting
                .get(&number)
                .filter(|place| place.at == at)
                .and_then(|place| place.receivers.on_notification.clone())
        });
        match handler {
            Some(on_notification) => {
                on_notification(message);
                true
            }
            None => false,
        }
    }

    /// Fails a request.
    pub(crate) fn fail(&self, number: u64, fault: AttemptFault) {
        self.settle(number, Err(fault));
    }

    /// Returns the only pending request of this generation, if there is exactly one.
    pub(super) fn only(&self, at: Generation) -> Option<u64> {
        let waiting = self.waiting.lock();
        let mut waiting = waiting.iter().filter(|(_, place)| place.at == at).map(|(number, _)| *number);
        waiting.next().filter(|_| waiting.next().is_none())
    }

    /// Fails this request if it waits for this generation. Returns true if it did.
    pub(super) fn fail_at(&self, at: Generation, number: u64, fault: AttemptFault) -> bool {
        let is_open = self.waiting.lock().get(&number).is_some_and(|place| place.at == at);
        is_open && self.settle(number, Err(fault))
    }

    /// Completes a request. Returns true if a task waited for it.
    pub(super) fn settle(&self, number: u64, answer: Result<RpcMessage, AttemptFault>) -> bool {
        let place = self.waiting.lock().remove(&number);
        self.removed.notify_waiters();
        place.is_some_and(|place| place.answer.send(answer).is_ok())
    }

    /// Marks a request as cancelled at the server.
    pub(super) fn cancel_at_server(&self, number: u64) {
        if let Some(place) = self.waiting.lock().get_mut(&number) {
            place.is_cancelled = true;
        }
        self.removed.notify_waiters();
    }

    /// Waits until this generation has no pending request that is not cancelled.
    pub(super) async fn wait_until_all_cancelled(&self, at: Generation) {
        loop {
            let removed = self.removed.notified();
            if self.waiting.lock().values().all(|place| place.at != at || place.is_cancelled) {
                return;
            }
            removed.await;
        }
    }

    /// Replaces the receiver of notifications that name this request.
    pub(super) fn set_handler(&self, number: u64, on_notification: Option<NotificationHandler>) {
        if let Some(place) = self.waiting.lock().get_mut(&number) {
            place.receivers.on_notification = on_notification;
        }
    }

    /// Returns the requests that a message of this generation may belong to: the one of its stream, or else all.
    pub(super) fn running(&self, at: Generation, on: Option<u64>) -> Vec<Arc<RunningRequest>> {
        let waiting = self.waiting.lock();
        let of = |place: &PendingEntry| place.receivers.running.clone().filter(|_| place.at == at);
        match on.and_then(|number| waiting.get(&number)) {
            Some(place) => of(place).into_iter().collect(),
            None => waiting.values().filter_map(of).collect(),
        }
    }

    /// Returns all requests that a message of their server may belong to.
    pub(super) fn all_running(&self) -> Vec<Arc<RunningRequest>> {
        self.waiting.lock().values().filter_map(|place| place.receivers.running.clone()).collect()
    }

    /// Records that a request is being sent.
    pub(crate) fn sent(&self, number: u64, taken: ReadPossibility) {
        if let Some(place) = self.waiting.lock().get_mut(&number) {
            place.taken = Some(taken);
        }
    }

    /// Fails all requests to this generation. Those that it cannot have read may be sent again.
    pub(crate) fn fail_all(&self, at: Generation, fault: &AttemptFault) {
        let mut waiting = self.waiting.lock();
        let failed: Vec<u64> =
            waiting.iter().filter(|(_, place)| place.at == at).map(|(number, _)| *number).collect();
        let failed: Vec<PendingEntry> = failed.iter().filter_map(|number| waiting.remove(number)).collect();
        drop(waiting);
        for place in failed {
            let unread = place.taken.is_some_and(|taken| !taken.is_possible());
            let fault = match unread {
                true => super::not_sent(&format!("{} before it read this", fault.message)),
                false => fault.clone(),
            };
            let _ = place.answer.send(Err(fault));
        }
    }
}

impl PendingRequest {
    /// Returns the id with which the request is sent.
    pub(crate) fn id(&self) -> RpcId {
        RpcId::number(self.sent_as())
    }

    /// Returns the number of the request at the server.
    pub(super) fn sent_as(&self) -> u64 {
        self.sent_as.as_ref().map_or(self.number, |sent_as| sent_as.number())
    }

    /// Returns a handle to the sent request.
    pub(crate) fn sent(&self) -> SentRequest {
        SentRequest { at: self.at, sent_as: self.sent_as.clone() }
    }

    /// Sets the task that brings the answer from a request with another number.
    pub(super) fn answered_by(mut self, fetcher: AbortHandle, sent_as: Arc<SentRequestNumber>) -> Self {
        (self.fetching, self.sent_as) = (Some(fetcher), Some(sent_as));
        self
    }

    /// Sets a conversion of the answer.
    pub(super) fn with_conversion(
        mut self,
        turn: impl FnOnce(RpcMessage) -> RpcMessage + Send + Sync + 'static,
    ) -> Self {
        self.turn = Some(Box::new(turn));
        self
    }

    /// Sets the task that fetches the answer.
    pub(super) fn fetched_by(mut self, fetching: AbortHandle) -> Self {
        self.fetching = Some(fetching);
        self
    }

    /// Abandons the request with this fault for the task that waits.
    pub(super) fn abandon(&self, fault: AttemptFault) {
        self.pending.fail(self.number, fault);
        if let Some(fetching) = &self.fetching {
            fetching.abort();
        }
    }

    /// Waits for the answer or the fault.
    pub(crate) async fn answer(&mut self) -> Result<RpcMessage, AttemptFault> {
        match ((&mut self.answer).await, self.turn.take()) {
            (Ok(Ok(answer)), Some(turn)) => Ok(turn(answer)),
            (Ok(answer), _) => answer,
            (Err(_), _) => Err(super::not_sent("the connection to the server was closed")),
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let waited = self.pending.waiting.lock().remove(&self.number).is_some();
        self.pending.removed.notify_waiters();
        if let Some(fetching) = self.fetching.as_ref().filter(|_| waited) {
            fetching.abort();
        }
    }
}

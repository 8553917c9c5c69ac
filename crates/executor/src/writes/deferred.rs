//! Store operations that failed, retried until they succeed.
//!
//! A result that could not be saved, a claim or grant that could not be released and a request for approval outlive
//! their call. They are queued in memory, in order and bounded. If the queue is full, the oldest is dropped and that is
//! logged.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_store::{StoreError, TimeSource};
use tokio::sync::Notify;

/// An operation of the store that can be retried.
pub(crate) trait RetryableOperation: fmt::Debug + Send + Sync {
    /// The component that the operation needs.
    type Context: fmt::Debug + Send + Sync;

    /// Returns true if the first try may happen as soon as the store is back.
    fn may_be_early(&self) -> bool;

    /// Performs the operation.
    fn carry_out(&self, context: &Self::Context) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The retry queue of store operations.
pub(crate) struct RetryQueue<O: RetryableOperation> {
    clock: Arc<dyn TimeSource>,
    context: Arc<O::Context>,
    queue: Mutex<RetryState<O>>,
    /// Notified when an operation was added or has become due.
    added: Notify,
    /// Notified when an operation in flight has ended.
    settled: Notify,
}

#[derive(Debug)]
struct RetryState<O> {
    waiting: VecDeque<StoreRetry<O>>,
    /// Number of operations that are being retried right now. They count as pending until the store has confirmed them.
    under_way: usize,
}

/// A store operation to retry.
#[derive(Debug)]
pub(crate) struct StoreRetry<O> {
    operation: O,
    tries: u32,
    /// Time of the next try. A release must not overtake its own claim, which is void by then.
    due: Timestamp,
}

/// Maximum number of queued operations.
const MOST: usize = 10_000;
/// Time after which a command that was sent to the store is void.
pub(crate) const COMMAND_LIVES: Duration = Duration::from_secs(5);
/// Pause before the first retry.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl<O> StoreRetry<O> {
    /// Creates a retry that is due at this time.
    pub(crate) const fn new(operation: O, due: Timestamp) -> Self {
        Self { operation, tries: 0, due }
    }

    pub(crate) const fn operation(&self) -> &O {
        &self.operation
    }
}

impl<O: RetryableOperation> RetryQueue<O> {
    pub(crate) fn new(clock: Arc<dyn TimeSource>, context: Arc<O::Context>) -> Self {
        let queue = Mutex::new(RetryState { waiting: VecDeque::new(), under_way: 0 });
        Self { clock, context, queue, added: Notify::new(), settled: Notify::new() }
    }

    pub(crate) fn keep(&self, retries: impl Iterator<Item = StoreRetry<O>>) {
        let mut retries = retries.peekable();
        // The usual case: it avoids the lock if there is nothing to add.
        if retries.peek().is_none() {
            return;
        }
        let mut queue = self.queue.lock();
        queue.waiting.extend(retries);
        while queue.waiting.len() > MOST {
            if let Some(dropped) = queue.waiting.pop_front() {
                tracing::error!(event = "store.gave_up", "what" = ?dropped.operation, "too many operations wait for the store; the oldest was dropped");
            }
        }
        drop(queue);
        self.added.notify_one();
    }

    /// Tries the operation at once. If that fails, it is queued like the others.
    pub(crate) async fn try_now(&self, retry: StoreRetry<O>) {
        self.queue.lock().under_way += 1;
        InFlightRetry { keeper: self, retry: Some(retry) }.repeat().await;
        self.added.notify_one();
    }

    /// Returns the number of operations that have not succeeded yet.
    pub(crate) fn len(&self) -> usize {
        let queue = self.queue.lock();
        queue.waiting.len() + queue.under_way
    }

    /// Makes operations due because the store is back. An exception is a release that was never tried: its own claim
    /// may still be in flight.
    pub(crate) fn make_due(&self) {
        let now = self.clock.now();
        for retry in &mut self.queue.lock().waiting {
            if retry.tries > 0 || retry.operation.may_be_early() {
                retry.due = retry.due.min(now);
            }
        }
        self.added.notify_one();
    }

    /// Retries operations for as long as the engine lives.
    pub(crate) async fn run(&self) {
        loop {
            let added = self.added.notified();
            match self.next() {
                NextRetry::Nothing => added.await,
                NextRetry::At(pause) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = added => {}
                    }
                }
                NextRetry::Now(first) => {
                    let mut taken = vec![first];
                    while taken.len() < HANDS
                        && let NextRetry::Now(another) = self.next()
                    {
                        taken.push(another);
                    }
                    join_all(taken.into_iter().map(|under_way| under_way.repeat())).await;
                }
            }
        }
    }

    /// Tries all operations once more, due or not, and waits for those in flight. Used at the end of the engine.
    pub(crate) async fn drain(&self) {
        let mut left = self.queue.lock().waiting.len();
        while left > 0 {
            let taken: Vec<_> = (0..left.min(HANDS)).map_while(|_| self.take(0)).collect();
            left = if taken.is_empty() { 0 } else { left - taken.len() };
            join_all(taken.into_iter().map(|under_way| under_way.repeat())).await;
        }
        loop {
            let settled = self.settled.notified();
            if self.queue.lock().under_way == 0 {
                return;
            }
            settled.await;
        }
    }

    fn next(&self) -> NextRetry<'_, O> {
        let now = self.clock.now();
        let queue = self.queue.lock();
        let due = queue.waiting.iter().position(|retry| retry.due <= now);
        let soonest = queue.waiting.iter().map(|retry| retry.due).min();
        drop(queue);
        match due {
            Some(due) => self.take(due).map_or(NextRetry::Nothing, NextRetry::Now),
            None => soonest.map_or(NextRetry::Nothing, |due| NextRetry::At(due.since(now))),
        }
    }

    fn take(&self, position: usize) -> Option<InFlightRetry<'_, O>> {
        let mut queue = self.queue.lock();
        let retry = queue.waiting.remove(position)?;
        queue.under_way += 1;
        Some(InFlightRetry { keeper: self, retry: Some(retry) })
    }
}

/// Number of concurrent retries. A store that recovers gets as many operations as there were calls meanwhile, and each
/// may wait for a disk or a replica.
const HANDS: usize = 32;

/// An operation that is being retried. If it fails or is dropped, it goes back to the queue.
struct InFlightRetry<'a, O: RetryableOperation> {
    keeper: &'a RetryQueue<O>,
    retry: Option<StoreRetry<O>>,
}

impl<O: RetryableOperation> InFlightRetry<'_, O> {
    async fn repeat(mut self) {
        let Some(retry) = &mut self.retry else { return };
        match retry.operation.carry_out(&self.keeper.context).await {
            Ok(()) => self.retry = None,
            Err(error) => {
                retry.tries += 1;
                let pause = FIRST_PAUSE.saturating_mul(1 << retry.tries.min(6)).min(LONGEST_PAUSE);
                retry.due = self.keeper.clock.now() + pause;
                tracing::debug!(event = "store.repeat", "what" = ?retry.operation, tries = retry.tries, %error);
            }
        }
    }
}

impl<O: RetryableOperation> Drop for InFlightRetry<'_, O> {
    fn drop(&mut self) {
        let mut queue = self.keeper.queue.lock();
        queue.under_way -= 1;
        queue.waiting.extend(self.retry.take());
        drop(queue);
        self.keeper.settled.notify_waiters();
    }
}

enum NextRetry<'a, O: RetryableOperation> {
    Nothing,
    At(Duration),
    Now(InFlightRetry<'a, O>),
}

impl<O: RetryableOperation> fmt::Debug for RetryQueue<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

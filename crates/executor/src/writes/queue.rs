//! A queue of entries to write to a journal of the store.
//!
//! Entries are written in the background, so that a slow store never delays a call. They are collected for a moment,
//! and the writer wakes only when the queue was empty. While the store is unavailable they wait. Entries beyond the
//! limit are dropped and counted.

use std::borrow::Cow;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_store::{Journal, JournalEntry, JournalLimits, StateStore, StoreError};
use tokio::sync::Notify;

/// Time for which entries are collected before a write.
const GATHER: Duration = Duration::from_millis(5);
/// Pause after a failed write to an unavailable store.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of entries per write.
const BATCH: usize = 256;

/// The write queue of a journal.
#[derive(Debug)]
pub(crate) struct WriteQueue<T> {
    journal: Journal,
    weigh: fn(&T) -> usize,
    waiting: Mutex<QueuedEntries<T>>,
    added: Notify,
    /// Lock of the writer: a writer that holds it has also waited for any earlier write. Its buffer is swapped with
    /// that of the queue, so that neither is allocated again each time.
    writing: tokio::sync::Mutex<Vec<T>>,
}

#[derive(Debug)]
struct QueuedEntries<T> {
    things: Vec<T>,
    /// Total weight of the queued entries and those in flight.
    weight: usize,
    /// Number of entries that were dropped.
    dropped: u64,
    /// True if the store was unavailable.
    held_up: bool,
}

impl<T> WriteQueue<T> {
    /// Creates a queue for this journal. `weigh` returns the share of the limit that an entry takes.
    pub(crate) fn new(journal: Journal, weigh: fn(&T) -> usize) -> Self {
        let waiting = QueuedEntries { things: Vec::new(), weight: 0, dropped: 0, held_up: false };
        let (waiting, writing) = (Mutex::new(waiting), tokio::sync::Mutex::default());
        Self { journal, weigh, waiting, added: Notify::new(), writing }
    }

    /// Adds an entry, unless the total weight would exceed `most`.
    pub(crate) fn add(&self, thing: T, most: usize) {
        let mut waiting = self.waiting.lock();
        let was_empty = waiting.things.is_empty();
        let weight = waiting.weight + (self.weigh)(&thing);
        if weight <= most {
            waiting.weight = weight;
            waiting.things.push(thing);
        } else {
            waiting.dropped += 1;
        }
        drop(waiting);
        if was_empty {
            self.added.notify_one();
        }
    }

    /// Waits until it is time to write.
    pub(crate) async fn due(&self) {
        self.added.notified().await;
        let pause = if self.waiting.lock().held_up { AGAIN } else { GATHER };
        tokio::time::sleep(pause).await;
    }

    /// Writes the queue. Afterwards, all entries that were added before are in the store. If it is unavailable, they
    /// stay queued. Entries that may have been written are not written again. `failed` is called for each failure.
    pub(crate) async fn write(
        &self,
        store: &dyn StateStore,
        keep: JournalLimits,
        mut entries: impl for<'t> FnMut(&'t [T]) -> Cow<'t, [JournalEntry]>,
        failed: impl Fn(&StoreError),
    ) {
        let mut room = self.writing.lock().await;
        let mut things = std::mem::take(&mut *room);
        let dropped = {
            let mut waiting = self.waiting.lock();
            std::mem::swap(&mut waiting.things, &mut things);
            std::mem::take(&mut waiting.dropped)
        };
        if dropped > 0 {
            let journal = self.journal;
            tracing::warn!(event = "journal.dropped", ?journal, dropped, "the write queue is full");
        }
        let mut done = 0;
        for batch in things.chunks(BATCH) {
            if let Err(error) = store.append(self.journal, &entries(batch), keep).await {
                failed(&error);
                if error.is_retryable() {
                    break;
                }
            }
            done += batch.len();
        }
        let others = things.split_off(done);
        self.written(&things, others);
        things.clear();
        things.shrink_to(BATCH);
        *room = things;
    }

    /// Removes the weight of written entries, and puts the others back into the queue.
    fn written(&self, written: &[T], mut others: Vec<T>) {
        let weight: usize = written.iter().map(self.weigh).sum();
        let mut waiting = self.waiting.lock();
        waiting.weight = waiting.weight.saturating_sub(weight);
        waiting.held_up = !others.is_empty();
        if waiting.held_up {
            others.append(&mut waiting.things);
            waiting.things = others;
            self.added.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_with_what_is_on_its_way() {
        let gathered = WriteQueue::new(Journal::Traces, |thing: &usize| *thing);
        for _ in 0..100 {
            gathered.add(10, 35);
        }
        gathered.add(2, 70);
        let mut things = std::mem::take(&mut gathered.waiting.lock().things);
        assert_eq!((&things[..], gathered.waiting.lock().dropped), (&[10, 10, 10, 2][..], 97));
        gathered.add(10, 35);
        assert!(
            gathered.waiting.lock().things.is_empty(),
            "what is on its way takes its place until it is written"
        );
        gathered.add(1, 35);
        let others = things.split_off(3);
        gathered.written(&things, others);
        gathered.add(10, 35);
        assert_eq!(gathered.waiting.lock().things, [2, 1, 10], "those that were first are first again");
        assert!(gathered.waiting.lock().held_up);
    }
}

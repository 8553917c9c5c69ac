//! What waits to be written to a log of the store.
//!
//! It is written beside the calls, so that a slow store never holds one up. What comes is gathered for a moment, and wakes the
//! writer only if nothing waits yet; while the store cannot be reached it waits; what does not fit is dropped and counted.

use std::borrow::Cow;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_store::{Entry, Journal, Keep};
use tokio::sync::Notify;

use crate::engine::Inner;

/// How long things are gathered before they are written.
const GATHER: Duration = Duration::from_millis(5);
/// How long a store that cannot be reached is left alone.
const AGAIN: Duration = Duration::from_secs(1);
/// The most that is written at once.
const BATCH: usize = 256;

/// Things on their way to a log.
#[derive(Debug)]
pub(crate) struct Gathered<T> {
    journal: Journal,
    weigh: fn(&T) -> usize,
    waiting: Mutex<Waiting<T>>,
    added: Notify,
    /// One writes at a time, so that who has written what waits has also waited for what was on its way. What is in it changes
    /// places with what waits, so that neither grows anew each time.
    writing: tokio::sync::Mutex<Vec<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    things: Vec<T>,
    /// That of these, and of what is on its way.
    weight: usize,
    /// How many had no place.
    dropped: u64,
    /// Whether the store could not be reached.
    held_up: bool,
}

impl<T> Gathered<T> {
    /// For this log, in which each thing takes so much of the place that there is.
    pub(crate) fn new(journal: Journal, weigh: fn(&T) -> usize) -> Self {
        let waiting = Waiting { things: Vec::new(), weight: 0, dropped: 0, held_up: false };
        let (waiting, writing) = (Mutex::new(waiting), tokio::sync::Mutex::default());
        Self { journal, weigh, waiting, added: Notify::new(), writing }
    }

    /// Adds it, if all weigh no more than this then.
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

    /// Comes back when it is time to write.
    pub(crate) async fn due(&self) {
        self.added.notified().await;
        let pause = if self.waiting.lock().held_up { AGAIN } else { GATHER };
        tokio::time::sleep(pause).await;
    }

    /// Writes what waits. Then everything that was added before is in the store, unless that cannot be reached: then it waits
    /// on. What may have been written is not written again.
    pub(crate) async fn write(
        &self,
        inner: &Inner,
        keep: Keep,
        mut entries: impl for<'t> FnMut(&'t [T]) -> Cow<'t, [Entry]>,
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
            tracing::warn!(event = "journal.dropped", ?journal, dropped, "more happens than can be written");
        }
        let mut done = 0;
        for batch in things.chunks(BATCH) {
            if let Err(error) = inner.store.append(self.journal, &entries(batch), keep).await {
                inner.store_trouble(&*inner.store, &error);
                if error.is_for_later() {
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

    /// Some are written, and the others have to wait on.
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
        let gathered = Gathered::new(Journal::Traces, |thing: &usize| *thing);
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

//! The queue to a thread of the store. It is bounded, so that an overload is reported at once.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A first-in, first-out queue with two lanes.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    most: usize,
}

#[derive(Debug)]
struct State<T> {
    soon: VecDeque<T>,
    later: VecDeque<T>,
    /// Time at which the first item of the later lane was added.
    later_since: Option<Instant>,
    closed: bool,
    /// True while the consumer works, rather than waits.
    busy: bool,
}

/// The urgency of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueLane {
    /// A caller waits for the item.
    Soon,
    /// The item may wait for others, so that they can be handled together.
    Later,
}

/// The reason why an item was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// The queue is full.
    Full,
    /// The queue is closed.
    Closed,
}

/// Longest wait of the later lane while the other one is never empty.
const LATER_LANE_DELAY: Duration = Duration::from_millis(5);

impl<T> WorkQueue<T> {
    pub(crate) fn new(most: usize) -> Self {
        let (soon, later) = (VecDeque::new(), VecDeque::new());
        let state = State { soon, later, later_since: None, closed: false, busy: false };
        Self { state: Mutex::new(state), arrived: Condvar::new(), most }
    }

    pub(crate) fn push(&self, item: T, lane: QueueLane) -> Result<(), QueueError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(QueueError::Closed);
        }
        let state_now = &mut *state;
        let waiting = match lane {
            QueueLane::Soon => &mut state_now.soon,
            QueueLane::Later => &mut state_now.later,
        };
        if waiting.len() >= self.most {
            return Err(QueueError::Full);
        }
        waiting.push_back(item);
        if lane == QueueLane::Later {
            state.later_since.get_or_insert_with(Instant::now);
        }
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes up to `most` items of one lane, and returns the lane. Waits for the first item. Returns `None` if there
    /// will be no more.
    pub(crate) fn take(&self, into: &mut Vec<T>, most: usize) -> Option<QueueLane> {
        let mut state = self.state.lock();
        state.busy = false;
        loop {
            let overdue = state.later_since.is_some_and(|since| since.elapsed() >= LATER_LANE_DELAY);
            if !state.soon.is_empty() && !overdue {
                let count = state.soon.len().min(most);
                into.extend(state.soon.drain(..count));
                state.busy = true;
                return Some(QueueLane::Soon);
            }
            if !state.later.is_empty() {
                let count = state.later.len().min(most);
                into.extend(state.later.drain(..count));
                state.later_since = (!state.later.is_empty()).then(Instant::now);
                state.busy = true;
                return Some(QueueLane::Later);
            }
            if state.closed {
                return None;
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Takes further items of the first lane, without waiting.
    pub(crate) fn take_more(&self, into: &mut Vec<T>, most: usize) {
        let mut state = self.state.lock();
        let count = state.soon.len().min(most.saturating_sub(into.len()));
        into.extend(state.soon.drain(..count));
    }

    /// Spins for a consumer that expects more items soon, because a wake-up costs more than some steps of work.
    /// Returns once there is an item, or after this time.
    pub(crate) fn linger(&self, span: Duration) {
        let until = Instant::now() + span;
        while Instant::now() < until {
            {
                let mut state = self.state.lock();
                state.busy = false;
                if !state.soon.is_empty() || state.closed {
                    return;
                }
            }
            thread::yield_now();
        }
    }

    /// Returns true if a new item would have to wait.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.busy || !state.soon.is_empty()
    }

    /// Returns a guard that closes the queue when the consumer ends, even by a panic, so that no caller waits for it.
    pub(crate) fn consumer(&self) -> QueueConsumer<'_, T> {
        QueueConsumer(self)
    }

    /// Refuses further items. Existing ones are still taken.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }
}

/// The guard of a consumer.
pub(crate) struct QueueConsumer<'q, T>(&'q WorkQueue<T>);

impl<T> Drop for QueueConsumer<'_, T> {
    fn drop(&mut self) {
        self.0.close();
        let mut state = self.0.state.lock();
        let left = (std::mem::take(&mut state.soon), std::mem::take(&mut state.later));
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_and_a_closed_one_is_emptied_first() {
        let queue = WorkQueue::new(2);
        assert_eq!(queue.push(1, QueueLane::Soon), Ok(()));
        assert_eq!(queue.push(2, QueueLane::Soon), Ok(()));
        assert_eq!(queue.push(3, QueueLane::Soon), Err(QueueError::Full));
        assert!(queue.is_busy());
        queue.close();
        assert_eq!(queue.push(4, QueueLane::Soon), Err(QueueError::Closed));
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken, 1), Some(QueueLane::Soon));
        queue.take_more(&mut taken, 5);
        assert_eq!(taken, [1, 2]);
        assert_eq!(queue.take(&mut taken, 1), None);
    }

    #[test]
    fn the_later_lane_waits_but_not_for_ever() {
        let queue = WorkQueue::new(9);
        let mut taken = Vec::new();
        queue.push("later", QueueLane::Later).unwrap();
        queue.push("soon", QueueLane::Soon).unwrap();
        // Even if this takes long, the item has not waited long.
        queue.state.lock().later_since = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(queue.take(&mut taken, 9), Some(QueueLane::Soon));
        queue.push("soon again", QueueLane::Soon).unwrap();
        queue.state.lock().later_since = Instant::now().checked_sub(LATER_LANE_DELAY);
        assert_eq!(queue.take(&mut taken, 9), Some(QueueLane::Later));
        assert_eq!(queue.take(&mut taken, 9), Some(QueueLane::Soon));
        assert_eq!(taken, ["soon", "later", "soon again"]);
    }
}

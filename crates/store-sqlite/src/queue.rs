//! What waits for a thread of ours: bounded, so that whoever asks too much is told at once.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Work in the order in which it came, in two lanes.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    most: usize,
}

#[derive(Debug)]
struct State<T> {
    soon: VecDeque<T>,
    later: VecDeque<T>,
    /// When the first of the later ones came.
    later_since: Option<Instant>,
    closed: bool,
    /// Whether a taker is at work rather than waiting for some.
    busy: bool,
}

/// How urgent something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Somebody waits for it.
    Soon,
    /// It may wait for company, while others are served.
    Later,
}

/// Why something was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too much is waiting already.
    Full,
    /// Nobody will come for it any more.
    Closed,
}

/// How long the later lane waits at most while the other one is never empty.
const PATIENCE: Duration = Duration::from_millis(5);

impl<T> Queue<T> {
    pub(crate) fn new(most: usize) -> Self {
        let (soon, later) = (VecDeque::new(), VecDeque::new());
        let state = State { soon, later, later_since: None, closed: false, busy: false };
        Self { state: Mutex::new(state), arrived: Condvar::new(), most }
    }

    pub(crate) fn push(&self, item: T, lane: Lane) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let state_now = &mut *state;
        let waiting = match lane {
            Lane::Soon => &mut state_now.soon,
            Lane::Later => &mut state_now.later,
        };
        if waiting.len() >= self.most {
            return Err(Refused::Full);
        }
        waiting.push_back(item);
        if lane == Lane::Later {
            state.later_since.get_or_insert_with(Instant::now);
        }
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes up to so many of one lane, and says of which; waits for the first one. Nothing when there will be none.
    pub(crate) fn take(&self, into: &mut Vec<T>, most: usize) -> Option<Lane> {
        let mut state = self.state.lock();
        state.busy = false;
        loop {
            let overdue = state.later_since.is_some_and(|since| since.elapsed() >= PATIENCE);
            if !state.soon.is_empty() && !overdue {
                let count = state.soon.len().min(most);
                into.extend(state.soon.drain(..count));
                state.busy = true;
                return Some(Lane::Soon);
            }
            if !state.later.is_empty() {
                let count = state.later.len().min(most);
                into.extend(state.later.drain(..count));
                state.later_since = (!state.later.is_empty()).then(Instant::now);
                state.busy = true;
                return Some(Lane::Later);
            }
            if state.closed {
                return None;
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Takes what has come meanwhile to the first lane, without waiting.
    pub(crate) fn take_more(&self, into: &mut Vec<T>, most: usize) {
        let mut state = self.state.lock();
        let count = state.soon.len().min(most.saturating_sub(into.len()));
        into.extend(state.soon.drain(..count));
    }

    /// Lets a taker who expects more at once wait without falling asleep: being woken costs more than some steps of
    /// work. Comes back when there is something, or after so long.
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

    /// Whether something that comes now would have to wait for something else.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.busy || !state.soon.is_empty()
    }

    /// Closes the queue when the taker ends, whatever ended it: nobody waits for one who is gone.
    pub(crate) fn taker(&self) -> Taker<'_, T> {
        Taker(self)
    }

    /// Lets nothing in any more. What is there is still taken.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }
}

/// One who takes from a queue.
pub(crate) struct Taker<'q, T>(&'q Queue<T>);

impl<T> Drop for Taker<'_, T> {
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
        let queue = Queue::new(2);
        assert_eq!(queue.push(1, Lane::Soon), Ok(()));
        assert_eq!(queue.push(2, Lane::Soon), Ok(()));
        assert_eq!(queue.push(3, Lane::Soon), Err(Refused::Full));
        assert!(queue.is_busy());
        queue.close();
        assert_eq!(queue.push(4, Lane::Soon), Err(Refused::Closed));
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken, 1), Some(Lane::Soon));
        queue.take_more(&mut taken, 5);
        assert_eq!(taken, [1, 2]);
        assert_eq!(queue.take(&mut taken, 1), None);
    }

    #[test]
    fn the_later_lane_stands_back_but_not_for_ever() {
        let queue = Queue::new(9);
        let mut taken = Vec::new();
        queue.push("later", Lane::Later).unwrap();
        queue.push("soon", Lane::Soon).unwrap();
        // However long this takes, it has not waited long.
        queue.state.lock().later_since = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(queue.take(&mut taken, 9), Some(Lane::Soon));
        queue.push("soon again", Lane::Soon).unwrap();
        queue.state.lock().later_since = Instant::now().checked_sub(PATIENCE);
        assert_eq!(queue.take(&mut taken, 9), Some(Lane::Later));
        assert_eq!(queue.take(&mut taken, 9), Some(Lane::Soon));
        assert_eq!(taken, ["soon", "later", "soon again"]);
    }
}

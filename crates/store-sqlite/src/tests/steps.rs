//! Counting the steps of the writer, and dying at one of them.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared::Step;

#[derive(Debug, Default)]
pub(crate) struct Steps {
    taken: AtomicU64,
    commits: AtomicU64,
    /// The step at which the process ends; none if it is 0.
    last: AtomicU64,
}

impl Steps {
    pub(crate) fn take(&self, step: Step) {
        if step == Step::Committed {
            self.commits.fetch_add(1, Ordering::SeqCst);
        }
        if self.taken.fetch_add(1, Ordering::SeqCst) + 1 == self.last.load(Ordering::SeqCst) {
            process::abort();
        }
    }

    /// Dies at the nth step from here.
    pub(crate) fn die_at(&self, nth: u64) {
        self.last.store(self.taken.load(Ordering::SeqCst) + nth, Ordering::SeqCst);
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }
}

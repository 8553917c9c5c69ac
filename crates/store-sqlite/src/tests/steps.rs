//! Counts the steps of the writer, delays it, and ends the process at one of them.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::shared::WriterStep;

#[derive(Debug, Default)]
pub(crate) struct WriterStepCounter {
    taken: AtomicU64,
    commits: AtomicU64,
    /// The step at which the process ends, or 0 for none.
    last: AtomicU64,
    /// Delays every commit.
    pub(crate) disk: HangingDisk,
}

/// A disk that can be made to hang.
#[derive(Debug, Default)]
pub(crate) struct HangingDisk {
    hangs: Mutex<bool>,
    changed: Condvar,
}

impl HangingDisk {
    pub(crate) fn hang(&self) {
        *self.hangs.lock() = true;
    }

    pub(crate) fn go_on(&self) {
        *self.hangs.lock() = false;
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        self.changed.wait_while(&mut self.hangs.lock(), |hangs| *hangs);
    }
}

impl WriterStepCounter {
    pub(crate) fn take(&self, step: WriterStep) {
        if step == WriterStep::Commit {
            self.disk.wait();
        }
        if step == WriterStep::Committed {
            self.commits.fetch_add(1, Ordering::SeqCst);
        }
        if self.taken.fetch_add(1, Ordering::SeqCst) + 1 == self.last.load(Ordering::SeqCst) {
            process::abort();
        }
    }

    /// Ends the process at the nth step from here.
    pub(crate) fn exit_at(&self, nth: u64) {
        self.last.store(self.taken.load(Ordering::SeqCst) + nth, Ordering::SeqCst);
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }
}

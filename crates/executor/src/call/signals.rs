//! Signals to a call in flight.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use tokio::sync::Notify;

/// The signals of one call. They do not queue: each is either raised or not.
#[derive(Debug, Default)]
pub(crate) struct CallSignals {
    raised: AtomicU8,
    changed: Notify,
    signs: AtomicU32,
    shown: Notify,
}

/// A signal to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallSignal {
    /// The caller cancels the call.
    Cancel,
    /// The caller has disconnected.
    Disconnected,
    /// The attempt signals progress.
    Progress,
    /// The last follower of the same run has cancelled its call.
    LastFollowerLeft,
}

/// Cancellation of the attempts of one call: all attempts up to a number. They are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct AttemptCancellation {
    last: AtomicU32,
    changed: Notify,
}

impl AttemptCancellation {
    /// Cancels this attempt and all before it.
    pub(crate) fn cancel(&self, attempt: u32) {
        self.last.fetch_max(attempt, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_cancelled(&self, attempt: u32) -> bool {
        attempt <= self.last.load(Ordering::Acquire)
    }

    pub(crate) async fn cancelled(&self, attempt: u32) {
        loop {
            let changed = self.changed.notified();
            if self.is_cancelled(attempt) {
                return;
            }
            changed.await;
        }
    }
}

const CANCEL: u8 = 1;
const GONE: u8 = 2;
const PROGRESS: u8 = 4;
const ALONE: u8 = 8;

impl CallSignals {
    pub(crate) fn cancel(&self) {
        self.raise(CANCEL);
    }

    pub(crate) fn disconnect(&self) {
        self.raise(GONE);
    }

    pub(crate) fn alone(&self) {
        self.raise(ALONE);
    }

    pub(crate) fn progress(&self) {
        self.signs.fetch_add(1, Ordering::AcqRel);
        self.shown.notify_waiters();
        self.raise(PROGRESS);
    }

    /// Waits until the number of progress signals differs from `last_count`, and returns it. For surfaces that pass
    /// them on; the call itself waits for [signals](Self::next_signal).
    pub(crate) async fn wait_for_progress(&self, last_count: u32) -> u32 {
        loop {
            let shown = self.shown.notified();
            let count = self.signs.load(Ordering::Acquire);
            if count != last_count {
                return count;
            }
            shown.await;
        }
    }

    /// Waits for the next signal and lowers it. A cancellation takes precedence over the others.
    pub(crate) async fn next_signal(&self) -> CallSignal {
        loop {
            let changed = self.changed.notified();
            if let Some(signal) = self.take() {
                return signal;
            }
            changed.await;
        }
    }

    /// Returns the signal if the caller has disconnected or cancelled, without waiting.
    pub(crate) fn left(&self) -> Option<CallSignal> {
        let raised = self.raised.load(Ordering::Acquire);
        if raised & (CANCEL | GONE) != 0 { self.take() } else { None }
    }

    fn take(&self) -> Option<CallSignal> {
        let raised = self.raised.load(Ordering::Acquire);
        let (bit, signal) = match raised {
            0 => return None,
            raised if raised & CANCEL != 0 => (CANCEL, CallSignal::Cancel),
            raised if raised & GONE != 0 => (GONE, CallSignal::Disconnected),
            raised if raised & PROGRESS != 0 => (PROGRESS, CallSignal::Progress),
            _ => (ALONE, CallSignal::LastFollowerLeft),
        };
        self.raised.fetch_and(!bit, Ordering::AcqRel);
        Some(signal)
    }

    fn raise(&self, bit: u8) {
        self.raised.fetch_or(bit, Ordering::AcqRel);
        self.changed.notify_one();
    }
}

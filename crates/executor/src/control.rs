//! What is said to a call from outside while it is under way.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use tokio::sync::Notify;

/// The ear of one call. Signals do not queue: each is either raised or not.
#[derive(Debug, Default)]
pub(crate) struct Control {
    raised: AtomicU8,
    changed: Notify,
    signs: AtomicU32,
    shown: Notify,
}

/// Something that was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The caller withdraws the call.
    Cancel,
    /// The caller is gone.
    Gone,
    /// The attempt shows a sign of life.
    Progress,
    /// The last of those who waited for the same run has withdrawn its call.
    Alone,
}

/// What is said to the attempts of one call: from which of them on an answer is still wanted. They are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Unwanted {
    last: AtomicU32,
    changed: Notify,
}

impl Unwanted {
    /// Nobody wants the answer of this attempt any more, nor that of one before it.
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

impl Control {
    pub(crate) fn cancel(&self) {
        self.raise(CANCEL);
    }

    pub(crate) fn gone(&self) {
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

    /// How many signs of life were shown, once there are others than so many. For whoever passes them on; the call itself
    /// [hears](Self::heard) them.
    pub(crate) async fn signs(&self, seen: u32) -> u32 {
        loop {
            let shown = self.shown.notified();
            let signs = self.signs.load(Ordering::Acquire);
            if signs != seen {
                return signs;
            }
            shown.await;
        }
    }

    /// Waits for the next signal and lowers it. A cancel counts before everything else.
    pub(crate) async fn heard(&self) -> Signal {
        loop {
            let changed = self.changed.notified();
            if let Some(signal) = self.take() {
                return signal;
            }
            changed.await;
        }
    }

    /// Whether the caller has gone or has withdrawn the call, without waiting for it.
    pub(crate) fn left(&self) -> Option<Signal> {
        let raised = self.raised.load(Ordering::Acquire);
        if raised & (CANCEL | GONE) != 0 { self.take() } else { None }
    }

    fn take(&self) -> Option<Signal> {
        let raised = self.raised.load(Ordering::Acquire);
        let (bit, signal) = match raised {
            0 => return None,
            raised if raised & CANCEL != 0 => (CANCEL, Signal::Cancel),
            raised if raised & GONE != 0 => (GONE, Signal::Gone),
            raised if raised & PROGRESS != 0 => (PROGRESS, Signal::Progress),
            _ => (ALONE, Signal::Alone),
        };
        self.raised.fetch_and(!bit, Ordering::AcqRel);
        Some(signal)
    }

    fn raise(&self, bit: u8) {
        self.raised.fetch_or(bit, Ordering::AcqRel);
        self.changed.notify_one();
    }
}

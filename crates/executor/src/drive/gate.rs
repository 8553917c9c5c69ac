//! The limit of calls in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use steadfast_core::code::Code;
use steadfast_core::envelope::ErrorBody;
use tokio::sync::Notify;

/// Counter of the calls in flight.
#[derive(Debug)]
pub(crate) struct CallGate {
    open: AtomicUsize,
    most: usize,
    closing: AtomicBool,
    left: Notify,
}

/// A slot in the limit of calls in flight, released on drop.
pub(crate) struct CallPermit(Arc<CallGate>);

impl CallGate {
    pub(crate) fn of_at_most(most: usize) -> Self {
        Self { open: AtomicUsize::new(0), most, closing: AtomicBool::new(false), left: Notify::new() }
    }

    pub(crate) fn enter(self: &Arc<Self>) -> Option<CallPermit> {
        let inside = self.open.fetch_add(1, Ordering::AcqRel);
        let place = CallPermit(self.clone());
        // A slot is always counted and released on drop, also if there was no room.
        (inside < self.most && !self.closing.load(Ordering::Acquire)).then_some(place)
    }

    /// Refuses further calls.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Returns the number of calls in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn refusal(&self) -> ErrorBody {
        let message = if self.closing.load(Ordering::Acquire) {
            "the call was not run: steadfast is being shut down. Call again in a moment"
        } else {
            "the call was not run: concurrency limit reached. Wait a moment, then call again"
        };
        ErrorBody::temporary(Code::Overloaded, message)
    }

    pub(crate) async fn empty(&self) {
        loop {
            let left = self.left.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let gate = &self.0;
        if gate.open.fetch_sub(1, Ordering::AcqRel) == 1 && gate.closing.load(Ordering::Acquire) {
            gate.left.notify_waiters();
        }
    }
}

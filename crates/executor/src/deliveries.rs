//! Answers that have reached their callers.
//!
//! The process that wrote an answer knows first that it has arrived. The mark in the store follows when it can;
//! until then claims take this process's word for it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Claim, Receipt};
use steadfast_store::Store;
use tokio::sync::mpsc;

/// An answer that can be marked as delivered, and where its record is.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub(crate) receipt: Receipt,
    pub(crate) store: Arc<dyn Store>,
}

/// What this process knows of deliveries and the store may not know yet.
#[derive(Debug)]
pub(crate) struct Deliveries {
    /// In the order of the queue.
    known: Mutex<VecDeque<(Receipt, Timestamp)>>,
    queue: mpsc::Sender<(Arrival, Timestamp)>,
}

/// Deliveries that wait to be written. More are dropped: a mark that is missing means one replay, said to be one.
const MOST: usize = 4096;

impl Deliveries {
    /// The list, and what has to be written.
    pub(crate) fn new() -> (Self, mpsc::Receiver<(Arrival, Timestamp)>) {
        let (queue, waiting) = mpsc::channel(MOST);
        (Self { known: Mutex::default(), queue }, waiting)
    }

    /// What is known to whoever claims this.
    pub(crate) fn known_to(&self, claim: &Claim) -> Vec<(Receipt, Timestamp)> {
        let known = self.known.lock();
        known.iter().filter(|(receipt, _)| claim.may_find(receipt.key)).cloned().collect()
    }

    pub(crate) fn has_arrived(&self, receipt: &Receipt) -> bool {
        self.known.lock().iter().any(|(known, _)| known == receipt)
    }

    pub(crate) fn arrived(&self, arrival: Arrival, at: Timestamp) {
        let receipt = arrival.receipt.clone();
        // Known before it can be written: what the writer has done with must not be put on the list after that.
        let mut known = self.known.lock();
        if self.queue.try_send((arrival, at)).is_ok() {
            known.push_back((receipt, at));
        }
    }

    /// Writes the marks, one after the other, for as long as the engine lives.
    pub(crate) async fn write(&self, mut waiting: mpsc::Receiver<(Arrival, Timestamp)>) {
        while let Some((arrival, at)) = waiting.recv().await {
            // A mark that does not get through is not repeated: the answer is given again, and says so.
            let _ = arrival.store.delivered(&arrival.receipt, at).await;
            self.known.lock().pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::dedupe::Owner;
    use steadfast_core::id::Digest;
    use steadfast_core::key::Key;
    use steadfast_store::{MemoryOptions, MemoryStore, this_process};

    use super::*;
    use crate::RuntimeClock;

    #[tokio::test(start_paused = true)]
    async fn what_is_written_is_no_longer_kept_here() {
        let store: Arc<dyn Store> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        let (deliveries, waiting) = Deliveries::new();
        let receipts = ["a", "b"].map(|name| Receipt {
            key: Key(Digest::of(name.as_bytes())),
            owner: Owner { process: this_process(), call: 1, claim: 1 },
            version: 1,
        });
        for receipt in &receipts {
            deliveries.arrived(Arrival { receipt: receipt.clone(), store: store.clone() }, store.now());
            assert!(deliveries.has_arrived(receipt));
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), deliveries.write(waiting)).await;
        assert!(receipts.iter().all(|receipt| !deliveries.has_arrived(receipt)));
    }
}

//! Responses that have reached their callers.
//!
//! The process that wrote a response knows first that it has arrived. The mark in the store follows later. Until then,
//! claims use the knowledge of this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Claim, ClaimOwner, DeliveryReceipt};
use steadfast_core::id::Namespace;
use steadfast_store::StateStore;
use tokio::sync::{mpsc, watch};

use crate::keys::SessionId;

/// A response that can be marked as delivered, with its record. Once every copy is dropped, it is never marked.
#[derive(Clone, Debug)]
pub struct DeliveryHandle {
    pub(crate) receipt: DeliveryReceipt,
    pub(crate) store: Arc<dyn StateStore>,
    /// Recipient and server of a final response that an outcome is unknown.
    pub(crate) recipient: Option<OutcomeRecipient>,
    has_arrived: Arc<watch::Sender<bool>>,
}

/// Session that was informed of an unknown outcome, and the server of its tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutcomeRecipient {
    pub(crate) session: SessionId,
    pub(crate) server: Namespace,
}

/// Deliveries that this process knows of and the store may not know yet.
#[derive(Debug)]
pub(crate) struct Deliveries {
    /// In the order of the queue.
    known: Mutex<VecDeque<(DeliveryReceipt, Timestamp)>>,
    /// Responses that were handed over and whose delivery is not known yet.
    in_doubt: Mutex<VecDeque<(DeliveryReceipt, watch::Receiver<bool>)>>,
    /// The last responses that were handed over.
    handed: Mutex<VecDeque<Handover>>,
    /// The last responses that were handed over before they could be saved, in order.
    unsaved: Mutex<VecDeque<(ClaimOwner, u64)>>,
    queue: mpsc::Sender<(DeliveryHandle, Timestamp)>,
}

/// A response that was handed over.
#[derive(Debug)]
struct Handover {
    owner: ClaimOwner,
    /// Sequence number among arrivals of calls and handovers of responses.
    at: u64,
    has_arrived: watch::Receiver<bool>,
}

/// Number of responses whose time of handover is kept. Calls that arrived before it overlap with them.
const MOST_HANDED: usize = 128;

/// Maximum number of deliveries that wait to be written. More are dropped: a missing mark causes one replay, which is
/// reported as a replay.
const MOST: usize = 4096;

/// Number of responses that are kept although their delivery is known.
const FEW: usize = 64;

/// Maximum time that a call waits for the delivery of a response that it would replay. After 5 s a connection has
/// confirmed the response or is known to be lost.
const IN_DOUBT: Duration = Duration::from_secs(6);

impl Deliveries {
    /// Creates the list, and the receiver of deliveries to write.
    pub(crate) fn new() -> (Self, mpsc::Receiver<(DeliveryHandle, Timestamp)>) {
        let (queue, waiting) = mpsc::channel(MOST);
        let (known, in_doubt) = (Mutex::default(), Mutex::default());
        let (handed, unsaved) = (Mutex::default(), Mutex::default());
        (Self { known, in_doubt, handed, unsaved, queue }, waiting)
    }

    /// Notes the handover of a response. `at` is its sequence number.
    pub(crate) fn hand_over(
        &self,
        receipt: DeliveryReceipt,
        store: Arc<dyn StateStore>,
        recipient: Option<OutcomeRecipient>,
        at: u64,
    ) -> DeliveryHandle {
        let has_arrived = watch::Sender::new(false);
        let mut handed = self.handed.lock();
        if handed.len() >= MOST_HANDED {
            handed.pop_front();
        }
        handed.push_back(Handover { owner: receipt.owner.clone(), at, has_arrived: has_arrived.subscribe() });
        drop(handed);
        let mut in_doubt = self.in_doubt.lock();
        // Those at the front are mostly known in order. A few stay for callers that have just got a replay.
        let is_known = |doubted: &VecDeque<(DeliveryReceipt, watch::Receiver<bool>)>| {
            doubted.front().is_some_and(|(_, word)| is_known(word))
        };
        while in_doubt.len() >= MOST || (in_doubt.len() > FEW && is_known(&in_doubt)) {
            in_doubt.pop_front();
        }
        in_doubt.push_back((receipt.clone(), has_arrived.subscribe()));
        drop(in_doubt);
        DeliveryHandle { receipt, store, recipient, has_arrived: Arc::new(has_arrived) }
    }

    /// Returns the owners of runs that overlap with a call of this sequence number: their responses were handed over
    /// after its arrival. A later replay of a response causes no overlap with calls that came after its first delivery.
    pub(crate) fn overlapping(&self, received: u64) -> Vec<ClaimOwner> {
        let handed = self.handed.lock();
        let had_arrived = |owner: &ClaimOwner| {
            handed.iter().any(|one| one.at <= received && one.owner == *owner && *one.has_arrived.borrow())
        };
        let later = handed.iter().filter(|one| one.at > received && !had_arrived(&one.owner));
        later.map(|one| one.owner.clone()).collect()
    }

    /// Notes the handover of a response that the store could not take. It is saved later.
    pub(crate) fn hand_over_unsaved(&self, owner: ClaimOwner, at: u64) {
        let mut unsaved = self.unsaved.lock();
        if unsaved.len() >= MOST_HANDED {
            unsaved.pop_front();
        }
        unsaved.push_back((owner, at));
    }

    /// Returns the owners of unsaved responses that were handed over before a call of this sequence number arrived.
    pub(crate) fn answered_unsaved(&self, received: u64) -> Vec<ClaimOwner> {
        let unsaved = self.unsaved.lock();
        unsaved.iter().filter(|(_, at)| *at <= received).map(|(owner, _)| owner.clone()).collect()
    }

    /// Returns true if this response has arrived. Waits if that is not known yet.
    ///
    /// A client that closes its connection after the response and makes the same call on a new one may be faster than
    /// the confirmation from the old one.
    pub(crate) async fn arrives(&self, receipt: &DeliveryReceipt) -> bool {
        // All followers of a run get its response.
        let handed_over = |(doubted, word): &(DeliveryReceipt, watch::Receiver<bool>)| {
            (doubted == receipt).then(|| word.clone())
        };
        let words: Vec<_> = self.in_doubt.lock().iter().filter_map(handed_over).collect();
        if words.is_empty() {
            return false;
        }
        let arriving = words.into_iter().map(|mut word| {
            Box::pin(async move { word.wait_for(|has_arrived| *has_arrived).await.map(drop) })
        });
        let first = tokio::time::timeout(IN_DOUBT, select_ok(arriving)).await;
        first.is_ok_and(|first| first.is_ok())
    }

    /// Returns the deliveries that matter for a claim.
    pub(crate) fn known_to(&self, claim: &Claim) -> Vec<(DeliveryReceipt, Timestamp)> {
        let known = self.known.lock();
        known.iter().filter(|(receipt, _)| claim.may_find(receipt.key)).cloned().collect()
    }

    pub(crate) fn has_arrived(&self, receipt: &DeliveryReceipt) -> bool {
        self.known.lock().iter().any(|(known, _)| known == receipt)
    }

    pub(crate) fn arrived(&self, arrival: DeliveryHandle, at: Timestamp) {
        let receipt = arrival.receipt.clone();
        // Listed before it can be written: otherwise the writer might finish first, and the entry would stay.
        let mut known = self.known.lock();
        let has_arrived = Arc::clone(&arrival.has_arrived);
        if self.queue.try_send((arrival, at)).is_ok() {
            known.push_back((receipt, at));
        }
        drop(known);
        has_arrived.send_replace(true);
    }

    /// Writes the marks, one after the other, for as long as the engine lives.
    pub(crate) async fn write(&self, mut waiting: mpsc::Receiver<(DeliveryHandle, Timestamp)>) {
        while let Some((arrival, at)) = waiting.recv().await {
            // A mark that fails is not retried: the response is replayed, and reported as a replay.
            let _ = arrival.store.delivered(&arrival.receipt, at).await;
            self.known.lock().pop_front();
        }
    }
}

/// Returns true if the fate of a response is known: it has arrived, or never will.
fn is_known(word: &watch::Receiver<bool>) -> bool {
    *word.borrow() || word.has_changed().is_err()
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::Digest;
    use steadfast_core::key::RecordKey;
    use steadfast_store::{MemoryOptions, MemoryStore, this_process};

    use super::*;
    use crate::RuntimeClock;

    #[tokio::test(start_paused = true)]
    async fn what_is_written_is_no_longer_kept_here() {
        let store: Arc<dyn StateStore> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        let (deliveries, waiting) = Deliveries::new();
        let receipts = ["a", "b"].map(|name| DeliveryReceipt {
            key: RecordKey(Digest::of(name.as_bytes())),
            owner: ClaimOwner { process: this_process(), call: 1, claim: 1 },
            version: 1,
        });
        for receipt in &receipts {
            let arrival = deliveries.hand_over(receipt.clone(), store.clone(), None, 0);
            deliveries.arrived(arrival, store.now());
            assert!(deliveries.has_arrived(receipt));
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), deliveries.write(waiting)).await;
        assert!(receipts.iter().all(|receipt| !deliveries.has_arrived(receipt)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replayed_response_overlaps_with_no_call_that_came_after_the_first_delivery() {
        let store: Arc<dyn StateStore> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        for arrives in [true, false] {
            let (deliveries, _waiting) = Deliveries::new();
            let receipt = DeliveryReceipt {
                key: RecordKey(Digest::of(b"a")),
                owner: ClaimOwner { process: this_process(), call: 1, claim: 1 },
                version: 1,
            };
            let first = deliveries.hand_over(receipt.clone(), store.clone(), None, 10);
            assert_eq!(deliveries.overlapping(5), std::slice::from_ref(&receipt.owner));
            if arrives {
                deliveries.arrived(first, store.now());
            }
            // The same call, dispatched twice, gets the same response after another one has arrived.
            let _second = deliveries.hand_over(receipt.clone(), store.clone(), None, 20);
            assert_eq!(deliveries.overlapping(15).is_empty(), arrives);
            assert!(deliveries.overlapping(25).is_empty());
            assert!(!deliveries.overlapping(5).is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_in_doubt_until_it_has_arrived_or_is_lost() {
        let store: Arc<dyn StateStore> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        let (deliveries, _waiting) = Deliveries::new();
        let receipt = |version| DeliveryReceipt {
            key: RecordKey(Digest::of(b"a")),
            owner: ClaimOwner { process: this_process(), call: 1, claim: 1 },
            version,
        };
        let hand_over = |version| deliveries.hand_over(receipt(version), store.clone(), None, 0);
        assert!(!deliveries.arrives(&receipt(1)).await, "nobody has handed it over");
        for (version, arrives) in [(1, true), (2, false)] {
            let arrival = hand_over(version);
            let one = receipt(version);
            let (has_arrived, ()) = tokio::join!(deliveries.arrives(&one), async {
                match arrives {
                    true => deliveries.arrived(arrival, store.now()),
                    false => drop(arrival),
                }
            });
            assert_eq!((has_arrived, deliveries.has_arrived(&one)), (arrives, arrives));
            assert_eq!(deliveries.arrives(&one).await, arrives, "it is known now");
        }
        // One delivery of several is enough, and the wait always ends.
        let first = hand_over(3);
        let second = hand_over(3);
        assert!(!deliveries.arrives(&receipt(3)).await);
        drop(first);
        deliveries.arrived(second, store.now());
        assert!(deliveries.arrives(&receipt(3)).await);
    }
}

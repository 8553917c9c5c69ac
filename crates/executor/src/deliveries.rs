//! Answers that have reached their callers.
//!
//! The process that wrote an answer knows first that it has arrived. The mark in the store follows when it can;
//! until then claims take this process's word for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Claim, Owner, Receipt};
use steadfast_store::Store;
use tokio::sync::{mpsc, watch};

use crate::verification::Told;

/// An answer that can be marked as delivered, and where its record is. Once every copy is dropped, it never will be.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub(crate) receipt: Receipt,
    pub(crate) store: Arc<dyn Store>,
    /// Where it is the final answer that an outcome is unknown: who was told, and of which server.
    pub(crate) told: Option<Told>,
    has_arrived: Arc<watch::Sender<bool>>,
}

/// What this process knows of deliveries and the store may not know yet.
#[derive(Debug)]
pub(crate) struct Deliveries {
    /// In the order of the queue.
    known: Mutex<VecDeque<(Receipt, Timestamp)>>,
    /// Answers that were handed over, and of which nobody knows yet whether they have arrived.
    in_doubt: Mutex<VecDeque<(Receipt, watch::Receiver<bool>)>>,
    /// The last answers that were handed over.
    handed: Mutex<VecDeque<Handed>>,
    /// The last answers that were handed over before they could be saved, in their order.
    unsaved: Mutex<VecDeque<(Owner, u64)>>,
    queue: mpsc::Sender<(Arrival, Timestamp)>,
}

/// An answer that was handed over.
#[derive(Debug)]
struct Handed {
    owner: Owner,
    /// Its place in the order of what comes and what is handed over.
    at: u64,
    has_arrived: watch::Receiver<bool>,
}

/// Answers of which it is remembered when they were handed over: calls that came before that overlap with theirs.
const MOST_HANDED: usize = 128;

/// Deliveries that wait to be written. More are dropped: a mark that is missing means one replay, said to be one.
const MOST: usize = 4096;

/// So many are kept although it is known what became of them.
const FEW: usize = 64;

/// How long a call waits for word of an answer that it would be given again. A connection is known to have carried its answer
/// after 5 s, or to be lost.
const IN_DOUBT: Duration = Duration::from_secs(6);

impl Deliveries {
    /// The list, and what has to be written.
    pub(crate) fn new() -> (Self, mpsc::Receiver<(Arrival, Timestamp)>) {
        let (queue, waiting) = mpsc::channel(MOST);
        let (known, in_doubt) = (Mutex::default(), Mutex::default());
        let (handed, unsaved) = (Mutex::default(), Mutex::default());
        (Self { known, in_doubt, handed, unsaved, queue }, waiting)
    }

    /// An answer is handed over, at this place in the order of things.
    pub(crate) fn hand_over(
        &self,
        receipt: Receipt,
        store: Arc<dyn Store>,
        told: Option<Told>,
        at: u64,
    ) -> Arrival {
        let has_arrived = watch::Sender::new(false);
        let mut handed = self.handed.lock();
        if handed.len() >= MOST_HANDED {
            handed.pop_front();
        }
        handed.push_back(Handed { owner: receipt.owner.clone(), at, has_arrived: has_arrived.subscribe() });
        drop(handed);
        let mut in_doubt = self.in_doubt.lock();
        // Those before it are known one after the other, mostly. A few are kept for whoever has just been given one again.
        let is_known = |doubted: &VecDeque<(Receipt, watch::Receiver<bool>)>| {
            doubted.front().is_some_and(|(_, word)| is_known(word))
        };
        while in_doubt.len() >= MOST || (in_doubt.len() > FEW && is_known(&in_doubt)) {
            in_doubt.pop_front();
        }
        in_doubt.push_back((receipt.clone(), has_arrived.subscribe()));
        drop(in_doubt);
        Arrival { receipt, store, told, has_arrived: Arc::new(has_arrived) }
    }

    /// The runs that a call overlaps with which came at this place: their answers were handed over after that. An answer that
    /// is given again later makes no call overlap that came when the first one had arrived.
    pub(crate) fn overlapping(&self, received: u64) -> Vec<Owner> {
        let handed = self.handed.lock();
        let had_arrived = |owner: &Owner| {
            handed.iter().any(|one| one.at <= received && one.owner == *owner && *one.has_arrived.borrow())
        };
        let later = handed.iter().filter(|one| one.at > received && !had_arrived(&one.owner));
        later.map(|one| one.owner.clone()).collect()
    }

    /// An answer is handed over that the store could not take, at this place in the order of things. It is saved later.
    pub(crate) fn hand_over_unsaved(&self, owner: Owner, at: u64) {
        let mut unsaved = self.unsaved.lock();
        if unsaved.len() >= MOST_HANDED {
            unsaved.pop_front();
        }
        unsaved.push_back((owner, at));
    }

    /// Those that were handed over before a call came that came at this place.
    pub(crate) fn answered_unsaved(&self, received: u64) -> Vec<Owner> {
        let unsaved = self.unsaved.lock();
        unsaved.iter().filter(|(_, at)| *at <= received).map(|(owner, _)| owner.clone()).collect()
    }

    /// Whether this answer has arrived, also where nobody knows that yet: it is waited for.
    ///
    /// A client that ends its connection when it has its answer, and makes the same call on a new one, may be quicker than the
    /// news of the old one.
    pub(crate) async fn arrives(&self, receipt: &Receipt) -> bool {
        // Everyone who waited for a run gets its answer.
        let handed_over =
            |(doubted, word): &(Receipt, watch::Receiver<bool>)| (doubted == receipt).then(|| word.clone());
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
        let has_arrived = Arc::clone(&arrival.has_arrived);
        if self.queue.try_send((arrival, at)).is_ok() {
            known.push_back((receipt, at));
        }
        drop(known);
        has_arrived.send_replace(true);
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

/// Whether it is known what became of an answer: it has arrived, or never will.
fn is_known(word: &watch::Receiver<bool>) -> bool {
    *word.borrow() || word.has_changed().is_err()
}

#[cfg(test)]
mod tests {
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
            let arrival = deliveries.hand_over(receipt.clone(), store.clone(), None, 0);
            deliveries.arrived(arrival, store.now());
            assert!(deliveries.has_arrived(receipt));
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), deliveries.write(waiting)).await;
        assert!(receipts.iter().all(|receipt| !deliveries.has_arrived(receipt)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_given_again_makes_nobody_overlap_who_came_after_the_first_one() {
        let store: Arc<dyn Store> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        for arrives in [true, false] {
            let (deliveries, _waiting) = Deliveries::new();
            let receipt = Receipt {
                key: Key(Digest::of(b"a")),
                owner: Owner { process: this_process(), call: 1, claim: 1 },
                version: 1,
            };
            let first = deliveries.hand_over(receipt.clone(), store.clone(), None, 10);
            assert_eq!(deliveries.overlapping(5), std::slice::from_ref(&receipt.owner));
            if arrives {
                deliveries.arrived(first, store.now());
            }
            // The same call, dispatched twice, gets the same answer after another one has come.
            let _second = deliveries.hand_over(receipt.clone(), store.clone(), None, 20);
            assert_eq!(deliveries.overlapping(15).is_empty(), arrives);
            assert!(deliveries.overlapping(25).is_empty());
            assert!(!deliveries.overlapping(5).is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_in_doubt_until_it_has_arrived_or_is_lost() {
        let store: Arc<dyn Store> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        let (deliveries, _waiting) = Deliveries::new();
        let receipt = |version| Receipt {
            key: Key(Digest::of(b"a")),
            owner: Owner { process: this_process(), call: 1, claim: 1 },
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
        // One of several who get it is enough, and nobody waits for ever.
        let first = hand_over(3);
        let second = hand_over(3);
        assert!(!deliveries.arrives(&receipt(3)).await);
        drop(first);
        deliveries.arrived(second, store.now());
        assert!(deliveries.arrives(&receipt(3)).await);
    }
}

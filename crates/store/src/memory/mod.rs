//! The store of one process: a sharded, bounded map, which is lost when the process ends.
//!
//! Every operation is done when it is called, under the locks of the shards that it touches, and the returned futures
//! are ready. The tables of the core decide, and [`shards`] executes their decisions.
//!
//! The number of records is limited. Open records are pinned. Of the finished ones, the least useful are evicted
//! first (see [`evict`](RecordShards::make_room)). If the store is full of open records, the call is refused: evicting an
//! open record could run its call twice.

mod documents;
mod eviction;
mod followers;
mod journals;
mod shards;
#[cfg(test)]
mod tests;

use std::collections::BinaryHeap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt, FoundRecords,
    LeaseOwnerState, LocalKnowledge, ProcessIdentity, RecordAbsence, RecordWrite, ReleaseRequest,
    RenewVerdict, ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict, StartVerdict,
    decide_abandoned, decide_claim, decide_delivered, decide_release, decide_renew, decide_resolve,
    decide_save, decide_start,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use tokio::sync::broadcast;

use self::documents::DocumentMap;
use self::journals::JournalSet;
use self::shards::{RecordShards, ShardWriteOutcome};
use crate::clock::{SystemClock, TimeSource};
use crate::document::{Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome};
use crate::error::{StoreError, StoreErrorKind};
use crate::event::StoreEvent;
use crate::journal::{Journal, JournalEntry, JournalLimits, JournalPosition, JournalQuery};
use crate::process::{LocalProcessMonitor, ProcessMonitor, this_process};
use crate::selection::{FlushTarget, RecordFilter, RecordPage, SweepResult};
use crate::{StateStore, StoreFuture};

/// Options of a memory store.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The most records. Each needs about 1 KiB, and its output.
    pub most: usize,
    /// The most bytes of outputs: 25,000 records with the largest output would exceed any memory.
    pub most_bytes: usize,
    /// The clock.
    pub clock: Arc<dyn TimeSource>,
    /// The process whose calls are stored. Its claims live as long as the process.
    pub process: ProcessIdentity,
    /// Judges other processes, if their records get here.
    pub sight: Arc<dyn ProcessMonitor>,
}

impl MemoryOptions {
    /// Returns the default limits with this clock, for the claims of this process.
    pub fn new(clock: Arc<dyn TimeSource>) -> Self {
        let process = this_process();
        Self {
            most: 25_000,
            most_bytes: 256 << 20,
            clock,
            sight: Arc::new(LocalProcessMonitor::of(process.clone())),
            process,
        }
    }
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock::default()))
    }
}

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    shards: RecordShards,
    documents: DocumentMap,
    journals: JournalSet,
    clock: Arc<dyn TimeSource>,
    process: ProcessIdentity,
    sight: Arc<dyn ProcessMonitor>,
    /// Never sent on: there are no other writers, and the data is only lost with the process.
    events: broadcast::Sender<StoreEvent>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(options: MemoryOptions) -> Self {
        Self {
            shards: RecordShards::new(options.most, options.most_bytes),
            documents: DocumentMap::default(),
            journals: JournalSet::default(),
            clock: options.clock,
            process: options.process,
            sight: options.sight,
            events: broadcast::Sender::new(1),
        }
    }

    fn sight(&self, owner: &ClaimOwner) -> LeaseOwnerState {
        self.sight.check_process(&owner.process)
    }

    /// Tries to claim. Returns `None` if there is no room.
    fn try_claim(&self, claim: &Claim, known: &LocalKnowledge, now: Timestamp) -> Option<ClaimVerdict> {
        let (own, index) = (claim.address.own(), claim.address.index());
        let followed = match claim.role {
            ClaimRole::Waiter { followed } => Some(followed),
            ClaimRole::Fresh => None,
        };
        let see = |record: &'_ DedupeRecord| self.sight(&record.owner);
        self.shards.atomically([Some(own), index, followed], |locked| {
            let own = locked.record(own)?;
            let indexed = locked.indexed(index)?;
            let followed = followed.map_or(Ok(None), |key| locked.record(key))?;
            let found = FoundRecords {
                followed: followed.map(|record| (record, see(record))),
                own: own.map(|record| (record, see(record))),
                indexed: indexed.map(|record| (record, see(record))),
            };
            let decided = decide_claim(claim, found, known, now);
            Ok(match locked.carry_out(decided.write)? {
                ShardWriteOutcome::Out => Some(decided.verdict),
                ShardWriteOutcome::NoRoom => None,
            })
        })
    }

    fn try_save(&self, save: &SaveRequest, now: Timestamp) -> Option<SaveVerdict> {
        let (key, index) = (save.claimed.key, save.claimed.index);
        self.shards.atomically([Some(key), index, None], |locked| {
            let decided = decide_save(save, locked.record(key)?, locked.indexed(index)?, now);
            Ok(match locked.carry_out(decided.write)? {
                ShardWriteOutcome::Out => Some(decided.verdict),
                ShardWriteOutcome::NoRoom => None,
            })
        })
    }

    /// Tries until there is room. Returns `None` if no room can be made.
    fn with_room<V>(&self, now: Timestamp, mut attempt: impl FnMut() -> Option<V>) -> Option<V> {
        loop {
            if let Some(verdict) = attempt() {
                return Some(verdict);
            }
            if !self.shards.make_room(now) {
                return None;
            }
        }
    }

    /// Applies a decision to the one record under this key. Such writes replace an existing record, so there is
    /// always room.
    fn change<V>(&self, key: RecordKey, decide: impl Fn(Option<&DedupeRecord>) -> (V, RecordWrite)) -> V {
        self.shards.atomically([Some(key), None, None], |locked| {
            let (verdict, write) = decide(locked.record(key)?);
            locked.carry_out(write)?;
            Ok(verdict)
        })
    }

    fn flush_finished(&self, selection: &RecordFilter) -> u64 {
        let mut flushed = 0;
        for key in self.shards.keys(|record| !record.is_open() && selection.matches(record)) {
            let finished = |record: &DedupeRecord| !record.is_open() && selection.matches(record);
            flushed += u64::from(self.shards.remove_if(key, finished));
        }
        flushed
    }

    /// Returns the keys of a page.
    fn page(&self, selection: &RecordFilter, page: RecordPage, now: Timestamp) -> Vec<RecordKey> {
        let mut first = BinaryHeap::new();
        self.shards.each(|record| {
            let behind = page.after.is_none_or(|after| record.key > after);
            if behind && selection.matches(record) && !record.is_expired(now) {
                first.push(record.key);
                if first.len() > page.limit {
                    first.pop();
                }
            }
        });
        first.into_sorted_vec()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl StateStore for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a LocalKnowledge) -> StoreFuture<'a, ClaimVerdict> {
        let now = self.clock.now();
        let verdict = self.with_room(now, || self.try_claim(claim, known, now));
        self.shards.bound_pointers();
        done(verdict.unwrap_or(ClaimVerdict::Full))
    }

    fn start<'a>(&'a self, key: RecordKey, owner: &'a ClaimOwner) -> StoreFuture<'a, StartVerdict> {
        let now = self.clock.now();
        done(self.change(key, |found| {
            let decided = decide_start(owner, found, now);
            (decided.verdict, decided.write)
        }))
    }

    fn renew<'a>(
        &'a self,
        claimed: &'a DedupeRecord,
        keep: &'a RecordLifetimes,
    ) -> StoreFuture<'a, RenewVerdict> {
        let now = self.clock.now();
        done(self.change(claimed.key, |found| {
            let decided = decide_renew(claimed, keep, found, RecordAbsence::Removed, now);
            (decided.verdict, decided.write)
        }))
    }

    fn save<'a>(&'a self, save: &'a SaveRequest) -> StoreFuture<'a, SaveVerdict> {
        let now = self.clock.now();
        let verdict = self.with_room(now, || self.try_save(save, now));
        if self.shards.is_heavy() {
            self.shards.make_room(now);
        }
        let full =
            || StoreError::not_done(StoreErrorKind::Full, "the memory store is full of calls in flight");
        Box::pin(ready(verdict.ok_or_else(full)))
    }

    fn release<'a>(&'a self, release: &'a ReleaseRequest) -> StoreFuture<'a, ()> {
        self.shards.atomically([Some(release.key), release.index, None], |locked| {
            let own = locked.record(release.key)?;
            let write = decide_release(release, own, locked.indexed(release.index)?);
            locked.carry_out(write)?;
            Ok(())
        });
        done(())
    }

    fn delivered<'a>(&'a self, receipt: &'a DeliveryReceipt, at: Timestamp) -> StoreFuture<'a, ()> {
        self.change(receipt.key, |found| ((), decide_delivered(receipt, at, found)));
        done(())
    }

    fn resolve<'a>(
        &'a self,
        resolve: &'a ResolutionRequest,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, ResolveVerdict> {
        let now = self.clock.now();
        done(self.change(resolve.key, |found| {
            let found = found.map(|record| (record, self.sight(&record.owner)));
            let decided = decide_resolve(resolve, found, rules, now);
            (decided.verdict, decided.write)
        }))
    }

    fn mark_abandoned<'a>(
        &'a self,
        key: RecordKey,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, Option<DedupeRecord>> {
        let now = self.clock.now();
        let marked = self.change(key, |found| {
            let decided =
                decide_abandoned(found.map(|record| (record, self.sight(&record.owner))), rules, now);
            (decided.verdict, decided.write)
        });
        done(marked.map(Arc::unwrap_or_clone))
    }

    fn settled<'a>(&'a self, key: RecordKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.wait_until_settled(key))
    }

    fn record(&self, key: RecordKey) -> StoreFuture<'_, Option<DedupeRecord>> {
        let now = self.clock.now();
        done(self.shards.with_record(key, |record| (!record.is_expired(now)).then(|| record.clone())))
    }

    fn records<'a>(
        &'a self,
        selection: &'a RecordFilter,
        page: RecordPage,
    ) -> StoreFuture<'a, Vec<DedupeRecord>> {
        let now = self.clock.now();
        let keys = self.page(selection, page, now);
        let holds = |record: &DedupeRecord| selection.matches(record) && !record.is_expired(now);
        let copy = |key| self.shards.with_record(key, |record| holds(record).then(|| record.clone()));
        done(keys.into_iter().filter_map(copy).collect())
    }

    fn flush<'a>(&'a self, flush: &'a FlushTarget) -> StoreFuture<'a, u64> {
        done(match flush {
            FlushTarget::Key(key) => u64::from(self.shards.remove_if(*key, |_| true)),
            FlushTarget::Finished(selection) => self.flush_finished(selection),
        })
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        let now = self.clock.now();
        let swept = self.shards.sweep(now);
        let removed = swept.removed + self.documents.sweep(now) + self.journals.sweep(now);
        done(SweepResult { removed, ..swept })
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        done(self.documents.read(name, self.clock.now()))
    }

    fn write<'a>(
        &'a self,
        name: &'a DocumentName,
        write: DocumentWrite,
    ) -> StoreFuture<'a, DocumentWriteOutcome> {
        Box::pin(ready(self.documents.write(name, write, self.clock.now())))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        done(self.documents.of(kind, self.clock.now()))
    }

    fn append<'a>(
        &'a self,
        journal: Journal,
        entries: &'a [JournalEntry],
        keep: JournalLimits,
    ) -> StoreFuture<'a, ()> {
        self.journals.append(journal, entries, keep, self.clock.now());
        done(())
    }

    fn entries<'a>(
        &'a self,
        query: &'a JournalQuery,
    ) -> StoreFuture<'a, Vec<(JournalPosition, JournalEntry)>> {
        done(self.journals.read(query))
    }

    fn events(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }
}

/// Every operation here is done before its future is polled.
fn done<'a, T: Send + 'a>(value: T) -> StoreFuture<'a, T> {
    Box::pin(ready(Ok(value)))
}

//! The store of one process: a sharded, bounded map, which is lost when the process ends.
//!
//! Every operation is done when it is called, under the locks of the shards that it touches, and the returned futures
//! are ready. The tables of the core decide, and [`shards`] executes their decisions.
//!
//! The number of records is limited. Open records are pinned. Of the finished ones, the least useful are evicted
//! first (see [`evict`](Shards::make_room)). If the store is full of open records, the call is refused: evicting an
//! open record could run its call twice.

mod documents;
mod evict;
mod journals;
mod shards;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::BinaryHeap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Absence, Claim, ClaimVerdict, Found, Known, LeaseSight, Owner, Process, Receipt, Record, Release,
    RenewVerdict, Resolve, ResolveVerdict, Role, Rules, Save, SaveVerdict, StartVerdict, Write,
    decide_abandoned, decide_claim, decide_delivered, decide_release, decide_renew, decide_resolve,
    decide_save, decide_start,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;
use tokio::sync::broadcast;

use self::documents::Documents;
use self::journals::Journals;
use self::shards::{Carried, Shards};
use crate::clock::{Clock, SystemClock};
use crate::document::{Document, DocumentKind, DocumentName, DocumentWrite, Written};
use crate::error::{StoreError, Trouble};
use crate::journal::{Entry, Journal, Keep, Position, Query};
use crate::news::News;
use crate::process::{Neighbours, Sight, this_process};
use crate::select::{Flush, Page, Selection, Swept};
use crate::{Store, StoreFuture};

/// Options of a memory store.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The most records. Each needs about 1 KiB, and its output.
    pub most: usize,
    /// The most bytes of outputs: 25,000 records with the largest output would exceed any memory.
    pub most_bytes: usize,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The process whose calls are stored. Its claims live as long as the process.
    pub process: Process,
    /// Judges other processes, if their records get here.
    pub sight: Arc<dyn Sight>,
}

impl MemoryOptions {
    /// Returns the default limits with this clock, for the claims of this process.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let process = this_process();
        Self {
            most: 25_000,
            most_bytes: 256 << 20,
            clock,
            sight: Arc::new(Neighbours::of(process.clone())),
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
    shards: Shards,
    documents: Documents,
    journals: Journals,
    clock: Arc<dyn Clock>,
    process: Process,
    sight: Arc<dyn Sight>,
    /// Never sent on: there are no other writers, and the data is only lost with the process.
    news: broadcast::Sender<News>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(options: MemoryOptions) -> Self {
        Self {
            shards: Shards::new(options.most, options.most_bytes),
            documents: Documents::default(),
            journals: Journals::default(),
            clock: options.clock,
            process: options.process,
            sight: options.sight,
            news: broadcast::Sender::new(1),
        }
    }

    fn sight(&self, owner: &Owner) -> LeaseSight {
        self.sight.sight(&owner.process)
    }

    /// Tries to claim. Returns `None` if there is no room.
    fn try_claim(&self, claim: &Claim, known: &Known, now: Timestamp) -> Option<ClaimVerdict> {
        let (own, index) = (claim.address.own(), claim.address.index());
        let followed = match claim.role {
            Role::Waiter { followed } => Some(followed),
            Role::Fresh => None,
        };
        let see = |record: &'_ Record| self.sight(&record.owner);
        self.shards.atomically([Some(own), index, followed], |locked| {
            let own = locked.record(own)?;
            let indexed = locked.indexed(index)?;
            let followed = followed.map_or(Ok(None), |key| locked.record(key))?;
            let found = Found {
                followed: followed.map(|record| (record, see(record))),
                own: own.map(|record| (record, see(record))),
                indexed: indexed.map(|record| (record, see(record))),
            };
            let decided = decide_claim(claim, found, known, now);
            Ok(match locked.carry_out(decided.write)? {
                Carried::Out => Some(decided.verdict),
                Carried::NoRoom => None,
            })
        })
    }

    fn try_save(&self, save: &Save, now: Timestamp) -> Option<SaveVerdict> {
        let (key, index) = (save.claimed.key, save.claimed.index);
        self.shards.atomically([Some(key), index, None], |locked| {
            let decided = decide_save(save, locked.record(key)?, locked.indexed(index)?, now);
            Ok(match locked.carry_out(decided.write)? {
                Carried::Out => Some(decided.verdict),
                Carried::NoRoom => None,
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
    fn change<V>(&self, key: Key, decide: impl Fn(Option<&Record>) -> (V, Write)) -> V {
        self.shards.atomically([Some(key), None, None], |locked| {
            let (verdict, write) = decide(locked.record(key)?);
            locked.carry_out(write)?;
            Ok(verdict)
        })
    }

    fn flush_finished(&self, selection: &Selection) -> u64 {
        let mut flushed = 0;
        for key in self.shards.keys(|record| !record.is_open() && selection.holds(record)) {
            let finished = |record: &Record| !record.is_open() && selection.holds(record);
            flushed += u64::from(self.shards.remove_if(key, finished));
        }
        flushed
    }

    /// Returns the keys of a page.
    fn page(&self, selection: &Selection, page: Page, now: Timestamp) -> Vec<Key> {
        let mut first = BinaryHeap::new();
        self.shards.each(|record| {
            let behind = page.after.is_none_or(|after| record.key > after);
            if behind && selection.holds(record) && !record.is_expired(now) {
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

impl Store for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a Known) -> StoreFuture<'a, ClaimVerdict> {
        let now = self.clock.now();
        let verdict = self.with_room(now, || self.try_claim(claim, known, now));
        self.shards.bound_pointers();
        done(verdict.unwrap_or(ClaimVerdict::Full))
    }

    fn start<'a>(&'a self, key: Key, owner: &'a Owner) -> StoreFuture<'a, StartVerdict> {
        let now = self.clock.now();
        done(self.change(key, |found| {
            let decided = decide_start(owner, found, now);
            (decided.verdict, decided.write)
        }))
    }

    fn renew<'a>(&'a self, claimed: &'a Record, keep: &'a Lifetimes) -> StoreFuture<'a, RenewVerdict> {
        let now = self.clock.now();
        done(self.change(claimed.key, |found| {
            let decided = decide_renew(claimed, keep, found, Absence::Removed, now);
            (decided.verdict, decided.write)
        }))
    }

    fn save<'a>(&'a self, save: &'a Save) -> StoreFuture<'a, SaveVerdict> {
        let now = self.clock.now();
        let verdict = self.with_room(now, || self.try_save(save, now));
        if self.shards.is_heavy() {
            self.shards.make_room(now);
        }
        let full = || StoreError::not_done(Trouble::Full, "the memory store is full of calls in flight");
        Box::pin(ready(verdict.ok_or_else(full)))
    }

    fn release<'a>(&'a self, release: &'a Release) -> StoreFuture<'a, ()> {
        self.shards.atomically([Some(release.key), release.index, None], |locked| {
            let own = locked.record(release.key)?;
            let write = decide_release(release, own, locked.indexed(release.index)?);
            locked.carry_out(write)?;
            Ok(())
        });
        done(())
    }

    fn delivered<'a>(&'a self, receipt: &'a Receipt, at: Timestamp) -> StoreFuture<'a, ()> {
        self.change(receipt.key, |found| ((), decide_delivered(receipt, at, found)));
        done(())
    }

    fn resolve<'a>(&'a self, resolve: &'a Resolve, rules: &'a Rules) -> StoreFuture<'a, ResolveVerdict> {
        let now = self.clock.now();
        done(self.change(resolve.key, |found| {
            let found = found.map(|record| (record, self.sight(&record.owner)));
            let decided = decide_resolve(resolve, found, rules, now);
            (decided.verdict, decided.write)
        }))
    }

    fn mark_abandoned<'a>(&'a self, key: Key, rules: &'a Rules) -> StoreFuture<'a, Option<Record>> {
        let now = self.clock.now();
        let marked = self.change(key, |found| {
            let decided =
                decide_abandoned(found.map(|record| (record, self.sight(&record.owner))), rules, now);
            (decided.verdict, decided.write)
        });
        done(marked.map(Arc::unwrap_or_clone))
    }

    fn settled<'a>(&'a self, key: Key) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.wait_until_settled(key))
    }

    fn record(&self, key: Key) -> StoreFuture<'_, Option<Record>> {
        let now = self.clock.now();
        done(self.shards.look(key, |record| (!record.is_expired(now)).then(|| record.clone())))
    }

    fn records<'a>(&'a self, selection: &'a Selection, page: Page) -> StoreFuture<'a, Vec<Record>> {
        let now = self.clock.now();
        let keys = self.page(selection, page, now);
        let holds = |record: &Record| selection.holds(record) && !record.is_expired(now);
        let copy = |key| self.shards.look(key, |record| holds(record).then(|| record.clone()));
        done(keys.into_iter().filter_map(copy).collect())
    }

    fn flush<'a>(&'a self, flush: &'a Flush) -> StoreFuture<'a, u64> {
        done(match flush {
            Flush::Key(key) => u64::from(self.shards.remove_if(*key, |_| true)),
            Flush::Finished(selection) => self.flush_finished(selection),
        })
    }

    fn sweep(&self) -> StoreFuture<'_, Swept> {
        let now = self.clock.now();
        let swept = self.shards.sweep(now);
        let removed = swept.removed + self.documents.sweep(now) + self.journals.sweep(now);
        done(Swept { removed, ..swept })
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        done(self.documents.read(name, self.clock.now()))
    }

    fn write<'a>(&'a self, name: &'a DocumentName, write: DocumentWrite) -> StoreFuture<'a, Written> {
        Box::pin(ready(self.documents.write(name, write, self.clock.now())))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        done(self.documents.of(kind, self.clock.now()))
    }

    fn append<'a>(&'a self, journal: Journal, entries: &'a [Entry], keep: Keep) -> StoreFuture<'a, ()> {
        self.journals.append(journal, entries, keep, self.clock.now());
        done(())
    }

    fn entries<'a>(&'a self, query: &'a Query) -> StoreFuture<'a, Vec<(Position, Entry)>> {
        done(self.journals.read(query))
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }
}

/// Every operation here is done before its future is polled.
fn done<'a, T: Send + 'a>(value: T) -> StoreFuture<'a, T> {
    Box::pin(ready(Ok(value)))
}

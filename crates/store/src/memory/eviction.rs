//! Eviction, and removal of expired records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::key::RecordKey;

use super::shards::{FinishedRecord, RecordShard, RecordShards};
use crate::selection::SweepResult;

/// The most records that one sweep removes.
const MOST_SWEPT: usize = 4096;
/// Shortest interval between searches for expired records, if the store is full of open ones.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// The value of a finished record.
#[derive(Clone, Copy)]
enum EvictionClass {
    Evictable,
    Kept,
}

/// The finished record with the oldest write in its shard.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EvictionCandidate {
    updated: Timestamp,
    shard: usize,
    key: RecordKey,
    version: u64,
}

impl RecordShards {
    /// Evicts finished records: the least useful first, and among them those with the oldest write. Returns true if
    /// there is room now.
    pub(super) fn make_room(&self, now: Timestamp) -> bool {
        for class in [EvictionClass::Evictable, EvictionClass::Kept] {
            self.evict(class);
        }
        if self.room.records() >= self.room.most && self.may_search(now) {
            self.remove_expired(now);
        }
        self.room.records() < self.room.most
    }

    /// A search in every shard has a cost, so a few records are evicted at once.
    fn is_over_limit(&self) -> bool {
        let some = (self.room.most / 256).clamp(1, 64);
        self.room.records() + some > self.room.most || self.is_heavy()
    }

    fn evict(&self, class: EvictionClass) {
        if !self.is_over_limit() {
            return;
        }
        let mut oldest = BinaryHeap::new();
        self.in_each_shard(|number, shard| oldest.extend(shard.oldest(number, class).map(Reverse)));
        while self.is_over_limit()
            && let Some(Reverse(EvictionCandidate { shard, key, version, .. })) = oldest.pop()
        {
            // If it was claimed again meanwhile, it stays.
            self.remove_if(key, |record| record.version == version && !record.is_open());
            let next = self.in_shard(shard, |records| records.oldest(shard, class)).flatten();
            oldest.extend(next.map(Reverse));
        }
    }

    /// Removes expired records, documents and entries.
    pub(super) fn sweep(&self, now: Timestamp) -> SweepResult {
        let swept = self.remove_expired(now);
        self.forget_pointers(|_, target| target.is_none());
        swept
    }

    fn remove_expired(&self, now: Timestamp) -> SweepResult {
        let mut expired = self.keys(|record| record.is_expired(now));
        let more = expired.len() > MOST_SWEPT;
        expired.truncate(MOST_SWEPT);
        let removed = expired.into_iter().filter(|key| self.remove_if(*key, |record| record.is_expired(now)));
        SweepResult { removed: removed.count() as u64, more }
    }

    fn may_search(&self, now: Timestamp) -> bool {
        let mut searched = self.room.searched.lock();
        let may = now.since(*searched) >= SEARCH_EVERY;
        if may {
            *searched = now;
        }
        may
    }

    /// Limits the index if one dispatch id comes repeatedly with other arguments: removes entries that point to the
    /// record of another call. The index then has at most as many entries as there are records.
    pub(super) fn bound_pointers(&self) {
        if self.room.pointers.load(Ordering::Relaxed) > 2 * self.room.most {
            self.forget_pointers(|index, target| target != Some(Some(index)));
        }
    }

    /// Removes index entries. `forget` gets the entry, and the index of the record that it points to, if there is
    /// such a record.
    fn forget_pointers(&self, forget: impl Fn(RecordKey, Option<Option<RecordKey>>) -> bool) {
        let mut entries = Vec::new();
        self.in_each_shard(|_, shard| entries.extend(shard.index.iter().map(|(index, key)| (*index, *key))));
        for (index, key) in entries {
            let target = self.with_record(key, |record| Some(record.index));
            if forget(index, target) {
                self.atomically([Some(index), Some(key), None], |locked| {
                    let target = locked.record(key)?.map(|record| record.index);
                    if locked.pointer(index)? == Some(key) && forget(index, target) {
                        locked.unpoint(index)?;
                    }
                    Ok(())
                });
            }
        }
    }
}

impl RecordShard {
    fn oldest(&mut self, number: usize, class: EvictionClass) -> Option<EvictionCandidate> {
        let queue = match class {
            EvictionClass::Evictable => &mut self.evictable,
            EvictionClass::Kept => &mut self.regular,
        };
        while queue.front().is_some_and(|finished| !finished.is_current(&self.records)) {
            queue.pop_front();
        }
        let FinishedRecord { key, version } = *queue.front()?;
        let updated = self.records.get(&key)?.updated;
        Some(EvictionCandidate { updated, shard: number, key, version })
    }
}

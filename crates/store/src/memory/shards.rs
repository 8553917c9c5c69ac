//! Records and the index of equal arguments, spread over shards.
//!
//! An operation touches up to four keys: its own, the index of its arguments, the key in the index, and the key that
//! it followed. It starts with the shards of the keys it knows. If it needs a key of another shard, it releases all
//! locks, takes them again with that one added, in order, and decides from the start. So no decision uses outdated
//! data, and no deadlock is possible.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{DedupeRecord, DedupeState, IndexUpdate, RecordOrigin, RecordWrite};
use steadfast_core::key::RecordKey;
use tokio::sync::Notify;

use super::followers::RecordWaiters;

/// Number of shards: the number of bits in a shard set.
const SHARDS: usize = 64;
/// The most shards that are locked at once. Three are known from the start. The key in the index and the index of a
/// removed record are added. More are needed only while other operations keep changing the index. Then the operation
/// starts again.
const MOST_LOCKED: usize = 8;

#[derive(Debug)]
pub(super) struct RecordShards {
    shards: Vec<Mutex<RecordShard>>,
    pub(super) room: StoreCapacity,
}

/// A shard of the records.
#[derive(Debug)]
pub(super) struct RecordShard {
    pub(super) records: KeyMap<SharedRecord>,
    pub(super) index: KeyMap<RecordKey>,
    pub(super) waiting: KeyMap<RecordWaiters>,
    /// Finished records of little use, ordered by their last write.
    pub(super) evictable: VecDeque<FinishedRecord>,
    /// The other finished records.
    pub(super) regular: VecDeque<FinishedRecord>,
}

/// A shared record.
pub(super) type SharedRecord = Arc<DedupeRecord>;

pub(super) type KeyMap<V> = HashMap<RecordKey, V, KeyHasherBuilder>;

/// A finished record at the time of its write. Skipped if it has changed since.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishedRecord {
    pub(super) key: RecordKey,
    pub(super) version: u64,
}

/// Current size and limits of the store.
#[derive(Debug)]
pub(super) struct StoreCapacity {
    pub(super) most: usize,
    pub(super) most_bytes: usize,
    records: AtomicUsize,
    bytes: AtomicUsize,
    pub(super) pointers: AtomicUsize,
    /// Time of the last search for expired records for lack of room.
    pub(super) searched: Mutex<Timestamp>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardWriteOutcome {
    /// The write was done.
    Out,
    /// Nothing was written, because there is no room for another record.
    NoRoom,
}

/// The shards that one operation has locked.
pub(super) struct LockedShards<'a> {
    set: ShardSet,
    guards: [Option<MutexGuard<'a, RecordShard>>; MOST_LOCKED],
    room: &'a StoreCapacity,
    woken: Vec<Arc<Notify>>,
}

/// The error for a key in a shard that is not locked yet.
pub(super) struct UnlockedShard(usize);

impl RecordShards {
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        let spread = KeyHasherBuilder::random();
        let shard = || RecordShard {
            records: HashMap::with_hasher(spread),
            index: HashMap::with_hasher(spread),
            waiting: HashMap::with_hasher(spread),
            evictable: VecDeque::new(),
            regular: VecDeque::new(),
        };
        let room = StoreCapacity {
            most,
            most_bytes,
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            pointers: AtomicUsize::new(0),
            searched: Mutex::new(Timestamp::ZERO),
        };
        Self { shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(), room }
    }

    /// Runs an operation under the locks of everything it touches, and then wakes the waiters. The operation may run
    /// several times. It writes last, after all its reads.
    pub(super) fn atomically<R>(
        &self,
        keys: [Option<RecordKey>; 3],
        mut operation: impl FnMut(&mut LockedShards<'_>) -> Result<R, UnlockedShard>,
    ) -> R {
        let known = keys.into_iter().flatten().fold(ShardSet(0), |set, key| set.with(shard_of(&key)));
        let mut set = known;
        loop {
            let mut locked = self.lock(set);
            let result = operation(&mut locked);
            let woken = std::mem::take(&mut locked.woken);
            drop(locked);
            for waiting in woken {
                waiting.notify_waiters();
            }
            match result {
                Ok(result) => return result,
                Err(UnlockedShard(shard)) => {
                    set = set.with(shard);
                    if set.len() > MOST_LOCKED {
                        set = known.with(shard);
                    }
                }
            }
        }
    }

    fn lock(&self, set: ShardSet) -> LockedShards<'_> {
        let mut guards = [const { None }; MOST_LOCKED];
        for (guard, shard) in guards.iter_mut().zip(set.iter()) {
            *guard = self.shards.get(shard).map(Mutex::lock);
        }
        LockedShards { set, guards, room: &self.room, woken: Vec::new() }
    }

    /// Reads one record.
    pub(super) fn with_record<R>(
        &self,
        key: RecordKey,
        read: impl FnOnce(&DedupeRecord) -> Option<R>,
    ) -> Option<R> {
        self.in_shard_of(&key, |shard| shard.records.get(&key).and_then(|record| read(record)))
    }

    /// Runs a function on the shard of this key.
    pub(super) fn in_shard_of<R>(&self, key: &RecordKey, act: impl FnOnce(&mut RecordShard) -> R) -> R {
        #[expect(clippy::indexing_slicing, reason = "a shard's number is below the number of shards")]
        act(&mut self.shards[shard_of(key)].lock())
    }

    /// Runs a function on every shard in turn.
    pub(super) fn in_each_shard(&self, mut act: impl FnMut(usize, &mut RecordShard)) {
        for (number, shard) in self.shards.iter().enumerate() {
            act(number, &mut shard.lock());
        }
    }

    /// Runs a function on one shard.
    pub(super) fn in_shard<R>(&self, number: usize, act: impl FnOnce(&mut RecordShard) -> R) -> Option<R> {
        self.shards.get(number).map(|shard| act(&mut shard.lock()))
    }

    /// Visits every record, with one shard locked at a time.
    pub(super) fn each(&self, mut read: impl FnMut(&DedupeRecord)) {
        self.in_each_shard(|_, shard| shard.records.values().for_each(|record| read(record)));
    }

    /// Returns the keys of the matching records.
    pub(super) fn keys(&self, matches: impl Fn(&DedupeRecord) -> bool) -> Vec<RecordKey> {
        let mut keys = Vec::new();
        self.each(|record| {
            if matches(record) {
                keys.push(record.key);
            }
        });
        keys
    }

    /// Removes a record, and the index entry that points to it, if it still matches.
    pub(super) fn remove_if(&self, key: RecordKey, matches: impl Fn(&DedupeRecord) -> bool) -> bool {
        self.atomically([Some(key), None, None], |locked| {
            let Some(record) = locked.record(key)?.filter(|record| matches(record)) else {
                return Ok(false);
            };
            let write = RecordWrite::Remove { key, index: record.index };
            locked.carry_out(write)?;
            Ok(true)
        })
    }

    /// Returns true if the outputs exceed their limit.
    pub(super) fn is_heavy(&self) -> bool {
        self.room.bytes.load(Ordering::Relaxed) > self.room.most_bytes
    }
}

impl StoreCapacity {
    pub(super) fn records(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns the number of records, bytes of outputs, and index entries.
    #[cfg(test)]
    pub(super) fn counted(&self) -> (usize, usize, usize) {
        let count = |number: &AtomicUsize| number.load(Ordering::SeqCst);
        (count(&self.records), count(&self.bytes), count(&self.pointers))
    }

    fn take(&self) -> bool {
        let one_more = |records| (records < self.most).then_some(records + 1);
        self.records.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

impl LockedShards<'_> {
    /// Returns the record under this key.
    pub(super) fn record(&self, key: RecordKey) -> Result<Option<&DedupeRecord>, UnlockedShard> {
        Ok(self.shard(&key)?.records.get(&key).map(|record| &**record))
    }

    /// Returns the record that the index points to.
    pub(super) fn indexed(&self, index: Option<RecordKey>) -> Result<Option<&DedupeRecord>, UnlockedShard> {
        let Some(index) = index else { return Ok(None) };
        self.pointer(index)?.map_or(Ok(None), |key| self.record(key))
    }

    /// Returns the key in the index.
    pub(super) fn pointer(&self, index: RecordKey) -> Result<Option<RecordKey>, UnlockedShard> {
        Ok(self.shard(&index)?.index.get(&index).copied())
    }

    /// Executes the decision of a table, as [`steadfast_core::dedupe::Records::apply`] does. All of it or nothing.
    pub(super) fn carry_out(&mut self, write: RecordWrite) -> Result<ShardWriteOutcome, UnlockedShard> {
        match write {
            RecordWrite::Nothing => Ok(ShardWriteOutcome::Out),
            RecordWrite::Put { record, index, remove } => {
                let mut places = usize::from(self.record(record.key)?.is_some());
                for removed in &remove {
                    places += usize::from(self.record(*removed)?.is_some());
                }
                let points_from = match (record.index, index) {
                    (None, _) | (Some(_), IndexUpdate::Keep) => None,
                    (Some(entry), IndexUpdate::Point) => self.shard(&entry).map(|_| Some(entry))?,
                    (Some(entry), IndexUpdate::PointIfFree) => {
                        self.indexed(Some(entry))?.is_none().then_some(entry)
                    }
                };
                // The write takes the place of one record that it replaces, and frees the others.
                match places.checked_sub(1) {
                    Some(left) => {
                        self.room.records.fetch_sub(left, Ordering::Relaxed);
                    }
                    None if self.room.take() => {}
                    None => return Ok(ShardWriteOutcome::NoRoom),
                }
                for removed in remove {
                    self.remove(removed)?;
                }
                if let Some(entry) = points_from
                    && self.shard_mut(&entry)?.index.insert(entry, record.key).is_none()
                {
                    self.room.pointers.fetch_add(1, Ordering::Relaxed);
                }
                self.put(record)?;
                Ok(ShardWriteOutcome::Out)
            }
            RecordWrite::Remove { key, index } => {
                let entry = match index {
                    Some(entry) => (self.pointer(entry)? == Some(key)).then_some(entry),
                    None => None,
                };
                let removed = usize::from(self.remove(key)?);
                self.room.records.fetch_sub(removed, Ordering::Relaxed);
                if let Some(entry) = entry {
                    self.unpoint(entry)?;
                }
                Ok(ShardWriteOutcome::Out)
            }
        }
    }

    /// Removes an index entry.
    pub(super) fn unpoint(&mut self, index: RecordKey) -> Result<(), UnlockedShard> {
        if self.shard_mut(&index)?.index.remove(&index).is_some() {
            self.room.pointers.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn put(&mut self, record: SharedRecord) -> Result<(), UnlockedShard> {
        let key = record.key;
        self.room.bytes.fetch_add(weight(&record), Ordering::Relaxed);
        let shard = self.shard_mut(&key)?;
        let settles = !matches!(record.state, DedupeState::Inflight);
        if !record.is_open() {
            shard.note_finished(&record);
        }
        let before = shard.records.insert(key, record);
        let woken = if settles { shard.waiting.remove(&key) } else { None };
        if let Some(before) = before {
            self.room.bytes.fetch_sub(weight(&before), Ordering::Relaxed);
        }
        self.woken.extend(woken.map(RecordWaiters::into_notify));
        Ok(())
    }

    /// Removes a record and returns true if it existed. Does not free its place yet.
    fn remove(&mut self, key: RecordKey) -> Result<bool, UnlockedShard> {
        let shard = self.shard_mut(&key)?;
        let (before, woken) = (shard.records.remove(&key), shard.waiting.remove(&key));
        if let Some(before) = &before {
            self.room.bytes.fetch_sub(weight(before), Ordering::Relaxed);
        }
        self.woken.extend(woken.map(RecordWaiters::into_notify));
        Ok(before.is_some())
    }

    fn shard(&self, key: &RecordKey) -> Result<&RecordShard, UnlockedShard> {
        let shard = shard_of(key);
        self.guards.get(self.place(shard)?).and_then(Option::as_deref).ok_or(UnlockedShard(shard))
    }

    fn shard_mut(&mut self, key: &RecordKey) -> Result<&mut RecordShard, UnlockedShard> {
        let shard = shard_of(key);
        let place = self.place(shard)?;
        self.guards.get_mut(place).and_then(Option::as_deref_mut).ok_or(UnlockedShard(shard))
    }

    fn place(&self, shard: usize) -> Result<usize, UnlockedShard> {
        self.set.place(shard).ok_or(UnlockedShard(shard))
    }
}

impl RecordShard {
    /// Records that a record is finished, for eviction.
    fn note_finished(&mut self, record: &DedupeRecord) {
        let is_evictable = match record.state {
            // A delivered result that is found only through the index can only be replayed to a double dispatch.
            DedupeState::Done(_) => record.origin == RecordOrigin::Run && record.delivered.is_some(),
            DedupeState::Failed(_) | DedupeState::Cancelled => true,
            DedupeState::Inflight | DedupeState::Unknown(_) => return,
        };
        let records = &self.records;
        let queue = if is_evictable { &mut self.evictable } else { &mut self.regular };
        if queue.len() > 2 * records.len() + 32 {
            queue.retain(|finished| finished.is_current(records));
        }
        queue.push_back(FinishedRecord { key: record.key, version: record.version });
    }
}

impl FinishedRecord {
    /// Returns true if the record has not changed.
    pub(super) fn is_current(&self, records: &KeyMap<SharedRecord>) -> bool {
        records.get(&self.key).is_some_and(|record| record.version == self.version && !record.is_open())
    }
}

/// Returns the bytes of output in a record.
pub(super) fn weight(record: &DedupeRecord) -> usize {
    match &record.state {
        DedupeState::Done(output) => output.as_ref().map_or(0, |output| output.len()),
        DedupeState::Failed(failure) => {
            failure.message.len() + failure.output.as_ref().map_or(0, |output| output.len())
        }
        DedupeState::Unknown(unknown) => unknown.output.as_ref().map_or(0, |output| output.len()),
        DedupeState::Inflight | DedupeState::Cancelled => 0,
    }
}

/// Keys are already hashes. Any byte spreads them, except the last four, which are those of its home. The map inside
/// a shard uses the first bytes.
fn shard_of(key: &RecordKey) -> usize {
    let [.., byte, _, _, _, _] = *key.0.as_bytes();
    usize::from(byte) % SHARDS
}

/// A set of shards, one bit each.
#[derive(Clone, Copy, Debug)]
struct ShardSet(u64);

impl ShardSet {
    fn with(self, shard: usize) -> Self {
        Self(self.0 | 1 << shard)
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the shards in order.
    fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            next
        })
    }

    /// Returns the position of a shard in the set.
    fn place(self, shard: usize) -> Option<usize> {
        let bit = 1_u64 << shard;
        (self.0 & bit != 0).then(|| (self.0 & (bit - 1)).count_ones() as usize)
    }
}

/// A hasher for keys, which are already hashes. It mixes in a secret, so that a caller who chooses the arguments
/// cannot choose positions in the maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyHasherBuilder(u64);

impl KeyHasherBuilder {
    fn random() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for KeyHasherBuilder {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

#[derive(Debug)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            let product = u128::from(self.0 ^ u64::from_le_bytes(*first)) * 0x9e37_79b9_7f4a_7c15;
            #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
            let mixed = product as u64 ^ (product >> 64) as u64;
            self.0 = mixed;
        }
    }

    /// All keys have the same length.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

//! An in-memory store of records that applies the tables.
//!
//! It only holds the records. The memory store, the simulation, the fuzzer and the benchmarks are built on it, so a
//! [`RecordWrite`] is applied in exactly one way.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::claim::{Claim, ClaimRole, ClaimVerdict, FoundRecords, LocalKnowledge};
use super::claim_table::decide_claim;
use super::owner::{
    RecordAbsence, ReleaseRequest, RenewVerdict, ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict,
    StartVerdict, decide_abandoned, decide_delivered, decide_release, decide_renew, decide_resolve,
    decide_save, decide_start,
};
use super::record::{ClaimOwner, DedupeRecord, DeliveryReceipt, IndexUpdate, LeaseOwnerState, RecordWrite};
use super::rules::DedupeRules;
use crate::Timestamp;
use crate::key::RecordKey;
use crate::policy::RecordLifetimes;

/// The records and the index of equal arguments.
#[derive(Clone, Debug, Default)]
pub struct MemoryRecords {
    records: BTreeMap<RecordKey, Arc<DedupeRecord>>,
    index: BTreeMap<RecordKey, RecordKey>,
    changed: Vec<RecordKey>,
}

impl MemoryRecords {
    /// Decides a claim. `known` holds the facts that only the caller's process knows. `sight` returns the liveness of
    /// an owner.
    pub fn claim(
        &mut self,
        claim: &Claim,
        known: &LocalKnowledge,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> ClaimVerdict {
        let see = |record: Option<&DedupeRecord>| record.map(|record| sight(&record.owner));
        let followed = match claim.role {
            ClaimRole::Waiter { followed } => self.get(&followed),
            ClaimRole::Fresh => None,
        };
        let own = self.get(&claim.address.own());
        let indexed = self.indexed(claim.address.index());
        let found = FoundRecords {
            followed: followed.zip(see(followed)),
            own: own.zip(see(own)),
            indexed: indexed.zip(see(indexed)),
        };
        let decided = decide_claim(claim, found, known, now);
        self.apply(decided.write);
        decided.verdict
    }

    /// Marks a record as started.
    pub fn start(&mut self, key: &RecordKey, owner: &ClaimOwner, now: Timestamp) -> StartVerdict {
        let decided = decide_start(owner, self.get(key), now);
        self.apply(decided.write);
        decided.verdict
    }

    /// Renews a lease.
    pub fn renew(
        &mut self,
        claimed: &DedupeRecord,
        keep: &RecordLifetimes,
        absence: RecordAbsence,
        now: Timestamp,
    ) -> RenewVerdict {
        let decided = decide_renew(claimed, keep, self.get(&claimed.key), absence, now);
        self.apply(decided.write);
        decided.verdict
    }

    /// Saves a result.
    pub fn save(&mut self, save: &SaveRequest, now: Timestamp) -> SaveVerdict {
        let own = self.get(&save.claimed.key);
        let decided = decide_save(save, own, self.indexed(save.claimed.index), now);
        self.apply(decided.write);
        decided.verdict
    }

    /// Releases a claim.
    pub fn release(&mut self, release: &ReleaseRequest) {
        let write = decide_release(release, self.get(&release.key), self.indexed(release.index));
        self.apply(write);
    }

    /// Marks a response as delivered.
    pub fn mark_delivered(&mut self, receipt: &DeliveryReceipt, at: Timestamp) {
        let write = decide_delivered(receipt, at, self.get(&receipt.key));
        self.apply(write);
    }

    /// Resolves an unknown outcome.
    pub fn resolve(
        &mut self,
        resolve: &ResolutionRequest,
        rules: &DedupeRules,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> ResolveVerdict {
        let found = self.get(&resolve.key).map(|record| (record, sight(&record.owner)));
        let decided = decide_resolve(resolve, found, rules, now);
        self.apply(decided.write);
        decided.verdict
    }

    /// Records the unknown outcome of an abandoned run.
    pub fn mark_abandoned(
        &mut self,
        key: &RecordKey,
        rules: &DedupeRules,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> Option<Arc<DedupeRecord>> {
        let found = self.get(key).map(|record| (record, sight(&record.owner)));
        let decided = decide_abandoned(found, rules, now);
        self.apply(decided.write);
        decided.verdict
    }

    /// Applies a write.
    pub fn apply(&mut self, write: RecordWrite) {
        self.changed.clear();
        match write {
            RecordWrite::Nothing => {}
            RecordWrite::Put { record, index, remove } => {
                for removed in remove {
                    self.records.remove(&removed);
                    self.changed.push(removed);
                }
                if let Some(entry) = record.index {
                    let points = match index {
                        IndexUpdate::Keep => false,
                        IndexUpdate::Point => true,
                        IndexUpdate::PointIfFree => self.indexed(record.index).is_none(),
                    };
                    if points {
                        self.index.insert(entry, record.key);
                    }
                }
                self.changed.push(record.key);
                self.records.insert(record.key, record);
            }
            RecordWrite::Remove { key, index } => {
                self.records.remove(&key);
                self.changed.push(key);
                if let Some(entry) = index
                    && self.index.get(&entry) == Some(&key)
                {
                    self.index.remove(&entry);
                }
            }
        }
    }

    /// Returns the keys that the last operation wrote or removed. Their waiters have to be woken.
    pub fn changed(&self) -> &[RecordKey] {
        &self.changed
    }

    /// Returns the record with this key.
    pub fn get(&self, key: &RecordKey) -> Option<&DedupeRecord> {
        self.records.get(key).map(|record| &**record)
    }

    /// Returns all records in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &DedupeRecord> {
        self.records.values().map(|record| &**record)
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes expired records.
    pub fn sweep(&mut self, now: Timestamp) {
        self.records.retain(|_, record| !record.is_expired(now));
        self.index.retain(|_, key| self.records.contains_key(key));
    }

    /// Returns the record that this index entry points to.
    pub fn indexed(&self, index: Option<RecordKey>) -> Option<&DedupeRecord> {
        self.get(self.index.get(&index?)?)
    }
}

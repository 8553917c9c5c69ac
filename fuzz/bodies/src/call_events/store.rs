//! A store in memory: the core's tables, and a memory of the writes.

use std::collections::BTreeSet;

use steadfast_core::Timestamp;
use steadfast_core::approval::{Approvals, GrantId, Spend};
use steadfast_core::dedupe::{
    Absence, Claim, ClaimVerdict, Known, LeaseSight, Owner, Receipt, Record, RecordState, Records, Release,
    RenewVerdict, Resolution, Resolve, Rules, Save, SaveVerdict, StartVerdict,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;

#[derive(Debug, Default)]
pub(super) struct Store {
    records: Records,
    pub(super) approvals: Approvals,
    /// Owners whose `started` was ever written.
    pub(super) started: BTreeSet<Owner>,
}

impl Store {
    pub(super) fn claim(
        &mut self,
        claim: &Claim,
        sight: impl Fn(&Owner) -> LeaseSight,
        now: Timestamp,
    ) -> ClaimVerdict {
        let verdict = self.records.claim(claim, &self.known(), sight, now);
        self.note_started();
        verdict
    }

    pub(super) fn start(&mut self, key: &Key, owner: &Owner, now: Timestamp) -> StartVerdict {
        let verdict = self.records.start(key, owner, now);
        self.note_started();
        verdict
    }

    pub(super) fn renew(&mut self, claimed: &Record, keep: &Lifetimes, now: Timestamp) -> RenewVerdict {
        self.records.renew(claimed, keep, Absence::Removed, now)
    }

    pub(super) fn save(&mut self, save: &Save, now: Timestamp) -> SaveVerdict {
        self.records.save(save, now)
    }

    pub(super) fn release(&mut self, release: &Release) {
        self.records.release(release);
    }

    pub(super) fn spend(&mut self, grant: GrantId, owner: &Owner, now: Timestamp) -> Spend {
        self.approvals.spend(grant, owner.digest(), now)
    }

    pub(super) fn delivered(&mut self, receipt: &Receipt, now: Timestamp) {
        self.records.delivered(receipt, now);
    }

    /// Returns the knowledge of a caller that has verified every unknown outcome that it received.
    fn known(&self) -> Known {
        let unknown = self.records.iter().filter(|record| matches!(record.state, RecordState::Unknown(_)));
        Known { verified: unknown.map(|record| record.owner.clone()).collect(), ..Known::default() }
    }

    /// Resolves every unknown outcome as not run, like an operator.
    pub(super) fn resolve_all(&mut self, rules: &Rules, now: Timestamp) {
        let keys: Vec<Key> = self.records.iter().map(|record| record.key).collect();
        for key in keys {
            let _ = self.records.resolve(
                &Resolve::by_hand(key, Resolution::DidNotRun),
                rules,
                |_| LeaseSight::Alive,
                now,
            );
        }
    }

    /// Marks every answer as delivered.
    pub(super) fn deliver_all(&mut self, now: Timestamp) {
        let receipts: Vec<Receipt> = self.records.iter().map(Record::receipt).collect();
        receipts.iter().for_each(|receipt| self.records.delivered(receipt, now));
    }

    /// Removes everything.
    pub(super) fn empty(&mut self) {
        self.records = Records::default();
    }

    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.records.sweep(now);
    }

    fn note_started(&mut self) {
        self.started
            .extend(self.records.iter().filter(|record| record.started).map(|record| record.owner.clone()));
    }
}

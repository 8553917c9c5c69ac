//! A store in memory: the core's tables, and a memory of the writes.

use std::collections::BTreeSet;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalLedger, GrantId, SpendVerdict};
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, DedupeState, DeliveryReceipt,
    LeaseOwnerState, LocalKnowledge, MemoryRecords, RecordAbsence, ReleaseRequest, RenewVerdict, Resolution,
    ResolutionRequest, SaveRequest, SaveVerdict, StartVerdict,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;

#[derive(Debug, Default)]
pub(super) struct FuzzStore {
    records: MemoryRecords,
    pub(super) approvals: ApprovalLedger,
    /// Owners whose `started` was ever written.
    pub(super) started: BTreeSet<ClaimOwner>,
}

impl FuzzStore {
    pub(super) fn claim(
        &mut self,
        claim: &Claim,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> ClaimVerdict {
        let verdict = self.records.claim(claim, &self.known(), sight, now);
        self.note_started();
        verdict
    }

    pub(super) fn start(&mut self, key: &RecordKey, owner: &ClaimOwner, now: Timestamp) -> StartVerdict {
        let verdict = self.records.start(key, owner, now);
        self.note_started();
        verdict
    }

    pub(super) fn renew(
        &mut self,
        claimed: &DedupeRecord,
        keep: &RecordLifetimes,
        now: Timestamp,
    ) -> RenewVerdict {
        self.records.renew(claimed, keep, RecordAbsence::Removed, now)
    }

    pub(super) fn save(&mut self, save: &SaveRequest, now: Timestamp) -> SaveVerdict {
        self.records.save(save, now)
    }

    pub(super) fn release(&mut self, release: &ReleaseRequest) {
        self.records.release(release);
    }

    pub(super) fn spend(&mut self, grant: GrantId, owner: &ClaimOwner, now: Timestamp) -> SpendVerdict {
        self.approvals.spend(grant, owner.digest(), now)
    }

    pub(super) fn delivered(&mut self, receipt: &DeliveryReceipt, now: Timestamp) {
        self.records.mark_delivered(receipt, now);
    }

    /// Returns the knowledge of a caller that has verified every unknown outcome that it received.
    fn known(&self) -> LocalKnowledge {
        let unknown = self.records.iter().filter(|record| matches!(record.state, DedupeState::Unknown(_)));
        LocalKnowledge {
            verified: unknown.map(|record| record.owner.clone()).collect(),
            ..LocalKnowledge::default()
        }
    }

    /// Resolves every unknown outcome as not run, like an operator.
    pub(super) fn resolve_all(&mut self, rules: &DedupeRules, now: Timestamp) {
        let keys: Vec<RecordKey> = self.records.iter().map(|record| record.key).collect();
        for key in keys {
            let _ = self.records.resolve(
                &ResolutionRequest::by_operator(key, Resolution::DidNotRun),
                rules,
                |_| LeaseOwnerState::Alive,
                now,
            );
        }
    }

    /// Marks every answer as delivered.
    pub(super) fn deliver_all(&mut self, now: Timestamp) {
        let receipts: Vec<DeliveryReceipt> = self.records.iter().map(DedupeRecord::receipt).collect();
        receipts.iter().for_each(|receipt| self.records.mark_delivered(receipt, now));
    }

    /// Removes everything.
    pub(super) fn empty(&mut self) {
        self.records = MemoryRecords::default();
    }

    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.records.sweep(now);
    }

    fn note_started(&mut self) {
        self.started
            .extend(self.records.iter().filter(|record| record.started).map(|record| record.owner.clone()));
    }
}

//! The shared store: atomic, and nothing but the core's tables. Here is where most defects are planted.

use std::collections::BTreeMap;

use steadfast_core::Timestamp;
use steadfast_core::approval::{Approvals, GrantId, Spend};
use steadfast_core::dedupe::{
    Absence, Claim, ClaimVerdict, IndexMove, Intent, LeaseSight, Owner, Receipt, Record, RecordState,
    Records, Release, RenewVerdict, Role, Save, SaveVerdict, StartVerdict, Write, decide_save,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;

use crate::Defect;

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) records: Records,
    pub(crate) approvals: Approvals,
    /// Who spent which grant; the model's own memory of it.
    pub(crate) spent: BTreeMap<GrantId, Vec<Owner>>,
    /// Records that changed since they were last asked for.
    pub(crate) changed: Vec<Key>,
    pub(crate) defect: Option<Defect>,
}

impl Store {
    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        known: &[(Receipt, Timestamp)],
        sight: impl Fn(&Owner) -> LeaseSight,
        now: Timestamp,
    ) -> ClaimVerdict {
        let mut claim = claim.clone();
        if self.defect == Some(Defect::StartedAfterAttempt)
            && let Intent::Take { started } = &mut claim.intent
        {
            *started = false;
        }
        if self.defect == Some(Defect::WaiterForgetsThatItWaited) {
            claim.role = Role::Fresh;
        }
        let verdict = self.records.claim(&claim, known, sight, now);
        self.note();
        match (self.defect, verdict) {
            (Some(Defect::ToldWhenLookedUp), ClaimVerdict::Unknown(receipt)) => {
                self.records.delivered(&receipt, now);
                ClaimVerdict::Unknown(receipt)
            }
            (Some(Defect::StartedAfterAttempt), ClaimVerdict::Mine(record)) => {
                ClaimVerdict::Mine(Box::new(Record { started: true, ..*record }))
            }
            (_, verdict) => verdict,
        }
    }

    pub(crate) fn start(&mut self, key: &Key, owner: &Owner, now: Timestamp) -> StartVerdict {
        match self.defect {
            Some(Defect::StartedAfterAttempt) => StartVerdict::Started,
            Some(_) | None => {
                let verdict = self.records.start(key, owner, now);
                self.note();
                verdict
            }
        }
    }

    pub(crate) fn renew(&mut self, claimed: &Record, keep: &Lifetimes, now: Timestamp) -> RenewVerdict {
        let verdict = self.records.renew(claimed, keep, Absence::Removed, now);
        self.note();
        verdict
    }

    pub(crate) fn save(&mut self, save: &Save, now: Timestamp) -> SaveVerdict {
        let verdict = match (self.defect, self.records.get(&save.claimed.key)) {
            (Some(Defect::OwnerIgnoredAtSave), Some(record)) => {
                let mut save = save.clone();
                save.claimed.owner = record.owner.clone();
                let open = Record { state: RecordState::Inflight, ..record.clone() };
                let decided = decide_save(&save, Some(&open), None, now);
                self.records.apply(decided.write);
                decided.verdict
            }
            (Some(_) | None, _) => self.records.save(save, now),
        };
        self.note();
        verdict
    }

    pub(crate) fn release(&mut self, release: &Release) {
        self.records.release(release);
        self.note();
    }

    pub(crate) fn delivered(&mut self, receipt: &Receipt, at: Timestamp) {
        self.records.delivered(receipt, at);
        self.note();
    }

    fn note(&mut self) {
        self.changed.extend_from_slice(self.records.changed());
    }

    pub(crate) fn spend(&mut self, grant: GrantId, owner: &Owner, now: Timestamp) -> Spend {
        let spend = match (self.approvals.spend(grant, owner.digest(), now), self.defect) {
            (Spend::Lost, Some(Defect::GrantSpentByAll)) => Spend::Spent,
            (spend, _) => spend,
        };
        if matches!(spend, Spend::Spent | Spend::AlreadyMine) {
            let owners = self.spent.entry(grant).or_default();
            if !owners.contains(owner) {
                owners.push(owner.clone());
            }
        }
        spend
    }

    /// Stores a refusal as if it were an answer; only a defect does that.
    pub(crate) fn put_directly(&mut self, record: Record) {
        self.records.apply(Write::Put {
            record: Box::new(record),
            index: IndexMove::Keep,
            remove: Vec::new(),
        });
    }
}

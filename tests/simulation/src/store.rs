//! The shared store: atomic, and made of nothing but the core's tables. Most defects are planted here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalLedger, GrantId, SpendVerdict};
use steadfast_core::breaker::BreakerSnapshot;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, DedupeState,
    DeliveryReceipt, FoundRecords, IndexUpdate, LeaseOwnerState, LocalKnowledge, MarkerWatch, MemoryRecords,
    RecordAbsence, RecordAddress, RecordLoss, RecordWrite, ReleaseRequest, RenewVerdict, Resolution,
    ResolutionRequest, ResolveVerdict, RunOutcome, SaveRequest, SaveVerdict, SettleDelay, StartVerdict,
    StoreMarker, UnknownOutcomeReport, decide_claim, decide_save,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use steadfast_turn::TurnDocument;

use crate::Defect;
use crate::tables::StoreTableChecker;

#[derive(Debug)]
pub(crate) struct SimulatedStore {
    pub(crate) records: MemoryRecords,
    pub(crate) approvals: ApprovalLedger,
    /// The shared state of the tool's breaker.
    pub(crate) breaker: Option<BreakerSnapshot>,
    /// The holder of each turn, with the version of its document.
    pub(crate) turns: BTreeMap<usize, (u64, TurnDocument)>,
    /// Changes when everything is lost.
    pub(crate) marker: StoreMarker,
    /// The loss that the store knows of, until an operator accepts it.
    pub(crate) loss: Option<RecordLoss>,
    /// Owners that spent each grant, remembered by the model. A store that lost everything counts its grants from the
    /// start.
    pub(crate) spent: BTreeMap<(u64, GrantId), Vec<ClaimOwner>>,
    /// Time at which each grant was given.
    granted: BTreeMap<(u64, GrantId), Timestamp>,
    /// Records that changed since they were last read.
    pub(crate) changed: Vec<RecordKey>,
    /// Number of documents written so far.
    written: u64,
    pub(crate) defect: Option<Defect>,
    pub(crate) tables: StoreTableChecker,
}

impl SimulatedStore {
    pub(crate) fn new(marker: StoreMarker, defect: Option<Defect>) -> Self {
        Self {
            records: MemoryRecords::default(),
            approvals: ApprovalLedger::default(),
            breaker: None,
            turns: BTreeMap::new(),
            marker,
            loss: None,
            spent: BTreeMap::new(),
            granted: BTreeMap::new(),
            changed: Vec::new(),
            written: 0,
            defect,
            tables: StoreTableChecker::default(),
        }
    }

    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        known: &LocalKnowledge,
        watch: MarkerWatch,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> ClaimVerdict {
        let mut claim = claim.clone();
        let mut requested_start = false;
        if self.defect == Some(Defect::StartedAfterAttempt)
            && let ClaimIntent::Take { started } = &mut claim.intent
        {
            requested_start = std::mem::replace(started, false);
        }
        if self.defect == Some(Defect::OverWithItsHolder) {
            claim.rules.linger = Duration::ZERO;
        }
        if self.defect == Some(Defect::WaiterForgetsThatItWaited) {
            claim.role = ClaimRole::Fresh;
        }
        if self.refuses_after_loss(&claim, known, &sight, now) {
            return ClaimVerdict::RecordsLost;
        }
        if !watch.admits(claim.retry_safe, now) && self.defect != Some(Defect::EmptiedStoreTakesClaims) {
            // Records that exist again are found as usual. Only a claim that would run the call has to be repeated.
            let lookup = Claim { intent: ClaimIntent::Look, ..claim.clone() };
            if self.records.claim(&lookup, known, &sight, now) == ClaimVerdict::Nothing {
                return match claim.intent {
                    ClaimIntent::Take { .. } => ClaimVerdict::StoreRecovering,
                    ClaimIntent::Look => ClaimVerdict::Nothing,
                };
            }
        }
        // The defect considers only the call's own record.
        if self.defect == Some(Defect::FailedDispatchDoesNotStandBack)
            && let (ClaimRole::Fresh, RecordAddress::CallId { id, .. }) = (claim.role, claim.address)
            && let Some(own) = self.records.get(&id)
        {
            let found = FoundRecords { own: Some((own, sight(&own.owner))), ..FoundRecords::default() };
            let decided = decide_claim(&claim, found, known, now);
            self.records.apply(decided.write);
            self.note();
            return decided.verdict;
        }
        let before = self.before();
        let verdict = self.records.claim(&claim, known, &sight, now);
        if let Some(before) = before {
            self.tables.claim(&claim, known, &sight, now, (&before, &self.records), &verdict);
        }
        self.note();
        match (self.defect, verdict) {
            (Some(Defect::ToldWhenLookedUp), ClaimVerdict::Unknown(unsettled)) => {
                self.records.mark_delivered(&unsettled.receipt, now);
                ClaimVerdict::Unknown(unsettled)
            }
            (Some(Defect::StartedAfterAttempt), ClaimVerdict::Acquired(record)) => {
                ClaimVerdict::Acquired(Arc::new(DedupeRecord {
                    started: requested_start,
                    ..(*record).clone()
                }))
            }
            (_, verdict) => verdict,
        }
    }

    /// Returns true if this claim would run a call that the loss of records forbids.
    fn refuses_after_loss(
        &self,
        claim: &Claim,
        known: &LocalKnowledge,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> bool {
        let refuses = self.loss.as_ref().is_some_and(|loss| loss.refuses(claim, now));
        if !refuses || self.defect == Some(Defect::LossNotHeeded) {
            return false;
        }
        let is_own = self.records.get(&claim.address.own()).is_some_and(|own| own.owner == claim.owner);
        let verdict = self.records.clone().claim(claim, known, sight, now);
        !is_own && matches!(verdict, ClaimVerdict::Acquired(_))
    }

    pub(crate) fn start(&mut self, key: &RecordKey, owner: &ClaimOwner, now: Timestamp) -> StartVerdict {
        match self.defect {
            Some(Defect::StartedAfterAttempt) => StartVerdict::Started,
            Some(_) | None => {
                let before = self.before();
                let verdict = self.records.start(key, owner, now);
                if let Some(before) = before {
                    self.tables.start((key, owner), now, (&before, &self.records), verdict);
                }
                self.note();
                verdict
            }
        }
    }

    pub(crate) fn renew(
        &mut self,
        claimed: &DedupeRecord,
        keep: &RecordLifetimes,
        watch: MarkerWatch,
        now: Timestamp,
    ) -> RenewVerdict {
        let absence = match self.defect {
            Some(Defect::ClaimNotWrittenAgain) => RecordAbsence::Removed,
            Some(_) | None => watch.absence(now),
        };
        let before = self.before();
        let verdict = self.records.renew(claimed, keep, absence, now);
        if let Some(before) = before {
            self.tables.renew((claimed, keep, absence), now, (&before, &self.records), verdict);
        }
        self.note();
        verdict
    }

    pub(crate) fn save(&mut self, save: &SaveRequest, now: Timestamp) -> SaveVerdict {
        if let (Some(Defect::OverWhenCut), RunOutcome::Unknown(unknown)) = (self.defect, &save.ending) {
            let over = UnknownOutcomeReport { settles: SettleDelay::Settled, ..unknown.clone() };
            let save = SaveRequest { ending: RunOutcome::Unknown(over), ..save.clone() };
            let verdict = self.records.save(&save, now);
            self.note();
            return verdict;
        }
        let before = self.before();
        let verdict = match (self.defect, self.records.get(&save.claimed.key)) {
            (Some(Defect::OwnerIgnoredAtSave), Some(record)) => {
                let mut save = save.clone();
                Arc::make_mut(&mut save.claimed).owner = record.owner.clone();
                let open = DedupeRecord { state: DedupeState::Inflight, ..record.clone() };
                let decided = decide_save(&save, Some(&open), None, now);
                self.records.apply(decided.write);
                decided.verdict
            }
            (Some(Defect::SaveNeedsItsRecord), None) => SaveVerdict::FenceLost,
            (Some(Defect::SaveOnlySaid), own) => decide_save(save, own, None, now).verdict,
            (Some(_) | None, _) => self.records.save(save, now),
        };
        if let Some(before) = before {
            self.tables.save(save, now, (&before, &self.records), &verdict);
        }
        self.note();
        verdict
    }

    pub(crate) fn release(&mut self, release: &ReleaseRequest) {
        let before = self.before();
        self.records.release(release);
        if let Some(before) = before {
            self.tables.release(release, (&before, &self.records));
        }
        self.note();
    }

    pub(crate) fn delivered(&mut self, receipt: &DeliveryReceipt, at: Timestamp) {
        let before = self.before();
        self.records.mark_delivered(receipt, at);
        if let Some(before) = before {
            self.tables.delivered(receipt, at, (&before, &self.records));
        }
        self.note();
    }

    /// Returns the records before an operation, to compare it with the tables. With a defect, the invariants have to
    /// find it.
    fn before(&self) -> Option<MemoryRecords> {
        self.defect.is_none().then(|| self.records.clone())
    }

    pub(crate) fn resolve(
        &mut self,
        key: &RecordKey,
        resolution: Resolution,
        rules: &DedupeRules,
        sight: impl Fn(&ClaimOwner) -> LeaseOwnerState,
        now: Timestamp,
    ) -> ResolveVerdict {
        let before = self.before();
        let by_hand = ResolutionRequest::by_operator(*key, resolution);
        let mut verdict = self.records.resolve(&by_hand, rules, &sight, now);
        if let Some(before) = before {
            let after = (&before, &self.records);
            self.tables.resolve((&by_hand, rules), &sight, now, after, verdict);
        }
        if let (Some(Defect::ResolvedBeforeTheEnd), ResolveVerdict::NotSettled(_)) = (self.defect, &verdict)
            && let Some(record) = self.records.get(key)
        {
            let write = RecordWrite::Remove { key: *key, index: record.index };
            self.records.apply(write);
            verdict = ResolveVerdict::Resolved;
        }
        self.note();
        verdict
    }

    /// Removes everything. Some stores notice.
    pub(crate) fn empty(&mut self, marker: StoreMarker, noticed: Option<RecordLoss>) {
        if let Some(loss) = noticed {
            self.loss = Some(loss.after(self.loss.take()));
        } else {
            // The evidence of an earlier loss is gone too.
            self.loss = None;
        }
        self.records = MemoryRecords::default();
        self.approvals = ApprovalLedger::default();
        self.breaker = None;
        self.turns.clear();
        self.marker = marker;
    }

    /// Writes the document of a turn, if the stored version is the given one.
    pub(crate) fn write_turn(
        &mut self,
        turn: usize,
        replaces: Option<u64>,
        document: TurnDocument,
    ) -> Result<u64, Option<(u64, TurnDocument)>> {
        let there = self.turns.get(&turn);
        if there.map(|(version, _)| *version) != replaces {
            return Err(there.cloned());
        }
        self.written += 1;
        self.turns.insert(turn, (self.written, document));
        Ok(self.written)
    }

    fn note(&mut self) {
        self.changed.extend_from_slice(self.records.changed());
    }

    pub(crate) fn spend(&mut self, grant: GrantId, owner: &ClaimOwner, now: Timestamp) -> SpendVerdict {
        let spend = match (self.approvals.spend(grant, owner.digest(), now), self.defect) {
            (SpendVerdict::Lost, Some(Defect::GrantSpentByAll)) => SpendVerdict::Spent,
            (spend, _) => spend,
        };
        if matches!(spend, SpendVerdict::Spent | SpendVerdict::AlreadyMine) {
            let owners = self.spent.entry((self.marker.0, grant)).or_default();
            if !owners.contains(owner) {
                owners.push(owner.clone());
            }
        }
        spend
    }

    /// Records that an operator has given a grant.
    pub(crate) fn grants(&mut self, grant: GrantId, now: Timestamp) {
        self.granted.insert((self.marker.0, grant), now);
    }

    pub(crate) fn granted_at(&self, grant: GrantId) -> Option<Timestamp> {
        self.granted.get(&(self.marker.0, grant)).copied()
    }

    pub(crate) fn give_back(&mut self, grant: GrantId, owner: &ClaimOwner) {
        self.approvals.return_grant(grant, owner.digest());
        // The grant may be one of the lost store.
        for owners in
            self.spent.iter_mut().filter(|((_, spent), _)| *spent == grant).map(|(_, owners)| owners)
        {
            owners.retain(|spender| spender != owner);
        }
    }

    /// Stores a refusal as if it were an answer. Only a defect does that.
    pub(crate) fn put_directly(&mut self, record: DedupeRecord) {
        self.records.apply(RecordWrite::Put {
            record: Arc::new(record),
            index: IndexUpdate::Keep,
            remove: Vec::new(),
        });
    }
}

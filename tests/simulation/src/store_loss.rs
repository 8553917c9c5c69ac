//! Losses of everything in the store, and their permitted consequences.
//!
//! A process that knew the old marker notices the loss with its next store command, and claims nothing that must not
//! run twice for one lease. Holders write their claims again meanwhile, and their answers are saved. So a claim in
//! flight survives the loss, if its holder lives and reaches the store within one lease. Not promised, and excused
//! here:
//!
//! - finished records, unknown outcomes and claims without a live holder are lost, and may run again;
//! - so is a claim whose holder did not reach the store for one lease: it died meanwhile, was frozen or cut off, or the
//!   clock jumped;
//! - a process that was started after the loss never knew another marker. It has nothing to wait for, and may take the
//!   claim of a holder that has not reached the store yet: under its key, or in the index of equal arguments.
//!
//! A store that counts its commits notices that they are gone. Then no explicit key of a tool that must not run twice
//! runs again before an operator has accepted the loss, whatever was in flight and whichever process was started since.
//! Until then, of all of the above only records that are found by equal arguments or a call id are excused.
//!
//! Everything else is promised as if nothing had been lost. The model observes by itself whether a holder reached the
//! store; whether the claim was then written again is under test.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    ClaimOwner, DedupeRecord, DedupeState, LossCause, MarkerStatus, MarkerWatch, RecordLoss, StoreMarker,
};
use steadfast_core::key::RecordKey;

use crate::Defect;
use crate::model::{Effect, GroundTruth, UniqueEffect};
use crate::system::SimulatedWorld;
use crate::transition::SimulationEvent;

/// One loss of everything.
#[derive(Clone, Debug)]
pub(crate) struct StoreLoss {
    pub(crate) at: Timestamp,
    lease: Duration,
    /// Claims in flight under a live process.
    claims: BTreeMap<ClaimOwner, InFlightClaim>,
    notice: LossDetection,
}

/// The store's knowledge of its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossDetection {
    /// It does not, or has lost that knowledge too.
    Unnoticed,
    /// It does, and refuses calls that may have run.
    Refuses,
    /// It did until this time. Then an operator accepted the loss, or the store lost even that knowledge.
    Until(Timestamp),
}

/// A claim that was in flight when the store lost it.
#[derive(Clone, Copy, Debug)]
struct InFlightClaim {
    key: RecordKey,
    index: Option<RecordKey>,
    holder: HolderContact,
    /// True if an equal call that could not know of it has its entry in the index.
    hidden: bool,
}

/// The contact of a holder with the store since the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderContact {
    /// None yet.
    Silent,
    /// In time: the promise holds.
    Reached,
    /// None in time, or a call that could not know of it took its key before.
    Lost,
}

/// The way in which a call finds earlier runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordLookup {
    Key,
    EqualArguments,
}

impl GroundTruth {
    /// Returns true if a store loss may have hidden the first call from the second.
    pub(crate) fn lost_between(&self, earlier: &Effect, later: &Effect, by: RecordLookup) -> bool {
        let is_explicit = matches!(later.intent, Some(UniqueEffect::Explicit(_) | UniqueEffect::Turn(_)));
        self.emptyings.iter().any(|emptying| {
            earlier.claimed <= emptying.at
                && emptying.at <= later.claimed
                && !(is_explicit && emptying.refuses(later.claimed))
                && emptying.lost(earlier.owner.as_ref(), later.claimed, by)
        })
    }

    /// Ends a noticed loss: an operator accepted it, or the store has lost its knowledge of it.
    fn loss_is_over(&mut self, now: Timestamp) {
        for emptying in &mut self.emptyings {
            if emptying.notice == LossDetection::Refuses {
                emptying.notice = LossDetection::Until(now);
            }
        }
    }

    /// Records that a holder has reached the store, to renew or to save.
    pub(crate) fn record_contact(&mut self, owner: &ClaimOwner, now: Timestamp) {
        for emptying in &mut self.emptyings {
            let in_time = now < emptying.at + emptying.lease;
            if let Some(claim) = emptying.claims.get_mut(owner)
                && claim.holder == HolderContact::Silent
            {
                claim.holder = if in_time { HolderContact::Reached } else { HolderContact::Lost };
            }
        }
    }

    /// Records a claim by a process that was started after this many losses. It is excused for everything that it could
    /// not know.
    pub(crate) fn claimed(&mut self, record: &DedupeRecord, started_after: usize) {
        let before_its_time = self.emptyings.iter_mut().take(started_after);
        let claims = before_its_time.flat_map(|emptying| emptying.claims.iter_mut());
        for (_, claim) in claims.filter(|(owner, claim)| **owner != record.owner && claim.is_silent()) {
            claim.hidden |= claim.index.is_some() && claim.index == record.index;
            if claim.key == record.key {
                claim.holder = HolderContact::Lost;
            }
        }
    }

    /// Returns claims that were not written again since an earlier loss, although it is not too late yet.
    fn still_silent(&self, now: Timestamp) -> BTreeMap<ClaimOwner, InFlightClaim> {
        let recent = self.emptyings.iter().filter(|emptying| now < emptying.at + emptying.lease);
        let claims = recent.flat_map(|emptying| &emptying.claims).filter(|(_, claim)| claim.is_silent());
        claims.map(|(owner, claim)| (owner.clone(), *claim)).collect()
    }
}

impl StoreLoss {
    /// Returns true if a claim at this time is refused under an explicit key without a stored answer.
    fn refuses(&self, claimed: Timestamp) -> bool {
        match self.notice {
            LossDetection::Unnoticed => false,
            LossDetection::Refuses => true,
            LossDetection::Until(over) => claimed < over,
        }
    }

    /// Returns true if the claim of this owner could be unknown to a claim made at this time.
    fn lost(&self, owner: Option<&ClaimOwner>, claimed: Timestamp, by: RecordLookup) -> bool {
        let Some(claim) = owner.and_then(|owner| self.claims.get(owner)) else { return true };
        match claim.holder {
            HolderContact::Lost => true,
            HolderContact::Silent if claimed >= self.at + self.lease => true,
            HolderContact::Silent | HolderContact::Reached => {
                claim.hidden && by == RecordLookup::EqualArguments
            }
        }
    }
}

impl InFlightClaim {
    fn is_silent(&self) -> bool {
        self.holder == HolderContact::Silent
    }
}

impl SimulatedWorld {
    /// Removes records, index, requests and grants, and changes the store's marker. No process is notified.
    pub(crate) fn empty_the_store(&mut self) {
        let now = self.now;
        let mut claims = self.model.still_silent(now);
        for record in self.store.records.iter().filter(|record| record.state == DedupeState::Inflight) {
            if self.nodes.iter().any(|node| node.alive && node.identity == record.owner.process) {
                let claim = InFlightClaim {
                    key: record.key,
                    index: record.index,
                    holder: HolderContact::Silent,
                    hidden: false,
                };
                claims.insert(record.owner.clone(), claim);
            }
        }
        let records = self.store.records.len();
        let lease = self.weather.policy.dedupe.keep.lease;
        self.summary.emptyings += 1;
        self.disturbed = self.disturbed.max(now);
        let marker = StoreMarker(self.side.next());
        let noticed = marker.0 & 1 == 1 || self.defect == Some(Defect::LossNotHeeded);
        let noticed = noticed.then(|| RecordLoss {
            cause: LossCause::Missing,
            noticed: now,
            commits: Some(records as u64),
            after: None,
            until: None,
            set_aside: Vec::new(),
        });
        self.log_event(format!(
            "the store LOSES EVERYTHING: {records} records, {} of them held; it {}",
            claims.len(),
            if noticed.is_some() { "notices" } else { "does not notice" }
        ));
        let notice = match noticed {
            Some(_) => {
                // Some operators accept the loss soon, others after the faults.
                let soon = (marker.0 >> 1) & 1 == 1;
                let after = if soon { (marker.0 >> 8) % 60_000 } else { self.weather.storm };
                self.later(after, SimulationEvent::LossAccepted);
                LossDetection::Refuses
            }
            None => {
                self.model.loss_is_over(now);
                LossDetection::Unnoticed
            }
        };
        self.model.emptyings.push(StoreLoss { at: now, lease, claims, notice });
        self.store.empty(marker, noticed);
    }

    /// Accepts the loss as an operator.
    pub(crate) fn accept_loss(&mut self) {
        let now = self.now;
        if self.store.loss.take().is_some() {
            self.log_event("an operator ACCEPTS that records are lost".to_owned());
            self.model.loss_is_over(now);
        }
    }

    /// Shows the store's marker to the process. Every store command does that.
    pub(crate) fn observe_marker(&mut self, node: usize) -> MarkerWatch {
        let lease = self.weather.policy.dedupe.keep.lease;
        let (now, marker) = (self.now, self.store.marker);
        let watch = &mut self.nodes[node].watch;
        let status = watch.observe(marker, lease, now);
        let watch = *watch;
        if status == MarkerStatus::Emptied {
            self.log_event(format!("process {node}: notices that the store was emptied"));
            self.share_soon(node);
        }
        watch
    }
}

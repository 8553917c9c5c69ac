//! The store loses everything, and what that may cost.
//!
//! A process that knew the old marker notices at its next word with the store, and claims nothing that must not run
//! twice for one lease. Holders write their claims again meanwhile, and their answers are saved. So a claim in flight
//! outlives the loss, if its holder does and is heard by the store within one lease. Not promised, and forgiven here:
//!
//! - what was finished, declared unknown, or held by nobody who lives is lost, and may run again;
//! - so is a claim whose holder was not heard for one lease: it died meanwhile, was frozen or cut off, or the clock
//!   jumped;
//! - a process that was started after the loss never knew another marker. It has nothing to wait for, and may take
//!   the place of a holder that was not heard yet: under its key, or in the index of equal arguments.
//!
//! A store that counts its commits notices that they are gone. Then no explicit key of a tool that must not run twice runs
//! again before an operator has accepted the loss, whatever was in flight and whoever was started since: of all of the
//! above only what is found by equal arguments or a call id is forgiven until then.
//!
//! Everything else is promised as if nothing had been lost. Whether a holder was heard is the model's own
//! observation; whether the claim was then written again is what is under test.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{LossCause, Marker, MarkerWatch, Owner, Record, RecordLoss, RecordState, Seen};
use steadfast_core::key::Key;

use crate::Defect;
use crate::model::{Effect, Intent, Model};
use crate::system::World;
use crate::transition::Happening;

/// One loss of everything.
#[derive(Clone, Debug)]
pub(crate) struct Emptying {
    pub(crate) at: Timestamp,
    lease: Duration,
    /// What was in flight under a living process.
    held: BTreeMap<Owner, Held>,
    notice: Notice,
}

/// Whether the store knows that it has lost everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// It does not, or that too is lost.
    Unnoticed,
    /// It does, and refuses what may have run.
    Refuses,
    /// An operator has accepted it, or the store has lost even that.
    Until(Timestamp),
}

/// A claim that was in flight when the store lost it.
#[derive(Clone, Copy, Debug)]
struct Held {
    key: Key,
    index: Option<Key>,
    holder: Holder,
    /// Whether an equal call that could not know of it has its place in the index.
    hidden: bool,
}

/// What the store has heard of a holder since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Nothing yet.
    Silent,
    /// It was in time: the promise holds.
    Heard,
    /// Nothing in time, or somebody who could not know took its key before.
    Lost,
}

/// How a call finds what ran before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    Key,
    EqualArguments,
}

impl Model {
    /// Whether an emptied store may have cost the second call its knowledge of the first.
    pub(crate) fn lost_between(&self, earlier: &Effect, later: &Effect, by: FoundBy) -> bool {
        let is_explicit = matches!(later.intent, Some(Intent::Explicit(_) | Intent::Turn(_)));
        self.emptyings.iter().any(|emptying| {
            earlier.claimed <= emptying.at
                && emptying.at <= later.claimed
                && !(is_explicit && emptying.refuses(later.claimed))
                && emptying.lost(earlier.owner.as_ref(), later.claimed, by)
        })
    }

    /// An operator has looked at what was lost, or the store has lost what it knew of that.
    fn loss_is_over(&mut self, now: Timestamp) {
        for emptying in &mut self.emptyings {
            if emptying.notice == Notice::Refuses {
                emptying.notice = Notice::Until(now);
            }
        }
    }

    /// A holder has got through to the store, to renew or to save.
    pub(crate) fn heard(&mut self, owner: &Owner, now: Timestamp) {
        for emptying in &mut self.emptyings {
            let in_time = now < emptying.at + emptying.lease;
            if let Some(held) = emptying.held.get_mut(owner)
                && held.holder == Holder::Silent
            {
                held.holder = if in_time { Holder::Heard } else { Holder::Lost };
            }
        }
    }

    /// A process that was started after so many losses got a claim. It cannot be blamed for what it could not know.
    pub(crate) fn claimed(&mut self, record: &Record, started_after: usize) {
        let before_its_time = self.emptyings.iter_mut().take(started_after);
        let held = before_its_time.flat_map(|emptying| emptying.held.iter_mut());
        for (_, held) in held.filter(|(owner, held)| **owner != record.owner && held.is_silent()) {
            held.hidden |= held.index.is_some() && held.index == record.index;
            if held.key == record.key {
                held.holder = Holder::Lost;
            }
        }
    }

    /// Claims that were not written again since an earlier loss, although it is not too late yet.
    fn still_silent(&self, now: Timestamp) -> BTreeMap<Owner, Held> {
        let recent = self.emptyings.iter().filter(|emptying| now < emptying.at + emptying.lease);
        let held = recent.flat_map(|emptying| &emptying.held).filter(|(_, held)| held.is_silent());
        held.map(|(owner, held)| (owner.clone(), *held)).collect()
    }
}

impl Emptying {
    /// Whether a claim at this moment is refused under an explicit key that does not answer it.
    fn refuses(&self, claimed: Timestamp) -> bool {
        match self.notice {
            Notice::Unnoticed => false,
            Notice::Refuses => true,
            Notice::Until(over) => claimed < over,
        }
    }

    /// Whether what this owner had claimed could be unknown to a claim that was made at this moment.
    fn lost(&self, owner: Option<&Owner>, claimed: Timestamp, by: FoundBy) -> bool {
        let Some(held) = owner.and_then(|owner| self.held.get(owner)) else { return true };
        match held.holder {
            Holder::Lost => true,
            Holder::Silent if claimed >= self.at + self.lease => true,
            Holder::Silent | Holder::Heard => held.hidden && by == FoundBy::EqualArguments,
        }
    }
}

impl Held {
    fn is_silent(&self) -> bool {
        self.holder == Holder::Silent
    }
}

impl World {
    /// Records, index, requests and grants are gone, and the store has another marker. Nobody is told.
    pub(crate) fn empty_the_store(&mut self) {
        let now = self.now;
        let mut held = self.model.still_silent(now);
        for record in self.store.records.iter().filter(|record| record.state == RecordState::Inflight) {
            if self.nodes.iter().any(|node| node.alive && node.identity == record.owner.process) {
                let claim =
                    Held { key: record.key, index: record.index, holder: Holder::Silent, hidden: false };
                held.insert(record.owner.clone(), claim);
            }
        }
        let records = self.store.records.len();
        let lease = self.weather.policy.dedupe.keep.lease;
        self.summary.emptyings += 1;
        self.disturbed = self.disturbed.max(now);
        let marker = Marker(self.side.next());
        let noticed = marker.0 & 1 == 1 || self.defect == Some(Defect::LossNotHeeded);
        let noticed = noticed.then(|| RecordLoss {
            cause: LossCause::Missing,
            noticed: now,
            commits: Some(records as u64),
            after: None,
            until: None,
            set_aside: Vec::new(),
        });
        self.tell(format!(
            "the store LOSES EVERYTHING: {records} records, {} of them held; it {}",
            held.len(),
            if noticed.is_some() { "notices" } else { "does not notice" }
        ));
        let notice = match noticed {
            Some(_) => {
                // Some operators look soon, others when the storm is over.
                let soon = (marker.0 >> 1) & 1 == 1;
                let after = if soon { (marker.0 >> 8) % 60_000 } else { self.weather.storm };
                self.later(after, Happening::LossAccepted);
                Notice::Refuses
            }
            None => {
                self.model.loss_is_over(now);
                Notice::Unnoticed
            }
        };
        self.model.emptyings.push(Emptying { at: now, lease, held, notice });
        self.store.empty(marker, noticed);
    }

    /// An operator accepts what is lost.
    pub(crate) fn accept_loss(&mut self) {
        let now = self.now;
        if self.store.loss.take().is_some() {
            self.tell("an operator ACCEPTS that records are lost".to_owned());
            self.model.loss_is_over(now);
        }
    }

    /// Every word with the store shows its marker to the process.
    pub(crate) fn see_marker(&mut self, node: usize) -> MarkerWatch {
        let lease = self.weather.policy.dedupe.keep.lease;
        let (now, marker) = (self.now, self.store.marker);
        let watch = &mut self.nodes[node].watch;
        let seen = watch.see(marker, lease, now);
        let watch = *watch;
        if seen == Seen::Emptied {
            self.tell(format!("process {node}: notices that the store was emptied"));
            self.share_soon(node);
        }
        watch
    }
}

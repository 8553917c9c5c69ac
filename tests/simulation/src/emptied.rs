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
//! Everything else is promised as if nothing had been lost. Whether a holder was heard is the model's own
//! observation; whether the claim was then written again is what is under test.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Marker, MarkerWatch, Owner, Record, RecordState, Seen};
use steadfast_core::key::Key;

use crate::model::{Effect, Model};
use crate::system::World;

/// One loss of everything.
#[derive(Clone, Debug)]
pub(crate) struct Emptying {
    pub(crate) at: Timestamp,
    lease: Duration,
    /// What was in flight under a living process.
    held: BTreeMap<Owner, Held>,
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
        self.emptyings.iter().any(|emptying| {
            earlier.claimed <= emptying.at
                && emptying.at <= later.claimed
                && emptying.lost(earlier.owner.as_ref(), later.claimed, by)
        })
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
        self.tell(format!("the store LOSES EVERYTHING: {records} records, {} of them held", held.len()));
        let lease = self.weather.policy.dedupe.keep.lease;
        self.summary.emptyings += 1;
        self.disturbed = self.disturbed.max(now);
        self.model.emptyings.push(Emptying { at: now, lease, held });
        let marker = Marker(self.side.next());
        self.store.empty(marker);
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

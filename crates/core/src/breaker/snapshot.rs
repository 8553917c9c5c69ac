//! A breaker as it is stored, so that a restart or another process does not forget that it is open.
//!
//! Only what a transition decides and who is probing is stored: outcomes that a closed breaker counted are not,
//! because writing on every call would cost more than counting again. A store keeps the newer snapshot
//! (compare-and-set); a process that lost the race, or hears of a change made elsewhere, adopts what is stored. So
//! whoever wants to probe writes that down first, and one of all those who share the store does.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{Agreed, Breaker, MOST_CHANGES, Phase, Probe, Reason, State, Transition};
use crate::Timestamp;

/// What is stored of a breaker. A value that exists is one that can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Snapshot {
    epoch: u64,
    state: State,
    reopened: u32,
    changed: Option<(Timestamp, Reason)>,
    trial: Option<Trial>,
    /// Until when it is forced open.
    until: Option<Timestamp>,
    /// Its last changes, the newest last. Nothing is decided by them.
    changes: VecDeque<Transition>,
}

/// How far a half-open breaker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    turn: u32,
    good: u32,
    neutral: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probe: Option<Place>,
}

/// Who has the place of the probe, and the last that was heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    number: NonZeroU64,
    alive: Timestamp,
}

impl Snapshot {
    /// The format that is written. A reader refuses a newer one rather than guess.
    pub const VERSION: u32 = 1;
    /// The largest epoch that is believed; also the largest whole number that every JSON reader keeps.
    pub const LAST_EPOCH: u64 = (1 << 53) - 1;

    /// A change by hand takes the next epoch that is a multiple of this, or that of its second if it is larger, so that it
    /// is newer than every change that a breaker could have come to by itself since anybody last heard of it: far more than
    /// a breaker changes in that time.
    pub const BY_HAND: u64 = 1 << 20;

    /// Which change this is. Later ones have a larger number.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The state after it.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Until when a person forced it open; nothing if nobody did, or until it is reset.
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whether a store that holds `stored` should hold this one instead.
    pub fn replaces(&self, stored: &Self) -> bool {
        self.order() > stored.order()
    }

    /// Epochs follow each other, and within one the place of the probe changes hands.
    fn order(&self) -> (u64, u32) {
        (self.epoch, self.trial.map_or(0, |trial| trial.turn))
    }

    /// Whether it is the same change. What is compared is never equal in the snapshots of two who did different things.
    fn is_same_as(&self, other: &Self) -> bool {
        let probe = |snapshot: &Self| snapshot.trial.and_then(|trial| trial.probe).map(|place| place.number);
        (self.state, self.changed, self.until) == (other.state, other.changed, other.until)
            && probe(self) == probe(other)
    }

    fn since(&self) -> Timestamp {
        self.changed.map_or(Timestamp::ZERO, |(at, _)| at)
    }

    /// The phase to go on from. A moment of the future would hold the breaker open for longer than any
    /// policy says; it becomes now.
    fn phase(&self, now: Timestamp) -> Phase {
        let reopened = self.reopened;
        let Trial { turn, good, neutral, probe } = self.trial.unwrap_or_default();
        let probe = probe.map(|Place { number, alive }| {
            let alive = alive.min(now);
            Probe { number, alive, told: alive, agreed: Agreed::Yes }
        });
        match self.state {
            State::Closed => Phase::Closed,
            State::Open => Phase::Open { since: self.since().min(now), reopened },
            State::HalfOpen => Phase::HalfOpen { reopened, good, neutral, probe, turn },
            State::ForcedOpen => Phase::ForcedOpen { until: self.until },
        }
    }
}

/// Why stored data cannot be a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidSnapshot {
    /// Written by a version that we do not know.
    Version(u32),
    /// No breaker changes that often; taking it over would leave no room for further changes.
    Epoch(u64),
}

impl fmt::Display for InvalidSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(found) => {
                write!(f, "breaker format {found} is unknown, this program reads {}", Snapshot::VERSION)
            }
            Self::Epoch(found) => write!(f, "breaker epoch {found} is beyond {}", Snapshot::LAST_EPOCH),
        }
    }
}

impl std::error::Error for InvalidSnapshot {}

impl Breaker {
    /// What to store after a transition, or when the place of the probe changed hands.
    pub fn snapshot(&self) -> Snapshot {
        let (reopened, trial) = match self.phase {
            Phase::Open { reopened, .. } => (reopened, None),
            Phase::HalfOpen { reopened, good, neutral, probe, turn } => {
                let probe = probe.map(|Probe { number, told, .. }| Place { number, alive: told });
                (reopened, Some(Trial { turn, good, neutral, probe }))
            }
            Phase::Closed | Phase::ForcedOpen { .. } => (0, None),
        };
        let until = match self.phase {
            Phase::ForcedOpen { until } => until,
            Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } => None,
        };
        Snapshot {
            epoch: self.epoch.min(Snapshot::LAST_EPOCH),
            state: self.phase.state(),
            reopened,
            changed: self.changed,
            trial,
            until,
            changes: self.changes.clone(),
        }
    }

    /// The breaker of a process that starts and shares it with nobody: whoever was probing is gone.
    pub fn restore(snapshot: &Snapshot, now: Timestamp) -> Self {
        let trial = snapshot.trial.map(|trial| Trial { probe: None, ..trial });
        let alone = Snapshot { trial, ..snapshot.clone() };
        Self {
            epoch: alone.epoch,
            phase: alone.phase(now),
            changed: alone.changed,
            changes: alone.changes,
            ..Self::default()
        }
    }

    /// Takes over a change made elsewhere, if it is newer than what is here. Of two that would follow the same
    /// one only one can have been stored, so the stored one counts. In half-open the place of the probe belongs to
    /// whoever is stored as having it, until its lease is over.
    ///
    /// The transition is the one as seen from here.
    pub fn adopt(&mut self, snapshot: &Snapshot, now: Timestamp) -> Option<Transition> {
        let here = self.known();
        let lost_race = snapshot.order() == here.order() && !snapshot.is_same_as(&here);
        if !snapshot.replaces(&here) && !lost_race {
            return None;
        }
        if snapshot.epoch == here.epoch && snapshot.state == here.state && snapshot.changed == here.changed {
            self.phase = snapshot.phase(now);
            self.free_what_came_back();
            return None;
        }
        let (at, reason) = snapshot.changed.unwrap_or((now, Reason::Reset));
        let change = self.change(snapshot.phase(now), reason, at.min(now));
        // What was counted here did not lead to it.
        self.window.clear();
        // As stored, not as our clock sees it: this is how a change that was taken over is known again.
        (self.epoch, self.changed) = (snapshot.epoch, snapshot.changed);
        // Whoever stored them has adopted all that came before. A version that keeps none leaves what is known here.
        if !snapshot.changes.is_empty() {
            self.changes = snapshot.changes.clone();
        }
        self.free_what_came_back();
        (change.from != change.to).then_some(change)
    }
}

impl Breaker {
    /// What is here without what nobody else knows of: a probe that is not agreed on yet is not there.
    fn known(&self) -> Snapshot {
        let mut known = self.snapshot();
        if let Phase::HalfOpen { probe: Some(probe), .. } = self.phase
            && let (Agreed::NotYet { after }, Some(trial)) = (probe.agreed, &mut known.trial)
        {
            trial.turn = trial.turn.saturating_sub(1);
            trial.probe = after.map(|number| Place { number, alive: probe.alive });
        }
        known
    }

    /// The place of a probe of ours that came back before we knew that it was stored.
    fn free_what_came_back(&mut self) {
        if let Phase::HalfOpen { probe, turn, .. } = &mut self.phase
            && probe.is_some_and(|probe| Some(probe.number) == self.ended)
        {
            *probe = None;
            *turn = turn.saturating_add(1);
        }
    }
}

/// The form on disk and on the wire.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    epoch: u64,
    state: State,
    #[serde(default)]
    reopened: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<Changed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial: Option<Trial>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    changes: VecDeque<Transition>,
}

#[derive(Serialize, Deserialize)]
struct Changed {
    at: Timestamp,
    reason: Reason,
}

impl TryFrom<Stored> for Snapshot {
    type Error = InvalidSnapshot;

    fn try_from(stored: Stored) -> Result<Self, InvalidSnapshot> {
        if stored.version != Self::VERSION {
            return Err(InvalidSnapshot::Version(stored.version));
        }
        if stored.epoch > Self::LAST_EPOCH {
            return Err(InvalidSnapshot::Epoch(stored.epoch));
        }
        let changed = stored.changed.map(|Changed { at, reason }| (at, reason));
        // Only a half-open breaker tries; whatever else says so was not written by us.
        let trial = stored.trial.filter(|_| stored.state == State::HalfOpen);
        let until = stored.until.filter(|_| stored.state == State::ForcedOpen);
        let mut changes = stored.changes;
        changes.drain(..changes.len().saturating_sub(MOST_CHANGES));
        let (epoch, state, reopened) = (stored.epoch, stored.state, stored.reopened);
        Ok(Self { epoch, state, reopened, changed, trial, until, changes })
    }
}

impl From<Snapshot> for Stored {
    fn from(snapshot: Snapshot) -> Self {
        Self {
            version: Snapshot::VERSION,
            epoch: snapshot.epoch,
            state: snapshot.state,
            reopened: snapshot.reopened,
            changed: snapshot.changed.map(|(at, reason)| Changed { at, reason }),
            trial: snapshot.trial,
            until: snapshot.until,
            changes: snapshot.changes,
        }
    }
}

//! The stored form of a circuit breaker, so that a restart or another process does not forget that it is open.
//!
//! Only the data of transitions and the owner of the probe are stored. Outcomes that a closed breaker counted are not,
//! because a write per call would cost more than counting again. A store keeps the newer snapshot (compare-and-set). A
//! process that lost the race, or learns of a change elsewhere, adopts the stored one. A process stores its probe
//! before it sends it, so of all processes that share the store only one does.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{
    ActiveProbe, BreakerPhase, BreakerTransition, CircuitBreaker, MOST_CHANGES, ProbeAgreement, State,
    TransitionReason,
};
use crate::Timestamp;

/// The stored data of a breaker. Every value of this type can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredBreaker", into = "StoredBreaker")]
pub struct BreakerSnapshot {
    epoch: u64,
    state: State,
    reopened: u32,
    changed: Option<(Timestamp, TransitionReason)>,
    trial: Option<HalfOpenProgress>,
    /// Time until which the breaker is forced open.
    until: Option<Timestamp>,
    /// Last changes, newest last. They affect no decision.
    changes: VecDeque<BreakerTransition>,
}

/// The progress of a half-open breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct HalfOpenProgress {
    turn: u32,
    good: u32,
    neutral: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probe: Option<ProbeSlot>,
}

/// The owner of the probe slot, and its last known renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProbeSlot {
    number: NonZeroU64,
    alive: Timestamp,
}

impl BreakerSnapshot {
    /// The format version that is written. A reader refuses a newer one.
    pub const VERSION: u32 = 1;
    /// The largest epoch that is accepted. Also the largest whole number that every JSON reader keeps.
    pub const LAST_EPOCH: u64 = (1 << 53) - 1;

    /// The distance between epochs of changes by operators. Such a change takes the next epoch that is a multiple of
    /// this, or that of its second if it is larger. So it is newer than every automatic change since the last exchange
    /// between processes: a breaker changes far less often in that time.
    pub const OPERATOR_EPOCH_STEP: u64 = 1 << 20;

    /// Returns the epoch. A later change has a larger one.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the state after the change.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the time until which an operator forced the breaker open. `None` if it is not forced, or until it is
    /// reset.
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns true if a store that holds `stored` should hold this snapshot instead.
    pub fn replaces(&self, stored: &Self) -> bool {
        self.order() > stored.order()
    }

    /// Returns the order of snapshots. Epochs follow each other, and within one epoch the probe slot changes its owner.
    fn order(&self) -> (u64, u32) {
        (self.epoch, self.trial.map_or(0, |trial| trial.turn))
    }

    /// Returns true if this is the same change. The compared values always differ if two processes did different
    /// things.
    fn is_same_as(&self, other: &Self) -> bool {
        let probe = |snapshot: &Self| snapshot.trial.and_then(|trial| trial.probe).map(|place| place.number);
        (self.state, self.changed, self.until) == (other.state, other.changed, other.until)
            && probe(self) == probe(other)
    }

    fn since(&self) -> Timestamp {
        self.changed.map_or(Timestamp::ZERO, |(at, _)| at)
    }

    /// Returns the phase to continue from. A time in the future would hold the breaker open for longer than any policy
    /// allows, so it becomes now.
    fn phase(&self, now: Timestamp) -> BreakerPhase {
        let reopened = self.reopened;
        let HalfOpenProgress { turn, good, neutral, probe } = self.trial.unwrap_or_default();
        let probe = probe.map(|ProbeSlot { number, alive }| {
            let alive = alive.min(now);
            ActiveProbe { number, alive, announced: alive, agreed: ProbeAgreement::Yes }
        });
        match self.state {
            State::Closed => BreakerPhase::Closed,
            State::Open => BreakerPhase::Open { since: self.since().min(now), reopened },
            State::HalfOpen => BreakerPhase::HalfOpen { reopened, good, neutral, probe, turn },
            State::ForcedOpen => BreakerPhase::ForcedOpen { until: self.until },
        }
    }
}

/// The reason why stored data is not a valid snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBreakerSnapshot {
    /// The version is unknown.
    #[error("breaker format {0} is unknown, this program reads {version}", version = BreakerSnapshot::VERSION)]
    Version(u32),
    /// No breaker changes this often. Adopting the epoch would leave no room for further changes.
    #[error("breaker epoch {0} is beyond {last}", last = BreakerSnapshot::LAST_EPOCH)]
    Epoch(u64),
}

impl CircuitBreaker {
    /// Returns the snapshot to store after a transition, or when the probe slot changes its owner.
    pub fn snapshot(&self) -> BreakerSnapshot {
        let (reopened, trial) = match self.phase {
            BreakerPhase::Open { reopened, .. } => (reopened, None),
            BreakerPhase::HalfOpen { reopened, good, neutral, probe, turn } => {
                let probe =
                    probe.map(|ActiveProbe { number, announced, .. }| ProbeSlot { number, alive: announced });
                (reopened, Some(HalfOpenProgress { turn, good, neutral, probe }))
            }
            BreakerPhase::Closed | BreakerPhase::ForcedOpen { .. } => (0, None),
        };
        let until = match self.phase {
            BreakerPhase::ForcedOpen { until } => until,
            BreakerPhase::Closed | BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => None,
        };
        BreakerSnapshot {
            epoch: self.epoch.min(BreakerSnapshot::LAST_EPOCH),
            state: self.phase.state(),
            reopened,
            changed: self.changed,
            trial,
            until,
            changes: self.changes.clone(),
        }
    }

    /// Restores the breaker of a starting process that shares it with no other: the owner of any probe is gone.
    pub fn restore(snapshot: &BreakerSnapshot, now: Timestamp) -> Self {
        let trial = snapshot.trial.map(|trial| HalfOpenProgress { probe: None, ..trial });
        let alone = BreakerSnapshot { trial, ..snapshot.clone() };
        Self {
            epoch: alone.epoch,
            phase: alone.phase(now),
            changed: alone.changed,
            changes: alone.changes,
            ..Self::default()
        }
    }

    /// Adopts a change made elsewhere if it is newer. Of two changes that follow the same one only one can be stored,
    /// so the stored one counts. In half-open the stored owner has the probe slot until its lease is over.
    ///
    /// Returns the transition from the local state.
    pub fn adopt(&mut self, snapshot: &BreakerSnapshot, now: Timestamp) -> Option<BreakerTransition> {
        let here = self.agreed_snapshot();
        let lost_race = snapshot.order() == here.order() && !snapshot.is_same_as(&here);
        if !snapshot.replaces(&here) && !lost_race {
            return None;
        }
        if snapshot.epoch == here.epoch && snapshot.state == here.state && snapshot.changed == here.changed {
            self.phase = snapshot.phase(now);
            self.free_returned_probe();
            return None;
        }
        let (at, reason) = snapshot.changed.unwrap_or((now, TransitionReason::Reset));
        let change = self.change(snapshot.phase(now), reason, at.min(now));
        // The outcomes counted here did not lead to it.
        self.window.clear();
        // Kept as stored, not adjusted to the local clock: the values identify an adopted change.
        (self.epoch, self.changed) = (snapshot.epoch, snapshot.changed);
        // The process that stored them had adopted all earlier changes. If a version stores none, the local ones stay.
        if !snapshot.changes.is_empty() {
            self.changes = snapshot.changes.clone();
        }
        self.free_returned_probe();
        (change.from != change.to).then_some(change)
    }
}

impl CircuitBreaker {
    /// Returns the snapshot without local knowledge: a probe without agreement is left out.
    fn agreed_snapshot(&self) -> BreakerSnapshot {
        let mut known = self.snapshot();
        if let BreakerPhase::HalfOpen { probe: Some(probe), .. } = self.phase
            && let (ProbeAgreement::NotYet { after }, Some(trial)) = (probe.agreed, &mut known.trial)
        {
            trial.turn = trial.turn.saturating_sub(1);
            trial.probe = after.map(|number| ProbeSlot { number, alive: probe.alive });
        }
        known
    }

    /// Frees the slot of a local probe that was returned before it was known to be stored.
    fn free_returned_probe(&mut self) {
        if let BreakerPhase::HalfOpen { probe, turn, .. } = &mut self.phase
            && probe.is_some_and(|probe| Some(probe.number) == self.returned_probe)
        {
            *probe = None;
            *turn = turn.saturating_add(1);
        }
    }
}

/// The form on disk and on the wire.
#[derive(Serialize, Deserialize)]
struct StoredBreaker {
    version: u32,
    epoch: u64,
    state: State,
    #[serde(default)]
    reopened: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<StoredChange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial: Option<HalfOpenProgress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    changes: VecDeque<BreakerTransition>,
}

#[derive(Serialize, Deserialize)]
struct StoredChange {
    at: Timestamp,
    reason: TransitionReason,
}

impl TryFrom<StoredBreaker> for BreakerSnapshot {
    type Error = InvalidBreakerSnapshot;

    fn try_from(stored: StoredBreaker) -> Result<Self, InvalidBreakerSnapshot> {
        if stored.version != Self::VERSION {
            return Err(InvalidBreakerSnapshot::Version(stored.version));
        }
        if stored.epoch > Self::LAST_EPOCH {
            return Err(InvalidBreakerSnapshot::Epoch(stored.epoch));
        }
        let changed = stored.changed.map(|StoredChange { at, reason }| (at, reason));
        // Only a half-open breaker has a trial. Any other data was not written by Steadfast.
        let trial = stored.trial.filter(|_| stored.state == State::HalfOpen);
        let until = stored.until.filter(|_| stored.state == State::ForcedOpen);
        let mut changes = stored.changes;
        changes.drain(..changes.len().saturating_sub(MOST_CHANGES));
        let (epoch, state, reopened) = (stored.epoch, stored.state, stored.reopened);
        Ok(Self { epoch, state, reopened, changed, trial, until, changes })
    }
}

impl From<BreakerSnapshot> for StoredBreaker {
    fn from(snapshot: BreakerSnapshot) -> Self {
        Self {
            version: BreakerSnapshot::VERSION,
            epoch: snapshot.epoch,
            state: snapshot.state,
            reopened: snapshot.reopened,
            changed: snapshot.changed.map(|(at, reason)| StoredChange { at, reason }),
            trial: snapshot.trial,
            until: snapshot.until,
            changes: snapshot.changes,
        }
    }
}

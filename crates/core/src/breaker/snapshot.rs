//! A breaker as it is stored, so that a restart or another process does not forget that it is open.
//!
//! Only what a transition decides is stored: outcomes that a closed breaker counted and the progress of
//! probes are not, because writing on every call would cost more than counting again. A store keeps the
//! snapshot with the larger epoch (compare-and-set); a process that lost the race, or hears of a change made
//! elsewhere, adopts what is stored.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Breaker, Phase, Probe, Reason, State, Transition};
use crate::Timestamp;

/// What is stored of a breaker. A value that exists is one that can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Snapshot {
    epoch: u64,
    state: State,
    reopened: u32,
    changed: Option<(Timestamp, Reason)>,
}

impl Snapshot {
    /// The format that is written. A reader refuses a newer one rather than guess.
    pub const VERSION: u32 = 1;
    /// The largest epoch that is believed; also the largest whole number that every JSON reader keeps.
    pub const LAST_EPOCH: u64 = (1 << 53) - 1;

    /// Which change this is, counted from the first.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The state after it.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether a store that holds `stored` should hold this one instead.
    pub const fn replaces(&self, stored: &Self) -> bool {
        self.epoch > stored.epoch
    }

    fn since(&self) -> Timestamp {
        self.changed.map_or(Timestamp::ZERO, |(at, _)| at)
    }

    /// The phase to go on from. A moment of the future would hold the breaker open for longer than any
    /// policy says; it becomes now.
    fn phase(&self, now: Timestamp, probe: Option<Probe>) -> Phase {
        let reopened = self.reopened;
        match self.state {
            State::Closed => Phase::Closed,
            State::Open => Phase::Open { since: self.since().min(now), reopened },
            State::HalfOpen => Phase::HalfOpen { reopened, good: 0, neutral: 0, probe },
            State::ForcedOpen => Phase::ForcedOpen,
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
    /// What to store after a transition.
    pub fn snapshot(&self) -> Snapshot {
        let reopened = match self.phase {
            Phase::Open { reopened, .. } | Phase::HalfOpen { reopened, .. } => reopened,
            Phase::Closed | Phase::ForcedOpen => 0,
        };
        let epoch = self.epoch.min(Snapshot::LAST_EPOCH);
        Snapshot { epoch, state: self.phase.state(), reopened, changed: self.changed }
    }

    /// The breaker of a process that starts: nobody is probing, whoever did is gone.
    pub fn restore(snapshot: &Snapshot, now: Timestamp) -> Self {
        Self {
            epoch: snapshot.epoch,
            phase: snapshot.phase(now, None),
            changed: snapshot.changed,
            ..Self::default()
        }
    }

    /// Takes over a change made elsewhere, if it is newer than what is here. Of two changes with the same
    /// epoch only one can have been stored, so the stored one counts. In half-open the place of the probe
    /// belongs to whoever made the change, until its lease is over.
    ///
    /// The transition is the one as seen from here.
    pub fn adopt(&mut self, snapshot: &Snapshot, now: Timestamp) -> Option<Transition> {
        let here = self.snapshot();
        let differs = (snapshot.state, snapshot.changed) != (here.state, here.changed);
        let lost_race = snapshot.epoch == here.epoch && differs;
        if !snapshot.replaces(&here) && !lost_race {
            return None;
        }
        let number = self.next_probe();
        let elsewhere = Probe { number, alive: snapshot.since().min(now) };
        let (at, reason) = snapshot.changed.unwrap_or((now, Reason::Reset));
        let change = self.change(snapshot.phase(now, Some(elsewhere)), reason, at.min(now));
        // As stored, not as our clock sees it: this is how a change that was taken over is known again.
        (self.epoch, self.changed) = (snapshot.epoch, snapshot.changed);
        (change.from != change.to).then_some(change)
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
        Ok(Self { epoch: stored.epoch, state: stored.state, reopened: stored.reopened, changed })
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
        }
    }
}

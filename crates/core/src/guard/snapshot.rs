//! The stored form of the guard, so that a loop does not restart with the process.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::turns::{NamedTurn, SavedGuessedTurn, SessionTurns};
use super::{FailingCall, GuardSubject, LONGEST_ROW, LoopGuard, MOST_CALLS, MOST_ERRORS, RepeatedCall};
use crate::Timestamp;

/// A stored guard. Calls in flight are omitted, because they ended with their process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuardSnapshot {
    version: u32,
    failing: VecDeque<FailingCall>,
    row: VecDeque<GuardSubject>,
    repeats: VecDeque<RepeatedCall>,
    #[serde(rename = "told")]
    named: VecDeque<NamedTurn>,
    guess: SavedGuessedTurn,
    successes: u64,
    /// Ignored by versions that do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reset: Option<Timestamp>,
}

/// The error for a snapshot of a later version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guard snapshot has version {version}, this build reads {VERSION}")]
pub struct UnsupportedGuardSnapshot {
    /// The version of the snapshot.
    pub version: u32,
}

impl LoopGuard {
    /// Returns the stored form of the guard.
    pub fn snapshot(&self) -> GuardSnapshot {
        let (named, guess) = self.turns.save();
        GuardSnapshot {
            version: VERSION,
            failing: self.failing.clone(),
            row: self.row.clone(),
            repeats: self.repeats.clone(),
            named,
            guess,
            successes: self.successes,
            reset: self.reset,
        }
    }

    /// Restores a stored guard. A snapshot that exceeds the limits loses its oldest part.
    pub fn restore(snapshot: GuardSnapshot) -> Result<Self, UnsupportedGuardSnapshot> {
        let GuardSnapshot { version, mut failing, mut row, mut repeats, named, guess, successes, reset } =
            snapshot;
        readable(version)?;
        failing.drain(..failing.len().saturating_sub(MOST_CALLS));
        for failing in &mut failing {
            failing.errors.drain(..failing.errors.len().saturating_sub(MOST_ERRORS));
        }
        row.drain(..row.len().saturating_sub(LONGEST_ROW));
        repeats.drain(..repeats.len().saturating_sub(MOST_CALLS));
        let (turns, traces) = (SessionTurns::restore(named, guess), VecDeque::new());
        Ok(Self { failing, row, repeats, turns, traces, successes, reset })
    }
}

impl GuardSnapshot {
    /// Returns the time of the last reset of the session by an operator.
    pub(super) fn last_reset(&self) -> Result<Option<Timestamp>, UnsupportedGuardSnapshot> {
        readable(self.version)?;
        Ok(self.reset)
    }
}

fn readable(version: u32) -> Result<(), UnsupportedGuardSnapshot> {
    if version == VERSION { Ok(()) } else { Err(UnsupportedGuardSnapshot { version }) }
}

const VERSION: u32 = 1;

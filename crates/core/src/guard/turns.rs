//! The turns of a session, and the failures in each.
//!
//! A turn named by the host is used as it is, and every failure of it counts towards its limit. Otherwise the turn is
//! guessed: calls in flight together belong to one turn, and a gap without calls in flight starts another. A guessed
//! turn may be hours long, so it is treated with care. Only failures that show a loop count. Five other failures among
//! many successes only cause a warning. A session that reached the limit gets a try when the hold is over, because the
//! end of a guessed turn may never be reported. The limit of a guessed turn stops only the tools that failed in it,
//! because the model must be able to try something else.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::hold::RefusalHold;
use super::{GuardSubject, GuardedCall, MOST_TURNS};
use crate::Timestamp;
use crate::id::{ToolRef, TurnId};
use crate::policy::GuardPolicy;

/// The identity of a turn, named by the host or guessed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TurnMark {
    #[serde(rename = "Told")]
    Named(TurnId),
    Guessed(u64),
}

impl TurnMark {
    /// Returns true if the host named these as two turns.
    pub(super) fn is_distinct(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(one), Self::Named(another)) => one != another,
            (Self::Guessed(_), Self::Named(_) | Self::Guessed(_)) | (Self::Named(_), Self::Guessed(_)) => {
                false
            }
        }
    }
}

/// The evidence of a failure for a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopEvidence {
    /// A mistake of the model, or a loop.
    Loops,
    /// A failure without a mistake of the model. Only many of them in a row are evidence.
    Inconclusive,
}

/// The effect of a failure on its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnLimitStatus {
    Nothing,
    /// The number of failures has reached the limit, but not with failures that end a guessed turn.
    Warning {
        failures: u32,
    },
    /// No more calls run in this turn.
    Limit {
        failures: u32,
    },
}

/// A stopped turn: no more calls run in it.
pub(super) struct StoppedTurn {
    /// Its id, if the host named it.
    pub(super) turn: Option<TurnId>,
    pub(super) failures: u32,
    pub(super) since: Timestamp,
    /// Time at which one try is admitted.
    pub(super) until: Option<Timestamp>,
}

/// The turns of a session.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionTurns {
    /// Turns with failures that the host named, ordered by their last failure.
    named: VecDeque<NamedTurn>,
    guess: GuessedTurnState,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NamedTurn {
    id: TurnId,
    failures: u32,
    /// Time of the last failure. Absent in snapshots of older versions.
    #[serde(default)]
    last: Option<Timestamp>,
    /// Time at which the limit was reached.
    #[serde(rename = "ended", default)]
    limit_reached: Option<Timestamp>,
}

/// The current guessed turn.
#[derive(Clone, Debug, Default)]
struct GuessedTurnState {
    saved: SavedGuessedTurn,
    /// Calls in flight. A call whose end is never reported (its process died) is evicted in time.
    open: VecDeque<GuardSubject>,
}

/// The part of a guessed turn that is stored across a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SavedGuessedTurn {
    number: u64,
    last: Option<Timestamp>,
    tally: FailureTally,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct FailureTally {
    /// All failures and refusals.
    failures: u32,
    /// Failures that show a loop.
    loops: u32,
    /// Other failures since the last success.
    in_a_row: u32,
    /// Failures that were not followed by a success of the same call.
    uncured: u32,
    warned: bool,
    limit: Option<TurnLimitHold>,
    /// The tools whose calls failed or were refused.
    #[serde(default)]
    tools: Vec<ToolRef>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct TurnLimitHold {
    hold: RefusalHold,
    /// True if a try was admitted that can lift the limit.
    tried: bool,
}

impl SessionTurns {
    /// Returns the turn that a call at this time belongs to.
    pub(super) fn mark(&self, policy: &GuardPolicy, turn: Option<&TurnId>, now: Timestamp) -> TurnMark {
        match turn {
            Some(id) => TurnMark::Named(id.clone()),
            None if self.guess.is_over(policy, now) => {
                TurnMark::Guessed(self.guess.saved.number.wrapping_add(1))
            }
            None => TurnMark::Guessed(self.guess.saved.number),
        }
    }

    /// Returns the number of failures of the turn, if it has reached its limit.
    pub(super) fn limit(&self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) -> Option<u32> {
        match call.turn {
            Some(id) => {
                let turn = self.named.iter().find(|turn| turn.id == *id)?;
                (turn.failures >= policy.per_turn.get()).then_some(turn.failures)
            }
            None if self.guess.is_over(policy, now) => None,
            None => {
                let tally = &self.guess.saved.tally;
                let limit =
                    tally.limit.filter(|limit| limit.hold.lasts(now) && tally.tools.contains(call.tool));
                limit.map(|_| tally.failures)
            }
        }
    }

    /// Records a refused call, which counts as a failure.
    pub(super) fn refused(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        now: Timestamp,
    ) -> TurnLimitStatus {
        match call.turn {
            Some(id) => self.count_named(policy, id, now),
            None => {
                self.guess.touch(policy, now);
                let tally = &mut self.guess.saved.tally;
                // If the limit is active already, a refusal must not extend it.
                let limit = tally.limit;
                let reached = tally.count(policy, call.tool, LoopEvidence::Loops, now);
                tally.limit = limit.or(tally.limit);
                reached
            }
        }
    }

    /// Records an admitted call.
    pub(super) fn begin(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        if call.turn.is_some() {
            return;
        }
        self.guess.touch(policy, now);
        if self.guess.open.len() >= MOST_OPEN {
            self.guess.open.pop_front();
        }
        self.guess.open.push_back(GuardSubject::of(call, None));
        let tally = &mut self.guess.saved.tally;
        // Only a tool that failed can show that it works again.
        if tally.tools.contains(call.tool)
            && let Some(limit) = tally.limit.as_mut().filter(|limit| !limit.hold.lasts(now))
        {
            limit.hold.admit_try(policy, now);
            limit.tried = true;
        }
    }

    /// Records that a call is no longer in flight.
    pub(super) fn end(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        if call.turn.is_some() {
            return;
        }
        self.guess.touch(policy, now);
        if let Some(position) = self.guess.open.iter().position(|open| open.covers(call)) {
            self.guess.open.remove(position);
        }
    }

    /// Records a failed call.
    pub(super) fn failed(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        certainty: LoopEvidence,
        now: Timestamp,
    ) -> TurnLimitStatus {
        match call.turn {
            Some(id) => self.count_named(policy, id, now),
            None => self.guess.saved.tally.count(policy, call.tool, certainty, now),
        }
    }

    /// Records a success of a call with `cured` failures before it. Successes take nothing back in a turn that the host
    /// named. In a guessed turn a cured failure does not count for a warning.
    pub(super) fn succeeded(&mut self, call: GuardedCall<'_>, cured: u32) {
        if call.turn.is_some() {
            return;
        }
        let tally = &mut self.guess.saved.tally;
        tally.in_a_row = 0;
        tally.uncured = tally.uncured.saturating_sub(cured);
        // Another call that was in flight all the time proves nothing. The try after the hold does.
        if tally.limit.is_some_and(|limit| limit.tried) && tally.tools.contains(call.tool) {
            *tally = FailureTally::default();
        }
    }

    /// Returns the stopped turns. A turn named by the host ends when the host starts another one, and that end is not
    /// reported. So such a turn is returned as long as calls still fail in it now and then.
    pub(super) fn stopped(&self, policy: &GuardPolicy, now: Timestamp) -> impl Iterator<Item = StoppedTurn> {
        let named = self.named.iter().filter_map(move |turn| {
            let (last, since) = (turn.last?, turn.limit_reached?);
            (now.since(last) < DISPLAY_TIME).then(|| StoppedTurn {
                turn: Some(turn.id.clone()),
                failures: turn.failures,
                since,
                until: None,
            })
        });
        let tally = &self.guess.saved.tally;
        let limit = tally.limit.filter(|limit| !self.guess.is_over(policy, now) && limit.hold.lasts(now));
        let guessed = limit.map(|limit| {
            let (since, until) = limit.hold.span();
            StoppedTurn { turn: None, failures: tally.failures, since, until: Some(until) }
        });
        named.chain(guessed)
    }

    /// Clears the failures. Calls in flight stay in flight.
    pub(super) fn forget(&mut self) {
        self.named.clear();
        self.guess.saved.tally = FailureTally::default();
    }

    /// Returns the part that is stored across a restart.
    pub(super) fn save(&self) -> (VecDeque<NamedTurn>, SavedGuessedTurn) {
        (self.named.clone(), self.guess.saved.clone())
    }

    /// Restores the stored part, within the limits. No calls are in flight after a restart.
    pub(super) fn restore(mut named: VecDeque<NamedTurn>, saved: SavedGuessedTurn) -> Self {
        named.drain(..named.len().saturating_sub(MOST_TURNS));
        Self { named, guess: GuessedTurnState { saved, open: VecDeque::new() } }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.named.len(), self.guess.open.len())
    }

    fn count_named(&mut self, policy: &GuardPolicy, id: &TurnId, now: Timestamp) -> TurnLimitStatus {
        let position = self.named.iter().position(|turn| turn.id == *id);
        let mut turn = position
            .and_then(|position| self.named.remove(position))
            .unwrap_or_else(|| NamedTurn { id: id.clone(), failures: 0, last: None, limit_reached: None });
        turn.failures = turn.failures.saturating_add(1);
        turn.last = Some(now);
        let failures = turn.failures;
        let too_many = failures >= policy.per_turn.get();
        turn.limit_reached = turn.limit_reached.or(too_many.then_some(now));
        super::push_bounded(&mut self.named, turn, MOST_TURNS);
        if too_many { TurnLimitStatus::Limit { failures } } else { TurnLimitStatus::Nothing }
    }
}

impl GuessedTurnState {
    fn is_over(&self, policy: &GuardPolicy, now: Timestamp) -> bool {
        // Two events at the same time never belong to two turns, even if no gap is required.
        let gap = policy.turn_gap.max(Duration::from_millis(1));
        self.open.is_empty() && self.saved.last.is_some_and(|last| now.since(last) >= gap)
    }

    /// Records an event. Refused calls count too, so that a model that keeps calling has no gap.
    fn touch(&mut self, policy: &GuardPolicy, now: Timestamp) {
        if self.is_over(policy, now) {
            self.saved.number = self.saved.number.wrapping_add(1);
            self.saved.tally = FailureTally::default();
        }
        self.saved.last = Some(now);
    }
}

impl FailureTally {
    fn count(
        &mut self,
        policy: &GuardPolicy,
        tool: &ToolRef,
        certainty: LoopEvidence,
        now: Timestamp,
    ) -> TurnLimitStatus {
        if !self.tools.contains(tool) {
            self.tools.truncate(MOST_TOOLS - 1);
            self.tools.insert(0, tool.clone());
        }
        self.failures = self.failures.saturating_add(1);
        self.uncured = self.uncured.saturating_add(1);
        match certainty {
            LoopEvidence::Loops => self.loops = self.loops.saturating_add(1),
            LoopEvidence::Inconclusive => self.in_a_row = self.in_a_row.saturating_add(1),
        }
        let failures = self.failures;
        let most = policy.per_turn.get();
        if self.limit.is_some() || self.loops.saturating_add(self.in_a_row) >= most {
            match &mut self.limit {
                Some(limit) => limit.hold.restart(now),
                None => {
                    self.limit = Some(TurnLimitHold { hold: RefusalHold::start(policy, now), tried: false })
                }
            }
            return TurnLimitStatus::Limit { failures };
        }
        if self.uncured >= most && !self.warned {
            self.warned = true;
            return TurnLimitStatus::Warning { failures: self.uncured };
        }
        TurnLimitStatus::Nothing
    }
}

/// Time after its last failure for which a turn is shown as stopped if only its host can end it.
const DISPLAY_TIME: Duration = Duration::from_secs(30 * 60);
/// Maximum number of failed tools stored for a guessed turn.
const MOST_TOOLS: usize = 64;
/// Maximum number of calls in flight stored for guessing turns.
const MOST_OPEN: usize = 256;

//! Which turn a call belongs to, and how much has failed in it.
//!
//! A host that tells the turn is believed, and every failure of that turn counts towards its limit. Where
//! nobody tells it, the turn is guessed: calls in flight together are of one turn, and a gap with none in
//! flight starts another. A guess may put hours into one turn, so it is treated with care: only what shows
//! a loop counts, five bad moments among many good ones merely earn a warning, and a session that reached
//! the limit gets a try when the hold is over, because nobody may ever say that the turn has ended. The limit of a guessed
//! turn stops only the tools that failed in it: a model that was told to try something else must be able to.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::hold::Hold;
use super::{GuardedCall, MOST_TURNS, Subject};
use crate::Timestamp;
use crate::id::{ToolRef, TurnId};
use crate::policy::GuardPolicy;

/// Names a turn, told or guessed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TurnMark {
    Told(TurnId),
    Guessed(u64),
}

impl TurnMark {
    /// Whether the host itself says that these are two turns.
    pub(super) fn is_told_apart(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Told(one), Self::Told(another)) => one != another,
            (Self::Guessed(_), Self::Told(_) | Self::Guessed(_)) | (Self::Told(_), Self::Guessed(_)) => false,
        }
    }
}

/// What a failure says about the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// A mistake of the model, or a loop.
    Loops,
    /// It may happen to anyone; many in a row do not.
    MayBeBadLuck,
}

/// What a failure has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Nothing,
    /// As many failures as a turn may have, but not of the kind that ends a guessed one.
    Warning {
        failures: u32,
    },
    /// Nothing more runs in this turn.
    Limit {
        failures: u32,
    },
}

/// A turn in which nothing runs any more.
pub(super) struct StoppedTurn {
    /// Its name, if the host told it.
    pub(super) turn: Option<TurnId>,
    pub(super) failures: u32,
    pub(super) since: Timestamp,
    /// When one try is let through.
    pub(super) until: Option<Timestamp>,
}

/// The turns of a session.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Those with failures that the host named; the one that failed last is last.
    told: VecDeque<ToldTurn>,
    guess: Guess,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ToldTurn {
    id: TurnId,
    failures: u32,
    /// The last of them; those of older versions do not know.
    #[serde(default)]
    last: Option<Timestamp>,
    /// When they had become too many.
    #[serde(default)]
    ended: Option<Timestamp>,
}

/// The turn that is guessed to be going on.
#[derive(Clone, Debug, Default)]
struct Guess {
    saved: SavedGuess,
    /// What is in flight. A call that leaves no trace at its end (its process died) is pushed out in time.
    open: VecDeque<Subject>,
}

/// The part of a guess that outlives the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SavedGuess {
    number: u64,
    last: Option<Timestamp>,
    tally: Tally,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    /// All failures and refusals.
    failures: u32,
    /// Those that show a loop.
    loops: u32,
    /// The others since the last success.
    in_a_row: u32,
    /// All failures that were not followed by a success of the same call.
    uncured: u32,
    warned: bool,
    limit: Option<Limited>,
    /// The tools whose calls failed or were refused.
    #[serde(default)]
    tools: Vec<ToolRef>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Limited {
    hold: Hold,
    /// Whether a try went out that can lift the limit.
    tried: bool,
}

impl Turns {
    /// The turn that a call of now would belong to.
    pub(super) fn mark(&self, policy: &GuardPolicy, turn: Option<&TurnId>, now: Timestamp) -> TurnMark {
        match turn {
            Some(id) => TurnMark::Told(id.clone()),
            None if self.guess.is_over(policy, now) => {
                TurnMark::Guessed(self.guess.saved.number.wrapping_add(1))
            }
            None => TurnMark::Guessed(self.guess.saved.number),
        }
    }

    /// How many failures the turn has, if they are too many for another call.
    pub(super) fn limit(&self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) -> Option<u32> {
        match call.turn {
            Some(id) => {
                let turn = self.told.iter().find(|turn| turn.id == *id)?;
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

    /// A call was refused; that counts as well.
    pub(super) fn refused(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) -> Reached {
        match call.turn {
            Some(id) => self.count_told(policy, id, now),
            None => {
                self.guess.touch(policy, now);
                let tally = &mut self.guess.saved.tally;
                // The limit may hold already; a refusal must not make it last longer.
                let limit = tally.limit;
                let reached = tally.count(policy, call.tool, Certainty::Loops, now);
                tally.limit = limit.or(tally.limit);
                reached
            }
        }
    }

    /// A call was let through.
    pub(super) fn begin(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        if call.turn.is_some() {
            return;
        }
        self.guess.touch(policy, now);
        if self.guess.open.len() >= MOST_OPEN {
            self.guess.open.pop_front();
        }
        self.guess.open.push_back(Subject::of(call, None));
        let tally = &mut self.guess.saved.tally;
        // Only a tool that failed can show that it does not any more.
        if tally.tools.contains(call.tool)
            && let Some(limit) = tally.limit.as_mut().filter(|limit| !limit.hold.lasts(now))
        {
            limit.hold.spend(policy, now);
            limit.tried = true;
        }
    }

    /// A call is not in flight any more.
    pub(super) fn end(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        if call.turn.is_some() {
            return;
        }
        self.guess.touch(policy, now);
        if let Some(position) = self.guess.open.iter().position(|open| open.covers(call)) {
            self.guess.open.remove(position);
        }
    }

    /// A call has failed.
    pub(super) fn failed(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        certainty: Certainty,
        now: Timestamp,
    ) -> Reached {
        match call.turn {
            Some(id) => self.count_told(policy, id, now),
            None => self.guess.saved.tally.count(policy, call.tool, certainty, now),
        }
    }

    /// A call has succeeded that had failed so often before. Successes take nothing back in a turn that the
    /// host told; in a guessed one, a failure that was cured is no reason to warn.
    pub(super) fn succeeded(&mut self, call: GuardedCall<'_>, cured: u32) {
        if call.turn.is_some() {
            return;
        }
        let tally = &mut self.guess.saved.tally;
        tally.in_a_row = 0;
        tally.uncured = tally.uncured.saturating_sub(cured);
        // Another call that was in flight all along proves nothing; the try after the hold does.
        if tally.limit.is_some_and(|limit| limit.tried) && tally.tools.contains(call.tool) {
            *tally = Tally::default();
        }
    }

    /// The turns in which nothing runs any more. One that the host told ends when the host goes on to another, and nobody
    /// says so: it is shown for as long as something still fails in it now and then.
    pub(super) fn stopped(&self, policy: &GuardPolicy, now: Timestamp) -> impl Iterator<Item = StoppedTurn> {
        let told = self.told.iter().filter_map(move |turn| {
            let (last, since) = (turn.last?, turn.ended?);
            (now.since(last) < SHOWN_FOR).then(|| StoppedTurn {
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
        told.chain(guessed)
    }

    /// Forgets what has failed. What is in flight stays in flight.
    pub(super) fn forget(&mut self) {
        self.told.clear();
        self.guess.saved.tally = Tally::default();
    }

    /// What outlives the process.
    pub(super) fn save(&self) -> (VecDeque<ToldTurn>, SavedGuess) {
        (self.told.clone(), self.guess.saved.clone())
    }

    /// What was saved, no larger than it may be. Nothing is in flight after a restart.
    pub(super) fn restore(mut told: VecDeque<ToldTurn>, saved: SavedGuess) -> Self {
        told.drain(..told.len().saturating_sub(MOST_TURNS));
        Self { told, guess: Guess { saved, open: VecDeque::new() } }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.told.len(), self.guess.open.len())
    }

    fn count_told(&mut self, policy: &GuardPolicy, id: &TurnId, now: Timestamp) -> Reached {
        let position = self.told.iter().position(|turn| turn.id == *id);
        let mut turn = position.and_then(|position| self.told.remove(position)).unwrap_or_else(|| ToldTurn {
            id: id.clone(),
            failures: 0,
            last: None,
            ended: None,
        });
        turn.failures = turn.failures.saturating_add(1);
        turn.last = Some(now);
        let failures = turn.failures;
        let too_many = failures >= policy.per_turn.get();
        turn.ended = turn.ended.or(too_many.then_some(now));
        super::push_bounded(&mut self.told, turn, MOST_TURNS);
        if too_many { Reached::Limit { failures } } else { Reached::Nothing }
    }
}

impl Guess {
    fn is_over(&self, policy: &GuardPolicy, now: Timestamp) -> bool {
        // Two things at the same moment are never of two turns, even if no gap is needed at all.
        let gap = policy.turn_gap.max(Duration::from_millis(1));
        self.open.is_empty() && self.saved.last.is_some_and(|last| now.since(last) >= gap)
    }

    /// Something happens now; refused calls are something too, so that hammering is not a gap.
    fn touch(&mut self, policy: &GuardPolicy, now: Timestamp) {
        if self.is_over(policy, now) {
            self.saved.number = self.saved.number.wrapping_add(1);
            self.saved.tally = Tally::default();
        }
        self.saved.last = Some(now);
    }
}

impl Tally {
    fn count(
        &mut self,
        policy: &GuardPolicy,
        tool: &ToolRef,
        certainty: Certainty,
        now: Timestamp,
    ) -> Reached {
        if !self.tools.contains(tool) {
            self.tools.truncate(MOST_TOOLS - 1);
            self.tools.insert(0, tool.clone());
        }
        self.failures = self.failures.saturating_add(1);
        self.uncured = self.uncured.saturating_add(1);
        match certainty {
            Certainty::Loops => self.loops = self.loops.saturating_add(1),
            Certainty::MayBeBadLuck => self.in_a_row = self.in_a_row.saturating_add(1),
        }
        let failures = self.failures;
        let most = policy.per_turn.get();
        if self.limit.is_some() || self.loops.saturating_add(self.in_a_row) >= most {
            match &mut self.limit {
                Some(limit) => limit.hold.again(now),
                None => self.limit = Some(Limited { hold: Hold::start(policy, now), tried: false }),
            }
            return Reached::Limit { failures };
        }
        if self.uncured >= most && !self.warned {
            self.warned = true;
            return Reached::Warning { failures: self.uncured };
        }
        Reached::Nothing
    }
}

/// How long after its last failure a turn is shown as stopped that only its host can end.
const SHOWN_FOR: Duration = Duration::from_secs(30 * 60);
/// Tools that are remembered to have failed in a guessed turn.
const MOST_TOOLS: usize = 64;
/// Calls in flight that are remembered for guessing turns.
const MOST_OPEN: usize = 256;

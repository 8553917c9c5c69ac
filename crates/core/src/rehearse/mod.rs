//! Recorded calls, replayed: why each ended as it did, and how it would have ended under another configuration.
//!
//! Every call that ends leaves behind what it asked for, everything that happened to it in order, and how its attempts
//! ended ([`Recorded`]). That is all that its machine was ever told, so the same machine comes to the same end with it. A
//! rehearsal replays a recording twice: *before*, under the configuration that is in force, and then under another one. Only
//! what differs between the two is a difference.
//!
//! # What the recording does not explain
//!
//! A recording begins in the middle: a breaker may be open already, a grant may lie ready. While it runs people reset and
//! force things, other processes have a hand in it, the configuration changes. None of that is in it. So one rule holds:
//! **where the replay *before* does not come to the answer that was recorded, the recording is right.** The call is taken as
//! it was, in both replays: it is no difference, whatever the other configuration says, and it is counted and told. What it
//! did (its attempts, its answer) still counts for the calls after it, and where the replay had held something against it
//! that nothing in reality did (an open breaker, a loop, lost trust), that is forgotten in both.
//!
//! It follows that an unchanged configuration never differs, and that a difference is never made of anything but the
//! change: both replays were told the same. For that the replay *before* is repeated until it finds no more calls that are not
//! explained: the way that such a call went in the replay, up to where that showed, must not have been felt by others.
//!
//! # What nobody can know
//!
//! A call that would have run although it did not, or once more than it did, leads to where nobody was. It ends as
//! [not known](End::NotKnown), and leaves no trace in the machines but a doubt: whatever uses the same tool, conversation or
//! record after it is marked as [in doubt](ReplayedCall::in_doubt). An attempt that is made at another time than it was is
//! taken to end as it did, after as long.
//!
//! Words of tools and parameters are not recorded. What is decided by them (classification rules, dangerous shapes, the
//! check of arguments, which arguments are equal) is taken as it was.

mod facts;
mod machines;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

pub use facts::{Asked, AttemptOutcome, Ending, FailedOutcome, Manner, Moment, Recorded, Trail, What};
use machines::Believed;
use world::{Against, Happened, World};

use crate::Timestamp;
use crate::breaker::Reason;
use crate::call::{BreakerScope, Notice};
use crate::code::Code;
use crate::policy::Policy;

/// Which policy a call has.
pub type Policies<'p> = &'p mut dyn FnMut(&Recorded) -> Arc<Policy>;

/// A recording, replayed under the configuration that is in force.
#[derive(Debug)]
pub struct Rehearsal<'c> {
    calls: &'c [Recorded],
    order: Vec<Happened>,
    before: Replayed,
    /// Calls that come to another end whenever more of those before them are taken as they were. They are not explained either.
    unsteady: BTreeSet<usize>,
}

/// What became of the calls of a recording in a replay.
#[derive(Debug)]
pub struct Replayed {
    /// In the order of the recording.
    pub calls: Vec<ReplayedCall>,
    /// What a replay held against a call that had run in reality, by the place in the recording at which that showed.
    wrong: BTreeMap<usize, (usize, Believed)>,
}

/// What became of one call in a replay.
#[derive(Clone, Debug)]
pub struct ReplayedCall {
    /// How it ended.
    pub end: End,
    /// Whether something before it has an outcome that nobody knows, and may have changed it.
    pub in_doubt: bool,
    /// What happened, where that was asked for.
    pub steps: Vec<(Timestamp, Notice)>,
    /// Who had opened the breaker that was in its way, where one was and the recording knows.
    pub opened_by: Option<Opened>,
    /// When its machine wanted to be woken, after each moment.
    wakes: Vec<Option<Timestamp>>,
    /// The attempts that were ended by us.
    cut: Vec<u32>,
    /// By what it was refused.
    blocked: Option<Code>,
}

/// That a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The call with whose attempt it did, by its place in the recording.
    pub call: usize,
    /// Whose breaker it is.
    pub scope: BreakerScope,
    /// Why.
    pub reason: Reason,
    /// When.
    pub at: Timestamp,
}

/// How a call ended in a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this answer.
    Ended(Ending),
    /// It was not replayed: what was recorded is what counts.
    Taken(WhyTaken),
    /// Where nobody was.
    NotKnown(NotKnown),
}

/// Why a call was taken as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyTaken {
    /// The configuration that is in force does not lead to the answer that it got.
    NotExplained,
    /// An older version recorded it, or it was too long to be recorded in full.
    TooLittleIsKnown,
}

/// What nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKnown {
    /// What came of an attempt that was never made, or that was ended before it was over.
    Run {
        /// Which one.
        attempt: u32,
    },
    /// What a person would have said.
    Asked,
}

/// A call whose answer would be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its place in the recording.
    pub call: usize,
    /// In what way.
    pub kind: Kind,
    /// The answer that it would get; nothing if nobody knows.
    pub would: Option<Ending>,
    /// Whether something before it has an outcome that nobody knows, and may change this.
    pub in_doubt: bool,
}

/// In what way an answer would be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The breaker would refuse it.
    RefusedByBreaker,
    /// The guard would refuse it.
    RefusedByGuard,
    /// A person would be asked, or it would be refused for want of one.
    ApprovalAsked,
    /// It would get an earlier answer instead of a run.
    Replayed,
    /// It would be tried more often.
    RetriedMore,
    /// It would be tried less often.
    RetriedLess,
    /// It would run, and was refused.
    RunAlthoughRefused,
    /// It would run, and got an earlier answer.
    RunInsteadOfReplay,
    /// It would be given more time.
    GivenMoreTime,
    /// It would be told something else.
    AnsweredDifferently,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::RefusedByBreaker,
        Self::RefusedByGuard,
        Self::ApprovalAsked,
        Self::Replayed,
        Self::RetriedMore,
        Self::RetriedLess,
        Self::RunAlthoughRefused,
        Self::RunInsteadOfReplay,
        Self::GivenMoreTime,
        Self::AnsweredDifferently,
    ];

    fn of(was: &Ending, end: &End) -> Option<Self> {
        let would = match end {
            End::Taken(_) => return None,
            End::NotKnown(NotKnown::Asked) => return Some(Self::ApprovalAsked),
            End::NotKnown(NotKnown::Run { attempt }) => {
                return Some(match (was.replayed, was.attempts) {
                    (true, _) => Self::RunInsteadOfReplay,
                    (false, 0) => Self::RunAlthoughRefused,
                    (false, made) if usize::try_from(*attempt).is_ok_and(|attempt| attempt > made) => {
                        Self::RetriedMore
                    }
                    (false, _) => Self::GivenMoreTime,
                });
            }
            End::Ended(would) if would == was => return None,
            End::Ended(would) => would,
        };
        Some(match would.code {
            Some(Code::CircuitOpen) if was.code != Some(Code::CircuitOpen) => Self::RefusedByBreaker,
            Some(Code::LoopDetected | Code::ToolErrorLimit) => Self::RefusedByGuard,
            Some(Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked) => Self::ApprovalAsked,
            Some(_) | None if would.replayed && !was.replayed => Self::Replayed,
            Some(_) | None if would.attempts < was.attempts => Self::RetriedLess,
            Some(_) | None if would.attempts > was.attempts && was.replayed => Self::RunInsteadOfReplay,
            Some(_) | None if would.attempts > was.attempts && was.attempts == 0 => Self::RunAlthoughRefused,
            Some(_) | None if would.attempts > was.attempts => Self::RetriedMore,
            Some(_) | None => Self::AnsweredDifferently,
        })
    }
}

impl<'c> Rehearsal<'c> {
    /// Replays a recording under the configuration that is in force. The steps of the calls `told` are kept. `progress`
    /// hears now and then how far it is, from 0 to [`Rehearsal::length`].
    pub fn of(
        calls: &'c [Recorded],
        policies: Policies<'_>,
        told: &[usize],
        progress: &mut dyn FnMut(usize),
    ) -> Self {
        let order = in_order(calls);
        let before = World::new(calls, policies, Against::Recording(None), told).run(&order, progress);
        let mut rehearsal = Self { calls, order, before, unsteady: BTreeSet::new() };
        // A call that turned out to be not explained had gone its own way for a while, and those after it have felt that. In
        // the next replay it is taken as it was from the beginning, until nobody new is found.
        for _ in 0..AGAIN {
            let known = rehearsal.before.taken().count();
            if known == 0 {
                return rehearsal;
            }
            let against = Against::Recording(Some(&rehearsal.before));
            let again = World::new(calls, policies, against, told).run(&rehearsal.order, &mut |_| {});
            rehearsal.before = again.behind(rehearsal.before);
            if rehearsal.before.taken().count() == known {
                return rehearsal;
            }
        }
        // What is left comes out differently each time.
        let again = rehearsal.under(policies, &[], &mut |_| {});
        rehearsal.unsteady = rehearsal.differences(&again).into_iter().map(|one| one.call).collect();
        rehearsal
    }

    /// How many moments there are.
    pub fn length(calls: &[Recorded]) -> usize {
        calls.iter().map(|call| call.trail.len().max(1)).sum()
    }

    /// What became of the calls under the configuration that is in force.
    pub fn before(&self) -> &Replayed {
        &self.before
    }

    /// How many calls were taken as they were, for this reason.
    pub fn taken(&self, why: WhyTaken) -> usize {
        let unsteady = if why == WhyTaken::NotExplained { self.unsteady.len() } else { 0 };
        self.before.taken().filter(|call| call.end == End::Taken(why)).count() + unsteady
    }

    /// Replays it under another configuration.
    pub fn under(&self, policies: Policies<'_>, told: &[usize], progress: &mut dyn FnMut(usize)) -> Replayed {
        World::new(self.calls, policies, Against::Before(&self.before), told).run(&self.order, progress)
    }

    /// The calls whose answers would be others, in the order of the recording.
    pub fn differences(&self, would: &Replayed) -> Vec<Difference> {
        let calls = self.calls.iter().zip(&would.calls).enumerate();
        let different = calls.filter_map(|(call, (recorded, would))| {
            let kind = Kind::of(&recorded.ending, &would.end).filter(|_| !self.unsteady.contains(&call))?;
            let ending = match &would.end {
                End::Ended(ending) => Some(ending.clone()),
                End::Taken(_) | End::NotKnown(_) => None,
            };
            Some(Difference { call, kind, would: ending, in_doubt: would.in_doubt })
        });
        different.collect()
    }
}

/// How often a recording is replayed again that is not explained.
const AGAIN: usize = 4;

/// The end of a call that has not come to one.
const NOT_YET: End = End::NotKnown(NotKnown::Run { attempt: 0 });

impl Replayed {
    /// The calls that were taken as they were.
    fn taken(&self) -> impl Iterator<Item = &ReplayedCall> {
        self.calls.iter().filter(|call| matches!(call.end, End::Taken(_)))
    }

    /// This replay, with what only an earlier one knows: how far the calls came that were taken from the beginning here.
    fn behind(mut self, earlier: Self) -> Self {
        for (call, earlier) in self.calls.iter_mut().zip(earlier.calls) {
            if matches!(earlier.end, End::Taken(_)) {
                *call = earlier;
            }
        }
        let mut wrong = earlier.wrong;
        wrong.append(&mut self.wrong);
        self.wrong = wrong;
        self
    }

    fn of(calls: usize) -> Self {
        let none = ReplayedCall {
            end: NOT_YET,
            in_doubt: false,
            steps: Vec::new(),
            opened_by: None,
            wakes: Vec::new(),
            cut: Vec::new(),
            blocked: None,
        };
        Self { calls: vec![none; calls], wrong: BTreeMap::new() }
    }
}

/// Everything that happened. Within one engine the order is recorded; between two of them only the clock is known.
fn in_order(calls: &[Recorded]) -> Vec<Happened> {
    let mut all: Vec<(&str, u64, Happened)> = Vec::with_capacity(Rehearsal::length(calls));
    for (call, recorded) in calls.iter().enumerate() {
        let engine = &*recorded.engine;
        if recorded.trail.is_empty() {
            all.push((engine, u64::MAX, Happened { at: recorded.ended, call, moment: None }));
        }
        for (at, moment) in recorded.trail.iter().enumerate() {
            let happened = Happened { at: recorded.moment_at(at), call, moment: Some(at) };
            all.push((engine, moment.order, happened));
        }
    }
    all.sort_by_key(|(engine, order, happened)| (*engine, *order, happened.at));
    // Clocks are read a moment before the machines are: what came later in order did not happen earlier.
    let mut latest: (&str, Timestamp) = ("", Timestamp::ZERO);
    for (engine, order, happened) in &mut all {
        if *order == u64::MAX {
            continue;
        }
        if latest.0 != *engine {
            latest = (engine, Timestamp::ZERO);
        }
        latest.1 = latest.1.max(happened.at);
        happened.at = latest.1;
    }
    all.sort_by_key(|(engine, order, happened)| (happened.at, *engine, *order));
    all.into_iter().map(|(_, _, happened)| happened).collect()
}

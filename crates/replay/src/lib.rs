//! Replay of recorded calls: the reason for each result, and the result under another configuration.
//!
//! Every finished call leaves a recording: its request, all its events in order, and the results of its attempts
//! ([`RecordedCall`]). The state machine of the call had no other input, so the same machine reaches the same result with
//! it. A rehearsal replays a recording twice: *before*, under the current configuration, and then under another one.
//! Only a deviation between the two replays is a difference.
//!
//! # Events outside the recording
//!
//! A recording begins in the middle: a circuit breaker may be open already, a grant may exist. During the recording
//! operators reset and force things, other processes write to the store, and the configuration changes. The recording
//! has none of that. So one rule holds: **if the replay *before* does not reach the recorded result, the recording is
//! right.** Both replays then take the call from the recording. It is not a difference under any configuration, and it
//! is counted and reported. Its effects (its attempts, its result) still count for later calls. A cause of refusal that
//! the replay had and reality did not have (an open breaker, a loop, lost trust) is removed in both replays.
//!
//! Hence an unchanged configuration never has a difference, and a difference is never caused by anything but the
//! change, because both replays had the same input. To that end the replay *before* is repeated until it finds no new
//! unexplained calls: the events of such a call in the replay, up to the deviation, must not affect other calls.
//!
//! # Unknown results
//!
//! A replayed call that runs although it did not run, or once more than it did, has no recorded result. It ends as
//! [not known](ReplayEnd::NotKnown), and its only effect on the machines is doubt: later calls that use the same tool,
//! session or record are marked as in doubt. An attempt that starts at another time than
//! recorded is assumed to have the recorded result after the recorded duration.
//!
//! Texts of tools and parameters are not recorded. Decisions based on them (classification rules, dangerous shapes, the
//! validation of arguments, equality of arguments) are taken from the recording.

mod machines;
mod recording;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use steadfast_core::Timestamp;
use steadfast_core::breaker::TransitionReason;
use steadfast_core::call::{BreakerScope, CallNotice};
use steadfast_core::code::Code;
use steadfast_core::policy::CallPolicy;

use machines::FalseRefusalCause;
use world::{ReplayEvent, ReplayReference, ReplayWorld};

pub use recording::{
    EventTrail, RecordedCall, RecordedEvent, RecordedEventKind, RecordedRequest, RecordedResult,
};

/// Returns the policy of a call.
pub type ReplayPolicies<'p> = &'p mut dyn FnMut(&RecordedCall) -> Arc<CallPolicy>;

/// A recording, replayed under the current configuration.
#[derive(Debug)]
pub struct Rehearsal<'c> {
    calls: &'c [RecordedCall],
    order: Vec<ReplayEvent>,
    before: ReplayResult,
    /// Calls whose result changes again whenever more earlier calls are taken from the recording. They are unexplained
    /// too.
    unsteady: BTreeSet<usize>,
}

/// The results of the calls of a recording in a replay.
#[derive(Debug)]
pub struct ReplayResult {
    /// The calls, in the order of the recording.
    pub calls: Vec<ReplayedCall>,
    /// Causes of refusal in the replay for calls that ran in reality, by the position in the recording at which they
    /// showed.
    false_refusals: BTreeMap<usize, (usize, FalseRefusalCause)>,
}

/// The result of one call in a replay.
#[derive(Clone, Debug)]
pub struct ReplayedCall {
    /// Its end.
    pub end: ReplayEnd,
    /// True if an earlier call has an unknown result and may have changed this one.
    pub in_doubt: bool,
    /// Its notices, if they were requested.
    pub steps: Vec<(Timestamp, CallNotice)>,
    /// The event that opened the circuit breaker that refused it, if there was one and the recording has it.
    pub opened_by: Option<BreakerOpening>,
    /// Wake-up time that its machine requested, after each moment.
    wakes: Vec<Option<Timestamp>>,
    /// The attempts that the machine cut off.
    cut: Vec<u32>,
    /// The code of its refusal.
    blocked: Option<Code>,
}

/// A circuit breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOpening {
    /// The call whose attempt opened it, by its position in the recording.
    pub call: usize,
    /// The scope of the breaker.
    pub scope: BreakerScope,
    /// The reason.
    pub reason: TransitionReason,
    /// Time at which it opened.
    pub at: Timestamp,
}

/// The end of a call in a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The call ended with this result.
    Ended(RecordedResult),
    /// The call was not replayed. The recorded result counts.
    Taken(TakenReason),
    /// The recording has no result for it.
    NotKnown(UnknownResult),
}

/// The reason why a call was taken from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TakenReason {
    /// The current configuration does not lead to the recorded result.
    NotExplained,
    /// An older version recorded it, or it was too long to be recorded in full.
    #[serde(rename = "too_little_is_known")]
    InsufficientRecord,
}

/// The unknown part of a replayed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownResult {
    /// The result of an attempt that was never made, or that was cut off before its end.
    Run {
        /// The attempt.
        attempt: u32,
    },
    /// The answer to an approval request.
    Approval,
}

/// A call whose result would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayDifference {
    /// Its position in the recording.
    pub call: usize,
    /// The kind of difference.
    pub kind: DifferenceKind,
    /// The result that it would have. None if it is unknown.
    pub would: Option<RecordedResult>,
    /// True if an earlier call has an unknown result and may change this one.
    pub in_doubt: bool,
}

/// The kind of difference between two results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The circuit breaker would refuse the call.
    RefusedByBreaker,
    /// The loop guard would refuse the call.
    RefusedByGuard,
    /// Approval would be requested, or the call would be refused because no one can give it.
    #[serde(rename = "approval_asked")]
    ApprovalRequested,
    /// A stored result would be replayed instead of a run.
    Replayed,
    /// It would have more attempts.
    RetriedMore,
    /// It would have fewer attempts.
    RetriedLess,
    /// It would run, and was refused.
    RunAlthoughRefused,
    /// It would run, and a stored result was replayed.
    RunInsteadOfReplay,
    /// It would have more time.
    GivenMoreTime,
    /// It would have another result.
    AnsweredDifferently,
}

impl DifferenceKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::RefusedByBreaker,
        Self::RefusedByGuard,
        Self::ApprovalRequested,
        Self::Replayed,
        Self::RetriedMore,
        Self::RetriedLess,
        Self::RunAlthoughRefused,
        Self::RunInsteadOfReplay,
        Self::GivenMoreTime,
        Self::AnsweredDifferently,
    ];

    fn of(was: &RecordedResult, end: &ReplayEnd) -> Option<Self> {
        let would = match end {
            ReplayEnd::Taken(_) => return None,
            ReplayEnd::NotKnown(UnknownResult::Approval) => return Some(Self::ApprovalRequested),
            ReplayEnd::NotKnown(UnknownResult::Run { attempt }) => {
                return Some(match (was.replayed, was.attempts) {
                    (true, _) => Self::RunInsteadOfReplay,
                    (false, 0) => Self::RunAlthoughRefused,
                    (false, made) if usize::try_from(*attempt).is_ok_and(|attempt| attempt > made) => {
                        Self::RetriedMore
                    }
                    (false, _) => Self::GivenMoreTime,
                });
            }
            ReplayEnd::Ended(would) if would == was => return None,
            ReplayEnd::Ended(would) => would,
        };
        Some(match would.code {
            Some(Code::CircuitOpen) if was.code != Some(Code::CircuitOpen) => Self::RefusedByBreaker,
            Some(Code::LoopDetected | Code::ToolErrorLimit) => Self::RefusedByGuard,
            Some(Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked) => {
                Self::ApprovalRequested
            }
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
    /// Replays a recording under the current configuration. The notices of the calls `traced` are stored. `progress` is
    /// called now and then with the position, from 0 to [`Rehearsal::length`].
    pub fn of(
        calls: &'c [RecordedCall],
        policies: ReplayPolicies<'_>,
        traced: &[usize],
        progress: &mut dyn FnMut(usize),
    ) -> Self {
        let order = in_order(calls);
        let before =
            ReplayWorld::new(calls, policies, ReplayReference::Recording(None), traced).run(&order, progress);
        let mut rehearsal = Self { calls, order, before, unsteady: BTreeSet::new() };
        // An unexplained call deviated for a while, and that affected later calls. The next replay takes it from the
        // recording from the start, until no new ones are found.
        for _ in 0..MOST_REPLAYS {
            let known = rehearsal.before.taken().count();
            if known == 0 {
                return rehearsal;
            }
            let against = ReplayReference::Recording(Some(&rehearsal.before));
            let again = ReplayWorld::new(calls, policies, against, traced).run(&rehearsal.order, &mut |_| {});
            rehearsal.before = again.merged_with(rehearsal.before);
            if rehearsal.before.taken().count() == known {
                return rehearsal;
            }
        }
        // The remaining calls have another result each time.
        let again = rehearsal.replay_under(policies, &[], &mut |_| {});
        rehearsal.unsteady = rehearsal.differences(&again).into_iter().map(|one| one.call).collect();
        rehearsal
    }

    /// Returns the number of moments in a recording.
    pub fn length(calls: &[RecordedCall]) -> usize {
        calls.iter().map(|call| call.trail.len().max(1)).sum()
    }

    /// Returns the replay under the current configuration.
    pub fn before(&self) -> &ReplayResult {
        &self.before
    }

    /// Returns the number of calls that were taken from the recording for this reason.
    pub fn count_taken(&self, reason: TakenReason) -> usize {
        let unsteady = if reason == TakenReason::NotExplained { self.unsteady.len() } else { 0 };
        self.before.taken().filter(|call| call.end == ReplayEnd::Taken(reason)).count() + unsteady
    }

    /// Replays the recording under another configuration.
    pub fn replay_under(
        &self,
        policies: ReplayPolicies<'_>,
        traced: &[usize],
        progress: &mut dyn FnMut(usize),
    ) -> ReplayResult {
        ReplayWorld::new(self.calls, policies, ReplayReference::Before(&self.before), traced)
            .run(&self.order, progress)
    }

    /// Returns the calls whose results would change, in the order of the recording.
    pub fn differences(&self, would: &ReplayResult) -> Vec<ReplayDifference> {
        let calls = self.calls.iter().zip(&would.calls).enumerate();
        let different = calls.filter_map(|(call, (recorded, would))| {
            let kind = DifferenceKind::of(&recorded.ending, &would.end)
                .filter(|_| !self.unsteady.contains(&call))?;
            let ending = match &would.end {
                ReplayEnd::Ended(ending) => Some(ending.clone()),
                ReplayEnd::Taken(_) | ReplayEnd::NotKnown(_) => None,
            };
            Some(ReplayDifference { call, kind, would: ending, in_doubt: would.in_doubt })
        });
        different.collect()
    }
}

/// The maximum number of further replays of a recording with unexplained calls.
const MOST_REPLAYS: usize = 4;

/// The end of a call that has not ended yet.
const UNFINISHED: ReplayEnd = ReplayEnd::NotKnown(UnknownResult::Run { attempt: 0 });

impl ReplayResult {
    /// Returns the calls that were taken from the recording.
    fn taken(&self) -> impl Iterator<Item = &ReplayedCall> {
        self.calls.iter().filter(|call| matches!(call.end, ReplayEnd::Taken(_)))
    }

    /// Completes this replay from an earlier one: the progress of the calls that this one took from the recording.
    fn merged_with(mut self, earlier: Self) -> Self {
        for (call, earlier) in self.calls.iter_mut().zip(earlier.calls) {
            if matches!(earlier.end, ReplayEnd::Taken(_)) {
                *call = earlier;
            }
        }
        let mut wrong = earlier.false_refusals;
        wrong.append(&mut self.false_refusals);
        self.false_refusals = wrong;
        self
    }

    fn of(calls: usize) -> Self {
        let none = ReplayedCall {
            end: UNFINISHED,
            in_doubt: false,
            steps: Vec::new(),
            opened_by: None,
            wakes: Vec::new(),
            cut: Vec::new(),
            blocked: None,
        };
        Self { calls: vec![none; calls], false_refusals: BTreeMap::new() }
    }
}

/// Returns all moments in order. Within one engine the order is recorded. Between two engines only the clock is known.
fn in_order(calls: &[RecordedCall]) -> Vec<ReplayEvent> {
    let mut all: Vec<(&str, u64, ReplayEvent)> = Vec::with_capacity(Rehearsal::length(calls));
    for (call, recorded) in calls.iter().enumerate() {
        let engine = &*recorded.engine;
        if recorded.trail.is_empty() {
            all.push((engine, u64::MAX, ReplayEvent { at: recorded.finished, call, moment: None }));
        }
        for (at, moment) in recorded.trail.iter().enumerate() {
            let happened = ReplayEvent { at: recorded.moment_at(at), call, moment: Some(at) };
            all.push((engine, moment.order, happened));
        }
    }
    all.sort_by_key(|(engine, order, happened)| (*engine, *order, happened.at));
    // Clocks are read a moment before the machines are. An event that is later in order did not happen earlier.
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

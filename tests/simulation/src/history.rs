//! The true history of runs. An answer never claims more than it.
//!
//! The machines believe what they received. This module keeps what happened: the ends of attempts, and the contents of
//! the store.

use std::collections::BTreeMap;

use steadfast_core::call::{AttemptReport, CallResult, RecordStatus, ResultStage};
use steadfast_core::classify::{FaultSource, TransportError};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{ClaimOwner, DedupeState, UnknownOutcomeReason};

use crate::invariants::InvariantViolation;
use crate::system::{ActiveCall, SimulatedWorld};

/// The true history of each run.
#[derive(Debug, Default)]
pub(crate) struct RunHistory {
    /// Ends of its attempts that did not succeed.
    ends: BTreeMap<ClaimOwner, Vec<UnknownOutcomeReason>>,
    /// Its records in the store.
    stored: BTreeMap<ClaimOwner, Vec<DedupeState>>,
}

impl SimulatedWorld {
    /// Records that an attempt has ended or was cut.
    pub(crate) fn note_end(&mut self, node: usize, number: u64, outcome: &AttemptReport) {
        let claimed = self.nodes[node].calls.get(&number).and_then(|running| running.call.claimed_record());
        if let (Some(record), AttemptReport::Failure { fault, .. }) = (claimed, outcome) {
            self.model.history.ends.entry(record.owner.clone()).or_default().push(end(&fault.source));
        }
    }

    /// Remembers the record of this run after the store has confirmed that it has its end.
    pub(crate) fn note_stored(&mut self, owner: &ClaimOwner) {
        if let Some(record) = self.store.records.iter().find(|record| record.owner == *owner) {
            let state = record.state.clone();
            self.model.history.stored.entry(owner.clone()).or_default().push(state);
        }
    }

    /// Checked whenever an answer is handed over.
    pub(crate) fn check_claimed_history(
        &self,
        running: &ActiveCall,
        result: &CallResult,
    ) -> Result<(), InvariantViolation> {
        let claims = |detail: String| Err(("claims what happened", detail));
        if result.attempts != running.attempts {
            return claims(format!(
                "{} attempts are reported, and {} were made",
                result.attempts, running.attempts
            ));
        }
        // The runs that the answer may concern: the one that its receipt names, its own, and the one that it found.
        let named = result.receipt.as_ref().map(|receipt| &receipt.owner);
        let own = running.call.claimed_record().map(|record| &record.owner);
        let found = running.found.as_ref().map(|(_, owner)| owner);
        let runs: Vec<&ClaimOwner> = [named, own, found].into_iter().flatten().collect();
        match &result.outcome {
            Ok(output) if result.stage == ResultStage::Final => {
                let content = output.content.as_str();
                if self.model.effect_of(content).is_none() {
                    return claims(format!("{content} is reported, and never happened"));
                }
            }
            Err(failure) if matches!(failure.code, Code::ResultNotKept | Code::ResultTooLarge) => {
                let is_one = |owner: &ClaimOwner| runs.contains(&owner);
                if !self.model.effects.iter().any(|effect| effect.owner.as_ref().is_some_and(is_one)) {
                    return claims(format!("{runs:?} is reported as run, and had no effect"));
                }
            }
            Ok(_) | Err(_) => {}
        }
        if let Some(unknown) = result.unknown
            && !runs.is_empty()
            && !runs.iter().any(|owner| self.was_observed(owner, unknown.observed))
        {
            return claims(format!("of {runs:?} it is reported that {}", unknown.observed.describe()));
        }
        let is_stored = |owner: &&ClaimOwner| {
            self.model
                .history
                .stored
                .get(owner)
                .is_some_and(|states| states.iter().any(|state| state_matches(state, result)))
        };
        if result.recorded == RecordStatus::Yes && result.unknown.is_none() && !runs.iter().any(is_stored) {
            return claims(format!(
                "{:?} is reported as recorded, and the store never had it",
                result.outcome
            ));
        }
        Ok(())
    }

    /// Returns true if this was observed of the run. Every caller without an answer knows that none has come.
    fn was_observed(&self, owner: &ClaimOwner, observed: UnknownOutcomeReason) -> bool {
        let ended_so = self.model.history.ends.get(owner).is_some_and(|ends| ends.contains(&observed));
        match observed {
            UnknownOutcomeReason::NoAnswer => true,
            UnknownOutcomeReason::ErrorAnswer | UnknownOutcomeReason::ConnectionLost => ended_so,
            UnknownOutcomeReason::ProcessDied => ended_so || self.died.contains(&owner.process),
        }
    }
}

/// Returns the observation that corresponds to this end of an attempt.
fn end(source: &FaultSource) -> UnknownOutcomeReason {
    match source {
        FaultSource::Timeout { .. } | FaultSource::Transport { error: TransportError::TimedOut, .. } => {
            UnknownOutcomeReason::NoAnswer
        }
        FaultSource::Transport { .. } | FaultSource::WebSocket { .. } => UnknownOutcomeReason::ConnectionLost,
        FaultSource::Exit { .. } => UnknownOutcomeReason::ProcessDied,
        FaultSource::Http { .. }
        | FaultSource::JsonRpc { .. }
        | FaultSource::SessionLost
        | FaultSource::IsError
        | FaultSource::Tool
        | FaultSource::Panic
        | FaultSource::BadAnswer
        | FaultSource::TooLarge => UnknownOutcomeReason::ErrorAnswer,
    }
}

/// Returns true if a record in this state agrees with the answer. Of an answer that is too large the record has only
/// that there was one; of a failure it has the tool's own words, without additions for the caller.
fn state_matches(state: &DedupeState, result: &CallResult) -> bool {
    match (state, &result.outcome) {
        (DedupeState::Done(Some(stored)), Ok(output)) => stored == output,
        (DedupeState::Done(None), Ok(_)) => true,
        (DedupeState::Done(None), Err(failure)) => {
            matches!(failure.code, Code::ResultNotKept | Code::ResultTooLarge)
        }
        (DedupeState::Failed(_), Err(_)) => true,
        (DedupeState::Done(Some(_)), Err(_))
        | (DedupeState::Failed(_), Ok(_))
        | (DedupeState::Inflight | DedupeState::Unknown(_) | DedupeState::Cancelled, _) => false,
    }
}

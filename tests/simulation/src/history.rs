//! The true history of runs. An answer never claims more than it.
//!
//! The machines believe what they received. This module keeps what happened: the ends of attempts, and the contents of
//! the store.

use std::collections::BTreeMap;

use steadfast_core::call::{CallResult, Outcome, Recorded, Stage};
use steadfast_core::classify::{Source, Transport};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{Observed, Owner, RecordState};

use crate::invariants::Broken;
use crate::system::{Running, World};

/// The true history of each run.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Ends of its attempts that did not succeed.
    ends: BTreeMap<Owner, Vec<Observed>>,
    /// Its records in the store.
    stored: BTreeMap<Owner, Vec<RecordState>>,
}

impl World {
    /// Records that an attempt has ended or was cut.
    pub(crate) fn note_end(&mut self, node: usize, number: u64, outcome: &Outcome) {
        let claimed = self.nodes[node].calls.get(&number).and_then(|running| running.call.claimed());
        if let (Some(record), Outcome::Failure { fault, .. }) = (claimed, outcome) {
            self.model.history.ends.entry(record.owner.clone()).or_default().push(end(&fault.source));
        }
    }

    /// Remembers the record of this run after the store has confirmed that it has its end.
    pub(crate) fn note_stored(&mut self, owner: &Owner) {
        if let Some(record) = self.store.records.iter().find(|record| record.owner == *owner) {
            let state = record.state.clone();
            self.model.history.stored.entry(owner.clone()).or_default().push(state);
        }
    }

    /// Checked whenever an answer is handed over.
    pub(crate) fn claims_what_happened(&self, running: &Running, result: &CallResult) -> Result<(), Broken> {
        let claims = |what: String| Err(("claims what happened", what));
        if result.attempts != running.attempts {
            return claims(format!(
                "{} attempts are reported, and {} were made",
                result.attempts, running.attempts
            ));
        }
        // The runs that the answer may concern: the one that its receipt names, its own, and the one that it found.
        let named = result.receipt.as_ref().map(|receipt| &receipt.owner);
        let own = running.call.claimed().map(|record| &record.owner);
        let found = running.found.as_ref().map(|(_, owner)| owner);
        let runs: Vec<&Owner> = [named, own, found].into_iter().flatten().collect();
        match &result.ended {
            Ok(output) if result.stage == Stage::Final => {
                let content = output.content.as_str();
                if self.model.effect_of(content).is_none() {
                    return claims(format!("{content} is reported, and never happened"));
                }
            }
            Err(failure) if matches!(failure.code, Code::ResultNotKept | Code::ResultTooLarge) => {
                let is_one = |owner: &Owner| runs.contains(&owner);
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
        let is_stored = |owner: &&Owner| {
            self.model
                .history
                .stored
                .get(owner)
                .is_some_and(|states| states.iter().any(|state| says(state, result)))
        };
        if result.recorded == Recorded::Yes && result.unknown.is_none() && !runs.iter().any(is_stored) {
            return claims(format!("{:?} is reported as recorded, and the store never had it", result.ended));
        }
        Ok(())
    }

    /// Returns true if this was observed of the run. Every caller without an answer knows that none has come.
    fn was_observed(&self, owner: &Owner, observed: Observed) -> bool {
        let ended_so = self.model.history.ends.get(owner).is_some_and(|ends| ends.contains(&observed));
        match observed {
            Observed::NoAnswer => true,
            Observed::ErrorAnswer | Observed::ConnectionLost => ended_so,
            Observed::ProcessDied => ended_so || self.died.contains(&owner.process),
        }
    }
}

/// Returns the observation that corresponds to this end of an attempt.
fn end(source: &Source) -> Observed {
    match source {
        Source::Timeout { .. } | Source::Transport { error: Transport::TimedOut, .. } => Observed::NoAnswer,
        Source::Transport { .. } | Source::WebSocket { .. } => Observed::ConnectionLost,
        Source::Exit { .. } => Observed::ProcessDied,
        Source::Http { .. }
        | Source::JsonRpc { .. }
        | Source::SessionLost
        | Source::IsError
        | Source::Tool
        | Source::Panic
        | Source::BadAnswer
        | Source::TooLarge => Observed::ErrorAnswer,
    }
}

/// Returns true if a record in this state agrees with the answer. Of an answer that is too large the record has only
/// that there was one; of a failure it has the tool's own words, without additions for the caller.
fn says(state: &RecordState, result: &CallResult) -> bool {
    match (state, &result.ended) {
        (RecordState::Done(Some(kept)), Ok(output)) => kept == output,
        (RecordState::Done(None), Ok(_)) => true,
        (RecordState::Done(None), Err(failure)) => {
            matches!(failure.code, Code::ResultNotKept | Code::ResultTooLarge)
        }
        (RecordState::Failed(_), Err(_)) => true,
        (RecordState::Done(Some(_)), Err(_))
        | (RecordState::Failed(_), Ok(_))
        | (RecordState::Inflight | RecordState::Unknown(_) | RecordState::Cancelled, _) => false,
    }
}

//! What really became of runs. An answer never claims more than that.
//!
//! The machines believe what they were told; this is what happened: how attempts ended, and what the store has had.

use std::collections::BTreeMap;

use steadfast_core::call::{CallResult, Outcome, Recorded, Stage};
use steadfast_core::classify::{Source, Transport};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{Observed, Owner, RecordState};

use crate::invariants::Broken;
use crate::system::{Running, World};

/// What became of each run.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// How its attempts ended that did not succeed.
    ends: BTreeMap<Owner, Vec<Observed>>,
    /// What the store has had of it.
    stored: BTreeMap<Owner, Vec<RecordState>>,
}

impl World {
    /// An attempt has ended, or was cut.
    pub(crate) fn note_end(&mut self, node: usize, number: u64, outcome: &Outcome) {
        let claimed = self.nodes[node].calls.get(&number).and_then(|running| running.call.claimed());
        if let (Some(record), Outcome::Failure { fault, .. }) = (claimed, outcome) {
            self.model.history.ends.entry(record.owner.clone()).or_default().push(end(&fault.source));
        }
    }

    /// The store says that it has the end of this run: what is there is remembered.
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
                "{} attempts are told of, and {} were made",
                result.attempts, running.attempts
            ));
        }
        // The runs that it may be about: the one that its receipt names, its own, and the one that it found.
        let named = result.receipt.as_ref().map(|receipt| &receipt.owner);
        let own = running.call.claimed().map(|record| &record.owner);
        let found = running.found.as_ref().map(|(_, owner)| owner);
        let runs: Vec<&Owner> = [named, own, found].into_iter().flatten().collect();
        match &result.ended {
            Ok(output) if result.stage == Stage::Final => {
                let content = output.content.as_str();
                if self.model.effect_of(content).is_none() {
                    return claims(format!("{content} is told, and never happened"));
                }
            }
            Err(failure) if matches!(failure.code, Code::ResultNotKept | Code::ResultTooLarge) => {
                let is_one = |owner: &Owner| runs.contains(&owner);
                if !self.model.effects.iter().any(|effect| effect.owner.as_ref().is_some_and(is_one)) {
                    return claims(format!("{runs:?} is told to have run, and had no effect"));
                }
            }
            Ok(_) | Err(_) => {}
        }
        if let Some(unknown) = result.unknown
            && !runs.is_empty()
            && !runs.iter().any(|owner| self.was_observed(owner, unknown.observed))
        {
            return claims(format!("of {runs:?} it is told that {}", unknown.observed.describe()));
        }
        let is_stored = |owner: &&Owner| {
            self.model
                .history
                .stored
                .get(owner)
                .is_some_and(|states| states.iter().any(|state| says(state, result)))
        };
        if result.recorded == Recorded::Yes && result.unknown.is_none() && !runs.iter().any(is_stored) {
            return claims(format!("{:?} is told as recorded, and the store never had it", result.ended));
        }
        Ok(())
    }

    /// Whether this was seen of the run. That no answer has come is known to everybody who has none.
    fn was_observed(&self, owner: &Owner, observed: Observed) -> bool {
        let ended_so = self.model.history.ends.get(owner).is_some_and(|ends| ends.contains(&observed));
        match observed {
            Observed::NoAnswer => true,
            Observed::ErrorAnswer | Observed::ConnectionLost => ended_so,
            Observed::ProcessDied => ended_so || self.died.contains(&owner.process),
        }
    }
}

/// What is seen of an attempt that ends like this.
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

/// Whether a record in this state says what the answer says. Of an answer that is too large it has only that there was one, and
/// of a failure what the tool said, whatever its caller is told besides.
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

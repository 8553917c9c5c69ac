//! The holder of a named turn and the choices made in it: one document in the store.
//!
//! The calls of a turn have their own records, so their results are not part of this document. A turn writes a choice
//! ([`CandidateChoice`]) before it sends the call that follows from it.
//!
//! Two submissions of one turn do not run at once. They could choose differently, and each would do the job in its own
//! way. So a submission holds its turn until its deadline. No attempt of its calls starts after that
//! ([`CallerLimits::start_by`](steadfast_core::retry::CallerLimits::start_by)). Another submission takes the turn earlier only
//! if the holder released it or the process of the holder is known to be gone. A shorter lease with renewals would not
//! work: a holder that was suspended, or cut off from the store, would continue next to its successor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity};
use steadfast_core::id::ToolCallId;

use super::choice::{CandidateChoice, SubmissionHistory};

/// The stored document of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnDocument {
    /// Format version of the document.
    pub format: u32,
    /// The submission that runs the turn. None between submissions.
    pub holder: Option<TurnHolder>,
    /// Choices that differ from the plan, by call.
    #[serde(default)]
    pub choices: BTreeMap<ToolCallId, CandidateChoice>,
}

/// A running submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnHolder {
    /// The process that runs it.
    pub process: ProcessIdentity,
    /// The number of the submission within the process.
    pub number: u64,
    /// Time at which it ends at the latest. It starts nothing from then on.
    pub until: Timestamp,
}

/// The right to run a turn. It is valid as soon and as long as the document of the turn names this submission.
#[derive(Clone, Debug)]
pub struct TurnLease {
    me: TurnHolder,
    document: TurnDocument,
    /// The version that the next write replaces. None if there is no document.
    replaces: Option<u64>,
}

/// The result of an attempt to take a turn.
#[derive(Clone, Debug)]
pub enum TurnAcquisition {
    /// The turn is taken once [`TurnLease::document`] is written.
    Acquired(TurnLease, SubmissionHistory),
    /// Another submission runs the turn, until this time at the latest.
    Busy(Timestamp),
}

/// The meaning of a version conflict: a write found another version than the one it was to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnWriteConflict {
    /// The turn is still held by this submission. Write again.
    Retry,
    /// Another submission holds the turn.
    Lost,
}

impl TurnLease {
    /// Decides if a submission may run a turn. `found` is the stored document with its version. `sight` returns the
    /// known state of the holder's process.
    pub fn take(
        found: Option<(u64, TurnDocument)>,
        me: TurnHolder,
        sight: impl FnOnce(&ProcessIdentity) -> LeaseOwnerState,
        now: Timestamp,
    ) -> TurnAcquisition {
        let current_holder = found.as_ref().and_then(|(_, document)| document.holder.as_ref());
        if let Some(holder) = current_holder.filter(|holder| now < holder.until) {
            match sight(&holder.process) {
                LeaseOwnerState::Alive | LeaseOwnerState::Time => return TurnAcquisition::Busy(holder.until),
                LeaseOwnerState::Gone => {}
            }
        }
        let submitted = match &found {
            None => SubmissionHistory::First,
            Some((_, document)) => SubmissionHistory::Repeated(document.choices.clone()),
        };
        let (replaces, choices) = found.map(|(version, document)| (version, document.choices)).unzip();
        let document = TurnDocument {
            format: TurnDocument::FORMAT,
            holder: Some(me.clone()),
            choices: choices.unwrap_or_default(),
        };
        TurnAcquisition::Acquired(Self { me, document, replaces }, submitted)
    }

    /// Returns the current document, or the document to write in order to hold the turn.
    pub fn document(&self) -> &TurnDocument {
        &self.document
    }

    /// Returns the submission that holds the turn.
    pub fn holder(&self) -> &TurnHolder {
        &self.me
    }

    /// Returns the version that the next write replaces. None if the document must not exist yet.
    pub fn replaced_version(&self) -> Option<u64> {
        self.replaces
    }

    /// Returns the document to write before this call is sent, or None if the stored document has the choice already. A
    /// return to the planned choice is written too if the stored document has another one.
    pub fn document_with_choice(&self, call: &ToolCallId, choice: &CandidateChoice) -> Option<TurnDocument> {
        if self.document.choices.get(call).unwrap_or(&CandidateChoice::default()) == choice {
            return None;
        }
        let mut document = self.document.clone();
        document.choices.insert(call.clone(), choice.clone());
        Some(document)
    }

    /// Returns the document that releases the turn for the next submission.
    pub fn released_document(&self) -> TurnDocument {
        TurnDocument { holder: None, ..self.document.clone() }
    }

    /// Records that the document was written as this version.
    pub fn record_write(&mut self, document: TurnDocument, version: u64) {
        (self.document, self.replaces) = (document, Some(version));
    }

    /// Handles a version conflict. `there` is the document found. It can be this submission's own document with a later
    /// version, after a write whose response was lost. If there is no document, the store has lost it, and no other
    /// submission has taken the turn since.
    pub fn resolve_conflict(&mut self, there: Option<(u64, &TurnDocument)>) -> TurnWriteConflict {
        let (version, holder) = there.map(|(version, document)| (version, document.holder.as_ref())).unzip();
        let is_own =
            |holder: &TurnHolder| (&holder.process, holder.number) == (&self.me.process, self.me.number);
        match holder {
            Some(holder) if !holder.is_some_and(is_own) => TurnWriteConflict::Lost,
            Some(_) | None => {
                self.replaces = version;
                TurnWriteConflict::Retry
            }
        }
    }
}

impl TurnDocument {
    /// The format version that is written.
    pub const FORMAT: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Timestamp = Timestamp::from_millis(100_000);
    const BEFORE: Timestamp = Timestamp::from_millis(99_999);

    fn holder(number: u64) -> TurnHolder {
        TurnHolder {
            process: ProcessIdentity { boot: "boot".into(), pid: 1, started: 1 },
            number,
            until: LATER,
        }
    }

    fn taken(found: Option<(u64, TurnDocument)>, number: u64) -> (TurnLease, SubmissionHistory) {
        match TurnLease::take(found, holder(number), |_| LeaseOwnerState::Time, LATER) {
            TurnAcquisition::Acquired(hold, submitted) => (hold, submitted),
            TurnAcquisition::Busy(until) => panic!("busy until {until:?}"),
        }
    }

    fn choice(candidate: usize) -> CandidateChoice {
        CandidateChoice { candidate, ..CandidateChoice::default() }
    }

    fn call() -> ToolCallId {
        ToolCallId::new("a").unwrap()
    }

    #[test]
    fn a_turn_is_held_until_its_deadline_unless_its_process_ended_or_it_was_released() {
        let (hold, submitted) = taken(None, 1);
        assert_eq!((submitted, hold.replaced_version()), (SubmissionHistory::First, None));
        let document = hold.document().clone();
        for (sight, now, free) in [
            (LeaseOwnerState::Alive, BEFORE, false),
            (LeaseOwnerState::Time, BEFORE, false),
            (LeaseOwnerState::Gone, BEFORE, true),
            (LeaseOwnerState::Alive, LATER, true),
            (LeaseOwnerState::Time, LATER, true),
        ] {
            let take = TurnLease::take(Some((7, document.clone())), holder(2), |_| sight, now);
            assert_eq!(matches!(take, TurnAcquisition::Acquired(..)), free, "{sight:?} at {now:?}");
        }
        let free = TurnLease::take(
            Some((7, hold.released_document())),
            holder(2),
            |_| LeaseOwnerState::Alive,
            BEFORE,
        );
        assert!(
            matches!(free, TurnAcquisition::Acquired(hold, SubmissionHistory::Repeated(_)) if hold.replaced_version() == Some(7))
        );
    }

    #[test]
    fn a_choice_is_written_if_it_differs_from_the_document_also_back_to_the_plan() {
        let (mut hold, _) = taken(None, 1);
        assert_eq!(hold.document_with_choice(&call(), &choice(0)), None, "nothing was chosen");
        let document = hold.document_with_choice(&call(), &choice(1)).unwrap();
        assert_eq!(
            hold.document_with_choice(&call(), &choice(1)).as_ref(),
            Some(&document),
            "not before it is written"
        );
        hold.record_write(document, 3);
        assert_eq!(hold.document_with_choice(&call(), &choice(1)), None);
        let back = hold.document_with_choice(&call(), &choice(0)).unwrap();
        assert_eq!(back.choices[&call()], choice(0));
        let (_, submitted) = taken(Some((3, hold.released_document())), 2);
        assert_eq!(submitted, SubmissionHistory::Repeated(BTreeMap::from([(call(), choice(1))])));
    }

    #[test]
    fn a_write_conflict_is_resolved_by_the_document_found() {
        let (mut hold, _) = taken(None, 1);
        hold.record_write(hold.document().clone(), 3);
        let (other, _) = taken(None, 2);
        assert_eq!(hold.resolve_conflict(Some((9, other.document()))), TurnWriteConflict::Lost);
        assert_eq!(hold.resolve_conflict(Some((9, &other.released_document()))), TurnWriteConflict::Lost);
        assert_eq!(hold.replaced_version(), Some(3));
        let own = hold.document().clone();
        assert_eq!(
            (hold.resolve_conflict(Some((4, &own))), hold.replaced_version()),
            (TurnWriteConflict::Retry, Some(4))
        );
        assert_eq!(
            (hold.resolve_conflict(None), hold.replaced_version()),
            (TurnWriteConflict::Retry, None),
            "the store has lost it"
        );
    }
}

//! The holder of a named turn and the choices made in it: one document in the store.
//!
//! The calls of a turn have their own records, so their results are not part of this document. A turn writes a choice
//! ([`Choice`]) before it sends the call that follows from it.
//!
//! Two submissions of one turn do not run at once. They could choose differently, and each would do the job in its own
//! way. So a submission holds its turn until its deadline. No attempt of its calls starts after that
//! ([`CallerLimits::start_by`](crate::retry::CallerLimits::start_by)). Another submission takes the turn earlier only
//! if the holder released it or the process of the holder is known to be gone. A shorter lease with renewals would not
//! work: a holder that was suspended, or cut off from the store, would continue next to its successor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::dedupe::{LeaseSight, Process};
use crate::id::ToolCallId;

use super::choice::{Choice, Submitted};

/// The stored document of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Format version of the document.
    pub format: u32,
    /// The submission that runs the turn. None between submissions.
    pub holder: Option<Holder>,
    /// Choices that differ from the plan, by call.
    #[serde(default)]
    pub choices: BTreeMap<ToolCallId, Choice>,
}

/// A running submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process that runs it.
    pub process: Process,
    /// The number of the submission within the process.
    pub number: u64,
    /// Time at which it ends at the latest. It starts nothing from then on.
    pub until: Timestamp,
}

/// The right to run a turn. It is valid as soon and as long as the document of the turn names this submission.
#[derive(Clone, Debug)]
pub struct Hold {
    me: Holder,
    kept: Kept,
    /// The version that the next write replaces. None if there is no document.
    replaces: Option<u64>,
}

/// The result of an attempt to take a turn.
#[derive(Clone, Debug)]
pub enum Take {
    /// The turn is taken once [`Hold::kept`] is written.
    Ours(Hold, Submitted),
    /// Another submission runs the turn, until this time at the latest.
    Busy(Timestamp),
}

/// The meaning of a version conflict: a write found another version than the one it was to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The turn is still held by this submission. Write again.
    Again,
    /// Another submission holds the turn.
    Lost,
}

impl Hold {
    /// Decides if a submission may run a turn. `found` is the stored document with its version. `sight` returns the
    /// known state of the holder's process.
    pub fn take(
        found: Option<(u64, Kept)>,
        me: Holder,
        sight: impl FnOnce(&Process) -> LeaseSight,
        now: Timestamp,
    ) -> Take {
        let held = found.as_ref().and_then(|(_, kept)| kept.holder.as_ref());
        if let Some(holder) = held.filter(|holder| now < holder.until) {
            match sight(&holder.process) {
                LeaseSight::Alive | LeaseSight::Time => return Take::Busy(holder.until),
                LeaseSight::Gone => {}
            }
        }
        let submitted = match &found {
            None => Submitted::First,
            Some((_, kept)) => Submitted::Again(kept.choices.clone()),
        };
        let (replaces, choices) = found.map(|(version, kept)| (version, kept.choices)).unzip();
        let kept =
            Kept { format: Kept::FORMAT, holder: Some(me.clone()), choices: choices.unwrap_or_default() };
        Take::Ours(Self { me, kept, replaces }, submitted)
    }

    /// Returns the current document, or the document to write in order to hold the turn.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Returns the submission that holds the turn.
    pub fn holder(&self) -> &Holder {
        &self.me
    }

    /// Returns the version that the next write replaces. None if the document must not exist yet.
    pub fn replaces(&self) -> Option<u64> {
        self.replaces
    }

    /// Returns the document to write before this call is sent, or None if the stored document has the choice already. A
    /// return to the planned choice is written too if the stored document has another one.
    pub fn choosing(&self, call: &ToolCallId, choice: &Choice) -> Option<Kept> {
        if self.kept.choices.get(call).unwrap_or(&Choice::default()) == choice {
            return None;
        }
        let mut kept = self.kept.clone();
        kept.choices.insert(call.clone(), choice.clone());
        Some(kept)
    }

    /// Returns the document that releases the turn for the next submission.
    pub fn giving_back(&self) -> Kept {
        Kept { holder: None, ..self.kept.clone() }
    }

    /// Records that the document was written as this version.
    pub fn wrote(&mut self, kept: Kept, version: u64) {
        (self.kept, self.replaces) = (kept, Some(version));
    }

    /// Handles a version conflict. `there` is the document found. It can be this submission's own document with a later
    /// version, after a write whose response was lost. If there is no document, the store has lost it, and no other
    /// submission has taken the turn since.
    pub fn stale(&mut self, there: Option<(u64, &Kept)>) -> Stale {
        let (version, holder) = there.map(|(version, kept)| (version, kept.holder.as_ref())).unzip();
        let is_ours =
            |holder: &Holder| (&holder.process, holder.number) == (&self.me.process, self.me.number);
        match holder {
            Some(holder) if !holder.is_some_and(is_ours) => Stale::Lost,
            Some(_) | None => {
                self.replaces = version;
                Stale::Again
            }
        }
    }
}

impl Kept {
    /// The format version that is written.
    pub const FORMAT: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Timestamp = Timestamp::from_millis(100_000);
    const BEFORE: Timestamp = Timestamp::from_millis(99_999);

    fn holder(number: u64) -> Holder {
        Holder { process: Process { boot: "boot".into(), pid: 1, started: 1 }, number, until: LATER }
    }

    fn taken(found: Option<(u64, Kept)>, number: u64) -> (Hold, Submitted) {
        match Hold::take(found, holder(number), |_| LeaseSight::Time, LATER) {
            Take::Ours(hold, submitted) => (hold, submitted),
            Take::Busy(until) => panic!("busy until {until:?}"),
        }
    }

    fn choice(candidate: usize) -> Choice {
        Choice { candidate, ..Choice::default() }
    }

    fn call() -> ToolCallId {
        ToolCallId::new("a").unwrap()
    }

    #[test]
    fn a_turn_is_held_until_its_deadline_unless_its_process_is_gone_or_it_was_released() {
        let (hold, submitted) = taken(None, 1);
        assert_eq!((submitted, hold.replaces()), (Submitted::First, None));
        let kept = hold.kept().clone();
        for (sight, now, free) in [
            (LeaseSight::Alive, BEFORE, false),
            (LeaseSight::Time, BEFORE, false),
            (LeaseSight::Gone, BEFORE, true),
            (LeaseSight::Alive, LATER, true),
            (LeaseSight::Time, LATER, true),
        ] {
            let take = Hold::take(Some((7, kept.clone())), holder(2), |_| sight, now);
            assert_eq!(matches!(take, Take::Ours(..)), free, "{sight:?} at {now:?}");
        }
        let free = Hold::take(Some((7, hold.giving_back())), holder(2), |_| LeaseSight::Alive, BEFORE);
        assert!(matches!(free, Take::Ours(hold, Submitted::Again(_)) if hold.replaces() == Some(7)));
    }

    #[test]
    fn a_choice_is_written_if_it_differs_from_the_document_also_back_to_the_plan() {
        let (mut hold, _) = taken(None, 1);
        assert_eq!(hold.choosing(&call(), &choice(0)), None, "nothing was chosen");
        let kept = hold.choosing(&call(), &choice(1)).unwrap();
        assert_eq!(hold.choosing(&call(), &choice(1)).as_ref(), Some(&kept), "not before it is written");
        hold.wrote(kept, 3);
        assert_eq!(hold.choosing(&call(), &choice(1)), None);
        let back = hold.choosing(&call(), &choice(0)).unwrap();
        assert_eq!(back.choices[&call()], choice(0));
        let (_, submitted) = taken(Some((3, hold.giving_back())), 2);
        assert_eq!(submitted, Submitted::Again(BTreeMap::from([(call(), choice(1))])));
    }

    #[test]
    fn a_write_conflict_is_resolved_by_the_document_found() {
        let (mut hold, _) = taken(None, 1);
        hold.wrote(hold.kept().clone(), 3);
        let (other, _) = taken(None, 2);
        assert_eq!(hold.stale(Some((9, other.kept()))), Stale::Lost);
        assert_eq!(hold.stale(Some((9, &other.giving_back()))), Stale::Lost);
        assert_eq!(hold.replaces(), Some(3));
        let ours = hold.kept().clone();
        assert_eq!((hold.stale(Some((4, &ours))), hold.replaces()), (Stale::Again, Some(4)));
        assert_eq!((hold.stale(None), hold.replaces()), (Stale::Again, None), "the store has lost it");
    }
}

//! Who runs a turn that has a name, and what was chosen in it: one document in the store.
//!
//! The calls of a turn are known by their own records, so nothing of what they did is here. What a turn chose ([`Choice`])
//! is written before the call is sent that it leads to.
//!
//! Two submissions of one turn do not run at once: they could choose differently, and each would do the job in its own way.
//! So a submission holds its turn until its deadline, from which on no attempt of its calls starts
//! ([`CallerLimits::start_by`](crate::retry::CallerLimits::start_by)), and nobody takes it earlier, unless the holder gave it
//! back or its process is known to be gone. A shorter lease that is renewed would not do: a holder that slept, or that the
//! store did not hear of, would go on beside its successor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::dedupe::{LeaseSight, Process};
use crate::id::ToolCallId;

use super::choice::{Choice, Submitted};

/// The document of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// How it is written.
    pub format: u32,
    /// Who runs it; nobody between submissions.
    pub holder: Option<Holder>,
    /// What was chosen, where it was not as planned.
    #[serde(default)]
    pub choices: BTreeMap<ToolCallId, Choice>,
}

/// A submission that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// In this process.
    pub process: Process,
    /// The submission within the process.
    pub number: u64,
    /// When it is over at the latest: nothing of it starts from then on.
    pub until: Timestamp,
}

/// A turn that is ours to run, as soon and as long as its document says so.
#[derive(Clone, Debug)]
pub struct Hold {
    me: Holder,
    kept: Kept,
    /// The version that the next write replaces; none if there is no document.
    replaces: Option<u64>,
}

/// What came of the wish to run a turn.
#[derive(Clone, Debug)]
pub enum Take {
    /// It is ours once [`Hold::kept`] is written.
    Ours(Hold, Submitted),
    /// Somebody runs it, until then at the latest.
    Busy(Timestamp),
}

/// What a write means that found another version than it was to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The turn is still ours: write again.
    Again,
    /// Somebody else has it.
    Lost,
}

impl Hold {
    /// Decides who runs a turn. `found` is its document and the version of that, `sight` what is known of its holder.
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

    /// What the document says, or has to say for the turn to be ours.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Who holds it.
    pub fn holder(&self) -> &Holder {
        &self.me
    }

    /// The version that the next write replaces; none if there must be no document.
    pub fn replaces(&self) -> Option<u64> {
        self.replaces
    }

    /// What the document has to say before this call is sent; nothing if it says so already. A call that goes back to what
    /// was planned is no exception where the document says something else.
    pub fn choosing(&self, call: &ToolCallId, choice: &Choice) -> Option<Kept> {
        if self.kept.choices.get(call).unwrap_or(&Choice::default()) == choice {
            return None;
        }
        let mut kept = self.kept.clone();
        kept.choices.insert(call.clone(), choice.clone());
        Some(kept)
    }

    /// What the document says when the turn is left to whoever submits it next.
    pub fn giving_back(&self) -> Kept {
        Kept { holder: None, ..self.kept.clone() }
    }

    /// It was written, as this version.
    pub fn wrote(&mut self, kept: Kept, version: u64) {
        (self.kept, self.replaces) = (kept, Some(version));
    }

    /// A write found this instead of what it was to replace. What is ours has a later version after a write whose answer was
    /// lost; where nothing is, the store has lost it, and nobody has taken the turn since.
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
    /// The format that is written.
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
    fn a_turn_is_held_until_its_deadline_unless_its_process_is_gone_or_it_was_given_back() {
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
    fn a_choice_is_written_where_the_document_says_something_else_also_back_to_what_was_planned() {
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
    fn what_is_found_instead_is_ours_lost_or_forgotten() {
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

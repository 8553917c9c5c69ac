//! Noticing that a store has lost committed records, and what is refused until an operator accepts that.
//!
//! A store counts its commits. Beside it lies a note of the last one. A store that has fewer commits than were noted, or
//! another marker, has lost some: calls that ran are no longer known, and would run again under the same key. Until the
//! loss is accepted, or everything that was lost would have expired, such calls are refused.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::{Address, Claim};
use super::marker::Marker;
use crate::Timestamp;

/// A committed write of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The marker of the store.
    pub marker: Marker,
    /// Its number; each is one more than the one before.
    pub number: u64,
    /// When it was made; the epoch if that is not known.
    pub at: Timestamp,
}

/// The commits that a store was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitsFound {
    /// There is no store, or an empty one.
    Nothing,
    /// It could not be used, and a new one takes its place.
    Unusable,
    /// The last one that is there.
    UpTo(Commit),
}

/// The note of the last commit, as it was found beside a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteFound {
    /// There is none, or an empty one.
    Missing,
    /// There is one, and it cannot be read.
    Damaged,
    /// It can be read.
    Sound(CommitNote),
}

/// The note that lies beside a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitNote {
    /// The last commit that was noted.
    pub last: Commit,
    /// Later commits may have been made without being noted, and the log that held them is gone.
    pub log_is_gone: bool,
    /// An older file lies under the log of a newer one, so commits may be in neither, although later ones are.
    pub file_is_older: bool,
}

/// A loss of committed records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecordLoss {
    /// How it was noticed.
    pub cause: LossCause,
    /// When it was noticed.
    #[serde(rename = "noticedMs")]
    pub noticed: Timestamp,
    /// How many commits are lost at least, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<u64>,
    /// When the last commit was made that is left.
    #[serde(default, rename = "afterMs", skip_serializing_if = "Option::is_none")]
    pub after: Option<Timestamp>,
    /// When the last commit was made that is known to be lost.
    #[serde(default, rename = "untilMs", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Where the files went that could not be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<String>,
}

/// How a loss of committed records was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// The state file was missing or empty.
    Missing,
    /// The state file was damaged, or no state file.
    Unusable,
    /// Another state file was in its place.
    Replaced,
    /// Commits that were noted were not in the state file.
    Behind,
    /// The log of the state file was missing after the machine had stopped.
    LogMissing,
    /// The note of the last commit was missing or damaged, so that lost commits would not show.
    NoteUnusable,
}

/// The most places that are remembered.
const MOST_PLACES: usize = 8;

/// Compares the commits of a store that is opened with what is known of them: by the note beside it, and by this process if
/// it had the store open before.
pub fn detect_loss(
    found: CommitsFound,
    note: NoteFound,
    known: Option<Commit>,
    now: Timestamp,
) -> Option<RecordLoss> {
    let noted = match note {
        NoteFound::Sound(noted) => Some(noted),
        NoteFound::Missing | NoteFound::Damaged => None,
    };
    // A note with another marker was made by a process that has already dealt with the loss of what this one knew.
    let known = known.filter(|known| noted.is_none_or(|noted| noted.last.marker == known.marker));
    let by_number = [noted.map(|noted| noted.last), known]
        .into_iter()
        .flatten()
        .filter_map(|last| missing(found, last, now))
        .max_by_key(|loss| loss.commits);
    by_number.or_else(|| {
        let loss = |cause, after| RecordLoss {
            cause,
            noticed: now,
            commits: None,
            after,
            until: None,
            set_aside: Vec::new(),
        };
        match found {
            CommitsFound::Unusable => Some(loss(LossCause::Unusable, None)),
            CommitsFound::UpTo(_) if noted.is_some_and(|noted| noted.file_is_older) => {
                Some(loss(LossCause::Behind, None))
            }
            CommitsFound::UpTo(found) if noted.is_some_and(|noted| noted.log_is_gone) => {
                Some(loss(LossCause::LogMissing, known_time(found.at)))
            }
            // The note is made before the first commit is counted, which gives the store a time.
            CommitsFound::UpTo(found) if note == NoteFound::Missing && known_time(found.at).is_some() => {
                Some(loss(LossCause::NoteUnusable, None))
            }
            CommitsFound::UpTo(_) if note == NoteFound::Damaged => Some(loss(LossCause::NoteUnusable, None)),
            CommitsFound::Nothing if note == NoteFound::Damaged => Some(loss(LossCause::Missing, None)),
            CommitsFound::Nothing | CommitsFound::UpTo(_) => None,
        }
    })
}

/// The loss that shows by a commit that was made once.
fn missing(found: CommitsFound, last: Commit, now: Timestamp) -> Option<RecordLoss> {
    let (cause, commits, after) = match found {
        CommitsFound::Nothing => (LossCause::Missing, last.number, None),
        CommitsFound::Unusable => (LossCause::Unusable, last.number, None),
        CommitsFound::UpTo(found) if found.marker != last.marker => (LossCause::Replaced, last.number, None),
        CommitsFound::UpTo(found) => {
            (LossCause::Behind, last.number.saturating_sub(found.number), known_time(found.at))
        }
    };
    (commits > 0).then(|| RecordLoss {
        cause,
        noticed: now,
        commits: Some(commits),
        after,
        until: known_time(last.at),
        set_aside: Vec::new(),
    })
}

fn known_time(at: Timestamp) -> Option<Timestamp> {
    Some(at).filter(|at| *at > Timestamp::ZERO)
}

impl RecordLoss {
    /// Returns whether a call may not run because its earlier run may be among what was lost. What does no harm twice goes
    /// on, and so does what expired meanwhile.
    pub fn refuses(&self, claim: &Claim, now: Timestamp) -> bool {
        let keep = &claim.rules.keep;
        let longest: Duration = keep.done.max(keep.failed).max(keep.open);
        matches!(claim.address, Address::Explicit(_)) && !claim.retry_safe && now < self.noticed + longest
    }

    /// Returns one loss that stands for this and an earlier one that nobody has accepted.
    #[must_use]
    pub fn after(self, earlier: Option<Self>) -> Self {
        let Some(earlier) = earlier else { return self };
        let mut set_aside = earlier.set_aside;
        set_aside.extend(self.set_aside);
        set_aside.drain(..set_aside.len().saturating_sub(MOST_PLACES));
        Self {
            cause: self.cause,
            noticed: self.noticed.max(earlier.noticed),
            commits: match (self.commits, earlier.commits) {
                (Some(one), Some(other)) => Some(one.saturating_add(other)),
                (one, other) => one.or(other),
            },
            after: Option::zip(self.after, earlier.after).map(|(one, other)| one.min(other)),
            until: self.until.max(earlier.until),
            set_aside,
        }
    }

    /// Returns the text that stores keep.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`to_text`](Self::to_text) wrote.
    pub fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl fmt::Display for RecordLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.commits {
            Some(1) => write!(f, "committed records are lost: {}; at least 1 commit", self.cause)?,
            Some(count) => {
                write!(f, "committed records are lost: {}; at least {count} commits", self.cause)?;
            }
            None => write!(f, "committed records may be lost: {}; how many is unknown", self.cause)?,
        }
        if let Some(after) = self.after {
            write!(f, ", made after {after}")?;
        }
        if let Some(until) = self.until {
            write!(f, ", the last at {until}")?;
        }
        write!(f, "; noticed at {}", self.noticed)?;
        if !self.set_aside.is_empty() {
            write!(f, "; what could not be used is in {}", self.set_aside.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the state file was missing or empty",
            Self::Unusable => "the state file was damaged, or no state file",
            Self::Replaced => "another state file was in the place of the old one",
            Self::Behind => "the state file lacked commits that had been made",
            Self::LogMissing => "the log of the state file was missing after the machine had stopped",
            Self::NoteUnusable => {
                "the file that counts commits beside the state file (-commits) was missing or damaged, so a loss would not show"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(9_000);

    fn commit(marker: u64, number: u64) -> Commit {
        Commit { marker: Marker(marker), number, at: Timestamp::from_millis(number * 10) }
    }

    #[test]
    fn a_loss_shows_by_marker_by_number_by_a_log_that_is_gone_and_by_the_note_itself() {
        use CommitsFound::{Nothing, Unusable, UpTo};
        use NoteFound::{Damaged, Missing, Sound};
        let note = CommitNote { last: commit(1, 5), log_is_gone: false, file_is_older: false };
        let noted = |marker, number| Sound(CommitNote { last: commit(marker, number), ..note });
        let log_is_gone = Sound(CommitNote { log_is_gone: true, ..note });
        let file_is_older = Sound(CommitNote { file_is_older: true, ..note });
        // A store in which nothing was ever committed has no time.
        let fresh = Commit { number: 1, at: Timestamp::ZERO, ..commit(1, 1) };
        for (found, note, known, expected) in [
            (UpTo(fresh), Missing, None, None),
            (UpTo(commit(1, 5)), Missing, None, Some((LossCause::NoteUnusable, None))),
            (UpTo(fresh), Damaged, None, Some((LossCause::NoteUnusable, None))),
            (UpTo(commit(1, 5)), Damaged, None, Some((LossCause::NoteUnusable, None))),
            (Nothing, Missing, None, None),
            (Nothing, Damaged, None, Some((LossCause::Missing, None))),
            (Nothing, noted(1, 0), None, None),
            (Nothing, noted(1, 5), None, Some((LossCause::Missing, Some(5)))),
            (UpTo(commit(1, 5)), noted(1, 5), Some(commit(1, 5)), None),
            // A note may be behind.
            (UpTo(commit(1, 7)), noted(1, 5), None, None),
            (UpTo(commit(1, 3)), noted(1, 5), None, Some((LossCause::Behind, Some(2)))),
            (UpTo(commit(2, 9)), noted(1, 5), None, Some((LossCause::Replaced, Some(5)))),
            // Nothing was committed under the marker that is noted.
            (UpTo(commit(2, 9)), noted(1, 0), None, None),
            (Unusable, Missing, None, Some((LossCause::Unusable, None))),
            (Unusable, noted(1, 5), None, Some((LossCause::Unusable, Some(5)))),
            (UpTo(commit(1, 9)), log_is_gone, None, Some((LossCause::LogMissing, None))),
            (UpTo(commit(1, 4)), log_is_gone, None, Some((LossCause::Behind, Some(1)))),
            (UpTo(commit(1, 5)), file_is_older, None, Some((LossCause::Behind, None))),
            // What this process knows counts where the note is gone too, or behind.
            (Nothing, Missing, Some(commit(1, 5)), Some((LossCause::Missing, Some(5)))),
            (UpTo(commit(2, 1)), Missing, Some(commit(1, 5)), Some((LossCause::Replaced, Some(5)))),
            (UpTo(commit(1, 4)), noted(1, 3), Some(commit(1, 6)), Some((LossCause::Behind, Some(2)))),
            // Somebody else has dealt with it.
            (UpTo(commit(2, 1)), noted(2, 1), Some(commit(1, 5)), None),
        ] {
            let loss = detect_loss(found, note, known, NOW);
            let seen = loss.map(|loss| (loss.cause, loss.commits));
            assert_eq!(seen, expected, "{found:?} {note:?} {known:?}");
        }
    }

    #[test]
    fn a_second_loss_keeps_what_was_known_of_the_first() {
        let noted = |number| {
            NoteFound::Sound(CommitNote { last: commit(1, number), log_is_gone: false, file_is_older: false })
        };
        let first = RecordLoss {
            set_aside: vec!["old".to_owned()],
            ..detect_loss(CommitsFound::Nothing, noted(5), None, NOW).unwrap()
        };
        let second = detect_loss(CommitsFound::UpTo(commit(1, 3)), noted(7), None, NOW).unwrap();
        let both = second.after(Some(first));
        assert_eq!((both.cause, both.commits, both.after), (LossCause::Behind, Some(9), None));
        assert_eq!(RecordLoss::from_text(&both.to_text()), Some(both.clone()));
        let said = both.to_string();
        assert!(said.contains("at least 9 commits") && said.contains("old"), "{said}");
    }
}

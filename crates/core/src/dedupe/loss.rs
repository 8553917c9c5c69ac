//! Detection of lost committed records, and the refusal of calls until an operator accepts the loss.
//!
//! A store counts its commits, and a note beside it contains the last one. If the store has fewer commits than the
//! note, or another marker, records were lost: calls that ran are no longer known, and would run again with the same
//! key. Such calls are refused until the loss is accepted, or until everything that was lost would have expired.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::address::RecordAddress;
use super::claim::Claim;
use super::marker::StoreMarker;
use crate::Timestamp;

/// A committed write of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Marker of the store.
    pub marker: StoreMarker,
    /// Number of the commit. Each is one higher than the one before.
    pub number: u64,
    /// Time of the commit, or the epoch if it is not known.
    pub at: Timestamp,
}

/// The commits found when a store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitHistory {
    /// There is no store, or an empty one.
    Nothing,
    /// The store could not be used, and a new one replaces it.
    Unusable,
    /// The last commit found.
    UpTo(Commit),
}

/// The note of the last commit, as found beside a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitNoteState {
    /// There is no note, or an empty one.
    Missing,
    /// The note cannot be read.
    Damaged,
    /// The note can be read.
    Sound(CommitNote),
}

/// The note beside a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitNote {
    /// Last commit that was noted.
    pub last: Commit,
    /// True if later commits may have been made without a note, and the log that held them is gone.
    pub log_is_missing: bool,
    /// True if an older file is combined with the log of a newer one. Commits may be missing from both, although later
    /// ones are present.
    pub file_is_older: bool,
}

/// A loss of committed records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecordLoss {
    /// Cause of the loss.
    pub cause: LossCause,
    /// Time at which the loss was detected.
    #[serde(rename = "noticedMs")]
    pub noticed: Timestamp,
    /// Least number of lost commits, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<u64>,
    /// Time of the last commit that is left.
    #[serde(default, rename = "afterMs", skip_serializing_if = "Option::is_none")]
    pub after: Option<Timestamp>,
    /// Time of the last commit that is known to be lost.
    #[serde(default, rename = "untilMs", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Paths to which unusable files were moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<String>,
}

/// The sign by which a loss of committed records was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// The state file was missing or empty.
    Missing,
    /// The state file was damaged or was not a state file.
    Unusable,
    /// The state file was replaced by another one.
    Replaced,
    /// Commits that were noted were not in the state file.
    Behind,
    /// The log of the state file was missing after the machine had stopped.
    LogMissing,
    /// The note of the last commit was missing or damaged, so lost commits would not be detected.
    NoteUnusable,
}

/// The maximum number of paths that are stored.
const MOST_PLACES: usize = 8;

/// Compares the commits of an opened store with the note beside it, and with the last commit that this process knows if
/// it had the store open before.
pub fn detect_loss(
    found: CommitHistory,
    note: CommitNoteState,
    known: Option<Commit>,
    now: Timestamp,
) -> Option<RecordLoss> {
    let noted = match note {
        CommitNoteState::Sound(noted) => Some(noted),
        CommitNoteState::Missing | CommitNoteState::Damaged => None,
    };
    // A note with another marker comes from a process that has already handled the loss of the known commits.
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
            CommitHistory::Unusable => Some(loss(LossCause::Unusable, None)),
            CommitHistory::UpTo(_) if noted.is_some_and(|noted| noted.file_is_older) => {
                Some(loss(LossCause::Behind, None))
            }
            CommitHistory::UpTo(found) if noted.is_some_and(|noted| noted.log_is_missing) => {
                Some(loss(LossCause::LogMissing, known_time(found.at)))
            }
            // The note is written before the first commit is counted, which gives the store a time.
            CommitHistory::UpTo(found)
                if note == CommitNoteState::Missing && known_time(found.at).is_some() =>
            {
                Some(loss(LossCause::NoteUnusable, None))
            }
            CommitHistory::UpTo(_) if note == CommitNoteState::Damaged => {
                Some(loss(LossCause::NoteUnusable, None))
            }
            CommitHistory::Nothing if note == CommitNoteState::Damaged => {
                Some(loss(LossCause::Missing, None))
            }
            CommitHistory::Nothing | CommitHistory::UpTo(_) => None,
        }
    })
}

/// Returns the loss if a commit that was made is missing.
fn missing(found: CommitHistory, last: Commit, now: Timestamp) -> Option<RecordLoss> {
    let (cause, commits, after) = match found {
        CommitHistory::Nothing => (LossCause::Missing, last.number, None),
        CommitHistory::Unusable => (LossCause::Unusable, last.number, None),
        CommitHistory::UpTo(found) if found.marker != last.marker => (LossCause::Replaced, last.number, None),
        CommitHistory::UpTo(found) => {
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
    /// Returns true if a call is refused because its earlier run may be among the lost records. Calls that do no harm
    /// when they run twice are allowed, and so are those whose records would have expired.
    pub fn refuses(&self, claim: &Claim, now: Timestamp) -> bool {
        let keep = &claim.rules.keep;
        let longest: Duration = keep.done.max(keep.failed).max(keep.open);
        matches!(claim.address, RecordAddress::Explicit(_))
            && !claim.retry_safe
            && now < self.noticed + longest
    }

    /// Returns one loss that combines this one with an earlier one that was not accepted.
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

    /// Reads the text that [`to_text`](Self::to_text) returned.
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
            None => write!(f, "committed records may be lost: {}; the number is unknown", self.cause)?,
        }
        if let Some(after) = self.after {
            write!(f, ", made after {after}")?;
        }
        if let Some(until) = self.until {
            write!(f, ", the last at {until}")?;
        }
        write!(f, "; detected at {}", self.noticed)?;
        if !self.set_aside.is_empty() {
            write!(f, "; unusable files were moved to {}", self.set_aside.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the state file was missing or empty",
            Self::Unusable => "the state file was damaged or was not a state file",
            Self::Replaced => "the state file was replaced by another one",
            Self::Behind => "the state file lacked commits that had been recorded",
            Self::LogMissing => "the log of the state file was missing after the machine had stopped",
            Self::NoteUnusable => {
                "the file that counts commits beside the state file (-commits) was missing or damaged, so a loss would not be detected"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(9_000);

    fn commit(marker: u64, number: u64) -> Commit {
        Commit { marker: StoreMarker(marker), number, at: Timestamp::from_millis(number * 10) }
    }

    #[test]
    fn a_loss_is_detected_by_marker_number_missing_log_and_note() {
        use CommitHistory::{Nothing, Unusable, UpTo};
        use CommitNoteState::{Damaged, Missing, Sound};
        let note = CommitNote { last: commit(1, 5), log_is_missing: false, file_is_older: false };
        let noted = |marker, number| Sound(CommitNote { last: commit(marker, number), ..note });
        let log_is_missing = Sound(CommitNote { log_is_missing: true, ..note });
        let file_is_older = Sound(CommitNote { file_is_older: true, ..note });
        // A store without commits has no time.
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
            // No commit was made with the marker in the note.
            (UpTo(commit(2, 9)), noted(1, 0), None, None),
            (Unusable, Missing, None, Some((LossCause::Unusable, None))),
            (Unusable, noted(1, 5), None, Some((LossCause::Unusable, Some(5)))),
            (UpTo(commit(1, 9)), log_is_missing, None, Some((LossCause::LogMissing, None))),
            (UpTo(commit(1, 4)), log_is_missing, None, Some((LossCause::Behind, Some(1)))),
            (UpTo(commit(1, 5)), file_is_older, None, Some((LossCause::Behind, None))),
            // The knowledge of this process also counts if the note is gone or behind.
            (Nothing, Missing, Some(commit(1, 5)), Some((LossCause::Missing, Some(5)))),
            (UpTo(commit(2, 1)), Missing, Some(commit(1, 5)), Some((LossCause::Replaced, Some(5)))),
            (UpTo(commit(1, 4)), noted(1, 3), Some(commit(1, 6)), Some((LossCause::Behind, Some(2)))),
            // Another process has handled it.
            (UpTo(commit(2, 1)), noted(2, 1), Some(commit(1, 5)), None),
        ] {
            let loss = detect_loss(found, note, known, NOW);
            let actual = loss.map(|loss| (loss.cause, loss.commits));
            assert_eq!(actual, expected, "{found:?} {note:?} {known:?}");
        }
    }

    #[test]
    fn a_second_loss_keeps_the_details_of_the_first() {
        let noted = |number| {
            CommitNoteState::Sound(CommitNote {
                last: commit(1, number),
                log_is_missing: false,
                file_is_older: false,
            })
        };
        let first = RecordLoss {
            set_aside: vec!["old".to_owned()],
            ..detect_loss(CommitHistory::Nothing, noted(5), None, NOW).unwrap()
        };
        let second = detect_loss(CommitHistory::UpTo(commit(1, 3)), noted(7), None, NOW).unwrap();
        let both = second.after(Some(first));
        assert_eq!((both.cause, both.commits, both.after), (LossCause::Behind, Some(9), None));
        assert_eq!(RecordLoss::from_text(&both.to_text()), Some(both.clone()));
        let text = both.to_string();
        assert!(text.contains("at least 9 commits") && text.contains("old"), "{text}");
    }
}

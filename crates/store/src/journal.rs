//! Logs that are only appended to, bounded in number and in age.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;

use crate::{Store, StoreError};

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Journal {
    /// What became of calls: digests and derived facts, no parameters.
    History,
    /// What became of turns.
    Traces,
    /// What operators did.
    Audit,
    /// Which calls of which tools failed, and how.
    Failures,
}

impl Journal {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::History, Self::Traces, Self::Audit, Self::Failures];

    /// The word that is stored for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Traces => "traces",
            Self::Audit => "audit",
            Self::Failures => "failures",
        }
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it happened.
    pub at: Timestamp,
    /// What it is about: the id of a call or a turn, the name of an operator or a tool.
    pub subject: Arc<str>,
    /// What it says: JSON, redacted by whoever wrote it.
    pub body: Arc<str>,
}

/// Where an entry stands in its log: behind everything that was written to it before. No two have one place, it never
/// changes, and whoever was given it as text can go on there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64, pub u64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// That a text names no place in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPosition;

impl fmt::Display for InvalidPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a place in a journal is two numbers with a - between, as it was given")
    }
}

impl std::error::Error for InvalidPosition {}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let number = |part: &str| part.parse().map_err(|_| InvalidPosition);
        let (first, second) = text.split_once('-').ok_or(InvalidPosition)?;
        Ok(Self(number(first)?, number(second)?))
    }
}

/// How much of a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The most entries.
    pub most: u64,
    /// The most of them that are about one subject; nothing means no such bound.
    pub most_per_subject: Option<u64>,
    /// The longest.
    pub age: Duration,
}

/// Which entries to read; those first that were written last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Of which log.
    pub journal: Journal,
    /// About what; nothing means everything.
    pub subject: Option<Arc<str>>,
    /// Not older than this.
    pub since: Timestamp,
    /// Written before the entry at this place: the last one of the page before. Nothing means from the newest on.
    pub behind: Option<Position>,
    /// The most entries.
    pub limit: usize,
}

impl Query {
    /// The newest entries of a log.
    pub const fn newest(journal: Journal, limit: usize) -> Self {
        Self { journal, subject: None, since: Timestamp::ZERO, behind: None, limit }
    }
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<T> {
    /// What was found, those first that were written last.
    pub found: Vec<T>,
    /// The place behind which to go on; nothing where there is nothing behind. What is looked through is bounded, so there
    /// may be more although little was found, or nothing.
    pub next: Option<Position>,
}

/// Looks through a log for as much as the query has for its limit, but through no more than so many entries.
pub async fn look_through<T>(
    store: &dyn Store,
    query: &Query,
    most: usize,
    wanted: impl Fn(&Entry) -> Option<T>,
) -> Result<Part<T>, StoreError> {
    const BATCH: usize = 1000;
    let (mut found, mut looked_at) = (Vec::new(), 0);
    // With one more than is wanted it is known whether it ends there.
    let mut some = Query { limit: query.limit.saturating_add(1).min(BATCH), ..query.clone() };
    loop {
        let batch = store.entries(&some).await?;
        let is_the_end = batch.len() < some.limit;
        for (place, entry) in batch {
            if found.len() >= query.limit || looked_at >= most {
                return Ok(Part { found, next: some.behind });
            }
            found.extend(wanted(&entry));
            looked_at += 1;
            some.behind = Some(place);
        }
        if is_the_end {
            return Ok(Part { found, next: None });
        }
        // Where few fit, the next look goes further.
        some.limit = (2 * some.limit).min(BATCH);
    }
}

//! Append-only journals, bounded in number and age.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;

use crate::{StateStore, StoreError};

/// The name of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Journal {
    /// Finished calls: digests and derived facts, no parameters.
    History,
    /// Finished turns.
    Traces,
    /// The audit log: actions of operators.
    Audit,
    /// Failed calls, by tool and kind of failure.
    Failures,
}

impl Journal {
    /// All journals.
    pub const ALL: [Self; 4] = [Self::History, Self::Traces, Self::Audit, Self::Failures];

    /// Returns the stored name of the journal.
    pub const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Traces => "traces",
            Self::Audit => "audit",
            Self::Failures => "failures",
        }
    }
}

/// An entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Time of the event.
    pub at: Timestamp,
    /// The subject: the id of a call or a turn, the name of an operator or a tool.
    pub subject: Arc<str>,
    /// The content: JSON, redacted by the writer.
    pub body: Arc<str>,
}

/// The position of an entry in its journal, after all entries written earlier. It is unique and never changes.
/// Clients may keep it as text and continue there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalPosition(pub u64, pub u64);

impl fmt::Display for JournalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// The error for a text that is not a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position in a journal is two numbers separated by -, exactly as it was returned")]
pub struct InvalidPosition;

impl FromStr for JournalPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let number = |part: &str| part.parse().map_err(|_| InvalidPosition);
        let (first, second) = text.split_once('-').ok_or(InvalidPosition)?;
        Ok(Self(number(first)?, number(second)?))
    }
}

/// Limits of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLimits {
    /// The most entries.
    pub most: u64,
    /// The most entries about one subject, or `None` for no limit.
    pub most_per_subject: Option<u64>,
    /// The maximum age of an entry.
    pub age: Duration,
}

/// A query for entries of a journal, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalQuery {
    /// The journal.
    pub journal: Journal,
    /// The subject, or `None` for all.
    pub subject: Option<Arc<str>>,
    /// The earliest time.
    pub since: Timestamp,
    /// Only entries older than the one at this position: the last one of the previous page. `None` starts at the
    /// newest entry.
    pub before: Option<JournalPosition>,
    /// The most entries.
    pub limit: usize,
}

impl JournalQuery {
    /// Queries the newest entries of a journal.
    pub const fn newest(journal: Journal, limit: usize) -> Self {
        Self { journal, subject: None, since: Timestamp::ZERO, before: None, limit }
    }
}

/// One page of a filtered journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPage<T> {
    /// The matching entries, newest first.
    pub found: Vec<T>,
    /// The position after which to continue, or `None` at the end. The number of entries read is bounded, so there
    /// may be more even if this page has few entries or none.
    pub next: Option<JournalPosition>,
}

/// Collects matching entries up to the limit of the query. Reads at most `most` entries.
pub async fn filter_entries<T>(
    store: &dyn StateStore,
    query: &JournalQuery,
    most: usize,
    select: impl Fn(&JournalEntry) -> Option<T>,
) -> Result<JournalPage<T>, StoreError> {
    const BATCH: usize = 1000;
    let (mut found, mut looked_at) = (Vec::new(), 0);
    // One entry more than wanted shows if there are more.
    let mut some = JournalQuery { limit: query.limit.saturating_add(1).min(BATCH), ..query.clone() };
    loop {
        let batch = store.entries(&some).await?;
        let is_the_end = batch.len() < some.limit;
        for (place, entry) in batch {
            if found.len() >= query.limit || looked_at >= most {
                return Ok(JournalPage { found, next: some.before });
            }
            found.extend(select(&entry));
            looked_at += 1;
            some.before = Some(place);
        }
        if is_the_end {
            return Ok(JournalPage { found, next: None });
        }
        // If few entries match, the next batch is larger.
        some.limit = (2 * some.limit).min(BATCH);
    }
}

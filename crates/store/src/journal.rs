//! Logs that are only appended to, bounded in number and in age.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Journal {
    /// What became of calls: digests and derived facts, no parameters.
    History,
    /// What became of turns.
    Traces,
    /// What operators did.
    Audit,
}

impl Journal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::History, Self::Traces, Self::Audit];

    /// The word that is stored for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Traces => "traces",
            Self::Audit => "audit",
        }
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it happened.
    pub at: Timestamp,
    /// What it is about: the id of a call or a turn, the name of an operator.
    pub subject: Arc<str>,
    /// What it says: JSON, redacted by whoever wrote it.
    pub body: Arc<str>,
}

/// How much of a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The most entries.
    pub most: u64,
    /// The longest.
    pub age: Duration,
}

/// Which entries to read; newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Of which log.
    pub journal: Journal,
    /// About what; nothing means everything.
    pub subject: Option<Arc<str>>,
    /// Not older than this.
    pub since: Timestamp,
    /// The most entries.
    pub limit: usize,
}

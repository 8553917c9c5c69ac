//! The settings of deduplication.

use std::time::Duration;

use crate::Timestamp;
use crate::policy::{CallPolicy, FailureReplayPolicy, RecordLifetimes, UnknownOutcomePolicy};

/// The settings that the table depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeRules {
    /// Failures that an explicit key replays.
    pub cache_failures: FailureReplayPolicy,
    /// Handling of equal arguments after an unknown outcome.
    pub after_unknown: UnknownOutcomePolicy,
    /// True if equal calls that overlap count as one call that was dispatched twice.
    pub double_dispatch: bool,
    /// Time for which an undelivered result is kept for equal arguments.
    pub undelivered: Duration,
    /// Time after the delivery of a final response before which equal arguments do not run, unless a verification read
    /// came first.
    pub after_telling: Duration,
    /// Time for which an attempt may still take effect if its end cannot be observed.
    pub linger: Duration,
    /// Time for which work may still take effect that a child process of Steadfast has handed on.
    pub settle: Duration,
    /// Lifetimes of records.
    pub keep: RecordLifetimes,
    /// Set for calls without an explicit key if duplicates were not detected for a while. Results from before this time
    /// are not replayed. Runs that were in flight then, and their waiters, are kept.
    pub computed_since: Option<Timestamp>,
}

impl From<&CallPolicy> for DedupeRules {
    fn from(policy: &CallPolicy) -> Self {
        let CallPolicy { dedupe, settling, .. } = policy;
        Self {
            cache_failures: dedupe.cache_failures,
            after_unknown: dedupe.after_unknown,
            double_dispatch: dedupe.double_dispatch,
            undelivered: dedupe.undelivered,
            after_telling: dedupe.after_telling,
            linger: settling.linger,
            settle: settling.after_child(),
            keep: dedupe.keep,
            computed_since: None,
        }
    }
}

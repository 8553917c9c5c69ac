//! Accounting of one call: guard, trust and scores count each call once.
//!
//! ```text
//!   Open ── reported to the guard ──▶ InFlight ── counted, or abandoned ──▶ Counted
//!     └──────────── refused on arrival, and no earlier call found ─────────────▲
//! ```

use crate::classify::{ModelMistake, Severity};
use crate::stats::ScoreOutcome;

/// The part of a call that was counted so far.
#[derive(Debug, Default)]
pub(super) struct CallAccounting {
    state: AccountingState,
    /// Severity of the failure that the call ended with, if it ran.
    severity: Option<Severity>,
    /// Outcome for the scores of the tool, if the call counts for them.
    score: Option<ScoreOutcome>,
}

/// State of the counting of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AccountingState {
    /// The guard does not know the call.
    #[default]
    Open,
    /// The guard knows that the call is in flight.
    InFlight,
    /// The call was counted, or counts for nothing.
    Counted,
}

impl CallAccounting {
    /// Marks the call as in flight. Returns true the first time: the guard has to count it.
    pub(super) fn enter(&mut self) -> bool {
        let is_first = self.state == AccountingState::Open;
        if is_first {
            self.state = AccountingState::InFlight;
        }
        is_first
    }

    /// Marks the call as counted, and returns the state before.
    pub(super) fn close(&mut self) -> AccountingState {
        std::mem::replace(&mut self.state, AccountingState::Counted)
    }

    /// Returns true if the call was counted.
    pub(super) fn is_counted(&self) -> bool {
        self.state == AccountingState::Counted
    }

    /// Records the outcome of a call that ran.
    pub(super) fn record_run(&mut self, severity: Option<Severity>, mistake: Option<ModelMistake>) {
        self.severity = severity;
        self.score = Some(ScoreOutcome::of(severity, mistake));
    }

    /// Returns the severity of the failure that the call ended with, if it ran.
    pub(super) fn severity(&self) -> Option<Severity> {
        self.severity
    }

    /// Returns the outcome for the scores of the tool, if the call counts for them.
    pub(super) fn score(&self) -> Option<ScoreOutcome> {
        self.score
    }
}

//! An unknown outcome that is not settled yet, and the time at which it will be.

use std::sync::Arc;

use super::in_flight::AttemptInFlight;
use super::request::AttemptEndVisibility;
use super::step::CutReason;
use crate::Timestamp;
use crate::classify::Severity;
use crate::dedupe::{DeliveryReceipt, SettleDelay, SettleStatus, UnknownOutcomeReason, UnknownOutcomeReport};
use crate::output::ToolOutput;
use crate::policy::SettlingPolicy;

/// An unknown outcome that is not settled yet.
#[derive(Debug)]
pub(super) struct SettlingOutcome {
    /// The attempt, as long as it may still answer.
    pub(super) attempt: Option<AttemptInFlight>,
    pub(super) observed: UnknownOutcomeReason,
    pub(super) words: Option<Arc<str>>,
    pub(super) output: Option<ToolOutput>,
    /// Severity for trust and scores; `None` if the outcome says nothing about the tool.
    pub(super) severity: Option<Severity>,
    /// The reason that the caller gets.
    pub(super) reason: GiveUpReason,
    /// Settling time, as recorded.
    pub(super) settles: SettleDelay,
    /// Time from which the attempt can no longer take effect, by the local clock; `None` if its end will be seen.
    pub(super) by: Option<Timestamp>,
    /// True if the tool still has to be asked to cancel.
    pub(super) cancel: bool,
    pub(super) receipt: Option<DeliveryReceipt>,
    /// Time before which the tool may still report that the attempt was never sent. The caller is not answered earlier.
    pub(super) answer_from: Option<Timestamp>,
    /// True if the store could not record the outcome.
    pub(super) unsaved: bool,
    /// Time of the next try to record it.
    pub(super) save_at: Option<Timestamp>,
}

/// The reason why an attempt was given up.
#[derive(Clone, Debug)]
pub(super) enum GiveUpReason {
    /// The attempt was cut by Steadfast's own clock.
    Cut(CutReason),
    /// The response decided it, by this rule.
    Rule(std::borrow::Cow<'static, str>),
}

impl SettlingOutcome {
    /// Starts the settling time now.
    pub(super) fn counts_from(&mut self, now: Timestamp) {
        self.by = match self.settles {
            SettleDelay::WhenOwnerReports => None,
            SettleDelay::After(span) => Some(now + span),
            SettleDelay::Settled => Some(now),
        };
    }

    /// Returns the time until which an attempt that was asked to stop may report that it was never sent.
    pub(super) fn report_deadline(&self) -> Option<Timestamp> {
        self.answer_from.filter(|_| self.attempt.is_some())
    }

    /// Returns the rest of the settling time.
    pub(super) fn left(&self, now: Timestamp) -> SettleDelay {
        match self.by {
            None => SettleDelay::WhenOwnerReports,
            Some(by) if by <= now => SettleDelay::Settled,
            Some(by) => SettleDelay::After(by.since(now)),
        }
    }

    pub(super) fn ending(&self, settles: SettleDelay) -> UnknownOutcomeReport {
        let (words, output) = (self.words.clone(), self.output.clone());
        UnknownOutcomeReport { settles, observed: self.observed, details: words, output }
    }

    pub(super) fn is_settled(&self, now: Timestamp) -> bool {
        self.by.is_some_and(|by| by <= now)
    }

    pub(super) fn end(&self, now: Timestamp) -> SettleStatus {
        match self.by {
            Some(by) if by <= now => SettleStatus::Settled,
            Some(by) => SettleStatus::NotYet(Some(by.since(now))),
            None => SettleStatus::NotYet(None),
        }
    }
}

/// Returns the time after which an attempt that was lost or cut can no longer take effect.
pub(super) fn settles_after(
    end: AttemptEndVisibility,
    observed: UnknownOutcomeReason,
    policy: &SettlingPolicy,
) -> SettleDelay {
    match (observed, end) {
        // The tool has answered; the work that it passed on may continue.
        (UnknownOutcomeReason::ErrorAnswer, _) => SettleDelay::After(policy.settle),
        (_, AttemptEndVisibility::Visible) => SettleDelay::WhenOwnerReports,
        (_, AttemptEndVisibility::Hidden) => SettleDelay::After(policy.linger),
    }
}

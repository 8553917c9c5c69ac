//! Unknown outcomes: recorded before any caller gets them, and final only when the attempt can no longer take effect.
//!
//! ```text
//!   Attempting ── cut, lost or ambiguous ──▶ Marking ── recorded ──▶ Settling ── its end was seen ──▶ Marking
//!                                                                      │  ▲                              │
//!                                      the caller's time is up: answer *not yet*, and go on              │
//!                                                                      │                                 │
//!                    it still succeeds: Saving ◀───────────────────────┴──── settled: answer *final* ◀───┘
//! ```
//!
//! An error that arrives after an attempt was cut counts as a response to the cut, and not as the end of the attempt:
//! servers answer a cancellation at once and continue to work. A success counts as a result at any time.

use std::sync::Arc;
use std::time::Duration;

use super::step::RecordStatus;
use super::{
    AttemptEndVisibility, AttemptInFlight, AttemptReport, Call, CallMechanisms, CallNotice, CallResult,
    CallerState, CutReason, DeferredWrite, NextStep, State, StoreState, UnknownOutcomeInfo, UpstreamSignal,
    messages,
};
use crate::Timestamp;
use crate::classify::Severity;
use crate::dedupe::{
    DeliveryReceipt, RunOutcome, SaveVerdict, SettleDelay, SettleStatus, UnknownOutcomeReason,
    UnknownOutcomeReport, UnknownOutcomeStatus,
};
use crate::output::ToolOutput;
use crate::policy::{SettlingPolicy, UnknownOutcomePolicy};

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
    pub(super) why: GiveUpReason,
    /// Settling time, as recorded.
    pub(super) settles: SettleDelay,
    /// Time from which the attempt can no longer take effect, by the local clock; `None` if its end will be seen.
    pub(super) by: Option<Timestamp>,
    /// True if the tool still has to be asked to cancel.
    pub(super) cancel: bool,
    pub(super) receipt: Option<DeliveryReceipt>,
    /// Time before which the tool may still report that the attempt was never sent. The caller is not answered earlier.
    pub(super) told_from: Option<Timestamp>,
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

impl Call {
    /// Handles an attempt with an unknown outcome. The outcome is recorded first.
    pub(super) fn outcome_unknown(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        settling: SettlingOutcome,
        settles: SettleDelay,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        notices.push(CallNotice::OutcomeUnknown { of_earlier: None });
        self.settling_since.get_or_insert(now);
        self.mark(shared, settling, settles, now, notices)
    }

    /// Records the known facts about the end of the attempt.
    fn mark(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: SettlingOutcome,
        settles: SettleDelay,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        settling.settles = settles;
        settling.counts_from(now);
        let save = self.save_of(RunOutcome::Unknown(settling.ending(settles)));
        match save.filter(|_| self.store != StoreState::Down) {
            Some(save) => {
                self.state = State::Marking(Box::new(settling));
                NextStep::Save(save)
            }
            None => {
                settling.unsaved = self.record.is_some();
                settling.save_at = Some(now + SAVE_AGAIN);
                self.marked(shared, Box::new(settling), now, notices)
            }
        }
    }

    pub(super) fn mark_saved(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        verdict: SaveVerdict,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match verdict {
            SaveVerdict::Saved(receipt) => {
                settling.unsaved = false;
                settling.receipt = Some(receipt);
                // The store counts from when it was asked, which was before now.
                settling.counts_from(now);
            }
            SaveVerdict::FenceLost => {
                if self.store == StoreState::Available {
                    notices.push(CallNotice::FenceLost);
                }
                self.store = StoreState::FenceLost;
                // There is no record left to save it in.
                settling.unsaved = false;
                settling.receipt = None;
            }
        }
        self.marked(shared, settling, now, notices)
    }

    pub(super) fn mark_failed(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        notices.push(CallNotice::StoreFailed { continues: true });
        settling.unsaved = true;
        settling.save_at = Some(now + SAVE_AGAIN);
        self.marked(shared, settling, now, notices)
    }

    /// Continues after the outcome was recorded, or could not be: now the tool may be asked to stop, and the caller may
    /// be answered.
    pub(super) fn marked(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if self.end_was_missed(&settling, now) {
            let linger = SettleDelay::After(self.policy.settling.linger);
            return self.mark(shared, *settling, linger, now, notices);
        }
        if settling.attempt.is_some() && settling.unsaved && settling.save_at.is_some_and(|at| at <= now) {
            let settles = settling.left(now);
            return self.mark(shared, *settling, settles, now, notices);
        }
        // An attempt that can no longer take effect needs no permits.
        if settling.is_settled(now)
            && let Some(attempt) = &mut settling.attempt
        {
            attempt.release_permits(shared);
        }
        if std::mem::take(&mut settling.cancel) && settling.attempt.is_some() {
            settling.told_from = Some(now + LAST_WORDS);
            self.state = State::Settling(settling);
            return NextStep::CancelUpstream;
        }
        if self.is_to_be_told(&settling, now) {
            return self.answer_unknown(shared, settling, now, notices);
        }
        if self.is_done_with(&settling, now) {
            return self.close(shared, settling, now, notices);
        }
        self.state = State::Settling(settling);
        NextStep::Wait
    }

    /// Returns true if the caller gets its response now: it is final, or the caller's time is up.
    fn is_to_be_told(&self, settling: &SettlingOutcome, now: Timestamp) -> bool {
        self.caller == CallerState::Waiting
            && settling.speaks_until().is_none_or(|until| until <= now)
            && (settling.is_settled(now) || !self.can_wait(settling.end(now), now))
    }

    /// Returns true if the caller has the time to wait for the end.
    pub(super) fn can_wait(&self, end: SettleStatus, now: Timestamp) -> bool {
        let until = self.waits_until();
        match end {
            SettleStatus::Settled => true,
            SettleStatus::NotYet(Some(left)) => now + left <= until,
            SettleStatus::NotYet(None) => now < until,
        }
    }

    /// Returns the time until which the caller waits for the end of an attempt. A later response may miss it.
    pub(super) fn waits_until(&self) -> Timestamp {
        let late = self.policy.dedupe.late_after;
        let limits = [self.patience(), self.request.limits.elapsed];
        let patience = limits.into_iter().flatten().fold(late, Duration::min);
        (self.arrived + patience).min(self.latest_start().unwrap_or(Timestamp::MAX))
    }

    /// Returns true if nothing more can become known about the attempt.
    fn is_done_with(&self, settling: &SettlingOutcome, now: Timestamp) -> bool {
        self.caller != CallerState::Waiting && settling.attempt.is_none() && settling.by.is_some()
            || self.observed_until(settling).is_some_and(|until| until <= now)
    }

    /// Returns the time until which the call waits for the attempt, at most.
    fn observed_until(&self, settling: &SettlingOutcome) -> Option<Timestamp> {
        match self.request.end {
            AttemptEndVisibility::Visible if settling.by.is_none() => {
                self.settling_since.map(|since| since + self.policy.settling.child_stop_time())
            }
            AttemptEndVisibility::Visible | AttemptEndVisibility::Hidden => {
                let total = settling.attempt.as_ref()?.watchdog?.total_at();
                Some(settling.speaks_until().map_or(total, |until| until.max(total)))
            }
        }
    }

    pub(super) fn settling_wakes_at(&self, settling: &SettlingOutcome) -> Option<Timestamp> {
        let waiting = self.caller == CallerState::Waiting;
        let told = |at: Timestamp| settling.speaks_until().map_or(at, |until| until.max(at));
        let until = waiting.then(|| told(self.waits_until()));
        let by = settling.by.filter(|_| waiting).map(told);
        let leaves =
            settling.by.filter(|_| settling.attempt.as_ref().is_some_and(AttemptInFlight::has_permits));
        let save_at = settling.save_at.filter(|_| settling.unsaved && settling.attempt.is_some());
        [until, by, leaves, save_at, self.observed_until(settling)].into_iter().flatten().min()
    }

    /// Returns true if the end of the attempt is overdue and was not seen.
    fn end_was_missed(&self, settling: &SettlingOutcome, now: Timestamp) -> bool {
        settling.by.is_none() && self.observed_until(settling).is_some_and(|until| until <= now)
    }

    /// Handles the end of the attempt: it can no longer take effect.
    pub(super) fn end_was_seen(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if settling.by.is_some() {
            return self.marked(shared, settling, now, notices);
        }
        self.drop_attempt(shared, &mut settling, now, notices);
        let after = self.policy.settling.after_child();
        let settles = if after.is_zero() { SettleDelay::Settled } else { SettleDelay::After(after) };
        self.mark(shared, *settling, settles, now, notices)
    }

    /// Handles a result of the attempt that arrives after all.
    pub(super) fn ran_late(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        outcome: AttemptReport,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if let Some(heard) = self.unsent(&outcome, now)
            && let Some(attempt) = settling.attempt.take()
        {
            return self.never_sent(shared, attempt, heard, now, notices);
        }
        match (settling.attempt.take(), outcome) {
            // A tool that asks for input, or was never reached, has done nothing.
            (
                Some(attempt),
                outcome @ (AttemptReport::Success { .. }
                | AttemptReport::InputRequired { .. }
                | AttemptReport::NotRun { .. }),
            ) => self.ran(shared, attempt, outcome, now, notices),
            // A response to a cancellation is never that large.
            (Some(attempt), outcome) if outcome.is_too_large() => {
                self.ran(shared, attempt, outcome, now, notices)
            }
            (attempt, _) => {
                settling.attempt = attempt;
                self.drop_attempt(shared, &mut settling, now, notices);
                self.marked(shared, settling, now, notices)
            }
        }
    }

    /// Stops waiting for the attempt.
    fn drop_attempt(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        settling: &mut SettlingOutcome,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) {
        let Some(mut attempt) = settling.attempt.take() else { return };
        attempt.release_permits(shared);
        self.cut_ended(&attempt, now, notices);
    }

    /// Handles a caller that cancels or disconnects. What has started is settled all the same.
    pub(super) fn left_settling(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        cancelled: Option<CallResult>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match (self.caller, cancelled) {
            // Nothing more can become known about the attempt.
            (CallerState::Waiting, Some(result)) if settling.attempt.is_none() && settling.by.is_some() => {
                self.abandon(shared, now, notices);
                let kept = self.unsaved(&mut settling, now);
                self.finish(result, kept, now, notices)
            }
            (CallerState::Waiting, Some(result)) => {
                self.answer_early(State::Settling(settling), result, UpstreamSignal::NoSignal, notices)
            }
            (_, _) => {
                if self.caller == CallerState::Waiting {
                    self.caller = CallerState::Gone;
                }
                self.marked(shared, settling, now, notices)
            }
        }
    }

    /// Handles the end of the driver: other processes settle what is not settled by now.
    pub(super) fn driver_ends(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        settling: Box<SettlingOutcome>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        self.close(shared, settling, now, notices)
    }

    /// Answers the caller with what is known now, and continues if more can become known.
    fn answer_unknown(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let result = self.unknown_result(shared, &settling, now, notices);
        if settling.attempt.is_none() && settling.by.is_some() {
            return self.finish(result, self.unsaved(&mut settling, now), now, notices);
        }
        let step = self.answer_early(State::Settling(settling), result, UpstreamSignal::NoSignal, notices);
        // Steadfast cut the attempt: a late result is not a response to a caller that cancelled.
        self.caller = CallerState::Gone;
        step
    }

    /// Ends a call whose caller was answered, or never will be.
    fn close(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut settling: Box<SettlingOutcome>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        self.drop_attempt(shared, &mut settling, now, notices);
        let result = self.unknown_result(shared, &settling, now, notices);
        let kept = self.unsaved(&mut settling, now);
        self.finish(result, kept, now, notices)
    }

    /// Returns the save command that is still due.
    fn unsaved(&self, settling: &mut SettlingOutcome, now: Timestamp) -> Vec<DeferredWrite> {
        if !std::mem::take(&mut settling.unsaved) {
            return Vec::new();
        }
        let settles = match settling.left(now) {
            // No process will be there to report the end. By then the child process was ended, by its gateway or by its
            // leash, and the work that it passed on is over.
            SettleDelay::WhenOwnerReports => {
                let settling = &self.policy.settling;
                let ended = settling.child_stop_time() + settling.after_child();
                SettleDelay::After(ended.max(settling.linger))
            }
            settles @ (SettleDelay::After(_) | SettleDelay::Settled) => settles,
        };
        self.save_of(RunOutcome::Unknown(settling.ending(settles)))
            .map(DeferredWrite::Save)
            .into_iter()
            .collect()
    }

    /// Returns the response for the caller, counted once.
    fn unknown_result(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        settling: &SettlingOutcome,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> CallResult {
        let end = settling.end(now);
        let unknown = messages::UnknownOutcomeMessage {
            end,
            observed: settling.observed,
            words: settling.words.clone(),
            output: settling.output.clone(),
            runs_in: self.runs_again_in(),
        };
        let failure = messages::outcome_unknown(&self.request.reads, &self.policy, unknown);
        let failure = match &settling.why {
            GiveUpReason::Cut(cut) => messages::cut_unknown(failure, &self.policy, *cut),
            GiveUpReason::Rule(rule) => failure.with_rule(rule.clone()),
        };
        let recorded = match (&self.record, &settling.receipt) {
            (None, _) => RecordStatus::NotAsked,
            (Some(_), Some(_)) => RecordStatus::Yes,
            (Some(_), None) => RecordStatus::No,
        };
        let receipt = settling.receipt.clone().filter(|_| end == SettleStatus::Settled);
        let unknown =
            Some(UnknownOutcomeInfo { observed: settling.observed, ended: end == SettleStatus::Settled });
        let result = CallResult { recorded, receipt, unknown, ..self.failed(failure, now) };
        match settling.severity {
            Some(severity) => self.judge_run(shared, result, Some(severity), None, now, notices),
            None => self.judge(shared, result, now, notices),
        }
    }

    /// Returns the time after which the same call runs again after a final response, if the caller does not check
    /// before; `None` if it never does by itself.
    fn runs_again_in(&self) -> Option<Duration> {
        let hold = self.request.hints.safety_critical
            || self.policy.dedupe.after_unknown == UnknownOutcomePolicy::Hold;
        let keyless = self.request.address().is_some_and(|address| address.index().is_some());
        (keyless && !hold).then_some(self.policy.dedupe.after_telling)
    }

    /// Handles an unknown outcome of an earlier call.
    pub(super) fn found_unknown(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        unsettled: UnknownOutcomeStatus,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if unsettled.end != SettleStatus::Settled && self.can_wait(unsettled.end, now) {
            let record = unsettled.receipt.key;
            let left = match unsettled.end {
                SettleStatus::NotYet(Some(left)) => left.min(LOOK_AGAIN),
                SettleStatus::NotYet(None) | SettleStatus::Settled => LOOK_AGAIN,
            };
            let look_at = (now + left).min(self.waits_until());
            self.state = State::AwaitingEnd { record, look_at };
            return NextStep::AwaitEnd(record);
        }
        notices.push(CallNotice::OutcomeUnknown { of_earlier: Some(unsettled.receipt.owner.clone()) });
        let result = CallResult::unknown(unsettled, &self.request.reads, &self.policy);
        let result = self.with_attempts(result, now);
        self.conclude(shared, result, now, notices)
    }
}

/// Time in which a tool that was asked to stop can report that it was never reached, before its caller gets an unknown
/// outcome.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Interval at which the store is asked again to record an unknown outcome.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

/// Interval at which the record is looked up: another process sees the end and does not notify this one.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl SettlingOutcome {
    /// Starts the settling time now.
    fn counts_from(&mut self, now: Timestamp) {
        self.by = match self.settles {
            SettleDelay::WhenOwnerReports => None,
            SettleDelay::After(span) => Some(now + span),
            SettleDelay::Settled => Some(now),
        };
    }

    /// Returns the time until which an attempt that was asked to stop may report that it was never sent.
    fn speaks_until(&self) -> Option<Timestamp> {
        self.told_from.filter(|_| self.attempt.is_some())
    }

    /// Returns the rest of the settling time.
    fn left(&self, now: Timestamp) -> SettleDelay {
        match self.by {
            None => SettleDelay::WhenOwnerReports,
            Some(by) if by <= now => SettleDelay::Settled,
            Some(by) => SettleDelay::After(by.since(now)),
        }
    }

    fn ending(&self, settles: SettleDelay) -> UnknownOutcomeReport {
        let (words, output) = (self.words.clone(), self.output.clone());
        UnknownOutcomeReport { settles, observed: self.observed, details: words, output }
    }

    fn is_settled(&self, now: Timestamp) -> bool {
        self.by.is_some_and(|by| by <= now)
    }

    fn end(&self, now: Timestamp) -> SettleStatus {
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

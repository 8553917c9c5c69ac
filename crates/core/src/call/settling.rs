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

use std::time::Duration;

use super::caller::CallerState;
use super::context::StepContext;
use super::in_flight::AttemptInFlight;
use super::messages;
use super::notice::CallNotice;
use super::request::AttemptEndVisibility;
use super::settling_outcome::{GiveUpReason, SettlingOutcome};
use super::state::{Call, State, StoreState};
use super::step::{
    AttemptReport, CallResult, DeferredWrite, NextStep, RecordStatus, UnknownOutcomeInfo, UpstreamSignal,
};
use crate::Timestamp;
use crate::dedupe::{RunOutcome, SaveVerdict, SettleDelay, SettleStatus, UnknownOutcomeStatus};
use crate::policy::UnknownOutcomePolicy;

impl Call {
    /// Handles an attempt with an unknown outcome. The outcome is recorded first.
    pub(super) fn outcome_unknown(
        &mut self,
        settling: SettlingOutcome,
        settles: SettleDelay,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        cx.notices.push(CallNotice::OutcomeUnknown { of_earlier: None });
        self.settling_since.get_or_insert(cx.now);
        self.mark(settling, settles, cx)
    }

    /// Records the known facts about the end of the attempt.
    fn mark(
        &mut self,
        mut settling: SettlingOutcome,
        settles: SettleDelay,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        settling.settles = settles;
        settling.counts_from(cx.now);
        let save = self.save_of(RunOutcome::Unknown(settling.ending(settles)));
        match save.filter(|_| self.store != StoreState::Down) {
            Some(save) => {
                self.state = State::Marking(Box::new(settling));
                NextStep::Save(save)
            }
            None => {
                settling.unsaved = self.record.is_some();
                settling.save_at = Some(cx.now + SAVE_INTERVAL);
                self.marked(Box::new(settling), cx)
            }
        }
    }

    /// Continues after the store has recorded the unknown outcome, or lost its record.
    pub(super) fn mark_saved(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        verdict: SaveVerdict,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        match verdict {
            SaveVerdict::Saved(receipt) => {
                settling.unsaved = false;
                settling.receipt = Some(receipt);
                // The store counts from when it was asked, which was before now.
                settling.counts_from(cx.now);
            }
            SaveVerdict::FenceLost => {
                if self.store == StoreState::Available {
                    cx.notices.push(CallNotice::FenceLost);
                }
                self.store = StoreState::FenceLost;
                // There is no record left to save it in.
                settling.unsaved = false;
                settling.receipt = None;
            }
        }
        self.marked(settling, cx)
    }

    /// Continues after the store could not record the unknown outcome.
    pub(super) fn mark_failed(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        cx.notices.push(CallNotice::StoreFailed { continues: true });
        settling.unsaved = true;
        settling.save_at = Some(cx.now + SAVE_INTERVAL);
        self.marked(settling, cx)
    }

    /// Continues after the outcome was recorded, or could not be: now the tool may be asked to stop, and the caller may
    /// be answered.
    pub(super) fn marked(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        if self.end_was_missed(&settling, cx.now) {
            let linger = SettleDelay::After(self.policy.settling.linger);
            return self.mark(*settling, linger, cx);
        }
        if settling.attempt.is_some() && settling.unsaved && settling.save_at.is_some_and(|at| at <= cx.now) {
            let settles = settling.left(cx.now);
            return self.mark(*settling, settles, cx);
        }
        // An attempt that can no longer take effect needs no permits.
        if settling.is_settled(cx.now)
            && let Some(attempt) = &mut settling.attempt
        {
            attempt.release_permits(cx.shared);
        }
        if std::mem::take(&mut settling.cancel) && settling.attempt.is_some() {
            settling.answer_from = Some(cx.now + STOP_REPORT_TIME);
            self.state = State::Settling(settling);
            return NextStep::CancelUpstream;
        }
        if self.is_response_due(&settling, cx.now) {
            return self.answer_unknown(settling, cx);
        }
        if self.can_finish(&settling, cx.now) {
            return self.close(settling, cx);
        }
        self.state = State::Settling(settling);
        NextStep::Wait
    }

    /// Returns true if the caller gets its response now: it is final, or the caller's time is up.
    fn is_response_due(&self, settling: &SettlingOutcome, now: Timestamp) -> bool {
        self.caller.is_waiting()
            && settling.report_deadline().is_none_or(|until| until <= now)
            && (settling.is_settled(now) || !self.can_wait(settling.end(now), now))
    }

    /// Returns true if the caller has the time to wait for the end.
    fn can_wait(&self, end: SettleStatus, now: Timestamp) -> bool {
        let until = self.waits_until();
        match end {
            SettleStatus::Settled => true,
            SettleStatus::NotYet(Some(left)) => now + left <= until,
            SettleStatus::NotYet(None) => now < until,
        }
    }

    /// Returns the time until which the caller waits for the end of an attempt. A later response may miss it.
    fn waits_until(&self) -> Timestamp {
        let late = self.policy.dedupe.late_after;
        let limits = [self.patience(), self.request.limits.elapsed];
        let patience = limits.into_iter().flatten().fold(late, Duration::min);
        (self.arrived + patience).min(self.latest_start().unwrap_or(Timestamp::MAX))
    }

    /// Returns true if nothing more can become known about the attempt.
    fn can_finish(&self, settling: &SettlingOutcome, now: Timestamp) -> bool {
        !self.caller.is_waiting() && settling.attempt.is_none() && settling.by.is_some()
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
                Some(settling.report_deadline().map_or(total, |until| until.max(total)))
            }
        }
    }

    /// Returns the time at which something is due while the outcome settles.
    pub(super) fn settling_wakes_at(&self, settling: &SettlingOutcome) -> Option<Timestamp> {
        let waiting = self.caller.is_waiting();
        let answer_time = |at: Timestamp| settling.report_deadline().map_or(at, |until| until.max(at));
        let until = waiting.then(|| answer_time(self.waits_until()));
        let by = settling.by.filter(|_| waiting).map(answer_time);
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
    pub(super) fn handle_attempt_end(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        if settling.by.is_some() {
            return self.marked(settling, cx);
        }
        self.drop_attempt(&mut settling, cx);
        let after = self.policy.settling.after_child();
        let settles = if after.is_zero() { SettleDelay::Settled } else { SettleDelay::After(after) };
        self.mark(*settling, settles, cx)
    }

    /// Handles a result of the attempt that arrives after all.
    pub(super) fn ran_late(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        outcome: AttemptReport,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        if let Some(unsent) = self.unsent(&outcome, cx.now)
            && let Some(attempt) = settling.attempt.take()
        {
            return self.never_sent(attempt, unsent, cx);
        }
        match (settling.attempt.take(), outcome) {
            // A tool that asks for input, or was never reached, has done nothing.
            (
                Some(attempt),
                outcome @ (AttemptReport::Success { .. }
                | AttemptReport::InputRequired { .. }
                | AttemptReport::NotRun { .. }),
            ) => self.ran(attempt, outcome, cx),
            // A response to a cancellation is never that large.
            (Some(attempt), outcome) if outcome.is_too_large() => self.ran(attempt, outcome, cx),
            (attempt, _) => {
                settling.attempt = attempt;
                self.drop_attempt(&mut settling, cx);
                self.marked(settling, cx)
            }
        }
    }

    /// Stops waiting for the attempt.
    fn drop_attempt(&mut self, settling: &mut SettlingOutcome, cx: &mut StepContext<'_, '_>) {
        let Some(mut attempt) = settling.attempt.take() else { return };
        attempt.release_permits(cx.shared);
        self.handle_cut_end(&attempt, cx);
    }

    /// Handles a caller that cancels or disconnects. What has started is settled all the same.
    pub(super) fn left_settling(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        cancelled: Option<CallResult>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        match (self.caller, cancelled) {
            // Nothing more can become known about the attempt.
            (CallerState::Waiting, Some(result)) if settling.attempt.is_none() && settling.by.is_some() => {
                self.abandon(cx);
                let deferred = self.unsaved(&mut settling, cx.now);
                self.finish(result, deferred, cx)
            }
            (CallerState::Waiting, Some(result)) => {
                self.answer_early(State::Settling(settling), result, UpstreamSignal::NoSignal, cx.notices)
            }
            (_, _) => {
                self.caller.disconnect();
                self.marked(settling, cx)
            }
        }
    }

    /// Handles the end of the driver: other processes settle what is not settled by now.
    pub(super) fn handle_driver_end(
        &mut self,
        settling: Box<SettlingOutcome>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        self.close(settling, cx)
    }

    /// Answers the caller with what is known now, and continues if more can become known.
    fn answer_unknown(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let result = self.unknown_result(&settling, cx);
        if settling.attempt.is_none() && settling.by.is_some() {
            return self.finish(result, self.unsaved(&mut settling, cx.now), cx);
        }
        let step = self.answer_early(State::Settling(settling), result, UpstreamSignal::NoSignal, cx.notices);
        // Steadfast cut the attempt: a late result is not a response to a caller that cancelled.
        self.caller = CallerState::Gone;
        step
    }

    /// Ends a call whose caller was answered, or never will be.
    pub(super) fn close(
        &mut self,
        mut settling: Box<SettlingOutcome>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        self.drop_attempt(&mut settling, cx);
        let result = self.unknown_result(&settling, cx);
        let deferred = self.unsaved(&mut settling, cx.now);
        self.finish(result, deferred, cx)
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
                let child_end = settling.child_stop_time() + settling.after_child();
                SettleDelay::After(child_end.max(settling.linger))
            }
            settles @ (SettleDelay::After(_) | SettleDelay::Settled) => settles,
        };
        self.save_of(RunOutcome::Unknown(settling.ending(settles)))
            .map(DeferredWrite::Save)
            .into_iter()
            .collect()
    }

    /// Returns the response for the caller, counted once.
    fn unknown_result(&mut self, settling: &SettlingOutcome, cx: &mut StepContext<'_, '_>) -> CallResult {
        let end = settling.end(cx.now);
        let unknown = messages::UnknownOutcomeMessage {
            end,
            observed: settling.observed,
            words: settling.words.clone(),
            output: settling.output.clone(),
            runs_in: self.rerun_delay(),
        };
        let failure = messages::outcome_unknown(&self.request.reads, &self.policy, unknown);
        let failure = match &settling.reason {
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
            Some(UnknownOutcomeInfo { observed: settling.observed, is_final: end == SettleStatus::Settled });
        let result = CallResult { recorded, receipt, unknown, ..self.failed(failure, cx.now) };
        match settling.severity {
            Some(severity) => self.count_run(result, Some(severity), None, cx),
            None => self.count_response(result, cx),
        }
    }

    /// Returns the time after which the same call runs again after a final response, if the caller does not check
    /// before; `None` if it never does by itself.
    fn rerun_delay(&self) -> Option<Duration> {
        let hold = self.request.hints.safety_critical
            || self.policy.dedupe.after_unknown == UnknownOutcomePolicy::Hold;
        let keyless = self.request.address().is_some_and(|address| address.index().is_some());
        (keyless && !hold).then_some(self.policy.dedupe.after_telling)
    }

    /// Handles an unknown outcome of an earlier call.
    pub(super) fn found_unknown(
        &mut self,
        unsettled: UnknownOutcomeStatus,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        if unsettled.end != SettleStatus::Settled && self.can_wait(unsettled.end, cx.now) {
            let record = unsettled.receipt.key;
            let left = match unsettled.end {
                SettleStatus::NotYet(Some(left)) => left.min(LOOKUP_INTERVAL),
                SettleStatus::NotYet(None) | SettleStatus::Settled => LOOKUP_INTERVAL,
            };
            let look_at = (cx.now + left).min(self.waits_until());
            self.state = State::AwaitingEnd { record, look_at };
            return NextStep::AwaitEnd(record);
        }
        cx.notices.push(CallNotice::OutcomeUnknown { of_earlier: Some(unsettled.receipt.owner.clone()) });
        let result = CallResult::unknown(unsettled, &self.request.reads, &self.policy);
        let result = self.with_attempts(result, cx.now);
        self.conclude(result, cx)
    }
}

/// Time in which a tool that was asked to stop can report that it was never reached, before its caller gets an unknown
/// outcome.
const STOP_REPORT_TIME: Duration = Duration::from_millis(100);

/// Interval at which the store is asked again to record an unknown outcome.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the record is looked up: another process sees the end and does not notify this one.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(500);

//! Retry or stop: the decision after a failed attempt.

use super::context::StepContext;
use super::failure_response::FailureResponse;
use super::final_failure::StopReason;
use super::in_flight::AttemptInFlight;
use super::messages;
use super::notice::{CallNotice, ShadowDecision};
use super::settling_outcome::{GiveUpReason, SettlingOutcome, settles_after};
use super::state::{Call, State, StoreState};
use super::step::{CallResult, CutReason, NextStep, RecordStatus, RetriedAttempt, UnknownOutcomeInfo};
use crate::classify::{AttemptReach, Classification, FaultNature};
use crate::code::Code;
use crate::dedupe::{
    CallFailure, DedupeRecord, RunOutcome, SettleDelay, UnknownOutcomeReason, UnknownOutcomeReport,
};
use crate::policy::{EnforcementMode, FailureReplayPolicy};
use crate::retry::RetryStop;

impl Call {
    /// Decides after a failed attempt: another attempt, an unknown outcome, or the end.
    pub(super) fn failed_attempt(
        &mut self,
        attempt: &AttemptInFlight,
        response: FailureResponse,
        classified: Classification,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let proved_not_run = matches!(classified.reach, AttemptReach::NotSent | AttemptReach::Refused);
        if attempt.cut == Some(CutReason::Cancelled) && (self.may_be_cut() || proved_not_run) {
            self.abandon(cx);
            let result = self.failed(messages::cancelled(), cx.now);
            return self.release(result, Vec::new(), cx);
        }
        if self.may_have_run(&classified) && self.policy.modes.strongest() == EnforcementMode::Shadow {
            self.shadow_report.send(ShadowDecision::Failed(Code::OutcomeUnknown), cx.notices);
        }
        let lost = self.is_lost_with_host(attempt, &response, cx.now);
        if lost {
            self.abandon(cx);
        }
        let may_repeat = (proved_not_run || self.retry_safe) && !self.caller.has_cancelled() && !lost;
        let helps = classified.nature == FaultNature::Transient && may_repeat;
        let stop = if helps
            && matches!(self.store, StoreState::Available | StoreState::Down)
            && attempt.cut != Some(CutReason::TooLong)
        {
            // The response, if no further attempt may start after the wait.
            let failure = self.final_failure(response.clone(), &classified, None, attempt.cut, cx.now);
            self.last = Some((classified.clone(), failure));
            match self.retry(attempt, &classified, cx) {
                Ok(step) => return step,
                Err(stop) => Some(stop),
            }
        } else {
            None
        };
        if let Some(StopReason::Schedule(stop)) = stop {
            cx.notices.push(CallNotice::RetryStopped { stop });
        }
        if self.is_recorded() && (self.may_have_run(&classified) || self.is_response_to_cancel(&classified)) {
            return self.lost_unknown(response, classified, cx);
        }
        let observed = response.observed;
        let failure = self.final_failure(response, &classified, stop, attempt.cut, cx.now);
        // Without a record, the end of the attempt cannot be known.
        let unknown = (failure.code == Code::OutcomeUnknown)
            .then_some(UnknownOutcomeInfo { observed, is_final: false });
        let breaker = matches!(stop, Some(StopReason::Breaker(_)))
            .then(|| cx.shared.breaker.state(&self.policy.breaker, cx.now));
        let mut result = CallResult { breaker, unknown, ..self.failed(failure, cx.now) };
        if self.is_callers_limit(attempt, cx.now) {
            // Counted by the guard only.
            result = self.count_response(result, cx);
        }
        self.settle_failed(result, Some(&classified), cx)
    }

    /// Schedules another attempt, or returns the reason why there is none.
    pub(super) fn retry(
        &mut self,
        attempt: &AttemptInFlight,
        classified: &Classification,
        cx: &mut StepContext<'_, '_>,
    ) -> Result<NextStep, StopReason> {
        if self.policy.modes.retry == EnforcementMode::Off {
            return Err(StopReason::NotAsked);
        }
        let policy = &self.policy.retry;
        let schedule = self.schedule.as_mut().ok_or(StopReason::NotAsked)?;
        let next = schedule.next(policy, attempt.started, classified.retry_after, cx.now);
        if self.policy.modes.retry == EnforcementMode::Shadow {
            match next.map_err(|stop| self.final_code(stop, classified).0) {
                Ok(_) => self.shadow_report.send(ShadowDecision::Retried, cx.notices),
                Err(code) if code != classified.code => {
                    self.shadow_report.send(ShadowDecision::Failed(code), cx.notices)
                }
                Err(_) => {}
            }
            return Err(StopReason::NotAsked);
        }
        let until = next.map_err(StopReason::Schedule)?;
        if self.policy.modes.breaker == EnforcementMode::Enforce {
            let breakers = [Some(&*cx.shared.breaker), cx.shared.dependency.as_deref()];
            // A breaker that is open now and will still be open then refuses without a wait.
            let refused = breakers
                .into_iter()
                .flatten()
                .find_map(|breaker| breaker.check(&self.policy.breaker, until).err());
            if let Some(refused) = refused {
                return Err(StopReason::Breaker(refused));
            }
        }
        if !cx.shared.budget.withdraw(&self.policy.retry.budget, cx.now) {
            return Err(StopReason::Schedule(RetryStop::Budget));
        }
        cx.notices.push(CallNotice::RetryScheduled { attempt: self.attempts + 1, at: until });
        if self.retries.len() < DedupeRecord::MOST_ATTEMPTS {
            self.retries.push(RetriedAttempt {
                attempt: attempt.number,
                latency: cx.now.since(attempt.started),
                delay: until.since(cx.now),
                reason: classified.rule.clone(),
            });
        }
        self.state = State::BackingOff { until };
        Ok(NextStep::Wait)
    }

    /// Returns true if this is the tool's response to a cancellation: it is not a result of the call, and no other
    /// caller may get it.
    fn is_response_to_cancel(&self, classified: &Classification) -> bool {
        classified.reach == AttemptReach::Answered
            && classified.code != Code::ResultTooLarge
            && self.caller.has_cancelled()
            && !self.retry_safe
    }

    /// Handles an attempt that has ended with an unknown outcome.
    fn lost_unknown(
        &mut self,
        response: FailureResponse,
        classified: Classification,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        // A server that answers a cancellation may continue its work all the same.
        let is_response_to_cancel =
            self.caller.has_cancelled() && response.observed == UnknownOutcomeReason::ErrorAnswer;
        let settles = if is_response_to_cancel {
            SettleDelay::After(self.policy.settling.linger)
        } else {
            settles_after(self.request.end, response.observed, &self.policy.settling)
        };
        let reason = GiveUpReason::Rule(classified.rule.clone());
        let settling = SettlingOutcome {
            attempt: None,
            observed: response.observed,
            words: response.words().map(Into::into),
            output: response.output,
            severity: Some(classified.severity),
            reason,
            settles,
            by: None,
            cancel: false,
            receipt: None,
            answer_from: None,
            unsaved: false,
            save_at: None,
        };
        self.outcome_unknown(settling, settles, cx)
    }

    /// Ends a call whose time for another attempt passed during the wait.
    pub(super) fn too_late(&mut self, stop: RetryStop, cx: &mut StepContext<'_, '_>) -> NextStep {
        let Some((classified, failure)) = self.last.take() else { return self.give_up(cx) };
        let code = match stop {
            RetryStop::Deadline => Code::DeadlineExceeded,
            RetryStop::Attempts | RetryStop::TotalTime | RetryStop::RetryAfter(_) | RetryStop::Budget => {
                Code::RetryExhausted
            }
        };
        let message = messages::failed(code, self.attempts, failure.message.into_owned());
        let result = self.failed(CallFailure { code, message, ..failure }, cx.now);
        self.settle_failed(result, Some(&classified), cx)
    }

    /// Ends the call with the last failure: no further attempt may start in the name of this record.
    pub(super) fn give_up(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        let (classified, failure) = match self.last.take() {
            Some((classified, failure)) => (Some(classified), failure),
            None => (None, messages::store_unavailable(&self.request)),
        };
        let result = CallResult { recorded: RecordStatus::No, ..self.failed(failure, cx.now) };
        let result = match &classified {
            Some(Classification { severity, mistake, .. }) => {
                self.count_run(result, Some(*severity), *mistake, cx)
            }
            // The tool never ran.
            None => self.count_response(result, cx),
        };
        // A claim of a living process that is never released would stay for ever.
        let deferred = self.deferred_release().filter(|_| self.store != StoreState::FenceLost);
        self.finish(result, deferred.into_iter().collect(), cx)
    }

    /// Ends a failed call: an answer of the tool is stored, a run that may have happened has an unknown outcome, and
    /// the rest is released.
    fn settle_failed(
        &mut self,
        result: CallResult,
        classified: Option<&Classification>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let severity = classified.map(|classified| classified.severity);
        let mistake = classified.and_then(|classified| classified.mistake);
        let result = self.count_run(result, severity, mistake, cx);
        let Err(failure) = &result.outcome else { return self.finish(result, Vec::new(), cx) };
        let failure = as_stored(failure.clone(), classified);
        let is_too_large = classified.is_some_and(|classified| classified.code == Code::ResultTooLarge);
        match classified.map(|classified| classified.reach) {
            // Only if no other call finds it by its record.
            Some(AttemptReach::Unknown) if !self.retry_safe => {
                cx.notices.push(CallNotice::OutcomeUnknown { of_earlier: None });
                let unknown = UnknownOutcomeReport::settled(UnknownOutcomeReason::NoAnswer);
                self.save(result, RunOutcome::Unknown(unknown), cx)
            }
            // The tool has run, and a later call can be told no more than that.
            Some(AttemptReach::Answered) if is_too_large => self.save(result, RunOutcome::Done(None), cx),
            Some(AttemptReach::Answered) => self.save(result, RunOutcome::Failed(failure), cx),
            Some(AttemptReach::NotSent | AttemptReach::Refused | AttemptReach::Unknown) | None => {
                // Refusals by Steadfast are never stored. Transient failures of the tool are, if the policy says so.
                let is_stored =
                    classified.is_some() && self.policy.dedupe.cache_failures == FailureReplayPolicy::All;
                if is_stored {
                    self.save(result, RunOutcome::Failed(failure), cx)
                } else {
                    self.release(result, Vec::new(), cx)
                }
            }
        }
    }
}

/// Returns the failure as other callers may get it: the failure of the tool, without the effect of the breaker or of
/// this caller's deadline.
fn as_stored(failure: CallFailure, classified: Option<&Classification>) -> CallFailure {
    match (failure.code, classified) {
        (Code::CircuitOpen | Code::DeadlineExceeded, Some(classified)) => {
            CallFailure { code: classified.code, rule: Some(classified.rule.clone()), ..failure }
        }
        (_, Some(_) | None) => failure,
    }
}

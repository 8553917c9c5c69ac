//! The end of an attempt: its report, and the records in breakers, audit log and replay.

use super::context::StepContext;
use super::failure_response::FailureResponse;
use super::in_flight::AttemptInFlight;
use super::messages;
use super::notice::{CallNotice, FailedAttempt};
use super::recorded_attempt::{RecordedAttempt, RecordedFailureKind};
use super::request::RunnerKind;
use super::state::Call;
use super::step::{AttemptReport, BreakerScope, CutReason, NextStep};
use super::tickets::{Tickets, report_transition};
use crate::Timestamp;
use crate::breaker::{BreakerTicket, BreakerVerdict, CircuitBreaker};
use crate::classify::{AttemptFault, AttemptReach, Classification, FaultNature, FaultSource, classify};
use crate::dedupe::{AttemptRecord, CallFailure, DedupeRecord, RunOutcome};

impl Call {
    /// Continues with the report of an attempt.
    pub(super) fn ran(
        &mut self,
        mut attempt: AttemptInFlight,
        outcome: AttemptReport,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        attempt.release_permits(cx.shared);
        match outcome {
            AttemptReport::Success { output, concern } => {
                let result = self.result_digest(&output);
                let outcome = RecordedAttempt::of_success(&output, concern, result);
                self.record_success(&mut attempt, outcome, cx);
                let ending = RunOutcome::Done(
                    Some(output.clone()).filter(|output| output.len() <= self.policy.dedupe.largest_output),
                );
                let result = self.result(Ok(output), cx.now);
                let result = self.count_run(result, concern, None, cx);
                self.save(result, ending, cx)
            }
            // A tool that can ask for input is healthy. The requested work has not been done, so there is nothing to
            // store, nothing to trust it for, and nothing unknown. Calls that follow this run make their own claim: a
            // repeated question does no harm, and the state that comes with it may be valid for one caller only.
            AttemptReport::InputRequired { output } => {
                self.record_success(&mut attempt, RecordedAttempt::InputRequired, cx);
                self.ask_caller(output, cx)
            }
            AttemptReport::NotRun { fault } => {
                let (response, classified) = self.not_run(fault, cx.now);
                self.end_unstarted(attempt, &response, &classified, messages::cancelled(), cx)
            }
            AttemptReport::Failure { .. } if self.answers_our_cut(&attempt) && !outcome.is_too_large() => {
                let after = cx.now.since(attempt.started);
                let fault =
                    AttemptFault::new(FaultSource::Timeout { after }, "the tool did not answer in time");
                let classified = classify(&fault, &self.policy.classify, cx.now);
                self.record_failure(attempt, FailureResponse::of(fault, None), classified, cx)
            }
            AttemptReport::Failure { fault, output } => {
                let classified = classify(&fault, &self.policy.classify, cx.now);
                self.record_failure(attempt, FailureResponse::of(fault, output), classified, cx)
            }
            AttemptReport::Replayed(failed) => {
                let classified = failed.classified();
                let response = FailureResponse::remembered(&failed);
                match response.manner {
                    RecordedFailureKind::NotRun => {
                        self.end_unstarted(attempt, &response, &classified, messages::cancelled(), cx)
                    }
                    RecordedFailureKind::Plain
                    | RecordedFailureKind::TimedOut
                    | RecordedFailureKind::SessionLost => {
                        self.record_failure(attempt, response, classified, cx)
                    }
                }
            }
        }
    }

    /// Returns true if an error that arrives now only answers the cut by Steadfast. A remote host does not learn of the
    /// cut and reports what it observed itself.
    fn answers_our_cut(&self, attempt: &AttemptInFlight) -> bool {
        self.request.run_by != RunnerKind::Host
            && attempt.cut.is_some_and(|cut| cut != CutReason::Cancelled)
    }

    /// Returns the failure if the outcome says that the driver could not send the attempt.
    pub(super) fn unsent(
        &self,
        outcome: &AttemptReport,
        now: Timestamp,
    ) -> Option<(FailureResponse, Classification)> {
        match outcome {
            AttemptReport::Failure { fault, output: None } => {
                let not_run = self.not_run(fault.clone(), now);
                (not_run.1.reach == AttemptReach::NotSent).then_some(not_run)
            }
            AttemptReport::Replayed(failed) => {
                let unsent =
                    failed.manner == RecordedFailureKind::NotRun && self.request.run_by == RunnerKind::Driver;
                unsent.then(|| (FailureResponse::remembered(failed), failed.classified()))
            }
            AttemptReport::Failure { .. }
            | AttemptReport::Success { .. }
            | AttemptReport::InputRequired { .. }
            | AttemptReport::NotRun { .. } => None,
        }
    }

    /// Ends a call whose attempt was cut before it could be sent, and will not be sent.
    pub(super) fn never_sent(
        &mut self,
        attempt: AttemptInFlight,
        (response, classified): (FailureResponse, Classification),
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let failure = messages::never_sent(&self.request, &response.message);
        self.end_unstarted(attempt, &response, &classified, failure, cx)
    }

    /// Classifies a fault that proves that the tool did not run.
    fn not_run(&self, fault: AttemptFault, now: Timestamp) -> (FailureResponse, Classification) {
        let classified = classify(&fault, &self.policy.classify, now);
        (
            FailureResponse { manner: RecordedFailureKind::NotRun, ..FailureResponse::of(fault, None) },
            classified,
        )
    }

    /// Ends a call whose runner is gone, or could not send the attempt.
    fn end_unstarted(
        &mut self,
        mut attempt: AttemptInFlight,
        response: &FailureResponse,
        classified: &Classification,
        failure: CallFailure,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        attempt.release_permits(cx.shared);
        attempt.tickets.give_back(cx);
        let outcome = response.outcome(classified);
        self.attempt_ended(&attempt, Some((classified, response)), outcome, cx);
        self.put_off(cx);
        let result = self.failed(failure, cx.now);
        self.release(result, Vec::new(), cx)
    }

    /// Records a successful attempt, as far as its breakers are concerned.
    fn record_success(
        &mut self,
        attempt: &mut AttemptInFlight,
        outcome: RecordedAttempt,
        cx: &mut StepContext<'_, '_>,
    ) {
        let verdict = BreakerVerdict::Success { took: cx.now.since(attempt.started) };
        self.record_breakers(&mut attempt.tickets, Some(verdict), cx);
        self.attempt_ended(attempt, None, outcome, cx);
    }

    /// Records a failed attempt.
    fn record_failure(
        &mut self,
        mut attempt: AttemptInFlight,
        response: FailureResponse,
        classified: Classification,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let took = cx.now.since(attempt.started);
        let verdict = match (attempt.cut, classified.nature) {
            (Some(CutReason::Cancelled), _) => None,
            (Some(_), _) if self.is_callers_limit(&attempt, cx.now) => None,
            (Some(_), _) if self.is_lost_with_host(&attempt, &response, cx.now) => None,
            // A server that lost the session is alive, and the next attempt opens a new session. If that fails, the
            // failure counts.
            (Some(_) | None, FaultNature::Transient)
                if response.manner == RecordedFailureKind::SessionLost =>
            {
                Some(BreakerVerdict::Neutral)
            }
            (Some(_) | None, FaultNature::Transient) => Some(BreakerVerdict::Failure { took }),
            (Some(_) | None, FaultNature::Permanent) => Some(BreakerVerdict::Neutral),
        };
        self.record_breakers(&mut attempt.tickets, verdict, cx);
        let outcome = response.outcome(&classified);
        self.attempt_ended(&attempt, Some((&classified, &response)), outcome, cx);
        self.failed_attempt(&attempt, response, classified, cx)
    }

    /// Returns true if the attempt was cut and its host reported nothing: see [`Self::host_is_silent`].
    pub(super) fn is_lost_with_host(
        &self,
        attempt: &AttemptInFlight,
        response: &FailureResponse,
        now: Timestamp,
    ) -> bool {
        // A report that a host sends when it is asked to stop counts as any other.
        response.manner == RecordedFailureKind::TimedOut
            && attempt.cut.is_some()
            && self.host_is_silent(attempt, now)
    }

    /// Records the end of an attempt that was cut and has no result that counts.
    pub(super) fn cut_ended(&mut self, attempt: &AttemptInFlight, cx: &mut StepContext<'_, '_>) {
        let fault = AttemptFault::new(
            FaultSource::Timeout { after: cx.now.since(attempt.started) },
            "no answer came in time",
        );
        let classified = classify(&fault, &self.policy.classify, cx.now);
        let response = FailureResponse::of(fault, None);
        let outcome = response.outcome(&classified);
        self.attempt_ended(attempt, Some((&classified, &response)), outcome, cx);
    }

    /// Records the end of an attempt for the audit log and for a replay.
    fn attempt_ended(
        &mut self,
        attempt: &AttemptInFlight,
        failure: Option<(&Classification, &FailureResponse)>,
        outcome: RecordedAttempt,
        cx: &mut StepContext<'_, '_>,
    ) {
        self.trouble = failure.map(|(classified, response)| response.last_error(classified));
        // A replay starts from the first attempts; the record keeps the last ones, which show the end.
        if self.outcomes.len() < DedupeRecord::MOST_ATTEMPTS {
            self.outcomes.push(outcome);
        }
        if self.facts.len() == DedupeRecord::MOST_ATTEMPTS {
            self.facts.remove(0);
        }
        self.facts.push(AttemptRecord {
            number: attempt.number,
            code: failure.map(|(classified, _)| classified.code),
            started: attempt.started,
            finished: cx.now,
            rule: failure.map(|(classified, _)| classified.rule.clone()),
            retriable: failure.is_some_and(|(classified, _)| classified.nature == FaultNature::Transient),
        });
        cx.notices.push(CallNotice::AttemptEnded {
            attempt: attempt.number,
            took: cx.now.since(attempt.started),
            failure: failure.map(|(classified, response)| FailedAttempt {
                nature: classified.nature,
                reach: classified.reach,
                severity: classified.severity,
                rule: classified.rule.clone(),
                observed: response.observed,
                message: response.shown().into(),
            }),
        });
    }

    /// Returns the tickets of an attempt with its verdict; `None` if it says nothing about the tool.
    pub(super) fn record_breakers(
        &self,
        tickets: &mut Tickets,
        verdict: Option<BreakerVerdict>,
        cx: &mut StepContext<'_, '_>,
    ) {
        let mut give_back = |breaker: &mut CircuitBreaker, ticket: BreakerTicket, scope| {
            let probe = ticket.is_probe();
            let transition = match verdict {
                Some(verdict) => breaker.record(&self.policy.breaker, ticket, verdict, cx.now),
                None => {
                    breaker.release(ticket);
                    None
                }
            };
            if probe && transition.is_none() {
                cx.notices.push(CallNotice::ProbeMoved { scope });
            }
            report_transition(scope, transition, cx.notices);
        };
        if let Some(ticket) = tickets.tool.take() {
            give_back(cx.shared.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) =
            (tickets.dependency.take(), cx.shared.dependency.as_deref_mut())
        {
            give_back(breaker, ticket, BreakerScope::Dependency);
        }
    }
}

//! Attempts of a call: admission, outcome, and the decision about another attempt.

use std::borrow::Cow;

use std::time::Duration;

use super::failure_record::LastAttemptError;
use super::recorded_attempt::{RecordedAttempt, RecordedFailure, RecordedFailureKind};
use super::settling::{self, GiveUpReason, SettlingOutcome};
use super::step::RecordStatus;
use super::{
    ApprovalNeed, AttemptCommand, AttemptInFlight, AttemptReport, BreakerScope, Call, CallMechanisms,
    CallNotice, CallRefusal, CallResult, CallerPatience, CallerState, CutReason, FailedAttempt, NextStep,
    OtherWaiters, PermitState, RetriedAttempt, RunnerKind, ShadowDecision, State, StoreState, Tickets,
    UnknownOutcomeInfo, UpstreamSignal, messages,
};
use crate::Timestamp;
use crate::breaker::{BreakerTicket, BreakerTransition, BreakerVerdict, CircuitBreaker, TicketRenewal};
use crate::classify::{
    AttemptFault, AttemptReach, Classification, FaultNature, FaultSource, Severity, TransportError, classify,
};
use crate::code::Code;
use crate::dedupe::{
    AttemptRecord, CallFailure, DedupeRecord, RunOutcome, SettleDelay, UnknownOutcomeReason,
    UnknownOutcomeReport,
};
use crate::output::ToolOutput;
use crate::policy::{BreakerPolicy, EnforcementMode, FailureReplayPolicy, SilencePolicy};
use crate::retry::{RetrySchedule, RetryStop};
use crate::watchdog::{self, Watchdog};

impl Call {
    // ---- 4. admission ----

    /// Checks whether an attempt may start now. Every attempt passes here right before it is made, the first one too:
    /// the driver may have been frozen since the last step.
    fn may_start(&self, shared: &CallMechanisms<'_>, now: Timestamp) -> Result<(), AttemptObstacle> {
        // The caller was last known to be waiting. A run that others wait for continues without its first caller.
        if self.caller == CallerState::GaveUp {
            return Err(AttemptObstacle::Unwanted);
        }
        match self.store {
            StoreState::FenceLost | StoreState::MarkedUnknown => return Err(AttemptObstacle::NotOurs),
            StoreState::Available | StoreState::Down => {}
        }
        // After a silence longer than the lease, the owner first checks that the record is still its own.
        if self.record().is_some() && now >= self.lease_until {
            return Err(AttemptObstacle::LeaseOver);
        }
        match &self.schedule {
            None if self.is_late(now) && self.policy.modes.strongest() == EnforcementMode::Enforce => {
                return Err(AttemptObstacle::Late(RetryStop::Deadline));
            }
            None => {}
            Some(schedule) => schedule.may_start(now).map_err(AttemptObstacle::Late)?,
        }
        // The approval does not cover failures of the tool that became known after it.
        if self.policy.modes.trust == EnforcementMode::Enforce
            && !self.approved_blocked
            && Self::is_blocked(self.standing(shared, now))
        {
            return Err(AttemptObstacle::Blocked);
        }
        Ok(())
    }

    /// Makes the next attempt, if it may start.
    pub(super) fn attempt(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match self.may_start(shared, now) {
            Ok(()) => self.admitted(shared, now, notices),
            Err(hindrance) => self.handle_obstacle(shared, hindrance, now, notices),
        }
    }

    fn handle_obstacle(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        hindrance: AttemptObstacle,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match hindrance {
            AttemptObstacle::LeaseOver => {
                self.state = State::Renewing;
                NextStep::Renew
            }
            AttemptObstacle::NotOurs if self.attempts == 0 => self.lost_the_claim(shared, now, notices),
            AttemptObstacle::NotOurs => self.give_up(shared, now, notices),
            AttemptObstacle::Late(_) if self.attempts == 0 => {
                self.refuse(shared, CallRefusal::by_steadfast(messages::deadline_passed()), now, notices)
            }
            AttemptObstacle::Late(stop) => {
                notices.push(CallNotice::RetryStopped { stop });
                self.too_late(shared, stop, now, notices)
            }
            AttemptObstacle::Unwanted => {
                self.abandon(shared, now, notices);
                let result = self.failed(messages::cancelled(), now);
                self.release(result, Vec::new(), now, notices)
            }
            AttemptObstacle::Blocked => {
                let refusal = match self.need(shared, now) {
                    ApprovalNeed::Refuse(refusal) => *refusal,
                    ApprovalNeed::Ask(ask) => CallRefusal::trust(&self.request, ask),
                    ApprovalNeed::NotNeeded | ApprovalNeed::Spend(_) => {
                        CallRefusal::by_steadfast(messages::approval_lost(&self.request))
                    }
                };
                if self.attempts == 0 {
                    self.refuse(shared, refusal, now, notices)
                } else {
                    self.refused_again(shared, refusal, now, notices)
                }
            }
        }
    }

    /// Admits the attempt if limits and breaker allow it.
    fn admitted(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let tickets = match self.admit(shared, now, notices) {
            Ok(tickets) => tickets,
            Err(refusal) if self.attempts == 0 => return self.refuse(shared, *refusal, now, notices),
            Err(refusal) => return self.refused_again(shared, *refusal, now, notices),
        };
        match tickets.first_probe().filter(|_| self.policy.modes.breaker == EnforcementMode::Enforce) {
            Some(scope) => self.probe(scope, tickets),
            None => self.start_attempt(shared, tickets, now, notices),
        }
    }

    /// Ends the call because another attempt is refused. The response and trust are about what the tool did before.
    fn refused_again(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        refusal: CallRefusal,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let CallRefusal { failure, breaker, .. } = refusal;
        let (severity, failure) = match self.last.take() {
            None => (None, failure),
            Some((classified, last)) => {
                let message = messages::failed(failure.code, self.attempts, last.message.into_owned());
                (Some(classified.severity), CallFailure { message, output: last.output, ..failure })
            }
        };
        let result = CallResult { breaker, ..self.failed(failure, now) };
        let result = self.judge_run(shared, result, severity, None, now, notices);
        self.release(result, Vec::new(), now, notices)
    }

    /// Records the probe in the store before it is sent: all processes that share the breaker have one probe.
    fn probe(&mut self, scope: BreakerScope, tickets: Tickets) -> NextStep {
        self.state = State::Probing { scope, tickets };
        NextStep::Probe(scope)
    }

    /// Continues after the store has recorded the probe, or could not be reached.
    pub(super) fn probed(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        scope: BreakerScope,
        tickets: Tickets,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if self.may_start(shared, now).is_err() || !tickets.hold(&self.policy.breaker, shared, now) {
            self.step_back(shared, tickets, notices);
            return self.attempt(shared, now, notices);
        }
        match scope {
            BreakerScope::Tool if tickets.dependency.as_ref().is_some_and(BreakerTicket::is_probe) => {
                self.probe(BreakerScope::Dependency, tickets)
            }
            BreakerScope::Tool | BreakerScope::Dependency => {
                self.start_attempt(shared, tickets, now, notices)
            }
        }
    }

    /// Returns what was taken for an attempt that is not made.
    pub(super) fn step_back(
        &self,
        shared: &mut CallMechanisms<'_>,
        mut tickets: Tickets,
        notices: &mut Vec<CallNotice>,
    ) {
        tickets.release(shared, notices);
        if tickets.permits == PermitState::Taken {
            shared.limiter.withdraw();
            shared.dependency_limiter.withdraw();
        }
    }

    /// Makes the attempt. Every check has passed.
    fn start_attempt(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        tickets: Tickets,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if self.schedule.is_none() {
            shared.budget.deposit(&self.policy.retry.budget, now);
            self.schedule = Some(RetrySchedule::new(
                &self.policy.retry,
                &self.request.limits,
                Some(self.policy.time.latest_retry()),
                self.seed,
                now,
            ));
        }
        let first = *self.first_attempt.get_or_insert(now);
        self.attempts += 1;
        notices.push(CallNotice::AttemptStarted { attempt: self.attempts, at: now });
        // A shadow record does not pass on the run of an owner that is gone.
        let record = self.record.as_ref().filter(|_| self.dedupe() == EnforcementMode::Enforce);
        let run = record.map_or(&self.request.run, |record| &record.run).clone();
        let rest = self.policy.modes.strongest();
        let watchdog = (rest != EnforcementMode::Off).then(|| self.watchdog(first, now));
        let deadline = self.request.limits.deadline.filter(|_| rest != EnforcementMode::Off);
        let attempt =
            AttemptInFlight { number: self.attempts, started: now, watchdog, deadline, tickets, cut: None };
        let limits = attempt.watchdog.map(|watchdog| watchdog.due()).into_iter().chain(deadline);
        let latest = limits.min().filter(|_| rest == EnforcementMode::Enforce);
        self.state = State::Attempting(attempt);
        NextStep::Run(AttemptCommand { attempt: self.attempts, deadline: latest, run })
    }

    /// Returns the watchdog of one attempt: silence counts per attempt, the total time per call.
    fn watchdog(&self, first: Timestamp, now: Timestamp) -> Watchdog {
        let mut time = self.policy.time;
        time.attempt = time.attempt.min(self.request.limits.attempt.unwrap_or(time.attempt));
        time.total = time.total.saturating_sub(now.since(first));
        Watchdog::new(&time, now)
    }

    fn admit(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> Result<Tickets, Box<CallRefusal>> {
        let rest = self.policy.modes.strongest();
        if rest == EnforcementMode::Off {
            return Ok(Tickets::default());
        }
        let places = match self.take_places(shared, now) {
            Ok(()) => PermitState::Taken,
            Err(overloaded) => {
                match self.enforce_or_report(rest, CallRefusal::by_steadfast(overloaded), notices) {
                    Some(refusal) => return Err(Box::new(refusal)),
                    None => PermitState::NotAsked,
                }
            }
        };
        let admitted = self.admit_breakers(shared, now, notices);
        if admitted.is_err() && places == PermitState::Taken {
            shared.limiter.withdraw();
            shared.dependency_limiter.withdraw();
        }
        admitted.map(|tickets| Tickets { permits: places, ..tickets })
    }

    /// Takes a permit of the tool's limits, and one of the dependency's limits.
    fn take_places(&self, shared: &mut CallMechanisms<'_>, now: Timestamp) -> Result<(), CallFailure> {
        let request = &self.request;
        shared
            .limiter
            .try_acquire(&self.policy.limits, now)
            .map_err(|overloaded| messages::overloaded(request, overloaded, now))?;
        shared.dependency_limiter.try_acquire(&self.policy.dependency_limits, now).map_err(|overloaded| {
            shared.limiter.withdraw();
            messages::dependency_overloaded(request, overloaded, now)
        })
    }

    fn admit_breakers(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> Result<Tickets, Box<CallRefusal>> {
        if self.policy.modes.breaker == EnforcementMode::Off {
            return Ok(Tickets::default());
        }
        let mut tickets = Tickets::default();
        let policy = &self.policy.breaker;
        let refused = match shared.breaker.admit(policy, now) {
            Err(refused) => Some(refused),
            Ok((ticket, transition)) => {
                tickets.tool = Some(ticket);
                report_transition(BreakerScope::Tool, transition, notices);
                match shared.dependency.as_deref_mut().map(|breaker| breaker.admit(policy, now)) {
                    None => None,
                    Some(Err(refused)) => Some(refused),
                    Some(Ok((ticket, transition))) => {
                        tickets.dependency = Some(ticket);
                        report_transition(BreakerScope::Dependency, transition, notices);
                        None
                    }
                }
            }
        };
        let Some(refused) = refused else { return Ok(tickets) };
        tickets.release(shared, notices);
        let refusal = self.circuit_open(refused, now);
        match self.enforce_or_report(self.policy.modes.breaker, refusal, notices) {
            Some(refusal) => Err(Box::new(refusal)),
            None => Ok(Tickets::default()),
        }
    }

    // ---- 5. while it runs ----

    pub(super) fn attempt_wakes_at(&self, attempt: &AttemptInFlight) -> Option<Timestamp> {
        let watchdog = attempt.watchdog.filter(|_| attempt.cut.is_none())?;
        let waiting = self.caller == CallerState::Waiting;
        let answer_by = self.answer_by().filter(|_| waiting);
        let limits = [attempt.deadline.filter(|_| waiting), answer_by];
        let due = limits.into_iter().flatten().fold(watchdog.due(), Timestamp::min);
        if self.shadow_reported { self.ended_from(&watchdog).map(|from| from.max(due)) } else { Some(due) }
    }

    /// Returns the time from which an attempt may be ended when its time is up. While the caller waits, shadow mode
    /// ends nothing. The silence of a host that runs the tool shows that it is gone, after the call has used all its
    /// time.
    fn ended_from(&self, watchdog: &Watchdog) -> Option<Timestamp> {
        if self.caller != CallerState::Waiting || !self.policy.modes.is_pass_through() {
            return Some(Timestamp::ZERO);
        }
        match self.request.run_by {
            RunnerKind::Driver => None,
            RunnerKind::Host => Some(watchdog.total_at().max(watchdog.silent_at())),
        }
    }

    /// Returns true if the attempt may be cut without an open outcome: it may run again, or no record of it is kept.
    fn may_be_cut(&self) -> bool {
        self.retry_safe || self.record.is_none() || self.dedupe() != EnforcementMode::Enforce
    }

    /// Returns the time at which the caller gets the response that the call is still running. Only if calling again
    /// finds the result. In shadow mode, the time at which that response would have been sent.
    fn answer_by(&self) -> Option<Timestamp> {
        let found_again = match self.dedupe() {
            EnforcementMode::Off => false,
            EnforcementMode::Shadow => !self.shadow_reported,
            EnforcementMode::Enforce => true,
        };
        self.patience().filter(|_| found_again && self.record.is_some()).map(|span| self.arrived + span)
    }

    /// Returns the time for which the caller waits, unless it is known to wait longer.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.request.waits {
            CallerPatience::MayGiveUp => self.policy.time.answer_by,
            CallerPatience::UntilDone => None,
        }
    }

    /// Extends the watchdog and keeps the probe permit on a sign of life.
    pub(super) fn progressed(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut attempt: AttemptInFlight,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if let Some(watchdog) = &mut attempt.watchdog {
            watchdog.progress(now);
        }
        let mut renew = |breaker: &mut CircuitBreaker, ticket, scope| match breaker.renew(
            &self.policy.breaker,
            ticket,
            now,
        ) {
            TicketRenewal::Extended => notices.push(CallNotice::ProbeMoved { scope }),
            TicketRenewal::StillValid | TicketRenewal::Lost => {}
        };
        if let Some(ticket) = &attempt.tickets.tool {
            renew(shared.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) = (&attempt.tickets.dependency, shared.dependency.as_deref_mut())
        {
            renew(breaker, ticket, BreakerScope::Dependency);
        }
        self.stay(State::Attempting(attempt))
    }

    pub(super) fn check_limits(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut attempt: AttemptInFlight,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let waiting = self.caller == CallerState::Waiting;
        let Some(watchdog) = attempt.watchdog.filter(|_| attempt.cut.is_none()) else {
            return self.stay(State::Attempting(attempt));
        };
        let cut = match watchdog.verdict(now) {
            watchdog::WatchdogVerdict::TotalLimit => Some(CutReason::TooLong),
            _ if waiting && attempt.deadline.is_some_and(|deadline| deadline <= now) => {
                Some(CutReason::Deadline)
            }
            watchdog::WatchdogVerdict::Stuck => Some(CutReason::Silent(now.since(attempt.started))),
            watchdog::WatchdogVerdict::Fine { .. } => None,
        };
        match cut {
            Some(_) if self.ended_from(&watchdog).is_none_or(|from| now < from) => {
                self.report_shadow_decision(ShadowDecision::Cut, notices);
                self.stay(State::Attempting(attempt))
            }
            Some(cut) if self.may_be_cut() => {
                notices.push(CallNotice::AttemptCut { cut });
                attempt.cut = Some(cut);
                self.state = State::Attempting(attempt);
                NextStep::Cut(cut)
            }
            // The deadline of one caller does not stop a run within the limits of its tool: calling again finds it.
            Some(CutReason::Deadline) => {
                let unknown =
                    Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::NoAnswer, ended: false });
                let result = self.failed(messages::deadline_while_running(&self.policy), now);
                let result = CallResult { unknown, ..result };
                let result = self.judge(shared, result, now, notices);
                self.answer_early(State::Attempting(attempt), result, UpstreamSignal::NoSignal, notices)
            }
            Some(cut) => self.cut_unknown(shared, attempt, cut, now, notices),
            None if waiting && self.answer_by().is_some_and(|answer_by| answer_by <= now) => {
                if self.dedupe() == EnforcementMode::Shadow {
                    self.report_shadow_decision(ShadowDecision::Failed(Code::InFlight), notices);
                    return self.stay(State::Attempting(attempt));
                }
                let result = self.failed(messages::in_flight(), now);
                self.answer_early(State::Attempting(attempt), result, UpstreamSignal::NoSignal, notices)
            }
            None => self.stay(State::Attempting(attempt)),
        }
    }

    /// Cuts an attempt that must not be repeated while its outcome is unknown.
    fn cut_unknown(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut attempt: AttemptInFlight,
        cut: CutReason,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let took = now.since(attempt.started);
        let silent = self.host_is_silent(&attempt, now);
        if silent {
            self.abandon(shared, now, notices);
        }
        attempt.cut = Some(cut);
        // A host that is gone proves nothing about the tool.
        let counts = !silent && !self.is_callers_limit(&attempt, now);
        let verdict = if counts { Some(BreakerVerdict::Failure { took }) } else { None };
        self.record_breakers(shared, &mut attempt.tickets, verdict, now, notices);
        notices.push(CallNotice::AttemptCut { cut });
        let settling = SettlingOutcome {
            attempt: Some(attempt),
            observed: UnknownOutcomeReason::NoAnswer,
            words: None,
            output: None,
            severity: counts.then_some(Severity::Timeout),
            why: GiveUpReason::Cut(cut),
            settles: SettleDelay::WhenOwnerReports,
            by: None,
            cancel: true,
            receipt: None,
            told_from: None,
            unsaved: false,
            save_at: None,
        };
        let settles =
            settling::settles_after(self.request.end, UnknownOutcomeReason::NoAnswer, &self.policy.settling);
        self.outcome_unknown(shared, settling, settles, now, notices)
    }

    /// Records the end of an attempt that was cut and has no result that counts.
    pub(super) fn cut_ended(
        &mut self,
        attempt: &AttemptInFlight,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) {
        let fault = AttemptFault::new(
            FaultSource::Timeout { after: now.since(attempt.started) },
            "no answer came in time",
        );
        let classified = classify(&fault, &self.policy.classify, now);
        let said = FailureResponse::of(fault, None);
        let outcome = said.outcome(&classified);
        self.attempt_ended(attempt, Some((&classified, &said)), outcome, now, notices);
    }

    pub(super) fn cancel_attempt(
        &mut self,
        mut attempt: AttemptInFlight,
        result: CallResult,
        others: OtherWaiters,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match others {
            // The attempt is being ended already, or its caller was answered: nothing is left to cancel.
            OtherWaiters::None if attempt.cut.is_some() => {
                self.caller = CallerState::GaveUp;
                self.stay(State::Attempting(attempt))
            }
            OtherWaiters::Waiting if attempt.cut.is_some() => self.stay(State::Attempting(attempt)),
            OtherWaiters::Waiting if self.caller != CallerState::Waiting => {
                self.stay(State::Attempting(attempt))
            }
            OtherWaiters::Waiting => {
                self.answer_early(State::Attempting(attempt), result, UpstreamSignal::NoSignal, notices)
            }
            OtherWaiters::None if self.may_be_cut() => {
                self.caller = CallerState::GaveUp;
                notices.push(CallNotice::AttemptCut { cut: CutReason::Cancelled });
                attempt.cut = Some(CutReason::Cancelled);
                self.state = State::Attempting(attempt);
                NextStep::Cut(CutReason::Cancelled)
            }
            OtherWaiters::None => match self.caller {
                CallerState::Waiting => {
                    self.answer_early(State::Attempting(attempt), result, UpstreamSignal::Cancel, notices)
                }
                // The first caller left before; now the last one has.
                CallerState::Gone => {
                    self.caller = CallerState::GaveUp;
                    self.state = State::Attempting(attempt);
                    NextStep::CancelUpstream
                }
                CallerState::GaveUp => self.stay(State::Attempting(attempt)),
            },
        }
    }

    // ---- 6. outcome ----

    pub(super) fn ran(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut attempt: AttemptInFlight,
        outcome: AttemptReport,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        attempt.release_permits(shared);
        match outcome {
            AttemptReport::Success { output, concern } => {
                let result = self.result_digest(&output);
                let outcome = RecordedAttempt::of_success(&output, concern, result);
                self.record_success(shared, &mut attempt, outcome, now, notices);
                let ending = RunOutcome::Done(
                    Some(output.clone()).filter(|output| output.len() <= self.policy.dedupe.largest_output),
                );
                let result = self.result(Ok(output), now);
                let result = self.judge_run(shared, result, concern, None, now, notices);
                self.save(result, ending, now, notices)
            }
            // A tool that can ask for input is healthy. The requested work has not been done, so there is nothing to
            // store, nothing to trust it for, and nothing unknown. Calls that follow this run make their own claim: a
            // repeated question does no harm, and the state that comes with it may be valid for one caller only.
            AttemptReport::InputRequired { output } => {
                self.record_success(shared, &mut attempt, RecordedAttempt::InputRequired, now, notices);
                self.ask_caller(shared, output, now, notices)
            }
            AttemptReport::NotRun { fault } => {
                let (said, classified) = self.not_run(fault, now);
                self.end_unstarted(shared, attempt, &said, &classified, messages::cancelled(), now, notices)
            }
            AttemptReport::Failure { .. } if self.answers_our_cut(&attempt) && !outcome.is_too_large() => {
                let after = now.since(attempt.started);
                let fault =
                    AttemptFault::new(FaultSource::Timeout { after }, "the tool did not answer in time");
                let classified = classify(&fault, &self.policy.classify, now);
                self.record_failure(
                    shared,
                    attempt,
                    FailureResponse::of(fault, None),
                    classified,
                    now,
                    notices,
                )
            }
            AttemptReport::Failure { fault, output } => {
                let classified = classify(&fault, &self.policy.classify, now);
                self.record_failure(
                    shared,
                    attempt,
                    FailureResponse::of(fault, output),
                    classified,
                    now,
                    notices,
                )
            }
            AttemptReport::Replayed(failed) => {
                let classified = failed.classified();
                let said = FailureResponse::remembered(&failed);
                match said.manner {
                    RecordedFailureKind::NotRun => self.end_unstarted(
                        shared,
                        attempt,
                        &said,
                        &classified,
                        messages::cancelled(),
                        now,
                        notices,
                    ),
                    RecordedFailureKind::Plain
                    | RecordedFailureKind::TimedOut
                    | RecordedFailureKind::SessionLost => {
                        self.record_failure(shared, attempt, said, classified, now, notices)
                    }
                }
            }
        }
    }

    /// Returns true if an error that arrives now only answers the cut by Steadfast. A host reports what it observed
    /// itself.
    fn answers_our_cut(&self, attempt: &AttemptInFlight) -> bool {
        self.request.run_by == RunnerKind::Driver
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
                let heard = self.not_run(fault.clone(), now);
                (heard.1.reach == AttemptReach::NotSent).then_some(heard)
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
        shared: &mut CallMechanisms<'_>,
        attempt: AttemptInFlight,
        (said, classified): (FailureResponse, Classification),
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let failure = messages::never_sent(&self.request, &said.message);
        self.end_unstarted(shared, attempt, &said, &classified, failure, now, notices)
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
    #[expect(clippy::too_many_arguments, reason = "the facts of one attempt, named once")]
    fn end_unstarted(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut attempt: AttemptInFlight,
        said: &FailureResponse,
        classified: &Classification,
        failure: CallFailure,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        attempt.release_permits(shared);
        attempt.tickets.release(shared, notices);
        let outcome = said.outcome(classified);
        self.attempt_ended(&attempt, Some((classified, said)), outcome, now, notices);
        self.put_off(shared, now);
        let result = self.failed(failure, now);
        self.release(result, Vec::new(), now, notices)
    }

    /// Records a failed attempt.
    fn record_failure(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut attempt: AttemptInFlight,
        said: FailureResponse,
        classified: Classification,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let took = now.since(attempt.started);
        let verdict = match (attempt.cut, classified.nature) {
            (Some(CutReason::Cancelled), _) => None,
            (Some(_), _) if self.is_callers_limit(&attempt, now) => None,
            (Some(_), _) if self.is_lost_with_host(&attempt, &said, now) => None,
            // A server that lost the session is alive, and the next attempt opens a new session. If that fails, the
            // failure counts.
            (Some(_) | None, FaultNature::Transient) if said.manner == RecordedFailureKind::SessionLost => {
                Some(BreakerVerdict::Neutral)
            }
            (Some(_) | None, FaultNature::Transient) => Some(BreakerVerdict::Failure { took }),
            (Some(_) | None, FaultNature::Permanent) => Some(BreakerVerdict::Neutral),
        };
        self.record_breakers(shared, &mut attempt.tickets, verdict, now, notices);
        let outcome = said.outcome(&classified);
        self.attempt_ended(&attempt, Some((&classified, &said)), outcome, now, notices);
        self.failed_attempt(shared, &attempt, said, classified, now, notices)
    }

    /// Returns true if a limit of the caller cut the attempt within the time of the tool, which says nothing about the
    /// tool.
    fn is_callers_limit(&self, attempt: &AttemptInFlight, now: Timestamp) -> bool {
        let time = &self.policy.time;
        let heard = attempt.watchdog.map_or(attempt.started, |watchdog| watchdog.last_sign());
        attempt.cut.is_some() && now.since(heard) < time.attempt && now.since(attempt.started) < time.total
    }

    /// Returns true if the attempt was cut and its host reported nothing: see [`Self::host_is_silent`].
    fn is_lost_with_host(&self, attempt: &AttemptInFlight, said: &FailureResponse, now: Timestamp) -> bool {
        // A report that a host sends when it is asked to stop counts as any other.
        said.manner == RecordedFailureKind::TimedOut
            && attempt.cut.is_some()
            && self.host_is_silent(attempt, now)
    }

    /// Returns true if the host that runs this attempt may be gone. A host that is alive reports, its own timeouts too,
    /// or shows signs of life. Its silence says nothing about the tool, so neither breaker nor trust counts it, and
    /// there is no host left for another attempt.
    fn host_is_silent(&self, attempt: &AttemptInFlight, now: Timestamp) -> bool {
        match self.request.run_by {
            RunnerKind::Driver => false,
            RunnerKind::Host => {
                !attempt.watchdog.is_some_and(|watchdog| watchdog.shows_life(attempt.started, now))
            }
        }
    }

    /// Records a successful attempt, as far as its breakers are concerned.
    fn record_success(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        attempt: &mut AttemptInFlight,
        outcome: RecordedAttempt,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) {
        let verdict = BreakerVerdict::Success { took: now.since(attempt.started) };
        self.record_breakers(shared, &mut attempt.tickets, Some(verdict), now, notices);
        self.attempt_ended(attempt, None, outcome, now, notices);
    }

    fn attempt_ended(
        &mut self,
        attempt: &AttemptInFlight,
        failure: Option<(&Classification, &FailureResponse)>,
        outcome: RecordedAttempt,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) {
        self.trouble = failure.map(|(classified, said)| LastAttemptError {
            rule: classified.rule.clone(),
            message: said.shown().into(),
            http_status: said.status,
            transient: classified.nature == FaultNature::Transient,
        });
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
            finished: now,
            rule: failure.map(|(classified, _)| classified.rule.clone()),
            retriable: failure.is_some_and(|(classified, _)| classified.nature == FaultNature::Transient),
        });
        notices.push(CallNotice::AttemptEnded {
            attempt: attempt.number,
            took: now.since(attempt.started),
            failure: failure.map(|(classified, said)| FailedAttempt {
                nature: classified.nature,
                reach: classified.reach,
                severity: classified.severity,
                rule: classified.rule.clone(),
                observed: said.observed,
                said: said.shown().into(),
            }),
        });
    }

    fn record_breakers(
        &self,
        shared: &mut CallMechanisms<'_>,
        tickets: &mut Tickets,
        verdict: Option<BreakerVerdict>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) {
        let mut give_back = |breaker: &mut CircuitBreaker, ticket: BreakerTicket, scope| {
            let probe = ticket.is_probe();
            let transition = match verdict {
                Some(verdict) => breaker.record(&self.policy.breaker, ticket, verdict, now),
                None => {
                    breaker.release(ticket);
                    None
                }
            };
            if probe && transition.is_none() {
                notices.push(CallNotice::ProbeMoved { scope });
            }
            report_transition(scope, transition, notices);
        };
        if let Some(ticket) = tickets.tool.take() {
            give_back(shared.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) = (tickets.dependency.take(), shared.dependency.as_deref_mut()) {
            give_back(breaker, ticket, BreakerScope::Dependency);
        }
    }

    // ---- 7. retry or stop ----

    fn failed_attempt(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        attempt: &AttemptInFlight,
        said: FailureResponse,
        classified: Classification,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let proved_not_run = matches!(classified.reach, AttemptReach::NotSent | AttemptReach::Refused);
        if attempt.cut == Some(CutReason::Cancelled) && (self.may_be_cut() || proved_not_run) {
            self.abandon(shared, now, notices);
            let result = self.failed(messages::cancelled(), now);
            return self.release(result, Vec::new(), now, notices);
        }
        if self.may_have_run(&classified) && self.policy.modes.strongest() == EnforcementMode::Shadow {
            self.report_shadow_decision(ShadowDecision::Failed(Code::OutcomeUnknown), notices);
        }
        let lost = self.is_lost_with_host(attempt, &said, now);
        if lost {
            self.abandon(shared, now, notices);
        }
        let may_repeat = (proved_not_run || self.retry_safe) && self.caller != CallerState::GaveUp && !lost;
        let helps = classified.nature == FaultNature::Transient && may_repeat;
        let stop = if helps
            && matches!(self.store, StoreState::Available | StoreState::Down)
            && attempt.cut != Some(CutReason::TooLong)
        {
            // The response, if no further attempt may start after the wait.
            let failure = self.final_failure(said.clone(), &classified, None, attempt.cut, now);
            self.last = Some((classified.clone(), failure));
            match self.retry(shared, attempt, &classified, now, notices) {
                Ok(step) => return step,
                Err(stop) => Some(stop),
            }
        } else {
            None
        };
        if let Some(StopReason::Schedule(stop)) = stop {
            notices.push(CallNotice::RetryStopped { stop });
        }
        if self.is_recorded() && (self.may_have_run(&classified) || self.answers_our_cancel(&classified)) {
            return self.lost_unknown(shared, said, classified, now, notices);
        }
        let observed = said.observed;
        let failure = self.final_failure(said, &classified, stop, attempt.cut, now);
        // Without a record, the end of the attempt cannot be known.
        let unknown =
            (failure.code == Code::OutcomeUnknown).then_some(UnknownOutcomeInfo { observed, ended: false });
        let breaker = matches!(stop, Some(StopReason::Breaker(_)))
            .then(|| shared.breaker.state(&self.policy.breaker, now));
        let mut result = CallResult { breaker, unknown, ..self.failed(failure, now) };
        if self.is_callers_limit(attempt, now) {
            // Counted by the guard only.
            result = self.judge(shared, result, now, notices);
            self.judged = true;
        }
        self.settle_failed(shared, result, Some(&classified), now, notices)
    }

    /// Returns true if other calls find this run by its record.
    fn is_recorded(&self) -> bool {
        self.record.is_some() && self.dedupe() == EnforcementMode::Enforce
    }

    /// Returns true if this is the tool's response to a cancellation: it is not a result of the call, and no other
    /// caller may get it.
    fn answers_our_cancel(&self, classified: &Classification) -> bool {
        classified.reach == AttemptReach::Answered
            && classified.code != Code::ResultTooLarge
            && self.caller == CallerState::GaveUp
            && !self.retry_safe
    }

    /// Handles an attempt that has ended with an unknown outcome.
    fn lost_unknown(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        said: FailureResponse,
        classified: Classification,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        // A server that answers a cancellation may continue its work all the same.
        let answers_our_cancel =
            self.caller == CallerState::GaveUp && said.observed == UnknownOutcomeReason::ErrorAnswer;
        let settles = if answers_our_cancel {
            SettleDelay::After(self.policy.settling.linger)
        } else {
            settling::settles_after(self.request.end, said.observed, &self.policy.settling)
        };
        let why = GiveUpReason::Rule(classified.rule.clone());
        let settling = SettlingOutcome {
            attempt: None,
            observed: said.observed,
            words: said.words().map(Into::into),
            output: said.output,
            severity: Some(classified.severity),
            why,
            settles,
            by: None,
            cancel: false,
            receipt: None,
            told_from: None,
            unsaved: false,
            save_at: None,
        };
        self.outcome_unknown(shared, settling, settles, now, notices)
    }

    /// Schedules another attempt, or returns the reason why there is none.
    fn retry(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        attempt: &AttemptInFlight,
        classified: &Classification,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> Result<NextStep, StopReason> {
        if self.policy.modes.retry == EnforcementMode::Off {
            return Err(StopReason::NotAsked);
        }
        let policy = &self.policy.retry;
        let schedule = self.schedule.as_mut().ok_or(StopReason::NotAsked)?;
        let next = schedule.next(policy, attempt.started, classified.retry_after, now);
        if self.policy.modes.retry == EnforcementMode::Shadow {
            match next.map_err(|stop| self.final_code(stop, classified).0) {
                Ok(_) => self.report_shadow_decision(ShadowDecision::Retried, notices),
                Err(code) if code != classified.code => {
                    self.report_shadow_decision(ShadowDecision::Failed(code), notices)
                }
                Err(_) => {}
            }
            return Err(StopReason::NotAsked);
        }
        let until = next.map_err(StopReason::Schedule)?;
        if self.policy.modes.breaker == EnforcementMode::Enforce {
            let breakers = [Some(&*shared.breaker), shared.dependency.as_deref()];
            // A breaker that is open now and will still be open then refuses without a wait.
            let refused = breakers
                .into_iter()
                .flatten()
                .find_map(|breaker| breaker.check(&self.policy.breaker, until).err());
            if let Some(refused) = refused {
                return Err(StopReason::Breaker(refused));
            }
        }
        if !shared.budget.withdraw(&self.policy.retry.budget, now) {
            return Err(StopReason::Schedule(RetryStop::Budget));
        }
        notices.push(CallNotice::RetryScheduled { attempt: self.attempts + 1, at: until });
        if self.retries.len() < DedupeRecord::MOST_ATTEMPTS {
            self.retries.push(RetriedAttempt {
                attempt: attempt.number,
                latency: now.since(attempt.started),
                delay: until.since(now),
                reason: classified.rule.clone(),
            });
        }
        self.state = State::BackingOff { until };
        Ok(NextStep::Wait)
    }

    /// Returns the failure for the caller.
    fn final_failure(
        &self,
        said: FailureResponse,
        classified: &Classification,
        stop: Option<StopReason>,
        cut: Option<CutReason>,
        now: Timestamp,
    ) -> CallFailure {
        let transient = classified.nature == FaultNature::Transient;
        let words = said.words();
        let FailureResponse { message, output, observed, .. } = said;
        // If no mechanism is enforced, the tool's own message is passed on unchanged.
        if self.may_have_run(classified) && !self.policy.modes.is_pass_through() {
            let (reads, policy) = (&self.request.reads, &self.policy);
            let told = messages::outcome_unknown_unrecorded(reads, policy, observed, words.as_deref());
            return CallFailure { output, ..told.with_rule(classified.rule.clone()) };
        }
        let stuck = matches!(cut, Some(CutReason::Silent(_) | CutReason::TooLong))
            && self.policy.time.silence == SilencePolicy::Stuck;
        let (code, rule) = match stop {
            // A result that is too large is an answer, and counts as one after a cut too.
            None if classified.code == Code::ResultTooLarge => (classified.code, classified.rule.clone()),
            None | Some(_) if cut == Some(CutReason::Deadline) => {
                (Code::DeadlineExceeded, Cow::Borrowed("deadline"))
            }
            None | Some(StopReason::NotAsked) if stuck => (Code::StuckCall, classified.rule.clone()),
            None | Some(StopReason::NotAsked) => (classified.code, classified.rule.clone()),
            Some(StopReason::Breaker(refused)) => (Code::CircuitOpen, Cow::Borrowed(refused.by.rule())),
            Some(StopReason::Schedule(
                RetryStop::Attempts | RetryStop::TotalTime | RetryStop::RetryAfter(_),
            )) if stuck => (Code::StuckCall, classified.rule.clone()),
            Some(StopReason::Schedule(stop)) => self.final_code(stop, classified),
        };
        let retry_after = match stop {
            Some(StopReason::Schedule(RetryStop::RetryAfter(wait))) => Some(wait),
            Some(StopReason::Breaker(refused)) => refused.retry_at.map(|at| at.since(now)),
            Some(StopReason::NotAsked | StopReason::Schedule(_)) | None => classified.retry_after,
        };
        CallFailure {
            code,
            message: match (code, cut) {
                (Code::StuckCall, Some(cut)) => messages::stuck(cut, message),
                (Code::ResultTooLarge, _) => messages::result_too_large(message),
                (_, _) => messages::failed(code, self.attempts, message),
            },
            retriable: transient,
            terminal: !transient,
            rule: Some(rule),
            verify: self.policy.verify_hint().filter(|_| code == Code::ResultTooLarge),
            retry_after,
            output,
        }
    }

    /// Returns true if the call may have taken effect and must not be tried again because of that.
    fn may_have_run(&self, classified: &Classification) -> bool {
        classified.reach == AttemptReach::Unknown && !self.retry_safe
    }

    /// Returns the code and the rule of a failure after the last attempt.
    fn final_code(&self, stop: RetryStop, classified: &Classification) -> (Code, Cow<'static, str>) {
        match stop {
            RetryStop::Deadline => (Code::DeadlineExceeded, Cow::Borrowed("deadline")),
            RetryStop::Budget => (Code::RetryExhausted, Cow::Borrowed("retry_budget")),
            // A caller that allowed one attempt only gets the failure itself, without a note about retries.
            RetryStop::Attempts if self.attempts == 1 => (classified.code, classified.rule.clone()),
            RetryStop::Attempts | RetryStop::TotalTime | RetryStop::RetryAfter(_) => {
                (Code::RetryExhausted, classified.rule.clone())
            }
        }
    }

    /// Ends a call whose time for another attempt passed during the wait.
    fn too_late(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        stop: RetryStop,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let Some((classified, failure)) = self.last.take() else { return self.give_up(shared, now, notices) };
        let code = match stop {
            RetryStop::Deadline => Code::DeadlineExceeded,
            RetryStop::Attempts | RetryStop::TotalTime | RetryStop::RetryAfter(_) | RetryStop::Budget => {
                Code::RetryExhausted
            }
        };
        let message = messages::failed(code, self.attempts, failure.message.into_owned());
        let result = self.failed(CallFailure { code, message, ..failure }, now);
        self.settle_failed(shared, result, Some(&classified), now, notices)
    }

    /// Ends the call with the last failure: no further attempt may start in the name of this record.
    pub(super) fn give_up(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let (classified, failure) = match self.last.take() {
            Some((classified, failure)) => (Some(classified), failure),
            None => (None, messages::store_unavailable(&self.request)),
        };
        let result = CallResult { recorded: RecordStatus::No, ..self.failed(failure, now) };
        let result = match &classified {
            Some(Classification { severity, mistake, .. }) => {
                self.judge_run(shared, result, Some(*severity), *mistake, now, notices)
            }
            // The tool never ran.
            None => self.judge(shared, result, now, notices),
        };
        // A claim of a living process that is never released would stay for ever.
        let kept = self.deferred_release().filter(|_| self.store != StoreState::FenceLost);
        self.finish(result, kept.into_iter().collect(), now, notices)
    }

    // ---- 8. what the record becomes ----

    /// Ends a failed call: an answer of the tool is stored, a run that may have happened has an unknown outcome, and
    /// the rest is released.
    pub(super) fn settle_failed(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        result: CallResult,
        classified: Option<&Classification>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let severity = classified.map(|classified| classified.severity);
        let mistake = classified.and_then(|classified| classified.mistake);
        let result = self.judge_run(shared, result, severity, mistake, now, notices);
        let Err(failure) = &result.ended else { return self.finish(result, Vec::new(), now, notices) };
        let failure = as_kept(failure.clone(), classified);
        let is_too_large = classified.is_some_and(|classified| classified.code == Code::ResultTooLarge);
        match classified.map(|classified| classified.reach) {
            // Only if no other call finds it by its record.
            Some(AttemptReach::Unknown) if !self.retry_safe => {
                notices.push(CallNotice::OutcomeUnknown { of_earlier: None });
                let unknown = UnknownOutcomeReport::settled(UnknownOutcomeReason::NoAnswer);
                self.save(result, RunOutcome::Unknown(unknown), now, notices)
            }
            // The tool has run, and a later call can be told no more than that.
            Some(AttemptReach::Answered) if is_too_large => {
                self.save(result, RunOutcome::Done(None), now, notices)
            }
            Some(AttemptReach::Answered) => self.save(result, RunOutcome::Failed(failure), now, notices),
            Some(AttemptReach::NotSent | AttemptReach::Refused | AttemptReach::Unknown) | None => {
                // Refusals by Steadfast are never stored. Transient failures of the tool are, if the policy says so.
                let kept =
                    classified.is_some() && self.policy.dedupe.cache_failures == FailureReplayPolicy::All;
                if kept {
                    self.save(result, RunOutcome::Failed(failure), now, notices)
                } else {
                    self.release(result, Vec::new(), now, notices)
                }
            }
        }
    }
}

/// Returns the failure as other callers may get it: the failure of the tool, without the effect of the breaker or of
/// this caller's deadline.
fn as_kept(failure: CallFailure, classified: Option<&Classification>) -> CallFailure {
    match (failure.code, classified) {
        (Code::CircuitOpen | Code::DeadlineExceeded, Some(classified)) => {
            CallFailure { code: classified.code, rule: Some(classified.rule.clone()), ..failure }
        }
        (_, Some(_) | None) => failure,
    }
}

/// The response of a tool that failed.
#[derive(Clone)]
pub(super) struct FailureResponse {
    message: String,
    output: Option<ToolOutput>,
    manner: RecordedFailureKind,
    /// Observation for the case that the outcome is unknown.
    observed: UnknownOutcomeReason,
    /// HTTP status of the response.
    status: Option<u16>,
    /// Text to show if the message only stands for the original: in a replay.
    shown: Option<String>,
}

impl FailureResponse {
    fn of(fault: AttemptFault, output: Option<ToolOutput>) -> Self {
        let observed = observed(&fault.source);
        let status = if let FaultSource::Http { status } = fault.source { Some(status) } else { None };
        Self {
            manner: RecordedFailureKind::of(&fault),
            message: fault.message,
            output,
            observed,
            status,
            shown: None,
        }
    }

    /// Returns the message for callers that get an unknown outcome; `None` if the tool has its own output, which is
    /// passed on unchanged.
    fn words(&self) -> Option<String> {
        let message = messages::shorten_message(self.message.clone());
        match (&self.output, self.status) {
            (Some(_), _) => None,
            (None, Some(status)) if !message.contains(&status.to_string()) => {
                Some(format!("HTTP {status}: {message}"))
            }
            (None, Some(_) | None) => Some(message),
        }
    }

    /// Restores a recorded failure, of which only the classification is known.
    fn remembered(failed: &RecordedFailure) -> Self {
        let observed = match (failed.observed, failed.manner) {
            (Some(observed), _) => observed,
            (None, RecordedFailureKind::TimedOut) => UnknownOutcomeReason::NoAnswer,
            (
                None,
                RecordedFailureKind::Plain | RecordedFailureKind::SessionLost | RecordedFailureKind::NotRun,
            ) => UnknownOutcomeReason::ErrorAnswer,
        };
        Self {
            message: failed.error.clone(),
            output: None,
            manner: failed.manner,
            observed,
            status: None,
            shown: Some(failed.words.clone().unwrap_or_default()),
        }
    }

    /// Returns the recorded outcome of the attempt.
    fn outcome(&self, classified: &Classification) -> RecordedAttempt {
        RecordedAttempt::of_failure(classified, self.manner, self.observed, &self.message, self.shown())
    }

    /// Returns the message for logs and the audit log.
    fn shown(&self) -> String {
        self.shown.clone().unwrap_or_else(|| messages::shorten_message(self.message.clone()))
    }
}

/// Returns the observation for a failure source.
fn observed(source: &FaultSource) -> UnknownOutcomeReason {
    match source {
        FaultSource::Timeout { .. } => UnknownOutcomeReason::NoAnswer,
        FaultSource::Transport { error: TransportError::TimedOut, .. } => UnknownOutcomeReason::NoAnswer,
        FaultSource::Transport { .. } | FaultSource::WebSocket { .. } => UnknownOutcomeReason::ConnectionLost,
        FaultSource::Exit { .. } => UnknownOutcomeReason::ProcessDied,
        FaultSource::Http { .. }
        | FaultSource::JsonRpc { .. }
        | FaultSource::SessionLost
        | FaultSource::IsError
        | FaultSource::Tool
        | FaultSource::Panic
        | FaultSource::BadAnswer
        | FaultSource::TooLarge => UnknownOutcomeReason::ErrorAnswer,
    }
}

/// A reason against starting an attempt.
enum AttemptObstacle {
    /// No caller waits for the result.
    Unwanted,
    /// Another call owns the record, or its outcome was declared unknown.
    NotOurs,
    /// Another call may own the record: the store has to be asked.
    LeaseOver,
    /// The time is up.
    Late(RetryStop),
    /// The tool was blocked in the meantime.
    Blocked,
}

/// The reason why there is no further attempt.
#[derive(Clone, Copy)]
enum StopReason {
    /// Retries are off.
    NotAsked,
    /// The schedule or the retry budget allows none.
    Schedule(RetryStop),
    /// The breaker opened in the meantime.
    Breaker(crate::breaker::BreakerRefusal),
}

impl Tickets {
    fn release(&mut self, shared: &mut CallMechanisms<'_>, notices: &mut Vec<CallNotice>) {
        let mut give_back = |breaker: &mut CircuitBreaker, ticket: BreakerTicket, scope| {
            if ticket.is_probe() {
                notices.push(CallNotice::ProbeMoved { scope });
            }
            breaker.release(ticket);
        };
        if let Some(ticket) = self.tool.take() {
            give_back(shared.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) = (self.dependency.take(), shared.dependency.as_deref_mut()) {
            give_back(breaker, ticket, BreakerScope::Dependency);
        }
    }

    /// Returns the scope of the first ticket that is a probe.
    fn first_probe(&self) -> Option<BreakerScope> {
        let scopes = [(&self.tool, BreakerScope::Tool), (&self.dependency, BreakerScope::Dependency)];
        let probe = |ticket: &Option<BreakerTicket>| ticket.as_ref().is_some_and(BreakerTicket::is_probe);
        scopes.into_iter().find(|(ticket, _)| probe(ticket)).map(|(_, scope)| scope)
    }

    /// Marks the probe as known to all processes that share this breaker.
    pub(super) fn agreed(&self, scope: BreakerScope, shared: &mut CallMechanisms<'_>) {
        match (scope, shared.dependency.as_deref_mut()) {
            (BreakerScope::Tool, _) => {
                self.tool.iter().for_each(|ticket| shared.breaker.confirm_probe(ticket))
            }
            (BreakerScope::Dependency, Some(breaker)) => {
                self.dependency.iter().for_each(|ticket| breaker.confirm_probe(ticket));
            }
            (BreakerScope::Dependency, None) => {}
        }
    }

    /// Returns true if all tickets are still valid.
    fn hold(&self, policy: &BreakerPolicy, shared: &CallMechanisms<'_>, now: Timestamp) -> bool {
        let holds = |breaker: &CircuitBreaker, ticket: &Option<BreakerTicket>| {
            ticket.as_ref().is_none_or(|ticket| breaker.holds(policy, ticket, now))
        };
        holds(shared.breaker, &self.tool)
            && shared.dependency.as_deref().is_none_or(|breaker| holds(breaker, &self.dependency))
    }
}

fn report_transition(
    scope: BreakerScope,
    transition: Option<BreakerTransition>,
    notices: &mut Vec<CallNotice>,
) {
    if let Some(transition) = transition {
        notices.push(CallNotice::BreakerChanged { scope, transition });
    }
}

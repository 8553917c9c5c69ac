//! An attempt while it runs: its limits, and the ways to end it.

use super::context::StepContext;
use super::in_flight::AttemptInFlight;
use super::messages;
use super::notice::{CallNotice, ShadowDecision};
use super::request::RunnerKind;
use super::settling_outcome::{GiveUpReason, SettlingOutcome, settles_after};
use super::state::{Call, State};
use super::step::{BreakerScope, CallResult, CutReason, NextStep, UnknownOutcomeInfo, UpstreamSignal};
use crate::Timestamp;
use crate::breaker::{BreakerVerdict, CircuitBreaker, TicketRenewal};
use crate::classify::Severity;
use crate::code::Code;
use crate::dedupe::{SettleDelay, UnknownOutcomeReason};
use crate::policy::EnforcementMode;
use crate::watchdog::{self, Watchdog};

impl Call {
    /// Returns the time at which a limit of the running attempt is reached.
    pub(super) fn attempt_wakes_at(&self, attempt: &AttemptInFlight) -> Option<Timestamp> {
        let watchdog = attempt.watchdog.filter(|_| attempt.cut.is_none())?;
        let waiting = self.caller.is_waiting();
        let answer_by = self.answer_by().filter(|_| waiting);
        let limits = [attempt.deadline.filter(|_| waiting), answer_by];
        let due = limits.into_iter().flatten().fold(watchdog.due(), Timestamp::min);
        if self.shadow_report.is_sent() {
            self.ended_from(&watchdog).map(|from| from.max(due))
        } else {
            Some(due)
        }
    }

    /// Returns the time from which an attempt may be ended when its time is up. While the caller waits, shadow mode
    /// ends nothing. The silence of a host that runs the tool shows that it is gone, after the call has used all its
    /// time.
    fn ended_from(&self, watchdog: &Watchdog) -> Option<Timestamp> {
        if !self.caller.is_waiting() || !self.policy.modes.is_pass_through() {
            return Some(Timestamp::ZERO);
        }
        match self.request.run_by {
            RunnerKind::Driver | RunnerKind::InProcessHost => None,
            RunnerKind::Host => Some(watchdog.total_at().max(watchdog.silent_at())),
        }
    }

    /// Returns the time at which the caller gets the response that the call is still running. Only if calling again
    /// finds the result. In shadow mode, the time at which that response would have been sent.
    fn answer_by(&self) -> Option<Timestamp> {
        let found_again = match self.dedupe() {
            EnforcementMode::Off => false,
            EnforcementMode::Shadow => !self.shadow_report.is_sent(),
            EnforcementMode::Enforce => true,
        };
        self.patience().filter(|_| found_again && self.record.is_some()).map(|span| self.arrived + span)
    }

    /// Extends the watchdog and keeps the probe permit on a sign of life.
    pub(super) fn progressed(
        &mut self,
        mut attempt: AttemptInFlight,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        if let Some(watchdog) = &mut attempt.watchdog {
            watchdog.progress(cx.now);
        }
        let mut renew = |breaker: &mut CircuitBreaker, ticket, scope| match breaker.renew(
            &self.policy.breaker,
            ticket,
            cx.now,
        ) {
            TicketRenewal::Extended => cx.notices.push(CallNotice::ProbeMoved { scope }),
            TicketRenewal::StillValid | TicketRenewal::Lost => {}
        };
        if let Some(ticket) = &attempt.tickets.tool {
            renew(cx.shared.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) =
            (&attempt.tickets.dependency, cx.shared.dependency.as_deref_mut())
        {
            renew(breaker, ticket, BreakerScope::Dependency);
        }
        self.stay(State::Attempting(attempt))
    }

    /// Checks the limits of a running attempt, and ends it or answers its caller if one is reached.
    pub(super) fn check_limits(
        &mut self,
        mut attempt: AttemptInFlight,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let waiting = self.caller.is_waiting();
        let Some(watchdog) = attempt.watchdog.filter(|_| attempt.cut.is_none()) else {
            return self.stay(State::Attempting(attempt));
        };
        let cut = match watchdog.verdict(cx.now) {
            watchdog::WatchdogVerdict::TotalLimit => Some(CutReason::TooLong),
            _ if waiting && attempt.deadline.is_some_and(|deadline| deadline <= cx.now) => {
                Some(CutReason::Deadline)
            }
            watchdog::WatchdogVerdict::Stuck => Some(CutReason::Silent(cx.now.since(attempt.started))),
            watchdog::WatchdogVerdict::Fine { .. } => None,
        };
        match cut {
            Some(_) if self.ended_from(&watchdog).is_none_or(|from| cx.now < from) => {
                self.shadow_report.send(ShadowDecision::Cut, cx.notices);
                self.stay(State::Attempting(attempt))
            }
            Some(cut) if self.may_be_cut() => {
                cx.notices.push(CallNotice::AttemptCut { cut });
                attempt.cut = Some(cut);
                self.state = State::Attempting(attempt);
                NextStep::Cut(cut)
            }
            // The deadline of one caller does not stop a run within the limits of its tool: calling again finds it.
            Some(CutReason::Deadline) => {
                let unknown =
                    Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::NoAnswer, is_final: false });
                let result = self.failed(messages::deadline_while_running(&self.policy), cx.now);
                let result = CallResult { unknown, ..result };
                let result = self.count_response(result, cx);
                self.answer_early(State::Attempting(attempt), result, UpstreamSignal::NoSignal, cx.notices)
            }
            Some(cut) => self.cut_unknown(attempt, cut, cx),
            None if waiting && self.answer_by().is_some_and(|answer_by| answer_by <= cx.now) => {
                if self.dedupe() == EnforcementMode::Shadow {
                    self.shadow_report.send(ShadowDecision::Failed(Code::InFlight), cx.notices);
                    return self.stay(State::Attempting(attempt));
                }
                let result = self.failed(messages::in_flight(), cx.now);
                self.answer_early(State::Attempting(attempt), result, UpstreamSignal::NoSignal, cx.notices)
            }
            None => self.stay(State::Attempting(attempt)),
        }
    }

    /// Cuts an attempt that must not be repeated while its outcome is unknown.
    pub(super) fn cut_unknown(
        &mut self,
        mut attempt: AttemptInFlight,
        cut: CutReason,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let took = cx.now.since(attempt.started);
        let silent = self.host_is_silent(&attempt, cx.now);
        if silent {
            self.abandon(cx);
        }
        attempt.cut = Some(cut);
        // A host that is gone proves nothing about the tool.
        let counts = !silent && !self.is_callers_limit(&attempt, cx.now);
        let verdict = if counts { Some(BreakerVerdict::Failure { took }) } else { None };
        self.record_breakers(&mut attempt.tickets, verdict, cx);
        cx.notices.push(CallNotice::AttemptCut { cut });
        let settling = SettlingOutcome {
            attempt: Some(attempt),
            observed: UnknownOutcomeReason::NoAnswer,
            words: None,
            output: None,
            severity: counts.then_some(Severity::Timeout),
            reason: GiveUpReason::Cut(cut),
            settles: SettleDelay::WhenOwnerReports,
            by: None,
            cancel: true,
            receipt: None,
            answer_from: None,
            unsaved: false,
            save_at: None,
        };
        let settles = settles_after(self.request.end, UnknownOutcomeReason::NoAnswer, &self.policy.settling);
        self.outcome_unknown(settling, settles, cx)
    }

    /// Returns true if a limit of the caller cut the attempt within the time of the tool, which says nothing about the
    /// tool.
    pub(super) fn is_callers_limit(&self, attempt: &AttemptInFlight, now: Timestamp) -> bool {
        let time = &self.policy.time;
        let last_sign = attempt.watchdog.map_or(attempt.started, |watchdog| watchdog.last_sign());
        attempt.cut.is_some()
            && now.since(last_sign) < time.attempt
            && now.since(attempt.started) < time.total
    }

    /// Returns true if the host that runs this attempt may be gone. A host that is alive reports, its own timeouts too,
    /// or shows signs of life. Its silence says nothing about the tool, so neither breaker nor trust counts it, and
    /// there is no host left for another attempt.
    pub(super) fn host_is_silent(&self, attempt: &AttemptInFlight, now: Timestamp) -> bool {
        match self.request.run_by {
            RunnerKind::Driver | RunnerKind::InProcessHost => false,
            RunnerKind::Host => {
                !attempt.watchdog.is_some_and(|watchdog| watchdog.shows_life(attempt.started, now))
            }
        }
    }
}

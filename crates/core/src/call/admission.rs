//! Admission of an attempt: the checks right before it, limits, breakers, and the probe that the store records.

use super::context::StepContext;
use super::grant::{ApprovalNeed, SpentGrant};
use super::in_flight::AttemptInFlight;
use super::messages;
use super::notice::CallNotice;
use super::refusal::CallRefusal;
use super::state::{Call, State, StoreState};
use super::step::{AttemptCommand, BreakerScope, CallResult, NextStep};
use super::tickets::{PermitState, Tickets, report_transition};
use crate::Timestamp;
use crate::dedupe::CallFailure;
use crate::policy::EnforcementMode;
use crate::retry::{RetrySchedule, RetryStop};
use crate::watchdog::Watchdog;

/// The stage from which a call goes on to its next attempt.
pub(super) enum AdmissionStage {
    /// Nothing was taken for the attempt yet.
    Begin,
    /// The store has recorded this probe, or could not be reached.
    ProbeRecorded {
        /// The breaker that is probed.
        scope: BreakerScope,
        /// Permits of the attempt.
        tickets: Tickets,
    },
}

/// A reason against starting an attempt.
enum AttemptObstacle {
    /// No caller waits for the result.
    NoWaiter,
    /// Another call owns the record, or its outcome was declared unknown.
    ClaimLost,
    /// Another call may own the record: the store has to be asked.
    LeaseOver,
    /// The time is up.
    Late(RetryStop),
    /// The tool was blocked in the meantime.
    Blocked,
}

impl Call {
    /// Leads to the next attempt: until it runs, has to ask the store, or is refused. The driver may have been frozen
    /// since the last step, so every attempt passes all checks right before it is made, the first one too.
    pub(super) fn next_attempt(&mut self, stage: AdmissionStage, cx: &mut StepContext<'_, '_>) -> NextStep {
        let (tickets, recorded) = match stage {
            AdmissionStage::ProbeRecorded { scope, tickets }
                if self.may_start(cx).is_ok() && tickets.hold(&self.policy.breaker, cx) =>
            {
                (tickets, Some(scope))
            }
            stage @ (AdmissionStage::Begin | AdmissionStage::ProbeRecorded { .. }) => {
                // What the attempt held before the store was asked is returned, and taken again.
                if let AdmissionStage::ProbeRecorded { tickets, .. } = stage {
                    tickets.return_unused(cx);
                }
                if let Err(obstacle) = self.may_start(cx) {
                    return self.handle_obstacle(obstacle, cx);
                }
                match self.admit(cx) {
                    Ok(tickets) => (tickets, None),
                    Err(refusal) => return self.refuse_attempt(*refusal, cx),
                }
            }
        };
        // Every probe is recorded in the store before it is sent: all processes that share the breaker have one probe.
        match tickets.probe_after(recorded).filter(|_| self.policy.modes.breaker == EnforcementMode::Enforce)
        {
            Some(scope) => {
                self.state = State::Probing { scope, tickets };
                NextStep::Probe(scope)
            }
            None => self.start_attempt(tickets, cx),
        }
    }

    /// Checks whether an attempt may start now. Every attempt passes here right before it is made, the first one too:
    /// the driver may have been frozen since the last step.
    fn may_start(&self, cx: &StepContext<'_, '_>) -> Result<(), AttemptObstacle> {
        // The caller was last known to be waiting. A run that others wait for continues without its first caller.
        if self.caller.has_cancelled() {
            return Err(AttemptObstacle::NoWaiter);
        }
        match self.store {
            StoreState::FenceLost | StoreState::MarkedUnknown => return Err(AttemptObstacle::ClaimLost),
            StoreState::Available | StoreState::Down => {}
        }
        // After a silence longer than the lease, the owner first checks that the record is still its own.
        if self.record().is_some() && cx.now >= self.lease_until {
            return Err(AttemptObstacle::LeaseOver);
        }
        match &self.schedule {
            None if self.is_late(cx.now) && self.policy.modes.strongest() == EnforcementMode::Enforce => {
                return Err(AttemptObstacle::Late(RetryStop::Deadline));
            }
            None => {}
            Some(schedule) => schedule.may_start(cx.now).map_err(AttemptObstacle::Late)?,
        }
        // The approval does not cover failures of the tool that became known after it.
        if self.policy.modes.trust == EnforcementMode::Enforce
            && !self.spent.as_ref().is_some_and(SpentGrant::covers_block)
            && Self::is_blocked(self.standing(cx))
        {
            return Err(AttemptObstacle::Blocked);
        }
        Ok(())
    }

    /// Continues a call whose attempt may not start.
    fn handle_obstacle(&mut self, obstacle: AttemptObstacle, cx: &mut StepContext<'_, '_>) -> NextStep {
        match obstacle {
            AttemptObstacle::LeaseOver => {
                self.state = State::Renewing;
                NextStep::Renew
            }
            AttemptObstacle::ClaimLost if self.attempts == 0 => self.handle_lost_claim(cx),
            AttemptObstacle::ClaimLost => self.give_up(cx),
            AttemptObstacle::Late(_) if self.attempts == 0 => {
                self.refuse(CallRefusal::by_steadfast(messages::deadline_passed()), cx)
            }
            AttemptObstacle::Late(stop) => {
                cx.notices.push(CallNotice::RetryStopped { stop });
                self.too_late(stop, cx)
            }
            AttemptObstacle::NoWaiter => {
                self.abandon(cx);
                let result = self.failed(messages::cancelled(), cx.now);
                self.release(result, Vec::new(), cx)
            }
            AttemptObstacle::Blocked => {
                let refusal = match self.need(cx) {
                    ApprovalNeed::Refuse(refusal) => *refusal,
                    ApprovalNeed::Ask(ask) => CallRefusal::trust(&self.request, ask),
                    ApprovalNeed::NotNeeded | ApprovalNeed::Spend(_) => {
                        CallRefusal::by_steadfast(messages::approval_lost(&self.request))
                    }
                };
                self.refuse_attempt(refusal, cx)
            }
        }
    }

    /// Refuses an attempt. After an earlier attempt, the response and trust are about what the tool did then.
    fn refuse_attempt(&mut self, refusal: CallRefusal, cx: &mut StepContext<'_, '_>) -> NextStep {
        if self.attempts == 0 {
            return self.refuse(refusal, cx);
        }
        let CallRefusal { failure, breaker, .. } = refusal;
        let (severity, failure) = match self.last.take() {
            None => (None, failure),
            Some((classified, last)) => {
                let message = messages::failed(failure.code, self.attempts, last.message.into_owned());
                (Some(classified.severity), CallFailure { message, output: last.output, ..failure })
            }
        };
        let result = CallResult { breaker, ..self.failed(failure, cx.now) };
        let result = self.count_run(result, severity, None, cx);
        self.release(result, Vec::new(), cx)
    }

    /// Takes what an attempt needs from limits and breakers, or returns the refusal.
    fn admit(&mut self, cx: &mut StepContext<'_, '_>) -> Result<Tickets, Box<CallRefusal>> {
        let rest = self.policy.modes.strongest();
        if rest == EnforcementMode::Off {
            return Ok(Tickets::default());
        }
        let permits = match self.take_permits(cx) {
            Ok(()) => PermitState::Taken,
            Err(overloaded) => {
                match self.enforce_or_report(rest, CallRefusal::by_steadfast(overloaded), cx.notices) {
                    Some(refusal) => return Err(Box::new(refusal)),
                    None => PermitState::NotAsked,
                }
            }
        };
        let admitted = self.admit_breakers(cx);
        if admitted.is_err() && permits == PermitState::Taken {
            cx.shared.limiter.withdraw();
            cx.shared.dependency_limiter.withdraw();
        }
        admitted.map(|tickets| Tickets { permits, ..tickets })
    }

    /// Takes a permit of the tool's limits, and one of the dependency's limits.
    fn take_permits(&self, cx: &mut StepContext<'_, '_>) -> Result<(), CallFailure> {
        let request = &self.request;
        cx.shared
            .limiter
            .try_acquire(&self.policy.limits, cx.now)
            .map_err(|overloaded| messages::overloaded(request, overloaded, cx.now))?;
        cx.shared.dependency_limiter.try_acquire(&self.policy.dependency_limits, cx.now).map_err(
            |overloaded| {
                cx.shared.limiter.withdraw();
                messages::dependency_overloaded(request, overloaded, cx.now)
            },
        )
    }

    /// Takes the tickets of the breakers, or returns the refusal.
    fn admit_breakers(&mut self, cx: &mut StepContext<'_, '_>) -> Result<Tickets, Box<CallRefusal>> {
        if self.policy.modes.breaker == EnforcementMode::Off {
            return Ok(Tickets::default());
        }
        let mut tickets = Tickets::default();
        let policy = &self.policy.breaker;
        let refused = match cx.shared.breaker.admit(policy, cx.now) {
            Err(refused) => Some(refused),
            Ok((ticket, transition)) => {
                tickets.tool = Some(ticket);
                report_transition(BreakerScope::Tool, transition, cx.notices);
                match cx.shared.dependency.as_deref_mut().map(|breaker| breaker.admit(policy, cx.now)) {
                    None => None,
                    Some(Err(refused)) => Some(refused),
                    Some(Ok((ticket, transition))) => {
                        tickets.dependency = Some(ticket);
                        report_transition(BreakerScope::Dependency, transition, cx.notices);
                        None
                    }
                }
            }
        };
        let Some(refused) = refused else { return Ok(tickets) };
        tickets.give_back(cx);
        let refusal = self.circuit_open(refused, cx.now);
        match self.enforce_or_report(self.policy.modes.breaker, refusal, cx.notices) {
            Some(refusal) => Err(Box::new(refusal)),
            None => Ok(Tickets::default()),
        }
    }

    /// Makes the attempt. Every check has passed.
    fn start_attempt(&mut self, tickets: Tickets, cx: &mut StepContext<'_, '_>) -> NextStep {
        if self.schedule.is_none() {
            cx.shared.budget.deposit(&self.policy.retry.budget, cx.now);
            self.schedule = Some(RetrySchedule::new(
                &self.policy.retry,
                &self.request.limits,
                Some(self.policy.time.latest_retry()),
                self.seed,
                cx.now,
            ));
        }
        let first = *self.first_attempt.get_or_insert(cx.now);
        self.attempts += 1;
        cx.notices.push(CallNotice::AttemptStarted { attempt: self.attempts, at: cx.now });
        // A shadow record does not pass on the run of an owner that is gone.
        let record = self.record.as_ref().filter(|_| self.dedupe() == EnforcementMode::Enforce);
        let run = record.map_or(&self.request.run, |record| &record.run).clone();
        let rest = self.policy.modes.strongest();
        let watchdog = (rest != EnforcementMode::Off).then(|| self.watchdog(first, cx.now));
        let deadline = self.request.limits.deadline.filter(|_| rest != EnforcementMode::Off);
        let attempt = AttemptInFlight {
            number: self.attempts,
            started: cx.now,
            watchdog,
            deadline,
            tickets,
            cut: None,
        };
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
}

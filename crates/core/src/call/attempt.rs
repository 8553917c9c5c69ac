//! Attempts of a call: admission, outcome, and the decision about another attempt.

use std::borrow::Cow;

use std::time::Duration;

use super::failed::LastTrouble;
use super::settle::{self, Settling, Why};
use super::step::Recorded;
use super::{
    Attempt, BreakerScope, Call, CallResult, Caller, Cut, FailedAttempt, Need, Notice, Others, Outcome,
    Places, Refusal, Retried, Run, RunBy, Shadowed, Shared, State, Step, StoreSight, Tickets, ToldUnknown,
    Upstream, Waits, say,
};
use crate::Timestamp;
use crate::breaker::{Breaker, Held, Ticket, Transition, Verdict};
use crate::classify::{Classified, Fault, Nature, Reach, Severity, Source, Transport, classify};
use crate::code::Code;
use crate::dedupe::{AttemptFact, Ending, Failure, Observed, Record, SettlesIn, UnknownEnding};
use crate::output::Output;
use crate::policy::{BreakerPolicy, CacheFailures, Mode, Silence};
use crate::rehearse::{AttemptOutcome, FailedOutcome, Manner};
use crate::retry::{Schedule, Stop};
use crate::watchdog::{self, Watchdog};

impl Call {
    // ---- 4. admission ----

    /// Checks whether an attempt may start now. Every attempt passes here right before it is made, the first one too:
    /// the driver may have been frozen since the last step.
    fn may_start(&self, shared: &Shared<'_>, now: Timestamp) -> Result<(), Hindrance> {
        // The caller was last known to be waiting. A run that others wait for continues without its first caller.
        if self.caller == Caller::GaveUp {
            return Err(Hindrance::Unwanted);
        }
        match self.store {
            StoreSight::FenceLost | StoreSight::MarkedUnknown => return Err(Hindrance::NotOurs),
            StoreSight::Fine | StoreSight::Down => {}
        }
        // After a silence longer than the lease, the owner first checks that the record is still its own.
        if self.record().is_some() && now >= self.lease_until {
            return Err(Hindrance::LeaseOver);
        }
        match &self.schedule {
            None if self.is_late(now) && self.policy.modes.furthest() == Mode::Enforce => {
                return Err(Hindrance::Late(Stop::Deadline));
            }
            None => {}
            Some(schedule) => schedule.may_start(now).map_err(Hindrance::Late)?,
        }
        // The approval does not cover failures of the tool that became known after it.
        if self.policy.modes.trust == Mode::Enforce
            && !self.approved_blocked
            && Self::is_blocked(self.standing(shared, now))
        {
            return Err(Hindrance::Blocked);
        }
        Ok(())
    }

    /// Makes the next attempt, if it may start.
    pub(super) fn attempt(
        &mut self,
        shared: &mut Shared<'_>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match self.may_start(shared, now) {
            Ok(()) => self.admitted(shared, now, notices),
            Err(hindrance) => self.hindered(shared, hindrance, now, notices),
        }
    }

    fn hindered(
        &mut self,
        shared: &mut Shared<'_>,
        hindrance: Hindrance,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match hindrance {
            Hindrance::LeaseOver => {
                self.state = State::Renewing;
                Step::Renew
            }
            Hindrance::NotOurs if self.attempts == 0 => self.lost_the_claim(shared, now, notices),
            Hindrance::NotOurs => self.give_up(shared, now, notices),
            Hindrance::Late(_) if self.attempts == 0 => {
                self.refuse(shared, Refusal::us(say::deadline_passed()), now, notices)
            }
            Hindrance::Late(stop) => {
                notices.push(Notice::RetryStopped { stop });
                self.too_late(shared, stop, now, notices)
            }
            Hindrance::Unwanted => {
                self.abandon(shared, now, notices);
                let result = self.failed(say::cancelled(), now);
                self.release(result, Vec::new(), now, notices)
            }
            Hindrance::Blocked => {
                let refusal = match self.need(shared, now) {
                    Need::Refuse(refusal) => *refusal,
                    Need::Ask(ask) => Refusal::trust(&self.request, ask),
                    Need::Nobody | Need::Spend(_) => Refusal::us(say::approval_lost(&self.request)),
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
    fn admitted(&mut self, shared: &mut Shared<'_>, now: Timestamp, notices: &mut Vec<Notice>) -> Step {
        let tickets = match self.admit(shared, now, notices) {
            Ok(tickets) => tickets,
            Err(refusal) if self.attempts == 0 => return self.refuse(shared, *refusal, now, notices),
            Err(refusal) => return self.refused_again(shared, *refusal, now, notices),
        };
        match tickets.first_probe().filter(|_| self.policy.modes.breaker == Mode::Enforce) {
            Some(scope) => self.probe(scope, tickets),
            None => self.go(shared, tickets, now, notices),
        }
    }

    /// Ends the call because another attempt is refused. The response and trust are about what the tool did before.
    fn refused_again(
        &mut self,
        shared: &mut Shared<'_>,
        refusal: Refusal,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let Refusal { failure, breaker, .. } = refusal;
        let (severity, failure) = match self.last.take() {
            None => (None, failure),
            Some((classified, last)) => {
                let message = say::failed(failure.code, self.attempts, last.message.into_owned());
                (Some(classified.severity), Failure { message, output: last.output, ..failure })
            }
        };
        let result = CallResult { breaker, ..self.failed(failure, now) };
        let result = self.judge_run(shared, result, severity, None, now, notices);
        self.release(result, Vec::new(), now, notices)
    }

    /// Records the probe in the store before it is sent: all processes that share the breaker have one probe.
    fn probe(&mut self, scope: BreakerScope, tickets: Tickets) -> Step {
        self.state = State::Probing { scope, tickets };
        Step::Probe(scope)
    }

    /// Continues after the store has recorded the probe, or could not be reached.
    pub(super) fn probed(
        &mut self,
        shared: &mut Shared<'_>,
        scope: BreakerScope,
        tickets: Tickets,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if self.may_start(shared, now).is_err() || !tickets.hold(&self.policy.breaker, shared, now) {
            self.step_back(shared, tickets, notices);
            return self.attempt(shared, now, notices);
        }
        match scope {
            BreakerScope::Tool if tickets.dependency.as_ref().is_some_and(Ticket::is_probe) => {
                self.probe(BreakerScope::Dependency, tickets)
            }
            BreakerScope::Tool | BreakerScope::Dependency => self.go(shared, tickets, now, notices),
        }
    }

    /// Returns what was taken for an attempt that is not made.
    pub(super) fn step_back(&self, shared: &mut Shared<'_>, mut tickets: Tickets, notices: &mut Vec<Notice>) {
        tickets.release(shared, notices);
        if tickets.places == Places::Taken {
            shared.limiter.withdraw();
            shared.dependency_limiter.withdraw();
        }
    }

    /// Makes the attempt. Every check has passed.
    fn go(
        &mut self,
        shared: &mut Shared<'_>,
        tickets: Tickets,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if self.schedule.is_none() {
            shared.budget.deposit(&self.policy.retry.budget, now);
            self.schedule = Some(Schedule::new(
                &self.policy.retry,
                &self.request.limits,
                Some(self.policy.time.latest_retry()),
                self.seed,
                now,
            ));
        }
        let first = *self.first_attempt.get_or_insert(now);
        self.attempts += 1;
        notices.push(Notice::AttemptStarted { attempt: self.attempts, at: now });
        // A shadow record does not pass on the run of an owner that is gone.
        let record = self.record.as_ref().filter(|_| self.dedupe() == Mode::Enforce);
        let run = record.map_or(&self.request.run, |record| &record.run).clone();
        let rest = self.policy.modes.furthest();
        let watchdog = (rest != Mode::Off).then(|| self.watchdog(first, now));
        let deadline = self.request.limits.deadline.filter(|_| rest != Mode::Off);
        let attempt = Attempt { number: self.attempts, started: now, watchdog, deadline, tickets, cut: None };
        let limits = attempt.watchdog.map(|watchdog| watchdog.due()).into_iter().chain(deadline);
        let latest = limits.min().filter(|_| rest == Mode::Enforce);
        self.state = State::Attempting(attempt);
        Step::Run(Run { attempt: self.attempts, deadline: latest, run })
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
        shared: &mut Shared<'_>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Result<Tickets, Box<Refusal>> {
        let rest = self.policy.modes.furthest();
        if rest == Mode::Off {
            return Ok(Tickets::default());
        }
        let places = match self.take_places(shared, now) {
            Ok(()) => Places::Taken,
            Err(overloaded) => match self.or_told(rest, Refusal::us(overloaded), notices) {
                Some(refusal) => return Err(Box::new(refusal)),
                None => Places::NotAsked,
            },
        };
        let admitted = self.admit_breakers(shared, now, notices);
        if admitted.is_err() && places == Places::Taken {
            shared.limiter.withdraw();
            shared.dependency_limiter.withdraw();
        }
        admitted.map(|tickets| Tickets { places, ..tickets })
    }

    /// Takes a permit of the tool's limits, and one of the dependency's limits.
    fn take_places(&self, shared: &mut Shared<'_>, now: Timestamp) -> Result<(), Failure> {
        let request = &self.request;
        shared
            .limiter
            .enter(&self.policy.limits, now)
            .map_err(|overloaded| say::overloaded(request, overloaded, now))?;
        shared.dependency_limiter.enter(&self.policy.dependency_limits, now).map_err(|overloaded| {
            shared.limiter.withdraw();
            say::dependency_overloaded(request, overloaded, now)
        })
    }

    fn admit_breakers(
        &mut self,
        shared: &mut Shared<'_>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Result<Tickets, Box<Refusal>> {
        if self.policy.modes.breaker == Mode::Off {
            return Ok(Tickets::default());
        }
        let mut tickets = Tickets::default();
        let policy = &self.policy.breaker;
        let refused = match shared.breaker.admit(policy, now) {
            Err(refused) => Some(refused),
            Ok((ticket, transition)) => {
                tickets.tool = Some(ticket);
                tell(BreakerScope::Tool, transition, notices);
                match shared.dependency.as_deref_mut().map(|breaker| breaker.admit(policy, now)) {
                    None => None,
                    Some(Err(refused)) => Some(refused),
                    Some(Ok((ticket, transition))) => {
                        tickets.dependency = Some(ticket);
                        tell(BreakerScope::Dependency, transition, notices);
                        None
                    }
                }
            }
        };
        let Some(refused) = refused else { return Ok(tickets) };
        tickets.release(shared, notices);
        let refusal = self.circuit_open(refused, now);
        match self.or_told(self.policy.modes.breaker, refusal, notices) {
            Some(refusal) => Err(Box::new(refusal)),
            None => Ok(Tickets::default()),
        }
    }

    // ---- 5. while it runs ----

    pub(super) fn attempt_wakes_at(&self, attempt: &Attempt) -> Option<Timestamp> {
        let watchdog = attempt.watchdog.filter(|_| attempt.cut.is_none())?;
        let waiting = self.caller == Caller::Waiting;
        let answer_by = self.answer_by().filter(|_| waiting);
        let limits = [attempt.deadline.filter(|_| waiting), answer_by];
        let due = limits.into_iter().flatten().fold(watchdog.due(), Timestamp::min);
        if self.shadow_told { self.ended_from(&watchdog).map(|from| from.max(due)) } else { Some(due) }
    }

    /// Returns the time from which an attempt may be ended when its time is up. While the caller waits, shadow mode
    /// ends nothing. The silence of a host that runs the tool shows that it is gone, after the call has used all its
    /// time.
    fn ended_from(&self, watchdog: &Watchdog) -> Option<Timestamp> {
        if self.caller != Caller::Waiting || !self.policy.modes.leave_alone() {
            return Some(Timestamp::ZERO);
        }
        match self.request.run_by {
            RunBy::Driver => None,
            RunBy::Host => Some(watchdog.total_at().max(watchdog.silent_at())),
        }
    }

    /// Returns true if the attempt may be cut without an open outcome: it may run again, or no record of it is kept.
    fn may_be_cut(&self) -> bool {
        self.retry_safe || self.record.is_none() || self.dedupe() != Mode::Enforce
    }

    /// Returns the time at which the caller gets the response that the call is still running. Only if calling again
    /// finds the result. In shadow mode, the time at which that response would have been sent.
    fn answer_by(&self) -> Option<Timestamp> {
        let found_again = match self.dedupe() {
            Mode::Off => false,
            Mode::Shadow => !self.shadow_told,
            Mode::Enforce => true,
        };
        self.patience().filter(|_| found_again && self.record.is_some()).map(|span| self.arrived + span)
    }

    /// Returns the time for which the caller waits, unless it is known to wait longer.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.request.waits {
            Waits::NotForLong => self.policy.time.answer_by,
            Waits::AsLongAsItTakes => None,
        }
    }

    /// Extends the watchdog and keeps the probe permit on a sign of life.
    pub(super) fn progressed(
        &mut self,
        shared: &mut Shared<'_>,
        mut attempt: Attempt,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if let Some(watchdog) = &mut attempt.watchdog {
            watchdog.progress(now);
        }
        let mut renew =
            |breaker: &mut Breaker, ticket, scope| match breaker.renew(&self.policy.breaker, ticket, now) {
                Held::ForLonger => notices.push(Notice::ProbeMoved { scope }),
                Held::Still | Held::Lost => {}
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

    pub(super) fn time_is_up(
        &mut self,
        shared: &mut Shared<'_>,
        mut attempt: Attempt,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let waiting = self.caller == Caller::Waiting;
        let Some(watchdog) = attempt.watchdog.filter(|_| attempt.cut.is_none()) else {
            return self.stay(State::Attempting(attempt));
        };
        let cut = match watchdog.verdict(now) {
            watchdog::Verdict::TotalLimit => Some(Cut::TooLong),
            _ if waiting && attempt.deadline.is_some_and(|deadline| deadline <= now) => Some(Cut::Deadline),
            watchdog::Verdict::Stuck => Some(Cut::Silent(now.since(attempt.started))),
            watchdog::Verdict::Fine { .. } => None,
        };
        match cut {
            Some(_) if self.ended_from(&watchdog).is_none_or(|from| now < from) => {
                self.shadow(Shadowed::Cut, notices);
                self.stay(State::Attempting(attempt))
            }
            Some(cut) if self.may_be_cut() => {
                notices.push(Notice::AttemptCut { cut });
                attempt.cut = Some(cut);
                self.state = State::Attempting(attempt);
                Step::Cut(cut)
            }
            // The deadline of one caller does not stop a run within the limits of its tool: calling again finds it.
            Some(Cut::Deadline) => {
                let unknown = Some(ToldUnknown { observed: Observed::NoAnswer, ended: false });
                let result = self.failed(say::deadline_while_running(&self.policy), now);
                let result = CallResult { unknown, ..result };
                let result = self.judge(shared, result, now, notices);
                self.answer_early(State::Attempting(attempt), result, Upstream::LeaveAlone, notices)
            }
            Some(cut) => self.cut_unknown(shared, attempt, cut, now, notices),
            None if waiting && self.answer_by().is_some_and(|answer_by| answer_by <= now) => {
                if self.dedupe() == Mode::Shadow {
                    self.shadow(Shadowed::Told(Code::InFlight), notices);
                    return self.stay(State::Attempting(attempt));
                }
                let result = self.failed(say::in_flight(), now);
                self.answer_early(State::Attempting(attempt), result, Upstream::LeaveAlone, notices)
            }
            None => self.stay(State::Attempting(attempt)),
        }
    }

    /// Cuts an attempt that must not be repeated while its outcome is unknown.
    fn cut_unknown(
        &mut self,
        shared: &mut Shared<'_>,
        mut attempt: Attempt,
        cut: Cut,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let took = now.since(attempt.started);
        let silent = self.host_is_silent(&attempt, now);
        if silent {
            self.abandon(shared, now, notices);
        }
        attempt.cut = Some(cut);
        // A host that is gone proves nothing about the tool.
        let counts = !silent && !self.is_callers_limit(&attempt, now);
        let verdict = if counts { Some(Verdict::Failure { took }) } else { None };
        self.record_breakers(shared, &mut attempt.tickets, verdict, now, notices);
        notices.push(Notice::AttemptCut { cut });
        let settling = Settling {
            attempt: Some(attempt),
            observed: Observed::NoAnswer,
            words: None,
            output: None,
            severity: counts.then_some(Severity::Timeout),
            why: Why::Cut(cut),
            settles: SettlesIn::WhenOwnerSays,
            by: None,
            cancel: true,
            receipt: None,
            told_from: None,
            unsaved: false,
            save_at: None,
        };
        let settles = settle::settles_after(self.request.end, Observed::NoAnswer, &self.policy.settling);
        self.outcome_unknown(shared, settling, settles, now, notices)
    }

    /// Records the end of an attempt that was cut and has no result that counts.
    pub(super) fn cut_ended(&mut self, attempt: &Attempt, now: Timestamp, notices: &mut Vec<Notice>) {
        let fault =
            Fault::new(Source::Timeout { after: now.since(attempt.started) }, "no answer came in time");
        let classified = classify(&fault, &self.policy.classify, now);
        let said = Said::of(fault, None);
        let outcome = said.outcome(&classified);
        self.attempt_ended(attempt, Some((&classified, &said)), outcome, now, notices);
    }

    pub(super) fn cancel_attempt(
        &mut self,
        mut attempt: Attempt,
        result: CallResult,
        others: Others,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match others {
            // The attempt is being ended already, or its caller was answered: nothing is left to cancel.
            Others::None if attempt.cut.is_some() => {
                self.caller = Caller::GaveUp;
                self.stay(State::Attempting(attempt))
            }
            Others::Waiting if attempt.cut.is_some() => self.stay(State::Attempting(attempt)),
            Others::Waiting if self.caller != Caller::Waiting => self.stay(State::Attempting(attempt)),
            Others::Waiting => {
                self.answer_early(State::Attempting(attempt), result, Upstream::LeaveAlone, notices)
            }
            Others::None if self.may_be_cut() => {
                self.caller = Caller::GaveUp;
                notices.push(Notice::AttemptCut { cut: Cut::Cancelled });
                attempt.cut = Some(Cut::Cancelled);
                self.state = State::Attempting(attempt);
                Step::Cut(Cut::Cancelled)
            }
            Others::None => match self.caller {
                Caller::Waiting => {
                    self.answer_early(State::Attempting(attempt), result, Upstream::Cancel, notices)
                }
                // The first caller left before; now the last one has.
                Caller::Gone => {
                    self.caller = Caller::GaveUp;
                    self.state = State::Attempting(attempt);
                    Step::CancelUpstream
                }
                Caller::GaveUp => self.stay(State::Attempting(attempt)),
            },
        }
    }

    // ---- 6. outcome ----

    pub(super) fn ran(
        &mut self,
        shared: &mut Shared<'_>,
        mut attempt: Attempt,
        outcome: Outcome,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        attempt.leave_places(shared);
        match outcome {
            Outcome::Success { output, concern } => {
                let result = self.result_digest(&output);
                let outcome = AttemptOutcome::of_success(&output, concern, result);
                self.went_well(shared, &mut attempt, outcome, now, notices);
                let ending = Ending::Done(
                    Some(output.clone()).filter(|output| output.len() <= self.policy.dedupe.largest_output),
                );
                let result = self.result(Ok(output), now);
                let result = self.judge_run(shared, result, concern, None, now, notices);
                self.save(result, ending, now, notices)
            }
            // A tool that can ask for input is healthy. The requested work has not been done, so there is nothing to
            // store, nothing to trust it for, and nothing unknown. Calls that follow this run make their own claim: a
            // repeated question does no harm, and the state that comes with it may be valid for one caller only.
            Outcome::InputRequired { output } => {
                self.went_well(shared, &mut attempt, AttemptOutcome::InputRequired, now, notices);
                self.ask_caller(shared, output, now, notices)
            }
            Outcome::NotRun { fault } => {
                let (said, classified) = self.not_run(fault, now);
                self.never_began(shared, attempt, &said, &classified, say::cancelled(), now, notices)
            }
            Outcome::Failure { .. } if self.answers_our_cut(&attempt) && !outcome.is_too_large() => {
                let after = now.since(attempt.started);
                let fault = Fault::new(Source::Timeout { after }, "the tool did not answer in time");
                let classified = classify(&fault, &self.policy.classify, now);
                self.went_wrong(shared, attempt, Said::of(fault, None), classified, now, notices)
            }
            Outcome::Failure { fault, output } => {
                let classified = classify(&fault, &self.policy.classify, now);
                self.went_wrong(shared, attempt, Said::of(fault, output), classified, now, notices)
            }
            Outcome::Remembered(failed) => {
                let classified = failed.classified();
                let said = Said::remembered(&failed);
                match said.manner {
                    Manner::NotRun => {
                        self.never_began(shared, attempt, &said, &classified, say::cancelled(), now, notices)
                    }
                    Manner::Plain | Manner::TimedOut | Manner::SessionLost => {
                        self.went_wrong(shared, attempt, said, classified, now, notices)
                    }
                }
            }
        }
    }

    /// Returns true if an error that arrives now only answers the cut by Steadfast. A host reports what it observed
    /// itself.
    fn answers_our_cut(&self, attempt: &Attempt) -> bool {
        self.request.run_by == RunBy::Driver && attempt.cut.is_some_and(|cut| cut != Cut::Cancelled)
    }

    /// Returns the failure if the outcome says that the driver could not send the attempt.
    pub(super) fn unsent(&self, outcome: &Outcome, now: Timestamp) -> Option<(Said, Classified)> {
        match outcome {
            Outcome::Failure { fault, output: None } => {
                let heard = self.not_run(fault.clone(), now);
                (heard.1.reach == Reach::NotSent).then_some(heard)
            }
            Outcome::Remembered(failed) => {
                let unsent = failed.manner == Manner::NotRun && self.request.run_by == RunBy::Driver;
                unsent.then(|| (Said::remembered(failed), failed.classified()))
            }
            Outcome::Failure { .. }
            | Outcome::Success { .. }
            | Outcome::InputRequired { .. }
            | Outcome::NotRun { .. } => None,
        }
    }

    /// Ends a call whose attempt was cut before it could be sent, and is not sent any more.
    pub(super) fn never_sent(
        &mut self,
        shared: &mut Shared<'_>,
        attempt: Attempt,
        (said, classified): (Said, Classified),
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let failure = say::never_sent(&self.request, &said.message);
        self.never_began(shared, attempt, &said, &classified, failure, now, notices)
    }

    /// Classifies a fault that proves that the tool did not run.
    fn not_run(&self, fault: Fault, now: Timestamp) -> (Said, Classified) {
        let classified = classify(&fault, &self.policy.classify, now);
        (Said { manner: Manner::NotRun, ..Said::of(fault, None) }, classified)
    }

    /// Ends a call whose runner is gone, or could not send the attempt.
    #[expect(clippy::too_many_arguments, reason = "the facts of one attempt, named once")]
    fn never_began(
        &mut self,
        shared: &mut Shared<'_>,
        mut attempt: Attempt,
        said: &Said,
        classified: &Classified,
        failure: Failure,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        attempt.leave_places(shared);
        attempt.tickets.release(shared, notices);
        let outcome = said.outcome(classified);
        self.attempt_ended(&attempt, Some((classified, said)), outcome, now, notices);
        self.put_off(shared, now);
        let result = self.failed(failure, now);
        self.release(result, Vec::new(), now, notices)
    }

    /// Records a failed attempt.
    fn went_wrong(
        &mut self,
        shared: &mut Shared<'_>,
        mut attempt: Attempt,
        said: Said,
        classified: Classified,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let took = now.since(attempt.started);
        let verdict = match (attempt.cut, classified.nature) {
            (Some(Cut::Cancelled), _) => None,
            (Some(_), _) if self.is_callers_limit(&attempt, now) => None,
            (Some(_), _) if self.is_lost_with_host(&attempt, &said, now) => None,
            // A server that lost the session is alive, and the next attempt opens a new session. If that fails, the
            // failure counts.
            (Some(_) | None, Nature::Transient) if said.manner == Manner::SessionLost => {
                Some(Verdict::Neutral)
            }
            (Some(_) | None, Nature::Transient) => Some(Verdict::Failure { took }),
            (Some(_) | None, Nature::Permanent) => Some(Verdict::Neutral),
        };
        self.record_breakers(shared, &mut attempt.tickets, verdict, now, notices);
        let outcome = said.outcome(&classified);
        self.attempt_ended(&attempt, Some((&classified, &said)), outcome, now, notices);
        self.failed_attempt(shared, &attempt, said, classified, now, notices)
    }

    /// Returns true if a limit of the caller cut the attempt within the time of the tool, which says nothing about the
    /// tool.
    fn is_callers_limit(&self, attempt: &Attempt, now: Timestamp) -> bool {
        let time = &self.policy.time;
        let heard = attempt.watchdog.map_or(attempt.started, |watchdog| watchdog.last_sign());
        attempt.cut.is_some() && now.since(heard) < time.attempt && now.since(attempt.started) < time.total
    }

    /// Returns true if the attempt was cut and its host reported nothing: see [`Self::host_is_silent`].
    fn is_lost_with_host(&self, attempt: &Attempt, said: &Said, now: Timestamp) -> bool {
        // A report that a host sends when it is asked to stop counts as any other.
        said.manner == Manner::TimedOut && attempt.cut.is_some() && self.host_is_silent(attempt, now)
    }

    /// Returns true if the host that runs this attempt may be gone. A host that is alive reports, its own timeouts too,
    /// or shows signs of life. Its silence says nothing about the tool, so neither breaker nor trust counts it, and
    /// there is no host left for another attempt.
    fn host_is_silent(&self, attempt: &Attempt, now: Timestamp) -> bool {
        match self.request.run_by {
            RunBy::Driver => false,
            RunBy::Host => {
                !attempt.watchdog.is_some_and(|watchdog| watchdog.shows_life(attempt.started, now))
            }
        }
    }

    /// Records a successful attempt, as far as its breakers are concerned.
    fn went_well(
        &mut self,
        shared: &mut Shared<'_>,
        attempt: &mut Attempt,
        outcome: AttemptOutcome,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        let verdict = Verdict::Success { took: now.since(attempt.started) };
        self.record_breakers(shared, &mut attempt.tickets, Some(verdict), now, notices);
        self.attempt_ended(attempt, None, outcome, now, notices);
    }

    fn attempt_ended(
        &mut self,
        attempt: &Attempt,
        failure: Option<(&Classified, &Said)>,
        outcome: AttemptOutcome,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        self.trouble = failure.map(|(classified, said)| LastTrouble {
            rule: classified.rule.clone(),
            message: said.shown().into(),
            http_status: said.status,
            transient: classified.nature == Nature::Transient,
        });
        // A replay starts from the first attempts; the record keeps the last ones, which show the end.
        if self.outcomes.len() < Record::MOST_ATTEMPTS {
            self.outcomes.push(outcome);
        }
        if self.facts.len() == Record::MOST_ATTEMPTS {
            self.facts.remove(0);
        }
        self.facts.push(AttemptFact {
            number: attempt.number,
            code: failure.map(|(classified, _)| classified.code),
            started: attempt.started,
            finished: now,
            rule: failure.map(|(classified, _)| classified.rule.clone()),
            retriable: failure.is_some_and(|(classified, _)| classified.nature == Nature::Transient),
        });
        notices.push(Notice::AttemptEnded {
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
        shared: &mut Shared<'_>,
        tickets: &mut Tickets,
        verdict: Option<Verdict>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        let mut give_back = |breaker: &mut Breaker, ticket: Ticket, scope| {
            let probe = ticket.is_probe();
            let transition = match verdict {
                Some(verdict) => breaker.record(&self.policy.breaker, ticket, verdict, now),
                None => {
                    breaker.release(ticket);
                    None
                }
            };
            if probe && transition.is_none() {
                notices.push(Notice::ProbeMoved { scope });
            }
            tell(scope, transition, notices);
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
        shared: &mut Shared<'_>,
        attempt: &Attempt,
        said: Said,
        classified: Classified,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let proved_not_run = matches!(classified.reach, Reach::NotSent | Reach::Refused);
        if attempt.cut == Some(Cut::Cancelled) && (self.may_be_cut() || proved_not_run) {
            self.abandon(shared, now, notices);
            let result = self.failed(say::cancelled(), now);
            return self.release(result, Vec::new(), now, notices);
        }
        if self.may_have_run(&classified) && self.policy.modes.furthest() == Mode::Shadow {
            self.shadow(Shadowed::Told(Code::OutcomeUnknown), notices);
        }
        let lost = self.is_lost_with_host(attempt, &said, now);
        if lost {
            self.abandon(shared, now, notices);
        }
        let may_repeat = (proved_not_run || self.retry_safe) && self.caller != Caller::GaveUp && !lost;
        let helps = classified.nature == Nature::Transient && may_repeat;
        let stop = if helps
            && matches!(self.store, StoreSight::Fine | StoreSight::Down)
            && attempt.cut != Some(Cut::TooLong)
        {
            // The response, if no further attempt may start after the wait.
            let failure = self.last_word(said.clone(), &classified, None, attempt.cut, now);
            self.last = Some((classified.clone(), failure));
            match self.retry(shared, attempt, &classified, now, notices) {
                Ok(step) => return step,
                Err(stop) => Some(stop),
            }
        } else {
            None
        };
        if let Some(StopReason::Schedule(stop)) = stop {
            notices.push(Notice::RetryStopped { stop });
        }
        if self.is_recorded() && (self.may_have_run(&classified) || self.answers_our_cancel(&classified)) {
            return self.lost_unknown(shared, said, classified, now, notices);
        }
        let observed = said.observed;
        let failure = self.last_word(said, &classified, stop, attempt.cut, now);
        // Without a record, the end of the attempt cannot be known.
        let unknown =
            (failure.code == Code::OutcomeUnknown).then_some(ToldUnknown { observed, ended: false });
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
        self.record.is_some() && self.dedupe() == Mode::Enforce
    }

    /// Returns true if this is the tool's response to a cancellation: it is not a result of the call, and no other
    /// caller may get it.
    fn answers_our_cancel(&self, classified: &Classified) -> bool {
        classified.reach == Reach::Answered
            && classified.code != Code::ResultTooLarge
            && self.caller == Caller::GaveUp
            && !self.retry_safe
    }

    /// Handles an attempt that has ended with an unknown outcome.
    fn lost_unknown(
        &mut self,
        shared: &mut Shared<'_>,
        said: Said,
        classified: Classified,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        // A server that answers a cancellation may continue its work all the same.
        let answers_our_cancel = self.caller == Caller::GaveUp && said.observed == Observed::ErrorAnswer;
        let settles = if answers_our_cancel {
            SettlesIn::After(self.policy.settling.linger)
        } else {
            settle::settles_after(self.request.end, said.observed, &self.policy.settling)
        };
        let why = Why::Rule(classified.rule.clone());
        let settling = Settling {
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
        shared: &mut Shared<'_>,
        attempt: &Attempt,
        classified: &Classified,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Result<Step, StopReason> {
        if self.policy.modes.retry == Mode::Off {
            return Err(StopReason::NotAsked);
        }
        let policy = &self.policy.retry;
        let schedule = self.schedule.as_mut().ok_or(StopReason::NotAsked)?;
        let next = schedule.next(policy, attempt.started, classified.retry_after, now);
        if self.policy.modes.retry == Mode::Shadow {
            match next.map_err(|stop| self.told_as(stop, classified).0) {
                Ok(_) => self.shadow(Shadowed::Retried, notices),
                Err(code) if code != classified.code => self.shadow(Shadowed::Told(code), notices),
                Err(_) => {}
            }
            return Err(StopReason::NotAsked);
        }
        let until = next.map_err(StopReason::Schedule)?;
        if self.policy.modes.breaker == Mode::Enforce {
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
            return Err(StopReason::Schedule(Stop::Budget));
        }
        notices.push(Notice::RetryScheduled { attempt: self.attempts + 1, at: until });
        if self.retries.len() < Record::MOST_ATTEMPTS {
            self.retries.push(Retried {
                attempt: attempt.number,
                latency: now.since(attempt.started),
                delay: until.since(now),
                reason: classified.rule.clone(),
            });
        }
        self.state = State::BackingOff { until };
        Ok(Step::Wait)
    }

    /// Returns the failure for the caller.
    fn last_word(
        &self,
        said: Said,
        classified: &Classified,
        stop: Option<StopReason>,
        cut: Option<Cut>,
        now: Timestamp,
    ) -> Failure {
        let transient = classified.nature == Nature::Transient;
        let words = said.words();
        let Said { message, output, observed, .. } = said;
        // If no mechanism is enforced, the tool's own message is passed on unchanged.
        if self.may_have_run(classified) && !self.policy.modes.leave_alone() {
            let (reads, policy) = (&self.request.reads, &self.policy);
            let told = say::outcome_unknown_unrecorded(reads, policy, observed, words.as_deref());
            return Failure { output, ..told.with_rule(classified.rule.clone()) };
        }
        let stuck =
            matches!(cut, Some(Cut::Silent(_) | Cut::TooLong)) && self.policy.time.silence == Silence::Stuck;
        let (code, rule) = match stop {
            // A result that is too large is an answer, and counts as one after a cut too.
            None if classified.code == Code::ResultTooLarge => (classified.code, classified.rule.clone()),
            None | Some(_) if cut == Some(Cut::Deadline) => {
                (Code::DeadlineExceeded, Cow::Borrowed("deadline"))
            }
            None | Some(StopReason::NotAsked) if stuck => (Code::StuckCall, classified.rule.clone()),
            None | Some(StopReason::NotAsked) => (classified.code, classified.rule.clone()),
            Some(StopReason::Breaker(refused)) => (Code::CircuitOpen, Cow::Borrowed(refused.by.rule())),
            Some(StopReason::Schedule(Stop::Attempts | Stop::TotalTime | Stop::RetryAfter(_))) if stuck => {
                (Code::StuckCall, classified.rule.clone())
            }
            Some(StopReason::Schedule(stop)) => self.told_as(stop, classified),
        };
        let retry_after = match stop {
            Some(StopReason::Schedule(Stop::RetryAfter(wait))) => Some(wait),
            Some(StopReason::Breaker(refused)) => refused.retry_at.map(|at| at.since(now)),
            Some(StopReason::NotAsked | StopReason::Schedule(_)) | None => classified.retry_after,
        };
        Failure {
            code,
            message: match (code, cut) {
                (Code::StuckCall, Some(cut)) => say::stuck(cut, message),
                (Code::ResultTooLarge, _) => say::result_too_large(message),
                (_, _) => say::failed(code, self.attempts, message),
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
    fn may_have_run(&self, classified: &Classified) -> bool {
        classified.reach == Reach::Unknown && !self.retry_safe
    }

    /// Returns the code and the rule of a failure after the last attempt.
    fn told_as(&self, stop: Stop, classified: &Classified) -> (Code, Cow<'static, str>) {
        match stop {
            Stop::Deadline => (Code::DeadlineExceeded, Cow::Borrowed("deadline")),
            Stop::Budget => (Code::RetryExhausted, Cow::Borrowed("retry_budget")),
            // A caller that allowed one attempt only gets the failure itself, without a note about retries.
            Stop::Attempts if self.attempts == 1 => (classified.code, classified.rule.clone()),
            Stop::Attempts | Stop::TotalTime | Stop::RetryAfter(_) => {
                (Code::RetryExhausted, classified.rule.clone())
            }
        }
    }

    /// Ends a call whose time for another attempt passed during the wait.
    fn too_late(
        &mut self,
        shared: &mut Shared<'_>,
        stop: Stop,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let Some((classified, failure)) = self.last.take() else { return self.give_up(shared, now, notices) };
        let code = match stop {
            Stop::Deadline => Code::DeadlineExceeded,
            Stop::Attempts | Stop::TotalTime | Stop::RetryAfter(_) | Stop::Budget => Code::RetryExhausted,
        };
        let message = say::failed(code, self.attempts, failure.message.into_owned());
        let result = self.failed(Failure { code, message, ..failure }, now);
        self.settle_failed(shared, result, Some(&classified), now, notices)
    }

    /// Ends the call with the last failure: no further attempt may start in the name of this record.
    pub(super) fn give_up(
        &mut self,
        shared: &mut Shared<'_>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let (classified, failure) = match self.last.take() {
            Some((classified, failure)) => (Some(classified), failure),
            None => (None, say::store_unavailable(&self.request)),
        };
        let result = CallResult { recorded: Recorded::No, ..self.failed(failure, now) };
        let result = match &classified {
            Some(Classified { severity, mistake, .. }) => {
                self.judge_run(shared, result, Some(*severity), *mistake, now, notices)
            }
            // The tool never ran.
            None => self.judge(shared, result, now, notices),
        };
        // A claim of a living process that is never released would stay for ever.
        let kept = self.kept_release().filter(|_| self.store != StoreSight::FenceLost);
        self.finish(result, kept.into_iter().collect(), now, notices)
    }

    // ---- 8. what the record becomes ----

    /// Ends a failed call: an answer of the tool is stored, a run that may have happened has an unknown outcome, and
    /// the rest is released.
    pub(super) fn settle_failed(
        &mut self,
        shared: &mut Shared<'_>,
        result: CallResult,
        classified: Option<&Classified>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let severity = classified.map(|classified| classified.severity);
        let mistake = classified.and_then(|classified| classified.mistake);
        let result = self.judge_run(shared, result, severity, mistake, now, notices);
        let Err(failure) = &result.ended else { return self.finish(result, Vec::new(), now, notices) };
        let failure = as_kept(failure.clone(), classified);
        let is_too_large = classified.is_some_and(|classified| classified.code == Code::ResultTooLarge);
        match classified.map(|classified| classified.reach) {
            // Only if no other call finds it by its record.
            Some(Reach::Unknown) if !self.retry_safe => {
                notices.push(Notice::OutcomeUnknown { of_earlier: None });
                let unknown = UnknownEnding::settled(Observed::NoAnswer);
                self.save(result, Ending::Unknown(unknown), now, notices)
            }
            // The tool has run, and a later call can be told no more than that.
            Some(Reach::Answered) if is_too_large => self.save(result, Ending::Done(None), now, notices),
            Some(Reach::Answered) => self.save(result, Ending::Failed(failure), now, notices),
            Some(Reach::NotSent | Reach::Refused | Reach::Unknown) | None => {
                // Refusals by Steadfast are never stored. Transient failures of the tool are, if the policy says so.
                let kept = classified.is_some() && self.policy.dedupe.cache_failures == CacheFailures::All;
                if kept {
                    self.save(result, Ending::Failed(failure), now, notices)
                } else {
                    self.release(result, Vec::new(), now, notices)
                }
            }
        }
    }
}

/// Returns the failure as other callers may get it: the failure of the tool, without the effect of the breaker or of
/// this caller's deadline.
fn as_kept(failure: Failure, classified: Option<&Classified>) -> Failure {
    match (failure.code, classified) {
        (Code::CircuitOpen | Code::DeadlineExceeded, Some(classified)) => {
            Failure { code: classified.code, rule: Some(classified.rule.clone()), ..failure }
        }
        (_, Some(_) | None) => failure,
    }
}

/// The response of a tool that failed.
#[derive(Clone)]
pub(super) struct Said {
    message: String,
    output: Option<Output>,
    manner: Manner,
    /// Observation for the case that the outcome is unknown.
    observed: Observed,
    /// HTTP status of the response.
    status: Option<u16>,
    /// Text to show if the message only stands for the original: in a replay.
    shown: Option<String>,
}

impl Said {
    fn of(fault: Fault, output: Option<Output>) -> Self {
        let observed = observed(&fault.source);
        let status = if let Source::Http { status } = fault.source { Some(status) } else { None };
        Self { manner: Manner::of(&fault), message: fault.message, output, observed, status, shown: None }
    }

    /// Returns the message for callers that get an unknown outcome; `None` if the tool has its own output, which is
    /// passed on unchanged.
    fn words(&self) -> Option<String> {
        let message = say::as_told(self.message.clone());
        match (&self.output, self.status) {
            (Some(_), _) => None,
            (None, Some(status)) if !message.contains(&status.to_string()) => {
                Some(format!("HTTP {status}: {message}"))
            }
            (None, Some(_) | None) => Some(message),
        }
    }

    /// Restores a recorded failure, of which only the classification is known.
    fn remembered(failed: &FailedOutcome) -> Self {
        let observed = match (failed.observed, failed.manner) {
            (Some(observed), _) => observed,
            (None, Manner::TimedOut) => Observed::NoAnswer,
            (None, Manner::Plain | Manner::SessionLost | Manner::NotRun) => Observed::ErrorAnswer,
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
    fn outcome(&self, classified: &Classified) -> AttemptOutcome {
        AttemptOutcome::of_failure(classified, self.manner, self.observed, &self.message, self.shown())
    }

    /// Returns the message for logs and the audit log.
    fn shown(&self) -> String {
        self.shown.clone().unwrap_or_else(|| say::as_told(self.message.clone()))
    }
}

/// Returns the observation for a failure source.
fn observed(source: &Source) -> Observed {
    match source {
        Source::Timeout { .. } => Observed::NoAnswer,
        Source::Transport { error: Transport::TimedOut, .. } => Observed::NoAnswer,
        Source::Transport { .. } | Source::WebSocket { .. } => Observed::ConnectionLost,
        Source::Exit { .. } => Observed::ProcessDied,
        Source::Http { .. }
        | Source::JsonRpc { .. }
        | Source::SessionLost
        | Source::IsError
        | Source::Tool
        | Source::Panic
        | Source::BadAnswer
        | Source::TooLarge => Observed::ErrorAnswer,
    }
}

/// A reason against starting an attempt.
enum Hindrance {
    /// No caller waits for the result any more.
    Unwanted,
    /// Another call owns the record, or its outcome was declared unknown.
    NotOurs,
    /// Another call may own the record: the store has to be asked.
    LeaseOver,
    /// The time is up.
    Late(Stop),
    /// The tool was blocked in the meantime.
    Blocked,
}

/// The reason why there is no further attempt.
#[derive(Clone, Copy)]
enum StopReason {
    /// Retries are off.
    NotAsked,
    /// The schedule or the retry budget allows none.
    Schedule(Stop),
    /// The breaker opened in the meantime.
    Breaker(crate::breaker::Refused),
}

impl Tickets {
    fn release(&mut self, shared: &mut Shared<'_>, notices: &mut Vec<Notice>) {
        let mut give_back = |breaker: &mut Breaker, ticket: Ticket, scope| {
            if ticket.is_probe() {
                notices.push(Notice::ProbeMoved { scope });
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
        let probe = |ticket: &Option<Ticket>| ticket.as_ref().is_some_and(Ticket::is_probe);
        scopes.into_iter().find(|(ticket, _)| probe(ticket)).map(|(_, scope)| scope)
    }

    /// Marks the probe as known to all processes that share this breaker.
    pub(super) fn agreed(&self, scope: BreakerScope, shared: &mut Shared<'_>) {
        match (scope, shared.dependency.as_deref_mut()) {
            (BreakerScope::Tool, _) => self.tool.iter().for_each(|ticket| shared.breaker.agreed(ticket)),
            (BreakerScope::Dependency, Some(breaker)) => {
                self.dependency.iter().for_each(|ticket| breaker.agreed(ticket));
            }
            (BreakerScope::Dependency, None) => {}
        }
    }

    /// Returns true if all tickets are still valid.
    fn hold(&self, policy: &BreakerPolicy, shared: &Shared<'_>, now: Timestamp) -> bool {
        let holds = |breaker: &Breaker, ticket: &Option<Ticket>| {
            ticket.as_ref().is_none_or(|ticket| breaker.holds(policy, ticket, now))
        };
        holds(shared.breaker, &self.tool)
            && shared.dependency.as_deref().is_none_or(|breaker| holds(breaker, &self.dependency))
    }
}

fn tell(scope: BreakerScope, transition: Option<Transition>, notices: &mut Vec<Notice>) {
    if let Some(transition) = transition {
        notices.push(Notice::BreakerChanged { scope, transition });
    }
}

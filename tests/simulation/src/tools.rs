//! The tools: their work, their answers, and the lack of either.

use steadfast_core::breaker;
use steadfast_core::call::{AttemptEndVisibility, AttemptReport, CallEvent, CutReason};
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{CallFailure, DedupeRecord, DedupeState};
use steadfast_core::guard::{self, GuardedCall};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::ToolClass;
use steadfast_json::RawJson;

use crate::Defect;
use crate::invariants::{self, InvariantViolation};
use crate::model::{CallIdentity, ClientGoal, Effect, UniqueEffect};
use crate::settling::AttemptEvent;
use crate::system::{ProbeAttempt, RunningAttempt, SimulatedWorld, is_shared};
use crate::transition::{SimulationEvent, digest, success, tool};
use crate::turns;

impl SimulatedWorld {
    pub(crate) fn start_tool(&mut self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let (now, clock, generation) = (self.now, self.clock(node), self.nodes[node].identity.started);
        let policy = self.policy();
        self.attempts += 1;
        let attempt_number = self.attempts;
        let home = &mut self.nodes[node];
        let epoch = home.epoch;
        let Some(running) = home.calls.get_mut(&number) else { return Ok(()) };
        // The probe may no longer be needed, because another process closed the breaker.
        let shared = is_shared(&running.call.request().tool);
        let half_open = shared && home.breaker.state(&policy.breaker, clock) == breaker::State::HalfOpen;
        let requested = running.probe_request.take().filter(|_| half_open);
        let probe = requested.map(|(since, is_stored)| ProbeAttempt {
            epoch: home.breaker.epoch(),
            since,
            alone: !is_stored,
        });
        running.attempt = Some(RunningAttempt {
            number: attempt_number,
            epoch,
            probe,
            started: now,
            last_progress: now,
            over: false,
            cancelled: false,
            epochs: [home.expected.epoch, home.expected_of_dependency.epoch],
            alive: running.admitted.take().unwrap_or(clock),
        });
        (running.cut, running.is_judged) = (None, false);
        running.attempts += 1;
        running.out_of_time = false;
        let first = !std::mem::replace(&mut running.sent, true);
        running.last_attempt = attempt_number;
        running.child_is_ending = false;
        let first_start = *running.first_attempt.get_or_insert(now);
        let (goal, record) = (running.goal, running.call.claimed_record().cloned());
        let dispatch = running.dispatch;
        self.may_start(node, number)?;
        self.plan_progress(node, number, attempt_number);
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return Ok(()) };
        let submission = running.in_turn.as_ref().map(|in_turn| in_turn.submission);
        let claimed = record.as_ref().map_or(now, |record| record.updated);
        if let Some(probe) = probe {
            self.one_probe(node, probe)?;
        }
        if let Some(submission) = submission {
            self.turn_may_start(submission, self.model.goals[goal].kind, claimed, first)?;
        }
        if let Some(record) = &record {
            self.sent.insert(record.owner.clone());
            if first {
                self.later(
                    self.renewal(),
                    SimulationEvent::Renew { node, generation, number, owner: record.owner.clone() },
                );
            }
        }
        let owner = record.as_ref().map(|record| record.owner.clone());
        // While faults occur, some take longer than they may.
        let works =
            self.rng.between(1, if self.faults_active() { 3_000 } else { 1_000 }) + self.draw_tool_delay();
        let ClientGoal { client, kind, arguments, .. } = self.model.goals[goal].clone();
        let intent = match kind {
            CallIdentity::Explicit(key) => Some(UniqueEffect::Explicit(key)),
            CallIdentity::CallId => Some(UniqueEffect::CallId(goal, self.dispatches[dispatch].call)),
            CallIdentity::Keyless => None,
            CallIdentity::Turn(call) => Some(UniqueEffect::Turn(call)),
        };
        let effect = Effect {
            at: now,
            intent,
            goal,
            equal: (client, arguments),
            owner,
            claimed,
            number: attempt_number,
            submitted: submission.map(|submission| self.submissions[submission].arrived),
        };
        let answer = |outcome| SimulationEvent::ToolAnswers {
            node,
            generation,
            number,
            attempt: attempt_number,
            outcome: Box::new(outcome),
        };
        if self.weather.mistaken && self.faults_active() && self.model.goals[goal].arguments == 0 {
            let fault =
                AttemptFault::new(FaultSource::JsonRpc { code: -32602 }, "Missing required parameter: path");
            self.later(works, answer(AttemptReport::Failure { fault, output: None }));
        } else if self.fault(self.weather.tool_hangs) {
            // It may still do its work later, and it may still answer.
            let some_time = self.rng.chance(60).then(|| self.rng.between(1_000, 400_000));
            self.start_work(node, effect, first_start, some_time);
            if let Some(some_time) = some_time.filter(|_| self.rng.chance(50)) {
                self.later(some_time + 1, answer(success(attempt_number)));
            }
        } else if self.fault(self.weather.tool_lost) {
            let fault = self.lost();
            let comes_after = self.before_or_after(works, 30_000);
            self.start_work(node, effect, first_start, comes_after);
            self.later(works + 1, answer(AttemptReport::Failure { fault, output: None }));
        } else if self.fault(self.weather.tool_doubts) {
            // An error that does not say whether the effect happened, before or after it has.
            let fault = self.draw_doubtful_error();
            let settle = u64::try_from(self.weather.policy.settling.settle.as_millis()).unwrap_or(0);
            let comes_after = self.before_or_after(works, settle);
            self.start_work(node, effect, first_start, comes_after);
            self.later(works + 1, answer(AttemptReport::Failure { fault, output: None }));
        } else if self.fault(self.weather.tool_fails) {
            let fault = match self.rng.between(0, 4) {
                0 => AttemptFault::new(
                    FaultSource::Transport { error: TransportError::ConnectionRefused, written: false },
                    "connection refused",
                ),
                1 => AttemptFault {
                    retry_after: self.retry_after().map(RetryAfter::Delay),
                    ..AttemptFault::new(FaultSource::Http { status: 429 }, "too many requests")
                },
                2 => AttemptFault::new(
                    FaultSource::JsonRpc { code: -32602 },
                    "Missing required parameter: path",
                ),
                3 if self.third.chance(50) => {
                    AttemptFault::new(FaultSource::IsError, "rate limit exceeded, try again later")
                }
                3 => AttemptFault::new(FaultSource::IsError, "no such account"),
                _ => AttemptFault::new(FaultSource::Http { status: 400 }, "bad request"),
            };
            self.later(works, answer(AttemptReport::Failure { fault, output: None }));
        } else if self.draw_question() {
            // It needs input first, and does nothing.
            let output = ToolOutput { content: RawJson::string("which one?"), metadata: None };
            self.later(works, answer(AttemptReport::InputRequired { output }));
        } else {
            self.start_work(node, effect, first_start, Some(works));
            let back = self.rng.between(1, 200);
            self.later(works + back, answer(success(attempt_number)));
        }
        Ok(())
    }

    /// Draws the delay of an effect that the answer leaves open: before the answer, within some time after it, or
    /// never.
    fn before_or_after(&mut self, works: u64, span: u64) -> Option<u64> {
        if self.rng.chance(self.weather.effects_missing) {
            return None;
        }
        match self.rng.chance(self.weather.effects_after) {
            true => Some(works + 1 + self.rng.between(0, span)),
            false => Some(works),
        }
    }

    /// Draws the way in which the answer to an attempt gets lost.
    fn lost(&mut self) -> AttemptFault {
        let transport = |error| FaultSource::Transport { error, written: true };
        let source = match (self.weather.end, self.rng.between(0, 2)) {
            (AttemptEndVisibility::Visible, 0) => FaultSource::Exit { code: None, signal: Some(9) },
            (AttemptEndVisibility::Hidden, 0) => transport(TransportError::TimedOut),
            (_, 1) => transport(TransportError::ConnectionReset),
            _ => transport(TransportError::ConnectionClosed),
        };
        AttemptFault::new(source, "connection lost")
    }

    /// Draws an error that proves nothing.
    fn draw_doubtful_error(&mut self) -> AttemptFault {
        match self.rng.between(0, 3) {
            0 => AttemptFault::new(FaultSource::IsError, "Request timed out"),
            1 => AttemptFault::new(FaultSource::Http { status: 504 }, "gateway timeout"),
            2 => AttemptFault::new(FaultSource::Http { status: 500 }, "internal error"),
            _ => AttemptFault::new(FaultSource::IsError, "connection reset by peer"),
        }
    }

    /// Sends a cancellation to a tool. It may ignore it, answer with an error, or still succeed.
    pub(crate) fn cancel_upstream(&mut self, node: usize, number: u64) {
        let generation = self.nodes[node].identity.started;
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return };
        let attempt = running.last_attempt;
        match &mut running.attempt {
            Some(attempt) => attempt.cancelled = true,
            None => return,
        }
        self.log_event(format!("attempt {attempt} is cancelled"));
        self.cancel_work(attempt);
        let answer = |outcome| SimulationEvent::ToolAnswers {
            node,
            generation,
            number,
            attempt,
            outcome: Box::new(outcome),
        };
        if self.rng.chance(self.weather.cut_successes) {
            // Only if it has taken effect by then.
            let late = self.rng.between(1, 20_000);
            self.later(late, answer(success(attempt)));
        } else if self.rng.chance(self.weather.cut_errors) {
            let soon = self.rng.between(1, 4_000);
            let fault = match self.rng.between(0, 2) {
                // The attempt had not even been sent, and is not sent now.
                0 if !self.has_happened(attempt) && self.third.chance(50) => {
                    self.never_happens(attempt);
                    AttemptFault::new(
                        FaultSource::Transport { error: TransportError::ConnectionClosed, written: false },
                        "never sent",
                    )
                }
                0 => self.draw_doubtful_error(),
                1 => AttemptFault::new(FaultSource::JsonRpc { code: -32_800 }, "request cancelled"),
                _ => AttemptFault::new(FaultSource::IsError, "cancelled"),
            };
            self.later(soon, answer(AttemptReport::Failure { fault, output: None }));
        }
    }

    /// Returns true if the tool asks for input before it does anything. In worlds where none does, nothing is drawn.
    fn draw_question(&mut self) -> bool {
        self.weather.tool_input_requests > 0
            && self.faults_active()
            && self.side.chance(self.weather.tool_input_requests)
    }

    pub(crate) fn effect(&mut self, effect: Effect) -> Result<(), InvariantViolation> {
        let effect = Effect { at: self.now, ..effect };
        let goal = effect.goal;
        self.log_event(format!(
            "EFFECT {} for wish {goal} ({:?}, arguments {})",
            effect.number, self.model.goals[goal].kind, effect.equal.1
        ));
        self.summary.effects += 1;
        if !self.retry_safe() {
            let after_telling = self.weather.policy.dedupe.after_telling;
            self.check_not_settled(&effect)?;
            invariants::effect(&self.model, &effect, after_telling)?;
            if self.is_obedient(goal) {
                invariants::once_for_the_obedient(&self.model, &effect)?;
            }
        } else if let Some(UniqueEffect::Turn(made)) = effect.intent
            && !is_safe_to_repeat(self.weather.policy.class)
        {
            // A tool that may be called again does not allow another one to do the same.
            turns::done_once(&self.model, made, &effect)?;
        }
        self.model.effects.push(effect);
        Ok(())
    }

    pub(crate) fn retry_safe(&self) -> bool {
        let policy = &self.weather.policy;
        let vouched = policy.repeat.retry_safe || policy.repeat.honours_key;
        is_safe_to_repeat(policy.class)
            || vouched
            || (policy.class == ToolClass::Unknown
                && policy.repeat.ambiguous == steadfast_core::policy::AmbiguousOutcomePolicy::Retry)
    }

    pub(crate) fn tool_answers(
        &mut self,
        node: usize,
        number: u64,
        attempt: u64,
        outcome: AttemptReport,
    ) -> Result<(), InvariantViolation> {
        let policy = self.policy();
        let (now, clock) = (self.now, self.clock(node));
        let current = self.nodes[node].calls.get(&number).and_then(|running| running.attempt);
        let Some(current) = current.filter(|current| current.number == attempt) else { return Ok(()) };
        // An effect that has not happened cannot be reported as done.
        let is_early = matches!(outcome, AttemptReport::Success { .. }) && !self.has_happened(attempt);
        if is_early && self.defect != Some(Defect::AnswerBeforeEffect) {
            return Ok(());
        }
        if let Some(running) = self.nodes[node].calls.get_mut(&number).filter(|running| running.is_marking())
        {
            running.deferred.push_back(AttemptEvent::Answered(outcome));
            return Ok(());
        }
        self.attempt_answered(node, number, attempt, &outcome);
        if self.defect == Some(Defect::ErrorAfterCutCounts)
            && let AttemptReport::Failure { fault, .. } = &outcome
        {
            self.take_for_an_answer(node, number, fault);
        }
        let (arguments, client) = {
            let goal = &self.model.goals[self.nodes[node].calls[&number].goal];
            (goal.arguments, goal.client)
        };
        if self.defect == Some(Defect::GuardCountsRetries)
            && let AttemptReport::Failure { fault, .. } = &outcome
        {
            let tool = tool();
            let call = GuardedCall { tool: &tool, arguments: digest(arguments), turn: None };
            if let Some(guard) = self.nodes[node].guards.get_mut(&client) {
                let _remarks = guard.end(
                    &policy.guard,
                    call,
                    guard::GuardedResult::Failure { message: &fault.message, mistake: None },
                    clock,
                );
            }
        }
        if self.defect == Some(Defect::LateBreakerResultCounted) && current.epoch != self.nodes[node].epoch {
            let home = &mut self.nodes[node];
            if let Ok((ticket, _)) = home.breaker.admit(&policy.breaker, clock) {
                let verdict = match &outcome {
                    AttemptReport::Success { .. } | AttemptReport::InputRequired { .. } => {
                        breaker::BreakerVerdict::Success { took: now.since(current.started) }
                    }
                    AttemptReport::Failure { .. }
                    | AttemptReport::NotRun { .. }
                    | AttemptReport::Replayed(_) => {
                        breaker::BreakerVerdict::Failure { took: now.since(current.started) }
                    }
                };
                if let Some(transition) = home.breaker.record(&policy.breaker, ticket, verdict, clock) {
                    return Err((
                        "own epoch",
                        format!(
                            "attempt {attempt} of epoch {} changed the breaker: {transition:?}",
                            current.epoch
                        ),
                    ));
                }
            }
        }
        if matches!(outcome, AttemptReport::Success { .. }) {
            let owner = self.nodes[node]
                .calls
                .get(&number)
                .and_then(|running| running.call.claimed_record())
                .map(|record| record.owner.clone());
            self.model.answered.extend(owner);
        }
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            let owner = running.call.claimed_record().map(|record| record.owner.clone());
            running.attempt = None;
            if let Some(owner) = owner.filter(|_| matches!(outcome, AttemptReport::Success { .. })) {
                self.model.finished_at.entry(owner).or_insert(now);
            }
        }
        self.drive_ended(node, number, current, CallEvent::Ran(outcome))
    }

    pub(crate) fn cut(&mut self, node: usize, number: u64, cut: CutReason) -> Result<(), InvariantViolation> {
        let (now, time) = (self.now, self.weather.policy.time);
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            // The caller's time is up, and the tool still has time.
            running.out_of_time = running.attempt.is_some_and(|attempt| {
                now.since(attempt.last_progress) < time.attempt && now.since(attempt.started) < time.total
            });
        }
        let attempt = self.nodes[node].calls.get_mut(&number).and_then(|running| running.attempt.take());
        let Some(attempt) = attempt else { return Ok(()) };
        self.cancel_work(attempt.number);
        self.abandon_attempt(attempt.number);
        let fault = AttemptFault::new(
            FaultSource::Timeout { after: self.now.since(attempt.started) },
            format!("cut: {cut:?}"),
        );
        self.drive_ended(
            node,
            number,
            attempt,
            CallEvent::Ran(AttemptReport::Failure { fault, output: None }),
        )
    }

    /// Stores a tool's reply to a cut as its answer. Only a defect does that.
    fn take_for_an_answer(&mut self, node: usize, number: u64, fault: &AttemptFault) {
        let Some(running) = self.nodes[node].calls.get(&number) else { return };
        let Some(claimed) = running.call.claimed_record().filter(|_| running.call.is_settling()) else {
            return;
        };
        let failure = CallFailure {
            code: Code::ToolError,
            message: fault.message.clone().into(),
            retriable: false,
            terminal: true,
            rule: None,
            verify: None,
            retry_after: None,
            output: None,
        };
        let record = self.store.records.get(&claimed.key).filter(|record| record.owner == claimed.owner);
        if let Some(record) = record.cloned() {
            self.store.put_directly(DedupeRecord { state: DedupeState::Failed(failure), ..record });
        }
    }

    /// Limits the time until which an attempt with this answer may still take effect.
    fn attempt_answered(&mut self, node: usize, number: u64, attempt: u64, outcome: &AttemptReport) {
        let AttemptReport::Failure { fault, .. } = outcome else { return };
        let Some(running) = self.nodes[node].calls.get(&number) else { return };
        let settling = self.weather.policy.settling;
        let is_cut = running.call.is_settling();
        let is_cancelled = running.attempt.is_some_and(|attempt| attempt.cancelled);
        let is_lost = matches!(fault.source, FaultSource::Transport { .. } | FaultSource::Exit { .. });
        match is_lost {
            true => self.abandon_attempt(attempt),
            // An error that comes after the cut does not end the attempt.
            false if is_cut => {}
            // Nor does one that comes after its caller has cancelled the call.
            false if is_cancelled => self.limit_effect(attempt, self.now + settling.linger),
            false => self.limit_effect(attempt, self.now + settling.settle),
        }
    }

    /// Feeds the end of an attempt. The attempt is put back first, so that its epoch can be compared with the
    /// breaker's.
    pub(crate) fn drive_ended(
        &mut self,
        node: usize,
        number: u64,
        attempt: RunningAttempt,
        event: CallEvent,
    ) -> Result<(), InvariantViolation> {
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            running.attempt = Some(attempt);
        }
        let step = self.feed(node, number, event)?;
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            running.attempt = None;
        }
        match step {
            Some(step) => self.act(node, number, step),
            None => Ok(()),
        }
    }
}

/// Returns true if a second run does no harm.
fn is_safe_to_repeat(class: ToolClass) -> bool {
    matches!(class, ToolClass::ReadOnly | ToolClass::Idempotent)
}

//! The expected state of a breaker, computed from all outcomes that it received.
//!
//! The breaker of the core counts in a ring and changes incrementally. This module keeps every outcome with its time
//! and answers each question by looking at all of them again. The two must agree on every change.

#![expect(clippy::wildcard_enum_match_arm, reason = "a few notices of many are looked at")]

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::breaker::{BreakerTransition, State, TransitionReason};
use steadfast_core::call::{BreakerScope, CallNotice, CutReason, NextStep};
use steadfast_core::classify::FaultNature;
use steadfast_core::code::Code;
use steadfast_core::policy::{BreakerPolicy, EnforcementMode, RateRule};

use crate::invariants::InvariantViolation;
use crate::system::{ActiveCall, RunningAttempt, SimulatedWorld, is_shared};

/// The outcome of an attempt as its breaker counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerOutcome {
    Success(Duration),
    Failure(Duration),
    Neutral,
}

/// The outcomes that one breaker received since it last changed.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedBreaker {
    state: State,
    since: Timestamp,
    until: Option<Timestamp>,
    /// Failed probes since it was last closed.
    reopened: u32,
    outcomes: Vec<(Timestamp, BreakerOutcome)>,
    /// Changes so far. An attempt that began before a change does not count after it.
    pub(crate) epoch: u64,
}

impl Default for ExpectedBreaker {
    fn default() -> Self {
        Self {
            state: State::Closed,
            since: Timestamp::ZERO,
            until: None,
            reopened: 0,
            outcomes: Vec::new(),
            epoch: 0,
        }
    }
}

impl ExpectedBreaker {
    /// Returns the change that this outcome must cause, if any.
    pub(crate) fn record_outcome(
        &mut self,
        policy: &BreakerPolicy,
        counts: BreakerOutcome,
        now: Timestamp,
    ) -> Option<(State, TransitionReason)> {
        self.outcomes.push((now, counts));
        let slow = |counts: &BreakerOutcome| match counts {
            BreakerOutcome::Success(took) | BreakerOutcome::Failure(took) => {
                policy.slow.is_some_and(|rule| *took > rule.slower_than)
            }
            BreakerOutcome::Neutral => false,
        };
        match self.state {
            State::Closed => self.opens(policy, slow, now).map(|reason| (State::Open, reason)),
            State::HalfOpen => match counts {
                BreakerOutcome::Failure(_) => Some((State::Open, TransitionReason::ProbeFailed)),
                BreakerOutcome::Success(_) if slow(&counts) => Some((State::Open, TransitionReason::Slow)),
                BreakerOutcome::Success(_) => {
                    let good = self
                        .outcomes
                        .iter()
                        .filter(|(_, outcome)| matches!(outcome, BreakerOutcome::Success(_)));
                    (good.count() as u64 >= u64::from(policy.close_after.get()))
                        .then_some((State::Closed, TransitionReason::ProbesSucceeded))
                }
                BreakerOutcome::Neutral => {
                    let last = self
                        .outcomes
                        .iter()
                        .rev()
                        .take_while(|(_, outcome)| *outcome == BreakerOutcome::Neutral);
                    (last.count() as u64 >= u64::from(policy.neutral_close_after.get()))
                        .then_some((State::Closed, TransitionReason::ProbesAnswered))
                }
            },
            State::Open | State::ForcedOpen => None,
        }
    }

    fn opens(
        &self,
        policy: &BreakerPolicy,
        slow: impl Fn(&BreakerOutcome) -> bool,
        now: Timestamp,
    ) -> Option<TransitionReason> {
        let counted: Vec<BreakerOutcome> = self
            .outcomes
            .iter()
            .filter(|(at, outcome)| *outcome != BreakerOutcome::Neutral && now.since(*at) <= policy.window)
            .map(|(_, outcome)| *outcome)
            .collect();
        if !matches!(self.outcomes.last(), Some((_, BreakerOutcome::Success(_) | BreakerOutcome::Failure(_))))
        {
            return None;
        }
        let failed = |outcome: &&BreakerOutcome| matches!(outcome, BreakerOutcome::Failure(_));
        let row = counted.iter().rev().take_while(failed).count();
        if policy.consecutive.is_some_and(|most| row >= most.get() as usize) {
            return Some(TransitionReason::Consecutive);
        }
        let reached = |rule: RateRule, bad: &dyn Fn(&BreakerOutcome) -> bool| {
            let last: Vec<&BreakerOutcome> = counted.iter().rev().take(rule.last.get() as usize).collect();
            let part = last.iter().filter(|outcome| bad(outcome)).count();
            let enough = last.len() >= rule.at_least.min(rule.last).get() as usize;
            // For whole numbers below a thousand this form of the share is exact enough.
            enough && part > 0 && part as f64 / last.len() as f64 >= rule.threshold.get()
        };
        if policy.rate.is_some_and(|rule| reached(rule, &|outcome| failed(&outcome))) {
            return Some(TransitionReason::Rate);
        }
        policy.slow.is_some_and(|rule| reached(rule.rate, &slow)).then_some(TransitionReason::Slow)
    }

    /// Handles a transition that the breaker makes because time has passed.
    fn has_cooled_down(&self, policy: &BreakerPolicy, now: Timestamp) -> bool {
        match self.state {
            State::Open => {
                let mut cooldown = policy.cooldown.first;
                for _ in 0..self.reopened {
                    cooldown = cooldown.mul_f64(policy.cooldown.growth.get()).min(policy.cooldown.cap);
                }
                now.since(self.since) >= cooldown.min(policy.cooldown.cap)
            }
            State::ForcedOpen => self.until.is_some_and(|until| now >= until),
            State::Closed | State::HalfOpen => false,
        }
    }

    /// Handles a transition of the breaker. `due` is the change that its last outcome had to cause.
    pub(crate) fn changes(
        &mut self,
        policy: &BreakerPolicy,
        change: &BreakerTransition,
        due: Option<(State, TransitionReason)>,
        now: Timestamp,
    ) -> Result<(), InvariantViolation> {
        let is_right = match change.reason {
            TransitionReason::CooledDown => change.to == State::HalfOpen && self.has_cooled_down(policy, now),
            TransitionReason::Forced | TransitionReason::Reset => true,
            TransitionReason::Consecutive
            | TransitionReason::Rate
            | TransitionReason::Slow
            | TransitionReason::ProbeFailed
            | TransitionReason::ProbesSucceeded
            | TransitionReason::ProbesAnswered => due == Some((change.to, change.reason)),
        };
        if change.from != self.state || !is_right {
            return Err((
                "breakers do as they say",
                format!(
                    "it goes {change:?}, and was {:?} since {}; due is {due:?}, after {:?}",
                    self.state,
                    self.since.as_millis(),
                    self.outcomes
                ),
            ));
        }
        self.enter_state(change.to, None, now);
        Ok(())
    }

    /// Enters a state.
    pub(crate) fn enter_state(&mut self, state: State, until: Option<Timestamp>, now: Timestamp) {
        self.reopened = match (self.state, state) {
            (State::HalfOpen, State::Open) => self.reopened + 1,
            (State::Open, State::HalfOpen) => self.reopened,
            _ => 0,
        };
        (self.state, self.since, self.until) = (state, now, until);
        self.outcomes.clear();
        self.epoch += 1;
    }

    /// Returns true if the outcome of an attempt counts: nothing has changed since it began, and a probe was not silent
    /// for too long.
    fn counts_attempt(
        &self,
        policy: &BreakerPolicy,
        attempt: &RunningAttempt,
        place: usize,
        now: Timestamp,
    ) -> bool {
        let in_time = self.state != State::HalfOpen || now.since(attempt.alive) < policy.probe_lease;
        attempt.epochs.get(place) == Some(&self.epoch) && in_time
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns true if the breaker has been closed since then. A refusal may have been decided much earlier than it is
    /// returned, because the call looks for duplicates in between.
    fn was_closed(&self, since: Timestamp) -> bool {
        self.is_closed() && self.since < since
    }

    /// Returns true if an attempt may start.
    fn lets_through(&self) -> bool {
        matches!(self.state, State::Closed | State::HalfOpen)
    }
}

impl SimulatedWorld {
    /// Remembers when a call was admitted as a probe. Any step that does not lead to an attempt releases the slot.
    pub(crate) fn note_admission(&mut self, node: usize, number: u64, step: &NextStep) {
        let clock = self.clock(node);
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return };
        match step {
            NextStep::Probe(BreakerScope::Dependency) => running.dependency_probe_requested = true,
            NextStep::Run(_) => {}
            _ => running.dependency_probe_requested = false,
        }
        match step {
            NextStep::Probe(BreakerScope::Tool) => running.admitted = Some(clock),
            NextStep::Probe(BreakerScope::Dependency) => drop(running.admitted.get_or_insert(clock)),
            NextStep::Start { .. } | NextStep::Renew | NextStep::Run(_) | NextStep::Stay => {}
            NextStep::Claim(_)
            | NextStep::Follow(_)
            | NextStep::AwaitEnd(_)
            | NextStep::Ask(_)
            | NextStep::Spend { .. }
            | NextStep::Save(_)
            | NextStep::Release(_)
            | NextStep::Cut(_)
            | NextStep::Wait
            | NextStep::CancelUpstream
            | NextStep::Answer { .. }
            | NextStep::Finish { .. } => running.admitted = None,
        }
    }

    /// Checks that a probe of a dependency was announced first to all processes that share its breaker.
    pub(crate) fn check_dependency_probe(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number) else { return Ok(()) };
        let is_probe = running.call.policy().modes.breaker == EnforcementMode::Enforce
            && home.expected_of_dependency.state == State::HalfOpen
            && self.defect.is_none();
        match is_probe && !running.dependency_probe_requested {
            true => Err((
                "one probe",
                format!("call {number} of process {node} probes the dependency without asking"),
            )),
            false => Ok(()),
        }
    }

    /// Checks that the breakers of a call have made the expected changes and no others. If processes share the breaker
    /// of the tool, it also takes over their changes; then only the breaker of the dependency is checked.
    pub(crate) fn check_breakers(
        &mut self,
        node: usize,
        number: u64,
        attempt: Option<RunningAttempt>,
        notices: &[CallNotice],
    ) -> Result<(), InvariantViolation> {
        let now = self.clock(node);
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return Ok(()) };
        running.cut = running.cut.or_else(|| notices.iter().find_map(cut_of));
        let policy = running.call.policy();
        if policy.modes.breaker != EnforcementMode::Enforce || self.defect.is_some() {
            return Ok(());
        }
        let breaker = policy.breaker;
        let counts = attempt.and_then(|attempt| running.counts(attempt, notices, self.now));
        let of_tool = is_shared(&running.call.request().tool) && !self.weather.shared_breakers;
        let has_dependency = self.weather.dependency;
        let home = &mut self.nodes[node];
        let scopes = [
            (BreakerScope::Tool, of_tool, &mut home.expected),
            (BreakerScope::Dependency, has_dependency, &mut home.expected_of_dependency),
        ];
        for (place, (scope, applies, expected)) in scopes.into_iter().enumerate() {
            if !applies {
                continue;
            }
            let counts = counts
                .zip(attempt)
                .filter(|(_, attempt)| expected.counts_attempt(&breaker, attempt, place, now));
            let mut due = counts.and_then(|(counts, _)| expected.record_outcome(&breaker, counts, now));
            for notice in notices {
                match notice {
                    CallNotice::BreakerChanged { scope: changed, transition } if *changed == scope => {
                        expected.changes(&breaker, transition, due.take(), now)?;
                    }
                    CallNotice::AttemptStarted { .. } if !expected.lets_through() => {
                        return Err((
                            "breakers do as they say",
                            format!("an attempt of call {number} starts, and a breaker is {expected:?}"),
                        ));
                    }
                    _ => {}
                }
            }
            if let Some(due) = due {
                return Err((
                    "breakers do as they say",
                    format!(
                        "call {number} of process {node}: {scope:?} should go {due:?}, after {expected:?}"
                    ),
                ));
            }
        }
        let refused = notices
            .iter()
            .any(|notice| matches!(notice, CallNotice::CallBlocked { code: Code::CircuitOpen, .. }));
        let home = &self.nodes[node];
        let arrived = home.calls.get(&number).map_or(now, |running| running.call.arrived());
        let was_closed = home.expected.was_closed(arrived) && home.expected_of_dependency.was_closed(arrived);
        if refused && of_tool && was_closed {
            return Err((
                "breakers do as they say",
                format!("call {number} of process {node} is refused, and no breaker is open"),
            ));
        }
        Ok(())
    }
}

impl ActiveCall {
    /// Returns the outcome that the breakers of this attempt receive now, at most once.
    fn counts(
        &mut self,
        attempt: RunningAttempt,
        notices: &[CallNotice],
        now: Timestamp,
    ) -> Option<BreakerOutcome> {
        let time = self.call.policy().time;
        let took = now.since(attempt.started);
        let is_callers_limit = now.since(attempt.last_progress) < time.attempt && took < time.total;
        for notice in notices {
            match notice {
                CallNotice::AttemptCut { .. } if matches!(self.call.state(), "Marking" | "Settling") => {
                    let judged = std::mem::replace(&mut self.is_judged, true);
                    return (!judged && !is_callers_limit).then_some(BreakerOutcome::Failure(took));
                }
                CallNotice::AttemptEnded { failure, .. } => {
                    if std::mem::replace(&mut self.is_judged, true) {
                        return None;
                    }
                    return match failure.as_ref().map(|failure| failure.nature) {
                        None => Some(BreakerOutcome::Success(took)),
                        Some(_) if self.cut == Some(CutReason::Cancelled) => None,
                        Some(_) if self.cut.is_some() && is_callers_limit => None,
                        Some(FaultNature::Transient) => Some(BreakerOutcome::Failure(took)),
                        Some(FaultNature::Permanent) => Some(BreakerOutcome::Neutral),
                    };
                }
                _ => {}
            }
        }
        None
    }
}

fn cut_of(notice: &CallNotice) -> Option<CutReason> {
    match notice {
        CallNotice::AttemptCut { cut } => Some(*cut),
        _ => None,
    }
}

//! The conclusions of guard and trust, compared with the true behavior of the tool.

#![expect(clippy::wildcard_enum_match_arm, reason = "a few notices of many are looked at")]

use std::collections::BTreeMap;

use steadfast_core::Timestamp;
use steadfast_core::call::CallNotice;
use steadfast_core::classify::{FaultNature, Severity};
use steadfast_core::code::Code;
use steadfast_core::guard::{ActiveRefusal, GuardedCall};
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef};
use steadfast_core::policy::{ApprovalTrigger, EnforcementMode};
use steadfast_core::trust::{TrustChange, TrustState};

use crate::invariants::InvariantViolation;
use crate::system::{RunningAttempt, SimulatedWorld, is_shared};
use crate::transition::digest;

/// The observations that a process has made of its tool, by its own clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolObservations {
    /// Ends of the calls of each client, the newest last.
    endings: Vec<CallEnding>,
    /// Calls whose failure may cost trust, with the last time at which it may have counted, and successes that may
    /// restore it.
    failures: BTreeMap<u64, JudgedFailure>,
    successes: Vec<Timestamp>,
    /// Times at which failures counted for certain.
    counted: Vec<Timestamp>,
    /// Times at which attempts began, of the tool and of all tools.
    pub(crate) starts: Vec<Timestamp>,
    pub(crate) starts_of_all: Vec<Timestamp>,
    pub(crate) firsts: Vec<Timestamp>,
    /// Times at which retries were scheduled.
    pub(crate) retries: Vec<Timestamp>,
    /// The last change of trust, with the new state.
    trust: Option<(Timestamp, TrustState)>,
}

/// A call that has failed.
#[derive(Clone, Debug)]
struct JudgedFailure {
    arrived: Timestamp,
    at: Timestamp,
    /// Severities that any of its attempts may have counted as.
    severities: Vec<Severity>,
}

#[derive(Clone, Debug)]
struct CallEnding {
    client: usize,
    arguments: Digest,
    at: Timestamp,
    /// The failure and its text. `None` for everything that is not a plain failure.
    failed: Option<(Digest, String)>,
}

impl ToolObservations {
    fn fails(&mut self, number: u64, arrived: Timestamp, severity: Severity, now: Timestamp) {
        let failed =
            self.failures.entry(number).or_insert(JudgedFailure { arrived, at: now, severities: Vec::new() });
        failed.at = now;
        failed.severities.push(severity);
    }

    /// Records when a failed call counts: at its end, which may be later.
    fn counts_now(&mut self, number: u64, now: Timestamp) {
        if let Some(failed) = self.failures.get_mut(&number) {
            failed.at = now;
        }
    }
}

impl SimulatedWorld {
    /// Checks that guard and trust have a reason for every action, and act whenever they have a reason.
    pub(crate) fn check_judgements(
        &mut self,
        node: usize,
        number: u64,
        attempt: Option<RunningAttempt>,
        notices: &[CallNotice],
    ) -> Result<(), InvariantViolation> {
        let now = self.clock(node);
        let started = notices.iter().filter(|notice| matches!(notice, CallNotice::AttemptStarted { .. }));
        self.nodes[node].observations.starts_of_all.extend(started.map(|_| now));
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        if !is_shared(&running.call.request().tool) || self.defect.is_some() {
            return Ok(());
        }
        let is_plain = running.in_turn.is_none()
            && !running.answered
            && running.cut.is_none()
            && !self.dispatches[running.dispatch].withdrawn;
        let (is_first, arrived) = (running.attempts == 0, running.call.arrived());
        let is_open = matches!(running.call.state(), "Marking" | "Settling");
        let severities = running.call.policy().trust.severities.clone();
        let client = self.model.goals[running.goal].client;
        let arguments = digest(self.model.goals[running.goal].arguments);
        let again = notices.iter().any(|notice| matches!(notice, CallNotice::RetryScheduled { .. }));
        for notice in notices {
            if let CallNotice::AttemptStarted { .. } = notice
                && is_first
            {
                self.check_no_loop(node, number, (client, arguments))?;
                self.check_trusted_or_approved(node, number)?;
            }
            if let CallNotice::CallBlocked { code: Code::Overloaded, .. } = notice {
                self.check_limit_reached(node, number)?;
            }
            if let CallNotice::ApprovalRequested = notice {
                self.check_approval_reason(node, number)?;
            }
            let observations = &mut self.nodes[node].observations;
            match notice {
                CallNotice::AttemptStarted { attempt, .. } => {
                    observations.starts.push(now);
                    if *attempt == 1 {
                        observations.firsts.push(now);
                    }
                }
                CallNotice::RetryScheduled { .. } => observations.retries.push(now),
                CallNotice::AttemptEnded { failure, .. } => {
                    match failure {
                        Some(failure) => {
                            observations.fails(number, arrived, failure.severity, now);
                        }
                        None => observations.successes.push(now),
                    }
                    let plain = failure
                        .as_ref()
                        .filter(|failure| is_plain && failure.nature == FaultNature::Permanent);
                    let failed = plain.map(|failure| (arguments, failure.message.to_string()));
                    if !again {
                        observations.endings.push(CallEnding { client, arguments, at: now, failed });
                    }
                    let counts =
                        failure.as_ref().is_some_and(|failure| severities.contains(&failure.severity));
                    if counts && is_plain && !again && !is_open {
                        observations.counted.push(now);
                    }
                }
                CallNotice::AttemptCut { .. } if attempt.is_some() => {
                    observations.fails(number, arrived, Severity::Timeout, now);
                }
                CallNotice::AnsweredEarly { .. } => observations.counts_now(number, now),
                CallNotice::CallFinished { code, replayed, .. } => {
                    observations.counts_now(number, now);
                    // A refusal by anything but the guard is another failure.
                    let is_refused =
                        is_first && !matches!(code, Some(Code::LoopDetected | Code::ToolErrorLimit));
                    if code.is_none() || *replayed || is_refused {
                        observations.endings.push(CallEnding { client, arguments, at: now, failed: None });
                    }
                }
                CallNotice::TrustChanged(change) => {
                    observations.counts_now(number, now);
                    self.trust_changes(node, change)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that a call is not made again at once after it has failed in the same way as often as a model may repeat
    /// it.
    fn check_no_loop(
        &self,
        node: usize,
        number: u64,
        (client, arguments): (usize, Digest),
    ) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number).filter(|running| running.in_turn.is_none()) else {
            return Ok(());
        };
        let policy = running.call.policy();
        if policy.modes.guard != EnforcementMode::Enforce {
            return Ok(());
        }
        let most = policy.guard.identical.get() as usize;
        let of_client: Vec<&CallEnding> = home
            .observations
            .endings
            .iter()
            .rev()
            .filter(|ending| ending.client == client)
            .take(most)
            .collect();
        let (now, arrived) = (self.clock(node), running.call.arrived());
        let is_recent =
            |ending: &&&CallEnding| ending.at < arrived && now.since(ending.at) < policy.guard.hold;
        let failure = of_client
            .first()
            .and_then(|ending| ending.failed.as_ref())
            .filter(|(failed, _)| *failed == arguments);
        let is_loop = failure.is_some_and(|failure| {
            let same =
                of_client.iter().filter(is_recent).filter(|ending| ending.failed.as_ref() == Some(failure));
            same.count() >= most
        });
        // An invalid call stays invalid, whatever else works.
        let of_call: Vec<&CallEnding> = home
            .observations
            .endings
            .iter()
            .rev()
            .filter(|ending| ending.client == client && ending.arguments == arguments)
            .take(most)
            .collect();
        let is_mistake = |ending: &&&CallEnding| {
            ending
                .failed
                .as_ref()
                .is_some_and(|(_, message)| message.starts_with("Missing required parameter"))
        };
        let is_loop = is_loop || of_call.iter().filter(is_recent).filter(is_mistake).count() >= most;
        if is_loop {
            return Err((
                "loops end",
                format!("call {number} of process {node} runs after {most} equal failures: {of_client:?}"),
            ));
        }
        Ok(())
    }

    /// Checks that an approval is requested only while the tool is not trusted, and that this ends by itself.
    fn check_approval_reason(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number) else { return Ok(()) };
        let (now, policy) = (self.clock(node), running.call.policy());
        if policy.approval.when == ApprovalTrigger::Always || policy.modes.trust != EnforcementMode::Enforce {
            return Ok(());
        }
        let has_reason = match home.observations.trust {
            Some((at, TrustState::Escalated)) => {
                let last = home.observations.failures.values().map(|failed| failed.at).max().unwrap_or(at);
                now < (at + policy.trust.duration).max(last + policy.trust.cooldown)
            }
            Some((_, TrustState::Blocked)) => true,
            Some((_, TrustState::Trusted | TrustState::Recovering)) | None => false,
        };
        match has_reason {
            true => Ok(()),
            false => Err((
                "trust has reasons",
                format!(
                    "approval is requested for call {number} of process {node}, and the tool is {:?}",
                    home.observations.trust
                ),
            )),
        }
    }

    /// Checks that the tool runs only with approval while it is not trusted.
    fn check_trusted_or_approved(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number) else { return Ok(()) };
        let (now, policy) = (self.clock(node), running.call.policy());
        let needs_approval =
            policy.modes.trust == EnforcementMode::Enforce && policy.approval.when != ApprovalTrigger::Never;
        let Some((at, state)) =
            home.observations.trust.filter(|_| needs_approval && self.weather.other_answers == 0)
        else {
            return Ok(());
        };
        let holds = match state {
            // A call that was already in flight by then may run.
            TrustState::Escalated => at < running.call.arrived() && now.since(at) < policy.trust.duration,
            TrustState::Blocked => true,
            TrustState::Trusted | TrustState::Recovering => false,
        };
        if holds && !running.granted {
            return Err((
                "nobody runs what is not trusted",
                format!("call {number} of process {node} runs while the tool is {state:?}"),
            ));
        }
        Ok(())
    }

    fn trust_changes(&mut self, node: usize, change: &TrustChange) -> Result<(), InvariantViolation> {
        let now = self.clock(node);
        let rule = self.weather.policy.trust.clone();
        let observations = &mut self.nodes[node].observations;
        let (since, was) = observations.trust.unwrap_or((Timestamp::ZERO, TrustState::Trusted));
        let recent = |failed: &&JudgedFailure| {
            failed.severities.iter().any(|severity| rule.severities.contains(severity))
                && now.since(failed.at) <= rule.window
                && failed.at >= since
        };
        let failures = observations.failures.values().filter(recent).count();
        // A call that was in flight when trust was lost does not make it worse.
        let further =
            observations.failures.values().filter(recent).filter(|failed| failed.arrived >= since).count();
        let successes = observations.successes.iter().filter(|at| **at >= since).count();
        let enough = match (rule.count, rule.consecutive, rule.rate) {
            (Some(count), None, None) => failures >= count.get() as usize,
            _ => failures > 0,
        };
        let has_reason = match (change.from, change.to) {
            (TrustState::Trusted, TrustState::Escalated) => enough,
            (TrustState::Recovering, TrustState::Escalated) => failures > 0,
            (TrustState::Escalated, TrustState::Recovering) => {
                let last = observations.counted.iter().filter(|at| (since..now).contains(*at)).max();
                now.since(since) >= rule.duration && last.is_none_or(|last| now.since(*last) >= rule.cooldown)
            }
            (TrustState::Recovering, TrustState::Trusted) => {
                successes >= rule.successes_to_recover.get() as usize
            }
            (TrustState::Escalated, TrustState::Blocked) => further >= rule.block_after.get() as usize,
            (_, TrustState::Blocked | TrustState::Trusted)
            | (_, TrustState::Recovering | TrustState::Escalated) => false,
        };
        if change.from != was || !has_reason {
            return Err((
                "trust has reasons",
                format!(
                    "process {node}: {change:?}, was {was:?} since {}, {failures} failures, {successes} successes",
                    since.as_millis()
                ),
            ));
        }
        observations.trust = Some((now, change.to));
        Ok(())
    }

    /// Records that an operator has set the trust in the tool.
    pub(crate) fn trust_was_set(&mut self, node: usize, state: TrustState) {
        let now = self.clock(node);
        self.nodes[node].observations.trust = Some((now, state));
    }

    /// Returns the guard's refusals for the client of a call, in worlds where models loop.
    pub(crate) fn stopped(&self, node: usize, number: u64) -> Vec<ActiveRefusal> {
        let home = &self.nodes[node];
        let running = home.calls.get(&number).filter(|_| self.weather.mistaken);
        let guard = running.and_then(|running| home.guards.get(&self.model.goals[running.goal].client));
        guard.map_or_else(Vec::new, |guard| guard.stopped(&self.weather.policy.guard, self.clock(node)))
    }

    /// Checks that a repeated request does not make the guard refuse for longer.
    pub(crate) fn no_refusal_prolongs(
        &self,
        node: usize,
        number: u64,
        before: &[ActiveRefusal],
        notices: &[CallNotice],
    ) -> Result<(), InvariantViolation> {
        let by_guard = |notice: &CallNotice| {
            matches!(notice, CallNotice::CallBlocked { code: Code::LoopDetected | Code::ToolErrorLimit, .. })
        };
        if !notices.iter().any(by_guard) {
            return Ok(());
        }
        let after = self.stopped(node, number);
        let name = |stopped: &ActiveRefusal| {
            (stopped.layer, stopped.tool.clone(), stopped.arguments, stopped.turn.clone())
        };
        let is_same = |one: &ActiveRefusal, other: &ActiveRefusal| name(one) == name(other);
        let longer =
            after.iter().find(|now| before.iter().any(|was| is_same(now, was) && now.until > was.until));
        match longer {
            Some(longer) => {
                Err(("loops end", format!("a refusal at process {node} makes this last longer: {longer:?}")))
            }
            None => Ok(()),
        }
    }

    /// Checks that a tool that never failed is not refused because another one does.
    pub(crate) fn healthy_tool_is_free(&self, node: usize, client: usize) -> Result<(), InvariantViolation> {
        let Some(guard) = self.nodes[node].guards.get(&client) else { return Ok(()) };
        let tool = ToolRef {
            namespace: Namespace::new("bank").expect("a name"),
            tool: ToolName::new("rates").expect("a name"),
        };
        let call = GuardedCall { tool: &tool, arguments: digest(0), turn: None };
        match guard.would_refuse(&self.weather.policy.guard, call, self.clock(node)) {
            Some(refusal) => Err((
                "a healthy tool is free",
                format!("a tool that never failed is refused at process {node}: {}", refusal.text),
            )),
            None => Ok(()),
        }
    }
}

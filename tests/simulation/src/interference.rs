//! Interference with calls other than faults: limits of callers and of tools, a blocked tool, a store that fails
//! slowly, and signs of life, which keep a call running. This module also has the invariants for the start of an
//! attempt.

use std::num::NonZeroU32;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalDecision, DecisionEffect, Grantor, ParkedRequestId};
use steadfast_core::call::{ApprovalOutcome, CallEvent};
use steadfast_core::dedupe::{DedupeRecord, DedupeState};
use steadfast_core::policy::{EnforcementMode, RateLimit, StoreFailurePolicy, ToolClass};
use steadfast_core::retry::CallerLimits;
use steadfast_core::trust::{NotifyChoice, TrustState, TrustTarget};

use crate::invariants::InvariantViolation;
use crate::model::CallIdentity;
use crate::system::{ActiveCall, SimulatedWorld, is_shared, lease_sight};
use crate::tables;
use crate::transition::{SimulationEvent, tool};

impl SimulatedWorld {
    /// Draws a fault that was added later with this likelihood, while faults may still occur.
    fn draw_late_fault(&mut self, percent: u64) -> bool {
        percent > 0 && self.faults_active() && self.third.chance(percent)
    }

    /// Returns the milliseconds after which an impatient caller leaves.
    pub(crate) fn draw_early_departure(&mut self) -> Option<u64> {
        self.draw_late_fault(self.weather.hasty).then(|| self.third.between(1, 500))
    }

    /// Returns true if a client sends the next message on its second connection to that process.
    pub(crate) fn draw_second_connection(&mut self) -> bool {
        self.draw_late_fault(self.weather.second_lines)
    }

    /// Returns the milliseconds after which a holder renews its lease.
    pub(crate) fn renewal(&self) -> u64 {
        u64::try_from(self.weather.policy.dedupe.keep.lease.as_millis() / 3).unwrap_or(40_000)
    }

    /// Returns the additional milliseconds that a command is in transit.
    pub(crate) fn draw_command_delay(&mut self) -> u64 {
        if self.draw_late_fault(self.weather.slow_store) { self.third.between(1, 400) } else { 0 }
    }

    /// Returns the additional milliseconds that a tool works.
    pub(crate) fn draw_tool_delay(&mut self) -> u64 {
        if self.draw_late_fault(self.weather.slow_tools) { self.third.between(1_000, 150_000) } else { 0 }
    }

    /// Returns the additional milliseconds that a store takes to fail.
    pub(crate) fn draw_failure_delay(&mut self) -> u64 {
        if self.draw_late_fault(self.weather.slow_failures) { self.third.between(500, 8_000) } else { 0 }
    }

    pub(crate) fn caller_limits(&mut self) -> CallerLimits {
        let mut limits = CallerLimits::default();
        if self.draw_late_fault(self.weather.caller_limits) {
            match self.third.between(0, 2) {
                0 => limits.attempts = Some(u32::try_from(self.third.between(0, 8)).unwrap_or(1)),
                1 => limits.elapsed = Some(Duration::from_millis(self.third.between(10, 20_000))),
                _ => limits.attempt = Some(Duration::from_millis(self.third.between(10, 20_000))),
            }
        }
        limits
    }

    /// Draws an approval that is not a grant for one call.
    pub(crate) fn draw_other_approval(
        &mut self,
        parked: Option<ParkedRequestId>,
        now: Timestamp,
    ) -> Option<ApprovalOutcome> {
        if !self.draw_late_fault(self.weather.other_answers) {
            return None;
        }
        let (decision, grantor) = match self.third.between(0, 3) {
            // The client's own user approves this very call.
            0 => return Some(ApprovalOutcome::Granted(None)),
            1 => (ApprovalDecision::Session, Grantor::Operator),
            2 => (ApprovalDecision::Time { until: now + Duration::from_secs(60) }, Grantor::Operator),
            _ => (ApprovalDecision::Once, Grantor::Client),
        };
        match self.store.approvals.decide(parked?, decision, grantor, now) {
            Ok(DecisionEffect::Granted { grant, .. }) => {
                self.store.grants(grant, self.now);
                Some(ApprovalOutcome::Granted(Some(grant)))
            }
            Ok(DecisionEffect::Denied) | Err(_) => None,
        }
    }

    /// Checks that a call continues despite a store failure only if a duplicate does no harm or the settings allow it.
    pub(crate) fn may_go_on(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        let (request, policy) = (running.call.request(), running.call.policy());
        if policy.modes.dedupe != EnforcementMode::Enforce {
            return Ok(());
        }
        let by_class = match policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => false,
            ToolClass::Unknown => policy.dedupe.on_store_failure == StoreFailurePolicy::GoOn,
        };
        let is_explicit =
            matches!(self.model.goals[running.goal].kind, CallIdentity::Explicit(_) | CallIdentity::Turn(_));
        let by_key = !is_explicit || policy.dedupe.explicit_key_on_store_failure == StoreFailurePolicy::GoOn;
        match by_class && by_key && !request.hints.safety_critical {
            true => Ok(()),
            false => Err((
                "nothing runs without its claim",
                format!("call {number} of process {node} continues without the store"),
            )),
        }
    }

    /// Checks that the limit of an attempt is never later than the limits of its call.
    pub(crate) fn ends_in_time(
        &self,
        node: usize,
        number: u64,
        deadline: Option<Timestamp>,
    ) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some((running, deadline)) = home.calls.get(&number).zip(deadline) else { return Ok(()) };
        let first = home.clock(running.first_attempt.unwrap_or(self.now));
        let last = first + running.call.policy().time.total;
        let callers = running.call.request().limits.deadline.unwrap_or(Timestamp::MAX);
        match deadline <= last.min(callers.max(self.clock(node))) {
            true => Ok(()),
            false => Err((
                "calls end in time",
                format!(
                    "an attempt of call {number} of process {node} may last until {deadline:?}, and its call until {last:?} or {callers:?}"
                ),
            )),
        }
    }

    /// Checks that a call waits for another one no longer than its own caller allows.
    pub(crate) fn follows_in_time(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        let limits = running.call.request().limits;
        let spans = limits.elapsed.map(|span| running.call.arrived() + span);
        let Some(last) = spans.into_iter().chain(limits.deadline).min() else { return Ok(()) };
        let until = running.call.wake_at().filter(|_| running.call.state() == "Following");
        match until.is_none_or(|until| until <= last) {
            true => Ok(()),
            false => Err((
                "calls end in time",
                format!(
                    "call {number} of process {node} waits until {until:?}, and its caller until {last:?}"
                ),
            )),
        }
    }

    /// Returns the retry-after delay of a tool that refuses.
    pub(crate) fn retry_after(&mut self) -> Option<Duration> {
        self.draw_late_fault(self.weather.retry_afters)
            .then(|| Duration::from_millis(self.third.between(100, 40_000)))
    }

    /// Schedules the blocking of the tool, for some time: at any time, or while a call is in flight.
    pub(crate) fn plan_blocks(&mut self, sends: &[u64]) {
        for node in 0..self.nodes.len() {
            for _ in 0..3 {
                if self.weather.blocks > 0 && self.third.chance(self.weather.blocks) {
                    let at = self.third.between(0, self.weather.storm);
                    let until = self.third.between(1_000, 120_000);
                    self.later(at, SimulationEvent::Block { node, until });
                }
            }
            for send in sends {
                if self.weather.blocks > 0 && self.third.chance(self.weather.blocks / 3) {
                    let at = send + self.third.between(0, 300);
                    let until = self.third.between(50, 2_000);
                    self.later(at, SimulationEvent::Block { node, until });
                }
            }
        }
    }

    pub(crate) fn block(&mut self, node: usize, until: u64) {
        let now = self.clock(node);
        let home = &mut self.nodes[node];
        let generation = home.identity.started;
        if home.alive {
            let _changes = home.trust.block_tool(&tool(), "by hand", NotifyChoice::Yes, now);
            home.blocked = true;
            home.blocked_at = Some(self.now);
            self.trust_was_set(node, TrustState::Blocked);
            self.log_event(format!("the tool is blocked at process {node}"));
            self.later(until, SimulationEvent::Unblock { node, generation });
        }
    }

    pub(crate) fn unblock(&mut self, node: usize) {
        let now = self.clock(node);
        let home = &mut self.nodes[node];
        let _changes = home.trust.reset(TrustTarget::Tool(&tool()), now);
        home.blocked = false;
        self.trust_was_set(node, TrustState::Trusted);
        self.log_event(format!("the tool is free again at process {node}"));
    }

    /// Schedules signs of life for an attempt that has begun.
    pub(crate) fn plan_progress(&mut self, node: usize, number: u64, attempt: u64) {
        if self.draw_late_fault(self.weather.progress) {
            let generation = self.nodes[node].identity.started;
            let after = self.third.between(200, 20_000);
            self.later(after, SimulationEvent::Progress { node, generation, number, attempt });
        }
    }

    pub(crate) fn progress(
        &mut self,
        node: usize,
        number: u64,
        attempt: u64,
    ) -> Result<(), InvariantViolation> {
        let current = self.nodes[node].calls.get(&number).and_then(|running| running.attempt);
        if current.is_none_or(|current| current.number != attempt) {
            return Ok(());
        }
        let (now, clock, probe_lease) = (self.now, self.clock(node), self.weather.policy.breaker.probe_lease);
        if let Some(attempt) =
            self.nodes[node].calls.get_mut(&number).and_then(|running| running.attempt.as_mut())
        {
            attempt.last_progress = now;
            // A probe that was silent for too long has lost its slot, and does not get it back.
            if clock.since(attempt.alive) < probe_lease {
                attempt.alive = clock;
            }
        }
        self.drive(node, number, CallEvent::Progressed)?;
        self.plan_progress(node, number, attempt);
        Ok(())
    }

    /// Checked whenever an attempt starts.
    pub(crate) fn may_start(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number) else { return Ok(()) };
        let (request, policy) = (running.call.request(), running.call.policy());
        let own = policy.retry.attempts.get();
        let most = request.limits.attempts.map_or(own, |limit| limit.max(1).min(own));
        if running.attempts > most {
            return Err((
                "no more attempts than allowed",
                format!("call {number} of process {node} makes attempt {} of {most}", running.attempts),
            ));
        }
        if !is_shared(&request.tool) {
            return Ok(());
        }
        self.runs_under_its_claim(node, number)?;
        // An operator that allowed the call before the block did not know of the block.
        let is_allowed = running.granted
            && home.blocked_at <= running.grant.and_then(|grant| self.store.granted_at(grant));
        if home.blocked && !is_allowed && policy.modes.trust == EnforcementMode::Enforce {
            return Err(("what is blocked does not run", format!("call {number} of process {node} runs")));
        }
        let running = home
            .calls
            .values()
            .filter(|other| is_shared(&other.call.request().tool) && other.call.state() == "Attempting");
        let running = running.count();
        match policy.limits.concurrency {
            Some(places) if running > usize::try_from(places.get()).unwrap_or(usize::MAX) => {
                Err(("limits hold", format!("{running} attempts run at process {node}, of {places}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that an attempt starts only under a claim that holds in the store and says there that it may have been
    /// sent. A store that fails or loses everything is an excuse.
    fn runs_under_its_claim(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        let Some(claimed) = running.call.claimed_record() else { return Ok(()) };
        let is_excused = running.store_failed
            || self.weather.emptyings > 0
            || running.call.policy().modes.dedupe != EnforcementMode::Enforce
            || self.defect.is_some();
        if is_excused {
            return Ok(());
        }
        let record = self.store.records.get(&claimed.key).filter(|record| record.owner == claimed.owner);
        let holds = |record: &DedupeRecord| {
            let sight = lease_sight(&self.nodes, self.weather.leases, &record.owner);
            record.state == DedupeState::Inflight && record.started && tables::holds(record, sight, self.now)
        };
        if record.is_some_and(holds) {
            return Ok(());
        }
        Err((
            "runs under its claim",
            format!("call {number} of process {node} starts, and the store has {record:?}"),
        ))
    }

    /// Checked when a call is refused by a limit: the concurrency limit or the rate limit is reached.
    pub(crate) fn check_limit_reached(&self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number) else { return Ok(()) };
        let (policy, tool) = (running.call.policy(), &running.call.request().tool);
        if running.claim_lost || self.weather.emptyings > 0 || self.defect.is_some() || !is_shared(tool) {
            return Ok(());
        }
        let has_place = |other: &&ActiveCall| {
            let states = ["Attempting", "Probing", "Starting", "Renewing", "Marking", "Settling"];
            states.contains(&other.call.state())
        };
        let of_tool =
            home.calls.values().filter(|other| other.call.request().tool == *tool).filter(has_place).count();
        let of_all = home.calls.values().filter(has_place).count();
        let now = self.clock(node);
        let is_full = |places: Option<NonZeroU32>, inside: usize| {
            places.is_some_and(|places| inside >= places.get() as usize)
        };
        // A call that asks to be the probe has not begun, and may have used its share.
        let probing = |other: &&ActiveCall| other.call.state() == "Probing";
        let probing_of_tool =
            home.calls.values().filter(|other| other.call.request().tool == *tool).filter(probing).count();
        let probing_of_all = home.calls.values().filter(probing).count();
        let is_too_often = |rate: Option<RateLimit>, starts: &[Timestamp], probing: usize| {
            rate.is_some_and(|rate| spent(rate, starts, now) + probing as f64 + 1.0 > limit(rate))
        };
        let too_often = is_too_often(policy.limits.rate, &home.observations.starts, probing_of_tool)
            || is_too_often(policy.dependency_limits.rate, &home.observations.starts_of_all, probing_of_all);
        let has_reason = is_full(policy.limits.concurrency, of_tool)
            || is_full(policy.dependency_limits.concurrency, of_all)
            || too_often;
        match has_reason {
            true => Ok(()),
            false => Err((
                "limits hold",
                format!(
                    "call {number} of process {node} finds no place, and {of_tool} of its tool and {of_all} of all have one"
                ),
            )),
        }
    }

    /// Checked at rest: all slots have been released.
    pub(crate) fn check_slots_released(&self) -> Result<(), InvariantViolation> {
        for (node, home) in self.nodes.iter().enumerate() {
            let of_turns = home.cells.values().map(|cell| &cell.limiter);
            let mut limiters = [&home.limiter, &home.dependency_limiter].into_iter().chain(of_turns);
            if let Some(limiter) = limiters.find(|limiter| limiter.in_flight() > 0) {
                return Err((
                    "places are given back",
                    format!("process {node} is idle, and places are taken: {limiter:?}"),
                ));
            }
        }
        Ok(())
    }
}

/// Returns the used part of a rate. Each attempt adds one, and the sum drains evenly.
fn spent(rate: RateLimit, starts: &[Timestamp], now: Timestamp) -> f64 {
    let drained =
        |span: Duration| span.as_secs_f64() * f64::from(rate.attempts.get()) / rate.per.as_secs_f64();
    let mut last = Timestamp::ZERO;
    let level = starts.iter().fold(0.0, |level: f64, at| {
        let left = (level - drained(at.since(last))).max(0.0);
        last = *at;
        left + 1.0
    });
    (level - drained(now.since(last))).max(0.0)
}

/// Returns the sum that exceeds a rate, with a tolerance for rounding.
fn limit(rate: RateLimit) -> f64 {
    const ROUNDING: f64 = 1e-6;
    f64::from(rate.attempts.get()) - ROUNDING
}

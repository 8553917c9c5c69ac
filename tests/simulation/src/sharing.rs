//! The state of the tool's breaker that processes share through the store.
//!
//! In half of the worlds every process has a breaker of its own and shares nothing.

use steadfast_core::Timestamp;
use steadfast_core::breaker::{BreakerSnapshot, State};
use steadfast_core::call::CallEvent;

use crate::Defect;
use crate::invariants::InvariantViolation;
use crate::model::GroundTruth;
use crate::system::{ProbeAttempt, SimulatedWorld, is_shared};
use crate::transition::{ReplyHandling, SimulationEvent, StoreCommand};

impl SimulatedWorld {
    /// Asks the store before a call becomes the probe.
    pub(crate) fn share_probe(&mut self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let now = self.now;
        let generation = self.nodes[node].identity.started;
        let snapshot = self.nodes[node].breaker.snapshot();
        let emptied = self.model.emptyings.len();
        let all_know = self.nodes.iter().all(|home| !home.alive || home.shared_after == emptied);
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return Ok(()) };
        if !is_shared(&running.call.request().tool) {
            return self.drive(node, number, CallEvent::Probed);
        }
        // A process that has not noticed the loss of the store will write its own state back, whatever was stored
        // since.
        running.probe_request = Some((now, all_know));
        if !self.weather.shared_breakers || self.defect == Some(Defect::ProbeNotShared) {
            return self.drive(node, number, CallEvent::Probed);
        }
        running.command += 1;
        let command = running.command;
        let lost = self.faults_active() && self.side.chance(self.weather.store_lost);
        let unanswered = self.faults_active() && self.side.chance(self.weather.store_unanswered);
        let then = if unanswered { ReplyHandling::LoseTheAnswer } else { ReplyHandling::Answer };
        let travel = self.side.between(0, 300);
        if lost {
            let fault = CallEvent::StoreFailed(steadfast_core::call::StoreFault::NotDone);
            self.later(
                travel,
                SimulationEvent::Reply { node, generation, number, command, event: Box::new(fault) },
            );
        } else {
            let store_command = Box::new(StoreCommand::Share(generation, snapshot));
            self.later(
                travel,
                SimulationEvent::Command { node, generation, number, command, store_command, then },
            );
        }
        Ok(())
    }

    /// Handles the reply. The process takes over the stored state before the call continues.
    pub(crate) fn record_probe_reply(&mut self, node: usize, number: u64, event: &CallEvent) {
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return };
        if running.call.state() != "Probing" {
            return;
        }
        if matches!(event, CallEvent::StoreFailed(_)) {
            running.probe_request = running.probe_request.map(|(since, _)| (since, false));
        } else if matches!(event, CallEvent::Probed) {
            self.adopt_shared(node);
        }
    }

    /// Merges the stored state and that of the process into the newer one. A state that a process sent before it died
    /// is only compared.
    pub(crate) fn share(&mut self, node: usize, generation: u64, sent: &BreakerSnapshot) {
        let lives = self.nodes[node].alive && self.nodes[node].identity.started == generation;
        if lives {
            self.adopt_shared(node);
        }
        let newer = if lives { self.nodes[node].breaker.snapshot() } else { sent.clone() };
        if let Some(stored) = &self.store.breaker {
            let replaces = match self.defect {
                Some(Defect::ByHandOvertaken) if is_by_hand(&newer, stored) => {
                    by_itself(&newer) > by_itself(stored)
                }
                Some(_) | None => newer.replaces(stored),
            };
            if !replaces {
                return;
            }
            self.model.broken =
                self.model.broken.take().or_else(|| self.model.by_hand(stored, &newer, self.now));
        }
        self.store.breaker = Some(newer);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if !(self.faults_active() && self.side.chance(self.weather.wake_lost)) {
                let (travel, generation) = (self.side.between(0, 500), self.nodes[other].identity.started);
                self.later(travel, SimulationEvent::Shared { node: other, generation });
            }
        }
    }

    /// Schedules the storing of a changed breaker.
    pub(crate) fn share_soon(&mut self, node: usize) {
        if self.weather.shared_breakers {
            let (gather, generation) = (self.side.between(0, 50), self.nodes[node].identity.started);
            self.later(gather, SimulationEvent::Share { node, generation });
        }
    }

    pub(crate) fn share_now(&mut self, node: usize) {
        if self.faults_active() && self.side.chance(self.weather.store_lost) {
            let generation = self.nodes[node].identity.started;
            return self.later(2_000, SimulationEvent::Share { node, generation });
        }
        let home = &self.nodes[node];
        let (generation, snapshot) = (home.identity.started, home.breaker.snapshot());
        self.share(node, generation, &snapshot);
        self.nodes[node].shared_after = self.model.emptyings.len();
    }

    pub(crate) fn adopt_shared(&mut self, node: usize) {
        let now = self.now;
        if let Some(stored) = self.store.breaker.as_ref().filter(|_| self.weather.shared_breakers) {
            let home = &mut self.nodes[node];
            let before = home.breaker.epoch();
            if self.defect == Some(Defect::ByHandOvertaken) {
                let here = home.breaker.snapshot();
                if is_by_hand(stored, &here) && by_itself(stored) <= by_itself(&here) {
                    return;
                }
            }
            let change = home.breaker.adopt(stored, now);
            home.epoch += u64::from(change.is_some() || home.breaker.epoch() != before);
            // An open breaker stays open for as long as the process that opened it decided.
            let here = home.breaker.snapshot();
            let is_same_change = stored.state() == State::Open && here.epoch() == stored.epoch();
            if is_same_change && here != *stored && self.defect.is_none() {
                let description = format!("process {node} makes {here:?} of {stored:?}");
                self.model.broken =
                    self.model.broken.take().or(Some(("breakers do as they say", description)));
            }
            if let Some(change) = change {
                self.log_event(format!(
                    "process {node}: the breaker goes {:?} -> {:?}, as stored",
                    change.from, change.to
                ));
            }
        }
    }

    /// Takes over the stored state before an operator forces or resets a breaker, if the store can be asked. Returns the
    /// time until which a forced breaker stays open. `None` if it stays open until an operator acts again.
    pub(crate) fn before_an_operator_acts(&mut self, node: usize) -> Option<Timestamp> {
        if !self.weather.shared_breakers {
            return None;
        }
        if !(self.faults_active() && self.side.chance(self.weather.store_lost)) {
            self.adopt_shared(node);
        }
        let span = self.side.chance(70).then(|| self.side.between(1_000, 90_000))?;
        Some(self.now + std::time::Duration::from_millis(span))
    }

    /// Checked when a probe starts: no other one may be in flight in the same epoch. Probes that could not be
    /// announced, and those that a store loss has removed, do not count.
    pub(crate) fn one_probe(&self, node: usize, probe: ProbeAttempt) -> Result<(), InvariantViolation> {
        let lease = self.weather.policy.breaker.probe_lease;
        let forgotten =
            |other: &ProbeAttempt| self.model.emptyings.iter().any(|emptying| emptying.at >= other.since);
        let mut under_way = 0;
        for (number, home) in self.nodes.iter().enumerate() {
            let counts = |other: &ProbeAttempt| {
                let known = if self.weather.shared_breakers {
                    !other.alone && !probe.alone && !forgotten(other)
                } else {
                    number == node
                };
                other.epoch == probe.epoch && self.now.since(other.since) < lease && known
            };
            let attempts = home.calls.values().filter_map(|running| running.attempt);
            under_way += attempts
                .filter(|attempt| !attempt.over)
                .filter_map(|attempt| attempt.probe)
                .filter(counts)
                .count();
        }
        if under_way > 1 {
            return Err(("one probe", format!("{under_way} probes at once, the last one at process {node}")));
        }
        Ok(())
    }
}

impl GroundTruth {
    /// Checks that a breaker that an operator forced open is opened by an operator or by time, whatever processes
    /// concluded meanwhile. Actions of two operators in one second that did not know of each other are not ordered.
    fn by_hand(
        &self,
        stored: &BreakerSnapshot,
        newer: &BreakerSnapshot,
        now: Timestamp,
    ) -> Option<InvariantViolation> {
        let holds = stored.state() == State::ForcedOpen && stored.until().is_none_or(|until| now < until);
        let word = times_by_hand(stored);
        let one_of_two = self.words.get(&word).is_some_and(|spoken| *spoken > 1);
        let overtaken = holds && (times_by_hand(newer) < word || times_by_hand(newer) == word && !one_of_two);
        overtaken.then(|| ("by hand", format!("{newer:?} replaces an operator action: {stored:?}")))
    }
}

/// Returns the number of the operator action that a breaker goes back to. A later action has a larger number.
pub(crate) fn times_by_hand(snapshot: &BreakerSnapshot) -> u64 {
    snapshot.epoch() / BreakerSnapshot::OPERATOR_EPOCH_STEP
}

/// Returns true if an operator action lies between the two.
fn is_by_hand(one: &BreakerSnapshot, other: &BreakerSnapshot) -> bool {
    times_by_hand(one) != times_by_hand(other)
}

/// Returns the progress of a breaker without operator actions.
fn by_itself(snapshot: &BreakerSnapshot) -> u64 {
    snapshot.epoch() % BreakerSnapshot::OPERATOR_EPOCH_STEP
}

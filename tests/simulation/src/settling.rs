//! The time until which an attempt may take effect: the laws of the simulated world.
//!
//! The settings of a policy (`linger`, `settle`, `grace`, `drain`) are promises about tools. The simulated tools keep
//! them, and often use them to the last millisecond:
//!
//! | event | the attempt may take effect until |
//! | --- | --- |
//! | nothing | the total limit of the call has passed, and the time it takes to end the attempt after that |
//! | cut, or connection lost; remote tool | `linger` later |
//! | holder silent for one lease, and another process notices; remote tool | `linger` later |
//! | cut, or connection lost; child process | the child is gone; `settle` later if its effects are remote |
//! | the end of the child is not observed in time | `linger` after that was noticed |
//! | its process dies | the leash has killed the child (at most 5 s), then as above; remote tool: `linger` later |
//! | error answer that proves nothing | `settle` later |
//! | error answer after the caller cancelled | `linger` later |
//!
//! Later effects are not simulated. They are risks that the specification names, not promises.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::{AttemptEndVisibility, AttemptReport, CallEvent, DeferredWrite};
use steadfast_core::dedupe::{ClaimOwner, RunOutcome, SettleDelay};

use crate::invariants::InvariantViolation;
use crate::model::Effect;
use crate::system::SimulatedWorld;
use crate::transition::SimulationEvent;

/// The work that an attempt has started.
#[derive(Debug)]
pub(crate) struct AttemptWork {
    node: usize,
    generation: u64,
    /// The effect, until it happens.
    effect: Option<Effect>,
    /// Time at which it happens. `None` if it never does.
    due: Option<Timestamp>,
    /// The last time at which it may happen.
    last: Timestamp,
}

/// An event of an attempt that arrives while its call waits for the store.
#[derive(Debug)]
pub(crate) enum AttemptEvent {
    Answered(AttemptReport),
    ChildEnded,
}

/// Maximum time in milliseconds that the leash takes to kill the children of a dead process.
const LEASH: u64 = 5_000;

impl SimulatedWorld {
    /// Starts the work of an attempt. Its effect happens after `delay` milliseconds, or never. `first` is the start of
    /// the first attempt of the same call.
    pub(crate) fn start_work(&mut self, node: usize, effect: Effect, first: Timestamp, delay: Option<u64>) {
        let settling = self.weather.policy.settling;
        let attempt = effect.number;
        let to_end = match self.weather.end {
            AttemptEndVisibility::Visible => settling.child_stop_time() + settling.after_child(),
            AttemptEndVisibility::Hidden => settling.linger,
        };
        // The limit that is written with the claim is counted from a slightly earlier time.
        let slack = Duration::from_secs(1);
        let last = (first + self.weather.policy.time.total + to_end).before(slack);
        let generation = self.nodes[node].identity.started;
        self.works.insert(attempt, AttemptWork { node, generation, effect: Some(effect), due: None, last });
        if let Some(delay) = delay {
            self.schedule_effect(attempt, self.now + Duration::from_millis(delay));
        }
    }

    /// Moves the effect of an attempt to this time, or to the last one that is allowed.
    pub(crate) fn schedule_effect(&mut self, attempt: u64, at: Timestamp) {
        let Some(work) = self.works.get_mut(&attempt).filter(|work| work.effect.is_some()) else { return };
        let at = at.min(work.last);
        work.due = Some(at);
        self.at(at, SimulationEvent::Effect { attempt });
    }

    /// Takes the effect of an attempt, if it is due.
    pub(crate) fn effect_due(&mut self, attempt: u64) -> Result<(), InvariantViolation> {
        let now = self.now;
        let Some(work) = self.works.get_mut(&attempt).filter(|work| work.due.is_some_and(|due| due <= now))
        else {
            return Ok(());
        };
        match work.effect.take() {
            Some(effect) => self.effect(effect),
            None => Ok(()),
        }
    }

    /// Returns true if the effect of an attempt has happened.
    pub(crate) fn has_happened(&self, attempt: u64) -> bool {
        self.works.get(&attempt).is_some_and(|work| work.effect.is_none())
    }

    /// Allows no effect of an attempt from `by` on. An effect that was due later happens before that, or never.
    pub(crate) fn limit_effect(&mut self, attempt: u64, by: Timestamp) {
        let now = self.now;
        let Some(work) = self.works.get_mut(&attempt).filter(|work| work.effect.is_some()) else { return };
        work.last = work.last.min(by.before(Duration::from_millis(1)));
        let last = work.last;
        if work.due.is_none_or(|due| due <= last) {
            return;
        }
        let left = u64::try_from(last.since(now).as_millis()).unwrap_or(0);
        match self.rng.between(0, 3) {
            _ if last < now => self.drop_effect(attempt),
            0 => self.schedule_effect(attempt, last),
            1 => {
                let sooner = now + Duration::from_millis(self.rng.between(0, left));
                self.schedule_effect(attempt, sooner);
            }
            _ => self.drop_effect(attempt),
        }
    }

    /// Delivers a cancellation to the attempt. It stops, hurries, or ignores it.
    pub(crate) fn cancel_work(&mut self, attempt: u64) {
        let Some(due) = self.works.get(&attempt).and_then(|work| work.due) else { return };
        match self.rng.between(0, 3) {
            0 => self.drop_effect(attempt),
            1 => {
                let soon = self.now + Duration::from_millis(self.rng.between(0, 40_000));
                self.schedule_effect(attempt, due.min(soon));
            }
            _ => {}
        }
    }

    /// Marks the attempt as never sent.
    pub(crate) fn never_happens(&mut self, attempt: u64) {
        self.works.remove(&attempt);
    }

    fn drop_effect(&mut self, attempt: u64) {
        if let Some(work) = self.works.get_mut(&attempt) {
            work.due = None;
        }
    }

    /// Records that an attempt has just been cut or lost. That counts from now, whenever its tool learns of it.
    pub(crate) fn attempt_given_up(&mut self, node: usize, number: u64) {
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return };
        if running.is_marking() || running.call.is_settling() {
            let attempt = running.last_attempt;
            if let Some(attempt) = running.attempt.as_mut() {
                // Its breaker has counted it.
                attempt.over = true;
            }
            self.abandon_attempt(attempt);
        }
    }

    /// Records that no caller waits for the answer of the attempt.
    pub(crate) fn abandon_attempt(&mut self, attempt: u64) {
        match self.weather.end {
            AttemptEndVisibility::Hidden => {
                let linger = self.weather.policy.settling.linger;
                self.limit_effect(attempt, self.now + linger);
            }
            // Its process ends the child.
            AttemptEndVisibility::Visible => {}
        }
    }

    /// Records that the holder of a claim was silent for one lease, and that another process has noticed.
    pub(crate) fn holder_missed(&mut self, owner: &ClaimOwner) {
        let is_owned = |work: &AttemptWork| {
            work.effect.as_ref().is_some_and(|effect| effect.owner.as_ref() == Some(owner))
        };
        let works = self.works.iter().filter(|(_, work)| is_owned(work));
        let attempts: Vec<u64> = works.map(|(attempt, _)| *attempt).collect();
        for attempt in attempts {
            self.abandon_attempt(attempt);
        }
    }

    /// Records that a process is gone. The leash kills its children, and no process waits for remote tools.
    pub(crate) fn limit_orphans(&mut self, node: usize) {
        let generation = self.nodes[node].identity.started;
        let settling = self.weather.policy.settling;
        let works = self.works.iter().filter(|(_, work)| work.node == node && work.generation == generation);
        let attempts: Vec<u64> = works.map(|(attempt, _)| *attempt).collect();
        for attempt in attempts {
            let span = match self.weather.end {
                AttemptEndVisibility::Visible => {
                    Duration::from_millis(self.rng.between(0, LEASH)) + settling.after_child()
                }
                AttemptEndVisibility::Hidden => settling.linger,
            };
            self.limit_effect(attempt, self.now + span);
        }
    }

    /// Checks that a process which shuts down without having observed the end of a child leaves the leash its time in
    /// the writes that it defers. `from` is the index of the first new deferred write.
    pub(crate) fn end_is_not_made_up(&self, node: usize, from: usize) -> Result<(), InvariantViolation> {
        let least = Duration::from_millis(LEASH) + self.weather.policy.settling.after_child();
        for (_, write) in self.nodes[node].deferred.iter().skip(from) {
            let DeferredWrite::Save(save) = write else { continue };
            let RunOutcome::Unknown(unknown) = &save.ending else { continue };
            let span = match unknown.settles {
                SettleDelay::WhenOwnerReports => continue,
                SettleDelay::After(span) => span,
                SettleDelay::Settled => Duration::ZERO,
            };
            if span < least && self.defect.is_none() {
                let owner = &save.claimed.owner;
                return Err((
                    "nothing after the end",
                    format!("{owner:?} ends, and records that its child is gone in {span:?}"),
                ));
            }
        }
        Ok(())
    }

    /// Ends the child of a call that waits for the end of its attempt.
    pub(crate) fn end_child(&mut self, node: usize, number: u64) {
        let generation = self.nodes[node].identity.started;
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return };
        if !running.call.awaits_end() || std::mem::replace(&mut running.child_is_ending, true) {
            return;
        }
        let attempt = running.last_attempt;
        let owner = running.call.claimed_record().map(|record| record.owner.clone());
        let settling = self.weather.policy.settling;
        // Sometimes a child cannot be ended, or its end cannot be observed.
        if self.faults_active() && self.rng.chance(3) {
            self.unseen.extend(owner);
            let by = self.now + settling.child_stop_time() + settling.linger;
            // The call counts from when the attempt was cut, slightly earlier.
            return self.limit_effect(attempt, by.before(Duration::from_secs(1)));
        }
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(0);
        let takes = if self.rng.chance(30) {
            self.rng.between(0, 2_000)
        } else {
            millis(settling.grace) + self.rng.between(0, millis(settling.drain)) + self.rng.between(0, 8_000)
        };
        self.later(takes, SimulationEvent::ChildEnded { node, generation, number, attempt });
    }

    /// Records that the child of an attempt is gone, and that its last output was read.
    pub(crate) fn child_ended(
        &mut self,
        node: usize,
        number: u64,
        attempt: u64,
    ) -> Result<(), InvariantViolation> {
        let after = self.weather.policy.settling.after_child();
        self.limit_effect(attempt, self.now + after);
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return Ok(()) };
        if running.last_attempt != attempt {
            return Ok(());
        }
        if running.is_marking() {
            running.deferred.push_back(AttemptEvent::ChildEnded);
            return Ok(());
        }
        if !running.call.is_settling() {
            return Ok(());
        }
        running.attempt = None;
        self.drive(node, number, CallEvent::Settled)
    }

    /// Records that a call has stopped waiting for the end of its child.
    pub(crate) fn child_end_unseen(&mut self, node: usize, number: u64) {
        let linger = self.weather.policy.settling.linger;
        if let Some(running) = self.nodes[node].calls.get(&number) {
            let attempt = running.last_attempt;
            self.unseen.extend(running.call.claimed_record().map(|record| record.owner.clone()));
            self.limit_effect(attempt, self.now + linger);
        }
    }

    /// Feeds the events that arrived while the unknown outcome was being recorded, in order.
    pub(crate) fn feed_deferred(&mut self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return Ok(()) };
        if !running.call.is_settling() {
            return Ok(());
        }
        let attempt = running.last_attempt;
        match running.deferred.pop_front() {
            Some(AttemptEvent::Answered(outcome)) => self.tool_answers(node, number, attempt, outcome),
            Some(AttemptEvent::ChildEnded) => self.child_ended(node, number, attempt),
            None => Ok(()),
        }
    }
}

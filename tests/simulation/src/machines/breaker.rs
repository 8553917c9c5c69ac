//! Two breakers that share a store: their transitions, their probes, and the state that they take over from each other.

use std::collections::VecDeque;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::breaker::{
    BreakerPermit, BreakerRefusal, BreakerRefusalCause, BreakerSnapshot, BreakerTicket, BreakerTransition,
    BreakerVerdict, CircuitBreaker, ForcedOpenCause, SharedBreaker, State, TicketRenewal, TransitionReason,
};
use steadfast_core::policy::{BreakerCooldown, BreakerPolicy, GrowthFactor, RateRule, Ratio, SlowRule};

use super::{MachineTrace, agree, few, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "breakers do as they say";

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    alone(rng, machine_trace)?;
    together(rng, machine_trace)
}

fn policy(rng: &mut Rng) -> BreakerPolicy {
    let rate = |rng: &mut Rng| RateRule {
        threshold: Ratio::percent(*rng.pick(&[1, 25, 50, 75, 100])),
        last: few(rng, 1, 8),
        at_least: few(rng, 1, 5),
    };
    BreakerPolicy {
        consecutive: optional(rng, |rng| few(rng, 1, 4)),
        rate: optional(rng, rate),
        slow: optional(rng, |rng| SlowRule { slower_than: millis(100), rate: rate(rng) }),
        window: millis(*rng.pick(&[1, 1_000, 10_000, 120_000])),
        cooldown: BreakerCooldown {
            first: millis(*rng.pick(&[0, 100, 1_000])),
            growth: *rng.pick(&[GrowthFactor::ONE, GrowthFactor::TWO]),
            cap: millis(*rng.pick(&[100, 2_500, 1_000_000])),
        },
        close_after: few(rng, 1, 3),
        neutral_close_after: few(rng, 1, 4),
        probe_lease: millis(*rng.pick(&[1, 300, 3_000])),
        forced_open: rng.chance(3),
    }
}

/// An outcome that was counted while closed.
#[derive(Clone, Copy, Debug)]
struct CountedOutcome {
    at: Timestamp,
    failed: bool,
    slow: bool,
}

/// The slot of a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProbePlace {
    number: u64,
    alive: Timestamp,
    announced: Timestamp,
    /// `Ok` if all processes that share the breaker know of it; else the previous holder of the slot.
    agreed: Result<(), Option<u64>>,
}

/// The state of a half-open breaker, as far as other processes know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ReferenceTrial {
    turn: u32,
    good: u32,
    neutral: u32,
    probe: Option<(u64, Timestamp)>,
}

/// The stored state.
#[derive(Clone, Debug)]
struct ReferenceSnapshot {
    epoch: u64,
    state: State,
    changed: Option<(Timestamp, TransitionReason)>,
    reopened: u32,
    until: Option<Timestamp>,
    trial: Option<ReferenceTrial>,
    changes: VecDeque<BreakerTransition>,
}

impl ReferenceSnapshot {
    fn order(&self) -> (u64, u32) {
        (self.epoch, self.trial.map_or(0, |trial| trial.turn))
    }
}

#[derive(Clone, Debug)]
struct ReferenceBreaker {
    epoch: u64,
    state: State,
    /// Start of the current state, for the cool-down.
    since: Timestamp,
    changed: Option<(Timestamp, TransitionReason)>,
    changes: VecDeque<BreakerTransition>,
    until: Option<Timestamp>,
    reopened: u32,
    turn: u32,
    good: u32,
    neutral: u32,
    probe: Option<ProbePlace>,
    released: Option<u64>,
    counted: Vec<CountedOutcome>,
    reach: [u32; 3],
}

/// A ticket with the reference's knowledge of it.
struct ReferenceTicket {
    ticket: BreakerTicket,
    epoch: u64,
    probe: Option<u64>,
}

impl ReferenceBreaker {
    fn new() -> Self {
        Self {
            epoch: 0,
            state: State::Closed,
            since: Timestamp::ZERO,
            changed: None,
            changes: VecDeque::new(),
            until: None,
            reopened: 0,
            turn: 0,
            good: 0,
            neutral: 0,
            probe: None,
            released: None,
            counted: Vec::new(),
            reach: [0; 3],
        }
    }

    fn cooldown(&self, policy: &BreakerPolicy) -> Duration {
        let BreakerCooldown { first, growth, cap } = policy.cooldown;
        (0..self.reopened).fold(first, |span, _| span.mul_f64(growth.get()).min(cap)).min(cap)
    }

    fn probes(&self, policy: &BreakerPolicy, now: Timestamp) -> bool {
        self.probe.is_some_and(|probe| probe.alive + policy.probe_lease > now)
    }

    fn refused(&self, policy: &BreakerPolicy, now: Timestamp) -> Option<BreakerRefusal> {
        let refused = |state, retry_at, by| Some(BreakerRefusal { state, retry_at, by });
        if policy.forced_open {
            return refused(State::ForcedOpen, None, BreakerRefusalCause::Configuration);
        }
        match self.state {
            State::Closed => None,
            State::Open => {
                let over = self.since + self.cooldown(policy);
                if over > now {
                    refused(State::Open, Some(over), BreakerRefusalCause::Failures)
                } else {
                    None
                }
            }
            State::HalfOpen if self.probes(policy, now) => {
                let lease = self.probe.map_or(now, |probe| probe.alive) + policy.probe_lease;
                refused(
                    State::HalfOpen,
                    Some(lease.min(now + policy.cooldown.first)),
                    BreakerRefusalCause::Failures,
                )
            }
            State::HalfOpen => None,
            State::ForcedOpen if self.until.is_some_and(|until| now >= until) => None,
            State::ForcedOpen => refused(State::ForcedOpen, self.until, BreakerRefusalCause::Operator),
        }
    }

    fn becomes(&mut self, to: State, reason: TransitionReason, now: Timestamp) -> BreakerTransition {
        let change = BreakerTransition { from: self.state, to, reason, at: now };
        self.reopened = match (self.state, to) {
            (State::HalfOpen, State::Open) => self.reopened + 1,
            (State::Open, State::HalfOpen) => self.reopened,
            _ => 0,
        };
        self.epoch += 1;
        (self.state, self.since, self.changed, self.until) = (to, now, Some((now, reason)), None);
        (self.turn, self.good, self.neutral, self.probe) = (0, 0, 0, None);
        // While it is open, its counts show what opened it.
        if to != State::Open {
            self.counted.clear();
        }
        self.changes.push_back(change.clone());
        if self.changes.len() > 32 {
            self.changes.pop_front();
        }
        change
    }

    /// Forces a state as an operator. The epoch becomes a multiple of a large number.
    fn by_hand(
        &mut self,
        to: State,
        reason: TransitionReason,
        until: Option<Timestamp>,
        now: Timestamp,
    ) -> BreakerTransition {
        let word = (self.epoch / BreakerSnapshot::OPERATOR_EPOCH_STEP + 1).max(now.as_millis() / 1000);
        self.epoch = word * BreakerSnapshot::OPERATOR_EPOCH_STEP - 1;
        let change = self.becomes(to, reason, now);
        self.until = until;
        change
    }

    fn admit(
        &mut self,
        policy: &BreakerPolicy,
        number: u64,
        now: Timestamp,
    ) -> Result<(Option<u64>, Option<BreakerTransition>), BreakerRefusal> {
        if let Some(refused) = self.refused(policy, now) {
            return Err(refused);
        }
        if self.state == State::Closed {
            return Ok((None, None));
        }
        let change = (self.state != State::HalfOpen)
            .then(|| self.becomes(State::HalfOpen, TransitionReason::CooledDown, now));
        let before = self.probe.map(|probe| probe.number);
        self.probe = Some(ProbePlace { number, alive: now, announced: now, agreed: Err(before) });
        self.turn += 1;
        Ok((Some(number), change))
    }

    fn gives_back(&mut self, epoch: u64, probe: Option<u64>) -> bool {
        let Some(place) = self.probe.filter(|place| epoch == self.epoch && probe == Some(place.number))
        else {
            return false;
        };
        self.probe = None;
        self.released = probe;
        // A probe that was not announced does not count.
        self.turn = if place.agreed.is_ok() { self.turn + 1 } else { self.turn - 1 };
        true
    }

    fn record(
        &mut self,
        policy: &BreakerPolicy,
        (epoch, probe): (u64, Option<u64>),
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        let is_slow = |took: Duration| policy.slow.is_some_and(|rule| took > rule.slower_than);
        if self.state == State::Closed && epoch == self.epoch && probe.is_none() && !policy.forced_open {
            let (failed, took) = match verdict {
                BreakerVerdict::Success { took } => (false, took),
                BreakerVerdict::Failure { took } => (true, took),
                BreakerVerdict::Neutral => return None,
            };
            self.count(policy, CountedOutcome { at: now, failed, slow: is_slow(took) });
            let reason = self.opens(policy)?;
            return Some(self.becomes(State::Open, reason, now));
        }
        let in_time = self.probes(policy, now);
        if !self.gives_back(epoch, probe) || !in_time || policy.forced_open {
            return None;
        }
        match verdict {
            BreakerVerdict::Failure { .. } => {
                Some(self.becomes(State::Open, TransitionReason::ProbeFailed, now))
            }
            BreakerVerdict::Success { took } if is_slow(took) => {
                Some(self.becomes(State::Open, TransitionReason::Slow, now))
            }
            BreakerVerdict::Success { .. } => {
                (self.good, self.neutral) = (self.good + 1, 0);
                (self.good >= policy.close_after.get())
                    .then(|| self.becomes(State::Closed, TransitionReason::ProbesSucceeded, now))
            }
            BreakerVerdict::Neutral => {
                self.neutral += 1;
                (self.neutral >= policy.neutral_close_after.get())
                    .then(|| self.becomes(State::Closed, TransitionReason::ProbesAnswered, now))
            }
        }
    }

    /// Remembers as many outcomes as the rules consider, and no longer than the window.
    fn count(&mut self, policy: &BreakerPolicy, counted: CountedOutcome) {
        self.reach = [
            policy.rate.map_or(0, |rule| rule.last.get()),
            policy.slow.map_or(0, |rule| rule.rate.last.get()),
            policy.consecutive.map_or(0, std::num::NonZeroU32::get),
        ];
        let most = self.reach.iter().max().map_or(0, |most| *most as usize);
        self.keep_last(most);
        self.counted.retain(|old| counted.at.since(old.at) <= policy.window);
        if most > 0 {
            self.counted.push(counted);
        }
        self.keep_last(most);
    }

    fn keep_last(&mut self, most: usize) {
        self.counted.drain(..self.counted.len().saturating_sub(most));
    }

    fn last(&self, reach: u32) -> &[CountedOutcome] {
        &self.counted[self.counted.len().saturating_sub(reach as usize)..]
    }

    fn row(&self) -> usize {
        self.counted.iter().rev().take_while(|counted| counted.failed).count()
    }

    fn opens(&self, policy: &BreakerPolicy) -> Option<TransitionReason> {
        let reached = |rule: RateRule, is_bad: fn(&&CountedOutcome) -> bool| {
            let last = self.last(rule.last.get());
            let bad = last.iter().filter(is_bad).count();
            last.len() >= rule.at_least.min(rule.last).get() as usize
                && bad > 0
                && bad as f64 >= rule.threshold.get() * last.len() as f64
        };
        if policy.consecutive.is_some_and(|most| self.row() >= most.get() as usize) {
            return Some(TransitionReason::Consecutive);
        }
        if policy.rate.is_some_and(|rule| reached(rule, |counted| counted.failed)) {
            return Some(TransitionReason::Rate);
        }
        policy
            .slow
            .is_some_and(|rule| reached(rule.rate, |counted| counted.slow))
            .then_some(TransitionReason::Slow)
    }

    fn renew(
        &mut self,
        policy: &BreakerPolicy,
        epoch: u64,
        probe: Option<u64>,
        now: Timestamp,
    ) -> TicketRenewal {
        if epoch != self.epoch {
            return TicketRenewal::Lost;
        }
        if self.state == State::Closed {
            return TicketRenewal::StillValid;
        }
        let in_time = self.probes(policy, now);
        let Some(place) = self.probe.as_mut().filter(|place| in_time && probe == Some(place.number)) else {
            return TicketRenewal::Lost;
        };
        place.alive = now;
        if place.agreed.is_err() || now.since(place.announced) < policy.probe_lease / 3 {
            return TicketRenewal::StillValid;
        }
        place.announced = now;
        self.turn += 1;
        TicketRenewal::Extended
    }

    fn holds(&self, policy: &BreakerPolicy, epoch: u64, probe: Option<u64>, now: Timestamp) -> bool {
        epoch == self.epoch
            && match (self.state, probe) {
                (State::Closed, None) => true,
                (State::HalfOpen, Some(number)) => {
                    self.probes(policy, now) && self.probe.is_some_and(|place| place.number == number)
                }
                _ => false,
            }
    }

    fn stored(&self) -> ReferenceSnapshot {
        let trial = (self.state == State::HalfOpen).then(|| ReferenceTrial {
            turn: self.turn,
            good: self.good,
            neutral: self.neutral,
            probe: self.probe.map(|place| (place.number, place.announced)),
        });
        ReferenceSnapshot {
            epoch: self.epoch,
            state: self.state,
            changed: self.changed,
            reopened: self.reopened,
            until: self.until,
            trial,
            changes: self.changes.clone(),
        }
    }

    /// Returns the state that others know. A probe that was not agreed on is left out.
    fn known(&self) -> ReferenceSnapshot {
        let mut known = self.stored();
        if let (Some(ProbePlace { agreed: Err(before), .. }), Some(trial)) = (self.probe, &mut known.trial) {
            trial.turn -= 1;
            trial.probe = before.map(|number| (number, Timestamp::ZERO));
        }
        known
    }

    fn adopt(&mut self, stored: &ReferenceSnapshot, now: Timestamp) -> Option<BreakerTransition> {
        let here = self.known();
        let number =
            |of: &ReferenceSnapshot| of.trial.and_then(|trial| trial.probe).map(|(number, _)| number);
        let differs = (stored.state, stored.changed, stored.until, number(stored))
            != (here.state, here.changed, here.until, number(&here));
        if stored.order() < here.order() || stored.order() == here.order() && !differs {
            return None;
        }
        let is_same_change =
            (stored.epoch, stored.state, stored.changed) == (here.epoch, here.state, here.changed);
        let from = self.state;
        let trial = stored.trial.unwrap_or_default();
        self.probe = trial.probe.map(|(number, alive)| {
            let alive = alive.min(now);
            ProbePlace { number, alive, announced: alive, agreed: Ok(()) }
        });
        (self.epoch, self.state, self.changed) = (stored.epoch, stored.state, stored.changed);
        (self.turn, self.good, self.neutral) = (trial.turn, trial.good, trial.neutral);
        (self.reopened, self.until) = (stored.reopened, stored.until);
        self.since = stored.changed.map_or(Timestamp::ZERO, |(at, _)| at).min(now);
        if !is_same_change {
            self.counted.clear();
            self.changes.clone_from(&stored.changes);
        }
        if self.released.is_some() && self.probe.map(|place| place.number) == self.released {
            self.probe = None;
            self.turn += 1;
        }
        let (at, reason) = stored.changed.unwrap_or((now, TransitionReason::Reset));
        (!is_same_change && from != self.state).then(|| BreakerTransition {
            from,
            to: self.state,
            reason,
            at: at.min(now),
        })
    }
}

fn verdict(rng: &mut Rng) -> BreakerVerdict {
    let took = millis(*rng.pick(&[0, 99, 100, 101, 5_000]));
    match rng.between(0, 4) {
        0 | 1 => BreakerVerdict::Failure { took },
        2 | 3 => BreakerVerdict::Success { took },
        _ => BreakerVerdict::Neutral,
    }
}

fn together(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let mut policy = policy(rng);
    let mut breakers = [CircuitBreaker::numbered_from(0), CircuitBreaker::numbered_from(1_000_000)];
    let mut references = [ReferenceBreaker::new(), ReferenceBreaker::new()];
    let mut given: [Vec<ReferenceTicket>; 2] = [Vec::new(), Vec::new()];
    let mut store: Option<(BreakerSnapshot, ReferenceSnapshot)> = None;
    let mut now = Timestamp::from_millis(1_000_000);
    let mut numbers = 0;
    // Some have changed more often than they remember.
    for _ in 0..if rng.chance(5) { rng.between(30, 34) } else { 0 } {
        for (breaker, reference) in breakers.iter_mut().zip(&mut references) {
            let due = reference.by_hand(State::Closed, TransitionReason::Reset, None, now);
            let due = Some(due).filter(|change| change.from != State::Closed);
            agree(PROMISE, "a reset", &breaker.reset(now), &due)?;
        }
    }
    for _ in 0..80 {
        let moments: Vec<Timestamp> =
            references.iter().flat_map(|reference| moments(reference, &policy)).collect();
        now = next_moment(rng, now, &moments);
        let index = usize::from(rng.chance(40));
        let (breaker, reference, given) = (&mut breakers[index], &mut references[index], &mut given[index]);
        let at = now.as_millis();
        match rng.between(0, 19) {
            0..6 => {
                numbers += 1;
                let due = reference.admit(&policy, numbers, now);
                let got = breaker.admit(&policy, now);
                machine_trace.log(|| format!("{at}: breaker {index} admits {got:?}"));
                let shape = got.as_ref().map(|(ticket, change)| (ticket.is_probe(), change.clone()));
                let expected = due.as_ref().map(|(probe, change)| (probe.is_some(), change.clone()));
                agree(PROMISE, "admitting", &shape, &expected)?;
                if let (Ok((ticket, _)), Ok((probe, _))) = (got, due) {
                    given.push(ReferenceTicket { ticket, epoch: reference.epoch, probe });
                }
            }
            6..11 if !given.is_empty() => {
                let ReferenceTicket { ticket, epoch, probe } = taken(rng, given);
                let verdict = verdict(rng);
                let due = reference.record(&policy, (epoch, probe), verdict, now);
                let got = breaker.record(&policy, ticket, verdict, now);
                machine_trace
                    .log(|| format!("{at}: breaker {index} hears {verdict:?} of {epoch} {probe:?}: {got:?}"));
                agree(PROMISE, "recording", &got, &due)?;
            }
            11 if !given.is_empty() => {
                let ReferenceTicket { ticket, epoch, probe } = taken(rng, given);
                machine_trace.log(|| format!("{at}: breaker {index} gets back {epoch} {probe:?}"));
                reference.gives_back(epoch, probe);
                breaker.release(ticket);
            }
            12 | 13 if !given.is_empty() => {
                let one = rng.pick(given);
                let due = reference.renew(&policy, one.epoch, one.probe, now);
                let got = breaker.renew(&policy, &one.ticket, now);
                machine_trace
                    .log(|| format!("{at}: breaker {index} renews {} {:?}: {got:?}", one.epoch, one.probe));
                agree(PROMISE, "a sign of life", &got, &due)?;
            }
            14 if !given.is_empty() => {
                let one = rng.pick(given);
                machine_trace.log(|| format!("{at}: all agree that breaker {index} has {:?}", one.probe));
                breaker.confirm_probe(&one.ticket);
                if let Some(place) = reference.probe.as_mut().filter(|place| one.probe == Some(place.number))
                {
                    place.agreed = Ok(());
                }
            }
            15 if rng.chance(30) => {
                let until = optional(rng, |rng| now + millis(rng.between(0, 2_000)));
                let due = (reference.state != State::ForcedOpen || reference.until != until)
                    .then(|| reference.by_hand(State::ForcedOpen, TransitionReason::Forced, until, now));
                agree(PROMISE, "forcing", &breaker.force_open(until, now), &due)?;
                machine_trace.log(|| format!("{at}: breaker {index} is forced open until {until:?}"));
            }
            15 if rng.chance(30) => {
                let due = reference.by_hand(State::Closed, TransitionReason::Reset, None, now);
                let due = Some(due).filter(|change| change.from != State::Closed);
                agree(PROMISE, "a reset", &breaker.reset(now), &due)?;
                machine_trace.log(|| format!("{at}: breaker {index} is reset"));
            }
            16 | 17 => {
                let own = (breaker.snapshot(), reference.stored());
                let due = store.as_ref().is_none_or(|(_, stored)| own.1.order() > stored.order());
                let got = store.as_ref().is_none_or(|(stored, _)| own.0.replaces(stored));
                agree(PROMISE, "replacing what is stored", &got, &due)?;
                machine_trace.log(|| format!("{at}: breaker {index} stores {own:?}: {got}"));
                if got {
                    store = Some(own);
                }
            }
            18 | 19 => {
                if let Some((stored, known)) = &store {
                    let due = reference.adopt(known, now);
                    let got = breaker.adopt(stored, now);
                    machine_trace.log(|| format!("{at}: breaker {index} takes over {stored:?}: {got:?}"));
                    agree(PROMISE, "taking over", &got, &due)?;
                }
            }
            _ if rng.chance(10) => policy = self::policy(rng),
            _ => {}
        }
        compare(breaker, reference, given, &policy, now)?;
    }
    // A process that starts and shares its breaker with no other one.
    let [breaker, _] = &breakers;
    let [reference, _] = &mut references;
    let restored = CircuitBreaker::restore(&breaker.snapshot(), now);
    (reference.probe, reference.since) = (None, reference.since.min(now));
    reference.counted.clear();
    (reference.reach, reference.released) = ([0; 3], None);
    compare(&restored, reference, &[], &policy, now)
}

fn moments(reference: &ReferenceBreaker, policy: &BreakerPolicy) -> Vec<Timestamp> {
    let probe = reference
        .probe
        .iter()
        .flat_map(|probe| [probe.alive + policy.probe_lease, probe.announced + policy.probe_lease / 3]);
    let open = [reference.since + reference.cooldown(policy)];
    let counted = reference.counted.iter().map(|counted| counted.at + policy.window);
    probe.chain(open).chain(reference.until).chain(counted).collect()
}

fn taken(rng: &mut Rng, given: &mut Vec<ReferenceTicket>) -> ReferenceTicket {
    let place = rng.between(0, given.len() as u64 - 1);
    given.swap_remove(usize::try_from(place).unwrap_or(0))
}

/// Compares everything that is visible of the two breakers.
fn compare(
    breaker: &CircuitBreaker,
    reference: &ReferenceBreaker,
    given: &[ReferenceTicket],
    policy: &BreakerPolicy,
    now: Timestamp,
) -> Result<(), InvariantViolation> {
    let due = reference.refused(policy, now);
    agree(PROMISE, "checking", &breaker.check(policy, now).err(), &due)?;
    let state = match reference.state {
        _ if policy.forced_open => State::ForcedOpen,
        State::Open | State::ForcedOpen if due.is_none() => State::HalfOpen,
        state => state,
    };
    agree(PROMISE, "the state", &breaker.state(policy, now), &state)?;
    agree(PROMISE, "the epoch", &breaker.epoch(), &reference.epoch)?;
    agree(
        PROMISE,
        "forced by hand",
        &breaker.is_forced_by_operator(),
        &(reference.state == State::ForcedOpen),
    )?;
    let [failures, slow, _] = reference.reach;
    let last = reference.last(failures);
    let failed = last.iter().filter(|counted| counted.failed).count();
    let slow = reference.last(slow).iter().filter(|counted| counted.slow).count();
    let view = breaker.view(policy, now);
    let counts =
        (view.successes as usize, view.failures as usize, view.in_a_row as usize, view.slow as usize);
    agree(PROMISE, "what it counted", &counts, &(last.len() - failed, failed, reference.row(), slow))?;
    let probes = reference.state == State::HalfOpen && reference.probes(policy, now);
    agree(PROMISE, "whether it probes", &view.probing, &probes)?;
    let next = match reference.state {
        _ if policy.forced_open => None,
        State::Closed => None,
        State::Open => Some(reference.since + reference.cooldown(policy)),
        State::HalfOpen => Some(due.and_then(|due| due.retry_at).unwrap_or(now)),
        State::ForcedOpen => reference.until,
    };
    agree(PROMISE, "when it probes", &view.next_probe_at, &next)?;
    let forced = due.and_then(|due| match due.by {
        BreakerRefusalCause::Failures => None,
        BreakerRefusalCause::Operator => Some(ForcedOpenCause::Hand { until: due.retry_at }),
        BreakerRefusalCause::Configuration => Some(ForcedOpenCause::Configuration),
    });
    agree(PROMISE, "who forces it", &view.forced, &forced)?;
    agree(PROMISE, "its last change", &view.since.zip(view.reason), &reference.changed)?;
    agree(PROMISE, "its changes", &view.changes, &reference.changes.iter().cloned().collect())?;
    let opened = reference
        .changes
        .iter()
        .rev()
        .find(|change| change.from == State::Closed || change.to == State::ForcedOpen);
    let opened = opened.map(|change| change.reason).or(reference.changed.map(|(_, reason)| reason));
    agree(PROMISE, "what opened it", &view.opened_by, &opened.filter(|_| reference.state != State::Closed))?;
    for one in given {
        let due = reference.holds(policy, one.epoch, one.probe, now);
        agree(PROMISE, "whether a ticket counts", &breaker.holds(policy, &one.ticket, now), &due)?;
    }
    Ok(())
}

/// Checks that a breaker behind a lock does the same as one without, including the outcomes that it counts beside the
/// lock.
fn alone(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let mut policy = policy(rng);
    let (mut breaker, shared) = (CircuitBreaker::default(), SharedBreaker::default());
    let mut under_way: Vec<(BreakerTicket, BreakerPermit<'_>)> = Vec::new();
    let mut now = Timestamp::from_millis(1_000_000);
    let mostly_well = rng.chance(50);
    for _ in 0..100 {
        now = now + millis(rng.between(0, 40));
        match rng.between(0, 9) {
            0..4 => match (breaker.admit(&policy, now), shared.admit(&policy, now)) {
                (Ok((ticket, one)), Ok((permit, other))) => {
                    agree(PROMISE, "admitting behind a lock", &other, &one)?;
                    under_way.push((ticket, permit));
                }
                (one, other) => {
                    agree(PROMISE, "refusing behind a lock", &other.err(), &one.err())?;
                }
            },
            4..9 if !under_way.is_empty() => {
                let place = rng.between(0, under_way.len() as u64 - 1);
                let (ticket, permit) = under_way.swap_remove(usize::try_from(place).unwrap_or(0));
                let verdict = if mostly_well && rng.chance(90) {
                    BreakerVerdict::Success { took: Duration::ZERO }
                } else {
                    verdict(rng)
                };
                let one = breaker.record(&policy, ticket, verdict, now);
                let other = permit.record(&policy, verdict, now);
                machine_trace.log(|| format!("{}: {verdict:?}: {one:?}", now.as_millis()));
                agree(PROMISE, "recording behind a lock", &other, &one)?;
            }
            _ if !under_way.is_empty() && rng.chance(20) => {
                let (ticket, permit) = under_way.swap_remove(0);
                breaker.release(ticket);
                drop(permit);
            }
            _ if rng.chance(5) => policy.forced_open = !policy.forced_open,
            _ if rng.chance(5) => {
                breaker.reset(now);
                shared.with(|shared| shared.reset(now));
            }
            _ => {
                agree(
                    PROMISE,
                    "checking behind a lock",
                    &shared.check(&policy, now),
                    &breaker.check(&policy, now),
                )?;
                let counts = shared.with(|shared| shared.counts());
                agree(PROMISE, "counting behind a lock", &counts, &breaker.counts())?;
            }
        }
        // A query of the state takes the lock and adds the outcomes counted beside it. It is rare, so that there are
        // some.
        if rng.chance(10) {
            let due = breaker.state(&policy, now);
            agree(PROMISE, "the state behind a lock", &shared.state(&policy, now), &due)?;
        }
    }
    Ok(())
}

//! The circuit breaker of a tool: stops calls while the tool is down, and detects when it is back.
//!
//! It counts attempts, not calls, because each attempt is load on the tool. It has no timer. Everything that expires (a
//! cool-down, the lease of a probe, the age of an outcome) is compared with `now` when the breaker is used, so nothing
//! ticks and nothing can fire late. The policy is passed in with every call and may have changed since the last one.
//!
//! Three things go wrong in breakers under load, and each has its solution here:
//! - *Many probes.* The slot of a probe is reserved when it is admitted, in the same step that makes the breaker
//!   half-open. There is only one slot.
//! - *A probe that never returns.* Its slot has a lease. A [`BreakerTicket`] is released when its attempt was not made, and
//!   [`BreakerPermit`] does so when it is dropped.
//! - *Late results.* Every transition starts an epoch. A ticket carries the epoch in which it was issued, and a result
//!   of another epoch changes nothing.

mod shared;
mod snapshot;
mod tally;
mod view;
mod window;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use shared::{BreakerPermit, SharedBreaker};
pub use snapshot::{BreakerSnapshot, InvalidBreakerSnapshot};
pub use view::{BreakerDetails, BreakerNumbers, BreakerRate, ForcedOpenCause};
use window::{OutcomeWindow, WindowOutcome, WindowReach};

use crate::Timestamp;
use crate::policy::{BreakerCooldown, BreakerPolicy, GrowthFactor, RateRule};

/// The state of a circuit breaker. A *closed* breaker admits calls, an *open* one refuses them, as in an electric
/// circuit.
///
/// ```text
///                 too many failures, too many slow
///        ┌────────┐ ─────────────────────────────► ┌──────┐ ◄───────────┐
///   ┌──► │ CLOSED │                                │ OPEN │             │ a probe
///   │    └────────┘ ◄──┐                           └──────┘             │ fails
///   │                  │ enough probes             │ cool-down over,    │
///   │                  │ good, or answered         ▼ one call comes     │
///   │                  │                      ┌───────────┐             │
///   │                  └───────────────────── │ HALF_OPEN │ ────────────┘
///   │ reset                                   └───────────┘
///   │                 ┌─────────────┐
///   └──────────────── │ FORCED_OPEN │ ◄── by an operator, from any state
///    (from any state) └─────────────┘     (by configuration: while it is set)
/// ```
///
/// A breaker that was forced open until some time continues from there as after a cool-down: one call is a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum State {
    /// Calls are admitted.
    Closed,
    /// Calls are refused until the cool-down is over.
    Open,
    /// One call at a time is admitted as a probe.
    HalfOpen,
    /// Calls are refused until an operator resets the breaker, or until the time that the operator set.
    ForcedOpen,
}

/// The permission to make one attempt. Must be returned with the result of the attempt.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is neither recorded nor released holds the probe until its lease ends"]
pub struct BreakerTicket {
    epoch: u64,
    probe: Option<NonZeroU64>,
}

impl BreakerTicket {
    /// Returns true if this attempt is a probe. Processes that share a store take the store's lease for it before the
    /// attempt.
    pub const fn is_probe(&self) -> bool {
        self.probe.is_some()
    }
}

/// The result of renewing a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketRenewal {
    /// The ticket no longer counts.
    Lost,
    /// The ticket still counts.
    StillValid,
    /// The ticket is a probe and still counts. All processes that share the breaker must learn that its lease is
    /// extended.
    Extended,
}

/// The result of an admitted attempt, as far as the breaker is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerVerdict {
    /// The attempt succeeded.
    Success {
        /// Duration of the attempt.
        took: Duration,
    },
    /// The attempt failed because of the tool.
    Failure {
        /// Duration of the attempt.
        took: Duration,
    },
    /// The attempt failed for another reason: bad input, no access, not found.
    Neutral,
}

/// The refusal of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRefusal {
    /// State of the breaker.
    pub state: State,
    /// Time of the next useful try. `None` if only an operator can end the refusal.
    pub retry_at: Option<Timestamp>,
    /// Cause of the refusal.
    pub by: BreakerRefusalCause,
}

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerRefusalCause {
    /// The tool: it failed too often, or it is not yet known if it is back.
    Failures,
    /// An operator forced the breaker open.
    Operator,
    /// The configuration forces the breaker open.
    Configuration,
}

impl BreakerRefusalCause {
    /// Returns the name of the rule in results and logs.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Failures => "breaker",
            Self::Operator => "breaker.forced_by_hand",
            Self::Configuration => "breaker.forced_by_configuration",
        }
    }
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BreakerTransition {
    /// State before the change.
    pub from: State,
    /// State after the change.
    pub to: State,
    /// Reason for the change.
    pub reason: TransitionReason,
    /// Time of the change.
    pub at: Timestamp,
}

/// The reason for a change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransitionReason {
    /// Too many failures in a row.
    Consecutive,
    /// Too large a share of failures.
    Rate,
    /// Too large a share of slow responses, or a slow probe.
    Slow,
    /// The cool-down is over, or the time for which the breaker was forced open.
    CooledDown,
    /// A probe failed.
    ProbeFailed,
    /// Enough probes succeeded.
    ProbesSucceeded,
    /// Enough probes were answered, although without success.
    ProbesAnswered,
    /// An operator forced the breaker open.
    Forced,
    /// An operator reset the breaker.
    Reset,
}

/// The counters of a closed breaker as of the last outcome, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerCounts {
    /// Outcomes in the window of the failure rule.
    pub calls: u32,
    /// Failures among them.
    pub failures: u32,
    /// Failures in a row.
    pub in_a_row: u32,
    /// Slow outcomes in the window of the slowness rule.
    pub slow: u32,
}

/// A circuit breaker. A new one is closed.
#[derive(Clone, Debug, Default)]
pub struct CircuitBreaker {
    /// Number of the epoch. Grows with every transition and reset, and never decreases. A change by an operator makes
    /// it [leap](BreakerSnapshot::BY_HAND).
    epoch: u64,
    phase: BreakerPhase,
    /// Time of and reason for the last transition. `None` if the breaker never changed.
    changed: Option<(Timestamp, TransitionReason)>,
    /// The last [`MOST_CHANGES`] transitions and resets, newest last, for display.
    changes: VecDeque<BreakerTransition>,
    /// Number of probes issued so far. Gives each probe its own number.
    probes: u64,
    /// The last probe of this process that was returned.
    returned_probe: Option<NonZeroU64>,
    window: OutcomeWindow,
}

/// The state with its data.
#[derive(Clone, Copy, Debug, Default)]
enum BreakerPhase {
    #[default]
    Closed,
    Open {
        since: Timestamp,
        /// Number of failed probes since the breaker was last closed. The cool-down grows with it.
        reopened: u32,
    },
    HalfOpen {
        reopened: u32,
        /// Successful probes in a row.
        good: u32,
        /// Neutral results in a row.
        neutral: u32,
        probe: Option<ActiveProbe>,
        /// Number of times that the slot was taken, returned or renewed since this state began. Orders the stored
        /// snapshots.
        turn: u32,
    },
    ForcedOpen {
        /// End of the state. `None` if only a reset ends it.
        until: Option<Timestamp>,
    },
}

/// The probe that holds the only slot in half-open.
#[derive(Clone, Copy, Debug)]
struct ActiveProbe {
    number: NonZeroU64,
    /// Time of the last renewal. The lease counts from here.
    alive: Timestamp,
    /// Time of the last renewal that other processes learned of.
    announced: Timestamp,
    agreed: ProbeAgreement,
}

/// Agreement of all processes that share the breaker on the owner of the slot. A slot that the others do not know of
/// must not replace one that they know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeAgreement {
    Yes,
    /// No agreement yet. The slot was taken when it was free, or when the lease of the probe `after` was over.
    NotYet {
        after: Option<NonZeroU64>,
    },
}

impl BreakerPhase {
    const fn state(self) -> State {
        match self {
            Self::Closed => State::Closed,
            Self::Open { .. } => State::Open,
            Self::HalfOpen { .. } => State::HalfOpen,
            Self::ForcedOpen { .. } => State::ForcedOpen,
        }
    }
}

impl CircuitBreaker {
    /// Returns a closed breaker whose probes are numbered from here. Processes that share a store start far apart, so
    /// that no two of them issue the same number.
    pub fn numbered_from(first: u64) -> Self {
        // JSON readers keep whole numbers up to this limit, and no breaker issues as many probes as there is room
        // above.
        Self { probes: first % (BreakerSnapshot::LAST_EPOCH / 2), ..Self::default() }
    }

    /// Checks if an attempt would be refused now. Changes nothing.
    pub fn check(&self, policy: &BreakerPolicy, now: Timestamp) -> Result<(), BreakerRefusal> {
        if policy.forced_open {
            let by = BreakerRefusalCause::Configuration;
            return Err(BreakerRefusal { state: State::ForcedOpen, retry_at: None, by });
        }
        let by = BreakerRefusalCause::Failures;
        match self.phase {
            BreakerPhase::Closed => Ok(()),
            BreakerPhase::Open { since, reopened } => {
                // A clock that stepped back costs at most one more cool-down, not the size of the step.
                let until = since.min(now) + cooldown(&policy.cooldown, reopened);
                if until <= now {
                    Ok(())
                } else {
                    Err(BreakerRefusal { state: State::Open, retry_at: Some(until), by })
                }
            }
            BreakerPhase::HalfOpen { probe, .. } => match probe {
                Some(probe) if probe.holds(policy, now) => {
                    // The result may come at any time. Only the latest time is known.
                    let latest = (probe.alive + policy.probe_lease).min(now + policy.cooldown.first);
                    Err(BreakerRefusal { state: State::HalfOpen, retry_at: Some(latest), by })
                }
                Some(_) | None => Ok(()),
            },
            BreakerPhase::ForcedOpen { until: Some(until) } if until <= now => Ok(()),
            BreakerPhase::ForcedOpen { until } => Err(BreakerRefusal {
                state: State::ForcedOpen,
                retry_at: until,
                by: BreakerRefusalCause::Operator,
            }),
        }
    }

    /// Admits or refuses an attempt. May change the state from open to half-open.
    pub fn admit(
        &mut self,
        policy: &BreakerPolicy,
        now: Timestamp,
    ) -> Result<(BreakerTicket, Option<BreakerTransition>), BreakerRefusal> {
        self.heal_clock(now);
        self.check(policy, now)?;
        match self.phase {
            BreakerPhase::Closed => Ok((BreakerTicket { epoch: self.epoch, probe: None }, None)),
            BreakerPhase::Open { .. } | BreakerPhase::ForcedOpen { .. } => {
                let reopened = match self.phase {
                    BreakerPhase::Open { reopened, .. } => reopened,
                    BreakerPhase::Closed
                    | BreakerPhase::HalfOpen { .. }
                    | BreakerPhase::ForcedOpen { .. } => 0,
                };
                let half_open =
                    BreakerPhase::HalfOpen { reopened, good: 0, neutral: 0, probe: None, turn: 0 };
                let change = self.change(half_open, TransitionReason::CooledDown, now);
                Ok((self.give_probe(now), Some(change)))
            }
            BreakerPhase::HalfOpen { .. } => Ok((self.give_probe(now), None)),
        }
    }

    /// Takes back a ticket with the result of its attempt. A result of an older epoch, or of a probe whose lease is
    /// over, changes nothing. Nothing is counted while the configuration forces the breaker open.
    #[inline]
    pub fn record(
        &mut self,
        policy: &BreakerPolicy,
        ticket: BreakerTicket,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        if ticket.epoch != self.epoch {
            return None;
        }
        match self.phase {
            BreakerPhase::Closed if ticket.probe.is_none() && !policy.forced_open => {
                self.count(policy, verdict, now)
            }
            BreakerPhase::Closed
            | BreakerPhase::Open { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::ForcedOpen { .. } => self.record_probe(policy, ticket, verdict, now),
        }
    }

    /// Takes back a ticket whose attempt has no result (not made, cancelled).
    pub fn release(&mut self, ticket: BreakerTicket) {
        if let BreakerPhase::HalfOpen { probe, turn, .. } = &mut self.phase
            && ticket.epoch == self.epoch
            && probe.is_some_and(|probe| ticket.probe == Some(probe.number))
        {
            *turn = match probe.take().map(|probe| probe.agreed) {
                Some(ProbeAgreement::NotYet { .. }) => turn.saturating_sub(1),
                Some(ProbeAgreement::Yes) | None => turn.saturating_add(1),
            };
            self.returned_probe = ticket.probe;
        }
    }

    /// Marks that all processes that share the breaker know that this ticket alone has the slot of the probe.
    pub fn confirm_probe(&mut self, ticket: &BreakerTicket) {
        if let BreakerPhase::HalfOpen { probe: Some(probe), .. } = &mut self.phase
            && ticket.probe == Some(probe.number)
        {
            probe.agreed = ProbeAgreement::Yes;
        }
    }

    /// Renews a ticket during its attempt. A probe that takes long keeps its slot, unless its lease is already over.
    pub fn renew(&mut self, policy: &BreakerPolicy, ticket: &BreakerTicket, now: Timestamp) -> TicketRenewal {
        if ticket.epoch != self.epoch {
            return TicketRenewal::Lost;
        }
        match &mut self.phase {
            BreakerPhase::HalfOpen { probe: Some(probe), turn, .. } if ticket.probe == Some(probe.number) => {
                if !probe.holds(policy, now) {
                    return TicketRenewal::Lost;
                }
                probe.alive = now;
                if probe.agreed != ProbeAgreement::Yes || now.since(probe.announced) < policy.probe_lease / 3
                {
                    return TicketRenewal::StillValid;
                }
                probe.announced = now;
                *turn = turn.saturating_add(1);
                TicketRenewal::Extended
            }
            BreakerPhase::Closed => TicketRenewal::StillValid,
            BreakerPhase::HalfOpen { .. } | BreakerPhase::Open { .. } | BreakerPhase::ForcedOpen { .. } => {
                TicketRenewal::Lost
            }
        }
    }

    /// Returns true if this ticket counts: the breaker has not changed since, and its slot was not given to another.
    pub fn holds(&self, policy: &BreakerPolicy, ticket: &BreakerTicket, now: Timestamp) -> bool {
        ticket.epoch == self.epoch
            && match (self.phase, ticket.probe) {
                (BreakerPhase::Closed, None) => true,
                (BreakerPhase::HalfOpen { probe: Some(probe), .. }, Some(number)) => {
                    probe.number == number && probe.holds(policy, now)
                }
                (
                    BreakerPhase::Closed
                    | BreakerPhase::Open { .. }
                    | BreakerPhase::HalfOpen { .. }
                    | BreakerPhase::ForcedOpen { .. },
                    _,
                ) => false,
            }
    }

    /// Returns the current state. An open breaker whose cool-down is over is half-open, even before the next call.
    pub fn state(&self, policy: &BreakerPolicy, now: Timestamp) -> State {
        if policy.forced_open {
            return State::ForcedOpen;
        }
        match self.phase {
            BreakerPhase::Open { .. } | BreakerPhase::ForcedOpen { .. }
                if self.check(policy, now).is_ok() =>
            {
                State::HalfOpen
            }
            BreakerPhase::Closed
            | BreakerPhase::Open { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::ForcedOpen { .. } => self.phase.state(),
        }
    }

    /// Forces the breaker open until this time, or until a reset. Attempts in flight no longer count.
    pub fn force_open(&mut self, until: Option<Timestamp>, now: Timestamp) -> Option<BreakerTransition> {
        match self.phase {
            BreakerPhase::ForcedOpen { until: known } if known == until => None,
            BreakerPhase::Closed
            | BreakerPhase::Open { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::ForcedOpen { .. } => Some(self.change_by_operator(
                BreakerPhase::ForcedOpen { until },
                TransitionReason::Forced,
                now,
            )),
        }
    }

    /// Closes the breaker and clears its counters. Attempts in flight no longer count, even if it was closed already. A
    /// breaker that the configuration forces open stays open.
    pub fn reset(&mut self, now: Timestamp) -> Option<BreakerTransition> {
        let change = self.change_by_operator(BreakerPhase::Closed, TransitionReason::Reset, now);
        (change.from != State::Closed).then_some(change)
    }

    /// Returns true if an operator forced the breaker open and that has not ended yet.
    pub const fn is_forced_by_operator(&self) -> bool {
        matches!(self.phase, BreakerPhase::ForcedOpen { .. })
    }

    /// Returns the counters as of the last outcome.
    pub fn counts(&self) -> BreakerCounts {
        let (failures, slow) = (self.window.failures(), self.window.slow());
        BreakerCounts {
            calls: failures.whole,
            failures: failures.part,
            in_a_row: self.window.run(),
            slow: slow.part,
        }
    }

    /// Returns the epoch. It changes with every transition and reset, and never decreases. All processes that share the
    /// breaker count alike.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Counts an outcome of a closed breaker.
    #[inline]
    fn count(
        &mut self,
        policy: &BreakerPolicy,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        let (outcome, took) = match verdict {
            BreakerVerdict::Success { took } => (WindowOutcome::good(now), took),
            BreakerVerdict::Failure { took } => (WindowOutcome::good(now).failed(), took),
            BreakerVerdict::Neutral => return None,
        };
        let outcome = if is_slow(policy, took) { outcome.slow() } else { outcome };
        self.window.push(WindowReach::of(policy), policy.window, outcome);
        if self.window.is_clean() { None } else { self.open_if_due(policy, now) }
    }

    /// Adds successes with their times, which were counted elsewhere while there were no failures.
    fn count_successes(&mut self, moments: impl ExactSizeIterator<Item = Option<Timestamp>>) {
        if let BreakerPhase::Closed = self.phase {
            self.window.push_successes(moments);
        }
    }

    /// Returns true if successes, however many, could change nothing.
    fn has_no_failures(&self) -> bool {
        match self.phase {
            BreakerPhase::Closed => self.window.is_clean(),
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } | BreakerPhase::ForcedOpen { .. } => {
                false
            }
        }
    }

    fn open_if_due(&mut self, policy: &BreakerPolicy, now: Timestamp) -> Option<BreakerTransition> {
        let reason = self.reason_to_open(policy)?;
        Some(self.change(BreakerPhase::Open { since: now, reopened: 0 }, reason, now))
    }

    fn reason_to_open(&self, policy: &BreakerPolicy) -> Option<TransitionReason> {
        let reached = |rule: RateRule, share: window::FlaggedShare| {
            // A minimum above the size of the window could never be reached.
            let enough = rule.at_least.min(rule.last).get().min(RateRule::MOST);
            share.part > 0 && share.whole >= enough && rule.threshold.reached_by(share.part, share.whole)
        };
        if policy.consecutive.is_some_and(|count| self.window.run() >= count.get().min(RateRule::MOST)) {
            return Some(TransitionReason::Consecutive);
        }
        if policy.rate.is_some_and(|rule| reached(rule, self.window.failures())) {
            return Some(TransitionReason::Rate);
        }
        if policy.slow.is_some_and(|rule| reached(rule.rate, self.window.slow())) {
            return Some(TransitionReason::Slow);
        }
        None
    }

    #[cold]
    fn record_probe(
        &mut self,
        policy: &BreakerPolicy,
        ticket: BreakerTicket,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        if let BreakerPhase::HalfOpen { probe: Some(probe), .. } = self.phase
            && ticket.probe == Some(probe.number)
        {
            self.release(ticket);
            if probe.holds(policy, now) && !policy.forced_open {
                return self.judge_probe(policy, verdict, now);
            }
        }
        None
    }

    /// Handles the result of a probe that came in time. Its slot is free already.
    fn judge_probe(
        &mut self,
        policy: &BreakerPolicy,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        let BreakerPhase::HalfOpen { reopened, good, neutral, probe, turn } = self.phase else { return None };
        let reopen = BreakerPhase::Open { since: now, reopened: reopened.saturating_add(1) };
        match verdict {
            BreakerVerdict::Failure { .. } => Some(self.change(reopen, TransitionReason::ProbeFailed, now)),
            // Closing after a slow response would open again after the next few of them.
            BreakerVerdict::Success { took } if is_slow(policy, took) => {
                Some(self.change(reopen, TransitionReason::Slow, now))
            }
            BreakerVerdict::Success { .. } => {
                let good = good.saturating_add(1);
                self.phase = BreakerPhase::HalfOpen { reopened, good, neutral: 0, probe, turn };
                (good >= policy.close_after.get())
                    .then(|| self.change(BreakerPhase::Closed, TransitionReason::ProbesSucceeded, now))
            }
            BreakerVerdict::Neutral => {
                let neutral = neutral.saturating_add(1);
                self.phase = BreakerPhase::HalfOpen { reopened, good, neutral, probe, turn };
                (neutral >= policy.neutral_close_after.get())
                    .then(|| self.change(BreakerPhase::Closed, TransitionReason::ProbesAnswered, now))
            }
        }
    }

    fn give_probe(&mut self, now: Timestamp) -> BreakerTicket {
        let number = self.next_probe();
        if let BreakerPhase::HalfOpen { probe, turn, .. } = &mut self.phase {
            let agreed = ProbeAgreement::NotYet { after: probe.map(|probe| probe.number) };
            *probe = Some(ActiveProbe { number, alive: now, announced: now, agreed });
            *turn = turn.saturating_add(1);
        }
        BreakerTicket { epoch: self.epoch, probe: Some(number) }
    }

    fn next_probe(&mut self) -> NonZeroU64 {
        self.probes = self.probes.saturating_add(1);
        NonZeroU64::MIN.saturating_add(self.probes)
    }

    /// Changes the state. The only place that does.
    fn change(&mut self, phase: BreakerPhase, reason: TransitionReason, at: Timestamp) -> BreakerTransition {
        let from = self.phase.state();
        self.epoch = self.epoch.saturating_add(1);
        self.phase = phase;
        self.changed = Some((at, reason));
        // While it is open, its counters show the outcomes that opened it.
        if !matches!(phase, BreakerPhase::Open { .. }) {
            self.window.clear();
        }
        let change = BreakerTransition { from, to: phase.state(), reason, at };
        self.remember(change.clone());
        change
    }

    /// Changes the state for an operator. An operator's change overrides the changes of breakers elsewhere that do not
    /// know of it yet, and the changes of an operator in an earlier second, even if those were forgotten here and in
    /// the store.
    fn change_by_operator(
        &mut self,
        phase: BreakerPhase,
        reason: TransitionReason,
        at: Timestamp,
    ) -> BreakerTransition {
        let next = (self.epoch / BreakerSnapshot::OPERATOR_EPOCH_STEP).saturating_add(1);
        let block = next.max(at.as_millis() / SECOND).saturating_mul(BreakerSnapshot::OPERATOR_EPOCH_STEP);
        // The last epochs are not worth a block: a change there is one of many.
        self.epoch = if block < BreakerSnapshot::LAST_EPOCH { block - 1 } else { self.epoch };
        self.change(phase, reason, at)
    }

    fn remember(&mut self, change: BreakerTransition) {
        if self.changes.len() >= MOST_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    /// Moves times in the future, left by a clock that stepped back, to now. A cool-down or a lease then lasts at most
    /// its own length.
    fn heal_clock(&mut self, now: Timestamp) {
        match &mut self.phase {
            BreakerPhase::Open { since, .. } => *since = now.min(*since),
            BreakerPhase::HalfOpen { probe: Some(probe), .. } => probe.alive = now.min(probe.alive),
            BreakerPhase::HalfOpen { probe: None, .. }
            | BreakerPhase::Closed
            | BreakerPhase::ForcedOpen { .. } => {}
        }
    }
}

impl ActiveProbe {
    fn holds(&self, policy: &BreakerPolicy, now: Timestamp) -> bool {
        now.since(self.alive) < policy.probe_lease
    }
}

fn is_slow(policy: &BreakerPolicy, took: Duration) -> bool {
    policy.slow.is_some_and(|rule| took > rule.slower_than)
}

/// Returns the cool-down after this many failed probes.
fn cooldown(policy: &BreakerCooldown, reopened: u32) -> Duration {
    if reopened == 0 || policy.growth == GrowthFactor::ONE || policy.first.is_zero() {
        return policy.first.min(policy.cap);
    }
    let steps = i32::try_from(reopened).unwrap_or(i32::MAX);
    let grown = policy.first.as_secs_f64() * policy.growth.get().powi(steps);
    // A value too large for a `Duration` is larger than any cap.
    Duration::try_from_secs_f64(grown).map_or(policy.cap, |grown| grown.min(policy.cap))
}

/// The milliseconds in which two changes by operators are distinguished.
const SECOND: u64 = 1000;

/// The maximum number of changes that a breaker keeps.
pub const MOST_CHANGES: usize = 32;

#[cfg(test)]
mod tests;

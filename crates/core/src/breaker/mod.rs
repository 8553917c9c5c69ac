//! The circuit breaker: stop bothering a tool that is down, and find out when it is back.
//!
//! It counts attempts, not calls, because each attempt is load on the tool. It has no timer: whatever merely
//! expires (a cool-down, the lease of a probe, the age of an outcome) is compared with `now` when someone
//! asks, so nothing ticks and nothing can fire late. The policy comes in with every call and may have
//! changed since the last one.
//!
//! Three things go wrong in breakers under load, and each has its answer here:
//! - *Many probes.* The place of a probe is reserved when it is admitted, in the same step that makes the
//!   breaker half-open; there is one place.
//! - *A probe that never comes back.* Its place has a lease. A [`Ticket`] is released when its attempt came
//!   to nothing, and [`Permit`] does so when it is dropped.
//! - *Answers of yesterday.* Every transition starts an epoch, a ticket carries the epoch it was given in,
//!   and an answer of another epoch changes nothing.

mod shared;
mod snapshot;
mod tally;
mod view;
mod window;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use shared::{Permit, SharedBreaker};
pub use snapshot::{InvalidSnapshot, Snapshot};
pub use view::{Forced, Numbers, Rate, View};
use window::{Outcome, Reach, Window};

use crate::Timestamp;
use crate::policy::{BreakerPolicy, Cooldown, Factor, RateRule};

/// Whether calls pass. A *closed* breaker lets them through, an *open* one refuses them: the words are
/// those of an electric circuit.
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
///   └──────────────── │ FORCED_OPEN │ ◄── by hand, from any state
///    (from any state) └─────────────┘     (by configuration: for as long as it says so)
/// ```
///
/// One that was forced open until some time goes on from there as from the end of a cool-down: one call finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum State {
    /// Calls pass.
    Closed,
    /// Calls are refused until the cool-down is over.
    Open,
    /// One call at a time passes, to find out.
    HalfOpen,
    /// Calls are refused until someone resets it, or until the time that was set.
    ForcedOpen,
}

/// Leave to make one attempt. Give it back with what came of it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is neither recorded nor released holds the probe until its lease ends"]
pub struct Ticket {
    epoch: u64,
    probe: Option<NonZeroU64>,
}

impl Ticket {
    /// Whether this attempt is the one that finds out if the tool is back. A fleet that shares a store
    /// takes the store's lease for it before the attempt is made.
    pub const fn is_probe(&self) -> bool {
        self.probe.is_some()
    }
}

/// What a sign of life did for a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It counts for nothing any more.
    Lost,
    /// It counts.
    Still,
    /// It is a probe, it counts, and those who share the breaker have to hear that its place is held for longer.
    ForLonger,
}

/// What came of an admitted attempt, as far as the breaker is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It worked.
    Success {
        /// How long it took.
        took: Duration,
    },
    /// It failed in a way that says something about the tool.
    Failure {
        /// How long it took.
        took: Duration,
    },
    /// It failed in a way that says nothing: bad input, no access, not found.
    Neutral,
}

/// Why an attempt may not be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The state that refused it.
    pub state: State,
    /// When it is worth asking again; nothing if only a person can tell.
    pub retry_at: Option<Timestamp>,
    /// On whose account.
    pub by: RefusedBy,
}

/// On whose account an attempt is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// The tool's own: it failed too often, or nobody knows yet whether it is back.
    Failures,
    /// A person forced the breaker open.
    Hand,
    /// The configuration forces it open.
    Configuration,
}

impl RefusedBy {
    /// The rule as results and logs name it.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Failures => "breaker",
            Self::Hand => "breaker.forced_by_hand",
            Self::Configuration => "breaker.forced_by_configuration",
        }
    }
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transition {
    /// Before.
    pub from: State,
    /// After.
    pub to: State,
    /// Why.
    pub reason: Reason,
    /// When.
    pub at: Timestamp,
}

/// Why a breaker changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Too many failures in a row.
    Consecutive,
    /// Too large a share of failures.
    Rate,
    /// Too large a share of slow answers, or a probe that was slow.
    Slow,
    /// The cool-down is over, or the time for which it was forced open.
    CooledDown,
    /// A probe failed.
    ProbeFailed,
    /// Enough probes were good.
    ProbesSucceeded,
    /// Enough probes were answered, although not with success.
    ProbesAnswered,
    /// By hand.
    Forced,
    /// By hand.
    Reset,
}

/// What a closed breaker has counted, as of the last outcome; for people who look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Outcomes that the rule of failures looks at.
    pub calls: u32,
    /// Failures among them.
    pub failures: u32,
    /// Failures in a row.
    pub in_a_row: u32,
    /// Slow ones among those that the rule of slowness looks at.
    pub slow: u32,
}

/// One breaker. A new one is closed.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    /// Grows with every transition and reset, and never goes back. What is done by hand [leaps](Snapshot::BY_HAND).
    epoch: u64,
    phase: Phase,
    /// The last transition: when and why. A breaker that never changed has none.
    changed: Option<(Timestamp, Reason)>,
    /// The last [`MOST_CHANGES`] transitions and resets, the newest last; for people who look at it.
    changes: VecDeque<Transition>,
    /// Probes given out so far, so that each has a number of its own.
    probes: u64,
    /// The last probe given here that came back.
    ended: Option<NonZeroU64>,
    window: Window,
}

/// The state with what belongs to it.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Closed,
    Open {
        since: Timestamp,
        /// Probes that failed since it was last closed; the cool-down grows with them.
        reopened: u32,
    },
    HalfOpen {
        reopened: u32,
        /// Good probes in a row.
        good: u32,
        /// Neutral answers in a row.
        neutral: u32,
        probe: Option<Probe>,
        /// How often the place was given, given back or kept since this state began: the order of what is stored of it.
        turn: u32,
    },
    ForcedOpen {
        /// When it is over; nothing if only a reset ends it.
        until: Option<Timestamp>,
    },
}

/// Who has the one place in half-open.
#[derive(Clone, Copy, Debug)]
struct Probe {
    number: NonZeroU64,
    /// The last sign of life; its lease counts from here.
    alive: Timestamp,
    /// The one that others were told of.
    told: Timestamp,
    agreed: Agreed,
}

/// Whether all who share the breaker know who has the place. What they do not know of must not replace what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreed {
    Yes,
    /// Not yet: it was taken when it was free, or when the lease of this one was over.
    NotYet {
        after: Option<NonZeroU64>,
    },
}

impl Phase {
    const fn state(self) -> State {
        match self {
            Self::Closed => State::Closed,
            Self::Open { .. } => State::Open,
            Self::HalfOpen { .. } => State::HalfOpen,
            Self::ForcedOpen { .. } => State::ForcedOpen,
        }
    }
}

impl Breaker {
    /// A closed breaker whose probes are numbered from here. Those who share a store start far apart, so that no two
    /// of them ever give the same number.
    pub fn numbered_from(first: u64) -> Self {
        // Readers of JSON keep whole numbers up to here, and no breaker gives as many probes as there is room above.
        Self { probes: first % (Snapshot::LAST_EPOCH / 2), ..Self::default() }
    }

    /// Whether an attempt would be refused now. Changes nothing.
    pub fn check(&self, policy: &BreakerPolicy, now: Timestamp) -> Result<(), Refused> {
        if policy.forced_open {
            let by = RefusedBy::Configuration;
            return Err(Refused { state: State::ForcedOpen, retry_at: None, by });
        }
        let by = RefusedBy::Failures;
        match self.phase {
            Phase::Closed => Ok(()),
            Phase::Open { since, reopened } => {
                // A clock that stepped back costs one more cool-down at most, not the size of the step.
                let until = since.min(now) + cooldown(&policy.cooldown, reopened);
                if until <= now {
                    Ok(())
                } else {
                    Err(Refused { state: State::Open, retry_at: Some(until), by })
                }
            }
            Phase::HalfOpen { probe, .. } => match probe {
                Some(probe) if probe.holds(policy, now) => {
                    // The answer may come any moment; only the latest moment is known.
                    let latest = (probe.alive + policy.probe_lease).min(now + policy.cooldown.first);
                    Err(Refused { state: State::HalfOpen, retry_at: Some(latest), by })
                }
                Some(_) | None => Ok(()),
            },
            Phase::ForcedOpen { until: Some(until) } if until <= now => Ok(()),
            Phase::ForcedOpen { until } => {
                Err(Refused { state: State::ForcedOpen, retry_at: until, by: RefusedBy::Hand })
            }
        }
    }

    /// Leave to make an attempt, or why not. May move from open to half-open.
    pub fn admit(
        &mut self,
        policy: &BreakerPolicy,
        now: Timestamp,
    ) -> Result<(Ticket, Option<Transition>), Refused> {
        self.heal_clock(now);
        self.check(policy, now)?;
        match self.phase {
            Phase::Closed => Ok((Ticket { epoch: self.epoch, probe: None }, None)),
            Phase::Open { .. } | Phase::ForcedOpen { .. } => {
                let reopened = match self.phase {
                    Phase::Open { reopened, .. } => reopened,
                    Phase::Closed | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. } => 0,
                };
                let half_open = Phase::HalfOpen { reopened, good: 0, neutral: 0, probe: None, turn: 0 };
                let change = self.change(half_open, Reason::CooledDown, now);
                Ok((self.give_probe(now), Some(change)))
            }
            Phase::HalfOpen { .. } => Ok((self.give_probe(now), None)),
        }
    }

    /// Takes back a ticket with what came of it. An answer of an older epoch, or of a probe whose lease is
    /// over, changes nothing. While the configuration forces the breaker open, nothing is learned.
    #[inline]
    pub fn record(
        &mut self,
        policy: &BreakerPolicy,
        ticket: Ticket,
        verdict: Verdict,
        now: Timestamp,
    ) -> Option<Transition> {
        if ticket.epoch != self.epoch {
            return None;
        }
        match self.phase {
            Phase::Closed if ticket.probe.is_none() && !policy.forced_open => {
                self.count(policy, verdict, now)
            }
            Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. } => {
                self.record_probe(policy, ticket, verdict, now)
            }
        }
    }

    /// Takes back a ticket whose attempt came to nothing (not made, cancelled).
    pub fn release(&mut self, ticket: Ticket) {
        if let Phase::HalfOpen { probe, turn, .. } = &mut self.phase
            && ticket.epoch == self.epoch
            && probe.is_some_and(|probe| ticket.probe == Some(probe.number))
        {
            *turn = match probe.take().map(|probe| probe.agreed) {
                Some(Agreed::NotYet { .. }) => turn.saturating_sub(1),
                Some(Agreed::Yes) | None => turn.saturating_add(1),
            };
            self.ended = ticket.probe;
        }
    }

    /// All who share the breaker know that this ticket has the place of the probe, and that nobody else has.
    pub fn agreed(&mut self, ticket: &Ticket) {
        if let Phase::HalfOpen { probe: Some(probe), .. } = &mut self.phase
            && ticket.probe == Some(probe.number)
        {
            probe.agreed = Agreed::Yes;
        }
    }

    /// A sign of life of an attempt. A probe that is long but not silent keeps its place, unless its lease
    /// is already over.
    pub fn renew(&mut self, policy: &BreakerPolicy, ticket: &Ticket, now: Timestamp) -> Held {
        if ticket.epoch != self.epoch {
            return Held::Lost;
        }
        match &mut self.phase {
            Phase::HalfOpen { probe: Some(probe), turn, .. } if ticket.probe == Some(probe.number) => {
                if !probe.holds(policy, now) {
                    return Held::Lost;
                }
                probe.alive = now;
                if probe.agreed != Agreed::Yes || now.since(probe.told) < policy.probe_lease / 3 {
                    return Held::Still;
                }
                probe.told = now;
                *turn = turn.saturating_add(1);
                Held::ForLonger
            }
            Phase::Closed => Held::Still,
            Phase::HalfOpen { .. } | Phase::Open { .. } | Phase::ForcedOpen { .. } => Held::Lost,
        }
    }

    /// Whether this ticket counts: neither did the breaker change since, nor was its place given to another.
    pub fn holds(&self, policy: &BreakerPolicy, ticket: &Ticket, now: Timestamp) -> bool {
        ticket.epoch == self.epoch
            && match (self.phase, ticket.probe) {
                (Phase::Closed, None) => true,
                (Phase::HalfOpen { probe: Some(probe), .. }, Some(number)) => {
                    probe.number == number && probe.holds(policy, now)
                }
                (
                    Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. },
                    _,
                ) => false,
            }
    }

    /// The state as of now: an open breaker whose cool-down is over is half-open, although no call has
    /// come yet to make use of it.
    pub fn state(&self, policy: &BreakerPolicy, now: Timestamp) -> State {
        if policy.forced_open {
            return State::ForcedOpen;
        }
        match self.phase {
            Phase::Open { .. } | Phase::ForcedOpen { .. } if self.check(policy, now).is_ok() => {
                State::HalfOpen
            }
            Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. } => {
                self.phase.state()
            }
        }
    }

    /// Opens it until this time, or until it is reset. What was under way counts no more.
    pub fn force_open(&mut self, until: Option<Timestamp>, now: Timestamp) -> Option<Transition> {
        match self.phase {
            Phase::ForcedOpen { until: known } if known == until => None,
            Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. } => {
                Some(self.change_by_hand(Phase::ForcedOpen { until }, Reason::Forced, now))
            }
        }
    }

    /// Closes it and forgets what it counted; attempts still under way no longer count, even if it was
    /// closed already. What the configuration forces open stays open.
    pub fn reset(&mut self, now: Timestamp) -> Option<Transition> {
        let change = self.change_by_hand(Phase::Closed, Reason::Reset, now);
        (change.from != State::Closed).then_some(change)
    }

    /// Whether a person forced it open, and nothing has ended that yet.
    pub const fn is_forced_by_hand(&self) -> bool {
        matches!(self.phase, Phase::ForcedOpen { .. })
    }

    /// What it has counted, as of the last outcome.
    pub fn counts(&self) -> Counts {
        let (failures, slow) = (self.window.failures(), self.window.slow());
        Counts {
            calls: failures.whole,
            failures: failures.part,
            in_a_row: self.window.run(),
            slow: slow.part,
        }
    }

    /// Differs before and after every transition and reset, and never goes back. All who share the breaker count alike.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A counted outcome of a closed breaker.
    #[inline]
    fn count(&mut self, policy: &BreakerPolicy, verdict: Verdict, now: Timestamp) -> Option<Transition> {
        let (outcome, took) = match verdict {
            Verdict::Success { took } => (Outcome::good(now), took),
            Verdict::Failure { took } => (Outcome::good(now).failed(), took),
            Verdict::Neutral => return None,
        };
        let outcome = if is_slow(policy, took) { outcome.slow() } else { outcome };
        self.window.push(Reach::of(policy), policy.window, outcome);
        if self.window.is_clean() { None } else { self.open_if_due(policy, now) }
    }

    /// Good answers with their moments, counted elsewhere while nothing bad was in sight.
    fn count_good(&mut self, moments: impl ExactSizeIterator<Item = Option<Timestamp>>) {
        if let Phase::Closed = self.phase {
            self.window.push_good(moments);
        }
    }

    /// Whether good answers, however many, could change nothing.
    fn is_untroubled(&self) -> bool {
        match self.phase {
            Phase::Closed => self.window.is_clean(),
            Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. } => false,
        }
    }

    fn open_if_due(&mut self, policy: &BreakerPolicy, now: Timestamp) -> Option<Transition> {
        let reason = self.reason_to_open(policy)?;
        Some(self.change(Phase::Open { since: now, reopened: 0 }, reason, now))
    }

    fn reason_to_open(&self, policy: &BreakerPolicy) -> Option<Reason> {
        let reached = |rule: RateRule, share: window::Share| {
            // A minimum above what is kept could never be reached.
            let enough = rule.at_least.min(rule.last).get().min(RateRule::MOST);
            share.part > 0 && share.whole >= enough && rule.threshold.reached_by(share.part, share.whole)
        };
        if policy.consecutive.is_some_and(|count| self.window.run() >= count.get().min(RateRule::MOST)) {
            return Some(Reason::Consecutive);
        }
        if policy.rate.is_some_and(|rule| reached(rule, self.window.failures())) {
            return Some(Reason::Rate);
        }
        if policy.slow.is_some_and(|rule| reached(rule.rate, self.window.slow())) {
            return Some(Reason::Slow);
        }
        None
    }

    #[cold]
    fn record_probe(
        &mut self,
        policy: &BreakerPolicy,
        ticket: Ticket,
        verdict: Verdict,
        now: Timestamp,
    ) -> Option<Transition> {
        if let Phase::HalfOpen { probe: Some(probe), .. } = self.phase
            && ticket.probe == Some(probe.number)
        {
            self.release(ticket);
            if probe.holds(policy, now) && !policy.forced_open {
                return self.judge_probe(policy, verdict, now);
            }
        }
        None
    }

    /// The answer to a probe that was in time. Its place is free already.
    fn judge_probe(
        &mut self,
        policy: &BreakerPolicy,
        verdict: Verdict,
        now: Timestamp,
    ) -> Option<Transition> {
        let Phase::HalfOpen { reopened, good, neutral, probe, turn } = self.phase else { return None };
        let reopen = Phase::Open { since: now, reopened: reopened.saturating_add(1) };
        match verdict {
            Verdict::Failure { .. } => Some(self.change(reopen, Reason::ProbeFailed, now)),
            // Closing on a slow answer would open again after the next few of them.
            Verdict::Success { took } if is_slow(policy, took) => {
                Some(self.change(reopen, Reason::Slow, now))
            }
            Verdict::Success { .. } => {
                let good = good.saturating_add(1);
                self.phase = Phase::HalfOpen { reopened, good, neutral: 0, probe, turn };
                (good >= policy.close_after.get())
                    .then(|| self.change(Phase::Closed, Reason::ProbesSucceeded, now))
            }
            Verdict::Neutral => {
                let neutral = neutral.saturating_add(1);
                self.phase = Phase::HalfOpen { reopened, good, neutral, probe, turn };
                (neutral >= policy.neutral_close_after.get())
                    .then(|| self.change(Phase::Closed, Reason::ProbesAnswered, now))
            }
        }
    }

    fn give_probe(&mut self, now: Timestamp) -> Ticket {
        let number = self.next_probe();
        if let Phase::HalfOpen { probe, turn, .. } = &mut self.phase {
            let agreed = Agreed::NotYet { after: probe.map(|probe| probe.number) };
            *probe = Some(Probe { number, alive: now, told: now, agreed });
            *turn = turn.saturating_add(1);
        }
        Ticket { epoch: self.epoch, probe: Some(number) }
    }

    fn next_probe(&mut self) -> NonZeroU64 {
        self.probes = self.probes.saturating_add(1);
        NonZeroU64::MIN.saturating_add(self.probes)
    }

    /// The one place where the state changes.
    fn change(&mut self, phase: Phase, reason: Reason, at: Timestamp) -> Transition {
        let from = self.phase.state();
        self.epoch = self.epoch.saturating_add(1);
        self.phase = phase;
        self.changed = Some((at, reason));
        // While it is open, its counts show what opened it.
        if !matches!(phase, Phase::Open { .. }) {
            self.window.clear();
        }
        let change = Transition { from, to: phase.state(), reason, at };
        self.remember(change.clone());
        change
    }

    /// What a person says goes before whatever breakers elsewhere conclude that have not heard of it yet, and before what was
    /// said in an earlier second, also where that was forgotten here and in the store.
    fn change_by_hand(&mut self, phase: Phase, reason: Reason, at: Timestamp) -> Transition {
        let next = (self.epoch / Snapshot::BY_HAND).saturating_add(1);
        let block = next.max(at.as_millis() / SECOND).saturating_mul(Snapshot::BY_HAND);
        // The last epochs are not worth a block: there, a change is one of many.
        self.epoch = if block < Snapshot::LAST_EPOCH { block - 1 } else { self.epoch };
        self.change(phase, reason, at)
    }

    fn remember(&mut self, change: Transition) {
        if self.changes.len() >= MOST_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    /// Moments of the future, left by a clock that stepped back, become now: a cool-down or a lease then
    /// lasts its own length at most.
    fn heal_clock(&mut self, now: Timestamp) {
        match &mut self.phase {
            Phase::Open { since, .. } => *since = now.min(*since),
            Phase::HalfOpen { probe: Some(probe), .. } => probe.alive = now.min(probe.alive),
            Phase::HalfOpen { probe: None, .. } | Phase::Closed | Phase::ForcedOpen { .. } => {}
        }
    }
}

impl Probe {
    fn holds(&self, policy: &BreakerPolicy, now: Timestamp) -> bool {
        now.since(self.alive) < policy.probe_lease
    }
}

fn is_slow(policy: &BreakerPolicy, took: Duration) -> bool {
    policy.slow.is_some_and(|rule| took > rule.slower_than)
}

/// The cool-down after this many failed probes.
fn cooldown(policy: &Cooldown, reopened: u32) -> Duration {
    if reopened == 0 || policy.growth == Factor::ONE || policy.first.is_zero() {
        return policy.first.min(policy.cap);
    }
    let steps = i32::try_from(reopened).unwrap_or(i32::MAX);
    let grown = policy.first.as_secs_f64() * policy.growth.get().powi(steps);
    // What is too large for a span is larger than any cap.
    Duration::try_from_secs_f64(grown).map_or(policy.cap, |grown| grown.min(policy.cap))
}

/// Milliseconds by which people's words are told apart.
const SECOND: u64 = 1000;

/// How many of its last changes a breaker remembers.
pub const MOST_CHANGES: usize = 32;

#[cfg(test)]
mod tests;

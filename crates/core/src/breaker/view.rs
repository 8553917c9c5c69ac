//! The view of a circuit breaker, shared by all surfaces so that they never disagree.

use serde::{Deserialize, Serialize};

use super::{
    BreakerPhase, BreakerRefusalCause, BreakerTransition, CircuitBreaker, State, TransitionReason, cooldown,
};
use crate::policy::{BreakerPolicy, RateRule};
use crate::{Timestamp, millis};

/// The state of a circuit breaker at one time, for display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BreakerDetails {
    /// Current state. A breaker whose cool-down is over is half-open, even before the next call.
    pub state: State,
    /// Time of the last change. Absent if it never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Reason for the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TransitionReason>,
    /// Reason why the breaker opened when it was last closed. Absent while it is closed. After a failed probe, this is
    /// the reason why the probe was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<TransitionReason>,
    /// Successful outcomes in the window, as of the last outcome.
    pub successes: u32,
    /// Failures in the window.
    pub failures: u32,
    /// Failures in a row.
    pub in_a_row: u32,
    /// Slow outcomes, if a rule counts them.
    pub slow: u32,
    /// Time from which a call may be a probe. If it has passed, the next call is a probe. Absent while calls are
    /// admitted, or if only an operator can end the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_probe_at: Option<Timestamp>,
    /// True if a probe is in flight.
    pub probing: bool,
    /// Cause of a forced opening, if the breaker is forced open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<ForcedOpenCause>,
    /// Policy of the breaker.
    pub policy: BreakerNumbers,
    /// Last changes, newest last.
    pub changes: Vec<BreakerTransition>,
}

/// The cause of a forced opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ForcedOpenCause {
    /// An operator forced the breaker open.
    Hand {
        /// End of the forced opening. Absent if it lasts until a reset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// The configuration forces the breaker open while it is set.
    Configuration,
}

/// The numbers of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the settings of a breaker, by name")]
pub struct BreakerNumbers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<BreakerRate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_rate: Option<BreakerRate>,
    pub window_ms: u64,
    pub cooldown_ms: u64,
    pub longest_cooldown_ms: u64,
    pub close_after: u32,
    pub probe_lease_ms: u64,
}

/// A failure rate rule over the last calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the settings of a rate, by name")]
pub struct BreakerRate {
    pub threshold: f64,
    pub last: u32,
    pub at_least: u32,
}

impl CircuitBreaker {
    /// Returns the view of the breaker now.
    pub fn view(&self, policy: &BreakerPolicy, now: Timestamp) -> BreakerDetails {
        let counts = self.counts();
        BreakerDetails {
            state: self.state(policy, now),
            since: self.changed.map(|(at, _)| at),
            reason: self.changed.map(|(_, reason)| reason),
            opened_by: self.opened_by(),
            successes: counts.calls.saturating_sub(counts.failures),
            failures: counts.failures,
            in_a_row: counts.in_a_row,
            slow: counts.slow,
            next_probe_at: if policy.forced_open { None } else { self.next_probe_at(policy, now) },
            probing: match self.phase {
                BreakerPhase::HalfOpen { probe, .. } => probe.is_some_and(|probe| probe.holds(policy, now)),
                BreakerPhase::Closed | BreakerPhase::Open { .. } | BreakerPhase::ForcedOpen { .. } => false,
            },
            forced: match self.check(policy, now) {
                Ok(()) => None,
                Err(refused) => match refused.by {
                    BreakerRefusalCause::Failures => None,
                    BreakerRefusalCause::Operator => Some(ForcedOpenCause::Hand { until: refused.retry_at }),
                    BreakerRefusalCause::Configuration => Some(ForcedOpenCause::Configuration),
                },
            },
            policy: BreakerNumbers::from(policy),
            changes: self.changes.iter().cloned().collect(),
        }
    }

    /// Returns the change that left the closed state, as far back as changes are kept. A change by an operator counts
    /// before it.
    fn opened_by(&self) -> Option<TransitionReason> {
        match self.phase {
            BreakerPhase::Closed => return None,
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } | BreakerPhase::ForcedOpen { .. } => {}
        }
        let opening =
            |change: &&BreakerTransition| change.from == State::Closed || change.to == State::ForcedOpen;
        let remembered = self.changes.iter().rev().find(opening).map(|change| change.reason);
        remembered.or(self.changed.map(|(_, reason)| reason))
    }

    fn next_probe_at(&self, policy: &BreakerPolicy, now: Timestamp) -> Option<Timestamp> {
        match self.phase {
            BreakerPhase::Closed => None,
            BreakerPhase::Open { since, reopened } => {
                Some(since.min(now) + cooldown(&policy.cooldown, reopened))
            }
            BreakerPhase::HalfOpen { .. } => match self.check(policy, now) {
                Ok(()) => Some(now),
                Err(refused) => refused.retry_at,
            },
            BreakerPhase::ForcedOpen { until } => until,
        }
    }
}

impl From<&BreakerPolicy> for BreakerNumbers {
    fn from(policy: &BreakerPolicy) -> Self {
        Self {
            consecutive: policy.consecutive.map(std::num::NonZeroU32::get),
            failure_rate: policy.rate.map(BreakerRate::from),
            slower_than_ms: policy.slow.map(|rule| millis(rule.slower_than)),
            slow_rate: policy.slow.map(|rule| BreakerRate::from(rule.rate)),
            window_ms: millis(policy.window),
            cooldown_ms: millis(policy.cooldown.first),
            longest_cooldown_ms: millis(policy.cooldown.cap),
            close_after: policy.close_after.get(),
            probe_lease_ms: millis(policy.probe_lease),
        }
    }
}

impl From<RateRule> for BreakerRate {
    fn from(rule: RateRule) -> Self {
        let (last, at_least) = (rule.last.get(), rule.at_least.get());
        Self { threshold: rule.threshold.get(), last, at_least }
    }
}

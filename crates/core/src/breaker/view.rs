//! A breaker as people see it: one picture for every surface, so that no two of them disagree.

use serde::{Deserialize, Serialize};

use super::{Breaker, Phase, Reason, RefusedBy, State, Transition, cooldown};
use crate::policy::{BreakerPolicy, RateRule};
use crate::{Timestamp, millis};

/// What there is to see of a breaker at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The state as of now: one whose cool-down is over is half-open, although no call has come yet to make use of it.
    pub state: State,
    /// When it last changed; nothing if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Why it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Why it opened when it was last closed; nothing while it is closed. Behind a probe that failed stands what made
    /// the probe needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<Reason>,
    /// Outcomes in the window that worked, as of the last outcome.
    pub successes: u32,
    /// Those that failed.
    pub failures: u32,
    /// Failures in a row.
    pub in_a_row: u32,
    /// Slow ones, where a rule looks for them.
    pub slow: u32,
    /// From when on a call may find out whether the tool is back; a moment that has passed says that the next call may.
    /// Nothing while calls pass, or if only a person can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_probe_at: Option<Timestamp>,
    /// Whether a probe is under way.
    pub probing: bool,
    /// Who forces it open, if anybody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<Forced>,
    /// By what it is judged.
    pub policy: Numbers,
    /// Its last changes, the newest last.
    pub changes: Vec<Transition>,
}

/// Who forces a breaker open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Forced {
    /// A person.
    Hand {
        /// Until when; nothing if until it is reset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// The configuration, for as long as it says so.
    Configuration,
}

/// The numbers of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the settings of a breaker, by name")]
pub struct Numbers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<Rate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_rate: Option<Rate>,
    pub window_ms: u64,
    pub cooldown_ms: u64,
    pub longest_cooldown_ms: u64,
    pub close_after: u32,
    pub probe_lease_ms: u64,
}

/// A share of the last calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the settings of a rate, by name")]
pub struct Rate {
    pub threshold: f64,
    pub last: u32,
    pub at_least: u32,
}

impl Breaker {
    /// What there is to see of it now.
    pub fn view(&self, policy: &BreakerPolicy, now: Timestamp) -> View {
        let counts = self.counts();
        View {
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
                Phase::HalfOpen { probe, .. } => probe.is_some_and(|probe| probe.holds(policy, now)),
                Phase::Closed | Phase::Open { .. } | Phase::ForcedOpen { .. } => false,
            },
            forced: match self.check(policy, now) {
                Ok(()) => None,
                Err(refused) => match refused.by {
                    RefusedBy::Failures => None,
                    RefusedBy::Hand => Some(Forced::Hand { until: refused.retry_at }),
                    RefusedBy::Configuration => Some(Forced::Configuration),
                },
            },
            policy: Numbers::from(policy),
            changes: self.changes.iter().cloned().collect(),
        }
    }

    /// The change that led away from closed, as far back as changes are remembered; what a person did counts before it.
    fn opened_by(&self) -> Option<Reason> {
        match self.phase {
            Phase::Closed => return None,
            Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::ForcedOpen { .. } => {}
        }
        let opening = |change: &&Transition| change.from == State::Closed || change.to == State::ForcedOpen;
        let remembered = self.changes.iter().rev().find(opening).map(|change| change.reason);
        remembered.or(self.changed.map(|(_, reason)| reason))
    }

    fn next_probe_at(&self, policy: &BreakerPolicy, now: Timestamp) -> Option<Timestamp> {
        match self.phase {
            Phase::Closed => None,
            Phase::Open { since, reopened } => Some(since.min(now) + cooldown(&policy.cooldown, reopened)),
            Phase::HalfOpen { .. } => match self.check(policy, now) {
                Ok(()) => Some(now),
                Err(refused) => refused.retry_at,
            },
            Phase::ForcedOpen { until } => until,
        }
    }
}

impl From<&BreakerPolicy> for Numbers {
    fn from(policy: &BreakerPolicy) -> Self {
        Self {
            consecutive: policy.consecutive.map(std::num::NonZeroU32::get),
            failure_rate: policy.rate.map(Rate::from),
            slower_than_ms: policy.slow.map(|rule| millis(rule.slower_than)),
            slow_rate: policy.slow.map(|rule| Rate::from(rule.rate)),
            window_ms: millis(policy.window),
            cooldown_ms: millis(policy.cooldown.first),
            longest_cooldown_ms: millis(policy.cooldown.cap),
            close_after: policy.close_after.get(),
            probe_lease_ms: millis(policy.probe_lease),
        }
    }
}

impl From<RateRule> for Rate {
    fn from(rule: RateRule) -> Self {
        let (last, at_least) = (rule.last.get(), rule.at_least.get());
        Self { threshold: rule.threshold.get(), last, at_least }
    }
}

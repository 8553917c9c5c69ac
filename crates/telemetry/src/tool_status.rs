//! The last known state of a tool: its class, its breakers and its trust.
//!
//! A tool has a breaker for each tenant and trust for each signature, so the gauges show the worst of them. Only
//! states other than the best one are kept, and their number is limited.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::breaker;
use steadfast_core::id::{TenantId, ToolRef};
use steadfast_core::policy::{RecordLifetimes, ToolClass};
use steadfast_core::trust::TrustState;

/// The last known state of a tool.
#[derive(Debug, Default)]
pub(crate) struct ToolStatus(Mutex<ToolStatusState>);

#[derive(Debug, Default)]
struct ToolStatusState {
    profile: Option<ToolPolicySummary>,
    breakers: BTreeMap<(ToolRef, Option<TenantId>), breaker::State>,
    trust: BTreeMap<Arc<str>, TrustState>,
    overload_logged: Option<Timestamp>,
}

/// The parts of a tool's policy that gauges show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToolPolicySummary {
    pub(crate) class: ToolClass,
    pub(crate) scope: &'static str,
    pub(crate) keep: RecordLifetimes,
}

/// A state before and after a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StateChange<S> {
    pub(crate) from: Option<S>,
    pub(crate) to: S,
}

impl ToolStatus {
    /// Records the policy. Returns the change if it differs from the last one.
    pub(crate) fn profile(&self, now: ToolPolicySummary) -> Option<StateChange<ToolPolicySummary>> {
        let mut status = self.0.lock();
        if status.profile == Some(now) {
            return None;
        }
        Some(StateChange { from: status.profile.replace(now), to: now })
    }

    /// Returns the key scope of this tool, as far as it is known.
    pub(crate) fn scope(&self) -> &'static str {
        self.0.lock().profile.map_or("session", |profile| profile.scope)
    }

    /// Records the state of a breaker of the tool. Returns the worst state of all its breakers.
    pub(crate) fn breaker(
        &self,
        tool: &ToolRef,
        tenant: Option<&TenantId>,
        to: breaker::State,
    ) -> breaker::State {
        let mut status = self.0.lock();
        let key = (tool.clone(), tenant.cloned());
        remember(&mut status.breakers, key, to, |state| match state {
            breaker::State::Closed => 0,
            breaker::State::HalfOpen => 1,
            breaker::State::Open => 2,
            breaker::State::ForcedOpen => 3,
        })
        .unwrap_or(breaker::State::Closed)
    }

    /// Records the trust in a signature of the tool, or in all of it. Returns the worst state.
    pub(crate) fn trust(&self, subject: &Arc<str>, to: TrustState) -> TrustState {
        let mut status = self.0.lock();
        remember(&mut status.trust, subject.clone(), to, |state| match state {
            TrustState::Trusted => 0,
            TrustState::Recovering => 1,
            TrustState::Escalated => 2,
            TrustState::Blocked => 3,
        })
        .unwrap_or(TrustState::Trusted)
    }

    /// Returns true if an overload of the tool is to be logged now: at most once a minute.
    pub(crate) fn should_log_overload(&self, now: Timestamp) -> bool {
        let mut status = self.0.lock();
        let due = status.overload_logged.is_none_or(|last| now.since(last).as_secs() >= 60);
        if due {
            status.overload_logged = Some(now);
        }
        due
    }
}

/// Records a state unless it is the best one, which has no badness. Returns the worst state. If there is no room, the
/// least bad one is replaced by a worse one.
fn remember<K: Ord + Clone, S: Copy>(
    states: &mut BTreeMap<K, S>,
    key: K,
    state: S,
    badness: impl Fn(S) -> u8,
) -> Option<S> {
    states.remove(&key);
    if badness(state) > 0 {
        if states.len() >= MOST_STATES
            && let Some((least, least_bad)) = states.iter().min_by_key(|(_, state)| badness(**state))
        {
            if badness(*least_bad) < badness(state) {
                let least = least.clone();
                states.remove(&least);
                states.insert(key, state);
            }
        } else {
            states.insert(key, state);
        }
    }
    states.values().copied().max_by_key(|state| badness(*state))
}

/// The most breakers, and the most trust signatures, that are kept for one tool.
const MOST_STATES: usize = 64;

#[cfg(test)]
mod tests {
    use steadfast_core::id::{Namespace, ToolName};

    use super::*;

    fn tool() -> ToolRef {
        ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() }
    }

    #[test]
    fn the_worst_of_all_breakers_counts() {
        let (standing, a) = (ToolStatus::default(), TenantId::new("a").unwrap());
        let b = TenantId::new("b").unwrap();
        assert_eq!(standing.breaker(&tool(), Some(&a), breaker::State::Open), breaker::State::Open);
        assert_eq!(standing.breaker(&tool(), Some(&b), breaker::State::Closed), breaker::State::Open);
        assert_eq!(standing.breaker(&tool(), Some(&a), breaker::State::HalfOpen), breaker::State::HalfOpen);
        assert_eq!(standing.breaker(&tool(), Some(&a), breaker::State::Closed), breaker::State::Closed);
        assert!(standing.0.lock().breakers.is_empty());
    }

    #[test]
    fn states_are_bounded_and_the_worst_is_stored() {
        let standing = ToolStatus::default();
        for number in 0..1000 {
            standing.trust(&format!("signature {number}").into(), TrustState::Recovering);
        }
        assert_eq!(standing.trust(&"worse".into(), TrustState::Blocked), TrustState::Blocked);
        assert_eq!(standing.0.lock().trust.len(), MOST_STATES);
        assert_eq!(standing.trust(&"worse".into(), TrustState::Trusted), TrustState::Recovering);
    }

    #[test]
    fn overload_is_logged_once_a_minute() {
        let standing = ToolStatus::default();
        let at = Timestamp::from_millis;
        assert!(standing.should_log_overload(at(0)));
        assert!(!standing.should_log_overload(at(59_999)));
        assert!(standing.should_log_overload(at(60_000)));
    }
}

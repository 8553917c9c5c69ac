//! State machines that the calls of a replay share, as in the engine: one for each tool, dependency, session and
//! tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalLedger;
use steadfast_core::breaker::{BreakerTransition, CircuitBreaker, State};
use steadfast_core::call::{BreakerScope, CallMechanisms};
use steadfast_core::envelope::BreakerHint;
use steadfast_core::guard::LoopGuard;
use steadfast_core::id::{Domain, SessionKey, TenantId, ToolRef};
use steadfast_core::limit::Limiter;
use steadfast_core::policy::BreakerPolicy;
use steadfast_core::retry::RetryBudget;
use steadfast_core::trust::{TrustLedger, TrustTarget};

use super::BreakerOpening;
use super::recording::RecordedCall;

type ReplayToolKey = (Option<TenantId>, ToolRef);
type ReplayDependencyKey = (Option<TenantId>, Arc<str>);
type ReplaySessionKey = (Option<TenantId>, Option<SessionKey>);

/// The keys of the machines that a call uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MachineKeys {
    pub(super) tool: ReplayToolKey,
    pub(super) dependency: ReplayDependencyKey,
    pub(super) coarser: Option<ReplayDependencyKey>,
    pub(super) session: ReplaySessionKey,
    domain: Option<Domain>,
}

impl MachineKeys {
    pub(super) fn of(call: &RecordedCall) -> Self {
        let request = &call.request;
        let tenant = &request.tenant;
        let name =
            request.domain.as_ref().map_or_else(|| request.tool.namespace.to_shared(), Domain::to_shared);
        let dependency = (tenant.clone(), name);
        Self {
            tool: (tenant.clone(), request.tool.clone()),
            coarser: match call.breaker {
                None | Some(BreakerHint::Tool) => None,
                Some(BreakerHint::Dependency) => Some(dependency.clone()),
                Some(BreakerHint::Global) => Some((tenant.clone(), "*".into())),
            },
            dependency,
            session: (tenant.clone(), request.session.clone()),
            domain: request.domain.clone(),
        }
    }
}

/// All shared machines.
#[derive(Debug, Default)]
pub(super) struct ReplayMachines {
    tools: BTreeMap<ReplayToolKey, (CircuitBreaker, Limiter)>,
    coarser: BTreeMap<ReplayDependencyKey, CircuitBreaker>,
    loads: BTreeMap<ReplayDependencyKey, (RetryBudget, Limiter)>,
    guards: BTreeMap<ReplaySessionKey, LoopGuard>,
    trust: BTreeMap<Option<TenantId>, TrustLedger>,
    /// The events that opened the circuit breakers that are not closed.
    opened: BTreeMap<ReplayBreakerKey, BreakerOpening>,
}

/// The key of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReplayBreakerKey {
    Tool(ReplayToolKey),
    Coarser(ReplayDependencyKey),
}

impl MachineKeys {
    fn breaker(&self, scope: BreakerScope) -> Option<ReplayBreakerKey> {
        match scope {
            BreakerScope::Tool => Some(ReplayBreakerKey::Tool(self.tool.clone())),
            BreakerScope::Dependency => self.coarser.clone().map(ReplayBreakerKey::Coarser),
        }
    }
}

impl ReplayMachines {
    /// Lends the machines of one call for one step.
    pub(super) fn lend<R>(
        &mut self,
        uses: &MachineKeys,
        approvals: &ApprovalLedger,
        act: impl FnOnce(&mut CallMechanisms<'_>) -> R,
    ) -> R {
        let (breaker, limiter) = self.tools.entry(uses.tool.clone()).or_default();
        let dependency = uses.coarser.as_ref().map(|name| self.coarser.entry(name.clone()).or_default());
        let (budget, dependency_limiter) = self.loads.entry(uses.dependency.clone()).or_default();
        act(&mut CallMechanisms {
            breaker,
            dependency,
            budget,
            limiter,
            dependency_limiter,
            guard: self.guards.entry(uses.session.clone()).or_default(),
            trust: self.trust.entry(uses.tool.0.clone()).or_default(),
            approvals,
        })
    }

    /// Records that a call changed the state of a circuit breaker.
    pub(super) fn changed(
        &mut self,
        uses: &MachineKeys,
        scope: BreakerScope,
        transition: &BreakerTransition,
        call: usize,
    ) {
        let Some(key) = uses.breaker(scope) else { return };
        match transition.to {
            State::Open => {
                let BreakerTransition { reason, at, .. } = *transition;
                self.opened.insert(key, BreakerOpening { call, scope, reason, at });
            }
            State::HalfOpen => {}
            State::Closed | State::ForcedOpen => {
                self.opened.remove(&key);
            }
        }
    }

    /// Returns the event that opened the circuit breaker that refuses a call now. None if none does, or if it is
    /// unknown.
    pub(super) fn opened_by(
        &self,
        uses: &MachineKeys,
        policy: &BreakerPolicy,
        now: Timestamp,
    ) -> Option<BreakerOpening> {
        let own = self.tools.get(&uses.tool).map(|(breaker, _)| breaker);
        let coarser = uses.coarser.as_ref().and_then(|name| self.coarser.get(name));
        let refuses = |breaker: Option<&CircuitBreaker>| {
            breaker.is_some_and(|breaker| breaker.check(policy, now).is_err())
        };
        let scope = match (refuses(own), refuses(coarser)) {
            (true, _) => BreakerScope::Tool,
            (false, true) => BreakerScope::Dependency,
            (false, false) => return None,
        };
        self.opened.get(&uses.breaker(scope)?).copied()
    }

    /// Removes a cause of refusal for calls like this one, because reality had none.
    pub(super) fn forget(&mut self, uses: &MachineKeys, cause: FalseRefusalCause, now: Timestamp) {
        match cause {
            FalseRefusalCause::ToolDown => {
                let coarser = uses.coarser.as_ref().and_then(|name| self.coarser.get_mut(name));
                let own = self.tools.get_mut(&uses.tool).map(|(breaker, _)| breaker);
                for breaker in own.into_iter().chain(coarser) {
                    breaker.reset(now);
                }
                for scope in [BreakerScope::Tool, BreakerScope::Dependency] {
                    if let Some(key) = uses.breaker(scope) {
                        self.opened.remove(&key);
                    }
                }
            }
            FalseRefusalCause::ModelLoops => {
                if let Some(guard) = self.guards.get_mut(&uses.session) {
                    guard.reset(now);
                }
            }
            FalseRefusalCause::TrustLost => {
                if let Some(trust) = self.trust.get_mut(&uses.tool.0) {
                    trust.reset(TrustTarget::Tool(&uses.tool.1), now);
                    let domain = uses.domain.as_ref().map(TrustTarget::Domain);
                    domain.into_iter().for_each(|domain| drop(trust.reset(domain, now)));
                }
            }
        }
    }
}

/// A cause of refusal in a replay that reality did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FalseRefusalCause {
    ToolDown,
    ModelLoops,
    TrustLost,
}

//! State machines that the calls of a replay share, as in the engine: one for each tool, dependency, session and
//! tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Opened;
use super::facts::Recorded;
use crate::Timestamp;
use crate::approval::Approvals;
use crate::breaker::{Breaker, State, Transition};
use crate::call::{BreakerScope, Shared};
use crate::envelope::BreakerHint;
use crate::guard::LoopGuard;
use crate::id::{Domain, SessionKey, TenantId, ToolRef};
use crate::limit::Limiter;
use crate::policy::BreakerPolicy;
use crate::retry::RetryBudget;
use crate::trust::{Target, TrustLedger};

type ToolKey = (Option<TenantId>, ToolRef);
type DependencyKey = (Option<TenantId>, Arc<str>);
type SessionId = (Option<TenantId>, Option<SessionKey>);

/// The keys of the machines that a call uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Uses {
    pub(super) tool: ToolKey,
    pub(super) dependency: DependencyKey,
    pub(super) coarser: Option<DependencyKey>,
    pub(super) session: SessionId,
    domain: Option<Domain>,
}

impl Uses {
    pub(super) fn of(call: &Recorded) -> Self {
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
pub(super) struct Machines {
    tools: BTreeMap<ToolKey, (Breaker, Limiter)>,
    coarser: BTreeMap<DependencyKey, Breaker>,
    loads: BTreeMap<DependencyKey, (RetryBudget, Limiter)>,
    guards: BTreeMap<SessionId, LoopGuard>,
    trust: BTreeMap<Option<TenantId>, TrustLedger>,
    /// The events that opened the circuit breakers that are not closed.
    opened: BTreeMap<BreakerKey, Opened>,
}

/// The key of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BreakerKey {
    Tool(ToolKey),
    Coarser(DependencyKey),
}

impl Uses {
    fn breaker(&self, scope: BreakerScope) -> Option<BreakerKey> {
        match scope {
            BreakerScope::Tool => Some(BreakerKey::Tool(self.tool.clone())),
            BreakerScope::Dependency => self.coarser.clone().map(BreakerKey::Coarser),
        }
    }
}

impl Machines {
    /// Lends the machines of one call for one step.
    pub(super) fn lend<R>(
        &mut self,
        uses: &Uses,
        approvals: &Approvals,
        act: impl FnOnce(&mut Shared<'_>) -> R,
    ) -> R {
        let (breaker, limiter) = self.tools.entry(uses.tool.clone()).or_default();
        let dependency = uses.coarser.as_ref().map(|name| self.coarser.entry(name.clone()).or_default());
        let (budget, dependency_limiter) = self.loads.entry(uses.dependency.clone()).or_default();
        act(&mut Shared {
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
    pub(super) fn changed(&mut self, uses: &Uses, scope: BreakerScope, transition: &Transition, call: usize) {
        let Some(key) = uses.breaker(scope) else { return };
        match transition.to {
            State::Open => {
                let Transition { reason, at, .. } = *transition;
                self.opened.insert(key, Opened { call, scope, reason, at });
            }
            State::HalfOpen => {}
            State::Closed | State::ForcedOpen => {
                self.opened.remove(&key);
            }
        }
    }

    /// Returns the event that opened the circuit breaker that refuses a call now. None if none does, or if it is
    /// unknown.
    pub(super) fn opened_by(&self, uses: &Uses, policy: &BreakerPolicy, now: Timestamp) -> Option<Opened> {
        let own = self.tools.get(&uses.tool).map(|(breaker, _)| breaker);
        let coarser = uses.coarser.as_ref().and_then(|name| self.coarser.get(name));
        let in_the_way =
            |breaker: Option<&Breaker>| breaker.is_some_and(|breaker| breaker.check(policy, now).is_err());
        let scope = match (in_the_way(own), in_the_way(coarser)) {
            (true, _) => BreakerScope::Tool,
            (false, true) => BreakerScope::Dependency,
            (false, false) => return None,
        };
        self.opened.get(&uses.breaker(scope)?).copied()
    }

    /// Removes a cause of refusal for calls like this one, because reality had none.
    pub(super) fn forget(&mut self, uses: &Uses, what: Believed, now: Timestamp) {
        match what {
            Believed::ToolIsDown => {
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
            Believed::ModelLoops => {
                if let Some(guard) = self.guards.get_mut(&uses.session) {
                    guard.reset(now);
                }
            }
            Believed::TrustIsLost => {
                if let Some(trust) = self.trust.get_mut(&uses.tool.0) {
                    trust.reset(Target::Tool(&uses.tool.1), now);
                    let domain = uses.domain.as_ref().map(Target::Domain);
                    domain.into_iter().for_each(|domain| drop(trust.reset(domain, now)));
                }
            }
        }
    }
}

/// A cause of refusal in a replay that reality did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Believed {
    ToolIsDown,
    ModelLoops,
    TrustIsLost,
}

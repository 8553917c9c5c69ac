//! Circuit breakers for operators: views, and changes that open or reset one.

use std::sync::Arc;

use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::breaker::{BreakerCounts, BreakerDetails, BreakerTransition, CircuitBreaker, State};
use steadfast_core::id::{Namespace, TenantId, ToolName};
use steadfast_core::policy::{CallPolicy, EnforcementMode};
use steadfast_store::DocumentKind;

use super::engine_admin::EngineAdmin;
use crate::keys::{BreakerKey, DependencyKey, ToolKey};
use crate::observe::audit_entry::{AuditAction, AuditChange, OperatorIdentity};
use crate::observe::listener::SystemEvent;
use crate::shared::documents::DirtyDocument;

/// A circuit breaker for views.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BreakerView {
    /// Its key, for changes.
    pub key: BreakerKey,
    /// The tool or dependency that it protects.
    pub about: BreakerSubject,
    /// Mode: off, shadow or enforce.
    pub mode: EnforcementMode,
    /// Its state.
    #[serde(flatten)]
    pub view: BreakerDetails,
}

/// The subject of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BreakerSubject {
    /// A tool.
    Tool {
        /// The server or group that it belongs to.
        namespace: Namespace,
        /// Its name.
        tool: ToolName,
    },
    /// A dependency of several tools.
    Dependency {
        /// Its name. `*` is everything.
        name: Arc<str>,
    },
}

/// A change of a circuit breaker by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerOverride {
    /// Force it open: refuse every call.
    Open {
        /// Time after which one call runs as a probe. Without it, the breaker stays open until it is reset.
        until: Option<Timestamp>,
    },
    /// Close it, and clear its counts.
    Reset,
}

/// Result of a change of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BreakerChange {
    /// The breaker after the change.
    pub breaker: BreakerView,
    /// Its state before the change.
    pub before: State,
    /// The transition, if its state changed.
    pub change: Option<BreakerTransition>,
    /// True if the breaker was known before. If not, its name may be mistyped, or the tool was never called.
    pub known: bool,
    /// Processes that the change applies to.
    pub reach: ChangeScope,
}

/// Processes that a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeScope {
    /// The change is stored and applies to all processes that share the store.
    Everywhere,
    /// The store failed. The change applies to this process, and to the others when the store recovers.
    OnlyHere,
}

impl EngineAdmin {
    /// Returns the breakers of a tenant, those of tools first. The stored ones are loaded before, so that the list
    /// includes breakers that this process has removed or never used.
    pub async fn breakers(&self, tenant: Option<&TenantId>) -> Vec<BreakerView> {
        self.persister.load_kind(DocumentKind::Breaker).await;
        let tenant = tenant.cloned();
        let tools = self.machines.tools.all().into_iter().filter(|(key, _)| key.tenant == tenant);
        let tools = tools.map(|(key, _)| BreakerKey::Tool(key.tool));
        let dependencies = self.machines.dependencies.all().into_iter();
        // Every server has an entry for its retry budget. Its breaker is listed only if callers use it.
        let used = dependencies.filter(|(key, cell)| {
            let breaker = cell.breaker.lock();
            key.tenant == tenant && (breaker.epoch() > 0 || breaker.counts() != BreakerCounts::default())
        });
        let dependencies = used.map(|(key, _)| BreakerKey::Dependency(key.name));
        tools.chain(dependencies).map(|key| self.breaker_view(&tenant, key)).collect()
    }

    /// Opens or resets a breaker, also for other processes that share the store and for later ones. The stored state is
    /// loaded first. Attempts in flight no longer count for it. For operators.
    pub async fn update_breaker(
        &self,
        tenant: Option<&TenantId>,
        key: &BreakerKey,
        steer: BreakerOverride,
        by: &OperatorIdentity,
    ) -> BreakerChange {
        let owner = tenant.cloned();
        let marked = DirtyDocument::of_breaker(key, &owner);
        let policy = self.policy_of_breaker(&owner, key);
        let mut found = None;
        let change = |breaker: &mut CircuitBreaker| {
            let now = self.clock.now();
            found.get_or_insert((breaker.state(&policy.breaker, now), breaker.epoch() > 0));
            match steer {
                BreakerOverride::Open { until } => breaker.force_open(until, now),
                BreakerOverride::Reset => breaker.reset(now),
            }
        };
        let was_here = self.knows_breaker(&marked);
        let (change, stored) = self.persister.change_breaker(&marked, change).await;
        let reach = match stored {
            Ok(()) => ChangeScope::Everywhere,
            Err(error) => {
                self.hooks.store_failed(self.store.kind(), &error);
                self.persister.marks.mark(marked);
                ChangeScope::OnlyHere
            }
        };
        let (before, changed_before) = found.unwrap_or((State::Closed, false));
        if let Some(change) = &change {
            self.hooks.outside(&SystemEvent::Breaker { tenant, key, change });
        }
        let breaker = self.breaker_view(&owner, key.clone());
        let after = match steer {
            BreakerOverride::Open { until: Some(until) } => format!("FORCED_OPEN until {until}"),
            BreakerOverride::Open { until: None } => "FORCED_OPEN until reset".to_owned(),
            BreakerOverride::Reset => word(breaker.view.state).to_owned(),
        };
        let deed = match steer {
            BreakerOverride::Open { .. } => AuditAction::BreakerForcedOpen,
            BreakerOverride::Reset => AuditAction::BreakerReset,
        };
        let (on, before_word) = (key.to_string(), Some(word(before).to_owned()));
        self.audit
            .record(by, AuditChange { deed, tenant, on, before: before_word, after: Some(after) })
            .await;
        BreakerChange { breaker, before, change, known: was_here || changed_before, reach }
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Closed => "CLOSED",
        State::Open => "OPEN",
        State::HalfOpen => "HALF_OPEN",
        State::ForcedOpen => "FORCED_OPEN",
    }
}

impl EngineAdmin {
    fn breaker_view(&self, tenant: &Option<TenantId>, key: BreakerKey) -> BreakerView {
        let policy = self.policy_of_breaker(tenant, &key);
        let now = self.clock.now();
        let see = |breaker: &CircuitBreaker| breaker.view(&policy.breaker, now);
        let (view, about) = match &key {
            BreakerKey::Tool(tool) => {
                let cell = self.machines.tools.get(&ToolKey { tenant: tenant.clone(), tool: tool.clone() });
                let view = see(&cell.lock().breaker);
                (view, BreakerSubject::Tool { namespace: tool.namespace.clone(), tool: tool.tool.clone() })
            }
            BreakerKey::Dependency(name) => {
                let dependency = DependencyKey { tenant: tenant.clone(), name: name.clone() };
                let cell = self.machines.dependencies.get(&dependency);
                let view = see(&cell.breaker.lock());
                (view, BreakerSubject::Dependency { name: name.clone() })
            }
        };
        BreakerView { key, about, mode: policy.modes.breaker, view }
    }

    /// Returns the policy of the last call. Without one, returns that of a call with no further details.
    fn policy_of_breaker(&self, tenant: &Option<TenantId>, key: &BreakerKey) -> Arc<CallPolicy> {
        match key {
            BreakerKey::Tool(tool) => self.policies.of_tool(tenant, tool),
            BreakerKey::Dependency(name) => {
                let dependency = DependencyKey { tenant: tenant.clone(), name: name.clone() };
                let cell = self.machines.dependencies.find(&dependency);
                let policy = cell.and_then(|cell| cell.policy.lock().clone());
                policy.unwrap_or_else(|| self.policies.of_dependency(tenant, name))
            }
        }
    }

    fn knows_breaker(&self, marked: &DirtyDocument) -> bool {
        match marked {
            DirtyDocument::Tool(key) => self.machines.tools.find(key).is_some(),
            DirtyDocument::Dependency(key) => self.machines.dependencies.find(key).is_some(),
            DirtyDocument::Trust(_) | DirtyDocument::Session(_) => false,
        }
    }
}

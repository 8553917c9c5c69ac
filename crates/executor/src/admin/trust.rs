//! Trust in tools for operators: views, and changes that restore trust.

use std::cmp::Reverse;

use steadfast_core::id::{Domain, Namespace, TenantId, ToolName, ToolRef};
use steadfast_core::trust::{TrustChange, TrustLedger, TrustState, TrustStatus, TrustTarget};
use steadfast_store::StoreError;

use super::engine_admin::EngineAdmin;
use crate::observe::audit_entry::{AuditAction, AuditChange, OperatorIdentity};
use crate::observe::listener::SystemEvent;

impl EngineAdmin {
    /// Returns everything of a tenant that is not fully trusted, worst first, each with the rule that judges its calls.
    pub fn trust(&self, tenant: Option<&TenantId>) -> Vec<TrustStatus> {
        self.trust_status(&tenant.cloned())
    }

    /// Returns the tools with this name that have failures or restricted trust, now or in the past.
    pub fn tools_with_trust_history(&self, tenant: Option<&TenantId>, name: &str) -> Vec<ToolRef> {
        let states = self.trust(tenant).into_iter();
        let states = states.filter_map(|one| Some((one.standing.plugin_name?, one.standing.tool_name?)));
        let cell = self.machines.tenants.get(&tenant.cloned());
        let judged = cell.judged.lock();
        let failures = judged.ledgers().flat_map(|trust| trust.history(None));
        let failures = failures.map(|entry| (entry.plugin_name.clone(), entry.tool_name.clone()));
        let mut tools: Vec<_> = states
            .chain(failures)
            .filter(|(namespace, tool)| is_named(namespace, tool, name))
            .map(|(namespace, tool)| ToolRef { namespace, tool })
            .collect();
        tools.sort();
        tools.dedup();
        tools
    }

    /// Restores full trust in the target, also for other processes that share the store. For operators.
    pub async fn reset_trust(
        &self,
        tenant: Option<&TenantId>,
        target: TrustTarget<'_>,
        by: &OperatorIdentity,
    ) -> Result<Vec<TrustChange>, StoreError> {
        let now = self.clock.now();
        let reset = |trust: &mut TrustLedger| trust.reset(target, now);
        self.change_by_hand(tenant, target, reset, (AuditAction::TrustReset, TrustState::Trusted), by).await
    }

    /// Lets an escalated target earn its trust back from now on, also for other processes that share the store. For
    /// operators. A target that is not escalated does not change.
    pub async fn approve_recovery(
        &self,
        tenant: Option<&TenantId>,
        target: TrustTarget<'_>,
        by: &OperatorIdentity,
    ) -> Result<Vec<TrustChange>, StoreError> {
        let now = self.clock.now();
        let approve = |trust: &mut TrustLedger| trust.approve_recovery(target, now);
        self.change_by_hand(
            tenant,
            target,
            approve,
            (AuditAction::RecoveryApproved, TrustState::Recovering),
            by,
        )
        .await
    }

    /// Returns everything that is not fully trusted, each with the rule that judges its calls.
    pub(crate) fn trust_status(&self, tenant: &Option<TenantId>) -> Vec<TrustStatus> {
        let Some(cell) = self.machines.tenants.find(tenant) else { return Vec::new() };
        let rule_of =
            |tool: Option<&ToolRef>, domain: Option<&Domain>| self.policies.trust_rule(tenant, tool, domain);
        let (judged, now) = (cell.judged.lock(), self.clock.now());
        let mut all: Vec<_> = judged.ledgers().flat_map(|trust| trust.status(rule_of, now)).collect();
        all.sort_by_key(|one| Reverse(one.standing.state));
        all
    }

    /// Changes the trust in the target for an operator, and records it in the audit log.
    async fn change_by_hand(
        &self,
        tenant: Option<&TenantId>,
        target: TrustTarget<'_>,
        mut change: impl FnMut(&mut TrustLedger) -> Vec<TrustChange>,
        (deed, after): (AuditAction, TrustState),
        by: &OperatorIdentity,
    ) -> Result<Vec<TrustChange>, StoreError> {
        // The change runs again if another process wrote meanwhile, and may then find nothing left to change.
        let mut changes: Vec<TrustChange> = Vec::new();
        let made = |trust: &mut TrustLedger| {
            for made in change(trust) {
                let is_it = |one: &TrustChange| one.scope == made.scope && one.subject == made.subject;
                if !changes.iter().any(is_it) {
                    changes.push(made);
                }
            }
        };
        self.persister.change_trust(&tenant.cloned(), made).await?;
        for change in &changes {
            self.hooks.outside(&SystemEvent::Trust { tenant, change });
        }
        let on = match target {
            TrustTarget::Signature(_, signature) => signature.0.to_string(),
            TrustTarget::Domain(domain) => domain.to_string(),
            TrustTarget::Tool(tool) => tool.to_string(),
            TrustTarget::All => "everything".to_owned(),
        };
        let worst = changes.iter().map(|change| change.from).max();
        let (before, after) = (worst.map(|state| state.to_string()), Some(after.to_string()));
        self.audit.record(by, AuditChange { deed, tenant, on, before, after }).await;
        Ok(changes)
    }
}

/// Returns true if `name` names the tool: alone, or with its server, as `server/tool`. A tool of any server matches
/// with each server name.
pub fn is_named(namespace: &Namespace, tool: &ToolName, name: &str) -> bool {
    let of_any = namespace.as_str() == ToolRef::ANY_NAMESPACE;
    tool.as_str() == name
        || (of_any && name.split_once('/').is_some_and(|(_, named)| named == tool.as_str()))
        || name.strip_prefix(namespace.as_str()).and_then(|rest| rest.strip_prefix('/'))
            == Some(tool.as_str())
}

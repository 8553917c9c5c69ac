//! How tools stand with us, for people who ask, and the way to forgive one.

use steadfast_core::id::{Namespace, TenantId, ToolName, ToolRef};
use steadfast_core::trust::{HistoryEntry, Target, ToolReliabilityState, TrustChange, TrustRules};
use steadfast_store::StoreError;

use crate::audit::{By, Deed, Done};
use crate::engine::Engine;
use crate::telling::Outside;

impl Engine {
    /// Everything of a tenant that is not simply trusted, worst first. Whether a time has run out is judged by the default
    /// rule; a call is judged by its own.
    pub fn trust(&self, tenant: Option<&TenantId>) -> Vec<ToolReliabilityState> {
        let cell = self.inner.machines.tenants.get(&tenant.cloned());
        let now = self.inner.clock.now();
        let judged = cell.judged.lock();
        judged.trust.status(&TrustRules::default(), now)
    }

    /// The last failures that count for trust, newest first; of one tool or of all.
    pub fn failures(
        &self,
        tenant: Option<&TenantId>,
        tool: Option<&ToolRef>,
        most: usize,
    ) -> Vec<HistoryEntry> {
        let cell = self.inner.machines.tenants.get(&tenant.cloned());
        let judged = cell.judged.lock();
        let mut all: Vec<_> = judged.trust.history(tool).cloned().collect();
        all.reverse();
        all.truncate(most);
        all
    }

    /// The tools that somebody names so and that something counts against, or did.
    pub fn tools_with_a_past(&self, tenant: Option<&TenantId>, name: &str) -> Vec<ToolRef> {
        let states = self.trust(tenant).into_iter();
        let states = states.filter_map(|stored| Some((stored.plugin_name?, stored.tool_name?)));
        let failures = self.failures(tenant, None, usize::MAX).into_iter();
        let failures = failures.map(|entry| (entry.plugin_name, entry.tool_name));
        let mut tools: Vec<_> = states
            .chain(failures)
            .filter(|(namespace, tool)| is_named(namespace, tool, name))
            .map(|(namespace, tool)| ToolRef { namespace, tool })
            .collect();
        tools.sort();
        tools.dedup();
        tools
    }

    /// Forgets everything that counts against the target, also for other processes that share the store. For operators.
    pub async fn reset_trust(
        &self,
        tenant: Option<&TenantId>,
        target: Target<'_>,
        by: &By,
    ) -> Result<Vec<TrustChange>, StoreError> {
        let (inner, now) = (&self.inner, self.inner.clock.now());
        let changes = inner.change_trust(&tenant.cloned(), |trust| trust.reset(target, now)).await?;
        for change in &changes {
            inner.telling.outside(&Outside::Trust { tenant, change });
        }
        let on = match target {
            Target::Signature(_, signature) => signature.0.to_string(),
            Target::Domain(domain) => domain.to_string(),
            Target::Tool(tool) => tool.to_string(),
            Target::All => "everything".to_owned(),
        };
        let worst = changes.iter().map(|change| change.from).max();
        let before = worst.map(|state| state.to_string());
        let done = Done { deed: Deed::TrustReset, tenant, on, before, after: Some("TRUSTED".to_owned()) };
        inner.audited(by, done).await;
        Ok(changes)
    }
}

/// Whether this is how somebody names the tool: alone, or with its server, as `server/tool`.
pub fn is_named(namespace: &Namespace, tool: &ToolName, name: &str) -> bool {
    tool.as_str() == name
        || name.strip_prefix(namespace.as_str()).and_then(|rest| rest.strip_prefix('/'))
            == Some(tool.as_str())
}

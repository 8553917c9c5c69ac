//! Loop guards for operators: stopped sessions, the calls that caused it, and resets.

use serde::Serialize;
use steadfast_core::guard::ActiveRefusal;
use steadfast_core::id::{SessionKey, TenantId, ToolRef};
use steadfast_store::StoreError;

use super::engine_admin::EngineAdmin;
use super::guard_trips::GuardTrip;
use crate::keys::SessionId;
use crate::observe::audit_entry::{AuditAction, AuditChange, OperatorIdentity};
use crate::shared::documents::DirtyDocument;

/// The loop guards of a tenant, for views.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GuardView {
    /// Sessions that are stopped now, newest last.
    pub stopped: Vec<StoppedSession>,
    /// Trips of the guards of this process, newest last.
    pub trips: Vec<GuardTrip>,
}

/// A refusal in effect in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StoppedSession {
    /// The session. Absent for calls that belong to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// Subject, reason and end of the refusal.
    #[serde(flatten)]
    pub stopped: ActiveRefusal,
}

impl EngineAdmin {
    /// Returns the stopped sessions of a tenant and the last trips of the guard.
    pub fn guard(&self, tenant: Option<&TenantId>) -> GuardView {
        let (tenant, now) = (tenant.cloned(), self.clock.now());
        let policy = self.policies.of_nothing(&tenant);
        let mut stopped: Vec<_> = self
            .machines
            .sessions
            .all()
            .into_iter()
            .filter(|(id, _)| id.tenant == tenant)
            .flat_map(|(id, guard)| {
                let stopped = guard.lock().stopped(&policy.guard, now);
                stopped
                    .into_iter()
                    .map(move |stopped| StoppedSession { session: id.session.clone(), stopped })
            })
            .collect();
        stopped.sort_by_key(|stopped| stopped.stopped.since);
        stopped.drain(..stopped.len().saturating_sub(MOST_STOPPED));
        GuardView { stopped, trips: self.trips.of(&tenant) }
    }

    /// Clears the failures of a tool that its server has removed, restored or changed: they belong to a different tool.
    pub fn forget_tool(&self, tool: &ToolRef) {
        for (id, guard) in self.machines.sessions.all() {
            guard.lock().forget_tool(tool);
            self.persister.marks.mark(DirtyDocument::Session(id));
        }
    }

    /// Clears all failures and repetitions of a session. For operators.
    ///
    /// Every process that shares the store and serves the session has its own guard for it. The reset reaches them
    /// through the store. Returns the refusals that were in effect, as far as this process knows.
    pub async fn reset_guard(
        &self,
        tenant: Option<&TenantId>,
        session: Option<&SessionKey>,
        by: &OperatorIdentity,
    ) -> Result<Vec<ActiveRefusal>, StoreError> {
        let id = SessionId { tenant: tenant.cloned(), session: session.cloned() };
        let marked = DirtyDocument::Session(id.clone());
        // Stored state is loaded first, so that the reset covers it too.
        self.persister.reload_marked(&marked).await?;
        let policy = self.policies.of_nothing(&id.tenant);
        // Creates a guard here if only other processes serve the session: without one there would be nothing to store,
        // and they would not learn of the reset.
        let now = self.clock.now();
        let freed = {
            let guard = self.machines.sessions.get(&id);
            let mut guard = guard.lock();
            let freed = guard.stopped(&policy.guard, now);
            guard.reset(now);
            freed
        };
        if let Err(error) = self.persister.write(&marked).await {
            self.hooks.store_failed(self.store.kind(), &error);
            self.persister.marks.mark(marked);
        }
        let on = session.map_or_else(|| "calls without a conversation".to_owned(), ToString::to_string);
        let before = Some(format!("{} stopped", freed.len()));
        self.audit
            .record(by, AuditChange { deed: AuditAction::GuardReset, tenant, on, before, after: None })
            .await;
        Ok(freed)
    }
}

/// Maximum number of refusals in the view.
const MOST_STOPPED: usize = 1000;

//! Approval requests and grants. They live in the store, with a copy in memory for decisions that must not wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalLedger, ParkedRequest, ParkedRequestId};
use steadfast_core::id::{RequestId, TenantId};
use steadfast_core::notification::Notification;
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, StateStore, StoreError, StoreErrorKind,
    TimeSource,
};
use tokio::sync::OwnedMutexGuard;

use super::cells::{MachineRegistry, TenantState};
use super::policies::PolicyResolver;
use crate::observe::listener::SystemEvent;
use crate::observe::telemetry_hooks::TelemetryHooks;
use crate::state::EngineState;

/// The approvals of all tenants.
#[derive(Debug)]
pub(crate) struct ApprovalBook {
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) state: Arc<EngineState>,
    pub(crate) machines: Arc<MachineRegistry>,
    pub(crate) policies: Arc<PolicyResolver>,
    pub(crate) hooks: Arc<TelemetryHooks>,
}

/// Maximum number of tries of a change that loses against concurrent writers.
const TRIES: u32 = 32;

impl ApprovalBook {
    /// Returns the current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the pending requests of a tenant, from the copy in this process.
    pub(crate) fn pending(&self, tenant: &Option<TenantId>) -> Vec<(ParkedRequestId, ParkedRequest)> {
        let cell = self.machines.tenants.get(tenant);
        let now = self.clock.now();
        let judged = cell.judged.lock();
        judged.approvals.parked(now).map(|(id, parked)| (id, parked.clone())).collect()
    }

    /// Changes the approvals of a tenant in the store, and the copy in memory with it. `change` may run more than once;
    /// only the last run counts.
    pub(crate) async fn change<R>(
        &self,
        tenant: &Option<TenantId>,
        mut change: impl FnMut(&mut ApprovalLedger) -> R,
    ) -> Result<R, StoreError> {
        let name = document(tenant);
        let _changing = self.machines.tenants.get(tenant).changing_approvals.clone().lock_owned().await;
        let mut found = self.store.read(&name).await?;
        for _ in 0..TRIES {
            let mut approvals = found
                .as_ref()
                .map_or_else(|| Ok(ApprovalLedger::default()), |document| read(&document.body))?;
            self.notify_remote_requests(tenant, &approvals);
            let before = approvals.clone();
            let result = change(&mut approvals);
            if approvals == before {
                self.take_approvals(tenant, approvals);
                return Ok(result);
            }
            let body = serde_json::to_string(&approvals)
                .map_err(|error| StoreError::not_done(StoreErrorKind::Unreadable, error.to_string()))?;
            let write = DocumentWrite {
                replaces: found.map(|document| document.version),
                body: Some(body.into()),
                expires: None,
            };
            match self.store.write(&name, write).await? {
                DocumentWriteOutcome::Written(_) => {
                    self.take_approvals(tenant, approvals);
                    return Ok(result);
                }
                DocumentWriteOutcome::Stale(now) => found = now,
            }
        }
        Err(StoreError::not_done(
            StoreErrorKind::Full,
            "too many concurrent changes of the approvals; try again",
        ))
    }

    /// Changes the approvals like [`change`](Self::change). If the store fails, it changes only the copy in memory.
    pub(crate) async fn change_at_least_here<R>(
        &self,
        tenant: &Option<TenantId>,
        mut change: impl FnMut(&mut ApprovalLedger) -> R,
    ) -> R {
        match self.change(tenant, &mut change).await {
            Ok(result) => result,
            Err(error) => {
                self.hooks.store_failed(self.store.kind(), &error);
                let cell = self.machines.tenants.get(tenant);
                let result = change(&mut cell.judged.lock().approvals);
                self.approvals_changed(&cell);
                result
            }
        }
    }

    /// Notifies operators of a request when it is first asked for. Includes the id of the call that asks, if there is
    /// one.
    pub(crate) fn notify_request(
        &self,
        tenant: &Option<TenantId>,
        id: ParkedRequestId,
        request_id: Option<&RequestId>,
        for_client: bool,
    ) {
        let cell = self.machines.tenants.get(tenant);
        let now = self.clock.now();
        let notification = {
            let judged = cell.judged.lock();
            let mut open = judged.approvals.parked(now);
            let is_first =
                |(open, parked): &(ParkedRequestId, &ParkedRequest)| *open == id && parked.request_count == 1;
            open.find(is_first).map(|(_, parked)| Notification::approval(tenant.as_ref(), id, parked))
        };
        if let Some(notification) = notification {
            self.hooks.notify(Notification { request_id: request_id.cloned(), for_client, ..notification });
        }
    }

    /// Adopts the stored approvals of a tenant. The caller holds the lock of changes.
    pub(crate) fn adopt(&self, name: &DocumentName, body: &str) -> Result<(), StoreError> {
        let (tenant, approvals) = (TenantId::new(&name.id).ok(), read(body)?);
        self.notify_remote_requests(&tenant, &approvals);
        self.take_approvals(&tenant, approvals);
        Ok(())
    }

    /// Notifies operators of requests that other processes added. Ids only grow, so the highest seen id shows which are
    /// new. The caller holds the lock of changes, so that a request of this process has been adopted by then.
    fn notify_remote_requests(&self, tenant: &Option<TenantId>, approvals: &ApprovalLedger) {
        let now = self.clock.now();
        let first_new = self.machines.tenants.get(tenant).mark_seen(approvals);
        if !self.state.is_loaded() {
            return;
        }
        for (id, parked) in approvals.parked(now).filter(|(id, _)| id.0 >= first_new) {
            let for_client = self.policies.of_tool(tenant, &parked.tool).trust.notify;
            let notification = Notification::approval(tenant.as_ref(), id, parked);
            self.hooks.notify(Notification { for_client, is_from_elsewhere: true, ..notification });
        }
    }

    /// Replaces the approvals in memory.
    fn take_approvals(&self, tenant: &Option<TenantId>, approvals: ApprovalLedger) {
        let cell = self.machines.tenants.get(tenant);
        cell.mark_seen(&approvals);
        cell.judged.lock().approvals = approvals;
        self.approvals_changed(&cell);
    }

    /// Locks the approvals of a document against changes in this process. Returns `None` for a document of another
    /// kind.
    pub(crate) async fn lock(&self, name: &DocumentName) -> Option<OwnedMutexGuard<()>> {
        if name.kind != DocumentKind::Approvals {
            return None;
        }
        let cell = self.machines.tenants.get(&TenantId::new(&name.id).ok());
        Some(cell.changing_approvals.clone().lock_owned().await)
    }

    /// Wakes calls that wait for a decision, and updates the count of pending requests.
    fn approvals_changed(&self, cell: &TenantState) {
        self.count_waiting(cell);
        cell.approvals_changed.notify_waiters();
    }

    /// Updates the counts of pending requests, because requests expire without any change.
    pub(crate) fn recount_waiting(&self) {
        for (_, cell) in self.machines.tenants.all() {
            self.count_waiting(&cell);
        }
    }

    fn count_waiting(&self, cell: &TenantState) {
        let at = self.clock.now();
        let (before, now) = {
            let judged = cell.judged.lock();
            let now = judged.approvals.parked(at).count();
            (cell.waiting.swap(now, Ordering::Relaxed), now)
        };
        if before != now {
            self.hooks.outside(&SystemEvent::Waiting { before, now });
        }
    }
}

fn document(tenant: &Option<TenantId>) -> DocumentName {
    let id: Arc<str> = tenant.as_ref().map_or_else(|| Arc::from(""), |tenant| Arc::from(tenant.as_str()));
    DocumentName { kind: DocumentKind::Approvals, id }
}

fn read(body: &str) -> Result<ApprovalLedger, StoreError> {
    serde_json::from_str(body).map_err(|error| {
        StoreError::not_done(
            StoreErrorKind::Unreadable,
            format!("the stored approvals cannot be read: {error}"),
        )
    })
}

//! Approval requests and grants. They live in the store, with a copy in memory for decisions that must not wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfast_core::approval::{
    ApprovalDecision, ApprovalDecisionError, ApprovalLedger, ApprovalSubject, DecisionEffect, Grantor,
    ParkedRequest, ParkedRequestId, SpendVerdict,
};
use steadfast_core::id::{Digest, RequestId, SessionKey, TenantId, ToolRef};
use steadfast_core::notification::Notification;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::AnnotationHints;
use steadfast_core::trust::{Escalation, Signature, TrustTarget};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, StoreError, StoreErrorKind,
};
use tokio::sync::OwnedMutexGuard;

use crate::engine::api::{Engine, EngineInner};
use crate::observe::audit::{AuditAction, AuditChange, OperatorIdentity};
use crate::observe::listener::SystemEvent;
use crate::shared::cells::TenantState;

/// Reason why a decision on an approval request was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// The decision does not fit the request.
    #[error("{0}")]
    NotDecided(ApprovalDecisionError),
    /// The store failed. The decision may be sent again.
    #[error("the decision could not be stored: {0}")]
    Store(StoreError),
}

/// An interface to the user at the client, for approval requests.
pub trait ApprovalPrompter: fmt::Debug + Send + Sync {
    /// Asks for a decision on a request that a call waits for. The first decision counts, this one or an operator's.
    /// The future is dropped when the decision is no longer needed.
    fn ask(&self, id: ParkedRequestId, request: ParkedRequest) -> ClientDecisionFuture;
}

/// The future of a decision by the user at the client.
pub type ClientDecisionFuture = Pin<Box<dyn Future<Output = ClientDecision> + Send>>;

/// Result of an approval request to the client.
#[derive(Clone, Debug)]
pub enum ClientDecision {
    /// The user has decided. It counts as the decision of the client, which is not that of an operator.
    Decided(ApprovalDecision),
    /// The client cannot ask a user.
    Unavailable,
    /// The caller gets this question as the response to its call, and brings the decision when it calls again.
    PutToCaller(ToolOutput),
}

/// A request for approval of something other than a call.
#[derive(Debug)]
pub struct ActionRequest<'a> {
    /// Tenant whose data it concerns.
    pub tenant: Option<&'a TenantId>,
    /// Session that asks.
    pub session: Option<&'a SessionKey>,
    /// The action to approve, in the form of a tool name.
    pub tool: &'a ToolRef,
    /// Subject of the action. A grant is valid only for the same subject.
    pub shown: &'a str,
    /// Text that the approver reads.
    pub prompt: Escalation,
    /// True if only an operator may approve.
    pub operator_only: bool,
    /// Interface to the user at the client, if there is one.
    pub asker: Option<Arc<dyn ApprovalPrompter>>,
}

/// Result of a request for approval of something other than a call.
#[derive(Debug)]
pub enum ActionApproval {
    /// Approved, once.
    Approved(Grantor),
    /// Denied.
    Denied,
    /// The client cannot ask a user. The request waits for an operator, with this id.
    Pending(ParkedRequestId),
    /// The caller gets this question as its response, and brings the decision when it asks again.
    PutToCaller(ToolOutput),
}

/// Maximum number of tries of a change that loses against concurrent writers.
const TRIES: u32 = 32;

impl Engine {
    /// Returns the pending approval requests of a tenant.
    pub fn approvals(&self, tenant: Option<&TenantId>) -> Vec<(ParkedRequestId, ParkedRequest)> {
        let cell = self.inner.machines.tenants.get(&tenant.cloned());
        let now = self.inner.clock.now();
        let judged = cell.judged.lock();
        judged.approvals.parked(now).map(|(id, parked)| (id, parked.clone())).collect()
    }

    /// Records a decision on an approval request.
    pub async fn decide(
        &self,
        tenant: Option<&TenantId>,
        request: ParkedRequestId,
        decision: ApprovalDecision,
        grantor: Grantor,
        by: &OperatorIdentity,
    ) -> Result<DecisionEffect, ApprovalError> {
        let (inner, now) = (&self.inner, self.inner.clock.now());
        let owner = tenant.cloned();
        let (mut about, mut recovers) = (None, None);
        let decided = inner.change_approvals(&owner, |approvals| {
            let asked = approvals.parked(now).find(|(id, _)| *id == request);
            about = asked.as_ref().map(|(_, parked)| parked.tool.to_string());
            recovers = asked.map(|(_, parked)| (parked.tool.clone(), parked.prompt.domain.clone()));
            approvals.decide(request, decision, grantor, now)
        });
        let decided = decided.await.map_err(ApprovalError::Store)?.map_err(ApprovalError::NotDecided)?;
        let deed = match decided {
            DecisionEffect::Granted { .. } => AuditAction::Approved,
            DecisionEffect::Denied => AuditAction::Denied,
        };
        let on = format!("request {} of {}", request.0, about.as_deref().unwrap_or("an unknown tool"));
        let after = Some(match decision {
            ApprovalDecision::Once => "once".to_owned(),
            ApprovalDecision::Session => "for the session".to_owned(),
            ApprovalDecision::Time { until } => format!("until {until}"),
            ApprovalDecision::Recover => "once, and it recovers".to_owned(),
            ApprovalDecision::Deny => "denied".to_owned(),
        });
        inner.audited(by, AuditChange { deed, tenant, on, before: None, after }).await;
        if let (ApprovalDecision::Recover, Some((tool, domain))) = (decision, recovers) {
            let target = domain.as_ref().map_or(TrustTarget::Tool(&tool), TrustTarget::Domain);
            self.approve_recovery(tenant, target, by).await.map_err(ApprovalError::Store)?;
        }
        Ok(decided)
    }
}

impl Engine {
    /// Requests approval for something other than a call, from the user at the client, else from an operator. An
    /// existing grant is used up once.
    pub async fn request_approval(&self, wish: ActionRequest<'_>) -> Result<ActionApproval, StoreError> {
        let (inner, now, tenant) = (&self.inner, self.inner.clock.now(), wish.tenant.cloned());
        let signature = Signature(wish.shown.into());
        let wanted = ApprovalSubject {
            tool: wish.tool,
            arguments: Digest::of(wish.shown.as_bytes()),
            signature: &signature,
            session: wish.session,
            blocked: wish.operator_only,
        };
        let spender = Digest::of(format!("{} {}", inner.tag, inner.next_sequence()).as_bytes());
        let policy = inner.policy_of_blank(&tenant, Some(wish.tool), None, AnnotationHints::default());
        let take = |approvals: &mut ApprovalLedger| {
            let grant = approvals.grant_for(wanted, now)?;
            let by = approvals.grants(now).find(|(id, _)| *id == grant).map(|(_, grant)| grant.by);
            match approvals.spend(grant, spender, now) {
                SpendVerdict::Spent | SpendVerdict::AlreadyMine | SpendVerdict::Holds => by,
                SpendVerdict::Lost | SpendVerdict::Gone => None,
            }
        };
        let asked = inner.change_approvals(&tenant, |approvals| {
            take(approvals).map_or_else(
                || Err(approvals.ask(wanted, &wish.prompt, Some(wish.shown), &policy.approval, now).id),
                Ok,
            )
        });
        let id = match asked.await? {
            Ok(by) => return Ok(ActionApproval::Approved(by)),
            Err(id) => id,
        };
        inner.notify_approval_request(&tenant, id, None, policy.trust.notify);
        let parked = self.approvals(wish.tenant).into_iter().find(|(parked, _)| *parked == id);
        let decision = match (&wish.asker.filter(|_| !wish.operator_only), parked) {
            (Some(asker), Some((_, parked))) => match asker.ask(id, parked).await {
                ClientDecision::Decided(ApprovalDecision::Deny) => ApprovalDecision::Deny,
                ClientDecision::Decided(_) => ApprovalDecision::Once,
                ClientDecision::PutToCaller(question) => return Ok(ActionApproval::PutToCaller(question)),
                ClientDecision::Unavailable => return Ok(ActionApproval::Pending(id)),
            },
            (Some(_) | None, Some(_) | None) => return Ok(ActionApproval::Pending(id)),
        };
        let decided = inner.change_approvals(&tenant, |approvals| {
            let decided = approvals.decide(id, decision, Grantor::Client, now);
            // Another decision may have been faster.
            decided.is_ok().then(|| take(approvals)).flatten()
        });
        Ok(decided.await?.map_or(ActionApproval::Denied, ActionApproval::Approved))
    }

    /// Ends a session: removes its approvals, and its trust if each session has its own.
    pub async fn end_session(
        &self,
        tenant: Option<&TenantId>,
        session: &SessionKey,
    ) -> Result<(), StoreError> {
        let tenant = tenant.cloned();
        self.inner.machines.tenants.get(&tenant).judged.lock().end_session(session);
        self.inner.change_approvals(&tenant, |approvals| approvals.end_session(session)).await
    }
}

impl EngineInner {
    /// Changes the approvals of a tenant in the store, and the copy in memory with it. `change` may run more than once;
    /// only the last run counts.
    pub(crate) async fn change_approvals<R>(
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

    /// Changes the approvals like `change_approvals`. If the store fails, it changes only the copy in memory.
    pub(crate) async fn change_approvals_at_least_here<R>(
        &self,
        tenant: &Option<TenantId>,
        mut change: impl FnMut(&mut ApprovalLedger) -> R,
    ) -> R {
        match self.change_approvals(tenant, &mut change).await {
            Ok(result) => result,
            Err(error) => {
                self.telemetry_hooks.store_failed(self.store.kind(), &error);
                let cell = self.machines.tenants.get(tenant);
                let result = change(&mut cell.judged.lock().approvals);
                self.approvals_changed(&cell);
                result
            }
        }
    }

    /// Notifies operators of a request when it is first asked for. Includes the id of the call that asks, if there is
    /// one.
    pub(crate) fn notify_approval_request(
        &self,
        tenant: &Option<TenantId>,
        id: ParkedRequestId,
        request_id: Option<&RequestId>,
        for_client: bool,
    ) {
        let cell = self.machines.tenants.get(tenant);
        let now = self.clock.now();
        let asked = {
            let judged = cell.judged.lock();
            let mut open = judged.approvals.parked(now);
            let is_first =
                |(open, parked): &(ParkedRequestId, &ParkedRequest)| *open == id && parked.askers == 1;
            open.find(is_first).map(|(_, parked)| Notification::approval(tenant.as_ref(), id, parked))
        };
        if let Some(asked) = asked {
            self.telemetry_hooks.notify(Notification {
                request_id: request_id.cloned(),
                for_client,
                ..asked
            });
        }
    }

    /// Adopts the stored approvals of a tenant. The caller holds the lock of changes.
    pub(crate) fn adopt_stored_approvals(&self, name: &DocumentName, body: &str) -> Result<(), StoreError> {
        let (tenant, approvals) = (TenantId::new(&name.id).ok(), read(body)?);
        self.notify_remote_requests(&tenant, &approvals);
        self.take_approvals(&tenant, approvals);
        Ok(())
    }

    /// Notifies operators of requests that other processes added. Ids only grow, so the highest seen id shows which are
    /// new. The caller holds the lock of changes, so that a request of this process has been adopted by then.
    fn notify_remote_requests(&self, tenant: &Option<TenantId>, approvals: &ApprovalLedger) {
        let now = self.clock.now();
        let seen = self.machines.tenants.get(tenant).see_asked(approvals);
        if !self.is_loaded.load(Ordering::Acquire) {
            return;
        }
        for (id, parked) in approvals.parked(now).filter(|(id, _)| id.0 >= seen) {
            let for_client = self.policy_of_tool(tenant, &parked.tool).trust.notify;
            let asked = Notification::approval(tenant.as_ref(), id, parked);
            self.telemetry_hooks.notify(Notification { for_client, is_from_elsewhere: true, ..asked });
        }
    }

    /// Replaces the approvals in memory.
    fn take_approvals(&self, tenant: &Option<TenantId>, approvals: ApprovalLedger) {
        let cell = self.machines.tenants.get(tenant);
        cell.see_asked(&approvals);
        cell.judged.lock().approvals = approvals;
        self.approvals_changed(&cell);
    }

    /// Locks the approvals of a document against changes in this process. Returns `None` for a document of another
    /// kind.
    pub(crate) async fn lock_approvals(&self, name: &DocumentName) -> Option<OwnedMutexGuard<()>> {
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
            self.telemetry_hooks.outside(&SystemEvent::Waiting { before, now });
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

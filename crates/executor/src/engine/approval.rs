//! Approval of something other than a call, and the end of a session.

use std::sync::Arc;

use steadfast_core::approval::{
    ApprovalDecision, ApprovalLedger, ApprovalSubject, Grantor, ParkedRequestId, SpendVerdict,
};
use steadfast_core::classify::signature::Signature;
use steadfast_core::id::{Digest, SessionKey, TenantId, ToolRef};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::AnnotationHints;
use steadfast_core::trust::Escalation;
use steadfast_store::StoreError;

use super::api::Engine;
use crate::call::prompter::{ApprovalPrompter, ClientDecision};

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

impl Engine {
    /// Requests approval for something other than a call, from the user at the client, else from an operator. An
    /// existing grant is used up once.
    pub async fn request_approval(&self, wish: ActionRequest<'_>) -> Result<ActionApproval, StoreError> {
        let (calls, now, tenant) = (&self.inner.calls, self.now(), wish.tenant.cloned());
        let signature = Signature(wish.shown.into());
        let subject = ApprovalSubject {
            tool: wish.tool,
            arguments: Digest::of(wish.shown.as_bytes()),
            signature: &signature,
            session: wish.session,
            blocked: wish.operator_only,
        };
        let spender = Digest::of(format!("{} {}", calls.state.tag, calls.state.next_sequence()).as_bytes());
        let policy = calls.policies.of_blank(&tenant, Some(wish.tool), None, AnnotationHints::default());
        let take = |approvals: &mut ApprovalLedger| {
            let grant = approvals.grant_for(subject, now)?;
            let by = approvals.grants(now).find(|(id, _)| *id == grant).map(|(_, grant)| grant.by);
            match approvals.spend(grant, spender, now) {
                SpendVerdict::Spent | SpendVerdict::AlreadyMine | SpendVerdict::Holds => by,
                SpendVerdict::Lost | SpendVerdict::Gone => None,
            }
        };
        let pending = calls.approvals.change(&tenant, |approvals| {
            take(approvals).map_or_else(
                || Err(approvals.ask(subject, &wish.prompt, Some(wish.shown), &policy.approval, now).id),
                Ok,
            )
        });
        let id = match pending.await? {
            Ok(by) => return Ok(ActionApproval::Approved(by)),
            Err(id) => id,
        };
        calls.approvals.notify_request(&tenant, id, None, policy.trust.notify);
        let parked = calls.approvals.pending(&tenant).into_iter().find(|(parked, _)| *parked == id);
        let decision = match (&wish.asker.filter(|_| !wish.operator_only), parked) {
            (Some(asker), Some((_, parked))) => match asker.ask(id, parked).await {
                ClientDecision::Decided(ApprovalDecision::Deny) => ApprovalDecision::Deny,
                ClientDecision::Decided(_) => ApprovalDecision::Once,
                ClientDecision::PutToCaller(question) => return Ok(ActionApproval::PutToCaller(question)),
                ClientDecision::Unavailable => return Ok(ActionApproval::Pending(id)),
            },
            (Some(_) | None, Some(_) | None) => return Ok(ActionApproval::Pending(id)),
        };
        let decided = calls.approvals.change(&tenant, |approvals| {
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
        self.inner.calls.machines.tenants.get(&tenant).judged.lock().end_session(session);
        self.inner.calls.approvals.change(&tenant, |approvals| approvals.end_session(session)).await
    }
}

//! Approval requests for operators: lists, and decisions.

use steadfast_core::approval::{
    ApprovalDecision, ApprovalDecisionError, DecisionEffect, Grantor, ParkedRequest, ParkedRequestId,
};
use steadfast_core::id::TenantId;
use steadfast_core::trust::TrustTarget;
use steadfast_store::StoreError;

use super::engine_admin::EngineAdmin;
use crate::observe::audit_entry::{AuditAction, AuditChange, OperatorIdentity};

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

impl EngineAdmin {
    /// Returns the pending approval requests of a tenant.
    pub fn approvals(&self, tenant: Option<&TenantId>) -> Vec<(ParkedRequestId, ParkedRequest)> {
        self.approvals.pending(&tenant.cloned())
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
        let now = self.clock.now();
        let owner = tenant.cloned();
        let (mut about, mut recovers) = (None, None);
        let decided = self.approvals.change(&owner, |approvals| {
            let entry = approvals.parked(now).find(|(id, _)| *id == request);
            about = entry.as_ref().map(|(_, parked)| parked.tool.to_string());
            recovers = entry.map(|(_, parked)| (parked.tool.clone(), parked.prompt.domain.clone()));
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
        self.audit.record(by, AuditChange { deed, tenant, on, before: None, after }).await;
        if let (ApprovalDecision::Recover, Some((tool, domain))) = (decision, recovers) {
            let target = domain.as_ref().map_or(TrustTarget::Tool(&tool), TrustTarget::Domain);
            self.approve_recovery(tenant, target, by).await.map_err(ApprovalError::Store)?;
        }
        Ok(decided)
    }
}

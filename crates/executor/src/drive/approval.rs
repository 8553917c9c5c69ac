//! Approval of a call: its request, and the decision of the user at the client.

use steadfast_core::approval::{ApprovalDecision, ApprovalSubject, Grantor, ParkedRequest, ParkedRequestId};
use steadfast_core::call::{ApprovalRequest, Call};
use steadfast_core::id::Domain;
use steadfast_core::trust::TrustTarget;

use super::deferred::shown;
use super::driver::{CallDriver, DriverActivity};
use crate::observe::audit_entry::{OperatorIdentity, OperatorSurface};

impl CallDriver {
    /// Requests approval for the call.
    pub(super) async fn ask(&mut self, ask: Box<ApprovalRequest>) {
        let shown = shown(&self.envelope);
        let now = self.calls.clock.now();
        let pending = self.calls.approvals.change_at_least_here(&self.call.request().tenant, |approvals| {
            let policy = &self.call.policy().approval;
            approvals.ask(
                approval_subject(&self.call, DecisionSource::of(&ask)),
                &ask.escalation,
                Some(&shown),
                policy,
                now,
            )
        });
        let id = pending.await.id;
        let request = self.call.request();
        self.calls.approvals.notify_request(
            &request.tenant,
            id,
            Some(&request.id),
            self.call.policy().trust.notify,
        );
        // Requests that only an operator may approve are not sent to the client.
        let caller = match (&self.asker, self.parked(id)) {
            (Some(asker), Some(parked)) if !ask.operator_only => Some(asker.ask(id, parked)),
            (Some(_) | None, Some(_) | None) => None,
        };
        self.activity = DriverActivity::Asking { id, ask, caller };
    }

    /// Returns the pending request from the copy in this process.
    fn parked(&self, id: ParkedRequestId) -> Option<ParkedRequest> {
        let tenant = self.calls.machines.tenants.get(&self.call.request().tenant);
        let judged = tenant.judged.lock();
        let mut parked = judged.approvals.parked(self.calls.clock.now());
        parked.find(|(other, _)| *other == id).map(|(_, parked)| parked.clone())
    }

    /// Records the decision of the user at the client. The next check of the request shows if it counts: another
    /// decision may have been faster, and a tool that was blocked meanwhile cannot be allowed by a client.
    pub(super) async fn decided(&mut self, id: ParkedRequestId, decision: ApprovalDecision) {
        let now = self.calls.clock.now();
        let recovers = self.parked(id).and_then(|parked| parked.prompt.domain);
        let decided = self.calls.approvals.change_at_least_here(&self.call.request().tenant, |approvals| {
            approvals.decide(id, decision, Grantor::Client, now)
        });
        match decided.await {
            Ok(_) if decision == ApprovalDecision::Recover => self.recover(recovers).await,
            Ok(_) => {}
            Err(error) => tracing::info!(event = "approval.not_taken", "why" = %error),
        }
    }

    /// Starts the recovery of trust after the user at the client approved it: for the host if one is named, else the
    /// tool.
    async fn recover(&mut self, domain: Option<Domain>) {
        let request = self.call.request();
        let target = domain.as_ref().map_or(TrustTarget::Tool(&request.tool), TrustTarget::Domain);
        let by = OperatorIdentity::new("client", OperatorSurface::Mcp);
        if let Err(error) = self.calls.admin.approve_recovery(request.tenant.as_ref(), target, &by).await {
            self.store_trouble(&error);
        }
    }
}

/// Returns the description of the call that approvals are matched against.
pub(super) fn approval_subject(call: &Call, answers: DecisionSource) -> ApprovalSubject<'_> {
    let request = call.request();
    ApprovalSubject {
        tool: &request.tool,
        arguments: request.digest,
        signature: &request.signature,
        session: request.session.as_ref(),
        blocked: matches!(answers, DecisionSource::Operator),
    }
}

/// Source of the decisions that count.
#[derive(Clone, Copy)]
pub(super) enum DecisionSource {
    Anyone,
    Operator,
}

impl DecisionSource {
    pub(super) fn of(ask: &ApprovalRequest) -> Self {
        if ask.operator_only { Self::Operator } else { Self::Anyone }
    }
}

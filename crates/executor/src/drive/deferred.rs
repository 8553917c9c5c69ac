//! The store operations of a call that are retried when they failed.

use std::fmt;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalLedger, ApprovalSubject, GrantId, ParkedRequestId};
use steadfast_core::call::{ApprovalRequest, Call, CallRequest, DeferredWrite};
use steadfast_core::dedupe::{ReleaseRequest, SaveRequest};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Digest, TenantId};
use steadfast_core::policy::ApprovalPolicy;
use steadfast_store::{StateStore, StoreError};

use crate::shared::approvals::ApprovalBook;
use crate::writes::deferred::{COMMAND_LIVES, FIRST_PAUSE, RetryableOperation, StoreRetry};

/// A store operation of a call.
pub(crate) enum StoreOperation {
    Save(Arc<dyn StateStore>, Box<SaveRequest>),
    Release(Arc<dyn StateStore>, ReleaseRequest),
    Park(Box<DeferredApproval>),
    GiveBack { tenant: Option<TenantId>, grant: GrantId, spender: Digest },
}

/// A request for approval that outlives its call.
pub(crate) struct DeferredApproval {
    tenant: Option<TenantId>,
    request: Arc<CallRequest>,
    ask: ApprovalRequest,
    shown: String,
    policy: ApprovalPolicy,
    /// True if clients are notified of it.
    for_client: bool,
}

impl StoreOperation {
    pub(super) fn of(
        write: DeferredWrite,
        store: &Arc<dyn StateStore>,
        call: &Call,
        envelope: &CallEnvelope,
        now: Timestamp,
    ) -> StoreRetry<Self> {
        let (operation, due) = match write {
            DeferredWrite::Save(save) => (Self::Save(store.clone(), save), now + FIRST_PAUSE),
            DeferredWrite::Release(release) => (Self::Release(store.clone(), release), now + COMMAND_LIVES),
            DeferredWrite::Park(ask) => {
                let request = call.request();
                let parking = DeferredApproval {
                    tenant: request.tenant.clone(),
                    request: Arc::new(request.clone()),
                    ask: *ask,
                    shown: shown(envelope),
                    policy: call.policy().approval,
                    for_client: call.policy().trust.notify,
                };
                (Self::Park(Box::new(parking)), now)
            }
            DeferredWrite::GiveBack { grant, owner } => {
                let tenant = call.request().tenant.clone();
                (Self::GiveBack { tenant, grant, spender: owner.digest() }, now)
            }
        };
        StoreRetry::new(operation, due)
    }

    /// Returns true if the caller relies on it: it may get the response and call again at once.
    pub(super) const fn precedes_response(&self) -> bool {
        match self {
            Self::GiveBack { .. } => true,
            Self::Save(..) | Self::Release(..) | Self::Park(_) => false,
        }
    }
}

impl RetryableOperation for StoreOperation {
    type Context = ApprovalBook;

    fn may_be_early(&self) -> bool {
        match self {
            Self::Save(..) | Self::Park(_) | Self::GiveBack { .. } => true,
            Self::Release(..) => false,
        }
    }

    async fn carry_out(&self, approvals: &ApprovalBook) -> Result<(), StoreError> {
        match self {
            Self::Save(store, save) => store.save(save).await.map(drop),
            Self::Release(store, release) => store.release(release).await,
            Self::Park(parking) => {
                let now = approvals.now();
                let id = approvals.change(&parking.tenant, |ledger| parking.ask(ledger, now)).await?;
                approvals.notify_request(&parking.tenant, id, Some(&parking.request.id), parking.for_client);
                Ok(())
            }
            Self::GiveBack { tenant, grant, spender } => {
                approvals.change(tenant, |ledger| ledger.return_grant(*grant, *spender)).await
            }
        }
    }
}

impl DeferredApproval {
    fn ask(&self, approvals: &mut ApprovalLedger, now: Timestamp) -> ParkedRequestId {
        let subject = ApprovalSubject {
            tool: &self.request.tool,
            arguments: self.request.digest,
            signature: &self.request.signature,
            session: self.request.session.as_ref(),
            blocked: self.ask.operator_only,
        };
        approvals.ask(subject, &self.ask.escalation, Some(&self.shown), &self.policy, now).id
    }
}

/// Returns the excerpt of the arguments that an operator may see.
pub(super) fn shown(envelope: &CallEnvelope) -> String {
    steadfast_redact::excerpt(envelope.payload.params.as_str(), ApprovalLedger::MOST_SHOWN)
}

/// Shows neither results nor arguments.
impl fmt::Debug for StoreOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Save(_, save) => write!(f, "save {}", save.claimed.key.fingerprint()),
            Self::Release(_, release) => write!(f, "release {}", release.key.fingerprint()),
            Self::Park(parking) => write!(f, "park a call of {}", parking.request.tool),
            Self::GiveBack { grant, .. } => write!(f, "return grant {}", grant.0),
        }
    }
}

//! The approval that a call needs, and the grant that was spent for it.

use super::refusal::CallRefusal;
use super::step::{ApprovalRequest, DeferredWrite};
use crate::approval::GrantId;
use crate::dedupe::ClaimOwner;
use crate::trust::TrustDecision;

/// The approval that a call needs.
#[derive(Clone, Debug)]
pub(super) enum ApprovalNeed {
    /// The call may run.
    NotNeeded,
    /// The call may run if it spends this grant.
    Spend(GrantId),
    /// An approver has to be asked.
    Ask(Box<ApprovalRequest>),
    /// No approver can be asked now.
    Refuse(Box<CallRefusal>),
}

/// A grant that was spent in the name of a claim.
#[derive(Clone, Debug)]
pub(super) struct SpentGrant {
    pub(super) grant: GrantId,
    /// The owner that spent it.
    pub(super) owner: ClaimOwner,
    pub(super) coverage: GrantCoverage,
}

/// The tools that an approval covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantCoverage {
    /// The approval does not cover a tool that is blocked.
    Ordinary,
    /// The tool was blocked when the call was approved. Only an operator gives such a grant.
    BlockedTool,
}

impl SpentGrant {
    /// Returns true if the call may run although the tool is blocked.
    pub(super) fn covers_block(&self) -> bool {
        self.coverage == GrantCoverage::BlockedTool
    }

    /// Returns the write that returns the grant.
    pub(super) fn give_back(self) -> DeferredWrite {
        DeferredWrite::GiveBack { grant: self.grant, owner: self.owner }
    }
}

impl GrantCoverage {
    /// Returns the coverage of a grant for a tool with this standing.
    pub(super) fn for_standing(standing: TrustDecision) -> Self {
        match standing {
            TrustDecision::Blocked(_) => Self::BlockedTool,
            TrustDecision::Allowed(_) | TrustDecision::NeedsApproval(_) => Self::Ordinary,
        }
    }

    /// Returns the coverage of a grant for this request.
    pub(super) fn for_request(request: &ApprovalRequest) -> Self {
        if request.operator_only { Self::BlockedTool } else { Self::Ordinary }
    }
}

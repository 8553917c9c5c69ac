//! Approval requests to the user at the client.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use steadfast_core::approval::{ApprovalDecision, ParkedRequest, ParkedRequestId};
use steadfast_core::output::ToolOutput;

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

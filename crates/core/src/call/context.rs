//! The state machines that calls share, and the context of one step.

use super::notice::CallNotice;
use crate::Timestamp;
use crate::approval::ApprovalLedger;
use crate::breaker::CircuitBreaker;
use crate::guard::LoopGuard;
use crate::limit::Limiter;
use crate::retry::RetryBudget;
use crate::trust::TrustLedger;

/// State machines that calls share. The driver lends them for the length of one step.
#[derive(Debug)]
pub struct CallMechanisms<'a> {
    /// Circuit breaker of the tool.
    pub breaker: &'a mut CircuitBreaker,
    /// Circuit breaker of the dependency, if the caller asked for one.
    pub dependency: Option<&'a mut CircuitBreaker>,
    /// Retry budget of this dependency.
    pub budget: &'a mut RetryBudget,
    /// Limits of this tool.
    pub limiter: &'a mut Limiter,
    /// Limits of the dependency, shared by all its tools.
    pub dependency_limiter: &'a mut Limiter,
    /// Loop guard of this session.
    pub guard: &'a mut LoopGuard,
    /// Trust ledger of this tenant.
    pub trust: &'a mut TrustLedger,
    /// Approvals of this tenant.
    pub approvals: &'a ApprovalLedger,
}

/// The context of one step: the shared state machines, the time, and the notices of the step.
pub(super) struct StepContext<'s, 'm> {
    pub(super) shared: &'s mut CallMechanisms<'m>,
    pub(super) now: Timestamp,
    pub(super) notices: &'s mut Vec<CallNotice>,
}

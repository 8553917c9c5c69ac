//! State that operators read, and the changes that they make: circuit breakers, trust, approvals, unknown outcomes, the
//! history of calls and the audit log. [`Engine::admin`](crate::Engine::admin) has the operations.
//!
//! ```
//! use steadfast::admin::AuditQuery;
//! use steadfast::{Steadfast, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
//! let changes = steadfast.engine().admin().audit(&AuditQuery::default()).await?;
//! println!("{changes:?}");
//! # Ok(())
//! # }
//! ```

pub use steadfast_core::{approval, breaker, guard, report, stats, trust};
pub use steadfast_executor::{
    ApprovalError, ApprovalPrompter, AuditAction, AuditChange, AuditEntry, AuditQuery, AvailableTool,
    BreakerChange, BreakerKey, BreakerOverride, BreakerSubject, BreakerView, CallFacts, ChangeScope,
    ClientDecision, ClientDecisionFuture, CountSource, GuardTrip, GuardView, InvalidBreakerKey, ModelScore,
    OperatorIdentity, OperatorSurface, Recording, StoppedSession, TenantFilter, ToolScore, ToolView,
    servers_of_one_name,
};
pub use steadfast_replay as replay;

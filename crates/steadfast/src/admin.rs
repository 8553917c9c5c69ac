//! State that operators read, and the changes that they make: circuit breakers, trust, approvals, unknown outcomes, the
//! history of calls and the audit log. [`EngineAdmin`] has the operations.
//!
//! ```
//! use steadfast::admin::{AuditQuery, BreakerKey, BreakerOverride, OperatorIdentity, OperatorSurface};
//! use steadfast::{Steadfast, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
//! let admin = steadfast.engine().admin();
//!
//! let ann = OperatorIdentity::new("ann", OperatorSurface::Library);
//! let breaker: BreakerKey = "tool:bank:pay".parse()?;
//! admin.update_breaker(None, &breaker, BreakerOverride::Open { until: None }, &ann).await;
//!
//! // Each change is an entry of the audit log.
//! let changes = admin.audit(&AuditQuery::default()).await?.found;
//! assert_eq!(changes[0].by, ann);
//! # Ok(())
//! # }
//! ```

pub use steadfast_executor::{
    ActionApproval, ApprovalError, AuditAction, AuditChange, AuditEntry, AvailableTool, BreakerChange,
    BreakerOverride, BreakerSubject, BreakerView, CallFacts, ChangeScope, ClientDecision,
    ClientDecisionFuture, CountSource, DomainView, GuardTrip, GuardView, InvalidBreakerKey, LastAnnotations,
    ModelScore, OperatorSurface, StoppedSession, TenantFilter, ToolScore, ToolView,
};

/// A question to an operator about something other than a call, for
/// [`Engine::request_approval`](crate::Engine::request_approval).
///
/// ```
/// use steadfast::Engine;
/// use steadfast::admin::{ActionApproval, ActionRequest};
/// use steadfast::store::StoreError;
///
/// async fn may_do(engine: &Engine, request: ActionRequest<'_>) -> Result<bool, StoreError> {
///     Ok(match engine.request_approval(request).await? {
///         ActionApproval::Approved(_) => true,
///         // A pending request waits for an operator. Asking again finds the decision.
///         ActionApproval::Denied | ActionApproval::Pending(_) | ActionApproval::PutToCaller(_) => false,
///     })
/// }
/// ```
pub use steadfast_executor::ActionRequest;

/// Asks the user of a program for approval, for calls with an [`ApprovalChannel::Interactive`](approval::ApprovalChannel).
///
/// ```
/// use steadfast::admin::approval::{ApprovalDecision, ParkedRequest, ParkedRequestId};
/// use steadfast::admin::{ApprovalPrompter, ClientDecision, ClientDecisionFuture};
///
/// /// Approves calls without arguments, and asks nobody.
/// #[derive(Debug)]
/// struct HarmlessOnly;
///
/// impl ApprovalPrompter for HarmlessOnly {
///     fn ask(&self, _: ParkedRequestId, request: ParkedRequest) -> ClientDecisionFuture {
///         let is_harmless = request.shown.as_deref() == Some("{}");
///         let decision = if is_harmless { ApprovalDecision::Once } else { ApprovalDecision::Deny };
///         Box::pin(async move { ClientDecision::Decided(decision) })
///     }
/// }
/// ```
pub use steadfast_executor::ApprovalPrompter;

/// The selection of entries of the audit log, for [`EngineAdmin::audit`].
///
/// ```
/// use steadfast::admin::{AuditAction, AuditQuery};
///
/// let resets = AuditQuery { deed: Some(AuditAction::BreakerReset), limit: 10, ..AuditQuery::default() };
/// assert!(resets.by.is_none());
/// ```
pub use steadfast_executor::AuditQuery;

/// The name of a circuit breaker.
///
/// ```
/// use steadfast::admin::BreakerKey;
///
/// let key: BreakerKey = "tool:bank:pay".parse()?;
/// assert_eq!(key.to_string(), "tool:bank:pay");
/// # Ok::<(), steadfast::admin::InvalidBreakerKey>(())
/// ```
pub use steadfast_executor::BreakerKey;

/// The operations of operators. [`Engine::admin`](crate::Engine::admin) returns it.
///
/// ```
/// use steadfast::admin::EngineAdmin;
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// steadfast.call("bank/pay").run(async |_: Attempt| Ok::<_, ToolFault>("paid")).await?;
///
/// let admin: &EngineAdmin = steadfast.engine().admin();
/// let tools = admin.tools(None, []).await;
/// assert_eq!((tools[0].tool.to_string(), tools[0].calls), ("bank/pay".to_owned(), 1));
/// assert!(admin.approvals(None).is_empty());
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::EngineAdmin;

/// The selection of failures, for [`EngineAdmin::failures`].
///
/// ```
/// use steadfast::admin::FailureQuery;
///
/// let newest = FailureQuery::newest(20);
/// assert_eq!(newest.limit, 20);
/// ```
pub use steadfast_executor::FailureQuery;

/// The author of a change, for the audit log.
///
/// ```
/// use steadfast::admin::{OperatorIdentity, OperatorSurface};
///
/// let ann = OperatorIdentity::new("ann", OperatorSurface::Library);
/// assert_eq!(ann.to_string(), "ann (library)");
/// ```
pub use steadfast_executor::OperatorIdentity;

/// The recorded calls of a store, for a [rehearsal](replay::Rehearsal).
///
/// ```
/// use steadfast::admin::Recording;
/// use steadfast::{Steadfast, Store, Timestamp};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let recording = Recording::read(&**steadfast.store(), Timestamp::ZERO, 1000).await?;
/// assert!(recording.calls.is_empty());
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::Recording;

/// Requests for approval, and decisions on them.
///
/// ```
/// use steadfast::admin::approval::{ApprovalDecision, Grantor};
/// use steadfast::admin::{OperatorIdentity, OperatorSurface};
/// use steadfast::policy::ApprovalTrigger;
/// use steadfast::{Attempt, Code, Steadfast, Store, ToolFault, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = ToolPolicy::mutating().approval(ApprovalTrigger::Always);
/// let steadfast = Steadfast::builder().store(Store::memory()).tool("bank/pay", policy).build().await?;
/// let mut notifications = steadfast.engine().notifications();
/// let pay = async |_: Attempt| Ok::<_, ToolFault>("paid");
/// let refused = steadfast.call("bank/pay").run(pay).await.unwrap_err();
/// assert_eq!(refused.code(), Code::ApprovalRequired);
///
/// // An operator approves it, and the next call runs.
/// let ann = OperatorIdentity::new("ann", OperatorSurface::Library);
/// let request = notifications.recv().await?.approval.clone().unwrap().id;
/// let admin = steadfast.engine().admin();
/// admin.decide(None, request, ApprovalDecision::Once, Grantor::Operator, &ann).await?;
/// assert_eq!(steadfast.call("bank/pay").run(pay).await?.output::<String>()?, "paid");
/// # Ok(())
/// # }
/// ```
pub mod approval {
    pub use steadfast_core::approval::{
        ApprovalChannel, ApprovalDecision, ApprovalDecisionError, DecisionEffect, Grant, GrantId, GrantScope,
        Grantor, ParkedRequest, ParkedRequestId,
    };
}

/// Circuit breakers, as views show them.
///
/// ```
/// use steadfast::admin::breaker::State;
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// steadfast.call("web/fetch").run(async |_: Attempt| Ok::<_, ToolFault>("<html>")).await?;
/// let breakers = steadfast.engine().admin().breakers(None).await;
/// assert_eq!(breakers[0].view.state, State::Closed);
/// # Ok(())
/// # }
/// ```
pub mod breaker {
    pub use steadfast_core::breaker::{
        BreakerDetails, BreakerNumbers, BreakerRate, BreakerTransition, ForcedOpenCause, State,
        TransitionReason,
    };
}

/// The loop guard, as views show it.
///
/// ```
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let guard = steadfast.engine().admin().guard(None);
/// assert!(guard.trips.is_empty());
/// # Ok(())
/// # }
/// ```
pub mod guard {
    pub use steadfast_core::guard::{ActiveRefusal, GuardLayer, GuardRemark};
}

/// Reports of a host about tools that it ran without Steadfast. They count for trust and scores.
///
/// ```
/// use steadfast::admin::report::{ReportKind, ToolReport};
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let report = br#"{"toolName": "fetch", "pluginName": "web", "durationMs": 120}"#;
/// let report = ToolReport::parse(report, ReportKind::Success)?;
/// assert!(steadfast.engine().record_report(None, &report).is_empty(), "a success costs no trust");
/// # Ok(())
/// # }
/// ```
pub mod report {
    pub use steadfast_core::report::{ReportError, ReportKind, ReportOutcome, ToolReport};
}

/// Scores of tools and models.
///
/// ```
/// use steadfast::admin::stats::PerformanceScore;
/// use steadfast::call::id::{Namespace, ToolName, ToolRef};
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// steadfast.call("web/fetch").run(async |_: Attempt| Ok::<_, ToolFault>("<html>")).await?;
/// let tool = ToolRef { namespace: Namespace::new("web")?, tool: ToolName::new("fetch")? };
/// let score: PerformanceScore = steadfast.engine().admin().score(None, &tool).unwrap().score;
/// assert_eq!(score.samples, 1);
/// # Ok(())
/// # }
/// ```
pub mod stats {
    pub use steadfast_core::stats::{PerformanceScore, ScoreOutcome};
}

/// Trust in tools and hosts, as views and prompts show it.
///
/// ```
/// use steadfast::admin::trust::TrustTarget;
/// use steadfast::admin::{OperatorIdentity, OperatorSurface};
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let admin = steadfast.engine().admin();
/// assert!(admin.trust(None).is_empty(), "everything is trusted");
/// let ann = OperatorIdentity::new("ann", OperatorSurface::Library);
/// admin.reset_trust(None, TrustTarget::All, &ann).await?;
/// # Ok(())
/// # }
/// ```
pub mod trust {
    pub use steadfast_core::trust::{
        Escalation, PromptLevel, ToolReliabilityState, TrustChange, TrustScope, TrustState, TrustStatus,
        TrustTarget,
    };
}

/// Rehearsals: recorded calls, replayed under another configuration.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::admin::Recording;
/// use steadfast::admin::replay::Rehearsal;
/// use steadfast::{Steadfast, Store, Timestamp};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let recording = Recording::read(&**steadfast.store(), Timestamp::ZERO, 1000).await?;
/// # let envelope = steadfast.call("web/fetch").envelope()?;
/// # let policy = steadfast.engine().policy_of(&envelope)?;
/// // The policies of the two configurations, by call.
/// let (mut current, mut other) = (|_: &_| policy.clone(), |_: &_| policy.clone());
/// let rehearsal = Rehearsal::of(&recording.calls, &mut current, &[], &mut |_| {});
/// let replayed = rehearsal.replay_under(&mut other, &[], &mut |_| {});
/// assert!(rehearsal.differences(&replayed).is_empty());
/// # Ok(())
/// # }
/// ```
pub mod replay {
    pub use steadfast_replay::{
        BreakerOpening, DifferenceKind, RecordedCall, RecordedResult, Rehearsal, ReplayDifference, ReplayEnd,
        ReplayPolicies, ReplayResult, ReplayedCall, TakenReason, UnknownResult,
    };
}

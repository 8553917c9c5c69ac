//! Resolved policies: the settings in force for one tool, complete and valid. A program writes them with
//! [`ToolPolicy`](crate::ToolPolicy) and reads them here.
//!
//! ```
//! use steadfast::policy::{CallPolicy, ToolClass};
//! use steadfast::{Steadfast, Store, ToolPolicy};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder()
//!     .store(Store::memory())
//!     .tool("bank/pay", ToolPolicy::mutating().attempts(2))
//!     .build()
//!     .await?;
//! let envelope = steadfast.call("bank/pay").envelope()?;
//! let policy: &CallPolicy = &*steadfast.engine().policy_of(&envelope)?;
//! assert_eq!((policy.class, policy.retry.attempts.get()), (ToolClass::Mutating, 2));
//! # Ok(())
//! # }
//! ```

pub use steadfast_core::policy::{
    AmbiguousOutcomePolicy, AnnotationHints, ApprovalPolicy, ApprovalTrigger, ArgumentCheck, Backoff,
    BreakerCooldown, BreakerPolicy, BudgetPolicy, CallPolicy, ComputedKeyPolicy, DangerousCommandPolicy,
    DedupePolicy, DelayOrigin, EffectLocation, EnforcementMode, FailureReplayPolicy, GrowthFactor,
    GuardPolicy, InvalidValue, Jitter, KeyConflictPolicy, KeyScope, LimitPolicy, MechanismModes,
    PolicyProfile, RateLimit, RateRule, Ratio, RecordLifetimes, RepeatPolicy, RepeatedSuccessPolicy,
    RetryPolicy, SettlingPolicy, SilencePolicy, SlowRule, StoreFailurePolicy, StringRule, TimePolicy,
    ToolClass, TrustRecovery, TrustRule, UnknownOutcomePolicy,
};
pub use steadfast_core::template::{InvalidTemplate, KeyTemplate};
pub use steadfast_core::verification::{VerificationCall, VerificationMethod};

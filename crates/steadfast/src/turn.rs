//! Turns: several calls that depend on each other, submitted as one plan. [`Engine::turn`](crate::Engine::turn) runs
//! them. Independent calls run at the same time, and a turn always ends with the results it has.
//!
//! ```
//! use std::pin::Pin;
//! use std::sync::Arc;
//! use steadfast::call::envelope::CallEnvelope;
//! use steadfast::call::{EnvelopeBuilder, ResolvedTool, ToolRegistry, ToolResult, output::ToolOutput};
//! use steadfast::turn::{TurnLimits, TurnOptions, TurnPlan, TurnStatus};
//! use steadfast::{Attempt, Steadfast, Store};
//!
//! /// Returns the arguments as the result, under any name.
//! struct Echo;
//!
//! impl ToolRegistry for Echo {
//!     fn find<'a>(
//!         &'a self,
//!         _: &'a CallEnvelope,
//!     ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
//!         let echo = async |attempt: Attempt| -> ToolResult { Ok(ToolOutput::text(attempt.params())) };
//!         Box::pin(async move { Some(ResolvedTool::new(echo)) })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = br#"{"calls": [
//!     {"id": "fetch", "tool": "web/fetch"},
//!     {"id": "pay", "tool": "bank/pay", "params": {"invoice": {"$from": "fetch"}}}
//! ]}"#;
//! let plan = TurnPlan::parse(plan, &TurnLimits::DEFAULT)?;
//!
//! let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
//! // The session, actor and tenant of all calls of the turn.
//! let caller = EnvelopeBuilder::new("web/fetch").session("s-1").build()?.target;
//! let turn = steadfast.engine().turn(Arc::new(plan), Arc::new(Echo), TurnOptions::of(caller)).await?;
//! assert_eq!(turn.result.status, TurnStatus::Completed);
//! # Ok(())
//! # }
//! ```

pub use steadfast_executor::{TurnQuery, TurnRejection, TurnResponse, TurnSummary, TurnTraceView};
pub use steadfast_turn::{
    CallNeed, CallParams, DraftAlternative, DraftCall, DraftDependency, FailureStrategy, InvalidJsonPointer,
    JsonPointer, OutputParts, OutputReference, PlanError, PlanErrors, PlanProblem, PlannedAlternative,
    PlannedCall, PlannedDependency, TurnCallOutcome, TurnCallResult, TurnEndReason, TurnResult, TurnStatus,
};

/// The caller of a turn, and everything about the turn that its plan does not say.
///
/// ```
/// use steadfast::call::EnvelopeBuilder;
/// use steadfast::turn::TurnOptions;
///
/// let caller = EnvelopeBuilder::new("web/fetch").session("s-1").build()?.target;
/// let options = TurnOptions::of(caller);
/// // Another task can end the turn.
/// let cancelled = options.cancelled.clone();
/// cancelled.cancel();
/// # Ok::<(), steadfast::call::InvalidCall>(())
/// ```
pub use steadfast_executor::TurnOptions;

/// A plan that a program builds. [`TurnPlan::new`] checks it by the same rules as a plan in JSON.
///
/// ```
/// use steadfast::call::id::{InvalidId, Namespace, ToolCallId, ToolName, ToolRef};
/// use steadfast::turn::{CallNeed, DraftCall, PlanDraft, TurnLimits, TurnPlan};
///
/// let fetch = DraftCall {
///     id: ToolCallId::new("fetch")?,
///     tool: ToolRef { namespace: Namespace::new("web")?, tool: ToolName::new("fetch")? },
///     params: None,
///     depends_on: Vec::new(),
///     need: CallNeed::Required,
///     alternatives: Vec::new(),
///     timeout: None,
/// };
/// let plan = TurnPlan::new(PlanDraft { calls: vec![fetch], ..PlanDraft::default() }, &TurnLimits::DEFAULT);
/// assert_eq!(plan.unwrap().calls().len(), 1);
/// # Ok::<(), InvalidId>(())
/// ```
pub use steadfast_turn::PlanDraft;

/// The limits that a plan must keep, because it comes from a model.
///
/// ```
/// use steadfast::turn::{TurnLimits, TurnPlan};
///
/// let limits = TurnLimits { calls: 1, ..TurnLimits::DEFAULT };
/// let plan = br#"{"calls": [{"id": "a", "tool": "web/fetch"}, {"id": "b", "tool": "web/fetch"}]}"#;
/// assert!(TurnPlan::parse(plan, &limits).is_err());
/// ```
pub use steadfast_turn::TurnLimits;

/// A plan of calls that was checked as a whole.
///
/// ```
/// use steadfast::turn::{TurnLimits, TurnPlan};
///
/// let plan = br#"{"calls": [{"id": "a", "tool": "web/fetch", "dependsOn": ["b"]}]}"#;
/// let errors = TurnPlan::parse(plan, &TurnLimits::DEFAULT).unwrap_err();
/// assert_eq!(errors.errors[0].path, "/calls/0/dependsOn/0");
/// ```
pub use steadfast_turn::TurnPlan;

/// The trace of a turn: its events for programs, each with a sentence for readers.
///
/// ```
/// use std::sync::Mutex;
/// use steadfast::telemetry::{EngineListener, TurnContext};
/// use steadfast::turn::trace::{TraceNote, TurnFact};
///
/// /// Collects the decisions about failed calls of turns.
/// #[derive(Default)]
/// struct Decisions(Mutex<Vec<String>>);
///
/// impl EngineListener for Decisions {
///     fn turn(&self, _: &TurnContext<'_>, note: &TraceNote) {
///         if let TurnFact::Decision { reason, .. } = &note.fact {
///             self.0.lock().unwrap().push(reason.to_string());
///         }
///     }
/// }
/// ```
pub mod trace {
    pub use steadfast_turn::trace::{
        SkipReason, SpanId, ToolFailureDetails, TraceEvent, TraceEventKind, TraceEventType, TraceId,
        TraceNote, TraceSpan, TurnFact,
    };
}

//! Calls in the form in which they arrive over a network: the envelope, its identifiers, the tools and hooks of a host,
//! and the result. A program that calls its own tools needs none of it; see [`Steadfast::call`](crate::Steadfast::call).
//!
//! ```
//! use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
//! use steadfast::{Attempt, Steadfast, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
//! let envelope = EnvelopeBuilder::new("web/fetch").args(&[("url", "https://example.com")]).build()?;
//! let fetch = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("<html>")) };
//! let response = steadfast.call_envelope(envelope, fetch).await;
//! assert_eq!(response.result.attempts, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Calls that a host runs
//!
//! A host that runs its own tools asks before each run and reports the result:
//!
//! ```
//! use steadfast::call::{CallOptions, EnvelopeBuilder, HostStep, output::ToolOutput};
//! use steadfast::{Steadfast, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
//! let engine = steadfast.engine();
//! let envelope = EnvelopeBuilder::new("disk/read").args(&[("path", "notes.txt")]).build()?;
//!
//! let mut step = engine.begin(envelope, CallOptions::default()).await;
//! let response = loop {
//!     match step {
//!         HostStep::Run(order) => {
//!             // The host runs its tool here. A failure is reported as `Err(ToolFault::new("…").into())`.
//!             let result = Ok(ToolOutput::text("buy milk"));
//!             step = engine.report(order.call, order.attempt, result).await?;
//!         }
//!         HostStep::Answered(response) => break response,
//!     }
//! };
//! assert!(response.result.error.is_none());
//! # Ok(())
//! # }
//! ```

pub use steadfast_core::call::{
    AttemptEndVisibility, CallId, CallerKeyScope, CallerPatience, EqualCallPolicy,
};
pub use steadfast_core::key::DedupeMode;
pub use steadfast_executor::{
    DeliveryHandle, HeartbeatReply, HookFuture, HostCallId, HostError, HostStep, RunOrder, ToolDescription,
    ToolInfo, TurnResubmission, UndeliveredResponse,
};

pub use crate::envelope_builder::{EnvelopeBuilder, InvalidCall};

/// The error of an attempt, for tools that return a [`ToolResult`]. Most tools return a
/// [`ToolFault`](crate::ToolFault), which converts into it.
///
/// ```
/// use steadfast::ToolFault;
/// use steadfast::call::AttemptError;
/// use steadfast::call::output::ToolOutput;
///
/// let failed = AttemptError::from(ToolFault::http(503, "the printer is warming up"));
/// assert_eq!(failed.to_string(), "the printer is warming up");
/// let question = AttemptError::InputRequired(ToolOutput::text("which printer?"));
/// assert_eq!(question.to_string(), "the tool needs input");
/// ```
pub use steadfast_executor::AttemptError;

/// Cancels a call that another task waits for.
///
/// ```
/// use steadfast::call::{EnvelopeBuilder, ToolResult};
/// use steadfast::{Attempt, Code, Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let endless = async |_: Attempt| -> ToolResult { std::future::pending().await };
/// let call = steadfast.call_envelope(EnvelopeBuilder::new("web/fetch").build()?, endless);
/// call.canceller().cancel();
/// assert_eq!(call.await.result.error.unwrap().code, Code::Cancelled);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::CallCanceller;

/// The options of a call that are not part of its envelope.
///
/// ```
/// use steadfast::admin::approval::ApprovalChannel;
/// use steadfast::call::{CallOptions, EqualCallPolicy};
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let options = CallOptions {
///     channel: ApprovalChannel::Interactive,
///     equal_calls: EqualCallPolicy::Joined,
///     ..CallOptions::default()
/// };
/// let time = steadfast.call("clock/now").options(options).run(async |_: Attempt| Ok::<_, ToolFault>(12)).await?;
/// assert_eq!(time.output::<u32>()?, 12);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::CallOptions;

/// User code that observes calls. [`SteadfastBuilder::hooks`](crate::SteadfastBuilder::hooks) installs it.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::call::{HookFuture, Hooks, envelope::CallEnvelope};
/// use steadfast::{Steadfast, Store};
///
/// struct InvoiceKeys;
///
/// impl Hooks for InvoiceKeys {
///     fn key<'a>(&'a self, call: &'a CallEnvelope) -> HookFuture<'a, Option<String>> {
///         Box::pin(async { call.payload.params.as_str().contains("invoice").then(|| "from the invoice".to_owned()) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).hooks(Arc::new(InvoiceKeys)).build().await?;
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::Hooks;

/// The future of a [`CallResponse`](crate::CallResponse), as
/// [`Steadfast::call_envelope`](crate::Steadfast::call_envelope) returns it.
///
/// ```
/// use steadfast::call::{EnvelopeBuilder, PendingCall, ToolResult, output::ToolOutput};
/// use steadfast::{Attempt, Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let fetch = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("<html>")) };
/// let call: PendingCall = steadfast.call_envelope(EnvelopeBuilder::new("web/fetch").build()?, fetch);
/// let response = call.await;
/// assert_eq!(response.result.output.unwrap().content.as_str(), r#""<html>""#);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::PendingCall;

/// The signs of progress of a call, for a surface that passes them on to its client.
///
/// ```
/// use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
/// use steadfast::{Attempt, Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let fetch = async |attempt: Attempt| -> ToolResult {
///     attempt.progress();
///     Ok(ToolOutput::text("<html>"))
/// };
/// let call = steadfast.call_envelope(EnvelopeBuilder::new("web/fetch").build()?, fetch);
/// let mut progress = call.progress_signals();
/// let (_response, ()) = tokio::join!(call, progress.next());
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::ProgressSignals;

/// A tool that a [`ToolRegistry`] looked up by name.
///
/// ```
/// use steadfast::Attempt;
/// use steadfast::call::{ResolvedTool, ToolResult, output::ToolOutput};
///
/// let fetch = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("<html>")) };
/// let tool = ResolvedTool::new(fetch);
/// assert!(tool.info.is_none());
/// ```
pub use steadfast_executor::ResolvedTool;

/// A [tool](crate::ToolHandler) of any type, so that tools of different types can be stored together.
///
/// ```
/// use std::collections::BTreeMap;
/// use steadfast::Attempt;
/// use steadfast::call::{SharedTool, ToolResult, output::ToolOutput};
///
/// let read = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("milk")) };
/// let write = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("done")) };
/// let tools = BTreeMap::from([("read", SharedTool::new(read)), ("write", SharedTool::new(write))]);
/// assert_eq!(tools.len(), 2);
/// ```
pub use steadfast_executor::SharedTool;

/// Several [registries](ToolRegistry) as one.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::call::{ToolRegistries, ToolRegistry};
///
/// fn both(ours: Arc<dyn ToolRegistry>, theirs: Arc<dyn ToolRegistry>) -> ToolRegistries {
///     ToolRegistries(vec![ours, theirs])
/// }
/// ```
pub use steadfast_executor::ToolRegistries;

/// Finds tools by name, for [turns](crate::turn) and for verifications that call another tool.
///
/// ```
/// use std::pin::Pin;
/// use steadfast::Attempt;
/// use steadfast::call::envelope::CallEnvelope;
/// use steadfast::call::{ResolvedTool, ToolRegistry, ToolResult, output::ToolOutput};
///
/// struct Tools;
///
/// impl ToolRegistry for Tools {
///     fn find<'a>(
///         &'a self,
///         call: &'a CallEnvelope,
///     ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
///         let echo = async |attempt: Attempt| -> ToolResult { Ok(ToolOutput::text(attempt.params())) };
///         Box::pin(async move { (call.tool_name.as_str() == "echo").then(|| ResolvedTool::new(echo)) })
///     }
/// }
/// ```
pub use steadfast_executor::ToolRegistry;

/// The result of a tool that handles outputs and errors in their stored form. Tools of
/// [`CallBuilder::run`](crate::CallBuilder::run) return any type that serializes instead.
///
/// ```
/// use steadfast::call::{ToolResult, output::ToolOutput};
/// use steadfast::{Attempt, ToolFault};
///
/// async fn fetch(attempt: Attempt) -> ToolResult {
///     if attempt.params() == "{}" {
///         return Err(ToolFault::new("no address was given").into());
///     }
///     Ok(ToolOutput::text("<html>"))
/// }
/// ```
pub use steadfast_executor::ToolResult;

/// Failures of attempts, and their classification: transient or permanent, and the proof that nothing ran.
///
/// ```
/// use steadfast::ToolFault;
/// use steadfast::call::classify::{FaultSource, TransportError};
///
/// let refused = ToolFault::not_sent(TransportError::ConnectionRefused, "nothing listens on port 631");
/// assert!(matches!(refused.fault.source, FaultSource::Transport { written: false, .. }));
/// ```
pub mod classify {
    pub use steadfast_core::classify::danger::DangerousShapes;
    pub use steadfast_core::classify::record::FailureRecord;
    pub use steadfast_core::classify::signature::Signature;
    pub use steadfast_core::classify::{
        AttemptFault, AttemptReach, FaultNature, FaultSource, FaultSourceKind, ModelMistake, Overrides,
        RetryAfter, Severity, TransportError,
    };
}

/// Error codes, and the status that each one has on the wire.
///
/// ```
/// use steadfast::call::code::{CallStatus, Code};
///
/// assert_eq!(Code::CircuitOpen.status(true), CallStatus::CircuitOpen);
/// ```
pub mod code {
    pub use steadfast_core::code::{CallStatus, Code};
}

/// The envelope of a call, and that of its result.
///
/// ```
/// use steadfast::call::EnvelopeBuilder;
/// use steadfast::call::envelope::{BreakerHint, CallEnvelope, UnknownFieldPolicy};
///
/// // The builder has the common fields. The others are set on the envelope.
/// let mut envelope = EnvelopeBuilder::new("bank/pay").key("invoice 42").build()?;
/// envelope.transport.circuit_breaker_hint = Some(BreakerHint::Dependency);
///
/// // An envelope that arrives as text is checked as a whole, and all its errors are reported at once.
/// let error = CallEnvelope::parse(br#"{"contractVersion": "1.1"}"#, UnknownFieldPolicy::Refuse).unwrap_err();
/// assert_eq!(error.code().as_str(), "invalid_envelope");
/// # Ok::<(), steadfast::call::InvalidCall>(())
/// ```
pub mod envelope {
    pub use steadfast_core::envelope::{
        BreakerHint, CacheHit, CacheMatch, CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity,
        ContractVersion, EnvelopeError, EnvelopeProblem, EnvelopeTrace, ErrorBody, ExtraFields,
        IdempotencyKey, PayloadVersion, ResultEnvelope, RetryEntry, RetryLimits, TransportOptions,
        TurnControl, UnknownFieldPolicy,
    };
    pub use steadfast_core::large_result::ShortenedText;
}

/// Names and identifiers. Each kind has its own type, and a value that exists is valid.
///
/// ```
/// use steadfast::call::id::{InvalidId, Namespace, TenantId, ToolName, ToolRef};
///
/// let tool = ToolRef { namespace: Namespace::new("bank")?, tool: ToolName::new("pay")? };
/// assert_eq!(tool.to_string(), "bank/pay");
/// assert_eq!(TenantId::new(""), Err(InvalidId::Empty));
/// # Ok::<(), InvalidId>(())
/// ```
pub mod id {
    pub use steadfast_core::id::{
        ActorId, AgentId, CorrelationId, Digest, Domain, InvalidId, ModelId, Namespace, RequestId, RunId,
        SessionKey, TenantId, ToolCallId, ToolName, ToolRef, TurnId, WorkspaceId,
    };
}

/// Outputs of tools, as the JSON text that was received.
///
/// ```
/// use steadfast::call::output::ToolOutput;
///
/// let output = ToolOutput::json(&[1, 2])?;
/// assert_eq!(output.content.as_str(), "[1,2]");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub mod output {
    pub use steadfast_core::output::ToolOutput;
}

/// JSON that is passed on as it was received, and the reader that checks it.
///
/// ```
/// use steadfast::call::json::{JsonDocument, JsonError, JsonLimits};
///
/// let document = JsonDocument::parse(br#"{"cents": 1000}"#, JsonLimits::ENVELOPE)?;
/// assert!(document.root().get("cents").is_some());
/// # Ok::<(), JsonError>(())
/// ```
pub mod json {
    pub use steadfast_json::{
        DecodedChars, JsonDocument, JsonEntries, JsonError, JsonItems, JsonKind, JsonLimits, JsonMembers,
        JsonValue, NameSpelling, RawJson, TextPosition,
    };
}

/// Redaction: the functions that remove secrets from everything that leaves the process.
///
/// ```
/// use steadfast::call::redact::{self, Redacted};
///
/// assert!(!redact::text("Authorization: Bearer 0123456789abcdef0123").contains("0123456789"));
/// assert_eq!(format!("{:?}", Redacted::from("secret")), "[redacted]");
/// ```
pub mod redact {
    pub use steadfast_redact::{MASK, Redacted, excerpt, is_secret_name, response, summary, text};
}

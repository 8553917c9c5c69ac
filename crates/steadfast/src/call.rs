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

pub use steadfast_core::call::*;
pub use steadfast_core::key::DedupeMode;
pub use steadfast_core::{classify, code, envelope, id, output};
pub use steadfast_executor::{
    AnsweredCall, AttemptError, CallCanceller, CallOptions, DeliveryHandle, HeartbeatReply, HookFuture, Hooks,
    HostAbilities, HostAttempts, HostCallId, HostError, HostLocation, HostStep, OrderEnd, PendingCall, ProgressSignals, ResolvedTool, RunOrder, SharedTool, ToolInfo,
    ToolRegistries, ToolRegistry, ToolResult, TurnResubmission,
};
pub use steadfast_json as json;
pub use steadfast_redact as redact;

pub use crate::envelope_builder::{EnvelopeBuilder, InvalidCall};

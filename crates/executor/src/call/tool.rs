//! The interface of tools: one attempt at a time.

use std::any::Any;
use std::fmt;
use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::RunId;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{DedupePolicy, MechanismModes, SettlingPolicy};
use steadfast_json::{JsonDocument, JsonLimits};

use crate::call::panics::CatchPanic;
use crate::call::slot::CallerSlot;
use crate::call::tool_info::ToolInfo;

/// Result of an attempt: the output of the tool, or the reason for its absence.
pub type ToolResult = Result<ToolOutput, AttemptError>;

/// Reason for an attempt without a result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AttemptError {
    /// The attempt failed.
    #[error("{0}")]
    Failed(ToolFault),
    /// The tool needs input and does its work when the call is sent again with it. The question goes to the caller
    /// unchanged. It is never stored, and counts neither as a success nor as a failure of the call.
    #[error("the tool needs input")]
    InputRequired(ToolOutput),
    /// The host that was to run the tool is gone and has not started. The call is cancelled and does not count for the
    /// tool.
    #[error("the tool did not run: {0}")]
    NotRun(AttemptFault),
}

/// A callable tool. Every async function from an [`Attempt`] to a [`ToolResult`] is one.
///
/// An attempt is a future of its own and owned by the engine. It continues when its caller disconnects, and is dropped
/// when the engine ends it. Before that, its [`Attempt::cancelled`] resolves, so that it can pass the cancellation on.
pub trait ToolHandler: Send + Sync + 'static {
    /// Makes one attempt.
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static;

    /// Returns the visibility of an attempt's end: the moment after which it can take no more effect. If it is visible,
    /// [`end`](Self::end) resolves at that moment.
    fn sees_end(&self) -> AttemptEndVisibility {
        AttemptEndVisibility::Hidden
    }

    /// Ends the last attempt, whose outcome is unknown. Resolves when nothing of it remains: it can take no more
    /// effect, and all its output has been read. The attempt still runs concurrently and may return a result meanwhile;
    /// this future is then dropped.
    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        let _ = settling;
        std::future::pending()
    }

    /// Returns the server's description of the tool, for surfaces that did not know it when the call arrived. The
    /// engine asks before any decision, because it determines how often the tool may run.
    fn describe(&self) -> impl Future<Output = Option<ToolDescription>> + Send + 'static {
        ready(None)
    }
}

/// A server's description of a tool.
#[derive(Clone, Debug, Default)]
pub struct ToolDescription {
    /// Details of the tool.
    pub info: Option<Arc<ToolInfo>>,
    /// Read-only tools of the server, by which a caller can find out if a call took effect.
    pub reads: Arc<[Box<str>]>,
}

impl<F, Fut> ToolHandler for F
where
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ToolResult> + Send + 'static,
{
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        self(attempt)
    }
}

/// One attempt at a call: its arguments and its context.
#[derive(Clone)]
pub struct Attempt {
    /// The envelope of the call.
    pub envelope: Arc<CallEnvelope>,
    /// Number of the attempt, from 1. Worth passing on, so that upstreams do not multiply the retries.
    pub number: u32,
    /// Time at which the attempt is ended at the latest. Worth passing on too.
    pub deadline: Option<Timestamp>,
    /// Id of the run: the same for every attempt, also after a crash. An upstream that deduplicates gets it as the
    /// idempotency key if the caller gave none.
    pub run: RunId,
    /// Modes of the mechanisms that act on the call. If none does, add nothing to the message that the client sent.
    pub modes: MechanismModes,
    /// True if the envelope's key was derived from a turn.
    pub(crate) in_turn: bool,
    /// Key that was computed from the arguments, if the tool is configured for that.
    pub(crate) made_key: Option<Arc<str>>,
    /// Arguments with the key among them, if the tool takes it as an argument.
    pub(crate) keyed_params: Option<Arc<str>>,
    /// Trace context to pass on: that of this attempt's own span if a listener makes spans, else the caller's.
    pub traceparent: Option<String>,
    pub(crate) desk: Arc<CallerSlot>,
}

impl Attempt {
    /// Returns the arguments as the JSON text in which they arrived. The idempotency key is among them if the tool
    /// takes it as an argument.
    pub fn params(&self) -> &str {
        self.keyed_params.as_deref().unwrap_or_else(|| self.envelope.payload.params.as_str())
    }

    /// Returns true if the idempotency key was added to the arguments.
    pub fn has_key_argument(&self) -> bool {
        self.keyed_params.is_some()
    }

    /// Returns the idempotency key for an upstream that deduplicates: the caller's key, else the one computed from the
    /// arguments, else the key of the turn, else the id of the run.
    pub fn idempotency_key(&self) -> &str {
        let own = self.envelope.payload.idempotency_key.as_ref().map(|key| key.as_str());
        let made = self.made_key.as_deref();
        let key = if self.in_turn { made.or(own) } else { own.or(made) };
        key.unwrap_or(&self.run.0)
    }

    /// Adds the key that the policy computes from the arguments, and the argument that carries it.
    pub(crate) fn with_key(mut self, policy: &DedupePolicy) -> Self {
        if self.modes.is_pass_through() {
            return self;
        }
        let params = self.envelope.payload.params.as_str();
        if let Some(template) = &policy.key {
            self.made_key = template.fill_text(params).map(Into::into);
        }
        if let Some(name) = &policy.key_argument {
            self.keyed_params = with_member(params, name, self.idempotency_key()).map(Into::into);
        }
        self
    }

    /// Resolves when the result is no longer wanted. The attempt may still return one.
    pub async fn cancelled(&self) {
        self.desk.unwanted.cancelled(self.number).await;
    }

    /// Returns true if the result is no longer wanted.
    pub fn is_cancelled(&self) -> bool {
        self.desk.unwanted.is_cancelled(self.number)
    }

    /// Signals progress: extends the timeout of this attempt, within the total of the call.
    pub fn progress(&self) {
        self.desk.control.progress();
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("tool", &self.envelope.tool())
            .field("number", &self.number)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// A failed attempt, with the facts that decide whether it is retried.
///
/// A tool that knows more about its failure than its text says so with a constructor. Each states a fact, and calls are
/// repeated on the strength of it: use [`not_sent`](Self::not_sent) only if nothing reached the other side.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{fault}")]
pub struct ToolFault {
    /// The fault, which the core classifies.
    pub fault: AttemptFault,
    /// The tool's own output, unchanged, if there is any.
    pub output: Option<ToolOutput>,
}

impl ToolFault {
    /// Returns a failure that the tool reports. Only its text is known.
    pub fn new(message: impl Into<String>) -> Self {
        AttemptFault::new(FaultSource::Tool, message).into()
    }

    /// Returns the failure of an HTTP response with this status.
    pub fn http(status: u16, message: impl Into<String>) -> Self {
        AttemptFault::new(FaultSource::Http { status }, message).into()
    }

    /// Returns a failure before anything was sent, such as a refused connection. Every call may be repeated after it.
    pub fn not_sent(error: TransportError, message: impl Into<String>) -> Self {
        AttemptFault::new(FaultSource::Transport { error, written: false }, message).into()
    }

    /// Returns a failure of the transport after a part of the request may have arrived. The outcome is unknown.
    pub fn connection_lost(error: TransportError, message: impl Into<String>) -> Self {
        AttemptFault::new(FaultSource::Transport { error, written: true }, message).into()
    }

    /// Sets the delay that the other side asked for.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.fault.retry_after = Some(RetryAfter::Delay(delay));
        self
    }
}

impl From<AttemptFault> for ToolFault {
    fn from(fault: AttemptFault) -> Self {
        Self { fault, output: None }
    }
}

impl From<ToolFault> for AttemptError {
    fn from(fault: ToolFault) -> Self {
        Self::Failed(fault)
    }
}

impl From<AttemptFault> for AttemptError {
    fn from(fault: AttemptFault) -> Self {
        Self::Failed(fault.into())
    }
}

/// A tool of any type, as a trait object.
pub(crate) trait DynTool: Send + Sync {
    fn start(&self, attempt: Attempt) -> AttemptFuture;
    fn any_sees_end(&self) -> AttemptEndVisibility;
    fn any_end(&self, settling: SettlingPolicy) -> AttemptEndFuture;
    fn any_describe(&self) -> Pin<Box<dyn Future<Output = Option<ToolDescription>> + Send>>;
}

/// The future that ends an attempt.
pub(crate) type AttemptEndFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A running attempt. A panic in it is a result, because a lost call would be worse.
pub(crate) struct AttemptFuture(CatchPanic<Pin<Box<dyn Future<Output = ToolResult> + Send>>>);

impl AttemptFuture {
    /// Creates the future and boxes it. Its creation may panic too. It can be large and is not moved after this.
    pub(crate) fn of<F: Future<Output = ToolResult> + Send + 'static>(make: impl FnOnce() -> F) -> Self {
        let made = catch_unwind(AssertUnwindSafe(|| -> Pin<Box<dyn Future<Output = ToolResult> + Send>> {
            Box::pin(make())
        }));
        Self(CatchPanic(made.unwrap_or_else(|panic| Box::pin(ready(Err(panicked(&*panic)))))))
    }
}

impl Future for AttemptFuture {
    type Output = ToolResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ToolResult> {
        let caught = Pin::new(&mut self.0).poll(context);
        caught.map(|caught| caught.unwrap_or_else(|panic| Err(panicked(&*panic))))
    }
}

impl<T: ToolHandler> DynTool for T {
    fn start(&self, attempt: Attempt) -> AttemptFuture {
        AttemptFuture::of(|| self.run(attempt))
    }

    fn any_sees_end(&self) -> AttemptEndVisibility {
        self.sees_end()
    }

    fn any_end(&self, settling: SettlingPolicy) -> AttemptEndFuture {
        Box::pin(self.end(settling))
    }

    fn any_describe(&self) -> Pin<Box<dyn Future<Output = Option<ToolDescription>> + Send>> {
        Box::pin(self.describe())
    }
}

fn panicked(panic: &(dyn Any + Send)) -> AttemptError {
    let message =
        panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    AttemptFault::new(FaultSource::Panic, message.unwrap_or("the tool panicked")).into()
}

/// Returns the object with one more member, or `None` if it has that member already.
fn with_member(object: &str, name: &str, text: &str) -> Option<String> {
    let document = JsonDocument::parse(object.as_bytes(), JsonLimits::PARAMS).ok()?;
    if !document.root().is_object() || document.root().get(name).is_some() {
        return None;
    }
    let inside = object.trim().strip_prefix('{')?.strip_suffix('}')?;
    let comma = if inside.trim().is_empty() { "" } else { "," };
    let (name, text) = (serde_json::to_string(name).ok()?, serde_json::to_string(text).ok()?);
    Some(format!("{{{name}:{text}{comma}{inside}}}"))
}

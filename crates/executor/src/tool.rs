//! What the engine runs: a tool, one attempt at a time.

use std::any::Any;
use std::fmt;
use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use steadfast_core::Timestamp;
use steadfast_core::call::AttemptEnd;
use steadfast_core::classify::{Fault, Source};
use steadfast_core::dedupe::RunId;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::json::{Document, Limits};
use steadfast_core::output::Output;
use steadfast_core::policy::{DedupePolicy, Modes, SettlingPolicy};

use crate::catch::Caught;
use crate::engine::Desk;
use crate::info::ToolInfo;

/// What an attempt gives back: the tool's answer, or why there is none.
pub type Answer = Result<Output, NotDone>;

/// Why an attempt did not do what it was asked for.
#[derive(Clone, Debug)]
pub enum NotDone {
    /// It went wrong.
    Failed(ToolFault),
    /// The tool wants to know something first, and does its work when the call is sent again with it. The question goes
    /// to the caller as it is; it is never stored, and it counts neither as a success nor as a failure of the call.
    InputRequired(Output),
    /// Whoever was to run the tool is gone and has not begun. The call is withdrawn with it, and says nothing about the tool.
    NotRun(Fault),
}

/// Something that can be called. Every async function from an [`Attempt`] to an [`Answer`] is one.
///
/// An attempt is a future of its own and owned by the engine: it goes on when its caller goes away, and is dropped
/// when the engine ends it. Before that its [`Attempt::cancelled`] is told, so that it can pass the word on.
pub trait Tool: Send + Sync + 'static {
    /// Makes one attempt.
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static;

    /// Whether the end of an attempt can be seen: the moment from which on it can take no effect any more. Where it can,
    /// [`end`](Self::end) tells.
    fn sees_end(&self) -> AttemptEnd {
        AttemptEnd::Unseen
    }

    /// Ends the last attempt, whose outcome is unknown, and resolves when nothing is left of it: it can take no effect any
    /// more, and everything that it said was heard. The attempt still runs beside this, and may answer meanwhile; then this is
    /// dropped.
    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        let _ = settling;
        std::future::pending()
    }

    /// What its server says of the tool, where the surface did not know that when the call came. Asked before anything is
    /// decided: how often a tool may run depends on it.
    fn describe(&self) -> impl Future<Output = Option<Description>> + Send + 'static {
        ready(None)
    }
}

/// What a server says of a tool.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Of the tool itself.
    pub info: Option<Arc<ToolInfo>>,
    /// Its read-only tools, by which a caller can find out whether a call had its effect.
    pub reads: Arc<[Box<str>]>,
}

impl<F, Fut> Tool for F
where
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        self(attempt)
    }
}

/// One attempt at a call: what is asked, and what the tool may want to know about it.
#[derive(Clone)]
pub struct Attempt {
    /// The call as it came.
    pub envelope: Arc<CallEnvelope>,
    /// Which attempt it is, from 1. Worth passing on, so that others do not multiply our retries.
    pub number: u32,
    /// When it will be ended at the latest. Worth passing on too.
    pub deadline: Option<Timestamp>,
    /// Names the run: the same for every attempt, also after a crash. What an upstream that recognises duplicates
    /// is given where the caller gave no key.
    pub run: RunId,
    /// Which mechanisms act on the call. Where none does, nothing is to be added to what was sent.
    pub modes: Modes,
    /// True if the envelope's key was derived from a turn.
    pub(crate) in_turn: bool,
    /// The key that was made of the arguments, as the tool is set.
    pub(crate) made_key: Option<Arc<str>>,
    /// The arguments with the key among them, where the tool takes it so.
    pub(crate) keyed_params: Option<Arc<str>>,
    /// The trace to pass on: that of this attempt's own span where a listener makes spans, else the caller's.
    pub traceparent: Option<String>,
    pub(crate) desk: Arc<Desk>,
}

impl Attempt {
    /// The arguments, as the JSON text they came in; with the idempotency key among them, where the tool is set to take it
    /// as an argument.
    pub fn params(&self) -> &str {
        self.keyed_params.as_deref().unwrap_or_else(|| self.envelope.payload.params.as_str())
    }

    /// Whether the arguments are not those that came, because the key is among them.
    pub fn has_key_argument(&self) -> bool {
        self.keyed_params.is_some()
    }

    /// What to send along for an upstream that recognises duplicates: the caller's key, else the one that is made of the
    /// arguments, else the key of the turn, else the id of the run.
    pub fn idempotency_key(&self) -> &str {
        let own = self.envelope.payload.idempotency_key.as_ref().map(|key| key.as_str());
        let made = self.made_key.as_deref();
        let key = if self.in_turn { made.or(own) } else { own.or(made) };
        key.unwrap_or(&self.run.0)
    }

    /// With the key that the policy makes of the arguments, and the argument that it is passed by.
    pub(crate) fn with_key(mut self, policy: &DedupePolicy) -> Self {
        if self.modes.leave_alone() {
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

    /// Resolves when nobody wants the answer any more. The attempt may still give one.
    pub async fn cancelled(&self) {
        self.desk.unwanted.cancelled(self.number).await;
    }

    /// Whether nobody wants the answer any more.
    pub fn is_cancelled(&self) -> bool {
        self.desk.unwanted.is_cancelled(self.number)
    }

    /// A sign of life: pushes back the time-out of this attempt, within the total of the call.
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

/// An attempt that went wrong.
#[derive(Clone, Debug)]
pub struct ToolFault {
    /// How; classified by the core.
    pub fault: Fault,
    /// What the tool itself said, word for word, where it said something.
    pub output: Option<Output>,
}

impl From<Fault> for ToolFault {
    fn from(fault: Fault) -> Self {
        Self { fault, output: None }
    }
}

impl From<ToolFault> for NotDone {
    fn from(fault: ToolFault) -> Self {
        Self::Failed(fault)
    }
}

impl From<Fault> for NotDone {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault.into())
    }
}

/// A tool of whatever type.
pub(crate) trait AnyTool: Send + Sync {
    fn start(&self, attempt: Attempt) -> Running;
    fn any_sees_end(&self) -> AttemptEnd;
    fn any_end(&self, settling: SettlingPolicy) -> Ending;
    fn any_describe(&self) -> Pin<Box<dyn Future<Output = Option<Description>> + Send>>;
}

/// The end of an attempt, on its way.
pub(crate) type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An attempt on its way. A panic in it is an answer: a lost call would be worse.
pub(crate) struct Running(Caught<Pin<Box<dyn Future<Output = Answer> + Send>>>);

impl Running {
    /// Making the future may panic as well as running it. It can be large, and is not moved any more once it is made.
    pub(crate) fn of<F: Future<Output = Answer> + Send + 'static>(make: impl FnOnce() -> F) -> Self {
        let made = catch_unwind(AssertUnwindSafe(|| -> Pin<Box<dyn Future<Output = Answer> + Send>> {
            Box::pin(make())
        }));
        Self(Caught(made.unwrap_or_else(|panic| Box::pin(ready(Err(panicked(&*panic)))))))
    }
}

impl Future for Running {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let caught = Pin::new(&mut self.0).poll(context);
        caught.map(|caught| caught.unwrap_or_else(|panic| Err(panicked(&*panic))))
    }
}

impl<T: Tool> AnyTool for T {
    fn start(&self, attempt: Attempt) -> Running {
        Running::of(|| self.run(attempt))
    }

    fn any_sees_end(&self) -> AttemptEnd {
        self.sees_end()
    }

    fn any_end(&self, settling: SettlingPolicy) -> Ending {
        Box::pin(self.end(settling))
    }

    fn any_describe(&self) -> Pin<Box<dyn Future<Output = Option<Description>> + Send>> {
        Box::pin(self.describe())
    }
}

fn panicked(panic: &(dyn Any + Send)) -> NotDone {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    Fault::new(Source::Panic, said.unwrap_or("the tool panicked")).into()
}

/// An object with one more member; nothing if it has it already.
fn with_member(object: &str, name: &str, text: &str) -> Option<String> {
    let document = Document::parse(object.as_bytes(), Limits::PARAMS).ok()?;
    if !document.root().is_object() || document.root().get(name).is_some() {
        return None;
    }
    let inside = object.trim().strip_prefix('{')?.strip_suffix('}')?;
    let comma = if inside.trim().is_empty() { "" } else { "," };
    let (name, text) = (serde_json::to_string(name).ok()?, serde_json::to_string(text).ok()?);
    Some(format!("{{{name}:{text}{comma}{inside}}}"))
}

//! Calls of tools that are functions of the program.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::EqualCallPolicy;
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, AttemptError, CallOptions, CallResponse, ToolFault, ToolResult};
use steadfast_json::RawJson;

use crate::builder::Steadfast;
use crate::call_error::{CallError, InvalidOutput, ToolErrorSource};
use crate::envelope_builder::{EnvelopeBuilder, InvalidCall};

/// Any error that a tool may return.
///
/// Every [`std::error::Error`] that can be sent between threads converts into it, and so do `String`, `&str`, and the
/// boxed errors of other crates.
///
/// ```
/// use steadfast::BoxError;
///
/// let error: BoxError = "the printer is on fire".into();
/// assert_eq!(error.to_string(), "the printer is on fire");
/// ```
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A call that a program makes.
///
/// ```
/// use std::time::Duration;
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let sent = steadfast
///     .call("mail/send")
///     .session("s-1")
///     .tenant("acme")
///     .key("welcome ann")
///     .args(&[("to", "ann@example.com")])
///     .timeout(Duration::from_secs(5))
///     .deadline_after(Duration::from_secs(20))
///     .run(async |attempt: Attempt| Ok::<_, ToolFault>(attempt.params().len()))
///     .await?;
/// assert_eq!(sent.attempts(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call does nothing before `run`"]
pub struct CallBuilder<'s> {
    steadfast: &'s Steadfast,
    envelope: EnvelopeBuilder,
    options: CallOptions,
}

impl Steadfast {
    /// Returns a builder for a call of this tool, named as `namespace/name`.
    pub fn call(&self, tool: impl Into<String>) -> CallBuilder<'_> {
        CallBuilder {
            steadfast: self,
            envelope: EnvelopeBuilder::new(tool.into()),
            options: CallOptions::default(),
        }
    }
}

impl CallBuilder<'_> {
    /// Sets the arguments: a struct or a map. A list of name-value pairs counts as a map.
    pub fn args(self, args: &(impl Serialize + ?Sized)) -> Self {
        Self { envelope: self.envelope.args(args), ..self }
    }

    /// Sets the idempotency key: calls with the same key are the same call.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { envelope: self.envelope.key(key), ..self }
    }

    /// Sets the session. Idempotency keys are scoped to a session. Default: `default`.
    pub fn session(self, session: impl Into<String>) -> Self {
        Self { envelope: self.envelope.session(session), ..self }
    }

    /// Sets the user or account that makes the call. Default: `default`.
    pub fn actor(self, actor: impl Into<String>) -> Self {
        Self { envelope: self.envelope.actor(actor), ..self }
    }

    /// Sets the tenant whose data the call uses. Tenants share no records, circuit breakers or trust.
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self { envelope: self.envelope.tenant(tenant), ..self }
    }

    /// Sets the timeout of one attempt. It can only lower that of the tool. The limit of the whole call is its
    /// [deadline](Self::deadline).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { envelope: self.envelope.timeout(timeout), ..self }
    }

    /// Sets the time at which the call ends at the latest.
    pub fn deadline(self, deadline: Timestamp) -> Self {
        Self { envelope: self.envelope.deadline(deadline), ..self }
    }

    /// Sets the time from now after which the call ends at the latest.
    pub fn deadline_after(self, time: Duration) -> Self {
        let deadline = self.steadfast.engine().now() + time;
        self.deadline(deadline)
    }

    /// Lets the call wait until an operator approves or denies it, where its policy asks for approval. Otherwise such a
    /// call is refused at once, and an operator may approve it before it is made again.
    pub fn wait_for_approval(mut self) -> Self {
        self.options.channel = ApprovalChannel::Interactive;
        self
    }

    /// Sets everything that an envelope does not contain, such as the prompter that asks a user for approval, or a
    /// listener for this call.
    pub fn options(self, options: CallOptions) -> Self {
        Self { options, ..self }
    }

    /// Returns the call as an envelope, for [`Steadfast::call_envelope`] and the [`Engine`](crate::Engine).
    pub fn envelope(self) -> Result<CallEnvelope, InvalidCall> {
        self.envelope.build()
    }

    /// Makes the call. The tool runs as often as its policy allows, and the future completes in bounded time.
    ///
    /// The tool is an async function of the [`Attempt`]. Its output is any type that serializes. Its error is any type
    /// that converts into a [`BoxError`]. A [`ToolFault`] as the error, or among the sources of the error, states exactly
    /// how the attempt failed; of any other error, only the text is known.
    ///
    /// An attempt outlives its caller, so the tool cannot borrow. A closure that uses a value of its surroundings clones
    /// it for each attempt:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use steadfast::{Attempt, Steadfast, Store, ToolFault};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
    /// let client = Arc::new(String::from("a connection"));
    /// let fetch = move |_: Attempt| {
    ///     let client = client.clone();
    ///     async move { Ok::<_, ToolFault>(client.len()) }
    /// };
    /// assert_eq!(steadfast.call("web/fetch").run(fetch).await?.output::<usize>()?, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Dropping the future is a disconnect: an attempt that has not started is abandoned. One that has started continues,
    /// and its result is recorded.
    pub async fn run<F, Fut, T, E>(self, tool: F) -> Result<CallOutput, CallError>
    where
        F: Fn(Attempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: Into<BoxError>,
    {
        let envelope = self.envelope.build()?;
        let last_error = Arc::new(Mutex::new(None));
        let handler = {
            let last_error = last_error.clone();
            move |attempt: Attempt| {
                let (running, last_error) = (tool(attempt), last_error.clone());
                async move { to_result(running.await, &last_error) }
            }
        };
        let joins_equal_calls = self.options.equal_calls != EqualCallPolicy::Separate;
        let engine = self.steadfast.engine();
        let response = engine.call_with(envelope, handler, self.options).await;
        // Equal calls without a key are joined until their response has arrived. The program has it now.
        if joins_equal_calls && let Some(delivery) = response.delivery.clone() {
            engine.mark_delivered(delivery);
        }
        match response.result.error.clone() {
            None => Ok(CallOutput { response }),
            Some(body) => Err(CallError::new(body, response, last_error.lock().take())),
        }
    }
}

/// Converts the result of an attempt, and keeps its error for the caller.
fn to_result<T: Serialize, E: Into<BoxError>>(
    result: Result<T, E>,
    last_error: &Mutex<Option<ToolErrorSource>>,
) -> ToolResult {
    match result {
        Ok(value) => ToolOutput::json(&value).map_err(|error| {
            let message = format!("the output of the tool cannot be serialized: {error}");
            *last_error.lock() = Some(Arc::new(error));
            AttemptFault::new(FaultSource::BadAnswer, message).into()
        }),
        Err(error) => {
            let error = ToolErrorSource::from(error.into());
            let attempt_error = to_attempt_error(&*error);
            *last_error.lock() = Some(error);
            Err(attempt_error)
        }
    }
}

/// Returns the fault in the chain of an error that states how the attempt failed, else a fault with the text of the
/// error and its sources.
fn to_attempt_error<'e>(error: &'e (dyn Error + 'static)) -> AttemptError {
    let chain = || std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| (*error).source());
    for cause in chain() {
        if let Some(error) = cause.downcast_ref::<AttemptError>() {
            return error.clone();
        }
        if let Some(fault) = cause.downcast_ref::<ToolFault>() {
            return fault.clone().into();
        }
        if let Some(fault) = cause.downcast_ref::<AttemptFault>() {
            return fault.clone().into();
        }
    }
    let mut message = error.to_string();
    for cause in chain().skip(1).map(ToString::to_string) {
        // Many errors repeat their source.
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    ToolFault::new(message).into()
}

/// The output of a call that succeeded.
///
/// ```
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let paid = steadfast.call("bank/pay").key("42").run(async |_: Attempt| Ok::<_, ToolFault>((7, "ann"))).await?;
/// assert_eq!(paid.output::<(u32, String)>()?, (7, "ann".to_owned()));
/// assert!(!paid.is_replayed());
/// assert_eq!((paid.attempts(), paid.json()), (1, r#"[7,"ann"]"#));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CallOutput {
    response: CallResponse,
}

impl CallOutput {
    /// Returns the output of the tool as this type.
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, InvalidOutput> {
        match &self.response.result.output {
            Some(output) => InvalidOutput::parse(output),
            None => {
                InvalidOutput::parse(&ToolOutput { content: RawJson::from_trusted("null"), metadata: None })
            }
        }
    }

    /// Returns the output of the tool as JSON text.
    pub fn json(&self) -> &str {
        self.response.result.output.as_ref().map_or("null", |output| output.content.as_str())
    }

    /// Returns true if the output is that of another call with the same key.
    pub fn is_replayed(&self) -> bool {
        self.response.result.from_cache
    }

    /// Returns the number of attempts that this call made. A replay made none.
    pub fn attempts(&self) -> u32 {
        self.response.result.attempts
    }

    /// Returns the whole response.
    pub fn response(&self) -> &CallResponse {
        &self.response
    }

    /// Returns the whole response, by value.
    pub fn into_response(self) -> CallResponse {
        self.response
    }
}

/// Outputs may contain anything, so only the size is shown.
impl fmt::Debug for CallOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOutput")
            .field("output", &format_args!("{} bytes", self.json().len()))
            .field("is_replayed", &self.is_replayed())
            .field("attempts", &self.attempts())
            .finish_non_exhaustive()
    }
}

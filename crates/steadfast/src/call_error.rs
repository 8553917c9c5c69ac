//! The errors of calls that a program makes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use steadfast_core::code::Code;
use steadfast_core::envelope::ErrorBody;
use steadfast_core::output::ToolOutput;
use steadfast_executor::CallResponse;

use crate::envelope_builder::InvalidCall;

/// The reason why a call has no result.
///
/// Its [`source`](Error::source) is the last error that the tool returned to this call, if it ran in this process, and
/// the [`InvalidCall`] if the call was not made.
///
/// ```
/// use steadfast::{Attempt, Code, Steadfast, Store, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast =
///     Steadfast::builder().store(Store::memory()).tool("disk/read", ToolPolicy::read_only()).build().await?;
/// let read = async |_: Attempt| std::fs::read_to_string("/no/such/file");
/// let error = steadfast.call("disk/read").run(read).await.unwrap_err();
/// assert_eq!(error.code(), Code::ToolError);
/// assert!(!error.is_outcome_unknown());
///
/// use std::error::Error;
/// let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
/// assert_eq!(source.unwrap().kind(), std::io::ErrorKind::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CallError(Box<CallErrorParts>);

#[derive(Clone)]
struct CallErrorParts {
    body: ErrorBody,
    /// Absent if the call was not made.
    response: Option<CallResponse>,
    source: Option<ToolErrorSource>,
}

/// An error of a tool that ran in this process. Shared, so that the error of a call can be cloned.
pub(crate) type ToolErrorSource = Arc<dyn Error + Send + Sync>;

impl CallError {
    pub(crate) fn new(body: ErrorBody, response: CallResponse, source: Option<ToolErrorSource>) -> Self {
        Self(Box::new(CallErrorParts { body, response: Some(response), source }))
    }

    /// Returns the stable code. Each has a page in `docs/errors`, and [`Code::as_str`] is its text.
    pub fn code(&self) -> Code {
        self.0.body.code
    }

    /// Returns the description of the error, with the next thing to do.
    pub fn message(&self) -> &str {
        &self.0.body.message
    }

    /// Returns the name of the rule that decided, if a rule did.
    pub fn rule(&self) -> Option<&str> {
        self.0.body.rule.as_deref()
    }

    /// Returns the time after which a retry is useful, if it is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.body.retry_after_ms.map(Duration::from_millis)
    }

    /// Returns true if the same call may succeed later.
    pub fn is_retriable(&self) -> bool {
        self.0.body.retriable
    }

    /// Returns true if it is unknown whether the call took effect. [`verify`](Self::verify) says how to find out.
    pub fn is_outcome_unknown(&self) -> bool {
        self.code().is_unknown_outcome()
    }

    /// Returns true if the call may have run, at least in part, now or earlier under the same key. False is a promise:
    /// nothing happened.
    pub fn may_have_run(&self) -> bool {
        self.code().may_have_run(self.attempts())
    }

    /// Returns the instruction for finding out whether the call took effect, if the outcome is unknown and the policy
    /// of the tool has one.
    pub fn verify(&self) -> Option<&str> {
        self.0.body.verify.as_deref()
    }

    /// Returns the number of attempts that this call made.
    pub fn attempts(&self) -> u32 {
        self.0.response.as_ref().map_or(0, |response| response.result.attempts)
    }

    /// Returns the tool's own output about its failure, if there is any.
    pub fn output<T: DeserializeOwned>(&self) -> Option<Result<T, InvalidOutput>> {
        let response = self.0.response.as_ref()?;
        response.result.output.as_ref().map(InvalidOutput::parse)
    }

    /// Returns the whole response. Returns `None` if the call was not made, because it is not valid.
    pub fn response(&self) -> Option<&CallResponse> {
        self.0.response.as_ref()
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message())
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallErrorParts { body, source, .. } = &*self.0;
        f.debug_struct("CallError").field("error", body).field("source", source).finish_non_exhaustive()
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<InvalidCall> for CallError {
    fn from(error: InvalidCall) -> Self {
        let body = ErrorBody {
            retriable: false,
            terminal: true,
            ..ErrorBody::temporary(error.code(), error.to_string())
        };
        Self(Box::new(CallErrorParts { body, response: None, source: Some(Arc::new(error)) }))
    }
}

/// The output of a tool does not have the type that was asked for.
///
/// ```
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let paid = steadfast.call("bank/pay").run(async |_: Attempt| Ok::<_, ToolFault>("done")).await?;
/// let error = paid.output::<u32>().unwrap_err();
/// assert_eq!(error.code(), "invalid_output");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the output of the tool is not of type {type_name}: {source}")]
pub struct InvalidOutput {
    type_name: &'static str,
    source: serde_json::Error,
}

impl InvalidOutput {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        "invalid_output"
    }

    pub(crate) fn parse<T: DeserializeOwned>(output: &ToolOutput) -> Result<T, Self> {
        let type_name = std::any::type_name::<T>();
        serde_json::from_str(output.content.as_str()).map_err(|source| Self { type_name, source })
    }
}

//! Errors, as JSON texts that `lib/errors.cjs` makes errors of.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use steadfast::OpenError;
use steadfast::call::HostError;

/// An error for JavaScript.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failure {
    kind: FailureKind,
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// The class of the error.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum FailureKind {
    Invalid,
    Ticket,
    Open,
    Operation,
    Internal,
}

impl Failure {
    fn new(kind: FailureKind, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind, code, message: message.into(), problems: Vec::new(), retry_after_ms: None }
    }

    /// Returns an error in the input of a function.
    pub(crate) fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(FailureKind::Invalid, code, message)
    }

    /// Returns an error of opening or configuring an engine.
    pub(crate) fn open(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(FailureKind::Open, code, message)
    }

    /// Returns an error of an operation that was not done.
    pub(crate) fn operation(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(FailureKind::Operation, code, message)
    }

    /// Returns the error of an engine that was closed.
    pub(crate) fn closed() -> Self {
        Self::operation("closed", "this engine is closed; open it again")
    }

    /// Returns the error of a panic.
    pub(crate) fn panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
        let message =
            format!("a bug of Steadfast interrupted this operation: {}", text.unwrap_or("no message"));
        Self::new(FailureKind::Internal, "internal", message)
    }

    /// Adds the single problems.
    pub(crate) fn with_problems(self, problems: Vec<String>) -> Self {
        Self { problems, ..self }
    }

    /// Adds the time after which a retry is useful.
    pub(crate) fn retry_after(self, after: std::time::Duration) -> Self {
        Self { retry_after_ms: Some(steadfast_core::millis(after)), ..self }
    }

    /// Returns the error as a message.
    pub(crate) fn text(&self) -> String {
        #[derive(Serialize)]
        struct Envelope<'a> {
            error: &'a Failure,
        }
        // Texts and numbers always serialize.
        serde_json::to_string(&Envelope { error: self }).unwrap_or_default()
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let problems = match &error {
            OpenError::Configuration(errors) => errors.problems().iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        };
        Self::open(error.code(), error.to_string()).with_problems(problems)
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        let code = if error.is_no_such_call() { "no_such_call" } else { "not_this_attempt" };
        Self::new(FailureKind::Ticket, code, error.to_string())
    }
}

/// Runs a function of the addon. A panic becomes an error: it must not end the process of the host.
pub(crate) fn catch(work: impl FnOnce() -> Result<Option<String>, Failure>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(text)) => text,
        Ok(Err(failure)) => Some(failure.text()),
        Err(panic) => Some(Failure::panic(&*panic).text()),
    }
}

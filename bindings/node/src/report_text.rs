//! Reports of attempts as JSON, in the form of the HTTP API.

use serde::Deserialize;
use steadfast::ToolFault;
use steadfast::call::ToolResult;
use steadfast::call::output::ToolOutput;
use steadfast_api::calls::HostFailure;
use steadfast_executor::AttemptError;

use crate::failure::Failure;

/// The outcome of an attempt: exactly one of its fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Report {
    output: Option<ToolOutput>,
    failure: Option<HostFailure>,
    input_required: Option<ToolOutput>,
}

/// Reads a report.
pub(crate) fn read(text: &str) -> Result<ToolResult, Failure> {
    let wrong = |message: String| Failure::invalid("invalid_report", message);
    let report: Report =
        serde_json::from_str(text).map_err(|error| wrong(format!("the report cannot be read: {error}")))?;
    match (report.output, report.failure, report.input_required) {
        (Some(output), None, None) => Ok(Ok(output)),
        (None, Some(failure), None) => Ok(Err(AttemptError::Failed(ToolFault::from(failure)))),
        (None, None, Some(question)) => Ok(Err(AttemptError::InputRequired(question))),
        _ => Err(wrong(
            "the report must have exactly one of output, failure and inputRequired".to_owned(),
        )),
    }
}

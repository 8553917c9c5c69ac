//! Calls that the host answered itself: it ran the tool without asking, or the call never reached the tool.
//!
//! Such a call counts like any other: for the guard, for trust, for the scores and for all journals. Everything else
//! would come too late. It claims no record, because a run that was not claimed cannot be replayed safely. It waits for
//! no approval and passes no circuit breaker, because there is nothing left to hold back.

use std::sync::Arc;

use super::context::{CallMechanisms, StepContext};
use super::failure_response::FailureResponse;
use super::messages;
use super::notice::CallNotice;
use super::request::CallRequest;
use super::state::{AnswerSource, Call};
use super::step::CallResult;
use crate::Timestamp;
use crate::classify::{AttemptFault, FaultNature, ModelMistake, Severity, classify};
use crate::code::Code;
use crate::dedupe::CallFailure;
use crate::output::ToolOutput;
use crate::policy::CallPolicy;

/// The host's own answer to a call.
#[derive(Clone, Debug)]
pub enum HostAnswer {
    /// The host ran the tool, which succeeded.
    Output {
        /// The output of the tool.
        output: ToolOutput,
        /// Severity of a failure that the output describes, if there is one.
        concern: Option<Severity>,
    },
    /// The host ran the tool, which failed.
    Failure {
        /// The fault.
        fault: AttemptFault,
        /// The tool's own output, if there is any.
        output: Option<ToolOutput>,
    },
    /// The host refused the arguments, as it does every time. The tool did not run.
    InvalidArguments {
        /// The message for the model.
        message: String,
    },
    /// The host has no tool of this name.
    UnknownTool {
        /// The message for the model.
        message: String,
    },
    /// A policy of the host or its user denied the call. The tool did not run.
    Denied {
        /// The message for the model.
        message: String,
    },
}

impl Call {
    /// Counts a call that the host answered itself, and returns the finished call with its result. The result is the
    /// host's answer with the remarks of the guard.
    pub fn count_host_answer(
        shared: &mut CallMechanisms<'_>,
        request: CallRequest,
        policy: Arc<CallPolicy>,
        now: Timestamp,
        answer: HostAnswer,
        notices: &mut Vec<CallNotice>,
    ) -> (Self, Box<CallResult>) {
        let cx = &mut StepContext { shared, now, notices };
        // Nothing of the call depends on chance.
        let mut call = Self { answered_by: AnswerSource::Host, ..Self::arrive(request, policy, 0, cx) };
        call.enter(cx);
        let result = match answer {
            HostAnswer::Output { output, concern } => {
                call.attempts = 1;
                let result = call.result(Ok(output), now);
                call.count_run(result, concern, None, cx)
            }
            HostAnswer::Failure { fault, output } => {
                call.attempts = 1;
                call.count_host_failure(fault, output, cx)
            }
            HostAnswer::InvalidArguments { message } => {
                let mistake = (ModelMistake::Arguments, Severity::InvalidInput);
                let failure = messages::answered(Code::InvalidArguments, message, "host.invalid_arguments");
                call.count_host_refusal(failure, Some(mistake), cx)
            }
            HostAnswer::UnknownTool { message } => {
                let mistake = (ModelMistake::UnknownTool, Severity::NotFound);
                let failure = messages::answered(Code::UnknownTool, message, "host.unknown_tool");
                call.count_host_refusal(failure, Some(mistake), cx)
            }
            HostAnswer::Denied { message } => {
                let failure = messages::answered(Code::ApprovalDenied, message, "host.denied");
                call.count_host_refusal(failure, None, cx)
            }
        };
        let result = call.end_with(Box::new(result), cx);
        (call, result)
    }

    /// Counts the failure of a tool that the host ran. It is classified as every failure is.
    fn count_host_failure(
        &mut self,
        fault: AttemptFault,
        output: Option<ToolOutput>,
        cx: &mut StepContext<'_, '_>,
    ) -> CallResult {
        let classified = classify(&fault, &self.policy.classify, cx.now);
        let response = FailureResponse::of(fault, output);
        self.trouble = Some(response.last_error(&classified));
        let is_transient = classified.nature == FaultNature::Transient;
        let failure = CallFailure {
            code: classified.code,
            message: messages::shorten_message(response.message).into(),
            retriable: is_transient,
            terminal: !is_transient,
            rule: Some(classified.rule),
            verify: None,
            retry_after: classified.retry_after,
            output: response.output,
        };
        let result = self.failed(failure, cx.now);
        self.count_run(result, Some(classified.severity), classified.mistake, cx)
    }

    /// Counts a call that the host refused. A mistake of the model counts for the scores of tool and model. A denial
    /// says nothing about either, so only the guard counts it.
    fn count_host_refusal(
        &mut self,
        failure: CallFailure,
        mistake: Option<(ModelMistake, Severity)>,
        cx: &mut StepContext<'_, '_>,
    ) -> CallResult {
        cx.notices.push(self.blocked(&failure, cx));
        let result = self.failed(failure, cx.now);
        match mistake {
            Some((mistake, severity)) => self.count_run(result, Some(severity), Some(mistake), cx),
            None => self.count_response(result, cx),
        }
    }
}

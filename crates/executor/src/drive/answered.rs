//! Calls that the host answered itself: counted, and nothing else.

use std::sync::Arc;

use steadfast_core::call::{AttemptEndVisibility, Call, HostAnswer, RunnerKind};
use steadfast_core::classify::AttemptFault;
use steadfast_core::classify::record::detect_severity;
use steadfast_core::envelope::{CallEnvelope, ErrorBody};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::EnforcementMode;

use super::driver::CallDriver;
use super::services::CallServices;
use crate::call::options::CallOptions;
use crate::call::slot::{CallResponse, CallerSlot};
use crate::call::tool::{Attempt, AttemptError, ToolFault, ToolHandler, ToolResult};
use crate::observe::history::SurfaceFacts;
use crate::state::next_call_number;

/// The answer of a host to a call that it did not hand to the engine.
#[derive(Clone, Debug)]
pub enum AnsweredCall {
    /// The host ran the tool, with this result.
    Ran(Result<ToolOutput, ToolFault>),
    /// The host refused the arguments, as it does every time. The tool did not run.
    InvalidArguments {
        /// The message that the model got.
        message: String,
    },
    /// The host has no tool of this name.
    UnknownTool {
        /// The message that the model got.
        message: String,
    },
    /// A policy of the host or its user denied the call. The tool did not run.
    Denied {
        /// The message that the model got.
        message: String,
    },
}

impl CallServices {
    /// Counts a call that the host answered itself, and returns the host's answer with the remarks of the guard.
    pub(crate) fn answered(
        self: &Arc<Self>,
        envelope: CallEnvelope,
        mut options: CallOptions,
        answer: AnsweredCall,
    ) -> CallResponse {
        let envelope = Arc::new(envelope);
        let number = next_call_number();
        let (policy, mut request) = match self.take_in(&envelope, &options, None, number) {
            Ok(taken) => taken,
            Err(error) => return self.rejected(&envelope, ErrorBody::from(&error)),
        };
        request.run_by = RunnerKind::InProcessHost;
        request.end = AttemptEndVisibility::Hidden;
        let now = self.clock.now();
        let answer = match answer {
            AnsweredCall::Ran(Ok(output)) => {
                let concern = match policy.modes.trust {
                    EnforcementMode::Off => None,
                    EnforcementMode::Shadow | EnforcementMode::Enforce => {
                        detect_severity(&output, &policy.classify, now)
                    }
                };
                HostAnswer::Output { output, concern }
            }
            AnsweredCall::Ran(Err(ToolFault { fault, output })) => HostAnswer::Failure { fault, output },
            AnsweredCall::InvalidArguments { message } => HostAnswer::InvalidArguments { message },
            AnsweredCall::UnknownTool { message } => HostAnswer::UnknownTool { message },
            AnsweredCall::Denied { message } => HostAnswer::Denied { message },
        };
        let slot = Arc::new(CallerSlot::default());
        slot.assist(&envelope, &policy, options.tool.take());
        let cells = self.machines_of(&envelope, &request);
        let mut notices = Vec::with_capacity(4);
        let (call, result) =
            cells.with(|shared| Call::count_host_answer(shared, request, policy, now, answer, &mut notices));
        let (store, tool) = (self.store.clone(), Arc::new(NoTool));
        let mut drive =
            CallDriver::new(self.clone(), envelope.clone(), call, cells, store, tool, slot.clone(), None, notices);
        drive.listener = options.listener;
        drive.surface = SurfaceFacts { is_answered_by_host: true, ..SurfaceFacts::default() };
        drive.tell();
        drive.finish(&result);
        slot.take().unwrap_or_else(|| self.rejected(&envelope, self.gate.refusal()))
    }
}

/// The tool of a call that has no attempts.
#[derive(Debug)]
struct NoTool;

impl ToolHandler for NoTool {
    async fn run(&self, _attempt: Attempt) -> ToolResult {
        let source = steadfast_core::classify::FaultSource::Tool;
        Err(AttemptError::NotRun(AttemptFault::new(source, "the host answered this call")))
    }
}

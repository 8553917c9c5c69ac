//! Attempts of a call: their start, their result and their end.

use std::time::Duration;

use steadfast_core::call::{AttemptCommand, AttemptReport, CallEvent, CutReason, WakeReason};
use steadfast_core::classify::record::detect_severity;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::policy::EnforcementMode;

use super::driver::{CallDriver, DriverActivity};
use crate::call::tool::{Attempt, AttemptError, AttemptFuture, ToolFault, ToolResult};

/// Time that an attempt has to return a result after it was cancelled.
const LAST_WORDS: Duration = Duration::from_millis(100);

impl CallDriver {
    pub(super) fn start(&self, run: &AttemptCommand) -> DriverActivity {
        let about = || self.about();
        let own = self.calls.telemetry.traceparent(about, run.attempt);
        let attempt = Attempt {
            envelope: self.envelope.clone(),
            number: run.attempt,
            deadline: run.deadline,
            run: run.run.clone(),
            modes: self.call.policy().modes,
            in_turn: self.call.request().in_turn,
            made_key: None,
            keyed_params: None,
            traceparent: own.or_else(|| self.envelope.trace.traceparent.clone()),
            desk: self.slot.clone(),
        };
        let attempt = attempt.with_key(&self.call.policy().dedupe);
        let running = if self.calls.hooks.0.is_none() {
            self.tool.start(attempt)
        } else {
            let (tool, hooks, envelope) =
                (self.tool.clone(), self.calls.hooks.clone(), self.envelope.clone());
            AttemptFuture::of(|| async move {
                hooks.before_attempt(&envelope, attempt.number).await;
                tool.start(attempt).await
            })
        };
        DriverActivity::Attempt { running, number: run.attempt, started: self.calls.clock.now() }
    }

    pub(super) async fn ran(&mut self, answer: ToolResult) -> CallEvent {
        if let DriverActivity::Attempt { number, .. } = self.activity {
            self.calls.hooks.after_attempt(&self.envelope, number, &answer).await;
        }
        self.activity = DriverActivity::Nothing;
        CallEvent::Ran(match answer {
            Ok(output) => {
                let policy = self.call.policy();
                let concern = match policy.modes.trust {
                    EnforcementMode::Off => None,
                    EnforcementMode::Shadow | EnforcementMode::Enforce => {
                        detect_severity(&output, &policy.classify, self.calls.clock.now())
                    }
                };
                AttemptReport::Success { output, concern }
            }
            Err(AttemptError::InputRequired(output)) => AttemptReport::InputRequired { output },
            Err(AttemptError::NotRun(fault)) => AttemptReport::NotRun { fault },
            Err(AttemptError::Failed(ToolFault { fault, output })) => {
                AttemptReport::Failure { fault, output }
            }
        })
    }

    /// Signals to the attempt that its result is no longer wanted.
    pub(super) fn cancel_attempt(&self) {
        if let DriverActivity::Attempt { number, .. } = self.activity {
            self.slot.unwanted.cancel(number);
        }
    }

    pub(super) async fn cut(&mut self, cut: CutReason) -> CallEvent {
        let DriverActivity::Attempt { started, .. } = &self.activity else {
            return CallEvent::Woke(WakeReason::Time);
        };
        let after = self.calls.clock.now().since(*started);
        let reason = match cut {
            CutReason::Silent(_) | CutReason::TooLong => "the tool did not answer in time",
            CutReason::Deadline => "the deadline of the call has passed",
            CutReason::Cancelled => "the call was cancelled",
        };
        self.end_attempt(AttemptFault::new(FaultSource::Timeout { after }, reason)).await
    }

    /// Ends the attempt because the engine stops. Its outcome stays unknown.
    pub(super) async fn lost(&mut self) -> CallEvent {
        let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written: true };
        self.end_attempt(AttemptFault::new(source, "the engine was shut down while the tool was at work"))
            .await
    }

    /// Ends the attempt. It is signalled first, and a result that it returns within the grace period still counts.
    async fn end_attempt(&mut self, silent: AttemptFault) -> CallEvent {
        self.cancel_attempt();
        let DriverActivity::Attempt { running, .. } = &mut self.activity else {
            return CallEvent::Woke(WakeReason::Time);
        };
        let answer = tokio::select! {
            biased;
            answer = running => answer,
            () = tokio::time::sleep(LAST_WORDS) => Err(silent.into()),
        };
        self.ran(answer).await
    }
}

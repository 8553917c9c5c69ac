//! Reports of a call to guard and trust. [`CallAccounting`](super::accounting::CallAccounting) makes sure that each call
//! counts once.

use super::accounting::AccountingState;
use super::context::StepContext;
use super::notice::{CallNotice, ShadowDecision};
use super::recorded_attempt::RecordedAttempt;
use super::state::{AnswerSource, Call};
use super::step::{CallResult, Provenance};
use crate::classify::{ModelMistake, Severity};
use crate::code::Code;
use crate::guard::{self, GuardedCall};
use crate::id::Digest;
use crate::output::ToolOutput;
use crate::policy::{DangerousCommandPolicy, EnforcementMode};
use crate::trust::{FinishedOutcome, TrustRules, TrustSubject};

impl Call {
    /// Reports to the guard that the call is in flight.
    pub(super) fn enter(&mut self, cx: &mut StepContext<'_, '_>) {
        if self.policy.modes.guard != EnforcementMode::Off && self.accounting.enter() {
            cx.shared.guard.begin(&self.policy.guard, self.guarded(), cx.now);
        }
    }

    /// Reports the response to the guard, once per call.
    pub(super) fn count_response(&mut self, result: CallResult, cx: &mut StepContext<'_, '_>) -> CallResult {
        self.count_in_guard(result, None, cx)
    }

    /// Reports a call that ran to trust and guard, once.
    pub(super) fn count_run(
        &mut self,
        result: CallResult,
        severity: Option<Severity>,
        mistake: Option<ModelMistake>,
        cx: &mut StepContext<'_, '_>,
    ) -> CallResult {
        if self.accounting.is_counted() {
            return result;
        }
        if !self.policy.modes.are_off() {
            let severity = severity.or(result.outcome.is_err().then_some(Severity::Informational));
            self.accounting.record_run(severity, mistake);
        }
        if self.policy.modes.trust != EnforcementMode::Off {
            let finished = match (&result.outcome, severity) {
                (_, Some(severity)) => FinishedOutcome::Failure { severity, recoverable: true },
                (Ok(_), None) => FinishedOutcome::Success,
                (Err(_), None) => {
                    FinishedOutcome::Failure { severity: Severity::Informational, recoverable: true }
                }
            };
            let changes = cx.shared.trust.record_with_start(
                self.trust_rules(),
                self.subject(),
                finished,
                self.arrived,
                cx.now,
            );
            cx.notices.extend(changes.into_iter().map(CallNotice::TrustChanged));
            self.record_danger(cx);
        }
        self.count_in_guard(result, mistake, cx)
    }

    /// Lowers the trust in a tool that ran a dangerous command, whatever the outcome was.
    fn record_danger(&self, cx: &mut StepContext<'_, '_>) {
        if self.request.danger.is_some() && self.policy.approval.dangerous == DangerousCommandPolicy::Record {
            let finished = FinishedOutcome::Failure { severity: Severity::Security, recoverable: true };
            let changes = cx.shared.trust.record_with_start(
                self.trust_rules(),
                self.subject(),
                finished,
                self.arrived,
                cx.now,
            );
            cx.notices.extend(changes.into_iter().map(CallNotice::TrustChanged));
        }
    }

    /// Ends the counting of a call that its caller cancelled: it says nothing about the tool.
    pub(super) fn abandon(&mut self, cx: &mut StepContext<'_, '_>) {
        match self.accounting.close() {
            AccountingState::Counted => return,
            AccountingState::InFlight => {
                cx.shared.guard.abandon(&self.policy.guard, self.guarded(), cx.now);
            }
            AccountingState::Open => {}
        }
        if self.attempts > 0 && self.policy.modes.trust != EnforcementMode::Off {
            self.record_danger(cx);
        }
    }

    /// Ends the counting of a call whose tool has not started. Neither guard nor trust has anything to count, a
    /// dangerous command included: that is still to come.
    pub(super) fn put_off(&mut self, cx: &mut StepContext<'_, '_>) {
        if self.accounting.close() == AccountingState::InFlight {
            cx.shared.guard.abandon(&self.policy.guard, self.guarded(), cx.now);
        }
    }

    /// Reports the response to the guard, unless the call was counted.
    fn count_in_guard(
        &mut self,
        mut result: CallResult,
        mistake: Option<ModelMistake>,
        cx: &mut StepContext<'_, '_>,
    ) -> CallResult {
        let before = self.accounting.close();
        if before == AccountingState::Counted || self.policy.modes.guard == EnforcementMode::Off {
            return result;
        }
        // A call that was refused on arrival and found nothing was never reported as in flight.
        if before == AccountingState::Open {
            cx.shared.guard.begin(&self.policy.guard, self.guarded(), cx.now);
        }
        let was_delivered = self.request.in_turn
            && matches!(result.provenance, Provenance::Replayed { .. })
            && !result.was_followed();
        // The model cannot learn from a response that it never gets: only delivered responses count.
        if !self.caller.is_waiting() || was_delivered {
            cx.shared.guard.abandon(&self.policy.guard, self.guarded(), cx.now);
            return result;
        }
        let ending = match &result.outcome {
            Ok(output) => guard::GuardedResult::Success { result: self.result_digest(output) },
            // These codes say nothing about the tool or the model. Neither does an unknown outcome: a caller that
            // follows its instructions calls again.
            Err(failure)
                if matches!(failure.code, Code::InFlight | Code::Cancelled)
                    || (result.unknown.is_some() && self.dedupe() == EnforcementMode::Enforce) =>
            {
                cx.shared.guard.abandon(&self.policy.guard, self.guarded(), cx.now);
                return result;
            }
            // Refusals by Steadfast differ only in their numbers, so the code identifies them.
            Err(failure) if self.attempts == 0 && failure.code.is_refusal() => {
                guard::GuardedResult::Failure { message: failure.code.as_str(), mistake }
            }
            Err(failure) => guard::GuardedResult::Failure { message: &failure.message, mistake },
        };
        let remarks = cx.shared.guard.end(&self.policy.guard, self.guarded(), ending, cx.now);
        // A refusal that says when to call again, or that approval is needed, must not come with "do not retry": one
        // response, one instruction. If the model calls earlier, the guard refuses the call.
        let has_next_step = result.outcome.as_ref().is_err_and(|failure| {
            let needs_approval =
                matches!(failure.code, Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked);
            failure.retry_after.is_some() || needs_approval
        }) && self.answered_by == AnswerSource::Steadfast;
        if self.policy.modes.guard == EnforcementMode::Enforce && has_next_step && result.is_refused() {
            cx.notices.extend(remarks.iter().map(|remark| CallNotice::GuardTripped { layer: remark.layer }));
        } else if self.policy.modes.guard == EnforcementMode::Enforce {
            cx.notices.extend(remarks.iter().map(|remark| CallNotice::GuardTripped { layer: remark.layer }));
            result.remarks = remarks;
        } else if let Some(remark) = remarks.first() {
            // In shadow mode the guard does not act: the response is sent unchanged.
            self.shadow_report.send(ShadowDecision::Remarked(remark.layer), cx.notices);
        }
        result
    }

    /// Returns the digest of a result, if the guard needs it. For a run it is computed when the run ends.
    pub(super) fn result_digest(&self, output: &ToolOutput) -> Option<Digest> {
        match self.outcomes.last() {
            Some(RecordedAttempt::Answered { result, .. }) => *result,
            Some(RecordedAttempt::InputRequired | RecordedAttempt::Failed(_)) | None => {
                (self.policy.modes.guard != EnforcementMode::Off)
                    .then(|| guard::result_digest(&self.policy.guard, output))
                    .flatten()
            }
        }
    }

    /// Returns the call as the guard identifies it.
    pub(super) fn guarded(&self) -> GuardedCall<'_> {
        GuardedCall { tool: &self.request.tool, arguments: self.request.digest, turn: self.turn.as_ref() }
    }

    /// Returns the call as trust identifies it.
    pub(super) fn subject(&self) -> TrustSubject<'_> {
        TrustSubject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        }
    }

    /// Returns the rules of trust for the tool and its domain.
    pub(super) fn trust_rules(&self) -> TrustRules<'_> {
        TrustRules { signature: &self.policy.trust, domain: self.policy.domain_trust.as_ref() }
    }
}

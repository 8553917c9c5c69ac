//! Refusals without a wait: the checks on arrival, in their order. Shadow mode only reports them.

use super::context::StepContext;
use super::grant::ApprovalNeed;
use super::messages;
use super::notice::{CallNotice, ShadowDecision};
use super::refusal::{CallRefusal, RefusalOrigin};
use super::state::Call;
use crate::Timestamp;
use crate::breaker;
use crate::policy::{ArgumentCheck, EnforcementMode};

impl Call {
    /// Returns the first refusal that applies before a run.
    pub(super) fn refusal(&mut self, cx: &mut StepContext<'_, '_>) -> Option<Box<CallRefusal>> {
        let rest = self.policy.modes.strongest();
        if rest == EnforcementMode::Off {
            return None;
        }
        let late = self.is_late(cx.now).then(|| CallRefusal::by_steadfast(messages::deadline_passed()));
        if let Some(refusal) = self.enforce_or_withhold(rest, late) {
            return Some(Box::new(refusal));
        }
        let invalid = match (self.policy.arguments, &self.request.invalid_arguments) {
            (ArgumentCheck::Enforce, Some(problem)) => {
                Some(CallRefusal::by_steadfast(messages::invalid_arguments(problem)))
            }
            // Without its idempotency key the call might run twice.
            (_, Some(problem)) if self.policy.dedupe.key.is_some() => {
                Some(CallRefusal::by_steadfast(messages::invalid_arguments(problem)))
            }
            (ArgumentCheck::Enforce | ArgumentCheck::Assist | ArgumentCheck::Off, _) => None,
        };
        if let Some(refusal) = self.enforce_or_withhold(rest, invalid) {
            return Some(Box::new(refusal));
        }
        let guard = cx.shared.guard.would_refuse(&self.policy.guard, self.guarded(), cx.now).map(|refused| {
            CallRefusal {
                failure: messages::guard(&refused),
                breaker: None,
                by: RefusalOrigin::Guard(refused.layer),
            }
        });
        if let Some(refusal) = self.enforce_or_withhold(self.policy.modes.guard, guard) {
            return Some(Box::new(refusal));
        }
        let breakers = [Some(&*cx.shared.breaker), cx.shared.dependency.as_deref()];
        let refused = breakers
            .into_iter()
            .flatten()
            .find_map(|breaker| breaker.check(&self.policy.breaker, cx.now).err());
        let breaker = refused.map(|refused| self.circuit_open(refused, cx.now));
        if let Some(refusal) = self.enforce_or_withhold(self.policy.modes.breaker, breaker) {
            return Some(Box::new(refusal));
        }
        let trust = match self.need(cx) {
            ApprovalNeed::Refuse(refusal) => Some(*refusal),
            ApprovalNeed::NotNeeded | ApprovalNeed::Spend(_) | ApprovalNeed::Ask(_) => None,
        };
        self.enforce_or_withhold(self.policy.modes.trust, trust).map(Box::new)
    }

    /// Applies a mode to a refusal: enforces it, [reports it](Self::report_withheld) once it is known that there would
    /// have been a run, or drops it.
    fn enforce_or_withhold(
        &mut self,
        mode: EnforcementMode,
        refusal: Option<CallRefusal>,
    ) -> Option<CallRefusal> {
        let refusal = refusal?;
        match mode {
            EnforcementMode::Enforce => Some(refusal),
            EnforcementMode::Shadow => {
                self.arrival_check.withhold(refusal.failure.code);
                None
            }
            EnforcementMode::Off => None,
        }
    }

    /// Reports the withheld refusal. Only the tool would have answered, so the refusal would have taken effect.
    pub(super) fn report_withheld(&mut self, notices: &mut Vec<CallNotice>) {
        if let Some(code) = self.arrival_check.take_withheld() {
            self.shadow_report.send(ShadowDecision::Refused(code), notices);
        }
    }

    /// Applies a mode to a refusal of a run that is about to start: enforces it, reports it, or drops it.
    pub(super) fn enforce_or_report(
        &mut self,
        mode: EnforcementMode,
        refusal: CallRefusal,
        notices: &mut Vec<CallNotice>,
    ) -> Option<CallRefusal> {
        match mode {
            EnforcementMode::Enforce => Some(refusal),
            EnforcementMode::Shadow => {
                self.shadow_report.send(ShadowDecision::Refused(refusal.failure.code), notices);
                None
            }
            EnforcementMode::Off => None,
        }
    }

    /// Returns the refusal of an open breaker.
    pub(super) fn circuit_open(&self, refused: breaker::BreakerRefusal, now: Timestamp) -> CallRefusal {
        CallRefusal {
            failure: messages::circuit_open(&self.request, refused, now),
            breaker: Some(refused.state),
            by: RefusalOrigin::Steadfast,
        }
    }
}

//! The failure that the caller gets after the last attempt.

use std::borrow::Cow;

use super::failure_response::FailureResponse;
use super::messages;
use super::state::Call;
use super::step::CutReason;
use crate::Timestamp;
use crate::classify::{AttemptReach, Classification, FaultNature};
use crate::code::Code;
use crate::dedupe::CallFailure;
use crate::policy::SilencePolicy;
use crate::retry::RetryStop;

/// The reason why there is no further attempt.
#[derive(Clone, Copy)]
pub(super) enum StopReason {
    /// Retries are off.
    NotAsked,
    /// The schedule or the retry budget allows none.
    Schedule(RetryStop),
    /// The breaker opened in the meantime.
    Breaker(crate::breaker::BreakerRefusal),
}

impl Call {
    /// Returns the failure for the caller.
    pub(super) fn final_failure(
        &self,
        response: FailureResponse,
        classified: &Classification,
        stop: Option<StopReason>,
        cut: Option<CutReason>,
        now: Timestamp,
    ) -> CallFailure {
        let transient = classified.nature == FaultNature::Transient;
        let words = response.words();
        let FailureResponse { message, output, observed, .. } = response;
        // If no mechanism is enforced, the tool's own message is passed on unchanged.
        if self.may_have_run(classified) && !self.policy.modes.is_pass_through() {
            let (reads, policy) = (&self.request.reads, &self.policy);
            let failure = messages::outcome_unknown_unrecorded(reads, policy, observed, words.as_deref());
            return CallFailure { output, ..failure.with_rule(classified.rule.clone()) };
        }
        let stuck = matches!(cut, Some(CutReason::Silent(_) | CutReason::TooLong))
            && self.policy.time.silence == SilencePolicy::Stuck;
        let (code, rule) = match stop {
            // A result that is too large is an answer, and counts as one after a cut too.
            None if classified.code == Code::ResultTooLarge => (classified.code, classified.rule.clone()),
            None | Some(_) if cut == Some(CutReason::Deadline) => {
                (Code::DeadlineExceeded, Cow::Borrowed("deadline"))
            }
            None | Some(StopReason::NotAsked) if stuck => (Code::StuckCall, classified.rule.clone()),
            None | Some(StopReason::NotAsked) => (classified.code, classified.rule.clone()),
            Some(StopReason::Breaker(refused)) => (Code::CircuitOpen, Cow::Borrowed(refused.by.rule())),
            Some(StopReason::Schedule(
                RetryStop::Attempts | RetryStop::TotalTime | RetryStop::RetryAfter(_),
            )) if stuck => (Code::StuckCall, classified.rule.clone()),
            Some(StopReason::Schedule(stop)) => self.final_code(stop, classified),
        };
        let retry_after = match stop {
            Some(StopReason::Schedule(RetryStop::RetryAfter(wait))) => Some(wait),
            Some(StopReason::Breaker(refused)) => refused.retry_at.map(|at| at.since(now)),
            Some(StopReason::NotAsked | StopReason::Schedule(_)) | None => classified.retry_after,
        };
        CallFailure {
            code,
            message: match (code, cut) {
                (Code::StuckCall, Some(cut)) => messages::stuck(cut, message),
                (Code::ResultTooLarge, _) => messages::result_too_large(message),
                (_, _) => messages::failed(code, self.attempts, message),
            },
            retriable: transient,
            terminal: !transient,
            rule: Some(rule),
            verify: self.policy.verify_hint().filter(|_| code == Code::ResultTooLarge),
            retry_after,
            output,
        }
    }

    /// Returns true if the call may have taken effect and must not be tried again because of that.
    pub(super) fn may_have_run(&self, classified: &Classification) -> bool {
        classified.reach == AttemptReach::Unknown && !self.retry_safe
    }

    /// Returns the code and the rule of a failure after the last attempt.
    pub(super) fn final_code(
        &self,
        stop: RetryStop,
        classified: &Classification,
    ) -> (Code, Cow<'static, str>) {
        match stop {
            RetryStop::Deadline => (Code::DeadlineExceeded, Cow::Borrowed("deadline")),
            RetryStop::Budget => (Code::RetryExhausted, Cow::Borrowed("retry_budget")),
            // A caller that allowed one attempt only gets the failure itself, without a note about retries.
            RetryStop::Attempts if self.attempts == 1 => (classified.code, classified.rule.clone()),
            RetryStop::Attempts | RetryStop::TotalTime | RetryStop::RetryAfter(_) => {
                (Code::RetryExhausted, classified.rule.clone())
            }
        }
    }
}

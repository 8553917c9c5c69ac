//! Texts for facts about calls. One `match` returns the text of each notice.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use steadfast_core::breaker::{BreakerTransition, State, TransitionReason};
use steadfast_core::call::{BreakerScope, CallNotice, CutReason, ShadowDecision};
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::dedupe::{ReplayReason, Resolution, UnknownOutcomeReason};
use steadfast_core::guard::GuardLayer;
use steadfast_core::retry::RetryStop;
use steadfast_core::trust::TrustState;
use steadfast_core::{Timestamp, millis};

/// One step of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallStep {
    /// Time of the step.
    pub at_ms: Timestamp,
    /// Name of the step, for programs.
    pub kind: &'static str,
    /// Description of the step, for readers.
    pub text: String,
    /// The rule that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Meaning of the step for the call.
    pub tone: StepTone,
}

/// Meaning of a step for its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StepTone {
    /// Neutral.
    Plain,
    /// A success: a result, or a duplicate that did not run.
    Good,
    /// A wait, for time or for an approval.
    Waiting,
    /// A failure or a refusal.
    Bad,
}

impl CallStep {
    /// Returns the step for a notice, or `None` if it is not shown.
    pub fn of(at: Timestamp, notice: &CallNotice) -> Option<Self> {
        of(at, notice)
    }
}

/// Returns the step for a notice, or `None` if it is not shown.
pub(super) fn of(at: Timestamp, notice: &CallNotice) -> Option<CallStep> {
    let (kind, tone, text, rule) = words(at, notice)?;
    let clean = |text: &str| steadfast_redact::excerpt(text, LONGEST);
    Some(CallStep { at_ms: at, kind, text: clean(&text), rule: rule.map(clean), tone })
}

/// Maximum bytes of one text.
const LONGEST: usize = 512;
/// Maximum bytes of the message of a failed attempt in it.
const LONGEST_WORDS: usize = 256;

type StepParts<'n> = (&'static str, StepTone, String, Option<&'n str>);

fn words(at: Timestamp, notice: &CallNotice) -> Option<StepParts<'_>> {
    use StepTone::{Bad, Good, Plain, Waiting};
    let plain = |kind, tone, text: &str| Some((kind, tone, text.to_owned(), None));
    match notice {
        CallNotice::CallStarted { .. } => plain("started", Plain, "the call arrived"),
        CallNotice::CallBlocked { code, .. } => {
            Some(("blocked", Bad, format!("refused without a run: {}", code.as_str()), Some(code.as_str())))
        }
        CallNotice::Following => {
            plain("following", Waiting, "the same call is in flight: waits for its result")
        }
        CallNotice::Replayed { reason } => {
            let (text, rule) = match reason {
                ReplayReason::SameKey => {
                    ("same idempotency key: the stored result is replayed", "dedupe.same_key")
                }
                ReplayReason::Undelivered => {
                    ("the response to the same call never arrived: it is replayed", "dedupe.undelivered")
                }
                ReplayReason::DoubleDispatch => (
                    "the same call, sent again before its response: one run, one result",
                    "dedupe.double_dispatch",
                ),
                ReplayReason::Waited => ("the result of the call that it waited for", "dedupe.waited"),
            };
            Some(("replayed", Good, text.to_owned(), Some(rule)))
        }
        CallNotice::TookOver => plain("took_over", Plain, "took over from a process that is gone"),
        CallNotice::KeyConflict => plain("key_conflict", Bad, "the key was used for a different call"),
        CallNotice::ApprovalRequested => plain("approval_asked", Waiting, "waits for approval"),
        CallNotice::ApprovalEnded { granted: true } => plain("approval_ended", Good, "approved"),
        CallNotice::ApprovalEnded { granted: false } => {
            plain("approval_ended", Bad, "not approved: denied, cancelled or expired")
        }
        CallNotice::AttemptStarted { attempt, .. } => {
            Some(("attempt_started", Plain, format!("attempt {attempt} starts"), None))
        }
        CallNotice::AttemptEnded { attempt, took, failure: None } => {
            Some(("attempt_ended", Good, format!("attempt {attempt} answered after {}", span(*took)), None))
        }
        CallNotice::AttemptEnded { attempt, took, failure: Some(failed) } => {
            let observation = match failed.reach {
                AttemptReach::NotSent => "the request was never sent",
                AttemptReach::Refused => "the request was refused",
                AttemptReach::Unknown | AttemptReach::Answered => failed.observed.describe(),
            };
            // Without a response, the message is not that of the tool.
            let message =
                if observation == UnknownOutcomeReason::NoAnswer.describe() { "" } else { &failed.message };
            let words = steadfast_redact::excerpt(message, LONGEST_WORDS);
            let words = if words.is_empty() { words } else { format!(" ({words})") };
            let nature = match failed.nature {
                FaultNature::Transient => "a retry may help",
                FaultNature::Permanent => "a retry would not help",
            };
            let text =
                format!("attempt {attempt} failed after {}: {observation}{words}; {nature}", span(*took));
            Some(("attempt_ended", Bad, text, Some(&failed.rule)))
        }
        CallNotice::InputRequired => plain("input_required", Waiting, "the tool asks for input first"),
        CallNotice::RetryScheduled { attempt, at: next } => {
            let text = format!("attempt {attempt} follows in {}", span(next.since(at)));
            Some(("retry_scheduled", Waiting, text, None))
        }
        CallNotice::RetryStopped { stop } => {
            let (text, rule) = match stop {
                RetryStop::Attempts => {
                    ("no more retries: all attempts are used".to_owned(), "retry.attempts")
                }
                RetryStop::TotalTime => {
                    ("no more retries: the total time is used up".to_owned(), "retry.total_time")
                }
                RetryStop::Deadline => {
                    ("no more retries: the caller's deadline comes first".to_owned(), "retry.deadline")
                }
                RetryStop::RetryAfter(delay) => (
                    format!("no more retries: the server asks to wait {}", span(*delay)),
                    "retry.retry_after",
                ),
                RetryStop::Budget => (
                    "no more retries: the retry budget of this server is exhausted".to_owned(),
                    "retry.budget",
                ),
            };
            Some(("retry_stopped", Bad, text, Some(rule)))
        }
        CallNotice::AttemptCut { cut } => {
            let text = match cut {
                CutReason::Silent(silence) => {
                    format!("the attempt is ended: no progress for {}", span(*silence))
                }
                CutReason::TooLong => "the attempt is ended: the total time of the call is over".to_owned(),
                CutReason::Deadline => "the attempt is ended: the caller's deadline has passed".to_owned(),
                CutReason::Cancelled => "the attempt is ended: the caller cancelled the call".to_owned(),
            };
            Some(("attempt_cut", Bad, text, None))
        }
        CallNotice::AnsweredEarly { code } => {
            let text = format!("the caller gets a response while the attempt continues: {}", code.as_str());
            Some(("answered_early", Waiting, text, Some(code.as_str())))
        }
        CallNotice::OutcomeUnknown { .. } => plain("outcome_unknown", Bad, "the outcome is unknown"),
        CallNotice::Verified { resolution, words } => {
            let (tone, found) = match resolution {
                Some(Resolution::Ran) => (Good, "it took effect"),
                Some(Resolution::DidNotRun) => (Good, "it did not take effect"),
                None => (Bad, "it is still unknown whether it took effect"),
            };
            Some(("verified", tone, format!("{found}: {words}"), None))
        }
        CallNotice::BreakerChanged { scope, transition } => {
            let (text, tone) = breaker(*scope, transition);
            Some(("breaker_changed", tone, text, Some(reason(transition.reason))))
        }
        CallNotice::ProbeMoved { .. } | CallNotice::CallFinished { .. } => None,
        CallNotice::TrustChanged(change) => {
            let tone = if change.to > change.from { Bad } else { Good };
            let word = |state: TrustState| state.to_string().to_lowercase();
            let text =
                format!("trust in {}: {} instead of {}", change.subject, word(change.to), word(change.from));
            Some(("trust_changed", tone, text, Some(&change.reason)))
        }
        CallNotice::GuardTripped { layer } => {
            let text = match layer {
                GuardLayer::NonRetryable => "the model is told that a retry will not help",
                GuardLayer::Loop => "the model repeats a call that fails the same way",
                GuardLayer::TurnLimit => "too many failures in this turn",
                GuardLayer::PingPong => "the model alternates between two calls that fail",
                GuardLayer::RepeatedSuccess => "the model repeats a call that succeeded",
            };
            Some(("guard_tripped", Bad, text.to_owned(), Some(layer.as_str())))
        }
        CallNotice::FenceLost => {
            plain("fence_lost", Bad, "another process owns the record now; the result was not recorded")
        }
        CallNotice::StoreFailed { continues: true } => {
            plain("store_failed", Bad, "the store failed; the call continues without it")
        }
        CallNotice::StoreFailed { continues: false } => {
            plain("store_failed", Bad, "the store failed, and without it the call is not safe")
        }
        CallNotice::Shadowed(shadowed) => {
            let text = match shadowed {
                ShadowDecision::Duplicate => "shadow mode: a result would have been replayed".to_owned(),
                ShadowDecision::Refused(code) => {
                    format!("shadow mode: it would have been refused as {}", code.as_str())
                }
                ShadowDecision::ApprovalRequested => {
                    "shadow mode: it would have waited for approval".to_owned()
                }
                ShadowDecision::Retried => "shadow mode: it would have been retried".to_owned(),
                ShadowDecision::Cut => "shadow mode: the attempt would have been ended".to_owned(),
                ShadowDecision::Failed(code) => {
                    format!("shadow mode: its failure would have been reported as {}", code.as_str())
                }
                ShadowDecision::GuardRemark(layer) => {
                    format!("shadow mode: the loop guard would have acted ({})", layer.as_str())
                }
            };
            Some(("would_have", Waiting, text, None))
        }
    }
}

fn breaker(scope: BreakerScope, transition: &BreakerTransition) -> (String, StepTone) {
    let subject = match scope {
        BreakerScope::Tool => "the breaker of the tool",
        BreakerScope::Dependency => "the breaker of what it depends on",
    };
    let (change, tone) = match transition.to {
        State::Closed => ("closes: calls pass again", StepTone::Good),
        State::Open => ("opens: calls are refused", StepTone::Bad),
        State::HalfOpen => ("is half-open: one call passes as a probe", StepTone::Waiting),
        State::ForcedOpen => ("is forced open", StepTone::Bad),
    };
    (format!("{subject} {change}"), tone)
}

const fn reason(reason: TransitionReason) -> &'static str {
    match reason {
        TransitionReason::Consecutive => "breaker.consecutive",
        TransitionReason::Rate => "breaker.rate",
        TransitionReason::Slow => "breaker.slow",
        TransitionReason::CooledDown => "breaker.cooled_down",
        TransitionReason::ProbeFailed => "breaker.probe_failed",
        TransitionReason::ProbesSucceeded => "breaker.probes_succeeded",
        TransitionReason::ProbesAnswered => "breaker.probes_answered",
        TransitionReason::Forced => "breaker.forced",
        TransitionReason::Reset => "breaker.reset",
    }
}

/// Returns a duration as text.
fn span(span: Duration) -> String {
    let ms = millis(span);
    let mut text = String::new();
    let written = match ms {
        0..1000 => write!(text, "{ms} ms"),
        1000..60_000 => write!(text, "{:.1} s", span.as_secs_f64()),
        _ => write!(text, "{} min", ms / 60_000),
    };
    debug_assert!(written.is_ok(), "a text takes every word");
    text
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use steadfast_core::call::FailedAttempt;
    use steadfast_core::classify::Severity;
    use steadfast_core::trust::{TrustChange, TrustScope};

    use super::*;

    const AT: Timestamp = Timestamp::from_millis(5);

    #[test]
    fn each_step_has_a_tone() {
        let change = |from, to| CallNotice::BreakerChanged {
            scope: BreakerScope::Tool,
            transition: BreakerTransition { from, to, reason: TransitionReason::CooledDown, at: AT },
        };
        let trust = |from, to| {
            CallNotice::TrustChanged(TrustChange {
                subject: "bank/sk-live-4f9a8b7c6d5e4f3a2b1c".into(),
                scope: TrustScope::Tool,
                tool: None,
                signature: None,
                domain: None,
                from,
                to,
                reason: "token=hunter2-and-more".to_owned(),
                failures: 3,
                until: None,
                successes_needed: 3,
                notify: true,
                at: AT,
            })
        };
        let failed = |reach| CallNotice::AttemptEnded {
            attempt: 1,
            took: Duration::from_millis(7),
            failure: Some(FailedAttempt {
                nature: FaultNature::Permanent,
                reach,
                severity: Severity::Transient,
                rule: Cow::Borrowed("x"),
                observed: UnknownOutcomeReason::ConnectionLost,
                message: "token=hunter2-and-more".into(),
            }),
        };
        let (trusted, escalated) = (TrustState::Trusted, TrustState::Escalated);
        for (notice, tone, text) in [
            (
                change(State::Closed, State::Open),
                StepTone::Bad,
                "the breaker of the tool opens: calls are refused",
            ),
            (
                change(State::HalfOpen, State::Closed),
                StepTone::Good,
                "the breaker of the tool closes: calls pass again",
            ),
            (
                change(State::Open, State::HalfOpen),
                StepTone::Waiting,
                "the breaker of the tool is half-open: one call passes as a probe",
            ),
            (
                trust(trusted, escalated),
                StepTone::Bad,
                "trust in bank/[redacted]: escalated instead of trusted",
            ),
            (
                trust(escalated, trusted),
                StepTone::Good,
                "trust in bank/[redacted]: trusted instead of escalated",
            ),
            (
                failed(AttemptReach::NotSent),
                StepTone::Bad,
                "attempt 1 failed after 7 ms: the request was never sent (token=[redacted]); a retry would not help",
            ),
            (
                failed(AttemptReach::Unknown),
                StepTone::Bad,
                "attempt 1 failed after 7 ms: the request was sent, and the connection was lost before a response arrived \
                 (token=[redacted]); a retry would not help",
            ),
            (
                CallNotice::RetryScheduled { attempt: 2, at: AT + Duration::from_secs(130) },
                StepTone::Waiting,
                "attempt 2 follows in 2 min",
            ),
            (CallNotice::ApprovalEnded { granted: true }, StepTone::Good, "approved"),
            (
                CallNotice::ApprovalEnded { granted: false },
                StepTone::Bad,
                "not approved: denied, cancelled or expired",
            ),
        ] {
            let step = of(AT, &notice).unwrap();
            assert_eq!((step.tone, step.text.as_str()), (tone, text));
            assert!(!format!("{step:?}").contains("hunter2"), "{step:?}");
        }
    }

    #[test]
    fn a_step_says_what_happened_and_which_rule_decided() {
        let failure = FailedAttempt {
            nature: FaultNature::Transient,
            reach: AttemptReach::Refused,
            severity: Severity::Transient,
            rule: Cow::Borrowed("http.503"),
            observed: UnknownOutcomeReason::ErrorAnswer,
            message: "the server answered with the status 503".into(),
        };
        let notice = CallNotice::AttemptEnded {
            attempt: 2,
            took: Duration::from_millis(1500),
            failure: Some(failure),
        };
        let step = of(Timestamp::from_millis(5), &notice).unwrap();
        assert_eq!(
            step.text,
            "attempt 2 failed after 1.5 s: the request was refused (the server answered with the status 503); a retry may help"
        );
        assert_eq!((step.rule.as_deref(), step.tone), (Some("http.503"), StepTone::Bad));
    }
}

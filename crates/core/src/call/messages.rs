//! Messages for the model or the operator when the tool has no result: what happened, and what to do next.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::request::CallRequest;
use super::step::{ApprovalRequest, CutReason};
use crate::Timestamp;
use crate::breaker::{self, BreakerRefusalCause};
use crate::code::Code;
use crate::dedupe::{CallFailure, ReplayReason, SettleStatus, UnknownOutcomeReason};
use crate::guard;
use crate::id::ToolRef;
use crate::limit::LimitError;
use crate::output::ToolOutput;
use crate::policy::{CallPolicy, SilencePolicy};

/// Maximum length of a tool's message that is passed on.
const LONGEST_MESSAGE: usize = 8 << 10;

fn failure(code: Code, message: impl Into<Cow<'static, str>>, retriable: bool) -> CallFailure {
    CallFailure {
        code,
        message: message.into(),
        retriable,
        terminal: !retriable,
        rule: None,
        verify: None,
        retry_after: None,
        output: None,
    }
}

impl CallFailure {
    pub(super) fn with_rule(self, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { rule: Some(rule.into()), ..self }
    }
}

pub(super) fn deadline_passed() -> CallFailure {
    failure(Code::DeadlineExceeded, "the deadline of this call has passed; nothing was run for it", false)
        .with_rule("deadline")
}

pub(super) fn invalid_arguments(problem: &str) -> CallFailure {
    failure(
        Code::InvalidArguments,
        format!("the arguments do not fit the tool and were not sent: {problem}. Correct them before calling again"),
        false,
    )
    .with_rule("schema")
}

/// Returns the failure for a call that the host refused, with the message of the host.
pub(super) fn answered(code: Code, message: String, rule: &'static str) -> CallFailure {
    failure(code, shorten_message(message), false).with_rule(rule)
}

pub(super) fn guard(refusal: &guard::GuardRefusal) -> CallFailure {
    failure(refusal.code, refusal.text.clone(), false).with_rule(refusal.layer.as_str())
}

pub(super) fn circuit_open(
    request: &CallRequest,
    refused: breaker::BreakerRefusal,
    now: Timestamp,
) -> CallFailure {
    let retry_after = refused.retry_at.map(|at| at.since(now));
    let tool = &request.tool;
    let reason = match refused.by {
        BreakerRefusalCause::Failures => {
            format!("{tool} keeps failing, so its circuit breaker is open and this call was not sent")
        }
        BreakerRefusalCause::Operator => {
            format!("an operator opened the circuit breaker of {tool}, and this call was not sent")
        }
        BreakerRefusalCause::Configuration => {
            format!("the configuration keeps the circuit breaker of {tool} open, and this call was not sent")
        }
    };
    let next = match (retry_after, refused.by) {
        (Some(wait), _) => {
            format!("call again in {} s, or use another approach until then", wait.as_millis().div_ceil(1000))
        }
        (None, BreakerRefusalCause::Failures | BreakerRefusalCause::Operator) => {
            "it stays open until an operator resets it; use another approach".to_owned()
        }
        (None, BreakerRefusalCause::Configuration) => {
            "it stays open until an operator changes the configuration; use another approach".to_owned()
        }
    };
    let message = format!("{reason}: {next}");
    CallFailure { retry_after, ..failure(Code::CircuitOpen, message, true).with_rule(refused.by.rule()) }
}

pub(super) fn overloaded(request: &CallRequest, overloaded: LimitError, now: Timestamp) -> CallFailure {
    let (reason, rule) = match overloaded {
        LimitError::Concurrency => ("its concurrency limit has been reached", "limit.concurrency"),
        LimitError::Rate(_) => ("its rate limit has been reached", "limit.rate"),
    };
    too_much(request, overloaded, reason, rule, now)
}

pub(super) fn dependency_overloaded(
    request: &CallRequest,
    overloaded: LimitError,
    now: Timestamp,
) -> CallFailure {
    let (reason, rule) = match overloaded {
        LimitError::Concurrency => {
            ("the concurrency limit of its dependency has been reached", "limit.dependency_concurrency")
        }
        LimitError::Rate(_) => ("the rate limit of its dependency has been reached", "limit.dependency_rate"),
    };
    too_much(request, overloaded, reason, rule, now)
}

fn too_much(
    request: &CallRequest,
    overloaded: LimitError,
    reason: &str,
    rule: &'static str,
    now: Timestamp,
) -> CallFailure {
    let retry_after = match overloaded {
        LimitError::Concurrency => None,
        LimitError::Rate(at) => Some(at.since(now)),
    };
    let message = format!("{} was not called: {reason}. Wait a moment, then call again", request.tool);
    CallFailure { retry_after, ..failure(Code::Overloaded, message, true).with_rule(rule) }
}

pub(super) fn store_full() -> CallFailure {
    failure(
        Code::Overloaded,
        "the call was not run: the limit of open call records has been reached. Wait until some calls have ended, then call again",
        true,
    )
    .with_rule("store.full")
}

pub(super) fn store_unavailable(request: &CallRequest) -> CallFailure {
    let message = format!(
        "{} was not called: the store that prevents duplicate runs is unavailable. Call again later",
        request.tool
    );
    failure(Code::StoreUnavailable, message, true).with_rule("store")
}

pub(super) fn records_lost(request: &CallRequest) -> CallFailure {
    let message = format!(
        "{} was not called: records of earlier calls are lost or may be, so a call under this idempotency key may already have \
         run, and running it again may do the work twice. Check whether it took effect. An operator lets such calls run again \
         with \"steadfast state accept\"; \"steadfast status\" shows what was lost",
        request.tool
    );
    failure(Code::StoreUnavailable, message, true).with_rule("store.records_lost")
}

/// The process was frozen between its claim and the attempt, for longer than the lease.
pub(super) fn process_paused(request: &CallRequest) -> CallFailure {
    let message = format!(
        "{} was not called: this process was paused for too long before it could send the call. Nothing was sent. Call again",
        request.tool
    );
    failure(Code::Overloaded, message, true).with_rule("lease")
}

/// The time of the call was up before it could be sent.
pub(super) fn never_sent(request: &CallRequest, reason: &str) -> CallFailure {
    let reason = shorten_message(reason.to_owned());
    let message = format!("{} was not called: {reason}. Nothing was sent. Call again later", request.tool);
    failure(Code::UpstreamUnavailable, message, true).with_rule("not_sent")
}

pub(super) fn conflict() -> CallFailure {
    failure(
        Code::IdempotencyConflict,
        "this idempotency key was used before with other parameters; nothing was run. Use a new key for a new call",
        false,
    )
    .with_rule("key.conflict")
}

pub(super) fn in_flight() -> CallFailure {
    failure(
        Code::InFlight,
        "the call is still running. Make the same call again later to get its result",
        true,
    )
    .with_rule("in_flight")
}

pub(super) fn result_not_kept(policy: &CallPolicy) -> CallFailure {
    let message = "the call was made and succeeded before, but its result was not kept. Do not run it again to get the result; read it another way";
    CallFailure { verify: policy.verify_hint(), ..failure(Code::ResultNotKept, message, false) }
}

/// The tool has answered, and its result is larger than the limit.
pub(super) fn result_too_large(message: String) -> Cow<'static, str> {
    format!(
        "the tool has run and answered, but its result is too large: {}. Do not repeat the call to get it; ask for less, or read it \
         another way",
        shorten_message(message)
    )
    .into()
}

/// Facts for the message about an unknown outcome.
pub(super) struct UnknownOutcomeMessage {
    pub(super) end: SettleStatus,
    pub(super) observed: UnknownOutcomeReason,
    /// Message about the failure, if the tool itself returned nothing.
    pub(super) words: Option<Arc<str>>,
    pub(super) output: Option<ToolOutput>,
    /// Time after which the same call runs again, if the caller does not check before; `None` if it never does by
    /// itself.
    pub(super) runs_in: Option<Duration>,
}

/// Returns the failure for an unknown outcome: what was observed, and what to do next.
pub(super) fn outcome_unknown(
    reads: &[Box<str>],
    policy: &CallPolicy,
    unknown: UnknownOutcomeMessage,
) -> CallFailure {
    let UnknownOutcomeMessage { end, observed, words, output, runs_in } = unknown;
    let observation = describe_observation(observed, words.as_deref());
    let (next, retry_after) = match end {
        SettleStatus::NotYet(left) => {
            let left = left.unwrap_or(policy.settling.child_stop_time() + policy.settling.after_child());
            let next = format!(
                "It may still take effect, so checking now proves nothing. Repeat the call in {} to get its result or a final \
                 response",
                seconds(left)
            );
            (next, Some(left))
        }
        SettleStatus::Settled => {
            let check = check_first(reads, policy);
            let next = match runs_in {
                Some(wait) => format!(
                    "The call has ended: it took effect, or it never will. {check}. If the effect is missing, repeat the call and \
                     it runs. Without a check, it runs again after {}",
                    seconds(wait)
                ),
                None => format!(
                    "The call has ended: it took effect, or it never will. {check}. An operator must resolve it before the same \
                     call runs again"
                ),
            };
            (next, runs_in)
        }
    };
    let message = format!("the outcome of this call is unknown: {observation}. {next}");
    CallFailure {
        verify: policy.verify_hint(),
        retry_after,
        output,
        ..failure(Code::OutcomeUnknown, message, false)
    }
    .with_rule("unknown")
}

/// Returns the note for a result of another call that a call without a key gets.
pub(super) fn replayed(reason: ReplayReason) -> Option<&'static str> {
    match reason {
        ReplayReason::SameKey => None,
        ReplayReason::Undelivered => Some(
            "This is the result of an earlier call with the same arguments, which may not have been received. The tool was not \
             run again. Repeat the call to run it again",
        ),
        ReplayReason::DoubleDispatch | ReplayReason::Waited => {
            Some("An equal call was already in flight: the tool ran once for both")
        }
    }
}

/// Describes the observation about an attempt, with the message that came with it.
fn describe_observation(observed: UnknownOutcomeReason, words: Option<&str>) -> String {
    let observation = observed.describe();
    match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("{observation} ({words})"),
        None => observation.to_owned(),
    }
}

/// Returns the failure for an unknown outcome without a record. What the next call does is not known.
pub(super) fn outcome_unknown_unrecorded(
    reads: &[Box<str>],
    policy: &CallPolicy,
    observed: UnknownOutcomeReason,
    words: Option<&str>,
) -> CallFailure {
    let observation = describe_observation(observed, words);
    let check = check_first(reads, policy);
    let message =
        format!("the outcome of this call is unknown: {observation}. {check} before you repeat the call");
    CallFailure { verify: policy.verify_hint(), ..failure(Code::OutcomeUnknown, message, false) }
        .with_rule("unknown")
}

/// Returns the failure for an unknown outcome that a verification found to have taken effect.
pub(super) fn verified_as_run(tool: &ToolRef) -> CallFailure {
    let message = format!(
        "the call took effect: {tool} shows it. Only its result was lost. Do not run it again to get the result; read it another \
         way"
    );
    failure(Code::ResultNotKept, message, false).with_rule("verified")
}

/// Returns the failure for an unknown outcome that a verification found not to have taken effect.
pub(super) fn verified_as_not_run(tool: &ToolRef, observed: UnknownOutcomeReason) -> CallFailure {
    let observation = observed.describe();
    let message = format!(
        "the call did not take effect: {observation}, and {tool} shows no effect. Repeat the call to run it"
    );
    let code = match observed {
        UnknownOutcomeReason::NoAnswer => Code::Timeout,
        UnknownOutcomeReason::ErrorAnswer
        | UnknownOutcomeReason::ConnectionLost
        | UnknownOutcomeReason::ProcessDied => Code::UpstreamUnavailable,
    };
    failure(code, message, true).with_rule("verified")
}

/// Returns the advice how a caller checks whether a call took effect.
fn check_first(reads: &[Box<str>], policy: &CallPolicy) -> String {
    const MOST: usize = 4;
    match (policy.verify_hint(), reads) {
        (Some(verify), _) => format!("Check first: {verify}"),
        (None, []) => "Check first whether it took effect".to_owned(),
        (None, [one]) => format!("Check first, for example with {one}"),
        (None, reads) => {
            let names: Vec<&str> = reads.iter().take(MOST).map(|name| &**name).collect();
            format!("Check first, for example with {}", names.join(" or "))
        }
    }
}

/// Formats a duration for a message. It is rounded up, so that a caller that waits for it is not too early.
fn seconds(span: Duration) -> String {
    format!("{} s", span.as_millis().div_ceil(1000))
}

/// Returns the failure for an attempt that Steadfast's own clock cut, with an unknown outcome.
pub(super) fn cut_unknown(unknown: CallFailure, policy: &CallPolicy, cut: CutReason) -> CallFailure {
    match (cut, policy.time.silence) {
        (CutReason::Silent(_) | CutReason::TooLong, SilencePolicy::Stuck) => CallFailure {
            code: Code::StuckCall,
            message: format!("{} and was cancelled; {}", too_long(cut), unknown.message).into(),
            ..unknown
        }
        .with_rule("watchdog"),
        (CutReason::Silent(_) | CutReason::TooLong, SilencePolicy::Timeout) => unknown.with_rule("timeout"),
        (CutReason::Deadline, _) => unknown.with_rule("deadline"),
        (CutReason::Cancelled, _) => unknown.with_rule("cancelled"),
    }
}

/// Returns the failure for a caller whose time is up while the call continues.
pub(super) fn deadline_while_running(policy: &CallPolicy) -> CallFailure {
    let message = "the deadline of this call passed while it was running, so its outcome is unknown. The call continues: repeat it \
                   later to get its result";
    CallFailure { verify: policy.verify_hint(), ..failure(Code::OutcomeUnknown, message, false) }
        .with_rule("deadline")
}

pub(super) fn cancelled() -> CallFailure {
    failure(Code::Cancelled, "the call was cancelled", false)
}

pub(super) fn approval(request: &CallRequest, ask: &ApprovalRequest) -> CallFailure {
    let reason = &ask.escalation.reason;
    if ask.operator_only {
        let message = format!(
            "{} is blocked ({reason}) and was not called. An operator can approve this call or reset the tool; use another approach until then",
            request.tool
        );
        return failure(Code::ToolBlocked, message, false).with_rule("trust.blocked");
    }
    let message = format!(
        "{} needs approval ({reason}) and was not called. The request waits for an operator; call again when it is approved, or use another approach",
        request.tool
    );
    failure(Code::ApprovalRequired, message, false).with_rule("trust.escalated")
}

pub(super) fn approval_denied(request: &CallRequest) -> CallFailure {
    let message = format!(
        "the approval of this call to {} was denied; it was not made. Do not repeat it; ask first, or use another approach",
        request.tool
    );
    failure(Code::ApprovalDenied, message, false).with_rule("approval")
}

pub(super) fn approval_lost(request: &CallRequest) -> CallFailure {
    let message = format!(
        "the approval for {} was used by another call, and this one was not made. Call again to request a new approval",
        request.tool
    );
    failure(Code::ApprovalRequired, message, false).with_rule("approval")
}

/// Returns the message of a failed call: the tool's own message, and the number of attempts.
pub(super) fn failed(code: Code, attempts: u32, message: String) -> Cow<'static, str> {
    let message = shorten_message(message);
    let times = if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
    let prefix = if code == Code::CircuitOpen {
        format!("failed {times}, and the circuit breaker of the tool is open now: ")
    } else if code == Code::RetryExhausted {
        format!("failed {times}, and there is no further retry: ")
    } else if code == Code::Overloaded {
        format!("failed {times}, and a limit of the tool has been reached: ")
    } else if code == Code::DeadlineExceeded {
        "failed, and the deadline leaves no time for another attempt: ".to_owned()
    } else {
        return message.into();
    };
    (prefix + &message).into()
}

/// Returns the message of a call that the watchdog ended.
pub(super) fn stuck(cut: CutReason, message: String) -> Cow<'static, str> {
    format!("{} and was ended: {}", too_long(cut), shorten_message(message)).into()
}

fn too_long(cut: CutReason) -> &'static str {
    match cut {
        CutReason::TooLong => "the call ran for longer than it may",
        CutReason::Silent(_) | CutReason::Deadline | CutReason::Cancelled => {
            "the call gave no sign of life for too long"
        }
    }
}

/// Shortens a tool's message to the maximum length.
pub(super) fn shorten_message(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        let cut = (0..=LONGEST_MESSAGE).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(cut);
        message.push('…');
    }
    message
}

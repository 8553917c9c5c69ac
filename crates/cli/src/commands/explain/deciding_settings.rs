//! Maps each step of a call to the settings that decided it.

use steadfast::admin::breaker::TransitionReason;
use steadfast::call::code::Code;
use steadfast::telemetry::{CallNotice, CutReason};
use steadfast_core::dedupe::ReplayReason;
use steadfast_core::guard::GuardLayer;
use steadfast_core::retry::RetryStop;
use steadfast_core::trust::{TrustChange, TrustState};

/// Returns the settings that may have decided a step. The first that has a value did.
pub(super) fn by_settings(notice: &CallNotice) -> &'static [&'static str] {
    match notice {
        CallNotice::CallBlocked { code, .. } => of_refusal(*code),
        CallNotice::Following => &["dedupe.mode"],
        CallNotice::Replayed { reason } => match reason {
            ReplayReason::SameKey | ReplayReason::Waited => &["dedupe.mode"],
            ReplayReason::Undelivered => &["dedupe.undelivered"],
            ReplayReason::DoubleDispatch => &["dedupe.double_dispatch"],
        },
        CallNotice::KeyConflict => &["dedupe.conflict"],
        CallNotice::ApprovalRequested => &["approval"],
        CallNotice::RetryScheduled { .. } => &["retry.attempts"],
        CallNotice::RetryStopped { stop } => match stop {
            RetryStop::Attempts => &["retry.attempts"],
            RetryStop::TotalTime => &["retry.total"],
            RetryStop::RetryAfter(_) => &["retry.longest_retry_after"],
            RetryStop::Budget => &["retry.budget_share"],
            RetryStop::Deadline => &[],
        },
        CallNotice::AttemptCut { cut } => match cut {
            CutReason::Silent(_) => &["stuck_after", "timeout"],
            CutReason::TooLong => &["total_timeout"],
            CutReason::Deadline | CutReason::Cancelled => &[],
        },
        CallNotice::AnsweredEarly { code: Code::InFlight } => &["answer_by"],
        CallNotice::BreakerChanged { transition, .. } => of_breaker(transition.reason),
        CallNotice::TrustChanged(change) => of_trust(change),
        CallNotice::GuardTripped { layer } => match layer {
            GuardLayer::Loop | GuardLayer::PingPong => &["guard.identical"],
            GuardLayer::TurnLimit => &["guard.per_turn"],
            GuardLayer::RepeatedSuccess => &["guard.repeated_success_after"],
            GuardLayer::NonRetryable => &[],
        },
        CallNotice::StoreFailed { .. } => &["dedupe.on_store_failure"],
        CallNotice::Shadowed(_) => &["mode"],
        CallNotice::OutcomeUnknown { .. } => &["ambiguous"],
        CallNotice::Verified { .. } => &["verify"],
        CallNotice::CallStarted { .. }
        | CallNotice::TookOver
        | CallNotice::ApprovalEnded { .. }
        | CallNotice::AttemptStarted { .. }
        | CallNotice::AttemptEnded { .. }
        | CallNotice::InputRequired
        | CallNotice::AnsweredEarly { .. }
        | CallNotice::ProbeMoved { .. }
        | CallNotice::FenceLost
        | CallNotice::CallFinished { .. } => &[],
    }
}

fn of_refusal(code: Code) -> &'static [&'static str] {
    match code {
        Code::CircuitOpen => &["breaker.mode"],
        Code::LoopDetected => &["guard.identical"],
        Code::ToolErrorLimit => &["guard.per_turn"],
        Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked => &["approval"],
        Code::IdempotencyConflict => &["dedupe.conflict"],
        Code::StoreUnavailable => &["dedupe.on_store_failure"],
        Code::InvalidArguments => &["validate_arguments"],
        // The rule names the limit.
        Code::Overloaded
        | Code::InvalidEnvelope
        | Code::UnsupportedVersion
        | Code::UnknownTool
        | Code::InFlight
        | Code::RetryExhausted
        | Code::Timeout
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::StuckCall
        | Code::OutcomeUnknown
        | Code::DependencyFailed
        | Code::ResultNotKept
        | Code::ResultTooLarge
        | Code::UpstreamUnavailable
        | Code::ToolError => &[],
    }
}

pub(super) const fn of_breaker(reason: TransitionReason) -> &'static [&'static str] {
    match reason {
        TransitionReason::Consecutive => &["breaker.consecutive"],
        TransitionReason::Rate => &["breaker.rate"],
        TransitionReason::Slow => &["breaker.slow_rate"],
        TransitionReason::CooledDown => &["breaker.cooldown"],
        TransitionReason::ProbesSucceeded => &["breaker.close_after"],
        TransitionReason::ProbesAnswered => &["breaker.neutral_close_after"],
        // A failed probe opens it, whatever is set.
        TransitionReason::ProbeFailed | TransitionReason::Forced | TransitionReason::Reset => &[],
    }
}

const fn of_trust(change: &TrustChange) -> &'static [&'static str] {
    match (change.from, change.to) {
        (_, TrustState::Trusted) => &["trust.successes_to_recover"],
        (_, TrustState::Recovering) => &["trust.duration"],
        (TrustState::Recovering, TrustState::Escalated) => &[],
        (_, TrustState::Escalated) => &["trust.count", "trust.consecutive", "trust.rate"],
        (_, TrustState::Blocked) => &["trust.block_after"],
    }
}

/// Returns true if the classifier has a built-in rule with this name.
pub(super) fn is_built_in(rule: &str) -> bool {
    let first = rule.split('.').next().unwrap_or_default();
    BUILT_IN.contains(&first)
}

/// Prefixes of the names of the built-in rules.
const BUILT_IN: [&str; 11] = [
    "bad-answer",
    "exit",
    "http",
    "jsonrpc",
    "panic",
    "session-lost",
    "text",
    "timeout",
    "transport",
    "unknown",
    "websocket",
];

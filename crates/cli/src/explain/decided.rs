//! Maps each step of a call to the settings that decided it.

use steadfast::breaker::Reason;
use steadfast::code::Code;
use steadfast::path::{Cut, Notice};
use steadfast_core::dedupe::ReplayReason;
use steadfast_core::guard::Layer;
use steadfast_core::retry::Stop;
use steadfast_core::trust::{TrustChange, TrustState};

/// Returns the settings that may have decided a step. The first that has a value did.
pub(super) fn by_settings(notice: &Notice) -> &'static [&'static str] {
    match notice {
        Notice::CallBlocked { code, .. } => of_refusal(*code),
        Notice::Following => &["dedupe.mode"],
        Notice::Replayed { reason } => match reason {
            ReplayReason::SameKey | ReplayReason::Waited => &["dedupe.mode"],
            ReplayReason::Undelivered => &["dedupe.undelivered"],
            ReplayReason::DoubleDispatch => &["dedupe.double_dispatch"],
        },
        Notice::KeyConflict => &["dedupe.conflict"],
        Notice::ApprovalAsked => &["approval"],
        Notice::RetryScheduled { .. } => &["retry.attempts"],
        Notice::RetryStopped { stop } => match stop {
            Stop::Attempts => &["retry.attempts"],
            Stop::TotalTime => &["retry.total"],
            Stop::RetryAfter(_) => &["retry.longest_retry_after"],
            Stop::Budget => &["retry.budget_share"],
            Stop::Deadline => &[],
        },
        Notice::AttemptCut { cut } => match cut {
            Cut::Silent(_) => &["stuck_after", "timeout"],
            Cut::TooLong => &["total_timeout"],
            Cut::Deadline | Cut::Cancelled => &[],
        },
        Notice::AnsweredEarly { code: Code::InFlight } => &["answer_by"],
        Notice::BreakerChanged { transition, .. } => of_breaker(transition.reason),
        Notice::TrustChanged(change) => of_trust(change),
        Notice::GuardTripped { layer } => match layer {
            Layer::Loop | Layer::PingPong => &["guard.identical"],
            Layer::TurnLimit => &["guard.per_turn"],
            Layer::RepeatedSuccess => &["guard.repeated_success_after"],
            Layer::NonRetryable => &[],
        },
        Notice::StoreFailed { .. } => &["dedupe.on_store_failure"],
        Notice::WouldHave(_) => &["mode"],
        Notice::OutcomeUnknown { .. } => &["ambiguous"],
        Notice::Verified { .. } => &["verify"],
        Notice::CallStarted { .. }
        | Notice::TookOver
        | Notice::ApprovalEnded { .. }
        | Notice::AttemptStarted { .. }
        | Notice::AttemptEnded { .. }
        | Notice::InputRequired
        | Notice::AnsweredEarly { .. }
        | Notice::ProbeMoved { .. }
        | Notice::FenceLost
        | Notice::CallFinished { .. } => &[],
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

pub(super) const fn of_breaker(reason: Reason) -> &'static [&'static str] {
    match reason {
        Reason::Consecutive => &["breaker.consecutive"],
        Reason::Rate => &["breaker.rate"],
        Reason::Slow => &["breaker.slow_rate"],
        Reason::CooledDown => &["breaker.cooldown"],
        Reason::ProbesSucceeded => &["breaker.close_after"],
        Reason::ProbesAnswered => &["breaker.neutral_close_after"],
        // A failed probe opens it, whatever is set.
        Reason::ProbeFailed | Reason::Forced | Reason::Reset => &[],
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

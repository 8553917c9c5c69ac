//! Names in logs, labels and spans. They are the same as on the wire, where they occur there.

use steadfast_core::breaker;
use steadfast_core::call::{BreakerScope, Cut, Duplicates, Request, Shadowed};
use steadfast_core::classify::{Nature, Reach};
use steadfast_core::code::Status;
use steadfast_core::dedupe::{ReplayReason, Resolution};
use steadfast_core::policy::{KeyScope, Policy, ToolClass};
use steadfast_core::retry::Stop;
use steadfast_core::trust::TrustState;
use steadfast_core::turn::trace::{EventType, SkipReason};
use steadfast_core::turn::{Need, Outcome, Strategy, TurnStatus};
use steadfast_executor::Deed;
use steadfast_store::Trouble;

pub(crate) const fn status(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::Error => "error",
        Status::RetriableError => "retriable_error",
        Status::RetryExhausted => "retry_exhausted",
        Status::CircuitOpen => "circuit_open",
        Status::Timeout => "timeout",
    }
}

/// Every state of a breaker.
pub(crate) const BREAKER_STATES: [breaker::State; 4] =
    [breaker::State::Closed, breaker::State::Open, breaker::State::HalfOpen, breaker::State::ForcedOpen];

pub(crate) const fn breaker_state(state: breaker::State) -> &'static str {
    match state {
        breaker::State::Closed => "CLOSED",
        breaker::State::Open => "OPEN",
        breaker::State::HalfOpen => "HALF_OPEN",
        breaker::State::ForcedOpen => "FORCED_OPEN",
    }
}

/// The result of a verification.
pub(crate) const fn resolution(found: Option<Resolution>) -> &'static str {
    match found {
        Some(Resolution::Ran) => "ran",
        Some(Resolution::DidNotRun) => "did_not_run",
        None => "unknown",
    }
}

pub(crate) const fn breaker_reason(reason: breaker::Reason) -> &'static str {
    match reason {
        breaker::Reason::Consecutive => "consecutive",
        breaker::Reason::Rate => "rate",
        breaker::Reason::Slow => "slow",
        breaker::Reason::CooledDown => "cooled_down",
        breaker::Reason::ProbeFailed => "probe_failed",
        breaker::Reason::ProbesSucceeded => "probes_succeeded",
        breaker::Reason::ProbesAnswered => "probes_answered",
        breaker::Reason::Forced => "forced",
        breaker::Reason::Reset => "reset",
    }
}

pub(crate) const fn breaker_scope(scope: BreakerScope) -> &'static str {
    match scope {
        BreakerScope::Tool => "tool",
        BreakerScope::Dependency => "dependency",
    }
}

/// Every state of trust.
pub(crate) const TRUST_STATES: [TrustState; 4] =
    [TrustState::Trusted, TrustState::Recovering, TrustState::Escalated, TrustState::Blocked];

pub(crate) const fn trust_state(state: TrustState) -> &'static str {
    match state {
        TrustState::Trusted => "TRUSTED",
        TrustState::Recovering => "RECOVERING",
        TrustState::Escalated => "ESCALATED",
        TrustState::Blocked => "BLOCKED",
    }
}

pub(crate) const fn class(class: ToolClass) -> &'static str {
    match class {
        ToolClass::ReadOnly => "read_only",
        ToolClass::Idempotent => "idempotent",
        ToolClass::Mutating => "mutating",
        ToolClass::Unknown => "unknown",
    }
}

/// The key scope of a call.
pub(crate) const fn scope(request: &Request, policy: &Policy) -> &'static str {
    match request.duplicates {
        Duplicates::Allowed => "none",
        Duplicates::Joined(_) | Duplicates::Refused(_) => key_scope(policy),
    }
}

/// The key scope of a tool.
pub(crate) const fn key_scope(policy: &Policy) -> &'static str {
    match (policy.dedupe.scope, policy.class) {
        (KeyScope::Global, ToolClass::ReadOnly) => "global",
        (KeyScope::Global, ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown)
        | (KeyScope::Session, _) => "session",
    }
}

pub(crate) const fn nature(nature: Nature) -> &'static str {
    match nature {
        Nature::Transient => "transient",
        Nature::Permanent => "permanent",
    }
}

pub(crate) const fn reach(reach: Reach) -> &'static str {
    match reach {
        Reach::NotSent => "not_sent",
        Reach::Refused => "refused",
        Reach::Unknown => "unknown",
        Reach::Answered => "answered",
    }
}

pub(crate) const fn replay_reason(reason: ReplayReason) -> &'static str {
    match reason {
        ReplayReason::SameKey => "same_key",
        ReplayReason::Undelivered => "undelivered",
        ReplayReason::DoubleDispatch => "double_dispatch",
        ReplayReason::Waited => "waited",
    }
}

pub(crate) const fn stop(stop: Stop) -> &'static str {
    match stop {
        Stop::Attempts => "attempts",
        Stop::TotalTime => "total_time",
        Stop::Deadline => "deadline",
        Stop::RetryAfter(_) => "retry_after",
        Stop::Budget => "retry_budget",
    }
}

pub(crate) const fn cut(cut: Cut) -> &'static str {
    match cut {
        Cut::Silent(_) => "silent",
        Cut::TooLong => "too_long",
        Cut::Deadline => "deadline",
        Cut::Cancelled => "cancelled",
    }
}

/// Every way in which a turn can end, and `None` for one that did not.
pub(crate) const TURN_STATUSES: [Option<TurnStatus>; 4] =
    [Some(TurnStatus::Completed), Some(TurnStatus::Partial), Some(TurnStatus::Failed), None];

/// The status of a turn. Without one, the caller did not wait for its end.
pub(crate) const fn turn_status(status: Option<TurnStatus>) -> &'static str {
    match status {
        Some(TurnStatus::Completed) => "completed",
        Some(TurnStatus::Partial) => "partial",
        Some(TurnStatus::Failed) => "failed",
        None => "abandoned",
    }
}

/// Every decision of the error handler.
pub(crate) const STRATEGIES: [Strategy; 5] = [
    Strategy::Retry,
    Strategy::AlternativeTool,
    Strategy::PartialSuccess,
    Strategy::Escalate,
    Strategy::GracefulFailure,
];

pub(crate) const fn strategy(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Retry => "RETRY",
        Strategy::AlternativeTool => "ALTERNATIVE_TOOL",
        Strategy::PartialSuccess => "PARTIAL_SUCCESS",
        Strategy::Escalate => "ESCALATE",
        Strategy::GracefulFailure => "GRACEFUL_FAILURE",
    }
}

pub(crate) const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::Failed => "failed",
        Outcome::Skipped => "skipped",
        Outcome::Cancelled => "cancelled",
        Outcome::LeftRunning => "left_running",
    }
}

pub(crate) const fn need(need: Need) -> &'static str {
    match need {
        Need::Required => "required",
        Need::Optional => "optional",
    }
}

pub(crate) const fn skip_reason(reason: &SkipReason) -> &'static str {
    match reason {
        SkipReason::Dependency(_) => "dependency",
        SkipReason::Deadline => "deadline",
        SkipReason::Cancelled => "cancelled",
    }
}

/// The name of an event of a turn, the same as that of its log line if it has one.
pub(crate) const fn turn_event(event: EventType) -> &'static str {
    match event {
        EventType::TurnStarted => "turn_start",
        EventType::CallRestored => "turn_call_restored",
        EventType::ToolStarted => "turn_tool_start",
        EventType::ToolRetry => "turn_tool_retry",
        EventType::ToolSucceeded => "turn_tool_succeeded",
        EventType::ToolError => "turn_tool_error",
        EventType::ToolTimeout => "turn_tool_timeout",
        EventType::Decision => "turn_decision",
        EventType::CircuitBreaker => "turn_circuit_state",
        EventType::AlternativeUsed => "turn_alternative_used",
        EventType::DefaultUsed => "turn_default_used",
        EventType::ToolSkipped => "turn_tool_skipped",
        EventType::ToolCancelled => "turn_tool_cancelled",
        EventType::ToolLeftRunning => "turn_tool_left_running",
        EventType::LateResult => "turn_late_result",
        EventType::TurnTimeout => "turn_timeout",
        EventType::TurnCancelled => "turn_cancelled",
        EventType::TurnEnded => "turn_end",
        EventType::TraceCut => "turn_trace_cut",
    }
}

pub(crate) const fn deed(deed: Deed) -> &'static str {
    match deed {
        Deed::Approved => "approved",
        Deed::Denied => "denied",
        Deed::BreakerForcedOpen => "breaker_forced_open",
        Deed::BreakerReset => "breaker_reset",
        Deed::TrustReset => "trust_reset",
        Deed::RecoveryApproved => "recovery_approved",
        Deed::GuardReset => "guard_reset",
        Deed::Flushed => "flushed",
        Deed::LossAccepted => "loss_accepted",
        Deed::Resolved => "resolved",
        Deed::Switched => "switched",
    }
}

pub(crate) const fn shadowed(shadowed: Shadowed) -> &'static str {
    match shadowed {
        Shadowed::Duplicate => "duplicate",
        Shadowed::Refused(_) => "refused",
        Shadowed::Asked => "asked",
        Shadowed::Retried => "retried",
        Shadowed::Cut => "cut",
        Shadowed::Told(_) => "told",
        Shadowed::Remarked(_) => "remarked",
    }
}

pub(crate) const fn trouble(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Unreachable => "unreachable",
        Trouble::Refused => "refused",
        Trouble::Unreadable => "unreadable",
        Trouble::Full => "full",
        Trouble::Closed => "closed",
        // The enum is in another crate and may grow. A new variant is counted before it has a name here.
        _ => "other",
    }
}

//! Names in logs, labels and spans. They are the same as on the wire, where they occur there.

use steadfast_core::breaker;
use steadfast_core::call::{BreakerScope, CallRequest, CutReason, Deduplication, ShadowDecision};
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::code::CallStatus;
use steadfast_core::dedupe::{ReplayReason, Resolution};
use steadfast_core::policy::{CallPolicy, KeyScope, ToolClass};
use steadfast_core::retry::RetryStop;
use steadfast_core::trust::TrustState;
use steadfast_executor::AuditAction;
use steadfast_store::StoreErrorKind;
use steadfast_turn::trace::{SkipReason, TraceEventType};
use steadfast_turn::{CallNeed, FailureStrategy, TurnCallOutcome, TurnStatus};

pub(crate) const fn status(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Success => "success",
        CallStatus::Error => "error",
        CallStatus::RetriableError => "retriable_error",
        CallStatus::RetryExhausted => "retry_exhausted",
        CallStatus::CircuitOpen => "circuit_open",
        CallStatus::Timeout => "timeout",
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

pub(crate) const fn breaker_reason(reason: breaker::TransitionReason) -> &'static str {
    match reason {
        breaker::TransitionReason::Consecutive => "consecutive",
        breaker::TransitionReason::Rate => "rate",
        breaker::TransitionReason::Slow => "slow",
        breaker::TransitionReason::CooledDown => "cooled_down",
        breaker::TransitionReason::ProbeFailed => "probe_failed",
        breaker::TransitionReason::ProbesSucceeded => "probes_succeeded",
        breaker::TransitionReason::ProbesAnswered => "probes_answered",
        breaker::TransitionReason::Forced => "forced",
        breaker::TransitionReason::Reset => "reset",
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
pub(crate) const fn scope(request: &CallRequest, policy: &CallPolicy) -> &'static str {
    match request.duplicates {
        Deduplication::Allowed => "none",
        Deduplication::Joined(_) | Deduplication::Refused(_) => key_scope(policy),
    }
}

/// The key scope of a tool.
pub(crate) const fn key_scope(policy: &CallPolicy) -> &'static str {
    match (policy.dedupe.scope, policy.class) {
        (KeyScope::Global, ToolClass::ReadOnly) => "global",
        (KeyScope::Global, ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown)
        | (KeyScope::Session, _) => "session",
    }
}

pub(crate) const fn nature(nature: FaultNature) -> &'static str {
    match nature {
        FaultNature::Transient => "transient",
        FaultNature::Permanent => "permanent",
    }
}

pub(crate) const fn reach(reach: AttemptReach) -> &'static str {
    match reach {
        AttemptReach::NotSent => "not_sent",
        AttemptReach::Refused => "refused",
        AttemptReach::Unknown => "unknown",
        AttemptReach::Answered => "answered",
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

pub(crate) const fn stop(stop: RetryStop) -> &'static str {
    match stop {
        RetryStop::Attempts => "attempts",
        RetryStop::TotalTime => "total_time",
        RetryStop::Deadline => "deadline",
        RetryStop::RetryAfter(_) => "retry_after",
        RetryStop::Budget => "retry_budget",
    }
}

pub(crate) const fn cut(cut: CutReason) -> &'static str {
    match cut {
        CutReason::Silent(_) => "silent",
        CutReason::TooLong => "too_long",
        CutReason::Deadline => "deadline",
        CutReason::Cancelled => "cancelled",
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
pub(crate) const STRATEGIES: [FailureStrategy; 5] = [
    FailureStrategy::Retry,
    FailureStrategy::AlternativeTool,
    FailureStrategy::PartialSuccess,
    FailureStrategy::Escalate,
    FailureStrategy::GracefulFailure,
];

pub(crate) const fn strategy(strategy: FailureStrategy) -> &'static str {
    match strategy {
        FailureStrategy::Retry => "RETRY",
        FailureStrategy::AlternativeTool => "ALTERNATIVE_TOOL",
        FailureStrategy::PartialSuccess => "PARTIAL_SUCCESS",
        FailureStrategy::Escalate => "ESCALATE",
        FailureStrategy::GracefulFailure => "GRACEFUL_FAILURE",
    }
}

pub(crate) const fn outcome(outcome: TurnCallOutcome) -> &'static str {
    match outcome {
        TurnCallOutcome::Succeeded => "succeeded",
        TurnCallOutcome::Failed => "failed",
        TurnCallOutcome::Skipped => "skipped",
        TurnCallOutcome::Cancelled => "cancelled",
        TurnCallOutcome::LeftRunning => "left_running",
    }
}

pub(crate) const fn need(need: CallNeed) -> &'static str {
    match need {
        CallNeed::Required => "required",
        CallNeed::Optional => "optional",
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
pub(crate) const fn turn_event(event: TraceEventType) -> &'static str {
    match event {
        TraceEventType::TurnStarted => "turn_start",
        TraceEventType::CallRestored => "turn_call_restored",
        TraceEventType::ToolStarted => "turn_tool_start",
        TraceEventType::ToolRetry => "turn_tool_retry",
        TraceEventType::ToolSucceeded => "turn_tool_succeeded",
        TraceEventType::ToolError => "turn_tool_error",
        TraceEventType::ToolTimeout => "turn_tool_timeout",
        TraceEventType::Decision => "turn_decision",
        TraceEventType::CircuitBreaker => "turn_circuit_state",
        TraceEventType::AlternativeUsed => "turn_alternative_used",
        TraceEventType::DefaultUsed => "turn_default_used",
        TraceEventType::ToolSkipped => "turn_tool_skipped",
        TraceEventType::ToolCancelled => "turn_tool_cancelled",
        TraceEventType::ToolLeftRunning => "turn_tool_left_running",
        TraceEventType::LateResult => "turn_late_result",
        TraceEventType::TurnTimeout => "turn_timeout",
        TraceEventType::TurnCancelled => "turn_cancelled",
        TraceEventType::TurnEnded => "turn_end",
        TraceEventType::TraceCut => "turn_trace_cut",
    }
}

pub(crate) const fn operator_action(action: AuditAction) -> &'static str {
    match action {
        AuditAction::Approved => "approved",
        AuditAction::Denied => "denied",
        AuditAction::BreakerForcedOpen => "breaker_forced_open",
        AuditAction::BreakerReset => "breaker_reset",
        AuditAction::TrustReset => "trust_reset",
        AuditAction::RecoveryApproved => "recovery_approved",
        AuditAction::GuardReset => "guard_reset",
        AuditAction::Flushed => "flushed",
        AuditAction::LossAccepted => "loss_accepted",
        AuditAction::Resolved => "resolved",
        AuditAction::Switched => "switched",
    }
}

pub(crate) const fn shadowed(shadowed: ShadowDecision) -> &'static str {
    match shadowed {
        ShadowDecision::Duplicate => "duplicate",
        ShadowDecision::Refused(_) => "refused",
        ShadowDecision::ApprovalRequested => "asked",
        ShadowDecision::Retried => "retried",
        ShadowDecision::Cut => "cut",
        ShadowDecision::Failed(_) => "told",
        ShadowDecision::GuardRemark(_) => "remarked",
    }
}

pub(crate) const fn trouble(trouble: StoreErrorKind) -> &'static str {
    match trouble {
        StoreErrorKind::Unreachable => "unreachable",
        StoreErrorKind::Refused => "refused",
        StoreErrorKind::Unreadable => "unreadable",
        StoreErrorKind::Full => "full",
        StoreErrorKind::Closed => "closed",
        // The enum is in another crate and may grow. A new variant is counted before it has a name here.
        _ => "other",
    }
}

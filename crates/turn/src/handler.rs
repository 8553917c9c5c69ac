//! The error handler: the action for one failure, and the reason for it.
//!
//! It is a pure function. The executor calls it after an attempt, and the [`TurnMachine`](super::TurnMachine) after a call. It uses
//! only the facts that it is given and returns them with the decision, so that a trace can show them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use steadfast_core::breaker::State;
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::code::Code;

use super::draft::CallNeed;

/// The action after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FailureStrategy {
    /// Make the same call again.
    Retry,
    /// Run an alternative tool.
    AlternativeTool,
    /// Continue with partial results. No action is needed.
    PartialSuccess,
    /// End the call and report it to the user. Nothing waits for the user.
    Escalate,
    /// End the call with a response that explains the failure. A later call may succeed.
    GracefulFailure,
}

/// The known facts about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureFacts {
    /// The code of the failure.
    pub code: Code,
    /// Transient if the same call can succeed later, permanent otherwise.
    pub nature: FaultNature,
    /// Progress of the call.
    pub reach: AttemptReach,
    /// Safety of making the call again.
    pub repeat: RepeatSafety,
    /// The state of the tool's circuit breaker.
    pub breaker: State,
    /// Attempts made.
    pub attempts: u32,
    /// Attempts left, by every rule of the retry policy.
    pub attempts_left: u32,
    /// The delay before the next attempt.
    pub wait: Duration,
    /// The time left until the deadline of the turn.
    pub remaining: Duration,
    /// Alternatives that were not tried and whose circuit breakers admit calls.
    pub alternatives: usize,
    /// Required or optional.
    pub need: CallNeed,
    /// The calls that depend on it.
    pub dependants: DependantCounts,
    /// Calls of the turn that succeeded so far.
    pub succeeded: usize,
}

/// The safety of making a call with an unknown outcome again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatSafety {
    /// Two runs do no harm, by any tool.
    Safe,
    /// The same tool may run twice. Another tool would do the job a second time.
    BySameTool,
    /// Two runs may have the effect twice.
    Unsafe,
}

/// The number of calls that depend on a failed call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DependantCounts {
    /// Calls with a default for it. They can run.
    pub covered: usize,
    /// Calls without a default for it. They cannot run.
    pub stranded: usize,
}

/// The action after a failure, with its reason and the facts it is based on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDecision {
    /// The action.
    pub strategy: FailureStrategy,
    /// The reason, as text.
    pub reason: String,
    /// The facts.
    pub facts: FailureFacts,
}

/// Decides the action after a failure.
///
/// The order is a guarantee: the cheapest action that can still bring the wanted result comes first. A failure is
/// escalated only if nothing else is left and the user can do something about it.
pub fn decide(facts: FailureFacts) -> FailureDecision {
    let decision = |strategy, reason: String| FailureDecision { strategy, reason, facts };
    let nature = match facts.nature {
        FaultNature::Transient => "transient error",
        FaultNature::Permanent => "permanent error",
    };
    if is_unsafe_to_repeat(&facts) {
        return decision(
            FailureStrategy::Escalate,
            "the outcome is unknown, and making the call again could take effect twice".into(),
        );
    }
    if facts.remaining.is_zero() || facts.code == Code::Cancelled {
        let over = if facts.remaining.is_zero() {
            "the deadline of the turn has passed"
        } else {
            "the call was cancelled"
        };
        return if facts.succeeded > 0 {
            decision(FailureStrategy::PartialSuccess, format!("{over}; finished results are returned"))
        } else {
            decision(FailureStrategy::GracefulFailure, format!("{over} and nothing is finished"))
        };
    }
    let no_retry = match no_retry_reason(&facts) {
        None => {
            let left = facts.attempts_left;
            let circuit = circuit(facts.breaker);
            return decision(
                FailureStrategy::Retry,
                format!("{nature}, {circuit}, retries available ({left} left)"),
            );
        }
        Some(reason) => reason,
    };
    if facts.alternatives > 0 && alternative_may_run(facts.code) && !could_repeat_effect(&facts) {
        return decision(
            FailureStrategy::AlternativeTool,
            format!("{nature} ({no_retry}), an alternative is available"),
        );
    }
    if facts.need == CallNeed::Optional {
        return decision(
            FailureStrategy::PartialSuccess,
            format!("{nature} ({no_retry}) of an optional call"),
        );
    }
    let DependantCounts { covered, stranded } = facts.dependants;
    if covered > 0 && stranded == 0 {
        return decision(
            FailureStrategy::PartialSuccess,
            format!("{nature} ({no_retry}), but everything that depends on it has a default"),
        );
    }
    match facts.nature {
        FaultNature::Permanent => {
            decision(FailureStrategy::Escalate, format!("{nature} ({no_retry}) of a required call"))
        }
        FaultNature::Transient if stranded > 0 => decision(
            FailureStrategy::Escalate,
            match stranded {
                1 => format!("{nature} ({no_retry}), and another call needs its output"),
                _ => format!("{nature} ({no_retry}), and {stranded} other calls need its output"),
            },
        ),
        FaultNature::Transient => {
            decision(FailureStrategy::GracefulFailure, format!("{nature} ({no_retry}); it may work later"))
        }
    }
}

/// Returns true if the call may have taken effect and a second run is unsafe. Then neither a retry nor an alternative
/// may run, because both could do the same work twice.
fn is_unsafe_to_repeat(facts: &FailureFacts) -> bool {
    facts.code == Code::OutcomeUnknown
        || (facts.reach == AttemptReach::Unknown && facts.repeat == RepeatSafety::Unsafe)
}

/// Returns true if another tool could repeat the effect of the call, although the same tool cannot.
fn could_repeat_effect(facts: &FailureFacts) -> bool {
    facts.reach == AttemptReach::Unknown && facts.repeat == RepeatSafety::BySameTool
}

fn no_retry_reason(facts: &FailureFacts) -> Option<&'static str> {
    let circuit_refuses = refuses(facts.breaker);
    match facts.nature {
        FaultNature::Permanent => Some("no retry helps"),
        FaultNature::Transient if circuit_refuses => Some("circuit open"),
        FaultNature::Transient if facts.attempts_left == 0 => Some("no retries left"),
        FaultNature::Transient if facts.wait >= facts.remaining => Some("no time for a retry"),
        FaultNature::Transient => None,
    }
}

/// Returns true if a circuit breaker in this state refuses calls. A half-open one admits some calls and refuses the
/// others at once.
pub(super) const fn refuses(state: State) -> bool {
    match state {
        State::Closed | State::HalfOpen => false,
        State::Open | State::ForcedOpen => true,
    }
}

const fn circuit(state: State) -> &'static str {
    match state {
        State::Closed => "circuit closed",
        State::HalfOpen => "circuit half-open",
        State::Open | State::ForcedOpen => "circuit open",
    }
}

/// Returns true if another tool may do the job of a call that ended with this code.
///
/// False if the same intent ran or runs, if that could not be checked (the store was unavailable), if the operator
/// denied approval, or if the turn may make no more calls.
pub(super) const fn alternative_may_run(code: Code) -> bool {
    match code {
        Code::UnsupportedVersion
        | Code::InvalidEnvelope
        | Code::InvalidArguments
        | Code::UnknownTool
        | Code::CircuitOpen
        | Code::Overloaded
        | Code::RetryExhausted
        | Code::Timeout
        | Code::LoopDetected
        | Code::ApprovalRequired
        | Code::ToolBlocked
        | Code::StuckCall
        | Code::DependencyFailed
        | Code::UpstreamUnavailable
        | Code::ToolError => true,
        Code::IdempotencyConflict
        | Code::InFlight
        | Code::StoreUnavailable
        | Code::DeadlineExceeded
        | Code::ToolErrorLimit
        | Code::ApprovalDenied
        | Code::Cancelled
        | Code::OutcomeUnknown
        | Code::ResultNotKept
        | Code::ResultTooLarge => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A required call without dependants that timed out once and may be tried again.
    const TIMEOUT: FailureFacts = FailureFacts {
        code: Code::Timeout,
        nature: FaultNature::Transient,
        reach: AttemptReach::Unknown,
        repeat: RepeatSafety::Safe,
        breaker: State::Closed,
        attempts: 1,
        attempts_left: 4,
        wait: Duration::from_millis(100),
        remaining: Duration::from_secs(200),
        alternatives: 0,
        need: CallNeed::Required,
        dependants: DependantCounts { covered: 0, stranded: 0 },
        succeeded: 0,
    };

    const INVALID: FailureFacts = FailureFacts {
        code: Code::ToolError,
        nature: FaultNature::Permanent,
        reach: AttemptReach::Answered,
        ..TIMEOUT
    };

    const EXHAUSTED: FailureFacts =
        FailureFacts { code: Code::RetryExhausted, attempts: 5, attempts_left: 0, ..TIMEOUT };

    #[test]
    fn eh_6_2_a_transient_error_with_a_closed_circuit_and_retries_left_is_retried() {
        let decision = decide(TIMEOUT);
        assert_eq!(decision.strategy, FailureStrategy::Retry);
        assert_eq!(decision.reason, "transient error, circuit closed, retries available (4 left)");
        assert_eq!(decision.facts, TIMEOUT);
    }

    #[test]
    fn eh_6_5_a_permanent_error_is_escalated() {
        let decision = decide(INVALID);
        assert_eq!(decision.strategy, FailureStrategy::Escalate);
        assert_eq!(decision.reason, "permanent error (no retry helps) of a required call");
    }

    #[test]
    fn gr_5_a_tool_error_leads_to_an_alternative_or_is_escalated_and_nothing_waits() {
        for failure in [INVALID, EXHAUSTED] {
            assert_eq!(
                decide(FailureFacts { alternatives: 1, ..failure }).strategy,
                FailureStrategy::AlternativeTool
            );
            let needed = DependantCounts { covered: 0, stranded: 1 };
            assert_eq!(
                decide(FailureFacts { dependants: needed, ..failure }).strategy,
                FailureStrategy::Escalate
            );
        }
    }

    #[test]
    fn each_combination_has_its_strategy_and_reason() {
        use FailureStrategy::{AlternativeTool, Escalate, GracefulFailure, PartialSuccess, Retry};
        let open = FailureFacts { breaker: State::Open, ..TIMEOUT };
        let optional = CallNeed::Optional;
        let covered = DependantCounts { covered: 2, stranded: 0 };
        let mixed = DependantCounts { covered: 2, stranded: 1 };
        let cases = [
            (FailureFacts { breaker: State::HalfOpen, ..TIMEOUT }, Retry, "circuit half-open"),
            (FailureFacts { alternatives: 1, ..TIMEOUT }, Retry, "retries available"),
            (FailureFacts { need: optional, ..TIMEOUT }, Retry, "retries available"),
            (open, GracefulFailure, "circuit open"),
            (FailureFacts { breaker: State::ForcedOpen, ..open }, GracefulFailure, "circuit open"),
            (FailureFacts { alternatives: 1, ..open }, AlternativeTool, "circuit open"),
            (EXHAUSTED, GracefulFailure, "no retries left"),
            (FailureFacts { alternatives: 2, ..EXHAUSTED }, AlternativeTool, "no retries left"),
            (FailureFacts { need: optional, ..EXHAUSTED }, PartialSuccess, "optional"),
            (FailureFacts { dependants: covered, ..EXHAUSTED }, PartialSuccess, "has a default"),
            (FailureFacts { dependants: mixed, ..EXHAUSTED }, Escalate, "another call needs its output"),
            (
                FailureFacts { wait: Duration::from_secs(200), ..TIMEOUT },
                GracefulFailure,
                "no time for a retry",
            ),
            (FailureFacts { alternatives: 1, ..INVALID }, AlternativeTool, "permanent error"),
            (FailureFacts { need: optional, ..INVALID }, PartialSuccess, "optional"),
            (FailureFacts { dependants: covered, ..INVALID }, PartialSuccess, "has a default"),
            (FailureFacts { dependants: mixed, ..INVALID }, Escalate, "required"),
            // The end of the turn: nothing is retried, nothing replaced.
            (
                FailureFacts { remaining: Duration::ZERO, alternatives: 1, ..TIMEOUT },
                GracefulFailure,
                "nothing is finished",
            ),
            (
                FailureFacts { remaining: Duration::ZERO, succeeded: 1, ..TIMEOUT },
                PartialSuccess,
                "finished results are returned",
            ),
            (
                FailureFacts { code: Code::Cancelled, alternatives: 1, ..INVALID },
                GracefulFailure,
                "cancelled",
            ),
            // The outcome is unknown.
            (
                FailureFacts { repeat: RepeatSafety::Unsafe, alternatives: 1, need: optional, ..TIMEOUT },
                Escalate,
                "twice",
            ),
            (FailureFacts { code: Code::OutcomeUnknown, alternatives: 1, ..INVALID }, Escalate, "twice"),
            (
                FailureFacts { repeat: RepeatSafety::Unsafe, reach: AttemptReach::Refused, ..TIMEOUT },
                Retry,
                "retries available",
            ),
            (
                FailureFacts {
                    repeat: RepeatSafety::BySameTool,
                    alternatives: 1,
                    attempts_left: 0,
                    ..TIMEOUT
                },
                GracefulFailure,
                "later",
            ),
            (
                FailureFacts { repeat: RepeatSafety::Safe, alternatives: 1, attempts_left: 0, ..TIMEOUT },
                AlternativeTool,
                "available",
            ),
            (
                FailureFacts {
                    repeat: RepeatSafety::BySameTool,
                    reach: AttemptReach::Answered,
                    alternatives: 1,
                    ..INVALID
                },
                AlternativeTool,
                "available",
            ),
            // Another tool must not run if the call ran, runs, or was denied approval.
            (FailureFacts { code: Code::ApprovalDenied, alternatives: 1, ..INVALID }, Escalate, "required"),
            (
                FailureFacts { code: Code::IdempotencyConflict, alternatives: 1, ..INVALID },
                Escalate,
                "required",
            ),
            (FailureFacts { code: Code::InFlight, alternatives: 1, ..EXHAUSTED }, GracefulFailure, "later"),
            // It may have run in an earlier submission, and the store was unavailable.
            (
                FailureFacts { code: Code::StoreUnavailable, alternatives: 1, ..EXHAUSTED },
                GracefulFailure,
                "later",
            ),
            (FailureFacts { code: Code::ToolErrorLimit, alternatives: 1, ..INVALID }, Escalate, "required"),
            // It ran, and its result was not stored.
            (FailureFacts { code: Code::ResultNotKept, alternatives: 1, ..INVALID }, Escalate, "required"),
            (FailureFacts { code: Code::ResultTooLarge, alternatives: 1, ..INVALID }, Escalate, "required"),
            (
                FailureFacts { code: Code::DeadlineExceeded, alternatives: 1, ..EXHAUSTED },
                GracefulFailure,
                "later",
            ),
            (
                FailureFacts { code: Code::ToolBlocked, alternatives: 1, ..INVALID },
                AlternativeTool,
                "alternative",
            ),
        ];
        for (facts, strategy, because) in cases {
            let decision = decide(facts);
            assert_eq!(decision.strategy, strategy, "{facts:?}");
            assert!(decision.reason.contains(because), "{} for {facts:?}", decision.reason);
        }
    }
}

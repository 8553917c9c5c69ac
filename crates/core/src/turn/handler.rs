//! The error handler: what to do about one failure, and why.
//!
//! It is a function that anyone may ask: the executor after an attempt, the [`Turn`](super::Turn) after a
//! call. It looks only at the facts that it is given and gives them back with its answer, so that a trace
//! can show what it knew.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::breaker::State;
use crate::classify::{Nature, Reach};
use crate::code::Code;

use super::plan::Need;

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Strategy {
    /// Make the same call again.
    Retry,
    /// Let another tool do the job.
    AlternativeTool,
    /// Go on with what there is; nobody has to act.
    PartialSuccess,
    /// End it and tell a person. Nothing waits for the person.
    Escalate,
    /// End it with an answer that says what happened; it may work later.
    GracefulFailure,
}

/// What is known about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The code of the failure.
    pub code: Code,
    /// Whether the same call can succeed later.
    pub nature: Nature,
    /// How far it got.
    pub reach: Reach,
    /// Whether it may be made twice.
    pub repeat: Repeat,
    /// The tool's breaker.
    pub breaker: State,
    /// Attempts made.
    pub attempts: u32,
    /// Attempts still allowed, by every rule of the retry policy.
    pub attempts_left: u32,
    /// How long the next attempt would have to wait.
    pub wait: Duration,
    /// What is left of the turn's time.
    pub remaining: Duration,
    /// Alternatives that were not tried and whose breakers let calls through.
    pub alternatives: usize,
    /// Whether the turn needs the call.
    pub need: Need,
    /// Who waits for it.
    pub dependants: Dependants,
    /// Calls of the turn that succeeded so far.
    pub succeeded: usize,
}

/// Whether a call whose fate is unknown may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Running it twice does no harm, by whichever tool.
    Safe,
    /// The same tool may run twice. Another one would do the job a second time.
    BySameTool,
    /// Running it twice may do something twice.
    Unsafe,
}

/// Who waits for a call that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dependants {
    /// With a default for it: they go on.
    pub covered: usize,
    /// Without: they cannot run.
    pub stranded: usize,
}

/// What to do, why, and what was known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub strategy: Strategy,
    /// Why, for a person.
    pub reason: String,
    /// From these facts.
    pub facts: Facts,
}

/// Decides what to do about a failure.
///
/// The order is the promise: the cheapest thing that can still bring the wanted result comes first, and a
/// person is bothered only if nothing else is left and somebody can do something about it.
pub fn decide(facts: Facts) -> Decision {
    let decision = |strategy, reason: String| Decision { strategy, reason, facts };
    let nature = match facts.nature {
        Nature::Transient => "transient error",
        Nature::Permanent => "permanent error",
    };
    if in_doubt(&facts) {
        return decision(
            Strategy::Escalate,
            "nobody knows whether the call took effect, and making it again could do it twice".into(),
        );
    }
    if facts.remaining.is_zero() || facts.code == Code::Cancelled {
        let over =
            if facts.remaining.is_zero() { "the time of the turn is over" } else { "the call was withdrawn" };
        return if facts.succeeded > 0 {
            decision(Strategy::PartialSuccess, format!("{over}; what is finished is returned"))
        } else {
            decision(Strategy::GracefulFailure, format!("{over} and nothing is finished"))
        };
    }
    let no_retry = match why_no_retry(&facts) {
        None => {
            let left = facts.attempts_left;
            let circuit = circuit(facts.breaker);
            return decision(
                Strategy::Retry,
                format!("{nature}, {circuit}, retries available ({left} left)"),
            );
        }
        Some(reason) => reason,
    };
    if facts.alternatives > 0 && alternative_may_run(facts.code) && !would_do_it_again(&facts) {
        return decision(
            Strategy::AlternativeTool,
            format!("{nature} ({no_retry}), an alternative is available"),
        );
    }
    if facts.need == Need::Optional {
        return decision(Strategy::PartialSuccess, format!("{nature} ({no_retry}) of an optional call"));
    }
    let Dependants { covered, stranded } = facts.dependants;
    if covered > 0 && stranded == 0 {
        return decision(
            Strategy::PartialSuccess,
            format!("{nature} ({no_retry}), but everything that depends on it has a default"),
        );
    }
    match facts.nature {
        Nature::Permanent => {
            decision(Strategy::Escalate, format!("{nature} ({no_retry}) of a required call"))
        }
        Nature::Transient if stranded > 0 => decision(
            Strategy::Escalate,
            match stranded {
                1 => format!("{nature} ({no_retry}), and another call needs its output"),
                _ => format!("{nature} ({no_retry}), and {stranded} other calls need its output"),
            },
        ),
        Nature::Transient => {
            decision(Strategy::GracefulFailure, format!("{nature} ({no_retry}); it may work later"))
        }
    }
}

/// Whether the call may have had its effect without anyone knowing. Then neither a retry nor an
/// alternative may run: both could do the same thing twice.
fn in_doubt(facts: &Facts) -> bool {
    facts.code == Code::OutcomeUnknown || (facts.reach == Reach::Unknown && facts.repeat == Repeat::Unsafe)
}

/// Whether the call may have had its effect, so that another tool could have it a second time, although the same tool cannot.
fn would_do_it_again(facts: &Facts) -> bool {
    facts.reach == Reach::Unknown && facts.repeat == Repeat::BySameTool
}

fn why_no_retry(facts: &Facts) -> Option<&'static str> {
    let circuit_refuses = refuses(facts.breaker);
    match facts.nature {
        Nature::Permanent => Some("no retry helps"),
        Nature::Transient if circuit_refuses => Some("circuit open"),
        Nature::Transient if facts.attempts_left == 0 => Some("no retries left"),
        Nature::Transient if facts.wait >= facts.remaining => Some("no time for a retry"),
        Nature::Transient => None,
    }
}

/// Whether a breaker in this state refuses calls. A half-open one lets some through; who is refused by it
/// learns so at once.
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

/// Whether a call that ended with this code may be done by another tool.
///
/// Not where the same intent already ran or runs, or where nobody could look whether it did (the store was away), not
/// where a person said no, and not where the turn itself may make no more calls.
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
    const TIMEOUT: Facts = Facts {
        code: Code::Timeout,
        nature: Nature::Transient,
        reach: Reach::Unknown,
        repeat: Repeat::Safe,
        breaker: State::Closed,
        attempts: 1,
        attempts_left: 4,
        wait: Duration::from_millis(100),
        remaining: Duration::from_secs(200),
        alternatives: 0,
        need: Need::Required,
        dependants: Dependants { covered: 0, stranded: 0 },
        succeeded: 0,
    };

    const INVALID: Facts =
        Facts { code: Code::ToolError, nature: Nature::Permanent, reach: Reach::Answered, ..TIMEOUT };

    const EXHAUSTED: Facts = Facts { code: Code::RetryExhausted, attempts: 5, attempts_left: 0, ..TIMEOUT };

    #[test]
    fn eh_6_2_a_transient_error_with_a_closed_circuit_and_retries_left_is_retried() {
        let decision = decide(TIMEOUT);
        assert_eq!(decision.strategy, Strategy::Retry);
        assert_eq!(decision.reason, "transient error, circuit closed, retries available (4 left)");
        assert_eq!(decision.facts, TIMEOUT);
    }

    #[test]
    fn eh_6_5_a_permanent_error_is_escalated() {
        let decision = decide(INVALID);
        assert_eq!(decision.strategy, Strategy::Escalate);
        assert_eq!(decision.reason, "permanent error (no retry helps) of a required call");
    }

    #[test]
    fn gr_5_a_tool_error_leads_to_an_alternative_or_is_escalated_and_nothing_waits() {
        for failure in [INVALID, EXHAUSTED] {
            assert_eq!(decide(Facts { alternatives: 1, ..failure }).strategy, Strategy::AlternativeTool);
            let needed = Dependants { covered: 0, stranded: 1 };
            assert_eq!(decide(Facts { dependants: needed, ..failure }).strategy, Strategy::Escalate);
        }
    }

    #[test]
    fn each_combination_has_its_strategy_and_reason() {
        use Strategy::{AlternativeTool, Escalate, GracefulFailure, PartialSuccess, Retry};
        let open = Facts { breaker: State::Open, ..TIMEOUT };
        let optional = Need::Optional;
        let covered = Dependants { covered: 2, stranded: 0 };
        let mixed = Dependants { covered: 2, stranded: 1 };
        let cases = [
            (Facts { breaker: State::HalfOpen, ..TIMEOUT }, Retry, "circuit half-open"),
            (Facts { alternatives: 1, ..TIMEOUT }, Retry, "retries available"),
            (Facts { need: optional, ..TIMEOUT }, Retry, "retries available"),
            (open, GracefulFailure, "circuit open"),
            (Facts { breaker: State::ForcedOpen, ..open }, GracefulFailure, "circuit open"),
            (Facts { alternatives: 1, ..open }, AlternativeTool, "circuit open"),
            (EXHAUSTED, GracefulFailure, "no retries left"),
            (Facts { alternatives: 2, ..EXHAUSTED }, AlternativeTool, "no retries left"),
            (Facts { need: optional, ..EXHAUSTED }, PartialSuccess, "optional"),
            (Facts { dependants: covered, ..EXHAUSTED }, PartialSuccess, "has a default"),
            (Facts { dependants: mixed, ..EXHAUSTED }, Escalate, "another call needs its output"),
            (Facts { wait: Duration::from_secs(200), ..TIMEOUT }, GracefulFailure, "no time for a retry"),
            (Facts { alternatives: 1, ..INVALID }, AlternativeTool, "permanent error"),
            (Facts { need: optional, ..INVALID }, PartialSuccess, "optional"),
            (Facts { dependants: covered, ..INVALID }, PartialSuccess, "has a default"),
            (Facts { dependants: mixed, ..INVALID }, Escalate, "required"),
            // The end of the turn: nothing is retried, nothing replaced.
            (
                Facts { remaining: Duration::ZERO, alternatives: 1, ..TIMEOUT },
                GracefulFailure,
                "nothing is finished",
            ),
            (
                Facts { remaining: Duration::ZERO, succeeded: 1, ..TIMEOUT },
                PartialSuccess,
                "what is finished",
            ),
            (Facts { code: Code::Cancelled, alternatives: 1, ..INVALID }, GracefulFailure, "withdrawn"),
            // Nobody knows whether it ran.
            (Facts { repeat: Repeat::Unsafe, alternatives: 1, need: optional, ..TIMEOUT }, Escalate, "twice"),
            (Facts { code: Code::OutcomeUnknown, alternatives: 1, ..INVALID }, Escalate, "twice"),
            (Facts { repeat: Repeat::Unsafe, reach: Reach::Refused, ..TIMEOUT }, Retry, "retries available"),
            (
                Facts { repeat: Repeat::BySameTool, alternatives: 1, attempts_left: 0, ..TIMEOUT },
                GracefulFailure,
                "later",
            ),
            (
                Facts { repeat: Repeat::Safe, alternatives: 1, attempts_left: 0, ..TIMEOUT },
                AlternativeTool,
                "available",
            ),
            (
                Facts { repeat: Repeat::BySameTool, reach: Reach::Answered, alternatives: 1, ..INVALID },
                AlternativeTool,
                "available",
            ),
            // Another tool must not do what ran, what runs, or what a person refused.
            (Facts { code: Code::ApprovalDenied, alternatives: 1, ..INVALID }, Escalate, "required"),
            (Facts { code: Code::IdempotencyConflict, alternatives: 1, ..INVALID }, Escalate, "required"),
            (Facts { code: Code::InFlight, alternatives: 1, ..EXHAUSTED }, GracefulFailure, "later"),
            // It may have run in an earlier submission, and the store could not be asked.
            (Facts { code: Code::StoreUnavailable, alternatives: 1, ..EXHAUSTED }, GracefulFailure, "later"),
            (Facts { code: Code::ToolErrorLimit, alternatives: 1, ..INVALID }, Escalate, "required"),
            // It was done, and what it gave is gone.
            (Facts { code: Code::ResultNotKept, alternatives: 1, ..INVALID }, Escalate, "required"),
            (Facts { code: Code::ResultTooLarge, alternatives: 1, ..INVALID }, Escalate, "required"),
            (Facts { code: Code::DeadlineExceeded, alternatives: 1, ..EXHAUSTED }, GracefulFailure, "later"),
            (Facts { code: Code::ToolBlocked, alternatives: 1, ..INVALID }, AlternativeTool, "alternative"),
        ];
        for (facts, strategy, because) in cases {
            let decision = decide(facts);
            assert_eq!(decision.strategy, strategy, "{facts:?}");
            assert!(decision.reason.contains(because), "{} for {facts:?}", decision.reason);
        }
    }
}

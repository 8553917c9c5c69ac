//! Events and steps of a turn: the input and the output of its state machine.

use std::time::Duration;

use steadfast_core::breaker::State as BreakerState;
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::code::Code;
use steadfast_core::id::{ToolCallId, ToolRef};
use steadfast_json::RawJson;

use super::choice::CandidateChoice;
use super::handler::RepeatSafety;
use super::result::TurnResult;

/// An event of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// A started call has ended, after all its retries.
    Ended {
        /// The call.
        id: ToolCallId,
        /// Its result.
        end: PlannedCallEnd,
        /// True if the call had ended before and the engine replayed its result.
        replayed: bool,
    },
    /// The circuit breaker of a tool has changed its state.
    BreakerChanged {
        /// The tool. A tool that is not in the plan is ignored.
        tool: ToolRef,
        /// The new state.
        state: BreakerState,
    },
    /// A call of the tool has started, and the effect of the end of the turn on it is now known.
    ToolKnown {
        /// The tool. A tool that is not in the plan is ignored.
        tool: ToolRef,
        /// The effect of the end of the turn.
        stop: TurnEndEffect,
    },
    /// Time has passed. Required at the deadline, after all events up to then. Harmless at any other time.
    Tick,
    /// The driver did not send this call and will not send it. The end of the turn follows, with the reason.
    NotStarted {
        /// The call.
        id: ToolCallId,
    },
    /// The caller cancels the turn.
    Cancel,
}

/// The result of a call, as the engine reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedCallEnd {
    /// The call succeeded.
    Succeeded {
        /// Its output.
        output: RawJson,
        /// Attempts made.
        attempts: u32,
    },
    /// The call failed.
    Failed(TurnCallFailure),
}

/// A call that failed after all its retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnCallFailure {
    /// The error code of its result.
    pub code: Code,
    /// The error message.
    pub message: String,
    /// The classification rule that matched the failure.
    pub rule: Option<String>,
    /// Transient or permanent.
    pub nature: FaultNature,
    /// Progress of the call, over all its attempts.
    pub reach: AttemptReach,
    /// Safety of making the call again.
    pub repeat: RepeatSafety,
    /// The policy for a call like this with an unknown outcome.
    pub unknown_outcome: UnknownOutcomeHandling,
    /// Attempts made.
    pub attempts: u32,
    /// Timeout of the last attempt, if the attempt exceeded it.
    pub timed_out_after: Option<Duration>,
}

impl TurnCallFailure {
    /// Returns the failure of a call that was never sent.
    pub fn not_sent(code: Code, nature: FaultNature, message: String) -> Self {
        Self {
            code,
            message,
            rule: None,
            nature,
            reach: AttemptReach::NotSent,
            repeat: RepeatSafety::Safe,
            unknown_outcome: UnknownOutcomeHandling::Reported,
            attempts: 0,
            timed_out_after: None,
        }
    }
}

/// An action that the driver takes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnStep {
    /// Start a call.
    Run {
        /// The call.
        id: ToolCallId,
        /// The tool, which may be an alternative.
        tool: ToolRef,
        /// The arguments.
        arguments: RawJson,
        /// The timeout of the plan for one attempt.
        timeout: Option<Duration>,
        /// The choice that was made for the call. The driver stores it before it sends the call, so that the turn can
        /// be resubmitted; see [`TurnLease::document_with_choice`](super::TurnLease::document_with_choice).
        choice: CandidateChoice,
    },
    /// Stop a running call.
    Cancel {
        /// The call.
        id: ToolCallId,
    },
    /// Let a running call continue, and have its result recorded.
    Leave {
        /// The call.
        id: ToolCallId,
    },
    /// The turn has ended. Only late results of cut-off calls follow.
    Done(TurnResult),
}

/// The facts about a tool that the machine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolFacts {
    /// The state of its circuit breaker.
    pub breaker: BreakerState,
    /// The effect of the end of the turn on a running call of the tool.
    pub stop: TurnEndEffect,
}

/// The handling of a call with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownOutcomeHandling {
    /// The call is made again, or its record was not read. Its result then says nothing about the effects of earlier
    /// runs.
    Rerun,
    /// The unknown outcome is reported and stays in the record of the call.
    Reported,
}

/// The effect of the end of a turn on a running call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEndEffect {
    /// The call is cancelled and leaves nothing behind.
    Cancel,
    /// The call may have an effect that a cancel cannot undo, so it is left to finish and is recorded.
    Leave,
}

impl Default for ToolFacts {
    /// Returns the facts of an unknown tool. It must not be declared stopped.
    fn default() -> Self {
        Self { breaker: BreakerState::Closed, stop: TurnEndEffect::Leave }
    }
}

/// An event that does not fit the state of the turn. The machine is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TurnMisuse {
    /// The plan has no such call.
    #[error("the plan has no call {0:?}")]
    UnknownCall(ToolCallId),
    /// The call is not running.
    #[error("the call {0:?} is not running")]
    NotRunning(ToolCallId),
}

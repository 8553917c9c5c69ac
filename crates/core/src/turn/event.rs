//! What goes into the machine of a turn and what comes out of it.

use std::fmt;
use std::time::Duration;

use crate::breaker::State as BreakerState;
use crate::classify::{Nature, Reach};
use crate::code::Code;
use crate::id::{ToolCallId, ToolRef};
use crate::output::RawJson;

use super::choice::Choice;
use super::handler::Repeat;
use super::result::TurnResult;

/// What happens to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call that was started has ended, after all retries that it had.
    Ended {
        /// Which.
        id: ToolCallId,
        /// How.
        end: CallEnd,
        /// Whether it had ended before, and the engine gave its answer again.
        replayed: bool,
    },
    /// The breaker of a tool has changed.
    BreakerChanged {
        /// Of this tool; one that is not in the plan is ignored.
        tool: ToolRef,
        /// To this.
        state: BreakerState,
    },
    /// A call of the tool has begun, and now it is known what the end of the turn does to it.
    Known {
        /// Of this tool; one that is not in the plan is ignored.
        tool: ToolRef,
        /// This.
        stop: Stop,
    },
    /// Time has passed. Needed at the deadline, after all that happened until then; harmless at any other time.
    Tick,
    /// Nothing of this call was sent, and nothing will be: the driver did not come to it. The end of the turn follows, which
    /// says why.
    NotStarted {
        /// Which.
        id: ToolCallId,
    },
    /// The caller withdraws the turn.
    Cancel,
}

/// How a call ended, as the engine says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// It did its job.
    Succeeded {
        /// What it gave.
        output: RawJson,
        /// Attempts it took.
        attempts: u32,
    },
    /// It did not.
    Failed(Failure),
}

/// A call that failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code of its result.
    pub code: Code,
    /// What was said.
    pub message: String,
    /// The rule that says what kind of failure that is.
    pub rule: Option<String>,
    /// Whether it can succeed later.
    pub nature: Nature,
    /// How far it got, over all its attempts.
    pub reach: Reach,
    /// Whether it may be made twice.
    pub repeat: Repeat,
    /// What is done about a call like this of which nobody knows whether it ran.
    pub doubt: Doubt,
    /// Attempts made.
    pub attempts: u32,
    /// What its last attempt was allowed, if it took longer.
    pub timed_out_after: Option<Duration>,
}

impl Failure {
    /// Of a call that nobody was asked to make.
    pub fn not_sent(code: Code, nature: Nature, message: String) -> Self {
        Self {
            code,
            message,
            rule: None,
            nature,
            reach: Reach::NotSent,
            repeat: Repeat::Safe,
            doubt: Doubt::Told,
            attempts: 0,
            timed_out_after: None,
        }
    }
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start a call.
    Run {
        /// Which.
        id: ToolCallId,
        /// With this tool, which may be an alternative.
        tool: ToolRef,
        /// With these arguments.
        arguments: RawJson,
        /// The time-out of the plan for one attempt.
        timeout: Option<Duration>,
        /// What was chosen for it. It has to be kept before the call is sent, for the turn to be submitted again; see
        /// [`Hold::choosing`](super::Hold::choosing).
        choice: Choice,
    },
    /// Stop a running call.
    Cancel {
        /// Which.
        id: ToolCallId,
    },
    /// Let a running call go on, and have its end recorded.
    Leave {
        /// Which.
        id: ToolCallId,
    },
    /// The turn has ended. Nothing but late results of what was cut off follows.
    Done(TurnResult),
}

/// What the machine has to know about a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolFacts {
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// What the end of the turn does to a running call of it.
    pub stop: Stop,
}

/// What is done about a call of which nobody knows whether it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It is made again, or nobody looked for its record: how it ends says nothing of what it did before.
    MadeAgain,
    /// It is told, and kept in its record.
    Told,
}

/// What the end of a turn does to a running call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is cancelled; nothing is left of it.
    Cancel,
    /// It may have an effect that a cancel cannot take back, so it is left to finish and recorded.
    Leave,
}

impl Default for ToolFacts {
    /// A tool that nothing is known about is not declared stopped.
    fn default() -> Self {
        Self { breaker: BreakerState::Closed, stop: Stop::Leave }
    }
}

/// An event that does not fit; the machine is as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The plan has no such call.
    UnknownCall(ToolCallId),
    /// The call is not running.
    NotRunning(ToolCallId),
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCall(id) => write!(f, "the plan has no call {id:?}"),
            Self::NotRunning(id) => write!(f, "the call {id:?} is not running"),
        }
    }
}

impl std::error::Error for Misuse {}

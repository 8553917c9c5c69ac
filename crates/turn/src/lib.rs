//! Turns: several calls of an agent that depend on each other.
//!
//! A turn always ends, and its result is honest. Independent calls continue when one call fails. A call that depends on
//! a failed call gets a default, is skipped or is escalated. An alternative tool runs instead of a failed one if the
//! plan has one. At the deadline the agent gets the results so far, with the reason for each missing one. This crate
//! decides all of that and executes nothing:
//!
//! - [`TurnPlan`] is a set of calls that was checked before anything runs, with all errors reported at once;
//! - [`TurnMachine`] is the state machine: it takes one [`TurnEvent`] and returns the next [`TurnStep`]s;
//! - [`decide`] is the error handler: it returns the action for one failure and the reason for it;
//! - [`trace`] is the trace of a turn, as events for programs and sentences for readers.
//!
//! A call within a turn is still one call of the engine, with its own retries, circuit breaker and deduplication. The
//! turn sees only the result of the call, so nothing here repeats a decision of the call.

use std::time::Duration;

use steadfast_core::envelope::TurnEnvelope;

mod choice;
mod draft;
mod event;
mod graph;
mod handler;
mod lease;
mod machine;
mod mistake;
mod params;
mod parser;
mod plan;
mod pointer;
mod progress;
mod result;
#[cfg(test)]
mod tests;
pub mod trace;

pub use choice::{CandidateChoice, SubmissionHistory};
pub use draft::{CallNeed, DraftAlternative, DraftCall, DraftDependency, PlanDraft, PlannedAlternative};
pub use event::{
    PlannedCallEnd, ToolFacts, TurnCallFailure, TurnEndEffect, TurnEvent, TurnMisuse, TurnStep,
    UnknownOutcomeHandling,
};
pub use handler::{DependantCounts, FailureDecision, FailureFacts, FailureStrategy, RepeatSafety, decide};
pub use lease::{TurnAcquisition, TurnDocument, TurnHolder, TurnLease, TurnWriteConflict};
pub use machine::TurnMachine;
pub use mistake::{PlanError, PlanErrors, PlanProblem};
pub use params::{ArgumentResolveError, CallParams, OutputParts, OutputReference};
pub use plan::{PlannedCall, PlannedDependency, TurnPlan};
pub use pointer::{InvalidJsonPointer, JsonPointer};
pub use progress::CallProgress;
pub use result::{TurnCallOutcome, TurnCallResult, TurnEndReason, TurnResult, TurnStatus};

/// Size limits of a turn. A plan comes from a model, so no part of it is assumed to be small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Calls in one plan. A higher value lets every turn hold more results at once. The maximum is
    /// [`TurnLimits::MAX_CALLS`].
    pub calls: usize,
    /// Dependencies in one plan, including those implied by a `$from`. The cost of a turn grows with them.
    pub edges: usize,
    /// Alternatives of one call. Each one is a further run that a failing call may cost.
    pub alternatives: usize,
    /// Size of a plan in bytes. This memory is held for the lifetime of the turn.
    pub bytes: usize,
    /// Nesting depth of a plan.
    pub depth: usize,
    /// The longest deadline. A plan may only ask for a shorter one.
    pub deadline: Duration,
    /// Calls that run at once. A plan may only ask for fewer. A higher value lets one turn take more of shared
    /// capacity.
    pub parallelism: usize,
    /// Size of the arguments of one call in bytes, after outputs were inserted.
    pub argument_bytes: usize,
    /// Size in bytes of one output that is stored for dependants and for the result.
    pub output_bytes: usize,
    /// Size in bytes of all outputs that one turn stores.
    pub stored_bytes: usize,
}

impl TurnLimits {
    /// The default limits.
    pub const DEFAULT: Self = Self {
        calls: TurnEnvelope::DEFAULT_CALLS,
        edges: 20_000,
        alternatives: TurnEnvelope::DEFAULT_ALTERNATIVES,
        bytes: 1 << 20,
        depth: 64,
        deadline: Duration::from_secs(300),
        parallelism: 16,
        argument_bytes: 1 << 20,
        output_bytes: 8 << 20,
        stored_bytes: 64 << 20,
    };

    /// The highest number of calls that any configuration allows in a plan.
    pub const MAX_CALLS: usize = 10_000;

    /// The nesting depth of an output up to which a `$from` can select a part of it.
    const OUTPUT_DEPTH: usize = 128;
}

impl Default for TurnLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Returns a text cut to at most `bytes`, at a character boundary, with a mark at the cut.
fn clip(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut cut: String = text
        .char_indices()
        .take_while(|(at, character)| at + character.len_utf8() <= bytes)
        .map(|(_, character)| character)
        .collect();
    cut.push('…');
    cut
}

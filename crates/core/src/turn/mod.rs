//! Turns: several calls of an agent that depend on each other.
//!
//! A turn must neither hang nor pretend. Independent calls go on when one fails; what depended on it is
//! given a default, skipped or escalated; an alternative steps in where there is one; and at the deadline
//! the agent gets what there is, with the reason for what is not. All of that is decided here and nothing
//! of it is done here:
//!
//! - [`Plan`] is a set of calls that was checked before anything runs, all mistakes at once;
//! - [`Turn`] is the machine: one [`Event`] in, the [`Step`]s to do next out;
//! - [`decide`] is the error handler: what to do about one failure, and why;
//! - [`trace`] is the story afterwards, in events a program can count and sentences a person can read.
//!
//! A call within a turn is still one call of the engine, with its own retries, breaker and dedupe. The turn
//! sees only how it ended, so nothing here repeats what a call decides for itself.

use std::time::Duration;

mod choice;
mod event;
mod graph;
mod handler;
mod heard;
mod hold;
mod machine;
mod mistake;
mod params;
mod plan;
mod read;
mod result;
#[cfg(feature = "schema")]
pub(crate) mod shape;
#[cfg(test)]
mod tests;
pub mod trace;

pub use choice::{Choice, Submitted};
pub use event::{CallEnd, Doubt, Event, Failure, Misuse, Step, Stop, ToolFacts};
pub use handler::{Decision, Dependants, Facts, Repeat, Strategy, decide};
pub use heard::Heard;
pub use hold::{Hold, Holder, Kept, Stale, Take};
pub use machine::Turn;
pub use mistake::{PlanError, PlanErrors, Problem};
pub use params::{InvalidPointer, Params, Pieces, Pointer, Reference, ResolveError};
pub use plan::{
    Alternative, Dependency, Draft, DraftAlternative, DraftCall, DraftDependency, Need, Plan, PlannedCall,
};
pub use result::{CallResult, EndedBy, Outcome, TurnResult, TurnStatus};

/// How large a turn may be. A plan comes from a model, so nothing in it is trusted to be small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls in one plan. Raised, every turn may hold so many results at once; [`Limits::MAX_CALLS`] is the end.
    pub calls: usize,
    /// Dependencies in one plan, those that a `$from` implies included. The cost of a turn grows with them.
    pub edges: usize,
    /// Alternatives of one call. Each one is a further run that a failing call may cost.
    pub alternatives: usize,
    /// Bytes of a plan. Raised, the same memory is held as long as the turn lives.
    pub bytes: usize,
    /// Containers within containers, in a plan.
    pub depth: usize,
    /// The longest deadline; a plan may ask for a shorter one only.
    pub deadline: Duration,
    /// Calls that run at once; a plan may ask for fewer only. Raised, a turn takes more of what others share.
    pub parallelism: usize,
    /// Bytes of the arguments of one call, after outputs were put into them.
    pub argument_bytes: usize,
    /// Bytes of one output that is kept for dependants and for the result.
    pub output_bytes: usize,
    /// Bytes of all outputs that one turn keeps.
    pub kept_bytes: usize,
}

impl Limits {
    /// What is used unless something else is configured.
    pub const DEFAULT: Self = Self {
        calls: 1_000,
        edges: 20_000,
        alternatives: 8,
        bytes: 1 << 20,
        depth: 64,
        deadline: Duration::from_secs(300),
        parallelism: 16,
        argument_bytes: 1 << 20,
        output_bytes: 8 << 20,
        kept_bytes: 64 << 20,
    };

    /// No configuration lets a plan have more calls than this.
    pub const MAX_CALLS: usize = 10_000;

    /// How deep an output may be nested for a `$from` to look into it.
    const OUTPUT_DEPTH: usize = 128;
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A text cut to at most `bytes`, at a character, with a mark that it was cut.
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

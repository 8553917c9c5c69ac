//! Choices that a turn made where its plan has alternatives, so that a resubmitted turn makes the same calls.
//!
//! The engine identifies a call by its turn, its id and its arguments. An alternative, or a default in place of an
//! output, makes it another call. The choice depends on the failures at the time and may differ on the next submission.
//! So the turn stores a choice before it sends the call.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use steadfast_core::id::{ToolCallId, ToolRef};

/// The choice for one call. The default is the planned choice. It is stored only if another choice was stored before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateChoice {
    /// The tool that makes the call: 0 is the planned one, then its alternatives.
    #[serde(default)]
    pub candidate: usize,
    /// Dependencies whose defaults were used in place of their outputs.
    #[serde(default)]
    pub defaults: Vec<ToolCallId>,
    /// The alternative itself, because a resubmitted plan may have another one at its position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
}

/// The submissions of a turn so far: this is the first, or a repeated one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmissionHistory {
    /// The first submission. No call of the turn has run.
    First,
    /// A resubmission. Any call may have run, with these choices where they differ from the plan.
    Repeated(BTreeMap<ToolCallId, CandidateChoice>),
}

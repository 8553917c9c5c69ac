//! What a turn chose where its plan left a choice, so that the same turn makes the same calls when it is submitted again.
//!
//! The engine recognises a call by its turn, its id and its arguments. An alternative, or a default in place of an output,
//! makes it another call; which of them it was depended on what failed at the time, and may come out differently the next
//! time. So a choice is written down before the call is sent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{ToolCallId, ToolRef};

/// How one call was made. The default is as planned: that need not be written down, unless it was chosen otherwise before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// By which tool: 0 is the planned one, then its alternatives.
    #[serde(default)]
    pub candidate: usize,
    /// With the defaults of these dependencies in place of their outputs.
    #[serde(default)]
    pub defaults: Vec<ToolCallId>,
    /// The alternative itself: the plan that comes again may have another one in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
}

/// Whether a turn comes for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Nothing of it can have run.
    First,
    /// Anything of it may have run, with these choices where it was not as planned.
    Again(BTreeMap<ToolCallId, Choice>),
}

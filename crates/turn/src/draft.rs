//! Unchecked plans, built in Rust, and the parts of a plan that its check leaves as they are.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::id::{ToolCallId, ToolRef, TurnId};
use steadfast_json::RawJson;

use super::params::CallParams;

/// An unchecked plan, built in Rust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanDraft {
    /// Id of the turn, for resubmission.
    pub turn: Option<TurnId>,
    /// The deadline of the turn. The default and the maximum is that of the limits.
    pub deadline: Option<Duration>,
    /// Number of calls that run at once. The default and the maximum is that of the limits.
    pub parallelism: Option<NonZeroUsize>,
    /// The calls.
    pub calls: Vec<DraftCall>,
}

/// An unchecked call, built in Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftCall {
    /// Its id within the plan.
    pub id: ToolCallId,
    /// The tool.
    pub tool: ToolRef,
    /// The parameters. The default is an empty object.
    pub params: Option<RawJson>,
    /// Its dependencies.
    pub depends_on: Vec<DraftDependency>,
    /// Required or optional.
    pub need: CallNeed,
    /// Alternatives to try after the tool has failed.
    pub alternatives: Vec<DraftAlternative>,
    /// The timeout of one attempt.
    pub timeout: Option<Duration>,
}

/// An unchecked dependency, built in Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftDependency {
    /// The call that it depends on.
    pub on: ToolCallId,
    /// The value that replaces its output.
    pub default: Option<RawJson>,
}

/// An unchecked alternative, built in Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftAlternative {
    /// The tool.
    pub tool: ToolRef,
    /// Its parameters, if they differ from those of the call.
    pub params: Option<RawJson>,
}

/// The importance of a call for its turn. A required call without a result is escalated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CallNeed {
    /// The call is required. Its absence is reported to the user.
    #[default]
    Required,
    /// The call is optional. The turn is complete without it.
    Optional,
}

/// Another tool for the same job.
#[derive(Clone, Debug)]
pub struct PlannedAlternative {
    /// The tool.
    pub tool: ToolRef,
    /// Its parameters, if they differ from those of the call.
    pub params: Option<CallParams>,
}

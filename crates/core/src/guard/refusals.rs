//! The current refusals of a session's guard.

use serde::{Deserialize, Serialize};

use super::{GuardLayer, LoopGuard};
use crate::Timestamp;
use crate::classify::ModelMistake;
use crate::id::{Digest, ToolRef, TurnId};
use crate::policy::GuardPolicy;

/// A call, a tool or a turn that the guard currently refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ActiveRefusal {
    /// The layer: a loop, too many failures in a turn, or repeated successes.
    pub layer: GuardLayer,
    /// The tool. Absent if the turn is stopped with all its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
    /// The digest of the refused arguments. Absent if every call of the tool is refused, because the tool does not
    /// exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Digest>,
    /// The turn, if a turn named by the host is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The mistake of the model, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistake: Option<ModelMistake>,
    /// Number of failures, or of repeated successes.
    pub count: u32,
    /// Time at which it was stopped.
    pub since: Timestamp,
    /// Time at which one try is admitted. Absent if only another turn ends it. A success of another call may end it
    /// sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl LoopGuard {
    /// Returns the current refusals, the newest last.
    pub fn stopped(&self, policy: &GuardPolicy, now: Timestamp) -> Vec<ActiveRefusal> {
        let failing = self.failing.iter().filter_map(|failing| {
            let (since, until) = failing.hold.filter(|hold| hold.lasts(now))?.span();
            Some(ActiveRefusal {
                layer: GuardLayer::Loop,
                tool: Some(failing.subject.tool.clone()),
                arguments: failing.subject.arguments,
                turn: None,
                mistake: failing.mistake,
                count: failing.failures,
                since,
                until: Some(until),
            })
        });
        let repeats = self.repeats.iter().filter_map(|repeat| {
            let (since, until) = repeat.hold.filter(|hold| hold.lasts(now))?.span();
            Some(ActiveRefusal {
                layer: GuardLayer::RepeatedSuccess,
                tool: Some(repeat.subject.tool.clone()),
                arguments: repeat.subject.arguments,
                turn: None,
                mistake: None,
                count: repeat.count,
                since,
                until: Some(until),
            })
        });
        let turns = self.turns.stopped(policy, now).map(|stopped| ActiveRefusal {
            layer: GuardLayer::TurnLimit,
            tool: None,
            arguments: None,
            turn: stopped.turn,
            mistake: None,
            count: stopped.failures,
            since: stopped.since,
            until: stopped.until,
        });
        let mut all: Vec<_> = failing.chain(repeats).chain(turns).collect();
        all.sort_by_key(|stopped| stopped.since);
        all
    }
}

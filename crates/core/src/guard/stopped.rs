//! Who is stopped now, for people who look at a session.

use serde::{Deserialize, Serialize};

use super::{Layer, LoopGuard};
use crate::Timestamp;
use crate::classify::Mistake;
use crate::id::{Digest, ToolRef, TurnId};
use crate::policy::GuardPolicy;

/// Something that the guard refuses at this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    /// Why: a loop, too many failures in a turn, the same success again and again.
    pub layer: Layer,
    /// The tool; nothing if the turn is stopped with all its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
    /// The digest of the arguments that are refused; without one every call of the tool is, because there is no such tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Digest>,
    /// The turn, where a turn is stopped that the host named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Whether it was a mistake of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistake: Option<Mistake>,
    /// Failures, or successes that were repeated.
    pub count: u32,
    /// Since when.
    pub since: Timestamp,
    /// When one try is let through; nothing if only another turn ends it. Something else that works may end it sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl LoopGuard {
    /// What it refuses now, the newest last.
    pub fn stopped(&self, policy: &GuardPolicy, now: Timestamp) -> Vec<Stopped> {
        let failing = self.failing.iter().filter_map(|failing| {
            let (since, until) = failing.hold.filter(|hold| hold.lasts(now))?.span();
            Some(Stopped {
                layer: Layer::Loop,
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
            Some(Stopped {
                layer: Layer::RepeatedSuccess,
                tool: Some(repeat.subject.tool.clone()),
                arguments: repeat.subject.arguments,
                turn: None,
                mistake: None,
                count: repeat.count,
                since,
                until: Some(until),
            })
        });
        let turns = self.turns.stopped(policy, now).map(|stopped| Stopped {
            layer: Layer::TurnLimit,
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

//! The ground truth of the world, whatever the machines believe: the goals of clients, the effects, and the deliveries.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_core::Timestamp;
use steadfast_core::dedupe::ClaimOwner;
use steadfast_core::id::ToolRef;

use crate::history::RunHistory;
use crate::invariants::InvariantViolation;
use crate::store_loss::StoreLoss;
use crate::turns::TurnGoal;
use crate::unknown_outcomes::UnknownRun;

/// The way in which a call is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallIdentity {
    /// By an explicit key. Other calls may use the same one.
    Explicit(u64),
    /// By a call id, the same for every resend.
    CallId,
    /// By its arguments alone.
    Keyless,
    /// As part of a turn.
    Turn(TurnCall),
}

/// A call of a turn with the candidate that it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnCall {
    pub(crate) turn: usize,
    /// Index in the plan.
    pub(crate) call: usize,
    pub(crate) candidate: usize,
}

/// An effect that a client wants once.
#[derive(Clone, Debug)]
pub(crate) struct ClientGoal {
    pub(crate) client: usize,
    pub(crate) kind: CallIdentity,
    pub(crate) arguments: u64,
    pub(crate) tries: u32,
    pub(crate) over: bool,
    /// Calls that its client has made for it so far. A resend of an unanswered call is the same call.
    pub(crate) calls: u32,
    /// Number of such effects before it, as far as its client knows.
    pub(crate) before: Option<usize>,
    /// The process that last answered its client.
    pub(crate) answered_by: Option<usize>,
    pub(crate) fate: GoalStatus,
}

/// The state of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoalStatus {
    /// Its client still wants it, or has given up.
    Open,
    /// Its client knows that it is done.
    Done,
    /// An operator refused it, or its key is used for other arguments.
    Refused,
}

impl ClientGoal {
    pub(crate) fn new(client: usize, kind: CallIdentity, arguments: u64) -> Self {
        Self {
            client,
            kind,
            arguments,
            tries: 0,
            over: false,
            calls: 0,
            before: None,
            answered_by: None,
            fate: GoalStatus::Open,
        }
    }

    /// Returns true if equal calls of its client find it.
    pub(crate) fn is_indexed(&self) -> bool {
        match self.kind {
            CallIdentity::CallId | CallIdentity::Keyless => true,
            CallIdentity::Explicit(_) | CallIdentity::Turn(_) => false,
        }
    }
}

/// An identity under which at most one effect may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UniqueEffect {
    Explicit(u64),
    /// The goal, and the number of the call for it.
    CallId(usize, u32),
    Turn(TurnCall),
}

/// A completed effect of a tool.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) at: Timestamp,
    pub(crate) intent: Option<UniqueEffect>,
    pub(crate) goal: usize,
    /// Client and arguments, from which the index is made.
    pub(crate) equal: (usize, u64),
    /// The claim under which it happened.
    pub(crate) owner: Option<ClaimOwner>,
    /// Time at which the call was granted the run.
    pub(crate) claimed: Timestamp,
    pub(crate) number: u64,
    /// Time at which its turn was submitted, if it belongs to one.
    pub(crate) submitted: Option<Timestamp>,
}

/// The ground truth of a world.
#[derive(Debug, Default)]
pub(crate) struct GroundTruth {
    pub(crate) goals: Vec<ClientGoal>,
    pub(crate) effects: Vec<Effect>,
    /// Time at which the answer of a run first reached a client.
    pub(crate) delivered_at: BTreeMap<ClaimOwner, Timestamp>,
    /// Time at which a run ended with an answer.
    pub(crate) finished_at: BTreeMap<ClaimOwner, Timestamp>,
    /// Responses about runs with an unknown outcome.
    pub(crate) unknown_runs: BTreeMap<ClaimOwner, UnknownRun>,
    /// Goals whose answer crossed another message of its client and was lost after that. It counts as delivered, which
    /// is not promised to be right.
    pub(crate) crossed: BTreeSet<(usize, u64)>,
    /// Answers that were given out as recorded under an explicit key, and since when.
    pub(crate) recorded: BTreeMap<u64, (String, Timestamp)>,
    /// An invariant that was found violated inside the store.
    pub(crate) broken: Option<InvariantViolation>,
    /// Keys and arguments that ran without the store, as the policy allows.
    pub(crate) unprotected: BTreeSet<(usize, u64)>,
    pub(crate) unprotected_keys: BTreeSet<u64>,
    /// Claims whose tool answered while their process lived.
    pub(crate) answered: BTreeSet<ClaimOwner>,
    /// Failures reported to a session, by process, client and arguments.
    pub(crate) failures: BTreeMap<(usize, u64, usize, u64), u32>,
    /// Losses of the store: time and content.
    pub(crate) emptyings: Vec<StoreLoss>,
    /// Number of operator actions with the same number. They are not ordered.
    pub(crate) words: BTreeMap<u64, u32>,
    /// Turns that clients want.
    pub(crate) turns: Vec<TurnGoal>,
    /// Calls of turns that ran without the store.
    pub(crate) unprotected_turns: BTreeSet<(usize, usize)>,
    /// Time at which a turn first learned that a call succeeded and is recorded, and submission time of that turn.
    pub(crate) succeeded: BTreeMap<(usize, usize), (Timestamp, Timestamp)>,
    pub(crate) history: RunHistory,
    /// Tools and arguments with which a call of a turn was made.
    pub(crate) made: BTreeMap<TurnCall, BTreeSet<(ToolRef, u64)>>,
}

impl GroundTruth {
    /// Returns the effect that an answer reports.
    pub(crate) fn effect_of(&self, content: &str) -> Option<&Effect> {
        let number = content.trim_matches('"').strip_prefix("effect ")?.parse::<u64>().ok()?;
        self.effects.iter().find(|effect| effect.number == number)
    }

    /// Returns the number of effects of the kind that this goal wants.
    pub(crate) fn matching_effects(&self, goal: &ClientGoal) -> usize {
        let is_one = |effect: &&Effect| match (goal.kind, effect.intent) {
            (CallIdentity::Explicit(key), intent) => intent == Some(UniqueEffect::Explicit(key)),
            (CallIdentity::CallId | CallIdentity::Keyless, None | Some(UniqueEffect::CallId(..))) => {
                effect.equal == (goal.client, goal.arguments)
            }
            (
                CallIdentity::CallId | CallIdentity::Keyless,
                Some(UniqueEffect::Explicit(_) | UniqueEffect::Turn(_)),
            ) => false,
            (CallIdentity::Turn(call), intent) => intent == Some(UniqueEffect::Turn(call)),
        };
        self.effects.iter().filter(is_one).count()
    }
}

//! What is true of the world, whatever the machines believe: what was wished for, what took effect, what arrived.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_core::Timestamp;
use steadfast_core::dedupe::Owner;
use steadfast_core::id::ToolRef;

use crate::emptied::Emptying;
use crate::history::History;
use crate::invariants::Broken;
use crate::turns::TurnWish;
use crate::unknown_outcomes::UnknownRun;

/// How a wish is made known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Under a key that means intent; others may use the same.
    Explicit(u64),
    /// With an id of the dispatch, the same for every resend.
    CallId,
    /// With nothing but its arguments.
    Keyless,
    /// As part of a turn.
    Turn(TurnCall),
}

/// A call of a turn, as it was made: by which of its candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnCall {
    pub(crate) turn: usize,
    /// Its place in the plan.
    pub(crate) call: usize,
    pub(crate) candidate: usize,
}

/// Something that a client wants done, once.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) client: usize,
    pub(crate) kind: Kind,
    pub(crate) arguments: u64,
    pub(crate) tries: u32,
    pub(crate) over: bool,
    /// Calls that its client has made for it so far. A resend of what was not answered is the same call.
    pub(crate) calls: u32,
    /// How many such effects there were before it, as its client knows.
    pub(crate) before: Option<usize>,
    /// The process whose answer its client heard last.
    pub(crate) told_by: Option<usize>,
    pub(crate) fate: Fate,
}

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its client still wants it, or has given up.
    Open,
    /// Its client knows that it is done.
    Done,
    /// A person said no, or its key stands for something else.
    Refused,
}

impl Wish {
    pub(crate) fn new(client: usize, kind: Kind, arguments: u64) -> Self {
        Self {
            client,
            kind,
            arguments,
            tries: 0,
            over: false,
            calls: 0,
            before: None,
            told_by: None,
            fate: Fate::Open,
        }
    }

    /// Whether equal calls of its client find it.
    pub(crate) fn is_indexed(&self) -> bool {
        match self.kind {
            Kind::CallId | Kind::Keyless => true,
            Kind::Explicit(_) | Kind::Turn(_) => false,
        }
    }
}

/// What must happen at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Intent {
    Explicit(u64),
    /// The wish, and which call for it.
    CallId(usize, u32),
    Turn(TurnCall),
}

/// A tool has done what it was called for.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) at: Timestamp,
    pub(crate) intent: Option<Intent>,
    pub(crate) wish: usize,
    /// Client and arguments: what the index is made of.
    pub(crate) equal: (usize, u64),
    /// Under which claim.
    pub(crate) owner: Option<Owner>,
    /// When the call was given the run.
    pub(crate) claimed: Timestamp,
    pub(crate) number: u64,
    /// When the turn was submitted that it belongs to, if it does.
    pub(crate) submitted: Option<Timestamp>,
}

/// The truth.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) wishes: Vec<Wish>,
    pub(crate) effects: Vec<Effect>,
    /// When the answer of this run first reached a client.
    pub(crate) told: BTreeMap<Owner, Timestamp>,
    /// When this run ended with an answer.
    pub(crate) ended: BTreeMap<Owner, Timestamp>,
    /// What was said about runs whose outcome is unknown.
    pub(crate) unknown_runs: BTreeMap<Owner, UnknownRun>,
    /// Wishes whose answer crossed another message of its client and was lost after that. It counts as delivered, which is
    /// not promised to be right.
    pub(crate) crossed: BTreeSet<(usize, u64)>,
    /// What was given out as recorded under an explicit key, and since when.
    pub(crate) recorded: BTreeMap<u64, (String, Timestamp)>,
    /// A promise that was seen broken inside the store.
    pub(crate) broken: Option<Broken>,
    /// Keys and arguments that ran without the store, as the policy allows.
    pub(crate) unprotected: BTreeSet<(usize, u64)>,
    pub(crate) unprotected_keys: BTreeSet<u64>,
    /// Claims whose tool answered while their process lived.
    pub(crate) answered: BTreeSet<Owner>,
    /// Failures that a session was told of, by process, client and arguments.
    pub(crate) failures: BTreeMap<(usize, u64, usize, u64), u32>,
    /// When the store lost everything, and what.
    pub(crate) emptyings: Vec<Emptying>,
    /// How many words of operators took the same number. They are not ordered.
    pub(crate) words: BTreeMap<u64, u32>,
    /// Turns that clients want.
    pub(crate) turns: Vec<TurnWish>,
    /// Calls of turns that ran without the store.
    pub(crate) unprotected_turns: BTreeSet<(usize, usize)>,
    /// When a turn first heard that a call succeeded and is recorded, and when that turn was submitted.
    pub(crate) succeeded: BTreeMap<(usize, usize), (Timestamp, Timestamp)>,
    pub(crate) history: History,
    /// Of which tool and with which arguments a call of a turn was made.
    pub(crate) made: BTreeMap<TurnCall, BTreeSet<(ToolRef, u64)>>,
}

impl Model {
    /// The effect that an answer tells of.
    pub(crate) fn effect_of(&self, content: &str) -> Option<&Effect> {
        let number = content.trim_matches('"').strip_prefix("effect ")?.parse::<u64>().ok()?;
        self.effects.iter().find(|effect| effect.number == number)
    }

    /// How many effects there are of the kind that this wish is for.
    pub(crate) fn effects_like(&self, wish: &Wish) -> usize {
        let is_one = |effect: &&Effect| match (wish.kind, effect.intent) {
            (Kind::Explicit(key), intent) => intent == Some(Intent::Explicit(key)),
            (Kind::CallId | Kind::Keyless, None | Some(Intent::CallId(..))) => {
                effect.equal == (wish.client, wish.arguments)
            }
            (Kind::CallId | Kind::Keyless, Some(Intent::Explicit(_) | Intent::Turn(_))) => false,
            (Kind::Turn(call), intent) => intent == Some(Intent::Turn(call)),
        };
        self.effects.iter().filter(is_one).count()
    }
}

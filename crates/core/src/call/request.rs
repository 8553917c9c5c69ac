//! What a call asks for, with everything that was derived from it before the machine starts.

use std::sync::Arc;

use crate::Timestamp;
use crate::approval::Channel;
use crate::dedupe::{Address, Process, RunId};
use crate::envelope::CallContext;
use crate::id::{
    ActorId, Digest, Domain, ModelId, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId,
};
use crate::key::{self, Key};
use crate::policy::{Ambiguous, Policy, ToolClass};
use crate::retry::CallerLimits;
use crate::trust::Signature;

/// What a call asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// This request; a resend has another.
    pub id: RequestId,
    /// The tool.
    pub tool: ToolRef,
    /// The model's id of the call.
    pub tool_call: Option<ToolCallId>,
    /// The caller's own words about it.
    pub context: Option<Arc<CallContext>>,
    /// The conversation.
    pub session: Option<SessionKey>,
    /// Who acts.
    pub actor: Option<ActorId>,
    /// Whose data it is.
    pub tenant: Option<TenantId>,
    /// The turn, if the host tells it.
    pub turn: Option<TurnId>,
    /// The trace that it belongs to, where that may be its turn; see [`LoopGuard::is_turn`](crate::guard::LoopGuard::is_turn).
    pub trace: Option<TurnId>,
    /// The model, if the host tells it.
    pub model: Option<ModelId>,
    /// Whether and how duplicates are recognised.
    pub duplicates: Duplicates,
    /// The key that travels upstream with it.
    pub sent_key: SentKey,
    /// Answers that a computed key finds count only if they were recorded since then: duplicates of this tool were not
    /// recognised before.
    pub computed_since: Option<Timestamp>,
    /// Whether it belongs to a turn that may be submitted again. What is told again to such a call was counted when it was
    /// first told, or the turn could not go on however little of it has failed.
    pub in_turn: bool,
    /// The canonical arguments.
    pub digest: Digest,
    /// The id of this run, should it be the first.
    pub run: RunId,
    /// The process that drives the call; with `number` it makes the owner tokens.
    pub process: Process,
    /// The call within the process.
    pub number: u64,
    /// What trust judges it by.
    pub signature: Signature,
    /// What it depends on.
    pub domain: Option<Domain>,
    /// The shape of a dangerous command, if that is what was asked for.
    pub danger: Option<Arc<str>>,
    /// How the arguments break the tool's schema, where that is enforced.
    pub invalid_arguments: Option<Arc<str>>,
    /// What the caller allows; it may only lower what the policy allows.
    pub limits: CallerLimits,
    /// How long the caller is known to wait.
    pub waits: Waits,
    /// Who runs the tool.
    pub run_by: RunBy,
    /// Whether whoever drives the call can see the end of an attempt.
    pub end: AttemptEnd,
    /// Read-only tools of the same server, by which a caller can find out whether a call had its effect.
    pub reads: Arc<[Box<str>]>,
    /// What the caller says about the call.
    pub hints: Hints,
    /// Whether anybody can be asked.
    pub channel: Channel,
}

/// Whether and how duplicates are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// Not at all.
    Allowed,
    /// By this address; a duplicate waits.
    Joined(Address),
    /// By this address; a duplicate is refused while the first one runs.
    Refused(Address),
}

/// What becomes of equal calls for which nobody gave a key, and whose callers did not say what they want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EqualCalls {
    /// Each is a call of its own.
    #[default]
    Apart,
    /// They join one in flight, and an answer that never arrived is given again.
    Joined,
    /// The same for tools that may run any number of times; others run each. For callers whose conversation nobody
    /// knows: equal calls may be those of strangers, who must not get each other's answers in place of a run.
    JoinedIfRepeatable,
}

/// How long a caller is known to wait for its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// It may give up soon: where the policy says so, it is told before that the call is still running.
    #[default]
    NotForLong,
    /// As long as it takes: it hears signs of life.
    AsLongAsItTakes,
}

/// Who runs the tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunBy {
    /// Whoever drives the call, which its caller can leave.
    #[default]
    Driver,
    /// The caller itself, which then reports. One that is gone can only be told by its silence.
    Host,
}

/// Whether the end of an attempt can be seen: the moment from which on it can take no effect any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It cannot: the tool runs elsewhere.
    #[default]
    Unseen,
    /// It can: the tool runs in a child process, and [`Event::Settled`](super::Event::Settled) tells when nothing is left of it.
    Seen,
}

/// Within what the same key that a caller gives is the same call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeysOf {
    /// One conversation.
    #[default]
    Conversation,
    /// Everything that an actor does at a server. For callers whose conversation is a connection: whoever comes back
    /// over another one means the same call by the same key.
    Actor,
}

/// The client's own id of one dispatch: a resend of it carries the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallId {
    /// No other dispatch of this actor at this server has it.
    Unique(ToolCallId),
    /// No other dispatch of this conversation has it.
    InSession(ToolCallId),
}

/// The key that travels upstream with a call, for a tool that honours keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentKey {
    /// The one that the caller or the `key` hook gave: it comes again when the call does.
    Given,
    /// The id of the run, also where duplicates are found by a computed key. It is forgotten with the record, so it
    /// protects nobody who calls again.
    Run,
}

/// What the caller says about the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the hints of the contract, by name")]
pub struct Hints {
    pub expected_retry_safe: bool,
    pub safety_critical: bool,
}

impl Duplicates {
    /// How duplicates of a call are found for which nobody gave a key: by the client's id of its dispatch, if it has
    /// one, and through the index of equal arguments, where those count.
    pub fn keyless(call_id: Option<Key>, index: Option<Key>, run: &RunId) -> Self {
        match (call_id, index) {
            (Some(id), Some(index)) => Self::Joined(Address::CallId { id, index }),
            // An index of its own leads to nothing but this dispatch.
            (Some(id), None) => Self::Joined(Address::CallId { id, index: id }),
            (None, Some(index)) => Self::Joined(Address::Keyless { run: key::run_key(index, run), index }),
            (None, None) => Self::Allowed,
        }
    }
}

impl Request {
    /// Where its record lives, if duplicates are recognised.
    pub fn address(&self) -> Option<Address> {
        match self.duplicates {
            Duplicates::Allowed => None,
            Duplicates::Joined(address) | Duplicates::Refused(address) => Some(address),
        }
    }

    /// Whether the tool may run again where nobody knows if it ran. Fixed for the whole call and stored with the claim.
    pub fn is_retry_safe(&self, policy: &Policy) -> bool {
        self.hints.retry_safe(policy, self.sent_key)
    }
}

impl Hints {
    /// Whether a call with these hints may run again where nobody knows if it ran.
    pub fn retry_safe(&self, policy: &Policy, sent: SentKey) -> bool {
        let recognised = policy.repeat.honours_key && sent == SentKey::Given;
        let vouched = policy.repeat.retry_safe || recognised;
        match policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => vouched,
            ToolClass::Unknown => {
                vouched || self.expected_retry_safe || policy.repeat.ambiguous == Ambiguous::Retry
            }
        }
    }
}

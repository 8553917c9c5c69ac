//! The request of a call, with everything that is derived from it before the state machine starts.

use std::sync::Arc;

use crate::Timestamp;
use crate::approval::ApprovalChannel;
use crate::classify::signature::Signature;
use crate::dedupe::{CallContext, ProcessIdentity, RecordAddress};
use crate::id::{
    ActorId, Digest, Domain, ModelId, RequestId, RunId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId,
};
use crate::key::{self, RecordKey};
use crate::policy::{AmbiguousOutcomePolicy, CallPolicy, ToolClass};
use crate::retry::CallerLimits;

/// The request of a call.
#[derive(Clone, Debug)]
pub struct CallRequest {
    /// Id of this request; a resend has another one.
    pub id: RequestId,
    /// The tool.
    pub tool: ToolRef,
    /// The model's id of the call.
    pub tool_call: Option<ToolCallId>,
    /// The caller's own description of the call.
    pub context: Option<Arc<CallContext>>,
    /// The session.
    pub session: Option<SessionKey>,
    /// The actor that makes the call.
    pub actor: Option<ActorId>,
    /// The tenant that owns the data.
    pub tenant: Option<TenantId>,
    /// The turn, if the host sends one.
    pub turn: Option<TurnId>,
    /// The trace of the call, if traces may be turns; see [`LoopGuard::is_turn`](crate::guard::LoopGuard::is_turn).
    pub trace: Option<TurnId>,
    /// The model, if the host sends one.
    pub model: Option<ModelId>,
    /// Deduplication of the call.
    pub duplicates: Deduplication,
    /// The idempotency key that is sent upstream.
    pub sent_key: UpstreamKey,
    /// Results found by a computed key count only if they were recorded since this time. Calls of this tool were not
    /// deduplicated before.
    pub computed_since: Option<Timestamp>,
    /// True if the call belongs to a turn that may be submitted again. A result that is replayed to such a call was
    /// counted when it was first delivered. Counting it again would stop the turn, however few of its calls have
    /// failed.
    pub in_turn: bool,
    /// Digest of the canonical arguments.
    pub digest: Digest,
    /// Id of this run, if this call is the first with its key.
    pub run: RunId,
    /// The process that drives the call. Together with `number` it makes the owner tokens.
    pub process: ProcessIdentity,
    /// Number of the call within the process.
    pub number: u64,
    /// Signature that trust is kept for.
    pub signature: Signature,
    /// The dependency of the tool.
    pub domain: Option<Domain>,
    /// Name of the dangerous command pattern, if the call matches one.
    pub danger: Option<Arc<str>>,
    /// Violations of the tool's schema, if the policy enforces it.
    pub invalid_arguments: Option<Arc<str>>,
    /// Limits set by the caller. They may only lower the limits of the policy.
    pub limits: CallerLimits,
    /// Time for which the caller is known to wait.
    pub waits: CallerPatience,
    /// The side that runs the tool.
    pub run_by: RunnerKind,
    /// Visibility of the end of an attempt to the driver.
    pub end: AttemptEndVisibility,
    /// Read-only tools of the same server, with which a caller can check whether a call took effect.
    pub reads: Arc<[Box<str>]>,
    /// Hints of the caller about the call.
    pub hints: CallerHints,
    /// The channel for approvals.
    pub channel: ApprovalChannel,
}

/// Deduplication of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deduplication {
    /// The call is not deduplicated.
    Allowed,
    /// Calls are deduplicated by this address, and a duplicate waits for the in-flight call.
    Joined(RecordAddress),
    /// Calls are deduplicated by this address, and a duplicate is refused while the first call is in flight.
    Refused(RecordAddress),
}

/// Deduplication of equal calls without an idempotency key, whose callers did not set a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EqualCallPolicy {
    /// Each call runs.
    #[default]
    Separate,
    /// A duplicate waits for the in-flight call, and a result that was not delivered is replayed.
    Joined,
    /// The same for tools that may run any number of times; calls of other tools each run. For callers whose session is
    /// not known: equal calls may come from unrelated callers, which must not get each other's results instead of a
    /// run.
    JoinedIfRepeatable,
}

/// Time for which a caller is known to wait for its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallerPatience {
    /// The caller may give up soon. If the policy says so, it gets a response before that: the call is still running.
    #[default]
    MayGiveUp,
    /// The caller waits as long as it takes, because it receives progress.
    UntilDone,
}

/// The side that runs the tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerKind {
    /// The driver of the call, which outlives a caller that disconnects.
    #[default]
    Driver,
    /// The caller itself, which reports the result. If it is gone, only its silence shows that.
    Host,
    /// The caller itself, in the process of the driver: if it is gone, so is the driver. So an attempt that takes too
    /// long counts against the tool, and the caller learns at once that the attempt is no longer wanted.
    InProcessHost,
}

/// Visibility of the end of an attempt, after which it can no longer take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttemptEndVisibility {
    /// The end is not visible: the tool runs elsewhere.
    #[default]
    Hidden,
    /// The end is visible: the tool runs in a child process, and [`CallEvent::Settled`](super::CallEvent::Settled) reports that
    /// nothing of it is left.
    Visible,
}

/// The scope within which equal idempotency keys of callers mean the same call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallerKeyScope {
    /// One session.
    #[default]
    Conversation,
    /// All calls of an actor to a server. For callers whose session is a connection: a caller that reconnects means the
    /// same call by the same key.
    Actor,
}

/// The client's own id of one dispatch. A resend carries the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallId {
    /// Unique among all dispatches of this actor to this server.
    Unique(ToolCallId),
    /// Unique among the dispatches of this session.
    InSession(ToolCallId),
}

/// The idempotency key that is sent upstream, for a tool that honours keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamKey {
    /// The key from the caller or the `key` hook. A repeated call has it again.
    Given,
    /// The id of the run, even if duplicates are found by a computed key. It is deleted with the record, so it does not
    /// protect a later repeat.
    Run,
}

/// Hints of the caller about a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the hints of the contract, by name")]
pub struct CallerHints {
    pub expected_retry_safe: bool,
    pub safety_critical: bool,
}

impl Deduplication {
    /// Returns the deduplication of a call without an idempotency key: by the client's id of its dispatch, if it has
    /// one, and by the index of equal arguments, if that applies.
    pub fn keyless(call_id: Option<RecordKey>, index: Option<RecordKey>, run: &RunId) -> Self {
        match (call_id, index) {
            (Some(id), Some(index)) => Self::Joined(RecordAddress::CallId { id, index }),
            // A separate index finds only this dispatch.
            (Some(id), None) => Self::Joined(RecordAddress::CallId { id, index: id }),
            (None, Some(index)) => {
                Self::Joined(RecordAddress::Keyless { run: key::run_key(index, run), index })
            }
            (None, None) => Self::Allowed,
        }
    }
}

impl CallRequest {
    /// Returns the address of its record, if the call is deduplicated.
    pub fn address(&self) -> Option<RecordAddress> {
        match self.duplicates {
            Deduplication::Allowed => None,
            Deduplication::Joined(address) | Deduplication::Refused(address) => Some(address),
        }
    }

    /// Returns true if the tool may run again after an unknown outcome. Fixed for the whole call and stored with the
    /// claim.
    pub fn is_retry_safe(&self, policy: &CallPolicy) -> bool {
        self.hints.retry_safe(policy, self.sent_key)
    }
}

impl CallerHints {
    /// Returns true if a call with these hints may run again after an unknown outcome.
    pub fn retry_safe(&self, policy: &CallPolicy, sent: UpstreamKey) -> bool {
        let recognised = policy.repeat.honours_key && sent == UpstreamKey::Given;
        let vouched = policy.repeat.retry_safe || recognised;
        match policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => vouched,
            ToolClass::Unknown => {
                vouched
                    || self.expected_retry_safe
                    || policy.repeat.ambiguous == AmbiguousOutcomePolicy::Retry
            }
        }
    }
}

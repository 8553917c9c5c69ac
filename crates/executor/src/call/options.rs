//! Facts about a call that the surface knows and the envelope does not contain.

use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::{CallId, CallerKeyScope, CallerPatience, EqualCallPolicy};
use steadfast_core::id::{Digest, TurnId};

use super::prompter::ApprovalPrompter;
use super::registry::ToolRegistry;
use super::tool_info::ToolInfo;
use crate::observe::listener::EngineListener;

/// Facts about a call that the surface knows and the envelope does not contain.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// Abilities of the host, if it runs the tool itself.
    pub host: HostAbilities,
    /// Possibility to request approval while the call waits.
    pub channel: ApprovalChannel,
    /// Interface to the user at the client, for surfaces that can ask one. Operators are asked as well.
    pub prompter: Option<Arc<dyn ApprovalPrompter>>,
    /// Details of the tool beyond its name.
    pub tool: Option<Arc<ToolInfo>>,
    /// Handling of equal calls without an idempotency key. A surface that joins them must report which responses were
    /// [delivered](crate::Engine::mark_delivered): until then a response is replayed.
    pub equal_calls: EqualCallPolicy,
    /// The client's id of this dispatch, if it has one. A resend of the same dispatch gets the same response. Used only
    /// if there is no idempotency key.
    pub call_id: Option<CallId>,
    /// Scope of the idempotency keys that callers give.
    pub key_scope: CallerKeyScope,
    /// Time for which the caller is known to wait.
    pub waits: CallerPatience,
    /// Digest of the input that the client brings back to a call that asked for it, so that this round is a different
    /// call from the first. See [`continuation_digest`](steadfast_core::key::continuation_digest).
    pub continuation: Option<Digest>,
    /// The trace that the call belongs to, for hosts that name no turn and may use traces as turns. A trace counts as a
    /// turn if two calls of a conversation share it.
    pub trace: Option<TurnId>,
    /// A listener for this call alone. It must be quick and must not panic.
    pub listener: Option<Arc<dyn EngineListener>>,
    /// Membership of the call in a turn that may be submitted again.
    pub in_turn: TurnResubmission,
    /// Time after which no attempt starts. An attempt that already runs continues.
    pub start_by: Option<Timestamp>,
    /// Read-only tools of the same server, by which a caller can find out if a call took effect.
    pub reads: Arc<[Box<str>]>,
    /// Registry with the tool that verifies the effect of a call, if such a tool is configured.
    pub registry: Option<Arc<dyn ToolRegistry>>,
}

/// Abilities of a host that runs the tool of a call itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostAbilities {
    /// Number of times that the host can run the tool.
    pub attempts: HostAttempts,
    /// Place of the host.
    pub location: HostLocation,
}

/// Number of times that a host can run the tool of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostAttempts {
    /// The host can run the tool again, if a report returns another order.
    #[default]
    AsOrdered,
    /// The host runs the tool once and cannot run it again. A failed attempt ends the call: its report never waits for
    /// a retry, and the error says if and when the call can be repeated.
    One,
}

/// Place of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostLocation {
    /// Another process. Only its heartbeats and reports show that it still lives. An attempt without any counts
    /// neither against the tool nor for it.
    #[default]
    Remote,
    /// The process of the engine. It lives as long as the engine, so it sends no heartbeats, and the timeout of an
    /// attempt counts against the tool. It learns from [`order_end`](crate::Engine::order_end) that an attempt is no
    /// longer wanted.
    InProcess,
}

/// Membership of a call in a turn that may be submitted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnResubmission {
    /// The call belongs to no such turn.
    #[default]
    NotPossible,
    /// The call belongs to such a turn. Its end is stored durably in every case, and its key never stands for another
    /// call.
    Possible,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            host: HostAbilities::default(),
            channel: ApprovalChannel::Headless,
            prompter: None,
            tool: None,
            equal_calls: EqualCallPolicy::Separate,
            call_id: None,
            key_scope: CallerKeyScope::Conversation,
            waits: CallerPatience::MayGiveUp,
            continuation: None,
            trace: None,
            listener: None,
            in_turn: TurnResubmission::NotPossible,
            start_by: None,
            reads: Arc::default(),
            registry: None,
        }
    }
}

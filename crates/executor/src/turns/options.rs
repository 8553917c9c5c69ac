//! The options of a turn.

use std::sync::Arc;

use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::CallerKeyScope;
use steadfast_core::envelope::{CallerIdentity, EnvelopeTrace, TurnControl};
use steadfast_turn::trace::TraceEvent;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::call::prompter::ApprovalPrompter;

/// Options of a turn.
#[derive(Clone, Debug)]
pub struct TurnOptions {
    /// Target of its calls. The turn that it names is replaced by that of the plan.
    pub target: CallerIdentity,
    /// Control settings of its calls.
    pub control: TurnControl,
    /// The W3C trace that it belongs to, with the baggage that is passed on to its tools.
    pub trace: EnvelopeTrace,
    /// Possibility to request approval while a call waits.
    pub channel: ApprovalChannel,
    /// Interface to the user at the client.
    pub prompter: Option<Arc<dyn ApprovalPrompter>>,
    /// Scope within which the same name means the same turn.
    pub key_scope: CallerKeyScope,
    /// Cancels the turn: nothing more starts, and calls in flight are cancelled.
    pub cancelled: CancellationToken,
    /// Receiver of its events as they happen.
    pub follower: Option<UnboundedSender<TraceEvent>>,
}

impl TurnOptions {
    /// Returns options for a caller without a user to ask, as most callers of a turn. Turn names are scoped to the
    /// session.
    pub fn of(target: CallerIdentity) -> Self {
        Self {
            target,
            control: TurnControl::default(),
            trace: EnvelopeTrace::default(),
            channel: ApprovalChannel::Headless,
            prompter: None,
            key_scope: CallerKeyScope::Conversation,
            cancelled: CancellationToken::new(),
            follower: None,
        }
    }
}

//! Events of the calls of a turn while they run: failed attempts with a retry, breaker changes, and tool descriptions
//! by servers.

use std::sync::OnceLock;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::call::{BreakerScope, CallNotice};
use steadfast_core::id::{ToolCallId, ToolRef};
use steadfast_core::policy::ToolClass;
use steadfast_turn::{CallProgress, UnknownOutcomeHandling};
use tokio::sync::mpsc::UnboundedSender;

use crate::observe::listener::{EngineListener, NoticeContext};

/// A listener for one call of a turn. The number of its events is bounded by the attempts of the call.
pub(super) struct TurnCallListener {
    call: ToolCallId,
    tool: ToolRef,
    /// Class of its tool, as far as the turn knows it.
    class: ToolClass,
    sender: UnboundedSender<TurnCallEvent>,
    progress: Mutex<CallProgress>,
    known: OnceLock<CallPolicyFacts>,
}

/// Facts from the policy of a call. The policy is resolved when the call begins, with the server's description of the
/// tool.
#[derive(Clone, Copy)]
pub(super) struct CallPolicyFacts {
    pub(super) class: ToolClass,
    pub(super) doubt: UnknownOutcomeHandling,
}

/// An event that the turn handles at once.
pub(super) struct TurnCallEvent {
    pub(super) call: ToolCallId,
    pub(super) tool: ToolRef,
    pub(super) at: Timestamp,
    pub(super) change: TurnCallChange,
}

pub(super) enum TurnCallChange {
    /// An attempt failed, and a retry follows.
    Retries { attempt: u32, next_at: Timestamp, attempts_left: u32, progress: CallProgress },
    /// The breaker of the tool changed.
    Breaker(State),
    /// The class of the tool differs from the one that the turn knows.
    Class(ToolClass),
}

impl TurnCallListener {
    pub(super) fn new(
        call: ToolCallId,
        tool: ToolRef,
        class: ToolClass,
        sender: UnboundedSender<TurnCallEvent>,
    ) -> Self {
        Self { call, tool, class, sender, progress: Mutex::default(), known: OnceLock::new() }
    }

    /// Returns the facts, or `None` if the call has had no event.
    pub(super) fn known(&self) -> Option<CallPolicyFacts> {
        self.known.get().copied()
    }

    pub(super) fn progress(&self) -> CallProgress {
        self.progress.lock().clone()
    }

    fn tell(&self, at: Timestamp, change: TurnCallChange) {
        // A turn that is over has dropped the receiver.
        let _ =
            self.sender.send(TurnCallEvent { call: self.call.clone(), tool: self.tool.clone(), at, change });
    }
}

impl EngineListener for TurnCallListener {
    fn notice(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
        self.progress.lock().record(notice);
        if self.known.get().is_none() {
            let class = about.policy.class;
            let doubt = match about.request.hints.retry_safe(about.policy, about.request.sent_key) {
                true => UnknownOutcomeHandling::Rerun,
                false => UnknownOutcomeHandling::Reported,
            };
            let _ = self.known.set(CallPolicyFacts { class, doubt });
            if class != self.class {
                self.tell(about.at, TurnCallChange::Class(class));
            }
        }
        if let CallNotice::RetryScheduled { attempt, at: next_at } = notice {
            let made = attempt.saturating_sub(1);
            let attempts_left = about.policy.retry.attempts.get().saturating_sub(made).max(1);
            let progress = self.progress();
            self.tell(
                about.at,
                TurnCallChange::Retries { attempt: *attempt, next_at: *next_at, attempts_left, progress },
            );
        } else if let CallNotice::BreakerChanged { scope: BreakerScope::Tool, transition } = notice {
            self.tell(about.at, TurnCallChange::Breaker(transition.to));
        }
    }
}

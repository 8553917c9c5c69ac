//! Events of the calls of a turn while they run: failed attempts with a retry, breaker changes, and tool descriptions
//! by servers.

use std::sync::OnceLock;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::call::{BreakerScope, Notice};
use steadfast_core::id::{ToolCallId, ToolRef};
use steadfast_core::policy::ToolClass;
use steadfast_core::turn::{Doubt, Heard};
use tokio::sync::mpsc::UnboundedSender;

use crate::telling::{About, Listener};

/// A listener for one call of a turn. The number of its events is bounded by the attempts of the call.
pub(super) struct Watch {
    call: ToolCallId,
    tool: ToolRef,
    /// Class of its tool, as far as the turn knows it.
    class: ToolClass,
    told: UnboundedSender<Told>,
    heard: Mutex<Heard>,
    known: OnceLock<Known>,
}

/// Facts from the policy of a call. The policy is resolved when the call begins, with the server's description of the
/// tool.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) class: ToolClass,
    pub(super) doubt: Doubt,
}

/// An event that the turn handles at once.
pub(super) struct Told {
    pub(super) call: ToolCallId,
    pub(super) tool: ToolRef,
    pub(super) at: Timestamp,
    pub(super) what: What,
}

pub(super) enum What {
    /// An attempt failed, and a retry follows.
    Retries { attempt: u32, next_at: Timestamp, attempts_left: u32, heard: Heard },
    /// The breaker of the tool changed.
    Breaker(State),
    /// The class of the tool differs from the one that the turn knows.
    Class(ToolClass),
}

impl Watch {
    pub(super) fn new(
        call: ToolCallId,
        tool: ToolRef,
        class: ToolClass,
        told: UnboundedSender<Told>,
    ) -> Self {
        Self { call, tool, class, told, heard: Mutex::default(), known: OnceLock::new() }
    }

    /// Returns the facts, or `None` if the call has had no event.
    pub(super) fn known(&self) -> Option<Known> {
        self.known.get().copied()
    }

    pub(super) fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    fn tell(&self, at: Timestamp, what: What) {
        // A turn that is over has dropped the receiver.
        let _ = self.told.send(Told { call: self.call.clone(), tool: self.tool.clone(), at, what });
    }
}

impl Listener for Watch {
    fn notice(&self, about: &About<'_>, notice: &Notice) {
        self.heard.lock().hear(notice);
        if self.known.get().is_none() {
            let class = about.policy.class;
            let doubt = match about.request.hints.retry_safe(about.policy, about.request.sent_key) {
                true => Doubt::MadeAgain,
                false => Doubt::Told,
            };
            let _ = self.known.set(Known { class, doubt });
            if class != self.class {
                self.tell(about.at, What::Class(class));
            }
        }
        if let Notice::RetryScheduled { attempt, at: next_at } = notice {
            let made = attempt.saturating_sub(1);
            let attempts_left = about.policy.retry.attempts.get().saturating_sub(made).max(1);
            let heard = self.heard();
            self.tell(about.at, What::Retries { attempt: *attempt, next_at: *next_at, attempts_left, heard });
        } else if let Notice::BreakerChanged { scope: BreakerScope::Tool, transition } = notice {
            self.tell(about.at, What::Breaker(transition.to));
        }
    }
}

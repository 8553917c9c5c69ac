//! What a turn hears of its calls while they run: attempts that failed and are made again, breakers that turn, and what their
//! servers say of the tools.

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

/// One call of a turn, listened to. What it tells is bounded by the attempts of the call.
pub(super) struct Watch {
    call: ToolCallId,
    tool: ToolRef,
    /// Its class, as far as the turn knows it.
    class: ToolClass,
    told: UnboundedSender<Told>,
    heard: Mutex<Heard>,
    known: OnceLock<Known>,
}

/// What is known of a call by its policy, which is found when it begins: what the server says of the tool counts.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) class: ToolClass,
    pub(super) doubt: Doubt,
}

/// Something that the turn should know at once.
pub(super) struct Told {
    pub(super) call: ToolCallId,
    pub(super) tool: ToolRef,
    pub(super) at: Timestamp,
    pub(super) what: What,
}

pub(super) enum What {
    /// An attempt failed and another one follows.
    Retries { attempt: u32, next_at: Timestamp, attempts_left: u32, heard: Heard },
    /// The breaker of the tool changed.
    Breaker(State),
    /// The class of the tool is another one than the turn knows.
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

    /// Nothing if nothing was heard of the call at all.
    pub(super) fn known(&self) -> Option<Known> {
        self.known.get().copied()
    }

    pub(super) fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    fn tell(&self, at: Timestamp, what: What) {
        // A turn that is over does not listen any more.
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

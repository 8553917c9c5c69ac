//! What a turn hears of its calls while they run: attempts that failed and are made again, breakers that turn.

use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::call::{BreakerScope, Cut, FailedAttempt, Notice};
use steadfast_core::classify::Reach;
use steadfast_core::id::{ToolCallId, ToolRef};
use tokio::sync::mpsc::UnboundedSender;

use crate::telling::{About, Listener};

/// One call of a turn, listened to. What it tells is bounded by the attempts of the call.
pub(super) struct Watch {
    call: ToolCallId,
    tool: ToolRef,
    told: UnboundedSender<Told>,
    last: Mutex<Last>,
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
    Retries { attempt: u32, next_at: Timestamp, attempts_left: u32, last: Last },
    /// The breaker of the tool changed.
    Breaker(State),
}

/// How the last attempt failed.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    pub(super) failed: Option<FailedAttempt>,
    /// What it was allowed, if it took longer.
    pub(super) cut: Option<Duration>,
    /// Whether nobody has seen its end.
    under_way: bool,
    /// Whether the tool asked for input instead of doing anything.
    pub(super) asked: bool,
}

impl Last {
    /// How far it got. What was never tried was never sent; what still runs may have done anything, although its caller was
    /// answered.
    pub(super) fn reach(&self) -> Reach {
        match &self.failed {
            _ if self.under_way => Reach::Unknown,
            Some(failed) => failed.reach,
            None => Reach::NotSent,
        }
    }
}

impl Watch {
    pub(super) fn new(call: ToolCallId, tool: ToolRef, told: UnboundedSender<Told>) -> Self {
        Self { call, tool, told, last: Mutex::default() }
    }

    pub(super) fn last(&self) -> Last {
        self.last.lock().clone()
    }

    fn tell(&self, at: Timestamp, what: What) {
        // A turn that is over does not listen any more.
        let _ = self.told.send(Told { call: self.call.clone(), tool: self.tool.clone(), at, what });
    }
}

impl Listener for Watch {
    fn notice(&self, about: &About<'_>, notice: &Notice) {
        if let Notice::AttemptStarted { .. } = notice {
            *self.last.lock() = Last { under_way: true, ..Last::default() };
        } else if let Notice::AttemptCut { cut: Cut::Silent(allowed) } = notice {
            self.last.lock().cut = Some(*allowed);
        } else if let Notice::AttemptEnded { failure, .. } = notice {
            let mut last = self.last.lock();
            last.failed.clone_from(failure);
            last.under_way = false;
        } else if let Notice::InputRequired = notice {
            self.last.lock().asked = true;
        } else if let Notice::RetryScheduled { attempt, at: next_at } = notice {
            let made = attempt.saturating_sub(1);
            let attempts_left = about.policy.retry.attempts.get().saturating_sub(made).max(1);
            let last = self.last();
            self.tell(about.at, What::Retries { attempt: *attempt, next_at: *next_at, attempts_left, last });
        } else if let Notice::BreakerChanged { scope: BreakerScope::Tool, transition } = notice {
            self.tell(about.at, What::Breaker(transition.to));
        }
    }
}

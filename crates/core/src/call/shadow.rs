//! The report of shadow mode about a call.

use super::notice::{CallNotice, ShadowDecision};

/// The report of the first decision that shadow mode did not enforce. It is sent once per call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ShadowReport {
    /// No decision would have been different so far.
    #[default]
    NotSent,
    /// A decision was reported.
    Sent,
}

impl ShadowReport {
    /// Reports a decision, unless an earlier one was reported.
    pub(super) fn send(&mut self, decision: ShadowDecision, notices: &mut Vec<CallNotice>) {
        if std::mem::replace(self, Self::Sent) == Self::NotSent {
            notices.push(CallNotice::Shadowed(decision));
        }
    }

    /// Returns true if a decision was reported.
    pub(super) fn is_sent(self) -> bool {
        self == Self::Sent
    }
}

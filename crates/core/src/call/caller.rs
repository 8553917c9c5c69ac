//! The caller of a call, as far as the call knows: still waiting or not.

use super::step::UpstreamSignal;

/// State of the caller of this call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerState {
    /// The caller waits for its response.
    Waiting,
    /// The caller was answered or has disconnected. The run continues for the record.
    Gone,
    /// The caller has cancelled, and the tool was asked to stop. The attempt may still answer, but no new one starts.
    Cancelled,
}

impl CallerState {
    /// Returns true if the caller waits for its response.
    pub(super) fn is_waiting(self) -> bool {
        self == Self::Waiting
    }

    /// Returns true if the caller has cancelled, so that no further attempt starts.
    pub(super) fn has_cancelled(self) -> bool {
        self == Self::Cancelled
    }

    /// Records that the caller has disconnected.
    pub(super) fn disconnect(&mut self) {
        if self.is_waiting() {
            *self = Self::Gone;
        }
    }

    /// Returns the state after the caller was answered while the call continues.
    pub(super) fn answered(upstream: UpstreamSignal) -> Self {
        match upstream {
            UpstreamSignal::Cancel => Self::Cancelled,
            UpstreamSignal::NoSignal => Self::Gone,
        }
    }
}

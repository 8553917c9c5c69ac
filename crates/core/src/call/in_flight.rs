//! The attempt in flight.

use super::context::CallMechanisms;
use super::step::CutReason;
use super::tickets::{PermitState, Tickets};
use crate::Timestamp;
use crate::watchdog::Watchdog;

/// An attempt in flight.
#[derive(Debug)]
pub(super) struct AttemptInFlight {
    pub(super) number: u32,
    pub(super) started: Timestamp,
    pub(super) watchdog: Option<Watchdog>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) tickets: Tickets,
    /// The cut that was requested.
    pub(super) cut: Option<CutReason>,
}

impl AttemptInFlight {
    /// Returns its concurrency permits.
    pub(super) fn release_permits(&mut self, shared: &mut CallMechanisms<'_>) {
        if std::mem::take(&mut self.tickets.permits) == PermitState::Taken {
            shared.limiter.release();
            shared.dependency_limiter.release();
        }
    }

    pub(super) fn has_permits(&self) -> bool {
        self.tickets.permits == PermitState::Taken
    }
}

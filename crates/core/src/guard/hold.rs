//! A refusal that ends by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::policy::GuardPolicy;

/// A refusal until a time. After that one try is admitted, and the next refusal lasts twice as long.
///
/// Refused calls do not extend the refusal, so that an impatient model gets as many tries as a patient one. A try
/// without a result does not matter either, because the next one becomes due in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefusalHold {
    until: Timestamp,
    span: Duration,
    /// Start of the refusal. Absent in snapshots of older versions.
    #[serde(default)]
    since: Option<Timestamp>,
}

impl RefusalHold {
    /// Starts the first refusal.
    pub(super) fn start(policy: &GuardPolicy, now: Timestamp) -> Self {
        let span = policy.hold.min(policy.longest_hold);
        Self { until: now + span, span, since: Some(now) }
    }

    /// Returns true if calls are still refused.
    pub(super) fn lasts(self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Returns the start and the end of the refusal.
    pub(super) fn span(self) -> (Timestamp, Timestamp) {
        (self.since.unwrap_or(self.until.before(self.span)), self.until)
    }

    /// Records that the due try was admitted.
    pub(super) fn admit_try(&mut self, policy: &GuardPolicy, now: Timestamp) {
        self.span = self.span.saturating_mul(2).min(policy.longest_hold);
        self.until = now + self.span;
    }

    /// Restarts the refusal after a failed try, with the same duration.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.until = now + self.span;
    }
}

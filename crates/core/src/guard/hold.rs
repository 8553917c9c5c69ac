//! A refusal that ends by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::policy::GuardPolicy;

/// Refuse until this moment; then let one try through and wait twice as long.
///
/// Refused calls do not move the moment, so that a model that hammers is let through as often as a patient
/// one. A try that is never heard of again does not matter either: the next one is due in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    until: Timestamp,
    span: Duration,
    /// When it began; those of older versions do not know.
    #[serde(default)]
    since: Option<Timestamp>,
}

impl Hold {
    /// The first refusal.
    pub(super) fn start(policy: &GuardPolicy, now: Timestamp) -> Self {
        let span = policy.hold.min(policy.longest_hold);
        Self { until: now + span, span, since: Some(now) }
    }

    /// Whether calls are still refused.
    pub(super) fn lasts(self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Since when and until when, for people who look at it.
    pub(super) fn span(self) -> (Timestamp, Timestamp) {
        (self.since.unwrap_or(self.until.before(self.span)), self.until)
    }

    /// The try that is due goes out.
    pub(super) fn spend(&mut self, policy: &GuardPolicy, now: Timestamp) {
        self.span = self.span.saturating_mul(2).min(policy.longest_hold);
        self.until = now + self.span;
    }

    /// A try has failed: it is as long again from here.
    pub(super) fn again(&mut self, now: Timestamp) {
        self.until = now + self.span;
    }
}

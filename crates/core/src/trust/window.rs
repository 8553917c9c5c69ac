//! The failures that still count: within the window, in a row, and as a share of all calls.
//!
//! Failures are stored one by one, so that counts are exact to the millisecond. The share also needs the successes, and
//! a busy tool has many of those. They are summed in slots of one 64th of the window, with the failures beside them, so
//! that numerator and denominator always cover the same time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Timestamp;
use crate::classify::Severity;
use crate::policy::{Ratio, TrustRule};

/// The maximum number of failures stored by one account. A higher count threshold acts as if it were this number.
pub(super) const MOST_FAILURES: usize = 128;

/// The number of slots of a window, for the share of failures.
const SLOTS: u32 = 64;

/// One failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowFailure {
    pub(super) at: Timestamp,
    pub(super) severity: Severity,
    pub(super) recoverable: bool,
}

/// The calls that an account remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct FailureWindow {
    failures: VecDeque<WindowFailure>,
    /// Number of the newest failures since the last success.
    since_success: usize,
    slots: VecDeque<WindowSlot>,
}

#[derive(Clone, Debug)]
struct WindowSlot {
    first: Timestamp,
    last: Timestamp,
    calls: u32,
    failures: BTreeMap<Severity, u32>,
}

impl FailureWindow {
    /// Records a success.
    pub(super) fn success(&mut self, rule: &TrustRule, now: Timestamp) {
        self.since_success = 0;
        self.finished(rule, None, now);
    }

    /// Records a failure, counted or not, because the filter of a rule can change.
    pub(super) fn failure(&mut self, rule: &TrustRule, failed: WindowFailure) {
        let from = failed.at.before(rule.window);
        while self.failures.front().is_some_and(|oldest| oldest.at < from) {
            self.failures.pop_front();
        }
        self.remember(failed);
        self.since_success = self.since_success.saturating_add(1).min(self.failures.len());
        self.finished(rule, Some(failed.severity), failed.at);
    }

    /// Restores a failure from before a restart. It counts neither for a share nor as a failure in a row, because the
    /// successes between failures are not stored.
    pub(super) fn remember(&mut self, failed: WindowFailure) {
        if self.failures.len() == MOST_FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back(failed);
    }

    /// Restores the number of failures in a row from before a restart.
    pub(super) fn set_run(&mut self, run: u32) {
        self.since_success = usize::try_from(run).unwrap_or(usize::MAX).min(self.failures.len());
    }

    /// Returns the number of failures since the last success, counted or not. A snapshot stores it.
    pub(super) fn run(&self) -> u32 {
        u32::try_from(self.since_success.min(self.failures.len())).unwrap_or(u32::MAX)
    }

    /// Returns the number of failures in the window that match.
    pub(super) fn count(&self, window: Duration, now: Timestamp, fits: impl Fn(Severity) -> bool) -> u32 {
        number(self.within(window, now).filter(|failed| fits(failed.severity)))
    }

    /// Returns the number of matching failures in the window without a success between them. Other failures neither
    /// count nor end the run.
    pub(super) fn consecutive(
        &self,
        window: Duration,
        now: Timestamp,
        fits: impl Fn(Severity) -> bool,
    ) -> u32 {
        let from = now.before(window);
        let run = self.failures.iter().rev().take(self.since_success);
        number(run.filter(|failed| failed.at >= from && fits(failed.severity)))
    }

    /// Returns the number of matching failures and the number of all calls in the window.
    pub(super) fn share(
        &self,
        window: Duration,
        now: Timestamp,
        fits: impl Fn(Severity) -> bool,
    ) -> (u32, u32) {
        let from = now.before(window);
        self.slots.iter().filter(|slot| slot.last >= from).fold(
            (0, 0),
            |(failed, calls): (u32, u32), slot| {
                let fitting = slot.failures.iter().filter(|(severity, _)| fits(**severity));
                let fitting = fitting.fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
                (failed.saturating_add(fitting), calls.saturating_add(slot.calls))
            },
        )
    }

    /// Returns true if one of the matching failures can only be healed by an operator.
    pub(super) fn needs_operator(
        &self,
        window: Duration,
        now: Timestamp,
        fits: impl Fn(Severity) -> bool,
    ) -> bool {
        self.within(window, now).any(|failed| fits(failed.severity) && !failed.recoverable)
    }

    fn within(&self, window: Duration, now: Timestamp) -> impl Iterator<Item = &WindowFailure> {
        let from = now.before(window);
        self.failures.iter().filter(move |failed| failed.at >= from)
    }

    /// Adds a call to the slots of the share. Does nothing if no rule has a share.
    fn finished(&mut self, rule: &TrustRule, failed: Option<Severity>, now: Timestamp) {
        if rule.rate.is_none() {
            self.slots.clear();
            return;
        }
        let from = now.before(rule.window);
        while self.slots.front().is_some_and(|oldest| oldest.last < from) {
            self.slots.pop_front();
        }
        let width = rule.window / SLOTS;
        if self.slots.back().is_none_or(|newest| now.since(newest.first) > width) {
            self.slots.push_back(WindowSlot { first: now, last: now, calls: 0, failures: BTreeMap::new() });
        }
        if let Some(newest) = self.slots.back_mut() {
            newest.last = newest.last.max(now);
            newest.calls = newest.calls.saturating_add(1);
            if let Some(severity) = failed {
                let count = newest.failures.entry(severity).or_default();
                *count = count.saturating_add(1);
            }
        }
        // After the configuration lengthened the window, narrow slots can be left.
        while self.slots.len() > 2 * SLOTS as usize {
            self.slots.pop_front();
        }
    }
}

/// Returns true if the share of failures exceeds the expected share by at least `rate`. A tool of which every call
/// fails always exceeds it.
pub(super) fn exceeds(rate: Ratio, expected: Ratio, failed: u32, calls: u32) -> bool {
    // Sums such as 0.1 + 0.2 are slightly above the intended decimal number.
    const ROUNDING: f64 = 1e-9;
    let threshold = (rate.get() + expected.get()).min(1.0);
    calls > 0 && f64::from(failed) + ROUNDING >= threshold * f64::from(calls)
}

fn number<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn rule() -> TrustRule {
        TrustRule { rate: Some(Ratio::percent(50)), window: 64 * SECOND, ..TrustRule::default() }
    }

    fn failed(seconds: u64) -> WindowFailure {
        WindowFailure { at: at(seconds), severity: Severity::Crash, recoverable: true }
    }

    #[test]
    fn a_failure_counts_until_it_is_older_than_the_window() {
        let mut window = FailureWindow::default();
        window.failure(&rule(), failed(10));
        assert_eq!(window.count(64 * SECOND, at(74), |_| true), 1);
        assert_eq!(window.count(64 * SECOND, Timestamp::from_millis(74_001), |_| true), 0);
    }

    #[test]
    fn memory_is_bounded_however_many_calls_there_are() {
        let mut window = FailureWindow::default();
        for second in 0..10_000 {
            window.failure(&rule(), failed(second / 100));
            window.success(&rule(), at(second / 100));
        }
        assert_eq!(window.failures.len(), MOST_FAILURES);
        assert!(window.slots.len() <= 2 * SLOTS as usize);
        assert_eq!(window.consecutive(64 * SECOND, at(100), |_| true), 0);
    }

    #[test]
    fn the_share_is_exact_beyond_the_calls_recorded_one_by_one() {
        let mut window = FailureWindow::default();
        for _ in 0..1000 {
            window.failure(&rule(), failed(1));
        }
        for _ in 0..3000 {
            window.success(&rule(), at(2));
        }
        assert_eq!(window.share(64 * SECOND, at(3), |_| true), (1000, 4000));
        assert_eq!(window.share(64 * SECOND, at(3), |severity| severity == Severity::Timeout), (0, 4000));
        assert_eq!(window.share(64 * SECOND, at(67), |_| true), (0, 0));
    }

    #[test]
    fn a_share_drops_calls_older_than_the_window_and_no_younger_ones() {
        let mut window = FailureWindow::default();
        window.success(&rule(), at(0));
        window.success(&rule(), at(64));
        assert_eq!(window.share(64 * SECOND, at(64), |_| true), (0, 2), "as old as the window");
        window.failure(&rule(), failed(100));
        assert_eq!(window.share(64 * SECOND, at(100), |_| true), (1, 2));
        assert_eq!(window.slots.len(), 2, "what counts no more is not kept");
    }

    #[test]
    fn calls_within_one_part_of_the_window_are_summed_up_together() {
        let mut window = FailureWindow::default();
        for milliseconds in [0, 500, 1000, 1001, 2001, 2002] {
            window.success(&rule(), Timestamp::from_millis(milliseconds));
        }
        let calls: Vec<u32> = window.slots.iter().map(|slot| slot.calls).collect();
        assert_eq!(calls, [3, 2, 1]);
    }

    #[test]
    fn a_window_that_becomes_longer_keeps_a_bounded_number_of_parts() {
        let mut window = FailureWindow::default();
        let mut now = Timestamp::ZERO;
        let mut longest = 0;
        for seconds in [64, 640, 6400] {
            let rule = TrustRule { window: seconds * SECOND, ..rule() };
            for _ in 0..63 {
                now = now + rule.window / SLOTS + Duration::from_millis(1);
                window.success(&rule, now);
                longest = longest.max(window.slots.len());
            }
        }
        assert_eq!(longest, 2 * SLOTS as usize);
    }

    #[test]
    fn only_failures_above_the_expected_share_are_too_many() {
        for (rate, expected, failed, calls, too_many) in [
            (50, 0, 4, 10, false),
            (50, 0, 5, 10, true),
            (10, 20, 3, 10, true),
            (30, 20, 4, 10, false),
            (30, 20, 5, 10, true),
            (80, 50, 9, 10, false),
            (80, 50, 10, 10, true),
            (0, 0, 0, 0, false),
        ] {
            let answer = exceeds(Ratio::percent(rate), Ratio::percent(expected), failed, calls);
            assert_eq!(answer, too_many, "{failed} of {calls}, {rate} % above {expected} %");
        }
    }
}

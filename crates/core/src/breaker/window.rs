//! The window of a circuit breaker: the last outcomes with their times.
//!
//! One ring holds all outcomes. Counters beside it hold the number of failed or slow ones among the last outcomes, and
//! the current run of failures. An outcome enters once and leaves once, so the cost of a call does not depend on the
//! number of calls before, and nothing is allocated once the ring exists. Each outcome has its own time instead of a
//! coarse bucket, because "the last twenty" and "the last two minutes" must hold at the same time, and bucket borders
//! would make one of them inexact.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::Timestamp;
use crate::policy::{BreakerPolicy, RateRule};

/// The number of outcomes that each rule covers. A policy may change between two calls, and the ring follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowReach {
    failures: u32,
    slow: u32,
    run: u32,
}

impl WindowReach {
    /// Returns the reach that this policy needs.
    #[inline]
    pub(super) fn of(policy: &BreakerPolicy) -> Self {
        Self {
            failures: policy.rate.map_or(0, |rule| rule.last.get()),
            slow: policy.slow.map_or(0, |rule| rule.rate.last.get()),
            run: policy.consecutive.map_or(0, NonZeroU32::get),
        }
    }

    /// Limits the reach to [`RateRule::MOST`].
    fn bounded(self) -> Self {
        let bounded = |reach: u32| reach.min(RateRule::MOST);
        Self { failures: bounded(self.failures), slow: bounded(self.slow), run: bounded(self.run) }
    }

    fn longest(self) -> u32 {
        self.failures.max(self.slow).max(self.run)
    }
}

/// An outcome that counts, and its time, in one word: milliseconds in the upper bits, two flags in the lower bits. So
/// outcomes sort by their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WindowOutcome(u64);

impl WindowOutcome {
    const FAILED: u64 = 0b01;
    const SLOW: u64 = 0b10;
    const MARKS: u32 = 2;

    /// Returns a fast success.
    pub(super) fn good(at: Timestamp) -> Self {
        Self(at.as_millis().min(u64::MAX >> Self::MARKS) << Self::MARKS)
    }

    /// Returns the outcome, marked as failed.
    pub(super) fn failed(self) -> Self {
        Self(self.0 | Self::FAILED)
    }

    /// Returns the outcome, marked as slow.
    pub(super) fn slow(self) -> Self {
        Self(self.0 | Self::SLOW)
    }

    fn is_failed(self) -> bool {
        self.0 & Self::FAILED != 0
    }

    fn is_slow(self) -> bool {
        self.0 & Self::SLOW != 0
    }

    /// Returns the first outcome that is not older than this span before this one.
    #[inline]
    fn before(self, span: Duration) -> Self {
        let span = span.as_secs().saturating_mul(1000).saturating_add(u64::from(span.subsec_millis()));
        Self((self.0 >> Self::MARKS).saturating_sub(span) << Self::MARKS)
    }

    /// Returns the last possible outcome at the same time.
    fn at_the_latest(self) -> Self {
        self.failed().slow()
    }

    fn moved_to(self, other: Self) -> Self {
        let marks = Self::FAILED | Self::SLOW;
        Self(other.0 & !marks | self.0 & marks)
    }
}

/// A number of outcomes, and the number of those with a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlaggedShare {
    /// Outcomes with the flag.
    pub(super) part: u32,
    /// All outcomes.
    pub(super) whole: u32,
}

/// The ring and its counters.
#[derive(Clone, Debug, Default)]
pub(super) struct OutcomeWindow {
    /// Empty until the first outcome. Then its size is a power of two, so that positions wrap by a mask.
    ring: Box<[WindowOutcome]>,
    /// Position of the next outcome.
    next: u32,
    len: u32,
    /// The longest reach. Older outcomes are dropped.
    keep: u32,
    reach: WindowReach,
    /// The reach before it was limited, to detect changes.
    requested: WindowReach,
    /// Maximum age of an outcome, as of the last one.
    span: Duration,
    /// Failures among the last `reach.failures`.
    failures: u32,
    /// Slow outcomes among the last `reach.slow`.
    slow: u32,
    /// Failures since the last success, among the outcomes kept.
    run: u32,
}

impl OutcomeWindow {
    /// Adds an outcome and drops those older than `span`. This is on the path of every attempt, so rare cases are
    /// separate.
    #[inline]
    pub(super) fn push(&mut self, reach: WindowReach, span: Duration, outcome: WindowOutcome) {
        if reach != self.requested {
            self.reshape(reach);
        }
        self.span = span;
        if self.keep == 0 {
            return;
        }
        self.evict_for(outcome);
        // The newest outcome enters the range of a rule, and the one at its far end leaves it.
        let WindowReach { failures, slow, .. } = self.reach;
        if failures > 0 {
            self.failures += u32::from(outcome.is_failed());
            if self.len >= failures {
                self.failures -= u32::from(self.back(failures).is_failed());
            }
        }
        if slow > 0 {
            self.slow += u32::from(outcome.is_slow());
            if self.len >= slow {
                self.slow -= u32::from(self.back(slow).is_slow());
            }
        }
        self.enter(outcome);
        self.run = if outcome.is_failed() { self.len.min(self.run + 1) } else { 0 };
    }

    /// Adds successes by the rules of the last outcome. There are no failures, so there is nothing to count. If the
    /// time of a success is not known, it was soon after the one before it. Successes beyond the capacity would leave
    /// no trace.
    pub(super) fn push_successes(&mut self, moments: impl ExactSizeIterator<Item = Option<Timestamp>>) {
        let passing = moments.len().saturating_sub(self.keep as usize);
        for moment in moments.skip(passing) {
            let outcome = moment.map_or(WindowOutcome::default().moved_to(self.back(1)), WindowOutcome::good);
            self.evict_for(outcome);
            self.enter(outcome);
        }
    }

    /// Returns true if there are no failures and no slow outcomes, so that no rule can match.
    #[inline]
    pub(super) fn is_clean(&self) -> bool {
        // Before the first outcome the window has no shape, and a count added to it would be lost.
        self.len > 0 && self.run | self.failures | self.slow == 0
    }

    /// Removes all outcomes but keeps the ring.
    pub(super) fn clear(&mut self) {
        (self.next, self.len, self.failures, self.slow, self.run) = (0, 0, 0, 0, 0);
    }

    /// Returns the failures in a row, as of the last outcome.
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// Returns the failures in the range of the failure rule.
    pub(super) fn failures(&self) -> FlaggedShare {
        FlaggedShare { part: self.failures, whole: self.len.min(self.reach.failures) }
    }

    /// Returns the slow outcomes in the range of the slowness rule.
    pub(super) fn slow(&self) -> FlaggedShare {
        FlaggedShare { part: self.slow, whole: self.len.min(self.reach.slow) }
    }

    /// Drops the outcomes that are too old at the time of the newest one.
    #[inline]
    fn evict_for(&mut self, outcome: WindowOutcome) {
        if self.back(1) > outcome.at_the_latest() {
            self.pull_back_to(outcome);
        }
        let oldest_kept = outcome.before(self.span);
        if self.back(self.len) < oldest_kept {
            self.expire(oldest_kept);
        }
    }

    #[inline]
    fn enter(&mut self, outcome: WindowOutcome) {
        let position = self.position(0);
        if let Some(slot) = self.ring.get_mut(position) {
            *slot = outcome;
        }
        self.next = self.next.wrapping_add(1);
        self.len = self.keep.min(self.len + 1);
    }

    /// Handles a clock that stepped back. Outcomes in the future would outlive their window by the size of the step, so
    /// they get the current time instead.
    #[cold]
    fn pull_back_to(&mut self, now: WindowOutcome) {
        let mut steps = 1;
        while steps <= self.len && self.back(steps) > now.at_the_latest() {
            let moved = self.back(steps).moved_to(now);
            let position = self.position(steps);
            if let Some(slot) = self.ring.get_mut(position) {
                *slot = moved;
            }
            steps += 1;
        }
    }

    #[cold]
    fn expire(&mut self, oldest_kept: WindowOutcome) {
        while self.len > 0 && self.back(self.len) < oldest_kept {
            let oldest = self.back(self.len);
            self.failures -= u32::from(oldest.is_failed() && self.len <= self.reach.failures);
            self.slow -= u32::from(oldest.is_slow() && self.len <= self.reach.slow);
            self.len -= 1;
        }
        self.run = self.run.min(self.len);
    }

    /// Returns the outcome this many steps back. The newest is one step back.
    #[inline]
    fn back(&self, steps: u32) -> WindowOutcome {
        self.ring.get(self.position(steps)).copied().unwrap_or_default()
    }

    /// Returns a position in the ring. Positions grow without end and wrap by the mask. Both wrap at a power of two, so
    /// they agree.
    #[inline]
    fn position(&self, steps: u32) -> usize {
        self.next.wrapping_sub(steps) as usize & self.ring.len().wrapping_sub(1)
    }

    /// Handles a reload that changed the reach of the rules: keeps the newest outcomes that still matter, and counts
    /// them again.
    #[cold]
    fn reshape(&mut self, requested: WindowReach) {
        let reach = requested.bounded();
        let keep = reach.longest();
        let outcomes: Vec<WindowOutcome> =
            (1..=self.len.min(keep)).rev().map(|steps| self.back(steps)).collect();
        let slots = if keep == 0 { 0 } else { keep.next_power_of_two() as usize };
        *self = Self {
            ring: vec![WindowOutcome::default(); slots].into(),
            keep,
            reach,
            requested,
            ..Self::default()
        };
        for outcome in outcomes {
            self.push(requested, Duration::MAX, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A model that keeps all outcomes and searches them each time.
    #[derive(Default)]
    struct NaiveWindow(Vec<WindowOutcome>);

    impl NaiveWindow {
        fn push(&mut self, span: u64, outcome: WindowOutcome) {
            for earlier in &mut self.0 {
                if at(*earlier) > at(outcome) {
                    *earlier = earlier.moved_to(outcome);
                }
            }
            // An outcome that was once too old stays so, also if the clock steps back.
            self.0.retain(|earlier| at(outcome) - at(*earlier) <= span);
            self.0.push(outcome);
        }

        fn last(&self, count: u32) -> Vec<WindowOutcome> {
            self.0.iter().skip(self.0.len().saturating_sub(count as usize)).copied().collect()
        }
    }

    fn at(outcome: WindowOutcome) -> u64 {
        outcome.0 >> WindowOutcome::MARKS
    }

    fn outcome(at: u64, failed: bool, slow: bool) -> WindowOutcome {
        let mut outcome = WindowOutcome::good(Timestamp::from_millis(at));
        if failed {
            outcome = outcome.failed();
        }
        if slow {
            outcome = outcome.slow();
        }
        outcome
    }

    #[test]
    fn a_mark_that_is_set_twice_stays_and_takes_nothing_from_the_moment() {
        let good = WindowOutcome::good(Timestamp::from_millis(1000));
        let both = good.failed().slow();
        for outcome in [good, good.failed(), good.slow(), both] {
            assert_eq!(outcome.at_the_latest(), both);
        }
        assert_eq!((good.is_failed(), good.is_slow()), (false, false));
        assert_eq!((good.failed().is_failed(), good.failed().is_slow()), (true, false));
        assert_eq!((good.slow().is_failed(), good.slow().is_slow()), (false, true));
    }

    #[test]
    fn the_end_of_time_comes_after_everything() {
        let end = WindowOutcome::good(Timestamp::from_millis(1 << 63));
        assert!(end > WindowOutcome::good(Timestamp::from_millis(1)));
        assert_eq!(end, WindowOutcome::good(Timestamp::MAX));
    }

    proptest! {
        #[test]
        fn counters_agree_with_a_full_scan(
            reach in (0_u32..9, 0_u32..9, 0_u32..9),
            span in 1_u64..30,
            calls in prop::collection::vec((-3_i64..12, any::<bool>(), any::<bool>()), 1..80),
        ) {
            let reach = WindowReach { failures: reach.0, slow: reach.1, run: reach.2 };
            let (mut window, mut naive, mut now) = (OutcomeWindow::default(), NaiveWindow::default(), 100_u64);
            for (step, failed, slow) in calls {
                now = now.saturating_add_signed(step);
                let outcome = outcome(now, failed, slow);
                window.push(reach, Duration::from_millis(span), outcome);
                naive.push(span, outcome);

                let failures = naive.last(reach.failures);
                let part = failures.iter().filter(|outcome| outcome.is_failed()).count();
                prop_assert_eq!((window.failures().part as usize, window.failures().whole as usize), (part, failures.len()));
                let slow = naive.last(reach.slow);
                let part = slow.iter().filter(|outcome| outcome.is_slow()).count();
                prop_assert_eq!((window.slow().part as usize, window.slow().whole as usize), (part, slow.len()));
                let run = naive.last(reach.longest()).iter().rev().take_while(|outcome| outcome.is_failed()).count();
                prop_assert_eq!(window.run() as usize, run);
            }
        }

        #[test]
        fn a_changed_reach_keeps_the_newest(
            before in 1_u32..12,
            after in 1_u32..12,
            calls in prop::collection::vec(any::<bool>(), 0..30),
            more in prop::collection::vec(any::<bool>(), 1..30),
        ) {
            let mut window = OutcomeWindow::default();
            let mut all = Vec::new();
            for failed in calls {
                window.push(WindowReach { failures: before, ..WindowReach::default() }, Duration::MAX, outcome(1, failed, false));
                all.push(failed);
            }
            // Outcomes that had already left cannot return.
            all.drain(..all.len().saturating_sub(before.min(after) as usize));
            for failed in more {
                window.push(WindowReach { failures: after, ..WindowReach::default() }, Duration::MAX, outcome(1, failed, false));
                all.push(failed);
                let recent = &all[all.len().saturating_sub(after as usize)..];
                let part = recent.iter().filter(|failed| **failed).count();
                prop_assert_eq!((window.failures().part as usize, window.failures().whole as usize), (part, recent.len()));
            }
        }
    }

    #[test]
    fn positions_may_count_beyond_their_type() {
        let mut window = OutcomeWindow::default();
        let reach = WindowReach { failures: 3, ..WindowReach::default() };
        window.push(reach, Duration::MAX, outcome(1, true, false));
        window.next = u32::MAX;
        window.clear();
        window.next = u32::MAX - 1;
        for failed in [true, false, true, true, false] {
            window.push(reach, Duration::MAX, outcome(1, failed, false));
        }
        assert_eq!(window.failures(), FlaggedShare { part: 2, whole: 3 });
    }

    #[test]
    fn failures_at_the_maximum_timestamp_are_counted() {
        let mut window = OutcomeWindow::default();
        let reach = WindowReach { run: 2, ..WindowReach::default() };
        window.push(reach, Duration::from_secs(1), WindowOutcome::good(Timestamp::MAX).failed());
        window.push(reach, Duration::from_secs(1), WindowOutcome::good(Timestamp::MAX).failed());
        assert_eq!(window.run(), 2);
    }
}

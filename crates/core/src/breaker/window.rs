//! What the breaker remembers: the last outcomes, each with its moment.
//!
//! One ring holds them all; counters beside it say how many of the last so-and-so-many failed or were slow
//! and how long the current run of failures is. An outcome enters once and leaves once, so the cost of a
//! call does not depend on how many came before it, and nothing is allocated once the ring stands. Moments
//! are kept for each outcome, not in coarse buckets, because "the last twenty" and "the last two minutes"
//! must hold at once and bucket borders would make either of them a guess.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::Timestamp;
use crate::policy::{BreakerPolicy, RateRule};

/// How far back each rule looks, in outcomes. A policy may change between two calls; the ring follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    failures: u32,
    slow: u32,
    run: u32,
}

impl Reach {
    /// What this policy asks for.
    #[inline]
    pub(super) fn of(policy: &BreakerPolicy) -> Self {
        Self {
            failures: policy.rate.map_or(0, |rule| rule.last.get()),
            slow: policy.slow.map_or(0, |rule| rule.rate.last.get()),
            run: policy.consecutive.map_or(0, NonZeroU32::get),
        }
    }

    /// No rule looks further back than [`RateRule::MOST`].
    fn bounded(self) -> Self {
        let bounded = |reach: u32| reach.min(RateRule::MOST);
        Self { failures: bounded(self.failures), slow: bounded(self.slow), run: bounded(self.run) }
    }

    fn longest(self) -> u32 {
        self.failures.max(self.slow).max(self.run)
    }
}

/// An outcome that counts, and its moment, in one word: milliseconds above, two marks below. The order of
/// outcomes is therefore that of their moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Outcome(u64);

impl Outcome {
    const FAILED: u64 = 0b01;
    const SLOW: u64 = 0b10;
    const MARKS: u32 = 2;

    /// An answer in good time.
    pub(super) fn good(at: Timestamp) -> Self {
        Self(at.as_millis().min(u64::MAX >> Self::MARKS) << Self::MARKS)
    }

    /// The same, failed.
    pub(super) fn failed(self) -> Self {
        Self(self.0 | Self::FAILED)
    }

    /// The same, too slow.
    pub(super) fn slow(self) -> Self {
        Self(self.0 | Self::SLOW)
    }

    fn is_failed(self) -> bool {
        self.0 & Self::FAILED != 0
    }

    fn is_slow(self) -> bool {
        self.0 & Self::SLOW != 0
    }

    /// The first that is not older than so much before this one.
    #[inline]
    fn before(self, span: Duration) -> Self {
        let span = span.as_secs().saturating_mul(1000).saturating_add(u64::from(span.subsec_millis()));
        Self((self.0 >> Self::MARKS).saturating_sub(span) << Self::MARKS)
    }

    /// The last that there could be at the same moment.
    fn at_the_latest(self) -> Self {
        self.failed().slow()
    }

    fn moved_to(self, other: Self) -> Self {
        let marks = Self::FAILED | Self::SLOW;
        Self(other.0 & !marks | self.0 & marks)
    }
}

/// How many of the last outcomes, and how many of those had the mark in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Those with the mark.
    pub(super) part: u32,
    /// All of them.
    pub(super) whole: u32,
}

/// The ring and its counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Empty until the first outcome; then a power of two, so that positions wrap by a mask.
    ring: Box<[Outcome]>,
    /// Where the next outcome goes.
    next: u32,
    len: u32,
    /// The longest reach: what is further back is let go.
    keep: u32,
    reach: Reach,
    /// The same before it was bounded, to see that nothing changed.
    asked: Reach,
    /// How old an outcome may get, as of the last one.
    span: Duration,
    /// Failures among the last `reach.failures`.
    failures: u32,
    /// Slow ones among the last `reach.slow`.
    slow: u32,
    /// Failures since the last success, of those still remembered.
    run: u32,
}

impl Window {
    /// Takes in an outcome and lets go of those older than `span`. This is on the path of every attempt:
    /// what is rare stands apart.
    #[inline]
    pub(super) fn push(&mut self, reach: Reach, span: Duration, outcome: Outcome) {
        if reach != self.asked {
            self.reshape(reach);
        }
        self.span = span;
        if self.keep == 0 {
            return;
        }
        self.make_way_for(outcome);
        // The newest enters the sight of a rule, and the one at its far end leaves it.
        let Reach { failures, slow, .. } = self.reach;
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

    /// Takes in good outcomes by the rules of the last one, while nothing bad is in sight: then there is nothing
    /// to count. Of one whose moment is not known, only that it was soon after the one before it. Those beyond
    /// what is kept would leave no trace.
    pub(super) fn push_good(&mut self, moments: impl ExactSizeIterator<Item = Option<Timestamp>>) {
        let passing = moments.len().saturating_sub(self.keep as usize);
        for moment in moments.skip(passing) {
            let outcome = moment.map_or(Outcome::default().moved_to(self.back(1)), Outcome::good);
            self.make_way_for(outcome);
            self.enter(outcome);
        }
    }

    /// Whether nothing bad is in sight, so that no rule can have been broken.
    #[inline]
    pub(super) fn is_clean(&self) -> bool {
        // Before the first outcome the window has no shape, and a count put into it would be lost.
        self.len > 0 && self.run | self.failures | self.slow == 0
    }

    /// Forgets everything but keeps its ring.
    pub(super) fn clear(&mut self) {
        (self.next, self.len, self.failures, self.slow, self.run) = (0, 0, 0, 0, 0);
    }

    /// Failures in a row, as of the last outcome.
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// Failures among those that the rule of failures looks at.
    pub(super) fn failures(&self) -> Share {
        Share { part: self.failures, whole: self.len.min(self.reach.failures) }
    }

    /// Slow ones among those that the rule of slowness looks at.
    pub(super) fn slow(&self) -> Share {
        Share { part: self.slow, whole: self.len.min(self.reach.slow) }
    }

    /// What the moment of the newest outcome does to those before it.
    #[inline]
    fn make_way_for(&mut self, outcome: Outcome) {
        if self.back(1) > outcome.at_the_latest() {
            self.pull_back_to(outcome);
        }
        let oldest_kept = outcome.before(self.span);
        if self.back(self.len) < oldest_kept {
            self.expire(oldest_kept);
        }
    }

    #[inline]
    fn enter(&mut self, outcome: Outcome) {
        let position = self.position(0);
        if let Some(slot) = self.ring.get_mut(position) {
            *slot = outcome;
        }
        self.next = self.next.wrapping_add(1);
        self.len = self.keep.min(self.len + 1);
    }

    /// A clock that stepped back would leave outcomes of the future at the head, which would then outlive
    /// their window by the size of the step. They count as made now instead.
    #[cold]
    fn pull_back_to(&mut self, now: Outcome) {
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
    fn expire(&mut self, oldest_kept: Outcome) {
        while self.len > 0 && self.back(self.len) < oldest_kept {
            let oldest = self.back(self.len);
            self.failures -= u32::from(oldest.is_failed() && self.len <= self.reach.failures);
            self.slow -= u32::from(oldest.is_slow() && self.len <= self.reach.slow);
            self.len -= 1;
        }
        self.run = self.run.min(self.len);
    }

    /// The outcome this many back; the newest is one back.
    #[inline]
    fn back(&self, steps: u32) -> Outcome {
        self.ring.get(self.position(steps)).copied().unwrap_or_default()
    }

    /// Positions count up without end and wrap by the mask; both wrap at a power of two, so they agree.
    #[inline]
    fn position(&self, steps: u32) -> usize {
        self.next.wrapping_sub(steps) as usize & self.ring.len().wrapping_sub(1)
    }

    /// A reload changed how far back the rules look: keep the newest that still matter, count anew.
    #[cold]
    fn reshape(&mut self, asked: Reach) {
        let reach = asked.bounded();
        let keep = reach.longest();
        let kept: Vec<Outcome> = (1..=self.len.min(keep)).rev().map(|steps| self.back(steps)).collect();
        let slots = if keep == 0 { 0 } else { keep.next_power_of_two() as usize };
        *self = Self { ring: vec![Outcome::default(); slots].into(), keep, reach, asked, ..Self::default() };
        for outcome in kept {
            self.push(asked, Duration::MAX, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All outcomes ever, looked through each time.
    #[derive(Default)]
    struct Naive(Vec<Outcome>);

    impl Naive {
        fn push(&mut self, span: u64, outcome: Outcome) {
            for earlier in &mut self.0 {
                if at(*earlier) > at(outcome) {
                    *earlier = earlier.moved_to(outcome);
                }
            }
            // What was once too old stays so, also if the clock steps back.
            self.0.retain(|earlier| at(outcome) - at(*earlier) <= span);
            self.0.push(outcome);
        }

        fn last(&self, count: u32) -> Vec<Outcome> {
            self.0.iter().skip(self.0.len().saturating_sub(count as usize)).copied().collect()
        }
    }

    fn at(outcome: Outcome) -> u64 {
        outcome.0 >> Outcome::MARKS
    }

    fn outcome(at: u64, failed: bool, slow: bool) -> Outcome {
        let mut outcome = Outcome::good(Timestamp::from_millis(at));
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
        let good = Outcome::good(Timestamp::from_millis(1000));
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
        let end = Outcome::good(Timestamp::from_millis(1 << 63));
        assert!(end > Outcome::good(Timestamp::from_millis(1)));
        assert_eq!(end, Outcome::good(Timestamp::MAX));
    }

    proptest! {
        #[test]
        fn counters_agree_with_looking_through_everything(
            reach in (0_u32..9, 0_u32..9, 0_u32..9),
            span in 1_u64..30,
            calls in prop::collection::vec((-3_i64..12, any::<bool>(), any::<bool>()), 1..80),
        ) {
            let reach = Reach { failures: reach.0, slow: reach.1, run: reach.2 };
            let (mut window, mut naive, mut now) = (Window::default(), Naive::default(), 100_u64);
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
            let mut window = Window::default();
            let mut all = Vec::new();
            for failed in calls {
                window.push(Reach { failures: before, ..Reach::default() }, Duration::MAX, outcome(1, failed, false));
                all.push(failed);
            }
            // What had already left cannot come back.
            all.drain(..all.len().saturating_sub(before.min(after) as usize));
            for failed in more {
                window.push(Reach { failures: after, ..Reach::default() }, Duration::MAX, outcome(1, failed, false));
                all.push(failed);
                let seen = &all[all.len().saturating_sub(after as usize)..];
                let part = seen.iter().filter(|failed| **failed).count();
                prop_assert_eq!((window.failures().part as usize, window.failures().whole as usize), (part, seen.len()));
            }
        }
    }

    #[test]
    fn positions_may_count_beyond_their_type() {
        let mut window = Window::default();
        let reach = Reach { failures: 3, ..Reach::default() };
        window.push(reach, Duration::MAX, outcome(1, true, false));
        window.next = u32::MAX;
        window.clear();
        window.next = u32::MAX - 1;
        for failed in [true, false, true, true, false] {
            window.push(reach, Duration::MAX, outcome(1, failed, false));
        }
        assert_eq!(window.failures(), Share { part: 2, whole: 3 });
    }

    #[test]
    fn the_end_of_time_is_no_special_moment() {
        let mut window = Window::default();
        let reach = Reach { run: 2, ..Reach::default() };
        window.push(reach, Duration::from_secs(1), Outcome::good(Timestamp::MAX).failed());
        window.push(reach, Duration::from_secs(1), Outcome::good(Timestamp::MAX).failed());
        assert_eq!(window.run(), 2);
    }
}

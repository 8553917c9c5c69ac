//! When to give up on a call that is pending.
//!
//! A tool that hangs must not take the session with it. A pending call that shows no sign of life for the
//! idle limit is stuck; progress pushes that back, so that a long call which reports is left alone; the
//! total limit holds however much it reports, or a tool that counts forever would never be ended. What
//! follows (cancel upstream, answer `stuck_call`) is for the caller to do.

use std::time::Duration;

use crate::Timestamp;
use crate::policy::TimePolicy;

/// Watches one pending call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// How long it may be silent.
    idle: Duration,
    /// When it ends in any case.
    end: Timestamp,
    last_sign: Timestamp,
}

/// What is to be done about a pending call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Fine {
        /// When to ask again, if nothing happens before.
        next_check: Timestamp,
    },
    /// It has been silent for too long.
    Stuck,
    /// It has taken too long in all.
    TotalLimit,
}

impl Watchdog {
    /// The call is pending from now on.
    pub fn new(time: &TimePolicy, now: Timestamp) -> Self {
        Self { idle: time.attempt, end: now + time.total, last_sign: now }
    }

    /// The call has shown a sign of life. One that arrives late still counts: a slow timer of ours must not
    /// end a call that lives.
    pub fn progress(&mut self, now: Timestamp) {
        self.last_sign = self.last_sign.max(now);
    }

    /// When it last showed a sign of life, or began.
    pub fn last_sign(&self) -> Timestamp {
        self.last_sign
    }

    /// When it will be stuck or too long, if nothing happens before.
    pub fn due(&self) -> Timestamp {
        self.silent_at().min(self.end)
    }

    /// When it will have been silent for too long, if nothing happens before.
    pub fn silent_at(&self) -> Timestamp {
        self.last_sign + self.idle
    }

    /// Whether it has shown a sign of life since then, and not been silent for too long after it.
    pub fn shows_life(&self, since: Timestamp, now: Timestamp) -> bool {
        since < self.last_sign && now < self.silent_at()
    }

    /// When it ends in any case.
    pub fn total_at(&self) -> Timestamp {
        self.end
    }

    /// How it stands. Of two limits that are both over, the one that was over first is named.
    pub fn verdict(&self, now: Timestamp) -> Verdict {
        if now < self.due() {
            Verdict::Fine { next_check: self.due() }
        } else if self.silent_at() < self.end {
            Verdict::Stuck
        } else {
            Verdict::TotalLimit
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: TimePolicy = TimePolicy {
        attempt: Duration::from_secs(300),
        total: Duration::from_secs(1800),
        last_retry: None,
        answer_by: None,
        silence: crate::policy::Silence::Stuck,
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1000 * seconds)
    }

    #[test]
    fn gr_7_a_silent_call_is_stuck_when_the_idle_limit_is_over() {
        let dog = Watchdog::new(&TIME, at(10));
        assert_eq!(dog.verdict(at(10)), Verdict::Fine { next_check: at(310) });
        assert_eq!(dog.verdict(Timestamp::from_millis(309_999)), Verdict::Fine { next_check: at(310) });
        assert_eq!(dog.verdict(at(310)), Verdict::Stuck);
        assert_eq!(dog.verdict(at(100_000)), Verdict::Stuck);
    }

    #[test]
    fn gr_7_progress_keeps_a_call_alive_but_only_until_the_total_limit() {
        let mut dog = Watchdog::new(&TIME, at(0));
        for second in (200..1800).step_by(200) {
            assert!(matches!(dog.verdict(at(second)), Verdict::Fine { .. }), "at {second}");
            dog.progress(at(second));
        }
        assert_eq!(dog.verdict(at(1799)), Verdict::Fine { next_check: at(1800) });
        dog.progress(at(1799));
        assert_eq!(dog.verdict(at(1800)), Verdict::TotalLimit);
    }

    #[test]
    fn progress_that_comes_late_or_out_of_order_does_no_harm() {
        let mut dog = Watchdog::new(&TIME, at(0));
        dog.progress(at(301));
        assert_eq!(dog.verdict(at(302)), Verdict::Fine { next_check: at(601) });
        dog.progress(at(5));
        assert_eq!(dog.verdict(at(302)), Verdict::Fine { next_check: at(601) });
    }

    #[test]
    fn the_limit_that_was_over_first_is_named() {
        let short_total = TimePolicy { total: Duration::from_secs(100), ..TIME };
        assert_eq!(Watchdog::new(&short_total, at(0)).verdict(at(5000)), Verdict::TotalLimit);
        let equal = TimePolicy { total: TIME.attempt, ..TIME };
        assert_eq!(Watchdog::new(&equal, at(0)).verdict(at(300)), Verdict::TotalLimit);
        let endless = TimePolicy { attempt: Duration::MAX, total: Duration::MAX, ..TIME };
        let dog = Watchdog::new(&endless, at(7));
        assert_eq!(dog.verdict(at(8)), Verdict::Fine { next_check: Timestamp::MAX });
    }

    proptest! {
        /// Asking at each `next_check` is enough: nothing is over before it, something may be at it.
        #[test]
        fn nothing_is_over_before_the_next_check(signs in proptest::collection::vec(0_u64..3000, 0..8), now in 0_u64..3000) {
            let mut dog = Watchdog::new(&TIME, at(0));
            for sign in signs.iter().filter(|sign| **sign <= now) {
                dog.progress(at(*sign));
            }
            if let Verdict::Fine { next_check } = dog.verdict(at(now)) {
                prop_assert!(next_check > at(now));
                let before = Timestamp::from_millis(next_check.as_millis() - 1);
                prop_assert_eq!(dog.verdict(before), Verdict::Fine { next_check });
                let is_fine = matches!(dog.verdict(next_check), Verdict::Fine { .. });
                prop_assert!(!is_fine);
            } else {
                prop_assert!(now >= 300);
            }
        }
    }
}

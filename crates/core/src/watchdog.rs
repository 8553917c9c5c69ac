//! Watchdog for pending calls.
//!
//! A tool that hangs must not block the session. A pending call without a sign of life for the idle limit is stuck.
//! Progress extends that, so a long call that reports is not ended. The total limit always applies, or a tool that
//! reports for ever would never be ended. The caller of the watchdog acts on the verdict (cancel upstream, answer
//! `stuck_call`).

use std::time::Duration;

use crate::Timestamp;
use crate::policy::TimePolicy;

/// The watchdog of one pending call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Maximum time without a sign of life.
    idle: Duration,
    /// Time at which the call ends in any case.
    end: Timestamp,
    last_sign: Timestamp,
}

/// The verdict on a pending call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogVerdict {
    /// The call is within its limits.
    Fine {
        /// Time of the next check, if nothing happens before.
        next_check: Timestamp,
    },
    /// The call was silent for too long.
    Stuck,
    /// The call took too long in total.
    TotalLimit,
}

impl Watchdog {
    /// Starts the watchdog of a call that is pending from now on.
    pub fn new(time: &TimePolicy, now: Timestamp) -> Self {
        Self { idle: time.attempt, end: now + time.total, last_sign: now }
    }

    /// Records a sign of life. A late one still counts: a slow timer of Steadfast must not end a call that is alive.
    pub fn progress(&mut self, now: Timestamp) {
        self.last_sign = self.last_sign.max(now);
    }

    /// Returns the time of the last sign of life, or of the start.
    pub fn last_sign(&self) -> Timestamp {
        self.last_sign
    }

    /// Returns the time at which a limit is reached, if nothing happens before.
    pub fn due(&self) -> Timestamp {
        self.silent_at().min(self.end)
    }

    /// Returns the time at which the idle limit is reached, if nothing happens before.
    pub fn silent_at(&self) -> Timestamp {
        self.last_sign + self.idle
    }

    /// Returns true if the call has shown a sign of life since then, and the idle limit has not passed after it.
    pub fn is_alive(&self, since: Timestamp, now: Timestamp) -> bool {
        since < self.last_sign && now < self.silent_at()
    }

    /// Returns the time at which the call ends in any case.
    pub fn total_at(&self) -> Timestamp {
        self.end
    }

    /// Returns the verdict. If both limits have passed, the first one counts.
    pub fn verdict(&self, now: Timestamp) -> WatchdogVerdict {
        if now < self.due() {
            WatchdogVerdict::Fine { next_check: self.due() }
        } else if self.silent_at() < self.end {
            WatchdogVerdict::Stuck
        } else {
            WatchdogVerdict::TotalLimit
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
        silence: crate::policy::SilencePolicy::Stuck,
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1000 * seconds)
    }

    #[test]
    fn gr_7_a_silent_call_is_stuck_when_the_idle_limit_is_over() {
        let dog = Watchdog::new(&TIME, at(10));
        assert_eq!(dog.verdict(at(10)), WatchdogVerdict::Fine { next_check: at(310) });
        assert_eq!(
            dog.verdict(Timestamp::from_millis(309_999)),
            WatchdogVerdict::Fine { next_check: at(310) }
        );
        assert_eq!(dog.verdict(at(310)), WatchdogVerdict::Stuck);
        assert_eq!(dog.verdict(at(100_000)), WatchdogVerdict::Stuck);
    }

    #[test]
    fn gr_7_progress_keeps_a_call_alive_but_only_until_the_total_limit() {
        let mut dog = Watchdog::new(&TIME, at(0));
        for second in (200..1800).step_by(200) {
            assert!(matches!(dog.verdict(at(second)), WatchdogVerdict::Fine { .. }), "at {second}");
            dog.progress(at(second));
        }
        assert_eq!(dog.verdict(at(1799)), WatchdogVerdict::Fine { next_check: at(1800) });
        dog.progress(at(1799));
        assert_eq!(dog.verdict(at(1800)), WatchdogVerdict::TotalLimit);
    }

    #[test]
    fn progress_that_comes_late_or_out_of_order_does_no_harm() {
        let mut dog = Watchdog::new(&TIME, at(0));
        dog.progress(at(301));
        assert_eq!(dog.verdict(at(302)), WatchdogVerdict::Fine { next_check: at(601) });
        dog.progress(at(5));
        assert_eq!(dog.verdict(at(302)), WatchdogVerdict::Fine { next_check: at(601) });
    }

    #[test]
    fn the_limit_that_was_over_first_is_named() {
        let short_total = TimePolicy { total: Duration::from_secs(100), ..TIME };
        assert_eq!(Watchdog::new(&short_total, at(0)).verdict(at(5000)), WatchdogVerdict::TotalLimit);
        let equal = TimePolicy { total: TIME.attempt, ..TIME };
        assert_eq!(Watchdog::new(&equal, at(0)).verdict(at(300)), WatchdogVerdict::TotalLimit);
        let endless = TimePolicy { attempt: Duration::MAX, total: Duration::MAX, ..TIME };
        let dog = Watchdog::new(&endless, at(7));
        assert_eq!(dog.verdict(at(8)), WatchdogVerdict::Fine { next_check: Timestamp::MAX });
    }

    proptest! {
        /// Checking at each `next_check` is enough: no limit passes before it, and one may pass at it.
        #[test]
        fn nothing_is_over_before_the_next_check(signs in proptest::collection::vec(0_u64..3000, 0..8), now in 0_u64..3000) {
            let mut dog = Watchdog::new(&TIME, at(0));
            for sign in signs.iter().filter(|sign| **sign <= now) {
                dog.progress(at(*sign));
            }
            if let WatchdogVerdict::Fine { next_check } = dog.verdict(at(now)) {
                prop_assert!(next_check > at(now));
                let before = Timestamp::from_millis(next_check.as_millis() - 1);
                prop_assert_eq!(dog.verdict(before), WatchdogVerdict::Fine { next_check });
                let is_fine = matches!(dog.verdict(next_check), WatchdogVerdict::Fine { .. });
                prop_assert!(!is_fine);
            } else {
                prop_assert!(now >= 300);
            }
        }
    }
}

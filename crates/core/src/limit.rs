//! Concurrency limit and rate limit of one tool or dependency.
//!
//! The rate limit is a leaky bucket: attempts fill it, and it drains evenly. The spent amount is a whole number of
//! "attempts times time". A rate such as three per second, whose interval is not a whole number of any unit, therefore
//! neither gains nor loses an attempt however long it runs. There is no timer: the bucket drains when it is used.

use std::time::Duration;

use crate::Timestamp;
use crate::policy::{LimitPolicy, RateLimit};

/// The attempts in flight and the recent attempts.
#[derive(Clone, Debug, Default)]
pub struct Limiter {
    inside: u32,
    bucket: Option<RateBucket>,
}

/// The reason why an attempt may not start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// Too many attempts are in flight.
    Concurrency,
    /// Too many attempts in too short a time; the time at which the next one fits.
    Rate(Timestamp),
}

impl Limiter {
    /// Takes a permit. A refused attempt uses up no rate.
    pub fn try_acquire(&mut self, policy: &LimitPolicy, now: Timestamp) -> Result<(), LimitError> {
        if policy.concurrency.is_some_and(|most| self.inside >= most.get()) {
            return Err(LimitError::Concurrency);
        }
        match policy.rate {
            Some(rate) => {
                let bucket = self.bucket.get_or_insert(RateBucket::new(rate, now));
                bucket.take(rate, now).map_err(LimitError::Rate)?;
            }
            None => self.bucket = None,
        }
        self.inside = self.inside.saturating_add(1);
        Ok(())
    }

    /// Returns a permit. A permit that was never taken cannot be returned.
    pub fn release(&mut self) {
        self.inside = self.inside.saturating_sub(1);
    }

    /// Returns the permit of an attempt that was not made: it uses up no rate either.
    pub fn withdraw(&mut self) {
        self.release();
        if let Some(bucket) = &mut self.bucket {
            bucket.spent = bucket.spent.saturating_sub(cost(bucket.rate));
        }
    }

    /// Returns the number of attempts in flight.
    pub const fn in_flight(&self) -> u32 {
        self.inside
    }
}

/// The recently spent amount. Its unit is one attempt times one nanosecond: an attempt costs the whole `per`, and
/// `attempts` units drain in each nanosecond.
#[derive(Clone, Copy, Debug)]
struct RateBucket {
    rate: RateLimit,
    spent: u128,
    at: Timestamp,
}

impl RateBucket {
    const fn new(rate: RateLimit, now: Timestamp) -> Self {
        Self { rate, spent: 0, at: now }
    }

    fn take(&mut self, rate: RateLimit, now: Timestamp) -> Result<(), Timestamp> {
        self.drain(now);
        if self.rate != rate {
            // After a reload, as many attempts stay spent, at the new cost.
            let attempts = self.spent.div_ceil(cost(self.rate).max(1));
            *self = Self { rate, spent: (attempts * cost(rate)).min(capacity(rate)), at: self.at };
        }
        let total = self.spent + cost(rate);
        match total.checked_sub(capacity(rate)) {
            Some(excess) if excess > 0 => Err(now + draining(rate, excess)),
            Some(_) | None => {
                self.spent = total;
                Ok(())
            }
        }
    }

    /// A clock that stepped back drains nothing. Draining continues from the new time.
    fn drain(&mut self, now: Timestamp) {
        let drained = now.since(self.at).as_nanos().saturating_mul(per_nanosecond(self.rate));
        self.spent = self.spent.saturating_sub(drained);
        self.at = now;
    }
}

fn cost(rate: RateLimit) -> u128 {
    rate.per.as_nanos()
}

fn per_nanosecond(rate: RateLimit) -> u128 {
    u128::from(rate.attempts.get())
}

/// A duration has less than 2^94 nanoseconds and a number of attempts less than 2^32, so this fits.
fn capacity(rate: RateLimit) -> u128 {
    cost(rate) * per_nanosecond(rate)
}

/// Returns the time until so much has drained, in whole milliseconds, the unit of timestamps.
fn draining(rate: RateLimit, excess: u128) -> Duration {
    let millis = excess.div_ceil(per_nanosecond(rate)).div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn at_most(attempts: u32, per: Duration) -> LimitPolicy {
        let attempts = NonZeroU32::new(attempts).unwrap();
        LimitPolicy { rate: Some(RateLimit { attempts, per }), concurrency: None }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_attempt_that_is_not_made_uses_up_nothing() {
        let policy = LimitPolicy { concurrency: NonZeroU32::new(1), ..at_most(2, SECOND) };
        let mut limiter = Limiter::default();
        for _ in 0..5 {
            assert_eq!(limiter.try_acquire(&policy, at(0)), Ok(()));
            limiter.withdraw();
        }
        for _ in 0..2 {
            assert_eq!(limiter.try_acquire(&policy, at(0)), Ok(()));
            limiter.release();
        }
        assert_eq!(limiter.try_acquire(&policy, at(0)), Err(LimitError::Rate(at(500))));
    }

    #[test]
    fn no_more_than_the_limit_run_at_once() {
        let policy = LimitPolicy { concurrency: NonZeroU32::new(2), rate: None };
        let mut limiter = Limiter::default();
        assert_eq!(
            (limiter.try_acquire(&policy, at(0)), limiter.try_acquire(&policy, at(0))),
            (Ok(()), Ok(()))
        );
        assert_eq!(limiter.try_acquire(&policy, at(0)), Err(LimitError::Concurrency));
        limiter.release();
        assert_eq!(limiter.try_acquire(&policy, at(0)), Ok(()));
        for _ in 0..5 {
            limiter.release();
        }
        assert_eq!(limiter.in_flight(), 0);
        assert_eq!(
            (limiter.try_acquire(&policy, at(0)), limiter.try_acquire(&policy, at(0))),
            (Ok(()), Ok(()))
        );
        assert!(limiter.try_acquire(&policy, at(0)).is_err(), "leaving too often makes no extra place");
    }

    #[test]
    fn without_limits_everything_passes_and_is_still_counted() {
        let mut limiter = Limiter::default();
        assert!((0..1000).all(|_| limiter.try_acquire(&LimitPolicy::default(), at(0)).is_ok()));
        let policy = LimitPolicy { concurrency: NonZeroU32::new(5), rate: None };
        assert_eq!(
            limiter.try_acquire(&policy, at(0)),
            Err(LimitError::Concurrency),
            "a reload sees what is inside"
        );
    }

    #[test]
    fn a_burst_is_followed_by_an_even_trickle_and_the_retry_time_is_right() {
        let (policy, mut limiter) = (at_most(3, SECOND), Limiter::default());
        assert!((0..3).all(|_| limiter.try_acquire(&policy, at(0)).is_ok()));
        for fits in [334, 667, 1000, 1334] {
            assert_eq!(limiter.try_acquire(&policy, at(fits - 1)), Err(LimitError::Rate(at(fits))));
            assert_eq!(limiter.try_acquire(&policy, at(fits)), Ok(()));
        }
    }

    #[test]
    fn a_place_that_is_not_there_uses_up_no_rate() {
        let mut policy = at_most(2, SECOND);
        policy.concurrency = NonZeroU32::new(1);
        let mut limiter = Limiter::default();
        assert!(limiter.try_acquire(&policy, at(0)).is_ok());
        assert!((0..10).all(|_| limiter.try_acquire(&policy, at(0)) == Err(LimitError::Concurrency)));
        limiter.release();
        assert!(limiter.try_acquire(&policy, at(0)).is_ok());
    }

    #[test]
    fn rates_that_make_no_sense_do_no_harm() {
        let mut limiter = Limiter::default();
        assert!((0..100).all(|_| limiter.try_acquire(&at_most(1, Duration::ZERO), at(0)).is_ok()));
        let endless = at_most(u32::MAX, Duration::MAX);
        assert!(
            limiter.try_acquire(&endless, at(0)).is_ok()
                && limiter.try_acquire(&endless, Timestamp::MAX).is_ok()
        );
        let never = at_most(1, Duration::MAX);
        let mut limiter = Limiter::default();
        assert!(limiter.try_acquire(&never, at(0)).is_ok());
        assert_eq!(limiter.try_acquire(&never, at(0)), Err(LimitError::Rate(Timestamp::MAX)));
    }

    #[test]
    fn a_reload_preserves_the_spent_capacity() {
        let mut limiter = Limiter::default();
        assert!((0..4).all(|_| limiter.try_acquire(&at_most(5, SECOND), at(0)).is_ok()));
        assert!(limiter.try_acquire(&at_most(4, SECOND), at(0)).is_err());
        assert!(limiter.try_acquire(&at_most(10, 2 * SECOND), at(0)).is_ok());
    }

    #[test]
    fn a_clock_that_steps_back_neither_locks_nor_refills() {
        let (policy, mut limiter) = (at_most(1, SECOND), Limiter::default());
        assert!(limiter.try_acquire(&policy, at(1_000_000)).is_ok());
        assert_eq!(limiter.try_acquire(&policy, at(0)), Err(LimitError::Rate(at(1000))));
        assert!(limiter.try_acquire(&policy, at(1000)).is_ok());
    }

    proptest! {
        #[test]
        fn in_no_stretch_of_time_pass_more_than_a_burst_and_its_trickle(
            attempts in 1_u32..8,
            per in 1_u64..500,
            gaps in prop::collection::vec(0_u64..60, 1..200),
        ) {
            let (policy, mut limiter) = (at_most(attempts, Duration::from_millis(per)), Limiter::default());
            let (mut now, mut passed) = (0, Vec::new());
            for gap in gaps {
                now += gap;
                match limiter.try_acquire(&policy, at(now)) {
                    Ok(()) => passed.push(now),
                    Err(LimitError::Rate(when)) => {
                        prop_assert!(limiter.clone().try_acquire(&policy, when).is_ok(), "it fits when it was said to");
                        let sooner = at(when.as_millis() - 1);
                        prop_assert!(sooner < at(now) || limiter.clone().try_acquire(&policy, sooner).is_err());
                    }
                    Err(LimitError::Concurrency) => prop_assert!(false, "there is no such limit"),
                }
            }
            for (index, from) in passed.iter().enumerate() {
                for (count, to) in passed.iter().skip(index).enumerate() {
                    let allowed = u64::from(attempts) * per + (to - from) * u64::from(attempts);
                    prop_assert!((count as u64 + 1) * per <= allowed);
                }
            }
        }
    }
}

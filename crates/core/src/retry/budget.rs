//! The retry budget that all calls of one dependency share.
//!
//! Each call decides for itself that one more attempt is sensible, and all of them together can turn a short failure of
//! a dependency into a retry storm. The budget counts the attempts of the last ten seconds. A retry is granted
//! - if, with it, retries are no more than the share (20 %) of first attempts, or
//! - if fewer than the floor (10) were granted in the current second, so that a quiet tool can always retry.
//!
//! So retries run at the larger of the two rates, not at their sum: retries granted by the floor count against the
//! share. Old counts expire in steps of a second. Only the counters of ten seconds are stored.

use crate::Timestamp;
use crate::policy::BudgetPolicy;

const SECONDS: usize = 10;

/// The retry budget of all calls of one dependency.
#[derive(Clone, Debug, Default)]
pub struct RetryBudget {
    /// The current second.
    second: u64,
    buckets: [BudgetBucket; SECONDS],
}

#[derive(Clone, Copy, Debug, Default)]
struct BudgetBucket {
    firsts: u32,
    retries: u32,
}

impl RetryBudget {
    /// Records a first attempt.
    pub fn deposit(&mut self, _policy: &BudgetPolicy, now: Timestamp) {
        let current = self.current(now);
        current.firsts = current.firsts.saturating_add(1);
    }

    /// Takes one retry from the budget. Returns true if it was granted.
    pub fn withdraw(&mut self, policy: &BudgetPolicy, now: Timestamp) -> bool {
        let granted_by_floor = self.current(now).retries < policy.floor_per_second;
        if !granted_by_floor && !self.within_share(policy) {
            return false;
        }
        let current = self.current(now);
        current.retries = current.retries.saturating_add(1);
        true
    }

    fn within_share(&self, policy: &BudgetPolicy) -> bool {
        let sum = |count: fn(&BudgetBucket) -> u32| {
            self.buckets.iter().fold(0_u32, |sum, bucket| sum.saturating_add(count(bucket)))
        };
        let (firsts, retries) = (sum(|bucket| bucket.firsts), sum(|bucket| bucket.retries));
        f64::from(retries) + 1.0 <= policy.share.get() * f64::from(firsts)
    }

    /// Returns the bucket of this second, and empties expired ones. A clock that steps back a little stays in the
    /// newest second. One that steps back beyond all stored seconds resets the counters.
    fn current(&mut self, now: Timestamp) -> &mut BudgetBucket {
        let second = now.as_millis() / 1000;
        let elapsed = second.saturating_sub(self.second);
        if elapsed >= SECONDS as u64 || self.second.saturating_sub(second) >= SECONDS as u64 {
            *self = Self { second, ..Self::default() };
        }
        while self.second < second {
            self.second += 1;
            *self.bucket() = BudgetBucket::default();
        }
        self.bucket()
    }

    #[expect(clippy::indexing_slicing, reason = "the index is a remainder by the length")]
    fn bucket(&mut self) -> &mut BudgetBucket {
        let index = usize::try_from(self.second % SECONDS as u64).unwrap_or_default();
        &mut self.buckets[index % SECONDS]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Ratio;

    const POLICY: BudgetPolicy = BudgetPolicy { share: Ratio::percent(20), floor_per_second: 10 };
    const SHARE_ONLY: BudgetPolicy = BudgetPolicy { share: Ratio::percent(20), floor_per_second: 0 };

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn granted(budget: &mut RetryBudget, policy: &BudgetPolicy, requests: u32, now: Timestamp) -> usize {
        (0..requests).filter(|_| budget.withdraw(policy, now)).count()
    }

    #[test]
    fn a_quiet_tool_can_always_retry() {
        let mut budget = RetryBudget::default();
        for second in 0..100 {
            assert_eq!(granted(&mut budget, &POLICY, 50, at(second * 1000)), 10);
        }
    }

    #[test]
    fn retries_add_a_fifth_to_first_attempts() {
        let mut budget = RetryBudget::default();
        for _ in 0..1000 {
            budget.deposit(&POLICY, at(500));
        }
        assert_eq!(granted(&mut budget, &POLICY, 1000, at(900)), 200);
        assert_eq!(granted(&mut budget, &POLICY, 1000, at(1000)), 10, "the floor of the next second");
        assert_eq!(granted(&mut budget, &POLICY, 1000, at(1999)), 0);
    }

    #[test]
    fn counts_expire_after_ten_seconds() {
        let mut budget = RetryBudget::default();
        for _ in 0..100 {
            budget.deposit(&SHARE_ONLY, at(0));
        }
        assert_eq!(granted(&mut budget, &SHARE_ONLY, 5, at(9999)), 5);
        assert_eq!(granted(&mut budget, &SHARE_ONLY, 5, at(10_000)), 0);
    }

    #[test]
    fn a_budget_works_after_a_clock_jump_in_either_direction() {
        let mut budget = RetryBudget::default();
        assert_eq!(granted(&mut budget, &POLICY, 50, Timestamp::MAX), 10);
        assert_eq!(granted(&mut budget, &POLICY, 50, at(5000)), 10);
        assert_eq!(granted(&mut budget, &POLICY, 50, at(4000)), 0, "a small step back is the same second");
        assert_eq!(granted(&mut budget, &POLICY, 50, at(6000)), 10);
    }

    #[test]
    fn a_clock_that_steps_back_beyond_the_stored_seconds_resets_the_counters() {
        for (back, grants) in [(9_000, 0), (10_000, 10)] {
            let mut budget = RetryBudget::default();
            assert_eq!(granted(&mut budget, &POLICY, 50, at(20_000)), 10);
            assert_eq!(granted(&mut budget, &POLICY, 50, at(20_000 - back)), grants, "{back} ms back");
        }
    }

    proptest! {
        #[test]
        fn no_ten_seconds_see_more_retries_than_share_and_floor_allow(
            events in prop::collection::vec((0_u64..700, any::<bool>()), 1..300),
        ) {
            let policy = BudgetPolicy { share: Ratio::percent(20), floor_per_second: 2 };
            let (mut budget, mut now) = (RetryBudget::default(), 0);
            let (mut firsts, mut retries) = (Vec::new(), Vec::new());
            for (gap, first) in events {
                now += gap;
                let second = now / 1000;
                if first {
                    budget.deposit(&policy, at(now));
                    firsts.push(second);
                    continue;
                }
                let recent = |seconds: &[u64]| seconds.iter().filter(|of| **of + 10 > second).count();
                let by_share = (recent(&retries) + 1) as f64 <= 0.2 * recent(&firsts) as f64;
                let by_floor = retries.iter().filter(|of| **of == second).count() < 2;
                prop_assert_eq!(budget.withdraw(&policy, at(now)), by_share || by_floor);
                if by_share || by_floor {
                    retries.push(second);
                }
            }
        }
    }
}

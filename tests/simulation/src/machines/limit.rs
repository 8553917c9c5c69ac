//! The limiter: the concurrency limit and the rate limit.

use steadfast_core::Timestamp;
use steadfast_core::limit::{LimitError, Limiter};
use steadfast_core::policy::{LimitPolicy, RateLimit};

use super::{MachineTrace, agree, few, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "limits hold";

/// The time at which the rate would be unused again, in fractions of a nanosecond: one nanosecond has as many fractions
/// as the rate has attempts.
#[derive(Clone, Copy, Debug)]
struct ReferenceRate {
    limit: RateLimit,
    unused_at: u128,
    queried: Timestamp,
}

impl ReferenceRate {
    fn parts(&self, at: Timestamp) -> u128 {
        nanos(at) * attempts(self.limit)
    }

    /// Returns the used part at the time of the last query.
    fn spent(&self) -> u128 {
        self.unused_at.saturating_sub(self.parts(self.queried))
    }

    fn with_spent(limit: RateLimit, spent: u128, queried: Timestamp) -> Self {
        let fresh = Self { limit, unused_at: 0, queried };
        Self { unused_at: fresh.parts(queried) + spent, ..fresh }
    }
}

#[derive(Debug, Default)]
struct ReferenceLimiter {
    inside: u32,
    rate: Option<ReferenceRate>,
}

impl ReferenceLimiter {
    fn enter(&mut self, policy: &LimitPolicy, now: Timestamp) -> Result<(), LimitError> {
        if policy.concurrency.is_some_and(|most| self.inside >= most.get()) {
            return Err(LimitError::Concurrency);
        }
        let Some(limit) = policy.rate else {
            self.rate = None;
            self.inside += 1;
            return Ok(());
        };
        let known = self.rate.map(|rate| ReferenceRate { queried: now, ..rate });
        let rate = match known {
            None => ReferenceRate::with_spent(limit, 0, now),
            Some(rate) if rate.limit == limit => rate,
            // The number of attempts stays, whatever one costs now.
            Some(rate) => {
                let made = rate.spent().div_ceil(rate.limit.per.as_nanos().max(1));
                let whole = limit.per.as_nanos() * attempts(limit);
                ReferenceRate::with_spent(limit, (made * limit.per.as_nanos()).min(whole), now)
            }
        };
        let cost = limit.per.as_nanos();
        let room = cost * attempts(limit);
        let needed = rate.spent() + cost;
        if needed > room {
            self.rate = Some(rate);
            // The first whole millisecond at which enough has drained.
            let fits = (1..).find(|wait| {
                needed <= room + nanos(now + millis(*wait)).saturating_sub(nanos(now)) * attempts(limit)
            });
            return Err(LimitError::Rate(now + millis(fits.unwrap_or(0))));
        }
        self.rate = Some(ReferenceRate::with_spent(limit, needed, now));
        self.inside += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.inside = self.inside.saturating_sub(1);
    }

    fn withdraw(&mut self) {
        self.leave();
        if let Some(rate) = self.rate {
            let spent = rate.spent().saturating_sub(rate.limit.per.as_nanos());
            self.rate = Some(ReferenceRate::with_spent(rate.limit, spent, rate.queried));
        }
    }
}

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let draw = |rng: &mut Rng| LimitPolicy {
        concurrency: optional(rng, |rng| few(rng, 1, 3)),
        rate: optional(rng, |rng| RateLimit { attempts: few(rng, 1, 4), per: millis(rng.between(1, 40)) }),
    };
    let mut policy = draw(rng);
    let (mut limiter, mut reference) = (Limiter::default(), ReferenceLimiter::default());
    let mut now = Timestamp::from_millis(1_000);
    let mut moments = Vec::new();
    for _ in 0..40 {
        now = next_moment(rng, now, &moments).min(now + millis(200));
        match rng.between(0, 9) {
            0 => policy = draw(rng),
            1 | 2 => {
                limiter.release();
                reference.leave();
            }
            3 => {
                limiter.withdraw();
                reference.withdraw();
            }
            _ => {
                let (got, due) = (limiter.try_acquire(&policy, now), reference.enter(&policy, now));
                machine_trace.log(|| format!("{}: enter under {policy:?}: {got:?}", now.as_millis()));
                agree(PROMISE, "entering", &got, &due)?;
                if let Err(LimitError::Rate(fits)) = got {
                    moments.push(fits);
                }
            }
        }
        agree(PROMISE, "inside", &limiter.in_flight(), &reference.inside)?;
    }
    Ok(())
}

fn nanos(at: Timestamp) -> u128 {
    u128::from(at.as_millis()) * 1_000_000
}

fn attempts(limit: RateLimit) -> u128 {
    u128::from(limit.attempts.get())
}

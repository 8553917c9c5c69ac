//! When to try again, and when to stop.
//!
//! A [`Schedule`] belongs to one call and says when its next attempt may start; a [`RetryBudget`] belongs to
//! one dependency and says whether all its calls together retry too much. Total time and deadline limit the
//! *start* of an attempt: cutting a running one short is the business of whoever runs it.
//!
//! Waits are spread by a seed that comes in with the call, so that the same call replayed waits as it did.

mod budget;

use std::time::Duration;

pub use budget::RetryBudget;

use crate::policy::{Backoff, CountedFrom, Jitter, RetryPolicy};
use crate::{Timestamp, millis};

/// Why there is no further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All attempts are used.
    Attempts,
    /// The next one would start after the total time.
    TotalTime,
    /// The next one would start after the caller's deadline.
    Deadline,
    /// The other side asked for a longer wait than we are ready for.
    RetryAfter(Duration),
    /// Retries of this dependency have used up their share.
    Budget,
}

/// What the caller allows; it may only lower what the policy allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerLimits {
    /// Attempts in all. None at all counts as one: a call is at least tried.
    pub attempts: Option<u32>,
    /// Time in all.
    pub elapsed: Option<Duration>,
    /// Time for one attempt.
    pub attempt: Option<Duration>,
    /// When it has to be over.
    pub deadline: Option<Timestamp>,
    /// From when on no attempt starts. One that runs then is left alone.
    pub start_by: Option<Timestamp>,
}

/// The retries of one call: what was allowed, what was used.
#[derive(Clone, Debug)]
pub struct Schedule {
    attempts: u32,
    most: u32,
    /// No attempt starts later than this.
    last_start: Timestamp,
    /// No attempt starts at this moment or later: it would have no time left.
    deadline: Timestamp,
    spread: Spread,
}

impl Schedule {
    /// The schedule of a call whose first attempt starts now. `last_retry` limits the start of retries (gateway).
    pub fn new(
        policy: &RetryPolicy,
        caller: &CallerLimits,
        last_retry: Option<Duration>,
        seed: u64,
        now: Timestamp,
    ) -> Self {
        let most = policy.attempts.get();
        let shortest = [policy.total, caller.elapsed, last_retry].into_iter().flatten().min();
        let before =
            caller.start_by.map(|moment| Timestamp::from_millis(moment.as_millis().saturating_sub(1)));
        Self {
            attempts: 1,
            most: caller.attempts.map_or(most, |asked| asked.clamp(1, most)),
            last_start: shortest
                .map(|span| now + span)
                .into_iter()
                .chain(before)
                .min()
                .unwrap_or(Timestamp::MAX),
            deadline: caller.deadline.unwrap_or(Timestamp::MAX),
            spread: Spread::new(seed),
        }
    }

    /// When the attempt after a failed one may start. `started` is when the failed one started; `now` is when
    /// it ended. A wait that the other side asked for counts from its answer, and the longer wait is waited.
    pub fn next(
        &mut self,
        policy: &RetryPolicy,
        started: Timestamp,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Result<Timestamp, Stop> {
        if self.attempts >= self.most {
            return Err(Stop::Attempts);
        }
        if let Some(asked) = retry_after.filter(|asked| *asked > policy.longest_retry_after) {
            return Err(Stop::RetryAfter(asked));
        }
        let wait = self.spread.over(wait(&policy.backoff, self.attempts), policy.jitter);
        let counted_from = match policy.counted_from {
            CountedFrom::AttemptEnd => now,
            CountedFrom::AttemptStart => started.min(now),
        };
        let start = (counted_from + wait).max(now + retry_after.unwrap_or_default());
        let too_late = start >= self.deadline && self.deadline < Timestamp::MAX;
        // Whichever limit came first is the one that stopped it.
        if start > self.last_start && !(too_late && self.deadline < self.last_start) {
            return Err(Stop::TotalTime);
        }
        if too_late {
            return Err(Stop::Deadline);
        }
        self.attempts = self.attempts.saturating_add(1);
        Ok(start)
    }

    /// Whether a scheduled attempt may still start now; a timer may have fired late.
    pub fn may_start(&self, now: Timestamp) -> Result<(), Stop> {
        if now >= self.deadline && self.deadline < Timestamp::MAX {
            return Err(Stop::Deadline);
        }
        if now > self.last_start { Err(Stop::TotalTime) } else { Ok(()) }
    }

    /// Attempts that have been scheduled so far, the first one included.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Attempts that there may be in all, after policy and caller.
    pub const fn most(&self) -> u32 {
        self.most
    }
}

/// The wait before the nth retry, counted from one, before it is spread.
fn wait(backoff: &Backoff, retry: u32) -> Duration {
    match backoff {
        Backoff::Exponential { base, cap, .. } if base.is_zero() || retry <= 1 => *base.min(cap),
        Backoff::Exponential { base, factor, cap } => {
            let steps = i32::try_from(retry - 1).unwrap_or(i32::MAX);
            let grown = base.as_secs_f64() * factor.get().powi(steps);
            // What is too large for a span is larger than any cap.
            Duration::try_from_secs_f64(grown).map_or(*cap, |grown| grown.min(*cap))
        }
        Backoff::List { first, .. } if retry <= 1 => *first,
        Backoff::List { first, rest } => {
            let index = usize::try_from(retry - 2).unwrap_or(usize::MAX);
            *rest.get(index).or(rest.last()).unwrap_or(first)
        }
        Backoff::Constant(wait) => *wait,
    }
}

/// Where in their range the waits of one call, or of one server that dies, lie.
///
/// The start comes from the seed by SplitMix64; each further wait steps on by the golden ratio, around in a
/// circle. Every wait alone is spread evenly over calls, which is what keeps a fleet from retrying in step,
/// and the waits of one call are far from each other: drawn one by one, of ten waits between 90 and 110 ms
/// several would often be the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread(u64);

impl Spread {
    /// 2^64 divided by the golden ratio; also the step of SplitMix64.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

    pub(crate) const fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(Self::GOLDEN);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(mixed ^ (mixed >> 31))
    }

    /// This wait, spread. In whole milliseconds, as moments are.
    pub(crate) fn over(&mut self, wait: Duration, jitter: Jitter) -> Duration {
        let whole = millis(wait);
        let (least, range) = match jitter {
            Jitter::None => return wait,
            Jitter::Full => (0, whole),
            Jitter::Proportional(share) => {
                let part = Duration::try_from_secs_f64(wait.as_secs_f64() * share.get());
                let part = part.map_or(whole, |part| millis(part).min(whole));
                (whole - part, part.saturating_mul(2))
            }
        };
        let place = self.0;
        self.0 = self.0.wrapping_add(Self::GOLDEN);
        Duration::from_millis(least.saturating_add(scaled(place, range)))
    }
}

/// A place on the circle as a whole number from nothing to `range`, both included and equally likely.
fn scaled(place: u64, range: u64) -> u64 {
    let product = u128::from(place) * (u128::from(range) + 1);
    u64::try_from(product >> 64).unwrap_or(range)
}

#[cfg(test)]
mod tests;

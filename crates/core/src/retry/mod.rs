//! Retries: the time of the next attempt, and the conditions to stop.
//!
//! A [`RetrySchedule`] belongs to one call and returns the time at which its next attempt may start. A [`RetryBudget`]
//! belongs to one dependency and limits the retries of all its calls together. Total time and deadline limit the
//! *start* of an attempt. The driver cuts off running attempts.
//!
//! The seed of the call determines its jitter, so that the same call replayed has the same delays.

mod budget;

use std::time::Duration;

pub use budget::RetryBudget;

use crate::policy::{Backoff, DelayOrigin, Jitter, RetryPolicy};
use crate::{Timestamp, millis};

/// The reason why there is no further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStop {
    /// All attempts are used.
    Attempts,
    /// The next attempt would start after the total time.
    TotalTime,
    /// The next attempt would start after the caller's deadline.
    Deadline,
    /// The upstream asked for a longer delay than the policy allows.
    RetryAfter(Duration),
    /// The retry budget of the dependency is used up.
    Budget,
}

/// The limits set by the caller. They may only lower the limits of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerLimits {
    /// Maximum number of attempts. Zero counts as one, because a call is always tried once.
    pub attempts: Option<u32>,
    /// Maximum total time.
    pub elapsed: Option<Duration>,
    /// Timeout of one attempt.
    pub attempt: Option<Duration>,
    /// Deadline of the call.
    pub deadline: Option<Timestamp>,
    /// Time from which no attempt starts. An attempt that is running then continues.
    pub start_by: Option<Timestamp>,
}

/// The retry schedule of one call: its limits and the attempts so far.
#[derive(Clone, Debug)]
pub struct RetrySchedule {
    attempts: u32,
    most: u32,
    /// No attempt starts later than this.
    last_start: Timestamp,
    /// No attempt starts at this time or later, because it would have no time left.
    deadline: Timestamp,
    spread: JitterSequence,
}

impl RetrySchedule {
    /// Creates the schedule of a call whose first attempt starts now. `last_retry` limits the start of retries
    /// (gateway).
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
            most: caller.attempts.map_or(most, |requested| requested.clamp(1, most)),
            last_start: shortest
                .map(|span| now + span)
                .into_iter()
                .chain(before)
                .min()
                .unwrap_or(Timestamp::MAX),
            deadline: caller.deadline.unwrap_or(Timestamp::MAX),
            spread: JitterSequence::new(seed),
        }
    }

    /// Returns the time at which the attempt after a failed one may start. `started` is the start of the failed
    /// attempt, `now` is its end. A delay requested by the upstream counts from its response, and the longer delay
    /// wins.
    pub fn next(
        &mut self,
        policy: &RetryPolicy,
        started: Timestamp,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Result<Timestamp, RetryStop> {
        if self.attempts >= self.most {
            return Err(RetryStop::Attempts);
        }
        if let Some(requested) = retry_after.filter(|requested| *requested > policy.longest_retry_after) {
            return Err(RetryStop::RetryAfter(requested));
        }
        let wait = self.spread.over(wait(&policy.backoff, self.attempts), policy.jitter);
        let counted_from = match policy.counted_from {
            DelayOrigin::AttemptEnd => now,
            DelayOrigin::AttemptStart => started.min(now),
        };
        let start = (counted_from + wait).max(now + retry_after.unwrap_or_default());
        let too_late = start >= self.deadline && self.deadline < Timestamp::MAX;
        // The earlier limit is the one that stopped it.
        if start > self.last_start && !(too_late && self.deadline < self.last_start) {
            return Err(RetryStop::TotalTime);
        }
        if too_late {
            return Err(RetryStop::Deadline);
        }
        self.attempts = self.attempts.saturating_add(1);
        Ok(start)
    }

    /// Checks that a scheduled attempt may still start now, because a timer may have fired late.
    pub fn may_start(&self, now: Timestamp) -> Result<(), RetryStop> {
        if now >= self.deadline && self.deadline < Timestamp::MAX {
            return Err(RetryStop::Deadline);
        }
        if now > self.last_start { Err(RetryStop::TotalTime) } else { Ok(()) }
    }

    /// Returns the number of scheduled attempts so far, including the first one.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the maximum number of attempts, after policy and caller.
    pub const fn most(&self) -> u32 {
        self.most
    }
}

/// Returns the delay before the nth retry, counted from one, without jitter.
fn wait(backoff: &Backoff, retry: u32) -> Duration {
    match backoff {
        Backoff::Exponential { base, cap, .. } if base.is_zero() || retry <= 1 => *base.min(cap),
        Backoff::Exponential { base, factor, cap } => {
            let steps = i32::try_from(retry - 1).unwrap_or(i32::MAX);
            let grown = base.as_secs_f64() * factor.get().powi(steps);
            // A value too large for a duration is larger than any cap.
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

/// The jitter of the delays of one call, or of one server that restarts.
///
/// The start is derived from the seed by SplitMix64. Each further delay advances by the golden ratio, modulo the range.
/// Each single delay is uniformly distributed over calls, which keeps a fleet from retrying in step. The delays of one
/// call are far from each other: with independent draws, several of ten delays between 90 and 110 ms would often be the
/// same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JitterSequence(u64);

impl JitterSequence {
    /// 2^64 divided by the golden ratio. Also the step of SplitMix64.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

    pub(crate) const fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(Self::GOLDEN);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(mixed ^ (mixed >> 31))
    }

    /// Returns this delay with jitter, in whole milliseconds like timestamps.
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

/// Scales a 64-bit value to an integer from zero to `range`, both included and equally likely.
fn scaled(place: u64, range: u64) -> u64 {
    let product = u128::from(place) * (u128::from(range) + 1);
    u64::try_from(product >> 64).unwrap_or(range)
}

#[cfg(test)]
mod tests;

//! The times at which another attempt may start, recomputed from the waits and limits of a policy.

#![expect(clippy::wildcard_enum_match_arm, reason = "a few notices of many are looked at")]

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::CallNotice;
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::dedupe::DedupeState;
use steadfast_core::policy::{Backoff, DelayOrigin, EnforcementMode, Jitter, RetryPolicy};
use steadfast_core::retry::{CallerLimits, RetryStop};

use crate::invariants::InvariantViolation;
use crate::system::{RunningAttempt, SimulatedWorld, is_shared};

/// The limits of the next attempt of a call.
struct RetryBounds {
    /// The earliest and the latest time that its wait allows.
    earliest: Timestamp,
    latest: Timestamp,
    /// No attempt starts after this time.
    last: Timestamp,
    /// No attempt starts at this time or later.
    deadline: Timestamp,
}

impl RetryBounds {
    fn of(
        policy: &RetryPolicy,
        limits: &CallerLimits,
        (first, last_retry): (Timestamp, Option<Duration>),
        (number, attempt, retry_after): (u32, Timestamp, Option<Duration>),
        now: Timestamp,
    ) -> Self {
        let wait = match &policy.backoff {
            Backoff::Exponential { base, factor, cap } => {
                (1..number).fold(*base, |wait, _| wait.mul_f64(factor.get()).min(*cap)).min(*cap)
            }
            Backoff::List { first, rest } => {
                let all: Vec<Duration> = std::iter::once(*first).chain(rest.iter().copied()).collect();
                all[all.len().min(number as usize) - 1]
            }
            Backoff::Constant(wait) => *wait,
        };
        let (least, most) = match policy.jitter {
            Jitter::None => (wait, wait),
            Jitter::Full => (Duration::ZERO, wait),
            Jitter::Proportional(share) => (wait.mul_f64(1.0 - share.get()), wait.mul_f64(1.0 + share.get())),
        };
        let from = match policy.counted_from {
            DelayOrigin::AttemptStart => attempt,
            DelayOrigin::AttemptEnd => now,
        };
        let requested = now + retry_after.unwrap_or_default();
        // Times are whole milliseconds.
        let (rounded, tick) = (least.saturating_sub(Duration::from_millis(1)), Duration::from_millis(1));
        let spans = [policy.total, limits.elapsed, last_retry];
        let start_by = limits.start_by.map(|moment| moment.before(tick));
        let ends = spans.into_iter().flatten().map(|span| first + span).chain(start_by);
        Self {
            earliest: (from + rounded).max(requested),
            latest: (from + most + tick).max(requested).max(now),
            last: ends.min().unwrap_or(Timestamp::MAX),
            deadline: limits.deadline.unwrap_or(Timestamp::MAX),
        }
    }
}

impl SimulatedWorld {
    /// Checks that a failed call is retried as its policy says, and stops only for a valid reason.
    pub(crate) fn check_retries(
        &self,
        node: usize,
        number: u64,
        attempt: Option<RunningAttempt>,
        notices: &[CallNotice],
    ) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        let Some((running, attempt)) = home.calls.get(&number).zip(attempt) else { return Ok(()) };
        let policy = running.call.policy();
        let ended_attempt = notices.iter().find_map(|notice| match notice {
            CallNotice::AttemptEnded { attempt, failure: Some(failure), .. } => Some((*attempt, failure)),
            _ => None,
        });
        let Some((which, failure)) =
            ended_attempt.filter(|_| policy.modes.retry == EnforcementMode::Enforce && self.defect.is_none())
        else {
            return Ok(());
        };
        let now = self.clock(node);
        let limits = &running.call.request().limits;
        let first = home.clock(running.first_attempt.unwrap_or(self.now));
        let retry_after = running.retry_after;
        let times = (which, home.clock(attempt.started), retry_after);
        let bounds =
            RetryBounds::of(&policy.retry, limits, (first, Some(policy.time.latest_retry())), times, now);
        let broken = |problem: &str| {
            let context =
                format!("call {number} of process {node} after attempt {which} at {}", now.as_millis());
            Err(("retries keep to their policy", format!("{context}: {problem}, {failure:?}")))
        };
        let own = policy.retry.attempts.get();
        let most = limits.attempts.map_or(own, |limit| limit.max(1).min(own));
        let proved = matches!(failure.reach, AttemptReach::NotSent | AttemptReach::Refused);
        let helps = failure.nature == FaultNature::Transient && (proved || self.retry_safe());
        let is_held = running.call.claimed_record().is_none_or(|claimed| {
            let record = self.store.records.get(&claimed.key);
            record
                .is_some_and(|record| record.owner == claimed.owner && record.state == DedupeState::Inflight)
        });
        let is_left = running.cut.is_some()
            || !is_held
            || attempt.cancelled
            || running.fence_lost
            || running.store_failed
            || self.dispatches[running.dispatch].withdrawn;
        let is_reported = |notice: &CallNotice| {
            matches!(notice, CallNotice::RetryScheduled { .. } | CallNotice::RetryStopped { .. })
        };
        // The breakers of other tools are not known here.
        let is_known_tool = is_shared(&running.call.request().tool);
        let is_known = is_known_tool && !self.weather.shared_breakers;
        let are_closed = home.expected.is_closed() && home.expected_of_dependency.is_closed();
        let may_pass = policy.modes.breaker != EnforcementMode::Enforce || is_known && are_closed;
        if helps && !is_left && may_pass && !notices.iter().any(is_reported) {
            return broken("is not tried again");
        }
        let is_granted = self.has_budget(node, &policy.retry);
        for notice in notices {
            match notice {
                CallNotice::RetryScheduled { .. } if is_known_tool && !is_granted => {
                    return broken("is tried again beyond its budget");
                }
                CallNotice::RetryScheduled { attempt: next, at } => {
                    if !helps {
                        return broken("is tried again, and must not be");
                    }
                    if *next != which + 1 || *next > most {
                        return broken("is tried too often");
                    }
                    if *at < bounds.earliest || *at > bounds.latest {
                        return broken("waits for a time that was never set");
                    }
                    if *at > bounds.last || *at >= bounds.deadline {
                        return broken("would be tried after its time");
                    }
                }
                CallNotice::RetryStopped { stop } => {
                    let holds = match stop {
                        RetryStop::Attempts => which >= most,
                        RetryStop::TotalTime => bounds.latest > bounds.last,
                        RetryStop::Deadline => bounds.latest >= bounds.deadline,
                        RetryStop::RetryAfter(requested) => {
                            retry_after == Some(*requested) && *requested > policy.retry.longest_retry_after
                        }
                        RetryStop::Budget => !is_known_tool || !is_granted,
                    };
                    if !holds {
                        return broken(&format!("is given up for {stop:?}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if one more retry of the tool is within its budget, given all attempts of the last ten seconds.
    fn has_budget(&self, node: usize, policy: &RetryPolicy) -> bool {
        let (second, observations) = (self.clock(node).as_millis() / 1000, &self.nodes[node].observations);
        let since = |first: u64, at: &&Timestamp| (first..=second).contains(&(at.as_millis() / 1000));
        let count = |of: &[Timestamp], first: u64| of.iter().filter(|at| since(first, at)).count();
        let (firsts, retries) = (
            count(&observations.firsts, second.saturating_sub(9)),
            count(&observations.retries, second.saturating_sub(9)),
        );
        let by_floor = count(&observations.retries, second) < policy.budget.floor_per_second as usize;
        by_floor || (retries + 1) as f64 <= policy.budget.share.get() * firsts as f64
    }
}

//! The retry schedule of one call, and the retry budget that all calls of a dependency share.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::policy::{Backoff, BudgetPolicy, DelayOrigin, GrowthFactor, Jitter, Ratio, RetryPolicy};
use steadfast_core::retry::{CallerLimits, RetryBudget, RetrySchedule, RetryStop};

use super::{MachineTrace, agree, few, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "retries keep to their policy";

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    for _ in 0..3 {
        schedule(rng, machine_trace)?;
    }
    budget(rng, machine_trace)
}

fn policy(rng: &mut Rng) -> RetryPolicy {
    let wait = |rng: &mut Rng| millis(rng.between(0, 6) * 50);
    RetryPolicy {
        attempts: few(rng, 1, 6),
        backoff: match rng.between(0, 2) {
            0 => Backoff::Exponential {
                base: wait(rng),
                factor: GrowthFactor::new(
                    [1.0, 1.5, 2.0, 3.0][usize::try_from(rng.between(0, 3)).unwrap_or(0)],
                )
                .unwrap_or(GrowthFactor::TWO),
                cap: millis(rng.between(1, 10) * 100),
            },
            1 => {
                let rest = (0..rng.between(0, 3)).map(|_| wait(rng)).collect();
                Backoff::List { first: wait(rng), rest }
            }
            _ => Backoff::Constant(wait(rng)),
        },
        jitter: match rng.between(0, 3) {
            0 => Jitter::Full,
            1 => Jitter::Proportional(Ratio::percent(u8::try_from(rng.between(0, 100)).unwrap_or(0))),
            _ => Jitter::None,
        },
        total: optional(rng, |rng| millis(rng.between(1, 20) * 50)),
        counted_from: *rng.pick(&[DelayOrigin::AttemptEnd, DelayOrigin::AttemptStart]),
        longest_retry_after: millis(rng.between(1, 4) * 100),
        budget: BudgetPolicy { share: Ratio::percent(20), floor_per_second: 10 },
    }
}

/// Returns the wait before the nth retry. The first retry follows the first attempt.
fn wait(backoff: &Backoff, retry: u32) -> Duration {
    match backoff {
        Backoff::Constant(wait) => *wait,
        Backoff::List { first, rest } => {
            let all: Vec<Duration> = std::iter::once(*first).chain(rest.iter().copied()).collect();
            all[(retry as usize).min(all.len()) - 1]
        }
        Backoff::Exponential { base, factor, cap } => Duration::from_secs_f64(
            (1..retry).fold(base.as_secs_f64(), |wait, _| wait * factor.get()).min(cap.as_secs_f64()),
        ),
    }
}

fn schedule(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let policy = policy(rng);
    let schedule_start = Timestamp::from_millis(10_000);
    let limits = CallerLimits {
        attempts: optional(rng, |rng| u32::try_from(rng.between(0, 5)).unwrap_or(0)),
        elapsed: optional(rng, |rng| millis(rng.between(0, 20) * 50)),
        attempt: None,
        deadline: optional(rng, |rng| schedule_start + millis(rng.between(0, 20) * 50)),
        start_by: optional(rng, |rng| schedule_start + millis(rng.between(1, 20) * 50)),
    };
    let last_retry = optional(rng, |rng| millis(rng.between(0, 20) * 50));
    let most = limits
        .attempts
        .map_or(policy.attempts.get(), |requested| requested.max(1).min(policy.attempts.get()));
    let spans = [policy.total, limits.elapsed, last_retry].into_iter().flatten();
    let by_span = spans.map(|span| schedule_start + span).min();
    // An attempt that starts at this time starts too late.
    let too_late = [by_span.map(|moment| moment + millis(1)), limits.start_by].into_iter().flatten().min();
    let seed = rng.next();
    let mut schedule = RetrySchedule::new(&policy, &limits, last_retry, seed, schedule_start);
    let mut again = RetrySchedule::new(&policy, &limits, last_retry, seed, schedule_start);
    machine_trace.log(|| format!("{policy:?}, {limits:?}, retries until {last_retry:?}"));
    agree(PROMISE, "attempts allowed", &schedule.most(), &most)?;
    let (mut now, mut made) = (schedule_start, 1);
    for _ in 0..8 {
        let moments: Vec<Timestamp> = too_late.into_iter().chain(limits.deadline).collect();
        let probe = next_moment(rng, now, &moments);
        let is_past = |limit: Option<Timestamp>, at: Timestamp| limit.is_some_and(|limit| at >= limit);
        let due = if is_past(limits.deadline, probe) {
            Err(RetryStop::Deadline)
        } else if is_past(too_late, probe) {
            Err(RetryStop::TotalTime)
        } else {
            Ok(())
        };
        agree(PROMISE, "whether it may start", &schedule.may_start(probe), &due)?;
        let started = now;
        now = now + millis(rng.between(0, 4) * 10);
        let requested = optional(rng, |rng| millis(rng.between(0, 5) * 90));
        let (got, same) =
            (schedule.next(&policy, started, requested, now), again.next(&policy, started, requested, now));
        agree(PROMISE, "the same seed", &got, &same)?;
        machine_trace.log(|| {
            format!(
                "attempt {made} from {} to {}, asked for {requested:?}: {got:?}",
                started.as_millis(),
                now.as_millis()
            )
        });
        let from = match policy.counted_from {
            DelayOrigin::AttemptEnd => now,
            DelayOrigin::AttemptStart => started,
        };
        let whole = wait(&policy.backoff, made);
        let [least, longest] = match policy.jitter {
            Jitter::None => [whole, whole],
            Jitter::Full => [Duration::ZERO, whole],
            Jitter::Proportional(share) => {
                [whole.mul_f64(1.0 - share.get()), whole.mul_f64(1.0 + share.get())]
            }
        };
        // Times are whole milliseconds.
        let start = |wait: Duration| (from + wait).max(now + requested.unwrap_or_default());
        let [earliest, latest] = [start(least.saturating_sub(millis(1))), start(longest + millis(1))];
        let is_exact = policy.jitter == Jitter::None;
        let holds = match got {
            Err(RetryStop::Attempts) => made >= most,
            Err(RetryStop::RetryAfter(long)) => {
                made < most && requested == Some(long) && long > policy.longest_retry_after
            }
            Ok(at) => {
                made < most
                    && requested.is_none_or(|requested| requested <= policy.longest_retry_after)
                    && (earliest..=latest).contains(&at)
                    && (!is_exact || at == start(whole))
                    && !is_past(limits.deadline, at)
                    && !is_past(too_late, at)
            }
            // Of two limits the earlier one is reported.
            Err(RetryStop::TotalTime) => {
                is_past(too_late, latest)
                    && (!is_exact || is_past(too_late, start(whole)))
                    && limits.deadline.is_none_or(|deadline| {
                        !is_past(Some(deadline), earliest)
                            || too_late.is_some_and(|late| late <= deadline + millis(1))
                    })
            }
            Err(RetryStop::Deadline) => {
                is_past(limits.deadline, latest)
                    && (!is_exact || is_past(limits.deadline, start(whole)))
                    && (too_late.is_none()
                        || !is_past(too_late, earliest)
                        || limits.deadline.zip(too_late).is_some_and(|(deadline, late)| deadline < late))
            }
            Err(RetryStop::Budget) => false,
        };
        if !holds {
            return Err((
                PROMISE,
                format!(
                    "after attempt {made} of {most}: {got:?}, between {earliest:?} and {latest:?}, too late at {too_late:?}"
                ),
            ));
        }
        match got {
            Ok(at) => {
                (now, made) = (at, made + 1);
                agree(PROMISE, "attempts made", &schedule.attempts(), &made)?;
            }
            Err(_) => break,
        }
    }
    Ok(())
}

fn budget(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let policy = BudgetPolicy {
        share: Ratio::percent(*rng.pick(&[0, 10, 20, 50, 100])),
        floor_per_second: u32::try_from(rng.between(0, 3)).unwrap_or(0),
    };
    let mut budget = RetryBudget::default();
    let (mut first_attempts, mut retries): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut now = Timestamp::from_millis(rng.between(0, 30_000));
    for _ in 0..60 {
        let whole = now.as_millis() / 1000;
        let turns = [whole + 1, whole + 9, whole + 10].map(|second| Timestamp::from_millis(second * 1000));
        now = next_moment(rng, now, &turns).min(now + millis(12_000));
        let second = now.as_millis() / 1000;
        if rng.chance(50) {
            budget.deposit(&policy, now);
            first_attempts.push(second);
            continue;
        }
        // The last ten seconds, including this one.
        let lately = |of: &[u64]| of.iter().filter(|then| **then + 10 > second).count();
        let in_this_second = retries.iter().filter(|then| **then == second).count();
        let due = in_this_second < policy.floor_per_second as usize
            || (lately(&retries) + 1) as f64 <= policy.share.get() * lately(&first_attempts) as f64;
        let got = budget.withdraw(&policy, now);
        machine_trace.log(|| {
            format!("{}: {got} under {policy:?} after {first_attempts:?} and {retries:?}", now.as_millis())
        });
        agree(PROMISE, "another retry", &got, &due)?;
        if got {
            retries.push(second);
        }
    }
    Ok(())
}

//! The watchdog: silence, and the total time.

use steadfast_core::Timestamp;
use steadfast_core::policy::{SilencePolicy, TimePolicy};
use steadfast_core::watchdog::{Watchdog, WatchdogVerdict};

use super::{MachineTrace, agree, millis, next_moment};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "calls end in time";

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let time = TimePolicy {
        attempt: millis(rng.between(1, 5) * 100),
        total: millis(rng.between(1, 10) * 100),
        last_retry: None,
        answer_by: None,
        silence: SilencePolicy::Timeout,
    };
    let started = Timestamp::from_millis(rng.between(0, 10_000));
    let mut watchdog = Watchdog::new(&time, started);
    let mut signs = vec![started];
    let mut now = started;
    for _ in 0..12 {
        let last = signs.iter().max().copied().unwrap_or(started);
        let (silent, end) = (last + time.attempt, started + time.total);
        now = next_moment(rng, now, &[silent, end]).min(now + time.total);
        let due = if now < silent && now < end {
            WatchdogVerdict::Fine { next_check: silent.min(end) }
        } else if silent < end {
            WatchdogVerdict::Stuck
        } else {
            WatchdogVerdict::TotalLimit
        };
        let since = *rng.pick(&signs);
        machine_trace.log(|| format!("{}: {watchdog:?}", now.as_millis()));
        agree(PROMISE, "the verdict", &watchdog.verdict(now), &due)?;
        agree(PROMISE, "when it is due", &watchdog.due(), &silent.min(end))?;
        agree(PROMISE, "the last sign of life", &watchdog.last_sign(), &last)?;
        agree(PROMISE, "when it is silent", &watchdog.silent_at(), &silent)?;
        agree(PROMISE, "when it ends", &watchdog.total_at(), &end)?;
        agree(PROMISE, "whether it lives", &watchdog.is_alive(since, now), &(last > since && now < silent))?;
        if rng.chance(40) {
            // A delayed sign of life.
            let at = if rng.chance(30) { now.before(millis(50)).max(started) } else { now };
            watchdog.progress(at);
            signs.push(at);
        }
    }
    Ok(())
}

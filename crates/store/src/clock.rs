//! Clocks. The core never reads a clock. Its driver reads one of these, once per step.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use steadfast_core::{Timestamp, millis};

/// A source of time that never goes backwards.
pub trait TimeSource: fmt::Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The time of the machine, in milliseconds since the epoch. If the machine's clock is set back, this one continues
/// from its last value until the machine catches up. Otherwise leases and deadlines would become longer.
#[derive(Debug, Default)]
pub struct SystemClock {
    latest: AtomicU64,
    /// Set if the machine's clock was set back: the instant at which this was noticed, and the time then.
    set_back: Mutex<Option<(Instant, u64)>>,
}

/// A smaller difference is a race between threads or a small correction. Then the time stands still.
const SET_BACK: u64 = 1000;

impl SystemClock {
    /// Returns the time for this time of the machine, where `monotonic` reads a clock that cannot be set.
    fn after(&self, machine: u64, monotonic: impl Fn() -> Instant) -> u64 {
        // Skips the write within the same millisecond, to avoid contention on the cache line.
        let latest = self.latest.load(Ordering::Relaxed);
        if machine > latest {
            return self.latest.fetch_max(machine, Ordering::Relaxed).max(machine);
        }
        if machine.saturating_add(SET_BACK) > latest {
            return latest;
        }
        let mut set_back = self.set_back.lock();
        let monotonic = monotonic();
        let elapsed = |since: Instant| millis(monotonic.saturating_duration_since(since));
        // An earlier set-back is ignored, because the machine has caught up since.
        let known = set_back.filter(|(since, from)| from + elapsed(*since) + SET_BACK > latest);
        let (since, from) = *set_back.insert(known.unwrap_or((monotonic, latest)));
        let now = from + elapsed(since);
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

impl TimeSource for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(self.after(millis(since_epoch), Instant::now))
    }
}

/// A clock that is moved by tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
}

impl ManualClock {
    /// Creates a clock with this time.
    pub fn at(now: Timestamp) -> Self {
        Self { now: AtomicU64::new(now.as_millis()) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(millis(by), Ordering::SeqCst);
    }
}

impl TimeSource for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_continues_from_its_last_value() {
        let clock = SystemClock::default();
        let (hour, begin) = (3_600_000, Instant::now());
        // The time of the machine, the milliseconds since the start, and the expected time.
        for (machine, elapsed, expected, case) in [
            (10 * hour, 0, 10 * hour, "as the machine says"),
            (10 * hour - 999, 1, 10 * hour, "a correction: it stands still"),
            (9 * hour, 2, 10 * hour, "set back: it goes on from where it was"),
            (9 * hour + 5, 7, 10 * hour + 5, "and does not stand still"),
            (8 * hour, 9, 10 * hour + 7, "set back further"),
            (8 * hour + 20, 29, 10 * hour + 27, "and does not stand still then either"),
            (11 * hour, 40, 11 * hour, "the machine has caught up"),
            (10 * hour, 50, 11 * hour, "set back once more"),
            (10 * hour + 3, 53, 11 * hour + 3, "and goes on from there"),
        ] {
            let monotonic = || begin + Duration::from_millis(elapsed);
            assert_eq!(clock.after(machine, monotonic), expected, "{case}");
        }
    }
}

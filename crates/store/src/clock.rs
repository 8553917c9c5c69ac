//! Where the time comes from. The core never asks; whoever drives it does, once per step, here.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use steadfast_core::{Timestamp, millis};

/// Tells the time. It never goes backwards.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The time of the machine, in milliseconds since the epoch. Where somebody sets the machine's clock back, it goes on from
/// where it was, until that moment is reached again: neither a lease nor a deadline must grow because of it.
#[derive(Debug, Default)]
pub struct SystemClock {
    latest: AtomicU64,
    /// When it was found set back, and what time it was by then.
    set_back: Mutex<Option<(Instant, u64)>>,
}

/// What is less is threads that look at the clock at once, or a correction; then it stands still.
const SET_BACK: u64 = 1000;

impl SystemClock {
    /// The time, when the machine says this.
    fn after(&self, machine: u64) -> u64 {
        // The store is skipped while the millisecond is the same, so that callers do not fight for the line.
        let latest = self.latest.load(Ordering::Relaxed);
        if machine > latest {
            return self.latest.fetch_max(machine, Ordering::Relaxed).max(machine);
        }
        if machine.saturating_add(SET_BACK) > latest {
            return latest;
        }
        let mut set_back = self.set_back.lock();
        // One of another time is of no use: the machine has caught up since.
        let known = set_back.filter(|(since, from)| from + millis(since.elapsed()) + SET_BACK > latest);
        let (since, from) = *set_back.insert(known.unwrap_or_else(|| (Instant::now(), latest)));
        let now = from + millis(since.elapsed());
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(self.after(millis(since_epoch)))
    }
}

/// A clock that is moved by hand, for tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
}

impl ManualClock {
    /// A clock that shows this time.
    pub fn at(now: Timestamp) -> Self {
        Self { now: AtomicU64::new(now.as_millis()) }
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(millis(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_goes_on_from_where_it_was() {
        let clock = SystemClock::default();
        let hour = 3_600_000;
        assert_eq!(clock.after(10 * hour), 10 * hour);
        assert_eq!(clock.after(10 * hour - 999), 10 * hour, "a correction: it stands still");
        for set_back in [9 * hour, 8 * hour] {
            let before = clock.after(set_back);
            assert!((10 * hour..10 * hour + 60_000).contains(&before), "it goes back: {before}");
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(5) {
                std::thread::yield_now();
            }
            let after = clock.after(set_back);
            assert!(after >= before + 5, "it stands still: {before} and {after}");
        }
        assert_eq!(clock.after(11 * hour), 11 * hour, "the machine has caught up");
        let again = clock.after(10 * hour);
        assert!((11 * hour..11 * hour + 60_000).contains(&again), "set back once more: {again}");
    }
}

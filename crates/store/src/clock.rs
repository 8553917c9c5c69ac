//! Where the time comes from. The core never asks; whoever drives it does, once per step, here.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::Timestamp;

/// Tells the time. It never goes backwards.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The time of the machine, in milliseconds since the epoch. Where somebody sets the machine's clock back, it
/// stands still until that moment is reached again: a lease must not grow because of it.
#[derive(Debug, Default)]
pub struct SystemClock {
    latest: AtomicU64,
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = steadfast_core::millis(since_epoch);
        // The store is skipped while the millisecond is the same, so that callers do not fight for the line.
        let latest = self.latest.load(Ordering::Relaxed);
        let now = if now > latest { self.latest.fetch_max(now, Ordering::Relaxed).max(now) } else { latest };
        Timestamp::from_millis(now)
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
        self.now.fetch_add(steadfast_core::millis(by), Ordering::SeqCst);
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
    fn a_clock_that_is_set_back_stands_still() {
        let clock = SystemClock::default();
        let real = clock.now();
        let ahead = real + Duration::from_secs(3600);
        clock.latest.store(ahead.as_millis(), Ordering::SeqCst);
        assert_eq!(clock.now(), ahead);
    }
}

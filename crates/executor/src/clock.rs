//! A clock that follows the runtime's timers, for tests with paused time.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::{Timestamp, millis};
use steadfast_store::TimeSource;
use tokio::time::Instant;

/// A clock that starts at the system time and follows the runtime's time. If the runtime's time is paused, so is this
/// clock, and a test can advance both at once.
///
/// All clocks of one runtime show the same time, whenever they were created: a test that pauses between the creation of
/// two clocks must not give an engine and its store different times.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeClock(());

impl RuntimeClock {
    /// Creates a clock of the current runtime.
    pub const fn new() -> Self {
        Self(())
    }
}

/// Returns one moment of the process, both in timer time and since the epoch. It is a real one, even if the first
/// caller runs in a runtime with a shifted time.
fn origin() -> (Instant, Duration) {
    static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::from_std(std::time::Instant::now()), since_epoch)
    })
}

impl TimeSource for RuntimeClock {
    fn now(&self) -> Timestamp {
        let (origin, since_epoch) = origin();
        let now = Instant::now();
        // A runtime with paused time may be at a moment before that of the first caller.
        let at = match now.checked_duration_since(origin) {
            Some(since) => since_epoch + since,
            None => since_epoch.saturating_sub(origin.duration_since(now)),
        };
        Timestamp::from_millis(millis(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clocks_of_one_runtime_show_the_same_time_and_go_with_its_timers() {
        let (first, before) = (RuntimeClock::new(), RuntimeClock::new().now());
        // The system time continues while the runtime's time stands still.
        let machine = std::time::Instant::now();
        while machine.elapsed() < Duration::from_millis(3) {
            std::thread::yield_now();
        }
        let second = RuntimeClock::new();
        assert_eq!((first.now(), second.now()), (before, before));
        let hour = Duration::from_secs(3600);
        tokio::time::advance(hour).await;
        assert_eq!((first.now(), second.now()), (before + hour, before + hour));
    }
}

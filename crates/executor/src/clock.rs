//! A clock that keeps step with the runtime's timers, for tests with paused time.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::{Timestamp, millis};
use steadfast_store::Clock;
use tokio::time::Instant;

/// Starts at the machine's time and goes on with the runtime's. Where the runtime's time is paused, so is this
/// clock, and a test can advance both at once.
///
/// All clocks of one runtime show the same time, whenever they were made: a test that stands still between two of them must
/// not set an engine and its store apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeClock(());

impl RuntimeClock {
    /// A clock of the runtime in which it is asked.
    pub const fn new() -> Self {
        Self(())
    }
}

/// One moment of the process, as timers count and since the epoch. It is a real one, although the first to ask may live in a
/// runtime whose time was moved.
fn origin() -> (Instant, Duration) {
    static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::from_std(std::time::Instant::now()), since_epoch)
    })
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        let (origin, since_epoch) = origin();
        let now = Instant::now();
        // A runtime whose time is paused may stand at a moment before the first one that asked.
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
        // The machine's time goes on, and the runtime's does not.
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

//! A clock that keeps step with the runtime's timers, for tests with paused time.

use std::time::{SystemTime, UNIX_EPOCH};

use steadfast_core::{Timestamp, millis};
use steadfast_store::Clock;
use tokio::time::Instant;

/// Starts at the machine's time and goes on with the runtime's. Where the runtime's time is paused, so is this
/// clock, and a test can advance both at once.
#[derive(Debug)]
pub struct RuntimeClock {
    begun: Timestamp,
    since: Instant,
}

impl RuntimeClock {
    /// A clock of the current runtime.
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { begun: Timestamp::from_millis(millis(since_epoch)), since: Instant::now() }
    }
}

impl Default for RuntimeClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        self.begun + self.since.elapsed()
    }
}

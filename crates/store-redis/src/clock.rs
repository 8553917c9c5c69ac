//! An estimate of the server's time, without extra requests.
//!
//! Every reply carries the server's time. It was read somewhere between sending and receiving, so counting from the
//! **receiving** gives a time that the server has certainly reached. The estimate is never ahead of the server, so a
//! lease is never taken for expired before it is. The machine's own clock may run fast, so the estimate loses a
//! thousandth of its age. The next reply corrects that.
//!
//! If the server's clock was set back, or another server took over after a failover, a reply contradicts the old
//! estimate. Then the reply is used.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use steadfast_core::Timestamp;

/// The estimated time of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    sample: Mutex<Option<TimeSample>>,
}

/// A time that the server had reached at this instant.
#[derive(Clone, Copy, Debug)]
struct TimeSample {
    micros: u64,
    at: Instant,
}

impl TimeSample {
    fn estimate(&self, at: Instant) -> u64 {
        let age = micros(at.saturating_duration_since(self.at));
        self.micros.saturating_add(age - age / 1000)
    }
}

impl ServerClock {
    /// Returns a lower bound of the server's time, or `None` before the first reply.
    pub(crate) fn micros(&self, at: Instant) -> Option<u64> {
        self.sample.lock().as_ref().map(|sample| sample.estimate(at))
    }

    /// Returns a lower bound of the server's time.
    pub(crate) fn now(&self, at: Instant) -> Option<Timestamp> {
        self.micros(at).map(|micros| Timestamp::from_millis(micros / 1000))
    }

    /// Updates the estimate with the time in a reply.
    pub(crate) fn observe(&self, sent: Instant, received: Instant, server: u64) {
        let latest = server.saturating_add(micros(received.saturating_duration_since(sent)));
        let mut sample = self.sample.lock();
        let believed = sample.as_ref().map_or(0, |sample| sample.estimate(received));
        // Between the two, this reply is less precise than the earlier ones: it took long to arrive.
        if server >= believed || latest < believed {
            *sample = Some(TimeSample { micros: server, at: received });
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_never_later_than_the_server() {
        let clock = ServerClock::default();
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        assert_eq!(clock.micros(start), None);

        // The server's clock is 1_000_000 ms ahead of this machine's. This reply was read at 10 and received at 40.
        clock.observe(at(0), at(40), 1_000_010_000);
        assert_eq!(clock.now(at(40)), Some(Timestamp::from_millis(1_000_010)));
        // A faster reply is more precise. A slower one does not make the estimate worse.
        clock.observe(at(50), at(52), 1_000_051_000);
        assert_eq!(clock.micros(at(52)), Some(1_000_051_000));
        clock.observe(at(50), at(90), 1_000_060_000);
        assert_eq!(clock.micros(at(90)), Some(1_000_051_000 + 38_000 - 38));
        for later in [100, 1_000, 60_000] {
            assert!(clock.now(at(later)) <= Some(Timestamp::from_millis(1_000_000 + later)));
        }
    }

    #[test]
    fn a_server_whose_clock_was_set_is_believed() {
        let clock = ServerClock::default();
        let start = Instant::now();
        clock.observe(start, start, 5_000_000);
        clock.observe(start, start + Duration::from_millis(1), 2_000_000);
        assert_eq!(clock.micros(start + Duration::from_millis(1)), Some(2_000_000));
        clock.observe(start, start + Duration::from_millis(1), 9_000_000);
        assert_eq!(clock.micros(start + Duration::from_millis(1)), Some(9_000_000));
    }
}

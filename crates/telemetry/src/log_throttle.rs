//! A rate limit for repeated log lines.

use parking_lot::Mutex;
use steadfast_core::Timestamp;

/// Lets one line through per period, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<LogThrottleState>);

#[derive(Debug, Default)]
struct LogThrottleState {
    last: Option<Timestamp>,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns the number of lines suppressed since the last one, if a line is due now.
    pub(crate) fn due(&self, now: Timestamp) -> Option<u64> {
        let mut state = self.0.lock();
        // A clock that was set back must not suppress lines.
        let due = state.last.is_none_or(|last| now < last || now.since(last).as_secs() >= PAUSE_SECONDS);
        if due {
            state.last = Some(now);
            Some(std::mem::take(&mut state.suppressed))
        } else {
            state.suppressed += 1;
            None
        }
    }
}

const PAUSE_SECONDS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_logged_once_per_period_with_the_number_of_the_others() {
        let (throttle, at) = (LogThrottle::default(), Timestamp::from_millis);
        assert_eq!(throttle.due(at(100_000)), Some(0));
        assert_eq!(throttle.due(at(100_001)), None);
        assert_eq!(throttle.due(at(109_999)), None);
        assert_eq!(throttle.due(at(110_000)), Some(2));
        assert_eq!(throttle.due(at(50_000)), Some(0));
    }
}

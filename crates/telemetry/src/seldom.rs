//! Telling something once, although it happens all the time.

use parking_lot::Mutex;
use steadfast_core::Timestamp;

/// Lets one through now and then, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: Option<Timestamp>,
    not_told: u64,
}

impl Seldom {
    /// Whether to tell it now, and how many were not told since the last time.
    pub(crate) fn tell(&self, now: Timestamp) -> Option<u64> {
        let mut kept = self.0.lock();
        // A clock that was set back must not silence it.
        let due = kept.last.is_none_or(|last| now < last || now.since(last).as_secs() >= PAUSE_SECONDS);
        if due {
            kept.last = Some(now);
            Some(std::mem::take(&mut kept.not_told))
        } else {
            kept.not_told += 1;
            None
        }
    }
}

const PAUSE_SECONDS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_all_the_time_is_told_now_and_then_with_the_number_of_the_others() {
        let (seldom, at) = (Seldom::default(), Timestamp::from_millis);
        assert_eq!(seldom.tell(at(100_000)), Some(0));
        assert_eq!(seldom.tell(at(100_001)), None);
        assert_eq!(seldom.tell(at(109_999)), None);
        assert_eq!(seldom.tell(at(110_000)), Some(2));
        assert_eq!(seldom.tell(at(50_000)), Some(0));
    }
}

//! Random numbers that only need to differ between processes: for markers and jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns an unpredictable number.
pub(crate) fn number() -> u64 {
    // The system seeds each state. The hash of any value gives this seed, well mixed.
    RandomState::new().hash_one(std::time::Instant::now())
}

/// Returns a random span between a half and one and a half of this one.
pub(crate) fn around(span: Duration) -> Duration {
    let thousandths = u32::try_from(number() % 1000).unwrap_or(0);
    span / 2 + span * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_and_spans_stay_near() {
        assert_ne!(number(), number());
        let span = Duration::from_millis(100);
        for _ in 0..100 {
            let drawn = around(span);
            assert!(drawn >= span / 2 && drawn < span * 3 / 2, "{drawn:?}");
        }
    }
}

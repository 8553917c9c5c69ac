//! Good answers of one millisecond, counted beside the lock.
//!
//! Within one epoch and one millisecond, good answers in good time are all alike: the window would hold the
//! same word for each. While nothing bad is in sight they cannot change any decision either. So they are only
//! counted, with one atomic step, and put into the window by whoever takes the lock next.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Timestamp;

/// A count with the stamp of what it counts, in one word, so that a count under another stamp cannot go
/// through: 16 bits of the epoch, 32 bits of the millisecond, 16 bits of count. Nothing at all while closed.
///
/// The stamp is shortened. For an answer to be counted in the wrong place, tens of thousands of epochs would
/// have to pass between two instructions, or seven weeks to the millisecond without a single call.
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

const COUNT_BITS: u32 = 16;
const FULL: u64 = (1 << COUNT_BITS) - 1;

impl Tally {
    /// Counts a good answer, if that is what is being counted.
    #[inline]
    pub(super) fn count(&self, epoch: u64, now: Timestamp) -> bool {
        let wanted = stamp(epoch, now);
        let mut word = self.0.load(Ordering::Relaxed);
        while word >> COUNT_BITS == wanted && word & FULL < FULL {
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
        false
    }

    /// Begins to count for this epoch and millisecond. Only under the lock, and only after [`Tally::close`].
    pub(super) fn open(&self, epoch: u64, now: Timestamp) {
        self.0.store(stamp(epoch, now) << COUNT_BITS, Ordering::Relaxed);
    }

    /// Ends counting and says how many there were. Only under the lock.
    pub(super) fn close(&self) -> u64 {
        if self.0.load(Ordering::Relaxed) == 0 { 0 } else { self.0.swap(0, Ordering::Relaxed) & FULL }
    }
}

/// Never nothing: the lowest bit of the part of the epoch is set.
fn stamp(epoch: u64, now: Timestamp) -> u64 {
    ((epoch << 1 | 1) & 0xFFFF) << 32 | now.as_millis() & 0xFFFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_epoch_and_millisecond_that_it_is_open_for_are_counted() {
        let (tally, now) = (Tally::default(), Timestamp::from_millis(1_700_000_000_123));
        let later = Timestamp::from_millis(1_700_000_000_124);
        assert!(!tally.count(0, Timestamp::ZERO), "closed");
        tally.open(3, now);
        assert!(tally.count(3, now) && tally.count(3, now));
        assert!(!tally.count(4, now) && !tally.count(3, later));
        assert_eq!(tally.close(), 2);
        assert!(!tally.count(3, now));
        assert_eq!(tally.close(), 0);
    }

    #[test]
    fn a_full_count_does_not_run_over() {
        let tally = Tally::default();
        tally.open(0, Timestamp::ZERO);
        let counted = (0..70_000).filter(|_| tally.count(0, Timestamp::ZERO)).count();
        assert_eq!((counted as u64, tally.close()), (FULL, FULL));
    }
}

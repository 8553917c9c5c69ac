//! Successes, counted beside the lock.
//!
//! While there are no failures, fast successes cannot change any decision. The window only needs their number and
//! times. So each success takes one of a few slots in one atomic step and stores its time there. The next thread that
//! takes the lock moves them into the window.

use std::sync::atomic::{AtomicU64, Ordering};

use super::BreakerSnapshot;
use crate::Timestamp;

/// The number of successes that are counted before a thread has to take the lock. More would make that even rarer, and
/// cost each breaker eight bytes per slot.
pub(super) const ROOM: usize = 64;

/// Slots for times, and one word with the number of slots taken and the epoch of their results.
///
/// The word has three parts: 16 bits of the epoch (zero while closed), 40 bits that number the openings, and 8 bits of
/// count. Epoch and number are shortened. A result is counted in the wrong epoch only if very many changes happen
/// during its attempt: the product of the changes by operators and all other changes must be in the thousands.
#[derive(Debug)]
pub(super) struct SuccessTally {
    word: AtomicU64,
    moments: [TallySlot; ROOM],
}

const COUNT_BITS: u32 = 8;
const EPOCH_BITS: u32 = 16;

impl Default for SuccessTally {
    fn default() -> Self {
        Self { word: AtomicU64::default(), moments: std::array::from_fn(|_| TallySlot::default()) }
    }
}

impl SuccessTally {
    /// Counts a success if results of its epoch are being counted and there is room.
    #[inline]
    pub(super) fn count(&self, epoch: u64, now: Timestamp) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while is_open_for(word, epoch)
            && let Some(place) = self.moments.get(taken(word))
            && TallySlot::has_room_for(now)
        {
            match self.word.compare_exchange_weak(word, word + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    place.write(opening(word), now);
                    return true;
                }
                Err(changed) => word = changed,
            }
        }
        false
    }

    /// Starts to count results of this epoch. Only under the lock, and only after [`SuccessTally::close`].
    pub(super) fn open(&self, epoch: u64) {
        let next = opening(self.word.load(Ordering::Relaxed)).wrapping_add(1);
        self.word.store(mark(epoch) | next << COUNT_BITS & !EPOCH, Ordering::Relaxed);
    }

    /// Returns true if results are being counted. Stays valid only under the lock.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.word.load(Ordering::Relaxed) & EPOCH != 0
    }

    /// Stops counting and returns the times in the order in which the slots were taken. A time that is still being
    /// written is empty. Only under the lock.
    pub(super) fn close(&self) -> impl ExactSizeIterator<Item = Option<Timestamp>> {
        let word = self.word.fetch_and(!(EPOCH | COUNT), Ordering::Relaxed);
        let moments = self.moments.get(..taken(word)).unwrap_or_default();
        moments.iter().map(move |moment| moment.read(opening(word)))
    }
}

const EPOCH: u64 = u64::MAX << (u64::BITS - EPOCH_BITS);
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Returns the part of the epoch. Never zero, because its lowest bit is set.
fn mark(epoch: u64) -> u64 {
    // Changes by operators differ in bits that would be cut off. The golden ratio of the remaining range spreads them.
    let by_hand = (epoch / BreakerSnapshot::OPERATOR_EPOCH_STEP).wrapping_mul(20_251);
    (epoch.wrapping_add(by_hand) << 1 | 1) << (u64::BITS - EPOCH_BITS)
}

fn is_open_for(word: u64, epoch: u64) -> bool {
    word & EPOCH == mark(epoch)
}

fn opening(word: u64) -> u64 {
    (word & !EPOCH) >> COUNT_BITS
}

fn taken(word: u64) -> usize {
    (word & COUNT) as usize
}

/// A time, and the number of the opening that it belongs to. A thread that took a slot and was delayed may write when
/// the slot belongs to another result. The number shows this.
#[derive(Debug, Default)]
struct TallySlot(AtomicU64);

impl TallySlot {
    const OPENING_BITS: u32 = 20;

    /// From five hundred years after the epoch on, the lock is used.
    fn has_room_for(moment: Timestamp) -> bool {
        moment.as_millis().leading_zeros() >= Self::OPENING_BITS
    }

    fn write(&self, opening: u64, moment: Timestamp) {
        self.0.store(moment.as_millis() << Self::OPENING_BITS | Self::short(opening), Ordering::Relaxed);
    }

    fn read(&self, opening: u64) -> Option<Timestamp> {
        let word = self.0.load(Ordering::Relaxed);
        let millis = word >> Self::OPENING_BITS;
        (Self::short(word) == Self::short(opening)).then(|| Timestamp::from_millis(millis))
    }

    fn short(opening: u64) -> u64 {
        opening & ((1 << Self::OPENING_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + millis)
    }

    fn moments(tally: &SuccessTally) -> Vec<Option<Timestamp>> {
        tally.close().collect()
    }

    #[test]
    fn only_answers_of_the_epoch_that_it_is_open_for_are_counted() {
        let tally = SuccessTally::default();
        assert!(!tally.is_open() && !tally.count(0, Timestamp::ZERO));
        tally.open(3);
        assert!(tally.is_open());
        assert!(tally.count(3, at(0)) && tally.count(3, at(7)) && tally.count(3, at(2)));
        assert!(!tally.count(4, at(7)) && !tally.count(2, at(7)));
        assert_eq!(moments(&tally), [Some(at(0)), Some(at(7)), Some(at(2))]);
        assert!(!tally.is_open() && !tally.count(3, at(7)));
        assert_eq!(moments(&tally), []);
        tally.open(3);
        assert_eq!(moments(&tally), [], "what was given is not given again");
    }

    #[test]
    fn changes_by_operators_and_others_have_distinct_marks() {
        let epochs = (0..64).flat_map(|by_hand| {
            (0..64).map(move |others| by_hand * BreakerSnapshot::OPERATOR_EPOCH_STEP + others)
        });
        let marks: std::collections::BTreeSet<_> = epochs.map(mark).collect();
        assert_eq!(marks.len(), 64 * 64);
    }

    #[test]
    fn a_full_tally_counts_no_further() {
        let tally = SuccessTally::default();
        for opened in 0..3 {
            tally.open(0);
            let counted = (0..1000).filter(|number| tally.count(0, at(opened + number))).count();
            assert_eq!(counted, ROOM);
            assert_eq!(
                moments(&tally),
                (0..ROOM as u64).map(|place| Some(at(opened + place))).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn a_time_that_is_written_too_late_is_ignored() {
        let tally = SuccessTally::default();
        tally.open(0);
        let held_up = opening(tally.word.load(Ordering::Relaxed));
        tally.count(0, at(1));
        tally.close().count();
        tally.open(0);
        assert!(tally.count(0, at(2)) && tally.count(0, at(3)));
        tally.moments[0].write(held_up, at(1));
        assert_eq!(moments(&tally), [None, Some(at(3))]);
    }

    #[test]
    fn the_end_of_time_is_left_to_the_lock() {
        let tally = SuccessTally::default();
        tally.open(0);
        assert!(!tally.count(0, Timestamp::MAX) && !tally.count(0, Timestamp::from_millis(1 << 44)));
        let last = Timestamp::from_millis((1 << 44) - 1);
        assert!(tally.count(0, last));
        assert_eq!(moments(&tally), [Some(last)]);
    }

    #[test]
    fn numbers_of_openings_run_over_without_harm() {
        let tally = SuccessTally::default();
        tally.word.store(!(EPOCH | COUNT), Ordering::Relaxed);
        tally.open(u64::MAX);
        assert_eq!(opening(tally.word.load(Ordering::Relaxed)), 0);
        assert!(tally.count(u64::MAX, at(1)) && !tally.count(0, at(1)));
        assert_eq!(moments(&tally), [Some(at(1))]);
    }
}

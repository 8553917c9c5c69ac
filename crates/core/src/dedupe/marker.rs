//! Detection of a store that has lost all records.
//!
//! A store keeps a marker beside its records. If a process knew one marker and finds another or none, the store was
//! emptied, and the claims of living owners are gone too. Owners write their claims again at the next renewal. Until
//! then, for one lease, a process that knew the old marker makes no new claim for a tool that must not run twice.
//! Finished results are lost, and the loss is reported.

use std::time::Duration;

use super::owner::RecordAbsence;
use crate::Timestamp;

/// The identity of a store. The process that finds none creates it at random; the core itself creates none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMarker(pub u64);

/// The result of comparing the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerStatus {
    /// This process sees the store for the first time.
    First,
    /// The marker has not changed.
    Same,
    /// The store has lost all records. The loss must be reported.
    Emptied,
}

/// One process's knowledge about the marker of its store.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkerWatch {
    known: Option<StoreMarker>,
    closed_until: Option<Timestamp>,
}

impl MarkerWatch {
    /// Compares the current marker of the store. If there was none, a new one has been written before.
    pub fn observe(&mut self, found: StoreMarker, lease: Duration, now: Timestamp) -> MarkerStatus {
        match self.known.replace(found) {
            None => MarkerStatus::First,
            Some(known) if known == found => MarkerStatus::Same,
            Some(_) => {
                self.closed_until = Some(now + lease);
                MarkerStatus::Emptied
            }
        }
    }

    /// Returns true if a new claim is allowed. Claims that do no harm when run twice always are. All others are refused
    /// while owners write their claims again.
    pub fn admits(&self, retry_safe: bool, now: Timestamp) -> bool {
        retry_safe || self.closed_until.is_none_or(|until| until <= now)
    }

    /// Returns the reason why an owner finds its record gone.
    pub fn absence(&self, now: Timestamp) -> RecordAbsence {
        if self.closed_until.is_some_and(|until| now < until) {
            RecordAbsence::StoreEmptied
        } else {
            RecordAbsence::Removed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_store_admits_no_claims_for_one_lease() {
        let (lease, at) = (Duration::from_secs(120), |seconds: u64| Timestamp::from_millis(1000 * seconds));
        let mut watch = MarkerWatch::default();
        assert_eq!(watch.observe(StoreMarker(1), lease, at(0)), MarkerStatus::First);
        assert!(
            watch.admits(false, at(0)),
            "a process that never knew another marker has nothing to wait for"
        );
        assert_eq!(watch.observe(StoreMarker(1), lease, at(10)), MarkerStatus::Same);
        assert_eq!(watch.absence(at(10)), RecordAbsence::Removed);
        assert_eq!(watch.observe(StoreMarker(2), lease, at(20)), MarkerStatus::Emptied);
        for (now, mutating, absence) in [
            (20, false, RecordAbsence::StoreEmptied),
            (139, false, RecordAbsence::StoreEmptied),
            (140, true, RecordAbsence::Removed),
        ] {
            assert_eq!(watch.admits(false, at(now)), mutating, "at {now}");
            assert_eq!(watch.absence(at(now)), absence, "at {now}");
            assert!(watch.admits(true, at(now)), "what does no harm twice goes on");
        }
        assert_eq!(watch.observe(StoreMarker(2), lease, at(150)), MarkerStatus::Same);
    }
}

//! The district markers, as this process knows them.
//!
//! A script can only read keys with the same hash tag, and in a Cluster one of several servers can be emptied alone.
//! So every district has a marker of its own, and every process reads all of them when it first connects. A process
//! that knew a shard before it was emptied detects this at its next operation there, even if it has never used that
//! part of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{MarkerStatus, MarkerWatch, RecordAbsence, StoreMarker};

use crate::names::KeyDistrict;

/// The known markers of all districts.
#[derive(Debug)]
pub(crate) struct DistrictMarkers {
    districts: Mutex<Vec<DistrictMarker>>,
    /// The longest lease of a claim from here, in milliseconds. Owners may need that long to claim again.
    longest: AtomicU64,
    is_reporting: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct DistrictMarker {
    /// The stored bytes.
    known: Option<[u8; 16]>,
    watch: MarkerWatch,
}

/// The default lease.
const USUAL_LEASE: Duration = Duration::from_secs(120);

impl DistrictMarkers {
    pub(crate) fn new() -> Self {
        Self {
            districts: Mutex::new(vec![DistrictMarker::default(); KeyDistrict::COUNT]),
            longest: AtomicU64::new(0),
            is_reporting: AtomicBool::new(false),
        }
    }

    /// Returns the last known marker.
    pub(crate) fn known(&self, district: KeyDistrict) -> Option<[u8; 16]> {
        self.districts.lock().get(district.index())?.known
    }

    /// Records a marker that was found.
    pub(crate) fn see(&self, district: KeyDistrict, found: StoreMarker, now: Timestamp) -> MarkerStatus {
        let lease = match self.longest.load(Ordering::Relaxed) {
            0 => USUAL_LEASE,
            millis => Duration::from_millis(millis),
        };
        let mut districts = self.districts.lock();
        let Some(watched) = districts.get_mut(district.index()) else { return MarkerStatus::Same };
        watched.known = Some(text(found));
        watched.watch.observe(found, lease, now)
    }

    /// Records the lease of a claim from here.
    pub(crate) fn lease(&self, lease: Duration) {
        let millis = steadfast_core::millis(lease);
        if millis > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(millis, Ordering::Relaxed);
        }
    }

    /// Returns true if a new claim is allowed.
    pub(crate) fn admits(&self, district: KeyDistrict, retry_safe: bool, now: Timestamp) -> bool {
        self.districts
            .lock()
            .get(district.index())
            .is_none_or(|watched| watched.watch.admits(retry_safe, now))
    }

    /// Returns the meaning of a missing record.
    pub(crate) fn absence(&self, district: KeyDistrict, now: Timestamp) -> RecordAbsence {
        let districts = self.districts.lock();
        districts.get(district.index()).map_or(RecordAbsence::Removed, |watched| watched.watch.absence(now))
    }

    /// Returns true if the caller must send the event that the store was emptied: the first one to see it does, until
    /// all markers have been read.
    pub(crate) fn begin_reporting(&self) -> bool {
        !self.is_reporting.swap(true, Ordering::SeqCst)
    }

    /// Ends the period, because all markers have been read.
    pub(crate) fn end_reporting(&self) {
        self.is_reporting.store(false, Ordering::SeqCst);
    }
}

/// Returns the stored form of a marker.
pub(crate) fn text(StoreMarker(number): StoreMarker) -> [u8; 16] {
    let mut text = [0; 16];
    for (place, digit) in text.iter_mut().zip(format!("{number:016x}").bytes()) {
        *place = digit;
    }
    text
}

/// Parses a stored marker. A foreign value counts as another marker.
pub(crate) fn from_text(text: &[u8]) -> StoreMarker {
    let number = std::str::from_utf8(text).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    StoreMarker(number.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        for number in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(from_text(&text(StoreMarker(number))), StoreMarker(number));
        }
        assert_eq!(from_text(b"\xff"), StoreMarker(0));
    }

    #[test]
    fn districts_are_apart_and_the_pause_is_the_longest_lease() {
        let at = |seconds: u64| Timestamp::from_millis(1000 * seconds);
        let markers = DistrictMarkers::new();
        markers.lease(Duration::from_secs(30));
        markers.lease(Duration::from_secs(10));
        let (one, other) = (KeyDistrict(3), KeyDistrict(4));
        assert_eq!(markers.known(one), None);
        assert_eq!(markers.see(one, StoreMarker(1), at(0)), MarkerStatus::First);
        assert_eq!(markers.see(one, StoreMarker(2), at(0)), MarkerStatus::Emptied);
        assert_eq!(markers.known(one), Some(*b"0000000000000002"));
        assert!(!markers.admits(one, false, at(29)));
        assert_eq!(markers.absence(one, at(29)), RecordAbsence::StoreEmptied);
        assert!(markers.admits(one, false, at(30)));
        assert!(markers.admits(other, false, at(0)));
    }
}

//! Noticing that a store has lost everything.
//!
//! A store keeps a marker beside its records. A process that knew one and finds another, or none, knows that the
//! store was emptied: claims of living holders are gone with the rest. Holders write theirs again at the next
//! renewal; until they have, for one lease, whoever knew the old marker makes no new claim of a tool that must not
//! run twice. What was finished is lost, and reported.

use std::time::Duration;

use super::owner::Absence;
use crate::Timestamp;

/// What a store is known by. Made at random by whoever finds none; the core makes none itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker(pub u64);

/// What looking at the marker told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// This process sees the store for the first time.
    First,
    /// It is as it was.
    Same,
    /// It has lost everything. To be reported.
    Emptied,
}

/// What one process knows about the marker of its store.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkerWatch {
    known: Option<Marker>,
    closed_until: Option<Timestamp>,
}

impl MarkerWatch {
    /// The marker that the store has now, after one was written where there was none.
    pub fn see(&mut self, found: Marker, lease: Duration, now: Timestamp) -> Seen {
        match self.known.replace(found) {
            None => Seen::First,
            Some(known) if known == found => Seen::Same,
            Some(_) => {
                self.closed_until = Some(now + lease);
                Seen::Emptied
            }
        }
    }

    /// Whether a new claim may be made: always of what does no harm twice, otherwise not while holders are still
    /// writing their claims again.
    pub fn admits(&self, retry_safe: bool, now: Timestamp) -> bool {
        retry_safe || self.closed_until.is_none_or(|until| until <= now)
    }

    /// What it means if a holder finds its record gone.
    pub fn absence(&self, now: Timestamp) -> Absence {
        if self.closed_until.is_some_and(|until| now < until) {
            Absence::StoreEmptied
        } else {
            Absence::Removed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_store_is_closed_for_one_lease_to_those_who_knew_it() {
        let (lease, at) = (Duration::from_secs(120), |seconds: u64| Timestamp::from_millis(1000 * seconds));
        let mut watch = MarkerWatch::default();
        assert_eq!(watch.see(Marker(1), lease, at(0)), Seen::First);
        assert!(
            watch.admits(false, at(0)),
            "a process that never knew another marker has nothing to wait for"
        );
        assert_eq!(watch.see(Marker(1), lease, at(10)), Seen::Same);
        assert_eq!(watch.absence(at(10)), Absence::Removed);
        assert_eq!(watch.see(Marker(2), lease, at(20)), Seen::Emptied);
        for (now, mutating, absence) in [
            (20, false, Absence::StoreEmptied),
            (139, false, Absence::StoreEmptied),
            (140, true, Absence::Removed),
        ] {
            assert_eq!(watch.admits(false, at(now)), mutating, "at {now}");
            assert_eq!(watch.absence(at(now)), absence, "at {now}");
            assert!(watch.admits(true, at(now)), "what does no harm twice goes on");
        }
        assert_eq!(watch.see(Marker(2), lease, at(150)), Seen::Same);
    }
}

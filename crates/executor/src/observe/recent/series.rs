//! Figures about calls, by minute.

use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::code::Code;

/// Figures about calls: the last hour, and the total since this process began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallSeries {
    /// Every minute of the last hour, newest last. Minutes without calls are included.
    pub minutes: Vec<CallMinute>,
    /// Totals since the start of this process.
    pub since_start: CallTally,
}

/// Figures of one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallMinute {
    /// Start of the minute.
    pub at_ms: Timestamp,
    /// Figures of the calls that ended in it.
    #[serde(flatten)]
    pub tally: CallTally,
}

/// Figures about calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallTally {
    /// Calls that ended.
    pub calls: u64,
    /// Calls that succeeded.
    pub successes: u64,
    /// Calls that ran and failed, or got the replay of a failure.
    pub failures: u64,
    /// Calls that were refused without a run.
    pub refused: u64,
    /// Runs that were avoided because the same call had run or was in flight.
    pub duplicates: u64,
    /// Calls that succeeded because of a retry.
    pub saved: u64,
    /// Calls that the loop guard stopped.
    pub guard_stops: u64,
}

impl CallTally {
    /// Returns the figures of one call.
    pub(super) fn of(code: Option<Code>, attempts: u32, replayed: bool) -> Self {
        let ran = attempts > 0 || replayed;
        let is = |condition: bool| u64::from(condition);
        Self {
            calls: 1,
            successes: is(code.is_none()),
            failures: is(code.is_some() && ran),
            refused: is(code.is_some() && !ran),
            duplicates: is(replayed || code == Some(Code::InFlight)),
            saved: is(code.is_none() && attempts > 1),
            guard_stops: is(!ran && matches!(code, Some(Code::LoopDetected | Code::ToolErrorLimit))),
        }
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.successes += other.successes;
        self.failures += other.failures;
        self.refused += other.refused;
        self.duplicates += other.duplicates;
        self.saved += other.saved;
        self.guard_stops += other.guard_stops;
    }
}

/// The minutes of an hour, as a ring buffer.
#[derive(Debug)]
pub(super) struct MinuteRing {
    places: [CallMinute; HOUR],
    since_start: CallTally,
}

const HOUR: usize = 60;
const MINUTE_MS: u64 = 60_000;

impl Default for MinuteRing {
    fn default() -> Self {
        Self { places: [CallMinute::default(); HOUR], since_start: CallTally::default() }
    }
}

impl MinuteRing {
    pub(super) fn add(&mut self, at: Timestamp, tally: &CallTally) {
        self.since_start.add(tally);
        let number = at.as_millis() / MINUTE_MS;
        let began = Timestamp::from_millis(number * MINUTE_MS);
        let Some(place) = self.places.get_mut(place_of(number)) else { return };
        if place.at_ms < began {
            *place = CallMinute { at_ms: began, tally: CallTally::default() };
        }
        // A clock that was set back does not bring an old minute back.
        if place.at_ms == began {
            place.tally.add(tally);
        }
    }

    pub(super) fn series(&self, now: Timestamp) -> CallSeries {
        let last = now.as_millis() / MINUTE_MS;
        let minutes = (0..HOUR as u64).rev().map(|back| {
            let number = last.saturating_sub(back);
            let at_ms = Timestamp::from_millis(number * MINUTE_MS);
            let minute = self.places.get(place_of(number)).filter(|minute| minute.at_ms == at_ms);
            minute.copied().unwrap_or(CallMinute { at_ms, tally: CallTally::default() })
        });
        CallSeries { minutes: minutes.collect(), since_start: self.since_start }
    }
}

fn place_of(minute: u64) -> usize {
    usize::try_from(minute % HOUR as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut minutes = MinuteRing::default();
        let at = |minute: u64| {
            Timestamp::from_millis(1_700_000_000_000 / MINUTE_MS * MINUTE_MS + minute * MINUTE_MS)
        };
        let one = CallTally::of(None, 1, false);
        minutes.add(at(0), &one);
        minutes.add(at(0), &one);
        minutes.add(at(59), &one);
        let series = minutes.series(at(59));
        let calls: Vec<_> = series.minutes.iter().map(|minute| minute.tally.calls).collect();
        assert_eq!((calls.len(), calls[0], calls[59]), (HOUR, 2, 1));
        // The slot of the first minute is taken by one an hour later.
        minutes.add(at(60), &one);
        let series = minutes.series(at(60));
        let total: u64 = series.minutes.iter().map(|minute| minute.tally.calls).sum();
        assert_eq!((total, series.since_start.calls), (2, 4));
        assert!(series.minutes.is_sorted_by_key(|minute| minute.at_ms));
    }

    #[test]
    fn a_minute_that_is_over_stays_over() {
        let mut minutes = MinuteRing::default();
        let at = |minute: u64| Timestamp::from_millis(minute * MINUTE_MS);
        let one = CallTally::of(None, 1, false);
        minutes.add(at(100), &one);
        // The clock was set back by an hour. The slot of that minute has been reused.
        minutes.add(at(40), &one);
        let now = minutes.series(at(100));
        assert_eq!((now.minutes[HOUR - 1].tally, now.since_start.calls), (one, 2));
        let later = minutes.series(at(160));
        assert!(later.minutes.iter().all(|minute| minute.tally == CallTally::default()), "{later:?}");
    }

    #[test]
    fn all_that_became_of_calls_is_added_up() {
        let mut minutes = MinuteRing::default();
        let at = Timestamp::from_millis(1_700_000_000_000);
        let each = [
            CallTally::of(None, 2, false),
            CallTally::of(None, 0, true),
            CallTally::of(Some(Code::Timeout), 1, false),
            CallTally::of(Some(Code::LoopDetected), 0, false),
        ];
        for _ in 0..2 {
            each.iter().for_each(|tally| minutes.add(at, tally));
        }
        let all = CallTally {
            calls: 8,
            successes: 4,
            failures: 2,
            refused: 2,
            duplicates: 2,
            saved: 2,
            guard_stops: 2,
        };
        let series = minutes.series(at);
        assert_eq!((series.minutes[HOUR - 1].tally, series.since_start), (all, all));
    }

    #[test]
    fn what_a_call_counts_as() {
        let count = |code, attempts, replayed| {
            let CallTally { successes, failures, refused, duplicates, saved, guard_stops, .. } =
                CallTally::of(code, attempts, replayed);
            [successes, failures, refused, duplicates, saved, guard_stops]
        };
        assert_eq!(count(None, 1, false), [1, 0, 0, 0, 0, 0]);
        assert_eq!(count(None, 3, false), [1, 0, 0, 0, 1, 0]);
        assert_eq!(count(None, 0, true), [1, 0, 0, 1, 0, 0]);
        assert_eq!(count(Some(Code::InFlight), 0, false), [0, 0, 1, 1, 0, 0]);
        assert_eq!(count(Some(Code::LoopDetected), 0, false), [0, 0, 1, 0, 0, 1]);
        // The failure that triggers the loop guard counts as a failure, because the call ran.
        assert_eq!(count(Some(Code::LoopDetected), 1, false), [0, 1, 0, 0, 0, 0]);
        assert_eq!(count(Some(Code::CircuitOpen), 0, false), [0, 0, 1, 0, 0, 0]);
    }
}

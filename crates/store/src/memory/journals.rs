//! Journals in memory.

use std::collections::VecDeque;

use parking_lot::Mutex;
use steadfast_core::Timestamp;

use crate::journal::{Entry, Journal, Keep, Position, Query};

/// The most entries of one journal, whatever its writer asks for: here they cost memory.
const MOST: u64 = 25_000;

#[derive(Debug, Default)]
pub(super) struct Journals {
    history: Mutex<Log>,
    traces: Mutex<Log>,
    audit: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// How many there were before the oldest one.
    forgotten: u64,
    /// As its last writer asked for.
    keep: Option<Keep>,
}

impl Journals {
    pub(super) fn append(&self, journal: Journal, entries: &[Entry], keep: Keep, now: Timestamp) {
        let mut log = self.log(journal).lock();
        log.keep = Some(keep);
        log.entries.extend(entries.iter().cloned());
        log.trim(now);
    }

    pub(super) fn read(&self, query: &Query) -> Vec<(Position, Entry)> {
        let log = self.log(query.journal).lock();
        let asked_for = |entry: &Entry| {
            entry.at >= query.since && query.subject.as_ref().is_none_or(|subject| entry.subject == *subject)
        };
        // What stands behind a place are the older ones; how many are left of them follows from its number.
        let older = query.behind.map_or(u64::MAX, |Position(number, _)| number.saturating_sub(log.forgotten));
        let older = usize::try_from(older).unwrap_or(usize::MAX).min(log.entries.len());
        let numbered = log.entries.range(..older).enumerate().rev();
        numbered
            .filter(|(_, entry)| asked_for(entry))
            .take(query.limit)
            .map(|(at, entry)| (Position(log.forgotten + at as u64, 0), entry.clone()))
            .collect()
    }

    pub(super) fn sweep(&self, now: Timestamp) -> u64 {
        Journal::ALL.into_iter().map(|journal| self.log(journal).lock().trim(now)).sum()
    }

    fn log(&self, journal: Journal) -> &Mutex<Log> {
        match journal {
            Journal::History => &self.history,
            Journal::Traces => &self.traces,
            Journal::Audit => &self.audit,
        }
    }
}

impl Log {
    fn trim(&mut self, now: Timestamp) -> u64 {
        let Some(keep) = self.keep else { return 0 };
        let before = self.entries.len();
        let most = usize::try_from(keep.most.min(MOST)).unwrap_or(usize::MAX);
        self.entries.drain(..before.saturating_sub(most));
        let oldest = now.before(keep.age);
        while self.entries.front().is_some_and(|entry| entry.at < oldest) {
            self.entries.pop_front();
        }
        let forgotten = (before - self.entries.len()) as u64;
        self.forgotten += forgotten;
        forgotten
    }
}

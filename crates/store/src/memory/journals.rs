//! Journals in memory.

use std::collections::VecDeque;

use parking_lot::Mutex;
use steadfast_core::Timestamp;

use crate::journal::{Journal, JournalEntry, JournalLimits, JournalPosition, JournalQuery};

/// The most entries of one journal, whatever its limits are, because they cost memory here.
const MOST: u64 = 25_000;

#[derive(Debug, Default)]
pub(super) struct JournalSet {
    history: Mutex<JournalBuffer>,
    traces: Mutex<JournalBuffer>,
    audit: Mutex<JournalBuffer>,
    failures: Mutex<JournalBuffer>,
}

#[derive(Debug, Default)]
struct JournalBuffer {
    /// Oldest first, each with its number.
    entries: VecDeque<(u64, JournalEntry)>,
    /// The number of the next entry.
    next: u64,
    /// The limits from the last append.
    keep: Option<JournalLimits>,
}

impl JournalSet {
    pub(super) fn append(
        &self,
        journal: Journal,
        entries: &[JournalEntry],
        keep: JournalLimits,
        now: Timestamp,
    ) {
        let mut log = self.log(journal).lock();
        log.keep = Some(keep);
        for entry in entries {
            let number = log.next;
            log.entries.push_back((number, entry.clone()));
            log.next += 1;
            log.trim_subject(&entry.subject, keep);
        }
        log.trim(now);
    }

    pub(super) fn read(&self, query: &JournalQuery) -> Vec<(JournalPosition, JournalEntry)> {
        let log = self.log(query.journal).lock();
        let matches = |entry: &JournalEntry| {
            entry.at >= query.since && query.subject.as_ref().is_none_or(|subject| entry.subject == *subject)
        };
        // The query continues with older entries, which have lower numbers.
        let behind = query.before.map_or(u64::MAX, |JournalPosition(number, _)| number);
        let older = log.entries.partition_point(|(number, _)| *number < behind);
        let numbered = log.entries.range(..older).rev();
        numbered
            .filter(|(_, entry)| matches(entry))
            .take(query.limit)
            .map(|(number, entry)| (JournalPosition(*number, 0), entry.clone()))
            .collect()
    }

    pub(super) fn sweep(&self, now: Timestamp) -> u64 {
        Journal::ALL.into_iter().map(|journal| self.log(journal).lock().trim(now)).sum()
    }

    fn log(&self, journal: Journal) -> &Mutex<JournalBuffer> {
        match journal {
            Journal::History => &self.history,
            Journal::Traces => &self.traces,
            Journal::Audit => &self.audit,
            Journal::Failures => &self.failures,
        }
    }
}

impl JournalBuffer {
    fn trim(&mut self, now: Timestamp) -> u64 {
        let Some(keep) = self.keep else { return 0 };
        let before = self.entries.len();
        let most = usize::try_from(keep.most.min(MOST)).unwrap_or(usize::MAX);
        self.entries.drain(..before.saturating_sub(most));
        let oldest = now.before(keep.age);
        while self.entries.front().is_some_and(|(_, entry)| entry.at < oldest) {
            self.entries.pop_front();
        }
        (before - self.entries.len()) as u64
    }

    /// Removes the oldest entry about a subject if there is one too many.
    fn trim_subject(&mut self, subject: &str, keep: JournalLimits) {
        let Some(most) = keep.most_per_subject else { return };
        let mut about = self.entries.iter().enumerate().filter(|(_, (_, entry))| *entry.subject == *subject);
        let (oldest, count) = (about.next().map(|(at, _)| at), 1 + about.count() as u64);
        if let Some(oldest) = oldest.filter(|_| count > most) {
            self.entries.remove(oldest);
        }
    }
}

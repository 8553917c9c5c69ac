//! Storage of large results: bounds, readers and expiry.
//!
//! Only the caller of a tool may read its result. If a new result needs room, the reader that uses the most of it loses
//! its oldest results, so that one agent with many large results does not displace those of others. The surface owns
//! the content: a text in memory, or a file.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Timestamp;
use crate::id::{ActorId, Digest, TenantId};

/// Bounds of the stored results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeResultBounds {
    /// Time for which each result is kept after it was last returned.
    pub keep: Duration,
    /// Maximum number of results.
    pub entries: usize,
    /// Maximum size of all results in bytes.
    pub bytes: usize,
}

/// The caller of a tool, which may read the whole result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResultReader {
    /// The tenant on whose behalf the call was made.
    pub tenant: Option<TenantId>,
    /// The actor that made the call.
    pub actor: ActorId,
}

/// A large result to store.
#[derive(Clone, Debug)]
pub struct NewLargeResult {
    /// Name of the result, which cannot be guessed.
    pub id: Box<str>,
    /// Caller that may read it.
    pub reader: ResultReader,
    /// Digest of its text: equal texts of one reader are stored once.
    pub digest: Digest,
    /// Size of its text in bytes.
    pub bytes: usize,
    /// Maximum size of one page in bytes.
    pub page: usize,
}

/// A stored large result.
#[derive(Clone, Debug)]
pub struct LargeResult<T> {
    /// Metadata of the result.
    pub about: NewLargeResult,
    /// Time at which it is dropped.
    pub expires: Timestamp,
    /// Its text, or the place of it.
    pub content: T,
}

/// The error for a result that is larger than the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultTooLarge;

/// The large results of one process.
#[derive(Debug)]
pub struct LargeResultStore<T> {
    bounds: LargeResultBounds,
    /// Oldest first.
    results: VecDeque<LargeResult<T>>,
}

impl<T> LargeResultStore<T> {
    /// Creates an empty storage with these bounds.
    pub fn new(bounds: LargeResultBounds) -> Self {
        Self { bounds, results: VecDeque::new() }
    }

    /// Returns the bounds.
    pub const fn bounds(&self) -> LargeResultBounds {
        self.bounds
    }

    /// Returns true if a result of this size fits the bounds.
    pub const fn takes(&self, bytes: usize) -> bool {
        self.bounds.entries > 0 && bytes <= self.bounds.bytes
    }

    /// Renews the lifetime of an equal text of the same reader, and returns its result.
    pub fn renew(
        &mut self,
        reader: &ResultReader,
        digest: Digest,
        now: Timestamp,
    ) -> Option<&LargeResult<T>> {
        let is_same = |one: &LargeResult<T>| {
            one.about.reader == *reader && one.about.digest == digest && one.expires > now
        };
        let mut found = self.results.remove(self.results.iter().position(is_same)?)?;
        found.expires = now + self.bounds.keep;
        self.results.push_back(found);
        self.results.back()
    }

    /// Stores a result. Returns the content of results that had to make room for it, or had expired.
    pub fn keep(
        &mut self,
        new: NewLargeResult,
        content: T,
        now: Timestamp,
    ) -> Result<Vec<T>, ResultTooLarge> {
        if !self.takes(new.bytes) {
            return Err(ResultTooLarge);
        }
        let mut dropped = self.expire(now);
        while self.results.len() >= self.bounds.entries {
            dropped.extend(self.give_up(|_| 1));
        }
        while self.bytes() > self.bounds.bytes - new.bytes {
            dropped.extend(self.give_up(|about| about.bytes));
        }
        self.results.push_back(LargeResult { about: new, expires: now + self.bounds.keep, content });
        Ok(dropped)
    }

    /// Returns the result with this name, if it exists and the caller may read it. Other callers get the same answer as
    /// for a result that does not exist.
    pub fn find(
        &self,
        id: &str,
        may_read: impl FnOnce(&ResultReader) -> bool,
        now: Timestamp,
    ) -> Option<&LargeResult<T>> {
        let found = self.results.iter().find(|one| *one.about.id == *id && one.expires > now)?;
        may_read(&found.about.reader).then_some(found)
    }

    /// Drops expired results and returns their content.
    pub fn expire(&mut self, now: Timestamp) -> Vec<T> {
        // All results have the same lifetime, and a renewed one goes to the end, so the first one expires first.
        let count = self.results.iter().take_while(|one| one.expires <= now).count();
        self.results.drain(..count).map(|one| one.content).collect()
    }

    /// Returns the time at which the next result expires.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.results.front().map(|one| one.expires)
    }

    /// Drops all results and returns their content.
    pub fn clear(&mut self) -> Vec<T> {
        self.results.drain(..).map(|one| one.content).collect()
    }

    fn bytes(&self) -> usize {
        self.results.iter().map(|one| one.about.bytes).sum()
    }

    /// Drops the oldest result of the reader with the highest total.
    fn give_up(&mut self, counted: impl Fn(&NewLargeResult) -> usize) -> Option<T> {
        let mut by_reader: BTreeMap<&ResultReader, usize> = BTreeMap::new();
        for one in &self.results {
            *by_reader.entry(&one.about.reader).or_default() += counted(&one.about);
        }
        let most = by_reader.values().copied().max()?;
        let has_most = |one: &LargeResult<T>| by_reader.get(&one.about.reader) == Some(&most);
        let oldest = self.results.iter().position(has_most)?;
        self.results.remove(oldest).map(|one| one.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn store_of(entries: usize, bytes: usize) -> LargeResultStore<String> {
        LargeResultStore::new(LargeResultBounds { keep: 10 * SECOND, entries, bytes })
    }

    fn reader(name: &str) -> ResultReader {
        let (tenant, actor) = name.split_once('/').unwrap_or(("", name));
        ResultReader { tenant: TenantId::new(tenant).ok(), actor: ActorId::new(actor).unwrap() }
    }

    fn new(id: &str, of: &str, bytes: usize) -> NewLargeResult {
        NewLargeResult {
            id: id.into(),
            reader: reader(of),
            digest: Digest::of(id.as_bytes()),
            bytes,
            page: 8,
        }
    }

    fn keep(
        store: &mut LargeResultStore<String>,
        id: &str,
        of: &str,
        bytes: usize,
        now: Timestamp,
    ) -> Vec<String> {
        store.keep(new(id, of, bytes), id.to_owned(), now).unwrap()
    }

    fn has(store: &LargeResultStore<String>, id: &str, now: Timestamp) -> bool {
        store.find(id, |_| true, now).is_some()
    }

    #[test]
    fn a_result_can_only_be_read_by_its_caller() {
        let mut store = store_of(8, 100);
        keep(&mut store, "a", "acme/ann", 10, START);
        let finds = |name: &str| store.find("a", |own| *own == reader(name), START).is_some();
        assert!(finds("acme/ann"));
        for stranger in ["acme/bob", "umbra/ann", "ann"] {
            assert!(!finds(stranger), "{stranger}");
        }
    }

    #[test]
    fn a_result_expires_when_its_time_is_over_and_not_before() {
        let mut store = store_of(8, 100);
        keep(&mut store, "a", "ann", 10, START);
        keep(&mut store, "b", "ann", 10, START + SECOND);
        assert_eq!(store.next_expiry(), Some(START + 10 * SECOND));
        let before = START + Duration::from_millis(9_999);
        assert!(store.expire(before).is_empty() && has(&store, "a", before));
        let end = START + 10 * SECOND;
        assert!(!has(&store, "a", end) && has(&store, "b", end), "also if it was not removed yet");
        assert_eq!(store.expire(end), ["a"]);
        assert_eq!(store.next_expiry(), Some(START + 11 * SECOND));
        assert_eq!(store.clear(), ["b"]);
        assert_eq!(store.next_expiry(), None);
    }

    #[test]
    fn the_same_text_is_stored_once_and_as_long_as_a_new_one() {
        let mut store = store_of(8, 100);
        keep(&mut store, "a", "ann", 10, START);
        keep(&mut store, "b", "ann", 10, START);
        let (later, digest) = (START + 5 * SECOND, Digest::of(b"a"));
        assert!(store.renew(&reader("bob"), digest, later).is_none(), "to each reader their own");
        assert!(store.renew(&reader("ann"), Digest::of(b"c"), later).is_none());
        assert_eq!(store.renew(&reader("ann"), digest, later).map(|one| &*one.about.id), Some("a"));
        assert_eq!(store.expire(START + 10 * SECOND), ["b"]);
        assert!(has(&store, "a", START + 14 * SECOND));
        assert!(store.renew(&reader("ann"), digest, START + 15 * SECOND).is_none(), "it has expired");
    }

    #[test]
    fn number_and_bytes_are_bounded_and_the_largest_reader_loses_its_oldest() {
        let mut store = store_of(3, 100);
        for (id, of) in [("b1", "bob"), ("a1", "ann"), ("a2", "ann")] {
            assert!(keep(&mut store, id, of, 10, START).is_empty());
        }
        assert_eq!(keep(&mut store, "c1", "cid", 10, START), ["a1"], "too many");
        assert_eq!(keep(&mut store, "c2", "cid", 10, START), ["b1"], "all have one: the oldest goes");
        assert_eq!(keep(&mut store, "a3", "ann", 85, START), ["c1", "a2"], "too many, then too many bytes");
        assert_eq!(keep(&mut store, "a4", "ann", 6, START), ["a3"]);
        assert!(has(&store, "c2", START) && has(&store, "a4", START));
        assert_eq!(keep(&mut store, "d", "dan", 100, START), ["c2", "a4"], "it takes up everything");
        assert_eq!(store.keep(new("e", "ann", 101), String::new(), START), Err(ResultTooLarge));
        assert!(has(&store, "d", START), "what cannot be kept pushes nothing out");
        assert!(
            !LargeResultStore::<()>::new(LargeResultBounds { keep: SECOND, entries: 0, bytes: 9 }).takes(1)
        );
    }

    #[test]
    fn expired_results_make_room_first() {
        let mut store = store_of(3, 100);
        keep(&mut store, "a", "ann", 10, START);
        keep(&mut store, "b", "bob", 10, START + SECOND);
        keep(&mut store, "c", "bob", 10, START + SECOND);
        assert_eq!(keep(&mut store, "d", "bob", 10, START + 10 * SECOND), ["a"]);
    }
}

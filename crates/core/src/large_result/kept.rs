//! What is kept of large results, for whom, how much and for how long.
//!
//! Whoever made the call reads its result, and nobody else. Where there is no room for a new one, the reader who takes up most
//! gives up the oldest of theirs, so that one agent with many large results does not push out those of the others. The content
//! itself belongs to the surface: a text in memory, or a file.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Timestamp;
use crate::id::{ActorId, Digest, TenantId};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBounds {
    /// How long each result is kept after it was last given.
    pub keep: Duration,
    /// The most results.
    pub entries: usize,
    /// The most bytes of all results.
    pub bytes: usize,
}

/// Who made a call, and may read the whole of its result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reader {
    /// The tenant on whose behalf the call was made.
    pub tenant: Option<TenantId>,
    /// The actor who made it.
    pub actor: ActorId,
}

/// A large result that is to be kept.
#[derive(Clone, Debug)]
pub struct NewResult {
    /// The name that it gets, which nobody can guess.
    pub id: Box<str>,
    /// Who may read it.
    pub reader: Reader,
    /// The digest of its text: the same text for the same reader is kept once.
    pub digest: Digest,
    /// The bytes of its text.
    pub bytes: usize,
    /// The most bytes of one page of it.
    pub page: usize,
}

/// A large result that is kept.
#[derive(Clone, Debug)]
pub struct KeptResult<T> {
    /// What is known of it.
    pub about: NewResult,
    /// When it is dropped.
    pub expires: Timestamp,
    /// Its text, or the place of it.
    pub content: T,
}

/// A result that is larger than all that may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// The large results of one process.
#[derive(Debug)]
pub struct KeptResults<T> {
    bounds: KeptBounds,
    /// The oldest first.
    kept: VecDeque<KeptResult<T>>,
}

impl<T> KeptResults<T> {
    /// Keeps results within these bounds.
    pub fn new(bounds: KeptBounds) -> Self {
        Self { bounds, kept: VecDeque::new() }
    }

    /// The bounds.
    pub const fn bounds(&self) -> KeptBounds {
        self.bounds
    }

    /// True if a result of this size can be kept at all.
    pub const fn takes(&self, bytes: usize) -> bool {
        self.bounds.entries > 0 && bytes <= self.bounds.bytes
    }

    /// The same text that is kept for the same reader already, as a new one: it is kept as long as one that comes now.
    pub fn renew(&mut self, reader: &Reader, digest: Digest, now: Timestamp) -> Option<&KeptResult<T>> {
        let is_same = |one: &KeptResult<T>| {
            one.about.reader == *reader && one.about.digest == digest && one.expires > now
        };
        let mut found = self.kept.remove(self.kept.iter().position(is_same)?)?;
        found.expires = now + self.bounds.keep;
        self.kept.push_back(found);
        self.kept.back()
    }

    /// Keeps a result. Gives what had to make room for it, and what had expired.
    pub fn keep(&mut self, new: NewResult, content: T, now: Timestamp) -> Result<Vec<T>, TooLarge> {
        if !self.takes(new.bytes) {
            return Err(TooLarge);
        }
        let mut dropped = self.expire(now);
        while self.kept.len() >= self.bounds.entries {
            dropped.extend(self.give_up(|_| 1));
        }
        while self.bytes() > self.bounds.bytes - new.bytes {
            dropped.extend(self.give_up(|about| about.bytes));
        }
        self.kept.push_back(KeptResult { about: new, expires: now + self.bounds.keep, content });
        Ok(dropped)
    }

    /// The result of this name, if it is kept and this one may read it. To a stranger it is as if there were none.
    pub fn find(
        &self,
        id: &str,
        may_read: impl FnOnce(&Reader) -> bool,
        now: Timestamp,
    ) -> Option<&KeptResult<T>> {
        let found = self.kept.iter().find(|one| *one.about.id == *id && one.expires > now)?;
        may_read(&found.about.reader).then_some(found)
    }

    /// Drops what has expired.
    pub fn expire(&mut self, now: Timestamp) -> Vec<T> {
        // Each is kept equally long, and one that is renewed goes to the end: the oldest expires first.
        let count = self.kept.iter().take_while(|one| one.expires <= now).count();
        self.kept.drain(..count).map(|one| one.content).collect()
    }

    /// When the next one expires.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.kept.front().map(|one| one.expires)
    }

    /// Drops everything.
    pub fn clear(&mut self) -> Vec<T> {
        self.kept.drain(..).map(|one| one.content).collect()
    }

    fn bytes(&self) -> usize {
        self.kept.iter().map(|one| one.about.bytes).sum()
    }

    /// Drops the oldest result of the reader who has most of what is counted.
    fn give_up(&mut self, counted: impl Fn(&NewResult) -> usize) -> Option<T> {
        let mut by_reader: BTreeMap<&Reader, usize> = BTreeMap::new();
        for one in &self.kept {
            *by_reader.entry(&one.about.reader).or_default() += counted(&one.about);
        }
        let most = by_reader.values().copied().max()?;
        let has_most = |one: &KeptResult<T>| by_reader.get(&one.about.reader) == Some(&most);
        let oldest = self.kept.iter().position(has_most)?;
        self.kept.remove(oldest).map(|one| one.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn kept(entries: usize, bytes: usize) -> KeptResults<String> {
        KeptResults::new(KeptBounds { keep: 10 * SECOND, entries, bytes })
    }

    fn reader(name: &str) -> Reader {
        let (tenant, actor) = name.split_once('/').unwrap_or(("", name));
        Reader { tenant: TenantId::new(tenant).ok(), actor: ActorId::new(actor).unwrap() }
    }

    fn new(id: &str, of: &str, bytes: usize) -> NewResult {
        NewResult { id: id.into(), reader: reader(of), digest: Digest::of(id.as_bytes()), bytes, page: 8 }
    }

    fn keep(kept: &mut KeptResults<String>, id: &str, of: &str, bytes: usize, now: Timestamp) -> Vec<String> {
        kept.keep(new(id, of, bytes), id.to_owned(), now).unwrap()
    }

    fn has(kept: &KeptResults<String>, id: &str, now: Timestamp) -> bool {
        kept.find(id, |_| true, now).is_some()
    }

    #[test]
    fn a_result_is_read_by_whoever_made_the_call_and_by_nobody_else() {
        let mut kept = kept(8, 100);
        keep(&mut kept, "a", "acme/ann", 10, START);
        let finds = |who: &str| kept.find("a", |own| *own == reader(who), START).is_some();
        assert!(finds("acme/ann"));
        for stranger in ["acme/bob", "umbra/ann", "ann"] {
            assert!(!finds(stranger), "{stranger}");
        }
    }

    #[test]
    fn a_result_expires_when_its_time_is_over_and_not_before() {
        let mut kept = kept(8, 100);
        keep(&mut kept, "a", "ann", 10, START);
        keep(&mut kept, "b", "ann", 10, START + SECOND);
        assert_eq!(kept.next_expiry(), Some(START + 10 * SECOND));
        let before = START + Duration::from_millis(9_999);
        assert!(kept.expire(before).is_empty() && has(&kept, "a", before));
        let end = START + 10 * SECOND;
        assert!(!has(&kept, "a", end) && has(&kept, "b", end), "also if nobody has cleared it away");
        assert_eq!(kept.expire(end), ["a"]);
        assert_eq!(kept.next_expiry(), Some(START + 11 * SECOND));
        assert_eq!(kept.clear(), ["b"]);
        assert_eq!(kept.next_expiry(), None);
    }

    #[test]
    fn the_same_text_is_kept_once_and_as_long_as_a_new_one() {
        let mut kept = kept(8, 100);
        keep(&mut kept, "a", "ann", 10, START);
        keep(&mut kept, "b", "ann", 10, START);
        let (later, digest) = (START + 5 * SECOND, Digest::of(b"a"));
        assert!(kept.renew(&reader("bob"), digest, later).is_none(), "to each reader their own");
        assert!(kept.renew(&reader("ann"), Digest::of(b"c"), later).is_none());
        assert_eq!(kept.renew(&reader("ann"), digest, later).map(|one| &*one.about.id), Some("a"));
        assert_eq!(kept.expire(START + 10 * SECOND), ["b"]);
        assert!(has(&kept, "a", START + 14 * SECOND));
        assert!(kept.renew(&reader("ann"), digest, START + 15 * SECOND).is_none(), "it has expired");
    }

    #[test]
    fn number_and_bytes_are_bounded_and_whoever_has_most_gives_up_their_oldest() {
        let mut kept = kept(3, 100);
        for (id, of) in [("b1", "bob"), ("a1", "ann"), ("a2", "ann")] {
            assert!(keep(&mut kept, id, of, 10, START).is_empty());
        }
        assert_eq!(keep(&mut kept, "c1", "cid", 10, START), ["a1"], "too many");
        assert_eq!(keep(&mut kept, "c2", "cid", 10, START), ["b1"], "all have one: the oldest goes");
        assert_eq!(keep(&mut kept, "a3", "ann", 85, START), ["c1", "a2"], "too many, then too many bytes");
        assert_eq!(keep(&mut kept, "a4", "ann", 6, START), ["a3"]);
        assert!(has(&kept, "c2", START) && has(&kept, "a4", START));
        assert_eq!(keep(&mut kept, "d", "dan", 100, START), ["c2", "a4"], "it takes up everything");
        assert_eq!(kept.keep(new("e", "ann", 101), String::new(), START), Err(TooLarge));
        assert!(has(&kept, "d", START), "what cannot be kept pushes nothing out");
        assert!(!KeptResults::<()>::new(KeptBounds { keep: SECOND, entries: 0, bytes: 9 }).takes(1));
    }

    #[test]
    fn what_has_expired_makes_room_before_anything_else() {
        let mut kept = kept(3, 100);
        keep(&mut kept, "a", "ann", 10, START);
        keep(&mut kept, "b", "bob", 10, START + SECOND);
        keep(&mut kept, "c", "bob", 10, START + SECOND);
        assert_eq!(keep(&mut kept, "d", "bob", 10, START + 10 * SECOND), ["a"]);
    }
}

//! Callers in this process that wait for one run.
//!
//! A run that is ours is entered here while it is under way, so that duplicates in this process wait without
//! asking the store, learn of a refusal that is never stored, and so that a cancel knows whether others wait.
//! Most runs have nobody who waits: what it takes to wake others is made when the first of them comes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_core::call::Others;
use steadfast_core::dedupe::Failure;
use steadfast_core::key::Key;
use tokio::sync::watch;

use crate::engine::Desk;

/// The runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: Mutex<HashMap<Key, Entry, foldhash::quality::RandomState>>,
    entered: AtomicU64,
}

/// A run that is under way.
#[derive(Debug)]
struct Entry {
    /// Tells it from a run that takes over under the same key.
    number: u64,
    run: Run,
    followers: Option<watch::Sender<Run>>,
    /// Hears when the last of them has withdrawn its call.
    leader: Weak<Desk>,
}

/// How a run stands.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// It is under way. Counts how often its record has changed.
    Open(u32),
    /// It is over, and the store says how it ended.
    Over,
    /// It was refused. That is not stored: whoever waited here gets the same refusal.
    Refused(Box<Failure>),
}

impl Runs {
    /// A run of ours begins. It is over when the guard is dropped. Whoever waits for an earlier one under the same key
    /// looks again.
    pub(crate) fn enter(self: &Arc<Self>, key: Key, leader: &Arc<Desk>) -> Entered {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let before = self.runs.lock().insert(
            key,
            Entry { number, run: Run::Open(0), followers: None, leader: Arc::downgrade(leader) },
        );
        drop(before);
        Entered { runs: self.clone(), key, number }
    }

    /// One of those who waited for this run has withdrawn its call, and waits no more.
    pub(crate) fn withdrew(&self, key: Key) {
        let runs = self.runs.lock();
        let entry = runs.get(&key).filter(|entry| {
            entry.followers.as_ref().is_some_and(|followers| followers.receiver_count() == 0)
        });
        let leader = entry.and_then(|entry| entry.leader.upgrade());
        drop(runs);
        if let Some(leader) = leader {
            leader.control.alone();
        }
    }

    /// Waits for a run of this process, if it is one.
    pub(crate) fn follow(&self, key: Key) -> Option<watch::Receiver<Run>> {
        let mut runs = self.runs.lock();
        let entry = runs.get_mut(&key)?;
        let run = &entry.run;
        Some(entry.followers.get_or_insert_with(|| watch::Sender::new(run.clone())).subscribe())
    }
}

/// A run of ours that is under way.
#[derive(Debug)]
pub(crate) struct Entered {
    runs: Arc<Runs>,
    key: Key,
    number: u64,
}

impl Entered {
    /// Whether others in this process wait for it.
    pub(crate) fn others(&self) -> Others {
        let runs = self.runs.runs.lock();
        let followers = runs.get(&self.key).filter(|entry| entry.number == self.number);
        match followers.and_then(|entry| entry.followers.as_ref()) {
            Some(followers) if followers.receiver_count() > 0 => Others::Waiting,
            Some(_) | None => Others::None,
        }
    }

    /// Its record has changed, and it goes on: whoever waits looks again.
    pub(crate) fn changed(&self) {
        let mut runs = self.runs.runs.lock();
        if let Some(entry) = runs.get_mut(&self.key).filter(|entry| entry.number == self.number)
            && let Run::Open(changes) = &mut entry.run
        {
            *changes += 1;
            if let Some(followers) = &entry.followers {
                followers.send_replace(entry.run.clone());
            }
        }
    }

    /// It was refused; whoever waits gets the same refusal.
    pub(crate) fn refused(&self, failure: &Failure) {
        let mut runs = self.runs.runs.lock();
        if let Some(entry) = runs.get_mut(&self.key).filter(|entry| entry.number == self.number) {
            entry.run = Run::Refused(Box::new(failure.clone()));
            if let Some(followers) = &entry.followers {
                followers.send_replace(entry.run.clone());
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut runs = self.runs.runs.lock();
        // A run that was taken over under the same key has an entry of its own.
        let ours = runs.get(&self.key).is_some_and(|entry| entry.number == self.number);
        let entry = if ours { runs.remove(&self.key) } else { None };
        drop(runs);
        if let Some(Entry { run: Run::Open(_), followers: Some(followers), .. }) = entry {
            followers.send_replace(Run::Over);
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::code::Code;
    use steadfast_core::id::Digest;

    use super::*;

    fn key() -> Key {
        Key(Digest::of(b"a key"))
    }

    fn refusal() -> Failure {
        Failure {
            code: Code::CircuitOpen,
            message: "not now".into(),
            retriable: true,
            terminal: false,
            rule: None,
            verify: None,
            retry_after: None,
            output: None,
        }
    }

    #[test]
    fn whoever_waits_hears_of_the_end() {
        let runs = Arc::new(Runs::default());
        let entered = runs.enter(key(), &Arc::default());
        assert_eq!(entered.others(), Others::None);
        let mut follower = runs.follow(key()).unwrap();
        assert_eq!(entered.others(), Others::Waiting);
        drop(entered);
        assert!(matches!(*follower.borrow_and_update(), Run::Over));
        assert!(runs.follow(key()).is_none(), "there is nothing left to wait for");
    }

    #[test]
    fn a_refusal_reaches_those_who_waited_and_those_who_came_between_it_and_the_end() {
        let runs = Arc::new(Runs::default());
        let entered = runs.enter(key(), &Arc::default());
        let mut early = runs.follow(key()).unwrap();
        entered.refused(&refusal());
        let mut late = runs.follow(key()).unwrap();
        drop(entered);
        for follower in [&mut early, &mut late] {
            assert!(
                matches!(&*follower.borrow_and_update(), Run::Refused(failure) if **failure == refusal())
            );
        }
        let alone = runs.enter(key(), &Arc::default());
        alone.refused(&refusal());
        assert!(matches!(&*runs.follow(key()).unwrap().borrow(), Run::Refused(_)), "nobody waited before");
    }

    #[test]
    fn a_run_that_takes_over_is_not_ended_with_the_one_before_it() {
        let runs = Arc::new(Runs::default());
        let first = runs.enter(key(), &Arc::default());
        let of_the_first = runs.follow(key()).unwrap();
        let second = runs.enter(key(), &Arc::default());
        assert!(of_the_first.has_changed().is_err(), "it looks again, and finds the second");
        let of_the_second = runs.follow(key()).unwrap();
        assert_eq!(first.others(), Others::None);
        first.refused(&refusal());
        drop(first);
        assert!(matches!(&*of_the_second.borrow(), Run::Open(_)));
        assert_eq!(second.others(), Others::Waiting);
    }
}

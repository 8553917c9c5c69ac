//! Callers in this process that wait for the same in-flight run.
//!
//! A run of this process is registered here while it is in flight. Duplicates in this process then wait without asking
//! the store, learn of a refusal that is never stored, and a cancellation knows if others wait. Most runs have no
//! followers, so the channel that wakes them is created when the first one comes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_core::call::OtherWaiters;
use steadfast_core::dedupe::CallFailure;
use steadfast_core::key::RecordKey;
use tokio::sync::watch;

use crate::call::slot::CallerSlot;

/// The in-flight runs of this process.
#[derive(Debug, Default)]
pub(crate) struct InFlightRuns {
    runs: Mutex<HashMap<RecordKey, RunEntry, foldhash::quality::RandomState>>,
    entered: AtomicU64,
}

/// A run in flight.
#[derive(Debug)]
struct RunEntry {
    /// Distinguishes it from a run that takes over the same key.
    number: u64,
    run: RunState,
    followers: Option<watch::Sender<RunState>>,
    /// Signalled when the last follower has cancelled its call.
    leader: Weak<CallerSlot>,
}

/// State of a run.
#[derive(Clone, Debug)]
pub(crate) enum RunState {
    /// The run is in flight. The number counts the changes of its record.
    Open(u32),
    /// The run has ended, and the store has its result.
    Over,
    /// The run was refused. That is not stored, so its followers get the same refusal from here.
    Refused(Box<CallFailure>),
}

impl InFlightRuns {
    /// Registers a run. It ends when the returned guard is dropped. Followers of an earlier run with the same key check
    /// the store again.
    pub(crate) fn enter(self: &Arc<Self>, key: RecordKey, leader: &Arc<CallerSlot>) -> RunRegistration {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let before = self.runs.lock().insert(
            key,
            RunEntry { number, run: RunState::Open(0), followers: None, leader: Arc::downgrade(leader) },
        );
        drop(before);
        RunRegistration { runs: self.clone(), key, number }
    }

    /// Removes a follower that cancelled its call.
    pub(crate) fn remove_follower(&self, key: RecordKey) {
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

    /// Subscribes to a run of this process, or returns `None` if there is none with this key.
    pub(crate) fn follow(&self, key: RecordKey) -> Option<watch::Receiver<RunState>> {
        let mut runs = self.runs.lock();
        let entry = runs.get_mut(&key)?;
        let run = &entry.run;
        Some(entry.followers.get_or_insert_with(|| watch::Sender::new(run.clone())).subscribe())
    }
}

/// The registration of a run in flight.
#[derive(Debug)]
pub(crate) struct RunRegistration {
    runs: Arc<InFlightRuns>,
    key: RecordKey,
    number: u64,
}

impl RunRegistration {
    /// Returns the presence of followers in this process.
    pub(crate) fn others(&self) -> OtherWaiters {
        let runs = self.runs.runs.lock();
        let followers = runs.get(&self.key).filter(|entry| entry.number == self.number);
        match followers.and_then(|entry| entry.followers.as_ref()) {
            Some(followers) if followers.receiver_count() > 0 => OtherWaiters::Waiting,
            Some(_) | None => OtherWaiters::None,
        }
    }

    /// Wakes the followers because the record of the run has changed, while the run continues.
    pub(crate) fn changed(&self) {
        let mut runs = self.runs.runs.lock();
        if let Some(entry) = runs.get_mut(&self.key).filter(|entry| entry.number == self.number)
            && let RunState::Open(changes) = &mut entry.run
        {
            *changes += 1;
            if let Some(followers) = &entry.followers {
                followers.send_replace(entry.run.clone());
            }
        }
    }

    /// Ends the run with a refusal, which its followers get as well.
    pub(crate) fn refused(&self, failure: &CallFailure) {
        let mut runs = self.runs.runs.lock();
        if let Some(entry) = runs.get_mut(&self.key).filter(|entry| entry.number == self.number) {
            entry.run = RunState::Refused(Box::new(failure.clone()));
            if let Some(followers) = &entry.followers {
                followers.send_replace(entry.run.clone());
            }
        }
    }
}

impl Drop for RunRegistration {
    fn drop(&mut self) {
        let mut runs = self.runs.runs.lock();
        // A run that was taken over with the same key has its own entry.
        let is_current = runs.get(&self.key).is_some_and(|entry| entry.number == self.number);
        let entry = if is_current { runs.remove(&self.key) } else { None };
        drop(runs);
        if let Some(RunEntry { run: RunState::Open(_), followers: Some(followers), .. }) = entry {
            followers.send_replace(RunState::Over);
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::code::Code;
    use steadfast_core::id::Digest;

    use super::*;

    fn key() -> RecordKey {
        RecordKey(Digest::of(b"a key"))
    }

    fn refusal() -> CallFailure {
        CallFailure {
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
    fn followers_are_woken_at_the_end() {
        let runs = Arc::new(InFlightRuns::default());
        let entered = runs.enter(key(), &Arc::default());
        assert_eq!(entered.others(), OtherWaiters::None);
        let mut follower = runs.follow(key()).unwrap();
        assert_eq!(entered.others(), OtherWaiters::Waiting);
        drop(entered);
        assert!(matches!(*follower.borrow_and_update(), RunState::Over));
        assert!(runs.follow(key()).is_none(), "there is nothing left to wait for");
    }

    #[test]
    fn a_refusal_reaches_those_who_waited_and_those_who_came_between_it_and_the_end() {
        let runs = Arc::new(InFlightRuns::default());
        let entered = runs.enter(key(), &Arc::default());
        let mut early = runs.follow(key()).unwrap();
        entered.refused(&refusal());
        let mut late = runs.follow(key()).unwrap();
        drop(entered);
        for follower in [&mut early, &mut late] {
            assert!(
                matches!(&*follower.borrow_and_update(), RunState::Refused(failure) if **failure == refusal())
            );
        }
        let alone = runs.enter(key(), &Arc::default());
        alone.refused(&refusal());
        assert!(
            matches!(&*runs.follow(key()).unwrap().borrow(), RunState::Refused(_)),
            "nobody waited before"
        );
    }

    #[test]
    fn a_run_that_takes_over_is_not_ended_with_the_one_before_it() {
        let runs = Arc::new(InFlightRuns::default());
        let first = runs.enter(key(), &Arc::default());
        let of_the_first = runs.follow(key()).unwrap();
        let second = runs.enter(key(), &Arc::default());
        assert!(of_the_first.has_changed().is_err(), "it looks again, and finds the second");
        let of_the_second = runs.follow(key()).unwrap();
        assert_eq!(first.others(), OtherWaiters::None);
        first.refused(&refusal());
        drop(first);
        assert!(matches!(&*of_the_second.borrow(), RunState::Open(_)));
        assert_eq!(second.others(), OtherWaiters::Waiting);
    }
}

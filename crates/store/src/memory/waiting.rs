//! Waiting for a record to be settled, without polling.
//!
//! A follower registers under the same lock under which it reads the record, so no change is missed.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::dedupe::{Lease, LeaseSight, Record, RecordState};
use steadfast_core::key::Key;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::MemoryStore;

/// Interval at which an owner in another process is checked, because its end causes no event.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The waiters for one record.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    notify: Arc<Notify>,
    followers: usize,
}

impl Waiting {
    pub(super) fn into_notify(self) -> Arc<Notify> {
        self.notify
    }
}

/// The state that a follower found.
enum Look<'a> {
    /// There is nothing to wait for.
    Settled,
    /// The record is in flight.
    Held { follower: Follower<'a>, changed: OwnedNotified, look_again: Option<Duration> },
}

/// A registered waiter. Deregisters on drop.
struct Follower<'a> {
    store: &'a MemoryStore,
    key: Key,
    notify: Arc<Notify>,
}

impl MemoryStore {
    pub(super) async fn wait_until_settled(&self, key: Key) {
        while let Look::Held { follower, changed, look_again } = self.look_and_listen(key) {
            match look_again {
                None => changed.await,
                Some(span) => {
                    // In both cases, the record is checked again.
                    let _ = tokio::time::timeout(span, changed).await;
                }
            }
            drop(follower);
        }
    }

    fn look_and_listen(&self, key: Key) -> Look<'_> {
        self.shards.in_shard_of(&key, |shard| {
            let Some(look_again) = shard.records.get(&key).and_then(|record| self.held(record)) else {
                return Look::Settled;
            };
            let waiting = shard.waiting.entry(key).or_default();
            waiting.followers += 1;
            let notify = Arc::clone(&waiting.notify);
            // From here on, it receives every change, polled or not.
            let changed = Arc::clone(&notify).notified_owned();
            Look::Held { follower: Follower { store: self, key, notify }, changed, look_again: look_again.0 }
        })
    }

    /// Returns the interval for the next check if the record is in flight with a live owner.
    fn held(&self, record: &Record) -> Option<LookAgain> {
        let now = self.clock.now();
        let sight = self.sight(&record.owner);
        let in_flight = match record.state {
            RecordState::Inflight => true,
            RecordState::Done(_)
            | RecordState::Failed(_)
            | RecordState::Unknown(_)
            | RecordState::Cancelled => false,
        };
        if !in_flight || record.is_expired(now) || !record.lease_holds(sight, now) {
            return None;
        }
        Some(LookAgain(match (sight, record.lease) {
            // The owner is in this process, so it lives as long as the follower.
            (LeaseSight::Alive, _) if record.owner.process == self.process => None,
            (LeaseSight::Time, Lease::Until(until)) => Some(until.since(now).min(LOOK_AGAIN)),
            (LeaseSight::Alive | LeaseSight::Gone | LeaseSight::Time, _) => Some(LOOK_AGAIN),
        }))
    }
}

struct LookAgain(Option<Duration>);

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.store.shards.in_shard_of(&self.key, |shard| {
            // After a wake-up, the entry is gone, or belongs to later followers.
            if let Some(waiting) = shard.waiting.get_mut(&self.key)
                && Arc::ptr_eq(&waiting.notify, &self.notify)
            {
                waiting.followers -= 1;
                if waiting.followers == 0 {
                    shard.waiting.remove(&self.key);
                }
            }
        });
    }
}

//! Waiting for a record to be settled, without polling.
//!
//! A follower registers under the same lock under which it reads the record, so no change is missed.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::dedupe::{DedupeRecord, DedupeState, Lease, LeaseOwnerState};
use steadfast_core::key::RecordKey;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::MemoryStore;

/// Interval at which an owner in another process is checked, because its end causes no event.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The waiters for one record.
#[derive(Debug, Default)]
pub(super) struct RecordWaiters {
    notify: Arc<Notify>,
    followers: usize,
}

impl RecordWaiters {
    pub(super) fn into_notify(self) -> Arc<Notify> {
        self.notify
    }
}

/// The state that a follower found.
enum FollowerCheck<'a> {
    /// There is nothing to wait for.
    Settled,
    /// The record is in flight.
    Held { follower: MemoryFollower<'a>, changed: OwnedNotified, look_again: Option<Duration> },
}

/// A registered waiter. Deregisters on drop.
struct MemoryFollower<'a> {
    store: &'a MemoryStore,
    key: RecordKey,
    notify: Arc<Notify>,
}

impl MemoryStore {
    pub(super) async fn wait_until_settled(&self, key: RecordKey) {
        while let FollowerCheck::Held { follower, changed, look_again } = self.check_and_listen(key) {
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

    fn check_and_listen(&self, key: RecordKey) -> FollowerCheck<'_> {
        self.shards.in_shard_of(&key, |shard| {
            let Some(look_again) = shard.records.get(&key).and_then(|record| self.recheck_interval(record))
            else {
                return FollowerCheck::Settled;
            };
            let waiting = shard.waiting.entry(key).or_default();
            waiting.followers += 1;
            let notify = Arc::clone(&waiting.notify);
            // From here on, it receives every change, polled or not.
            let changed = Arc::clone(&notify).notified_owned();
            FollowerCheck::Held {
                follower: MemoryFollower { store: self, key, notify },
                changed,
                look_again: look_again.0,
            }
        })
    }

    /// Returns the interval for the next check if the record is in flight with a live owner.
    fn recheck_interval(&self, record: &DedupeRecord) -> Option<RecheckInterval> {
        let now = self.clock.now();
        let sight = self.sight(&record.owner);
        let in_flight = match record.state {
            DedupeState::Inflight => true,
            DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_)
            | DedupeState::Cancelled => false,
        };
        if !in_flight || record.is_expired(now) || !record.lease_holds(sight, now) {
            return None;
        }
        Some(RecheckInterval(match (sight, record.lease) {
            // The owner is in this process, so it lives as long as the follower.
            (LeaseOwnerState::Alive, _) if record.owner.process == self.process => None,
            (LeaseOwnerState::Time, Lease::Until(until)) => Some(until.since(now).min(OWNER_CHECK_INTERVAL)),
            (LeaseOwnerState::Alive | LeaseOwnerState::Gone | LeaseOwnerState::Time, _) => {
                Some(OWNER_CHECK_INTERVAL)
            }
        }))
    }
}

struct RecheckInterval(Option<Duration>);

impl Drop for MemoryFollower<'_> {
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

//! The followers of records: callers that wait until a record may be settled.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Lease, ProcessIdentity};
use steadfast_core::key::RecordKey;
use tokio::sync::Notify;

/// The owner of a record in flight, for its followers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordHolder {
    pub(crate) process: ProcessIdentity,
    pub(crate) lease: Lease,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) version: u64,
}

/// The followers, by record.
#[derive(Debug, Default)]
pub(crate) struct RecordFollowers {
    state: Mutex<State>,
    wake_requested: Condvar,
}

#[derive(Debug, Default)]
struct State {
    followed: HashMap<RecordKey, FollowedRecord>,
    wake_requested: bool,
    closed: bool,
}

#[derive(Debug)]
struct FollowedRecord {
    wake: Arc<Notify>,
    count: usize,
    /// The owner of the record at the last check.
    holder: Option<RecordHolder>,
}

/// A follower. Deregisters on drop.
pub(crate) struct SqliteFollower<'f> {
    followers: &'f RecordFollowers,
    key: RecordKey,
    wake: Arc<Notify>,
}

impl RecordFollowers {
    pub(crate) fn join(&self, key: RecordKey) -> SqliteFollower<'_> {
        let mut state = self.state.lock();
        let followed = state.followed.entry(key).or_insert_with(|| FollowedRecord {
            wake: Arc::new(Notify::new()),
            count: 0,
            holder: None,
        });
        followed.count += 1;
        SqliteFollower { followers: self, key, wake: followed.wake.clone() }
    }

    /// Wakes the followers of these keys.
    pub(crate) fn wake(&self, settled: &[RecordKey]) {
        if settled.is_empty() {
            return;
        }
        let state = self.state.lock();
        for followed in settled.iter().filter_map(|key| state.followed.get(key)) {
            followed.wake.notify_waiters();
        }
    }

    pub(crate) fn wake_all(&self) {
        for followed in self.state.lock().followed.values() {
            followed.wake.notify_waiters();
        }
    }

    /// Wakes the watcher, because there is a new listener.
    pub(crate) fn request_wake(&self) {
        self.state.lock().wake_requested = true;
        self.wake_requested.notify_one();
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.wake_requested.notify_one();
        self.wake_all();
    }

    /// Returns the followed records that were last seen in flight.
    pub(crate) fn in_flight(&self) -> Vec<(RecordKey, RecordHolder)> {
        let state = self.state.lock();
        state.followed.iter().filter_map(|(key, followed)| Some((*key, followed.holder.clone()?))).collect()
    }

    /// Records the owner of a record. Returns true if the watcher will check it.
    pub(crate) fn held_by(&self, key: RecordKey, holder: RecordHolder) -> bool {
        let mut state = self.state.lock();
        if let Some(followed) = state.followed.get_mut(&key) {
            followed.holder = Some(holder);
        }
        !state.closed
    }

    /// Sleeps until this time, or until there is something to do at all.
    pub(crate) fn sleep(&self, until: Option<Instant>, listened_to: impl Fn() -> bool) -> SleepOutcome {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return SleepOutcome::Closed;
            }
            if std::mem::take(&mut state.wake_requested) {
                return SleepOutcome::WakeRequested;
            }
            let needed = listened_to() || state.followed.values().any(|followed| followed.holder.is_some());
            match until {
                Some(until) if needed => {
                    if self.wake_requested.wait_until(&mut state, until).timed_out() {
                        return if state.closed { SleepOutcome::Closed } else { SleepOutcome::Enough };
                    }
                }
                Some(_) | None => self.wake_requested.wait(&mut state),
            }
        }
    }
}

pub(crate) enum SleepOutcome {
    Enough,
    WakeRequested,
    Closed,
}

impl SqliteFollower<'_> {
    /// Waits until the record may be settled. `find_holder` returns its owner, and runs after the follower has begun to
    /// listen.
    pub(crate) async fn settled(self, find_holder: impl AsyncFnOnce() -> Option<RecordHolder>) {
        let mut woken = pin!(self.wake.notified());
        woken.as_mut().enable();
        let Some(holder) = find_holder().await else { return };
        if self.followers.held_by(self.key, holder) {
            self.followers.request_wake();
            woken.await;
        }
    }
}

impl Drop for SqliteFollower<'_> {
    fn drop(&mut self) {
        let mut state = self.followers.state.lock();
        if let Some(followed) = state.followed.get_mut(&self.key) {
            followed.count -= 1;
            if followed.count == 0 {
                state.followed.remove(&self.key);
            }
        }
    }
}

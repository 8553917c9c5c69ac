//! Followers of records, and the thread that watches other processes for them.
//!
//! The writer wakes the followers of a record that this process writes. Writes of other processes cause no event
//! here. So while there are followers or listeners, one thread polls the change counter of the file, more often after
//! a recent change, and reads the followed records again. It also detects what does not change the file: that the
//! process of an owner has ended, or its lease expired. Without followers and listeners, it sleeps.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use steadfast_core::key::RecordKey;
use steadfast_store::StoreEvent;
use tokio::sync::Notify;

use crate::fault::SqliteFault;
use crate::shared::{FileConnection, SqliteShared, jittered};
use crate::view::{FileView, RecordHolder};

/// The followers, by record.
#[derive(Debug, Default)]
pub(crate) struct RecordFollowers {
    state: Mutex<State>,
    stirred: Condvar,
}

#[derive(Debug, Default)]
struct State {
    followed: HashMap<RecordKey, FollowedRecord>,
    stirred: bool,
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
    pub(crate) fn stir(&self) {
        self.state.lock().stirred = true;
        self.stirred.notify_one();
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.stirred.notify_one();
        self.wake_all();
    }

    /// Returns the followed records that were last seen in flight.
    fn held(&self) -> Vec<(RecordKey, RecordHolder)> {
        let state = self.state.lock();
        state.followed.iter().filter_map(|(key, followed)| Some((*key, followed.holder.clone()?))).collect()
    }

    /// Records the owner of a record. Returns true if the watcher will check it.
    fn held_by(&self, key: RecordKey, holder: RecordHolder) -> bool {
        let mut state = self.state.lock();
        if let Some(followed) = state.followed.get_mut(&key) {
            followed.holder = Some(holder);
        }
        !state.closed
    }

    /// Sleeps until this time, or until there is something to do at all.
    fn sleep(&self, until: Option<Instant>, listened_to: impl Fn() -> bool) -> SleepOutcome {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return SleepOutcome::Closed;
            }
            if std::mem::take(&mut state.stirred) {
                return SleepOutcome::Stirred;
            }
            let needed = listened_to() || state.followed.values().any(|followed| followed.holder.is_some());
            match until {
                Some(until) if needed => {
                    if self.stirred.wait_until(&mut state, until).timed_out() {
                        return if state.closed { SleepOutcome::Closed } else { SleepOutcome::Enough };
                    }
                }
                Some(_) | None => self.stirred.wait(&mut state),
            }
        }
    }
}

enum SleepOutcome {
    Enough,
    Stirred,
    Closed,
}

impl SqliteFollower<'_> {
    /// Waits until the record may be settled. `look` returns its owner, and runs after the follower has begun to
    /// listen.
    pub(crate) async fn settled(self, look: impl AsyncFnOnce() -> Option<RecordHolder>) {
        let mut woken = pin!(self.wake.notified());
        woken.as_mut().enable();
        let Some(holder) = look().await else { return };
        if self.followers.held_by(self.key, holder) {
            self.followers.stir();
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

/// Closes the followers when the watcher ends, even by a panic, so that no follower waits for it.
struct FollowersCloser<'f>(&'f RecordFollowers);

impl Drop for FollowersCloser<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The watcher thread.
pub(crate) struct FileWatcher {
    pub(crate) shared: Arc<SqliteShared>,
    pub(crate) link: FileConnection,
    /// The newest document that listeners know.
    pub(crate) document: u64,
}

/// Polling interval after a change.
const SOON: Duration = Duration::from_millis(1);
/// Longest polling interval while a follower waits for another process.
const FOR_OTHERS: Duration = Duration::from_millis(20);
/// Longest polling interval while only records of this process are followed, or there are only listeners.
const FOR_NEWS: Duration = Duration::from_millis(200);

/// The change counter of the file, with the connection that it belongs to.
type ChangeCounter = (u64, i64);

impl FileWatcher {
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        let _closing = FollowersCloser(&shared.followers);
        let listened_to = || shared.news.receiver_count() > 0;
        let (mut seen, mut interval) = (None, SOON);
        loop {
            let until = Instant::now() + jittered(interval);
            match shared.followers.sleep(Some(until), listened_to) {
                SleepOutcome::Closed => return,
                // A new follower read its record before it registered, and this thread may already have seen a change
                // in between.
                SleepOutcome::Stirred => (seen, interval) = (None, SOON),
                SleepOutcome::Enough => {}
            }
            let before = seen;
            let held = shared.followers.held();
            let longest = match held.iter().any(|(_, holder)| holder.process != shared.process) {
                true => FOR_OTHERS,
                false => FOR_NEWS,
            };
            if self.look(&mut seen, &held).is_err() {
                // The followers detect the error themselves.
                shared.followers.wake_all();
                self.link.forget();
                (seen, interval) = (None, FOR_NEWS);
                continue;
            }
            interval = if seen == before { (interval * 3 / 2).min(longest) } else { SOON };
        }
    }

    fn look(
        &mut self,
        seen: &mut Option<ChangeCounter>,
        held: &[(RecordKey, RecordHolder)],
    ) -> Result<(), SqliteFault> {
        let shared = self.shared.clone();
        let before = self.link.opened();
        self.link.connection(&shared)?;
        let opened = self.link.opened();
        if opened != before {
            self.document = 0;
        }
        let view = FileView { sql: self.link.connection(&shared)?, shared: &shared };
        let mut counter = view.statement("PRAGMA data_version")?;
        let now = (opened, counter.query_row([], |row| row.get(0))?);
        if *seen != Some(now) {
            for (key, holder) in held {
                if view.version(*key)? != Some(holder.version) {
                    match view.holder(*key)? {
                        Some(holder) => {
                            shared.followers.held_by(*key, holder);
                        }
                        None => shared.followers.wake(&[*key]),
                    }
                }
            }
            if shared.news.receiver_count() > 0 {
                // In portions until nothing is left, because the counter does not show the same change twice.
                loop {
                    let (names, newest) = view.documents_since(self.document)?;
                    if newest == self.document {
                        break;
                    }
                    self.document = newest;
                    for name in names {
                        shared.send_event(StoreEvent::DocumentChanged(name));
                    }
                }
            }
        }
        for (key, holder) in held {
            if !holder.holds(&shared) {
                shared.followers.wake(&[*key]);
            }
        }
        *seen = Some(now);
        Ok(())
    }
}

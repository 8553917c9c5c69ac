//! The thread that watches other processes for the followers of records.
//!
//! The writer wakes the followers of a record that this process writes. Writes of other processes cause no event
//! here. So while there are followers or listeners, one thread polls the change counter of the file, more often after
//! a recent change, and reads the followed records again. It also detects what does not change the file: that the
//! process of an owner has ended, or its lease expired. Without followers and listeners, it sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfast_core::key::RecordKey;
use steadfast_store::StoreEvent;

use crate::fault::SqliteFault;
use crate::followers::{RecordFollowers, RecordHolder, SleepOutcome};
use crate::shared::{FileConnection, SqliteShared, jittered};
use crate::view::FileView;

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
const AFTER_CHANGE: Duration = Duration::from_millis(1);
/// Longest polling interval while a follower waits for another process.
const FOR_OTHERS: Duration = Duration::from_millis(20);
/// Longest polling interval while only records of this process are followed, or there are only listeners.
const FOR_LISTENERS: Duration = Duration::from_millis(200);

/// The change counter of the file, with the connection that it belongs to.
type ChangeCounter = (u64, i64);

impl FileWatcher {
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        let _closing = FollowersCloser(&shared.followers);
        let has_receivers = || shared.events.receiver_count() > 0;
        let (mut last_change, mut interval) = (None, AFTER_CHANGE);
        loop {
            let until = Instant::now() + jittered(interval);
            match shared.followers.sleep(Some(until), has_receivers) {
                SleepOutcome::Closed => return,
                // A new follower read its record before it registered, and this thread may already have seen a change
                // in between.
                SleepOutcome::WakeRequested => (last_change, interval) = (None, AFTER_CHANGE),
                SleepOutcome::Enough => {}
            }
            let before = last_change;
            let in_flight = shared.followers.in_flight();
            let longest = match in_flight.iter().any(|(_, holder)| holder.process != shared.process) {
                true => FOR_OTHERS,
                false => FOR_LISTENERS,
            };
            if self.poll(&mut last_change, &in_flight).is_err() {
                // The followers detect the error themselves.
                shared.followers.wake_all();
                self.link.forget();
                (last_change, interval) = (None, FOR_LISTENERS);
                continue;
            }
            interval = if last_change == before { (interval * 3 / 2).min(longest) } else { AFTER_CHANGE };
        }
    }

    fn poll(
        &mut self,
        last_change: &mut Option<ChangeCounter>,
        in_flight: &[(RecordKey, RecordHolder)],
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
        if *last_change != Some(now) {
            for (key, holder) in in_flight {
                if view.version(*key)? != Some(holder.version) {
                    match view.holder(*key)? {
                        Some(holder) => {
                            shared.followers.held_by(*key, holder);
                        }
                        None => shared.followers.wake(&[*key]),
                    }
                }
            }
            if shared.events.receiver_count() > 0 {
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
        for (key, holder) in in_flight {
            if !holder.holds(&shared) {
                shared.followers.wake(&[*key]);
            }
        }
        *last_change = Some(now);
        Ok(())
    }
}

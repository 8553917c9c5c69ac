//! Those who wait for a record, and the thread that looks for them at what other processes do.
//!
//! Whoever waits for a record that this process writes is woken by its writer. What other processes write cannot be
//! felt, only seen: as long as somebody waits or listens, one thread compares the file's change counter, the sooner
//! after a change the more often, and reads again what is waited for. It also notices what changes nothing in the
//! file: that a holder's process has ended, or its time is up. When nobody waits or listens, it sleeps.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use steadfast_core::key::Key;
use steadfast_store::News;
use tokio::sync::Notify;

use crate::fault::Fault;
use crate::shared::{Link, Shared, jittered};
use crate::view::{Holder, View};

/// Who waits for which record.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    state: Mutex<State>,
    stirred: Condvar,
}

#[derive(Debug, Default)]
struct State {
    followed: HashMap<Key, Followed>,
    stirred: bool,
    closed: bool,
}

#[derive(Debug)]
struct Followed {
    wake: Arc<Notify>,
    count: usize,
    /// Who held the record at the last look.
    holder: Option<Holder>,
}

/// One who waits; leaves when dropped.
pub(crate) struct Follower<'f> {
    followers: &'f Followers,
    key: Key,
    wake: Arc<Notify>,
}

impl Followers {
    pub(crate) fn join(&self, key: Key) -> Follower<'_> {
        let mut state = self.state.lock();
        let followed = state.followed.entry(key).or_insert_with(|| Followed {
            wake: Arc::new(Notify::new()),
            count: 0,
            holder: None,
        });
        followed.count += 1;
        Follower { followers: self, key, wake: followed.wake.clone() }
    }

    /// Something is to be found under these keys.
    pub(crate) fn wake(&self, settled: &[Key]) {
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

    /// Somebody has begun to listen.
    pub(crate) fn stir(&self) {
        self.state.lock().stirred = true;
        self.stirred.notify_one();
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.stirred.notify_one();
        self.wake_all();
    }

    /// Those who wait for something that was seen in flight.
    fn held(&self) -> Vec<(Key, Holder)> {
        let state = self.state.lock();
        state.followed.iter().filter_map(|(key, followed)| Some((*key, followed.holder.clone()?))).collect()
    }

    /// Notes who holds a record; says whether anybody watches over it.
    fn held_by(&self, key: Key, holder: Holder) -> bool {
        let mut state = self.state.lock();
        if let Some(followed) = state.followed.get_mut(&key) {
            followed.holder = Some(holder);
        }
        !state.closed
    }

    /// Sleeps so long, or until there is something to do at all.
    fn sleep(&self, until: Option<Instant>, listened_to: impl Fn() -> bool) -> Slept {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Slept::Closed;
            }
            if std::mem::take(&mut state.stirred) {
                return Slept::Stirred;
            }
            let needed = listened_to() || state.followed.values().any(|followed| followed.holder.is_some());
            match until {
                Some(until) if needed => {
                    if self.stirred.wait_until(&mut state, until).timed_out() {
                        return if state.closed { Slept::Closed } else { Slept::Enough };
                    }
                }
                Some(_) | None => self.stirred.wait(&mut state),
            }
        }
    }
}

enum Slept {
    Enough,
    Stirred,
    Closed,
}

impl Follower<'_> {
    /// Waits until there may be something to find. `look` says who holds the record; it looks after we have begun to
    /// listen.
    pub(crate) async fn settled(self, look: impl AsyncFnOnce() -> Option<Holder>) {
        let mut woken = pin!(self.wake.notified());
        woken.as_mut().enable();
        let Some(holder) = look().await else { return };
        if self.followers.held_by(self.key, holder) {
            self.followers.stir();
            woken.await;
        }
    }
}

impl Drop for Follower<'_> {
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

/// Lets nobody wait for a watch that is gone, whatever ended it.
struct Closing<'f>(&'f Followers);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The watching thread.
pub(crate) struct Watch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Link,
    /// The newest document that listeners know of.
    pub(crate) document: u64,
}

/// How soon after a change the next one is looked for.
const SOON: Duration = Duration::from_millis(1);
/// How seldom it looks when somebody waits for another process.
const FOR_OTHERS: Duration = Duration::from_millis(20);
/// How seldom it looks when only records of this process are waited for, or somebody listens.
const FOR_NEWS: Duration = Duration::from_millis(200);

/// What the change counter of the file said, and to which connection.
type Counter = (u64, i64);

impl Watch {
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        let _closing = Closing(&shared.followers);
        let listened_to = || shared.news.receiver_count() > 0;
        let (mut seen, mut interval) = (None, SOON);
        loop {
            let until = Instant::now() + jittered(interval);
            match shared.followers.sleep(Some(until), listened_to) {
                Slept::Closed => return,
                // Whoever has just begun to wait looked before it said so, and what changed in between was perhaps
                // seen here already.
                Slept::Stirred => (seen, interval) = (None, SOON),
                Slept::Enough => {}
            }
            let before = seen;
            let held = shared.followers.held();
            let longest = match held.iter().any(|(_, holder)| holder.process != shared.process) {
                true => FOR_OTHERS,
                false => FOR_NEWS,
            };
            if self.look(&mut seen, &held).is_err() {
                // Whoever waits finds out for itself what is wrong.
                shared.followers.wake_all();
                self.link.forget();
                (seen, interval) = (None, FOR_NEWS);
                continue;
            }
            interval = if seen == before { (interval * 3 / 2).min(longest) } else { SOON };
        }
    }

    fn look(&mut self, seen: &mut Option<Counter>, held: &[(Key, Holder)]) -> Result<(), Fault> {
        let shared = self.shared.clone();
        let before = self.link.opened();
        self.link.connection(&shared)?;
        let opened = self.link.opened();
        if opened != before {
            self.document = 0;
        }
        let view = View { sql: self.link.connection(&shared)?, shared: &shared };
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
                // In portions, until nothing is left: the counter does not tell of the same change twice.
                loop {
                    let (names, newest) = view.documents_since(self.document)?;
                    if newest == self.document {
                        break;
                    }
                    self.document = newest;
                    for name in names {
                        shared.tell(News::DocumentChanged(name));
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

//! How many event streams there are: of each who follows them, and of all together.
//!
//! A stream keeps its connection for as long as it is followed, so streams may take only a part of all connections: calls and
//! everything else find room beside them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::id::ActorId;

use super::Principal;

/// Who follows an event stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follower {
    /// One who makes calls.
    Client(Principal),
    /// One who has the token of a viewer.
    Viewer(ActorId),
    /// The operator.
    Admin,
    /// Somebody on this machine, where no token is needed.
    Local,
}

/// The event streams of a listener. All clones are one.
#[derive(Clone, Debug)]
pub struct EventStreams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    of_one: usize,
    of_all: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    of_each: BTreeMap<Follower, usize>,
    all: usize,
}

/// As many event streams as allowed are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooManyStreams {
    /// Those of the same follower.
    OfFollower(usize),
    /// Those of all.
    OfAll(usize),
}

/// An event stream that is counted until this is dropped.
#[derive(Debug)]
pub struct StreamPermit {
    streams: Arc<Inner>,
    follower: Follower,
}

impl Default for EventStreams {
    /// Those of a listener with as many connections as usual.
    fn default() -> Self {
        Self::new(512, 1024)
    }
}

impl EventStreams {
    /// So many for each who follows, and for all together three quarters of this many connections.
    pub fn new(of_one: usize, connections: usize) -> Self {
        let of_all = (connections - connections / 4).max(1);
        Self(Arc::new(Inner { of_one: of_one.max(1), of_all, open: Mutex::default() }))
    }

    /// Counts one more.
    pub fn open(&self, follower: Follower) -> Result<StreamPermit, TooManyStreams> {
        let mut open = self.0.open.lock();
        if open.all >= self.0.of_all {
            return Err(TooManyStreams::OfAll(self.0.of_all));
        }
        let own = open.of_each.get(&follower).copied().unwrap_or(0);
        if own >= self.0.of_one {
            return Err(TooManyStreams::OfFollower(self.0.of_one));
        }
        open.of_each.insert(follower.clone(), own + 1);
        open.all += 1;
        drop(open);
        Ok(StreamPermit { streams: Arc::clone(&self.0), follower })
    }
}

impl TooManyStreams {
    /// When one may have ended.
    pub const LATER: Duration = Duration::from_secs(5);

    /// Says so, and what to do.
    pub fn message(self) -> String {
        match self {
            Self::OfFollower(most) => format!(
                "you follow {most} event streams, as many as allowed: close one, or try again later; the operator can raise gateway.streams_per_principal"
            ),
            Self::OfAll(most) => format!(
                "{most} event streams are followed, as many as allowed: try again later; the operator can raise gateway.connections"
            ),
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.all = open.all.saturating_sub(1);
        match open.of_each.get_mut(&self.follower) {
            Some(own) if *own > 1 => *own -= 1,
            Some(_) | None => _ = open.of_each.remove(&self.follower),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_so_many_and_all_together_leave_room_for_calls() {
        let streams = EventStreams::new(2, 5);
        let named = |name: &str| Follower::Client(Principal::new(ActorId::new(name).unwrap()));
        let first = streams.open(named("a")).unwrap();
        let second = streams.open(named("a")).unwrap();
        assert_eq!(streams.open(named("a")).unwrap_err(), TooManyStreams::OfFollower(2));
        let viewer = streams.open(Follower::Viewer(ActorId::new("a").unwrap())).unwrap();
        let _admin = streams.open(Follower::Admin).unwrap();
        assert_eq!(streams.open(Follower::Local).unwrap_err(), TooManyStreams::OfAll(4));
        drop(viewer);
        assert!(streams.open(named("a")).is_err());
        drop(first);
        assert!(streams.clone().open(named("a")).is_ok(), "and it is given back at once");
        drop(second);
        assert!(!streams.0.open.lock().of_each.contains_key(&named("a")), "nothing is kept of it");
    }
}

//! Limits of event streams: for each principal, and for all together.
//!
//! A stream keeps its connection for as long as its client likes, so streams may take only a part of all
//! connections. Calls and everything else use the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::id::ActorId;

use super::Principal;

/// A principal that follows event streams.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamFollower {
    /// A client that makes calls.
    Client(Principal),
    /// The holder of a viewer's token.
    Viewer(ActorId),
    /// The operator.
    Admin,
    /// Any client of this machine, where no token is needed.
    Local,
}

/// The open event streams of a listener. Clones share their counts.
#[derive(Clone, Debug)]
pub struct EventStreamLimiter(Arc<EventStreamLimiterInner>);

#[derive(Debug)]
struct EventStreamLimiterInner {
    of_one: usize,
    of_all: usize,
    open: Mutex<OpenStreamCounts>,
}

#[derive(Debug, Default)]
struct OpenStreamCounts {
    of_each: BTreeMap<StreamFollower, usize>,
    all: usize,
}

/// A limit of event streams is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooManyStreams {
    /// The limit of one principal.
    OfFollower(usize),
    /// The limit of all principals together.
    OfAll(usize),
}

/// A permit for one open event stream, released on drop.
#[derive(Debug)]
pub struct StreamPermit {
    streams: Arc<EventStreamLimiterInner>,
    follower: StreamFollower,
}

impl Default for EventStreamLimiter {
    /// Returns the limits of a listener with the default number of connections.
    fn default() -> Self {
        Self::new(512, 1024)
    }
}

impl EventStreamLimiter {
    /// Allows `of_one` streams to each principal, and to all together three quarters of this many connections.
    pub fn new(of_one: usize, connections: usize) -> Self {
        let of_all = (connections - connections / 4).max(1);
        Self(Arc::new(EventStreamLimiterInner { of_one: of_one.max(1), of_all, open: Mutex::default() }))
    }

    /// Opens one more stream, if the limits allow it.
    pub fn open(&self, follower: StreamFollower) -> Result<StreamPermit, TooManyStreams> {
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
    /// The value of `Retry-After`.
    pub const RETRY_AFTER_DELAY: Duration = Duration::from_secs(5);

    /// Returns a message that names the limit and how to raise it.
    pub fn message(self) -> String {
        match self {
            Self::OfFollower(most) => format!(
                "limit of {most} event streams reached: close one, or try again later; the operator can raise gateway.streams_per_principal"
            ),
            Self::OfAll(most) => format!(
                "total limit of {most} event streams reached: try again later; the operator can raise gateway.connections"
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
    fn each_principal_has_a_limit_and_all_together_leave_connections_for_calls() {
        let streams = EventStreamLimiter::new(2, 5);
        let named = |name: &str| StreamFollower::Client(Principal::new(ActorId::new(name).unwrap()));
        let first = streams.open(named("a")).unwrap();
        let second = streams.open(named("a")).unwrap();
        assert_eq!(streams.open(named("a")).unwrap_err(), TooManyStreams::OfFollower(2));
        let viewer = streams.open(StreamFollower::Viewer(ActorId::new("a").unwrap())).unwrap();
        let _admin = streams.open(StreamFollower::Admin).unwrap();
        assert_eq!(streams.open(StreamFollower::Local).unwrap_err(), TooManyStreams::OfAll(4));
        drop(viewer);
        assert!(streams.open(named("a")).is_err());
        drop(first);
        assert!(streams.clone().open(named("a")).is_ok(), "and it is given back at once");
        drop(second);
        assert!(!streams.0.open.lock().of_each.contains_key(&named("a")), "nothing is kept of it");
    }
}

//! What one client wants of servers that others use too: how much it hears of what they log, and what they watch for it.
//!
//! A server that is shared knows only what all of its clients want together. So each session knows its own part: to give it up
//! when it ends, and to ask for it again where another process of ours goes on with it.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use steadfast_mcp::raw::RawJson;

use crate::server::Wished;

/// What one client wants, by the places of the servers.
#[derive(Default)]
pub(super) struct Wishes(Mutex<BTreeMap<usize, Wished>>);

/// What became of a wish to watch something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// It was not watched by this client.
    New,
    /// It is watched by this client already.
    Already,
    /// This client watches as much as one may.
    TooMuch,
}

/// The most resources of one server that a client watches.
const MOST_WATCHED: usize = 1024;
/// The longest name of one.
const LONGEST_URI: usize = 8 << 10;

impl Wishes {
    /// It wants to hear of this resource.
    pub(super) fn watch(&self, at: usize, uri: &str, params: RawJson) -> Watch {
        let mut all = self.0.lock();
        let watched = &mut all.entry(at).or_default().watched;
        if watched.contains_key(uri) {
            return Watch::Already;
        }
        if watched.len() >= MOST_WATCHED || uri.len() > LONGEST_URI {
            return Watch::TooMuch;
        }
        watched.insert(uri.to_owned(), params);
        Watch::New
    }

    /// It does not want to hear of this resource any more. Says whether it did.
    pub(super) fn unwatch(&self, at: usize, uri: &str) -> bool {
        self.0.lock().get_mut(&at).is_some_and(|wished| wished.watched.remove(uri).is_some())
    }

    /// How much it wants to hear of what the server logs; gives what that was before.
    pub(super) fn level(&self, at: usize, params: Option<RawJson>) -> Option<RawJson> {
        let mut all = self.0.lock();
        std::mem::replace(&mut all.entry(at).or_default().log_level, params)
    }

    /// What it wanted before, of another process of ours.
    pub(super) fn restore(&self, at: usize, wished: Wished) {
        self.0.lock().insert(at, wished);
    }

    /// All that it wants of a server.
    pub(super) fn of(&self, at: usize) -> Wished {
        self.0.lock().get(&at).cloned().unwrap_or_default()
    }

    /// It wants nothing of this server any more.
    pub(super) fn give_up(&self, at: usize) -> Wished {
        self.0.lock().remove(&at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> RawJson {
        RawJson::parse("{}".to_owned()).unwrap()
    }

    #[test]
    fn a_client_watches_only_so_much_and_each_thing_once() {
        let wishes = Wishes::default();
        assert_eq!(wishes.watch(0, &"x".repeat(LONGEST_URI + 1), params()), Watch::TooMuch);
        for number in 0..MOST_WATCHED {
            assert_eq!(wishes.watch(0, &number.to_string(), params()), Watch::New);
        }
        assert_eq!(wishes.watch(0, "0", params()), Watch::Already);
        assert_eq!(wishes.watch(0, "one more", params()), Watch::TooMuch);
        assert_eq!(wishes.watch(1, "of another server", params()), Watch::New);
        assert!(wishes.unwatch(0, "0") && !wishes.unwatch(0, "0"));
        assert_eq!(wishes.watch(0, "one more", params()), Watch::New);
        assert_eq!(wishes.give_up(0).watched.len(), MOST_WATCHED);
        assert_eq!(wishes.of(0), Wished::default());
    }
}

//! The settings of one client at shared servers: its log level and its resource subscriptions.
//!
//! A shared server has only the combined settings of all its clients. Each session stores its own part, to remove it
//! when the session ends, and to apply it again after a restart.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use steadfast_mcp::raw::RawJson;

use crate::server::Wished;

/// The settings of one client, by server index.
#[derive(Default)]
pub(super) struct Wishes(Mutex<BTreeMap<usize, Wished>>);

/// The result of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The client did not watch the resource before.
    New,
    /// The client watches the resource already.
    Already,
    /// The client has reached its limit.
    TooMuch,
}

/// The maximum number of resources of one server that a client watches.
const MOST_WATCHED: usize = 1024;
/// The maximum length of a resource URI.
const LONGEST_URI: usize = 8 << 10;

impl Wishes {
    /// Adds a subscription.
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

    /// Removes a subscription. Returns true if there was one.
    pub(super) fn unwatch(&self, at: usize, uri: &str) -> bool {
        self.0.lock().get_mut(&at).is_some_and(|wished| wished.watched.remove(uri).is_some())
    }

    /// Sets the log level. Returns the previous one.
    pub(super) fn level(&self, at: usize, params: Option<RawJson>) -> Option<RawJson> {
        let mut all = self.0.lock();
        std::mem::replace(&mut all.entry(at).or_default().log_level, params)
    }

    /// Restores the settings of an earlier process.
    pub(super) fn restore(&self, at: usize, wished: Wished) {
        self.0.lock().insert(at, wished);
    }

    /// Returns all settings for a server.
    pub(super) fn of(&self, at: usize) -> Wished {
        self.0.lock().get(&at).cloned().unwrap_or_default()
    }

    /// Removes all settings for a server.
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

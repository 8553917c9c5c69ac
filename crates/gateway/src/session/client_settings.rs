//! The settings of one client at shared servers: its log level and its resource subscriptions.
//!
//! A shared server has only the combined settings of all its clients. Each session stores its own part, to remove it
//! when the session ends, and to apply it again after a restart.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use steadfast_mcp::json_text::JsonText;

use crate::servers::upstream::UpstreamPreferences;

/// The settings of one client, by server index.
#[derive(Default)]
pub(super) struct SessionSettings(Mutex<BTreeMap<usize, UpstreamPreferences>>);

/// The result of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchResult {
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

impl SessionSettings {
    /// Adds a subscription.
    pub(super) fn watch(&self, at: usize, uri: &str, params: JsonText) -> WatchResult {
        let mut all = self.0.lock();
        let watched = &mut all.entry(at).or_default().watched;
        if watched.contains_key(uri) {
            return WatchResult::Already;
        }
        if watched.len() >= MOST_WATCHED || uri.len() > LONGEST_URI {
            return WatchResult::TooMuch;
        }
        watched.insert(uri.to_owned(), params);
        WatchResult::New
    }

    /// Removes a subscription. Returns true if there was one.
    pub(super) fn unwatch(&self, at: usize, uri: &str) -> bool {
        self.0.lock().get_mut(&at).is_some_and(|preferences| preferences.watched.remove(uri).is_some())
    }

    /// Sets the log level. Returns the previous one.
    pub(super) fn level(&self, at: usize, params: Option<JsonText>) -> Option<JsonText> {
        let mut all = self.0.lock();
        std::mem::replace(&mut all.entry(at).or_default().log_level, params)
    }

    /// Restores the settings of an earlier process.
    pub(super) fn restore(&self, at: usize, preferences: UpstreamPreferences) {
        self.0.lock().insert(at, preferences);
    }

    /// Returns all settings for a server.
    pub(super) fn of(&self, at: usize) -> UpstreamPreferences {
        self.0.lock().get(&at).cloned().unwrap_or_default()
    }

    /// Removes all settings for a server.
    pub(super) fn give_up(&self, at: usize) -> UpstreamPreferences {
        self.0.lock().remove(&at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> JsonText {
        JsonText::parse("{}".to_owned()).unwrap()
    }

    #[test]
    fn the_subscriptions_of_a_client_are_bounded_and_unique() {
        let settings = SessionSettings::default();
        assert_eq!(settings.watch(0, &"x".repeat(LONGEST_URI + 1), params()), WatchResult::TooMuch);
        for number in 0..MOST_WATCHED {
            assert_eq!(settings.watch(0, &number.to_string(), params()), WatchResult::New);
        }
        assert_eq!(settings.watch(0, "0", params()), WatchResult::Already);
        assert_eq!(settings.watch(0, "one more", params()), WatchResult::TooMuch);
        assert_eq!(settings.watch(1, "of another server", params()), WatchResult::New);
        assert!(settings.unwatch(0, "0") && !settings.unwatch(0, "0"));
        assert_eq!(settings.watch(0, "one more", params()), WatchResult::New);
        assert_eq!(settings.give_up(0).watched.len(), MOST_WATCHED);
        assert_eq!(settings.of(0), UpstreamPreferences::default());
    }
}

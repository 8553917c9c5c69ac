//! Tests of the guarantees of keys and canonical forms, one test for each.

mod canonical;
mod keys;

use super::*;
use crate::json::{Document, Kind, Limits, Value};
use crate::policy::StringRule;

/// Parses a text that must be JSON and passes it to a function.
fn with_value<T>(text: &str, use_it: impl FnOnce(Value<'_>) -> T) -> T {
    use_it(Document::parse(text.as_bytes(), Limits::ENVELOPE).unwrap().root())
}

fn canonical(text: &str, strings: StringRule) -> String {
    with_value(text, |value| {
        Canonicalizer::default().write(value, Form { strings, volatile: &[] }).to_owned()
    })
}

#[test]
fn the_caller_s_key_counts_before_the_hook_s_and_that_before_none() {
    assert_eq!(GivenKey::choose(Some("a"), Some("b")), GivenKey::ByCaller("a"));
    assert_eq!(GivenKey::choose(Some("a"), None), GivenKey::ByCaller("a"));
    assert_eq!(GivenKey::choose(None, Some("b")), GivenKey::ByHook("b"));
    assert_eq!(GivenKey::choose(None, None), GivenKey::None);
    assert_eq!(GivenKey::ByCaller("a").explicit(), Some("a"));
    assert_eq!(GivenKey::ByHook("b").explicit(), Some("b"));
    assert_eq!(GivenKey::None.explicit(), None);
}

#[test]
fn the_mode_is_the_requested_one_or_follows_the_key() {
    for given in [GivenKey::ByCaller("a"), GivenKey::ByHook("b"), GivenKey::None] {
        for mode in [DedupeMode::Enforced, DedupeMode::BestEffort, DedupeMode::Disabled] {
            assert_eq!(DedupeMode::resolve(Some(mode), given), mode);
        }
    }
    assert_eq!(DedupeMode::resolve(None, GivenKey::ByCaller("a")), DedupeMode::Enforced);
    assert_eq!(DedupeMode::resolve(None, GivenKey::ByHook("b")), DedupeMode::Enforced);
    assert_eq!(DedupeMode::resolve(None, GivenKey::None), DedupeMode::Disabled);
}

#[test]
fn modes_are_read_by_their_wire_names_and_enabled_means_enforced() {
    let read = |text: &str| serde_json::from_str::<DedupeMode>(text).ok();
    assert_eq!(read("\"enforced\""), Some(DedupeMode::Enforced));
    assert_eq!(read("\"enabled\""), Some(DedupeMode::Enforced));
    assert_eq!(read("\"bestEffort\""), Some(DedupeMode::BestEffort));
    assert_eq!(read("\"disabled\""), Some(DedupeMode::Disabled));
    assert_eq!(read("\"sometimes\""), None);
    assert_eq!(serde_json::to_string(&DedupeMode::Enforced).unwrap(), "\"enforced\"");
}

//! Tests of the guarantees of keys and canonical forms, one test for each.

mod canonical;
mod keys;

use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue};

use super::*;
use crate::policy::StringRule;

/// Parses a text that must be JSON and passes it to a function.
fn with_value<T>(text: &str, use_it: impl FnOnce(JsonValue<'_>) -> T) -> T {
    use_it(JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).unwrap().root())
}

fn canonical(text: &str, strings: StringRule) -> String {
    with_value(text, |value| {
        Canonicalizer::default().write(value, CanonicalForm { strings, volatile: &[] }).to_owned()
    })
}

#[test]
fn the_caller_s_key_counts_before_the_hook_s_and_that_before_none() {
    assert_eq!(KeySource::choose(Some("a"), Some("b")), KeySource::ByCaller("a"));
    assert_eq!(KeySource::choose(Some("a"), None), KeySource::ByCaller("a"));
    assert_eq!(KeySource::choose(None, Some("b")), KeySource::ByHook("b"));
    assert_eq!(KeySource::choose(None, None), KeySource::None);
    assert_eq!(KeySource::ByCaller("a").explicit(), Some("a"));
    assert_eq!(KeySource::ByHook("b").explicit(), Some("b"));
    assert_eq!(KeySource::None.explicit(), None);
}

#[test]
fn the_mode_is_the_requested_one_or_follows_the_key() {
    for given in [KeySource::ByCaller("a"), KeySource::ByHook("b"), KeySource::None] {
        for mode in [DedupeMode::Enforced, DedupeMode::BestEffort, DedupeMode::Disabled] {
            assert_eq!(DedupeMode::resolve(Some(mode), given), mode);
        }
    }
    assert_eq!(DedupeMode::resolve(None, KeySource::ByCaller("a")), DedupeMode::Enforced);
    assert_eq!(DedupeMode::resolve(None, KeySource::ByHook("b")), DedupeMode::Enforced);
    assert_eq!(DedupeMode::resolve(None, KeySource::None), DedupeMode::Disabled);
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

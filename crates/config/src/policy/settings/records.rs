//! What counts as the same call, and how long its answer stands.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::policy::{
    AfterUnknown, CacheFailures, ComputedKeys, Conflict, KeyScope, OnStoreFailure, StringRule,
};

use super::super::Draft;
use super::{DAY, MODES, lifetime, span_or_zero};
use crate::kind::{Kind, ListOf, Size, Span, Text, Words};
use crate::node::Node;
use crate::setting::{Context, Setting, setting};

pub(super) fn dedupe() -> Vec<Setting<Draft>> {
    const ON_FAILURE: Words<OnStoreFailure> =
        Words(&[("go_on", OnStoreFailure::GoOn), ("refuse", OnStoreFailure::Refuse)]);
    vec![
        setting!(Draft, "dedupe.mode", modes.dedupe, MODES, "How far the recognition of duplicates may go."),
        setting!(
            Draft,
            "dedupe.computed_keys",
            dedupe.computed_keys,
            Words(&[("derive", ComputedKeys::Derive), ("never", ComputedKeys::Never)]),
            "Whether a key is computed for calls that bring none."
        ),
        setting!(
            Draft,
            "dedupe.conflict",
            dedupe.conflict,
            Words(&[("reject", Conflict::Reject), ("separate", Conflict::Separate)]),
            "A key that comes again with other parameters: an error, or another call."
        ),
        setting!(
            Draft,
            "dedupe.cache_failures",
            dedupe.cache_failures,
            Words(&[
                ("terminal", CacheFailures::Terminal),
                ("all", CacheFailures::All),
                ("none", CacheFailures::None)
            ]),
            "Which failures are given again to the same key."
        ),
        setting!(
            Draft,
            "dedupe.after_unknown",
            dedupe.after_unknown,
            Words(&[("tell_once", AfterUnknown::TellOnce), ("hold", AfterUnknown::Hold)]),
            "A call without key after an unknown outcome: told until that arrived, or until a \
             person settles it."
        ),
        setting!(
            Draft,
            "dedupe.scope",
            dedupe.scope,
            Words(&[("session", KeyScope::Session), ("global", KeyScope::Global)]),
            "Whose calls share a computed key. Global is heeded for read-only tools only."
        ),
        setting!(
            Draft,
            "dedupe.strings",
            dedupe.strings,
            Words(&[
                ("by_class", None),
                ("exact", Some(StringRule::Exact)),
                ("trim", Some(StringRule::Trim)),
                ("collapse", Some(StringRule::Collapse))
            ]),
            "How strings are compared when a key is computed; by class means collapse for \
             read-only tools and exact for others."
        ),
        setting!(
            Draft,
            "dedupe.volatile",
            dedupe.volatile,
            ListOf { item: BoxedText, least: 0, most: 64 },
            "Top-level parameters that do not make a call different."
        ),
        setting!(
            Draft,
            "dedupe.keep_done",
            dedupe.keep.done,
            lifetime(),
            "How long an answer is kept. Raising it costs room in the store."
        ),
        setting!(Draft, "dedupe.keep_failed", dedupe.keep.failed, lifetime(), "How long a failure is kept."),
        setting!(
            Draft,
            "dedupe.keep_open",
            dedupe.keep.open,
            lifetime(),
            "How long a record in flight, or with an unknown outcome, is kept."
        ),
        setting!(
            Draft,
            "dedupe.lease",
            dedupe.keep.lease,
            Span(Duration::from_secs(1)..=DAY),
            "How long a holder on another machine may be silent before it counts as gone."
        ),
        setting!(
            Draft,
            "dedupe.double_dispatch",
            dedupe.double_dispatch,
            span_or_zero(),
            "Identical calls without key this close together are one dispatched twice. Raising it \
             swallows calls that were meant as two; with 0s none are taken for one."
        ),
        setting!(
            Draft,
            "dedupe.undelivered",
            dedupe.undelivered,
            span_or_zero(),
            "How long an answer that did not arrive waits for a resend without key."
        ),
        setting!(
            Draft,
            "dedupe.after_telling",
            dedupe.after_telling,
            span_or_zero(),
            "After an unknown outcome was told, a repeat without key runs no sooner than this."
        ),
        setting!(
            Draft,
            "dedupe.on_store_failure",
            dedupe.on_store_failure,
            ON_FAILURE,
            "Calls of class unknown when the store is down."
        ),
        setting!(
            Draft,
            "dedupe.explicit_key_on_store_failure",
            dedupe.explicit_key_on_store_failure,
            ON_FAILURE,
            "Calls with an explicit key when the store is down, whatever their class."
        ),
        setting!(
            Draft,
            "dedupe.largest_output",
            dedupe.largest_output,
            Size(0..=1 << 30),
            "Answers larger than this are not kept; a duplicate is told so. Raising it costs \
             memory and room in the store."
        ),
    ]
}

/// A short text, boxed as the policy wants it.
struct BoxedText;

impl Kind<Box<str>> for BoxedText {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Box<str>> {
        Text { most: 256 }.read(node, cx).map(|text: Arc<str>| Box::from(&*text))
    }

    fn show(&self, value: &Box<str>) -> String {
        format!("{value:?}")
    }

    fn takes(&self) -> String {
        "a name".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "minLength": 1, "maxLength": 256 })
    }
}

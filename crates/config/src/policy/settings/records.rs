//! Settings of records: which calls are the same, how long results are kept, and when an unknown outcome is settled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::policy::{
    AfterUnknown, CacheFailures, ComputedKeys, Conflict, Effects, KeyScope, OnStoreFailure, StringRule,
};

use super::super::Draft;
use super::{DAY, MODES, lifetime, span, span_or_zero};
use crate::kind::{Flag, Kind, ListOf, Size, Span, Text, Words};
use crate::node::Node;
use crate::setting::{Context, Setting, setting};

pub(super) fn dedupe() -> Vec<Setting<Draft>> {
    const ON_FAILURE: Words<OnStoreFailure> =
        Words(&[("go_on", OnStoreFailure::GoOn), ("refuse", OnStoreFailure::Refuse)]);
    vec![
        setting!(Draft, "dedupe.mode", modes.dedupe, MODES, "The mode of deduplication."),
        setting!(
            Draft,
            "dedupe.computed_keys",
            dedupe.computed_keys,
            Words(&[("derive", ComputedKeys::Derive), ("never", ComputedKeys::Never)]),
            "An idempotency key for calls that bring none: computed from the call, or none."
        ),
        setting!(
            Draft,
            "dedupe.conflict",
            dedupe.conflict,
            Words(&[("reject", Conflict::Reject), ("separate", Conflict::Separate)]),
            "A key that is used again with other parameters: an error, or another call."
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
            "Which failures are replayed for the same key."
        ),
        setting!(
            Draft,
            "dedupe.after_unknown",
            dedupe.after_unknown,
            Words(&[("tell_once", AfterUnknown::TellOnce), ("hold", AfterUnknown::Hold)]),
            "A call without a key after an equal one with an unknown outcome: tell_once runs it after the caller was \
             informed and has checked or waited, hold only after an operator has resolved the outcome."
        ),
        setting!(
            Draft,
            "dedupe.scope",
            dedupe.scope,
            Words(&[("session", KeyScope::Session), ("global", KeyScope::Global)]),
            "The scope of computed keys. Global applies to read-only tools only."
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
            "How strings are compared when a key is computed; by_class means collapse for read-only tools and exact \
             for others."
        ),
        setting!(
            Draft,
            "dedupe.volatile",
            dedupe.volatile,
            ListOf { item: BoxedText, least: 0, most: 64 },
            "Top-level parameters that are ignored when calls are compared."
        ),
        setting!(
            Draft,
            "dedupe.keep_done",
            dedupe.keep.done,
            lifetime(),
            "How long a result is stored. Raising it costs space in the store."
        ),
        setting!(
            Draft,
            "dedupe.keep_failed",
            dedupe.keep.failed,
            lifetime(),
            "How long a failure is stored."
        ),
        setting!(
            Draft,
            "dedupe.keep_open",
            dedupe.keep.open,
            lifetime(),
            "How long a record in flight, or with an unknown outcome, is stored."
        ),
        setting!(
            Draft,
            "dedupe.lease",
            dedupe.keep.lease,
            Span(Duration::from_secs(1)..=DAY),
            "How long a lease holder on another machine may be silent before it counts as gone."
        ),
        setting!(
            Draft,
            "dedupe.double_dispatch",
            dedupe.double_dispatch,
            Flag,
            "True: a call without a key that arrives before an equal one is answered is the same call, dispatched \
             twice, and gets the same response. With false it runs if that response was delivered before it looks \
             for one."
        ),
        setting!(
            Draft,
            "dedupe.undelivered",
            dedupe.undelivered,
            span_or_zero(),
            "How long an undelivered result is kept for a resend without a key."
        ),
        setting!(
            Draft,
            "dedupe.after_telling",
            dedupe.after_telling,
            span_or_zero(),
            "After the final answer that an outcome is unknown was delivered, a repeat without a key runs no sooner \
             than this, unless a read-only call to the same server succeeded in between. Raising it delays agents \
             that cannot check; lowering it gives them less time to."
        ),
        setting!(
            Draft,
            "dedupe.late_after",
            dedupe.late_after,
            span(),
            "A result that took longer than this may not have reached its caller and does not count as delivered: \
             the next equal call without a key gets it again. Keep it below the client's timeout; raised above it, a \
             resend runs again."
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
            "Results larger than this are not stored, and a duplicate gets an error that says so. Raising it costs \
             memory and space in the store."
        ),
    ]
}

pub(super) fn settling() -> Vec<Setting<Draft>> {
    vec![
        setting!(
            Draft,
            "settling.effects",
            settling.effects,
            Words(&[("local", Effects::Local), ("remote", Effects::Remote)]),
            "Where calls to a server process on this machine take effect. With local, nothing can take effect once \
             the process and everything that it started are gone. With remote, work that it passed on may continue \
             for as long as `settling.settle`. Local is wrong for a server that calls an API or a database \
             elsewhere: a repeat may then run before the first call takes effect."
        ),
        setting!(
            Draft,
            "settling.linger",
            settling.linger,
            span_or_zero(),
            "How long a call with an unknown outcome may still take effect if its end cannot be observed, as with a \
             remote server. Raising it makes callers wait longer before they can check and call again; lowered below \
             the time that the server takes, a repeat may run beside the first call."
        ),
        setting!(
            Draft,
            "settling.settle",
            settling.settle,
            span_or_zero(),
            "How long work that a tool passed on may still take effect, counted from an error response that leaves \
             the outcome open or from the end of its process. Raising it makes callers wait longer before they can \
             check and call again."
        ),
        setting!(
            Draft,
            "settling.grace",
            settling.grace,
            span_or_zero(),
            "How long a server process may take to respond after a call was cancelled; then it counts as hung, gets \
             no further calls and is replaced. Raising it makes callers wait longer for a process that hangs; \
             lowering it ends processes that are only slow."
        ),
        setting!(
            Draft,
            "settling.drain",
            settling.drain,
            span_or_zero(),
            "How long other calls in a hung server process may take to finish before it is killed. \
             Raising it gives them more time, and keeps the caller of the hung call waiting for as \
             long."
        ),
    ]
}

/// A short text, boxed as the policy needs it.
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

//! Settings of records: which calls are the same, how long results are kept, and when an unknown outcome is settled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::policy::{
    ComputedKeyPolicy, EffectLocation, FailureReplayPolicy, KeyConflictPolicy, KeyScope, StoreFailurePolicy,
    StringRule, UnknownOutcomePolicy,
};

use super::super::PolicyDraft;
use super::{DAY, MODES, lifetime, span, span_or_zero};
use crate::kind::{BoolKind, DurationKind, ListKind, SettingKind, Size, Text, WordKind};
use crate::node::ConfigNode;
use crate::read_context::ReadContext;
use crate::setting::{Setting, setting};

pub(super) fn dedupe() -> Vec<Setting<PolicyDraft>> {
    const ON_FAILURE: WordKind<StoreFailurePolicy> =
        WordKind(&[("go_on", StoreFailurePolicy::GoOn), ("refuse", StoreFailurePolicy::Refuse)]);
    vec![
        setting!(PolicyDraft, "dedupe.mode", modes.dedupe, MODES, "The mode of deduplication."),
        setting!(
            PolicyDraft,
            "dedupe.computed_keys",
            dedupe.computed_keys,
            WordKind(&[("derive", ComputedKeyPolicy::Derive), ("never", ComputedKeyPolicy::Never)]),
            "An idempotency key for calls that bring none: computed from the call, or none."
        ),
        setting!(
            PolicyDraft,
            "dedupe.conflict",
            dedupe.conflict,
            WordKind(&[("reject", KeyConflictPolicy::Reject), ("separate", KeyConflictPolicy::Separate)]),
            "A key that is used again with other parameters: an error, or another call."
        ),
        setting!(
            PolicyDraft,
            "dedupe.cache_failures",
            dedupe.cache_failures,
            WordKind(&[
                ("terminal", FailureReplayPolicy::Terminal),
                ("all", FailureReplayPolicy::All),
                ("none", FailureReplayPolicy::None)
            ]),
            "Which failures are replayed for the same key."
        ),
        setting!(
            PolicyDraft,
            "dedupe.after_unknown",
            dedupe.after_unknown,
            WordKind(&[("tell_once", UnknownOutcomePolicy::TellOnce), ("hold", UnknownOutcomePolicy::Hold)]),
            "A call without a key after an equal one with an unknown outcome: tell_once runs it after the caller was \
             informed and has checked or waited, hold only after an operator has resolved the outcome."
        ),
        setting!(
            PolicyDraft,
            "dedupe.scope",
            dedupe.scope,
            WordKind(&[("session", KeyScope::Session), ("global", KeyScope::Global)]),
            "The scope of computed keys. Global applies to read-only tools only."
        ),
        setting!(
            PolicyDraft,
            "dedupe.strings",
            dedupe.strings,
            WordKind(&[
                ("by_class", None),
                ("exact", Some(StringRule::Exact)),
                ("trim", Some(StringRule::Trim)),
                ("collapse", Some(StringRule::Collapse))
            ]),
            "How strings are compared when a key is computed; by_class means collapse for read-only tools and exact \
             for others."
        ),
        setting!(
            PolicyDraft,
            "dedupe.volatile",
            dedupe.volatile,
            ListKind { item: BoxedText, least: 0, most: 64 },
            "Top-level parameters that are ignored when calls are compared."
        ),
        setting!(
            PolicyDraft,
            "dedupe.keep_done",
            dedupe.keep.done,
            lifetime(),
            "How long a result is stored. Raising it costs space in the store."
        ),
        setting!(
            PolicyDraft,
            "dedupe.keep_failed",
            dedupe.keep.failed,
            lifetime(),
            "How long a failure is stored."
        ),
        setting!(
            PolicyDraft,
            "dedupe.keep_open",
            dedupe.keep.open,
            lifetime(),
            "How long a record in flight, or with an unknown outcome, is stored."
        ),
        setting!(
            PolicyDraft,
            "dedupe.lease",
            dedupe.keep.lease,
            DurationKind(Duration::from_secs(1)..=DAY),
            "How long a lease holder on another machine may be silent before it counts as gone."
        ),
        setting!(
            PolicyDraft,
            "dedupe.double_dispatch",
            dedupe.double_dispatch,
            BoolKind,
            "True: a call without a key that arrives before an equal one is answered is the same call, dispatched \
             twice, and gets the same response. With false it runs if that response was delivered before it looks \
             for one."
        ),
        setting!(
            PolicyDraft,
            "dedupe.undelivered",
            dedupe.undelivered,
            span_or_zero(),
            "How long an undelivered result is kept for a resend without a key."
        ),
        setting!(
            PolicyDraft,
            "dedupe.after_telling",
            dedupe.after_telling,
            span_or_zero(),
            "After the final answer that an outcome is unknown was delivered, a repeat without a key runs no sooner \
             than this, unless a read-only call to the same server succeeded in between. Raising it delays agents \
             that cannot check; lowering it gives them less time to."
        ),
        setting!(
            PolicyDraft,
            "dedupe.late_after",
            dedupe.late_after,
            span(),
            "A result that took longer than this may not have reached its caller and does not count as delivered: \
             the next equal call without a key gets it again. Keep it below the client's timeout; raised above it, a \
             resend runs again."
        ),
        setting!(
            PolicyDraft,
            "dedupe.on_store_failure",
            dedupe.on_store_failure,
            ON_FAILURE,
            "What happens to calls of class unknown while the store is down."
        ),
        setting!(
            PolicyDraft,
            "dedupe.explicit_key_on_store_failure",
            dedupe.explicit_key_on_store_failure,
            ON_FAILURE,
            "Calls with an explicit key when the store is down, whatever their class."
        ),
        setting!(
            PolicyDraft,
            "dedupe.largest_output",
            dedupe.largest_output,
            Size(0..=1 << 30),
            "Results larger than this are not stored, and a duplicate gets an error that says so. Raising it costs \
             memory and space in the store."
        ),
    ]
}

pub(super) fn settling() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(
            PolicyDraft,
            "settling.effects",
            settling.effects,
            WordKind(&[("local", EffectLocation::Local), ("remote", EffectLocation::Remote)]),
            "Where calls to a server process on this machine take effect. With local, nothing can take effect once \
             the process and everything that it started are gone. With remote, work that it passed on may continue \
             for as long as `settling.settle`. Local is wrong for a server that calls an API or a database \
             elsewhere: a repeat may then run before the first call takes effect."
        ),
        setting!(
            PolicyDraft,
            "settling.linger",
            settling.linger,
            span_or_zero(),
            "How long a call with an unknown outcome may still take effect if its end cannot be observed, as with a \
             remote server. Raising it makes callers wait longer before they can check and call again; lowered below \
             the time that the server takes, a repeat may run beside the first call."
        ),
        setting!(
            PolicyDraft,
            "settling.settle",
            settling.settle,
            span_or_zero(),
            "How long work that a tool passed on may still take effect, counted from an error response that leaves \
             the outcome open or from the end of its process. Raising it makes callers wait longer before they can \
             check and call again."
        ),
        setting!(
            PolicyDraft,
            "settling.grace",
            settling.grace,
            span_or_zero(),
            "How long a server process may take to respond after a call was cancelled; then it counts as hung, gets \
             no further calls and is replaced. Raising it makes callers wait longer for a process that hangs; \
             lowering it ends processes that are only slow."
        ),
        setting!(
            PolicyDraft,
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

impl SettingKind<Box<str>> for BoxedText {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Box<str>> {
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

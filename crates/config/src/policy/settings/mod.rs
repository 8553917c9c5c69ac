//! The table of settings that can be written for everything, a class, a domain, a server or a tool.

mod attempts;
mod judgement;
mod records;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, ApprovalTrigger, ArgumentCheck, DangerousCommandPolicy, EnforcementMode,
    MechanismModes, SilencePolicy, ToolClass,
};
use steadfast_core::template::KeyTemplate;
use steadfast_core::verification::{VerificationCall, VerificationMethod};

use super::PolicyDraft;
use crate::kind::{BoolKind, Count, DurationKind, OptionalKind, SettingKind, Size, Text, WordKind};
use crate::node::{ConfigNode, RawNode};
use crate::read_context::ReadContext;
use crate::setting::{Setting, setting};

/// Returns the table. General settings come before the particular ones that they decide too.
pub(crate) fn settings() -> &'static [Setting<PolicyDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<PolicyDraft>>> = LazyLock::new(|| {
        let sections = [
            general(),
            attempts::retry(),
            records::dedupe(),
            records::settling(),
            attempts::breaker(),
            attempts::limits(),
            judgement::guard(),
            judgement::trust(),
            judgement::faults(),
        ];
        sections.into_iter().flatten().collect()
    });
    &SETTINGS
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A duration above zero.
const fn span() -> DurationKind {
    DurationKind(MS..=DAY)
}

/// A duration that may be zero.
const fn span_or_zero() -> DurationKind {
    DurationKind(Duration::ZERO..=DAY)
}

/// A retention period.
const fn lifetime() -> DurationKind {
    DurationKind(MS..=YEAR)
}

const fn count() -> Count {
    Count(1..=1_000_000)
}

const MODES: WordKind<EnforcementMode> = WordKind(&[
    ("off", EnforcementMode::Off),
    ("shadow", EnforcementMode::Shadow),
    ("enforce", EnforcementMode::Enforce),
]);

const CLASSES: WordKind<ToolClass> = WordKind(&[
    ("read_only", ToolClass::ReadOnly),
    ("idempotent", ToolClass::Idempotent),
    ("mutating", ToolClass::Mutating),
    ("unknown", ToolClass::Unknown),
]);

/// Returns the name of a class in files.
pub(crate) fn class_name(class: ToolClass) -> &'static str {
    CLASSES.0.iter().find(|(_, known)| *known == class).map_or("", |(name, _)| name)
}

/// Returns the classes with their names.
pub(crate) fn classes() -> impl Iterator<Item = (&'static str, ToolClass)> {
    CLASSES.0.iter().copied()
}

/// Index of `class` in the table. The class decides which rules apply.
pub(crate) const CLASS: usize = 0;

fn general() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(
            PolicyDraft,
            "class",
            class,
            CLASSES,
            "The effect of running the tool twice: none (read_only), none beyond the first (idempotent), another \
             effect (mutating). It overrides the annotations from the server."
        )
        .only_for_tools(),
        setting!(
            PolicyDraft,
            "mode",
            mode,
            MODES,
            "The mode of every mechanism: off does nothing, shadow decides and only reports, enforce acts. The mode \
             of one mechanism (`retry.mode` and so on) overrides it within the same rule."
        )
        .also(|draft| draft.modes = MechanismModes::all(draft.mode))
        .decides(&["dedupe.mode", "retry.mode", "breaker.mode", "guard.mode", "trust.mode"])
        .shown_if(|_| false),
        setting!(
            PolicyDraft,
            "timeout",
            time.attempt,
            span(),
            "How long one attempt may run without a sign of progress before it times out. Raising it keeps agents \
             waiting longer for a dead tool."
        )
        .also(|draft| draft.time.silence = SilencePolicy::Timeout)
        .shown_if(|draft| draft.time.silence == SilencePolicy::Timeout)
        .excludes(&["stuck_after"]),
        setting!(
            PolicyDraft,
            "stuck_after",
            time.attempt,
            span(),
            "How long one attempt may run without a sign of progress before the watchdog ends it as stuck. The \
             gateway uses it instead of `timeout` by default."
        )
        .also(|draft| draft.time.silence = SilencePolicy::Stuck)
        .shown_if(|draft| draft.time.silence == SilencePolicy::Stuck),
        setting!(
            PolicyDraft,
            "total_timeout",
            time.total,
            span(),
            "How long one call may take in total, however much progress it reports."
        ),
        setting!(
            PolicyDraft,
            "last_retry",
            time.last_retry,
            OptionalKind(span_or_zero()),
            "No retry starts later than this after the first attempt. Raising it beyond the client's timeout makes \
             retries whose result is not read."
        ),
        setting!(
            PolicyDraft,
            "answer_by",
            time.answer_by,
            OptionalKind(span()),
            "Time after which the caller gets the response that the call is still running. The attempt continues. Keep \
             it below the client's timeout."
        ),
        setting!(
            PolicyDraft,
            "retry_safe",
            repeat.retry_safe,
            BoolKind,
            "You confirm that the tool may run again after an unknown outcome."
        )
        .only_for_tools(),
        setting!(
            PolicyDraft,
            "honours_key",
            repeat.honours_key,
            BoolKind,
            "The tool itself deduplicates by the idempotency key that Steadfast sends, so that a call with a key may \
             be sent again."
        )
        .only_for_tools(),
        setting!(
            PolicyDraft,
            "ambiguous",
            repeat.ambiguous,
            WordKind(&[("retry", AmbiguousOutcomePolicy::Retry), ("stop", AmbiguousOutcomePolicy::Stop)]),
            "What to do when a tool of unknown class has an unknown outcome."
        ),
        setting!(
            PolicyDraft,
            "key",
            dedupe.key,
            OptionalKind(KeyOfArguments),
            "Makes the idempotency key of a call from its arguments if the caller gives none: `{invoice}`, or \
             `{order.id}/{step}`. Two calls with the same key are one call. A call without all of these arguments is \
             refused."
        )
        .only_for_tools(),
        setting!(
            PolicyDraft,
            "key_argument",
            dedupe.key_argument,
            OptionalKind(Text { most: 256 }),
            "The argument in which the tool takes an idempotency key, for tools that have one. Steadfast sets it to \
             the key, unless the caller did."
        )
        .only_for_tools(),
        setting!(
            PolicyDraft,
            "verify",
            verify,
            OptionalKind(VerifyKind),
            "How to find out whether a call took effect. A text is shown with every unknown outcome. A table names a \
             read-only call whose result resolves it: `{ tool = \"bank/payments\", params = { invoice = \
             \"{invoice}\" }, ran_if = \"/payments/*/invoice = {invoice}\" }`."
        ),
        setting!(
            PolicyDraft,
            "validate_arguments",
            arguments,
            WordKind(&[
                ("assist", ArgumentCheck::Assist),
                ("enforce", ArgumentCheck::Enforce),
                ("off", ArgumentCheck::Off)
            ]),
            "Arguments that violate the tool's own schema: assist lets the tool respond and explains its error, \
             enforce refuses before the tool is called."
        ),
        setting!(
            PolicyDraft,
            "result_limit",
            result_limit,
            OptionalKind(Size(1 << 10..=1 << 30)),
            "The maximum text of one result that a caller gets, in bytes. Longer text is kept; the caller gets its \
             beginning, its end, its size and a reference to the whole instead; see `[results]`. Without a limit \
             every result is passed on unchanged. Lowering it costs callers that need the whole text a request for \
             each page."
        ),
        setting!(
            PolicyDraft,
            "approval",
            approval.when,
            WordKind(&[
                ("never", ApprovalTrigger::Never),
                ("escalated", ApprovalTrigger::Escalated),
                ("always", ApprovalTrigger::Always)
            ]),
            "When a call needs approval."
        ),
        setting!(PolicyDraft, "approval_timeout", approval.timeout, span(), "How long a call waits for approval."),
        setting!(
            PolicyDraft,
            "approval_parked",
            approval.parked,
            lifetime(),
            "How long a request without an answer is kept for an operator."
        ),
        setting!(
            PolicyDraft,
            "dangerous",
            approval.dangerous,
            WordKind(&[("record", DangerousCommandPolicy::Record), ("ask", DangerousCommandPolicy::Ask)]),
            "A command with a dangerous shape: record lets it run and then blocks the tool, ask requires approval \
             first."
        ),
    ]
}

/// A hint, or a call that shows whether another call took effect.
struct VerifyKind;

const HINT: Text = Text { most: 1024 };
const VERIFY_PARTS: [&str; 3] = ["tool", "params", "ran_if"];

impl SettingKind<VerificationMethod> for VerifyKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<VerificationMethod> {
        let Some(table) = node.table() else {
            let hint: Arc<str> = HINT.read(node, cx)?;
            return Some(VerificationMethod::Hint(hint));
        };
        let name = cx.name.clone();
        if let Some(entry) = table.0.iter().find(|entry| !VERIFY_PARTS.contains(&entry.key.as_str())) {
            let help = "it has `tool`, `params` and `ran_if`";
            cx.refuse(&entry.key_place, format!("`{name}` has no `{}`", entry.key), help);
            return None;
        }
        let text = |part: &str| table.get(part).and_then(|entry| entry.node.text()).unwrap_or_default();
        let params = table.get("params").map_or_else(|| Some(json!({})), |entry| json_of(&entry.node));
        match VerificationCall::new(text("tool"), &params.unwrap_or_default(), text("ran_if")) {
            Ok(call) => Some(VerificationMethod::Call(Arc::new(call))),
            Err(error) => {
                let help = "write for example `{ tool = \"bank/payments\", params = { invoice = \"{invoice}\" }, ran_if = \
                            \"/payments/*/invoice = {invoice}\" }`";
                cx.refuse(&node.place, format!("`{name}` {error}"), help);
                None
            }
        }
    }

    fn show(&self, value: &VerificationMethod) -> String {
        match value {
            VerificationMethod::Hint(hint) => HINT.show(hint),
            VerificationMethod::Call(call) => call.to_string(),
        }
    }

    fn takes(&self) -> String {
        "a text, or a table with `tool`, `params` and `ran_if`".to_owned()
    }

    fn schema(&self) -> Json {
        let hint: Json = SettingKind::<Arc<str>>::schema(&HINT);
        let call = json!({
            "type": "object",
            "properties": {
                "tool": { "type": "string", "pattern": "^[^/]+/.+$" },
                "params": { "type": "object" },
                "ran_if": { "type": "string", "pattern": "^/.*=.+$" }
            },
            "required": ["tool", "ran_if"],
            "additionalProperties": false
        });
        json!({ "anyOf": [hint, call] })
    }
}

/// Returns a value as JSON, or `None` for a value that JSON does not have.
fn json_of(node: &ConfigNode) -> Option<Json> {
    Some(match &node.raw {
        RawNode::Boolean(truth) => json!(truth),
        RawNode::Integer(number) => json!(number),
        RawNode::Float(number) => json!(number),
        RawNode::String(text) | RawNode::Loose(text) => json!(text),
        RawNode::Foreign(_) => return None,
        RawNode::Array(items) => Json::Array(items.iter().map(json_of).collect::<Option<_>>()?),
        RawNode::Table(table) => {
            let members = table.0.iter().map(|entry| Some((entry.key.clone(), json_of(&entry.node)?)));
            Json::Object(members.collect::<Option<_>>()?)
        }
    })
}

/// A template for keys.
struct KeyOfArguments;

impl SettingKind<Arc<KeyTemplate>> for KeyOfArguments {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Arc<KeyTemplate>> {
        let Some(text) = node.text() else {
            cx.wrong(node, &self.takes(), format!("write for example {}", cx.with("\"{invoice}\"")));
            return None;
        };
        match KeyTemplate::parse(text) {
            Ok(template) => Some(Arc::new(template)),
            Err(error) => {
                let help = "put the names of arguments into braces, such as `{invoice}` or `{order.id}`";
                cx.refuse(&node.place, format!("`{}` {error}", cx.name), help);
                None
            }
        }
    }

    fn show(&self, value: &Arc<KeyTemplate>) -> String {
        format!("{:?}", value.as_str())
    }

    fn takes(&self) -> String {
        "a text with names of arguments in braces".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "\\{[^{}]+\\}" })
    }
}

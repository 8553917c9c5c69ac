//! The table of settings that can be written for everything, a class, a domain, a server or a tool.

mod attempts;
mod judgement;
mod records;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::key::KeyTemplate;
use steadfast_core::policy::{Ambiguous, ArgumentCheck, AskWhen, Dangerous, Mode, Modes, Silence, ToolClass};
use steadfast_core::verify::{Verify, VerifyCall};

use super::Draft;
use crate::kind::{Count, Flag, Kind, OrNone, Size, Span, Text, Words};
use crate::node::{Node, Raw};
use crate::setting::{Context, Setting, setting};

pub(crate) use judgement::SEVERITIES;

/// Returns the table. General settings come before the particular ones that they decide too.
pub(crate) fn settings() -> &'static [Setting<Draft>] {
    static SETTINGS: LazyLock<Vec<Setting<Draft>>> = LazyLock::new(|| {
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
const fn span() -> Span {
    Span(MS..=DAY)
}

/// A duration that may be zero.
const fn span_or_zero() -> Span {
    Span(Duration::ZERO..=DAY)
}

/// A retention period.
const fn lifetime() -> Span {
    Span(MS..=YEAR)
}

const fn count() -> Count {
    Count(1..=1_000_000)
}

const MODES: Words<Mode> = Words(&[("off", Mode::Off), ("shadow", Mode::Shadow), ("enforce", Mode::Enforce)]);

const CLASSES: Words<ToolClass> = Words(&[
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

fn general() -> Vec<Setting<Draft>> {
    vec![
        setting!(
            Draft,
            "class",
            class,
            CLASSES,
            "The effect of running the tool twice: none (read_only), none beyond the first (idempotent), another \
             effect (mutating). It overrides the annotations from the server."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "mode",
            mode,
            MODES,
            "The mode of every mechanism: off does nothing, shadow decides and only reports, enforce acts. The mode \
             of one mechanism (`retry.mode` and so on) overrides it within the same rule."
        )
        .also(|draft| draft.modes = Modes::all(draft.mode))
        .decides(&["dedupe.mode", "retry.mode", "breaker.mode", "guard.mode", "trust.mode"])
        .shown_if(|_| false),
        setting!(
            Draft,
            "timeout",
            time.attempt,
            span(),
            "How long one attempt may run without a sign of progress before it times out. Raising it keeps agents \
             waiting longer for a dead tool."
        )
        .also(|draft| draft.time.silence = Silence::Timeout)
        .shown_if(|draft| draft.time.silence == Silence::Timeout)
        .excludes(&["stuck_after"]),
        setting!(
            Draft,
            "stuck_after",
            time.attempt,
            span(),
            "How long one attempt may run without a sign of progress before the watchdog ends it as stuck. The \
             gateway uses it instead of `timeout` by default."
        )
        .also(|draft| draft.time.silence = Silence::Stuck)
        .shown_if(|draft| draft.time.silence == Silence::Stuck),
        setting!(
            Draft,
            "total_timeout",
            time.total,
            span(),
            "How long one call may take in total, however much progress it reports."
        ),
        setting!(
            Draft,
            "last_retry",
            time.last_retry,
            OrNone(span_or_zero()),
            "No retry starts later than this after the first attempt. Raising it beyond the client's timeout makes \
             retries whose result is not read."
        ),
        setting!(
            Draft,
            "answer_by",
            time.answer_by,
            OrNone(span()),
            "After this time the caller is answered that the call is still running, and the attempt continues. Keep \
             it below the client's timeout."
        ),
        setting!(
            Draft,
            "retry_safe",
            repeat.retry_safe,
            Flag,
            "You confirm that the tool may run again after an unknown outcome."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "honours_key",
            repeat.honours_key,
            Flag,
            "The tool itself deduplicates by the idempotency key that Steadfast sends, so that a call with a key may \
             be sent again."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "ambiguous",
            repeat.ambiguous,
            Words(&[("retry", Ambiguous::Retry), ("stop", Ambiguous::Stop)]),
            "What to do when a tool of unknown class has an unknown outcome."
        ),
        setting!(
            Draft,
            "key",
            dedupe.key,
            OrNone(KeyOfArguments),
            "Makes the idempotency key of a call from its arguments if the caller gives none: `{invoice}`, or \
             `{order.id}/{step}`. Two calls with the same key are one call. A call without all of these arguments is \
             refused."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "key_argument",
            dedupe.key_argument,
            OrNone(Text { most: 256 }),
            "The argument in which the tool takes an idempotency key, for tools that have one. Steadfast sets it to \
             the key, unless the caller did."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "verify",
            verify,
            OrNone(VerifyKind),
            "How to find out whether a call took effect. A text is shown with every unknown outcome. A table names a \
             read-only call whose result resolves it: `{ tool = \"bank/payments\", params = { invoice = \
             \"{invoice}\" }, ran_if = \"/payments/*/invoice = {invoice}\" }`."
        ),
        setting!(
            Draft,
            "validate_arguments",
            arguments,
            Words(&[
                ("assist", ArgumentCheck::Assist),
                ("enforce", ArgumentCheck::Enforce),
                ("off", ArgumentCheck::Off)
            ]),
            "Arguments that violate the tool's own schema: assist lets the tool respond and explains its error, \
             enforce refuses before the tool is called."
        ),
        setting!(
            Draft,
            "result_limit",
            result_limit,
            OrNone(Size(1 << 10..=1 << 30)),
            "The maximum text of one result that a caller gets, in bytes. Longer text is kept; the caller gets its \
             beginning, its end, its size and a reference to the whole instead; see `[results]`. Without a limit \
             every result is passed on unchanged. Lowering it costs callers that need the whole text a request for \
             each page."
        ),
        setting!(
            Draft,
            "approval",
            approval.when,
            Words(&[
                ("never", AskWhen::Never),
                ("escalated", AskWhen::Escalated),
                ("always", AskWhen::Always)
            ]),
            "When a call needs approval."
        ),
        setting!(Draft, "approval_timeout", approval.timeout, span(), "How long a call waits for approval."),
        setting!(
            Draft,
            "approval_parked",
            approval.parked,
            lifetime(),
            "How long a request without an answer is kept for an operator."
        ),
        setting!(
            Draft,
            "dangerous",
            approval.dangerous,
            Words(&[("record", Dangerous::Record), ("ask", Dangerous::Ask)]),
            "A command with a dangerous shape: record lets it run and then blocks the tool, ask requires approval \
             first."
        ),
    ]
}

/// A hint, or a call that shows whether another call took effect.
struct VerifyKind;

const HINT: Text = Text { most: 1024 };
const VERIFY_PARTS: [&str; 3] = ["tool", "params", "ran_if"];

impl Kind<Verify> for VerifyKind {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Verify> {
        let Some(table) = node.table() else {
            let hint: Arc<str> = HINT.read(node, cx)?;
            return Some(Verify::Hint(hint));
        };
        let name = cx.name.clone();
        if let Some(entry) = table.0.iter().find(|entry| !VERIFY_PARTS.contains(&entry.key.as_str())) {
            let help = "it has `tool`, `params` and `ran_if`";
            cx.refuse(&entry.key_place, format!("`{name}` has no `{}`", entry.key), help);
            return None;
        }
        let text = |part: &str| table.get(part).and_then(|entry| entry.node.text()).unwrap_or_default();
        let params = table.get("params").map_or_else(|| Some(json!({})), |entry| json_of(&entry.node));
        match VerifyCall::new(text("tool"), &params.unwrap_or_default(), text("ran_if")) {
            Ok(call) => Some(Verify::Call(Arc::new(call))),
            Err(why) => {
                let help = "write for example `{ tool = \"bank/payments\", params = { invoice = \"{invoice}\" }, ran_if = \
                            \"/payments/*/invoice = {invoice}\" }`";
                cx.refuse(&node.place, format!("`{name}` {why}"), help);
                None
            }
        }
    }

    fn show(&self, value: &Verify) -> String {
        match value {
            Verify::Hint(hint) => HINT.show(hint),
            Verify::Call(call) => call.to_string(),
        }
    }

    fn takes(&self) -> String {
        "a text, or a table with `tool`, `params` and `ran_if`".to_owned()
    }

    fn schema(&self) -> Json {
        let hint: Json = Kind::<Arc<str>>::schema(&HINT);
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
fn json_of(node: &Node) -> Option<Json> {
    Some(match &node.raw {
        Raw::Boolean(truth) => json!(truth),
        Raw::Integer(number) => json!(number),
        Raw::Float(number) => json!(number),
        Raw::String(text) | Raw::Loose(text) => json!(text),
        Raw::Foreign(_) => return None,
        Raw::Array(items) => Json::Array(items.iter().map(json_of).collect::<Option<_>>()?),
        Raw::Table(table) => {
            let members = table.0.iter().map(|entry| Some((entry.key.clone(), json_of(&entry.node)?)));
            Json::Object(members.collect::<Option<_>>()?)
        }
    })
}

/// A template for keys.
struct KeyOfArguments;

impl Kind<Arc<KeyTemplate>> for KeyOfArguments {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Arc<KeyTemplate>> {
        let Some(text) = node.text() else {
            cx.wrong(node, &self.takes(), format!("write for example {}", cx.with("\"{invoice}\"")));
            return None;
        };
        match KeyTemplate::parse(text) {
            Ok(template) => Some(Arc::new(template)),
            Err(why) => {
                let help = "put the names of arguments into braces, such as `{invoice}` or `{order.id}`";
                cx.refuse(&node.place, format!("`{}` {why}", cx.name), help);
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

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

/// The table. General settings stand before the particular ones that they decide too.
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

/// A span that must be something.
const fn span() -> Span {
    Span(MS..=DAY)
}

/// A span that may be nothing.
const fn span_or_zero() -> Span {
    Span(Duration::ZERO..=DAY)
}

/// How long something is remembered.
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

/// The name of a class in files.
pub(crate) fn class_name(class: ToolClass) -> &'static str {
    CLASSES.0.iter().find(|(_, known)| *known == class).map_or("", |(name, _)| name)
}

/// The classes with their names.
pub(crate) fn classes() -> impl Iterator<Item = (&'static str, ToolClass)> {
    CLASSES.0.iter().copied()
}

/// The position of `class` in the table; which rules apply depends on it.
pub(crate) const CLASS: usize = 0;

fn general() -> Vec<Setting<Draft>> {
    vec![
        setting!(
            Draft,
            "class",
            class,
            CLASSES,
            "What running the tool twice would do: nothing (read_only), nothing further \
             (idempotent), another effect (mutating). It goes before what the server says of its \
             tool."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "mode",
            mode,
            MODES,
            "How far every mechanism may go: off does nothing, shadow decides and only tells, \
             enforce acts. The mode of one mechanism (`retry.mode` and so on) goes before it \
             within the same rule."
        )
        .also(|draft| draft.modes = Modes::all(draft.mode))
        .decides(&["dedupe.mode", "retry.mode", "breaker.mode", "guard.mode", "trust.mode"])
        .shown_if(|_| false),
        setting!(
            Draft,
            "timeout",
            time.attempt,
            span(),
            "One attempt without sign of life, then it counts as a time-out of the tool. Raising \
             it keeps agents waiting longer for a dead tool."
        )
        .also(|draft| draft.time.silence = Silence::Timeout)
        .shown_if(|draft| draft.time.silence == Silence::Timeout)
        .excludes(&["stuck_after"]),
        setting!(
            Draft,
            "stuck_after",
            time.attempt,
            span(),
            "One attempt without sign of life, then the watchdog ends it as stuck. The form that \
             the gateway starts from; it stands in the place of `timeout`."
        )
        .also(|draft| draft.time.silence = Silence::Stuck)
        .shown_if(|draft| draft.time.silence == Silence::Stuck),
        setting!(
            Draft,
            "total_timeout",
            time.total,
            span(),
            "One call in all, however much progress it reports."
        ),
        setting!(
            Draft,
            "last_retry",
            time.last_retry,
            OrNone(span_or_zero()),
            "No retry starts later than this after the first attempt. Raising it beyond the \
             patience of a client makes retries whose answer nobody reads."
        ),
        setting!(
            Draft,
            "answer_by",
            time.answer_by,
            OrNone(span()),
            "After this long the caller is told that the call is still running, and the attempt \
             goes on. Keep it below the time-out of the client."
        ),
        setting!(
            Draft,
            "retry_safe",
            repeat.retry_safe,
            Flag,
            "You vouch that the tool may run again although nobody knows whether it ran."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "honours_key",
            repeat.honours_key,
            Flag,
            "The tool itself recognises the key that we send along, so that a call with a key may \
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
            "Makes the idempotency key of a call from its arguments, where the caller gives none: `{invoice}`, or \
             `{order.id}/{step}`. Two calls with the same key are one call. A call without all of these arguments is refused."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "key_argument",
            dedupe.key_argument,
            OrNone(Text { most: 256 }),
            "The argument by which the tool takes an idempotency key, for tools that have one. The key is put there, unless the \
             caller filled it in."
        )
        .only_for_tools(),
        setting!(
            Draft,
            "verify",
            verify,
            OrNone(VerifyKind),
            "How to find out whether a call took effect. A text is shown with every unknown outcome. A table names a read-only \
             call whose answer settles it: `{ tool = \"bank/payments\", params = { invoice = \"{invoice}\" }, ran_if = \
             \"/payments/*/invoice = {invoice}\" }`."
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
            "Arguments that break the tool's own schema: assist lets the tool answer and explains \
             its refusal, enforce refuses before the tool is bothered."
        ),
        setting!(
            Draft,
            "result_limit",
            result_limit,
            OrNone(Size(1 << 10..=1 << 30)),
            "The most bytes of text that a caller gets of one result. Longer text is kept, and its beginning, its end, its size \
             and the place of the whole are given instead; see `[results]`. Without a limit every result passes as it came. \
             Lowering it costs callers that need the whole a request for each page."
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
            "When a person is asked before a call runs."
        ),
        setting!(Draft, "approval_timeout", approval.timeout, span(), "How long a call waits for an answer."),
        setting!(
            Draft,
            "approval_parked",
            approval.parked,
            lifetime(),
            "How long a request that nobody answered is kept for an operator."
        ),
        setting!(
            Draft,
            "dangerous",
            approval.dangerous,
            Words(&[("record", Dangerous::Record), ("ask", Dangerous::Ask)]),
            "A command of a dangerous shape: record lets it run and then blocks the tool, ask \
             asks first."
        ),
    ]
}

/// A hint, or a call that shows whether another one took effect.
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

/// A value as JSON; nothing for what JSON does not have.
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

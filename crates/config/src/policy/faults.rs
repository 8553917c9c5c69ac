//! Rules for classifying faults, as they are written, with their examples.
//!
//! ```toml
//! [[tools."lab/measure".classify.rules]]
//! name    = "no beam time"
//! text    = "no beam time"
//! nature  = "transient"
//! matches = [{ message = "no beam time left" }]
//! misses  = [{ message = "who has no beam time?" }]
//! ```

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::classify::{
    AttemptFault, AttemptReach, FaultMatcher, FaultNature, FaultSource, FaultSourceKind, OverrideProblem,
    OverrideRule, Overrides, Severity, TransportError,
};

use super::FaultRules;
use crate::kind::{DurationKind, ListKind, Number, OptionalKind, PlainText, SettingKind, Text, WordKind};
use crate::location::SourceLocation;
use crate::node::{ConfigNode, RawNode};
use crate::read_context::ReadContext;
use crate::setting::{Setting, read_table, setting};

/// Maximum number of rules of one tool.
const MOST_RULES: usize = 64;
/// Maximum number of examples of one rule.
const MOST_EXAMPLES: usize = 32;

/// A list of rules.
pub(crate) struct FaultRuleList;

impl SettingKind<FaultRules> for FaultRuleList {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<FaultRules> {
        let Some(items) = node.items().filter(|items| items.len() <= MOST_RULES) else {
            cx.wrong(node, &self.takes(), "write each rule as `[[classify.rules]]` with its settings below");
            return None;
        };
        let before = cx.problems.len();
        let rules: Vec<OverrideRule> = items.iter().filter_map(|item| read_rule(item, cx)).collect();
        if cx.problems.len() > before {
            return None;
        }
        // Each rule was checked on its own. Together they can only be too many, and that was checked above.
        let checked = Overrides::new(rules.clone()).ok()?;
        Some(FaultRules { written: rules.into(), checked: Arc::new(checked) })
    }

    fn show(&self, value: &FaultRules) -> String {
        let names = value.written.iter().enumerate().map(|(at, rule)| match &rule.name {
            Some(name) => name.clone(),
            None => format!("override.{at}"),
        });
        format!("[{}]", names.collect::<Vec<_>>().join(", "))
    }

    fn takes(&self) -> String {
        format!("up to {MOST_RULES} rules, each a table")
    }

    fn schema(&self) -> Json {
        let schema = crate::object_schema::object_schema(rule_settings());
        json!({ "type": "array", "maxItems": MOST_RULES, "items": schema })
    }

    fn is_scalar(&self) -> bool {
        false
    }
}

/// The written settings of a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleDraft {
    name: Option<String>,
    when: FaultMatcher,
    nature: Option<FaultNature>,
    severity: Option<Severity>,
    reach: Option<AttemptReach>,
    retry_after: Option<Duration>,
    matches: Arc<[(AttemptFault, ExampleLocation)]>,
    misses: Arc<[(AttemptFault, ExampleLocation)]>,
}

/// Position of an example.
type ExampleLocation = Arc<SourceLocation>;

const TRANSPORTS: WordKind<TransportError> = WordKind(&[
    ("connection_refused", TransportError::ConnectionRefused),
    ("connection_reset", TransportError::ConnectionReset),
    ("connection_closed", TransportError::ConnectionClosed),
    ("timed_out", TransportError::TimedOut),
    ("name_not_found", TransportError::NameNotFound),
    ("unreachable", TransportError::Unreachable),
    ("tls", TransportError::Tls),
    ("other", TransportError::Other),
]);

const SOURCES: WordKind<FaultSourceKind> = WordKind(&[
    ("transport", FaultSourceKind::Transport),
    ("http", FaultSourceKind::Http),
    ("json_rpc", FaultSourceKind::JsonRpc),
    ("session_lost", FaultSourceKind::SessionLost),
    ("is_error", FaultSourceKind::IsError),
    ("tool", FaultSourceKind::Tool),
    ("web_socket", FaultSourceKind::WebSocket),
    ("exit", FaultSourceKind::Exit),
    ("timeout", FaultSourceKind::Timeout),
    ("panic", FaultSourceKind::Panic),
    ("bad_answer", FaultSourceKind::BadAnswer),
    ("too_large", FaultSourceKind::TooLarge),
]);

pub(super) const SEVERITIES: WordKind<Severity> = WordKind(Severity::WORDS);

const HTTP: Number = Number(100..=599);
const JSON_RPC: Number = Number(-0x8000_0000..=0x7fff_ffff);
const CLOSE: Number = Number(1000..=4999);
const EXIT: Number = Number(-0x8000_0000..=0x7fff_ffff);

/// Returns the settings of a rule.
pub(crate) fn rule_settings() -> &'static [Setting<RuleDraft>] {
    const NATURES: WordKind<FaultNature> =
        WordKind(&[("transient", FaultNature::Transient), ("permanent", FaultNature::Permanent)]);
    const REACHES: WordKind<AttemptReach> = WordKind(&[
        ("not_sent", AttemptReach::NotSent),
        ("refused", AttemptReach::Refused),
        ("unknown", AttemptReach::Unknown),
        ("answered", AttemptReach::Answered),
    ]);
    static SETTINGS: LazyLock<Vec<Setting<RuleDraft>>> = LazyLock::new(|| {
        let examples = || ListKind { item: ExampleKind, least: 0, most: MOST_EXAMPLES };
        vec![
            setting!(
                RuleDraft,
                "name",
                name,
                OptionalKind(PlainText(Text { most: 64 })),
                "The name of the rule in explanations."
            ),
            setting!(
                RuleDraft,
                "status",
                when.status,
                OptionalKind(HTTP),
                "The HTTP status, also where a message states it."
            ),
            setting!(
                RuleDraft,
                "json_rpc",
                when.json_rpc,
                OptionalKind(JSON_RPC),
                "The JSON-RPC code, also where a message states it."
            ),
            setting!(
                RuleDraft,
                "transport",
                when.transport,
                OptionalKind(TRANSPORTS),
                "The transport error."
            ),
            setting!(
                RuleDraft,
                "web_socket",
                when.web_socket,
                OptionalKind(CLOSE),
                "The close code of a WebSocket, also where a message states it."
            ),
            setting!(
                RuleDraft,
                "exit",
                when.exit,
                OptionalKind(EXIT),
                "The exit code of a process: of a command that returned it, or of a server that ended."
            ),
            setting!(RuleDraft, "source", when.source, OptionalKind(SOURCES), "The kind of source."),
            setting!(
                RuleDraft,
                "text",
                when.text,
                OptionalKind(PlainText(Text { most: 512 })),
                "A regular expression. It has to match at the start of the message, of its first line, or of the \
                 text after a `: ` in that line; a leading `.*` searches within."
            ),
            setting!(RuleDraft, "nature", nature, OptionalKind(NATURES), "Transient faults can be retried."),
            setting!(
                RuleDraft,
                "severity",
                severity,
                OptionalKind(SEVERITIES),
                "The severity of the fault; by the built-in rules if not set."
            ),
            setting!(
                RuleDraft,
                "reach",
                reach,
                OptionalKind(REACHES),
                "How far the call got; by the built-in rules if not set. If you set that a tool did not run, calls \
                 are repeated, so it has to be true."
            ),
            setting!(
                RuleDraft,
                "retry_after",
                retry_after,
                OptionalKind(DurationKind(Duration::ZERO..=Duration::from_secs(86_400))),
                "The minimum wait if the tool does not name one."
            ),
            setting!(
                RuleDraft,
                "matches",
                matches,
                examples(),
                "Faults that the rule must match. Checked when the file is read."
            ),
            setting!(
                RuleDraft,
                "misses",
                misses,
                examples(),
                "Faults that it must not match. Checked when the file is read."
            ),
        ]
    });
    &SETTINGS
}

fn read_rule(node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<OverrideRule> {
    let Some(table) = node.table() else {
        cx.wrong(node, "rules, each a table", "write `{ status = 503, nature = \"permanent\" }`");
        return None;
    };
    let outer = cx.name.clone();
    let written = read_table(rule_settings(), "a rule about faults", |_| true, table, &[], cx);
    cx.name = outer;
    let mut draft = RuleDraft::default();
    for one in &written {
        (one.patch)(&mut draft);
    }
    let Some(nature) = draft.nature else {
        let message = "a rule about faults must set their meaning".to_owned();
        cx.refuse(&node.place, message, "add `nature = \"transient\"` or `nature = \"permanent\"`");
        return None;
    };
    let plain = |examples: &[(AttemptFault, ExampleLocation)]| {
        examples.iter().map(|(fault, _)| fault.clone()).collect()
    };
    let rule = OverrideRule {
        name: draft.name.clone(),
        when: draft.when.clone(),
        nature,
        severity: draft.severity,
        reach: draft.reach,
        retry_after: draft.retry_after,
        matches: plain(&draft.matches),
        misses: plain(&draft.misses),
    };
    match Overrides::new(vec![rule.clone()]) {
        Ok(_) => Some(rule),
        Err(invalid) => {
            report_invalid(&draft, &written, node, invalid.problem, cx);
            None
        }
    }
}

fn report_invalid(
    draft: &RuleDraft,
    written: &[crate::setting::WrittenSetting<RuleDraft>],
    node: &ConfigNode,
    problem: OverrideProblem,
    cx: &mut ReadContext<'_>,
) {
    let place_of = |path: &str| {
        let at = rule_settings().iter().position(|setting| setting.path == path);
        let found = written.iter().find(|one| Some(one.setting) == at);
        found.map_or_else(|| node.place.clone(), |one| one.place.clone())
    };
    let example = |list: &[(AttemptFault, ExampleLocation)], at: usize| {
        list.get(at).map_or_else(|| node.place.clone(), |(_, place)| (**place).clone())
    };
    match problem {
        OverrideProblem::MatchesAnything => cx.refuse(
            &node.place,
            "this rule would match every fault",
            "name a `status`, a `text`, or another fact of the fault",
        ),
        OverrideProblem::Name => cx.refuse(
            &place_of("name"),
            "a name of a rule has 1 to 64 bytes and no control characters",
            "write `name = \"quota\"` or leave it out",
        ),
        OverrideProblem::Pattern(reason) => {
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            cx.refuse(
                &place_of("text"),
                format!("`text` is not a usable regular expression: {reason}"),
                "escape `( ) [ ] { } . * + ? |` with a backslash where they are literal",
            );
        }
        OverrideProblem::Missed { example: at, .. } => cx.refuse(
            &example(&draft.matches, at),
            "this example should match the rule and does not",
            "change the rule or the example; a `text` has to match from the start of a statement, \
             `.*` searches within",
        ),
        OverrideProblem::Matched { example: at, .. } => cx.refuse(
            &example(&draft.misses, at),
            "this example should not match the rule and does",
            "make the rule more particular, or drop the example",
        ),
        OverrideProblem::TooMany => {
            cx.refuse(&node.place, format!("there are more than {MOST_RULES} rules"), "join some of them");
        }
    }
}

/// A fault written as an example: a message alone, or a table with its facts.
#[derive(Clone, Copy)]
struct ExampleKind;

#[derive(Clone, Debug, Default)]
struct ExampleDraft {
    message: Option<String>,
    status: Option<u16>,
    json_rpc: Option<i64>,
    transport: Option<TransportError>,
    web_socket: Option<u16>,
    exit: Option<i32>,
    source: Option<FaultSourceKind>,
}

fn example_settings() -> &'static [Setting<ExampleDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<ExampleDraft>>> = LazyLock::new(|| {
        vec![
            setting!(
                ExampleDraft,
                "message",
                message,
                OptionalKind(PlainText(Text { most: 4096 })),
                "The text of the fault."
            ),
            setting!(ExampleDraft, "status", status, OptionalKind(HTTP), "An HTTP answer of this status."),
            setting!(
                ExampleDraft,
                "json_rpc",
                json_rpc,
                OptionalKind(JSON_RPC),
                "A JSON-RPC error of this code."
            ),
            setting!(
                ExampleDraft,
                "transport",
                transport,
                OptionalKind(TRANSPORTS),
                "An error of the transport."
            ),
            setting!(
                ExampleDraft,
                "web_socket",
                web_socket,
                OptionalKind(CLOSE),
                "A WebSocket closed with this code."
            ),
            setting!(
                ExampleDraft,
                "exit",
                exit,
                OptionalKind(EXIT),
                "A process that ended with this code; with `source = \"tool\"` a command that answered by it."
            ),
            setting!(
                ExampleDraft,
                "source",
                source,
                OptionalKind(SOURCES),
                "The kind of source where no other fact tells it; `tool` if not set."
            ),
        ]
    });
    &SETTINGS
}

impl SettingKind<(AttemptFault, ExampleLocation)> for ExampleKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<(AttemptFault, ExampleLocation)> {
        let mut draft = ExampleDraft::default();
        match &node.raw {
            RawNode::String(message) => draft.message = Some(message.clone()),
            RawNode::Table(table) => {
                let outer = cx.name.clone();
                for one in read_table(example_settings(), "an example", |_| true, table, &[], cx) {
                    (one.patch)(&mut draft);
                }
                cx.name = outer;
            }
            RawNode::Boolean(_)
            | RawNode::Integer(_)
            | RawNode::Float(_)
            | RawNode::Loose(_)
            | RawNode::Foreign(_)
            | RawNode::Array(_) => {
                cx.wrong(node, &self.takes(), "write `{ message = \"what was said\" }`");
                return None;
            }
        }
        let (source, exit) = (draft.source(), draft.exit);
        let fault = AttemptFault { exit, ..AttemptFault::new(source, draft.message.unwrap_or_default()) };
        Some((fault, Arc::new(node.place.clone())))
    }

    fn show(&self, value: &(AttemptFault, ExampleLocation)) -> String {
        format!("{:?}", value.0.message)
    }

    fn takes(&self) -> String {
        "a message, or a table with a `message` and facts such as `status`".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "anyOf": [{ "type": "string" }, crate::object_schema::object_schema(example_settings())] })
    }

    fn is_scalar(&self) -> bool {
        false
    }
}

impl ExampleDraft {
    /// Returns the source of the fault: the first fact that is set decides.
    fn source(&self) -> FaultSource {
        if let Some(status) = self.status {
            return FaultSource::Http { status };
        }
        if let Some(code) = self.json_rpc {
            return FaultSource::JsonRpc { code };
        }
        if let Some(error) = self.transport {
            return FaultSource::Transport { error, written: true };
        }
        if let Some(code) = self.web_socket {
            return FaultSource::WebSocket { code };
        }
        if let Some(code) = self.exit
            && self.source != Some(FaultSourceKind::Tool)
        {
            return FaultSource::Exit { code: Some(code), signal: None };
        }
        match self.source.unwrap_or(FaultSourceKind::Tool) {
            FaultSourceKind::SessionLost => FaultSource::SessionLost,
            FaultSourceKind::IsError => FaultSource::IsError,
            FaultSourceKind::Timeout => FaultSource::Timeout { after: Duration::ZERO },
            FaultSourceKind::Panic => FaultSource::Panic,
            FaultSourceKind::BadAnswer => FaultSource::BadAnswer,
            FaultSourceKind::TooLarge => FaultSource::TooLarge,
            FaultSourceKind::Transport => {
                FaultSource::Transport { error: TransportError::Other, written: true }
            }
            FaultSourceKind::Http => FaultSource::Http { status: 500 },
            FaultSourceKind::JsonRpc => FaultSource::JsonRpc { code: -32603 },
            FaultSourceKind::WebSocket => FaultSource::WebSocket { code: 1006 },
            FaultSourceKind::Exit => FaultSource::Exit { code: Some(1), signal: None },
            FaultSourceKind::Tool => FaultSource::Tool,
        }
    }
}

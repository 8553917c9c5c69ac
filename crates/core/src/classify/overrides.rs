//! Rules of a tool's policy that come before the built-in rules.
//!
//! A rule names facts that must all hold, and their meaning for this tool. It may contain examples that it must match
//! and examples that it must not match. Both are checked when the rules are created, so a pattern that does not do what
//! its author intended never reaches a call.

use std::borrow::Cow;
use std::time::Duration;

use regex::{Regex, RegexBuilder};

use super::text::FaultFacts;
use super::{
    AttemptFault, AttemptReach, Classification, FaultNature, FaultSourceKind, Severity, TransportError,
};

/// The maximum number of rules of one tool. Each costs a comparison per fault.
const MOST_RULES: usize = 64;
/// The maximum length of a rule's name, in bytes.
const LONGEST_NAME: usize = 64;
/// The maximum length of a pattern, in bytes.
const LONGEST_PATTERN: usize = 512;
/// The maximum memory of one compiled pattern. A pattern that needs more is refused.
const PATTERN_MEMORY: usize = 1 << 18;

/// A rule that changes the classification of a fault for one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideRule {
    /// Name of the rule in explanations. Without one, the rule is identified by its position.
    pub name: Option<String>,
    /// Facts that the rule matches.
    pub when: FaultMatcher,
    /// Transient or permanent.
    pub nature: FaultNature,
    /// Severity. Set by the built-in rules if absent.
    pub severity: Option<Severity>,
    /// Progress of the call. Set by the built-in rules if absent. With a value that means that the tool did not run,
    /// the operator guarantees that a repeated call does no harm.
    pub reach: Option<AttemptReach>,
    /// Minimum delay if the other side asks for none.
    pub retry_after: Option<Duration>,
    /// Faults that the rule must match.
    pub matches: Vec<AttemptFault>,
    /// Faults that the rule must not match.
    pub misses: Vec<AttemptFault>,
}

/// Facts of a fault. All facts that are set must hold, and at least one must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultMatcher {
    /// HTTP status, also if a message contains it (`Service unavailable (503)`).
    pub status: Option<u16>,
    /// JSON-RPC code, also if a message contains it (`MCP error -32603: …`).
    pub json_rpc: Option<i64>,
    /// Transport error.
    pub transport: Option<TransportError>,
    /// Close code of a WebSocket, also if a message contains it (`closed (1012)`).
    pub web_socket: Option<u16>,
    /// Exit code of a process: of a command that responded with it, or of a server that ended.
    pub exit: Option<i32>,
    /// Kind of source.
    pub source: Option<FaultSourceKind>,
    /// Regular expression. It must match at the start of the message, at the start of its first line, or after a `: `
    /// in that line. A leading `.*` searches within. Only the first 4 KiB are searched.
    pub text: Option<String>,
}

/// The reason why rules were refused, and the invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule}: {problem}")]
pub struct InvalidOverride {
    /// Position of the rule, from 0.
    pub rule: usize,
    /// Problem of the rule.
    pub problem: OverrideProblem,
}

/// The problem of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverrideProblem {
    /// There are too many rules.
    #[error("at most {MOST_RULES} rules are allowed")]
    TooMany,
    /// The rule would match everything.
    #[error("it would match every fault; name a status, a code or a text")]
    MatchesAnything,
    /// The name is empty, too long, or would break a log line.
    #[error("a name has 1 to {LONGEST_NAME} bytes and no control characters")]
    Name,
    /// The pattern cannot be used. The text contains the reason.
    #[error("the text pattern cannot be used: {0}")]
    Pattern(String),
    /// The rule does not match an example that it must match.
    #[error("example {example} should match and does not: {message:?}")]
    Missed {
        /// Position of the example, from 0.
        example: usize,
        /// Message of the example.
        message: String,
    },
    /// The rule matches an example that it must not match.
    #[error("example {example} should not match and does: {message:?}")]
    Matched {
        /// Position of the example, from 0.
        example: usize,
        /// Message of the example.
        message: String,
    },
}

/// Valid rules in the order in which they are tried, and the classification of unknown transport errors.
#[derive(Clone, Debug)]
pub struct Overrides {
    rules: Vec<CompiledOverride>,
    unknown: FaultNature,
}

impl Default for Overrides {
    fn default() -> Self {
        Self { rules: Vec::new(), unknown: FaultNature::Transient }
    }
}

impl Overrides {
    /// Returns the rules if each one is valid and matches its examples.
    pub fn new(rules: Vec<OverrideRule>) -> Result<Self, InvalidOverride> {
        if rules.len() > MOST_RULES {
            return Err(InvalidOverride { rule: MOST_RULES, problem: OverrideProblem::TooMany });
        }
        let checked = rules
            .into_iter()
            .enumerate()
            .map(|(rule, given)| {
                CompiledOverride::new(given).map_err(|problem| InvalidOverride { rule, problem })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { rules: checked, ..Self::default() })
    }

    /// Returns the rules with this classification of transport errors that no rule matches.
    pub fn with_unknown(mut self, unknown: FaultNature) -> Self {
        self.unknown = unknown;
        self
    }

    /// Returns true if one of these rules has this name, or is identified by it because it has none.
    pub fn has(&self, name: &str) -> bool {
        self.rules.iter().enumerate().any(|(index, checked)| checked.rule.display_name(index) == name)
    }

    pub(super) fn unknown(&self) -> FaultNature {
        self.unknown
    }

    pub(super) fn first_match(&self, facts: &FaultFacts<'_>) -> Option<(usize, &OverrideRule)> {
        let (index, found) = self.rules.iter().enumerate().find(|(_, rule)| rule.holds(facts))?;
        Some((index, &found.rule))
    }
}

impl OverrideRule {
    /// Returns the name of the rule in explanations.
    pub(super) fn display_name(&self, index: usize) -> Cow<'static, str> {
        Cow::Owned(self.name.clone().unwrap_or_else(|| format!("override.{index}")))
    }

    /// Applies the rule to the verdict of the built-in rules.
    pub(super) fn apply(&self, decided: &mut Classification) {
        decided.nature = self.nature;
        decided.reach = self.reach.unwrap_or(decided.reach);
        decided.severity = self.severity.unwrap_or(match (self.nature, decided.severity) {
            // A failure that did not count before now has a meaning: it passes by itself.
            (FaultNature::Transient, Severity::Informational) => Severity::Transient,
            (FaultNature::Transient | FaultNature::Permanent, severity) => severity,
        });
        if self.nature == FaultNature::Transient && decided.mistake.take().is_some() {
            decided.code = crate::code::Code::ToolError;
        }
    }
}

#[derive(Clone, Debug)]
struct CompiledOverride {
    rule: OverrideRule,
    pattern: Option<Regex>,
}

impl CompiledOverride {
    fn new(rule: OverrideRule) -> Result<Self, OverrideProblem> {
        if rule.when == FaultMatcher::default() {
            return Err(OverrideProblem::MatchesAnything);
        }
        if let Some(name) = &rule.name
            && (name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control))
        {
            return Err(OverrideProblem::Name);
        }
        let pattern = rule.when.text.as_deref().map(compile).transpose()?;
        let checked = Self { rule, pattern };
        checked.try_examples()?;
        Ok(checked)
    }

    fn try_examples(&self) -> Result<(), OverrideProblem> {
        let matched = |fault: &AttemptFault| self.holds(&FaultFacts::of(fault));
        if let Some((example, fault)) =
            self.rule.matches.iter().enumerate().find(|(_, fault)| !matched(fault))
        {
            return Err(OverrideProblem::Missed { example, message: fault.message.clone() });
        }
        if let Some((example, fault)) = self.rule.misses.iter().enumerate().find(|(_, fault)| matched(fault))
        {
            return Err(OverrideProblem::Matched { example, message: fault.message.clone() });
        }
        Ok(())
    }

    fn holds(&self, facts: &FaultFacts<'_>) -> bool {
        let FaultMatcher { status, json_rpc, transport, web_socket, exit, source, text: _ } = &self.rule.when;
        allows(status, facts.status)
            && allows(json_rpc, facts.json_rpc)
            && allows(transport, facts.transport)
            && allows(web_socket, facts.close)
            && allows(exit, facts.exit)
            && allows(source, Some(facts.kind))
            && self.pattern.as_ref().is_none_or(|pattern| {
                let begins = |text: &str| pattern.find(text).is_some_and(|found| found.start() == 0);
                begins(facts.head) || facts.clauses().any(begins)
            })
    }
}

fn allows<T: PartialEq>(required: &Option<T>, found: Option<T>) -> bool {
    required.is_none() || *required == found
}

fn compile(pattern: &str) -> Result<Regex, OverrideProblem> {
    if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
        let reason = format!("it has {} bytes, 1 to {LONGEST_PATTERN} are allowed", pattern.len());
        return Err(OverrideProblem::Pattern(reason));
    }
    RegexBuilder::new(pattern)
        .size_limit(PATTERN_MEMORY)
        .dfa_size_limit(PATTERN_MEMORY)
        .build()
        .map_err(|error| OverrideProblem::Pattern(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::classify::{FaultSource, classify};

    fn rule(when: FaultMatcher, nature: FaultNature) -> OverrideRule {
        OverrideRule {
            name: None,
            when,
            nature,
            severity: None,
            reach: None,
            retry_after: None,
            matches: Vec::new(),
            misses: Vec::new(),
        }
    }

    fn refused(rules: Vec<OverrideRule>) -> InvalidOverride {
        Overrides::new(rules).unwrap_err()
    }

    fn text(pattern: &str) -> FaultMatcher {
        FaultMatcher { text: Some(pattern.to_owned()), ..FaultMatcher::default() }
    }

    #[test]
    fn a_pattern_may_be_as_long_as_the_limit() {
        assert!(compile(&"a".repeat(LONGEST_PATTERN)).is_ok());
        assert!(compile(&"a".repeat(LONGEST_PATTERN + 1)).is_err() && compile("").is_err());
    }

    #[test]
    fn eh_1_5_a_tool_may_take_503_as_permanent() {
        let when = FaultMatcher { status: Some(503), ..FaultMatcher::default() };
        let overrides = Overrides::new(vec![rule(when, FaultNature::Permanent)]).unwrap();
        for source in [FaultSource::Tool, FaultSource::IsError, FaultSource::Http { status: 503 }] {
            let fault = AttemptFault::new(source, "Service unavailable (503)");
            let default = classify(&fault, &Overrides::default(), Timestamp::ZERO);
            let decided = classify(&fault, &overrides, Timestamp::ZERO);
            assert_eq!(default.nature, FaultNature::Transient);
            assert_eq!((decided.nature, &*decided.rule), (FaultNature::Permanent, "override.0"));
            assert_eq!((decided.severity, decided.reach), (default.severity, default.reach));
        }
        let other =
            classify(&AttemptFault::new(FaultSource::Tool, "Bad gateway (502)"), &overrides, Timestamp::ZERO);
        assert_eq!((other.nature, &*other.rule), (FaultNature::Transient, "text.http.502"));
    }

    #[test]
    fn rules_match_every_kind_of_fact_and_all_that_are_set_must_hold() {
        let any = FaultMatcher::default;
        let holds = |when: FaultMatcher, fault: &AttemptFault| {
            let checked = CompiledOverride::new(rule(when, FaultNature::Permanent)).unwrap();
            checked.holds(&FaultFacts::of(fault))
        };
        let hold = |when: FaultMatcher, source: FaultSource, message: &str| {
            holds(when, &AttemptFault::new(source, message))
        };
        let reset = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
        assert!(hold(
            FaultMatcher { transport: Some(TransportError::ConnectionReset), ..any() },
            reset.clone(),
            ""
        ));
        assert!(!hold(FaultMatcher { transport: Some(TransportError::Tls), ..any() }, reset.clone(), ""));
        assert!(hold(
            FaultMatcher { json_rpc: Some(-32603), ..any() },
            FaultSource::JsonRpc { code: -32603 },
            ""
        ));
        assert!(hold(
            FaultMatcher { json_rpc: Some(-32603), ..any() },
            FaultSource::IsError,
            "MCP error -32603: no"
        ));
        assert!(hold(
            FaultMatcher { web_socket: Some(1012), ..any() },
            FaultSource::WebSocket { code: 1012 },
            ""
        ));
        assert!(hold(
            FaultMatcher { web_socket: Some(1012), ..any() },
            FaultSource::Tool,
            "gateway closed (1012): x"
        ));
        let exit = FaultSource::Exit { code: Some(75), signal: None };
        assert!(hold(FaultMatcher { exit: Some(75), ..any() }, exit.clone(), ""));
        assert!(!hold(FaultMatcher { exit: Some(1), ..any() }, exit, ""));
        let answered = AttemptFault { exit: Some(75), ..AttemptFault::new(FaultSource::Tool, "") };
        assert!(holds(
            FaultMatcher { exit: Some(75), source: Some(FaultSourceKind::Tool), ..any() },
            &answered
        ));
        assert!(!holds(FaultMatcher { exit: Some(1), ..any() }, &answered));
        assert!(hold(FaultMatcher { source: Some(FaultSourceKind::Panic), ..any() }, FaultSource::Panic, ""));
        let both = FaultMatcher { status: Some(403), ..text("(?i).*rate limit") };
        assert!(hold(both.clone(), FaultSource::Http { status: 403 }, "API rate limit exceeded"));
        assert!(!hold(both.clone(), FaultSource::Http { status: 403 }, "go away"));
        assert!(!hold(both, FaultSource::Http { status: 429 }, "API rate limit exceeded"));
    }

    #[test]
    fn a_text_has_to_begin_where_a_statement_begins() {
        let checked =
            CompiledOverride::new(rule(text("backend is (?:asleep|away)"), FaultNature::Transient)).unwrap();
        let holds =
            |message: &str| checked.holds(&FaultFacts::of(&AttemptFault::new(FaultSource::Tool, message)));
        assert!(holds("backend is asleep"));
        assert!(holds("Error executing tool x: backend is away"));
        assert!(!holds("they say that backend is asleep"));
        assert!(!holds("line one\nbackend is asleep"));
        // The pattern would end the group that wraps it when it is anchored, or would comment out its end.
        assert!(
            CompiledOverride::new(rule(text("(?x) backend # a comment"), FaultNature::Transient)).is_ok()
        );
        assert!(matches!(compile("a)(b"), Err(OverrideProblem::Pattern(_))));
    }

    #[test]
    fn the_verdict_of_an_override_is_complete() {
        let named = OverrideRule {
            name: Some("quota-of-the-lab".to_owned()),
            severity: Some(Severity::ServerError),
            reach: Some(AttemptReach::Refused),
            retry_after: Some(Duration::from_secs(7)),
            ..rule(text("no beam time"), FaultNature::Transient)
        };
        let fault = AttemptFault::new(FaultSource::IsError, "no beam time left");
        let overrides = Overrides::new(vec![named]).unwrap();
        let decided = classify(&fault, &overrides, Timestamp::ZERO);
        assert_eq!(&*decided.rule, "quota-of-the-lab");
        assert_eq!((decided.nature, decided.severity), (FaultNature::Transient, Severity::ServerError));
        assert_eq!(
            (decided.reach, decided.retry_after),
            (AttemptReach::Refused, Some(Duration::from_secs(7)))
        );

        let delayed = AttemptFault { retry_after: super::super::RetryAfter::parse("2"), ..fault };
        assert_eq!(classify(&delayed, &overrides, Timestamp::ZERO).retry_after, Some(Duration::from_secs(2)));

        // Unknown responses become transient, and a transient failure is not a mistake of the model.
        let plain = Overrides::new(vec![rule(text("."), FaultNature::Transient)]).unwrap();
        let decided = classify(&AttemptFault::new(FaultSource::IsError, "hm"), &plain, Timestamp::ZERO);
        assert_eq!(decided.severity, Severity::Transient);
        let decided =
            classify(&AttemptFault::new(FaultSource::Tool, "Unknown tool: x"), &plain, Timestamp::ZERO);
        assert_eq!((decided.mistake, decided.code), (None, crate::code::Code::ToolError));
    }

    #[test]
    fn unsound_rules_are_refused_with_their_place() {
        let sound = || rule(text("a"), FaultNature::Permanent);
        assert_eq!(
            refused(vec![sound(), rule(FaultMatcher::default(), FaultNature::Permanent)]),
            InvalidOverride { rule: 1, problem: OverrideProblem::MatchesAnything }
        );
        assert_eq!(refused(vec![sound(); 65]).problem, OverrideProblem::TooMany);
        for pattern in ["(", "", &"a".repeat(513), r"\w{500}{500}"] {
            assert!(matches!(compile(pattern), Err(OverrideProblem::Pattern(_))), "{pattern}");
        }
        for name in ["", "a\nb", &"n".repeat(65)] {
            let bad = OverrideRule { name: Some(name.to_owned()), ..sound() };
            assert_eq!(refused(vec![bad]).problem, OverrideProblem::Name);
        }
    }

    #[test]
    fn examples_that_fail_are_named() {
        let example = |message: &str| AttemptFault::new(FaultSource::Tool, message);
        let with =
            |matches, misses| OverrideRule { matches, misses, ..rule(text("busy"), FaultNature::Transient) };
        let wrong = refused(vec![with(vec![example("busy"), example("too busy")], vec![])]);
        let problem = OverrideProblem::Missed { example: 1, message: "too busy".to_owned() };
        assert_eq!(wrong, InvalidOverride { rule: 0, problem });
        assert_eq!(wrong.to_string(), "rule 0: example 1 should match and does not: \"too busy\"");
        let wrong = refused(vec![with(vec![example("busy")], vec![example("busybody")])]);
        let problem = OverrideProblem::Matched { example: 0, message: "busybody".to_owned() };
        assert_eq!(wrong, InvalidOverride { rule: 0, problem });
        assert!(Overrides::new(vec![with(vec![example("busy")], vec![example("too busy")])]).is_ok());
    }

    #[test]
    fn rules_are_found_by_the_names_under_which_they_are_explained() {
        let named =
            OverrideRule { name: Some("busy".to_owned()), ..rule(text("busy"), FaultNature::Transient) };
        let rules = Overrides::new(vec![named, rule(text("odd"), FaultNature::Permanent)]).unwrap();
        let has = ["busy", "override.0", "override.1", "override.2"].map(|name| rules.has(name));
        assert_eq!(has, [true, false, true, false]);
    }
}

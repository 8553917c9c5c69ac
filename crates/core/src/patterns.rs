//! Behaviour that leads nowhere although no single call is wrong, and a word to the model about it.
//!
//! For hosts that tell us enough: when a turn begins and ends, what the model says, and each call with an id
//! at its start and at its end. Four patterns are known: the same call again and again with the same result,
//! one tool that fails in a row, reading without ever acting, and announcing work that is then not done.
//! Nothing here refuses a call; that is for the [`guard`](crate::guard). A nudge therefore never claims to.
//!
//! A start and an end belong together by the id of the call, never by their order: calls run in parallel.
//! A streak is told once per severity, when it reaches it, so that a model is not nagged at every step.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use crate::id::{Digest, ToolCallId, ToolRef};
use crate::policy::ToolClass;

/// From when on a streak is a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternPolicy {
    /// For every tool that has no thresholds of its own. Raising them makes nudges rarer and later.
    pub thresholds: Thresholds,
    /// For single tools: a shell may fail twice where a search may fail five times.
    pub tools: BTreeMap<ToolRef, Thresholds>,
    /// Turns in a row that end with an announcement which nothing followed.
    pub announced: NonZeroU32,
}

/// From when on a streak of calls is a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The same call with the same arguments, with nothing else in between and no new result.
    pub identical: NonZeroU32,
    /// Failures of one tool without a success of it.
    pub failures: NonZeroU32,
    /// Read-only calls without one that changes something. For the stall, those of the last call count.
    pub reads: NonZeroU32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { identical: count(3), failures: count(3), reads: count(5) }
    }
}

impl Default for PatternPolicy {
    fn default() -> Self {
        Self { thresholds: Thresholds::default(), tools: BTreeMap::new(), announced: NonZeroU32::MIN }
    }
}

impl PatternPolicy {
    fn of(&self, tool: &ToolRef) -> &Thresholds {
        self.tools.get(tool).unwrap_or(&self.thresholds)
    }
}

/// A pattern that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Which one.
    pub kind: PatternKind,
    /// How far it has gone.
    pub severity: PatternSeverity,
    /// How long the streak is.
    pub count: u32,
}

/// The patterns that are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternKind {
    /// The same call with the same arguments again and again.
    RepeatedCall {
        /// The tool.
        tool: ToolRef,
    },
    /// One tool fails in a row, whatever its arguments.
    ErrorRetry {
        /// The tool.
        tool: ToolRef,
    },
    /// Only reading, never acting.
    ReadOnlyStall,
    /// A turn ended with an announcement, and no call followed it.
    AnnouncedNotDone,
}

/// How far a pattern has gone: at the threshold, one beyond it, three beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PatternSeverity {
    /// It may still be meant.
    Minor,
    /// It probably is not.
    Moderate,
    /// It is not.
    Severe,
}

/// How a call ended, as the patterns see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// It worked.
    Success {
        /// What it gave, where the host tells it. Another result than before is progress.
        result: Option<Digest>,
    },
    /// It failed. An answer that carries an error is a failure here, even if nothing was thrown.
    Failure,
    /// It was denied, cancelled or goes on in the background; that says nothing.
    Nothing,
}

/// Watches the behaviour of one session.
#[derive(Clone, Debug, Default)]
pub struct PatternWatch {
    /// Calls in flight, oldest first.
    open: VecDeque<Open>,
    repeated: Option<Repeated>,
    /// Failures in a row per tool; the tool that failed last is last.
    failing: Vec<(ToolRef, u32)>,
    reads: u32,
    /// The end of what the model said since its last call in this turn.
    said: String,
    announced: u32,
}

#[derive(Clone, Debug)]
struct Open {
    call: ToolCallId,
    tool: ToolRef,
    arguments: Digest,
}

#[derive(Clone, Debug)]
struct Repeated {
    tool: ToolRef,
    arguments: Digest,
    result: Option<Digest>,
    count: u32,
}

impl PatternWatch {
    /// A turn begins. What was read or repeated in the last one does not count any more; a tool that keeps
    /// failing does.
    pub fn on_turn_start(&mut self) {
        self.repeated = None;
        self.reads = 0;
        self.said.clear();
    }

    /// A call begins.
    pub fn on_call_started(
        &mut self,
        policy: &PatternPolicy,
        call: &ToolCallId,
        tool: &ToolRef,
        arguments: Digest,
        class: ToolClass,
    ) -> Vec<Pattern> {
        self.said.clear();
        self.remember(call, tool, arguments);
        let thresholds = policy.of(tool);
        let mut found = Vec::new();
        let repeats = self.repeat(tool, arguments);
        if let Some(severity) = severity(repeats, thresholds.identical) {
            let kind = PatternKind::RepeatedCall { tool: tool.clone() };
            found.push(Pattern { kind, severity, count: repeats });
        }
        self.reads = match class {
            ToolClass::ReadOnly => self.reads.saturating_add(1),
            ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown => 0,
        };
        if let Some(severity) = severity(self.reads, thresholds.reads) {
            found.push(Pattern { kind: PatternKind::ReadOnlyStall, severity, count: self.reads });
        }
        found
    }

    /// A call has ended. An id that is not known says nothing.
    pub fn on_call_ended(&mut self, policy: &PatternPolicy, call: &ToolCallId, end: CallEnd) -> Vec<Pattern> {
        let Some(position) = self.open.iter().position(|open| open.call == *call) else { return Vec::new() };
        let Some(open) = self.open.remove(position) else { return Vec::new() };
        match end {
            CallEnd::Nothing => Vec::new(),
            CallEnd::Success { result } => {
                self.failing.retain(|(tool, _)| *tool != open.tool);
                self.note_result(&open, result);
                Vec::new()
            }
            CallEnd::Failure => {
                let failures = self.count_failure(&open.tool);
                let severity = severity(failures, policy.of(&open.tool).failures);
                let kind = PatternKind::ErrorRetry { tool: open.tool };
                severity.map(|severity| Pattern { kind, severity, count: failures }).into_iter().collect()
            }
        }
    }

    /// The model says something; it may come in pieces.
    pub fn on_text(&mut self, text: &str) {
        self.said.push_str(tail(text));
        let start = self.said.len() - tail(&self.said).len();
        self.said.drain(..start);
    }

    /// The turn is over.
    pub fn on_turn_end(&mut self, policy: &PatternPolicy) -> Vec<Pattern> {
        let announced = announces(&self.said);
        self.said.clear();
        if !announced {
            self.announced = 0;
            return Vec::new();
        }
        self.announced = self.announced.saturating_add(1);
        let severity = severity(self.announced, policy.announced);
        let pattern =
            |severity| Pattern { kind: PatternKind::AnnouncedNotDone, severity, count: self.announced };
        severity.map(pattern).into_iter().collect()
    }

    fn remember(&mut self, call: &ToolCallId, tool: &ToolRef, arguments: Digest) {
        // An id that comes again is the same call told twice; its last start counts.
        self.open.retain(|open| open.call != *call);
        if self.open.len() >= MOST_OPEN {
            self.open.pop_front();
        }
        self.open.push_back(Open { call: call.clone(), tool: tool.clone(), arguments });
    }

    fn repeat(&mut self, tool: &ToolRef, arguments: Digest) -> u32 {
        match &mut self.repeated {
            Some(repeated) if repeated.arguments == arguments && repeated.tool == *tool => {
                repeated.count = repeated.count.saturating_add(1);
                repeated.count
            }
            Some(_) | None => {
                self.repeated = Some(Repeated { tool: tool.clone(), arguments, result: None, count: 1 });
                1
            }
        }
    }

    /// A new result makes a repeated call a useful one: the streak starts with it.
    fn note_result(&mut self, open: &Open, result: Option<Digest>) {
        let Some(repeated) = &mut self.repeated else { return };
        if repeated.arguments != open.arguments || repeated.tool != open.tool {
            return;
        }
        if repeated.result.is_some() && result.is_some() && repeated.result != result {
            repeated.count = 1;
        }
        repeated.result = result.or(repeated.result);
    }

    fn count_failure(&mut self, tool: &ToolRef) -> u32 {
        let position = self.failing.iter().position(|(known, _)| known == tool);
        let (tool, before) =
            position.map_or_else(|| (tool.clone(), 0), |position| self.failing.remove(position));
        if self.failing.len() >= MOST_TOOLS {
            self.failing.remove(0);
        }
        let failures = before.saturating_add(1);
        self.failing.push((tool, failures));
        failures
    }
}

impl Pattern {
    /// A word to the model.
    pub fn nudge(&self) -> String {
        let prefix = match self.severity {
            PatternSeverity::Minor => "[Reminder]",
            PatternSeverity::Moderate => "[Notice]",
            PatternSeverity::Severe => "[Stop]",
        };
        format!("{prefix} {}", self.advice())
    }

    fn advice(&self) -> String {
        use PatternSeverity::{Minor, Moderate, Severe};
        let count = self.count;
        match (&self.kind, self.severity) {
            (PatternKind::RepeatedCall { tool }, Minor) => {
                format!(
                    "You have made the same call to \"{}\" {count} times. You may already have what you need.",
                    tool.tool
                )
            }
            (PatternKind::RepeatedCall { tool }, Moderate) => {
                format!(
                    "The same call to \"{}\" was made {count} times and brings nothing new. Use its result.",
                    tool.tool
                )
            }
            (PatternKind::RepeatedCall { tool }, Severe) => {
                format!(
                    "{count} identical calls to \"{}\". Do something else, or say what you are waiting for.",
                    tool.tool
                )
            }
            (PatternKind::ErrorRetry { tool }, Minor) => {
                format!(
                    "\"{}\" has failed {count} times in a row. Read its error before you call it again.",
                    tool.tool
                )
            }
            (PatternKind::ErrorRetry { tool }, Moderate) => {
                format!(
                    "\"{}\" has failed {count} times in a row. Change the arguments or take another tool.",
                    tool.tool
                )
            }
            (PatternKind::ErrorRetry { tool }, Severe) => {
                format!(
                    "\"{}\" has failed {count} times in a row. Leave it, and report the problem.",
                    tool.tool
                )
            }
            (PatternKind::ReadOnlyStall, Minor) => {
                format!("{count} calls have only read. If you know enough, act.")
            }
            (PatternKind::ReadOnlyStall, Moderate) => {
                format!("{count} calls have only read. Take the next step, or say what is missing.")
            }
            (PatternKind::ReadOnlyStall, Severe) => {
                format!("{count} calls have only read and nothing was done. Act now, or give your findings.")
            }
            (PatternKind::AnnouncedNotDone, Minor) => {
                "You announced a step and did not take it. Make the call.".to_owned()
            }
            (PatternKind::AnnouncedNotDone, Moderate) => {
                format!(
                    "{count} turns have ended with an announcement. Make the call instead of describing it."
                )
            }
            (PatternKind::AnnouncedNotDone, Severe) => {
                format!(
                    "{count} turns have ended with an announcement. Make the call, or say why you cannot."
                )
            }
        }
    }
}

/// The severity that a streak has just reached; nothing in between.
fn severity(count: u32, threshold: NonZeroU32) -> Option<PatternSeverity> {
    match count.checked_sub(threshold.get())? {
        0 => Some(PatternSeverity::Minor),
        1 => Some(PatternSeverity::Moderate),
        3 => Some(PatternSeverity::Severe),
        _ => None,
    }
}

/// Whether a text ends by announcing a step. Only the last sentence counts, and neither a question nor an
/// offer ("let me know") announces anything.
fn announces(said: &str) -> bool {
    let said = said.trim_end().trim_end_matches([':', '…', '*', '_']).trim_end();
    if said.ends_with('?') {
        return false;
    }
    let said = said.trim_end_matches(['.', '!']);
    let last = said.rsplit(['.', '!', '?', '\n']).next().unwrap_or(said).trim_start();
    let last = last.trim_start_matches(['-', '*', '_', '#', ' ']).replace('’', "'").to_lowercase();
    OPENINGS.iter().any(|opening| last.strip_prefix(opening).is_some_and(|rest| !rest.starts_with("know")))
}

/// The last part of a text, as much as is kept.
fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(LONGEST_TAIL);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or("")
}

const fn count(value: u32) -> NonZeroU32 {
    match NonZeroU32::new(value) {
        Some(value) => value,
        None => NonZeroU32::MIN,
    }
}

/// How an announcement begins.
const OPENINGS: [&str; 14] = [
    "let me ",
    "now let me ",
    "i will now ",
    "i'll now ",
    "now i will ",
    "now i'll ",
    "i am going to ",
    "i'm going to ",
    "next, i will ",
    "next, i'll ",
    "proceeding ",
    "executing ",
    "running ",
    "starting ",
];
/// How much of what was said is kept, in bytes; a sentence.
const LONGEST_TAIL: usize = 512;
/// Calls in flight that are remembered.
const MOST_OPEN: usize = 256;
/// Failing tools that are remembered.
const MOST_TOOLS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Namespace, ToolName};

    struct Host {
        watch: PatternWatch,
        policy: PatternPolicy,
        calls: u32,
    }

    impl Host {
        fn new() -> Self {
            Self { watch: PatternWatch::default(), policy: PatternPolicy::default(), calls: 0 }
        }

        fn start(&mut self, name: &str, arguments: &str, class: ToolClass) -> (ToolCallId, Vec<Pattern>) {
            self.calls += 1;
            let id = ToolCallId::new(self.calls.to_string()).unwrap();
            let digest = Digest::of(arguments.as_bytes());
            let found = self.watch.on_call_started(&self.policy, &id, &tool(name), digest, class);
            (id, found)
        }

        fn call(&mut self, name: &str, arguments: &str, class: ToolClass, end: CallEnd) -> Vec<Pattern> {
            let (id, mut found) = self.start(name, arguments, class);
            found.extend(self.watch.on_call_ended(&self.policy, &id, end));
            found
        }

        fn turn(&mut self, text: &str) -> Vec<Pattern> {
            self.watch.on_turn_start();
            self.watch.on_text(text);
            self.watch.on_turn_end(&self.policy)
        }
    }

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new("server").unwrap(), tool: ToolName::new(name).unwrap() }
    }

    const WORKED: CallEnd = CallEnd::Success { result: None };

    /// The lengths and severities at which a streak of ten was told.
    fn told(mut next: impl FnMut() -> Vec<Pattern>) -> Vec<(u32, PatternSeverity)> {
        (0..10).flat_map(|_| next()).map(|pattern| (pattern.count, pattern.severity)).collect()
    }

    #[test]
    fn every_pattern_reaches_every_severity_and_is_told_once_at_each() {
        use PatternSeverity::{Minor, Moderate, Severe};
        let mut host = Host::new();
        assert_eq!(
            told(|| host.call("poke", "{}", ToolClass::Mutating, WORKED)),
            [(3, Minor), (4, Moderate), (6, Severe)]
        );
        let (mut host, mut number) = (Host::new(), 0);
        let mut vary = || {
            number += 1;
            number.to_string()
        };
        assert_eq!(
            told(|| host.call("shell", &vary(), ToolClass::Mutating, CallEnd::Failure)),
            [(3, Minor), (4, Moderate), (6, Severe)]
        );
        assert_eq!(
            told(|| host.call("read", &vary(), ToolClass::ReadOnly, WORKED)),
            [(5, Minor), (6, Moderate), (8, Severe)]
        );
        assert_eq!(told(|| host.turn("Let me fix that now.")), [(1, Minor), (2, Moderate), (4, Severe)]);
    }

    #[test]
    fn reading_different_files_is_no_repetition() {
        let mut host = Host::new();
        for file in ["a", "b", "c", "d"] {
            assert_eq!(host.call("read", file, ToolClass::ReadOnly, WORKED), []);
        }
    }

    #[test]
    fn a_repetition_ends_with_another_call_a_new_result_or_a_new_turn() {
        let result = |byte| CallEnd::Success { result: Some(Digest::from_bytes([byte; 32])) };
        let mut host = Host::new();
        for byte in 0..9 {
            assert_eq!(host.call("poll", "{}", ToolClass::Unknown, result(byte)), [], "each result is new");
        }
        let mut host = Host::new();
        for _ in 0..9 {
            assert_eq!(host.call("edit", "{}", ToolClass::Mutating, WORKED), []);
            assert_eq!(host.call("test", "{}", ToolClass::Unknown, WORKED), []);
        }
        let mut host = Host::new();
        for _ in 0..9 {
            host.watch.on_turn_start();
            assert_eq!(host.call("poll", "{}", ToolClass::Unknown, result(1)), []);
            assert_eq!(host.call("poll", "{}", ToolClass::Unknown, result(1)), []);
        }
    }

    #[test]
    fn results_are_booked_on_their_own_call_when_calls_run_in_parallel() {
        let mut host = Host::new();
        for round in 0..5 {
            let (good, _) = host.start("good", &format!("g{round}"), ToolClass::Mutating);
            let (bad, _) = host.start("bad", &format!("b{round}"), ToolClass::Mutating);
            let found = host.watch.on_call_ended(&host.policy, &good, CallEnd::Failure);
            let tools: Vec<_> = found.iter().map(|pattern| pattern.kind.clone()).collect();
            let expected = PatternKind::ErrorRetry { tool: tool("good") };
            assert_eq!(tools, if round == 2 || round == 3 { vec![expected] } else { vec![] });
            assert_eq!(host.watch.on_call_ended(&host.policy, &bad, WORKED), []);
            assert_eq!(host.watch.on_call_ended(&host.policy, &bad, CallEnd::Failure), [], "it ended before");
        }
    }

    #[test]
    fn only_a_success_of_the_tool_itself_ends_its_failures() {
        let mut host = Host::new();
        host.call("shell", "1", ToolClass::Mutating, CallEnd::Failure);
        host.call("shell", "2", ToolClass::Mutating, CallEnd::Failure);
        host.call("other", "3", ToolClass::Mutating, WORKED);
        host.call("shell", "4", ToolClass::Mutating, CallEnd::Nothing);
        host.watch.on_turn_start();
        assert_eq!(host.call("shell", "5", ToolClass::Mutating, CallEnd::Failure).len(), 1);
        host.call("shell", "6", ToolClass::Mutating, WORKED);
        assert_eq!(host.call("shell", "7", ToolClass::Mutating, CallEnd::Failure), []);
    }

    #[test]
    fn a_tool_can_have_thresholds_of_its_own() {
        let mut host = Host::new();
        let strict = Thresholds { failures: count(1), ..Thresholds::default() };
        host.policy.tools.insert(tool("shell"), strict);
        assert_eq!(host.call("shell", "1", ToolClass::Mutating, CallEnd::Failure).len(), 1);
        assert_eq!(host.call("search", "1", ToolClass::Mutating, CallEnd::Failure), []);
    }

    #[test]
    fn acting_ends_a_stall() {
        let mut host = Host::new();
        for file in ["a", "b", "c", "d"] {
            host.call("read", file, ToolClass::ReadOnly, WORKED);
        }
        host.call("edit", "a", ToolClass::Mutating, WORKED);
        for file in ["a", "b", "c", "d"] {
            assert_eq!(host.call("read", file, ToolClass::ReadOnly, WORKED), []);
        }
        assert_eq!(host.call("read", "e", ToolClass::ReadOnly, WORKED).len(), 1);
    }

    #[test]
    fn an_announcement_is_the_last_sentence_of_a_turn_and_not_an_offer_or_a_question() {
        for (text, announced) in [
            ("I see the problem. Let me fix it.", true),
            ("Let me check:", true),
            ("All good.\n\n**I’ll now run the tests**", true),
            ("Proceeding with the migration…", true),
            ("Let me know if you need more.", false),
            ("Let me fix it. Done, the tests pass.", false),
            ("Shall I? Let me ask: is it version 2?", false),
            ("The file tells me to wait.", false),
            ("", false),
        ] {
            assert_eq!(!Host::new().turn(text).is_empty(), announced, "{text:?}");
        }
    }

    #[test]
    fn an_announcement_that_a_call_follows_is_kept() {
        let mut host = Host::new();
        host.watch.on_turn_start();
        host.watch.on_text("Let me ");
        host.watch.on_text("fix it.");
        host.call("edit", "a", ToolClass::Mutating, WORKED);
        assert_eq!(host.watch.on_turn_end(&host.policy), []);
        host.watch.on_turn_start();
        host.watch.on_text("Let me ");
        host.watch.on_text("fix it.");
        assert_eq!(host.watch.on_turn_end(&host.policy).len(), 1, "in pieces, and nothing followed");
    }

    #[test]
    fn nudges_differ_by_pattern_and_severity_and_are_short() {
        use PatternSeverity::{Minor, Moderate, Severe};
        let mut seen = std::collections::BTreeSet::new();
        for kind in [
            PatternKind::RepeatedCall { tool: tool("shell") },
            PatternKind::ErrorRetry { tool: tool("shell") },
            PatternKind::ReadOnlyStall,
            PatternKind::AnnouncedNotDone,
        ] {
            for severity in [Minor, Moderate, Severe] {
                let nudge = Pattern { kind: kind.clone(), severity, count: 7 }.nudge();
                assert!(nudge.starts_with('[') && nudge.len() < 120, "{nudge}");
                assert!(seen.insert(nudge));
            }
        }
    }

    #[test]
    fn memory_stays_bounded_whatever_a_host_sends() {
        let mut host = Host::new();
        for number in 0..1000 {
            host.start(&format!("t{number}"), "{}", ToolClass::Unknown);
            host.call(&format!("u{number}"), "{}", ToolClass::Unknown, CallEnd::Failure);
            host.watch.on_text(&"é".repeat(700));
        }
        assert!((MOST_OPEN - 1..=MOST_OPEN).contains(&host.watch.open.len()));
        assert_eq!(host.watch.failing.len(), MOST_TOOLS);
        assert_eq!(host.watch.said.len(), LONGEST_TAIL);
    }
}

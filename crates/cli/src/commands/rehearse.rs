//! `steadfast rehearse`: shows which results would change under another configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use steadfast::Timestamp;
use steadfast::admin::replay::{DifferenceKind, RecordedResult, Rehearsal, ReplayDifference, TakenReason};
use steadfast::admin::{CallFacts, Recording};
use steadfast::call::code::Code;
use steadfast::config::{Config, parse_span};

use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, ProgressLine, TextStyle};
use crate::support::recordings::{self, ConfigDiff, RecordingOptions, SettingChange};
use crate::support::setup::runtime;
use crate::support::sources::ConfigFileOptions;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The configuration to rehearse, in place of steadfast.toml of this folder. Of several files, later ones are
    /// stronger.
    #[arg(long = "config", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The configuration in use, if it is not steadfast.toml of this folder.
    #[arg(long = "current", value_name = "FILE")]
    current: Vec<PathBuf>,
    /// Replay the calls since then: `2h`, `24h`. Default: the whole history.
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// Number of calls of each kind to show.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 5)]
    examples: usize,
    #[command(flatten)]
    place: RecordingOptions,
}

/// Settings that may have made a difference.
struct DifferenceCauses {
    /// Changed settings that are related to the difference, or all of them if none is.
    likely: Vec<SettingChange>,
    /// Changed settings that are not. An effect may be indirect: a longer wait between attempts makes a breaker open
    /// later.
    others: Vec<SettingChange>,
}

/// Exit code if results would change.
const DIFFERENT: u8 = 3;

/// Runs `steadfast rehearse`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let since = match &options.since {
        None => Timestamp::ZERO,
        Some(text) => {
            let span = parse_span(text).ok_or_else(|| {
                CommandFailure::Usage(format!(
                    "`--since {text}` is not a valid duration: write 30m, 24h or 7d"
                ))
            })?;
            crate::support::setup::now().before(span)
        }
    };
    let current = ConfigFileOptions::of(options.current.clone()).load()?;
    let new = ConfigFileOptions::of(options.files.clone()).load()?;
    let recording = runtime()?.block_on(async {
        let reach = options.place.find(&options.current, &current).await?;
        let read = reach.recording(since).await;
        reach.close().await;
        read
    })?;
    let rehearsed = RehearsalReport::of(&recording, &current, &new);
    if options.place.json {
        output::print_json(&rehearsed.to_json(options));
    } else {
        output::print_data(&rehearsed.to_text(options, ColourPainter::of_stdout()));
    }
    if rehearsed.differences.is_empty() { Ok(()) } else { Err(CommandFailure::AlreadyReported(DIFFERENT)) }
}

/// Result of a rehearsal.
struct RehearsalReport<'r> {
    recording: &'r Recording,
    differences: Vec<ReplayDifference>,
    /// Changed settings for the calls of each difference.
    because: Vec<DifferenceCauses>,
    not_explained: usize,
    too_little_known: usize,
    /// Changed settings that depend on data that is not recorded.
    not_rehearsed: BTreeSet<SettingChange>,
}

impl<'r> RehearsalReport<'r> {
    fn of(recording: &'r Recording, current: &Config, new: &Config) -> Self {
        let calls = &recording.calls;
        let length = Rehearsal::length(calls);
        let mut progress = ProgressLine::of(2 * length);
        let rehearsal = Rehearsal::of(calls, &mut |call| recordings::policy(current, call), &[], &mut |at| {
            progress.at(at, "moments, as they were");
        });
        let would = rehearsal.replay_under(&mut |call| recordings::policy(new, call), &[], &mut |at| {
            progress.at(length + at, "moments, as they would be");
        });
        drop(progress);
        let differences = rehearsal.differences(&would);
        let mut changes = ConfigDiff::between(current, new);
        let mut not_rehearsed = BTreeSet::new();
        for call in calls {
            let unknown = changes.of(call).iter().filter(|change| change.needs_unrecorded_data());
            not_rehearsed.extend(unknown.cloned());
        }
        let because = |difference: &ReplayDifference| {
            let Some(call) = calls.get(difference.call) else {
                return DifferenceCauses { likely: Vec::new(), others: Vec::new() };
            };
            let (likely, others): (Vec<_>, Vec<_>) = changes
                .of(call)
                .iter()
                .cloned()
                .partition(|change| is_about(difference, &call.ending, change));
            if likely.is_empty() {
                DifferenceCauses { likely: others, others: likely }
            } else {
                DifferenceCauses { likely, others }
            }
        };
        Self {
            because: differences.iter().map(because).collect(),
            not_explained: rehearsal.count_taken(TakenReason::NotExplained),
            too_little_known: rehearsal.count_taken(TakenReason::InsufficientRecord),
            recording,
            differences,
            not_rehearsed,
        }
    }

    fn facts(&self, difference: &ReplayDifference) -> Option<&CallFacts> {
        self.recording.facts.get(difference.call)
    }

    /// Returns the differences of this kind, each with the changed settings.
    fn of_kind(&self, kind: DifferenceKind) -> impl Iterator<Item = (&ReplayDifference, &DifferenceCauses)> {
        self.differences.iter().zip(&self.because).filter(move |(difference, _)| difference.kind == kind)
    }

    fn to_text(&self, options: &Options, paint: ColourPainter) -> String {
        let calls = self.recording.facts.len();
        let Some(first) = self.recording.facts.first() else {
            let since =
                options.since.as_ref().map(|since| format!(" in the last {since}")).unwrap_or_default();
            let mut lines = vec![format!("no call is recorded{since}: nothing to rehearse")];
            lines.extend(self.omissions().into_iter().map(|line| format!("  {line}")));
            return lines.join("\n");
        };
        let mut lines = vec![match self.differences.len() {
            0 if calls == 1 => paint.paint(TextStyle::Good, "1 call, and its result would not change"),
            0 => paint.paint(TextStyle::Good, &format!("{calls} calls, and no result would change")),
            1 => paint.paint(TextStyle::Warn, &format!("1 of {calls} results would change")),
            many => paint.paint(TextStyle::Warn, &format!("{many} of {calls} results would change")),
        }];
        lines.push(format!("  the first call came at {}", first.arrived));
        lines.extend(self.omissions().into_iter().map(|line| format!("  {line}")));
        for kind in DifferenceKind::ALL {
            let of_kind: Vec<_> = self.of_kind(kind).collect();
            if of_kind.is_empty() {
                continue;
            }
            let in_doubt = of_kind.iter().filter(|(difference, _)| difference.in_doubt).count();
            let doubt = if in_doubt > 0 {
                format!(" ({in_doubt} of them after a step with an unknown outcome)")
            } else {
                String::new()
            };
            lines.push(String::new());
            lines.push(format!("{}: {}{doubt}", paint.paint(TextStyle::Bold, words(kind)), of_kind.len()));
            let likely: BTreeSet<_> = of_kind.iter().flat_map(|(_, because)| &because.likely).collect();
            let others: BTreeSet<_> = of_kind.iter().flat_map(|(_, because)| &because.others).collect();
            let others = others.difference(&likely).count();
            lines.extend(likely.iter().map(|changed| format!("  {}", output::clean(&changed.to_text()))));
            lines.extend(recordings::and_more(others, !likely.is_empty()).map(|more| format!("  {more}")));
            for (difference, _) in of_kind.iter().take(options.examples) {
                self.example(difference, paint, &mut lines);
            }
            let more = of_kind.len().saturating_sub(options.examples);
            if more > 0 {
                lines.push(
                    paint.paint(TextStyle::Dim, &format!("    and {more} more (`-n COUNT` shows them)")),
                );
            }
        }
        lines.join("\n")
    }

    /// Two lines, so that old and new result are aligned even on a narrow terminal.
    fn example(&self, difference: &ReplayDifference, paint: ColourPainter, lines: &mut Vec<String>) {
        let (Some(facts), Some(call)) = (self.facts(difference), self.recording.calls.get(difference.call))
        else {
            return;
        };
        let would = match &difference.would {
            Some(would) => format!("would be {}", output::clean(&ending(would))),
            None => "the result is not known".to_owned(),
        };
        lines.push(format!(
            "    {}  {}  {}",
            paint.paint(TextStyle::Bold, &output::clean(facts.request_id.as_str())),
            output::clean(&facts.tool.to_string()),
            paint.paint(TextStyle::Dim, &facts.arrived.to_string())
        ));
        let was = output::clean(&ending(&call.ending));
        lines.push(format!("      was {was}; {}", paint.paint(TextStyle::Warn, &would)));
    }

    fn omissions(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.not_explained > 0 {
            lines.push(format!(
                "{} taken as recorded: the current configuration does not lead to the recorded result (the configuration was different, an operator, another process or a call that still runs influenced it, or it began before the history)",
                count_calls(self.not_explained)
            ));
        }
        if self.too_little_known > 0 {
            lines.push(format!(
                "{} taken as recorded: recorded by an older version, or with too many events",
                count_calls(self.too_little_known)
            ));
        }
        if self.recording.unreadable > 0 {
            lines.push(format!(
                "{} left out: recorded by a newer version",
                count_calls(self.recording.unreadable)
            ));
        }
        for changed in &self.not_rehearsed {
            lines.push(format!(
                "not rehearsed, because parameters and results are not recorded: {}",
                output::clean(&changed.to_text())
            ));
        }
        lines
    }

    fn to_json(&self, options: &Options) -> Value {
        let example = |(difference, because): (&ReplayDifference, &DifferenceCauses)| {
            let facts = self.facts(difference)?;
            let call = self.recording.calls.get(difference.call)?;
            Some(json!({
                "requestId": facts.request_id,
                "tool": facts.tool.to_string(),
                "arrivedAtMs": facts.arrived,
                "was": call.ending,
                "would": difference.would,
                "inDoubt": difference.in_doubt,
                "because": because.likely.iter().map(SettingChange::to_json).collect::<Vec<_>>(),
                "otherChanges": because.others.iter().map(SettingChange::to_json).collect::<Vec<_>>(),
            }))
        };
        let kinds: Vec<_> = DifferenceKind::ALL
            .into_iter()
            .filter(|kind| self.of_kind(*kind).next().is_some())
            .map(|kind| {
                json!({
                    "kind": kind,
                    "calls": self.of_kind(kind).count(),
                    "examples": self.of_kind(kind).take(options.examples).filter_map(example).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "calls": self.recording.facts.len(),
            "differences": self.differences.len(),
            "notExplained": self.not_explained,
            "tooLittleKnown": self.too_little_known,
            "unreadable": self.recording.unreadable,
            "notRehearsed": self.not_rehearsed.iter().map(SettingChange::to_json).collect::<Vec<_>>(),
            "kinds": kinds,
        })
    }
}

fn count_calls(calls: usize) -> String {
    if calls == 1 { "1 call was".to_owned() } else { format!("{calls} calls were") }
}

/// Describes a result in a few words.
pub(crate) fn ending(ending: &RecordedResult) -> String {
    let mut text = match (ending.code, &ending.rule) {
        (None, _) if ending.input_required => "a question".to_owned(),
        (None, _) => "success".to_owned(),
        (Some(code), Some(rule)) if rule != code.as_str() => format!("{code} by {rule}"),
        (Some(code), _) => code.to_string(),
    };
    if ending.replayed {
        text.push_str(", replayed");
    } else if ending.attempts != 1 {
        text.push_str(&format!(", {} attempts", ending.attempts));
    }
    text
}

fn words(kind: DifferenceKind) -> &'static str {
    match kind {
        DifferenceKind::RefusedByBreaker => "refused by the breaker",
        DifferenceKind::RefusedByGuard => "refused by the guard",
        DifferenceKind::ApprovalRequested => "approval required first",
        DifferenceKind::Replayed => "replayed from an earlier call",
        DifferenceKind::RetriedMore => "retried more often; the result is not known",
        DifferenceKind::RetriedLess => "retried less often",
        DifferenceKind::RunAlthoughRefused => "run, and no longer refused",
        DifferenceKind::RunInsteadOfReplay => "run, and no longer replayed from an earlier call",
        DifferenceKind::GivenMoreTime => "more time; the result is not known",
        DifferenceKind::AnsweredDifferently => "a different message",
    }
}

/// Returns true if this setting is related to the difference.
fn is_about(difference: &ReplayDifference, was: &RecordedResult, changed: &SettingChange) -> bool {
    let prefixes: &[&str] = match difference.kind {
        DifferenceKind::RefusedByBreaker => &["breaker."],
        DifferenceKind::RefusedByGuard => &["guard."],
        DifferenceKind::ApprovalRequested => &["trust.", "approval", "dangerous", "shapes."],
        DifferenceKind::Replayed | DifferenceKind::RunInsteadOfReplay => &["dedupe.", "mode"],
        DifferenceKind::RetriedMore | DifferenceKind::RetriedLess => {
            &["retry.", "ambiguous", "retry_safe", "honours_key", "last_retry"]
        }
        DifferenceKind::GivenMoreTime => &["timeout", "stuck_after", "total_timeout", "answer_by"],
        DifferenceKind::RunAlthoughRefused => match was.code {
            Some(Code::CircuitOpen) => &["breaker."],
            Some(Code::LoopDetected | Code::ToolErrorLimit) => &["guard."],
            Some(Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked) => {
                &["trust.", "approval"]
            }
            Some(Code::Overloaded) => &["limits."],
            Some(_) | None => &[],
        },
        DifferenceKind::AnsweredDifferently => &[],
    };
    prefixes.iter().any(|prefix| changed.setting.starts_with(prefix))
}

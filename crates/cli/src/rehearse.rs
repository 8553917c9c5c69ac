//! `steadfast rehearse`: which answers would be others under another configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use steadfast::code::Code;
use steadfast::rehearse::{Difference, Ending, Kind, Rehearsal, WhyTaken};
use steadfast::{CallFacts, Config, Recording, Timestamp, parse_span};

use crate::failure::Failure;
use crate::output::{self, Look, Paint, Progress, Table};
use crate::recorded::{self, Changed, Changes, Where};
use crate::sources::Chosen;
use crate::state::runtime;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The configuration to rehearse, in place of steadfast.toml of this folder. Of several files, later ones are stronger.
    #[arg(long = "config", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The configuration that is in force, where it is not steadfast.toml of this folder.
    #[arg(long = "current", value_name = "FILE")]
    current: Vec<PathBuf>,
    /// Replays the calls that came since then: `2h`, `24h`. As far back as the history goes, if it does not say.
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// How many calls of each kind are shown.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 5)]
    examples: usize,
    #[command(flatten)]
    place: Where,
}

/// What the process ends with where answers would be others.
const DIFFERENT: u8 = 3;

/// `steadfast rehearse`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let since = match &options.since {
        None => Timestamp::ZERO,
        Some(text) => {
            let span = parse_span(text).ok_or_else(|| {
                Failure::Usage(format!("`--since {text}` is no span of time: write 30m, 24h or 7d"))
            })?;
            crate::now().before(span)
        }
    };
    let current = Chosen::of(options.current.clone()).load()?;
    let new = Chosen::of(options.files.clone()).load()?;
    let recording = runtime()?.block_on(async {
        let reach = options.place.find(&options.current, &current).await?;
        let read = reach.recording(since).await;
        reach.close().await;
        read
    })?;
    let rehearsed = Rehearsed::of(&recording, &current, &new);
    if options.place.json {
        output::say_json(&rehearsed.to_json(options));
    } else {
        output::say(&rehearsed.in_words(options, Paint::of_stdout()));
    }
    if rehearsed.differences.is_empty() { Ok(()) } else { Err(Failure::Told(DIFFERENT)) }
}

/// What came of it.
struct Rehearsed<'r> {
    recording: &'r Recording,
    differences: Vec<Difference>,
    /// What was changed for the calls of each difference.
    because: Vec<Vec<Changed>>,
    not_explained: usize,
    too_little_known: usize,
    /// Settings that were changed and decide by what is not recorded.
    not_rehearsed: BTreeSet<Changed>,
}

impl<'r> Rehearsed<'r> {
    fn of(recording: &'r Recording, current: &Config, new: &Config) -> Self {
        let calls = &recording.calls;
        let length = Rehearsal::length(calls);
        let mut progress = Progress::of(2 * length);
        let rehearsal = Rehearsal::of(calls, &mut |call| recorded::policy(current, call), None, &mut |at| {
            progress.at(at, "moments, as they were");
        });
        let would = rehearsal.under(&mut |call| recorded::policy(new, call), None, &mut |at| {
            progress.at(length + at, "moments, as they would be");
        });
        drop(progress);
        let differences = rehearsal.differences(&would);
        let mut changes = Changes::between(current, new);
        let mut not_rehearsed = BTreeSet::new();
        for call in calls {
            let unknown = changes.of(call).iter().filter(|change| change.needs_what_is_not_recorded());
            not_rehearsed.extend(unknown.cloned());
        }
        let because = |difference: &Difference| {
            let Some(call) = calls.get(difference.call) else { return Vec::new() };
            let changed = changes.of(call);
            let about: Vec<_> =
                changed.iter().filter(|change| is_about(difference, &call.ending, change)).cloned().collect();
            if about.is_empty() { changed.to_vec() } else { about }
        };
        Self {
            because: differences.iter().map(because).collect(),
            not_explained: rehearsal.taken(WhyTaken::NotExplained),
            too_little_known: rehearsal.taken(WhyTaken::TooLittleIsKnown),
            recording,
            differences,
            not_rehearsed,
        }
    }

    fn facts(&self, difference: &Difference) -> Option<&CallFacts> {
        self.recording.facts.get(difference.call)
    }

    /// The differences of this kind, each with what was changed.
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Difference, &Vec<Changed>)> {
        self.differences.iter().zip(&self.because).filter(move |(difference, _)| difference.kind == kind)
    }

    fn in_words(&self, options: &Options, paint: Paint) -> String {
        let calls = self.recording.facts.len();
        let Some(first) = self.recording.facts.first() else {
            return "no call is recorded there: nothing to rehearse".to_owned();
        };
        let mut lines = vec![match self.differences.len() {
            0 => paint.paint(Look::Good, &format!("{} calls, and no answer would change", calls)),
            1 => paint.paint(Look::Warn, &format!("1 of {calls} answers would change")),
            many => paint.paint(Look::Warn, &format!("{many} of {calls} answers would change")),
        }];
        lines.push(format!("  calls since {}", first.arrived));
        lines.extend(self.what_was_left_out().into_iter().map(|line| format!("  {line}")));
        for kind in Kind::ALL {
            let of_kind: Vec<_> = self.of_kind(kind).collect();
            if of_kind.is_empty() {
                continue;
            }
            let in_doubt = of_kind.iter().filter(|(difference, _)| difference.in_doubt).count();
            let doubt = if in_doubt > 0 {
                format!(" ({in_doubt} of them after something whose outcome nobody knows)")
            } else {
                String::new()
            };
            lines.push(String::new());
            lines.push(format!("{}: {}{doubt}", paint.paint(Look::Bold, words(kind)), of_kind.len()));
            let because: BTreeSet<_> = of_kind.iter().flat_map(|(_, changed)| changed.iter()).collect();
            lines.extend(because.into_iter().map(|changed| format!("  {}", changed.in_words())));
            lines.push(
                self.examples(of_kind.iter().map(|(difference, _)| *difference), options).draw(paint, 2),
            );
        }
        lines.join("\n")
    }

    fn examples<'d>(&self, of_kind: impl Iterator<Item = &'d Difference>, options: &Options) -> Table {
        let mut table = Table::new(&["REQUEST", "TOOL", "WHEN", "WAS", "WOULD BE"]);
        for difference in of_kind.take(options.examples) {
            let Some(facts) = self.facts(difference) else { continue };
            let was = self.recording.calls.get(difference.call).map(|call| ending(&call.ending));
            let would = match &difference.would {
                Some(would) => ending(would),
                None => "not known".to_owned(),
            };
            table.row([
                (Look::Bold, facts.request_id.to_string()),
                (Look::Plain, facts.tool.to_string()),
                (Look::Dim, facts.arrived.to_string()),
                (Look::Plain, was.unwrap_or_default()),
                (Look::Warn, would),
            ]);
        }
        table
    }

    fn what_was_left_out(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.not_explained > 0 {
            lines.push(format!(
                "{} were taken as they were: the configuration that is in force does not lead to the answers that they got \
                 (it was another one then, a person or another process had a hand in it, or it began before the history)",
                self.not_explained
            ));
        }
        if self.too_little_known > 0 {
            lines.push(format!(
                "{} were taken as they were: an older version recorded them, or too much happened to them",
                self.too_little_known
            ));
        }
        if self.recording.unreadable > 0 {
            lines
                .push(format!("{} cannot be read: a newer version recorded them", self.recording.unreadable));
        }
        for changed in &self.not_rehearsed {
            lines.push(format!(
                "not rehearsed, because parameters and answers are not recorded: {}",
                changed.in_words()
            ));
        }
        lines
    }

    fn to_json(&self, options: &Options) -> Value {
        let example = |(difference, because): (&Difference, &Vec<Changed>)| {
            let facts = self.facts(difference)?;
            let call = self.recording.calls.get(difference.call)?;
            Some(json!({
                "requestId": facts.request_id,
                "tool": facts.tool.to_string(),
                "arrivedAtMs": facts.arrived,
                "was": call.ending,
                "would": difference.would,
                "inDoubt": difference.in_doubt,
                "because": because.iter().map(as_json).collect::<Vec<_>>(),
            }))
        };
        let kinds: Vec<_> = Kind::ALL
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
            "notRehearsed": self.not_rehearsed.iter().map(as_json).collect::<Vec<_>>(),
            "kinds": kinds,
        })
    }
}

fn as_json(changed: &Changed) -> Value {
    json!({ "setting": changed.setting, "from": changed.from, "to": changed.to, "decidedBy": changed.by })
}

/// An answer in a few words.
pub(crate) fn ending(ending: &Ending) -> String {
    let mut text = match (ending.code, &ending.rule) {
        (None, _) if ending.input_required => "a question".to_owned(),
        (None, _) => "success".to_owned(),
        (Some(code), Some(rule)) if rule != code.as_str() => format!("{code} by {rule}"),
        (Some(code), _) => code.to_string(),
    };
    if ending.replayed {
        text.push_str(", given again");
    } else if ending.attempts != 1 {
        text.push_str(&format!(", {} attempts", ending.attempts));
    }
    text
}

fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::RefusedByBreaker => "refused by the breaker",
        Kind::RefusedByGuard => "refused by the guard",
        Kind::ApprovalAsked => "a person asked first",
        Kind::Replayed => "answered from an earlier call",
        Kind::RetriedMore => "tried more often; what comes of it is not known",
        Kind::RetriedLess => "tried less often",
        Kind::RunAlthoughRefused => "run, and not refused any more",
        Kind::RunInsteadOfReplay => "run, and not answered from an earlier call any more",
        Kind::GivenMoreTime => "given more time; what comes of it is not known",
        Kind::AnsweredDifferently => "told something else",
    }
}

/// Whether this setting is about what makes the difference.
fn is_about(difference: &Difference, was: &Ending, changed: &Changed) -> bool {
    let prefixes: &[&str] = match difference.kind {
        Kind::RefusedByBreaker => &["breaker."],
        Kind::RefusedByGuard => &["guard."],
        Kind::ApprovalAsked => &["trust.", "approval", "dangerous", "danger."],
        Kind::Replayed | Kind::RunInsteadOfReplay => &["dedupe.", "mode"],
        Kind::RetriedMore | Kind::RetriedLess => {
            &["retry.", "ambiguous", "retry_safe", "honours_key", "last_retry"]
        }
        Kind::GivenMoreTime => &["timeout", "stuck_after", "total_timeout", "answer_by"],
        Kind::RunAlthoughRefused => match was.code {
            Some(Code::CircuitOpen) => &["breaker."],
            Some(Code::LoopDetected | Code::ToolErrorLimit) => &["guard."],
            Some(Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked) => {
                &["trust.", "approval"]
            }
            Some(Code::Overloaded) => &["limits."],
            Some(_) | None => &[],
        },
        Kind::AnsweredDifferently => &[],
    };
    prefixes.iter().any(|prefix| changed.setting.starts_with(prefix))
}

//! `steadfast explain`: the steps of a call or a turn, with the rule that decided each step and the origin of that
//! rule.

mod call;
mod deciding_settings;

use std::path::PathBuf;
use std::time::Duration;

use call::ExplainedCall;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use steadfast::Timestamp;
use steadfast::admin::replay::{Rehearsal, ReplayResult};
use steadfast::admin::{CallFacts, Recording};
use steadfast::config::{CommandLineFlag, Config};
use steadfast_api::queries::{SpanView, TraceView};
use steadfast_core::millis;

use crate::commands::trace;
use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, ProgressLine, TextStyle};
use crate::support::recordings::{self, RecordingOptions};
use crate::support::setup::runtime;
use crate::support::sources::ConfigFileOptions;
use crate::support::target::{ApiRequest, OperatorConnection};
use crate::support::views;
use crate::support::waterfall;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The call, by the id of its request; or the turn, by its name or its trace id.
    #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    id: String,
    /// Also show what would be different under this profile.
    #[arg(long, value_name = "NAME")]
    profile: Option<ProfileName>,
    /// The configuration in use, if it is not steadfast.toml of this folder.
    #[arg(long = "config", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    place: RecordingOptions,
}

/// A profile by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    Standard,
    Measured,
    Stepped,
}

impl ProfileName {
    const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Measured => "measured",
            Self::Stepped => "stepped",
        }
    }
}

/// Subject of an id.
enum ExplainSubject {
    Call,
    Turn(Box<TraceView>),
}

/// Runs `steadfast explain`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let chosen = ConfigFileOptions::of(options.files.clone());
    let config = chosen.load()?;
    let other = match options.profile {
        None => None,
        Some(profile) => Some((profile, under_profile(&chosen, profile)?)),
    };
    let (mut recording, found) = runtime()?.block_on(async {
        let reach = options.place.find(&options.files, &config).await?;
        let read = read(&reach, &options.id).await;
        reach.close().await;
        read
    })?;
    let targets: Vec<usize> = match &found {
        // If several calls have the same id, the last one is explained.
        ExplainSubject::Call => under_id(&recording, &options.id).last().into_iter().collect(),
        ExplainSubject::Turn(trace_view) => {
            spans(trace_view).filter_map(|span| made_for(&recording, span)).collect()
        }
    };
    // Later calls do not matter for the explanation.
    let last_end =
        targets.iter().filter_map(|index| recording.calls.get(*index)).map(|call| call.finished).max();
    let until = recording.calls.iter().take_while(|call| Some(call.arrived) <= last_end).count();
    let last = targets.iter().max().map_or(0, |last| last + 1);
    recording.calls.truncate(until.max(last));
    let mut progress = ProgressLine::of(2 * Rehearsal::length(&recording.calls));
    let mut shown = |at| progress.at(at, "moments");
    let rehearsal =
        Rehearsal::of(&recording.calls, &mut |call| recordings::policy(&config, call), &targets, &mut shown);
    let would: Option<(ProfileName, &Config, ReplayResult)> = other.as_ref().map(|(profile, other)| {
        let would = rehearsal.replay_under(&mut |call| recordings::policy(other, call), &targets, &mut shown);
        (*profile, other, would)
    });
    drop(progress);
    let replay = ReplayedRecording {
        recording: &recording,
        config: &config,
        rehearsal: &rehearsal,
        would: would.as_ref(),
    };
    match &found {
        ExplainSubject::Call => replay.print_call(options, targets.first().copied()),
        ExplainSubject::Turn(trace_view) => replay.print_turn(options, trace_view),
    }
}

fn under_profile(chosen: &ConfigFileOptions, profile: ProfileName) -> Result<Config, CommandFailure> {
    let mut sources = chosen.sources();
    sources.flags.push(CommandLineFlag {
        name: "--profile".to_owned(),
        setting: "profile".to_owned(),
        value: profile.name().to_owned(),
    });
    Ok(Config::load(&sources)?)
}

/// Returns the subject of an id, with everything that is stored about it.
async fn read(reach: &OperatorConnection, id: &str) -> Result<(Recording, ExplainSubject), CommandFailure> {
    let mut found = find(reach, id).await?;
    if found.is_none() {
        // A call that just ended is written a moment later.
        tokio::time::sleep(WRITE_DELAY).await;
        found = find(reach, id).await?;
    }
    let found = found.ok_or_else(|| not_stored(id))?;
    Ok((reach.recording(Timestamp::ZERO).await?, found))
}

const WRITE_DELAY: Duration = Duration::from_millis(250);

async fn find(reach: &OperatorConnection, id: &str) -> Result<Option<ExplainSubject>, CommandFailure> {
    let calls =
        reach.send(ApiRequest::get("/v1/history").with("request", Some(id)).with("limit", Some("1"))).await?;
    if !views::list(&calls, "/calls").is_empty() {
        return Ok(Some(ExplainSubject::Call));
    }
    Ok(trace::find(reach, id).await?.map(|trace_view| ExplainSubject::Turn(Box::new(trace_view))))
}

fn not_stored(id: &str) -> CommandFailure {
    CommandFailure::Environment(format!(
        "no stored call or turn has the id `{}`: a call can be explained after it has ended, for as long as `history.keep`; `steadfast tail --once -n 50` lists the last ones",
        output::clean(id)
    ))
}

/// Returns the indices of the calls with this id.
fn under_id<'r>(recording: &'r Recording, id: &'r str) -> impl Iterator<Item = usize> + 'r {
    let calls = recording.facts.iter().enumerate();
    calls.filter(move |(_, facts)| facts.request_id.as_str() == id).map(|(index, _)| index)
}

/// Returns the spans of the calls that a turn made.
fn spans(trace_view: &TraceView) -> impl Iterator<Item = &SpanView> {
    trace_view.spans.iter().filter(|span| span.request_id.is_some())
}

/// Returns the call of a span. Turns that share a trace number their requests from one each, so the time decides.
fn made_for(recording: &Recording, span: &SpanView) -> Option<usize> {
    let distance = |index: &usize| {
        let arrived = recording.facts.get(*index).map_or(Timestamp::ZERO, |facts| facts.arrived);
        arrived.since(span.started_at).max(span.started_at.since(arrived))
    };
    under_id(recording, span.request_id.as_ref()?.as_str()).min_by_key(distance)
}

/// A recording that was replayed.
#[derive(Clone, Copy)]
struct ReplayedRecording<'r> {
    recording: &'r Recording,
    config: &'r Config,
    rehearsal: &'r Rehearsal<'r>,
    would: Option<&'r (ProfileName, &'r Config, ReplayResult)>,
}

impl<'r> ReplayedRecording<'r> {
    fn facts(self, index: usize) -> Option<&'r CallFacts> {
        self.recording.facts.get(index)
    }

    fn print_call(self, options: &Options, index: Option<usize>) -> Result<(), CommandFailure> {
        let call =
            index.and_then(|index| ExplainedCall::of(self, index)).ok_or_else(|| not_stored(&options.id))?;
        if options.place.json {
            output::print_json(&call.to_json());
            return Ok(());
        }
        let others = under_id(self.recording, &options.id).count() - 1;
        if others > 0 {
            let word = if others == 1 { "call has" } else { "calls have" };
            output::print_message(&format!(
                "note: {others} earlier {word} the same id; this is the last one"
            ));
        }
        output::print_data(&call.to_text(ColourPainter::of_stdout()));
        Ok(())
    }

    fn print_turn(self, options: &Options, trace_view: &TraceView) -> Result<(), CommandFailure> {
        let calls: Vec<(&SpanView, ExplainedCall<'_>)> = spans(trace_view)
            .filter_map(|span| Some((span, ExplainedCall::of(self, made_for(self.recording, span)?)?)))
            .collect();
        if options.place.json {
            let call_json = |(span, call): &(&SpanView, ExplainedCall<'_>)| {
                let mut value = call.to_json();
                if let Value::Object(fields) = &mut value {
                    fields.insert("id".to_owned(), json!(span.call_id));
                }
                value
            };
            output::print_json(
                &json!({ "turn": trace_view, "calls": calls.iter().map(call_json).collect::<Vec<Value>>() }),
            );
            return Ok(());
        }
        let paint = ColourPainter::of_stdout();
        let mut lines = turn_lines(trace_view, paint);
        for (span, call) in &calls {
            let name = span.call_id.as_ref().map(|id| output::clean(id.as_str())).unwrap_or_default();
            lines.push(String::new());
            lines.push(paint.paint(TextStyle::Bold, &name));
            lines.extend(call.in_turn(paint).lines().map(|line| format!("  {line}").trim_end().to_owned()));
        }
        if calls.iter().any(|(_, call)| call.differs()) {
            lines.push(String::new());
            lines.push("the effect of other results on the turn is not replayed".to_owned());
        }
        output::print_data(&lines.join("\n"));
        Ok(())
    }
}

/// Describes the events of a turn.
fn turn_lines(trace_view: &TraceView, paint: ColourPainter) -> Vec<String> {
    let head = &trace_view.turn;
    let trace = head.trace_id.to_string();
    let name = head.turn_id.as_ref().map_or_else(|| trace.clone(), ToString::to_string);
    let mut lines = vec![format!(
        "{} {}  {} call{}, session {}, trace {trace}",
        paint.paint(TextStyle::Bold, "turn"),
        paint.paint(TextStyle::Bold, &output::clean(&name)),
        head.calls,
        if head.calls == 1 { "" } else { "s" },
        output::clean(head.session.as_str()),
    )];
    lines.push(format!("  began at {}", head.started_at_ms));
    // If several turns share a trace, the trace also contains the turns before this one.
    let began =
        trace_view.events.iter().map(|event| event.timestamp).fold(head.started_at_ms, Timestamp::min);
    for event in &trace_view.events {
        let after = span(millis(event.timestamp.since(began)));
        let call = event.call_id.as_ref().map(|id| format!("  ({})", output::clean(id.as_str())));
        lines.push(format!(
            "  {:>9}  {}{}",
            format!("+{after}"),
            output::clean(&event.sentence),
            paint.paint(TextStyle::Dim, &call.unwrap_or_default())
        ));
    }
    lines.push(match (&head.summary, head.ended_at_ms) {
        (Some(summary), Some(end)) => {
            let took = span(millis(end.since(began)));
            // The last event has the same words.
            let is_repeated = trace_view.events.last().is_some_and(|event| event.sentence == *summary);
            let (_, _, word) = waterfall::turn_state(head);
            let outcome = if is_repeated { word.to_owned() } else { output::clean(summary) };
            format!("  {took:>9}  ended: {outcome}")
        }
        _ => format!("  {:>9}  it has not ended, or its process is gone", ""),
    });
    lines
}

fn span(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{}.{:03} s", ms / 1000, ms % 1000) }
}

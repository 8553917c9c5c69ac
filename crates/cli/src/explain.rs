//! `steadfast explain`: the story of a call or a turn, with the rule that decided each step and where that rule comes from.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use steadfast::code::Code;
use steadfast::path::{Cut, Notice};
use steadfast::rehearse::{End, NotKnown, Recorded, Rehearsal, Replayed, ReplayedCall, WhyTaken};
use steadfast::{CallFacts, CallStep, Config, Explained, Flag, Recording, Timestamp, TurnStory, parse_span};
use steadfast_core::dedupe::ReplayReason;
use steadfast_core::guard::Layer;
use steadfast_core::millis;
use steadfast_core::retry::Stop;

use crate::failure::Failure;
use crate::output::{self, Look, Paint, Progress};
use crate::recorded::{self, Where};
use crate::rehearse::ending;
use crate::sources::Chosen;
use crate::state::runtime;
use crate::trace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The call, by the id of its request; or the turn, by its name or its trace.
    #[arg(value_name = "ID")]
    id: String,
    /// Says also what would have been different under this profile.
    #[arg(long, value_name = "NAME")]
    profile: Option<Named>,
    /// The configuration that is in force, where it is not steadfast.toml of this folder.
    #[arg(long = "config", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    place: Where,
}

/// A profile by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Named {
    Standard,
    Measured,
    Stepped,
}

impl Named {
    const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Measured => "measured",
            Self::Stepped => "stepped",
        }
    }
}

/// `steadfast explain`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let chosen = Chosen::of(options.files.clone());
    let config = chosen.load()?;
    let (recording, turn) = runtime()?.block_on(async {
        let reach = options.place.find(&options.files, &config).await?;
        let read = async {
            let recording = reach.recording(Timestamp::ZERO).await?;
            let is_call = recording.facts.iter().any(|facts| facts.request_id.as_str() == options.id);
            let turn = if is_call { None } else { trace::find(&reach, &options.id).await? };
            Ok::<_, Failure>((recording, turn))
        };
        let read = read.await;
        reach.close().await;
        read
    })?;
    let other = match options.profile {
        None => None,
        Some(profile) => {
            let mut sources = chosen.sources();
            sources.flags.push(Flag {
                name: "--profile".to_owned(),
                setting: "profile".to_owned(),
                value: profile.name().to_owned(),
            });
            Some((profile, Config::load(&sources)?))
        }
    };
    match turn {
        Some(turn) => tell_turn(options, &turn, &recording),
        None => tell_call(options, recording, &config, other.as_ref()),
    }
}

// ---- calls ----

/// A call with its story.
struct Told<'t> {
    facts: &'t CallFacts,
    call: &'t Recorded,
    settings: Vec<Explained>,
    before: &'t ReplayedCall,
    /// Under another profile.
    would: Option<(Named, &'t ReplayedCall)>,
}

/// What decided a step.
enum Decided<'t> {
    Setting(&'t Explained),
    /// A limit in the envelope.
    Caller(String),
}

fn tell_call(
    options: &Options,
    mut recording: Recording,
    config: &Config,
    other: Option<&(Named, Config)>,
) -> Result<(), Failure> {
    // Of several calls under one id the last one is meant.
    let found = recording.facts.iter().rposition(|facts| facts.request_id.as_str() == options.id);
    let Some(index) = found else {
        return Err(Failure::World(format!(
            "no call and no turn `{}` is kept: `steadfast tail --once -n 50` shows the last calls, and `history.keep` says how \
             long they are remembered",
            output::clean(&options.id)
        )));
    };
    // What came after it had ended has nothing to do with it.
    let ended = recording.calls.get(index).map(|call| call.ended);
    let until =
        recording.calls.iter().take_while(|call| ended.is_none_or(|ended| call.arrived <= ended)).count();
    recording.calls.truncate(until.max(index + 1));
    let calls = &recording.calls;
    let mut progress = Progress::of(2 * Rehearsal::length(calls));
    let mut shown = |at| progress.at(at, "moments");
    let rehearsal = Rehearsal::of(calls, &mut |call| recorded::policy(config, call), Some(index), &mut shown);
    let would: Option<(Named, Replayed)> = other.map(|(profile, other)| {
        let would = rehearsal.under(&mut |call| recorded::policy(other, call), Some(index), &mut shown);
        (*profile, would)
    });
    drop(progress);
    let (Some(facts), Some(call), Some(before)) =
        (recording.facts.get(index), calls.get(index), rehearsal.before().calls.get(index))
    else {
        return Ok(());
    };
    let would = would.as_ref().and_then(|(profile, would)| Some((*profile, would.calls.get(index)?)));
    let told = Told { facts, call, settings: recorded::settings(config, call), before, would };
    if options.place.json {
        output::say_json(&told.to_json());
    } else {
        output::say(&told.in_words(Paint::of_stdout()));
    }
    Ok(())
}

impl Told<'_> {
    fn in_words(&self, paint: Paint) -> String {
        let mut lines = vec![format!(
            "{} {}  {} at {}",
            paint.paint(Look::Bold, "call"),
            paint.paint(Look::Bold, &output::clean(self.facts.request_id.as_str())),
            output::clean(&self.facts.tool.to_string()),
            self.facts.arrived
        )];
        lines.extend(self.came_in().into_iter().map(|line| format!("  {line}")));
        lines.push(String::new());
        for (at, notice) in self.steps() {
            let Some(step) = CallStep::of(*at, notice) else { continue };
            lines.push(format!("  {:>9}  {}", self.after(*at), output::clean(&step.text)));
            if let Some(why) = self.why(&step, notice) {
                lines.push(format!("  {:>9}  {}", "", paint.paint(Look::Dim, &output::clean(&why))));
            }
        }
        let look = if self.facts.code.is_none() { Look::Good } else { Look::Bad };
        lines.push(format!(
            "  {:>9}  {}",
            span(self.facts.took_ms),
            paint.paint(look, &format!("ended: {}", ending(&self.call.ending)))
        ));
        if let End::Taken(why) = self.before.end {
            lines.push(String::new());
            lines.push(paint.paint(Look::Warn, &format!("  {}", not_replayed(why))));
        }
        if let Some((profile, would)) = self.would {
            lines.push(String::new());
            lines.extend(self.under(profile, would).into_iter().map(|line| format!("  {line}")));
        }
        lines.join("\n")
    }

    /// What came in, as far as it is remembered.
    fn came_in(&self) -> Vec<String> {
        let facts = self.facts;
        let mut lines = Vec::new();
        let named =
            |name: &str, value: Option<&str>| value.map(|value| format!("{name} {}", output::clean(value)));
        let who = [
            named("session", facts.session.as_ref().map(|one| one.as_str())),
            named("turn", facts.turn.as_ref().map(|one| one.as_str())),
            named("actor", facts.actor.as_ref().map(|one| one.as_str())),
            named("tenant", facts.tenant.as_ref().map(|one| one.as_str())),
            named("model", facts.model.as_ref().map(|one| one.as_str())),
        ];
        lines.extend(
            Some(who.into_iter().flatten().collect::<Vec<_>>().join(", ")).filter(|who| !who.is_empty()),
        );
        let class = self.settings.iter().find(|one| one.setting == "class");
        let class = class.map_or_else(String::new, |one| format!(" ({})", one.origin));
        lines.push(format!("class {}{class}", word(&json!(facts.class))));
        let key = facts.key.as_ref().map(|key| format!(", key {key}")).unwrap_or_default();
        lines.push(format!("arguments {}{key}", facts.digest.fingerprint()));
        lines.extend(
            facts
                .danger
                .as_ref()
                .map(|shape| format!("a command of the dangerous shape {}", output::clean(shape))),
        );
        lines.extend(
            facts
                .invalid_arguments
                .as_ref()
                .map(|why| format!("arguments that do not fit: {}", output::clean(why))),
        );
        lines
    }

    fn steps(&self) -> impl Iterator<Item = &(Timestamp, Notice)> {
        self.before.steps.iter()
    }

    fn after(&self, at: Timestamp) -> String {
        format!("+{}", span(millis(at.since(self.facts.arrived))))
    }

    /// The rule that decided a step, and where it comes from.
    fn why(&self, step: &CallStep, notice: &Notice) -> Option<String> {
        match (&step.rule, self.decided(notice)) {
            (_, Some(Decided::Caller(limit))) => Some(format!("by {limit}, as its caller asked")),
            (_, Some(Decided::Setting(one))) => {
                Some(format!("by {} = {} ({})", one.setting, one.value, one.origin))
            }
            (Some(rule), None) => Some(format!("by the rule {rule}")),
            (None, None) => None,
        }
    }

    /// What decided a step, if it was a setting or a limit of the caller.
    fn decided(&self, notice: &Notice) -> Option<Decided<'_>> {
        if let Some(limit) = self.limit(notice) {
            return Some(Decided::Caller(limit));
        }
        let value = |name: &&str| self.settings.iter().find(|one| one.setting == *name);
        let mut settings = decided_by(notice).iter().filter_map(value);
        let setting = if let Notice::AttemptCut { cut: Cut::Silent(silent) } = notice {
            // Whichever it was that had passed.
            settings.find(|one| parse_span(one.value.trim_matches('"')).is_some_and(|span| span <= *silent))
        } else {
            settings.next()
        };
        setting.map(Decided::Setting)
    }

    /// The limit in the envelope that decided a step.
    fn limit(&self, notice: &Notice) -> Option<String> {
        let limits = &self.call.request.limits;
        let deadline = || limits.deadline.map(|at| format!("deadlineAtMs = {}", at.as_millis()));
        let named = |name: &str, limit: Duration| format!("{name} = {}", millis(limit));
        if let Notice::AttemptCut { cut } = notice {
            match cut {
                Cut::Silent(silent) => {
                    limits.attempt.filter(|limit| limit <= silent).map(|limit| named("timeoutMs", limit))
                }
                Cut::Deadline => deadline(),
                Cut::TooLong | Cut::Cancelled => None,
            }
        } else if let Notice::RetryStopped { stop } = notice {
            match stop {
                Stop::Attempts => {
                    let made = u32::try_from(self.facts.attempts.len()).unwrap_or(u32::MAX);
                    limits.attempts.filter(|most| *most <= made).map(|most| format!("maxAttempts = {most}"))
                }
                Stop::TotalTime => limits.elapsed.map(|limit| named("maxElapsedMs", limit)),
                Stop::Deadline => deadline(),
                Stop::RetryAfter(_) | Stop::Budget => None,
            }
        } else {
            None
        }
    }

    /// The first step that would have been another one.
    fn under(&self, profile: Named, would: &ReplayedCall) -> Vec<String> {
        let name = profile.name();
        if let End::Taken(_) = would.end {
            return vec![format!("what the profile {name} would have made of it cannot be said")];
        }
        let told = |call: &ReplayedCall| -> Vec<(Timestamp, String)> {
            let steps =
                call.steps.iter().filter_map(|(at, notice)| Some((*at, CallStep::of(*at, notice)?.text)));
            steps.collect()
        };
        let (was, is) = (told(self.before), told(would));
        let first = is.iter().zip(&was).position(|(is, was)| is != was).unwrap_or(was.len().min(is.len()));
        if first == was.len() && first == is.len() {
            return vec![format!("under the profile {name} it would have gone the same way")];
        }
        let mut lines = vec![format!("under the profile {name} it would have gone another way:")];
        if let Some((at, text)) = is.get(first) {
            lines.push(format!("{:>9}  {text}", self.after(*at)));
        }
        if let Some((at, text)) = was.get(first) {
            lines.push(format!("{:>9}  instead of ({}) {text}", "", self.after(*at)));
        }
        lines.push(format!("{:>9}  {}", "", end_in_words(&would.end)));
        lines
    }

    fn to_json(&self) -> Value {
        let steps: Vec<_> = self
            .steps()
            .filter_map(|(at, notice)| {
                let step = CallStep::of(*at, notice)?;
                let decided = self.decided(notice);
                let setting = match &decided {
                    Some(Decided::Setting(setting)) => Some(*setting),
                    Some(Decided::Caller(_)) | None => None,
                };
                let by = match &decided {
                    Some(Decided::Setting(setting)) => Some(setting.origin.to_string()),
                    Some(Decided::Caller(limit)) => Some(format!("the caller: {limit}")),
                    None => None,
                };
                Some(json!({
                    "atMs": step.at_ms,
                    "kind": step.kind,
                    "text": step.text,
                    "rule": step.rule,
                    "setting": setting.map(|one| one.setting),
                    "value": setting.map(|one| one.value.clone()),
                    "decidedBy": by,
                }))
            })
            .collect();
        let notes = match self.before.end {
            End::Taken(why) => Some(not_replayed(why)),
            End::Ended(_) | End::NotKnown(_) => None,
        };
        json!({
            "call": self.facts,
            "steps": steps,
            "replayed": notes.is_none(),
            "note": notes,
            "under": self.would.map(|(profile, would)| json!({
                "profile": profile.name(),
                "story": self.under(profile, would),
                "end": end_in_words(&would.end),
            })),
        })
    }
}

fn end_in_words(end: &End) -> String {
    match end {
        End::Ended(one) => format!("it would have ended with {}", ending(one)),
        End::NotKnown(NotKnown::Run { attempt }) => {
            format!("attempt {attempt} would have been made, and nobody knows what would have come of it")
        }
        End::NotKnown(NotKnown::Asked) => {
            "a person would have been asked, and nobody knows what they would have said".to_owned()
        }
        End::Taken(why) => not_replayed(*why).to_owned(),
    }
}

const fn not_replayed(why: WhyTaken) -> &'static str {
    match why {
        WhyTaken::NotExplained => {
            "its answer does not follow from the configuration that is in force and the calls before it: the configuration was \
             another one, a person or another process had a hand in it, or it began before what is remembered; the steps are \
             those of the configuration in force, as far as they go"
        }
        WhyTaken::TooLittleIsKnown => {
            "an older version recorded it, or too much happened to it: its steps are not known"
        }
    }
}

/// The settings that may have decided a step; the first that has a value did.
fn decided_by(notice: &Notice) -> &'static [&'static str] {
    match notice {
        Notice::CallBlocked { code } => match code {
            Code::CircuitOpen => &["breaker.mode"],
            Code::LoopDetected => &["guard.identical"],
            Code::ToolErrorLimit => &["guard.per_turn"],
            Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked => &["approval"],
            Code::IdempotencyConflict => &["dedupe.conflict"],
            Code::StoreUnavailable => &["dedupe.on_store_failure"],
            Code::InvalidArguments => &["validate_arguments"],
            Code::Overloaded => &["limits.concurrency"],
            Code::InvalidEnvelope
            | Code::UnsupportedVersion
            | Code::UnknownTool
            | Code::InFlight
            | Code::RetryExhausted
            | Code::Timeout
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::StuckCall
            | Code::OutcomeUnknown
            | Code::DependencyFailed
            | Code::ResultNotKept
            | Code::UpstreamUnavailable
            | Code::ToolError => &[],
        },
        Notice::Following => &["dedupe.mode"],
        Notice::Replayed { reason } => match reason {
            ReplayReason::SameKey | ReplayReason::Waited => &["dedupe.mode"],
            ReplayReason::Undelivered => &["dedupe.undelivered"],
            ReplayReason::DoubleDispatch => &["dedupe.double_dispatch"],
        },
        Notice::KeyConflict => &["dedupe.conflict"],
        Notice::ApprovalAsked => &["approval"],
        Notice::RetryScheduled { .. } => &["retry.attempts"],
        Notice::RetryStopped { stop } => match stop {
            Stop::Attempts => &["retry.attempts"],
            Stop::TotalTime => &["retry.total"],
            Stop::RetryAfter(_) => &["retry.longest_retry_after"],
            Stop::Budget => &["retry.budget_share"],
            Stop::Deadline => &[],
        },
        Notice::AttemptCut { cut } => match cut {
            Cut::Silent(_) => &["stuck_after", "timeout"],
            Cut::TooLong => &["total_timeout"],
            Cut::Deadline | Cut::Cancelled => &[],
        },
        Notice::AnsweredEarly { code: Code::InFlight } => &["answer_by"],
        Notice::BreakerChanged { transition, .. } => {
            use steadfast::breaker::Reason;
            match transition.reason {
                Reason::Consecutive => &["breaker.consecutive"],
                Reason::Rate => &["breaker.rate"],
                Reason::Slow => &["breaker.slow_rate"],
                Reason::CooledDown => &["breaker.cooldown"],
                Reason::ProbeFailed | Reason::ProbesSucceeded => &["breaker.close_after"],
                Reason::ProbesAnswered => &["breaker.neutral_close_after"],
                Reason::Forced | Reason::Reset => &[],
            }
        }
        Notice::TrustChanged(_) => &["trust.count", "trust.consecutive", "trust.rate"],
        Notice::GuardTripped { layer } => match layer {
            Layer::Loop | Layer::PingPong => &["guard.identical"],
            Layer::TurnLimit => &["guard.per_turn"],
            Layer::RepeatedSuccess => &["guard.repeated_success_after"],
            Layer::NonRetryable => &[],
        },
        Notice::StoreFailed { .. } => &["dedupe.on_store_failure"],
        Notice::WouldHave(_) => &["mode"],
        Notice::OutcomeUnknown => &["ambiguous"],
        Notice::CallStarted { .. }
        | Notice::TookOver
        | Notice::ApprovalEnded { .. }
        | Notice::AttemptStarted { .. }
        | Notice::AttemptEnded { .. }
        | Notice::InputRequired
        | Notice::AnsweredEarly { .. }
        | Notice::ProbeMoved { .. }
        | Notice::FenceLost
        | Notice::CallFinished { .. } => &[],
    }
}

fn span(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{}.{:03} s", ms / 1000, ms % 1000) }
}

/// A word of the API as people read it.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('_', " ")
}

// ---- turns ----

fn tell_turn(options: &Options, story: &TurnStory, recording: &Recording) -> Result<(), Failure> {
    let trace = story.turn.trace_id.to_string();
    let belongs = |facts: &&CallFacts| {
        facts.request_id.as_str().strip_prefix(&*trace).is_some_and(|rest| rest.starts_with('.'))
    };
    let calls: Vec<_> = recording.facts.iter().filter(belongs).collect();
    if options.place.json {
        output::say_json(&json!({ "turn": story, "calls": calls }));
        return Ok(());
    }
    let paint = Paint::of_stdout();
    let head = &story.turn;
    let name = head.turn_id.as_ref().map_or_else(|| trace.clone(), ToString::to_string);
    let mut lines = vec![format!(
        "{} {}  {} call{}, session {}, trace {trace}",
        paint.paint(Look::Bold, "turn"),
        paint.paint(Look::Bold, &output::clean(&name)),
        head.calls,
        if head.calls == 1 { "" } else { "s" },
        output::clean(head.session.as_str()),
    )];
    lines.push(format!("  began at {}", head.started_at_ms));
    for event in &story.events {
        let after = span(millis(event.timestamp.since(head.started_at_ms)));
        lines.push(format!("  {:>9}  {}", format!("+{after}"), output::clean(&event.sentence)));
    }
    lines.push(match (&head.summary, head.ended_at_ms) {
        (Some(summary), Some(ended)) => {
            let took = span(millis(ended.since(head.started_at_ms)));
            format!("  {took:>9}  ended: {}", output::clean(summary))
        }
        _ => "             it has not ended, or its process is gone".to_owned(),
    });
    if !calls.is_empty() {
        lines.push(String::new());
        lines.push("  its calls, each with a story of its own (`steadfast explain ID`):".to_owned());
    }
    for facts in calls {
        let one = recording.facts.iter().position(|other| std::ptr::eq(other, facts));
        let one = one.and_then(|at| recording.calls.get(at)).map(|call| ending(&call.ending));
        let (id, tool) = (output::clean(facts.request_id.as_str()), output::clean(&facts.tool.to_string()));
        lines.push(format!("    {id}  {tool}  {}", one.unwrap_or_default()));
    }
    output::say(&lines.join("\n"));
    Ok(())
}

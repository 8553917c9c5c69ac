//! Explanation of one call: its input, each step with the rule that decided it, its end, and the result under another
//! profile.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast::Timestamp;
use steadfast::admin::CallFacts;
use steadfast::admin::breaker::TransitionReason;
use steadfast::admin::replay::{
    BreakerOpening, RecordedCall, ReplayEnd, ReplayedCall, TakenReason, UnknownResult,
};
use steadfast::call::code::Code;
use steadfast::config::{ExplainedSetting, parse_span};
use steadfast::policy::CallPolicy;
use steadfast::telemetry::{CallNotice, CallStep, CutReason};
use steadfast_core::millis;
use steadfast_core::retry::RetryStop;

use super::deciding_settings::{by_settings, is_built_in, of_breaker};
use super::{ProfileName, ReplayedRecording, span};
use crate::commands::rehearse::ending;
use crate::support::output::{self, ColourPainter, TextStyle};
use crate::support::recordings::{self, ConfigDiff, SettingChange};

/// A call with its explanation.
pub(super) struct ExplainedCall<'t> {
    facts: &'t CallFacts,
    call: &'t RecordedCall,
    settings: Vec<ExplainedSetting>,
    policy: Arc<CallPolicy>,
    before: &'t ReplayedCall,
    /// Call that opened the breaker that refused this call.
    opened_by: Option<(BreakerOpening, &'t CallFacts)>,
    would: Option<ProfileComparison<'t>>,
}

/// The same call under another profile.
struct ProfileComparison<'t> {
    profile: ProfileName,
    call: &'t ReplayedCall,
    /// Settings that differ there.
    changed: Vec<SettingChange>,
}

/// Rule that decided a step.
enum DecidingRule<'t> {
    Setting(&'t ExplainedSetting),
    /// A rule of `classify.rules`.
    Configured(String, &'t ExplainedSetting),
    BuiltIn(String),
    /// A rule that no longer exists.
    Named(String),
    /// A limit in the envelope.
    Caller(String),
}

/// First step at which two replays differ.
struct ReplayDivergence<'s> {
    would: Option<&'s (Timestamp, CallNotice)>,
    was: Option<&'s (Timestamp, CallNotice)>,
}

impl<'t> ExplainedCall<'t> {
    pub(super) fn of(replay: ReplayedRecording<'t>, index: usize) -> Option<Self> {
        let call = replay.recording.calls.get(index)?;
        let before = replay.rehearsal.before().calls.get(index)?;
        // If the call opened the breaker itself, that is one of its own steps.
        let opened_by = before.opened_by.filter(|opened| opened.call != index && is_end(&before.end, call));
        Some(Self {
            facts: replay.facts(index)?,
            call,
            settings: recordings::settings(replay.config, call),
            policy: recordings::policy(replay.config, call),
            before,
            opened_by: opened_by.and_then(|opened| Some((opened, replay.facts(opened.call)?))),
            would: replay.would.and_then(|(profile, config, would)| {
                let changed = ConfigDiff::between(replay.config, config).of(call).to_vec();
                Some(ProfileComparison { profile: *profile, call: would.calls.get(index)?, changed })
            }),
        })
    }

    pub(super) fn to_text(&self, paint: ColourPainter) -> String {
        let mut lines = vec![self.head(paint)];
        let named =
            |name: &str, value: Option<&str>| value.map(|value| format!("{name} {}", output::clean(value)));
        let facts = self.facts;
        let context = [
            named("session", facts.session.as_ref().map(|one| one.as_str())),
            named("turn", facts.turn.as_ref().map(|one| one.as_str())),
            named("actor", facts.actor.as_ref().map(|one| one.as_str())),
            named("tenant", facts.tenant.as_ref().map(|one| one.as_str())),
            named("model", facts.model.as_ref().map(|one| one.as_str())),
        ];
        let context = context.into_iter().flatten().collect::<Vec<_>>().join(", ");
        lines.extend(
            Some(context).filter(|context| !context.is_empty()).map(|context| format!("  {context}")),
        );
        self.write_steps(paint, &mut lines);
        lines.join("\n")
    }

    /// Returns the explanation as part of a turn, whose calls all have the same session.
    pub(super) fn in_turn(&self, paint: ColourPainter) -> String {
        let mut lines = vec![self.head(paint)];
        self.write_steps(paint, &mut lines);
        lines.join("\n")
    }

    /// Returns true if its result would be different under the other profile.
    pub(super) fn differs(&self) -> bool {
        self.would.as_ref().is_some_and(|would| {
            !matches!(would.call.end, ReplayEnd::Taken(_)) && !is_end(&would.call.end, self.call)
        })
    }

    fn head(&self, paint: ColourPainter) -> String {
        format!(
            "{} {}  {} at {}",
            paint.paint(TextStyle::Bold, "call"),
            paint.paint(TextStyle::Bold, &output::clean(self.facts.request_id.as_str())),
            output::clean(&self.facts.tool.to_string()),
            self.facts.arrived
        )
    }

    fn write_steps(&self, paint: ColourPainter, lines: &mut Vec<String>) {
        lines.extend(self.arrival_lines().into_iter().map(|line| format!("  {line}")));
        lines.push(String::new());
        let mut push_line = |time: &str, style, text: &str| {
            lines.push(format!("  {time:>9}  {}", paint.paint(style, &output::clean(text))));
        };
        for (at, notice) in &self.before.steps {
            let Some(step) = CallStep::of(*at, notice) else { continue };
            push_line(&self.after(*at), TextStyle::Plain, &step.text);
            if let Some(decision) = self.deciding_rule(&step, notice) {
                push_line("", TextStyle::Dim, &decision);
            }
        }
        let style = if self.facts.code.is_none() { TextStyle::Good } else { TextStyle::Bad };
        push_line(&span(self.facts.took_ms), style, &format!("ended: {}", ending(&self.call.ending)));
        if let Some(message) = &self.facts.message {
            push_line("", TextStyle::Dim, &format!("told: {message}"));
        }
        if let Some(opened) = self.opened() {
            push_line("", TextStyle::Dim, &opened);
        }
        if let ReplayEnd::Taken(reason) = self.before.end {
            lines.push(String::new());
            lines.push(paint.paint(TextStyle::Warn, &format!("  {}", not_replayed(reason))));
        }
        if let Some(would) = &self.would {
            lines.push(String::new());
            lines.extend(self.under(would).iter().map(|line| format!("  {}", output::clean(line))));
        }
    }

    /// Describes the input, as far as it is stored.
    fn arrival_lines(&self) -> Vec<String> {
        let facts = self.facts;
        let class = self.settings.iter().find(|one| one.setting == "class");
        let class = class.map_or_else(String::new, |one| format!(" ({})", one.origin));
        let key = facts.key.as_ref().map(|key| format!(", key {}", output::clean(key))).unwrap_or_default();
        let mut lines = vec![
            format!("class {}{}", word(&json!(facts.class)), output::clean(&class)),
            format!("arguments {}{key}", facts.digest.fingerprint()),
        ];
        lines.extend(
            facts
                .danger
                .as_ref()
                .map(|shape| format!("a command with the dangerous shape {}", output::clean(shape))),
        );
        lines.extend(
            facts
                .invalid_arguments
                .as_ref()
                .map(|reason| format!("arguments that do not fit: {}", output::clean(reason))),
        );
        lines
    }

    fn after(&self, at: Timestamp) -> String {
        format!("+{}", span(millis(at.since(self.facts.arrived))))
    }

    /// Returns the rule that decided a step, and its origin.
    fn deciding_rule(&self, step: &CallStep, notice: &CallNotice) -> Option<String> {
        let decision = self.decided(step, notice).map(|decided| match decided {
            DecidingRule::Caller(limit) => format!("by {limit}, set by its caller"),
            DecidingRule::Setting(one) => format!("by {}", set(one)),
            DecidingRule::Configured(rule, one) => {
                format!("by the rule {rule} of {} ({})", one.setting, one.origin)
            }
            DecidingRule::BuiltIn(rule) => format!("by the rule {rule} (built in)"),
            DecidingRule::Named(rule) => format!("by the rule {rule}, which no longer exists"),
        });
        // The reason of a trust change is a sentence.
        let reason = step.rule.clone().filter(|_| matches!(notice, CallNotice::TrustChanged(_)));
        let parts: Vec<_> = reason.into_iter().chain(decision).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn decided(&self, step: &CallStep, notice: &CallNotice) -> Option<DecidingRule<'_>> {
        if let Some(limit) = self.limit(notice) {
            return Some(DecidingRule::Caller(limit));
        }
        if let (CallNotice::AttemptEnded { .. }, Some(rule)) = (notice, &step.rule) {
            return Some(self.classified(rule));
        }
        let mut settings = self.settings_of(by_settings(notice));
        let setting = if let CallNotice::CallBlocked { code: Code::Overloaded, .. } = notice {
            let limit = self.facts.rule.as_deref().and_then(|rule| rule.strip_prefix("limit."));
            limit.and_then(|limit| self.setting(&format!("limits.{limit}")))
        } else if let CallNotice::CallBlocked { code: Code::CircuitOpen, .. } = notice
            && self.policy.breaker.forced_open
        {
            self.setting("breaker.force")
        } else if let CallNotice::AttemptCut { cut: CutReason::Silent(silent) } = notice {
            // Finds the timeout that had passed.
            settings.find(|one| parse_span(one.value.trim_matches('"')).is_some_and(|span| span <= *silent))
        } else {
            settings.next()
        };
        match (setting, &step.rule, notice) {
            (Some(setting), _, _) => Some(DecidingRule::Setting(setting)),
            (None, None, _) | (None, Some(_), CallNotice::TrustChanged(_)) => None,
            (None, Some(rule), _) => Some(DecidingRule::BuiltIn(rule.clone())),
        }
    }

    /// Returns the rule that classified a fault.
    fn classified(&self, rule: &str) -> DecidingRule<'_> {
        let named = rule.to_owned();
        match (self.setting("classify.rules"), self.setting("classify.unknown")) {
            (Some(rules), _) if self.policy.classify.has(rule) => DecidingRule::Configured(named, rules),
            (_, Some(unknown)) if rule == "unknown.transport" => DecidingRule::Setting(unknown),
            _ if is_built_in(rule) => DecidingRule::BuiltIn(named),
            _ => DecidingRule::Named(named),
        }
    }

    fn setting(&self, name: &str) -> Option<&ExplainedSetting> {
        self.settings.iter().find(|one| one.setting == name)
    }

    /// Returns the settings that have a value.
    fn settings_of<'s>(&'s self, names: &'s [&'static str]) -> impl Iterator<Item = &'s ExplainedSetting> {
        names.iter().filter_map(|name| self.setting(name)).filter(|one| one.value.trim_matches('"') != "none")
    }

    /// Returns the limit in the envelope that decided a step.
    fn limit(&self, notice: &CallNotice) -> Option<String> {
        let limits = &self.call.request.limits;
        let deadline = || limits.deadline.map(|at| format!("deadlineAtMs = {}", at.as_millis()));
        let named = |name: &str, limit: Duration| format!("{name} = {}", millis(limit));
        if let CallNotice::AttemptCut { cut } = notice {
            match cut {
                CutReason::Silent(silent) => {
                    limits.attempt.filter(|limit| limit <= silent).map(|limit| named("timeoutMs", limit))
                }
                CutReason::Deadline => deadline(),
                CutReason::TooLong | CutReason::Cancelled => None,
            }
        } else if let CallNotice::RetryStopped { stop } = notice {
            match stop {
                RetryStop::Attempts => {
                    let made = u32::try_from(self.facts.attempts.len()).unwrap_or(u32::MAX);
                    limits.attempts.filter(|most| *most <= made).map(|most| format!("maxAttempts = {most}"))
                }
                RetryStop::TotalTime => limits.elapsed.map(|limit| named("maxElapsedMs", limit)),
                RetryStop::Deadline => deadline(),
                RetryStop::RetryAfter(_) | RetryStop::Budget => None,
            }
        } else {
            None
        }
    }

    // ---- origin of an open breaker ----

    fn opened(&self) -> Option<String> {
        let (opened, by) = self.opened_by?;
        let opening =
            format!("the breaker was opened at {} by the call {} of {}", opened.at, by.request_id, by.tool);
        Some(match (opened.reason, self.opened_under()) {
            (TransitionReason::ProbeFailed, _) => {
                format!("{opening}, which was a probe and failed")
            }
            (_, Some(setting)) => format!("{opening}, by {}", set(setting)),
            (_, None) => opening,
        })
    }

    fn opened_under(&self) -> Option<&ExplainedSetting> {
        let (opened, _) = self.opened_by?;
        self.settings_of(of_breaker(opened.reason)).next()
    }

    // ---- another profile ----

    /// Returns the first step at which the replays differ, or `None` if they do not.
    fn divergence(&self, would: &ProfileComparison<'t>) -> Option<ReplayDivergence<'_>> {
        let described =
            |steps: &'t [(Timestamp, CallNotice)]| -> Vec<(&'t (Timestamp, CallNotice), CallStep)> {
                steps.iter().filter_map(|step| Some((step, CallStep::of(step.0, &step.1)?))).collect()
            };
        let (was, is) = (described(&self.before.steps), described(&would.call.steps));
        let same = |((_, is), (_, was)): &(&(_, CallStep), &(_, CallStep))| is == was;
        let first = is.iter().zip(&was).take_while(same).count();
        if first == was.len() && first == is.len() {
            return None;
        }
        let at = |steps: &[(&'t (Timestamp, CallNotice), CallStep)]| steps.get(first).map(|(step, _)| *step);
        Some(ReplayDivergence { would: at(&is), was: at(&was) })
    }

    /// Returns the changed settings that are related to the difference, and the number of the other changed settings.
    fn because(
        &self,
        would: &'t ProfileComparison<'_>,
        divergence: &ReplayDivergence<'_>,
    ) -> (Vec<&'t SettingChange>, usize) {
        let group = |setting: &str| setting.split('.').next().unwrap_or_default().to_owned();
        let steps = [divergence.would, divergence.was].into_iter().flatten();
        let groups: Vec<_> =
            steps.flat_map(|(_, notice)| by_settings(notice)).map(|one| group(one)).collect();
        let (near, far): (Vec<_>, Vec<_>) =
            would.changed.iter().partition(|one| groups.contains(&group(one.setting)));
        (near, far.len())
    }

    fn under(&self, would: &ProfileComparison<'t>) -> Vec<String> {
        let name = would.profile.name();
        if let ReplayEnd::Taken(_) = would.call.end {
            return vec![format!("the result under the profile {name} is unknown")];
        }
        let Some(divergence) = self.divergence(would) else {
            return vec![format!("under the profile {name} nothing would have changed")];
        };
        let text = |(at, notice): &(Timestamp, CallNotice)| CallStep::of(*at, notice).map(|step| step.text);
        let mut lines = vec![format!("under the profile {name} this would have changed:")];
        if let Some((step, text)) = divergence.would.and_then(|step| Some((step, text(step)?))) {
            lines.push(format!("{:>9}  {text}", self.after(step.0)));
        }
        if let Some((step, text)) = divergence.was.and_then(|step| Some((step, text(step)?))) {
            lines.push(format!("{:>9}  instead of ({}) {text}", "", self.after(step.0)));
        }
        let (near, more) = self.because(would, &divergence);
        lines.extend(near.iter().map(|one| format!("{:>9}  there {}", "", one.to_text())));
        lines.extend(recordings::and_more(more, !near.is_empty()).map(|more| format!("{:>9}  {more}", "")));
        lines.push(format!("{:>9}  {}", "", self.describe_end(&would.call.end)));
        lines
    }

    fn describe_end(&self, end: &ReplayEnd) -> String {
        match end {
            ReplayEnd::Ended(_) if is_end(end, self.call) => "the result would have been the same".to_owned(),
            ReplayEnd::Ended(one) => format!("the result would have been {}", ending(one)),
            ReplayEnd::NotKnown(UnknownResult::Run { attempt }) => {
                format!("attempt {attempt} would have been made; its outcome is unknown")
            }
            ReplayEnd::NotKnown(UnknownResult::Approval) => {
                "approval would have been required; the decision is unknown".to_owned()
            }
            ReplayEnd::Taken(reason) => not_replayed(*reason).to_owned(),
        }
    }

    // ---- JSON output ----

    pub(super) fn to_json(&self) -> Value {
        let steps = self.before.steps.iter().filter_map(|(at, notice)| self.step_to_json(*at, notice));
        let note = match self.before.end {
            ReplayEnd::Taken(reason) => Some(not_replayed(reason)),
            ReplayEnd::Ended(_) | ReplayEnd::NotKnown(_) => None,
        };
        json!({
            "call": self.facts,
            "steps": steps.collect::<Vec<_>>(),
            "openedBy": self.opened_by.map(|(opened, by)| json!({
                "requestId": by.request_id,
                "tool": by.tool.to_string(),
                "atMs": opened.at,
                "reason": opened.reason,
            })),
            "replayed": note.is_none(),
            "note": note,
            "under": self.would.as_ref().map(|would| self.under_to_json(would)),
        })
    }

    fn step_to_json(&self, at: Timestamp, notice: &CallNotice) -> Option<Value> {
        let step = CallStep::of(at, notice)?;
        let decided = self.decided(&step, notice);
        let (setting, by) = match decided {
            Some(DecidingRule::Setting(setting)) => (Some(setting), Some(setting.origin.to_string())),
            Some(DecidingRule::Configured(_, rules)) => (Some(rules), Some(rules.origin.to_string())),
            Some(DecidingRule::BuiltIn(_)) => (None, Some("built in".to_owned())),
            Some(DecidingRule::Caller(limit)) => (None, Some(format!("the caller: {limit}"))),
            Some(DecidingRule::Named(_)) | None => (None, None),
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
    }

    fn under_to_json(&self, would: &ProfileComparison<'t>) -> Value {
        let is_known = !matches!(would.call.end, ReplayEnd::Taken(_));
        let divergence = self.divergence(would).filter(|_| is_known);
        let step =
            |step: Option<&(Timestamp, CallNotice)>| step.and_then(|(at, notice)| self.step_of(*at, notice));
        json!({
            "profile": would.profile.name(),
            "differs": is_known.then_some(divergence.is_some()),
            "step": divergence.as_ref().and_then(|divergence| step(divergence.would)),
            "insteadOf": divergence.as_ref().and_then(|divergence| step(divergence.was)),
            "end": self.describe_end(&would.call.end),
            "settings": would.changed.iter().map(SettingChange::to_json).collect::<Vec<_>>(),
        })
    }

    fn step_of(&self, at: Timestamp, notice: &CallNotice) -> Option<Value> {
        let step = CallStep::of(at, notice)?;
        Some(json!({ "atMs": step.at_ms, "kind": step.kind, "text": step.text }))
    }
}

/// Returns true if a replay reached the recorded end.
fn is_end(end: &ReplayEnd, call: &RecordedCall) -> bool {
    matches!(end, ReplayEnd::Ended(ending) if *ending == call.ending)
}

fn set(one: &ExplainedSetting) -> String {
    format!("{} = {} ({})", one.setting, one.value, one.origin)
}

const fn not_replayed(reason: TakenReason) -> &'static str {
    match reason {
        TakenReason::NotExplained => {
            "its result does not follow from the current configuration and the calls before it: the configuration was different, an operator, another process or a call that still runs influenced it, or it began before the stored history; the steps are those of the configuration in force, as far as they go"
        }
        TakenReason::InsufficientRecord => {
            "it was recorded by an older version, or has too many events: its steps are not known"
        }
    }
}

/// Returns a word of the API in readable form.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('_', " ")
}

//! The mapping of notices to logs, metrics and spans. One `match` defines for each notice what is logged, counted and
//! traced.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use steadfast_core::call::{BreakerScope, CallResult, Cut, Notice, Provenance, Shadowed, Stage};
use steadfast_core::code::Code;
use steadfast_core::dedupe::ReplayReason;
use steadfast_core::notification::Notification;
use steadfast_core::policy::{Policy, Silence};
use steadfast_core::retry::Stop;
use steadfast_core::trust::{Scope, TrustChange};
use steadfast_core::turn::trace::Note;
use steadfast_core::{Timestamp, breaker, millis};
use steadfast_executor::{About, Listener, Outside, TurnAbout, TurnHead, TurnSpan, TurnedAway};
use steadfast_store::{News, StoreError};

use crate::Telemetry;
use crate::calls::Open;
use crate::feed::NOTIFICATION;
use crate::labels::Tool;
use crate::logs::{self, Field, Level};
use crate::spans::{Doing, own, text};
use crate::standing::Profile;
use crate::words;

impl Listener for Telemetry {
    fn notice(&self, about: &About<'_>, notice: &Notice) {
        if let Notice::CallStarted { .. } = notice {
            self.calls.enter(about.request);
        }
        let tool = self.metrics.tool(&about.request.tool);
        self.calls.with(about.request, |open| self.tell(&Telling { about, tool: &tool }, notice, open));
    }

    fn finished(&self, about: &About<'_>, result: &CallResult) {
        let tool = self.metrics.tool(&about.request.tool);
        let open = self.calls.leave(about.request);
        self.tell_end(&Telling { about, tool: &tool }, result, open);
    }

    fn notification(&self, notification: &Arc<Notification>) {
        self.tell_notification(notification);
    }

    fn turned_away(&self, away: &TurnedAway<'_>) {
        let code = ("errorCode", Field::Own(away.error.code.as_str()));
        let Some(envelope) = away.envelope else {
            // The tool name may be any text, and would make a series for each.
            return self.write(Level::Warn, "tool_call_malformed", away.at, &[&[code]]);
        };
        let tool = self.metrics.tool(&envelope.tool());
        let status = words::status(away.error.code.status(away.error.retriable));
        self.metrics.ended(&tool, status, tool.standing.scope(), Duration::ZERO);
        self.metrics.on.tool_events.add([tool.label.clone(), "tool_call_turned_away".into()]);
        if away.error.code != Code::Overloaded || tool.standing.tell_overload(away.at) {
            let fields = [
                ("requestId", Field::Text(envelope.request_id.as_str())),
                ("toolName", Field::Text(envelope.tool_name.as_str())),
                ("toolNamespace", Field::Text(envelope.tool_namespace.as_str())),
                ("tenantId", Field::text(envelope.target.tenant_id.as_ref().map(|id| id.as_str()))),
                ("sessionKey", Field::Text(envelope.target.session_key.as_str())),
                code,
            ];
            self.write(Level::Warn, "tool_call_turned_away", away.at, &[&fields]);
        }
    }

    fn traceparent(&self, about: &About<'_>, attempt: u32) -> Option<String> {
        self.calls.with(about.request, |open| open.spans.as_ref()?.traceparent(attempt))
    }

    fn turn(&self, about: &TurnAbout<'_>, note: &Note) {
        self.tell_turn(about, note);
    }

    fn turn_span(&self, turn: &TurnHead, span: &TurnSpan<'_>) {
        if let Some(spans) = &self.spans {
            spans.turn(turn, span);
        }
        if span.tool.is_none() {
            self.tell_turn_end(turn, span);
        }
    }

    fn outside(&self, fact: &Outside<'_>) {
        self.tell_outside(fact);
    }

    fn store_failed(&self, store: &str, error: &StoreError) {
        let trouble = words::trouble(error.trouble());
        self.metrics.on.store_failures.add([self.metrics.store(store), trouble.into()]);
        let now = logs::now();
        // A store that is down fails every call. One line is enough for all of them.
        let Some(more) = self.store_failures.tell(now) else { return };
        let fields = [
            ("store", Field::Text(store)),
            ("trouble", Field::Own(trouble)),
            ("error", Field::Text(&error.to_string())),
            ("notTold", if more > 0 { Field::Number(more) } else { Field::Absent }),
        ];
        self.write(Level::Error, "store_failed", now, &[&fields]);
    }

    fn store_news(&self, store: &str, news: &News) {
        let (level, event, word) = match news {
            // Other processes write documents all the time.
            News::DocumentChanged(_) => return,
            News::Emptied => (Level::Error, "store_emptied", "emptied"),
            News::Lost(_) => (Level::Error, "store_lost", "lost"),
            News::Back => (Level::Warn, "store_back", "back"),
        };
        self.metrics.on.store_events.add([self.metrics.store(store), word.into()]);
        let why = match news {
            News::Lost(why) => Field::Text(why),
            News::DocumentChanged(_) | News::Emptied | News::Back => Field::Absent,
        };
        self.write(level, event, logs::now(), &[&[("store", Field::Text(store)), ("error", why)]]);
    }
}

/// The call and tool of a notice.
struct Telling<'a> {
    about: &'a About<'a>,
    tool: &'a Tool,
}

impl Telemetry {
    /// Logs, counts and traces a notice.
    fn tell(&self, of: &Telling<'_>, notice: &Notice, open: &mut Open) {
        let (about, at) = (of.about, of.about.at);
        let on = &self.metrics.on;
        let tool = || of.tool.label.clone();
        match notice {
            Notice::CallStarted { at } => {
                open.spans = self.spans.as_ref().map(|spans| spans.begin(about, *at));
                self.metrics.profile(of.tool, profile(about.policy));
                self.log(of, open, Level::Info, "tool_call_start", &[("state", Field::Own("inflight"))]);
            }
            Notice::CallBlocked { code, retriable, breaker } => {
                if *code == Code::InFlight {
                    on.tool_idempotency_hits.add([tool(), "inflight".into()]);
                }
                self.event(of, open, "tool_call_blocked", vec![own("error.type", code.as_str())]);
                if *code != Code::Overloaded || of.tool.standing.tell_overload(at) {
                    let fields = [
                        ("errorCode", Field::Own(code.as_str())),
                        ("retriable", Field::Flag(*retriable)),
                        ("breakerState", Field::own(breaker.map(words::breaker_state))),
                    ];
                    self.log(of, open, Level::Warn, "tool_call_blocked", &fields);
                }
            }
            Notice::Following => {
                on.tool_idempotency_hits.add([tool(), "inflight".into()]);
                self.turn_to(open, Doing::Following, at);
                self.log(of, open, Level::Debug, "tool_call_following", &[("state", Field::Own("inflight"))]);
            }
            // The end of the call shows if a result or a failure was replayed, and counts it.
            Notice::Replayed { reason } => {
                end_child(open, at);
                let reason = words::replay_reason(*reason);
                self.event(of, open, "tool_call_replayed", vec![own("reason", reason)]);
                self.log(of, open, Level::Debug, "tool_call_replayed", &[("reason", Field::Own(reason))]);
            }
            Notice::TookOver => {
                self.event(of, open, "tool_call_taken_over", vec![]);
                self.log(of, open, Level::Warn, "tool_call_taken_over", &[]);
            }
            Notice::KeyConflict => {
                on.tool_idempotency_conflicts.add([tool()]);
                trace(open, "tool_call_conflict", at, vec![]);
                self.log(of, open, Level::Error, "tool_call_conflict", &[]);
            }
            // The approval queue reports how many calls wait, here and in other processes.
            Notice::ApprovalAsked => {
                self.turn_to(open, Doing::AwaitingApproval, at);
                self.log(of, open, Level::Warn, "tool_call_approval_asked", &[]);
            }
            Notice::ApprovalEnded { granted } => {
                end_child(open, at);
                self.event(of, open, "tool_call_approval_ended", vec![own("granted", *granted)]);
                self.log(
                    of,
                    open,
                    Level::Info,
                    "tool_call_approval_ended",
                    &[("granted", Field::Flag(*granted))],
                );
            }
            Notice::AttemptStarted { attempt, at } => {
                self.turn_to(open, Doing::Attempting(*attempt), *at);
                let fields = [("attempt", Field::Number((*attempt).into()))];
                self.log(of, open, Level::Debug, "tool_call_attempt_start", &fields);
            }
            Notice::AttemptEnded { attempt, took, failure } => {
                open.rule = failure.as_ref().map(|failure| self.metrics.rule(&failure.rule));
                if let Some(spans) = &mut open.spans {
                    spans.end_child(at, open.rule.as_ref());
                }
                let fields = [
                    ("attempt", Field::Number((*attempt).into())),
                    ("elapsedMs", Field::Number(millis(*took))),
                    ("rule", Field::text(failure.as_ref().map(|failure| &*failure.rule))),
                    ("nature", Field::own(failure.as_ref().map(|failure| words::nature(failure.nature)))),
                    ("reach", Field::own(failure.as_ref().map(|failure| words::reach(failure.reach)))),
                ];
                self.log(of, open, Level::Debug, "tool_call_attempt_end", &fields);
            }
            Notice::InputRequired => {
                self.event(of, open, "tool_call_input_required", vec![]);
                self.log(of, open, Level::Info, "tool_call_input_required", &[]);
            }
            Notice::RetryScheduled { attempt, at: next } => {
                let reason = open.rule.clone().unwrap_or_else(|| "unknown".into());
                on.tool_retry_attempts.add([tool(), reason.clone()]);
                self.turn_to(open, Doing::BackingOff(*attempt), at);
                let fields = [
                    ("attempt", Field::Number((*attempt).into())),
                    ("delayMs", Field::Number(millis(next.since(at)))),
                    ("reason", Field::Own(reason.as_str())),
                    ("retriable", Field::Flag(true)),
                ];
                self.log(of, open, Level::Info, "tool_call_retry", &fields);
            }
            Notice::RetryStopped { stop } => {
                let wanted = match stop {
                    Stop::RetryAfter(wanted) => Field::Number(millis(*wanted)),
                    Stop::Attempts | Stop::TotalTime | Stop::Deadline | Stop::Budget => Field::Absent,
                };
                let stop = words::stop(*stop);
                self.event(of, open, "tool_call_retry_stopped", vec![own("reason", stop)]);
                let fields = [("reason", Field::Own(stop)), ("retryAfterMs", wanted)];
                self.log(of, open, Level::Info, "tool_call_retry_stopped", &fields);
            }
            Notice::AttemptCut { cut } => {
                if is_watchdogs(*cut, about.policy) {
                    on.watchdog.add([tool(), words::cut(*cut).into()]);
                }
                self.event(of, open, "tool_call_attempt_cut", vec![own("reason", words::cut(*cut))]);
                let fields = [("reason", Field::Own(words::cut(*cut)))];
                self.log(of, open, Level::Warn, "tool_call_attempt_cut", &fields);
            }
            Notice::AnsweredEarly { code } => {
                self.event(of, open, "tool_call_answered_early", vec![own("error.type", code.as_str())]);
                let fields = [("errorCode", Field::Own(code.as_str()))];
                self.log(of, open, Level::Info, "tool_call_answered_early", &fields);
            }
            Notice::OutcomeUnknown { .. } => {
                self.event(of, open, "tool_call_outcome_unknown", vec![]);
                self.log(of, open, Level::Warn, "tool_call_outcome_unknown", &[]);
            }
            Notice::Verified { resolution, words } => {
                let found = words::resolution(*resolution);
                self.event(of, open, "tool_call_verified", vec![own("outcome", found)]);
                let fields = [("outcome", Field::Own(found)), ("reason", Field::Text(words))];
                self.log(of, open, Level::Info, "tool_call_verified", &fields);
            }
            Notice::BreakerChanged { scope, transition } => {
                self.breaker_changed(of, open, *scope, transition)
            }
            // The probe moves between those who share the breaker. Only its result is reported.
            Notice::ProbeMoved { .. } => {}
            Notice::TrustChanged(change) => self.trust_changed(of, open, change),
            Notice::GuardTripped { layer } => {
                on.tool_guard_trips.add([tool(), layer.as_str().into()]);
                trace(open, "tool_call_guard", at, vec![own("layer", layer.as_str())]);
                let fields = [("layer", Field::Own(layer.as_str()))];
                self.log(of, open, Level::Warn, "tool_call_guard", &fields);
            }
            Notice::FenceLost => {
                self.event(of, open, "tool_call_fence_lost", vec![]);
                self.log(of, open, Level::Warn, "tool_call_fence_lost", &[]);
            }
            Notice::StoreFailed { goes_on } => {
                self.event(of, open, "tool_call_store_failed", vec![own("goes_on", *goes_on)]);
                self.log(
                    of,
                    open,
                    Level::Warn,
                    "tool_call_store_failed",
                    &[("goesOn", Field::Flag(*goes_on))],
                );
            }
            Notice::WouldHave(shadowed) => {
                let (code, layer) = match shadowed {
                    Shadowed::Refused(code) | Shadowed::Told(code) => (Some(code.as_str()), None),
                    Shadowed::Remarked(layer) => (None, Some(layer.as_str())),
                    Shadowed::Duplicate | Shadowed::Asked | Shadowed::Retried | Shadowed::Cut => (None, None),
                };
                let would = words::shadowed(*shadowed);
                self.event(of, open, "tool_call_shadow", vec![own("would", would)]);
                let fields = [
                    ("would", Field::Own(would)),
                    ("errorCode", Field::own(code)),
                    ("layer", Field::own(layer)),
                ];
                self.log(of, open, Level::Info, "tool_call_shadow", &fields);
            }
            // Handled by `finished`, which follows at once and has the whole result.
            Notice::CallFinished { .. } => {}
        }
    }

    /// Logs, counts and traces the end of a call.
    fn tell_end(&self, of: &Telling<'_>, result: &CallResult, mut open: Open) {
        let about = of.about;
        let failure = result.ended.as_ref().err();
        let code = failure.map(|failure| failure.code);
        let status = words::status(result.status());
        self.metrics.ended(of.tool, status, words::scope(about.request, about.policy), result.took);
        if let Some(state) = found(result) {
            self.metrics.on.tool_idempotency_hits.add([of.tool.label.clone(), state.into()]);
        }
        let replayed = matches!(result.provenance, Provenance::Replayed { .. });
        let state = match (code, result.stage) {
            (None, Stage::Final) => "done",
            (None, Stage::InputRequired) => "input_required",
            (Some(Code::Cancelled), _) => "cancelled",
            (Some(_), _) => "failed",
        };
        let fields = [
            ("state", Field::Own(state)),
            ("status", Field::Own(status)),
            ("attempt", Field::Number(result.attempts.into())),
            ("elapsedMs", Field::Number(millis(result.took))),
            ("fromCache", Field::Flag(replayed)),
            ("errorCode", Field::own(code.map(Code::as_str))),
            ("retriable", failure.map_or(Field::Absent, |failure| Field::Flag(failure.retriable))),
            ("rule", Field::text(failure.and_then(|failure| failure.rule.as_deref()))),
            ("breakerState", Field::own(result.breaker.map(words::breaker_state))),
        ];
        self.log(of, &open, Level::Info, "tool_call_end", &fields);
        if let Some(mut spans) = open.spans.take() {
            spans.attribute(own("retry.attempt", i64::from(result.attempts)));
            spans.attribute(own("from_cache", replayed));
            spans.attribute(own("status", status));
            if let Some(state) = result.breaker {
                spans.attribute(own("breaker.state", words::breaker_state(state)));
            }
            spans.end(about.at, code.map(Code::as_str));
        }
    }

    pub(crate) fn count_breaker(&self, tool: &Tool, transition: &breaker::Transition) {
        let (from, to) = (words::breaker_state(transition.from), words::breaker_state(transition.to));
        let labels = [tool.label.clone(), from.into(), to.into()];
        self.metrics.on.tool_circuit_breaker_transitions.add(labels);
    }

    fn breaker_changed(
        &self,
        of: &Telling<'_>,
        open: &mut Open,
        scope: BreakerScope,
        transition: &breaker::Transition,
    ) {
        let (from, to) = (words::breaker_state(transition.from), words::breaker_state(transition.to));
        self.count_breaker(of.tool, transition);
        match scope {
            BreakerScope::Tool => {
                let request = of.about.request;
                let now = of.tool.standing.breaker(&request.tool, request.tenant.as_ref(), transition.to);
                self.metrics.breaker_state(of.tool, now);
                if let Some(spans) = &mut open.spans {
                    spans.attribute(own("breaker.state", to));
                }
            }
            BreakerScope::Dependency => {}
        }
        let attributes = vec![own("from", from), own("breaker.state", to)];
        trace(open, "tool_call_circuit_state", transition.at, attributes);
        let level = match transition.to {
            breaker::State::Open | breaker::State::ForcedOpen => Level::Warn,
            breaker::State::Closed | breaker::State::HalfOpen => Level::Info,
        };
        let fields = [
            ("fromState", Field::Own(from)),
            ("breakerState", Field::Own(to)),
            ("reason", Field::Own(words::breaker_reason(transition.reason))),
            ("scope", Field::Own(words::breaker_scope(scope))),
        ];
        self.log(of, open, level, "tool_call_circuit_state", &fields);
    }

    fn trust_changed(&self, of: &Telling<'_>, open: &mut Open, change: &TrustChange) {
        let (from, to) = (words::trust_state(change.from), words::trust_state(change.to));
        let label = of.tool.label.clone();
        self.metrics.on.tool_trust_transitions.add([label, from.into(), to.into()]);
        match change.scope {
            Scope::Tool | Scope::Signature => {
                let now = of.tool.standing.trust(&change.subject, change.to);
                self.metrics.trust_state(of.tool, now);
            }
            // A domain has many tools, and any of them may change it. Its changes are counted and logged.
            Scope::Domain => {}
        }
        let subject = text("subject", &change.subject);
        trace(open, "tool_call_trust_state", change.at, vec![own("from", from), own("to", to), subject]);
        let level = if change.to > change.from { Level::Warn } else { Level::Info };
        let fields = [
            ("fromState", Field::Own(from)),
            ("trustState", Field::Own(to)),
            ("subject", Field::Text(&change.subject)),
            ("reason", Field::Text(&change.reason)),
            ("failures", Field::Number(change.failures.into())),
        ];
        self.log(of, open, level, "tool_call_trust_state", &fields);
    }

    /// Counts and traces a notice that has no metric of its own.
    fn event(&self, of: &Telling<'_>, open: &mut Open, event: &'static str, attributes: Vec<KeyValue>) {
        self.metrics.on.tool_events.add([of.tool.label.clone(), event.into()]);
        trace(open, event, of.about.at, attributes);
    }

    fn turn_to(&self, open: &mut Open, doing: Doing, at: Timestamp) {
        if let (Some(spans), Some(call)) = (&self.spans, &mut open.spans) {
            spans.turn_to(call, doing, at);
        }
    }

    /// Writes a line about a call, with the fields that every such line has.
    fn log(
        &self,
        of: &Telling<'_>,
        open: &Open,
        level: Level,
        event: &'static str,
        fields: &[(&'static str, Field<'_>)],
    ) {
        if !self.is_told(level) {
            return;
        }
        let (request, target) = (of.about.request, &of.about.envelope.target);
        let context = request.context.as_deref();
        let tags = context.map(|context| context.request_tags.join(",")).filter(|tags| !tags.is_empty());
        let baggage = context.map(|context| context.baggage_keys.join(",")).filter(|keys| !keys.is_empty());
        let key = request.address().map(|address| address.own().fingerprint());
        let trace = open.spans.as_ref().and_then(|spans| spans.trace_id());
        let whose = [
            ("requestId", Field::Text(request.id.as_str())),
            ("toolName", Field::Text(request.tool.tool.as_str())),
            ("toolNamespace", Field::Text(request.tool.namespace.as_str())),
            ("tenantId", Field::text(request.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", Field::text(request.session.as_ref().map(|session| session.as_str()))),
            ("idempotencyKeyHash", Field::own(key.as_deref())),
            (
                "correlationId",
                match target.correlation_id.as_ref().map(|id| id.as_str()) {
                    Some(id) if of.about.envelope.trace_id() == Some(id) => Field::Own(id),
                    id => Field::text(id),
                },
            ),
            ("agentId", Field::text(context.and_then(|context| context.agent_id.as_deref()))),
            ("requestTags", Field::text(tags.as_deref())),
            ("fromHook", Field::text(context.and_then(|context| context.from_hook.as_deref()))),
            ("baggageKeys", Field::text(baggage.as_deref())),
            ("traceId", Field::own(trace.as_deref())),
        ];
        self.write(level, event, of.about.at, &[&whose, fields]);
    }

    pub(crate) fn write(
        &self,
        level: Level,
        event: &'static str,
        at: Timestamp,
        fields: &[&[(&'static str, Field<'_>)]],
    ) {
        let is_kept = event == NOTIFICATION || self.feed.wants(level);
        if !is_kept && !self.is_told(level) {
            return;
        }
        let entry = logs::Entry::of(level, event, at, fields);
        if is_kept {
            self.feed.write(&entry);
        }
        if let Some(logs) = &self.logs {
            logs.write_entry(entry);
        }
    }

    /// Returns true if a line with this level is needed.
    pub(crate) fn is_told(&self, level: Level) -> bool {
        self.logs.as_ref().is_some_and(|logs| logs.wants(level)) || self.feed.wants(level)
    }
}

fn trace(open: &mut Open, event: &'static str, at: Timestamp, attributes: Vec<KeyValue>) {
    if let Some(spans) = &mut open.spans {
        spans.event(event, at, attributes);
    }
}

fn end_child(open: &mut Open, at: Timestamp) {
    if let Some(spans) = &mut open.spans {
        spans.end_child(at, None);
    }
}

fn profile(policy: &Policy) -> Profile {
    Profile { class: policy.class, scope: words::key_scope(policy), keep: policy.dedupe.keep }
}

/// Returns true if an attempt was ended by the watchdog, and not by a timeout of the tool or by the caller.
fn is_watchdogs(cut: Cut, policy: &Policy) -> bool {
    match (cut, policy.time.silence) {
        (Cut::TooLong, _) | (Cut::Silent(_), Silence::Stuck) => true,
        (Cut::Silent(_), Silence::Timeout) | (Cut::Deadline | Cut::Cancelled, _) => false,
    }
}

/// Returns the state of the record that a duplicate found. One in flight was counted when it was found.
fn found(result: &CallResult) -> Option<&'static str> {
    let failure = result.ended.as_ref().err();
    match &result.provenance {
        Provenance::Replayed { reason: ReplayReason::Waited, .. } => None,
        Provenance::Replayed {
            reason: ReplayReason::SameKey | ReplayReason::Undelivered | ReplayReason::DoubleDispatch,
            ..
        } => Some(if failure.is_some() { "failed" } else { "done" }),
        Provenance::Fresh => {
            let told =
                result.attempts == 0 && failure.is_some_and(|failure| failure.code == Code::OutcomeUnknown);
            told.then_some("unknown")
        }
    }
}

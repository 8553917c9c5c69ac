//! The mapping of notices to logs, metrics and spans. One `match` defines for each notice what is logged, counted and
//! traced.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use steadfast_core::call::{
    BreakerScope, CallNotice, CallResult, CutReason, Provenance, ResultStage, ShadowDecision,
};
use steadfast_core::code::Code;
use steadfast_core::dedupe::ReplayReason;
use steadfast_core::notification::Notification;
use steadfast_core::policy::{CallPolicy, SilencePolicy};
use steadfast_core::retry::RetryStop;
use steadfast_core::trust::{TrustChange, TrustScope};
use steadfast_core::{Timestamp, breaker, millis};
use steadfast_executor::{
    EngineListener, NoticeContext, RejectedCall, SystemEvent, TurnContext, TurnSpan, TurnSummary,
};
use steadfast_store::{StoreError, StoreEvent};
use steadfast_turn::trace::TraceNote;

use crate::Telemetry;
use crate::calls::OpenCall;
use crate::feed::NOTIFICATION;
use crate::labels::ToolEntry;
use crate::logs::{self, LogField, LogLineLevel};
use crate::names;
use crate::spans::{CallActivity, own, text};
use crate::tool_status::ToolPolicySummary;

impl EngineListener for Telemetry {
    fn notice(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
        if let CallNotice::CallStarted { .. } = notice {
            self.calls.enter(about.request);
        }
        let tool = self.metrics.tool(&about.request.tool);
        self.calls.with(about.request, |open| {
            self.record_notice(&NoticeSubject { about, tool: &tool }, notice, open)
        });
    }

    fn finished(&self, about: &NoticeContext<'_>, result: &CallResult) {
        let tool = self.metrics.tool(&about.request.tool);
        let open = self.calls.leave(about.request);
        self.record_end(&NoticeSubject { about, tool: &tool }, result, open);
    }

    fn notification(&self, notification: &Arc<Notification>) {
        self.record_notification(notification);
    }

    fn call_rejected(&self, away: &RejectedCall<'_>) {
        let code = ("errorCode", LogField::Own(away.error.code.as_str()));
        let Some(envelope) = away.envelope else {
            // The tool name may be any text, and would make a series for each.
            return self.write(LogLineLevel::Warn, "tool_call_malformed", away.at, &[&[code]]);
        };
        let tool = self.metrics.tool(&envelope.tool());
        let status = names::status(away.error.code.status(away.error.retriable));
        self.metrics.record_end(&tool, status, tool.status.scope(), Duration::ZERO);
        self.metrics.on.tool_events.add([tool.label.clone(), "tool_call_turned_away".into()]);
        if away.error.code != Code::Overloaded || tool.status.should_log_overload(away.at) {
            let fields = [
                ("requestId", LogField::Text(envelope.request_id.as_str())),
                ("toolName", LogField::Text(envelope.tool_name.as_str())),
                ("toolNamespace", LogField::Text(envelope.tool_namespace.as_str())),
                ("tenantId", LogField::text(envelope.target.tenant_id.as_ref().map(|id| id.as_str()))),
                ("sessionKey", LogField::Text(envelope.target.session_key.as_str())),
                code,
            ];
            self.write(LogLineLevel::Warn, "tool_call_turned_away", away.at, &[&fields]);
        }
    }

    fn traceparent(&self, about: &NoticeContext<'_>, attempt: u32) -> Option<String> {
        self.calls.with(about.request, |open| open.spans.as_ref()?.traceparent(attempt))
    }

    fn turn(&self, about: &TurnContext<'_>, note: &TraceNote) {
        self.record_turn_note(about, note);
    }

    fn turn_span(&self, turn: &TurnSummary, span: &TurnSpan<'_>) {
        if let Some(spans) = &self.spans {
            spans.turn(turn, span);
        }
        if span.tool.is_none() {
            self.record_turn_end(turn, span);
        }
    }

    fn system_event(&self, fact: &SystemEvent<'_>) {
        self.record_outside(fact);
    }

    fn store_failed(&self, store: &str, error: &StoreError) {
        let trouble = names::trouble(error.kind());
        self.metrics.on.store_failures.add([self.metrics.store(store), trouble.into()]);
        let now = logs::now();
        // A store that is down fails every call. One line is enough for all of them.
        let Some(more) = self.store_failures.due(now) else { return };
        let fields = [
            ("store", LogField::Text(store)),
            ("trouble", LogField::Own(trouble)),
            ("error", LogField::Text(&error.to_string())),
            ("notTold", if more > 0 { LogField::Number(more) } else { LogField::Absent }),
        ];
        self.write(LogLineLevel::Error, "store_failed", now, &[&fields]);
    }

    fn store_event(&self, store: &str, store_event: &StoreEvent) {
        let (level, event, word) = match store_event {
            // Other processes write documents all the time.
            StoreEvent::DocumentChanged(_) => return,
            StoreEvent::Emptied => (LogLineLevel::Error, "store_emptied", "emptied"),
            StoreEvent::Unavailable(_) => (LogLineLevel::Error, "store_lost", "lost"),
            StoreEvent::Available => (LogLineLevel::Warn, "store_back", "back"),
        };
        self.metrics.on.store_events.add([self.metrics.store(store), word.into()]);
        let reason = match store_event {
            StoreEvent::Unavailable(reason) => LogField::Text(reason),
            StoreEvent::DocumentChanged(_) | StoreEvent::Emptied | StoreEvent::Available => LogField::Absent,
        };
        self.write(level, event, logs::now(), &[&[("store", LogField::Text(store)), ("error", reason)]]);
    }
}

/// The call and tool of a notice.
struct NoticeSubject<'a> {
    about: &'a NoticeContext<'a>,
    tool: &'a ToolEntry,
}

impl Telemetry {
    /// Logs, counts and traces a notice.
    fn record_notice(&self, of: &NoticeSubject<'_>, notice: &CallNotice, open: &mut OpenCall) {
        let (about, at) = (of.about, of.about.at);
        let on = &self.metrics.on;
        let tool = || of.tool.label.clone();
        match notice {
            CallNotice::CallStarted { at } => {
                open.spans = self.spans.as_ref().map(|spans| spans.begin(about, *at));
                self.metrics.profile(of.tool, profile(about.policy));
                self.log(
                    of,
                    open,
                    LogLineLevel::Info,
                    "tool_call_start",
                    &[("state", LogField::Own("inflight"))],
                );
            }
            CallNotice::CallBlocked { code, retriable, breaker } => {
                if *code == Code::InFlight {
                    on.tool_idempotency_hits.add([tool(), "inflight".into()]);
                }
                self.event(of, open, "tool_call_blocked", vec![own("error.type", code.as_str())]);
                if *code != Code::Overloaded || of.tool.status.should_log_overload(at) {
                    let fields = [
                        ("errorCode", LogField::Own(code.as_str())),
                        ("retriable", LogField::Flag(*retriable)),
                        ("breakerState", LogField::own(breaker.map(names::breaker_state))),
                    ];
                    self.log(of, open, LogLineLevel::Warn, "tool_call_blocked", &fields);
                }
            }
            CallNotice::Following => {
                on.tool_idempotency_hits.add([tool(), "inflight".into()]);
                self.turn_to(open, CallActivity::Following, at);
                self.log(
                    of,
                    open,
                    LogLineLevel::Debug,
                    "tool_call_following",
                    &[("state", LogField::Own("inflight"))],
                );
            }
            // The end of the call shows if a result or a failure was replayed, and counts it.
            CallNotice::Replayed { reason } => {
                end_child(open, at);
                let reason = names::replay_reason(*reason);
                self.event(of, open, "tool_call_replayed", vec![own("reason", reason)]);
                self.log(
                    of,
                    open,
                    LogLineLevel::Debug,
                    "tool_call_replayed",
                    &[("reason", LogField::Own(reason))],
                );
            }
            CallNotice::TookOver => {
                self.event(of, open, "tool_call_taken_over", vec![]);
                self.log(of, open, LogLineLevel::Warn, "tool_call_taken_over", &[]);
            }
            CallNotice::KeyConflict => {
                on.tool_idempotency_conflicts.add([tool()]);
                trace(open, "tool_call_conflict", at, vec![]);
                self.log(of, open, LogLineLevel::Error, "tool_call_conflict", &[]);
            }
            // The approval queue reports how many calls wait, here and in other processes.
            CallNotice::ApprovalRequested => {
                self.turn_to(open, CallActivity::AwaitingApproval, at);
                self.log(of, open, LogLineLevel::Warn, "tool_call_approval_asked", &[]);
            }
            CallNotice::ApprovalEnded { granted } => {
                end_child(open, at);
                self.event(of, open, "tool_call_approval_ended", vec![own("granted", *granted)]);
                self.log(
                    of,
                    open,
                    LogLineLevel::Info,
                    "tool_call_approval_ended",
                    &[("granted", LogField::Flag(*granted))],
                );
            }
            CallNotice::AttemptStarted { attempt, at } => {
                self.turn_to(open, CallActivity::Attempting(*attempt), *at);
                let fields = [("attempt", LogField::Number((*attempt).into()))];
                self.log(of, open, LogLineLevel::Debug, "tool_call_attempt_start", &fields);
            }
            CallNotice::AttemptEnded { attempt, took, failure } => {
                open.rule = failure.as_ref().map(|failure| self.metrics.rule(&failure.rule));
                if let Some(spans) = &mut open.spans {
                    spans.end_child(at, open.rule.as_ref());
                }
                let fields = [
                    ("attempt", LogField::Number((*attempt).into())),
                    ("elapsedMs", LogField::Number(millis(*took))),
                    ("rule", LogField::text(failure.as_ref().map(|failure| &*failure.rule))),
                    ("nature", LogField::own(failure.as_ref().map(|failure| names::nature(failure.nature)))),
                    ("reach", LogField::own(failure.as_ref().map(|failure| names::reach(failure.reach)))),
                ];
                self.log(of, open, LogLineLevel::Debug, "tool_call_attempt_end", &fields);
            }
            CallNotice::InputRequired => {
                self.event(of, open, "tool_call_input_required", vec![]);
                self.log(of, open, LogLineLevel::Info, "tool_call_input_required", &[]);
            }
            CallNotice::RetryScheduled { attempt, at: next } => {
                let reason = open.rule.clone().unwrap_or_else(|| "unknown".into());
                on.tool_retry_attempts.add([tool(), reason.clone()]);
                self.turn_to(open, CallActivity::BackingOff(*attempt), at);
                let fields = [
                    ("attempt", LogField::Number((*attempt).into())),
                    ("delayMs", LogField::Number(millis(next.since(at)))),
                    ("reason", LogField::Own(reason.as_str())),
                    ("retriable", LogField::Flag(true)),
                ];
                self.log(of, open, LogLineLevel::Info, "tool_call_retry", &fields);
            }
            CallNotice::RetryStopped { stop } => {
                let delay = match stop {
                    RetryStop::RetryAfter(delay) => LogField::Number(millis(*delay)),
                    RetryStop::Attempts | RetryStop::TotalTime | RetryStop::Deadline | RetryStop::Budget => {
                        LogField::Absent
                    }
                };
                let stop = names::stop(*stop);
                self.event(of, open, "tool_call_retry_stopped", vec![own("reason", stop)]);
                let fields = [("reason", LogField::Own(stop)), ("retryAfterMs", delay)];
                self.log(of, open, LogLineLevel::Info, "tool_call_retry_stopped", &fields);
            }
            CallNotice::AttemptCut { cut } => {
                if is_watchdogs(*cut, about.policy) {
                    on.watchdog.add([tool(), names::cut(*cut).into()]);
                }
                self.event(of, open, "tool_call_attempt_cut", vec![own("reason", names::cut(*cut))]);
                let fields = [("reason", LogField::Own(names::cut(*cut)))];
                self.log(of, open, LogLineLevel::Warn, "tool_call_attempt_cut", &fields);
            }
            CallNotice::AnsweredEarly { code } => {
                self.event(of, open, "tool_call_answered_early", vec![own("error.type", code.as_str())]);
                let fields = [("errorCode", LogField::Own(code.as_str()))];
                self.log(of, open, LogLineLevel::Info, "tool_call_answered_early", &fields);
            }
            CallNotice::OutcomeUnknown { .. } => {
                self.event(of, open, "tool_call_outcome_unknown", vec![]);
                self.log(of, open, LogLineLevel::Warn, "tool_call_outcome_unknown", &[]);
            }
            CallNotice::Verified { resolution, words } => {
                let found = names::resolution(*resolution);
                self.event(of, open, "tool_call_verified", vec![own("outcome", found)]);
                let fields = [("outcome", LogField::Own(found)), ("reason", LogField::Text(words))];
                self.log(of, open, LogLineLevel::Info, "tool_call_verified", &fields);
            }
            CallNotice::BreakerChanged { scope, transition } => {
                self.breaker_changed(of, open, *scope, transition)
            }
            // The probe moves between those who share the breaker. Only its result is reported.
            CallNotice::ProbeMoved { .. } => {}
            CallNotice::TrustChanged(change) => self.trust_changed(of, open, change),
            CallNotice::GuardTripped { layer } => {
                on.tool_guard_trips.add([tool(), layer.as_str().into()]);
                trace(open, "tool_call_guard", at, vec![own("layer", layer.as_str())]);
                let fields = [("layer", LogField::Own(layer.as_str()))];
                self.log(of, open, LogLineLevel::Warn, "tool_call_guard", &fields);
            }
            CallNotice::FenceLost => {
                self.event(of, open, "tool_call_fence_lost", vec![]);
                self.log(of, open, LogLineLevel::Warn, "tool_call_fence_lost", &[]);
            }
            CallNotice::StoreFailed { continues } => {
                self.event(of, open, "tool_call_store_failed", vec![own("goes_on", *continues)]);
                self.log(
                    of,
                    open,
                    LogLineLevel::Warn,
                    "tool_call_store_failed",
                    &[("goesOn", LogField::Flag(*continues))],
                );
            }
            CallNotice::Shadowed(shadowed) => {
                let (code, layer) = match shadowed {
                    ShadowDecision::Refused(code) | ShadowDecision::Failed(code) => {
                        (Some(code.as_str()), None)
                    }
                    ShadowDecision::GuardRemark(layer) => (None, Some(layer.as_str())),
                    ShadowDecision::Duplicate
                    | ShadowDecision::ApprovalRequested
                    | ShadowDecision::Retried
                    | ShadowDecision::Cut => (None, None),
                };
                let would = names::shadowed(*shadowed);
                self.event(of, open, "tool_call_shadow", vec![own("would", would)]);
                let fields = [
                    ("would", LogField::Own(would)),
                    ("errorCode", LogField::own(code)),
                    ("layer", LogField::own(layer)),
                ];
                self.log(of, open, LogLineLevel::Info, "tool_call_shadow", &fields);
            }
            // Handled by `finished`, which follows at once and has the whole result.
            CallNotice::CallFinished { .. } => {}
        }
    }

    /// Logs, counts and traces the end of a call.
    fn record_end(&self, of: &NoticeSubject<'_>, result: &CallResult, mut open: OpenCall) {
        let about = of.about;
        let failure = result.outcome.as_ref().err();
        let code = failure.map(|failure| failure.code);
        let status = names::status(result.status());
        self.metrics.record_end(of.tool, status, names::scope(about.request, about.policy), result.took);
        if let Some(state) = found(result) {
            self.metrics.on.tool_idempotency_hits.add([of.tool.label.clone(), state.into()]);
        }
        let replayed = matches!(result.provenance, Provenance::Replayed { .. });
        let state = match (code, result.stage) {
            (None, ResultStage::Final) => "done",
            (None, ResultStage::InputRequired) => "input_required",
            (Some(Code::Cancelled), _) => "cancelled",
            (Some(_), _) => "failed",
        };
        let fields = [
            ("state", LogField::Own(state)),
            ("status", LogField::Own(status)),
            ("attempt", LogField::Number(result.attempts.into())),
            ("elapsedMs", LogField::Number(millis(result.took))),
            ("fromCache", LogField::Flag(replayed)),
            ("errorCode", LogField::own(code.map(Code::as_str))),
            ("retriable", failure.map_or(LogField::Absent, |failure| LogField::Flag(failure.retriable))),
            ("rule", LogField::text(failure.and_then(|failure| failure.rule.as_deref()))),
            ("breakerState", LogField::own(result.breaker.map(names::breaker_state))),
        ];
        self.log(of, &open, LogLineLevel::Info, "tool_call_end", &fields);
        if let Some(mut spans) = open.spans.take() {
            spans.attribute(own("retry.attempt", i64::from(result.attempts)));
            spans.attribute(own("from_cache", replayed));
            spans.attribute(own("status", status));
            if let Some(state) = result.breaker {
                spans.attribute(own("breaker.state", names::breaker_state(state)));
            }
            spans.end(about.at, code.map(Code::as_str));
        }
    }

    pub(crate) fn count_breaker(&self, tool: &ToolEntry, transition: &breaker::BreakerTransition) {
        let (from, to) = (names::breaker_state(transition.from), names::breaker_state(transition.to));
        let labels = [tool.label.clone(), from.into(), to.into()];
        self.metrics.on.tool_circuit_breaker_transitions.add(labels);
    }

    fn breaker_changed(
        &self,
        of: &NoticeSubject<'_>,
        open: &mut OpenCall,
        scope: BreakerScope,
        transition: &breaker::BreakerTransition,
    ) {
        let (from, to) = (names::breaker_state(transition.from), names::breaker_state(transition.to));
        self.count_breaker(of.tool, transition);
        match scope {
            BreakerScope::Tool => {
                let request = of.about.request;
                let now = of.tool.status.breaker(&request.tool, request.tenant.as_ref(), transition.to);
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
            breaker::State::Open | breaker::State::ForcedOpen => LogLineLevel::Warn,
            breaker::State::Closed | breaker::State::HalfOpen => LogLineLevel::Info,
        };
        let fields = [
            ("fromState", LogField::Own(from)),
            ("breakerState", LogField::Own(to)),
            ("reason", LogField::Own(names::breaker_reason(transition.reason))),
            ("scope", LogField::Own(names::breaker_scope(scope))),
        ];
        self.log(of, open, level, "tool_call_circuit_state", &fields);
    }

    fn trust_changed(&self, of: &NoticeSubject<'_>, open: &mut OpenCall, change: &TrustChange) {
        let (from, to) = (names::trust_state(change.from), names::trust_state(change.to));
        let label = of.tool.label.clone();
        self.metrics.on.tool_trust_transitions.add([label, from.into(), to.into()]);
        match change.scope {
            TrustScope::Tool | TrustScope::Signature => {
                let now = of.tool.status.trust(&change.subject, change.to);
                self.metrics.trust_state(of.tool, now);
            }
            // A domain has many tools, and any of them may change it. Its changes are counted and logged.
            TrustScope::Domain => {}
        }
        let subject = text("subject", &change.subject);
        trace(open, "tool_call_trust_state", change.at, vec![own("from", from), own("to", to), subject]);
        let level = if change.to > change.from { LogLineLevel::Warn } else { LogLineLevel::Info };
        let fields = [
            ("fromState", LogField::Own(from)),
            ("trustState", LogField::Own(to)),
            ("subject", LogField::Text(&change.subject)),
            ("reason", LogField::Text(&change.reason)),
            ("failures", LogField::Number(change.failures.into())),
        ];
        self.log(of, open, level, "tool_call_trust_state", &fields);
    }

    /// Counts and traces a notice that has no metric of its own.
    fn event(
        &self,
        of: &NoticeSubject<'_>,
        open: &mut OpenCall,
        event: &'static str,
        attributes: Vec<KeyValue>,
    ) {
        self.metrics.on.tool_events.add([of.tool.label.clone(), event.into()]);
        trace(open, event, of.about.at, attributes);
    }

    fn turn_to(&self, open: &mut OpenCall, doing: CallActivity, at: Timestamp) {
        if let (Some(spans), Some(call)) = (&self.spans, &mut open.spans) {
            spans.turn_to(call, doing, at);
        }
    }

    /// Writes a line about a call, with the fields that every such line has.
    fn log(
        &self,
        of: &NoticeSubject<'_>,
        open: &OpenCall,
        level: LogLineLevel,
        event: &'static str,
        fields: &[(&'static str, LogField<'_>)],
    ) {
        if !self.is_enabled(level) {
            return;
        }
        let (request, target) = (of.about.request, &of.about.envelope.target);
        let context = request.context.as_deref();
        let tags = context.map(|context| context.request_tags.join(",")).filter(|tags| !tags.is_empty());
        let baggage = context.map(|context| context.baggage_keys.join(",")).filter(|keys| !keys.is_empty());
        let key = request.address().map(|address| address.own().fingerprint());
        let trace = open.spans.as_ref().and_then(|spans| spans.trace_id());
        let identity = [
            ("requestId", LogField::Text(request.id.as_str())),
            ("toolName", LogField::Text(request.tool.tool.as_str())),
            ("toolNamespace", LogField::Text(request.tool.namespace.as_str())),
            ("tenantId", LogField::text(request.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", LogField::text(request.session.as_ref().map(|session| session.as_str()))),
            ("idempotencyKeyHash", LogField::own(key.as_deref())),
            (
                "correlationId",
                match target.correlation_id.as_ref().map(|id| id.as_str()) {
                    Some(id) if of.about.envelope.trace_id() == Some(id) => LogField::Own(id),
                    id => LogField::text(id),
                },
            ),
            ("agentId", LogField::text(context.and_then(|context| context.agent_id.as_deref()))),
            ("requestTags", LogField::text(tags.as_deref())),
            ("fromHook", LogField::text(context.and_then(|context| context.from_hook.as_deref()))),
            ("baggageKeys", LogField::text(baggage.as_deref())),
            ("traceId", LogField::own(trace.as_deref())),
        ];
        self.write(level, event, of.about.at, &[&identity, fields]);
    }

    pub(crate) fn write(
        &self,
        level: LogLineLevel,
        event: &'static str,
        at: Timestamp,
        fields: &[&[(&'static str, LogField<'_>)]],
    ) {
        let is_in_feed = event == NOTIFICATION || self.feed.is_enabled(level);
        if !is_in_feed && !self.is_enabled(level) {
            return;
        }
        let entry = logs::LogEntry::of(level, event, at, fields);
        if is_in_feed {
            self.feed.write(&entry);
        }
        if let Some(logs) = &self.logs {
            logs.write_entry(entry);
        }
    }

    /// Returns true if a line with this level is needed.
    pub(crate) fn is_enabled(&self, level: LogLineLevel) -> bool {
        self.logs.as_ref().is_some_and(|logs| logs.is_enabled(level)) || self.feed.is_enabled(level)
    }
}

fn trace(open: &mut OpenCall, event: &'static str, at: Timestamp, attributes: Vec<KeyValue>) {
    if let Some(spans) = &mut open.spans {
        spans.event(event, at, attributes);
    }
}

fn end_child(open: &mut OpenCall, at: Timestamp) {
    if let Some(spans) = &mut open.spans {
        spans.end_child(at, None);
    }
}

fn profile(policy: &CallPolicy) -> ToolPolicySummary {
    ToolPolicySummary { class: policy.class, scope: names::key_scope(policy), keep: policy.dedupe.keep }
}

/// Returns true if an attempt was ended by the watchdog, and not by a timeout of the tool or by the caller.
fn is_watchdogs(cut: CutReason, policy: &CallPolicy) -> bool {
    match (cut, policy.time.silence) {
        (CutReason::TooLong, _) | (CutReason::Silent(_), SilencePolicy::Stuck) => true,
        (CutReason::Silent(_), SilencePolicy::Timeout) | (CutReason::Deadline | CutReason::Cancelled, _) => {
            false
        }
    }
}

/// Returns the state of the record that a duplicate found. One in flight was counted when it was found.
fn found(result: &CallResult) -> Option<&'static str> {
    let failure = result.outcome.as_ref().err();
    match &result.provenance {
        Provenance::Replayed { reason: ReplayReason::Waited, .. } => None,
        Provenance::Replayed {
            reason: ReplayReason::SameKey | ReplayReason::Undelivered | ReplayReason::DoubleDispatch,
            ..
        } => Some(if failure.is_some() { "failed" } else { "done" }),
        Provenance::Fresh => {
            let is_unknown =
                result.attempts == 0 && failure.is_some_and(|failure| failure.code == Code::OutcomeUnknown);
            is_unknown.then_some("unknown")
        }
    }
}

//! Spans, made from notices. A notice has its own time, so spans are built with explicit times, and no context has to
//! be passed through the engine.
//!
//! ```text
//! tool_execution              from the start of the call to its end
//! ├── approval_wait           waiting for approval
//! ├── follow_wait             waiting for the in-flight call
//! ├── tool_attempt            each attempt; its traceparent is passed on by the tool
//! └── retry_wait              between two attempts
//! ```
//!
//! A call does one of these at a time. Everything else that happens to it is an event of its `tool_execution`.
//!
//! The calls of a turn are below the spans of its trace, with the same ids as in the stored trace:
//!
//! ```text
//! turn                        from its submission to its end
//! └── turn_call               a tool runs for a call of the plan
//!     └── tool_execution
//! ```

use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Event, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags,
    TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};
use steadfast_core::Timestamp;
use steadfast_executor::{NoticeContext, TurnSpan, TurnSummary};
use steadfast_turn::{TurnStatus, trace};

use crate::ids::with_ids;
use crate::labels::Label;
use crate::names;

/// Builder of the spans of calls.
#[derive(Debug)]
pub(crate) struct CallTracer {
    tracer: SdkTracer,
}

/// The spans of one call.
#[derive(Debug)]
pub(crate) struct CallSpans {
    root: Span,
    child: Option<ActivitySpan>,
}

#[derive(Debug)]
struct ActivitySpan {
    doing: CallActivity,
    span: Span,
}

/// The current activity of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallActivity {
    /// Waiting for approval.
    AwaitingApproval,
    /// Waiting for the in-flight call.
    Following,
    /// Running the tool.
    Attempting(u32),
    /// Waiting before it runs the tool again, as this attempt.
    BackingOff(u32),
}

impl CallTracer {
    pub(crate) fn new(tracer: SdkTracer) -> Self {
        Self { tracer }
    }

    /// Starts the span of a call, as a child of its caller's span if there is one.
    pub(crate) fn begin(&self, about: &NoticeContext<'_>, at: Timestamp) -> CallSpans {
        let request = about.request;
        let mut attributes = vec![
            text("tool.name", request.tool.tool.as_str()),
            text("tool.namespace", request.tool.namespace.as_str()),
            own("tool.class", names::class(about.policy.class)),
            text("request.id", request.id.as_str()),
        ];
        if let Some(address) = request.address() {
            attributes.push(own("idempotency.key", address.own().fingerprint()));
        }
        if let Some(context) = request.context.as_deref() {
            let (tags, baggage) = (context.request_tags.join(","), context.baggage_keys.join(","));
            for (name, value) in [
                ("agent.id", context.agent_id.as_deref()),
                ("correlation.id", context.correlation_id.as_deref()),
                ("request.tags", Some(tags.as_str()).filter(|tags| !tags.is_empty())),
                ("hook.name", context.from_hook.as_deref()),
                ("baggage.keys", Some(baggage.as_str()).filter(|keys| !keys.is_empty())),
            ] {
                attributes.extend(value.map(|value| text(name, value)));
            }
        }
        let parent = parent(about.envelope.trace.traceparent.as_deref());
        let builder = SpanBuilder::from_name("tool_execution")
            .with_kind(SpanKind::Internal)
            .with_start_time(time(at))
            .with_attributes(attributes);
        CallSpans { root: self.tracer.build_with_context(builder, &parent), child: None }
    }

    /// Ends the current activity of a call, and starts this one.
    pub(crate) fn turn_to(&self, call: &mut CallSpans, doing: CallActivity, at: Timestamp) {
        call.end_child(at, None);
        let (name, kind, attempt) = match doing {
            CallActivity::AwaitingApproval => ("approval_wait", SpanKind::Internal, None),
            CallActivity::Following => ("follow_wait", SpanKind::Internal, None),
            CallActivity::Attempting(attempt) => ("tool_attempt", SpanKind::Client, Some(attempt)),
            CallActivity::BackingOff(attempt) => ("retry_wait", SpanKind::Internal, Some(attempt)),
        };
        let attributes = attempt.map(|attempt| KeyValue::new("retry.attempt", i64::from(attempt)));
        let parent = Context::new().with_remote_span_context(call.root.span_context().clone());
        let builder = SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_start_time(time(at))
            .with_attributes(attributes);
        call.child = Some(ActivitySpan { doing, span: self.tracer.build_with_context(builder, &parent) });
    }

    /// Creates a finished span of a turn, with the ids from its trace.
    pub(crate) fn turn(&self, turn: &TurnSummary, part: &TurnSpan<'_>) {
        let span = part.span;
        let (name, mut attributes) = match part.tool {
            Some(tool) => (
                "turn_call",
                vec![text("tool.name", tool.tool.as_str()), text("tool.namespace", tool.namespace.as_str())],
            ),
            None => (
                "turn",
                vec![
                    own("status", names::turn_status(turn.status)),
                    own("turn.calls", i64::try_from(turn.calls).unwrap_or(i64::MAX)),
                    own("turn.escalated", turn.escalated),
                ],
            ),
        };
        let ids = [
            ("turn.id", turn.turn_id.as_ref().map(|id| id.as_str())),
            ("call.id", span.call_id.as_ref().map(|id| id.as_str())),
            ("request.id", span.request_id.as_ref().map(|id| id.as_str())),
        ];
        attributes.extend(ids.into_iter().filter_map(|(name, value)| Some(text(name, value?))));
        let summary = turn.summary.as_deref().filter(|_| part.tool.is_none());
        attributes.extend(summary.map(|summary| sentence("turn.summary", summary)));
        let trace = TraceId::from_bytes(turn.trace_id.to_bytes());
        let parent = span.parent_span_id.map_or_else(Context::new, |parent| {
            let sampled = TraceFlags::default().with_sampled(part.sampled);
            let id = SpanId::from_bytes(parent.to_bytes());
            Context::new().with_remote_span_context(SpanContext::new(
                trace,
                id,
                sampled,
                true,
                TraceState::default(),
            ))
        });
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(time(span.started_at))
            .with_attributes(attributes)
            .with_events(part.events().map(event).collect());
        let mut made = with_ids(trace, SpanId::from_bytes(span.span_id.to_bytes()), || {
            self.tracer.build_with_context(builder, &parent)
        });
        let failed = match (part.tool, turn.status) {
            (None, Some(TurnStatus::Failed)) => Some("failed"),
            (None, Some(TurnStatus::Completed | TurnStatus::Partial) | None) => None,
            (Some(_), _) => part.failed.map(|code| code.as_str()),
        };
        if let Some(error_type) = failed {
            made.set_attribute(own("error.type", error_type));
            made.set_status(Status::error(error_type));
        }
        made.end_with_timestamp(time(span.ended_at.unwrap_or(span.started_at)));
    }
}

/// Converts an event of a turn.
fn event(recorded: &trace::TraceEvent) -> Event {
    let mut attributes = vec![sentence("sentence", &recorded.sentence)];
    if let Some(decision) = recorded.decision {
        attributes.push(own("decision", names::strategy(decision)));
    }
    if let Some(code) = recorded.code {
        attributes.push(own("error.type", code.as_str()));
    }
    Event::new(names::turn_event(recorded.event_type), time(recorded.timestamp), attributes, 0)
}

/// An attribute with a text for operators.
fn sentence(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, steadfast_redact::excerpt(value, LONGEST_SENTENCE))
}

impl CallSpans {
    /// Ends the span of the current activity. `rule` is the rule that classified a failed attempt.
    pub(crate) fn end_child(&mut self, at: Timestamp, rule: Option<&Label>) {
        if let Some(ActivitySpan { mut span, .. }) = self.child.take() {
            if let Some(rule) = rule {
                span.set_attribute(KeyValue::new("error.type", Value::from(rule.clone())));
                span.set_status(Status::error(rule.as_str().to_owned()));
            }
            span.end_with_timestamp(time(at));
        }
    }

    /// Adds an event to the span of the call.
    pub(crate) fn event(&mut self, name: &'static str, at: Timestamp, attributes: Vec<KeyValue>) {
        self.root.add_event_with_timestamp(name, time(at), attributes);
    }

    /// Adds an attribute to the span of the call.
    pub(crate) fn attribute(&mut self, attribute: KeyValue) {
        self.root.set_attribute(attribute);
    }

    /// Ends the span of the call, with this error code unless it succeeded.
    pub(crate) fn end(mut self, at: Timestamp, code: Option<&'static str>) {
        self.end_child(at, None);
        if let Some(code) = code {
            self.root.set_attribute(KeyValue::new("error.type", code));
            self.root.set_status(Status::error(code));
        }
        self.root.end_with_timestamp(time(at));
    }

    /// Returns the traceparent for the tool, if this is the current attempt.
    pub(crate) fn traceparent(&self, attempt: u32) -> Option<String> {
        let child = self.child.as_ref().filter(|child| child.doing == CallActivity::Attempting(attempt))?;
        let context = child.span.span_context();
        context.is_valid().then(|| traceparent(context))
    }

    /// Returns the trace id, for log lines.
    pub(crate) fn trace_id(&self) -> Option<String> {
        let context = self.root.span_context();
        context.is_valid().then(|| context.trace_id().to_string())
    }
}

/// An attribute with a built-in value.
pub(crate) fn own(name: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(name, value)
}

/// An attribute with a text from outside, redacted.
pub(crate) fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, steadfast_redact::excerpt(value, MOST_BYTES))
}

/// Returns the context of the caller's span. An unreadable one is ignored.
fn parent(traceparent: Option<&str>) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &TraceparentCarrier(traceparent))
}

/// A carrier that contains only a traceparent.
struct TraceparentCarrier<'a>(Option<&'a str>);

impl Extractor for TraceparentCarrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.filter(|_| key == "traceparent")
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

fn traceparent(context: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
}

fn time(at: Timestamp) -> SystemTime {
    // Only a broken clock shows a later time. Then the epoch will do.
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(at.as_millis()))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The longest text that is shown.
const MOST_BYTES: usize = 256;
/// The longest text for operators that is shown.
const LONGEST_SENTENCE: usize = 1024;

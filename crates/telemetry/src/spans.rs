//! Spans, made from notices. A notice says when it happened, so spans are built with their own times and no
//! context has to travel through the engine.
//!
//! ```text
//! tool_execution              from the arrival of the call to its end
//! ├── approval_wait           a person is asked
//! ├── follow_wait             another call runs the same
//! ├── tool_attempt            each attempt; its traceparent is what the tool passes on
//! └── retry_wait              between two attempts
//! ```
//!
//! A call does one of these at a time. What else happens to it is an event of its `tool_execution`.
//!
//! The calls of a turn are below the spans of its trace, which have the ids there that they have here:
//!
//! ```text
//! turn                        from its submission to its end
//! └── turn_call               a tool is at work for a call of the plan
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
use steadfast_core::turn::TurnStatus;
use steadfast_core::turn::trace;
use steadfast_core::{Timestamp, redact};
use steadfast_executor::{About, TurnHead, TurnSpan};

use crate::ids::with_ids;
use crate::labels::Label;
use crate::words;

/// Makes the spans of calls.
#[derive(Debug)]
pub(crate) struct Spans {
    tracer: SdkTracer,
}

/// The spans of one call.
#[derive(Debug)]
pub(crate) struct CallSpans {
    root: Span,
    child: Option<Child>,
}

#[derive(Debug)]
struct Child {
    doing: Doing,
    span: Span,
}

/// What a call does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It waits for a person.
    AwaitingApproval,
    /// It waits for another call.
    Following,
    /// It runs the tool.
    Attempting(u32),
    /// It waits before it runs the tool again, as this attempt.
    BackingOff(u32),
}

impl Spans {
    pub(crate) fn new(tracer: SdkTracer) -> Self {
        Self { tracer }
    }

    /// A call begins, as a child of its caller's span if it told one.
    pub(crate) fn begin(&self, about: &About<'_>, at: Timestamp) -> CallSpans {
        let request = about.request;
        let mut attributes = vec![
            text("tool.name", request.tool.tool.as_str()),
            text("tool.namespace", request.tool.namespace.as_str()),
            own("tool.class", words::class(about.policy.class)),
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

    /// The call turns to this. Whatever it did before is over.
    pub(crate) fn turn_to(&self, call: &mut CallSpans, doing: Doing, at: Timestamp) {
        call.end_child(at, None);
        let (name, kind, attempt) = match doing {
            Doing::AwaitingApproval => ("approval_wait", SpanKind::Internal, None),
            Doing::Following => ("follow_wait", SpanKind::Internal, None),
            Doing::Attempting(attempt) => ("tool_attempt", SpanKind::Client, Some(attempt)),
            Doing::BackingOff(attempt) => ("retry_wait", SpanKind::Internal, Some(attempt)),
        };
        let attributes = attempt.map(|attempt| KeyValue::new("retry.attempt", i64::from(attempt)));
        let parent = Context::new().with_remote_span_context(call.root.span_context().clone());
        let builder = SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_start_time(time(at))
            .with_attributes(attributes);
        call.child = Some(Child { doing, span: self.tracer.build_with_context(builder, &parent) });
    }

    /// A stretch of a turn, which is over: made and ended at once, with the ids that it has in the trace.
    pub(crate) fn turn(&self, turn: &TurnHead, part: &TurnSpan<'_>) {
        let span = part.span;
        let (name, mut attributes) = match part.tool {
            Some(tool) => (
                "turn_call",
                vec![text("tool.name", tool.tool.as_str()), text("tool.namespace", tool.namespace.as_str())],
            ),
            None => (
                "turn",
                vec![
                    own("status", words::turn_status(turn.status)),
                    own("turn.calls", i64::try_from(turn.calls).unwrap_or(i64::MAX)),
                    own("turn.escalated", turn.escalated),
                ],
            ),
        };
        let whose = [
            ("turn.id", turn.turn_id.as_ref().map(|id| id.as_str())),
            ("call.id", span.call_id.as_ref().map(|id| id.as_str())),
            ("request.id", span.request_id.as_ref().map(|id| id.as_str())),
        ];
        attributes.extend(whose.into_iter().filter_map(|(name, value)| Some(text(name, value?))));
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
        if let Some(why) = failed {
            made.set_attribute(own("error.type", why));
            made.set_status(Status::error(why));
        }
        made.end_with_timestamp(time(span.ended_at.unwrap_or(span.started_at)));
    }
}

/// What happened in a turn.
fn event(happened: &trace::Event) -> Event {
    let mut attributes = vec![sentence("sentence", &happened.sentence)];
    if let Some(decision) = happened.decision {
        attributes.push(own("decision", words::strategy(decision)));
    }
    if let Some(code) = happened.code {
        attributes.push(own("error.type", code.as_str()));
    }
    Event::new(words::turn_event(happened.event_type), time(happened.timestamp), attributes, 0)
}

/// A text for people to read.
fn sentence(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, redact::excerpt(value, LONGEST_SENTENCE))
}

impl CallSpans {
    /// What the call was doing is over; an attempt failed by this rule, if there is one.
    pub(crate) fn end_child(&mut self, at: Timestamp, rule: Option<&Label>) {
        if let Some(Child { mut span, .. }) = self.child.take() {
            if let Some(rule) = rule {
                span.set_attribute(KeyValue::new("error.type", Value::from(rule.clone())));
                span.set_status(Status::error(rule.as_str().to_owned()));
            }
            span.end_with_timestamp(time(at));
        }
    }

    /// Something happened to the call.
    pub(crate) fn event(&mut self, name: &'static str, at: Timestamp, attributes: Vec<KeyValue>) {
        self.root.add_event_with_timestamp(name, time(at), attributes);
    }

    /// Something about the call is known now.
    pub(crate) fn attribute(&mut self, attribute: KeyValue) {
        self.root.set_attribute(attribute);
    }

    /// The call is over, with this code unless it succeeded.
    pub(crate) fn end(mut self, at: Timestamp, code: Option<&'static str>) {
        self.end_child(at, None);
        if let Some(code) = code {
            self.root.set_attribute(KeyValue::new("error.type", code));
            self.root.set_status(Status::error(code));
        }
        self.root.end_with_timestamp(time(at));
    }

    /// What the tool passes on, if this is the attempt that runs.
    pub(crate) fn traceparent(&self, attempt: u32) -> Option<String> {
        let child = self.child.as_ref().filter(|child| child.doing == Doing::Attempting(attempt))?;
        let context = child.span.span_context();
        context.is_valid().then(|| traceparent(context))
    }

    /// The trace, for log lines.
    pub(crate) fn trace_id(&self) -> Option<String> {
        let context = self.root.span_context();
        context.is_valid().then(|| context.trace_id().to_string())
    }
}

/// A value of ours.
pub(crate) fn own(name: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(name, value)
}

/// A value from outside.
pub(crate) fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, redact::excerpt(value, MOST_BYTES))
}

/// The caller's span; an unreadable one is none.
fn parent(traceparent: Option<&str>) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Only(traceparent))
}

/// A carrier with nothing but a traceparent in it.
struct Only<'a>(Option<&'a str>);

impl Extractor for Only<'_> {
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
    // Later than any clock can show only if a machine's clock is broken; then the epoch is as good.
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(at.as_millis()))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The most that is shown of one text.
const MOST_BYTES: usize = 256;
/// The most that is shown of one that is for people.
const LONGEST_SENTENCE: usize = 1024;

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

use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};
use steadfast_core::{Timestamp, redact};
use steadfast_executor::About;

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

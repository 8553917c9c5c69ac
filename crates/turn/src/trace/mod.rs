//! The trace of a turn, as events for programs and sentences for readers.
//!
//! A trace is append-only. A closed span takes no more events, and a closed trace takes nothing. A trace is bounded.
//! The *first* events are stored, because a turn is understood from its beginning. The end is always stored too: room
//! is reserved for the event with the number of dropped events and for the event of the end of the turn.
//!
//! Parameters and outputs never enter a trace. Error texts do, and exporters redact them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use steadfast_core::Timestamp;
use steadfast_core::id::{RequestId, ToolCallId, TurnId};

use super::clip;

mod event;
mod id;
pub mod iso;

use event::{EventPosition, TEXT_BYTES};
pub use event::{
    SkipReason, ToolFailureDetails, TraceEvent, TraceEventKind, TraceEventType, TraceNote, TurnFact,
};
pub use id::{SpanId, TraceId};

/// A span of time that events belong to: one call of the turn, or the turn itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceSpan {
    /// Id of the span.
    pub span_id: SpanId,
    /// Id of the parent span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<SpanId>,
    /// Name of the span.
    pub name: String,
    /// Id of the call in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<ToolCallId>,
    /// Ids of the calls that it depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<ToolCallId>,
    /// Id of the request in the call history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Time at which it started.
    #[serde(with = "iso")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub started_at: Timestamp,
    /// Time at which it ended. Absent if it is open.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "iso::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub ended_at: Option<Timestamp>,
}

/// The trace of one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnTrace {
    trace_id: TraceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn_id: Option<TurnId>,
    #[serde(with = "iso")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "iso::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    ended_at: Option<Timestamp>,
    spans: BTreeMap<SpanId, TraceSpan>,
    events: Vec<TraceEvent>,
    dropped_events: u64,
    dropped_spans: u64,
    limit: usize,
}

/// The reason why a write to a trace was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The trace was closed.
    #[error("the trace is closed")]
    Closed,
    /// The span was closed.
    #[error("the span {0} is closed")]
    SpanClosed(SpanId),
    /// The trace has no such span.
    #[error("the trace has no span {0}")]
    UnknownSpan(SpanId),
    /// The trace has this span already.
    #[error("the trace already has a span {0}")]
    DuplicateSpan(SpanId),
}

impl TurnTrace {
    /// The default limit of events and spans of one turn. A higher value lets each stored trace grow by about half a
    /// kilobyte per event.
    pub const DEFAULT_LIMIT: usize = 10_000;

    /// Begins a trace that stores at most `limit` events and `limit` spans.
    pub fn start(trace_id: TraceId, turn_id: Option<TurnId>, limit: usize, now: Timestamp) -> Self {
        Self {
            trace_id,
            turn_id,
            started_at: now,
            ended_at: None,
            spans: BTreeMap::new(),
            events: Vec::new(),
            dropped_events: 0,
            dropped_spans: 0,
            limit,
        }
    }

    /// Opens a span. A span beyond the limit is not stored, and its events are stored without a span.
    pub fn start_span(&mut self, mut span: TraceSpan) -> Result<(), TraceError> {
        if self.ended_at.is_some() {
            return Err(TraceError::Closed);
        }
        if self.spans.contains_key(&span.span_id) {
            return Err(TraceError::DuplicateSpan(span.span_id));
        }
        if self.spans.len() >= self.limit {
            self.dropped_spans = self.dropped_spans.saturating_add(1);
            return Ok(());
        }
        span.name = clip(&span.name, TEXT_BYTES);
        self.spans.insert(span.span_id, span);
        Ok(())
    }

    /// Closes a span. It takes no more events.
    pub fn end_span(&mut self, span: SpanId, now: Timestamp) -> Result<(), TraceError> {
        match self.open_span(span)? {
            Some(open) => open.ended_at = Some(now.max(open.started_at)),
            None => return Ok(()),
        }
        Ok(())
    }

    /// Appends an event.
    pub fn record(&mut self, note: &TraceNote, span: Option<SpanId>) -> Result<(), TraceError> {
        let span = match span {
            Some(span) => self.open_span(span)?.map(|open| open.span_id),
            None if self.ended_at.is_some() => return Err(TraceError::Closed),
            None => None,
        };
        let is_recorded = self.events.last().is_some_and(|last| last.event_type == TraceEventType::TurnEnded);
        let is_end = note.fact.event_type() == TraceEventType::TurnEnded && !is_recorded;
        if self.events.len() < self.limit {
            self.push(note, span);
        } else if is_end {
            self.push_cut(note.at);
            self.push(note, span);
        } else {
            self.dropped_events = self.dropped_events.saturating_add(1);
        }
        Ok(())
    }

    /// Closes the trace and all its open spans. It takes no more writes.
    pub fn close(&mut self, now: Timestamp) {
        if self.ended_at.is_some() {
            return;
        }
        for span in self.spans.values_mut() {
            let end = now.max(span.started_at);
            span.ended_at.get_or_insert(end);
        }
        self.ended_at = Some(now.max(self.started_at));
    }

    /// Returns the trace's id.
    pub fn id(&self) -> TraceId {
        self.trace_id
    }

    /// Returns the stored events, in the order in which they were recorded. Each has the trace id, so each is valid as
    /// a line of its own.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Returns the stored spans.
    pub fn spans(&self) -> impl Iterator<Item = &TraceSpan> {
        self.spans.values()
    }

    /// Returns the number of dropped events.
    pub fn dropped(&self) -> u64 {
        self.dropped_events
    }

    /// Returns the span if it is open, or None if the span was dropped by the limit.
    fn open_span(&mut self, id: SpanId) -> Result<Option<&mut TraceSpan>, TraceError> {
        if self.ended_at.is_some() {
            return Err(TraceError::Closed);
        }
        match self.spans.get_mut(&id) {
            Some(span) if span.ended_at.is_some() => Err(TraceError::SpanClosed(id)),
            Some(span) => Ok(Some(span)),
            None if self.dropped_spans > 0 => Ok(None),
            None => Err(TraceError::UnknownSpan(id)),
        }
    }

    fn push(&mut self, note: &TraceNote, span: Option<SpanId>) {
        self.events.push(TraceEvent::of(self.place(span), note));
    }

    fn push_cut(&mut self, at: Timestamp) {
        let dropped = self.dropped_events;
        if dropped > 0 {
            let sentence = format!("{dropped} events were dropped here because the trace was full");
            let blank = TraceEvent::blank(self.place(None), TraceEventType::TraceCut, at, sentence);
            self.events.push(TraceEvent { dropped: Some(dropped), ..blank });
        }
    }

    fn place(&self, span: Option<SpanId>) -> EventPosition {
        let sequence =
            u64::try_from(self.events.len()).unwrap_or(u64::MAX).saturating_add(self.dropped_events);
        EventPosition { trace: self.trace_id, span, sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallNeed, FailureStrategy, TurnCallOutcome};
    use std::time::Duration;
    use steadfast_core::breaker::State;
    use steadfast_core::classify::FaultNature;
    use steadfast_core::code::Code;
    use steadfast_core::id::{Namespace, ToolName, ToolRef};

    const NOW: Timestamp = Timestamp::from_millis(1_762_338_645_007);

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new("travel").unwrap(), tool: ToolName::new(name).unwrap() }
    }

    fn note(fact: TurnFact) -> TraceNote {
        TraceNote {
            at: NOW,
            call: Some(ToolCallId::new("f").unwrap()),
            tool: Some(tool("flight_search")),
            fact,
        }
    }

    fn trace(limit: usize) -> TurnTrace {
        TurnTrace::start(TraceId::from_bytes([7; 16]), None, limit, NOW)
    }

    fn span(id: u8) -> TraceSpan {
        TraceSpan {
            span_id: SpanId::from_bytes([id; 8]),
            parent_span_id: None,
            name: "flight_search".into(),
            call_id: None,
            depends_on: Vec::new(),
            request_id: None,
            started_at: NOW,
            ended_at: None,
        }
    }

    fn fault() -> ToolFailureDetails {
        ToolFailureDetails {
            error: "reset\nby peer".into(),
            rule: Some("text.connection".into()),
            code: Code::RetryExhausted,
            nature: FaultNature::Transient,
            breaker: State::Closed,
            attempts: 3,
            decision: FailureStrategy::Escalate,
        }
    }

    /// Returns one fact of each variant.
    fn facts() -> Vec<(TurnFact, TraceEventKind, &'static str)> {
        let because =
            |reason| TurnFact::ToolSkipped { because: reason, need: CallNeed::Required, escalated: true };
        let dependency = || ToolCallId::new("a").unwrap();
        vec![
            (TurnFact::TurnStarted { calls: 3 }, TraceEventKind::Summary, "Turn started with 3 calls"),
            (
                TurnFact::CallRestored { outcome: TurnCallOutcome::Failed },
                TraceEventKind::ToolInvocation,
                "Finished earlier, not run again: flight_search",
            ),
            (TurnFact::ToolStarted, TraceEventKind::ToolInvocation, "Started flight_search"),
            (
                TurnFact::ToolRetry { attempt: 2, delay: Duration::from_millis(100) },
                TraceEventKind::ToolInvocation,
                "Retry of flight_search: attempt 2 in 100 ms",
            ),
            (
                TurnFact::ToolSucceeded { attempts: 1 },
                TraceEventKind::ToolInvocation,
                "Tool succeeded: flight_search",
            ),
            (
                TurnFact::ToolSucceeded { attempts: 2 },
                TraceEventKind::ToolInvocation,
                "Tool succeeded on retry 2: flight_search",
            ),
            (
                TurnFact::ToolError(fault()),
                TraceEventKind::Error,
                "Tool failed: flight_search, reset\nby peer",
            ),
            (
                TurnFact::ToolError(ToolFailureDetails { error: String::new(), ..fault() }),
                TraceEventKind::Error,
                "Tool failed: flight_search",
            ),
            (
                TurnFact::ToolTimeout { timeout: Duration::from_secs(30), fault: fault() },
                TraceEventKind::Error,
                "Tool timeout after 30000 ms: flight_search",
            ),
            (
                TurnFact::Decision { strategy: FailureStrategy::Escalate, reason: "permanent error".into() },
                TraceEventKind::Decision,
                "Decided to escalate for flight_search: permanent error",
            ),
            (
                TurnFact::CircuitBreaker { state: State::Open },
                TraceEventKind::Observation,
                "Circuit breaker opened for flight_search",
            ),
            (
                TurnFact::AlternativeUsed { instead_of: tool("cards") },
                TraceEventKind::Decision,
                "Used alternative tool flight_search instead of cards",
            ),
            (
                TurnFact::DefaultUsed { dependency: dependency() },
                TraceEventKind::Decision,
                "Used default value for flight_search in place of the output of a",
            ),
            (
                because(SkipReason::Dependency(dependency())),
                TraceEventKind::Decision,
                "Required tool skipped due to dependency failure: flight_search needs a",
            ),
            (
                because(SkipReason::Deadline),
                TraceEventKind::Decision,
                "Required tool skipped because the turn's deadline passed: flight_search",
            ),
            (
                because(SkipReason::Cancelled),
                TraceEventKind::Decision,
                "Required tool skipped because the turn was cancelled: flight_search",
            ),
            (
                TurnFact::ToolCancelled,
                TraceEventKind::ToolInvocation,
                "Stopped flight_search at the end of the turn",
            ),
            (
                TurnFact::ToolLeftRunning,
                TraceEventKind::ToolInvocation,
                "Left flight_search running at the end of the turn",
            ),
            (
                TurnFact::LateResult { code: None },
                TraceEventKind::ToolInvocation,
                "Succeeded after the end of the turn: flight_search",
            ),
            (
                TurnFact::TurnTimeout { timeout: Duration::from_secs(1) },
                TraceEventKind::Error,
                "Turn timeout after 1000 ms",
            ),
            (TurnFact::TurnCancelled, TraceEventKind::Summary, "Turn cancelled"),
            (
                TurnFact::TurnEnded { summary: "Completed flight search".into(), escalated: false },
                TraceEventKind::Summary,
                "Completed flight search",
            ),
        ]
    }

    #[test]
    fn every_event_is_one_line_with_a_sentence_and_comes_back_from_it() {
        let mut trace = trace(100);
        trace.start_span(span(1)).unwrap();
        for (fact, kind, sentence) in facts() {
            trace.record(&note(fact), Some(SpanId::from_bytes([1; 8]))).unwrap();
            let event = trace.events().last().unwrap();
            assert_eq!((event.kind, event.sentence.as_str()), (kind, sentence));
            let line = serde_json::to_string(event).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<TraceEvent>(&line).unwrap(), *event);
        }
        trace.close(NOW);
        let text = serde_json::to_string(&trace).unwrap();
        assert_eq!(serde_json::from_str::<TurnTrace>(&text).unwrap(), trace);
    }

    #[test]
    fn an_event_of_a_timeout_has_the_documented_fields() {
        let mut trace = trace(100);
        let fact = TurnFact::ToolTimeout { timeout: Duration::from_secs(30), fault: fault() };
        trace.record(&note(fact), None).unwrap();
        assert_eq!(
            serde_json::to_value(&trace.events()[0]).unwrap(),
            serde_json::json!({
                "event_type": "ToolTimeout", "kind": "Error", "timestamp": "2025-11-05T10:30:45.007Z",
                "trace_id": "07070707070707070707070707070707", "sequence": 0,
                "call_id": "f", "tool_id": "flight_search", "tool_namespace": "travel",
                "sentence": "Tool timeout after 30000 ms: flight_search", "timeout_ms": 30000,
                "error": "reset\nby peer", "rule": "text.connection", "code": "retry_exhausted", "classification": "transient",
                "circuit_breaker_state": "CLOSED", "retry_count": 2, "decision": "ESCALATE",
            })
        );
    }

    #[test]
    fn closed_spans_and_traces_refuse_writes() {
        let mut trace = trace(100);
        let (one, two) = (SpanId::from_bytes([1; 8]), SpanId::from_bytes([2; 8]));
        trace.start_span(span(1)).unwrap();
        assert_eq!(trace.start_span(span(1)), Err(TraceError::DuplicateSpan(one)));
        assert_eq!(trace.record(&note(TurnFact::ToolStarted), Some(two)), Err(TraceError::UnknownSpan(two)));
        assert_eq!(trace.end_span(two, NOW), Err(TraceError::UnknownSpan(two)));
        trace.record(&note(TurnFact::ToolStarted), Some(one)).unwrap();
        trace.end_span(one, NOW).unwrap();
        assert_eq!(trace.record(&note(TurnFact::ToolStarted), Some(one)), Err(TraceError::SpanClosed(one)));
        assert_eq!(trace.end_span(one, NOW), Err(TraceError::SpanClosed(one)));
        trace.start_span(span(2)).unwrap();
        trace.close(NOW);
        assert!(trace.spans().all(|span| span.ended_at.is_some()));
        assert_eq!(trace.record(&note(TurnFact::ToolStarted), None), Err(TraceError::Closed));
        assert_eq!(trace.record(&note(TurnFact::ToolStarted), Some(two)), Err(TraceError::Closed));
        assert_eq!(trace.start_span(span(3)), Err(TraceError::Closed));
        assert_eq!(trace.events().len(), 1);
    }

    #[test]
    fn a_full_trace_stores_its_beginning_and_its_end_and_a_mark_of_the_cut() {
        let mut trace = trace(3);
        for attempt in 1..=10 {
            trace.record(&note(TurnFact::ToolSucceeded { attempts: attempt }), None).unwrap();
        }
        trace
            .record(&note(TurnFact::TurnEnded { summary: "Completed x".into(), escalated: false }), None)
            .unwrap();
        let actual: Vec<_> = trace.events().iter().map(|event| (event.event_type, event.sequence)).collect();
        assert_eq!(
            actual,
            [
                (TraceEventType::ToolSucceeded, 0),
                (TraceEventType::ToolSucceeded, 1),
                (TraceEventType::ToolSucceeded, 2),
                (TraceEventType::TraceCut, 10),
                (TraceEventType::TurnEnded, 11)
            ]
        );
        assert_eq!((trace.dropped(), trace.events()[3].dropped), (7, Some(7)));
        assert_eq!(trace.events()[3].sentence, "7 events were dropped here because the trace was full");
        // The end is stored once.
        trace.record(&note(TurnFact::TurnEnded { summary: "again".into(), escalated: false }), None).unwrap();
        assert_eq!(trace.events().len(), 5);
        // Spans are bounded too. Events of a dropped span are stored without it.
        (1..=5).for_each(|id| trace.start_span(span(id)).unwrap());
        assert_eq!(trace.spans().count(), 3);
        assert_eq!(trace.record(&note(TurnFact::ToolStarted), Some(SpanId::from_bytes([5; 8]))), Ok(()));
    }

    #[test]
    fn a_trace_that_is_just_full_is_not_cut() {
        let mut trace = trace(1);
        trace.record(&note(TurnFact::ToolStarted), None).unwrap();
        trace
            .record(&note(TurnFact::TurnEnded { summary: "Completed x".into(), escalated: false }), None)
            .unwrap();
        let actual: Vec<_> = trace.events().iter().map(|event| event.event_type).collect();
        assert_eq!(actual, [TraceEventType::ToolStarted, TraceEventType::TurnEnded]);
    }

    #[test]
    fn sf_6_a_secret_at_the_edge_of_a_sentence_is_redacted_before_it_is_cut() {
        let error = format!("{:<180}https://me:s3cr3t-pass@host/", "no such place");
        let fact = TurnFact::ToolError(ToolFailureDetails { error, ..fault() });
        assert!(note(fact.clone()).sentence().contains("s3cr3t"), "half of it would stay");
        let shown = note(fact).redacted();
        assert!(!format!("{shown:?} {}", shown.sentence()).contains("s3cr3t"), "{shown:?}");
    }

    #[test]
    fn long_texts_of_tools_are_cut() {
        let mut trace = trace(3);
        let fault = ToolFailureDetails { error: "é".repeat(100_000), ..fault() };
        trace.record(&note(TurnFact::ToolError(fault)), None).unwrap();
        assert!(serde_json::to_string(trace.events()).unwrap().len() < 2500);
        // The summary of a turn may be twice as long.
        let turn_ended = |bytes: usize| TurnFact::TurnEnded { summary: "x".repeat(bytes), escalated: false };
        for (bytes, whole) in [(2 * TEXT_BYTES, true), (2 * TEXT_BYTES + 1, false)] {
            assert_eq!(note(turn_ended(bytes)).sentence().len() == bytes, whole, "{bytes}");
        }
    }
}

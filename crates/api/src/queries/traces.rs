//! Turns and their traces.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::Engine;
use steadfast::store::StoreError;
use steadfast::turn::{TurnQuery, TurnSummary, TurnTraceView};
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::classify::FaultNature;
use steadfast_core::code::Code;
use steadfast_core::id::{ActorId, Namespace, RequestId, SessionKey, TenantId, ToolCallId, ToolName, TurnId};
use steadfast_store::JournalPosition;
use steadfast_turn::trace::{SpanId, TraceEvent, TraceEventKind, TraceEventType, TraceId, TraceSpan, iso};
use steadfast_turn::{FailureStrategy, TurnCallOutcome, TurnStatus};

use super::paging::list_query;
use super::view::view;

list_query! {
    /// Filters for turns.
    TracesQuery by Reverse<JournalPosition> {
        /// Only turns of this tenant.
        tenant: TenantId,
        /// Only turns of this session.
        session: SessionKey,
        /// Only turns with this name.
        turn: TurnId,
    }
}

impl TracesQuery {
    /// Returns the query, or a description of the error.
    pub fn read(self) -> Result<TurnQuery, String> {
        let page = self.page()?;
        Ok(TurnQuery {
            tenant: self.tenant,
            session: self.session,
            turn: self.turn,
            behind: page.after.map(|Reverse(place)| place),
            limit: page.limit,
        })
    }
}

/// A page of turns.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Traces {
    /// The turns, the last started first.
    pub turns: Vec<TurnView>,
    /// Cursor of the next page, for `after`. `null` on the last page. If few entries match the filters, a page may be
    /// short or empty although more pages follow.
    pub next: Option<String>,
}

/// Returns the turns that match.
pub async fn traces(engine: &Engine, query: &TurnQuery) -> Result<Traces, StoreError> {
    let part = engine.turns(query).await?;
    let turns = part.found.into_iter().map(TurnView::from).collect();
    Ok(Traces { turns, next: part.next.map(|place| place.to_string()) })
}

view! {
    /// A summary of a turn.
    TurnView of TurnSummary {
        /// The trace id.
        trace_id: TraceId,
        /// The span id of this submission of the turn.
        span_id: SpanId,
        /// The session key.
        session: SessionKey,
        /// The actor on whose behalf it runs.
        actor: ActorId,
        /// The number of calls in its plan.
        calls: usize,
        /// Time at which it started.
        started_at_ms: Timestamp,
        /// True if it needs attention.
        #[serde(default)]
        escalated: bool,
    } {
        /// The name in its plan.
        turn_id: TurnId,
        /// The tenant that it belongs to.
        tenant: TenantId,
        /// Time at which it ended. Absent while it runs, or if its process has died.
        ended_at_ms: Timestamp,
        /// The status: all, some or none of it succeeded.
        status: TurnStatus,
        /// One sentence for the user.
        summary: String,
    }
}

/// A turn with its spans and events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceView {
    /// The summary.
    pub turn: TurnView,
    /// The spans of the turn and of its calls, the first started first.
    pub spans: Vec<SpanView>,
    /// The events in order.
    pub events: Vec<EventView>,
}

impl From<TurnTraceView> for TraceView {
    fn from(TurnTraceView { turn, spans, events }: TurnTraceView) -> Self {
        Self {
            turn: turn.into(),
            spans: spans.into_iter().map(Into::into).collect(),
            events: events.into_iter().map(Into::into).collect(),
        }
    }
}

view! {
    /// A span of time: the turn, or one of its calls.
    SpanView of TraceSpan {
        /// The id.
        span_id: SpanId,
        /// The name of the turn or the call.
        name: String,
        /// The calls that it waited for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        depends_on: Vec<ToolCallId>,
        /// Start time, in ISO 8601 with milliseconds.
        #[serde(with = "iso")]
        #[schemars(with = "String")]
        started_at: Timestamp,
    } {
        /// The parent span.
        parent_span_id: SpanId,
        /// The id of the call in the plan.
        call_id: ToolCallId,
        /// The request id of the call in the history.
        request_id: RequestId,
        /// End time. Absent while it is open.
        #[serde(with = "iso::option")]
        #[schemars(with = "Option<String>")]
        ended_at: Timestamp,
    }
}

view! {
    /// One event of a turn.
    EventView of TraceEvent {
        /// The type of event.
        event_type: TraceEventType,
        /// The group it belongs to.
        kind: TraceEventKind,
        /// Time of the event, in ISO 8601 with milliseconds.
        #[serde(with = "iso")]
        #[schemars(with = "String")]
        timestamp: Timestamp,
        /// The trace id.
        trace_id: TraceId,
        /// The position among the events of the trace.
        sequence: u64,
        /// The event as a sentence.
        sentence: String,
    } {
        /// The span, if it belongs to one.
        span_id: SpanId,
        /// The id of the call in the plan.
        call_id: ToolCallId,
        /// The tool.
        tool_id: ToolName,
        /// The namespace of the tool.
        tool_namespace: Namespace,
        /// The timeout that passed, in milliseconds.
        timeout_ms: u64,
        /// The delay before a retry, in milliseconds.
        delay_ms: u64,
        /// The error.
        error: String,
        /// The rule that classified the error.
        rule: String,
        /// The error code.
        code: Code,
        /// The class of the error: retryable or not.
        classification: FaultNature,
        /// The state of the tool's circuit breaker.
        circuit_breaker_state: State,
        /// The number of retries so far: attempts without the first.
        retry_count: u32,
        /// The decision of the error handler.
        decision: FailureStrategy,
        /// The reason for the decision.
        reason: String,
        /// The outcome of the call.
        outcome: TurnCallOutcome,
        /// The call whose output was missing.
        dependency_id: ToolCallId,
        /// True if an operator should know.
        escalated: bool,
        /// The number of events that were dropped before this one.
        dropped: u64,
    }
}

/// Formats a turn as JSON lines: the summary, then spans and events, each an object with one field that names its kind.
pub fn lines(trace: &TraceView) -> String {
    fn line(kind: &str, content: &impl Serialize, lines: &mut String) {
        // All parts of a turn can be serialized.
        let text = serde_json::to_string(content).unwrap_or_default();
        lines.push_str(&format!("{{\"{kind}\":{}}}\n", steadfast_redact::response(&text)));
    }
    let mut lines = String::new();
    line("turn", &trace.turn, &mut lines);
    trace.spans.iter().for_each(|span| line("span", span, &mut lines));
    trace.events.iter().for_each(|event| line("event", event, &mut lines));
    lines
}

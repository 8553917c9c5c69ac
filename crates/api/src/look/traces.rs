//! Turns, and how they went.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::{Engine, StoreError, TurnHead, TurnStory, TurnsWanted};
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::classify::Nature;
use steadfast_core::code::Code;
use steadfast_core::id::{ActorId, Namespace, RequestId, SessionKey, TenantId, ToolCallId, ToolName, TurnId};
use steadfast_core::redact;
use steadfast_core::turn::trace::{Event, EventType, Kind, Span, SpanId, TraceId, iso};
use steadfast_core::turn::{Outcome, Strategy, TurnStatus};
use steadfast_store::Position;

use super::paging::asks;
use super::view::view;

asks! {
    /// Which turns are asked for.
    TracesAsked by Reverse<Position> {
        /// Of this tenant.
        tenant: TenantId,
        /// Of this conversation.
        session: SessionKey,
        /// Under this name.
        turn: TurnId,
    }
}

impl TracesAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<TurnsWanted, String> {
        let page = self.page()?;
        Ok(TurnsWanted {
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
    /// Those first that began last.
    pub turns: Vec<TurnView>,
    /// What to ask for `after` next; nothing at the end. Where few of many fit there may be more behind a short page, or an
    /// empty one.
    pub next: Option<String>,
}

/// The turns that are asked for.
pub async fn traces(engine: &Engine, wanted: &TurnsWanted) -> Result<Traces, StoreError> {
    let part = engine.turns(wanted).await?;
    let turns = part.found.into_iter().map(TurnView::from).collect();
    Ok(Traces { turns, next: part.next.map(|place| place.to_string()) })
}

view! {
    /// A turn in short.
    TurnView of TurnHead {
        /// Its trace.
        trace_id: TraceId,
        /// Its own span, that of no other submission.
        span_id: SpanId,
        /// The conversation.
        session: SessionKey,
        /// The actor on whose behalf it runs.
        actor: ActorId,
        /// Calls in its plan.
        calls: usize,
        /// When it began.
        started_at_ms: Timestamp,
        /// Whether a person should look at something.
        #[serde(default)]
        escalated: bool,
    } {
        /// The name that its plan gave it.
        turn_id: TurnId,
        /// The tenant that it belongs to.
        tenant: TenantId,
        /// When it ended; nothing while it runs, or if its process is gone.
        ended_at_ms: Timestamp,
        /// How much of it succeeded.
        status: TurnStatus,
        /// One sentence for the user.
        summary: String,
    }
}

/// A turn as it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceView {
    /// In short.
    pub turn: TurnView,
    /// The turn and its calls as stretches of time, those first that began first.
    pub spans: Vec<SpanView>,
    /// What happened, in order.
    pub events: Vec<EventView>,
}

impl From<TurnStory> for TraceView {
    fn from(TurnStory { turn, spans, events }: TurnStory) -> Self {
        Self {
            turn: turn.into(),
            spans: spans.into_iter().map(Into::into).collect(),
            events: events.into_iter().map(Into::into).collect(),
        }
    }
}

view! {
    /// A stretch of time that events belong to: one call of the turn, or the turn itself.
    SpanView of Span {
        /// Its id.
        span_id: SpanId,
        /// What it is about.
        name: String,
        /// The calls that it waited for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        depends_on: Vec<ToolCallId>,
        /// When it began, in ISO 8601 with milliseconds.
        #[serde(with = "iso")]
        #[schemars(with = "String")]
        started_at: Timestamp,
    } {
        /// The span that it is part of.
        parent_span_id: SpanId,
        /// The call of the plan.
        call_id: ToolCallId,
        /// The request under which the call is in the history.
        request_id: RequestId,
        /// When it ended; open if absent.
        #[serde(with = "iso::option")]
        #[schemars(with = "Option<String>")]
        ended_at: Timestamp,
    }
}

view! {
    /// One event of a turn.
    EventView of Event {
        /// The type of event.
        event_type: EventType,
        /// The group it belongs to.
        kind: Kind,
        /// When, in ISO 8601 with milliseconds.
        #[serde(with = "iso")]
        #[schemars(with = "String")]
        timestamp: Timestamp,
        /// The trace.
        trace_id: TraceId,
        /// Its place among the events of the trace.
        sequence: u64,
        /// The event as a sentence.
        sentence: String,
    } {
        /// The span, if it belongs to one.
        span_id: SpanId,
        /// The call of the plan.
        call_id: ToolCallId,
        /// The tool.
        tool_id: ToolName,
        /// The namespace of the tool.
        tool_namespace: Namespace,
        /// The timeout that passed.
        timeout_ms: u64,
        /// The wait before a retry.
        delay_ms: u64,
        /// The error of what failed.
        error: String,
        /// The rule that classified the error.
        rule: String,
        /// The code of what failed.
        code: Code,
        /// Whether trying again can help.
        classification: Nature,
        /// The state of the tool's breaker.
        circuit_breaker_state: State,
        /// Retries made so far: attempts without the first.
        retry_count: u32,
        /// The decision of the error handler.
        decision: Strategy,
        /// Why it decided so.
        reason: String,
        /// How a call ended.
        outcome: Outcome,
        /// The call that something was missing from.
        dependency_id: ToolCallId,
        /// Whether a person should know.
        escalated: bool,
        /// Events that were left out before this one.
        dropped: u64,
    }
}

/// A story as lines of JSON: the head, then spans and events, each an object with one field that says which.
pub fn lines(story: &TraceView) -> String {
    fn line(kind: &str, content: &impl Serialize, lines: &mut String) {
        // Everything in a story can be written.
        let text = serde_json::to_string(content).unwrap_or_default();
        lines.push_str(&format!("{{\"{kind}\":{}}}\n", redact::answer(&text)));
    }
    let mut lines = String::new();
    line("turn", &story.turn, &mut lines);
    story.spans.iter().for_each(|span| line("span", span, &mut lines));
    story.events.iter().for_each(|event| line("event", event, &mut lines));
    lines
}

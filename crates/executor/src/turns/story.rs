//! The trace of a turn while it is written, and what is kept of it.
//!
//! Each event and each span becomes an entry of the journal as soon as it is complete, so that a turn can be followed while
//! it runs, and what a crash leaves behind is the beginning of the story.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::envelope::Target;
use steadfast_core::id::{ActorId, Digest, SessionKey, TenantId, ToolCallId, TurnId};
use steadfast_core::redact;
use steadfast_core::turn::trace::{Event, Fact, Note, Span, SpanId, Trace, TraceId};
use steadfast_core::turn::{Plan, Strategy, TurnResult, TurnStatus};
use steadfast_store::{Entry, Journal, Keep, Query, Store, StoreError};
use tokio::sync::Notify;

use crate::engine::Inner;

/// How much is kept, unless it is set.
pub(crate) const KEEP: Keep = Keep { most: 200_000, age: Duration::from_secs(24 * 3600) };
/// How long lines are gathered before they are written.
const GATHER: Duration = Duration::from_millis(5);
/// The most lines that wait to be written. Each takes about half a kilobyte.
const WAITING: usize = 65_536;
/// The most that is written at once.
const BATCH: usize = 256;
/// What the heads of all turns are filed under.
const HEADS: &str = "turns";

/// A turn in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnHead {
    /// Its trace.
    pub trace_id: TraceId,
    /// The name that its plan gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Whose data it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The conversation.
    pub session: SessionKey,
    /// Who acts.
    pub actor: ActorId,
    /// Calls in its plan.
    pub calls: usize,
    /// When it began.
    pub started_at_ms: Timestamp,
    /// When it ended; nothing while it runs, or if its process is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<Timestamp>,
    /// How much of it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TurnStatus>,
    /// One sentence for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Whether a person should look at something.
    #[serde(default)]
    pub escalated: bool,
}

/// A turn as it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnStory {
    /// In short.
    pub turn: TurnHead,
    /// The turn and its calls as stretches of time, those first that began first.
    pub spans: Vec<Span>,
    /// What happened, in order.
    pub events: Vec<Event>,
}

/// One entry of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Span(Span),
    Event(Box<Event>),
}

/// The trace of a turn that runs.
pub(super) struct Story {
    inner: Arc<Inner>,
    plan: Arc<Plan>,
    pub(super) head: TurnHead,
    trace: Trace,
    root: SpanId,
    open: BTreeMap<ToolCallId, Span>,
    spans: u64,
    written: usize,
}

impl Story {
    pub(super) fn begin(
        inner: Arc<Inner>,
        plan: Arc<Plan>,
        target: &Target,
        trace_id: TraceId,
        parent: Option<SpanId>,
        now: Timestamp,
    ) -> Self {
        let head = TurnHead {
            trace_id,
            turn_id: plan.turn().cloned(),
            tenant: target.tenant_id.clone(),
            session: target.session_key.clone(),
            actor: target.actor_id.clone(),
            calls: plan.calls().len(),
            started_at_ms: now,
            ended_at_ms: None,
            status: None,
            summary: None,
            escalated: false,
        };
        let mut trace = Trace::start(trace_id, plan.turn().cloned(), Trace::DEFAULT_LIMIT, now);
        let root = span_id(trace_id, now, 0);
        let name = plan.turn().map_or_else(|| "turn".to_owned(), |turn| format!("turn {turn}"));
        let span = Span {
            span_id: root,
            parent_span_id: parent,
            name,
            call_id: None,
            depends_on: Vec::new(),
            started_at: now,
            ended_at: None,
        };
        let _ = trace.start_span(span);
        let story = Self { inner, plan, head, trace, root, open: BTreeMap::new(), spans: 0, written: 0 };
        story.keep_head();
        story
    }

    /// The `traceparent` of the span that a call has; that of the turn before it has one.
    pub(super) fn traceparent(&self, call: &ToolCallId) -> String {
        let span = self.open.get(call).map_or(self.root, |span| span.span_id);
        format!("00-{}-{span}-01", self.head.trace_id)
    }

    /// Writes something down.
    pub(super) fn note(&mut self, note: &Note) {
        let note = &shown(note);
        if let (Fact::ToolStarted, Some(call), Some(tool)) = (&note.fact, &note.call, &note.tool) {
            self.start(call, tool.to_string(), note.at);
        }
        let open = note.call.as_ref().and_then(|call| self.open.get(call)).map(|span| span.span_id);
        // A trace that takes no more of a span is full; what is left out is counted there.
        let _ = self.trace.record(note, open.or(Some(self.root)));
        if let (true, Some(call)) = (ends_a_span(&note.fact), &note.call) {
            self.end(call, note.at);
        }
        self.write_events();
    }

    /// The turn is over.
    pub(super) fn close(mut self, result: &TurnResult) {
        let now = result.ended_at_ms;
        for call in self.open.keys().cloned().collect::<Vec<_>>() {
            self.end(&call, now);
        }
        self.trace.close(now);
        let root = self.trace.spans().find(|span| span.span_id == self.root).cloned();
        if let Some(root) = root {
            self.keep(&Line::Span(root), now);
        }
        self.head.ended_at_ms = Some(now);
        self.head.status = Some(result.status);
        self.head.summary = Some(redact::text(&result.summary).into_owned());
        self.head.escalated = result.escalated;
        self.keep_head();
    }

    fn start(&mut self, call: &ToolCallId, name: String, at: Timestamp) {
        self.end(call, at);
        self.spans += 1;
        let planned = self.plan.calls().iter().find(|planned| planned.id == *call);
        let depends_on = planned.map_or_else(Vec::new, |planned| {
            planned.depends_on.iter().map(|dependency| dependency.on.clone()).collect()
        });
        let span = Span {
            span_id: span_id(self.head.trace_id, self.head.started_at_ms, self.spans),
            parent_span_id: Some(self.root),
            name,
            call_id: Some(call.clone()),
            depends_on,
            started_at: at,
            ended_at: None,
        };
        let _ = self.trace.start_span(span.clone());
        self.open.insert(call.clone(), span);
    }

    fn end(&mut self, call: &ToolCallId, at: Timestamp) {
        let Some(mut span) = self.open.remove(call) else { return };
        let _ = self.trace.end_span(span.span_id, at);
        span.ended_at = Some(at);
        self.keep(&Line::Span(span), at);
    }

    fn write_events(&mut self) {
        let new = self.trace.events().get(self.written..).unwrap_or_default().to_vec();
        self.written += new.len();
        for event in new {
            let at = event.timestamp;
            self.keep(&Line::Event(Box::new(event)), at);
        }
    }

    fn keep(&self, line: &Line, at: Timestamp) {
        let Ok(body) = serde_json::to_string(line) else { return };
        let subject: Arc<str> = self.head.trace_id.to_string().into();
        self.inner.stories.add(Entry { at, subject, body: body.into() });
    }

    fn keep_head(&self) {
        let Ok(body) = serde_json::to_string(&self.head) else { return };
        let at = self.head.ended_at_ms.unwrap_or(self.head.started_at_ms);
        self.inner.stories.add(Entry { at, subject: HEADS.into(), body: body.into() });
    }
}

/// A note as others may see it: what tools say may hold secrets.
fn shown(note: &Note) -> Note {
    let mut note = note.clone();
    if let Fact::ToolError(fault) | Fact::ToolTimeout { fault, .. } = &mut note.fact {
        fault.error = redact::text(&fault.error).into_owned();
    }
    note
}

/// Whether the stretch of time in which a tool was at work for a call is over.
fn ends_a_span(fact: &Fact) -> bool {
    matches!(fact, Fact::ToolSucceeded { .. } | Fact::ToolCancelled | Fact::ToolLeftRunning)
        || matches!(fact, Fact::Decision { strategy, .. } if *strategy != Strategy::Retry)
}

/// The spans of one submission, by their numbers: unlike those of every other.
fn span_id(trace: TraceId, started: Timestamp, number: u64) -> SpanId {
    let digest = Digest::of(format!("{trace} {} {number}", started.as_millis()).as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    SpanId::from_bytes([a, b, c, d, e, f, g, h | 1])
}

/// Lines on their way to the store.
#[derive(Debug, Default)]
pub(crate) struct Stories {
    waiting: Mutex<Vec<Entry>>,
    added: Notify,
}

impl Stories {
    /// What is full is dropped: a slow store never holds a turn up.
    fn add(&self, entry: Entry) {
        let mut waiting = self.waiting.lock();
        let was_empty = waiting.is_empty();
        if waiting.len() < WAITING {
            waiting.push(entry);
        }
        drop(waiting);
        if was_empty {
            self.added.notify_one();
        }
    }
}

impl Inner {
    /// Writes the stories of turns, for as long as the engine lives.
    pub(crate) async fn write_stories(&self) {
        loop {
            self.stories.added.notified().await;
            tokio::time::sleep(GATHER).await;
            self.write_stories_now().await;
        }
    }

    /// Writes what waits.
    pub(crate) async fn write_stories_now(&self) {
        let lines = std::mem::take(&mut *self.stories.waiting.lock());
        for batch in lines.chunks(BATCH) {
            if let Err(error) = self.store.append(Journal::Traces, batch, KEEP).await {
                self.store_trouble(&*self.store, &error);
            }
        }
    }
}

/// The turns that began last, the newest first; of one tenant, or of all.
pub(super) async fn heads(store: &dyn Store, limit: usize) -> Result<Vec<TurnHead>, StoreError> {
    // Each has one when it begins and one when it ends.
    let newest = Query::newest(Journal::Traces, limit.saturating_mul(2));
    let query = Query { subject: Some(HEADS.into()), ..newest };
    let mut heads: Vec<TurnHead> = Vec::new();
    for (_, entry) in store.entries(&query).await? {
        // One that a newer version wrote is not ours to read.
        let Ok(head) = serde_json::from_str::<TurnHead>(&entry.body) else { continue };
        if !heads.iter().any(|known| is_same(known, &head)) {
            heads.push(head);
        }
    }
    heads.sort_by_key(|head| std::cmp::Reverse(head.started_at_ms));
    heads.truncate(limit);
    Ok(heads)
}

fn is_same(one: &TurnHead, other: &TurnHead) -> bool {
    (one.trace_id, one.started_at_ms) == (other.trace_id, other.started_at_ms)
}

/// What is kept of a turn; of several submissions under one trace, all of it.
pub(super) async fn story(store: &dyn Store, turn: TurnHead) -> Result<TurnStory, StoreError> {
    let newest = Query::newest(Journal::Traces, 4 * Trace::DEFAULT_LIMIT);
    let query = Query { subject: Some(turn.trace_id.to_string().into()), ..newest };
    let (mut spans, mut events) = (Vec::new(), Vec::new());
    for (_, entry) in store.entries(&query).await? {
        match serde_json::from_str(&entry.body) {
            Ok(Line::Span(span)) => spans.push(span),
            Ok(Line::Event(event)) => events.push(*event),
            Err(_) => {}
        }
    }
    spans.sort_by_key(|span: &Span| (span.started_at, span.parent_span_id.is_some()));
    events.sort_by_key(|event: &Event| (event.timestamp, event.sequence));
    Ok(TurnStory { turn, spans, events })
}

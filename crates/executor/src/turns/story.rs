//! The trace of a turn while it is written, and what is kept of it.
//!
//! Each event becomes an entry of the journal when it happens, each span when it begins and when it ends, so that a turn can
//! be followed while it runs, and what a crash leaves behind is the beginning of the story.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId};
use steadfast_core::redact;
use steadfast_core::turn::trace::{Event, Fact, Note, Span, SpanId, Trace, TraceId};
use steadfast_core::turn::{Plan, Strategy, TurnResult, TurnStatus};
use steadfast_store::{Entry, Journal, Keep, Part, Position, Query, Store, StoreError, look_through};
use tokio::sync::mpsc::UnboundedSender;

use crate::engine::Inner;
use crate::gathered::Gathered;
use crate::telling::TurnSpan;

use super::{Caller, TurnOptions};

/// How much is kept, unless it is set.
pub(crate) const KEEP: Keep =
    Keep { most: 200_000, most_per_subject: None, age: Duration::from_secs(24 * 3600) };
/// What most lines take, and no more.
const LINE_BYTES: usize = 512;
/// The most bytes of lines that wait to be written. For heads there is as much again, so that whatever is left out of a turn,
/// it is known that it began and how it ended.
const WAITING: usize = 32 << 20;
/// What the heads of all turns are filed under, as they were when the turns began. How one ended is filed under its own
/// [`ending`], and found from there.
const HEADS: &str = "turns";
/// The most that is read of one trace: one turn as long as it can be, or several that share it.
const MOST_LINES: usize = 4 * Trace::DEFAULT_LIMIT;
/// How many heads are looked through at once.
const LOOKED_THROUGH: usize = 20_000;

/// A turn in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnHead {
    /// Its trace.
    pub trace_id: TraceId,
    /// Its own span, that of no other submission.
    pub span_id: SpanId,
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
enum Line<'l> {
    /// A turn began.
    Head(Cow<'l, TurnHead>),
    Span(Cow<'l, Span>),
    Event(Cow<'l, Event>),
}

/// The trace of a turn that runs.
pub(super) struct Story {
    inner: Arc<Inner>,
    plan: Arc<Plan>,
    head: TurnHead,
    /// What its lines are filed under.
    subject: Arc<str>,
    follower: Option<UnboundedSender<Event>>,
    trace: Trace,
    root: SpanId,
    open: BTreeMap<ToolCallId, Open>,
    spans: u64,
    written: usize,
    /// Whether its caller wants spans of it.
    sampled: bool,
}

/// The span of a call while a tool is at work for it.
struct Open {
    span: Span,
    tool: ToolRef,
    /// How many events there were before it.
    before: usize,
    /// How the last attempt failed.
    failed: Option<Code>,
}

impl Story {
    pub(super) fn begin(
        inner: Arc<Inner>,
        plan: Arc<Plan>,
        options: &TurnOptions,
        trace_id: TraceId,
        caller: Option<Caller>,
        seed: u64,
        now: Timestamp,
    ) -> Self {
        let target = &options.target;
        let root = new_root(seed, now);
        let head = TurnHead {
            trace_id,
            span_id: root,
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
        let name = plan.turn().map_or_else(|| "turn".to_owned(), |turn| format!("turn {turn}"));
        let span = Span {
            span_id: root,
            parent_span_id: caller.map(|caller| caller.span),
            name,
            call_id: None,
            depends_on: Vec::new(),
            request_id: None,
            started_at: now,
            ended_at: None,
        };
        let _ = trace.start_span(span.clone());
        let follower = options.follower.clone();
        let sampled = caller.is_none_or(|caller| caller.sampled);
        let story = Self {
            inner,
            plan,
            head,
            subject: trace_id.to_string().into(),
            follower,
            trace,
            root,
            open: BTreeMap::new(),
            spans: 0,
            written: 0,
            sampled,
        };
        story.keep_head(HEADS.into(), now);
        story.keep(&Line::Head(Cow::Borrowed(&story.head)), now);
        story.keep(&Line::Span(Cow::Owned(span)), now);
        story
    }

    /// The `traceparent` of the span that a call has; that of the turn before it has one.
    pub(super) fn traceparent(&self, call: &ToolCallId) -> String {
        let span = self.open.get(call).map_or(self.root, |open| open.span.span_id);
        format!("00-{}-{span}-{:02x}", self.head.trace_id, u8::from(self.sampled))
    }

    /// That of this submission alone: a trace may be that of several.
    pub(super) fn root_span(&self) -> SpanId {
        self.root
    }

    /// The call was sent under this request.
    pub(super) fn sent(&mut self, call: &ToolCallId, request: &RequestId, now: Timestamp) {
        let Some(open) = self.open.get_mut(call) else { return };
        open.span.request_id = Some(request.clone());
        if let Some(open) = self.open.get(call) {
            self.keep(&Line::Span(Cow::Borrowed(&open.span)), now);
        }
    }

    /// Writes something down.
    pub(super) fn note(&mut self, note: Note) {
        let note = &note.redacted();
        if let (Fact::ToolStarted, Some(call), Some(tool)) = (&note.fact, &note.call, &note.tool) {
            self.start(call, tool, note.at);
        }
        let open = note.call.as_ref().and_then(|call| self.open.get_mut(call));
        let span = open.map(|open| {
            failed(&mut open.failed, &note.fact);
            open.span.span_id
        });
        // A trace that takes no more of a span is full; what is left out is counted there.
        let _ = self.trace.record(note, span.or(Some(self.root)));
        if let (true, Some(call)) = (ends_a_span(&note.fact), &note.call) {
            self.end(call, note.at);
        }
        self.write_events();
    }

    /// The turn is over.
    pub(super) fn close(&mut self, result: &TurnResult) {
        let now = result.ended_at_ms;
        for call in self.open.keys().cloned().collect::<Vec<_>>() {
            self.end(&call, now);
        }
        self.trace.close(now);
        self.head.ended_at_ms = Some(now);
        self.head.status = Some(result.status);
        self.head.summary = Some(redact::text(&result.summary).into_owned());
        self.head.escalated = result.escalated;
        if let Some(root) = self.root() {
            self.keep(&Line::Span(Cow::Borrowed(root)), now);
            self.tell_turn(root);
        }
        self.keep_head(ending(&self.head), now);
    }

    fn start(&mut self, call: &ToolCallId, tool: &ToolRef, at: Timestamp) {
        self.end(call, at);
        self.spans += 1;
        let planned = self.plan.call(call);
        let depends_on = planned.map_or_else(Vec::new, |planned| {
            planned.depends_on.iter().map(|dependency| dependency.on.clone()).collect()
        });
        let span = Span {
            span_id: later_span(self.root, self.spans),
            parent_span_id: Some(self.root),
            name: tool.to_string(),
            call_id: Some(call.clone()),
            depends_on,
            request_id: None,
            started_at: at,
            ended_at: None,
        };
        let _ = self.trace.start_span(span.clone());
        let before = self.trace.events().len();
        self.open.insert(call.clone(), Open { span, tool: tool.clone(), before, failed: None });
    }

    fn end(&mut self, call: &ToolCallId, at: Timestamp) {
        let Some(mut open) = self.open.remove(call) else { return };
        let _ = self.trace.end_span(open.span.span_id, at);
        open.span.ended_at = Some(at);
        self.keep(&Line::Span(Cow::Borrowed(&open.span)), at);
        self.tell_call(&open);
    }

    fn root(&self) -> Option<&Span> {
        self.trace.spans().find(|span| span.span_id == self.root)
    }

    fn tell_call(&self, open: &Open) {
        let span = TurnSpan {
            span: &open.span,
            tool: Some(&open.tool),
            failed: open.failed,
            sampled: self.sampled,
            since: self.trace.events().get(open.before..).unwrap_or_default(),
        };
        self.inner.telling.turn_span(&self.head, &span);
    }

    fn tell_turn(&self, root: &Span) {
        let span = TurnSpan {
            span: root,
            tool: None,
            failed: None,
            sampled: self.sampled,
            since: self.trace.events(),
        };
        self.inner.telling.turn_span(&self.head, &span);
    }

    fn write_events(&mut self) {
        let events = self.trace.events();
        for event in events.get(self.written..).unwrap_or_default() {
            if let Some(follower) = &self.follower {
                // Who went away does not want to know.
                let _ = follower.send(event.clone());
            }
            self.keep(&Line::Event(Cow::Borrowed(event)), event.timestamp);
        }
        self.written = events.len();
    }

    fn keep(&self, line: &Line<'_>, at: Timestamp) {
        let most = if matches!(line, Line::Head(_)) { 2 * WAITING } else { WAITING };
        self.add(self.subject.clone(), line, at, most);
    }

    fn keep_head(&self, subject: Arc<str>, at: Timestamp) {
        self.add(subject, &self.head, at, 2 * WAITING);
    }

    fn add(&self, subject: Arc<str>, line: &impl Serialize, at: Timestamp, most: usize) {
        let mut text = Vec::with_capacity(LINE_BYTES);
        if serde_json::to_writer(&mut text, line).is_ok()
            && let Ok(body) = str::from_utf8(&text)
        {
            self.inner.stories.add(Entry { at, subject, body: body.into() }, most);
        }
    }
}

/// Who listens hears of the turn also when nobody waits for it any more: what its calls do belongs to it. In the store it
/// stays open, as if its process were gone.
impl Drop for Story {
    fn drop(&mut self) {
        if self.head.ended_at_ms.is_some() {
            return;
        }
        let now = Some(self.inner.clock.now());
        for mut open in std::mem::take(&mut self.open).into_values() {
            open.span.ended_at = now;
            self.tell_call(&open);
        }
        if let Some(root) = self.root() {
            self.tell_turn(&Span { ended_at: now, ..root.clone() });
        }
    }
}

/// How a call failed, as far as this says something about it.
fn failed(failed: &mut Option<Code>, fact: &Fact) {
    if let Fact::ToolError(fault) | Fact::ToolTimeout { fault, .. } = fact {
        *failed = Some(fault.code);
    } else if let Fact::ToolRetry { .. } | Fact::ToolSucceeded { .. } | Fact::ToolLeftRunning = fact {
        *failed = None;
    } else if let Fact::ToolCancelled = fact {
        *failed = Some(Code::Cancelled);
    }
}

/// Whether the stretch of time in which a tool was at work for a call is over.
fn ends_a_span(fact: &Fact) -> bool {
    matches!(fact, Fact::ToolSucceeded { .. } | Fact::ToolCancelled | Fact::ToolLeftRunning)
        || matches!(fact, Fact::Decision { strategy, .. } if *strategy != Strategy::Retry)
}

/// The span of a submission: unlike that of every other, also of one that belongs to the same trace.
fn new_root(seed: u64, started: Timestamp) -> SpanId {
    let digest = Digest::of(format!("span {seed} {}", started.as_millis()).as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    SpanId::from_bytes([a, b, c, d, e, f, g, h | 1])
}

/// The spans of its calls count on from there, in steps of two: none of them is zero.
fn later_span(root: SpanId, number: u64) -> SpanId {
    let root = u64::from_be_bytes(root.to_bytes());
    SpanId::from_bytes(root.wrapping_add(number.wrapping_mul(2)).to_be_bytes())
}

/// Lines on their way to the store, by their bytes.
pub(crate) fn gathered() -> Gathered<Entry> {
    Gathered::new(Journal::Traces, |line| line.body.len() + line.subject.len())
}

impl Inner {
    /// Writes the stories of turns, for as long as the engine lives.
    pub(crate) async fn write_stories(&self) {
        loop {
            self.stories.due().await;
            self.write_stories_now().await;
        }
    }

    /// Writes what waits.
    pub(crate) async fn write_stories_now(&self) {
        self.stories.write(self, self.traces_kept, |lines| Cow::Borrowed(lines)).await;
    }
}

/// What is asked for of the turns that are kept.
#[derive(Clone, Debug, Default)]
pub struct TurnsWanted {
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// Of this conversation.
    pub session: Option<SessionKey>,
    /// Under this name.
    pub turn: Option<TurnId>,
    /// That began behind this place: the last one of the page before.
    pub behind: Option<Position>,
    /// The most.
    pub limit: usize,
}

impl TurnsWanted {
    /// Those that a store has, those first that began last.
    pub async fn read(&self, store: &dyn Store) -> Result<Part<TurnHead>, StoreError> {
        let newest = Query::newest(Journal::Traces, self.limit);
        let query = Query { subject: Some(HEADS.into()), behind: self.behind, ..newest };
        // One that a newer version wrote is not ours to read.
        let read = |entry: &Entry| serde_json::from_str(&entry.body).ok().filter(|head| self.fits(head));
        let Part { found, next } = look_through(store, &query, LOOKED_THROUGH, read).await?;
        Ok(Part { found: as_ended(store, found).await?, next })
    }

    fn fits(&self, head: &TurnHead) -> bool {
        fn fits<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        fits(self.tenant.as_ref(), head.tenant.as_ref())
            && fits(self.session.as_ref(), Some(&head.session))
            && fits(self.turn.as_ref(), head.turn_id.as_ref())
    }
}

impl TurnStory {
    /// What a store has of a turn, by its trace or by the name that its plan gave it; the newest of that name. Of several
    /// submissions under one trace it is all of it, and the head is that of the last one.
    pub async fn read(store: &dyn Store, name: &str) -> Result<Option<Self>, StoreError> {
        if let Some(trace) = TraceId::from_hex(name)
            && let Some(story) = traced(store, trace).await?
        {
            return Ok(Some(story));
        }
        let Ok(turn) = TurnId::new(name) else { return Ok(None) };
        let mut wanted = TurnsWanted { turn: Some(turn), limit: 1, ..TurnsWanted::default() };
        loop {
            let Part { found, next } = wanted.read(store).await?;
            match (found.into_iter().next(), next) {
                (Some(head), _) => return traced(store, head.trace_id).await,
                (None, None) => return Ok(None),
                (None, behind) => wanted.behind = behind,
            }
        }
    }
}

async fn traced(store: &dyn Store, trace: TraceId) -> Result<Option<TurnStory>, StoreError> {
    let newest = Query::newest(Journal::Traces, MOST_LINES);
    let query = Query { subject: Some(trace.to_string().into()), ..newest };
    let (mut heads, mut spans, mut events) = (Vec::new(), BTreeMap::new(), Vec::new());
    for (_, entry) in store.entries(&query).await? {
        match serde_json::from_str(&entry.body) {
            Ok(Line::Head(head)) if heads.is_empty() => heads.push(head.into_owned()),
            // As it was last written.
            Ok(Line::Span(span)) => {
                spans.entry(span.span_id).or_insert_with(|| span.into_owned());
            }
            Ok(Line::Event(event)) => events.push(event.into_owned()),
            Ok(Line::Head(_)) | Err(_) => {}
        }
    }
    let mut spans: Vec<Span> = spans.into_values().collect();
    spans.sort_by_key(|span| (span.started_at, span.parent_span_id.is_some()));
    events.sort_by_key(|event: &Event| (event.timestamp, event.sequence));
    let turn = as_ended(store, heads).await?.pop();
    Ok(turn.map(|turn| TurnStory { turn, spans, events }))
}

/// The same turns, as they ended; those that run, or whose process is gone, as they began.
async fn as_ended(store: &dyn Store, begun: Vec<TurnHead>) -> Result<Vec<TurnHead>, StoreError> {
    let mut heads = Vec::with_capacity(begun.len());
    for head in begun {
        let query = Query { subject: Some(ending(&head)), ..Query::newest(Journal::Traces, 1) };
        let ended = store.entries(&query).await?.pop();
        let ended = ended.and_then(|(_, entry)| serde_json::from_str(&entry.body).ok());
        heads.push(ended.unwrap_or(head));
    }
    Ok(heads)
}

/// What the end of this submission is filed under.
fn ending(head: &TurnHead) -> Arc<str> {
    format!("{} {}", head.trace_id, head.span_id).into()
}

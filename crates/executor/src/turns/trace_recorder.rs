//! The trace of a turn: its recording and its storage.
//!
//! Each event becomes an entry of the journal when it happens, each span when it begins and when it ends. A turn can
//! therefore be followed while it runs, and a crash leaves the beginning of its trace.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId};
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery, StateStore, StoreError,
    filter_entries,
};
use steadfast_turn::trace::{SpanId, TraceEvent, TraceId, TraceNote, TraceSpan, TurnFact, TurnTrace};
use steadfast_turn::{FailureStrategy, TurnPlan, TurnResult, TurnStatus};
use tokio::sync::mpsc::UnboundedSender;

use crate::engine::api::EngineInner;
use crate::observe::listener::TurnSpan;
use crate::writes::queue::WriteQueue;

use super::{ParentSpan, TurnOptions};

/// Default size of the stored traces.
pub(crate) const KEEP: JournalLimits =
    JournalLimits { most: 200_000, most_per_subject: None, age: Duration::from_secs(24 * 3600) };
/// Size of a typical entry.
const LINE_BYTES: usize = 512;
/// Maximum bytes of entries that wait to be written. Heads have the same amount again, so that the beginning and the
/// end of a turn are known even if other entries are dropped.
const WAITING: usize = 32 << 20;
/// Journal subject of the heads of all turns, as they were at the beginning. The head at the end of a turn has a
/// subject of its own, see [`ending`], and is found from there.
const HEADS: &str = "turns";
/// Maximum number of entries to read for one trace: one turn of maximum length, or several that share it.
const MOST_LINES: usize = 4 * TurnTrace::DEFAULT_LIMIT;
/// Number of heads to read at once.
const LOOKED_THROUGH: usize = 20_000;

/// Summary of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSummary {
    /// Its trace.
    pub trace_id: TraceId,
    /// Its own span, unique to this submission.
    pub span_id: SpanId,
    /// Name of the turn in its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Tenant whose data it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The session.
    pub session: SessionKey,
    /// The actor.
    pub actor: ActorId,
    /// Number of calls in its plan.
    pub calls: usize,
    /// Start time.
    pub started_at_ms: Timestamp,
    /// End time. Absent while it runs, or if its process is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<Timestamp>,
    /// Degree of success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TurnStatus>,
    /// One sentence for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// True if an operator should look at a problem.
    #[serde(default)]
    pub escalated: bool,
}

/// The trace of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnTraceView {
    /// Summary of the turn.
    pub turn: TurnSummary,
    /// Spans of the turn and its calls, by start time.
    pub spans: Vec<TraceSpan>,
    /// Events, in order.
    pub events: Vec<TraceEvent>,
}

/// One entry of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TraceEntry<'l> {
    /// Summary of a turn at its beginning or end.
    Head(Cow<'l, TurnSummary>),
    Span(Cow<'l, TraceSpan>),
    Event(Cow<'l, TraceEvent>),
}

/// The trace of a running turn.
pub(super) struct TraceRecorder {
    inner: Arc<EngineInner>,
    plan: Arc<TurnPlan>,
    head: TurnSummary,
    /// Journal subject of its entries.
    subject: Arc<str>,
    follower: Option<UnboundedSender<TraceEvent>>,
    trace: TurnTrace,
    root: SpanId,
    open: BTreeMap<ToolCallId, OpenSpan>,
    spans: u64,
    written: usize,
    /// True unless its caller has a span that is not sampled.
    sampled: bool,
}

/// The open span of a call while its tool runs.
struct OpenSpan {
    span: TraceSpan,
    tool: ToolRef,
    /// Number of events before it.
    before: usize,
    /// Failure code of the last attempt.
    failed: Option<Code>,
}

impl TraceRecorder {
    pub(super) fn begin(
        inner: Arc<EngineInner>,
        plan: Arc<TurnPlan>,
        options: &TurnOptions,
        trace_id: TraceId,
        caller: Option<ParentSpan>,
        seed: u64,
        now: Timestamp,
    ) -> Self {
        let target = &options.target;
        let root = new_root(seed, now);
        let head = TurnSummary {
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
        let mut trace = TurnTrace::start(trace_id, plan.turn().cloned(), TurnTrace::DEFAULT_LIMIT, now);
        let name = plan.turn().map_or_else(|| "turn".to_owned(), |turn| format!("turn {turn}"));
        let span = TraceSpan {
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
        story.keep(&TraceEntry::Head(Cow::Borrowed(&story.head)), now);
        story.keep(&TraceEntry::Span(Cow::Owned(span)), now);
        story
    }

    /// Returns the `traceparent` of the open span of a call, or that of the turn if there is none.
    pub(super) fn traceparent(&self, call: &ToolCallId) -> String {
        let span = self.open.get(call).map_or(self.root, |open| open.span.span_id);
        format!("00-{}-{span}-{:02x}", self.head.trace_id, u8::from(self.sampled))
    }

    /// Returns the root span of this submission. Several submissions may share a trace.
    pub(super) fn root_span(&self) -> SpanId {
        self.root
    }

    /// Notes the request id with which a call was sent.
    pub(super) fn sent(&mut self, call: &ToolCallId, request: &RequestId, now: Timestamp) {
        let Some(open) = self.open.get_mut(call) else { return };
        open.span.request_id = Some(request.clone());
        if let Some(open) = self.open.get(call) {
            self.keep(&TraceEntry::Span(Cow::Borrowed(&open.span)), now);
        }
    }

    /// Records a note.
    pub(super) fn note(&mut self, note: TraceNote) {
        let note = &note.redacted();
        if let (TurnFact::ToolStarted, Some(call), Some(tool)) = (&note.fact, &note.call, &note.tool) {
            self.start(call, tool, note.at);
        }
        let open = note.call.as_ref().and_then(|call| self.open.get_mut(call));
        let span = open.map(|open| {
            failed(&mut open.failed, &note.fact);
            open.span.span_id
        });
        // A full trace takes no more notes of a span; it counts the dropped ones.
        let _ = self.trace.record(note, span.or(Some(self.root)));
        if let (true, Some(call)) = (ends_a_span(&note.fact), &note.call) {
            self.end(call, note.at);
        }
        self.write_events();
    }

    /// Closes the trace at the end of the turn.
    pub(super) fn close(&mut self, result: &TurnResult) {
        let now = result.ended_at_ms;
        for call in self.open.keys().cloned().collect::<Vec<_>>() {
            self.end(&call, now);
        }
        self.trace.close(now);
        self.head.ended_at_ms = Some(now);
        self.head.status = Some(result.status);
        self.head.summary = Some(steadfast_redact::text(&result.summary).into_owned());
        self.head.escalated = result.escalated;
        if let Some(root) = self.root() {
            self.keep(&TraceEntry::Span(Cow::Borrowed(root)), now);
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
        let span = TraceSpan {
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
        self.open.insert(call.clone(), OpenSpan { span, tool: tool.clone(), before, failed: None });
    }

    fn end(&mut self, call: &ToolCallId, at: Timestamp) {
        let Some(mut open) = self.open.remove(call) else { return };
        let _ = self.trace.end_span(open.span.span_id, at);
        open.span.ended_at = Some(at);
        self.keep(&TraceEntry::Span(Cow::Borrowed(&open.span)), at);
        self.tell_call(&open);
    }

    fn root(&self) -> Option<&TraceSpan> {
        self.trace.spans().find(|span| span.span_id == self.root)
    }

    fn tell_call(&self, open: &OpenSpan) {
        let span = TurnSpan {
            span: &open.span,
            tool: Some(&open.tool),
            failed: open.failed,
            sampled: self.sampled,
            since: self.trace.events().get(open.before..).unwrap_or_default(),
        };
        self.inner.telemetry_hooks.turn_span(&self.head, &span);
    }

    fn tell_turn(&self, root: &TraceSpan) {
        let span = TurnSpan {
            span: root,
            tool: None,
            failed: None,
            sampled: self.sampled,
            since: self.trace.events(),
        };
        self.inner.telemetry_hooks.turn_span(&self.head, &span);
    }

    fn write_events(&mut self) {
        let events = self.trace.events();
        for event in events.get(self.written..).unwrap_or_default() {
            if let Some(follower) = &self.follower {
                // A follower that is gone is ignored.
                let _ = follower.send(event.clone());
            }
            self.keep(&TraceEntry::Event(Cow::Borrowed(event)), event.timestamp);
        }
        self.written = events.len();
    }

    fn keep(&self, line: &TraceEntry<'_>, at: Timestamp) {
        let most = if matches!(line, TraceEntry::Head(_)) { 2 * WAITING } else { WAITING };
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
            self.inner.trace_queue.add(JournalEntry { at, subject, body: body.into() }, most);
        }
    }
}

/// Reports the root span to listeners if the caller of the turn is gone, because the spans of its calls belong to it.
/// In the store the turn stays open, as if its process were gone.
impl Drop for TraceRecorder {
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
            self.tell_turn(&TraceSpan { ended_at: now, ..root.clone() });
        }
    }
}

/// Updates the failure code of a span from a fact about its call.
fn failed(failed: &mut Option<Code>, fact: &TurnFact) {
    if let TurnFact::ToolError(fault) | TurnFact::ToolTimeout { fault, .. } = fact {
        *failed = Some(fault.code);
    } else if let TurnFact::ToolRetry { .. } | TurnFact::ToolSucceeded { .. } | TurnFact::ToolLeftRunning =
        fact
    {
        *failed = None;
    } else if let TurnFact::ToolCancelled = fact {
        *failed = Some(Code::Cancelled);
    }
}

/// Returns true if the fact ends the span of a call.
fn ends_a_span(fact: &TurnFact) -> bool {
    matches!(fact, TurnFact::ToolSucceeded { .. } | TurnFact::ToolCancelled | TurnFact::ToolLeftRunning)
        || matches!(fact, TurnFact::Decision { strategy, .. } if *strategy != FailureStrategy::Retry)
}

/// Returns a root span id that is unique to this submission, also among those of the same trace.
fn new_root(seed: u64, started: Timestamp) -> SpanId {
    let digest = Digest::of(format!("span {seed} {}", started.as_millis()).as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    SpanId::from_bytes([a, b, c, d, e, f, g, h | 1])
}

/// Returns the id of a span of a call. Ids count up from the root in steps of two, so that none is zero.
fn later_span(root: SpanId, number: u64) -> SpanId {
    let root = u64::from_be_bytes(root.to_bytes());
    SpanId::from_bytes(root.wrapping_add(number.wrapping_mul(2)).to_be_bytes())
}

/// Creates the write queue of trace entries, weighted by their bytes.
pub(crate) fn new_queue() -> WriteQueue<JournalEntry> {
    WriteQueue::new(Journal::Traces, |line| line.body.len() + line.subject.len())
}

impl EngineInner {
    /// Writes the traces of turns, for as long as the engine lives.
    pub(crate) async fn write_stories(&self) {
        loop {
            self.trace_queue.due().await;
            self.write_stories_now().await;
        }
    }

    /// Writes the queued entries.
    pub(crate) async fn write_stories_now(&self) {
        self.trace_queue.write(self, self.traces_kept, |lines| Cow::Borrowed(lines)).await;
    }
}

/// Filter for stored turns.
#[derive(Clone, Debug, Default)]
pub struct TurnQuery {
    /// Tenant.
    pub tenant: Option<TenantId>,
    /// Session.
    pub session: Option<SessionKey>,
    /// Name of the turn.
    pub turn: Option<TurnId>,
    /// Position after which to continue: the last one of the previous page.
    pub behind: Option<JournalPosition>,
    /// Maximum number of turns.
    pub limit: usize,
}

impl TurnQuery {
    /// Reads the matching turns of a store, newest first.
    pub async fn read(&self, store: &dyn StateStore) -> Result<JournalPage<TurnSummary>, StoreError> {
        let newest = JournalQuery::newest(Journal::Traces, self.limit);
        let query = JournalQuery { subject: Some(HEADS.into()), before: self.behind, ..newest };
        // Entries of a newer version are skipped.
        let read =
            |entry: &JournalEntry| serde_json::from_str(&entry.body).ok().filter(|head| self.fits(head));
        let JournalPage { found, next } = filter_entries(store, &query, LOOKED_THROUGH, read).await?;
        Ok(JournalPage { found: as_ended(store, found).await?, next })
    }

    fn fits(&self, head: &TurnSummary) -> bool {
        fn fits<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        fits(self.tenant.as_ref(), head.tenant.as_ref())
            && fits(self.session.as_ref(), Some(&head.session))
            && fits(self.turn.as_ref(), head.turn_id.as_ref())
    }
}

impl TurnTraceView {
    /// Reads the stored trace of a turn, by its trace id or by the name in its plan (the newest of that name). If
    /// several submissions share a trace, it contains all of them, with the summary of the last one.
    pub async fn read(store: &dyn StateStore, name: &str) -> Result<Option<Self>, StoreError> {
        if let Some(trace) = TraceId::from_hex(name)
            && let Some(story) = traced(store, trace).await?
        {
            return Ok(Some(story));
        }
        let Ok(turn) = TurnId::new(name) else { return Ok(None) };
        let mut wanted = TurnQuery { turn: Some(turn), limit: 1, ..TurnQuery::default() };
        loop {
            let JournalPage { found, next } = wanted.read(store).await?;
            match (found.into_iter().next(), next) {
                (Some(head), _) => return traced(store, head.trace_id).await,
                (None, None) => return Ok(None),
                (None, behind) => wanted.behind = behind,
            }
        }
    }
}

async fn traced(store: &dyn StateStore, trace: TraceId) -> Result<Option<TurnTraceView>, StoreError> {
    let newest = JournalQuery::newest(Journal::Traces, MOST_LINES);
    let query = JournalQuery { subject: Some(trace.to_string().into()), ..newest };
    let (mut heads, mut spans, mut events) = (Vec::new(), BTreeMap::new(), Vec::new());
    for (_, entry) in store.entries(&query).await? {
        match serde_json::from_str(&entry.body) {
            Ok(TraceEntry::Head(head)) if heads.is_empty() => heads.push(head.into_owned()),
            // The last version of a span counts.
            Ok(TraceEntry::Span(span)) => {
                spans.entry(span.span_id).or_insert_with(|| span.into_owned());
            }
            Ok(TraceEntry::Event(event)) => events.push(event.into_owned()),
            Ok(TraceEntry::Head(_)) | Err(_) => {}
        }
    }
    let mut spans: Vec<TraceSpan> = spans.into_values().collect();
    spans.sort_by_key(|span| (span.started_at, span.parent_span_id.is_some()));
    events.sort_by_key(|event: &TraceEvent| (event.timestamp, event.sequence));
    let turn = as_ended(store, heads).await?.pop();
    Ok(turn.map(|turn| TurnTraceView { turn, spans, events }))
}

/// Returns the same turns as they ended. Those that run, or whose process is gone, stay as they began.
async fn as_ended(store: &dyn StateStore, begun: Vec<TurnSummary>) -> Result<Vec<TurnSummary>, StoreError> {
    let mut heads = Vec::with_capacity(begun.len());
    for head in begun {
        let query = JournalQuery { subject: Some(ending(&head)), ..JournalQuery::newest(Journal::Traces, 1) };
        let ended = store.entries(&query).await?.pop();
        let ended = ended.and_then(|(_, entry)| serde_json::from_str(&entry.body).ok());
        heads.push(ended.unwrap_or(head));
    }
    Ok(heads)
}

/// Returns the journal subject of the end of this submission.
fn ending(head: &TurnSummary) -> Arc<str> {
    format!("{} {}", head.trace_id, head.span_id).into()
}

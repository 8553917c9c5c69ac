//! The trace of a running turn.
//!
//! Each event becomes an entry of the journal when it happens, each span when it begins and when it ends. A turn can
//! therefore be followed while it runs, and a crash leaves the beginning of its trace.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::id::{Digest, RequestId, ToolCallId, ToolRef};
use steadfast_store::{JournalEntry, TimeSource};
use steadfast_turn::trace::{SpanId, TraceEvent, TraceId, TraceNote, TraceSpan, TurnFact, TurnTrace};
use steadfast_turn::{FailureStrategy, TurnPlan, TurnResult};
use tokio::sync::mpsc::UnboundedSender;

use super::options::TurnOptions;
use super::parent_span::ParentSpan;
use super::trace_journal::{HEADS, TraceEntry, TraceJournal, ending};
use crate::observe::listener::TurnSpan;
use crate::observe::turn_summary::TurnSummary;

/// Size of a typical entry.
const LINE_BYTES: usize = 512;
/// Maximum bytes of entries that wait to be written. Heads have the same amount again, so that the beginning and the
/// end of a turn are known even if other entries are dropped.
const WAITING: usize = 32 << 20;
/// The trace of a running turn.
pub(super) struct TraceRecorder {
    journal: Arc<TraceJournal>,
    clock: Arc<dyn TimeSource>,
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
    #[expect(clippy::too_many_arguments, reason = "the parts of a trace, named once")]
    pub(super) fn begin(
        journal: Arc<TraceJournal>,
        clock: Arc<dyn TimeSource>,
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
            journal,
            clock,
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
        self.journal.hooks.turn_span(&self.head, &span);
    }

    fn tell_turn(&self, root: &TraceSpan) {
        let span = TurnSpan {
            span: root,
            tool: None,
            failed: None,
            sampled: self.sampled,
            since: self.trace.events(),
        };
        self.journal.hooks.turn_span(&self.head, &span);
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
            self.journal.add(JournalEntry { at, subject, body: body.into() }, most);
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
        let now = Some(self.clock.now());
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

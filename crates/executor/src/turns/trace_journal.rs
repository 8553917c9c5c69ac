//! The stored traces of turns.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::id::{SessionKey, TenantId, TurnId};
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery, StateStore, StoreError,
    filter_entries,
};
use steadfast_turn::trace::{TraceEvent, TraceId, TraceSpan, TurnTrace};

use crate::observe::telemetry_hooks::TelemetryHooks;
use crate::observe::turn_summary::TurnSummary;
use crate::writes::queue::WriteQueue;

/// Default size of the stored traces.
pub(crate) const KEEP: JournalLimits =
    JournalLimits { most: 200_000, most_per_subject: None, age: Duration::from_secs(24 * 3600) };
/// Journal subject of the heads of all turns, as they were at the beginning. The head at the end of a turn has a
/// subject of its own, see [`ending`], and is found from there.
pub(super) const HEADS: &str = "turns";
/// Maximum number of entries to read for one trace: one turn of maximum length, or several that share it.
const MOST_LINES: usize = 4 * TurnTrace::DEFAULT_LIMIT;
/// Number of heads to read at once.
const LOOKED_THROUGH: usize = 20_000;

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
pub(super) enum TraceEntry<'l> {
    /// Summary of a turn at its beginning or end.
    Head(Cow<'l, TurnSummary>),
    Span(Cow<'l, TraceSpan>),
    Event(Cow<'l, TraceEvent>),
}

/// The journal of traces.
#[derive(Debug)]
pub(crate) struct TraceJournal {
    store: Arc<dyn StateStore>,
    pub(super) hooks: Arc<TelemetryHooks>,
    queue: WriteQueue<JournalEntry>,
    keep: JournalLimits,
}

impl TraceJournal {
    pub(crate) fn new(store: Arc<dyn StateStore>, hooks: Arc<TelemetryHooks>, keep: JournalLimits) -> Self {
        // Entries count with their bytes.
        let queue =
            WriteQueue::new(Journal::Traces, |line: &JournalEntry| line.body.len() + line.subject.len());
        Self { store, hooks, queue, keep }
    }

    pub(super) fn add(&self, entry: JournalEntry, most: usize) {
        self.queue.add(entry, most);
    }

    /// Writes the traces of turns, for as long as the engine lives.
    pub(crate) async fn run(&self) {
        loop {
            self.queue.due().await;
            self.write_now().await;
        }
    }

    /// Writes the queued entries.
    pub(crate) async fn write_now(&self) {
        let failed = |error: &StoreError| self.hooks.store_failed(self.store.kind(), error);
        self.queue.write(&*self.store, self.keep, |lines| Cow::Borrowed(lines), failed).await;
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
        fn fits<T: PartialEq>(expected: Option<&T>, found: Option<&T>) -> bool {
            expected.is_none() || expected == found
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
        let mut query = TurnQuery { turn: Some(turn), limit: 1, ..TurnQuery::default() };
        loop {
            let JournalPage { found, next } = query.read(store).await?;
            match (found.into_iter().next(), next) {
                (Some(head), _) => return traced(store, head.trace_id).await,
                (None, None) => return Ok(None),
                (None, behind) => query.behind = behind,
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
async fn as_ended(store: &dyn StateStore, started: Vec<TurnSummary>) -> Result<Vec<TurnSummary>, StoreError> {
    let mut heads = Vec::with_capacity(started.len());
    for head in started {
        let query = JournalQuery { subject: Some(ending(&head)), ..JournalQuery::newest(Journal::Traces, 1) };
        let end = store.entries(&query).await?.pop();
        let end = end.and_then(|(_, entry)| serde_json::from_str(&entry.body).ok());
        heads.push(end.unwrap_or(head));
    }
    Ok(heads)
}

/// Returns the journal subject of the end of this submission.
pub(super) fn ending(head: &TurnSummary) -> Arc<str> {
    format!("{} {}", head.trace_id, head.span_id).into()
}

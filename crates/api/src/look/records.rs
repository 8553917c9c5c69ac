//! What is remembered of calls, without what they were given and what they gave.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{Engine, Page, Selection, StoreError};
use steadfast_core::dedupe::{AttemptFact, Observed, Origin, Record, RecordState as Kept, Settles};
use steadfast_core::envelope::CallContext;
use steadfast_core::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolRef};
use steadfast_core::key::Key;
use steadfast_core::{Timestamp, millis};

use super::paging::{Cursor as _, NamedTool, asks};

asks! {
    /// Which records are asked for.
    RecordsAsked by Key {
        /// Of this tenant.
        tenant: TenantId,
        /// Of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Of this conversation.
        session: SessionKey,
        /// Only those that run, or whose outcome is unknown.
        open: bool,
    }
}

/// The same, understood.
#[derive(Clone, Debug)]
pub struct RecordsWanted {
    selection: Selection,
    page: Page,
}

impl RecordsAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<RecordsWanted, String> {
        let page = self.page()?;
        let selection = Selection {
            tool: self.tool.map(|NamedTool(tool)| tool),
            session: self.session,
            tenant: self.tenant,
            open: self.open.unwrap_or(false),
        };
        Ok(RecordsWanted { selection, page: Page { after: page.after, limit: page.limit } })
    }
}

/// A page of records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Records {
    /// In the order of their keys, which means nothing.
    pub records: Vec<RecordView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// What is remembered of one call.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordView {
    /// Its key, by which it can be resolved or forgotten.
    pub key: String,
    /// The hash by which log lines name its key. The idempotency key itself is kept nowhere.
    pub idempotency_key_hash: String,
    /// How it is found.
    pub origin: Origin,
    /// The tool.
    pub tool: ToolRef,
    /// What became of it.
    pub state: RecordState,
    /// The code of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For an unknown outcome: true once the call can no longer take effect. Before that, a check proves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<bool>,
    /// For an unknown outcome that is not settled: when it is at the latest, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settles_by_ms: Option<Timestamp>,
    /// For an unknown outcome: what was observed of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// Whether an attempt may have been sent.
    pub started: bool,
    /// Whether it may run again if nobody knows.
    pub retry_safe: bool,
    /// The digest of its arguments.
    pub digest: Digest,
    /// Who asked.
    pub request_id: RequestId,
    /// The conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// Who acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorId>,
    /// Whose data it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// When the first call for it came.
    pub arrived_at_ms: Timestamp,
    /// When it was last written.
    pub updated_at_ms: Timestamp,
    /// When it is forgotten; nothing means not before an operator resolves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Timestamp>,
    /// How long after its last write it is forgotten, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When its answer reached a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered_at_ms: Option<Timestamp>,
    /// How many attempts were made.
    pub attempt_count: u32,
    /// The last of them, at most sixteen.
    pub attempts: Vec<AttemptView>,
    /// The caller's own words about it.
    #[serde(flatten)]
    pub context: CallContext,
}

/// One attempt.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptView {
    /// Whether it succeeded.
    pub status: AttemptStatus,
    /// When, and what is known of its failure.
    #[serde(flatten)]
    pub fact: AttemptFact,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptStatus {
    /// It succeeded.
    Success,
    /// It failed.
    Failed,
    /// Its outcome is unknown: it may have run.
    Unknown,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// It runs, or is about to.
    Inflight,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// Its outcome is unknown: it may have run.
    Unknown,
    /// It was cancelled.
    Cancelled,
}

/// A page of what is remembered.
pub async fn records(engine: &Engine, wanted: &RecordsWanted) -> Result<Records, StoreError> {
    let found = engine.records(&wanted.selection, wanted.page).await?;
    let full = found.len() >= wanted.page.limit;
    let next = found.last().filter(|_| full).map(|record| record.key.text());
    let now = engine.now();
    Ok(Records { records: found.into_iter().map(|record| RecordView::of(record, now)).collect(), next })
}

impl RecordView {
    fn of(record: Record, now: Timestamp) -> Self {
        let (state, code) = match &record.state {
            Kept::Inflight => (RecordState::Inflight, None),
            Kept::Done(_) => (RecordState::Done, None),
            Kept::Failed(failure) => (RecordState::Failed, Some(failure.code.to_string())),
            Kept::Unknown(_) => (RecordState::Unknown, None),
            Kept::Cancelled => (RecordState::Cancelled, None),
        };
        let unknown = match &record.state {
            Kept::Unknown(unknown) => Some(unknown),
            Kept::Inflight | Kept::Done(_) | Kept::Failed(_) | Kept::Cancelled => None,
        };
        let settled = unknown.map(|unknown| unknown.is_settled(now));
        let settles_by_ms = unknown.and_then(|unknown| match unknown.settles {
            Settles::By(at) if at > now => Some(at),
            Settles::By(_) | Settles::WhenOwnerSays | Settles::Settled => None,
        });
        let is_unknown = unknown.is_some();
        let last = record.attempts.len().saturating_sub(1);
        let attempt = |(at, fact): (usize, AttemptFact)| AttemptView {
            status: match (&fact.rule, is_unknown && at == last) {
                (None, false) => AttemptStatus::Success,
                (_, true) => AttemptStatus::Unknown,
                (Some(_), false) => AttemptStatus::Failed,
            },
            fact,
        };
        let context = record.context.as_deref().cloned().unwrap_or_default();
        let observed = unknown.map(|unknown| unknown.observed);
        Self {
            key: record.key.0.to_hex(),
            idempotency_key_hash: record.key.fingerprint(),
            origin: record.origin,
            tool: record.tool,
            state,
            code,
            settled,
            settles_by_ms,
            observed,
            started: record.started,
            retry_safe: record.retry_safe,
            digest: record.digest,
            request_id: record.request,
            session: record.session,
            actor: record.actor,
            tenant: record.tenant,
            arrived_at_ms: record.arrived,
            updated_at_ms: record.updated,
            expires_at_ms: record.expires,
            ttl_ms: record.expires.map(|expires| millis(expires.since(record.updated))),
            delivered_at_ms: record.delivered,
            attempt_count: record
                .attempts
                .last()
                .map_or(0, |last| last.number)
                .max(u32::try_from(record.attempts.len()).unwrap_or(u32::MAX)),
            attempts: record.attempts.into_iter().enumerate().map(attempt).collect(),
            context,
        }
    }
}

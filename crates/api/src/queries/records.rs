//! Stored call records, without arguments and results.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::Engine;
use steadfast::store::{RecordFilter, RecordPage, StoreError};
use steadfast_core::dedupe::{
    AttemptRecord, CallContext, DedupeRecord, DedupeState as Kept, RecordOrigin, SettleTime,
    UnknownOutcomeReason,
};
use steadfast_core::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::{Timestamp, millis};

use super::paging::{Cursor as _, NamedTool, list_query};

list_query! {
    /// Filters for records.
    RecordsQuery by RecordKey {
        /// Only records of this tenant.
        tenant: TenantId,
        /// Only records of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only records of this session.
        session: SessionKey,
        /// If true, only records of calls in flight or with an unknown outcome.
        open: bool,
    }
}

/// A parsed query of records.
#[derive(Clone, Debug)]
pub struct RecordsSearch {
    selection: RecordFilter,
    page: RecordPage,
}

impl RecordsQuery {
    /// Returns the query, or a description of the error.
    pub fn read(self) -> Result<RecordsSearch, String> {
        let page = self.page()?;
        let selection = RecordFilter {
            tool: self.tool.map(|NamedTool(tool)| tool),
            session: self.session,
            tenant: self.tenant,
            open: self.open.unwrap_or(false),
        };
        Ok(RecordsSearch { selection, page: RecordPage { after: page.after, limit: page.limit } })
    }
}

/// A page of records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Records {
    /// The records, ordered by key. The order has no meaning.
    pub records: Vec<RecordView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// The stored record of one call.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordView {
    /// The key of the record, for resolving or deleting it.
    pub key: String,
    /// The hash of the idempotency key, as in log lines. The idempotency key itself is not stored.
    pub idempotency_key_hash: String,
    /// The origin of the key.
    pub origin: RecordOrigin,
    /// The tool.
    pub tool: ToolRef,
    /// The state of the call.
    pub state: RecordState,
    /// The error code of a failed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For an unknown outcome: true once the call can no longer take effect. Before that, a check proves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<bool>,
    /// For an unknown outcome that is not settled: time at which it settles at the latest, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settles_by_ms: Option<Timestamp>,
    /// For an unknown outcome: the observations about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<UnknownOutcomeReason>,
    /// True if an attempt may have been sent.
    pub started: bool,
    /// True if the call is safe to repeat after an unknown outcome.
    pub retry_safe: bool,
    /// The digest of the arguments.
    pub digest: Digest,
    /// The request id.
    pub request_id: RequestId,
    /// The session key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// The actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorId>,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// Time of the first call with this key.
    pub arrived_at_ms: Timestamp,
    /// Time of the last change.
    pub updated_at_ms: Timestamp,
    /// Time at which the record expires. Absent if it does not expire before an operator resolves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Timestamp>,
    /// Time from the last change to expiry, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Time at which a client received the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered_at_ms: Option<Timestamp>,
    /// The number of attempts.
    pub attempt_count: u32,
    /// The last attempts, at most sixteen.
    pub attempts: Vec<AttemptView>,
    /// Context that the caller sent with the call.
    #[serde(flatten)]
    pub context: CallContext,
}

/// One attempt.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptView {
    /// The outcome of the attempt.
    pub status: AttemptStatus,
    /// The times of the attempt, and the facts about its failure.
    #[serde(flatten)]
    pub fact: AttemptRecord,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptStatus {
    /// It succeeded.
    Success,
    /// It failed.
    Failed,
    /// The outcome is unknown: it may have run.
    Unknown,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// In flight, or about to start.
    Inflight,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// The outcome is unknown: it may have run.
    Unknown,
    /// It was cancelled.
    Cancelled,
}

/// Returns a page of records.
pub async fn records(engine: &Engine, search: &RecordsSearch) -> Result<Records, StoreError> {
    let found = engine.admin().records(&search.selection, search.page).await?;
    let full = found.len() >= search.page.limit;
    let next = found.last().filter(|_| full).map(|record| record.key.text());
    let now = engine.now();
    Ok(Records { records: found.into_iter().map(|record| RecordView::of(record, now)).collect(), next })
}

impl RecordView {
    fn of(record: DedupeRecord, now: Timestamp) -> Self {
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
            SettleTime::By(at) if at > now => Some(at),
            SettleTime::By(_) | SettleTime::WhenOwnerReports | SettleTime::Settled => None,
        });
        let is_unknown = unknown.is_some();
        let last = record.attempts.len().saturating_sub(1);
        let attempt = |(at, fact): (usize, AttemptRecord)| AttemptView {
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

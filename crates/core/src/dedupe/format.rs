//! The stored format of a record: JSON with a format version, the same in every store.
//!
//! It is the dedupe record of the contract with the additional fields that the tables need. An unknown outcome is
//! written as `failed` with code `outcome_unknown`, so a reader that knows only four states understands it. Readers
//! ignore unknown fields. A new meaning of an existing field needs a new format number.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::context::CallContext;
use super::record::{
    AttemptRecord, CallFailure, ClaimOwner, DedupeRecord, DedupeState, Lease, RecordOrigin, SettleTime,
    UnknownOutcome, UnknownOutcomeReason,
};
use crate::Timestamp;
use crate::code::Code;
use crate::id::{ActorId, Digest, RequestId, RunId, SessionKey, TenantId, ToolCallId, ToolRef};
use crate::key::RecordKey;
use crate::output::ToolOutput;

/// The current format number.
pub const FORMAT: u32 = 1;

/// The usual size of a record without its output.
const USUAL_SIZE: usize = 1024;

/// The reason why a stored record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableRecord {
    /// The record was written by a newer version of Steadfast.
    #[error(
        "the record has format {0}, this version reads up to {FORMAT}: update steadfast, or use another state file"
    )]
    Newer(u32),
    /// The text is not a record.
    #[error("the stored record cannot be read: {0}")]
    Damaged(String),
}

impl DedupeRecord {
    /// Appends the stored form of the record to these bytes.
    pub fn write_json(&self, into: &mut Vec<u8>) {
        let output = match &self.state {
            DedupeState::Done(output) => output.as_ref(),
            DedupeState::Inflight
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_)
            | DedupeState::Cancelled => None,
        };
        into.reserve(USUAL_SIZE + output.map_or(0, ToolOutput::len));
        // Only maps with text keys and finite numbers: this cannot fail, and the reader refuses an incomplete text.
        let _ = serde_json::to_writer(&mut *into, &StoredRecord::from(self));
        if let Some(ToolOutput { content, metadata }) = output {
            // Appended unchanged at the end: serde would parse it again only to check that it is JSON.
            into.pop();
            into.extend_from_slice(br#","payload":{"content":"#);
            into.extend_from_slice(content.as_str().as_bytes());
            if let Some(metadata) = metadata {
                into.extend_from_slice(br#","metadata":"#);
                into.extend_from_slice(metadata.as_str().as_bytes());
            }
            into.extend_from_slice(b"}}");
        }
    }

    /// Returns the stored form of the record.
    pub fn to_json(&self) -> String {
        let mut text = Vec::new();
        self.write_json(&mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// Reads a stored record.
    pub fn from_json(text: &str) -> Result<Self, UnreadableRecord> {
        let damaged = |error: serde_json::Error| UnreadableRecord::Damaged(error.to_string());
        let FormatHeader { format } = serde_json::from_str(text).map_err(damaged)?;
        if format > FORMAT {
            return Err(UnreadableRecord::Newer(format));
        }
        let stored: StoredRecord = serde_json::from_str(text).map_err(damaged)?;
        stored.try_into()
    }
}

#[derive(Deserialize)]
struct FormatHeader {
    format: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredRecord<'r> {
    format: u32,
    key: RecordKey,
    origin: RecordOrigin,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<RecordKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call_id: Option<RecordKey>,
    tool: Cow<'r, ToolRef>,
    state: StoredState,
    owner: Cow<'r, ClaimOwner>,
    started: bool,
    retry_safe: bool,
    run: Cow<'r, RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock_until_ms: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen_end_by_ms: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unknown: Option<StoredUnknownOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delivered_at_ms: Option<Timestamp>,
    version: u64,
    arrived_at_ms: Timestamp,
    created_at_ms: Timestamp,
    updated_at_ms: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<Timestamp>,
    request: StoredRequest<'r>,
    #[serde(default, skip_serializing_if = "Execution::is_empty")]
    execution: Execution<'r>,
    /// Serialized by `write_json`.
    #[serde(default, skip_serializing)]
    payload: Option<ToolOutput>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'r, CallFailure>>,
}

/// An unknown outcome. Records without one, from older versions, count as settled.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredUnknownOutcome {
    settled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settles_by_ms: Option<Timestamp>,
    observed: UnknownOutcomeReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    words: Option<Arc<str>>,
}

impl StoredUnknownOutcome {
    fn of(unknown: &UnknownOutcome) -> Self {
        let (settled, settles_by_ms) = match unknown.settles {
            SettleTime::WhenOwnerReports => (false, None),
            SettleTime::By(at) => (false, Some(at)),
            SettleTime::Settled => (true, None),
        };
        Self { settled, settles_by_ms, observed: unknown.observed, words: unknown.details.clone() }
    }

    fn settles(&self) -> SettleTime {
        match self.settles_by_ms {
            _ if self.settled => SettleTime::Settled,
            Some(at) => SettleTime::By(at),
            None => SettleTime::WhenOwnerReports,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredState {
    Inflight,
    Done,
    Failed,
    Cancelled,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredRequest<'r> {
    request_id: Cow<'r, RequestId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'r, ToolCallId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    context: Option<Cow<'r, CallContext>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_key: Option<Cow<'r, SessionKey>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor_id: Option<Cow<'r, ActorId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant_id: Option<Cow<'r, TenantId>>,
    params_digest: Digest,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Execution<'r> {
    attempts: Cow<'r, [AttemptRecord]>,
}

impl Execution<'_> {
    fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }
}

impl<'r> From<&'r DedupeRecord> for StoredRecord<'r> {
    fn from(record: &'r DedupeRecord) -> Self {
        let (state, error) = match &record.state {
            DedupeState::Inflight => (StoredState::Inflight, None),
            DedupeState::Done(_) => (StoredState::Done, None),
            DedupeState::Failed(failure) => (StoredState::Failed, Some(Cow::Borrowed(failure))),
            DedupeState::Unknown(unknown) => {
                let failure = CallFailure { output: unknown.output.clone(), ..unknown_marker() };
                (StoredState::Failed, Some(Cow::Owned(failure)))
            }
            DedupeState::Cancelled => (StoredState::Cancelled, None),
        };
        Self {
            format: FORMAT,
            key: record.key,
            origin: record.origin,
            index: record.index,
            call_id: record.call_id,
            tool: Cow::Borrowed(&record.tool),
            state,
            owner: Cow::Borrowed(&record.owner),
            started: record.started,
            retry_safe: record.retry_safe,
            run: Cow::Borrowed(&record.run),
            lock_until_ms: match record.lease {
                Lease::Record => None,
                Lease::Until(until) => Some(until),
            },
            seen_end_by_ms: record.end_observed_by,
            unknown: match &record.state {
                DedupeState::Unknown(unknown) => Some(StoredUnknownOutcome::of(unknown)),
                DedupeState::Inflight
                | DedupeState::Done(_)
                | DedupeState::Failed(_)
                | DedupeState::Cancelled => None,
            },
            delivered_at_ms: record.delivered,
            version: record.version,
            arrived_at_ms: record.arrived,
            created_at_ms: record.created,
            updated_at_ms: record.updated,
            expires_at_ms: record.expires,
            request: StoredRequest {
                request_id: Cow::Borrowed(&record.request),
                tool_call_id: record.tool_call.as_ref().map(Cow::Borrowed),
                context: record.context.as_deref().map(Cow::Borrowed),
                session_key: record.session.as_ref().map(Cow::Borrowed),
                actor_id: record.actor.as_ref().map(Cow::Borrowed),
                tenant_id: record.tenant.as_ref().map(Cow::Borrowed),
                params_digest: record.digest,
            },
            execution: Execution { attempts: Cow::Borrowed(&record.attempts) },
            payload: None,
            error,
        }
    }
}

impl TryFrom<StoredRecord<'_>> for DedupeRecord {
    type Error = UnreadableRecord;

    fn try_from(stored: StoredRecord<'_>) -> Result<Self, UnreadableRecord> {
        let state = match (stored.state, stored.error) {
            (StoredState::Inflight, _) => DedupeState::Inflight,
            (StoredState::Done, _) => DedupeState::Done(stored.payload),
            (StoredState::Failed, Some(failure)) if failure.code == Code::OutcomeUnknown => {
                let unknown = stored.unknown;
                DedupeState::Unknown(UnknownOutcome {
                    settles: unknown.as_ref().map_or(SettleTime::Settled, StoredUnknownOutcome::settles),
                    observed: unknown
                        .as_ref()
                        .map_or(UnknownOutcomeReason::NoAnswer, |unknown| unknown.observed),
                    details: unknown.and_then(|unknown| unknown.words),
                    output: failure.into_owned().output,
                })
            }
            (StoredState::Failed, Some(failure)) => DedupeState::Failed(failure.into_owned()),
            (StoredState::Failed, None) => {
                return Err(UnreadableRecord::Damaged("a failed record contains no error".into()));
            }
            (StoredState::Cancelled, _) => DedupeState::Cancelled,
        };
        Ok(Self {
            key: stored.key,
            origin: stored.origin,
            index: stored.index,
            call_id: stored.call_id,
            tool: stored.tool.into_owned(),
            state,
            owner: stored.owner.into_owned(),
            started: stored.started,
            retry_safe: stored.retry_safe,
            digest: stored.request.params_digest,
            run: stored.run.into_owned(),
            lease: stored.lock_until_ms.map_or(Lease::Record, Lease::Until),
            end_observed_by: stored.seen_end_by_ms,
            delivered: stored.delivered_at_ms,
            version: stored.version,
            arrived: stored.arrived_at_ms,
            created: stored.created_at_ms,
            updated: stored.updated_at_ms,
            expires: stored.expires_at_ms,
            request: stored.request.request_id.into_owned(),
            tool_call: stored.request.tool_call_id.map(Cow::into_owned),
            context: stored.request.context.map(|context| Arc::new(context.into_owned())),
            session: stored.request.session_key.map(Cow::into_owned),
            actor: stored.request.actor_id.map(Cow::into_owned),
            tenant: stored.request.tenant_id.map(Cow::into_owned),
            attempts: stored.execution.attempts.into_owned(),
        })
    }
}

fn unknown_marker() -> CallFailure {
    CallFailure {
        code: Code::OutcomeUnknown,
        message: Cow::Borrowed("the call may have taken effect"),
        retriable: false,
        terminal: true,
        rule: None,
        verify: None,
        retry_after: None,
        output: None,
    }
}

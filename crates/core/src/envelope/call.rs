//! The call envelope, read and right.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::{MAX_BAGGAGE_ENTRIES, MAX_TAGS};
use crate::Timestamp;
use crate::id::{
    ActorId, AgentId, CorrelationId, Domain, InvalidId, ModelId, Namespace, RequestId, SessionKey, TenantId,
    ToolCallId, ToolName, ToolRef, TurnId, WorkspaceId, check_id,
};
use crate::key::{DedupeMode, GivenKey};
use crate::output::RawJson;
use crate::redact::Redacted;
use crate::retry::CallerLimits;

/// Fields that we do not know, kept so that what is passed on is what came.
pub type Unknown = BTreeMap<String, RawJson>;

/// One call of a tool, as a caller asks for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallEnvelope {
    /// The contract that the envelope follows.
    pub contract_version: ContractVersion,
    /// This request; a UUIDv7 or ULID by custom.
    pub request_id: RequestId,
    /// The id that the model gave to its call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// The tool.
    pub tool_name: ToolName,
    /// The group that the tool belongs to.
    pub tool_namespace: Namespace,
    /// Who calls, and on whose behalf.
    pub target: Target,
    /// What is asked of the tool.
    pub payload: Payload,
    /// How the call may be carried out.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Transport>"))]
    pub transport: Transport,
    /// When it has to be over, and what it is tagged with.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Control>"))]
    pub control: Control,
    /// The trace that it belongs to.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Trace>"))]
    pub trace: Trace,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl CallEnvelope {
    /// The id of the trace that it belongs to, if that is one as W3C has it.
    pub fn trace_id(&self) -> Option<&str> {
        let id = self.trace.traceparent.as_deref()?.split('-').nth(1)?;
        let is_sound = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_sound.then_some(id)
    }

    /// The tool with its namespace.
    pub fn tool(&self) -> ToolRef {
        ToolRef { namespace: self.tool_namespace.clone(), tool: self.tool_name.clone() }
    }

    /// What the caller allows. It can only lower what the policy allows (D5); the policy takes the smaller.
    pub fn caller_limits(&self) -> CallerLimits {
        let retries = &self.transport.retry_budget;
        CallerLimits {
            attempts: retries.max_attempts,
            elapsed: retries.max_elapsed_ms.map(Duration::from_millis),
            attempt: self.payload.call_hints.timeout_ms.map(Duration::from_millis),
            deadline: self.control.deadline_at_ms,
            start_by: None,
        }
    }

    /// What counts for duplicates of this call if no hook gives a key (D5).
    pub fn dedupe_mode(&self) -> DedupeMode {
        let key = self.payload.idempotency_key.as_ref().map(IdempotencyKey::as_str);
        DedupeMode::resolve(self.transport.dedupe_mode, GivenKey::choose(key, None))
    }
}

/// The contract that we speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ContractVersion {
    /// The one of today.
    #[serde(rename = "1.1")]
    V1_1,
}

/// The form of the payload that we speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PayloadVersion {
    /// The one of today.
    #[serde(rename = "1.0")]
    V1_0,
}

/// Who calls, and on whose behalf.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Target {
    /// The agent that made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The conversation.
    pub session_key: SessionKey,
    /// The user or account. Over the network it comes from the token and need not be here; an envelope that names another
    /// is refused. Where callers need no token, and with the admin token, it is the user who runs the gateway unless the
    /// envelope names another.
    #[cfg_attr(feature = "schema", schemars(with = "Option<ActorId>"))]
    pub actor_id: ActorId,
    /// The workspace, where the host has such a thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// Ties the call to other records of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<CorrelationId>,
    /// Whose data it is. Over the network it comes from the token as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<TenantId>,
    /// The turn of the assistant, if the host tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The model that made the call, if the host tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// What the tool depends on, if the host tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What is asked of the tool.
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Payload {
    /// The form of the payload.
    pub version: PayloadVersion,
    /// The arguments: an object, kept as the text it came in.
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, RawJson>"))]
    pub params: RawJson,
    /// Same key, same call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// What the caller knows about the call.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<CallHints>"))]
    pub call_hints: CallHints,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Arguments may hold anything, so only their size is shown.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("version", &self.version)
            .field("params", &format_args!("{} bytes", self.params.as_str().len()))
            .field("idempotency_key", &self.idempotency_key)
            .field("call_hints", &self.call_hints)
            .finish_non_exhaustive()
    }
}

/// The caller's own key. It is somebody's data: logs show the fingerprint of its digest, and only the admin sees it, in
/// [`CallContext`](super::CallContext).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(Redacted<Arc<str>>);

impl IdempotencyKey {
    /// The key, if the text can be one: what holds for identifiers holds for keys.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
        let text = text.as_ref();
        check_id(text)?;
        Ok(Self(Redacted::new(Arc::from(text))))
    }

    /// The text of it.
    pub fn as_str(&self) -> &str {
        self.0.expose()
    }
}

impl TryFrom<String> for IdempotencyKey {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::new(text)
    }
}

impl Serialize for IdempotencyKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for IdempotencyKey {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IdempotencyKey".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::id::id_schema()
    }
}

/// The schema of texts that are no identifiers and must look like one.
#[cfg(feature = "schema")]
struct ShortText;

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ShortText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ShortText".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::id::id_schema()
    }
}

/// What the caller knows about the call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallHints {
    /// Rather refuse the call than run it without a record.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<bool>"))]
    pub safety_critical: bool,
    /// Whether running it twice does no harm; nothing if the caller does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_retry_safe: Option<bool>,
    /// Time for one attempt; lowers the tool's time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = u64::MAX)))]
    pub timeout_ms: Option<u64>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How the call may be carried out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transport {
    /// What to do about duplicates, if the caller says. What counts otherwise: [`CallEnvelope::dedupe_mode`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_mode: Option<DedupeMode>,
    /// How often and how long it may be tried.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<RetryLimits>"))]
    pub retry_budget: RetryLimits,
    /// Which coarser breaker guards the call too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_breaker_hint: Option<BreakerHint>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How often and how long a call may be tried; lowers what the policy allows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetryLimits {
    /// Attempts in all, the first one included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>", range(min = 1, max = u64::MAX)))]
    pub max_attempts: Option<u32>,
    /// Time in which attempts may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = u64::MAX)))]
    pub max_elapsed_ms: Option<u64>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Which breaker guards the call. The tool's own always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BreakerHint {
    /// The tool's own and no other.
    Tool,
    /// Also the one of what the tool depends on.
    Dependency,
    /// Also the one of everything.
    Global,
}

/// When the call has to be over, and what it is tagged with.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Control {
    /// When it has to be over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<Timestamp>,
    /// Tags, for logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<ShortText>>", length(max = MAX_TAGS)))]
    pub request_tags: Vec<String>,
    /// The hook that made the call, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<ShortText>"))]
    pub from_hook: Option<String>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Tags for the calls of a turn. The turn's deadline is in its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnControl {
    /// Tags, for logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<ShortText>>", length(max = MAX_TAGS)))]
    pub request_tags: Vec<String>,
    /// The hook that made the turn, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<ShortText>"))]
    pub from_hook: Option<String>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The trace that the call belongs to.
#[derive(Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trace {
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<ShortText>"))]
    pub traceparent: Option<String>,
    /// W3C baggage: names and values are at most 8192 bytes together. It is passed on to the tool; only its names are kept and
    /// logged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<BTreeMap<String, String>>", extend("maxProperties" = MAX_BAGGAGE_ENTRIES))
    )]
    pub baggage: BTreeMap<String, String>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Baggage is passed on, never logged.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("traceparent", &self.traceparent)
            .field("baggage", &format_args!("{} entries", self.baggage.len()))
            .finish_non_exhaustive()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

//! The call envelope, parsed and valid.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_json::RawJson;
use steadfast_redact::Redacted;

#[cfg(feature = "schema")]
use super::{MAX_BAGGAGE_ENTRIES, MAX_TAGS};
use crate::Timestamp;
use crate::id::{
    ActorId, AgentId, CorrelationId, Domain, InvalidId, ModelId, Namespace, RequestId, SessionKey, TenantId,
    ToolCallId, ToolName, ToolRef, TurnId, WorkspaceId, check_id,
};
use crate::key::{DedupeMode, KeySource};
use crate::retry::CallerLimits;

/// Unknown fields, kept so that they can be passed on unchanged.
pub type ExtraFields = BTreeMap<String, RawJson>;

/// One call of a tool, as requested by a caller.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallEnvelope {
    /// Version of the contract that the envelope follows.
    pub contract_version: ContractVersion,
    /// Id of this request, usually a UUIDv7 or ULID.
    pub request_id: RequestId,
    /// Id that the model gave to its call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// Name of the tool.
    pub tool_name: ToolName,
    /// Namespace of the tool.
    pub tool_namespace: Namespace,
    /// Caller of the tool, and the tenant or user on whose behalf it calls.
    pub target: CallerIdentity,
    /// Request to the tool.
    pub payload: CallPayload,
    /// Options for running the call.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<TransportOptions>"))]
    pub transport: TransportOptions,
    /// Deadline and tags of the call.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<CallControl>"))]
    pub control: CallControl,
    /// Trace of the call.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<EnvelopeTrace>"))]
    pub trace: EnvelopeTrace,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

impl CallEnvelope {
    /// Returns the id of the trace, if it is a valid W3C one.
    pub fn trace_id(&self) -> Option<&str> {
        let id = self.trace.traceparent.as_deref()?.split('-').nth(1)?;
        let is_sound = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_sound.then_some(id)
    }

    /// Returns the tool with its namespace.
    pub fn tool(&self) -> ToolRef {
        ToolRef { namespace: self.tool_namespace.clone(), tool: self.tool_name.clone() }
    }

    /// Returns the limits that the caller sets. They can only lower those of the policy (D5): the smaller one counts.
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

    /// Returns the mode of deduplication for this call if no hook returns a key (D5).
    pub fn dedupe_mode(&self) -> DedupeMode {
        let key = self.payload.idempotency_key.as_ref().map(IdempotencyKey::as_str);
        DedupeMode::resolve(self.transport.dedupe_mode, KeySource::choose(key, None))
    }
}

/// The supported versions of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ContractVersion {
    /// The current version.
    #[serde(rename = "1.1")]
    V1_1,
}

/// The supported versions of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PayloadVersion {
    /// The current version.
    #[serde(rename = "1.0")]
    V1_0,
}

/// The caller of a tool, and the tenant or user on whose behalf it calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallerIdentity {
    /// Agent that made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Session of the call.
    pub session_key: SessionKey,
    /// User or account. Over the network it comes from the token and need not be given here. An envelope with another
    /// one is refused. If callers need no token, and with the admin token, it is the user who runs the gateway unless
    /// the envelope names another.
    #[cfg_attr(feature = "schema", schemars(with = "Option<ActorId>"))]
    pub actor_id: ActorId,
    /// Workspace, if the host has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// Links the call to other records of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<CorrelationId>,
    /// Tenant whose data the call uses. Over the network it comes from the token as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<TenantId>,
    /// Turn of the assistant, if the host reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Model that made the call, if the host reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// Domain that the tool depends on, if the host reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// The request to a tool.
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallPayload {
    /// Version of the payload.
    pub version: PayloadVersion,
    /// Arguments: an object, kept as its original text.
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, RawJson>"))]
    pub params: RawJson,
    /// Idempotency key of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// Hints from the caller about the call.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<CallHints>"))]
    pub call_hints: CallHints,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// Arguments may contain anything, so only their size is shown.
impl fmt::Debug for CallPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("version", &self.version)
            .field("params", &format_args!("{} bytes", self.params.as_str().len()))
            .field("idempotency_key", &self.idempotency_key)
            .field("call_hints", &self.call_hints)
            .finish_non_exhaustive()
    }
}

/// An idempotency key chosen by the caller. It may contain user data: logs show the fingerprint of its digest, and only
/// the admin sees it, in [`CallContext`](crate::dedupe::CallContext).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(Redacted<Arc<str>>);

impl IdempotencyKey {
    /// Returns the key, if the text is valid. The rules are those of identifiers.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
        let text = text.as_ref();
        check_id(text)?;
        Ok(Self(Redacted::new(Arc::from(text))))
    }

    /// Returns the text of the key.
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

/// The schema of texts that are not identifiers but have the same rules.
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

/// The hints from the caller about a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallHints {
    /// True if the call should be refused when it cannot be recorded.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<bool>"))]
    pub safety_critical: bool,
    /// True if running the call twice does no harm. Absent if the caller does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_retry_safe: Option<bool>,
    /// Timeout of one attempt. Lowers the tool's timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = u64::MAX)))]
    pub timeout_ms: Option<u64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// The options for running a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TransportOptions {
    /// Mode of deduplication, if the caller sets it. [`CallEnvelope::dedupe_mode`] returns the effective one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_mode: Option<DedupeMode>,
    /// Limits for attempts.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<RetryLimits>"))]
    pub retry_budget: RetryLimits,
    /// Additional circuit breaker for the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_breaker_hint: Option<BreakerHint>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// The limits for the attempts of a call. They lower those of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetryLimits {
    /// Maximum number of attempts, including the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>", range(min = 1, max = u64::MAX)))]
    pub max_attempts: Option<u32>,
    /// Time in which attempts may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = u64::MAX)))]
    pub max_elapsed_ms: Option<u64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// The circuit breakers for a call. The tool's own breaker always applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BreakerHint {
    /// Only the breaker of the tool.
    Tool,
    /// Also the breaker of the tool's dependency.
    Dependency,
    /// Also the global breaker.
    Global,
}

/// The deadline and tags of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallControl {
    /// Deadline of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<Timestamp>,
    /// Tags for logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<ShortText>>", length(max = MAX_TAGS)))]
    pub request_tags: Vec<String>,
    /// Hook that made the call, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<ShortText>"))]
    pub from_hook: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// The tags for the calls of a turn. The turn's deadline is in its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnControl {
    /// Tags for logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<ShortText>>", length(max = MAX_TAGS)))]
    pub request_tags: Vec<String>,
    /// Hook that made the turn, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<ShortText>"))]
    pub from_hook: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// The trace of a call.
#[derive(Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvelopeTrace {
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<ShortText>"))]
    pub traceparent: Option<String>,
    /// W3C baggage: names and values have at most 8192 bytes together. It is passed on to the tool. Only its names are
    /// stored and logged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<BTreeMap<String, String>>", extend("maxProperties" = MAX_BAGGAGE_ENTRIES))
    )]
    pub baggage: BTreeMap<String, String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

/// Baggage is passed on, never logged.
impl fmt::Debug for EnvelopeTrace {
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

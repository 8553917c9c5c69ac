//! A builder of call envelopes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use steadfast_core::code::Code;
use steadfast_core::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion, EnvelopeTrace,
    ExtraFields, IdempotencyKey, PayloadVersion, TransportOptions,
};
use steadfast_core::id::{ActorId, InvalidId, Namespace, RequestId, SessionKey, TenantId, ToolName};
use steadfast_core::{Timestamp, millis};
use steadfast_json::RawJson;

/// A builder of call envelopes. For fields that it does not have, change the [`CallEnvelope`] that it returns.
///
/// ```
/// use steadfast::call::EnvelopeBuilder;
///
/// let envelope = EnvelopeBuilder::new("bank/pay").key("invoice 42").args(&[("cents", 1000)]).build()?;
/// assert_eq!(envelope.payload.params.as_str(), r#"{"cents":1000}"#);
/// # Ok::<(), steadfast::call::InvalidCall>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "it has to become an envelope"]
pub struct EnvelopeBuilder {
    tool: String,
    session: String,
    actor: String,
    tenant: Option<String>,
    key: Option<String>,
    args: Result<String, String>,
    timeout: Option<Duration>,
    deadline: Option<Timestamp>,
}

impl EnvelopeBuilder {
    /// Returns a builder for a call of this tool, named as `namespace/name`.
    pub fn new(tool: impl Into<String>) -> Self {
        Self {
            tool: tool.into(),
            session: "default".to_owned(),
            actor: "default".to_owned(),
            tenant: None,
            key: None,
            args: Ok("{}".to_owned()),
            timeout: None,
            deadline: None,
        }
    }

    /// Sets the arguments: a struct or a map. A list of name-value pairs counts as a map.
    pub fn args(mut self, args: &(impl Serialize + ?Sized)) -> Self {
        self.args = object(args);
        self
    }

    /// Sets the idempotency key: calls with the same key are the same call.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the session. Idempotency keys are scoped to a session.
    pub fn session(mut self, session: impl Into<String>) -> Self {
        self.session = session.into();
        self
    }

    /// Sets the user or account that makes the call.
    pub fn actor(mut self, actor: impl Into<String>) -> Self {
        self.actor = actor.into();
        self
    }

    /// Sets the tenant whose data the call uses.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Sets the timeout of one attempt. It can only lower that of the tool.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time at which the call ends at the latest.
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Returns the envelope.
    pub fn build(self) -> Result<CallEnvelope, InvalidCall> {
        let bad = |field: &'static str| move |reason: InvalidId| InvalidCall::Name { field, reason };
        let Some((namespace, tool)) = self.tool.split_once('/') else {
            return Err(InvalidCall::Tool(self.tool));
        };
        let timeout = self.timeout.map(|timeout| millis(timeout).max(1));
        Ok(CallEnvelope {
            contract_version: ContractVersion::V1_1,
            request_id: RequestId::new(next_request()).map_err(bad("request id"))?,
            tool_call_id: None,
            tool_name: ToolName::new(tool).map_err(bad("tool"))?,
            tool_namespace: Namespace::new(namespace).map_err(bad("namespace"))?,
            target: CallerIdentity {
                agent_id: None,
                session_key: SessionKey::new(self.session).map_err(bad("session"))?,
                actor_id: ActorId::new(self.actor).map_err(bad("actor"))?,
                workspace_id: None,
                correlation_id: None,
                tenant_id: self.tenant.map(TenantId::new).transpose().map_err(bad("tenant"))?,
                turn_id: None,
                model_id: None,
                domain: None,
                unknown: ExtraFields::new(),
            },
            payload: CallPayload {
                version: PayloadVersion::V1_0,
                params: RawJson::from_trusted(self.args.map_err(InvalidCall::Arguments)?),
                idempotency_key: self.key.map(IdempotencyKey::new).transpose().map_err(bad("key"))?,
                call_hints: CallHints { timeout_ms: timeout, ..CallHints::default() },
                unknown: ExtraFields::new(),
            },
            transport: TransportOptions::default(),
            control: CallControl { deadline_at_ms: self.deadline, ..CallControl::default() },
            trace: EnvelopeTrace::default(),
            unknown: ExtraFields::new(),
        })
    }
}

/// Returns arguments as the text of a JSON object, or the reason why they are none.
fn object(args: &(impl Serialize + ?Sized)) -> Result<String, String> {
    let value = serde_json::to_value(args).map_err(|error| error.to_string())?;
    let value = pairs(&value).map_or(value, serde_json::Value::Object);
    if value.is_object() { Ok(value.to_string()) } else { Err("they do not serialize as a map".to_owned()) }
}

/// Converts a list of pairs to a map.
fn pairs(value: &serde_json::Value) -> Option<serde_json::Map<String, serde_json::Value>> {
    let pair = |item: &serde_json::Value| match item.as_array()?.as_slice() {
        [name, value] => Some((name.as_str()?.to_owned(), value.clone())),
        _ => None,
    };
    value.as_array()?.iter().map(pair).collect()
}

/// Error in a call that was not made.
///
/// ```
/// use steadfast::call::EnvelopeBuilder;
///
/// let error = EnvelopeBuilder::new("pay").build().unwrap_err();
/// assert_eq!(error.to_string(), "\"pay\" does not name a tool; write it as \"namespace/name\"");
/// assert_eq!(error.code().as_str(), "invalid_envelope");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCall {
    /// The tool is not named as `namespace/name`.
    #[error("{0:?} does not name a tool; write it as \"namespace/name\"")]
    Tool(String),
    /// A name is not valid.
    #[error("the {field} of the call cannot be used: {reason}")]
    Name {
        /// Field with the name.
        field: &'static str,
        /// Reason.
        #[source]
        reason: InvalidId,
    },
    /// The arguments cannot be serialized as a JSON object.
    #[error("the arguments of the call cannot be used: {0}; give a map or a struct")]
    Arguments(String),
}

impl InvalidCall {
    /// Returns the stable code of the error.
    pub fn code(&self) -> Code {
        match self {
            Self::Tool(_) | Self::Name { .. } => Code::InvalidEnvelope,
            Self::Arguments(_) => Code::InvalidArguments,
        }
    }
}

/// Returns a request id that is unique in this process.
fn next_request() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("rust-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn maps_structs_and_pairs_are_arguments_and_nothing_else_is() {
        let of = |args: &dyn Fn(EnvelopeBuilder) -> EnvelopeBuilder| {
            args(EnvelopeBuilder::new("bank/pay"))
                .build()
                .map(|envelope| envelope.payload.params.as_str().to_owned())
        };
        assert_eq!(of(&|call| call).unwrap(), "{}");
        assert_eq!(of(&|call| call.args(&BTreeMap::from([("a", 1)]))).unwrap(), r#"{"a":1}"#);
        assert_eq!(of(&|call| call.args(&[("a", 1)])).unwrap(), r#"{"a":1}"#);
        assert!(matches!(of(&|call| call.args(&[1, 2])), Err(InvalidCall::Arguments(_))));
        assert!(matches!(of(&|call| call.args("text")), Err(InvalidCall::Arguments(_))));
        let nameless = EnvelopeBuilder::new("bank/").build().map(drop).unwrap_err();
        assert_eq!(nameless, InvalidCall::Name { field: "tool", reason: InvalidId::Empty });
    }
}

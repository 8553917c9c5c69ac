//! A builder of calls for Rust programs.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use steadfast_core::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion, EnvelopeTrace,
    ExtraFields, IdempotencyKey, PayloadVersion, TransportOptions,
};
use steadfast_core::id::{ActorId, InvalidId, Namespace, RequestId, SessionKey, ToolName};
use steadfast_core::output::{RawJson, ToolOutput};

/// Builds a call of this tool. All other fields have defaults. For fields that the builder does not have, change the
/// [`CallEnvelope`] that it returns.
pub fn call<'a>(namespace: &'a str, tool: &'a str) -> CallBuilder<'a> {
    CallBuilder {
        namespace,
        tool,
        session: "default",
        actor: "default",
        key: None,
        params: Ok("{}".to_owned()),
    }
}

/// Returns a text as the output of a tool.
pub fn output(text: &str) -> ToolOutput {
    ToolOutput { content: RawJson::string(text), metadata: None }
}

/// A builder of call envelopes.
#[derive(Debug)]
#[must_use = "it has to become an envelope"]
pub struct CallBuilder<'a> {
    namespace: &'a str,
    tool: &'a str,
    session: &'a str,
    actor: &'a str,
    key: Option<&'a str>,
    params: Result<String, String>,
}

impl<'a> CallBuilder<'a> {
    /// Sets the arguments: a map, or a struct that serializes as one. A list of name-value pairs counts as a map.
    pub fn params(mut self, params: &(impl CallArguments + ?Sized)) -> Self {
        self.params = params.to_text();
        self
    }

    /// Sets the idempotency key: calls with the same key are the same call.
    pub fn key(mut self, key: &'a str) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the session. Idempotency keys are scoped to a session.
    pub fn session(mut self, session: &'a str) -> Self {
        self.session = session;
        self
    }

    /// Sets the actor.
    pub fn actor(mut self, actor: &'a str) -> Self {
        self.actor = actor;
        self
    }

    /// Returns the envelope.
    pub fn envelope(self) -> Result<CallEnvelope, InvalidCall> {
        let bad = |what: &'static str| move |why: InvalidId| InvalidCall::Name { what, why };
        let params = self.params.map_err(InvalidCall::Params)?;
        if !params.starts_with('{') {
            return Err(InvalidCall::Params("they do not serialize as a map".to_owned()));
        }
        Ok(CallEnvelope {
            contract_version: ContractVersion::V1_1,
            request_id: RequestId::new(next_request()).map_err(bad("request id"))?,
            tool_call_id: None,
            tool_name: ToolName::new(self.tool).map_err(bad("tool"))?,
            tool_namespace: Namespace::new(self.namespace).map_err(bad("namespace"))?,
            target: CallerIdentity {
                agent_id: None,
                session_key: SessionKey::new(self.session).map_err(bad("session"))?,
                actor_id: ActorId::new(self.actor).map_err(bad("actor"))?,
                workspace_id: None,
                correlation_id: None,
                tenant_id: None,
                turn_id: None,
                model_id: None,
                domain: None,
                unknown: ExtraFields::new(),
            },
            payload: CallPayload {
                version: PayloadVersion::V1_0,
                params: RawJson::from_trusted(params),
                idempotency_key: self.key.map(IdempotencyKey::new).transpose().map_err(bad("key"))?,
                call_hints: CallHints::default(),
                unknown: ExtraFields::new(),
            },
            transport: TransportOptions::default(),
            control: CallControl::default(),
            trace: EnvelopeTrace::default(),
            unknown: ExtraFields::new(),
        })
    }
}

/// A type that can be the arguments of a call.
pub trait CallArguments {
    /// Returns the arguments as JSON, or the reason why it is not possible.
    fn to_text(&self) -> Result<String, String>;
}

impl<T: Serialize + ?Sized> CallArguments for T {
    fn to_text(&self) -> Result<String, String> {
        let value = serde_json::to_value(self).map_err(|error| error.to_string())?;
        Ok(pairs(&value).map_or(value, serde_json::Value::Object).to_string())
    }
}

/// Converts a list of pairs to a map.
fn pairs(value: &serde_json::Value) -> Option<serde_json::Map<String, serde_json::Value>> {
    let pair = |item: &serde_json::Value| match item.as_array()?.as_slice() {
        [name, value] => Some((name.as_str()?.to_owned(), value.clone())),
        _ => None,
    };
    value.as_array()?.iter().map(pair).collect()
}

/// Error in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidCall {
    /// A name is not valid.
    Name {
        /// Field with the name.
        what: &'static str,
        /// Reason.
        why: InvalidId,
    },
    /// The arguments cannot be serialized as a JSON object.
    Params(String),
}

impl fmt::Display for InvalidCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { what, why } => write!(f, "the {what} of the call cannot be used: {why}"),
            Self::Params(why) => {
                write!(f, "the arguments of the call cannot be used: {why}; give a map or a struct")
            }
        }
    }
}

impl std::error::Error for InvalidCall {}

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
        let of = |params: &dyn Fn(CallBuilder<'static>) -> CallBuilder<'static>| {
            params(call("bank", "pay")).envelope().map(|call| call.payload.params.as_str().to_owned())
        };
        assert_eq!(of(&|call| call).unwrap(), "{}");
        assert_eq!(of(&|call| call.params(&BTreeMap::from([("a", 1)]))).unwrap(), r#"{"a":1}"#);
        assert_eq!(of(&|call| call.params(&[("a", 1)])).unwrap(), r#"{"a":1}"#);
        assert!(matches!(of(&|call| call.params(&[1, 2])), Err(InvalidCall::Params(_))));
        assert!(matches!(of(&|call| call.params("text")), Err(InvalidCall::Params(_))));
        let nameless = call("bank", "").envelope().map(drop).unwrap_err();
        assert_eq!(nameless, InvalidCall::Name { what: "tool", why: InvalidId::Empty });
    }
}

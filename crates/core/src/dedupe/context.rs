//! The context of a call, as stored for display.

use serde::{Deserialize, Serialize};

/// The context that a caller sends with a call. It affects no decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallContext {
    /// Agent that made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Links the call to other records of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Tags of the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub request_tags: Vec<String>,
    /// Hook that made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_hook: Option<String>,
    /// Names in the W3C baggage. Its values are passed on to the tool and not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub baggage_keys: Vec<String>,
}

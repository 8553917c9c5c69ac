//! The entries of the audit log, and the operators that they name.

use std::fmt;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::id::TenantId;

/// The author of a change, and the surface that it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OperatorIdentity {
    /// Name of the operator, as authenticated.
    pub name: String,
    /// Surface that the change came from.
    pub from: OperatorSurface,
}

/// Surface that a change came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperatorSurface {
    /// The command line.
    Cli,
    /// The HTTP API.
    Http,
    /// The dashboard.
    Dashboard,
    /// A tool of Steadfast that an MCP client called.
    Mcp,
    /// A program that embeds the engine.
    Library,
    /// The configured verification of a tool.
    Verify,
}

impl OperatorIdentity {
    /// Creates an author. The name is shown, so it is truncated and redacted.
    pub fn new(name: impl AsRef<str>, from: OperatorSurface) -> Self {
        Self { name: steadfast_redact::excerpt(name.as_ref(), LONGEST_NAME), from }
    }
}

impl fmt::Display for OperatorIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match self.from {
            OperatorSurface::Cli => "cli",
            OperatorSurface::Http => "http",
            OperatorSurface::Dashboard => "dashboard",
            OperatorSurface::Mcp => "mcp",
            OperatorSurface::Library => "library",
            OperatorSurface::Verify => "verify",
        };
        write!(f, "{} ({from})", self.name)
    }
}

/// Type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    /// A request was approved.
    Approved,
    /// A request was denied.
    Denied,
    /// A breaker was forced open.
    BreakerForcedOpen,
    /// A breaker was reset.
    BreakerReset,
    /// Trust in a tool was restored.
    TrustReset,
    /// A tool may earn its trust back.
    RecoveryApproved,
    /// The loop guard of a session was reset.
    GuardReset,
    /// Records were deleted.
    Flushed,
    /// An unknown outcome was resolved.
    Resolved,
    /// Modes were switched.
    Switched,
    /// The loss of records was accepted.
    LossAccepted,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// Format version. Readers skip a newer one.
    pub format: u32,
    /// Time of the change.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// Author.
    pub by: OperatorIdentity,
    /// Type of the change.
    pub deed: AuditAction,
    /// Tenant whose data was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// Subject: a tool, a breaker, a session, a request, or the fingerprint of a key.
    pub on: String,
    /// State before the change, if it is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// State after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A change that has just been made, to be recorded.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "as in the entry that is made of it")]
pub struct AuditChange<'a> {
    pub deed: AuditAction,
    pub tenant: Option<&'a TenantId>,
    pub on: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

const LONGEST_NAME: usize = 128;

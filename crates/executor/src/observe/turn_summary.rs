//! The summary of a turn, as listeners get it and as it is stored.

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::id::{ActorId, SessionKey, TenantId, TurnId};
use steadfast_turn::TurnStatus;
use steadfast_turn::trace::{SpanId, TraceId};

/// Summary of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSummary {
    /// Its trace.
    pub trace_id: TraceId,
    /// Its own span, unique to this submission.
    pub span_id: SpanId,
    /// Name of the turn in its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Tenant whose data it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The session.
    pub session: SessionKey,
    /// The actor.
    pub actor: ActorId,
    /// Number of calls in its plan.
    pub calls: usize,
    /// Start time.
    pub started_at_ms: Timestamp,
    /// End time. Absent while it runs, or if its process is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<Timestamp>,
    /// Degree of success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TurnStatus>,
    /// One sentence for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// True if a problem needs attention.
    #[serde(default)]
    pub escalated: bool,
}

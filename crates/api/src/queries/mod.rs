//! Queries for operators. The HTTP API, the dashboard and the command line share them, so that they always agree.

mod audit;
mod connections;
mod endpoints;
mod failures;
mod history;
mod paging;
mod recent_calls;
mod records;
mod settings;
mod status;
mod tool_state;
mod tools;
mod traces;
mod view;

pub use audit::{Audit, AuditLogQuery, audit};
pub use connections::{ServerPage, ServersQuery, SessionPage, SessionsQuery, servers, sessions};
pub(crate) use endpoints::endpoints;
pub use failures::{Failures, FailuresQuery, ToolFailuresQuery, failures};
pub use history::{History, HistoryQuery, HistorySearch, history};
pub use paging::NamedTool;
pub(crate) use paging::tool;
pub use recent_calls::{RequestHistory, RunningCalls, RunningCallsQuery, request_history, running, series};
pub use records::{
    AttemptStatus, AttemptView, RecordState, RecordView, Records, RecordsQuery, RecordsSearch, records,
};
pub use settings::{SettingView, Settings, SettingsQuery, settings};
pub use status::{
    FailedDomain, FindingLevel, IssueCounts, StatusFinding, StatusVerdict, StoreStatus, SystemStatus, status,
};
pub use tool_state::{
    ApprovalPrompt, ApprovalRequest, ApprovalView, Approvals, ApprovalsQuery, Breakers, BreakersQuery,
    Domains, DomainsQuery, GuardActivity, GuardQuery, Models, ModelsQuery, Trust, TrustCounters, TrustQuery,
    TrustView, approvals, breakers, domains, guard, models, trust,
};
pub(crate) use tools::is_known;
pub use tools::{ToolAnnotations, ToolPage, ToolsQuery, annotations, tools};
pub use traces::{EventView, SpanView, TraceView, Traces, TracesQuery, TurnView, lines, traces};
pub(crate) use view::view;

pub use crate::problem::RECORDS_LOST_ADVICE;

use schemars::JsonSchema;
use serde::Serialize;

/// The response of a health check.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct HealthResponse {
    /// Always true. A failed check returns an error instead.
    pub ok: bool,
}

//! Queries for operators. The HTTP API, the dashboard and the command line share them, so that they always agree.

mod around;
mod audit;
mod endpoints;
mod failures;
mod history;
mod paging;
mod recent;
mod records;
mod settings;
mod standing;
mod status;
mod tools;
mod traces;
mod view;

pub use around::{Servers, ServersAsked, Sessions, SessionsAsked, servers, sessions};
pub use audit::{Audit, AuditAsked, audit};
pub(crate) use endpoints::endpoints;
pub use failures::{Failures, FailuresAsked, ToolFailuresAsked, failures};
pub use history::{History, HistoryAsked, HistoryWanted, history};
pub use paging::NamedTool;
pub(crate) use paging::tool;
pub use recent::{Running, RunningAsked, Story, running, series, story};
pub use records::{
    AttemptStatus, AttemptView, RecordState, RecordView, Records, RecordsAsked, RecordsWanted, records,
};
pub use settings::{Setting, Settings, SettingsAsked, settings};
pub use standing::{
    ApprovalPrompt, ApprovalRequest, ApprovalView, Approvals, ApprovalsAsked, Breakers, BreakersAsked,
    Domains, DomainsAsked, Guard, GuardAsked, Models, ModelsAsked, Trust, TrustAsked, TrustCounters,
    TrustView, approvals, breakers, domains, guard, models, trust,
};
pub use status::{
    Counts, FailedDomain, Finding, Level, RECORDS_LOST_TODO, Status, StoreSeen, Verdict, status,
};
pub(crate) use tools::is_known;
pub use tools::{ToolAnnotations, Tools, ToolsAsked, annotations, tools};
pub use traces::{EventView, SpanView, TraceView, Traces, TracesAsked, TurnView, lines, traces};
pub(crate) use view::view;

use schemars::JsonSchema;
use serde::Serialize;

/// The response of a health check.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Health {
    /// Always true. A failed check returns an error instead.
    pub ok: bool,
}

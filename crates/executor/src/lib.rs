//! The engine: runs tool calls and performs the actions that the core decides on.
//!
//! ```no_run
//! # async fn example(envelope: steadfast_core::envelope::CallEnvelope) {
//! use steadfast_core::output::{RawJson, ToolOutput};
//! use steadfast_executor::{Attempt, Engine};
//!
//! let engine = Engine::builder().start().await;
//! let response = engine
//!     .call(envelope, async |attempt: Attempt| {
//!         let content = RawJson::from_trusted(attempt.params().to_owned());
//!         Ok(ToolOutput { content, metadata: None })
//!     })
//!     .await;
//! println!("{:?}", response.result.status);
//! # }
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `engine` | the entry point: calls and shutdown |
//! | `driver` | the driver of one call: one `match` over the steps of the call machine |
//! | `tool`, `hooks` | user code, and the protection of calls against its failures |
//! | `tool_info` | details of a tool beyond its name |
//! | `host_calls` | calls whose tool the host runs |
//! | `cells` | the state machines that calls share |
//! | `followers` | callers in this process that wait for the same in-flight run |
//! | `store_retry`, `deliveries` | writes that must reach the store later |
//! | `undelivered` | responses that never arrived, for callers that reconnect |
//! | `pauses` | the last times at which deduplication was off |
//! | `approvals` | approval requests, decisions and grants |
//! | `persist`, `trust_file` | stored state of the shared machines |
//! | `history`, `recording` | the history of calls, and the recording that a replay reads |
//! | `turns` | turns: several calls that depend on each other |
//! | `registry`, `tool_lists` | lookup of tools by name, and the last tool list of each server |
//! | `telemetry_hooks` | listeners: facts for logs, metrics and spans |
//! | `recent_activity` | the last calls step by step, and the figures of the last hour |
//! | `breakers`, `guards`, `trust`, `views`, `records` | state that operators read, and the changes that they make |
//! | `verification_log`, `verification_call` | verification of unknown outcomes, by callers and by a configured call |
//! | `reports` | reports of hosts about tools that they ran themselves |
//! | `audit` | the audit log of changes by operators |

mod approvals;
mod audit;
mod breakers;
mod cells;
mod clock;
mod deliveries;
mod driver;
mod engine;
mod failures;
mod followers;
mod guards;
mod history;
mod hooks;
mod host_calls;
mod panics;
mod pauses;
mod persist;
mod policies;
mod recent_activity;
mod recording;
mod records;
mod registry;
mod reports;
mod server_names;
mod signals;
mod store_retry;
mod telemetry_hooks;
mod tool;
mod tool_info;
mod tool_lists;
mod trust;
mod trust_file;
mod turns;
mod undelivered;
mod verification_call;
mod verification_log;
mod views;
mod write_queue;

pub use approvals::{
    ActionApproval, ActionRequest, ApprovalError, ApprovalPrompter, ClientDecision, ClientDecisionFuture,
};
pub use audit::{
    AuditAction, AuditChange, AuditEntry, AuditQuery, OperatorIdentity, OperatorSurface, TenantFilter,
};
pub use breakers::{
    BreakerChange, BreakerKey, BreakerOverride, BreakerSubject, BreakerView, ChangeScope, InvalidBreakerKey,
};
pub use clock::RuntimeClock;
pub use deliveries::DeliveryHandle;
pub use engine::{
    CallCanceller, CallOptions, CallResponse, Engine, EngineBuilder, PendingCall, ProgressSignals,
    ShutdownReport, TurnResubmission,
};
pub use failures::FailureQuery;
pub use guards::{GuardTrip, GuardView, StoppedSession};
pub use history::CallFacts;
pub use hooks::{HookFuture, Hooks, PATIENCE};
pub use host_calls::{HeartbeatReply, HostCallId, HostError, HostStep, RunOrder};
pub use policies::PolicySource;
pub use recent_activity::{
    CallEnd, CallMinute, CallSeries, CallStep, CallTally, CallTrace, RecentActivity, StepTone,
};
pub use recording::Recording;
pub use registry::{ResolvedTool, SharedTool, ToolRegistries, ToolRegistry};
pub use server_names::{failed_servers, servers_of_one_name};
pub use telemetry_hooks::{
    EngineEvent, EngineListener, NoticeContext, RejectedCall, SystemEvent, TurnContext, TurnSpan,
};
pub use tool::{Attempt, AttemptError, ToolDescription, ToolFault, ToolHandler, ToolResult};
pub use tool_info::ToolInfo;
pub use tool_lists::LastAnnotations;
pub use trust::is_named;
pub use trust_file::{JsonConverter, TrustFile, TrustStorage};
pub use turns::{TurnOptions, TurnQuery, TurnRejection, TurnResponse, TurnSummary, TurnTraceView};
pub use undelivered::UndeliveredResponse;
pub use views::{AvailableTool, CountSource, DomainView, ModelScore, ToolScore, ToolView};

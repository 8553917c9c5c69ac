//! The engine: runs tool calls and performs the actions that the core decides on.
//!
//! ```no_run
//! # async fn example(envelope: steadfast_core::envelope::CallEnvelope) {
//! use steadfast_core::output::{Output, RawJson};
//! use steadfast_executor::{Attempt, Engine};
//!
//! let engine = Engine::builder().start().await;
//! let response = engine
//!     .call(envelope, async |attempt: Attempt| {
//!         let content = RawJson::from_trusted(attempt.params().to_owned());
//!         Ok(Output { content, metadata: None })
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
mod panics;
mod cells;
mod clock;
mod signals;
mod deliveries;
mod driver;
mod engine;
mod failures;
mod followers;
mod write_queue;
mod guards;
mod history;
mod hooks;
mod host_calls;
mod tool_info;
mod store_retry;
mod pauses;
mod persist;
mod policies;
mod recent_activity;
mod recording;
mod records;
mod reports;
mod views;
mod server_names;
mod registry;
mod trust;
mod telemetry_hooks;
mod tool;
mod tool_lists;
mod trust_file;
mod turns;
mod undelivered;
mod verification_log;
mod verification_call;

pub use approvals::{ApprovalError, ClientDecision, ApprovalPrompter, ClientDecisionFuture, ActionApproval, ActionRequest};
pub use audit::{AuditEntry, AuditQuery, OperatorIdentity, AuditAction, AuditChange, OperatorSurface, TenantFilter};
pub use breakers::{BreakerSubject, BreakerKey, BreakerView, InvalidBreakerKey, ChangeScope, BreakerOverride, BreakerChange};
pub use clock::RuntimeClock;
pub use deliveries::DeliveryHandle;
pub use engine::{
    CallOptions, CallResponse, PendingCall, CallCanceller, ShutdownReport, Engine, EngineBuilder, TurnResubmission, ProgressSignals,
};
pub use failures::FailureQuery;
pub use guards::{GuardView, StoppedSession, GuardTrip};
pub use history::CallFacts;
pub use hooks::{HookFuture, Hooks, PATIENCE};
pub use host_calls::{HostStep, HostError, RunOrder, HeartbeatReply, HostCallId};
pub use tool_info::ToolInfo;
pub use policies::PolicySource;
pub use recent_activity::{CallEnd, CallStep, CallTrace, CallMinute, RecentActivity, CallSeries, CallTally, StepTone};
pub use recording::Recording;
pub use views::{CountSource, DomainView, ModelScore, AvailableTool, ToolScore, ToolView};
pub use server_names::{failed_servers, servers_of_one_name};
pub use registry::{ResolvedTool, SharedTool, ToolRegistry, ToolRegistries};
pub use trust::is_named;
pub use telemetry_hooks::{NoticeContext, EngineEvent, EngineListener, SystemEvent, TurnContext, TurnSpan, RejectedCall};
pub use tool::{ToolResult, Attempt, ToolDescription, AttemptError, ToolHandler, ToolFault};
pub use tool_lists::LastAnnotations;
pub use trust_file::{JsonConverter, TrustFile, TrustStorage};
pub use turns::{TurnSummary, TurnOptions, TurnRejection, TurnTraceView, TurnResponse, TurnQuery};
pub use undelivered::UndeliveredResponse;

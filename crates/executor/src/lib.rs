//! The engine: runs tool calls and performs the actions that the core decides on.
//!
//! ```no_run
//! # async fn example(envelope: steadfast_core::envelope::CallEnvelope) {
//! use steadfast_json::RawJson;
//! use steadfast_core::output::ToolOutput;
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
//! | room | contents |
//! | --- | --- |
//! | `engine` | the entry point: calls, the builder, shutdown, background tasks |
//! | `turns` | turns: several calls that depend on each other |
//! | `drive` | the driver of one call: one `match` over the steps of the call machine, and calls that the host runs |
//! | `admin` | [`EngineAdmin`]: state that operators read, and the changes that they make |
//! | `shared` | the state machines that calls share, approvals, and their copy in the store |
//! | `call` | the interface of a call: tools, hooks, policies, and the signals of its caller |
//! | `observe` | listeners, and the journals of calls, failures and changes |
//! | `writes` | writes that reach the store beside the path of a call |
//! | `keys`, `state` | names of tools, sessions and breakers; the identity and the numbers of an engine |
//!
//! A room uses only rooms below it in this table.

mod admin;
mod call;
mod clock;
mod drive;
mod engine;
mod keys;
mod observe;
mod shared;
mod state;
mod turns;
mod writes;

pub use admin::approvals::ApprovalError;
pub use admin::breakers::{BreakerChange, BreakerOverride, BreakerSubject, BreakerView, ChangeScope};
pub use admin::engine_admin::EngineAdmin;
pub use admin::guard_trips::GuardTrip;
pub use admin::guards::{GuardView, StoppedSession};
pub use admin::tools::{CountSource, DomainView, ModelScore, ToolScore, ToolView};
pub use admin::trust::is_named;
pub use call::hooks::{HookFuture, Hooks, PATIENCE};
pub use call::options::{CallOptions, HostAbilities, HostAttempts, HostLocation, TurnResubmission};
pub use call::pending::{CallCanceller, PendingCall, ProgressSignals};
pub use call::policy_source::PolicySource;
pub use call::prompter::{ApprovalPrompter, ClientDecision, ClientDecisionFuture};
pub use call::registry::{AvailableTool, ResolvedTool, SharedTool, ToolRegistries, ToolRegistry};
pub use call::slot::CallResponse;
pub use call::tool::{Attempt, AttemptError, ToolDescription, ToolFault, ToolHandler, ToolResult};
pub use call::tool_info::ToolInfo;
pub use clock::RuntimeClock;
pub use drive::answered::AnsweredCall;
pub use drive::host_calls::{HeartbeatReply, HostCallId, HostError, HostStep, OrderEnd, RunOrder};
pub use engine::api::{Engine, ShutdownReport};
pub use engine::approval::{ActionApproval, ActionRequest};
pub use engine::builder::EngineBuilder;
pub use engine::server_names::{failed_servers, servers_of_one_name};
pub use engine::undelivered::UndeliveredResponse;
pub use keys::{BreakerKey, InvalidBreakerKey};
pub use observe::audit::{AuditQuery, TenantFilter};
pub use observe::audit_entry::{AuditAction, AuditChange, AuditEntry, OperatorIdentity, OperatorSurface};
pub use observe::failures::FailureQuery;
pub use observe::history::CallFacts;
pub use observe::listener::{
    EngineEvent, EngineListener, NoticeContext, RejectedCall, SystemEvent, TurnContext, TurnSpan,
};
pub use observe::recent::{
    CallEnd, CallMinute, CallSeries, CallStep, CallTally, CallTrace, RecentActivity, StepTone,
};
pub use observe::recording::Recording;
pub use observe::turn_summary::TurnSummary;
pub use shared::tool_lists::LastAnnotations;
pub use shared::trust_file::{JsonConverter, TrustFile, TrustStorage};
pub use turns::options::TurnOptions;
pub use turns::runner::{TurnRejection, TurnResponse};
pub use turns::trace_journal::{TurnQuery, TurnTraceView};
pub use writes::deliveries::DeliveryHandle;

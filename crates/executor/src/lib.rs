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
//! | `engine` | the entry point: calls, the builder, shutdown, calls that the host runs |
//! | `turns` | turns: several calls that depend on each other |
//! | `drive` | the driver of one call: one `match` over the steps of the call machine |
//! | `admin` | state that operators read, and the changes that they make |
//! | `shared` | the state machines that calls share, approvals, and their copy in the store |
//! | `call` | the interface of a call: tools, hooks, policies, and the signals of its caller |
//! | `observe` | listeners, and the journals of calls, failures and changes |
//! | `writes` | writes that reach the store beside the path of a call |

mod admin;
mod call;
mod clock;
mod drive;
mod engine;
mod observe;
mod shared;
mod turns;
mod writes;

pub use admin::breakers::{
    BreakerChange, BreakerKey, BreakerOverride, BreakerSubject, BreakerView, ChangeScope, InvalidBreakerKey,
};
pub use admin::guards::{GuardTrip, GuardView, StoppedSession};
pub use admin::tools::{AvailableTool, CountSource, DomainView, ModelScore, ToolScore, ToolView};
pub use admin::trust::is_named;
pub use call::hooks::{HookFuture, Hooks, PATIENCE};
pub use call::policy_source::PolicySource;
pub use call::registry::{ResolvedTool, SharedTool, ToolRegistries, ToolRegistry};
pub use call::tool::{Attempt, AttemptError, ToolDescription, ToolFault, ToolHandler, ToolResult};
pub use call::tool_info::ToolInfo;
pub use clock::RuntimeClock;
pub use engine::api::{
    CallCanceller, CallOptions, CallResponse, Engine, EngineBuilder, PendingCall, ProgressSignals,
    ShutdownReport, TurnResubmission,
};
pub use engine::host_calls::{HeartbeatReply, HostCallId, HostError, HostStep, RunOrder};
pub use engine::server_names::{failed_servers, servers_of_one_name};
pub use engine::undelivered::UndeliveredResponse;
pub use observe::audit::{
    AuditAction, AuditChange, AuditEntry, AuditQuery, OperatorIdentity, OperatorSurface, TenantFilter,
};
pub use observe::failures::FailureQuery;
pub use observe::history::CallFacts;
pub use observe::listener::{
    EngineEvent, EngineListener, NoticeContext, RejectedCall, SystemEvent, TurnContext, TurnSpan,
};
pub use observe::recent::{
    CallEnd, CallMinute, CallSeries, CallStep, CallTally, CallTrace, RecentActivity, StepTone,
};
pub use observe::recording::Recording;
pub use shared::approvals::{
    ActionApproval, ActionRequest, ApprovalError, ApprovalPrompter, ClientDecision, ClientDecisionFuture,
};
pub use shared::tool_lists::LastAnnotations;
pub use shared::trust_file::{JsonConverter, TrustFile, TrustStorage};
pub use turns::{TurnOptions, TurnQuery, TurnRejection, TurnResponse, TurnSummary, TurnTraceView};
pub use writes::deliveries::DeliveryHandle;

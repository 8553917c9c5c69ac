//! Steadfast runs between an agent and its tools and makes tool calls reliable: a call runs as often as it should and
//! not more, ends in bounded time, and always has a response that the agent can act on.
//!
//! This crate is the entry point for Rust programs, and all other surfaces are built on it. [`Steadfast::open`] reads
//! the configuration, opens the configured store, starts telemetry, and starts the [`Engine`].
//!
//! ```
//! use steadfast::{Answer, Attempt, Sources, Steadfast, call, output};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // `usual_sources` reads steadfast.toml and the environment. This program sets everything itself.
//! let steadfast = Steadfast::opening(Sources::default())
//!     .set("store.kind", "memory")
//!     .set("tools.\"bank/pay\".class", "mutating")
//!     .open()
//!     .await?;
//!
//! // Any async function can be a tool.
//! let pay = async |attempt: Attempt| -> Answer { Ok(output(&format!("paid {}", attempt.params()))) };
//!
//! let first = call("bank", "pay").params(&[("amount", 10)]).key("invoice 42").envelope()?;
//! let paid = steadfast.call(first, pay).await;
//! assert!(!paid.result.from_cache);
//!
//! // A call with the same key is the same call: it does not run again, and its result is replayed.
//! let again = call("bank", "pay").params(&[("amount", 10)]).key("invoice 42").envelope()?;
//! let replayed = steadfast.call(again, pay).await;
//! assert!(replayed.result.from_cache);
//! assert_eq!(replayed.result.output, paid.result.output);
//! # Ok(())
//! # }
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `builder` | opens store, telemetry and engine from a configuration |
//! | `plan` | the meaning of the settings for store and telemetry, before anything is opened |
//! | `live_config` | the configuration of a running engine: files, switches, policies |
//! | `call` | a builder of calls for Rust programs |
//! | `webhooks` | delivery of notifications over HTTP |

mod builder;
mod call;
mod live_config;
mod plan;
mod webhooks;

pub use builder::{LogOutput, OpenError, Steadfast, SteadfastBuilder, usual_sources};
pub use call::{CallBuilder, InvalidCall, call, output};
pub use live_config::ConfigEvent;
pub use plan::StartupPlan;

pub use steadfast_config::{
    COMMAND_NAMESPACE, CommandLineFlag, Config, ConfigErrors, ConfigFile, ConfigProblem, ExplainedSetting,
    Explanation, FileRequirement, HTTP_NAMESPACE, InlineJson, Isolation, PolicyStart, Reload, Section,
    ServerSettings, ServerTarget, SettingPosition, Sources, StoreKind, SwitchChange, Switches, Token,
    TokenRole, listen_address, nearest, parse_span,
};
pub use steadfast_core::key::DedupeMode;
pub use steadfast_core::{
    Timestamp, approval, breaker, call as path, classify, code, envelope, guard, id, json, policy, redact,
    rehearse, report, stats, trust, turn,
};
pub use steadfast_executor::{
    ApprovalError, ApprovalPrompter, Attempt, AttemptError, AuditAction, AuditChange, AuditEntry, AuditQuery,
    AvailableTool, BreakerChange, BreakerKey, BreakerOverride, BreakerSubject, BreakerView, CallCanceller,
    CallFacts, CallOptions, CallResponse, CallStep, ChangeScope, ClientDecision, ClientDecisionFuture,
    CountSource, DeliveryHandle, Engine, EngineEvent, EngineListener, GuardTrip, GuardView, HeartbeatReply,
    HookFuture, Hooks, HostCallId, HostError, HostStep, InvalidBreakerKey, NoticeContext, OperatorIdentity,
    OperatorSurface, PendingCall, ProgressSignals, Recording, RejectedCall, ResolvedTool, RunOrder,
    RuntimeClock, SharedTool, ShutdownReport, StoppedSession, SystemEvent, TenantFilter, ToolFault,
    ToolHandler, ToolInfo, ToolRegistries, ToolRegistry, ToolResult, ToolScore, ToolView, TurnContext,
    TurnOptions, TurnQuery, TurnRejection, TurnResponse, TurnSpan, TurnSummary, TurnTraceView,
    servers_of_one_name,
};
pub use steadfast_store::{
    FlushTarget, MemoryOptions, MemoryStore, RecordFilter, RecordPage, Store, StoreError,
};
pub use steadfast_store_redis::{Options as RedisOptions, RedisStore};
pub use steadfast_store_sqlite::{CommitLossPolicy, FileDamagePolicy, SqliteOptions, SqliteStore};
pub use steadfast_telemetry::{
    Feed, FeedEvent, FeedItem, FeedReader, LogLineFormat, LogLineLevel, LogSink, Metrics, Telemetry,
};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Compiles and runs the examples of the guide for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/rust.md")]
pub struct HowToUseRust;

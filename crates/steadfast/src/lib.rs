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

mod call;
mod live_config;
mod builder;
mod plan;
mod webhooks;

pub use call::{CallBuilder, InvalidCall, call, output};
pub use live_config::ConfigEvent;
pub use builder::{LogOutput, OpenError, SteadfastBuilder, Steadfast, usual_sources};
pub use plan::StartupPlan;

pub use steadfast_config::{
    COMMAND_NAMESPACE, Config, ConfigErrors, ConfigFile, ExplainedSetting, Explanation, CommandLineFlag, InlineJson,
    HTTP_NAMESPACE, Isolation, FileRequirement, ConfigProblem, ServerTarget, Reload, TokenRole, Section, ServerSettings, Sources, PolicyStart,
    StoreKind, SwitchChange, Switches, Token, SettingPosition, listen_address, nearest, parse_span,
};
pub use steadfast_core::key::DedupeMode;
pub use steadfast_core::{
    Timestamp, approval, breaker, call as path, classify, code, envelope, guard, id, json, policy, redact,
    rehearse, report, stats, trust, turn,
};
pub use steadfast_executor::{
    NoticeContext, ToolResult, ApprovalError, DeliveryHandle, ClientDecision, ApprovalPrompter, ClientDecisionFuture, Attempt, AuditEntry, AuditQuery, HostStep,
    BreakerSubject, BreakerKey, BreakerView, OperatorIdentity, CallFacts, CallOptions, CallStep, CallResponse, PendingCall, CallCanceller,
    CountSource, AuditAction, AuditChange, ShutdownReport, Engine, EngineEvent, ResolvedTool, GuardView, HookFuture, Hooks, HostError,
    InvalidBreakerKey, EngineListener, AttemptError, AvailableTool, RunOrder, SystemEvent, HeartbeatReply, ChangeScope, Recording, SharedTool,
    RuntimeClock, ToolRegistry, ToolRegistries, ProgressSignals, BreakerOverride, BreakerChange, StoppedSession, OperatorSurface, TenantFilter, HostCallId,
    ToolHandler, ToolFault, ToolInfo, ToolScore, ToolView, GuardTrip, TurnContext, TurnSummary, TurnOptions, TurnRejection,
    TurnSpan, TurnTraceView, TurnResponse, RejectedCall, TurnQuery, servers_of_one_name,
};
pub use steadfast_store::{FlushTarget, MemoryOptions, MemoryStore, RecordPage, RecordFilter, Store, StoreError};
pub use steadfast_store_redis::{Options as RedisOptions, RedisStore};
pub use steadfast_store_sqlite::{FileDamagePolicy, CommitLossPolicy, SqliteOptions, SqliteStore};
pub use steadfast_telemetry::{Feed, FeedReader, LogLineFormat, FeedEvent, LogLineLevel, LogSink, Metrics, FeedItem, Telemetry};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Compiles and runs the examples of the guide for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/rust.md")]
pub struct HowToUseRust;

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
mod catch;
mod cells;
mod clock;
mod control;
mod deliveries;
mod drive;
mod engine;
mod failures;
mod followers;
mod gathered;
mod guards;
mod history;
mod hooks;
mod host;
mod info;
mod keep;
mod pauses;
mod persist;
mod policies;
mod recent;
mod recording;
mod records;
mod reports;
mod seen;
mod server_names;
mod shelf;
mod standing;
mod telling;
mod tool;
mod tool_registry;
mod trust_file;
mod turns;
mod undelivered;
mod verification;
mod verify;

pub use approvals::{AnswerError, Asked, Asker, Asking, Granted, Wish};
pub use audit::{AuditEntry, AuditPage, By, Deed, Done, Surface, Tenants};
pub use breakers::{BreakerAbout, BreakerKey, BreakerView, InvalidBreakerKey, Reach, Steer, Steered};
pub use clock::RuntimeClock;
pub use deliveries::Arrival;
pub use engine::{
    CallOptions, Called, Calling, Canceller, Drained, Engine, EngineBuilder, InTurn, SignsOfLife,
};
pub use failures::FailuresPage;
pub use guards::{GuardView, StoppedSession, Trip};
pub use history::CallFacts;
pub use hooks::{HookFuture, Hooks, PATIENCE};
pub use host::{Begun, HostError, Order, Pulse, Ticket};
pub use info::ToolInfo;
pub use policies::Policies;
pub use recent::{CallEnd, CallStep, CallTrace, Minute, Recent, Series, Tally, Tone};
pub use recording::Recording;
pub use seen::{Counted, DomainView, ModelScore, Offered, ToolScore, ToolView};
pub use server_names::{failed_servers, servers_of_one_name};
pub use shelf::{Found, Run, Shelf, Shelves};
pub use standing::is_named;
pub use telling::{About, EngineEvent, Listener, Outside, TurnAbout, TurnSpan, TurnedAway};
pub use tool::{Answer, Attempt, Description, NotDone, Tool, ToolFault};
pub use tool_registry::LastAnnotations;
pub use trust_file::{PlainJson, TrustFile, TrustKept};
pub use turns::{TurnHead, TurnOptions, TurnRefused, TurnStory, Turned, TurnsWanted};
pub use undelivered::Undelivered;

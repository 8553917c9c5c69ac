//! Steadfast stands between an agent and its tools and makes every call safe to make: it runs as often as it should
//! and not once more, it ends in bounded time, and it always has an answer that the agent can act on.
//!
//! This crate is the way in for Rust programs, and what every other way in is made of. [`Steadfast::open`] reads the
//! configuration, opens the store that it names, begins to tell what happens, and starts the [`Engine`].
//!
//! ```
//! use steadfast::{Answer, Attempt, Sources, Steadfast, call, output};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // `usual_sources` reads steadfast.toml and the environment; this program brings all it needs.
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
//! // The same key is the same call: it does not run again, and gets the same answer.
//! let again = call("bank", "pay").params(&[("amount", 10)]).key("invoice 42").envelope()?;
//! let replayed = steadfast.call(again, pay).await;
//! assert!(replayed.result.from_cache);
//! assert_eq!(replayed.result.output, paid.result.output);
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `opening` | from a configuration to a running engine |
//! | `plan` | what the settings mean for store and telemetry, before anything is opened |
//! | `following` | the configuration while the engine runs: files, switches, policies |
//! | `call` | calls made in Rust |

mod call;
mod following;
mod opening;
mod plan;
mod webhooks;

pub use call::{CallBuilder, InvalidCall, call, output};
pub use following::ConfigNews;
pub use opening::{Logging, OpenError, Opening, Steadfast, usual_sources};
pub use plan::Plan;

pub use steadfast_config::{
    COMMAND_NAMESPACE, Config, ConfigErrors, ConfigFile, Explained, Explanation, Flag, GivenText,
    HTTP_NAMESPACE, Isolation, Needed, Problem, Reached, Reload, Role, Section, Server, Sources, Start,
    StoreKind, Switched, Switches, Token, WrittenAt, listen_address, nearest, parse_span,
};
pub use steadfast_core::key::DedupeMode;
pub use steadfast_core::{
    Timestamp, approval, breaker, call as path, classify, code, envelope, guard, id, json, policy, redact,
    rehearse, report, stats, trust, turn,
};
pub use steadfast_executor::{
    About, Answer, AnswerError, Arrival, Asked, Asker, Asking, Attempt, AuditEntry, AuditPage, Begun,
    BreakerAbout, BreakerKey, BreakerView, By, CallFacts, CallOptions, CallStep, Called, Calling, Canceller,
    Counted, Deed, Done, Drained, Engine, EngineEvent, Found, GuardView, HookFuture, Hooks, HostError,
    InvalidBreakerKey, Listener, NotDone, Offered, Order, Outside, Pulse, Reach, Recording, Run,
    RuntimeClock, Shelf, Shelves, SignsOfLife, Steer, Steered, StoppedSession, Surface, Tenants, Ticket,
    Tool, ToolFault, ToolInfo, ToolScore, ToolView, Trip, TurnAbout, TurnHead, TurnOptions, TurnRefused,
    TurnSpan, TurnStory, Turned, TurnedAway, TurnsWanted, servers_of_one_name,
};
pub use steadfast_store::{Flush, MemoryOptions, MemoryStore, Page, Selection, Store, StoreError};
pub use steadfast_store_redis::{Options as RedisOptions, RedisStore};
pub use steadfast_store_sqlite::{OnDamage, OnLoss, SqliteOptions, SqliteStore};
pub use steadfast_telemetry::{Feed, FeedReader, Format, Happened, Level, Logs, Metrics, Next, Telemetry};

/// The README as a test: what it shows is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The page for users of this crate as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/rust.md")]
pub struct HowToUseRust;

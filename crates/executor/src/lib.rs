//! The engine: carries out what the core decides.
//!
//! ```no_run
//! # async fn example(envelope: steadfast_core::envelope::CallEnvelope) {
//! use steadfast_core::output::{Output, RawJson};
//! use steadfast_executor::{Attempt, Engine};
//!
//! let engine = Engine::builder().start().await;
//! let called = engine
//!     .call(envelope, async |attempt: Attempt| {
//!         let content = RawJson::from_trusted(attempt.params().to_owned());
//!         Ok(Output { content, metadata: None })
//!     })
//!     .await;
//! println!("{:?}", called.result.status);
//! # }
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `engine` | the way in: calls, shutdown |
//! | `drive` | one call on its way: one `match` over the machine's steps |
//! | `tool`, `hooks` | other people's code, and how it is kept from breaking a call |
//! | `info` | what is known about a tool beside its name |
//! | `host` | calls whose tool is run by the host |
//! | `cells` | the machines that calls share |
//! | `followers` | callers in this process that wait for one run |
//! | `keep`, `deliveries` | what has to get through to the store later |
//! | `undelivered` | answers that never arrived, for whoever comes back for them |
//! | `pauses` | when duplicates were last not recognised |
//! | `approvals` | people's answers |
//! | `persist`, `trust_file` | what the machines know, kept |
//! | `history`, `recording` | what became of calls, and the same for whoever replays them |
//! | `turns` | several calls that depend on each other |
//! | `shelf` | where tools are found by name |
//! | `telling` | facts for whoever listens |
//! | `recent` | the last calls step by step, and the last hour in numbers |
//! | `breakers`, `guards`, `standing`, `seen`, `records` | what people see, and the hand that steers it |
//! | `verification` | who has looked whether a call had its effect |
//! | `reports` | what hosts say about tools that they ran themselves |
//! | `audit` | what was changed by hand |

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

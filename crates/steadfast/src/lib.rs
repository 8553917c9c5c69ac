//! Steadfast runs between an agent and its tools and makes tool calls reliable: a call runs as often as it should and
//! not more, ends in bounded time, and always has a response that the agent can act on.
//!
//! A program opens one [`Steadfast`] and makes its calls through it. Any async function can be a tool.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use steadfast::{Attempt, Steadfast, Store, ToolFault, ToolPolicy};
//!
//! #[derive(Serialize)]
//! struct Invoice {
//!     to: &'static str,
//!     cents: u64,
//! }
//!
//! #[derive(Debug, Deserialize, Serialize, PartialEq)]
//! struct Receipt {
//!     number: u64,
//! }
//!
//! async fn pay(attempt: Attempt) -> Result<Receipt, ToolFault> {
//!     println!("attempt {} with {}", attempt.number, attempt.params());
//!     Ok(Receipt { number: 7 })
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder()
//!     .store(Store::memory())
//!     .tool("bank/pay", ToolPolicy::mutating())
//!     .build()
//!     .await?;
//!
//! let invoice = Invoice { to: "ann", cents: 1000 };
//! let paid = steadfast.call("bank/pay").key("invoice 42").args(&invoice).run(pay).await?;
//! assert_eq!(paid.output::<Receipt>()?, Receipt { number: 7 });
//!
//! // A call with the same key is the same call: it does not run again, and its result is replayed.
//! let again = steadfast.call("bank/pay").key("invoice 42").args(&invoice).run(pay).await?;
//! assert!(again.is_replayed());
//! assert_eq!(again.output::<Receipt>()?, Receipt { number: 7 });
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | to | see |
//! | --- | --- |
//! | open an instance | [`Steadfast::builder`], [`Steadfast::from_env`], [`Store`], [`ToolPolicy`] |
//! | make a call | [`Steadfast::call`], [`CallBuilder`], [`CallOutput`], [`CallError`] |
//! | say how an attempt failed | [`ToolFault`] |
//! | make calls in the form of an envelope, as the gateway does | [`Steadfast::call_envelope`], [`Engine`], [`call`] |
//! | submit several calls that depend on each other | [`turn`] |
//! | read and change state as an operator | [`admin`] |
//! | read the configuration, and follow its changes | [`config`] |
//! | use the resolved policies | [`policy`] |
//! | open a store without an engine, or write one | [`store`] |
//! | log, measure and listen | [`telemetry`] |

pub mod admin;
pub mod call;
pub mod config;
pub mod policy;
pub mod store;
pub mod telemetry;
pub mod turn;

mod builder;
mod call_builder;
mod call_error;
mod envelope_builder;
mod live_config;
mod open_error;
mod plan;
mod settings;
mod webhooks;

pub use builder::{Steadfast, SteadfastBuilder};
pub use call_builder::{BoxError, CallBuilder, CallOutput};
pub use call_error::{CallError, InvalidOutput};
pub use open_error::OpenError;
pub use settings::{Store, ToolPolicy};

pub use steadfast_core::Timestamp;
pub use steadfast_core::code::Code;
pub use steadfast_executor::{Attempt, CallResponse, Engine, ToolFault, ToolHandler};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Compiles and runs the examples of the guide for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/rust.md")]
pub struct HowToUseRust;

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
//! # If a call fails
//!
//! A failed attempt is classified, and the call is tried again where that is safe. A mutating tool is not run again after
//! an attempt that may have taken effect: the call ends with an error that says so, and how to find out.
//!
//! ```
//! use steadfast::call::classify::TransportError;
//! use steadfast::{Attempt, Code, Steadfast, Store, ToolFault, ToolPolicy};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = ToolPolicy::mutating().verify("look for the invoice in the statement");
//! let steadfast = Steadfast::builder().store(Store::memory()).tool("bank/pay", policy).build().await?;
//!
//! // The request was sent, and the connection broke before the response.
//! let pay = async |_: Attempt| {
//!     Err::<(), _>(ToolFault::connection_lost(TransportError::ConnectionReset, "connection reset by peer"))
//! };
//! let error = steadfast.call("bank/pay").key("invoice 43").run(pay).await.unwrap_err();
//! assert_eq!((error.code(), error.attempts()), (Code::OutcomeUnknown, 1));
//! assert!(error.verify().unwrap().contains("look for the invoice"));
//! # Ok(())
//! # }
//! ```
//!
//! # Protections
//!
//! All of these are on from the start, except the limits. [`ToolPolicy`] changes them for one tool or for all.
//!
//! | protection | effect | settings |
//! | --- | --- | --- |
//! | deduplication | calls with the same key run once; duplicates wait for the call in flight, or get its result | [`key`](CallBuilder::key), [`keep_results`](ToolPolicy::keep_results) |
//! | retries | failures that pass by themselves are retried, with growing waits | [`attempts`](ToolPolicy::attempts), [`backoff`](ToolPolicy::backoff) |
//! | time limits | attempts and calls end in bounded time | [`timeout`](ToolPolicy::timeout), [`total_timeout`](ToolPolicy::total_timeout) |
//! | circuit breaker | a tool that keeps failing gets no calls for a while | [`breaker`](ToolPolicy::breaker) |
//! | limits | no more attempts at once, or per time, than allowed | [`concurrency`](ToolPolicy::concurrency), [`rate`](ToolPolicy::rate) |
//! | loop guard | a model that repeats a failing call is told so, and then stopped | [`set("guard.mode", …)`](ToolPolicy::set) |
//! | trust and approval | a tool that has lost trust by its failures runs only after approval | [`approval`](ToolPolicy::approval) |
//!
//! # Where to look
//!
//! | to | see |
//! | --- | --- |
//! | open an instance | [`Steadfast::builder`], [`Steadfast::from_env`], [`Store`], [`ToolPolicy`] |
//! | make a call | [`Steadfast::call`], [`CallBuilder`], [`CallOutput`], [`CallError`] |
//! | state how an attempt failed | [`ToolFault`] |
//! | make calls in the form of an envelope, or run tools in a host | [`Steadfast::call_envelope`], [`Engine`], [`call`] |
//! | submit several calls that depend on each other | [`turn`] |
//! | read and change state as an operator | [`admin`] |
//! | read the configuration, and follow its changes | [`config`] |
//! | use the resolved policies | [`policy`] |
//! | read records, or replace the clock | [`store`] |
//! | log, measure and listen | [`telemetry`] |
//!
//! Every async function of this crate needs a tokio runtime whose time and IO drivers are enabled.

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

/// A time, in milliseconds since 1970.
///
/// ```
/// use std::time::Duration;
/// use steadfast::Timestamp;
///
/// let noon = Timestamp::parse_iso("2025-11-05T12:00:00Z").unwrap();
/// let later = noon + Duration::from_secs(90);
/// assert_eq!(later.since(noon), Duration::from_secs(90));
/// assert_eq!(later.as_millis() - noon.as_millis(), 90_000);
/// ```
pub use steadfast_core::Timestamp;

/// A stable error code, for programs that decide by it.
///
/// ```
/// use steadfast::{CallError, Code};
///
/// fn advice(error: &CallError) -> &'static str {
///     match error.code() {
///         Code::ApprovalRequired => "ask an operator",
///         code if code.is_unknown_outcome() => "check if it happened",
///         _ if error.is_retriable() => "try again later",
///         _ => "give up",
///     }
/// }
/// assert_eq!(Code::ApprovalRequired.as_str(), "approval_required");
/// ```
pub use steadfast_core::code::Code;

/// The argument of a tool: the arguments of the call, and everything else that a tool can use.
///
/// ```
/// use serde::Deserialize;
/// use steadfast::{Attempt, ToolFault};
///
/// #[derive(Deserialize)]
/// struct Invoice {
///     cents: u64,
/// }
///
/// async fn pay(attempt: Attempt) -> Result<String, ToolFault> {
///     let invoice: Invoice =
///         serde_json::from_str(attempt.params()).map_err(|error| ToolFault::new(error.to_string()))?;
///     // A bank that deduplicates gets the same key in every attempt.
///     let header = ("Idempotency-Key", attempt.idempotency_key().to_owned());
///     // A sign of life extends the timeout of the attempt.
///     attempt.progress();
///     Ok(format!("paid {} cents with {header:?}", invoice.cents))
/// }
/// ```
pub use steadfast_executor::Attempt;

/// The response to a call in its complete form. [`CallOutput::response`] and [`CallError::response`] return it too.
///
/// ```
/// use steadfast::{Attempt, CallResponse, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let time = steadfast.call("clock/now").run(async |_: Attempt| Ok::<_, ToolFault>(12)).await?;
/// let response: &CallResponse = time.response();
/// assert!(!response.result.from_cache);
/// assert_eq!(response.result.output.as_ref().unwrap().content.as_str(), "12");
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::CallResponse;

/// The engine of an instance. [`Steadfast::engine`] returns it, for everything that [`Steadfast::call`] does not do:
/// calls in the form of an envelope, calls that a [host](call) runs, [turns](turn), events, and the operations of
/// [operators](admin).
///
/// ```
/// use steadfast::telemetry::CallNotice;
/// use steadfast::{Attempt, Engine, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let engine: &Engine = steadfast.engine();
/// let mut events = engine.events();
/// steadfast.call("clock/now").run(async |_: Attempt| Ok::<_, ToolFault>(12)).await?;
/// assert!(matches!(events.recv().await?.notice, CallNotice::CallStarted { .. }));
/// assert_eq!(engine.in_flight_calls(), 0);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::Engine;

/// The result of [`Steadfast::shutdown`].
///
/// ```
/// use std::time::Duration;
/// use steadfast::{ShutdownReport, Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let report = steadfast.shutdown(Duration::from_secs(5)).await;
/// assert_eq!(report, ShutdownReport { aborted: 0, lost: 0 });
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::ShutdownReport;

/// The error of a tool that knows how its attempt failed.
///
/// ```
/// use std::time::Duration;
/// use steadfast::ToolFault;
/// use steadfast::call::classify::TransportError;
///
/// let busy = ToolFault::http(429, "too many requests").retry_after(Duration::from_secs(2));
/// assert_eq!(busy.to_string(), "too many requests");
/// // Nothing was sent, so the call may be repeated.
/// let refused = ToolFault::not_sent(TransportError::ConnectionRefused, "connection refused");
/// // A part of the request was sent, so the outcome is unknown.
/// let lost = ToolFault::connection_lost(TransportError::ConnectionReset, "connection reset");
/// ```
pub use steadfast_executor::ToolFault;

/// A tool as a type of its own, for [`Steadfast::call_envelope`].
///
/// ```
/// use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
/// use steadfast::{Attempt, Steadfast, Store, ToolHandler};
///
/// struct Greeter {
///     greeting: String,
/// }
///
/// impl ToolHandler for Greeter {
///     fn run(&self, _: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
///         // The engine owns an attempt, so it cannot borrow from the tool.
///         let greeting = self.greeting.clone();
///         async move { Ok(ToolOutput::text(&greeting)) }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let greeter = Greeter { greeting: "good morning".to_owned() };
/// let response = steadfast.call_envelope(EnvelopeBuilder::new("hotel/greet").build()?, greeter).await;
/// assert_eq!(response.result.output.unwrap().content.as_str(), r#""good morning""#);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::ToolHandler;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Compiles and runs the examples of the guide for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/rust.md")]
pub struct HowToUseRust;

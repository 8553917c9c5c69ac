//! Logs, metrics, events and listeners.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use steadfast::telemetry::{CallResult, EngineListener, LogOutput, NoticeContext};
//! use steadfast::{Attempt, Steadfast, Store, ToolFault};
//!
//! #[derive(Default)]
//! struct CallCounter(AtomicU32);
//!
//! impl EngineListener for CallCounter {
//!     fn finished(&self, _: &NoticeContext<'_>, _: &CallResult) {
//!         self.0.fetch_add(1, Ordering::Relaxed);
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let counter = Arc::new(CallCounter::default());
//! let opening = Steadfast::builder().store(Store::memory()).listener(counter.clone());
//! let steadfast = opening.logging(LogOutput::Disabled).build().await?;
//! steadfast.call("clock/now").run(async |_: Attempt| Ok::<_, ToolFault>(12)).await?;
//! assert_eq!(counter.0.load(Ordering::Relaxed), 1);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::io::Write;

pub use steadfast_core::call::{
    BreakerScope, CallNotice, CallRequest, CallResult, CutReason, FailedAttempt, Provenance, RecordStatus,
    ResultStage, RetriedAttempt, ShadowDecision, UnknownOutcomeInfo,
};
pub use steadfast_core::dedupe::{DeliveryReceipt, ReplayReason};
pub use steadfast_core::notification::{
    ApprovalNotification, Notification, NotificationEvent, TrustNotification,
};
pub use steadfast_core::retry::RetryStop;
pub use steadfast_executor::{
    CallEnd, CallMinute, CallSeries, CallStep, CallTally, CallTrace, EngineEvent, NoticeContext,
    RejectedCall, StepTone, SystemEvent, TurnContext, TurnSpan,
};
pub use steadfast_store::StoreEvent;
pub use steadfast_telemetry::{FeedEvent, FeedItem, OtlpError};

/// A listener for everything that happens. [`SteadfastBuilder::listener`](crate::SteadfastBuilder::listener) adds it to
/// an instance, and [`CallOptions::listener`](crate::call::CallOptions) to a single call.
///
/// ```
/// use steadfast::telemetry::{CallNotice, EngineListener, NoticeContext};
///
/// /// Prints each change of a circuit breaker.
/// struct BreakerPrinter;
///
/// impl EngineListener for BreakerPrinter {
///     fn notice(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
///         if let CallNotice::BreakerChanged { transition, .. } = notice {
///             println!("{}: {:?} to {:?}", about.request.tool, transition.from, transition.to);
///         }
///     }
/// }
/// ```
pub use steadfast_executor::EngineListener;

/// The last calls of this process. [`Steadfast::recent`](crate::Steadfast::recent) returns those of an instance.
///
/// ```
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// steadfast.call("clock/now").run(async |_: Attempt| Ok::<_, ToolFault>(12)).await?;
/// let figures = steadfast.recent().series(steadfast.engine().now());
/// assert_eq!(figures.since_start.successes, 1);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::RecentActivity;

/// The events of an instance for readers that come and go, such as a dashboard.
///
/// ```
/// use steadfast::telemetry::FeedItem;
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let mut reader = steadfast.telemetry().feed().read(None);
/// steadfast.call("clock/now").run(async |_: Attempt| Ok::<_, ToolFault>(12)).await?;
/// let FeedItem::Event(event) = reader.next().await else { panic!("no event was missed") };
/// println!("{}: {}", event.event, event.text);
/// # Ok(())
/// # }
/// ```
pub use steadfast_telemetry::Feed;

/// A reader of a [`Feed`], which has an example.
pub use steadfast_telemetry::FeedReader;

/// The metrics of an instance. [`Steadfast::metrics`](crate::Steadfast::metrics) also counts the records of the store.
///
/// ```
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let text = steadfast.telemetry().metrics().encode();
/// assert!(text.starts_with("# HELP"));
/// # Ok(())
/// # }
/// ```
pub use steadfast_telemetry::Metrics;

/// The logs, metrics and spans of an instance. [`Steadfast::telemetry`](crate::Steadfast::telemetry) returns it.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::telemetry::Telemetry;
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let telemetry: &Arc<Telemetry> = steadfast.telemetry();
/// println!("{telemetry:?}");
/// # Ok(())
/// # }
/// ```
pub use steadfast_telemetry::Telemetry;

/// Destination of the log. The configuration sets its level and format.
///
/// ```
/// use steadfast::telemetry::LogOutput;
///
/// let file = std::io::sink();
/// println!("{:?}", LogOutput::To(Box::new(file)));
/// ```
pub enum LogOutput {
    /// No log: a library does not write to the streams of its program unasked.
    Disabled,
    /// The standard error stream.
    Stderr,
    /// A custom writer.
    To(Box<dyn Write + Send>),
}

impl fmt::Debug for LogOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "Disabled",
            Self::Stderr => "Stderr",
            Self::To(_) => "To",
        })
    }
}

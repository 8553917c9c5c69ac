//! Logs, metrics, events and listeners.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use steadfast::call::CallResult;
//! use steadfast::telemetry::{EngineListener, LogOutput, NoticeContext};
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

pub use steadfast_executor::{
    CallStep, EngineEvent, EngineListener, NoticeContext, RecentActivity, RejectedCall, SystemEvent,
    TurnContext, TurnSpan,
};
pub use steadfast_telemetry::{
    Feed, FeedEvent, FeedItem, FeedReader, LogLineFormat, LogLineLevel, LogSink, Metrics, Telemetry,
};

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

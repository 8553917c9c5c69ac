//! Telemetry: logs, metrics and spans.
//!
//! [`Telemetry`] listens to an engine. One exhaustive match (`mapping`) defines for every notice what is logged,
//! counted and traced. A new notice in the core needs a new arm there. All output is redacted, limited in size and
//! number, and never waited for.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use steadfast_executor::Engine;
//! use steadfast_telemetry::{LogLineFormat, LogLineLevel, LogSink, Options, OtlpOptions, Telemetry};
//!
//! let telemetry = Arc::new(Telemetry::start(Options {
//!     logs: Some(LogSink::to_stderr(LogLineLevel::Info, LogLineFormat::Json)?),
//!     otlp: Some(OtlpOptions::to("http://127.0.0.1:4318")),
//!     ..Options::default()
//! })?);
//! let engine = Engine::builder().listener(telemetry.clone()).start().await;
//! # drop(engine);
//! print!("{}", telemetry.metrics().encode());
//! # Ok(())
//! # }
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `mapping` | logs, metrics and spans of each notice of a call |
//! | `turns` | the same for turns |
//! | `outside_calls` | the same for events outside calls |
//! | `logs` | log lines, and `tracing` events as lines |
//! | `feed` | the same lines for readers that come and go |
//! | `malformed` | the log of malformed calls, by model |
//! | `metrics` | the catalogue of metrics, the registry, the census of a store |
//! | `spans`, `ids`, `otlp` | spans from notices and traces; spans with given ids; push of spans and metrics |
//! | `labels`, `standing`, `calls` | bounded state of tools and of open calls |
//! | `words` | names in logs, labels and spans |

mod calls;
mod feed;
mod ids;
mod labels;
mod log_throttle;
mod logs;
mod malformed;
mod mapping;
mod metrics;
mod names;
mod otlp;
mod outside_calls;
mod spans;
#[cfg(test)]
mod tests;
mod tool_status;
mod turns;

use std::fmt;
use std::time::Duration;

pub use feed::{Feed, FeedEvent, FeedItem, FeedReader};
pub use logs::{InvalidLogLineLevel, LogLayer, LogLineFormat, LogLineLevel, LogSink};
pub use malformed::MalformedCallLog;
pub use metrics::{
    CATALOGUE, InvalidNamespace, MetricDescription, MetricKind, Metrics, Namespace, StoreCensus, reference,
};
pub use otlp::{OtlpError, OtlpOptions};

use crate::calls::OpenCalls;
use crate::log_throttle::LogThrottle;
use crate::otlp::OtlpExporters;
use crate::spans::CallTracer;

/// Options of telemetry.
#[derive(Debug)]
pub struct Options {
    /// The prefix of metric names.
    pub namespace: Namespace,
    /// The most tools with metrics of their own. Further ones are counted together. Each has some hundred series.
    pub most_tools: usize,
    /// The log output, if any.
    pub logs: Option<LogSink>,
    /// The collector that spans and metrics are pushed to, if any.
    pub otlp: Option<OtlpOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self { namespace: Namespace::default(), most_tools: 500, logs: None, otlp: None }
    }
}

/// A listener of engines that writes logs, metrics and spans.
pub struct Telemetry {
    logs: Option<LogSink>,
    feed: Feed,
    metrics: Metrics,
    spans: Option<CallTracer>,
    otlp: Option<OtlpExporters>,
    calls: OpenCalls,
    store_failures: LogThrottle,
}

impl Telemetry {
    /// Starts telemetry.
    pub fn start(options: Options) -> Result<Self, OtlpError> {
        let otlp = options.otlp.as_ref().map(OtlpExporters::start).transpose()?;
        let meter = otlp.as_ref().map(OtlpExporters::meter);
        Ok(Self {
            logs: options.logs,
            feed: Feed::default(),
            metrics: Metrics::new(&options.namespace, options.most_tools, meter.as_ref()),
            spans: otlp.as_ref().map(OtlpExporters::spans),
            otlp,
            calls: OpenCalls::default(),
            store_failures: LogThrottle::default(),
        })
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the event feed.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Writes and pushes the remaining data, within the limit. This blocks, so do not call it on a thread that others
    /// wait for.
    pub fn shutdown(&self, limit: Duration) {
        if let Some(otlp) = &self.otlp {
            otlp.shutdown(limit);
        }
        if let Some(logs) = &self.logs {
            logs.flush(limit);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("logs", &self.logs)
            .field("spans", &self.spans.is_some())
            .finish_non_exhaustive()
    }
}

//! Pushing spans and metrics to a collector: OTLP as protobuf over HTTP.
//!
//! Exports happen on threads of the OpenTelemetry SDK, in batches from bounded queues; what does not fit is left
//! out and told of in the log.

mod client;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use steadfast_core::redact::Redacted;

use self::client::Client;
use crate::ids::Ids;
use crate::spans::Spans;

/// Where spans and metrics are pushed to.
#[derive(Clone, Debug)]
pub struct OtlpOptions {
    /// The collector, for example `http://127.0.0.1:4318`. Plain HTTP: a collector on this machine or in this
    /// network passes things on over TLS.
    pub endpoint: String,
    /// Headers that the collector wants, for example for access.
    pub headers: Vec<(String, Redacted<String>)>,
    /// What this process is called there.
    pub service_name: String,
    /// How often metrics are pushed.
    pub metrics_every: Duration,
}

impl OtlpOptions {
    /// A collector, with everything else at its default.
    pub fn to(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            headers: Vec::new(),
            service_name: "steadfast".to_owned(),
            metrics_every: Duration::from_secs(60),
        }
    }
}

/// Why nothing can be pushed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OtlpError {
    /// The address is not one of a collector.
    Endpoint(&'static str),
    /// The exporter did not want it.
    Exporter(ExporterBuildError),
}

impl fmt::Display for OtlpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(why) => write!(f, "the OTLP endpoint {why}; write it as http://127.0.0.1:4318"),
            Self::Exporter(error) => write!(f, "OTLP cannot be set up: {error}"),
        }
    }
}

impl std::error::Error for OtlpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Endpoint(_) => None,
            Self::Exporter(error) => Some(error),
        }
    }
}

impl OtlpOptions {
    /// Says why nothing could be pushed to the collector, as far as its address shows.
    pub fn check(&self) -> Result<(), OtlpError> {
        Client::new(&self.endpoint).map(|_| ())
    }
}

/// What pushes.
#[derive(Debug)]
pub(crate) struct Otlp {
    tracers: SdkTracerProvider,
    meters: SdkMeterProvider,
}

impl Otlp {
    pub(crate) fn start(options: &OtlpOptions) -> Result<Self, OtlpError> {
        let client = Arc::new(Client::new(&options.endpoint)?);
        let headers: HashMap<String, String> =
            options.headers.iter().map(|(name, value)| (name.clone(), value.expose().clone())).collect();
        let at = |path: &str| format!("{}{path}", options.endpoint.trim_end_matches('/'));
        let resource = Resource::builder()
            .with_service_name(options.service_name.clone())
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let spans = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(at("/v1/traces"))
            .with_timeout(client::TIMEOUT)
            .with_headers(headers.clone())
            .with_shared_http_client(client.clone())
            .build()
            .map_err(OtlpError::Exporter)?;
        let metrics = MetricExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(at("/v1/metrics"))
            .with_timeout(client::TIMEOUT)
            .with_headers(headers)
            .with_shared_http_client(client)
            .build()
            .map_err(OtlpError::Exporter)?;
        let reader = PeriodicReader::builder(metrics).with_interval(options.metrics_every).build();
        Ok(Self {
            tracers: SdkTracerProvider::builder()
                .with_resource(resource.clone())
                .with_id_generator(Ids::default())
                .with_batch_exporter(spans)
                .build(),
            meters: SdkMeterProvider::builder().with_resource(resource).with_reader(reader).build(),
        })
    }

    pub(crate) fn spans(&self) -> Spans {
        Spans::new(self.tracers.tracer(SCOPE))
    }

    pub(crate) fn meter(&self) -> opentelemetry::metrics::Meter {
        self.meters.meter(SCOPE)
    }

    /// Pushes what is left, within the limit.
    pub(crate) fn shutdown(&self, limit: Duration) {
        let began = Instant::now();
        // What fails here is told by the SDK itself, in the log.
        let _ = self.tracers.shutdown_with_timeout(limit);
        let _ = self.meters.shutdown_with_timeout(limit.saturating_sub(began.elapsed()));
    }
}

/// Who made the spans and metrics.
const SCOPE: &str = "steadfast";

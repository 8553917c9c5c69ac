//! Push of spans and metrics to a collector: OTLP as protobuf over HTTP.
//!
//! Exports run on threads of the OpenTelemetry SDK, in batches from bounded queues. Excess data is dropped and
//! reported in the log.

mod client;

use std::collections::HashMap;
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
use steadfast_mcp::http::upstream::InvalidServerUrl;
use steadfast_redact::Redacted;

use self::client::OtlpClient;
use crate::ids::SpanIdGenerator;
use crate::spans::CallTracer;

/// Options of the push to a collector.
#[derive(Clone, Debug)]
pub struct OtlpOptions {
    /// The URL of the collector, for example `http://127.0.0.1:4318` or `https://collector.example`.
    pub endpoint: String,
    /// Headers that the collector requires, for example for authorization.
    pub headers: Vec<(String, Redacted<String>)>,
    /// The service name of this process.
    pub service_name: String,
    /// Interval at which metrics are pushed.
    pub metrics_every: Duration,
}

impl OtlpOptions {
    /// Returns the options for a collector, with defaults for everything else.
    pub fn to(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            headers: Vec::new(),
            service_name: "steadfast".to_owned(),
            metrics_every: Duration::from_secs(60),
        }
    }
}

/// The reason why nothing can be pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The URL of the collector cannot be used.
    #[error("the OTLP endpoint cannot be used: {0}; write it as http://127.0.0.1:4318")]
    Endpoint(#[source] InvalidServerUrl),
    /// The URL of the collector has a query.
    #[error("the OTLP endpoint cannot have a query; write it as http://127.0.0.1:4318")]
    Query,
    /// The exporter could not be created.
    #[error("OTLP cannot be set up: {0}")]
    Exporter(#[source] ExporterBuildError),
}

impl OtlpOptions {
    /// Returns the reason why nothing could be pushed, as far as the URL shows it.
    pub fn check(&self) -> Result<(), OtlpError> {
        OtlpClient::new(&self.endpoint).map(|_| ())
    }
}

/// The exporters.
#[derive(Debug)]
pub(crate) struct OtlpExporters {
    tracers: SdkTracerProvider,
    meters: SdkMeterProvider,
}

impl OtlpExporters {
    pub(crate) fn start(options: &OtlpOptions) -> Result<Self, OtlpError> {
        let client = Arc::new(OtlpClient::new(&options.endpoint)?);
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
                .with_id_generator(SpanIdGenerator::default())
                .with_batch_exporter(spans)
                .build(),
            meters: SdkMeterProvider::builder().with_resource(resource).with_reader(reader).build(),
        })
    }

    pub(crate) fn spans(&self) -> CallTracer {
        CallTracer::new(self.tracers.tracer(SCOPE))
    }

    pub(crate) fn meter(&self) -> opentelemetry::metrics::Meter {
        self.meters.meter(SCOPE)
    }

    /// Pushes the remaining data, within the limit.
    pub(crate) fn shutdown(&self, limit: Duration) {
        let began = Instant::now();
        // The SDK itself logs a failure.
        let _ = self.tracers.shutdown_with_timeout(limit);
        let _ = self.meters.shutdown_with_timeout(limit.saturating_sub(began.elapsed()));
    }
}

/// The instrumentation scope of spans and metrics.
const SCOPE: &str = "steadfast";

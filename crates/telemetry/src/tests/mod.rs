//! Tests of telemetry as its users see it.

mod engine;
mod mapping;
mod operating;
mod push;
mod secrets;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use parking_lot::Mutex;
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::{CallRequest, CallerKeyScope, CallerPatience, EqualCallPolicy, IntakeContext};
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::dedupe::ProcessIdentity;
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::id::RunId;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{CallPolicy, PolicyProfile, ToolClass};
use steadfast_executor::{Engine, RuntimeClock, ToolResult};
use steadfast_json::RawJson;

use crate::ids::SpanIdGenerator;
use crate::logs::tests::CapturedOutput;
use crate::spans::CallTracer;
use crate::{LogLineFormat, LogLineLevel, LogSink, Options, Telemetry};

/// Time limit for the threads that write and push. Only one that hangs reaches it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Telemetry whose lines and spans can be read.
struct TestTelemetry {
    telemetry: Arc<Telemetry>,
    paper: CapturedOutput,
    spans: SpanCollector,
}

impl TestTelemetry {
    fn new() -> Self {
        let (paper, spans) = (CapturedOutput::default(), SpanCollector::default());
        let logs = LogSink::to(paper.clone(), LogLineLevel::Trace, LogLineFormat::Json).unwrap();
        let options = Options { logs: Some(logs), most_tools: 3, ..Options::default() };
        let mut telemetry = Telemetry::start(options).unwrap();
        let provider = SdkTracerProvider::builder()
            .with_id_generator(SpanIdGenerator::default())
            .with_simple_exporter(spans.clone())
            .build();
        telemetry.spans = Some(CallTracer::new(provider.tracer("test")));
        Self { telemetry: Arc::new(telemetry), paper, spans }
    }

    async fn engine(&self, policy: CallPolicy) -> Engine {
        Engine::builder()
            .clock(Arc::new(RuntimeClock::new()))
            .policies(Arc::new(policy))
            .listener(self.telemetry.clone())
            .start()
            .await
    }

    fn text(&self) -> String {
        assert!(self.telemetry.logs.as_ref().unwrap().flush(TEST_TIMEOUT));
        self.paper.text()
    }

    fn lines(&self) -> Vec<serde_json::Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the lines with this name.
    fn lines_named(&self, event: &str) -> Vec<serde_json::Value> {
        self.lines().into_iter().filter(|line| line["event"] == event).collect()
    }

    fn metrics(&self) -> String {
        self.telemetry.metrics().encode()
    }

    fn assert_counted(&self, line: &str) {
        let metrics = self.metrics();
        assert!(metrics.lines().any(|counted| counted == line), "no {line} in\n{metrics}");
    }
}

/// Records the spans that ended.
#[derive(Clone, Debug, Default)]
struct SpanCollector(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for SpanCollector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

impl SpanCollector {
    fn all(&self) -> Vec<SpanData> {
        self.0.lock().clone()
    }

    fn named(&self, name: &str) -> Vec<SpanData> {
        self.all().into_iter().filter(|span| span.name == name).collect()
    }
}

fn standard(class: ToolClass) -> CallPolicy {
    PolicyProfile::Standard.policy(class)
}

/// A call of `bank/pay` with a key.
fn pay(amount: u32, key: &str) -> CallEnvelope {
    parse(&format!(
        r#"{{"contractVersion":"1.1","requestId":"req-{amount}","toolName":"pay","toolNamespace":"bank",
            "target":{{"sessionKey":"session-1","actorId":"ann","correlationId":"corr-1"}},
            "payload":{{"version":"1.0","params":{{"amount":{amount}}},"idempotencyKey":"{key}"}}}}"#
    ))
}

fn parse(text: &str) -> CallEnvelope {
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn request(envelope: &CallEnvelope, policy: &CallPolicy) -> CallRequest {
    let intake = IntakeContext {
        process: &ProcessIdentity { boot: "boot".into(), pid: 1, started: 1 },
        number: 1,
        run: &RunId("run-1".into()),
        channel: ApprovalChannel::Headless,
        hook_key: None,
        in_turn: false,
        equal_calls: EqualCallPolicy::Separate,
        call_id: None,
        keys_of: CallerKeyScope::Conversation,
        waits: CallerPatience::MayGiveUp,
        continuation: None,
        trace: None,
        input_schema: None,
    };
    let params = CallRequest::params(envelope).unwrap();
    CallRequest::from_params(envelope, params.root(), policy, intake)
}

fn paid() -> ToolResult {
    Ok(ToolOutput { content: RawJson::from_trusted("\"paid\""), metadata: None })
}

fn reset() -> ToolResult {
    let source = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
    Err(AttemptFault::new(source, "connection reset").into())
}

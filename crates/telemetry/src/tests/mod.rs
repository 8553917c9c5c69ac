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
use steadfast_core::approval::Channel;
use steadfast_core::call::{EqualCalls, Intake, KeysOf, Request, Waits};
use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::dedupe::{Process, RunId};
use steadfast_core::envelope::{CallEnvelope, UnknownFields};
use steadfast_core::output::{Output, RawJson};
use steadfast_core::policy::{Policy, Profile, ToolClass};
use steadfast_executor::{Answer, Engine, RuntimeClock};

use crate::ids::Ids;
use crate::logs::tests::Paper;
use crate::spans::Spans;
use crate::{Format, Level, Logs, Options, Telemetry};

/// Time limit for the threads that write and push. Only one that hangs reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Telemetry whose lines and spans can be read.
struct Heard {
    telemetry: Arc<Telemetry>,
    paper: Paper,
    spans: Exported,
}

impl Heard {
    fn new() -> Self {
        let (paper, spans) = (Paper::default(), Exported::default());
        let logs = Logs::to(paper.clone(), Level::Trace, Format::Json).unwrap();
        let options = Options { logs: Some(logs), most_tools: 3, ..Options::default() };
        let mut telemetry = Telemetry::start(options).unwrap();
        let provider = SdkTracerProvider::builder()
            .with_id_generator(Ids::default())
            .with_simple_exporter(spans.clone())
            .build();
        telemetry.spans = Some(Spans::new(provider.tracer("test")));
        Self { telemetry: Arc::new(telemetry), paper, spans }
    }

    async fn engine(&self, policy: Policy) -> Engine {
        Engine::builder()
            .clock(Arc::new(RuntimeClock::new()))
            .policies(Arc::new(policy))
            .listener(self.telemetry.clone())
            .start()
            .await
    }

    fn text(&self) -> String {
        assert!(self.telemetry.logs.as_ref().unwrap().flush(PATIENCE));
        self.paper.text()
    }

    fn lines(&self) -> Vec<serde_json::Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the lines with this name.
    fn told(&self, event: &str) -> Vec<serde_json::Value> {
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
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

impl Exported {
    fn all(&self) -> Vec<SpanData> {
        self.0.lock().clone()
    }

    fn named(&self, name: &str) -> Vec<SpanData> {
        self.all().into_iter().filter(|span| span.name == name).collect()
    }
}

fn standard(class: ToolClass) -> Policy {
    Profile::Standard.policy(class)
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
    CallEnvelope::parse(text.as_bytes(), UnknownFields::Refuse).unwrap()
}

fn request(envelope: &CallEnvelope, policy: &Policy) -> Request {
    let intake = Intake {
        process: &Process { boot: "boot".into(), pid: 1, started: 1 },
        number: 1,
        run: &RunId("run-1".into()),
        channel: Channel::Headless,
        hook_key: None,
        in_turn: false,
        equal_calls: EqualCalls::Apart,
        call_id: None,
        keys_of: KeysOf::Conversation,
        waits: Waits::NotForLong,
        continuation: None,
        trace: None,
        input_schema: None,
    };
    let params = Request::params(envelope).unwrap();
    Request::from_params(envelope, params.root(), policy, intake)
}

fn paid() -> Answer {
    Ok(Output { content: RawJson::from_trusted("\"paid\""), metadata: None })
}

fn reset() -> Answer {
    let source = Source::Transport { error: Transport::ConnectionReset, written: true };
    Err(Fault::new(source, "connection reset").into())
}

//! Planted secrets, and all the outputs that must not contain them.

use steadfast_core::classify::FaultSource;
use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, ToolFault};
use steadfast_redact::Redacted;

use super::*;
use crate::OtlpOptions;

const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
const KEY: &str = "order-of-ann-4711";
const SECRETS: [&str; 8] = [
    TOKEN,
    "16C7e42F",
    "hunter2",
    KEY,
    "baggage-of-ann",
    "s3cr3t-pass",
    "sk-live-51Habcdefghijkl",
    "content-of-ann",
];

/// A call with a secret in every place that can contain one.
fn leaky() -> CallEnvelope {
    parse(&format!(
        r#"{{"contractVersion":"1.1","requestId":"req-{TOKEN}","toolName":"pay-{TOKEN}","toolNamespace":"bank",
            "toolCallId":"{TOKEN}",
            "target":{{"sessionKey":"session {TOKEN}","actorId":"ann","correlationId":"Bearer {TOKEN}","turnId":"{TOKEN}"}},
            "payload":{{"version":"1.0","idempotencyKey":"{KEY}","params":{{
                "password":"hunter2","token":"{TOKEN}","url":"https://me:s3cr3t-pass@host/","text":"content-of-ann"}}}},
            "control":{{"requestTags":["{TOKEN}"]}},
            "trace":{{"traceparent":"{TOKEN}","baggage":{{"who":"baggage-of-ann","key":"{TOKEN}"}}}}}}"#
    ))
}

/// A tool that fails with secrets in its error, then succeeds with secrets in its result.
fn leaky_tool(
    fault: FaultSource,
) -> impl Fn(Attempt) -> std::future::Ready<ToolResult> + Send + Sync + 'static {
    move |attempt: Attempt| {
        let message =
            format!("Authorization: Bearer {TOKEN} rejected, password=hunter2, sk-live-51Habcdefghijkl");
        std::future::ready(if attempt.number < 2 {
            let output = ToolOutput { content: RawJson::string(&message), metadata: None };
            Err(ToolFault { fault: AttemptFault::new(fault.clone(), message), output: Some(output) }.into())
        } else {
            Ok(ToolOutput { content: RawJson::string("content-of-ann"), metadata: None })
        })
    }
}

fn assert_clean(text: &str, place: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in the {place}:\n{text}");
    }
}

async fn make_calls(engine: &Engine) {
    let transient = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
    for fault in [
        transient,
        FaultSource::Http { status: 401 },
        FaultSource::IsError,
        FaultSource::Tool,
        FaultSource::Panic,
    ] {
        engine.call(leaky(), leaky_tool(fault)).await;
        engine.call(leaky(), async |_: Attempt| -> ToolResult { panic!("panicked with {TOKEN}") }).await;
    }
    let mut other = leaky();
    other.payload.params = RawJson::from_trusted(r#"{"password":"hunter2"}"#);
    engine.call(other, async |_: Attempt| paid()).await;
}

#[tokio::test(start_paused = true)]
async fn tr_15_planted_secrets_are_in_no_log_line_metric_or_span() {
    let harness = TestTelemetry::new();
    for class in [ToolClass::Idempotent, ToolClass::ReadOnly, ToolClass::Mutating] {
        make_calls(&harness.engine(standard(class)).await).await;
    }
    let (log, metrics) = (harness.text(), harness.metrics());
    assert!(log.lines().count() > 30 && metrics.contains("bank/pay"), "there is something to look at");
    assert_clean(&log, "log");
    assert_clean(&metrics, "metrics");
    let spans = harness.spans.all();
    assert!(spans.len() > 10);
    assert_clean(&format!("{spans:?}"), "spans");
    let conflict = harness.lines_named("tool_call_conflict");
    assert!(!conflict.is_empty(), "the conflict is told, and its key as a fingerprint");
    assert_eq!(conflict[0]["idempotencyKeyHash"].as_str().map(str::len), Some(12));
}

#[tokio::test]
async fn sf_6_planted_secrets_are_pushed_only_in_the_configured_headers() {
    let (endpoint, pushes) = push::collector();
    let headers = vec![("authorization".to_owned(), Redacted::new("Basic of-the-collector".to_owned()))];
    let otlp = OtlpOptions { headers, ..OtlpOptions::to(endpoint) };
    assert!(!format!("{otlp:?}").contains("of-the-collector"));
    let telemetry = Arc::new(Telemetry::start(Options { otlp: Some(otlp), ..Options::default() }).unwrap());
    let engine = Engine::builder().listener(telemetry.clone()).start().await;
    make_calls(&engine).await;
    telemetry.shutdown(TEST_TIMEOUT);
    let pushed = pushes.try_iter().map(|(head, body)| head + &String::from_utf8_lossy(&body));
    let text: String = pushed.collect();
    assert!(text.contains("tool_execution") && text.contains("steadfast_tool_calls"), "{text}");
    assert!(text.contains("authorization: Basic of-the-collector"), "{text}");
    assert_clean(&text, "pushed bytes");
}

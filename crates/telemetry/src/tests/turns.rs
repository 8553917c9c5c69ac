//! Tests of turns as they are observed.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use opentelemetry::trace::{SpanId, Status, TraceId};
use opentelemetry::{Key, Value};
use steadfast_core::envelope::{CallerIdentity, EnvelopeTrace};
use steadfast_core::{Timestamp, millis};
use steadfast_executor::{Attempt, ResolvedTool, ToolRegistry, TurnOptions, TurnResponse, TurnTraceView};
use steadfast_turn::trace::TraceSpan;
use steadfast_turn::{TurnLimits, TurnPlan};

use super::*;
use crate::{OtlpOptions, names};

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

/// Tools that behave as their names say.
struct TurnTestTools;

impl ToolRegistry for TurnTestTools {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        let name = envelope.tool_name.to_string();
        let found = ResolvedTool::new(move |attempt: Attempt| {
            let name = name.clone();
            async move {
                match name.as_str() {
                    "resets" => reset(),
                    "resets_once" if attempt.number == 1 => reset(),
                    "refuses" => {
                        let message = format!("no such place, password=hunter2 {TOKEN}");
                        Err(AttemptFault::new(FaultSource::Http { status: 400 }, message).into())
                    }
                    "hangs" => std::future::pending().await,
                    _ => paid(),
                }
            }
        });
        Box::pin(async move { Some(found) })
    }
}

fn plan(text: &str) -> Arc<TurnPlan> {
    Arc::new(TurnPlan::parse(text.as_bytes(), &TurnLimits::DEFAULT).unwrap())
}

fn target() -> CallerIdentity {
    let mut target = pay(1, "k").target;
    target.tenant_id = Some(steadfast_core::id::TenantId::new("acme").unwrap());
    target
}

pub(super) async fn turn(engine: &Engine, traceparent: Option<&str>, text: &str) -> TurnResponse {
    let traceparent = traceparent.map(str::to_owned);
    let options = TurnOptions {
        trace: EnvelopeTrace { traceparent, ..EnvelopeTrace::default() },
        ..TurnOptions::of(target())
    };
    engine.turn(plan(text), Arc::new(TurnTestTools), options).await.unwrap()
}

async fn trace_of(engine: &Engine, turned: &TurnResponse) -> TurnTraceView {
    engine.turn_trace(&turned.trace.to_string()).await.unwrap().unwrap()
}

fn attribute(span: &SpanData, name: &'static str) -> Option<Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key == Key::from_static_str(name));
    found.map(|found| found.value.clone())
}

/// Returns the events of a span, by name and text.
fn events(span: &SpanData) -> Vec<(String, String)> {
    let sentence = |event: &opentelemetry::trace::Event| {
        let found = event.attributes.iter().find(|attribute| attribute.key.as_str() == "sentence");
        found.unwrap().value.to_string()
    };
    span.events.iter().map(|event| (event.name.to_string(), sentence(event))).collect()
}

pub(super) const TRIP: &str = r#"{"turnId":"trip","calls":[{"id":"f","tool":"t/resets_once"},
    {"id":"h","tool":"t/refuses","required":false},{"id":"i","tool":"t/works","dependsOn":["f"]}]}"#;

#[tokio::test(start_paused = true)]
async fn eh_6_6_the_spans_of_a_turn_have_the_ids_and_the_events_of_its_trace() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let turned = turn(&engine, Some(CALLER), TRIP).await;
    let trace_view = trace_of(&engine, &turned).await;
    assert_eq!(trace_view.spans.len(), 4, "{:#?}", trace_view.spans);
    let spans: BTreeMap<[u8; 8], SpanData> = [harness.spans.named("turn"), harness.spans.named("turn_call")]
        .concat()
        .into_iter()
        .map(|span| (span.span_context.span_id().to_bytes(), span))
        .collect();
    assert_eq!(spans.len(), 4);
    for recorded in &trace_view.spans {
        let span = &spans[&recorded.span_id.to_bytes()];
        assert_eq!(
            span.span_context.trace_id(),
            TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap()
        );
        assert_eq!(
            Some(span.parent_span_id.to_bytes()),
            recorded.parent_span_id.map(|parent| parent.to_bytes())
        );
        let at = |time: std::time::SystemTime| {
            Timestamp::from_millis(millis(time.duration_since(std::time::UNIX_EPOCH).unwrap()))
        };
        assert_eq!((at(span.start_time), Some(at(span.end_time))), (recorded.started_at, recorded.ended_at));
        let of_it = trace_view.events.iter().filter(|event| event.span_id == Some(recorded.span_id));
        let of_it: Vec<_> = of_it
            .map(|event| (names::turn_event(event.event_type).to_owned(), event.sentence.clone()))
            .collect();
        assert_eq!(events(span), of_it);
        let is_call = recorded.call_id.is_some();
        assert_eq!(span.name, if is_call { "turn_call" } else { "turn" });
        assert_eq!(attribute(span, "turn.id"), Some("trip".into()));
        let id = recorded.call_id.as_ref().map(|id| id.to_string().into());
        assert_eq!(attribute(span, "call.id"), id);
    }

    let root = &harness.spans.named("turn")[0];
    assert_eq!(root.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap(), "the caller's");
    assert_eq!(attribute(root, "status"), Some("partial".into()));
    assert_eq!(attribute(root, "turn.calls"), Some(3.into()));
    assert_eq!(attribute(root, "turn.escalated"), Some(turned.result.escalated.into()));
    assert_eq!(attribute(root, "turn.summary"), Some(turned.result.summary.clone().into()));
    assert_eq!(root.status, Status::Unset);

    let named = |name: &'static str| {
        let of = |span: &SpanData| attribute(span, "tool.name") == Some(name.into());
        (
            harness.spans.named("turn_call").into_iter().find(of).unwrap(),
            harness.spans.named("tool_execution").into_iter().find(of).unwrap(),
        )
    };
    for (name, error) in [("resets_once", None), ("refuses", Some("tool_error")), ("works", None)] {
        let (call, execution) = named(name);
        assert_eq!(execution.parent_span_id, call.span_context.span_id(), "{name}");
        assert_eq!(attribute(&call, "request.id"), attribute(&execution, "request.id"));
        assert_eq!(attribute(&call, "tool.namespace"), Some("t".into()));
        assert_eq!(attribute(&call, "error.type"), error.map(Value::from), "{name}");
        assert_eq!(call.status, error.map_or(Status::Unset, Status::error), "{name}");
    }
}

#[tokio::test]
async fn eh_6_6_the_collector_is_pushed_the_ids_of_the_trace() {
    let (endpoint, pushed) = push::collector();
    let options = Options { otlp: Some(OtlpOptions::to(endpoint)), ..Options::default() };
    let telemetry = Arc::new(Telemetry::start(options).unwrap());
    let engine = Engine::builder().listener(telemetry.clone()).start().await;
    let turned = turn(&engine, None, r#"{"calls":[{"id":"a","tool":"t/works"}]}"#).await;
    telemetry.shutdown(TEST_TIMEOUT);
    let trace_view = trace_of(&engine, &turned).await;
    let spans: Vec<Vec<u8>> =
        pushed.try_iter().filter(|(head, _)| head.contains("/v1/traces")).map(|(_, body)| body).collect();
    let is_pushed =
        |bytes: &[u8]| spans.iter().any(|body| body.windows(bytes.len()).any(|part| part == bytes));
    let [root, call] = &trace_view.spans[..] else { panic!("{:?}", trace_view.spans) };
    assert!(is_pushed(&beginning(&trace_view, root, None, "turn")));
    assert!(is_pushed(&beginning(&trace_view, call, Some(root), "turn_call")));
    assert!(
        !is_pushed(&beginning(&trace_view, call, None, "turn_call")),
        "the bytes that are looked for mean something"
    );
}

/// Returns the start of a span in protobuf: the trace, its id, its parent, its name.
fn beginning(
    trace_view: &TurnTraceView,
    span: &TraceSpan,
    parent: Option<&TraceSpan>,
    name: &str,
) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| [&[tag, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    [
        field(0x0a, &trace_view.turn.trace_id.to_bytes()),
        field(0x12, &span.span_id.to_bytes()),
        parent.map_or_else(Vec::new, |parent| field(0x22, &parent.span_id.to_bytes())),
        field(0x2a, name.as_bytes()),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_at_the_same_time_keep_their_spans_apart_also_in_one_trace() {
    const TURNS: usize = 40;
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let mut turns = tokio::task::JoinSet::new();
    for number in 0..TURNS {
        let engine = engine.clone();
        turns.spawn(async move {
            let text = format!(
                r#"{{"turnId":"t{number}","calls":[{{"id":"a","tool":"t{number}/works"}},
                    {{"id":"b","tool":"t{number}/works","params":{{"of":2}}}},
                    {{"id":"c","tool":"t{number}/works","dependsOn":["a"],"params":{{"of":3}}}}]}}"#
            );
            turn(&engine, Some(CALLER).filter(|_| number % 2 == 0), &text).await;
            // A call outside the turn has a span as well, with a random id.
            engine
                .call(pay(u32::try_from(number).unwrap(), &format!("k{number}")), async |_: Attempt| paid())
                .await;
        });
    }
    while let Some(turned) = turns.join_next().await {
        turned.unwrap();
    }
    let all = harness.spans.all();
    let ids: BTreeSet<_> = all.iter().map(|span| span.span_context.span_id().to_bytes()).collect();
    assert_eq!(ids.len(), all.len(), "no id is given twice");
    let (roots, calls, executions) = (
        harness.spans.named("turn"),
        harness.spans.named("turn_call"),
        harness.spans.named("tool_execution"),
    );
    assert_eq!((roots.len(), calls.len(), executions.len()), (TURNS, 3 * TURNS, 4 * TURNS));
    let trace = |span: &SpanData| span.span_context.trace_id();
    let by_id = |id: SpanId| calls.iter().chain(&roots).find(|span| span.span_context.span_id() == id);
    for call in &calls {
        let root = by_id(call.parent_span_id).unwrap();
        assert_eq!(attribute(root, "turn.id"), attribute(call, "turn.id"));
        assert_eq!(attribute(call, "tool.namespace"), attribute(call, "turn.id"));
        assert_eq!(trace(root), trace(call));
        assert_eq!(events(call).len(), 2, "it began and it ended: {:?}", events(call));
    }
    for execution in executions.iter().filter(|span| attribute(span, "tool.name") == Some("works".into())) {
        let call = by_id(execution.parent_span_id).unwrap();
        assert_eq!(attribute(call, "tool.namespace"), attribute(execution, "tool.namespace"));
        assert_eq!(trace(call), trace(execution));
    }
    let traces: BTreeSet<_> = roots.iter().map(|root| trace(root).to_bytes()).collect();
    assert_eq!(traces.len(), TURNS / 2 + 1, "the caller's trace, and one for each turn without a caller");
}

#[tokio::test(start_paused = true)]
async fn a_turn_with_an_unsampled_parent_has_no_spans() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    turn(&engine, Some(&CALLER.replace("-01", "-00")), TRIP).await;
    assert!(harness.spans.all().is_empty(), "{:?}", harness.spans.all());
    turn(&engine, Some("00-rubbish-b7ad6b7169203331-01"), TRIP.replace("trip", "other").as_str()).await;
    let roots = harness.spans.named("turn");
    assert_eq!((roots.len(), roots[0].parent_span_id), (1, SpanId::INVALID), "an unreadable caller is none");
}

#[tokio::test(start_paused = true)]
async fn eh_6_1_a_failure_in_a_turn_is_a_line_with_its_error_tool_attempts_decision_and_turn() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let turned = turn(&engine, Some(CALLER), TRIP).await;
    let trace = serde_json::json!(turned.trace);
    for line in harness.lines().iter().filter(|line| line["event"].as_str().unwrap().starts_with("turn_")) {
        assert_eq!((&line["turnId"], &line["tenantId"]), (&"trip".into(), &"acme".into()), "{line}");
        assert_eq!((&line["traceId"], &line["sessionKey"]), (&trace, &"session-1".into()), "{line}");
        assert!(line["message"].as_str().is_some_and(|sentence| !sentence.is_empty()), "{line}");
    }
    let errors = harness.lines_named("turn_tool_error");
    let [retried, refused] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!((&retried["level"], &retried["decision"]), (&"debug".into(), &"RETRY".into()));
    assert_eq!((&retried["toolCallId"], &retried["attempt"]), (&"f".into(), &1.into()));
    let identity =
        ["level", "toolName", "toolNamespace", "toolCallId"].map(|field| refused[field].as_str().unwrap());
    assert_eq!(identity, ["warn", "refuses", "t", "h"]);
    let failure =
        ["errorCode", "nature", "breakerState", "decision"].map(|field| refused[field].as_str().unwrap());
    assert_eq!(failure, ["tool_error", "permanent", "CLOSED", "PARTIAL_SUCCESS"]);
    assert_eq!(refused["attempt"], 1);
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("no such place"), "{error}");
    assert!(refused["message"].as_str().unwrap().starts_with("Tool failed: refuses, "), "{refused}");
    let decided = harness.lines_named("turn_decision");
    assert_eq!(decided[0]["reason"], "transient error, circuit closed, retries available (3 left)");
    assert_eq!(harness.lines_named("turn_tool_retry")[0]["attempt"], 2);

    let started = harness.lines_named("turn_start");
    assert_eq!((started.len(), &started[0]["level"], &started[0]["calls"]), (1, &"info".into(), &3.into()));
    let ends = harness.lines_named("turn_end");
    assert_eq!((ends.len(), &ends[0]["status"], &ends[0]["level"]), (1, &"partial".into(), &"info".into()));
    assert_eq!(ends[0]["message"], turned.result.summary);
    assert!(ends[0]["elapsedMs"].is_u64(), "{}", ends[0]);
    harness.assert_counted("steadfast_turns_total{status=\"partial\"} 1");
    harness.assert_counted("steadfast_turns_total{status=\"completed\"} 0");
    harness.assert_counted("steadfast_turn_duration_seconds_count{status=\"partial\"} 1");
    harness.assert_counted("steadfast_turn_decisions_total{strategy=\"RETRY\"} 1");
    harness.assert_counted("steadfast_turn_decisions_total{strategy=\"PARTIAL_SUCCESS\"} 1");
    harness.assert_counted("steadfast_turn_decisions_total{strategy=\"ESCALATE\"} 0");
}

#[tokio::test(start_paused = true)]
async fn gr_5_another_tool_a_default_a_skipped_call_and_an_escalation_are_logged() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let text = r#"{"calls":[{"id":"f","tool":"t/refuses","alternatives":["t/works"]},
        {"id":"g","tool":"u/refuses","required":false},
        {"id":"h","tool":"t/late","dependsOn":[{"id":"g","default":{"none":true}}]},
        {"id":"i","tool":"v/refuses"},{"id":"j","tool":"t/after","dependsOn":["i"]}]}"#;
    turn(&engine, None, text).await;
    let one = |event: &str| {
        let lines = harness.lines_named(event);
        assert_eq!(lines.len(), 1, "{event}: {lines:?}");
        let line = &lines[0];
        let words = ["level", "toolName", "toolCallId", "message"]
            .map(|field| line[field].as_str().unwrap().to_owned());
        (words, line.clone())
    };
    let (words, line) = one("turn_alternative_used");
    assert_eq!(words, ["info", "works", "f", "Used alternative tool works instead of refuses"]);
    assert_eq!(line["insteadOf"], "refuses");
    let (words, line) = one("turn_default_used");
    assert_eq!(words, ["info", "late", "h", "Used default value for late in place of the output of g"]);
    assert_eq!(line["dependency"], "g");
    let (words, line) = one("turn_tool_skipped");
    let sentence = "Required tool skipped due to dependency failure: after needs i";
    assert_eq!(words, ["warn", "after", "j", sentence]);
    assert_eq!((&line["reason"], &line["need"]), (&"dependency".into(), &"required".into()));
    let ends = harness.lines_named("turn_end");
    assert_eq!((&ends[0]["escalated"], &ends[0]["level"]), (&true.into(), &"warn".into()));
    harness.assert_counted("steadfast_turn_decisions_total{strategy=\"ALTERNATIVE_TOOL\"} 1");
    harness.assert_counted("steadfast_turn_decisions_total{strategy=\"ESCALATE\"} 1");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_timed_out_is_logged_with_its_calls() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let text = r#"{"deadlineMs":4000,"calls":[{"id":"f","tool":"t/hangs"}]}"#;
    turn(&engine, None, text).await;
    let over = harness.lines_named("turn_timeout");
    assert_eq!((&over[0]["level"], &over[0]["timeoutMs"]), (&"warn".into(), &4000.into()));
    assert_eq!(over[0]["message"], "Turn timeout after 4000 ms");
    assert_eq!(harness.lines_named("turn_tool_cancelled").len(), 1);
    assert_eq!(harness.lines_named("turn_end")[0]["elapsedMs"], 4000);
    harness.assert_counted("steadfast_turns_total{status=\"failed\"} 1");
    harness.assert_counted("steadfast_turn_duration_seconds_sum{status=\"failed\"} 4.0");
    harness.assert_counted("steadfast_turn_duration_seconds_bucket{le=\"2.5\",status=\"failed\"} 0");
    harness.assert_counted("steadfast_turn_duration_seconds_bucket{le=\"5.0\",status=\"failed\"} 1");
    let (root, call) = (&harness.spans.named("turn")[0], &harness.spans.named("turn_call")[0]);
    assert_eq!(root.status, Status::error("failed"));
    assert_eq!(attribute(call, "error.type"), Some("cancelled".into()));
}

#[tokio::test(start_paused = true)]
async fn eh_3_1_a_breaker_that_opens_in_a_turn_is_an_event_of_its_span() {
    let harness = TestTelemetry::new();
    let mut policy = PolicyProfile::Measured.policy(ToolClass::ReadOnly);
    policy.retry.total = None;
    let engine = harness.engine(policy).await;
    turn(&engine, None, r#"{"calls":[{"id":"f","tool":"t/resets"}]}"#).await;
    let root = &harness.spans.named("turn")[0];
    let opened = ("turn_circuit_state".to_owned(), "Circuit breaker opened for resets".to_owned());
    assert!(events(root).contains(&opened), "{:#?}", events(root));
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_turn_is_logged_with_its_calls() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let waiting = turn(&engine, Some(CALLER), r#"{"turnId":"gone","calls":[{"id":"f","tool":"t/hangs"}]}"#);
    assert!(tokio::time::timeout(Duration::from_secs(1), waiting).await.is_err());
    let (roots, calls) = (harness.spans.named("turn"), harness.spans.named("turn_call"));
    let ([root], [call]) = (&roots[..], &calls[..]) else { panic!("{roots:?} {calls:?}") };
    assert_eq!(attribute(root, "status"), Some("abandoned".into()));
    assert_eq!(call.parent_span_id, root.span_context.span_id());
    assert_eq!(root.end_time.duration_since(root.start_time).unwrap().as_secs(), 1);
    let ends = harness.lines_named("turn_end");
    assert_eq!((ends.len(), &ends[0]["status"], &ends[0]["level"]), (1, &"abandoned".into(), &"warn".into()));
    harness.assert_counted("steadfast_turns_total{status=\"abandoned\"} 1");
}

#[tokio::test(start_paused = true)]
async fn tr_15_a_secret_in_the_output_of_a_turn_is_in_no_line_metric_or_span() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    let text = format!(
        r#"{{"turnId":"{TOKEN}","calls":[{{"id":"{TOKEN}","tool":"t/refuses"}},
        {{"id":"b","tool":"t/{TOKEN}"}}]}}"#
    );
    turn(&engine, None, &text).await;
    let spans = format!("{:?}", harness.spans.all());
    let log = harness.text();
    assert!(
        log.contains("turn_tool_error") && spans.contains("turn_tool_error"),
        "there is something to look at"
    );
    for (text, place) in [(log, "log"), (harness.metrics(), "metrics"), (spans, "spans")] {
        for secret in [TOKEN, "16C7e42F", "hunter2"] {
            assert!(!text.contains(secret), "{secret} in the {place}:\n{text}");
        }
    }
}

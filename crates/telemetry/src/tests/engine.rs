//! Tests with a real engine.

use std::sync::atomic::{AtomicU32, Ordering};

use opentelemetry::trace::{SpanId, Status, TraceId};
use opentelemetry::{Key, Value};
use steadfast_core::Timestamp;
use steadfast_core::classify::FaultSource;
use steadfast_core::dedupe::{DedupeState, Lease};
use steadfast_executor::Attempt;
use steadfast_store::{ManualClock, MemoryOptions, MemoryStore, RecordFilter, RecordPage, StateStore};

use super::*;
use crate::StoreCensus;

fn bad_request() -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status: 400 }, "bad request").into())
}

/// Fails this number of times, then succeeds.
fn fails(times: u32) -> impl Fn(Attempt) -> std::future::Ready<ToolResult> + Send + Sync + 'static {
    let left = AtomicU32::new(times);
    move |_| {
        let failed =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        std::future::ready(if failed { reset() } else { paid() })
    }
}

fn attribute(span: &SpanData, name: &'static str) -> Option<Value> {
    span.attributes
        .iter()
        .find(|attribute| attribute.key == Key::from_static_str(name))
        .map(|found| found.value.clone())
}

#[tokio::test(start_paused = true)]
async fn tr_13_success_retry_failure_and_an_open_breaker_are_counted_and_logged() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::Idempotent)).await;
    engine.call(pay(1, "success"), fails(0)).await;
    engine.call(pay(2, "retry"), fails(2)).await;
    engine.call(pay(3, "fail"), async |_: Attempt| bad_request()).await;
    engine.call(pay(1, "success"), fails(0)).await;
    engine.call(pay(4, "down"), fails(100)).await;
    engine.call(pay(5, "still down"), fails(100)).await;
    engine.call(pay(6, "refused"), fails(100)).await;

    let calls = |status: &str, count: u32| {
        let labels = format!("{{tool=\"bank/pay\",status=\"{status}\",scope=\"session\"}}");
        harness.assert_counted(&format!("steadfast_tool_calls_total{labels} {count}"));
        let labels = format!("{{tool=\"bank/pay\",status=\"{status}\"}}");
        harness.assert_counted(&format!("steadfast_tool_call_duration_ms_count{labels} {count}"));
    };
    calls("success", 3);
    calls("error", 1);
    calls("retry_exhausted", 2);
    calls("circuit_open", 1);
    harness.assert_counted("steadfast_tool_idempotency_hits_total{tool=\"bank/pay\",state=\"done\"} 1");
    harness.assert_counted(
        "steadfast_tool_circuit_breaker_transitions_total{tool=\"bank/pay\",from_state=\"CLOSED\",to_state=\"OPEN\"} 1",
    );
    harness.assert_counted("steadfast_tool_circuit_breaker_state{tool=\"bank/pay\",state=\"OPEN\"} 1");
    harness.assert_counted("steadfast_tool_circuit_breaker_state{tool=\"bank/pay\",state=\"CLOSED\"} 0");
    harness.assert_counted("steadfast_tool_info{tool=\"bank/pay\",class=\"idempotent\"} 1");
    let retries: Vec<_> = harness.lines_named("tool_call_retry");
    assert_eq!(retries[0]["attempt"], 2);
    let reason = retries[0]["reason"].as_str().unwrap();
    harness.assert_counted(&format!(
        "steadfast_tool_retry_attempts_total{{tool=\"bank/pay\",reason=\"{reason}\"}} {}",
        retries.len()
    ));

    assert_eq!(harness.lines_named("tool_call_start").len(), 7);
    let ends = harness.lines_named("tool_call_end");
    assert_eq!(ends.len(), 7);
    let end = |number: usize| (&ends[number]["status"], &ends[number]["attempt"], &ends[number]["fromCache"]);
    assert_eq!(end(0), (&"success".into(), &1.into(), &false.into()));
    assert_eq!(end(1), (&"success".into(), &3.into(), &false.into()));
    assert_eq!(end(2), (&"error".into(), &1.into(), &false.into()));
    assert_eq!((&ends[2]["errorCode"], &ends[2]["retriable"]), (&"tool_error".into(), &false.into()));
    assert_eq!(end(3), (&"success".into(), &0.into(), &true.into()));
    assert_eq!(ends[6]["errorCode"], "circuit_open");
    assert_eq!(ends[6]["breakerState"], "OPEN");
    assert_eq!(ends[6]["state"], "failed");
    let states = harness.lines_named("tool_call_circuit_state");
    assert_eq!(states.len(), 1);
    assert_eq!((&states[0]["fromState"], &states[0]["breakerState"]), (&"CLOSED".into(), &"OPEN".into()));
    assert_eq!(harness.lines_named("tool_call_blocked").last().unwrap()["errorCode"], "circuit_open");
    assert_eq!(harness.telemetry.calls.len(), 0, "nothing is remembered of a call that is over");
}

#[tokio::test(start_paused = true)]
async fn tr_13_a_thousand_tools_have_the_series_of_three_and_other() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    for number in 0..1000 {
        let mut call = pay(1, "k");
        call.tool_name = steadfast_core::id::ToolName::new(format!("tool-{number}")).unwrap();
        engine.call(call, fails(0)).await;
    }
    let metrics = harness.metrics();
    let series: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("steadfast_tool_calls_total{")).collect();
    assert_eq!(series.len(), 4, "{series:?}");
    assert!(
        series.iter().any(|line| line.contains("tool=\"other\"") && line.ends_with(" 997")),
        "{series:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_is_a_span_with_a_child_for_each_attempt_and_each_wait() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::Idempotent)).await;
    let mut call = pay(1, "k");
    call.trace.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    call.trace.baggage.insert("who".to_owned(), "somebody".to_owned());
    let passed_on = Arc::new(Mutex::new(Vec::new()));
    let (noted, tool) = (passed_on.clone(), fails(2));
    engine
        .call(call, move |attempt: Attempt| {
            noted.lock().push(attempt.traceparent.clone().unwrap());
            tool(attempt)
        })
        .await;

    let roots = harness.spans.named("tool_execution");
    let [root] = &roots[..] else { panic!("{roots:?}") };
    assert_eq!(root.span_context.trace_id(), TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap());
    assert_eq!(root.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert_eq!(attribute(root, "tool.name"), Some("pay".into()));
    assert_eq!(attribute(root, "retry.attempt"), Some(3.into()));
    assert_eq!(attribute(root, "from_cache"), Some(false.into()));
    assert_eq!(root.status, Status::Unset);

    let (attempts, waits) = (harness.spans.named("tool_attempt"), harness.spans.named("retry_wait"));
    assert_eq!((attempts.len(), waits.len()), (3, 2));
    for (number, span) in attempts.iter().chain(&waits).enumerate() {
        assert_eq!(span.parent_span_id, root.span_context.span_id(), "{number}");
        assert_eq!(span.span_context.trace_id(), root.span_context.trace_id());
        assert!(span.start_time >= root.start_time && span.end_time <= root.end_time);
    }
    for (number, (wait, next)) in waits.iter().zip(&attempts[1..]).enumerate() {
        assert_eq!(wait.start_time, attempts[number].end_time);
        assert_eq!(wait.end_time, next.start_time);
    }
    assert!(matches!(attempts[0].status, Status::Error { .. }));
    assert_eq!(attempts[2].status, Status::Unset);
    assert_eq!(attribute(&attempts[2], "retry.attempt"), Some(3.into()));
    let spans: Vec<String> = attempts
        .iter()
        .map(|span| format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", span.span_context.span_id()))
        .collect();
    assert_eq!(*passed_on.lock(), spans, "the tool passes on the span of its attempt");
    let ends = harness.lines_named("tool_call_end");
    assert_eq!(ends[0]["traceId"], "0af7651916cd43dd8448eb211c80319c");
}

#[tokio::test(start_paused = true)]
async fn without_spans_the_callers_trace_is_passed_on_unchanged() {
    let telemetry = Arc::new(Telemetry::start(Options::default()).unwrap());
    let engine = Engine::builder().clock(Arc::new(RuntimeClock::new())).listener(telemetry).start().await;
    let mut call = pay(1, "k");
    call.trace.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00".to_owned());
    let passed_on = Arc::new(Mutex::new(None));
    let noted = passed_on.clone();
    engine
        .call(call.clone(), move |attempt: Attempt| {
            *noted.lock() = attempt.traceparent.clone();
            std::future::ready(paid())
        })
        .await;
    assert_eq!(*passed_on.lock(), call.trace.traceparent);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_in_a_span_of_its_own_and_an_unreadable_parent_is_none() {
    let harness = TestTelemetry::new();
    let engine = harness.engine(standard(ToolClass::Mutating)).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let tool = |gate: Arc<tokio::sync::Semaphore>| {
        move |_: Attempt| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                paid()
            }
        }
    };
    let mut first = pay(1, "k");
    first.trace.traceparent = Some("rubbish".to_owned());
    let first = tokio::spawn(engine.call(first, tool(gate.clone())));
    while harness.telemetry.calls.len() == 0 {
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn(engine.call(pay(1, "k"), tool(gate.clone())));
    while harness.lines_named("tool_call_following").is_empty() {
        tokio::task::yield_now().await;
    }
    gate.add_permits(2);
    assert!(!first.await.unwrap().result.from_cache);
    assert!(second.await.unwrap().result.from_cache);
    assert_eq!(harness.spans.named("follow_wait").len(), 1);
    assert_eq!(harness.spans.named("tool_attempt").len(), 1);
    let roots = harness.spans.named("tool_execution");
    assert!(roots.iter().all(|root| root.parent_span_id == SpanId::INVALID), "{roots:?}");
    harness.assert_counted("steadfast_tool_idempotency_hits_total{tool=\"bank/pay\",state=\"inflight\"} 1");
    assert!(!harness.metrics().contains("state=\"done\"} 1\n# HELP"), "a waiter is one hit, not two");
}

#[tokio::test]
async fn a_census_counts_the_records_of_a_store_and_the_stale_ones() {
    let harness = TestTelemetry::new();
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let engine = Engine::builder()
        .clock(clock.clone())
        .store(store.clone())
        .policies(Arc::new(standard(ToolClass::Mutating)))
        .listener(harness.telemetry.clone())
        .start()
        .await;
    for number in 0..3 {
        engine.call(pay(number, &format!("k{number}")), fails(0)).await;
    }
    let census = StoreCensus::take(&*store, 25_000).await.unwrap();
    harness.telemetry.metrics().show(&census);
    harness.assert_counted("steadfast_tool_dedupe_cache_size{tool=\"bank/pay\",scope=\"session\"} 3");
    harness.assert_counted("steadfast_tool_dedupe_inflight{tool=\"bank/pay\"} 0");

    let mut census = StoreCensus::default();
    let page = RecordPage { after: None, limit: 1 };
    let mut record = store.records(&RecordFilter::default(), page).await.unwrap().remove(0);
    record.state = DedupeState::Inflight;
    record.lease = Lease::Until(Timestamp::from_millis(2_000_000));
    census.count(&record, Timestamp::from_millis(1_999_999));
    census.count(&record, Timestamp::from_millis(2_000_000));
    harness.telemetry.metrics().show(&census);
    harness.assert_counted("steadfast_tool_dedupe_cache_size{tool=\"bank/pay\",scope=\"session\"} 2");
    harness.assert_counted("steadfast_tool_dedupe_inflight{tool=\"bank/pay\"} 2");
    harness.assert_counted("steadfast_tool_dedupe_inflight_stale{tool=\"bank/pay\"} 1");
}

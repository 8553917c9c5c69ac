//! The last calls step by step and the figures of the last hour, read while an engine works.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{Backoff, CallPolicy, EnforcementMode, PolicyProfile, ToolClass};
use steadfast_executor::{Attempt, CallResponse, Engine, RecentActivity, RuntimeClock, ToolResult};
use steadfast_json::RawJson;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

async fn engine(policy: CallPolicy) -> (Engine, Arc<RecentActivity>) {
    let recent = Arc::new(RecentActivity::default());
    let clock = Arc::new(RuntimeClock::new());
    let engine = Engine::builder().clock(clock).policies(Arc::new(policy)).listener(recent.clone());
    (engine.start().await, recent)
}

/// Returns a call with this request id, with or without an idempotency key.
fn call(request: &str, key: Option<&str>) -> CallEnvelope {
    let key = key.map_or(String::new(), |key| format!(r#","idempotencyKey":"{key}""#));
    let text = format!(
        r#"{{"contractVersion":"1.1","requestId":"{request}","toolName":"pay","toolNamespace":"bank",
            "target":{{"sessionKey":"s-{request}","actorId":"ann","tenantId":"acme"}},
            "payload":{{"version":"1.0","params":{{"request":"{request}"}}{key}}}}}"#
    );
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

async fn works(_: Attempt) -> ToolResult {
    Ok(ToolOutput { content: RawJson::from_trusted("\"paid\""), metadata: None })
}

async fn fails(_: Attempt) -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status: 503 }, "busy").into())
}

/// Begins a call that waits for permission to end, and returns when it is known to run.
async fn start_call(
    engine: &Engine,
    recent: &RecentActivity,
    request: &str,
) -> (Arc<Semaphore>, JoinHandle<CallResponse>) {
    let may_end = Arc::new(Semaphore::new(0));
    let gate = may_end.clone();
    let calling = engine.call(call(request, None), move |attempt: Attempt| {
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            works(attempt).await
        }
    });
    let calling = tokio::spawn(calling);
    while recent.of_request(request).is_empty() {
        tokio::task::yield_now().await;
    }
    (may_end, calling)
}

#[tokio::test(start_paused = true)]
async fn the_last_thousand_calls_are_stored_and_each_is_found() {
    let (engine, recent) = engine(PolicyProfile::Standard.policy(ToolClass::Idempotent)).await;
    let oldest = start_call(&engine, &recent, "oldest").await;
    for number in 0..1000 {
        engine.call(call(&format!("r-{number}"), None), works).await;
    }
    let newer = start_call(&engine, &recent, "newer").await;
    for number in 1000..1100 {
        engine.call(call(&format!("r-{number}"), None), works).await;
    }
    let running: Vec<_> = recent.running().into_iter().map(|trace| trace.request_id.to_string()).collect();
    assert_eq!(running, ["newer"], "the oldest goes, whether it is over or not");
    for (may_end, calling) in [oldest, newer] {
        may_end.add_permits(1);
        calling.await.unwrap();
    }
    assert_eq!(recent.running(), [], "nobody has the end of another");
    assert_eq!(recent.of_request("r-100"), [], "it made room");
    for request in ["r-101", "newer", "r-1099"] {
        let found = recent.of_request(request);
        let [trace] = &found[..] else { panic!("{request}: {found:?}") };
        assert_eq!(trace.tenant.as_ref().map(|tenant| tenant.as_str()), Some("acme"));
        assert_eq!(trace.end.as_ref().map(|end| end.status), Some(CallStatus::Success), "{request}");
    }
    assert_eq!(recent.series(engine.now()).since_start.calls, 1102);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_very_many_steps_reports_the_number_omitted() {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Idempotent);
    policy.modes.breaker = EnforcementMode::Off;
    policy.retry.attempts = 40.try_into().unwrap();
    policy.retry.backoff = Backoff::Constant(Duration::from_millis(100));
    policy.retry.total = None;
    policy.retry.budget.floor_per_second = 1000;
    policy.time.last_retry = None;
    let (engine, recent) = engine(policy).await;
    let called = engine.call(call("r", None), fails).await;
    assert_eq!(called.result.attempts, 40);
    let trace = recent.of_request("r").remove(0);
    assert!(trace.steps.len() <= 64 && trace.left_out > 40, "{} and {}", trace.steps.len(), trace.left_out);
    assert_eq!(trace.end.unwrap().attempts, 40, "its end is told all the same");
}

#[tokio::test(start_paused = true)]
async fn of_several_calls_under_one_request_the_newest_comes_first() {
    let (engine, recent) = engine(PolicyProfile::Standard.policy(ToolClass::Mutating)).await;
    for _ in 0..2 {
        engine.call(call("r", Some("k")), works).await;
    }
    let replayed: Vec<_> =
        recent.of_request("r").into_iter().map(|trace| trace.end.unwrap().replayed).collect();
    assert_eq!(replayed, [true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_call_is_counted() {
    let (engine, recent) = engine(PolicyProfile::Standard.policy(ToolClass::Mutating)).await;
    engine.shutdown(Duration::ZERO).await;
    let called = engine.call(call("r", None), works).await;
    assert_eq!(called.result.error.map(|error| error.code), Some(Code::Overloaded));
    let counted = recent.series(engine.now()).since_start;
    assert_eq!((counted.calls, counted.refused), (1, 1));
}

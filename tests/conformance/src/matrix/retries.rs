//! TR-5, TR-6, TR-7 and TR-11: retries, and their limits.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::ToolClass;
use steadfast_executor::{Attempt, CallResponse, ToolFault, ToolResult};
use steadfast_json::RawJson;

use crate::calls::{CountingTool, OPEN, SUCCESS, call, fail, http, keyed, paid, single, status, within};
use crate::world::{ConformanceWorld, plain};

pub(super) async fn tr_5_two_timeouts_and_a_success_are_three_attempts_with_jittered_delays(
    world: ConformanceWorld,
) {
    let mut policy = plain(ToolClass::Unknown);
    // Where time is real, no limit is too short for a tool that answers: there the tool itself reports the timeout.
    let leaps = world.has_paused_time();
    if leaps {
        policy.time.attempt = Duration::from_millis(30);
    }
    let engine = world.engine(&policy).await;
    let mut waits = BTreeSet::new();
    for key in ["a", "b", "c"] {
        let called = engine
            .call(keyed(key), move |attempt: Attempt| async move {
                let answer: ToolResult = match attempt.number {
                    1 | 2 if leaps => std::future::pending().await,
                    1 | 2 => {
                        let source = FaultSource::Timeout { after: Duration::from_millis(30) };
                        Err(AttemptFault::new(source, "the server did not answer in time").into())
                    }
                    _ => paid(),
                };
                answer
            })
            .await;
        assert_eq!((status(&called), called.result.attempts), (SUCCESS, 3));
        let retried = &called.result.retried_by;
        assert!(retried.iter().all(|retried| retried.reason_code == "timeout"), "{retried:?}");
        let [first, second] = &retried[..] else { panic!("two retries: {retried:?}") };
        assert!(first.delay_ms <= 200 && second.delay_ms <= 400, "exponential from 200 ms: {retried:?}");
        waits.extend([first.delay_ms, second.delay_ms]);
    }
    assert!(waits.len() >= 3, "waits are spread: {waits:?}");
    // A stable tool is called once.
    let tool = CountingTool::paying();
    let called = engine.call(keyed("stable"), tool.clone()).await;
    assert_eq!((status(&called), called.result.attempts, tool.runs()), (SUCCESS, 1, 1));
    assert!(called.result.retried_by.is_empty());
}

pub(super) async fn tr_6_a_400_is_final_after_one_attempt(world: ConformanceWorld) {
    let engine = world.engine(&plain(ToolClass::Idempotent)).await;
    for code in [400, 401, 403, 404, 413, 422] {
        let output = ToolOutput { content: RawJson::string(&format!("no: {code}")), metadata: None };
        let refusal = output.clone();
        let tool = CountingTool::new(move |_| {
            let fault =
                AttemptFault::new(FaultSource::Http { status: code }, format!("the server said {code}"));
            Err(ToolFault { fault, output: Some(refusal.clone()) }.into())
        });
        let key = format!("k-{code}");
        let called = engine.call(keyed(&key), tool.clone()).await;
        assert_eq!((called.result.status, called.result.attempts, tool.runs()), (CallStatus::Error, 1, 1));
        let error = called.result.error.clone().unwrap();
        assert!(error.terminal && !error.retriable, "{error:?}");
        // The server's answer reaches the caller unchanged, and a duplicate too.
        assert_eq!(
            (called.result.output, error.message.as_str()),
            (Some(output.clone()), &*format!("the server said {code}"))
        );
        let again = engine.call(keyed(&key), tool.clone()).await;
        // The server did not even read a body that was too large (413): its key is free again.
        let runs = if code == 413 { 2 } else { 1 };
        assert_eq!((again.result.error.unwrap().code, tool.runs()), (error.code, runs), "{code}");
    }
    // They say nothing about the tool: the breaker is closed.
    let called = engine.call(keyed("good"), CountingTool::paying()).await;
    assert_eq!(status(&called), SUCCESS);
}

pub(super) async fn tr_7_a_tool_that_always_fails_exhausts_its_attempts_with_bounded_waits(
    world: ConformanceWorld,
) {
    let engine = world.engine(&plain(ToolClass::Unknown)).await;
    let tool = CountingTool::new(|_| http(503));
    let exhausted = (CallStatus::RetryExhausted, Some(Code::RetryExhausted));
    let called = within("it ends", engine.call(keyed("k"), tool.clone())).await;
    assert_eq!((status(&called), called.result.attempts, tool.runs()), (exhausted, 4, 4));
    let waits = |called: &CallResponse| -> Vec<u64> {
        called.result.retried_by.iter().map(|retried| retried.delay_ms).collect()
    };
    let waited = waits(&called);
    assert!(
        waited.len() == 3 && waited.iter().zip([200, 400, 800]).all(|(wait, most)| *wait <= most),
        "{waited:?}"
    );
    // The breaker has counted all four: the fifth failure opens it.
    fail(&engine, 1).await;
    assert_eq!(status(&engine.call(single(1), CountingTool::paying()).await), OPEN);
    // No wait is longer than the caller's time allows, even if the tool asks for more.
    let other = world.engine(&plain(ToolClass::Unknown)).await;
    let short_deadline = call(json!({
        "toolName": "ask", "transport": { "retryBudget": { "maxAttempts": 100, "maxElapsedMs": 1 } },
    }));
    let called = within("it ends", other.call(short_deadline, CountingTool::new(|_| http(503)))).await;
    assert_eq!(called.result.status, CallStatus::RetryExhausted);
    let waited = waits(&called);
    assert!(called.result.attempts <= 4 && waited.iter().all(|wait| *wait <= 1), "{:?}", called.result);
}

pub(super) async fn tr_11_nothing_is_retried_against_an_open_breaker(world: ConformanceWorld) {
    let mut policy = plain(ToolClass::Idempotent);
    policy.retry.attempts = 10.try_into().unwrap();
    let engine = world.engine(&policy).await;
    let tool = CountingTool::new(|_| http(503));
    // Closed, it is retried until the breaker opens, and not once more.
    let called = within("it ends", engine.call(keyed("k"), tool.clone())).await;
    assert_eq!(status(&called), (CallStatus::RetryExhausted, Some(Code::CircuitOpen)));
    assert_eq!((called.result.attempts, tool.runs()), (5, 5));
    world.stop_clock();
    // No storm during a full outage: a hundred concurrent callers make no attempt at all.
    let callers: Vec<_> =
        (0..100).map(|number| tokio::spawn(engine.call(single(number), tool.clone()))).collect();
    for caller in callers {
        assert_eq!(status(&caller.await.unwrap()), OPEN);
    }
    assert_eq!(tool.runs(), 5);
    // Half-open, the probe is made and not retried. Of a hundred callers one makes it.
    world.advance_clock(policy.breaker.cooldown.first);
    let callers: Vec<_> =
        (0..100).map(|number| tokio::spawn(engine.call(single(number), tool.clone()))).collect();
    for caller in callers {
        let called = caller.await.unwrap();
        assert_ne!(called.result.status, CallStatus::Success);
        assert!(called.result.attempts <= 1, "{called:?}");
    }
    assert_eq!(tool.runs(), 6);
}

//! Calls over plain HTTP: the acceptance matrix from the view of a client, with tools that count their runs.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use steadfast::call::code::Code;
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::{HookFuture, Hooks, ToolResult, output::ToolOutput};
use steadfast::telemetry::LogOutput;
use steadfast::{Attempt, Steadfast};
use steadfast_api::AccessRules;

use crate::support::{
    ApiTestWorld, TEST_TIMEOUT, access_of, envelope, gated, gathered_is_written, http_fault, in_session,
    keyed, send_bytes, settle,
};

#[tokio::test(start_paused = true)]
async fn tr_1_an_invalid_envelope_is_refused_with_all_its_errors_and_leaves_no_record() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("bank/pay");
    let mut wrong = keyed("bank/pay", json!({}), "k");
    wrong["contractVersion"] = "9.9".into();
    wrong.as_object_mut().unwrap().remove("toolName");
    let response = world.call(&wrong).await;
    assert_eq!((response.status, response.code()), (StatusCode::BAD_REQUEST, "unsupported_version"));
    let message = response.body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("contractVersion: expected") && message.contains("toolName: expected"),
        "{message}"
    );
    let records = world.send_as_admin("get", "/v1/records", &Value::Null).await;
    assert_eq!((world.runs("bank/pay"), &records["records"]), (0, &json!([])));
    let response = world.call(&keyed("bank/pay", json!({}), "k")).await;
    assert_eq!((response.status, &response.body["output"]["content"]), (StatusCode::OK, &json!("run 1")));
}

#[tokio::test(start_paused = true)]
async fn tr_1_a_misspelt_field_is_an_error_in_a_strict_request() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("bank/pay");
    let mut call = envelope("bank/pay", json!({}));
    call["transprot"] = json!({});
    assert_eq!(world.call(&call).await.status, StatusCode::OK);
    let response = world.post("/v1/calls?strict=true", &[], &call.to_string()).await;
    // It matches the schema: only for this caller it is an error.
    assert_eq!((response.status, response.code()), (StatusCode::UNPROCESSABLE_ENTITY, "invalid_envelope"));
    assert!(response.body["error"]["message"].as_str().unwrap().contains("transprot"));
    call["requestId"] = json!("");
    let response = world.post("/v1/calls?strict=true", &[], &call.to_string()).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST, "whoever is not strict calls that a mistake too");
}

#[tokio::test(start_paused = true)]
async fn tr_2_a_duplicate_in_flight_waits_and_does_not_run() {
    let world = ApiTestWorld::new(&[]).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let call = keyed("bank/pay", json!({ "to": "bob" }), "k");
    let mut hasty = call.clone();
    hasty["transport"] = json!({ "dedupeMode": "bestEffort" });
    let first = world.call(&call);
    let others = async {
        started.acquire().await.unwrap().forget();
        let (second, ()) = tokio::join!(world.call(&call), async {
            settle().await;
            let response = world.call(&hasty).await;
            assert_eq!(
                (response.status, response.code()),
                (StatusCode::CONFLICT, "in_flight"),
                "{}",
                response.body
            );
            may_end.add_permits(1);
        });
        second
    };
    let (first, second) = tokio::join!(first, others);
    assert_eq!(world.runs("bank/pay"), 1);
    assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK));
    assert_eq!(first.body["output"], second.body["output"]);
    assert_eq!((&first.body["fromCache"], &second.body["fromCache"]), (&json!(false), &json!(true)));
    assert_eq!(second.body["cache"]["matchedOn"], "inflight");
}

#[tokio::test(start_paused = true)]
async fn tr_2_without_dedupe_both_run() {
    let world = ApiTestWorld::new(&[]).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let mut call = envelope("bank/pay", json!({ "to": "bob" }));
    call["transport"] = json!({ "dedupeMode": "disabled" });
    tokio::join!(world.call(&call), world.call(&call), async {
        started.acquire_many(2).await.unwrap().forget();
        may_end.add_permits(2);
    });
    assert_eq!(world.runs("bank/pay"), 2);
}

#[tokio::test(start_paused = true)]
async fn tr_3_a_duplicate_of_a_finished_call_gets_its_answer_and_the_key_back() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("bank/pay");
    let call = envelope("bank/pay", json!({ "to": "bob" }));
    let post = async |call: &Value, key| {
        world.post("/v1/calls", &[("idempotency-key", key)], &call.to_string()).await
    };
    let first = post(&call, "invoice 42").await;
    let second = post(&call, "invoice 42").await;
    // The same key in the envelope.
    let third = world.call(&keyed("bank/pay", json!({ "to": "bob" }), "invoice 42")).await;
    for response in [&first, &second, &third] {
        assert_eq!(
            (response.status, response.header("idempotency-key")),
            (StatusCode::OK, Some("invoice 42"))
        );
        assert_eq!(response.body["output"]["content"], "run 1");
    }
    let cached = [&first, &second, &third].map(|response| response.body["fromCache"].as_bool().unwrap());
    assert_eq!((cached, world.runs("bank/pay")), ([false, true, true], 1));
    let another = post(&keyed("bank/pay", json!({ "to": "bob" }), "invoice 42"), "invoice 43").await;
    assert_eq!(another.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", another.body);
    assert!(!another.body.to_string().contains("invoice"), "keys are nobody's business: {}", another.body);
    assert_eq!(post(&call, "x".repeat(300).as_str()).await.status, StatusCode::BAD_REQUEST);
    let both = [("idempotency-key", "invoice 44"), ("idempotency-key", "invoice 45")];
    let both = world.post("/v1/calls", &both, &call.to_string()).await;
    assert_eq!(both.status, StatusCode::BAD_REQUEST, "nobody knows which of them is meant: {}", both.body);
    assert_eq!(world.runs("bank/pay"), 1);
    let keyless = world.call(&call).await;
    assert_eq!((keyless.header("idempotency-key"), world.runs("bank/pay")), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn tr_4_the_same_key_with_other_parameters_is_a_conflict() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("bank/pay");
    world.call(&keyed("bank/pay", json!({ "to": "bob" }), "k")).await;
    let response = world.call(&keyed("bank/pay", json!({ "to": "eve" }), "k")).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_conflict")
    );
    assert_eq!(world.runs("bank/pay"), 1);
    let again = world.call(&keyed("bank/pay", json!({ "to": "bob" }), "k")).await;
    assert_eq!((again.status, &again.body["fromCache"]), (StatusCode::OK, &json!(true)));
}

#[tokio::test(start_paused = true)]
async fn tr_5_transient_faults_are_retried_until_one_attempt_succeeds() {
    let world = ApiTestWorld::new(&[]).await;
    world.tool("web/get", async |number: u32, _| -> ToolResult {
        if number < 3 { Err(http_fault(503)) } else { Ok(ToolOutput::text("there")) }
    });
    let response = world.call(&envelope("web/get", json!({}))).await;
    assert_eq!(
        (response.status, &response.body["attempts"]),
        (StatusCode::OK, &json!(3)),
        "{}",
        response.body
    );
    assert_eq!(response.body["retriedBy"].as_array().unwrap().len(), 2);
    let stable = world.call(&envelope("web/get", json!({}))).await;
    assert_eq!(stable.body["attempts"], 1);
}

#[tokio::test(start_paused = true)]
async fn tr_6_a_terminal_error_is_tried_once() {
    let world = ApiTestWorld::new(&[]).await;
    world.fails("web/get", 400);
    let response = world.call(&envelope("web/get", json!({}))).await;
    assert_eq!(
        (&response.body["attempts"], &response.body["error"]["terminal"]),
        (&json!(1), &json!(true)),
        "{}",
        response.body
    );
    assert_eq!((response.status, response.code()), (StatusCode::OK, "tool_error"));
    assert_eq!(world.runs("web/get"), 1);
}

#[tokio::test(start_paused = true)]
async fn tr_7_a_tool_that_keeps_failing_is_tried_as_often_as_allowed() {
    let world = ApiTestWorld::new(&[]).await;
    world.fails("web/get", 503);
    let response = world.call(&envelope("web/get", json!({}))).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::BAD_GATEWAY, "retry_exhausted"),
        "{}",
        response.body
    );
    assert_eq!((response.body["status"].as_str(), world.runs("web/get")), (Some("retry_exhausted"), 4));
    let mut modest = envelope("web/get", json!({ "page": 2 }));
    modest["transport"] = json!({ "retryBudget": { "maxAttempts": 1, "maxElapsedMs": 1000 } });
    world.call(&modest).await;
    assert_eq!(world.runs("web/get"), 5, "a caller may ask for less");
}

/// A tool with five failed calls.
async fn broken(settings: &[(&str, &str)]) -> ApiTestWorld {
    let mut all = vec![("tools.\"bank/pay\".retry.attempts", "1"), ("tools.\"bank/pay\".trust.mode", "off")];
    all.extend(settings);
    let world = ApiTestWorld::new(&all).await;
    world.fails("bank/pay", 503);
    for amount in 0..5 {
        // In several sessions, so that the loop guard stops none.
        let call = envelope("bank/pay", json!({ "amount": amount }));
        world.call(&in_session(call, &format!("s-{amount}"))).await;
    }
    assert_eq!(world.runs("bank/pay"), 5);
    world
}

#[tokio::test(start_paused = true)]
async fn tr_8_an_open_breaker_refuses_at_once_with_a_retry_time() {
    let world = broken(&[]).await;
    world.works("bank/pay");
    let began = tokio::time::Instant::now();
    let response = world.call(&envelope("bank/pay", json!({ "amount": 9 }))).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "it waits for nothing, on the clock of the test");
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::SERVICE_UNAVAILABLE, "circuit_open"),
        "{}",
        response.body
    );
    assert_eq!(
        (response.body["status"].as_str(), response.header("retry-after")),
        (Some("circuit_open"), Some("30"))
    );
    assert_eq!((world.runs("bank/pay"), &response.body["attempts"]), (5, &json!(0)));
    tokio::time::advance(Duration::from_millis(500)).await;
    let response = world.call(&envelope("bank/pay", json!({ "amount": 9 }))).await;
    let (ms, seconds) = (&response.body["error"]["retryAfterMs"], response.header("retry-after"));
    assert_eq!((ms, seconds), (&json!(29_500), Some("30")), "rounded up");
}

#[tokio::test(start_paused = true)]
async fn tr_9_after_the_cooldown_two_successful_probes_close_the_breaker() {
    let world = broken(&[]).await;
    world.works("bank/pay");
    tokio::time::advance(Duration::from_secs(31)).await;
    for expected in ["HALF_OPEN", "CLOSED"] {
        let response = world.call(&envelope("bank/pay", json!({ "amount": 9 }))).await;
        assert_eq!(response.status, StatusCode::OK, "{}", response.body);
        let breakers = world.send_as_admin("get", "/v1/breakers", &Value::Null).await;
        assert_eq!(breakers["breakers"][0]["state"], expected, "{breakers}");
    }
}

#[tokio::test(start_paused = true)]
async fn tr_10_a_failed_probe_opens_it_again_for_as_long() {
    let world = broken(&[]).await;
    tokio::time::advance(Duration::from_secs(31)).await;
    world.call(&envelope("bank/pay", json!({ "amount": 9 }))).await;
    assert_eq!(world.runs("bank/pay"), 6, "the probe");
    let response = world.call(&envelope("bank/pay", json!({ "amount": 9 }))).await;
    assert_eq!(
        (response.status, response.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, Some("30"))
    );
    assert_eq!(world.runs("bank/pay"), 6);
}

#[tokio::test(start_paused = true)]
async fn tr_11_an_open_breaker_ends_retries() {
    let world = ApiTestWorld::new(&[("tools.\"web/get\".trust.mode", "off")]).await;
    world.fails("web/get", 503);
    world.call(&envelope("web/get", json!({}))).await;
    let response = world.call(&envelope("web/get", json!({ "page": 2 }))).await;
    assert_eq!(world.runs("web/get"), 5, "the fifth opened it, and there was no sixth");
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::SERVICE_UNAVAILABLE, "circuit_open"),
        "{}",
        response.body
    );
    assert_eq!(response.body["status"], "retry_exhausted", "it had been tried");
    for number in 0..20 {
        let call = envelope("web/get", json!({ "page": 3 }));
        let response = world.call(&in_session(call, &format!("s-{number}"))).await;
        assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(world.runs("web/get"), 5);
}

#[derive(Default)]
struct CountingBody {
    before: AtomicU32,
    after: AtomicU32,
    short: AtomicU32,
}

impl Hooks for CountingBody {
    fn before_attempt<'a>(&'a self, _: &'a CallEnvelope, _: u32) -> HookFuture<'a, ()> {
        self.before.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {})
    }

    fn after_attempt<'a>(&'a self, _: &'a CallEnvelope, _: u32, _: &'a ToolResult) -> HookFuture<'a, ()> {
        self.after.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {})
    }

    fn short_circuit<'a>(&'a self, _: &'a CallEnvelope, _: Option<Code>) -> HookFuture<'a, ()> {
        self.short.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {})
    }
}

#[tokio::test(start_paused = true)]
async fn tr_12_hooks_see_each_attempt_and_each_short_circuit_once() {
    let hooks = Arc::new(CountingBody::default());
    let opening = Steadfast::builder().hooks(hooks.clone());
    let world = ApiTestWorld::opened(opening, &[], AccessRules::default()).await;
    world.tool("web/get", async |number: u32, _| -> ToolResult {
        if number == 1 { Err(http_fault(503)) } else { Ok(ToolOutput::text("there")) }
    });
    world.call(&keyed("web/get", json!({}), "k")).await;
    world.call(&keyed("web/get", json!({}), "k")).await;
    let counts = [&hooks.before, &hooks.after, &hooks.short].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts, [2, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn tr_13_transitions_are_in_the_metrics() {
    let world = broken(&[]).await;
    world.call(&envelope("bank/pay", json!({ "amount": 9 }))).await;
    let metrics = world.send_as_admin("get", "/metrics", &Value::Null).await;
    let metrics = metrics.as_str().unwrap();
    let line = |parts: &[&str]| metrics.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(
        line(&["tool_circuit_breaker_transitions_total", "from_state=\"CLOSED\"", "to_state=\"OPEN\""]),
        "{metrics}"
    );
    assert!(line(&["tool_calls_total", "status=\"circuit_open\""]), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn tr_14_switched_off_calls_go_straight_through() {
    let world = broken(&[]).await;
    world.works("bank/pay");
    world.send_as_admin("put", "/v1/switches", &json!({ "all": "off" })).await;
    for run in 6..8 {
        let response = world.call(&keyed("bank/pay", json!({ "amount": 1 }), "k")).await;
        assert_eq!(
            (response.status, &response.body["output"]["content"]),
            (StatusCode::OK, &json!(format!("run {run}")))
        );
    }
    world.send_as_admin("put", "/v1/switches", &json!({ "all": "enforce" })).await;
    let response = world.call(&envelope("bank/pay", json!({}))).await;
    assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE, "the breaker is as it was");
}

/// Lines of the log, which its own thread writes.
#[derive(Clone, Default)]
struct StreamLines(Arc<(Mutex<String>, Condvar)>);

impl StreamLines {
    /// Returns the whole log once one line contains all of these parts. Lines are written in order.
    fn until(&self, parts: &[&str]) -> String {
        let (text, written) = &*self.0;
        let is_missing =
            |text: &mut String| !text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        let (text, waited) =
            written.wait_timeout_while(text.lock().unwrap(), TEST_TIMEOUT, is_missing).unwrap();
        assert!(!waited.timed_out(), "no line with {parts:?}: {text}");
        text.clone()
    }
}

impl Write for StreamLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let (text, written) = &*self.0;
        text.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
        written.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn sf_6_tr_15_secrets_in_parameters_keys_and_answers_are_in_no_other_output() {
    const SECRETS: [&str; 3] =
        ["sk-live-4f9a8b7c6d5e4f3a2b1c", "hunter2hunter2", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"];
    let lines = StreamLines::default();
    let opening = Steadfast::builder().logging(LogOutput::To(Box::new(lines.clone())));
    let world = ApiTestWorld::opened(opening, &[("log.level", "debug")], AccessRules::default()).await;
    world.tool("bank/pay", async |_, _| -> ToolResult {
        Ok(ToolOutput::text(&format!("paid with {}", SECRETS[0])))
    });
    world.tool("bank/fails", async |_, _| -> ToolResult { Err(http_fault(400)) });
    let params = json!({ "token": SECRETS[0], "password": SECRETS[1] });
    for tool in ["bank/pay", "bank/fails", "bank/none"] {
        world.call(&keyed(tool, params.clone(), SECRETS[2])).await;
        world.call(&envelope(tool, params.clone())).await;
    }
    let mut wrong = keyed("bank/pay", params.clone(), SECRETS[2]);
    wrong["payload"]["idempotencyKey"] = json!([SECRETS[2]]);
    let refused = world.call(&wrong).await.body.to_string();
    world.post("/v1/failures", &[], &json!({ "toolName": "t", "error": SECRETS[0] }).to_string()).await;
    gathered_is_written().await;
    // After all events of the other calls.
    world.works("bank/last");
    world.call(&in_session(envelope("bank/last", json!({})), "the last of them")).await;
    let mut outputs = vec![refused, lines.until(&["tool_call_end", "the last of them"])];
    for path in [
        "/metrics",
        "/v1/status",
        "/v1/records",
        "/v1/history",
        "/v1/guard",
        "/v1/trust",
        "/v1/tools",
        "/v1/audit",
    ] {
        outputs.push(world.send_as_admin("get", path, &Value::Null).await.to_string());
    }
    for (secret, place) in SECRETS.iter().flat_map(|secret| outputs.iter().map(move |place| (secret, place)))
    {
        assert!(!place.contains(secret), "{secret} in {place}");
    }
    let ends = outputs[1].lines().filter(|line| line.contains("tool_call_end")).count();
    assert_eq!(ends, 7, "the log has the calls: {}", outputs[1]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tool_is_404_and_a_repeated_call_of_it_is_a_loop() {
    let world = ApiTestWorld::new(&[]).await;
    let response = world.call(&envelope("bank/pai", json!({}))).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::NOT_FOUND, "unknown_tool"),
        "{}",
        response.body
    );
    let message = response.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("bank/pai") && message.contains("http/NAME"), "{message}");
    world.call(&envelope("bank/pai", json!({}))).await;
    let response = world.call(&envelope("bank/pai", json!({}))).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::FORBIDDEN, "loop_detected"),
        "{}",
        response.body
    );
}

#[tokio::test(start_paused = true)]
async fn a_read_that_takes_too_long_is_a_timeout_and_a_write_an_unknown_outcome() {
    let world = ApiTestWorld::new(&[
        ("tools.\"web/get\".retry.attempts", "1"),
        ("tools.\"web/get\".class", "read_only"),
        ("tools.\"bank/pay\".class", "mutating"),
    ])
    .await;
    for tool in ["web/get", "bank/pay"] {
        world.tool(tool, async |_, _| std::future::pending().await);
    }
    let response = world.call(&envelope("web/get", json!({}))).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::GATEWAY_TIMEOUT, "timeout"),
        "{}",
        response.body
    );
    let response = world.call(&keyed("bank/pay", json!({}), "k")).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::CONFLICT, "outcome_unknown"),
        "{}",
        response.body
    );
    assert_eq!(world.runs("bank/pay"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_over_the_concurrency_limit_is_429_with_a_retry_time() {
    let world = ApiTestWorld::new(&[("tools.\"bank/pay\".limits.concurrency", "1")]).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let first = envelope("bank/pay", json!({ "to": "bob" }));
    tokio::join!(world.call(&first), async {
        started.acquire().await.unwrap().forget();
        let response = world.call(&envelope("bank/pay", json!({ "to": "eve" }))).await;
        assert_eq!(
            (response.status, response.code()),
            (StatusCode::TOO_MANY_REQUESTS, "overloaded"),
            "{}",
            response.body
        );
        assert_eq!(response.header("retry-after"), Some("1"));
        may_end.add_permits(1);
    });
    assert_eq!(world.runs("bank/pay"), 1);
}

/// A client that reads events waits as long as the call takes; a client that waits for one response gets a retry delay.
#[tokio::test(start_paused = true)]
async fn only_a_call_without_an_event_stream_is_answered_before_it_ends() {
    let settings = [("tools.\"bank/pay\".class", "mutating"), ("tools.\"bank/pay\".answer_by", "5s")];
    let world = ApiTestWorld::new(&settings).await;
    world.tool("bank/pay", async |_, _| {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(ToolOutput::text("paid"))
    });
    let response = world.call(&keyed("bank/pay", json!({}), "a")).await;
    assert_eq!((response.status, response.code()), (StatusCode::CONFLICT, "in_flight"), "{}", response.body);
    let call = keyed("bank/pay", json!({}), "b").to_string();
    let response = world.post("/v1/calls", &[("accept", "text/event-stream")], &call).await;
    let events = events(response.body.as_str().unwrap());
    assert_eq!(events.last().unwrap().1["output"]["content"], "paid", "{}", response.body);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_times_out_is_streamed_as_ended() {
    let world = ApiTestWorld::new(&[
        ("tools.\"web/get\".retry.attempts", "1"),
        ("tools.\"web/get\".class", "read_only"),
    ])
    .await;
    world.tool("web/get", async |_, _| std::future::pending().await);
    let call = envelope("web/get", json!({})).to_string();
    let response = world.post("/v1/calls", &[("accept", "text/event-stream")], &call).await;
    let events = events(response.body.as_str().unwrap());
    let [(_, start), (_, end), (_, result)] = &events[..] else { panic!("{}", response.body) };
    assert_eq!(start, &json!({ "attempt": 1, "state": "begun" }));
    assert_eq!((&end["attempt"], &end["state"]), (&json!(1), &json!("ended")), "{}", response.body);
    assert!(end["tookMs"].as_u64().is_some_and(|took| took >= 30_000), "{}", response.body);
    assert_eq!(result["error"]["code"], "timeout", "{}", response.body);
}

#[tokio::test(start_paused = true)]
async fn a_tool_error_is_a_result_of_the_tool() {
    let world = ApiTestWorld::new(&[]).await;
    world.tool("web/get", async |_, _| -> ToolResult {
        Err(steadfast::call::classify::AttemptFault::new(
            steadfast::call::classify::FaultSource::Tool,
            "no seats left",
        )
        .into())
    });
    let response = world.call(&envelope("web/get", json!({}))).await;
    assert_eq!((response.status, response.code()), (StatusCode::OK, "tool_error"), "{}", response.body);
    assert_eq!(response.body["status"], "error");
}

#[tokio::test(start_paused = true)]
async fn the_domain_of_a_tool_applies_if_the_caller_names_none() {
    let world = ApiTestWorld::new(&[]).await;
    let domains = Arc::new(Mutex::new(Vec::new()));
    let recorder = domains.clone();
    world.tool("web/get", move |_, attempt: Attempt| {
        recorder
            .lock()
            .unwrap()
            .push(attempt.envelope.target.domain.clone().map(|domain| domain.to_string()));
        async { Ok(ToolOutput::text("there")) }
    });
    let mut named = envelope("web/get", json!({}));
    world.call(&named).await;
    named["target"]["domain"] = "other.example".into();
    world.call(&named).await;
    let domains: Vec<_> = domains.lock().unwrap().iter().flatten().cloned().collect();
    assert_eq!(domains, ["bench.example", "other.example"]);
}

#[tokio::test(start_paused = true)]
async fn sf_5_hostile_bodies_are_refused_and_run_nothing() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("bank/pay");
    let good = envelope("bank/pay", json!({})).to_string();
    let deep =
        good.replace("\"params\":{}", &format!("\"params\":{{\"a\":{}1{}}}", "[".repeat(80), "]".repeat(80)));
    let twice = good.replace("\"params\":{}", "\"params\":{\"a\":1,\"a\":2}");
    let huge = good.replace("\"params\":{}", &format!("\"params\":{{\"a\":\"{}\"}}", "x".repeat(2 << 20)));
    let invalid = [good.as_bytes().split_at(20).0, b"\xff\xfe", good.as_bytes().split_at(20).1].concat();
    for (body, expected) in [
        (Vec::new(), 400),
        (b"null".to_vec(), 400),
        (b"[]".to_vec(), 400),
        (good.as_bytes()[..good.len() / 2].to_vec(), 400),
        (deep.into_bytes(), 400),
        (twice.into_bytes(), 400),
        (good.replace("\"requestId\":\"r-1\"", "\"requestId\":7").into_bytes(), 400),
        (good.replace("\"ann\"", &format!("\"{}\"", "a".repeat(300))).into_bytes(), 400),
        (good.replace("\"ann\"", "\"\\u0000\"").into_bytes(), 400),
        (invalid, 400),
        (huge.into_bytes(), 413),
    ] {
        for path in ["/v1/calls", "/v1/calls/begin", "/v1/failures", "/v1/successes"] {
            let response = send_bytes(&world.api, Request::post(path), body.clone()).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
            assert_eq!(response.status.as_u16(), expected, "{path} {shown}: {}", response.body);
            assert!(!response.body["error"]["message"].as_str().unwrap().is_empty());
        }
    }
    assert_eq!(world.runs("bank/pay"), 0);
    let number = good.replace("\"params\":{}", "\"params\":{\"a\":123456789012345678901234567890e999}");
    let response = send_bytes(&world.api, Request::post("/v1/calls"), number.into_bytes()).await;
    assert!(response.status.as_u16() < 500, "{}", response.body);
}

#[tokio::test(start_paused = true)]
async fn sf_7_a_token_identifies_the_caller() {
    let access = access_of(&[("ann", None), ("bob", None), ("eve", Some("acme"))]);
    let world = ApiTestWorld::opened(Steadfast::builder(), &[], access).await;
    world.works("bank/pay");
    let ann = [("authorization", "Bearer token of ann")];
    let bob = [("authorization", "Bearer token of bob")];
    let call = keyed("bank/pay", json!({}), "k");
    let post = async |headers: &[(&str, &str)], call: &Value| {
        world.post("/v1/calls", headers, &call.to_string()).await
    };
    assert_eq!(post(&[], &call).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(post(&[("authorization", "Bearer x")], &call).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        post(&[ann[0], ("origin", "https://evil.example")], &call).await.status,
        StatusCode::FORBIDDEN
    );
    assert_eq!(post(&ann, &call).await.status, StatusCode::OK);
    let response = post(&bob, &call).await;
    assert_eq!((response.status, response.code()), (StatusCode::FORBIDDEN, "forbidden"));
    let message = response.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("`bob`") && message.contains("omit it"), "{message}");
    let mut unnamed = call.clone();
    unnamed["target"].as_object_mut().unwrap().remove("actorId");
    let response = post(&bob, &unnamed).await;
    assert_eq!(
        (response.status, &response.body["output"]["content"]),
        (StatusCode::OK, &json!("run 2")),
        "keys are apart"
    );
    let mut of_tenant = call.clone();
    of_tenant["target"]["tenantId"] = "acme".into();
    assert_eq!(post(&ann, &of_tenant).await.status, StatusCode::FORBIDDEN);
    let report = json!({ "toolName": "t", "error": "x" }).to_string();
    let response = world.post("/v1/failures?tenant=acme", &ann, &report).await;
    assert_eq!(response.status, StatusCode::FORBIDDEN);
    assert_eq!(world.post("/v1/failures", &ann, &report).await.status, StatusCode::OK);
    assert_eq!(world.runs("bank/pay"), 2);
    // The admin may call for a tenant, whose records are separate, and names it.
    let person = [("authorization", "Bearer person")];
    assert_eq!(post(&person, &of_tenant).await.body["output"]["content"], "run 3");
    assert_eq!(post(&person, &unnamed).await.status, StatusCode::BAD_REQUEST);
    // A token of a tenant makes calls for it, with or without the tenant in the envelope.
    let eve = [("authorization", "Bearer token of eve")];
    assert_eq!(post(&eve, &unnamed).await.body["output"]["content"], "run 4");
    let mut of_eve = unnamed.clone();
    of_eve["target"]["tenantId"] = "acme".into();
    assert_eq!(post(&eve, &of_eve).await.body["fromCache"], true);
    of_eve["target"]["tenantId"] = "umbra".into();
    assert_eq!(post(&eve, &of_eve).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_streamed_with_its_attempts_its_signs_of_life_and_its_result() {
    let world = ApiTestWorld::new(&[]).await;
    world.tool("web/get", async |number: u32, attempt: Attempt| -> ToolResult {
        if number == 1 {
            return Err(http_fault(503));
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        attempt.progress();
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(ToolOutput { content: steadfast_json::RawJson::from_trusted("{\n\"a\":1}"), metadata: None })
    });
    let call = keyed("web/get", json!({}), "k").to_string();
    let response =
        world.post("/v1/calls", &[("accept", "application/json;q=0.1, text/event-stream")], &call).await;
    assert_eq!(
        (response.status, response.header("content-type")),
        (StatusCode::OK, Some("text/event-stream"))
    );
    assert_eq!(response.header("idempotency-key"), Some("k"));
    let events = events(response.body.as_str().unwrap());
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["attempt", "attempt", "attempt", "progress", "attempt", "result"],
        "{}",
        response.body
    );
    let states: Vec<_> = events.iter().filter_map(|(_, data)| data["state"].as_str()).collect();
    assert_eq!(states, ["begun", "failed", "begun", "answered"]);
    assert!(response.body.as_str().unwrap().contains("\n:\n"), "something keeps the connection alive");
    let (_, result) = events.last().unwrap();
    assert_eq!((&result["status"], &result["output"]["content"]["a"]), (&json!("success"), &json!(1)));
    let took: Vec<_> = events.iter().filter_map(|(_, data)| data["tookMs"].as_u64()).collect();
    assert_eq!(took, [0, 40_000]);
    let plain = world.post("/v1/calls", &[("accept", "application/json, */*")], &call).await;
    assert_eq!(plain.body["fromCache"], true, "whoever does not name events gets none: {}", plain.body);
    let operation = &world.document["paths"]["/v1/calls"]["post"];
    crate::support::fits(&world.document, operation, StatusCode::OK, result);
}

fn events(text: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let name = block.lines().find_map(|line| line.strip_prefix("event: "))?.to_owned();
        let data: Vec<_> = block.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        Some((name, serde_json::from_str(&data.join("\n")).unwrap()))
    };
    text.split("\n\n").filter_map(event).collect()
}

/// A client that waits for the in-flight call of another client and disconnects no longer waits.
#[tokio::test(start_paused = true)]
async fn a_duplicate_whose_stream_is_dropped_no_longer_waits() {
    let world = ApiTestWorld::new(&[]).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let call = keyed("bank/pay", json!({}), "k");
    let open =
        async || world.send_as_admin("get", "/v1/status", &Value::Null).await["counts"]["openCalls"].clone();
    tokio::join!(world.call(&call), async {
        started.acquire().await.unwrap().forget();
        let stream =
            Request::post("/v1/calls").header("host", "127.0.0.1").header("accept", "text/event-stream");
        let stream = world.api.respond(stream.body(call.to_string()).unwrap()).await;
        settle().await;
        assert_eq!(open().await, 2);
        drop(stream);
        settle().await;
        assert_eq!(open().await, 1);
        may_end.add_permits(1);
    });
    assert_eq!(world.runs("bank/pay"), 1);
}

/// If a client disconnects from a stream, the engine finishes a started call, and the result is there for the next
/// call.
#[tokio::test(start_paused = true)]
async fn a_client_that_drops_a_stream_gets_the_result_by_calling_again() {
    let world = ApiTestWorld::new(&[("tools.\"bank/pay\".class", "mutating")]).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let call = keyed("bank/pay", json!({}), "k");
    let request =
        Request::post("/v1/calls").header("host", "127.0.0.1").header("accept", "text/event-stream");
    let response = world
        .api
        .respond(request.body(http_body_util::Full::new(bytes::Bytes::from(call.to_string()))).unwrap())
        .await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    started.acquire().await.unwrap().forget();
    drop(body);
    settle().await;
    may_end.add_permits(1);
    let response = world.call(&call).await;
    assert_eq!(
        (response.status, &response.body["output"]["content"]),
        (StatusCode::OK, &json!("run 1")),
        "{}",
        response.body
    );
    assert_eq!(world.runs("bank/pay"), 1);
}

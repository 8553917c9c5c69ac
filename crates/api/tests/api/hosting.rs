//! Calls whose tool the host runs: begin, report, heartbeat and cancel.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use steadfast::Steadfast;
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::{HookFuture, Hooks};
use steadfast_api::AccessRules;

use crate::support::{ApiTestReply, ApiTestWorld, access_of, envelope, keyed, settle};

async fn begin(world: &ApiTestWorld, call: &Value) -> ApiTestReply {
    world.post("/v1/calls/begin", &[], &call.to_string()).await
}

/// Returns the id of the call that a host got permission to run.
fn id(response: &ApiTestReply) -> String {
    assert_eq!(
        (response.status, response.body["next"].as_str()),
        (StatusCode::OK, Some("run")),
        "{}",
        response.body
    );
    response.body["id"].as_str().unwrap().to_owned()
}

async fn tell(world: &ApiTestWorld, id: &str, deed: &str, body: Value) -> ApiTestReply {
    world.post(&format!("/v1/calls/{id}/{deed}"), &[], &body.to_string()).await
}

#[tokio::test(start_paused = true)]
async fn a_host_runs_its_tool_and_a_duplicate_gets_its_answer() {
    let world = ApiTestWorld::new(&[]).await;
    let call = keyed("host/pay", json!({ "to": "bob" }), "k");
    let order = begin(&world, &call).await;
    assert_eq!((&order.body["attempt"], order.header("idempotency-key")), (&json!(1), Some("k")));
    let unrelated = begin(&world, &keyed("host/pay", json!({ "to": "bob" }), "l")).await;
    assert_ne!(order.body["run"], unrelated.body["run"], "by its name an upstream knows a run again");
    let now = world.steer("get", "/v1/status", &Value::Null).await["atMs"].as_u64().unwrap();
    assert_eq!(order.body["deadlineAtMs"], now + 30_000, "{}", order.body);
    let done =
        tell(&world, &id(&order), "report", json!({ "attempt": 1, "output": { "content": { "paid": 7 } } }))
            .await;
    assert_eq!((done.status, &done.body["next"]), (StatusCode::OK, &json!("answer")), "{}", done.body);
    assert_eq!(done.body["result"]["output"]["content"], json!({ "paid": 7 }));
    let again = begin(&world, &call).await;
    assert_eq!(
        (again.status, &again.body["result"]["fromCache"]),
        (StatusCode::OK, &json!(true)),
        "{}",
        again.body
    );
    let other = begin(&world, &keyed("host/pay", json!({ "to": "eve" }), "k")).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", other.body);
    assert_eq!(other.body["result"]["error"]["code"], "idempotency_conflict");
    let late = tell(&world, &id(&order), "report", json!({ "attempt": 1, "output": { "content": 1 } })).await;
    assert_eq!((late.status, late.code()), (StatusCode::NOT_FOUND, "not_found"), "it is over");
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_ordered_again_and_its_report_comes_once() {
    let world = ApiTestWorld::new(&[]).await;
    let order = begin(&world, &envelope("host/get", json!({}))).await;
    let id = id(&order);
    let failed = json!({ "attempt": 1, "failure": { "message": "busy", "source": { "kind": "http", "status": 503 } } });
    let again = tell(&world, &id, "report", failed.clone()).await;
    assert_eq!((&again.body["next"], &again.body["attempt"]), (&json!("run"), &json!(2)), "{}", again.body);
    assert_eq!(again.body["run"], order.body["run"], "it is the same run");
    let late = tell(&world, &id, "report", failed).await;
    assert_eq!((late.status, late.code()), (StatusCode::CONFLICT, "conflict"));
    for wrong in [
        json!({ "attempt": 2 }),
        json!({ "attempt": 2, "output": { "content": 1 }, "failure": { "message": "x" } }),
    ] {
        assert_eq!(tell(&world, &id, "report", wrong).await.status, StatusCode::BAD_REQUEST);
    }
    let done = tell(&world, &id, "report", json!({ "attempt": 2, "output": { "content": "there" } })).await;
    assert_eq!((done.status, &done.body["result"]["attempts"]), (StatusCode::OK, &json!(2)), "{}", done.body);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_ordered_again_when_the_other_side_asked_to_be() {
    let world = ApiTestWorld::new(&[]).await;
    let id = id(&begin(&world, &envelope("host/get", json!({}))).await);
    let busy =
        json!({ "message": "busy", "source": { "kind": "http", "status": 429 }, "retryAfterMs": 7000 });
    let began = tokio::time::Instant::now();
    let again = tell(&world, &id, "report", json!({ "attempt": 1, "failure": busy })).await;
    assert_eq!(again.body["next"], "run", "{}", again.body);
    assert!(began.elapsed() >= Duration::from_secs(7), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_the_tool_itself_said_is_in_the_answer_to_a_failure() {
    let world = ApiTestWorld::new(&[]).await;
    let id = id(&begin(&world, &envelope("host/get", json!({}))).await);
    let failure =
        json!({ "message": "no", "source": { "kind": "is_error" }, "output": { "content": { "seats": 0 } } });
    let done = tell(&world, &id, "report", json!({ "attempt": 1, "failure": failure })).await;
    assert_eq!(done.body["result"]["error"]["code"], "tool_error", "{}", done.body);
    assert_eq!(done.body["result"]["output"]["content"], json!({ "seats": 0 }), "{}", done.body);
}

/// A tool that only requests input has not run: the same call is made again with the input.
#[tokio::test(start_paused = true)]
async fn a_tool_that_asks_for_input_has_not_run() {
    let world = ApiTestWorld::new(&[("tools.\"host/pay\".class", "mutating")]).await;
    let call = keyed("host/pay", json!({}), "k");
    let first = id(&begin(&world, &call).await);
    let question = json!({ "attempt": 1, "inputRequired": { "content": { "who": "?" } } });
    let response = tell(&world, &first, "report", question).await;
    assert_eq!(
        (response.status, &response.body["next"]),
        (StatusCode::OK, &json!("answer")),
        "{}",
        response.body
    );
    assert_eq!(response.body["result"]["output"]["content"], json!({ "who": "?" }), "{}", response.body);
    assert_ne!(id(&begin(&world, &call).await), first);
}

/// The engine classifies each source of a failure. The further course of a call that must not run twice depends on it.
#[tokio::test(start_paused = true)]
async fn the_source_of_a_failure_decides_how_the_call_goes_on() {
    let settings = [
        ("tools.\"host/pay\".class", "mutating"),
        ("tools.\"host/pay\".breaker.mode", "off"),
        ("tools.\"host/pay\".trust.mode", "off"),
        ("guard.mode", "off"),
    ];
    let world = ApiTestWorld::new(&settings).await;
    for (number, (source, expected)) in [
        (json!({ "kind": "tool" }), "answer tool_error unknown.tool"),
        (json!({ "kind": "http", "status": 503 }), "answer outcome_unknown http.503"),
        (json!({ "kind": "json_rpc", "code": -32601 }), "answer unknown_tool jsonrpc.-32601"),
        (json!({ "kind": "is_error" }), "answer tool_error unknown.tool"),
        (json!({ "kind": "transport", "error": "connection_reset", "written": false }), "run null null"),
        (
            json!({ "kind": "transport", "error": "connection_reset", "written": true }),
            "answer outcome_unknown transport.reset",
        ),
        (json!({ "kind": "web_socket", "code": 1013 }), "answer outcome_unknown websocket.1013"),
        (json!({ "kind": "exit", "code": 1 }), "answer outcome_unknown exit.1"),
        (json!({ "kind": "exit", "signal": 9 }), "answer outcome_unknown exit.signal.9"),
        (json!({ "kind": "timeout", "afterMs": 100 }), "answer outcome_unknown timeout"),
        (json!({ "kind": "bad_answer" }), "answer outcome_unknown bad-answer"),
    ]
    .into_iter()
    .enumerate()
    {
        let order = begin(&world, &keyed("host/pay", json!({}), &format!("k-{number}"))).await;
        let report = json!({ "attempt": 1, "failure": { "message": "no", "source": source } });
        let response = tell(&world, &id(&order), "report", report).await;
        let error = &response.body["result"]["error"];
        let outcome =
            format!("{} {} {}", response.body["next"], error["code"], error["rule"]).replace('"', "");
        assert_eq!(outcome, expected, "{source}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_time_is_over_hears_so_from_its_heartbeat_and_its_report_comes_too_late() {
    let world = ApiTestWorld::new(&[
        ("tools.\"host/get\".class", "read_only"),
        ("tools.\"host/get\".retry.attempts", "1"),
    ])
    .await;
    let id = id(&begin(&world, &envelope("host/get", json!({}))).await);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let beat = tell(&world, &id, "heartbeat", json!({ "attempt": 1 })).await;
    assert_eq!((beat.status, &beat.body), (StatusCode::OK, &json!({ "wanted": false })));
    let late = tell(&world, &id, "report", json!({ "attempt": 1, "output": { "content": 1 } })).await;
    assert_eq!((late.status, late.code()), (StatusCode::CONFLICT, "conflict"), "{}", late.body);
}

/// A host waits for its own report, however long its tool takes.
#[tokio::test(start_paused = true)]
async fn a_host_gets_the_answer_to_its_report_however_late() {
    let settings = [("tools.\"host/pay\".class", "mutating"), ("tools.\"host/pay\".answer_by", "5s")];
    let world = ApiTestWorld::new(&settings).await;
    let id = id(&begin(&world, &keyed("host/pay", json!({}), "k")).await);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let done = tell(&world, &id, "report", json!({ "attempt": 1, "output": { "content": "paid" } })).await;
    assert_eq!(done.body["result"]["output"]["content"], "paid", "{}", done.body);
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_keep_an_attempt_and_a_withdrawn_one_hears_of_it() {
    let world = ApiTestWorld::new(&[("tools.\"host/pay\".class", "mutating")]).await;
    let id = id(&begin(&world, &envelope("host/pay", json!({}))).await);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        let beat = tell(&world, &id, "heartbeat", json!({ "attempt": 1 })).await;
        assert_eq!((beat.status, &beat.body), (StatusCode::OK, &json!({ "wanted": true })), "{}", beat.body);
    }
    assert_eq!(tell(&world, &id, "heartbeat", json!({ "attempt": 2 })).await.status, StatusCode::CONFLICT);
    let cancelled = tell(&world, &id, "cancel", Value::Null).await;
    assert_eq!((cancelled.status, &cancelled.body), (StatusCode::OK, &json!({ "cancelled": true })));
    settle().await;
    let beat = tell(&world, &id, "heartbeat", json!({ "attempt": 1 })).await;
    assert_eq!(beat.body, json!({ "wanted": false }));
    let done = tell(&world, &id, "report", json!({ "attempt": 1, "output": { "content": 1 } })).await;
    assert_eq!(done.body["next"], "answer", "{}", done.body);
}

#[tokio::test(start_paused = true)]
async fn sf_7_the_calls_of_others_are_not_there() {
    let access = access_of(&[("ann", None), ("bob", None)]);
    let world = ApiTestWorld::opened(Steadfast::builder(), &[], access).await;
    let (ann, bob) = ([("authorization", "Bearer token of ann")], [("authorization", "Bearer token of bob")]);
    let call = envelope("host/pay", json!({})).to_string();
    let id = id(&world.post("/v1/calls/begin", &ann, &call).await);
    let person = [("authorization", "Bearer person")];
    let count = id.split('-').next().unwrap();
    let report = json!({ "attempt": 1, "output": { "content": "forged" } }).to_string();
    for (headers, id) in
        [(&bob, &*id), (&person, &*id), (&ann, count), (&ann, "1-00000000000000000000000000000000")]
    {
        for (deed, body) in [("report", &*report), ("heartbeat", r#"{"attempt":1}"#), ("cancel", "")] {
            let response = world.post(&format!("/v1/calls/{id}/{deed}"), headers, body).await;
            assert_eq!((response.status, response.code()), (StatusCode::NOT_FOUND, "not_found"), "{deed}");
        }
    }
    let response = world.post(&format!("/v1/calls/{id}/report"), &ann, &report).await;
    assert_eq!((response.status, &response.body["next"]), (StatusCode::OK, &json!("answer")));
}

/// Delays every attempt.
struct DelayingHooks;

impl Hooks for DelayingHooks {
    fn before_attempt<'a>(&'a self, _: &'a CallEnvelope, _: u32) -> HookFuture<'a, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(500)))
    }
}

/// A permission to run that its host never received is returned: the same call runs when it is made again.
#[tokio::test(start_paused = true)]
async fn who_goes_before_the_order_has_not_run_anything() {
    let opening = Steadfast::builder().hooks(Arc::new(DelayingHooks));
    let world =
        ApiTestWorld::opened(opening, &[("tools.\"host/pay\".class", "mutating")], AccessRules::default())
            .await;
    let call = keyed("host/pay", json!({}), "k");
    tokio::select! {
        _ = begin(&world, &call) => unreachable!("it is held up"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = tokio::time::Instant::now();
    let again = begin(&world, &call).await;
    assert_eq!((again.status, &again.body["next"]), (StatusCode::OK, &json!("run")), "{}", again.body);
    assert!(began.elapsed() < Duration::from_secs(1), "nobody waits for the first: {:?}", began.elapsed());
}

async fn answered(world: &ApiTestWorld, call: &Value, answer: &Value) -> ApiTestReply {
    world.post("/v1/calls/answered", &[], &json!({ "call": call, "answer": answer }).to_string()).await
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_host_answered_counts_for_the_loop_guard_and_the_next_one_is_refused() {
    let world = ApiTestWorld::new(&[]).await;
    let call = envelope("host/read", json!({}));
    let refused = json!({ "kind": "invalid_arguments", "message": "path: required" });
    let first = answered(&world, &call, &refused).await;
    assert_eq!((first.status, &first.body["verdict"]), (StatusCode::OK, &json!("none")), "{}", first.body);
    assert_eq!(first.body["result"]["error"]["code"], "invalid_arguments");
    assert!(first.body["remarks"][0].as_str().unwrap().contains("[NON-RETRYABLE]"), "{}", first.body);
    let second = answered(&world, &call, &refused).await;
    assert_eq!(second.body["verdict"], "loop_detected", "{}", second.body);
    assert!(second.body.to_string().contains("[LOOP DETECTED]"), "{}", second.body);
    let third = begin(&world, &call).await;
    assert_eq!(third.body["result"]["error"]["code"], "loop_detected", "{}", third.body);
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_a_host_must_have_a_call_and_a_known_kind() {
    let world = ApiTestWorld::new(&[]).await;
    let call = envelope("host/read", json!({}));
    for body in [
        json!({ "call": call }),
        json!({ "call": call, "answer": { "kind": "odd" } }),
        json!({ "call": { "toolName": "read" }, "answer": { "kind": "denied", "message": "no" } }),
    ] {
        let response = world.post("/v1/calls/answered", &[], &body.to_string()).await;
        assert_eq!(response.status, StatusCode::BAD_REQUEST, "{body}: {}", response.body);
    }
}

//! Calls without an idempotency key over plain HTTP. Equal calls of one session follow the same rules as over MCP: they
//! wait for the in-flight call, get an undelivered result, and get a report of an unknown outcome before they run
//! again.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use steadfast::call::output::ToolOutput;

use crate::support::{ApiTestReply, ApiTestWorld, envelope, gated, in_session, lose_outcome_once, settle};

/// Tools that must not run twice, and no mechanism except the ones under test.
const PLAIN: &[(&str, &str)] = &[
    ("tools.\"bank/pay\".class", "mutating"),
    ("tools.\"bank/look\".class", "read_only"),
    ("tools.\"host/pay\".class", "mutating"),
    ("guard.mode", "off"),
    ("trust.mode", "off"),
    ("breaker.mode", "off"),
];

fn payment() -> Value {
    envelope("bank/pay", json!({ "to": "bob" }))
}

async fn pay(world: &ApiTestWorld) -> ApiTestReply {
    world.call(&payment()).await
}

async fn begin(world: &ApiTestWorld) -> ApiTestReply {
    let call = envelope("host/pay", json!({ "to": "bob" }));
    world.post("/v1/calls/begin", &[], &call.to_string()).await
}

async fn report(world: &ApiTestWorld, order: &ApiTestReply, report: Value) -> ApiTestReply {
    assert_eq!(order.body["next"], "run", "{}", order.body);
    let path = format!("/v1/calls/{}/report", order.body["id"].as_str().unwrap());
    world.post(&path, &[], &report.to_string()).await
}

async fn the_record(world: &ApiTestWorld) -> Value {
    world.send_as_admin("get", "/v1/records?open=true", &Value::Null).await["records"][0].clone()
}

#[tokio::test(start_paused = true)]
async fn equal_calls_without_a_key_join_the_one_in_flight() {
    let world = ApiTestWorld::new(PLAIN).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let (first, second) = tokio::join!(pay(&world), async {
        started.acquire().await.unwrap().forget();
        let (second, ()) = tokio::join!(pay(&world), async {
            settle().await;
            may_end.add_permits(1);
        });
        second
    });
    assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK), "{}", second.body);
    assert_eq!(
        (&second.body["output"]["content"], &second.body["cache"]["matchedOn"]),
        (&first.body["output"]["content"], &json!("inflight"))
    );
    assert_eq!(world.runs("bank/pay"), 1);
    // Both calls are answered, so the next one is another payment.
    may_end.add_permits(1);
    let third = pay(&world).await;
    assert_eq!((&third.body["fromCache"], world.runs("bank/pay")), (&json!(false), 2), "{}", third.body);
}

/// The same for clients that read events, whichever call comes first.
#[tokio::test(start_paused = true)]
async fn a_call_that_reads_events_joins_one_that_does_not() {
    let world = ApiTestWorld::new(PLAIN).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let (_, streamed) = tokio::join!(pay(&world), async {
        started.acquire().await.unwrap().forget();
        let call = payment().to_string();
        let (streamed, ()) =
            tokio::join!(world.post("/v1/calls", &[("accept", "text/event-stream")], &call), async {
                settle().await;
                may_end.add_permits(1);
            });
        streamed
    });
    let text = streamed.body.as_str().unwrap();
    assert!(text.contains("\"matchedOn\":\"inflight\""), "{text}");
    assert_eq!(world.runs("bank/pay"), 1);
}

#[tokio::test(start_paused = true)]
async fn equal_calls_of_two_conversations_are_two_calls() {
    let world = ApiTestWorld::new(PLAIN).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let other = in_session(payment(), "s-2");
    let (first, second, ()) = tokio::join!(pay(&world), world.call(&other), async {
        started.acquire_many(2).await.unwrap().forget();
        may_end.add_permits(2);
    });
    assert_eq!((&first.body["fromCache"], &second.body["fromCache"]), (&json!(false), &json!(false)));
    assert_eq!(world.runs("bank/pay"), 2);
}

/// A caller that disconnects before the response gets it by repeating the call, once.
#[tokio::test(start_paused = true)]
async fn an_answer_that_did_not_arrive_is_given_to_the_next_equal_call() {
    let world = ApiTestWorld::new(PLAIN).await;
    let (started, may_end) = gated(&world, "bank/pay");
    let request = Request::post("/v1/calls").header("host", "127.0.0.1");
    let abandoned = world.api.respond(request.body(payment().to_string()).unwrap());
    tokio::select! {
        biased;
        _ = abandoned => unreachable!("it is not let"),
        permit = started.acquire() => permit.unwrap().forget(),
    }
    may_end.add_permits(2);
    settle().await;
    let again = pay(&world).await;
    assert_eq!(
        (&again.body["output"]["content"], &again.body["fromCache"]),
        (&json!("run 1"), &json!(true)),
        "{}",
        again.body
    );
    let next = pay(&world).await;
    assert_eq!(next.body["output"]["content"], "run 2", "it has arrived: {}", next.body);
}

/// A caller that waited that long may have given up.
#[tokio::test(start_paused = true)]
async fn an_answer_that_came_late_is_given_to_the_next_equal_call() {
    let world = ApiTestWorld::new(PLAIN).await;
    world.tool("bank/pay", async |number: u32, _| {
        tokio::time::sleep(Duration::from_secs(26)).await;
        Ok(ToolOutput::text(&format!("run {number}")))
    });
    for (content, from_cache) in [("run 1", false), ("run 1", true), ("run 2", false)] {
        let response = pay(&world).await;
        assert_eq!(
            (&response.body["output"]["content"], &response.body["fromCache"]),
            (&json!(content), &json!(from_cache)),
            "{}",
            response.body
        );
    }
}

/// A payment whose connection broke may still take effect. It does not run again until it cannot, and its caller knows
/// so.
#[tokio::test(start_paused = true)]
async fn a_lost_call_has_an_unknown_outcome_and_runs_again_only_after_the_final_report() {
    let world = ApiTestWorld::new(PLAIN).await;
    lose_outcome_once(&world, "bank/pay");
    let lost = pay(&world).await;
    assert_eq!((lost.status, lost.code()), (StatusCode::CONFLICT, "outcome_unknown"), "{}", lost.body);
    assert_eq!(
        (&lost.body["error"]["retryAfterMs"], lost.header("retry-after")),
        (&json!(30_000), Some("30"))
    );
    let record = the_record(&world).await;
    let at = world.send_as_admin("get", "/v1/status", &Value::Null).await["atMs"].as_u64().unwrap();
    assert_eq!(
        (&record["state"], &record["settled"], &record["observed"], &record["settlesByMs"]),
        (&json!("unknown"), &json!(false), &json!("connection_lost"), &json!(at + 30_000)),
        "{record}"
    );
    tokio::time::advance(Duration::from_secs(2)).await;
    let early = pay(&world).await;
    assert_eq!((early.code(), &early.body["error"]["retryAfterMs"]), ("outcome_unknown", &json!(28_000)));
    tokio::time::advance(Duration::from_secs(28)).await;
    let record = the_record(&world).await;
    assert_eq!((&record["settled"], &record["settlesByMs"]), (&json!(true), &Value::Null), "{record}");
    let response = pay(&world).await;
    assert_eq!(
        (response.code(), &response.body["error"]["retryAfterMs"]),
        ("outcome_unknown", &json!(10_000))
    );
    // The caller got the report, and neither checked nor waited.
    let response = pay(&world).await;
    assert_eq!((response.code(), world.runs("bank/pay")), ("outcome_unknown", 1), "{}", response.body);
    tokio::time::advance(Duration::from_secs(10)).await;
    let again = pay(&world).await;
    assert_eq!(again.body["output"]["content"], "run 2", "{}", again.body);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_verifies_after_the_final_answer_does_not_wait() {
    let world = ApiTestWorld::new(PLAIN).await;
    lose_outcome_once(&world, "bank/pay");
    world.works("bank/look");
    let call_look = async || world.call(&envelope("bank/look", json!({}))).await.status;
    pay(&world).await;
    // That check was too early: the call could still take effect after it.
    assert_eq!(call_look().await, StatusCode::OK);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(pay(&world).await.code(), "outcome_unknown");
    assert_eq!(pay(&world).await.code(), "outcome_unknown", "the check was before the answer");
    assert_eq!(call_look().await, StatusCode::OK);
    let again = pay(&world).await;
    assert_eq!(again.body["output"]["content"], "run 2", "{}", again.body);
}

#[tokio::test(start_paused = true)]
async fn equal_calls_that_a_host_runs_join_the_one_in_flight() {
    let world = ApiTestWorld::new(PLAIN).await;
    let first = begin(&world).await;
    let (second, done) = tokio::join!(begin(&world), async {
        settle().await;
        report(&world, &first, json!({ "attempt": 1, "output": { "content": "paid" } })).await
    });
    assert_eq!(done.body["result"]["output"]["content"], "paid", "{}", done.body);
    assert_eq!((&second.body["next"], &second.body["result"]["fromCache"]), (&json!("answer"), &json!(true)));
    assert_eq!(second.body["result"]["output"]["content"], "paid", "{}", second.body);
    assert_eq!(begin(&world).await.body["next"], "run", "both have their answer");
}

#[tokio::test(start_paused = true)]
async fn an_equal_call_gets_the_unknown_outcome_of_a_call_that_its_host_lost() {
    let world = ApiTestWorld::new(PLAIN).await;
    let order = begin(&world).await;
    let source = json!({ "kind": "transport", "error": "connection_reset", "written": true });
    let failure = json!({ "attempt": 1, "failure": { "message": "gone", "source": source } });
    let lost = report(&world, &order, failure).await;
    assert_eq!(lost.body["result"]["error"]["code"], "outcome_unknown", "{}", lost.body);
    let again = begin(&world).await;
    assert_eq!(
        (again.status, &again.body["next"]),
        (StatusCode::CONFLICT, &json!("answer")),
        "{}",
        again.body
    );
    assert_eq!(again.body["result"]["error"]["code"], "outcome_unknown", "{}", again.body);
    assert_eq!(the_record(&world).await["observed"], "connection_lost");
}

/// A call that may still take effect cannot be resolved as not run.
#[tokio::test(start_paused = true)]
async fn a_call_over_http_that_may_still_take_effect_is_not_resolved_as_not_run() {
    let world = ApiTestWorld::new(PLAIN).await;
    lose_outcome_once(&world, "bank/pay");
    pay(&world).await;
    let path = format!("/v1/records/{}/resolve", the_record(&world).await["key"].as_str().unwrap());
    let admin = [("authorization", "Bearer person")];
    let resolve = async |ran: bool| world.post(&path, &admin, &json!({ "ran": ran }).to_string()).await;
    tokio::time::advance(Duration::from_millis(500)).await;
    let refused = resolve(false).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::CONFLICT, "not_settled"), "{}", refused.body);
    let error = &refused.body["error"];
    assert_eq!((&error["retryAfterMs"], refused.header("retry-after")), (&json!(29_500), Some("30")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("may still take effect") && message.contains("try again in 30 s"), "{message}");
    tokio::time::advance(Duration::from_millis(29_500)).await;
    let resolved = resolve(false).await;
    assert_eq!((resolved.status, &resolved.body), (StatusCode::OK, &json!({ "resolved": true })));
    assert_eq!(pay(&world).await.body["output"]["content"], "run 2");
    assert_eq!(resolve(false).await.status, StatusCode::NOT_FOUND, "the outcome is already resolved");
}

/// A call can be resolved as run at any time.
#[tokio::test(start_paused = true)]
async fn a_call_is_resolved_as_run_at_any_time() {
    let world = ApiTestWorld::new(PLAIN).await;
    lose_outcome_once(&world, "bank/pay");
    pay(&world).await;
    let path = format!("/v1/records/{}/resolve", the_record(&world).await["key"].as_str().unwrap());
    assert_eq!(
        world.send_as_admin("post", &path, &json!({ "ran": true })).await,
        json!({ "resolved": true })
    );
    assert_eq!(the_record(&world).await, Value::Null);
}

/// The result of a stream counts as delivered when it was read.
#[tokio::test(start_paused = true)]
async fn an_answer_in_events_that_was_not_read_is_given_again() {
    let world = ApiTestWorld::new(PLAIN).await;
    world.works("bank/pay");
    let request =
        Request::post("/v1/calls").header("host", "127.0.0.1").header("accept", "text/event-stream");
    let mut body = world.api.respond(request.body(payment().to_string()).unwrap()).await.into_body();
    body.frame().await.unwrap().unwrap();
    settle().await;
    drop(body);
    let again = pay(&world).await;
    assert_eq!(
        (&again.body["output"]["content"], &again.body["fromCache"]),
        (&json!("run 1"), &json!(true)),
        "{}",
        again.body
    );
    assert_eq!(world.runs("bank/pay"), 1);
}

//! Turns over plain HTTP, as an agent submits them, and their traces for operators.

use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::{Value, json};
use steadfast::call::{ToolResult, output::ToolOutput};
use steadfast::{Attempt, Steadfast};
use tokio::time::Instant;

use crate::support::{
    ApiTestReply, ApiTestWorld, access_of, assert_readable, http_fault, send_bytes, settle,
};

/// The measured error handling, with enough time for the retries of its tests.
const MEASURED: &[(&str, &str)] =
    &[("profile", "measured"), ("retry.total", "none"), ("tools.\"t/*\".class", "read_only")];

async fn measured(more: &[(&str, &str)]) -> ApiTestWorld {
    ApiTestWorld::new(&[MEASURED, more].concat()).await
}

fn turn_of(plan: &Value) -> Value {
    json!({ "contractVersion": "1.1", "target": { "sessionKey": "s-1", "actorId": "ann" }, "plan": plan })
}

impl ApiTestWorld {
    /// Submits a turn, and checks the response against the document.
    async fn turn(&self, plan: &Value) -> ApiTestReply {
        self.post("/v1/turns", &[], &turn_of(plan).to_string()).await
    }

    /// Submits a turn that is accepted. Returns its result and its trace.
    async fn turned(&self, plan: &Value) -> (Value, Value) {
        let response = self.turn(plan).await;
        assert_eq!(response.status, StatusCode::OK, "{}", response.body);
        let trace = response.body["traceId"].as_str().unwrap().to_owned();
        let story = self.send_as_admin("get", &format!("/v1/traces/{trace}"), &Value::Null).await;
        (response.body, story)
    }

    /// Adds a tool that fails once and then succeeds.
    fn recovers(&self, name: &str) {
        self.tool(
            name,
            async |number, _| if number == 1 { Err(http_fault(503)) } else { Ok(ToolOutput::text("well")) },
        );
    }

    fn hangs(&self, name: &str) {
        self.tool(name, async |_, attempt: Attempt| -> ToolResult {
            attempt.cancelled().await;
            Err(http_fault(503))
        });
    }
}

fn outcomes(turned: &Value) -> Vec<(&str, &str)> {
    let calls = turned["calls"].as_array().unwrap().iter();
    calls.map(|call| (call["id"].as_str().unwrap(), call["outcome"].as_str().unwrap())).collect()
}

fn events<'s>(story: &'s Value, event_type: &str) -> Vec<&'s Value> {
    story["events"].as_array().unwrap().iter().filter(|event| event["eventType"] == event_type).collect()
}

#[track_caller]
fn assert_sentence(story: &Value, sentence: &str) {
    let sentences: Vec<_> =
        story["events"].as_array().unwrap().iter().map(|event| event["sentence"].as_str().unwrap()).collect();
    assert!(sentences.iter().any(|actual| actual.starts_with(sentence)), "{sentence}: {sentences:#?}");
}

#[tokio::test(start_paused = true)]
async fn eh_4_1_eh_4_3_eh_4_4_an_attempt_ends_at_its_timeout_and_is_retried() {
    let world = measured(&[]).await;
    world.tool("t/flight_search", async |number, _| {
        if number == 1 { std::future::pending().await } else { Ok(ToolOutput::text("well")) }
    });
    let before = Instant::now();
    let (turned, story) = world
        .turned(&json!({ "calls": [{ "id": "f", "tool": "t/flight_search", "timeoutMs": 30000 }] }))
        .await;
    assert_eq!((outcomes(&turned), world.runs("t/flight_search")), (vec![("f", "succeeded")], 2));
    assert_eq!(before.elapsed().as_secs(), 30);
    let timeouts = events(&story, "ToolTimeout");
    assert_eq!(timeouts.len(), 1, "{story:#}");
    assert_eq!(
        (&timeouts[0]["timeoutMs"], &timeouts[0]["toolId"], &timeouts[0]["classification"]),
        (&json!(30_000), &json!("flight_search"), &json!("transient"))
    );
    assert!(timeouts[0]["timestamp"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test(start_paused = true)]
async fn eh_4_2_at_the_deadline_finished_calls_are_returned_and_the_others_are_listed() {
    let world = measured(&[("timeout", "1h"), ("total_timeout", "2h")]).await;
    world.works("t/flight_search");
    world.hangs("t/hotel_search");
    world.hangs("t/activity_search");
    let before = Instant::now();
    let (turned, _) = world
        .turned(&json!({ "deadlineMs": 300_000, "calls": [{ "id": "f", "tool": "t/flight_search" },
            { "id": "h", "tool": "t/hotel_search" }, { "id": "a", "tool": "t/activity_search" }] }))
        .await;
    assert_eq!(before.elapsed(), Duration::from_secs(300));
    assert_eq!(outcomes(&turned), [("f", "succeeded"), ("h", "cancelled"), ("a", "cancelled")]);
    assert_eq!((&turned["status"], &turned["endedBy"]), (&json!("partial"), &json!("deadline")));
    assert_eq!(turned["summary"], "Completed flight search, but hotel search and activity search timed out");
    assert_eq!(turned["calls"][0]["output"], "run 1");
}

#[tokio::test(start_paused = true)]
async fn eh_5_1_eh_5_2_eh_5_4_dependants_of_a_failed_call_do_not_run_and_other_calls_do() {
    let world = measured(&[]).await;
    world.fails("t/flight_search", 400);
    ["t/compare_prices", "t/create_itinerary", "t/hotel_search"].iter().for_each(|name| world.works(name));
    let (turned, story) = world
        .turned(&json!({ "calls": [
            { "id": "a", "tool": "t/flight_search" },
            { "id": "b", "tool": "t/compare_prices", "required": false, "dependsOn": ["a"] },
            { "id": "c", "tool": "t/create_itinerary", "dependsOn": ["b"] },
            { "id": "d", "tool": "t/hotel_search" },
        ] }))
        .await;
    assert_eq!(outcomes(&turned), [("a", "failed"), ("b", "skipped"), ("c", "skipped"), ("d", "succeeded")]);
    assert_eq!((world.runs("t/compare_prices"), world.runs("t/create_itinerary")), (0, 0));
    assert_eq!(
        (&turned["calls"][1]["escalated"], &turned["calls"][2]["escalated"]),
        (&json!(false), &json!(true))
    );
    assert_sentence(&story, "Required tool skipped due to dependency failure");
}

#[tokio::test(start_paused = true)]
async fn eh_5_3_a_default_replaces_a_missing_output() {
    let world = measured(&[]).await;
    world.fails("t/flight_search", 400);
    world.tool("t/compare_prices", async |_, attempt: Attempt| {
        Ok(ToolOutput::text(attempt.envelope.payload.params.as_str()))
    });
    let (turned, story) = world
        .turned(&json!({ "calls": [{ "id": "a", "tool": "t/flight_search" }, {
            "id": "b", "tool": "t/compare_prices", "params": { "best": { "$from": "a", "path": "/best" } },
            "dependsOn": [{ "id": "a", "default": { "best": "none" } }],
        }] }))
        .await;
    assert_eq!(outcomes(&turned), [("a", "failed"), ("b", "succeeded")]);
    assert_eq!(turned["calls"][1]["output"], r#"{"best":"none"}"#);
    assert_sentence(&story, "Used default value for compare_prices");
}

#[tokio::test(start_paused = true)]
async fn eh_6_1_eh_6_2_eh_6_3_each_error_is_reported_with_its_decision_and_a_successful_retry_as_such() {
    let world = measured(&[]).await;
    world.recovers("t/flight_search");
    let (turned, story) =
        world.turned(&json!({ "turnId": "t-1", "calls": [{ "id": "f", "tool": "t/flight_search" }] })).await;
    assert_eq!((&turned["status"], &turned["turnId"]), (&json!("completed"), &json!("t-1")));
    let errors = events(&story, "ToolError");
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (&errors[0]["toolId"], &errors[0]["retryCount"], &errors[0]["decision"]),
        (&json!("flight_search"), &json!(0), &json!("RETRY"))
    );
    assert!(!errors[0]["error"].as_str().unwrap().is_empty());
    let decisions = events(&story, "Decision");
    let reason = "transient error, circuit closed, retries available (4 left)";
    assert_eq!((decisions.len(), &decisions[0]["reason"]), (1, &json!(reason)));
    assert_eq!(story["turn"]["turnId"], "t-1", "the turn");
    assert_sentence(&story, "Tool succeeded on retry 2");
}

#[tokio::test(start_paused = true)]
async fn eh_6_4_gr_5_an_alternative_steps_in_at_once_where_the_breaker_is_open() {
    let world = measured(&[]).await;
    world.fails("t/flight_search", 400);
    world.works("t/flight_search_backup");
    let plan = json!({ "calls": [
        { "id": "f", "tool": "t/flight_search", "alternatives": ["t/flight_search_backup"] },
    ] });
    let (turned, story) = world.turned(&plan).await;
    assert_eq!(outcomes(&turned), [("f", "succeeded")]);
    assert_eq!(turned["calls"][0]["tool"]["tool"], "flight_search_backup");
    assert_sentence(&story, "Used alternative tool");
    assert_eq!(world.runs("t/flight_search"), 1);
    world.send_as_admin("post", "/v1/breakers/tool:t:flight_search", &json!({ "to": "open" })).await;
    let (turned, _) = world.turned(&plan).await;
    assert_eq!(outcomes(&turned), [("f", "succeeded")]);
    assert_eq!(world.runs("t/flight_search"), 1, "nobody asked it");
}

#[tokio::test(start_paused = true)]
async fn eh_6_5_a_permanent_error_is_escalated_and_reported_to_the_user() {
    let world = measured(&[]).await;
    world.fails("t/flight_search", 400);
    let (turned, story) = world.turned(&json!({ "calls": [{ "id": "f", "tool": "t/flight_search" }] })).await;
    assert_eq!((&turned["escalated"], world.runs("t/flight_search")), (&json!(true), 1));
    assert_eq!(
        turned["summary"],
        "Nothing was completed: flight search failed; flight search needs your attention"
    );
    assert_eq!((&story["turn"]["summary"], &story["turn"]["escalated"]), (&turned["summary"], &json!(true)));
}

#[tokio::test(start_paused = true)]
async fn eh_6_6_eh_3_1_the_trace_has_each_error_with_its_class_breaker_decision_and_outcome() {
    let world = measured(&[]).await;
    world.fails("t/flight_search", 503);
    let (turned, story) = world.turned(&json!({ "calls": [{ "id": "f", "tool": "t/flight_search" }] })).await;
    let errors = events(&story, "ToolError");
    assert_eq!(errors.len(), 5, "{story:#}");
    for error in errors {
        for field in ["error", "classification", "decision", "circuitBreakerState", "retryCount", "spanId"] {
            assert!(!error[field].is_null(), "{field} in {error}");
        }
    }
    assert_sentence(&story, "Circuit breaker opened for flight_search");
    assert_eq!((&turned["status"], &story["turn"]["status"]), (&json!("failed"), &json!("failed")));
    // The turn and its one call, each with an end; the call refers to its history.
    let spans = story["spans"].as_array().unwrap();
    assert_eq!((spans.len(), &spans[1]["parentSpanId"]), (2, &spans[0]["spanId"]));
    assert!(spans.iter().all(|span| span["endedAt"].is_string()));
    let request = spans[1]["requestId"].as_str().unwrap();
    let call = world.send_as_admin("get", &format!("/v1/history/{request}"), &Value::Null).await;
    let attempts = call["traces"][0]["steps"].as_array().map_or(0, Vec::len);
    assert!(attempts > 5, "{call:#}");
}

#[tokio::test(start_paused = true)]
async fn eh_7_3_eh_7_4_a_retry_ends_at_its_timeout_and_at_the_deadline_of_the_turn() {
    for (timeout, elapsed, outcome, runs) in [(30_000, 55, "succeeded", 3), (40_000, 60, "cancelled", 2)] {
        let world = measured(&[("timeout", "40s")]).await;
        world.tool("t/flight_search", async |number, _| match number {
            1 => {
                tokio::time::sleep(Duration::from_secs(25)).await;
                Err(http_fault(503))
            }
            2 => std::future::pending().await,
            _ => Ok(ToolOutput::text("well")),
        });
        let plan = json!({ "deadlineMs": 60_000, "calls": [
            { "id": "f", "tool": "t/flight_search", "timeoutMs": timeout },
        ] });
        let before = Instant::now();
        let (turned, _) = world.turned(&plan).await;
        assert_eq!((before.elapsed().as_secs(), outcomes(&turned)), (elapsed, vec![("f", outcome)]));
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(world.runs("t/flight_search"), runs, "nothing is tried after the deadline");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_again_runs_nothing_that_was_finished() {
    let world = measured(&[]).await;
    world.works("t/flight_search");
    world.recovers("t/hotel_search");
    let plan = json!({ "turnId": "trip", "calls": [
        { "id": "f", "tool": "t/flight_search" }, { "id": "h", "tool": "t/hotel_search" },
    ] });
    let (first, _) = world.turned(&plan).await;
    let (again, story) = world.turned(&plan).await;
    assert_eq!(outcomes(&first), outcomes(&again));
    let outputs =
        |turned: &Value| [turned["calls"][0]["output"].clone(), turned["calls"][1]["output"].clone()];
    assert_eq!(outputs(&first), outputs(&again));
    assert_eq!((world.runs("t/flight_search"), world.runs("t/hotel_search")), (1, 2));
    assert_sentence(&story, "Finished earlier, not run again: flight_search");
    let list = world.send_as_admin("get", "/v1/traces?turn=trip", &Value::Null).await;
    let listed: Vec<_> = list["turns"].as_array().unwrap().iter().map(|turn| &turn["traceId"]).collect();
    assert_eq!(listed, [&again["traceId"], &first["traceId"]], "the newest first");
    let by_name = world.send_as_admin("get", "/v1/traces/trip", &Value::Null).await;
    assert_eq!(by_name["turn"]["traceId"], again["traceId"]);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_turn_is_in_flight_and_a_turn_can_be_cancelled() {
    let world = measured(&[]).await;
    world.hangs("t/flight_search");
    world.works("t/hotel_search");
    let plan = json!({ "turnId": "trip", "calls": [
        { "id": "f", "tool": "t/flight_search" },
        { "id": "h", "tool": "t/hotel_search", "dependsOn": ["f"] },
    ] });
    let (first, ()) = tokio::join!(world.turn(&plan), async {
        settle().await;
        let second = world.turn(&plan).await;
        assert_eq!((second.status, second.code()), (StatusCode::CONFLICT, "in_flight"), "{}", second.body);
        assert!(second.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
        let listed = world.send_as_admin("get", "/v1/traces", &Value::Null).await;
        assert_eq!(listed["turns"][0]["status"], Value::Null, "it runs: {listed}");
        assert_eq!(world.post("/v1/turns/nobody/cancel", &[], "").await.status, StatusCode::NOT_FOUND);
        let withdrawn = world.post("/v1/turns/trip/cancel", &[], "").await;
        assert_eq!((withdrawn.status, &withdrawn.body), (StatusCode::OK, &json!({ "withdrawn": 1 })));
    });
    assert_eq!(outcomes(&first.body), [("f", "cancelled"), ("h", "skipped")]);
    assert_eq!((&first.body["endedBy"], world.runs("t/hotel_search")), (&json!("cancel"), 0));
    let again = world.post("/v1/turns/trip/cancel", &[], "").await;
    assert_eq!(again.status, StatusCode::NOT_FOUND, "it runs no more");
}

#[tokio::test(start_paused = true)]
async fn invalid_plans_are_refused_with_all_their_errors_and_nothing_runs() {
    let world = measured(&[]).await;
    world.works("t/x");
    let response = world
        .turn(&json!({ "calls": [
            { "id": "a", "tool": "t/x", "dependsOn": ["b"] },
            { "id": "b", "tool": "t/x", "dependsOn": ["a", "nobody"] },
            { "id": "c", "tool": "t/x", "params": { "x": { "$from": "c" } } },
            { "id": "d", "tool": "nowhere", "params": { "x": { "$from": "a", "path": "no pointer" } } },
            { "id": "e", "tool": "t/x", "params": { "x": { "$from": "a", "path": "/y" } },
              "dependsOn": [{ "id": "a", "default": { "z": 1 } }] },
        ] }))
        .await;
    assert_eq!((response.status, response.code()), (StatusCode::BAD_REQUEST, "invalid_plan"));
    let mistakes = response.body["error"]["mistakes"].as_array().unwrap();
    let at = |path: &str| mistakes.iter().any(|mistake| mistake["path"].as_str().unwrap().starts_with(path));
    for path in
        ["/calls/0", "/calls/1/dependsOn/1", "/calls/2", "/calls/3/tool", "/calls/3/params", "/calls/4"]
    {
        assert!(at(path), "{path}: {mistakes:#?}");
    }
    let calls: Vec<_> =
        (0..10_000).map(|number| json!({ "id": number.to_string(), "tool": "t/x" })).collect();
    let response = world.turn(&json!({ "calls": calls })).await;
    assert_eq!((response.status, response.code()), (StatusCode::BAD_REQUEST, "invalid_plan"), "too many");
    assert!(response.body["error"]["message"].as_str().unwrap().contains("10000 calls, at most 1000"));
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let response = world.post("/v1/turns", &[], &turn_of(&json!({})).to_string().replace("{}", &deep)).await;
    assert_eq!((response.status, response.code()), (StatusCode::BAD_REQUEST, "invalid_envelope"));
    let chain: Vec<_> = (0..1000)
        .map(|number: u32| {
            let before: Vec<_> = number.checked_sub(1).iter().map(ToString::to_string).collect();
            json!({ "id": number.to_string(), "tool": "t/x", "dependsOn": before })
        })
        .collect();
    assert_eq!(world.runs("t/x"), 0);
    let (turned, _) = world.turned(&json!({ "calls": chain })).await;
    assert_eq!(
        (&turned["status"], world.runs("t/x")),
        (&json!("completed"), 1000),
        "a deep chain is no mistake"
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_output_value_fails_the_call_that_needs_it() {
    let world = measured(&[]).await;
    world.works("t/x");
    world.works("t/y");
    let (turned, _) = world
        .turned(&json!({ "calls": [{ "id": "a", "tool": "t/x" },
            { "id": "b", "tool": "t/y", "params": { "x": { "$from": "a", "path": "/not/there" } } }] }))
        .await;
    assert_eq!(outcomes(&turned), [("a", "succeeded"), ("b", "failed")]);
    assert!(turned["calls"][1]["message"].as_str().unwrap().contains("/not/there"), "{turned}");
    assert_eq!(world.runs("t/y"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_can_be_followed_and_its_trace_exported_line_by_line() {
    let world = measured(&[]).await;
    world.recovers("t/flight_search");
    let plan = json!({ "turnId": "trip", "calls": [{ "id": "f", "tool": "t/flight_search" }] });
    let response =
        world.post("/v1/turns", &[("accept", "text/event-stream")], &turn_of(&plan).to_string()).await;
    let text = response.body.as_str().unwrap();
    let received: Vec<(&str, Value)> = text
        .split("\n\n")
        .filter_map(|event| {
            let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
            let data = serde_json::from_str(data).unwrap();
            assert_readable(&data);
            Some((name, data))
        })
        .collect();
    let (last, events) = received.split_last().unwrap();
    assert_eq!((last.0, &last.1["status"]), ("result", &json!("completed")));
    assert!(events.iter().all(|(name, _)| *name == "event"), "{text}");
    let lines = world
        .send(
            "get",
            "/v1/traces/trip",
            &[("authorization", "Bearer person"), ("accept", "application/jsonl")],
            "",
        )
        .await;
    let lines: Vec<Value> =
        lines.body.as_str().unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.iter().for_each(assert_readable);
    assert_eq!(lines[0]["turn"]["turnId"], "trip");
    let written: Vec<_> = lines.iter().filter_map(|line| line.get("event")).collect();
    let streamed: Vec<_> = events.iter().map(|(_, event)| event).collect();
    assert_eq!(written, streamed, "what was told is what is kept");
    // A refused turn gets an error status, with or without events.
    let wrong = world
        .post("/v1/turns", &[("accept", "text/event-stream")], &turn_of(&json!({ "calls": [] })).to_string())
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_leaves_no_call_running_and_can_submit_the_turn_again() {
    let world = measured(&[]).await;
    world.tool("t/flight_search", async |number, _| {
        if number == 1 {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        Ok(ToolOutput::text("well"))
    });
    world.works("t/hotel_search");
    let plan = json!({ "turnId": "trip", "calls": [
        { "id": "f", "tool": "t/flight_search" },
        { "id": "h", "tool": "t/hotel_search", "dependsOn": ["f"] },
    ] });
    for headers in [&[][..], &[("accept", "text/event-stream")]] {
        let turn = turn_of(&plan).to_string();
        let left =
            tokio::time::timeout(Duration::from_secs(1), world.post("/v1/turns", headers, &turn)).await;
        assert!(left.is_err());
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.runs("t/hotel_search"), 0, "nobody waits for it");
    let (turned, _) = world.turned(&plan).await;
    assert_eq!(turned["status"], "completed", "{turned}");
    assert_eq!(world.runs("t/hotel_search"), 1);
}

#[tokio::test(start_paused = true)]
async fn sf_7_turns_of_tenants_are_separate_and_each_tenant_cancels_only_its_own() {
    let access = access_of(&[("ann", Some("north")), ("bob", Some("south"))]);
    let world = ApiTestWorld::opened(Steadfast::builder(), MEASURED, access).await;
    world.hangs("t/flight_search");
    let plan = json!({ "turnId": "trip", "calls": [{ "id": "f", "tool": "t/flight_search" }] });
    let mut turn = turn_of(&plan);
    turn["target"].as_object_mut().unwrap().remove("actorId");
    let bearer = |name: &str| format!("Bearer token of {name}");
    let (anns, bobs) = (bearer("ann"), bearer("bob"));
    let (ann, bob) = ([("authorization", anns.as_str())], [("authorization", bobs.as_str())]);
    let text = turn.to_string();
    let (first, second, ()) =
        tokio::join!(world.post("/v1/turns", &ann, &text), world.post("/v1/turns", &bob, &text), async {
            settle().await;
            let mine = world.post("/v1/turns/trip/cancel", &ann, "").await;
            assert_eq!(mine.body, json!({ "withdrawn": 1 }), "not that of the other");
            let listed = world.send_as_admin("get", "/v1/traces?tenant=south", &Value::Null).await;
            assert_eq!(listed["turns"].as_array().unwrap().len(), 1);
            settle().await;
            world.post("/v1/turns/trip/cancel", &bob, "").await;
        });
    assert_eq!(
        (first.status, second.status),
        (StatusCode::OK, StatusCode::OK),
        "{} {}",
        first.body,
        second.body
    );
    let response =
        send_bytes(&world.api, Request::get("/v1/traces").header("authorization", &anns), Vec::new()).await;
    assert_eq!(response.status, StatusCode::FORBIDDEN, "clients make calls");
    turn["target"]["tenantId"] = "south".into();
    let other = world.post("/v1/turns", &ann, &turn.to_string()).await;
    assert_eq!(other.status, StatusCode::FORBIDDEN);
}

#[tokio::test(start_paused = true)]
async fn sf_6_secrets_in_tool_outputs_are_in_no_trace() {
    // The second is retried, with an event for each attempt.
    for (status, count) in [(400, 1), (503, 5)] {
        let world = measured(&[]).await;
        world.tool("t/x", move |_, _| async move {
            let message = "refused for Authorization: Bearer sk-live-4f9a8b7c6d5e4f3a2b1c";
            Err(steadfast::call::classify::AttemptFault::new(
                steadfast::call::classify::FaultSource::Http { status },
                message,
            )
            .into())
        });
        let (_, story) = world.turned(&json!({ "calls": [{ "id": "a", "tool": "t/x" }] })).await;
        assert!(!story.to_string().contains("4f9a8b7c"), "{story:#}");
        let errors = events(&story, "ToolError");
        assert_eq!(errors.len(), count, "{story:#}");
        assert!(errors.iter().all(|error| error["error"].as_str().unwrap().contains("refused for")));
    }
}

#[tokio::test(start_paused = true)]
async fn tg_2_the_failures_of_a_turn_are_counted_together_and_too_many_stop_it() {
    let world = measured(&[("guard.per_turn", "3")]).await;
    for number in 0..6 {
        world.fails(&format!("t/x{number}"), 400);
    }
    let calls: Vec<_> = (0..6)
        .map(|number| json!({ "id": number.to_string(), "tool": format!("t/x{number}"), "params": { "n": number } }))
        .collect();
    let plan = json!({ "parallelism": 1, "calls": calls });
    let (turned, _) = world.turned(&plan).await;
    let codes: Vec<_> = turned["calls"].as_array().unwrap().iter().map(|call| &call["code"]).collect();
    assert_eq!(
        codes,
        [
            "tool_error",
            "tool_error",
            "tool_error",
            "tool_error_limit",
            "tool_error_limit",
            "tool_error_limit"
        ]
    );
    assert_eq!((world.runs("t/x2"), world.runs("t/x3")), (1, 0));
    // The limit starts again for another turn.
    let (turned, _) = world.turned(&plan).await;
    assert_eq!(turned["calls"][0]["code"], "tool_error");
}

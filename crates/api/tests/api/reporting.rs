//! Reports of hosts, their effect on trust, and approvals by operators.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{ApiTestWorld, envelope, gathered_is_written, in_session, keyed};

async fn report(world: &ApiTestWorld, path: &str, body: &Value) -> Value {
    let response = world.post(path, &[], &body.to_string()).await;
    assert_eq!(response.status, StatusCode::OK, "{}", response.body);
    response.body["changes"].clone()
}

async fn fails(world: &ApiTestWorld, more: Value) -> Value {
    let mut body =
        json!({ "toolName": "search", "pluginName": "web", "error": "it broke", "severity": "server_error" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    report(world, "/v1/failures", &body).await
}

#[tokio::test(start_paused = true)]
async fn rp_8_rp_9_reports_cost_a_tool_its_trust_and_earn_it_back() {
    let world = ApiTestWorld::new(&[]).await;
    for _ in 0..2 {
        assert_eq!(fails(&world, json!({})).await, json!([]));
    }
    let changes = fails(&world, json!({ "durationMs": 12 })).await;
    let change = &changes[0];
    assert_eq!((&change["from"], &change["to"]), (&json!("trusted"), &json!("escalated")), "{changes}");
    assert_eq!(
        (&change["tool"], &change["failures"]),
        (&json!({ "namespace": "web", "tool": "search" }), &json!(3))
    );
    assert!(
        change["notify"] == true && change["until"].is_u64() && change["reason"].is_string(),
        "{changes}"
    );
    tokio::time::advance(Duration::from_secs(31 * 60)).await;
    let worked = json!({ "toolName": "search", "pluginName": "web" });
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(report(&world, "/v1/successes", &worked).await.as_array().unwrap().clone());
    }
    let last = all.last().unwrap();
    assert_eq!((&last["to"], &last["notify"]), (&json!("trusted"), &json!(true)), "{all:?}");
    let score = world.send("get", "/v1/tools/web%2Fsearch/score", &[], "").await;
    assert_eq!((score.status, &score.body["trust"]), (StatusCode::OK, &json!("trusted")), "{}", score.body);
    for path in ["/v1/tools/web%2Fnone/score", "/v1/tools/none/score"] {
        assert_eq!(world.send("get", path, &[], "").await.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test(start_paused = true)]
async fn rp_9_a_report_has_a_severity_a_domain_and_a_recoverable_flag() {
    let world = ApiTestWorld::new(&[]).await;
    let changes = fails(&world, json!({ "severity": "security", "recoverable": false, "domain": "api.example.com", "service": "atlassian", "context": { "turn": 3 } })).await;
    assert_eq!((&changes[0]["to"], &changes[0]["until"]), (&json!("blocked"), &Value::Null), "{changes}");
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    let response = world.call(&envelope("web/search", json!({}))).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::FORBIDDEN, "tool_blocked"),
        "{}",
        response.body
    );
    let response = world.post("/v1/failures", &[], r#"{"tool_name":"t","severity":"bad"}"#).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    let message = response.body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains(r#""tool_name" is spelled "toolName""#) && message.contains("severity: expected"),
        "{message}"
    );
}

/// A client that could report on shared tools could take their trust, or restore it for tools that the client broke.
#[tokio::test(start_paused = true)]
async fn sf_7_clients_cannot_report_on_tools_that_run_here() {
    let world = ApiTestWorld::new(&[]).await;
    let person = [("authorization", "Bearer person")];
    let own_tool = json!({ "toolName": "pay", "pluginName": "bank", "error": "no" });
    let by_domain = json!({ "toolName": "t", "pluginName": "web", "error": "no", "domain": "bank" });
    let by_service = json!({ "toolName": "t", "pluginName": "web", "error": "no", "service": "bank" });
    for report in [own_tool, by_domain, by_service].map(|report| report.to_string()) {
        let response = world.post("/v1/failures", &[], &report).await;
        assert_eq!((response.status, response.code()), (StatusCode::FORBIDDEN, "forbidden"), "{report}");
        let response = world.post("/v1/failures", &person, &report).await;
        assert_eq!(response.status, StatusCode::OK, "{}", response.body);
    }
    let begin = envelope("bank/pay", json!({})).to_string();
    let response = world.post("/v1/calls/begin", &[], &begin).await;
    assert_eq!(response.status, StatusCode::FORBIDDEN);
    assert!(
        response.body["error"]["message"].as_str().unwrap().contains("POST /v1/calls"),
        "{}",
        response.body
    );
    assert_eq!(world.post("/v1/calls/begin", &person, &begin).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn rp_7_rp_13_an_escalated_tool_requires_approval_with_reasons_and_its_trust_is_restored() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("web/search");
    for _ in 0..3 {
        fails(&world, json!({})).await;
    }
    let call = envelope("web/search", json!({ "q": "rust" }));
    let response = world.call(&call).await;
    assert_eq!(
        (response.status, response.code()),
        (StatusCode::CONFLICT, "approval_required"),
        "{}",
        response.body
    );
    assert_eq!(world.runs("web/search"), 0);
    gathered_is_written().await;
    let waiting = world.send_as_admin("get", "/v1/approvals", &Value::Null).await;
    let (id, prompt) = (&waiting["approvals"][0]["id"], &waiting["approvals"][0]["prompt"]);
    for fact in ["reason", "failures", "window", "recoveryHint", "summary", "warnings", "level", "formatHint"]
    {
        assert!(!prompt[fact].is_null(), "{fact} in {prompt}");
    }
    world.send_as_admin("post", &format!("/v1/approvals/{id}"), &json!({ "decision": "once" })).await;
    assert_eq!(world.call(&call).await.status, StatusCode::OK, "approved");
    assert_eq!(world.call(&call).await.status, StatusCode::CONFLICT, "once");
    let trust = world.send_as_admin("get", "/v1/trust", &Value::Null).await;
    assert!(trust["trust"].as_array().unwrap().iter().any(|state| state["state"] == "escalated"), "{trust}");
    world.send_as_admin("post", "/v1/trust/web%2Fsearch/reset", &Value::Null).await;
    assert_eq!(world.call(&call).await.status, StatusCode::OK, "forgiven");
    assert_eq!(world.runs("web/search"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_the_guard_stops_is_set_free() {
    let world = ApiTestWorld::new(&[]).await;
    let call = envelope("web/none", json!({}));
    for _ in 0..3 {
        world.call(&call).await;
    }
    assert_eq!(world.call(&call).await.code(), "loop_detected");
    let freed = world.send_as_admin("post", "/v1/guard/reset", &json!({ "session": "s-1" })).await;
    assert_eq!(freed["freed"].as_array().unwrap().len(), 1, "{freed}");
    assert_eq!(world.call(&call).await.code(), "unknown_tool");
    assert_eq!(
        world.send_as_admin("post", "/v1/guard/reset", &json!({ "session": "other" })).await,
        json!({ "freed": [] })
    );
    let audit = world.send_as_admin("get", "/v1/audit", &Value::Null).await;
    let actions: Vec<_> = audit["audit"].as_array().unwrap().iter().map(|entry| &entry["deed"]).collect();
    assert_eq!(actions, ["guard_reset", "guard_reset"]);
}

#[tokio::test(start_paused = true)]
async fn the_debug_endpoint_forces_a_breaker_open_resets_it_and_deletes_records() {
    let world = ApiTestWorld::new(&[]).await;
    world.works("bank/pay");
    let call = keyed("bank/pay", json!({}), "k");
    let debug = async |body: Value| world.send_as_admin("post", "/debug/tool-reliability", &body).await;
    let opened = debug(json!({ "action": "force_open", "tool": "bank/pay", "for": "90s" })).await;
    assert_eq!(opened["breaker"]["breaker"]["state"], "FORCED_OPEN", "{opened}");
    let response = world.call(&in_session(call.clone(), "s-2")).await;
    assert_eq!(
        (response.status, response.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, Some("90")),
        "{}",
        response.body
    );
    debug(json!({ "action": "force_open", "tool": "bank/pay" })).await;
    let response = world.call(&in_session(call.clone(), "s-3")).await;
    assert_eq!(
        (response.code(), response.header("retry-after")),
        ("circuit_open", Some("30")),
        "until somebody resets it"
    );
    debug(json!({ "action": "reset", "tool": "bank/pay" })).await;
    assert_eq!(world.call(&call).await.status, StatusCode::OK);
    assert_eq!(debug(json!({ "action": "flush", "tool": "bank/pay" })).await, json!({ "forgotten": 1 }));
    assert_eq!(world.call(&call).await.body["fromCache"], false);
    assert_eq!(world.runs("bank/pay"), 2);
    for wrong in [
        json!({ "action": "dance" }),
        json!({ "action": "reset", "tool": "pay" }),
        json!({ "action": "flush" }),
    ] {
        let response = world
            .post("/debug/tool-reliability", &[("authorization", "Bearer person")], &wrong.to_string())
            .await;
        assert_eq!(response.status, StatusCode::BAD_REQUEST, "{}", response.body);
    }
    let response =
        world.post("/debug/tool-reliability", &[], r#"{"action":"reset","tool":"bank/pay"}"#).await;
    assert_eq!(response.status, StatusCode::UNAUTHORIZED);
}

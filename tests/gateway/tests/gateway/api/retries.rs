//! TR-5 to TR-7 and TR-11: retries, and their limits.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use serde_json::json;

use super::{ApiGateway, KINDS, PLAIN, envelope, keyed};

#[test]
fn tr_5_two_timeouts_and_a_success_are_three_attempts_with_jittered_delays() {
    let gateway = ApiGateway::new("tr_5", PLAIN);
    thread::scope(|scope| {
        for (kind, id) in KINDS.into_iter().flat_map(|kind| ["a", "b", "c"].map(|id| (kind, id))) {
            let gateway = &gateway;
            scope.spawn(move || {
                // Timeouts behind the tool, which reports them. A timeout of the gateway could come between a good answer and
                // its caller.
                let params = json!({ "id": id, "fault": "504", "times": 2 });
                let response = gateway.call(&envelope(&format!("{kind}/look"), &params));
                assert_eq!(
                    (response.status, &response.body["attempts"]),
                    (200, &json!(3)),
                    "{}",
                    response.body
                );
                assert_eq!(response.text(), format!("look {id}, run 3"));
                assert_eq!(response.body["retriedBy"].as_array().map(Vec::len), Some(2), "{}", response.body);
                assert_eq!(gateway.count(kind, &format!("look {id}")), 3);
            });
        }
    });
    let mut waits = BTreeSet::new();
    for retry in gateway.logged_times("tool_call_retry", 18) {
        let (attempt, wait) = (retry["attempt"].as_u64().unwrap(), retry["delayMs"].as_u64().unwrap());
        assert!(wait <= if attempt == 2 { 200 } else { 400 }, "exponential from 200 ms: {retry}");
        waits.insert(wait);
    }
    assert!(waits.len() >= 6, "waits are spread: {waits:?}");
    for kind in KINDS {
        let response = gateway.call(&envelope(&format!("{kind}/look"), &json!({ "id": "stable" })));
        assert_eq!(
            (&response.body["attempts"], response.text()),
            (&json!(1), "look stable, run 1"),
            "{}",
            response.body
        );
        assert!(response.body["retriedBy"].is_null(), "{}", response.body);
    }
    assert_eq!(gateway.logged("tool_call_retry").len(), 18);
}

#[test]
fn tr_6_a_400_is_final_after_one_attempt_and_arrives_unchanged() {
    let gateway = ApiGateway::new("tr_6", PLAIN);
    for kind in KINDS {
        for tool in ["pay", "look"] {
            let call = keyed(&format!("{kind}/{tool}"), &json!({ "id": "a", "fault": "400" }), tool);
            let response = gateway.call(&call);
            let error = &response.body["error"];
            assert_eq!((response.status, response.code()), (200, "tool_error"), "{}", response.body);
            assert_eq!((&error["terminal"], &error["retriable"]), (&json!(true), &json!(false)), "{error}");
            assert!(error["rule"].as_str().unwrap().contains("400"), "{error}");
            assert_eq!(
                kind == "http",
                response.message().contains("no such account"),
                "its own words: {error}"
            );
            assert_eq!(
                (&response.body["attempts"], gateway.count(kind, &format!("{tool} a"))),
                (&json!(1), 1)
            );
            // A repeated call gets the same answer.
            let again = gateway.call(&call);
            assert_eq!((&again.body["fromCache"], again.message()), (&json!(true), response.message()));
            assert_eq!(gateway.count(kind, &format!("{tool} a")), 1);
            let good = gateway.call(&envelope(&format!("{kind}/{tool}"), &json!({ "id": "b" })));
            assert_eq!((good.status, &good.body["attempts"]), (200, &json!(1)), "{}", good.body);
        }
    }
    assert!(gateway.logged("tool_call_retry").is_empty());
}

#[test]
fn tr_7_a_tool_that_always_fails_exhausts_its_attempts() {
    let gateway = ApiGateway::with("tr_7", PLAIN, "breaker.cooldown = \"10m\"\n", |_| {});
    thread::scope(|scope| {
        for kind in KINDS {
            let gateway = &gateway;
            scope.spawn(move || {
                let tool = format!("{kind}/look");
                let response = gateway.call(&envelope(&tool, &json!({ "id": "a", "fault": "503" })));
                assert_eq!((response.status, response.code()), (502, "retry_exhausted"), "{}", response.body);
                assert_eq!(response.body["status"], "retry_exhausted");
                assert_eq!((&response.body["attempts"], gateway.count(kind, "look a")), (&json!(4), 4));
                // A caller may ask for fewer attempts.
                let mut modest = envelope(&tool, &json!({ "id": "b", "fault": "503" }));
                modest["transport"]["retryBudget"] = json!({ "maxAttempts": 2, "maxElapsedMs": 60_000 });
                assert_eq!(gateway.call(&modest).code(), "retry_exhausted");
                assert_eq!(gateway.count(kind, "look b"), 2);
                // The breaker has counted all six. Two more make eight, which open it for a tool that only reads.
                assert_eq!(gateway.breaker(&tool)["state"], "CLOSED");
                modest["payload"]["params"]["id"] = "c".into();
                gateway.call(&modest);
                assert_eq!(gateway.breaker(&tool)["state"], "OPEN", "{}", gateway.get("/v1/breakers"));
                // Other tools are not delayed.
                let other = gateway.call(&envelope(&format!("{kind}/pay"), &json!({ "id": "d" })));
                assert_eq!(other.text(), "pay d, run 1", "{}", other.body);
            });
        }
    });
}

#[test]
fn tr_11_nothing_is_retried_against_an_open_breaker_and_there_is_no_storm() {
    let config = format!("{PLAIN}retry.attempts = 20\nretry.base = \"1ms\"\nbreaker.cooldown = \"10m\"\n");
    let gateway = ApiGateway::new("tr_11", &config);
    for kind in KINDS {
        let call = |id: &str| envelope(&format!("{kind}/look"), &json!({ "id": id, "fault": "503" }));
        // Closed, it is retried until the breaker opens, and not once more.
        let response = gateway.call(&call("a"));
        assert_eq!((response.status, response.code()), (503, "circuit_open"), "{}", response.body);
        assert_eq!((&response.body["attempts"], gateway.count(kind, "look a")), (&json!(8), 8));
        // Many callers during a full outage make no attempt at all.
        thread::scope(|scope| {
            for number in 0..30 {
                let (gateway, call) = (&gateway, call(&number.to_string()));
                scope.spawn(move || {
                    let response = gateway.call(&call);
                    assert_eq!(
                        (response.status, &response.body["attempts"]),
                        (503, &json!(0)),
                        "{}",
                        response.body
                    );
                    assert_eq!(response.code(), "circuit_open");
                });
            }
        });
        assert_eq!(gateway.ledger(kind).lines().filter(|line| line.starts_with("look ")).count(), 8);
    }
}

#[test]
fn eh_1_5_the_manifest_of_a_tool_classifies_its_errors() {
    let config = format!("{PLAIN}retry.base = \"1ms\"\n");
    let gateway = ApiGateway::with("eh_1_5_manifest", &config, "", |command| {
        let folder = command.get_current_dir().unwrap();
        fs::write(
            folder.join("look.json"),
            r#"{"id": "look", "classification": {"503": "permanent", "400": "transient"}}"#,
        )
        .unwrap();
        command.args(["--config", "steadfast.toml", "--config", "look.json"]);
    });
    for (tool, fault, attempts) in [("http/look", "503", 1), ("http/look", "400", 2), ("http/pay", "400", 1)]
    {
        let params = json!({ "id": format!("{tool} {fault}"), "fault": fault, "times": 1 });
        let response = gateway.call(&envelope(tool, &params));
        assert_eq!(response.body["attempts"], attempts, "{tool} {fault}: {}", response.body);
    }
}

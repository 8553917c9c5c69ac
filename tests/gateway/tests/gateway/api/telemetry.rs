//! TR-12 to TR-14: notices of each attempt and each transition, and the switch that turns everything off.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ApiGateway, ApiTestResponse, KINDS, PLAIN, envelope, keyed};
use crate::raw::send;

#[test]
fn tr_12_each_attempt_is_reported_once_before_and_once_after_and_a_short_circuit_once() {
    let gateway = ApiGateway::new("tr_12", &format!("{PLAIN}retry.base = \"1ms\"\n"));
    for kind in KINDS {
        let tool = format!("{kind}/look");
        let call = keyed(&tool, &json!({ "id": "a", "fault": "503", "times": 1 }), "k");
        let mut event_stream = gateway.listen(&format!("?tool={tool}"));
        // A caller can follow its own call while it runs.
        let request = gateway.request("POST /v1/calls").header("accept", "text/event-stream");
        let streamed = send(&request.body(call.to_string())).unwrap();
        let text = String::from_utf8(streamed.body).unwrap();
        let events: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        let states: Vec<_> = events.iter().filter_map(|event| event["state"].as_str()).collect();
        assert_eq!(states, ["begun", "failed", "begun", "answered"], "{text}");
        assert_eq!(events.last().unwrap()["status"], "success", "{text}");
        gateway.call(&call);
        gateway.post_as_operator(&format!("POST /v1/breakers/tool:{kind}:look"), &json!({ "to": "open" }));
        assert_eq!(gateway.call(&envelope(&tool, &json!({ "id": "b" }))).code(), "circuit_open");
        let mut steps = Vec::new();
        while steps.last().map(String::as_str) != Some("tool_call_blocked") {
            let event = event_stream.any();
            let name = event["event"].as_str().unwrap();
            if ["attempt_start", "attempt_end", "replayed", "blocked"].iter().any(|end| name.ends_with(end)) {
                steps.push(name.to_owned());
            }
        }
        let attempt = ["tool_call_attempt_start", "tool_call_attempt_end"];
        let expected = [&attempt[..], &attempt[..], &["tool_call_replayed", "tool_call_blocked"]].concat();
        assert_eq!(steps, expected, "{kind}");
        assert_eq!((gateway.count(kind, "look a"), gateway.count(kind, "look b")), (2, 0));
    }
}

/// A host with hooks of its own runs its tool, and with it its hooks, once for each attempt that it is given.
#[test]
fn tr_12_a_host_gets_one_order_for_each_attempt_and_none_where_there_is_nothing_to_run() {
    let gateway = ApiGateway::new("tr_12_host", &format!("{PLAIN}retry.base = \"1ms\"\n"));
    let call = keyed("host/search", &json!({ "q": "rust" }), "k");
    let started = gateway.post("/v1/calls/begin", &call).body;
    let order = |response: &Value| (response["next"].clone(), response["attempt"].clone());
    assert_eq!(order(&started), (json!("run"), json!(1)), "{started}");
    let path = format!("/v1/calls/{}/report", started["id"].as_str().unwrap());
    let busy = json!({ "message": "busy", "source": { "kind": "http", "status": 503 }, "retryAfterMs": 1 });
    let again = gateway.post(&path, &json!({ "attempt": 1, "failure": busy })).body;
    assert_eq!(order(&again), (json!("run"), json!(2)), "{again}");
    let done = gateway.post(&path, &json!({ "attempt": 2, "output": { "content": "found" } })).body;
    assert_eq!((&done["next"], &done["result"]["attempts"]), (&json!("answer"), &json!(2)), "{done}");
    let replayed = gateway.post("/v1/calls/begin", &call).body;
    assert_eq!((&replayed["next"], &replayed["result"]["fromCache"]), (&json!("answer"), &json!(true)));
    assert_eq!(replayed["result"]["output"]["content"], "found", "{replayed}");
}

#[test]
fn tr_13_success_retry_failure_and_an_open_breaker_are_counted_and_logged_within_bounds() {
    let config = format!("{PLAIN}retry.base = \"1ms\"\nretry.attempts = 2\nmetrics.tools = 6\n");
    let gateway =
        ApiGateway::with("tr_13", &config, "breaker.consecutive = 2\nbreaker.cooldown = \"10m\"\n", |_| {});
    for kind in KINDS {
        let call = |tool: &str, params: Value| gateway.call(&envelope(&format!("{kind}/{tool}"), &params));
        call("pay", json!({ "id": "good" }));
        call("look", json!({ "id": "retried", "fault": "503", "times": 1 }));
        call("look", json!({ "id": "bad", "fault": "400" }));
        call("look", json!({ "id": "down", "fault": "503" }));
        let refused = call("look", json!({ "id": "refused" }));
        assert_eq!(refused.code(), "circuit_open", "{}", refused.body);
    }
    // More names than metrics should have.
    for number in 0..20 {
        gateway.call(&envelope(&format!("http/none{number}"), &json!({})));
    }
    let metrics = gateway.get("/metrics");
    let metrics = metrics.as_str().unwrap();
    let counted = |name: &str, labels: &[String]| -> u64 {
        let is_it = |line: &&str| {
            line.starts_with(&format!("steadfast_{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        };
        metrics
            .lines()
            .filter(is_it)
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    for kind in KINDS {
        let of = |tool: &str, label: &str| vec![format!("tool=\"{kind}/{tool}\""), label.to_owned()];
        for (tool, label, times) in [
            ("pay", "status=\"success\"", 1),
            ("look", "status=\"success\"", 1),
            ("look", "status=\"error\"", 1),
            ("look", "status=\"retry_exhausted\"", 1),
            ("look", "status=\"circuit_open\"", 1),
        ] {
            assert_eq!(counted("tool_calls_total", &of(tool, label)), times, "{kind} {label}: {metrics}");
            assert_eq!(counted("tool_call_duration_ms_count", &of(tool, label)), times, "{kind} {label}");
        }
        assert_eq!(counted("tool_retry_attempts_total", &of("look", "reason=")), 2, "{metrics}");
        let opened = of("look", "from_state=\"CLOSED\",to_state=\"OPEN\"");
        assert_eq!(counted("tool_circuit_breaker_transitions_total", &opened), 1, "{metrics}");
        assert_eq!(counted("tool_circuit_breaker_state", &of("look", "state=\"OPEN\"")), 1);
    }
    let labels: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.split("tool=\"").nth(1)?.split('"').next()).collect();
    assert!(labels.len() == 7 && labels.contains("other"), "{labels:?}");
    assert_eq!(counted("tool_calls_total", &["tool=\"other\"".to_owned()]), 20);
    let changes = gateway.logged_times("tool_call_circuit_state", KINDS.len());
    for change in changes {
        assert_eq!((&change["fromState"], &change["breakerState"]), (&json!("CLOSED"), &json!("OPEN")));
    }
    assert_eq!(gateway.logged("tool_call_retry").len(), 2 * KINDS.len());
}

/// Turned off, with limits that would show.
const TIGHT: &str = "validate_arguments = \"enforce\"\nretry.base = \"1ms\"\n[guard]\nper_turn = 1\nidentical = 1\n\
                     [breaker]\nconsecutive = 1\n[trust]\ncount = 1\n";

#[test]
fn tr_14_switched_off_calls_go_straight_through_and_switching_back_is_safe() {
    let mut gateway = ApiGateway::new("tr_14", TIGHT);
    let pay = |gateway: &ApiGateway, kind: &str, id: &str| -> ApiTestResponse {
        gateway.call(&keyed(&format!("{kind}/pay"), &json!({ "id": id }), "k"))
    };
    for kind in KINDS {
        assert_eq!(pay(&gateway, kind, "a").text(), "pay a, run 1");
    }
    gateway.kill();
    gateway.start(|command| {
        command.env("TOOL_RELIABILITY_ENABLED", "false");
    });
    for kind in KINDS {
        // A key has no effect: the same call runs again, and other arguments are no conflict.
        for (id, text) in [("a", "pay a, run 2"), ("b", "pay b, run 1"), ("b", "pay b, run 2")] {
            let response = pay(&gateway, kind, id);
            assert_eq!(
                (response.text(), &response.body["fromCache"]),
                (text, &json!(false)),
                "{}",
                response.body
            );
        }
        // Nothing is retried, marked, counted or refused, and the tool's answer arrives.
        for run in 1..=6 {
            let params = json!({ "id": "down", "fault": "503", "text": "HTTP 503: the cellar is flooded" });
            let response = gateway.call(&envelope(&format!("{kind}/look"), &params));
            assert!(response.message().contains("the cellar is flooded"), "{}", response.body);
            assert_eq!((&response.body["attempts"], gateway.count(kind, "look down")), (&json!(1), run));
        }
    }
    // A service receives the same requests as without the gateway.
    let requests = gateway.service.requests();
    let straight = requests.iter().rfind(|request| request.line.starts_with("POST /pay")).unwrap();
    assert_eq!(straight.body, json!({ "id": "b" }).to_string());
    assert!(straight.header("idempotency-key").is_none(), "{straight:?}");
    assert!(requests[0].header("idempotency-key").is_some(), "which it is not otherwise: {requests:?}");
    let events = ["tool_call_retry", "tool_call_guard", "tool_call_circuit_state", "tool_call_trust_state"];
    for event in events {
        assert!(gateway.logged(event).is_empty(), "{event}");
    }
    // Calls while it was off were not recorded. Earlier records are still there.
    gateway.kill();
    gateway.start(|_| {});
    for kind in KINDS {
        let response = pay(&gateway, kind, "a");
        assert_eq!(
            (response.text(), &response.body["fromCache"]),
            ("pay a, run 1", &json!(true)),
            "{}",
            response.body
        );
    }
}

#[test]
fn tr_14_the_switch_can_be_turned_while_it_runs() {
    let gateway = ApiGateway::new("tr_14_live", PLAIN);
    let pay = |kind: &str| gateway.call(&keyed(&format!("{kind}/pay"), &json!({ "id": "a" }), "k"));
    for (to, runs) in [("enforce", 1), ("off", 2), ("enforce", 1)] {
        gateway.post_as_operator("PUT /v1/switches", &json!({ "all": to }));
        for kind in KINDS {
            assert_eq!(pay(kind).text(), format!("pay a, run {runs}"), "{to}");
        }
    }
}

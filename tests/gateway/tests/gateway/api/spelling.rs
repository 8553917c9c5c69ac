//! The spelling of all output: every field is in camelCase, over HTTP, in the stream of events and with `--json`.
//! Besides, a failed call never says both that it may succeed later and that it may not.

use serde_json::{Value, json};

use super::trust::{STRICT, lose_trust};
use super::{ApiGateway, PLAIN, envelope};
use crate::world::wait;

/// Fields with names that are data: those of a tool or a host, those in the OpenAPI document, and the numbers of
/// failures by severity.
const FREE_FORM: &[&str] = &["output", "context", "argumentSummary", "failuresBySeverity", "components"];

/// Checks each field of an answer.
pub(super) fn check(answer: &Value) {
    match answer {
        Value::Array(items) => items.iter().for_each(check),
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(!name.contains('_'), "the field {name} is not in camelCase: {answer}");
                if !FREE_FORM.contains(&name.as_str()) {
                    check(value);
                }
            }
            if let Some(retriable) = answer["error"]["retriable"].as_bool() {
                assert!(retriable || answer["status"] != "retriable_error", "{answer}");
                assert!(!retriable || answer["status"] != "error", "{answer}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_field_of_every_answer_is_in_camel_case() {
    let config = format!("result_limit = \"1KiB\"\n{}", STRICT.replace("breaker.mode = \"off\"\n", ""));
    let gateway = ApiGateway::new("spelling", &config);
    let mut events = gateway.listen("");
    // An entry for each list: lost trust, a pending request, failures, a turn, a breaker that is held open.
    lose_trust(&gateway, "http");
    gateway.call(&envelope("http/look", &json!({ "id": "asked" })));
    let mut by_model = envelope("bank/look", &json!({ "id": "a" }));
    by_model["target"]["modelId"] = json!("model-1");
    gateway.call(&by_model);
    let seek = json!({ "id": "seek", "tool": "command/look", "params": { "id": "b" } });
    let broken = json!({ "id": "broken", "tool": "command/look", "params": { "id": "c", "fault": "503" } });
    let plan = json!({ "turnId": "trip", "calls": [seek, broken] });
    let target = json!({ "sessionKey": "s", "actorId": "ann" });
    gateway.post("/v1/turns", &json!({ "contractVersion": "1.1", "target": target, "plan": plan }));
    let report = json!({ "toolName": "fetch", "pluginName": "web", "error": "no", "severity": "crash", "modelId": "m" });
    for _ in 0..2 {
        gateway.post("/v1/failures", &report);
    }
    gateway.post_as_operator("POST /v1/breakers/tool:bank:pay", &json!({ "to": "open", "for": "1h" }));
    gateway.call(&envelope("bank/pay", &json!({ "id": "d" })));
    let count = |path: &str, list: &str| gateway.get(path)[list].as_array().map_or(0, Vec::len);
    for (path, list) in [
        ("/v1/trust", "trust"),
        ("/v1/approvals", "approvals"),
        ("/v1/failures", "failures"),
        ("/v1/tools/http%2Flook/failures", "failures"),
        ("/v1/breakers", "breakers"),
        ("/v1/domains", "domains"),
        ("/v1/models", "models"),
        ("/v1/tools", "tools"),
        ("/v1/history", "calls"),
        ("/v1/traces", "turns"),
        ("/v1/audit", "audit"),
        ("/v1/servers", "servers"),
        ("/v1/config", "settings"),
    ] {
        wait(|| count(path, list) > 0, || format!("{path} has rows"));
    }
    // Each answer is checked where it is received.
    let id = gateway.get("/v1/history?tool=bank/pay")["calls"][0]["requestId"].as_str().unwrap().to_owned();
    let long = json!({ "id": "e", "fault": "text", "text": "long ".repeat(1000) });
    let shortened = gateway.call(&envelope("bank/look", &long)).body;
    let result = shortened["shortened"]["id"].as_str().unwrap_or_else(|| panic!("{shortened}"));
    let document = gateway.get("/openapi.json");
    for (path, operations) in document["paths"].as_object().unwrap() {
        if operations.get("get").is_none() || path == "/v1/events" {
            continue;
        }
        // Only tools of servers have annotations.
        let name = if path.ends_with("/annotations") { "bank%2Flook" } else { "http%2Flook" };
        let path = path.replace("{name}", name);
        let of_it = match () {
            () if path.contains("traces") => "trip",
            () if path.contains("results") => result,
            () => &id,
        };
        let path = path.replace("{id}", of_it);
        assert!(!path.contains('{'), "{path}");
        gateway.get(&path);
    }
    for _ in 0..5 {
        events.next("tool_call_end");
    }
    for command in [
        &["status"][..],
        &["approvals"],
        &["breaker"],
        &["failures"],
        &["unknown"],
        &["trace"],
        &["trace", "trip"],
        &["explain", &id],
        &["explain", "trip"],
        &["doctor"],
    ] {
        let output = gateway.run(&[command, &["--json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        check(&serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?}: {error}: {text}")));
    }
}

/// The shell reports an unknown command: the tool does not exist, and calling it again does not help.
#[test]
fn a_tool_that_cannot_be_started_is_not_a_retriable_error() {
    let gateway = ApiGateway::new("spelling_gone", &format!("{PLAIN}retry.attempts = 1\n"));
    let missing = json!({ "kind": "exit", "code": 127 });
    let away = json!({ "kind": "transport", "error": "connection_refused", "written": false });
    for (tool, source, status, retriable) in
        [("gone", missing, "error", false), ("away", away, "retriable_error", true)]
    {
        let order = gateway.post("/v1/calls/begin", &envelope(&format!("host/{tool}"), &json!({}))).body;
        let path = format!("/v1/calls/{}/report", order["id"].as_str().unwrap());
        let failure = json!({ "message": "no", "source": source });
        let response = gateway.post(&path, &json!({ "attempt": 1, "failure": failure })).body;
        let result = &response["result"];
        assert_eq!(result["error"]["code"], "upstream_unavailable", "{response}");
        assert_eq!(
            (&result["status"], &result["error"]["retriable"]),
            (&json!(status), &json!(retriable)),
            "{response}"
        );
    }
    let status = || gateway.get("/v1/history?tool=host/gone")["calls"][0]["status"].clone();
    wait(|| status() == "error", || format!("it is kept: {}", status()));
}

#[test]
fn unknown_paths_parameters_and_names_are_refused_by_name() {
    let gateway = ApiGateway::new("spelling_names", PLAIN);
    for (line, status, parts) in [
        ("GET /v1/status?colour=red", 400, &["`colour`", "GET /v1/status takes no query parameters"][..]),
        ("GET /v1/tools?limit=1&colour=red", 400, &["`colour`", "`prefix`", "`limit`"]),
        ("GET /v1/nothing", 404, &["`/v1/nothing`", "/openapi.json"]),
        ("GET /v1/history/r-9", 404, &["request id", "`r-9`"]),
        ("GET /v1/traces/trip", 404, &["turn", "`trip`"]),
        ("GET /v1/tools/bank%2Fnobody/failures", 404, &["tool", "`bank/nobody`"]),
        ("POST /v1/trust/bank%2Fnobody/reset", 404, &["tool", "`bank/nobody`"]),
        ("DELETE /v1/status", 405, &["`/v1/status`", "the method DELETE", "takes GET, HEAD"]),
    ] {
        let response = gateway.request_as_operator(line, &Value::Null);
        assert_eq!(response.status, status, "{line}: {}", response.body);
        for part in parts {
            assert!(response.message().contains(part), "{line}: {part} in {}", response.message());
        }
    }
    let refused = gateway.request_as_operator("DELETE /v1/status", &Value::Null);
    assert_eq!(refused.answered.header("allow"), Some("GET, HEAD"));
}

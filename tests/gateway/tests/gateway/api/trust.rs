//! Trust over HTTP (RP-7 to RP-9, RP-13): a tool that fails needs approval, the reasons are reported, and trust is
//! restored by time or by an operator.

use std::fs;
use std::thread;

use serde_json::{Value, json};

use super::{ADMIN, ApiGateway, ApiTestResponse, KINDS, envelope};
use crate::client::McpTestClient;
use crate::raw::send;
use crate::world::wait;

/// Two failures within the hour are too many. No other mechanism interferes.
pub(super) const STRICT: &str =
    "guard.mode = \"off\"\nbreaker.mode = \"off\"\nretry.attempts = 1\n[trust]\ncount = 2\n";

fn call_look(gateway: &ApiGateway, kind: &str, params: Value) -> ApiTestResponse {
    gateway.call(&envelope(&format!("{kind}/look"), &params))
}

/// Makes the tool fail often enough to lose trust.
pub(super) fn lose_trust(gateway: &ApiGateway, kind: &str) {
    lose_trust_with(gateway, kind, ["bad 1", "bad 2"]);
}

/// Does the same with other arguments.
fn lose_trust_with(gateway: &ApiGateway, kind: &str, ids: [&str; 2]) {
    for id in ids {
        let response = call_look(gateway, kind, json!({ "id": id, "fault": "503" }));
        assert!(response.body["attempts"] == 1 && response.body["error"].is_object(), "{}", response.body);
    }
}

/// Waits for the pending request for approval of a tool of this kind. It is stored asynchronously.
fn waiting(gateway: &ApiGateway, kind: &str) -> Value {
    let of_kind = || {
        let body = gateway.get("/v1/approvals");
        let waiting = body["approvals"].as_array().unwrap().iter();
        waiting.filter(|one| one["tool"]["namespace"] == kind).cloned().collect::<Vec<_>>()
    };
    wait(|| of_kind().len() == 1, || format!("a request of {kind}: {:?}", of_kind()));
    of_kind().remove(0)
}

#[test]
fn rp_7_an_escalated_tool_needs_approval_although_it_was_allowed_with_all_facts_for_the_operator() {
    let gateway = ApiGateway::new("rp_7", STRICT);
    for kind in KINDS {
        assert_eq!(call_look(&gateway, kind, json!({ "id": "before" })).text(), "look before, run 1");
        lose_trust(&gateway, kind);
        let call = json!({ "id": "asked" });
        let refused = call_look(&gateway, kind, call.clone());
        assert_eq!((refused.status, refused.code()), (409, "approval_required"), "{}", refused.body);
        assert!(
            refused.message().contains(&format!("{kind}/look"))
                && refused.message().contains("2 failures in 1 h"),
            "{}",
            refused.message()
        );
        assert_eq!((&refused.body["attempts"], gateway.count(kind, "look asked")), (&json!(0), 0));

        let request = waiting(&gateway, kind);
        let prompt = &request["prompt"];
        assert_eq!((&prompt["state"], &prompt["failures"]), (&json!("escalated"), &json!(2)), "{request}");
        assert_eq!((&prompt["reason"], &prompt["window"]), (&json!("2 failures in 1 h"), &json!("1 h")));
        assert_eq!((&prompt["level"], &prompt["formatHint"]), (&json!("warning"), &json!("text")));
        assert!(prompt["recoveryHint"].as_str().unwrap().contains("3 successful calls"), "{prompt}");
        assert!(prompt["summary"].as_str().unwrap().contains(&format!("{kind}/look")), "{prompt}");
        let warnings: Vec<_> =
            prompt["warnings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for part in ["2 failures in 1 h", "1 h", "3 successful calls"] {
            assert!(warnings.iter().any(|line| line.contains(part)), "{part} in {warnings:?}");
        }
        assert_eq!(request["shown"], json!(call).to_string(), "what it would be called with: {request}");

        // An approval is for this call, once. A denial is for this request.
        let answer = |decision: &str| {
            let path = format!("POST /v1/approvals/{}", waiting(&gateway, kind)["id"]);
            gateway.post_as_operator(&path, &json!({ "decision": decision }))
        };
        assert_eq!(answer("once"), json!({ "granted": true }));
        assert_eq!(call_look(&gateway, kind, json!({ "id": "another" })).code(), "approval_required");
        gateway.post_as_operator(
            &format!("POST /v1/approvals/{}", waiting(&gateway, kind)["id"]),
            &json!({ "decision": "deny" }),
        );
        assert_eq!(call_look(&gateway, kind, call.clone()).text(), "look asked, run 1");
        // Another call with the same arguments, whether or not the answer to the first is known to have arrived.
        let mut another = envelope(&format!("{kind}/look"), &call);
        another["transport"]["dedupeMode"] = "disabled".into();
        assert_eq!(gateway.call(&another).code(), "approval_required", "it is spent");
        assert_eq!(answer("session"), json!({ "granted": true }));
        for id in ["first", "second"] {
            assert_eq!(call_look(&gateway, kind, json!({ "id": id })).text(), format!("look {id}, run 1"));
        }
        let mut elsewhere = envelope(&format!("{kind}/look"), &json!({ "id": "elsewhere" }));
        elsewhere["target"]["sessionKey"] = "s-2".into();
        assert_eq!(gateway.call(&elsewhere).code(), "approval_required", "of this conversation only");
        assert_eq!(gateway.count(kind, "look elsewhere") + gateway.count(kind, "look another"), 0);
        // The other tool has not failed.
        let pay = gateway.call(&envelope(&format!("{kind}/pay"), &json!({ "id": "a" })));
        assert_eq!(pay.text(), "pay a, run 1", "{}", pay.body);
    }
}

#[test]
fn rp_8_escalation_and_recovery_are_reported_with_their_facts() {
    let config = format!("{STRICT}duration = \"1s\"\ncooldown = \"0s\"\nsuccesses_to_recover = 2\n");
    let mut gateway = ApiGateway::new("rp_8", &config);
    thread::scope(|scope| {
        for kind in KINDS {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut event_stream =
                    gateway.listen(&format!("?event=tool_call_trust_state&tool={kind}/look"));
                lose_trust(gateway, kind);
                let mut next_change = |from: &str, to: &str| {
                    let event = event_stream.any();
                    assert_eq!(
                        (&event["fromState"], &event["trustState"]),
                        (&json!(from), &json!(to)),
                        "{event}"
                    );
                    for fact in ["time", "subject", "reason", "toolName", "toolNamespace"] {
                        assert!(event[fact].is_string(), "{fact} in {event}");
                    }
                    assert!(
                        event["subject"].as_str().unwrap().starts_with(&format!("{kind}/look")),
                        "{event}"
                    );
                    event
                };
                let lost = next_change("TRUSTED", "ESCALATED");
                assert_eq!(
                    (&lost["reason"], &lost["failures"], &lost["level"]),
                    (&json!("2 failures in 1 h"), &json!(2), &json!("warn"))
                );
                // When its time is over it runs without approval again, and regains trust.
                wait(
                    || call_look(gateway, kind, json!({ "id": "good" })).status == 200,
                    || format!("an end of the escalation of {kind}"),
                );
                next_change("ESCALATED", "RECOVERING");
                call_look(gateway, kind, json!({ "id": "good again" }));
                let won = next_change("RECOVERING", "TRUSTED");
                assert_eq!((&won["reason"], &won["level"]), (&json!("2 successful calls"), &json!("info")));
            });
        }
    });
    assert_eq!(gateway.get("/v1/trust")["trust"], json!([]));
    let metrics = gateway.get("/metrics");
    for kind in KINDS {
        for (from, to) in [("TRUSTED", "ESCALATED"), ("ESCALATED", "RECOVERING"), ("RECOVERING", "TRUSTED")] {
            let counted = format!(
                "steadfast_tool_trust_transitions_total{{tool=\"{kind}/look\",from_state=\"{from}\",to_state=\"{to}\"}} 1"
            );
            assert!(metrics.as_str().unwrap().contains(&counted), "{counted}: {metrics}");
        }
    }
    // They are stored permanently.
    gateway.stop();
    gateway.start(|_| {});
    assert_eq!(gateway.get("/v1/trust")["trust"], json!([]));
}

/// Sends a report of a host about a tool that it ran itself.
fn report(gateway: &ApiGateway, tool: &str, more: Value) -> Value {
    let mut body = json!({ "toolName": tool, "pluginName": "web", "error": "it broke" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let response = gateway.post("/v1/failures", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    response.body["changes"].clone()
}

#[test]
fn rp_9_a_report_carries_its_own_severity_domain_service_and_recoverable_flag() {
    let config = "[domains.\"api.example.com\".trust]\ncount = 1\n[domains.\"billing\".trust]\ncount = 1\n";
    let gateway = ApiGateway::new("rp_9", config);
    // The severity, whatever the text looks like.
    for _ in 0..5 {
        let words = json!({ "error": "HTTP 500 Internal Server Error", "severity": "informational" });
        assert_eq!(report(&gateway, "mild", words), json!([]));
    }
    let changes = report(&gateway, "wild", json!({ "error": "not found", "severity": "security" }));
    assert_eq!((&changes[0]["to"], &changes[0]["scope"]), (&json!("blocked"), &json!("tool")), "{changes}");
    // The domain: the rule of that domain or service applies, and the failure counts there.
    let severe = json!({ "severity": "server_error" });
    assert_eq!(report(&gateway, "search", severe.clone()), json!([]), "one of three");
    for (tool, field, value) in [("find", "domain", "api.example.com"), ("bill", "service", "billing")] {
        let mut more = severe.clone();
        more[field] = value.into();
        let changes = report(&gateway, tool, more);
        let of_domain = changes.as_array().unwrap().iter().find(|change| change["scope"] == "domain");
        assert_eq!(of_domain.map(|change| &change["domain"]), Some(&json!(value)), "{changes}");
        assert!(changes.as_array().unwrap().iter().all(|change| change["until"].is_u64()), "{changes}");
    }
    // Whether time heals the failure.
    let forever = json!({ "severity": "crash", "domain": "api.example.com", "recoverable": false });
    let changes = report(&gateway, "gone", forever);
    let of_tool = changes.as_array().unwrap().iter().find(|change| change["tool"]["tool"] == "gone").unwrap();
    assert_eq!((&of_tool["to"], &of_tool["until"]), (&json!("escalated"), &Value::Null), "{changes}");
    let body = gateway.get("/v1/trust");
    let of = |tool: &str| {
        let states = body["trust"].as_array().unwrap().iter();
        states.filter(|state| state["toolName"] == tool).cloned().collect::<Vec<_>>()
    };
    assert!(of("mild").is_empty() && of("search").is_empty(), "{body}");
    assert_eq!(of("wild")[0]["state"], "blocked", "{body}");
    assert_eq!(
        (&of("gone")[0]["state"], &of("gone")[0]["recoverable"]),
        (&json!("escalated"), &json!(false))
    );
    // Invalid reports are refused, with all problems at once.
    let refused =
        gateway.post("/v1/failures", &json!({ "tool_name": "x", "severity": "awful", "recoverable": "no" }));
    assert_eq!(refused.status, 400, "{}", refused.body);
    for part in ["\"tool_name\" is spelled \"toolName\"", "severity: expected", "recoverable: expected"] {
        assert!(refused.message().contains(part), "{part} in {}", refused.message());
    }
    let score = gateway.get("/v1/tools/web%2Fwild/score");
    assert_eq!(score["trust"], "blocked", "{score}");
}

#[test]
fn rp_13_the_status_is_the_same_over_every_surface_and_an_operator_restores_trust() {
    let gateway = ApiGateway::new("rp_13", &format!("gateway.reliability_tools = true\n{STRICT}"));
    let mut model = McpTestClient::at(gateway.address);
    model.initialize();
    model.request("tools/list", json!({}));
    for kind in KINDS {
        lose_trust(&gateway, kind);
        let tool = format!("{kind}/look");
        assert_eq!(call_look(&gateway, kind, json!({ "id": "asked" })).code(), "approval_required");
        // A program, a model and an operator see the same.
        let body = gateway.get("/v1/trust");
        let state =
            body["trust"].as_array().unwrap().iter().find(|state| state["pluginName"] == kind).unwrap();
        assert_eq!(
            (&state["state"], &state["failuresInWindow"], &state["escalationReason"]),
            (&json!("escalated"), &json!(2), &json!("2 failures in 1 h")),
            "{body}"
        );
        let status = model.call("reliability_status", json!({ "tool_name": tool }));
        assert!(status.text.starts_with(&format!("{tool}: escalated")), "{status:?}");
        assert!(status.text.contains("2 failures in 1 h"), "{status:?}");
        let line = String::from_utf8(gateway.run(&["status"]).stdout).unwrap();
        assert!(line.contains(&tool), "{line}");
        // A model cannot restore trust, nor can a program without the token.
        let refused = model.call("reliability_reset", json!({ "tool_name": tool }));
        assert!(refused.is_error && refused.text.contains("steadfast approve"), "{refused:?}");
        let path = format!("POST /v1/trust/{kind}%2Flook/reset");
        assert_eq!(ApiTestResponse::to(&gateway.request(&path)).status, 401);
        assert_eq!(call_look(&gateway, kind, json!({ "id": "asked" })).code(), "approval_required");
        let named = gateway.request(&path).header("authorization", &format!("Bearer {ADMIN}"));
        let restored = ApiTestResponse::to(&named.header("x-operator", "ann"));
        assert_eq!(restored.status, 200, "{}", restored.body);
        assert_eq!(call_look(&gateway, kind, json!({ "id": "asked" })).text(), "look asked, run 1");
        assert_eq!(gateway.request_as_operator("POST /v1/trust/bank%2Fnone/reset", &Value::Null).status, 404);
        let audit = gateway.get("/v1/audit");
        let (action, by) = (&audit["audit"][0]["deed"], &audit["audit"][0]["by"]["name"]);
        assert_eq!((action, by), (&json!("trust_reset"), &json!("ann")), "{audit}");
    }
    assert_eq!(model.call("reliability_status", json!({})).text, "all tools are trusted");
    // All at once, from the command line.
    lose_trust(&gateway, "http");
    lose_trust(&gateway, "command");
    let output = gateway.run(&["reset", "--all"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(gateway.get("/v1/trust")["trust"], json!([]));
}

#[test]
fn rp_7_an_approval_for_a_session_ends_with_it() {
    let gateway = ApiGateway::new("rp_7_session", STRICT);
    lose_trust(&gateway, "http");
    call_look(&gateway, "http", json!({ "id": "asked" }));
    let path = format!("POST /v1/approvals/{}", waiting(&gateway, "http")["id"]);
    assert_eq!(
        gateway.post_as_operator(&path, &json!({ "decision": "session" })),
        json!({ "granted": true })
    );
    for id in ["one", "two"] {
        assert_eq!(call_look(&gateway, "http", json!({ "id": id })).text(), format!("look {id}, run 1"));
    }
    assert_eq!(
        gateway.request_as_operator("DELETE /v1/sessions/s-2", &Value::Null).status,
        200,
        "another one"
    );
    assert_eq!(call_look(&gateway, "http", json!({ "id": "three" })).text(), "look three, run 1");
    assert_eq!(
        gateway.request_as_operator("DELETE /v1/sessions/s-1", &Value::Null).body,
        json!({ "session": "s-1" })
    );
    assert_eq!(call_look(&gateway, "http", json!({ "id": "four" })).code(), "approval_required");
}

#[test]
fn rp_7_an_approval_for_a_session_ends_when_its_client_deletes_the_session() {
    let gateway =
        ApiGateway::with("rp_7_deleted", "guard.mode = \"off\"\n", "approval = \"always\"\n", |_| {});
    let mut client = McpTestClient::at(gateway.address).behind("/mcp/bank");
    client.initialize_with(json!({ "elicitation": {} }));
    client.request("tools/list", json!({}));
    let id = client.send_call("pay", json!({ "id": "a" }));
    let question = client.next_request();
    client.reply(&question, json!({ "action": "accept", "content": { "decision": "session" } }));
    assert_eq!(crate::client::ToolResponse::of(&client.answer(id)).text, "pay a, run 1");
    // Every caller may name this session, within its other rights.
    let session = gateway.logged_times("tool_call_end", 1).remove(0)["sessionKey"].clone();
    let call = |id: &str| {
        let mut call = envelope("bank/pay", &json!({ "id": id }));
        call["target"]["sessionKey"] = session.clone();
        gateway.call(&call)
    };
    assert_eq!(call("b").text(), "pay b, run 1");
    let delete = gateway.request("DELETE /mcp/bank").header("mcp-session-id", &client.session());
    assert_eq!(send(&delete).unwrap().status, 204);
    assert_eq!(call("c").code(), "approval_required");
    assert_eq!(gateway.count("bank", "pay c"), 0);
}

#[test]
fn rp_12_trust_that_is_not_stored_is_that_of_each_session() {
    let mut gateway = ApiGateway::new("rp_12_sessions", &format!("{STRICT}[trust_state]\npersist = false\n"));
    lose_trust(&gateway, "http");
    assert_eq!(call_look(&gateway, "http", json!({ "id": "a" })).code(), "approval_required");
    let of_other = |id: &str| {
        let mut call = envelope("http/look", &json!({ "id": id }));
        call["target"]["sessionKey"] = "s-2".into();
        gateway.call(&call)
    };
    assert_eq!(of_other("b").text(), "look b, run 1", "another session has seen no failure");
    // The list has the trust of every session, and an operator restores it in all of them.
    assert_eq!(gateway.get("/v1/trust")["trust"].as_array().unwrap().len(), 1);
    gateway.post_as_operator("POST /v1/trust/http%2Flook/reset", &Value::Null);
    assert_eq!(call_look(&gateway, "http", json!({ "id": "c" })).text(), "look c, run 1");
    lose_trust_with(&gateway, "http", ["bad 3", "bad 4"]);
    assert_eq!(call_look(&gateway, "http", json!({ "id": "d" })).code(), "approval_required");
    gateway.request_as_operator("DELETE /v1/sessions/s-1", &Value::Null);
    assert_eq!(call_look(&gateway, "http", json!({ "id": "e" })).text(), "look e, run 1", "it ended with it");
    lose_trust_with(&gateway, "http", ["bad 5", "bad 6"]);
    gateway.stop();
    gateway.start(|_| {});
    assert_eq!(call_look(&gateway, "http", json!({ "id": "f" })).text(), "look f, run 1", "nothing is kept");
}

#[test]
fn rp_12_statistics_of_domains_count_the_calls_of_all_sessions_if_trust_is_not_stored() {
    let gateway = ApiGateway::new("rp_12_domains", &format!("{STRICT}[trust_state]\npersist = false\n"));
    for (session, fault) in [("s-1", ""), ("s-1", "503"), ("s-2", "503")] {
        let mut call = envelope("bank/look", &json!({ "id": format!("{session} {fault}"), "fault": fault }));
        call["target"]["sessionKey"] = session.into();
        assert_eq!(gateway.call(&call).body["error"].is_object(), fault == "503");
    }
    let body = gateway.get("/v1/domains?domain=bank");
    let bank = &body["domains"][0];
    assert_eq!(
        (&bank["successes"], &bank["failures"], &bank["failuresBySeverity"]["server_error"]),
        (&json!(1), &json!(2), &json!(2)),
        "{body}"
    );
    assert!(bank["lastFailureAtMs"].as_u64() >= bank["lastSuccessAtMs"].as_u64(), "{body}");
}

#[test]
fn rp_1_no_more_than_the_last_hundred_failures_of_a_tool_are_stored() {
    let gateway = ApiGateway::new("rp_1_bounded", STRICT);
    for number in 0..105 {
        report(
            &gateway,
            "often",
            json!({ "error": format!("failure {number}"), "severity": "informational" }),
        );
    }
    report(&gateway, "once", json!({ "severity": "informational" }));
    let of = |tool: &str| {
        let body = gateway.get(&format!("/v1/tools/web%2F{tool}/failures?limit=1000"));
        body["failures"].as_array().unwrap().clone()
    };
    // They are written in the order of their arrival.
    wait(|| of("once").len() == 1, || "the last report".to_owned());
    let records = of("often");
    let messages: Vec<_> =
        records.iter().map(|record| record["message"].as_str().unwrap().to_owned()).collect();
    let newest: Vec<_> = (5..105).rev().map(|number| format!("failure {number}")).collect();
    assert_eq!(messages, newest);
}

#[test]
fn rp_8_a_file_of_jaato_without_automatic_recovery_needs_an_operator() {
    let quick = format!("{STRICT}duration = \"1ms\"\ncooldown = \"1ms\"\n");
    for (auto, state) in [(false, "escalated"), (true, "recovering")] {
        let gateway = ApiGateway::with("rp_8_jaato", &quick, "", |command| {
            let file = command.get_current_dir().unwrap().join("rules.json");
            let rules = json!({ "enable_auto_recovery": auto, "default_rule": { "count_threshold": 2 } });
            fs::write(file, rules.to_string()).unwrap();
            command.args(["--config", "steadfast.toml", "--config", "rules.json"]);
        });
        lose_trust(&gateway, "http");
        let standing = || gateway.get("/v1/trust")["trust"][0].clone();
        wait(|| standing()["state"] == state, || standing().to_string());
        let standing = standing();
        assert_eq!(standing["waitsForApproval"], !auto, "{standing}");
        let response = call_look(&gateway, "http", json!({ "id": "a" }));
        assert_eq!(response.code(), if auto { "" } else { "approval_required" }, "{}", response.body);
        let output = gateway.run(&["recover", "http/look"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.starts_with("recovering"), !auto, "{output:?}");
    }
}

#[test]
fn rp_1_every_failed_call_is_recorded_and_shown_by_every_interface_after_a_restart_too() {
    let config = "gateway.reliability_tools = true\nguard.mode = \"off\"\nbreaker.mode = \"off\"\n[trust]\ncount = 90\n[retry]\nattempts = 2\nbase = \"1ms\"\n";
    let mut gateway = ApiGateway::new("rp_1", config);
    let mut call = envelope("http/look", &json!({ "id": "Bearer abcdefghijklmnop1234", "fault": "503" }));
    call["requestId"] = "r-failed".into();
    call["toolCallId"] = "toolu_1".into();
    call["target"]["turnId"] = "t-7".into();
    let failed = gateway.call(&call);
    assert_eq!(failed.body["attempts"], 2, "{}", failed.body);
    for number in 0..3 {
        call_look(&gateway, "command", json!({ "id": format!("c{number}"), "fault": "503" }));
    }
    assert_eq!(call_look(&gateway, "http", json!({ "id": "good" })).text(), "look good, run 1");
    let context = json!({ "step": 4, "token": "s3cr3t-s3cr3t" });
    let body = json!({ "toolName": "fetch", "pluginName": "web", "error": "ValueError: no such page", "httpStatus": 500,
                       "domain": "api.example.com", "service": "billing", "arguments": { "url": "https://api.example.com/pages/1" }, "context": context });
    assert_eq!(gateway.request_as_operator("POST /v1/failures", &body).status, 200);
    let check = |gateway: &ApiGateway| {
        let failures = gateway.get("/v1/failures")["failures"].as_array().unwrap().clone();
        assert_eq!(failures.len(), 5, "each that failed, and no other: {failures:?}");
        let of = |path: &str| gateway.get(path)["failures"].as_array().unwrap().clone();
        let http = of("/v1/tools/http%2Flook/failures");
        assert_eq!((http.len(), of("/v1/tools/command%2Flook/failures?limit=2").len()), (1, 2));
        let record = &http[0];
        assert_eq!(record["tool"], json!({ "namespace": "http", "tool": "look" }));
        for (field, value) in [
            ("severity", json!("server_error")),
            ("httpStatus", json!(503)),
            ("retries", json!(1)),
            ("transient", json!(true)),
            ("requestId", json!("r-failed")),
            ("toolCallId", json!("toolu_1")),
            ("session", json!("s-1")),
            ("turn", json!("t-7")),
            ("domain", json!("127.0.0.1")),
        ] {
            assert_eq!(record[field], value, "{field} in {record}");
        }
        assert!(record["message"].as_str().unwrap().contains("busy"), "{record}");
        assert_eq!(record["argumentsDigest"].as_str().map(str::len), Some(64), "{record}");
        assert!(record["atMs"].is_u64() && !record.to_string().contains("abcdefghijklmnop1234"), "{record}");
        let reported = &of("/v1/tools/web%2Ffetch/failures")[0];
        assert_eq!(
            (&reported["errorType"], &reported["argumentSummary"], &reported["context"]["step"]),
            (&json!("ValueError"), &json!({ "url": "api.example.com/pages" }), &json!(4)),
            "{reported}"
        );
        let origin = (&reported["domain"], &reported["service"]);
        assert_eq!(origin, (&json!("api.example.com"), &json!("billing")), "{reported}");
        assert!(!reported.to_string().contains("s3cr3t"), "{reported}");
        // An operator and a model see the same.
        let line = String::from_utf8(gateway.run(&["failures", "web/fetch"]).stdout).unwrap();
        assert!(line.contains("ValueError: no such page") && !line.contains("http/look"), "{line}");
        let all: Value = serde_json::from_slice(&gateway.run(&["failures", "--json"]).stdout).unwrap();
        assert_eq!(all["failures"], json!(failures));
        let mut model = McpTestClient::at(gateway.address);
        model.initialize();
        model.request("tools/list", json!({}));
        let arguments = json!({ "tool_name": "web/fetch", "include_history": true });
        let status = model.call("reliability_status", arguments);
        assert!(status.text.contains("ValueError: no such page"), "{status:?}");
    };
    check(&gateway);
    gateway.stop();
    let line = String::from_utf8(gateway.run(&["failures", "--gateway", "none"]).stdout).unwrap();
    assert!(line.contains("web/fetch") && line.contains("http/look"), "also where none runs: {line}");
    gateway.start(|_| {});
    check(&gateway);
}

#[test]
fn rp_4_the_rule_of_a_tool_goes_before_that_of_its_domain_its_plugin_and_all() {
    let config = "guard.mode = \"off\"\nbreaker.mode = \"off\"\nretry.attempts = 1\ntrust.count = 1\n\
        [tools.\"bank/*\"]\ntrust.count = 3\n[tools.\"bank/look\".trust]\ncount = 2\n\
        [tools.\"bank/draw\"]\nclass = \"read_only\"\n[tools.\"bank/fold\"]\nclass = \"read_only\"\n\
        [domains.\"one.example.com\"]\ntrust.count = 4\n[domains.\"two.example.com\"]\ntrust.count = 4\n";
    let gateway = ApiGateway::new("rp_4_order", config);
    // The number of failures before approval is required, and the rule that says so.
    for (tool, domain, failures, rule) in [
        ("bank/look", "one.example.com", 2, "tool"),
        ("bank/draw", "two.example.com", 4, "domain"),
        ("bank/fold", "", 3, "plugin"),
        ("command/look", "", 1, "default"),
    ] {
        let needs_approval = |number: &i32| {
            let mut params = json!({ "id": format!("{tool} {number}"), "fault": "503" });
            if !domain.is_empty() {
                params["url"] = format!("https://{domain}/a").into();
            }
            gateway.call(&envelope(tool, &params)).code() == "approval_required"
        };
        assert_eq!((0..9).find(needs_approval), Some(failures), "{rule}: {}", gateway.get("/v1/trust"));
    }
}

#[test]
fn rp_4_a_tool_is_judged_by_its_own_rule() {
    let rule = "[tools.\"http/look\".trust]\nwindow = \"20m\"\nduration = \"1ms\"\ncooldown = \"1ms\"\nsuccesses_to_recover = 2\n";
    let gateway = ApiGateway::new("rp_4_standing", &format!("{STRICT}{rule}"));
    for kind in ["http", "command"] {
        lose_trust(&gateway, kind);
    }
    let standing = |kind: &str| {
        let body = gateway.get("/v1/trust");
        let mut found = body["trust"].as_array().unwrap().iter();
        found.find(|state| state["pluginName"] == kind).cloned().unwrap()
    };
    // Its time is over, and that of the others is not.
    wait(|| standing("http")["state"] == "recovering", || standing("http").to_string());
    assert_eq!(standing("http")["windowMs"], 20 * 60 * 1000);
    let other = standing("command");
    assert_eq!((&other["state"], &other["windowMs"]), (&json!("escalated"), &json!(60 * 60 * 1000)));
    assert_eq!(other["cooldownMs"], 15 * 60 * 1000);
    let recovers = other["recoversAt"].as_u64().unwrap() - other["escalatedAt"].as_u64().unwrap();
    assert_eq!(recovers, 30 * 60 * 1000, "{other}");
    let tools = gateway.get("/v1/tools");
    let shown = tools["tools"].as_array().unwrap().iter().find(|one| one["tool"]["namespace"] == "http");
    assert_eq!(shown.map(|one| &one["trust"]), Some(&json!("recovering")), "{tools}");
}

#[test]
fn rp_8_if_recovery_needs_an_operator_the_status_shows_it_and_an_operator_starts_it() {
    let config =
        format!("gateway.reliability_tools = true\n{STRICT}recovery = \"ask\"\nduration = \"1ms\"\n");
    let gateway =
        ApiGateway::new("rp_8_ask", &format!("{config}cooldown = \"1ms\"\nsuccesses_to_recover = 2\n"));
    let mut model = McpTestClient::at(gateway.address);
    model.initialize();
    model.request("tools/list", json!({}));
    for kind in KINDS {
        let tool = format!("{kind}/look");
        let path = format!("POST /v1/trust/{kind}%2Flook/recover");
        assert_eq!(gateway.request_as_operator(&path, &Value::Null).status, 404, "it is trusted");
        lose_trust(&gateway, kind);
        let standing = || {
            let body = gateway.get("/v1/trust");
            let mut found = body["trust"].as_array().unwrap().iter();
            found.find(|state| state["pluginName"] == kind).cloned()
        };
        let waits = standing().unwrap();
        assert_eq!(
            (&waits["state"], &waits["waitsForApproval"], &waits["recoversAt"]),
            (&json!("escalated"), &json!(true), &Value::Null),
            "however long it takes"
        );
        let status = model.call("reliability_status", json!({ "tool_name": tool }));
        assert!(status.text.contains("needs approval to recover"), "{status:?}");
        let line = String::from_utf8(gateway.run(&["status"]).stdout).unwrap();
        assert!(line.contains("with `steadfast recover`"), "{line}");
        assert_eq!(call_look(&gateway, kind, json!({ "id": "asked" })).code(), "approval_required");
        assert_eq!(ApiTestResponse::to(&gateway.request(&path)).status, 401, "nobody but an operator");
        let output = gateway.run(&["recover", &tool]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("recovering: {tool}\n"), "{output:?}");
        let audit = gateway.get("/v1/audit");
        assert_eq!(audit["audit"][0]["deed"], "recovery_approved", "{audit}");
        // It runs without approval, and regains trust.
        for id in ["one", "two"] {
            let recovering = standing().unwrap();
            assert_eq!(
                (&recovering["state"], &recovering["waitsForApproval"]),
                (&json!("recovering"), &json!(false)),
                "{recovering}"
            );
            assert_eq!(call_look(&gateway, kind, json!({ "id": id })).text(), format!("look {id}, run 1"));
        }
        assert_eq!(standing(), None, "it is trusted again");
        let output = gateway.run(&["recover", &tool]);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("{tool} is not escalated\n"),
            "{output:?}"
        );
    }
}

#[test]
fn statistics_of_domains_and_scores_of_models_are_shown() {
    let config = format!("{STRICT}[gateway]\nreliability_tools = true\n");
    let gateway = ApiGateway::new("rp_2_domains", &config);
    let call = |id: &str, fault: &str, model: &str| {
        let mut envelope = envelope("bank/look", &json!({ "id": id, "fault": fault }));
        envelope["target"]["modelId"] = json!(model);
        gateway.call(&envelope)
    };
    assert_eq!(call("a", "", "model-1").text(), "look a, run 1");
    assert_eq!(call("b", "", "model-2").text(), "look b, run 1");
    assert!(call("c", "503", "model-2").body["error"].is_object());

    let body = gateway.get("/v1/domains?domain=bank");
    let bank = &body["domains"][0];
    assert_eq!(
        (&bank["domain"], &bank["successes"], &bank["failures"]),
        (&json!("bank"), &json!(2), &json!(1)),
        "{body}"
    );
    assert_eq!(
        (&bank["failuresBySeverity"]["server_error"], &bank["trust"]),
        (&json!(1), &json!("trusted")),
        "{body}"
    );
    assert!(bank["lastFailureAtMs"].is_u64() && bank["lastSuccessAtMs"].is_u64(), "{body}");
    assert_eq!(gateway.get("/v1/domains?failed=false")["domains"], json!([]));

    // They are visible to operators, and to a model that asks for the history.
    let output = gateway.run(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&status["domains"][0]["domain"], &status["domains"][0]["failures"]),
        (&json!("bank"), &json!(1)),
        "{status}"
    );
    let mut client = McpTestClient::at(gateway.address);
    client.initialize();
    let with = client.call("reliability_status", json!({ "include_history": true }));
    assert!(with.text.contains("calls to bank: 2 succeeded, 1 failed"), "{with:?}");
    let without = client.call("reliability_status", json!({}));
    assert!(!without.text.contains("calls to bank"), "{without:?}");

    let body = gateway.get("/v1/models?tool=bank%2Flook");
    let of = |at: usize| {
        (
            body["models"][at]["model"].clone(),
            body["models"][at]["successRate"].clone(),
            body["models"][at]["samples"].clone(),
        )
    };
    assert_eq!(of(0), (json!("model-1"), json!(1.0), json!(1)), "{body}");
    assert_eq!(of(1), (json!("model-2"), json!(0.5), json!(2)), "{body}");
    assert_eq!(gateway.get("/v1/models?model=model-1")["models"].as_array().unwrap().len(), 1);
    let score = |model: &str| gateway.get(&format!("/v1/tools/bank%2Flook/score{model}"))["samples"].clone();
    assert_eq!((score(""), score("?model=model-2")), (json!(3), json!(2)));
    let unknown = gateway.request_as_operator("GET /v1/tools/bank%2Flook/score?model=model-9", &Value::Null);
    assert_eq!(unknown.status, 404, "{}", unknown.body);
}

//! TR-1 to TR-4: invalid calls and duplicates.

use std::fs;
use std::thread;

use serde_json::{Value, json};

use super::{ApiGateway, KINDS, PLAIN, envelope, keyed};
use crate::client::McpTestClient;
use crate::raw::send;
use crate::world::signal;

#[test]
fn tr_1_an_invalid_envelope_is_refused_runs_nothing_and_leaves_no_record() {
    let gateway = ApiGateway::new("tr_1", "");
    for kind in KINDS {
        let good = keyed(&format!("{kind}/pay"), &json!({ "id": "a" }), "k");
        let mut nameless = good.clone();
        nameless.as_object_mut().unwrap().remove("toolName");
        let mut future_version = good.clone();
        future_version["contractVersion"] = "9.9".into();
        for (envelope, code, message) in [
            (&nameless, "invalid_envelope", "toolName: expected"),
            (&future_version, "unsupported_version", "contractVersion: expected"),
        ] {
            let refused = gateway.call(envelope);
            assert_eq!((refused.status, refused.code()), (400, code), "{}", refused.body);
            assert!(refused.message().contains(message), "{}", refused.body);
        }
        let records = gateway.get("/v1/records");
        assert!(!records.to_string().contains(&format!("\"{kind}\"")), "{records}");
        assert_eq!(gateway.count(kind, "pay a"), 0);
        // With the same key a valid call runs.
        let response = gateway.call(&good);
        assert_eq!((response.status, response.text()), (200, "pay a, run 1"), "{}", response.body);
        assert_eq!((&response.body["fromCache"], &response.body["attempts"]), (&json!(false), &json!(1)));
    }
    assert!(gateway.logged("tool_call_retry").is_empty());
}

#[test]
fn tr_2_a_duplicate_in_flight_waits_and_does_not_run() {
    let gateway = ApiGateway::new("tr_2", "");
    for kind in KINDS {
        let mut call = keyed(&format!("{kind}/pay"), &json!({ "id": "a", "fault": "gate" }), "k");
        call["transport"]["dedupeMode"] = "enabled".into();
        let mut hasty = call.clone();
        hasty["transport"]["dedupeMode"] = "bestEffort".into();
        let gate = gateway.gate(kind);
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| gateway.call(&call));
            gateway.until(kind, "pay a", 1);
            let mut event_stream = gateway.listen(&format!("?tool={kind}/pay"));
            let second = scope.spawn(|| gateway.call(&call));
            event_stream.next("tool_call_following");
            // A caller that does not want to wait learns that the call is in flight.
            let response = gateway.call(&hasty);
            assert_eq!((response.status, response.code()), (409, "in_flight"), "{}", response.body);
            drop(gate);
            (first.join().unwrap(), second.join().unwrap())
        });
        assert_eq!((first.text(), second.text()), ("pay a, run 1", "pay a, run 1"), "{}", second.body);
        assert_eq!(
            (&second.body["fromCache"], &second.body["cache"]["matchedOn"]),
            (&json!(true), &json!("inflight"))
        );
        assert_eq!(gateway.count(kind, "pay a"), 1);
    }
}

#[test]
fn tr_2_without_dedupe_a_duplicate_waits_for_nothing() {
    let gateway = ApiGateway::new("tr_2_off", "");
    for kind in KINDS {
        // The first run waits. The second one does not.
        let mut call = envelope(&format!("{kind}/pay"), &json!({ "id": "a", "fault": "gate", "times": 1 }));
        call["transport"]["dedupeMode"] = "disabled".into();
        let gate = gateway.gate(kind);
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| gateway.call(&call));
            gateway.until(kind, "pay a", 1);
            let second = gateway.call(&call);
            drop(gate);
            (first.join().unwrap(), second)
        });
        assert_eq!((first.text(), second.text()), ("pay a, run 1", "pay a, run 2"), "{}", second.body);
        assert_eq!(second.body["fromCache"], false);
    }
}

#[test]
fn tr_3_a_duplicate_of_a_finished_call_gets_its_answer_and_the_digest_stays() {
    let mut gateway = ApiGateway::new("tr_3", "");
    let record = |gateway: &ApiGateway, kind: &str| -> Value {
        gateway.get(&format!("/v1/records?tool={kind}/pay"))["records"][0].clone()
    };
    let mut completed = Vec::new();
    for kind in KINDS {
        let call = keyed(&format!("{kind}/pay"), &json!({ "id": "a" }), "k");
        let first = gateway.call(&call);
        let before = record(&gateway, kind);
        for _ in 0..2 {
            let again = gateway.call(&call);
            assert_eq!(again.answered.header("idempotency-key"), Some("k"));
            assert_eq!(
                (&again.body["fromCache"], &again.body["cache"]["matchedOn"]),
                (&json!(true), &json!("completed")),
                "{}",
                again.body
            );
            assert_eq!(again.body["output"], first.body["output"]);
        }
        let after = record(&gateway, kind);
        for fact in ["key", "digest", "state"] {
            assert!(before[fact].is_string() && before[fact] == after[fact], "{fact}: {before} {after}");
        }
        completed.push((kind, call, first.body["output"].clone()));
    }
    // A gateway that is started later has the answer, and its arguments.
    gateway.kill();
    gateway.start(|_| {});
    for (kind, call, output) in completed {
        assert_eq!(gateway.call(&call).body["output"], output);
        let other = gateway.call(&keyed(&format!("{kind}/pay"), &json!({ "id": "b" }), "k"));
        assert_eq!(other.code(), "idempotency_conflict", "{}", other.body);
        assert_eq!((gateway.count(kind, "pay a"), gateway.count(kind, "pay b")), (1, 0));
    }
}

#[test]
fn tr_4_one_key_for_two_calls_is_a_conflict_and_nothing_runs() {
    let gateway = ApiGateway::new("tr_4", "");
    for kind in KINDS {
        let pay =
            |id: &str, key: &str| gateway.call(&keyed(&format!("{kind}/pay"), &json!({ "id": id }), key));
        // The same key for another kind of tool is another call.
        assert_eq!(pay("a", "k").text(), "pay a, run 1");
        let refused = pay("b", "k");
        assert_eq!((refused.status, refused.code()), (422, "idempotency_conflict"), "{}", refused.body);
        assert_eq!(
            (&refused.body["error"]["terminal"], &refused.body["output"]),
            (&json!(true), &Value::Null),
            "{}",
            refused.body
        );
        assert_eq!(gateway.count(kind, "pay b"), 0);
        assert_eq!(pay("b", "l").text(), "pay b, run 1", "another key is another call");
        assert_eq!(pay("a", "k").body["fromCache"], true, "the conflict took nothing away");
    }
    let metrics = gateway.get("/metrics");
    for kind in KINDS {
        let counted = format!("steadfast_tool_idempotency_conflicts_total{{tool=\"{kind}/pay\"}} 1");
        assert!(metrics.as_str().unwrap().contains(&counted), "{counted} in {metrics}");
    }
}

#[test]
fn tr_4_one_key_for_two_calls_is_two_keys_if_that_is_set() {
    let gateway = ApiGateway::new("tr_4_separate", "dedupe.conflict = \"separate\"\n");
    for kind in KINDS {
        for from_cache in [false, true] {
            for id in ["a", "b"] {
                let response = gateway.call(&keyed(&format!("{kind}/pay"), &json!({ "id": id }), "k"));
                assert_eq!(
                    (response.text(), &response.body["fromCache"]),
                    (format!("pay {id}, run 1").as_str(), &json!(from_cache))
                );
            }
        }
    }
}

/// Without a key, equal calls of one conversation are deduplicated as well, as over MCP.
#[test]
fn sf_11_an_equal_call_without_a_key_waits_for_the_one_in_flight_and_one_after_the_answer_runs() {
    let gateway = ApiGateway::new("keyless_in_flight", "");
    for kind in KINDS {
        let call = envelope(&format!("{kind}/pay"), &json!({ "id": "a", "fault": "gate" }));
        let gate = gateway.gate(kind);
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| gateway.call(&call));
            gateway.until(kind, "pay a", 1);
            let mut event_stream = gateway.listen(&format!("?tool={kind}/pay"));
            let second = scope.spawn(|| gateway.call(&call));
            event_stream.next("tool_call_following");
            drop(gate);
            (first.join().unwrap(), second.join().unwrap())
        });
        assert_eq!((first.text(), second.text()), ("pay a, run 1", "pay a, run 1"), "{}", second.body);
        assert_eq!(gateway.count(kind, "pay a"), 1);
        // Each of these is made right after the answer to the previous one.
        let plain = envelope(&format!("{kind}/pay"), &json!({ "id": "b" }));
        for run in 1..=4 {
            let response = gateway.call(&plain);
            let actual = (response.text(), response.body["fromCache"] == true);
            assert_eq!(actual, (format!("pay b, run {run}").as_str(), false), "{}", response.body);
        }
    }
}

/// A gateway was killed while a payment without a key was in flight. The next equal call ran it again within a second
/// (D45). Now its caller gets the response that the outcome is unknown.
#[test]
fn a_payment_without_a_key_that_was_in_flight_when_the_gateway_was_killed_does_not_run_again_at_once() {
    // Long enough that such a call is not settled during the test.
    let settling = "settling.linger = \"1h\"\nsettling.settle = \"1h\"\n";
    let mut gateway = ApiGateway::new("keyless_killed", settling);
    for kind in KINDS {
        let call = envelope(&format!("{kind}/pay"), &json!({ "id": "a", "fault": "gate" }));
        let _gate = gateway.gate(kind);
        thread::scope(|scope| {
            let request = gateway.request("POST /v1/calls").body(call.to_string());
            scope.spawn(move || send(&request));
            gateway.until(kind, "pay a", 1);
            signal(gateway.pid(), "-KILL");
        });
        gateway.kill();
        gateway.start(|_| {});
        let response = gateway.call(&call);
        assert_eq!((response.status, response.code()), (409, "outcome_unknown"), "{kind}: {}", response.body);
        let records = gateway.get(&format!("/v1/records?open=true&tool={kind}/pay"));
        let record = &records["records"][0];
        assert_eq!(
            (&record["state"], &record["settled"], &record["observed"]),
            (&json!("unknown"), &json!(false), &json!("process_died")),
            "{record}"
        );
        let key = record["key"].as_str().unwrap();
        let refused =
            gateway.request_as_operator(&format!("POST /v1/records/{key}/resolve"), &json!({ "ran": false }));
        assert_eq!((refused.status, refused.code()), (409, "not_settled"), "{}", refused.body);
        let (stderr, code) = command_stderr(&gateway, &["resolve", key, "--did-not-run"]);
        assert!(
            code == 1 && stderr.contains("may still take effect") && stderr.contains("try again in"),
            "{stderr}"
        );
        assert_eq!(gateway.count(kind, "pay a"), 1);
    }
}

/// Returns the output of a command, and its exit code.
fn command_stderr(gateway: &ApiGateway, arguments: &[&str]) -> (String, i32) {
    let output = gateway.run(arguments);
    (String::from_utf8(output.stderr).unwrap(), output.status.code().unwrap())
}

#[test]
fn tr_4_a_key_is_made_of_the_arguments_and_passed_to_the_tool() {
    let each = "key = \"{id}\"\nkey_argument = \"idempotency_key\"\n";
    let gateway = ApiGateway::with("key_of_arguments", PLAIN, each, |_| {});
    for kind in KINDS {
        let pay = |arguments: Value| {
            let mut call = envelope(&format!("{kind}/pay"), &arguments);
            // Another conversation each time: only the key shows that it is the same call.
            call["requestId"] = format!("r-{kind}-{arguments}").into();
            gateway.call(&call)
        };
        assert_eq!(pay(json!({ "id": "INV-1", "text": "" })).text(), "pay INV-1, run 1", "{kind}");
        let again = pay(json!({ "id": "INV-1", "text": "" }));
        assert_eq!((again.text(), gateway.count(kind, "pay INV-1")), ("pay INV-1, run 1", 1), "{kind}");
        let other = pay(json!({ "id": "INV-1", "text": "more" }));
        assert_eq!(other.code(), "idempotency_conflict", "{kind}: {}", other.body);
        assert_eq!(pay(json!({ "id": "INV-2" })).text(), "pay INV-2, run 1", "{kind}");
        // Without the arguments of the key template there is no key, and nothing runs.
        let refused = pay(json!({ "text": "no id" }));
        assert_eq!(refused.code(), "invalid_arguments", "{kind}: {}", refused.body);
        assert!(refused.message().contains("`id`"), "{}", refused.message());
        assert_eq!(gateway.count(kind, "pay "), 0, "{kind}");
    }
    // The tool received the key, as an argument and in the usual way.
    let requests = gateway.service.requests();
    let first = requests.iter().find(|request| request.line.starts_with("POST /pay")).unwrap();
    let body: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!((&body["id"], &body["idempotency_key"]), (&json!("INV-1"), &json!("INV-1")), "{body}");
    assert_eq!(first.header("idempotency-key"), Some("INV-1"));
    let echoed = gateway.call(&envelope("bank/look", &json!({ "id": "seen", "fault": "echo" })));
    assert!(echoed.text().contains(r#""idempotency_key":"seen""#), "{}", echoed.text());
    let own = json!({ "id": "own", "fault": "echo", "idempotency_key": "mine" });
    let echoed = gateway.call(&envelope("bank/look", &own));
    assert!(echoed.text().contains(r#""idempotency_key":"mine""#), "{}", echoed.text());
}

/// The same over MCP, with arguments that are checked against a schema which requires the key.
#[test]
fn tr_4_over_mcp_the_key_that_the_gateway_puts_there_is_not_missing() {
    let each = "key = \"order-{id}\"\nkey_argument = \"idempotency_key\"\n";
    let config = format!("{PLAIN}validate_arguments = \"enforce\"\n");
    let gateway = ApiGateway::with("key_of_arguments_mcp", &config, each, |command| {
        let folder = command.get_current_dir().unwrap();
        fs::write(folder.join("bank.required"), "idempotency_key").unwrap();
    });
    let mut client = McpTestClient::at(gateway.address);
    client.initialize();
    let listed = client.request("tools/list", json!({}));
    let required = &listed["result"]["tools"][0]["inputSchema"]["required"];
    assert_eq!(required, &json!(["id", "idempotency_key"]), "{listed:#}");
    let pay = |client: &mut McpTestClient, arguments: Value| client.call("pay", arguments);
    let response = pay(&mut client, json!({ "id": "a", "fault": "echo" }));
    assert!(response.text.contains(r#""idempotency_key":"order-a""#), "{response:?}");
    // With the key it is the same call, even in another conversation. With another key it is not.
    let mut other = McpTestClient::at(gateway.address);
    other.initialize();
    let again = pay(&mut other, json!({ "id": "a", "fault": "echo" }));
    assert!(again.from_cache && gateway.count("bank", "pay a") == 1, "{again:?}");
    let conflict = pay(&mut other, json!({ "id": "a", "text": "more" }));
    assert_eq!(conflict.code.as_deref(), Some("idempotency_conflict"), "{conflict:?}");
    // A value from the client stays, and the rest of the schema is checked.
    let own = pay(&mut client, json!({ "id": "b", "fault": "echo", "idempotency_key": "mine" }));
    assert!(own.text.contains(r#""idempotency_key":"mine""#), "{own:?}");
    for arguments in [json!({ "id": 7 }), json!({ "fault": "echo" })] {
        let refused = pay(&mut client, arguments.clone());
        assert_eq!(refused.code.as_deref(), Some("invalid_arguments"), "{arguments}: {refused:?}");
        assert!(!refused.text.contains("idempotency_key"), "{arguments}: {refused:?}");
    }
    assert_eq!(gateway.ledger("bank").matches("pay ").count(), 2, "{}", gateway.ledger("bank"));
}

/// In a named turn the turn identifies equal calls, and the tool receives the key of its arguments.
#[test]
fn tr_4_in_a_named_turn_the_arguments_of_the_key_must_be_there_and_the_tool_gets_it() {
    let each = "key = \"order-{id}\"\nkey_argument = \"idempotency_key\"\n";
    let gateway = ApiGateway::with("key_of_turn", PLAIN, each, |_| {});
    let turn = |name: &str, params: Value| {
        let plan = json!({ "turnId": name, "calls": [{ "id": "p", "tool": "http/pay", "params": params }] });
        let target = json!({ "sessionKey": "s", "actorId": "ann" });
        let request = json!({ "contractVersion": "1.1", "target": target, "plan": plan });
        gateway.post("/v1/turns", &request).body
    };
    let refused = turn("one", json!({ "text": "no id" }));
    let call = &refused["calls"][0];
    assert_eq!(
        (&call["outcome"], &call["code"]),
        (&json!("failed"), &json!("invalid_arguments")),
        "{refused:#}"
    );
    assert!(call["message"].as_str().is_some_and(|text| text.contains("`id`")), "{refused:#}");
    assert!(gateway.service.requests().is_empty(), "{:?}", gateway.service.requests());
    for name in ["two", "two", "three"] {
        assert_eq!(turn(name, json!({ "id": "a" }))["status"], "completed", "{name}");
    }
    // Submitted again it does not run again. In another turn it does, and its tool can see that it is the same order.
    let requests = gateway.service.requests();
    let keys: Vec<_> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    assert_eq!(keys, [Some("order-a"), Some("order-a")], "{requests:?}");
    assert!(
        requests.iter().all(|request| request.body.contains(r#""idempotency_key":"order-a""#)),
        "{requests:?}"
    );
    // A call of the turn is the same call, even with other arguments.
    let changed = turn("two", json!({ "id": "b" }));
    assert_eq!(changed["calls"][0]["code"], "idempotency_conflict", "{changed:#}");
}

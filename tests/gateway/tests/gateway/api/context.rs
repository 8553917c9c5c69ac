//! The context that a caller adds to its call: visible in records, history and the log, bounded and without secrets. No
//! decision depends on it.

use std::fs;

use serde_json::{Value, json};

use super::{ApiGateway, PLAIN, keyed};
use crate::client::McpTestClient;
use crate::world::wait;

const SECRET: &str = "Bearer abcdefghijklmnopqrstuvwxyz0123456789";

#[test]
fn a_record_has_the_ends_of_its_attempts_and_the_context_of_its_caller() {
    let gateway = ApiGateway::new("context", &format!("{PLAIN}[otlp]\nendpoint = \"http://{{service}}\"\n"));
    let mut call = keyed("bank/look", &json!({ "id": "a", "fault": "503", "times": 1 }), "order 17");
    call["target"]["agentId"] = json!("planner");
    call["target"]["correlationId"] = json!("c-9");
    call["control"] = json!({ "requestTags": ["nightly", SECRET], "fromHook": "before-pay" });
    call["trace"] = json!({ "baggage": { "user": "value-of-ann" } });
    assert_eq!(gateway.call(&call).text(), "look a, run 2");

    let record = |body: &Value| {
        let records = body["records"].as_array().unwrap();
        records.iter().find(|record| record["tool"]["tool"] == "look").cloned().unwrap()
    };
    let stored = record(&gateway.get("/v1/records"));
    assert_eq!(stored["attemptCount"], 2, "{stored:#}");
    assert!(
        stored["key"].is_string() && !stored.to_string().contains("order 17"),
        "the key is somebody's data: {stored:#}"
    );
    assert_eq!(stored["idempotencyKeyHash"].as_str(), stored["key"].as_str().and_then(|key| key.get(..12)));
    let lifetime = stored["expiresAtMs"].as_u64().unwrap() - stored["updatedAtMs"].as_u64().unwrap();
    assert_eq!(stored["ttlMs"], json!(lifetime), "{stored:#}");
    let attempt = |at: usize| {
        let attempt = &stored["attempts"][at];
        (attempt["number"].clone(), attempt["status"].clone(), attempt["code"].clone())
    };
    assert_eq!(attempt(0), (json!(1), json!("failed"), json!("tool_error")), "{stored:#}");
    assert_eq!(attempt(1), (json!(2), json!("success"), Value::Null), "{stored:#}");
    assert_eq!(
        (&stored["agentId"], &stored["correlationId"]),
        (&json!("planner"), &json!("c-9")),
        "{stored:#}"
    );
    assert_eq!(
        (&stored["fromHook"], &stored["baggageKeys"]),
        (&json!("before-pay"), &json!(["user"])),
        "{stored:#}"
    );
    assert_eq!(
        (&stored["requestTags"][0], stored["requestTags"].as_array().unwrap().len()),
        (&json!("nightly"), 2)
    );
    let in_history = || {
        let history = gateway.get("/v1/history");
        history["calls"].as_array().unwrap().iter().find_map(|call| call.get("context").cloned())
    };
    wait(|| in_history().is_some(), || format!("a context in {:#}", gateway.get("/v1/history")));
    let (history, context) = (gateway.get("/v1/history"), in_history().unwrap());
    for field in ["agentId", "correlationId", "requestTags", "fromHook", "baggageKeys"] {
        assert_eq!(
            (context[field].is_null(), &context[field]),
            (false, &stored[field]),
            "{field}: {history:#}"
        );
    }
    let end = gateway.logged_times("tool_call_end", 1).remove(0);
    assert_eq!((&end["agentId"], &end["correlationId"]), (&json!("planner"), &json!("c-9")), "{end}");
    assert_eq!((&end["fromHook"], &end["baggageKeys"]), (&json!("before-pay"), &json!("user")), "{end}");
    assert!(end["requestTags"].as_str().unwrap().starts_with("nightly,"), "{end}");
    assert_eq!(end["idempotencyKeyHash"], stored["idempotencyKeyHash"], "{end}");
    // Its span is pushed a little later. Texts in protobuf are plain.
    let pushed = || -> String {
        let requests = gateway.service.requests().into_iter();
        requests
            .filter(|request| request.line.starts_with("POST /v1/traces "))
            .map(|request| request.body)
            .collect()
    };
    wait(|| pushed().contains("tool_execution"), || format!("a span in {:?}", gateway.service.requests()));
    for (attribute, value) in [
        ("agent.id", "planner"),
        ("correlation.id", "c-9"),
        ("request.tags", "nightly,"),
        ("hook.name", "before-pay"),
        ("baggage.keys", "user"),
    ] {
        let spans = pushed();
        let behind = spans.split_once(attribute).unwrap_or_else(|| panic!("{attribute}: {spans:?}")).1;
        assert!(behind.find(value).is_some_and(|at| at < 8), "{attribute} = {value}: {spans:?}");
    }
    let log = fs::read_to_string(gateway.folder.join("log")).unwrap();
    let everything = log + &stored.to_string() + &history.to_string() + &pushed();
    assert!(!everything.contains("abcdefghijklm") && !everything.contains("value-of-ann"), "{everything}");

    // A refusal says whether calling again can help, and the state of the breaker.
    let opened = gateway.run(&["breaker", "open", "bank/look"]);
    assert!(opened.status.success(), "{opened:?}");
    let mut again = call.clone();
    again["payload"]["idempotencyKey"] = json!("order 18");
    assert_eq!(gateway.call(&again).code(), "circuit_open");
    let blocked = gateway.logged_times("tool_call_blocked", 1).remove(0);
    assert!(blocked["retriable"].is_boolean(), "{blocked}");
    assert!(blocked["breakerState"].as_str().unwrap().to_lowercase().contains("open"), "{blocked}");
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Returns the context of calls of `pay` in the records and the history.
fn call_contexts(gateway: &ApiGateway, calls: usize) -> Vec<[Value; 5]> {
    let pays = |list: &Value| -> Vec<Value> {
        list.as_array().unwrap().iter().filter(|one| one["tool"]["tool"] == "pay").cloned().collect()
    };
    let history = || pays(&gateway.get("/v1/history")["calls"]);
    wait(|| history().len() == calls, || format!("{calls} calls in {:#}", gateway.get("/v1/history")));
    let of = |entry: &Value| {
        ["agentId", "correlationId", "requestTags", "fromHook", "baggageKeys"].map(|name| entry[name].clone())
    };
    let mut in_history: Vec<_> = history().iter().map(|call| of(&call["context"])).collect();
    let mut in_records: Vec<_> = pays(&gateway.get("/v1/records")["records"]).iter().map(of).collect();
    for list in [&mut in_history, &mut in_records] {
        list.sort_by_key(|words| words[1].to_string());
    }
    assert_eq!(in_history, in_records);
    in_history
}

#[test]
fn over_mcp_a_call_has_the_same_context_in_meta_or_in_headers_and_its_server_gets_the_baggage() {
    let gateway = ApiGateway::new("context_mcp", PLAIN);
    let headers = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\nbaggage: team=value-of-bob\r\n");
    let mut client = McpTestClient::at(gateway.address).with_headers(&headers);
    client.initialize();
    client.request("tools/list", json!({}));
    let pay = |client: &mut McpTestClient, id: &str, mut meta: Value| -> Value {
        meta["dev.steadfast/idempotency-key"] = id.into();
        let response = client.call_with("pay", json!({ "id": id, "fault": "echo" }), meta);
        serde_json::from_str::<Value>(&response.text).unwrap_or_else(|_| panic!("{response:?}"))["_meta"]
            .clone()
    };
    let sent = pay(&mut client, "a", json!({}));
    assert_eq!(sent["baggage"], "team=value-of-bob", "{sent}");
    assert!(sent["traceparent"].as_str().is_some_and(|parent| parent.contains(TRACE)), "{sent}");
    let words = json!({
        "baggage": "user=value-of-ann;secret,plan=b%20c", "dev.steadfast/agent": "planner",
        "dev.steadfast/correlation-id": "c-9", "dev.steadfast/tags": ["nightly", SECRET],
        "dev.steadfast/hook": "before-pay",
    });
    let sent = pay(&mut client, "b", words);
    assert_eq!(sent["baggage"], "user=value-of-ann;secret,plan=b%20c", "as it came: {sent}");
    let contexts = call_contexts(&gateway, 2);
    assert_eq!(contexts[0], [json!(null), json!(TRACE), json!(null), json!(null), json!(["team"])]);
    let [agent, correlation, tags, hook, baggage] = &contexts[1];
    assert_eq!((agent, correlation), (&json!("planner"), &json!("c-9")));
    assert_eq!(
        (&tags[0], tags.as_array().unwrap().len(), hook),
        (&json!("nightly"), 2, &json!("before-pay"))
    );
    assert_eq!(baggage, &json!(["plan", "user"]));
    let everything = fs::read_to_string(gateway.folder.join("log")).unwrap() + &format!("{contexts:?}");
    for secret in ["value-of", "b%20c", "b c", "abcdefghijklm"] {
        assert!(!everything.contains(secret), "{secret}: {everything}");
    }
}

#[test]
fn the_context_of_a_turn_is_that_of_its_calls_and_tools_get_the_baggage() {
    let gateway = ApiGateway::new("context_turn", &format!("{PLAIN}gateway.run_turn = true\n"));
    let tools = |ids: [&str; 2]| -> Value {
        let call = |(tool, id): (&str, &str)| {
            let params = json!({ "id": id, "fault": if tool == "bank/pay" { "echo" } else { "" } });
            json!({ "id": tool.replace('/', "-"), "tool": tool, "params": params })
        };
        json!(["http/pay", "bank/pay"].into_iter().zip(ids).map(call).collect::<Vec<_>>())
    };
    let target = json!({ "sessionKey": "s", "actorId": "ann", "agentId": "planner", "correlationId": "c-9" });
    let turn = json!({
        "contractVersion": "1.1", "target": target, "plan": { "turnId": "t", "calls": tools(["a", "b"]) },
        "control": { "requestTags": ["nightly"], "fromHook": "before-pay" },
        "trace": { "baggage": { "user": "ann, the \u{e4}" } },
    });
    let turned = gateway.post("/v1/turns", &turn).body;
    assert_eq!(turned["status"], "completed", "{turned:#}");
    let encoded = "user=ann%2C%20the%20%C3%A4";
    let requests = gateway.service.requests();
    assert_eq!(requests[0].header("baggage"), Some(encoded), "{requests:?}");
    assert!(turned.to_string().contains(&format!(r#"\"baggage\":\"{encoded}\""#)), "{turned:#}");
    let expected = [json!("planner"), json!("c-9"), json!(["nightly"]), json!("before-pay"), json!(["user"])];
    assert_eq!(call_contexts(&gateway, 2), [expected.clone(), expected]);

    // The same over MCP, for the servers of the client.
    let mut client = McpTestClient::at(gateway.address);
    client.initialize();
    client.request("tools/list", json!({}));
    let words = json!({
        "baggage": "team=bob", "dev.steadfast/tags": ["weekly"], "dev.steadfast/hook": "after-pay",
        "dev.steadfast/correlation-id": "c-10",
    });
    let plan = json!({ "turnId": "u", "calls": [{ "id": "p", "tool": "pay", "params": { "id": "c", "fault": "echo" } }] });
    let turned = client.call_with("run_turn", plan, words);
    assert!(!turned.is_error && turned.text.contains(r#"\"baggage\":\"team=bob\""#), "{turned:?}");
    let expected = [json!(null), json!("c-10"), json!(["weekly"]), json!("after-pay"), json!(["team"])];
    assert_eq!(call_contexts(&gateway, 3)[0], expected);
}

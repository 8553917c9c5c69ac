//! What a caller says about its call beside what it asks for: seen in records, history and the log, bounded and without
//! secrets, and decided by nowhere.

use std::fs;

use serde_json::{Value, json};

use super::{Gateway, PLAIN, keyed};
use crate::world::wait;

const SECRET: &str = "Bearer abcdefghijklmnopqrstuvwxyz0123456789";

#[test]
fn a_record_says_how_its_attempts_ended_and_what_its_caller_said() {
    let gateway = Gateway::new("context", PLAIN);
    let mut call = keyed("bank/look", &json!({ "id": "a", "fault": "503", "times": 1 }), "order 17");
    call["target"]["agentId"] = json!("planner");
    call["target"]["correlationId"] = json!("c-9");
    call["control"] = json!({ "requestTags": ["nightly", SECRET], "fromHook": "before-pay" });
    call["trace"] = json!({ "baggage": { "user": "value-of-ann" } });
    assert_eq!(gateway.call(&call).text(), "look a, run 2");

    let record = |seen: &Value| {
        let records = seen["records"].as_array().unwrap();
        records.iter().find(|record| record["tool"]["tool"] == "look").cloned().unwrap()
    };
    let kept = record(&gateway.get("/v1/records"));
    assert_eq!(kept["attemptCount"], 2, "{kept:#}");
    assert!(
        kept["key"].is_string() && !kept.to_string().contains("order 17"),
        "the key is somebody's data: {kept:#}"
    );
    let life = kept["expiresAtMs"].as_u64().unwrap() - kept["updatedAtMs"].as_u64().unwrap();
    assert_eq!(kept["ttlMs"], json!(life), "{kept:#}");
    let attempt = |at: usize| {
        let attempt = &kept["attempts"][at];
        (attempt["number"].clone(), attempt["status"].clone(), attempt["code"].clone())
    };
    assert_eq!(attempt(0), (json!(1), json!("failed"), json!("tool_error")), "{kept:#}");
    assert_eq!(attempt(1), (json!(2), json!("success"), Value::Null), "{kept:#}");
    assert_eq!((&kept["agentId"], &kept["correlationId"]), (&json!("planner"), &json!("c-9")), "{kept:#}");
    assert_eq!(
        (&kept["fromHook"], &kept["baggageKeys"]),
        (&json!("before-pay"), &json!(["user"])),
        "{kept:#}"
    );
    assert_eq!(
        (&kept["requestTags"][0], kept["requestTags"].as_array().unwrap().len()),
        (&json!("nightly"), 2)
    );
    let in_history = || {
        let history = gateway.get("/v1/history");
        history["calls"].as_array().unwrap().iter().find_map(|call| call.get("context").cloned())
    };
    wait(|| in_history().is_some(), || format!("a context in {:#}", gateway.get("/v1/history")));
    let (history, context) = (gateway.get("/v1/history"), in_history().unwrap());
    assert_eq!(context["agentId"], "planner", "{history:#}");
    let end = gateway.logged_times("tool_call_end", 1).remove(0);
    assert_eq!((&end["agentId"], &end["correlationId"]), (&json!("planner"), &json!("c-9")), "{end}");
    assert_eq!((&end["fromHook"], &end["baggageKeys"]), (&json!("before-pay"), &json!("user")), "{end}");
    assert!(end["requestTags"].as_str().unwrap().starts_with("nightly,"), "{end}");
    let everything =
        fs::read_to_string(gateway.folder.join("log")).unwrap() + &kept.to_string() + &history.to_string();
    assert!(!everything.contains("abcdefghijklm") && !everything.contains("value-of-ann"), "{everything}");

    // A refusal says whether calling again can help, and how the breaker stands.
    let opened = gateway.run(&["breaker", "open", "bank/look"]);
    assert!(opened.status.success(), "{opened:?}");
    let mut again = call.clone();
    again["payload"]["idempotencyKey"] = json!("order 18");
    assert_eq!(gateway.call(&again).code(), "circuit_open");
    let blocked = gateway.logged_times("tool_call_blocked", 1).remove(0);
    assert!(blocked["retriable"].is_boolean(), "{blocked}");
    assert!(blocked["breakerState"].as_str().unwrap().to_lowercase().contains("open"), "{blocked}");
}

//! Several calls that depend on each other, made by an MCP client with `run_turn`.

use serde_json::{Value, json};

use crate::client::ToolResponse;
use crate::world::{GatewayWorld, wait};

const OFFERED: &str = "gateway.run_turn = true\n";

/// Returns a turn with two calls, the second of which needs the output of the first.
fn trip() -> Value {
    json!({
        "turnId": "trip",
        "calls": [
            { "id": "look", "tool": "look", "params": { "id": "a" } },
            { "id": "pay", "tool": "pay", "params": { "id": { "$from": "look", "path": "/content/0/text" } } },
        ],
    })
}

fn outcomes(response: &ToolResponse) -> Vec<(String, String)> {
    let calls = response.structured["calls"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    calls.iter().map(|call| (text(&call["id"]), text(&call["outcome"]))).collect()
}

#[test]
fn the_turn_tool_is_offered_if_it_is_enabled() {
    for (config, is_offered) in [(OFFERED, true), ("", false)] {
        GatewayWorld::each("turn_offered", config, |world| {
            let mut client = world.client();
            let listed = client.request("tools/list", json!({}));
            let offered =
                listed["result"]["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "run_turn");
            assert_eq!(offered, is_offered, "{listed}");
        });
    }
}

#[test]
fn eh_5_4_a_turn_makes_its_calls_in_order_and_when_it_comes_again_runs_none_twice() {
    GatewayWorld::each("turn_again", OFFERED, |world| {
        let mut client = world.client();
        let response = client.call("run_turn", trip());
        assert!(!response.is_error, "{response:?}");
        assert!(response.text.starts_with("Completed look and pay"), "{}", response.text);
        assert!(
            response.text.contains("pay look a, run 1, run 1"),
            "the output of the first is in the second: {}",
            response.text
        );
        let again = client.call("run_turn", trip());
        assert_eq!(outcomes(&again), outcomes(&response));
        assert_eq!((world.count("look a"), world.count("pay look a, run 1")), (1, 1), "nothing ran twice");
    });
}

#[test]
fn eh_5_1_eh_6_4_a_failed_call_is_replaced_or_its_dependants_are_skipped() {
    GatewayWorld::each("turn_failing", OFFERED, |world| {
        let mut client = world.client();
        let response = client.call(
            "run_turn",
            json!({ "calls": [
                { "id": "a", "tool": "look", "params": { "id": "a", "fault": "400" }, "alternatives": [{ "tool": "draw", "params": { "id": "instead" } }] },
                { "id": "b", "tool": "look", "params": { "id": "b", "fault": "400" } },
                { "id": "c", "tool": "pay", "params": { "id": "c" }, "dependsOn": ["b"] },
                { "id": "d", "tool": "draw", "params": { "id": "d" } },
            ] }),
        );
        let actual = outcomes(&response);
        let expected = [("a", "succeeded"), ("b", "failed"), ("c", "skipped"), ("d", "succeeded")];
        assert_eq!(actual, expected.map(|(id, outcome)| (id.to_owned(), outcome.to_owned())), "{response:?}");
        assert_eq!((world.count("draw instead"), world.count("pay c")), (1, 0));
        assert!(response.text.contains("look and pay need your attention"), "{}", response.text);
    });
}

#[test]
fn an_invalid_plan_runs_nothing_and_all_its_errors_are_reported_at_once() {
    GatewayWorld::each("turn_mistaken", OFFERED, |world| {
        let mut client = world.client();
        let response = client.call(
            "run_turn",
            json!({ "calls": [
                { "id": "a", "tool": "look", "params": { "id": "a" }, "dependsOn": ["b"] },
                { "id": "b", "tool": "look", "dependsOn": ["a", "nobody"] },
                { "id": "c", "params": { "x": { "$from": "c" } } },
            ] }),
        );
        assert!(response.is_error, "{response:?}");
        for mistake in ["a -> b -> a", "nobody", "/calls/2"] {
            assert!(response.text.contains(mistake), "{mistake}: {}", response.text);
        }
        assert_eq!(world.count("look a"), 0);
    });
}

#[test]
fn explain_shows_the_history_of_a_turn_and_of_each_of_its_calls() {
    GatewayWorld::each("turn_explained", OFFERED, |world| {
        let mut client = world.client();
        let response = client.call("run_turn", trip());
        assert!(!response.is_error, "{response:?}");
        // The explanation is written asynchronously.
        let explain = || world.steadfast(&["explain", "trip"]);
        let is_over =
            || [".1  bank/look", ".2  bank/pay", "ended: "].iter().all(|part| explain().0.contains(part));
        wait(is_over, || format!("the whole story, not {}", explain().0));
        let (text, succeeded) = explain();
        assert!(succeeded, "{text}");
        assert!(text.starts_with("turn trip  2 calls, "), "{text}");
        let order = [
            "began at",
            "Started look",
            "Started pay",
            "Completed look and pay",
            "ended: completed",
            ".1  bank/look at ",
            "ended: success",
            ".2  bank/pay at ",
        ];
        let places: Vec<_> =
            order.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"))).collect();
        assert!(places.is_sorted(), "{text}");
        // Each call has a story of its own, and the turn is found by its trace as well.
        let trace = text.split("trace ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        let request = text.split_whitespace().find(|word| word.ends_with(".1")).unwrap();
        let (one, succeeded) = world.steadfast(&["explain", request]);
        assert!(succeeded && one.contains("bank/look") && one.contains("ended: success"), "{one}");
        assert_eq!(world.steadfast(&["explain", trace]), (text.clone(), true));
    });
}

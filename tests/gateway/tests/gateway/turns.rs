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

fn outcomes(said: &ToolResponse) -> Vec<(String, String)> {
    let calls = said.structured["calls"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    calls.iter().map(|call| (text(&call["id"]), text(&call["outcome"]))).collect()
}

#[test]
fn the_tool_is_offered_where_it_is_wanted() {
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
        let said = client.call("run_turn", trip());
        assert!(!said.is_error, "{said:?}");
        assert!(said.text.starts_with("Completed look and pay"), "{}", said.text);
        assert!(
            said.text.contains("pay look a, run 1, run 1"),
            "the output of the first is in the second: {}",
            said.text
        );
        let again = client.call("run_turn", trip());
        assert_eq!(outcomes(&again), outcomes(&said));
        assert_eq!((world.count("look a"), world.count("pay look a, run 1")), (1, 1), "nothing ran twice");
    });
}

#[test]
fn eh_5_1_eh_6_4_what_fails_is_replaced_or_leaves_its_dependants_out() {
    GatewayWorld::each("turn_failing", OFFERED, |world| {
        let mut client = world.client();
        let said = client.call(
            "run_turn",
            json!({ "calls": [
                { "id": "a", "tool": "look", "params": { "id": "a", "fault": "400" }, "alternatives": [{ "tool": "draw", "params": { "id": "instead" } }] },
                { "id": "b", "tool": "look", "params": { "id": "b", "fault": "400" } },
                { "id": "c", "tool": "pay", "params": { "id": "c" }, "dependsOn": ["b"] },
                { "id": "d", "tool": "draw", "params": { "id": "d" } },
            ] }),
        );
        let told = outcomes(&said);
        let expected = [("a", "succeeded"), ("b", "failed"), ("c", "skipped"), ("d", "succeeded")];
        assert_eq!(told, expected.map(|(id, outcome)| (id.to_owned(), outcome.to_owned())), "{said:?}");
        assert_eq!((world.count("draw instead"), world.count("pay c")), (1, 0));
        assert!(said.text.contains("look and pay need your attention"), "{}", said.text);
    });
}

#[test]
fn an_invalid_plan_runs_nothing_and_all_its_errors_are_reported_at_once() {
    GatewayWorld::each("turn_mistaken", OFFERED, |world| {
        let mut client = world.client();
        let said = client.call(
            "run_turn",
            json!({ "calls": [
                { "id": "a", "tool": "look", "params": { "id": "a" }, "dependsOn": ["b"] },
                { "id": "b", "tool": "look", "dependsOn": ["a", "nobody"] },
                { "id": "c", "params": { "x": { "$from": "c" } } },
            ] }),
        );
        assert!(said.is_error, "{said:?}");
        for mistake in ["a -> b -> a", "nobody", "/calls/2"] {
            assert!(said.text.contains(mistake), "{mistake}: {}", said.text);
        }
        assert_eq!(world.count("look a"), 0);
    });
}

#[test]
fn explain_shows_the_history_of_a_turn_and_of_each_of_its_calls() {
    GatewayWorld::each("turn_explained", OFFERED, |world| {
        let mut client = world.client();
        let said = client.call("run_turn", trip());
        assert!(!said.is_error, "{said:?}");
        // The explanation is written asynchronously.
        let told = || world.steadfast(&["explain", "trip"]);
        let is_over =
            || [".1  bank/look", ".2  bank/pay", "ended: "].iter().all(|part| told().0.contains(part));
        wait(is_over, || format!("the whole story, not {}", told().0));
        let (told, went_well) = told();
        assert!(went_well, "{told}");
        assert!(told.starts_with("turn trip  2 calls, "), "{told}");
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
            order.iter().map(|part| told.find(part).unwrap_or_else(|| panic!("{part}: {told}"))).collect();
        assert!(places.is_sorted(), "{told}");
        // Each call has a story of its own, and the turn is found by its trace as well.
        let trace = told.split("trace ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        let request = told.split_whitespace().find(|word| word.ends_with(".1")).unwrap();
        let (one, went_well) = world.steadfast(&["explain", request]);
        assert!(went_well && one.contains("bank/look") && one.contains("ended: success"), "{one}");
        assert_eq!(world.steadfast(&["explain", trace]), (told.clone(), true));
    });
}

//! TR-2 to TR-4: duplicate calls.

use std::fs;

use serde_json::json;

use crate::client::{ToolResponse, keyed};
use crate::world::GatewayWorld;

#[test]
fn tr_2_a_duplicate_in_flight_waits_for_the_one_run() {
    GatewayWorld::each("tr_2_waits", "log.level = \"debug\"\n", |world| {
        let mut client = world.client();
        let gate = world.set_behavior("gate");
        let arguments = json!({ "id": "a", "fault": "gate" });
        let first = client.send_call_with("pay", arguments.clone(), keyed("k"));
        world.until("pay a", 1);
        let second = client.send_call_with("pay", arguments, keyed("k"));
        world.logged_times("tool_call_following", 1);
        fs::remove_file(gate).unwrap();
        let response = ToolResponse::of(&client.answer(second));
        assert_eq!(
            (response.text.as_str(), response.is_error, response.from_cache),
            ("pay a, run 1", false, true),
            "{response:?}"
        );
        assert_eq!(response.gateway_meta["cache"]["matchedOn"], "inflight", "{response:?}");
        assert_eq!(ToolResponse::of(&client.answer(first)).text, "pay a, run 1");
        assert_eq!(world.count("pay a"), 1);
    });
}

#[test]
fn tr_2_without_dedupe_a_duplicate_waits_for_nothing() {
    GatewayWorld::each("tr_2_off", "[tools.\"bank/pay\"]\ndedupe.mode = \"off\"\n", |world| {
        let mut client = world.client();
        // The first run waits until the end of the test. The second one does not wait.
        let arguments = json!({ "id": "a", "fault": "hang", "times": 1 });
        client.send_call_with("pay", arguments.clone(), keyed("k"));
        world.until("pay a", 1);
        let response = client.call_keyed("pay", arguments, "k");
        assert_eq!((response.text.as_str(), response.from_cache), ("pay a, run 2", false), "{response:?}");
    });
}

#[test]
fn tr_3_a_duplicate_after_the_answer_gets_it_again_and_its_digest_stays() {
    GatewayWorld::each("tr_3_replayed", "", |world| {
        let mut client = world.client();
        let id = client.send_call_with("pay", json!({ "id": "a" }), keyed("k"));
        let first = client.answer(id);
        assert_eq!(ToolResponse::of(&first).text, "pay a, run 1");
        let mut prints = Vec::new();
        for _ in 0..3 {
            let id = client.send_call_with("pay", json!({ "id": "a" }), keyed("k"));
            let mut again = client.answer(id);
            let response = ToolResponse::of(&again);
            assert!(
                response.from_cache && response.gateway_meta["cache"]["matchedOn"] == "completed",
                "{response:?}"
            );
            prints.push(response.gateway_meta["cache"]["keyFingerprint"].clone());
            // Except for our own mark and the id, it is the same answer, to the byte.
            let result = again["result"].as_object_mut().unwrap();
            result.remove("_meta");
            assert_eq!(again["result"].to_string(), first["result"].to_string());
            // If the digest of the arguments were lost, this would be taken for the same call.
            let other = client.call_keyed("pay", json!({ "id": "b" }), "k");
            assert_eq!(other.code.as_deref(), Some("idempotency_conflict"), "{other:?}");
        }
        assert!(prints.iter().all(|print| print.is_string() && *print == prints[0]), "{prints:?}");
        assert_eq!((world.count("pay a"), world.count("pay b")), (1, 0));
        // Also for a later client, and for a gateway that was started later.
        drop(client);
        assert!(world.client().call_keyed("pay", json!({ "id": "a" }), "k").from_cache);
    });
}

#[test]
fn tr_4_one_key_for_two_calls_is_a_conflict_and_nothing_runs() {
    GatewayWorld::each("tr_4_conflict", "", |world| {
        let mut client = world.client();
        assert_eq!(client.call_keyed("pay", json!({ "id": "a" }), "k").text, "pay a, run 1");
        let response = client.call_keyed("pay", json!({ "id": "b" }), "k");
        assert_eq!(
            (response.is_error, response.code.as_deref()),
            (true, Some("idempotency_conflict")),
            "{response:?}"
        );
        assert_eq!(
            (&response.gateway_meta["error"]["terminal"], response.from_cache),
            (&json!(true), false),
            "{response:?}"
        );
        // The order of names and white space do not make a different call. Another key does.
        assert!(client.call_keyed("pay", json!({ "id": "a" }), "k").from_cache);
        assert_eq!(client.call_keyed("pay", json!({ "id": "b" }), "l").text, "pay b, run 1");
        assert_eq!(client.call_keyed("look", json!({ "id": "a" }), "m").text, "look a, run 1");
        assert_eq!(world.count("pay b"), 1);
    });
}

#[test]
fn tr_4_one_key_for_two_calls_is_two_keys_if_that_is_set() {
    GatewayWorld::each("tr_4_separate", "dedupe.conflict = \"separate\"\n", |world| {
        let mut client = world.client();
        for id in ["a", "b"] {
            let response = client.call_keyed("pay", json!({ "id": id }), "k");
            assert_eq!((response.text, response.from_cache), (format!("pay {id}, run 1"), false));
        }
        for id in ["a", "b"] {
            let response = client.call_keyed("pay", json!({ "id": id }), "k");
            assert_eq!((response.text, response.from_cache), (format!("pay {id}, run 1"), true));
        }
    });
}

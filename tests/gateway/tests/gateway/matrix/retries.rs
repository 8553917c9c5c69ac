//! TR-5 to TR-7 and TR-11: retries, and their limits.

use std::collections::BTreeSet;

use serde_json::json;

use super::PLAIN;
use crate::client::ToolResponse;
use crate::world::{GatewayWorld, TestTransport};

#[test]
fn tr_5_two_timeouts_and_a_success_are_three_attempts_with_jittered_delays() {
    // Timeouts behind the tool, which it reports. A timeout of the gateway could come between a good answer and its client.
    GatewayWorld::each("tr_5_time_outs", PLAIN, |world| {
        let mut client = world.client();
        let ids: Vec<_> = ["a", "b", "c"]
            .map(|id| client.send_call("look", json!({ "id": id, "fault": "504", "times": 2 })))
            .into();
        for (id, name) in ids.into_iter().zip(["a", "b", "c"]) {
            assert_eq!(ToolResponse::of(&client.answer(id)).text, format!("look {name}, run 3"));
            assert_eq!(world.count(&format!("look {name}")), 3);
        }
        let retries = world.logged_times("tool_call_retry", 6);
        let mut waits = BTreeSet::new();
        for retry in &retries {
            let (attempt, wait) = (retry["attempt"].as_u64().unwrap(), retry["delayMs"].as_u64().unwrap());
            assert!(wait <= if attempt == 2 { 200 } else { 400 }, "exponential from 200 ms: {retry}");
            waits.insert(wait);
        }
        assert!(waits.len() >= 3, "waits are spread: {waits:?}");
        // A stable tool is called once.
        assert_eq!(client.call("look", json!({ "id": "stable" })).text, "look stable, run 1");
        assert_eq!((world.count("look stable"), world.logged("tool_call_retry").len()), (1, 6));
    });
}

#[test]
fn tr_6_a_400_is_final_after_one_attempt() {
    GatewayWorld::each("tr_6_400", PLAIN, |world| {
        let (mut client, mut bare) = (world.client(), world.bare());
        for tool in ["pay", "look", "draw"] {
            let arguments = json!({ "id": "a", "fault": "400" });
            let response = client.call_keyed(tool, arguments.clone(), tool);
            assert!(response.is_error && response.text.contains("400"), "{response:?}");
            assert_eq!(world.count(&format!("{tool} a")), 1);
            // A repeated call gets the same answer, which also says that retrying does not help.
            let again = client.call_keyed(tool, arguments.clone(), tool);
            assert!(again.is_error && again.from_cache && again.text == response.text, "{again:?}");
            let error = &again.gateway_meta["error"];
            assert_eq!((&error["terminal"], &error["retriable"]), (&json!(true), &json!(false)), "{again:?}");
            assert_eq!(world.count(&format!("{tool} a")), 1);
        }
        // The server's own answers are the same as without the gateway.
        for (code, text) in [(-32602, "Invalid arguments: no such account"), (-32600, "400 Bad Request")] {
            let arguments = json!({ "id": code.to_string(), "fault": "code", "code": code, "text": text });
            let params = json!({ "name": "draw", "arguments": arguments });
            let (through_gateway, direct) =
                (client.request("tools/call", params.clone()), bare.request("tools/call", params));
            assert_eq!(through_gateway["error"]["code"], direct["error"]["code"]);
            assert_eq!(through_gateway["error"]["data"], direct["error"]["data"]);
            assert!(
                through_gateway["error"]["message"].as_str().unwrap().starts_with(text),
                "{through_gateway}"
            );
            assert_eq!(world.count(&format!("draw {code}")), 1);
        }
        // They say nothing about the tool.
        assert_eq!(client.call("look", json!({ "id": "b" })).text, "look b, run 1");
        assert_eq!(world.logged("tool_call_retry").len(), 0);
    });
}

#[test]
fn tr_7_a_tool_that_never_answers_exhausts_its_attempts() {
    // The tool is down for longer than the test lasts.
    let tool = "[tools.\"bank/look\"]\ntimeout = \"300ms\"\nbreaker.cooldown = \"10m\"\n";
    GatewayWorld::each("tr_7_exhausted", &format!("{PLAIN}{tool}"), |world| {
        let mut client = world.client();
        let response = client.call("look", json!({ "id": "a", "fault": "hang" }));
        assert_eq!(
            (response.is_error, response.code.as_deref()),
            (true, Some("retry_exhausted")),
            "{response:?}"
        );
        assert_eq!(
            (&response.gateway_meta["attempts"], &response.gateway_meta["status"]),
            (&json!(4), &json!("retry_exhausted"))
        );
        // The breaker has counted all four. Four more make eight, which open it for a tool that only reads.
        client.call("look", json!({ "id": "b", "fault": "hang" }));
        let refused = client.call("look", json!({ "id": "c" }));
        assert_eq!(refused.code.as_deref(), Some("circuit_open"), "{refused:?}");
        client.request("ping", json!({}));
        // The server may receive the sent ones later. No others were made.
        world.until("look a", 1);
        assert!(world.count("look a") <= 4 && world.count("look b") <= 4, "{:?}", world.ledger());
        assert_eq!(world.count("look c"), 0);
    });
}

#[test]
fn tr_7_a_server_that_is_overloaded_for_good_exhausts_the_attempts() {
    for front in TestTransport::cases() {
        let config = format!("{PLAIN}retry.attempts = 2\n");
        let world = GatewayWorld::of("tr_7_503", &config, front, TestTransport::Http);
        let mut client = world.client();
        let response = client.call("look", json!({ "id": "a", "fault": "503" }));
        assert_eq!(
            (response.code.as_deref(), world.count("look a")),
            (Some("retry_exhausted"), 2),
            "{response:?}"
        );
        assert_eq!(client.call("look", json!({ "id": "b" })).text, "look b, run 1");
    }
}

#[test]
fn tr_11_nothing_is_retried_against_an_open_breaker_and_there_is_no_storm() {
    let config = format!("{PLAIN}retry.attempts = 20\nretry.base = \"1ms\"\nbreaker.cooldown = \"10m\"\n");
    GatewayWorld::each("tr_11_storm", &config, |world| {
        let mut client = world.client();
        // Closed, it is retried until the breaker opens, and not once more.
        let response = client.call("look", json!({ "id": "a", "fault": "error" }));
        assert!(response.is_error, "{response:?}");
        assert_eq!(world.count("look a"), 8);
        // A hundred callers during a full outage make no attempt at all.
        let callers: Vec<_> = (0..100)
            .map(|number| client.send_call("look", json!({ "id": number.to_string(), "fault": "error" })))
            .collect();
        for caller in callers {
            let response = ToolResponse::of(&client.answer(caller));
            assert_eq!(response.code.as_deref(), Some("circuit_open"), "{response:?}");
        }
        assert_eq!(world.ledger().iter().filter(|line| line.starts_with("look ")).count(), 8);
    });
}

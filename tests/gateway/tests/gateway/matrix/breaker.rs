//! TR-8 to TR-10: the breaker of a failing tool opens, probes, and closes again.
//!
//! A cool-down during which something must happen is far longer than any test. The test waits for one that must be
//! over.

use std::fs;

use serde_json::{Value, json};

use super::PLAIN;
use crate::client::{McpTestClient, ToolResponse};
use crate::world::{GatewayWorld, wait};

/// Makes the tool report this many different failures.
fn fail(client: &mut McpTestClient, tool: &str, times: usize) {
    for number in 0..times {
        let response = client.call(tool, json!({ "id": format!("bad {number}"), "fault": "error" }));
        assert!(
            response.is_error && response.code.as_deref() != Some("circuit_open"),
            "{number}: {response:?}"
        );
    }
}

fn is_open(response: &ToolResponse) -> bool {
    response.code.as_deref() == Some("circuit_open")
}

/// Waits for this many logged changes of the breaker of a tool.
fn changes(world: &GatewayWorld, tool: &str, times: usize) -> Vec<(Value, Value)> {
    let changes = || -> Vec<_> {
        let logged = world.logged("tool_call_circuit_state").into_iter();
        let of_tool = logged.filter(|line| line["toolName"] == tool);
        of_tool.map(|line| (line["fromState"].clone(), line["breakerState"].clone())).collect()
    };
    wait(|| changes().len() >= times, || format!("{times} changes: {:?}", changes()));
    assert_eq!(changes().len(), times, "{:?}", changes());
    changes()
}

fn change(from: &str, to: &str) -> (Value, Value) {
    (json!(from), json!(to))
}

/// Returns the settings of a tool that changes something, whose calls are made once each.
fn tool(name: &str, breaker: &str) -> String {
    format!("[tools.\"bank/{name}\"]\nclass = \"mutating\"\nretry.attempts = 1\n{breaker}\n")
}

#[test]
fn tr_8_five_failing_mutations_open_the_breaker_and_the_next_calls_are_refused_without_running() {
    let config = format!("{PLAIN}{}", tool("pay", "breaker.cooldown = \"10m\""));
    GatewayWorld::each("tr_8_open", &config, |world| {
        let mut client = world.client();
        fail(&mut client, "pay", 5);
        assert_eq!(changes(&world, "pay", 1), [change("CLOSED", "OPEN")]);
        // Calls that would succeed remain blocked, and no attempt is made.
        for number in 0..21 {
            let response = client.call("pay", json!({ "id": format!("good {number}") }));
            assert!(
                is_open(&response) && response.gateway_meta["error"]["breakerState"] == "OPEN",
                "{response:?}"
            );
            assert_eq!(
                (&response.gateway_meta["status"], &response.gateway_meta["attempts"]),
                (&json!("circuit_open"), &json!(0))
            );
        }
        // Another tool is not affected, and a gateway that starts later has the same state.
        assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1");
        let mut tried = 0;
        wait(
            || {
                tried += 1;
                is_open(&world.client().call("pay", json!({ "id": format!("later {tried}") })))
            },
            || "a gateway that knows".to_owned(),
        );
        assert_eq!(world.ledger().iter().filter(|line| line.starts_with("pay good")).count(), 0);
    });
}

#[test]
fn tr_9_two_successful_probes_close_the_breaker() {
    let config = format!("{PLAIN}{}", tool("pay", "breaker.cooldown = \"100ms\""));
    GatewayWorld::each("tr_9_closed", &config, |world| {
        let mut client = world.client();
        fail(&mut client, "pay", 5);
        // A call that comes too early is refused, which changes nothing.
        wait(
            || client.call("pay", json!({ "id": "first" })).text == "pay first, run 1",
            || "a probe".to_owned(),
        );
        let after_one = [change("CLOSED", "OPEN"), change("OPEN", "HALF_OPEN")];
        assert_eq!(changes(&world, "pay", 2), after_one, "one good probe is not enough");
        assert_eq!(client.call("pay", json!({ "id": "second" })).text, "pay second, run 1");
        assert_eq!(changes(&world, "pay", 3)[2], change("HALF_OPEN", "CLOSED"));
        // Calls run concurrently again, at the first attempt: none is over before all have begun.
        let gate = world.set_behavior("gate");
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let arguments = json!({ "id": number.to_string(), "fault": "gate" });
                (number, client.send_call("pay", arguments))
            })
            .collect();
        for (number, _) in &calls {
            world.until(&format!("pay {number}"), 1);
        }
        fs::remove_file(gate).unwrap();
        for (number, call) in calls {
            assert_eq!(ToolResponse::of(&client.answer(call)).text, format!("pay {number}, run 1"));
        }
    });
}

#[test]
fn tr_10_a_failing_probe_opens_the_breaker_again_with_a_new_cooldown() {
    // The second cool-down of the first tool is far longer than its first one. That of the other tool is as long.
    let grows =
        "breaker.cooldown = \"600ms\"\nbreaker.cooldown_growth = 1000\nbreaker.cooldown_cap = \"10m\"";
    let config = format!("{PLAIN}{}{}", tool("pay", grows), tool("send", "breaker.cooldown = \"100ms\""));
    GatewayWorld::each("tr_10_again", &config, |world| {
        let mut client = world.client();
        let before = client.call_keyed("pay", json!({ "id": "before" }), "k");
        assert_eq!(before.text, "pay before, run 1");
        for tool in ["pay", "send"] {
            fail(&mut client, tool, 5);
            wait(
                || !is_open(&client.call(tool, json!({ "id": "probe", "fault": "error" }))),
                || "a probe".to_owned(),
            );
        }
        for number in 0..5 {
            let response = client.call("pay", json!({ "id": format!("after {number}") }));
            assert!(is_open(&response), "{response:?}");
        }
        // Earlier successful answers are still replayed.
        assert!(client.call_keyed("pay", json!({ "id": "before" }), "k").from_cache);
        wait(|| !is_open(&client.call("send", json!({ "id": "after" }))), || "the next probe".to_owned());
        let again = [change("CLOSED", "OPEN"), change("OPEN", "HALF_OPEN"), change("HALF_OPEN", "OPEN")];
        assert_eq!(changes(&world, "pay", 3), again);
        assert_eq!(changes(&world, "send", 4)[..3], again);
        let done = ["pay probe", "pay before", "send probe", "send after"].map(|line| world.count(line));
        assert_eq!(done, [1, 1, 1, 1], "{:?}", world.ledger());
        assert_eq!(world.ledger().iter().filter(|line| line.starts_with("pay after")).count(), 0);
    });
}

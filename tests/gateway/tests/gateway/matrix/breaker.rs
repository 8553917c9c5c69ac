//! TR-8 to TR-10: a tool that is down is left alone, and found again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::PLAIN;
use crate::client::{Client, Said};
use crate::world::{World, wait};

/// Each is a failure of its own: the tool never answers.
fn fail(client: &mut Client, times: usize) {
    for number in 0..times {
        let said = client.call("pay", json!({ "id": format!("bad {number}"), "fault": "hang" }));
        assert_eq!(said.code.as_deref(), Some("outcome_unknown"), "{said:?}");
    }
}

fn is_open(said: &Said) -> bool {
    said.code.as_deref() == Some("circuit_open")
}

/// The changes of the breaker that were logged, when there are so many.
fn changes(world: &World, times: usize) -> Vec<(Value, Value)> {
    let logged = world.logged_times("tool_call_circuit_state", times);
    logged.iter().map(|line| (line["fromState"].clone(), line["breakerState"].clone())).collect()
}

fn change(from: &str, to: &str) -> (Value, Value) {
    (json!(from), json!(to))
}

#[test]
fn tr_8_five_failing_mutations_open_the_breaker_and_the_next_call_fails_at_once() {
    let config = format!("{PLAIN}[tools.\"bank/pay\"]\ntimeout = \"200ms\"\nbreaker.cooldown = \"10m\"\n");
    World::each("tr_8_open", &config, |world| {
        let mut client = world.client();
        fail(&mut client, 5);
        assert_eq!(changes(&world, 1), [change("CLOSED", "OPEN")]);
        // Whoever would succeed remains blocked, and hears so at once.
        let mut took = Vec::new();
        for number in 0..21 {
            let began = Instant::now();
            let said = client.call("pay", json!({ "id": format!("good {number}") }));
            took.push(began.elapsed());
            assert!(is_open(&said) && said.ours["error"]["breakerState"] == "OPEN", "{said:?}");
            assert_eq!((&said.ours["status"], &said.ours["attempts"]), (&json!("circuit_open"), &json!(0)));
        }
        took.sort();
        assert!(took[0] <= Duration::from_millis(10), "{took:?}");
        // Another tool is free, and a gateway that is started a moment later knows as much.
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
fn tr_9_two_good_probes_close_the_breaker() {
    let config = format!("{PLAIN}[tools.\"bank/pay\"]\ntimeout = \"1s\"\nbreaker.cooldown = \"1s\"\n");
    World::each("tr_9_closed", &config, |world| {
        let mut client = world.client();
        fail(&mut client, 5);
        // Whoever asks too early is refused, which changes nothing.
        wait(
            || client.call("pay", json!({ "id": "first" })).text == "pay first, run 1",
            || "a probe".to_owned(),
        );
        let after_one = [change("CLOSED", "OPEN"), change("OPEN", "HALF_OPEN")];
        assert_eq!(changes(&world, 2), after_one, "one good probe is not enough");
        assert_eq!(client.call("pay", json!({ "id": "second" })).text, "pay second, run 1");
        assert_eq!(changes(&world, 3)[2], change("HALF_OPEN", "CLOSED"));
        // Calls run side by side again, at the first attempt, as quickly as their tool.
        let began = Instant::now();
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let arguments = json!({ "id": number.to_string(), "fault": "slow", "size": 300 });
                (number, client.send_call("pay", arguments))
            })
            .collect();
        for (number, call) in calls {
            assert_eq!(Said::of(&client.answer(call)).text, format!("pay {number}, run 1"));
        }
        assert!(began.elapsed() < Duration::from_millis(8 * 300), "{:?}", began.elapsed());
    });
}

#[test]
fn tr_10_a_failing_probe_opens_the_breaker_again_with_a_fresh_cool_down() {
    let cooldown = Duration::from_millis(1_500);
    let config = format!("{PLAIN}[tools.\"bank/pay\"]\ntimeout = \"1s\"\nbreaker.cooldown = \"1500ms\"\n");
    World::each("tr_10_again", &config, |world| {
        let mut client = world.client();
        let before = client.call_keyed("pay", json!({ "id": "before" }), "k");
        assert_eq!(before.text, "pay before, run 1");
        fail(&mut client, 5);
        let mut probed = Instant::now();
        wait(
            || {
                probed = Instant::now();
                !is_open(&client.call("pay", json!({ "id": "probe", "fault": "hang" })))
            },
            || "a probe".to_owned(),
        );
        let said = client.call("pay", json!({ "id": "after" }));
        assert!(is_open(&said), "{said:?}");
        // What succeeded before is still to be had.
        assert!(client.call_keyed("pay", json!({ "id": "before" }), "k").from_cache);
        wait(|| !is_open(&client.call("pay", json!({ "id": "after" }))), || "the next probe".to_owned());
        assert!(probed.elapsed() >= cooldown, "the time began anew: {:?}", probed.elapsed());
        assert_eq!(
            (world.count("pay probe"), world.count("pay before"), world.count("pay after")),
            (1, 1, 1)
        );
    });
}

//! TR-13 to TR-15: notices, the switch that turns everything off, and secrets.

use std::process::Command;

use serde_json::{Value, json};

use super::PLAIN;
use crate::client::{McpTestClient, keyed};
use crate::world::{GatewayWorld, wait};

#[test]
fn tr_13_every_transition_is_logged() {
    // The first tool hangs after it was certainly called, and its breaker stays open for longer than the test. The
    // second one fails, and is retried soon.
    let hangs =
        "[tools.\"bank/pay\"]\ntimeout = \"5s\"\nbreaker.cooldown = \"10m\"\nbreaker.consecutive = 2\n";
    let fails =
        "[tools.\"bank/send\"]\nretry.attempts = 1\nbreaker.cooldown = \"100ms\"\nbreaker.consecutive = 2\n";
    GatewayWorld::each("tr_13_logged", &format!("{PLAIN}retry.base = \"1ms\"\n{hangs}{fails}"), |world| {
        let mut client = world.client();
        client.call("draw", json!({ "id": "good" }));
        client.call("look", json!({ "id": "retried", "fault": "error", "times": 1 }));
        client.call("look", json!({ "id": "bad", "fault": "400" }));
        client.call("pay", json!({ "id": "first", "fault": "hang" }));
        client.call("pay", json!({ "id": "second", "fault": "hang" }));
        let refused = client.call("pay", json!({ "id": "refused" }));
        assert_eq!(refused.code.as_deref(), Some("circuit_open"));
        client.call("send", json!({ "id": "first", "fault": "error" }));
        client.call("send", json!({ "id": "second", "fault": "error" }));
        let is_open = |client: &mut McpTestClient, id: &str| {
            client.call("send", json!({ "id": id })).code.as_deref() == Some("circuit_open")
        };
        wait(|| !is_open(&mut client, "probe"), || "a probe".to_owned());
        assert!(!is_open(&mut client, "another probe"));

        let changes = world.logged_times("tool_call_circuit_state", 4);
        for (change, (tool, from, to)) in changes.iter().zip([
            ("pay", "CLOSED", "OPEN"),
            ("send", "CLOSED", "OPEN"),
            ("send", "OPEN", "HALF_OPEN"),
            ("send", "HALF_OPEN", "CLOSED"),
        ]) {
            assert_eq!(
                (&change["toolName"], &change["fromState"], &change["breakerState"]),
                (&json!(tool), &json!(from), &json!(to)),
                "{change}"
            );
        }
        let retry = &world.logged_times("tool_call_retry", 1)[0];
        assert_eq!((&retry["toolName"], &retry["attempt"]), (&json!("look"), &json!(2)), "{retry}");
        let call_ends = |id: &str| {
            let ends = world.logged("tool_call_end");
            ends.into_iter().filter(|end| end["status"] == id).collect::<Vec<_>>()
        };
        wait(|| call_ends("success").len() == 4, || format!("{:#?}", world.log()));
        assert!(
            call_ends("circuit_open")
                .iter()
                .all(|end| end["errorCode"] == "circuit_open" && end["attempt"] == 0)
        );
        // Four calls have an unknown outcome: `pay` hung, and `send` answered with a 503. If the server is remote, the
        // two that hang may still run when their caller gets the response, and have not ended for the gateway.
        let answered_early = if world.is_remote() { 2 } else { 0 };
        let early = world.logged_times("tool_call_answered_early", answered_early);
        assert!(early.iter().all(|line| line["errorCode"] == "outcome_unknown"), "{early:?}");
        assert_eq!(
            (call_ends("error").len(), call_ends("retriable_error").len()),
            (5 - answered_early, 0),
            "the 400, and those of which nobody knows"
        );
        assert_eq!(world.logged("tool_call_start").len(), world.logged("tool_call_end").len() + early.len());
        assert!(!world.logged("tool_call_blocked").is_empty());
        // The fields of every line about a call.
        for line in world.log().iter().filter(|line| line["event"].as_str().unwrap().starts_with("tool_call"))
        {
            for field in ["time", "level", "requestId", "toolName", "sessionKey", "idempotencyKeyHash"] {
                assert!(line[field].is_string(), "no {field}: {line}");
            }
        }
    });
}

/// Returns a client of a gateway that is turned off, with limits that would show.
fn off(world: &GatewayWorld) -> McpTestClient {
    world.client_of("bank", |command: &mut Command| {
        command.env("TOOL_RELIABILITY_ENABLED", "false");
    })
}

#[test]
fn tr_14_switched_off_every_call_is_answered_as_by_the_server_alone() {
    let limits =
        "timeout = \"300ms\"\nvalidate_arguments = \"enforce\"\n[guard]\nper_turn = 1\nidentical = 1\n";
    GatewayWorld::each(
        "tr_14_off",
        &format!("{limits}[breaker]\nconsecutive = 1\n[trust]\ncount = 1\n"),
        |world| {
            let (mut client, mut bare) = (off(&world), world.bare());
            let key = keyed("k");
            let mut sequence: Vec<(&str, Value, Value)> = vec![
                // A key has no effect: the same call runs again, and other arguments are no conflict.
                ("pay", json!({ "id": "a" }), key.clone()),
                ("pay", json!({ "id": "a" }), key.clone()),
                ("pay", json!({ "id": "b" }), key.clone()),
                // Longer than the limit.
                ("pay", json!({ "id": "slow", "fault": "slow", "size": 1_000 }), json!({})),
                ("look", json!({ "id": "slow", "fault": "slow", "size": 1_000 }), json!({})),
                ("nothing", json!({}), json!({})),
                // The server receives exactly what the client sent.
                ("look", json!({ "id": "echo", "fault": "echo" }), json!({ "own": 1 })),
            ];
            // Nothing is retried, marked, counted or refused.
            for _ in 0..8 {
                sequence.push(("look", json!({ "id": "down", "fault": "error" }), json!({})));
                sequence.push(("pay", json!({}), json!({})));
                sequence.push((
                    "draw",
                    json!({ "id": "x", "fault": "code", "code": -32603, "text": "oh" }),
                    json!({}),
                ));
            }
            for (tool, arguments, meta) in sequence {
                let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
                let (through_gateway, direct) =
                    (client.request("tools/call", params.clone()), bare.request("tools/call", params));
                assert_eq!(
                    through_gateway["result"].to_string(),
                    direct["result"].to_string(),
                    "{tool} {arguments}"
                );
                assert_eq!(
                    through_gateway["error"].to_string(),
                    direct["error"].to_string(),
                    "{tool} {arguments}"
                );
            }
            assert_eq!(world.count("look down"), 8);
            assert!(
                world.log().iter().all(|line| !line["event"].as_str().unwrap().starts_with("tool_call_re"))
            );
            // Equal concurrent calls are two calls.
            let both = [(); 2]
                .map(|()| client.send_call("pay", json!({ "id": "two", "fault": "slow", "size": 300 })));
            for one in both {
                client.answer(one);
            }
            assert_eq!(world.count("pay two"), 2);
        },
    );
}

#[test]
fn tr_14_switching_off_and_on_is_safe() {
    GatewayWorld::each("tr_14_back", PLAIN, |world| {
        let call = |client: &mut McpTestClient| client.call_keyed("pay", json!({ "id": "a" }), "k");
        assert_eq!(call(&mut world.client()).text, "pay a, run 1");
        assert!(call(&mut world.client()).from_cache);
        let response = call(&mut off(&world));
        assert_eq!((response.text.as_str(), response.from_cache), ("pay a, run 2", false));
        // Calls while it was off were not recorded. Earlier records are still there.
        let response = call(&mut world.client());
        assert_eq!((response.text.as_str(), response.from_cache), ("pay a, run 1", true));
    });
}

#[test]
fn tr_15_secrets_in_arguments_are_neither_logged_nor_stored_nor_in_messages_of_the_gateway() {
    const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    const SECRETS: [&str; 5] =
        [TOKEN, "hunter2-of-ann", "s3cr3t-pass", "sk-live-51Habcdefghijkl", "key-of-ann-4711"];
    // Two tools for calls that get no answer: one is retried, the other is not.
    let hanging = "[tools.\"bank/fold\"]\nclass = \"read_only\"\nretry.attempts = 2\ntimeout = \"300ms\"\n[tools.\"bank/send\"]\ntimeout = \"300ms\"\n";
    let config = format!("log.level = \"trace\"\nlog.malformed_calls = \"malformed.jsonl\"\n{hanging}");
    GatewayWorld::each("tr_15_secrets", &config, |world| {
        let mut client = world.client();
        let leaky = |id: &str, fault: &str| {
            json!({
                "id": id, "fault": fault, "password": "hunter2-of-ann", "token": TOKEN,
                "url": "https://ann:s3cr3t-pass@bank.example.com/v1",
                "headers": { "x": "sk-live-51Habcdefghijkl" }, "code": -32603, "text": "no",
            })
        };
        let mut texts = Vec::new();
        let mut call = |client: &mut McpTestClient, tool: &str, arguments: Value, key: Option<&str>| {
            let mut meta = json!({ "baggage": format!("who={TOKEN}"), "traceparent":
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" });
            if let Some(key) = key {
                meta["dev.steadfast/idempotency-key"] = json!(key);
            }
            let id = client.send_call_with(tool, arguments, meta);
            let answer = client.answer(id);
            // The tool may repeat secrets. The gateway's own texts must not.
            let gateway_meta = answer["result"]["_meta"]["dev.steadfast/result"].clone();
            let made = answer["result"]["isError"] == true
                && gateway_meta.is_object()
                && gateway_meta["fromCache"] != true;
            texts.push((gateway_meta.to_string(), if made { answer.to_string() } else { String::new() }));
        };
        call(&mut client, "pay", leaky("good", ""), Some("key-of-ann-4711-good"));
        call(&mut client, "pay", leaky("good", ""), Some("key-of-ann-4711-good"));
        call(&mut client, "pay", leaky("other", ""), Some("key-of-ann-4711-good"));
        for fault in ["error", "code", "hang", "die_after", "instead"] {
            let is_answered = !["hang", "instead"].contains(&fault);
            let (reads, writes) = if is_answered { ("look", "draw") } else { ("fold", "send") };
            let mut arguments = leaky(fault, fault);
            arguments["lines"] = json!([format!("no message {TOKEN} password=hunter2-of-ann")]);
            call(&mut client, reads, arguments.clone(), None);
            arguments["times"] = json!(1);
            call(&mut client, writes, arguments, None);
        }
        let mut malformed = leaky("", "");
        malformed.as_object_mut().unwrap().remove("id");
        for _ in 0..3 {
            call(&mut client, "sort", malformed.clone(), None);
        }
        call(&mut client, "nothing", leaky("x", ""), None);
        assert!(
            texts.iter().filter(|(_, made)| !made.is_empty()).count() >= 3,
            "we had something to say: {texts:#?}"
        );
        // All is written when the gateway has ended.
        let _ = Command::new("kill").args(["-TERM", &client.pid().to_string()]).status();
        client.wait_for_exit();
        let written = world.written();
        let names: Vec<_> = written.iter().map(|(path, _)| path.display().to_string()).collect();
        for suffix in ["/log", "state.db", "malformed.jsonl"] {
            assert!(names.iter().any(|name| name.ends_with(suffix)), "no {suffix}: {names:?}");
        }
        for secret in SECRETS {
            for (path, bytes) in &written {
                let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!found, "{secret} in {}", path.display());
            }
            for (gateway_meta, made) in &texts {
                assert!(
                    !gateway_meta.contains(secret) && !made.contains(secret),
                    "{secret} in {gateway_meta}{made}"
                );
            }
        }
        // The tool itself receives the arguments unchanged, and its answer arrives unchanged. The answer is stored for
        // replays, but nothing of it is logged.
        let mut client = world.client();
        let words = format!("Authorization: Bearer {TOKEN} rejected, password=hunter2-of-ann");
        for (tool, fault) in [("look", "error"), ("draw", "code"), ("fold", "instead")] {
            let arguments =
                json!({ "id": "words", "fault": fault, "code": -32603, "text": words, "lines": [words] });
            let response = client.request("tools/call", json!({ "name": tool, "arguments": arguments }));
            assert_eq!(response.to_string().contains(TOKEN), fault != "instead", "{response}");
        }
        let log = world.log();
        assert!(
            SECRETS.iter().all(|secret| log.iter().all(|line| !line.to_string().contains(secret))),
            "{log:#?}"
        );
        let arguments = json!({ "id": "echo", "fault": "echo", "token": TOKEN });
        assert!(client.call("look", arguments).text.contains(TOKEN));
    });
}

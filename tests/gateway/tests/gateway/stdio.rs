//! `steadfast wrap -- COMMAND` on the client's own streams.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::world::{World, kill, lives, wait};

#[test]
fn gr_8_a_server_killed_between_calls_is_started_again_and_the_session_goes_on() {
    let world = World::new("gr_8_between");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    assert_eq!(client.call("pay", json!({ "id": "a" })).text, "pay a, run 1");
    let first = world.server();
    kill(first);
    wait(|| !lives(first), || "the end of the server".to_owned());
    assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
    assert_eq!((world.count("initialize"), world.count("pay a"), world.count("pay b")), (2, 1, 1));
    assert_ne!(world.server(), first);
}

#[test]
fn gr_8_a_server_that_dies_during_a_read_is_asked_again() {
    let world = World::new("gr_8_read");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    let said = client.call("look", json!({ "id": "a", "fault": "die_after", "times": 1 }));
    assert_eq!((said.text.as_str(), said.is_error), ("look a, run 2", false));
    assert!(client.heard.iter().all(|message| message.get("id").is_none()), "one answer: {:?}", client.heard);
}

#[test]
fn gr_8_a_server_that_dies_during_a_write_is_not_asked_again_and_the_client_is_told() {
    let world = World::new("gr_8_write");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    let said = client.call("pay", json!({ "id": "a", "fault": "die_after", "times": 1 }));
    assert_eq!((said.is_error, said.code.as_deref()), (true, Some("outcome_unknown")), "{said:?}");
    assert_eq!(world.count("pay a"), 1);
    assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1", "the session goes on");
}

#[test]
fn gr_7_a_server_that_hangs_is_told_to_stop_and_the_client_is_answered_in_time() {
    let world = World::with("gr_7_hang", "[tools.\"bank/*\"]\ntimeout = \"1s\"\n");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    let began = Instant::now();
    let pending = client.send_call("pay", json!({ "id": "a", "fault": "hang" }));
    // What is as alive as ever is answered at once (GR-4).
    client.request("ping", json!({}));
    client.request("tools/list", json!({}));
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    let said = crate::client::Said::of(&client.answer(pending));
    assert_eq!((said.is_error, said.code.as_deref()), (true, Some("outcome_unknown")), "{said:?}");
    world.until("cancelled", 1);
    assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1", "the session goes on");
    assert_eq!(world.count("initialize"), 1, "the server too");
}

#[test]
fn the_same_call_twice_at_once_runs_once_and_both_are_answered() {
    let world = World::new("twice_at_once");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    let arguments = json!({ "id": "a", "fault": "slow", "size": 300 });
    let (first, second) = (client.send_call("pay", arguments.clone()), client.send_call("pay", arguments));
    for id in [first, second] {
        assert_eq!(crate::client::Said::of(&client.answer(id)).text, "pay a, run 1");
    }
    assert_eq!(world.count("pay a"), 1);
}

#[test]
fn a_client_that_hangs_up_during_a_write_finds_the_answer_when_it_asks_again() {
    let world = World::new("hangs_up");
    let arguments = json!({ "id": "a", "fault": "slow", "size": 500 });
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    client.send_call("pay", arguments.clone());
    world.until("pay a", 1);
    assert!(client.hang_up().success());
    let mut again = world.wrapped();
    again.request("tools/list", json!({}));
    let said = again.call("pay", arguments);
    assert_eq!(
        (said.text.as_str(), said.is_error, said.from_cache),
        ("pay a, run 1", false, true),
        "{said:?}"
    );
    assert_eq!(world.count("pay a"), 1);
}

#[test]
fn gr_9_a_gateway_killed_during_a_write_does_not_run_it_again() {
    let world = World::new("gr_9_killed");
    let arguments = json!({ "id": "a", "fault": "hang" });
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    client.send_call("pay", arguments.clone());
    world.until("pay a", 1);
    let server = world.server();
    kill(client.pid());
    client.ended();
    wait(|| !lives(server), || "the end of the server, which nobody keeps any more".to_owned());
    let mut again = world.wrapped();
    again.request("tools/list", json!({}));
    let said = again.call("pay", arguments);
    assert_eq!((said.is_error, said.code.as_deref()), (true, Some("outcome_unknown")), "{said:?}");
    assert_eq!(world.count("pay a"), 1);
}

#[test]
fn whatever_a_server_writes_besides_its_answer_is_in_nobodys_way() {
    let world = World::new("writes_anything");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    assert_eq!(
        client.call("look", json!({ "id": "garbage", "fault": "garbage" })).text,
        "look garbage, run 1"
    );
    let said = client.call("look", json!({ "id": "half", "fault": "half_line", "times": 1 }));
    assert_eq!(said.text, "look half, run 2");
    let said = client.call("look", json!({ "id": "flood", "fault": "flood", "size": 20_000 }));
    assert_eq!(said.text, "look flood, run 1");
    let told = client.heard.iter().filter(|message| message["method"] == "notifications/message").count();
    assert_eq!(told, 20_000, "and none of it is lost");
    let said = client.call("look", json!({ "id": "long", "fault": "long_line", "size": 50 << 20 }));
    assert_eq!(said.text.len(), 50 << 20);
}

#[test]
fn requests_that_are_no_calls_and_what_nobody_knows_are_carried_as_they_are() {
    let world = World::new("carried");
    let mut client = world.wrapped();
    let tools = client.request("tools/list", json!({}));
    assert_eq!(tools["result"]["tools"][0]["vendor"], json!({ "kept": true }));
    let params = json!({ "odd": [1, { "x": null }], "_meta": { "mine": true } });
    assert_eq!(client.request("test/echo", params.clone())["result"]["params"], params);
    let error = json!({ "code": -32601, "message": "no method vendor/thing", "data": { "a": 1 } });
    assert_eq!(client.request("vendor/thing", json!({}))["error"], error);
}

#[test]
fn what_is_no_message_is_answered_with_an_error_and_the_session_goes_on() {
    let world = World::new("no_message");
    let mut client = world.wrapped();
    for (line, code) in
        [("{not json", -32700), ("[]", -32600), ("17", -32600), ("{\"jsonrpc\":\"2.0\"}", -32600)]
    {
        client.say(line);
        assert_eq!(client.next()["error"]["code"], code, "{line}");
    }
    assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1");
}

#[test]
fn tg_1_a_loop_of_malformed_calls_is_stopped() {
    let world = World::new("tg_1_loop");
    let mut client = world.wrapped();
    client.request("tools/list", json!({}));
    let mut said: Vec<_> = (0..4).map(|_| client.call("pay", json!({}))).collect();
    assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1", "another tool is free");
    said.extend((4..12).map(|_| client.call("pay", json!({}))));
    assert!(said.iter().all(|said| said.is_error), "{said:?}");
    assert!(said[0].text.contains("[NON-RETRYABLE]"), "{:?}", said[0]);
    let is_stop = |code: &str| ["loop_detected", "tool_error_limit"].contains(&code);
    assert!(said[11].code.as_deref().is_some_and(is_stop), "{:?}", said[11]);
    assert_eq!(world.count("refused pay"), 2, "{:?}", world.ledger());
    client.request("ping", json!({}));
}

#[test]
fn a_command_that_does_not_exist_is_told_to_the_client() {
    let world = World::new("no_command");
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
    command.args(["wrap", "--store", "memory", "--", "no-such-server"]);
    let mut client = Client::start(command);
    let answer = client.initialize();
    let said = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("no-such-server") && said.contains("PATH"), "{answer}");
    drop(world);
}

#[test]
fn nothing_is_left_behind_however_the_gateway_ends() {
    for (signal, fault) in [("-TERM", ""), ("-INT", ""), ("-TERM", "hang"), ("-KILL", "hang")] {
        let world = World::new(&format!("left_behind{signal}_{fault}"));
        let mut client = world.wrapped();
        client.request("tools/list", json!({}));
        client.send_call("look", json!({ "id": "a", "fault": fault }));
        world.until("look a", 1);
        let server = world.server();
        assert!(Command::new("kill").args([signal, &client.pid().to_string()]).status().unwrap().success());
        let began = Instant::now();
        client.ended();
        wait(|| !lives(server), || format!("the end of the server after {signal}"));
        assert!(began.elapsed() < Duration::from_secs(20), "{signal} {fault}");
    }
}

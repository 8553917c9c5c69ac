//! Servers that die, hang and write garbage, with an unaware client, over every pair of transports.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::raw::{PersistentConnection, RawRequest};
use crate::world::{GatewayWorld, TestTransport, is_running, kill, wait};

#[test]
fn gr_8_a_server_killed_between_calls_is_back_for_the_next_and_the_session_continues() {
    for world in GatewayWorld::every("gr_8_between", "") {
        let mut client = world.client();
        assert_eq!(client.call("pay", json!({ "id": "a" })).text, "pay a, run 1");
        let first = world.server();
        kill(first);
        wait(|| !is_running(first), || "the end of the server".to_owned());
        // The end of the server may not be known yet. But this call cannot have been read, so it is sent again.
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
        assert_eq!((world.count("initialize"), world.count("pay a"), world.count("pay b")), (2, 1, 1));
        assert_ne!(world.server(), first);
    }
}

#[test]
fn gr_1_a_read_is_retried_when_its_server_dies() {
    for world in GatewayWorld::every("gr_1_read", "") {
        let mut client = world.client();
        let response = client.call("look", json!({ "id": "a", "fault": "die_after", "times": 1 }));
        assert_eq!((response.text.as_str(), response.is_error), ("look a, run 2", false), "{response:?}");
        assert!(
            client.received.iter().all(|message| message.get("id").is_none()),
            "one answer: {:?}",
            client.received
        );
    }
}

#[test]
fn gr_8_a_write_whose_server_dies_is_not_retried_and_the_client_gets_an_unknown_outcome() {
    for world in GatewayWorld::every("gr_8_write", "") {
        let mut client = world.client();
        let response = client.call("pay", json!({ "id": "a", "fault": "die_after", "times": 1 }));
        assert_eq!(
            (response.is_error, response.code.as_deref()),
            (true, Some("outcome_unknown")),
            "{response:?}"
        );
        assert_eq!(world.count("pay a"), 1);
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1", "the session goes on");
    }
}

#[test]
fn gr_7_a_server_that_hangs_gets_a_cancellation_and_the_client_is_answered() {
    GatewayWorld::each(
        "gr_7_hang",
        concat!(short_settle_times!(), "[tools.\"bank/pay\"]\ntimeout = \"3s\"\n"),
        |world| {
            let mut client = world.client();
            let response = client.call("pay", json!({ "id": "a", "fault": "hang" }));
            assert_eq!(
                (response.is_error, response.code.as_deref()),
                (true, Some("outcome_unknown")),
                "{response:?}"
            );
            world.until("cancelled", 1);
            assert_eq!(
                client.call("draw", json!({ "id": "b" })).text,
                "draw b, run 1",
                "the session goes on"
            );
            // A child that does not answer the cancellation is ended, so that the call is known to be over.
            let lives = if world.is_remote() { 1 } else { 2 };
            world.until("initialize", lives);
            assert_eq!(world.count("pay a"), 1, "it was asked once");
        },
    );
}

#[test]
fn gr_4_a_heartbeat_during_a_call_that_hangs_is_answered_while_it_hangs() {
    for world in GatewayWorld::every("gr_4_ping", "answer_by = \"none\"\n") {
        let mut client = world.client();
        client.send_call("look", json!({ "id": "a", "fault": "hang" }));
        world.until("look a", 1);
        client.request("ping", json!({}));
        // The server's own answers do not wait for it either.
        assert!(client.request("tools/list", json!({}))["result"].is_object());
        assert!(client.received.is_empty(), "the call still hangs: {:?}", client.received);
    }
}

#[test]
fn gr_2_a_permanent_error_is_passed_on_at_once_and_unchanged() {
    for world in GatewayWorld::every("gr_2_permanent", "") {
        let mut client = world.client();
        let response = client.call("nothing", json!({ "id": "a" }));
        assert!(response.is_error && response.text.starts_with("Unknown tool: nothing"), "{response:?}");
        assert!(!client.call("look", json!({ "id": "a" })).is_error);
        // Even calls that are safe to repeat run once.
        for (id, words) in [("b", "Invalid airport code: XYZ"), ("c", "Authentication failed (401)")] {
            let response = client.call("look", json!({ "id": id, "fault": "error", "text": words }));
            assert_eq!((response.is_error, response.text.as_str()), (true, words), "{response:?}");
            assert_eq!(world.count(&format!("look {id}")), 1, "{words}");
        }
    }
}

#[test]
fn gr_3_an_overloaded_server_is_retried_until_its_breaker_opens_and_the_session_continues() {
    for front in TestTransport::cases() {
        let world = GatewayWorld::of("gr_3_503", "", front, TestTransport::Http);
        let mut client = world.client();
        let response = client.call("look", json!({ "id": "a", "fault": "503", "times": 1 }));
        assert_eq!(
            response.text, "look a, run 2",
            "after as long as it wanted to be left alone: {response:?}"
        );
        let response = client.call("look", json!({ "id": "b", "fault": "503" }));
        assert_eq!(
            (response.is_error, response.code.as_deref()),
            (true, Some("retry_exhausted")),
            "{response:?}"
        );
        client.request("ping", json!({}));
    }
}

#[test]
fn the_same_call_twice_at_once_runs_once_and_both_are_answered() {
    for world in GatewayWorld::every("twice_at_once", "log.level = \"debug\"\n") {
        let mut client = world.client();
        let gate = world.set_behavior("gate");
        let arguments = json!({ "id": "a", "fault": "gate" });
        let (first, second) =
            (client.send_call("pay", arguments.clone()), client.send_call("pay", arguments));
        world.until("pay a", 1);
        world.logged_times("tool_call_following", 1);
        fs::remove_file(gate).unwrap();
        let texts = [first, second].map(|id| ToolResponse::of(&client.answer(id)).text);
        assert!(texts.contains(&"pay a, run 1".to_owned()), "{texts:?}");
        let joined = "pay a, run 1\nAn equal call was already in flight: the tool ran once for both";
        assert!(texts.contains(&joined.to_owned()), "{texts:?}");
        assert_eq!(world.count("pay a"), 1);
    }
}

#[test]
fn a_client_that_disconnects_during_a_write_gets_the_answer_when_it_calls_again() {
    for world in GatewayWorld::every("goes_away", "") {
        let gate = world.set_behavior("gate");
        let arguments = json!({ "id": "a", "fault": "gate" });
        let mut client = world.client();
        client.send_call("pay", arguments.clone());
        world.until("pay a", 1);
        // Nothing is answered before the client is gone.
        let mut again = match world.front {
            TestTransport::Stdio => {
                client.close_input();
                fs::remove_file(gate).unwrap();
                assert!(client.wait_for_exit().success());
                world.client()
            }
            TestTransport::Http => {
                client.disconnect();
                fs::remove_file(gate).unwrap();
                client
            }
        };
        let response = again.call("pay", arguments);
        assert_eq!(
            (response.text.lines().next(), response.is_error),
            (Some("pay a, run 1"), false),
            "{response:?}"
        );
        assert!(response.from_cache, "{response:?}");
        assert_eq!(world.count("pay a"), 1);
    }
}

#[test]
fn a_client_that_hangs_up_after_every_answer_has_it_and_its_next_equal_call_is_another_one() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of("hangs_up", "", TestTransport::Http, back);
        let mut client = world.client();
        let mut pay = || {
            let response = client.call("pay", json!({ "id": "a" }));
            client.disconnect();
            response.text
        };
        assert_eq!(pay(), "pay a, run 1");
        // The client may call again before its disconnect is noticed. Then the call waits for that, for a few seconds.
        wait(|| pay() == "pay a, run 2", || "the second run".to_owned());
    }
}

/// A cancellation and the answer cross: the client sent the cancellation before it received the answer, and ignores
/// that.
#[test]
fn an_answer_that_crosses_a_cancel_was_not_delivered_and_an_equal_call_gets_it() {
    for world in GatewayWorld::every("crosses", "") {
        let mut client = world.client();
        // The client keeps its connection. If it closed it after the answer, the answer would count as delivered.
        let mut connection =
            (world.front == TestTransport::Http).then(|| PersistentConnection::to(client.address()));
        let mut exchange = |message: Value| match &mut connection {
            None => {
                client.send_line(&message.to_string());
                message["id"].as_u64().map(|id| client.answer(id))
            }
            Some(connection) => {
                let request = RawRequest::to(client.address()).header("mcp-session-id", &client.session());
                serde_json::from_slice(&connection.request(&request.body(message.to_string()))).ok()
            }
        };
        let call = |id: u64, name: &str| {
            let params = json!({ "name": "pay", "arguments": { "id": name } });
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
        };
        // An answer counts as delivered after five seconds, whatever arrives later.
        let mut crosses = |id: u64| {
            let began = Instant::now();
            exchange(call(id, &format!("a{id}")));
            let params = json!({ "requestId": id });
            exchange(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
            exchange(json!({ "jsonrpc": "2.0", "id": id + 1, "method": "ping" }));
            began.elapsed() < Duration::from_secs(5)
        };
        let id = (1000..).step_by(4).find(|id| crosses(*id)).unwrap();
        let name = format!("a{id}");
        let response = ToolResponse::of(&exchange(call(id + 2, &name)).unwrap());
        assert!(response.from_cache, "{response:?}");
        assert_eq!(world.count(&format!("pay {name}")), 1);
        let response = ToolResponse::of(&exchange(call(id + 3, &name)).unwrap());
        assert_eq!(response.text, format!("pay {name}, run 2"), "that one has arrived");
    }
}

/// A call is cut, its server counts as hung, and then the call succeeds after all while another one is in flight.
#[test]
fn a_server_that_answers_after_a_cut_is_replaced_and_the_session_continues() {
    let config =
        "settling.grace = \"100ms\"\nsettling.drain = \"3s\"\n[tools.\"bank/pay\"]\ntimeout = \"1s\"\n";
    for front in TestTransport::cases() {
        let world = GatewayWorld::of("answers_after_all", config, front, TestTransport::Stdio);
        let mut client = world.client();
        let gate = world.set_behavior("gate");
        client.send_call("draw", json!({ "id": "b", "fault": "hang" }));
        world.until("draw b", 1);
        let cut = client.send_call("pay", json!({ "id": "a", "fault": "gate" }));
        world.until("cancelled", 1);
        world.logged_times("server.hung", 1);
        fs::remove_file(gate).unwrap();
        client.answer(cut);
        assert_eq!(client.call("look", json!({ "id": "c" })).text, "look c, run 1");
    }
}

/// The class of a tool is known from the first call on, whether or not its client has listed the tools.
#[test]
fn a_client_that_never_lists_the_tools_is_protected_from_its_first_call_on() {
    for world in GatewayWorld::every("never_lists", "") {
        let mut client = world.new_client();
        client.initialize();
        let response = client.call("look", json!({ "id": "a", "fault": "die_after", "times": 1 }));
        assert_eq!(response.text, "look a, run 2", "what only reads is asked again: {response:?}");
        let response = client.call("pay", json!({ "id": "b", "fault": "die_after", "times": 1 }));
        assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
        // The end of a remote server cannot be observed, so there is nothing to check yet.
        if !world.is_remote() {
            assert!(
                response.text.contains("for example with look"),
                "it is told what to check with: {response:?}"
            );
        }
        assert_eq!(world.count("pay b"), 1);
    }
    let list_requests = |mode: &str| {
        let world = GatewayWorld::of(
            "never_lists_mode",
            &format!("mode = \"{mode}\"\n"),
            TestTransport::Stdio,
            TestTransport::Stdio,
        );
        world.set_behavior("lists");
        let mut client = world.new_client();
        client.initialize();
        for run in 1..3 {
            assert_eq!(client.call("look", json!({ "id": "a" })).text, format!("look a, run {run}"));
        }
        world.count("tools/list")
    };
    assert_eq!(list_requests("enforce"), 1, "it is asked once");
    // With all mechanisms off, the gateway lists no tools by itself.
    assert_eq!(list_requests("off"), 0);
}

#[test]
fn other_output_of_a_server_beside_its_answer_does_no_harm() {
    for world in GatewayWorld::every("writes_anything", short_settle_times!()) {
        let mut client = world.client();
        assert_eq!(
            client.call("look", json!({ "id": "garbage", "fault": "garbage" })).text,
            "look garbage, run 1"
        );
        let response = client.call("look", json!({ "id": "half", "fault": "half_line", "times": 1 }));
        assert_eq!(response.text, "look half, run 2");
        // The same around a write: garbage beside the answer changes nothing, and half an answer is none.
        let response = client.call("pay", json!({ "id": "garbage", "fault": "garbage" }));
        assert_eq!(response.text, "pay garbage, run 1");
        let response = client.call("pay", json!({ "id": "half", "fault": "half_line", "times": 1 }));
        assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
        assert_eq!((world.count("pay garbage"), world.count("pay half")), (1, 1));
        let response = client.call("look", json!({ "id": "flood", "fault": "flood", "size": 5_000 }));
        assert_eq!(response.text, "look flood, run 1");
        let notification_count =
            client.received.iter().filter(|message| message["method"] == "notifications/message").count();
        assert!(
            notification_count == 5_000 || (world.front == TestTransport::Http && notification_count > 0),
            "{notification_count}"
        );
        let response = client.call("look", json!({ "id": "long", "fault": "long_line", "size": 50 << 20 }));
        assert_eq!(response.text.len(), 50 << 20);
        client.request("ping", json!({}));
    }
}

#[test]
fn other_requests_and_unknown_methods_are_forwarded_unchanged() {
    for world in GatewayWorld::every("carried", "") {
        let mut client = world.client();
        let tools = client.request("tools/list", json!({}));
        assert_eq!(tools["result"]["tools"][0]["vendor"], json!({ "kept": true }));
        let params = json!({ "odd": [1, { "x": null }], "_meta": { "mine": true } });
        assert_eq!(client.request("test/echo", params.clone())["result"]["params"], params);
        let error = json!({ "code": -32601, "message": "no method vendor/thing", "data": { "a": 1 } });
        assert_eq!(client.request("vendor/thing", json!({}))["error"], error);
    }
}

#[test]
fn gr_7_a_call_that_reports_progress_is_not_cancelled_and_its_client_receives_the_progress() {
    for world in GatewayWorld::every("gr_7_progress", "") {
        let mut client = world.client();
        let arguments = json!({ "id": "a", "fault": "progress", "size": 5 });
        let params = json!({ "name": "look", "arguments": arguments, "_meta": { "progressToken": "mine" } });
        let answer = client.request("tools/call", params);
        assert_eq!(ToolResponse::of(&answer).text, "look a, run 1");
        let steps: Vec<_> =
            client.received.iter().filter(|m| m["method"] == "notifications/progress").collect();
        assert_eq!(steps.len(), 5, "{:?}", client.received);
        assert!(steps.iter().all(|step| step["params"]["progressToken"] == "mine"));
    }
}

#[test]
fn an_invalid_message_is_answered_with_an_error_and_the_session_continues() {
    for world in GatewayWorld::every("no_message", "") {
        let mut client = world.client();
        for (line, code) in
            [("{not json", -32700), ("[]", -32600), ("17", -32600), ("{\"jsonrpc\":\"2.0\"}", -32600)]
        {
            client.send_line(line);
            assert_eq!(client.next()["error"]["code"], code, "{line}");
        }
        assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1");
    }
}

#[test]
fn tg_1_a_loop_of_malformed_calls_is_stopped() {
    for world in GatewayWorld::every("tg_1_loop", "") {
        let mut client = world.client();
        let mut responses: Vec<_> = (0..4).map(|_| client.call("pay", json!({}))).collect();
        assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1", "another tool is free");
        responses.extend((4..12).map(|_| client.call("pay", json!({}))));
        assert!(responses.iter().all(|response| response.is_error), "{responses:?}");
        assert!(responses[0].text.contains("[NON-RETRYABLE]"), "{:?}", responses[0]);
        let is_stop = |code: &str| ["loop_detected", "tool_error_limit"].contains(&code);
        assert!(responses[11].code.as_deref().is_some_and(is_stop), "{:?}", responses[11]);
        assert_eq!(world.count("refused pay"), 2, "{:?}", world.ledger());
        client.request("ping", json!({}));
    }
}

#[test]
fn sf_5_a_client_with_too_many_requests_is_refused_and_continues() {
    let world = GatewayWorld::new("too_much");
    let mut client = world.client();
    let waiting: Vec<u64> = (0..1024).map(|_| client.send("test/silence", json!({}))).collect();
    assert_eq!(client.request("test/echo", json!({}))["error"]["code"], -31_003);
    client.notify("notifications/cancelled", json!({ "requestId": waiting[0] }));
    assert!(client.request("test/echo", json!({}))["result"].is_object());
}

#[test]
fn an_open_breaker_of_a_missing_server_refuses_other_requests_too() {
    let world = GatewayWorld::of(
        "left_alone",
        "breaker.cooldown = \"10m\"\n",
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    // No system assigns this port automatically.
    let mut command = world.wrap_alone(&["--name", "bank", "--url", "http://127.0.0.1:1/mcp"]);
    command.args(["--store", "memory"]);
    let mut client = McpTestClient::on_streams(command);
    let messages: Vec<String> = (0..4)
        .map(|_| client.request("tools/list", json!({}))["error"]["message"].as_str().unwrap().to_owned())
        .collect();
    // Each is tried three times, and after the fifth failure in a row not at all.
    assert!(!messages[0].contains("circuit breaker is open"), "{messages:?}");
    for later in &messages[2..] {
        assert!(later.contains("circuit breaker is open; try again in"), "{messages:?}");
    }
}

#[test]
fn sf_4_a_call_with_long_arguments_is_carried_like_any_other() {
    for world in GatewayWorld::every("long_arguments", "") {
        let mut client = world.client();
        let text = "x".repeat(3 << 20);
        let response = client.call("pay", json!({ "id": "a", "fault": "text", "text": text }));
        assert!(!response.is_error && response.text == text, "{} bytes came back", response.text.len());
        assert_eq!(world.count("pay a"), 1);
    }
}

#[test]
fn the_read_only_annotation_of_a_remote_server_is_not_trusted() {
    // Both names lead to the same server. TestTransport the second one it could be on any machine.
    for (host, code) in [("127.0.0.1", None), ("0.0.0.0", Some("outcome_unknown"))] {
        let world =
            GatewayWorld::of(&format!("believed_{host}"), "", TestTransport::Stdio, TestTransport::Http);
        let mut client = McpTestClient::on_streams(world.wrap_alone(&["--url", &world.url(host)]));
        client.initialize();
        client.request("tools/list", json!({}));
        let response = client.call("look", json!({ "id": "a", "fault": "die_after", "times": 1 }));
        assert_eq!(response.code.as_deref(), code, "{host}: {response:?}");
        assert_eq!(world.count("look a"), if code.is_none() { 2 } else { 1 }, "{host}");
    }
}

#[test]
fn an_answer_counts_that_comes_before_its_server_receives_the_cancellation() {
    let world =
        GatewayWorld::of("late_and_deaf", "timeout = \"3s\"\n", TestTransport::Stdio, TestTransport::Http);
    let mut client = world.client();
    let (_stalled, gate) = (world.set_behavior("deaf"), world.set_behavior("gate"));
    let arguments = json!({ "id": "a", "fault": "gate" });
    let response = client.call_keyed("pay", arguments.clone(), "k");
    assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
    fs::remove_file(gate).unwrap();
    wait(
        || client.call_keyed("pay", arguments.clone(), "k").text == "pay a, run 1",
        || "its answer".to_owned(),
    );
    assert_eq!((world.count("pay a"), world.count("cancelled")), (1, 0));
}

#[test]
fn sf_12_a_call_that_waits_for_a_new_session_was_not_sent_and_can_be_made_again() {
    for front in TestTransport::cases() {
        let world = GatewayWorld::of(
            "gr_8_no_session",
            "retry.attempts = 2\nguard.mode = \"off\"\n",
            front,
            TestTransport::Http,
        );
        let mut client = world.client();
        assert!(!client.call("pay", json!({ "id": "before" })).is_error);
        let refusing = world.folder().join("ledger.handshake");
        for status in ["500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable"] {
            fs::write(&refusing, status).unwrap();
            let server = world.server();
            kill(server);
            wait(|| world.server() != server, || "the next server".to_owned());
            let response = client.call_keyed("pay", json!({ "id": status }), status);
            assert_ne!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
            assert!(response.is_error && world.count("refused initialize") > 0, "{response:?}");
            fs::remove_file(&refusing).unwrap();
            let response = client.call_keyed("pay", json!({ "id": status }), status);
            assert_eq!(response.text, format!("pay {status}, run 1"), "{response:?}");
        }
    }
}

#[test]
fn gr_8_a_server_that_loses_sessions_is_retried_and_its_breaker_stays_closed() {
    let config = "[breaker]\nconsecutive = 2\n";
    for front in TestTransport::cases() {
        let world = GatewayWorld::of("gr_8_forgets", config, front, TestTransport::Http);
        let mut client = world.client();
        for round in 0..4 {
            let server = world.server();
            kill(server);
            wait(|| world.server() != server, || "the next server".to_owned());
            // The cancellation reaches neither a request that is not a call nor another call.
            let listed = client.request("test/echo", json!({ "round": round }));
            assert_eq!(listed["result"]["params"]["round"], round, "{listed}");
        }
    }
}

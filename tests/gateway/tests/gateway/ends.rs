//! The ends of gateways: killed, asked to end, or unable to start.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::world::{
    GatewayWorld, LISTEN, ReservedPort, TestTransport, initialized, is_running, kill, signal, wait,
};

#[test]
fn gr_9_a_gateway_killed_during_a_write_does_not_run_it_again() {
    let world = GatewayWorld::new("gr_9_killed");
    let arguments = json!({ "id": "a", "fault": "hang" });
    let mut client = world.client();
    client.send_call("pay", arguments.clone());
    world.until("pay a", 1);
    let server = world.server();
    kill(client.pid());
    client.wait_for_exit();
    wait(|| !is_running(server), || "the end of the server after its gateway".to_owned());
    let response = world.client().call("pay", arguments);
    assert_eq!(
        (response.is_error, response.code.as_deref()),
        (true, Some("outcome_unknown")),
        "{response:?}"
    );
    assert_eq!(world.count("pay a"), 1);
}

#[test]
fn gr_9_the_session_of_an_http_client_survives_a_gateway_that_was_killed() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of("gr_9_session", "", TestTransport::Http, back);
        let arguments = json!({ "id": "a", "fault": "hang" });
        // The next gateway listens on the same port, as for clients that are configured with an address once.
        let (port, mut listen) = (ReservedPort::reserve(), LISTEN.map(str::to_owned));
        listen[1] = port.address().to_string();
        let listen = listen.each_ref().map(String::as_str);
        let mut client = McpTestClient::over_http(world.wrap(&listen));
        client.initialize();
        client.request("tools/list", json!({}));
        client.send_call("pay", arguments.clone());
        world.until("pay a", 1);
        kill(client.pid());
        client.wait_for_exit();
        client.moves_to(world.wrap(&listen));
        let response = client.call("pay", arguments);
        assert_eq!(
            (response.is_error, response.code.as_deref()),
            (true, Some("outcome_unknown")),
            "{response:?}"
        );
        assert_eq!(world.count("pay a"), 1);
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1", "without a new handshake");
        assert_eq!(world.count("initialize"), 2, "the server was told again what its client said");
    }
}

/// Makes a call of this tool wait at the gate while its client has lost the connection. Returns the id of the request,
/// and the last event of its answer that the client received.
fn lost_in_a_call(client: &mut McpTestClient, tool: &str, arguments: Value) -> (u64, String) {
    let id = client.send_call_with(tool, arguments, json!({ "progressToken": "t" }));
    wait(|| client.last_event().is_some(), || "something of its stream".to_owned());
    let last = client.last_event().unwrap();
    client.disconnect();
    (id, last)
}

/// Kills the gateway and starts another one, which its client uses from then on.
fn killed_and_started(world: &GatewayWorld, client: &mut McpTestClient) {
    kill(client.pid());
    client.wait_for_exit();
    client.moves_to(world.wrap(&LISTEN));
}

#[test]
fn gr_9_a_client_that_resumes_its_stream_after_the_gateway_was_killed_gets_the_answer() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of("gr_9_stream", "guard.mode = \"off\"\n", TestTransport::Http, back);
        let mut client = world.client();
        let gate = world.set_behavior("gate");
        let pay = json!({ "id": "a", "fault": "gate" });
        let (id, last) = lost_in_a_call(&mut client, "pay", pay.clone());
        fs::remove_file(gate).unwrap();
        world.logged_times("tool_call_end", 1);
        killed_and_started(&world, &mut client);
        client.listen_after(&last);
        let answer = client.answer(id);
        assert_eq!(ToolResponse::of(&answer).text, "pay a, run 1", "{answer}");
        assert_eq!(world.count("pay a"), 1);
        // Once the answer has arrived, which takes its connection some seconds, an equal call is a new one.
        wait(
            || client.call("pay", pay.clone()).text == "pay a, run 2",
            || format!("another run: {:?}", world.ledger()),
        );
        client.received.clear();
        client.listen_after(&last);
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
        assert!(
            client.received.iter().all(|message| message["id"] != id),
            "given again: {:?}",
            client.received
        );
    }
}

#[test]
fn gr_9_a_client_that_resumes_its_stream_gets_the_unknown_outcome_of_a_write() {
    let config = "guard.mode = \"off\"\ndedupe.after_telling = \"10m\"\n";
    let world = GatewayWorld::of("gr_9_stream_unknown", config, TestTransport::Http, TestTransport::Stdio);
    let mut client = world.client();
    world.set_behavior("gate");
    let pay = json!({ "id": "a", "fault": "gate" });
    let (id, last) = lost_in_a_call(&mut client, "pay", pay.clone());
    // There is no response for a call that may be made again: the client repeats it.
    let request_id = client.send_call("look", json!({ "id": "b", "fault": "hang" }));
    world.until("look b", 1);
    killed_and_started(&world, &mut client);
    client.listen_after(&last);
    let answer = client.answer(id);
    assert_eq!(ToolResponse::of(&answer).code.as_deref(), Some("outcome_unknown"), "{answer}");
    assert_eq!(world.count("pay a"), 1);
    let response = client.call("pay", pay);
    assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
    assert_eq!(world.count("pay a"), 1);
    assert!(client.received.iter().all(|message| message["id"] != request_id), "{:?}", client.received);
}

#[test]
fn sf_7_missed_messages_of_one_client_are_not_sent_to_another() {
    let world =
        GatewayWorld::of("sf_7_streams", "guard.mode = \"off\"\n", TestTransport::Http, TestTransport::Stdio);
    let mut client = world.client();
    let gate = world.set_behavior("gate");
    let (id, last) = lost_in_a_call(&mut client, "pay", json!({ "id": "a", "fault": "gate" }));
    fs::remove_file(gate).unwrap();
    world.logged_times("tool_call_end", 1);
    killed_and_started(&world, &mut client);
    let mut other = McpTestClient::at(client.address());
    other.initialize();
    other.listen_after(&last);
    assert!(!other.call("look", json!({ "id": "x" })).is_error);
    client.listen_after(&last);
    assert_eq!(ToolResponse::of(&client.answer(id)).text, "pay a, run 1");
    assert!(other.received.is_empty(), "{:?}", other.received);
}

#[test]
fn a_missing_command_is_reported_to_the_client() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
    command.args(["wrap", "--store", "memory", "--", "no-such-server"]);
    let answer = McpTestClient::on_streams(command).initialize();
    let message = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("no-such-server") && message.contains("PATH"), "{answer}");
}

#[test]
fn sf_7_an_address_that_others_can_reach_needs_a_token() {
    let world = GatewayWorld::new("sf_7_no_token");
    let output =
        world.wrap(&["--listen", "0.0.0.0:0"]).stderr(std::process::Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("STEADFAST_TOKEN"), "{stderr}");
}

#[test]
fn sf_7_no_access_without_the_token_and_none_for_strange_pages() {
    let world = GatewayWorld::new("sf_7_token");
    let mut command = world.wrap(&LISTEN);
    command.env("STEADFAST_TOKEN", "s3cret");
    let gateway = McpTestClient::over_http(command);
    let address = gateway.address();
    let status = |headers: &str| {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "POST /mcp HTTP/1.1\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n\
             {headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let host = format!("host: {address}\r\n");
    assert_eq!(status(&host), "401");
    assert_eq!(status(&format!("{host}authorization: Bearer wrong\r\n")), "401");
    assert_eq!(status(&format!("{host}authorization: Bearer s3cret\r\n")), "200");
    let page = "origin: https://evil.example\r\n";
    assert_eq!(status(&format!("{host}{page}authorization: Bearer s3cret\r\n")), "403");
    assert_eq!(status("host: evil.example\r\nauthorization: Bearer s3cret\r\n"), "403");
    drop(gateway);
}

#[test]
fn nothing_is_left_behind_however_the_gateway_ends() {
    for (signal, fault) in [("-TERM", ""), ("-INT", ""), ("-TERM", "hang"), ("-KILL", "hang")] {
        let world = GatewayWorld::new(&format!("left_behind{signal}_{fault}"));
        let mut client = world.client();
        client.send_call("look", json!({ "id": "a", "fault": fault }));
        world.until("look a", 1);
        let server = world.server();
        assert!(Command::new("kill").args([signal, &client.pid().to_string()]).status().unwrap().success());
        client.wait_for_exit();
        wait(|| !is_running(server), || format!("the end of the server after {signal}"));
    }
}

/// A process that a server started in a session of its own survived each of these ends, in ten of ten runs.
#[test]
fn no_daemon_of_a_server_is_left_behind_however_it_ends() {
    for signal_of in ["server", "-TERM", "-INT", "-KILL"] {
        let world = GatewayWorld::new(&format!("daemons{signal_of}"));
        let server = env!("CARGO_BIN_EXE_steadfast-test-server");
        let script = format!(
            "setsid sh -c 'echo $$ >> daemons; exec sleep 600' & (setsid sh -c 'echo $$ >> daemons; exec sleep 600' &); \
             exec {server} ledger"
        );
        let command = world.wrap_alone(&["--name", "bank", "--store", "memory", "--", "sh", "-c", &script]);
        let mut client = initialized(McpTestClient::on_streams(command));
        assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1");
        let written = || -> Vec<u32> {
            let text = fs::read_to_string(world.folder().join("daemons")).unwrap_or_default();
            text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
        };
        wait(|| written().len() >= 2, || "two daemons".to_owned());
        let daemons = written();
        match signal_of {
            "server" => kill(world.server()),
            signal_of => signal(client.pid(), signal_of),
        }
        for daemon in &daemons {
            wait(|| !is_running(*daemon), || format!("the end of a daemon after {signal_of}"));
        }
    }
}

#[test]
fn a_client_that_disconnects_while_it_listens_leaves_no_server_running() {
    let world = GatewayWorld::new("listens_and_goes");
    let mut client = world.modern_client(json!({}));
    client.send("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    client.next_notification("notifications/subscriptions/acknowledged");
    let server = world.server();
    assert!(client.hang_up().success());
    assert!(!is_running(server));
}

#[test]
fn calls_without_a_client_are_not_awaited_where_the_gateway_ends_nothing_itself() {
    let world = GatewayWorld::of("unheard", "mode = \"off\"\n", TestTransport::Stdio, TestTransport::Stdio);
    let mut client = world.client();
    client.send("test/silence", json!({}));
    client.send_call("look", json!({ "id": "a", "fault": "hang" }));
    world.until("look a", 1);
    assert!(client.hang_up().success());
}

#[test]
fn a_client_that_has_closed_its_input_still_gets_its_answers() {
    let world = GatewayWorld::new("reads_on");
    let mut client = world.client();
    let slow = world.set_behavior("slow");
    let listed = client.send("tools/list", json!({}));
    // The server checks every few milliseconds whether it may answer. Answers after some seconds are not awaited.
    fs::remove_file(slow).unwrap();
    client.close_input();
    assert!(client.answer(listed)["result"]["tools"].is_array());
    assert!(client.wait_for_exit().success());
}

#[test]
fn a_server_that_stops_reading_delays_neither_clients_nor_shutdown() {
    for front in TestTransport::cases() {
        let world = GatewayWorld::of("deaf", "", front, TestTransport::Http);
        let mut client = world.client();
        signal(world.server(), "-STOP");
        client.notify("notifications/roots/list_changed", json!({}));
        client.request("ping", json!({}));
        signal(client.pid(), "-TERM");
        client.wait_for_exit();
    }
}

#[test]
fn stderr_of_a_server_is_in_the_gateway_log_and_in_every_error_about_it() {
    for front in TestTransport::cases() {
        let config = "retry.attempts = 1\n";
        let world = GatewayWorld::of("stderr_lines", config, front, TestTransport::Stdio);
        let mut client = world.client();
        let words = "cannot open the vault, password=hunter2-and-more";
        client.call("look", json!({ "id": "a", "fault": "stderr", "text": words }));
        let lost = client.call("look", json!({ "id": "b", "fault": "die_after" }));
        assert!(
            lost.is_error && lost.text.contains("cannot open the vault") && !lost.text.contains("hunter2"),
            "{lost:?}"
        );
        let shown = || {
            let lines = world.logged("server.stderr");
            lines
                .into_iter()
                .filter(|line| line["line"].as_str().unwrap().contains("the vault"))
                .collect::<Vec<_>>()
        };
        wait(|| shown().len() == 1, || format!("{:?}", world.log()));
        let line = shown().remove(0);
        assert_eq!((&line["server"], &line["level"]), (&json!("bank"), &json!("info")), "{line}");
        assert!(line["message"].as_str().unwrap().starts_with("[bank] cannot open"), "{line}");
        assert!(!line.to_string().contains("hunter2"), "{line}");
    }
    // A server that cannot start says why, too.
    let world = GatewayWorld::new("stderr_start");
    let mut command = world.wrap_alone(&[]);
    command.args(["--", "sh", "-c", "echo no such database >&2; exit 1"]);
    let mut client = McpTestClient::on_streams(command);
    let refused = client.initialize();
    assert!(refused["error"]["message"].as_str().unwrap().contains("no such database"), "{refused}");
}

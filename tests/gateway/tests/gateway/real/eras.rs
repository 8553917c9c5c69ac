//! Third-party clients and servers, of two eras of the protocol.

use std::ffi::OsString;
use std::process::Command;

use serde_json::{Value, json};

use super::clients::PythonClient;
use super::conversation::{RecordingClient, everything};
use super::http::ListeningServer;
use super::{RealServer, RealServerFolder, ServerRoute, installed, script};
use crate::world::{LISTEN, ReservedPort, TestTransport};

/// Uses the reference server of the older era with a client of the modern one.
fn exercise_all(mut client: PythonClient) {
    let mut notifications = Vec::new();
    let mut result = |client: &mut PythonClient, order: Value| {
        let (result, received) = client.order(order);
        notifications.extend(received);
        result
    };
    assert_eq!(result(&mut client, json!(["version"])), "2026-07-28");
    let tools = result(&mut client, json!(["tools"]));
    assert!(tools.as_array().is_some_and(|tools| tools.contains(&json!("get-sum"))), "{tools}");
    let sum = result(&mut client, json!(["call", "get-sum", { "a": 1, "b": 2 }]));
    assert_eq!(sum["content"][0]["text"], "The sum of 1 and 2 is 3.", "{sum}");
    for (tool, arguments, words) in [
        ("trigger-sampling-request", json!({ "prompt": "hello" }), "words of a model"),
        ("trigger-elicitation-request", json!({}), "Name: Ada"),
        ("get-roots-list", json!({}), "file:///somewhere"),
    ] {
        let output = result(&mut client, json!(["call", tool, arguments]));
        assert!(output.to_string().contains(words), "{tool}: {output}");
    }
    // The server asks for the roots at any time, and then knows them.
    for kind in ["sampling", "elicitation", "roots"] {
        assert!(notifications.contains(&json!({ "asked": kind })), "{notifications:?}");
    }
    let long = json!(["call", "trigger-long-running-operation", { "duration": 1, "steps": 2 }]);
    let (output, mut progress) = client.order(long);
    progress.retain(|message| message.get("progress").is_some());
    assert_eq!(progress, [json!({ "progress": [1.0, 2.0, null] }), json!({ "progress": [2.0, 2.0, null] })]);
    assert!(output.to_string().contains("completed"), "{output}");
    let failed = client.result(json!(["call", "get-sum", { "a": "one" }]));
    assert_eq!(failed["isError"], true, "{failed}");
    client.hang_up();
}

#[test]
fn sf_4_the_python_sdk_of_the_modern_era_uses_the_reference_server_of_the_older_one() {
    let place = RealServerFolder::new("eras_everything_stdio", "");
    let server = RealServer::node("mcp-server-everything").arg("stdio");
    exercise_all(PythonClient::of(&place, "mcp", "2026-07-28", &server.line(ServerRoute::Through)));
}

#[test]
fn sf_4_the_python_sdk_of_the_modern_era_uses_the_reference_server_of_the_older_one_over_http() {
    let place = RealServerFolder::new("eras_everything_http", "");
    let port = ReservedPort::reserve();
    let mut command =
        RealServer::node("mcp-server-everything").arg("streamableHttp").command(&place, ServerRoute::Bare);
    command.env("PORT", port.address().port().to_string());
    let server = ListeningServer::at(port, command);
    let client = |line: &[OsString]| PythonClient::of(&place, "mcp", "2026-07-28", line);
    let line = RealServer::remote_line(&server.url());
    for front in TestTransport::cases() {
        match front {
            TestTransport::Stdio => exercise_all(client(&line)),
            TestTransport::Http => {
                let mut command = place.program(&line[0]);
                command.args(&line[1..]).args(LISTEN);
                let gateway = ListeningServer::announced(command);
                exercise_all(client(&[gateway.url().into()]));
            }
        }
    }
}

/// Returns a server made with the JavaScript library that knows the modern era only.
fn modern_server(port: Option<u16>) -> Vec<OsString> {
    let node = installed("node").join("node_modules/.bin/node");
    let port = port.map(|port| port.to_string().into());
    [Some(node.into()), Some(script("conformance.cjs").into()), port, Some("modern".into())]
        .into_iter()
        .flatten()
        .collect()
}

fn started(place: &RealServerFolder, line: &[OsString]) -> Command {
    let mut command = place.program(&line[0]);
    command.args(&line[1..]).env("NODE_PATH", installed("node").join("node_modules"));
    command
}

/// Uses such a server with a client of the older era.
fn use_modern_server(command: Command) {
    let mut talk = RecordingClient::start(command);
    talk.initialize(everything());
    let agreed = talk.answers[0].message["result"].clone();
    assert_eq!(
        (&agreed["protocolVersion"], &agreed["serverInfo"]["name"]),
        (&json!("2025-11-25"), &json!("conformance"))
    );
    let tools = talk.request("tools/list", json!({}));
    assert!(tools["tools"].as_array().is_some_and(|tools| tools.len() > 10), "{tools}");
    let output = talk.call("test_simple_text", json!({}));
    assert_eq!(output["content"][0]["text"], "This is a simple text response for testing.", "{output}");
    // The server asks several kinds of questions at once, and then answers the call.
    let all = talk.call("test_input_required_result_multiple_inputs", json!({}));
    assert_eq!(all["content"][0]["text"], "all there", "{all}");
    let methods: Vec<_> =
        talk.server_messages.iter().filter_map(|message| message["method"].as_str()).collect();
    for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
        assert_eq!(methods.iter().filter(|requested| **requested == method).count(), 1, "{methods:?}");
    }
    let message_count = talk.server_messages.len();
    let failed = talk.call("test_error_handling", json!({}));
    assert_eq!(failed["isError"], true, "{failed}");
    // Logged only after the client has asked for it.
    talk.call("test_logging_tool", json!({}));
    assert_eq!(talk.server_messages.len(), message_count, "{:?}", talk.server_messages);
    talk.request("logging/setLevel", json!({ "level": "info" }));
    talk.call("test_tool_with_logging", json!({}));
    assert_eq!(talk.server_messages[message_count]["method"], "notifications/message");
    let progress =
        json!({ "name": "test_tool_with_progress", "arguments": {}, "_meta": { "progressToken": "mine" } });
    talk.request("tools/call", progress);
    let progress_count =
        talk.server_messages.iter().filter(|message| message["params"]["progressToken"] == "mine").count();
    assert_eq!(progress_count, 3, "{:?}", talk.server_messages);
    // Unasked messages reach a client that never asked to listen.
    talk.call("test_trigger_tool_change", json!({}));
    talk.until("the change of the tools", 1, |message| {
        message["method"] == "notifications/tools/list_changed"
    });
    assert_eq!(talk.request("resources/subscribe", json!({ "uri": "test://watched-resource" })), json!({}));
    talk.call("test_trigger_prompt_change", json!({}));
    talk.until("the change of the prompts", 1, |message| {
        message["method"] == "notifications/prompts/list_changed"
    });
    let read = talk.request("resources/read", json!({ "uri": "test://static-text" }));
    assert!(read["contents"][0]["text"].is_string(), "{read}");
}

#[test]
fn sf_4_a_client_of_the_older_era_uses_a_real_server_of_the_modern_one() {
    let place = RealServerFolder::new("eras_modern_stdio", "");
    let gateway = [env!("CARGO_BIN_EXE_steadfast-tested"), "wrap", "--name", "real", "--"];
    let line: Vec<OsString> = gateway.into_iter().map(OsString::from).chain(modern_server(None)).collect();
    use_modern_server(started(&place, &line));
}

#[test]
fn sf_4_a_client_of_the_older_era_uses_a_real_server_of_the_modern_one_over_http() {
    let place = RealServerFolder::new("eras_modern_http", "");
    let port = ReservedPort::reserve();
    let command = started(&place, &modern_server(Some(port.address().port())));
    let server = ListeningServer::at(port, command);
    use_modern_server(started(&place, &RealServer::remote_line(&server.url())));
}

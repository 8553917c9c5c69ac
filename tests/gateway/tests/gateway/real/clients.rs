//! Third-party clients, with a server behind the gateway.

use std::ffi::OsString;
use std::fs;

use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;

use super::line::ServerLine;
use super::{RealServer, RealServerFolder, ServerRoute, installed, process_of, python, script};
use crate::world::{is_running, kill, wait};

/// A Python client that follows commands.
pub(super) struct PythonClient(ServerLine);

impl PythonClient {
    /// Starts a client of this library in front of a server behind the gateway.
    fn start(place: &RealServerFolder, library: &str, mode: &str, server: &RealServer) -> Self {
        Self::of(place, library, mode, &server.line(ServerRoute::Through))
    }

    /// Starts a client of this library in front of the server with this command line or address.
    pub(super) fn of(place: &RealServerFolder, library: &str, mode: &str, server: &[OsString]) -> Self {
        let mut command = place.program(python());
        command.arg(script(&format!("client_{library}.py"))).arg(mode).args(server);
        // No files are written beside the scripts.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        Self(ServerLine::start(command))
    }

    /// Sends a command. Returns its result with the notifications before it.
    pub(super) fn order(&mut self, order: Value) -> (Value, Vec<Value>) {
        self.0.send(&order);
        let mut notifications = Vec::new();
        loop {
            let message = self.0.receive(&format!("what comes of {order}"));
            assert_eq!(message.get("error"), None, "{order}");
            match message.get("result") {
                Some(result) => return (result.clone(), notifications),
                None => notifications.push(message),
            }
        }
    }

    pub(super) fn result(&mut self, order: Value) -> Value {
        self.order(order).0
    }

    pub(super) fn hang_up(self) {
        assert!(self.0.hang_up().success(), "the client ends well");
    }
}

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// Returns the ways in which a Python client begins, and the resulting version of each: the handshake of the older era,
/// the newer era once the client has found it, and the newer era without looking first.
pub(super) fn beginnings() -> Vec<(&'static str, &'static str)> {
    vec![("legacy", LEGACY), ("auto", MODERN), (MODERN, MODERN)]
}

/// Uses the tools of both Python servers with this client.
fn use_python_server(library: &str, server: &str, mode: &str, version: &str) {
    let place = RealServerFolder::new(&format!("real_{library}_{server}_{mode}"), "");
    let server = RealServer::python(&format!("server_{server}.py"));
    use_tools(PythonClient::start(&place, library, mode, &server), version);
}

/// Uses the tools of both Python servers in this version.
pub(super) fn use_tools(mut client: PythonClient, version: &str) {
    assert_eq!(client.result(json!(["version"])), version);
    let tools = client.result(json!(["tools"]));
    assert_eq!(
        tools.as_array().map(|tools| &tools[..3]),
        Some(&[json!("add"), json!("count"), json!("fail")][..])
    );
    let sum = client.result(json!(["call", "add", { "a": 1, "b": 2 }]));
    assert_eq!(sum["structuredContent"], json!({ "result": 3 }), "{sum}");
    let (counted, notifications) = client.order(json!(["call", "count", { "to": 2 }]));
    assert_eq!(counted["content"][0]["text"], "counted to 2", "{counted}");
    let progress = [json!({ "progress": [1.0, 2.0, "at 1"] }), json!({ "progress": [2.0, 2.0, "at 2"] })];
    assert_eq!(notifications, progress);
    let failed = client.result(json!(["call", "fail", { "why": "no reason" }]));
    assert_eq!(failed["isError"], true, "{failed}");
    assert_eq!(client.result(json!(["read", "note://a"])), json!(["the note a"]));
    assert_eq!(client.result(json!(["prompt", "greet", { "name": "Ada" }])), json!(["Say hello to Ada."]));
    client.hang_up();
}

#[test]
fn the_python_sdk_works_on_both_sides_of_the_gateway_in_both_eras() {
    for (mode, version) in TestEffort::of_this_run().cases(beginnings()) {
        use_python_server("mcp", "mcp", mode, version);
    }
}

#[test]
fn fastmcp_works_on_both_sides_of_the_gateway_in_both_eras() {
    for (mode, version) in TestEffort::of_this_run().cases(beginnings()) {
        use_python_server("fastmcp", "fastmcp", mode, version);
    }
}

#[test]
fn the_python_sdk_and_fastmcp_work_with_each_other_through_the_gateway() {
    for (client, server) in TestEffort::of_this_run().cases(vec![("mcp", "fastmcp"), ("fastmcp", "mcp")]) {
        use_python_server(client, server, "auto", MODERN);
    }
}

#[test]
fn a_client_of_the_newer_era_does_not_notice_that_a_server_is_older_behind_the_gateway() {
    for library in TestEffort::of_this_run().cases(vec!["mcp", "fastmcp"]) {
        let place = RealServerFolder::new(&format!("real_{library}_everything"), "");
        let server = RealServer::node("mcp-server-everything").arg("stdio");
        let mut client = PythonClient::start(&place, library, "auto", &server);
        assert_eq!(client.result(json!(["version"])), MODERN);
        let tools = client.result(json!(["tools"]));
        assert!(tools.as_array().is_some_and(|tools| tools.contains(&json!("get-sum"))), "{tools}");
        let sum = client.result(json!(["call", "get-sum", { "a": 1, "b": 2 }]));
        assert_eq!(sum["content"][0]["text"], "The sum of 1 and 2 is 3.", "{sum}");
        client.hang_up();
    }
}

#[test]
fn the_inspector_lists_and_calls_through_the_gateway() {
    let place = RealServerFolder::new("real_inspector", "");
    let server = RealServer::node("mcp-server-everything").arg("stdio");
    let line: Vec<String> = server
        .line(ServerRoute::Through)
        .into_iter()
        .map(|word| word.into_string().expect("paths are texts"))
        .collect();
    let config = json!({ "mcpServers": { "real": { "command": line[0], "args": line[1..] } } });
    fs::write(place.folder().join("servers.json"), config.to_string()).unwrap();
    let inspect = |method: &[&str]| -> Value {
        let mut command = place.program(installed("node").join("node_modules/.bin/mcp-inspector"));
        command.args(["--cli", "--config", "servers.json", "--server", "real", "--method"]).args(method);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{method:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("it prints JSON")
    };
    let tools = inspect(&["tools/list"]);
    assert!(tools.to_string().contains("\"get-sum\""), "{tools}");
    let sum = inspect(&["tools/call", "--tool-name", "get-sum", "--tool-arg", "a=1", "b=2"]);
    assert!(sum.to_string().contains("The sum of 1 and 2 is 3."), "{sum}");
}

#[test]
fn gr_8_a_real_server_killed_between_the_calls_of_a_real_client_is_there_for_the_next() {
    let place = RealServerFolder::new("real_killed", "");
    let data = place.folder().join("kept");
    fs::create_dir(&data).unwrap();
    let server = RealServer::node("mcp-server-filesystem").arg(&data);
    let mut client = PythonClient::start(&place, "mcp", "auto", &server);
    let path = data.join("a.txt").display().to_string();
    client.result(json!(["tools"]));
    client.result(json!(["call", "write_file", { "path": path, "content": "words" }]));
    let first = process_of("node", &data);
    kill(first);
    wait(|| !is_running(first), || "the end of the server".to_owned());
    let read = client.result(json!(["call", "read_text_file", { "path": path }]));
    assert_eq!(read["content"][0]["text"], "words", "{read}");
    client.result(json!(["call", "write_file", { "path": path, "content": "others" }]));
    assert_eq!(fs::read_to_string(&path).unwrap(), "others");
    assert_ne!(process_of("node", &data), first);
    client.hang_up();
}

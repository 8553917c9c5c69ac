//! Tools of servers called over plain HTTP, by callers that do not use MCP.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::McpTestClient;
use crate::raw::{RawRequest, RawResponse, send};
use crate::serve::TwoServerGateway;
use crate::world::{GatewayWorld, LISTEN, ServerEra, TEST_TIMEOUT, TestTransport, is_running, kill, wait};

/// Returns a gateway in front of a server with this transport, and a client that keeps it running.
fn opened(test: &str, config: &str, back: TestTransport) -> (GatewayWorld, McpTestClient) {
    let world = GatewayWorld::of(test, config, TestTransport::Http, back);
    let client = world.client();
    (world, client)
}

fn post(client: &McpTestClient, path: &str, body: &Value) -> (RawResponse, Value) {
    request(client, &format!("POST {path} HTTP/1.1"), &body.to_string())
}

fn get(client: &McpTestClient, path: &str) -> Value {
    let (answered, body) = request(client, &format!("GET {path} HTTP/1.1"), "");
    assert_eq!(answered.status, 200, "{body}");
    body
}

fn request(client: &McpTestClient, line: &str, body: &str) -> (RawResponse, Value) {
    let request = RawRequest::to(client.address()).header("accept", "application/json").line(line).body(body);
    let answered = send(&request).expect("an answer");
    let value = serde_json::from_slice(&answered.body).unwrap();
    (answered, value)
}

fn envelope(tool: &str, params: Value, actor: &str) -> Value {
    json!({
        "contractVersion": "1.1", "requestId": "r-1", "toolNamespace": "bank", "toolName": tool,
        "target": { "sessionKey": "s-1", "actorId": actor },
        "payload": { "version": "1.0", "params": params },
    })
}

fn keyed(tool: &str, params: Value, key: &str) -> Value {
    let mut envelope = envelope(tool, params, "ann");
    envelope["payload"]["idempotencyKey"] = key.into();
    envelope
}

#[test]
fn tr_1_a_tool_of_a_server_is_called_over_http_and_a_key_makes_it_run_once() {
    for back in TestTransport::cases() {
        let (world, client) = opened("plain_once", "", back);
        let pay = keyed("pay", json!({ "id": "a" }), "invoice 1");
        let (answered, first) = post(&client, "/v1/calls", &pay);
        assert_eq!((answered.status, &first["status"]), (200, &json!("success")), "{first}");
        assert_eq!(first["output"]["content"]["content"][0]["text"], "pay a, run 1", "{first}");
        assert_eq!(answered.header("idempotency-key"), Some("invoice 1"));
        let (_, again) = post(&client, "/v1/calls", &pay);
        assert_eq!((&again["fromCache"], &again["output"]), (&json!(true), &first["output"]));
        assert_eq!(world.count("pay a"), 1);
        let other = keyed("pay", json!({ "id": "b" }), "invoice 1");
        assert_eq!(post(&client, "/v1/calls", &other).0.status, 422);
        assert_eq!(world.count("pay b"), 0);
    }
}

#[test]
fn gr_8_a_server_killed_between_two_calls_over_http_is_there_for_the_next() {
    let (world, client) = opened("plain_killed", "", TestTransport::Stdio);
    post(&client, "/v1/calls", &envelope("look", json!({ "id": "a" }), "ann"));
    let server = world.server();
    kill(server);
    wait(|| !is_running(server), || "the end of the server".to_owned());
    let (answered, body) = post(&client, "/v1/calls", &envelope("look", json!({ "id": "b" }), "ann"));
    assert_eq!(answered.status, 200, "{body}");
    assert_ne!(world.server(), server);
    let restarts = || -> u64 {
        let servers = get(&client, "/v1/servers");
        servers["servers"][0]["instances"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["restarts"].as_u64())
            .sum()
    };
    assert_eq!(restarts(), 1);
}

#[test]
fn sf_7_callers_with_other_names_have_other_processes_of_a_server() {
    let (world, client) = opened("plain_apart", "", TestTransport::Stdio);
    // The client itself has one.
    let before = world.ledger().iter().filter(|line| line.starts_with("start ")).count();
    for (actor, processes) in [("ann", 1), ("bob", 2), ("ann", 2)] {
        post(&client, "/v1/calls", &envelope("look", json!({ "id": actor }), actor));
        let started = world.ledger().iter().filter(|line| line.starts_with("start ")).count();
        assert_eq!(started - before, processes, "{actor}");
    }
    let mut of_tenant = envelope("look", json!({ "id": "ann" }), "ann");
    of_tenant["target"]["tenantId"] = "acme".into();
    post(&client, "/v1/calls", &of_tenant);
    let ledger = world.ledger();
    let started = ledger.iter().filter(|line| line.starts_with("start ")).count();
    assert_eq!(started - before, 3, "a namesake elsewhere");
    assert_eq!(world.count("initialize"), started, "each is greeted once: {ledger:?}");
}

#[test]
fn changed_tools_of_a_server_are_listed_again() {
    let (world, client) = opened("plain_changed", "", TestTransport::Stdio);
    let has = |names: &str| fs::write(world.folder().join("ledger.names"), names).unwrap();
    let call = |tool: &str, id: &str| {
        let mut call = envelope(tool, json!({ "id": id }), "ann");
        // Repeated calls would be stopped by the guard.
        call["target"]["sessionKey"] = format!("{tool} {id}").into();
        post(&client, "/v1/calls", &call)
    };
    has("tell");
    assert_eq!(call("look", "a").0.status, 200);
    has("tell\nburn");
    assert_eq!(call("burn", "a").0.status, 404, "it has not said so yet");
    // Before it answers, it announces that its tools have changed.
    assert_eq!(call("tell", "a").0.status, 200);
    let (answered, body) = call("burn", "b");
    assert_eq!((answered.status, world.count("burn b")), (200, 1), "{body}");
    // A restarted server may have other tools, too.
    has("tell\nburn\nbury");
    kill(world.server());
    assert_eq!(call("look", "b").0.status, 200);
    let mut tries = 0;
    wait(
        || {
            tries += 1;
            call("bury", &tries.to_string()).0.status == 200
        },
        || "the tool of the new process".to_owned(),
    );
}

#[test]
fn an_incomplete_tool_list_reports_no_tool_as_missing() {
    let (world, client) = opened("plain_pages", "", TestTransport::Stdio);
    world.set_behavior("pages");
    let (_, body) = post(&client, "/v1/calls", &envelope("burn", json!({ "id": "a" }), "ann"));
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("Unknown tool: burn") && !message.contains("There is no tool with this name here"),
        "the server said it: {message}"
    );
}

#[test]
fn an_elicitation_of_a_server_is_refused_if_there_is_no_user() {
    let (world, client) = opened("plain_asks", "", TestTransport::Stdio);
    fs::write(world.folder().join("ledger.names"), "ask").unwrap();
    let (answered, body) = post(&client, "/v1/calls", &envelope("ask", json!({ "id": "a" }), "ann"));
    assert_eq!(answered.status, 200, "{body}");
    assert_eq!(body["output"]["content"]["content"][0]["text"], "a is for nobody", "{body}");
}

/// A server of the modern era asks by answering the call. A caller that cannot be asked must not take that for success.
#[test]
fn a_question_in_place_of_an_answer_is_a_failure_over_plain_http() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of_era(ServerEra::Modern, "plain_asks_back", "", TestTransport::Http, back);
        let client = world.client();
        fs::write(world.folder().join("ledger.names"), "ask").unwrap();
        let ask = keyed("ask", json!({ "id": "a" }), "k");
        let (answered, body) = post(&client, "/v1/calls", &ask);
        let code = &body["error"]["code"];
        assert_eq!(
            (answered.status, &body["status"], code),
            (200, &json!("error"), &json!("tool_error")),
            "{body}"
        );
        let turn = json!({ "contractVersion": "1.1", "target": { "sessionKey": "s-1", "actorId": "ann" },
            "plan": { "calls": [{ "id": "a", "tool": "bank/ask", "params": { "id": "b" } }] } });
        let (_, body) = post(&client, "/v1/turns", &turn);
        assert_eq!(
            (&body["status"], &body["calls"][0]["code"]),
            (&json!("failed"), &json!("tool_error")),
            "{body}"
        );
    }
}

/// A sign of life keeps a call from being ended. The engine passes each one on to its caller.
#[test]
fn progress_of_a_call_over_http_is_a_sign_of_life() {
    for back in TestTransport::cases() {
        let (world, client) = opened("plain_progress", "", back);
        let gate = world.set_behavior("gate");
        let call = envelope("look", json!({ "id": "a", "fault": "pulse" }), "ann").to_string();
        let request = RawRequest::to(client.address()).line("POST /v1/calls HTTP/1.1").body(call);
        let mut stream = TcpStream::connect(client.address()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.write_all(&request.header("accept", "text/event-stream").bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        let signs = lines.by_ref().filter(|line| line == "event: progress").take(3).count();
        assert_eq!(signs, 3);
        fs::remove_file(gate).unwrap();
        let rest: Vec<_> = lines.collect();
        let result = rest.iter().skip_while(|line| *line != "event: result").nth(1);
        let result =
            result.and_then(|line| line.strip_prefix("data: ")).unwrap_or_else(|| panic!("{rest:?}"));
        assert!(result.contains("\"success\"") && result.contains("look a, run 1"), "{result}");
        assert_eq!(world.count("look a"), 1);
    }
}

/// With a limit of one process, an unused server makes room: its process ends before the next one begins.
#[test]
fn an_unused_server_makes_room_for_another() {
    let served = TwoServerGateway::new("plain_room", "isolation = \"per_session\"\nmost_sessions = 1\n");
    let client = McpTestClient::at(served.address());
    let status_of = |actor: &str| {
        let mut call = envelope("look", json!({ "id": actor }), actor);
        call["toolNamespace"] = "mail".into();
        post(&client, "/v1/calls", &call).0.status
    };
    assert_eq!((status_of("ann"), status_of("bob")), (200, 200));
    let servers = get(&client, "/v1/servers");
    let names: Vec<_> = servers["servers"].as_array().unwrap().iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["bank", "mail"]);
    assert_eq!(
        [&servers["servers"][0]["shared"], &servers["servers"][1]["shared"]],
        [&json!(true), &json!(false)]
    );
    let ledger = served.ledger("mail");
    let lines: Vec<_> = ledger.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["start", "initialize", "look", "stdin", "start", "initialize", "look"], "{ledger:?}");
}

#[test]
fn annotations_of_a_server_count_over_http_too() {
    let (world, client) = opened("plain_known", "", TestTransport::Stdio);
    // It only reads, so it is retried. Its arguments are checked against the server's schema.
    let flaky = json!({ "id": "a", "fault": "503", "times": 1 });
    let (answered, body) = post(&client, "/v1/calls", &envelope("look", flaky, "ann"));
    assert_eq!((answered.status, &body["attempts"]), (200, &json!(2)), "{body}");
    let (answered, body) = post(&client, "/v1/calls", &envelope("burn", json!({}), "ann"));
    assert_eq!(answered.status, 404, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("bank/burn"), "{body}");
    assert_eq!(world.count("look a"), 2);
}

#[test]
fn sf_6_stderr_of_a_server_is_shown_without_secrets() {
    let world = GatewayWorld::of("plain_stderr", "", TestTransport::Http, TestTransport::Stdio);
    let mut command = world.wrap_alone(&[&["--name", "bank"][..], &LISTEN, &["--", "sh", "-c"]].concat());
    command.arg("echo \"ready with sk-live-4f9a8b7c6d5e4f3a2b1c\" >&2; exec \"$0\" \"$1\"");
    command.arg(env!("CARGO_BIN_EXE_steadfast-test-server")).arg(world.folder().join("ledger"));
    let mut client = McpTestClient::over_http(command);
    client.initialize();
    // It is read concurrently with the answers of the server.
    let stderr = || get(&client, "/v1/servers")["servers"][0]["instances"][0]["stderr"].clone();
    wait(|| stderr() != json!([]) && !stderr().is_null(), || "what the server wrote".to_owned());
    assert_eq!(stderr(), json!(["ready with [redacted]"]));
}

#[test]
fn servers_and_sessions_are_listed_with_their_errors() {
    let (world, mut client) = opened("plain_seen", "", TestTransport::Stdio);
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    wait(
        || get(&client, "/v1/servers")["servers"][0]["instances"][0]["lastEnd"].is_object(),
        || format!("an end in {}", get(&client, "/v1/servers")),
    );
    let servers = get(&client, "/v1/servers");
    assert_eq!(servers["servers"][0]["name"], "bank");
    assert!(
        servers["servers"][0]["instances"][0]["lastEnd"]["why"].as_str().unwrap().contains('4'),
        "{servers}"
    );
    let sessions = get(&client, "/v1/sessions?server=bank");
    let session = &sessions["sessions"][0];
    assert_eq!((&session["door"], &session["waiting"]), (&json!("/mcp"), &json!(0)), "{sessions}");
    assert_eq!(session["listens"], false, "{sessions}");
    assert!(session["actor"].as_str().is_some_and(|actor| !actor.is_empty()), "{sessions}");
    assert!(!sessions.to_string().contains(&client.session()), "whoever knows the name can speak in it");
    client.call("look", json!({ "id": "a" }));
    let servers = get(&client, "/v1/servers");
    let instance = &servers["servers"][0]["instances"][0];
    assert_eq!((&instance["state"], &instance["tools"]), (&json!("up"), &json!(6)), "{servers}");
    // A call that hangs keeps its server. The server that was used earlier is the idle one.
    let mut other = McpTestClient::at(client.address());
    other.initialize();
    other.send_call("look", json!({ "id": "b", "fault": "hang" }));
    world.until("look b", 1);
    let sessions = get(&client, "/v1/sessions");
    let with = |waiting: u64| {
        let one = sessions["sessions"].as_array().unwrap().iter().find(|one| one["waiting"] == waiting);
        one.expect("one that waits for so much")["silentMs"].as_u64().unwrap()
    };
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 2, "{sessions}");
    assert!(with(1) < with(0), "{sessions}");
    // Even the era without sessions has one, without a name.
    let mut modern = McpTestClient::at(client.address());
    modern.without_handshake(json!({}));
    modern.send_call("look", json!({ "id": "c", "fault": "hang" }));
    world.until("look c", 1);
    let sessions = get(&client, "/v1/sessions");
    let nameless = sessions["sessions"].as_array().unwrap().iter().find(|one| one.get("session").is_none());
    assert_eq!(nameless.expect("it is seen")["waiting"], 1, "{sessions}");
    assert_eq!(get(&client, "/v1/sessions?server=other")["sessions"], json!([]));
    drop(world);
}

#[test]
fn all_tools_that_are_known_are_listed_called_or_not_and_no_server_is_started_for_it() {
    let (world, client) =
        opened("plain_tools", "[command_tools.hello]\ncommand = [\"true\"]\n", TestTransport::Stdio);
    let started = || world.ledger().iter().filter(|line| line.starts_with("start ")).count();
    let before = started();
    let tools = |query: &str| -> Vec<String> {
        let body = get(&client, &format!("/v1/tools?{query}"));
        let name = |tool: &Value| format!("{}/{}", tool["namespace"], tool["tool"]).replace('"', "");
        body["tools"].as_array().unwrap().iter().map(|one| name(&one["tool"])).collect()
    };
    assert_eq!(tools("called=false&namespace=command"), ["command/hello"]);
    assert_eq!(started(), before);
    let (answered, body) = post(&client, "/v1/calls", &envelope("look", json!({ "id": "a" }), "ann"));
    assert_eq!(answered.status, 200, "{body}");
    let known = tools("namespace=bank");
    assert!(known.contains(&"bank/look".to_owned()) && known.contains(&"bank/pay".to_owned()), "{known:?}");
    assert_eq!(tools("called=true"), ["bank/look"]);
}

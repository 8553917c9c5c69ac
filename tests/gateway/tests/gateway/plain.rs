//! Tools of servers called over plain HTTP, by callers that have never heard of MCP.

use serde_json::{Value, json};

use crate::client::Client;
use crate::raw::{Answered, Request, send};
use crate::world::{By, World, kill, wait};

/// A gateway in front of a server that is reached so, and a client that keeps it running.
fn opened(test: &str, config: &str, back: By) -> (World, Client) {
    let world = World::of(test, config, By::Http, back);
    let client = world.client();
    (world, client)
}

fn post(client: &Client, path: &str, body: &Value) -> (Answered, Value) {
    ask(client, &format!("POST {path} HTTP/1.1"), &body.to_string())
}

fn get(client: &Client, path: &str) -> Value {
    let (answered, body) = ask(client, &format!("GET {path} HTTP/1.1"), "");
    assert_eq!(answered.status, 200, "{body}");
    body
}

fn ask(client: &Client, line: &str, body: &str) -> (Answered, Value) {
    let request = Request::to(client.address()).header("accept", "application/json").line(line).body(body);
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
    for back in [By::Stdio, By::Http] {
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
    let (world, client) = opened("plain_killed", "", By::Stdio);
    post(&client, "/v1/calls", &envelope("look", json!({ "id": "a" }), "ann"));
    let server = world.server();
    kill(server);
    let (answered, body) = post(&client, "/v1/calls", &envelope("look", json!({ "id": "b" }), "ann"));
    assert_eq!(answered.status, 200, "{body}");
    assert_ne!(world.server(), server);
    let restarts = || -> u64 {
        let seen = get(&client, "/v1/servers");
        seen["servers"][0]["instances"]
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
    let (world, client) = opened("plain_apart", "", By::Stdio);
    // The client itself has one.
    let before = world.ledger().iter().filter(|line| line.starts_with("start ")).count();
    for (actor, processes) in [("ann", 1), ("bob", 2), ("ann", 2)] {
        post(&client, "/v1/calls", &envelope("look", json!({ "id": actor }), actor));
        let started = world.ledger().iter().filter(|line| line.starts_with("start ")).count();
        assert_eq!(started - before, processes, "{actor}");
    }
}

#[test]
fn what_a_server_says_of_a_tool_counts_over_http_too() {
    let (world, client) = opened("plain_known", "", By::Stdio);
    // It reads, so it is tried again; what it was asked for is what the server's schema is held against.
    let flaky = json!({ "id": "a", "fault": "503", "times": 1 });
    let (answered, body) = post(&client, "/v1/calls", &envelope("look", flaky, "ann"));
    assert_eq!((answered.status, &body["attempts"]), (200, &json!(2)), "{body}");
    let (answered, body) = post(&client, "/v1/calls", &envelope("burn", json!({}), "ann"));
    assert_eq!(answered.status, 404, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("bank/burn"), "{body}");
    assert_eq!(world.count("look a"), 2);
}

#[test]
fn servers_and_sessions_are_seen_with_what_went_wrong() {
    let (world, mut client) = opened("plain_seen", "", By::Stdio);
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    wait(
        || get(&client, "/v1/servers")["servers"][0]["instances"][0]["lastEnd"].is_object(),
        || format!("an end in {}", get(&client, "/v1/servers")),
    );
    let seen = get(&client, "/v1/servers");
    assert_eq!(seen["servers"][0]["name"], "bank");
    assert!(seen["servers"][0]["instances"][0]["lastEnd"]["why"].as_str().unwrap().contains('4'), "{seen}");
    let sessions = get(&client, "/v1/sessions?server=bank");
    let session = &sessions["sessions"][0];
    assert_eq!((&session["door"], &session["waiting"]), (&json!("/mcp"), &json!(0)), "{sessions}");
    assert!(!sessions.to_string().contains(&client.session()), "whoever knows the name can speak in it");
    assert_eq!(get(&client, "/v1/sessions?server=other")["sessions"], json!([]));
    drop(world);
}

#[test]
fn all_tools_that_are_known_are_listed_called_or_not_and_no_server_is_started_for_it() {
    let (world, client) = opened("plain_tools", "[command_tools.hello]\ncommand = [\"true\"]\n", By::Stdio);
    let started = || world.ledger().iter().filter(|line| line.starts_with("start ")).count();
    let before = started();
    let tools = |query: &str| -> Vec<String> {
        let seen = get(&client, &format!("/v1/tools?{query}"));
        let name = |tool: &Value| format!("{}/{}", tool["namespace"], tool["tool"]).replace('"', "");
        seen["tools"].as_array().unwrap().iter().map(|one| name(&one["tool"])).collect()
    };
    assert_eq!(tools("called=false&namespace=command"), ["command/hello"]);
    assert_eq!(started(), before);
    let (answered, body) = post(&client, "/v1/calls", &envelope("look", json!({ "id": "a" }), "ann"));
    assert_eq!(answered.status, 200, "{body}");
    let known = tools("namespace=bank");
    assert!(known.contains(&"bank/look".to_owned()) && known.contains(&"bank/pay".to_owned()), "{known:?}");
    assert_eq!(tools("called=true"), ["bank/look"]);
}

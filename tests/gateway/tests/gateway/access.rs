//! Access and ownership (SF-7).

use std::net::SocketAddr;
use std::process::Command;

use serde_json::json;

use crate::client::{McpTestClient, keyed};
use crate::raw::{RawRequest, send};
use crate::world::{GatewayWorld, LISTEN, TestTransport};

/// Returns a gateway in this world with this token, or with none.
fn gateway(world: &GatewayWorld, token: Option<&str>) -> McpTestClient {
    let mut command: Command = world.wrap(&LISTEN);
    let headers = match token {
        Some(token) => {
            command.env("STEADFAST_TOKEN", token);
            format!("authorization: Bearer {token}\r\n")
        }
        None => String::new(),
    };
    let mut client = McpTestClient::over_http(command).with_headers(&headers);
    client.initialize();
    client.request("tools/list", json!({}));
    client
}

fn ping(address: SocketAddr) -> RawRequest {
    RawRequest::to(address).body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
}

#[test]
fn sf_7_without_the_token_every_request_is_refused() {
    let world = GatewayWorld::of("sf_7_nothing", "", TestTransport::Http, TestTransport::Stdio);
    let client = gateway(&world, Some("s3cret"));
    let (address, session) = (client.address(), client.session());
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"id":"x"}}}"#;
    let bearers = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cre",
        "Bearer s3cret2",
        "Bearer S3CRET",
        "Basic s3cret",
        "s3cret",
    ];
    for line in ["POST /mcp HTTP/1.1", "GET /mcp HTTP/1.1", "DELETE /mcp HTTP/1.1"] {
        for bearer in bearers {
            let request =
                ping(address).line(line).header("mcp-session-id", &session).header("authorization", bearer);
            let answer = send(&request.body(call)).unwrap();
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, Some("Bearer")),
                "{line} {bearer:?}"
            );
        }
        // Neither two tokens nor one in another place.
        let twice = ping(address)
            .line(line)
            .and("authorization", "Bearer wrong")
            .and("authorization", "Bearer s3cret");
        assert_eq!(send(&twice).unwrap().status, 401, "{line}");
        let elsewhere = ping(address).line(&line.replace("/mcp", "/mcp?token=s3cret"));
        assert_eq!(send(&elsewhere).unwrap().status, 401, "{line}");
    }
    assert_eq!(world.count("pay x"), 0);
    // The session still exists for the clients that may use it.
    let good = ping(address).header("mcp-session-id", &session).header("authorization", "bearer s3cret");
    assert_eq!(send(&good).unwrap().status, 200);
}

#[test]
fn sf_7_a_server_gets_the_environment_of_its_client_without_the_tokens_of_the_gateway() {
    let tokens = "[tokens.ann]\ntoken = \"${ANN}\"\n";
    let world = GatewayWorld::of("sf_7_environment", tokens, TestTransport::Stdio, TestTransport::Stdio);
    let script = "env > environment; exec cat";
    let mut command = world.wrap_alone(&["--name", "bank", "--store", "memory", "--", "sh", "-c", script]);
    command
        .env("STEADFAST_TOKEN", "s3cret")
        .env("STEADFAST_STORE_KIND", "memory")
        .env("ANN", "of-ann-0123456789")
        .env("BANK_TOKEN", "theirs");
    let mut client = McpTestClient::on_streams(command);
    client.send("initialize", json!({}));
    let read = || std::fs::read_to_string(world.folder().join("environment")).unwrap_or_default();
    crate::world::wait(|| read().contains("BANK_TOKEN=theirs"), || format!("what is theirs in {:?}", read()));
    assert!(["STEADFAST_", "s3cret", "of-ann"].iter().all(|secret| !read().contains(secret)), "{}", read());
}

#[test]
fn sf_7_a_foreign_origin_is_refused_even_with_the_token() {
    let world = GatewayWorld::of("sf_7_pages", "", TestTransport::Http, TestTransport::Stdio);
    for token in [None, Some("s3cret")] {
        let client = gateway(&world, token);
        let (address, session) = (client.address(), client.session());
        let bearer = format!("Bearer {}", token.unwrap_or("none"));
        let good = ping(address).header("mcp-session-id", &session).header("authorization", &bearer);
        let port = address.port();
        for (host, origin, status) in [
            (None, None, 200),
            (Some(format!("localhost:{port}")), Some("http://localhost:3000".to_owned()), 200),
            (Some(format!("[::1]:{port}")), Some(format!("http://127.0.0.1:{port}")), 200),
            (Some("evil.example".to_owned()), None, 403),
            (Some(format!("evil.example:{port}")), None, 403),
            (Some(format!("localhost.evil.example:{port}")), None, 403),
            (Some("127.0.0.1.evil.example".to_owned()), None, 403),
            (None, Some("https://evil.example".to_owned()), 403),
            (None, Some("http://localhost.evil.example".to_owned()), 403),
            (None, Some("http://localhost@evil.example".to_owned()), 403),
            (None, Some("null".to_owned()), 403),
            (None, Some(String::new()), 403),
            (None, Some("file://".to_owned()), 403),
        ] {
            let mut request = good.clone();
            if let Some(host) = &host {
                request = request.header("host", host);
            }
            if let Some(origin) = &origin {
                request = request.header("origin", origin);
            }
            assert_eq!(send(&request).unwrap().status, status, "{host:?} {origin:?}");
        }
    }
}

/// A client's model can use the client's token. With operator rights it could restore trust in the tool that it broke.
#[test]
fn rp_13_a_client_token_admits_a_client_and_not_an_operator() {
    let config = "[trust]\ncount = 1\nseverities = [\"crash\"]\n[gateway]\nreliability_tools = true\n";
    let world = GatewayWorld::of("rp_13_token", config, TestTransport::Http, TestTransport::Stdio);
    let mut client = gateway(&world, Some("s3cret"));
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    let lost = client.call("reliability_status", json!({}));
    assert!(lost.text.starts_with("bank/pay: escalated"), "{lost:?}");
    let refused = client.call("reliability_reset", json!({ "tool_name": "bank/pay" }));
    assert!(refused.is_error && refused.text.contains("steadfast approve"), "{refused:?}");
    assert_eq!(client.call("reliability_status", json!({})).text, lost.text, "nothing was forgiven");
}

/// A session belongs to the client that opened it, also where it is kept for another gateway.
#[test]
fn sf_7_the_session_of_another_user_is_not_found() {
    let world = GatewayWorld::of("sf_7_sessions", "", TestTransport::Http, TestTransport::Stdio);
    let (local, other) = (gateway(&world, None), gateway(&world, Some("s3cret")));
    let with_token = ping(other.address()).header("authorization", "Bearer s3cret");
    let of_local = with_token.clone().header("mcp-session-id", &local.session());
    let of_other = ping(local.address()).header("mcp-session-id", &other.session());
    for line in ["POST /mcp HTTP/1.1", "GET /mcp HTTP/1.1", "DELETE /mcp HTTP/1.1"] {
        for request in [&of_local, &of_other] {
            let answer = send(&request.clone().line(line)).unwrap();
            assert_eq!(answer.status, 404, "{line}: {answer:?}");
        }
    }
    // Each client still has its own session.
    for (client, request) in [(&local, ping(local.address())), (&other, with_token)] {
        assert_eq!(send(&request.header("mcp-session-id", &client.session())).unwrap().status, 200);
    }
    // A client without a token belongs to the same user on another gateway of the machine, and continues the session
    // there.
    let third = gateway(&world, None);
    let request = ping(third.address()).header("mcp-session-id", &local.session());
    assert_eq!(send(&request).unwrap().status, 200);
}

#[test]
fn sf_7_records_and_calls_in_flight_of_other_users_are_hidden() {
    let world = GatewayWorld::of("sf_7_records", "", TestTransport::Http, TestTransport::Stdio);
    let (mut local, mut other) = (gateway(&world, None), gateway(&world, Some("s3cret")));
    // For another user the same key is another call, with other arguments too.
    assert_eq!(local.call_keyed("pay", json!({ "id": "a" }), "k").text, "pay a, run 1");
    let response = other.call_keyed("pay", json!({ "id": "a" }), "k");
    assert_eq!((response.text.as_str(), response.from_cache), ("pay a, run 2", false), "{response:?}");
    assert_eq!(local.call_keyed("pay", json!({ "id": "b" }), "l").text, "pay b, run 1");
    assert_eq!(other.call_keyed("pay", json!({ "id": "c" }), "l").text, "pay c, run 1");
    // No other call waits for a call in flight: neither one with the same key nor an equal one.
    for meta in
        [keyed("m"), json!({ "dev.steadfast/session": "same" }), json!({ "claudecode/toolUseId": "toolu_1" })]
    {
        let id = meta.to_string();
        let arguments = json!({ "id": id, "fault": "hang", "times": 1 });
        local.send_call_with("pay", arguments.clone(), meta.clone());
        world.until(&format!("pay {id}"), 1);
        let response = other.call_with("pay", arguments, meta);
        assert_eq!((response.text, response.from_cache), (format!("pay {id}, run 2"), false));
    }
}

/// Two sessions of one user are two conversations: the answers of one are not replayed in the other.
#[test]
fn sf_7_sessions_of_one_user_share_keys_and_nothing_else() {
    let world = GatewayWorld::of("sf_7_conversations", "", TestTransport::Http, TestTransport::Stdio);
    let mut one = gateway(&world, None);
    let mut two = McpTestClient::at(one.address());
    two.initialize();
    two.request("tools/list", json!({}));
    let arguments = json!({ "id": "a", "fault": "hang", "times": 1 });
    one.send_call("pay", arguments.clone());
    world.until("pay a", 1);
    assert_eq!(two.call("pay", arguments).text, "pay a, run 2", "equal calls of two conversations are two");
    assert_eq!(one.call_keyed("pay", json!({ "id": "b" }), "k").text, "pay b, run 1");
    assert!(
        two.call_keyed("pay", json!({ "id": "b" }), "k").from_cache,
        "a key means intent, of the one who gave it"
    );
}

//! Hostile requests: HTTP that violates the rules of the transport.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use serde_json::json;

use super::{SLACK, resident};
use crate::client::McpTestClient;
use crate::raw::{RawRequest, send};
use crate::world::{GatewayWorld, TestTransport};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// Returns invalid requests, with the status of the answer and the error code in it.
fn wrong(address: SocketAddr, session: &str) -> Vec<(&'static str, RawRequest, u16, Option<i64>)> {
    let good = RawRequest::to(address).header("mcp-session-id", session).body(PING);
    let long = "x".repeat(100_000);
    let mut many = good.clone();
    for number in 0..10_000 {
        many = many.and(&format!("x-{number}"), "y");
    }
    let modern = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let of_version = |version: &str, body: &str| {
        good.clone().without("mcp-session-id").header("mcp-protocol-version", version).body(body)
    };
    vec![
        ("an empty body", good.clone().body(""), 400, Some(-32700)),
        ("a body that is no JSON", good.clone().body("{"), 400, Some(-32700)),
        ("a batch", good.clone().body(format!("[{PING}]")), 400, Some(-32600)),
        ("no content type", good.clone().without("content-type"), 415, Some(-32600)),
        (
            "a form",
            good.clone().header("content-type", "application/x-www-form-urlencoded"),
            415,
            Some(-32600),
        ),
        ("a text", good.clone().header("content-type", "text/plain; charset=utf-8"), 415, Some(-32600)),
        ("somebody who takes no JSON", good.clone().header("accept", "text/html"), 406, Some(-32600)),
        ("no session", good.clone().without("mcp-session-id"), 400, Some(-32600)),
        ("an unknown session", good.clone().header("mcp-session-id", "nobody"), 404, Some(-32600)),
        (
            "a session that cannot be one",
            good.clone().header("mcp-session-id", "a b\u{e9}"),
            404,
            Some(-32600),
        ),
        ("an unknown version", good.clone().header("mcp-protocol-version", "1999-01-01"), 400, Some(-32022)),
        (
            "two versions",
            good.clone().and("mcp-protocol-version", "2025-11-25").and("mcp-protocol-version", "2025-06-18"),
            400,
            Some(-32020),
        ),
        ("another version than the body says", of_version("2025-11-25", modern), 400, Some(-32020)),
        ("the modern era without its headers", of_version("2026-07-28", modern), 400, Some(-32020)),
        (
            "the modern era with another method",
            of_version("2026-07-28", modern).header("mcp-method", "tools/call"),
            400,
            Some(-32020),
        ),
        (
            "the modern era without its fields",
            of_version("2026-07-28", PING).header("mcp-method", "ping"),
            400,
            Some(-32602),
        ),
        ("a method of HTTP that is none of ours", good.clone().line("PUT /mcp HTTP/1.1"), 405, Some(-32600)),
        ("a method of nobody", good.clone().line("BREW /mcp HTTP/1.1"), 405, Some(-32600)),
        ("another path", good.clone().line("POST /other HTTP/1.1"), 404, None),
        ("a long path", good.clone().line(&format!("POST /{} HTTP/1.1", "y".repeat(20_000))), 404, None),
        ("a longer path", good.clone().line(&format!("POST /{long} HTTP/1.1")), 414, None),
        ("no HTTP", good.clone().line("hello?"), 400, None),
        ("another HTTP", good.clone().line("POST /mcp HTTP/9.9"), 400, None),
        ("no host", good.clone().without("host"), 400, Some(-32600)),
        ("two hosts", good.clone().and("host", "localhost"), 400, Some(-32600)),
        ("a length that is none", good.clone().header("content-length", "many"), 400, None),
        ("two lengths", good.clone().and("content-length", "1").and("content-length", "40"), 400, None),
        ("a length beyond ours", good.clone().header("content-length", "999999999999"), 413, Some(-32600)),
        (
            "chunks that are none",
            good.clone().header("transfer-encoding", "chunked").body("zz\r\nx\r\n"),
            400,
            None,
        ),
        ("a header of 65 KiB", good.clone().header("x-long", &"x".repeat(65 << 10)), 431, None),
        ("a header of 100 KB", good.clone().header("x-long", &long), 431, None),
        ("a header of a megabyte", good.clone().header("x-long", &long.repeat(10)), 431, None),
        ("10,000 headers", many, 431, None),
        (
            "listening in no session",
            good.clone()
                .line("GET /mcp HTTP/1.1")
                .header("mcp-session-id", "nobody")
                .header("accept", "text/event-stream"),
            404,
            Some(-32600),
        ),
        (
            "ending no session",
            good.clone().line("DELETE /mcp HTTP/1.1").header("mcp-session-id", "nobody"),
            404,
            Some(-32600),
        ),
    ]
}

#[test]
fn sf_5_a_request_that_breaks_the_protocol_gets_the_prescribed_status() {
    let world = GatewayWorld::of("sf_5_http", "", TestTransport::Http, TestTransport::Stdio);
    let mut client = world.client();
    let (address, session) = (client.address(), client.session());
    for (number, (name, request, status, code)) in wrong(address, &session).into_iter().enumerate() {
        let answer = send(&request).unwrap_or_else(|| panic!("{name}: cut off"));
        assert_eq!((answer.status, code.and(answer.code())), (status, code), "{name}: {answer:?}");
        assert_eq!(
            client.call("pay", json!({ "id": number.to_string() })).text,
            format!("pay {number}, run 1")
        );
    }
    // The maximum length of a header.
    let long =
        RawRequest::to(address).header("mcp-session-id", &session).header("x-long", &"x".repeat(63 << 10));
    let answer = send(&long.body(PING)).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    let before = resident(client.pid());
    for _ in 0..20 {
        for (_, request, ..) in wrong(address, &session) {
            send(&request);
        }
    }
    let after = resident(client.pid());
    assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
    assert!(McpTestClient::at(address).initialize()["result"].is_object(), "others are let in");
}

#[test]
fn sf_5_a_key_that_cannot_be_one_is_refused_and_its_call_is_not_run() {
    let world = GatewayWorld::of("sf_5_keys", "", TestTransport::Http, TestTransport::Stdio);
    let client = world.client();
    let call = |params: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","arguments":{{"id":"x"}}{params}}}}}"#
        );
        RawRequest::to(client.address()).header("mcp-session-id", &client.session()).body(body)
    };
    for request in [
        call(r#","idempotencyKey":42"#),
        call(r#","idempotencyKey":"""#),
        call(r#","_meta":{"dev.steadfast/idempotency-key":42}"#),
        call("").header("idempotency-key", "schl\u{fc}ssel"),
    ] {
        let answer = send(&request).unwrap();
        assert_eq!((answer.status, answer.code()), (200, Some(-32602)), "{answer:?}");
    }
    assert_eq!(world.count("pay x"), 0);
    assert_eq!(send(&call(r#","idempotencyKey":null"#)).unwrap().code(), None);
    assert_eq!(world.count("pay x"), 1);
}

#[test]
fn sf_5_requests_that_never_end_block_no_client() {
    let world = GatewayWorld::of("sf_5_half", "", TestTransport::Http, TestTransport::Stdio);
    let mut client = world.client();
    let address = client.address();
    let start_request = |text: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let half = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    let waiting: Vec<TcpStream> = (0..50)
        .flat_map(|_| {
            [
                start_request(""),
                start_request("POST /mcp HTT"),
                start_request("POST /mcp HTTP/1.1\r\nhost"),
                start_request(&half),
            ]
        })
        .collect();
    assert_eq!(client.call("pay", json!({ "id": "a" })).text, "pay a, run 1");
    drop(waiting);
    assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
}

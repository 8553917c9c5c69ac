//! Access (SF-7): every endpoint in the document, the MCP endpoints beside them, and the command line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{ADMIN, ApiGateway, PLAIN, envelope};
use crate::client::McpTestClient;
use crate::raw::{RawRequest, send};
use crate::world::TEST_TIMEOUT;

/// The token of the agents.
const CLIENT: &str = "token-of-the-agents";

/// The access that an endpoint requires, as the page about the API says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequiredAccess {
    Public,
    Callers,
    Lookers,
    TheAdmin,
}

/// Returns all operations of the gateway's document.
fn operations(gateway: &ApiGateway) -> Vec<(String, RequiredAccess)> {
    let document = gateway.get("/openapi.json");
    let mut all = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let calls = [
                "/v1/calls",
                "/v1/turns",
                "/v1/failures",
                "/v1/successes",
                "/v1/tools/{name}/score",
                "/v1/results",
            ];
            let required = match path.as_str() {
                "/healthz" | "/readyz" | "/openapi.json" => RequiredAccess::Public,
                "/v1/failures" if method == "get" => RequiredAccess::Lookers,
                path if calls.iter().any(|begin| path.starts_with(begin)) => RequiredAccess::Callers,
                "/v1/sessions/{key}" => RequiredAccess::Callers,
                "/v1/audit" => RequiredAccess::TheAdmin,
                _ if method != "get" => RequiredAccess::TheAdmin,
                _ => RequiredAccess::Lookers,
            };
            // The security of the document: none, an optional token, a token.
            let expected = match required {
                RequiredAccess::Public => json!([]),
                RequiredAccess::Callers | RequiredAccess::Lookers => json!([{}, { "token": [] }]),
                RequiredAccess::TheAdmin => json!([{ "token": [] }]),
            };
            assert_eq!(operation["security"], expected, "{method} {path}");
            let path =
                path.replace("{id}", "1").replace("{key}", "tool:bank:pay").replace("{name}", "bank%2Fpay");
            all.push((format!("{} {path}", method.to_uppercase()), required));
        }
    }
    assert!(all.len() > 30, "{all:?}");
    all
}

/// Returns the status of the answer. Some answers never end.
fn status(request: &RawRequest) -> u16 {
    let mut stream = TcpStream::connect(request.address()).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(&request.bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
}

/// Sends this request with an arbitrary body.
fn request_status(gateway: &ApiGateway, line: &str, headers: &[(&str, &str)]) -> u16 {
    let request = gateway.request(line).body("{}");
    status(&headers.iter().fold(request, |request, (name, value)| request.header(name, value)))
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Checks that nothing was changed, and that nothing was run.
fn assert_unchanged(gateway: &ApiGateway) {
    let audit = gateway.get("/v1/audit");
    assert_eq!(audit["audit"], json!([]), "{audit}");
    let history = gateway.get("/v1/history");
    assert_eq!(history["calls"], json!([]), "{history}");
}

#[test]
fn sf_7_where_agents_have_a_token_each_endpoint_is_for_those_it_is_for() {
    let gateway = ApiGateway::with("sf_7_tokens", "", "", |command| {
        command.env("STEADFAST_TOKEN", CLIENT);
    });
    let operations = operations(&gateway);
    let (client, admin) = (bearer(CLIENT), bearer(ADMIN));
    for (line, required) in &operations {
        let public = *required == RequiredAccess::Public;
        assert_eq!(request_status(&gateway, line, &[]) == 401, !public, "{line} without a token");
        for wrong in ["Bearer wrong", "Bearer", "Basic x", ADMIN, &bearer(&CLIENT[1..]), &format!("{admin}x")]
        {
            let status = request_status(&gateway, line, &[("authorization", wrong)]);
            assert!(status == 401 || (public && status == 200), "{line} with {wrong:?}: {status}");
        }
        // A token is not accepted in a URL.
        let elsewhere = format!("{line}?token={ADMIN}&access_token={ADMIN}");
        assert_eq!(request_status(&gateway, &elsewhere, &[]) == 401, !public, "{elsewhere}");
        let status = request_status(&gateway, line, &[("authorization", &client)]);
        let refused = matches!(required, RequiredAccess::Lookers | RequiredAccess::TheAdmin);
        assert_eq!(status == 403, refused, "{line} with the token of an agent: {status}");
    }
    assert_unchanged(&gateway);
    for (line, required) in &operations {
        // From a foreign origin, or with a foreign host: not even with the token.
        for (name, value) in [
            ("host", "evil.example"),
            ("host", "127.0.0.1.evil.example"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("origin", "http://localhost:3000"),
        ] {
            let status = request_status(&gateway, line, &[("authorization", &admin), (name, value)]);
            assert_eq!(status, 403, "{line} with {name}: {value}");
        }
        assert!(
            *required == RequiredAccess::Public
                || request_status(&gateway, line, &[("origin", "https://evil.example")]) == 403
        );
    }
    assert_unchanged(&gateway);
    for (line, required) in &operations {
        let allowed = request_status(&gateway, line, &[("authorization", &admin)]);
        assert!(![401, 403].contains(&allowed) && allowed < 500, "{line} with the admin's: {allowed}");
        if *required == RequiredAccess::Callers {
            let allowed = request_status(&gateway, line, &[("authorization", &client)]);
            assert!(![401, 403].contains(&allowed) && allowed < 500, "{line} with the agent's: {allowed}");
        }
    }
}

#[test]
fn sf_7_on_this_machine_all_may_call_and_read_and_only_the_admin_makes_changes() {
    let gateway = ApiGateway::new("sf_7_local", "");
    for (line, required) in operations(&gateway) {
        let status = request_status(&gateway, &line, &[]);
        assert_eq!(status == 401, required == RequiredAccess::TheAdmin, "{line}: {status}");
        assert_eq!(request_status(&gateway, &line, &[("authorization", "Bearer wrong")]), 401, "{line}");
        assert_eq!(request_status(&gateway, &line, &[("host", "evil.example")]), 403, "{line}");
        assert_eq!(request_status(&gateway, &line, &[("origin", "http://evil.example")]), 403, "{line}");
    }
    assert_unchanged(&gateway);
}

#[test]
fn sf_7_each_mcp_endpoint_of_serve_needs_the_token_of_the_agents() {
    let gateway = ApiGateway::with("sf_7_doors", "", "", |command| {
        command.env("STEADFAST_TOKEN", CLIENT);
    });
    let hello = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        },
    });
    let connect_with = |endpoint_path: &str, headers: &[(&str, &str)]| {
        let request = RawRequest::to(gateway.address)
            .line(&format!("POST {endpoint_path} HTTP/1.1"))
            .body(hello.to_string());
        status(&headers.iter().fold(request, |request, (name, value)| request.header(name, value)))
    };
    for endpoint_path in ["/mcp", "/mcp/bank"] {
        assert_eq!(connect_with(endpoint_path, &[]), 401, "{endpoint_path}");
        for wrong in ["Bearer wrong", "Bearer", "Basic x", CLIENT, &bearer(&CLIENT[1..])] {
            assert_eq!(
                connect_with(endpoint_path, &[("authorization", wrong)]),
                401,
                "{endpoint_path} {wrong:?}"
            );
        }
        let client = bearer(CLIENT);
        let token = ("authorization", client.as_str());
        assert_eq!(
            connect_with(endpoint_path, &[token, ("origin", "https://evil.example")]),
            403,
            "{endpoint_path}"
        );
        assert_eq!(connect_with(endpoint_path, &[token, ("host", "evil.example")]), 403, "{endpoint_path}");
        assert_eq!(connect_with(endpoint_path, &[token]), 200, "{endpoint_path}");
    }
}

/// The documentation says that the admin token may do everything, and `/mcp` answered 401.
#[test]
fn sf_7_the_admin_token_makes_calls_at_each_mcp_endpoint() {
    let gateway = ApiGateway::with("sf_7_admin_mcp", PLAIN, "", |command| {
        command.env("STEADFAST_TOKEN", CLIENT);
    });
    for endpoint_path in ["/mcp", "/mcp/bank"] {
        let mut client = McpTestClient::at(gateway.address)
            .behind(endpoint_path)
            .with_headers(&format!("authorization: {}\r\n", bearer(ADMIN)));
        client.initialize();
        client.request("tools/list", json!({}));
        assert_eq!(
            client.call("pay", json!({ "id": endpoint_path })).text,
            format!("pay {endpoint_path}, run 1")
        );
    }
}

/// Only the header was checked, although the host in the request line takes precedence.
#[test]
fn sf_7_a_strange_name_in_an_absolute_request_target_is_refused_like_a_strange_host() {
    let gateway = ApiGateway::new("sf_7_absolute", "");
    let port = gateway.address.port();
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (authority, is_own_host) in [
        (format!("127.0.0.1:{port}"), true),
        (format!("LOCALHOST:{port}"), true),
        ("evil.example".to_owned(), false),
        (format!("evil.example:{port}"), false),
        (format!("127.0.0.1:{port}@evil.example"), false),
        (format!("127.0.0.1.evil.example:{port}"), false),
    ] {
        for (method, path) in [
            ("GET", "/v1/status"),
            ("GET", "/v1/history"),
            ("GET", "/healthz"),
            ("GET", "/"),
            ("POST", "/v1/calls"),
            ("POST", "/v1/breakers/tool:bank:pay"),
            ("POST", "/mcp"),
            ("POST", "/mcp/bank"),
            ("DELETE", "/mcp"),
        ] {
            let line = format!("{method} http://{authority}{path}");
            let request = gateway.request(&line).header("authorization", &bearer(ADMIN)).body(list);
            let request = if path.starts_with("/mcp") {
                request.header("accept", "application/json, text/event-stream")
            } else {
                request
            };
            assert_eq!(status(&request) == 403, !is_own_host, "{line}");
            // A valid host in the line does not excuse a foreign one in the header.
            assert_eq!(status(&request.header("host", "evil.example")), 403, "{line} with a strange host");
        }
        // The origin of the page is compared with the host in the line, which takes precedence over the header.
        let page = gateway.request(&format!("GET http://{authority}/v1/status"));
        let page = page.header("origin", &format!("http://{authority}"));
        assert_eq!(status(&page) == 403, !is_own_host, "from a page of {authority}");
    }
}

/// A compressed body was read as plain text, and the coding `identity` was ignored.
#[test]
fn sf_7_a_body_with_a_content_encoding_is_refused_and_nothing_is_run() {
    let gateway = ApiGateway::new("sf_7_encoding", "");
    let call = envelope("bank/pay", &json!({ "id": "encoded" })).to_string();
    let mcp = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        },
    });
    let failure = json!({ "toolName": "search", "error": "no" });
    let reset = json!({ "action": "reset", "tool": "bank/pay" });
    for (path, body) in [
        ("/v1/calls", call),
        ("/v1/failures", failure.to_string()),
        ("/debug/tool-reliability", reset.to_string()),
        ("/mcp", mcp.to_string()),
        ("/mcp/bank", mcp.to_string()),
    ] {
        let request = gateway.request(&format!("POST {path}")).header("authorization", &bearer(ADMIN));
        let request = request.header("accept", "application/json, text/event-stream").body(body);
        for coding in ["gzip", "br", "identity, deflate", "aws-chunked"] {
            let answered = send(&request.clone().header("content-encoding", coding)).expect("an answer");
            assert_eq!(answered.status, 415, "{path} as {coding}: {answered:?}");
            assert_eq!(answered.header("accept-encoding"), Some("identity"), "{path} as {coding}");
            let text = String::from_utf8_lossy(&answered.body).into_owned();
            assert!(text.contains("Content-Encoding"), "{path} as {coding}: {text}");
        }
        let ran = usize::from(path != "/v1/calls");
        assert_eq!(gateway.count("bank", "pay encoded"), ran, "{path}");
        let plain = send(&request.header("content-encoding", "identity")).expect("an answer");
        assert!(plain.status < 300, "{path}: {plain:?}");
    }
}

#[test]
fn sf_7_the_command_line_is_let_in_with_the_admin_token_and_without_it_changes_nothing() {
    let gateway = ApiGateway::with("sf_7_line", "", "", |command| {
        command.env("STEADFAST_TOKEN", CLIENT);
    });
    let commands: [&[&str]; 10] = [
        &["status"],
        &["approvals"],
        &["breaker"],
        &["tail", "--once"],
        &["breaker", "open", "tool:bank:pay"],
        &["breaker", "reset", "tool:bank:pay"],
        &["approve", "1"],
        &["deny", "1"],
        &["flush", "--tool", "bank/pay"],
        &["reset", "bank/pay"],
    ];
    let address = gateway.address.to_string();
    for command in commands {
        for token in [None, Some("token-of-nobody"), Some(CLIENT)] {
            let mut line = gateway.command(&[command, &["--gateway", &address]].concat());
            match token {
                Some(token) => line.env("STEADFAST_ADMIN_TOKEN", token),
                None => line.env_remove("STEADFAST_ADMIN_TOKEN"),
            };
            let output = line.output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(!output.status.success(), "{command:?} with {token:?}: {text}");
            assert!(text.contains("STEADFAST_ADMIN_TOKEN"), "what to do: {command:?} with {token:?}: {text}");
            assert!(token.is_none_or(|token| !text.contains(token)), "{command:?}: {text}");
        }
    }
    assert_unchanged(&gateway);
    let output = gateway.run(&["breaker", "open", "tool:bank:pay", "--gateway", &address]);
    assert!(output.status.success(), "{output:?}");
    let audit: Value = gateway.get("/v1/audit");
    assert_eq!(audit["audit"][0]["deed"], "breaker_forced_open", "{audit}");
}

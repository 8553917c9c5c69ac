//! Hostile input over HTTP (SF-5): every endpoint answers any input with a clear sentence, the next call works, and
//! nothing of the input is kept.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::json;
use steadfast_testkit::effort::TestEffort;

use super::{ADMIN, ApiGateway, ApiTestResponse, PLAIN, envelope, keyed};
use crate::hostile::{SLACK, resident};
use crate::raw::{RawRequest, send};

/// Returns invalid bodies.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let good = keyed("bank/pay", &json!({ "id": "x" }), "k").to_string();
    let with = |params: &str| good.replace(r#"{"id":"x"}"#, params).into_bytes();
    let deep = |open: &str, close: &str| {
        with(&format!(r#"{{"a":{}1{}}}"#, open.repeat(20_000), close.repeat(20_000)))
    };
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("nothing", vec![]),
        ("no JSON", text("{")),
        ("half an envelope", good.as_bytes()[..good.len() / 2].to_vec()),
        ("null", text("null")),
        ("a list", text("[]")),
        ("a text", text("\"x\"")),
        ("a number", text("7")),
        ("a number beyond all", text("1e99999999999")),
        ("two bodies", [good.as_bytes(), good.as_bytes()].concat()),
        ("another encoding", good.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("no text at all", vec![0xff; 300]),
        ("zeroes", vec![0; 300]),
        ("bytes that are no text", [b"{\"requestId\":\"", &b"\xc3\x28\xff"[..], b"\"}"].concat()),
        ("half a surrogate", with(r#"{"a":"\ud800"}"#)),
        ("deep lists", deep("[", "]")),
        ("deep objects", deep("{\"a\":", "}")),
        ("lists without an end", "[".repeat(500_000).into_bytes()),
        ("a name twice", with(r#"{"a":1,"a":2}"#)),
        ("a name twice, written in two ways", with(r#"{"a":1,"\u0061":2}"#)),
        (
            "other types",
            text(
                r#"{"contractVersion":[],"requestId":7,"toolName":{},"toolNamespace":null,"target":"x","payload":1,"pluginName":[],"error":7,"attempt":"one","decision":{},"to":7,"session":[],"ran":"yes","all":1,"action":[]}"#,
            ),
        ),
        (
            "numbers that are too large",
            text(
                r#"{"attempt":99999999999999999999999,"for":1e999,"durationMs":-1,"id":18446744073709551616}"#,
            ),
        ),
        ("a name that is long", text(&format!(r#"{{"{}":1}}"#, "n".repeat(100_000)))),
        (
            "many names",
            text(&format!(
                "{{{}}}",
                (0..50_000).map(|n| format!("\"n{n}\":0")).collect::<Vec<_>>().join(",")
            )),
        ),
    ]
}

/// Returns all operations, with values in place of the names in the path.
fn lines(gateway: &ApiGateway) -> Vec<(String, bool)> {
    let document = gateway.get("/openapi.json");
    let paths = document["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, operations)| {
        let operations = operations.as_object().unwrap().iter();
        operations.map(move |(method, operation)| {
            let path =
                path.replace("{id}", "1").replace("{key}", "tool:bank:pay").replace("{name}", "bank%2Fpay");
            (format!("{} {path}", method.to_uppercase()), operation.get("requestBody").is_some())
        })
    });
    // Event streams never end.
    all.filter(|(line, _)| !line.ends_with("/v1/events")).collect()
}

fn admin_request(gateway: &ApiGateway, line: &str) -> RawRequest {
    gateway.request(line).header("authorization", &format!("Bearer {ADMIN}"))
}

/// Checks that a refusal names the problem, in a readable and bounded text.
fn is_a_clear_refusal(response: &ApiTestResponse, label: &str) {
    assert!((400..500).contains(&response.status), "{label}: {response:?}");
    assert!(!response.code().is_empty() && !response.message().is_empty(), "{label}: {}", response.body);
    assert!(response.message().len() < 8_000, "{label}: {} bytes", response.message().len());
    assert!(!response.message().contains(['\0', '\x1b', '\u{fffd}']), "{label}: {:?}", response.message());
}

fn works(gateway: &ApiGateway, id: &str) {
    let response = gateway.call(&envelope("bank/pay", &json!({ "id": id })));
    assert_eq!(response.text(), format!("pay {id}, run 1"), "{}", response.body);
}

#[test]
fn sf_5_no_body_breaks_an_endpoint_runs_anything_or_stays_in_memory() {
    let gateway = ApiGateway::new("sf_5_bodies", PLAIN);
    let (lines, bodies) = (lines(&gateway), bodies());
    let taking: Vec<_> = lines.iter().filter(|(_, takes)| *takes).map(|(line, _)| line).collect();
    assert!(taking.len() > 10, "{taking:?}");
    let taking = TestEffort::of_this_run().cases(taking);
    let round = || {
        for line in &taking {
            for (name, body) in &bodies {
                let response = ApiTestResponse::to(&admin_request(&gateway, line).body(body));
                is_a_clear_refusal(&response, &format!("{line} with {name}"));
            }
        }
    };
    round();
    works(&gateway, "between");
    let before = resident(gateway.pid());
    round();
    round();
    let after = resident(gateway.pid());
    assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
    assert_eq!(gateway.count("bank", "pay x"), 0);
    assert_eq!(gateway.get("/v1/audit")["audit"], json!([]), "nothing was changed");
    works(&gateway, "after");
    assert!(gateway.logged("panic").is_empty());
}

#[test]
fn sf_5_a_body_that_is_too_large_is_refused_before_it_is_read() {
    let gateway = ApiGateway::new("sf_5_large", PLAIN);
    let large = keyed("bank/pay", &json!({ "id": "x", "text": "x".repeat(20 << 20) }), "k").to_string();
    works(&gateway, "before");
    let before = resident(gateway.pid());
    // For a call that was never begun nothing is accepted at all.
    let is_taken = |(line, takes): &&(String, bool)| *takes && !line.contains("/v1/calls/1/");
    let lines = lines(&gateway);
    for (line, _) in TestEffort::of_this_run().cases(lines.iter().filter(is_taken).collect()) {
        let response = ApiTestResponse::to(&admin_request(&gateway, line).body(&large));
        assert_eq!((response.status, response.code()), (413, "too_large"), "{line}: {}", response.body);
        // A body that is announced but does not arrive is not awaited.
        let response = ApiTestResponse::to(
            &admin_request(&gateway, line).header("content-length", "999999999999").body("{"),
        );
        assert_eq!(response.status, 413, "{line}: {}", response.body);
        // A chunked body does not announce its size.
        let mut pieces = Vec::new();
        for _ in 0..40 {
            pieces.extend_from_slice(format!("80000\r\n{}\r\n", "x".repeat(0x80000)).as_bytes());
        }
        let request = admin_request(&gateway, line).header("transfer-encoding", "chunked").body(&pieces);
        assert_eq!(ApiTestResponse::to(&request).status, 413, "{line} in pieces");
    }
    let after = resident(gateway.pid());
    assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
    assert_eq!(gateway.count("bank", "pay x"), 0);
    works(&gateway, "after");
}

/// Returns texts for a query, and for a name.
fn queries() -> Vec<String> {
    vec![
        "limit=0".into(),
        "limit=-1".into(),
        "limit=99999999999999999999999999".into(),
        "limit=1e3&limit=2".into(),
        "since=NaN&status=%00".into(),
        "after=zz".into(),
        "tool=../../../etc/passwd".into(),
        "tool=%2f%2f&session=%0d%0aSet-Cookie:%20a".into(),
        "tenant=%ff%fe".into(),
        "%ff=%ff".into(),
        "%".into(),
        "&&&&====&&%%%".into(),
        "strict=maybe".into(),
        format!("session={}", "s".repeat(30_000)),
        format!("tool=a/{}", "%41".repeat(10_000)),
        "a&".repeat(15_000),
        "open=yes&open=no&constructor=1&__proto__=2".into(),
    ]
}

#[test]
fn sf_5_no_query_and_no_name_in_a_path_breaks_an_endpoint() {
    let gateway = ApiGateway::new("sf_5_queries", PLAIN);
    let names = [
        "%00",
        "..%2f..%2fetc%2fpasswd",
        "%ff",
        "%",
        "%zz",
        "a%0d%0ab",
        &"n".repeat(20_000),
        "-1",
        "*",
        "%2F",
    ];
    let lines = TestEffort::of_this_run().cases(lines(&gateway));
    let round = || {
        for (line, _) in &lines {
            for query in queries() {
                let response =
                    ApiTestResponse::to(&admin_request(&gateway, &format!("{line}?{query}")).body("{}"));
                let shown = &query[..query.len().min(60)];
                assert!(response.status < 500, "{line}?{shown}: {response:?}");
                assert!(response.answered.header("set-cookie").is_none());
            }
        }
        for name in names {
            let shown = &name[..name.len().min(60)];
            for line in [
                format!("GET /v1/history/{name}"),
                format!("GET /v1/tools/{name}/score"),
                format!("POST /v1/calls/{name}/report"),
                format!("POST /v1/calls/{name}/heartbeat"),
                format!("POST /v1/calls/{name}/cancel"),
                format!("POST /v1/approvals/{name}"),
                format!("POST /v1/breakers/{name}"),
                format!("POST /v1/records/{name}/resolve"),
                format!("GET /v1/{name}"),
                format!("GET /page/{name}"),
                format!("GET /{name}"),
            ] {
                let response = ApiTestResponse::to(&admin_request(&gateway, &line).body("{}"));
                assert!(
                    (400..500).contains(&response.status),
                    "{} of {shown}: {response:?}",
                    &line[..line.len().min(30)]
                );
            }
        }
    };
    round();
    let before = resident(gateway.pid());
    round();
    let after = resident(gateway.pid());
    assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
    works(&gateway, "after");
    assert!(gateway.logged("panic").is_empty());
}

#[test]
fn sf_5_headers_that_cannot_be_are_refused_and_the_call_is_not_run() {
    let gateway = ApiGateway::new("sf_5_headers", PLAIN);
    let good =
        gateway.request("POST /v1/calls").body(envelope("bank/pay", &json!({ "id": "x" })).to_string());
    let mut many = good.clone();
    for number in 0..5_000 {
        many = many.and(&format!("x-{number}"), "y");
    }
    for (name, request, status) in [
        ("a header of 100 KB", good.clone().header("x-long", &"x".repeat(100_000)), 431),
        ("5,000 headers", many, 431),
        (
            "a line of 100 KB",
            good.clone().line(&format!("POST /v1/calls?{} HTTP/1.1", "x".repeat(100_000))),
            414,
        ),
        ("a key of 300 characters", good.clone().header("idempotency-key", &"k".repeat(300)), 400),
        ("a key that is empty", good.clone().header("idempotency-key", ""), 400),
        ("a key that is no text", good.clone().header("idempotency-key", "schl\u{fc}ssel\u{1}"), 400),
        ("two keys", good.clone().and("idempotency-key", "a").and("idempotency-key", "b"), 400),
        ("no host", good.clone().without("host"), 400),
        ("two hosts", good.clone().and("host", "localhost"), 400),
        ("a length that is none", good.clone().header("content-length", "many"), 400),
        ("two lengths", good.clone().and("content-length", "1").and("content-length", "40"), 400),
        (
            "pieces that are none",
            good.clone().header("transfer-encoding", "chunked").body("zz\r\nx\r\n"),
            400,
        ),
    ] {
        let answered = send(&request).unwrap_or_else(|| panic!("{name}: cut off"));
        assert_eq!(answered.status, status, "{name}: {answered:?}");
    }
    assert_eq!(gateway.count("bank", "pay x"), 0);
    works(&gateway, "after");
}

#[test]
fn sf_5_an_incomplete_request_blocks_no_client() {
    let gateway = ApiGateway::new("sf_5_half", PLAIN);
    let call = envelope("bank/pay", &json!({ "id": "x" })).to_string();
    let start_request = |text: &str| {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let head = format!(
        "POST /v1/calls HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
        gateway.address,
        call.len()
    );
    let waiting: Vec<TcpStream> = (0..30)
        .flat_map(|_| {
            [
                start_request(""),
                start_request("POST /v1"),
                start_request(&head),
                start_request(&format!("{head}{}", &call[..20])),
            ]
        })
        .collect();
    works(&gateway, "meanwhile");
    drop(waiting);
    works(&gateway, "after");
    assert_eq!(gateway.count("bank", "pay x"), 0);
}

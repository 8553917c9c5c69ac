//! Hostile clients: invalid messages.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use super::{SLACK, resident};
use crate::raw::{RawRequest, send};
use crate::world::{GatewayWorld, LISTEN, TEST_TIMEOUT, TestProcess, TestTransport, start_gateway};

/// A client that sends any bytes, and keeps the raw bytes that it receives.
struct HostileClient {
    child: TestProcess,
    transport: HostileTransport,
}

enum HostileTransport {
    Line(ChildStdin, Receiver<Vec<u8>>),
    Http(RawRequest),
}

impl HostileClient {
    fn start(world: &GatewayWorld) -> Self {
        let mut client = match world.front {
            TestTransport::Stdio => {
                let mut command = world.wrap(&[]);
                let mut child = TestProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
                let (sender, receiver) = channel();
                let (stdin, stdout) = child.streams();
                let mut out = BufReader::new(stdout);
                thread::spawn(move || {
                    let mut line = Vec::new();
                    while out.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                        if sender.send(std::mem::take(&mut line)).is_err() {
                            return;
                        }
                    }
                });
                Self { transport: HostileTransport::Line(stdin, receiver), child }
            }
            TestTransport::Http => {
                let (child, address) = start_gateway(&mut world.wrap(&LISTEN));
                Self { child, transport: HostileTransport::Http(RawRequest::to(address)) }
            }
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        });
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        match &mut client.transport {
            HostileTransport::Line(..) => assert!(!client.request(message.to_string().as_bytes()).is_empty()),
            HostileTransport::Http(request) => {
                let answer = send(&request.clone().body(message.to_string())).unwrap_or_else(|| {
                    panic!("no answer; the gateway ended: {:?}", client.child.exit_status())
                });
                *request = request.clone().header("mcp-session-id", answer.header("mcp-session-id").unwrap());
            }
        }
        client.send(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client
    }

    /// Sends bytes that have no answer.
    fn send(&mut self, bytes: &[u8]) {
        match &mut self.transport {
            HostileTransport::Line(stdin, _) => stdin.write_all(&[bytes, b"\n"].concat()).unwrap(),
            HostileTransport::Http(request) => drop(send(&request.clone().body(bytes))),
        }
    }

    /// Sends bytes, and returns the answer.
    fn request(&mut self, bytes: &[u8]) -> Vec<u8> {
        match &mut self.transport {
            HostileTransport::Line(stdin, receiver) => {
                stdin.write_all(&[bytes, b"\n"].concat()).unwrap();
                let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
                receiver.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| panic!("no answer to {shown}"))
            }
            HostileTransport::Http(request) => send(&request.clone().body(bytes)).expect("an answer").body,
        }
    }

    /// Returns the same as JSON, if it is valid.
    fn answer(&mut self, bytes: &[u8]) -> Value {
        let answer = self.request(bytes);
        serde_json::from_slice(&answer).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&answer)))
    }

    /// Checks that a valid call works.
    fn works(&mut self, number: usize) {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":"good","method":"tools/call","params":{{"name":"pay","arguments":{{"id":"good {number}"}}}}}}"#
        );
        let answer = self.answer(call.as_bytes());
        assert_eq!(answer["result"]["content"][0]["text"], format!("pay good {number}, run 1"), "{answer}");
    }
}

/// Returns invalid messages, with the error code and the id of the answer.
fn no_messages() -> Vec<(&'static str, Vec<u8>, i64, Value)> {
    let text = |text: &str| text.as_bytes().to_vec();
    let deep = |open: &str, close: &str| {
        let (open, close) = (open.repeat(10_000), close.repeat(10_000));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","arguments":{{"id":{open}1{close}}}}}}}"#)
            .into_bytes()
    };
    let bytes =
        |before: &str, middle: &[u8], after: &str| [before.as_bytes(), middle, after.as_bytes()].concat();
    let null = Value::Null;
    let mut all = vec![
        ("words", text("hello?"), -32700, null.clone()),
        (
            "truncated",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"#),
            -32700,
            null.clone(),
        ),
        (
            "two messages",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}"#),
            -32700,
            null.clone(),
        ),
        ("a batch", text(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#), -32600, null.clone()),
        ("an empty batch", text("[]"), -32600, null.clone()),
        ("a number", text("17"), -32600, null.clone()),
        ("null", text("null"), -32600, null.clone()),
        ("no version", text(r#"{"id":1,"method":"ping"}"#), -32600, json!(1)),
        ("another version", text(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#), -32600, json!(1)),
        ("a version that is a number", text(r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#), -32600, json!(1)),
        (
            "an id that is an object",
            text(r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#),
            -32600,
            null.clone(),
        ),
        ("an id that is a list", text(r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#), -32600, null.clone()),
        ("an id that is true", text(r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#), -32600, null.clone()),
        ("an id that is null", text(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), -32600, null.clone()),
        ("a method that is a number", text(r#"{"jsonrpc":"2.0","id":1,"method":7}"#), -32600, json!(1)),
        ("a method that is null", text(r#"{"jsonrpc":"2.0","id":1,"method":null}"#), -32600, json!(1)),
        ("a method that is an object", text(r#"{"jsonrpc":"2.0","id":"x","method":{}}"#), -32600, json!("x")),
        ("neither method nor answer", text(r#"{"jsonrpc":"2.0","id":1}"#), -32600, json!(1)),
        (
            "a request that is an answer too",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#),
            -32600,
            json!(1),
        ),
        (
            "params that are a number",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}"#),
            -32600,
            json!(1),
        ),
        (
            "params that are a text",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"x"}"#),
            -32600,
            json!(1),
        ),
        ("two ids", text(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#), -32600, null.clone()),
        (
            "two methods",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#),
            -32600,
            null.clone(),
        ),
        (
            "two methods, one escaped",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/list"}"#),
            -32600,
            null.clone(),
        ),
        (
            "two params",
            text(
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"},"params":{"name":"look"}}"#,
            ),
            -32600,
            null.clone(),
        ),
        (
            "two names",
            text(
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","name":"pay","arguments":{"id":"x"}}}"#,
            ),
            -32600,
            null.clone(),
        ),
        (
            "two arguments",
            text(
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"id":"x"},"arguments":{"id":"y"}}}"#,
            ),
            -32600,
            null.clone(),
        ),
        ("lists 10,000 deep", deep("[", "]"), -32600, null.clone()),
        ("objects 10,000 deep", deep("{\"a\":", "}"), -32600, null.clone()),
        (
            "lists that are never closed",
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}"#, "[".repeat(10_000)).into_bytes(),
            -32600,
            null.clone(),
        ),
        (
            "no UTF-8 in a text",
            bytes(r#"{"jsonrpc":"2.0","id":1,"method":"x"#, &[0xff, 0xfe], r#""}"#),
            -32700,
            null.clone(),
        ),
        (
            "half a character",
            bytes(r#"{"jsonrpc":"2.0","id":"#, &[0x22, 0xe2, 0x82, 0x22], r#","method":"ping"}"#),
            -32700,
            null.clone(),
        ),
        (
            "a surrogate in UTF-8",
            bytes(r#"{"jsonrpc":"2.0","id":1,"method":""#, &[0xed, 0xa0, 0x80], r#""}"#),
            -32700,
            null.clone(),
        ),
        (
            "a NUL in a text",
            bytes(r#"{"jsonrpc":"2.0","id":1,"method":"pi"#, &[0], r#"ng"}"#),
            -32700,
            null.clone(),
        ),
        (
            "a NUL instead of white space",
            bytes(r#"{"jsonrpc":"2.0","#, &[0], r#""id":1,"method":"ping"}"#),
            -32700,
            null.clone(),
        ),
        ("a number that is none", text(r#"{"jsonrpc":"2.0","id":01,"method":"ping"}"#), -32700, null.clone()),
        ("not a number", text(r#"{"jsonrpc":"2.0","id":NaN,"method":"ping"}"#), -32700, null.clone()),
    ];
    all.push((
        "a byte order mark",
        [&[0xef, 0xbb, 0xbf], &br#"{"jsonrpc":"2.0","id":1,"method":"x"}"#[..]].concat(),
        -32700,
        null,
    ));
    all
}

#[test]
fn sf_5_an_invalid_message_gets_a_json_rpc_error_and_the_next_call_works() {
    GatewayWorld::each("sf_5_no_message", "", |world| {
        let mut client = HostileClient::start(&world);
        client.works(0);
        let cases = no_messages();
        for (number, (name, bytes, code, id)) in cases.iter().enumerate() {
            let answer = client.answer(bytes);
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), id), "{name}: {answer}");
            assert_eq!(answer["jsonrpc"], "2.0", "{name}");
            let words = answer["error"]["message"].as_str().unwrap_or_default();
            assert!((1..1_000).contains(&words.len()), "{name}: {words}");
            client.works(number + 1);
        }
        assert!(
            world.ledger().iter().all(|line| !line.ends_with(" x") && !line.ends_with(" y")),
            "{:?}",
            world.ledger()
        );
        // Nothing of it is kept.
        let before = resident(client.child.id());
        for _ in 0..20 {
            for (_, bytes, _, _) in &cases {
                client.request(bytes);
            }
        }
        let after = resident(client.child.id());
        assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
    });
}

#[test]
fn sf_5_an_unusual_valid_message_is_forwarded_and_answered_under_its_own_id() {
    GatewayWorld::each("sf_5_odd", "", |world| {
        let mut client = HostileClient::start(&world);
        // Ids come back as they were written, however large they are.
        for id in [
            "123456789012345678901234567890",
            "-9223372036854775809",
            "1e400",
            "0.1000000000000000055511151231257827",
            "-0",
            r#""""#,
            r#""\u0000""#,
            r#""\ud83d\ude00""#,
            r#""\ud800""#,
            &format!("\"{}\"", "x".repeat(100_000)),
        ] {
            for method in ["ping", "test/echo", "tools/list", "vendor/none"] {
                let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#);
                let answer = String::from_utf8(client.request(request.as_bytes())).unwrap();
                assert!(
                    answer.contains(&format!(r#""id":{id},"#)) || answer.contains(&format!(r#""id":{id}}}"#)),
                    "{method}: {answer}"
                );
            }
        }
        // Wrong types in the fields of a call: the server refuses them in its own words, or the gateway does.
        for (number, params) in [
            r#"{}"#,
            r#"{"name":7}"#,
            r#"{"name":null,"arguments":{}}"#,
            r#"{"name":""}"#,
            r#"{"name":"\u0000"}"#,
            r#"{"name":["pay"],"arguments":{"id":"x"}}"#,
            r#"{"name":"pay","arguments":[]}"#,
            r#"{"name":"pay","arguments":"x"}"#,
            r#"{"name":"pay","arguments":null}"#,
            r#"{"name":"pay","arguments":7}"#,
            r#"{"name":"pay","arguments":{},"_meta":7}"#,
            r#"{"name":"pay","arguments":{},"_meta":[]}"#,
            r#"{"name":"pay","arguments":{},"_meta":{"progressToken":{}}}"#,
            r#"{"name":"pay","arguments":{},"_meta":{"dev.steadfast/idempotency-key":""}}"#,
            r#"{"name":"pay","arguments":{},"_meta":{"dev.steadfast/session":7,"dev.steadfast/turn":{}}}"#,
            r#"[]"#,
            r#"["pay"]"#,
        ]
        .iter()
        .enumerate()
        {
            let request =
                format!(r#"{{"jsonrpc":"2.0","id":"odd {number}","method":"tools/call","params":{params}}}"#);
            let answer = client.answer(request.as_bytes());
            assert_eq!(answer["id"], format!("odd {number}"), "{params}: {answer}");
            assert!(answer["error"].is_object() || answer["result"]["isError"] == true, "{params}: {answer}");
            client.works(number);
        }
        // Duplicate names that do not matter for routing are left to the tool, and so are numbers of any size.
        for arguments in [
            r#"{"id":"a","x":1,"x":2}"#,
            r#"{"id":"b","x":123456789012345678901234567890.5e-10}"#,
            r#"{"id":"c","x":"\u0000"}"#,
            &format!(r#"{{"id":"d","x":{}1{}}}"#, "[".repeat(50), "]".repeat(50)),
        ] {
            let request = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"look","arguments":{arguments}}}}}"#
            );
            let answer = client.answer(request.as_bytes());
            assert!(
                answer["id"] == 1 && (answer["result"].is_object() || answer["error"].is_object()),
                "{answer}"
            );
        }
        // Notifications and unexpected answers change nothing.
        for message in [
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":[]}}"#,
            r#"{"jsonrpc":"2.0","method":""}"#,
            r#"{"jsonrpc":"2.0","id":1e400,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":4,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{}}"#,
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":"y","message":7}}"#,
        ] {
            client.send(message.as_bytes());
        }
        client.works(1_000);
    });
}

/// These were refused as an envelope, at a byte of it, although the client had sent none. Servers in some languages
/// accept them.
#[test]
fn sf_5_arguments_that_can_be_read_in_two_ways_are_refused_with_the_place_and_the_rule() {
    GatewayWorld::each("sf_5_two_ways", "", |world| {
        let mut client = HostileClient::start(&world);
        for (arguments, place, rule) in [
            (r#"{"id":"x","a":1,"id":"y"}"#, "column 17", r#"duplicate name "id" in one object"#),
            (r#"{"id":"x","a":"\ud800"}"#, "column 17", "half of a surrogate pair stands alone"),
        ] {
            let request = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","arguments":{arguments}}}}}"#
            );
            let answer =
                client.answer(request.as_bytes()).to_string().replace("\\\\", "\\").replace("\\\"", "\"");
            for part in [format!("the arguments at line 1, {place}: "), rule.to_owned()] {
                assert!(answer.contains(&part), "{part} in {answer}");
            }
        }
        assert_eq!(world.count("pay x") + world.count("pay y"), 0);
        client.works(0);
    });
}

/// These were refused beyond 64 levels, although every server that we know accepts them: bare and through the gateway they are
/// one call.
#[test]
fn sf_5_deeply_nested_arguments_reach_the_tool_as_without_the_gateway() {
    let nested = |levels: usize| {
        // The arguments themselves are the first level.
        let deep = format!("{}1{}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","arguments":{{"id":"deep","x":{deep}}}}}}}"#
        )
    };
    GatewayWorld::each("sf_5_deep", "", |world| {
        let mut client = HostileClient::start(&world);
        for (done, levels) in (1..).zip([64, 65, 100, 125]) {
            let answer = client.answer(nested(levels).as_bytes());
            assert!(!answer["result"]["isError"].as_bool().unwrap_or_default(), "{levels}: {answer}");
            assert_eq!(world.count("pay deep"), done, "{levels}: {answer}");
        }
        let refused = client.answer(nested(127).as_bytes());
        assert!(
            refused["error"]["message"].as_str().unwrap().contains("more than 128 levels deep"),
            "{refused}"
        );
        assert_eq!(world.count("pay deep"), 4);
        client.works(0);
    });
}

#[test]
fn sf_5_a_message_that_is_too_long_is_refused_and_its_bytes_are_not_stored() {
    GatewayWorld::each("sf_5_too_long", "", |world| {
        let mut client = HostileClient::start(&world);
        client.works(0);
        let size = match world.front {
            TestTransport::Stdio => 65 << 20,
            TestTransport::Http => 17 << 20,
        };
        let before = resident(client.child.id());
        for number in 1..=2 {
            let long = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","arguments":{{"id":"{}"}}}}}}"#,
                "x".repeat(size)
            );
            let answer = client.answer(long.as_bytes());
            // Over HTTP it is refused before it is read.
            let id = if world.front == TestTransport::Stdio { json!(1) } else { Value::Null };
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &id), "{answer}");
            client.works(number);
        }
        let after = resident(client.child.id());
        assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
        assert_eq!(world.ledger().iter().filter(|line| line.len() > 100).count(), 0);
    });
}

//! Hostile servers: invalid answers, and answers to no request.

use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;

use super::{SLACK, resident};
use crate::client::{ToolResponse, keyed};
use crate::world::{GatewayWorld, TestTransport};

/// Returns lines that a server writes before it answers, and that must not do any harm.
fn noise() -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    let hex = |bytes: &[u8]| bytes.iter().fold("hex:".to_owned(), |all, byte| format!("{all}{byte:02x}"));
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    vec![
        ("words", text("Listening on port 3000")),
        ("half a message", text(r#"{"jsonrpc":"2.0","id":$ID,"result":{"#)),
        ("a batch", text(r#"[{"jsonrpc":"2.0","id":$ID,"result":{}}]"#)),
        ("a number", text("7")),
        ("an answer 10,000 deep", deep),
        ("no UTF-8", hex(&[0xff, 0xfe, b'{', 0x80, b'}'])),
        ("a NUL", hex(b"{\"jsonrpc\":\"2.0\",\0\"id\":1,\"result\":{}}")),
        ("two ids", text(r#"{"jsonrpc":"2.0","id":$ID,"id":$ID,"result":{}}"#)),
        ("two results", text(r#"{"jsonrpc":"2.0","id":$ID,"result":{},"result":{}}"#)),
        ("an answer to nobody", text(r#"{"jsonrpc":"2.0","id":999999,"result":{"content":[]}}"#)),
        ("an answer to a text", text(r#"{"jsonrpc":"2.0","id":"no $ID","result":{"content":[]}}"#)),
        ("an answer to a number that is too large", text(r#"{"jsonrpc":"2.0","id":1e400,"result":{}}"#)),
        ("an answer to a negative number", text(r#"{"jsonrpc":"2.0","id":-1,"result":{}}"#)),
        (
            "an error to nobody",
            text(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}"#),
        ),
        ("an answer to an object", text(r#"{"jsonrpc":"2.0","id":{},"result":{}}"#)),
        ("a request with an id that is none", text(r#"{"jsonrpc":"2.0","id":[],"method":"roots/list"}"#)),
        (
            "a broken question under the id of ours",
            text(r#"{"jsonrpc":"2.0","id":$ID,"method":"roots/list","params":7}"#),
        ),
        ("a method that is none", text(r#"{"jsonrpc":"2.0","method":7}"#)),
        ("params that are none", text(r#"{"jsonrpc":"2.0","method":"notifications/message","params":"x"}"#)),
        (
            "progress of nothing",
            text(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345}}"#),
        ),
        (
            "progress of an object",
            text(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{}}}"#),
        ),
        (
            "a cancel of nothing",
            text(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}"#),
        ),
        (
            "lone surrogates",
            text(
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\ud800"}}"#,
            ),
        ),
    ]
}

#[test]
fn sf_5_other_output_of_a_server_does_no_harm() {
    GatewayWorld::each("sf_5_noise", "", |world| {
        let mut client = world.client();
        // Some lines reach the client, because the gateway does not read them.
        for (number, (name, line)) in noise().into_iter().enumerate() {
            // The client of these tests reads texts, and cannot read this one.
            if name == "lone surrogates" {
                continue;
            }
            let arguments = json!({ "id": number.to_string(), "fault": "before", "lines": [line] });
            let response = client.call("pay", arguments);
            assert_eq!((response.text, response.is_error), (format!("pay {number}, run 1"), false), "{name}");
        }
        let before = resident(client.pid());
        let lines: Vec<String> = noise()
            .into_iter()
            .filter(|(name, _)| *name != "lone surrogates")
            .map(|(_, line)| line)
            .collect();
        for number in 0..20 {
            let arguments = json!({ "id": format!("again {number}"), "fault": "before", "lines": lines });
            assert_eq!(client.call("pay", arguments).text, format!("pay again {number}, run 1"));
        }
        let after = resident(client.pid());
        assert!(after < before + SLACK, "{before} KiB, then {after} KiB");
        assert_eq!(world.count("initialize"), 1, "the server goes on too");
    });
}

/// A write with an unreadable answer may have happened. That is reported at once, and the call is not run again:
/// neither by the gateway, nor when its client sends it again.
#[test]
fn sf_5_an_invalid_answer_is_reported_at_once_and_its_call_is_not_run_again() {
    // No timeout comes before the timeout of the test.
    GatewayWorld::each(
        "sf_5_no_answer",
        concat!(
            "timeout = \"10m\"\nanswer_by = \"none\"\nguard.mode = \"off\"\ntrust.mode = \"off\"\ndedupe.after_telling = \"10m\"\n",
            short_settle_times!()
        ),
        |world| {
            let mut client = world.client();
            for (number, answer) in no_answers(world.back()).into_iter().enumerate() {
                for (kind, meta) in [
                    ("plain", json!({})),
                    ("keyed", keyed(&format!("key {number}"))),
                    ("resent", json!({ "claudecode/toolUseId": format!("toolu_{number}") })),
                ] {
                    let mut arguments = answer.clone();
                    arguments["id"] = json!(format!("{number} {kind}"));
                    arguments["times"] = json!(1);
                    let response = client.call_with("pay", arguments.clone(), meta.clone());
                    assert_eq!(
                        (response.is_error, response.code.as_deref()),
                        (true, Some("outcome_unknown")),
                        "{arguments}: {response:?}"
                    );
                    if kind != "plain" {
                        let again = client.call_with("pay", arguments.clone(), meta);
                        assert_eq!(again.code.as_deref(), Some("outcome_unknown"), "{arguments}: {again:?}");
                    }
                    assert_eq!(world.count(&format!("pay {number} {kind}")), 1, "{arguments}");
                }
                // A read does no harm, whatever came of it.
                let mut arguments = answer;
                arguments["id"] = json!(number.to_string());
                let response = client.call("look", arguments.clone());
                assert!(
                    response.is_error && response.code.as_deref() != Some("outcome_unknown"),
                    "{arguments}: {response:?}"
                );
            }
            assert_eq!(client.call("pay", json!({ "id": "good" })).text, "pay good, run 1");
            client.request("ping", json!({}));
        },
    );
}

/// Returns invalid answers of a server to a call.
fn no_answers(back: TestTransport) -> Vec<Value> {
    let lines = [
        r#"{"jsonrpc":"2.0","id":$ID}"#,
        r#"{"id":$ID,"result":{"content":[]}}"#,
        r#"{"jsonrpc":"1.0","id":$ID,"result":{"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"error":7}"#,
    ];
    let lines = lines.iter().map(|line| json!({ "fault": "instead", "lines": [line] }));
    // The second is a success page of a proxy, the last one the answer to another request.
    let bodies = [
        ("202 Accepted", "text/plain", ""),
        ("200 OK", "text/html", "<html><body>Please log in</body></html>"),
        ("200 OK", "application/json", "<html><body>Please log in</body></html>"),
        ("200 OK", "application/json", r#"{"jsonrpc":"2.0","id":$ID,"result":{"#),
        ("200 OK", "application/json", r#"{"jsonrpc":"2.0","id":"another $ID","result":{"content":[]}}"#),
    ];
    let bodies = bodies
        .iter()
        .filter(|_| back == TestTransport::Http)
        .map(|(status, kind, text)| json!({ "fault": "body", "status": status, "type": kind, "text": text }));
    lines.chain(bodies).collect()
}

/// Size beyond the maximum length of a line.
const HUGE: usize = 70 << 20;

/// A line of 70 MB was dropped, and its call was reported as still running for ever.
#[test]
fn sf_5_an_answer_beyond_the_hard_limit_is_reported_at_once_with_its_size_and_its_call_is_not_run_again() {
    for both in TestTransport::cases() {
        // No timeout comes before the timeout of the test.
        let config = "stuck_after = \"10m\"\nanswer_by = \"none\"\nguard.mode = \"off\"\n";
        let world = GatewayWorld::of("sf_5_huge", config, both, both);
        let mut client = world.client();
        let body = (both == TestTransport::Http).then_some("body");
        let places = TestEffort::of_this_run().cases(vec!["first", "last", "nowhere"]);
        for place in places.into_iter().chain(body) {
            let arguments = json!({ "id": place, "fault": "huge", "size": HUGE, "text": place });
            let response = client.call_keyed("pay", arguments.clone(), place);
            assert_eq!(
                (response.is_error, response.code.as_deref()),
                (true, Some("result_too_large")),
                "{place}: {response:?}"
            );
            assert!(response.text.contains("it has 734003"), "{place}: {response:?}");
            assert!(response.text.contains("the limit is 67108864"), "{place}: {response:?}");
            assert_eq!(response.gateway_meta["recorded"], true, "{place}: {response:?}");
            let again = client.call_keyed("pay", arguments, place);
            assert_eq!(again.code.as_deref(), Some("result_not_kept"), "{place}: {again:?}");
            assert_eq!(world.count(&format!("pay {place}")), 1, "{place}");
        }
        let arguments = json!({ "id": "read", "fault": "huge", "size": HUGE });
        assert_eq!(client.call("look", arguments).code.as_deref(), Some("result_too_large"));
        assert_eq!(client.call("pay", json!({ "id": "good" })).text, "pay good, run 1");
        assert_eq!(world.count("initialize"), 1, "the server goes on too");
    }
}

#[test]
fn sf_5_a_huge_answer_without_an_id_is_not_matched_to_another_call() {
    let config = "stuck_after = \"10m\"\n";
    let world = GatewayWorld::of("sf_5_huge_of_two", config, TestTransport::Stdio, TestTransport::Stdio);
    let mut client = world.client();
    let gate = world.set_behavior("gate");
    let waits = client.send_call("pay", json!({ "id": "waits", "fault": "gate" }));
    world.until("pay waits", 1);
    client.send_call("pay", json!({ "id": "lost", "fault": "huge", "size": HUGE, "text": "nowhere" }));
    world.logged_times("server.line_too_long", 1);
    std::fs::remove_file(gate).unwrap();
    assert_eq!(ToolResponse::of(&client.answer(waits)).text, "pay waits, run 1");
}

#[test]
fn sf_5_a_huge_line_of_a_client_is_refused_under_its_own_id() {
    let world = GatewayWorld::of("sf_5_huge_client", "", TestTransport::Stdio, TestTransport::Stdio);
    let mut client = world.client();
    let id = client.send_call("pay", json!({ "id": "x".repeat(HUGE) }));
    let answer = client.answer(id);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("it has 734"), "{answer}");
    assert_eq!(client.call("pay", json!({ "id": "good" })).text, "pay good, run 1");
}

#[test]
fn sf_5_an_answer_of_wrong_types_arrives_as_it_was_given() {
    GatewayWorld::each("sf_5_types", "guard.mode = \"off\"\ntrust.mode = \"off\"\n", |world| {
        let mut client = world.client();
        let results = [
            json!({}),
            json!({ "content": 7 }),
            json!({ "content": [7, null, { "type": 8 }] }),
            json!({ "content": [], "isError": "yes" }),
            json!({ "content": null, "isError": null, "structuredContent": [] }),
            json!({ "_meta": 7 }),
            json!({ "_meta": { "dev.steadfast/result": 7 } }),
            json!(7),
            json!(null),
            json!([]),
            json!("x"),
        ];
        for (number, result) in results.iter().enumerate() {
            let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
            let arguments = json!({ "id": number.to_string(), "fault": "instead", "lines": [line] });
            let id = client.send_call("pay", arguments);
            let answer = client.answer(id);
            assert_eq!(answer.get("result"), Some(result), "{answer}");
        }
        for (number, error) in [
            json!({}),
            json!({ "code": "x", "message": 7 }),
            json!({ "code": 1.5, "message": null, "data": 7 }),
            json!({ "isError": true, "content": 7 }),
        ]
        .iter()
        .enumerate()
        {
            let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{error}}}"#);
            let arguments = json!({ "id": format!("error {number}"), "fault": "instead", "lines": [line] });
            let id = client.send_call("draw", arguments);
            let answer = client.answer(id);
            assert!(answer["error"].is_object() || ToolResponse::of(&answer).is_error, "{error}: {answer}");
        }
        let text = Value::String("x".repeat(256 << 10));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[{{"type":"text","text":{text}}}]}}}}"#
        );
        let response = client.call("pay", json!({ "id": "long", "fault": "instead", "lines": [line] }));
        assert_eq!(response.text.len(), 256 << 10);
    });
}

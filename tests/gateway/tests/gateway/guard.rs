//! The loop guard stops a model that repeats failing calls, and never interferes with honest work (TG-1 to TG-7, TG-9).

use std::fs;

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::raw::{PersistentConnection, RawRequest};
use crate::world::{GatewayWorld, TestTransport};

/// Makes a call that names its turn.
fn in_turn(client: &mut McpTestClient, turn: &str, tool: &str, arguments: Value) -> ToolResponse {
    client.call_with(tool, arguments, json!({ "dev.steadfast/turn": turn }))
}

/// Returns arguments of a failure that equals no other one.
fn fails(id: &str) -> Value {
    json!({ "id": id, "fault": "error", "text": format!("no such thing as {id}") })
}

#[test]
fn tg_1_the_second_identical_failure_is_reported_as_a_loop_and_the_third_is_not_run() {
    GatewayWorld::each("tg_1_identical", "", |world| {
        let mut client = world.client();
        let first = client.call("look", json!({}));
        assert!(first.is_error && first.text.contains("[NON-RETRYABLE]"), "{first:?}");
        assert!(
            first.text.contains("missing required property 'id'"),
            "the server's own words stay: {first:?}"
        );
        assert!(!first.text.contains("[LOOP DETECTED]"), "{first:?}");
        let second = client.call("look", json!({}));
        for words in [
            "[LOOP DETECTED]",
            "\"look\"",
            "2 times",
            "identical arguments",
            "Do NOT retry",
            "different approach",
        ] {
            assert!(second.text.contains(words), "{words}: {second:?}");
        }
        let third = client.call("look", json!({}));
        assert_eq!((third.is_error, third.code.as_deref()), (true, Some("loop_detected")), "{third:?}");
        assert!(third.text.contains("[LOOP DETECTED]"), "{third:?}");
        assert_eq!(world.count("refused look"), 2, "{:?}", world.ledger());
        // Once corrected, it runs.
        assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1");
    });
}

/// A client with tracing in which each call is the root of a trace. The trace does not identify turns.
#[test]
fn tg_1_a_loop_is_detected_although_each_call_has_a_trace_of_its_own() {
    GatewayWorld::each("tg_1_traced", "", |world| {
        let mut client = world.client();
        let responses: Vec<_> = (0..12)
            .map(|number| {
                let trace = format!("00-{number:032x}-b7ad6b7169203331-01");
                client.call_with("look", json!({}), json!({ "traceparent": trace }))
            })
            .collect();
        assert!(responses[1].text.contains("[LOOP DETECTED]"), "{:?}", responses[1]);
        let is_stop = |code: &str| ["loop_detected", "tool_error_limit"].contains(&code);
        assert!(
            responses[2..].iter().all(|response| response.code.as_deref().is_some_and(is_stop)),
            "{responses:?}"
        );
        assert_eq!(world.count("refused look"), 2, "{:?}", world.ledger());
    });
}

#[test]
fn tg_1_a_tool_that_its_server_removes_and_adds_again_is_no_longer_a_loop() {
    GatewayWorld::each("tg_1_brought_back", "trust.mode = \"off\"\n", |world| {
        let names = world.set_behavior("names");
        let list = |client: &mut McpTestClient| client.request("tools/list", json!({}));
        let is_listed = |listed: &Value| {
            listed["result"]["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "extra")
        };
        fs::write(&names, "extra\n").unwrap();
        let mut client = world.client();
        for _ in 0..2 {
            assert!(client.call("extra", json!({})).is_error);
        }
        assert_eq!(client.call("extra", json!({})).code.as_deref(), Some("loop_detected"));
        // Listed again, the tool is the same as before.
        assert!(is_listed(&list(&mut client)));
        assert_eq!(client.call("extra", json!({})).code.as_deref(), Some("loop_detected"));
        fs::write(&names, "").unwrap();
        assert!(!is_listed(&list(&mut client)));
        fs::write(&names, "extra\n").unwrap();
        assert!(is_listed(&list(&mut client)));
        let response = client.call("extra", json!({}));
        assert!(response.is_error && response.code.as_deref() != Some("loop_detected"), "{response:?}");
        assert_eq!(world.count("refused extra"), 3, "{:?}", world.ledger());
    });
}

#[test]
fn tg_2_the_fifth_failure_of_a_turn_stops_its_tools() {
    GatewayWorld::each("tg_2_cap", "trust.mode = \"off\"\n", |world| {
        let mut client = world.client();
        let mut responses = Vec::new();
        for tool in ["pay", "look", "draw", "fold", "send"] {
            responses.push(in_turn(&mut client, "1", tool, fails(tool)));
        }
        assert!(
            responses[..4].iter().all(|response| !response.text.contains("[TOOL ERROR LIMIT]")),
            "{responses:?}"
        );
        assert!(responses[4].text.contains("[TOOL ERROR LIMIT] 5"), "{:?}", responses[4]);
        let refused = in_turn(&mut client, "1", "sort", json!({ "id": "good" }));
        assert_eq!(
            (refused.is_error, refused.code.as_deref()),
            (true, Some("tool_error_limit")),
            "{refused:?}"
        );
        assert!(refused.text.contains("[TOOL ERROR LIMIT]"), "{refused:?}");
        assert_eq!(world.count("sort good"), 0);
        client.request("ping", json!({}));
    });
}

#[test]
fn tg_3_successes_do_not_count_towards_any_limit() {
    GatewayWorld::each("tg_3_mixed", "trust.mode = \"off\"\n", |world| {
        let mut client = world.client();
        for number in 0..4 {
            for good in 0..5 {
                let response =
                    in_turn(&mut client, "1", "look", json!({ "id": format!("good {number} {good}") }));
                assert!(!response.is_error, "{response:?}");
            }
            let response = in_turn(&mut client, "1", "look", fails(&number.to_string()));
            assert!(response.is_error && !response.text.contains("[TOOL ERROR LIMIT]"), "{response:?}");
        }
        assert_eq!(in_turn(&mut client, "1", "pay", json!({ "id": "a" })).text, "pay a, run 1");
        assert!(in_turn(&mut client, "1", "draw", fails("last")).text.contains("[TOOL ERROR LIMIT] 5"));
    });
}

#[test]
fn tg_4_a_missing_parameter_is_not_worth_a_retry_and_a_timeout_is() {
    GatewayWorld::each("tg_4_classified", "retry.base = \"1ms\"\n", |world| {
        let mut client = world.client();
        for (number, text) in [
            "Missing required parameter: path",
            "Missing parameters for edit: oldText",
            "Expected string but received number",
            "Validation failed for tool \"read\"",
        ]
        .into_iter()
        .enumerate()
        {
            let id = format!("bad {number}");
            let response = client.call("look", json!({ "id": id, "fault": "error", "text": text }));
            assert!(
                response.text.contains(text) && response.text.contains("[NON-RETRYABLE]"),
                "{response:?}"
            );
            assert_eq!(world.count(&format!("look {id}")), 1);
            client.call("sort", json!({ "id": id }));
        }
        let slow = json!({ "id": "slow", "fault": "error", "text": "request timed out", "times": 2 });
        let response = client.call("look", slow);
        assert_eq!((response.text.as_str(), response.is_error), ("look slow, run 3", false), "{response:?}");
        let never = json!({ "id": "never", "fault": "error", "text": "ETIMEDOUT: request timed out" });
        let response = client.call("look", never);
        assert!(response.is_error && !response.text.contains("[NON-RETRYABLE]"), "{response:?}");
        assert!(world.count("look never") > 1);
    });
}

#[test]
fn tg_5_the_model_behind_a_malformed_call_is_named() {
    GatewayWorld::each("tg_5_named", "log.malformed_calls = \"malformed.jsonl\"\n", |world| {
        let mut client = world.client();
        client.call_with("look", json!({}), json!({ "claudecode/toolUseId": "toolu_01A" }));
        client.call_with("pay", json!({ "a": "hunter2" }), json!({ "callId": "call_9f", "threadId": "t" }));
        client.call_with(
            "draw",
            json!({}),
            json!({ "dev.steadfast/model": "minimax-m2.5", "claudecode/toolUseId": "toolu_01B" }),
        );
        client.call("fold", json!({}));
        client.call("nothing", json!({}));
        assert!(
            !client.call("look", json!({ "id": "a" })).is_error,
            "of what is well formed nothing is said"
        );
        let path = world.folder().join("malformed.jsonl");
        let read = || -> Vec<Value> {
            let text = fs::read_to_string(&path).unwrap_or_default();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        crate::world::wait(|| read().len() >= 5, || format!("five lines: {:?}", read()));
        let named: Vec<_> = read()
            .iter()
            .map(|line| {
                [&line["tool"], &line["model"], &line["error_type"]]
                    .map(|field| field.as_str().unwrap().to_owned())
            })
            .collect();
        let expected = [
            ["look", "anthropic", "invalid_arguments"],
            ["pay", "fireworks/openai-compat", "invalid_arguments"],
            ["draw", "minimax-m2.5", "invalid_arguments"],
            ["fold", "unknown", "invalid_arguments"],
            ["nothing", "unknown", "unknown_tool"],
        ];
        assert_eq!(named, expected);
        assert!(read().iter().all(|line| line["timestamp"].is_string() && line["arguments"].is_string()));
    });
}

#[test]
fn tg_6_a_new_turn_starts_counting_from_zero() {
    GatewayWorld::each("tg_6_turns", "trust.mode = \"off\"\n", |world| {
        let mut client = world.client();
        for turn in ["1", "2", "3"] {
            for number in 0..5 {
                let response = in_turn(&mut client, turn, "look", fails(&format!("{turn} {number}")));
                assert_eq!(
                    response.text.contains("[TOOL ERROR LIMIT]"),
                    number == 4,
                    "{turn} {number}: {response:?}"
                );
            }
            let refused = in_turn(&mut client, turn, "look", json!({ "id": "good" }));
            assert_eq!(refused.code.as_deref(), Some("tool_error_limit"), "{refused:?}");
        }
        assert_eq!(in_turn(&mut client, "4", "look", json!({ "id": "good" })).text, "look good, run 1");
        // One failure in each of two turns is no loop that would be refused.
        for turn in ["5", "6", "7"] {
            let response = in_turn(&mut client, turn, "draw", fails("same"));
            assert_ne!(response.code.as_deref(), Some("loop_detected"), "{turn}: {response:?}");
        }
    });
}

#[test]
fn tg_7_limits_of_the_operator_are_the_ones_that_count() {
    GatewayWorld::each(
        "tg_7_limits",
        "[guard]\nidentical = 3\nper_turn = 4\n[trust]\nmode = \"off\"\n",
        |world| {
            let mut client = world.client();
            let mut responses: Vec<_> =
                (0..3).map(|_| in_turn(&mut client, "1", "look", json!({}))).collect();
            assert!(
                !responses[1].text.contains("[LOOP DETECTED]") && responses[2].text.contains("3 times"),
                "{responses:?}"
            );
            responses.push(in_turn(&mut client, "1", "draw", fails("a")));
            assert!(responses[3].text.contains("[TOOL ERROR LIMIT] 4"), "{responses:?}");
            assert_eq!(
                in_turn(&mut client, "1", "pay", json!({ "id": "a" })).code.as_deref(),
                Some("tool_error_limit")
            );
        },
    );
    let off = GatewayWorld::new("tg_5_off");
    fs::write(off.folder().join("steadfast.toml"), "guard.mode = \"off\"\n").unwrap();
    let mut client = off.client();
    let mut bare = off.bare();
    for _ in 0..12 {
        let params = json!({ "name": "look", "arguments": {} });
        let through_gateway = client.request("tools/call", params.clone());
        assert_eq!(through_gateway["result"], bare.request("tools/call", params)["result"]);
    }
}

/// A step of honest work: a tool, its arguments, and its `_meta`.
type WorkStep = (&'static str, Value, Value);

fn good(tool: &'static str, id: &str) -> WorkStep {
    (tool, json!({ "id": id }), json!({}))
}

/// Returns a call that fails until it was made this often.
fn failing(tool: &'static str, id: &str, text: &str, times: u32) -> WorkStep {
    (tool, json!({ "id": id, "fault": "error", "text": text, "times": times }), json!({}))
}

fn of_turn((tool, arguments, _): WorkStep, turn: u32) -> WorkStep {
    (tool, arguments, json!({ "dev.steadfast/turn": turn.to_string() }))
}

#[test]
fn tg_9_legitimate_sequences_pass_untouched() {
    let words = "errors.log: Missing required parameter: path, HTTP 503, type error, ECONNRESET";
    let corpus: Vec<(&str, Vec<WorkStep>)> = vec![
        (
            "a retry after a fault that passed",
            [
                failing("draw", "a", "the printer is out of paper", 1),
                failing("draw", "a", "the printer is out of paper", 1),
            ]
            .into(),
        ),
        ("the same call after it succeeded", vec![good("pay", "a"); 10]),
        (
            "changed arguments after each failure until it works",
            ["b", "c", "d"]
                .map(|id| failing("look", id, "not found", 1))
                .into_iter()
                .chain([good("look", "e")])
                .collect(),
        ),
        (
            "polling with the same result",
            vec![("look", json!({ "id": "p", "fault": "text", "text": "pending" }), json!({})); 60],
        ),
        (
            "polling within one turn",
            vec![
                of_turn(("look", json!({ "id": "p", "fault": "text", "text": "pending" }), json!({})), 1);
                60
            ],
        ),
        (
            "error words in an output that is a success",
            vec![("look", json!({ "id": "w", "fault": "text", "text": words }), json!({})); 10],
        ),
        (
            "a long turn with fewer failures than the limit",
            (0..10)
                .flat_map(|n| {
                    [good("look", &n.to_string()), good("fold", &n.to_string()), good("sort", &n.to_string())]
                })
                .chain((0..4).map(|n| failing("look", &format!("x{n}"), "not found", 1)))
                .chain((10..20).map(|n| good("look", &n.to_string())))
                .map(|step| of_turn(step, 1))
                .collect(),
        ),
        (
            "the same failure once in each of many turns",
            (0..6).map(|turn| of_turn(failing("send", "{}", "3 errors", 100), turn)).collect(),
        ),
        (
            "edits between checks that fail for other reasons",
            vec![
                good("fold", "1"),
                (
                    "sort",
                    json!({ "id": "t", "fault": "error", "text": "test parses_dates failed" }),
                    json!({}),
                ),
                good("fold", "2"),
                (
                    "sort",
                    json!({ "id": "t", "fault": "error", "text": "test keeps_order failed" }),
                    json!({}),
                ),
                good("fold", "3"),
                good("sort", "t"),
            ],
        ),
        (
            "two calls that alternate and work",
            (0..20).flat_map(|_| [good("fold", "x"), good("sort", "y")]).collect(),
        ),
        (
            "odd but welcome answers",
            vec![("draw", json!({ "id": "o", "fault": "text", "text": "" }), json!({})), good("draw", "")],
        ),
    ];
    // A program is faster than a model: two equal calls within a moment would be taken for one call sent twice.
    let config = "dedupe.double_dispatch = false\n";
    GatewayWorld::each("tg_9_corpus", config, |world| {
        for (name, steps) in &corpus {
            // Each sequence begins without a history.
            fs::write(world.folder().join("ledger"), "").unwrap();
            let _ = fs::remove_dir_all(world.folder().join(".local"));
            let (mut client, mut bare) = (world.client(), world.bare());
            // The arrival of an answer is known from its connection, which clients keep.
            let mut connection =
                (world.front == TestTransport::Http).then(|| PersistentConnection::to(client.address()));
            for (number, (tool, arguments, meta)) in steps.iter().enumerate() {
                let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
                let through_gateway = match &mut connection {
                    None => client.request("tools/call", params.clone()),
                    Some(connection) => {
                        let id = 1_000 + number;
                        let message =
                            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
                        let request =
                            RawRequest::to(client.address()).header("mcp-session-id", &client.session());
                        serde_json::from_slice(&connection.request(&request.body(message.to_string())))
                            .unwrap()
                    }
                };
                let direct = bare.request("tools/call", params);
                assert_eq!(
                    through_gateway["result"].to_string(),
                    direct["result"].to_string(),
                    "{name}, step {}",
                    number + 1
                );
            }
        }
    });
}

#[test]
fn tg_5_malformed_calls_and_loops_are_written_down_in_the_state_folder_unless_it_is_turned_off() {
    let calls = |world: &GatewayWorld| {
        let mut client = world.client();
        for _ in 0..3 {
            let response = client.call_with("look", json!({}), json!({ "dev.steadfast/model": "model-1" }));
            assert!(response.is_error, "{response:?}");
        }
        client.hang_up();
    };
    let world = GatewayWorld::of("tg_5_default", "", TestTransport::Stdio, TestTransport::Stdio);
    let file = world.folder().join(".local/state/steadfast/malformed-calls.jsonl");
    calls(&world);
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let entries: Vec<_> =
        lines.iter().map(|line| (line["model"].as_str(), line["error_type"].as_str())).collect();
    let (wrong, looped) =
        ((Some("model-1"), Some("invalid_arguments")), (Some("model-1"), Some("loop_detected")));
    assert_eq!(entries, [wrong, wrong, looped], "{text}");
    // A file that has reached its limit is rotated.
    let full = 10 << 20;
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(full).unwrap();
    calls(&world);
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 3);
    assert_eq!(fs::metadata(file.with_extension("jsonl.1")).unwrap().len(), full);
    // Honest work writes no file. Nor does a loop where that is turned off.
    let world = GatewayWorld::of("tg_5_honest", "", TestTransport::Stdio, TestTransport::Stdio);
    let mut client = world.client();
    assert_eq!(client.call("look", json!({ "id": "a" })).text, "look a, run 1");
    client.hang_up();
    let off = GatewayWorld::of(
        "tg_5_off",
        "log.malformed_calls = \"none\"\n",
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    calls(&off);
    for world in [world, off] {
        assert!(!world.folder().join(".local/state/steadfast/malformed-calls.jsonl").exists());
    }
}

#[test]
fn tg_9_a_tool_that_its_server_newly_lists_may_be_called_despite_an_earlier_loop() {
    GatewayWorld::each("tg_9_comes_back", "", |world| {
        let mut client = world.client();
        let call = |client: &mut McpTestClient| client.call("extra", json!({ "id": "a" })).code;
        while call(&mut client).as_deref() != Some("loop_detected") {}
        client.request("tools/list", json!({}));
        assert_eq!(call(&mut client).as_deref(), Some("loop_detected"), "the same list changes nothing");
        fs::write(world.folder().join("ledger.names"), "extra\n").unwrap();
        client.request("tools/list", json!({}));
        assert_ne!(call(&mut client).as_deref(), Some("loop_detected"));
    });
}

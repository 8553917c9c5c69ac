//! Questions before a call runs: requests for approval, which the client's user or an operator answers, and questions
//! of the server itself.

use std::fs;

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::world::{GatewayWorld, ServerEra, TestTransport, kill, wait};

/// Every payment needs approval. Calls that are repeated until an answer arrives are no loop, and no call is dispatched
/// twice by mistake. No caller times out before the test does.
const ASK: &str = "[tools.\"bank/pay\"]\napproval = \"always\"\nguard.mode = \"off\"\ndedupe.double_dispatch = false\n\
                   approval_timeout = \"10m\"\nanswer_by = \"none\"\n";

fn form() -> Value {
    json!({ "elicitation": {} })
}

fn accepts(decision: &str) -> Value {
    json!({ "action": "accept", "content": { "decision": decision } })
}

/// Returns a call in the form of the newer era.
fn modern(arguments: &Value, more: Value) -> Value {
    let mut params = json!({
        "name": "pay",
        "arguments": arguments,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": form(),
            "io.modelcontextprotocol/clientInfo": { "name": "tests", "version": "1" },
        },
    });
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    params
}

/// Returns a client of the newer era, which begins without a handshake.
fn modern_client(world: &GatewayWorld) -> McpTestClient {
    McpTestClient::on_streams(world.wrap(&[]))
}

/// Calls again with the answer to the question in this result.
fn again(client: &mut McpTestClient, arguments: &Value, question: &Value, answer: Value) -> Value {
    let questions = question["result"]["inputRequests"].as_object().unwrap();
    let responses: serde_json::Map<_, _> =
        questions.keys().map(|name| (name.clone(), answer.clone())).collect();
    let state = &question["result"]["requestState"];
    let more = json!({ "inputResponses": responses, "requestState": state });
    client.request("tools/call", modern(arguments, more))
}

/// Waits for this many pending requests for approval. They are written asynchronously.
fn request_ids(world: &GatewayWorld, times: usize) -> Vec<String> {
    let ids = || -> Vec<String> {
        let (output, succeeded) = world.steadfast(&["approvals", "--json"]);
        assert!(succeeded, "{output}");
        let output: Value = serde_json::from_str(&output).unwrap();
        output["approvals"].as_array().unwrap().iter().map(|one| one["id"].to_string()).collect()
    };
    let mut found = Vec::new();
    wait(
        || {
            found = ids();
            found.len() == times
        },
        || format!("{times} requests: {:?}", ids()),
    );
    found
}

// ---- questions of a server ----

#[test]
fn tr_3_an_input_request_of_the_server_is_repeated_each_time_and_the_tool_runs_once() {
    for (id, key) in [("a", None), ("b", Some("k"))] {
        let world = GatewayWorld::of_era(
            ServerEra::Modern,
            &format!("tr_3_question_{id}"),
            "",
            TestTransport::Stdio,
            TestTransport::Stdio,
        );
        let mut client = modern_client(&world);
        let arguments = json!({ "id": id, "fault": "asks" });
        let fresh = || {
            let mut params = modern(&arguments, json!({}));
            params["_meta"]["dev.steadfast/idempotency-key"] = json!(key);
            params
        };
        let question = client.request("tools/call", fresh());
        assert_eq!(question["result"]["resultType"], "input_required", "{question}");
        assert_eq!(world.count(&format!("pay {id}")), 0);
        let mut next = fresh();
        next["inputResponses"] = json!({ "who": accepts("x") });
        next["requestState"] = question["result"]["requestState"].clone();
        let done = client.request("tools/call", next);
        assert_eq!(ToolResponse::of(&done).text, format!("pay {id}, run 1"), "{done}");
        // Even with the same key, a question is never replayed: the server is asked again.
        let third = client.request("tools/call", fresh());
        assert_eq!(third["result"]["resultType"], "input_required", "{third}");
        assert_eq!((world.count(&format!("asked pay {id}")), world.count(&format!("pay {id}"))), (2, 1));
    }
}

// ---- the older era ----

#[test]
fn rp_7_a_client_of_the_older_era_gets_the_approval_request_while_its_call_waits() {
    for world in GatewayWorld::every("rp_7_legacy", ASK) {
        let mut client = world.client_that_can(form());
        let call = client.send_call("pay", json!({ "id": "a" }));
        let question = client.next_request();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let text = question["params"]["message"].as_str().unwrap();
        assert!(text.contains("bank/pay") && text.contains("\"a\""), "{text}");
        // Operators see the request meanwhile.
        assert_eq!((world.count("pay a"), request_ids(&world, 1).len()), (0, 1));
        client.reply(&question, accepts("once"));
        assert_eq!(ToolResponse::of(&client.answer(call)).text, "pay a, run 1");
        request_ids(&world, 0);
        // "once" is for these arguments, and for one call. Over HTTP the arrival of the first answer is not known yet.
        let others: &[&str] = if world.front == TestTransport::Stdio { &["b", "a"] } else { &["b"] };
        for id in others {
            let call = client.send_call("pay", json!({ "id": id }));
            let question = client.next_request();
            client.reply(&question, json!({ "action": "decline" }));
            let response = ToolResponse::of(&client.answer(call));
            assert_eq!(response.code.as_deref(), Some("approval_denied"), "{id}: {response:?}");
        }
        assert_eq!((world.count("pay a"), world.count("pay b")), (1, 0));
        // For the session no further approval is requested.
        for (id, answer) in [("c", Some("session")), ("d", None)] {
            let call = client.send_call("pay", json!({ "id": id }));
            if let Some(answer) = answer {
                let question = client.next_request();
                client.reply(&question, accepts(answer));
            }
            assert_eq!(ToolResponse::of(&client.answer(call)).text, format!("pay {id}, run 1"));
        }
    }
}

#[test]
fn rp_7_an_unanswered_approval_request_times_out_and_is_cancelled() {
    let world = GatewayWorld::of(
        "rp_7_silence",
        &ASK.replace("10m", "1s"),
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let mut client = world.client_that_can(form());
    let call = client.send_call("pay", json!({ "id": "a" }));
    let question = client.next_request();
    let response = ToolResponse::of(&client.answer(call));
    assert_eq!(response.code.as_deref(), Some("approval_required"), "{response:?}");
    let withdrawn = |client: &McpTestClient| {
        client.received.iter().any(|message| {
            message["method"] == "notifications/cancelled" && message["params"]["requestId"] == question["id"]
        })
    };
    while !withdrawn(&client) {
        let message = client.next();
        client.received.push(message);
    }
    assert_eq!(world.count("pay a"), 0);
    // The request is pending, and a late answer of the client changes nothing.
    client.reply(&question, accepts("once"));
    client.request("ping", json!({}));
    request_ids(&world, 1);
    assert_eq!(world.count("pay a"), 0);
}

#[test]
fn rp_7_an_operator_may_be_faster_than_the_client() {
    let world = GatewayWorld::of("rp_7_faster", ASK, TestTransport::Stdio, TestTransport::Stdio);
    let mut client = world.client_that_can(form());
    for (command, id, expected) in [("approve", "a", None), ("deny", "b", Some("approval_denied"))] {
        let call = client.send_call("pay", json!({ "id": id }));
        client.next_request();
        let ids = request_ids(&world, 1);
        let (output, succeeded) = world.steadfast(&[command, &ids[0]]);
        assert!(succeeded, "{output}");
        let response = ToolResponse::of(&client.answer(call));
        assert_eq!(response.code.as_deref(), expected, "{command}: {response:?}");
    }
    assert_eq!((world.count("pay a"), world.count("pay b")), (1, 0));
}

#[test]
fn rp_7_a_client_without_elicitation_is_refused_at_once_and_an_operator_approves_the_next_call() {
    for world in GatewayWorld::every("rp_7_headless", ASK) {
        let mut client = world.client();
        let response = client.call("pay", json!({ "id": "a" }));
        assert_eq!(response.code.as_deref(), Some("approval_required"), "{response:?}");
        let (output, succeeded) = world.steadfast(&["approve", &request_ids(&world, 1)[0]]);
        assert!(succeeded && output.contains("bank/pay"), "{output}");
        // The gateway learns of it from the store.
        wait(
            || client.call("pay", json!({ "id": "a" })).text == "pay a, run 1",
            || "the call that was approved".to_owned(),
        );
        let response = client.call("pay", json!({ "id": "b" }));
        assert_eq!(response.code.as_deref(), Some("approval_required"), "other arguments: {response:?}");
        assert_eq!((world.count("pay a"), world.count("pay b")), (1, 0));
    }
}

#[test]
fn rp_7_a_blocked_tool_is_not_for_the_client_to_approve() {
    // The command of this call is a dangerous one: it runs, and then the tool is blocked.
    let world = GatewayWorld::of(
        "rp_7_blocked",
        "[tools.\"bank/*\"]\nguard.mode = \"off\"\n",
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let mut client = world.client_that_can(form());
    client.call("look", json!({ "id": "x", "command": "rm -rf /" }));
    let response = client.call("look", json!({ "id": "y" }));
    assert_eq!(response.code.as_deref(), Some("tool_blocked"), "{response:?}");
    assert!(
        client.received.iter().all(|message| message["method"] != "elicitation/create"),
        "{:?}",
        client.received
    );
    let id = request_ids(&world, 1).remove(0);
    let (output, succeeded) = world.steadfast(&["approve", &id, "--session"]);
    assert!(!succeeded && output.contains("single calls"), "{output}");
    let (output, succeeded) = world.steadfast(&["approve", &id]);
    assert!(succeeded, "{output}");
    wait(
        || client.call("look", json!({ "id": "y" })).text == "look y, run 1",
        || "the call that an operator approved".to_owned(),
    );
}

// ---- the newer era ----

#[test]
fn rp_7_a_client_of_the_newer_era_gets_the_approval_request_as_answer_and_calls_again() {
    let world = GatewayWorld::of("rp_7_modern", ASK, TestTransport::Stdio, TestTransport::Stdio);
    let mut client = modern_client(&world);
    for (id, answer, expected) in [
        ("a", accepts("once"), None),
        ("b", json!({ "action": "decline" }), Some("approval_denied")),
        ("c", accepts("deny"), Some("approval_denied")),
    ] {
        let arguments = json!({ "id": id });
        let question = client.request("tools/call", modern(&arguments, json!({})));
        assert_eq!(question["result"]["resultType"], "input_required", "{question}");
        // Operators see it too.
        request_ids(&world, 1);
        let done = again(&mut client, &arguments, &question, answer);
        assert_eq!(ToolResponse::of(&done).code.as_deref(), expected, "{id}: {done}");
        // A decision is final: the same answer does not let another call run.
        let twice = again(&mut client, &arguments, &question, accepts("once"));
        assert_eq!(twice["result"]["resultType"], "input_required", "{id}: {twice}");
        let (output, succeeded) = world.steadfast(&["deny", &request_ids(&world, 1)[0]]);
        assert!(succeeded, "{output}");
    }
    assert_eq!((world.count("pay a"), world.count("pay b"), world.count("pay c")), (1, 0, 0));
    assert_eq!(world.count("saw what is not for it"), 0);
}

#[test]
fn rp_7_an_answer_does_not_cover_other_arguments() {
    let world = GatewayWorld::of("rp_7_other", ASK, TestTransport::Stdio, TestTransport::Stdio);
    let mut client = modern_client(&world);
    let question = client.request("tools/call", modern(&json!({ "id": "a" }), json!({})));
    let other = again(&mut client, &json!({ "id": "b" }), &question, accepts("once"));
    assert_eq!(other["result"]["resultType"], "input_required", "{other}");
    assert_eq!((world.count("pay a"), world.count("pay b")), (0, 0));
}

#[test]
fn rp_7_the_requests_of_the_gateway_and_the_server_do_not_lose_each_other() {
    let world = GatewayWorld::of_era(
        ServerEra::Modern,
        "rp_7_nested",
        ASK,
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let mut client = modern_client(&world);
    let arguments = json!({ "id": "a", "fault": "asks" });
    let mut answer = client.request("tools/call", modern(&arguments, json!({})));
    let mut questions = Vec::new();
    while answer["result"]["resultType"] == "input_required" {
        assert!(questions.len() < 4, "no end: {questions:?}");
        let names = answer["result"]["inputRequests"].as_object().unwrap();
        questions.push(names.keys().next().unwrap().clone());
        answer = again(&mut client, &arguments, &answer, accepts("once"));
    }
    assert_eq!(ToolResponse::of(&answer).text, "pay a, run 1", "{answer}");
    // An approval is not requested again because the server had a question first.
    assert_eq!(questions, ["dev.steadfast/approval", "who"]);
    assert_eq!((world.count("pay a"), world.count("saw what is not for it")), (1, 0));
    // That approval is used up now.
    let next = client.request("tools/call", modern(&json!({ "id": "a" }), json!({})));
    assert_eq!(next["result"]["resultType"], "input_required", "{next}");
    assert_eq!(world.count("pay a"), 1);
}

// ---- unknown outcomes ----

#[test]
fn sf_12_an_unknown_outcome_is_counted_and_listed_until_an_operator_resolves_it() {
    for (verdict, expected) in [("--ran", Some("result_not_kept")), ("--did-not-run", None)] {
        let world = GatewayWorld::new(&format!("resolve{verdict}"));
        let mut client = world.client();
        let arguments = json!({ "id": "a", "fault": "die_after", "times": 1 });
        let meta = json!({ "dev.steadfast/idempotency-key": "k" });
        let params = json!({ "name": "pay", "arguments": arguments, "_meta": meta });
        let response = ToolResponse::of(&client.request("tools/call", params.clone()));
        assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
        let name = response.text.split("steadfast resolve ").nth(1).and_then(|rest| rest.split(' ').next());
        let name = name.expect(&response.text);
        // The outcome is listed until it is resolved.
        let (listed, succeeded) = world.steadfast(&["unknown"]);
        let row = listed.lines().find(|line| line.starts_with(name));
        assert!(
            succeeded && row.is_some_and(|row| row.contains("bank/pay") && row.contains("ended")),
            "{listed}"
        );
        assert!(listed.contains(&format!("`steadfast resolve {name} --ran`")), "{listed}");
        let (status, _) = world.steadfast(&["status"]);
        assert!(status.contains("1 call has an unknown outcome"), "{status}");
        let (output, succeeded) = world.steadfast(&["resolve", name]);
        assert!(!succeeded && output.contains("--ran") && output.contains("--did-not-run"), "{output}");
        let (output, succeeded) = world.steadfast(&["resolve", name, verdict]);
        assert!(succeeded, "{output}");
        assert_eq!(world.steadfast(&["unknown"]).0, "no call has an unknown outcome\n");
        let response = ToolResponse::of(&client.request("tools/call", params));
        assert_eq!(response.code.as_deref(), expected, "{verdict}: {response:?}");
        assert_eq!(world.count("pay a"), if expected.is_some() { 1 } else { 2 });
        let (output, succeeded) = world.steadfast(&["resolve", name, verdict]);
        assert!(!succeeded && output.contains("no call"), "{output}");
    }
}

/// Kills a gateway while it waits for the answer to a payment.
fn killed_in_a_call(world: &GatewayWorld) {
    let gate = world.set_behavior("gate");
    let mut client = world.client();
    client.send_call("pay", json!({ "id": "a", "fault": "gate" }));
    world.until("pay a", 1);
    kill(client.pid());
    client.wait_for_exit();
    fs::remove_file(gate).unwrap();
}

#[test]
fn gr_9_a_call_whose_gateway_was_killed_is_shown_and_notified_as_unknown() {
    GatewayWorld::each("gr_9_killed", concat!("guard.mode = \"off\"\n", short_settle_times!()), |world| {
        killed_in_a_call(&world);
        // The call is not made again: the next gateway finds it when it starts.
        let mut client = world.client();
        let notification = world.logged_times("notification", 1).remove(0);
        assert_eq!(
            (&notification["notification"], &notification["toolName"], &notification["toolNamespace"]),
            (&json!("outcome_unknown"), &json!("pay"), &json!("bank")),
            "{notification}"
        );
        let (status, _) = world.steadfast(&["status"]);
        assert!(status.contains("1 call has an unknown outcome"), "{status}");
        let (listed, succeeded) = world.steadfast(&["unknown", "--json"]);
        assert!(succeeded, "{listed}");
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let record = &listed["unknown"][0];
        assert_eq!(
            (&record["tool"]["tool"], &record["observed"]),
            (&json!("pay"), &json!("process_died")),
            "{listed}"
        );
        let key = record["key"].as_str().unwrap().get(..12).unwrap();
        assert!(
            notification["message"].as_str().unwrap().contains(&format!("steadfast resolve {key}")),
            "{notification}"
        );
        // The same call, made again, gets that response, and the operator is not notified twice.
        if world.front == TestTransport::Stdio && !world.is_remote() {
            let response = client.call("pay", json!({ "id": "a", "fault": "gate" }));
            assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
            world.logged_times("notification", 1);
        }
        assert_eq!(world.count("pay a"), 1);
    });
}

#[test]
fn gr_9_a_call_whose_gateway_was_killed_is_listed_as_unknown_where_no_gateway_runs() {
    let world = GatewayWorld::new("gr_9_killed_alone");
    killed_in_a_call(&world);
    let (listed, succeeded) = world.steadfast(&["unknown"]);
    assert!(succeeded && listed.contains("bank/pay"), "{listed}");
    let name = listed.lines().find(|line| line.contains("bank/pay")).unwrap().split(' ').next().unwrap();
    assert!(listed.contains(&format!("`steadfast resolve {name} --ran`")), "{listed}");
    let (output, succeeded) = world.steadfast(&["resolve", name, "--ran"]);
    assert!(succeeded, "{output}");
    assert_eq!(world.steadfast(&["unknown"]).0, "no call has an unknown outcome\n");
}

// ---- trust, and the client's user ----

/// One crash costs a tool its trust. Two of our own tools report that, and restore it.
const FRAGILE: &str = "guard.mode = \"off\"\nbreaker.mode = \"off\"\napproval_timeout = \"10m\"\nanswer_by = \"none\"\n\
                       [gateway]\nreliability_tools = true\n[trust]\ncount = 1\nseverities = [\"crash\", \"transient\"]\n";

fn lose_trust(client: &mut McpTestClient, id: &str) {
    let response = client.call("look", json!({ "id": id, "fault": "die_after" }));
    assert!(response.is_error && response.code.as_deref() != Some("approval_required"), "{response:?}");
    let status = client.call("reliability_status", json!({ "tool_name": "bank/look" }));
    assert!(status.text.starts_with("bank/look: escalated"), "{status:?}");
}

fn is_trusted(client: &mut McpTestClient) -> bool {
    client.call("reliability_status", json!({ "tool_name": "bank/look" })).text == "bank/look is trusted"
}

#[test]
fn rp_13_a_reset_by_a_model_needs_the_approval_of_its_user() {
    GatewayWorld::each(
        "rp_13_asked",
        &format!("retry.attempts = 2\nretry.base = \"1ms\"\n{FRAGILE}"),
        |world| {
            let mut client = world.client_that_can(form());
            lose_trust(&mut client, "a");
            for (answer, restored) in
                [(accepts("deny"), false), (json!({ "action": "cancel" }), false), (accepts("once"), true)]
            {
                let id = client.send_call("reliability_reset", json!({ "tool_name": "bank/look" }));
                let question = client.next_request();
                assert_eq!(question["method"], "elicitation/create", "{question}");
                let params = &question["params"];
                assert!(
                    params["message"].as_str().unwrap().starts_with("Restore trust in bank/look?"),
                    "{question}"
                );
                let offered = &params["requestedSchema"]["properties"]["decision"]["enum"];
                assert_eq!(offered, &json!(["once", "deny"]), "{question}");
                client.reply(&question, answer);
                let response = ToolResponse::of(&client.answer(id));
                assert_eq!(response.is_error, !restored, "{response:?}");
                assert_eq!(is_trusted(&mut client), restored, "{response:?}");
            }
            // An approval is for one call.
            lose_trust(&mut client, "b");
            client.send_call("reliability_reset", json!({ "tool_name": "bank/look" }));
            assert_eq!(client.next_request()["method"], "elicitation/create");
            assert!(!is_trusted(&mut client));
        },
    );
}

#[test]
fn rp_13_in_the_newer_era_the_approval_request_is_the_answer() {
    let config = format!("retry.attempts = 1\n{FRAGILE}");
    let world = GatewayWorld::of_era(
        ServerEra::Modern,
        "rp_13_modern",
        &config,
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let mut client = modern_client(&world);
    let named = |name: &str, arguments: Value, more: Value| {
        let mut params = modern(&arguments, more);
        params["name"] = name.into();
        params
    };
    let text = |answer: &Value| answer["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    let failing = json!({ "id": "a", "fault": "die_after" });
    client.request("tools/call", named("look", failing, json!({})));
    let status = client.request("tools/call", named("reliability_status", json!({}), json!({})));
    assert!(text(&status).starts_with("bank/look: escalated"), "{status}");
    let reset = |more| named("reliability_reset", json!({ "tool_name": "bank/look" }), more);
    let question = client.request("tools/call", reset(json!({})));
    let questions = question["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{question}"));
    let responses: serde_json::Map<_, _> =
        questions.keys().map(|name| (name.clone(), accepts("once"))).collect();
    let more = json!({ "inputResponses": responses, "requestState": question["result"]["requestState"] });
    let restored = client.request("tools/call", reset(more));
    assert_eq!(text(&restored), "trust restored: bank/look", "{restored}");
    let status = client.request("tools/call", named("reliability_status", json!({}), json!({})));
    assert_eq!(text(&status), "all tools are trusted");
}

#[test]
fn rp_13_without_elicitation_an_operator_decides_and_the_model_alone_restores_nothing() {
    GatewayWorld::each(
        "rp_13_operator",
        &format!("retry.attempts = 2\nretry.base = \"1ms\"\n{FRAGILE}"),
        |world| {
            let mut client = world.client();
            client.request("logging/setLevel", json!({ "level": "info" }));
            if world.front == TestTransport::Http {
                client.listen();
            }
            lose_trust(&mut client, "a");
            let reset = json!({ "tool_name": "bank/look" });
            for _ in 0..2 {
                let response = client.call("reliability_reset", reset.clone());
                assert!(response.is_error && response.text.contains("steadfast approve"), "{response:?}");
                assert!(!is_trusted(&mut client));
            }
            let number = request_ids(&world, 1).remove(0);
            // Every notification is sent once, also to the client whose user cannot be asked.
            let notification = loop {
                let notification = client.next_notification("notifications/message");
                if notification["params"]["data"]["event"] == "approval_requested" {
                    break notification;
                }
            };
            let data = &notification["params"]["data"];
            assert_eq!(
                (&data["tool"]["tool"], &data["approval"]["id"].to_string()),
                (&json!("reliability_reset"), &number)
            );
            let logged_requests = || {
                let logged = world.logged("notification").into_iter();
                logged.filter(|line| line["notification"] == "approval_requested").collect::<Vec<_>>()
            };
            wait(|| !logged_requests().is_empty(), || "the line of the log".to_owned());
            assert_eq!(logged_requests().len(), 1, "{:?}", logged_requests());
            let (output, succeeded) = world.steadfast(&["approve", &number]);
            assert!(succeeded, "{output}");
            assert_eq!(client.call("reliability_reset", reset.clone()).text, "trust restored: bank/look");
            assert!(is_trusted(&mut client));
            lose_trust(&mut client, "b");
            let response = client.call("reliability_reset", reset);
            assert!(
                response.is_error && response.text.contains("steadfast approve"),
                "it was approved once: {response:?}"
            );
            wait(|| logged_requests().len() == 2, || format!("another request: {:?}", logged_requests()));
        },
    );
}

#[test]
fn rp_13_a_blocked_tool_is_not_for_the_client_to_reset() {
    let config = "[gateway]\nreliability_tools = true\n[tools.\"bank/*\"]\nguard.mode = \"off\"\n";
    GatewayWorld::each("rp_13_blocked", config, |world| {
        let mut client = world.client_that_can(form());
        client.call("look", json!({ "id": "x", "command": "rm -rf /" }));
        let reset = json!({ "tool_name": "bank/look" });
        let response = client.call("reliability_reset", reset.clone());
        assert!(response.is_error && response.text.contains("steadfast approve"), "{response:?}");
        let was_prompted = |client: &McpTestClient| {
            client.received.iter().any(|message| message["method"] == "elicitation/create")
        };
        assert!(!was_prompted(&client), "{:?}", client.received);
        assert_eq!(client.call("look", json!({ "id": "y" })).code.as_deref(), Some("tool_blocked"));
        let number = request_ids(&world, 2).into_iter().min().unwrap();
        let (listed, _) = world.steadfast(&["approvals", "--json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let of_reset = |one: &&Value| one["tool"]["tool"] == "reliability_reset";
        let request = listed["approvals"].as_array().unwrap().iter().find(of_reset).expect("it is parked");
        assert_eq!((&request["blocked"], &request["id"].to_string()), (&json!(true), &number), "{listed}");
        let (output, succeeded) = world.steadfast(&["approve", &number]);
        assert!(succeeded, "{output}");
        assert_eq!(client.call("reliability_reset", reset).text, "trust restored: bank/look");
        assert_eq!(client.call("look", json!({ "id": "z" })).text, "look z, run 1");
        assert!(!was_prompted(&client), "{:?}", client.received);
    });
}

#[test]
fn rp_8_the_user_approves_the_recovery_of_a_tool() {
    let config = format!(
        "retry.attempts = 2\nretry.base = \"1ms\"\n{FRAGILE}recovery = \"ask\"\nsuccesses_to_recover = 2\n"
    );
    GatewayWorld::each("rp_8_prompt", &config, |world| {
        let mut client = world.client_that_can(form());
        lose_trust(&mut client, "a");
        let id = client.send_call("look", json!({ "id": "b" }));
        let question = client.next_request();
        let offered = &question["params"]["requestedSchema"]["properties"]["decision"]["enum"];
        assert_eq!(offered, &json!(["once", "session", "recover", "deny"]), "{question}");
        client.reply(&question, accepts("recover"));
        assert_eq!(ToolResponse::of(&client.answer(id)).text, "look b, run 1");
        let status = client.call("reliability_status", json!({ "tool_name": "bank/look" }));
        assert!(status.text.starts_with("bank/look: recovering"), "{status:?}");
        // It runs without approval, and regains trust.
        assert_eq!(client.call("look", json!({ "id": "c" })).text, "look c, run 1");
        if !is_trusted(&mut client) {
            assert_eq!(client.call("look", json!({ "id": "d" })).text, "look d, run 1");
        }
        assert!(is_trusted(&mut client));
    });
}

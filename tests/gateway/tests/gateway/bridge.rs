//! A client of one era of the protocol and a server of the other, over every pair of transports.

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::world::{GatewayWorld, LISTEN, ServerEra, TestTransport, is_running, kill, wait};

/// Returns the client's answer to the questions of these servers.
fn name(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

fn can_elicit() -> Value {
    json!({ "elicitation": {} })
}

// ---- a client of the modern era, a server of the older one ----

/// Returns the parameters with which a call continues after this answer.
fn continuation(arguments: &Value, response: &Value, answer: &str) -> Value {
    let result = &response["result"];
    assert_eq!(result["resultType"], "input_required", "{response}");
    let questions = result["inputRequests"].as_object().unwrap();
    assert_eq!(questions.len(), 1, "{response}");
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("who?"))
    );
    json!({
        "name": "ask",
        "arguments": arguments,
        "inputResponses": { key: name(answer) },
        "requestState": result["requestState"],
    })
}

fn call_ask(client: &mut McpTestClient, arguments: &Value) -> Value {
    client.request("tools/call", json!({ "name": "ask", "arguments": arguments }))
}

#[test]
fn sf_4_a_client_of_the_modern_era_uses_a_server_of_the_older_one() {
    for world in GatewayWorld::every("bridge_older", "") {
        let mut client = world.modern_client(can_elicit());
        let found = client.request("server/discover", json!({}));
        assert_eq!(
            found["result"],
            json!({
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {
                    "tools": { "listChanged": true },
                    "resources": { "subscribe": true },
                    "logging": {},
                },
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "test", "version": "1" } },
            })
        );
        let listed = client.request("tools/list", json!({}));
        assert_eq!(listed["result"]["resultType"], "complete", "{listed}");
        assert_eq!(listed["result"]["tools"][0]["vendor"]["kept"], true, "{listed}");
        let paid = client.request("tools/call", json!({ "name": "pay", "arguments": { "id": "a" } }));
        assert_eq!(paid["result"]["resultType"], "complete", "{paid}");
        assert_eq!(ToolResponse::of(&paid).text, "pay a, run 1");
        let unknown = client.request("vendor/thing", json!({}));
        assert_eq!(unknown["error"]["data"], json!({ "a": 1 }), "{unknown}");
        let echoed = client.request("test/echo", json!({ "x": 1, "_meta": { "vendor/own": 2 } }));
        assert_eq!(echoed["result"]["params"], json!({ "x": 1, "_meta": { "vendor/own": 2 } }), "{echoed}");
        for method in ["initialize", "ping", "logging/setLevel"] {
            assert_eq!(client.request(method, json!({}))["error"]["code"], -32601, "{method}");
        }
        assert_eq!(world.count("initialize"), 1);
        assert_eq!(world.count("pay a"), 1);
    }
}

#[test]
fn sf_4_a_request_of_an_older_server_during_a_call_becomes_an_answer_that_requires_input() {
    for world in GatewayWorld::every("bridge_asks", "") {
        // The client never asks for the server's capabilities.
        let mut client = world.modern_client(can_elicit());
        let arguments = json!({ "id": "a", "times": 2 });
        let first = call_ask(&mut client, &arguments);
        let second = client.request("tools/call", continuation(&arguments, &first, "Ada"));
        assert_ne!(first["result"]["requestState"], second["result"]["requestState"]);
        let last = client.request("tools/call", continuation(&arguments, &second, "Bob"));
        assert_eq!(ToolResponse::of(&last).text, "a is for Ada and Bob", "{last}");
        assert_eq!(last["result"]["resultType"], "complete", "{last}");
        let counts = ["ask a", "heard a Ada", "heard a Bob"].map(|line| world.count(line));
        assert_eq!(counts, [1, 1, 1], "{:?}", world.ledger());
    }
}

#[test]
fn tr_3_a_repeated_call_that_waits_for_input_gets_the_same_request_and_does_not_run_again() {
    for world in GatewayWorld::every("bridge_again", "") {
        let mut client = world.modern_client(can_elicit());
        let arguments = json!({ "id": "a" });
        let keyed = |mut params: Value| {
            params["idempotencyKey"] = json!("k");
            params
        };
        let fresh = keyed(json!({ "name": "ask", "arguments": arguments }));
        let first = client.request("tools/call", fresh.clone());
        let again = client.request("tools/call", fresh.clone());
        assert_eq!(first["result"]["requestState"], again["result"]["requestState"]);
        let last = keyed(continuation(&arguments, &first, "Ada"));
        for _ in 0..2 {
            let answered = client.request("tools/call", last.clone());
            assert_eq!(ToolResponse::of(&answered).text, "a is for Ada", "{answered}");
        }
        assert_eq!(world.count("ask a"), 1, "{:?}", world.ledger());
    }
}

#[test]
fn sf_4_a_client_without_elicitation_gets_no_request_and_its_server_gets_an_error() {
    for world in GatewayWorld::every("bridge_cannot", "") {
        let mut client = world.modern_client(json!({}));
        let response = ToolResponse::of(&call_ask(&mut client, &json!({ "id": "a" })));
        assert_eq!(response.text, "a is for nobody");
    }
}

#[test]
fn a_request_state_is_valid_only_for_its_call() {
    for world in GatewayWorld::every("bridge_state", "") {
        let mut client = world.modern_client(can_elicit());
        let (arguments, others) = (json!({ "id": "a" }), json!({ "id": "b" }));
        let first = call_ask(&mut client, &arguments);
        let stolen = client.request("tools/call", continuation(&others, &first, "Eve"));
        assert_eq!(stolen["error"]["code"], -32602, "{stolen}");
        let mut made_up = continuation(&arguments, &first, "Eve");
        made_up["requestState"] = json!("made up");
        let made_up = client.request("tools/call", made_up);
        assert_eq!(made_up["error"]["code"], -32602, "{made_up}");
        let last = client.request("tools/call", continuation(&arguments, &first, "Ada"));
        assert_eq!(ToolResponse::of(&last).text, "a is for Ada", "{last}");
        assert_eq!((world.count("ask a"), world.count("ask b")), (1, 0), "{:?}", world.ledger());
    }
}

#[test]
fn gr_8_a_write_whose_server_dies_while_it_is_held_is_not_run_again() {
    for world in GatewayWorld::every("bridge_killed", "dedupe.after_telling = \"10m\"\n") {
        let mut client = world.modern_client(can_elicit());
        client.request("tools/list", json!({}));
        let arguments = json!({ "id": "a" });
        let first = call_ask(&mut client, &arguments);
        let server = world.server();
        kill(server);
        wait(|| !is_running(server), || "the end of the server".to_owned());
        let params = continuation(&arguments, &first, "Ada");
        for _ in 0..2 {
            let response = ToolResponse::of(&client.request("tools/call", params.clone()));
            assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
        }
        assert_eq!((world.count("ask a"), world.count("heard a Ada")), (1, 0), "{:?}", world.ledger());
        // The server runs again, and has received its session state again.
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
        world.until("initialize", 2);
    }
}

#[test]
fn sf_4_an_older_server_gets_a_cancellation_when_a_modern_client_disconnects() {
    for world in GatewayWorld::every("bridge_leaves", "") {
        let mut client = world.modern_client(json!({}));
        let id = client.send_call("look", json!({ "id": "a", "fault": "hang" }));
        world.until("look a", 1);
        match world.front {
            TestTransport::Stdio => client.notify("notifications/cancelled", json!({ "requestId": id })),
            TestTransport::Http => client.disconnect(),
        }
        world.until("cancelled", 1);
    }
}

#[test]
fn a_question_that_could_be_of_two_calls_is_refused() {
    for world in GatewayWorld::every("bridge_two", "") {
        let mut client = world.modern_client(can_elicit());
        let (one, two) = (json!({ "id": "a" }), json!({ "id": "b" }));
        let first = call_ask(&mut client, &one);
        let second = call_ask(&mut client, &two);
        match world.back() {
            TestTransport::Stdio => assert_eq!(ToolResponse::of(&second).text, "b is for nobody", "{second}"),
            // Over HTTP each call has a stream of its own.
            TestTransport::Http => {
                let last = client.request("tools/call", continuation(&two, &second, "Bob"));
                assert_eq!(ToolResponse::of(&last).text, "b is for Bob", "{last}");
            }
        }
        let last = client.request("tools/call", continuation(&one, &first, "Ada"));
        assert_eq!(ToolResponse::of(&last).text, "a is for Ada", "{last}");
    }
}

#[test]
fn sf_4_notifications_of_an_older_server_reach_the_clients_that_subscribed_to_them() {
    for world in GatewayWorld::every("bridge_listens", "") {
        let mut client = world.modern_client(json!({}));
        let filter = json!({
            "toolsListChanged": true,
            "resourcesListChanged": true,
            "resourceSubscriptions": ["note://a"],
        });
        let listening = client.send("subscriptions/listen", json!({ "notifications": filter }));
        let tag =
            |message: &Value| message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
        let acknowledged = client.next();
        assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
        assert_eq!(tag(&acknowledged), listening);
        assert_eq!(
            acknowledged["params"]["notifications"],
            json!({ "toolsListChanged": true, "resourceSubscriptions": ["note://a"] })
        );
        let logging = json!({ "io.modelcontextprotocol/logLevel": "info" });
        for number in 0..2 {
            let params = json!({ "name": "tell", "arguments": { "id": number }, "_meta": logging });
            client.request("tools/call", params);
        }
        client.request("tools/call", json!({ "name": "tell", "arguments": { "id": "no logs" } }));
        // Over HTTP, messages that belong to two requests come in any order.
        wait_for_messages(&mut client, 8);
        let notifications = |method: &str| {
            client.received.iter().filter(|message| message["method"] == method).collect::<Vec<_>>()
        };
        let logged = notifications("notifications/message");
        assert_eq!(logged.len(), 2, "{logged:?}");
        assert!(
            logged.iter().all(|message| message["params"]["data"] == "look out" && tag(message).is_null())
        );
        let changed = notifications("notifications/tools/list_changed");
        let updated = notifications("notifications/resources/updated");
        assert_eq!((changed.len(), updated.len()), (3, 3), "{:?}", client.received);
        assert!(
            changed.iter().chain(&updated).all(|message| tag(message) == listening),
            "{:?}",
            client.received
        );
        assert!(updated.iter().all(|message| message["params"]["uri"] == "note://a"));
        assert_eq!(client.received.len(), 8, "{:?}", client.received);
        assert_eq!((world.count("level info"), world.count("resources/subscribe note://a")), (1, 1));
        match world.front {
            TestTransport::Stdio => {
                client.notify("notifications/cancelled", json!({ "requestId": listening }))
            }
            TestTransport::Http => client.disconnect(),
        }
        world.until("resources/unsubscribe note://a", 1);
    }
}

/// Waits until the client has received this many messages.
fn wait_for_messages(client: &mut McpTestClient, number: usize) {
    while client.received.len() < number {
        let message = client.next();
        client.received.push(message);
    }
}

// ---- a client of the older era, a server of the modern one ----

/// Waits for the next question to the client.
fn question(client: &mut McpTestClient) -> Value {
    loop {
        let message = client.next();
        if message["method"] == "elicitation/create" {
            assert_eq!(message["params"]["message"], "who?");
            return message["id"].clone();
        }
        client.received.push(message);
    }
}

fn respond(client: &mut McpTestClient, question: &Value, result: &Value) {
    client.send_line(&json!({ "jsonrpc": "2.0", "id": question, "result": result }).to_string());
}

#[test]
fn sf_4_a_client_of_the_older_era_uses_a_server_of_the_modern_one() {
    for world in GatewayWorld::every_of(ServerEra::Modern, "bridge_modern", "") {
        let mut client = world.client();
        let listed = client.request("tools/list", json!({}));
        assert_eq!(listed["result"].get("resultType"), None, "{listed}");
        assert_eq!(listed["result"]["tools"][0]["vendor"]["kept"], true, "{listed}");
        let response = client.call("pay", json!({ "id": "a" }));
        assert_eq!((response.text.as_str(), response.is_error), ("pay a, run 1", false));
        let id = client.send(
            "tools/call",
            json!({
                "name": "look",
                "arguments": { "id": "p", "fault": "progress", "size": 2 },
                "_meta": { "progressToken": "mine" },
            }),
        );
        client.answer(id);
        let progress =
            client.received.iter().filter(|message| message["params"]["progressToken"] == "mine").count();
        assert_eq!(progress, 2, "{:?}", client.received);
        let unknown = client.request("vendor/thing", json!({}));
        assert_eq!(
            (&unknown["error"]["code"], &unknown["error"]["data"]),
            (&json!(-32601), &json!({ "a": 1 }))
        );
        assert_eq!(client.request("logging/setLevel", json!({ "level": "info" }))["result"], json!({}));
        assert_eq!((world.count("refused initialize"), world.count("discover")), (1, 1));
        assert_eq!(world.count("pay a"), 1);
    }
}

#[test]
fn sf_4_the_handshake_of_an_older_client_is_answered_for_a_modern_server() {
    let stdio = TestTransport::Stdio;
    let world = GatewayWorld::of_era(ServerEra::Modern, "bridge_handshake", "", stdio, stdio);
    let mut client = McpTestClient::on_streams(world.wrap(&[]));
    let answer = client.initialize();
    assert_eq!(
        answer["result"],
        json!({
            "protocolVersion": "2025-11-25",
            // The gateway has log messages of its own.
            "capabilities": { "tools": {}, "logging": {} },
            "serverInfo": { "name": "test", "version": "2" },
            "instructions": "Pay.",
        })
    );
}

#[test]
fn sf_4_input_that_a_modern_server_requires_is_requested_from_an_older_client() {
    for world in GatewayWorld::every_of(ServerEra::Modern, "bridge_requires", "") {
        let mut client = world.client_that_can(can_elicit());
        let id = client.send_call("ask", json!({ "id": "a", "times": 2 }));
        for answer in ["Ada", "Bob"] {
            let question_id = question(&mut client);
            respond(&mut client, &question_id, &name(answer));
        }
        let last = client.answer(id);
        assert_eq!(ToolResponse::of(&last).text, "a is for Ada and Bob", "{last}");
        assert_eq!(last["result"].get("resultType"), None, "{last}");
        assert_eq!(world.count("ask a"), 1, "{:?}", world.ledger());
    }
}

#[test]
fn sf_4_an_older_client_without_elicitation_gets_the_question_as_an_error() {
    for world in GatewayWorld::every_of(ServerEra::Modern, "bridge_refuses", "") {
        let mut client = world.client();
        let response = client.call("ask", json!({ "id": "a" }));
        assert!(response.is_error && response.text.contains("does not support elicitation"), "{response:?}");
    }
}

#[test]
fn gr_8_a_modern_server_that_dies_before_the_client_answers_continues_with_that_answer() {
    for world in GatewayWorld::every_of(ServerEra::Modern, "bridge_thinks", "") {
        let mut client = world.client_that_can(can_elicit());
        let id = client.send_call("ask", json!({ "id": "a" }));
        let question_id = question(&mut client);
        let server = world.server();
        kill(server);
        wait(|| world.server() != server, || "another server".to_owned());
        respond(&mut client, &question_id, &name("Ada"));
        let last = client.answer(id);
        assert_eq!(ToolResponse::of(&last).text, "a is for Ada", "{last}");
        assert_eq!((world.count("ask a"), world.count("heard a Ada")), (1, 1), "{:?}", world.ledger());
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
    }
}

#[test]
fn gr_8_a_session_with_a_modern_server_outlives_the_gateway() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of_era(ServerEra::Modern, "bridge_outlives", "", TestTransport::Http, back);
        let mut client = world.client_that_can(can_elicit());
        client.call("pay", json!({ "id": "a" }));
        kill(client.pid());
        client.wait_for_exit();
        client.moves_to(world.wrap(&LISTEN));
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
        // The client's capabilities are still known.
        let id = client.send_call("ask", json!({ "id": "c" }));
        let question_id = question(&mut client);
        respond(&mut client, &question_id, &name("Ada"));
        assert_eq!(ToolResponse::of(&client.answer(id)).text, "c is for Ada");
    }
}

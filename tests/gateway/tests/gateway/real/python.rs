//! A server made with the Python SDK, which supports both eras of the protocol.

use serde_json::{Value, json};

use super::conversation::{RecordingClient, everything};
use super::parity::assert_same;
use super::{RealServer, RealServerFolder, ServerRoute, process_of};
use crate::world::{is_running, kill, wait};

fn server() -> RealServer {
    RealServer::python("server_mcp.py")
}

fn with_progress(tool: &str, arguments: Value, token: Value) -> Value {
    json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": token } })
}

#[test]
fn sf_4_a_server_of_the_older_era_in_python_is_the_same_through_the_gateway() {
    assert_same(
        "sf_4_python_older",
        |_| server(),
        |talk, _| {
            talk.initialize(everything());
            talk.request("tools/list", json!({}));
            talk.call("add", json!({ "a": 1, "b": 2 }));
            talk.call("add", json!({ "a": "one" }));
            talk.call("fail", json!({ "why": "no reason" }));
            talk.request("tools/call", with_progress("count", json!({ "to": 3 }), json!("p")));
            talk.request("resources/templates/list", json!({}));
            talk.request("resources/read", json!({ "uri": "note://a" }));
            talk.request("prompts/get", json!({ "name": "greet", "arguments": { "name": "Ada" } }));
            talk.call("learn", json!({}));
            talk.request("server/discover", json!({}));
            talk.request("vendor/unknown", json!({}));
            talk.request("ping", json!({}));
        },
    );
}

#[test]
fn sf_4_a_request_that_a_server_cancels_is_cancelled_through_the_gateway() {
    assert_same(
        "sf_4_withdrawn",
        |_| server(),
        |talk, _| {
            talk.initialize(everything());
            talk.call("wonder", json!({}));
            talk.until("the withdrawal", 1, |message| message["method"] == "notifications/cancelled");
            talk.call("wonder", json!({}));
            talk.until("the withdrawal", 2, |message| message["method"] == "notifications/cancelled");
        },
    );
}

/// Questions get new numbers, so that those of a restarted server differ from the earlier ones.
#[test]
fn sf_4_a_request_that_a_restarted_server_cancels_is_cancelled_through_the_gateway() {
    let place = RealServerFolder::new("sf_4_withdrawn_again", "");
    let mark = place.folder().join("mark");
    let mut talk = RecordingClient::start(server().arg(&mark).command(&place, ServerRoute::Through));
    let is_withdrawal = |message: &Value| message["method"] == "notifications/cancelled";
    talk.initialize(everything());
    for times in 1..=2 {
        talk.call("wonder", json!({}));
        talk.until("the withdrawal", times, is_withdrawal);
        let request_ids: Vec<_> =
            talk.server_messages.iter().filter_map(|message| message.get("id")).collect();
        let withdrawn: Vec<_> = talk
            .server_messages
            .iter()
            .filter(|message| is_withdrawal(message))
            .map(|message| &message["params"]["requestId"])
            .collect();
        assert_eq!(withdrawn, request_ids);
        let server = process_of("python", &mark);
        kill(server);
        wait(|| !is_running(server), || "the end of the server".to_owned());
        // A list request is repeated if the server died meanwhile. After it the next server is running.
        talk.request("tools/list", json!({}));
    }
}

#[test]
fn sf_4_a_server_of_the_newer_era_is_the_same_through_the_gateway() {
    assert_same(
        "sf_4_python_newer",
        |_| server(),
        |talk, _| {
            talk.without_handshake(everything());
            talk.request("server/discover", json!({}));
            talk.request("tools/list", json!({}));
            talk.call("add", json!({ "a": 1, "b": 2 }));
            talk.call("fail", json!({ "why": "no reason" }));
            talk.request("tools/call", with_progress("count", json!({ "to": 3 }), json!(1)));
            talk.request("resources/read", json!({ "uri": "note://a" }));
            talk.request("prompts/get", json!({ "name": "greet", "arguments": { "name": "Ada" } }));
            talk.request("vendor/unknown", json!({}));
            talk.request("ping", json!({}));
        },
    );
}

#[test]
fn sf_4_a_question_in_an_answer_is_answered_with_the_call_repeated_through_the_gateway() {
    assert_same(
        "sf_4_question",
        |_| server(),
        |talk, _| {
            talk.without_handshake(everything());
            let first = talk.call("ask", json!({}));
            assert_eq!(first["resultType"], "input_required", "{first}");
            let again = json!({
                "name": "ask",
                "arguments": {},
                "inputResponses": { "who": { "action": "accept", "content": { "name": "Ada" } } },
                "requestState": first["requestState"],
            });
            let second = talk.request("tools/call", again);
            assert_eq!(second["resultType"], "complete", "{second}");
        },
    );
}
#[test]
fn sf_4_changes_are_sent_with_the_id_of_the_clients_own_request_through_the_gateway() {
    assert_same(
        "sf_4_listen",
        |_| server(),
        |talk, _| {
            talk.without_handshake(everything());
            talk.send("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
            talk.until("that it listens", 1, |message| {
                message["method"] == "notifications/subscriptions/acknowledged"
            });
            talk.call("learn", json!({}));
            talk.until("the change", 1, |message| message["method"] == "notifications/tools/list_changed");
        },
    );
}

//! The reference server with one of everything.

use serde_json::{Value, json};

use super::RealServer;
use super::conversation::{RecordingClient, everything};
use super::parity::{assert_same, is_line_of_the_log};

fn server() -> RealServer {
    RealServer::node("mcp-server-everything").arg("stdio")
}

/// Initializes the client, and waits for the messages that the server sends after that.
fn initialize_client(talk: &mut RecordingClient) {
    talk.initialize(everything());
    talk.until("the roots being asked for", 1, is_about_roots);
}

fn is_about_roots(message: &Value) -> bool {
    message["params"]["data"].as_str().is_some_and(|data| data.starts_with("Roots updated"))
}

#[test]
fn sf_4_capabilities_of_a_server_are_listed_the_same_through_the_gateway() {
    assert_same(
        "sf_4_lists",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            let tools = talk.request("tools/list", json!({}));
            assert_eq!(
                tools["tools"].as_array().map(Vec::len),
                Some(19),
                "all of them, also those for what we can do"
            );
            talk.request("tools/list", json!({ "cursor": "nonsense", "x-own": true }));
            talk.request("resources/list", json!({}));
            talk.request("resources/templates/list", json!({}));
            talk.request("prompts/list", json!({}));
            talk.request("tasks/list", json!({}));
            talk.request("ping", json!({}));
        },
    );
}

#[test]
fn sf_4_a_client_that_can_do_little_is_offered_the_same_through_the_gateway() {
    assert_same(
        "sf_4_little",
        |_| server(),
        |talk, _| {
            talk.initialize(json!({}));
            talk.request("tools/list", json!({}));
            talk.call("get-roots-list", json!({}));
        },
    );
}

#[test]
fn sf_4_tool_results_are_the_same_through_the_gateway() {
    assert_same(
        "sf_4_tools",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            talk.request("tools/list", json!({}));
            talk.call("echo", json!({ "message": "grüße \u{1F600} \"\\ \u{2028}" }));
            let call = json!({
                "name": "echo",
                "arguments": { "message": "x", "unknown": [1, 1.50, null] },
                "unknown": { "a": 1 },
                "_meta": { "vendor/thing": 1 },
            });
            talk.request("tools/call", call);
            talk.call("get-sum", json!({ "a": 1.5, "b": 12_345_678_901_i64 }));
            talk.call("get-tiny-image", json!({}));
            talk.call("get-annotated-message", json!({ "messageType": "error", "includeImage": true }));
            talk.call("get-resource-links", json!({ "count": 3 }));
            talk.call("get-resource-reference", json!({ "resourceType": "Blob", "resourceId": 2 }));
            talk.call("get-structured-content", json!({ "location": "Chicago" }));
            talk.call("get-roots-list", json!({}));
            // The server has the environment in which it was started.
            talk.call("get-env", json!({}));
            let file =
                json!({ "name": "a.gz", "data": "data:text/plain,words", "outputType": "resourceLink" });
            let link = talk.call("gzip-file-as-resource", file);
            talk.request("resources/read", json!({ "uri": link["content"][0]["uri"] }));
            // Omitted arguments, and a call that is made twice.
            talk.request("tools/call", json!({ "name": "get-tiny-image" }));
            talk.call("get-sum", json!({ "a": 1, "b": 2 }));
            talk.call("get-sum", json!({ "a": 1, "b": 2 }));
        },
    );
}

#[test]
fn sf_4_refusals_of_a_server_are_the_same_through_the_gateway() {
    assert_same(
        "sf_4_refused",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            talk.call("echo", json!({}));
            talk.call("no-such-tool", json!({}));
            talk.request(
                "tools/call",
                json!({ "name": "echo", "arguments": { "message": "x" }, "task": { "ttl": 1000 } }),
            );
            talk.request("tools/call", json!({}));
            talk.request("tools/call", json!({ "name": "echo", "arguments": [1] }));
            talk.request("tools/call", json!({ "name": 17, "arguments": {} }));
            talk.request("vendor/unknown", json!({ "a": [1] }));
            talk.request("resources/read", json!({ "uri": "demo://nothing" }));
            talk.request("prompts/get", json!({ "name": "no-such-prompt" }));
            talk.request("prompts/get", json!({ "name": "args-prompt", "arguments": {} }));
            talk.request("tasks/get", json!({ "taskId": "none" }));
            talk.request("logging/setLevel", json!({ "level": "shrill" }));
            talk.request("server/discover", json!({}));
            talk.notify("notifications/vendor/unknown", json!({ "a": 1 }));
            talk.call("echo", json!({ "message": "and it goes on" }));
        },
    );
}

#[test]
fn sf_4_progress_arrives_under_the_clients_own_token_through_the_gateway() {
    assert_same(
        "sf_4_progress",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            for token in [json!("a token"), json!(1), json!(0), json!("1")] {
                let call = json!({
                    "name": "trigger-long-running-operation",
                    "arguments": { "duration": 0.2, "steps": 4 },
                    "_meta": { "progressToken": token },
                });
                talk.request("tools/call", call);
            }
            talk.call("trigger-long-running-operation", json!({ "duration": 0.1, "steps": 2 }));
            assert_eq!(
                talk.server_messages
                    .iter()
                    .filter(|message| message["method"] == "notifications/progress")
                    .count(),
                16,
                "none for the call without a token"
            );
        },
    );
}

#[test]
fn sf_4_a_call_that_is_cancelled_has_no_answer_through_the_gateway() {
    assert_same(
        "sf_4_cancelled",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            let long = |seconds: f64| json!({ "name": "trigger-long-running-operation", "arguments": { "duration": seconds, "steps": 1 } });
            let unwanted = talk.send("tools/call", long(0.5));
            talk.notify(
                "notifications/cancelled",
                json!({ "requestId": unwanted, "reason": "a change of mind" }),
            );
            // An answer to the first would come before this one, and be taken for it.
            talk.request("tools/call", long(1.0));
            talk.request("ping", json!({}));
        },
    );
}

#[test]
fn sf_4_requests_of_a_server_to_its_client_are_answered_through_the_gateway() {
    assert_same(
        "sf_4_asked",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            talk.call("trigger-sampling-request", json!({ "prompt": "say something", "maxTokens": 7 }));
            talk.call("trigger-sampling-request", json!({ "prompt": "refuse this" }));
            talk.call("trigger-elicitation-request", json!({}));
            talk.call("trigger-sampling-request-async", json!({ "prompt": "as a task" }));
            talk.call("trigger-elicitation-request-async", json!({}));
            let url = json!({ "url": "file:///page", "elicitationId": "e-1" });
            talk.call("trigger-url-elicitation", url);
            talk.notify("notifications/roots/list_changed", json!({}));
            talk.until("the roots being asked for again", 2, is_about_roots);
            talk.call("get-roots-list", json!({}));
        },
    );
}

#[test]
fn sf_4_a_call_that_requires_a_page_visit_reports_it_and_runs_when_it_is_repeated() {
    assert_same(
        "sf_4_page",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            let call = json!({ "url": "file:///page", "errorPath": true });
            let first = talk.call("trigger-url-elicitation", call.clone());
            assert_eq!(first["code"], -32042, "{first}");
            talk.call("trigger-url-elicitation", call);
        },
    );
}

#[test]
fn sf_4_resources_and_their_updates_are_the_same_through_the_gateway() {
    assert_same(
        "sf_4_resources",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            let watched = "demo://resource/static/document/architecture.md";
            talk.request("resources/read", json!({ "uri": watched }));
            talk.request("resources/read", json!({ "uri": "demo://resource/dynamic/text/1" }));
            talk.request("resources/read", json!({ "uri": "demo://resource/dynamic/blob/2" }));
            talk.request("resources/subscribe", json!({ "uri": watched }));
            talk.call("toggle-subscriber-updates", json!({}));
            talk.until("an update", 1, |message| message["method"] == "notifications/resources/updated");
            talk.call("toggle-subscriber-updates", json!({}));
            talk.request("resources/unsubscribe", json!({ "uri": watched }));
        },
    );
}

#[test]
fn sf_4_prompts_completions_and_logging_are_the_same_through_the_gateway() {
    assert_same(
        "sf_4_prompts",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            talk.request("prompts/get", json!({ "name": "simple-prompt" }));
            talk.request("prompts/get", json!({ "name": "args-prompt", "arguments": { "city": "Ulm" } }));
            let resource = json!({ "resourceType": "Text", "resourceId": "1" });
            talk.request("prompts/get", json!({ "name": "resource-prompt", "arguments": resource }));
            let of_prompt = json!({
                "ref": { "type": "ref/prompt", "name": "completable-prompt" },
                "argument": { "name": "name", "value": "A" },
                "context": { "arguments": { "department": "Engineering" } },
            });
            talk.request("completion/complete", of_prompt);
            let of_resource = json!({
                "ref": { "type": "ref/resource", "uri": "demo://resource/dynamic/text/{resourceId}" },
                "argument": { "name": "resourceId", "value": "1" },
            });
            talk.request("completion/complete", of_resource);
            talk.request("logging/setLevel", json!({ "level": "debug" }));
            talk.call("toggle-simulated-logging", json!({}));
            talk.until("a line of the log", 1, |message| {
                is_line_of_the_log(&message["params"]["data"].to_string())
            });
            talk.call("toggle-simulated-logging", json!({}));
            talk.request("logging/setLevel", json!({ "level": "error" }));
            // Sent at a level that the client has turned off.
            talk.request("resources/subscribe", json!({ "uri": "demo://resource/dynamic/text/1" }));
        },
    );
}

#[test]
fn sf_4_a_call_that_is_a_task_is_one_through_the_gateway() {
    assert_same(
        "sf_4_tasks",
        |_| server(),
        |talk, _| {
            initialize_client(talk);
            talk.request("tools/list", json!({}));
            talk.call("simulate-research-query", json!({ "topic": "python" }));
            let call = json!({
                "name": "simulate-research-query",
                "arguments": { "topic": "python", "ambiguous": true },
                "task": { "ttl": 60000 },
                "_meta": { "progressToken": "t" },
            });
            let made = talk.request("tools/call", call);
            let task = json!({ "taskId": made["task"]["taskId"] });
            talk.request("tasks/result", task.clone());
            talk.request("tasks/get", task.clone());
            talk.request("tasks/list", json!({}));
            talk.request("tasks/cancel", task);
        },
    );
}

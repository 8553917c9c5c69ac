//! Calls that cannot be checked, and a state file that cannot be used.

use std::fs;

use serde_json::{Value, json};

use crate::host::{Host, all_tools, exclusive, model};
use crate::loops::guarded;
use crate::model::{ModelReply, ModelRequest, ModelToolCall};

/// Runs a script with one call, and returns the result that the model was shown.
fn one_call(host: &Host, name: &str, arguments: Value) -> String {
    model().script(name, move |request| match request.number {
        1 => ModelReply::call("bank__echo", arguments.clone()),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    host.run(name);
    model().requests(name).last().and_then(ModelRequest::last_result).unwrap_or_default()
}

#[test]
fn a_call_that_the_engine_cannot_read_runs_and_the_host_goes_on() {
    let host = guarded();
    // More than the engine reads. The host shortens such a conversation, so the result is not in the next request.
    one_call(host, "too-long", json!({ "text": "long ".repeat(300_000) }));
    host.wait_for_log("steadfast: bank__echo is not guarded");
    let calls = host.folder.server_calls();
    assert_eq!(calls.iter().filter(|line| line.contains("long long")).count(), 1);

    // The arguments of a model are text, which may have half of a pair of surrogates.
    let odd = ModelToolCall::written("bank__echo", r#"{"text":"odd \ud800 text"}"#);
    model().script("surrogate", move |request| match request.number {
        1 => ModelReply::Calls(vec![odd.clone()]),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    assert_eq!(host.run("surrogate").text(), "that is all");
    assert_eq!(one_call(host, "after-odd", json!({ "text": "fine" })), "fine");
}

#[test]
fn without_a_usable_state_file_calls_run_or_are_blocked_as_the_fail_mode_says() {
    let mut host = exclusive(&json!({}));
    // The folder of the state file is a file.
    let blocked = host.folder.path.join("blocked");
    fs::write(&blocked, "").unwrap();
    let settings = |mode: &str| json!({ "stateFile": blocked.join("state.db"), "failMode": mode });

    // Settings that cannot be applied change nothing.
    host.apply(&settings("closed"), &all_tools());
    host.wait_for_log("steadfast: the new settings are not in force");
    assert_eq!(one_call(&host, "kept", json!({ "text": "it ran" })), "it ran");

    host.kill_and_restart();
    let result = one_call(&host, "closed", json!({ "text": "it did not" }));
    assert!(result.contains("Steadfast could not check the call"), "{result}");
    assert!(!host.folder.server_calls().iter().any(|line| line.contains("it did not")));

    host.apply(&settings("open"), &all_tools());
    assert_eq!(one_call(&host, "open", json!({ "text": "it ran too" })), "it ran too");
    assert!(host.log().contains("steadfast: bank__echo is not guarded"));
}

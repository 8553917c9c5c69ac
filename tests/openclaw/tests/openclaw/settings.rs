//! Settings, and their changes while the host runs.

use std::{fs, thread};

use serde_json::{Value, json};

use crate::host::{Host, all_tools, exclusive, model, only_steadfast, request, wait};
use crate::model::ModelReply;

/// Runs a script that always makes this call, at most eight times, and returns the number of requests to the model.
fn requests_of_loop(host: &Host, name: &str, tool: &str, arguments: Value) -> usize {
    let tool = tool.to_owned();
    model().script(name, move |request| match request.number {
        1..=8 => ModelReply::call(&tool, arguments.clone()),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    host.run(name);
    model().requests(name).len()
}

/// Returns the number of engines that were opened.
fn engines(host: &Host) -> usize {
    host.log().matches("steadfast: guards tool calls").count()
}

#[test]
fn tg_7_settings_count_and_new_ones_apply_while_the_host_runs() {
    let host = exclusive(&json!({ "maxFailuresPerTurn": 3 }));
    assert_eq!(requests_of_loop(&host, "three", "read", json!({})), 3);
    let before = engines(&host);

    host.apply(&json!({ "maxFailuresPerTurn": 7, "maxIdenticalFailures": 4 }), &all_tools());
    assert_eq!(requests_of_loop(&host, "seven", "read", json!({})), 7);
    let shown = model().requests("seven");
    // The fourth failure is the loop, so the model is warned with the fifth request.
    let warned: Vec<usize> = shown
        .iter()
        .filter(|request| request.user_texts().iter().any(|text| text.contains("[LOOP DETECTED]")))
        .map(|request| request.number)
        .collect();
    assert_eq!(warned, [5, 6, 7]);

    // Shadow mode decides, and touches nothing.
    host.apply(&json!({ "mode": "shadow" }), &all_tools());
    assert_eq!(requests_of_loop(&host, "shadow", "read", json!({})), 9);
    assert_eq!(requests_of_loop(&host, "shadow-failing", "bank__fail", json!({ "id": "shadow" })), 9);
    let shown = model().requests("shadow-failing");
    assert_eq!(shown.last().unwrap().results(), vec!["no such account"; 8]);

    host.apply(&json!({ "enabled": false }), &all_tools());
    assert_eq!(requests_of_loop(&host, "disabled", "read", json!({})), 9);

    host.apply(&json!({}), &all_tools());
    assert_eq!(requests_of_loop(&host, "enabled", "read", json!({})), 5);
    assert_eq!(engines(&host), before, "settings are changed in place, and calls in flight go on");
}

#[test]
fn new_settings_apply_during_a_call_and_the_call_is_not_lost() {
    let host = exclusive(&json!({}));
    model().script("reloaded", |request| match request.number {
        1 => ModelReply::call("bank__gate", json!({ "id": "reloaded" })),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    let running = || host.folder.server_calls().iter().any(|line| line.contains("reloaded"));
    let reply = thread::scope(|scope| {
        let run = scope.spawn(|| host.run("reloaded"));
        wait(running, || "a call in flight".to_owned());
        host.apply(&json!({ "maxFailuresPerTurn": 9 }), &all_tools());
        fs::write(host.folder.path.join("ledger-reloaded"), "").unwrap();
        run.join().unwrap()
    });
    assert_eq!(reply.text(), "that is all");
    assert_eq!(model().requests("reloaded").last().unwrap().results(), ["open"]);
    // The new instance of the plugin has reported the call that the old one began.
    let log = host.log();
    assert!(!log.contains("bank__gate was not reported") && !log.contains("bank__gate came too late"));
}

#[test]
fn metrics_have_the_prefix_of_the_host() {
    let host = exclusive(&json!({ "metricsAddress": "127.0.0.1:0" }));
    assert_eq!(requests_of_loop(&host, "measured", "bank__echo", json!({ "text": "x" })), 9);
    host.wait_for_log("steadfast: metrics at http://");
    let log = host.log();
    let (_, rest) = log.rsplit_once("metrics at http://").unwrap();
    let address = rest.split('/').next().unwrap().parse().unwrap();
    let (status, metrics) = request(address, "GET", "/metrics", &[], None).unwrap();
    assert_eq!(status, 200);
    let line = metrics
        .lines()
        .find(|line| line.starts_with("openclaw_tool_calls_total") && line.contains("bank/echo"));
    assert!(line.is_some_and(|line| line.contains("success")), "{metrics}");
}

#[test]
fn the_settings_of_the_older_tool_guard_apply() {
    let host = exclusive(&json!({}));
    let mut plugins = only_steadfast(&json!({}));
    plugins["entries"]["tool-guard"] = json!({ "config": { "maxFailuresPerTurn": 4 } });
    host.apply_plugins(plugins, &all_tools());
    assert_eq!(requests_of_loop(&host, "older", "read", json!({})), 4);
}

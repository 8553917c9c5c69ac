//! Loops of failing calls.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::host::{Host, HostReply, all_tools, exclusive, model, only_steadfast};
use crate::model::{ModelReply, ModelRequest};

const LOOP: &str = "[LOOP DETECTED]";
const LIMIT: &str = "[TOOL ERROR LIMIT]";

/// Returns the gateway with the plugin and its default settings, except for the time limit of one tool.
pub(crate) fn guarded() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let settings = json!({
            "watchdog": { "tools": { "bank__hang": 1 } },
            "toolClasses": { "bank__pay": "mutating" },
        });
        Host::start("guarded", &only_steadfast(&settings), &all_tools(), &[])
    })
}

/// Runs a script that always makes the same call, and returns the answer to the user and the requests to the model.
fn repeat(name: &str, tool: &str, arguments: &Value) -> (HostReply, Vec<ModelRequest>) {
    let (tool, arguments) = (tool.to_owned(), arguments.clone());
    model().script(name, move |_| ModelReply::call(&tool, arguments.clone()));
    let reply = guarded().run(name);
    (reply, model().requests(name))
}

/// Runs a script with these calls one after the other, and returns the results that the model was shown.
fn run_calls(host: &Host, session: &str, name: &str, calls: Vec<(&str, Value)>) -> Vec<String> {
    let calls: Vec<_> =
        calls.into_iter().map(|(tool, arguments)| ModelReply::call(tool, arguments)).collect();
    model().script(name, move |request| {
        calls.get(request.number - 1).cloned().unwrap_or_else(|| ModelReply::Text("that is all".to_owned()))
    });
    host.send(session, &format!("go [script {name}]"));
    model().requests(name).last().map(ModelRequest::results).unwrap_or_default()
}

fn has(text: &str, marker: &str) -> bool {
    text.contains(marker)
}

/// The calls of a tool that reached the server, with this argument.
fn server_calls(host: &Host, id: &str) -> usize {
    host.folder.server_calls().iter().filter(|line| line.contains(id)).count()
}

#[test]
fn tg_1_the_second_identical_failure_is_a_loop_and_the_third_call_is_not_run() {
    let results = run_calls(guarded(), "test-tg-1", "tg-1", vec![("bank__fail", json!({ "id": "tg-1" })); 3]);
    assert_eq!(results.len(), 3, "{results:#?}");
    assert_eq!(results[0], "no such account");
    assert!(results[1].starts_with("no such account") && has(&results[1], LOOP), "{}", results[1]);
    assert!(results[2].starts_with(LOOP) && has(&results[2], "not run"), "{}", results[2]);
    assert_eq!(server_calls(guarded(), "tg-1"), 2);
}

#[test]
fn tg_2_five_different_failures_end_the_turn_with_an_answer_to_the_user() {
    model().script("tg-2", |request| {
        ModelReply::call("bank__fail", json!({ "id": format!("tg-2-{}", request.number) }))
    });
    let reply = guarded().run("tg-2");
    let requests = model().requests("tg-2");
    let results = requests.last().unwrap().results();
    assert_eq!(server_calls(guarded(), "tg-2-"), 5);
    assert_eq!(results.iter().filter(|result| has(result, LIMIT)).count(), 1, "{results:#?}");
    assert!(has(&results[4], LIMIT), "{results:#?}");
    // The last request has no tools, so that the model has to answer.
    assert_eq!((requests.len(), requests.last().unwrap().tools.len()), (6, 0));
    assert_eq!(reply.text(), "done after 6 requests");
}

#[test]
fn tg_3_successes_do_not_count() {
    let fail = |number: usize| ("bank__fail", json!({ "id": format!("tg-3-{number}") }));
    let work = |number: usize| ("bank__echo", json!({ "text": format!("tg-3-{number}") }));
    let calls = (0..8).map(|number| if number % 2 == 0 { fail(number) } else { work(number) }).collect();
    let results = run_calls(guarded(), "test-tg-3", "tg-3", calls);
    assert_eq!(results.len(), 8, "{results:#?}");
    for (number, result) in results.iter().enumerate() {
        let expected = if number % 2 == 0 { "no such account".to_owned() } else { format!("tg-3-{number}") };
        assert_eq!(*result, expected);
    }
}

#[test]
fn tg_4_a_missing_parameter_is_not_worth_a_retry_and_a_timeout_is() {
    let (_, requests) = repeat("tg-4", "read", &json!({}));
    let texts = requests.last().unwrap().user_texts().join("\n");
    assert!(has(&texts, "[NON-RETRYABLE]"), "{texts}");
    let timeout = ("bank__fail", json!({ "id": "tg-4", "message": "the request timed out" }));
    let results = run_calls(guarded(), "test-tg-4-timeout", "tg-4-timeout", vec![timeout]);
    assert!(!has(&results[0], "[NON-RETRYABLE]"), "{}", results[0]);
}

#[test]
fn tg_10_the_log_of_malformed_calls_names_the_model() {
    repeat("tg-10", "write", &json!({ "tg-10": 1 }));
    let lines = guarded().folder.malformed_calls();
    let of_test = lines.iter().filter(|line| line["arguments"].as_str().unwrap().contains("tg-10"));
    let facts: BTreeSet<_> = of_test
        .map(|line| ["model", "model_source", "tool", "namespace"].map(|name| line[name].as_str().unwrap()))
        .collect();
    assert_eq!(facts, BTreeSet::from([["fake/loopy", "host", "write", "openclaw"]]));
}

#[test]
fn tg_6_the_next_turn_starts_with_new_counts() {
    let calls =
        |turn: usize| (0..5).map(move |n| ("bank__fail", json!({ "id": format!("tg-6-{turn}-{n}") })));
    let first = run_calls(guarded(), "test-tg-6", "tg-6-first", calls(1).collect());
    assert!(has(first.last().unwrap(), LIMIT), "{first:#?}");
    let second = run_calls(guarded(), "test-tg-6", "tg-6-second", calls(2).take(4).collect());
    assert_eq!(second, vec!["no such account"; 4]);
}

#[test]
fn tg_8_a_loop_of_empty_reads_ends_after_five_requests_to_the_model() {
    let (_, requests) = repeat("tg-8", "read", &json!({}));
    assert_eq!(requests.len(), 5);
    let texts: Vec<_> = requests.last().unwrap().user_texts();
    assert_eq!(
        texts.iter().filter(|text| has(text, LOOP)).count(),
        1,
        "the model is warned once: {texts:#?}"
    );
    // The session goes on.
    let results =
        run_calls(guarded(), "test-tg-8", "tg-8-next", vec![("bank__echo", json!({ "text": "on" }))]);
    assert_eq!(results.last().unwrap(), "on");
}

#[test]
fn tg_8_a_loop_of_unknown_tools_ends_after_five_requests_to_the_model() {
    let (_, requests) = repeat("tg-8-unknown", "no_such_tool", &json!({ "path": "x" }));
    assert_eq!(requests.len(), 5);
}

#[test]
fn tg_8_a_loop_of_failing_reads_ends_after_six_requests_with_an_answer_to_the_user() {
    let (reply, requests) = repeat("tg-8-failing", "read", &json!({ "path": "tg-8-is-missing.txt" }));
    assert_eq!((requests.len(), requests.last().unwrap().tools.len()), (6, 0));
    assert_eq!(reply.text(), "done after 6 requests");
}

#[test]
fn a_loop_of_calls_that_may_not_run_twice_is_ended_when_the_model_does_not_stop() {
    let (_, requests) = repeat("hard-stop", "bank__fail", &json!({ "id": "hard-stop" }));
    assert_eq!((server_calls(guarded(), "hard-stop"), requests.len()), (2, 6));
}

#[test]
fn one_engine_serves_all_instances_of_the_plugin() {
    let host = guarded();
    host.wait_for_log("steadfast: guards tool calls");
    assert_eq!(host.log().matches("steadfast: guards tool calls").count(), 1);
}

#[test]
fn a_tool_that_keeps_failing_is_refused_and_asks_for_approval_before_that() {
    // Each in a turn of its own, so that no limit of failures is reached.
    let host = exclusive(&json!({ "trust": { "mode": "off" } }));
    let call = |number: usize| {
        let arguments = json!({ "id": format!("unstable-{number}") });
        let name = format!("unstable-{number}");
        run_calls(&host, &format!("test-{name}"), &name, vec![("bank__unstable", arguments)])[0].clone()
    };
    let results: Vec<String> = (1..=6).map(call).collect();
    assert!(results[..5].iter().all(|result| result.starts_with("503")), "{results:#?}");
    assert!(results[5].contains("circuit breaker"), "{results:#?}");
    assert_eq!(server_calls(&host, "unstable-"), 5);

    host.apply(&json!({ "breaker": { "mode": "off" } }), &all_tools());
    let results: Vec<String> = (11..=14).map(call).collect();
    assert!(results[3].contains("approval"), "{results:#?}");
    assert_eq!(server_calls(&host, "unstable-"), 5 + 3);
}

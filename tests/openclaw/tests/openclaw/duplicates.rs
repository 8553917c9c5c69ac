//! Calls that are dispatched twice.

use serde_json::{Value, json};

use crate::host::{Host, exclusive, model};
use crate::model::{ModelReply, ModelRequest};

/// Runs a script with these calls, one after the other, and returns the results of this message.
fn run(host: &Host, session: &str, name: &str, calls: Vec<ModelReply>) -> Vec<String> {
    model().script(name, move |request| {
        calls.get(request.number - 1).cloned().unwrap_or_else(|| ModelReply::Text("that is all".to_owned()))
    });
    host.send(session, &format!("go [script {name}]"));
    model().requests(name).last().map(ModelRequest::results).unwrap_or_default()
}

fn pay(id: &str, to: &str) -> ModelReply {
    ModelReply::call_with_id(id, "bank__pay", json!({ "to": to, "amount": 1 }))
}

/// Returns how often the server was paid to.
fn payments(host: &Host, to: &str) -> usize {
    let paid = format!("\"to\":\"{to}\"");
    host.folder.server_calls().iter().filter(|line| line.starts_with("pay ") && line.contains(&paid)).count()
}

fn settings() -> Value {
    json!({ "toolClasses": { "bank__pay": "mutating" } })
}

/// Ids as models draw them.
const FIRST: &str = "call_0f3c9a5be81d42c7a6f0d311";
const SECOND: &str = "call_7be20d94c1aa4f0f8d5e9b02";

#[test]
fn the_same_dispatch_again_is_blocked_with_its_earlier_result_also_after_a_restart_of_the_host() {
    let mut host = exclusive(&settings());
    let results =
        run(&host, "test-dup", "dup", vec![pay(FIRST, "ann"), pay(FIRST, "ann"), pay(SECOND, "ann")]);
    assert_eq!(
        (results[0].as_str(), results[2].as_str()),
        ("paid 1", "paid 1"),
        "another call is another payment"
    );
    assert!(results[1].contains("was not run again") && results[1].ends_with("paid 1"), "{}", results[1]);
    assert_eq!(payments(&host, "ann"), 2);

    // Some models number their calls from 1 in every run. Such an id is not that of an earlier call.
    for turn in ["count-1", "count-2"] {
        assert_eq!(run(&host, "test-count", turn, vec![pay("call_1", "bob")]), ["paid 1"]);
    }
    assert_eq!(payments(&host, "bob"), 2);

    host.kill_and_restart();
    let results = run(&host, "test-dup", "dup-restarted", vec![pay(FIRST, "ann")]);
    assert!(results[0].contains("was not run again") && results[0].ends_with("paid 1"), "{}", results[0]);
    assert_eq!(payments(&host, "ann"), 2);
}

#[test]
fn behind_the_gateway_a_call_under_one_key_runs_once_and_its_result_is_replayed_after_a_restart() {
    let mut host = exclusive(&json!({}));
    let order = |number| ModelReply::call("safe__order", json!({ "number": number }));
    let first = run(&host, "test-order", "order", vec![order("n-1"), order("n-2"), order("n-1")]);
    assert_eq!(first, ["ordered n-1", "ordered n-2", "ordered n-1"]);

    host.kill_and_restart();
    let again = run(&host, "test-order", "order-restarted", vec![order("n-1")]);
    assert_eq!(again, ["ordered n-1"], "as if it had run");
    let orders: Vec<_> =
        host.folder.server_calls().into_iter().filter(|line| line.starts_with("order ")).collect();
    assert_eq!(orders, [r#"order {"number":"n-1"}"#, r#"order {"number":"n-2"}"#]);
}

#[test]
fn behind_the_gateway_a_transient_fault_is_retried_and_a_loop_still_ends() {
    let host = exclusive(&json!({}));
    let flaky = ModelReply::call("safe__flaky", json!({ "id": "retried", "failures": 2 }));
    assert_eq!(run(&host, "test-retry", "retry", vec![flaky]), ["recovered"]);

    model().script("safe-loop", |_| ModelReply::call("safe__fail", json!({ "id": "safe-loop" })));
    host.run("safe-loop");
    assert!(model().requests("safe-loop").len() <= 7);
    assert_eq!(host.folder.server_calls().iter().filter(|line| line.contains("safe-loop")).count(), 2);
}

//! RP-11: trust in a file survives `kill -9` at any moment, whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steadfast_core::policy::{EnforcementMode, PolicyProfile, ToolClass};
use steadfast_core::trust::TrustSnapshot;
use steadfast_executor::{Engine, TrustFile};

use crate::calls::{CountingTool, TEST_TIMEOUT, call, http};
use crate::child::{CallingProcess, send_to_parent};
use crate::ledger::draw;
use crate::world::ConformanceFolder;

#[test]
fn rp_11_trust_in_a_file_survives_kill_9_at_any_moment() {
    let folder = ConformanceFolder::new();
    let file = TrustFile::at(folder.file("reliability.json"));
    let tools = |round: u64| -> BTreeSet<String> {
        let Some(text) = file.read().unwrap() else { return BTreeSet::new() };
        let found =
            TrustSnapshot::read(&text).unwrap_or_else(|error| panic!("round {round}: {error}\n{text}"));
        found.tool_states.keys().map(ToString::to_string).collect()
    };
    let mut before = BTreeSet::new();
    for round in 0..20_u64 {
        let child = CallingProcess::start(&json!({ "role": "trust", "file": file.path(), "round": round }));
        assert_eq!(child.next(), json!({ "ready": true }));
        // Every other round has something new to lose, however slow it is.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while round % 2 == 1 && tools(round).len() == before.len() {
            assert!(Instant::now() < deadline, "round {round}: nothing is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(draw(round) % 150_000));
        child.kill();
        let tools = tools(round);
        let lost: Vec<_> = before.difference(&tools).collect();
        assert!(lost.is_empty(), "round {round}: trust was lost once and is trusted again: {lost:?}");
        before = tools;
    }
    assert!(before.len() >= 10, "{before:?}");
}

/// Loses the trust of one tool after the other.
pub(crate) async fn lose_trust(orders: &Value) {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.breaker = EnforcementMode::Off;
    let file = TrustFile::at(orders["file"].as_str().unwrap());
    let engine = Engine::builder().policies(Arc::new(policy)).trust_file(file).start().await;
    send_to_parent(&json!({ "ready": true }));
    for tool in 0..40 {
        for failure in 0..3 {
            let name = format!("tool-{}-{tool}", orders["round"]);
            let failing = call(json!({ "toolName": name, "payload": { "params": { "failure": failure } } }));
            engine.call(failing, CountingTool::new(|_| http(500))).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Until it is killed, or its parent is gone.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
}

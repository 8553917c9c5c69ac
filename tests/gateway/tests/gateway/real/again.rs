//! Calls that follow each other as quickly as a program can make them.

use std::fs;

use serde_json::json;

use super::conversation::RecordingClient;
use super::{RealServer, RealServerFolder, ServerRoute};

/// The next call shows that the answer has arrived. It was taken for a resend of the same call, and got the answer
/// instead of running.
#[test]
fn a_call_that_is_made_again_after_its_answer_runs_again() {
    // Even at once: otherwise it would be taken for one call that was dispatched twice.
    let place = RealServerFolder::new("made_again", "[tools.\"real/*\"]\ndedupe.double_dispatch = false\n");
    let ledger = place.folder().join("ledger");
    fs::write(&ledger, "").unwrap();
    let server = RealServer::of(env!("CARGO_BIN_EXE_steadfast-test-server").into()).arg(ledger);
    let mut talk = RecordingClient::start(server.command(&place, ServerRoute::Through));
    talk.initialize(json!({}));
    talk.request("tools/list", json!({}));
    for run in 1..=300 {
        let result = talk.call("pay", json!({ "id": "a" }));
        assert_eq!(result["content"][0]["text"], format!("pay a, run {run}"), "{result}");
    }
}

//! `steadfast approvals`, `approve`, `deny`, `resolve` and `reset`, run by an operator on a store that no other
//! process has open, and on one that an engine uses.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

#[path = "support/folder.rs"]
mod folder;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast::admin::approval::ApprovalChannel;
use steadfast::call::classify::{AttemptFault, FaultSource, TransportError};
use steadfast::call::code::Code;
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::{CallOptions, EnvelopeBuilder, ToolResult, output::ToolOutput};
use steadfast::policy::{ApprovalTrigger, CallPolicy, EnforcementMode, ToolClass};
use steadfast::store::{RecordFilter, RecordPage, SqliteOptions, SqliteStore};
use steadfast::{Attempt, CallResponse, Engine};
use steadfast_core::policy::PolicyProfile;

use crate::folder::CliTestFolder;

/// A folder with a configuration and its store.
struct ApprovalTestHome(CliTestFolder);

impl ApprovalTestHome {
    fn new(test: &str) -> Self {
        let folder = CliTestFolder::new(&format!("approvals_{test}"));
        fs::write(folder.join("steadfast.toml"), "[store]\nkind = \"sqlite\"\npath = \"state.db\"\n")
            .unwrap();
        Self(folder)
    }

    /// Returns an engine on that store, like that of a gateway.
    async fn engine(&self, policy: CallPolicy) -> Engine {
        let store = SqliteStore::open(SqliteOptions::at(self.0.join("state.db"))).unwrap();
        Engine::builder().store(Arc::new(store)).policies(Arc::new(policy)).start().await
    }

    /// Runs a command. Returns both output streams and the exit code.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.args(arguments).current_dir(&self.0).env_clear().env("HOME", &self.0);
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr), output.status.code().unwrap())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (out, err, code) = self.run(arguments);
        assert_eq!((err.as_str(), code), ("", 0), "{out}");
        serde_json::from_str(&out).unwrap()
    }

    fn waiting(&self) -> Vec<Value> {
        self.json(&["approvals", "--json"])["approvals"].as_array().unwrap().clone()
    }
}

/// Returns the policy of a tool that must not run twice and needs approval.
fn approval_policy() -> CallPolicy {
    let mut policy = plain();
    policy.approval.when = ApprovalTrigger::Always;
    policy
}

fn plain() -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Mutating);
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.breaker = EnforcementMode::Off;
    policy
}

async fn pay(engine: &Engine, to: &str, key: Option<&str>) -> CallResponse {
    let mut envelope =
        EnvelopeBuilder::new("bank/pay").args(&json!({ "to": to, "password": "hunter2hunter2" }));
    if let Some(key) = key {
        envelope = envelope.key(key);
    }
    engine
        .call(envelope.build().unwrap(), async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) })
        .await
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

#[tokio::test]
async fn rp_7_pending_requests_are_listed_as_text_and_json_without_secrets() {
    let home = ApprovalTestHome::new("list");
    let (out, _, status) = home.run(&["approvals"]);
    assert_eq!((out.as_str(), status), ("nothing waits for approval\n", 0));
    let engine = home.engine(approval_policy()).await;
    for to in ["ann", "bob"] {
        assert_eq!(code(&pay(&engine, to, None).await), Some(Code::ApprovalRequired));
    }
    engine.shutdown(Duration::ZERO).await;
    let waiting = home.waiting();
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    assert_eq!((&waiting[0]["tool"]["tool"], &waiting[0]["askers"]), (&"pay".into(), &1.into()));
    let (out, err, _) = home.run(&["approvals"]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    // They are parked after their responses were sent, so either can be the first.
    assert!(lines[0].starts_with("ID") && lines[1].contains("bank/pay") && out.contains("ann"), "{out}");
    assert!(!out.contains("hunter2") && err.contains("steadfast approve"), "{out}{err}");
}

#[tokio::test]
async fn rp_7_an_approval_applies_to_its_scope() {
    let home = ApprovalTestHome::new("answer");
    let engine = home.engine(approval_policy()).await;
    pay(&engine, "ann", None).await;
    engine.shutdown(Duration::ZERO).await;
    let id = home.waiting()[0]["id"].to_string();
    let (out, err, status) = home.run(&["approve", &id]);
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("exactly these arguments"), "{out}");
    let engine = home.engine(approval_policy()).await;
    assert_eq!(code(&pay(&engine, "bob", None).await), Some(Code::ApprovalRequired), "other arguments");
    assert_eq!(code(&pay(&engine, "ann", None).await), None);
    assert_eq!(code(&pay(&engine, "ann", None).await), Some(Code::ApprovalRequired), "it was for once");
    engine.shutdown(Duration::ZERO).await;
    let (_, err, status) = home.run(&["approve", &id]);
    assert!(status == 1 && err.contains("steadfast approvals"), "{err}");
    let ids: Vec<_> = home.waiting().iter().map(|one| one["id"].to_string()).collect();
    assert_eq!(home.json(&["deny", &ids[0], "--json"])["answer"], "denied");
    let (out, _, status) = home.run(&["approve", &ids[1], "--for", "2h"]);
    assert!(status == 0 && out.contains("2h"), "{out}");
    let engine = home.engine(approval_policy()).await;
    for to in ["ann", "bob", "cyd"] {
        assert_eq!(code(&pay(&engine, to, None).await), None, "{to}");
    }
}

#[tokio::test]
async fn rp_7_a_waiting_call_continues_when_another_process_decides() {
    let home = ApprovalTestHome::new("waits");
    let engine = home.engine(approval_policy()).await;
    for (command, expected) in [("approve", None), ("deny", Some(Code::ApprovalDenied))] {
        let options = CallOptions { channel: ApprovalChannel::Interactive, ..CallOptions::default() };
        let envelope = EnvelopeBuilder::new("bank/pay").args(&json!({ "to": command })).build().unwrap();
        let tool = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
        let calling = tokio::spawn(engine.call_with(envelope, tool, options));
        while engine.admin().approvals(None).is_empty() {
            tokio::task::yield_now().await;
        }
        let id = engine.admin().approvals(None)[0].0.0.to_string();
        let (_, err, status) = home.run(&[command, &id]);
        assert_eq!(status, 0, "{err}");
        assert_eq!(code(&calling.await.unwrap()), expected, "{command}");
    }
}

/// Makes a call whose connection is lost. Returns the call and the response to its caller.
async fn lost(engine: &Engine) -> (CallEnvelope, String) {
    let envelope = EnvelopeBuilder::new("bank/pay").args(&json!({})).key("k").build().unwrap();
    let lost = async |_: Attempt| -> ToolResult {
        let source = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
        Err(AttemptFault::new(source, "gone").into())
    };
    let response = engine.call(envelope.clone(), lost).await;
    assert_eq!(code(&response), Some(Code::OutcomeUnknown));
    (envelope, response.result.error.unwrap().message)
}

fn settles_after(linger: Duration) -> CallPolicy {
    let mut policy = plain();
    policy.settling.linger = linger;
    policy
}

#[tokio::test]
async fn gr_9_an_unknown_outcome_is_resolved_by_the_key_in_its_response() {
    for (verdict, expected) in [("--ran", Some(Code::ResultNotKept)), ("--did-not-run", None)] {
        let home = ApprovalTestHome::new(&format!("resolve{verdict}"));
        let engine = home.engine(settles_after(Duration::ZERO)).await;
        let (envelope, message) = lost(&engine).await;
        let name =
            message.split("steadfast resolve ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let (out, err, status) = home.run(&["resolve", name, verdict]);
        assert_eq!(status, 0, "{err}");
        assert!(out.contains("bank/pay"), "{out}");
        let paid = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
        assert_eq!(code(&engine.call(envelope, paid).await), expected, "{verdict}");
        let (_, err, status) = home.run(&["resolve", name, verdict]);
        assert!(status == 1 && err.contains("there is no call"), "{err}");
    }
}

#[tokio::test]
async fn a_call_that_may_still_take_effect_is_not_resolved_as_not_run() {
    let home = ApprovalTestHome::new("resolve_too_early");
    let engine = home.engine(settles_after(Duration::from_secs(3600))).await;
    lost(&engine).await;
    let open = RecordFilter { open: true, ..RecordFilter::default() };
    let records = engine.admin().records(&open, RecordPage { after: None, limit: 2 }).await.unwrap();
    let [record] = &records[..] else { panic!("{records:?}") };
    let name = record.key.0.to_hex();
    let (out, err, status) = home.run(&["resolve", &name, "--did-not-run"]);
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    for part in ["bank/pay", "the connection was lost", "may still take effect", "try again in "] {
        assert!(err.contains(part), "{part}: {err}");
    }
    let (_, err, status) = home.run(&["resolve", &name, "--ran"]);
    assert_eq!(status, 0, "that it ran can be known at once: {err}");
}

#[tokio::test]
async fn rp_13_lost_trust_in_a_tool_is_restored() {
    let home = ApprovalTestHome::new("reset");
    let mut policy = plain();
    policy.retry.attempts = 1.try_into().unwrap();
    let engine = home.engine(policy).await;
    for number in 0..3 {
        let envelope = EnvelopeBuilder::new("bank/pay").args(&json!({ "n": number })).build().unwrap();
        let fails = async |_: Attempt| -> ToolResult {
            Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
        };
        engine.call(envelope, fails).await;
    }
    assert_eq!(code(&pay(&engine, "ann", None).await), Some(Code::ApprovalRequired));
    engine.shutdown(Duration::ZERO).await;
    assert_eq!(home.json(&["reset", "bank/pay", "--json"])["reset"][0], "bank/pay");
    assert_eq!(code(&pay(&home.engine(plain()).await, "ann", None).await), None);
    let (out, _, status) = home.run(&["reset", "bank/look"]);
    assert_eq!((out.as_str(), status), ("nothing to restore for bank/look\n", 0));
}

#[test]
fn errors_have_advice() {
    let home = ApprovalTestHome::new("mistakes");
    for (arguments, code, part) in [
        (["approve", "7", "--once"].as_slice(), 1, "steadfast approvals"),
        (&["approve", "7", "--for", "soon"], 2, "30m"),
        (&["approve", "7", "--once", "--session"], 2, "--session"),
        (&["deny", "seven"], 2, "seven"),
        (&["resolve", "abc"], 2, "--ran"),
        (&["resolve", "no name", "--ran"], 2, "outcome_unknown"),
        (&["resolve", "abcdef", "--ran"], 1, "steadfast check"),
    ] {
        let (out, err, status) = home.run(arguments);
        assert_eq!((status, out.as_str()), (code, ""), "{arguments:?}: {err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
    fs::write(home.0.join("steadfast.toml"), "[store]\nkind = \"memory\"\n").unwrap();
    let (_, err, status) = home.run(&["approvals"]);
    assert!(status == 2 && err.contains("sqlite"), "{err}");
}

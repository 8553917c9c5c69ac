//! Calls that need approval.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, exclusive, model, node, packages};
use crate::model::{ModelReply, ModelRequest};

/// An operator who is connected to a gateway.
struct Operator {
    child: Child,
    stdin: ChildStdin,
    events: Receiver<Value>,
}

impl Operator {
    fn connect(host: &Host) -> Self {
        let mut command = node(&host.folder.path);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/operator.mjs"));
        command.arg(host.folder.path.join("openclaw.json")).arg(packages());
        command.env("OPENCLAW_STATE_DIR", host.folder.path.join("operator"));
        command.env("OPENCLAW_CONFIG_PATH", host.folder.path.join("openclaw.json"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (found, events) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                let _ = found.send(event);
            }
        });
        let operator = Self { child, stdin, events };
        operator.wait_for("connected");
        operator
    }

    /// Sets the decision about the next requests.
    fn decide(&mut self, decision: &str) {
        writeln!(self.stdin, "{decision}").unwrap();
        self.wait_for("ready");
    }

    /// Sends a command in a session, and returns the answer.
    fn command(&mut self, session: &str, text: &str) -> String {
        writeln!(self.stdin, "chat {session} {text}").unwrap();
        loop {
            let payload = self.wait_for("chat")["payload"].clone();
            if payload["state"] == "final" && payload["message"]["model"] == "gateway-injected" {
                return payload["message"]["content"][0]["text"].as_str().unwrap().to_owned();
            }
        }
    }

    fn wait_for(&self, event: &str) -> Value {
        loop {
            let next = self.events.recv_timeout(Duration::from_secs(300));
            let next = next.unwrap_or_else(|_| panic!("no {event} at the operator"));
            if next["event"] == event {
                return next;
            }
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a script that pays once, and returns the result that the model was shown.
fn pay(host: &Host, name: &str) -> String {
    let arguments = json!({ "to": name, "amount": 1 });
    model().script(name, move |request| match request.number {
        1 => ModelReply::call("bank__pay", arguments.clone()),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    host.run(name);
    model().requests(name).last().and_then(ModelRequest::last_result).unwrap_or_default()
}

#[test]
fn a_call_that_needs_approval_asks_through_the_host_and_without_an_approver_it_is_kept_for_an_operator() {
    let settings = json!({ "trust": { "approval": "always", "approvalSeconds": 300 } });
    let host = exclusive(&settings);
    let paid = |to: &str| host.folder.server_calls().iter().filter(|line| line.contains(to)).count();

    // Nobody is connected.
    let result = pay(&host, "unattended");
    assert!(result.contains("approval"), "{result}");
    assert_eq!(paid("unattended"), 0);

    let mut operator = Operator::connect(&host);
    let pending = operator.command("agent:main:test-unattended", "/steadfast approvals");
    assert!(pending.contains("bank/pay"), "{pending}");
    let id = pending.split(':').next().unwrap().to_owned();
    operator.command("agent:main:test-unattended", &format!("/steadfast approve {id}"));
    operator.decide("deny");
    model().script("unattended-again", |request| match request.number {
        1 => ModelReply::call("bank__pay", json!({ "to": "unattended", "amount": 1 })),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    host.send("test-unattended", "go [script unattended-again]");
    assert_eq!(paid("unattended"), 1, "it was approved meanwhile");

    operator.decide("allow-once");
    assert_eq!((pay(&host, "allowed").as_str(), paid("allowed")), ("paid 1", 1));
    let request = operator.wait_for("plugin.approval.requested");
    assert_eq!(request["request"]["toolName"], "bank__pay");

    operator.decide("deny");
    let result = pay(&host, "denied");
    assert!(result.contains("Denied"), "{result}");
    assert_eq!(paid("denied"), 0);
    assert!(operator.command("agent:main:test-denied", "/steadfast").contains("0 calls in flight"));
}

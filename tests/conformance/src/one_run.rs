//! SF-1 over two processes: however many callers there are, and in whichever process, a key is executed once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use steadfast_testkit::redis::RedisServer;

use crate::calls::envelope;
use crate::child::CallingProcess;
use crate::ledger::LedgerTool;
use crate::world::{ConformanceFolder, unused_prefix};

const KEYS: usize = 200;

#[test]
fn sf_1_two_processes_on_one_file_execute_each_key_once() {
    let folder = ConformanceFolder::new();
    let store = json!({ "store": "sqlite", "path": folder.file("state.db") });
    two_processes(&folder, store);
}

#[test]
fn sf_1_two_processes_on_one_server_execute_each_key_once() {
    let (folder, server) = (ConformanceFolder::new(), RedisServer::shared());
    let store = json!({ "store": "redis", "url": server.url(), "prefix": unused_prefix() });
    two_processes(&folder, store);
}

fn two_processes(folder: &ConformanceFolder, mut orders: Value) {
    let ledger = LedgerTool::at(folder.file("ledger"), 0);
    orders["role"] = json!("calls");
    orders["ledger"] = json!(folder.file("ledger"));
    orders["lease_ms"] = json!(120_000);
    let mut children = [1_u64, 2].map(|seed| {
        orders["seed"] = json!(seed << 32);
        CallingProcess::start(&orders)
    });
    for child in &children {
        assert_eq!(child.next(), json!({ "ready": true }));
    }
    // One begins at the front and the other at the back, and every fourth call is sent twice to each.
    for step in 0..KEYS {
        for (child, number) in children.iter_mut().zip([step, KEYS - 1 - step]) {
            for _ in 0..=usize::from(number % 4 == 0) {
                let tool = ["pay", "put"][number % 2];
                child.send_line(&envelope(
                    json!({ "requestId": format!("r-{number}"), "toolName": tool, "payload": {
                    "idempotencyKey": format!("k-{number}"), "params": { "name": format!("n-{number}") },
                } }),
                ));
            }
        }
    }
    let mut answers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut answered, mut fresh) = (0, 0);
    for message in children.into_iter().flat_map(CallingProcess::finish) {
        let answer = &message["answer"];
        assert_eq!(answer["status"], "success", "{answer}");
        answered += 1;
        fresh += usize::from(answer["fromCache"] == false);
        let output = answer["output"]["content"].as_str().unwrap().to_owned();
        answers.entry(answer["requestId"].as_str().unwrap().to_owned()).or_default().insert(output);
    }
    assert_eq!((answered, fresh, answers.len()), (2 * (KEYS + KEYS / 4), KEYS, KEYS));
    assert!(answers.values().all(|given| given.len() == 1), "all get the same answer: {answers:?}");
    let executions = ledger.read();
    assert_eq!(executions.len(), KEYS);
    assert!(executions.values().all(|runs| runs.len() == 1), "{executions:?}");
}

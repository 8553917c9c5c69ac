//! This binary, started again as a process of its own that can be killed.
//!
//! A child runs one test of it, [`a_process_of_its_own`], which does nothing without orders. Calls go in as lines of
//! JSON, and answers come out as lines of JSON. Answers that are in the pipe when the child is killed count.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::call::{CallId, EqualCallPolicy};
use steadfast_core::code::Code;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::ToolCallId;
use steadfast_core::policy::{CallPolicy, EnforcementMode, ToolClass};
use steadfast_executor::{CallOptions, Engine};
use steadfast_store::StateStore;
use steadfast_store_redis::RedisStore;
use steadfast_store_sqlite::SqliteStore;
use tokio::task::JoinSet;

use crate::calls::{TEST_TIMEOUT, read};
use crate::ledger::{LedgerTool, moment};
use crate::world::{plain, redis_options, sqlite_options};

/// Variable with the orders of a child.
const ORDERS: &str = "STEADFAST_CONFORMANCE_CHILD";
/// Mark before each of our own lines, because the test harness writes to the same pipe.
const MARK: char = '\u{2}';

/// Time after which a call without a key may run again once its caller knows that the outcome is unknown.
const AFTER_TELLING: Duration = Duration::from_millis(20);
/// Time for which a call may still take effect after its process is gone. These processes end with everything that they
/// did.
const LINGER: Duration = Duration::from_millis(20);

/// A process that makes calls.
pub(crate) struct CallingProcess {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl CallingProcess {
    /// Starts it with these orders.
    pub(crate) fn start(orders: &Value) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::a_process_of_its_own", "--nocapture", "--test-threads=1"])
            .env(ORDERS, orders.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            // A line that was cut off by the end of the process does not count.
            let output_lines = stdout.split(b'\n').map_while(Result::ok);
            let messages = output_lines
                .filter_map(|line| String::from_utf8(line).ok()?.strip_prefix(MARK).map(str::to_owned));
            for line in messages {
                if let Ok(value) = serde_json::from_str(&line)
                    && sender.send(value).is_err()
                {
                    return;
                }
            }
        });
        Self { stdin: process.stdin.take(), process, lines }
    }

    /// Sends it a line. A dead process receives nothing.
    pub(crate) fn send_line(&mut self, line: &Value) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Returns the next line that it sent.
    pub(crate) fn next(&self) -> Value {
        match self.lines.recv_timeout(TEST_TIMEOUT) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => panic!("a child says nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("a child ended before it said all"),
        }
    }

    /// Returns everything that it has sent since the last call. It is asked for a final line.
    pub(crate) fn take_messages(&mut self) -> Vec<Value> {
        self.send_line(&Value::Null);
        std::iter::repeat_with(|| self.next()).take_while(|message| !message.is_null()).collect()
    }

    /// Kills it at any point. Everything that it had sent is still read.
    pub(crate) fn kill(mut self) -> Vec<Value> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.iter().collect()
    }

    /// Closes its input, and waits until it has done everything.
    pub(crate) fn finish(mut self) -> Vec<Value> {
        self.stdin = None;
        let messages: Vec<Value> = self.lines.iter().collect();
        assert!(self.process.wait().unwrap().success(), "a child failed");
        messages
    }
}

impl Drop for CallingProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a line to the parent process.
pub(crate) fn send_to_parent(value: &Value) {
    let mut stdout = std::io::stdout().lock();
    // In one piece, on a line of its own. If no reader is left, this process is no longer needed.
    let _ = stdout.write_all(format!("\n{MARK}{value}\n").as_bytes());
    let _ = stdout.flush();
}

/// Runs the child. Without orders it does nothing.
#[test]
fn a_process_of_its_own() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Value = serde_json::from_str(&orders).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match orders["role"].as_str() {
        Some("calls") => runtime.block_on(make_calls(&orders)),
        Some("trust") => runtime.block_on(crate::trust::lose_trust(&orders)),
        other => panic!("no such role: {other:?}"),
    }
}

/// Makes the calls that come in, all at once, until no more come.
async fn make_calls(orders: &Value) {
    let text = |name: &str| orders[name].as_str().unwrap().to_owned();
    let store: Arc<dyn StateStore> = match orders["store"].as_str().unwrap() {
        "sqlite" => Arc::new(SqliteStore::open(sqlite_options(text("path"))).unwrap()),
        _ => Arc::new(RedisStore::connect(redis_options(&text("url"), &text("prefix"))).await.unwrap()),
    };
    let lease = Duration::from_millis(orders["lease_ms"].as_u64().unwrap());
    let engine = Engine::builder().store(store).policies(by_name(lease)).start().await;
    let ledger = LedgerTool::at(text("ledger"), orders["seed"].as_u64().unwrap());
    send_to_parent(&json!({ "ready": true }));
    let (sender, mut calls) = tokio::sync::mpsc::channel::<Value>(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(serde_json::from_str(&line).unwrap()).is_err() {
                return;
            }
        }
    });
    let mut open = JoinSet::new();
    while let Some(mut call) = calls.recv().await {
        let Some(fields) = call.as_object_mut() else {
            send_to_parent(&Value::Null);
            continue;
        };
        let options = options(&fields.remove(SURFACE).unwrap_or_default());
        let started = moment();
        let calling = engine.call_with(read(&call).unwrap(), ledger.clone(), options);
        let engine = engine.clone();
        open.spawn(async move {
            let called = calling.await;
            // A response saying that the call may still take effect has no delivery to mark.
            let is_final = called.delivery.is_some();
            let process = std::process::id();
            send_to_parent(&json!({
                "answer": called.result, "final": is_final, "begun": started, "at": moment(), "process": process,
            }));
            // The response reaches the parent even if this process is killed now. Only responses with an unknown
            // outcome are marked as delivered, so that everything else has to be replayed.
            let unknown = called.result.error.is_some_and(|error| error.code == Code::OutcomeUnknown);
            if let Some(arrival) = called.delivery.filter(|_| unknown) {
                engine.mark_delivered(arrival);
            }
        });
    }
    while let Some(done) = open.join_next().await {
        done.unwrap();
    }
    engine.shutdown(TEST_TIMEOUT).await;
}

/// Key beside the envelope of a call: the surface's knowledge about it.
pub(crate) const SURFACE: &str = "surface";

fn options(surface: &Value) -> CallOptions {
    let equal_calls = match surface["equalCalls"].as_str() {
        Some("joined") => EqualCallPolicy::Joined,
        _ => EqualCallPolicy::Separate,
    };
    let call_id = surface["callId"].as_str().map(|id| CallId::Unique(ToolCallId::new(id).unwrap()));
    CallOptions { equal_calls, call_id, ..CallOptions::default() }
}

/// Returns policies by name of the tool: `pay` must not run twice, `put` may, `get` changes nothing.
pub(crate) fn by_name(lease: Duration) -> impl Fn(&CallEnvelope) -> Arc<CallPolicy> + Send + Sync + 'static {
    let policy = |class| {
        let mut policy = plain(class);
        policy.dedupe.keep.lease = lease;
        // Rounds are short.
        policy.dedupe.after_telling = AFTER_TELLING;
        policy.settling.linger = LINGER;
        // These tests are about records. An open breaker would only keep calls away from them.
        policy.modes.breaker = EnforcementMode::Off;
        Arc::new(policy)
    };
    let (pay, put, get) =
        (policy(ToolClass::Mutating), policy(ToolClass::Idempotent), policy(ToolClass::ReadOnly));
    move |call| match call.tool_name.as_str() {
        "put" => put.clone(),
        "get" => get.clone(),
        _ => pay.clone(),
    }
}

//! This binary, started again as a process of its own that can be killed.
//!
//! A child runs one test of it, [`a_process_of_its_own`], which does nothing unless it is told to. Calls go in as lines
//! of JSON, answers come out as lines of JSON; what is in the pipe when the child is killed has been said.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::call::{CallId, EqualCalls};
use steadfast_core::code::Code;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::ToolCallId;
use steadfast_core::policy::{Mode, Policy, ToolClass};
use steadfast_executor::{CallOptions, Engine};
use steadfast_store::Store;
use steadfast_store_redis::RedisStore;
use steadfast_store_sqlite::SqliteStore;
use tokio::task::JoinSet;

use crate::calls::{PATIENCE, read};
use crate::ledger::{Ledger, moment};
use crate::world::{plain, redis_options, sqlite_options};

/// Says what a child is to do.
const ORDERS: &str = "STEADFAST_CONFORMANCE_CHILD";
/// Stands before every line of ours: the test harness writes to the same pipe.
const MARK: char = '\u{2}';

/// How soon a call without a key may run again after its caller was told that the outcome is unknown.
const AFTER_TELLING: Duration = Duration::from_millis(20);
/// How long a call may still take effect whose process is gone. With a process of these everything ends that it did.
const LINGER: Duration = Duration::from_millis(20);

/// A process that makes calls.
pub(crate) struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Child {
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
            // A line that was cut off by the end of the process was not said.
            let said = stdout.split(b'\n').map_while(Result::ok);
            let ours =
                said.filter_map(|line| String::from_utf8(line).ok()?.strip_prefix(MARK).map(str::to_owned));
            for line in ours {
                if let Ok(value) = serde_json::from_str(&line)
                    && sender.send(value).is_err()
                {
                    return;
                }
            }
        });
        Self { stdin: process.stdin.take(), process, lines }
    }

    /// Tells it something. One that is dead does not hear it.
    pub(crate) fn tell(&mut self, line: &Value) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// The next thing that it says.
    pub(crate) fn next(&self) -> Value {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => panic!("a child says nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("a child ended before it said all"),
        }
    }

    /// All that it has said since it was last listened to: it is asked for a last word.
    pub(crate) fn said(&mut self) -> Vec<Value> {
        self.tell(&Value::Null);
        std::iter::repeat_with(|| self.next()).take_while(|said| !said.is_null()).collect()
    }

    /// Kills it in the middle of whatever it does; what it had said is still heard.
    pub(crate) fn kill(mut self) -> Vec<Value> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.iter().collect()
    }

    /// Tells it that nothing more will come, and waits until it has done everything.
    pub(crate) fn finish(mut self) -> Vec<Value> {
        self.stdin = None;
        let said: Vec<Value> = self.lines.iter().collect();
        assert!(self.process.wait().unwrap().success(), "a child failed");
        said
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Says something to whoever started this process.
pub(crate) fn say(value: &Value) {
    let mut stdout = std::io::stdout().lock();
    // In one piece, on a line of its own. If nobody hears it, this process is not needed any more.
    let _ = stdout.write_all(format!("\n{MARK}{value}\n").as_bytes());
    let _ = stdout.flush();
}

/// What a child does; without orders, nothing.
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
    let store: Arc<dyn Store> = match orders["store"].as_str().unwrap() {
        "sqlite" => Arc::new(SqliteStore::open(sqlite_options(text("path"))).unwrap()),
        _ => Arc::new(RedisStore::connect(redis_options(&text("url"), &text("prefix"))).await.unwrap()),
    };
    let lease = Duration::from_millis(orders["lease_ms"].as_u64().unwrap());
    let engine = Engine::builder().store(store).policies(by_name(lease)).start().await;
    let ledger = Ledger::at(text("ledger"), orders["seed"].as_u64().unwrap());
    say(&json!({ "ready": true }));
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
            say(&Value::Null);
            continue;
        };
        let options = options(&fields.remove(SURFACE).unwrap_or_default());
        let begun = moment();
        let calling = engine.call_with(read(&call).unwrap(), ledger.clone(), options);
        let engine = engine.clone();
        open.spawn(async move {
            let called = calling.await;
            // Whoever is told that the call may still take effect has nothing yet that could be marked as arrived.
            let is_final = called.arrival.is_some();
            let process = std::process::id();
            say(&json!({
                "answer": called.result, "final": is_final, "begun": begun, "at": moment(), "process": process,
            }));
            // What was said is heard, also if this process is killed now. Only who was told that nobody knows is known
            // to have heard it, so that everything else has to be given again.
            let unknown = called.result.error.is_some_and(|error| error.code == Code::OutcomeUnknown);
            if let Some(arrival) = called.arrival.filter(|_| unknown) {
                engine.delivered(arrival);
            }
        });
    }
    while let Some(done) = open.join_next().await {
        done.unwrap();
    }
    engine.shutdown(PATIENCE).await;
}

/// What stands in a call beside its envelope: what the surface knows about it.
pub(crate) const SURFACE: &str = "surface";

fn options(surface: &Value) -> CallOptions {
    let equal_calls = match surface["equalCalls"].as_str() {
        Some("joined") => EqualCalls::Joined,
        _ => EqualCalls::Apart,
    };
    let call_id = surface["callId"].as_str().map(|id| CallId::Unique(ToolCallId::new(id).unwrap()));
    CallOptions { equal_calls, call_id, ..CallOptions::default() }
}

/// What a tool is, by its name: `pay` must not run twice, `put` may, `get` changes nothing.
pub(crate) fn by_name(lease: Duration) -> impl Fn(&CallEnvelope) -> Arc<Policy> + Send + Sync + 'static {
    let policy = |class| {
        let mut policy = plain(class);
        policy.dedupe.keep.lease = lease;
        // Rounds are short.
        policy.dedupe.after_telling = AFTER_TELLING;
        policy.settling.linger = LINGER;
        // These tests are about records. A breaker that opens would only keep calls away from them.
        policy.modes.breaker = Mode::Off;
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

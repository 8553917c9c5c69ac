//! Tools with a real engine, real listeners and real programs.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

#[cfg(unix)]
mod commands;
mod http;
mod listener;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast_config::{CommandLineFlag, Config, Sources};
use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::id::{Namespace, ToolName};
use steadfast_core::policy::{CallPolicy, PolicyProfile, ToolClass};
use steadfast_executor::{CallResponse, Engine, RuntimeClock};
use steadfast_process::Leash;
use steadfast_tools::{PlainTool, Toolbox};

/// Timeout of a test that hangs. Nothing is measured with it.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits for a future that must complete.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("it happens in time")
}

/// Returns an engine that uses the time of the runtime, so that a test can stop it.
async fn engine(policy: CallPolicy) -> Engine {
    Engine::builder().clock(Arc::new(RuntimeClock::new())).policies(Arc::new(policy)).start().await
}

/// Returns a policy without timeouts, because the machine may be slow. Tests of timeouts set their own.
fn standard(class: ToolClass) -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(class);
    (policy.time.attempt, policy.time.total) = (Duration::from_secs(3600), Duration::from_secs(3600));
    policy
}

/// Stops the time of this runtime. It advances only on request, however long the machine takes.
struct StoppedClock {
    _holds: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    fn new() -> Self {
        // A paused runtime advances its time whenever it is idle, even while a server or a process is working. It does
        // not while a blocking task runs.
        let (holds, released) = std::sync::mpsc::channel();
        tokio::task::spawn_blocking(move || released.recv());
        tokio::time::pause();
        Self { _holds: holds }
    }

    /// Advances the time for everything that waits now, and then resumes real time.
    async fn pass(self, span: Duration) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        // Timers count whole milliseconds.
        tokio::time::advance(span + Duration::from_millis(1)).await;
        tokio::time::resume();
    }
}

/// A folder of a test, removed on drop.
struct ToolTestFolder(PathBuf);

impl ToolTestFolder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tools-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for ToolTestFolder {
    fn drop(&mut self) {
        // A folder that is left over does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a policy with a single attempt.
fn once(class: ToolClass) -> CallPolicy {
    let mut policy = standard(class);
    policy.retry.attempts = 1.try_into().unwrap();
    policy
}

/// Returns the tools of a file with this text.
fn toolbox(text: &str) -> Toolbox {
    let folder = ToolTestFolder::new();
    let path = folder.join("steadfast.toml");
    std::fs::write(&path, text).unwrap();
    let file = steadfast_config::ConfigFile { path, needed: steadfast_config::FileRequirement::Always };
    let environment = BTreeMap::from([("SECRET".to_owned(), SECRET.to_owned())]);
    let sources = Sources { files: vec![file], environment, ..Sources::default() };
    let config = Config::load(&sources).unwrap_or_else(|errors| panic!("{errors}"));
    Toolbox::on_leash(&config, &Leash::of(env!("CARGO_BIN_EXE_steadfast-tools-leash"))).unwrap()
}

/// Value of `${SECRET}`.
const SECRET: &str = "hunter2 hunter2hunter2";

fn tool(toolbox: &Toolbox, namespace: &str, name: &str) -> PlainTool {
    toolbox
        .find(&Namespace::new(namespace).unwrap(), &ToolName::new(name).unwrap())
        .expect("it is configured")
}

/// Returns a call of a tool named `t`, with a key if there is one.
fn call(namespace: &str, params: &str, key: Option<&str>) -> CallEnvelope {
    let key = key.map_or(String::new(), |key| format!(r#","idempotencyKey":"{key}""#));
    let text = format!(
        r#"{{"contractVersion":"1.1","requestId":"r","toolName":"t","toolNamespace":"{namespace}",
            "target":{{"sessionKey":"s","actorId":"ann"}},
            "payload":{{"version":"1.0","params":{params}{key}}}}}"#
    );
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

fn message(called: &CallResponse) -> &str {
    called.result.error.as_ref().map_or("", |error| &error.message)
}

fn content(called: &CallResponse) -> &str {
    match &called.result.output {
        Some(output) => output.content.as_str(),
        None => panic!("no answer: {called:?}"),
    }
}

#[test]
fn a_toolbox_has_only_the_configured_tools() {
    let toolbox = toolbox(
        "[http_tools.a]\nmethod = \"GET\"\nurl = \"http://API.example.com:81/x\"\n[command_tools.b]\ncommand = [\"x\"]\n",
    );
    let names: Vec<String> = toolbox.names().map(ToString::to_string).collect();
    assert_eq!(names, ["http/a", "command/b"]);
    assert_eq!(tool(&toolbox, "http", "a").domain().unwrap().as_str(), "api.example.com");
    assert!(tool(&toolbox, "command", "b").domain().is_none());
    for (namespace, name) in [("http", "b"), ("command", "a"), ("bank", "a")] {
        let found = toolbox.find(&Namespace::new(namespace).unwrap(), &ToolName::new(name).unwrap());
        assert!(found.is_none(), "{namespace}/{name}");
    }
    // Without commands, no leash is needed.
    let flags = ["method", "url"].into_iter().zip(["GET", "http://h/"]);
    let flags = flags.map(|(setting, value)| CommandLineFlag {
        name: "--set".to_owned(),
        setting: format!("http_tools.a.{setting}"),
        value: value.to_owned(),
    });
    let config = Config::load(&Sources { flags: flags.collect(), ..Sources::default() }).unwrap();
    assert_eq!(Toolbox::of(&config).unwrap().names().count(), 1);
}

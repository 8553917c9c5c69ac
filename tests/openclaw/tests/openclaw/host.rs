//! A real OpenClaw: its gateway with the plugin, in a folder of its own.
//!
//! Starting it takes many seconds, so the tests of one configuration share a gateway. Each test has sessions, scripts
//! and arguments of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};
use serde_json::{Value, json};

use crate::model::ScriptedModel;
use crate::plugin;

/// Timeout that ends a test that hangs. No result depends on it: an awaited event comes at some time, or never.
const PATIENCE: Duration = Duration::from_secs(300);

/// The token of the operator. The gateway listens on loopback only.
const TOKEN: &str = "token-of-the-operator-for-tests";

/// Returns the model that all gateways use.
pub(crate) fn model() -> &'static ScriptedModel {
    static MODEL: OnceLock<ScriptedModel> = OnceLock::new();
    MODEL.get_or_init(ScriptedModel::start)
}

/// Waits for an event.
pub(crate) fn wait(mut happened: impl FnMut() -> bool, what: impl Fn() -> String) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < PATIENCE, "{} did not come", what());
        thread::sleep(Duration::from_millis(20));
    }
}

// ── What is installed ────────────────────────────────────────────────────────────────────────────────────────────────

/// Returns the folder of the host and the compiler.
pub(crate) fn packages() -> PathBuf {
    installed("openclaw")
}

/// Returns packages that `cargo xtask setup` has installed.
fn installed(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target folder");
    let folder = target.join("xtask/real").join(name);
    // This file is written last.
    let is_whole = fs::exists(folder.join("installed")).is_ok_and(|there| there);
    assert!(is_whole, "{name} is not installed: run `cargo xtask setup`");
    folder.join("node_modules")
}

/// Returns a command that runs Node, in the version that the host needs.
pub(crate) fn node(folder: &Path) -> Command {
    let programs = installed("node").join("node/bin");
    let mut command = Command::new(programs.join("node"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path))).unwrap();
    // Nothing of the machine's own OpenClaw, npm or Steadfast has an effect.
    command.current_dir(folder).env_clear().env("PATH", path).env("HOME", folder).env("NO_COLOR", "1");
    command
}

// ── A host ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// The folder and the configuration of a host.
pub(crate) struct HostFolder {
    pub(crate) path: PathBuf,
}

impl HostFolder {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("openclaw-{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // From a process that had the same id before.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("workspace")).unwrap();
        Self { path }
    }

    /// Returns the folder where tools of the host read and write files.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.path.join("ledger")
    }

    /// Returns a command of the host's own command line.
    pub(crate) fn openclaw(&self, arguments: &[&str]) -> Command {
        let mut command = node(&self.path);
        command.arg(packages().join("openclaw/openclaw.mjs")).args(arguments);
        command.env("OPENCLAW_STATE_DIR", self.path.join("state"));
        command.env("OPENCLAW_CONFIG_PATH", self.path.join("openclaw.json"));
        command.env("OPENCLAW_SKIP_CHANNELS", "1").env("OPENCLAW_SKIP_CRON", "1");
        command
    }

    /// Writes the configuration: the model, one agent, the MCP servers, and this plugin entry.
    pub(crate) fn configure(&self, port: u16, plugins: &Value, tools: &Value) {
        let server = env!("CARGO_BIN_EXE_steadfast-openclaw-server");
        let ledger = self.ledger();
        // In its own state folder, each server of one name has its settings. Orders are recognised by their number.
        let policies = self.path.join("policies.toml");
        fs::write(&policies, "[tools.order]\nkey = \"{number}\"\n[tools.flaky]\nclass = \"read_only\"\n")
            .unwrap();
        let gateway = self.path.join("steadfast");
        if !gateway.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_steadfast-openclaw-gateway"), &gateway).unwrap();
        }
        let cost = json!({ "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0 });
        let config = json!({
            "update": { "checkOnStart": false },
            "agents": { "defaults": {
                "model": { "primary": "fake/loopy" },
                "skipBootstrap": true,
                "workspace": self.workspace(),
                "heartbeat": { "every": "0m" },
            } },
            "models": { "mode": "merge", "providers": { "fake": {
                "baseUrl": format!("http://{}/v1", model().address),
                "apiKey": "sk-fake",
                "api": "openai-completions",
                "models": [{ "id": "loopy", "name": "Loopy", "reasoning": false, "input": ["text"],
                    "contextWindow": 128_000, "maxTokens": 4096, "cost": cost }],
            } } },
            "tools": tools,
            "mcp": { "servers": {
                "bank": { "command": server, "args": [ledger] },
                "safe": { "command": gateway, "args": ["wrap", "--config", policies, "--", server, ledger] },
            } },
            "gateway": {
                "mode": "local", "bind": "loopback", "port": port,
                "auth": { "mode": "token", "token": TOKEN },
                "http": { "endpoints": { "chatCompletions": { "enabled": true } } },
            },
            "plugins": plugins,
        });
        let file = self.path.join("openclaw.json");
        let fresh = file.with_extension("new");
        fs::write(&fresh, format!("{config:#}")).unwrap();
        fs::rename(fresh, file).unwrap();
    }

    /// Returns the calls that reached the MCP servers: tool and arguments.
    pub(crate) fn server_calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.ledger()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the lines of the log of malformed calls.
    pub(crate) fn malformed_calls(&self) -> Vec<Value> {
        let file = self.path.join("state/steadfast/malformed-calls.jsonl");
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for HostFolder {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("what the test left is in {}", self.path.display());
            return;
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the plugins of a host: only this one, with these settings.
pub(crate) fn only_steadfast(settings: &Value) -> Value {
    json!({
        "load": { "paths": [plugin::built()] },
        "entries": { "steadfast": { "enabled": true, "config": settings } },
    })
}

/// The tools that agents have. Without Tool Search, the model calls tools of MCP servers by name.
pub(crate) fn all_tools() -> Value {
    json!({ "profile": "coding", "alsoAllow": ["bundle-mcp"], "toolSearch": false })
}

/// Returns the default, in which the model finds most tools through Tool Search.
pub(crate) fn searched_tools() -> Value {
    json!({ "profile": "coding", "alsoAllow": ["bundle-mcp"] })
}

/// A running gateway.
pub(crate) struct Host {
    pub(crate) folder: HostFolder,
    pub(crate) port: ReservedPort,
    /// Plugins and tools in its configuration.
    applied: Mutex<(Value, Value)>,
    process: HostProcess,
}

/// Returns a gateway for one test at a time, with these settings of the plugin.
pub(crate) fn exclusive(settings: &Value) -> MutexGuard<'static, Host> {
    exclusive_with(settings, &all_tools())
}

/// Returns the same with these tools.
pub(crate) fn exclusive_with(settings: &Value, tools: &Value) -> MutexGuard<'static, Host> {
    static HOST: OnceLock<Mutex<Host>> = OnceLock::new();
    let start = || Mutex::new(Host::start("exclusive", &only_steadfast(&json!({})), &all_tools(), &[]));
    // A test that failed leaves a host that works.
    let host = HOST.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner);
    host.apply(settings, tools);
    host
}

impl Host {
    /// Starts a gateway with these plugins and tools, in this environment, and waits until it is ready.
    pub(crate) fn start(name: &str, plugins: &Value, tools: &Value, environment: &[(&str, &str)]) -> Self {
        let (folder, port) = (HostFolder::new(name), ReservedPort::reserve());
        folder.configure(port.number(), plugins, tools);
        let process = HostProcess::start(&folder, &port, environment);
        Self { folder, port, applied: Mutex::new((plugins.clone(), tools.clone())), process }
    }

    /// Changes the settings of the plugin, and the tools, and waits until the host has applied them.
    pub(crate) fn apply(&self, settings: &Value, tools: &Value) {
        self.apply_plugins(only_steadfast(settings), tools);
    }

    /// Changes the plugins and the tools.
    pub(crate) fn apply_plugins(&self, plugins: Value, tools: &Value) {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (plugins, tools.clone());
        if *applied == next {
            return;
        }
        let count = |host: &Self| host.log().matches("config hot reload applied").count();
        let before = count(self);
        self.folder.configure(self.port.number(), &next.0, tools);
        *applied = next;
        wait(|| count(self) > before, || "the new settings in force".to_owned());
    }

    /// Sends a message in a session, and returns the answer.
    pub(crate) fn send(&self, session: &str, message: &str) -> HostReply {
        let body = json!({ "model": "openclaw", "messages": [{ "role": "user", "content": message }] });
        let headers = [("x-openclaw-session-key", session)];
        let (_, body) = self.request("POST", "/v1/chat/completions", &headers, Some(&body));
        HostReply { body: serde_json::from_str(&body).unwrap_or(Value::String(body)) }
    }

    /// Sends a message for the script of this name, in a session of that name.
    pub(crate) fn run(&self, script: &str) -> HostReply {
        self.send(&format!("test-{script}"), &format!("go [script {script}]"))
    }

    /// Returns everything that the gateway has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path.join("gateway.log")).unwrap_or_default()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        wait(
            || self.log().contains(text),
            || format!("\"{text}\" in the log of {}", self.folder.path.display()),
        );
    }

    /// Kills the gateway without a warning, and starts it again.
    pub(crate) fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = HostProcess::start(&self.folder, &self.port, &[]);
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> (u16, String) {
        request(self.port.address(), method, path, headers, body).expect("the gateway answers")
    }
}

/// The answer of a host to a message.
#[derive(Debug)]
pub(crate) struct HostReply {
    pub(crate) body: Value,
}

impl HostReply {
    /// Returns the text for the user.
    pub(crate) fn text(&self) -> String {
        self.body["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
    }
}

/// The process of a gateway. It ends with the test process: its stdin closes then.
struct HostProcess {
    child: Child,
    _stdin: ChildStdin,
}

impl HostProcess {
    fn start(folder: &HostFolder, port: &ReservedPort, environment: &[(&str, &str)]) -> Self {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(folder.path.join("gateway.log")).unwrap();
        let mut command = node(&folder.path);
        let ends = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/ends-with-tests.mjs");
        command.arg("--import").arg(ends).arg(packages().join("openclaw/openclaw.mjs"));
        command.args(["gateway", "run", "--bind", "loopback", "--port", &port.number().to_string()]);
        command.env("OPENCLAW_STATE_DIR", folder.path.join("state"));
        command.env("OPENCLAW_CONFIG_PATH", folder.path.join("openclaw.json"));
        command
            .env("OPENCLAW_SKIP_CHANNELS", "1")
            .env("OPENCLAW_SKIP_CRON", "1")
            .env("OPENCLAW_NO_RESPAWN", "1");
        command.envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        wait(
            || {
                let status = child.try_wait().unwrap();
                let log = || fs::read_to_string(folder.path.join("gateway.log")).unwrap_or_default();
                assert!(status.is_none(), "the gateway has ended ({status:?}): {}", log());
                matches!(request(port.address(), "GET", "/readyz", &[], None), Ok((200, _)))
            },
            || "a gateway that is ready".to_owned(),
        );
        Self { child, _stdin: stdin }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port for a program that has to be given one. It is bound here without listening. So until this is dropped, no
/// other program gets it unless it asks for its number, and none can listen on it.
pub(crate) struct ReservedPort {
    address: SocketAddr,
    _bound: OwnedFd,
}

impl ReservedPort {
    pub(crate) fn reserve() -> Self {
        let bound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&bound, true).unwrap();
        rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = rustix::net::getsockname(&bound).unwrap();
        Self { address: address.try_into().unwrap(), _bound: bound }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn number(&self) -> u16 {
        self.address.port()
    }
}

/// Sends an HTTP request, and returns status and body.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    )?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Ok((status, if chunked { unchunked(body) } else { body.to_owned() }))
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let Some(chunk) = rest.get(..size).filter(|chunk| !chunk.is_empty()) else { break };
        whole.push_str(chunk);
        body = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}

/// Runs a command to its end, and returns its output. It is ended if it hangs.
pub(crate) fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the command starts")
}

//! The HTTP API of `steadfast serve`, as its callers and its operator use it: the real program, with tools of every
//! kind behind it.

mod access;
mod breaker;
mod command_line;
mod context;
mod duplicates;
mod explain;
mod hostile;
mod lost_records;
mod messages;
mod notify;
mod retries;
mod secrets;
mod service;
mod spelling;
mod store_health;
mod telemetry;
mod trust;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use self::service::RecordingService;
use crate::raw::{RawRequest, RawResponse, send};
use crate::world::{
    GatewayTestFolder, LISTEN, TEST_TIMEOUT, TestProcess, logged_in, signal, start_gateway, wait,
};

/// The kinds of tools: requests over HTTP, commands, and those of an MCP server. Each has a `pay`, which changes
/// something, and a `look`, which does not. Both do the same as the server of these tests.
const KINDS: [&str; 3] = ["http", "command", "bank"];

/// No approval is requested and no call is stopped, except for the subject of the test.
const PLAIN: &str = "guard.mode = \"off\"\ntrust.mode = \"off\"\n";

/// The token of the operator.
const ADMIN: &str = "token-of-the-person";

/// A gateway that runs until this is dropped.
struct ApiGateway {
    /// Changes with every start.
    address: SocketAddr,
    process: Option<TestProcess>,
    service: RecordingService,
    folder: GatewayTestFolder,
}

impl ApiGateway {
    /// Creates one with these lines in its configuration. `{service}` in them is the address of the service of these
    /// tests.
    fn new(test: &str, config: &str) -> Self {
        Self::with(test, config, "", |_| {})
    }

    /// Creates the same with these lines for each tool, with a changed command.
    fn with(test: &str, config: &str, each: &str, change: impl FnOnce(&mut Command)) -> Self {
        let folder = GatewayTestFolder::new(&format!("api_{test}"));
        for kind in KINDS {
            fs::write(folder.join(kind), "").unwrap();
        }
        let service = RecordingService::start(folder.join("http"));
        let server = env!("CARGO_BIN_EXE_steadfast-test-server");
        let mut tools = format!("[servers.bank]\ncommand = [{server:?}, {:?}]\n", folder.join("bank"));
        for (tool, class, method) in [("pay", "mutating", "POST"), ("look", "read_only", "GET")] {
            tools += &format!(
                "[http_tools.{tool}]\nmethod = \"{method}\"\nurl = \"http://{}/{tool}\"\n\
                 [command_tools.{tool}]\ncommand = [{server:?}, {:?}, \"--run\", \"{tool}\"]\n",
                service.address,
                folder.join("command"),
            );
            for kind in KINDS {
                tools += &format!("[tools.\"{kind}/{tool}\"]\nclass = \"{class}\"\n{each}");
            }
        }
        let config = config.replace("{service}", &service.address.to_string());
        fs::write(folder.join("steadfast.toml"), format!("{config}\n{tools}")).unwrap();
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gateway = Self { address: nowhere, process: None, service, folder };
        gateway.start(change);
        gateway
    }

    fn start(&mut self, change: impl FnOnce(&mut Command)) {
        let mut command = self.command(&["serve"]);
        change(command.args(LISTEN));
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        let (process, address) = start_gateway(command.stderr(log));
        (self.process, self.address) = (Some(process), address);
    }

    /// Asks it to end, which it does when everything is written.
    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        signal(process.id(), "-TERM");
        process.end();
    }

    /// Kills it.
    fn kill(&mut self) {
        drop(self.process.take());
    }

    fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Returns a command of the same user in the same folder.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(arguments).current_dir(&*self.folder).env_clear();
        command.env("HOME", &*self.folder).env("PATH", "/usr/bin:/bin").env("STEADFAST_ADMIN_TOKEN", ADMIN);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Returns a request of a program.
    fn request(&self, line: &str) -> RawRequest {
        RawRequest::to(self.address).header("accept", "application/json").line(&format!("{line} HTTP/1.1"))
    }

    /// Calls a tool.
    fn call(&self, envelope: &Value) -> ApiTestResponse {
        ApiTestResponse::to(&self.request("POST /v1/calls").body(envelope.to_string()))
    }

    /// Posts a body as an agent.
    fn post(&self, path: &str, body: &Value) -> ApiTestResponse {
        ApiTestResponse::to(&self.request(&format!("POST {path}")).body(body.to_string()))
    }

    /// Returns the answer of this endpoint.
    fn get(&self, path: &str) -> Value {
        let response = self.request_as_operator(&format!("GET {path}"), &Value::Null);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.body
    }

    /// Makes a change as the operator.
    fn post_as_operator(&self, line: &str, body: &Value) -> Value {
        let response = self.request_as_operator(line, body);
        assert_eq!(response.status, 200, "{line}: {}", response.body);
        response.body
    }

    /// Sends a request as the operator.
    fn request_as_operator(&self, line: &str, body: &Value) -> ApiTestResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ApiTestResponse::to(
            &self.request(line).header("authorization", &format!("Bearer {ADMIN}")).body(body),
        )
    }

    /// Follows the events from now on.
    fn listen(&self, query: &str) -> ApiEventStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let request = format!(
            "GET /v1/events{query} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {ADMIN}\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut listening = ApiEventStream(BufReader::new(stream));
        while !listening.line().starts_with(": connected") {}
        listening
    }

    fn ledger(&self, kind: &str) -> String {
        fs::read_to_string(self.folder.join(kind)).unwrap()
    }

    /// Returns how often a tool of this kind has done this: `pay a`.
    fn count(&self, kind: &str, operation: &str) -> usize {
        self.ledger(kind).lines().filter(|line| *line == operation).count()
    }

    fn until(&self, kind: &str, operation: &str, times: usize) {
        wait(
            || self.count(kind, operation) >= times,
            || format!("{times} times {operation:?} in {}", self.ledger(kind)),
        );
    }

    /// Makes calls with the fault `gate` wait here, until the returned value is dropped.
    fn gate(&self, kind: &str) -> ToolGate {
        let file = self.folder.join(format!("{kind}.gate"));
        fs::write(&file, "").unwrap();
        ToolGate(file)
    }

    /// Returns its log lines with this event.
    fn logged(&self, event: &str) -> Vec<Value> {
        logged_in(&self.folder, event)
    }

    /// Waits for this many log lines with the event, and checks that there are no more.
    fn logged_times(&self, event: &str, times: usize) -> Vec<Value> {
        wait(
            || self.logged(event).len() >= times,
            || format!("{times} times {event}, not {:#?}", self.logged(event)),
        );
        let logged = self.logged(event);
        assert_eq!(logged.len(), times, "{logged:#?}");
        logged
    }

    /// Returns the breaker of a tool.
    fn breaker(&self, tool: &str) -> Value {
        let key = format!("tool:{}", tool.replace('/', ":"));
        let body = self.get("/v1/breakers");
        let breakers = body["breakers"].as_array().unwrap();
        breakers.iter().find(|breaker| breaker["key"] == key).cloned().unwrap_or_default()
    }
}

/// Keeps tools waiting. It is also released if the test fails.
struct ToolGate(PathBuf);

impl Drop for ToolGate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The response.
#[derive(Debug)]
struct ApiTestResponse {
    status: u16,
    answered: RawResponse,
    body: Value,
}

impl ApiTestResponse {
    fn to(request: &RawRequest) -> Self {
        let answered = send(request).expect("an answer");
        let body = serde_json::from_slice(&answered.body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&answered.body).into());
        spelling::check(&body);
        Self { status: answered.status, answered, body }
    }

    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }

    /// Returns the answer of the tool.
    fn text(&self) -> &str {
        let content = &self.body["output"]["content"];
        content.as_str().or_else(|| content["content"][0]["text"].as_str()).unwrap_or_default()
    }
}

/// The stream of events.
struct ApiEventStream(BufReader<TcpStream>);

impl ApiEventStream {
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream of events ended");
        line
    }

    /// Waits for the next event.
    fn any(&mut self) -> Value {
        loop {
            if let Some(text) = self.line().strip_prefix("data: ") {
                let data = serde_json::from_str(text).unwrap();
                spelling::check(&data);
                return data;
            }
        }
    }

    /// Waits for the next event of this name. Others are skipped.
    fn next(&mut self, event: &str) -> Value {
        loop {
            let data = self.any();
            if data["event"] == event {
                return data;
            }
        }
    }
}

/// Returns a call of a tool, `kind/name`.
fn envelope(tool: &str, params: &Value) -> Value {
    let (namespace, name) = tool.split_once('/').unwrap();
    json!({
        "contractVersion": "1.1", "requestId": "r-1", "toolNamespace": namespace,
        "toolName": name, "target": { "sessionKey": "s-1", "actorId": "ann" },
        "payload": { "version": "1.0", "params": params },
    })
}

/// Returns the same with an explicit key.
fn keyed(tool: &str, params: &Value, key: &str) -> Value {
    let mut envelope = envelope(tool, params);
    envelope["payload"]["idempotencyKey"] = key.into();
    envelope
}

/// Returns the same with a limit for each attempt.
fn within(mut envelope: Value, ms: u64) -> Value {
    envelope["payload"]["callHints"]["timeoutMs"] = ms.into();
    envelope
}

//! Two plain MCP clients without knowledge of Steadfast: one on the streams of a server that it starts itself, and one
//! over HTTP.

#![expect(clippy::indexing_slicing, reason = "a member of a JSON value that is not there reads as null")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steadfast_mcp::http::upstream::{self, HttpUpstream, MessageContext, UpstreamContent};
use steadfast_mcp::lines::{LONGEST_LINE, LineItem, LineReader};
use steadfast_mcp::message::RpcMessage;
use steadfast_process::{ChildExit, ChildProcess, Launch, Leash, StderrLog, StopTimeouts};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use crate::support::failure::CommandFailure;

/// Result of a request, as its client sees it.
#[derive(Clone, Debug)]
pub(super) enum DemoCallResult {
    /// A response arrived.
    Answer(DemoResponse),
    /// The connection was lost, and the response with it.
    Gone(String),
    /// No response arrived in this time.
    Silence(Duration),
}

/// The response to a call.
#[derive(Clone, Debug)]
pub(super) struct DemoResponse {
    /// All its texts.
    pub(super) text: String,
    pub(super) is_error: bool,
    /// Error code of the gateway, if there is one.
    pub(super) code: Option<String>,
    /// The response was replayed from an earlier call.
    pub(super) from_cache: bool,
    pub(super) took: Duration,
}

/// Timeout for responses that are expected. It is only a safeguard: a busy machine may be slow, and the demo is not
/// about speed.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

impl DemoCallResult {
    /// Returns the response if it is not an error.
    pub(super) fn good(&self) -> Option<&DemoResponse> {
        self.answer().filter(|answer| !answer.is_error)
    }

    pub(super) fn answer(&self) -> Option<&DemoResponse> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Gone(_) | Self::Silence(_) => None,
        }
    }

    /// Returns the error code of the gateway.
    pub(super) fn code(&self) -> Option<&str> {
        self.answer().and_then(|answer| answer.code.as_deref())
    }

    /// Describes the result in words.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Answer(answer) if answer.is_error => format!("an error: {}", answer.text),
            Self::Answer(answer) => answer.text.clone(),
            Self::Gone(reason) => format!("no answer: {reason}"),
            Self::Silence(time) => format!("no answer after {:.1} s", time.as_secs_f32()),
        }
    }

    fn of(message: &Value, took: Duration) -> Self {
        let (result, error) = (&message["result"], &message["error"]);
        let metadata = &result["_meta"]["dev.steadfast/result"];
        let blocks = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        texts.extend(error["message"].as_str());
        Self::Answer(DemoResponse {
            text: texts.join("\n"),
            is_error: result["isError"] == true || error.is_object(),
            code: metadata["error"]["code"].as_str().map(str::to_owned),
            from_cache: metadata["fromCache"] == true,
            took,
        })
    }
}

fn hello() -> Value {
    json!({
        "protocolVersion": VERSION,
        "capabilities": {},
        "clientInfo": { "name": "demo-agent", "version": env!("CARGO_PKG_VERSION") },
    })
}

const VERSION: &str = "2025-11-25";

/// A client that started the server itself and uses its streams.
pub(super) struct StdioDemoClient {
    child: ChildProcess,
    stdin: ChildStdin,
    lines: LineReader<ChildStdout>,
    next: u64,
    /// Responses that arrived while another was waited for. There are at most as many as requests.
    early: BTreeMap<u64, Value>,
}

impl StdioDemoClient {
    /// Starts a server and initializes the session.
    pub(super) async fn start(launch: &Launch, leash: &Leash) -> Result<Self, CommandFailure> {
        let started = launch.start(leash, &StderrLog::new()).await;
        let started = started.map_err(|error| {
            CommandFailure::Environment(format!("the demo's server cannot be started: {error}"))
        })?;
        let lines = LineReader::new(started.stdout, LONGEST_LINE);
        let mut bare =
            Self { child: started.child, stdin: started.stdin, lines, next: 1, early: BTreeMap::new() };
        match bare.request("initialize", &hello()).await {
            DemoCallResult::Answer(answer) if !answer.is_error => {}
            outcome @ (DemoCallResult::Answer(_) | DemoCallResult::Gone(_) | DemoCallResult::Silence(_)) => {
                return Err(CommandFailure::Environment(format!(
                    "the demo's server says: {}",
                    outcome.describe()
                )));
            }
        }
        bare.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        Ok(bare)
    }

    pub(super) async fn call(&mut self, tool: &str, arguments: &Value) -> DemoCallResult {
        let id = self.send_call(tool, arguments).await;
        self.answer(id, RESPONSE_TIMEOUT).await
    }

    pub(super) async fn ping(&mut self) -> DemoCallResult {
        self.request("ping", &json!({})).await
    }

    async fn request(&mut self, method: &str, params: &Value) -> DemoCallResult {
        let id = self.send(method, params).await;
        self.answer(id, RESPONSE_TIMEOUT).await
    }

    /// Sends a call and returns its id.
    pub(super) async fn send_call(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.send("tools/call", &json!({ "name": tool, "arguments": arguments })).await
    }

    async fn send(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    async fn write(&mut self, message: &Value) {
        // A closed stream shows up when the response is waited for.
        let _ = self.stdin.write_all(format!("{message}\n").as_bytes()).await;
        let _ = self.stdin.flush().await;
    }

    /// Returns the response to the request with this id, if it arrives in time.
    pub(super) async fn answer(&mut self, id: u64, patience: Duration) -> DemoCallResult {
        let began = Instant::now();
        loop {
            if let Some(message) = self.early.remove(&id) {
                return DemoCallResult::of(&message, began.elapsed());
            }
            match timeout(patience.saturating_sub(began.elapsed()), self.lines.next()).await {
                Err(_) => return DemoCallResult::Silence(patience),
                Ok(Some(Ok(LineItem::Message(message)))) => {
                    if let (Some(id), Ok(value)) =
                        (message.id().and_then(|id| id.as_u64()), serde_json::from_slice(message.bytes()))
                    {
                        self.early.insert(id, value);
                    }
                }
                Ok(Some(Ok(LineItem::NotAMessage { .. } | LineItem::TooLong(_) | LineItem::Half(_)))) => {}
                Ok(Some(Err(_)) | None) => {
                    let end =
                        timeout(RESPONSE_TIMEOUT, self.child.exited()).await.unwrap_or(ChildExit::Unknown);
                    return DemoCallResult::Gone(format!("the server {end}"));
                }
            }
        }
    }

    /// Closes the input of the server, and waits for its end.
    pub(super) async fn leave(self) {
        let Self { child, stdin, .. } = self;
        drop(stdin);
        child.stop(&SHORT).await;
    }
}

/// Shutdown timeouts of the server. The bank needs next to nothing.
pub(super) const SHORT: StopTimeouts = StopTimeouts {
    stdin: Duration::from_millis(500),
    term: Duration::from_millis(500),
    kill: Duration::from_secs(2),
};

/// A client over streamable HTTP.
pub(super) struct HttpDemoClient {
    server: HttpUpstream,
    context: MessageContext,
    next: AtomicU64,
}

impl HttpDemoClient {
    /// Opens a session at this URL and lists its tools, as every client does.
    pub(super) async fn connect(url: &str) -> Result<Self, CommandFailure> {
        let server = HttpUpstream::new(url, upstream::HttpUpstreamSettings::default())
            .map_err(|error| CommandFailure::Environment(format!("{url}: {error}")))?;
        let mut client = Self { server, context: MessageContext::default(), next: AtomicU64::new(1) };
        client.context.version = Some(VERSION.into());
        let (outcome, session) = client.request("initialize", &hello()).await;
        client.context.session = session;
        if outcome.good().is_none() {
            return Err(CommandFailure::Environment(format!(
                "the gateway at {url} says: {}",
                outcome.describe()
            )));
        }
        let greeting = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let _ = client.server.post(&message(&greeting)?, &client.context).await;
        client.request("tools/list", &json!({})).await;
        Ok(client)
    }

    pub(super) async fn call(&self, tool: &str, arguments: &Value) -> DemoCallResult {
        self.call_within(RESPONSE_TIMEOUT, tool, arguments).await
    }

    /// Calls a tool with this timeout.
    pub(super) async fn call_within(
        &self,
        patience: Duration,
        tool: &str,
        arguments: &Value,
    ) -> DemoCallResult {
        let params = json!({ "name": tool, "arguments": arguments });
        self.request_within(patience, "tools/call", &params).await.0
    }

    pub(super) async fn ping(&self) -> DemoCallResult {
        self.request("ping", &json!({})).await.0
    }

    /// Ends the session, and the server behind it.
    pub(super) async fn leave(self) {
        let _ = timeout(RESPONSE_TIMEOUT, self.server.end(&self.context)).await;
    }

    async fn request(&self, method: &str, params: &Value) -> (DemoCallResult, Option<Box<str>>) {
        self.request_within(RESPONSE_TIMEOUT, method, params).await
    }

    /// Sends a request on a connection and waits for its response and for the session that it opened, if any. Dropping
    /// the future breaks the connection.
    async fn request_within(
        &self,
        patience: Duration,
        method: &str,
        params: &Value,
    ) -> (DemoCallResult, Option<Box<str>>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let began = Instant::now();
        match timeout(patience, self.exchange(&request)).await {
            Err(_) => (DemoCallResult::Silence(patience), None),
            Ok(Err(reason)) => (DemoCallResult::Gone(reason), None),
            Ok(Ok((answer, session))) => (DemoCallResult::of(&answer, began.elapsed()), session),
        }
    }

    async fn exchange(&self, request: &Value) -> Result<(Value, Option<Box<str>>), String> {
        let message = message(request).map_err(|_| "the request is not a valid message".to_owned())?;
        let answer = self.server.post(&message, &self.context).await;
        let answer = answer.map_err(|failure| failure.fault().message)?;
        let read =
            |message: &RpcMessage| serde_json::from_slice::<Value>(message.bytes()).unwrap_or_default();
        let found = match answer.content {
            UpstreamContent::Accepted => None,
            UpstreamContent::One(message) => Some(read(&message)),
            UpstreamContent::Stream(mut events) => loop {
                match events.next().await {
                    Some(Ok(upstream::StreamItem::Message(message))) => {
                        let value = read(&message);
                        if value["id"] == request["id"] && message.is_response() {
                            break Some(value);
                        }
                    }
                    Some(Ok(upstream::StreamItem::NotAMessage { .. } | upstream::StreamItem::TooLong(_))) => {
                    }
                    Some(Err(failure)) => return Err(failure.fault().message),
                    None => break None,
                }
            },
        };
        let found = found.ok_or_else(|| "the connection ended without an answer".to_owned())?;
        Ok((found, answer.session))
    }
}

fn message(value: &Value) -> Result<RpcMessage, CommandFailure> {
    RpcMessage::parse(value.to_string(), usize::MAX)
        .map_err(|error| CommandFailure::Environment(format!("the demo built an invalid message: {error}")))
}

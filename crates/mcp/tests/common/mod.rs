//! A front that passes every message to the test, and a client that writes raw requests.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use parking_lot::Mutex;
use steadfast_core::id::ActorId;
use steadfast_mcp::http::server::{
    AdmissionError, BearerTokens, ConnectionPeer, EndpointHandler, EndpointSettings, HttpCaller,
    HttpEndpoint, HttpRefusal, IncomingMessage, ListenRequest, ListenerLimits, McpSessionId, Principal,
    RequestBody, SessionStreams, StreamLimits, TokenHolder, serve,
};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A guard against hanging tests, not a measured limit.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A limit that no test reaches.
pub const LONG: Duration = Duration::from_secs(3600);

/// Limits that no connection reaches on a slow machine.
pub fn patient() -> ListenerLimits {
    ListenerLimits {
        head_time: LONG,
        idle: LONG,
        write_stall: LONG,
        unacknowledged: LONG,
        stop: LONG,
        ..ListenerLimits::default()
    }
}

/// The same for requests and responses.
pub fn patient_settings() -> EndpointSettings {
    EndpointSettings { body_time: LONG, quiet: LONG, keep_alive: LONG, ..EndpointSettings::default() }
}

/// Lets every task of this runtime continue until it waits.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// A paused clock of this runtime: time passes only on request, independent of the speed of the machine.
pub struct PausedRuntimeClock {
    _holds: std::sync::mpsc::Sender<()>,
}

impl PausedRuntimeClock {
    pub fn new() -> Self {
        // A paused runtime advances its clock whenever it is idle, also while data is on its way through a socket. It
        // does not while a blocking task runs.
        let (holds, released) = std::sync::mpsc::channel();
        tokio::task::spawn_blocking(move || released.recv());
        tokio::time::pause();
        Self { _holds: holds }
    }

    /// Advances the time for all timers that are set now.
    pub async fn pass(&self, span: Duration) {
        settle().await;
        // Timers count whole milliseconds.
        tokio::time::advance(span + Duration::from_millis(1)).await;
        settle().await;
    }

    /// Resumes real time.
    pub fn go_on(self) {
        tokio::time::resume();
    }
}

pub const MODERN: &str = "MCP-Protocol-Version: 2026-07-28\r\n";
pub const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

/// Passes every message to the test, and knows the sessions that the test created.
pub struct RecordingHandler {
    pub messages: mpsc::UnboundedSender<IncomingMessage>,
    pub listening: mpsc::UnboundedSender<ListenRequest>,
    pub sessions: Mutex<HashMap<String, Arc<SessionStreams>>>,
    pub tokens: Option<BearerTokens>,
    /// True if it accepts no more messages.
    pub is_full: AtomicBool,
}

impl EndpointHandler for RecordingHandler {
    fn admit(&self, bearer: Option<&[u8]>) -> Result<Principal, AdmissionError> {
        let Some(tokens) = &self.tokens else { return Ok(Principal::new(ActorId::new("local").unwrap())) };
        match bearer.and_then(|bearer| tokens.holder(bearer)) {
            Some(TokenHolder::Client(principal)) => Ok(principal),
            Some(TokenHolder::Viewer(_)) => Err(AdmissionError::VIEWER),
            None => Err(AdmissionError::TOKEN),
        }
    }
    fn versions(&self) -> Vec<String> {
        vec!["2026-07-28".into(), "2025-11-25".into()]
    }
    async fn session(&self, id: &McpSessionId, _: &Principal) -> Option<Arc<SessionStreams>> {
        self.sessions.lock().get(id.as_str()).cloned()
    }
    fn message(&self, incoming: IncomingMessage) -> Result<(), HttpRefusal> {
        if self.is_full.load(Ordering::Relaxed) {
            let id = incoming.responder.as_ref().map(|responder| responder.id().clone());
            return Err(HttpRefusal::overloaded(id.as_ref(), Duration::from_secs(5)));
        }
        let _ = self.messages.send(incoming);
        Ok(())
    }
    fn listening(&self, listening: ListenRequest) {
        let _ = self.listening.send(listening);
    }
    async fn end(&self, session: Arc<SessionStreams>, _: HttpCaller) {
        self.sessions.lock().remove(session.id().as_str());
    }
}

pub struct EndpointTestServer {
    pub address: SocketAddr,
    pub front: Arc<RecordingHandler>,
    pub messages: mpsc::UnboundedReceiver<IncomingMessage>,
    pub listening: mpsc::UnboundedReceiver<ListenRequest>,
    pub stop: CancellationToken,
    pub done: tokio::task::JoinHandle<()>,
}

impl EndpointTestServer {
    pub async fn start() -> Self {
        Self::with(patient_settings(), patient(), None).await
    }

    pub async fn with(
        settings: EndpointSettings,
        limits: ListenerLimits,
        tokens: Option<BearerTokens>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, settings, limits, tokens)
    }

    pub fn on(
        listener: TcpListener,
        settings: EndpointSettings,
        limits: ListenerLimits,
        tokens: Option<BearerTokens>,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let (message, messages) = mpsc::unbounded_channel();
        let (listens, listening) = mpsc::unbounded_channel();
        let sessions = Mutex::default();
        let front = Arc::new(RecordingHandler {
            messages: message,
            listening: listens,
            sessions,
            tokens,
            is_full: AtomicBool::new(false),
        });
        let endpoint = Arc::new(HttpEndpoint::new(Arc::clone(&front), settings));
        let stop = CancellationToken::new();
        let service = move |request: Request<RequestBody>, peer: ConnectionPeer| {
            let endpoint = Arc::clone(&endpoint);
            async move { endpoint.respond(request, peer).await }
        };
        let done = tokio::spawn(serve(listener, limits, service, stop.clone()));
        Self { address, front, messages, listening, stop, done }
    }

    /// Creates a session that the front knows.
    pub fn session(&self, id: &str) -> Arc<SessionStreams> {
        let session = SessionStreams::new(McpSessionId::new(id).unwrap(), StreamLimits::default());
        self.front.sessions.lock().insert(id.to_owned(), Arc::clone(&session));
        session
    }

    pub async fn next(&mut self) -> IncomingMessage {
        let next = tokio::time::timeout(TEST_TIMEOUT, self.messages.recv());
        next.await.expect("a message").expect("the front lives")
    }

    pub async fn client(&self) -> RawHttpClient {
        RawHttpClient { stream: TcpStream::connect(self.address).await.unwrap(), buffer: Vec::new() }
    }

    /// Sends a request on a connection of its own. Returns the status and the body.
    pub async fn request(&self, request: &str) -> (u16, String) {
        let mut client = self.client().await;
        client.send(request).await;
        let head = client.head().await;
        let body = client.body(&head).await;
        (head.status, body)
    }

    pub async fn stopped(self) {
        self.stop.cancel();
        self.done.await.unwrap();
    }
}

/// Creates a response whose result has this text.
pub fn result(id: &RpcId, text: &str) -> RpcMessage {
    RpcMessage::result_response(id, &JsonText::parse(text.to_owned()).unwrap())
}

pub fn progress(number: u32) -> RpcMessage {
    let params = JsonText::parse(format!("{{\"progressToken\":1,\"progress\":{number}}}")).unwrap();
    RpcMessage::notification("notifications/progress", Some(&params))
}

pub fn post(headers: &str, body: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub fn get(headers: &str) -> String {
    format!("GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{headers}\r\n")
}

pub fn modern(method: &str, id: u32) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{META}}}}}"#);
    post(&format!("{MODERN}Mcp-Method: {method}\r\n"), &body)
}

pub fn legacy(session: &str, method: &str, id: u32) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
    post(&format!("MCP-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: {session}\r\n"), &body)
}

pub struct RawResponseHead {
    pub status: u16,
    pub headers: HashMap<String, String>,
}

impl RawResponseHead {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A client that sends raw requests.
pub struct RawHttpClient {
    pub stream: TcpStream,
    pub buffer: Vec<u8>,
}

impl RawHttpClient {
    pub async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn more(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let read = self.stream.read(&mut chunk).await.unwrap_or(0);
        self.buffer.extend_from_slice(&chunk[..read]);
        read > 0
    }

    async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|part| part == end.as_bytes()) {
                let text = String::from_utf8(self.buffer.drain(..at + end.len()).collect()).unwrap();
                return text.strip_suffix(end).unwrap().to_owned();
            }
            if !self.more().await {
                return String::from_utf8(std::mem::take(&mut self.buffer)).unwrap();
            }
        }
    }

    pub async fn head(&mut self) -> RawResponseHead {
        let text = self.until("\r\n\r\n").await;
        let mut lines = text.lines();
        let status =
            lines.next().unwrap_or_default().split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(n, v)| (n.to_lowercase(), v.to_owned()))
            .collect();
        RawResponseHead { status, headers }
    }

    pub async fn body(&mut self, head: &RawResponseHead) -> String {
        if head.get("transfer-encoding").is_some() {
            let mut all = String::new();
            while let Some(chunk) = self.chunk().await {
                all.push_str(&chunk);
            }
            return all;
        }
        let length = head.get("content-length").map_or(0, |length| length.parse().unwrap());
        while self.buffer.len() < length && self.more().await {}
        String::from_utf8(self.buffer.drain(..length.min(self.buffer.len())).collect()).unwrap()
    }

    /// Returns the next chunk of a stream, or nothing at its end.
    pub async fn chunk(&mut self) -> Option<String> {
        let length = usize::from_str_radix(&self.until("\r\n").await, 16).unwrap_or(0);
        while self.buffer.len() < length + 2 && self.more().await {}
        let chunk: Vec<u8> = self.buffer.drain(..(length + 2).min(self.buffer.len())).collect();
        (length > 0).then(|| String::from_utf8(chunk[..length].to_vec()).unwrap())
    }

    /// Returns true if the server closes the connection.
    pub async fn is_closed(&mut self) -> bool {
        while self.more().await {}
        true
    }
}

//! A minimal MCP client that checks whether and how fast a server answers, over the streams of a process that it
//! starts or over HTTP.

#![expect(clippy::indexing_slicing, reason = "a member of a JSON value that is not there reads as null")]

use std::time::Duration;

use http::HeaderMap;
use serde_json::{Value, json};
use steadfast_mcp::http::upstream::{self, HttpUpstream, MessageContext, UpstreamContent};
use steadfast_mcp::lines::{LONGEST_LINE, LineItem, LineReader};
use steadfast_mcp::message::RpcMessage;
use steadfast_process::{ChildProcess, Launch, Leash, StderrLog, StopTimeouts};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

/// A server that completed the initialization.
pub(crate) struct McpPeer {
    transport: PeerTransport,
    next: u64,
    /// Name that the server reports.
    pub(crate) name: String,
}

enum PeerTransport {
    Lines { child: ChildProcess, stdin: ChildStdin, lines: Box<LineReader<ChildStdout>>, stderr: StderrLog },
    Http { server: HttpUpstream, context: MessageContext },
}

/// Target of the connection.
pub(crate) enum PeerTarget {
    /// A process to start.
    Started(Box<Launch>, Leash),
    /// A URL, with these headers.
    Url(String, HeaderMap),
}

const VERSION: &str = "2025-11-25";
/// Shutdown timeouts of a server process.
const SHORT: StopTimeouts = StopTimeouts {
    stdin: Duration::from_secs(1),
    term: Duration::from_secs(1),
    kill: Duration::from_secs(2),
};

impl McpPeer {
    /// Connects and initializes the session. Returns the reason if that fails.
    pub(crate) async fn connect(reached: &PeerTarget, patience: Duration) -> Result<Self, String> {
        let transport = match reached {
            PeerTarget::Started(launch, leash) => {
                let stderr = StderrLog::new();
                let started = launch.start(leash, &stderr).await.map_err(|error| error.to_string())?;
                let lines = Box::new(LineReader::new(started.stdout, LONGEST_LINE));
                PeerTransport::Lines { child: started.child, stdin: started.stdin, lines, stderr }
            }
            PeerTarget::Url(url, headers) => {
                let server = HttpUpstream::new(url, upstream::HttpUpstreamSettings::default())
                    .map_err(|error| error.to_string())?;
                let context = MessageContext {
                    version: Some(VERSION.into()),
                    headers: headers.clone(),
                    ..MessageContext::default()
                };
                PeerTransport::Http { server, context }
            }
        };
        let mut peer = Self { transport, next: 1, name: String::new() };
        let hello = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "steadfast", "version": env!("CARGO_PKG_VERSION") },
        });
        let initialized = peer.request("initialize", hello, patience).await;
        let initialized = match initialized {
            Ok(initialized) => initialized,
            Err(reason) => {
                peer.close().await;
                return Err(reason);
            }
        };
        peer.name = initialized["serverInfo"]["name"].as_str().unwrap_or_default().to_owned();
        peer.notify(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        Ok(peer)
    }

    /// Sends a request and returns the result, or the reason why there is none.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        params: Value,
        patience: Duration,
    ) -> Result<Value, String> {
        let id = self.next;
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answered = match &mut self.transport {
            PeerTransport::Lines { stdin, lines, stderr, .. } => {
                match timeout(patience, exchange(stdin, lines, id, &request)).await {
                    Ok(Err(reason)) => {
                        let last =
                            stderr.tail(1).pop().map(|line| format!("; it said: {line}")).unwrap_or_default();
                        Ok(Err(format!("{reason}{last}")))
                    }
                    other => other,
                }
            }
            PeerTransport::Http { server, context } => {
                timeout(patience, post(server, context, id, &request)).await
            }
        };
        let answer = answered
            .map_err(|_| format!("no answer to {method} within {} seconds", patience.as_secs()))??;
        match answer["error"]["message"].as_str() {
            Some(message) => Err(format!("{method} was answered with an error: {message}")),
            None => Ok(answer["result"].clone()),
        }
    }

    async fn notify(&mut self, notification: &Value) {
        match &mut self.transport {
            PeerTransport::Lines { stdin, .. } => {
                let _ = stdin.write_all(format!("{notification}\n").as_bytes()).await;
            }
            PeerTransport::Http { server, context } => {
                if let Ok(message) = RpcMessage::parse(notification.to_string(), usize::MAX) {
                    let _ = timeout(SHORT.kill, server.post(&message, context)).await;
                }
            }
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(self) {
        match self.transport {
            PeerTransport::Lines { child, stdin, .. } => {
                drop(stdin);
                child.stop(&SHORT).await;
            }
            PeerTransport::Http { server, context } if context.session.is_some() => {
                let _ = timeout(SHORT.kill, server.end(&context)).await;
            }
            PeerTransport::Http { .. } => {}
        }
    }
}

async fn exchange(
    stdin: &mut ChildStdin,
    lines: &mut LineReader<ChildStdout>,
    id: u64,
    request: &Value,
) -> Result<Value, String> {
    let disconnected = || "the server ended without an answer".to_owned();
    stdin.write_all(format!("{request}\n").as_bytes()).await.map_err(|_| disconnected())?;
    loop {
        match lines.next().await {
            Some(Ok(LineItem::Message(message))) => {
                if message.is_response() && message.id().and_then(|id| id.as_u64()) == Some(id) {
                    return serde_json::from_slice(message.bytes()).map_err(|error| error.to_string());
                }
            }
            Some(Ok(LineItem::NotAMessage { .. } | LineItem::TooLong(_) | LineItem::Half(_))) => {}
            Some(Err(_)) | None => return Err(disconnected()),
        }
    }
}

async fn post(
    server: &HttpUpstream,
    context: &mut MessageContext,
    id: u64,
    request: &Value,
) -> Result<Value, String> {
    let message = RpcMessage::parse(request.to_string(), usize::MAX).map_err(|error| error.to_string())?;
    let answer = server.post(&message, context).await.map_err(|failure| failure.fault().message)?;
    if answer.session.is_some() {
        context.session = answer.session;
    }
    let read =
        |message: &RpcMessage| serde_json::from_slice(message.bytes()).map_err(|error| error.to_string());
    match answer.content {
        UpstreamContent::One(message) => read(&message),
        UpstreamContent::Accepted => Err("the server accepted it and did not answer".to_owned()),
        UpstreamContent::Stream(mut events) => loop {
            match events.next().await {
                Some(Ok(upstream::StreamItem::Message(message))) => {
                    if message.is_response() && message.id().and_then(|id| id.as_u64()) == Some(id) {
                        return read(&message);
                    }
                }
                Some(Ok(upstream::StreamItem::NotAMessage { .. } | upstream::StreamItem::TooLong(_))) => {}
                Some(Err(failure)) => return Err(failure.fault().message),
                None => return Err("the connection ended without an answer".to_owned()),
            }
        },
    }
}
